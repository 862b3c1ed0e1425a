//! The paths of the second listener, which speaks as dcgm-exporter does.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use model::http_counters::HttpCounters;

use super::app_state::{AppState, unavailable};
use super::host::{self, Hosts};
use super::routes::{dcgm_metrics, finish, read_only};

const INDEX: &str = "<html><head><title>gpu-node-exporter</title></head>\n\
    <body><p>The metrics of dcgm-exporter, by gpu-node-exporter: <a href=\"metrics\">metrics</a></p></body></html>\n";

/// The paths, with the headers that every response carries.
pub(super) fn router(state: Arc<AppState>, hosts: Hosts, stats: Arc<HttpCounters>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(dcgm_metrics))
        .route("/health", get(health))
        .fallback(unknown)
        .method_not_allowed_fallback(read_only)
        .layer(from_fn_with_state(hosts, host::check))
        .layer(map_response_with_state(stats, finish))
        .with_state(state)
}

async fn index() -> Response {
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], INDEX).into_response()
}

async fn health(State(state): State<Arc<AppState>>) -> Response {
    match state.publishes() {
        Ok(_) => "OK\n".into_response(),
        Err(_) => unavailable("KO\n".into()),
    }
}

async fn unknown() -> Response {
    (StatusCode::NOT_FOUND, "There is nothing at this path. There is: /metrics /health\n").into_response()
}

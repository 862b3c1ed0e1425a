//! The paths and their handlers. All are read-only: state changes go through the local socket.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use model::http_counters::HttpCounters;

use super::app_state::{AppState, joined, unavailable};
use super::events;
use super::host::{self, Hosts};
use super::live;
use super::owners;
use super::streams::Streams;
use crate::assets::{Asset, PAGE_FILES};
use crate::format::{ResponseFormat, accepted_metrics_format};
use crate::page;
use crate::paths::PATHS;

/// The paths, with the headers that every response carries.
pub(super) fn router(
    state: Arc<AppState>,
    streams: Streams,
    hosts: Hosts,
    stats: Arc<HttpCounters>,
) -> Router {
    let of_pages = streams.clone();
    let updates = move |State(state): State<Arc<AppState>>| live::answer(state, of_pages.clone());
    let list = move |State(state): State<Arc<AppState>>, uri: Uri, headers: HeaderMap| {
        events::answer(state, streams.clone(), uri, headers)
    };
    Router::new()
        .route("/", get(status_page))
        .route("/page/updates", get(updates))
        .route("/page/history", get(history))
        .route("/page/{file}", get(page_file))
        .route("/metrics", get(metrics))
        .route("/dcgm/metrics", get(dcgm_metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/api/v1/snapshot", get(snapshot))
        .route("/api/v1/events", get(list))
        .route("/api/v1/topology", get(topology))
        .route("/api/v1/windows", get(windows))
        .route("/api/v1/owners", get(owners::answer))
        .route("/alerts/", get(folder))
        .route("/alerts/{*file}", get(asset))
        .route("/dashboards/", get(folder))
        .route("/dashboards/{*file}", get(asset))
        .fallback(unknown)
        .method_not_allowed_fallback(read_only)
        .layer(from_fn_with_state(hosts, host::check))
        .layer(map_response_with_state(stats, finish))
        .with_state(state)
}

async fn status_page(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    state.respond(ResponseFormat::Page, &headers).await
}

async fn metrics(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    state.respond(accepted_metrics_format(&joined(&headers, ACCEPT)), &headers).await
}

pub(super) async fn dcgm_metrics(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    state.respond(ResponseFormat::Dcgm, &headers).await
}

async fn snapshot(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    state.respond(ResponseFormat::Json, &headers).await
}

async fn topology(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    if state.snapshots.current().topology.is_none() {
        return unavailable("Nothing is known of the topology; /readyz says why.\n".into());
    }
    state.respond(ResponseFormat::Topology, &headers).await
}

async fn windows(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    state.respond(ResponseFormat::Windows, &headers).await
}

/// The points of the charts.
async fn history(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    state.respond(ResponseFormat::History, &headers).await
}

/// Style sheet and script of the status page.
async fn page_file(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Some(file) = PAGE_FILES.iter().find(|file| file.path == name) else { return unknown().await };
    state.respond_asset(file, &headers).await
}

/// What files there are.
async fn folder(uri: Uri) -> Response {
    let mut body = String::new();
    for asset in Asset::below(uri.path()) {
        let _ = writeln!(body, "{}", asset.path);
    }
    body.into_response()
}

async fn asset(State(state): State<Arc<AppState>>, uri: Uri, headers: HeaderMap) -> Response {
    let Some(asset) = Asset::at(uri.path()) else { return unknown().await };
    state.respond_asset(asset, &headers).await
}

async fn livez(State(state): State<Arc<AppState>>) -> Response {
    match state.publishes() {
        Ok(true) => "alive\n".into_response(),
        Ok(false) => "alive: starting\n".into_response(),
        Err(why) => unavailable(why),
    }
}

/// Ready: every collector has answered or been found absent. The health of GPUs and driver plays no part:
/// an exporter that reports a sick GPU is ready.
async fn readyz(State(state): State<Arc<AppState>>) -> Response {
    let snapshot = match state.fresh() {
        Ok(snapshot) => snapshot,
        Err(why) => return unavailable(why),
    };
    let mut body = String::from(if snapshot.ready { "ready\n" } else { "not ready\n" });
    for collector in &snapshot.collectors {
        // Writing to a string cannot fail.
        let _ = writeln!(body, "collector {}: {}", collector.name, collector.text());
    }
    let _ = writeln!(body, "driver: {}\nhealth: {}", snapshot.driver.text(), snapshot.health.text);
    if snapshot.ready { body.into_response() } else { unavailable(body) }
}

async fn unknown() -> Response {
    let mut body = String::from("There is nothing at this path. There is:\n");
    for (path, what) in PATHS {
        let _ = writeln!(body, "{path:<18} {what}");
    }
    (StatusCode::NOT_FOUND, body).into_response()
}

pub(super) async fn read_only() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD: everything here is read-only.\n").into_response()
}

/// Adds the common headers and counts the response.
pub(super) async fn finish(State(stats): State<Arc<HttpCounters>>, mut response: Response) -> Response {
    stats.count(response.status().as_u16());
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(CONTENT_SECURITY_POLICY, page::CONTENT_SECURITY_POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "no-referrer");
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

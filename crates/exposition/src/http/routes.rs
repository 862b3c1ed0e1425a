//! The paths and their handlers. All are read-only: state changes go through the local socket.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Extension, Router};
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
use crate::paths::{DCGM_PATHS, PATHS, dcgm_paths, main_paths};

/// Index page of the listener that imitates dcgm-exporter.
const INDEX: &str = "<html><head><title>gpu-node-exporter</title></head>\n\
    <body><p>The metrics of dcgm-exporter, served by gpu-node-exporter: <a href=\"metrics\">metrics</a></p></body></html>\n";

/// A path and its handler.
type Route = (&'static str, MethodRouter<Arc<AppState>>);

macro_rules! routes {
    ($($path:literal => $handler:expr, $description:literal;)*) => { vec![$(($path, $handler)),*] };
}

/// Returns the router of the main listener.
pub(super) fn router(
    state: Arc<AppState>,
    streams: Streams,
    hosts: Hosts,
    stats: Arc<HttpCounters>,
) -> Router {
    with_common_parts(main_paths!(routes), PATHS, hosts, stats).layer(Extension(streams)).with_state(state)
}

/// Returns the router of the listener that imitates dcgm-exporter.
pub(super) fn dcgm_router(state: Arc<AppState>, hosts: Hosts, stats: Arc<HttpCounters>) -> Router {
    with_common_parts(dcgm_paths!(routes), DCGM_PATHS, hosts, stats).with_state(state)
}

/// Adds the responses to unknown paths and methods, the check of `Host` and the headers that every response has.
fn with_common_parts(
    routes: Vec<Route>,
    paths: &'static [(&'static str, &'static str)],
    hosts: Hosts,
    stats: Arc<HttpCounters>,
) -> Router<Arc<AppState>> {
    let mut router = Router::new();
    for (path, handler) in routes {
        if path.len() > 1 && path.ends_with('/') {
            router = router.route(&format!("{path}{{*file}}"), handler.clone());
        }
        router = router.route(path, handler);
    }
    router
        .fallback(async move || unknown(paths))
        .method_not_allowed_fallback(read_only)
        .layer(from_fn_with_state(hosts, host::check))
        .layer(map_response_with_state(stats, finish))
}

/// Serves the newest snapshot in one format.
fn document(format: ResponseFormat) -> MethodRouter<Arc<AppState>> {
    get(async move |State(state): State<Arc<AppState>>, headers: HeaderMap| {
        state.respond(format, &headers).await
    })
}

async fn metrics(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    state.respond(accepted_metrics_format(&joined(&headers, ACCEPT)), &headers).await
}

async fn topology(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    if state.snapshots.current().topology.is_none() {
        return unavailable("The topology is not available: see /readyz for the reason.\n".into());
    }
    state.respond(ResponseFormat::Topology, &headers).await
}

async fn page_file(State(state): State<Arc<AppState>>, uri: Uri, headers: HeaderMap) -> Response {
    let name = uri.path().trim_start_matches("/page/");
    match PAGE_FILES.iter().find(|file| file.path == name) {
        Some(file) => state.respond_asset(file, &headers).await,
        None => unknown(PATHS),
    }
}

/// Serves a rule file or dashboard, and the list of files for a folder.
async fn asset(State(state): State<Arc<AppState>>, uri: Uri, headers: HeaderMap) -> Response {
    if let Some(asset) = Asset::at(uri.path()) {
        return state.respond_asset(asset, &headers).await;
    }
    if !PATHS.iter().any(|(path, _)| *path == uri.path()) {
        return unknown(PATHS);
    }
    let files = Asset::below(uri.path());
    files.map(|asset| format!("{}\n", asset.path)).collect::<String>().into_response()
}

async fn livez(State(state): State<Arc<AppState>>) -> Response {
    match state.publishes() {
        Ok(true) => "alive\n".into_response(),
        Ok(false) => "alive: starting\n".into_response(),
        Err(why) => unavailable(why),
    }
}

/// Reports the exporter as ready once every collector has answered or been found absent. The result does not depend on
/// the health of the GPUs and the driver, because an exporter that reports a faulty GPU works as intended.
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

fn unknown(paths: &[(&str, &str)]) -> Response {
    let mut body = String::from("This path does not exist. The available paths are:\n");
    for (path, description) in paths {
        let _ = writeln!(body, "{path:<18} {description}");
    }
    (StatusCode::NOT_FOUND, body).into_response()
}

async fn index() -> Response {
    Html(INDEX).into_response()
}

/// Handles `/health`, with the responses of dcgm-exporter.
async fn health(State(state): State<Arc<AppState>>) -> Response {
    match state.publishes() {
        Ok(_) => "OK\n".into_response(),
        Err(_) => unavailable("KO\n".into()),
    }
}

async fn read_only() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD are allowed: all paths are read-only.\n")
        .into_response()
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

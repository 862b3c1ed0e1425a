//! The paths and what each answers. All are read-only; what changes state goes through
//! [`gpu_node_exporter::control`].

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderName, IF_NONE_MATCH, REFERRER_POLICY, RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::map_response_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::events::{self, Streams};
use super::stats::Stats;
use crate::assets::{Asset, FOLDERS};
use crate::encode::{self, Format, accepted_encoding, accepted_metrics_format};
use crate::page::{self};
use crate::response_cache::Renderings;
use crate::snapshot_cell::SnapshotCell;
use crate::words;
use model::clock::Mono;
use model::snapshot::Snapshot;

/// Every path, with what it shows.
pub const PATHS: [(&str, &str); 11] = [
    ("/", "status page"),
    ("/metrics", "metrics: OpenMetrics 1.0 or Prometheus text 0.0.4, by the Accept header"),
    ("/livez", "200 while the exporter itself works"),
    ("/readyz", "200 once every collector has answered or been found absent"),
    ("/api/v1/snapshot", "everything, as JSON"),
    ("/api/v1/events", "faults and other events, as JSON (since=ID, limit=N) or as text/event-stream"),
    ("/api/v1/topology", "the machine around the GPUs and what has changed of it, as JSON"),
    ("/api/v1/windows", "windows of planned work, as JSON"),
    ("/api/v1/owners", "whose work is on the GPUs, and what holds it back, as JSON"),
    FOLDERS[0],
    FOLDERS[1],
];

/// What the handlers look at.
#[derive(Debug)]
pub struct Doors {
    /// Where the newest snapshot hangs.
    pub board: Arc<SnapshotCell>,
    /// Its bytes.
    pub renderings: Arc<Renderings>,
    /// When the process started: so long after it a first snapshot may be missing.
    pub started: Mono,
    /// Age at which a snapshot is no longer served: 10 publish intervals, at least 10 s.
    pub stale_after: Duration,
}

impl Doors {
    /// The newest snapshot, or in words why it must not be served: missing beats wrong.
    pub(super) fn fresh(&self) -> Result<Arc<Snapshot>, String> {
        let snapshot = self.board.current();
        if snapshot.sequence == 0 {
            return Err("No values have been published yet.\n".into());
        }
        let age = Mono::now().since(snapshot.taken);
        if age > self.stale_after {
            let age = words::duration(age);
            return Err(format!(
                "The newest values are {age} old: too old to serve. The exporter is stuck.\n"
            ));
        }
        Ok(snapshot)
    }

    /// A document made of the newest snapshot, away from the thread that serves.
    async fn document(&self, make: fn(&Snapshot) -> Result<Vec<u8>, serde_json::Error>) -> Response {
        let snapshot = match self.fresh() {
            Ok(snapshot) => snapshot,
            Err(why) => return unavailable(why),
        };
        let made = tokio::task::spawn_blocking(move || make(&snapshot)).await;
        match made.map_err(|e| e.to_string()).and_then(|made| made.map_err(|e| e.to_string())) {
            Ok(bytes) => ([(CONTENT_TYPE, Format::Json.content_type())], bytes).into_response(),
            Err(error) => {
                tracing::error!(error, "a document cannot be made");
                (StatusCode::INTERNAL_SERVER_ERROR, "The document could not be made.\n").into_response()
            }
        }
    }

    async fn show(&self, format: Format, headers: &HeaderMap) -> Response {
        if let Err(why) = self.fresh() {
            return unavailable(why);
        }
        let encoding = accepted_encoding(&joined(headers, ACCEPT_ENCODING));
        match self.renderings.get(format, encoding).await {
            Ok(bytes) => {
                let mut response = Body::from(bytes).into_response();
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
                headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
                if let Some(coding) = encoding.content_encoding() {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
                }
                response
            }
            Err(error) => {
                tracing::error!(%error, ?format, "nothing to send");
                (StatusCode::INTERNAL_SERVER_ERROR, "The values could not be rendered.\n").into_response()
            }
        }
    }
}

/// The paths, with what every answer carries.
pub(super) fn router(doors: Arc<Doors>, streams: Streams, stats: Arc<Stats>) -> Router {
    let list = move |State(doors): State<Arc<Doors>>, uri: Uri, headers: HeaderMap| {
        events::answer(doors, streams.clone(), uri, headers)
    };
    Router::new()
        .route("/", get(status_page))
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/api/v1/snapshot", get(snapshot))
        .route("/api/v1/events", get(list))
        .route("/api/v1/topology", get(topology))
        .route("/api/v1/windows", get(windows))
        .route("/api/v1/owners", get(owners))
        .route("/alerts/", get(folder))
        .route("/alerts/{*file}", get(asset))
        .route("/dashboards/", get(folder))
        .route("/dashboards/{*file}", get(asset))
        .fallback(unknown)
        .method_not_allowed_fallback(read_only)
        .layer(map_response_with_state(stats, finish))
        .with_state(doors)
}

async fn status_page(State(doors): State<Arc<Doors>>, headers: HeaderMap) -> Response {
    doors.show(Format::Page, &headers).await
}

async fn metrics(State(doors): State<Arc<Doors>>, headers: HeaderMap) -> Response {
    doors.show(accepted_metrics_format(&joined(&headers, ACCEPT)), &headers).await
}

async fn snapshot(State(doors): State<Arc<Doors>>, headers: HeaderMap) -> Response {
    doors.show(Format::Json, &headers).await
}

/// Documents that nobody asks for often are made for each request.
async fn topology(State(doors): State<Arc<Doors>>) -> Response {
    if doors.board.current().topology.update.is_none() {
        return unavailable("Nothing is known of the topology; /readyz tells why.\n".into());
    }
    doors.document(encode::topology::document).await
}

async fn windows(State(doors): State<Arc<Doors>>) -> Response {
    doors.document(encode::windows::document).await
}

async fn owners(State(doors): State<Arc<Doors>>) -> Response {
    doors.document(encode::owners::document).await
}

/// What files there are.
async fn folder(uri: Uri) -> Response {
    let mut body = String::new();
    for asset in Asset::below(uri.path()) {
        let _ = writeln!(body, "{}", asset.path);
    }
    body.into_response()
}

async fn asset(uri: Uri, headers: HeaderMap) -> Response {
    let Some(asset) = Asset::at(uri.path()) else { return unknown().await };
    let (tag, keep) = ([(ETAG, asset.etag())], [(CACHE_CONTROL, "no-cache")]);
    if asset.is_known_by(&joined(&headers, IF_NONE_MATCH)) {
        return (StatusCode::NOT_MODIFIED, tag, keep).into_response();
    }
    (tag, keep, [(CONTENT_TYPE, asset.content_type())], asset.text).into_response()
}

/// Alive: the ledger publishes, or has not had the time to begin.
async fn livez(State(doors): State<Arc<Doors>>) -> Response {
    match doors.fresh() {
        Ok(_) => "alive\n".into_response(),
        Err(_) if Mono::now().since(doors.started) <= doors.stale_after => {
            "alive: starting\n".into_response()
        }
        Err(why) => unavailable(why),
    }
}

/// Ready: every collector has answered or been found absent. The health of GPUs and driver plays no part:
/// an exporter that reports a sick GPU is ready.
async fn readyz(State(doors): State<Arc<Doors>>) -> Response {
    let snapshot = match doors.fresh() {
        Ok(snapshot) => snapshot,
        Err(why) => return unavailable(why),
    };
    let mut body = String::from(if snapshot.ready { "ready\n" } else { "not ready\n" });
    for collector in &snapshot.collectors {
        // Writing to a string cannot fail.
        let _ = writeln!(body, "collector {}: {}", collector.name, words::collector_text(collector));
    }
    let _ = writeln!(body, "driver: {}", words::driver_text(&snapshot.driver));
    if snapshot.ready { body.into_response() } else { unavailable(body) }
}

async fn unknown() -> Response {
    let mut body = String::from("There is nothing at this path. There is:\n");
    for (path, what) in PATHS {
        let _ = writeln!(body, "{path:<18} {what}");
    }
    (StatusCode::NOT_FOUND, body).into_response()
}

async fn read_only() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD: everything here is read-only.\n").into_response()
}

pub(super) fn unavailable(why: String) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], why).into_response()
}

/// Headers of every answer, and the count of it.
async fn finish(State(stats): State<Arc<Stats>>, mut response: Response) -> Response {
    stats.count(response.status().as_u16());
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(CONTENT_SECURITY_POLICY, page::content_security_policy());
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "no-referrer");
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// All values of a header as one list. What is not text says nothing we could use.
pub(super) fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

//! What the handlers share.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, RETRY_AFTER, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::format::{ResponseFormat, accepted_encoding};
use crate::response_cache::{ResponseCache, SnapshotCell};
use model::clock::Mono;
use model::snapshot::Snapshot;
use model::text;

/// The state of all handlers.
#[derive(Debug)]
pub struct AppState {
    pub snapshots: Arc<SnapshotCell>,
    pub responses: Arc<ResponseCache>,
    /// When the process started: within `stale_after` of it a first snapshot may be missing.
    pub started: Mono,
    /// Age at which a snapshot is no longer served: 10 publish intervals, at least 10 s.
    pub stale_after: Duration,
}

impl AppState {
    /// The newest snapshot, or why it must not be served: missing beats wrong.
    pub fn fresh(&self) -> Result<Arc<Snapshot>, String> {
        let snapshot = self.snapshots.current();
        if snapshot.sequence == 0 {
            return Err("No values have been published yet.\n".into());
        }
        let age = Mono::now().since(snapshot.taken);
        if age > self.stale_after {
            let age = text::duration(age);
            return Err(format!(
                "The newest values are {age} old: too old to serve. The exporter is stuck.\n"
            ));
        }
        Ok(snapshot)
    }

    /// A document that is encoded for each request, since few clients request it. Many owners take tens of
    /// milliseconds, so a scrape must not wait for it.
    pub async fn document<E>(&self, encode: E) -> Response
    where
        E: FnOnce(&Snapshot) -> Result<Vec<u8>, serde_json::Error> + Send + 'static,
    {
        let snapshot = match self.fresh() {
            Ok(snapshot) => snapshot,
            Err(why) => return unavailable(why),
        };
        let encoded = tokio::task::spawn_blocking(move || encode(&snapshot).map_err(|e| e.to_string())).await;
        match encoded.map_err(|e| e.to_string()).and_then(|encoded| encoded) {
            Ok(bytes) => ([(CONTENT_TYPE, ResponseFormat::Json.content_type())], bytes).into_response(),
            Err(error) => {
                tracing::error!(error, "document not encoded");
                (StatusCode::INTERNAL_SERVER_ERROR, "The document could not be encoded.\n").into_response()
            }
        }
    }

    /// The newest snapshot in a format, from the cache.
    pub fn respond(&self, format: ResponseFormat, headers: &HeaderMap) -> Response {
        if let Err(why) = self.fresh() {
            return unavailable(why);
        }
        let encoding = accepted_encoding(&joined(headers, ACCEPT_ENCODING));
        match self.responses.get(format, encoding) {
            Ok(bytes) => {
                let kind = [(CONTENT_TYPE, format.content_type()), (VARY, "accept, accept-encoding")];
                let coding = encoding.content_encoding().map(|coding| [(CONTENT_ENCODING, coding)]);
                (kind, coding, bytes).into_response()
            }
            Err(error) => {
                tracing::error!(%error, ?format, "snapshot not encoded");
                (StatusCode::INTERNAL_SERVER_ERROR, "The values could not be encoded.\n").into_response()
            }
        }
    }
}

pub fn unavailable(why: String) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], why).into_response()
}

/// All values of a header as one list. A value that is not text is ignored.
pub fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

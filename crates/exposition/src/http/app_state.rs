//! State that the HTTP handlers share, and helpers for their responses.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH,
    RETRY_AFTER, VARY,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, IntoResponseParts, Response};

use crate::assets::Asset;
use crate::format::{Encoding, ResponseFormat, accepted_encoding};
use crate::response_cache::{EncodeError, EncodedResponse, ResponseCache};
use model::clock::Mono;
use model::snapshot::Snapshot;
use model::snapshot_cell::SnapshotCell;
use model::text;

/// State that the HTTP handlers share.
#[derive(Debug)]
pub struct AppState {
    pub snapshots: Arc<SnapshotCell>,
    pub responses: Arc<ResponseCache>,
    /// Start time of the process. The first snapshot may be missing until `stale_after` has passed.
    pub started: Mono,
    /// Maximum age of a snapshot that is served: 10 publish intervals, at least 10 s.
    pub stale_after: Duration,
}

impl AppState {
    /// Returns the newest snapshot, or an error text if it is too old to serve: missing beats wrong.
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

    /// Returns true if the ledger publishes snapshots, and false if the process has just started. Otherwise, returns the
    /// text of the 503. The result does not depend on the health of the GPUs and the driver.
    pub fn publishes(&self) -> Result<bool, String> {
        match self.fresh() {
            Ok(_) => Ok(true),
            Err(_) if Mono::now().since(self.started) <= self.stale_after => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Serves the newest snapshot in a format, from the cache.
    pub async fn respond(&self, format: ResponseFormat, headers: &HeaderMap) -> Response {
        if let Err(why) = self.fresh() {
            return unavailable(why);
        }
        let encoding = accepted_encoding(&joined(headers, ACCEPT_ENCODING));
        let response = self.responses.get(format, encoding).await;
        encoded(headers, format.content_type(), encoding, response)
    }

    /// Serves a rule file, dashboard or page file, from the cache.
    pub async fn respond_asset(&self, asset: &'static Asset, headers: &HeaderMap) -> Response {
        let encoding = accepted_encoding(&joined(headers, ACCEPT_ENCODING));
        let response = self.responses.asset(asset, encoding).await;
        encoded(headers, asset.content_type(), encoding, response)
    }
}

fn encoded(
    headers: &HeaderMap,
    content_type: &'static str,
    encoding: Encoding,
    response: Result<EncodedResponse, EncodeError>,
) -> Response {
    let response = match response {
        Ok(response) => response,
        Err(error) => return not_encoded(&error),
    };
    let kind = [(CONTENT_TYPE, content_type), (VARY, "accept, accept-encoding")];
    let coding = encoding.content_encoding().map(|coding| [(CONTENT_ENCODING, coding)]);
    match response.etag {
        Some(tag) => tagged(headers, &tag, (kind, coding), response.bytes),
        None => (kind, coding, response.bytes).into_response(),
    }
}

/// Returns a response with an `ETag`, or 304 if the client already has these bytes.
pub fn tagged(
    headers: &HeaderMap,
    tag: &str,
    parts: impl IntoResponseParts,
    body: impl IntoResponse,
) -> Response {
    let kept = [(ETAG, tag), (CACHE_CONTROL, "no-cache")];
    match is_known(tag, &joined(headers, IF_NONE_MATCH)) {
        true => (StatusCode::NOT_MODIFIED, kept, [(VARY, "accept, accept-encoding")]).into_response(),
        false => (kept, parts, body).into_response(),
    }
}

/// Returns true if the `If-None-Match` header contains the tag.
fn is_known(tag: &str, if_none_match: &str) -> bool {
    let mut tags = if_none_match.split(',').map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

pub fn not_encoded(error: &EncodeError) -> Response {
    tracing::error!("failed to encode a response: {error}; the client receives a 500");
    (StatusCode::INTERNAL_SERVER_ERROR, "The values could not be encoded.\n").into_response()
}

pub fn unavailable(why: String) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], why).into_response()
}

/// Returns all values of a header as one comma-separated list. Values that are not ASCII text are ignored.
pub fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_known_however_it_is_listed() {
        let tag = "\"af63dc4c8601ec8c\"";
        for known in [tag, &format!("W/{tag}"), "*", &format!("\"1\", {tag}"), &format!("\"1\",W/{tag} ")] {
            assert!(is_known(tag, known), "{known}");
        }
        for unknown in ["", tag.trim_matches('"'), "\"1\"", &format!("\"1{}", &tag[1..])] {
            assert!(!is_known(tag, unknown), "{unknown}");
        }
    }
}

//! The list of events, as a document or as a stream for clients that accept `text/event-stream`.
//!
//! All clients share the encoded events, so that a client that reads nothing costs a connection but no copy.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderName, VARY};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use hyper::body::{Frame, SizeHint};
use tokio::sync::watch;

use super::app_state::{AppState, joined, not_encoded, tagged, unavailable};
use super::stopped;
use super::streams::{StreamPermit, Streams, event_stream, too_many};
use crate::api::events::EventQuery;
use crate::format::ResponseFormat;
use crate::response_cache::EncodeError;

/// Interval of the comments on an idle stream. A failed write reveals that the client has disconnected.
const HEARTBEAT: Duration = Duration::from_secs(15);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Serves the events as a document or a stream.
pub async fn respond(
    State(state): State<Arc<AppState>>,
    Extension(streams): Extension<Streams>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let query = match parse_query(uri.query().unwrap_or("")) {
        Ok(query) => query,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    if let Err(why) = state.fresh() {
        return unavailable(why);
    }
    if joined(&headers, ACCEPT).to_ascii_lowercase().contains("text/event-stream") {
        return stream(state, streams, query, &headers);
    }
    if query == EventQuery::default() {
        return state.respond(ResponseFormat::Events, &headers).await;
    }
    let list = match state.responses.events().await {
        Ok(list) => list,
        Err(error) => return not_encoded(&error),
    };
    let selected = list.select(query);
    // The cache also has the whole list in gzip.
    if selected == list.select(EventQuery::default()) {
        return state.respond(ResponseFormat::Events, &headers).await;
    }
    let kind = [(CONTENT_TYPE, ResponseFormat::Events.content_type()), (VARY, "accept, accept-encoding")];
    let body = Body::new(SharedParts(list.document(&selected).into()));
    tagged(&headers, &list.etag(&selected), kind, body)
}

/// A response body whose bytes are shared with other responses.
#[derive(Debug)]
struct SharedParts(VecDeque<Bytes>);

impl HttpBody for SharedParts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}

fn stream(state: Arc<AppState>, streams: Streams, query: EventQuery, headers: &HeaderMap) -> Response {
    let Some(permit) = streams.open() else { return too_many() };
    // A reconnecting client sends its last revision. Without one, the stream starts with the oldest event.
    let last = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let after = last.or(query.since_revision).unwrap_or(0);
    // A revision in the future comes from an earlier daemon, whose revisions are no longer valid.
    let after = if after > state.snapshots.current().events_revision() { 0 } else { after };
    let changes = state.snapshots.events();
    // The greeting is sent at once, so that the client can report the connection as open.
    let feed = Feed { state, after, changes, permit, greeting: b": events\n\n" };
    event_stream(unfold(feed, |mut feed| async move { Some((feed.next().await?, feed)) }))
}

/// The event stream of one client, which ends when the client disconnects or the server stops.
struct Feed {
    state: Arc<AppState>,
    after: u64,
    changes: watch::Receiver<u64>,
    permit: StreamPermit,
    greeting: &'static [u8],
}

impl Feed {
    /// Waits for the next bytes of the stream.
    async fn next(&mut self) -> Option<Result<Vec<u8>, EncodeError>> {
        loop {
            if !self.greeting.is_empty() {
                return Some(Ok(std::mem::take(&mut self.greeting).to_vec()));
            }
            if self.state.snapshots.current().events_revision() > self.after {
                let list = match self.state.responses.events().await {
                    Ok(list) => list,
                    Err(error) => return Some(Err(error)),
                };
                let (piece, last) = list.piece(self.after);
                self.after = last;
                if !piece.is_empty() {
                    return Some(Ok(piece));
                }
            }
            tokio::select! {
                () = stopped(&mut self.permit.stop) => return None,
                changed = self.changes.changed() => changed.ok()?,
                () = tokio::time::sleep(HEARTBEAT) => return Some(Ok(b": still here\n\n".to_vec())),
            }
        }
    }
}

fn parse_query(text: &str) -> Result<EventQuery, String> {
    let mut query = EventQuery::default();
    for (key, value) in text.split('&').filter_map(|pair| pair.split_once('=')) {
        let number = || value.parse::<u64>().map_err(|_| format!("{key} must be a whole number.\n"));
        match key {
            "since" => query.since = Some(number()?),
            "since_revision" => query.since_revision = Some(number()?),
            "limit" => query.limit = Some(usize::try_from(number()?).unwrap_or(usize::MAX)),
            _ => {}
        }
    }
    Ok(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_numbers() {
        let is = EventQuery { since: Some(3), since_revision: None, limit: Some(10) };
        assert_eq!(parse_query("since=3&limit=10&other=x&"), Ok(is));
        assert_eq!(parse_query(""), Ok(EventQuery::default()));
        for bad in ["since=", "since=-1", "limit=many", "since_revision=1.5"] {
            assert!(parse_query(bad).is_err(), "{bad}");
        }
    }
}

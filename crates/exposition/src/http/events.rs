//! The list of events: as a document, or to a client that asks for `text/event-stream` as it grows.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::stopped;
use crate::encode::events::{self, Wanted};
use crate::http::routes::{Doors, joined, unavailable};

/// Most streams open at the same time,
const MOST: usize = 16;
/// and of the connections that the server grants at most one in so many: scrapers come first.
const SHARE: usize = 4;
/// A stream on which nothing happens says so this often, so that a client that is gone is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How many events a document holds if the client does not say.
const LIMIT: usize = 500;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The streams of one server.
#[derive(Clone, Debug)]
pub struct Streams {
    places: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Streams {
    /// Streams of a server that grants so many connections.
    pub fn new(max_connections: usize, stop: watch::Receiver<bool>) -> Streams {
        Streams { places: Arc::new(Semaphore::new((max_connections / SHARE).clamp(1, MOST))), stop }
    }
}

/// Answers `/api/v1/events`.
pub async fn answer(doors: Arc<Doors>, streams: Streams, uri: Uri, headers: HeaderMap) -> Response {
    let wanted = match wanted(uri.query().unwrap_or("")) {
        Ok(wanted) => wanted,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let snapshot = match doors.fresh() {
        Ok(snapshot) => snapshot,
        Err(why) => return unavailable(why),
    };
    if joined(&headers, ACCEPT).to_ascii_lowercase().contains("text/event-stream") {
        return stream(doors, streams, wanted, &headers);
    }
    let wanted = Wanted { limit: Some(wanted.limit.unwrap_or(LIMIT)), ..wanted };
    match events::document(&snapshot, wanted) {
        Ok(bytes) => typed("application/json", Body::from(bytes)),
        Err(error) => {
            tracing::error!(%error, "no list of events");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn stream(doors: Arc<Doors>, streams: Streams, wanted: Wanted, headers: &HeaderMap) -> Response {
    let Ok(place) = streams.places.try_acquire_owned() else {
        let why = "Too many streams of events are open.\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], why).into_response();
    };
    // A client that comes back says where it was; one without a past gets the list from its start.
    let last = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let after = last.or(wanted.since_revision).unwrap_or(0);
    // A number that is not reached yet is of an earlier daemon: what that client knows is no more.
    let after = if after > doors.board.current().events_revision() { 0 } else { after };
    let (sender, chunks) = mpsc::channel(1);
    tokio::spawn(feed(doors, sender, after, streams.stop, place));
    typed("text/event-stream", Body::new(Chunks(chunks)))
}

/// Sends what is new until the client is gone or the server ends.
async fn feed(
    doors: Arc<Doors>,
    sender: mpsc::Sender<Bytes>,
    mut after: u64,
    mut stop: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let mut changes = doors.board.events();
    // At once, so that the client knows that it is connected.
    let mut chunk = Bytes::from_static(b": events\n\n");
    loop {
        let snapshot = doors.board.current();
        match events::stream(&snapshot, after) {
            Ok(bytes) if !bytes.is_empty() => chunk = [chunk, bytes.into()].concat().into(),
            Ok(_) => {}
            Err(error) => return tracing::error!(%error, "the stream of events ends"),
        }
        after = snapshot.events_revision();
        drop(snapshot);
        if !chunk.is_empty() {
            tokio::select! {
                sent = sender.send(chunk) => if sent.is_err() { return },
                () = stopped(&mut stop) => return,
            }
        }
        chunk = tokio::select! {
            () = stopped(&mut stop) => return,
            () = sender.closed() => return,
            changed = changes.changed() => match changed {
                Ok(()) => Bytes::new(),
                Err(_) => return,
            },
            () = tokio::time::sleep(HEARTBEAT) => Bytes::from_static(b": still here\n\n"),
        };
    }
}

/// A body whose bytes come from a channel.
struct Chunks(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}

pub(super) fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// What the query asks for.
fn wanted(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let number = || value.parse::<u64>().map_err(|_| format!("{key} is to be a whole number.\n"));
        match key {
            "since" => wanted.since = Some(number()?),
            "since_revision" => wanted.since_revision = Some(number()?),
            "limit" => wanted.limit = Some(usize::try_from(number()?).unwrap_or(usize::MAX)),
            _ => {}
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_numbers() {
        let is = Wanted { since: Some(3), since_revision: None, limit: Some(10) };
        assert_eq!(wanted("since=3&limit=10&other=x&"), Ok(is));
        assert_eq!(wanted(""), Ok(Wanted::default()));
        for bad in ["since=", "since=-1", "limit=many", "since_revision=1.5"] {
            assert!(wanted(bad).is_err(), "{bad}");
        }
    }
}

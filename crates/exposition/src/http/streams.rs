//! Streams of server-sent events: how many may be open, and the answer that is one.

use std::sync::Arc;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Most streams open at the same time,
const MOST: usize = 16;
/// and of the connections that the server grants at most one in so many: scrapers come first.
const SHARE: usize = 4;

/// Marks a response that is a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventStream;

/// The streams of one server.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    permits: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Streams {
    /// Streams of a server that grants so many connections.
    pub fn new(max_connections: usize, stop: watch::Receiver<bool>) -> Streams {
        Streams { permits: Arc::new(Semaphore::new((max_connections / SHARE).clamp(1, MOST))), stop }
    }

    /// A place for one more stream, if there is one.
    pub fn open(self) -> Option<StreamPermit> {
        let place = self.permits.try_acquire_owned().ok()?;
        Some(StreamPermit { stop: self.stop, _place: place })
    }
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    /// True once the server stops.
    pub stop: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

/// The answer to a client without a place.
pub fn too_many() -> Response {
    let why = "Too many streams of events are open.\n";
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], why).into_response()
}

/// A stream of server-sent events.
pub fn event_stream<C, E>(chunks: impl Stream<Item = Result<C, E>> + Send + 'static) -> Response
where
    C: Into<Bytes> + 'static,
    E: Into<BoxError> + 'static,
{
    let mut response = ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks)).into_response();
    response.extensions_mut().insert(EventStream);
    response
}

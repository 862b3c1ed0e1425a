//! Streams of server-sent events: the limit on open streams, and the responses.

use std::sync::Arc;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Maximum number of open streams.
const MOST: usize = 16;
/// Divisor of `http.max_connections` that yields another limit on open streams. The other connections remain available
/// to scrapers.
const SHARE: usize = 4;

/// Extension that marks a response as a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventStream;

/// The streams of one server.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    permits: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Streams {
    /// Returns the streams of a server with this limit on connections.
    pub fn new(max_connections: usize, stop: watch::Receiver<bool>) -> Streams {
        Streams { permits: Arc::new(Semaphore::new((max_connections / SHARE).clamp(1, MOST))), stop }
    }

    /// Returns a permit for another stream, or `None` at the limit.
    pub fn open(self) -> Option<StreamPermit> {
        let place = self.permits.try_acquire_owned().ok()?;
        Some(StreamPermit { stop: self.stop, _place: place })
    }
}

/// The permit of an open stream, which is released on drop.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    /// True once the server stops.
    pub stop: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

/// Returns the response to a client that exceeds the limit on streams.
pub fn too_many() -> Response {
    let why = "Too many streams of events are open.\n";
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], why).into_response()
}

/// Returns a response that streams server-sent events.
pub fn event_stream<C, E>(chunks: impl Stream<Item = Result<C, E>> + Send + 'static) -> Response
where
    C: Into<Bytes> + 'static,
    E: Into<BoxError> + 'static,
{
    let mut response = ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks)).into_response();
    response.extensions_mut().insert(EventStream);
    response
}

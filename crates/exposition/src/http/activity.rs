//! The current activity of a connection: the requests that hyper passes to the handlers, and the bytes that the client
//! reads.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use access::TlsStream;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use model::sync::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::either::Either;

use super::MAX_RESPONSE_TIMEOUTS;
use super::places::WaitsFor;

/// The activity of one connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionActivity {
    first_request: Instant,
    write_timeout: Duration,
    now: Arc<Mutex<Now>>,
}

#[derive(Debug)]
struct Now {
    /// Time at which the connection was accepted or its last response ended.
    since: Instant,
    requests: u64,
    /// Number of responses in progress.
    working: u32,
    /// True if the response is a stream of events, which has no time limit while its client reads.
    streams: bool,
    unread: Option<Unread>,
}

/// Bytes that the socket did not accept because its buffer is full.
#[derive(Clone, Copy, Debug)]
struct Unread {
    since: Instant,
    /// Time at which the socket last accepted bytes.
    moved: Instant,
}

impl ConnectionActivity {
    /// Returns the activity of a new connection.
    pub fn new(first_request: Duration, write_timeout: Duration) -> ConnectionActivity {
        let since = Instant::now();
        let now = Now { since, requests: 0, working: 0, streams: false, unread: None };
        ConnectionActivity {
            first_request: since + first_request,
            write_timeout,
            now: Arc::new(Mutex::new(now)),
        }
    }

    /// Records a request. The response is in progress until the returned value is dropped.
    pub fn begin(&self) -> Working {
        let mut now = lock(&self.now);
        now.requests += 1;
        now.working += 1;
        Working(self.now.clone())
    }

    /// Returns the reason and the start of the current wait, or `None` while a request is in progress.
    pub fn waiting(&self) -> Option<(WaitsFor, Instant)> {
        let now = lock(&self.now);
        match now.unread {
            Some(unread) => Some((WaitsFor::Client, unread.since)),
            None if now.working > 0 => None,
            None if now.requests == 0 => Some((WaitsFor::First, now.since)),
            None => Some((WaitsFor::Next, now.since)),
        }
    }

    /// Returns the time at which the server closes the connection if the wait continues. hyper limits the wait for the
    /// next request.
    pub fn deadline(&self) -> Option<Instant> {
        let now = lock(&self.now);
        match now.unread {
            Some(Unread { since, moved }) => {
                let (whole, some) =
                    (since + self.write_timeout * MAX_RESPONSE_TIMEOUTS, moved + self.write_timeout);
                Some(if now.streams { some } else { whole.min(some) })
            }
            None => (now.requests == 0).then_some(self.first_request),
        }
    }

    /// Records the result of a write to the socket.
    fn wrote<T>(&self, result: &Poll<io::Result<T>>) {
        let mut now = lock(&self.now);
        let at = Instant::now();
        match (result, &mut now.unread) {
            (Poll::Pending, None) => now.unread = Some(Unread { since: at, moved: at }),
            (Poll::Ready(_), Some(unread)) => unread.moved = at,
            _ => {}
        }
    }

    /// Records that the socket has accepted all bytes.
    fn flushed(&self) {
        let mut now = lock(&self.now);
        if now.unread.take().is_some() {
            now.since = Instant::now();
        }
    }
}

/// A response in progress.
#[derive(Debug)]
pub(super) struct Working(Arc<Mutex<Now>>);

impl Working {
    /// Marks the response as a stream of events.
    pub fn streams(&self) {
        lock(&self.0).streams = true;
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut now = lock(&self.0);
        now.working -= 1;
        now.streams = false;
        now.since = Instant::now();
    }
}

/// A response body that records its end in the activity of the connection.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    _working: Working,
}

impl TrackedBody {
    pub fn new(body: Body, working: Working) -> TrackedBody {
        TrackedBody { body, _working: working }
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A client's socket that records if the client does not read.
#[derive(Debug)]
pub(super) struct ClientStream {
    socket: TcpStream,
    activity: ConnectionActivity,
}

impl ClientStream {
    pub fn new(socket: TcpStream, activity: ConnectionActivity) -> ClientStream {
        ClientStream { socket, activity }
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

/// A client's stream, with or without TLS. The activity is recorded at the socket in both cases.
pub(super) type ClientIo = Either<ClientStream, Box<TlsStream<ClientStream>>>;

/// Returns the socket of a client's stream.
pub(super) fn socket(stream: &ClientIo) -> &TcpStream {
    match stream {
        Either::Left(plain) => plain.socket(),
        Either::Right(tls) => tls.get_ref().0.socket(),
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.activity.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.activity.wrote(&written);
        written
    }

    // Without vectored writes, every connection would copy the shared response.
    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    // hyper flushes after it has written all bytes.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_flush(context))?;
        self.activity.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds from the first rejected write to the deadline, for a client that read some bytes after 25 s.
    fn deadline(activity: &ConnectionActivity) -> u64 {
        let since = Instant::now();
        let moved = since + Duration::from_secs(25);
        lock(&activity.now).unread = Some(Unread { since, moved });
        activity.deadline().unwrap().duration_since(since).as_secs()
    }

    #[test]
    fn a_whole_response_has_a_time_and_a_stream_only_each_piece() {
        let activity = ConnectionActivity::new(Duration::from_secs(5), Duration::from_secs(10));
        let response = activity.begin();
        assert_eq!(deadline(&activity), 30);
        response.streams();
        assert_eq!(deadline(&activity), 35);
        drop(response);
        assert_eq!(deadline(&activity), 30, "the next response has its own time");
    }
}

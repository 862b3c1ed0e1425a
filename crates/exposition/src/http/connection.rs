//! One client: place, deadlines, end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use access::{ClientCertificate, ClientChain, Handshakes, TLS_FIRST_BYTE, Tls};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use model::http_counters::HttpCounters;
use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::either::Either;

use super::activity::{ClientIo, ClientStream, ConnectionActivity, TrackedBody, socket};
use super::guard::{ConnectedClient, Guard, Routers};
use super::places::{ConnectionPlace, Places, WaitsFor};
use super::streams::EventStream;
use super::{Limits, stopped};

/// Maximum size of a request line with its headers, in bytes.
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Maximum number of headers in a request.
const MAX_HEADERS: usize = 100;
/// Maximum time until the first request of a connection. A client that connects normally sends a request at once.
const FIRST_REQUEST: Duration = Duration::from_secs(5);
/// Time for which the server keeps reading after the last response before it closes the socket.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum wait for a place. Most requests take a millisecond, so that a place is usually free much earlier.
const PLACE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of clients that wait for a place or receive a 503. The server closes further connections without a
/// response.
const MAX_REFUSALS: usize = 32;
/// Pause after a failed accept, because the cause usually persists.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 27\r\n\r\nToo many connections open.\n";
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 43\r\n\r\nThe request header did not arrive in time.\n";
const HTTP_TO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 40\r\n\r\nThis port requires HTTPS: use https://.\n";

/// State that all connections of a server share.
#[derive(Clone)]
pub(crate) struct Clients {
    builder: http1::Builder,
    routers: Routers,
    guard: Arc<Guard>,
    handshakes: Handshakes,
    limits: Limits,
    places: Arc<Places>,
    stats: Arc<HttpCounters>,
    refusals: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

/// Reason for the end of a connection.
enum ConnectionEnd {
    /// The client closed the connection, or hyper reported an error.
    Closed(hyper::Result<()>),
    /// The client sent its first request, or read a response, too slowly.
    Late(WaitsFor),
    /// The server closed the connection to accept another one.
    Evicted,
}

impl Clients {
    pub fn new(
        routers: Routers,
        guard: Arc<Guard>,
        limits: Limits,
        stats: Arc<HttpCounters>,
        stop: watch::Receiver<bool>,
    ) -> Clients {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.read_timeout)
            .max_header_size(MAX_HEADER_BYTES)
            .max_headers(MAX_HEADERS);
        let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
        let places = Places::new(limits.max_connections, stats.clone());
        let handshakes = Handshakes::default();
        Clients { builder, routers, guard, handshakes, limits, places, stats, refusals, stop }
    }

    /// Returns clients that share places, limits, guard and counters with these, but use other routers.
    pub fn with_routers(self, routers: Routers) -> Clients {
        Clients { routers, ..self }
    }

    /// Accepts connections until the server stops, then waits until all open connections are closed.
    pub async fn accept(self, listener: TcpListener) {
        let mut stop = self.stop.clone();
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                () = stopped(&mut stop) => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, client)) => self.serve(stream, client, &mut open),
                    // Waiting connections must not use up the file descriptors that a scraper needs.
                    Err(error) if is_out_of_descriptors(&error) && self.places.free_one() => {}
                    Err(error) => {
                        tracing::warn!("failed to accept a connection: {error}; retrying");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = open.join_next() => {}
            }
            // Frees the memory of all closed connections, even if new ones arrive without a pause.
            while open.try_join_next().is_some() {}
            // Lets every connection read its received bytes before the next accept. A connection with a request in
            // progress is not evicted.
            tokio::task::yield_now().await;
        }
        drop(listener);
        while open.join_next().await.is_some() {}
    }

    fn serve(&self, stream: TcpStream, client: SocketAddr, open: &mut JoinSet<()>) {
        // A response needs one or two writes. Nagle's algorithm would only delay its last bytes.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("failed to set TCP_NODELAY: {error}; closed the connection");
            return;
        }
        if let Some(place) = self.places.acquire(client.ip()) {
            open.spawn(self.clone().converse(stream, client.ip(), place));
            return;
        }
        // Without a permit the socket is closed without a response. A refusal must not cost more than a response.
        let Ok(permit) = self.refusals.clone().try_acquire_owned() else { return self.stats.count_refused() };
        let this = self.clone();
        open.spawn(async move {
            let permit = permit;
            match timeout(PLACE_TIMEOUT, this.places.wait_for_place(client.ip())).await {
                Ok(place) => {
                    drop(permit);
                    this.converse(stream, client.ip(), place).await;
                }
                // A 503 over TLS would require a handshake, which costs more than a response.
                Err(_) if this.guard.uses_tls() => this.stats.count_refused(),
                Err(_) => {
                    this.stats.count_refused();
                    this.stats.count(503);
                    send_and_close(stream, TOO_MANY).await;
                }
            }
        });
    }

    /// Performs the handshake and serves requests until either side closes the connection.
    async fn converse(self, stream: TcpStream, address: IpAddr, mut place: ConnectionPlace) {
        let activity =
            ConnectionActivity::new(self.limits.read_timeout.min(FIRST_REQUEST), self.limits.write_timeout);
        let mut stop = self.stop.clone();
        // The deadline of the first request includes the handshake.
        let greeted = tokio::select! {
            () = place.left() => return log_evicted(),
            () = stopped(&mut stop) => return,
            () = sleep_until(activity.deadline().unwrap_or_else(Instant::now)) => None,
            greeted = self.greet(stream, address, &activity) => greeted,
        };
        let Some((stream, peer)) = greeted else { return };
        let (guard, routers, peer) = (&self.guard, &self.routers, &peer);
        let service = service_fn(|request: Request<Incoming>| {
            let tracked = activity.begin();
            Box::pin(async move {
                let response: Response = guard.answer(routers, peer, request).await?;
                if response.extensions().get::<EventStream>().is_some() {
                    tracked.streams();
                }
                Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, tracked)))
            })
        });
        let mut connection = self.builder.serve_connection(TokioIo::new(stream), service);
        let end = drive(&mut connection, &activity, &mut place, &mut stop).await;
        // The socket is still needed to send a slow or invalid client the reason for the close.
        let parts = connection.into_parts();
        let stream = parts.io.into_inner();
        if matches!(activity.waiting(), Some((WaitsFor::Client, _))) {
            // The kernel must also drop the bytes that the client does not read.
            let _ = socket(&stream).set_zero_linger();
        }
        let Some(last) = self.last_response(end, &parts.read_buf, peer) else { return };
        place.set_waiting(Some((WaitsFor::End, Instant::now())));
        tokio::select! {
            () = place.left() => {}
            () = send_and_close(stream, last) => {}
        }
    }

    /// Counts or logs the end of a connection. Returns the last bytes to send, possibly none, or `None` if the
    /// connection must be closed at once. `unparsed` is the start of a request that hyper has not parsed.
    fn last_response(
        &self,
        end: ConnectionEnd,
        unparsed: &[u8],
        peer: &ConnectedClient,
    ) -> Option<&'static [u8]> {
        match end {
            ConnectionEnd::Closed(Ok(())) => Some(b""),
            ConnectionEnd::Closed(Err(error)) if error.is_parse() => {
                if unparsed.first() == Some(&TLS_FIRST_BYTE) && peer.tls.is_none() {
                    self.guard.log(
                        peer.address,
                        "the client uses TLS, but this port does not (http.web_config_file)",
                    );
                }
                // hyper has already sent the response.
                self.stats.count(if error.is_parse_too_large() { 431 } else { 400 });
                Some(b"")
            }
            ConnectionEnd::Closed(Err(error)) if !error.is_timeout() || unparsed.is_empty() => {
                tracing::debug!("closed a connection: {error}");
                None
            }
            ConnectionEnd::Late(waiting) if waiting != WaitsFor::First || unparsed.is_empty() => {
                tracing::debug!("closed the connection of a slow client");
                None
            }
            ConnectionEnd::Closed(Err(_)) | ConnectionEnd::Late(_) => {
                self.stats.count(408);
                Some(TOO_SLOW)
            }
            ConnectionEnd::Evicted => {
                log_evicted();
                None
            }
        }
    }

    /// Returns the stream of a client, after the handshake if TLS is enabled. Returns `None` if the handshake failed.
    async fn greet(
        &self,
        stream: TcpStream,
        address: IpAddr,
        activity: &ConnectionActivity,
    ) -> Option<(ClientIo, ConnectedClient)> {
        let tls = self.guard.tls().await;
        let client = ClientStream::new(stream, activity.clone());
        let (certificate, chain) = Default::default();
        let mut peer = ConnectedClient { address, tls: tls.clone(), certificate, chain };
        let Some(tls) = tls else { return Some((Either::Left(client), peer)) };
        let (error, client) = match self.handshake(&tls, client).await {
            Ok((stream, certificate, chain)) => {
                (peer.certificate, peer.chain) = (certificate, chain);
                return Some((stream, peer));
            }
            Err(failed) => failed,
        };
        // A client that disconnects, such as a port probe, was not refused access.
        if error.kind() == io::ErrorKind::UnexpectedEof {
            tracing::debug!(client = %address, "the client disconnected during the TLS handshake");
            return None;
        }
        self.stats.count_handshake_failed();
        self.guard.log(address, &format!("TLS handshake: {error}"));
        if let Some(client) = client {
            send_and_close(client, b"").await;
        }
        None
    }

    async fn handshake(
        &self,
        tls: &Tls,
        client: ClientStream,
    ) -> Result<(ClientIo, ClientCertificate, ClientChain), (io::Error, Option<ClientStream>)> {
        let mut first = [0];
        // An HTTP method starts with a capital letter, which no TLS record does.
        match client.socket().peek(&mut first).await {
            Ok(1) if first[0].is_ascii_uppercase() => {
                self.stats.count(400);
                send_and_close(client, HTTP_TO_TLS).await;
                Err((io::Error::other("the client uses plain HTTP"), None))
            }
            Ok(_) => {
                let (stream, certificate, chain) = self.handshakes.accept(tls, client).await?;
                Ok((Either::Right(Box::new(stream)), certificate, chain))
            }
            Err(error) => Err((error, None)),
        }
    }
}

/// Runs a connection until it ends, its client is too slow, or another connection evicts it.
async fn drive<S>(
    connection: &mut http1::Connection<TokioIo<ClientIo>, S>,
    activity: &ConnectionActivity,
    place: &mut ConnectionPlace,
    stop: &mut watch::Receiver<bool>,
) -> ConnectionEnd
where
    S: HttpService<Incoming, ResBody = TrackedBody, Error = Infallible> + Unpin,
    S::Future: Unpin,
{
    let mut stopping = false;
    let mut stopped = pin!(stopped(stop));
    let mut left = pin!(place.left());
    let mut due = activity.deadline();
    let mut timer = pin!(sleep_until(due.unwrap_or_else(Instant::now)));
    poll_fn(|context| {
        if left.as_mut().poll(context).is_ready() {
            return Poll::Ready(ConnectionEnd::Evicted);
        }
        if !stopping && stopped.as_mut().poll(context).is_ready() {
            stopping = true;
            Pin::new(&mut *connection).graceful_shutdown();
        }
        if let Poll::Ready(ended) = connection.poll_without_shutdown(context) {
            return Poll::Ready(ConnectionEnd::Closed(ended));
        }
        let waiting = activity.waiting();
        place.set_waiting(waiting);
        if due != activity.deadline() {
            due = activity.deadline();
            timer.as_mut().reset(due.unwrap_or_else(Instant::now));
        }
        match waiting {
            Some((waiting, _)) if due.is_some() && timer.as_mut().poll(context).is_ready() => {
                Poll::Ready(ConnectionEnd::Late(waiting))
            }
            _ => Poll::Pending,
        }
    })
    .await
}

fn log_evicted() {
    tracing::debug!("closed a waiting connection to accept another one");
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

/// Sends the last bytes, then reads until the client closes the connection. If the server closed a socket with unread
/// bytes, the kernel would reset the connection, and the client could lose the response.
async fn send_and_close(mut stream: impl AsyncRead + AsyncWrite + Unpin, last: &[u8]) {
    let end = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    if let Ok(Err(error)) = timeout(LINGER, end).await {
        tracing::debug!("failed to close a connection in order: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canned_answers_have_the_length_they_say() {
        for answer in [TOO_MANY, TOO_SLOW, HTTP_TO_TLS] {
            let text = std::str::from_utf8(answer).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let length = head.split("Content-Length: ").nth(1).unwrap();
            assert_eq!(length.split("\r\n").next().unwrap(), body.len().to_string());
            assert!(head.lines().all(|line| line.trim() == line), "{head:?}");
        }
    }
}

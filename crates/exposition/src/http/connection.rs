//! One client: slot, deadlines, end.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use super::{Limits, Stats, stopped};

/// Most bytes of a request line with its headers.
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 100;
/// How long a client that was answered may go on sending before the socket is closed.
const LINGER: Duration = Duration::from_secs(1);
/// Clients that get a 503 at the same time; further ones are closed without a response.
const MAX_REFUSALS: usize = 32;
/// Pause after a failed accept: the reason, as too few file descriptors, lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 27\r\n\r\nToo many connections open.\n";
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 32\r\n\r\nThe request header did not end.\n";

/// A stream whose writes end when the client takes nothing for too long. Boxed, as its timers must not
/// move once they run.
type ClientStream = Pin<Box<TimeoutStream<TcpStream>>>;

/// What all connections of a server share.
#[derive(Clone)]
pub struct Clients {
    builder: http1::Builder,
    router: Router,
    limits: Limits,
    stats: Arc<Stats>,
    refusals: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Clients {
    pub fn new(router: Router, limits: Limits, stats: Arc<Stats>, stop: watch::Receiver<bool>) -> Clients {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.read_timeout)
            .max_header_size(MAX_HEADER_BYTES)
            .max_headers(MAX_HEADERS);
        let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
        Clients { builder, router, limits, stats, refusals, stop }
    }

    /// Takes connections until the server stops, then waits for those that are open.
    pub async fn accept(mut self, listener: TcpListener) {
        let mut stop = self.stop.clone();
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                () = stopped(&mut stop) => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.take(stream, &mut open),
                    Err(error) => {
                        tracing::warn!(%error, "no connection accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = open.join_next() => {}
            }
        }
        drop(listener);
        while open.join_next().await.is_some() {}
    }

    fn take(&mut self, stream: TcpStream, open: &mut JoinSet<()>) {
        // Answers go out in one or two writes; waiting for more bytes to send only delays their end.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "client left at once");
            return;
        }
        let mut stream = Box::pin(TimeoutStream::new(stream));
        stream.as_mut().set_write_timeout_pinned(Some(self.limits.write_timeout));
        match self.stats.enter(self.limits.max_connections) {
            Some(slot) => {
                let this = self.clone();
                open.spawn(async move {
                    let _slot = slot;
                    this.converse(stream).await;
                });
            }
            None => {
                self.stats.count_refused();
                // Without a permit the socket is just closed: a refusal must not cost more than a response.
                if let Ok(permit) = self.refusals.clone().try_acquire_owned() {
                    self.stats.count(503);
                    open.spawn(async move {
                        let _permit = permit;
                        send_and_close(stream, TOO_MANY).await;
                    });
                }
            }
        }
    }

    /// Answers one client's requests until either side ends the connection.
    async fn converse(self, stream: ClientStream) {
        let service = TowerToHyperService::new(self.router);
        let mut connection = self.builder.serve_connection(TokioIo::new(stream), service);
        let mut stop = self.stop;
        let mut stopping = false;
        let mut stopped = pin!(stopped(&mut stop));
        let ended = poll_fn(|context| {
            if !stopping && stopped.as_mut().poll(context).is_ready() {
                stopping = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            connection.poll_without_shutdown(context)
        })
        .await;
        // The socket comes back, so that a late or wrong client gets the reason before it is closed.
        let parts = connection.into_parts();
        let stream = parts.io.into_inner();
        let Err(error) = ended else { return send_and_close(stream, b"").await };
        if error.is_timeout() && !parts.read_buf.is_empty() {
            self.stats.count(408);
            send_and_close(stream, TOO_SLOW).await;
        } else if error.is_parse() {
            // hyper has answered by itself.
            self.stats.count(if error.is_parse_too_large() { 431 } else { 400 });
            send_and_close(stream, b"").await;
        } else {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// Sends the last bytes and ends the connection in order: a socket closed with unread bytes in it is
/// reset, and the client may lose the answer that was on its way.
async fn send_and_close(mut stream: ClientStream, last: &[u8]) {
    let end = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    if let Ok(Err(error)) = tokio::time::timeout(LINGER, end).await {
        tracing::debug!(%error, "client left first");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canned_answers_have_the_length_they_say() {
        for answer in [TOO_MANY, TOO_SLOW] {
            let text = std::str::from_utf8(answer).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let length = head.split("Content-Length: ").nth(1).unwrap();
            assert_eq!(length.split("\r\n").next().unwrap(), body.len().to_string());
            assert!(head.lines().all(|line| line.trim() == line), "{head:?}");
        }
    }
}

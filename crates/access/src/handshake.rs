//! TLS handshake of one connection.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;
pub use tokio_rustls::server::TlsStream;

use crate::client_certificate::{ClientCertificate, ClientChain};
use crate::tls::Tls;

/// First byte from a TLS client: the type of a handshake record.
pub const TLS_FIRST_BYTE: u8 = 22;

/// Limits handshakes to one computation at a time, because they run on the thread that serves scrapes. Between two
/// computations every other connection gets its turn. A handshake that waits for its client delays no other.
#[derive(Clone, Debug)]
pub struct Handshakes(Arc<Semaphore>);

impl Default for Handshakes {
    fn default() -> Handshakes {
        Handshakes(Arc::new(Semaphore::new(1)))
    }
}

impl Handshakes {
    /// Performs the handshake. An error contains the reason for the log and the stream to close, which has the TLS
    /// alert.
    pub async fn accept<S>(
        &self,
        tls: &Tls,
        stream: S,
    ) -> Result<(TlsStream<S>, ClientCertificate, ClientChain), (io::Error, Option<S>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
        let start = match (&mut acceptor).await {
            Ok(start) => start,
            Err(error) => return Err((error, acceptor.take_io())),
        };
        let turn = self.0.acquire().await;
        let mut accept = pin!(start.into_stream(Arc::clone(&tls.config)).into_fallible());
        // The first step computes the signature; the rest waits for the client's answer.
        let begun = poll_fn(|context| Poll::Ready(accept.as_mut().poll(context))).await;
        tokio::task::yield_now().await;
        drop(turn);
        let ended = match begun {
            Poll::Ready(ended) => ended,
            Poll::Pending => accept.await,
        };
        let stream = ended.map_err(|(error, stream)| (error, Some(stream)))?;
        let chain = ClientChain(stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec());
        let certificate = ClientCertificate::after_handshake(!chain.0.is_empty(), tls.client_auth);
        Ok((stream, certificate, chain))
    }
}

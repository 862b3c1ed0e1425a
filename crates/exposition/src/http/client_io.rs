//! The bytes of a client: as they come, or within TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use access::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::activity::ClientStream;

/// A client's stream. The activity is that of its socket in both cases.
#[derive(Debug)]
pub(super) enum ClientIo {
    Plain(ClientStream),
    Tls(Box<TlsStream<ClientStream>>),
}

impl ClientIo {
    pub fn socket(&self) -> &TcpStream {
        match self {
            ClientIo::Plain(stream) => stream.socket(),
            ClientIo::Tls(stream) => stream.get_ref().0.socket(),
        }
    }
}

/// Hands a call to the stream within.
macro_rules! within {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            ClientIo::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            ClientIo::Tls(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        within!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        within!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        within!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ClientIo::Plain(stream) => stream.is_write_vectored(),
            ClientIo::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        within!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        within!(self, stream => stream.poll_shutdown(cx))
    }
}

//! Client of the kubelet's pod-resources API, with one connection and two calls per visit and a deadline for
//! every step. The protocol is gRPC without TLS over a Unix socket. tonic handles frames, status and the
//! message limit, and hyper handles the connection.

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

pub mod api;

use api::{ALLOCATABLE, AllocatableResponse, LIST, ListResponse};
use model::catalog::KubeletError;

/// Maximum size of an answer in bytes. A container with eight GPUs takes about 1 KiB, so there is room for two
/// thousand of them. The decoded answer temporarily uses eight times as much memory.
pub const MAX_BYTES: usize = 2 * 1024 * 1024;
/// Host name in requests. A Unix socket has no host, but HTTP/2 requires a valid one.
const ORIGIN: &str = "http://localhost";

/// Answer of the kubelet.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletAnswer {
    /// Resources of the pods.
    pub pods: ListResponse,
    /// Resources that can be allocated, or the failure of that call, for example on an old kubelet.
    pub allocatable: Result<AllocatableResponse, KubeletFailure>,
}

/// Failure of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletFailure {
    /// Kind of the failure; `None` if this kubelet does not support the request, which is not an error.
    pub error: Option<KubeletError>,
    pub text: String,
}

/// Returns whether the socket exists. `Ok(false)` means that there is no kubelet on this host.
pub fn look(socket: &Path) -> Result<bool, KubeletFailure> {
    match fs::metadata(socket) {
        Ok(file) if file.file_type().is_socket() => Ok(true),
        Ok(_) => Err(failure(KubeletError::NoSocket, "is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failure(KubeletError::Refused, error)),
    }
}

/// Makes both calls. Takes at most three deadlines: one to connect and one per call.
pub async fn ask(socket: &Path, deadline: Duration) -> Result<KubeletAnswer, KubeletFailure> {
    let mut channel = within(deadline, "no connection", Channel::open(socket)).await?;
    let pods = within(deadline, "no list of pods", channel.call::<ListResponse>(LIST)).await?;
    let allocatable = within(deadline, "no list of devices", channel.call(ALLOCATABLE)).await;
    Ok(KubeletAnswer { pods, allocatable })
}

async fn within<T>(
    deadline: Duration,
    what: &str,
    work: impl Future<Output = Result<T, KubeletFailure>>,
) -> Result<T, KubeletFailure> {
    let late =
        || failure(KubeletError::Late, format!("{what} within {}", humantime::format_duration(deadline)));
    timeout(deadline, work).await.unwrap_or_else(|_| Err(late()))
}

fn failure(error: KubeletError, text: impl ToString) -> KubeletFailure {
    KubeletFailure { error: Some(error), text: text.to_string() }
}

/// A connection, whose task ends when the connection is dropped.
struct Channel {
    grpc: Grpc<Sender>,
    _task: JoinSet<()>,
}

impl Channel {
    async fn open(socket: &Path) -> Result<Channel, KubeletFailure> {
        let stream =
            UnixStream::connect(socket).await.map_err(|error| failure(KubeletError::Refused, error))?;
        let made = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|error| failure(KubeletError::Malformed, error))?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the kubelet ended");
            }
        });
        let grpc =
            Grpc::with_origin(Sender(sender), Uri::from_static(ORIGIN)).max_decoding_message_size(MAX_BYTES);
        Ok(Channel { grpc, _task: task })
    }

    async fn call<A: Message + Default + 'static>(
        &mut self,
        path: &'static str,
    ) -> Result<A, KubeletFailure> {
        self.grpc.ready().await.map_err(|error| failure(KubeletError::Malformed, error))?;
        let codec: ProstCodec<(), A> = ProstCodec::default();
        let request = tonic::Request::new(());
        let answer = self.grpc.unary(request, PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| of_status(&status))
    }
}

/// Sends tonic's requests over the connection.
struct Sender(SendRequest<Body>);

impl tower_service::Service<Request<Body>> for Sender {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Returns a gRPC status as a failure.
fn of_status(status: &Status) -> KubeletFailure {
    let text = match status.message() {
        "" => status.code().to_string(),
        text => model::text::clean(text, 200),
    };
    let error = match status.code() {
        Code::Unimplemented => None,
        // tonic returns this code for a message above the limit; no server has a reason to.
        Code::OutOfRange => Some(KubeletError::TooLarge),
        Code::DeadlineExceeded => Some(KubeletError::Late),
        Code::PermissionDenied
        | Code::Unauthenticated
        | Code::ResourceExhausted
        | Code::Unavailable
        | Code::Cancelled
        | Code::FailedPrecondition => Some(KubeletError::Refused),
        _ => Some(KubeletError::Malformed),
    };
    KubeletFailure { error, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        assert_eq!(look(&path), Ok(false));
        fs::write(&path, "").unwrap();
        assert_eq!(look(&path).unwrap_err().error, Some(KubeletError::NoSocket));
        assert_eq!(look(&path.join("below")).unwrap_err().error, Some(KubeletError::Refused));
        fs::remove_file(&path).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(look(&path), Ok(true));
    }

    #[test]
    fn each_status_has_its_kind() {
        let kind = |status: Status| of_status(&status).error;
        assert_eq!(kind(Status::unimplemented("")), None);
        assert_eq!(
            kind(Status::out_of_range("decoded message length too large")),
            Some(KubeletError::TooLarge)
        );
        assert_eq!(kind(Status::resource_exhausted("rate limit")), Some(KubeletError::Refused));
        assert_eq!(kind(Status::internal("failed to decode")), Some(KubeletError::Malformed));
        assert_eq!(of_status(&Status::internal("")).text, "Internal error");
    }
}

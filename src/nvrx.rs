//! Node health check of NVRx: `nvhcd.HealthCheckService/RunHealthCheck`, gRPC without TLS on a Unix socket, which
//! `ft_launcher --ft-node-health-check-endpoint` calls before every rendezvous. The arguments of a request belong to a
//! script that does not exist here, and are ignored.
//!
//! NVRx 0.6 and 0.7 treat a node as unhealthy if `success` is false, or if `fail_count` in the JSON of `output` is not
//! 0; version 0.6 requires that number. They keep the node if the call fails. If there is no verdict, the call
//! therefore fails with the reason.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::local_socket::LocalSocket;
use exposition::api::health::HealthAnswer;
use exposition::http::AppState;
use model::health::{HealthLevel, HealthStatus};

/// Path of the only method.
pub const METHOD: &str = "/nvhcd.HealthCheckService/RunHealthCheck";
/// Maximum life of a connection. NVRx opens one per call.
const CONNECTION: Duration = Duration::from_secs(10);
/// Maximum number of concurrent calls on one connection.
const MAX_STREAMS: u32 = 4;
/// Maximum size of a request. The default arguments of NVRx have 50 bytes.
const MAX_REQUEST: usize = 16 << 10;

/// Request with the field numbers of `nvhcd.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckRequest {
    #[prost(string, repeated, tag = "1")]
    pub args: Vec<String>,
}

/// Response with the field numbers of `nvhcd.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckResponse {
    #[prost(bool, tag = "1")]
    pub success: bool,
    #[prost(int32, tag = "2")]
    pub exit_code: i32,
    /// JSON of [`HealthAnswer`] with `fail_count` and `failed_checks`. NVRx reads it if `success` is true.
    #[prost(string, tag = "3")]
    pub output: String,
    #[prost(string, tag = "4")]
    pub error: String,
}

/// Answers calls until `stop` is true or its sender is dropped.
pub(crate) async fn serve(
    socket: LocalSocket,
    state: Arc<AppState>,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    socket.serve(move |stream, _| converse(stream, Arc::clone(&state)), stop).await
}

async fn converse(stream: UnixStream, state: Arc<AppState>) -> io::Result<()> {
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(handle(request, &state).await) }
    });
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.max_concurrent_streams(MAX_STREAMS).max_header_list_size(16 << 10).max_send_buf_size(64 << 10);
    let (reading, writing) = stream.into_split();
    let stream = TokioIo::new(tokio::io::join(ValidAuthority(reading), writing));
    let connection = server.serve_connection(stream, answer);
    tokio::time::timeout(CONNECTION, connection).await?.map_err(io::Error::other)
}

/// Reader that turns the client's authority into one that h2 accepts. Since version 1.57, clients of gRPC's C core,
/// including NVRx, send the socket path as the authority, with `%2F` for every `/`. RFC 3986 does not allow that, and
/// h2 resets the stream. The authority is not compressed and no other part of a call contains these bytes, so `%` is
/// replaced by `-`.
struct ValidAuthority(OwnedReadHalf);

impl AsyncRead for ValidAuthority {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.get_mut().0).poll_read(context, buffer);
        let new = &mut buffer.filled_mut()[before..];
        for at in 0..new.len() {
            if new[at..].starts_with(b"%2F") {
                new[at] = b'-';
            }
        }
        read
    }
}

async fn handle(request: hyper::Request<Incoming>, state: &AppState) -> hyper::Response<Body> {
    let answer = match request.uri().path() {
        METHOD => response(HealthAnswer::from_snapshot(state.fresh(), &[])),
        path => Err(Status::unimplemented(format!("unknown method {path}; the only method is {METHOD}"))),
    };
    let codec: ProstCodec<HealthCheckResponse, HealthCheckRequest> = ProstCodec::default();
    Grpc::new(codec).max_decoding_message_size(MAX_REQUEST).unary(Fixed(answer), request).await
}

fn response(health: HealthAnswer) -> Result<HealthCheckResponse, Status> {
    #[derive(Serialize)]
    struct Output<'a> {
        fail_count: usize,
        failed_checks: &'a [String],
        #[serde(flatten)]
        health: &'a HealthAnswer,
    }
    let success = match health.status {
        HealthStatus::Unknown => return Err(Status::unavailable(health.text)),
        status => status != HealthStatus::Critical,
    };
    let of_gpus = health.gpus.iter().flat_map(|of| {
        let faulty = of.health.reasons.iter().filter(|reason| reason.level == HealthLevel::Faulty);
        faulty.map(|reason| format!("{}: {}", of.health.name(), reason.text))
    });
    let mut failed: Vec<String> = of_gpus.collect();
    // This is the case for a missing driver or a GPU that was never seen.
    if !success && failed.is_empty() {
        failed.push(health.text.clone());
    }
    let output = Output { fail_count: failed.len(), failed_checks: &failed, health: &health };
    let output = serde_json::to_string(&output).map_err(|error| Status::internal(error.to_string()))?;
    let (exit_code, error) =
        if success { (0, String::new()) } else { (health.exit_code.into(), health.text) };
    Ok(HealthCheckResponse { success, exit_code, output, error })
}

/// Service that returns a fixed response.
struct Fixed(Result<HealthCheckResponse, Status>);

impl tower_service::Service<Request<HealthCheckRequest>> for Fixed {
    type Response = Response<HealthCheckResponse>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<HealthCheckRequest>) -> Self::Future {
        ready(self.0.clone().map(Response::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use exposition::fixtures;

    #[test]
    fn a_critical_verdict_fails_and_names_each_reason() {
        let snapshot = Arc::new(fixtures::node_taken(7, model::clock::Mono::now()));
        let answer = response(HealthAnswer::from_snapshot(Ok(snapshot), &[])).unwrap();
        assert!(!answer.success && answer.exit_code == 2 && !answer.error.is_empty());
        let output: serde_json::Value = serde_json::from_str(&answer.output).unwrap();
        assert_eq!(output["fail_count"], 1, "degraded GPUs are no failed check: {output}");
        assert!(output["failed_checks"][0].as_str().unwrap().starts_with("GPU 3: "), "{output}");
    }

    #[test]
    fn a_critical_node_without_a_faulty_gpu_has_one_failed_check() {
        let snapshot = Arc::new(fixtures::node_taken(7, model::clock::Mono::now()));
        let mut health = HealthAnswer::from_snapshot(Ok(snapshot), &[]);
        health.gpus.clear();
        let output = response(health).unwrap().output;
        assert_eq!(serde_json::from_str::<serde_json::Value>(&output).unwrap()["fail_count"], 1);
    }

    #[test]
    fn without_a_verdict_the_call_fails_with_the_reason() {
        let status = response(HealthAnswer::unknown("the driver is released")).unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, "the driver is released"));
    }
}

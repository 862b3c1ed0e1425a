//! NVRx's node health check, asked by a client of our own; `make prove PARTS=nvrx` asks with NVRx's.

use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use gpu_node_exporter::nvrx::{HealthCheckRequest, HealthCheckResponse, METHOD};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::health_command::without_topology;
use super::node::{Node, Setup};

/// One connection.
#[derive(Clone)]
struct Sender(SendRequest<Body>);

impl tower_service::Service<hyper::Request<Body>> for Sender {
    type Response = hyper::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Calls a method on a connection of its own.
fn call(socket: &Path, method: &'static str, args: &[&str]) -> Result<HealthCheckResponse, Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut grpc = Grpc::with_origin(Sender(sender), hyper::Uri::from_static("http://localhost"));
        grpc.ready().await.unwrap();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let codec: ProstCodec<HealthCheckRequest, HealthCheckResponse> = ProstCodec::default();
        let path = hyper::http::uri::PathAndQuery::from_static(method);
        let answer = grpc.unary(tonic::Request::new(HealthCheckRequest { args }), path, codec).await;
        answer.map(tonic::Response::into_inner)
    })
}

fn ask(node: &Node) -> Result<HealthCheckResponse, Status> {
    call(&node.nvrx_socket(), METHOD, &["--no-slurm", "--group", "gpu"])
}

fn output(answer: &HealthCheckResponse) -> Value {
    serde_json::from_str(&answer.output).unwrap()
}

#[test]
fn a_node_passes_until_a_gpu_is_faulty() {
    let node = without_topology("tests/scenarios/hang-gpu3.toml").start();
    node.wait_ready();
    let mode = std::fs::metadata(node.nvrx_socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "a launcher is no root");
    let answer = ask(&node).unwrap();
    assert!(answer.success && answer.exit_code == 0 && answer.error.is_empty(), "{answer:?}");
    assert_eq!((&output(&answer)["fail_count"], &output(&answer)["status"]), (&0.into(), &"ok".into()));

    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the stall", |m| m.value("gpu_up", &[("gpu", "3")]) == Some(0.0));
    let answer = ask(&node).unwrap();
    assert!(!answer.success && answer.exit_code == 2 && answer.error.contains("GPU 3 stuck"), "{answer:?}");
    assert_eq!(output(&answer)["fail_count"], 1);
    assert!(output(&answer)["failed_checks"][0].as_str().unwrap().starts_with("GPU 3: "));

    let status = call(&node.nvrx_socket(), "/nvhcd.HealthCheckService/Reset", &[]).unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    let long = "x".repeat(100_000);
    let status = call(&node.nvrx_socket(), METHOD, &[&long]).unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "no request fills the memory");
    assert!(!ask(&node).unwrap().success);
}

/// A frame of HTTP/2 on stream 0 or 1.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Literal header fields: those of HPACK's static table by number, then a new one.
fn headers(authority: &str) -> Vec<u8> {
    let literal = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let [post, http, authority_1, path_4, content_type_31] =
        [&[0x83][..], &[0x86], &[0x01], &[0x04], &[0x0f, 0x10]];
    let mut out = [post, http, path_4, &literal(METHOD), authority_1, &literal(authority)].concat();
    out.extend(
        [content_type_31, &literal("application/grpc"), &[0], &literal("te"), &literal("trailers")].concat(),
    );
    out
}

#[test]
fn the_authority_that_grpcs_own_clients_send_is_accepted() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    // As grpcio 1.85 writes the path of a socket.
    let authority = node.nvrx_socket().display().to_string()[1..].replace('/', "%2F");
    let mut stream = UnixStream::connect(node.nvrx_socket()).unwrap();
    let (end_stream, end_headers) = (1, 4);
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, end_headers, 1, &headers(&authority)),
        frame(0, end_stream, 1, &[0; 5]),
    ];
    stream.write_all(&sent.concat()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    let is_there = |answer: &[u8]| String::from_utf8_lossy(answer).contains("\"fail_count\":0");
    while !is_there(&answer) {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "no answer: {answer:?}");
        answer.extend_from_slice(&piece[..length]);
    }
}

#[test]
fn without_a_verdict_the_call_fails_with_the_reason() {
    let node = Setup::new("tests/scenarios/hang-init.toml").with("SAMPLER__CALL_TIMEOUT", "1m").start();
    node.wait_for("the socket", |node| node.nvrx_socket().exists());
    let status = ask(&node).unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "Waiting for the driver's first answer.")
    );
}

#[test]
fn clients_that_hold_connections_or_speak_no_grpc_keep_no_launcher_away() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    let connect = || UnixStream::connect(node.nvrx_socket()).unwrap();
    let mut garbage = connect();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let _ = garbage.read_to_end(&mut Vec::new());
    let idle: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    for _ in 0..20 {
        assert!(ask(&node).unwrap().success);
    }
    // The oldest had to go.
    let mut oldest = &idle[0];
    oldest.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    oldest.read_to_end(&mut rest).unwrap();
}

#[test]
fn the_socket_is_off_by_default() {
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with("HEALTH__NVRX_SOCKET", "").start();
    node.wait_ready();
    assert!(node.health_socket().exists() && !node.nvrx_socket().exists());
    assert!(settings::Health::default().nvrx_socket.is_none());
}

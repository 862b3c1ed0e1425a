//! The shipped program under clients that hold connections and read little or nothing.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use procfs::process::Process;
use tempfile::TempDir;

use super::node::{Node, Setup};

const SCENARIO: &str = "tests/scenarios/still-8xh200.toml";
const STREAM: &str = "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n";
const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
const EVENTS: &str = "GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n";

/// A client that holds its connection and reads a byte of it at most when asked to.
struct Holder {
    request: &'static str,
    stream: TcpStream,
}

impl Holder {
    fn open(addr: SocketAddr, request: &'static str) -> Holder {
        let mut stream = TcpStream::connect(addr).unwrap();
        setsockopt(&stream, sockopt::RcvBuf, &4096).unwrap();
        stream.set_nonblocking(true).unwrap();
        // The server may have closed already, which `hold` sees.
        let _ = stream.write_all(request.as_bytes());
        Holder { request, stream }
    }

    /// Reads one byte, and connects again if the server has closed.
    fn hold(&mut self, addr: SocketAddr) {
        match self.stream.read(&mut [0]) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => *self = Holder::open(addr, self.request),
        }
    }
}

fn holders(node: &Node, count: usize, request: &'static str) -> Vec<Holder> {
    (0..count).map(|_| Holder::open(node.addr(), request)).collect()
}

/// Status and time of a request on a connection of its own.
fn ask(node: &Node, path: &str) -> Result<u16, String> {
    let named = |error: std::io::Error| format!("{path}: {error}");
    let mut stream = TcpStream::connect(node.addr()).map_err(named)?;
    // The timeout of a kubelet's probe is 1 s; the tests beside this one take processor time.
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(named)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").map_err(named)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(named)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| format!("{path}: {answer:?}"))
}

fn each_path_answers(node: &Node, attackers: &mut [Holder]) {
    for _ in 0..5 {
        for path in ["/livez", "/readyz", "/metrics"] {
            assert_eq!(ask(node, path), Ok(200));
        }
        attackers.iter_mut().for_each(|attacker| attacker.hold(node.addr()));
    }
}

#[test]
fn idle_connections_slow_readers_and_streams_keep_no_probe_away() {
    let node = Setup::new(SCENARIO).with_default_times().start();
    node.wait_ready();
    let mut attackers = holders(&node, 300, "");
    each_path_answers(&node, &mut attackers);
    attackers.extend(holders(&node, 128, METRICS));
    each_path_answers(&node, &mut attackers);
    attackers.extend(holders(&node, 200, STREAM));
    each_path_answers(&node, &mut attackers);
    let m = node.metrics();
    assert_eq!(m.value("gpu_exporter_http_connections_refused_total", &[]), Some(0.0));
}

/// Resident memory of the daemon, in MiB.
fn resident_mib(node: &Node) -> f64 {
    Process::new(node.pid()).unwrap().status().unwrap().vmrss.unwrap() as f64 / 1024.0
}

#[test]
fn clients_of_the_events_that_never_read_cost_little_memory() {
    let root = TempDir::new().unwrap();
    simgpu::host::log_faults(root.path(), 500).unwrap();
    let node = Setup::new(SCENARIO)
        .with_default_times()
        .with("HOST__ROOT", root.path().to_str().unwrap())
        .with("EVENTS__KERNEL_LOG", "true")
        .start();
    node.wait_ready();
    node.wait_for("the events", |node| node.get("/api/v1/events").1.len() > 300_000);
    let before = resident_mib(&node);
    let answered =
        || node.metrics().value("gpu_exporter_http_requests_total", &[("code", "200")]).unwrap_or(0.0);
    // Each look is a request too, which the next one counts.
    let (answered_before, looks) = (answered(), Cell::new(0.0));
    let clients = holders(&node, 120, EVENTS);
    node.wait_for("all are answered", |_| {
        looks.set(looks.get() + 1.0);
        answered() >= answered_before + looks.get() + clients.len() as f64
    });
    let grown = resident_mib(&node) - before;
    assert!(grown < 10.0, "{grown:.1} MiB more for {} clients", clients.len());
    assert_eq!(ask(&node, "/metrics"), Ok(200));
}

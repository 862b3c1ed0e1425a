//! Tests of the server with real clients and sockets.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use access::Access;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::assets::ASSETS;
use crate::fixtures;
use crate::format::ResponseFormat;
use crate::paths::PATHS;
use crate::response_cache::ResponseCache;
use model::catalog::HttpStatus;
use model::clock::Mono;
use model::snapshot_cell::SnapshotCell;

/// Time limit of a test.
const PATIENCE: Duration = Duration::from_secs(20);

struct Served {
    address: SocketAddr,
    /// Address of the listener that imitates dcgm-exporter.
    dcgm: SocketAddr,
    snapshots: Arc<SnapshotCell>,
    stats: Arc<HttpCounters>,
    stop: watch::Sender<bool>,
    ended: JoinHandle<io::Result<()>>,
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes, and returns all received bytes once the server has closed the connection.
    async fn exchange(&self, request: &str) -> String {
        self.exchange_at(self.address, request).await
    }

    async fn exchange_at(&self, address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&rest(&mut stream).await).into_owned()
    }

    /// Returns the response of the listener that imitates dcgm-exporter.
    async fn ask_dcgm(&self, method: &str, path: &str, headers: &str) -> String {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
        self.exchange_at(self.dcgm, &request).await
    }

    async fn get(&self, path: &str, headers: &str) -> String {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")).await
    }
}

async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server ends it").unwrap();
    answer
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

/// Returns a node with this number of events.
fn node_with_events(sequence: u64, count: u64) -> model::snapshot::Snapshot {
    use model::catalog::{FaultAction, Severity};
    use model::snapshot::{Event, EventKind};
    let event = |id| {
        let event = Event::new(EventKind::Xid, 1.0, Severity::Page, FaultAction::ResetGpu);
        Arc::new(Event { id, revision: id, code: Some(79), ..event })
    };
    let mut node = fixtures::node_taken(sequence, Mono::now());
    node.events = (1..=count).map(event).collect();
    node
}

/// Reads until this text has been received this number of times.
async fn read_until(stream: &mut TcpStream, text: &str, times: usize) -> String {
    let mut got = Vec::new();
    timeout(PATIENCE, async {
        while String::from_utf8_lossy(&got).matches(text).count() < times {
            assert!(stream.read_buf(&mut got).await.unwrap() > 0, "{}", String::from_utf8_lossy(&got));
        }
    })
    .await
    .expect("it comes");
    String::from_utf8(got).unwrap()
}

const STREAM: &str = "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n";

#[tokio::test]
async fn events_can_be_asked_for_in_parts() {
    let server = served(LIMITS);
    server.snapshots.publish(node_with_events(2, 5));
    assert_eq!(server.get("/api/v1/events", "").await.matches("\"code\":79").count(), 5);
    let answer = server.get("/api/v1/events?since=2&limit=2", "").await;
    assert!(answer.contains("\"id\":3,") && answer.contains("\"id\":4,"), "{answer}");
    assert_eq!(answer.matches("\"code\":79").count(), 2);
    assert!(server.get("/api/v1/events?limit=x", "").await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn a_stream_brings_what_there_is_and_what_comes_and_ends_with_the_server() {
    let server = served(LIMITS);
    server.snapshots.publish(node_with_events(2, 2));
    let mut stream = server.connect().await;
    stream.write_all(format!("{STREAM}\r\n").as_bytes()).await.unwrap();
    let begun = read_until(&mut stream, "\ndata: ", 2).await;
    assert!(begun.contains("content-type: text/event-stream\r\n"), "{begun}");
    server.snapshots.publish(node_with_events(3, 3));
    let more = read_until(&mut stream, "\ndata: ", 1).await;
    assert!(more.contains("id: 3\nevent: xid\n") && !more.contains("id: 2\n"), "{more}");
    server.stop.send(true).unwrap();
    rest(&mut stream).await;
    drop(stream);
    timeout(DRAIN / 2, server.ended).await.expect("no stream holds it up").unwrap().unwrap();
}

#[tokio::test]
async fn a_stream_goes_on_where_it_was_and_leaves_room_for_scrapers() {
    let server = served(LIMITS);
    server.snapshots.publish(node_with_events(2, 5));
    let mut stream = server.connect().await;
    stream.write_all(format!("{STREAM}Last-Event-ID: 3\r\n\r\n").as_bytes()).await.unwrap();
    let begun = read_until(&mut stream, "\ndata: ", 2).await;
    assert!(begun.contains("id: 4\n") && !begun.contains("id: 3\n"), "{begun}");
    // One of four connections may be a stream.
    let refused = server.exchange(&format!("{STREAM}Connection: close\r\n\r\n")).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("retry-after: 10"), "{refused}");
    assert!(server.get("/metrics", "").await.starts_with("HTTP/1.1 200 "));
    drop(stream);
    until(|| server.stats.connections() == 0).await;
    let mut again = server.connect().await;
    again.write_all(format!("{STREAM}Last-Event-ID: 99\r\n\r\n").as_bytes()).await.unwrap();
    read_until(&mut again, "\ndata: ", 5).await;
}

const UPDATES: &str = "GET /page/updates HTTP/1.1\r\nHost: x\r\n";

#[tokio::test]
async fn an_open_page_hears_of_each_publication_and_takes_a_place_among_the_streams() {
    let server = served(LIMITS);
    let mut stream = server.connect().await;
    stream.write_all(format!("{UPDATES}\r\n").as_bytes()).await.unwrap();
    let begun = read_until(&mut stream, "event: publication\ndata: 1\n\n", 1).await;
    assert!(begun.contains("content-type: text/event-stream\r\n"), "{begun}");
    read_until(&mut stream, ": no publication\n\n", 1).await;
    // The publications of the last interval are merged into one event.
    for sequence in [2, 3] {
        server.snapshots.publish(fixtures::node_taken(sequence, Mono::now()));
    }
    let next = read_until(&mut stream, "event: publication\n", 1).await;
    assert!(next.contains("data: 3\n\n") && !next.contains("data: 2\n"), "{next}");
    for refused in [UPDATES, STREAM] {
        let refused = server.exchange(&format!("{refused}Connection: close\r\n\r\n")).await;
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    }
    assert!(server.get("/metrics", "").await.starts_with("HTTP/1.1 200 "));
    server.stop.send(true).unwrap();
    rest(&mut stream).await;
    drop(stream);
    timeout(DRAIN / 2, server.ended).await.expect("no stream holds it up").unwrap().unwrap();
}

#[tokio::test]
async fn the_stream_of_an_open_page_ends_with_the_values_that_may_be_served() {
    let server = served(LIMITS);
    let mut stream = server.connect().await;
    stream.write_all(format!("{UPDATES}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
    read_until(&mut stream, "data: 1\n\n", 1).await;
    server.snapshots.publish(fixtures::node_taken(0, Mono::now()));
    let end = String::from_utf8(rest(&mut stream).await).unwrap();
    assert!(!end.contains("data: 0"), "{end}");
    assert!(server.get("/page/updates", "").await.starts_with("HTTP/1.1 503 "));
}

#[tokio::test]
async fn a_stream_ends_once_its_client_may_not_read_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    let let_in = |user: &str| {
        let hash = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
        fs::write(&file, format!("basic_auth_users: {{ {user}: {hash} }}\n")).unwrap();
    };
    let_in("alice");
    let access = Arc::new(Access::open(&file, true).unwrap());
    let protection = Protection { access: Some(access), open_paths: Vec::new() };
    let snapshots = SnapshotCell::default();
    snapshots.publish(fixtures::node_taken(1, Mono::now()));
    let server = serve_protected(protection, Hosts::default(), LIMITS, snapshots, Duration::from_secs(3600));
    let credentials = "Authorization: Basic YWxpY2U6c2VjcmV0\r\nConnection: close\r\n\r\n";
    for (request, part) in [(UPDATES, ": no publication\n\n"), (STREAM, ": events\n\n")] {
        let_in("alice");
        let mut stream = server.connect().await;
        stream.write_all(format!("{request}{credentials}").as_bytes()).await.unwrap();
        // The wait is longer than the interval at which the server checks the file.
        read_until(&mut stream, part, if request == UPDATES { 2 } else { 1 }).await;
        let_in("bob");
        rest(&mut stream).await;
        let refused = server.exchange(&format!("{request}{credentials}")).await;
        assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    }
}

#[tokio::test]
async fn the_files_of_the_page_were_compressed_beforehand() {
    let server = served(LIMITS);
    for file in &crate::assets::PAGE_FILES {
        let gzip = file.gzip.unwrap();
        let mut plain = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(gzip), &mut plain).unwrap();
        assert!(plain == file.text, "{}", file.path);
        let small = server.get(&format!("/page/{}", file.path), "Accept-Encoding: gzip\r\n").await;
        assert!(small.contains(&format!("content-length: {}\r\n", gzip.len())), "{}", file.path);
    }
    assert!(server.get("/page/none.js", "").await.starts_with("HTTP/1.1 404 "));
}

const LIMITS: Limits = Limits { max_connections: 4, read_timeout: PATIENCE, write_timeout: PATIENCE };

fn serve_as(hosts: Hosts, limits: Limits, snapshots: SnapshotCell, stale_after: Duration) -> Served {
    serve_protected(Protection::default(), hosts, limits, snapshots, stale_after)
}

fn serve_protected(
    protection: Protection,
    hosts: Hosts,
    limits: Limits,
    snapshots: SnapshotCell,
    stale_after: Duration,
) -> Served {
    let snapshots = Arc::new(snapshots);
    let responses = Arc::new(ResponseCache::new(snapshots.clone(), Default::default()));
    let state = AppState { snapshots: snapshots.clone(), responses, started: Mono(0), stale_after };
    let listeners = Listeners { main: bind("127.0.0.1:0").unwrap(), dcgm: bind("127.0.0.1:0").unwrap() };
    let address = |listeners: &[TcpListener]| listeners[0].local_addr().unwrap();
    let (address, dcgm) = (address(&listeners.main), address(&listeners.dcgm));
    let stats = Arc::new(HttpCounters::default());
    let (stop, stopped) = watch::channel(false);
    let states = States { whole: Arc::new(state), nameless: None };
    let serving = serve(listeners, states, protection, limits, hosts, stats.clone(), stopped);
    let ended = tokio::spawn(serving);
    Served { address, dcgm, snapshots, stats, stop, ended }
}

fn serve_with(limits: Limits, snapshots: SnapshotCell, stale_after: Duration) -> Served {
    serve_as(Hosts::default(), limits, snapshots, stale_after)
}

fn served(limits: Limits) -> Served {
    let snapshots = SnapshotCell::default();
    snapshots.publish(fixtures::node_taken(1, Mono::now()));
    serve_with(limits, snapshots, Duration::from_secs(3600))
}

#[tokio::test]
async fn each_path_answers() {
    let server = served(LIMITS);
    for (path, kind, part) in [
        ("/", "text/html", "<!DOCTYPE html>"),
        ("/metrics", "text/plain; version=0.0.4", "gpu_driver_up 1\n"),
        ("/livez", "text/plain", "alive"),
        ("/readyz", "text/plain", "ready\n"),
        ("/api/v1/snapshot", "application/json", "\"taken_unix_seconds\""),
        ("/api/v1/events", "application/json", "\"events\":[]"),
        ("/api/v1/owners", "application/json", "\"owners\":[]"),
        ("/page/history", "application/json", "\"curves\":[]"),
        ("/page/style.css", "text/css", ".verdict"),
        ("/page/script.js", "text/javascript", "EventSource"),
    ] {
        let answer = server.get(path, "").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        assert!(answer.contains(&format!("content-type: {kind}")), "{path}: {answer}");
        assert!(answer.contains(part), "{path}: {answer}");
        assert!(answer.contains("content-security-policy: default-src 'none'"), "{path}");
        assert!(answer.contains("x-content-type-options: nosniff"), "{path}");
        let kept = if answer.contains("\r\netag: ") { "no-cache" } else { "no-store" };
        assert!(answer.contains(&format!("cache-control: {kept}\r\n")), "{path}");
    }
    assert_eq!(server.stats.answers(HttpStatus::C200), 10);
}

#[tokio::test]
async fn the_second_listener_speaks_as_dcgm_exporter_does_and_no_other_way() {
    let server = served(LIMITS);
    for (path, status, kind, part) in [
        (
            "/metrics",
            200,
            "text/plain; version=0.0.4; charset=utf-8",
            "\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n",
        ),
        ("/health", 200, "text/plain", "OK\n"),
        ("/", 200, "text/html", "<a href=\"metrics\">"),
        ("/livez", 404, "text/plain", "\n/metrics           metrics\n/health "),
        ("/api/v1/snapshot", 404, "text/plain", "\n/metrics           metrics\n/health "),
    ] {
        let answer = server.ask_dcgm("GET", path, "").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert!(answer.contains(&format!("content-type: {kind}")), "{path}: {answer}");
        assert!(
            answer.contains(part) && answer.contains("x-content-type-options: nosniff"),
            "{path}: {answer}"
        );
    }
    let get = server.ask_dcgm("GET", "/metrics", "").await;
    assert_eq!(body(&get), body(&server.get("/dcgm/metrics", "").await), "the same page as on the first one");
    // A scraper that prefers OpenMetrics receives the same response as from dcgm-exporter.
    let answer = server.ask_dcgm("GET", "/metrics", "Accept: application/openmetrics-text\r\n").await;
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    let head = server.ask_dcgm("HEAD", "/metrics", "").await;
    assert!(
        head.contains(&format!("content-length: {}\r\n", body(&get).len())) && body(&head).is_empty(),
        "{head}"
    );
    let answer = server.ask_dcgm("GET", "/metrics", "Accept-Encoding: gzip\r\n").await;
    assert!(answer.contains("content-encoding: gzip\r\n"), "{answer}");
    assert!(server.ask_dcgm("POST", "/metrics", "").await.starts_with("HTTP/1.1 405 "));
}

#[tokio::test]
async fn both_listeners_share_the_places_and_the_end() {
    let server = served(LIMITS);
    let mut open = Vec::new();
    for address in [server.address, server.dcgm, server.dcgm, server.dcgm] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        read_until(&mut stream, "</html>", 1).await;
        open.push(stream);
    }
    assert_eq!(server.stats.connections(), LIMITS.max_connections);
    assert!(server.ask_dcgm("GET", "/health", "").await.starts_with("HTTP/1.1 200 "));
    // The connection that has been idle longest belongs to the other listener.
    rest(&mut open[0]).await;
    assert_eq!(server.stats.evicted(), 1);
    server.stop.send(true).unwrap();
    for stream in &mut open[1..] {
        rest(stream).await;
    }
    drop(open);
    timeout(DRAIN / 2, server.ended).await.expect("nothing holds it up").unwrap().unwrap();
}

#[tokio::test]
async fn the_second_listener_checks_names_and_serves_nothing_old() {
    let snapshots = SnapshotCell::default();
    snapshots.publish(fixtures::node_taken(1, Mono(0)));
    let hosts = Hosts::new(["node1".to_owned()]);
    let server = serve_as(hosts, LIMITS, snapshots, Duration::ZERO);
    assert!(server.ask_dcgm("GET", "/metrics", "").await.starts_with("HTTP/1.1 421 "));
    for path in ["/metrics", "/health"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: node1\r\nConnection: close\r\n\r\n");
        let answer = server.exchange_at(server.dcgm, &request).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
}

#[tokio::test]
async fn the_client_chooses_format_and_encoding() {
    let server = served(LIMITS);
    let answer = server.get("/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n").await;
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(answer.ends_with("# EOF\n"));

    let mut stream = server.connect().await;
    let request =
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: br, gzip\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let answer = rest(&mut stream).await;
    let head_ends = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    assert!(String::from_utf8_lossy(&answer[..head_ends]).contains("content-encoding: gzip"));
    let mut page = String::new();
    io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&answer[head_ends..]), &mut page).unwrap();
    assert!(page.contains("gpu_driver_up 1\n"));
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let server = served(LIMITS);
    let get = server.get("/metrics", "").await;
    let head = server.exchange("HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    let length = format!("content-length: {}\r\n", body(&get).len());
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains(&length), "{head}");
    assert_eq!(body(&head), "");
}

#[tokio::test]
async fn unknown_paths_and_methods_get_the_list() {
    let server = served(LIMITS);
    let answer = server.get("/metric", "").await;
    assert!(answer.starts_with("HTTP/1.1 404 "));
    for (path, _) in PATHS {
        assert!(body(&answer).contains(path));
    }
    let post = "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
    let answer = server.exchange(post).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.to_lowercase().contains("\r\nallow: get,head\r\n"), "{answer}");
    assert_eq!(server.stats.answers(HttpStatus::C404), 1);
    assert_eq!(server.stats.answers(HttpStatus::C405), 1);
}

#[tokio::test]
async fn rules_and_dashboards_are_served_as_they_are_and_not_twice() {
    let server = served(LIMITS);
    for asset in ASSETS {
        let answer = server.get(asset.path, "").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(body == asset.text && head.starts_with("HTTP/1.1 200 "), "{}: {head}", asset.path);
        assert!(head.contains(&format!("\r\ncontent-type: {}\r\n", asset.content_type())), "{head}");
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect(asset.path);
        assert!(head.contains("\r\ncache-control: no-cache") && head.contains("nosniff"), "{head}");
        let known = format!("If-None-Match: \"0\", {tag}\r\n");
        let again = server.get(asset.path, &known).await;
        assert!(again.starts_with("HTTP/1.1 304 ") && again.ends_with("\r\n\r\n"), "{again}");
        let small = server.get(asset.path, "Accept-Encoding: gzip\r\n").await;
        assert!(small.contains("content-encoding: gzip\r\n") && !small.contains(tag), "{}", asset.path);
    }
    let list = server.get("/alerts/", "").await;
    assert!(body(&list).lines().any(|line| line == "/alerts/owners.rules.yml"), "{list}");
    for none in ["/alerts/", "/dashboards/"].map(|folder| format!("{folder}none.yml")) {
        assert!(server.get(&none, "").await.starts_with("HTTP/1.1 404 "), "{none}");
    }
    let page = server.get("/", "").await;
    assert!(ASSETS.iter().all(|asset| page.contains(&format!("<a href=\"{}\">", &asset.path[1..]))));
}

#[tokio::test]
async fn a_body_that_never_comes_delays_no_response() {
    let server = served(LIMITS);
    let request = "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nabc";
    assert!(server.exchange(request).await.starts_with("HTTP/1.1 405 "));
}

#[tokio::test]
async fn headers_have_a_limit_in_size_and_number() {
    let server = served(LIMITS);
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    assert!(server.exchange(&long).await.starts_with("HTTP/1.1 431 "));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101));
    assert!(server.exchange(&many).await.starts_with("HTTP/1.1 431 "));
    assert!(server.exchange("nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    assert_eq!(server.stats.answers(HttpStatus::C431), 2);
    assert_eq!(server.stats.answers(HttpStatus::C400), 1);
}

#[tokio::test]
async fn a_slow_header_is_answered_408_and_an_idle_connection_closed() {
    let server = served(Limits { read_timeout: Duration::from_millis(50), ..LIMITS });
    assert!(server.exchange("GET /metrics HTTP/1.1\r\nHo").await.starts_with("HTTP/1.1 408 "));
    assert_eq!(server.exchange("").await, "");
    let kept = server.exchange("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(kept.starts_with("HTTP/1.1 200 ") && body(&kept) == "alive\n", "{kept}");
    assert_eq!(server.stats.answers(HttpStatus::C408), 1);
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_dropped() {
    let server = served(Limits { write_timeout: Duration::from_millis(50), ..LIMITS });
    let _choking = choking(&server).await;
    until(|| server.stats.connections() == 0).await;
}

/// Waits until the server's tasks, which run on this thread, have fulfilled the condition.
async fn until(mut done: impl FnMut() -> bool) {
    timeout(PATIENCE, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("it comes to pass");
}

#[tokio::test]
async fn past_the_limit_the_connection_that_waits_longest_goes() {
    let server = served(Limits { max_connections: 2, ..LIMITS });
    let mut silent = server.connect().await;
    until(|| server.stats.connections() == 1).await;
    let connected = std::time::Instant::now();
    let mut kept = server.connect().await;
    kept.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    read_until(&mut kept, "alive\n", 1).await;
    until(|| connected.elapsed() > places::GRACE).await;
    // A connection without a request is evicted before a connection that has been idle for longer.
    assert!(server.get("/livez", "").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(rest(&mut silent).await, b"");
    kept.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    read_until(&mut kept, "alive\n", 1).await;
    until(|| server.stats.connections() == 1).await;
    let mut stream = server.connect().await;
    stream.write_all(format!("{STREAM}\r\n").as_bytes()).await.unwrap();
    read_until(&mut stream, ": events\n\n", 1).await;
    assert!(server.get("/livez", "").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(rest(&mut kept).await, b"");
    assert_eq!((server.stats.refused(), server.stats.evicted()), (0, 2));
}

#[tokio::test]
async fn past_the_limit_a_client_that_does_not_read_goes_and_a_stream_stays() {
    let server = served(LIMITS);
    server.snapshots.publish(node_with_events(2, 2));
    let mut stream = server.connect().await;
    stream.write_all(format!("{STREAM}\r\n").as_bytes()).await.unwrap();
    read_until(&mut stream, "\ndata: ", 2).await;
    let _choking = (choking(&server).await, choking(&server).await, choking(&server).await);
    until(|| server.stats.connections() == 4).await;
    for _ in 0..3 {
        assert!(server.get("/metrics", "").await.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!((server.stats.refused(), server.stats.evicted()), (0, 1));
    server.snapshots.publish(node_with_events(3, 3));
    read_until(&mut stream, "\ndata: ", 1).await;
}

#[tokio::test]
async fn where_all_connections_work_a_newcomer_is_turned_away_soon() {
    let server = served(Limits { max_connections: 1, ..LIMITS });
    let mut stream = server.connect().await;
    stream.write_all(format!("{STREAM}\r\n").as_bytes()).await.unwrap();
    read_until(&mut stream, ": events\n\n", 1).await;
    let answer = server.exchange("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1\r\n"), "{answer}");
    assert_eq!((server.stats.refused(), server.stats.answers(HttpStatus::C503)), (1, 1));
    drop(stream);
    until(|| server.stats.connections() == 0).await;
    assert!(server.get("/livez", "").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_response_ends_when_its_client_takes_it_too_slowly() {
    let server = served(Limits { write_timeout: Duration::from_millis(100), ..LIMITS });
    let mut slow = choking(&server).await;
    let connected = std::time::Instant::now();
    // A kilobyte every few milliseconds counts as progress, but is far too slow.
    timeout(PATIENCE, async {
        while server.stats.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let _ = slow.read(&mut [0; 1024]).await;
        }
    })
    .await
    .expect("the server ends it");
    assert!(connected.elapsed() < Duration::from_secs(5), "{:?}", connected.elapsed());
}

#[tokio::test]
async fn a_request_has_one_host_and_one_that_is_ours() {
    let any = served(LIMITS);
    for headers in ["", "Host: x\r\nHost: x\r\n", "Host: \r\n", "Host: a b\r\n"] {
        let answer = any.exchange(&format!("GET /metrics HTTP/1.1\r\n{headers}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{headers:?}: {answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
    assert!(any.exchange("GET /livez HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 400 "));
    let snapshots = SnapshotCell::default();
    snapshots.publish(fixtures::node_taken(1, Mono::now()));
    let hosts = Hosts::new(["node1".to_owned()]);
    let named = serve_as(hosts, LIMITS, snapshots, Duration::from_secs(3600));
    for (line, host, status) in [
        ("/metrics", "node1", 200),
        ("/metrics", "Node1:9408", 200),
        ("/metrics", "localhost:9408", 200),
        ("/metrics", "rebound.example.com", 421),
        ("/livez", "rebound.example.com", 421),
        ("http://node1/metrics", "node1", 200),
        ("http://rebound.example.com/metrics", "node1", 421),
        ("http://node1/metrics", "rebound.example.com", 421),
    ] {
        let request = format!("GET {line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = named.exchange(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line} {host}: {answer}");
        assert!(answer.contains("x-content-type-options: nosniff"), "{answer}");
    }
    assert_eq!((named.stats.answers(HttpStatus::C421), named.stats.answers(HttpStatus::Other)), (4, 0));
}

#[tokio::test]
async fn documents_have_a_tag_and_are_not_sent_twice() {
    let server = served(LIMITS);
    server.snapshots.publish(node_with_events(2, 5));
    for path in ["/", "/api/v1/snapshot", "/api/v1/events", "/api/v1/owners", "/api/v1/windows"] {
        for coding in ["", "Accept-Encoding: gzip\r\n"] {
            let answer = server.get(path, coding).await;
            let tag = answer.lines().find_map(|line| line.strip_prefix("etag: ")).expect(path).to_owned();
            assert_eq!(answer.contains("content-encoding: gzip"), !coding.is_empty(), "{path}");
            let again = server.get(path, &format!("{coding}If-None-Match: {tag}\r\n")).await;
            assert!(again.starts_with("HTTP/1.1 304 ") && again.ends_with("\r\n\r\n"), "{path}: {again}");
        }
    }
    assert_eq!(server.stats.answers(HttpStatus::C304), 10);
    assert!(!server.get("/metrics", "").await.contains("etag: "));
    let all = server.get("/api/v1/events?since=0", "Accept-Encoding: gzip\r\n").await;
    assert!(all.contains("content-encoding: gzip") && all.contains("etag: "), "{all}");
}

#[tokio::test]
async fn a_part_of_the_events_has_a_tag_until_the_list_changes() {
    let server = served(LIMITS);
    server.snapshots.publish(node_with_events(2, 5));
    let tag_of =
        |answer: &str| answer.lines().find_map(|line| line.strip_prefix("etag: ")).map(str::to_owned);
    let mut tags = HashSet::new();
    for query in ["limit=2", "limit=3", "since=2", "since=2&limit=2"] {
        let path = format!("/api/v1/events?{query}");
        let answer = server.get(&path, "Accept-Encoding: gzip\r\n").await;
        let tag = tag_of(&answer).expect(query);
        assert!(!answer.contains("content-encoding"), "{answer}");
        let known = format!("If-None-Match: {tag}\r\n");
        let again = server.get(&path, &known).await;
        assert!(again.starts_with("HTTP/1.1 304 ") && again.ends_with("\r\n\r\n"), "{again}");
        tags.insert(tag);
    }
    // since=2 selects the same events as limit=3.
    assert_eq!(tags.len(), 3, "{tags:?}");
    server.snapshots.publish(node_with_events(3, 6));
    let changed = server.get("/api/v1/events?limit=2", "").await;
    assert!(tags.insert(tag_of(&changed).expect("of the new list")));
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let server = served(LIMITS);
    let requests = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3);
    let answer = server
        .exchange(&format!("{requests}GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
        .await;
    assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 4);
}

#[tokio::test]
async fn nothing_and_old_values_are_not_served() {
    let server = serve_with(LIMITS, SnapshotCell::default(), Duration::from_secs(10));
    for path in ["/", "/metrics", "/api/v1/snapshot", "/livez", "/readyz"] {
        let answer = server.get(path, "").await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("No values"), "{path}: {answer}");
    }
    server.snapshots.publish(fixtures::node_taken(1, Mono::now()));
    assert!(server.get("/metrics", "").await.starts_with("HTTP/1.1 200 "));
    server.snapshots.publish(fixtures::node_taken(2, Mono(1)));
    for path in ["/", "/metrics", "/api/v1/snapshot", "/livez", "/readyz"] {
        let answer = server.get(path, "").await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("too old"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn readiness_waits_for_collectors_and_not_for_the_driver() {
    let snapshots = SnapshotCell::default();
    let mut snapshot = fixtures::node_taken(1, Mono::now());
    snapshot.driver = model::snapshot::DriverState::Away { text: "libnvidia-ml.so.1 is not there".into() };
    snapshots.publish(snapshot);
    let server = serve_with(LIMITS, snapshots, PATIENCE);
    let answer = server.get("/readyz", "").await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("libnvidia-ml.so.1 is not there"),
        "{answer}"
    );

    let mut snapshot = fixtures::node_taken(2, Mono::now());
    snapshot.ready = false;
    snapshot.collectors[0].age = None;
    server.snapshots.publish(snapshot);
    let answer = server.get("/readyz", "").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("collector nvml: "), "{answer}");
}

#[tokio::test]
async fn a_scrape_gets_the_newest_snapshot() {
    let server = served(LIMITS);
    for sequence in 2..6 {
        server.get("/api/v1/snapshot", "").await;
        server.snapshots.publish(fixtures::node_taken(sequence, Mono::now()));
        let newest = format!("\"sequence\":{sequence},");
        assert!(server.get("/api/v1/snapshot", "").await.contains(&newest));
    }
}

/// Connects a client that reads nothing of a response that exceeds the socket buffers.
async fn choking(server: &Served) -> TcpStream {
    let mut stream = server.connect().await;
    stream.write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(400).as_bytes()).await.unwrap();
    until(|| server.stats.answers(HttpStatus::C200) > 0).await;
    stream
}

#[tokio::test]
async fn stopping_ends_idle_connections_and_finishes_answers() {
    let server = served(LIMITS);
    let mut idle = server.connect().await;
    let mut choking = choking(&server).await;
    until(|| server.stats.connections() == 2).await;
    server.stop.send(true).unwrap();
    assert_eq!(rest(&mut idle).await, b"");
    let answers = rest(&mut choking).await;
    let answers = String::from_utf8(answers).unwrap();
    let last_line =
        ResponseFormat::Text.encode(&server.snapshots.current()).lines().last().unwrap().to_owned();
    assert!(answers.ends_with(&format!("{last_line}\n")), "the last answer is whole");
    drop((idle, choking));
    timeout(PATIENCE, server.ended).await.expect("it ends").unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "no listener is left");
}

#[tokio::test]
async fn stopping_waits_for_no_client_longer_than_the_drain() {
    let server = served(LIMITS);
    let _choking = choking(&server).await;
    server.stop.send(true).unwrap();
    timeout(DRAIN * 2, server.ended).await.expect("it ends").unwrap().unwrap();
}

//! The HTTP side of the shipped program: what a scraper, a probe and a person get.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::node::{Node, Setup};

const SCENARIO: &str = "tests/scenarios/still-8xh200.toml";
const OPENMETRICS: &str = "Accept: application/openmetrics-text;version=1.0.0\r\n";

/// The whole answer to one request, head and body.
fn ask(node: &Node, method: &str, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(node.addr()).expect("the node listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head and a body").1
}

#[test]
fn promtool_accepts_the_metrics() {
    let promtool = std::env::var("PROMTOOL").expect(
        "PROMTOOL is not set: sudo apt-get install prometheus && export PROMTOOL=$(command -v promtool)",
    );
    let node = Node::start(SCENARIO);
    let answer = ask(&node, "GET", "/metrics", "");
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    check.stdin.take().expect("a pipe").write_all(body(&answer).as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert_eq!(String::from_utf8_lossy(&said), "");
    assert!(output.status.success());
}

#[test]
fn a_scraper_gets_the_format_it_asks_for() {
    let node = Node::start(SCENARIO);
    let text = ask(&node, "GET", "/metrics", "");
    assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
    assert!(body(&text).contains("# TYPE gpu_info gauge\n"));
    let openmetrics = ask(&node, "GET", "/metrics", OPENMETRICS);
    assert!(
        openmetrics.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n")
    );
    assert!(body(&openmetrics).contains("# TYPE gpu info\n") && openmetrics.ends_with("# EOF\n"));
    let json: serde_json::Value =
        serde_json::from_str(body(&ask(&node, "GET", "/api/v1/snapshot", ""))).expect("JSON");
    assert_eq!(json["gpus"].as_array().map(Vec::len), Some(8));
    assert_eq!(body(&ask(&node, "GET", "/", "")).matches("<article").count(), 8);
}

#[test]
fn each_path_answers_with_its_status() {
    let node = Node::start(SCENARIO);
    for (method, path, status) in [
        ("GET", "/", 200),
        ("GET", "/metrics", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/livez", 200),
        ("GET", "/readyz", 200),
        ("GET", "/api/v1/snapshot", 200),
        ("GET", "/nothing", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/api/v1/snapshot", 405),
    ] {
        let answer = ask(&node, method, path, "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
    }
}

#[test]
fn a_foreign_host_name_reads_nothing() {
    let node = Setup::new(SCENARIO).with("HTTP__HOSTS", "x, node").start();
    node.wait_ready();
    assert!(ask(&node, "GET", "/metrics", "").starts_with("HTTP/1.1 200 "));
    assert!(ask(&node, "GET", "/metrics", "Host: node\r\n").starts_with("HTTP/1.1 400 "), "two");
    let mut stream = TcpStream::connect(node.addr()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: rebound.example.com\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 421 ") && !answer.contains("gpu_"), "{answer}");
}

#[test]
fn documents_are_compressed_and_not_sent_twice() {
    let node = Node::start(SCENARIO);
    for path in ["/", "/api/v1/snapshot", "/api/v1/events", "/api/v1/owners", "/api/v1/windows"] {
        // HEAD, as a compressed body is no text.
        let head = ask(&node, "HEAD", path, "Accept-Encoding: gzip\r\n");
        assert!(
            head.starts_with("HTTP/1.1 200 ") && head.contains("content-encoding: gzip\r\n"),
            "{path}: {head}"
        );
        assert!(head.contains("\r\netag: \""), "{path}: {head}");
    }
    // A list without changes keeps its tag over publications.
    let events = ask(&node, "GET", "/api/v1/events", "");
    let tag = events.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    let sequence = |node: &Node| node.snapshot()["sequence"].as_u64();
    let before = sequence(&node);
    node.wait_for("the next publication", |node| sequence(node) > before);
    let again = ask(&node, "GET", "/api/v1/events", &format!("If-None-Match: {tag}\r\n"));
    assert!(again.starts_with("HTTP/1.1 304 "), "{again}");
}

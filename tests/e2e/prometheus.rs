//! A real Prometheus server scrapes the daemon, in both formats.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::node::{Node, PATIENCE, Setup, pause_between_queries};

pub struct Server {
    process: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Starts Prometheus on a free port, scraping the target. A second, the timeout that follows from the global interval, may be too
    /// short for a scrape where all tests run at once.
    fn start(target: SocketAddr) -> Server {
        Server::scraping(&format!(
            "  - job_name: gpu-node-exporter\n    scrape_interval: 3s\n    scrape_timeout: 3s\n    static_configs:\n      - targets: ['{target}']\n"
        ))
    }

    /// With these `scrape_configs`.
    pub fn scraping(configs: &str) -> Server {
        let program = std::env::var("PROMETHEUS")
            .expect("PROMETHEUS is not set: run the tests with `make test`, which brings Prometheus");
        let dir = tempfile::tempdir().unwrap();
        let config =
            format!("global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nscrape_configs:\n{configs}");
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new(program)
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=debug")
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .expect("Prometheus starts");
        Server { process, port, dir }
    }

    /// What the query gives; `None` if there is no answer, or it is an error.
    pub fn query(&self, promql: &str) -> Option<serde_json::Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let query: String = promql.bytes().map(|b| format!("%{b:02X}")).collect();
        write!(stream, "GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let body = answer.split_once("\r\n\r\n")?.1;
        let value: serde_json::Value = serde_json::from_str(body).ok()?;
        value["data"].get("result").cloned()
    }

    /// Where it answers.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The scrapes that failed, with the reasons.
    pub fn failed_scrapes(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        log.lines().filter(|line| line.contains("err=")).collect::<Vec<_>>().join("\n")
    }

    fn number(&self, promql: &str) -> Option<f64> {
        self.query(promql)?.get(0)?["value"][1].as_str()?.parse().ok()
    }

    pub fn wait_number(&self, promql: &str) -> f64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(number) = self.number(promql) {
                return number;
            }
            assert!(Instant::now() < deadline, "no answer to {promql}");
            pause_between_queries();
        }
    }
}

/// Scrapes the target for some seconds and compares what Prometheus kept with what the daemon served.
fn scraped_without_loss(target: std::net::SocketAddr) -> Server {
    let server = Server::start(target);
    server.wait_number("count_over_time(up[1m]) >= 3");
    assert_eq!(server.wait_number("min_over_time(up[1m])"), 1.0, "{}", server.failed_scrapes());
    let scraped = server.wait_number("scrape_samples_scraped");
    let kept = server.wait_number("scrape_samples_post_metric_relabeling");
    let series = server.wait_number("gpu_exporter_series");
    assert_eq!(scraped, kept);
    assert!((scraped - series).abs() <= 10.0, "{scraped} samples of {series} series: some were dropped");
    let stored = server.wait_number("count({job=\"gpu-node-exporter\",__name__=~\"gpu_.*|process_.*\"})");
    assert!((stored - series).abs() <= 10.0, "{stored} stored of {series}");
    assert_eq!(server.wait_number("count(gpu_up == 1)"), 8.0);
    assert_eq!(server.wait_number("count(gpu_info * on (uuid) group_left gpu_up)"), 8.0);
    server
}

/// A proxy between Prometheus and the daemon that removes the Accept header, so that the answer is in
/// text format 0.0.4. Serves until the test's process ends. Gives its address.
fn without_accept(daemon: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|n| n == 1) {
                head.push(byte[0]);
            }
            let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let mut server = TcpStream::connect(daemon).unwrap();
            server.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            server.read_to_end(&mut answer).unwrap();
            assert!(String::from_utf8_lossy(&answer).contains("version=0.0.4"));
            let _ = client.write_all(&answer);
        }
    });
    addr
}

#[test]
fn a_real_prometheus_drops_nothing_of_openmetrics() {
    let setup = Setup::new("tests/scenarios/node-8xh200.toml");
    let node = setup.with("NODE__RACK", "row 4, \"7\"").with("NODE__ZONE", "Süd").start();
    let server = scraped_without_loss(node.addr());
    let of_rack = r#"{rack="row 4, \"7\"",zone="Süd",__name__=~"gpu_.*|process_.*"}"#;
    let all = r#"{__name__=~"gpu_.*|process_.*"}"#;
    assert_eq!(server.wait_number(&format!("count({of_rack}) / count({all})")), 1.0);
}

#[test]
fn a_real_prometheus_drops_nothing_of_text_0_0_4() {
    let node = Node::start("tests/scenarios/node-8xh200.toml");
    drop(scraped_without_loss(without_accept(node.addr())));
}

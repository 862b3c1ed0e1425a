//! A Collector with the files of deploy/otel, and what it pushes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use super::node::{PATIENCE, pause};

pub type Texts = BTreeMap<String, String>;

/// The host and Kubernetes node that the Collector is configured with.
pub const HOST: &str = "gpu-7.example.net";
pub const K8S_NODE: &str = "gpu-7";

/// A running Collector.
pub struct Collector {
    process: Child,
    folder: TempDir,
    /// Bytes read so far, and the points in them.
    read: RefCell<(usize, Vec<Point>)>,
}

/// A data point as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub resource: Texts,
    pub name: String,
    pub unit: String,
    pub kind: Kind,
    pub attributes: Texts,
    /// None of a point that says that there is no value.
    pub value: Option<f64>,
    pub start: u64,
    pub time: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
    UpDownCounter,
    Histogram,
}

impl Collector {
    /// One that scrapes this address every two seconds.
    pub fn start(target: SocketAddr, files: &[&str]) -> Collector {
        let folder = TempDir::new().unwrap();
        // The port is free until the Collector takes it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = std::env::var_os("OTELCOL").expect("OTELCOL: run `make prove PARTS=otel`");
        let mut command = Command::new(program);
        for file in files.iter().chain(&["tests/otel/wire.yaml"]) {
            command.arg("--config").arg(root.join(file));
        }
        let process = command
            .env("GPU_NODE_EXPORTER", target.to_string())
            .env("SCRAPE_INTERVAL", "2s")
            .env("OTLP_ENDPOINT", port.to_string())
            .env("OTLP_INSECURE", "true")
            .env("HOST_NAME", HOST)
            .env("K8S_NODE_NAME", K8S_NODE)
            .env("WIRE_FILE", folder.path().join("wire"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .expect("the Collector starts");
        Collector { process, folder, read: RefCell::default() }
    }

    /// What it said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// What it complained of, but an exporter away.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.log();
        // It pushes before it receives.
        let expected = ["Failed to scrape", "grpc_log"];
        let complaint = |line: &&str| {
            (line.contains("\twarn\t") || line.contains("\terror\t"))
                && !expected.iter().any(|known| line.contains(known))
        };
        log.lines().filter(complaint).map(str::to_owned).collect()
    }

    /// All points that arrived so far, in order.
    pub fn points(&self) -> Vec<Point> {
        let text = fs::read_to_string(self.folder.path().join("wire")).unwrap_or_default();
        // The last line may not be whole yet.
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let (read, all) = &mut *self.read.borrow_mut();
        for line in text[*read..whole].lines() {
            all.extend(points(&serde_json::from_str(line).unwrap()));
        }
        *read = whole;
        all.clone()
    }

    /// The points of the second scrape.
    pub fn second_scrape(&self) -> Vec<Point> {
        let mut points = self.wait("two scrapes", |points| scrapes(points, true).len() >= 2);
        let second = scrapes(&points, true)[1];
        points.retain(|point| point.time == second);
        points
    }

    /// Waits for points that fulfil the condition.
    pub fn wait(&self, what: &str, condition: impl Fn(&[Point]) -> bool) -> Vec<Point> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let points = self.points();
            if condition(&points) {
                return points;
            }
            assert!(Instant::now() < deadline, "{what} did not arrive; the Collector said:\n{}", self.log());
            pause();
        }
    }
}

/// The times of the scrapes that succeeded, or of those that did not.
pub fn scrapes(points: &[Point], succeeded: bool) -> Vec<u64> {
    let value = Some(f64::from(u8::from(succeeded)));
    points.iter().filter(|p| p.name == "up" && p.value == value).map(|p| p.time).collect()
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn items<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

fn texts(of: &Value) -> Texts {
    let one = |pair: &Value| {
        let text = pair["value"]["stringValue"].as_str().map(str::to_owned);
        (pair["key"].as_str().unwrap().to_owned(), text.unwrap_or_else(|| pair["value"].to_string()))
    };
    items(of, "attributes").map(one).collect()
}

fn nanoseconds(value: &Value) -> u64 {
    value.as_str().map_or(0, |text| text.parse().unwrap())
}

fn points(request: &Value) -> Vec<Point> {
    let mut all = Vec::new();
    for part in items(request, "resourceMetrics") {
        let resource = texts(&part["resource"]);
        for metric in items(part, "scopeMetrics").flat_map(|scope| items(scope, "metrics")) {
            let (kind, data) = if metric["gauge"].is_object() {
                (Kind::Gauge, &metric["gauge"])
            } else if metric["histogram"].is_object() {
                (Kind::Histogram, &metric["histogram"])
            } else {
                let sum = &metric["sum"];
                assert_eq!(sum["aggregationTemporality"], 2, "cumulative: {metric}");
                let counts = sum["isMonotonic"] == true;
                (if counts { Kind::Counter } else { Kind::UpDownCounter }, sum)
            };
            all.extend(items(data, "dataPoints").map(|point| {
                let value = point["asDouble"].as_f64().or(point["sum"].as_f64());
                let is_absent = point["flags"] == 1;
                assert!(value.is_some() != is_absent || kind == Kind::Histogram, "{metric}");
                Point {
                    resource: resource.clone(),
                    name: metric["name"].as_str().unwrap().to_owned(),
                    unit: metric["unit"].as_str().unwrap_or_default().to_owned(),
                    kind,
                    attributes: texts(point),
                    value: value.filter(|_| !is_absent),
                    start: nanoseconds(&point["startTimeUnixNano"]),
                    time: nanoseconds(&point["timeUnixNano"]),
                }
            }));
        }
    }
    all
}

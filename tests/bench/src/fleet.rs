//! One Prometheus that scrapes many exporters, each a process of its own on a simulated node of eight GPUs with eight owners: its
//! CPU, memory and bytes, first for the scrapes alone, then with the rules of `alerts` as well.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cost;
use super::daemon::{Daemon, Scraper, wait};
use super::pages;

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// Number of exporters
    #[arg(long, default_value_t = 300)]
    nodes: usize,
    /// Minutes without rules, and then with them
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    /// Interval of the exporters' publication; above one second the tiers of the sampler are slower as well, so that hundreds of
    /// exporters fit on a small machine
    #[arg(long, default_value = "10s")]
    publish: String,
    /// Prometheus
    #[arg(long, env = "PROMETHEUS")]
    prometheus: PathBuf,
    /// The program to measure
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Tiers of the sampler for hundreds of exporters on one machine.
const SLOW: [(&str, &str); 5] = [
    ("SAMPLER__FAST_INTERVAL", "10s"),
    ("SAMPLER__NORMAL_INTERVAL", "15s"),
    ("SAMPLER__SAMPLES_INTERVAL", "15s"),
    ("SAMPLER__SLOW_INTERVAL", "1m"),
    ("SAMPLER__RARE_INTERVAL", "10m"),
];
/// No answer on a machine with hundreds of exporters takes longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// Asks until there is an answer.
fn retried<T>(mut ask: impl FnMut() -> Result<T, Box<dyn Error>>) -> Result<T, Box<dyn Error>> {
    let started = Instant::now();
    loop {
        match ask() {
            Err(_) if started.elapsed() < PATIENCE => wait(Duration::from_millis(200)),
            answer => return answer,
        }
    }
}

/// A Prometheus that ends with its owner.
struct Prometheus {
    process: Child,
    addr: SocketAddr,
    dir: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    fn start(program: &Path, targets: &[SocketAddr]) -> Result<Prometheus, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let addr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        configure(dir.path(), targets, addr, "")?;
        let process = Command::new(program)
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={addr}"))
            .args(["--web.enable-lifecycle", "--web.enable-admin-api"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Prometheus { process, addr, dir })
    }

    fn pid(&self) -> Result<i32, Box<dyn Error>> {
        Ok(i32::try_from(self.process.id())?)
    }

    /// The single number of a query, once there is one.
    fn wait_number(&self, promql: &str) -> Result<f64, Box<dyn Error>> {
        retried(|| self.number(promql))
    }

    fn number(&self, promql: &str) -> Result<f64, Box<dyn Error>> {
        let query = promql.bytes().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "%{byte:02X}");
            text
        });
        let body = Scraper::patient(self.addr, PATIENCE)?.get(&format!("/api/v1/query?query={query}"), "")?.1;
        let answer: Value = serde_json::from_slice(&body)?;
        let value = answer["data"]["result"][0]["value"][1].as_str();
        Ok(value.ok_or_else(|| format!("no value of {promql}"))?.parse()?)
    }

    /// Writes all that it holds as one block; gives the bytes of its chunks and of its index, its samples and its series.
    fn block(&self) -> Result<[f64; 4], Box<dyn Error>> {
        let body = Scraper::patient(self.addr, PATIENCE)?.ask("POST", "/api/v1/admin/tsdb/snapshot", "")?.1;
        let answer: Value = serde_json::from_slice(&body)?;
        let name = answer["data"]["name"].as_str().ok_or("no snapshot")?;
        let mut sums = [0.0; 4];
        for block in fs::read_dir(self.dir.path().join("data/snapshots").join(name))? {
            let block = block?.path();
            let meta: Value = serde_json::from_str(&fs::read_to_string(block.join("meta.json"))?)?;
            let stat = |name: &str| meta["stats"][name].as_f64().unwrap_or(0.0);
            let found = [
                bytes(&block.join("chunks"))?,
                bytes(&block.join("index"))?,
                stat("numSamples"),
                stat("numSeries"),
            ];
            sums.iter_mut().zip(found).for_each(|(sum, one)| *sum += one);
        }
        Ok(sums)
    }
}

/// Bytes of a file, or of a folder's files.
fn bytes(path: &Path) -> Result<f64, Box<dyn Error>> {
    if path.is_file() {
        return Ok(fs::metadata(path)?.len() as f64);
    }
    let mut sum = 0.0;
    for entry in fs::read_dir(path)? {
        sum += bytes(&entry?.path())?;
    }
    Ok(sum)
}

fn configure(dir: &Path, targets: &[SocketAddr], own: SocketAddr, rules: &str) -> Result<(), Box<dyn Error>> {
    let targets: Vec<String> = targets.iter().map(|addr| format!("'{addr}'")).collect();
    let text = format!(
        "global: {{ scrape_interval: 15s, evaluation_interval: 15s }}\n{rules}scrape_configs:\n  \
         - job_name: gpu-node-exporter\n    static_configs:\n      - targets: [{}]\n  \
         - job_name: prometheus\n    static_configs:\n      - targets: ['{own}']\n",
        targets.join(", ")
    );
    Ok(fs::write(dir.join("prometheus.yml"), text)?)
}

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let (scenario, root) = pages::eight_owners(dir.path())?;
    let mut settings = vec![
        ("HOST__ROOT", root.as_str()),
        ("CANARY__MODE", "off"),
        ("METRICS__PUBLISH_INTERVAL", options.publish.as_str()),
    ];
    if options.publish != "1s" {
        settings.extend(SLOW);
    }
    // A few at a time: hundreds that look at the machine's topology at once leave no CPU for anything else. What is left then is the
    // sampler.
    let at_once = thread::available_parallelism()?.get().div_ceil(2);
    let mut nodes: Vec<Daemon> = Vec::new();
    while nodes.len() < options.nodes {
        let from = nodes.len();
        for _ in from..options.nodes.min(from + at_once) {
            nodes.push(Daemon::start_with(&scenario, options.binary.as_ref(), &settings)?);
        }
        wait(Duration::from_millis(300));
        for node in &nodes[from..] {
            retried(
                || if cost::children(node.pid()?)?.len() <= 1 { Ok(()) } else { Err("it starts".into()) },
            )?;
        }
    }
    let addrs: Vec<SocketAddr> = nodes.iter().map(|node| node.addr).collect();
    // The first publication without the tiers that come late has fewer series.
    wait(Duration::from_secs(70));
    let (series, text, compressed) = retried(|| pages::page(addrs[0]))?;
    println!(
        "fleet: {} exporters, scraped every 15 s, published every {}; a page of {series} series, {text} bytes as text, \
         {compressed} in gzip",
        options.nodes, options.publish
    );
    let server = Prometheus::start(&options.prometheus, &addrs)?;
    retried(|| {
        let up = server.number("count(up{job=\"gpu-node-exporter\"} == 1)")?;
        if up == options.nodes as f64 { Ok(()) } else { Err("not every exporter is up".into()) }
    })?;
    measure(&server, "scrapes alone", options)?;
    let rules = format!("rule_files: ['{}/*.rules.yml']\n", fs::canonicalize("alerts")?.display());
    configure(server.dir.path(), &addrs, server.addr, &rules)?;
    Scraper::patient(server.addr, PATIENCE)?.ask("POST", "/-/reload", "")?;
    measure(&server, "with the rules", options)?;

    let [chunks, index, samples, series] = server.block()?;
    let wal = bytes(&server.dir.path().join("data/wal"))?;
    println!("  a block of all that              {samples:10.0} samples of {series:.0} series");
    println!("  chunks                           {:10.2} bytes a sample", chunks / samples);
    println!("  index                            {:10.0} bytes a series", index / series);
    println!("  write-ahead log                  {:10.2} bytes a sample", wal / samples);
    let failed = "sum(count_over_time(up[1h])) - sum(sum_over_time(up[1h]))";
    println!("  scrapes that failed              {:10.0}", server.wait_number(failed)?);
    let slowest = "quantile(0.99, max_over_time(scrape_duration_seconds{job=\"gpu-node-exporter\"}[1h]))";
    println!("  slowest scrape, 99 % of nodes    {:10.3} s", server.wait_number(slowest)?);
    Ok(())
}

fn measure(server: &Prometheus, name: &str, options: &Options) -> Result<(), Box<dyn Error>> {
    // The first evaluation and the first scrapes are not the rule.
    wait(Duration::from_secs(30));
    let appended = "sum(prometheus_tsdb_head_samples_appended_total)";
    let (cpu, samples, started) =
        (cost::cpu_seconds(server.pid()?)?, server.wait_number(appended)?, Instant::now());
    wait(Duration::from_secs_f64(options.minutes * 60.0));
    let seconds = started.elapsed().as_secs_f64();
    let cpu = cost::cpu_seconds(server.pid()?)? - cpu;
    let rate = (server.wait_number(appended)? - samples) / seconds;
    let series = server.wait_number("prometheus_tsdb_head_series")?;
    let heap = server.wait_number("go_memstats_heap_inuse_bytes{job=\"prometheus\"}")?;
    let (now, peak) = cost::resident_mib(server.pid()?)?;
    println!("  {name}, {seconds:.0} s");
    println!("    CPU                            {:10.2} % of a core", cpu / seconds * 100.0);
    println!("    CPU a sample                   {:10.2} us", cpu / seconds / rate * 1e6);
    println!("    samples a second               {rate:10.0}");
    println!("    series in the head             {series:10.0}");
    println!(
        "    resident memory                {now:10.0} MiB, {peak:.0} at most: {:.1} KiB a series",
        peak * 1024.0 / series
    );
    println!("    heap in use                    {:10.0} MiB", heap / 1024.0 / 1024.0);
    Ok(())
}

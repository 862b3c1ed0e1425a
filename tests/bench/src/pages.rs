//! What a node's page has and costs, by its GPUs: series, bytes and CPU at default settings, a scrape every 15 s.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use simgpu::host::{Host, HostProcess};

use super::cost;
use super::daemon::{Daemon, Scraper, wait};

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// Seconds to measure for, all nodes at once
    #[arg(long, default_value_t = 45)]
    seconds: u64,
    /// The program to measure
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// No scrape takes longer, whatever else the machine does.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nodes: their name, GPUs, GPU instances of each.
const NODES: [(&str, usize, &[&str]); 8] = [
    ("1 GPU", 1, &[]),
    ("2 GPUs", 2, &[]),
    ("4 GPUs", 4, &[]),
    ("8 GPUs", 8, &[]),
    ("16 GPUs", 16, &[]),
    ("8 GPUs, 2 instances each", 8, &["3g.71gb"; 2]),
    ("8 GPUs, 7 instances each", 8, &["1g.18gb"; 7]),
    ("16 GPUs, 7 instances each", 16, &["1g.18gb"; 7]),
];

/// A daemon that is measured.
struct MeasuredNode {
    name: &'static str,
    daemon: Daemon,
    sampler: i32,
    cpu: f64,
}

impl MeasuredNode {
    /// CPU seconds without the simulator's own.
    fn spent(&self) -> Result<f64, Box<dyn Error>> {
        let processes = cost::cpu_seconds(self.daemon.pid()?)? + cost::cpu_seconds(self.sampler)?;
        Ok(processes - self.daemon.state.cpu_seconds())
    }
}

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut nodes = Vec::new();
    let mut start = |name, scenario: &Path, settings: &[(&str, &str)]| -> Result<(), Box<dyn Error>> {
        let daemon = Daemon::start_with(scenario, options.binary.as_ref(), settings)?;
        nodes.push(MeasuredNode { name, daemon, sampler: 0, cpu: 0.0 });
        Ok(())
    };
    for (name, gpus, instances) in NODES {
        let mut gpu = format!("[[gpu]]\nmodel = \"H200\"\ncount = {gpus}\nload = \"training\"\n");
        if !instances.is_empty() {
            writeln!(gpu, "mig = {instances:?}")?;
        }
        let file = dir.path().join(name);
        fs::write(&file, gpu)?;
        start(name, &file, &[])?;
    }
    let (eight, root) = eight_owners(dir.path())?;
    start("8 GPUs, 8 owners", &eight, &[("HOST__ROOT", &root)])?;
    start("the same, every group", &eight, &[("HOST__ROOT", &root), ("METRICS__GROUPS", "all")])?;

    // Whatever is read once a minute has been read.
    wait(Duration::from_secs(65));
    for node in &mut nodes {
        node.sampler = *cost::children(node.daemon.pid()?)?.first().ok_or("no sampler")?;
        node.cpu = node.spent()?;
    }
    let started = Instant::now();
    for _ in 0..options.seconds.div_ceil(15) {
        for node in &nodes {
            Scraper::patient(node.daemon.addr, PATIENCE)?.scrape()?;
        }
        wait(Duration::from_secs(15));
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("pages: default settings, a scrape every 15 s, {seconds:.0} s");
    println!("  {:28}{:>8}{:>10}{:>10}{:>10}", "node", "series", "text", "gzip", "CPU, %");
    for node in &nodes {
        let cpu = (node.spent()? - node.cpu) / seconds * 100.0;
        let (series, text, compressed) = page(node.daemon.addr)?;
        println!("  {:28}{series:>8}{text:>10}{compressed:>10}{cpu:>10.2}", node.name);
    }
    Ok(())
}

/// Series of a page, its bytes as text, and in gzip as Prometheus asks for it.
pub fn page(addr: SocketAddr) -> Result<(usize, usize, usize), Box<dyn Error>> {
    let mut scraper = Scraper::patient(addr, PATIENCE)?;
    let text = scraper.page()?.1;
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    Ok((series, text.len(), scraper.scrape()?.1))
}

/// The scenario of a node of eight GPUs, each with a process of an owner of its own, and the root of its host.
pub fn eight_owners(dir: &Path) -> Result<(PathBuf, String), Box<dyn Error>> {
    let host = Host::make(dir.join("root"))?;
    let mut text = String::new();
    for gpu in 0..8 {
        let pid = 4_200_000 + gpu;
        let cgroup = format!("/system.slice/job-{gpu}.service");
        host.process(&HostProcess {
            pid,
            name: "python3",
            cgroup: &cgroup,
            cpus: "0-15",
            uid: 1000,
            memory: [1 << 30, 0],
            started_ticks: 100,
        })?;
        let job = format!("{{ pid = {pid}, memory = \"20GiB\", type = \"compute\" }}");
        writeln!(text, "[[gpu]]\nmodel = \"H200\"\nload = \"training\"\nprocesses = [{job}]")?;
    }
    let root = host.root().to_str().ok_or("a path that is no text")?.to_owned();
    let path = dir.join("owners.toml");
    fs::write(&path, text)?;
    Ok((path, root))
}

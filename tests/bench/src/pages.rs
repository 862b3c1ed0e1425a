//! What a node's page has and costs, by its GPUs: series, bytes, CPU and memory at default settings, a scrape every 15 s.

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
    /// Seconds to measure each node for
    #[arg(long, default_value_t = 45)]
    seconds: u64,
    /// The program to measure
    #[arg(long)]
    binary: Option<PathBuf>,
}

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

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    println!("pages: default settings, no owners, a scrape every 15 s, {} s each", options.seconds);
    println!("  {:28}{:>8}{:>10}{:>10}{:>10}{:>10}", "node", "series", "text", "gzip", "CPU, %", "PSS, MiB");
    for (name, gpus, instances) in NODES {
        let mut gpu = format!("[[gpu]]\nmodel = \"H200\"\ncount = {gpus}\nload = \"training\"\n");
        if !instances.is_empty() {
            writeln!(gpu, "mig = {instances:?}")?;
        }
        row(name, &scenario(dir.path(), &gpu)?, &[], options)?;
    }
    let (eight, root) = eight_owners(dir.path())?;
    row("8 GPUs, 8 owners", &eight, &[("HOST__ROOT", &root)], options)?;
    row("the same, every group", &eight, &[("HOST__ROOT", &root), ("METRICS__GROUPS", "all")], options)
}

fn row(
    name: &str,
    scenario: &Path,
    settings: &[(&str, &str)],
    options: &Options,
) -> Result<(), Box<dyn Error>> {
    let daemon = Daemon::start_with(scenario, options.binary.as_ref(), settings)?;
    let serve = daemon.pid()?;
    // Whatever is read once a minute has been read.
    wait(Duration::from_secs(65));
    let sampler = *cost::children(serve)?.first().ok_or("no sampler")?;
    let spent = || -> Result<f64, Box<dyn Error>> {
        Ok(cost::cpu_seconds(serve)? + cost::cpu_seconds(sampler)? - daemon.state.cpu_seconds())
    };
    let (before, started) = (spent()?, Instant::now());
    for _ in 0..options.seconds.div_ceil(15) {
        Scraper::connect(daemon.addr)?.scrape()?;
        wait(Duration::from_secs(15));
    }
    let cpu = (spent()? - before) / started.elapsed().as_secs_f64() * 100.0;
    let pss = cost::pss_mib(serve)? + cost::pss_mib(sampler)?;
    let (series, text, compressed) = page(daemon.addr)?;
    println!("  {name:28}{series:>8}{text:>10}{compressed:>10}{cpu:>10.2}{pss:>10.1}");
    Ok(())
}

/// Series of a page, its bytes as text, and in gzip as Prometheus asks for it.
pub fn page(addr: SocketAddr) -> Result<(usize, usize, usize), Box<dyn Error>> {
    let mut scraper = Scraper::connect(addr)?;
    let text = scraper.page()?.1;
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    Ok((series, text.len(), scraper.scrape()?.1))
}

fn scenario(dir: &Path, text: &str) -> Result<PathBuf, Box<dyn Error>> {
    let path = dir.join("scenario.toml");
    fs::write(&path, text)?;
    Ok(path)
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
    Ok((scenario(dir, &text)?, root))
}

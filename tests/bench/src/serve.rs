//! The daemon at its default cadences on eight simulated GPUs, scraped by many at once.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::cost;

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// Scrapers, each once a second, each on its own kept connection
    #[arg(long, default_value_t = 50)]
    scrapers: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Scenario of the simulated node
    #[arg(long, default_value = "tests/scenarios/node-8xh200.toml")]
    scenario: PathBuf,
    /// The program to measure
    #[arg(long)]
    binary: Option<PathBuf>,
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL of the daemon closes the samplers' pipes, and they end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let library = dir.path().join("libnvidia-ml.so.1");
    symlink(simgpu::library_path().map_err(|e| e.to_string())?, &library)?;
    let state = simgpu::State::open(dir.path().join("sim")).map_err(|e| e.to_string())?;
    let child = Command::new(super::program(options.binary.as_ref())?)
        .args(["serve", "--listen", "127.0.0.1:0", "--nvml-library"])
        .arg(&library)
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .env("GPU_NODE_EXPORTER__CONTROL__SOCKET", dir.path().join("control.sock"))
        .env("GPU_SIM_SCENARIO", options.scenario.canonicalize()?)
        .env("GPU_SIM_STATE", dir.path().join("sim"))
        .stderr(Stdio::piped())
        .spawn()?;
    let mut daemon = Daemon(child);
    let stderr = daemon.0.stderr.take().ok_or("no stderr")?;
    let mut addr: Option<SocketAddr> = None;
    for line in BufReader::new(stderr).lines() {
        if let Some((_, rest)) = line?.split_once("serving http://") {
            addr = Some(rest.trim_end_matches('/').parse()?);
            break;
        }
    }
    let addr = addr.ok_or("the daemon does not serve")?;
    let serve = i32::try_from(daemon.0.id())?;

    // The first scrape of a format renders on the spot; then everything has settled.
    let first = Scraper::connect(addr)?.scrape()?;
    wait(Duration::from_secs(5));
    let samplers = cost::children(serve)?;
    let sampler = *samplers.first().ok_or("no sampler")?;
    println!(
        "serve: {} scrapers, once a second each, {} s, OpenMetrics in gzip, {}",
        options.scrapers,
        options.seconds,
        options.scenario.display()
    );
    let before = [cost::cpu_seconds(serve)?, cost::cpu_seconds(sampler)?, state.cpu_seconds()];
    let started = Instant::now();
    let (mut times, bytes, failed) = scrape_all(addr, options);
    let seconds = started.elapsed().as_secs_f64();
    let after = [cost::cpu_seconds(serve)?, cost::cpu_seconds(sampler)?, state.cpu_seconds()];
    times.sort_by(f64::total_cmp);
    let spent: Vec<f64> = before.iter().zip(after).map(|(b, a)| (a - b) / seconds * 100.0).collect();
    let pss = [cost::pss_mib(serve)?, cost::pss_mib(sampler)?];

    println!("  first scrape of the format     {:8.3} ms (excepted below)", first.0 * 1e3);
    println!("  scrapes                        {:8} ({failed} failed), {bytes} bytes each", times.len());
    println!("  scrape p50                     {:8.3} ms", cost::percentile(&times, 0.50) * 1e3);
    println!(
        "  scrape p99                     {:8.3} ms (target: under 1 ms)",
        cost::percentile(&times, 0.99) * 1e3
    );
    println!("  scrape max                     {:8.3} ms", cost::percentile(&times, 1.0) * 1e3);
    println!("  CPU, serve                     {:8.2} % of a core", spent[0]);
    println!("  CPU, sampler with simulator    {:8.2} % of a core", spent[1]);
    println!("  CPU, simulator's own           {:8.2} % of a core", spent[2]);
    println!(
        "  CPU, ours                      {:8.2} % of a core (budget: 1.5 %, scrapes of {} clients included)",
        spent[0] + spent[1] - spent[2],
        options.scrapers
    );
    println!(
        "  memory (PSS)                   {:8.1} MiB serve + {:.1} MiB sampler = {:.1} MiB (budget: 30 MiB)",
        pss[0],
        pss[1],
        pss[0] + pss[1]
    );
    Ok(())
}

fn scrape_all(addr: SocketAddr, options: &Options) -> (Vec<f64>, usize, u64) {
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let results: Vec<(Vec<f64>, usize, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.scrapers)
            .map(|n| {
                // Spread over the second, as scrapers of different servers are.
                let offset = Duration::from_secs(1) * n / options.scrapers;
                scope.spawn(move || scrape_until(addr, offset, until))
            })
            .collect();
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    let mut all = (Vec::new(), 0, 0);
    for (times, bytes, failed) in results {
        all.0.extend(times);
        all.1 = all.1.max(bytes);
        all.2 += failed;
    }
    all
}

fn scrape_until(addr: SocketAddr, offset: Duration, until: Instant) -> (Vec<f64>, usize, u64) {
    let (mut times, mut bytes, mut failed) = (Vec::new(), 0, 0);
    let mut next = Instant::now() + offset;
    let mut scraper = Scraper::connect(addr).ok();
    while next < until {
        wait(next.saturating_duration_since(Instant::now()));
        match scraper.as_mut().map(Scraper::scrape) {
            Some(Ok((seconds, length))) => {
                times.push(seconds);
                bytes = length;
            }
            _ => {
                failed += 1;
                scraper = Scraper::connect(addr).ok();
            }
        }
        next += Duration::from_secs(1);
    }
    (times, bytes, failed)
}

struct Scraper(BufReader<TcpStream>);

impl Scraper {
    fn connect(addr: SocketAddr) -> std::io::Result<Scraper> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Scraper(BufReader::with_capacity(256 * 1024, stream)))
    }

    /// Seconds from the request's first byte to the answer's last, and the length of its body.
    fn scrape(&mut self) -> std::io::Result<(f64, usize)> {
        const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: bench\r\nAccept-Encoding: gzip\r\n\
            Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n\r\n";
        let started = Instant::now();
        self.0.get_mut().write_all(REQUEST)?;
        let mut length = 0;
        let mut first = true;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            if first && !line.starts_with("HTTP/1.1 200") {
                return Err(std::io::Error::other(line));
            }
            first = false;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((started.elapsed().as_secs_f64(), length))
    }
}

fn wait(time: Duration) {
    std::thread::park_timeout(time);
}

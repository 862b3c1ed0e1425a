//! The daemon at its default cadences on eight simulated GPUs, scraped by many at once.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::cost;
use super::daemon::{Daemon, Scraper, wait};

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

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let daemon = Daemon::start(&options.scenario, options.binary.as_ref())?;
    let (addr, serve, state) = (daemon.addr, daemon.pid()?, &daemon.state);

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

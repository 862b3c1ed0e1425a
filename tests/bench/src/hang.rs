//! What a scraper sees while a driver call hangs: on one GPU, then with the library's lock held. At the
//! product's own cadences and deadlines.

use std::error::Error;
use std::time::{Duration, Instant};

use super::cost;
use super::daemon::{Daemon, Scraper, wait};

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// Seconds the call hangs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The program to measure
    #[arg(long)]
    binary: Option<std::path::PathBuf>,
}

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    one_gpu(options)?;
    whole_driver(options)
}

/// What one look saw.
struct Look {
    took: f64,
    page: String,
}

impl Look {
    fn at(scraper: &mut Scraper) -> std::io::Result<Look> {
        let (took, page) = scraper.page()?;
        Ok(Look { took, page })
    }

    /// Values of this metric, by the lines that hold all these texts.
    fn values(&self, name: &str, with: &[&str]) -> Vec<f64> {
        self.page
            .lines()
            .filter(|l| l.starts_with(name) && with.iter().all(|w| l.contains(w)))
            .filter_map(|l| l.rsplit(' ').next()?.parse().ok())
            .collect()
    }

    /// Age of the oldest fast or normal value of a GPU other than `except`.
    fn oldest_but(&self, except: &str, now: f64) -> f64 {
        let name = "gpu_exporter_sample_timestamp_seconds";
        let lines = self.page.lines().filter(|l| l.starts_with(name) && !l.contains(except));
        let often = lines.filter(|l| l.contains("tier=\"fast\"") || l.contains("tier=\"normal\""));
        let stamps = often.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
        stamps.map(|t| now - t).fold(0.0, f64::max)
    }
}

fn one_gpu(options: &Options) -> Result<(), Box<dyn Error>> {
    let daemon = Daemon::start("tests/scenarios/hang-gpu3.toml".as_ref(), options.binary.as_ref())?;
    let mut scraper = Scraper::connect(daemon.addr)?;
    wait(Duration::from_secs(5));
    let samplers = cost::children(daemon.pid()?)?;
    println!("hang: GPU 3's driver call does not return for {} s, a look every 50 ms", options.seconds);
    daemon.state.open_gate("hang").map_err(|e| e.to_string())?;
    let started = Instant::now();
    let (mut slowest, mut oldest, mut gone, mut stuck) = (0.0f64, 0.0f64, None, 0.0f64);
    while started.elapsed() < Duration::from_secs(options.seconds) {
        let look = Look::at(&mut scraper)?;
        slowest = slowest.max(look.took);
        oldest = oldest.max(look.oldest_but("gpu=\"3\"", model::clock::unix_seconds()));
        if look.values("gpu_power_watts", &["gpu=\"3\""]).is_empty() {
            gone.get_or_insert(started.elapsed().as_secs_f64());
        }
        let seconds = look.values("gpu_exporter_driver_call_stuck_seconds{", &["gpu=\"3\""]);
        stuck = seconds.into_iter().fold(stuck, f64::max);
        wait(Duration::from_millis(50));
    }
    daemon.state.open_gate("release").map_err(|e| e.to_string())?;
    let released = Instant::now();
    while Look::at(&mut scraper)?.values("gpu_power_watts", &["gpu=\"3\""]).is_empty() {
        wait(Duration::from_millis(20));
    }
    println!("  slowest /metrics               {:8.2} ms (target: 10 ms)", slowest * 1e3);
    println!("  oldest value of the other seven{oldest:8.2} s (target: 2 s)");
    println!(
        "  GPU 3's values gone after      {:8.2} s (deadline: 3 s, and one publication)",
        gone.unwrap_or(f64::NAN)
    );
    println!("  stall metric rose to           {stuck:8.1} s");
    println!("  GPU 3 back after the return    {:8.2} s", released.elapsed().as_secs_f64());
    println!("  the same sampler process       {:>8}", cost::children(daemon.pid()?)? == samplers);
    Ok(())
}

fn whole_driver(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut daemon = Daemon::start("tests/scenarios/hang-lock.toml".as_ref(), options.binary.as_ref())?;
    let mut scraper = Scraper::connect(daemon.addr)?;
    wait(Duration::from_secs(5));
    println!("hang: the call holds the library's lock for {} s", options.seconds);
    daemon.state.open_gate("hang").map_err(|e| e.to_string())?;
    let started = Instant::now();
    let (mut slowest, mut gone, mut stuck, mut most) = (0.0f64, None, None, 0);
    while started.elapsed() < Duration::from_secs(options.seconds) {
        let look = Look::at(&mut scraper)?;
        slowest = slowest.max(look.took);
        if look.values("gpu_power_watts", &[]).is_empty() {
            gone.get_or_insert(started.elapsed().as_secs_f64());
        }
        if look.values("gpu_driver_stuck", &[]) == [1.0] {
            stuck.get_or_insert(started.elapsed().as_secs_f64());
        }
        most = most.max(cost::children(daemon.pid()?)?.len());
        wait(Duration::from_millis(50));
    }
    let left = cost::children(daemon.pid()?)?.len();
    daemon.state.open_gate("release").map_err(|e| e.to_string())?;
    let released = Instant::now();
    while Look::at(&mut scraper)?.values("gpu_up", &[]) != [1.0; 8] {
        wait(Duration::from_millis(20));
    }
    println!("  slowest /metrics               {:8.2} ms (target: 10 ms)", slowest * 1e3);
    println!(
        "  all values gone after          {:8.2} s (deadline: 3 s, and one publication)",
        gone.unwrap_or(f64::NAN)
    );
    println!(
        "  gpu_driver_stuck after         {:8.2} s (3 s, and 20 s in which a start may take)",
        stuck.unwrap_or(f64::NAN)
    );
    println!("  sampler processes              {most:8} at most, {left} at the end");
    println!("  all back after the return      {:8.2} s", released.elapsed().as_secs_f64());
    daemon.state.close_gate("release").map_err(|e| e.to_string())?;
    daemon.state.close_gate("hang").map_err(|e| e.to_string())?;
    daemon.state.open_gate("hang").map_err(|e| e.to_string())?;
    wait(Duration::from_secs(4));
    let (seconds, status) = daemon.terminate()?;
    println!("  SIGTERM while it hangs again   {seconds:8.2} s, {status} (target: 5 s)");
    daemon.state.open_gate("release").map_err(|e| e.to_string())?;
    Ok(())
}

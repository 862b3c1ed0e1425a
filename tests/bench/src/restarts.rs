//! The whole program at its shortest intervals while the driver goes and comes back again and again.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::daemon::{Daemon, Scraper, wait};
use super::soak::{GROWTH, SCENARIO};
use super::{cost, soak};

/// As often as the settings allow, and as a busy simulated node can bear.
const SETTINGS: [(&str, &str); 9] = [
    ("SAMPLER__FAST_INTERVAL", "10ms"),
    ("SAMPLER__NORMAL_INTERVAL", "50ms"),
    ("SAMPLER__SAMPLES_INTERVAL", "100ms"),
    ("SAMPLER__SLOW_INTERVAL", "100ms"),
    ("SAMPLER__RARE_INTERVAL", "200ms"),
    ("SAMPLER__NVLINK_INTERVAL", "200ms"),
    ("SAMPLER__DRIVER_RETRY_INTERVAL", "50ms"),
    ("METRICS__PUBLISH_INTERVAL", "50ms"),
    ("PROCESSES__PER_PROCESS", "true"),
];
/// How long the driver stays, and how long it is away.
const STAYS: Duration = Duration::from_millis(1500);
const AWAY: Duration = Duration::from_millis(300);
/// How long the last sampler is watched, in so many steps of which the first is its warm-up.
const LAST: Duration = Duration::from_secs(10);
const STEPS: u32 = 3;
/// Restarts between two lines.
const LINE: u32 = 6;

/// Runs and prints.
pub fn run(restarts: u32, binary: Option<&PathBuf>) -> Result<(), Box<dyn Error>> {
    let daemon = Daemon::start_with(soak::SCENARIO.as_ref(), binary, &SETTINGS)?;
    let serve = daemon.pid()?;
    let mut scraper = Scraper::connect(daemon.addr)?;
    println!("soak: {restarts} restarts of the driver, shortest intervals, {SCENARIO}");
    println!("  MiB                          serve: RSS, PSS, own   sampler: RSS, PSS, own");
    up(&mut scraper)?;
    line("at the start", serve)?;
    let (mut warm, mut end) = (None, 0.0);
    for restart in 1..=restarts {
        for gate in ["gone", if restart.is_multiple_of(2) { "shape0" } else { "shape1" }] {
            daemon.state.close_gate(gate).map_err(|e| e.to_string())?;
            daemon.state.open_gate(gate).map_err(|e| e.to_string())?;
        }
        while !cost::children(serve)?.is_empty() {
            wait(Duration::from_millis(5));
        }
        wait(AWAY);
        daemon.state.close_gate("gone").map_err(|e| e.to_string())?;
        up(&mut scraper)?;
        wait(STAYS);
        if restart.is_multiple_of(LINE) {
            end = line(&format!("after {restart} restarts"), serve)?;
            warm.get_or_insert(end);
        }
    }
    let sampler = *cost::children(serve)?.first().ok_or("no sampler")?;
    let (mut of_sampler, mut before) = (0.0, None);
    for step in 1..=STEPS {
        wait(LAST);
        end = line(&format!("{} s later", (LAST * step).as_secs()), serve)?;
        let now = cost::own_mib(sampler)?;
        of_sampler = now - *before.get_or_insert(now);
    }
    let of_serve = end - warm.unwrap_or(end);
    println!(
        "  own memory grew by           {of_serve:+8.2} MiB of serve after {LINE} restarts, {of_sampler:+.2} MiB of the last sampler"
    );
    if of_serve > GROWTH || of_sampler > GROWTH {
        return Err("memory grew".into());
    }
    Ok(())
}

/// Prints what the processes take; gives the daemon's own memory in MiB. RSS and PSS also count pages of files,
/// which come, go and are shared.
fn line(when: &str, serve: i32) -> Result<f64, Box<dyn Error>> {
    let sampler = *cost::children(serve)?.first().ok_or("no sampler")?;
    let mut text = String::new();
    for pid in [serve, sampler] {
        let (rss, pss, own) = (cost::rss_mib(pid)?, cost::pss_mib(pid)?, cost::own_mib(pid)?);
        text.push_str(&format!(" {rss:8.2} {pss:6.2} {own:6.2}"));
    }
    println!("  {when:<28}{text}");
    cost::own_mib(serve)
}

/// Waits until all GPUs are up.
fn up(scraper: &mut Scraper) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (_, page) = scraper.page()?;
        let up = page.lines().filter(|l| l.starts_with("gpu_up{") && l.ends_with(" 1")).count();
        if up == 8 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{up} GPUs are up").into());
        }
        wait(Duration::from_millis(20));
    }
}

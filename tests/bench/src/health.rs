//! How long `gpu-node-exporter health` takes beside a driver that hangs.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::cost;
use super::daemon::{Daemon, wait};

/// At the 99th percentile, with the start and the end of the process.
const TARGET_MILLIS: f64 = 50.0;

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// Number of runs
    #[arg(long, default_value_t = 1000)]
    runs: usize,
    /// The program to measure
    #[arg(long)]
    binary: Option<std::path::PathBuf>,
}

/// Runs, prints, and fails above the target or with an exit code of another verdict.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let daemon = Daemon::start("tests/scenarios/hang-lock.toml".as_ref(), options.binary.as_ref())?;
    wait(Duration::from_secs(5));
    daemon.state.open_gate("hang").map_err(|e| e.to_string())?;
    let program = super::program(options.binary.as_ref())?;
    let run = |argument: &str| -> Result<(f64, Option<i32>, String), Box<dyn Error>> {
        let mut command = Command::new(&program);
        command.arg(argument).envs(daemon.sockets()).stderr(Stdio::null());
        let started = Instant::now();
        let output = command.output()?;
        let took = started.elapsed().as_secs_f64() * 1e3;
        Ok((took, output.status.code(), String::from_utf8(output.stdout)?))
    };
    // Until the verdict says so, as after two deadlines of a call.
    let started = Instant::now();
    while !run("health")?.2.contains("driver is stuck") {
        if started.elapsed() > Duration::from_secs(60) {
            return Err("the driver does not count as stuck".into());
        }
        wait(Duration::from_millis(100));
    }
    let (mut times, mut bare, mut wrong, mut line) = (Vec::new(), Vec::new(), 0, String::new());
    for _ in 0..options.runs {
        let (took, code, text) = run("health")?;
        times.push(took);
        wrong += usize::from(code != Some(2));
        line = text;
        // What the machine takes to start the program and end it.
        bare.push(run("--version")?.0);
    }
    // What hangs would outlive the daemon.
    daemon.state.open_gate("release").map_err(|e| e.to_string())?;
    println!("health: {} runs beside a driver that hangs with its lock held, process included", options.runs);
    println!("  answer                {}", line.trim_end());
    println!("  not exit code 2       {wrong:8}");
    let percentiles = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        [0.5, 0.99, 1.0].map(|share| cost::percentile(&times, share))
    };
    let (health, version) = (percentiles(times), percentiles(bare));
    for (what, [p50, p99, max]) in [("p50, p99, max        ", health), ("`--version` in turns ", version)] {
        println!("  {what} {p50:8.1} {p99:.1} {max:.1} ms (target: {TARGET_MILLIS} ms)");
    }
    if wrong > 0 {
        return Err(format!("{wrong} of {} runs have another exit code than 2", options.runs).into());
    }
    let p99 = health[1];
    if p99.is_nan() || p99 >= TARGET_MILLIS {
        return Err(format!("p99 is {p99:.1} ms, the target is {TARGET_MILLIS} ms").into());
    }
    Ok(())
}

//! What `assess` costs the program that it watches: paired runs of `tests/data/assess/hot.rs`, with and without, in turn.
//! A proof: it fails unless the wall time's increase is proven to be under the limit. CPU time, with that of `assess` itself, is
//! shown beside it: a busy machine disturbs it less.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// Pairs of runs, 7 s each; the noise of two virtual CPUs takes so many
    #[arg(long, default_value_t = 150)]
    pairs: usize,
    /// Rounds of work of a run, a quarter of a second each
    #[arg(long, default_value_t = 12)]
    rounds: u32,
    /// Most that a run may take longer, in percent
    #[arg(long, default_value_t = 2.0)]
    limit: f64,
    /// The program to measure
    #[arg(long)]
    binary: Option<std::path::PathBuf>,
}

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let program = super::program(options.binary.as_ref())?;
    let dir = tempfile::TempDir::new()?;
    let hot = dir.path().join("hot");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/assess/hot.rs");
    let compiled =
        Command::new("rustc").args(["--edition", "2024", "-O", "-o"]).arg(&hot).arg(source).status()?;
    if !compiled.success() {
        return Err("rustc fails".into());
    }
    let rounds = options.rounds.to_string();
    let plain = || {
        let mut command = Command::new(&hot);
        command.arg(&rounds);
        timed(command)
    };
    let watched = || {
        let mut command = Command::new(&program);
        command.args(["assess", "--out", "/dev/null", "--"]).arg(&hot).arg(&rounds);
        timed(command)
    };
    plain()?;
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for pair in 0..options.pairs {
        // The first of a pair is each in turn: what warms up or drifts touches both.
        let (without, with) = match pair % 2 {
            0 => {
                let without = plain()?;
                (without, watched()?)
            }
            _ => {
                let with = watched()?;
                (plain()?, with)
            }
        };
        wall.push((with.0 / without.0 - 1.0) * 100.0);
        cpu.push((with.1 / without.1 - 1.0) * 100.0);
    }
    println!("watched: {} pairs of {rounds} rounds, increases in % (median, 95 % interval)", options.pairs);
    let interval = |name: &str, increases: &mut [f64]| {
        increases.sort_by(f64::total_cmp);
        let (low, high) = median_interval(increases).ok_or("more pairs are needed")?;
        let median = increases[increases.len() / 2];
        println!("watched: {name} {median:+.2} ({low:+.2} to {high:+.2})");
        Ok::<_, &str>((low, high))
    };
    interval("CPU time ", &mut cpu)?;
    let (low, high) = interval("wall time", &mut wall)?;
    match () {
        () if high < options.limit => Ok(()),
        () if low > options.limit => Err(format!("costs more than {} %", options.limit).into()),
        () => Err(format!(
            "neither above nor below {} %: run on a quiet machine, or more --pairs",
            options.limit
        )
        .into()),
    }
}

/// Seconds and CPU seconds of a run. The loader, the start of `assess` and its report count too.
fn timed(mut command: Command) -> Result<(f64, f64), Box<dyn Error>> {
    let cpu = || -> Result<i64, Box<dyn Error>> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok(usage.user_time().num_microseconds() + usage.system_time().num_microseconds())
    };
    let (before, started) = (cpu()?, Instant::now());
    let status = command.stdout(Stdio::null()).status()?;
    let (took, cpu) = (started.elapsed().as_secs_f64(), (cpu()? - before) as f64 / 1e6);
    if status.success() { Ok((took, cpu)) } else { Err(format!("{command:?}: {status}").into()) }
}

/// Interval of the median at 95 %, by the binomial distribution's normal approximation: no assumption on the noise.
fn median_interval(sorted: &[f64]) -> Option<(f64, f64)> {
    let count = sorted.len() as f64;
    let half = 1.96 * count.sqrt() / 2.0;
    let (low, high) = ((count / 2.0 - half).floor(), (count / 2.0 + half).ceil());
    (low >= 0.0).then_some(())?;
    Some((sorted[low as usize], sorted[(high as usize).min(sorted.len() - 1)]))
}

//! What `assess` costs the program that it watches: paired runs of `tests/data/assess/hot.rs`, with and without, in turn.
//! A proof: it fails unless the wall time's increase is proven to be under the limit.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// Pairs of runs
    #[arg(long, default_value_t = 30)]
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
    let mut increases = Vec::new();
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
        increases.push((with / without - 1.0) * 100.0);
    }
    increases.sort_by(f64::total_cmp);
    let (low, high) = median_interval(&increases).ok_or("more pairs are needed")?;
    let median = increases[increases.len() / 2];
    println!(
        "watched: {} pairs of {} rounds: wall time {median:+.2} % (median; 95 % interval {low:+.2} to {high:+.2})",
        increases.len(),
        options.rounds
    );
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

/// Seconds of a run. The loader, the start of `assess` and its report count too.
fn timed(mut command: Command) -> Result<f64, Box<dyn Error>> {
    let started = Instant::now();
    let status = command.stdout(Stdio::null()).status()?;
    let took = started.elapsed().as_secs_f64();
    if status.success() { Ok(took) } else { Err(format!("{command:?}: {status}").into()) }
}

/// Interval of the median at 95 %, by the binomial distribution's normal approximation: no assumption on the noise.
fn median_interval(sorted: &[f64]) -> Option<(f64, f64)> {
    let count = sorted.len() as f64;
    let half = 1.96 * count.sqrt() / 2.0;
    let (low, high) = ((count / 2.0 - half).floor(), (count / 2.0 + half).ceil());
    (low >= 0.0).then_some(())?;
    Some((sorted[low as usize], sorted[(high as usize).min(sorted.len() - 1)]))
}

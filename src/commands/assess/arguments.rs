//! Command line of `assess`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use assess::compare::CompareTarget;
use assess::report::AssessInputs;
use assess::roofline::{GPUS, GpuRoof};
use assess::verdict::{Coupling, SplitAnswers};
use clap::{ArgGroup, Args, ValueEnum};

/// Estimate whether a program would benefit from a GPU, and whether a port paid off
///
/// Runs the program with hardware counters and samples of its functions, or watches a running program. Needs no GPU, no
/// daemon and no configuration. Passes the program's output and exit code through.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("../help/assess.txt").trim_end(), group = ArgGroup::new("what").required(true).args(["command", "pid", "pod", "job", "read", "compare"]))]
pub(crate) struct AssessArguments {
    /// Program to run, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// Watch a running process and its children
    #[arg(long)]
    pub pid: Option<u32>,
    /// Watch the processes of a pod, selected by name or UID
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pub pod: Option<String>,
    /// Watch the processes of a Slurm job
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Report on the newest run of a recording instead of running a program
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    pub read: Option<PathBuf>,
    /// Compare two recordings, from before and after a change
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"])]
    pub compare: Option<Vec<PathBuf>>,

    /// Time to watch a running program
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = some_time)]
    pub duration: Duration,
    /// Show the elapsed time on standard error if it is a terminal (always shown with --pid, --pod and --job)
    #[arg(long, requires = "command")]
    pub progress: bool,
    /// Output format; svg draws the roofline
    #[arg(long, value_enum, default_value = "text")]
    pub format: AssessFormat,
    /// Write the report to this file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Append the counts to this recording, for --compare
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub record: Option<PathBuf>,
    /// Target that AFTER must reach: a change such as `wall<=-20%`, or a value such as `llc_hit>=90%`; the
    /// names are wall, items, llc_hit and utilization
    #[arg(long, value_name = "TARGET", requires = "compare")]
    pub target: Vec<CompareTarget>,

    /// Number of independent items that one run processes
    #[arg(long, value_name = "N", value_parser = positive)]
    pub items: Option<f64>,
    /// p99 latency budget of the program
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub p99: Option<Duration>,
    /// Coupling between the GPU part and the rest of the program
    #[arg(long, value_enum)]
    pub coupling: Option<CouplingArgument>,
    /// Bytes that one call between the two parts would exchange, for example 40kB
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub exchange: Option<f64>,
    /// Function that would move to the GPU [default: every function with at least a tenth of the time]
    #[arg(long = "move", value_name = "FUNCTION")]
    pub moved: Vec<String>,
    /// Speed-up factor of these functions on the GPU
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub gain: Option<f64>,
    /// GPU of the roofline
    #[arg(long, default_value = "h200", value_parser = GPUS.map(|gpu| gpu.name))]
    pub gpu: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AssessFormat {
    /// One page of text for a terminal
    Text,
    /// One JSON document, for programs
    Json,
    /// Roofline as an SVG image
    Svg,
}

/// Command-line values of [`Coupling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CouplingArgument {
    /// One call with one answer
    Loose,
    /// The parts share state or exchange data within a step
    Tight,
}

impl AssessArguments {
    pub fn inputs(&self) -> AssessInputs {
        AssessInputs {
            split: SplitAnswers {
                p99_seconds: self.p99.map(|p99| p99.as_secs_f64()),
                coupling: self.coupling.map(|coupling| match coupling {
                    CouplingArgument::Loose => Coupling::Loose,
                    CouplingArgument::Tight => Coupling::Tight,
                }),
                exchange_bytes: self.exchange,
            },
            moved: self.moved.clone(),
            gain: self.gain,
        }
    }

    pub fn roof(&self) -> GpuRoof {
        GPUS.into_iter().find(|gpu| gpu.name == self.gpu).unwrap_or(GPUS[0])
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("expected a number above 0".into()) }
}

fn some_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time >= Duration::from_millis(10) { Ok(time) } else { Err("expected at least 10 ms".into()) }
}

fn bytes(text: &str) -> Result<f64, String> {
    const UNITS: [(&str, f64); 6] =
        [("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("KiB", 1024.0), ("MiB", 1048576.0), ("B", 1.0)];
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim(), *bytes)));
    let (number, unit) = unit.unwrap_or((text, 1.0));
    positive(number).map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        let read = ["40kB", "1.5 MB", "64KiB", "12B", "100"].map(|text| bytes(text).unwrap());
        assert_eq!(read, [40e3, 1.5e6, 65536.0, 12.0, 100.0]);
        assert!(some_time("0s").is_err() && some_time("6s").is_ok());
        assert!(bytes("kB").is_err() && bytes("-1").is_err() && positive("inf").is_err());
    }
}

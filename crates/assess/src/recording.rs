//! Counts of a run, and the format of a recording: one line of JSON per run, with a format version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::flops::Precision;

/// Counts of one run of a program, or of one span of watching a running program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunCounts {
    /// Command line, or the watched pod, job or process.
    pub subject: String,
    #[serde(default)]
    pub processor: String,
    /// True if the counts were computed from known operation counts of the program instead of measured.
    #[serde(default)]
    pub computed: bool,
    pub wall_seconds: f64,
    /// CPU time of all threads and children.
    pub cpu_seconds: Option<f64>,
    /// Number of CPUs that the program may use.
    pub cpus: Option<f64>,
    /// Maximum number of threads that existed at the same time.
    pub threads: Option<u64>,
    /// Number of independent items that one run processes (`--items`).
    pub items: Option<f64>,
    pub counts: PmuCounts,
    /// Counts from the kernel's accounting of children, which needs no PMU.
    #[serde(default)]
    pub system: Option<SystemCounts>,
    /// Functions by their share of CPU time.
    pub hot: Option<HotFunctions>,
    /// Values that were not measured, with the reason.
    #[serde(default)]
    pub not_measured: BTreeMap<String, String>,
    /// Number of the watch that the span belongs to; `None` for a run of a program.
    #[serde(default)]
    pub watch: Option<u64>,
    /// Exit code, or the signal as a negative number.
    pub exit: Option<i32>,
}

/// Counts of the processor. A count is `None` if it was not measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PmuCounts {
    pub cycles: Option<f64>,
    pub instructions: Option<f64>,
    pub branches: Option<f64>,
    pub branch_misses: Option<f64>,
    pub llc_references: Option<f64>,
    pub llc_misses: Option<f64>,
    /// Cache lines from memory, on processors that count them separately from lines of other caches.
    #[serde(default)]
    pub memory_fills: Option<f64>,
    /// Floating-point operations by precision; empty if they were not counted.
    #[serde(default)]
    pub flops: BTreeMap<Precision, f64>,
    /// Minimum fraction of the time in which an event was counted. The counts are scaled by this fraction.
    pub counted_ratio: Option<f64>,
}

/// Counts of the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SystemCounts {
    /// Page faults that needed no disk access.
    pub minor_faults: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// Context switches because the program waited.
    pub voluntary_switches: u64,
    /// Context switches because other work needed the CPU.
    pub involuntary_switches: u64,
}

impl SystemCounts {
    /// Returns the difference to an earlier reading.
    pub fn since(&self, before: &SystemCounts) -> SystemCounts {
        SystemCounts {
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(before.involuntary_switches),
        }
    }
}

/// Functions by their samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotFunctions {
    /// Samples per second of CPU time.
    pub hertz: u64,
    pub samples: u64,
    /// Samples that the kernel dropped.
    pub lost: u64,
    /// True if the samples include time in the kernel.
    pub with_kernel: bool,
    /// Samples in code without a name.
    pub unnamed: u64,
    /// Samples in files that could not be read; also part of `unnamed`.
    #[serde(default)]
    pub unreadable: u64,
    /// Functions above the cut-off, in descending order of samples.
    pub functions: Vec<HotFunction>,
}

/// One function and its share of the samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotFunction {
    pub name: String,
    /// File that contains the function.
    pub file: String,
    pub samples: u64,
    /// Share of all samples, without the functions that this function calls.
    pub share: f64,
    /// Callers by frame pointer, with their share of the samples of this function, in descending order.
    pub callers: Vec<CallerShare>,
}

/// Caller and its share of the samples of the called function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallerShare {
    pub name: String,
    pub share: f64,
}

impl HotFunctions {
    /// Returns the fraction of the CPU time that the samples cover.
    pub fn seen(&self, cpu_seconds: Option<f64>) -> Option<f64> {
        let expected = cpu_seconds? * self.hertz as f64;
        (expected > 0.0).then(|| (self.samples as f64 / expected).min(1.0))
    }
}

/// Name of all time in the kernel.
pub const KERNEL: &str = "[kernel]";
/// Minimum share of the samples. Functions below it are left out.
pub const CUT_OFF: f64 = 0.005;

/// Version of the line format. Versions after this one may change the meaning of a name.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct RecordedLine<R> {
    #[serde(default = "first_version")]
    recording: u32,
    #[serde(flatten)]
    run: R,
}

fn first_version() -> u32 {
    1
}

/// Parses a recording. Errors contain the line number.
pub fn parse(text: &str) -> Result<Vec<RunCounts>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let runs: Result<Vec<RunCounts>, String> = lines
        .map(|(at, line)| parse_line(line).map_err(|error| format!("line {}: {error}", at + 1)))
        .collect();
    runs.and_then(|runs| if runs.is_empty() { Err("the recording has no run".into()) } else { Ok(runs) })
}

/// Returns the newest run. For a running program, adds up all spans of the newest watch.
pub fn newest(mut runs: Vec<RunCounts>) -> Option<RunCounts> {
    let last = runs.pop()?;
    let Some(watch) = last.watch else { return Some(last) };
    let spans = runs.iter().rev().take_while(|run| run.watch == Some(watch));
    Some(spans.fold(last, |whole, span| RunCounts {
        wall_seconds: whole.wall_seconds + span.wall_seconds,
        cpu_seconds: both(whole.cpu_seconds, span.cpu_seconds),
        threads: whole.threads.max(span.threads),
        items: both(whole.items, span.items),
        counts: whole.counts.with(&span.counts),
        not_measured: span.not_measured.clone().into_iter().chain(whole.not_measured).collect(),
        ..whole
    }))
}

/// Returns the sum if both values were measured.
fn both(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? + b?)
}

impl PmuCounts {
    fn with(&self, other: &PmuCounts) -> PmuCounts {
        let kinds = self.flops.keys().eq(other.flops.keys());
        let flops = self.flops.iter().filter(|_| kinds);
        PmuCounts {
            cycles: both(self.cycles, other.cycles),
            instructions: both(self.instructions, other.instructions),
            branches: both(self.branches, other.branches),
            branch_misses: both(self.branch_misses, other.branch_misses),
            llc_references: both(self.llc_references, other.llc_references),
            llc_misses: both(self.llc_misses, other.llc_misses),
            memory_fills: both(self.memory_fills, other.memory_fills),
            flops: flops.map(|(of, flops)| (*of, flops + other.flops[of])).collect(),
            counted_ratio: [self.counted_ratio, other.counted_ratio].into_iter().flatten().reduce(f64::min),
        }
    }
}

fn parse_line(line: &str) -> Result<RunCounts, String> {
    let RecordedLine { recording, run } =
        serde_json::from_str::<RecordedLine<serde_json::Value>>(line).map_err(|error| error.to_string())?;
    if recording > VERSION {
        return Err(format!("version {recording} is newer than version {VERSION}, which this program reads"));
    }
    serde_json::from_value(run).map_err(|error| error.to_string())
}

/// Formats one line of a recording.
pub fn line(run: &RunCounts) -> Result<String, String> {
    let line = RecordedLine { recording: VERSION, run };
    serde_json::to_string(&line).map(|line| line + "\n").map_err(|error| error.to_string())
}

//! What was counted of one run, as a recording keeps it: a line of JSON a run, with the version of its form.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::flops::Precision;

/// One run of a program, or one span of a running owner.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunCounts {
    /// The command line, or the owner.
    pub subject: String,
    /// Name of the processor.
    #[serde(default)]
    pub processor: String,
    /// Counted by arithmetic from the known operations of a program, and not measured.
    #[serde(default)]
    pub computed: bool,
    pub wall_seconds: f64,
    /// CPU time of all its threads and children.
    pub cpu_seconds: Option<f64>,
    /// CPUs that it may run on.
    pub cpus: Option<f64>,
    /// Most threads seen at one moment.
    pub threads: Option<u64>,
    /// Items that one run works on, each independent of the others (`--items`).
    pub items: Option<f64>,
    pub counts: PmuCounts,
    /// By the kernel's account of children, without a PMU.
    #[serde(default)]
    pub system: Option<SystemCounts>,
    /// Functions by their share of CPU time.
    pub hot: Option<HotFunctions>,
    /// What was not measured, and why.
    #[serde(default)]
    pub not_measured: BTreeMap<String, String>,
    /// Which watch of an owner the span is of.
    #[serde(default)]
    pub watch: Option<u64>,
    /// How it ended: exit code, or the signal as a negative number.
    pub exit: Option<i32>,
}

/// What the processor counted. Absent: not measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PmuCounts {
    pub cycles: Option<f64>,
    pub instructions: Option<f64>,
    pub branches: Option<f64>,
    pub branch_misses: Option<f64>,
    pub llc_references: Option<f64>,
    pub llc_misses: Option<f64>,
    /// Lines from memory, where the processor tells them from those of other caches.
    #[serde(default)]
    pub memory_fills: Option<f64>,
    /// Floating-point operations by precision; empty where they were not counted.
    #[serde(default)]
    pub flops: BTreeMap<Precision, f64>,
    /// Least share of the time in which an event was counted: the counts are scaled by it.
    pub counted_ratio: Option<f64>,
}

/// What the system did for the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SystemCounts {
    /// Pages that were there or only had to be cleared.
    pub minor_faults: u64,
    /// Pages that were read from a disk.
    pub major_faults: u64,
    /// It waited for something.
    pub voluntary_switches: u64,
    /// Others wanted its CPU.
    pub involuntary_switches: u64,
}

impl SystemCounts {
    /// What was counted between two readings.
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
    /// Samples a second of CPU time.
    pub hertz: u64,
    pub samples: u64,
    /// Samples that the kernel dropped.
    pub lost: u64,
    /// Whether time in the kernel is among them.
    pub with_kernel: bool,
    /// Samples in code without a name.
    pub unnamed: u64,
    /// Those of them in files that could not be read.
    #[serde(default)]
    pub unreadable: u64,
    /// In falling order, those above the cut-off.
    pub functions: Vec<HotFunction>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotFunction {
    pub name: String,
    /// The file that it is in.
    pub file: String,
    pub samples: u64,
    /// Of all samples, its own without those of functions that it calls.
    pub share: f64,
    /// Who called it, by frame pointers, with the share of its samples, in falling order.
    pub callers: Vec<CallerShare>,
}

/// A caller, and its share of the samples of what it calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallerShare {
    pub name: String,
    pub share: f64,
}

impl HotFunctions {
    /// Share of the CPU time that the samples cover.
    pub fn seen(&self, cpu_seconds: Option<f64>) -> Option<f64> {
        let expected = cpu_seconds? * self.hertz as f64;
        (expected > 0.0).then(|| (self.samples as f64 / expected).min(1.0))
    }
}

/// Name of all time in the kernel.
pub const KERNEL: &str = "[kernel]";
/// Functions with a smaller share of the samples are left out.
pub const CUT_OFF: f64 = 0.005;

/// Version of a line's form: a later one may mean other things by the same names.
const VERSION: u32 = 1;

/// A line.
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

/// All runs of a recording.
pub fn parse(text: &str) -> Result<Vec<RunCounts>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let runs: Result<Vec<RunCounts>, String> = lines
        .map(|(at, line)| parse_line(line).map_err(|error| format!("line {}: {error}", at + 1)))
        .collect();
    runs.and_then(|runs| if runs.is_empty() { Err("no run in it".into()) } else { Ok(runs) })
}

/// The newest run; of a running owner, the whole time that it was watched, from its spans.
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

/// The sum, where both were measured.
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
        return Err(format!("of version {recording}; this program reads up to {VERSION}"));
    }
    serde_json::from_value(run).map_err(|error| error.to_string())
}

/// The line of a recording.
pub fn line(run: &RunCounts) -> Result<String, String> {
    let line = RecordedLine { recording: VERSION, run };
    serde_json::to_string(&line).map(|line| line + "\n").map_err(|error| error.to_string())
}

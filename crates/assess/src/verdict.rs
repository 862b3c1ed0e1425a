//! Verdict table, split matrix and Amdahl's bound. A value that was not measured supports no verdict.

use serde::{Deserialize, Serialize};

use crate::figures::RunFigures;
use crate::recording::RunCounts;
use crate::thresholds::{self as t, Threshold, Vote};

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableRow {
    pub what: &'static str,
    pub value: Option<f64>,
    pub says: Vote,
    /// Remark on the value, for example the reason why it is not judged.
    pub note: String,
    pub threshold: Option<Threshold>,
}

/// Verdict on moving the program to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveVerdict {
    /// High compute density on enough independent items.
    Suits,
    /// High compute density; the number of items was not given.
    SuitsIfParallel,
    /// Limited by memory bandwidth.
    MemoryBound,
    /// Too few independent items.
    TooSmall,
    /// Slow on a GPU as written, because of branches or dependent loads.
    NotAsWritten,
    /// Values between the thresholds.
    Borderline,
    /// Not enough was measured.
    NotJudged,
}

impl MoveVerdict {
    pub fn text(self) -> &'static str {
        match self {
            MoveVerdict::Suits => "suits a GPU: high compute density, and enough independent items",
            MoveVerdict::SuitsIfParallel => {
                "suits a GPU if it processes at least 10,000 independent items: pass --items to include that"
            }
            MoveVerdict::MemoryBound => {
                "bound by memory: only the higher memory bandwidth of a GPU helps, and only if the data stays in GPU memory"
            }
            MoveVerdict::TooSmall => "too few independent items to fill a GPU: batch more items first",
            MoveVerdict::NotAsWritten => {
                "not as written: unpredictable branches or dependent loads would stall a GPU. Change the data layout or \
                 the algorithm first"
            }
            MoveVerdict::Borderline => "between the thresholds: port only the hottest function first",
            MoveVerdict::NotJudged => "no verdict: not enough was measured",
        }
    }
}

/// Verdict with its table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoveJudgement {
    pub verdict: MoveVerdict,
    pub rows: Vec<TableRow>,
}

fn row(what: &'static str, value: Option<f64>, threshold: &Threshold) -> TableRow {
    let says = threshold.judge(value);
    TableRow { what, value, says, note: String::new(), threshold: Some(*threshold) }
}

impl TableRow {
    fn set(&mut self, says: Vote, note: impl Into<String>) {
        (self.says, self.note) = (says, note.into());
    }
}

/// Judges a run by its figures.
pub fn judge(run: &RunCounts, figures: &RunFigures) -> MoveJudgement {
    let mut items = row("data parallelism", figures.items, &t::ITEMS);
    if items.value.is_none() {
        items.note = "from --items N".into();
    }
    let mut counted = [density_row(figures), branches_row(figures), access_row(figures)];
    if let Some(cpu) = run.cpu_seconds.filter(|cpu| *cpu < t::LEAST_CPU_SECONDS) {
        let note = format!("too short: {:.0} ms of CPU time", cpu * 1e3);
        counted.iter_mut().for_each(|row| row.set(Vote::NotMeasured, &note));
    }
    if let Some(ratio) = run.counts.counted_ratio.filter(|ratio| *ratio < t::LEAST_COUNTED) {
        let note = format!("counted only {:.1} % of the time", ratio * 100.0);
        let measured = counted.iter_mut().filter(|row| row.value.is_some());
        measured.for_each(|row| row.set(Vote::NotMeasured, &note));
    }
    let [density, branches, access] = counted;
    let verdict = match (density.says, items.says) {
        _ if branches.says == Vote::Against => MoveVerdict::NotAsWritten,
        (Vote::Against, _) => MoveVerdict::MemoryBound,
        _ if access.says == Vote::Against => MoveVerdict::NotAsWritten,
        (Vote::NotMeasured, _) => MoveVerdict::NotJudged,
        (_, Vote::Against) => MoveVerdict::TooSmall,
        (Vote::For, Vote::NotMeasured) => MoveVerdict::SuitsIfParallel,
        (Vote::For, Vote::For) => MoveVerdict::Suits,
        _ => MoveVerdict::Borderline,
    };
    MoveJudgement { verdict, rows: vec![density, items, branches, access] }
}

fn density_row(figures: &RunFigures) -> TableRow {
    let mut row = row("compute density", figures.density_at_most, &t::DENSITY);
    let fewer_flops_than = |limit| figures.flops_per_instruction.is_some_and(|share| share < limit);
    match row.says {
        _ if fewer_flops_than(t::FLOPS_MATTER) => {
            row.set(Vote::NotMeasured, "almost no floating-point operations");
        }
        Vote::For if fewer_flops_than(t::FLOPS_LEAD) => row.set(Vote::Between, "few FLOPs per instruction"),
        Vote::For => row.note = "upper bound (bytes are a lower bound)".into(),
        Vote::Against if few(figures.llc_misses_per_kilo_instruction).is_some() => {
            row.set(Vote::Between, "few misses");
        }
        _ => {}
    }
    row
}

fn branches_row(figures: &RunFigures) -> TableRow {
    let mut row = row("branch misses", figures.branch_miss_ratio, &t::BRANCHES);
    let is_high = row.value.is_some() && row.says > Vote::For;
    if let Some(rate) = few(figures.branch_misses_per_kilo_instruction).filter(|_| is_high) {
        row.set(Vote::For, format!("{rate:.2} misses per 1,000 instructions"));
    }
    row
}

fn access_row(figures: &RunFigures) -> TableRow {
    let mut row = row("access pattern", figures.misses_in_flight, &t::ACCESS);
    if let Some(rate) = few(figures.llc_misses_per_kilo_instruction) {
        row.set(Vote::For, format!("{rate:.2} misses per 1,000 instructions"));
    } else if row.says == Vote::Against {
        (row.says, row.note) = few_in_flight(figures);
    }
    row
}

/// Returns the misses per 1,000 instructions if they are too few to matter.
fn few(misses: Option<f64>) -> Option<f64> {
    misses.filter(|rate| *rate < t::MISSES_MATTER)
}

/// Judges few misses in flight. They show dependent loads only if the CPU always waits for one.
fn few_in_flight(figures: &RunFigures) -> (Vote, String) {
    let in_flight = figures.misses_in_flight.unwrap_or(0.0);
    if in_flight < t::CHAIN_IN_FLIGHT {
        let share = (in_flight * 100.0).min(100.0);
        return (Vote::Between, format!("waits for memory up to {share:.0} % of time"));
    }
    if figures.bytes_per_second.is_none_or(|rate| rate >= t::CHAIN_BYTES_PER_SECOND) {
        return (Vote::Between, "memory may be saturated".into());
    }
    match figures.instructions_per_cycle {
        None => (Vote::NotMeasured, "instructions per cycle not measured".into()),
        Some(rate) if rate < t::CHAIN_INSTRUCTIONS_PER_CYCLE => {
            (Vote::Against, format!("dependent loads: {rate:.2} instr./cycle"))
        }
        Some(rate) => (Vote::Between, format!("also computes: {rate:.2} instr./cycle")),
    }
}

/// Coupling between the two parts of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coupling {
    /// One call with one answer.
    Loose,
    /// The parts share state or exchange data within a step.
    Tight,
}

/// Inputs of the split matrix that cannot be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SplitAnswers {
    pub p99_seconds: Option<f64>,
    pub coupling: Option<Coupling>,
    pub exchange_bytes: Option<f64>,
}

/// Recommendation on making the GPU part a separate program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SplitMatrix {
    /// `None` while unknown rows could change the result.
    pub split: Option<bool>,
    pub votes: usize,
    pub rows: Vec<TableRow>,
}

/// Builds the five rows of the matrix. Three rows that support a split recommend it.
pub fn split(judgement: &MoveJudgement, answers: SplitAnswers) -> SplitMatrix {
    let row = |what, value: Option<f64>, threshold: &Threshold, flag: &str| {
        let note = if value.is_none() { flag } else { "" };
        TableRow { note: note.into(), ..row(what, value, threshold) }
    };
    let (says, note) = match answers.coupling {
        Some(Coupling::Loose) => (Vote::For, "loose"),
        Some(Coupling::Tight) => (Vote::Against, "tight"),
        None => (Vote::NotMeasured, "from --coupling"),
    };
    let density = &judgement.rows[0];
    let judged = density.value.filter(|_| density.says != Vote::NotMeasured);
    let rows = vec![
        row("compute density", judged, &t::SPLIT_DENSITY, "not measured"),
        row("data parallelism", judgement.rows[1].value, &t::SPLIT_ITEMS, "from --items N"),
        row("99th percentile", answers.p99_seconds, &t::SPLIT_P99, "from --p99 TIME"),
        TableRow { what: "coupling", value: None, says, note: note.into(), threshold: None },
        row("data a call", answers.exchange_bytes, &t::SPLIT_EXCHANGE, "from --exchange BYTES"),
    ];
    let count = |says| rows.iter().filter(|row| row.says == says).count();
    let (votes, unknown) = (count(Vote::For), count(Vote::NotMeasured));
    let split = match () {
        () if votes >= t::SPLIT_VOTES => Some(true),
        () if votes + unknown < t::SPLIT_VOTES => Some(false),
        () => None,
    };
    SplitMatrix { split, votes, rows }
}

/// Maximum speed-up from moving functions to a GPU (Amdahl's law).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AmdahlBound {
    /// Functions that would move.
    pub functions: Vec<String>,
    /// Share of the CPU time of these functions themselves, without the functions that they call. Time
    /// without samples does not count for them.
    pub share: f64,
    pub share_interval: ShareInterval,
    /// Time that the bound applies to.
    pub of: BoundedTime,
    /// Share of that time. The CPU time may be only a part of the wall time.
    pub share_of_time: f64,
    pub share_of_time_interval: ShareInterval,
    /// Maximum speed-up factor, if these functions took no time at all; `None` if unlimited.
    pub at_most: Option<f64>,
    /// Speed-up with the factor of `--gain`.
    pub with_gain: Option<GainedSpeedUp>,
}

/// Confidence interval of a share (95 %), from the number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ShareInterval {
    pub low: f64,
    pub high: f64,
}

impl ShareInterval {
    fn times(self, factor: f64) -> ShareInterval {
        ShareInterval { low: self.low * factor, high: self.high * factor }
    }
}

/// Speed-up factor of the moved functions, and of the whole program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GainedSpeedUp {
    pub gain: f64,
    pub speed_up: f64,
}

/// Kind of time that a bound applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundedTime {
    /// Wall time of a program that uses at most one thread and does not wait for a CPU.
    Wall,
    /// CPU time, because several threads run at the same time or wait for a CPU and their share of the wall
    /// time is unknown.
    Cpu,
}

/// Minimum share of a function that moves by default.
const HOT: f64 = 0.10;

/// Computes the bound for the chosen functions, or by default for every function with at least a tenth of the
/// time. Errors contain the reason why there is no bound.
pub fn amdahl(run: &RunCounts, chosen: &[String], gain: Option<f64>) -> Result<AmdahlBound, String> {
    let hot = run.hot.as_ref().ok_or("no bound: functions were not sampled")?;
    if hot.samples < t::LEAST_SAMPLES {
        let (samples, least) = (hot.samples, t::LEAST_SAMPLES);
        return Err(format!("no bound: {samples} samples are too few, at least {least} are needed"));
    }
    let seen = hot.seen(run.cpu_seconds).ok_or("no bound: the CPU time was not measured")?;
    if seen < t::LEAST_SEEN {
        let (seen, least) = (seen * 100.0, t::LEAST_SEEN * 100.0);
        return Err(format!(
            "no bound: the samples cover {seen:.0} % of the CPU time, at least {least:.0} % are needed"
        ));
    }
    let named = hot.functions.iter().filter(|function| match chosen {
        [] => function.share >= HOT && !is_placeholder(&function.name),
        chosen => chosen.iter().any(|name| is_named(&function.name, name)),
    });
    let moved: Vec<_> = named.collect();
    if moved.is_empty() {
        return Err(match chosen {
            [] => "no bound: no function with a name has at least 10 % of the time".into(),
            chosen => format!("no bound: no sampled function is named {}", chosen.join(", ")),
        });
    }
    let samples = hot.samples as f64;
    let sampled = moved.iter().map(|function| function.samples).sum::<u64>() as f64 / samples;
    // Time without samples counts as time that stays.
    let share = sampled * seen;
    let share_interval = wilson(sampled, samples).times(seen);
    let (of, part) = bounded(run);
    let share_of_time = share * part;
    let speed_up = |gain: f64| 1.0 / (1.0 - share_of_time + share_of_time / gain);
    Ok(AmdahlBound {
        functions: moved.iter().map(|function| function.name.clone()).collect(),
        share,
        share_interval,
        of,
        share_of_time,
        share_of_time_interval: share_interval.times(part),
        at_most: (share_of_time < 1.0).then(|| 1.0 / (1.0 - share_of_time)),
        with_gain: gain.map(|gain| GainedSpeedUp { gain, speed_up: speed_up(gain) }),
    })
}

/// Returns the kind of time that the bound applies to, and the part of it that is CPU time. The bound applies
/// to wall time only if a single thread is always busy, or waits for something that would move together with
/// the functions.
fn bounded(run: &RunCounts) -> (BoundedTime, f64) {
    let figures = RunFigures::from_run(run);
    let may_be_throttled = figures.utilization_ratio.is_none_or(|ratio| ratio >= t::WAITS_FOR_CPUS);
    let is_preempted = run.system.is_none_or(|it| it.involuntary_switches > it.voluntary_switches);
    match figures.threads_used.filter(|threads| *threads <= t::ONE_THREAD && !may_be_throttled) {
        Some(threads) if threads >= t::BUSY_THREAD => (BoundedTime::Wall, 1.0),
        Some(threads) if !is_preempted => (BoundedTime::Wall, threads),
        _ => (BoundedTime::Cpu, 1.0),
    }
}

/// Returns true for a placeholder such as `[kernel]` or `[no symbol in FILE]`.
fn is_placeholder(name: &str) -> bool {
    name.starts_with('[')
}

/// Returns true if the wanted name is the full name of the function, its name without arguments or the last
/// part of it.
fn is_named(function: &str, wanted: &str) -> bool {
    let plain = function.split('(').next().unwrap_or(function);
    function == wanted || plain == wanted || plain.ends_with(&format!("::{wanted}"))
}

/// Wilson score interval of a share at 95 % confidence.
fn wilson(share: f64, samples: f64) -> ShareInterval {
    let z2 = 1.96_f64.powi(2);
    let middle = (share + z2 / (2.0 * samples)) / (1.0 + z2 / samples);
    let half = 1.96 / (1.0 + z2 / samples)
        * (share * (1.0 - share) / samples + z2 / (4.0 * samples * samples)).sqrt();
    ShareInterval { low: (middle - half).max(0.0), high: (middle + half).min(1.0) }
}

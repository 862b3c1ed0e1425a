//! The verdict table, the split matrix, and Amdahl's bound. No verdict on nothing: what was not measured speaks for nothing.

use serde::{Deserialize, Serialize};

use crate::figures::RunFigures;
use crate::recording::RunCounts;
use crate::thresholds::{self as t, Threshold, Vote};

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableRow {
    pub what: &'static str,
    pub value: Option<f64>,
    pub says: Vote,
    /// What there is to know beside the value, as why it is not judged.
    pub note: String,
    pub threshold: Option<Threshold>,
}

/// Whether to move the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveVerdict {
    /// It computes much on what it loads, in parallel.
    Suits,
    /// It computes much on what it loads; how much of it is parallel was not inputs.
    SuitsIfParallel,
    /// The memory's rate is its limit.
    MemoryBound,
    /// Too few independent items.
    TooSmall,
    /// As it is written it would be slow on a GPU: branches or dependent loads.
    NotAsWritten,
    /// Between the thresholds.
    Borderline,
    /// Too little was measured.
    NotJudged,
}

impl MoveVerdict {
    pub fn text(self) -> &'static str {
        match self {
            MoveVerdict::Suits => {
                "suits a GPU: it computes much on what it loads, on enough independent items"
            }
            MoveVerdict::SuitsIfParallel => {
                "suits a GPU if it works on 10,000 independent items and more: give --items to have that judged"
            }
            MoveVerdict::MemoryBound => {
                "bound by memory: a GPU gains at most by its higher memory rate, and only if the data stays in GPU memory"
            }
            MoveVerdict::TooSmall => "too few independent items to fill a GPU: batch more of them first",
            MoveVerdict::NotAsWritten => {
                "not as it is written: unpredictable branches or dependent loads would stall a GPU; change data layout or \
                 algorithm first"
            }
            MoveVerdict::Borderline => "between the thresholds: try the hottest function alone before more",
            MoveVerdict::NotJudged => "no verdict: too little was measured",
        }
    }
}

/// The verdict with its table.
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
        let note = format!("counted in {:.1} % of the time only", ratio * 100.0);
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
            row.set(Vote::NotMeasured, "hardly any: integers are not counted");
        }
        Vote::For if fewer_flops_than(t::FLOPS_LEAD) => {
            row.set(Vote::Between, "few operations an instruction")
        }
        Vote::For => row.note = "an upper bound: bytes are a lower one".into(),
        Vote::Against if few(figures.llc_misses_per_kilo_instruction).is_some() => {
            row.set(Vote::Between, "few misses counted");
        }
        _ => {}
    }
    row
}

fn branches_row(figures: &RunFigures) -> TableRow {
    let mut row = row("branch misses", figures.branch_miss_ratio, &t::BRANCHES);
    let is_high = row.value.is_some() && row.says > Vote::For;
    if let Some(rate) = few(figures.branch_misses_per_kilo_instruction).filter(|_| is_high) {
        row.set(Vote::For, format!("few: {rate:.2} in 1,000 instructions"));
    }
    row
}

fn access_row(figures: &RunFigures) -> TableRow {
    let mut row = row("access pattern", figures.misses_in_flight, &t::ACCESS);
    if let Some(rate) = few(figures.llc_misses_per_kilo_instruction) {
        row.set(Vote::For, format!("few misses counted: {rate:.2} in 1,000"));
    } else if row.says == Vote::Against {
        (row.says, row.note) = few_in_flight(figures);
    }
    row
}

/// Misses of 1,000 instructions, if they are too few to matter.
fn few(misses: Option<f64>) -> Option<f64> {
    misses.filter(|rate| *rate < t::MISSES_MATTER)
}

/// What few misses in flight say: dependent loads only where the CPU waits for one all the time.
fn few_in_flight(figures: &RunFigures) -> (Vote, String) {
    let in_flight = figures.misses_in_flight.unwrap_or(0.0);
    if in_flight < t::CHAIN_IN_FLIGHT {
        let share = (in_flight * 100.0).min(100.0);
        return (Vote::Between, format!("waits for memory {share:.0} % of it at most"));
    }
    if figures.bytes_per_second.is_none_or(|rate| rate >= t::CHAIN_BYTES_PER_SECOND) {
        return (Vote::Between, "memory may be saturated".into());
    }
    match figures.instructions_per_cycle {
        None => (Vote::NotMeasured, "instructions a cycle not measured".into()),
        Some(rate) if rate < t::CHAIN_INSTRUCTIONS_PER_CYCLE => {
            (Vote::Against, format!("dependent loads: {rate:.2} instr./cycle"))
        }
        Some(rate) => (Vote::Between, format!("computes too: {rate:.2} instr./cycle")),
    }
}

/// How much the parts of a program depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coupling {
    /// One call, one answer.
    Loose,
    /// They share state or talk within a step.
    Tight,
}

/// What of the split matrix cannot be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SplitAnswers {
    pub p99_seconds: Option<f64>,
    pub coupling: Option<Coupling>,
    pub exchange_bytes: Option<f64>,
}

/// Whether the part for the GPU should become a program of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SplitMatrix {
    /// `None` while unknown rows could decide.
    pub split: Option<bool>,
    pub votes: usize,
    pub rows: Vec<TableRow>,
}

/// The five rows: three that speak for a split recommend it.
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

/// What can be gained at most by moving functions (Amdahl's law).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AmdahlBound {
    /// The functions that would move.
    pub functions: Vec<String>,
    /// Their share of the CPU time, their own without what they call, with its 95 % interval from the number of samples. Time
    /// without samples is not theirs.
    pub share: f64,
    pub share_interval: ShareInterval,
    /// What becomes so much smaller.
    pub of: BoundedTime,
    /// Their share of that time: of wall time the CPU time is only a part.
    pub share_of_time: f64,
    pub share_of_time_interval: ShareInterval,
    /// How many times as small it is if they take no time at all; `None`: without bound.
    pub at_most: Option<f64>,
    /// And if they become so many times as fast (`--gain`).
    pub with_gain: Option<GainedSpeedUp>,
}

/// Bounds of a share.
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

/// What follows from a gain that was inputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GainedSpeedUp {
    pub gain: f64,
    pub speed_up: f64,
}

/// The time that is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundedTime {
    /// Of a program that uses one thread at most, and does not wait for a CPU.
    Wall,
    /// Several threads run at a time, or wait for a CPU: how much of the wall time they are is not known.
    Cpu,
}

/// A function that moves by default has this share.
const HOT: f64 = 0.10;

/// The bound, or why there is none. `chosen`: functions that would move; none: each with a tenth of the time and more.
pub fn amdahl(run: &RunCounts, chosen: &[String], gain: Option<f64>) -> Result<AmdahlBound, String> {
    let hot = run.hot.as_ref().ok_or("no bound: functions were not sampled")?;
    if hot.samples < t::LEAST_SAMPLES {
        let (samples, least) = (hot.samples, t::LEAST_SAMPLES);
        return Err(format!("no bound: {samples} samples are too few, {least} are needed"));
    }
    let seen = hot.seen(run.cpu_seconds).ok_or("no bound: the CPU time was not measured")?;
    if seen < t::LEAST_SEEN {
        let (seen, least) = (seen * 100.0, t::LEAST_SEEN * 100.0);
        return Err(format!(
            "no bound: the samples cover {seen:.0} % of the CPU time, {least:.0} % are needed"
        ));
    }
    let named = hot.functions.iter().filter(|function| match chosen {
        [] => function.share >= HOT && !is_placeholder(&function.name),
        chosen => chosen.iter().any(|name| is_named(&function.name, name)),
    });
    let moved: Vec<_> = named.collect();
    if moved.is_empty() {
        return Err(match chosen {
            [] => "no bound: no function with a name has a tenth of the time".into(),
            chosen => format!("no bound: no function with {} among the samples", chosen.join(", ")),
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

/// What is bounded, and the CPU time's part of it: wall time only where a single thread computes all of it, or waits for
/// something else than a CPU, which would go with the functions.
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

/// Whether a name is in place of one that is missing: `[kernel]`, `[no symbol in FILE]`.
fn is_placeholder(name: &str) -> bool {
    name.starts_with('[')
}

/// Whether a function is the one that is wanted for: its whole name, its last part, or that without arguments.
fn is_named(function: &str, wanted: &str) -> bool {
    let plain = function.split('(').next().unwrap_or(function);
    function == wanted || plain == wanted || plain.ends_with(&format!("::{wanted}"))
}

/// Wilson's interval of a share of so many samples, at 95 %.
fn wilson(share: f64, samples: f64) -> ShareInterval {
    let z2 = 1.96_f64.powi(2);
    let middle = (share + z2 / (2.0 * samples)) / (1.0 + z2 / samples);
    let half = 1.96 / (1.0 + z2 / samples)
        * (share * (1.0 - share) / samples + z2 / (4.0 * samples * samples)).sqrt();
    ShareInterval { low: (middle - half).max(0.0), high: (middle + half).min(1.0) }
}

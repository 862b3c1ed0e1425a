//! The verdict table, the split matrix, and Amdahl's bound. No verdict on nothing: what was not measured speaks for nothing.

use serde::{Deserialize, Serialize};

use crate::figures::RunFigures;
use crate::recording::{HotFunctions, RunCounts};
use crate::thresholds::{self as t, Says, Threshold};

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableRow {
    pub what: &'static str,
    pub value: Option<f64>,
    pub says: Says,
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
    /// It computes much on what it loads; how much of it is parallel was not given.
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

/// Judges a run by its figures.
pub fn judge(run: &RunCounts, figures: &RunFigures) -> MoveJudgement {
    let row = |what, value, threshold: &Threshold| TableRow {
        what,
        value,
        says: threshold.judge(value),
        note: String::new(),
        threshold: Some(*threshold),
    };
    let mut density = row("compute density", figures.density_at_most, &t::DENSITY);
    if figures.flops_per_instruction.is_some_and(|share| share < t::FLOPS_MATTER) {
        density.says = Says::NotMeasured;
        density.note = "hardly any floating point: integer work is not counted".into();
    } else if density.says == Says::For {
        density.note = "an upper bound: bytes are a lower one".into();
    }
    let mut items = row("data parallelism", figures.items, &t::ITEMS);
    if items.value.is_none() {
        items.note = "from --items N".into();
    }
    let branches = row("branch misses", figures.branch_miss_ratio, &t::BRANCHES);
    let mut access = row("access pattern", figures.misses_in_flight, &t::ACCESS);
    if let Some(rate) = figures.llc_misses_per_kilo_instruction.filter(|rate| *rate < t::MISSES_MATTER) {
        access.says = Says::For;
        access.note = format!("fits the caches: {rate:.2} misses in 1,000 instructions");
    }
    let mut rows = vec![density, items, branches, access];
    if let Some(cpu) = run.cpu_seconds.filter(|cpu| *cpu < t::LEAST_CPU_SECONDS) {
        for row in rows.iter_mut().filter(|row| row.what != "data parallelism") {
            row.says = Says::NotMeasured;
            row.note = format!("too short: {:.0} ms of CPU time, of which the start is most", cpu * 1e3);
        }
    }
    let [density, items, branches, access] = [0, 1, 2, 3].map(|at| rows[at].says);
    let verdict = match (density, items) {
        _ if branches == Says::Against || access == Says::Against => MoveVerdict::NotAsWritten,
        (Says::NotMeasured, _) => MoveVerdict::NotJudged,
        (Says::Against, _) => MoveVerdict::MemoryBound,
        (_, Says::Against) => MoveVerdict::TooSmall,
        (Says::For, Says::NotMeasured) => MoveVerdict::SuitsIfParallel,
        (Says::For, Says::For) => MoveVerdict::Suits,
        _ => MoveVerdict::Borderline,
    };
    MoveJudgement { verdict, rows }
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
    let row = |what, value, threshold: &Threshold, flag: &str| TableRow {
        what,
        value,
        says: threshold.judge(value),
        note: if value.is_none() { flag.to_owned() } else { String::new() },
        threshold: Some(*threshold),
    };
    let density = &judgement.rows[0];
    let judged = density.value.filter(|_| density.says != Says::NotMeasured);
    let rows = vec![
        row("compute density", judged, &t::SPLIT_DENSITY, "not measured"),
        row("data parallelism", judgement.rows[1].value, &t::SPLIT_ITEMS, "from --items N"),
        row("99th percentile", answers.p99_seconds, &t::SPLIT_P99, "from --p99 TIME"),
        TableRow {
            what: "coupling",
            value: None,
            says: match answers.coupling {
                Some(Coupling::Loose) => Says::For,
                Some(Coupling::Tight) => Says::Against,
                None => Says::NotMeasured,
            },
            note: match answers.coupling {
                Some(Coupling::Loose) => "loose".into(),
                Some(Coupling::Tight) => "tight".into(),
                None => "from --coupling".into(),
            },
            threshold: None,
        },
        row("data a call", answers.exchange_bytes, &t::SPLIT_EXCHANGE, "from --exchange BYTES"),
    ];
    let count = |says| rows.iter().filter(|row| row.says == says).count();
    let (votes, unknown) = (count(Says::For), count(Says::NotMeasured));
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
    /// Their share of the CPU time, with its 95 % interval from the number of samples.
    pub share: f64,
    pub share_interval: (f64, f64),
    /// The program's speed-up if they took no time at all; `None`: without bound.
    pub at_most: Option<f64>,
    /// And if they became so many times as fast (`--gain`).
    pub with_gain: Option<(f64, f64)>,
}

/// A function that moves by default has this share.
const HOT: f64 = 0.10;

/// The bound, or why there is none. `chosen`: functions that would move; none: each with a tenth of the time and more.
pub fn amdahl(
    hot: Option<&HotFunctions>,
    chosen: &[String],
    gain: Option<f64>,
) -> Result<AmdahlBound, String> {
    let hot = hot.ok_or("no bound: functions were not sampled")?;
    if hot.samples < t::LEAST_SAMPLES {
        return Err(format!(
            "no bound: {} samples are too few, {} are needed",
            hot.samples,
            t::LEAST_SAMPLES
        ));
    }
    let named = hot.functions.iter().filter(|function| match chosen {
        [] => function.share >= HOT && function.name != crate::recording::KERNEL,
        chosen => chosen.iter().any(|name| is_named(&function.name, name)),
    });
    let moved: Vec<_> = named.collect();
    if moved.is_empty() {
        return Err(match chosen {
            [] => "no bound: no function has a tenth of the time".into(),
            chosen => format!("no bound: no function with {} among the samples", chosen.join(", ")),
        });
    }
    let samples = hot.samples as f64;
    let share = moved.iter().map(|function| function.samples).sum::<u64>() as f64 / samples;
    let speed_up = |gain: f64| 1.0 / (1.0 - share + share / gain);
    Ok(AmdahlBound {
        functions: moved.iter().map(|function| function.name.clone()).collect(),
        share,
        share_interval: wilson(share, samples),
        at_most: (share < 1.0).then(|| 1.0 / (1.0 - share)),
        with_gain: gain.map(|gain| (gain, speed_up(gain))),
    })
}

/// Whether a function is the one that is asked for: its whole name, its last part, or that without arguments.
fn is_named(function: &str, asked: &str) -> bool {
    let plain = function.split('(').next().unwrap_or(function);
    function == asked || plain == asked || plain.ends_with(&format!("::{asked}"))
}

/// Wilson's interval of a share of so many samples, at 95 %.
fn wilson(share: f64, samples: f64) -> (f64, f64) {
    let z2 = 1.96_f64.powi(2);
    let middle = (share + z2 / (2.0 * samples)) / (1.0 + z2 / samples);
    let half = 1.96 / (1.0 + z2 / samples)
        * (share * (1.0 - share) / samples + z2 / (4.0 * samples * samples)).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

//! Compares two recordings, from before and after a change, and checks targets.

use serde::Serialize;

use crate::figures::RunFigures;
use crate::recording::RunCounts;
use crate::text::{number, percent, seconds};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedFigure {
    Wall,
    Items,
    LlcHit,
    Utilization,
}

type FigureFormat = fn(f64) -> String;

/// Name, title and format of every figure, in the order of [`ComparedFigure`].
const COMPARED: [(ComparedFigure, &str, &str, FigureFormat); 4] = [
    (ComparedFigure::Wall, "wall", "wall time", seconds),
    (ComparedFigure::Items, "items", "items/s", number),
    (ComparedFigure::LlcHit, "llc_hit", "LLC hit ratio", percent),
    (ComparedFigure::Utilization, "utilization", "CPU utilization", percent),
];

impl ComparedFigure {
    fn value(self, run: &RunCounts) -> Option<f64> {
        let figures = RunFigures::from_run(run);
        match self {
            // The wall time of a running program is only the time of watching.
            ComparedFigure::Wall => run.watch.is_none().then_some(run.wall_seconds),
            ComparedFigure::Items => figures.items_per_second,
            ComparedFigure::LlcHit => figures.llc_hit_ratio,
            ComparedFigure::Utilization => figures.utilization_ratio,
        }
    }
}

/// Target for the second recording: a change if the value has a sign (`wall<=-20%`), otherwise a value
/// (`llc_hit>=90%`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CompareTarget {
    pub figure: ComparedFigure,
    /// True for a lower limit, false for an upper limit.
    pub at_least: bool,
    pub value: f64,
    /// True if the value is a change relative to the first recording.
    pub relative: bool,
}

impl std::str::FromStr for CompareTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<CompareTarget, String> {
        let (name, at_least, value) = match (text.split_once(">="), text.split_once("<=")) {
            (Some((name, value)), None) => (name, true, value),
            (None, Some((name, value))) => (name, false, value),
            _ => return Err("write NAME>=VALUE or NAME<=VALUE, for example wall<=-20%".into()),
        };
        let known = COMPARED.iter().find(|(_, known, ..)| *known == name.trim());
        let Some((figure, ..)) = known else {
            return Err("the names are wall, items, llc_hit and utilization".into());
        };
        let (number, percent) = match value.trim().strip_suffix('%') {
            Some(number) => (number.trim(), true),
            None => (value.trim(), false),
        };
        let is_ratio = matches!(figure, ComparedFigure::LlcHit | ComparedFigure::Utilization);
        let relative = percent && number.starts_with(['+', '-']);
        if percent && !relative && !is_ratio {
            return Err(format!("a change needs a sign: {name}<=-20% or {name}>=+20%", name = name.trim()));
        }
        let value: f64 = number.parse().map_err(|_| format!("\"{number}\" is not a number"))?;
        if !value.is_finite() {
            return Err("use a finite number".into());
        }
        if !relative && (value < 0.0 || is_ratio && !percent && value > 1.0) {
            return Err(format!("{number} is impossible: write a change as -20%, and a ratio as 90% or 0.9"));
        }
        Ok(CompareTarget {
            figure: *figure,
            at_least,
            value: if percent { value / 100.0 } else { value },
            relative,
        })
    }
}

/// Distribution of one figure over the runs of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FigureSpread {
    pub runs: usize,
    pub mean: f64,
    pub lowest: f64,
    pub highest: f64,
    /// Standard deviation of the runs; `None` for a single run.
    pub deviation: Option<f64>,
}

fn spread(runs: &[RunCounts], figure: ComparedFigure) -> Option<FigureSpread> {
    let values: Vec<f64> = runs.iter().filter_map(|run| figure.value(run)).collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (!values.is_empty()).then(|| FigureSpread {
        runs: values.len(),
        mean,
        lowest: values.iter().copied().fold(f64::INFINITY, f64::min),
        highest: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        deviation: (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
    })
}

/// One figure of both recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRow {
    pub figure: ComparedFigure,
    pub before: Option<FigureSpread>,
    pub after: Option<FigureSpread>,
    /// Relative change of the mean.
    pub change: Option<f64>,
    /// True if the ranges of both recordings overlap, so that the change may be chance.
    pub overlap: Option<bool>,
    pub targets: Vec<JudgedTarget>,
}

/// Target and its result. A figure that was not measured misses its target, and a recording with a failed run
/// misses all targets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JudgedTarget {
    #[serde(flatten)]
    pub target: CompareTarget,
    pub met: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordingDiff {
    pub before: String,
    pub after: String,
    pub met: bool,
    pub rows: Vec<ComparedRow>,
    /// Reasons why the recordings may not be comparable.
    pub doubts: Vec<String>,
}

/// Number of runs that ended by a signal or with an error. Their times are not comparable, because they did
/// not complete their work.
fn failed(runs: &[RunCounts]) -> usize {
    runs.iter().filter(|run| run.exit.is_some_and(|exit| exit != 0)).count()
}

fn doubts(before: &[RunCounts], after: &[RunCounts]) -> Vec<String> {
    let mut doubts = Vec::new();
    for (name, runs) in [("before", before), ("after", after)] {
        let failed = match failed(runs) {
            0 => continue,
            1 => "a run".to_owned(),
            several => format!("{several} runs"),
        };
        doubts.push(format!("{failed} {name} the change failed, so every target is missed"));
    }
    let Some(first) = before.first() else { return doubts };
    type Same = fn(&RunCounts, &RunCounts) -> bool;
    let properties: [(&str, Same); 5] = [
        ("the processors differ", |a, b| a.processor == b.processor),
        ("the numbers of CPUs differ", |a, b| a.cpus == b.cpus),
        ("the values of --items differ", |a, b| a.items == b.items),
        ("some runs were computed, others were measured", |a, b| a.computed == b.computed),
        ("one recording is of a program, the other of a watched owner", |a, b| {
            a.exit.is_none() == b.exit.is_none()
        }),
    ];
    let runs = || before.iter().chain(after);
    let differing = properties.iter().filter(|(_, same)| runs().any(|run| !same(run, first)));
    doubts.extend(differing.map(|(doubt, _)| (*doubt).to_owned()));
    doubts
}

pub fn compare(before: &[RunCounts], after: &[RunCounts], targets: &[CompareTarget]) -> RecordingDiff {
    let all_ended_well = failed(before) + failed(after) == 0;
    let row = |figure: ComparedFigure| {
        let (old, new) = (spread(before, figure), spread(after, figure));
        let both = old.zip(new);
        let change = both.filter(|(old, _)| old.mean != 0.0).map(|(old, new)| new.mean / old.mean - 1.0);
        let met = |target: &CompareTarget| {
            let value = if target.relative { change } else { new.map(|new| new.mean) };
            all_ended_well
                && value.is_some_and(|value| {
                    if target.at_least { value >= target.value } else { value <= target.value }
                })
        };
        let targets = targets.iter().filter(|target| target.figure == figure);
        ComparedRow {
            figure,
            before: old,
            after: new,
            change,
            overlap: both.map(|(old, new)| old.lowest <= new.highest && new.lowest <= old.highest),
            targets: targets.map(|target| JudgedTarget { target: *target, met: met(target) }).collect(),
        }
    };
    let rows: Vec<ComparedRow> = COMPARED.iter().map(|(figure, ..)| row(*figure)).collect();
    let subject = |runs: &[RunCounts]| runs.first().map_or(String::new(), |run| run.subject.clone());
    RecordingDiff {
        before: subject(before),
        after: subject(after),
        met: all_ended_well && rows.iter().flat_map(|row| &row.targets).all(|judged| judged.met),
        rows,
        doubts: doubts(before, after),
    }
}

/// Formats the comparison for a terminal.
pub fn text(diff: &RecordingDiff, colours: bool) -> String {
    use host::terminal::{Colour, Painter, fit, printable};
    let paint = Painter::new(colours);
    let mut out = format!("  before  {}\n", fit(&printable(&diff.before), 90));
    out += &format!("  after   {}\n\n", fit(&printable(&diff.after), 90));
    out += &format!("  {:<16} {:>26} {:>26} {:>9}\n", "", "before", "after", "change");
    for row in &diff.rows {
        let (_, name, title, format_value) = COMPARED[row.figure as usize];
        let show = |spread: Option<FigureSpread>| match spread {
            None => "not measured".to_owned(),
            Some(FigureSpread { mean, deviation: None, .. }) => format!("{} (1 run)", format_value(mean)),
            Some(FigureSpread { mean, deviation: Some(deviation), runs, .. }) => {
                format!("{} ± {} ({runs})", format_value(mean), format_value(deviation))
            }
        };
        let change = row.change.map_or("-".into(), |change| format!("{:+.1} %", change * 100.0));
        let overlap = if row.overlap == Some(true) { "  the ranges overlap" } else { "" };
        out +=
            &format!("  {title:<16} {:>26} {:>26} {change:>9}{overlap}\n", show(row.before), show(row.after));
        for JudgedTarget { target, met } in &row.targets {
            let sign = if target.at_least { ">=" } else { "<=" };
            let value = if target.relative {
                // Rounding removes the error of a division and its inverse.
                format!("{:+} %", (target.value * 1e8).round() / 1e6)
            } else {
                target.value.to_string()
            };
            let (mark, colour) = if *met { ("✓ met", Colour::Green) } else { ("✕ missed", Colour::Red) };
            out += &format!("    {} {name} {sign} {value}\n", paint.colour(colour, mark));
        }
    }
    for doubt in &diff.doubts {
        out += &format!("  {} {doubt}\n", paint.colour(Colour::Yellow, "!"));
    }
    out
}

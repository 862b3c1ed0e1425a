//! The report as text: a table per device, followed by its problems and the first thing to do.

use std::collections::BTreeMap;

use super::report::{Exit, Report, RunRecord};
use canary::gate::Allows;
use canary::{format, stats};
use host::terminal::{Colour, Painter};
use model::canary::{Judged, Rate};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryEnd, CanaryVerdict, RateAgainst};

fn mark(paint: Painter, exit: Exit) -> String {
    let (symbol, colour) = match exit {
        Exit::Healthy => ("✓", Colour::Green),
        Exit::NothingRun | Exit::CouldNotRun => ("i", Colour::Cyan),
        Exit::Degraded => ("!", Colour::Yellow),
        Exit::Fault => ("✕", Colour::Red),
    };
    paint.colour(colour, symbol)
}

pub fn text(report: &Report, colours: bool) -> String {
    let (mut out, paint) = (String::new(), Painter::new(colours));
    for of_device in report.runs.chunk_by(|a, b| a.place == b.place) {
        device(&mut out, paint, of_device);
    }
    let sum = match report.result {
        Exit::Healthy if report.runs.iter().all(|record| record.outcome.is_none()) => return out,
        Exit::Healthy => "Nothing is wrong with what was run.",
        Exit::NothingRun => "Nothing was run.",
        Exit::Degraded => "Some GPU is degraded. See the lines marked !.",
        Exit::Fault => "Some GPU is faulty. See the lines marked ✕.",
        Exit::CouldNotRun => "Some runs were not possible. See the lines marked i.",
    };
    out += &format!("{}\n", paint.bold(sum));
    out
}

/// Formats all runs on one device.
fn device(out: &mut String, paint: Painter, runs: &[RunRecord]) {
    let Some(first) = runs.first() else { return };
    let title = format!("{}  {}  {}", first.place, first.model, first.place.device());
    *out += &format!("{}\n", paint.bold(title.trim_end()));
    let outcomes: Vec<_> = runs.iter().filter_map(|record| record.outcome.as_ref()).collect();
    if outcomes.is_empty() {
        conditions(out, paint, first);
        return;
    }
    for outcome in &outcomes {
        let (end, text) = (outcome.end.known(), &outcome.text);
        match (outcome.end, outcome.skip) {
            (CanaryEnd::Finished, _) => {}
            (_, Some(reason)) => {
                let (mark, reason) = (mark(paint, first.exit()), reason.known());
                *out += &format!("  {mark} not run ({reason}): {text}\n");
            }
            _ => *out += &format!("  {end}: {text}\n"),
        }
    }
    let mut checks: BTreeMap<_, Vec<&Judged>> = BTreeMap::new();
    for judged in outcomes.iter().flat_map(|outcome| &outcome.checks) {
        checks.entry(judged.check).or_default().push(judged);
    }
    if checks.is_empty() || outcomes.iter().all(|outcome| outcome.skip.is_some()) {
        *out += "\n";
        return;
    }
    let spread = if outcomes.len() > 1 { format!("{:>9}", "spread") } else { String::new() };
    *out += &format!(
        "    {:<10}{:>20}{spread}{:>10}{:>10}{:>10}  verdict\n",
        "check", "rate", "roofline", "baseline", "siblings"
    );
    for all in checks.values() {
        line(out, paint, all, outcomes.len() > 1);
    }
    *out += "\n";
}

/// Formats one check with the median of its rates and its worst verdict.
fn line(out: &mut String, paint: Painter, all: &[&Judged], several: bool) {
    let weight =
        |judged: &&&Judged| (Exit::from_verdict(judged.verdict), judged.verdict != CanaryVerdict::Ok);
    let Some(worst) = all.iter().max_by_key(weight) else { return };
    let (rate, spread) = middle(&mut all.iter().filter_map(|judged| judged.rate).collect::<Vec<_>>());
    let spread = if several { format!("{spread:>9}") } else { String::new() };
    let ratio = |against: RateAgainst| {
        let ratios = all.iter().flat_map(|judged| &judged.ratios).filter(|(of, _)| *of == against);
        stats::median(ratios.map(|(_, ratio)| *ratio)).map_or_else(|| "-".to_owned(), format::percent)
    };
    let times = all.iter().filter(|judged| judged.verdict == worst.verdict).count();
    let times = match several && worst.verdict != CanaryVerdict::Ok {
        true => format!(" ({times} of {})", all.len()),
        false => String::new(),
    };
    *out += &format!(
        "  {} {:<10}{rate:>20}{spread}{:>10}{:>10}{:>10}  {}{times}\n",
        mark(paint, Exit::from_verdict(worst.verdict)),
        worst.check.known(),
        ratio(RateAgainst::Roofline),
        ratio(RateAgainst::Baseline),
        ratio(RateAgainst::Siblings),
        worst.verdict.known()
    );
    if worst.verdict != CanaryVerdict::Ok || worst.sample != CanaryVerdict::Ok {
        *out += &format!("      -> {}\n", worst.text);
    }
}

/// Returns the median rate, and the range as a fraction of it.
fn middle(rates: &mut [Rate]) -> (String, String) {
    let value = |rate: &Rate| match rate {
        Rate::WorkPerCycle(v) | Rate::BytesPerSecond(v) | Rate::BytesPerCycle(v) | Rate::Seconds(v) => *v,
    };
    rates.sort_by(|a, b| value(a).total_cmp(&value(b)));
    let (Some(lowest), Some(middle), Some(highest)) =
        (rates.first(), rates.get(rates.len() / 2), rates.last())
    else {
        return ("-".into(), "-".into());
    };
    let spread = (value(highest) - value(lowest)) / value(middle) * 100.0;
    (format::rate(*middle), format!("{spread:.3} %"))
}

/// Formats the conditions for a run.
fn conditions(out: &mut String, paint: Painter, record: &RunRecord) {
    for condition in &record.conditions {
        let (mark, found) = match &condition.allows {
            Allows::Yes => (mark(paint, Exit::Healthy), condition.found.clone()),
            Allows::No(reason) => (
                mark(paint, Exit::Fault),
                format!("{}: prevents a run ({})", condition.found, reason.known()),
            ),
            Allows::NotChecked(why) => (mark(paint, Exit::CouldNotRun), format!("not checked: {why}")),
        };
        *out += &format!("  {mark} {:<40} {found}\n", condition.what);
    }
    *out += "\n";
}

//! The report for people: a table for each device, and below it what is wrong and the first thing to do.

use std::fmt::Write;

use super::report::{Exit, Made, Report};
use canary::baseline::statistics;
use canary::gate::Allows;
use canary::judge::words;
use model::canary::{Judged, Place, Rate};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryEnd, CanaryVerdict, RateAgainst};

/// Colours, on a terminal alone. What they say is said by symbol and word as well.
struct Paint(bool);

impl Paint {
    fn mark(&self, exit: Exit) -> String {
        let (symbol, colour) = match exit {
            Exit::Healthy => ("✓", 32),
            Exit::CouldNotRun => ("i", 36),
            Exit::Degraded => ("!", 33),
            Exit::Fault => ("✕", 31),
        };
        if self.0 { format!("\x1b[{colour}m{symbol}\x1b[0m") } else { symbol.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        if self.0 { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Appends; writing to a string cannot fail.
fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok());
}

/// All of it.
pub fn text(report: &Report, colours: bool) -> String {
    let (mut out, paint) = (String::new(), Paint(colours));
    let mut rest = report.runs.as_slice();
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|made| made.place == first.place).count();
        let (these, others) = rest.split_at(same);
        device(&mut out, &paint, these);
        rest = others;
    }
    let sum = match report.result {
        Exit::Healthy if report.runs.iter().all(|made| made.outcome.is_none()) => return out,
        Exit::Healthy => "Nothing is wrong with what was run.",
        Exit::Degraded => "Something is degraded: see the lines with !.",
        Exit::Fault => "Something is broken: see the lines with ✕.",
        Exit::CouldNotRun => "Something could not be run: see the lines with i.",
    };
    put(&mut out, format_args!("{}\n", paint.bold(sum)));
    out
}

/// All runs on one device.
fn device(out: &mut String, paint: &Paint, runs: &[Made]) {
    let Some(first) = runs.first() else { return };
    let title = [first.place.to_string(), first.model.clone(), uuid(&first.place)].join("  ");
    put(out, format_args!("{}\n", paint.bold(title.trim_end())));
    let outcomes: Vec<_> = runs.iter().filter_map(|made| made.outcome.as_ref()).collect();
    if outcomes.is_empty() {
        conditions(out, paint, first);
        return;
    }
    for outcome in &outcomes {
        let (end, text) = (outcome.end.known(), &outcome.text);
        match (outcome.end, outcome.skip) {
            (CanaryEnd::Finished, _) => {}
            (_, Some(reason)) => {
                let (mark, reason) = (paint.mark(first.exit()), reason.known());
                put(out, format_args!("  {mark} not run ({reason}): {text}\n"));
            }
            _ => put(out, format_args!("  {end}: {text}\n")),
        }
    }
    let mut checks: Vec<_> = outcomes.iter().flat_map(|outcome| &outcome.checks).map(|j| j.check).collect();
    checks.sort_unstable();
    checks.dedup();
    let skipped = outcomes.iter().all(|outcome| outcome.skip.is_some());
    if skipped || checks.is_empty() {
        put(out, format_args!("\n"));
        return;
    }
    let spread = if outcomes.len() > 1 { format!("{:>9}", "spread") } else { String::new() };
    put(
        out,
        format_args!(
            "    {:<10}{:>20}{spread}{:>10}{:>10}{:>10}  verdict\n",
            "check", "rate", "roofline", "baseline", "siblings"
        ),
    );
    for check in checks {
        let all: Vec<&Judged> =
            outcomes.iter().flat_map(|o| &o.checks).filter(|j| j.check == check).collect();
        line(out, paint, &all, outcomes.len() > 1);
    }
    put(out, format_args!("\n"));
}

/// A check in all runs: the middle of its rates, and its worst verdict.
fn line(out: &mut String, paint: &Paint, all: &[&Judged], several: bool) {
    let weight = |judged: &&&Judged| (Exit::of(judged.verdict), judged.verdict != CanaryVerdict::Ok);
    let Some(worst) = all.iter().max_by_key(weight) else { return };
    let rates: Vec<Rate> = all.iter().filter_map(|judged| judged.rate).collect();
    let (rate, spread) = middle(&rates);
    let spread = if several { format!("{spread:>9}") } else { String::new() };
    let ratio = |against: RateAgainst| {
        let of =
            |judged: &&Judged| judged.ratios.iter().find(|(of, _)| *of == against).map(|(_, ratio)| *ratio);
        let ratio = statistics::median(all.iter().filter_map(of));
        ratio.map_or_else(|| "-".to_owned(), words::percent)
    };
    let times = all.iter().filter(|judged| judged.verdict == worst.verdict).count();
    let times = if several && worst.verdict != CanaryVerdict::Ok {
        format!(" ({times} of {})", all.len())
    } else {
        String::new()
    };
    put(
        out,
        format_args!(
            "  {} {:<10}{rate:>20}{spread}{:>10}{:>10}{:>10}  {}{times}\n",
            paint.mark(Exit::of(worst.verdict)),
            worst.check.known(),
            ratio(RateAgainst::Roofline),
            ratio(RateAgainst::Baseline),
            ratio(RateAgainst::Siblings),
            worst.verdict.known()
        ),
    );
    if worst.verdict != CanaryVerdict::Ok || worst.sample != CanaryVerdict::Ok {
        put(out, format_args!("      -> {}\n", worst.text));
    }
}

/// The middle of rates, and from the lowest to the highest as a share of it.
fn middle(rates: &[Rate]) -> (String, String) {
    let value = |rate: &Rate| match rate {
        Rate::WorkPerCycle(v) | Rate::BytesPerSecond(v) | Rate::BytesPerCycle(v) | Rate::Seconds(v) => *v,
    };
    let values: Vec<f64> = rates.iter().map(value).collect();
    let (Some(first), Some(median)) = (rates.first(), statistics::median(values.iter().copied())) else {
        return ("-".into(), "-".into());
    };
    let middle = match first {
        Rate::WorkPerCycle(_) => Rate::WorkPerCycle(median),
        Rate::BytesPerSecond(_) => Rate::BytesPerSecond(median),
        Rate::BytesPerCycle(_) => Rate::BytesPerCycle(median),
        Rate::Seconds(_) => Rate::Seconds(median),
    };
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(0.0, f64::max);
    (words::rate(middle), format!("{:.3} %", (highest - lowest) / median * 100.0))
}

/// What would keep a canary away.
fn conditions(out: &mut String, paint: &Paint, made: &Made) {
    for condition in &made.conditions {
        let (mark, found) = match &condition.allows {
            Allows::Yes => (paint.mark(Exit::Healthy), condition.found.clone()),
            Allows::No(reason) => {
                (paint.mark(Exit::Fault), format!("{}: keeps it away ({})", condition.found, reason.known()))
            }
            Allows::NotChecked(why) => (paint.mark(Exit::CouldNotRun), format!("not checked: {why}")),
        };
        put(out, format_args!("  {mark} {:<40} {found}\n", condition.what));
    }
    put(out, format_args!("\n"));
}

fn uuid(place: &Place) -> String {
    place.instance.as_ref().map_or_else(|| place.gpu.uuid.to_string(), |instance| instance.mig_uuid.clone())
}

//! Judges all runs of a command. Compares every GPU with the other tested GPUs, and confirms low rates with
//! two more runs.

use std::collections::BTreeMap;

use super::devices::ListedDevice;
use super::report::RunRecord;
use super::runs::Runner;
use canary::baseline::{self, BaselineStore, Quantity, Siblings};
use canary::judge;
use canary::report::CanaryRun;
use model::canary::{Outcome, Place};
use model::catalog::{CanaryCheck, CanaryEnd, CanaryVerdict};
use model::clock::unix_seconds;

/// Number of confirming runs.
const AGAIN: usize = 2;

/// Figures of every place in its last run.
type Figures = BTreeMap<Place, (String, Vec<(Quantity, f64)>)>;

/// Judges all runs and sets their outcomes.
pub fn judge(
    records: &mut [RunRecord],
    baselines: &BaselineStore,
    devices: &[ListedDevice],
    runner: &mut Runner<'_>,
) {
    let figures = figures(records, baselines);
    let judged = |place: &Place, run: &CanaryRun| -> Outcome {
        let siblings = siblings(place, run, baselines, &figures);
        judge::judge(place, run, baselines, &siblings, unix_seconds()).outcome
    };
    for record in records.iter_mut().filter(|record| record.outcome.is_none()) {
        let device = devices.iter().find(|device| device.place == record.place);
        let (Some(run), Some(device)) = (&record.run, device) else { continue };
        let mut outcome = judged(&record.place, run);
        let mut again = |checks: &[CanaryCheck], which: &str| {
            let name = format!("{}, again{which}", device.place);
            judged(&device.place, &runner.run(device, None, checks, &name))
        };
        let checks = thrown_away(&outcome);
        if !checks.is_empty() {
            take_over(&mut outcome, again(&checks, ""));
        }
        let checks = with_clock(&outcome, judge::unconfirmed(&outcome));
        if !checks.is_empty() {
            let more = (1..=AGAIN).map(|nth| again(&checks, &format!(" ({nth} of {AGAIN})")));
            let more: Vec<Outcome> = more.collect();
            judge::confirm(&mut outcome, &more);
        }
        record.outcome = Some(outcome);
    }
}

/// Returns the checks whose sample was discarded for a temporary reason, for example because the clocks had
/// not risen yet. A sample that other work disturbed is not repeated, because that work probably continues.
fn thrown_away(outcome: &Outcome) -> Vec<CanaryCheck> {
    if outcome.end != CanaryEnd::Finished {
        return Vec::new();
    }
    let skipped = outcome.checks.iter().filter(|judged| judged.sample == CanaryVerdict::Skipped);
    with_clock(outcome, skipped.map(|judged| judged.check).collect())
}

/// Replaces discarded results by the results of another run.
fn take_over(outcome: &mut Outcome, again: Outcome) {
    for judged in again.checks {
        let mut skipped = outcome.checks.iter_mut().filter(|old| old.sample == CanaryVerdict::Skipped);
        if let Some(old) = skipped.find(|old| old.check == judged.check) {
            *old = judged;
        }
    }
}

/// Adds the check of the clock, which the other checks are judged by.
fn with_clock(outcome: &Outcome, mut checks: Vec<CanaryCheck>) -> Vec<CanaryCheck> {
    let had_clock = outcome.checks.iter().any(|judged| judged.check == CanaryCheck::SmRate);
    if !checks.is_empty() && had_clock && !checks.contains(&CanaryCheck::SmRate) {
        checks.insert(0, CanaryCheck::SmRate);
    }
    checks
}

fn figures(records: &[RunRecord], baselines: &BaselineStore) -> Figures {
    let figures = records.iter().filter_map(|record| {
        let siblings = Siblings::default();
        let update =
            judge::judge(&record.place, record.run.as_ref()?, baselines, &siblings, unix_seconds()).update;
        let (_, model) = update.device?;
        Some((record.place.clone(), (model, update.newest)))
    });
    figures.collect()
}

/// Returns the figures of the other GPUs of this command, or of the daemon's baselines if there are too few.
fn siblings(place: &Place, run: &CanaryRun, baselines: &BaselineStore, figures: &Figures) -> Siblings {
    let Some(device) = &run.device else { return Siblings::default() };
    let model = baseline::model(place, device);
    let others = figures.iter().filter(|(other, (of, _))| *other != place && *of == model);
    let here = Siblings::from_figures(others.map(|(_, (_, newest))| newest.as_slice()));
    if here.is_enough() { here } else { baselines.siblings(place, device) }
}

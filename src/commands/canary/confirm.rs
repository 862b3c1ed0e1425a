//! Verdicts on all runs of a command: each GPU beside the others that were looked at, and low rates confirmed at
//! once by two more runs of what was low.

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

/// Runs that confirm.
const AGAIN: usize = 2;

/// The figures of each place in its last run.
type Figures = BTreeMap<Place, (String, Vec<(Quantity, f64)>)>;

/// Judges all runs that were made, and sets their outcomes.
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

/// Checks whose sample was thrown away for a reason that passes, as clocks that had not risen yet. Who was seen
/// on the GPU is likely to be there still.
fn thrown_away(outcome: &Outcome) -> Vec<CanaryCheck> {
    if outcome.end != CanaryEnd::Finished {
        return Vec::new();
    }
    let skipped = outcome.checks.iter().filter(|judged| judged.sample == CanaryVerdict::Skipped);
    with_clock(outcome, skipped.map(|judged| judged.check).collect())
}

/// Puts what another run says in the place of what was thrown away.
fn take_over(outcome: &mut Outcome, again: Outcome) {
    for judged in again.checks {
        let mut skipped = outcome.checks.iter_mut().filter(|old| old.sample == CanaryVerdict::Skipped);
        if let Some(old) = skipped.find(|old| old.check == judged.check) {
            *old = judged;
        }
    }
}

/// Checks to run again, with the clock that they are judged by.
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

/// The other GPUs of this command, or if they are too few those that the daemon knows.
fn siblings(place: &Place, run: &CanaryRun, baselines: &BaselineStore, figures: &Figures) -> Siblings {
    let Some(device) = &run.device else { return Siblings::default() };
    let model = baseline::model(place, device);
    let others = figures.iter().filter(|(other, (of, _))| *other != place && *of == model);
    let here = Siblings::from_figures(others.map(|(_, (_, newest))| newest.as_slice()));
    if here.is_enough() { here } else { baselines.siblings(place, device) }
}

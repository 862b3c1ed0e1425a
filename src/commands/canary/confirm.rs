//! Verdicts on all runs of a command: each GPU beside the others that were looked at, and low rates confirmed at
//! once by two more runs of what was low.

use super::Progress;
use super::devices::ListedDevice;
use super::report::RunRecord;
use super::runs::Runner;
use canary::baseline::{self, BaselineStore, Quantity, Siblings};
use canary::judge::{self, RunJudgement};
use canary::report::CanaryRun;
use model::canary::{Outcome, Place};
use model::catalog::{CanaryCheck, CanaryEnd, CanaryVerdict};
use model::clock::unix_seconds;

/// Runs that confirm.
const AGAIN: usize = 2;

/// Figures of a place in its last run.
struct Figures {
    place: Place,
    model: String,
    newest: Vec<(Quantity, f64)>,
}

/// Judges all runs that were made, and sets their outcomes.
pub fn judge(
    made: &mut [RunRecord],
    memory: &BaselineStore,
    devices: &[ListedDevice],
    runner: &mut Runner<'_>,
    progress: Progress<'_>,
) {
    let figures = figures(made, memory);
    let judged = |place: &Place, run: &CanaryRun| -> Outcome {
        let siblings = siblings(place, run, memory, &figures);
        judge::judge(place, run, memory, &siblings, unix_seconds()).outcome
    };
    for made in made.iter_mut().filter(|made| made.outcome.is_none()) {
        let Some(run) = &made.run else { continue };
        let mut outcome = judged(&made.place, run);
        let device = devices.iter().find(|device| device.place == made.place);
        let thrown_away = thrown_away(&outcome);
        if let Some(device) = device.filter(|_| !thrown_away.is_empty()) {
            let name = format!("{}, again", device.place);
            take_over(
                &mut outcome,
                judged(&made.place, &runner.run(device, None, &thrown_away, &name, progress)),
            );
        }
        let checks = again(&outcome);
        if let Some(device) = device.filter(|_| !checks.is_empty()) {
            let more: Vec<Outcome> = (1..=AGAIN)
                .map(|nth| {
                    let name = format!("{}, again ({nth} of {AGAIN})", device.place);
                    judged(&made.place, &runner.run(device, None, &checks, &name, progress))
                })
                .collect();
            judge::confirm(&mut outcome, &more);
        }
        made.outcome = Some(outcome);
    }
}

/// Checks whose sample was thrown away for a reason that passes, as clocks that had not risen yet. Who was seen
/// on the GPU is likely to be there still.
fn thrown_away(outcome: &Outcome) -> Vec<CanaryCheck> {
    if outcome.end != CanaryEnd::Finished {
        return Vec::new();
    }
    let skipped = outcome.checks.iter().filter(|judged| judged.sample == CanaryVerdict::Skipped);
    let mut checks: Vec<CanaryCheck> = skipped.map(|judged| judged.check).collect();
    with_clock(outcome, &mut checks);
    checks
}

/// Puts what another run says in the place of what was thrown away.
fn take_over(outcome: &mut Outcome, again: Outcome) {
    for judged in again.checks {
        let thrown_away = outcome
            .checks
            .iter_mut()
            .find(|old| old.check == judged.check && old.sample == CanaryVerdict::Skipped);
        if let Some(old) = thrown_away {
            *old = judged;
        }
    }
}

/// What is to be run again: what was low, and the clock that it is judged by.
fn again(outcome: &Outcome) -> Vec<CanaryCheck> {
    let mut checks = judge::unconfirmed(outcome);
    with_clock(outcome, &mut checks);
    checks
}

fn with_clock(outcome: &Outcome, checks: &mut Vec<CanaryCheck>) {
    let had_clock = outcome.checks.iter().any(|judged| judged.check == CanaryCheck::SmRate);
    if !checks.is_empty() && had_clock && !checks.contains(&CanaryCheck::SmRate) {
        checks.insert(0, CanaryCheck::SmRate);
    }
}

fn figures(made: &[RunRecord], memory: &BaselineStore) -> Vec<Figures> {
    let mut all: Vec<Figures> = Vec::new();
    for made in made {
        let Some(run) = &made.run else { continue };
        let RunJudgement { update, .. } =
            judge::judge(&made.place, run, memory, &Siblings::default(), unix_seconds());
        let Some((_, model)) = update.device else { continue };
        all.retain(|figures| figures.place != made.place);
        all.push(Figures { place: made.place.clone(), model, newest: update.newest });
    }
    all
}

/// The other GPUs of this command, or if they are too few those that the daemon knows.
fn siblings(place: &Place, run: &CanaryRun, memory: &BaselineStore, figures: &[Figures]) -> Siblings {
    let Some(device) = &run.device else { return Siblings::default() };
    let model = baseline::model(place, device);
    let others = figures.iter().filter(|other| other.place != *place && other.model == model);
    let here = Siblings::of(others.map(|other| other.newest.as_slice()));
    if here.is_enough() { here } else { memory.siblings(place, device) }
}

//! Verdicts on canary runs, and the samples to keep. The judge is pure arithmetic on reports: it reads no clock, file or
//! driver.
//!
//! Causes differ in their figures. The multiprocessors count their cycles and their time, so work per cycle shows how
//! efficiently they worked, and the clock shows how fast they were allowed to run. A low clock may or may not have a
//! reason. Work per cycle is low on one multiprocessor or on all. Memory is slow at full clocks or because of low clocks.
//! Either the link is narrow or the host is slow. Another process on the GPU invalidates a sample.

mod confirmation;
mod endings;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
mod properties_tests;
mod results;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thresholds_tests;

use super::baseline::{self, BaselineStore, BaselineUpdate, NEEDED, Quantity, Siblings};
use super::checks::{self, Measurement, sm_rate};
use super::format::{counted, listed, seconds};
use super::report::{CanaryRun, CudaDevice, Mismatches};
use super::sample::clocks::{self, Clock};
use super::sample::{RunContext, Sample};
pub use checks::{TRANSFORM_LIMIT, overlap_bound};
use confirmation::{is_rate, is_valid};
pub use endings::worth_another_try;
use model::canary::{Judged, Outcome, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanarySkip, CanaryVerdict};

/// Wall time beyond the time of the kernels that proves that another process used the GPU in between. It is a factor of
/// 1.5, plus more than the delay after which a busy host notices the ends of launches.
const SLICED: (f64, f64) = (1.5, 0.010);

/// Outcome of a run, and its contribution to the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct RunJudgement {
    pub outcome: Outcome,
    /// Input of [`BaselineStore::apply`] with the results of this run.
    pub update: BaselineUpdate,
}

/// Judges a run at a place by its history and its siblings. `now` is in seconds since 1970.
pub fn judge(
    place: &Place,
    run: &CanaryRun,
    baseline: &BaselineStore,
    siblings: &Siblings,
    now: f64,
) -> RunJudgement {
    let unknown = CudaDevice::default();
    let device = run.device.as_ref().unwrap_or(&unknown);
    let (key, configuration) = (baseline::key(place), baseline::configuration(device));
    let view =
        RunContext { device, place, key: &key, configuration: &configuration, baseline, siblings, now };
    let (mut outcome, failed) = endings::ending(place, run);
    let mut update = BaselineUpdate {
        key: key.clone(),
        at: now,
        device: run.device.as_ref().map(|device| (configuration.clone(), baseline::model(place, device))),
        clean: Vec::new(),
        newest: Vec::new(),
        samples: Vec::new(),
    };
    let mut conclude = |check: CanaryCheck, sample: Sample, mismatches: &Mismatches| {
        let judged = conclude(&view, check, &sample, mismatches);
        remember(&mut update, &judged, &sample);
        outcome.checks.push(judged);
    };
    if let Some(sample) = run.device.as_ref().and_then(|_| checks::steps::judge(&view, &run.steps)) {
        conclude(CanaryCheck::Init, sample, &Mismatches::default());
    }
    let clock = clock(&view, run);
    for measured in &run.measured {
        let sample = match run.device {
            Some(_) => sample(&view, measured, &clock),
            None => Sample::discarded(CanaryVerdict::Skipped, "the process did not report the device".into()),
        };
        // A wrong result counts even if other processes used the GPU.
        conclude(measured.check, results::judge(&view, measured, sample), &measured.mismatches);
    }
    if let Some((check, verdict)) = failed {
        // The check that failed has no other verdict.
        outcome.checks.retain(|judged| judged.check != check);
        outcome.checks.push(Judged::plain(check, verdict, outcome.text.clone()));
    }
    RunJudgement { outcome, update }
}

/// Returns the outcome of a run that was not started.
pub fn not_run(place: &Place, reason: CanarySkip, text: String, now: f64) -> Outcome {
    let run = CanaryRun::unable(now, reason, text);
    judge(place, &run, &BaselineStore::default(), &Siblings::default(), now).outcome
}

/// Returns checks whose rate was low in this run, but not yet for long enough.
pub fn unconfirmed(outcome: &Outcome) -> Vec<CanaryCheck> {
    let low =
        outcome.checks.iter().filter(|judged| is_rate(judged.sample) && judged.verdict != judged.sample);
    low.map(|judged| judged.check).collect()
}

/// Confirms low rates of this run at once, for callers that cannot wait ten minutes: a rate must be low in all further
/// runs too. Runs that measured nothing neither confirm nor clear a low rate.
pub fn confirm(outcome: &mut Outcome, again: &[Outcome]) {
    for check in unconfirmed(outcome) {
        let of_check = |outcome: &Outcome| -> Option<CanaryVerdict> {
            outcome.checks.iter().find(|judged| judged.check == check).map(|judged| judged.sample)
        };
        let valid: Vec<CanaryVerdict> =
            again.iter().filter_map(of_check).filter(|sample| is_valid(*sample)).collect();
        let low = valid.iter().filter(|sample| is_rate(**sample)).count();
        let Some(judged) = outcome.checks.iter_mut().find(|judged| judged.check == check) else { continue };
        let (times, all) = (low + 1, valid.len() + 1);
        judged.text.push_str(&match (low == valid.len(), valid.len() == again.len() && !again.is_empty()) {
            (true, true) => {
                judged.verdict = judged.sample;
                format!("; so in {times} of {all} runs")
            }
            (true, false) => format!(
                "; measured again in {} of {} further runs only, so it does not count yet: run it again",
                valid.len(),
                again.len()
            ),
            (false, _) => format!("; seen in {times} of {all} runs, so it does not count"),
        });
    }
}

/// Returns the clock of this run from `sm_rate`. Rates that follow the clock are judged by it.
fn clock(view: &RunContext<'_>, run: &CanaryRun) -> Clock {
    let sm_rate = run.measured.iter().find(|measured| measured.check == CanaryCheck::SmRate);
    sm_rate.map(|measured| sm_rate::judge(view, measured).1).unwrap_or_else(|| {
        // Without `sm_rate`, NVML's clock is used, which is rounded and slightly outdated.
        let lowest = run.measured.iter().filter(|measured| measured.around.sm_clock_hertz > 0.0);
        let lowest = lowest
            .min_by(|a, b| f64::total_cmp(&a.around.sm_clock_hertz, &b.around.sm_clock_hertz))
            .map(|measured| &measured.around);
        lowest.map_or(Clock::Fine, |around| {
            clocks::judge(view, around, Quantity::SM_RATE_CLOCK, around.sm_clock_hertz, true)
        })
    })
}

/// Judges one check by itself.
fn sample(view: &RunContext<'_>, measured: &Measurement, clock: &Clock) -> Sample {
    if let Some(why) = contention(measured) {
        return Sample::discarded(CanaryVerdict::Contended, why);
    }
    let Some(check) = checks::by_name(measured.check) else {
        return Sample::discarded(CanaryVerdict::Skipped, "the check measures nothing".into());
    };
    let mut sample = (check.judge)(view, measured, clock);
    let errors = usize::try_from(measured.around.corrected_errors).unwrap_or(0);
    if errors > 0 && sample.verdict == CanaryVerdict::Ok {
        sample.say(format!("{} meanwhile", counted(errors, "corrected memory error")));
    }
    sample
}

/// Returns a description of other processes that used the GPU during the check.
fn contention(measured: &Measurement) -> Option<String> {
    let others = &measured.around.others;
    if !others.is_empty() {
        let text = format!("process {} used the GPU meanwhile; thrown away", listed(others));
        return Some(text);
    }
    // Copies, and checks of results on the host, add wall time of their own.
    let timed = checks::by_name(measured.check).is_some_and(|check| check.back_to_back);
    let (wall, gpu) = (measured.wall_seconds, measured.gpu_seconds);
    let (times, beyond) = SLICED;
    (timed && gpu > 0.0 && wall > times * gpu + beyond).then(|| {
        let (wall, gpu) = (seconds(wall), seconds(gpu));
        format!("took {wall} for {gpu} of work: another process had the GPU in between; thrown away")
    })
}

/// Returns the verdict on a check after this sample.
fn conclude(view: &RunContext<'_>, check: CanaryCheck, sample: &Sample, mismatches: &Mismatches) -> Judged {
    let RunContext { key, configuration, baseline, now, .. } = *view;
    let recent = baseline.recent(key, configuration, check, now);
    let verdict = confirmation::verdict(&recent, sample.verdict, now);
    let mut text = sample.text();
    if is_rate(sample.verdict) && verdict == CanaryVerdict::Ok {
        text.push_str("; not yet in three of the last four runs over ten minutes");
    } else if is_rate(verdict) && !is_rate(sample.verdict) {
        text.push_str(&format!("; {} in three of the last four valid runs", verdict.known()));
    }
    let known = sample.figures.first().map(|(quantity, _)| baseline.count(key, configuration, *quantity));
    if let Some(known) = known.filter(|known| *known < NEEDED) {
        text.push_str(&format!("; baseline: {known} of {NEEDED} runs"));
    }
    let zeroed = mismatches.zeroed.min(mismatches.wrong);
    Judged {
        check,
        verdict,
        sample: sample.verdict,
        text,
        rate: sample.rate,
        ratios: sample.ratios.clone(),
        sm_clock_hertz: sample.sm_clock_hertz,
        zeroed,
        flipped: mismatches.wrong - zeroed,
        bad_sms: sample.bad_sms.clone(),
    }
}

/// Adds the sample to the update. A check with a finding adds nothing to the baseline, because the baseline must not
/// follow a GPU that degrades.
fn remember(update: &mut BaselineUpdate, judged: &Judged, sample: &Sample) {
    if !is_valid(judged.sample) {
        return;
    }
    update.samples.push((judged.check, judged.sample));
    update.newest.extend(&sample.figures);
    if judged.sample == CanaryVerdict::Ok && judged.verdict == CanaryVerdict::Ok {
        let clean = sample.figures.iter().filter(|(quantity, _)| !sample.unusual.contains(quantity));
        update.clean.extend(clean);
    }
}

//! Verdicts on runs of the canary, and what to remember of them. All of it is arithmetic on what was reported:
//! nothing here asks the clock, a file or a driver.
//!
//! How causes are told apart: each multiprocessor counts its cycles and its time, so work per cycle says what
//! it did and the clock how fast it was let. A low clock has a reason or none; work per cycle is low on one
//! multiprocessor or on all; memory is slow at full clocks or because of them; a link is narrow or the host is
//! slow. Who was seen on the GPU meanwhile makes a sample worthless.

mod bandwidth;
mod clocks;
mod ends;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod host;
mod link;
#[cfg(test)]
mod properties_tests;
pub mod reasons;
mod results;
mod sms;
mod standing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thresholds_tests;
mod view;
pub mod words;

use super::baseline::{Configuration, Lesson, Memory, Model, NEEDED, Quantity, Siblings, Spot};
use super::report::{Found, Measured, Run};
use clocks::Clock;
pub use ends::{is_left_alone, worth_another_try};
pub use host::overlap_bound;
use model::canary::{Judged, Outcome, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanaryEnd, CanarySkip, CanaryVerdict};
pub use results::TRANSFORM_LIMIT;
use standing::{is_rate, is_valid};
use view::{Sample, View};

/// Wall time beyond the time in which kernels ran, from which on somebody else must have had the GPU in between:
/// half as much again, and more than a busy host takes to notice the end of some launches.
const SLICED: (f64, f64) = (1.5, 0.010);

/// A verdict, and what the run teaches.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What became of the run.
    pub outcome: Outcome,
    /// For [`Memory::take`].
    pub lesson: Lesson,
}

/// Judges a run at a place, with what is remembered of it and of its siblings, at this time (seconds since
/// 1970).
pub fn judge(place: &Place, run: &Run, memory: &Memory, siblings: &Siblings, now: f64) -> Judgement {
    let spot = Spot::of(place);
    let device = run.device.as_ref();
    let configuration = device.map(Configuration::of);
    let view = device.zip(configuration.as_ref()).map(|(device, configuration)| View {
        device,
        spot: &spot,
        configuration,
        memory,
        siblings,
        now,
    });
    let ending = ends::ending(run);
    let mut lesson = Lesson {
        spot: spot.clone(),
        at: now,
        device: configuration.clone().zip(device.map(|device| Model::of(place, device))),
        clean: Vec::new(),
        newest: Vec::new(),
        samples: Vec::new(),
    };
    let mut checks = Vec::new();
    let mut conclude = |check: CanaryCheck, sample: Sample, measured: Option<&Measured>| {
        let judged = conclude(view.as_ref(), memory, &spot, now, check, &sample, measured);
        remember(&mut lesson, &judged, &sample);
        checks.push(judged);
    };
    if let Some(view) = &view
        && let Some(sample) = host::steps(view, &run.steps)
    {
        conclude(CanaryCheck::Init, sample, None);
    }
    let clock = view.as_ref().map_or(Clock::Fine, |view| clock(view, run));
    for measured in &run.measured {
        let sample = sample(view.as_ref(), measured, &clock);
        conclude(measured.check, sample, Some(measured));
    }
    if let Some((check, verdict)) = ending.judged {
        // The check that failed has no other word.
        checks.retain(|judged| judged.check != check);
        checks.push(Judged::plain(check, verdict, ending.text.clone()));
    }
    let outcome = Outcome {
        place: place.clone(),
        began: run.began,
        ended: run.ended,
        end: ending.end,
        skip: ending.skip,
        text: ending.text,
        step: ending.step,
        cuda_error: ending.cuda_error,
        steps: run.steps.clone(),
        gpu_seconds: run.gpu_seconds,
        checks,
    };
    Judgement { outcome, lesson }
}

/// The outcome of a run that was not made.
pub fn not_run(place: &Place, reason: CanarySkip, text: String, now: f64) -> Outcome {
    Outcome {
        place: place.clone(),
        began: now,
        ended: now,
        end: CanaryEnd::CouldNotRun,
        skip: Some(reason),
        checks: vec![Judged::plain(CanaryCheck::Init, ends::of_skip(reason), text.clone())],
        text,
        step: None,
        cuda_error: None,
        steps: Vec::new(),
        gpu_seconds: 0.0,
    }
}

/// Checks whose rate was low in this run and not yet for long enough.
pub fn unconfirmed(outcome: &Outcome) -> Vec<CanaryCheck> {
    let low =
        outcome.checks.iter().filter(|judged| is_rate(judged.sample) && judged.verdict != judged.sample);
    low.map(|judged| judged.check).collect()
}

/// Confirms at once what was low in this run: by further runs in which it must be low too, each of them. For
/// who cannot wait for ten minutes to pass. Runs that measured nothing neither confirm nor clear.
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

/// The clock in this run, by which rates that follow it are judged: of `sm_rate`, which measures it.
fn clock(view: &View<'_>, run: &Run) -> Clock {
    let told = run.measured.iter().find_map(|measured| match &measured.found {
        Found::Sms(sms) if measured.check == CanaryCheck::SmRate => Some(sms::judge(view, measured, sms).1),
        _ => None,
    });
    told.unwrap_or_else(|| {
        // Without it there is NVML's word, which is rounded and a moment old.
        let lowest = run.measured.iter().filter(|measured| measured.around.sm_clock_hertz > 0.0);
        let lowest = lowest
            .min_by(|a, b| f64::total_cmp(&a.around.sm_clock_hertz, &b.around.sm_clock_hertz))
            .map(|measured| &measured.around);
        lowest.map_or(Clock::Fine, |around| {
            clocks::judge(view, around, Quantity::SmRateClock, around.sm_clock_hertz, true)
        })
    })
}

/// What one check says by itself.
fn sample(view: Option<&View<'_>>, measured: &Measured, clock: &Clock) -> Sample {
    let judged = match view {
        Some(view) => figures(view, measured, clock),
        None => Sample::discarded(CanaryVerdict::Skipped, "the device was not told".into()),
    };
    let judged = match contention(measured) {
        Some(why) => Sample::discarded(CanaryVerdict::Contended, why),
        None => judged,
    };
    // A wrong result is wrong whoever else is there.
    results::judge(view, measured, judged)
}

fn figures(view: &View<'_>, measured: &Measured, clock: &Clock) -> Sample {
    let mut sample = match &measured.found {
        Found::Sms(sms) => sms::judge(view, measured, sms).0,
        Found::Covered(sms) => covered(view, sms),
        Found::Read { bytes, seconds, sm_clock_hertz } => {
            bandwidth::judge(view, measured, *bytes, seconds, *sm_clock_hertz, clock)
        }
        Found::Walked { bytes, patterns } => {
            let mut sample = Sample::new();
            sample.say(format!("{} MiB held {patterns} patterns", bytes >> 20));
            sample
        }
        Found::Launched(times) => host::launch(view, times, clock),
        Found::Overlapped(overlap) => host::overlap(overlap),
        Found::Transformed(transform) => results::transform(transform),
        Found::Copied { .. } => link::pcie(view, measured).unwrap_or_else(Sample::new),
        Found::Peer { .. } => link::peer(measured).unwrap_or_else(Sample::new),
    };
    if measured.around.corrected_errors > 0 && sample.verdict == CanaryVerdict::Ok {
        let errors = measured.around.corrected_errors;
        sample.say(format!(
            "{} meanwhile",
            words::counted(usize::try_from(errors).unwrap_or(0), "corrected memory error")
        ));
    }
    sample
}

fn covered(view: &View<'_>, sms: &[u32]) -> Sample {
    let mut distinct = sms.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let mut sample = Sample::new();
    let (done, all) = (distinct.len(), view.device.multiprocessors);
    let short = usize::try_from(all).is_ok_and(|all| done < all);
    sample.say(format!("right on {}", words::counted(done, "multiprocessor")));
    if short {
        sample.say(format!("the others of {all} were not reached"));
    }
    sample
}

/// Who else had the GPU meanwhile.
fn contention(measured: &Measured) -> Option<String> {
    let others = &measured.around.others;
    if !others.is_empty() {
        let text = format!("process {} used the GPU meanwhile; thrown away", words::listed(others));
        return Some(text);
    }
    // Copies and checks of results on the host take wall time of their own.
    let timed = matches!(
        measured.check,
        CanaryCheck::SmRate | CanaryCheck::Tensor | CanaryCheck::HbmRead | CanaryCheck::L2
    );
    let (wall, gpu) = (measured.wall_seconds, measured.gpu_seconds);
    let (times, beyond) = SLICED;
    (timed && gpu > 0.0 && wall > times * gpu + beyond).then(|| {
        let (wall, gpu) = (words::seconds(wall), words::seconds(gpu));
        format!("took {wall} for {gpu} of work: somebody else had the GPU in between; thrown away")
    })
}

/// What stands of a check after this sample.
fn conclude(
    view: Option<&View<'_>>,
    memory: &Memory,
    spot: &Spot,
    now: f64,
    check: CanaryCheck,
    sample: &Sample,
    measured: Option<&Measured>,
) -> Judged {
    let recent = view.map(|view| memory.recent(spot, view.configuration, check, now)).unwrap_or_default();
    let stands = standing::verdict(&recent, sample.verdict, now);
    let wrong = memory.wrong(spot).iter().find(|wrong| wrong.check == check);
    let verdict = standing::with_wrong(stands, wrong, now);
    let mut text = sample.words();
    if let Some(wrong) = wrong.filter(|_| verdict != stands) {
        text.push_str(&format!(
            "; it computed wrongly before, which was confirmed and stands until {} right runs ({} since)",
            super::baseline::RIGHT_AGAIN,
            wrong.right_since
        ));
    } else if is_rate(sample.verdict) && verdict == CanaryVerdict::Ok {
        text.push_str("; not yet in three of the last four runs over ten minutes");
    } else if is_rate(verdict) && !is_rate(sample.verdict) {
        text.push_str(&format!("; {} in three of the last four valid runs", verdict.known()));
    }
    let known = view
        .zip(sample.figures.first())
        .map(|(view, (quantity, _))| memory.count(spot, view.configuration, *quantity));
    if let Some(known) = known.filter(|known| *known < NEEDED) {
        text.push_str(&format!("; baseline: {known} of {NEEDED} runs"));
    }
    let mismatches = measured.map(|measured| &measured.mismatches);
    let zeroed = mismatches.map_or(0, |wrong| wrong.zeroed.min(wrong.wrong));
    Judged {
        check,
        verdict,
        sample: sample.verdict,
        text,
        rate: sample.rate,
        ratios: sample.ratios.clone(),
        sm_clock_hertz: sample.sm_clock_hertz,
        zeroed,
        flipped: mismatches.map_or(0, |wrong| wrong.wrong) - zeroed,
        bad_sms: sample.bad_sms.clone(),
    }
}

/// Notes what the sample teaches. Nothing is learned of what is usual from a check that is not well: a baseline
/// must not follow a GPU that decays.
fn remember(lesson: &mut Lesson, judged: &Judged, sample: &Sample) {
    if !is_valid(judged.sample) {
        return;
    }
    lesson.samples.push((judged.check, judged.sample));
    lesson.newest.extend(&sample.figures);
    if judged.sample == CanaryVerdict::Ok && judged.verdict == CanaryVerdict::Ok {
        let clean = sample.figures.iter().filter(|(quantity, _)| !sample.unusual.contains(quantity));
        lesson.clean.extend(clean);
    }
}

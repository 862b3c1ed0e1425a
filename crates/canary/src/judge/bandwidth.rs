//! `hbm_read` and `l2`: bytes read from device memory and from its cache.

use super::clocks::Clock;
use super::reasons::Reasons;
use super::view::{Sample, View};
use super::words::{bytes_per_second, percent, rate, seconds};
use crate::baseline::{Quantity, statistics};
use crate::report::Measured;
use crate::roofline;
use model::canary::Rate;
use model::catalog::{CanaryCheck, CanaryVerdict, RateAgainst};

/// Share of the memory clock's bandwidth that every part was seen to pass: simple readers reach 0.76 to 0.94.
const FLOOR: f64 = 0.60;
/// Share of its highest below which the memory clock, not the memory, is what is slow. Parts that lower it for
/// compute (a performance state) stay above.
const MEMORY_CLOCK_FLOOR: f64 = 0.90;

/// Judges a check that read `bytes` so often as there are times.
pub fn judge(
    view: &View<'_>,
    measured: &Measured,
    bytes: u64,
    times: &[f64],
    hertz: f64,
    clock: &Clock,
) -> Sample {
    let time = statistics::median(times.iter().copied());
    let speed = time.map(|time| bytes as f64 / time).filter(|speed| speed.is_finite() && *speed > 0.0);
    let (Some(time), Some(speed)) = (time, speed) else {
        return Sample::discarded(CanaryVerdict::Skipped, "no time was measured".into());
    };
    match measured.check {
        CanaryCheck::L2 => cache(view, speed, hertz, clock),
        _ => device_memory(view, measured, speed, time, clock),
    }
}

fn device_memory(view: &View<'_>, measured: &Measured, speed: f64, time: f64, clock: &Clock) -> Sample {
    let mut sample = Sample::new();
    sample.rate = Some(Rate::BytesPerSecond(speed));
    sample.say(format!("{}, {} a pass", bytes_per_second(speed), seconds(time)));
    let low = view.compare(&mut sample, Quantity::HbmRead, speed);
    let bound = roofline::memory(view.device, &measured.around, view.whole());
    let share = bound.map(|bound| speed / bound);
    if let Some((bound, share)) = bound.zip(share) {
        sample.compare(RateAgainst::Roofline, share);
        sample.say(format!("{} of its clock's {}", percent(share), bytes_per_second(bound)));
    }
    let below = share.filter(|share| *share < FLOOR);
    let low = low.or(below.map(|_| format!("below {} of what clock and bus give", percent(FLOOR))));
    let low = match low {
        Some(low) => low,
        // A bound that follows a lowered clock hides it.
        None if memory_clock(view, measured).is_some_and(|share| share < FLOOR) => "by its clock".into(),
        None => return sample,
    };
    if let Some(why) = not_memory(clock) {
        return Sample { verdict: CanaryVerdict::Skipped, figures: Vec::new(), text: vec![why], ..sample };
    }
    if let Some(share) = memory_clock(view, measured).filter(|share| *share < MEMORY_CLOCK_FLOOR) {
        return by_memory_clock(view, measured, share, &low, sample);
    }
    let errors = match measured.around.corrected_errors {
        0 => "no corrected errors meanwhile".to_owned(),
        n => format!("{n} corrected errors meanwhile"),
    };
    sample.find(
        CanaryVerdict::DegradedMemory,
        format!(
            "device memory is slow at full clocks ({low}; {errors}); see `nvidia-smi -q -d ECC,ROW_REMAPPER`, \
             then drain it and run `dcgmi diag -r 3`"
        ),
    );
    sample
}

/// The memory clock while it ran, as a share of the highest.
fn memory_clock(view: &View<'_>, measured: &Measured) -> Option<f64> {
    let share = measured.around.memory_clock_hertz / view.device.max_memory_clock_hertz;
    (share.is_finite() && share > 0.0).then_some(share)
}

fn by_memory_clock(
    view: &View<'_>,
    measured: &Measured,
    share: f64,
    low: &str,
    mut sample: Sample,
) -> Sample {
    sample.unusual.push(Quantity::HbmRead);
    let Some(reasons) = Reasons::seen(view.device, &measured.around) else { return sample };
    if reasons.only_idle() {
        let why = "the memory clock had not risen from idle yet; thrown away".to_owned();
        return Sample::discarded(CanaryVerdict::Skipped, why);
    }
    let what = format!("the memory clock is at {} of its highest ({low})", percent(share));
    if reasons.by_choice() {
        sample.say(format!("{what}, by choice: {}", reasons.words()));
    } else if reasons.none() {
        let todo = "compare `nvidia-smi -q -d CLOCK,PERFORMANCE`, then reset the drained GPU";
        sample.find(CanaryVerdict::UnexplainedClockCap, format!("{what} and NVML tells no reason; {todo}"));
    } else {
        let text = format!("{what} by {}; {}", reasons.words(), reasons.first_thing());
        sample.find(CanaryVerdict::Throttled, text);
    }
    sample
}

fn cache(view: &View<'_>, speed: f64, hertz: f64, clock: &Clock) -> Sample {
    let mut sample = Sample::new();
    let per_cycle = speed / hertz;
    if !(per_cycle.is_finite() && per_cycle > 0.0) {
        // Bytes a second follow the clock: without it they say nothing.
        sample.rate = Some(Rate::BytesPerSecond(speed));
        sample.say(format!("{}; at which clock was not told", bytes_per_second(speed)));
        return sample;
    }
    sample.rate = Some(Rate::BytesPerCycle(per_cycle));
    sample.say(format!("{}, {}", rate(Rate::BytesPerCycle(per_cycle)), bytes_per_second(speed)));
    let Some(low) = view.compare(&mut sample, Quantity::L2Read, per_cycle) else { return sample };
    if let Some(why) = not_memory(clock) {
        return Sample { verdict: CanaryVerdict::Skipped, figures: Vec::new(), text: vec![why], ..sample };
    }
    let todo = "drain it and run `dcgmi diag -r 3`";
    sample
        .find(CanaryVerdict::DegradedMemory, format!("the L2 cache is slow at full clocks ({low}); {todo}"));
    sample
}

/// Why a low rate says nothing of the memory.
fn not_memory(clock: &Clock) -> Option<String> {
    let what = match clock {
        Clock::Fine => return None,
        Clock::Unramped => "had not risen from idle",
        Clock::Chosen(_) => "was low by choice",
        Clock::Low(..) => "was low",
    };
    Some(format!("not judged: the clock of the multiprocessors {what}"))
}

//! `hbm_read` measures the bandwidth of device memory and verifies the sum of all words. The bandwidth is compared with
//! clock and bus, with the GPU's own history and with its siblings. Any wrong sum is a wrong result.

use super::*;

pub static CHECK: Check =
    Check::new(CanaryCheck::HbmRead, CanaryStep::HbmRead, &["hbm_read", "fill"], measure, judge)
        .back_to_back();

impl Quantity {
    /// Bytes per second read from device memory. The figure is assumed to repeat to 1 %; 5 % is the usual tolerance in
    /// the field.
    pub const HBM_READ: Quantity = Quantity::rate("hbm_read", bytes_per_second, 0.05);
}

/// Maximum time of a launch in seconds, and maximum number of passes in a launch.
const LAUNCH: f64 = 4e-3;
const PASSES: u32 = 8;
/// Share of the memory clock's bandwidth that every known GPU exceeds. Simple readers reach 0.76 to 0.94.
const FLOOR: f64 = 0.60;
/// Share of the highest memory clock below which the clock causes the low rate, and not the memory. GPUs that lower the
/// memory clock for compute (a performance state) stay above this share.
const MEMORY_CLOCK_FLOOR: f64 = 0.90;

/// Reads all memory that the run may use.
fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let bytes_per_second = roofline::memory_rate(&s.device, s.device.max_memory_clock_hertz);
    let passes = stats::passes(s.arena.left(), bytes_per_second, LAUNCH, PASSES);
    reads::measure(s, "hbm_read", u64::MAX, passes)
}

fn judge(view: &RunContext<'_>, measured: &Measurement, clock: &Clock) -> Sample {
    let CheckFigures::Read { bytes, seconds: times, .. } = &measured.found else {
        return CheckFigures::of_another_check();
    };
    let Some((time, speed)) = reads::speed(*bytes, times) else { return reads::no_time() };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::BytesPerSecond(speed));
    sample.say(format!("{}, {} a pass", bytes_per_second(speed), seconds(time)));
    let low = view.compare(&mut sample, Quantity::HBM_READ, speed);
    let bound = roofline::memory(view.device, &measured.around, view.is_whole_gpu());
    let share = bound.map(|bound| speed / bound);
    if let Some((bound, share)) = bound.zip(share) {
        sample.compare(RateAgainst::Roofline, share);
        sample.say(format!("{} of its clock's {}", percent(share), bytes_per_second(bound)));
    }
    let below = share.filter(|share| *share < FLOOR);
    let low = low.or(below.map(|_| format!("below {} of what clock and bus give", percent(FLOOR))));
    let low = match low {
        Some(low) => low,
        // A bound computed from a lowered clock would hide the lowered clock.
        None if memory_clock(view, measured).is_some_and(|share| share < FLOOR) => "by its clock".into(),
        None => return sample,
    };
    if let Some(skipped) = reads::unless_by_clock(clock, &sample) {
        return skipped;
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

/// Returns the memory clock during the check as a share of the highest memory clock.
fn memory_clock(view: &RunContext<'_>, measured: &Measurement) -> Option<f64> {
    let share = measured.around.memory_clock_hertz / view.device.max_memory_clock_hertz;
    (share.is_finite() && share > 0.0).then_some(share)
}

fn by_memory_clock(
    view: &RunContext<'_>,
    measured: &Measurement,
    share: f64,
    low: &str,
    mut sample: Sample,
) -> Sample {
    sample.unusual.push(Quantity::HBM_READ);
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
        sample.find(CanaryVerdict::UnexplainedClockCap, format!("{what} and NVML reports no reason; {todo}"));
    } else {
        let text = format!("{what} by {}; {}", reasons.words(), reasons.first_thing());
        sample.find(CanaryVerdict::Throttled, text);
    }
    sample
}

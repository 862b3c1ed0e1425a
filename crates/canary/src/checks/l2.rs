//! `l2` measures the bandwidth of the L2 cache in bytes per cycle and verifies the sum of all words. The bandwidth is
//! compared with the GPU's own history and its siblings, because no bound is published. Any wrong sum is a wrong
//! result.

use super::*;
use crate::format::bytes_per_cycle;

pub static CHECK: Check =
    Check::new(CanaryCheck::L2, CanaryStep::L2, &["l2", "fill"], measure, judge).back_to_back();

impl Quantity {
    /// Bytes read from L2 in one cycle of the SM clock.
    pub const L2_READ: Quantity = Quantity::rate("l2_read", bytes_per_cycle, 0.05);
}

/// Maximum number of passes in a launch.
const PASSES: u32 = 64;

/// Reads a quarter of the cache. Returns `None` if the size of the cache is unknown.
fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let quarter = s.device.l2_bytes / 4;
    if quarter < 1 << 16 {
        return Ok(None);
    }
    reads::measure(s, "l2", quarter, PASSES)
}

fn judge(view: &RunContext<'_>, measured: &Measurement, clock: &Clock) -> Sample {
    let CheckFigures::Read { bytes, seconds, sm_clock_hertz } = &measured.found else {
        return CheckFigures::of_another_check();
    };
    let Some((_, speed)) = reads::speed(*bytes, seconds) else { return reads::no_time() };
    let mut sample = Sample::new();
    let per_cycle = speed / sm_clock_hertz;
    if !(per_cycle.is_finite() && per_cycle > 0.0) {
        // Bytes per second follow the clock, so they mean nothing without the clock.
        sample.rate = Some(Rate::BytesPerSecond(speed));
        sample.say(format!("{}; the clock is unknown", bytes_per_second(speed)));
        return sample;
    }
    sample.rate = Some(Rate::BytesPerCycle(per_cycle));
    sample.say(format!("{}, {}", bytes_per_cycle(per_cycle), bytes_per_second(speed)));
    let Some(low) = view.compare(&mut sample, Quantity::L2_READ, per_cycle) else { return sample };
    if let Some(skipped) = reads::unless_by_clock(clock, &sample) {
        return skipped;
    }
    let todo = "drain it and run `dcgmi diag -r 3`";
    sample
        .find(CanaryVerdict::DegradedMemory, format!("the L2 cache is slow at full clocks ({low}); {todo}"));
    sample
}

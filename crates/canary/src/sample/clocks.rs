//! Judges the clock of the multiprocessors, and finds the reason for a low clock.

use super::RunContext;
use super::reasons::Reasons;
use crate::baseline::Quantity;
use crate::format::{megahertz, percent};
use model::catalog::CanaryVerdict;
use sampler::watch::Around;

/// Share of the highest clock below which the clock is low without any baseline, on GPUs that normally run at their
/// highest clock.
const STEADY_FLOOR: f64 = 0.95;
/// The same share for GPUs that never reach the highest clock that they report.
const MOVING_FLOOR: f64 = 0.75;

/// Judgement of the clock.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Clock {
    /// The clock is as expected, or there is nothing to compare it with.
    Fine,
    /// The clock is low because it had not yet risen after an idle period. The sample is inconclusive.
    Unramped,
    /// The clock is low on purpose, for this reason.
    Chosen(String),
    /// The clock is low, with the verdict and the reason.
    Low(CanaryVerdict, String),
}

impl Clock {
    /// Returns true if rates that follow the clock can be judged.
    pub fn is_fine(&self) -> bool {
        *self == Clock::Fine
    }
}

/// Judges a clock by the baseline of `quantity`. If `absolute` is true, the clock is also compared with the highest clock
/// that the device reports.
pub fn judge(
    view: &RunContext<'_>,
    around: &Around,
    quantity: Quantity,
    hertz: f64,
    absolute: bool,
) -> Clock {
    // Without NVML's reasons, a low clock could have any cause.
    let Some(reasons) = Reasons::seen(view.device, around) else { return Clock::Fine };
    let highest = view.device.max_sm_clock_hertz;
    let share = hertz / highest;
    let floor = if view.steady() { STEADY_FLOOR } else { MOVING_FLOOR };
    // Many boards run at their power cap under full load, so only a baseline can show that a clock is too low.
    let sure = absolute && (reasons.none() || reasons.distress());
    let below = sure && share.is_finite() && share < floor;
    let low = view.compared(quantity, hertz).low;
    let low = low.or(below.then(|| format!("{} of the highest, {}", percent(share), megahertz(highest))));
    let Some(low) = low else { return Clock::Fine };
    if reasons.only_idle() {
        return Clock::Unramped;
    }
    if reasons.by_choice() {
        let words = format!("the clock was lowered on purpose: {}; {low}", reasons.words());
        return Clock::Chosen(words);
    }
    if reasons.none() {
        let text = format!(
            "the clock is low ({low}) and NVML reports no reason and {}; compare `nvidia-smi -q -d \
             CLOCK,PERFORMANCE`, then drain the node and power it off and on",
            megahertz(around.sm_clock_hertz)
        );
        return Clock::Low(CanaryVerdict::UnexplainedClockCap, text);
    }
    let text = format!("the clock is low ({low}) by {}; {}", reasons.words(), reasons.first_thing());
    Clock::Low(CanaryVerdict::Throttled, text)
}

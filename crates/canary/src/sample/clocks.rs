//! Whether the clock of the multiprocessors is what it should be, and if not, what holds it down.

use super::RunContext;
use super::reasons::Reasons;
use crate::baseline::Quantity;
use crate::format::{megahertz, percent};
use model::catalog::CanaryVerdict;
use sampler::watch::Around;

/// Share of the highest clock below which a GPU that holds it is low without any baseline.
const STEADY_FLOOR: f64 = 0.95;
/// The same for GPUs that never reach the highest clock they report.
const MOVING_FLOOR: f64 = 0.75;

/// The state of the clock.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Clock {
    /// As it should be, or nothing is known to compare it with.
    Fine,
    /// Low because the GPU had been idle and its clocks had not risen yet: the sample says nothing.
    Unramped,
    /// Low on purpose, and why.
    Chosen(String),
    /// Low, with the verdict and the reason.
    Low(CanaryVerdict, String),
}

impl Clock {
    /// Whether rates that follow the clock can be judged.
    pub fn is_fine(&self) -> bool {
        *self == Clock::Fine
    }
}

/// Judges a clock. `quantity` is what it is compared as; `absolute`: also with the highest clock the device
/// reports.
pub fn judge(
    view: &RunContext<'_>,
    around: &Around,
    quantity: Quantity,
    hertz: f64,
    absolute: bool,
) -> Clock {
    // Without NVML's word on reasons, a low clock could have any.
    let Some(reasons) = Reasons::seen(view.device, around) else { return Clock::Fine };
    let highest = view.device.max_sm_clock_hertz;
    let share = hertz / highest;
    let floor = if view.steady() { STEADY_FLOOR } else { MOVING_FLOOR };
    // A power cap is how many boards work at their best: only a baseline can show that it is too low.
    let sure = absolute && (reasons.none() || reasons.distress());
    let below = sure && share.is_finite() && share < floor;
    let low = view.compared(quantity, hertz).low;
    let low = low.or(below.then(|| format!("{} of the highest, {}", percent(share), megahertz(highest))));
    let Some(low) = low else { return Clock::Fine };
    if reasons.only_idle() {
        return Clock::Unramped;
    }
    if reasons.by_choice() {
        let words = format!("the clock is low by choice: {}; {low}", reasons.words());
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

//! `init` consists of the driver's steps before the checks. The time of a step is compared with its own history. It
//! depends on the host as well, so only a multiple points to the driver or the GPU.

use crate::baseline::Quantity;
use crate::format::seconds;
use crate::sample::{RunContext, Sample};
use model::canary::Rate;
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryStep, CanaryVerdict};

/// The steps in the order in which they run.
pub const STEPS: [(CanaryStep, Quantity); 6] = [
    (CanaryStep::Load, step("load_step")),
    (CanaryStep::Init, step("init_step")),
    (CanaryStep::Device, step("device_step")),
    (CanaryStep::Context, step("context_step")),
    (CanaryStep::Module, step("module_step")),
    (CanaryStep::FirstLaunch, step("first_launch_step")),
];

const fn step(name: &'static str) -> Quantity {
    Quantity::time(name, 4.0, 2.0)
}

/// Judges the driver's steps before the checks. Returns `None` if a step did not end.
pub fn judge(view: &RunContext<'_>, steps: &[(CanaryStep, f64)]) -> Option<Sample> {
    let mut sample = Sample::new();
    let mut all = 0.0;
    for (step, quantity) in STEPS {
        let (_, took) = steps.iter().find(|(ended, _)| *ended == step)?;
        all += took;
        if !(took.is_finite() && *took > 0.0) {
            continue;
        }
        let standing = view.compared(quantity, *took);
        sample.figures.push((quantity, *took));
        if standing.low.is_some() {
            let usual = (quantity.shown)(took * standing.baseline.unwrap_or(1.0));
            let name = step.known();
            let text = format!(
                "the step {name} took {}, usually {usual}: the driver or the GPU's system processor is slow; \
                 look for Xid 119 and 120 in `dmesg`",
                seconds(*took)
            );
            sample.find(CanaryVerdict::Slow, text);
        }
    }
    let all = all.is_finite().then_some(all)?;
    sample.rate = Some(Rate::Seconds(all));
    sample.text.insert(0, format!("{} until the first kernel had run", seconds(all)));
    Some(sample)
}

//! Which of the canary's findings are events for the list, and how loud they are.

use model::canary::{Judged, Outcome, Place, loudness};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryStep, CanaryVerdict, FaultAction, Gpu, Severity};
use model::snapshot::{Event, EventKind};

/// The event that a judged check is, if it is one: its verdict is another than the one that is `listed` last.
/// A sample that was thrown away and a check that was left out change no verdict.
pub fn change(
    gpu: &Gpu,
    outcome: &Outcome,
    judged: &Judged,
    listed: CanaryVerdict,
    at: f64,
) -> Option<Event> {
    if judged.verdict == listed || matches!(judged.verdict, CanaryVerdict::Contended | CanaryVerdict::Skipped)
    {
        return None;
    }
    let severity = loudness(judged.verdict).unwrap_or(Severity::Info);
    let (action, meaning) = first(judged.verdict);
    let code = outcome.cuda_error.filter(|_| judged.verdict == CanaryVerdict::DriverFault);
    let event = event(gpu, &outcome.place, at, severity, action);
    Some(Event {
        code: code.map(u64::from),
        mnemonic: judged.verdict.known(),
        check: Some(judged.check.known()),
        meaning,
        text: judged.text.clone(),
        ..event
    })
}

/// A process that hung in this step has ended.
pub fn hangs_no_more(gpu: &Gpu, place: &Place, step: CanaryStep, unix_seconds: f64) -> Event {
    Event {
        meaning: "The canary's process that hung has ended.",
        text: format!("It hung in step {}.", step.known()),
        ..event(gpu, place, unix_seconds, Severity::Info, FaultAction::Ignore)
    }
}

fn event(gpu: &Gpu, place: &Place, unix_seconds: f64, severity: Severity, action: FaultAction) -> Event {
    let instance = place.instance.as_ref();
    Event {
        gpu: Some(gpu.clone()),
        gpu_instance: instance.map(|instance| instance.gpu_instance),
        compute_instance: instance.map(|instance| instance.compute_instance),
        ..Event::new(EventKind::Canary, unix_seconds, severity, action)
    }
}

/// What to do first after a verdict, and what it means.
fn first(verdict: CanaryVerdict) -> (FaultAction, &'static str) {
    use {CanaryVerdict as V, FaultAction as A};
    match verdict {
        V::Ok => (A::Ignore, "The canary finds nothing wrong any more."),
        V::Throttled => (A::CheckHardware, "The GPU is held below its clock; the driver names the reason."),
        V::UnexplainedClockCap => {
            (A::CheckHardware, "The GPU is held below its clock without a named reason.")
        }
        V::SlowSm => (A::CheckHardware, "A multiprocessor is slower than the others."),
        V::DegradedMemory => (A::CheckHardware, "Device memory or its cache is below its rate."),
        V::NarrowedLink => (A::CheckHardware, "The PCIe link is narrower or slower than GPU and slot allow."),
        V::Slow => (A::CheckHardware, "The GPU is below its rate."),
        V::WrongResultSuspected => (A::CheckHardware, "A wrong result was seen once, and not again."),
        V::WrongResult => (A::CheckHardware, "The GPU computes or stores wrongly."),
        V::DriverFault => (A::ResetGpu, "The CUDA driver fails on the GPU."),
        V::Hung => (A::ResetGpu, "A program on the GPU makes no progress."),
        V::CouldNotRun => (A::Ignore, "The canary could not run, for no fault of the GPU."),
        V::Contended | V::Skipped => (A::Ignore, ""),
    }
}

//! Runs that ended early.

use crate::checks::of_step;
use crate::format::{self, seconds};
use crate::report::{CanaryRun, RunEnd};
use model::canary::{Outcome, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanaryEnd, CanaryVerdict};

/// Returns the outcome of a run before its checks are judged, and the check that ended the run, with its verdict.
pub fn ending(place: &Place, run: &CanaryRun) -> (Outcome, Option<(CanaryCheck, CanaryVerdict)>) {
    let mut outcome = Outcome {
        place: place.clone(),
        began: run.began,
        ended: run.ended,
        end: CanaryEnd::Finished,
        skip: None,
        text: String::new(),
        step: None,
        cuda_error: None,
        steps: run.steps.clone(),
        gpu_seconds: run.gpu_seconds,
        checks: Vec::new(),
    };
    let failed = match &run.end {
        RunEnd::Finished => None,
        RunEnd::Abandoned { text, pids } => {
            outcome.end = CanaryEnd::Abandoned;
            outcome.text = match pids.is_empty() {
                true => text.clone(),
                false => format!("{text} (process {})", format::listed(pids)),
            };
            None
        }
        RunEnd::Fault { step, code, name, call } => {
            (outcome.end, outcome.step, outcome.cuda_error) =
                (CanaryEnd::DriverFault, Some(*step), Some(*code));
            let (known, todo) = (step.known(), after_fault(*code));
            outcome.text = format!("{call} failed in step {known} with {name} ({code}); {todo}");
            Some((of_step(*step), CanaryVerdict::DriverFault))
        }
        RunEnd::Unable { reason, text } => {
            (outcome.end, outcome.skip, outcome.text) = (CanaryEnd::CouldNotRun, Some(*reason), text.clone());
            let verdict =
                if reason.is_left_alone() { CanaryVerdict::Skipped } else { CanaryVerdict::CouldNotRun };
            Some((CanaryCheck::Init, verdict))
        }
        RunEnd::Hung { step, call, seconds: waited } => {
            (outcome.end, outcome.step) = (CanaryEnd::Hung, Some(*step));
            let call = call.as_ref().map(|call| format!(", in {call}")).unwrap_or_default();
            outcome.text = format!(
                "no progress in step {}{call} for {}; look for Xid and `NVRM` lines in `dmesg`; drain the node: \
                 a reset or reboot is likely to be needed",
                step.known(),
                seconds(*waited)
            );
            Some((of_step(*step), CanaryVerdict::Hung))
        }
        RunEnd::Broken { text } => {
            outcome.end = CanaryEnd::Broken;
            outcome.text = format!("the canary process failed: {text}");
            Some((CanaryCheck::Init, CanaryVerdict::CouldNotRun))
        }
    };
    (outcome, failed)
}

/// Returns the first action after a CUDA error.
fn after_fault(code: u32) -> &'static str {
    match code {
        214 => {
            "an uncorrectable memory error: see `nvidia-smi -q -d ECC,ROW_REMAPPER`, and reset the drained GPU"
        }
        220 => "an NVLink error: see `nvidia-smi nvlink -e`, and reset the drained GPU",
        802 => "the fabric is not ready: `systemctl status nvidia-fabricmanager`",
        803 => "the driver was upgraded under a running system: reload its module, or reboot",
        700 | 702 | 709 | 710 | 714..=719 | 721 => {
            "the kernel is known to be good: drain the GPU and run `dcgmi diag -r 3`; see Xid lines in `dmesg`"
        }
        _ => "see Xid and `NVRM` lines in `dmesg`; drain the GPU and reset it",
    }
}

/// Returns true if the driver failed in a way that may result from another process's fault. The run is then repeated in
/// a new process before the failure counts.
pub fn worth_another_try(run: &CanaryRun) -> bool {
    matches!(&run.end, RunEnd::Fault { code: 700 | 702 | 709 | 710 | 714..=719 | 721, .. })
}

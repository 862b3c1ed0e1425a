//! How runs end other than well, in words.

use super::words::seconds;
use crate::report::{End, Run};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanaryEnd, CanarySkip, CanaryStep, CanaryVerdict};

/// An end, for the outcome.
#[derive(Debug, PartialEq)]
pub struct Ending {
    pub end: CanaryEnd,
    pub skip: Option<CanarySkip>,
    pub text: String,
    pub step: Option<CanaryStep>,
    pub cuda_error: Option<u32>,
    /// The check that ended so, and its verdict.
    pub judged: Option<(CanaryCheck, CanaryVerdict)>,
}

/// The check that a step belongs to. The driver's steps are those of `init`.
pub fn check_of(step: CanaryStep) -> CanaryCheck {
    match step {
        CanaryStep::SmRate => CanaryCheck::SmRate,
        CanaryStep::Tensor => CanaryCheck::Tensor,
        CanaryStep::SmSdc => CanaryCheck::SmSdc,
        CanaryStep::HbmRead => CanaryCheck::HbmRead,
        CanaryStep::HbmWalk => CanaryCheck::HbmWalk,
        CanaryStep::L2 => CanaryCheck::L2,
        CanaryStep::Pcie => CanaryCheck::Pcie,
        CanaryStep::Launch => CanaryCheck::Launch,
        CanaryStep::Overlap => CanaryCheck::Overlap,
        CanaryStep::Transform => CanaryCheck::Transform,
        CanaryStep::P2p => CanaryCheck::P2p,
        CanaryStep::Load
        | CanaryStep::Init
        | CanaryStep::Device
        | CanaryStep::Context
        | CanaryStep::Module
        | CanaryStep::FirstLaunch
        | CanaryStep::Destroy => CanaryCheck::Init,
    }
}

/// Whether a run could not be made because the GPU is somebody's or is to be left alone; else something is
/// missing or wrong here.
pub fn is_left_alone(reason: CanarySkip) -> bool {
    use CanarySkip::*;
    match reason {
        Processes | Busy | Memory | Claimed | ComputeMode | RecentXid | Maintenance | Interlock | Duty
        | Mps | PersistenceOff | Released | NoMemory | DeviceUnavailable => true,
        Unread | Unhealthy | ChildAlive | NoInstance | NoLibrary | ForeignLibrary | OldDriver | NoKernels
        | NoPermission | NoDevice | Environment => false,
    }
}

/// The verdict on a run that was not made for this reason.
pub fn of_skip(reason: CanarySkip) -> CanaryVerdict {
    if is_left_alone(reason) { CanaryVerdict::Skipped } else { CanaryVerdict::CouldNotRun }
}

/// How the run ended.
pub fn ending(run: &Run) -> Ending {
    let plain = |end, text: &str| Ending {
        end,
        skip: None,
        text: text.to_owned(),
        step: None,
        cuda_error: None,
        judged: None,
    };
    match &run.end {
        End::Finished => plain(CanaryEnd::Finished, ""),
        End::Abandoned { text, pids } if pids.is_empty() => plain(CanaryEnd::Abandoned, text),
        End::Abandoned { text, pids } => {
            let text = format!("{text} (process {})", super::words::listed(pids));
            plain(CanaryEnd::Abandoned, &text)
        }
        End::Fault { step, code, name, call } => Ending {
            step: Some(*step),
            cuda_error: Some(*code),
            judged: Some((check_of(*step), CanaryVerdict::DriverFault)),
            ..plain(
                CanaryEnd::DriverFault,
                &format!(
                    "{call} failed in step {} with {name} ({code}); {}",
                    step.known(),
                    after_fault(*code)
                ),
            )
        },
        End::Unable { reason, text } => Ending {
            skip: Some(*reason),
            judged: Some((CanaryCheck::Init, of_skip(*reason))),
            ..plain(CanaryEnd::CouldNotRun, text)
        },
        End::Hung { step, call, seconds: waited } => {
            let call = call.as_ref().map(|call| format!(", in {call}")).unwrap_or_default();
            let text = format!(
                "no progress in step {}{call} for {}; look for Xid and `NVRM` lines in `dmesg`; drain the node: \
                 a reset or reboot is likely to be needed",
                step.known(),
                seconds(*waited)
            );
            Ending {
                step: Some(*step),
                judged: Some((check_of(*step), CanaryVerdict::Hung)),
                ..plain(CanaryEnd::Hung, &text)
            }
        }
        End::Broken { text } => Ending {
            judged: Some((CanaryCheck::Init, CanaryVerdict::CouldNotRun)),
            ..plain(CanaryEnd::Broken, &format!("the canary's own process failed: {text}"))
        },
    }
}

/// The first thing to do after a CUDA error.
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

/// Whether the driver failed in a way that can be the aftermath of somebody else's fault: worth one more try in
/// a fresh process before it counts.
pub fn worth_another_try(run: &Run) -> bool {
    matches!(&run.end, End::Fault { code: 700 | 702 | 709 | 710 | 714..=719 | 721, .. })
}

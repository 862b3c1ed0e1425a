//! Outcome of a canary run, as used by the ledger, the command line and the tests.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::catalog::{
    BadSmKind, CanaryCheck, CanaryEnd, CanaryMode, CanarySkip, CanaryStep, CanaryVerdict, Gpu, RateAgainst,
    Severity,
};

/// Hidden command that starts the canary process. The sampler uses it to recognize canary processes on a GPU.
pub const COMMAND: &str = "canary-child";

/// GPU or MIG instance on which a run takes place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    pub gpu: Gpu,
    /// MIG instance on the GPU; `None` for the whole GPU.
    pub instance: Option<Instance>,
}

impl Place {
    /// Returns the GPU instance id and the compute instance id of a MIG instance.
    pub fn ids(&self) -> Option<(u32, u32)> {
        self.instance.as_ref().map(|instance| (instance.gpu_instance, instance.compute_instance))
    }

    /// Returns the UUID of the GPU or MIG device, as CUDA expects it.
    pub fn device(&self) -> &str {
        self.instance.as_ref().map_or(&*self.gpu.uuid, |instance| &instance.mig_uuid)
    }
}

impl fmt::Display for Place {
    /// Writes `GPU 3`, or `GPU 7 instance 1/0 (3g.71gb)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.gpu.gpu)?;
        match &self.instance {
            Some(Instance { gpu_instance, compute_instance, profile, .. }) => {
                write!(f, " instance {gpu_instance}/{compute_instance} ({profile})")
            }
            None => Ok(()),
        }
    }
}

/// MIG instance of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// NVML id of the GPU instance.
    pub gpu_instance: u32,
    /// NVML id of the compute instance.
    pub compute_instance: u32,
    /// Profile of the GPU instance.
    pub profile: String,
    /// UUID of the MIG device.
    pub mig_uuid: String,
}

/// Result of a run after the judge has evaluated it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub place: Place,
    /// Start of the run, in seconds since 1970.
    pub began: f64,
    /// End of the run, in seconds since 1970.
    pub ended: f64,
    pub end: CanaryEnd,
    /// Reason why the run was impossible, if it was.
    pub skip: Option<CanarySkip>,
    /// Text for people that names the failure and its location; empty if the run finished.
    pub text: String,
    /// Step in which the run ended or hangs, if it did not finish.
    pub step: Option<CanaryStep>,
    /// CUDA error that ended the run, if any.
    pub cuda_error: Option<u32>,
    /// Steps that succeeded, with their durations in seconds.
    pub steps: Vec<(CanaryStep, f64)>,
    /// Time in which kernels and copies ran, in seconds.
    pub gpu_seconds: f64,
    /// Results of the checks.
    pub checks: Vec<Judged>,
}

impl Outcome {
    /// Returns the check that found a wrong result, with its text.
    pub fn wrong_result(&self) -> Option<(CanaryCheck, &str)> {
        let wrong = self.checks.iter().find(|judged| judged.verdict == CanaryVerdict::WrongResult)?;
        Some((wrong.check, &wrong.text))
    }
}

/// Result of one check after the judge has evaluated it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    pub check: CanaryCheck,
    /// Published verdict, after the rule of three of the last four.
    pub verdict: CanaryVerdict,
    /// Verdict of this run without the earlier runs.
    pub sample: CanaryVerdict,
    /// Reason with figures, and the recommended first action.
    pub text: String,
    /// Rate in the unit of the check.
    pub rate: Option<Rate>,
    /// Rate relative to the references.
    pub ratios: Vec<(RateAgainst, f64)>,
    /// Clock of the multiprocessors in hertz.
    pub sm_clock_hertz: Option<f64>,
    /// Number of wrong results with all bits zero.
    pub zeroed: u64,
    /// Number of wrong results with some flipped bits.
    pub flipped: u64,
    /// Slow or wrong multiprocessors, at most eight.
    pub bad_sms: Vec<(u32, BadSmKind)>,
}

impl Judged {
    /// Returns a result without measurements.
    pub fn plain(check: CanaryCheck, verdict: CanaryVerdict, text: String) -> Judged {
        Judged { check, verdict, sample: verdict, text, ..Judged::default() }
    }
}

/// A rate with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "unit", content = "value")]
pub enum Rate {
    /// FMA operations of one multiprocessor per cycle.
    WorkPerCycle(f64),
    /// Transferred bytes per second.
    BytesPerSecond(f64),
    /// Bytes per cycle of the SM clock (L2).
    BytesPerCycle(f64),
    /// Seconds per operation; less is better.
    Seconds(f64),
}

/// Message from the canary collector to the ledger.
#[derive(Clone, Debug, PartialEq)]
pub enum CanaryEvent {
    /// Mode of the canary and its limit.
    Mode {
        mode: CanaryMode,
        /// Maximum share of a GPU's time that the canary may use.
        duty: f64,
    },
    /// Time of the next run at this place, in seconds since 1970; `None` if no run is planned.
    Due(Place, Option<f64>),
    /// A run that was due was postponed.
    Skipped(Place, CanarySkip),
    /// A run begins. From now on, the work on the GPU is the canary's own. Sent before the canary process starts.
    Began(Place),
    /// Another GPU takes part in a run as the peer of its copies (`true`), or no longer does (`false`). While it does,
    /// its work is also the canary's own.
    Peer(Gpu, bool),
    /// The process of a run hangs in this step. `None` means that the process has ended. Until then, the work on the
    /// GPU may be the canary's own.
    Hung(Place, Option<CanaryStep>),
    /// A run has ended and was judged. Its process has also ended, unless it hangs.
    Ended(Box<Outcome>),
    /// A manual run found a wrong result on the GPU, with this text.
    WrongByHand(Gpu, CanaryCheck, String),
    /// The wrong results of the GPU were cleared. The text names the client and the reason.
    Cleared(Gpu, String),
    /// A canary process had to be killed.
    Killed,
    /// Number of running canary processes. Their cost is counted elsewhere: every process joins `Context::canaries`
    /// when it starts ([`host::supervise::Supervised::start`]), and `collectors/src/process.rs` reads that list.
    Alive(usize),
}

impl CanaryEvent {
    /// Returns the check that found a wrong result, with its text.
    pub fn wrong_result(&self) -> Option<(CanaryCheck, &str)> {
        match self {
            CanaryEvent::Ended(outcome) => outcome.wrong_result(),
            CanaryEvent::WrongByHand(_, check, text) => Some((*check, text)),
            _ => None,
        }
    }

    /// Returns the GPU of the event.
    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            CanaryEvent::Peer(gpu, _) | CanaryEvent::WrongByHand(gpu, ..) | CanaryEvent::Cleared(gpu, _) => {
                Some(gpu)
            }
            CanaryEvent::Due(place, _) | CanaryEvent::Skipped(place, _) => Some(&place.gpu),
            CanaryEvent::Began(place) | CanaryEvent::Hung(place, _) => Some(&place.gpu),
            CanaryEvent::Ended(outcome) => Some(&outcome.place.gpu),
            CanaryEvent::Mode { .. } | CanaryEvent::Killed | CanaryEvent::Alive(_) => None,
        }
    }
}

/// Returns the severity of a verdict; `None` if there is nothing to report.
pub fn loudness(verdict: CanaryVerdict) -> Option<Severity> {
    use CanaryVerdict as V;
    match verdict {
        V::Ok | V::Contended | V::Skipped => None,
        V::CouldNotRun => Some(Severity::Info),
        V::Throttled
        | V::UnexplainedClockCap
        | V::SlowSm
        | V::DegradedMemory
        | V::NarrowedLink
        | V::Slow
        | V::WrongResultSuspected => Some(Severity::Ticket),
        V::WrongResult | V::DriverFault | V::Hung => Some(Severity::Page),
    }
}

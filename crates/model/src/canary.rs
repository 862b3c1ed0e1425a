//! The outcome of a canary run, for the ledger, the command line and the tests.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::catalog::{
    BadSmKind, CanaryCheck, CanaryEnd, CanaryMode, CanarySkip, CanaryStep, CanaryVerdict, Gpu, RateAgainst,
    Severity,
};

/// The hidden command that the canary's process is started with: by it the sampler knows whose it is on a GPU.
pub const COMMAND: &str = "canary-child";

/// Where a run was made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The GPU.
    pub gpu: Gpu,
    /// The MIG instance on it; `None`: the whole GPU.
    pub instance: Option<Instance>,
}

impl Place {
    /// Ids of GPU and compute instance, if it is a MIG instance.
    pub fn ids(&self) -> Option<(u32, u32)> {
        self.instance.as_ref().map(|instance| (instance.gpu_instance, instance.compute_instance))
    }

    /// UUID of the GPU or MIG device, as CUDA takes it.
    pub fn device(&self) -> &str {
        self.instance.as_ref().map_or(&*self.gpu.uuid, |instance| &instance.mig_uuid)
    }
}

impl fmt::Display for Place {
    /// As `GPU 3`, or `GPU 7 instance 1/0 (3g.71gb)`.
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

/// A MIG instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// NVML's GPU instance id.
    pub gpu_instance: u32,
    /// NVML's compute instance id.
    pub compute_instance: u32,
    /// Profile of the GPU instance.
    pub profile: String,
    /// UUID of the MIG device.
    pub mig_uuid: String,
}

/// A run that was judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Where.
    pub place: Place,
    /// When it began, in seconds since 1970.
    pub began: f64,
    /// When it ended, likewise.
    pub ended: f64,
    /// How it ended.
    pub end: CanaryEnd,
    /// Why it could not be made, if so.
    pub skip: Option<CanarySkip>,
    /// As text: what failed where. Empty if it finished.
    pub text: String,
    /// Step it ended or hangs in, if it did not finish.
    pub step: Option<CanaryStep>,
    /// CUDA error, if one ended it.
    pub cuda_error: Option<u32>,
    /// Steps that ended well, and how long they took, seconds.
    pub steps: Vec<(CanaryStep, f64)>,
    /// Time in which its kernels and copies ran, seconds.
    pub gpu_seconds: f64,
    /// What each check found.
    pub checks: Vec<Judged>,
}

impl Outcome {
    /// The check that found a wrong result, and what it found.
    pub fn wrong_result(&self) -> Option<(CanaryCheck, &str)> {
        let wrong = self.checks.iter().find(|judged| judged.verdict == CanaryVerdict::WrongResult)?;
        Some((wrong.check, &wrong.text))
    }
}

/// A check that was judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Which.
    pub check: CanaryCheck,
    /// The published verdict, after the rule of three of the last four.
    pub verdict: CanaryVerdict,
    /// What this run alone says.
    pub sample: CanaryVerdict,
    /// The reason as text, with figures; what to do first.
    pub text: String,
    /// Its rate, in the unit of the check.
    pub rate: Option<Rate>,
    /// The rate compared.
    pub ratios: Vec<(RateAgainst, f64)>,
    /// Clock of the multiprocessors, Hz.
    pub sm_clock_hertz: Option<f64>,
    /// Wrong results: all bits gone, some changed.
    pub zeroed: u64,
    /// See `zeroed`.
    pub flipped: u64,
    /// Multiprocessors that stand out, at most eight.
    pub bad_sms: Vec<(u32, BadSmKind)>,
}

impl Judged {
    /// A check of which nothing was measured.
    pub fn plain(check: CanaryCheck, verdict: CanaryVerdict, text: String) -> Judged {
        Judged {
            check,
            verdict,
            sample: verdict,
            text,
            rate: None,
            ratios: Vec::new(),
            sm_clock_hertz: None,
            zeroed: 0,
            flipped: 0,
            bad_sms: Vec::new(),
        }
    }
}

/// A rate with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "unit", content = "value")]
pub enum Rate {
    /// FMA of one multiprocessor in one cycle.
    WorkPerCycle(f64),
    /// Bytes a second.
    BytesPerSecond(f64),
    /// Bytes in one cycle of the SM clock (L2).
    BytesPerCycle(f64),
    /// Seconds of one: less is better.
    Seconds(f64),
}

/// A message of the canary's collector to the ledger.
#[derive(Clone, Debug, PartialEq)]
pub enum CanaryEvent {
    /// The mode it is in, and the largest share of a GPU's time it may use.
    Mode {
        /// The mode.
        mode: CanaryMode,
        /// The share.
        duty: f64,
    },
    /// When the next run is due there, in seconds since 1970; `None`: none is planned.
    Due(Place, Option<f64>),
    /// A run that was due was put off.
    Skipped(Place, CanarySkip),
    /// A run begins: from now on the GPU's work is the canary's own. Sent before its process is started.
    Began(Place),
    /// Another GPU takes part in a run, at the other end of its copies: its work is the canary's own too. `false`: no
    /// longer.
    Peer(Gpu, bool),
    /// The process of a run hangs in this step; `None`: no longer, it has ended. Until then the GPU's work may be
    /// the canary's own.
    Hung(Place, Option<CanaryStep>),
    /// A run has ended and was judged. So has its process, unless it hangs.
    Ended(Box<Outcome>),
    /// A run by hand found a wrong result on the GPU, with this text.
    WrongByHand(Gpu, CanaryCheck, String),
    /// The wrong results of the GPU are cleared; by which client and why, as text.
    Cleared(Gpu, String),
    /// A process had to be killed.
    Killed,
    /// Canary processes alive. Their cost is not in here: each joins `Context::canaries` at its start
    /// ([`host::supervise::Supervised::start`]), where `collectors/src/process.rs` reads it.
    Alive(usize),
}

impl CanaryEvent {
    /// The check that found a wrong result, and what it found.
    pub fn wrong_result(&self) -> Option<(CanaryCheck, &str)> {
        match self {
            CanaryEvent::Ended(outcome) => outcome.wrong_result(),
            CanaryEvent::WrongByHand(_, check, text) => Some((*check, text)),
            _ => None,
        }
    }

    /// The GPU that the event is about.
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

/// How loud a verdict is; `None`: there is nothing to say.
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

//! Reports of the canary process to its parent, as frames ([`host::frame`]). The process names a step before it begins,
//! so that a hang can be attributed to the step.

use serde::{Deserialize, Serialize};

pub use crate::checks::{CheckFigures, Measurement};
pub use crate::device::{CudaDevice, RunRequest};
pub use crate::session::tally::{Mismatch, Mismatches};
pub use crate::stats::Sm;
use model::catalog::{CanarySkip, CanaryStep};

/// Report of the canary process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildReport {
    Begin(CanaryStep),
    /// A step succeeded after this wall time.
    End {
        step: CanaryStep,
        seconds: f64,
    },
    /// Sent after the context was created.
    Device(Box<CudaDevice>),
    /// Sent before the end of the check's step.
    Measured(Box<Measurement>),
    /// The run ended early. After a fault, no driver call and only `Done` follows. If the run is impossible or was
    /// abandoned, only `Destroy` and `Done` follow.
    Ended(RunEnd),
    /// All resources are released, and the process exits.
    Done {
        gpu_seconds: f64,
    },
}

/// All reports of one run, and how the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanaryRun {
    /// Start of the run, in seconds since 1970.
    pub began: f64,
    /// End of the run or time of its abandonment, in seconds since 1970.
    pub ended: f64,
    /// Steps that succeeded, with their wall time in seconds.
    pub steps: Vec<(CanaryStep, f64)>,
    /// The device, or `None` if the run ended before it identified the device.
    pub device: Option<CudaDevice>,
    pub measured: Vec<Measurement>,
    /// Time in which kernels or copies ran, in seconds. If the process did not report it, this is the sum over the
    /// checks.
    pub gpu_seconds: f64,
    pub end: RunEnd,
}

impl CanaryRun {
    /// Returns a run that was not started.
    pub fn unable(now: f64, reason: CanarySkip, text: String) -> CanaryRun {
        CanaryRun {
            began: now,
            ended: now,
            steps: Vec::new(),
            device: None,
            measured: Vec::new(),
            gpu_seconds: 0.0,
            end: RunEnd::Unable { reason, text },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    Finished,
    /// The run stopped between two kernels, on request or because of these other processes.
    Abandoned {
        text: String,
        pids: Vec<u32>,
    },
    /// A driver error in a step, with the CUresult, its name such as `CUDA_ERROR_LAUNCH_FAILED`, and the driver
    /// function.
    Fault {
        step: CanaryStep,
        code: u32,
        name: String,
        call: String,
    },
    /// The run is impossible here, which is not a fault of the GPU.
    Unable {
        reason: CanarySkip,
        text: String,
    },
    /// The run made no progress for this many seconds, in a driver function if `call` is set. The process may still
    /// exist.
    Hung {
        step: CanaryStep,
        call: Option<String>,
        seconds: f64,
    },
    /// The process ended too early, or sent an invalid report.
    Broken {
        text: String,
    },
}

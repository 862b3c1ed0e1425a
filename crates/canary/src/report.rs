//! The reports of the canary's process to its parent, as frames ([`host::frame`]). A report before each step names the step, so
//! that a hang has a place.

use serde::{Deserialize, Serialize};

pub use crate::checks::{CheckFigures, Measurement};
pub use crate::device::{CudaDevice, RunRequest};
pub use crate::session::tally::{Mismatch, Mismatches};
pub use crate::stats::Sm;
use model::catalog::{CanarySkip, CanaryStep};

/// What the process reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildReport {
    Begin(CanaryStep),
    /// A step ended well, after this wall time.
    End {
        step: CanaryStep,
        seconds: f64,
    },
    /// After the context was made.
    Device(Box<CudaDevice>),
    /// Before the end of the check's step.
    Measured(Box<Measurement>),
    /// A fault, of which no driver call follows, only `Done`; or that the run cannot be made here or was abandoned, of which
    /// only `Destroy` and `Done` follow.
    Ended(RunEnd),
    /// Everything has been given back; the process ends.
    Done {
        gpu_seconds: f64,
    },
}

/// All that was reported of one run, and how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanaryRun {
    /// In seconds since 1970.
    pub began: f64,
    /// When it ended or was abandoned, likewise.
    pub ended: f64,
    /// Steps that ended well, with their wall time in seconds.
    pub steps: Vec<(CanaryStep, f64)>,
    /// `None` if the run ended before.
    pub device: Option<CudaDevice>,
    pub measured: Vec<Measurement>,
    /// Time in which kernels or copies ran, seconds; without the process's own figure, the sum over the checks.
    pub gpu_seconds: f64,
    pub end: RunEnd,
}

impl CanaryRun {
    /// A run that was not begun.
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
    /// Stopped between two kernels: on request, or for these other processes.
    Abandoned {
        text: String,
        pids: Vec<u32>,
    },
    /// The driver's error in a step: CUresult, its name as `CUDA_ERROR_LAUNCH_FAILED`, and the driver function.
    Fault {
        step: CanaryStep,
        code: u32,
        name: String,
        call: String,
    },
    /// The run cannot be made here, for no fault of the GPU.
    Unable {
        reason: CanarySkip,
        text: String,
    },
    /// No progress for so many seconds, in a driver function if `call` is known. The process may still live.
    Hung {
        step: CanaryStep,
        call: Option<String>,
        seconds: f64,
    },
    /// The process ended too early, or its pipe carried an invalid report.
    Broken {
        text: String,
    },
}

//! The checks. The file of a check contains its measurement, judgement and tolerances, and names its kernels.
//! [`CHECKS`] is the only list of checks. The child's steps, the judge and the set of kernels to load are derived from
//! it.
//!
//! The child measures and the parent judges: `measure` calls the driver, and `judge` is pure.

mod hbm_read;
mod hbm_walk;
mod l2;
mod launch;
mod overlap;
mod p2p;
mod pcie;
mod rates;
mod reads;
pub mod sm_rate;
mod sm_sdc;
pub mod steps;
mod tensor;
mod transform;

use std::collections::BTreeSet;
use std::time::Duration;

use sampler::watch::Around;
use serde::{Deserialize, Serialize};

// The modules of the checks import these names with `use super::*`.
use crate::abi::{BadWords, Pattern, SmStamp};
use crate::baseline::Quantity;
use crate::format::{self, bytes_per_second, counted, percent, seconds};
use crate::reference;
use crate::roofline;
use crate::sample::clocks::Clock;
use crate::sample::reasons::Reasons;
use crate::sample::{RunContext, Sample};
use crate::session::Session;
use crate::session::cuda::{
    CudaDriver, CudaFunction, CudaResult, CudaStream, DeviceSlice, Grid, Pinned, PinnedPart,
};
use crate::session::errors::{CudaError, Ended, Try};
use crate::session::tally::{Mismatch, Mismatches, WrongResults};
use crate::stats::{self, Sm};
use model::canary::Rate;
use model::catalog::{BadSmKind, CanaryCheck, CanarySkip, CanaryStep, CanaryVerdict, RateAgainst};
use model::clock::Mono;
pub use overlap::{Overlap, overlap_bound};
pub use transform::{TRANSFORM_LIMIT, Transform};

/// Everything about one check.
pub(crate) struct Check {
    pub name: CanaryCheck,
    /// Step of the run in which the check runs.
    pub step: CanaryStep,
    /// Names of the kernels in `kernels/*.cu` that the check launches.
    pub kernels: &'static [&'static str],
    /// True if the host does nothing between launches. Wall time beyond GPU time then means that another process used
    /// the GPU.
    pub back_to_back: bool,
    /// True if the child reads the state of the PCIe link during the check.
    pub reads_link: bool,
    /// Calls the driver. Returns `None` if there is nothing to measure.
    pub measure: Measure,
    /// Judges the measurement, given the clock of this run.
    pub judge: Judge,
}

/// Figures and wrong results of a check.
pub(crate) type CheckResult = (CheckFigures, Mismatches);
type Measure = fn(&mut Session<'_>) -> Try<Option<CheckResult>>;
type Judge = fn(&RunContext<'_>, &Measurement, &Clock) -> Sample;

impl Check {
    const fn new(
        name: CanaryCheck,
        step: CanaryStep,
        kernels: &'static [&'static str],
        measure: Measure,
        judge: Judge,
    ) -> Check {
        Check { name, step, kernels, back_to_back: false, reads_link: false, measure, judge }
    }

    const fn back_to_back(self) -> Check {
        Check { back_to_back: true, ..self }
    }
}

/// All checks except `init`, which consists of the driver's steps before them ([`steps`]). The order has no meaning;
/// the request determines the order within a run.
pub static CHECKS: [&Check; 11] = [
    &sm_rate::CHECK,
    &tensor::CHECK,
    &sm_sdc::CHECK,
    &hbm_read::CHECK,
    &hbm_walk::CHECK,
    &l2::CHECK,
    &pcie::CHECK,
    &launch::CHECK,
    &overlap::CHECK,
    &transform::CHECK,
    &p2p::CHECK,
];

/// Returns the check of this name, or `None` for `init`.
pub fn by_name(name: CanaryCheck) -> Option<&'static Check> {
    CHECKS.into_iter().find(|check| check.name == name)
}

/// Returns the names of the kernels of all checks, without duplicates.
pub fn kernels() -> BTreeSet<&'static str> {
    CHECKS.into_iter().flat_map(|check| check.kernels.iter().copied()).collect()
}

/// Returns the check that a step belongs to. The driver's steps belong to `init`.
pub fn of_step(step: CanaryStep) -> CanaryCheck {
    CHECKS.into_iter().find(|check| check.step == step).map_or(CanaryCheck::Init, |check| check.name)
}

/// Results of a check, and NVML's readings around the check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub check: CanaryCheck,
    /// Time in which the check's kernels or copies ran, in seconds.
    pub gpu_seconds: f64,
    /// The same time including any time in which another process used the GPU, in seconds.
    pub wall_seconds: f64,
    pub found: CheckFigures,
    /// Number of wrong results, and the first of them.
    pub mismatches: Mismatches,
    /// NVML's readings before, during and after the check.
    pub around: Around,
}

/// Figures of a check. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckFigures {
    /// Figures of all multiprocessors, from `sm_rate` or `tensor`.
    Sms(Vec<Sm>),
    /// Multiprocessors that ran `sm_sdc`.
    Covered(Vec<u32>),
    /// Bytes of one pass and times of the passes, from `hbm_read` or `l2`. For a launch of several passes, the time is
    /// divided by their number. The L2 rate scales with the SM clock, which is in Hz.
    Read {
        bytes: u64,
        seconds: Vec<f64>,
        sm_clock_hertz: f64,
    },
    /// Bytes and number of patterns that `hbm_walk` wrote and read back.
    Walked {
        bytes: u64,
        patterns: u32,
    },
    /// Copies of `pcie`: their bytes and their times in both directions, the median time of a four-byte copy, the PCIe
    /// generation and lanes during the copies (0 if not reported), and the NUMA node of the pinned buffer (`None` if
    /// the host does not report the GPU's node).
    Copied {
        bytes: u64,
        to_gpu: Vec<f64>,
        to_host: Vec<f64>,
        latency: f64,
        link_generation: u32,
        link_width: u32,
        numa_node: Option<u32>,
    },
    /// Sorted times of `launch` from an empty launch until the host notices its end.
    Launched(Vec<f64>),
    Overlapped(Overlap),
    Transformed(Transform),
    /// Copies of `p2p`: the UUID of the other GPU, the bytes and the times of the copies, and whether the GPUs can
    /// access one another's memory.
    Peer {
        peer: String,
        bytes: u64,
        seconds: Vec<f64>,
        access: bool,
    },
}

impl CheckFigures {
    fn of_another_check() -> Sample {
        Sample::discarded(CanaryVerdict::Skipped, "the figures belong to another check".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::schema::KnownLabel;

    #[test]
    fn each_check_of_the_catalogue_is_in_the_table_once_under_its_own_step() {
        for name in CanaryCheck::ALL.iter().copied().filter(|name| *name != CanaryCheck::Init) {
            let of_name: Vec<_> = CHECKS.into_iter().filter(|check| check.name == name).collect();
            assert_eq!(of_name.len(), 1, "{name:?}");
            assert_eq!(of_step(of_name[0].step), name);
        }
        assert_eq!(of_step(CanaryStep::Destroy), CanaryCheck::Init);
    }
}

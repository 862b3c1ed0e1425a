//! The checks: one file each with its kernels, measurement, judgement and tolerances. [`CHECKS`] is the only list of them;
//! the child's steps, the judge and the kernels that are loaded follow from it.
//!
//! The child measures, the parent judges: `measure` calls the driver, `judge` is pure.

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

// Each check takes these by `use super::*`.
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
    /// The step of the run in which the check is made.
    pub step: CanaryStep,
    /// The kernels of `kernels/*.cu` that it launches.
    pub kernels: &'static [&'static str],
    /// The host does nothing between launches, so that wall time beyond GPU time means another process on the GPU.
    pub back_to_back: bool,
    /// The PCIe link's state is read meanwhile.
    pub reads_link: bool,
    /// Calls the driver. `None` where there is nothing to measure.
    pub measure: Measure,
    /// Judges what was measured, by the clock of this run.
    pub judge: Judge,
}

/// The figures of a check, and its wrong results.
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

/// All checks but `init`, which is made of the driver's steps before them ([`steps`]). The order has no meaning: a run's is
/// that of its request.
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

/// The check of this name; `None` for `init`.
pub fn by_name(name: CanaryCheck) -> Option<&'static Check> {
    CHECKS.into_iter().find(|check| check.name == name)
}

/// The kernels of all checks, each once.
pub fn kernels() -> BTreeSet<&'static str> {
    CHECKS.into_iter().flat_map(|check| check.kernels.iter().copied()).collect()
}

/// The check that a step belongs to. The driver's steps are those of `init`.
pub fn of_step(step: CanaryStep) -> CanaryCheck {
    CHECKS.into_iter().find(|check| check.step == step).map_or(CanaryCheck::Init, |check| check.name)
}

/// What a check measured, and what NVML reported meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub check: CanaryCheck,
    /// Time in which its kernels or copies ran, seconds.
    pub gpu_seconds: f64,
    /// The same with the time in which another process had the GPU, seconds.
    pub wall_seconds: f64,
    pub found: CheckFigures,
    /// Wrong results: how many, and the first of them.
    pub mismatches: Mismatches,
    /// What NVML reported before, during and after.
    pub around: Around,
}

/// The figures of a check; times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckFigures {
    /// `sm_rate`, `tensor`: every multiprocessor.
    Sms(Vec<Sm>),
    /// `sm_sdc`: the multiprocessors that ran it.
    Covered(Vec<u32>),
    /// `hbm_read`, `l2`: bytes of one pass, and the time of each pass (or launch of several, divided). L2 scales with the
    /// SM clock, in Hz.
    Read { bytes: u64, seconds: Vec<f64>, sm_clock_hertz: f64 },
    /// `hbm_walk`: bytes, and patterns written and read back.
    Walked { bytes: u64, patterns: u32 },
    /// `pcie`: bytes and times of copies each way; the time of a copy of four bytes, median; PCIe generation and lanes while
    /// copying, 0 if not reported; the NUMA node of the pinned buffer, `None` where the host hides that of the GPU.
    Copied {
        bytes: u64,
        to_gpu: Vec<f64>,
        to_host: Vec<f64>,
        latency: f64,
        link_generation: u32,
        link_width: u32,
        numa_node: Option<u32>,
    },
    /// `launch`: time from an empty launch to its end seen, of each, sorted.
    Launched(Vec<f64>),
    /// `overlap`.
    Overlapped(Overlap),
    /// `transform`.
    Transformed(Transform),
    /// `p2p`: UUID of the other GPU, bytes of one copy, the time of each, and whether the GPUs reach each other's memory.
    Peer { peer: String, bytes: u64, seconds: Vec<f64>, access: bool },
}

impl CheckFigures {
    fn of_another_check() -> Sample {
        Sample::discarded(CanaryVerdict::Skipped, "the figures are of another check".into())
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

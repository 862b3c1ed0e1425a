//! What is compared with earlier runs, and by how much it may be worse.

use serde::{Deserialize, Serialize};

use super::statistics::Spread;
use model::catalog::CanaryStep;

/// How many robust sigmas a sample may be worse than the median whatever its tolerance.
const SIGMAS: f64 = 6.0;

/// Something that a run measures and a later run is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// FP32 FMA of one multiprocessor in a cycle, median of all.
    SmRateWork,
    /// Clock of the multiprocessors in `sm_rate`, median of all, Hz.
    SmRateClock,
    /// FMA of the tensor cores of one multiprocessor in a cycle, median of all.
    TensorWork,
    /// Clock of the multiprocessors in `tensor`, median of all, Hz.
    TensorClock,
    /// Bytes a second read from device memory.
    HbmRead,
    /// Bytes read from L2 in one cycle of the SM clock.
    L2Read,
    /// Bytes a second copied to the GPU.
    ToGpu,
    /// Bytes a second copied to the host.
    ToHost,
    /// Seconds of an empty launch until its end was seen.
    Launch,
    /// Seconds to load the CUDA library.
    LoadStep,
    /// Seconds of `cuInit`.
    InitStep,
    /// Seconds to find the device.
    DeviceStep,
    /// Seconds to make the context.
    ContextStep,
    /// Seconds to load the kernels.
    ModuleStep,
    /// Seconds of the first launch.
    FirstLaunchStep,
}

/// How much worse a quantity may be before its sample counts as low.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// As a share of the median.
    pub share: f64,
    /// And by so much at least, in the quantity's unit.
    pub at_least: f64,
}

impl Quantity {
    /// The steps of the driver before the checks, in their order.
    pub const STEPS: [(CanaryStep, Quantity); 6] = [
        (CanaryStep::Load, Quantity::LoadStep),
        (CanaryStep::Init, Quantity::InitStep),
        (CanaryStep::Device, Quantity::DeviceStep),
        (CanaryStep::Context, Quantity::ContextStep),
        (CanaryStep::Module, Quantity::ModuleStep),
        (CanaryStep::FirstLaunch, Quantity::FirstLaunchStep),
    ];

    /// Whether it is a time, of which less is better.
    pub fn is_time(self) -> bool {
        use Quantity::*;
        matches!(self, Launch | LoadStep | InitStep | DeviceStep | ContextStep | ModuleStep | FirstLaunchStep)
    }

    /// How much worse it may be. `steady`: the GPU is of a kind that holds its highest clock when nothing told
    /// keeps it from it; others move it with temperature and voltage and tell no reason.
    ///
    /// On an H200 work per cycle repeats to 0.001 % and the clock, as far as it was measured, to 0.02 %, so 0.5 %
    /// and 0.3 % are hundreds and fifteen standard deviations away (`judge/thresholds_tests.rs` has the sums and
    /// what they rest on); memory and copies are taken to repeat to 1 %, and 5 % is the field's rule; times depend
    /// on the host, and only a multiple tells of the GPU.
    pub fn tolerance(self, steady: bool) -> Tolerance {
        use Quantity::*;
        let (share, at_least) = match self {
            SmRateWork => (0.005, 0.0),
            SmRateClock if steady => (0.003, 0.0),
            TensorWork => (0.02, 0.0),
            SmRateClock | TensorClock | HbmRead | L2Read | ToGpu | ToHost => (0.05, 0.0),
            Launch => (0.5, 20e-6),
            LoadStep | InitStep | DeviceStep | ContextStep | ModuleStep | FirstLaunchStep => (4.0, 2.0),
        };
        Tolerance { share, at_least }
    }
}

/// What is usual for a quantity at a place, in its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usual {
    /// Which.
    pub quantity: Quantity,
    /// Middle and spread of its clean samples.
    pub spread: Spread,
    /// How many they are.
    pub count: usize,
}

impl Usual {
    /// The sample as a share of the median; of times the other way about, so that below 1 is worse.
    pub fn ratio(&self, sample: f64) -> f64 {
        match self.quantity.is_time() {
            true => self.spread.median / sample,
            false => sample / self.spread.median,
        }
    }

    /// Whether the sample is worse than what chance and tolerance allow.
    pub fn is_worse(&self, sample: f64, steady: bool) -> bool {
        let Tolerance { share, at_least } = self.quantity.tolerance(steady);
        let Spread { median, sigma } = self.spread;
        let allowed = (share * median).max(SIGMAS * sigma).max(at_least);
        match self.quantity.is_time() {
            true => sample > median + allowed,
            false => sample < median - allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual(quantity: Quantity, median: f64, sigma: f64) -> Usual {
        Usual { quantity, spread: Spread { median, sigma }, count: 100 }
    }

    #[test]
    fn rates_are_worse_below_and_times_above() {
        let memory = usual(Quantity::HbmRead, 4.0e12, 1e10);
        assert!(memory.is_worse(3.7e12, true) && !memory.is_worse(3.85e12, true));
        assert!(!memory.is_worse(9e12, true));
        let wide = usual(Quantity::HbmRead, 4.0e12, 1e11);
        assert!(!wide.is_worse(3.5e12, true), "six sigmas are 0.6e12");
        let launch = usual(Quantity::Launch, 9e-6, 1e-7);
        assert!(!launch.is_worse(28e-6, true) && launch.is_worse(30e-6, true));
        assert!((launch.ratio(18e-6) - 0.5).abs() < 1e-9);
        let context = usual(Quantity::ContextStep, 0.1, 0.01);
        assert!(!context.is_worse(2.0, true) && context.is_worse(2.2, true));
        assert!(usual(Quantity::ContextStep, 1.0, 0.01).is_worse(5.1, true));
    }

    #[test]
    fn only_steady_parts_are_held_to_a_third_of_a_percent() {
        let clock = usual(Quantity::SmRateClock, 1980e6, 1e5);
        assert!(clock.is_worse(1970e6, true) && !clock.is_worse(1970e6, false));
    }
}

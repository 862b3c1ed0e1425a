//! What a check is judged with, and what a judgement is made of.

use crate::baseline::{Configuration, Memory, Quantity, Siblings, Spot, Usual};
use crate::report::Device;
use model::canary::Rate;
use model::catalog::{BadSmKind, CanaryVerdict, RateAgainst};

/// Below this share of its siblings' median a GPU is slow, whatever its own baseline says: it may have been
/// born so.
const OF_SIBLINGS: f64 = 0.90;
/// The same for copies over PCIe: GPUs of one node may differ by the processor they hang on.
const OF_SIBLINGS_LINK: f64 = 0.80;
/// Largest ratio that is told; above, the figures make no sense.
const LARGEST_RATIO: f64 = 100.0;

/// A run's circumstances.
pub struct View<'a> {
    pub device: &'a Device,
    pub spot: &'a Spot,
    pub configuration: &'a Configuration,
    pub memory: &'a Memory,
    pub siblings: &'a Siblings,
    /// When the run ended, seconds since 1970.
    pub now: f64,
}

/// What one check's figures say.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub verdict: CanaryVerdict,
    /// Figures first, then what is wrong, then what to do.
    pub text: Vec<String>,
    pub rate: Option<Rate>,
    pub ratios: Vec<(RateAgainst, f64)>,
    pub sm_clock_hertz: Option<f64>,
    pub bad_sms: Vec<(u32, BadSmKind)>,
    /// Figures that are valid.
    pub figures: Vec<(Quantity, f64)>,
    /// Of these, those that do not say what is usual.
    pub unusual: Vec<Quantity>,
}

impl Sample {
    /// Nothing wrong so far.
    pub fn new() -> Sample {
        Sample {
            verdict: CanaryVerdict::Ok,
            text: Vec::new(),
            rate: None,
            ratios: Vec::new(),
            sm_clock_hertz: None,
            bad_sms: Vec::new(),
            figures: Vec::new(),
            unusual: Vec::new(),
        }
    }

    /// A sample that is thrown away, and why.
    pub fn discarded(verdict: CanaryVerdict, why: String) -> Sample {
        Sample { verdict, text: vec![why], ..Sample::new() }
    }

    /// Sets the verdict unless one stands already, and says why. What tells the cause comes first.
    pub fn find(&mut self, verdict: CanaryVerdict, why: String) {
        if self.verdict == CanaryVerdict::Ok {
            self.verdict = verdict;
        }
        self.text.push(why);
    }

    /// Says more.
    pub fn say(&mut self, text: String) {
        self.text.push(text);
    }

    /// Notes a comparison, if it is a number that makes sense.
    pub fn compare(&mut self, against: RateAgainst, ratio: f64) {
        if ratio.is_finite() && ratio > 0.0 && ratio <= LARGEST_RATIO {
            self.ratios.push((against, ratio));
        }
    }

    /// All that it says.
    pub fn words(&self) -> String {
        self.text.join("; ")
    }
}

/// How a figure stands to its usual value and to the siblings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Its share of the baseline.
    pub baseline: Option<f64>,
    /// Its share of the siblings' median.
    pub siblings: Option<f64>,
    /// Below what is usual, or far below the siblings: in words.
    pub low: Option<String>,
}

impl View<'_> {
    /// Whether the GPU holds its highest clock unless NVML tells a reason. Those with a compute capability of
    /// their own for the data centre do; others move their clocks with temperature and voltage, and the highest
    /// clock they tell is above any they reach.
    pub fn steady(&self) -> bool {
        matches!(self.device.compute_capability, (7, 0) | (8, 0) | (9, 0) | (10, 0) | (10, 3))
    }

    /// Whether it is a whole GPU.
    pub fn whole(&self) -> bool {
        self.spot.instance.is_none()
    }

    fn usual(&self, quantity: Quantity) -> Option<Usual> {
        self.memory.usual(self.spot, self.configuration, quantity)
    }

    /// Compares a valid figure.
    pub fn stand(&self, quantity: Quantity, value: f64) -> Standing {
        let usual = self.usual(quantity);
        let siblings = self.siblings.median(quantity).filter(|_| !quantity.is_time());
        let of_siblings = siblings.map(|median| value / median);
        let least = match quantity {
            Quantity::ToGpu | Quantity::ToHost => OF_SIBLINGS_LINK,
            _ => OF_SIBLINGS,
        };
        let worse = usual.filter(|usual| usual.is_worse(value, self.steady()));
        let low = match (worse, of_siblings) {
            (Some(usual), _) => Some(format!(
                "{} of the {} usual here ({} earlier runs)",
                super::words::percent(usual.ratio(value)),
                figure(quantity, usual.spread.median),
                usual.count
            )),
            (None, Some(share)) if share < least => Some(format!(
                "{} of the median of the other GPUs of its model, {}",
                super::words::percent(share),
                figure(quantity, value / share)
            )),
            _ => None,
        };
        Standing { baseline: usual.map(|usual| usual.ratio(value)), siblings: of_siblings, low }
    }

    /// Compares a figure, notes its ratios in the sample, and gives what is low about it.
    pub fn compare(&self, sample: &mut Sample, quantity: Quantity, value: f64) -> Option<String> {
        let standing = self.stand(quantity, value);
        if let Some(ratio) = standing.baseline {
            sample.compare(RateAgainst::Baseline, ratio);
        }
        if let Some(ratio) = standing.siblings {
            sample.compare(RateAgainst::Siblings, ratio);
        }
        sample.figures.push((quantity, value));
        standing.low
    }
}

/// A figure with its unit.
pub fn figure(quantity: Quantity, value: f64) -> String {
    use Quantity::*;
    match quantity {
        SmRateWork | TensorWork => super::words::rate(Rate::WorkPerCycle(value)),
        SmRateClock | TensorClock => super::words::megahertz(value),
        HbmRead | ToGpu | ToHost => super::words::bytes_per_second(value),
        L2Read => super::words::rate(Rate::BytesPerCycle(value)),
        Launch | LoadStep | InitStep | DeviceStep | ContextStep | ModuleStep | FirstLaunchStep => {
            super::words::seconds(value)
        }
    }
}

//! The sample of a check: its figures, their comparisons and the verdict.

pub mod clocks;
pub mod reasons;

use crate::baseline::{BaselineStore, Quantity, Siblings};
use crate::device::CudaDevice;
use crate::format::percent;
use model::canary::{Place, Rate};
use model::catalog::{BadSmKind, CanaryVerdict, RateAgainst};

/// Maximum ratio that is reported. Above it, the figures are implausible.
const LARGEST_RATIO: f64 = 100.0;

pub(crate) struct RunContext<'a> {
    pub device: &'a CudaDevice,
    pub place: &'a Place,
    pub key: &'a str,
    pub configuration: &'a str,
    pub baseline: &'a BaselineStore,
    pub siblings: &'a Siblings,
    /// End of the run, in seconds since 1970.
    pub now: f64,
}

/// Evaluation of one check's figures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub verdict: CanaryVerdict,
    /// Text of the figures, followed by the problems and the actions.
    pub text: Vec<String>,
    pub rate: Option<Rate>,
    pub ratios: Vec<(RateAgainst, f64)>,
    pub sm_clock_hertz: Option<f64>,
    pub bad_sms: Vec<(u32, BadSmKind)>,
    pub figures: Vec<(Quantity, f64)>,
    /// Valid figures that must not be added to the baseline.
    pub unusual: Vec<Quantity>,
}

impl Sample {
    /// Returns a sample without any problem.
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

    /// Returns a sample that is discarded for this reason.
    pub fn discarded(verdict: CanaryVerdict, why: String) -> Sample {
        Sample { verdict, text: vec![why], ..Sample::new() }
    }

    /// Sets the verdict unless one is set already, and adds the reason. The first cause takes precedence.
    pub fn find(&mut self, verdict: CanaryVerdict, why: String) {
        if self.verdict == CanaryVerdict::Ok {
            self.verdict = verdict;
        }
        self.text.push(why);
    }

    pub fn say(&mut self, text: String) {
        self.text.push(text);
    }

    /// Records a comparison if its ratio is plausible.
    pub fn compare(&mut self, against: RateAgainst, ratio: f64) {
        if ratio.is_finite() && ratio > 0.0 && ratio <= LARGEST_RATIO {
            self.ratios.push((against, ratio));
        }
    }

    /// Records the ratios of a comparison.
    pub fn note_ratios(&mut self, comparison: &Comparison) {
        let ratios =
            [(RateAgainst::Baseline, comparison.baseline), (RateAgainst::Siblings, comparison.siblings)];
        for (against, ratio) in ratios {
            if let Some(ratio) = ratio {
                self.compare(against, ratio);
            }
        }
    }

    pub fn text(&self) -> String {
        self.text.join("; ")
    }
}

/// Comparison of a figure with its reference and the siblings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Comparison {
    /// Figure as a share of the baseline.
    pub baseline: Option<f64>,
    /// Figure as a share of the siblings' median.
    pub siblings: Option<f64>,
    /// The reason, if the figure is below its reference or far below the siblings.
    pub low: Option<String>,
}

impl RunContext<'_> {
    /// Returns true if the GPU runs at its highest clock unless NVML reports a reason. This applies to compute
    /// capabilities that only data centre GPUs have. Other GPUs change their clocks with temperature and
    /// voltage, and never reach the highest clock that they report.
    pub fn steady(&self) -> bool {
        matches!(self.device.compute_capability, (7, 0) | (8, 0) | (9, 0) | (10, 0) | (10, 3))
    }

    pub fn is_whole_gpu(&self) -> bool {
        self.place.instance.is_none()
    }

    /// Compares a valid figure with its reference and with those of the sibling GPUs.
    pub fn compared(&self, quantity: Quantity, value: f64) -> Comparison {
        let reference = self.baseline.reference(self.key, self.configuration, quantity);
        let siblings = self.siblings.median(quantity).filter(|_| !quantity.is_time);
        let of_siblings = siblings.map(|median| value / median);
        let worse = reference.filter(|reference| reference.is_worse(value, self.steady()));
        let low = match (worse, of_siblings) {
            (Some(reference), _) => Some(format!(
                "{} of the {} usual here ({} earlier runs)",
                percent(reference.ratio(value)),
                (quantity.shown)(reference.spread.median),
                reference.count
            )),
            (None, Some(share)) if share < quantity.of_siblings => Some(format!(
                "{} of the median of the other GPUs of its model, {}",
                percent(share),
                (quantity.shown)(value / share)
            )),
            _ => None,
        };
        Comparison { baseline: reference.map(|reference| reference.ratio(value)), siblings: of_siblings, low }
    }

    /// Compares a figure, records its ratios in the sample, and returns the reason if it is low.
    pub fn compare(&self, sample: &mut Sample, quantity: Quantity, value: f64) -> Option<String> {
        let comparison = self.compared(quantity, value);
        sample.note_ratios(&comparison);
        sample.figures.push((quantity, value));
        comparison.low
    }
}

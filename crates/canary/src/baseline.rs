//! History of the GPUs and MIG devices. It contains clean samples by configuration (the baseline), the last verdicts
//! (for the three-of-four rule), wrong results, and the newest figures (for comparison with siblings).
//!
//! One state file stores the history across restarts. The judge reads the history and returns a [`BaselineUpdate`].
//! Only the daemon applies updates.

mod quantity;
mod recent_runs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::CudaDevice;
use crate::stats;
use host::state::Document;
use model::canary::Place;
use model::catalog::{CanaryCheck, CanaryVerdict};
use model::persisted::known;
pub use quantity::Quantity;
use quantity::Reference;
use recent_runs::PastWrong;
use recent_runs::RecentRuns;
pub(crate) use recent_runs::{RecentSample, add};

/// Maximum number of clean samples stored per quantity.
const KEPT: usize = 200;
/// Minimum number of clean samples before a quantity is compared.
pub const NEEDED: usize = 20;
/// Maximum number of configurations stored per place.
const CONFIGURATIONS: usize = 3;
/// Maximum number of places, and of configurations over all places.
const SETS: usize = 192;
/// Minimum number of siblings for a comparison.
const SIBLINGS: usize = 3;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BaselineStore {
    sets: Vec<Set>,
    #[serde(deserialize_with = "known")]
    recent_runs: Vec<RecentRuns>,
}

impl Document for BaselineStore {
    const KIND: &'static str = "canary";
    const VERSION: u32 = 1;
    const OLDEST: u32 = 1;
    // 192 sets of 15 quantities of 200 samples of at most 14 bytes are 8 MB.
    const MAX_BYTES: usize = 16 * 1024 * 1024;
}

/// Clean samples of one place in one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Set {
    key: String,
    configuration: String,
    /// Samples by the name of the quantity, oldest first. Single precision is enough, because figures repeat to 1 in
    /// 100,000 at best.
    samples: BTreeMap<String, Vec<f32>>,
}

/// Results of one run that are added to the history.
#[derive(Clone, Debug, PartialEq)]
pub struct BaselineUpdate {
    /// Place of the run, from [`key`].
    pub key: String,
    /// End of the run, in seconds since 1970.
    pub at: f64,
    /// Results of [`configuration`] and [`model`]; `None` if the run ended before it identified the device.
    pub device: Option<(String, String)>,
    pub clean: Vec<(Quantity, f64)>,
    /// All valid samples, whether clean or not.
    pub newest: Vec<(Quantity, f64)>,
    /// Verdicts of the valid samples by check.
    pub samples: Vec<(CanaryCheck, CanaryVerdict)>,
}

/// Identifies a place by properties that survive a reboot. NVML's index and the UUID of a MIG device may change.
pub fn key(place: &Place) -> String {
    let uuid = &place.gpu.uuid;
    match &place.instance {
        Some(i) => format!("{uuid} {}/{} {}", i.gpu_instance, i.compute_instance, i.profile),
        None => uuid.to_string(),
    }
}

/// Identifies the configuration that a baseline applies to. Any change starts a new baseline.
pub fn configuration(device: &CudaDevice) -> String {
    let of = (
        device.compute_capability,
        device.multiprocessors,
        &device.driver_version,
        &device.vbios_version,
        device.power_limit_milliwatts,
        device.ecc,
        device.code_checksum,
        device.max_sm_clock_hertz as u64,
        device.max_memory_clock_hertz as u64,
        (device.max_link_generation, device.max_link_width),
        used_power(device),
    );
    format!("{of:?}")
}

/// Identifies the GPUs whose rates should be alike.
pub fn model(place: &Place, device: &CudaDevice) -> String {
    let profile = place.instance.as_ref().map_or("", |i| &i.profile);
    let (power, code) = (device.power_limit_milliwatts, device.code_checksum);
    format!("{:?}", (&device.name, profile, power, code, used_power(device)))
}

/// Returns the device memory that the checks use, because rates depend on it. The size is rounded to a power of two,
/// because it varies slightly between runs when memory is scarce.
fn used_power(device: &CudaDevice) -> u32 {
    device.used_bytes.checked_ilog2().unwrap_or(0)
}

/// Newest figures of the other places of the same model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Siblings(BTreeMap<String, Vec<f64>>);

impl Siblings {
    /// Collects the newest figures of several places.
    pub fn from_figures<'a>(others: impl IntoIterator<Item = &'a [(Quantity, f64)]>) -> Siblings {
        Siblings::by_name(others.into_iter().flatten().map(|(quantity, value)| (quantity.name, *value)))
    }

    fn by_name<'a>(figures: impl Iterator<Item = (&'a str, f64)>) -> Siblings {
        let mut siblings = Siblings::default();
        figures.for_each(|(name, value)| siblings.0.entry(name.to_owned()).or_default().push(value));
        siblings
    }

    /// Returns true if there are enough siblings for any comparison.
    pub fn is_enough(&self) -> bool {
        self.0.values().any(|values| values.len() >= SIBLINGS)
    }

    /// Returns the siblings' median, if there are enough siblings.
    pub fn median(&self, quantity: Quantity) -> Option<f64> {
        let values = self.0.get(quantity.name).filter(|values| values.len() >= SIBLINGS)?;
        stats::median(values.iter().copied())
    }
}

impl BaselineStore {
    /// Returns the reference of a device in a configuration, or `None` if there are too few samples.
    pub(crate) fn reference(&self, key: &str, configuration: &str, quantity: Quantity) -> Option<Reference> {
        let samples = self.samples(key, configuration, quantity);
        let samples: Vec<f64> = samples.iter().copied().map(f64::from).collect();
        let spread = stats::spread(&samples)?;
        (samples.len() >= NEEDED).then_some(Reference { quantity, spread, count: samples.len() })
    }

    /// Returns the number of clean samples.
    pub fn count(&self, key: &str, configuration: &str, quantity: Quantity) -> usize {
        self.samples(key, configuration, quantity).len()
    }

    /// Returns the last valid verdicts of a check in this configuration, oldest first, without those from the future.
    pub(crate) fn recent(
        &self,
        key: &str,
        configuration: &str,
        check: CanaryCheck,
        now: f64,
    ) -> Vec<RecentSample> {
        let runs = self.recent_runs_of(key).filter(|runs| runs.configuration == configuration);
        let recent = runs.and_then(|runs| runs.recent.get(&check)).into_iter().flatten();
        // After the clock is set back, older samples lie in the future and their age is meaningless.
        recent.filter(|recent| recent.at <= now).copied().collect()
    }

    /// Returns the newest wrong results of a place, by check.
    pub(crate) fn wrong(&self, key: &str) -> &[PastWrong] {
        self.recent_runs_of(key).map_or(&[], |recent| &recent.wrong)
    }

    /// Returns the newest figures of the other places of the same model.
    pub fn siblings(&self, place: &Place, device: &CudaDevice) -> Siblings {
        let (key, model) = (key(place), model(place, device));
        let others = self.recent_runs.iter().filter(|recent| recent.key != key && recent.model == model);
        let figures = others.flat_map(|recent| &recent.newest);
        Siblings::by_name(figures.map(|(name, value)| (name.as_str(), f64::from(*value))))
    }

    /// Adds the results of a run.
    pub fn apply(&mut self, update: BaselineUpdate) {
        // Moved to the end, so that the front has gone longest without a run.
        if let Some((configuration, _)) = update.device.as_ref().filter(|_| !update.clean.is_empty()) {
            let (key, configuration) = (update.key.clone(), configuration.clone());
            let at = self.sets.iter().position(|set| set.key == key && set.configuration == configuration);
            let mut set = match at {
                Some(at) => self.sets.remove(at),
                None => Set { key, configuration, samples: BTreeMap::new() },
            };
            let clean = update.clean.iter().map(|(quantity, value)| (quantity.name, *value as f32));
            for (name, value) in clean.filter(|(_, value)| value.is_finite() && *value > 0.0) {
                let samples = set.samples.entry(name.to_owned()).or_default();
                samples.push(value);
                samples.drain(..samples.len().saturating_sub(KEPT));
            }
            self.sets.push(set);
        }
        let mut recent = match self.recent_runs.iter().position(|recent| recent.key == update.key) {
            Some(at) => self.recent_runs.remove(at),
            None => RecentRuns { key: update.key.clone(), ..RecentRuns::default() },
        };
        recent.apply(update);
        self.recent_runs.push(recent);
        self.trim();
    }

    /// Removes values that no run could have measured, because another program or a person may have written the file.
    pub fn sanitized(mut self) -> BaselineStore {
        for set in &mut self.sets {
            for samples in set.samples.values_mut() {
                samples.retain(|sample| sample.is_finite() && *sample > 0.0);
                samples.drain(..samples.len().saturating_sub(KEPT));
            }
        }
        self.recent_runs.iter_mut().for_each(RecentRuns::sanitize);
        self.trim();
        self
    }

    fn samples(&self, key: &str, configuration: &str, quantity: Quantity) -> &[f32] {
        let set = self.sets.iter().find(|set| set.key == key && set.configuration == configuration);
        set.and_then(|set| set.samples.get(quantity.name)).map_or(&[], Vec::as_slice)
    }

    fn recent_runs_of(&self, key: &str) -> Option<&RecentRuns> {
        self.recent_runs.iter().find(|recent| recent.key == key)
    }

    /// Drops the entries that have gone longest without a run, first within a place and then over all places.
    fn trim(&mut self) {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        self.sets.reverse();
        self.sets.retain(|set| {
            let of_place = seen.entry(set.key.clone()).or_default();
            *of_place += 1;
            *of_place <= CONFIGURATIONS
        });
        self.sets.truncate(SETS);
        self.sets.reverse();
        self.recent_runs.drain(..self.recent_runs.len().saturating_sub(SETS));
    }
}

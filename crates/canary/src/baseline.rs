//! The history of each GPU or MIG device: clean samples by configuration (the baseline), the last verdicts (for the rule of three
//! of the last four), wrong results, and the newest figures (for siblings).
//!
//! One state file keeps it over restarts. The judge reads it and returns a [`BaselineUpdate`]; only the daemon applies updates.

mod configuration;
mod quantity;
mod recent_runs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::CudaDevice;
use crate::stats;
pub use configuration::{Configuration, DeviceKey, Model};
use host::state::Document;
use model::canary::Place;
use model::catalog::{CanaryCheck, CanaryVerdict};
pub use quantity::{Quantity, Reference};
use recent_runs::RecentRuns;
pub use recent_runs::{PastWrong, RIGHT_AGAIN, RecentSample};

/// Clean samples that are kept of each quantity.
const KEPT: usize = 200;
/// Clean samples from which on a quantity is compared.
pub const NEEDED: usize = 20;
/// Configurations that are kept of a place.
const CONFIGURATIONS: usize = 3;
/// Configurations of all places, and places, that are kept at most.
const SETS: usize = 192;
/// Siblings that are needed for a comparison.
const SIBLINGS: usize = 3;

/// The history of all devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BaselineStore {
    sets: Vec<Set>,
    recent_runs: Vec<RecentRuns>,
}

impl Document for BaselineStore {
    const KIND: &'static str = "canary";
    const VERSION: u32 = 1;
    // 192 sets of 15 quantities of 200 samples of at most 14 bytes are 8 MB.
    const MAX_BYTES: usize = 16 * 1024 * 1024;
}

/// Clean samples of one place in one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Set {
    key: DeviceKey,
    configuration: Configuration,
    /// When it was last added to, in seconds since 1970.
    used: f64,
    /// By the name of the quantity, oldest first. Half of a double's digits are enough: they repeat to 1 in 100,000 at best.
    samples: BTreeMap<String, Vec<f32>>,
}

/// What a run adds.
#[derive(Clone, Debug, PartialEq)]
pub struct BaselineUpdate {
    pub key: DeviceKey,
    /// When it ended, in seconds since 1970.
    pub at: f64,
    /// `None` if the run ended before the device was known.
    pub device: Option<(Configuration, Model)>,
    /// Clean samples.
    pub clean: Vec<(Quantity, f64)>,
    /// Valid samples, clean or not.
    pub newest: Vec<(Quantity, f64)>,
    /// What valid samples said of each check.
    pub samples: Vec<(CanaryCheck, CanaryVerdict)>,
}

/// The newest figures of the other places of the same model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Siblings(BTreeMap<String, Vec<f64>>);

impl Siblings {
    /// From the figures of each of them.
    pub fn of<'a>(others: impl IntoIterator<Item = &'a [(Quantity, f64)]>) -> Siblings {
        Siblings::by_name(others.into_iter().flatten().map(|(quantity, value)| (quantity.name, *value)))
    }

    fn by_name<'a>(figures: impl Iterator<Item = (&'a str, f64)>) -> Siblings {
        let mut siblings = Siblings::default();
        figures.for_each(|(name, value)| siblings.0.entry(name.to_owned()).or_default().push(value));
        siblings
    }

    /// Whether there are enough of them for any comparison.
    pub fn is_enough(&self) -> bool {
        self.0.values().any(|values| values.len() >= SIBLINGS)
    }

    /// Their median, if there are enough of them.
    pub fn median(&self, quantity: Quantity) -> Option<f64> {
        let values = self.0.get(quantity.name).filter(|values| values.len() >= SIBLINGS)?;
        stats::median(values.iter().copied())
    }
}

impl BaselineStore {
    /// The reference of a device in a configuration; `None` while too little is known.
    pub fn reference(
        &self,
        key: &DeviceKey,
        configuration: &Configuration,
        quantity: Quantity,
    ) -> Option<Reference> {
        let samples = self.set(key, configuration)?.samples.get(quantity.name)?;
        let samples: Vec<f64> = samples.iter().copied().map(f64::from).collect();
        let spread = stats::spread(&samples)?;
        (samples.len() >= NEEDED).then_some(Reference { quantity, spread, count: samples.len() })
    }

    /// How many clean samples there are.
    pub fn count(&self, key: &DeviceKey, configuration: &Configuration, quantity: Quantity) -> usize {
        self.set(key, configuration).and_then(|set| set.samples.get(quantity.name)).map_or(0, Vec::len)
    }

    /// What the last valid samples of a check said, oldest first: in this configuration, and not in the future.
    pub fn recent(
        &self,
        key: &DeviceKey,
        configuration: &Configuration,
        check: CanaryCheck,
        now: f64,
    ) -> Vec<RecentSample> {
        let recent =
            self.recent_runs_of(key).filter(|recent| recent.configuration.as_ref() == Some(configuration));
        let recent = recent.and_then(|recent| recent.recent.get(&check)).into_iter().flatten();
        // A clock that was set back leaves samples from the future: their distance in time means nothing.
        recent.filter(|recent| recent.at <= now).copied().collect()
    }

    /// The newest wrong results there, by check.
    pub fn wrong(&self, key: &DeviceKey) -> &[PastWrong] {
        self.recent_runs_of(key).map_or(&[], |recent| &recent.wrong)
    }

    /// The newest figures of the other places of this model.
    pub fn siblings(&self, place: &Place, device: &CudaDevice) -> Siblings {
        let key = DeviceKey::of(place);
        let model = Model::of(place, device);
        let others = self
            .recent_runs
            .iter()
            .filter(|recent| recent.key != key && recent.model.as_ref() == Some(&model));
        let figures = others.flat_map(|recent| &recent.newest);
        Siblings::by_name(figures.map(|(name, value)| (name.as_str(), f64::from(*value))))
    }

    /// Adds the samples of a run.
    pub fn apply(&mut self, update: BaselineUpdate) {
        if let Some((configuration, _)) = update.device.as_ref().filter(|_| !update.clean.is_empty()) {
            let set = self.set_to_fill(&update.key, configuration, update.at);
            for (quantity, value) in &update.clean {
                let value = *value as f32;
                if !value.is_finite() || value <= 0.0 {
                    continue;
                }
                let samples = set.samples.entry(quantity.name.to_owned()).or_default();
                samples.push(value);
                samples.drain(..samples.len().saturating_sub(KEPT));
            }
        }
        let at = self.recent_runs.iter().position(|recent| recent.key == update.key);
        // Moved to the end: the front is what was longest without a run.
        let mut recent = match at {
            Some(at) => self.recent_runs.remove(at),
            None => RecentRuns::new(update.key.clone()),
        };
        recent.apply(update);
        self.recent_runs.push(recent);
        self.trim();
    }

    /// The content of a file without values that no run measures: another program, or a hand,
    /// may have written it.
    pub fn sanitized(mut self) -> BaselineStore {
        for set in &mut self.sets {
            set.used = if set.used.is_finite() { set.used } else { 0.0 };
            for samples in set.samples.values_mut() {
                samples.retain(|sample| sample.is_finite() && *sample > 0.0);
                samples.drain(..samples.len().saturating_sub(KEPT));
            }
        }
        self.recent_runs.iter_mut().for_each(RecentRuns::sanitize);
        self.trim();
        self
    }

    fn set(&self, key: &DeviceKey, configuration: &Configuration) -> Option<&Set> {
        self.sets.iter().find(|set| set.key == *key && set.configuration == *configuration)
    }

    fn set_to_fill(&mut self, key: &DeviceKey, configuration: &Configuration, at: f64) -> &mut Set {
        let found = self.sets.iter().position(|set| set.key == *key && set.configuration == *configuration);
        let mut set = match found {
            Some(found) => self.sets.remove(found),
            None => Set {
                key: key.clone(),
                configuration: configuration.clone(),
                used: at,
                samples: BTreeMap::new(),
            },
        };
        set.used = at;
        self.sets.push(set);
        let last = self.sets.len() - 1;
        &mut self.sets[last]
    }

    fn recent_runs_of(&self, key: &DeviceKey) -> Option<&RecentRuns> {
        self.recent_runs.iter().find(|recent| recent.key == *key)
    }

    /// Drops what was longest without a run: configurations of a place, then of all places.
    fn trim(&mut self) {
        let mut seen: BTreeMap<DeviceKey, usize> = BTreeMap::new();
        let mut keep: Vec<bool> = Vec::with_capacity(self.sets.len());
        for set in self.sets.iter().rev() {
            let of_place = seen.entry(set.key.clone()).or_default();
            *of_place += 1;
            keep.push(*of_place <= CONFIGURATIONS && keep.len() < SETS);
        }
        let mut keep = keep.into_iter().rev();
        self.sets.retain(|_| keep.next().unwrap_or(false));
        self.recent_runs.drain(..self.recent_runs.len().saturating_sub(SETS));
    }
}

//! What is remembered of earlier runs at each place: clean samples by configuration (the baseline), the last
//! verdicts (for the rule of three of the last four), wrong results, and the newest figures (for siblings).
//!
//! It is kept over restarts in one state file. The judge reads it and says in a [`Lesson`] what to add; only
//! the daemon takes lessons.

mod configuration;
mod lately;
mod quantity;
pub mod statistics;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::report::Device;
pub use configuration::{Configuration, Model, Spot};
use host::state::Document;
use lately::Lately;
pub use lately::{RIGHT_AGAIN, Recent, Wrong};
use model::canary::Place;
use model::catalog::{CanaryCheck, CanaryVerdict};
pub use quantity::{Quantity, Tolerance, Usual};

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

/// All that is remembered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    sets: Vec<Set>,
    lately: Vec<Lately>,
}

impl Document for Memory {
    const KIND: &'static str = "canary";
    const VERSION: u32 = 1;
    // 192 sets of 15 quantities of 200 samples of at most 14 bytes are 8 MB.
    const MAX_BYTES: usize = 16 * 1024 * 1024;
}

/// Clean samples of one place in one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Set {
    spot: Spot,
    configuration: Configuration,
    /// When it was last added to, in seconds since 1970.
    used: f64,
    /// Oldest first. Half of a double's digits are enough: they repeat to 1 in 100,000 at best.
    samples: BTreeMap<Quantity, Vec<f32>>,
}

/// What a run teaches.
#[derive(Clone, Debug, PartialEq)]
pub struct Lesson {
    /// Where it was made.
    pub spot: Spot,
    /// When it ended, in seconds since 1970.
    pub at: f64,
    /// In which configuration, and which model it is: `None` if the run did not come so far.
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
pub struct Siblings(BTreeMap<Quantity, Vec<f64>>);

impl Siblings {
    /// From the figures of each of them.
    pub fn of<'a>(others: impl IntoIterator<Item = &'a [(Quantity, f64)]>) -> Siblings {
        let mut siblings = Siblings::default();
        for (quantity, value) in others.into_iter().flatten() {
            siblings.0.entry(*quantity).or_default().push(*value);
        }
        siblings
    }

    /// Whether there are enough of them for any comparison.
    pub fn is_enough(&self) -> bool {
        self.0.values().any(|values| values.len() >= SIBLINGS)
    }

    /// Their median, if there are enough of them.
    pub fn median(&self, quantity: Quantity) -> Option<f64> {
        let values = self.0.get(&quantity).filter(|values| values.len() >= SIBLINGS)?;
        statistics::median(values.iter().copied())
    }
}

impl Memory {
    /// What is usual at a place in a configuration; `None` while too little is known.
    pub fn usual(&self, spot: &Spot, configuration: &Configuration, quantity: Quantity) -> Option<Usual> {
        let samples = self.set(spot, configuration)?.samples.get(&quantity)?;
        let samples: Vec<f64> = samples.iter().copied().map(f64::from).collect();
        let spread = statistics::spread(&samples)?;
        (samples.len() >= NEEDED).then_some(Usual { quantity, spread, count: samples.len() })
    }

    /// How many clean samples there are.
    pub fn count(&self, spot: &Spot, configuration: &Configuration, quantity: Quantity) -> usize {
        self.set(spot, configuration).and_then(|set| set.samples.get(&quantity)).map_or(0, Vec::len)
    }

    /// What the last valid samples of a check said, oldest first: in this configuration, and not in the future.
    pub fn recent(
        &self,
        spot: &Spot,
        configuration: &Configuration,
        check: CanaryCheck,
        now: f64,
    ) -> Vec<Recent> {
        let lately = self.lately(spot).filter(|lately| lately.configuration.as_ref() == Some(configuration));
        let recent = lately.and_then(|lately| lately.recent.get(&check)).into_iter().flatten();
        // A clock that was set back leaves samples from the future: their distance in time means nothing.
        recent.filter(|recent| recent.at <= now).copied().collect()
    }

    /// The newest wrong results there, by check.
    pub fn wrong(&self, spot: &Spot) -> &[Wrong] {
        self.lately(spot).map_or(&[], |lately| &lately.wrong)
    }

    /// The newest figures of the other places of this model.
    pub fn siblings(&self, place: &Place, device: &Device) -> Siblings {
        let spot = Spot::of(place);
        let model = Model::of(place, device);
        let others =
            self.lately.iter().filter(|lately| lately.spot != spot && lately.model.as_ref() == Some(&model));
        let figures: Vec<Vec<(Quantity, f64)>> = others.map(Lately::figures).collect();
        Siblings::of(figures.iter().map(Vec::as_slice))
    }

    /// Takes in what a run taught.
    pub fn take(&mut self, lesson: Lesson) {
        if let Some((configuration, _)) = lesson.device.as_ref().filter(|_| !lesson.clean.is_empty()) {
            let set = self.set_to_fill(&lesson.spot, configuration, lesson.at);
            for (quantity, value) in &lesson.clean {
                let value = *value as f32;
                if !value.is_finite() || value <= 0.0 {
                    continue;
                }
                let samples = set.samples.entry(*quantity).or_default();
                samples.push(value);
                samples.drain(..samples.len().saturating_sub(KEPT));
            }
        }
        let at = self.lately.iter().position(|lately| lately.spot == lesson.spot);
        // To the end with it: the front is what was longest without a run.
        let mut lately = match at {
            Some(at) => self.lately.remove(at),
            None => Lately::new(lesson.spot.clone()),
        };
        lately.take(lesson);
        self.lately.push(lately);
        self.trim();
    }

    /// What was read from a file, with nothing in it that the rest does not expect: another program, or a hand,
    /// may have written it.
    pub fn mended(mut self) -> Memory {
        for set in &mut self.sets {
            set.used = if set.used.is_finite() { set.used } else { 0.0 };
            for samples in set.samples.values_mut() {
                samples.retain(|sample| sample.is_finite() && *sample > 0.0);
                samples.drain(..samples.len().saturating_sub(KEPT));
            }
        }
        self.lately.iter_mut().for_each(Lately::mend);
        self.trim();
        self
    }

    fn set(&self, spot: &Spot, configuration: &Configuration) -> Option<&Set> {
        self.sets.iter().find(|set| set.spot == *spot && set.configuration == *configuration)
    }

    fn set_to_fill(&mut self, spot: &Spot, configuration: &Configuration, at: f64) -> &mut Set {
        let found = self.sets.iter().position(|set| set.spot == *spot && set.configuration == *configuration);
        let mut set = match found {
            Some(found) => self.sets.remove(found),
            None => Set {
                spot: spot.clone(),
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

    fn lately(&self, spot: &Spot) -> Option<&Lately> {
        self.lately.iter().find(|lately| lately.spot == *spot)
    }

    /// Drops what was longest without a run: configurations of a place, then of all places.
    fn trim(&mut self) {
        let mut seen: BTreeMap<Spot, usize> = BTreeMap::new();
        let mut keep: Vec<bool> = Vec::with_capacity(self.sets.len());
        for set in self.sets.iter().rev() {
            let of_place = seen.entry(set.spot.clone()).or_default();
            *of_place += 1;
            keep.push(*of_place <= CONFIGURATIONS && keep.len() < SETS);
        }
        let mut keep = keep.into_iter().rev();
        self.sets.retain(|_| keep.next().unwrap_or(false));
        self.lately.drain(..self.lately.len().saturating_sub(SETS));
    }
}

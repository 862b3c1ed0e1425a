//! Verdicts of the last runs at a place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BaselineUpdate;
use model::catalog::{CanaryCheck, CanaryVerdict};

/// Number of valid samples stored per check. The rule considers four.
const RECENT: usize = 4;
/// Minimum number of seconds between samples with a finding, except for the newest one. Three of four samples then span
/// the ten minutes that a low rate must last, however often the canary runs.
const APART: f64 = 300.0;
/// Retention of a wrong result, in seconds.
const REMEMBERED: f64 = 30.0 * 86_400.0;

/// Verdict of a valid sample of a check.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecentSample {
    /// Time of the sample, in seconds since 1970.
    pub at: f64,
    pub sample: CanaryVerdict,
}

/// Adds a sample, and drops the samples that the rule no longer needs.
pub fn add(recent: &mut Vec<RecentSample>, sample: RecentSample) {
    if let [.., before, newest] = recent[..]
        && ![before.sample, newest.sample, sample.sample].contains(&CanaryVerdict::Ok)
        && newest.at - before.at < APART
    {
        recent.pop();
    }
    recent.push(sample);
    recent.drain(..recent.len().saturating_sub(RECENT));
}

/// A wrong result of an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PastWrong {
    pub check: CanaryCheck,
    /// Time of the latest wrong result, in seconds since 1970.
    pub at: f64,
}

impl PastWrong {
    /// Returns true if the result still counts at `now`. After the clock is set back, the result still expires.
    pub fn counts(&self, now: f64) -> bool {
        (now - self.at).abs() <= REMEMBERED
    }
}

/// The last runs at a place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RecentRuns {
    pub key: String,
    /// Configuration of the last run. It is empty, as is `model`, until a run has identified the device.
    pub configuration: String,
    pub model: String,
    /// Valid samples by check, oldest first.
    pub recent: BTreeMap<CanaryCheck, Vec<RecentSample>>,
    /// At most one wrong result per check.
    pub wrong: Vec<PastWrong>,
    /// Newest figures by the name of the quantity.
    pub newest: BTreeMap<String, f32>,
}

impl RecentRuns {
    pub fn apply(&mut self, update: BaselineUpdate) {
        if let Some((configuration, model)) = update.device {
            if self.configuration != configuration {
                // Samples of one configuration cannot be compared with another; wrong results still count.
                self.recent.clear();
                self.newest.clear();
            }
            (self.configuration, self.model) = (configuration, model);
        }
        let newest = update.newest.iter().map(|(quantity, value)| (quantity.name.to_owned(), *value as f32));
        self.newest.extend(newest.filter(|(_, value)| value.is_finite() && *value > 0.0));
        for (check, sample) in update.samples {
            self.results(check, sample, update.at);
            let recent = self.recent.entry(check).or_default();
            recent.retain(|recent| recent.at <= update.at);
            add(recent, RecentSample { at: update.at, sample });
        }
        self.wrong.retain(|wrong| wrong.counts(update.at));
    }

    fn results(&mut self, check: CanaryCheck, sample: CanaryVerdict, at: f64) {
        if !matches!(sample, CanaryVerdict::WrongResult | CanaryVerdict::WrongResultSuspected) {
            return;
        }
        match self.wrong.iter_mut().find(|wrong| wrong.check == check) {
            Some(known) => known.at = at,
            None => self.wrong.push(PastWrong { check, at }),
        }
    }

    pub fn sanitize(&mut self) {
        for recent in self.recent.values_mut() {
            recent.retain(|recent| recent.at.is_finite());
            recent.drain(..recent.len().saturating_sub(RECENT));
        }
        self.wrong.retain(|wrong| wrong.at.is_finite());
        self.wrong.sort_by_key(|wrong| wrong.check);
        self.wrong.dedup_by_key(|wrong| wrong.check);
        self.newest.retain(|_, value| value.is_finite() && *value > 0.0);
    }
}

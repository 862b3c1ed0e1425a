//! Counters of the exporter and of the driver.
//!
//! The exporter's counters start at 0 with the daemon, are created at 0 for every label known in advance, and are
//! never restored from disk, because Prometheus would count a restored value twice.

use std::collections::{BTreeMap, HashMap};

use model::catalog::schema::{Entity, KnownLabel, LabelSet, LabelText, Metric};
use model::catalog::{MetricId, Subject};

/// Key of a series: metric, subject and labels.
pub(crate) type SeriesKey = (MetricId, Subject, Vec<LabelText>);

/// Counters of the exporter, by series.
#[derive(Default)]
pub(crate) struct OwnCounters(BTreeMap<SeriesKey, f64>);

impl OwnCounters {
    /// Adds to a counter, and creates it if necessary.
    pub fn add<E: Entity, L: LabelSet>(&mut self, metric: &Metric<E, L>, entity: &E, labels: L, by: f64) {
        *self.0.entry((metric.id(), entity.subject(), labels.texts())).or_insert(0.0) += by;
    }

    /// Creates a counter at 0 for every value of its label.
    pub fn born<E: Entity, S: KnownLabel>(&mut self, metric: &Metric<E, (S,)>, entity: &E) {
        for label in S::ALL {
            self.add(metric, entity, (*label,), 0.0);
        }
    }

    /// Forgets all counters about a subject.
    pub fn forget(&mut self, subject: &Subject) {
        self.0.retain(|(_, about, _), _| about != subject);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&SeriesKey, f64)> {
        self.0.iter().map(|(key, value)| (key, *value))
    }
}

/// Consecutive readings below the published value that count as a restart.
const CONFIRM: u32 = 3;

/// Counters of the driver. They are published as read, but a step back is held until it is explained.
///
/// Prometheus treats any step back as a restart from 0 and adds the whole value again, so one wrong reading would
/// show as a jump. A step back passes as a restart after a driver load or the loss of the GPU (the ledger then
/// forgets the counters), or when three consecutive readings confirm it.
#[derive(Default)]
pub(crate) struct DriverCounters(HashMap<SeriesKey, CounterState>);

struct CounterState {
    published: f64,
    below: u32,
}

impl DriverCounters {
    /// Returns the value to publish for a reading, and whether a step back is held for the first time.
    pub fn read(&mut self, key: SeriesKey, value: f64) -> (f64, bool) {
        let state = self.0.entry(key).or_insert(CounterState { published: value, below: 0 });
        if value >= state.published {
            state.below = 0;
        } else {
            state.below += 1;
            if state.below < CONFIRM {
                return (state.published, state.below == 1);
            }
            state.below = 0;
        }
        state.published = value;
        (value, false)
    }

    /// Forgets the counters of a GPU, or all with `None`. The next readings may start at any value.
    pub fn forget(&mut self, uuid: Option<&str>) {
        match uuid {
            Some(uuid) => self.0.retain(|(_, about, _), _| about.gpu().is_none_or(|(_, of)| **of != *uuid)),
            None => self.0.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::{self as m, DropReason, Gpu};
    use proptest::prelude::*;

    #[test]
    fn counters_are_born_at_zero_and_a_second_birth_changes_nothing() {
        let gpu = Gpu { gpu: 0, uuid: "a".into() };
        let mut own = OwnCounters::default();
        own.born(&m::gpu_exporter_readings_dropped_total, &gpu);
        own.add(&m::gpu_exporter_readings_dropped_total, &gpu, (DropReason::Blank,), 2.0);
        own.born(&m::gpu_exporter_readings_dropped_total, &gpu);
        assert_eq!(own.iter().map(|(_, v)| v).collect::<Vec<_>>(), [2.0, 0.0, 0.0]);
        own.forget(&Subject::Gpu(gpu));
        assert_eq!(own.iter().count(), 0);
    }

    fn key() -> SeriesKey {
        (m::gpu_pcie_replays_total.id(), Gpu { gpu: 0, uuid: "a".into() }.subject(), Vec::new())
    }

    #[test]
    fn a_single_low_reading_is_held_and_three_are_a_restart() {
        let mut counters = DriverCounters::default();
        assert_eq!(counters.read(key(), 10.0), (10.0, false));
        assert_eq!(counters.read(key(), 4.0), (10.0, true));
        assert_eq!(counters.read(key(), 11.0), (11.0, false));
        assert_eq!(counters.read(key(), 1.0), (11.0, true));
        assert_eq!(counters.read(key(), 2.0), (11.0, false));
        assert_eq!(counters.read(key(), 3.0), (3.0, false));
    }

    #[test]
    fn an_explained_restart_passes_at_once() {
        let mut counters = DriverCounters::default();
        counters.read(key(), 10.0);
        counters.forget(Some("a"));
        assert_eq!(counters.read(key(), 1.0), (1.0, false));
    }

    proptest! {
        #[test]
        fn what_is_published_falls_only_after_three_low_readings(values in prop::collection::vec(0u32..20, 1..100)) {
            let mut counters = DriverCounters::default();
            let mut last: Option<f64> = None;
            let mut low = 0;
            for value in values {
                let value = f64::from(value);
                low = if last.is_some_and(|l| value < l) { low + 1 } else { 0 };
                let (published, _) = counters.read(key(), value);
                if last.is_some_and(|l| published < l) {
                    prop_assert_eq!(low, 3);
                    low = 0;
                }
                last = Some(published);
            }
        }
    }
}

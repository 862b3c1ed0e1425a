//! The exporter's own counters. They start at 0 with the daemon, are born at 0 for every label known in
//! advance, and are never restored from disk: Prometheus would count a restored value twice.

use std::collections::BTreeMap;

use model::catalog::schema::{Entity, KnownLabel, LabelSet, LabelText, Metric};
use model::catalog::{MetricId, Subject};

/// What identifies a series.
pub type Key = (MetricId, Subject, Vec<LabelText>);

/// Counters by series.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<Key, f64>);

impl Tally {
    /// Adds to a counter; the first addition creates it.
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

    /// All counters.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, f64)> {
        self.0.iter().map(|(key, value)| (key, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::{self as m, DropReason, Gpu};

    #[test]
    fn counters_are_born_at_zero_and_a_second_birth_changes_nothing() {
        let gpu = Gpu { gpu: 0, uuid: "a".into() };
        let mut tally = Tally::default();
        tally.born(&m::gpu_exporter_readings_dropped_total, &gpu);
        tally.add(&m::gpu_exporter_readings_dropped_total, &gpu, (DropReason::Blank,), 2.0);
        tally.born(&m::gpu_exporter_readings_dropped_total, &gpu);
        assert_eq!(tally.iter().map(|(_, v)| v).collect::<Vec<_>>(), [2.0, 0.0]);
        tally.forget(&Subject::Gpu(gpu));
        assert_eq!(tally.iter().count(), 0);
    }
}

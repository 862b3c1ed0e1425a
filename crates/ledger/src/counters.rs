//! The driver's counters: published as the driver has them, but a step back is held until it is explained.
//!
//! Prometheus reads any step back as a restart from 0 and adds the whole value again, so one wrong reading
//! of a counter would be published as a jump. A step back passes as a restart when the driver was loaded
//! anew or the GPU was lost meanwhile (the ledger then forgets the counters), or when three readings in a
//! row confirm it.

use std::collections::HashMap;

use super::tally::Key;

/// Readings in a row below the published value that are taken for a restart.
const CONFIRM: u32 = 3;

/// Driver counters by series.
#[derive(Debug, Default)]
pub struct DriverCounters(HashMap<Key, State>);

#[derive(Debug)]
struct State {
    published: f64,
    below: u32,
}

impl DriverCounters {
    /// Takes a reading; gives what to publish and whether a step back was held for the first time.
    pub fn read(&mut self, key: Key, value: f64) -> (f64, bool) {
        let state = self.0.entry(key).or_insert(State { published: value, below: 0 });
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

    /// Forgets the counters of a GPU: its next readings may start anywhere.
    pub fn forget(&mut self, uuid: &str) {
        self.0.retain(|(_, subject, _), _| subject.gpu().is_none_or(|(_, of)| **of != *uuid));
    }

    /// Forgets all counters: the driver was loaded anew.
    pub fn forget_all(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::schema::Entity;
    use model::catalog::{self as m, Gpu};
    use proptest::prelude::*;

    fn key() -> Key {
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
        counters.forget("a");
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

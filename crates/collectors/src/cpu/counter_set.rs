//! Open counters of one scope, which is the machine or a control group: opens and reads the groups on every CPU, and
//! computes the counts between two readings.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::backend::{CounterBackend, CounterGroup, CounterScope, GroupReading, Refusal};
use model::catalog::PerfEvent;

/// Maximum number of hardware events in a group. A group runs only when all its counters are free at once. A CPU has at
/// least four, one of which the hard-lockup watchdog may hold; cycles and instructions usually have dedicated counters.
const MOST_TOGETHER: usize = 4;

/// Outcome of every event on one CPU.
pub(crate) type Outcomes = BTreeMap<PerfEvent, Result<(), Refusal>>;

/// Open counters of one scope, by CPU. Dropping a counter closes it.
pub(crate) type CounterSet<G> = BTreeMap<u32, Vec<Open<G>>>;

/// Group of open counters.
#[derive(Debug)]
pub(crate) struct Open<G> {
    group: G,
    events: Vec<PerfEvent>,
    last: GroupReading,
}

/// Opens and starts these events on one CPU, and closes the counters that were open there. Software events share one
/// group, which always runs. Hardware events are split into groups that fit.
pub(crate) fn open<K: CounterBackend>(
    counters: &mut CounterSet<K::Group>,
    kernel: &K,
    place: CounterScope<'_>,
    events: &[PerfEvent],
) -> Outcomes {
    counters.remove(&place.cpu);
    let mut outcomes = Outcomes::new();
    let mut groups: Vec<Open<K::Group>> = Vec::new();
    for (of_kernel, most) in [(true, usize::MAX), (false, MOST_TOGETHER)] {
        let first = groups.len();
        for event in events.iter().copied().filter(|event| is_software(*event) == of_kernel) {
            let outcome = add(kernel, place, event, most, &mut groups, first);
            outcomes.insert(event, outcome);
        }
    }
    groups.retain_mut(|open| {
        let started = open.group.start();
        if let Err(refusal) = started {
            outcomes.extend(open.events.iter().map(|event| (*event, Err(refusal))));
        }
        started.is_ok()
    });
    if !groups.is_empty() {
        counters.insert(place.cpu, groups);
    }
    outcomes
}

/// Returns the number of open counters. Every counter has a file descriptor.
pub(crate) fn open_counters<G>(counters: &CounterSet<G>) -> usize {
    counters.values().flatten().map(|open| open.events.len()).sum()
}

/// Reads all groups once and passes the counts since the last reading to `add`. With `timed`, time must advance for
/// every group, as it does for the groups of the machine. If it does not, the CPU was offline for a moment and the
/// group is broken. Counters on CPUs with broken or unreadable groups are closed.
pub(crate) fn read<G: CounterGroup>(
    counters: &mut CounterSet<G>,
    timed: bool,
    mut add: impl FnMut(u32, &[PerfEvent], &Counted),
) {
    counters.retain(|cpu, groups| {
        let mut alive = true;
        for open in groups {
            let Ok(now) = open.group.read() else {
                alive = false;
                continue;
            };
            let counted = between(&open.last, &now);
            alive &= !timed || counted.enabled > 0;
            add(*cpu, &open.events, &counted);
            open.last = now;
        }
        alive
    });
}

/// Adds an event to the newest group from `first` on, or to a new group if it does not fit.
fn add<K: CounterBackend>(
    kernel: &K,
    place: CounterScope<'_>,
    event: PerfEvent,
    most: usize,
    groups: &mut Vec<Open<K::Group>>,
    first: usize,
) -> Result<(), Refusal> {
    if let Some(open) = groups[first..].last_mut().filter(|open| open.events.len() < most) {
        match open.group.join(event, place) {
            Ok(()) => {
                open.events.push(event);
                return Ok(());
            }
            // The event does not fit into this group.
            Err(Refusal::Kernel(Errno::EINVAL)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let group = kernel.open(event, place)?;
    groups.push(Open { group, events: vec![event], last: GroupReading::default() });
    Ok(())
}

/// Returns whether the kernel counts the event without a hardware counter.
pub(crate) fn is_software(event: PerfEvent) -> bool {
    use PerfEvent::*;
    matches!(event, ContextSwitches | CpuMigrations | PageFaults | MajorFaults)
}

/// Counts between two readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Nanoseconds in which the group should have counted.
    pub(crate) enabled: u64,
    /// Nanoseconds in which it counted, at most `enabled`.
    pub(crate) running: u64,
    /// Counts, scaled to the whole time.
    pub(crate) values: Vec<u64>,
}

/// Computes the counts from `before` to `now`. If the group ran for only a part of the time, its counts are
/// extrapolated at the same rate. If it did not run at all, nothing is added, and the share of 0 shows it. Readings
/// without times (from the root control group) are not scaled.
pub(crate) fn between(before: &GroupReading, now: &GroupReading) -> Counted {
    let enabled = now.enabled.saturating_sub(before.enabled);
    let running = now.running.saturating_sub(before.running).min(enabled);
    let raw = now.values.iter().zip(before.values.iter().chain(std::iter::repeat(&0)));
    let raw = raw.map(|(now, before)| now.saturating_sub(*before));
    let values = match (enabled, running) {
        (0, _) => raw.collect(),
        (_, 0) => raw.map(|_| 0).collect(),
        _ => raw.map(|count| scaled(count, enabled, running)).collect(),
    };
    Counted { enabled, running, values }
}

/// Returns `count * enabled / running`, rounded. `running` must be between 1 and `enabled`.
fn scaled(count: u64, enabled: u64, running: u64) -> u64 {
    let (enabled, running) = (u128::from(enabled), u128::from(running.max(1)));
    u64::try_from((u128::from(count) * enabled + running / 2) / running).unwrap_or(u64::MAX)
}

/// Time in which an event should have been counted, and was counted, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Multiplexing {
    enabled: u128,
    running: u128,
}

impl Multiplexing {
    /// Adds the times of one CPU.
    pub(crate) fn add(&mut self, counted: &Counted) {
        self.enabled += u128::from(counted.enabled);
        self.running += u128::from(counted.running);
    }

    /// Returns the share of the time in which the event was counted; `None` without times.
    pub(crate) fn ratio(self) -> Option<f64> {
        (self.enabled > 0).then(|| (self.running as f64 / self.enabled as f64).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(enabled: u64, running: u64, value: u64) -> GroupReading {
        GroupReading { enabled, running, values: vec![value] }
    }

    #[test]
    fn what_had_half_a_turn_counts_twice() {
        let counted = between(&reading(1000, 1000, 50), &reading(3000, 2000, 150));
        assert_eq!(counted, Counted { enabled: 2000, running: 1000, values: vec![200] });
        let mut share = Multiplexing::default();
        share.add(&counted);
        assert_eq!(share.ratio(), Some(0.5));
        share.add(&between(&reading(0, 0, 0), &reading(2000, 2000, 1)));
        assert_eq!(share.ratio(), Some(0.75));
    }

    #[test]
    fn without_a_turn_nothing_is_added_and_without_times_all_is() {
        assert_eq!(between(&reading(0, 0, 7), &reading(10, 0, 7)).values, [0]);
        let untimed = between(&reading(0, 0, 7), &reading(0, 0, 12));
        assert_eq!(untimed.values, [5]);
        let mut share = Multiplexing::default();
        share.add(&untimed);
        assert_eq!(share.ratio(), None);
    }

    proptest! {
        #[test]
        fn nothing_is_ever_added_below_what_was_counted(
            before in (any::<u64>(), any::<u64>(), any::<u64>()),
            now in (any::<u64>(), any::<u64>(), any::<u64>()),
        ) {
            let before = reading(before.0, before.1, before.2);
            let now = reading(now.0, now.1, now.2);
            let counted = between(&before, &now);
            prop_assert!(counted.running <= counted.enabled);
            let raw = now.values[0].saturating_sub(before.values[0]);
            if counted.running > 0 || counted.enabled == 0 {
                prop_assert!(counted.values[0] >= raw);
            } else {
                prop_assert_eq!(counted.values[0], 0);
            }
        }

        #[test]
        fn a_steady_rate_is_found_again_whatever_the_turns(
            rate in 1u64..1000, turns in prop::collection::vec((1u64..1_000_000, 1u64..=100), 1..50)
        ) {
            let (mut last, mut sum, mut time) = (GroupReading::default(), 0u64, 0u64);
            for (running, times) in &turns {
                let now = reading(last.enabled + running * times, last.running + running,
                    last.values.first().unwrap_or(&0) + rate * running);
                sum += between(&last, &now).values[0];
                time += running * times;
                last = now;
            }
            prop_assert_eq!(sum, rate * time);
        }

        #[test]
        fn without_sharing_every_count_is_added_once(
            steps in prop::collection::vec((0u64..1_000_000_000, 0u64..1_000_000), 0..50)
        ) {
            let (mut last, mut sum) = (reading(0, 0, 0), 0);
            for (time, count) in &steps {
                let now = reading(last.enabled + time + 1, last.running + time + 1, last.values[0] + count);
                sum += between(&last, &now).values[0];
                last = now;
            }
            prop_assert_eq!(sum, last.values[0]);
        }
    }
}

//! Events of the whole machine: which events can be counted, and their sums. The number of open counters is limited,
//! because every counter needs a file descriptor and the clients of the daemon need some too.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use super::backend::{CounterBackend, CounterScope, Refusal};
use super::counter_set::{self, CounterSet, Multiplexing, Outcomes};
use super::cpu_groups::CpuGroups;
use model::catalog::{CpuGroup, PerfEvent, PerfState};
use model::cpus::CpuSet;

const NO_ROOM: Refusal = Refusal::NotAsked("the counters need more than half of the limit of open files");

/// Maximum number of counters in total, across the control groups of all owners. A counter of a control group also adds work to every
/// switch between groups on its CPU, which this limit bounds as well.
pub(crate) const MOST_OWNED: usize = 4096;

/// Returns the number of file descriptors that counters may use, which is half of the limit of the process.
pub(crate) fn descriptors() -> usize {
    // Falls back to the smallest usual limit.
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(soft / 2).unwrap_or(usize::MAX)
}

/// Returns the first configured events that fit if every event needs a counter on every CPU.
pub(crate) fn that_fit(events: &[PerfEvent], cpus: usize, room: usize) -> &[PerfEvent] {
    &events[..events.len().min(room / cpus.max(1))]
}

/// Returns the number of file descriptors that remain for owners.
pub(crate) fn for_owners(room: usize, machine: usize) -> usize {
    room.saturating_sub(machine).min(MOST_OWNED)
}

/// Counts of the whole machine. An event is counted on all CPUs or on none, because a partial sum would look like a
/// machine with less load.
#[derive(Debug)]
pub struct MachineEvents<K: CounterBackend> {
    configured: Vec<PerfEvent>,
    /// Number of events that had room when the outcomes were determined.
    fitting: Option<usize>,
    /// Outcome of every configured event.
    pub outcomes: Outcomes,
    counters: CounterSet<K::Group>,
    sums: BTreeMap<(CpuGroup, PerfEvent), u128>,
    shares: BTreeMap<PerfEvent, Multiplexing>,
}

impl<K: CounterBackend> MachineEvents<K> {
    /// Creates the counts without opening a counter.
    pub fn new(configured: &[PerfEvent]) -> MachineEvents<K> {
        let mut known = BTreeSet::new();
        MachineEvents {
            configured: configured.iter().copied().filter(|event| known.insert(*event)).collect(),
            fitting: None,
            outcomes: Outcomes::new(),
            counters: CounterSet::new(),
            sums: BTreeMap::new(),
            shares: BTreeMap::new(),
        }
    }

    /// Adds the counts since the last step, then opens missing counters, such as those of new CPUs. `room` is the
    /// maximum number of open counters.
    pub fn step(&mut self, kernel: &K, cpus: &CpuSet, groups: &CpuGroups, room: usize) {
        let MachineEvents { counters, sums, shares, .. } = self;
        shares.clear();
        counter_set::read(counters, true, |cpu, events, counted| {
            let group = groups.group_of(cpu);
            for (event, value) in events.iter().zip(&counted.values) {
                *sums.entry((group.clone(), *event)).or_default() += u128::from(*value);
                shares.entry(*event).or_default().add(counted);
            }
        });
        self.counters.retain(|cpu, _| cpus.contains(*cpu));
        let fitting = that_fit(&self.configured, cpus.len(), room).len();
        if self.fitting != Some(fitting) {
            self.counters.clear();
            self.fitting = Some(fitting);
            let outcome = |at| if at < fitting { Ok(()) } else { Err(NO_ROOM) };
            let outcomes = self.configured.iter().enumerate().map(|(at, event)| (*event, outcome(at)));
            self.outcomes = outcomes.collect();
        }
        self.open(kernel, cpus);
        for cpu in cpus.iter().filter(|cpu| self.counters.contains_key(cpu)) {
            for event in working(&self.outcomes) {
                self.sums.entry((groups.group_of(cpu), event)).or_default();
            }
        }
    }

    /// Retries events that were refused for a reason that may have gone. Returns whether an event works now.
    pub(crate) fn retry(&mut self, kernel: &K, cpus: &CpuSet) -> bool {
        let Some(cpu) = cpus.iter().next() else { return false };
        let place = CounterScope { cpu, cgroup: None };
        let recovered = self.outcomes.iter().any(|(event, outcome)| match outcome {
            Ok(()) | Err(Refusal::NotAsked(_)) => false,
            Err(refusal) => refusal.state() != PerfState::NoPmu && kernel.open(*event, place).is_ok(),
        });
        if recovered {
            self.fitting = None;
        }
        recovered
    }

    /// Opens the missing counters of all working events. An event that one CPU refuses is dropped on all CPUs.
    fn open(&mut self, kernel: &K, cpus: &CpuSet) {
        loop {
            let events: Vec<PerfEvent> = working(&self.outcomes).collect();
            if events.is_empty() || cpus.is_empty() {
                return;
            }
            let missing: Vec<u32> = cpus.iter().filter(|cpu| !self.counters.contains_key(cpu)).collect();
            // A CPU that has just gone offline refuses all events like this.
            let gone = |outcomes: &Outcomes| {
                outcomes.len() == events.len()
                    && outcomes.values().all(|outcome| *outcome == Err(Refusal::Kernel(Errno::ENODEV)))
            };
            let refused = missing.into_iter().find_map(|cpu| {
                let place = CounterScope { cpu, cgroup: None };
                let mut outcomes = counter_set::open(&mut self.counters, kernel, place, &events);
                outcomes.retain(|_, outcome| outcome.is_err());
                (!outcomes.is_empty() && !gone(&outcomes)).then_some(outcomes)
            });
            match refused {
                Some(refused) => {
                    self.outcomes.extend(refused);
                    self.counters.clear();
                }
                None if self.counters.is_empty() => {
                    let refusal = Err(Refusal::Kernel(Errno::ENODEV));
                    self.outcomes.extend(events.into_iter().map(|event| (event, refusal)));
                }
                None => return,
            }
        }
    }

    /// Returns the events that are counted.
    pub fn working(&self) -> Vec<PerfEvent> {
        working(&self.outcomes).collect()
    }

    /// Returns the sums of the events that are counted.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&CpuGroup, PerfEvent, u128)> {
        let counted = |event: &PerfEvent| self.outcomes.get(event) == Some(&Ok(()));
        let sums = self.sums.iter().filter(move |((_, event), _)| counted(event));
        sums.map(|((group, event), sum)| (group, *event, *sum))
    }

    pub fn open_counters(&self) -> usize {
        counter_set::open_counters(&self.counters)
    }

    /// Returns the share of the last interval in which every event was counted.
    pub(crate) fn ratios(&self) -> impl Iterator<Item = (PerfEvent, f64)> {
        self.shares.iter().filter_map(|(event, share)| Some((*event, share.ratio()?)))
    }
}

fn working(outcomes: &Outcomes) -> impl Iterator<Item = PerfEvent> {
    outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(event, _)| *event)
}

/// Returns the published state of an event with this outcome.
pub fn state(outcome: &Result<(), Refusal>) -> PerfState {
    match outcome {
        Ok(()) => PerfState::Works,
        Err(refusal) => refusal.state(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::schema::KnownLabel;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_more_than_there_is_room_for(cpus in 0usize..10_000, room in 0usize..100_000, known in 0usize..19) {
            let events = &PerfEvent::ALL[..known];
            let fit = that_fit(events, cpus, room);
            prop_assert!(fit.len() * cpus <= room);
            prop_assert!(fit.len() == known || (fit.len() + 1) * cpus.max(1) > room, "and no less");
            prop_assert!(for_owners(room, fit.len() * cpus) + fit.len() * cpus <= room);
        }
    }

    #[test]
    fn the_default_events_fit_a_large_machine_with_the_units_limit() {
        assert_eq!(that_fit(&PerfEvent::ALL[..8], 256, 16_384 / 2).len(), 8);
        assert_eq!(that_fit(&PerfEvent::ALL[..8], 256, 1024 / 2).len(), 2, "not with systemd's own");
    }
}

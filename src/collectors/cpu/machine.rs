//! Events of the whole machine: which of them can be counted, and their sums.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::count::Share;
use super::counters::{Counters, Outcomes};
use super::kernel::{Kernel, Place, Refusal};
use super::places::Groups;
use super::room;
use model::catalog::{CpuGroup, PerfEvent, PerfState};
use model::cpus::CpuSet;

const NO_ROOM: Refusal = Refusal::NotAsked("more file descriptors than half the limit of open files");

/// Events of the whole machine. An event is counted on every CPU or not at all: a sum without some of them would
/// look like one of a machine with less to do.
#[derive(Debug)]
pub struct Machine<K: Kernel> {
    configured: Vec<PerfEvent>,
    /// How many of them there was room for when their outcomes were found.
    fitting: Option<usize>,
    outcomes: Outcomes,
    counters: Counters<K::Group>,
    sums: BTreeMap<(CpuGroup, PerfEvent), u128>,
    shares: BTreeMap<PerfEvent, Share>,
}

impl<K: Kernel> Machine<K> {
    /// Nothing is open yet.
    pub fn new(configured: &[PerfEvent]) -> Machine<K> {
        let mut events: Vec<PerfEvent> = Vec::new();
        for event in configured {
            if !events.contains(event) {
                events.push(*event);
            }
        }
        Machine {
            configured: events,
            fitting: None,
            outcomes: Outcomes::new(),
            counters: Counters::default(),
            sums: BTreeMap::new(),
            shares: BTreeMap::new(),
        }
    }

    /// Adds up what was counted since the last time, then opens what is missing: CPUs that came, and everything at
    /// first. `room`: the most counters that may be open.
    pub fn step(&mut self, kernel: &K, cpus: &CpuSet, groups: &Groups, room: usize) {
        let Machine { counters, sums, shares, .. } = self;
        shares.clear();
        counters.read(true, |cpu, events, counted| {
            let group = groups.of(cpu);
            for (event, value) in events.iter().zip(&counted.values) {
                *sums.entry((group.clone(), *event)).or_default() += u128::from(*value);
                shares.entry(*event).or_default().add(counted);
            }
        });
        self.counters.keep(cpus);
        let fitting = room::that_fit(&self.configured, cpus.len(), room).len();
        if self.fitting != Some(fitting) {
            self.begin(fitting);
        }
        self.open(kernel, cpus);
        for cpu in cpus.iter().filter(|cpu| self.counters.has(*cpu)) {
            for event in working(&self.outcomes) {
                self.sums.entry((groups.of(cpu), event)).or_default();
            }
        }
    }

    /// Tries again what was refused for a reason that can go away; gives whether something works now.
    pub fn retry(&mut self, kernel: &K, cpus: &CpuSet) -> bool {
        let Some(cpu) = cpus.iter().next() else { return false };
        let place = Place { cpu, cgroup: None };
        let mended = self.outcomes.iter().any(|(event, outcome)| match outcome {
            Ok(()) | Err(Refusal::NotAsked(_)) => false,
            Err(refusal) => refusal.state() != PerfState::NoPmu && kernel.open(*event, place).is_ok(),
        });
        if mended {
            self.fitting = None;
        }
        mended
    }

    /// Forgets what was found of each event, to find it anew.
    fn begin(&mut self, fitting: usize) {
        self.counters.close();
        self.fitting = Some(fitting);
        let outcome = |at| if at < fitting { Ok(()) } else { Err(NO_ROOM) };
        self.outcomes = self.configured.iter().enumerate().map(|(at, event)| (*event, outcome(at))).collect();
    }

    /// Opens all that is thought to work where it is not open. What one CPU refuses is left out on all.
    fn open(&mut self, kernel: &K, cpus: &CpuSet) {
        loop {
            let events: Vec<PerfEvent> = working(&self.outcomes).collect();
            if events.is_empty() || cpus.is_empty() {
                return;
            }
            let missing: Vec<u32> = cpus.iter().filter(|cpu| !self.counters.has(*cpu)).collect();
            // A CPU that has just gone refuses everything like this.
            let gone = |outcomes: &Outcomes| {
                outcomes.len() == events.len()
                    && outcomes.values().all(|outcome| *outcome == Err(Refusal::Kernel(Errno::ENODEV)))
            };
            let refused = missing.into_iter().find_map(|cpu| {
                let mut outcomes = self.counters.open(kernel, Place { cpu, cgroup: None }, &events);
                outcomes.retain(|_, outcome| outcome.is_err());
                (!outcomes.is_empty() && !gone(&outcomes)).then_some(outcomes)
            });
            match refused {
                Some(refused) => {
                    self.outcomes.extend(refused);
                    self.counters.close();
                }
                None if self.counters.is_empty() => {
                    let refusal = Err(Refusal::Kernel(Errno::ENODEV));
                    self.outcomes.extend(events.into_iter().map(|event| (event, refusal)));
                }
                None => return,
            }
        }
    }

    /// What became of each configured event.
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// Events that are counted.
    pub fn working(&self) -> Vec<PerfEvent> {
        working(&self.outcomes).collect()
    }

    /// Sums of events that are counted.
    pub fn sums(&self) -> impl Iterator<Item = (&CpuGroup, PerfEvent, u128)> {
        let counted = |event: &PerfEvent| self.outcomes.get(event) == Some(&Ok(()));
        let sums = self.sums.iter().filter(move |((_, event), _)| counted(event));
        sums.map(|((group, event), sum)| (group, *event, *sum))
    }

    /// The share of the last interval in which each event was counted.
    pub fn ratios(&self) -> impl Iterator<Item = (PerfEvent, f64)> {
        self.shares.iter().filter_map(|(event, share)| Some((*event, share.ratio()?)))
    }

    /// Open counters.
    pub fn open_counters(&self) -> usize {
        self.counters.len()
    }
}

fn working(outcomes: &Outcomes) -> impl Iterator<Item = PerfEvent> {
    outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(event, _)| *event)
}

/// The state of an event, from what became of it.
pub fn state(outcome: &Result<(), Refusal>) -> PerfState {
    match outcome {
        Ok(()) => PerfState::Works,
        Err(refusal) => refusal.state(),
    }
}

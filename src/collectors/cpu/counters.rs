//! The open counters of one scope, the machine or a control group: groups on each CPU, opened and read.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::count::{Counted, between};
use super::kernel::{Group, Kernel, Place, Reading, Refusal};
use model::catalog::PerfEvent;
use model::cpus::CpuSet;

/// Most hardware events in a group. A group gets its turn only when all its counters are free at once. The CPU has at
/// least four, of which the watchdog for hard lockups may hold one; cycles and instructions mostly have their own.
const MOST_TOGETHER: usize = 4;

/// What became of each event on one CPU.
pub type Outcomes = BTreeMap<PerfEvent, Result<(), Refusal>>;

/// The open counters of one scope.
#[derive(Debug)]
pub struct Counters<G> {
    cpus: BTreeMap<u32, Vec<Open<G>>>,
}

#[derive(Debug)]
struct Open<G> {
    group: G,
    events: Vec<PerfEvent>,
    last: Reading,
}

impl<G> Default for Counters<G> {
    fn default() -> Self {
        Counters { cpus: BTreeMap::new() }
    }
}

impl<G: Group> Counters<G> {
    /// Opens these events on one CPU and starts them; what was open there is closed. Events of the kernel's own go
    /// into one group, which never shares counters; those of the hardware into groups that fit.
    pub fn open<K: Kernel<Group = G>>(
        &mut self,
        kernel: &K,
        place: Place<'_>,
        events: &[PerfEvent],
    ) -> Outcomes {
        self.cpus.remove(&place.cpu);
        let mut outcomes = Outcomes::new();
        let mut groups: Vec<Open<G>> = Vec::new();
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
            self.cpus.insert(place.cpu, groups);
        }
        outcomes
    }

    /// Closes what is open on other CPUs.
    pub fn keep(&mut self, cpus: &CpuSet) {
        self.cpus.retain(|cpu, _| cpus.contains(*cpu));
    }

    /// Closes everything.
    pub fn close(&mut self) {
        self.cpus.clear();
    }

    /// Whether something is open on this CPU.
    pub fn has(&self, cpu: u32) -> bool {
        self.cpus.contains_key(&cpu)
    }

    /// Open counters, each with its file descriptor.
    pub fn len(&self) -> usize {
        self.cpus.values().flatten().map(|open| open.events.len()).sum()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty()
    }

    /// Reads every group once and tells what was counted since the last time. `timed`: time goes on for each group,
    /// as it does for those of the machine; one for which it stands was taken apart (its CPU was off for a moment).
    /// Gives the CPUs with such or unreadable groups, which are closed.
    pub fn read(&mut self, timed: bool, mut tell: impl FnMut(u32, &[PerfEvent], &Counted)) -> CpuSet {
        let mut dead = Vec::new();
        for (cpu, groups) in &mut self.cpus {
            for open in groups {
                let Ok(now) = open.group.read() else {
                    dead.push(*cpu);
                    continue;
                };
                let counted = between(&open.last, &now);
                if timed && counted.enabled == 0 {
                    dead.push(*cpu);
                }
                tell(*cpu, &open.events, &counted);
                open.last = now;
            }
        }
        dead.iter().for_each(|cpu| {
            self.cpus.remove(cpu);
        });
        dead.into_iter().collect()
    }
}

/// Adds an event to the newest group from `first` on, or makes a group for it where it finds no room there.
fn add<K: Kernel>(
    kernel: &K,
    place: Place<'_>,
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
            // It does not fit together with the others.
            Err(Refusal::Kernel(Errno::EINVAL)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let group = kernel.open(event, place)?;
    groups.push(Open { group, events: vec![event], last: Reading::default() });
    Ok(())
}

/// Whether the kernel counts it by itself, without a counter of the CPU.
pub fn is_software(event: PerfEvent) -> bool {
    use PerfEvent::*;
    matches!(event, ContextSwitches | CpuMigrations | PageFaults | MajorFaults)
}

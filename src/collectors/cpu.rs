//! Events counted on the CPUs: context switches, page faults, cycles and the like, summed by NUMA node and last-level
//! cache, and for the control groups of owners if that is wanted; and what the CPUs did with their time.
//!
//! [`perf`] asks the kernel through what [`backend`] names, [`counter_set`] keeps the open groups, [`multiplex`] has the
//! arithmetic, [`machine_events`] and [`owner_events`] the sums, [`cpu_time`] the time, [`cpu_groups`] says which CPUs belong together,
//! [`fd_budget`] how much may be open. The thread sleeps between two readings; no thread waits for it.

pub mod backend;
pub mod counter_set;
pub mod cpu_groups;
pub mod cpu_time;
pub mod fd_budget;
pub mod machine_events;
pub mod multiplex;
pub mod owner_events;
pub mod perf;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Context, put_row};
use crate::views::View;
use backend::CounterBackend;
use counter_set::Outcomes;
use cpu_groups::CpuGroups;
use cpu_time::CpuTimes;
use host::Host;
use ledger::inbox::LedgerEvent;
use machine_events::{MachineEvents, state};
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, Node, Owner, PerfState};
use model::clock::{Cadence, Mono};
use model::cpus::CpuSet;
use model::owners::Owner as GpuOwner;
use model::sample::{Batch, Rows};
use model::topology::Topology;
use owner_events::{OwnerCgroup, OwnerEvents, Uncounted, WantedOwners};
use perf::{Perf, Processor};

/// Longest wait for the topology at the start: groups keep their names then, because none was known before.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks for it.
const LOOK: Duration = Duration::from_millis(250);
/// Time between two tries of what was refused: a new permission needs no restart of the daemon.
const RETRY: Duration = Duration::from_secs(60);

/// Facts of the ledger that the collector needs.
#[derive(Debug)]
pub struct Views {
    /// The topology of the host: its groups of CPUs.
    pub topology: View<Option<Arc<Topology>>>,
    /// The owners of GPU work, and whether each has processes now.
    pub owners: View<Vec<(Arc<GpuOwner>, bool)>>,
}

/// Starts the collector.
pub fn start(context: Context, views: Views) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("cpu".into()).stack_size(256 * 1024).spawn(move || {
        if !context.config.cpu.enabled || context.config.cpu.events.is_empty() {
            return super::switched_off(&context, CollectorName::Cpu, "cpu.enabled");
        }
        let host = Host::new(&context.config.host.root);
        let kernel = Perf::new(Processor::of_host(&host));
        let mut collector = CpuCollector::new(&context, views, host, kernel);
        let every = context.config.cpu.interval;
        let mut cadence = Cadence::new(every, Duration::ZERO);
        let patience = Mono::now() + PATIENCE;
        while !context.stop.stopped() && !collector.knows_groups(Mono::now() >= patience) {
            context.stop.wait_until(Mono::now() + LOOK);
        }
        while !context.stop.stopped() {
            if cadence.take(Mono::now()) {
                collector.visit();
            }
            context.stop.wait_until(cadence.next());
        }
    })
}

struct CpuCollector<'a, K: CounterBackend> {
    context: &'a Context,
    views: Views,
    host: Host,
    kernel: K,
    machine: MachineEvents<K>,
    owned: OwnerEvents<K>,
    times: CpuTimes,
    groups: CpuGroups,
    /// What the groups were made of.
    grouped: Option<(CpuSet, Option<Arc<Topology>>)>,
    retried: Mono,
    /// What was said last, so that it is said once.
    said: (Outcomes, Uncounted),
    unavailable: bool,
}

impl<'a, K: CounterBackend> CpuCollector<'a, K> {
    fn new(context: &'a Context, views: Views, host: Host, kernel: K) -> CpuCollector<'a, K> {
        CpuCollector {
            context,
            views,
            host,
            kernel,
            machine: MachineEvents::new(&context.config.cpu.events),
            owned: OwnerEvents::default(),
            times: CpuTimes::default(),
            groups: CpuGroups::default(),
            grouped: None,
            retried: Mono::now(),
            said: (Outcomes::new(), Uncounted::default()),
            unavailable: false,
        }
    }

    /// Whether the names of the groups are known: the topology is there, or is not to come.
    fn knows_groups(&self, waited: bool) -> bool {
        waited || !self.context.config.topology.enabled || self.views.topology.current().is_some()
    }

    fn visit(&mut self) {
        let taken = Mono::now();
        let Some(cpus) = cpu_groups::online(&self.host) else {
            let text = "the online CPUs are unknown: no /sys/devices/system/cpu/online";
            self.context
                .inbox
                .event(LedgerEvent::CollectorUnavailable(CollectorName::Cpu, Some(text.into())));
            self.unavailable = true;
            return;
        };
        if std::mem::take(&mut self.unavailable) {
            self.context.inbox.event(LedgerEvent::CollectorUnavailable(CollectorName::Cpu, None));
        }
        self.group(&cpus, self.views.topology.current().as_ref());
        if taken.since(self.retried) >= RETRY {
            self.retried = taken;
            self.machine.retry(&self.kernel, &cpus);
        }
        let room = fd_budget::descriptors();
        self.machine.step(&self.kernel, &cpus, &self.groups, room);
        if self.context.config.cpu.per_owner {
            let wanted = wanted(&self.host, &self.views.owners.current());
            let room = fd_budget::for_owners(room, self.machine.open_counters());
            let events = self.machine.working();
            let left = self.owned.step(&self.kernel, &cpus, &events, &wanted, room);
            self.say_left(left);
        }
        self.times.read(&self.host, &self.groups);
        self.say_outcomes();
        self.send(taken);
    }

    /// Finds which CPUs belong together, where that may have changed.
    fn group(&mut self, cpus: &CpuSet, topology: Option<&Arc<Topology>>) {
        let same = |(known, of): &(CpuSet, Option<Arc<Topology>>)| {
            known == cpus && of.as_ref().map(Arc::as_ptr) == topology.map(Arc::as_ptr)
        };
        if self.grouped.as_ref().is_some_and(same) {
            return;
        }
        self.groups = match topology {
            Some(topology) => CpuGroups::of_topology(topology),
            None => CpuGroups::of_host(&self.host, cpus),
        };
        self.grouped = Some((cpus.clone(), topology.cloned()));
    }

    fn send(&self, taken: Mono) {
        let mut rows = Rows::default();
        for (event, outcome) in self.machine.outcomes() {
            for known in PerfState::ALL {
                let is = *known == state(outcome);
                rows.of(&Node {}).flag(&m::gpu_host_cpu_event_state, (*event, *known), is);
            }
        }
        for (event, ratio) in self.machine.ratios() {
            put_row(&mut rows, &Node {}, &m::gpu_host_cpu_event_running_ratio, (event,), ratio);
        }
        for (group, event, sum) in self.machine.sums() {
            put_row(&mut rows, group, &m::gpu_host_cpu_events_total, (event,), sum as f64);
        }
        for (group, mode, seconds) in self.times.seconds() {
            put_row(&mut rows, group, &m::gpu_host_cpu_seconds_total, (mode,), seconds);
        }
        for (owner, event, sum) in self.owned.sums() {
            let owner = Owner { owner: Arc::clone(owner) };
            put_row(&mut rows, &owner, &m::gpu_owner_cpu_events_total, (event,), sum as f64);
        }
        let lifetime = (self.context.config.cpu.interval * 3).max(Duration::from_secs(3));
        // That an event cannot be counted is an answer: its state is served.
        self.context.inbox.batch(Batch::of_node(CollectorName::Cpu, taken, Some(lifetime), rows));
    }

    fn say_outcomes(&mut self) {
        if self.said.0 == *self.machine.outcomes() {
            return;
        }
        self.said.0 = self.machine.outcomes().clone();
        let mut refused: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (event, outcome) in &self.said.0 {
            if let Err(refusal) = outcome {
                let why = format!("{}: {refusal}", refusal.state().known());
                refused.entry(why).or_default().push(event.known());
            }
        }
        let counted: Vec<&str> = self.machine.working().into_iter().map(|event| event.known()).collect();
        let not = refused.iter().map(|(why, events)| format!("{} ({why})", events.join(" ")));
        let not = not.collect::<Vec<_>>().join(", ");
        tracing::info!(counted = counted.join(" "), not, "events counted on the CPUs");
    }

    fn say_left(&mut self, left: Uncounted) {
        if self.said.1 == left {
            return;
        }
        if !left.without_room.is_empty() {
            let owners = left.without_room.len();
            let most = fd_budget::MOST_OWNED;
            tracing::warn!(owners, most, "owners whose CPU events are not counted: too many counters");
        }
        for (owner, why) in &left.refused {
            tracing::warn!(owner = owner.as_ref(), %why, "CPU events of the owner cannot be counted");
        }
        self.said.1 = left;
    }
}

/// The control groups of the owners that are published.
fn wanted(host: &Host, owners: &[(Arc<GpuOwner>, bool)]) -> WantedOwners {
    let mut wanted = WantedOwners::new();
    for (owner, has_processes) in owners {
        let folder = match owner_events::folder(host, &owner.cgroup) {
            Some(folder) if *has_processes => OwnerCgroup::Alive(folder),
            _ => OwnerCgroup::Ended,
        };
        let known = wanted.entry(Arc::clone(&owner.id)).or_insert(OwnerCgroup::Ended);
        if *known == OwnerCgroup::Ended {
            *known = folder;
        }
    }
    wanted
}

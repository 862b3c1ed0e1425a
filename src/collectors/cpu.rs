//! Events counted on the CPUs: context switches, page faults, cycles and the like, summed by NUMA node and last-level
//! cache, and for the control groups of owners if that is wanted; and what the CPUs did with their time.
//!
//! [`perf`] asks the kernel through what [`kernel`] names, [`counters`] keeps the open groups, [`count`] has the
//! arithmetic, [`machine`] and [`owned`] the sums, [`time`] the time, [`places`] says which CPUs belong together,
//! [`room`] how much may be open. The thread sleeps between two readings; nobody waits for it.

pub mod count;
pub mod counters;
pub mod kernel;
pub mod machine;
pub mod owned;
pub mod perf;
pub mod places;
pub mod room;
#[cfg(test)]
mod tests;
pub mod time;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Context;
use crate::views::View;
use counters::Outcomes;
use host::Host;
use kernel::Kernel;
use ledger::inbox::LedgerEvent;
use machine::{Machine, state};
use model::catalog::schema::{KnownLabel, LabelSet, Metric};
use model::catalog::{self as m, Node, Owner, PerfState};
use model::clock::{Cadence, Mono};
use model::cpus::CpuSet;
use model::owners::Owner as GpuOwner;
use model::sample::{Batch, Rows, Source};
use model::topology::Topology;
use owned::{Folder, Left, Owned, Wanted};
use perf::{Perf, Processor};
use places::Groups;
use time::Times;

/// Longest wait for the topology at the start: groups keep their names then, because none was told before.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks for it.
const LOOK: Duration = Duration::from_millis(250);
/// Time between two tries of what was refused: whoever permits it need not start the daemon again.
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
            return super::switched_off(&context, Source::Cpu, "cpu.enabled");
        }
        let host = Host::new(&context.config.host.root);
        let kernel = Perf::new(Processor::of_host(&host));
        let mut collector = Collector::new(&context, views, host, kernel);
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

struct Collector<'a, K: Kernel> {
    context: &'a Context,
    views: Views,
    host: Host,
    kernel: K,
    machine: Machine<K>,
    owned: Owned<K>,
    times: Times,
    groups: Groups,
    /// What the groups were made of.
    grouped: Option<(CpuSet, Option<Arc<Topology>>)>,
    retried: Mono,
    /// What was said last, so that it is said once.
    said: (Outcomes, Left),
    hindered: bool,
}

impl<'a, K: Kernel> Collector<'a, K> {
    fn new(context: &'a Context, views: Views, host: Host, kernel: K) -> Collector<'a, K> {
        Collector {
            context,
            views,
            host,
            kernel,
            machine: Machine::new(&context.config.cpu.events),
            owned: Owned::default(),
            times: Times::default(),
            groups: Groups::default(),
            grouped: None,
            retried: Mono::now(),
            said: (Outcomes::new(), Left::default()),
            hindered: false,
        }
    }

    /// Whether the names of the groups are known: the topology is there, or is not to come.
    fn knows_groups(&self, waited: bool) -> bool {
        waited || !self.context.config.topology.enabled || self.views.topology.current().is_some()
    }

    fn visit(&mut self) {
        let taken = Mono::now();
        let Some(cpus) = places::online(&self.host) else {
            let text = "the CPUs that are on cannot be told: no /sys/devices/system/cpu/online";
            self.context.inbox.event(LedgerEvent::CollectorUnavailable(Source::Cpu, Some(text.into())));
            self.hindered = true;
            return;
        };
        if std::mem::take(&mut self.hindered) {
            self.context.inbox.event(LedgerEvent::CollectorUnavailable(Source::Cpu, None));
        }
        self.group(&cpus, self.views.topology.current().as_ref());
        if taken.since(self.retried) >= RETRY {
            self.retried = taken;
            self.machine.retry(&self.kernel, &cpus);
        }
        let room = room::descriptors();
        self.machine.step(&self.kernel, &cpus, &self.groups, room);
        if self.context.config.cpu.per_owner {
            let wanted = wanted(&self.host, &self.views.owners.current());
            let room = room::for_owners(room, self.machine.open_counters());
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
            Some(topology) => Groups::of_topology(topology),
            None => Groups::of_host(&self.host, cpus),
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
            tell(&mut rows, &Node {}, &m::gpu_host_cpu_event_running_ratio, (event,), ratio);
        }
        for (group, event, sum) in self.machine.sums() {
            tell(&mut rows, group, &m::gpu_host_cpu_events_total, (event,), sum as f64);
        }
        for (group, mode, seconds) in self.times.seconds() {
            tell(&mut rows, group, &m::gpu_host_cpu_seconds_total, (mode,), seconds);
        }
        for (owner, event, sum) in self.owned.sums() {
            let owner = Owner { owner: Arc::clone(owner) };
            tell(&mut rows, &owner, &m::gpu_owner_cpu_events_total, (event,), sum as f64);
        }
        let lifetime = (self.context.config.cpu.interval * 3).max(Duration::from_secs(3));
        // That an event cannot be counted is an answer: its state is told.
        self.context.inbox.batch(Batch::of_node(Source::Cpu, taken, Some(lifetime), rows));
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

    fn say_left(&mut self, left: Left) {
        if self.said.1 == left {
            return;
        }
        if !left.without_room.is_empty() {
            let owners = left.without_room.len();
            let most = room::MOST_OWNED;
            tracing::warn!(owners, most, "owners whose CPU events are not counted: too many counters");
        }
        for (owner, why) in &left.refused {
            tracing::warn!(owner = owner.as_ref(), %why, "CPU events of the owner cannot be counted");
        }
        self.said.1 = left;
    }
}

/// The control groups of the owners that are published.
fn wanted(host: &Host, owners: &[(Arc<GpuOwner>, bool)]) -> Wanted {
    let mut wanted = Wanted::new();
    for (owner, has_processes) in owners {
        let folder = match owned::folder(host, &owner.cgroup) {
            Some(folder) if *has_processes => Folder::Alive(folder),
            _ => Folder::Ended,
        };
        let known = wanted.entry(Arc::clone(&owner.id)).or_insert(Folder::Ended);
        if *known == Folder::Ended {
            *known = folder;
        }
    }
    wanted
}

/// Adds a number. One outside its limits, which no counter of a living machine is, is no series.
fn tell<E: m::schema::Entity, L: LabelSet>(
    rows: &mut Rows,
    of: &E,
    metric: &Metric<E, L>,
    labels: L,
    value: f64,
) {
    if rows.of(of).put(metric, labels, value).is_err() {
        tracing::warn!(metric = metric.def().name, value, "cannot be true");
    }
}

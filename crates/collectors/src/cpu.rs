//! Counts events on the CPUs, such as context switches, page faults and cycles. The events are summed by NUMA node and
//! last-level cache, and optionally by the control groups of owners. The collector also sums the CPU time by mode.
//!
//! [`backend`] defines the interface to the kernel, [`perf`] implements it, and [`simulated`] replaces it on a
//! simulated host. [`counter_set`] owns the open counters, [`machine_events`] and [`owner_events`] the sums,
//! [`cpu_time`] the CPU time, and [`cpu_groups`] the groups of CPUs.

pub mod backend;
pub(crate) mod counter_set;
pub mod cpu_groups;
pub(crate) mod cpu_time;
pub mod machine_events;
pub(crate) mod owner_events;
pub mod perf;
pub mod simulated;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Context, put_node_row, put_row};
use crate::views::View;
use backend::CounterBackend;
use counter_set::Outcomes;
use cpu_groups::CpuGroups;
use cpu_time::CpuTimes;
use host::Host;
use machine_events::{MOST_OWNED, MachineEvents, descriptors, for_owners, state};
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, Node, Owner, PerfState};
use model::clock::Mono;
use model::cpus::CpuSet;
use model::owners::Owner as GpuOwner;
use model::sample::Rows;
use model::topology::Topology;
use owner_events::{OwnerEvents, Uncounted, WantedOwners};
use perf::{Perf, Processor};
use simulated::Simulated;

/// Maximum wait for the topology at startup. Waiting keeps the names of the groups stable.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two checks for the topology.
const LOOK: Duration = Duration::from_millis(250);
/// Time between two attempts to count refused events, so that a new permission needs no restart of the daemon.
const RETRY: Duration = Duration::from_secs(60);

/// `owners` are the owners of GPU work and whether they have running processes.
pub(crate) fn run(
    context: Context,
    topology: View<Option<Arc<Topology>>>,
    owners: View<Vec<(Arc<GpuOwner>, bool)>>,
) {
    let config = &context.config().cpu;
    if !config.enabled || config.events.is_empty() {
        return context.switched_off(CollectorName::Cpu, "cpu.enabled");
    }
    let patience = Mono::now() + PATIENCE;
    // The names of the groups are final once the topology is known or is switched off.
    let unnamed = || context.config().topology.enabled && topology.current().is_none();
    while !context.stop.stopped() && Mono::now() < patience && unnamed() {
        context.stop.wait_until(Mono::now() + LOOK);
    }
    let host = Host::new(&context.config().host.root);
    match Simulated::of_host(&host) {
        Some(kernel) => {
            tracing::warn!("the CPU events come from a simulated host; nothing is counted");
            read_until_stopped(&context, topology, owners, host, kernel);
        }
        None => {
            let kernel = Perf::new(Processor::of_host(&host));
            read_until_stopped(&context, topology, owners, host, kernel);
        }
    }
}

/// Reads until the daemon stops.
fn read_until_stopped<K: CounterBackend>(
    context: &Context,
    topology: View<Option<Arc<Topology>>>,
    owners: View<Vec<(Arc<GpuOwner>, bool)>>,
    host: Host,
    kernel: K,
) {
    let config = &context.config().cpu;
    let mut collector = CpuCollector {
        context,
        topology,
        owners,
        kernel,
        host,
        machine: MachineEvents::new(&config.events),
        owned: OwnerEvents { owners: BTreeMap::new() },
        times: CpuTimes::default(),
        groups: CpuGroups::default(),
        grouped: None,
        retried: Mono::now(),
        said: (Outcomes::new(), Uncounted::default()),
        unavailable: false,
    };
    context.every(|config| config.cpu.interval, |_| collector.visit());
}

struct CpuCollector<'a, K: CounterBackend> {
    context: &'a Context,
    topology: View<Option<Arc<Topology>>>,
    owners: View<Vec<(Arc<GpuOwner>, bool)>>,
    host: Host,
    kernel: K,
    machine: MachineEvents<K>,
    owned: OwnerEvents<K>,
    times: CpuTimes,
    groups: CpuGroups,
    /// CPUs and topology from which the groups were made.
    grouped: Option<(CpuSet, Option<Arc<Topology>>)>,
    retried: Mono,
    /// Last logged states, so that only changes are logged.
    said: (Outcomes, Uncounted),
    unavailable: bool,
}

impl<K: CounterBackend> CpuCollector<'_, K> {
    fn visit(&mut self) {
        let taken = Mono::now();
        let Some(cpus) = cpu_groups::online(&self.host) else {
            let why = "the online CPUs are unknown: no /sys/devices/system/cpu/online";
            self.unavailable = true;
            return self.context.unavailable(CollectorName::Cpu, Some(why.into()));
        };
        if std::mem::take(&mut self.unavailable) {
            self.context.unavailable(CollectorName::Cpu, None);
        }
        self.group(&cpus, self.topology.current().as_ref());
        if taken.since(self.retried) >= RETRY {
            self.retried = taken;
            self.machine.retry(&self.kernel, &cpus);
        }
        let room = descriptors();
        self.machine.step(&self.kernel, &cpus, &self.groups, room);
        if self.context.config().cpu.per_owner {
            let wanted = wanted(&self.host, &self.owners.current());
            let room = for_owners(room, self.machine.open_counters());
            let events = self.machine.working();
            let left = self.owned.step(&self.kernel, &cpus, &events, &wanted, room);
            self.say_left(left);
        }
        self.times.read(&self.host, &self.groups);
        self.say_outcomes();
        self.send(taken);
    }

    /// Updates the groups of CPUs if the CPUs or the topology have changed.
    fn group(&mut self, cpus: &CpuSet, topology: Option<&Arc<Topology>>) {
        let made_of = Some((cpus.clone(), topology.cloned()));
        if self.grouped == made_of {
            return;
        }
        self.groups = match topology {
            Some(topology) => CpuGroups::of_topology(topology),
            None => CpuGroups::of_host(&self.host, cpus),
        };
        self.grouped = made_of;
    }

    fn send(&self, taken: Mono) {
        let mut rows = Rows::default();
        for (event, outcome) in &self.machine.outcomes {
            for known in PerfState::ALL {
                let is = *known == state(outcome);
                rows.entity(&Node {}).flag(&m::gpu_host_cpu_event_state, (*event, *known), is);
            }
        }
        for (event, ratio) in self.machine.ratios() {
            put_node_row(&mut rows, &m::gpu_host_cpu_event_running_ratio, (event,), ratio);
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
        // The batch is sent even without counts, because the states of the events are values too.
        self.context.send(CollectorName::Cpu, taken, self.context.config().cpu.interval, rows);
    }

    fn say_outcomes(&mut self) {
        let outcomes = &self.machine.outcomes;
        if self.said.0 != *outcomes {
            let counted: Vec<&str> = self.machine.working().iter().map(|event| event.known()).collect();
            let refused = outcomes.iter().filter_map(|(event, outcome)| Some((event, outcome.err()?)));
            let refused: Vec<String> =
                refused.map(|(event, why)| format!("{} ({why})", event.known())).collect();
            let (counted, refused) = (counted.join(" "), refused.join(", "));
            tracing::info!(counted, refused, "changed the events that are counted on the CPUs");
            self.said.0 = outcomes.clone();
        }
    }

    fn say_left(&mut self, left: Uncounted) {
        if self.said.1 != left {
            if left != Uncounted::default() {
                let refused = left.refused.iter().map(|(owner, why)| format!("{owner} ({why})"));
                let refused = refused.collect::<Vec<_>>().join(", ");
                let without_room = left.without_room.join(" ");
                tracing::warn!(
                    without_room,
                    refused,
                    max_counters = MOST_OWNED,
                    "the CPU events of some owners are not counted"
                );
            }
            self.said.1 = left;
        }
    }
}

/// Returns the control groups of the published owners.
fn wanted(host: &Host, owners: &[(Arc<GpuOwner>, bool)]) -> WantedOwners {
    let mut wanted = WantedOwners::new();
    for (owner, has_processes) in owners {
        let folder = owner_events::folder(host, &owner.cgroup).filter(|_| *has_processes);
        let known = wanted.entry(Arc::clone(&owner.id)).or_default();
        *known = known.take().or(folder);
    }
    wanted
}

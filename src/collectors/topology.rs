//! The machine around the GPUs: a process of its own looks, at start, when GPUs come or go, and at links and network
//! devices now and then. What it finds is compared with the first look at this machine and with what is declared.

mod declared;
mod first_seen;

use model::catalog::CollectorName;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Context;
use crate::views::View;
use first_seen::FirstSeen;
use host::Host;
use host::child::{ChildSet, Stderr};
use ledger::inbox::LedgerEvent;
use model::clock::{Cadence, Mono};
use model::topology::{Topology, TopologyUpdate, compare};
use topology::ask::{AskError, Asker};
use topology::discover::Origin;

/// Longest time between two looks at which GPUs are there.
const LOOK: Duration = Duration::from_secs(1);
/// After so many looks at links without an answer, links count as unknown.
const FAILURES: u32 = 3;

/// Starts the collector.
pub fn start(
    context: Context,
    gpus: View<BTreeSet<String>>,
    children: Arc<ChildSet>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("topology".into()).spawn(move || {
        if !context.config.topology.enabled {
            return context.switched_off(CollectorName::Topology, "topology.enabled");
        }
        let mut cadence = Cadence::new(context.config.topology.interval, Duration::ZERO);
        let mut watcher = TopologyCollector::new(&context, &children);
        while !context.stop.stopped() {
            let present = gpus.current();
            if cadence.take(Mono::now()) || watcher.is_surprised_by(&present) {
                watcher.visit(present);
            }
            context.stop.wait_until(cadence.next().min(Mono::now() + LOOK));
        }
    })
}

struct TopologyCollector<'a> {
    context: &'a Context,
    asker: Asker,
    first_seen: FirstSeen,
    known: Option<KnownTopology>,
    /// GPUs at the last visit.
    present: BTreeSet<String>,
    failures: u32,
    unavailable: Option<String>,
}

/// What was found.
struct KnownTopology {
    topology: Topology,
    /// Devices that a look at links sees.
    devices: Vec<String>,
}

impl<'a> TopologyCollector<'a> {
    fn new(context: &'a Context, children: &Arc<ChildSet>) -> TopologyCollector<'a> {
        TopologyCollector {
            context,
            asker: Asker::new(Stderr::Inherit).of(children),
            first_seen: FirstSeen::load(&context.config),
            known: None,
            present: BTreeSet::new(),
            failures: 0,
            unavailable: None,
        }
    }

    /// Whether GPUs have gone since the last visit, or some have come that it did not find.
    fn is_surprised_by(&self, present: &BTreeSet<String>) -> bool {
        // Without an answer at all the next try is at its time.
        let Some(known) = &self.known else { return false };
        let found = |address: &String| known.topology.gpu(address).is_some();
        !present.is_superset(&self.present) || present.difference(&self.present).any(|gpu| !found(gpu))
    }

    fn visit(&mut self, present: BTreeSet<String>) {
        let gone = !present.is_superset(&self.present);
        let complete = |known: &KnownTopology| present.iter().all(|gpu| known.topology.gpu(gpu).is_some());
        let complete = self.known.as_ref().is_some_and(|known| complete(known) || present == self.present);
        let looked = if complete && !gone { self.links() } else { self.all() };
        self.present = present;
        let unavailable = match looked {
            Ok(()) => {
                self.failures = 0;
                self.publish()
            }
            Err(AskError::Stopped) => return,
            Err(error) => {
                self.failures += 1;
                if self.failures == FAILURES {
                    self.forget_links();
                }
                Some(error.to_string())
            }
        };
        if unavailable != self.unavailable {
            if let Some(text) = &unavailable {
                tracing::warn!("topology: {text}");
            }
            self.context.unavailable(CollectorName::Topology, unavailable.clone());
            self.unavailable = unavailable;
        } else if unavailable.is_some() && self.known.is_none() {
            self.context.unavailable(CollectorName::Topology, unavailable);
        }
    }

    /// Looks at links and network devices; at everything if a device came or went.
    fn links(&mut self) -> Result<(), AskError> {
        let links = self.asker.links(&self.context.config.host.root, &self.context.stop)?;
        match &mut self.known {
            Some(known) if links.addresses() == known.devices => {
                links.apply(&mut known.topology);
                Ok(())
            }
            _ => self.all(),
        }
    }

    /// Looks at everything. If that fails, what was known stays.
    fn all(&mut self) -> Result<(), AskError> {
        let origin = Origin::Live(self.context.config.host.root.clone());
        let all = self.asker.all(&origin, false, &self.context.stop)?;
        self.known = Some(KnownTopology { topology: all.topology, devices: all.devices });
        Ok(())
    }

    /// Says what is known. Gives what keeps it from being all.
    fn publish(&mut self) -> Option<String> {
        let known = self.known.as_ref()?;
        let changed = compare::differences(self.first_seen.or_is(&known.topology), &known.topology);
        let declared = declared::read(&self.context.config.topology.expected_file);
        let against_declared = match &declared {
            Ok(declared) => declared.as_ref().map(|declared| compare::differences(declared, &known.topology)),
            Err(_) => None,
        };
        self.send(TopologyUpdate {
            topology: Arc::new(known.topology.clone()),
            against_first_seen: Some(changed),
            against_declared,
        });
        // The ledger knows the collector by its batches; the values go another way.
        self.context.beat(CollectorName::Topology);
        declared.err()
    }

    /// Links and networks had no answer for too long: their state is unknown.
    fn forget_links(&mut self) {
        let Some(known) = &mut self.known else { return };
        for device in &mut known.topology.devices {
            device.link = None;
            if let Some(network) = &mut device.network {
                (network.up, network.bytes_per_second) = (None, None);
            }
        }
        let topology = Arc::new(known.topology.clone());
        self.send(TopologyUpdate { topology, against_first_seen: None, against_declared: None });
    }

    fn send(&self, update: TopologyUpdate) {
        self.context.inbox.event(LedgerEvent::Topology(update));
    }
}

/// The machine by its own name: what was seen first of another one, whose disk this is, does not count.
fn machine_id(host: &Host) -> String {
    let text = std::fs::read_to_string(host.path("/etc/machine-id")).unwrap_or_default();
    text.trim().chars().take(64).collect()
}

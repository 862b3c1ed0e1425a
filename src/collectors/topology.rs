//! The machine around the GPUs: a process of its own looks, at start, when GPUs come or go, and at links and network
//! devices now and then. What it finds is compared with the first look at this machine and with what is declared.

mod declared;
mod kept;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Context;
use crate::views::View;
use host::Host;
use host::child::{Family, Voice};
use kept::FirstSeen;
use ledger::inbox::LedgerEvent;
use model::clock::{Cadence, Mono};
use model::sample::{Batch, Rows, Source};
use model::topology::{Topology, TopologyUpdate, compare};
use topology::ask::{Asker, Unanswered};
use topology::discover::Origin;

/// Longest time between two looks at which GPUs are there.
const LOOK: Duration = Duration::from_secs(1);
/// After so many looks at links without an answer, what was known of them is told no longer.
const FAILURES: u32 = 3;

/// Starts the collector.
pub fn start(
    context: Context,
    gpus: View<BTreeSet<String>>,
    children: Arc<Family>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("topology".into()).spawn(move || {
        if !context.config.topology.enabled {
            super::switched_off(&context, Source::Topology, "topology.enabled");
            return;
        }
        let mut cadence = Cadence::new(context.config.topology.interval, Duration::ZERO);
        let mut watcher = Watcher::new(&context, &children);
        while !context.stop.stopped() {
            let present = gpus.current();
            if cadence.take(Mono::now()) || watcher.is_surprised_by(&present) {
                watcher.visit(present);
            }
            context.stop.wait_until(cadence.next().min(Mono::now() + LOOK));
        }
    })
}

struct Watcher<'a> {
    context: &'a Context,
    asker: Asker,
    first_seen: FirstSeen,
    known: Option<Known>,
    /// GPUs at the last visit.
    present: BTreeSet<String>,
    failures: u32,
    hindered: Option<String>,
}

/// What was found.
struct Known {
    topology: Topology,
    /// Devices that a look at links sees.
    devices: Vec<String>,
}

impl<'a> Watcher<'a> {
    fn new(context: &'a Context, children: &Arc<Family>) -> Watcher<'a> {
        Watcher {
            context,
            asker: Asker::new(Voice::Log).of(children),
            first_seen: FirstSeen::load(&context.config),
            known: None,
            present: BTreeSet::new(),
            failures: 0,
            hindered: None,
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
        let found = |known: &Known| present.iter().all(|gpu| known.topology.gpu(gpu).is_some());
        let looked = match self.known.take() {
            Some(known) if !gone && (found(&known) || present == self.present) => self.links(known),
            known => self.all(known),
        };
        self.present = present;
        let hindered = match looked {
            Ok(()) => {
                self.failures = 0;
                self.tell()
            }
            Err(Unanswered::Stopped) => return,
            Err(error) => {
                self.failures += 1;
                if self.failures == FAILURES {
                    self.forget_links();
                }
                Some(error.to_string())
            }
        };
        if hindered != self.hindered {
            if let Some(text) = &hindered {
                tracing::warn!("topology: {text}");
            }
            self.context.inbox.event(LedgerEvent::CollectorUnavailable(Source::Topology, hindered.clone()));
            self.hindered = hindered;
        } else if hindered.is_some() && self.known.is_none() {
            self.context.inbox.event(LedgerEvent::CollectorUnavailable(Source::Topology, hindered));
        }
    }

    /// Looks at links and network devices; at everything if a device came or went.
    fn links(&mut self, mut known: Known) -> Result<(), Unanswered> {
        let links = match self.asker.links(&self.context.config.host.root, &self.context.stop) {
            Ok(links) => links,
            Err(error) => {
                self.known = Some(known);
                return Err(error);
            }
        };
        if links.addresses() != known.devices {
            return self.all(Some(known));
        }
        links.apply(&mut known.topology);
        self.known = Some(known);
        Ok(())
    }

    /// Looks at everything. If that fails, what was known stays.
    fn all(&mut self, before: Option<Known>) -> Result<(), Unanswered> {
        let origin = Origin::Live(self.context.config.host.root.clone());
        match self.asker.all(&origin, false, &self.context.stop) {
            Ok(all) => {
                self.known = Some(Known { topology: all.topology, devices: all.devices });
                Ok(())
            }
            Err(error) => {
                self.known = before;
                Err(error)
            }
        }
    }

    /// Says what is known. Gives what keeps it from being all.
    fn tell(&mut self) -> Option<String> {
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
        self.beat();
        declared.err()
    }

    /// Links and networks were not answered for too long: nobody knows how they are.
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

    /// The ledger knows the collector by its batches; the values go another way.
    fn beat(&self) {
        self.context.inbox.batch(Batch::of_node(Source::Topology, Mono::now(), None, Rows::default()));
    }
}

/// The machine by its own name: what was seen first of another one, whose disk this is, does not count.
fn machine_id(host: &Host) -> String {
    let text = std::fs::read_to_string(host.path("/etc/machine-id")).unwrap_or_default();
    text.trim().chars().take(64).collect()
}

//! Topology of the host. A separate process discovers it at startup and when GPUs appear or disappear, and rereads
//! links and network devices at intervals. The result is compared with the first discovery on this machine and with the
//! declared topology.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{Context, Parts, Turns, views};
use host::Host;
use host::child::Stderr;
use host::state::{Document, Keeper, Store};
use ledger::inbox::LedgerEvent;
use model::catalog::CollectorName;
use model::clock::Mono;
use model::plain_file;
use model::topology::{DeviceKind, MemoryKind, Topology, TopologyUpdate, compare};
use settings::Config;
use topology::ask::{AskError, Asker, MachineAnswer};
use topology::discover::Origin;

/// Maximum time between two checks for new GPUs.
const LOOK: Duration = Duration::from_secs(1);
/// Number of failed link readings after which the state of the links counts as unknown.
const FAILURES: u32 = 3;
/// Maximum size of a file with a declared topology.
const MOST: usize = 8 << 20;

pub(crate) fn run(context: Context, parts: Parts) {
    if !context.config().topology.enabled {
        return context.switched_off(CollectorName::Topology, "topology.enabled");
    }
    let gpus = parts.view(views::gpu_addresses);
    let mut turns = Turns::new(&context);
    let mut watcher = TopologyCollector {
        context: &context,
        asker: Asker::new(Stderr::Inherit, Arc::clone(&parts.topology_children)),
        first_seen: FirstSeen::load(&context.config(), &context.state),
        known: None,
        present: BTreeSet::new(),
        failures: 0,
        unavailable: None,
    };
    while !context.stop.stopped() {
        let present = gpus.current();
        if turns.is_due(|config| config.topology.interval) || watcher.is_surprised_by(&present) {
            watcher.visit(present);
        }
        turns.wait_until(turns.next().min(Mono::now() + LOOK));
    }
}

struct TopologyCollector<'a> {
    context: &'a Context,
    asker: Asker,
    first_seen: FirstSeen,
    /// Topology of the last discovery.
    known: Option<MachineAnswer>,
    /// GPUs at the last visit.
    present: BTreeSet<String>,
    failures: u32,
    unavailable: Option<String>,
}

impl TopologyCollector<'_> {
    /// Returns whether GPUs have disappeared since the last visit, or GPUs have appeared that the last discovery does
    /// not contain.
    fn is_surprised_by(&self, present: &BTreeSet<String>) -> bool {
        // If the first discovery failed, the next attempt comes at the usual time.
        let Some(known) = &self.known else { return false };
        let found = |address: &String| known.topology.gpu(address).is_some();
        !present.is_superset(&self.present) || present.difference(&self.present).any(|gpu| !found(gpu))
    }

    fn visit(&mut self, present: BTreeSet<String>) {
        let gone = !present.is_superset(&self.present);
        let complete = |known: &MachineAnswer| present.iter().all(|gpu| known.topology.gpu(gpu).is_some());
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
                tracing::warn!("failed to discover the topology: {text}");
            }
            self.context.unavailable(CollectorName::Topology, unavailable.clone());
            self.unavailable = unavailable;
        } else if unavailable.is_some() && self.known.is_none() {
            self.context.unavailable(CollectorName::Topology, unavailable);
        }
    }

    /// Rereads links and network devices. Discovers everything again if a device has appeared or disappeared.
    fn links(&mut self) -> Result<(), AskError> {
        let links = self.asker.links(&self.context.config().host.root, &self.context.stop)?;
        match &mut self.known {
            Some(known) if links.addresses() == known.devices => {
                links.apply(&mut known.topology);
                Ok(())
            }
            _ => self.all(),
        }
    }

    /// Discovers everything. On failure the known topology stays.
    fn all(&mut self) -> Result<(), AskError> {
        let origin = Origin::Live(self.context.config().host.root.clone());
        let mut found = self.asker.all(&origin, false, &self.context.stop)?;
        let before = self.known.as_ref().map(|known| &known.topology);
        for before in before.into_iter().chain(self.first_seen.kept.as_ref()) {
            found.topology.remember_networks(before);
        }
        self.known = Some(found);
        Ok(())
    }

    /// Publishes the topology. Returns the error if the declared topology is unreadable.
    fn publish(&mut self) -> Option<String> {
        let known = self.known.as_ref()?;
        let changed = compare::differences(self.first_seen.or_is(&known.topology), &known.topology);
        let declared = declared(self.context.config().topology.expected_file.as_deref());
        let against_declared = declared.as_ref().ok().and_then(Option::as_ref);
        let against_declared = against_declared.map(|it| compare::differences(it, &known.topology));
        let topology = Arc::new(known.topology.clone());
        let update = TopologyUpdate { topology, against_first_seen: Some(changed), against_declared };
        self.context.inbox.event(LedgerEvent::Topology(update));
        // The ledger tracks the collector by its batches, but the topology is sent as an event.
        self.context.beat(CollectorName::Topology);
        declared.err()
    }

    /// Marks the state of links and networks as unknown.
    fn forget_links(&mut self) {
        let Some(known) = &mut self.known else { return };
        for device in &mut known.topology.devices {
            device.link = None;
            if let Some(network) = &mut device.network {
                network.forget_state();
            }
        }
        let topology = Arc::new(known.topology.clone());
        let update = TopologyUpdate { topology, against_first_seen: None, against_declared: None };
        self.context.inbox.event(LedgerEvent::Topology(update));
    }
}

/// Output of `gpu-node-exporter topology --format json` and of `/api/v1/topology`, or the topology in it.
#[derive(Deserialize)]
#[serde(untagged)]
enum DeclaredTopology {
    Whole { topology: Topology },
    Bare(Topology),
}

/// Reads the declared topology from a file. Returns `None` if no file is configured.
pub fn declared(file: Option<&Path>) -> Result<Option<Topology>, String> {
    let Some(file) = file else { return Ok(None) };
    let said = |why: &dyn std::fmt::Display| format!("topology.expected_file {}: {why}", file.display());
    let bytes = plain_file::read(file, MOST).map_err(|error| said(&error))?;
    match serde_json::from_slice(&bytes) {
        Ok(DeclaredTopology::Whole { topology } | DeclaredTopology::Bare(topology)) => Ok(Some(topology)),
        Err(_) => {
            Err(said(&"not a topology; create the file with `gpu-node-exporter topology --format json`"))
        }
    }
}

/// First topology discovered on this machine, kept across restarts. The administrator deletes the file after an
/// intended change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedTopology {
    /// Content of `/etc/machine-id`; empty if there is none.
    machine_id: String,
    /// Topology at the first discovery.
    #[serde(deserialize_with = "known_topology")]
    topology: Topology,
}

/// Deserializes a topology of a later release. Devices of an unknown kind are dropped, and an unknown memory kind is
/// removed, as this release would discover them.
fn known_topology<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Topology, D::Error> {
    let mut saved = Value::deserialize(deserializer)?;
    if let Some(devices) = saved.get_mut("devices").and_then(Value::as_array_mut) {
        devices.retain(|device| DeviceKind::deserialize(&device["kind"]).is_ok());
    }
    for node in saved.get_mut("numa_nodes").and_then(Value::as_array_mut).into_iter().flatten() {
        if MemoryKind::deserialize(&node["memory_kind"]).is_err()
            && let Some(node) = node.as_object_mut()
        {
            node.remove("memory_kind");
        }
    }
    Topology::deserialize(saved).map_err(D::Error::custom)
}

impl Document for SavedTopology {
    const KIND: &'static str = "topology";
    const VERSION: u32 = 1;
    const OLDEST: u32 = 1;
    const MAX_BYTES: usize = 4 << 20;
}

/// Topology of the first discovery, loaded from its state file.
struct FirstSeen {
    machine_id: String,
    kept: Option<Topology>,
    keeper: Keeper<SavedTopology>,
}

impl FirstSeen {
    /// Loads the first topology of this machine.
    fn load(config: &Config, store: &Store) -> FirstSeen {
        // The disk may come from another machine, whose topology does not count.
        let machine_id = Host::new(&config.host.root).machine_id();
        let (kept, keeper) = store.open::<SavedTopology>();
        let kept = kept.filter(|kept| kept.machine_id == machine_id).map(|kept| kept.topology);
        FirstSeen { machine_id, kept, keeper }
    }

    /// Returns the first topology. If there is none, `topology` becomes the first one and is saved.
    fn or_is(&mut self, topology: &Topology) -> &Topology {
        let FirstSeen { machine_id, kept, keeper } = self;
        kept.get_or_insert_with(|| {
            let fresh = SavedTopology { machine_id: machine_id.clone(), topology: topology.clone() };
            keeper.save(fresh);
            topology.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::fixtures::{device, machine};

    fn config(dir: &std::path::Path) -> Config {
        let mut config = Config::default();
        config.state.dir = dir.join("state");
        config.host.root = dir.join("root");
        config
    }

    /// What counts as first for a daemon that sees this.
    fn first_of(config: &Config, topology: &Topology) -> Topology {
        let mut seen = FirstSeen::load(config, &Store::new(&config.state.dir));
        let first = seen.or_is(topology).clone();
        drop(seen.keeper);
        first
    }

    #[test]
    fn the_first_is_kept_for_this_machine_alone() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let (one, other) = (machine(&[("0-3", &["0-3"])]), machine(&[("0-7", &["0-7"])]));
        assert_eq!(first_of(&config, &one), one);
        assert_eq!(first_of(&config, &other), one, "after a restart");
        std::fs::create_dir_all(config.host.root.join("etc")).unwrap();
        std::fs::write(config.host.root.join("etc/machine-id"), "0123456789abcdef\n").unwrap();
        assert_eq!(first_of(&config, &other), other, "the disk is in another machine");
        assert_eq!(first_of(&config, &one), other);
    }

    #[test]
    fn the_first_of_a_later_release_is_read_as_far_as_it_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let mut first = machine(&[("0-3", &["0-3"])]);
        first.devices.push(device(DeviceKind::Network, "0000:17:00.0", Some(0), "0-3", &[]));
        assert_eq!(first_of(&config, &first), first);
        let file = config.state.dir.join("topology.json");
        let mut later: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let topology = &mut later["data"]["topology"];
        let mut device = topology["devices"][0].clone();
        device["kind"] = "of_a_later_version".into();
        topology["devices"].as_array_mut().unwrap().push(device);
        topology["numa_nodes"][0]["memory_kind"] = "of_a_later_version".into();
        std::fs::write(&file, later.to_string()).unwrap();
        let kept = first_of(&config, &machine(&[("0-7", &["0-7"])]));
        assert_eq!((&kept.devices, &kept.cpus), (&first.devices, &first.cpus), "not begun again");
        assert_eq!(kept.numa_nodes[0].memory_kind, MemoryKind::Unknown);
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_costs_the_memory_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        std::fs::write(dir.path().join("file"), "").unwrap();
        config.state.dir = dir.path().join("file/state");
        let one = machine(&[("0-3", &["0-3"])]);
        assert_eq!(first_of(&config, &one), one);
    }

    #[test]
    fn both_forms_are_read_and_other_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("declared.json");
        assert_eq!(declared(None), Ok(None));
        assert!(declared(Some(&file)).unwrap_err().contains("declared.json"));
        let machine = machine(&[("0-3", &["0-3"])]);
        let bare = serde_json::to_value(&machine).unwrap();
        for text in [bare.to_string(), serde_json::json!({"gpus": [], "topology": bare}).to_string()] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(declared(Some(&file)), Ok(Some(machine.clone())));
        }
        for text in ["", "{}", "[1]", "\u{0}"] {
            std::fs::write(&file, text).unwrap();
            assert!(declared(Some(&file)).unwrap_err().contains("not a topology"), "{text}");
        }
        let pipe = dir.path().join("pipe.json");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(declared(Some(&pipe)).unwrap_err().contains("is a FIFO"), "no reader waits for a writer");
        assert!(declared(Some(dir.path())).unwrap_err().contains("is a folder"));
    }
}

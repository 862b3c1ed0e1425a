//! Views on the published snapshot: each collector that needs a fact of the ledger receives a view on that fact, never
//! the snapshot.

pub mod canary;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use exposition::response_cache::SnapshotCell;
use model::catalog::schema::{self, LabelSet};
use model::catalog::{self as m, ComputeInstance, FabricState, Gpu, MigInfo, Subject};
use model::owners::Owner;
use model::pci::pci_address;
use model::snapshot::{Snapshot, Value};
use model::topology::Topology;

/// One fact of the newest snapshot, computed when it is read.
#[derive(Debug)]
pub struct View<T> {
    snapshots: Arc<SnapshotCell>,
    project: fn(&Arc<Snapshot>) -> T,
}

impl<T> View<T> {
    /// The view that `project` computes.
    pub fn new(snapshots: &Arc<SnapshotCell>, project: fn(&Arc<Snapshot>) -> T) -> View<T> {
        View { snapshots: Arc::clone(snapshots), project }
    }

    /// The fact now. Never blocks.
    pub fn current(&self) -> T {
        (self.project)(&self.snapshots.current())
    }

    /// Waits for a snapshot after number `seen`, at most so long: its number, and the fact.
    pub fn wait_for_newer(&self, seen: u64, at_most: Duration) -> (u64, T) {
        let snapshot = self.snapshots.wait_for_newer(seen, at_most);
        (snapshot.sequence, (self.project)(&snapshot))
    }
}

/// A GPU, or a compute instance of it: GPU and compute instance id.
pub type DeviceId = (Gpu, Option<(u32, u32)>);

/// Processes on the GPUs, and what a device plugin may call the devices.
#[derive(Clone, Debug, Default)]
pub struct GpuWork {
    /// Devices of each process, by process id.
    pub devices: BTreeMap<u32, Vec<DeviceId>>,
    /// UUIDs of the MIG devices: UUID of the GPU, GPU and compute instance id.
    mig_uuids: BTreeMap<(Arc<str>, u32, u32), String>,
}

impl GpuWork {
    /// What a device plugin may call the device: the UUID of a MIG device, or UUID and number of a GPU.
    pub fn plugin_names(&self, (gpu, instance): &DeviceId) -> Vec<String> {
        match *instance {
            Some((gpu_instance, compute_instance)) => {
                let key = (Arc::clone(&gpu.uuid), gpu_instance, compute_instance);
                self.mig_uuids.get(&key).cloned().into_iter().collect()
            }
            None => vec![gpu.uuid.to_string(), gpu.gpu.to_string(), format!("nvidia{}", gpu.gpu)],
        }
    }
}

/// The processes that the GPUs list.
pub fn gpu_work(snapshot: &Arc<Snapshot>) -> GpuWork {
    let mut work = GpuWork::default();
    for view in &snapshot.gpus {
        for process in &view.processes {
            let device = (view.gpu.clone(), process.instance);
            let devices = work.devices.entry(process.pid).or_default();
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
    }
    for (mig, uuid) in mig_devices(snapshot) {
        let key = (Arc::clone(&mig.uuid), mig.gpu_instance, mig.compute_instance);
        work.mig_uuids.insert(key, uuid.to_owned());
    }
    work
}

/// Every MIG device with its UUID.
fn mig_devices(snapshot: &Snapshot) -> impl Iterator<Item = (&ComputeInstance, &str)> {
    snapshot.series(&m::gpu_mig_info).iter().filter_map(|series| {
        let Subject::ComputeInstance(mig) = &series.subject.subject else { return None };
        let at = MigInfo::DEFS.iter().position(|def| def.name == "mig_uuid")?;
        Some((mig, series.labels.get(at)?.text(&MigInfo::DEFS[at])))
    })
}

/// PCI addresses of the GPUs that the driver lists.
pub fn gpu_addresses(snapshot: &Arc<Snapshot>) -> BTreeSet<String> {
    let addresses =
        snapshot.gpus.iter().filter_map(|view| snapshot.info(&m::gpu_info, &view.gpu, "pci_address"));
    addresses.filter_map(pci_address).collect()
}

/// Whether a GPU belongs to an NVLink fabric, or is on its way into one.
pub fn has_fabric(snapshot: &Arc<Snapshot>) -> bool {
    let not_supported = schema::Label::text(&FabricState::NotSupported);
    let series = snapshot.series(&m::gpu_fabric_state).iter();
    let mut states = series.filter(|series| matches!(series.value, Value::Number(value) if value == 1.0));
    states.any(|series| series.labels.first() != Some(&not_supported))
}

/// The topology of the host; `None` until it was found.
pub fn topology(snapshot: &Arc<Snapshot>) -> Option<Arc<Topology>> {
    snapshot.topology.as_ref().map(|update| Arc::clone(&update.topology))
}

/// The owners that are published, each with whether it has processes now.
pub fn owners(snapshot: &Arc<Snapshot>) -> Vec<(Arc<Owner>, bool)> {
    snapshot.owners.iter().map(|view| (Arc::clone(&view.owner), !view.processes.is_empty())).collect()
}

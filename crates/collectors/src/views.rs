//! Views on the published snapshot. A collector that needs facts of the ledger receives a view on these facts and never
//! reads the snapshot itself.

pub mod canary;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use attribution::devices::{DynamicDevice, Named, named};
use attribution::nccl::RankPlace;
use model::catalog::schema::{self, LabelSet};
use model::catalog::{
    self as m, AllocatedGpu, ClaimUnresolved, ComputeInstance, FabricState, Gpu, GpuInstance, MigInfo,
    Subject,
};
use model::owners::Owner;
use model::pci::pci_address;
use model::snapshot::{OwnerView, Series, Snapshot, Value};
use model::snapshot_cell::SnapshotCell;
use model::topology::Topology;

/// Facts of the newest snapshot, computed on every read.
#[derive(Debug)]
pub(crate) struct View<T> {
    snapshots: Arc<SnapshotCell>,
    project: fn(&Arc<Snapshot>) -> T,
}

impl<T> View<T> {
    /// Creates the view that `project` computes.
    pub(crate) fn new(snapshots: &Arc<SnapshotCell>, project: fn(&Arc<Snapshot>) -> T) -> View<T> {
        View { snapshots: Arc::clone(snapshots), project }
    }

    /// Returns the current facts. Never blocks.
    pub(crate) fn current(&self) -> T {
        (self.project)(&self.snapshots.current())
    }

    /// Waits at most `at_most` for a snapshot with a number above `seen`. Returns the number of the newest snapshot and
    /// its facts.
    pub(crate) fn wait_for_newer(&self, seen: u64, at_most: Duration) -> (u64, T) {
        let snapshot = self.snapshots.wait_for_newer(seen, at_most);
        (snapshot.sequence, (self.project)(&snapshot))
    }
}

/// GPU, and the GPU instance and compute instance IDs if it is a part of a GPU.
pub(crate) type DeviceId = (Gpu, Option<(u32, u32)>);

/// Processes on the GPUs, and the names that device plugins use for the devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuWork {
    /// Devices of every process, by process ID.
    pub(crate) devices: BTreeMap<u32, Vec<DeviceId>>,
    /// All GPUs with the minor numbers of their device files.
    pub(crate) gpus: Vec<(Gpu, Option<u32>)>,
    /// Whether the driver lists fewer GPUs than before, in which case an NVML index may belong to another GPU.
    pub(crate) gpus_missing: bool,
    /// UUIDs of the MIG devices, by GPU UUID, GPU instance ID and compute instance ID.
    pub(crate) mig_uuids: BTreeMap<(Arc<str>, u32, u32), String>,
    /// GPU instances, by GPU UUID and GPU instance ID.
    pub(crate) instances: BTreeMap<(Arc<str>, u32), MigPlace>,
}

/// Profile and placement of a GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MigPlace {
    pub(crate) profile: Arc<str>,
    pub(crate) profile_id: Option<u32>,
    pub(crate) start: Option<u32>,
    /// Number of memory slices.
    pub(crate) slices: Option<u32>,
}

impl GpuWork {
    /// Returns the names that a device plugin may use: the UUID of a MIG device, or the UUID, index and device file of
    /// a GPU.
    pub(crate) fn plugin_names(&self, (gpu, instance): &DeviceId) -> Vec<String> {
        match *instance {
            Some((gpu_instance, compute_instance)) => {
                let key = (Arc::clone(&gpu.uuid), gpu_instance, compute_instance);
                self.mig_uuids.get(&key).cloned().into_iter().collect()
            }
            None => {
                let minor = self.gpus.iter().find(|(known, _)| known == gpu).and_then(|(_, minor)| *minor);
                let file = minor.map(|minor| format!("nvidia{minor}"));
                [gpu.uuid.to_string(), gpu.gpu.to_string()].into_iter().chain(file).collect()
            }
        }
    }

    /// Returns the GPU with this minor number.
    pub(crate) fn of_minor(&self, minor: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|(_, known)| *known == Some(minor)).map(|(gpu, _)| gpu)
    }

    /// Resolves a device of a dynamic claim. GPUs are matched only by minor number, never by NVML index; instances are
    /// matched by GPU, profile and placement.
    pub(crate) fn dynamic(&self, device: DynamicDevice) -> Result<AllocatedGpu, ClaimUnresolved> {
        let (minor, profile_id, start, slices) = match device {
            DynamicDevice::Passthrough => return Err(ClaimUnresolved::Passthrough),
            DynamicDevice::Gpu(minor) => {
                let gpu = self.of_minor(minor).ok_or(ClaimUnresolved::NoDevice)?;
                return Ok(AllocatedGpu::new(gpu, None));
            }
            DynamicDevice::Mig { minor, profile_id, start, slices } => (minor, profile_id, start, slices),
        };
        let gpu = self.of_minor(minor).ok_or(ClaimUnresolved::NoDevice)?;
        let instances = || self.instances.iter().filter(|((uuid, _), _)| *uuid == gpu.uuid);
        let is = |place: &MigPlace| {
            (place.profile_id, place.start) == (Some(profile_id), Some(start))
                && (slices.is_none() || place.slices == slices)
        };
        let found = instances().find(|(_, place)| is(place)).map(|((_, id), _)| *id);
        let unplaced = instances().any(|(_, place)| place.profile_id.is_none() || place.start.is_none());
        match found {
            Some(id) => Ok(AllocatedGpu::new(gpu, Some(id))),
            None if unplaced => Err(ClaimUnresolved::NoPlacement),
            None => Err(ClaimUnresolved::NoDevice),
        }
    }

    /// Returns the profile of a GPU instance, and the UUID of its MIG device if there is exactly one. Both are empty
    /// for a whole GPU.
    pub(crate) fn mig_of(&self, at: &AllocatedGpu) -> (String, String) {
        let Ok(id) = at.gpu_instance.parse::<u32>() else { return Default::default() };
        let place = self.instances.get(&(Arc::clone(&at.uuid), id));
        let profile = place.map_or_else(String::new, |place| place.profile.to_string());
        let mut devices =
            self.mig_uuids.iter().filter(|((gpu, instance, _), _)| *gpu == at.uuid && *instance == id);
        match (devices.next(), devices.next()) {
            (Some((_, uuid)), None) => (profile, uuid.clone()),
            _ => (profile, String::new()),
        }
    }

    /// Resolves a device ID of a device plugin or of Slurm. Returns `None` if the device is not on this node or the ID
    /// is ambiguous.
    pub(crate) fn device(&self, id: &str) -> Option<AllocatedGpu> {
        let whole = |gpu: &Gpu| AllocatedGpu::new(gpu, None);
        let by_uuid = |uuid: &str| self.gpus.iter().map(|(gpu, _)| gpu).find(|gpu| is_uuid(&gpu.uuid, uuid));
        let name = named(id);
        match &name {
            Named::Uuid(uuid) => by_uuid(uuid).map(whole).or_else(|| {
                let old = name.mig_of_gpu();
                let of = |gpu: &str, instance, compute| {
                    old.is_some_and(|(other, i, c)| is_uuid(gpu, other) && (i, c) == (instance, compute))
                };
                let mut instances = self.mig_uuids.iter();
                let ((gpu, instance, _), _) = instances.find(|((gpu, instance, compute), mig)| {
                    is_uuid(mig, uuid) || of(gpu, *instance, *compute)
                })?;
                Some(AllocatedGpu::new(by_uuid(gpu)?, Some(*instance)))
            }),
            Named::Index(index, "") => {
                self.gpus.iter().find(|(gpu, _)| gpu.gpu == *index).map(|(gpu, _)| whole(gpu))
            }
            Named::Minor(minor, part) => {
                let gpu = self.of_minor(*minor)?;
                let mut parts = part.split('/').skip(1);
                match parts.next() {
                    _ if part.starts_with('-') => None,
                    // GKE's time-shared GPUs.
                    Some(share) if share.starts_with("vgpu") => Some(whole(gpu)),
                    Some(instance) => {
                        let id = instance.strip_prefix("gi")?.parse().ok()?;
                        let mut instances = self.mig_uuids.keys();
                        let there = instances.any(|(uuid, instance, _)| *uuid == gpu.uuid && *instance == id);
                        there.then(|| AllocatedGpu::new(gpu, Some(id)))
                    }
                    None => Some(whole(gpu)),
                }
            }
            Named::Index(..) | Named::Unknown => None,
        }
    }
}

fn is_uuid(uuid: &str, other: &str) -> bool {
    !uuid.is_empty() && uuid.eq_ignore_ascii_case(other)
}

/// Collects the processes on all GPUs and the names of the devices.
pub(crate) fn gpu_work(snapshot: &Arc<Snapshot>) -> GpuWork {
    let count = |series: &[Series]| match series.first().map(|series| &series.value) {
        Some(Value::Number(count)) => Some(*count as usize),
        _ => None,
    };
    let most =
        [snapshot.series(&m::gpu_devices_highest), snapshot.series(&m::gpu_devices_expected)].map(count);
    let listed = count(snapshot.series(&m::gpu_devices)).unwrap_or(usize::MAX).min(snapshot.gpus.len());
    let gpus_missing = most.into_iter().flatten().any(|most| most > listed);
    let mut work = GpuWork { gpus_missing, ..GpuWork::default() };
    for view in &snapshot.gpus {
        let minor =
            snapshot.info(&m::gpu_info, &view.gpu, "minor_number").and_then(|minor| minor.parse().ok());
        work.gpus.push((view.gpu.clone(), minor));
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
        work.instances.entry((Arc::clone(&mig.uuid), mig.gpu_instance)).or_default().profile =
            Arc::clone(&mig.profile);
    }
    for (instance, id) in of_instances(snapshot.series(&m::gpu_mig_profile_id)) {
        place_of(&mut work, instance).profile_id = Some(id);
    }
    for (instance, start) in of_instances(snapshot.series(&m::gpu_mig_placement_start)) {
        place_of(&mut work, instance).start = Some(start);
    }
    for (instance, slices) in of_instances(snapshot.series(&m::gpu_mig_placement_slices)) {
        place_of(&mut work, instance).slices = Some(slices);
    }
    work
}

fn place_of<'a>(work: &'a mut GpuWork, instance: &GpuInstance) -> &'a mut MigPlace {
    let place = work.instances.entry((Arc::clone(&instance.uuid), instance.gpu_instance)).or_default();
    place.profile = Arc::clone(&instance.profile);
    place
}

/// Returns the values of GPU instances as whole numbers.
fn of_instances(series: &[Series]) -> impl Iterator<Item = (&GpuInstance, u32)> {
    series.iter().filter_map(|series| match (&series.subject.subject, &series.value) {
        (Subject::GpuInstance(instance), Value::Number(value)) => Some((instance, *value as u32)),
        _ => None,
    })
}

/// Returns every MIG device with its UUID.
fn mig_devices(snapshot: &Snapshot) -> impl Iterator<Item = (&ComputeInstance, &str)> {
    snapshot.series(&m::gpu_mig_info).iter().filter_map(|series| {
        let Subject::ComputeInstance(mig) = &series.subject.subject else { return None };
        let at = MigInfo::DEFS.iter().position(|def| def.name == "mig_uuid")?;
        Some((mig, series.labels.get(at)?.text(&MigInfo::DEFS[at])))
    })
}

/// Returns the PCI addresses of the GPUs that the driver lists.
pub(crate) fn gpu_addresses(snapshot: &Arc<Snapshot>) -> BTreeSet<String> {
    let addresses =
        snapshot.gpus.iter().filter_map(|view| snapshot.info(&m::gpu_info, &view.gpu, "pci_address"));
    addresses.filter_map(pci_address).collect()
}

/// Returns whether a GPU belongs to an NVLink fabric or is joining one.
pub(crate) fn has_fabric(snapshot: &Arc<Snapshot>) -> bool {
    let not_supported = schema::Label::text(&FabricState::NotSupported);
    let series = snapshot.series(&m::gpu_fabric_state).iter();
    let mut states = series.filter(|series| matches!(series.value, Value::Number(value) if value == 1.0));
    states.any(|series| series.labels.first() != Some(&not_supported))
}

/// Returns the host topology; `None` until it is discovered.
pub(crate) fn topology(snapshot: &Arc<Snapshot>) -> Option<Arc<Topology>> {
    snapshot.topology.as_ref().map(|update| Arc::clone(&update.topology))
}

/// Returns the published owners, and whether they have running processes.
pub(crate) fn owners(snapshot: &Arc<Snapshot>) -> Vec<(Arc<Owner>, bool)> {
    snapshot.owners.iter().map(|view| (Arc::clone(&view.owner), !view.processes.is_empty())).collect()
}

/// Returns the owners with processes on GPUs, for the join with NCCL's ranks.
pub(crate) fn rank_places(snapshot: &Arc<Snapshot>) -> Vec<RankPlace> {
    let with_work = snapshot.owners.iter().filter(|view| !view.processes.is_empty());
    let place = |view: &OwnerView| RankPlace {
        owner: Arc::clone(&view.owner.id),
        gpu: view.gpu.clone(),
        gpu_instance: view.gpu_instance,
        pids: view.processes.clone(),
        worked: view.worked,
        waits_since: view.waits_since,
    };
    with_work.map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_out_is_found_by_every_plugins_name() {
        let gpu = |gpu: u32, uuid: &str| Gpu { gpu, uuid: uuid.into() };
        let work = GpuWork {
            gpus: vec![(gpu(0, "GPU-a"), Some(5)), (gpu(1, "GPU-b"), Some(0)), (gpu(2, ""), None)],
            mig_uuids: [(("GPU-b".into(), 7, 0), "MIG-c".to_owned())].into(),
            ..GpuWork::default()
        };
        let found = |id: &str| work.device(id).map(|at| (at.gpu, at.gpu_instance.to_string()));
        for (id, gpu, instance) in [
            ("GPU-a", 0, ""),
            ("gpu-5", 0, ""),
            ("nvidia5/vgpu2", 0, ""),
            ("GPU-B", 1, ""),
            ("1", 1, ""),
            ("nvidia0", 1, ""),
            ("nvidia0/gi7", 1, "7"),
            ("nvidia0/gi7/vgpu1", 1, "7"),
            ("MIG-c", 1, "7"),
            ("MIG-GPU-b/7/0", 1, "7"),
        ] {
            assert_eq!(found(id), Some((gpu, instance.to_owned())), "{id}");
        }
        assert_eq!(work.plugin_names(&(work.gpus[1].0.clone(), None)), ["GPU-b", "1", "nvidia0"]);
        let foreign =
            ["GPU-", "MIG-", "MIG-GPU-b/7/1", "MIG-GPU-a/7/0", "nvidia0/gi8", "gpu-0-mig-19-0-1", "1:0", "9"];
        for id in foreign {
            assert_eq!(found(id), None, "{id}");
        }
    }

    #[test]
    fn devices_of_dynamic_claims_are_found_by_minor_number_profile_and_placement() {
        use ClaimUnresolved::{NoDevice, NoPlacement, Passthrough};
        let gpu = |gpu: u32, uuid: &str| Gpu { gpu, uuid: uuid.into() };
        let place = |profile_id, start, slices| MigPlace { profile: "p".into(), profile_id, start, slices };
        let known = |id, start, slices| place(Some(id), Some(start), Some(slices));
        let work = GpuWork {
            gpus: vec![
                (gpu(0, "GPU-a"), Some(1)),
                (gpu(1, "GPU-b"), Some(0)),
                (gpu(2, "GPU-c"), Some(5)),
                (gpu(3, "GPU-d"), None),
            ],
            instances: [
                (("GPU-b".into(), 7), known(19, 0, 1)),
                (("GPU-b".into(), 8), known(19, 6, 1)),
                (("GPU-b".into(), 9), known(20, 6, 1)),
                (("GPU-c".into(), 1), place(None, None, None)),
            ]
            .into(),
            ..GpuWork::default()
        };
        let found = |name: &str| {
            let device = attribution::devices::dynamic_device(name).unwrap();
            work.dynamic(device).map(|at| (at.gpu, at.gpu_instance.to_string()))
        };
        for (name, gpu, instance) in [
            ("gpu-1", 0, ""),
            ("gpu-0", 1, ""),
            ("gpu-0-mig-1g18gb-19-6", 1, "8"),
            ("gpu-0-mig-1g18gb-me-20-6", 1, "9"),
            ("gpu-0-mig-19-0-1", 1, "7"),
        ] {
            assert_eq!(found(name), Ok((gpu, instance.to_owned())), "{name}");
        }
        for (name, why) in [
            // NVML's index of the last GPU, whose minor number is not known.
            ("gpu-3", NoDevice),
            ("gpu-1-mig-1g18gb-19-6", NoDevice),
            ("gpu-0-mig-1g18gb-19-4", NoDevice),
            ("gpu-0-mig-19-0-2", NoDevice),
            ("gpu-5-mig-1g18gb-19-6", NoPlacement),
            ("gpu-vfio-0", Passthrough),
        ] {
            assert_eq!(found(name), Err(why), "{name}");
        }
    }
}

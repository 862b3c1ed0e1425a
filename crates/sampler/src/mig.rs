//! MIG: the mode of a GPU, its instances and its free capacity.

mod capacity;
mod scan;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::MigMode;

use self::capacity::Capacity;
use self::scan::{LayoutKey, MigHandle, Scan, noting, profiles, scan};
use super::gpu::processes::{list_processes, plain};
use super::raw::mig::ProfileInfo;
use super::raw::processes;
use super::visit::{NvmlNumber, ONE, Scale, Visit};
use model::catalog::{self as m, ComputeInstance, DriverError, Gpu, GpuInstance, MetricId, MigInfo};
use model::owners::GpuProcess;
use model::sample::Missing;

const MODE: &str = "nvmlDeviceGetMigMode";

/// Metrics that require a scan of the instances.
const METRICS: [MetricId; 18] = [
    m::gpu_mig_info.id(),
    m::gpu_mig_memory_total_bytes.id(),
    m::gpu_mig_memory_used_bytes.id(),
    m::gpu_mig_memory_free_bytes.id(),
    m::gpu_mig_memory_reserved_bytes.id(),
    m::gpu_mig_placement_start.id(),
    m::gpu_mig_placement_slices.id(),
    m::gpu_mig_profile_id.id(),
    m::gpu_mig_multiprocessors.id(),
    m::gpu_mig_compute_sm_share_ratio.id(),
    m::gpu_mig_compute_processes.id(),
    m::gpu_mig_slices_used.id(),
    m::gpu_mig_slices_unplaceable.id(),
    m::gpu_mig_layout_matches.id(),
    m::gpu_mig_gpm_active_ratio.id(),
    m::gpu_mig_gpm_active_seconds_total.id(),
    m::gpu_mig_gpm_pcie_bytes_total.id(),
    m::gpu_mig_gpm_nvlink_bytes_total.id(),
];

/// Metrics that require the driver's own list of GPU instances.
const PLACED: [MetricId; 3] =
    [m::gpu_mig_placement_start.id(), m::gpu_mig_placement_slices.id(), m::gpu_mig_profile_id.id()];

/// Metrics that require only the profiles of the GPU.
const PROFILES: [MetricId; 3] =
    [m::gpu_mig_profile_free.id(), m::gpu_mig_profile_capacity.id(), m::gpu_mig_slices.id()];

/// Maximum number of attempts in one visit. An instance that disappears in the middle of a visit invalidates
/// the rest of it, so the visit starts again.
const TRIES: u32 = 3;

struct InstanceState {
    id: u32,
    profile: String,
    /// First memory slice and number of memory slices, and the id of the profile. Both are `None` if the driver
    /// does not list the instance.
    placement: Option<(u32, u32)>,
    profile_id: Option<u32>,
    /// Number of compute slices, if the profile is known.
    slices: Option<u32>,
    multiprocessors: Option<u32>,
}

/// A MIG device, which is a compute instance within a GPU instance.
struct MigDevice {
    handle: MigHandle,
    info: MigInfo,
    multiprocessors: Option<u32>,
}

/// Instances found by the last scan, with their handles.
struct MigLayout {
    key: LayoutKey,
    /// Whether all GPU instances are known with placement and size, including those without compute instances.
    complete: bool,
    instances: Vec<InstanceState>,
    devices: Vec<MigDevice>,
}

/// Reads MIG mode and layout of a GPU for the life of one handle.
#[derive(Default)]
pub(crate) struct MigReader {
    enabled: bool,
    profiles: Vec<ProfileInfo>,
    capacity: Capacity,
    /// `None` before the first scan.
    layout: Option<MigLayout>,
    /// Whether to read the instances again although the layout is the same.
    again: bool,
}

impl MigReader {
    /// Makes the next visit read the instances again, because other metrics are published than before.
    pub fn read_again(&mut self) {
        self.again = true;
    }

    /// Reads the mode into the rows. On a node of eight GPUs this takes 0.5 ms, so it belongs to the slow tier.
    /// Returns whether the mode has changed.
    pub fn refresh_mode(&mut self, v: &mut Visit<'_>) -> bool {
        let Some(mode) = self.read_mode(v) else { return false };
        // The ledger compares the mode with the declared layout, so it is sent even if it is not published.
        v.rows.entity(v.gpu).flag(&m::gpu_mig_mode_enabled, (), mode.current == 1);
        v.add(MODE, &m::gpu_mig_mode_pending_enabled, (), mode.pending, ONE);
        self.switched(v, &mode)
    }

    /// Reads the mode after an event, and returns whether it has changed. Only the slow tier publishes the
    /// series of the mode.
    pub fn mode_switched(&mut self, v: &mut Visit<'_>) -> bool {
        self.read_mode(v).is_some_and(|mode| self.switched(v, &mode))
    }

    /// Reads the layout and the cheap values of every instance if the GPU is in MIG mode. Returns whether the
    /// layout has changed, which voids every value that was read under the old layout. If the layout cannot be
    /// read, the old one stays.
    pub fn read(&mut self, v: &mut Visit<'_>) -> bool {
        if !self.enabled || !v.wants(&METRICS) && !v.wants(&PROFILES) {
            return self.layout.take().is_some();
        }
        let (rows, gaps) = (v.rows.clone(), v.gaps.len());
        let mut changed = false;
        for left in (0..TRIES).rev() {
            let (mut unsettled, mut vanished) = (false, false);
            changed |= self.refresh(v, &mut unsettled);
            if !unsettled {
                self.read_instances(v, &mut vanished);
            }
            if !unsettled && !vanished || v.ended.is_some() {
                break;
            }
            if left > 0 {
                v.rows = rows.clone();
                v.gaps.truncate(gaps);
            } else if unsettled {
                // The last layout is gone, and the current one is unknown.
                changed |= self.layout.take().is_some();
                if v.gaps.len() == gaps {
                    let text = "instances are being created or destroyed".to_owned();
                    let missing = Missing::Failed { error: DriverError::Busy, text };
                    v.gap("nvmlDeviceGetMigDeviceHandleByIndex".into(), &METRICS, missing);
                }
            }
        }
        changed
    }

    /// Drops a list of processes that lacks their instances. In MIG mode such a list is useless, and the lists
    /// of [`MigReader::read_slow`] are used instead.
    pub fn place_processes(&self, v: &mut Visit<'_>) {
        let homeless = v.processes.iter().flatten().any(|process| process.instance.is_none());
        if self.enabled && homeless {
            v.processes = None;
            v.state.compute = None;
        }
    }

    /// Reads the expensive values, which are the processes and the free capacity.
    pub fn read_slow(&mut self, v: &mut Visit<'_>) {
        // The first scan counts as a change of the layout, so this tier is visited again with the instances.
        let Some(layout) = self.layout.as_ref().filter(|_| self.enabled) else { return };
        const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
        let count = &m::gpu_mig_compute_processes;
        for mig in &layout.devices {
            let call = (PROCESSES, [mig.handle.gpu_instance, mig.handle.compute_instance]);
            // An instance that has disappeared since the last scan has no processes. The next scan detects the
            // change.
            let list = v.read(call, &[count.id()], |_| match processes::compute(&mig.handle.device) {
                Err(NvmlError::InvalidArg | NvmlError::NotFound) => Ok(None),
                other => other.map(Some),
            });
            if let Some(Some(mut list)) = list {
                v.retain_foreign(&mut list);
                let compute = layout.compute_instance(v.gpu, mig);
                v.add_for(&compute, call, count, (), list.len(), ONE);
                let instance = Some((mig.handle.gpu_instance, mig.handle.compute_instance));
                let list = list.iter().map(|process| GpuProcess { instance, ..plain(process) });
                list_processes(v, list);
            }
        }
        let instances = layout.complete.then_some(layout.instances.as_slice());
        self.capacity.read(v, &self.profiles, instances);
    }

    /// Returns the GPU instances of the layout.
    pub fn gpu_instances(&self, gpu: &Gpu) -> Vec<GpuInstance> {
        let instances = self.layout.iter().flat_map(|layout| &layout.instances);
        instances.map(|instance| instance.entity(gpu)).collect()
    }

    fn read_mode(&self, v: &mut Visit<'_>) -> Option<MigMode> {
        let feeds = [m::gpu_mig_mode_enabled.id(), m::gpu_mig_mode_pending_enabled.id()];
        let feeds: Vec<MetricId> = feeds.into_iter().chain(PROFILES).chain(METRICS).collect();
        v.read(MODE, &feeds, |d| d.mig_mode())
    }

    /// Records a mode that was read, and returns whether it has changed.
    fn switched(&mut self, v: &mut Visit<'_>, mode: &MigMode) -> bool {
        let enabled = mode.current == 1;
        v.state.mig_enabled = enabled;
        if !enabled {
            // The profiles may be different when MIG mode is enabled again.
            *self = MigReader { enabled: self.enabled, ..MigReader::default() };
        }
        std::mem::replace(&mut self.enabled, enabled) != enabled
    }

    /// Scans the GPU, and returns whether the mode or the layout has changed. Sets `unsettled` if the layout is
    /// changing at this moment.
    fn refresh(&mut self, v: &mut Visit<'_>, unsettled: &mut bool) -> bool {
        if self.profiles.is_empty() {
            self.profiles = profiles(v, &PROFILES).unwrap_or_default();
        }
        let Some(found) = scan(v, &self.profiles, unsettled) else {
            if *unsettled {
                return false;
            }
            // The mode may have been switched off.
            return self.mode_switched(v);
        };
        let is_same = self.layout.as_ref().is_some_and(|layout| layout.key == found.key());
        if is_same && !self.again {
            return false;
        }
        // A scan takes many calls. Only a layout that a second scan confirms is not a mixture of two.
        let Some(again) = scan(v, &self.profiles, unsettled) else { return false };
        *unsettled |= again.key() != found.key();
        if *unsettled {
            return false;
        }
        match MigLayout::new(v, found, &self.profiles, unsettled) {
            Some(layout) => {
                self.layout = Some(layout);
                self.again = false;
                !is_same
            }
            None => false,
        }
    }

    /// Reads the cheap values of every instance.
    fn read_instances(&self, v: &mut Visit<'_>, vanished: &mut bool) {
        let Some(layout) = &self.layout else { return };
        for mig in &layout.devices {
            let compute = layout.compute_instance(v.gpu, mig);
            // The ledger compares these labels with the declared layout, so they are sent even if they are not
            // published.
            if v.wants(&[m::gpu_mig_info.id(), m::gpu_mig_layout_matches.id()]) {
                v.rows.entity(&compute).info(&m::gpu_mig_info, mig.info.clone());
            }
            let whole =
                layout.instance(mig.handle.gpu_instance).and_then(|i| i.multiprocessors).filter(|n| *n > 0);
            if let (Some(own), Some(whole)) = (mig.multiprocessors, whole) {
                let share = Scale { times: 1.0, over: f64::from(whole) };
                let metric = &m::gpu_mig_compute_sm_share_ratio;
                v.add_for(&compute, ATTRIBUTES, metric, (), own, share);
            }
        }
        for instance in &layout.instances {
            let entity = instance.entity(v.gpu);
            const INFO: &str = "nvmlGpuInstanceGetInfo";
            if let Some((start, slices)) = instance.placement {
                v.add_for(&entity, INFO, &m::gpu_mig_placement_start, (), start, ONE);
                v.add_for(&entity, INFO, &m::gpu_mig_placement_slices, (), slices, ONE);
            }
            if let Some(id) = instance.profile_id {
                v.add_for(&entity, INFO, &m::gpu_mig_profile_id, (), id, ONE);
            }
            if let Some(count) = instance.multiprocessors {
                v.add_for(&entity, ATTRIBUTES, &m::gpu_mig_multiprocessors, (), count, ONE);
            }
            // Memory belongs to the GPU instance. Its compute instances share it and report the same values. A
            // GPU instance without compute instances has no handle to read from.
            let Some(mig) = layout.devices.iter().find(|mig| mig.handle.gpu_instance == instance.id) else {
                continue;
            };
            let call = ("nvmlDeviceGetMemoryInfo_v2", instance.id);
            let metrics = [
                &m::gpu_mig_memory_total_bytes,
                &m::gpu_mig_memory_used_bytes,
                &m::gpu_mig_memory_free_bytes,
                &m::gpu_mig_memory_reserved_bytes,
            ];
            v.values(&entity, call, metrics, ONE, |_| {
                let memory = noting(vanished, mig.handle.device.memory_info())?;
                Ok([memory.total, memory.used, memory.free, memory.reserved].map(u64::number))
            });
        }
    }
}

const ATTRIBUTES: &str = "nvmlDeviceGetAttributes_v2";

impl MigLayout {
    /// Reads the identity of the new devices. Returns `None` if a call failed.
    fn new(
        v: &mut Visit<'_>,
        scan: Scan,
        profiles: &[ProfileInfo],
        vanished: &mut bool,
    ) -> Option<MigLayout> {
        let mut instances: Vec<InstanceState> = Vec::new();
        for placed in scan.placed.iter().flatten() {
            let profile = profiles.iter().find(|p| p.id == placed.profile);
            instances.push(InstanceState {
                id: placed.id,
                profile: profile.map_or_else(String::new, |p| p.name.clone()),
                placement: Some(placed.placement),
                profile_id: Some(placed.profile),
                slices: profile.map(|p| p.slices),
                multiprocessors: profile.map(|p| p.multiprocessors),
            });
        }
        let (key, listed) = (scan.key(), scan.placed.is_some());
        let mut devices = Vec::new();
        for mig in scan.devices {
            let (gi, ci) = (mig.gpu_instance, mig.compute_instance);
            let name =
                v.read(("nvmlDeviceGetName", [gi, ci]), &METRICS, |_| noting(vanished, mig.device.name()))?;
            let feeds = [m::gpu_mig_multiprocessors.id(), m::gpu_mig_compute_sm_share_ratio.id()];
            let attributes = answered(v, |v| {
                v.read((ATTRIBUTES, [gi, ci]), &feeds, |_| noting(vanished, mig.device.attributes()))
            })?;
            if instances.iter().all(|known| known.id != gi) {
                // The GPU instance is known only through its compute instance.
                let own = gpu_instance_profile(&name);
                let known = profiles.iter().find(|p| p.name == own);
                let undivided = attributes
                    .as_ref()
                    .filter(|a| a.gpu_instance_slice_count == a.compute_instance_slice_count);
                instances.push(InstanceState {
                    id: gi,
                    profile: own.to_owned(),
                    placement: None,
                    profile_id: None,
                    slices: known
                        .map(|p| p.slices)
                        .or(attributes.as_ref().map(|a| a.gpu_instance_slice_count)),
                    multiprocessors: known
                        .map(|p| p.multiprocessors)
                        .or(undivided.map(|a| a.multiprocessor_count)),
                });
            }
            let info =
                MigInfo { mig_uuid: mig.uuid.clone(), mig_profile: device_profile(&name).to_owned(), name };
            devices.push(MigDevice {
                handle: mig,
                info,
                multiprocessors: attributes.map(|a| a.multiprocessor_count),
            });
        }
        let known = |i: &InstanceState| i.slices.is_some() && i.placement.is_some();
        let complete = listed && instances.iter().all(known);
        Some(MigLayout { key, complete, instances, devices })
    }

    fn instance(&self, id: u32) -> Option<&InstanceState> {
        self.instances.iter().find(|instance| instance.id == id)
    }

    fn compute_instance(&self, gpu: &Gpu, mig: &MigDevice) -> ComputeInstance {
        let profile = self.instance(mig.handle.gpu_instance).map_or("", |instance| instance.profile.as_str());
        ComputeInstance {
            gpu: gpu.gpu,
            uuid: gpu.uuid.clone(),
            gpu_instance: mig.handle.gpu_instance,
            profile: profile.into(),
            compute_instance: mig.handle.compute_instance,
        }
    }
}

impl InstanceState {
    fn entity(&self, gpu: &Gpu) -> GpuInstance {
        GpuInstance {
            gpu: gpu.gpu,
            uuid: gpu.uuid.clone(),
            gpu_instance: self.id,
            profile: self.profile.as_str().into(),
        }
    }
}

/// Returns the answer of a call that the GPU may not support: `None` if the call failed, and `Some(None)` if
/// the GPU does not support it or its metrics are off.
fn answered<T>(v: &mut Visit<'_>, read: impl FnOnce(&mut Visit<'_>) -> Option<T>) -> Option<Option<T>> {
    let before = v.gaps.len();
    let answer = read(v);
    let failed = v.gaps.iter().skip(before).any(|gap| gap.missing != Missing::Unsupported);
    match answer {
        None if failed || v.ended.is_some() => None,
        answer => Some(answer),
    }
}

/// Returns the profile from NVML's name of a MIG device, for example `1c.3g.71gb` from `NVIDIA H200 MIG
/// 1c.3g.71gb`.
fn device_profile(name: &str) -> &str {
    name.rsplit(' ').next().unwrap_or(name)
}

/// Returns the profile of the GPU instance of a MIG device, for example `3g.71gb`.
fn gpu_instance_profile(name: &str) -> &str {
    let profile = device_profile(name);
    match profile.split_once("c.") {
        Some((compute, rest)) if compute.bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => profile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_that_of_the_gpu_instance() {
        assert_eq!(gpu_instance_profile("NVIDIA H200 MIG 3g.71gb"), "3g.71gb");
        assert_eq!(gpu_instance_profile("NVIDIA H200 MIG 1c.3g.71gb"), "3g.71gb");
        assert_eq!(gpu_instance_profile("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me"), "1g.5gb+me");
        assert_eq!(device_profile("NVIDIA H200 MIG 1c.3g.71gb"), "1c.3g.71gb");
    }
}

//! MIG: the mode of a GPU, the instances it is divided into, and what still fits.

mod capacity;
mod look;
mod packing;
mod privilege;
mod profiles;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::MigMode;

use self::capacity::Capacity;
use self::look::{Look, MigHandle, Shape, look, noting};
use self::privilege::Told;
use super::gpu::processes::{list_processes, plain};
use super::raw::mig::{Placement, ProfileInfo};
use super::visit::{Scale, Visit};
use model::catalog::{self as m, ComputeInstance, DriverError, Gpu, GpuInstance, MetricId, MigInfo};
use model::owners::GpuProcess;
use model::sample::{ErrorKind, Missing};

const MODE: &str = "nvmlDeviceGetMigMode";

/// Metrics for which the instances are looked for.
const METRICS: [MetricId; 16] = [
    m::gpu_mig_info.id(),
    m::gpu_mig_memory_total_bytes.id(),
    m::gpu_mig_memory_used_bytes.id(),
    m::gpu_mig_memory_free_bytes.id(),
    m::gpu_mig_placement_start.id(),
    m::gpu_mig_placement_slices.id(),
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

/// Those that need the driver's own list of GPU instances.
const PLACED: [MetricId; 2] = [m::gpu_mig_placement_start.id(), m::gpu_mig_placement_slices.id()];

/// Those that need nothing but the profiles the GPU knows.
const PROFILES: [MetricId; 3] =
    [m::gpu_mig_profile_free.id(), m::gpu_mig_profile_capacity.id(), m::gpu_mig_slices.id()];

/// An instance that goes away in the middle of a visit makes the rest of the visit pointless: it is begun
/// again, so often at most.
const TRIES: u32 = 3;

/// A GPU instance.
#[derive(Debug)]
struct Instance {
    id: u32,
    profile: String,
    /// Where it is, if the driver tells.
    placement: Option<Placement>,
    /// Compute slices, if its profile is known.
    slices: Option<u32>,
    multiprocessors: Option<u32>,
}

/// A MIG device: a compute instance within a GPU instance.
#[derive(Debug)]
struct MigDevice {
    handle: MigHandle,
    info: MigInfo,
    multiprocessors: Option<u32>,
}

/// The instances as last seen, with the handles that go with them.
#[derive(Debug)]
struct Seen {
    shape: Shape,
    /// Whether all GPU instances are known, those without compute instances too, with place and size.
    complete: bool,
    instances: Vec<Instance>,
    devices: Vec<MigDevice>,
}

/// The layout of a GPU, for the life of one handle.
#[derive(Debug, Default)]
pub struct Layout {
    enabled: bool,
    profiles: Vec<ProfileInfo>,
    capacity: Capacity,
    /// `None` until it was looked for.
    seen: Option<Seen>,
    told: Told,
}

impl Layout {
    /// Looks at the mode and adds it to the rows: 0.5 ms on a node of eight, so in the slow tier. Gives
    /// whether it was switched.
    pub fn refresh_mode(&mut self, v: &mut Visit<'_>) -> bool {
        let Some(mode) = self.read_mode(v) else { return false };
        // The ledger compares it with the declared layout, so it is sent also if it is not to be published.
        v.rows.of(v.gpu).flag(&m::gpu_mig_mode_enabled, (), mode.current == 1);
        v.put(MODE, &m::gpu_mig_mode_pending_enabled, (), mode.pending, Scale::ONE);
        self.switched(&mode)
    }

    /// Looks at the mode alone, when it is said to have been switched. Gives whether it was. The mode's own
    /// series are those of the slow tier, and stand nowhere else.
    pub fn mode_switched(&mut self, v: &mut Visit<'_>) -> bool {
        self.read_mode(v).is_some_and(|mode| self.switched(&mode))
    }

    /// Looks at the layout and reads what is cheap of every instance, if the GPU is in MIG mode. Gives whether
    /// the layout changed, in which case every value that was read under the old one is void. While it cannot
    /// be read, the old one is kept.
    pub fn read(&mut self, v: &mut Visit<'_>) -> bool {
        if !self.enabled || !v.wants(&METRICS) && !v.wants(&PROFILES) {
            return self.seen.take().is_some();
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
                // What was seen last is no more, and what there is now is not known.
                changed |= self.seen.take().is_some();
                if v.gaps.len() == gaps {
                    let text = "instances are being made or destroyed".to_owned();
                    let missing = Missing::Failed { error: ErrorKind::new(DriverError::Busy), text };
                    v.gap("nvmlDeviceGetMigDeviceHandleByIndex".into(), &METRICS, missing);
                }
            }
        }
        changed
    }

    /// In MIG mode a list of processes that does not say on which instances they are is no use: then those of
    /// [`Layout::read_slow`] count.
    pub fn place_processes(&self, v: &mut Visit<'_>) {
        let homeless = v.processes.iter().flatten().any(|process| process.instance.is_none());
        if self.enabled && homeless {
            v.processes = None;
            v.found().compute = None;
        }
    }

    /// Reads what is dearer: processes, and what still fits.
    pub fn read_slow(&mut self, v: &mut Visit<'_>) {
        // The first look at a layout counts as a change of it: then this tier comes again, with the instances.
        let Some(seen) = self.seen.as_ref().filter(|_| self.enabled) else { return };
        const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
        let processes = &m::gpu_mig_compute_processes;
        for mig in &seen.devices {
            let call = (PROCESSES, [mig.handle.gpu_instance, mig.handle.compute_instance]);
            // An instance that has gone since the last look has no processes; the next look tells.
            let list =
                v.read(call, &[processes.id()], |_| match mig.handle.device.running_compute_processes() {
                    Err(NvmlError::InvalidArg | NvmlError::NotFound) => Ok(None),
                    other => other.map(Some),
                });
            if let Some(Some(mut list)) = list {
                list.retain(|process| !v.found().is_canary(process.pid));
                let compute = seen.compute_instance(v.gpu, mig);
                v.put_for(&compute, call, processes, (), list.len(), Scale::ONE);
                let instance = Some((mig.handle.gpu_instance, mig.handle.compute_instance));
                let list = list.iter().map(|process| GpuProcess { instance, ..plain(process) });
                list_processes(v, list);
            }
        }
        let instances = seen.complete.then_some(seen.instances.as_slice());
        self.capacity.read(v, &mut self.told, &self.profiles, instances);
    }

    /// The GPU instances of the layout.
    pub fn gpu_instances(&self, gpu: &Gpu) -> Vec<GpuInstance> {
        let instances = self.seen.iter().flat_map(|seen| &seen.instances);
        instances.map(|instance| instance.entity(gpu)).collect()
    }

    fn read_mode(&self, v: &mut Visit<'_>) -> Option<MigMode> {
        let feeds = [m::gpu_mig_mode_enabled.id(), m::gpu_mig_mode_pending_enabled.id()];
        let feeds: Vec<MetricId> = feeds.into_iter().chain(PROFILES).chain(METRICS).collect();
        v.read(MODE, &feeds, |d| d.mig_mode())
    }

    /// Takes a mode in; while it cannot be read, the old one is kept.
    fn switched(&mut self, mode: &MigMode) -> bool {
        let enabled = mode.current == 1;
        if !enabled {
            // What the GPU knows of profiles may be another the next time.
            *self =
                Layout { enabled: self.enabled, told: std::mem::take(&mut self.told), ..Layout::default() };
        }
        std::mem::replace(&mut self.enabled, enabled) != enabled
    }

    /// Takes a look; gives whether mode or layout is another. `unsettled` is set if it changes right now.
    fn refresh(&mut self, v: &mut Visit<'_>, unsettled: &mut bool) -> bool {
        if self.profiles.is_empty() {
            self.profiles = profiles::read(v, &PROFILES).unwrap_or_default();
        }
        let Some(found) = look(v, &self.profiles, &mut self.told, unsettled) else {
            if *unsettled {
                return false;
            }
            // Perhaps the mode was switched off.
            return self.mode_switched(v);
        };
        if self.seen.as_ref().is_some_and(|seen| seen.shape == found.shape()) {
            return false;
        }
        // A look takes many calls. Only one that comes out the same again is no mixture of two layouts.
        let Some(again) = look(v, &self.profiles, &mut self.told, unsettled) else { return false };
        *unsettled |= again.shape() != found.shape();
        if *unsettled {
            return false;
        }
        match Seen::new(v, found, &self.profiles, unsettled) {
            Some(seen) => {
                self.seen = Some(seen);
                true
            }
            None => false,
        }
    }

    /// Reads what is cheap of every instance.
    fn read_instances(&self, v: &mut Visit<'_>, vanished: &mut bool) {
        let Some(seen) = &self.seen else { return };
        for mig in &seen.devices {
            let compute = seen.compute_instance(v.gpu, mig);
            // As the mode: the ledger compares it.
            if v.wants(&[m::gpu_mig_info.id(), m::gpu_mig_layout_matches.id()]) {
                v.rows.of(&compute).info(&m::gpu_mig_info, mig.info.clone());
            }
            let whole =
                seen.instance(mig.handle.gpu_instance).and_then(|i| i.multiprocessors).filter(|n| *n > 0);
            if let (Some(own), Some(whole)) = (mig.multiprocessors, whole) {
                let share = Scale { times: 1.0, over: f64::from(whole) };
                let metric = &m::gpu_mig_compute_sm_share_ratio;
                v.put_for(&compute, ATTRIBUTES, metric, (), own, share);
            }
        }
        for instance in &seen.instances {
            let entity = instance.entity(v.gpu);
            const INFO: &str = "nvmlGpuInstanceGetInfo";
            if let Some(placement) = instance.placement {
                v.put_for(&entity, INFO, &m::gpu_mig_placement_start, (), placement.start, Scale::ONE);
                v.put_for(&entity, INFO, &m::gpu_mig_placement_slices, (), placement.size, Scale::ONE);
            }
            if let Some(count) = instance.multiprocessors {
                v.put_for(&entity, ATTRIBUTES, &m::gpu_mig_multiprocessors, (), count, Scale::ONE);
            }
            // Memory belongs to the GPU instance: its compute instances share it, and say the same. Without
            // any there is nobody to ask.
            let Some(mig) = seen.devices.iter().find(|mig| mig.handle.gpu_instance == instance.id) else {
                continue;
            };
            let call = ("nvmlDeviceGetMemoryInfo_v2", instance.id);
            let feeds = [
                m::gpu_mig_memory_total_bytes.id(),
                m::gpu_mig_memory_used_bytes.id(),
                m::gpu_mig_memory_free_bytes.id(),
            ];
            if let Some(memory) = v.read(call, &feeds, |_| noting(vanished, mig.handle.device.memory_info()))
            {
                v.put_for(&entity, call, &m::gpu_mig_memory_total_bytes, (), memory.total, Scale::ONE);
                v.put_for(&entity, call, &m::gpu_mig_memory_used_bytes, (), memory.used, Scale::ONE);
                v.put_for(&entity, call, &m::gpu_mig_memory_free_bytes, (), memory.free, Scale::ONE);
            }
        }
    }
}

const ATTRIBUTES: &str = "nvmlDeviceGetAttributes_v2";

impl Seen {
    /// Asks the new devices who they are; `None` if a call failed.
    fn new(v: &mut Visit<'_>, look: Look, profiles: &[ProfileInfo], vanished: &mut bool) -> Option<Seen> {
        let profile = |id: u32| profiles.iter().find(|p| p.id == id);
        let mut instances: Vec<Instance> = Vec::new();
        for placed in look.placed.iter().flatten() {
            instances.push(Instance {
                id: placed.id,
                profile: profile(placed.profile).map_or_else(String::new, |p| p.name.clone()),
                placement: Some(placed.placement),
                slices: profile(placed.profile).map(|p| p.slices),
                multiprocessors: profile(placed.profile).map(|p| p.multiprocessors),
            });
        }
        let (shape, listed) = (look.shape(), look.placed.is_some());
        let mut devices = Vec::new();
        for mig in look.devices {
            let (gi, ci) = (mig.gpu_instance, mig.compute_instance);
            let name =
                v.read(("nvmlDeviceGetName", [gi, ci]), &METRICS, |_| noting(vanished, mig.device.name()))?;
            let feeds = [m::gpu_mig_multiprocessors.id(), m::gpu_mig_compute_sm_share_ratio.id()];
            let attributes = answered(v, |v| {
                v.read((ATTRIBUTES, [gi, ci]), &feeds, |_| noting(vanished, mig.device.attributes()))
            })?;
            if instances.iter().all(|known| known.id != gi) {
                // All that is known of it is what its compute instance tells.
                let own = gpu_instance_profile(&name);
                let known = profiles.iter().find(|p| p.name == own);
                let undivided = attributes
                    .as_ref()
                    .filter(|a| a.gpu_instance_slice_count == a.compute_instance_slice_count);
                instances.push(Instance {
                    id: gi,
                    profile: own.to_owned(),
                    placement: None,
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
        let told = |i: &Instance| i.slices.is_some() && i.placement.is_some();
        let complete = listed && instances.iter().all(told);
        Some(Seen { shape, complete, instances, devices })
    }

    fn instance(&self, id: u32) -> Option<&Instance> {
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

impl Instance {
    fn entity(&self, gpu: &Gpu) -> GpuInstance {
        GpuInstance {
            gpu: gpu.gpu,
            uuid: gpu.uuid.clone(),
            gpu_instance: self.id,
            profile: self.profile.as_str().into(),
        }
    }
}

/// What a call that the GPU may not know has given: `None` if it failed, `Some(None)` if the GPU does not know
/// it or nobody wants it.
fn answered<T>(v: &mut Visit<'_>, read: impl FnOnce(&mut Visit<'_>) -> Option<T>) -> Option<Option<T>> {
    let before = v.gaps.len();
    let answer = read(v);
    let failed = v.gaps.iter().skip(before).any(|gap| gap.missing != Missing::Unsupported);
    match answer {
        None if failed || v.ended.is_some() => None,
        answer => Some(answer),
    }
}

/// Profile of a MIG device from NVML's name of it: `NVIDIA H200 MIG 1c.3g.71gb` gives `1c.3g.71gb`.
fn device_profile(name: &str) -> &str {
    name.rsplit(' ').next().unwrap_or(name)
}

/// The same of its GPU instance: `3g.71gb`.
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

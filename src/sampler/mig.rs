//! MIG: the mode of a GPU and the devices it is divided into.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::MigMode;

use super::raw;
use super::visit::{Scale, Visit};
use crate::catalog::{self as m, ComputeInstance, Gpu, GpuInstance, MetricId, MigInfo};

/// One MIG device: a compute instance within a GPU instance.
#[derive(Debug)]
struct MigDevice {
    device: Device<'static>,
    gpu_instance: u32,
    compute_instance: u32,
    profile: String,
    uuid: String,
    name: String,
}

const MODE: &str = "nvmlDeviceGetMigMode";

/// Metrics for which the instances are looked for.
const INSTANCES: [MetricId; 4] = [
    m::gpu_mig_info.id(),
    m::gpu_mig_memory_total_bytes.id(),
    m::gpu_mig_memory_used_bytes.id(),
    m::gpu_mig_memory_free_bytes.id(),
];

/// The layout as last seen, with the handles that go with it.
#[derive(Debug, Default)]
pub struct Layout {
    enabled: bool,
    devices: Vec<MigDevice>,
}

impl Layout {
    /// Looks at the mode and adds it to the rows: 0.5 ms on a node of eight, so in the slow tier. Gives
    /// whether it was switched.
    pub fn refresh_mode(&mut self, v: &mut Visit<'_>) -> bool {
        let Some(mode) = self.read_mode(v) else { return false };
        v.put(MODE, &m::gpu_mig_mode_enabled, (), mode.current, Scale::ONE);
        v.put(MODE, &m::gpu_mig_mode_pending_enabled, (), mode.pending, Scale::ONE);
        self.switched(&mode)
    }

    /// Looks at the layout, if the GPU is in MIG mode. Gives whether it changed, in which case every value
    /// that was read under the old one is void. While it cannot be read, the old one is kept.
    pub fn refresh(&mut self, v: &mut Visit<'_>) -> bool {
        if !self.enabled || !v.wants(&INSTANCES) {
            return !std::mem::take(&mut self.devices).is_empty();
        }
        let Some(found) = handles(v) else {
            // Perhaps the mode was switched off. The mode's own series are those of the slow tier.
            return self.read_mode(v).is_some_and(|mode| self.switched(&mode));
        };
        let same = found.len() == self.devices.len() && found.iter().all(|new| self.has(new));
        if !same {
            self.devices = found.into_iter().map(|new| new.named(v)).collect();
        }
        !same
    }

    fn read_mode(&self, v: &mut Visit<'_>) -> Option<MigMode> {
        let feeds = [m::gpu_mig_mode_enabled.id(), m::gpu_mig_mode_pending_enabled.id()];
        let feeds: Vec<MetricId> = feeds.into_iter().chain(INSTANCES).collect();
        v.read(MODE, &feeds, |d| d.mig_mode())
    }

    /// Takes a mode in; while it cannot be read, the old one is kept.
    fn switched(&mut self, mode: &MigMode) -> bool {
        let enabled = mode.current == 1;
        if !enabled {
            self.devices.clear();
        }
        std::mem::replace(&mut self.enabled, enabled) != enabled
    }

    fn has(&self, new: &MigDevice) -> bool {
        self.devices.iter().any(|known| {
            (known.gpu_instance, known.compute_instance, &known.uuid)
                == (new.gpu_instance, new.compute_instance, &new.uuid)
        })
    }

    /// The GPU instances of the layout.
    pub fn gpu_instances(&self, gpu: &Gpu) -> Vec<GpuInstance> {
        let mut instances: Vec<GpuInstance> = Vec::new();
        for mig in &self.devices {
            if !instances.iter().any(|known| known.gpu_instance == mig.gpu_instance) {
                instances.push(GpuInstance {
                    gpu: gpu.gpu,
                    uuid: gpu.uuid.clone(),
                    gpu_instance: mig.gpu_instance,
                    profile: mig.profile.as_str().into(),
                });
            }
        }
        instances
    }

    /// Reads identity and memory of every instance.
    pub fn read(&self, v: &mut Visit<'_>) {
        let mut measured = Vec::new();
        for mig in &self.devices {
            let instance = GpuInstance {
                gpu: v.gpu.gpu,
                uuid: v.gpu.uuid.clone(),
                gpu_instance: mig.gpu_instance,
                profile: mig.profile.as_str().into(),
            };
            let compute = ComputeInstance {
                gpu: instance.gpu,
                uuid: instance.uuid.clone(),
                gpu_instance: instance.gpu_instance,
                profile: instance.profile.clone(),
                compute_instance: mig.compute_instance,
            };
            let info = MigInfo { mig_uuid: mig.uuid.clone(), name: mig.name.clone() };
            if v.wants(&[m::gpu_mig_info.id()]) {
                v.rows.of(&compute).info(&m::gpu_mig_info, info);
            }
            // Memory belongs to the GPU instance: its compute instances share it, and say the same.
            if measured.contains(&mig.gpu_instance) {
                continue;
            }
            measured.push(mig.gpu_instance);
            const MEMORY: &str = "nvmlDeviceGetMemoryInfo_v2";
            let call = (MEMORY, mig.gpu_instance);
            let feeds = [
                m::gpu_mig_memory_total_bytes.id(),
                m::gpu_mig_memory_used_bytes.id(),
                m::gpu_mig_memory_free_bytes.id(),
            ];
            if let Some(memory) = v.read(call, &feeds, |_| mig.device.memory_info()) {
                v.put_for(&instance, call, &m::gpu_mig_memory_total_bytes, (), memory.total, Scale::ONE);
                v.put_for(&instance, call, &m::gpu_mig_memory_used_bytes, (), memory.used, Scale::ONE);
                v.put_for(&instance, call, &m::gpu_mig_memory_free_bytes, (), memory.free, Scale::ONE);
            }
        }
    }
}

/// Every MIG device of the GPU, not named yet; `None` if a call failed.
fn handles(v: &mut Visit<'_>) -> Option<Vec<MigDevice>> {
    let most = v.read("nvmlDeviceGetMaxMigDeviceCount", &INSTANCES, |d| d.mig_device_count())?;
    let mut found = Vec::new();
    for index in 0..most {
        let handle = ("nvmlDeviceGetMigDeviceHandleByIndex", index);
        // Positions may be empty, also in the middle; that is no failure.
        let device = v.read(handle, &INSTANCES, |d| match d.mig_device_by_index(index) {
            Err(NvmlError::NotFound) => Ok(None),
            other => other.map(Some),
        })?;
        let Some(device) = device else { continue };
        let gi =
            v.read(("nvmlDeviceGetGpuInstanceId", index), &INSTANCES, |_| raw::gpu_instance_id(&device))?;
        let ci = v.read(("nvmlDeviceGetComputeInstanceId", index), &INSTANCES, |_| {
            raw::compute_instance_id(&device)
        })?;
        // Ids are given again; the UUID is not.
        let uuid = v.read(("nvmlDeviceGetUUID", index), &INSTANCES, |_| device.uuid())?;
        found.push(MigDevice {
            device,
            gpu_instance: gi,
            compute_instance: ci,
            profile: String::new(),
            uuid,
            name: String::new(),
        });
    }
    Some(found)
}

impl MigDevice {
    fn named(self, v: &mut Visit<'_>) -> MigDevice {
        let call = ("nvmlDeviceGetName", self.gpu_instance);
        let name = v.read(call, &INSTANCES, |_| self.device.name()).unwrap_or_default();
        MigDevice { profile: gpu_instance_profile(&name), name, ..self }
    }
}

/// Profile of the GPU instance from NVML's device name: `NVIDIA H200 MIG 1c.3g.71gb` gives `3g.71gb`.
fn gpu_instance_profile(name: &str) -> String {
    let profile = name.rsplit(' ').next().unwrap_or(name);
    match profile.split_once("c.") {
        Some((compute, rest)) if compute.bytes().all(|b| b.is_ascii_digit()) => rest.to_owned(),
        _ => profile.to_owned(),
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
    }
}

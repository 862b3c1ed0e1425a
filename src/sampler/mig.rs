//! MIG: the mode of a GPU and the devices it is divided into.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::raw;
use super::visit::{Scale, Visit};
use crate::catalog::{self as m, ComputeInstance, GpuInstance, MigInfo};

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

/// The layout as last seen, with the handles that go with it.
#[derive(Debug, Default)]
pub struct Layout {
    enabled: bool,
    devices: Vec<MigDevice>,
    key: Vec<(u32, u32)>,
}

impl Layout {
    /// Looks at the mode: 0.5 ms on a node of eight, so in the slow tier.
    pub fn refresh_mode(&mut self, v: &mut Visit<'_>) {
        const MODE: &str = "nvmlDeviceGetMigMode";
        let feeds = [
            m::gpu_mig_mode_enabled.id(),
            m::gpu_mig_mode_pending_enabled.id(),
            m::gpu_mig_info.id(),
            m::gpu_mig_memory_total_bytes.id(),
            m::gpu_mig_memory_used_bytes.id(),
            m::gpu_mig_memory_free_bytes.id(),
        ];
        let mode = v.read(MODE, &feeds, |d| d.mig_mode());
        if let Some(mode) = &mode {
            v.put(MODE, &m::gpu_mig_mode_enabled, (), mode.current, Scale::ONE);
            v.put(MODE, &m::gpu_mig_mode_pending_enabled, (), mode.pending, Scale::ONE);
        }
        self.enabled = mode.is_some_and(|mode| mode.current == 1);
    }

    /// Looks at the layout, if the GPU is in MIG mode. Gives whether it changed, in which case every value
    /// that was read under the old one is void.
    pub fn refresh(&mut self, v: &mut Visit<'_>) -> bool {
        let found = if self.enabled { handles(v) } else { Vec::new() };
        let mut key: Vec<_> = found.iter().map(|(_, gi, ci)| (*gi, *ci)).collect();
        key.sort_unstable();
        let changed = key != self.key;
        if changed {
            self.devices = found.into_iter().map(|(d, gi, ci)| describe(v, d, gi, ci)).collect();
            self.key = key;
        }
        changed
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
            v.rows.of(&compute).info(&m::gpu_mig_info, info);
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

/// Every MIG device of the GPU with its instance ids.
fn handles(v: &mut Visit<'_>) -> Vec<(Device<'static>, u32, u32)> {
    let feeds = [m::gpu_mig_info.id()];
    let most = v.read("nvmlDeviceGetMaxMigDeviceCount", &feeds, |d| d.mig_device_count()).unwrap_or(0);
    let mut found = Vec::new();
    for index in 0..most {
        // Positions may be empty, also in the middle; that is no failure.
        let device = v.read(("nvmlDeviceGetMigDeviceHandleByIndex", index), &feeds, |d| {
            match d.mig_device_by_index(index) {
                Err(NvmlError::NotFound) => Ok(None),
                other => other.map(Some),
            }
        });
        let Some(Some(device)) = device else { continue };
        let gi = v.read(("nvmlDeviceGetGpuInstanceId", index), &feeds, |_| raw::gpu_instance_id(&device));
        let ci =
            v.read(("nvmlDeviceGetComputeInstanceId", index), &feeds, |_| raw::compute_instance_id(&device));
        if let (Some(gi), Some(ci)) = (gi, ci) {
            found.push((device, gi, ci));
        }
    }
    found
}

fn describe(v: &mut Visit<'_>, device: Device<'static>, gi: u32, ci: u32) -> MigDevice {
    let feeds = [m::gpu_mig_info.id()];
    let name = v.read(("nvmlDeviceGetName", gi), &feeds, |_| device.name()).unwrap_or_default();
    let uuid = v.read(("nvmlDeviceGetUUID", gi), &feeds, |_| device.uuid()).unwrap_or_default();
    MigDevice {
        gpu_instance: gi,
        compute_instance: ci,
        profile: gpu_instance_profile(&name),
        uuid,
        name,
        device,
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

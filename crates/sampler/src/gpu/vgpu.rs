//! Virtual GPUs on a virtualization host.

use std::collections::HashMap;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::vgpu::VmId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::vgpu::VgpuInstance;

use super::{ONE, PERCENT};
use crate::driver::CallName;
use crate::raw::vgpu::{self as raw, VgpuUtilization};
use crate::visit::Visit;
use model::catalog::{self as m, Engine, MetricId, Vgpu, VgpuInfo};

const METRICS: [MetricId; 4] = [
    m::gpu_vgpu_info.id(),
    m::gpu_vgpu_memory_used_bytes.id(),
    m::gpu_vgpu_utilization_ratio.id(),
    m::gpu_vgpu_licensed.id(),
];
const UTILIZATION: &str = "nvmlDeviceGetVgpuUtilization";
const ENGINES: [Engine; 4] = [Engine::Sm, Engine::Memory, Engine::Encoder, Engine::Decoder];

/// Reads every virtual GPU that is running.
pub(super) fn slow(v: &mut Visit<'_>) {
    let Some(running) = v.read("nvmlDeviceGetActiveVgpus", &METRICS, raw::active) else { return };
    if running.is_empty() {
        return;
    }
    let since = v.state.vgpus_seen;
    let samples =
        v.read(UTILIZATION, &METRICS[2..3], |d| raw::utilization(d, since)).map(newest).unwrap_or_default();
    if let Some(newest) = samples.values().map(|sample| sample.stamp).max() {
        v.state.vgpus_seen = newest;
    }
    for id in running {
        // The virtual GPU may end while it is being read.
        let Some(uuid) = ask(v, "nvmlVgpuInstanceGetUUID", &METRICS, id, |vgpu| vgpu.uuid()) else {
            continue;
        };
        let entity = Vgpu { gpu: v.gpu.gpu, uuid: v.gpu.uuid.clone(), vgpu_uuid: uuid.into() };
        one(v, id, &entity);
        if let Some(sample) = samples.get(&id) {
            for (engine, percent) in ENGINES.into_iter().zip(&sample.percent) {
                let metric = &m::gpu_vgpu_utilization_ratio;
                v.add_for(&entity, UTILIZATION, metric, (engine,), percent.clone(), PERCENT);
            }
        }
    }
}

fn one(v: &mut Visit<'_>, id: u32, entity: &Vgpu) {
    let feeds = &METRICS[..1];
    let failures = v.failures();
    let vgpu_type =
        ask(v, "nvmlVgpuInstanceGetType", feeds, id, |vgpu| vgpu.instance_type()?.name()).unwrap_or_default();
    let vm_id = ask(v, "nvmlVgpuInstanceGetVmID", feeds, id, |vgpu| match vgpu.vm_id()? {
        VmId::Domain(id) | VmId::Uuid(id) => Ok(id),
    });
    let vm_driver = ask(v, "nvmlVgpuInstanceGetVmDriverVersion", feeds, id, |vgpu| vgpu.driver_version());
    // Incomplete labels would identify another virtual GPU.
    if v.wants(feeds) && v.failures() == failures {
        let info = VgpuInfo {
            vgpu_type,
            vm_id: vm_id.unwrap_or_default(),
            guest_driver_version: vm_driver.map(driver_version).unwrap_or_default(),
        };
        v.rows.entity(entity).info(&m::gpu_vgpu_info, info);
    }

    const MEMORY: &str = "nvmlVgpuInstanceGetFbUsage";
    if let Some(used) = ask(v, MEMORY, &METRICS[1..2], id, |vgpu| vgpu.fb_usage()) {
        v.add_for(entity, (MEMORY, id), &m::gpu_vgpu_memory_used_bytes, (), used, ONE);
    }
    const LICENCE: &str = "nvmlVgpuInstanceGetLicenseInfo_v2";
    if let Some(licensed) =
        ask(v, LICENCE, &METRICS[3..], id, |vgpu| vgpu.license_info_v2().map(|info| info.is_licensed))
    {
        v.add_for(entity, (LICENCE, id), &m::gpu_vgpu_licensed, (), licensed, ONE);
    }
}

/// Makes a call about one virtual GPU. It is not a failure if the virtual GPU has ended.
fn ask<T>(
    v: &mut Visit<'_>,
    function: &'static str,
    feeds: &[MetricId],
    id: u32,
    f: impl FnOnce(&VgpuInstance<'_>) -> Result<T, NvmlError>,
) -> Option<T> {
    let asked = |device: &Device<'static>| match f(&VgpuInstance::new(id, device)) {
        Err(NvmlError::NotFound) => Ok(None),
        other => other.map(Some),
    };
    v.read(CallName::from((function, id)), feeds, asked).flatten()
}

/// Returns the version of the guest driver, or an empty text for NVML's "Not Available", which means that no
/// driver is loaded in the virtual machine.
fn driver_version(version: String) -> String {
    if version == "Not Available" { String::new() } else { version }
}

/// Returns the newest sample of every virtual GPU.
fn newest(mut samples: Vec<VgpuUtilization>) -> HashMap<u32, VgpuUtilization> {
    samples.sort_by_key(|sample| sample.stamp);
    samples.into_iter().map(|sample| (sample.vgpu, sample)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvml_wrapper::enums::device::SampleValue;

    #[test]
    fn the_newest_sample_of_each_virtual_gpu_counts() {
        let sample = |vgpu, stamp, sm| VgpuUtilization {
            vgpu,
            stamp,
            percent: [(); 4].map(|()| SampleValue::U32(sm)),
        };
        let kept = newest(vec![sample(1, 10, 50), sample(2, 11, 20), sample(1, 12, 60), sample(1, 9, 1)]);
        assert_eq!(kept, [(1, sample(1, 12, 60)), (2, sample(2, 11, 20))].into());
    }

    #[test]
    fn no_driver_in_the_virtual_machine_is_an_empty_version() {
        assert_eq!(driver_version("Not Available".into()), "");
        assert_eq!(driver_version("580.95".into()), "580.95");
    }
}

//! One scan of how a GPU is divided: MIG devices (compute instances) by their handles, GPU instances by their profiles,
//! which shows those without compute instances too.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::{METRICS, PLACED, answered};
use crate::raw;
use crate::raw::mig::{Placed, ProfileInfo, profile_info};
use crate::visit::Visit;
use model::catalog::MetricId;

/// A MIG device: a compute instance within a GPU instance.
pub(crate) struct MigHandle {
    pub device: Device<'static>,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// Ids are given again, a UUID is not.
    pub uuid: String,
}

/// The result of one scan.
pub(crate) struct Scan {
    /// Every MIG device, in the driver's order.
    pub devices: Vec<MigHandle>,
    /// Every GPU instance, by id; `None` where the driver does not list them for this process.
    pub placed: Option<Vec<Placed>>,
}

/// The identity of a layout: ids and UUIDs of the MIG devices, and the GPU instances.
pub(crate) type LayoutKey = (Vec<(u32, u32, String)>, Option<Vec<Placed>>);

impl Scan {
    pub fn key(&self) -> LayoutKey {
        let ids = |d: &MigHandle| (d.gpu_instance, d.compute_instance, d.uuid.clone());
        let mut devices: Vec<_> = self.devices.iter().map(ids).collect();
        devices.sort_unstable();
        (devices, self.placed.clone())
    }
}

/// Scans the GPU; `None` if a call failed. `vanished` is set if an instance went away meanwhile: then another scan is
/// worth the time.
pub fn scan(v: &mut Visit<'_>, profiles: &[ProfileInfo], vanished: &mut bool) -> Option<Scan> {
    let devices = devices(v, vanished)?;
    Some(Scan { devices, placed: placed(v, profiles, vanished)? })
}

fn devices(v: &mut Visit<'_>, vanished: &mut bool) -> Option<Vec<MigHandle>> {
    let most = v.read("nvmlDeviceGetMaxMigDeviceCount", &METRICS, |d| d.mig_device_count())?;
    let mut found = Vec::new();
    for index in 0..most {
        let handle = ("nvmlDeviceGetMigDeviceHandleByIndex", index);
        // Positions may be empty, also in the middle; that is no failure.
        let device = v.read(handle, &METRICS, |d| match d.mig_device_by_index(index) {
            Err(NvmlError::NotFound) => Ok(None),
            other => other.map(Some),
        })?;
        let Some(device) = device else { continue };
        let gpu_instance = v.read(("nvmlDeviceGetGpuInstanceId", index), &METRICS, |_| {
            noting(vanished, raw::gpu_instance_id(&device))
        })?;
        let compute_instance = v.read(("nvmlDeviceGetComputeInstanceId", index), &METRICS, |_| {
            noting(vanished, raw::compute_instance_id(&device))
        })?;
        let uuid = v.read(("nvmlDeviceGetUUID", index), &METRICS, |_| noting(vanished, device.uuid()))?;
        found.push(MigHandle { device, gpu_instance, compute_instance, uuid });
    }
    Some(found)
}

/// Every GPU instance by id; `Some(None)` if the driver does not list them.
fn placed(v: &mut Visit<'_>, profiles: &[ProfileInfo], vanished: &mut bool) -> Option<Option<Vec<Placed>>> {
    if profiles.is_empty() {
        // Without profiles the driver cannot be asked for the instances of one.
        return Some(None);
    }
    let mut found = Vec::new();
    for profile in profiles {
        let call = ("nvmlDeviceGetGpuInstances", profile.id);
        let handles =
            answered(v, |v| v.read_privileged(call, &PLACED, |d| raw::mig::gpu_instances(d, profile.id)))?;
        // A profile without a list leaves holes.
        let Some(handles) = handles else { return Some(None) };
        for handle in handles {
            let info = v.read("nvmlGpuInstanceGetInfo", &PLACED, |d| {
                noting(vanished, raw::mig::gpu_instance_info(d, handle))
            })?;
            found.push(Placed { profile: profile.id, ..info });
        }
    }
    found.sort_unstable();
    Some(Some(found))
}

/// Notes an answer that the instance does not exist: it did a moment ago.
pub fn noting<T>(vanished: &mut bool, answer: Result<T, NvmlError>) -> Result<T, NvmlError> {
    *vanished |= matches!(answer, Err(NvmlError::InvalidArg | NvmlError::NotFound));
    answer
}

/// Numbers of profiles asked for. The header names 0 to 16; a GPU knows some, and later headers may name more.
const NUMBERS: u32 = 24;

/// The GPU instance profiles that the GPU knows, which do not change while it is in MIG mode; `None` if a call failed. A
/// number that GPU or library does not know is no failure.
pub fn profiles(v: &mut Visit<'_>, feeds: &[MetricId]) -> Option<Vec<ProfileInfo>> {
    let mut known: Vec<ProfileInfo> = Vec::new();
    for number in 0..NUMBERS {
        let call = ("nvmlDeviceGetGpuInstanceProfileInfoV", number);
        let info = v.read(call, feeds, |d| match profile_info(d, number) {
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => Ok(None),
            other => other.map(Some),
        })?;
        let Some(info) = info else { continue };
        // Id and name identify a profile, and the name is a label.
        if known.iter().all(|k| k.id != info.id && k.name != info.name) {
            known.push(info);
        }
    }
    Some(known)
}

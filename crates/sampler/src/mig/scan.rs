//! One scan of how a GPU is divided. It finds MIG devices (compute instances) through their handles, and GPU
//! instances through their profiles, which includes GPU instances without compute instances.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::{METRICS, PLACED, answered};
use crate::raw;
use crate::raw::mig::{Placed, ProfileInfo, profile_info};
use crate::visit::Visit;
use model::catalog::MetricId;

/// A MIG device, which is a compute instance within a GPU instance.
pub(crate) struct MigHandle {
    pub device: Device<'static>,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// UUID of the device. Unlike the ids, a UUID is never reused.
    pub uuid: String,
}

/// Result of one scan.
pub(crate) struct Scan {
    /// All MIG devices, in the driver's order.
    pub devices: Vec<MigHandle>,
    /// All GPU instances by id; `None` if the driver does not list them for this process.
    pub placed: Option<Vec<Placed>>,
}

/// Identity of a layout: ids and UUIDs of the MIG devices, and the GPU instances.
pub(crate) type LayoutKey = (Vec<(u32, u32, String)>, Option<Vec<Placed>>);

impl Scan {
    pub fn key(&self) -> LayoutKey {
        let ids = |d: &MigHandle| (d.gpu_instance, d.compute_instance, d.uuid.clone());
        let mut devices: Vec<_> = self.devices.iter().map(ids).collect();
        devices.sort_unstable();
        (devices, self.placed.clone())
    }
}

/// Scans the GPU. Returns `None` if a call failed. Sets `vanished` if an instance disappeared during the scan,
/// so that another scan is worthwhile.
pub fn scan(v: &mut Visit<'_>, profiles: &[ProfileInfo], vanished: &mut bool) -> Option<Scan> {
    let devices = devices(v, vanished)?;
    Some(Scan { devices, placed: placed(v, profiles, vanished)? })
}

fn devices(v: &mut Visit<'_>, vanished: &mut bool) -> Option<Vec<MigHandle>> {
    let most = v.read("nvmlDeviceGetMaxMigDeviceCount", &METRICS, |d| d.mig_device_count())?;
    let mut found = Vec::new();
    for index in 0..most {
        let handle = ("nvmlDeviceGetMigDeviceHandleByIndex", index);
        // Empty positions, including those in the middle, are not failures.
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

/// Returns all GPU instances by id, or `Some(None)` if the driver does not list them.
fn placed(v: &mut Visit<'_>, profiles: &[ProfileInfo], vanished: &mut bool) -> Option<Option<Vec<Placed>>> {
    if profiles.is_empty() {
        // The driver lists instances only by profile.
        return Some(None);
    }
    let mut found = Vec::new();
    for profile in profiles {
        let call = ("nvmlDeviceGetGpuInstances", profile.id);
        let handles =
            answered(v, |v| v.read_privileged(call, &PLACED, |d| raw::mig::gpu_instances(d, profile.id)))?;
        // The list is incomplete without the instances of one profile.
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

/// Sets `vanished` if the answer says that the instance does not exist, although it did a moment ago.
pub fn noting<T>(vanished: &mut bool, answer: Result<T, NvmlError>) -> Result<T, NvmlError> {
    *vanished |= matches!(answer, Err(NvmlError::InvalidArg | NvmlError::NotFound));
    answer
}

/// Number of profile numbers that are tried. The header names 0 to 16. A GPU supports some of them, and later
/// headers may name more.
const NUMBERS: u32 = 24;

/// Reads the GPU instance profiles of the GPU, which do not change while it is in MIG mode. Returns `None` if a
/// call failed. A number that the GPU or the library does not support is not a failure.
pub fn profiles(v: &mut Visit<'_>, feeds: &[MetricId]) -> Option<Vec<ProfileInfo>> {
    let mut known: Vec<ProfileInfo> = Vec::new();
    for number in 0..NUMBERS {
        let call = ("nvmlDeviceGetGpuInstanceProfileInfoV", number);
        let info = v.read(call, feeds, |d| match profile_info(d, number) {
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => Ok(None),
            other => other.map(Some),
        })?;
        let Some(info) = info else { continue };
        // Both id and name identify a profile, and the name is a label.
        if known.iter().all(|k| k.id != info.id && k.name != info.name) {
            known.push(info);
        }
    }
    Some(known)
}

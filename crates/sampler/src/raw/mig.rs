//! MIG calls that the wrapper's safe interface lacks or gets wrong.

use std::mem::zeroed;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings::{self as sys, nvmlGpuInstance_t};

use super::{list, struct_version, symbol};

/// Room for the instances or placements of a profile. No GPU has as many slices.
const ROOM: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProfileInfo {
    /// Id by which the driver's other calls identify the profile.
    pub id: u32,
    /// Name, for example `3g.71gb`.
    pub name: String,
    /// Number of compute slices.
    pub slices: u32,
    /// Number of instances that fit on an empty GPU.
    pub instances: u32,
    pub multiprocessors: u32,
}

/// A GPU instance as the driver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Placed {
    pub id: u32,
    pub profile: u32,
    /// First memory slice and number of memory slices.
    pub placement: (u32, u32),
}

/// The library's handle of a GPU instance. The library rejects the handle of a destroyed instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuInstanceHandle(nvmlGpuInstance_t);

/// Returns the GPU instance profile with this number (`NVML_GPU_INSTANCE_PROFILE_*`).
pub fn profile_info(device: &Device<'static>, number: u32) -> Result<ProfileInfo, NvmlError> {
    let info = versioned!(sys::nvmlGpuInstanceProfileInfo_v2_t, 2);
    let info = read!(device, nvmlDeviceGetGpuInstanceProfileInfoV(number), info)?;
    let name = super::text(&info.name);
    Ok(ProfileInfo {
        id: info.id,
        name: name.strip_prefix("MIG ").unwrap_or(&name).to_owned(),
        slices: info.sliceCount,
        instances: info.instanceCount,
        multiprocessors: info.multiprocessorCount,
    })
}

/// Returns the possible placements of a profile on an empty GPU, as first memory slice and number of slices.
/// The wrapper's own function returns an empty list.
pub fn possible_placements(device: &Device<'static>, profile: u32) -> Result<Vec<(u32, u32)>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2)?;
    let empty = sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    // SAFETY: as in `read!`; there is room for more placements than any profile has.
    let found = list(ROOM, empty, |list, count| unsafe { f(device.handle(), profile, list, count) })?;
    Ok(found.into_iter().map(|p| (p.start, p.size)).collect())
}

/// Returns the number of further instances of a profile that can be created now.
pub fn remaining_capacity(device: &Device<'static>, profile: u32) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetGpuInstanceRemainingCapacity(profile), 0)
}

/// Returns the GPU instances of a profile, including those without compute instances.
pub fn gpu_instances(device: &Device<'static>, profile: u32) -> Result<Vec<GpuInstanceHandle>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetGpuInstances)?;
    // SAFETY: as in `read!`; there is room for more instances than any GPU has.
    let found =
        list(ROOM, std::ptr::null_mut(), |list, count| unsafe { f(device.handle(), profile, list, count) })?;
    Ok(found.into_iter().map(GpuInstanceHandle).collect())
}

/// Returns the id, profile and placement of a GPU instance.
pub fn gpu_instance_info(device: &Device<'static>, instance: GpuInstanceHandle) -> Result<Placed, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlGpuInstanceGetInfo)?;
    // SAFETY: plain numbers and a handle, for which zero is a valid value.
    let mut info: sys::nvmlGpuInstanceInfo_t = unsafe { zeroed() };
    // SAFETY: the handle was returned by the library in the same visit, and the library rejects the handle of
    // an instance that has been destroyed since.
    nvml_try(unsafe { f(instance.0, &mut info) })?;
    Ok(Placed {
        id: info.id,
        profile: info.profileId,
        placement: (info.placement.start, info.placement.size),
    })
}

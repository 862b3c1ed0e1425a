//! One look at how a GPU is divided: MIG devices (compute instances) by their handles, GPU instances by their
//! profiles, which shows those without compute instances too.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::privilege::Told;
use super::{METRICS, answered};
use crate::raw;
use crate::raw::mig::{Placed, ProfileInfo};
use crate::visit::Visit;

/// A MIG device: a compute instance within a GPU instance.
#[derive(Debug)]
pub struct MigHandle {
    /// Its handle.
    pub device: Device<'static>,
    /// Id of the GPU instance.
    pub gpu_instance: u32,
    /// Id of the compute instance within it.
    pub compute_instance: u32,
    /// Its UUID: ids are given again, this is not.
    pub uuid: String,
}

/// What one look saw.
#[derive(Debug)]
pub struct Look {
    /// Every MIG device, in the driver's order.
    pub devices: Vec<MigHandle>,
    /// Every GPU instance, by id; `None` where the driver does not list them for this process.
    pub placed: Option<Vec<Placed>>,
}

/// What tells one layout from another: ids and UUIDs of the MIG devices, and the GPU instances.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    devices: Vec<(u32, u32, String)>,
    placed: Option<Vec<Placed>>,
}

impl Look {
    /// The layout seen.
    pub fn shape(&self) -> Shape {
        let key = |d: &MigHandle| (d.gpu_instance, d.compute_instance, d.uuid.clone());
        let mut devices: Vec<_> = self.devices.iter().map(key).collect();
        devices.sort_unstable();
        Shape { devices, placed: self.placed.clone() }
    }
}

/// Looks; `None` if a call failed. `vanished` is set if an instance went away meanwhile: then another look is
/// worth taking.
pub fn look(
    v: &mut Visit<'_>,
    profiles: &[ProfileInfo],
    told: &mut Told,
    vanished: &mut bool,
) -> Option<Look> {
    let devices = devices(v, vanished)?;
    // A driver that tells no profiles cannot be asked for the instances of one.
    let placed = match profiles.is_empty() {
        true => None,
        false => placed(v, profiles, told, vanished)?,
    };
    Some(Look { devices, placed })
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

/// Every GPU instance by id; `Some(None)` if the driver does not tell.
fn placed(
    v: &mut Visit<'_>,
    profiles: &[ProfileInfo],
    told: &mut Told,
    vanished: &mut bool,
) -> Option<Option<Vec<Placed>>> {
    let mut found = Vec::new();
    for profile in profiles {
        let call = ("nvmlDeviceGetGpuInstances", profile.id);
        let handles =
            answered(v, |v| told.read(v, call, &super::PLACED, |d| raw::mig::gpu_instances(d, profile.id)))?;
        // What is not told of one profile leaves the list with holes.
        let Some(handles) = handles else { return Some(None) };
        for handle in handles {
            let info = v.read("nvmlGpuInstanceGetInfo", &super::PLACED, |d| {
                noting(vanished, raw::mig::gpu_instance_info(d, handle))
            })?;
            found.push(Placed { profile: profile.id, ..info });
        }
    }
    found.sort_unstable();
    Some(Some(found))
}

/// Notes whether the driver says that what was asked is not there: it was a moment ago.
pub fn noting<T>(vanished: &mut bool, answer: Result<T, NvmlError>) -> Result<T, NvmlError> {
    *vanished |= matches!(answer, Err(NvmlError::InvalidArg | NvmlError::NotFound));
    answer
}

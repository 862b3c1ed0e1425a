//! Where and under which circumstances samples are comparable.

use serde::{Deserialize, Serialize};

use crate::report::Device;
use model::canary::Place;

/// A place by what does not change over a reboot: NVML's index may, as the UUID of a MIG device does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spot {
    /// UUID of the GPU.
    pub uuid: String,
    /// GPU instance, compute instance and profile of a MIG device.
    pub instance: Option<(u32, u32, String)>,
}

impl Spot {
    /// Of a place.
    pub fn of(place: &Place) -> Spot {
        let instance = place.instance.as_ref();
        Spot {
            uuid: place.gpu.uuid.to_string(),
            instance: instance.map(|i| (i.gpu_instance, i.compute_instance, i.profile.clone())),
        }
    }
}

/// What a baseline holds for. Any change opens another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Compute capability: major and minor.
    pub compute_capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Driver version.
    pub driver: String,
    /// VBIOS version.
    pub vbios: String,
    /// Power limit in force, milliwatts.
    pub power_limit_milliwatts: u64,
    /// Whether ECC is on.
    pub ecc: Option<bool>,
    /// Checksum of the kernels' code.
    pub code_checksum: u32,
    /// Highest SM clock, Hz.
    pub max_sm_clock_hertz: u64,
    /// Highest memory clock, Hz.
    pub max_memory_clock_hertz: u64,
    /// Generation and lanes that GPU and slot can do together.
    pub max_link: (u32, u32),
    /// Device memory that the checks use, as the power of two below it in bytes: rates depend on it.
    pub used_power: u32,
}

impl Configuration {
    /// Of a device.
    pub fn of(device: &Device) -> Configuration {
        Configuration {
            compute_capability: device.compute_capability,
            multiprocessors: device.multiprocessors,
            driver: device.driver_version.clone(),
            vbios: device.vbios_version.clone(),
            power_limit_milliwatts: device.power_limit_milliwatts,
            ecc: device.ecc,
            code_checksum: device.code_checksum,
            max_sm_clock_hertz: device.max_sm_clock_hertz as u64,
            max_memory_clock_hertz: device.max_memory_clock_hertz as u64,
            max_link: (device.max_link_generation, device.max_link_width),
            used_power: used_power(device),
        }
    }
}

/// What GPUs have in common whose rates should be alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Name, as `NVIDIA H200`.
    pub name: String,
    /// Profile of a MIG device; empty for a whole GPU.
    pub profile: String,
    /// Power limit in force, milliwatts.
    pub power_limit_milliwatts: u64,
    /// Checksum of the kernels' code.
    pub code_checksum: u32,
    /// Device memory that the checks use, likewise.
    pub used_power: u32,
}

impl Model {
    /// Of the device at a place.
    pub fn of(place: &Place, device: &Device) -> Model {
        Model {
            name: device.name.clone(),
            profile: place.instance.as_ref().map(|i| i.profile.clone()).unwrap_or_default(),
            power_limit_milliwatts: device.power_limit_milliwatts,
            code_checksum: device.code_checksum,
            used_power: used_power(device),
        }
    }
}

/// By whole powers: how much there is to use differs a little from run to run where memory is scarce.
fn used_power(device: &Device) -> u32 {
    device.used_bytes.checked_ilog2().unwrap_or(0)
}

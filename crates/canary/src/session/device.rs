//! Identity of the device, and its limits.

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

use super::cuda::{CudaDriver, DeviceId};
use super::errors::{Ended, Try};
use crate::device::CudaDevice;
use model::catalog::CanarySkip;
use sampler::watch::DeviceFacts;

/// CUDA version of the oldest supported driver, R535 (CUDA 12.2).
pub const OLDEST: u32 = 12_020;

/// Limits of the device that kernels need and that are not reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceLimits {
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_of_multiprocessor: u32,
    /// Maximum shared memory of a block, in bytes.
    pub shared_of_block: u32,
    /// Highest SM clock, in Hz.
    pub clock_hertz: f64,
}

/// Returns the device with this ordinal. Returns an error if its UUID is not the requested one.
pub fn find(cuda: &CudaDriver, ordinal: i32, requested: &str) -> Try<DeviceId> {
    let device = cuda.device(ordinal)?;
    let uuid = uuid(requested, cuda.device_uuid(device)?);
    if uuid != requested {
        let text = format!(
            "CUDA device {ordinal} is {uuid}, not {requested}; CUDA_VISIBLE_DEVICES names another device"
        );
        return Err(Ended::Unable(CanarySkip::NoDevice, text));
    }
    Ok(device)
}

/// Formats a UUID with the prefix for the requested kind of device, which the bytes lack.
fn uuid(requested: &str, bytes: [u8; 16]) -> String {
    let prefix = if requested.starts_with("MIG-") { "MIG" } else { "GPU" };
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |from: usize, to: usize| hex[from..to].concat();
    format!("{prefix}-{}-{}-{}-{}-{}", part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16))
}

/// Returns an error if the driver is older than [`OLDEST`].
pub fn check_version(version: u32) -> Try<()> {
    if version >= OLDEST {
        return Ok(());
    }
    let shown = |version: u32| format!("{}.{}", version / 1000, version % 1000 / 10);
    let text = format!(
        "the driver supports CUDA {}; the canary requires CUDA {} or newer (driver R535)",
        shown(version),
        shown(OLDEST)
    );
    Err(Ended::Unable(CanarySkip::OldDriver, text))
}

pub fn capability(cuda: &CudaDriver, device: DeviceId) -> Try<(u32, u32)> {
    let attribute = |attribute| cuda.attribute(device, attribute);
    Ok((
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// Returns all properties of the device that are available before its context is created.
pub fn describe(
    cuda: &CudaDriver,
    device: DeviceId,
    facts: &DeviceFacts,
    version: u32,
) -> Try<(CudaDevice, DeviceLimits)> {
    let attribute = |attribute| cuda.attribute(device, attribute);
    let capability = capability(cuda, device)?;
    let bus = match facts.bus_width_bits {
        0 => attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0),
        bits => bits,
    };
    let kilohertz = f64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or(0));
    let shape = DeviceLimits {
        shared_of_multiprocessor: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?,
        shared_of_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        clock_hertz: if facts.max_sm_clock_hertz > 0.0 { facts.max_sm_clock_hertz } else { kilohertz * 1e3 },
    };
    let device = CudaDevice {
        name: cuda.device_name(device)?,
        compute_capability: capability,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        fp32_lanes: fp32_lanes(capability),
        tensor_fma: tensor_fma(capability),
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        memory_bytes: cuda.device_memory(device)?,
        bus_width_bytes: bus / 8,
        max_sm_clock_hertz: facts.max_sm_clock_hertz,
        max_memory_clock_hertz: facts.max_memory_clock_hertz,
        max_link_generation: facts.max_link_generation,
        max_link_width: facts.max_link_width,
        cuda_version: version,
        driver_version: facts.driver_version.clone(),
        vbios_version: facts.vbios_version.clone(),
        power_limit_milliwatts: facts.power_limit_milliwatts,
        default_power_limit_milliwatts: facts.default_power_limit_milliwatts,
        ecc: facts.ecc,
        ..CudaDevice::default()
    };
    Ok((device, shape))
}

/// Returns the FP32 FMA operations of one multiprocessor per cycle, by compute capability (CUDA C++ Programming Guide,
/// arithmetic instructions).
fn fp32_lanes(capability: (u32, u32)) -> u32 {
    match capability {
        (7, _) | (8, 0) => 64,
        _ => 128,
    }
}

/// Returns the dense half-precision FMA operations of one multiprocessor's tensor cores per cycle, with FP32 sums, by
/// compute capability. The figures are NVIDIA's published peak rates, divided by multiprocessors and clock. The result
/// is 0 if the kernel's instruction is not known to reach them.
fn tensor_fma(capability: (u32, u32)) -> u32 {
    match capability {
        (7, 5) | (8, 6 | 9) => 512,
        (8, 0) => 1024,
        (9, 0) => 2048,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_spelled_as_the_driver_does() {
        let bytes = *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";
        assert_eq!(uuid("GPU-", bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(uuid("MIG-1", bytes), "MIG-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_driver_before_r535_is_too_old() {
        assert!(check_version(12_020).is_ok() && check_version(13_000).is_ok());
        let Err(Ended::Unable(reason, text)) = check_version(11_080) else { panic!() };
        assert_eq!(reason, CanarySkip::OldDriver);
        assert_eq!(
            text,
            "the driver supports CUDA 11.8; the canary requires CUDA 12.2 or newer (driver R535)"
        );
    }

    #[test]
    fn what_a_multiprocessor_can_do_follows_from_its_compute_capability() {
        let of = |major, minor| (fp32_lanes((major, minor)), tensor_fma((major, minor)));
        assert_eq!([of(7, 0), of(7, 5), of(8, 0)], [(64, 0), (64, 512), (64, 1024)]);
        assert_eq!([of(8, 6), of(8, 9), of(9, 0)], [(128, 512), (128, 512), (128, 2048)]);
        assert_eq!([of(10, 0), of(12, 0)], [(128, 0), (128, 0)]);
    }

    #[test]
    fn the_memory_of_an_h200_moves_4_8_terabytes_a_second() {
        let device = CudaDevice {
            max_memory_clock_hertz: 3.201e9,
            bus_width_bytes: 6016 / 8,
            ..CudaDevice::default()
        };
        assert!(
            (crate::roofline::memory_rate(&device, device.max_memory_clock_hertz) - 4.814e12).abs() < 1e9
        );
    }
}

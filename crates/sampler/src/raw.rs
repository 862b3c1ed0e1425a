//! NVML calls that the wrapper's safe interface lacks, each as one small safe function. This module has all the
//! unsafe code of the crate.
//!
//! A function that the library does not export returns [`NvmlError::FailedToLoadSymbol`] and never panics.

#![allow(unsafe_code)]

use std::ffi::c_char;

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{self as sys, nvmlReturn_t};

/// Return code for a struct version that the driver does not support. The wrapper lacks it.
const VERSION_MISMATCH: u32 = 25;

/// Returns NVML's version word of a struct, with the size in the low bytes and the version in the top byte.
const fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}

fn symbol<F: Copy, E: std::fmt::Display>(function: &Result<F, E>) -> Result<F, NvmlError> {
    function.as_ref().copied().map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))
}

/// Calls a function about a device that writes one value, its last argument.
macro_rules! read {
    ($device:expr, $function:ident($($argument:expr),*), $value:expr) => {{
        let f = symbol(&$device.nvml().lib().$function)?;
        let mut value = $value;
        // SAFETY: the handle is valid while the library is loaded (it is never unloaded), and the bindings
        // declare the types of arguments and value; a struct with versions is the one that its version word
        // names.
        nvml_try(unsafe { f($device.handle(), $($argument,)* &mut value) }).map(|()| value)
    }};
}

/// Returns a zeroed struct of the library with its version word.
macro_rules! versioned {
    ($type:ty, $version:expr) => {{
        // SAFETY: the structs contain plain numbers and characters, for which zero is a valid value.
        let mut value: $type = unsafe { std::mem::zeroed() };
        value.version = struct_version::<$type>($version);
        value
    }};
}

pub mod events;
pub mod fabric;
pub mod fields;
pub mod mig;
pub mod processes;
pub mod samples;
pub mod vgpu;

/// Returns the text up to the terminating zero.
fn text(characters: &[c_char]) -> String {
    bytes_text(&characters.iter().map(|c| *c as u8).collect::<Vec<u8>>())
}

/// Returns the text of bytes up to the terminating zero.
pub fn bytes_text(bytes: &[u8]) -> String {
    let bytes: Vec<u8> = bytes.iter().copied().take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Fills a list with room for `room` entries. The library trusts the caller to have room for as many entries as
/// the count says.
fn list<T: Clone>(
    room: usize,
    empty: T,
    fill: impl FnOnce(*mut T, &mut u32) -> nvmlReturn_t,
) -> Result<Vec<T>, NvmlError> {
    let mut list = vec![empty; room];
    let mut count = u32::try_from(room).unwrap_or(0);
    nvml_try(fill(list.as_mut_ptr(), &mut count))?;
    list.truncate(count as usize);
    Ok(list)
}

/// Returns the utilization of the JPEG engine in percent.
pub fn jpg_utilization(device: &Device<'static>) -> Result<u32, NvmlError> {
    let mut percent = 0;
    read!(device, nvmlDeviceGetJpgUtilization(&mut percent), 0).map(|_period| percent)
}

/// Returns the utilization of the optical flow engine in percent.
pub fn ofa_utilization(device: &Device<'static>) -> Result<u32, NvmlError> {
    let mut percent = 0;
    read!(device, nvmlDeviceGetOfaUtilization(&mut percent), 0).map(|_period| percent)
}

/// Returns the brand of the GPU in DCGM's words. Newer drivers have brands that the wrapper lacks.
pub fn brand(device: &Device<'static>) -> Result<String, NvmlError> {
    let brand = match read!(device, nvmlDeviceGetBrand(), 0)? {
        sys::nvmlBrandType_enum_NVML_BRAND_QUADRO => "Quadro",
        sys::nvmlBrandType_enum_NVML_BRAND_TESLA => "Tesla",
        sys::nvmlBrandType_enum_NVML_BRAND_NVS => "NVS",
        sys::nvmlBrandType_enum_NVML_BRAND_GRID => "GRID",
        sys::nvmlBrandType_enum_NVML_BRAND_GEFORCE => "GeForce",
        sys::nvmlBrandType_enum_NVML_BRAND_TITAN => "Titan",
        sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VAPPS => "NVIDIA Virtual Applications",
        sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VPC => "NVIDIA Virtual PC",
        sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VCS => "NVIDIA Virtual Compute Server",
        sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VWS => "NVIDIA RTX Virtual Workstation",
        sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VGAMING => "NVIDIA Cloud Gaming",
        sys::nvmlBrandType_enum_NVML_BRAND_QUADRO_RTX => "Quadro RTX",
        sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_RTX => "NVIDIA RTX",
        sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA => "NVIDIA",
        sys::nvmlBrandType_enum_NVML_BRAND_GEFORCE_RTX => "GeForce RTX",
        sys::nvmlBrandType_enum_NVML_BRAND_TITAN_RTX => "Titan RTX",
        _ => "",
    };
    Ok(brand.to_owned())
}

/// Returns the position of the GPU on its baseboard.
pub fn module_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetModuleId(), 0)
}

/// Returns the GPU instance id of a MIG device.
pub fn gpu_instance_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetGpuInstanceId(), 0)
}

/// Returns the compute instance id of a MIG device.
pub fn compute_instance_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetComputeInstanceId(), 0)
}

/// Returns the clock event reasons as the bits that the header defines.
pub fn clocks_event_reasons(device: &Device<'static>) -> Result<u64, NvmlError> {
    read!(device, nvmlDeviceGetCurrentClocksEventReasons(), 0)
}

/// Returns the margin until thermal slowdown in degrees Celsius.
pub fn margin_temperature(device: &Device<'static>) -> Result<i32, NvmlError> {
    let info = versioned!(sys::nvmlMarginTemperature_v1_t, 1);
    read!(device, nvmlDeviceGetMarginTemperature(), info).map(|info| info.marginTemperature)
}

/// Returns the place of the GPU in its platform. Drivers before 570 support only the first version of the
/// struct. Its layout is the same, but it has a rack number in place of the chassis serial number, which is
/// left out.
pub fn platform_info(device: &Device<'static>) -> Result<sys::nvmlPlatformInfo_v2_t, NvmlError> {
    let ask =
        |version| read!(device, nvmlDeviceGetPlatformInfo(), versioned!(sys::nvmlPlatformInfo_v2_t, version));
    match ask(2) {
        Err(NvmlError::UnexpectedVariant(VERSION_MISMATCH)) => {
            ask(1).map(|info| sys::nvmlPlatformInfo_v2_t { chassisSerialNumber: [0; 16], ..info })
        }
        answer => answer,
    }
}

/// Returns the errors of on-chip memory.
pub fn sram_ecc_status(device: &Device<'static>) -> Result<sys::nvmlEccSramErrorStatus_v1_t, NvmlError> {
    read!(device, nvmlDeviceGetSramEccErrorStatus(), versioned!(sys::nvmlEccSramErrorStatus_v1_t, 1))
}

/// Returns the number of memory banks by the spare rows that they have left.
pub fn row_remapper_histogram(
    device: &Device<'static>,
) -> Result<sys::nvmlRowRemapperHistogramValues_t, NvmlError> {
    let values = sys::nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    read!(device, nvmlDeviceGetRowRemapperHistogram(), values)
}

/// Returns the repairs that wait for a reset.
pub fn repair_status(device: &Device<'static>) -> Result<sys::nvmlRepairStatus_v1_t, NvmlError> {
    read!(device, nvmlDeviceGetRepairStatus(), versioned!(sys::nvmlRepairStatus_v1_t, 1))
}

/// Returns the `NVML_NVLINK_DEVICE_TYPE_*` of the remote end of a link. The wrapper's call for the type never
/// returns it.
pub fn remote_device_type(device: &Device<'static>, link: u32) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetNvLinkRemoteDeviceType(link), 0)
}

/// Returns an error counter of a link (`NVML_NVLINK_ERROR_DL_*`). The wrapper lacks one of the counters.
pub fn link_error_counter(device: &Device<'static>, link: u32, counter: u32) -> Result<u64, NvmlError> {
    read!(device, nvmlDeviceGetNvLinkErrorCounter(link, counter), 0)
}

/// Returns the `nvmlGpuTopologyLevel_t` of two GPUs of the node.
pub fn common_ancestor(a: &Device<'static>, b: &Device<'static>) -> Result<u32, NvmlError> {
    read!(a, nvmlDeviceGetTopologyCommonAncestor(b.handle()), 0)
}

/// Returns the `nvmlGpuP2PStatus_t` of a capability (`nvmlGpuP2PCapsIndex_t`) of one GPU with the memory of the
/// other.
pub fn p2p_status(a: &Device<'static>, b: &Device<'static>, capability: u32) -> Result<u32, NvmlError> {
    read!(a, nvmlDeviceGetP2PStatus(b.handle(), capability), 0)
}

/// Returns the branch of the driver, for example `r580_00`.
pub fn driver_branch(nvml: &Nvml) -> Result<String, NvmlError> {
    let f = symbol(&nvml.lib().nvmlSystemGetDriverBranch)?;
    let mut info = versioned!(sys::nvmlSystemDriverBranchInfo_v1_t, 1);
    // SAFETY: the struct is the one that its version word names, and the length is that of its text.
    nvml_try(unsafe { f(&mut info, info.branch.len() as u32) })?;
    Ok(text(&info.branch))
}

//! NVML calls that the wrapper's safe interface lacks, each as one small safe function: all unsafe code of this crate.
//!
//! A function the library does not export is [`NvmlError::FailedToLoadSymbol`], never a panic.

#![allow(unsafe_code)]

use std::ffi::c_char;

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{self as sys, nvmlReturn_t};

/// Return code for a version of a struct that the driver does not know, which the wrapper lacks.
const VERSION_MISMATCH: u32 = 25;

/// NVML's version word of a struct: size in the low bytes, version in the top one.
const fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}

fn symbol<F: Copy, E: std::fmt::Display>(function: &Result<F, E>) -> Result<F, NvmlError> {
    function.as_ref().copied().map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))
}

/// A call about a device that writes one value, its last argument.
macro_rules! read {
    ($device:expr, $function:ident($($argument:expr),*), $value:expr) => {{
        let f = symbol(&$device.nvml().lib().$function)?;
        let mut value = $value;
        // SAFETY: the handle is valid while the library is loaded (it is never unloaded), and the bindings declare
        // the types of arguments and value; a struct with versions is the one that its version word names.
        nvml_try(unsafe { f($device.handle(), $($argument,)* &mut value) }).map(|()| value)
    }};
}

/// A struct of the library that holds nothing but its version word.
macro_rules! versioned {
    ($type:ty, $version:expr) => {{
        // SAFETY: the structs hold plain numbers and characters, for which zero is a value.
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

/// Text that the library ended with a zero.
fn text(characters: &[c_char]) -> String {
    bytes_text(&characters.iter().map(|c| *c as u8).collect::<Vec<u8>>())
}

/// As [`text`], of bytes.
pub fn bytes_text(bytes: &[u8]) -> String {
    let bytes: Vec<u8> = bytes.iter().copied().take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A list for which there is room for so many entries: the library trusts the caller to have room for all of them.
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

/// Utilization of the JPEG engine, percent.
pub fn jpg_utilization(device: &Device<'static>) -> Result<u32, NvmlError> {
    let mut percent = 0;
    read!(device, nvmlDeviceGetJpgUtilization(&mut percent), 0).map(|_period| percent)
}

/// Utilization of the optical flow engine, percent.
pub fn ofa_utilization(device: &Device<'static>) -> Result<u32, NvmlError> {
    let mut percent = 0;
    read!(device, nvmlDeviceGetOfaUtilization(&mut percent), 0).map(|_period| percent)
}

/// Brand of the GPU, in DCGM's words; newer drivers have brands that the wrapper lacks.
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

/// Position of the GPU on its baseboard.
pub fn module_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetModuleId(), 0)
}

/// GPU instance id of a MIG device.
pub fn gpu_instance_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetGpuInstanceId(), 0)
}

/// Compute instance id of a MIG device.
pub fn compute_instance_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetComputeInstanceId(), 0)
}

/// Bits of the clocks event reasons, as the header defines them.
pub fn clocks_event_reasons(device: &Device<'static>) -> Result<u64, NvmlError> {
    read!(device, nvmlDeviceGetCurrentClocksEventReasons(), 0)
}

/// Degrees left until the GPU slows down for heat.
pub fn margin_temperature(device: &Device<'static>) -> Result<i32, NvmlError> {
    let info = versioned!(sys::nvmlMarginTemperature_v1_t, 1);
    read!(device, nvmlDeviceGetMarginTemperature(), info).map(|info| info.marginTemperature)
}

/// Where the GPU is in its platform. Drivers before 570 know the first version alone, of the same layout: in place of the
/// chassis' serial number it has a number of the rack, which is left out.
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

/// Errors of on-chip memory.
pub fn sram_ecc_status(device: &Device<'static>) -> Result<sys::nvmlEccSramErrorStatus_v1_t, NvmlError> {
    read!(device, nvmlDeviceGetSramEccErrorStatus(), versioned!(sys::nvmlEccSramErrorStatus_v1_t, 1))
}

/// Banks of device memory by the spare rows they have left.
pub fn row_remapper_histogram(
    device: &Device<'static>,
) -> Result<sys::nvmlRowRemapperHistogramValues_t, NvmlError> {
    let values = sys::nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    read!(device, nvmlDeviceGetRowRemapperHistogram(), values)
}

/// Repairs that wait for a reset.
pub fn repair_status(device: &Device<'static>) -> Result<sys::nvmlRepairStatus_v1_t, NvmlError> {
    read!(device, nvmlDeviceGetRepairStatus(), versioned!(sys::nvmlRepairStatus_v1_t, 1))
}

/// `NVML_NVLINK_DEVICE_TYPE_*` of a link's other end. The wrapper's call for the type never gives it.
pub fn remote_device_type(device: &Device<'static>, link: u32) -> Result<u32, NvmlError> {
    read!(device, nvmlDeviceGetNvLinkRemoteDeviceType(link), 0)
}

/// An error counter of a link: `NVML_NVLINK_ERROR_DL_*`. The wrapper leaves one out.
pub fn link_error_counter(device: &Device<'static>, link: u32, counter: u32) -> Result<u64, NvmlError> {
    read!(device, nvmlDeviceGetNvLinkErrorCounter(link, counter), 0)
}

/// `nvmlGpuTopologyLevel_t` of two GPUs of the node.
pub fn common_ancestor(a: &Device<'static>, b: &Device<'static>) -> Result<u32, NvmlError> {
    read!(a, nvmlDeviceGetTopologyCommonAncestor(b.handle()), 0)
}

/// `nvmlGpuP2PStatus_t` of a capability (`nvmlGpuP2PCapsIndex_t`) of one GPU with the memory of the other.
pub fn p2p_status(a: &Device<'static>, b: &Device<'static>, capability: u32) -> Result<u32, NvmlError> {
    read!(a, nvmlDeviceGetP2PStatus(b.handle(), capability), 0)
}

/// Branch of the driver, as `r580_00`.
pub fn driver_branch(nvml: &Nvml) -> Result<String, NvmlError> {
    let f = symbol(&nvml.lib().nvmlSystemGetDriverBranch)?;
    let mut info = versioned!(sys::nvmlSystemDriverBranchInfo_v1_t, 1);
    // SAFETY: the struct is the one its version word names, and the length is that of its text.
    nvml_try(unsafe { f(&mut info, info.branch.len() as u32) })?;
    Ok(text(&info.branch))
}

//! NVML calls the wrapper's safe interface lacks, each as one small safe function.
//!
//! A function the library does not export is [`NvmlError::FailedToLoadSymbol`], never a panic.

pub mod errors;
pub mod events;
pub mod fabric;
pub mod fields;
pub mod links;
pub mod mig;
pub mod peers;
pub mod samples;
pub mod vgpu;

use std::ffi::CStr;

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMarginTemperature_v1_t, nvmlReturn_t, nvmlSystemDriverBranchInfo_v1_t,
};

/// NVML's version word of a struct: size in the low bytes, version in the top one.
const fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}

fn symbol<F: Copy, E: std::fmt::Display>(function: &Result<F, E>) -> Result<F, NvmlError> {
    function.as_ref().copied().map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))
}

type GetNumber = unsafe extern "C" fn(nvmlDevice_t, *mut u32) -> nvmlReturn_t;
type GetTwoNumbers = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut u32) -> nvmlReturn_t;

fn number<E: std::fmt::Display>(
    device: &Device<'static>,
    function: &Result<GetNumber, E>,
) -> Result<u32, NvmlError> {
    let f = symbol(function)?;
    let mut value = 0;
    // SAFETY: the handle is valid while the library is loaded (it is never unloaded), and the library
    // writes one unsigned int.
    nvml_try(unsafe { f(device.handle(), &mut value) })?;
    Ok(value)
}

fn first_of_two<E: std::fmt::Display>(
    device: &Device<'static>,
    function: &Result<GetTwoNumbers, E>,
) -> Result<u32, NvmlError> {
    let f = symbol(function)?;
    let (mut first, mut second) = (0, 0);
    // SAFETY: as in `number`, with two unsigned ints.
    nvml_try(unsafe { f(device.handle(), &mut first, &mut second) })?;
    Ok(first)
}

/// Utilization of the JPEG engine, percent.
pub fn jpg_utilization(device: &Device<'static>) -> Result<u32, NvmlError> {
    first_of_two(device, &device.nvml().lib().nvmlDeviceGetJpgUtilization)
}

/// Utilization of the optical flow engine, percent.
pub fn ofa_utilization(device: &Device<'static>) -> Result<u32, NvmlError> {
    first_of_two(device, &device.nvml().lib().nvmlDeviceGetOfaUtilization)
}

/// Position of the GPU on its baseboard.
pub fn module_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    number(device, &device.nvml().lib().nvmlDeviceGetModuleId)
}

/// GPU instance id of a MIG device.
pub fn gpu_instance_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    number(device, &device.nvml().lib().nvmlDeviceGetGpuInstanceId)
}

/// Compute instance id of a MIG device.
pub fn compute_instance_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    number(device, &device.nvml().lib().nvmlDeviceGetComputeInstanceId)
}

/// Bits of the clocks event reasons, as the header defines them.
pub fn clocks_event_reasons(device: &Device<'static>) -> Result<u64, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetCurrentClocksEventReasons)?;
    let mut bits = 0;
    // SAFETY: as in `number`, with one unsigned long long.
    nvml_try(unsafe { f(device.handle(), &mut bits) })?;
    Ok(bits)
}

/// Degrees left until the GPU slows down for heat.
pub fn margin_temperature(device: &Device<'static>) -> Result<i32, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetMarginTemperature)?;
    let mut info = nvmlMarginTemperature_v1_t {
        version: struct_version::<nvmlMarginTemperature_v1_t>(1),
        marginTemperature: 0,
    };
    // SAFETY: the struct is the one its version word names.
    nvml_try(unsafe { f(device.handle(), &mut info) })?;
    Ok(info.marginTemperature)
}

/// Branch of the driver, as `r580_00`.
pub fn driver_branch(nvml: &Nvml) -> Result<String, NvmlError> {
    let f = symbol(&nvml.lib().nvmlSystemGetDriverBranch)?;
    let mut info = nvmlSystemDriverBranchInfo_v1_t {
        version: struct_version::<nvmlSystemDriverBranchInfo_v1_t>(1),
        branch: [0; 80],
    };
    // SAFETY: the struct is the one its version word names, and the length is that of its text.
    nvml_try(unsafe { f(&mut info, info.branch.len() as u32) })?;
    // SAFETY: c_char and u8 have the same size, and the array is initialised.
    let bytes = unsafe { std::slice::from_raw_parts(info.branch.as_ptr().cast::<u8>(), info.branch.len()) };
    let text = CStr::from_bytes_until_nul(bytes).map_err(|_| NvmlError::Unknown)?;
    Ok(text.to_string_lossy().into_owned())
}

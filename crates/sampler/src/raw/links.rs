//! NVLink calls of one link. The wrapper's call for the other end's type never tells it, and its error
//! counters leave one out.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};

use super::symbol;

/// What is at the other end: `NVML_NVLINK_DEVICE_TYPE_*`.
pub fn remote_device_type(device: &Device<'static>, link: u32) -> Result<u32, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType)?;
    let mut kind = 0;
    // SAFETY: the handle is valid while the library is loaded, and the library writes one enum.
    nvml_try(unsafe { f(device.handle(), link, &mut kind) })?;
    Ok(kind)
}

/// An error counter: `NVML_NVLINK_ERROR_DL_*`.
pub fn error_counter(device: &Device<'static>, link: u32, counter: u32) -> Result<u64, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetNvLinkErrorCounter)?;
    let mut count = 0;
    // SAFETY: as above, with one unsigned long long.
    nvml_try(unsafe { f(device.handle(), link, counter, &mut count) })?;
    Ok(count)
}

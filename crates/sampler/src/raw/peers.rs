//! How two GPUs of the node reach each other.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};

use super::symbol;

/// What is common on the way from one GPU to the other, as NVML numbers it.
pub fn common_ancestor(a: &Device<'static>, b: &Device<'static>) -> Result<u32, NvmlError> {
    let f = symbol(&a.nvml().lib().nvmlDeviceGetTopologyCommonAncestor)?;
    let mut level = 0;
    // SAFETY: both handles are valid while the library is loaded, and the library writes one unsigned int.
    nvml_try(unsafe { f(a.handle(), b.handle(), &mut level) })?;
    Ok(level)
}

/// Whether one GPU can do this with the memory of the other: both as NVML numbers them.
pub fn p2p_status(a: &Device<'static>, b: &Device<'static>, capability: u32) -> Result<u32, NvmlError> {
    let f = symbol(&a.nvml().lib().nvmlDeviceGetP2PStatus)?;
    let mut status = 0;
    // SAFETY: as above.
    nvml_try(unsafe { f(a.handle(), b.handle(), capability, &mut status) })?;
    Ok(status)
}

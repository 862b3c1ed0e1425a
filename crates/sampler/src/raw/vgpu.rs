//! Virtual GPUs: the lists, which the wrapper gives in shapes that keep a reference to the device, or not at all.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use super::fields::typed;
use super::symbol;

/// Room for virtual GPUs that start between the two calls of a list.
const HEADROOM: u32 = 8;

/// Numbers of the virtual GPUs that run on the GPU.
pub fn active(device: &Device<'static>) -> Result<Vec<u32>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetActiveVgpus)?;
    let mut count = 0;
    // SAFETY: the handle is valid while the library is loaded; with a count of 0 nothing is written.
    if counted(unsafe { f(device.handle(), &mut count, std::ptr::null_mut()) }, count)? == 0 {
        return Ok(Vec::new());
    }
    count += HEADROOM;
    let mut list = vec![0; count as usize];
    // SAFETY: the list has room for `count` entries.
    nvml_try(unsafe { f(device.handle(), &mut count, list.as_mut_ptr()) })?;
    list.truncate(count as usize);
    Ok(list)
}

/// What the engines did for one virtual GPU, in percent.
#[derive(Clone, Debug, PartialEq)]
pub struct VgpuUtilization {
    /// Number of the virtual GPU.
    pub vgpu: u32,
    /// End of the sample period, in microseconds since 1970.
    pub stamp: u64,
    /// Multiprocessors, memory, encoder, decoder.
    pub percent: [SampleValue; 4],
}

/// Samples taken after `since` (microseconds since 1970); none if there are none.
pub fn utilization(device: &Device<'static>, since: u64) -> Result<Vec<VgpuUtilization>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetVgpuUtilization)?;
    let mut kind = 0;
    let mut count = 0;
    // SAFETY: the handle is valid while the library is loaded; with a count of 0 no sample is written.
    let code = unsafe { f(device.handle(), since, &mut kind, &mut count, std::ptr::null_mut()) };
    if code == sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND || counted(code, count)? == 0 {
        return Ok(Vec::new());
    }
    count += HEADROOM;
    let nothing = sys::nvmlValue_t { ullVal: 0 };
    let empty = sys::nvmlVgpuInstanceUtilizationSample_t {
        vgpuInstance: 0,
        timeStamp: 0,
        smUtil: nothing,
        memUtil: nothing,
        encUtil: nothing,
        decUtil: nothing,
    };
    let mut list = vec![empty; count as usize];
    // SAFETY: the list has room for `count` entries.
    let code = unsafe { f(device.handle(), since, &mut kind, &mut count, list.as_mut_ptr()) };
    if code == sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND {
        return Ok(Vec::new());
    }
    nvml_try(code)?;
    list.truncate(count as usize);
    let sample = |s: sys::nvmlVgpuInstanceUtilizationSample_t| {
        let [sm, memory, encoder, decoder] =
            [s.smUtil, s.memUtil, s.encUtil, s.decUtil].map(|value| typed(kind, value));
        Ok(VgpuUtilization {
            vgpu: s.vgpuInstance,
            stamp: s.timeStamp,
            percent: [sm?, memory?, encoder?, decoder?],
        })
    };
    list.into_iter().map(sample).collect()
}

/// More virtual GPUs than any GPU runs: a count that is no count takes no memory.
const MOST: u32 = 4096;

/// The length of a list from the call that asks for it.
fn counted(code: sys::nvmlReturn_t, count: u32) -> Result<u32, NvmlError> {
    match code {
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => Ok(count.min(MOST)),
        code => nvml_try(code).map(|()| count.min(MOST)),
    }
}

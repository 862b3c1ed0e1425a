//! Virtual GPUs. The wrapper lacks these lists, or returns them in a form that borrows the device.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use super::fields::typed;
use super::{list, symbol};

/// Room for more virtual GPUs than any GPU runs.
const ROOM: usize = 1024;

/// Returns the numbers of the virtual GPUs that run on the GPU.
pub fn active(device: &Device<'static>) -> Result<Vec<u32>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetActiveVgpus)?;
    // SAFETY: as in `read!`; the list has room for `count` entries.
    list(ROOM, 0, |list, count| unsafe { f(device.handle(), count, list) })
}

/// Returns whether the GPU has a licence for NVIDIA's virtual GPU software. Without that software it has none.
pub fn licensed(device: &Device<'static>) -> Result<bool, NvmlError> {
    // SAFETY: plain numbers and characters, for which zero is a valid value.
    let features: sys::nvmlGridLicensableFeatures_t = unsafe { std::mem::zeroed() };
    let features = read!(device, nvmlDeviceGetGridLicensableFeatures_v4(), features)?;
    let there = features.gridLicensableFeatures.iter().take(features.licensableFeaturesCount as usize);
    Ok(features.isGridLicenseSupported != 0 && there.into_iter().any(|feature| feature.featureState != 0))
}

/// Utilization of the engines by one virtual GPU, in percent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VgpuUtilization {
    /// Number of the virtual GPU.
    pub vgpu: u32,
    /// End of the sample period, in microseconds since 1970.
    pub stamp: u64,
    /// Multiprocessors, memory, encoder and decoder.
    pub percent: [SampleValue; 4],
}

/// Returns the samples taken after `since` (microseconds since 1970), which may be none.
pub fn utilization(device: &Device<'static>, since: u64) -> Result<Vec<VgpuUtilization>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetVgpuUtilization)?;
    let mut kind = 0;
    let nothing = sys::nvmlValue_t { ullVal: 0 };
    let empty = sys::nvmlVgpuInstanceUtilizationSample_t {
        vgpuInstance: 0,
        timeStamp: 0,
        smUtil: nothing,
        memUtil: nothing,
        encUtil: nothing,
        decUtil: nothing,
    };
    // SAFETY: as in `read!`; the list has room for `count` entries.
    let found = list(ROOM, empty, |list, count| unsafe { f(device.handle(), since, &mut kind, count, list) });
    let found = match found {
        Err(NvmlError::NotFound) => return Ok(Vec::new()),
        found => found?,
    };
    let sample = |s: sys::nvmlVgpuInstanceUtilizationSample_t| {
        let [sm, memory, encoder, decoder] =
            [s.smUtil, s.memUtil, s.encUtil, s.decUtil].map(|value| typed(kind, value));
        Ok(VgpuUtilization {
            vgpu: s.vgpuInstance,
            stamp: s.timeStamp,
            percent: [sm?, memory?, encoder?, decoder?],
        })
    };
    found.into_iter().map(sample).collect()
}

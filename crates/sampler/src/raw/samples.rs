//! The driver's own sample buffers.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlSample_t, nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES,
    nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES, nvmlValue_t,
};

use super::fields::typed;
use super::{list, symbol};
use model::catalog::SampleBuffer;

/// Returns the `nvmlSamplingType_t` of a buffer. Power is in milliwatts, utilization in percent.
pub fn sampling_type(buffer: SampleBuffer) -> u32 {
    match buffer {
        SampleBuffer::Power => nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES,
        SampleBuffer::Utilization => nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES,
    }
}

/// Returns the maximum number of samples in the buffer. The safe interface requests it before every read, which
/// doubles the cost of an expensive call.
pub fn room(device: &Device<'static>, kind: SampleBuffer) -> Result<usize, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetSamples)?;
    let (mut value_type, mut count) = (0, 0);
    // SAFETY: as in `read!`; without a buffer the library writes only the type and the count.
    let code = unsafe {
        f(device.handle(), sampling_type(kind), 0, &mut value_type, &mut count, std::ptr::null_mut())
    };
    match nvml_try(code) {
        // The limit is more than any driver keeps, so that an invalid count does not allocate memory.
        Ok(()) | Err(NvmlError::InsufficientSize(_)) => Ok((count as usize).min(10_000)),
        Err(error) => Err(error),
    }
}

/// Returns the samples newer than `since` (microseconds since 1970; 0 for all), oldest first, at most `room`.
pub fn newer_than(
    device: &Device<'static>,
    kind: SampleBuffer,
    since: u64,
    room: usize,
) -> Result<Vec<(u64, SampleValue)>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetSamples)?;
    let empty = nvmlSample_t { timeStamp: 0, sampleValue: nvmlValue_t { ullVal: 0 } };
    let mut value_type = 0;
    // SAFETY: as in `read!`; the buffer has room for `count` samples.
    let found = list(room, empty, |buffer, count| unsafe {
        f(device.handle(), sampling_type(kind), since, &mut value_type, count, buffer)
    });
    let found = match found {
        // There are no newer samples.
        Err(NvmlError::NotFound) => return Ok(Vec::new()),
        found => found?,
    };
    // An unused place has no time.
    let filled = found.into_iter().filter(|sample| sample.timeStamp > 0);
    filled.map(|sample| Ok((sample.timeStamp, typed(value_type, sample.sampleValue)?))).collect()
}

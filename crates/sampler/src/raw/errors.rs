//! Memory errors that the wrapper does not ask for.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use super::{struct_version, symbol};

/// Errors of on-chip memory.
pub fn sram_ecc_status(device: &Device<'static>) -> Result<sys::nvmlEccSramErrorStatus_v1_t, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetSramEccErrorStatus)?;
    let mut status = sys::nvmlEccSramErrorStatus_v1_t {
        version: struct_version::<sys::nvmlEccSramErrorStatus_v1_t>(1),
        aggregateUncParity: 0,
        aggregateUncSecDed: 0,
        aggregateCor: 0,
        volatileUncParity: 0,
        volatileUncSecDed: 0,
        volatileCor: 0,
        aggregateUncBucketL2: 0,
        aggregateUncBucketSm: 0,
        aggregateUncBucketPcie: 0,
        aggregateUncBucketMcu: 0,
        aggregateUncBucketOther: 0,
        bThresholdExceeded: 0,
    };
    // SAFETY: the handle is valid while the library is loaded; the struct is the one its version names.
    nvml_try(unsafe { f(device.handle(), &mut status) })?;
    Ok(status)
}

/// Banks of device memory by the spare rows they have left.
pub fn row_remapper_histogram(
    device: &Device<'static>,
) -> Result<sys::nvmlRowRemapperHistogramValues_t, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetRowRemapperHistogram)?;
    let mut values = sys::nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    // SAFETY: as above; the call has this one struct, without a version.
    nvml_try(unsafe { f(device.handle(), &mut values) })?;
    Ok(values)
}

/// What waits for its repair.
pub fn repair_status(device: &Device<'static>) -> Result<sys::nvmlRepairStatus_v1_t, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetRepairStatus)?;
    let mut status = sys::nvmlRepairStatus_v1_t {
        version: struct_version::<sys::nvmlRepairStatus_v1_t>(1),
        bChannelRepairPending: 0,
        bTpcRepairPending: 0,
    };
    // SAFETY: as above.
    nvml_try(unsafe { f(device.handle(), &mut status) })?;
    Ok(status)
}

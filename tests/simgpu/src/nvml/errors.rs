//! Memory errors: ECC counters, remapped rows, retired pages, repairs.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, numbers, nvml};
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::value::Answer;

numbers! { c_uint: nvmlDeviceGetRetiredPagesPendingStatus }

fn counter(device: sys::nvmlDevice_t, function: Function, args: &[u32]) -> Answer<u64> {
    Device::called(device, Key::new(function, args))?.value(function, args)?.u64(0)
}

fn retired(device: sys::nvmlDevice_t, function: Function, cause: c_uint) -> Answer<Vec<u64>> {
    Device::called(device, Key::new(function, &[cause]))?.value(function, &[cause])?.numbers()
}

nvml! {
    fn nvmlDeviceGetTotalEccErrors(
        device: sys::nvmlDevice_t, error: c_uint, kind: c_uint, out: *mut c_ulonglong,
    ) {
        call::put(out, counter(device, Function::nvmlDeviceGetTotalEccErrors, &[error, kind])?)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        device: sys::nvmlDevice_t, error: c_uint, kind: c_uint, location: c_uint, out: *mut c_ulonglong,
    ) {
        let args = [error, kind, location];
        call::put(out, counter(device, Function::nvmlDeviceGetMemoryErrorCounter, &args)?)
    }

    fn nvmlDeviceGetDetailedEccErrors(
        device: sys::nvmlDevice_t, error: c_uint, kind: c_uint, out: *mut sys::nvmlEccErrorCounts_t,
    ) {
        let function = Function::nvmlDeviceGetDetailedEccErrors;
        let device = Device::called(device, Key::new(function, &[error, kind]))?;
        // The old call by locations that most GPUs no longer count.
        let at = |location| {
            let value = device.value(Function::nvmlDeviceGetMemoryErrorCounter, &[error, kind, location]);
            value.and_then(|v| v.u64(0)).unwrap_or(0)
        };
        call::put(out, sys::nvmlEccErrorCounts_t {
            l1Cache: at(0), l2Cache: at(1), deviceMemory: at(2), registerFile: at(3),
        })
    }

    fn nvmlDeviceGetSramEccErrorStatus(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlEccSramErrorStatus_t,
    ) {
        let function = Function::nvmlDeviceGetSramEccErrorStatus;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        let info = call::inout(out)?;
        call::expect_version::<sys::nvmlEccSramErrorStatus_t>(info.version, 1)?;
        *info = sys::nvmlEccSramErrorStatus_t {
            version: info.version,
            aggregateUncParity: v.u64(0)?,
            aggregateUncSecDed: v.u64(1)?,
            aggregateCor: v.u64(2)?,
            volatileUncParity: v.u64(3)?,
            volatileUncSecDed: v.u64(4)?,
            volatileCor: v.u64(5)?,
            aggregateUncBucketL2: v.u64(6)?,
            aggregateUncBucketSm: v.u64(7)?,
            aggregateUncBucketPcie: v.u64(8)?,
            aggregateUncBucketMcu: v.u64(9)?,
            aggregateUncBucketOther: v.u64(10)?,
            bThresholdExceeded: v.u32(11)?,
        };
        Ok(())
    }

    fn nvmlDeviceGetRemappedRows(
        device: sys::nvmlDevice_t, corrected: *mut c_uint, uncorrected: *mut c_uint,
        pending: *mut c_uint, failure: *mut c_uint,
    ) {
        let function = Function::nvmlDeviceGetRemappedRows;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        for (i, out) in [corrected, uncorrected, pending, failure].into_iter().enumerate() {
            call::put(out, v.u32(i)?)?;
        }
        Ok(())
    }

    fn nvmlDeviceGetRowRemapperHistogram(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlRowRemapperHistogramValues_t,
    ) {
        let function = Function::nvmlDeviceGetRowRemapperHistogram;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        call::put(out, sys::nvmlRowRemapperHistogramValues_t {
            max: v.u32(0)?, high: v.u32(1)?, partial: v.u32(2)?, low: v.u32(3)?, none: v.u32(4)?,
        })
    }

    fn nvmlDeviceGetRetiredPages(
        device: sys::nvmlDevice_t, cause: c_uint, count: *mut c_uint, out: *mut c_ulonglong,
    ) {
        call::put_list(count, out, &retired(device, Function::nvmlDeviceGetRetiredPages, cause)?)
    }

    fn nvmlDeviceGetRetiredPages_v2(
        device: sys::nvmlDevice_t, cause: c_uint, count: *mut c_uint, out: *mut c_ulonglong,
        stamps: *mut c_ulonglong,
    ) {
        let pages = retired(device, Function::nvmlDeviceGetRetiredPages_v2, cause)?;
        call::put_list(count, out, &pages)?;
        if !pages.is_empty() {
            call::put_list(count, stamps, &vec![0; pages.len()])?;
        }
        Ok(())
    }

    fn nvmlDeviceGetRepairStatus(device: sys::nvmlDevice_t, out: *mut sys::nvmlRepairStatus_t) {
        let function = Function::nvmlDeviceGetRepairStatus;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        let info = call::inout(out)?;
        call::expect_version::<sys::nvmlRepairStatus_t>(info.version, 1)?;
        (info.bChannelRepairPending, info.bTpcRepairPending) = (v.u32(0)?, v.u32(1)?);
        Ok(())
    }
}

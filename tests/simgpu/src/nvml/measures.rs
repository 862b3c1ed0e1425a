//! What a GPU does: utilization, memory, power, temperature, clocks, and its PCIe link.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, numbers, nvml, pairs};
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::value::{Answer, Value, code};

numbers! { c_uint:
    nvmlDeviceGetPowerUsage nvmlDeviceGetPowerManagementLimit
    nvmlDeviceGetPowerManagementDefaultLimit nvmlDeviceGetEnforcedPowerLimit
    nvmlDeviceGetPerformanceState nvmlDeviceGetPowerState nvmlDeviceGetFanSpeed
    nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth
    nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth
    nvmlDeviceGetGpuMaxPcieLinkGeneration nvmlDeviceGetPcieSpeed nvmlDeviceGetPcieLinkMaxSpeed
    nvmlDeviceGetPcieReplayCounter
}

numbers! { c_uint, kind:
    nvmlDeviceGetTemperature nvmlDeviceGetTemperatureThreshold nvmlDeviceGetClockInfo
    nvmlDeviceGetMaxClockInfo nvmlDeviceGetPcieThroughput nvmlDeviceGetFanSpeed_v2
}

numbers! { c_ulonglong:
    nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetCurrentClocksEventReasons
    nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetSupportedClocksEventReasons
    nvmlDeviceGetSupportedClocksThrottleReasons nvmlDeviceGetSupportedEventTypes
}

pairs! { c_uint:
    nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization nvmlDeviceGetJpgUtilization
    nvmlDeviceGetOfaUtilization nvmlDeviceGetPowerManagementLimitConstraints
}

/// A plain call, and its value.
unsafe fn ask(device: sys::nvmlDevice_t, function: Function, args: &[u32]) -> Answer<Value> {
    Device::called(device, Key::new(function, args))?.value(function, args)
}

nvml! {
    fn nvmlDeviceGetUtilizationRates(device: sys::nvmlDevice_t, out: *mut sys::nvmlUtilization_t) {
        let v = ask(device, Function::nvmlDeviceGetUtilizationRates, &[])?;
        call::put(out, sys::nvmlUtilization_t { gpu: v.u32(0)?, memory: v.u32(1)? })
    }

    fn nvmlDeviceGetMemoryInfo(device: sys::nvmlDevice_t, out: *mut sys::nvmlMemory_t) {
        let v = ask(device, Function::nvmlDeviceGetMemoryInfo, &[])?;
        call::put(out, sys::nvmlMemory_t { total: v.u64(0)?, free: v.u64(1)?, used: v.u64(2)? })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: sys::nvmlDevice_t, out: *mut sys::nvmlMemory_v2_t) {
        let v = ask(device, Function::nvmlDeviceGetMemoryInfo_v2, &[])?;
        let info = call::inout(out)?;
        call::expect_version::<sys::nvmlMemory_v2_t>(info.version, 2)?;
        (info.total, info.reserved) = (v.u64(0)?, v.u64(1)?);
        (info.free, info.used) = (v.u64(2)?, v.u64(3)?);
        Ok(())
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: sys::nvmlDevice_t, out: *mut sys::nvmlBAR1Memory_t) {
        let v = ask(device, Function::nvmlDeviceGetBAR1MemoryInfo, &[])?;
        call::put(out, sys::nvmlBAR1Memory_t { bar1Total: v.u64(0)?, bar1Free: v.u64(1)?, bar1Used: v.u64(2)? })
    }

    fn nvmlDeviceGetTemperatureV(device: sys::nvmlDevice_t, out: *mut sys::nvmlTemperature_t) {
        let info = call::inout(out)?;
        let v = ask(device, Function::nvmlDeviceGetTemperatureV, &[info.sensorType])?;
        call::expect_version::<sys::nvmlTemperature_t>(info.version, 1)?;
        info.temperature = v.u32(0)? as i32;
        Ok(())
    }

    fn nvmlDeviceGetMarginTemperature(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlMarginTemperature_t,
    ) {
        let v = ask(device, Function::nvmlDeviceGetMarginTemperature, &[])?;
        let info = call::inout(out)?;
        call::expect_version::<sys::nvmlMarginTemperature_t>(info.version, 1)?;
        info.marginTemperature = v.u32(0)? as i32;
        Ok(())
    }

    fn nvmlDeviceGetClock(
        device: sys::nvmlDevice_t, kind: c_uint, which: c_uint, out: *mut c_uint,
    ) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetClock, &[kind, which]))?;
        // Only current clocks are told; application clocks are gone since Hopper.
        let v = match device.value(Function::nvmlDeviceGetClock, &[kind, which]) {
            Err(code::ERROR_NOT_SUPPORTED) if which == 0 => {
                device.value(Function::nvmlDeviceGetClockInfo, &[kind])?
            }
            other => other?,
        };
        call::put(out, v.u32(0)?)
    }

    fn nvmlDeviceGetSupportedMemoryClocks(
        device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut c_uint,
    ) {
        let v = ask(device, Function::nvmlDeviceGetSupportedMemoryClocks, &[])?;
        let clocks: Vec<c_uint> = v.numbers()?.into_iter().map(|n| n as c_uint).collect();
        call::put_list(count, out, &clocks)
    }

    fn nvmlDeviceGetSupportedGraphicsClocks(
        device: sys::nvmlDevice_t, memory_mhz: c_uint, count: *mut c_uint, out: *mut c_uint,
    ) {
        let v = ask(device, Function::nvmlDeviceGetSupportedGraphicsClocks, &[memory_mhz])?;
        let clocks: Vec<c_uint> = v.numbers()?.into_iter().map(|n| n as c_uint).collect();
        call::put_list(count, out, &clocks)
    }

    fn nvmlDeviceGetViolationStatus(
        device: sys::nvmlDevice_t, policy: c_uint, out: *mut sys::nvmlViolationTime_t,
    ) {
        let function = Function::nvmlDeviceGetViolationStatus;
        let device = Device::called(device, Key::new(function, &[policy]))?;
        let v = device.value(function, &[policy])?;
        let referenceTime = device.sim.stamp_us(device.sim.now());
        call::put(out, sys::nvmlViolationTime_t { referenceTime, violationTime: v.u64(0)? })
    }

    fn nvmlDeviceGetDynamicPstatesInfo(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlGpuDynamicPstatesInfo_t,
    ) {
        let function = Function::nvmlDeviceGetDynamicPstatesInfo;
        let device = Device::called(device, Key::new(function, &[]))?;
        // Graphics engine, frame buffer, video and bus are there; busy as the rates tell.
        let v = match device.value(function, &[]) {
            Err(code::ERROR_NOT_SUPPORTED) => device.value(Function::nvmlDeviceGetUtilizationRates, &[])?,
            other => other?,
        };
        let info = call::inout(out)?;
        info.flags = 0;
        for (i, engine) in info.utilization.iter_mut().enumerate() {
            engine.bIsPresent = c_uint::from(i < 4);
            engine.percentage = v.u32(i).unwrap_or(0);
            (engine.incThreshold, engine.decThreshold) = (0, 0);
        }
        Ok(())
    }
}

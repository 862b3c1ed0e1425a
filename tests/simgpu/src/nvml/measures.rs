//! What a GPU does: utilization, memory, power, temperature, clocks, and its PCIe link.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

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

numbers! { c_int: nvmlDeviceGetGpcClkVfOffset nvmlDeviceGetMemClkVfOffset }
pairs! { c_int: nvmlDeviceGetGpcClkMinMaxVfOffset nvmlDeviceGetMemClkMinMaxVfOffset }

/// Clocks as the driver writes them: the graphics clock with its range, and a memory clock, which
/// transfers twice.
fn clocks(device: &Device, graphics: Option<u32>, memory: u32) -> Answer<String> {
    let ask = |function, args: &[u32]| device.value(function, args)?.u32(0);
    let range = device.value(Function::nvmlDeviceGetSupportedGraphicsClocks, &[memory])?.numbers()?;
    let min = range.last().copied().unwrap_or(0) as u32;
    let max = ask(Function::nvmlDeviceGetMaxClockInfo, &[0])?;
    let clock = |name: &str, now: u32, min: u32, max: u32| {
        format!("{name}={now}, {name}min={min}, {name}max={max}, {name}editable=0")
    };
    let double = memory * 2;
    Ok([
        clock("nvclock", graphics.unwrap_or(min), min, max),
        clock("memclock", memory, memory, memory),
        clock("memTransferRate", double, double, double),
    ]
    .join(", "))
}

/// The version and the text of a struct that has nothing else.
fn put_clocks<T>(version: u32, out: &mut [c_char; 2048], text: &str) -> Answer<()> {
    call::expect_version::<T>(version, 1)?;
    *out = call::chars(text);
    Ok(())
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
        // Only current clocks are known; application clocks are gone since Hopper.
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

    fn nvmlDeviceGetSupportedPerformanceStates(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlPstates_t, size: c_uint,
    ) {
        let v = ask(device, Function::nvmlDeviceGetSupportedPerformanceStates, &[])?;
        let mut states: Vec<_> = v.numbers()?.into_iter().map(|n| n as sys::nvmlPstates_t).collect();
        // The size is in bytes, and what is left of the room is filled.
        let mut room = size / size_of::<sys::nvmlPstates_t>() as c_uint;
        if (room as usize) > states.len() {
            states.resize(room as usize, sys::nvmlPStates_enum_NVML_PSTATE_UNKNOWN);
        }
        call::put_list(&mut room, out, &states)
    }

    fn nvmlDeviceGetCurrentClockFreqs(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlDeviceCurrentClockFreqs_t,
    ) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetCurrentClockFreqs, &[]))?;
        let now = |kind| device.value(Function::nvmlDeviceGetClockInfo, &[kind])?.u32(0);
        let text = clocks(&device, Some(now(0)?), now(2)?)?;
        let info = call::inout(out)?;
        put_clocks::<sys::nvmlDeviceCurrentClockFreqs_t>(info.version, &mut info.str_, &text)
    }

    fn nvmlDeviceGetPerformanceModes(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlDevicePerfModes_t,
    ) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetPerformanceModes, &[]))?;
        let memory = device.value(Function::nvmlDeviceGetSupportedMemoryClocks, &[])?.numbers()?;
        let mode = |(i, mhz): (usize, &u64)| Ok(format!("perf={i}, {}", clocks(&device, None, *mhz as u32)?));
        let modes: Vec<String> = memory.iter().rev().enumerate().map(mode).collect::<Answer<_>>()?;
        let info = call::inout(out)?;
        put_clocks::<sys::nvmlDevicePerfModes_t>(info.version, &mut info.str_, &modes.join(" ; "))
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
        // Graphics engine, frame buffer, video and bus are there; busy as the rates say.
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

//! Who uses a GPU.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, nvml};
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::live::percent;
use crate::scenario::{Process, ProcessKind};
use crate::value::{Answer, code};

/// What NVML answers for the instance ids of a process on a GPU without MIG.
const NO_INSTANCE: u32 = u32::MAX;

fn running(
    device: sys::nvmlDevice_t,
    function: Function,
    kind: ProcessKind,
) -> Answer<Vec<sys::nvmlProcessInfo_t>> {
    let device = Device::called(device, Key::new(function, &[]))?;
    let processes = device.processes()?.into_iter().filter(|p| p.kind == kind);
    processes.map(|p| info(&device, p)).collect()
}

fn info(device: &Device, process: &Process) -> Answer<sys::nvmlProcessInfo_t> {
    let (_, layout) = device.sim.layout(device.index)?;
    let instance = process.instance.and_then(|i| layout.devices().nth(i));
    let (gpuInstanceId, computeInstanceId) =
        instance.map_or((NO_INSTANCE, NO_INSTANCE), |(gi, ci)| (gi.id, ci.id));
    let (pid, usedGpuMemory) = (process.pid, process.memory);
    Ok(sys::nvmlProcessInfo_t { pid, usedGpuMemory, gpuInstanceId, computeInstanceId })
}

nvml! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut sys::nvmlProcessInfo_t,
    ) {
        let function = Function::nvmlDeviceGetComputeRunningProcesses_v3;
        call::put_list(count, out, &running(device, function, ProcessKind::Compute)?)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut sys::nvmlProcessInfo_t,
    ) {
        let function = Function::nvmlDeviceGetGraphicsRunningProcesses_v3;
        call::put_list(count, out, &running(device, function, ProcessKind::Graphics)?)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut sys::nvmlProcessInfo_t,
    ) {
        let function = Function::nvmlDeviceGetMPSComputeRunningProcesses_v3;
        call::put_list(count, out, &running(device, function, ProcessKind::Mps)?)
    }

    fn nvmlDeviceGetProcessUtilization(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlProcessUtilizationSample_t,
        count: *mut c_uint, since: c_ulonglong,
    ) {
        let function = Function::nvmlDeviceGetProcessUtilization;
        let device = Device::called(device, Key::new(function, &[]))?;
        if device.sim.layout(device.index)?.1.enabled {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        let now = device.sim.now();
        let timeStamp = device.sim.stamp_us(now);
        let processes = device.processes()?;
        let busy = device.gpu.curve.as_ref().map_or(0.0, |c| c.mean(now - 1.0, now).busy);
        // The driver says so too when nothing ran since.
        if processes.is_empty() || busy <= 0.0 || timeStamp <= since {
            return Err(code::ERROR_NOT_FOUND);
        }
        let share = busy / processes.len() as f64;
        let (smUtil, memUtil) = (percent(share) as u32, percent(share * 0.62) as u32);
        let sample = |p: &&Process| sys::nvmlProcessUtilizationSample_t {
            pid: p.pid, timeStamp, smUtil, memUtil, encUtil: 0, decUtil: 0,
        };
        let samples: Vec<_> = processes.iter().map(sample).collect();
        call::put_list(count, out, &samples)
    }
}

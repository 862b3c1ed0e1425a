//! Who uses a GPU.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, nvml};
use crate::device::{self, Device, Kind};
use crate::functions::{Function, Key};
use crate::live::percent;
use crate::process::{Process, ProcessKind};
use crate::sim;
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
    processes.map(|p| info(&device, &p)).collect()
}

/// Whether the driver answers the question for the size of a list with success.
fn answers_success(device: sys::nvmlDevice_t) -> bool {
    let gpu = device::read_handle(Kind::Gpu, device).and_then(|(gpu, ..)| sim::initialised()?.gpu(gpu));
    gpu.is_ok_and(|gpu| gpu.foreign)
}

fn info(device: &Device, process: &Process) -> Answer<sys::nvmlProcessInfo_t> {
    let (_, layout) = device.sim.layout(device.index)?;
    let instance = process.instance.and_then(|i| layout.devices().nth(i));
    let none = if device.gpu.foreign { 0 } else { NO_INSTANCE };
    let (gpuInstanceId, computeInstanceId) = instance.map_or((none, none), |(gi, ci)| (gi.id, ci.id));
    let (pid, usedGpuMemory) = (process.pid, process.memory);
    Ok(sys::nvmlProcessInfo_t { pid, usedGpuMemory, gpuInstanceId, computeInstanceId })
}

/// Declares the calls that list the processes of a kind.
macro_rules! lists {
    ($($name:ident = $kind:ident)*) => { nvml! {$(
        fn $name(device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut sys::nvmlProcessInfo_t) {
            let list = running(device, Function::$name, ProcessKind::$kind)?;
            let asked = call::inout(count)?;
            if *asked == 0 && answers_success(device) {
                *asked = list.len() as c_uint;
                return Ok(());
            }
            call::put_list(count, out, &list)
        }
    )*}};
}

lists! {
    nvmlDeviceGetComputeRunningProcesses_v2 = Compute
    nvmlDeviceGetComputeRunningProcesses_v3 = Compute
    nvmlDeviceGetGraphicsRunningProcesses_v2 = Graphics
    nvmlDeviceGetGraphicsRunningProcesses_v3 = Graphics
    nvmlDeviceGetMPSComputeRunningProcesses_v2 = Mps
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = Mps
}

nvml! {
    fn nvmlDeviceGetAccountingPids(device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut c_uint) {
        let function = Function::nvmlDeviceGetAccountingPids;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        let pids: Vec<c_uint> = v.numbers()?.into_iter().map(|pid| pid as c_uint).collect();
        call::put_list(count, out, &pids)
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
        let sample = |p: &Process| sys::nvmlProcessUtilizationSample_t {
            pid: p.pid, timeStamp, smUtil, memUtil, encUtil: 0, decUtil: 0,
        };
        let samples: Vec<_> = processes.iter().map(sample).collect();
        call::put_list(count, out, &samples)
    }
}

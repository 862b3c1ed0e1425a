//! Initialisation, the driver's versions, and how a device is found.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering::SeqCst;

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, nvml};
use crate::device::{self, Kind};
use crate::functions::{Function, Key};
use crate::sim::{self, Sim};
use crate::value::{Answer, Code, code, name_of};

fn init(function: Function) -> Answer<()> {
    let sim = sim::load()?;
    if !sim.scenario.library_present {
        return Err(code::ERROR_LIBRARY_NOT_FOUND);
    }
    sim.pass(None, Key::new(function, &[]))?;
    sim.inits.fetch_add(1, SeqCst);
    Ok(())
}

/// A call that is not about a device.
fn called(function: Function) -> Answer<&'static Sim> {
    let sim = sim::initialised()?;
    sim.pass(None, Key::new(function, &[]))?;
    Ok(sim)
}

/// Looks a GPU up. The driver asks every GPU on the way, so a sick one is met by those behind it.
fn search(function: Function, matches: impl Fn(usize) -> bool) -> Answer<usize> {
    let sim = sim::initialised()?;
    sim.wait_for_lock();
    for gpu in 0..sim.scenario.gpus.len() {
        let passed = sim.pass(Some(gpu), Key::new(function, &[]));
        if matches(gpu) {
            return passed.map(|()| gpu);
        }
        if passed == Err(code::ERROR_DRIVER_NOT_LOADED) {
            return Err(code::ERROR_DRIVER_NOT_LOADED);
        }
    }
    Err(code::ERROR_NOT_FOUND)
}

/// Reads `0000:00:06.0` with a domain of any length, or none.
fn parse_bus_id(text: &str) -> Option<(u32, u32, u32)> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.rsplit(':').map(|p| u32::from_str_radix(p, 16).ok());
    let (device, bus) = (parts.next()??, parts.next()??);
    let domain = parts.next().unwrap_or(Some(0))?;
    (function == "0" && parts.next().is_none()).then_some((domain, bus, device))
}

nvml! {
    fn nvmlInit_v2() {
        init(Function::nvmlInit_v2)
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        init(Function::nvmlInitWithFlags)
    }

    fn nvmlShutdown() {
        let sim = called(Function::nvmlShutdown)?;
        let _ = sim.inits.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) {
        call::put_text(out, length, &called(Function::nvmlSystemGetDriverVersion)?.scenario.driver)
    }

    fn nvmlSystemGetNVMLVersion(out: *mut c_char, length: c_uint) {
        call::put_text(out, length, &called(Function::nvmlSystemGetNVMLVersion)?.scenario.nvml)
    }

    fn nvmlSystemGetCudaDriverVersion(out: *mut c_int) {
        call::put(out, called(Function::nvmlSystemGetCudaDriverVersion)?.scenario.cuda)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(out: *mut c_int) {
        call::put(out, called(Function::nvmlSystemGetCudaDriverVersion_v2)?.scenario.cuda)
    }

    fn nvmlSystemGetDriverBranch(out: *mut sys::nvmlSystemDriverBranchInfo_t, length: c_uint) {
        let sim = called(Function::nvmlSystemGetDriverBranch)?;
        let info = call::inout(out)?;
        call::expect_version::<sys::nvmlSystemDriverBranchInfo_t>(info.version, 1)?;
        // The recorded branch belongs to the recorded driver; others are named by their first number.
        let major = sim.scenario.driver.split('.').next().unwrap_or_default();
        let branch = if sim.scenario.driver == "580.159.04" { "r582_49".into() } else { format!("r{major}_00") };
        if branch.len() >= length as usize {
            return Err(code::ERROR_INSUFFICIENT_SIZE);
        }
        info.branch = call::chars(&branch);
        Ok(())
    }

    fn nvmlSystemGetProcessName(pid: c_uint, out: *mut c_char, length: c_uint) {
        let sim = called(Function::nvmlSystemGetProcessName)?;
        let known = sim.scenario.gpus.iter().flat_map(|g| &g.processes).any(|p| p.pid == pid);
        let own = sim.state.contexts().iter().any(|c| c.pid == pid);
        if let (true, Ok(exe)) = (own, std::fs::read_link(format!("/proc/{pid}/exe"))) {
            return call::put_text(out, length, &exe.to_string_lossy());
        }
        if !known {
            return Err(code::ERROR_NOT_FOUND);
        }
        call::put_text(out, length, "/usr/bin/python3")
    }

    fn nvmlSystemGetNvlinkBwMode(out: *mut c_uint) {
        called(Function::nvmlSystemGetNvlinkBwMode)?;
        call::put(out, 0)
    }

    fn nvmlSystemGetHicVersion(count: *mut c_uint, out: *mut sys::nvmlHwbcEntry_t) {
        called(Function::nvmlSystemGetHicVersion)?;
        call::put_list(count, out, &[])
    }

    fn nvmlSystemGetConfComputeCapabilities(out: *mut sys::nvmlConfComputeSystemCaps_t) {
        called(Function::nvmlSystemGetConfComputeCapabilities)?;
        call::put(out, sys::nvmlConfComputeSystemCaps_t { cpuCaps: 0, gpusCaps: 1 })
    }

    fn nvmlSystemGetConfComputeState(out: *mut sys::nvmlConfComputeSystemState_t) {
        called(Function::nvmlSystemGetConfComputeState)?;
        call::put(out, sys::nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 })
    }

    fn nvmlSystemGetConfComputeKeyRotationThresholdInfo(
        out: *mut sys::nvmlConfComputeGetKeyRotationThresholdInfo_t,
    ) {
        called(Function::nvmlSystemGetConfComputeKeyRotationThresholdInfo)?;
        let info = call::inout(out)?;
        call::expect_version::<sys::nvmlConfComputeGetKeyRotationThresholdInfo_t>(info.version, 1)?;
        info.attackerAdvantage = 60;
        Ok(())
    }

    fn nvmlDeviceGetCount_v2(out: *mut c_uint) {
        let sim = called(Function::nvmlDeviceGetCount_v2)?;
        let set = sim.set(None, &Key::new(Function::nvmlDeviceGetCount_v2, &[]));
        let count = set.map_or(Ok(sim.scenario.gpus.len() as u64), |set| set.u64(0))?;
        call::put(out, count as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut sys::nvmlDevice_t) {
        let sim = sim::initialised()?;
        let gpu = index as usize;
        sim.wait_for_lock();
        sim.gpu(gpu)?;
        sim.pass(Some(gpu), Key::new(Function::nvmlDeviceGetHandleByIndex_v2, &[]))?;
        call::put(out, device::handle(Kind::Gpu, gpu, 0, 0))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, out: *mut sys::nvmlDevice_t) {
        let sim = sim::initialised()?;
        let (domain, bus, dev) = parse_bus_id(call::text(bus_id)?).ok_or(code::ERROR_INVALID_ARGUMENT)?;
        sim.wait_for_lock();
        let at = |i: &usize| domain == 0 && device::pci_bus_device(*i) == (bus, dev);
        let gpu = (0..sim.scenario.gpus.len()).find(at).ok_or(code::ERROR_NOT_FOUND)?;
        sim.pass(Some(gpu), Key::new(Function::nvmlDeviceGetHandleByPciBusId_v2, &[]))?;
        call::put(out, device::handle(Kind::Gpu, gpu, 0, 0))
    }

    fn nvmlDeviceGetHandleBySerial(serial: *const c_char, out: *mut sys::nvmlDevice_t) {
        let serial = call::text(serial)?;
        let gpu = search(Function::nvmlDeviceGetHandleBySerial, |gpu| device::serial(gpu) == serial)?;
        call::put(out, device::handle(Kind::Gpu, gpu, 0, 0))
    }

    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut sys::nvmlDevice_t) {
        let uuid = call::text(uuid)?;
        let sim = sim::initialised()?;
        let mig = |gpu: usize| {
            let (generation, layout) = sim.layout(gpu).ok()?;
            let is = |i: &usize| device::mig_uuid(gpu, generation, *i) == uuid;
            Some((generation, (0..layout.devices().count()).find(is)?))
        };
        let is = |gpu| device::gpu_uuid(gpu) == uuid || mig(gpu).is_some();
        let gpu = search(Function::nvmlDeviceGetHandleByUUID, is)?;
        call::put(out, match mig(gpu) {
            Some((generation, index)) => device::handle(Kind::Mig, gpu, generation, index),
            None => device::handle(Kind::Gpu, gpu, 0, 0),
        })
    }
}

/// The text of a return code. It never fails and needs no GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(result: Code) -> *const c_char {
    let text = match result {
        code::SUCCESS => c"Success",
        code::ERROR_UNINITIALIZED => c"Uninitialized",
        code::ERROR_INVALID_ARGUMENT => c"Invalid Argument",
        code::ERROR_NOT_SUPPORTED => c"Not Supported",
        code::ERROR_NOT_FOUND => c"Not Found",
        code::ERROR_INSUFFICIENT_SIZE => c"Insufficient Size",
        code::ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        code::ERROR_TIMEOUT => c"Timeout",
        code::ERROR_GPU_IS_LOST => c"GPU is lost",
        code::ERROR_RESET_REQUIRED => c"GPU requires restart",
        _ if name_of(result) != name_of(code::ERROR_UNKNOWN) => c"Error",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_read_in_every_length() {
        for text in ["00000000:00:06.0", "0000:00:06.0", "00:06.0"] {
            assert_eq!(parse_bus_id(text), Some((0, 0, 6)), "{text}");
        }
        for text in ["", "06.0", "0:0:0:06.0", "0000:00:06.1", "0000:00:zz.0"] {
            assert_eq!(parse_bus_id(text), None, "{text}");
        }
    }
}

//! Initialisation, and what a device is.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::driver::{self, Driver};
use super::rates;
use super::result::{cu, name_of};
use crate::call::{self, cuda};
use crate::device::{Device, gpu_uuid, mig_uuid, pci_bus_device};
use crate::functions::{Function, Key};
use crate::sim;
use crate::value::{Answer, Code};

/// Writes a value to the caller, with libcuda's code for what `call` refuses.
pub(super) fn put<T>(out: *mut T, value: T) -> Answer<()> {
    // SAFETY: the callers hand on what the exported functions were given: null or valid.
    unsafe { call::put(out, value) }.map_err(|_| cu::INVALID_VALUE)
}

fn put_text(out: *mut c_char, length: c_int, text: &str) -> Answer<()> {
    // Cut to fit, as the driver does.
    let room = usize::try_from(length).unwrap_or(0).saturating_sub(1);
    let text = &text[..text.len().min(room)];
    // SAFETY: as above.
    unsafe { call::put_text(out, length as c_uint, text) }.map_err(|_| cu::INVALID_VALUE)
}

/// The 16 bytes of a UUID.
fn uuid_bytes(text: &str) -> [u8; 16] {
    let digits: Vec<u8> =
        text.bytes().skip(4).filter_map(|b| char::from(b).to_digit(16)).map(|d| d as u8).collect();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    bytes
}

fn uuid(driver: &Driver, ordinal: c_int, of_mig: bool) -> Answer<[u8; 16]> {
    let device = driver.devices[driver.ordinal(ordinal)?];
    Ok(uuid_bytes(&match device.mig {
        Some((generation, index)) if of_mig => mig_uuid(device.gpu, generation, index),
        _ => gpu_uuid(device.gpu),
    }))
}

/// `0000:00:06.0`, as CUDA writes it.
fn bus_id(gpu: usize) -> String {
    let (bus, device) = pci_bus_device(gpu);
    format!("0000:{bus:02X}:{device:02X}.0")
}

/// An attribute of a device, by its number in `CUdevice_attribute`.
fn attribute(device: &Device, number: u32) -> u64 {
    let compute = &device.gpu.model.compute;
    let board = device.board();
    let ask = |function, args: &[u32], member: usize| {
        board.value(function, args).and_then(|v| v.u64(member)).unwrap_or(0)
    };
    let (bus, slot) = pci_bus_device(device.index);
    let share = rates::share(device);
    match number {
        1..=3 => 1024,
        4 => 64,
        5 => 0x7fff_ffff,
        6 | 7 => 65_535,
        8 => 49_152,
        10 => 32,
        12 | 82 => 65_536,
        13 => ask(Function::nvmlDeviceGetMaxClockInfo, &[1], 0) * 1000,
        14 => 512,
        16 => share.sms.into(),
        15 | 19 | 31 | 41 | 78 | 79 | 95 => 1,
        20 => ask(Function::nvmlDeviceGetComputeMode, &[], 0),
        32 => ask(Function::nvmlDeviceGetEccMode, &[], 0),
        33 => bus.into(),
        34 => slot.into(),
        36 => ask(Function::nvmlDeviceGetMaxClockInfo, &[2], 0) * 1000,
        37 => (ask(Function::nvmlDeviceGetMemoryBusWidth, &[], 0) as f64 * share.memory) as u64,
        38 => (compute.l2_bytes as f64 * share.memory) as u64,
        39 => compute.threads.into(),
        40 => 3,
        75 => ask(Function::nvmlDeviceGetCudaComputeCapability, &[], 0),
        76 => ask(Function::nvmlDeviceGetCudaComputeCapability, &[], 1),
        81 => compute.shared_bytes.into(),
        97 => compute.shared_bytes_of_block.into(),
        106 => 32,
        111 => 1024,
        _ => 0,
    }
}

/// The last attribute of CUDA 12.
const LAST_ATTRIBUTE: c_int = 135;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> Code {
    call::run(Function::cuInit, || if flags == 0 { driver::init() } else { Err(cu::INVALID_VALUE) })
}

/// The version may be asked before `cuInit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(out: *mut c_int) -> Code {
    call::run(Function::cuDriverGetVersion, || {
        let sim = sim::load()?;
        sim.pass(None, Key::new(Function::cuDriverGetVersion, &[]))?;
        put(out, sim.scenario.cuda)
    })
}

/// The name of a return code. It needs no GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: Code, out: *mut *const c_char) -> Code {
    let name = name_of(error);
    match put(out, name.map_or(std::ptr::null(), |name| name.as_ptr())) {
        Ok(()) if name.is_some() => 0,
        _ => cu::INVALID_VALUE,
    }
}

/// The driver has a sentence for each; here it is the name once more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: Code, out: *mut *const c_char) -> Code {
    // SAFETY: as for the name.
    unsafe { cuGetErrorName(error, out) }
}

cuda! {
    fn cuDeviceGetCount(out: *mut c_int) |driver| {
        put(out, driver.devices.len() as c_int)
    }

    on ordinal fn cuDeviceGet(out: *mut c_int, ordinal: c_int) |driver| {
        put(out, driver.ordinal(ordinal)? as c_int)
    }

    fn cuDeviceGetByPCIBusId(out: *mut c_int, text: *const c_char) |driver| {
        let text = call::text(text).map_err(|_| cu::INVALID_VALUE)?.to_ascii_uppercase();
        let at = |gpu: usize| bus_id(gpu).ends_with(text.trim_start_matches('0').trim_start_matches(':'));
        let found = driver.devices.iter().position(|d| at(d.gpu)).ok_or(cu::INVALID_DEVICE)?;
        put(out, found as c_int)
    }

    on ordinal fn cuDeviceGetName(out: *mut c_char, length: c_int, ordinal: c_int) |driver| {
        let device = driver.device(driver.ordinal(ordinal)?)?;
        let name = device.value(Function::nvmlDeviceGetName, &[]).map_err(|_| cu::UNKNOWN)?;
        put_text(out, length, name.text().map_err(|_| cu::UNKNOWN)?)
    }

    on ordinal fn cuDeviceGetUuid(out: *mut [u8; 16], ordinal: c_int) |driver| {
        put(out, uuid(driver, ordinal, false)?)
    }

    on ordinal fn cuDeviceGetUuid_v2(out: *mut [u8; 16], ordinal: c_int) |driver| {
        put(out, uuid(driver, ordinal, true)?)
    }

    on ordinal fn cuDeviceTotalMem_v2(out: *mut usize, ordinal: c_int) |driver| {
        let device = driver.device(driver.ordinal(ordinal)?)?;
        let info = device.memory(Function::nvmlDeviceGetMemoryInfo_v2).map_err(|_| cu::UNKNOWN)?;
        let member = |i| info.u64(i).map_err(|_| cu::UNKNOWN);
        put(out, (member(0)? - member(1)?) as usize)
    }

    on ordinal fn cuDeviceGetAttribute(out: *mut c_int, number: c_int, ordinal: c_int) |driver| {
        let device = driver.device(driver.ordinal(ordinal)?)?;
        if !(1..=LAST_ATTRIBUTE).contains(&number) {
            return Err(cu::INVALID_VALUE);
        }
        let set = device.board().value(Function::cuDeviceGetAttribute, &[number as u32]).and_then(|v| v.u64(0));
        put(out, set.unwrap_or_else(|_| attribute(&device, number as u32)) as c_int)
    }

    on ordinal fn cuDeviceGetPCIBusId(out: *mut c_char, length: c_int, ordinal: c_int) |driver| {
        put_text(out, length, &bus_id(driver.devices[driver.ordinal(ordinal)?].gpu))
    }

    on from fn cuDeviceCanAccessPeer(out: *mut c_int, from: c_int, to: c_int) |driver| {
        put(out, c_int::from(peers(driver, from, to)?))
    }

    on from fn cuDeviceGetP2PAttribute(out: *mut c_int, number: c_int, from: c_int, to: c_int) |driver| {
        let linked = peers(driver, from, to)?;
        put(out, match number {
            // The rank of the way, then whether memory can be reached, and whether atomically.
            1 => 0,
            2..=4 => c_int::from(linked),
            _ => return Err(cu::INVALID_VALUE),
        })
    }
}

/// Whether two devices reach each other's memory.
fn peers(driver: &Driver, from: c_int, to: c_int) -> Answer<bool> {
    let (from, to) = (driver.ordinal(from)?, driver.ordinal(to)?);
    Ok(from != to && linked(&driver.device(from)?) && linked(&driver.device(to)?))
}

/// Whether a device reaches others' memory: a whole GPU with NVLink.
pub(super) fn linked(device: &Device) -> bool {
    device.mig.is_none() && device.gpu.model.behaviour.nvlink_bytes > 0.0
}

/// A handle.
pub(super) type Handle = *mut c_void;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_sixteen_bytes() {
        let bytes = uuid_bytes("GPU-00000000-0000-4000-8000-00000000000a");
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0x0a]);
        assert_eq!(bus_id(0), "0000:00:06.0");
    }
}

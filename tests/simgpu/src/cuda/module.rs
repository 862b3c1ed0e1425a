//! Modules, and the kernels in them. The code that is loaded is compared and left alone: what runs is
//! `kernels/suite.cu` as it was compiled for the CPU, so no other code is taken than was made of the same sources.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::device::{Handle, put};
use super::machine::{self, Known};
use super::result::cu;
use crate::call::cuda;
use crate::device::Device;
use crate::functions::Function;
use crate::value::Answer;

/// A module.
pub struct Module {
    /// Its context.
    pub context: Handle,
}

/// A kernel of a module.
pub struct Kernel {
    /// The module.
    pub module: Handle,
    /// What it does.
    pub known: Known,
    /// Dynamic shared memory that a block may have.
    pub shared_bytes: u32,
}

/// Dynamic shared memory without being asked.
const SHARED: u32 = 48 << 10;

/// Numbers of `CUfunction_attribute`.
const MAX_THREADS: c_uint = 0;
const REGISTERS: c_uint = 4;
const MAX_DYNAMIC_SHARED: c_uint = 8;

/// Whether machine code or PTX can run on a device. Machine code is an ELF file of machine 190, whose flags
/// have the architecture in their second byte, or in their first if they are of the older kind.
fn fits(code: &[u8], capability: (u32, u32)) -> Answer<()> {
    let own = capability.0 * 10 + capability.1;
    if code.starts_with(b"\x7fELF") {
        let half = |at: usize| code.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        let (Some(190), Some(low), Some(abi)) = (half(18), half(48), code.get(8)) else {
            return Err(cu::INVALID_IMAGE);
        };
        let made = u32::from(if *abi >= 8 { low >> 8 } else { low & 0xff });
        let same_family = made / 10 == own / 10 && made <= own;
        return if same_family { Ok(()) } else { Err(cu::NO_BINARY_FOR_GPU) };
    }
    let text = code.split(|b| *b == 0).next().and_then(|text| std::str::from_utf8(text).ok());
    let target = text.and_then(|text| text.split_once(".target sm_")).ok_or(cu::INVALID_IMAGE)?;
    let digits: String = target.1.chars().take_while(char::is_ascii_digit).collect();
    match digits.parse::<u32>() {
        Ok(made) if made <= own => Ok(()),
        Ok(_) => Err(cu::NO_BINARY_FOR_GPU),
        Err(_) => Err(cu::INVALID_PTX),
    }
}

/// The first bytes of code of unknown length: an ELF file's header, or text up to its end.
///
/// # Safety
/// `image` is code that a driver would take, or begins with what is none.
unsafe fn beginning<'a>(image: *const c_void) -> &'a [u8] {
    const HEADER: usize = 64;
    // SAFETY: there are at least the bytes up to the first that differs from an ELF file's.
    unsafe {
        let bytes = image.cast::<u8>();
        let elf = (0..4).all(|i| *bytes.add(i) == b"\x7fELF"[i]);
        let length = if elf { HEADER } else { CStr::from_ptr(bytes.cast()).to_bytes().len() };
        std::slice::from_raw_parts(bytes, length)
    }
}

/// The machine code in `kernels/bin`.
const MACHINE_CODE: &[&[u8]] = include!(concat!(env!("OUT_DIR"), "/machine_code.rs"));

/// Whether machine code or PTX is what this library's kernels are as well.
///
/// # Safety
/// `image` is code that a driver would take.
unsafe fn ours(image: *const c_void) -> Answer<()> {
    let bytes = image.cast::<u8>();
    // SAFETY: a header, or the zero byte of a text, says how long code is. So there are at least the bytes up to the
    // first that differs, and no more are read.
    let equal = |code: &&[u8]| code.iter().enumerate().all(|(at, byte)| unsafe { *bytes.add(at) } == *byte);
    if MACHINE_CODE.iter().any(equal) {
        return Ok(());
    }
    eprintln!(
        "simgpu: this machine code is not of the kernels that are simulated here: the program and libsimgpu.so \
         are of different builds"
    );
    Err(cu::INVALID_IMAGE)
}

fn capability(device: &Device) -> (u32, u32) {
    let value = device.value(Function::nvmlDeviceGetCudaComputeCapability, &[]);
    let member = |i| value.as_ref().ok().and_then(|v| v.u32(i).ok()).unwrap_or(0);
    (member(0), member(1))
}

/// Blocks of a kernel that a multiprocessor has at once.
pub fn blocks_of_sm(device: &Device, known: Known, threads: u32, shared_bytes: u32) -> u32 {
    let compute = &device.gpu.model.compute;
    // The driver keeps a KiB of each block for itself.
    let by_memory = compute.shared_bytes / (shared_bytes + 1024);
    // As if no kernel used more than 64 registers.
    let by_threads = compute.threads.min(1024) / threads.next_multiple_of(32).max(32);
    if threads > known.threads() { 0 } else { by_memory.min(by_threads).min(32) }
}

cuda! {
    fn cuModuleLoadData(out: *mut Handle, image: *const c_void) |driver| {
        let (context, device) = driver.here()?;
        if image.is_null() {
            return Err(cu::INVALID_VALUE);
        }
        fits(beginning(image), capability(&device))?;
        ours(image)?;
        let module = driver.modules.add(Module { context });
        put(out, module)
    }

    fn cuModuleUnload(module: Handle) |driver| {
        driver.modules.take(module)?;
        driver.kernels.retain(|k| k.module != module);
        Ok(())
    }

    fn cuModuleGetFunction(out: *mut Handle, module: Handle, name: *const c_char) |driver| {
        driver.modules.get(module)?;
        if name.is_null() {
            return Err(cu::INVALID_VALUE);
        }
        let known = Known::named(CStr::from_ptr(name)).ok_or(cu::NOT_FOUND)?;
        let kernel = driver.kernels.add(Kernel { module, known, shared_bytes: SHARED });
        put(out, kernel)
    }

    fn cuModuleGetGlobal_v2(out: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char) |driver| {
        let context = driver.modules.get(module)?.context;
        if name.is_null() {
            return Err(cu::INVALID_VALUE);
        }
        let (address, length) = machine::words(CStr::from_ptr(name)).ok_or(cu::NOT_FOUND)?;
        driver.memory.know(context, address, length as u64);
        if !bytes.is_null() {
            put(bytes, length)?;
        }
        if out.is_null() { Ok(()) } else { put(out, address) }
    }

    fn cuFuncGetAttribute(out: *mut c_int, attribute: c_uint, kernel: Handle) |driver| {
        let kernel = driver.kernels.get(kernel)?;
        put(out, match attribute {
            MAX_THREADS => kernel.known.threads() as c_int,
            REGISTERS => 64,
            MAX_DYNAMIC_SHARED => kernel.shared_bytes as c_int,
            1..=15 => 0,
            _ => return Err(cu::INVALID_VALUE),
        })
    }

    fn cuFuncSetAttribute(kernel: Handle, attribute: c_uint, value: c_int) |driver| {
        let most = driver.here()?.1.gpu.model.compute.shared_bytes_of_block;
        let kernel = driver.kernels.get_mut(kernel)?;
        let value = u32::try_from(value).map_err(|_| cu::INVALID_VALUE)?;
        match attribute {
            MAX_DYNAMIC_SHARED if value <= most => kernel.shared_bytes = value,
            // Which part of the memory next to a multiprocessor is shared memory.
            9 => {}
            _ => return Err(cu::INVALID_VALUE),
        }
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: *mut c_int, kernel: Handle, threads: c_int, shared_bytes: usize,
    ) |driver| {
        let (_, device) = driver.here()?;
        let known = driver.kernels.get(kernel)?.known;
        put(out, blocks_of_sm(&device, known, threads as u32, shared_bytes as u32) as c_int)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: *mut c_int, kernel: Handle, threads: c_int, shared_bytes: usize, _flags: c_uint,
    ) |driver| {
        let (_, device) = driver.here()?;
        let known = driver.kernels.get(kernel)?.known;
        put(out, blocks_of_sm(&device, known, threads as u32, shared_bytes as u32) as c_int)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(abi: u8, flags: u32) -> Vec<u8> {
        let mut code = vec![0; 64];
        code[..4].copy_from_slice(b"\x7fELF");
        code[8] = abi;
        code[18] = 190;
        code[48..52].copy_from_slice(&flags.to_le_bytes());
        code
    }

    #[test]
    fn code_runs_where_it_was_made_for() {
        assert_eq!(fits(&elf(7, 0x005a_0d5a), (9, 0)), Ok(()));
        assert_eq!(fits(&elf(7, 0x0050_0550), (8, 9)), Ok(()));
        assert_eq!(fits(&elf(7, 0x0059_0559), (8, 6)), Err(cu::NO_BINARY_FOR_GPU));
        assert_eq!(fits(&elf(8, 0x0600_6402), (10, 0)), Ok(()));
        assert_eq!(fits(b".version 8.2\n.target sm_75\n\0", (9, 0)), Ok(()));
        assert_eq!(fits(b".version 8.2\n.target sm_90a\n", (8, 0)), Err(cu::NO_BINARY_FOR_GPU));
        assert_eq!(fits(b"nonsense", (9, 0)), Err(cu::INVALID_IMAGE));
    }
}

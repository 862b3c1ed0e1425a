//! Launching kernels: they run at once on the CPU, and take as long as their work would take on the GPU.

use std::ffi::{c_uint, c_void};

use super::device::Handle;
use super::driver::Driver;
use super::engine::Unit;
use super::machine::{Kind, Known, Launch};
use super::module::blocks_of_sm;
use super::rates;
use super::result::cu;
use crate::call::cuda;
use crate::hardware::{self, Hardware, Wrong};
use crate::value::Answer;

/// What every kernel takes beside its work, nanoseconds.
const KERNEL_NS: u64 = 1700;

/// What a round of `sm_sdc` takes, nanoseconds.
const SDC_ROUND_NS: u64 = 5000;

/// The members of the kernels' arguments that this needs, as 64-bit words of the structure.
struct Args<'a> {
    name: &'static [u8],
    bytes: &'a [u8],
}

impl Args<'_> {
    /// The word of that number.
    fn word(&self, index: usize) -> u64 {
        let at = self.bytes.get(index * 8..index * 8 + 8);
        at.and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// The words that are addresses.
    fn addresses(&self) -> &'static [usize] {
        match self.name {
            b"sm_rate" | b"tensor" | b"sm_sdc" | b"overlap" | b"transform" => &[0, 1],
            b"hbm_read" | b"l2" => &[0, 2, 3],
            b"fill" => &[0],
            b"check" => &[0, 4],
            _ => &[],
        }
    }

    /// Bytes of memory that it works on.
    fn working_set(&self) -> u64 {
        match self.name {
            b"hbm_read" | b"l2" => self.word(1) * 16,
            b"fill" | b"check" => self.word(1) * 8,
            b"overlap" | b"transform" => self.word(2) * 8,
            _ => 0,
        }
    }

    /// How long it takes at least, by what it does beside what is counted.
    fn least_ns(&self, bytes_of_ns: f64) -> u64 {
        match self.name {
            b"sm_sdc" => (self.word(2) as u32 as u64) * SDC_ROUND_NS,
            b"overlap" | b"transform" => (self.working_set() as f64 / bytes_of_ns) as u64,
            _ => 0,
        }
    }
}

impl Driver {
    /// What is wrong with a multiprocessor in this launch of a kernel.
    fn wrong(&mut self, device: &crate::device::Device, name: &'static [u8]) -> Option<Wrong> {
        let number = self.launches.entry(name).or_default();
        *number += 1;
        let number = *number - 1;
        device.hardware().find_map(|h| match h {
            Hardware::Wrong(wrong) if number.is_multiple_of(u64::from(wrong.every)) => Some(*wrong),
            _ => None,
        })
    }

    /// Runs a kernel in a stream.
    fn launch(&mut self, known: Known, grid: Grid, stream: Handle, args: &[u8]) -> Answer<()> {
        let (context, device) = self.here()?;
        let args = Args { name: known.name().to_bytes(), bytes: args };
        for index in args.addresses() {
            // What no kernel may do. The error would come with the next call that waits.
            self.memory.find(args.word(*index), 1).ok_or(cu::ILLEGAL_ADDRESS)?;
        }
        let noise = self.next_work();
        let rates = rates::kernel(&device, args.working_set(), noise);
        let wrong = self.wrong(&device, args.name);
        let blocks_of_sm = blocks_of_sm(&device, known, grid.threads, grid.shared_bytes);
        if blocks_of_sm == 0 {
            return Err(cu::LAUNCH_OUT_OF_RESOURCES);
        }
        let begin = self.ready(context, stream)?.0.max(self.now);
        let in_kernel = wrong.filter(|_| known.kind() == Kind::Rate);
        let begin_ns = self.device_clock(begin);
        let mut launch = Launch {
            blocks: grid.blocks,
            threads: grid.threads,
            shared_bytes: grid.shared_bytes,
            sms: rates.sms,
            blocks_of_sm,
            wrong_sm: in_kernel.map_or(0, |w| w.sm),
            wrong_unit: in_kernel.map_or(0, |w| w.unit as u32),
            wrong_thread: in_kernel.map_or(0, |w| w.lane),
            wrong_bits: in_kernel.map_or(0, |w| 1u32.checked_shl(w.bit).unwrap_or(0)),
            wrong_zero: u32::from(in_kernel.is_some_and(|w| w.zero)),
            sm_parts: rates.sm.as_ptr(),
            fp32: rates.fp32,
            tensor: rates.tensor,
            memory: rates.memory,
            l2: rates.l2,
            ghz: rates.ghz,
            begin_ns,
            begin_cycles: (begin_ns as f64 * rates.ghz) as u64,
            cycles: 0,
        };
        // SAFETY: the addresses in the arguments are the device's, and the lock of the driver is held.
        if !unsafe { known.run(args.bytes, &mut launch) } {
            return Err(cu::OUT_OF_MEMORY);
        }
        if let Some(wrong) = wrong {
            self.spoil(&args, grid.blocks, rates.sms, &wrong);
        }
        self.stick(context)?;
        let counted = (launch.cycles as f64 / rates.ghz) as u64;
        let ns = KERNEL_NS + counted.max(args.least_ns(rates.memory * rates.ghz));
        let sms = grid.blocks.min(rates.sms);
        self.work(stream, Unit::Sms(sms), (ns as f64 * rates.stretch) as u64)?;
        Ok(())
    }

    /// Makes the results of a wrong multiprocessor wrong: those that `sm_sdc` wrote down, unit by unit.
    fn spoil(&self, args: &Args, blocks: u32, sms: u32, wrong: &Wrong) {
        const THREADS: u64 = 256;
        const UNITS: u64 = 7;
        if args.name != b"sm_sdc" || u64::from(wrong.lane) >= THREADS {
            return;
        }
        for block in (0..u64::from(blocks)).filter(|b| b % u64::from(sms) == u64::from(wrong.sm)) {
            let index = (block * UNITS + wrong.unit as u64) * THREADS + u64::from(wrong.lane);
            let at = args.word(0) + index * 8;
            if self.memory.find(at, 8).is_some() {
                let word = at as *mut u64;
                // SAFETY: within an allocation; results are aligned as the kernel wrote them.
                unsafe { word.write(if wrong.zero { 0 } else { word.read() ^ 1 << wrong.bit }) };
            }
        }
    }
}

/// The shape of a launch.
struct Grid {
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
}

cuda! {
    fn cuLaunchKernel(
        kernel: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) |driver| {
        let kernel = driver.kernels.get(kernel)?;
        let (known, most) = (kernel.known, kernel.shared_bytes);
        // All kernels have grids of one dimension, and one structure for an argument.
        let flat = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1;
        if !flat || grid_x == 0 || block_x == 0 || shared_bytes > most || !extra.is_null() {
            return Err(cu::INVALID_VALUE);
        }
        if params.is_null() || (*params).is_null() {
            return Err(cu::INVALID_VALUE);
        }
        let bytes = std::slice::from_raw_parts((*params).cast::<u8>(), known.args_bytes());
        // A copy that is aligned for the structure.
        let mut args = vec![0u64; known.args_bytes().div_ceil(8)];
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), args.as_mut_ptr().cast(), bytes.len());
        let args = std::slice::from_raw_parts(args.as_ptr().cast::<u8>(), bytes.len());
        let grid = Grid { blocks: grid_x, threads: block_x, shared_bytes };
        driver.launch(known, grid, stream, args)
    }
}

/// The units have the kernels' numbers.
const _: () = assert!(hardware::Unit::Atomic as u32 == 6);

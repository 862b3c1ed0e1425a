//! The kernels on the CPU: what `cuda/machine.h` says, in Rust.

use std::ffi::{CStr, c_char, c_int, c_void};

/// How a kernel is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All threads, by turns.
    Together,
    /// One thread of each block, in place of all.
    Rate,
    /// One thread of each block, which does the work of all.
    Share,
}

#[repr(C)]
struct SimKernel {
    name: *const c_char,
    body: *const c_void,
    args_bytes: u32,
    threads: u32,
    kind: u32,
    reserved: u32,
}

#[repr(C)]
struct SimWords {
    name: *const c_char,
    words: *mut u32,
    bytes: u64,
}

/// A launch.
#[repr(C)]
pub struct Launch {
    /// Blocks, and threads of each.
    pub blocks: u32,
    /// See `blocks`.
    pub threads: u32,
    /// Shared memory of a block.
    pub shared_bytes: u32,
    /// Multiprocessors, and blocks that one has at once.
    pub sms: u32,
    /// See `sms`.
    pub blocks_of_sm: u32,
    /// A wrong multiprocessor; none without bits and without `wrong_zero`.
    pub wrong_sm: u32,
    /// Which unit of it.
    pub wrong_unit: u32,
    /// Of which thread.
    pub wrong_thread: u32,
    /// The bits that flip.
    pub wrong_bits: u32,
    /// Whether all bits are gone.
    pub wrong_zero: u32,
    /// The part of its rates that each multiprocessor reaches.
    pub sm_parts: *const f64,
    /// FMA of a multiprocessor in a cycle.
    pub fp32: f64,
    /// Tensor FMA, likewise.
    pub tensor: f64,
    /// Bytes of memory in a cycle, all multiprocessors together.
    pub memory: f64,
    /// Bytes of L2, likewise.
    pub l2: f64,
    /// Cycles in a nanosecond.
    pub ghz: f64,
    /// The clocks when it begins.
    pub begin_ns: u64,
    /// See `begin_ns`.
    pub begin_cycles: u64,
    /// What it took, once it has run.
    pub cycles: u64,
}

unsafe extern "C" {
    fn sim_kernel(index: u32) -> *const SimKernel;
    fn sim_words(index: u32) -> *const SimWords;
    fn sim_run(kernel: *const SimKernel, args: *const c_void, launch: *mut Launch) -> c_int;
}

/// A kernel that there is.
#[derive(Clone, Copy)]
pub struct Known(&'static SimKernel);

// SAFETY: what it points to is constant.
unsafe impl Send for Known {}

impl Known {
    /// The kernel of that name.
    pub fn named(name: &CStr) -> Option<Known> {
        // SAFETY: the library answers null or what lives as long as the program.
        let all = (0..).map_while(|index| unsafe { sim_kernel(index).as_ref() });
        all.map(Known).find(|kernel| kernel.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static CStr {
        // SAFETY: names are literals.
        unsafe { CStr::from_ptr(self.0.name) }
    }

    /// Bytes of its argument.
    pub fn args_bytes(self) -> usize {
        self.0.args_bytes as usize
    }

    /// Threads of a block at most.
    pub fn threads(self) -> u32 {
        self.0.threads
    }

    /// How it is run.
    pub fn kind(self) -> Kind {
        match self.0.kind {
            0 => Kind::Together,
            1 => Kind::Rate,
            _ => Kind::Share,
        }
    }

    /// Runs it. False if there is no memory for it.
    ///
    /// # Safety
    /// `args` is what the kernel takes, with addresses that are valid for it, and no other kernel runs.
    pub unsafe fn run(self, args: &[u8], launch: &mut Launch) -> bool {
        // SAFETY: as above; the launch's list of multiprocessors is as long as it says.
        unsafe { sim_run(self.0, args.as_ptr().cast(), launch) == 0 }
    }
}

/// A module's words of that name: where they are, and how many bytes.
pub fn words(name: &CStr) -> Option<(u64, usize)> {
    // SAFETY: the library answers null or what lives as long as the program.
    let mut all = (0..).map_while(|index| unsafe { sim_words(index).as_ref() });
    // SAFETY: names are literals.
    let found = all.find(|words| unsafe { CStr::from_ptr(words.name) } == name)?;
    Some((found.words as u64, found.bytes as usize))
}

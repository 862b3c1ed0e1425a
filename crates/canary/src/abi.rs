//! Arguments, results and shapes that the host and the kernels share. `kernels/abi.h` declares the same in C++, and a
//! test compares the two. Every kernel has one structure as its parameter, passed by value.

#![allow(unsafe_code)]

use serde::{Deserialize, Serialize};

/// A type that can be copied to and from the device byte by byte.
///
/// # Safety
/// `repr(C)`, no padding, no pointers of this process, valid for all bit patterns.
pub(crate) unsafe trait Plain: Copy + Default + 'static {}

macro_rules! plain {
    ($($type:ty),+ $(,)?) => { $(
        // SAFETY: integers, or structures of integers without padding (their sizes are asserted below).
        unsafe impl Plain for $type {}
    )+ };
}

/// Record of one block about the multiprocessor that it ran on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmStamp {
    /// `%smid`. The numbers need not be contiguous.
    pub smid: u32,
    /// Number of threads in the block, as the device counted them.
    pub threads: u32,
    /// `clock64()` before the work.
    pub begin_cycles: u64,
    /// `clock64()` after the work.
    pub end_cycles: u64,
    /// `%globaltimer` before the work, nanoseconds.
    pub begin_ns: u64,
    /// `%globaltimer` after it, nanoseconds.
    pub end_ns: u64,
}

/// A thread whose result differed from the expected one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadLane {
    pub smid: u32,
    /// Index of the thread within its block. The warp is `thread / 32` and the lane is `thread % 32`.
    pub thread: u32,
    pub expected: u64,
    pub got: u64,
}

/// Maximum number of bad lanes that are listed individually.
pub const BAD_LANES: usize = 62;

/// The first bad lanes of a launch. The host zeroes the structure before the launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BadLanes {
    /// Number of all bad lanes, including those that are not listed.
    pub count: u32,
    pub reserved: u32,
    pub lanes: [BadLane; BAD_LANES],
}

impl Default for BadLanes {
    fn default() -> Self {
        Self { count: 0, reserved: 0, lanes: [BadLane::default(); BAD_LANES] }
    }
}

/// A word of memory whose content differed from the value written to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadWord {
    /// Bytes from the start of the buffer.
    pub offset: u64,
    pub expected: u64,
    pub got: u64,
}

/// Maximum number of bad words that are listed individually.
pub const BAD_WORDS: usize = 62;

/// The first bad words of a launch. The host zeroes the structure before the launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BadWords {
    /// Number of all bad words, including those that are not listed.
    pub count: u32,
    pub reserved: u32,
    pub words: [BadWord; BAD_WORDS],
}

impl Default for BadWords {
    fn default() -> Self {
        Self { count: 0, reserved: 0, words: [BadWord::default(); BAD_WORDS] }
    }
}

/// Number of threads in a block of `sm_rate`.
pub const SM_RATE_THREADS: u32 = 1024;
/// Number of independent chains in a thread of `sm_rate`.
pub const SM_RATE_CHAINS: u32 = 2;
/// FMA operations of one chain in one turn of `sm_rate`.
pub const SM_RATE_CHAIN_FMA: u32 = 128;
/// Factor of a chain's step, which is `x = fma(x, SM_RATE_A, SM_RATE_B)`.
pub const SM_RATE_A: f32 = -0.9999999;
/// Summand of a chain's step.
pub const SM_RATE_B: f32 = 1.2345;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SmRateArgs {
    /// Address of one [`SmStamp`] per block.
    pub stamps: u64,
    pub bad: u64,
    pub turns: u32,
    /// Seed from which the chains start.
    pub seed: u32,
    /// Concatenated bits of the chains after the turns. The first chain has the highest bits.
    pub expected: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorArgs {
    /// Address of one [`SmStamp`] per block.
    pub stamps: u64,
    /// Address of [`BadLanes`]. Its values are the bits of the FP32 sum.
    pub bad: u64,
    pub turns: u32,
    /// Value of every element of the left matrix, 1 to 3.
    pub a: u32,
    /// Value of every element of the right matrix, 1 to 3.
    pub b: u32,
    pub reserved: u32,
}

/// Minimum dynamic shared memory of `tensor`, in bytes.
pub const TENSOR_SHARED_BYTES: u32 = 10240;

/// Type of the module's global `tensor_shape`. The kernel's shape differs between architectures.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorShape {
    /// Number of threads in a block.
    pub threads: u32,
    /// Low half of the FMA operations that a block does in one turn.
    pub fma_low: u32,
    /// High half of the FMA operations that a block does in one turn.
    pub fma_high: u32,
    /// Number of products summed into an element in one turn.
    pub depth: u32,
}

/// Number of threads in a block of `sm_sdc`.
pub const SDC_THREADS: usize = 256;
/// Number of units that `sm_sdc` tests, in the order of their results.
pub const SDC_UNITS: usize = 7;
/// Names of the units, as reported in a mismatch.
pub const SDC_UNIT_NAMES: [&str; SDC_UNITS] =
    ["int32", "fp32", "fp64", "tensor", "shared", "shuffle", "atomic"];
/// Rounds in one launch of `sm_sdc`. Further launches with other seeds find more than further rounds would.
pub const SDC_ROUNDS: u32 = 8;
/// Maximum number of rounds for which the sums of the tensor unit are exact.
pub const SDC_MAX_ROUNDS: u32 = 256;
/// Number of shared memory words that `sm_sdc` writes and reads.
pub const SDC_SHARED_WORDS: usize = 8192;
/// Number of counters in the shared memory of `sm_sdc`.
pub const SDC_COUNTERS: usize = 64;
/// Minimum dynamic shared memory of `sm_sdc`, in bytes.
pub const SDC_SHARED_BYTES: u32 = 4 * (SDC_SHARED_WORDS + SDC_COUNTERS) as u32;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SmSdcArgs {
    /// Address of `u64 [block][SDC_UNITS][SDC_THREADS]`.
    pub results: u64,
    /// Address of one [`SmStamp`] per block.
    pub stamps: u64,
    /// Number of rounds per unit.
    pub rounds: u32,
    /// Seed from which all inputs are derived.
    pub seed: u32,
}

/// Required number of threads in a block of `hbm_read` and `l2`.
pub const READ_THREADS: u32 = 1024;
/// Minimum dynamic shared memory of `hbm_read` and `l2`, in bytes.
pub const READ_SHARED_BYTES: u32 = 8 * READ_THREADS;

/// Arguments of `hbm_read` and `l2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadArgs {
    pub data: u64,
    /// Length of the buffer in 16-byte words.
    pub words: u64,
    /// Address of one [`SmStamp`] per block.
    pub stamps: u64,
    /// Address of one `u64` per block, the sum modulo 2^64 of all 64-bit words that the block read.
    pub sums: u64,
    /// Number of passes over the whole buffer.
    pub passes: u32,
    pub reserved: u32,
}

/// Content of word `i` of a buffer, computed from `i` and two parameters, `a` and `b`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// `a + i * b`.
    Arithmetic = 0,
    /// `a` in every word.
    Constant = 1,
    /// `a + 8 * i`, which is the word's own address if `a` is the buffer's.
    Address = 2,
    /// Complement of the word of [`Pattern::Address`].
    NotAddress = 3,
    /// `splitmix64(a + i)`, a pseudorandom number.
    Random = 4,
    /// Complement of the word of [`Pattern::Random`].
    NotRandom = 5,
}

/// Number of threads in a block of `fill` and `check`.
pub const WALK_THREADS: u32 = 512;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FillArgs {
    pub data: u64,
    /// Length of the buffer in 8-byte words.
    pub words: u64,
    /// First parameter of the pattern.
    pub a: u64,
    /// Second parameter of the pattern.
    pub b: u64,
    pub pattern: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckArgs {
    pub data: u64,
    /// Length of the buffer in 8-byte words.
    pub words: u64,
    /// First parameter of the pattern.
    pub a: u64,
    /// Second parameter of the pattern.
    pub b: u64,
    pub bad: u64,
    pub pattern: u32,
    pub reserved: u32,
}

/// Number of threads in a block of `overlap`.
pub const OVERLAP_THREADS: u32 = 256;
/// Factor of a step of `overlap`, which is `x = fma(x, OVERLAP_A, OVERLAP_B)`.
pub const OVERLAP_A: f32 = SM_RATE_A;
/// Summand of a step of `overlap`.
pub const OVERLAP_B: f32 = SM_RATE_B;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OverlapArgs {
    /// Address of the FP32 input.
    pub x: u64,
    /// Address of the FP32 output.
    pub y: u64,
    pub count: u64,
    /// Number of steps per element.
    pub turns: u32,
    pub reserved: u32,
}

/// Number of threads in a block of `transform`.
pub const TRANSFORM_THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TransformArgs {
    /// Address of the FP32 input.
    pub x: u64,
    /// Address of the FP32 output.
    pub y: u64,
    pub count: u64,
}

/// Arguments of `launch`, which does nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchArgs {
    pub reserved: u64,
}

plain!(u8, u32, u64, f32, SmStamp, BadLane, BadLanes, BadWord, BadWords, TensorShape);

const _: () = {
    assert!(size_of::<SmStamp>() == 40);
    assert!(size_of::<BadLane>() == 24 && size_of::<BadLanes>() == 8 + BAD_LANES * 24);
    assert!(size_of::<BadWord>() == 24 && size_of::<BadWords>() == 8 + BAD_WORDS * 24);
    assert!(SM_RATE_CHAINS * u32::BITS <= u64::BITS, "`SmRateArgs::expected` has room for all chains");
    assert!(size_of::<SmRateArgs>() == 32 && size_of::<TensorArgs>() == 32);
    assert!(size_of::<SmSdcArgs>() == 24 && size_of::<ReadArgs>() == 40);
    assert!(size_of::<FillArgs>() == 40 && size_of::<CheckArgs>() == 48);
    assert!(size_of::<OverlapArgs>() == 32 && size_of::<TransformArgs>() == 24);
    assert!(size_of::<TensorShape>() == 16 && size_of::<LaunchArgs>() == 8);
};

#[cfg(test)]
mod tests;

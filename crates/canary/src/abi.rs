//! What the host and the kernels agree on, as `kernels/abi.h` says it in C++ (a test compares the two):
//! arguments, results and shapes. Every kernel takes one structure by value.

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

/// What one block noted of the multiprocessor it ran on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmStamp {
    /// `%smid`; numbers need not be contiguous.
    pub smid: u32,
    /// Threads of the block, as the device saw it.
    pub threads: u32,
    /// `clock64()` before the work.
    pub begin_cycles: u64,
    /// `clock64()` after it.
    pub end_cycles: u64,
    /// `%globaltimer` before the work, nanoseconds.
    pub begin_ns: u64,
    /// `%globaltimer` after it, nanoseconds.
    pub end_ns: u64,
}

/// A thread whose result was not the expected one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadLane {
    pub smid: u32,
    /// Thread within its block; the warp is `thread / 32`, the lane `thread % 32`.
    pub thread: u32,
    /// What it should have had.
    pub expected: u64,
    pub got: u64,
}

/// Bad lanes that are listed one by one.
pub const BAD_LANES: usize = 62;

/// The first bad lanes of a launch. Zeroed before it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BadLanes {
    /// All of them, also those that found no room.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// The first of them.
    pub lanes: [BadLane; BAD_LANES],
}

impl Default for BadLanes {
    fn default() -> Self {
        Self { count: 0, reserved: 0, lanes: [BadLane::default(); BAD_LANES] }
    }
}

/// A word of memory that did not hold what was written.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadWord {
    /// Bytes from the start of the buffer.
    pub offset: u64,
    pub expected: u64,
    pub got: u64,
}

/// Bad words that are listed one by one.
pub const BAD_WORDS: usize = 62;

/// The first bad words of a launch. Zeroed before it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BadWords {
    /// All of them, also those that found no room.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// The first of them.
    pub words: [BadWord; BAD_WORDS],
}

impl Default for BadWords {
    fn default() -> Self {
        Self { count: 0, reserved: 0, words: [BadWord::default(); BAD_WORDS] }
    }
}

/// Threads of a block of `sm_rate`.
pub const SM_RATE_THREADS: u32 = 1024;
/// Independent chains of a thread of `sm_rate`.
pub const SM_RATE_CHAINS: u32 = 2;
/// FMA of one chain in one turn of `sm_rate`.
pub const SM_RATE_CHAIN_FMA: u32 = 128;
/// A step of a chain of `sm_rate` is `x = fma(x, SM_RATE_A, SM_RATE_B)`.
pub const SM_RATE_A: f32 = -0.9999999;
/// See [`SM_RATE_A`].
pub const SM_RATE_B: f32 = 1.2345;

/// Arguments of `sm_rate`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SmRateArgs {
    /// Address of an [`SmStamp`] a block.
    pub stamps: u64,
    /// Address of [`BadLanes`].
    pub bad: u64,
    /// Turns of the loop.
    pub turns: u32,
    /// From which the chains start.
    pub seed: u32,
    /// The chains' bits after the turns, side by side, the first chain's highest.
    pub expected: u64,
}

/// Arguments of `tensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorArgs {
    /// Address of an [`SmStamp`] a block.
    pub stamps: u64,
    /// Address of [`BadLanes`]; values are the bits of the FP32 sum.
    pub bad: u64,
    /// Turns of the loop.
    pub turns: u32,
    /// Every element of the left matrix, 1 to 3.
    pub a: u32,
    /// Every element of the right matrix, 1 to 3.
    pub b: u32,
    /// Zero.
    pub reserved: u32,
}

/// Dynamic shared memory that `tensor` needs at least, bytes.
pub const TENSOR_SHARED_BYTES: u32 = 10240;

/// What the module's global `tensor_shape` holds: the kernel's shape differs by architecture.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorShape {
    /// Threads of a block.
    pub threads: u32,
    /// FMA of a block in one turn, low half.
    pub fma_low: u32,
    /// FMA of a block in one turn, high half.
    pub fma_high: u32,
    /// Products summed into each element in one turn.
    pub depth: u32,
}

/// Threads of a block of `sm_sdc`.
pub const SDC_THREADS: usize = 256;
/// Units that `sm_sdc` tries, in the order of their results.
pub const SDC_UNITS: usize = 7;
/// Names of the units, as in a mismatch.
pub const SDC_UNIT_NAMES: [&str; SDC_UNITS] =
    ["int32", "fp32", "fp64", "tensor", "shared", "shuffle", "atomic"];
/// Rounds that one launch of `sm_sdc` should do; more is gained by other seeds.
pub const SDC_ROUNDS: u32 = 8;
/// Up to which the sums of its tensor unit are exact.
pub const SDC_MAX_ROUNDS: u32 = 256;
/// Words of its shared memory that are written and read.
pub const SDC_SHARED_WORDS: usize = 8192;
/// Its counters in shared memory.
pub const SDC_COUNTERS: usize = 64;
/// Dynamic shared memory that it needs at least, bytes.
pub const SDC_SHARED_BYTES: u32 = 4 * (SDC_SHARED_WORDS + SDC_COUNTERS) as u32;

/// Arguments of `sm_sdc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SmSdcArgs {
    /// Address of `u64 [block][SDC_UNITS][SDC_THREADS]`.
    pub results: u64,
    /// Address of an [`SmStamp`] a block.
    pub stamps: u64,
    /// Rounds of each unit.
    pub rounds: u32,
    /// From which all inputs follow.
    pub seed: u32,
}

/// Threads of a block of `hbm_read` and `l2`, exactly.
pub const READ_THREADS: u32 = 1024;
/// Dynamic shared memory that they need at least, bytes.
pub const READ_SHARED_BYTES: u32 = 8 * READ_THREADS;

/// Arguments of `hbm_read` and `l2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadArgs {
    /// Address of the buffer.
    pub data: u64,
    /// Its length in 16-byte words.
    pub words: u64,
    /// Address of an [`SmStamp`] a block.
    pub stamps: u64,
    /// Address of a `u64` a block: the sum of all 64-bit words it read, modulo 2^64.
    pub sums: u64,
    /// How often all is read.
    pub passes: u32,
    /// Zero.
    pub reserved: u32,
}

/// What word `i` of a buffer holds; `a` and `b` are arguments beside it.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// `a + i * b`.
    Arithmetic = 0,
    /// `a`.
    Constant = 1,
    /// `a + 8 * i`: its own address.
    Address = 2,
    /// The complement of that.
    NotAddress = 3,
    /// `splitmix64(a + i)`.
    Random = 4,
    /// The complement of that.
    NotRandom = 5,
}

/// Threads of a block of `fill` and `check`.
pub const WALK_THREADS: u32 = 512;

/// Arguments of `fill`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FillArgs {
    /// Address of the buffer.
    pub data: u64,
    /// Its length in 8-byte words.
    pub words: u64,
    /// First parameter of the pattern.
    pub a: u64,
    /// Second parameter of the pattern.
    pub b: u64,
    /// A [`Pattern`].
    pub pattern: u32,
    /// Zero.
    pub reserved: u32,
}

/// Arguments of `check`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckArgs {
    /// Address of the buffer.
    pub data: u64,
    /// Its length in 8-byte words.
    pub words: u64,
    /// First parameter of the pattern.
    pub a: u64,
    /// Second parameter of the pattern.
    pub b: u64,
    /// Address of [`BadWords`].
    pub bad: u64,
    /// A [`Pattern`].
    pub pattern: u32,
    /// Zero.
    pub reserved: u32,
}

/// Threads of a block of `overlap`.
pub const OVERLAP_THREADS: u32 = 256;
/// A step of `overlap` is `x = fma(x, OVERLAP_A, OVERLAP_B)`.
pub const OVERLAP_A: f32 = SM_RATE_A;
/// See [`OVERLAP_A`].
pub const OVERLAP_B: f32 = SM_RATE_B;

/// Arguments of `overlap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OverlapArgs {
    /// Address of the FP32 input.
    pub x: u64,
    /// Address of the FP32 output.
    pub y: u64,
    pub count: u64,
    /// Steps for each element.
    pub turns: u32,
    /// Zero.
    pub reserved: u32,
}

/// Threads of a block of `transform`.
pub const TRANSFORM_THREADS: u32 = 256;

/// Arguments of `transform`.
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
    /// Zero.
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

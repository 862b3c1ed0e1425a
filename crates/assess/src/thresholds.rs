//! Every threshold, with its source.

use serde::Serialize;

/// From where on a value speaks for something, from where on against it, and why there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// The value speaks for it above this (or below, where `lower_is_better`).
    pub good: f64,
    /// And against it on the other side of this.
    pub bad: f64,
    pub lower_is_better: bool,
    pub source: &'static str,
}

/// What a value says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Vote {
    For,
    Between,
    Against,
    NotMeasured,
}

impl Threshold {
    pub fn judge(&self, value: Option<f64>) -> Vote {
        let Some(value) = value else { return Vote::NotMeasured };
        let (value, good, bad) =
            if self.lower_is_better { (-value, -self.good, -self.bad) } else { (value, self.good, self.bad) };
        match () {
            () if value > good => Vote::For,
            () if value < bad => Vote::Against,
            () => Vote::Between,
        }
    }
}

const fn above(good: f64, bad: f64, source: &'static str) -> Threshold {
    Threshold { good, bad, lower_is_better: false, source }
}

const fn below(good: f64, bad: f64, source: &'static str) -> Threshold {
    Threshold { good, bad, lower_is_better: true, source }
}

/// FLOPs a byte.
pub const DENSITY: Threshold = above(
    10.0,
    1.0,
    "ridge of an H200 by its data sheet: 4.8 TB/s feed 34 TFLOP/s (FP64) from 7 FLOPs a byte on, 67 (FP32) from 14; under 1 \
     the memory's rate alone counts (roofline: Williams, Waterman, Patterson, CACM 52(4), 2009)",
);
/// Independent items.
pub const ITEMS: Threshold = above(
    10_000.0,
    1_000.0,
    "an H200 has 16,896 FP32 lanes (132 multiprocessors x 128, data sheet): 10,000 items fill most of them, 1,000 under a tenth",
);
/// Branch misses of branches.
pub const BRANCHES: Threshold = below(
    0.05,
    0.10,
    "where lanes of a warp branch apart, the warp runs both sides (CUDA C++ Best Practices Guide, \"Branching and \
     Divergence\"): if one lane of twenty does, four of five warps of 32 do (1 - 0.95^32), at one of ten nearly all",
);
/// Misses of the last level in flight, a busy CPU.
pub const ACCESS: Threshold = above(
    4.0,
    1.25,
    "Little's law with 100 ns a load (80 to 140 on servers): a chain of dependent loads has 1 miss in flight, a stream with \
     prefetch 10 and more; a GPU hides latency by many independent loads (Best Practices Guide, \"Coalesced Access to Global \
     Memory\"). Against it only from 0.7 on, under 0.5 instructions a cycle and under 20 GB/s of all threads: fewer misses, \
     or work meanwhile, are no chain of loads, and saturated memory delays every load",
);
/// A chain of dependent loads has at least so many misses in flight: loads of 140 ns and nothing else.
pub const CHAIN_IN_FLIGHT: f64 = 0.7;
/// And fewer instructions a cycle: a load of 100 ns is 300 cycles, of which the CPU waits for most.
pub const CHAIN_INSTRUCTIONS_PER_CYCLE: f64 = 0.5;
/// And all threads together move less than one channel of DDR4-3200 can (25.6 GB/s): the loads wait for each other, not for
/// memory that is saturated.
pub const CHAIN_BYTES_PER_SECOND: f64 = 20e9;
/// From here on misses matter, a thousand instructions: those of the last level, and those of branches.
pub const MISSES_MATTER: f64 = 1.0;
/// Under this many FLOPs an instruction a program hardly computes in floating point.
pub const FLOPS_MATTER: f64 = 0.01;
/// Under this many, fewer than one in ten instructions computes in floating point: FLOPs a byte are high only because it
/// hardly loads from memory.
pub const FLOPS_LEAD: f64 = 0.1;
/// Under this much CPU time start and loader are most of what was counted.
pub const LEAST_CPU_SECONDS: f64 = 0.1;
/// Under this share of the time in which an event was counted, the scaled count is a guess.
pub const LEAST_COUNTED: f64 = 0.05;
/// Up to here a program has the CPU time of one thread: a share of its CPU time is one of its wall time.
pub const ONE_THREAD: f64 = 1.05;
/// From here on that thread computes all the time.
pub const BUSY_THREAD: f64 = 0.95;
/// From this share of its CPUs on, a program may wait for them: a quota, or others on the node.
pub const WAITS_FOR_CPUS: f64 = 0.9;
/// The samples must cover this share of the CPU time: the rest is of processes too short to be sampled, or was lost.
pub const LEAST_SEEN: f64 = 0.8;
/// Fewer samples say nothing of shares: 100 are within 10 points at 95 %.
pub const LEAST_SAMPLES: u64 = 100;

/// Split matrix: FLOPs a byte.
pub const SPLIT_DENSITY: Threshold = above(
    10.0,
    3.0,
    "over the ridge the GPU part earns its transfers; at 3 FLOPs a byte a GPU does under half of its FP64 rate",
);
/// Split matrix: items.
pub const SPLIT_ITEMS: Threshold = above(10_000.0, 1_000.0, ITEMS.source);
/// Split matrix: seconds of the 99th percentile that may be spent.
pub const SPLIT_P99: Threshold = above(
    5e-3,
    2e-3,
    "a call between two services in one data centre costs 0.5 to 1 ms at its 99th percentile, a kernel's launch and copies some \
     10 us: 2 ms leave no room for it, 5 ms do",
);
/// Split matrix: bytes that a call exchanges.
pub const SPLIT_EXCHANGE: Threshold = below(
    100e3,
    1e6,
    "PCIe 5 x16 moves 100 kB in 2 us and 1 MB in 20 us, a 100 Gbit/s network in 8 us and 80 us: kilobytes hide behind a launch, \
     megabytes do not",
);
/// Rows that must speak for a split, of five.
pub const SPLIT_VOTES: usize = 3;

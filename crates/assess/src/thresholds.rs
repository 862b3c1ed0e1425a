//! All thresholds, with their sources.

use serde::Serialize;

/// Values from which a row counts for or against a GPU, and the source of these values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// Limit above which a value counts for it (below which, if `lower_is_better`).
    pub good: f64,
    /// Limit on the other side, beyond which a value counts against it.
    pub bad: f64,
    pub lower_is_better: bool,
    pub source: &'static str,
}

/// Result of a row.
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

/// Limits of the compute density in FLOPs per byte.
pub const DENSITY: Threshold = above(
    10.0,
    1.0,
    "ridge of an H200 by its data sheet: 4.8 TB/s sustain 34 TFLOP/s (FP64) from 7 FLOPs/byte, and 67 TFLOP/s (FP32) from 14; \
     below 1 only the memory bandwidth counts (roofline: Williams, Waterman, Patterson, CACM 52(4), 2009)",
);
/// Limits of the number of independent items.
pub const ITEMS: Threshold = above(
    10_000.0,
    1_000.0,
    "an H200 has 16,896 FP32 lanes (132 multiprocessors x 128, data sheet): 10,000 items fill most lanes, 1,000 less than a tenth",
);
/// Limits of the branch misses per branch.
pub const BRANCHES: Threshold = below(
    0.05,
    0.10,
    "if the lanes of a warp diverge, the warp executes both branches (CUDA C++ Best Practices Guide, \"Branching and \
     Divergence\"): if 5 % of the lanes diverge, 4 of 5 warps of 32 do (1 - 0.95^32), and with 10 % nearly all",
);
/// Limits of the last-level misses in flight per busy CPU.
pub const ACCESS: Threshold = above(
    4.0,
    1.25,
    "Little's law with 100 ns per load (80 to 140 on servers): a chain of dependent loads has 1 miss in flight, a stream with \
     prefetch at least 10; a GPU hides latency with many independent loads (Best Practices Guide, \"Coalesced Access to Global \
     Memory\"). Counts against a GPU only from 0.7, below 0.5 instructions/cycle and below 20 GB/s of all threads: with fewer \
     misses or other work it is not a chain of loads, and saturated memory delays every load",
);
/// Minimum misses in flight of a chain of dependent loads, with loads of 140 ns and nothing else.
pub const CHAIN_IN_FLIGHT: f64 = 0.7;
/// Maximum instructions per cycle of such a chain. A load of 100 ns is 300 cycles, and the CPU waits for most
/// of them.
pub const CHAIN_INSTRUCTIONS_PER_CYCLE: f64 = 0.5;
/// Maximum bytes per second of all threads of such a chain, which is less than one channel of DDR4-3200 can
/// transfer (25.6 GB/s). Above it the memory may be saturated, which delays every load.
pub const CHAIN_BYTES_PER_SECOND: f64 = 20e9;
/// Misses per 1,000 instructions from which they matter, for the last level and for branches.
pub const MISSES_MATTER: f64 = 1.0;
/// FLOPs per instruction below which a program hardly computes in floating point.
pub const FLOPS_MATTER: f64 = 0.01;
/// FLOPs per instruction below which a high density only shows that the program hardly loads from memory.
pub const FLOPS_LEAD: f64 = 0.1;
/// CPU seconds below which start-up and the loader dominate the counts.
pub const LEAST_CPU_SECONDS: f64 = 0.1;
/// Fraction of the time counted below which a scaled count is a guess.
pub const LEAST_COUNTED: f64 = 0.05;
/// Threads used up to which the program is single-threaded, so that a share of its CPU time is a share of its
/// wall time.
pub const ONE_THREAD: f64 = 1.05;
/// Threads used from which a single thread is always busy.
pub const BUSY_THREAD: f64 = 0.95;
/// CPU utilization from which a program may wait for CPUs because of a quota or other work on the node.
pub const WAITS_FOR_CPUS: f64 = 0.9;
/// Fraction of the CPU time that the samples must cover. The rest belongs to processes that were too short to
/// sample, or was lost.
pub const LEAST_SEEN: f64 = 0.8;
/// Minimum number of samples. With 100 samples, a share is accurate within 10 percentage points at 95 %
/// confidence.
pub const LEAST_SAMPLES: u64 = 100;

/// Limits of the split matrix for the compute density in FLOPs per byte.
pub const SPLIT_DENSITY: Threshold = above(
    10.0,
    3.0,
    "above the ridge the GPU part justifies its transfers; at 3 FLOPs/byte a GPU reaches less than half of its FP64 rate",
);
/// Limits of the split matrix for the number of independent items.
pub const SPLIT_ITEMS: Threshold = above(10_000.0, 1_000.0, ITEMS.source);
/// Limits of the split matrix for the p99 latency budget in seconds.
pub const SPLIT_P99: Threshold = above(
    5e-3,
    2e-3,
    "a call between two services in one data centre takes 0.5 to 1 ms at the 99th percentile, a kernel launch with copies about \
     10 us: a budget of 2 ms is too small for that, 5 ms are enough",
);
/// Limits of the split matrix for the bytes that a call exchanges.
pub const SPLIT_EXCHANGE: Threshold = below(
    100e3,
    1e6,
    "PCIe 5 x16 moves 100 kB in 2 us and 1 MB in 20 us, a 100 Gbit/s network in 8 us and 80 us: kilobytes hide behind a launch, \
     megabytes do not",
);
/// Rows of five that must support a split.
pub const SPLIT_VOTES: usize = 3;

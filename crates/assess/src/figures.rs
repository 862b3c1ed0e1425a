//! Figures derived from the counts of a run.

use serde::Serialize;

use crate::recording::RunCounts;

/// Size of a cache line, which one last-level miss transfers, in bytes.
const LINE_BYTES: f64 = 64.0;
/// Latency of a load from memory in seconds. Servers have 80 to 120 ns; `gpu-node-exporter topology
/// --latency` measures it.
const MEMORY_LATENCY_SECONDS: f64 = 100e-9;

/// Figures of one run. A figure is `None` if one of its counts was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RunFigures {
    pub flops: Option<f64>,
    pub flops_per_second: Option<f64>,
    /// Bytes transferred, from last-level misses or, if counted separately, from fills from memory. A lower
    /// bound, because neither includes all prefetches and writebacks.
    pub bytes_at_least: Option<f64>,
    pub bytes_per_second: Option<f64>,
    /// FLOPs per byte. An upper bound, because the bytes are a lower bound.
    pub density_at_most: Option<f64>,
    /// FLOPs per instruction, which shows if the program computes in floating point at all.
    pub flops_per_instruction: Option<f64>,
    /// CPU time divided by wall time.
    pub threads_used: Option<f64>,
    /// Share of the CPUs that the program may use.
    pub utilization_ratio: Option<f64>,
    pub items: Option<f64>,
    pub items_per_second: Option<f64>,
    pub instructions_per_cycle: Option<f64>,
    pub branch_miss_ratio: Option<f64>,
    pub branch_misses_per_kilo_instruction: Option<f64>,
    pub llc_miss_ratio: Option<f64>,
    pub llc_hit_ratio: Option<f64>,
    pub llc_misses_per_kilo_instruction: Option<f64>,
    /// Average number of last-level misses in flight per busy CPU (Little's law), over its whole CPU time. A
    /// chain of dependent loads has 1 if the program does nothing else. A program that mostly computes has
    /// few misses of any kind.
    pub misses_in_flight: Option<f64>,
}

impl RunFigures {
    pub fn from_run(run: &RunCounts) -> RunFigures {
        let counts = &run.counts;
        let flops = (!counts.flops.is_empty()).then(|| counts.flops.values().sum());
        let bytes = counts.memory_fills.or(counts.llc_misses).map(|lines| lines * LINE_BYTES);
        let wall = Some(run.wall_seconds);
        let threads = ratio(run.cpu_seconds, wall);
        let llc_misses = ratio(counts.llc_misses, counts.llc_references).map(|misses| misses.min(1.0));
        RunFigures {
            flops,
            flops_per_second: ratio(flops, wall),
            bytes_at_least: bytes,
            bytes_per_second: ratio(bytes, wall),
            density_at_most: ratio(flops, bytes),
            flops_per_instruction: ratio(flops, counts.instructions),
            threads_used: threads,
            utilization_ratio: ratio(threads, run.cpus),
            items: run.items,
            // The wall time of a running program is only the time of watching.
            items_per_second: ratio(run.items, wall.filter(|_| run.watch.is_none())),
            instructions_per_cycle: ratio(counts.instructions, counts.cycles),
            branch_miss_ratio: ratio(counts.branch_misses, counts.branches),
            branch_misses_per_kilo_instruction: ratio(counts.branch_misses, counts.instructions)
                .map(|misses| misses * 1e3),
            llc_miss_ratio: llc_misses,
            llc_hit_ratio: llc_misses.map(|misses| 1.0 - misses),
            llc_misses_per_kilo_instruction: ratio(counts.llc_misses, counts.instructions)
                .map(|misses| misses * 1e3),
            misses_in_flight: ratio(counts.llc_misses, run.cpu_seconds)
                .map(|rate| rate * MEMORY_LATENCY_SECONDS),
        }
    }
}

fn ratio(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    let quotient = part? / whole.filter(|whole| *whole > 0.0)?;
    quotient.is_finite().then_some(quotient)
}

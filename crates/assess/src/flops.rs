//! Events that count floating-point operations, by processor. Unknown models have none, because the same
//! event code may have another meaning there, and the kernel does not report that.
//!
//! Sources: Intel SDM volume 3B and perfmon's event lists (FP_ARITH_INST_RETIRED; a fused multiply-add counts
//! twice), AMD's PPRs (PMCx003, PMCx044), and Arm's PMU guides for Neoverse N2, V1 and V2 (FP_FIXED_OPS_SPEC,
//! FP_SCALE_OPS_SPEC). All events are in `tools/perf/pmu-events` of Linux.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    Double,
    Single,
    /// All precisions, on processors with one event for all of them.
    Any,
}

/// Raw event, and the number of operations per count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlopEvent {
    pub config: u64,
    pub precision: Precision,
    pub weight: u32,
}

/// Raw events of the last-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastLevelEvents {
    pub references: u64,
    /// Fills from another core complex, another socket or memory.
    pub misses: u64,
    /// Fills from memory, which are the bytes transferred.
    pub memory_fills: u64,
}

/// Processor model, as far as the events differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuModel {
    /// Intel with FP_ARITH_INST_RETIRED; `wide` if it has 512-bit registers.
    Intel {
        wide: bool,
    },
    /// AMD family 17h up to model 2Fh, with one event per precision.
    Zen1,
    /// AMD from family 17h model 30h on, with one event for both precisions. `fills` from family 19h on,
    /// where PMCx044 counts fills from memory separately.
    Zen2 {
        fills: bool,
    },
    /// Arm with events by vector length; `vector_bits` is the length that FP_SCALE_OPS_SPEC scales with.
    Neoverse {
        vector_bits: u32,
    },
    Other {
        intel: bool,
    },
}

/// Unit masks of FP_ARITH_INST_RETIRED from scalar to 512 bits, with the operations per count. Masks of
/// double and single precision alternate.
const INTEL: [(u64, u32); 8] =
    [(0x01, 1), (0x02, 1), (0x04, 2), (0x08, 4), (0x10, 4), (0x20, 8), (0x40, 8), (0x80, 16)];

impl CpuModel {
    /// Detects the model from the text of `/proc/cpuinfo`.
    pub fn from_cpuinfo(cpuinfo: &str) -> CpuModel {
        let field = |name: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
        };
        let number = |name: &str| field(name).parse::<u32>().unwrap_or(0);
        let has = |flag: &str| field("flags").split_whitespace().any(|known| known == flag);
        match (field("vendor_id"), number("cpu family")) {
            // Broadwell has known model numbers. Later Xeons have AVX-512, as only Xeon Phi does otherwise
            // (with avx512er).
            ("GenuineIntel", family) => {
                let wide = has("avx512f") && !has("avx512er");
                let known = family == 6 && (wide || matches!(number("model"), 61 | 71 | 79 | 86));
                if known { CpuModel::Intel { wide } } else { CpuModel::Other { intel: true } }
            }
            ("AuthenticAMD", 0x17) if number("model") < 0x30 => CpuModel::Zen1,
            ("AuthenticAMD", 0x17) => CpuModel::Zen2 { fills: false },
            ("AuthenticAMD", 0x19 | 0x1a) => CpuModel::Zen2 { fills: true },
            _ => match (field("CPU implementer"), field("CPU part")) {
                ("0x41", "0xd40") => CpuModel::Neoverse { vector_bits: 256 },
                ("0x41", "0xd49" | "0xd4f") => CpuModel::Neoverse { vector_bits: 128 },
                _ => CpuModel::Other { intel: false },
            },
        }
    }

    /// Returns the events whose weighted sum is the number of floating-point operations; none for an unknown
    /// model.
    pub fn flop_events(self) -> Vec<FlopEvent> {
        let event = |config, precision, weight| FlopEvent { config, precision, weight };
        match self {
            CpuModel::Intel { wide } => INTEL
                .iter()
                .enumerate()
                .take(if wide { 8 } else { 6 })
                .map(|(at, (mask, weight))| {
                    let precision = if at % 2 == 0 { Precision::Double } else { Precision::Single };
                    event(mask << 8 | 0xc7, precision, *weight)
                })
                .collect(),
            CpuModel::Zen1 => vec![event(0xf003, Precision::Double, 1), event(0x0f03, Precision::Single, 1)],
            CpuModel::Zen2 { .. } => vec![event(0x0f03, Precision::Any, 1)],
            CpuModel::Neoverse { vector_bits } => {
                vec![event(0x80c1, Precision::Any, 1), event(0x80c0, Precision::Any, vector_bits / 128)]
            }
            CpuModel::Other { .. } => Vec::new(),
        }
    }

    /// Returns the reason why operations are not counted, or not by precision.
    pub fn flop_gap(self) -> Option<&'static str> {
        match self {
            CpuModel::Intel { .. } | CpuModel::Zen1 => None,
            CpuModel::Zen2 { .. } | CpuModel::Neoverse { .. } => {
                Some("this processor counts operations of all precisions as one sum")
            }
            CpuModel::Other { .. } => {
                Some("how this processor model counts floating-point operations is not known")
            }
        }
    }

    /// Returns raw events for processors on which the kernel's generic events count another cache level or
    /// nothing. On AMD these are fills from beyond L2; fills from the own core complex (0x02) are hits.
    pub fn last_level_events(self) -> Option<LastLevelEvents> {
        matches!(self, CpuModel::Zen2 { fills: true }).then_some(LastLevelEvents {
            references: 0xde44,
            misses: 0xdc44,
            memory_fills: 0x4844,
        })
    }

    /// Returns true if the kernel's generic cache references and misses count the last level.
    pub fn kernel_counts_last_level(self) -> bool {
        matches!(self, CpuModel::Intel { .. } | CpuModel::Other { intel: true })
    }
}

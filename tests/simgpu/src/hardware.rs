//! Faults of the hardware itself, as steps bring them: multiprocessors that are slow or wrong, memory and
//! copies that change bits, clocks and links that are slower than they say, and company on the GPU.

use serde::Deserialize;

use crate::process::{Process, ProcessEntry};
use crate::units;

/// What is wrong with a GPU.
#[derive(Clone, Debug)]
pub enum Hardware {
    /// A multiprocessor works slower in every cycle.
    Sm(SlowSm),
    /// A multiprocessor gives wrong results.
    Wrong(Wrong),
    /// A bit of device memory is stuck.
    Memory(StuckBit),
    /// A bit changes on the way.
    Copy(CopiedBit),
    /// The true SM clock, as part of what it was; reported by NVML or not, and in any case without a reason.
    SmClock(f64, bool),
    /// Device memory's rate, as part of what it was.
    MemoryRate(f64),
    /// The PCIe link has become another.
    Pcie(Link),
    /// The PCIe link's rate, as part of what it was.
    PcieRate(f64),
    /// A process is on the GPU.
    Job(Process),
    /// So much memory is free while no CUDA context is there.
    FreeMemory(u64),
}

/// A slow multiprocessor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowSm {
    /// Which.
    pub id: u32,
    /// Its rate, as part of what it was.
    pub rate: f64,
}

/// A unit of a multiprocessor; the numbers are those of the kernels' `SdcUnit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// 32-bit integers.
    Int32 = 0,
    /// 32-bit floating point.
    Fp32 = 1,
    /// 64-bit floating point.
    Fp64 = 2,
    /// Tensor cores.
    Tensor = 3,
    /// Shared memory.
    Shared = 4,
    /// Shuffles within a warp.
    Shuffle = 5,
    /// Atomic operations.
    Atomic = 6,
}

/// A multiprocessor that gives wrong results.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wrong {
    /// Which.
    pub sm: u32,
    /// What of it.
    pub unit: Unit,
    /// The thread within its block.
    pub lane: u32,
    /// The bit of the result; of those that the unit's results have.
    pub bit: u32,
    /// Only in the first launch of a kernel that uses the unit, and then in each so many-th one.
    #[serde(default = "one")]
    pub every: u32,
    /// All bits are gone instead.
    #[serde(default)]
    pub zero: bool,
}

fn one() -> u32 {
    1
}

/// A bit of device memory that is stuck: at 1, or at 0.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StuckBit {
    /// Of its 64-bit word, in bytes from the beginning of each allocation.
    pub offset: u64,
    /// Of that word.
    pub bit: u32,
    /// Stuck at 0.
    #[serde(default)]
    pub zero: bool,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the host.
    ToGpu,
    /// To the host.
    ToHost,
}

/// A bit that a copy changes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopiedBit {
    /// Of which copies.
    pub direction: Direction,
    /// Of its byte, from the beginning of the copy.
    pub offset: u64,
    /// Of that byte and the seven after it.
    pub bit: u32,
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// PCIe generation.
    pub generation: u32,
    /// Lanes.
    pub width: u32,
}

/// The actions of a step that are about hardware, as the file has them.
#[derive(Default)]
pub struct HardwareEntry {
    pub sm: Option<SlowSm>,
    pub wrong: Option<Wrong>,
    pub memory_wrong: Option<StuckBit>,
    pub copy_wrong: Option<CopiedBit>,
    pub sm_clock: Option<f64>,
    pub reported: bool,
    pub memory_rate: Option<f64>,
    pub pcie: Option<Link>,
    pub pcie_rate: Option<f64>,
    pub job: Option<ProcessEntry>,
    pub free_memory: Option<String>,
}

impl HardwareEntry {
    /// The actions.
    pub fn read(self) -> Result<Vec<Hardware>, String> {
        if self.reported && self.sm_clock.is_none() {
            return Err("reported goes with sm_clock".into());
        }
        let mut actions = Vec::new();
        if let Some(sm) = self.sm {
            actions.push(Hardware::Sm(SlowSm { rate: part("sm.rate", sm.rate)?, ..sm }));
        }
        if let Some(wrong) = self.wrong {
            let bits = if matches!(wrong.unit, Unit::Fp32 | Unit::Tensor) { 32 } else { 64 };
            bit("wrong.bit", wrong.bit, bits)?;
            if wrong.every == 0 || wrong.lane >= 1024 {
                return Err("wrong.every is at least 1, and wrong.lane below 1024".into());
            }
            actions.push(Hardware::Wrong(wrong));
        }
        if let Some(stuck) = self.memory_wrong {
            bit("memory_wrong.bit", stuck.bit, 64)?;
            if stuck.offset % 8 != 0 {
                return Err("memory_wrong.offset is that of a 64-bit word".into());
            }
            actions.push(Hardware::Memory(stuck));
        }
        if let Some(copied) = self.copy_wrong {
            bit("copy_wrong.bit", copied.bit, 64)?;
            actions.push(Hardware::Copy(copied));
        }
        if let Some(rate) = self.sm_clock {
            actions.push(Hardware::SmClock(part("sm_clock", rate)?, self.reported));
        }
        if let Some(rate) = self.memory_rate {
            actions.push(Hardware::MemoryRate(part("memory_rate", rate)?));
        }
        if let Some(link) = self.pcie {
            if !(1..=6).contains(&link.generation) || !(1..=32).contains(&link.width) {
                return Err("pcie.generation is 1 to 6, and pcie.width 1 to 32".into());
            }
            actions.push(Hardware::Pcie(link));
        }
        if let Some(rate) = self.pcie_rate {
            actions.push(Hardware::PcieRate(part("pcie_rate", rate)?));
        }
        if let Some(job) = self.job {
            actions.push(Hardware::Job(job.read()?));
        }
        if let Some(bytes) = self.free_memory {
            actions.push(Hardware::FreeMemory(units::bytes(&bytes)?));
        }
        Ok(actions)
    }
}

fn part(name: &str, rate: f64) -> Result<f64, String> {
    let good = rate > 0.0 && rate <= 2.0;
    good.then_some(rate).ok_or_else(|| format!("{name} is a part such as 0.97, not {rate}"))
}

fn bit(name: &str, bit: u32, bits: u32) -> Result<(), String> {
    if bit < bits { Ok(()) } else { Err(format!("{name} is 0 to {}, not {bit}", bits - 1)) }
}

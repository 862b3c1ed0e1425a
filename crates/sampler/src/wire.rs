//! Messages between parent and sampler, which [`host::frame`] transports.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use model::catalog::{DriverError, Gpu, MetricId, Tier};
use model::fact::Fact;
use model::sample::Batch;

/// Messages of the sampler to its parent.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromSampler {
    /// The driver answers, and batches follow.
    DriverUp,
    /// The driver is absent or gone, and the sampler ends.
    DriverAway { error: DriverError, text: String },
    /// The handle of a GPU could not be obtained.
    AttachFailed {
        /// NVML's index of the GPU.
        index: u32,
        error: DriverError,
        text: String,
    },
    /// A GPU has a worker.
    Attached(GpuSlot),
    /// Result of a visit.
    Batch(Batch),
    /// An event of the driver.
    Fact(Fact),
}

/// Requests of the parent to the sampler.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToSampler {
    /// Configuration, sent as the first frame.
    Start(Box<SamplerConfig>),
    /// An avoided GPU can be attached again.
    Include {
        slot: usize,
        /// Identity of the GPU, if known.
        known: Option<GpuSlot>,
    },
    /// Whether to read the profiling counters (GPM). Only one program at a time can read them, so a profiler
    /// can use them while this is off.
    Gpm(bool),
    /// New settings. Every tier becomes due, and the values read before stay until they are read again.
    Settings(SamplerSettings),
    /// Newest canary processes that the parent has started, including ended ones, whose work belongs to no job.
    /// Replaces the previous list.
    Canaries(Vec<CanaryProcess>),
}

/// Identity of a canary process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryProcess {
    pub pid: u32,
    /// Start time in clock ticks since boot, because process ids are reused.
    pub started: u64,
}

/// A GPU with the slot of its worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSlot {
    /// Slot in the in-flight table.
    pub slot: usize,
    pub gpu: Gpu,
    /// PCI address in NVML's spelling, through which a handle can be obtained without accessing another GPU.
    pub pci_bus_id: String,
}

/// Configuration of a sampler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplerConfig {
    /// Library to load; `None` for the default search of the dynamic loader.
    pub library: Option<std::path::PathBuf>,
    /// Known GPUs, whose handles are requested by PCI address. Handles of other GPUs are requested by index.
    pub known: Vec<GpuSlot>,
    /// Slots of GPUs to avoid, because another process is stuck on them.
    pub avoid: Vec<usize>,
    /// Number below the epochs of this sampler.
    pub epoch: u64,
    /// Root folder of the host's files.
    pub root: std::path::PathBuf,
    /// Whether to read the profiling counters (GPM) at first; [`ToSampler::Gpm`] changes it.
    pub gpm: bool,
    /// Canary processes at first; [`ToSampler::Canaries`] replaces them.
    pub canaries: Vec<CanaryProcess>,
    /// Lock file of all canaries, next to the lock files of the GPUs.
    pub canary_lock: std::path::PathBuf,
    /// Settings at first; [`ToSampler::Settings`] replaces them.
    pub settings: SamplerSettings,
}

/// Which values are read, how often, and with which deadlines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplerSettings {
    /// Metrics that are switched off and that no other metric is derived from. A call that feeds only such
    /// metrics is skipped.
    pub off: HashSet<MetricId>,
    /// Maximum number of processes per GPU with rows of their own; `None` for no such rows.
    pub processes: Option<u32>,
    /// Time between visits by tier.
    pub intervals: Intervals,
    /// Maximum duration of a call.
    pub call_deadline: Duration,
    /// Maximum duration of initialising the library or getting a handle.
    pub init_deadline: Duration,
}

impl SamplerSettings {
    /// Returns how long the rows of a tier are served: three intervals, and at least 3 s. Returns `None` for
    /// tiers without an interval.
    pub fn lifetime(&self, tier: Tier) -> Option<Duration> {
        Some((self.intervals.every(tier)? * 3).max(Duration::from_secs(3)))
    }
}

/// Time between two visits, by tier.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Intervals {
    pub fast: Duration,
    pub normal: Duration,
    pub samples: Duration,
    pub slow: Duration,
    pub rare: Duration,
    pub nvlink: Duration,
}

impl Intervals {
    /// Returns the interval of a tier, or `None` for a tier that is not visited regularly.
    pub fn every(&self, tier: Tier) -> Option<Duration> {
        match tier {
            Tier::Fast => Some(self.fast),
            Tier::Normal => Some(self.normal),
            Tier::Samples => Some(self.samples),
            Tier::Slow => Some(self.slow),
            Tier::Rare => Some(self.rare),
            Tier::Nvlink => Some(self.nvlink),
            Tier::Identity | Tier::Once | Tier::Computed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_processes_fit_in_a_frame_and_more_are_refused() {
        use model::catalog::CollectorName;
        use model::owners::GpuProcess;
        use model::sample::{BatchKey, MAX_PROCESSES, Rows};
        let widest =
            GpuProcess { pid: u32::MAX, instance: Some((u32::MAX, u32::MAX)), memory: Some(u64::MAX) };
        let batch = |count| Batch {
            part: BatchKey { collector: CollectorName::Nvml, gpu: None, tier: Tier::Normal },
            epoch: 0,
            taken: model::clock::Mono(0),
            nanos: 0,
            lifetime_nanos: None,
            answered: true,
            rows: Rows::default(),
            gaps: Vec::new(),
            drained: Vec::new(),
            processes: Some(vec![widest; count]),
            calls: Vec::new(),
        };
        assert!(batch(MAX_PROCESSES).conform() && !batch(MAX_PROCESSES + 1).conform());
        assert!(host::frame::encode(&FromSampler::Batch(batch(MAX_PROCESSES))).unwrap().len() < 512 << 10);
    }
}

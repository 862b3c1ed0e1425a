//! The messages between parent and sampler; [`host::frame`] carries them.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use model::catalog::{DriverError, Gpu, MetricId, Tier};
use model::fact::Fact;
use model::sample::Batch;

/// Messages of the sampler.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromSampler {
    /// The driver answers; batches follow.
    DriverUp,
    /// The driver is absent or went away; the sampler ends.
    DriverAway {
        /// Kind of the failure.
        error: DriverError,
        /// The error as text.
        text: String,
    },
    /// No handle of a GPU.
    AttachFailed {
        /// NVML's index.
        index: u32,
        /// Kind of the failure.
        error: DriverError,
        /// The error as text.
        text: String,
    },
    /// A GPU has a worker.
    Attached(GpuSlot),
    /// What a visit learned.
    Batch(Batch),
    /// Something that happened.
    Fact(Fact),
}

/// Requests of the parent.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToSampler {
    /// First frame: how to work.
    Start(Box<SamplerConfig>),
    /// A GPU that was to be left alone may be attached.
    Include {
        /// Its slot.
        slot: usize,
        /// What is known of the GPU.
        known: Option<GpuSlot>,
    },
    /// Whether the profiling counters (GPM) are to be read. They have one reader at a time: while they are
    /// not, a profiler can have them.
    Gpm(bool),
    /// What is to be read from now on. Every tier is due then; what was read before stays until it is read again.
    Settings(SamplerSettings),
    /// The newest processes of the canary that the parent has started, also ended ones: their work is no job's. Replaces
    /// the list before.
    Canaries(Vec<CanaryProcess>),
}

/// A process of the canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryProcess {
    /// Process id.
    pub pid: u32,
    /// When it was started, in clock ticks since boot: an id is used again.
    pub started: u64,
}

/// A GPU with its worker's slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSlot {
    /// Slot in the in-flight table.
    pub slot: usize,
    /// The GPU.
    pub gpu: Gpu,
    /// PCI address as NVML gives it: the way to a handle that touches no other GPU.
    pub pci_bus_id: String,
}

/// How a sampler works.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplerConfig {
    /// Library to load; `None`: the loader's search.
    pub library: Option<std::path::PathBuf>,
    /// GPUs that are known, to be asked for by PCI address. Others are asked for by index.
    pub known: Vec<GpuSlot>,
    /// Slots of GPUs to leave alone: another process is stuck on them.
    pub avoid: Vec<usize>,
    /// Epochs of this sampler are above this number.
    pub epoch: u64,
    /// Below which the host's files are.
    pub root: std::path::PathBuf,
    /// Whether the profiling counters (GPM) are to be read; [`ToSampler::Gpm`] changes it.
    pub gpm: bool,
    /// The processes of the canary; [`ToSampler::Canaries`] replaces them.
    pub canaries: Vec<CanaryProcess>,
    /// The lock file of all canaries, beside which those of the GPUs are.
    pub canary_lock: std::path::PathBuf,
    /// What is to be read; [`ToSampler::Settings`] replaces it.
    pub settings: SamplerSettings,
}

/// What is read, how often, and how long it may take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplerSettings {
    /// Metrics that are switched off and that nothing else is made of: calls that serve no other are not made.
    pub off: HashSet<MetricId>,
    /// Most processes of one GPU with rows of their own; `None`: none has.
    pub processes: Option<u32>,
    /// Cadences.
    pub intervals: Intervals,
    /// How long a call may take.
    pub call_deadline: Duration,
    /// How long initialising the library or getting a handle may take.
    pub init_deadline: Duration,
}

impl SamplerSettings {
    /// How long rows of a tier may be served: three cadences, at least 3 s.
    pub fn lifetime(&self, tier: Tier) -> Option<Duration> {
        Some((self.intervals.every(tier)? * 3).max(Duration::from_secs(3)))
    }
}

/// Time between two visits, by tier.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Intervals {
    /// Of the fast tier.
    pub fast: Duration,
    /// Of the normal tier.
    pub normal: Duration,
    /// Of the samples tier.
    pub samples: Duration,
    /// Of the slow tier.
    pub slow: Duration,
    /// Of the rare tier.
    pub rare: Duration,
    /// Of the nvlink tier.
    pub nvlink: Duration,
}

impl Intervals {
    /// That of a tier; `None` for tiers that are not visited again and again.
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

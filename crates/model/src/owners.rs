//! Who the work on the GPUs belongs to: pods, containers, batch jobs, units and users, found from what the host
//! says of a process. These are the facts as they travel from the collector to the ledger, which joins them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::catalog::schema::KnownLabel;
use crate::catalog::{Cause, Gpu, OwnerInfo, OwnerKind};
use crate::clock::Mono;
use crate::cpus::CpuSet;

/// Who a process works for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// What identifies it on this node, as long as it lives: the label `owner`. By kind:
    /// `pod/<namespace>/<pod>/<container>` (where the kubelet is not asked, `pod/<pod uid>/<container id>`),
    /// `docker/<id>`, `podman/<id>`, `containerd/<id>`, `slurm/<job>` or `slurm/<job>.<step>`, `unit/<unit>`,
    /// `user/<name>`, `unknown`, and `other` for all owners of a GPU that have no series.
    pub id: Arc<str>,
    /// What kind it is.
    pub kind: OwnerKind,
    /// What else is known of it.
    pub info: OwnerInfo,
    /// Its control group below the mount point, as `/kubepods.slice/…`; empty if none is its own.
    pub cgroup: Arc<str>,
}

impl Owner {
    /// The owner of a process that could not be looked up.
    pub fn unknown() -> Owner {
        Owner::nameless(OwnerKind::Unknown)
    }

    /// All owners of a GPU that have no series of their own.
    pub fn other() -> Owner {
        Owner::nameless(OwnerKind::Other)
    }

    fn nameless(kind: OwnerKind) -> Owner {
        let info = OwnerInfo { kind: kind.known().into(), ..OwnerInfo::default() };
        Owner { id: kind.known().into(), kind, info, cgroup: "".into() }
    }
}

/// What holds the work on a GPU back.
pub fn cause_text(cause: Cause) -> &'static str {
    match cause {
        Cause::None => "nothing known holds it back",
        Cause::Wedged => "its kernels run without end and compute nothing: a collective waits for a rank?",
        Cause::Stalled => "it worked, and has done nothing for minutes",
        Cause::PowerCapped => "its clocks are held down by the power cap",
        Cause::ThermallyThrottled => "its clocks are held down by heat",
        Cause::Contended => "it shares a busy GPU with others",
        Cause::HostCpuBound => "its program on the CPU is the limit",
        Cause::RemoteNuma => "it moves data from far CPUs or memory",
        Cause::PcieBound => "PCIe is full",
        Cause::MemoryBound => "device memory is the limit",
        Cause::Underfilled => "many small kernels: most multiprocessors idle",
        Cause::SerialCopies => "copies and kernels seem to take turns",
        Cause::Unknown => "too little is measured to say what holds it back",
    }
}

/// One process on a GPU as the driver lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize)]
pub struct GpuProcess {
    /// Process id, as the host sees it.
    pub pid: u32,
    /// MIG GPU and compute instance; `None` on a whole GPU.
    pub instance: Option<(u32, u32)>,
    /// Device memory it holds, in bytes; `None` where the driver gives none.
    pub memory: Option<u64>,
}

/// A message about owners.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnerUpdate {
    /// Owners of processes: sent once a process (an id is used again: `started` distinguishes them).
    Attributed(Vec<Attribution>),
    /// Readings of owners that have processes on GPUs. They replace the readings before.
    Read(Vec<OwnerReading>),
    /// What NCCL answered of the owners' ranks. It replaces the answers before about these owners.
    Collectives(CollectivesAnswer),
}

/// An answer of NCCL about ranks on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectivesAnswer {
    /// When.
    pub taken: Mono,
    /// The ranks.
    pub ranks: Vec<OwnerRank>,
}

/// What NCCL said of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerRank {
    /// The owner's identity.
    pub owner: Arc<str>,
    /// GPU of the rank.
    pub gpu: Gpu,
    /// MIG GPU instance, if it is on one.
    pub gpu_instance: Option<u32>,
    /// Its process, as the host sees it.
    pub pid: u32,
    /// Its number in its largest communicator.
    pub rank: u32,
    /// Collectives that it launched there.
    pub collectives: u64,
    /// Collectives that it launched in all its communicators.
    pub launched: u64,
    /// Whether peers have launched collectives that it has not, and it none that a peer has not.
    pub behind: bool,
    /// How long the owner's kernels had waited by then; 0: they did not.
    pub waited: Duration,
}

/// Who one process works for.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribution {
    /// Process id, as the host sees it.
    pub pid: u32,
    /// When it was started, in seconds since 1970 (`/proc/PID/stat`, to 10 ms); `None` if it was gone before that
    /// could be read.
    pub started: Option<f64>,
    /// Its owner.
    pub owner: Arc<Owner>,
}

/// CPU time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

impl CpuTime {
    /// Both.
    pub fn total(&self) -> f64 {
        self.user + self.system
    }
}

/// What was read of one owner.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerReading {
    /// Its identity.
    pub owner: Arc<str>,
    /// When.
    pub taken: Mono,
    /// CPUs that its GPU processes may run on; `None` if not known.
    pub allowed_cpus: Option<CpuSet>,
    /// CPUs its GPU processes (their busiest threads) were seen on at this reading, each with how often.
    pub ran_on: BTreeMap<u32, u32>,
    /// Memory by NUMA node, in bytes (the cgroup's `memory.numa_stat`: anon and file); empty if not known.
    pub memory_by_node: BTreeMap<u32, u64>,
    /// CPU time of its cgroup, in seconds; where it has none of its own, of its GPU processes since their first reading.
    pub cpu_seconds: Option<f64>,
    /// The same by mode; the kernel's own counts, which add up to it only nearly.
    pub cpu_time: Option<CpuTime>,
    /// CPUs it may use at most by its cgroup's quota; `None`: no quota.
    pub cpu_limit: Option<f64>,
    /// CPU time of the busiest thread of its GPU processes, in seconds, with the thread's id.
    pub busiest_thread: Option<(u32, f64)>,
    /// Processes that the kernel killed because its cgroup had no memory left, since the cgroup was made.
    pub oom_kills: Option<u64>,
}

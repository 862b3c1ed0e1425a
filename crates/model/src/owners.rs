//! Owners of work on the GPUs: pods, containers, batch jobs, units and users, which collectors determine from host
//! information about processes. These are the facts that a collector sends to the ledger, which joins them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::catalog::schema::KnownLabel;
use crate::catalog::{Cause, Gpu, OwnerInfo, OwnerKind};
use crate::clock::Mono;
use crate::cpus::CpuSet;

/// Owner of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Identity of the owner on this node for its lifetime, used as the label `owner`. By kind:
    /// `pod/<namespace>/<pod>/<container>` (or `pod/<pod uid>/<container id>` without a kubelet), `docker/<id>`,
    /// `podman/<id>`, `containerd/<id>`, `slurm/<job>` or `slurm/<job>.<step>`, `unit/<unit>`, `user/<name>`,
    /// `unknown`, and `other` for all owners of a GPU that have no series.
    pub id: Arc<str>,
    pub kind: OwnerKind,
    /// Further labels of the owner.
    pub info: OwnerInfo,
    /// Control group relative to the mount point, such as `/kubepods.slice/…`; empty if the owner has no control group
    /// of its own.
    pub cgroup: Arc<str>,
}

impl Default for Owner {
    fn default() -> Owner {
        Owner::unknown()
    }
}

impl Owner {
    /// Returns the owner of processes whose lookup failed.
    pub fn unknown() -> Owner {
        Owner::nameless(OwnerKind::Unknown)
    }

    /// Returns the owner that combines all owners of a GPU without series.
    pub fn other() -> Owner {
        Owner::nameless(OwnerKind::Other)
    }

    fn nameless(kind: OwnerKind) -> Owner {
        let info = OwnerInfo { kind: kind.known().into(), ..OwnerInfo::default() };
        Owner { id: kind.known().into(), kind, info, cgroup: "".into() }
    }
}

/// Returns a description of a bottleneck for people.
pub fn cause_text(cause: Cause) -> &'static str {
    match cause {
        Cause::None => "no bottleneck is known",
        Cause::Wedged => {
            "its kernels run without end and compute nothing; a collective may be waiting for a rank"
        }
        Cause::Stalled => "it worked before, and has done nothing for minutes",
        Cause::PowerCapped => "the power cap throttles its clocks",
        Cause::ThermallyThrottled => "heat throttles its clocks",
        Cause::Contended => "it shares a busy GPU with other owners",
        Cause::HostCpuBound => "its program on the CPU is the limit",
        Cause::RemoteNuma => "it moves data from remote CPUs or memory",
        Cause::PcieBound => "PCIe is saturated",
        Cause::MemoryBound => "device memory is the limit",
        Cause::Underfilled => "many small kernels leave most multiprocessors idle",
        Cause::SerialCopies => "copies and kernels do not seem to overlap",
        Cause::Unknown => "the measurements are insufficient to name a bottleneck",
    }
}

/// Process on a GPU as listed by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize)]
pub struct GpuProcess {
    /// Process id in the PID namespace of the host.
    pub pid: u32,
    /// MIG GPU instance and compute instance; `None` on a whole GPU.
    pub instance: Option<(u32, u32)>,
    /// Device memory in bytes; `None` if the driver reports none.
    pub memory: Option<u64>,
}

/// Message about owners to the ledger.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnerUpdate {
    /// Owners of processes, sent once per process. The field `started` distinguishes processes with the same process
    /// id.
    Attributed(Vec<Attribution>),
    /// Readings of owners with processes on GPUs. They replace the previous readings.
    Read(Vec<OwnerReading>),
    /// Answers of NCCL about the ranks of owners. They replace the previous answers about these owners.
    Collectives(CollectivesAnswer),
}

/// Answer of NCCL about the ranks on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectivesAnswer {
    pub taken: Mono,
    pub ranks: Vec<OwnerRank>,
}

/// Answer of NCCL about one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerRank {
    /// Identity of the owner.
    pub owner: Arc<str>,
    pub gpu: Gpu,
    /// MIG GPU instance, if the rank uses one.
    pub gpu_instance: Option<u32>,
    /// Process id of the rank in the PID namespace of the host.
    pub pid: u32,
    /// Number of the rank in its largest communicator.
    pub rank: u32,
    /// Number of collectives launched in that communicator.
    pub collectives: u64,
    /// Number of collectives launched in all communicators.
    pub launched: u64,
    /// True if peers have launched collectives that this rank has not, and this rank has launched none that a peer has
    /// not.
    pub behind: bool,
    /// Time for which the owner's kernels had waited at the time of the answer; zero if they did not wait.
    pub waited: Duration,
}

/// Owner of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribution {
    /// Process id in the PID namespace of the host.
    pub pid: u32,
    /// Start time in seconds since 1970 (`/proc/PID/stat`, with a resolution of 10 ms); `None` if the process ended
    /// before the time could be read.
    pub started: Option<f64>,
    pub owner: Arc<Owner>,
}

/// CPU time by mode, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// Time in user mode.
    pub user: f64,
    /// Time in kernel mode.
    pub system: f64,
}

impl CpuTime {
    /// Returns the sum of both modes.
    pub fn total(&self) -> f64 {
        self.user + self.system
    }
}

/// Reading of one owner's resources on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerReading {
    /// Identity of the owner.
    pub owner: Arc<str>,
    pub taken: Mono,
    /// CPUs on which the GPU processes may run; `None` if unknown.
    pub allowed_cpus: Option<CpuSet>,
    /// CPUs on which the busiest threads of the GPU processes ran at this reading, with the number of observations.
    pub ran_on: BTreeMap<u32, u32>,
    /// Memory by NUMA node in bytes (anon and file in the control group's `memory.numa_stat`); empty if unknown.
    pub memory_by_node: BTreeMap<u32, u64>,
    /// CPU time of the control group in seconds, or of the GPU processes since their first reading if the owner has no
    /// control group of its own.
    pub cpu_seconds: Option<f64>,
    /// CPU time by mode. The kernel counts the modes separately, so that their sum only approximates the total.
    pub cpu_time: Option<CpuTime>,
    /// Maximum number of CPUs by the quota of the control group; `None` without a quota.
    pub cpu_limit: Option<f64>,
    /// Thread id and CPU time in seconds of the busiest thread of the GPU processes.
    pub busiest_thread: Option<(u32, f64)>,
    /// Number of processes that the kernel killed because the control group had no memory left, since the group was
    /// created.
    pub oom_kills: Option<u64>,
}

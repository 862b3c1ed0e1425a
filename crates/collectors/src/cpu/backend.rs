//! Interface to the kernel's event counters. [`super::perf`] implements it with system calls; tests implement it in
//! memory.

use std::fs::File;
use std::io;

use nix::errno::Errno;

use model::catalog::{PerfEvent, PerfState};

/// Scope in which an event is counted.
#[derive(Clone, Copy, Debug)]
pub struct CounterScope<'a> {
    pub cpu: u32,
    /// Directory of the control group to count; `None` counts everything on the CPU.
    pub cgroup: Option<&'a File>,
}

/// Source of event counters.
pub trait CounterBackend {
    /// Counters of one scope that count over the same time.
    type Group: CounterGroup;

    /// Opens the first counter of a group without starting it.
    fn open(&self, event: PerfEvent, place: CounterScope<'_>) -> Result<Self::Group, Refusal>;
}

/// Counters of one scope that count over the same time.
pub trait CounterGroup {
    /// Adds a counter to the group.
    fn join(&mut self, event: PerfEvent, place: CounterScope<'_>) -> Result<(), Refusal>;

    /// Starts all counters from 0.
    fn start(&mut self) -> Result<(), Refusal>;

    /// Reads all counters with one system call.
    fn read(&mut self) -> Result<GroupReading, Refusal>;
}

/// Counts of a group since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupReading {
    /// Nanoseconds in which the group should have counted; 0 for a control group that never ran on the CPU, and for the
    /// root group.
    pub enabled: u64,
    /// Nanoseconds in which the group did count; less than `enabled` if counters are shared.
    pub running: u64,
    /// Count of every counter, in the order in which they joined.
    pub values: Vec<u64>,
}

/// Reason why an event is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kernel refused the request.
    #[error("{}", .0.desc())]
    Kernel(Errno),
    /// The kernel was not called, for this reason.
    #[error("{0}")]
    NotAsked(&'static str),
}

impl Refusal {
    /// Returns the published state of an event that is refused like this.
    pub(crate) fn state(self) -> PerfState {
        match self {
            Refusal::Kernel(Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP) => PerfState::NoPmu,
            Refusal::Kernel(Errno::EACCES | Errno::EPERM) => PerfState::NotPermitted,
            Refusal::Kernel(_) | Refusal::NotAsked(_) => PerfState::Unknown,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Kernel(error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw))
    }
}

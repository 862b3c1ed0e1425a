//! What is asked of the kernel to count events, and what it answers: the counters of one CPU that are started and
//! read together. [`super::perf`] asks the real one; tests play it.

use std::fs::File;
use std::io;

use nix::errno::Errno;

use model::catalog::{PerfEvent, PerfState};

/// Where an event is counted.
#[derive(Clone, Copy, Debug)]
pub struct CounterScope<'a> {
    /// The CPU.
    pub cpu: u32,
    /// Folder of the control group whose processes alone are counted; `None`: everything on the CPU.
    pub cgroup: Option<&'a File>,
}

/// Opens counters.
pub trait CounterBackend {
    /// Counters of one place that count over the same time.
    type Group: CounterGroup;

    /// The first counter of a group. It does not count yet.
    fn open(&self, event: PerfEvent, place: CounterScope<'_>) -> Result<Self::Group, Refusal>;
}

/// Counters of one place that count over the same time.
pub trait CounterGroup {
    /// Adds a counter.
    fn join(&mut self, event: PerfEvent, place: CounterScope<'_>) -> Result<(), Refusal>;

    /// Lets all of them count, from 0.
    fn start(&mut self) -> Result<(), Refusal>;

    /// What they have counted: one system call for the whole group.
    fn read(&mut self) -> Result<GroupReading, Refusal>;
}

/// What a group has counted since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupReading {
    /// Nanoseconds in which it should have counted. 0 for a control group that never ran on the CPU, and for
    /// the root one.
    pub enabled: u64,
    /// Nanoseconds in which it did: less where counters are shared.
    pub running: u64,
    /// What each counter has counted, in the order in which they joined.
    pub values: Vec<u64>,
}

/// Why an event is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kernel's answer.
    #[error("{}", .0.desc())]
    Kernel(Errno),
    /// The kernel was not asked, and why.
    #[error("{0}")]
    NotAsked(&'static str),
}

impl Refusal {
    /// What it says of the event.
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

//! What is kept of a GPU from visit to visit, for the life of one handle.

use std::time::Duration;

use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::Slowdown;
use crate::own::Own;
use crate::wire::Orders;
use host::Host;

/// What was found out of the GPU, and how it is to be looked at.
#[derive(Debug)]
pub struct Found {
    /// Where the host's files are.
    pub host: Host,
    /// The canary's processes on it.
    pub own: Own,
    /// Most processes with rows of their own; `None`: none has.
    pub processes: Option<usize>,
    /// After how long what hardly ever changes is read again.
    pub rarely: Duration,
    /// For how long the hardware held the clocks down.
    pub slowdown: Slowdown,
    /// Its processes that compute, as listed last, without the canary's; `None` if that failed or was not tried.
    pub compute: Option<Vec<ProcessInfo>>,
    /// Number of NVLinks; `None` while not known.
    pub links: Option<u32>,
    /// Those that were up when last looked at; `None` while not looked at.
    pub links_up: Option<Vec<u32>>,
    /// PCI address as the kernel spells it; `None` while not known.
    pub pci_address: Option<String>,
    /// End of the newest sample of process utilization seen, in microseconds since 1970.
    pub processes_seen: u64,
    /// End of the newest sample of virtual GPUs' utilization seen, in microseconds since 1970.
    pub vgpus_seen: u64,
}

impl Found {
    /// Whether a process on it is the canary's.
    pub fn is_canary(&mut self, pid: u32) -> bool {
        self.own.is_canary(&self.host, pid)
    }

    /// Nothing is known yet.
    pub fn new(orders: &Orders) -> Found {
        Found {
            host: Host::new(&orders.root),
            own: Own::default(),
            processes: orders.processes.map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            rarely: orders.intervals.rare,
            slowdown: Slowdown::default(),
            compute: None,
            links: None,
            links_up: None,
            pci_address: None,
            processes_seen: 0,
            vgpus_seen: 0,
        }
    }

    /// What a change of the MIG layout may have changed is found out again.
    pub fn forget(&mut self) {
        self.slowdown = Slowdown::default();
        self.links = None;
        self.links_up = None;
        self.compute = None;
    }
}

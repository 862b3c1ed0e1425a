//! Names what limits an owner's work on a GPU, from the last 30 s of measurements. `docs/BOTTLENECKS.md` documents
//! formulas, thresholds and the series that prove each cause.
//!
//! Missing evidence proves nothing: a cause is named only if everything that it requires is known.

use std::time::Duration;

use model::catalog::Cause;
use model::clock::Mono;

/// Time over which evidence is gathered.
pub const WINDOW: Duration = Duration::from_secs(30);
/// Time for which another cause must hold before it is named, so that the cause does not flap around a threshold.
const STEADY: Duration = Duration::from_secs(10);

/// Minimum share of the time with reduced clocks.
const HELD_DOWN: f64 = 0.10;
/// Utilization above which a GPU is not waiting for its host.
const BUSY: f64 = 0.80;
/// Use of a thread or quota above which it is exhausted.
const USED_UP: f64 = 0.95;
/// Share of remote CPUs or memory above which an owner is remote.
const FAR: f64 = 0.50;
/// PCIe traffic at which distance matters, as a share of the link's rate.
const SUBSTANTIAL: f64 = 0.20;
/// Traffic that saturates a link or memory interface.
const FILLED: f64 = 0.80;
/// Multiprocessor activity of a well-used GPU,
const SM_HIGH: f64 = 0.50;
/// and of an underfilled one.
const SM_LOW: f64 = 0.20;
/// Lowest utilization of kernels that never end: their utilization samples are 99 or 100 %.
const ENDLESS: f64 = 0.98;
/// Activity of one multiprocessor out of 250. A kernel of one block made 0.0076 on an H200 (132 multiprocessors),
/// copies and tiny kernels at most 0.0002.
pub const ONE_MULTIPROCESSOR: f64 = 0.004;
/// Pipe activity per active multiprocessor: at most 0.027 in kernels that wait, 0.65 to 1 in kernels that compute.
pub const IDLE_PIPES: f64 = 0.10;
/// Memory activity without traffic: 0.00000 for waiting kernels, 0.00028 for occasional copies to the host, 0.17 for
/// matrix products.
pub const QUIET_MEMORY: f64 = 0.000_2;
/// Memory activity above that of PCIe copies: 0.011 at 56 GB/s; a training of 12 layers made 0.35.
const MORE_THAN_COPIES: f64 = 0.05;
/// PCIe traffic of polling, in bytes per second at full multiprocessor activity. One block that polled host memory
/// made 35 MB/s at an activity of 0.0076, which is 4.6 GB/s at 1. The limit is twice that,
const POLLING: f64 = 1e10;
/// but never more than this, where copies begin.
const POLLING_MOST: f64 = 1e9;
/// Bytes per second over an idle link: at most 0.7 MB/s over PCIe and 0 over NVLink.
pub const QUIET_LINK: f64 = 5e6;
/// Standard deviation of the power within a second, in watts: 0.25 to 0.42 for waiting kernels, 0.9 to 115 at work.
const FLAT_POWER: f64 = 0.5;
/// Highest utilization of an idle GPU: one of two utilization samples at 1 %.
pub const RESTS: f64 = 0.005;

/// Minimum share of the time for copies, and for kernels,
const EACH: f64 = 0.15;
/// and for both together, which never exceed the whole time.
const TOGETHER: f64 = 0.85;

/// Measurements; `None` if unknown. All are shares between 0 and 1 unless a unit is given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Evidence {
    /// Time with clocks reduced by the power cap or a power brake.
    pub power_held: Option<f64>,
    /// Time with clocks reduced by heat.
    pub heat_held: Option<f64>,
    /// Number of owners with processes at the place.
    pub owners: usize,
    /// Time in which the GPU worked.
    pub busy: Option<f64>,
    /// CPU time of the owner's busiest thread, as a share of one CPU.
    pub busiest_thread: Option<f64>,
    /// Use of the owner's CPU quota.
    pub quota_used: Option<f64>,
    /// CPUs that are not near the GPU.
    pub cpu_remote: Option<f64>,
    /// Host memory that is not near the GPU.
    pub memory_remote: Option<f64>,
    /// PCIe traffic in the busier direction, as a share of the link's rate.
    pub pcie: Option<f64>,
    pub dram: Option<f64>,
    pub sm: Option<f64>,
    /// Activity of all pipes together.
    pub pipes: Option<f64>,
    /// Bytes per second over PCIe in the busier direction.
    pub pcie_bytes: Option<f64>,
    /// Bytes per second over NVLink in the busier direction.
    pub nvlink_bytes: Option<f64>,
    /// Standard deviation of the board's power within a second, in watts, at most 1.
    pub power_deviation: Option<f64>,
    /// True for a GPU instance, to which neither the board's power nor its links belong.
    pub instance: bool,
}

/// Progress of the kernels at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Moves,
    /// Kernels run without end, but compute and move nothing.
    Waits,
    /// Nothing runs and nothing is copied.
    Rests,
}

/// Returns true if kernels did more in a GPM window than wait, with or without copies.
pub fn is_work(sm: f64, pipes: f64, dram: f64) -> bool {
    sm > ONE_MULTIPROCESSOR && (pipes > IDLE_PIPES * sm || dram > MORE_THAN_COPIES)
}

/// Causes in the order in which they are checked: hardware before work, and a cause that explains another before it.
/// `wedged` and `stalled` come before all of them, because no work is done that anything could slow down. They depend
/// on the history of the work ([`crate::owners`]).
pub const ORDER: [Cause; 9] = [
    Cause::ThermallyThrottled,
    Cause::PowerCapped,
    Cause::Contended,
    Cause::PcieBound,
    Cause::RemoteNuma,
    Cause::HostCpuBound,
    Cause::MemoryBound,
    Cause::SerialCopies,
    Cause::Underfilled,
];

impl Evidence {
    /// Returns the first cause that is proven. Without one, returns `Cause::None`, or `Cause::Unknown` if the units
    /// of the GPU are not measured, because most causes cannot be proven then. Returns `None` if the GPU was not
    /// measured at all.
    pub fn cause(&self) -> Option<Cause> {
        let measured = |of: &[Option<f64>]| of.iter().any(Option::is_some);
        let units = measured(&[self.pcie, self.dram, self.sm]);
        let unproven = if units { Cause::None } else { Cause::Unknown };
        let first = || ORDER.into_iter().find(|cause| self.proves(*cause)).unwrap_or(unproven);
        (units || measured(&[self.power_held, self.heat_held, self.busy])).then(first)
    }

    /// Returns the progress of the kernels, or `None` if too little is known.
    pub fn pace(&self) -> Option<Pace> {
        let (busy, sm, pipes, dram) = (self.busy?, self.sm?, self.pipes?, self.dram?);
        // An instance may have no link figures, and a GPU may have no NVLink.
        let pcie = if self.instance { self.pcie_bytes.unwrap_or(0.0) } else { self.pcie_bytes? };
        let nvlink = self.nvlink_bytes.unwrap_or(0.0);
        let silent = dram <= QUIET_MEMORY && nvlink <= QUIET_LINK;
        if silent && busy <= RESTS && sm <= ONE_MULTIPROCESSOR * RESTS && pcie <= QUIET_LINK {
            return Some(Pace::Rests);
        }
        let polls = pcie <= (sm * POLLING).min(POLLING_MOST);
        let computes = sm < ONE_MULTIPROCESSOR || pipes > IDLE_PIPES * sm;
        if !silent || !polls || computes || busy < ENDLESS {
            return Some(Pace::Moves);
        }
        let flat = self.instance || self.power_deviation? <= FLAT_POWER;
        Some(if flat { Pace::Waits } else { Pace::Moves })
    }

    /// Returns true if everything that a cause requires is known and exceeds its threshold.
    pub fn proves(&self, cause: Cause) -> bool {
        let above = |value: Option<f64>, limit: f64| value.is_some_and(|value| value > limit);
        let below = |value: Option<f64>, limit: f64| value.is_some_and(|value| value < limit);
        match cause {
            Cause::None | Cause::Unknown | Cause::Wedged | Cause::Stalled => false,
            Cause::ThermallyThrottled => above(self.heat_held, HELD_DOWN),
            Cause::PowerCapped => above(self.power_held, HELD_DOWN),
            Cause::Contended => self.owners >= 2 && above(self.busy, BUSY),
            Cause::PcieBound => above(self.pcie, FILLED),
            Cause::RemoteNuma => {
                let far = above(self.cpu_remote, FAR) || above(self.memory_remote, FAR);
                far && above(self.pcie, SUBSTANTIAL) && below(self.busy, BUSY)
            }
            Cause::HostCpuBound => {
                let used_up = above(self.busiest_thread, USED_UP) || above(self.quota_used, USED_UP);
                used_up && below(self.busy, BUSY)
            }
            Cause::MemoryBound => above(self.dram, FILLED) && above(self.sm, SM_HIGH),
            Cause::SerialCopies => match (self.pcie, self.busy) {
                (Some(copies), Some(kernels)) => {
                    copies.min(kernels) >= EACH && (TOGETHER..=1.0).contains(&(copies + kernels))
                }
                _ => false,
            },
            Cause::Underfilled => above(self.busy, BUSY) && below(self.sm, SM_LOW),
        }
    }
}

/// Cause that changes only when another one persists.
#[derive(Default)]
pub(crate) struct Steady {
    pub named: Option<Cause>,
    /// Other cause, and the time since which it is found.
    other: Option<(Option<Cause>, Mono)>,
}

impl Steady {
    /// Names a cause at once, without waiting for it to persist.
    pub fn name(&mut self, cause: Cause) -> Option<Cause> {
        (self.named, self.other) = (Some(cause), None);
        self.named
    }

    /// Records the current cause, and returns the one to publish.
    pub fn found(&mut self, cause: Option<Cause>, now: Mono) -> Option<Cause> {
        if cause == self.named {
            self.other = None;
            return self.named;
        }
        match self.other {
            Some((other, since)) if other == cause => {
                if now.since(since) >= STEADY {
                    (self.named, self.other) = (cause, None);
                }
            }
            _ => self.other = Some((cause, now)),
        }
        self.named
    }
}

#[cfg(test)]
mod tests;

//! What holds an owner's work on a GPU back, from what was measured over the last half minute.
//! `docs/BOTTLENECKS.md` says the same for people: formulas, thresholds and the series that prove each cause.
//!
//! Missing evidence proves nothing: a cause is named only if all that it needs is known.

use std::time::Duration;

use model::catalog::Cause;
use model::clock::Mono;

/// Over how long evidence is gathered.
pub const WINDOW: Duration = Duration::from_secs(30);
/// Another cause is named when it was found for so long: else it would flap around a threshold.
const STEADY: Duration = Duration::from_secs(10);

/// Share of the time in which the clocks are held down that is no chance.
const HELD_DOWN: f64 = 0.10;
/// A GPU that works more than this is not waiting for its host.
const BUSY: f64 = 0.80;
/// A thread or quota used more than this is used up.
const USED_UP: f64 = 0.95;
/// More of the CPUs or memory than this is far.
const FAR: f64 = 0.50;
/// Traffic over PCIe that makes distance matter, as a share of the link's rate.
const SUBSTANTIAL: f64 = 0.20;
/// Traffic that fills a link or memory interface.
const FILLED: f64 = 0.80;
/// Multiprocessors are well used above this,
const SM_HIGH: f64 = 0.50;
/// and hardly used below this.
const SM_LOW: f64 = 0.20;
/// Kernels that run without end: the lowest share, because utilization samples of such kernels are 99 or 100 %.
const ENDLESS: f64 = 0.98;
/// One multiprocessor of 250: a kernel of one block made 0.0076 on an H200 (132 multiprocessors), copies and tiny kernels
/// at most 0.0002.
pub const ONE_MULTIPROCESSOR: f64 = 0.004;
/// Busy pipes of active multiprocessors: at most 0.027 of those that wait, 0.65 to 1 of those that compute.
pub const IDLE_PIPES: f64 = 0.10;
/// Activity of the memory interface without traffic: 0.00000 of kernels that wait, 0.00028 of copies to the host now
/// and then, 0.17 of matrix products.
pub const QUIET_MEMORY: f64 = 0.000_2;
/// More than copies over PCIe make: 0.011 at 56 GB/s; a training of 12 layers made 0.35.
const MORE_THAN_COPIES: f64 = 0.05;
/// Bytes a second over PCIe that polling makes, of active multiprocessors: one block that polled host memory made 35 MB/s
/// at 0.0076, which is 4.6 GB/s at 1. Twice that is allowed,
const POLLING: f64 = 1e10;
/// and never more than this: copies begin here.
const POLLING_MOST: f64 = 1e9;
/// Bytes a second over a link at rest: 0.7 MB/s over PCIe at most and 0 over NVLink.
pub const QUIET_LINK: f64 = 5e6;
/// Standard deviation of the power within a second, in watts: 0.25 to 0.42 of kernels that wait, 0.9 to 115 at work.
const FLAT_POWER: f64 = 0.5;
/// A GPU that does nothing is busy at most for this share, which is one utilization sample of 1 % in two.
pub const RESTS: f64 = 0.005;

/// Copies and kernels each take at least this part of the time,
const EACH: f64 = 0.15;
/// and together at least this and never more than all of it.
const TOGETHER: f64 = 0.85;

/// What was measured; `None`: not known. All are shares between 0 and 1 but `owners`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Evidence {
    /// Time with clocks held down by the power cap or a power brake.
    pub power_held: Option<f64>,
    /// Time with clocks held down by heat.
    pub heat_held: Option<f64>,
    /// Owners with processes there.
    pub owners: usize,
    /// Time in which the GPU worked.
    pub busy: Option<f64>,
    /// Of one CPU, what the owner's busiest thread used.
    pub busiest_thread: Option<f64>,
    /// Of its quota of CPU time, what the owner used.
    pub quota_used: Option<f64>,
    /// CPUs that are not near the GPU.
    pub cpu_remote: Option<f64>,
    /// Memory on the host that is not near the GPU.
    pub memory_remote: Option<f64>,
    /// Traffic over PCIe in the busier direction, of the link's rate.
    pub pcie: Option<f64>,
    /// Activity of the memory interface.
    pub dram: Option<f64>,
    /// Activity of the multiprocessors.
    pub sm: Option<f64>,
    /// Activity of all their pipes together.
    pub pipes: Option<f64>,
    /// Bytes a second over PCIe in the busier direction.
    pub pcie_bytes: Option<f64>,
    /// Bytes a second over NVLink in the busier direction.
    pub nvlink_bytes: Option<f64>,
    /// Standard deviation of the board's power within a second, in watts, 1 at most.
    pub power_deviation: Option<f64>,
    /// Whether it is about a GPU instance: neither the board's power nor its links are an instance's.
    pub instance: bool,
}

/// Whether the kernels at a place get on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Something happens.
    Moves,
    /// Kernels run without end, and nothing is computed or moved.
    Waits,
    /// Nothing runs and nothing is copied.
    Rests,
}

/// Whether kernels did more in a GPM window than wait, beside copies or not.
pub fn is_work(sm: f64, pipes: f64, dram: f64) -> bool {
    sm > ONE_MULTIPROCESSOR && (pipes > IDLE_PIPES * sm || dram > MORE_THAN_COPIES)
}

/// The causes in the order in which they are looked for: what the hardware does comes before what the work does, and
/// a cause that explains another comes before it. Before all of them come `wedged` and `stalled`, which take the past of
/// the work ([`crate::owners`]): no work is done that something could hold back.
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
    /// The first cause that is proven. Else `Cause::None`, or `Cause::Unknown` where the units of the GPU are not
    /// measured: most causes cannot be proven then. `None` if nothing at all was measured of the GPU.
    pub fn cause(&self) -> Option<Cause> {
        let measured = |of: &[Option<f64>]| of.iter().any(Option::is_some);
        let units = measured(&[self.pcie, self.dram, self.sm]);
        let unproven = if units { Cause::None } else { Cause::Unknown };
        let first = || ORDER.into_iter().find(|cause| self.proves(*cause)).unwrap_or(unproven);
        (units || measured(&[self.power_held, self.heat_held, self.busy])).then(first)
    }

    /// Whether the kernels get on. `None` if too little is known.
    pub fn pace(&self) -> Option<Pace> {
        let (busy, sm, pipes, dram) = (self.busy?, self.sm?, self.pipes?, self.dram?);
        // An instance may have no figures of links; a GPU may have no NVLink.
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

    /// Whether all that a cause needs is known and says so.
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

/// A cause that changes only when another one lasts.
#[derive(Debug, Default)]
pub(crate) struct Steady {
    pub named: Option<Cause>,
    /// Another one, and since when it is found.
    other: Option<(Option<Cause>, Mono)>,
}

impl Steady {
    /// A cause that needs no second look.
    pub fn name(&mut self, cause: Cause) -> Option<Cause> {
        (self.named, self.other) = (Some(cause), None);
        self.named
    }

    /// Takes in what is found now; gives the cause to be published.
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

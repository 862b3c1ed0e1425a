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
/// Copies and kernels each take at least this part of the time,
const EACH: f64 = 0.15;
/// and together at least this and never more than all of it.
const TOGETHER: f64 = 0.85;

/// What was measured; `None`: not known. All are shares between 0 and 1 but `owners`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
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
}

/// The causes in the order in which they are looked for: what the hardware does comes before what the work does, and
/// a cause that explains another comes before it.
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

    /// Whether all that a cause needs is known and says so.
    pub fn proves(&self, cause: Cause) -> bool {
        let above = |value: Option<f64>, limit: f64| value.is_some_and(|value| value > limit);
        let below = |value: Option<f64>, limit: f64| value.is_some_and(|value| value < limit);
        match cause {
            Cause::None | Cause::Unknown => false,
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
pub struct Steady {
    named: Option<Cause>,
    /// Another one, and since when it is found.
    other: Option<(Option<Cause>, Mono)>,
}

impl Steady {
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

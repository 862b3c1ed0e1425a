//! Monotonic timestamps that all processes of the exporter share, and cadences that tests can drive.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Time on CLOCK_MONOTONIC in nanoseconds. Processes of one boot can compare these times with each other, but not with
/// the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mono(pub u64);

impl Mono {
    /// Returns the current time.
    pub fn now() -> Mono {
        // CLOCK_MONOTONIC cannot fail on Linux. The default of 0 would only make values look old, never fresh.
        clock_gettime(ClockId::CLOCK_MONOTONIC)
            .map(|t| Mono(t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64))
            .unwrap_or_default()
    }

    /// Returns the time since `earlier`, or zero if `earlier` is not earlier.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Mono {
    type Output = Mono;
    fn add(self, d: Duration) -> Mono {
        Mono(self.0.saturating_add(nanos(d)))
    }
}

/// Returns a duration in nanoseconds, the unit of messages between processes.
pub fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the seconds since 1970, for timestamps that people and Prometheus read.
#[expect(clippy::disallowed_methods, reason = "the one wall clock")]
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_secs_f64()).unwrap_or(0.0)
}

/// Returns the boot time in seconds since 1970, calculated from the current clocks. `btime` in `/proc/stat` is the
/// same time in whole seconds.
pub fn boot_unix_seconds() -> f64 {
    let since = clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(|t| t.tv_sec() as f64 + t.tv_nsec() as f64 * 1e-9)
        .unwrap_or(0.0);
    unix_seconds() - since
}

/// Fixed cadence on the monotonic clock, with ticks at `phase + k * interval`. Missed ticks are skipped, so that a
/// slow driver gets no additional calls.
#[derive(Clone, Copy, Debug)]
pub struct Cadence {
    interval: u64,
    phase: u64,
    next: u64,
}

impl Cadence {
    /// Creates a cadence that is due immediately and then at every `phase + k * interval`.
    pub fn new(interval: Duration, phase: Duration) -> Cadence {
        let interval = nanos(interval).max(1);
        let phase = nanos(phase) % interval;
        Cadence { interval, phase, next: 0 }
    }

    /// Returns the time of the next tick.
    pub fn next(&self) -> Mono {
        Mono(self.next)
    }

    /// Returns true if a tick is due, and in this case advances to the first tick after `now`.
    pub fn tick(&mut self, now: Mono) -> bool {
        if now.0 < self.next {
            return false;
        }
        let passed = now.0.saturating_sub(self.phase) / self.interval;
        self.next = self.phase.saturating_add((passed + 1).saturating_mul(self.interval));
        if self.next <= now.0 {
            self.next = now.0.saturating_add(self.interval);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cadence_never_ticks_twice_in_one_slot_and_never_stops(
            interval in 1u64..10_000, phase in 0u64..20_000, steps in prop::collection::vec(0u64..30_000, 1..60)
        ) {
            let mut cadence = Cadence::new(Duration::from_nanos(interval), Duration::from_nanos(phase));
            let mut now = 1_000_000u64;
            let mut last_slot = None;
            for step in steps {
                now += step;
                let due = cadence.next().0 <= now;
                prop_assert_eq!(cadence.tick(Mono(now)), due);
                prop_assert!(cadence.next().0 > now, "the next tick is in the future");
                prop_assert!(cadence.next().0 - now <= interval, "and at most one interval away");
                if due {
                    let slot = (now - phase % interval) / interval;
                    prop_assert!(last_slot != Some(slot), "two ticks in one slot");
                    last_slot = Some(slot);
                }
            }
        }
    }

    #[test]
    fn the_first_tick_is_at_once_and_later_ones_are_on_the_grid() {
        let mut cadence = Cadence::new(Duration::from_nanos(100), Duration::from_nanos(30));
        assert!(cadence.tick(Mono(1005)));
        assert_eq!(cadence.next(), Mono(1030));
        assert!(!cadence.tick(Mono(1029)));
        assert!(cadence.tick(Mono(1342)));
        assert_eq!(cadence.next(), Mono(1430));
    }
}

//! Which tiers of a GPU are due: pure, driven by the moments it is given.

use std::time::Duration;

use super::wire::Intervals;
use model::catalog::Tier;
use model::clock::{Cadence, Mono};

/// MIG mode (slow) and layout (normal) come first, because a change of them voids what was read before; the identity
/// comes before the rest.
const ORDER: [Tier; 8] = [
    Tier::Slow,
    Tier::Normal,
    Tier::Identity,
    Tier::Once,
    Tier::Fast,
    Tier::Samples,
    Tier::Rare,
    Tier::Nvlink,
];

/// When each tier of one GPU is due.
#[derive(Debug)]
pub struct TierSchedule {
    entries: Vec<DueTier>,
    retry: Duration,
    soon: Duration,
}

#[derive(Debug)]
struct DueTier {
    tier: Tier,
    /// None for tiers that are read once a handle.
    cadence: Option<Cadence>,
    next: Mono,
}

impl TierSchedule {
    /// All tiers due at once, then each at its interval. `n` is the GPU's place on the node.
    pub fn new(intervals: &Intervals, n: u32) -> TierSchedule {
        let entry = |tier| {
            let interval = intervals.of(tier);
            let cadence = interval.map(|every| Cadence::new(every, phase(tier, every, intervals.normal, n)));
            DueTier { tier, cadence, next: Mono(0) }
        };
        TierSchedule {
            entries: ORDER.into_iter().map(entry).collect(),
            retry: intervals.slow,
            soon: intervals.fast,
        }
    }

    /// The tiers that are due, in the order in which they are to be visited.
    pub fn due(&self, now: Mono) -> Vec<Tier> {
        self.entries.iter().filter(|e| e.next <= now).map(|e| e.tier).collect()
    }

    /// A tier was visited. A tier that is read once is read again later if a call failed.
    pub fn visited(&mut self, tier: Tier, now: Mono, failed: bool) {
        let retry = self.retry;
        self.change(tier, |e| {
            e.next = match &mut e.cadence {
                Some(cadence) => {
                    cadence.take(now);
                    cadence.next()
                }
                None if failed => now + retry,
                None => Mono(u64::MAX),
            };
        });
    }

    /// A tier could not be visited now: its turn comes with the next fast visit.
    pub fn postponed(&mut self, tier: Tier, now: Mono) {
        let soon = now + self.soon;
        self.change(tier, |e| e.next = soon);
    }

    /// All tiers but the identity are due again.
    pub fn all_again(&mut self) {
        for entry in self.entries.iter_mut().filter(|e| e.tier != Tier::Identity) {
            entry.next = Mono(0);
        }
    }

    /// A tier is due again at once.
    pub fn again(&mut self, tier: Tier) {
        self.change(tier, |e| e.next = Mono(0));
    }

    /// When the next tier is due, the fast one counted or not.
    pub fn next(&self, fast: bool) -> Mono {
        let counted = self.entries.iter().filter(|e| fast || e.tier != Tier::Fast);
        counted.map(|e| e.next).min().unwrap_or_default()
    }

    fn change(&mut self, tier: Tier, f: impl FnOnce(&mut DueTier)) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.tier == tier) {
            f(entry);
        }
    }
}

/// Where in its interval a GPU's tier is read. Fast visits of all GPUs come together, so that the node
/// wakes up once; normal ones go with a fast one, in the first half of the interval, so that they are fresh when the
/// ledger publishes in its middle; the samples are drained when a normal visit wakes the worker anyway; expensive ones
/// are spread, so that the slow calls of two GPUs do not meet.
fn phase(tier: Tier, interval: Duration, normal: Duration, n: u32) -> Duration {
    match tier {
        Tier::Fast => Duration::ZERO,
        Tier::Normal | Tier::Samples => normal / 10 * (n % 5),
        _ => interval.mul_f64(0.1) + interval.mul_f64(0.053) * (n % 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> TierSchedule {
        let ms = Duration::from_millis;
        let intervals = Intervals {
            fast: ms(100),
            normal: ms(1000),
            samples: ms(2000),
            slow: ms(10_000),
            rare: ms(60_000),
            nvlink: ms(300_000),
        };
        TierSchedule::new(&intervals, 0)
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn everything_is_due_at_once_and_then_at_its_interval() {
        let mut s = schedule();
        let start = Mono(1_000_000 * MS);
        assert_eq!(s.due(start), ORDER);
        for tier in ORDER {
            s.visited(tier, start, false);
        }
        assert_eq!(s.due(start), []);
        assert!(s.next(true).since(start) <= Duration::from_millis(100));
        assert_eq!(s.due(start + Duration::from_millis(100)), [Tier::Fast]);
        let later = s.due(start + Duration::from_secs(3600));
        assert_eq!(
            later,
            [Tier::Slow, Tier::Normal, Tier::Fast, Tier::Samples, Tier::Rare, Tier::Nvlink],
            "once is once"
        );
    }

    #[test]
    fn what_is_read_once_is_read_again_after_a_failure() {
        let mut s = schedule();
        let start = Mono(1_000_000 * MS);
        for tier in ORDER {
            s.visited(tier, start, tier == Tier::Identity);
        }
        assert!(!s.due(start + Duration::from_millis(9_999)).contains(&Tier::Identity));
        assert!(s.due(start + Duration::from_millis(10_000)).contains(&Tier::Identity));
    }

    #[test]
    fn a_postponed_tier_comes_with_the_next_fast_visit() {
        let mut s = schedule();
        let start = Mono(1_000_000 * MS);
        for tier in ORDER {
            s.visited(tier, start, false);
        }
        s.postponed(Tier::Rare, start);
        assert!(s.due(start + Duration::from_millis(100)).contains(&Tier::Rare));
        s.all_again();
        assert!(!s.due(start).contains(&Tier::Identity) && s.due(start).contains(&Tier::Once));
    }
}

//! Rules for the health of a sampler, for its replacement, and for a driver that is stuck as a whole. Pure functions.
//!
//! A sampler is not replaced while its other workers meet their deadlines, because a GPU whose call returns recovers by
//! itself. When a second worker misses its deadline, or all do, a replacement starts without the affected GPUs. If the
//! replacement gets stuck too while the first sampler still is, the driver is stuck as a whole, and no sampler starts
//! until one of the two has ended.
//!
//! Problems are published before anything is done about them. A call is published once it takes longer than usual calls
//! may, and the driver counts as stuck while its initialization does not return, long before a sampler is replaced for
//! that reason.

use std::time::Duration;

use host::inflight::{FAST_SLOT, NODE_SLOT, PEERS_SLOT, SlotView, is_gpu};
use model::clock::Mono;

/// Driver call that takes longer than usual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckCall {
    /// Slot of the worker.
    pub slot: usize,
    /// Name of the NVML function.
    pub call: String,
    /// Start of the call.
    pub since: Mono,
}

impl StuckCall {
    /// Returns NVML's index of the GPU; `None` for a call that concerns no single GPU.
    pub fn gpu(&self) -> Option<u32> {
        is_gpu(self.slot).then(|| u32::try_from(self.slot - 1).unwrap_or(u32::MAX))
    }
}

/// State of a sampler according to its in-flight table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplerHealth {
    /// Calls past their deadline.
    pub stuck: Vec<StuckCall>,
    /// Calls that open the driver or a GPU, within their own deadline but past the deadline of other calls.
    pub slow: Vec<StuckCall>,
    /// Number of workers that are in no call and overdue.
    pub late: usize,
    /// Number of workers that meet their deadlines.
    pub well: usize,
    /// Whether any worker is in a driver call.
    pub in_call: bool,
}

/// Evaluates the table. A worker in no call is late if it is `grace` behind its promised time; `grace` is also the
/// deadline of a usual call.
pub(crate) fn health(views: &[SlotView], now: Mono, grace: Duration) -> SamplerHealth {
    let mut health = SamplerHealth::default();
    for view in views {
        health.in_call |= view.call.is_some();
        match &view.call {
            _ if view.slot == FAST_SLOT => {}
            Some(call) => {
                let age = now.since(call.since);
                let named = StuckCall { slot: view.slot, call: call.name.clone(), since: call.since };
                if age > call.allowed {
                    health.stuck.push(named);
                    continue;
                }
                health.well += 1;
                if age > grace {
                    health.slow.push(named);
                }
            }
            None if view.slot == PEERS_SLOT => {}
            None if now > view.expected + grace => health.late += 1,
            None => health.well += 1,
        }
    }
    health
}

impl SamplerHealth {
    /// Returns whether a replacement is needed: two workers have missed their deadlines, or none meets its deadline.
    pub(crate) fn broken(&self) -> bool {
        let missed = self.stuck.iter().filter(|call| call.slot != PEERS_SLOT).count() + self.late;
        missed >= 2 || (missed == 1 && self.well == 0)
    }
}

/// Returns whether the driver is published as stuck because the sampler has not opened it for too long. `before` is the
/// last published value, and `grace` is the deadline of a usual call.
pub(crate) fn opening_is_stuck(
    opening: &SamplerHealth,
    abandoned: Option<Abandoned>,
    before: bool,
    now: Mono,
    grace: Duration,
) -> bool {
    let calls = opening.slow.iter().chain(&opening.stuck);
    let age = calls.filter(|call| call.slot == NODE_SLOT).map(|call| now.since(call.since)).max();
    match abandoned {
        // Two processes are waiting for the driver.
        Some(Abandoned::Stuck) => before || age.is_some_and(|age| age > grace),
        _ => age.is_some_and(|age| age > grace * 2),
    }
}

/// Returns whether an abandoned sampler shows that the driver is stuck as a whole while no other sampler may start.
/// This requires that no GPU that it worked on answers it, for as long as in [`opening_is_stuck`]. Workers of healthy
/// GPUs end when their sampler is abandoned, so they are no evidence.
pub(crate) fn waiting_is_stuck(
    abandoned: &SamplerHealth,
    gpus: &[usize],
    now: Mono,
    grace: Duration,
) -> bool {
    let of_gpus = || abandoned.stuck.iter().filter(|call| is_gpu(call.slot));
    let age = of_gpus().map(|call| now.since(call.since)).max();
    let is_stuck = |gpu: &usize| of_gpus().any(|call| call.slot == *gpu);
    gpus.iter().all(is_stuck) && age.is_some_and(|age| age > grace * 2)
}

/// Decision about the serving sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Keep the serving sampler.
    Keep,
    /// Abandon the sampler and start another.
    Replace,
    /// Publish that the driver is stuck as a whole, and start nothing.
    DriverStuck,
}

/// State of an abandoned sampler, as far as its successor depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// The sampler is ending, or will be killed.
    Ending,
    /// The sampler is in a driver call, or was killed and does not end, which has the same effect.
    Stuck,
}

/// Judges the serving sampler, given an abandoned one that has not ended.
pub(crate) fn decide(serving: &SamplerHealth, abandoned: Option<Abandoned>) -> Decision {
    match (serving.broken(), abandoned) {
        (false, _) => Decision::Keep,
        (true, None) => Decision::Replace,
        // The sampler was stopped or starved, which is no evidence against the driver.
        (true, Some(_)) if serving.stuck.is_empty() => Decision::Replace,
        (true, Some(Abandoned::Stuck)) => Decision::DriverStuck,
        (true, Some(Abandoned::Ending)) => Decision::Keep,
    }
}

/// Delays between restarts. The first restart is immediate; the delays then double from `first` to `most`. They reset
/// after a sampler has lived for ten times `most`.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates the delays without a failure.
    pub(crate) fn new(first: Duration, most: Duration) -> Backoff {
        Backoff { first, most, failures: 0 }
    }

    /// Records the failure of a sampler that lived this long. Returns the delay before the next start.
    pub(crate) fn failed_after(&mut self, lived: Duration) -> Duration {
        if lived > self.most * 10 {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            1 => Duration::ZERO,
            n => self.first.saturating_mul(1u32.checked_shl(n - 2).unwrap_or(u32::MAX)).min(self.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::inflight::InCall;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn idle(slot: usize, expected: u64) -> SlotView {
        SlotView { slot, call: None, expected: Mono(expected) }
    }

    fn calling(slot: usize, since: u64) -> SlotView {
        let call = InCall {
            name: "nvmlDeviceGetPowerUsage".into(),
            since: Mono(since),
            allowed: Duration::from_secs(3),
            sequence: 1,
        };
        SlotView { slot, call: Some(call), expected: Mono(since) }
    }

    fn judge(views: &[SlotView], now: u64) -> SamplerHealth {
        health(views, Mono(now), Duration::from_secs(3))
    }

    #[test]
    fn one_stuck_gpu_of_eight_replaces_nothing() {
        let now = 100 * SECOND;
        let mut views: Vec<_> = (0..9).map(|slot| idle(slot, now)).collect();
        views[4] = calling(4, now - 10 * SECOND);
        let h = judge(&views, now);
        assert_eq!((h.stuck.len(), h.well), (1, 8));
        assert_eq!(decide(&h, None), Decision::Keep);
    }

    #[test]
    fn a_second_one_does() {
        let now = 100 * SECOND;
        let mut views: Vec<_> = (0..9).map(|slot| idle(slot, now)).collect();
        views[4] = calling(4, now - 10 * SECOND);
        views[6] = calling(6, now - 4 * SECOND);
        assert_eq!(decide(&judge(&views, now), None), Decision::Replace);
    }

    #[test]
    fn a_pair_that_hangs_with_one_of_the_two_replaces_nothing() {
        let now = 100 * SECOND;
        let mut views: Vec<_> = (0..9).map(|slot| idle(slot, now)).collect();
        views[4] = calling(4, now - 10 * SECOND);
        views.push(calling(PEERS_SLOT, now - 9 * SECOND));
        let h = judge(&views, now);
        assert_eq!((h.stuck.len(), h.well), (2, 8), "both are shown");
        assert_eq!(decide(&h, None), Decision::Keep);
    }

    #[test]
    fn a_stopped_process_is_replaced() {
        let now = 100 * SECOND;
        let views: Vec<_> = (0..9).map(|slot| idle(slot, now - 4 * SECOND)).collect();
        let h = judge(&views, now);
        assert_eq!(h.late, 9);
        assert_eq!(decide(&h, None), Decision::Replace);
    }

    #[test]
    fn two_processes_stuck_means_the_driver_is() {
        let now = 100 * SECOND;
        let new = judge(&[calling(0, now - 5 * SECOND)], now);
        assert_eq!(decide(&new, Some(Abandoned::Stuck)), Decision::DriverStuck);
        assert_eq!(decide(&new, Some(Abandoned::Ending)), Decision::Keep);
        let freed = judge(&[idle(0, now)], now);
        assert_eq!(decide(&freed, Some(Abandoned::Stuck)), Decision::Keep);
        let stopped = judge(&[idle(0, now - 5 * SECOND)], now);
        assert_eq!(decide(&stopped, Some(Abandoned::Stuck)), Decision::Replace);
    }

    #[test]
    fn an_initialization_shows_before_its_sampler_is_replaced() {
        let opening = |since: u64, now: u64| {
            let mut view = calling(NODE_SLOT, since);
            view.call.as_mut().unwrap().allowed = Duration::from_secs(20);
            judge(&[view], now)
        };
        let stuck = |seconds: u64, abandoned, before| {
            let now = 100 * SECOND;
            let health = opening(now - seconds * SECOND, now);
            assert_eq!(decide(&health, abandoned), Decision::Keep, "replaced only at its own deadline");
            let grace = Duration::from_secs(3);
            (health.slow.len(), opening_is_stuck(&health, abandoned, before, Mono(now), grace))
        };
        assert_eq!(stuck(3, None, false), (0, false));
        assert_eq!(stuck(4, None, false), (1, false), "it shows by name");
        assert_eq!(stuck(7, None, false), (1, true));
        assert_eq!(stuck(4, Some(Abandoned::Ending), false), (1, false));
        assert_eq!(
            stuck(4, Some(Abandoned::Stuck), false),
            (1, true),
            "the second process without an answer"
        );
        assert_eq!(stuck(1, Some(Abandoned::Stuck), false), (0, false));
        assert_eq!(stuck(1, Some(Abandoned::Stuck), true), (0, true), "as before the replacement");
    }

    #[test]
    fn a_stuck_driver_shows_while_no_new_sampler_may_start() {
        let now = 100 * SECOND;
        let stuck = |seconds: u64, slots: &[usize], gpus: &[usize]| {
            let views: Vec<_> = slots.iter().map(|slot| calling(*slot, now - seconds * SECOND)).collect();
            waiting_is_stuck(&judge(&views, now), gpus, Mono(now), Duration::from_secs(3))
        };
        let all = [1, 2, 3, 4];
        assert!(stuck(7, &all, &all));
        assert!(stuck(7, &all, &[]), "no GPU was attached yet");
        assert!(!stuck(6, &all, &all), "not for long enough");
        assert!(!stuck(7, &[2, 4, PEERS_SLOT], &all), "the others were well");
        assert!(!stuck(7, &[NODE_SLOT], &[]), "the initialization is judged by itself");
        assert!(!stuck(7, &[], &all));
    }

    proptest! {
        #[test]
        fn workers_in_time_are_never_blamed(since in 0u64..3 * SECOND, behind in 0u64..3 * SECOND, n in 1usize..64) {
            let now = 1000 * SECOND;
            let views: Vec<_> = (0..n)
                .map(|slot| if slot % 2 == 0 { calling(slot, now - since) } else { idle(slot, now - behind) })
                .collect();
            let h = judge(&views, now);
            prop_assert_eq!(h.well, n);
            prop_assert_eq!(decide(&h, None), Decision::Keep);
        }

        #[test]
        fn delays_grow_to_the_bound_and_no_further(lives in prop::collection::vec(0u64..100, 1..80)) {
            let most = Duration::from_secs(30);
            let mut backoff = Backoff::new(Duration::from_secs(1), most);
            let mut last = Duration::ZERO;
            for lived in lives {
                let wait = backoff.failed_after(Duration::from_secs(lived));
                prop_assert!(wait <= most && wait >= last);
                last = wait;
            }
        }
    }
}

//! Budget of GPU time of one GPU. The budget fills at the allowed rate, and a run may begin while it is not empty. A
//! run may overdraw the budget, and the next run waits until the deficit is recovered. The allowed share is therefore
//! kept for runs of any length.

use std::time::Duration;

use model::clock::Mono;

/// The budget, in GPU-seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    /// Rate in GPU-seconds per second.
    rate: f64,
    most: f64,
    left: f64,
    at: Mono,
}

impl Budget {
    /// Creates a full budget with one interval's share.
    pub fn new(rate: f64, interval: Duration, now: Mono) -> Budget {
        let most = rate * interval.as_secs_f64();
        Budget { rate, most, left: most, at: now }
    }

    /// Changes the rate. The budget has at most one interval's share.
    pub fn allow(&mut self, rate: f64, interval: Duration, now: Mono) {
        let left = self.left_at(now);
        *self = Budget { left: left.min(rate * interval.as_secs_f64()), ..Budget::new(rate, interval, now) };
    }

    fn left_at(&self, now: Mono) -> f64 {
        (self.left + self.rate * now.since(self.at).as_secs_f64()).min(self.most)
    }

    /// Returns the time until the budget is not empty, or `None` if it is not empty now.
    pub fn wait(&self, now: Mono) -> Option<Duration> {
        let left = self.left_at(now);
        if left > 0.0 {
            return None;
        }
        let wait = Duration::try_from_secs_f64(-left / self.rate).unwrap_or(Duration::MAX);
        Some(wait.max(Duration::from_millis(1)))
    }

    /// Subtracts the GPU time of a run.
    pub fn spend(&mut self, gpu_seconds: f64, now: Mono) {
        let spent = if gpu_seconds.is_finite() { gpu_seconds.max(0.0) } else { 0.0 };
        self.left = self.left_at(now) - spent;
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_share_holds_over_any_time(
            ppm in 1u32..100_000, interval in 10u64..86_400,
            runs in prop::collection::vec((0u64..5000, 0.001f64..2.0), 1..200)
        ) {
            let rate = f64::from(ppm) * 1e-6;
            let interval = Duration::from_secs(interval);
            let start = Mono(1_000_000_000);
            let mut budget = Budget::new(rate, interval, start);
            let (mut now, mut spent) = (start, 0.0);
            for (pause, cost) in runs {
                now = now + Duration::from_secs(pause);
                if budget.wait(now).is_none() {
                    // All runs except the newest fit into the share and the initial budget.
                    let allowed = rate * (now.since(start).as_secs_f64() + interval.as_secs_f64());
                    prop_assert!(spent <= allowed + 1e-6, "{spent} of {allowed}");
                    budget.spend(cost, now);
                    spent += cost;
                }
            }
        }

        #[test]
        fn it_is_open_again_when_it_said(cost in 0.001f64..100.0) {
            let now = Mono(5);
            let mut budget = Budget::new(0.001, Duration::from_secs(10), now);
            budget.spend(cost, now);
            if let Some(wait) = budget.wait(now) {
                prop_assert_eq!(budget.wait(now + wait + Duration::from_millis(1)), None);
            }
        }
    }
}

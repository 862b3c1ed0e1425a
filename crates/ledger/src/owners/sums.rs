//! Sums of an account.

use super::classes::ClassShares;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AccountSums {
    /// GPU time, in seconds.
    pub allocated: f64,
    /// GPU time by class, in the order of `GpuTimeClass::ALL`.
    pub classes: ClassShares,
    /// Seconds in which the GPU worked.
    pub busy: f64,
    pub joules: f64,
    pub steps: f64,
    /// Seconds as the slow rank.
    pub slow: f64,
    /// Number of ends with full memory.
    pub ended_full: f64,
    /// Maximum memory that its processes used at the same time since the last record, in bytes.
    pub peak: Option<u64>,
}

impl AccountSums {
    /// Combines every sum with the same sum of the other. The peak is the higher one.
    pub fn with(&self, other: &AccountSums, join: impl Fn(f64, f64) -> f64) -> AccountSums {
        let mut classes = self.classes;
        classes.iter_mut().zip(other.classes).for_each(|(sum, more)| *sum = join(*sum, more));
        AccountSums {
            allocated: join(self.allocated, other.allocated),
            classes,
            busy: join(self.busy, other.busy),
            joules: join(self.joules, other.joules),
            steps: join(self.steps, other.steps),
            slow: join(self.slow, other.slow),
            ended_full: join(self.ended_full, other.ended_full),
            peak: self.peak.max(other.peak),
        }
    }
}

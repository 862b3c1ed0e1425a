//! Recent Xid faults by code, for pages without a counter of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::builder::Builder;
use model::catalog::schema::LabelText;
use model::catalog::{self as m, Gpu, MetricId, Subject, XidCode};
use model::clock::Mono;

/// Last value of a counter, and its recent increases.
#[derive(Default)]
struct Grown {
    total: f64,
    steps: VecDeque<(Mono, f64)>,
}

/// Counters of Xid faults, by GPU and code.
#[derive(Default)]
pub(crate) struct RecentXids(BTreeMap<(Gpu, String), Grown>);

impl RecentXids {
    /// Records the value of a counter. Counters of anything except Xids are ignored.
    pub fn record(
        &mut self,
        metric: MetricId,
        subject: &Subject,
        labels: &[LabelText],
        total: f64,
        now: Mono,
    ) {
        let (Subject::Gpu(gpu), Some(LabelText::Text(code))) = (subject, labels.first()) else { return };
        if metric != m::gpu_xid_errors_total.id() || total == 0.0 {
            return;
        }
        let known = self.0.entry((gpu.clone(), code.to_string())).or_default();
        // A restarted counter begins at 0.
        let before = if total < known.total { 0.0 } else { known.total };
        if total > before {
            known.steps.push_back((now, total - before));
        }
        known.total = total;
    }

    /// Publishes the faults within the window before `now`.
    pub fn publish(&mut self, b: &mut Builder<'_>, window: Duration, now: Mono) {
        for ((gpu, code), grown) in &mut self.0 {
            while grown.steps.front().is_some_and(|(at, _)| now.since(*at) > window) {
                grown.steps.pop_front();
            }
            let faults: f64 = grown.steps.iter().map(|(_, faults)| faults).sum();
            if faults > 0.0 {
                b.add(&m::gpu_xid_window_errors, gpu, (XidCode(code.as_str().into()),), faults);
            }
        }
    }

    /// Forgets a GPU under its index.
    pub fn forget(&mut self, gpu: &Gpu) {
        self.0.retain(|(of, _), _| of != gpu);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::builder::Subjects;
    use model::catalog::schema::{Entity, LabelSet};
    use model::catalog::{FaultAction, Severity};

    fn gpu(index: u32) -> Gpu {
        Gpu { gpu: index, uuid: format!("GPU-{index}").into() }
    }

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn record(recent: &mut RecentXids, index: u32, code: &str, total: f64, seconds: u64) {
        let labels = (XidCode(code.into()), Severity::Page, FaultAction::ResetGpu).texts();
        recent.record(m::gpu_xid_errors_total.id(), &gpu(index).subject(), &labels, total, at(seconds));
    }

    fn count(recent: &mut RecentXids, index: u32, code: &str, seconds: u64) -> Option<f64> {
        let off = HashSet::new();
        let mut b = Builder::new(Subjects::default(), &off);
        recent.publish(&mut b, Duration::from_secs(300), at(seconds));
        let labels = (XidCode(code.into()),).texts();
        b.number(m::gpu_xid_window_errors.id(), &gpu(index).subject(), &labels)
    }

    #[test]
    fn faults_leave_the_window_as_they_came() {
        let mut recent = RecentXids::default();
        record(&mut recent, 0, "79", 0.0, 0);
        record(&mut recent, 0, "79", 1.0, 10);
        record(&mut recent, 0, "79", 1.0, 11);
        record(&mut recent, 0, "79", 3.0, 100);
        assert_eq!(count(&mut recent, 0, "79", 100), Some(3.0));
        assert_eq!(count(&mut recent, 0, "48", 100), None);
        assert_eq!(count(&mut recent, 1, "79", 100), None);
        assert_eq!(count(&mut recent, 0, "79", 310), Some(3.0), "at the end of the window");
        assert_eq!(count(&mut recent, 0, "79", 311), Some(2.0));
        assert_eq!(count(&mut recent, 0, "79", 401), None);
    }

    #[test]
    fn a_counter_that_starts_again_counts_from_0() {
        let mut recent = RecentXids::default();
        record(&mut recent, 0, "79", 5.0, 10);
        record(&mut recent, 0, "79", 2.0, 20);
        assert_eq!(count(&mut recent, 0, "79", 20), Some(7.0));
        recent.forget(&gpu(0));
        assert_eq!(count(&mut recent, 0, "79", 20), None);
        record(&mut recent, 0, "79", 1.0, 30);
        assert_eq!(count(&mut recent, 0, "79", 30), Some(1.0));
    }

    #[test]
    fn other_counters_are_passed_over() {
        let mut recent = RecentXids::default();
        recent.record(m::gpu_resets_total.id(), &gpu(0).subject(), &[], 1.0, at(1));
        assert!(recent.0.is_empty());
    }
}

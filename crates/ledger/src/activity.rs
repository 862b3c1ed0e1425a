//! Last work of each GPU, and the runs of the canary. Samples taken during a run are neither busy nor idle time of
//! the node's users.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::canary::CanaryEvent;
use model::catalog::{self as m, CanaryEnd, Gpu, Subject, Tier};
use model::clock::Mono;
use model::sample::Batch;

/// Longest interval of one utilization sample of the driver (NVML: 1/6 s to 1 s). Samples this close to a run do not
/// count.
const PERIOD: Duration = Duration::from_secs(1);
/// Maximum age of the driver's newest utilization, which describes the interval before.
const POLLED: Duration = Duration::from_secs(2);
/// Time after which a run that is not known to hang is over, because the event of its end was lost.
const LONGEST: Duration = Duration::from_secs(30 * 60);
/// Runs kept per GPU. The driver keeps samples for 14 s.
const KEPT: usize = 32;

/// Work of every GPU, by UUID.
#[derive(Default)]
pub(crate) struct Activity(HashMap<Arc<str>, GpuWork>);

#[derive(Default)]
struct GpuWork {
    /// Time of the last work that was not the canary's.
    last: Option<Mono>,
    runs: VecDeque<CanarySpan>,
}

struct CanarySpan {
    /// MIG GPU and compute instance of the run, if any.
    instance: Option<(u32, u32)>,
    began: Mono,
    ended: Option<Mono>,
    hangs: bool,
}

impl Activity {
    /// Applies an event of the canary about a GPU.
    pub fn canary(&mut self, uuid: &Arc<str>, event: &CanaryEvent, at: Mono) {
        match event {
            CanaryEvent::Began(place) => self.began(uuid, place.ids(), at),
            CanaryEvent::Peer(_, true) => self.began(uuid, None, at),
            CanaryEvent::Peer(_, false) => self.ended(uuid, None, at),
            CanaryEvent::Hung(place, Some(_)) => self.hangs(uuid, place.ids()),
            CanaryEvent::Hung(place, None) => self.ended(uuid, place.ids(), at),
            // A hung process may keep the GPU busy, so the run ends with the process.
            CanaryEvent::Ended(run) if run.end != CanaryEnd::Hung => {
                self.ended(uuid, run.place.ids(), at);
            }
            _ => {}
        }
    }

    fn began(&mut self, uuid: &Arc<str>, instance: Option<(u32, u32)>, at: Mono) {
        self.ended(uuid, instance, at);
        let runs = &mut self.0.entry(Arc::clone(uuid)).or_default().runs;
        if runs.len() >= KEPT {
            runs.pop_front();
        }
        runs.push_back(CanarySpan { instance, began: at, ended: None, hangs: false });
    }

    /// Marks a run as hung: it lasts until its process ends.
    fn hangs(&mut self, uuid: &Arc<str>, instance: Option<(u32, u32)>) {
        if let Some(run) = self.open(uuid, instance) {
            run.hangs = true;
        }
    }

    /// Ends a run together with its process.
    fn ended(&mut self, uuid: &Arc<str>, instance: Option<(u32, u32)>, at: Mono) {
        if let Some(run) = self.open(uuid, instance) {
            (run.ended, run.hangs) = (Some(at), false);
        }
    }

    fn open(&mut self, uuid: &Arc<str>, instance: Option<(u32, u32)>) -> Option<&mut CanarySpan> {
        let runs = &mut self.0.get_mut(uuid)?.runs;
        runs.iter_mut().find(|run| run.instance == instance && run.ended.is_none())
    }

    /// Returns true if a sample taken at this time may be the canary's work.
    pub fn is_canarys(&self, uuid: &Arc<str>, at: Mono) -> bool {
        self.covered(uuid, at, PERIOD)
    }

    fn covered(&self, uuid: &Arc<str>, at: Mono, after: Duration) -> bool {
        let Some(own) = self.0.get(uuid) else { return false };
        own.runs.iter().any(|run| {
            let end = match run.ended {
                Some(ended) => Some(ended),
                None if run.hangs => None,
                None => Some(run.began + LONGEST),
            };
            at + PERIOD >= run.began && end.is_none_or(|end| at <= end + after)
        })
    }

    /// Records whether a visit found a GPU at work.
    pub fn record(&mut self, batch: &Batch) {
        let Some(gpu) = &batch.part.gpu else { return };
        let above = |metric, whole: bool| {
            let groups = batch.rows.groups().iter().filter(move |(subject, _)| match subject {
                Subject::Gpu(_) => whole,
                Subject::ComputeInstance(_) => !whole,
                _ => false,
            });
            groups.flat_map(|(_, rows)| rows).any(|row| row.metric == metric && row.value > 0.0)
        };
        // Compute processes are listed in one tier, all others in the other.
        let processes = || above(m::gpu_processes.id(), true);
        let busy = match batch.part.tier {
            Tier::Slow => processes() || above(m::gpu_mig_compute_processes.id(), false),
            Tier::Normal => {
                let works = above(m::gpu_utilization_ratio.id(), true);
                processes() || works && !self.covered(&gpu.uuid, batch.taken, POLLED)
            }
            _ => false,
        };
        if busy {
            self.worked(&gpu.uuid, batch.taken);
        }
    }

    pub fn worked(&mut self, uuid: &Arc<str>, at: Mono) {
        let last = &mut self.0.entry(Arc::clone(uuid)).or_default().last;
        *last = (*last).max(Some(at));
    }

    /// Returns the time of a GPU's last work.
    pub fn last_work(&self, gpu: &Gpu) -> Option<Mono> {
        self.0.get(&gpu.uuid)?.last
    }

    /// Forgets a GPU that was replaced.
    pub fn forget(&mut self, uuid: &Arc<str>) {
        self.0.remove(uuid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: f64) -> Mono {
        Mono((seconds * 1e9) as u64)
    }

    #[test]
    fn a_run_covers_a_sample_period_before_and_after_it() {
        let (mut busy, gpu): (_, Arc<str>) = (Activity::default(), "a".into());
        assert!(!busy.is_canarys(&gpu, at(10.0)));
        busy.began(&gpu, None, at(10.0));
        assert!(
            !busy.is_canarys(&gpu, at(8.9))
                && busy.is_canarys(&gpu, at(9.1))
                && busy.is_canarys(&gpu, at(500.0))
        );
        busy.ended(&gpu, None, at(11.5));
        assert!(busy.is_canarys(&gpu, at(12.4)) && !busy.is_canarys(&gpu, at(12.6)));
        assert!(busy.covered(&gpu, at(13.4), POLLED) && !busy.covered(&gpu, at(13.6), POLLED));
        assert!(!busy.is_canarys(&"b".into(), at(11.0)), "another GPU's time is its own");
    }

    #[test]
    fn an_end_that_was_lost_hides_nothing_for_ever() {
        let (mut busy, gpu): (_, Arc<str>) = (Activity::default(), "a".into());
        busy.began(&gpu, None, at(10.0));
        assert!(!busy.is_canarys(&gpu, at(10.0 + 1802.0)));
        busy.hangs(&gpu, None);
        assert!(busy.is_canarys(&gpu, at(10.0 + 1802.0)), "but while it hangs it is not over");
        busy.began(&gpu, None, at(5000.0));
        busy.ended(&gpu, None, at(5001.0));
        assert!(!busy.is_canarys(&gpu, at(5100.0)));
    }

    proptest! {
        #[test]
        fn what_is_far_from_every_run_is_never_the_canarys(
            runs in prop::collection::vec((0f64..1000.0, 0f64..60.0), 1..20), moment in 0f64..1100.0,
        ) {
            let (mut busy, gpu): (_, Arc<str>) = (Activity::default(), "a".into());
            let mut end = 0f64;
            let mut known = Vec::new();
            for (pause, length) in runs {
                let began = end + pause + 0.001;
                end = began + length;
                busy.began(&gpu, None, at(began));
                busy.ended(&gpu, None, at(end));
                known.push((began, end));
            }
            let near = |margin: f64| {
                known.iter().any(|(began, ended)| moment >= began - margin && moment <= ended + margin)
            };
            prop_assert!(busy.is_canarys(&gpu, at(moment)) || !near(0.999));
            prop_assert!(!busy.is_canarys(&gpu, at(moment)) || near(1.001));
        }
    }
}

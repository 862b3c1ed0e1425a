//! Trigger of recordings: a fault begins that pages according to [`model::health::Condition::pages_after`].
//!
//! Faults that occur together, or before the recording of an earlier fault is written, share one recording. The same
//! fault of one GPU within [`RecordingPace::pause`] does not trigger another one, and recordings are at least
//! [`SHORTEST`] apart.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use model::catalog::Severity;
use model::catalog::schema::KnownLabel;
use model::clock::Mono;
use model::snapshot::Snapshot;

/// Minimum interval between two recordings of any faults.
pub const SHORTEST: Duration = Duration::from_secs(60);
/// Maximum number of faults kept for the pause. More occur only in a storm, and are not recorded.
const MAX_REMEMBERED: usize = 4096;
/// Maximum number of faults named in one recording.
const MAX_NAMED: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
pub struct RecordingPace {
    /// Time after the fault that the recording includes.
    pub after: Duration,
    /// Minimum interval between two recordings of the same fault of one GPU.
    pub pause: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedFault {
    /// Time of the first observation, in seconds of the monotonic clock.
    pub t: f64,
    /// Index and UUID of the GPU; null if the fault is not about a GPU.
    pub gpu: Option<u32>,
    pub uuid: Option<String>,
    /// Condition of the verdict, or kind of the event.
    pub fault: String,
    pub code: Option<u64>,
    pub text: String,
}

/// Identity of a fault: its GPU or switch, its name and its code.
pub type FaultKey = (String, String, Option<u64>);

/// Result of one snapshot.
#[derive(Debug, Default, PartialEq)]
pub struct RecordingDue {
    /// Faults whose recording must be written now.
    pub faults: Option<Vec<RecordedFault>>,
    /// Identities of these faults, for [`Trigger::forget`].
    pub keys: Vec<FaultKey>,
    /// Faults without a recording, because one was made or there are too many.
    pub suppressed: u64,
}

/// Decides which snapshots trigger a recording.
#[derive(Debug, Default)]
pub struct Trigger {
    pace: RecordingPace,
    /// Conditions that hold, since when, and whether they have paged.
    held: HashMap<FaultKey, (Mono, bool)>,
    /// Times at which faults were recorded.
    recorded: HashMap<FaultKey, Mono>,
    waiting: Vec<RecordedFault>,
    /// Identities of all waiting faults, including those that are not named.
    waiting_keys: Vec<FaultKey>,
    due: Mono,
    last: Option<Mono>,
    /// Newest event revision seen.
    revision: u64,
}

impl Trigger {
    pub fn new(pace: RecordingPace) -> Trigger {
        Trigger { pace, ..Trigger::default() }
    }

    /// Evaluates a new snapshot. Faults before the daemon is ready are older than its observation.
    pub fn look(&mut self, snapshot: &Snapshot) -> RecordingDue {
        let (now, mut due) = (snapshot.taken, RecordingDue::default());
        for (key, fault) in self.begun(snapshot) {
            let paused = self.recorded.get(&key).is_some_and(|at| now.since(*at) < self.pace.pause);
            if !snapshot.ready {
                continue;
            }
            if paused || self.recorded.len() >= MAX_REMEMBERED {
                due.suppressed += 1;
                continue;
            }
            self.recorded.insert(key.clone(), now);
            self.waiting_keys.push(key);
            if self.waiting.is_empty() {
                self.due = (now + self.pace.after).max(self.last.map_or(now, |last| last + SHORTEST));
            }
            if self.waiting.len() < MAX_NAMED {
                self.waiting.push(fault);
            }
        }
        if !self.waiting.is_empty() && now >= self.due {
            self.last = Some(now);
            due.faults = Some(std::mem::take(&mut self.waiting));
            due.keys = std::mem::take(&mut self.waiting_keys);
        }
        self.recorded.retain(|_, at| now.since(*at) < self.pace.pause);
        due
    }

    /// Returns the faults whose recording is waiting, and their identities. Called once, at the end of the daemon.
    pub fn end(&mut self) -> (Vec<RecordedFault>, Vec<FaultKey>) {
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.waiting_keys))
    }

    /// Forgets faults whose recording was not written, so that the next one of the same kind is recorded.
    pub fn forget(&mut self, keys: &[FaultKey]) {
        for key in keys {
            self.recorded.remove(key);
        }
    }

    /// Returns the faults that began to page since the last snapshot.
    fn begun(&mut self, snapshot: &Snapshot) -> Vec<(FaultKey, RecordedFault)> {
        let (now, t) = (snapshot.taken, snapshot.taken.0 as f64 * 1e-9);
        let (mut begun, mut held) = (Vec::new(), HashMap::new());
        for health in &snapshot.health.gpus {
            for reason in &health.reasons {
                let Some(after) = reason.condition.pages_after() else { continue };
                let name = format!("{:?}", reason.condition);
                let key = (health.gpu.uuid.to_string(), name.clone(), None);
                let (since, paged) = self.held.get(&key).copied().unwrap_or((now, false));
                let pages = now.since(since) >= after;
                if pages && !paged {
                    let fault = RecordedFault {
                        t,
                        gpu: Some(health.gpu.gpu),
                        uuid: Some(key.0.clone()),
                        fault: name,
                        code: None,
                        text: reason.text.clone(),
                    };
                    begun.push((key.clone(), fault));
                }
                held.insert(key, (since, pages));
            }
        }
        self.held = held;
        let newest = snapshot.events_revision().max(self.revision);
        let seen = std::mem::replace(&mut self.revision, newest);
        let new = snapshot.events.iter().filter(|event| event.revision > seen);
        for event in new.filter(|event| event.severity == Severity::Page && !event.old) {
            let uuid = event.gpu.as_ref().map(|gpu| gpu.uuid.to_string());
            let about = uuid.clone().or_else(|| event.nvswitch.clone()).or_else(|| event.pci.clone());
            let kind = event.kind.known().to_owned();
            let fault = RecordedFault {
                t,
                gpu: event.gpu.as_ref().map(|gpu| gpu.gpu),
                uuid,
                fault: kind.clone(),
                code: event.code,
                text: event.text.clone(),
            };
            begun.push(((about.unwrap_or_default(), kind, event.code), fault));
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use model::catalog::{FaultAction, Gpu};
    use model::health::{Condition, GpuHealth, HealthReason, NodeHealth};
    use model::snapshot::{Event, EventKind};

    fn snapshot(second: u64, conditions: &[Condition]) -> Snapshot {
        let gpu = Gpu { gpu: 3, uuid: "GPU-3".into() };
        let reason = |condition: &Condition| HealthReason {
            condition: *condition,
            level: condition.level(),
            text: "it is so".into(),
            action: condition.action(),
        };
        let reasons = conditions.iter().map(reason).collect();
        let health = GpuHealth { gpu, level: Default::default(), word: "", healthy: None, reasons };
        Snapshot {
            taken: Mono(second * 1_000_000_000),
            ready: true,
            health: NodeHealth { gpus: vec![health], ..NodeHealth::default() },
            ..Snapshot::default()
        }
    }

    fn trigger() -> Trigger {
        Trigger::new(RecordingPace { after: Duration::from_secs(5), pause: Duration::from_secs(600) })
    }

    fn names(due: RecordingDue) -> Option<Vec<String>> {
        due.faults.map(|faults| faults.into_iter().map(|fault| fault.fault).collect())
    }

    #[test]
    fn faults_that_come_together_are_one_recording_that_has_what_follows() {
        let mut trigger = trigger();
        assert_eq!(trigger.look(&snapshot(1, &[])), RecordingDue::default());
        assert_eq!(trigger.look(&snapshot(2, &[Condition::FatalXid])), RecordingDue::default());
        assert_eq!(
            trigger.look(&snapshot(4, &[Condition::FatalXid, Condition::Lost])),
            RecordingDue::default()
        );
        let due = trigger.look(&snapshot(7, &[Condition::Lost]));
        assert_eq!(names(due), Some(vec!["FatalXid".into(), "Lost".into()]));
        assert_eq!(trigger.look(&snapshot(8, &[Condition::Lost])), RecordingDue::default());
    }

    #[test]
    fn a_fault_that_comes_again_is_counted_and_recorded_after_the_pause() {
        let mut trigger = trigger();
        let mut recordings = 0;
        let mut suppressed = 0;
        for second in 0..1200 {
            let on = [Condition::Lost];
            let due = trigger.look(&snapshot(second, if second % 2 == 0 { &on } else { &[] }));
            recordings += u64::from(due.faults.is_some());
            suppressed += due.suppressed;
        }
        assert_eq!((recordings, suppressed), (2, 598));
    }

    #[test]
    fn a_fault_whose_recording_was_not_written_is_recorded_when_it_comes_again() {
        let mut trigger = trigger();
        let mut look = |second, on: &[Condition], failed: &mut Vec<FaultKey>| {
            trigger.forget(&std::mem::take(failed));
            let due = trigger.look(&snapshot(second, on));
            failed.extend(due.keys);
            (due.faults.is_some(), due.suppressed)
        };
        let mut failed = Vec::new();
        assert_eq!(look(1, &[Condition::Lost], &mut failed), (false, 0));
        assert_eq!(look(7, &[], &mut failed), (true, 0));
        assert_eq!(failed.len(), 1);
        assert_eq!(look(70, &[Condition::Lost], &mut failed), (false, 0));
        assert_eq!(look(80, &[], &mut failed), (true, 0));
        failed.clear();
        assert_eq!(look(150, &[Condition::Lost], &mut failed), (false, 1), "that one was written");
    }

    #[test]
    fn a_storm_of_different_faults_makes_a_recording_a_minute_and_is_bounded() {
        let mut trigger = trigger();
        let mut recordings = Vec::new();
        for second in 0..300u64 {
            let mut events = Vec::new();
            for n in 0..100 {
                let mut event =
                    Event::new(EventKind::Xid, second as f64, Severity::Page, FaultAction::ResetGpu);
                event.code = Some(second * 100 + n);
                event.revision = second * 100 + n + 1;
                events.push(Arc::new(event));
            }
            let seen = Snapshot { events: events.into(), ..snapshot(second, &[]) };
            recordings.extend(trigger.look(&seen).faults.map(|faults| (second, faults.len())));
        }
        assert_eq!(recordings.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [5, 65]);
        assert!(recordings.iter().all(|(_, faults)| *faults <= MAX_NAMED));
    }

    #[test]
    fn what_held_before_the_daemon_was_ready_and_what_does_not_page_make_none() {
        let mut trigger = trigger();
        let early = Snapshot { ready: false, ..snapshot(1, &[Condition::FatalXid]) };
        assert_eq!(trigger.look(&early), RecordingDue::default());
        for second in 2..30 {
            let due = trigger.look(&snapshot(second, &[Condition::FatalXid, Condition::PowerCap]));
            assert_eq!(due, RecordingDue::default());
        }
        // It comes and goes without a fault: only one that lasts pages.
        for second in 30..60 {
            assert_eq!(trigger.look(&snapshot(second, &[Condition::HwPowerBrake])), RecordingDue::default());
        }
        let lasting = (60..120).filter_map(|second| {
            trigger.look(&snapshot(second, &[Condition::HwPowerBrake])).faults.map(|_| second)
        });
        assert_eq!(lasting.collect::<Vec<_>>(), [95]);
    }
}

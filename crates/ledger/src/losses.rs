//! Losses and returns of GPUs as events, derived from the published states, with the observed reason.

use std::collections::BTreeMap;
use std::time::Duration;

use model::catalog::{Gpu, Severity};
use model::clock::Mono;
use model::health::{Condition, NOT_LISTED};
use model::snapshot::{Event, EventKind, GpuState};
use model::text::duration;

/// Lost GPUs by UUID, or by index (`#3`) if the UUID was never read.
#[derive(Default)]
pub(crate) struct Losses(BTreeMap<String, Loss>);

struct Loss {
    since: Mono,
    /// Conditions reported since the loss. Each is reported once until the GPU returns.
    reported: Vec<Condition>,
    /// Time since which the GPU answers again.
    up: Option<Mono>,
}

impl Losses {
    /// Returns the events of this publication's states. `unlisted`: GPUs that the driver no longer lists; `steady`:
    /// time for which a GPU must answer before its return is reported, because a GPU that fails sooner had not
    /// recovered. Without a driver, and while it is starting, there are neither losses nor returns.
    pub fn follow(
        &mut self,
        states: &[(Gpu, GpuState)],
        unlisted: &[Gpu],
        steady: Duration,
        now: Mono,
        unix_seconds: f64,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (gpu, state) in states.iter().filter(|(gpu, _)| !unlisted.contains(gpu)) {
            self.adopt(gpu);
            let condition = match state {
                GpuState::Stuck { .. } => Condition::Stuck,
                GpuState::Failing { error, .. } if error.is_lost() => Condition::Lost,
                GpuState::Failing { .. } => Condition::Failing,
                GpuState::Up => {
                    events.extend(self.returned(gpu, steady, now, unix_seconds));
                    continue;
                }
                GpuState::Unread | GpuState::Waiting | GpuState::NoDriver | GpuState::Paused => {
                    if let Some(loss) = self.0.get_mut(&key(gpu)) {
                        loss.up = None;
                    }
                    continue;
                }
            };
            events.extend(self.gone(gpu, condition, state.text(), now, unix_seconds));
        }
        for gpu in unlisted {
            events.extend(self.gone(gpu, Condition::Missing, NOT_LISTED.to_owned(), now, unix_seconds));
        }
        events
    }

    /// Assigns a loss that was recorded by index to the UUID.
    fn adopt(&mut self, gpu: &Gpu) {
        if let Some(loss) = self.0.remove(&unread(gpu)) {
            self.0.entry(key(gpu)).or_insert(loss);
        }
    }

    fn gone(&mut self, gpu: &Gpu, condition: Condition, text: String, now: Mono, unix: f64) -> Option<Event> {
        let new = || Loss { since: now, reported: Vec::new(), up: None };
        let loss = self.0.entry(key(gpu)).or_insert_with(new);
        loss.up = None;
        // A call that first hangs and then fails has two reasons.
        if loss.reported.contains(&condition) {
            return None;
        }
        loss.reported.push(condition);
        let meaning = match condition {
            Condition::Stuck => "A driver call on the GPU does not return.",
            Condition::Missing => "The GPU is missing.",
            Condition::Failing => "The GPU answers with errors only.",
            _ => "The GPU is lost.",
        };
        let event = Event::new(EventKind::GpuLost, unix, Severity::Page, condition.action());
        Some(Event { gpu: Some(gpu.clone()), meaning, text, nvml: true, ..event })
    }

    fn returned(&mut self, gpu: &Gpu, steady: Duration, now: Mono, unix: f64) -> Option<Event> {
        let loss = self.0.get_mut(&key(gpu))?;
        let up = *loss.up.get_or_insert(now);
        let answered = now.since(up);
        if answered < steady {
            return None;
        }
        let text =
            format!("lost for {}, and back for {}", duration(up.since(loss.since)), duration(answered));
        self.0.remove(&key(gpu));
        let event = Event::new(EventKind::GpuReturned, unix, Severity::Info, Condition::Waiting.action());
        Some(Event { gpu: Some(gpu.clone()), meaning: "The GPU answers again.", text, nvml: true, ..event })
    }
}

fn key(gpu: &Gpu) -> String {
    if gpu.uuid.is_empty() { unread(gpu) } else { gpu.uuid.to_string() }
}

fn unread(gpu: &Gpu) -> String {
    format!("#{}", gpu.gpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::DriverError;

    #[test]
    fn each_reason_is_reported_once_until_the_gpu_is_back_for_good() {
        let mut losses = Losses::default();
        let gpu = Gpu { gpu: 3, uuid: "GPU-3".into() };
        let mut look = |gpu: &Gpu, state: GpuState, absent: Option<&Gpu>, second: u64| -> Vec<String> {
            let states = [(gpu.clone(), state)];
            let now = Mono(second * 1_000_000_000);
            let (absent, steady) = (absent.map_or(&[][..], std::slice::from_ref), Duration::from_secs(10));
            let events = losses.follow(&states, absent, steady, now, second as f64);
            events.iter().map(|event| format!("{:?}: {}", event.kind, event.text)).collect()
        };
        let stuck = |age| GpuState::Stuck { call: "nvmlX".into(), age: Duration::from_secs(age) };
        let lost = DriverError::GpuIsLost;
        let failing = |text: &str| GpuState::Failing { error: lost, text: text.into() };
        assert!(look(&gpu, GpuState::Up, None, 1).is_empty());
        assert_eq!(look(&gpu, stuck(3), None, 4), ["GpuLost: nvmlX has not returned for 3.0 s"]);
        assert!(look(&gpu, stuck(4), None, 5).is_empty());
        assert_eq!(look(&gpu, failing("lost"), None, 6), ["GpuLost: it answers with errors only: lost"]);
        assert!(look(&gpu, failing("no handle: lost"), None, 7).is_empty());
        assert!(look(&gpu, GpuState::NoDriver, None, 8).is_empty());
        // It answers for a moment, hangs again and fails again.
        for second in [9, 15, 21] {
            assert!(look(&gpu, GpuState::Up, None, second).is_empty());
            assert!(look(&gpu, stuck(3), None, second + 2).is_empty());
            assert!(look(&gpu, failing("lost"), None, second + 4).is_empty());
        }
        assert!(look(&gpu, GpuState::Up, None, 64).is_empty());
        assert!(look(&gpu, GpuState::Unread, None, 70).is_empty());
        assert!(look(&gpu, GpuState::Up, None, 74).is_empty());
        assert!(look(&gpu, GpuState::Up, None, 83).is_empty());
        assert_eq!(look(&gpu, GpuState::Up, None, 84), ["GpuReturned: lost for 70 s, and back for 10 s"]);
        assert!(look(&gpu, GpuState::Up, None, 85).is_empty());
        assert_eq!(
            look(&gpu, stuck(3), None, 86),
            ["GpuLost: nvmlX has not returned for 3.0 s"],
            "a new loss"
        );
        assert!(look(&gpu, GpuState::Up, None, 90).is_empty());
        assert_eq!(look(&gpu, GpuState::Up, None, 100).len(), 1);

        let unread = Gpu { gpu: 3, uuid: "".into() };
        assert_eq!(look(&unread, failing("lost"), None, 110).len(), 1, "before its UUID was read");
        assert!(look(&gpu, failing("lost"), None, 111).is_empty(), "the same loss");
        assert!(look(&gpu, GpuState::Up, None, 112).is_empty());
        assert_eq!(look(&gpu, GpuState::Up, None, 122), ["GpuReturned: lost for 2.0 s, and back for 10 s"]);
        let other = Gpu { gpu: 3, uuid: "GPU-9".into() };
        assert_eq!(look(&gpu, GpuState::Up, Some(&other), 130).len(), 1);
        assert!(look(&gpu, GpuState::Up, Some(&other), 131).is_empty());
    }
}

//! Losses of GPUs and their returns as events, by the states that are published: each with the reason that was seen.

use std::collections::BTreeMap;

use super::intake::NOTHING_READ;
use model::catalog::{Gpu, Severity};
use model::clock::Mono;
use model::health::Condition;
use model::snapshot::{Event, EventKind, GpuState};
use model::text::duration;

/// GPUs that do not answer, and why.
#[derive(Debug, Default)]
pub struct Losses {
    /// By UUID; by index, as `#3`, while the UUID was never read.
    lost: BTreeMap<String, Loss>,
}

#[derive(Debug)]
struct Loss {
    condition: Condition,
    since: Mono,
}

impl Losses {
    /// The events that the states of this publication are. `absent`: GPUs that the driver does not list any more.
    /// Without a driver, and while it is waited for, nothing is lost and nothing returns.
    pub fn follow(
        &mut self,
        states: &[(Gpu, GpuState)],
        absent: impl Iterator<Item = Gpu>,
        now: Mono,
        unix_seconds: f64,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (gpu, state) in states {
            let condition = match state {
                GpuState::Stuck { .. } => Condition::Stuck,
                // No reason was seen: it may be we who were held up.
                GpuState::Failing { text } if text == NOTHING_READ => continue,
                GpuState::Failing { .. } => Condition::Lost,
                GpuState::Up => {
                    events.extend(self.returned(gpu, now, unix_seconds));
                    continue;
                }
                GpuState::Waiting | GpuState::NoDriver | GpuState::Paused => continue,
            };
            events.extend(self.gone(gpu, condition, state.text(), now, unix_seconds));
        }
        for gpu in absent {
            let text = "the driver does not list it any more".to_owned();
            events.extend(self.gone(&gpu, Condition::Missing, text, now, unix_seconds));
        }
        events
    }

    fn gone(&mut self, gpu: &Gpu, condition: Condition, text: String, now: Mono, unix: f64) -> Option<Event> {
        let loss = self.lost.entry(key(gpu)).or_insert(Loss { condition: Condition::Waiting, since: now });
        // A call that hung and then fails is another reason.
        if std::mem::replace(&mut loss.condition, condition) == condition {
            return None;
        }
        let meaning = match condition {
            Condition::Stuck => "A driver call on the GPU does not return.",
            Condition::Missing => "The GPU is missing.",
            _ => "The GPU is lost.",
        };
        let event = Event::new(EventKind::GpuLost, unix, Severity::Page, condition.action());
        Some(Event { gpu: Some(gpu.clone()), meaning, text, nvml: true, ..event })
    }

    fn returned(&mut self, gpu: &Gpu, now: Mono, unix: f64) -> Option<Event> {
        let by_index = self.lost.remove(&unread(gpu));
        let loss = self.lost.remove(&key(gpu)).or(by_index)?;
        let event = Event::new(EventKind::GpuReturned, unix, Severity::Info, Condition::Waiting.action());
        let text = format!("lost for {}", duration(now.since(loss.since)));
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
    use std::time::Duration;

    #[test]
    fn a_loss_is_one_event_each_reason_and_the_return_one() {
        let mut losses = Losses::default();
        let gpu = Gpu { gpu: 3, uuid: "GPU-3".into() };
        let mut look = |gpu: &Gpu, state: GpuState, absent: Option<&Gpu>, second: u64| -> Vec<String> {
            let states = [(gpu.clone(), state)];
            let now = Mono(second * 1_000_000_000);
            let events = losses.follow(&states, absent.cloned().into_iter(), now, second as f64);
            events.iter().map(|event| format!("{:?}: {}", event.kind, event.text)).collect()
        };
        let stuck = |age| GpuState::Stuck { call: "nvmlX".into(), age: Duration::from_secs(age) };
        let failing = |text: &str| GpuState::Failing { text: text.into() };
        assert!(look(&gpu, GpuState::Up, None, 1).is_empty());
        assert_eq!(look(&gpu, stuck(3), None, 4), ["GpuLost: nvmlX has not returned for 3.0 s"]);
        assert!(look(&gpu, stuck(4), None, 5).is_empty());
        assert_eq!(look(&gpu, failing("lost"), None, 6), ["GpuLost: it answers with errors only: lost"]);
        assert!(look(&gpu, failing("no handle: lost"), None, 7).is_empty());
        assert!(look(&gpu, GpuState::NoDriver, None, 8).is_empty());
        assert_eq!(look(&gpu, GpuState::Up, None, 64), ["GpuReturned: lost for 60 s"]);
        assert!(look(&gpu, GpuState::Up, None, 65).is_empty());

        let unread = Gpu { gpu: 3, uuid: "".into() };
        assert_eq!(look(&unread, failing("lost"), None, 70).len(), 1, "before its UUID was read");
        assert_eq!(look(&gpu, GpuState::Up, None, 72), ["GpuReturned: lost for 2.0 s"]);
        let other = Gpu { gpu: 3, uuid: "GPU-9".into() };
        assert_eq!(look(&gpu, GpuState::Up, Some(&other), 80).len(), 1);
        assert!(look(&gpu, GpuState::Up, Some(&other), 81).is_empty());
    }
}

//! Events that are kept on disk across restarts of the daemon.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalog::Gpu;
use crate::persisted::known;
use crate::snapshot::Event;

/// Maximum age of kept events, in seconds.
const MAX_AGE: f64 = 7.0 * 86_400.0;
/// Maximum size of all events as JSON, in bytes.
pub const MAX_BYTES: usize = 2 << 20;
/// Maximum size of an event as JSON without its text, in bytes. The longest texts of the tables and the longest names
/// need less.
const EVENT_BYTES: usize = 2000;
/// Maximum number of bytes in JSON for one byte of text.
const ESCAPED: usize = 6;

/// Events of the last days.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventHistory {
    /// Events, oldest first. Reading skips events that only a later version supports.
    #[serde(deserialize_with = "known")]
    events: Vec<StoredEvent>,
}

/// Event with the fields that its JSON in the API has in another form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredEvent {
    gpu: Option<Gpu>,
    nvml: bool,
    kmsg: bool,
    event: Event,
}

impl EventHistory {
    /// Returns the newest events of a list that are not too old and fit into the maximum size. The list can have any
    /// order, because old lines of the kernel log arrive after the events of earlier daemons.
    pub fn newest(list: &[Arc<Event>], unix_seconds: f64) -> EventHistory {
        let young = |event: &&Arc<Event>| unix_seconds - event.last_unix_seconds < MAX_AGE;
        let mut young: Vec<&Arc<Event>> = list.iter().filter(young).collect();
        young.sort_by(|one, other| one.unix_seconds.total_cmp(&other.unix_seconds));
        let mut room = MAX_BYTES - EVENT_BYTES;
        let fits = |event: &&Arc<Event>| {
            let taken = EVENT_BYTES + event.text.len() * ESCAPED;
            room = room.saturating_sub(taken);
            room > 0
        };
        let mut events: Vec<StoredEvent> =
            young.into_iter().rev().take_while(fits).map(StoredEvent::new).collect();
        events.reverse();
        EventHistory { events }
    }

    /// Returns the events, oldest first.
    pub fn into_events(self) -> impl Iterator<Item = Event> {
        self.events.into_iter().map(|StoredEvent { gpu, nvml, kmsg, event }| Event {
            gpu,
            nvml,
            kmsg,
            ..event
        })
    }
}

impl StoredEvent {
    fn new(event: &Arc<Event>) -> StoredEvent {
        let Event { gpu, nvml, kmsg, .. } = &**event;
        StoredEvent { gpu: gpu.clone(), nvml: *nvml, kmsg: *kmsg, event: Event::clone(event) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{EventKind, FaultAction, Severity};

    fn event(id: u64, unix_seconds: f64) -> Arc<Event> {
        let event = Event::new(EventKind::Xid, unix_seconds, Severity::Page, FaultAction::Ignore);
        Arc::new(Event {
            id,
            revision: id + 5,
            gpu: Some(Gpu { gpu: 3, uuid: "GPU-3".into() }),
            code: Some(79),
            mnemonic: "NAME",
            check: Some("hbm_read"),
            meaning: "A meaning.",
            intr_info: Some(0xab),
            owner: Some("job-1".into()),
            text: "a \"line\"\u{1}".repeat(100),
            nvml: true,
            ..event
        })
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was() {
        let kept = EventHistory::newest(&[event(7, 100.0), event(8, 200.0)], 300.0);
        let json = serde_json::to_string(&kept).unwrap();
        let back: EventHistory = serde_json::from_str(&json).unwrap();
        let back: Vec<Event> = back.into_events().collect();
        assert_eq!(back, [Event::clone(&event(7, 100.0)), Event::clone(&event(8, 200.0))]);
    }

    #[test]
    fn what_a_later_version_knows_is_passed_over() {
        let mut json =
            serde_json::to_value(EventHistory::newest(&[event(7, 100.0), event(8, 200.0)], 300.0)).unwrap();
        json["events"][0]["event"]["kind"] = "of a later version".into();
        json["events"][1]["event"]["more"] = 1.into();
        let back: EventHistory = serde_json::from_value(json).unwrap();
        assert_eq!(back.into_events().map(|event| event.id).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn the_oldest_give_way_to_age_and_size() {
        let list: Vec<_> = (0..5000).map(|n| event(n, n as f64)).collect();
        let kept = EventHistory::newest(&list, 5000.0);
        assert_eq!(kept.events.last().unwrap().event.id, 4999);
        assert!(
            (100..5000).contains(&kept.events.len())
                && serde_json::to_string(&kept).unwrap().len() < MAX_BYTES
        );
        assert_eq!(EventHistory::newest(&list, 4990.0 + MAX_AGE).events.len(), 9);
    }

    #[test]
    fn an_old_line_behind_newer_events_drops_none_of_them() {
        let (day, now) = (86_400.0, 10.0 * 86_400.0);
        let list = [event(1, now - day), event(2, now - 8.0 * day), event(3, now - 2.0 * day)];
        let kept = EventHistory::newest(&list, now);
        assert_eq!(kept.into_events().map(|event| event.id).collect::<Vec<_>>(), [3, 1]);
    }
}

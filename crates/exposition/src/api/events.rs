//! The list of events as JSON, served at `/api/v1/events`, whole or as a stream.
//!
//! ```text
//! taken_unix_seconds  when the list was made
//! newest_id           id of the newest event there is; 0 if there is none
//! revision            the newest revision of any event
//! events[]            oldest first
//!   id                rises with each event
//!   revision          rises with each new or changed event: one that came again gets a new one
//!   time, unix_seconds            when it happened first
//!   last_time, last_unix_seconds  when it happened last
//!   repeats           how many more times it happened in one burst, after the first
//!   old               true: from before the exporter watched, in no counter
//!   kind              xid, sxid, driver_event, recovery_action, driver_load, driver_unload, gpu_reset,
//!                     gpu_lost, gpu_returned, canary, window
//!   gpu, uuid         the GPU; null for what concerns none, or one that the driver does not list
//!   pci, nvswitch     PCI address; number of the NVSwitch
//!   code, mnemonic    Xid or SXid code and the vendor's name of it; number and name of a driver event; CUDA
//!                     error and verdict of the canary
//!   check             check of the canary
//!   meaning, severity, action     what it means; page, ticket or info; what to do first
//!   gpu_instance, compute_instance, pid, process
//!   owner             whose work ran there; null while not known
//!   text              line of the kernel log, the canary's text, or why the GPU is lost; empty if only the driver
//!                     reported the fault
//!   sources[]         nvml, kmsg, canary
//! ```

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use model::catalog::schema::KnownLabel;
use model::snapshot::{Event, EventKind, Snapshot};

/// Which events are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Only events with a greater id.
    pub since: Option<u64>,
    /// Only events that are new or changed after this revision.
    pub since_revision: Option<u64>,
    /// At most so many: the first ones after `since` or `since_revision`, without them the newest.
    pub limit: Option<usize>,
}

/// The list as a document.
pub fn document(snapshot: &Snapshot, query: EventQuery) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Document<'a> {
        taken_unix_seconds: f64,
        newest_id: u64,
        revision: u64,
        events: Vec<EventEntry<'a>>,
    }
    let fits = |event: &&Event| {
        query.since.is_none_or(|id| event.id > id)
            && query.since_revision.is_none_or(|revision| event.revision > revision)
    };
    let mut events: Vec<&Event> = snapshot.events.iter().map(|event| &**event).filter(fits).collect();
    let most = query.limit.unwrap_or(usize::MAX);
    if query.since.is_some() || query.since_revision.is_some() {
        events.truncate(most);
    } else {
        events.drain(..events.len().saturating_sub(most));
    }
    super::line(&Document {
        taken_unix_seconds: snapshot.unix_seconds,
        newest_id: snapshot.events.last().map_or(0, |event| event.id),
        revision: snapshot.events_revision(),
        events: events.into_iter().map(entry).collect(),
    })
}

/// The events that are new or changed after this revision as server-sent events, in the order in which they
/// changed; the id of each is its revision.
pub fn stream(snapshot: &Snapshot, after: u64) -> Result<Vec<u8>, serde_json::Error> {
    let mut events: Vec<&Event> =
        snapshot.events.iter().map(|event| &**event).filter(|event| event.revision > after).collect();
    events.sort_unstable_by_key(|event| event.revision);
    let mut bytes = Vec::new();
    for event in events {
        let head = format!("id: {}\nevent: {}\ndata: ", event.revision, event.kind.known());
        bytes.extend_from_slice(head.as_bytes());
        // JSON has no line ends inside, which would end the event.
        serde_json::to_writer(&mut bytes, &entry(event))?;
        bytes.extend_from_slice(b"\n\n");
    }
    Ok(bytes)
}

#[derive(Serialize)]
struct EventEntry<'a> {
    time: String,
    last_time: String,
    gpu: Option<u32>,
    uuid: Option<&'a str>,
    #[serde(flatten)]
    event: &'a Event,
    sources: Vec<&'static str>,
}

fn entry(event: &Event) -> EventEntry<'_> {
    let canary = event.kind == EventKind::Canary;
    let sources = [(event.nvml, "nvml"), (event.kmsg, "kmsg"), (canary, "canary")];
    EventEntry {
        time: time(event.unix_seconds),
        last_time: time(event.last_unix_seconds),
        gpu: event.gpu.as_ref().map(|gpu| gpu.gpu),
        uuid: event.gpu.as_ref().map(|gpu| &*gpu.uuid),
        event,
        sources: sources.iter().filter(|(reported, _)| *reported).map(|(_, name)| *name).collect(),
    }
}

/// A time as RFC 3339 in UTC, to the millisecond.
fn time(unix_seconds: f64) -> String {
    // Formatting fails for years of more than four digits, which no clock here has.
    let since = Duration::try_from_secs_f64(unix_seconds.clamp(0.0, 253_402_300_799.0)).unwrap_or_default();
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use model::catalog::{FaultAction, Gpu, Severity};

    fn snapshot() -> Snapshot {
        let event = |id, revision| {
            Arc::new(Event {
                id,
                revision,
                gpu: Some(Gpu { gpu: 3, uuid: "GPU-3".into() }),
                code: Some(79),
                text: "a \"b\"\n".into(),
                kmsg: true,
                ..Event::new(EventKind::Xid, 1_795_000_000.25, Severity::Page, FaultAction::RebootNode)
            })
        };
        Snapshot { events: Arc::from([event(4, 9), event(5, 7), event(6, 8)]), ..Snapshot::default() }
    }

    fn ids(query: EventQuery) -> Vec<u64> {
        let value: serde_json::Value =
            serde_json::from_slice(&document(&snapshot(), query).unwrap()).unwrap();
        value["events"].as_array().unwrap().iter().map(|event| event["id"].as_u64().unwrap()).collect()
    }

    #[test]
    fn a_part_of_the_list_can_be_asked_for() {
        let all = EventQuery::default();
        assert_eq!(ids(all), [4, 5, 6]);
        assert_eq!(ids(EventQuery { limit: Some(2), ..all }), [5, 6]);
        assert_eq!(ids(EventQuery { limit: Some(1), since: Some(4), ..all }), [5]);
        assert_eq!(ids(EventQuery { since: Some(6), ..all }), [0u64; 0]);
        assert_eq!(ids(EventQuery { since_revision: Some(7), ..all }), [4, 6]);
    }

    #[test]
    fn an_event_says_what_is_known_of_it() {
        let value: serde_json::Value =
            serde_json::from_slice(&document(&snapshot(), EventQuery::default()).unwrap()).unwrap();
        assert_eq!((value["newest_id"].as_u64(), value["revision"].as_u64()), (Some(6), Some(9)));
        let event = &value["events"][0];
        assert_eq!(event["time"], "2026-11-18T11:06:40.250Z");
        assert_eq!((&event["severity"], &event["action"]), (&"page".into(), &"reboot_node".into()));
        assert_eq!(
            (&event["sources"], &event["owner"]),
            (&serde_json::json!(["kmsg"]), &serde_json::Value::Null)
        );
    }

    #[test]
    fn a_stream_goes_by_revision() {
        let text = String::from_utf8(stream(&snapshot(), 7).unwrap()).unwrap();
        let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
        assert_eq!(ids, ["8", "9"]);
        assert_eq!(text.lines().count(), 8, "{text}");
        assert!(text.ends_with("\n\n"));
    }
}

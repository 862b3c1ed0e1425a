//! The list of events as JSON, served at `/api/v1/events`, whole or as a stream.
//!
//! ```text
//! taken_unix_seconds  time at which the list last changed
//! newest_id           id of the newest event; 0 if there is none
//! revision            highest revision of any event
//! events[]            oldest first; with `since_revision` in the order of their revisions
//!   id                increases with every event
//!   revision          increases with every new or changed event; a repeated event gets a new revision
//!   time, unix_seconds            time of the first occurrence
//!   last_time, last_unix_seconds  time of the last occurrence
//!   repeats           number of further occurrences in the same burst
//!   old               true: happened before the exporter started to watch, and is in no counter
//!   kind              xid, sxid, driver_event, recovery_action, driver_load, driver_unload, gpu_reset,
//!                     gpu_lost, gpu_returned, canary, window, devices_declared (the number of GPUs that the node
//!                     should have was lowered), switches_cleared, fallen_off_bus and init_failed (without an Xid)
//!   gpu, uuid         the GPU; null if the event concerns no GPU, or a GPU that the driver does not list
//!   pci, nvswitch     PCI address; number of the NVSwitch
//!   code, mnemonic    Xid or SXid code and its name in the vendor's table; number and name of a driver event; CUDA
//!                     error and verdict of the canary
//!   check             check of the canary
//!   meaning, severity, action     explanation; page, ticket or info; first action
//!   app_can_cause     possibility that a program caused the Xid: yes, possible, rare, no
//!   unit              unit of the GPU, if it is in the kernel log (Xid 13, 31, 144 to 150)
//!   same_unit         Xid 13 and 31, if a crash affected a single unit with a GPC: true if only that unit had the
//!                     same fault in an earlier process or crash within seven days, false if only another unit had,
//!                     null if no unit had
//!   link, fatal, intr_info, error_status, investigate     NVLink 5 (Xid 144 to 150): link, true if the log line
//!                     contains "fatal", its first two words, parts to check according to NVIDIA's table. `fatal` is
//!                     also set for an SXid
//!   gpu_instance, compute_instance, pid, process
//!   owner             owner of the work that ran there; null while unknown
//!   text              line of the kernel log, text of the canary, or reason for which the GPU is lost; empty if only
//!                     the driver reported the fault
//!   sources[]         nvml, kmsg, canary
//! ```
//!
//! A document has at most [`MAX_BYTES`] of events. More events exist if `newest_id` is greater than the id of the last
//! event or, with `since_revision`, if `revision` is greater than the revision of the last event. The next request uses
//! that id or revision.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;

use model::catalog::schema::KnownLabel;
use model::snapshot::{Event, EventKind, Snapshot};

/// Selection of events in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventQuery {
    /// Only events with a greater id.
    pub since: Option<u64>,
    /// Only events that are new or changed after this revision.
    pub since_revision: Option<u64>,
    /// Maximum number of events: the first after `since` or `since_revision`, otherwise the newest.
    pub limit: Option<usize>,
}

/// Maximum number of events in a document if the request has no `limit`.
const DEFAULT_LIMIT: usize = 500;
/// Maximum size of the events in a document, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Size of the events in a piece of a stream, in bytes, after which the piece ends.
const PIECE_BYTES: usize = 16 << 10;

/// Appends the document of the newest events.
pub fn newest(snapshot: &Snapshot, out: &mut String) {
    let first = snapshot.events.len().saturating_sub(DEFAULT_LIMIT);
    let list = EncodedEvents::encode(snapshot, &snapshot.events[first..]);
    for part in list.document(&list.select(EventQuery::default())) {
        out.push_str(&String::from_utf8_lossy(&part));
    }
}

/// The events of a snapshot as JSON. Documents and streams share the bytes.
#[derive(Debug)]
pub(crate) struct EncodedEvents {
    pub revision: u64,
    taken_unix_seconds: f64,
    newest_id: u64,
    /// The events, separated by commas.
    json: Bytes,
    entries: Vec<EncodedEvent>,
    /// Positions in `entries`, in the order in which the events changed.
    changed: Vec<usize>,
    /// Hash of all data from which documents are built.
    hash: u64,
}

#[derive(Debug)]
struct EncodedEvent {
    id: u64,
    revision: u64,
    kind: &'static str,
    json: Range<usize>,
}

impl EncodedEvents {
    /// Encodes all events of a snapshot.
    pub fn from_snapshot(snapshot: &Snapshot) -> EncodedEvents {
        EncodedEvents::encode(snapshot, &snapshot.events)
    }

    fn encode(snapshot: &Snapshot, events: &[Arc<Event>]) -> EncodedEvents {
        let (mut json, mut entries) = (Vec::new(), Vec::with_capacity(events.len()));
        for event in events {
            if !json.is_empty() {
                json.push(b',');
            }
            let start = json.len();
            // This cannot fail, because writing to a vector always succeeds and every key is a string.
            if let Err(error) = serde_json::to_writer(&mut json, &entry(event)) {
                tracing::error!(
                    id = event.id,
                    "failed to encode an event: {error}; clients receive an incomplete event"
                );
            }
            let kind = event.kind.known();
            entries.push(EncodedEvent {
                id: event.id,
                revision: event.revision,
                kind,
                json: start..json.len(),
            });
        }
        let mut changed: Vec<usize> = (0..entries.len()).collect();
        changed.sort_unstable_by_key(|at| entries[*at].revision);
        let revision = snapshot.events_revision();
        let taken_unix_seconds = snapshot.events_unix_seconds;
        let newest_id = snapshot.events.last().map_or(0, |event| event.id);
        let mut hasher = DefaultHasher::new();
        (revision, taken_unix_seconds.to_bits(), newest_id, &json).hash(&mut hasher);
        let (json, hash) = (json.into(), hasher.finish());
        EncodedEvents { revision, taken_unix_seconds, newest_id, json, entries, changed, hash }
    }

    /// Returns the positions of the selected events, oldest first. With `since_revision`, they are in the order in which
    /// they changed, so that the next request can continue after the revision of the last one.
    pub fn select(&self, query: EventQuery) -> Vec<usize> {
        let most = query.limit.unwrap_or(DEFAULT_LIMIT);
        let mut bytes = 0;
        let fits = |at: &usize| {
            bytes += self.entries[*at].json.len();
            bytes <= MAX_BYTES
        };
        let is_later = |at: &usize| query.since.is_none_or(|id| self.entries[*at].id > id);
        let all = 0..self.entries.len();
        if let Some(revision) = query.since_revision {
            let changed = self.changed_after(revision).iter().copied();
            changed.filter(is_later).take(most).take_while(fits).collect()
        } else if query.since.is_some() {
            all.filter(is_later).take(most).take_while(fits).collect()
        } else {
            let mut newest: Vec<usize> = all.rev().take(most).take_while(fits).collect();
            newest.reverse();
            newest
        }
    }

    /// Returns the positions of the events that are new or changed after this revision, in the order of their changes.
    fn changed_after(&self, revision: u64) -> &[usize] {
        let first = self.changed.partition_point(|at| self.entries[*at].revision <= revision);
        &self.changed[first..]
    }

    /// Returns the `ETag` header of the document with these events.
    pub fn etag(&self, selected: &[usize]) -> String {
        let mut hasher = DefaultHasher::new();
        (self.hash, selected).hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }

    /// Returns the document with these events, in parts.
    pub fn document(&self, selected: &[usize]) -> Vec<Bytes> {
        let (taken, newest, revision) =
            (serde_json::json!(self.taken_unix_seconds), self.newest_id, self.revision);
        let head = format!(
            "{{\"taken_unix_seconds\":{taken},\"newest_id\":{newest},\"revision\":{revision},\"events\":["
        );
        let mut parts = vec![Bytes::from(head)];
        // Adjacent events and the commas between them form one part.
        for run in selected.chunk_by(|one, next| one + 1 == *next) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            if parts.len() > 1 {
                parts.push(Bytes::from_static(b","));
            }
            parts.push(self.json.slice(self.entries[*first].json.start..self.entries[*last].json.end));
        }
        parts.push(Bytes::from_static(b"]}\n"));
        parts
    }

    /// Returns server-sent events for the first events that are new or changed after this revision, in the order in which
    /// they changed, and the revision of the last one. The id of a server-sent event is the revision. The bytes are empty
    /// if there are none.
    pub fn piece(&self, after: u64) -> (Vec<u8>, u64) {
        let (mut bytes, mut last) = (Vec::new(), after);
        for at in self.changed_after(after) {
            let entry = &self.entries[*at];
            // Writing to a vector cannot fail. The JSON contains no line breaks, which would end the event.
            let _ = write!(bytes, "id: {}\nevent: {}\ndata: ", entry.revision, entry.kind);
            bytes.extend_from_slice(&self.json[entry.json.clone()]);
            bytes.extend_from_slice(b"\n\n");
            last = entry.revision;
            if bytes.len() > PIECE_BYTES {
                break;
            }
        }
        (bytes, last)
    }
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

/// Formats a time as RFC 3339 in UTC, to the millisecond.
fn time(unix_seconds: f64) -> String {
    // Formatting fails for years with more than four digits, so that the time is clamped to the year 9999.
    let since = Duration::try_from_secs_f64(unix_seconds.clamp(0.0, 253_402_300_799.0)).unwrap_or_default();
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
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

    fn document(query: EventQuery) -> serde_json::Value {
        let list = EncodedEvents::from_snapshot(&snapshot());
        serde_json::from_slice(&list.document(&list.select(query)).concat()).unwrap()
    }

    fn ids(query: EventQuery) -> Vec<u64> {
        let value = document(query);
        value["events"].as_array().unwrap().iter().map(|event| event["id"].as_u64().unwrap()).collect()
    }

    #[test]
    fn a_part_of_the_list_can_be_asked_for() {
        let all = EventQuery::default();
        assert_eq!(ids(all), [4, 5, 6]);
        assert_eq!(ids(EventQuery { limit: Some(2), ..all }), [5, 6]);
        assert_eq!(ids(EventQuery { limit: Some(0), ..all }), [0u64; 0]);
        assert_eq!(ids(EventQuery { limit: Some(1), since: Some(4), ..all }), [5]);
        assert_eq!(ids(EventQuery { since: Some(6), ..all }), [0u64; 0]);
    }

    #[test]
    fn pages_by_revision_miss_no_event() {
        let list = EncodedEvents::from_snapshot(&snapshot());
        let page = |limit, revision| {
            let query = EventQuery { limit: Some(limit), since_revision: Some(revision), since: None };
            let of = |at: usize| (list.entries[at].id, list.entries[at].revision);
            list.select(query).into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(page(9, 7), [(6, 8), (4, 9)], "in the order in which they changed");
        let (mut after, mut got) = (0, Vec::new());
        while let Some((id, revision)) = page(1, after).first().copied() {
            after = revision;
            got.push(id);
        }
        assert_eq!(got, [5, 6, 4]);
        let both = EventQuery { since: Some(4), since_revision: Some(7), limit: None };
        assert_eq!(ids(both), [6]);
        let whole = ids(EventQuery { since_revision: Some(0), ..EventQuery::default() });
        assert_eq!(whole, [5, 6, 4], "in a document too");
    }

    #[test]
    fn a_document_has_a_most_size_and_the_next_goes_on() {
        let text = "x".repeat(MAX_BYTES / 4);
        let event = |id| {
            let event = Event::new(EventKind::Xid, 1.0, Severity::Page, FaultAction::RebootNode);
            Arc::new(Event { id, revision: id, text: text.clone(), ..event })
        };
        let snapshot = Snapshot { events: (1..=6).map(event).collect(), ..Snapshot::default() };
        let list = EncodedEvents::from_snapshot(&snapshot);
        let all = EventQuery { limit: Some(1000), ..EventQuery::default() };
        assert_eq!(list.select(all), [3, 4, 5], "the newest");
        assert_eq!(list.select(EventQuery { since: Some(0), ..all }), [0, 1, 2], "the first");
        assert_eq!(list.select(EventQuery { since: Some(3), ..all }), [3, 4, 5]);
        let (piece, last) = list.piece(2);
        assert!(last == 3 && piece.len() < MAX_BYTES / 2, "{last}");
    }

    #[test]
    fn an_event_says_what_is_known_of_it() {
        let value = document(EventQuery::default());
        assert_eq!((value["newest_id"].as_u64(), value["revision"].as_u64()), (Some(6), Some(9)));
        let event = &value["events"][0];
        assert_eq!(event["time"], "2026-11-18T11:06:40.250Z");
        assert_eq!((&event["severity"], &event["action"]), (&"page".into(), &"reboot_node".into()));
        assert_eq!(
            (&event["sources"], &event["owner"]),
            (&serde_json::json!(["kmsg"]), &serde_json::Value::Null)
        );
        let mut text = String::new();
        newest(&snapshot(), &mut text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn a_stream_goes_by_revision() {
        let list = EncodedEvents::from_snapshot(&snapshot());
        let (bytes, last) = list.piece(7);
        let text = String::from_utf8(bytes).unwrap();
        let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
        assert_eq!((ids, last), (vec!["8", "9"], 9));
        assert_eq!(text.lines().count(), 8, "{text}");
        assert!(text.ends_with("\n\n"));
        assert_eq!(list.piece(9), (Vec::new(), 9));
    }
}

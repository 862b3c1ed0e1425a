//! List of the newest events in order. Bursts are folded into one entry, and each entry is logged at most once a
//! second.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::catalog::Severity;
use model::catalog::schema::KnownLabel;
use model::clock::Mono;
use model::snapshot::{Event, EventKind};

/// Interval within which an event repeats the last one of its kind.
const BURST_SECONDS: f64 = 180.0;
/// Minimum interval between two log lines of an entry.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// Minimum interval between two saves, so that a storm of faults does not become a storm of writes.
const KEEP_EVERY: Duration = Duration::from_secs(10);
/// Timestamp tolerance, in seconds, when matching an event restored from disk.
const SAME_TIME: f64 = 2.0;
/// Maximum number of lines written to the journal at once.
const MAX_LINES: usize = 50;

/// Identity of an event: kind, subject, code, and whether it is older than the daemon.
type Same = (EventKind, String, Option<u64>, bool);
/// Process and link of an event. Only the kernel log names them, so they may be added later.
type Which = (Option<u32>, Option<u32>);
/// Key of an entry whose process and link do not matter.
const ANY: Which = (None, None);

/// Entry of the list, and what was logged of it.
struct ListedEvent {
    event: Arc<Event>,
    logged_at: Option<Mono>,
    /// Occurrences that are not logged yet.
    unlogged: u64,
    /// Time at which they are logged.
    due: Mono,
}

#[derive(Default)]
pub(crate) struct EventList {
    keep: usize,
    entries: VecDeque<ListedEvent>,
    revision: u64,
    next: u64,
    /// Id of the newest event of an earlier daemon.
    restored: u64,
    /// Newest entry of an event, by process and link, and with [`ANY`] regardless of both.
    newest: HashMap<(Same, Which), u64>,
    /// Entries to be logged.
    pending: Vec<u64>,
    /// Occurrences that left the list before they were logged.
    unlogged: u64,
    list: Arc<[Arc<Event>]>,
    listed: u64,
    /// Revision that was last saved, and the time.
    kept: (u64, Option<Mono>),
}

impl ListedEvent {
    fn new(event: Event) -> ListedEvent {
        ListedEvent { event: Arc::new(event), logged_at: None, unlogged: 0, due: Mono(0) }
    }
}

impl EventList {
    /// Creates an empty list of at most `keep` entries.
    pub fn new(keep: usize) -> EventList {
        EventList { keep: keep.max(1), next: 1, ..EventList::default() }
    }

    /// Adds the events of an earlier daemon, which has logged them. Ids and revisions continue.
    pub fn restore(&mut self, earlier: impl Iterator<Item = Event>) {
        let earlier: Vec<Event> = earlier.collect();
        let newest = earlier.iter().map(|event| event.id).max().unwrap_or(0).max(earlier.len() as u64);
        self.revision = earlier.iter().map(|event| event.revision).max().unwrap_or(0);
        self.next = newest + 1 - earlier.len() as u64;
        for event in earlier {
            let (id, same) = (self.next, same(&event));
            self.next += 1;
            self.newest.insert((same.clone(), ANY), id);
            self.newest.insert((same, which(&event)), id);
            self.entries.push_back(ListedEvent::new(Event { id, ..event }));
        }
        self.restored = newest;
        self.keep(self.keep);
        self.kept.0 = self.revision;
    }

    /// Returns true if the list must be saved now.
    pub fn take_changed(&mut self, now: Mono) -> bool {
        let (revision, at) = self.kept;
        let due = revision != self.revision && at.is_none_or(|at| now.since(at) >= KEEP_EVERY);
        if due {
            self.kept = (self.revision, Some(now));
        }
        due
    }

    /// Returns true if the list has changed since it was saved. Called once, at the end.
    pub fn take_last(&mut self) -> bool {
        std::mem::replace(&mut self.kept.0, self.revision) != self.revision
    }

    /// Limits the list to `keep` entries.
    pub fn keep(&mut self, keep: usize) {
        self.keep = keep.max(1);
        while self.entries.len() > self.keep {
            self.drop_oldest();
            self.revision += 1;
        }
    }

    /// Adds an event, and returns the id of its entry. `wait`: time that the log waits for the report of the other
    /// source.
    pub fn record(&mut self, event: Event, now: Mono, wait: Duration) -> u64 {
        if let Some(id) = self.listed_earlier(&event) {
            return id;
        }
        let same = same(&event);
        // If the kernel log names a process or link later, the entry is corrected.
        let known = self.newest.get(&(same.clone(), which(&event))).copied();
        if let Some((id, entry)) = known.and_then(|id| Some((id, self.entry(id)?))) {
            let gap = event.unix_seconds - entry.event.last_unix_seconds;
            if gap.abs() < BURST_SECONDS && folds(event.kind) {
                let listed = Arc::make_mut(&mut entry.event);
                listed.repeats += 1;
                listed.last_unix_seconds = listed.last_unix_seconds.max(event.unix_seconds);
                merge(listed, event);
                self.changed(id, now, 1, wait);
                return id;
            }
        }
        self.append(event, same, now, wait)
    }

    /// Adds the report of the other source to an entry, and returns the entry that now contains it.
    pub fn enrich(&mut self, id: u64, event: Event, now: Mono) -> u64 {
        let Some(entry) = self.entry(id) else { return id };
        let listed = Arc::make_mut(&mut entry.event);
        if conflicts(&event, listed) && listed.repeats > 0 {
            // It was counted as a repetition of that entry before its process or link was known.
            listed.repeats -= 1;
            entry.unlogged = entry.unlogged.saturating_sub(1);
            self.changed(id, now, 0, Duration::ZERO);
            let event = Event { nvml: true, kmsg: true, ..event };
            return self.record(event, now, Duration::ZERO);
        }
        let same = same(listed);
        // The driver's event only has a default severity if the text decides.
        if listed.text.is_empty() && !event.text.is_empty() {
            judge(listed, &event);
        }
        merge(listed, event);
        let which = which(listed);
        if which != ANY {
            self.newest.insert((same, which), id);
        }
        self.changed(id, now, 0, Duration::ZERO);
        id
    }

    /// Replaces an entry by an event that includes it. The event takes over the id. Returns `None` if the entry is
    /// gone, or if only one of both is older than the daemon.
    pub fn supersede(&mut self, id: u64, mut event: Event, now: Mono, wait: Duration) -> Option<u64> {
        let entry = self.entry(id).filter(|entry| entry.event.old == event.old)?;
        entry.unlogged = 0;
        let listed = Arc::make_mut(&mut entry.event);
        let keys = [which(listed), ANY].map(|which| (same(listed), which));
        event.id = id;
        event.pci = event.pci.take().or_else(|| listed.pci.take());
        event.kmsg |= listed.kmsg;
        if event.text.is_empty() {
            event.text = std::mem::take(&mut listed.text);
        }
        *listed = event;
        let renamed = [which(listed), ANY].map(|which| (same(listed), which));
        self.newest.retain(|key, newest| *newest != id || !keys.contains(key));
        self.newest.extend(renamed.map(|key| (key, id)));
        self.changed(id, now, 1, wait);
        Some(id)
    }

    /// Applies the verdict of a report for which no line of the kernel log came.
    pub fn without_line(&mut self, id: u64, report: &Event, now: Mono) {
        if let Some(entry) = self.entry(id).filter(|entry| is_louder(report, &entry.event)) {
            judge(Arc::make_mut(&mut entry.event), report);
            self.changed(id, now, 0, Duration::ZERO);
        }
    }

    /// Logs the entries that are due.
    pub fn settle(&mut self, now: Mono) {
        let mut later = Vec::new();
        let mut lines = 0;
        for id in std::mem::take(&mut self.pending) {
            let Some(entry) = self.entry(id) else { continue };
            if entry.due > now || lines >= MAX_LINES {
                later.push(id);
            } else if entry.unlogged > 0 {
                lines += 1;
                log(&entry.event, entry.unlogged);
                (entry.unlogged, entry.logged_at) = (0, Some(now));
            }
        }
        self.pending = later;
        if self.unlogged > 0 {
            let times = std::mem::take(&mut self.unlogged);
            tracing::warn!(times, "too many events to log them individually");
        }
    }

    /// Returns the list, oldest first.
    pub fn list(&mut self) -> Arc<[Arc<Event>]> {
        if self.listed != self.revision {
            self.list = self.entries.iter().map(|entry| Arc::clone(&entry.event)).collect();
            self.listed = self.revision;
        }
        Arc::clone(&self.list)
    }

    /// Returns the restored entry of an event that the kernel log still contains.
    fn listed_earlier(&self, event: &Event) -> Option<u64> {
        let restored = self.entries.iter().map(|entry| &entry.event);
        let mut restored = restored.take_while(|listed| event.old && listed.id <= self.restored);
        let found = restored.find(|listed| {
            let span = listed.unix_seconds - SAME_TIME..=listed.last_unix_seconds + SAME_TIME;
            let ((kind, about, code, _), (of, whose, number, _)) = (same(listed), same(event));
            span.contains(&event.unix_seconds)
                && (kind, about, code) == (of, whose, number)
                && !conflicts(listed, event)
        });
        found.map(|listed| listed.id)
    }

    fn entry(&mut self, id: u64) -> Option<&mut ListedEvent> {
        let first = self.entries.front()?.event.id;
        self.entries.get_mut(usize::try_from(id.checked_sub(first)?).ok()?)
    }

    fn append(&mut self, mut event: Event, same: Same, now: Mono, wait: Duration) -> u64 {
        if self.entries.len() >= self.keep {
            self.drop_oldest();
        }
        let id = self.next;
        self.next += 1;
        event.id = id;
        self.newest.insert((same.clone(), ANY), id);
        self.newest.insert((same, which(&event)), id);
        self.entries.push_back(ListedEvent::new(event));
        self.changed(id, now, 1, wait);
        id
    }

    fn drop_oldest(&mut self) {
        let Some(gone) = self.entries.pop_front() else { return };
        self.unlogged += gone.unlogged;
        let (same, id) = (same(&gone.event), gone.event.id);
        for which in [which(&gone.event), ANY] {
            let key = (same.clone(), which);
            if self.newest.get(&key) == Some(&id) {
                self.newest.remove(&key);
            }
        }
        if gone.unlogged > 0 {
            self.pending.retain(|unlogged| *unlogged != id);
        }
    }

    /// Assigns an entry a new revision, and schedules `more` occurrences for the log.
    fn changed(&mut self, id: u64, now: Mono, more: u64, wait: Duration) {
        self.revision += 1;
        let revision = self.revision;
        let Some(entry) = self.entry(id) else { return };
        Arc::make_mut(&mut entry.event).revision = revision;
        // An event older than the daemon is already in the log.
        if entry.event.old {
            return;
        }
        let was_unlogged = entry.unlogged > 0;
        entry.unlogged += more;
        let earliest = entry.logged_at.map_or(now, |logged| logged + LOG_EVERY);
        let due = earliest.max(now + wait);
        entry.due = if was_unlogged { entry.due.min(due) } else { due };
        let begins = !was_unlogged && entry.unlogged > 0;
        if begins && !self.pending.contains(&id) {
            self.pending.push(id);
        }
    }
}

/// Returns true if bursts of this kind are folded. Every change of state gets an entry of its own.
fn folds(kind: EventKind) -> bool {
    use EventKind as K;
    matches!(kind, K::Xid | K::Sxid | K::DriverEvent | K::FallenOffBus | K::InitFailed)
}

/// Returns true if two events name different processes or links.
fn conflicts(a: &Event, b: &Event) -> bool {
    let differ = |a: Option<u32>, b: Option<u32>| a.is_some() && b.is_some() && a != b;
    differ(a.pid, b.pid) || differ(a.link, b.link)
}

fn which(event: &Event) -> Which {
    (event.pid, event.link)
}

fn same(event: &Event) -> Same {
    let about = match (&event.gpu, &event.nvswitch, &event.pci) {
        (Some(gpu), ..) => gpu.uuid.to_string(),
        (None, Some(switch), _) => format!("nvswitch {switch}"),
        (None, None, pci) => pci.clone().unwrap_or_default(),
    };
    (event.kind, about, event.code, event.old)
}

/// Adds the missing fields of an event. The most severe report decides verdict and text.
fn merge(into: &mut Event, from: Event) {
    // If there is a line, the driver's report does not change the verdict.
    if is_louder(&from, into) && (into.text.is_empty() || !from.text.is_empty()) {
        judge(into, &from);
    }
    into.pci = into.pci.take().or(from.pci);
    into.pid = into.pid.or(from.pid);
    into.process = into.process.take().or(from.process);
    // The source that names the process also has the better owner.
    into.owner = match from.pid {
        Some(_) => from.owner.or(into.owner.take()),
        None => into.owner.take().or(from.owner),
    };
    into.gpu_instance = into.gpu_instance.or(from.gpu_instance);
    into.compute_instance = into.compute_instance.or(from.compute_instance);
    if into.text.is_empty() {
        into.text = from.text;
    }
    // Another unit in the same crash ends the suspicion.
    if from.unit.is_some() {
        into.same_unit = from.same_unit;
    }
    into.nvml |= from.nvml;
    into.kmsg |= from.kmsg;
}

fn is_louder(event: &Event, other: &Event) -> bool {
    // Severities are declared from loud to quiet.
    (event.severity as u8) < (other.severity as u8)
}

/// Copies the verdict of another report, with everything that it is derived from.
fn judge(into: &mut Event, from: &Event) {
    (into.severity, into.action, into.meaning) = (from.severity, from.action, from.meaning);
    if !from.text.is_empty() {
        into.text.clone_from(&from.text);
        into.unit.clone_from(&from.unit);
        (into.link, into.same_unit, into.fatal) = (from.link, from.same_unit, from.fatal);
        (into.intr_info, into.error_status) = (from.intr_info, from.error_status);
        into.investigate = from.investigate;
    }
}

/// Logs an event that occurred this many times since its last log line.
fn log(event: &Event, times: u64) {
    let xid = event.code.filter(|_| event.kind == EventKind::Xid);
    let code = event.code.filter(|_| event.kind != EventKind::Xid);
    let (gpu, uuid) = (event.gpu.as_ref().map(|g| g.gpu), event.gpu.as_ref().map(|g| &*g.uuid));
    let action = event.action.known();
    let verdict =
        Some(event.mnemonic).filter(|verdict| event.kind == EventKind::Canary && !verdict.is_empty());
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                kind = event.kind.known(),
                gpu,
                uuid,
                pci = event.pci.as_deref(),
                nvswitch = event.nvswitch.as_deref(),
                xid,
                code,
                check = event.check,
                verdict,
                action,
                unit = event.unit.as_deref(),
                link = event.link,
                pid = event.pid,
                process = event.process.as_deref(),
                times,
                text = event.text.as_str(),
                "{}",
                event.meaning
            )
        };
    }
    match event.severity {
        Severity::Page => line!(error),
        Severity::Ticket => line!(warn),
        Severity::Info => line!(info),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::{FaultAction, Gpu, Severity};

    fn xid(code: u64, at: f64, pid: Option<u32>) -> Event {
        Event {
            gpu: Some(Gpu { gpu: 0, uuid: "GPU-0".into() }),
            code: Some(code),
            pid,
            kmsg: pid.is_some(),
            ..Event::new(EventKind::Xid, at, Severity::Info, FaultAction::RestartApp)
        }
    }

    fn record(events: &mut EventList, event: Event) -> u64 {
        events.record(event, Mono(1), Duration::ZERO)
    }

    #[test]
    fn a_burst_is_one_entry_until_it_pauses() {
        let mut events = EventList::new(10);
        assert_eq!(record(&mut events, xid(31, 1000.0, Some(5))), 1);
        assert_eq!(record(&mut events, xid(31, 1179.0, Some(5))), 1);
        assert_eq!(record(&mut events, xid(31, 1180.0, Some(6))), 2, "another process");
        assert_eq!(record(&mut events, xid(13, 1180.0, Some(5))), 3, "another code");
        assert_eq!(record(&mut events, xid(31, 1360.0, Some(5))), 4, "after a pause");
        assert_eq!(record(&mut events, Event { old: true, ..xid(31, 1360.0, Some(5)) }), 5);
        let list = events.list();
        assert_eq!((list[0].repeats, list[0].unix_seconds, list[0].last_unix_seconds), (1, 1000.0, 1179.0));
        assert_eq!(list.iter().map(|e| e.id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(list.iter().map(|e| e.revision).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
    }

    #[test]
    fn what_the_other_source_knows_is_added_to_the_right_entry() {
        let mut events = EventList::new(10);
        let id = record(&mut events, Event { nvml: true, ..xid(31, 1000.0, None) });
        assert_eq!(events.enrich(id, xid(31, 1000.1, Some(5)), Mono(2)), 1);
        let again = record(&mut events, Event { nvml: true, ..xid(31, 1001.0, None) });
        assert_eq!(again, 1, "the process is not known yet");
        assert_eq!(events.enrich(again, xid(31, 1001.1, Some(7)), Mono(2)), 2, "it was another one");
        let list = events.list();
        assert_eq!((list[0].pid, list[0].repeats, list[1].pid, list[1].repeats), (Some(5), 0, Some(7), 0));
        assert!(list.iter().all(|e| e.nvml && e.kmsg));
    }

    #[test]
    fn the_most_severe_line_gives_verdict_and_text() {
        let line = |severity, status, link| Event {
            severity,
            error_status: Some(status),
            link: Some(link),
            text: format!("line {status}"),
            kmsg: true,
            ..xid(149, 1000.0, None)
        };
        let mut events = EventList::new(10);
        for (severity, status) in [(Severity::Ticket, 1), (Severity::Page, 2), (Severity::Info, 3)] {
            assert_eq!(record(&mut events, line(severity, status, 4)), 1);
        }
        assert_eq!(record(&mut events, line(Severity::Info, 4, 5)), 2, "another link");
        let list = events.list();
        assert_eq!((list[0].severity, list[0].error_status, list[0].repeats), (Severity::Page, Some(2), 2));
        assert_eq!(list[0].text, "line 2");
    }

    #[test]
    fn the_line_decides_what_the_driver_could_not_say() {
        let mut events = EventList::new(10);
        let report = || Event { severity: Severity::Ticket, nvml: true, ..xid(149, 1000.0, None) };
        let line = |severity, link| Event {
            severity,
            link: Some(link),
            text: "line".into(),
            kmsg: true,
            ..xid(149, 1000.1, None)
        };
        let first = record(&mut events, report());
        let second = record(&mut events, report());
        assert_eq!((first, second), (1, 1), "neither link is known yet");
        assert_eq!(events.enrich(first, line(Severity::Info, 4), Mono(2)), 1);
        assert_eq!(events.enrich(second, line(Severity::Page, 7), Mono(2)), 2, "it was another one");
        let found: Vec<_> = events.list().iter().map(|e| (e.severity, e.link, e.repeats)).collect();
        assert_eq!(found, [(Severity::Info, Some(4), 0), (Severity::Page, Some(7), 0)]);
    }

    #[test]
    fn the_events_of_an_earlier_daemon_go_on() {
        let mut before = EventList::new(10);
        for code in [13, 31, 79] {
            record(&mut before, xid(code, 100.0, None));
        }
        let kept: Vec<Event> = before.list().iter().map(|event| Event::clone(event)).collect();
        let mut after = EventList::new(2);
        after.restore(kept.clone().into_iter());
        let ids = |events: &mut EventList| events.list().iter().map(|event| event.id).collect::<Vec<_>>();
        assert_eq!(ids(&mut after), [2, 3]);
        assert!(!after.take_changed(Mono(0)), "that is kept already");
        // A burst goes on over the restart, and a new event has the next id.
        assert_eq!(record(&mut after, xid(79, 110.0, None)), 3);
        assert_eq!(record(&mut after, xid(43, 110.0, None)), 4);
        let list = after.list();
        assert!(list.iter().all(|event| event.revision > kept[2].revision) && list[0].repeats == 1);
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        assert!(after.take_changed(at(100)) && !after.take_changed(at(100)));
        record(&mut after, xid(44, 120.0, None));
        assert!(!after.take_changed(at(109)) && after.take_changed(at(110)), "once in a while");
    }

    #[test]
    fn what_the_kernel_log_still_has_is_listed_once() {
        let mut before = EventList::new(10);
        record(&mut before, xid(63, 100.0, Some(5)));
        record(&mut before, xid(63, 160.0, Some(5)));
        let kept: Vec<Event> = before.list().iter().map(|event| Event::clone(event)).collect();
        let mut after = EventList::new(10);
        after.restore(kept.clone().into_iter());
        let again = |at, pid| Event { old: true, ..xid(63, at, pid) };
        assert_eq!(record(&mut after, again(101.5, Some(5))), 1);
        assert_eq!(record(&mut after, again(159.0, None)), 1);
        assert_eq!(after.list()[..], before.list()[..], "nothing has changed");
        // Of another time, of another process, and new ones.
        assert_eq!(record(&mut after, again(163.0, Some(5))), 2);
        assert_eq!(record(&mut after, again(160.0, Some(6))), 3);
        assert_eq!(record(&mut after, xid(63, 400.0, Some(5))), 4);
        assert!(after.take_last() && !after.take_last());
    }

    #[test]
    fn the_oldest_give_way_and_leave_nothing_behind() {
        let mut events = EventList::new(10);
        for code in 0..1000 {
            record(&mut events, xid(code, code as f64 * 1000.0, Some(1)));
        }
        let list = events.list();
        assert_eq!((list.len(), list[0].id, list[9].id), (10, 991, 1000));
        let any = events.newest.keys().filter(|(_, which)| *which == ANY).count();
        assert!(any <= 10 && events.newest.len() - any <= 20);
        assert_eq!(events.enrich(1, xid(0, 0.0, Some(2)), Mono(2)), 1, "it is gone");
    }

    #[test]
    fn a_published_list_does_not_change() {
        let mut events = EventList::new(10);
        record(&mut events, xid(31, 1000.0, Some(5)));
        let before = events.list();
        record(&mut events, xid(31, 1001.0, Some(5)));
        assert_eq!((before[0].repeats, events.list()[0].repeats), (0, 1));
        assert!(Arc::ptr_eq(&events.list(), &events.list()), "and is made again only if something changed");
    }

    #[test]
    fn the_journal_is_logged_at_most_once_a_second() {
        let mut events = EventList::new(10);
        let at = |seconds: f64| Mono((seconds * 1e9) as u64);
        let logged = |events: &EventList| events.entries[0].logged_at;
        events.record(xid(31, 1000.0, None), at(10.0), LOG_EVERY);
        events.settle(at(10.0));
        assert_eq!(logged(&events), None, "the other source may know more");
        events.enrich(1, xid(31, 1000.0, Some(5)), at(10.1));
        events.settle(at(10.1));
        assert_eq!(logged(&events), Some(at(10.1)));
        for _ in 0..100 {
            events.record(xid(31, 1000.2, Some(5)), at(10.2), Duration::ZERO);
            events.settle(at(10.2));
        }
        assert_eq!((logged(&events), events.entries[0].unlogged), (Some(at(10.1)), 100));
        events.settle(at(11.1));
        assert_eq!((logged(&events), events.entries[0].unlogged), (Some(at(11.1)), 0));
        assert!(events.pending.is_empty());
    }
}

//! The list of events: the newest ones in order, bursts of the same folded into one entry, each told in the
//! journal at most once a second.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::journal;
use model::clock::Mono;
use model::snapshot::{Event, EventKind};

/// An event that comes sooner than this after the last of its kind is a repetition.
const BURST_SECONDS: f64 = 180.0;
/// An entry is told in the journal at most this often.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Most lines written to the journal in one go.
const MAX_LINES: usize = 50;

/// What makes two events the same: kind, what it is about, code, and whether it is from before.
type Same = (EventKind, String, Option<u64>, bool);

/// One entry, and what the journal was told of it.
#[derive(Debug)]
struct Entry {
    event: Arc<Event>,
    told_at: Option<Mono>,
    /// Times it happened that the journal does not know of yet.
    untold: u64,
    /// When the journal is to be told of them.
    due: Mono,
}

/// The list.
#[derive(Debug)]
pub struct Events {
    keep: usize,
    entries: VecDeque<Entry>,
    revision: u64,
    next: u64,
    /// The newest entry of events that are the same, whatever the process.
    newest: HashMap<Same, u64>,
    /// The same by process.
    newest_of_process: HashMap<(Same, Option<u32>), u64>,
    /// Entries that the journal is to be told of.
    untold: Vec<u64>,
    /// Times events happened that left the list before the journal was told.
    unlogged: u64,
    list: Arc<[Arc<Event>]>,
    listed: u64,
}

impl Events {
    /// An empty list of at most so many.
    pub fn new(keep: usize) -> Events {
        Events {
            keep: keep.max(1),
            entries: VecDeque::new(),
            revision: 0,
            next: 1,
            newest: HashMap::new(),
            newest_of_process: HashMap::new(),
            untold: Vec::new(),
            unlogged: 0,
            list: Arc::from([]),
            listed: 0,
        }
    }

    /// Takes in an event; gives the id of its entry. `wait`: how long the journal waits for what another
    /// teller may add.
    pub fn record(&mut self, event: Event, now: Mono, wait: Duration) -> u64 {
        let same = same(&event);
        let known = match event.pid {
            // Only the kernel log names processes, and it may tell later: then the entry is put right.
            None => self.newest.get(&same),
            pid => self.newest_of_process.get(&(same.clone(), pid)),
        };
        let known = known.copied().and_then(|id| Some((id, self.entry(id)?)));
        if let Some((id, entry)) = known {
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

    /// Adds to an entry what another teller says of the same event; gives the entry it is in now.
    pub fn enrich(&mut self, id: u64, event: Event, now: Mono) -> u64 {
        let Some(entry) = self.entry(id) else { return id };
        let listed = Arc::make_mut(&mut entry.event);
        let other_process = event.pid.is_some() && listed.pid.is_some() && event.pid != listed.pid;
        if other_process && listed.repeats > 0 {
            // It was taken for a repetition of that entry before its process was known.
            listed.repeats -= 1;
            entry.untold = entry.untold.saturating_sub(1);
            self.changed(id, now, 0, Duration::ZERO);
            let event = Event { nvml: true, kmsg: true, ..event };
            return self.record(event, now, Duration::ZERO);
        }
        let same = same(listed);
        merge(listed, event);
        let pid = listed.pid;
        self.newest_of_process.insert((same, pid), id);
        self.changed(id, now, 0, Duration::ZERO);
        id
    }

    /// Tells the journal what is due.
    pub fn settle(&mut self, now: Mono) {
        let mut later = Vec::new();
        let mut lines = 0;
        for id in std::mem::take(&mut self.untold) {
            let Some(entry) = self.entry(id) else { continue };
            if entry.due > now || lines >= MAX_LINES {
                later.push(id);
            } else if entry.untold > 0 {
                lines += 1;
                journal::tell(&entry.event, entry.untold);
                (entry.untold, entry.told_at) = (0, Some(now));
            }
        }
        self.untold = later;
        if self.unlogged > 0 {
            let times = std::mem::take(&mut self.unlogged);
            tracing::warn!(times, "more events came than the journal is told of one by one");
        }
    }

    /// The list, oldest first.
    pub fn list(&mut self) -> Arc<[Arc<Event>]> {
        if self.listed != self.revision {
            self.list = self.entries.iter().map(|entry| Arc::clone(&entry.event)).collect();
            self.listed = self.revision;
        }
        Arc::clone(&self.list)
    }

    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
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
        self.newest.insert(same.clone(), id);
        self.newest_of_process.insert((same, event.pid), id);
        self.entries.push_back(Entry { event: Arc::new(event), told_at: None, untold: 0, due: now });
        self.changed(id, now, 1, wait);
        id
    }

    fn drop_oldest(&mut self) {
        let Some(gone) = self.entries.pop_front() else { return };
        self.unlogged += gone.untold;
        let (same, id) = (same(&gone.event), gone.event.id);
        if self.newest.get(&same) == Some(&id) {
            self.newest.remove(&same);
        }
        let of_process = [gone.event.pid, None];
        for pid in of_process {
            let key = (same.clone(), pid);
            if self.newest_of_process.get(&key) == Some(&id) {
                self.newest_of_process.remove(&key);
            }
        }
        if gone.untold > 0 {
            self.untold.retain(|untold| *untold != id);
        }
    }

    /// Gives an entry a new revision, and has the journal told of so many more.
    fn changed(&mut self, id: u64, now: Mono, more: u64, wait: Duration) {
        self.revision += 1;
        let revision = self.revision;
        let Some(entry) = self.entry(id) else { return };
        Arc::make_mut(&mut entry.event).revision = revision;
        // What was logged before the daemon watched is in the journal already.
        if entry.event.old {
            return;
        }
        let was_untold = entry.untold > 0;
        entry.untold += more;
        let earliest = entry.told_at.map_or(now, |told| told + TELL_EVERY);
        let due = earliest.max(now + wait);
        entry.due = if was_untold { entry.due.min(due) } else { due };
        let tell = !was_untold && entry.untold > 0;
        if tell && !self.untold.contains(&id) {
            self.untold.push(id);
        }
    }
}

/// Whether events of this kind are told as one when they come in bursts. Of changes each one matters.
fn folds(kind: EventKind) -> bool {
    matches!(kind, EventKind::Xid | EventKind::Sxid | EventKind::DriverEvent)
}

fn same(event: &Event) -> Same {
    let about = match (&event.gpu, &event.nvswitch, &event.pci) {
        (Some(gpu), ..) => gpu.uuid.to_string(),
        (None, Some(switch), _) => format!("nvswitch {switch}"),
        (None, None, pci) => pci.clone().unwrap_or_default(),
    };
    (event.kind, about, event.code, event.old)
}

/// Adds what is not known yet, and raises the severity if one teller knows it to be higher.
fn merge(into: &mut Event, from: Event) {
    into.pci = into.pci.take().or(from.pci);
    into.pid = into.pid.or(from.pid);
    into.process = into.process.take().or(from.process);
    // Who names the process knows the owner better.
    into.owner = match from.pid {
        Some(_) => from.owner.or(into.owner.take()),
        None => into.owner.take().or(from.owner),
    };
    into.gpu_instance = into.gpu_instance.or(from.gpu_instance);
    into.compute_instance = into.compute_instance.or(from.compute_instance);
    if into.text.is_empty() {
        into.text = from.text;
    }
    // Severities are listed from loud to quiet.
    if (from.severity as u8) < (into.severity as u8) {
        (into.severity, into.action) = (from.severity, from.action);
    }
    into.nvml |= from.nvml;
    into.kmsg |= from.kmsg;
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

    fn record(events: &mut Events, event: Event) -> u64 {
        events.record(event, Mono(1), Duration::ZERO)
    }

    #[test]
    fn a_burst_is_one_entry_until_it_pauses() {
        let mut events = Events::new(10);
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
    fn what_the_second_teller_knows_is_added_to_the_right_entry() {
        let mut events = Events::new(10);
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
    fn the_oldest_give_way_and_leave_nothing_behind() {
        let mut events = Events::new(10);
        for code in 0..1000 {
            record(&mut events, xid(code, code as f64 * 1000.0, Some(1)));
        }
        let list = events.list();
        assert_eq!((list.len(), list[0].id, list[9].id), (10, 991, 1000));
        assert!(events.newest.len() <= 10 && events.newest_of_process.len() <= 20);
        assert_eq!(events.enrich(1, xid(0, 0.0, Some(2)), Mono(2)), 1, "it is gone");
    }

    #[test]
    fn a_published_list_does_not_change() {
        let mut events = Events::new(10);
        record(&mut events, xid(31, 1000.0, Some(5)));
        let before = events.list();
        record(&mut events, xid(31, 1001.0, Some(5)));
        assert_eq!((before[0].repeats, events.list()[0].repeats), (0, 1));
        assert!(Arc::ptr_eq(&events.list(), &events.list()), "and is made anew only if something changed");
    }

    #[test]
    fn the_journal_is_told_at_most_once_a_second() {
        let mut events = Events::new(10);
        let at = |seconds: f64| Mono((seconds * 1e9) as u64);
        let told = |events: &Events| events.entries[0].told_at;
        events.record(xid(31, 1000.0, None), at(10.0), TELL_EVERY);
        events.settle(at(10.0));
        assert_eq!(told(&events), None, "the other teller may know more");
        events.enrich(1, xid(31, 1000.0, Some(5)), at(10.1));
        events.settle(at(10.1));
        assert_eq!(told(&events), Some(at(10.1)));
        for _ in 0..100 {
            events.record(xid(31, 1000.2, Some(5)), at(10.2), Duration::ZERO);
            events.settle(at(10.2));
        }
        assert_eq!((told(&events), events.entries[0].untold), (Some(at(10.1)), 100));
        events.settle(at(11.1));
        assert_eq!((told(&events), events.entries[0].untold), (Some(at(11.1)), 0));
        assert!(events.untold.is_empty());
    }
}

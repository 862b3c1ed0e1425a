//! Records of owners that have ended: one record per owner from its start to its end, made from its accounts.
//!
//! A record is published as soon as all GPUs of its owner are settled. It is complete [`KEPT_AFTER_END`] after the
//! end: then it is logged and no longer changes. An owner that returns before that continues its record.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::OwnerState;
use super::accounts::{Account, AccountKey, Accounts, KEPT_AFTER_END};
use super::sums::AccountSums;
use super::timeline::{InstanceId, SettledSpan};
use model::catalog::schema::{KnownLabel, LabelSet};
use model::catalog::{EventKind, Gpu, GpuTimeClass, OwnerInfo, OwnerKind, SampleBuffer, Severity};
use model::clock::Mono;
use model::owner_records::{FaultCount, MAX_FAULTS, MAX_PLACES, OwnerRecord, OwnerRecords, RecordedPlace};
use model::owners::Owner;
use model::snapshot::{Event, OwnerRecordsView};

/// Minimum GPU time for a record, in seconds.
const SHORTEST: f64 = 10.0;
/// Maximum wait for the driver's samples and the classes of an owner's last seconds, which come every 10 s. Classes
/// of GPU instances come every minute, so such a record is published before they arrive and completed later. The
/// epilog of Slurm waits longer than this.
const LATEST_SAMPLES: Duration = Duration::from_secs(15);
/// Time without readings after which the owners of a GPU count as ended.
const UNREAD: Duration = Duration::from_secs(300);
/// Minimum interval between two saves.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of records logged individually per [`LOG_WINDOW`].
const LOG_LINES: u32 = 60;
const LOG_WINDOW: Duration = Duration::from_secs(60);
/// Seconds before and after the owner's time within which a fault that names the owner counts,
const SLACK: f64 = 60.0;
/// and seconds after it for a fault that names no owner.
const AFTERMATH: f64 = 1.0;

type SumsByPlace = BTreeMap<(Gpu, InstanceId), AccountSums>;

fn add_at(places: &mut SumsByPlace, key: &AccountKey, more: &AccountSums) {
    let sums = places.entry((key.gpu.clone(), key.place)).or_default();
    *sums = sums.with(more, |a, b| a + b);
}

/// Record of an owner that has not ended or may still return.
#[derive(Default)]
struct OpenRecord {
    owner: Arc<Owner>,
    /// Start time of its first process, in seconds since 1970; `None` if unknown.
    start: Option<f64>,
    /// Time at which counting began.
    since: Mono,
    /// Last settled time at which the owner was present.
    until: Mono,
    partial: bool,
    /// Amounts from accounts that were removed.
    gone: SumsByPlace,
    /// Record in the form that is published.
    shown: Option<Arc<OwnerRecord>>,
}

impl OpenRecord {
    fn new(owner: &Arc<Owner>, since: Mono) -> OpenRecord {
        OpenRecord { owner: Arc::clone(owner), since, until: since, ..OpenRecord::default() }
    }

    fn places(&self, accounts: &Accounts) -> SumsByPlace {
        let mut places = self.gone.clone();
        for (key, account) in accounts.all.iter().filter(|(key, _)| key.owner == self.owner.id) {
            add_at(&mut places, key, &account.unrecorded());
        }
        places
    }
}

/// Records of all owners.
#[derive(Default)]
pub(crate) struct Records {
    open: BTreeMap<Arc<str>, OpenRecord>,
    /// Complete records, oldest first.
    complete: OwnerRecords,
    /// Published records, newest first.
    published: Arc<[Arc<OwnerRecord>]>,
    /// Time up to which the owners of each GPU are known.
    settled: BTreeMap<Gpu, Mono>,
    /// Owners without series at that time, by GPU.
    uncounted: BTreeMap<Gpu, BTreeSet<Arc<str>>>,
    /// Time of the newest utilization and power sample of each GPU.
    sampled: BTreeMap<Gpu, [Option<Mono>; 2]>,
    /// Events as last published.
    events: Arc<[Arc<Event>]>,
    /// Whether the published records differ from the saved ones in more than amounts.
    unsaved: bool,
    saved: Option<Mono>,
    log: RecordLog,
}

impl Records {
    /// Restores the records of an `earlier` daemon as complete.
    pub fn new(mut earlier: OwnerRecords) -> Records {
        for record in earlier.records.iter_mut().filter(|record| !record.complete) {
            Arc::make_mut(record).complete = true;
        }
        // Limited without the clock, which may not be set yet.
        earlier.bound();
        let mut records = Records { complete: earlier, ..Records::default() };
        records.published = records.list().into();
        records
    }

    /// Records the end of a sample.
    pub fn sampled(&mut self, gpu: &Gpu, buffer: SampleBuffer, at: Mono) {
        let [utilization, power] = self.sampled.entry(gpu.clone()).or_default();
        match buffer {
            SampleBuffer::Utilization => *utilization = Some(at),
            SampleBuffer::Power => *power = Some(at),
        }
    }

    /// Records settled time of a GPU that is already in the accounts.
    pub fn settle(&mut self, gpu: &Gpu, settled: &SettledSpan, accounts: &Accounts) {
        let before = self.settled.insert(gpu.clone(), settled.to);
        let without_gap = before.is_some_and(|before| before >= settled.from);
        let named = settled.present.iter().filter(|one| *one.owner.id != *OwnerKind::Unknown.known());
        let (counted, uncounted): (Vec<_>, Vec<_>) =
            named.partition(|one| accounts.has_series(&one.owner.id));
        for one in counted {
            let was_uncounted = || self.uncounted.values().any(|owners| owners.contains(&one.owner.id));
            let open = self.open.entry(Arc::clone(&one.owner.id)).or_insert_with(|| OpenRecord {
                partial: was_uncounted(),
                ..OpenRecord::new(&one.owner, settled.from)
            });
            open.owner = Arc::clone(&one.owner);
            open.until = open.until.max(settled.to);
            open.partial |= !without_gap;
        }
        let uncounted = uncounted.iter().map(|one| Arc::clone(&one.owner.id)).collect();
        self.uncounted.insert(gpu.clone(), uncounted);
    }

    /// Updates the start times of the owners that have processes.
    pub fn started(&mut self, starts: &HashMap<Arc<str>, f64>) {
        for (owner, start) in starts {
            if let Some(open) = self.open.get_mut(owner) {
                open.start = Some(open.start.map_or(*start, |known| known.min(*start)));
            }
        }
    }

    /// Saves the amounts of accounts that are about to be removed.
    pub fn retire(&mut self, accounts: &mut Accounts, now: Mono, keep: Duration) {
        self.keep_gone(accounts, |_, account| now.since(account.until) > keep);
    }

    /// Forgets a GPU that was replaced, but not the amounts of its owners.
    pub fn forget(&mut self, gpu: &Gpu, accounts: &mut Accounts) {
        self.keep_gone(accounts, |key, _| key.gpu == *gpu);
        self.settled.remove(gpu);
        self.uncounted.remove(gpu);
        self.sampled.remove(gpu);
    }

    fn keep_gone(&mut self, accounts: &mut Accounts, is_going: impl Fn(&AccountKey, &Account) -> bool) {
        for (key, account) in accounts.all.iter_mut().filter(|(key, account)| is_going(key, account)) {
            let Some(open) = self.open.get_mut(&key.owner) else { continue };
            account.close();
            add_at(&mut open.gone, key, &account.unrecorded());
            // The owner may have been present for longer.
            open.partial |= !account.ended;
            account.record();
        }
    }

    /// Returns all published records, the last one to end first.
    fn list(&self) -> Vec<Arc<OwnerRecord>> {
        let shown = self.open.values().filter_map(|open| open.shown.as_ref());
        let mut all: Vec<Arc<OwnerRecord>> = self.complete.records.iter().chain(shown).cloned().collect();
        all.sort_by(|a, b| b.end_unix_seconds.total_cmp(&a.end_unix_seconds));
        all
    }

    /// Returns the records to save.
    fn document(&self) -> OwnerRecords {
        let mut records = self.list();
        records.reverse();
        OwnerRecords { records }
    }
}

impl OwnerState {
    /// Returns the owners that have work, or may have it because their time is not settled.
    fn owners_at_work(&self, now: Mono) -> BTreeSet<Arc<str>> {
        let accounts = self.accounts.all.iter();
        let here = accounts.filter(|(_, account)| !account.ended && now.since(account.until) < UNREAD);
        here.map(|(key, _)| Arc::clone(&key.owner)).collect()
    }

    /// Completes the records of owners that ended long enough ago. Must run before other owners replace their
    /// accounts.
    pub(super) fn complete_records(&mut self, now: Mono) {
        self.complete_ended(now, KEPT_AFTER_END);
        self.records.log.settle(now);
    }

    fn complete_ended(&mut self, now: Mono, after: Duration) {
        let at_work = self.owners_at_work(now);
        let is_over =
            |(id, open): &(&Arc<str>, &OpenRecord)| !at_work.contains(*id) && now.since(open.until) >= after;
        let over: Vec<Arc<str>> =
            self.records.open.iter().filter(is_over).map(|(id, _)| Arc::clone(id)).collect();
        over.iter().for_each(|owner| self.complete_record(owner, now));
    }

    fn complete_record(&mut self, owner: &Arc<str>, now: Mono) {
        let Some(open) = self.records.open.remove(owner) else { return };
        let record = self.record(&open, now);
        for (_, account) in self.accounts.all.iter_mut().filter(|(key, _)| key.owner == *owner) {
            account.record();
        }
        self.host_use.record_kills(owner);
        let Some(record) = record else { return };
        let record = OwnerRecord { complete: true, ..record };
        if self.records.log.allows(now) {
            log(&record);
        }
        self.records.complete.records.push(Arc::new(record));
        self.records.complete.limit(now.0 as f64 * 1e-9 + self.offset);
        self.records.unsaved = true;
    }

    /// Returns the records to publish, and the owners without a record.
    pub fn publish_records(&mut self, events: &Arc<[Arc<Event>]>, now: Mono) -> OwnerRecordsView {
        if !self.settings.enabled {
            return OwnerRecordsView::default();
        }
        self.records.events = Arc::clone(events);
        let at_work = self.owners_at_work(now);
        let mut pending = Vec::new();
        let mut open = std::mem::take(&mut self.records.open);
        for (id, one) in &mut open {
            let settled = !at_work.contains(id) && self.has_all_samples(one, now);
            if !settled {
                pending.push(Arc::clone(&one.owner));
            }
            let record = settled.then(|| self.record(one, now)).flatten();
            self.records.unsaved |= record.is_some() != one.shown.is_some();
            if record.as_ref() != one.shown.as_deref() {
                one.shown = record.map(Arc::new);
            }
        }
        self.records.open = open;
        let list = self.records.list();
        let is_same = |(a, b): (&Arc<OwnerRecord>, &Arc<OwnerRecord>)| Arc::ptr_eq(a, b);
        let published = &self.records.published;
        if list.len() != published.len() || !list.iter().zip(published.iter()).all(is_same) {
            self.records.published = list.into();
        }
        OwnerRecordsView { ended: Arc::clone(&self.records.published), pending }
    }

    /// Returns the records if they must be saved now.
    pub fn take_records(&mut self, now: Mono) -> Option<OwnerRecords> {
        let records = &mut self.records;
        let is_due = records.unsaved && records.saved.is_none_or(|at| now.since(at) >= SAVE_EVERY);
        is_due.then(|| {
            (records.unsaved, records.saved) = (false, Some(now));
            records.document()
        })
    }

    /// Returns the records at the end of the daemon, with the records of all ended owners completed.
    pub fn take_last_records(&mut self, now: Mono) -> Option<OwnerRecords> {
        self.complete_ended(now, Duration::ZERO);
        self.records.log.end();
        std::mem::take(&mut self.records.unsaved).then(|| self.records.document())
    }

    /// Returns true if all samples of the owner's time are in its accounts and classes, or the wait for them is over.
    fn has_all_samples(&self, open: &OpenRecord, now: Mono) -> bool {
        if now.since(open.until) >= LATEST_SAMPLES {
            return true;
        }
        let mut own = self.accounts.all.iter().filter(|(key, _)| key.owner == open.owner.id);
        if !own.all(|(_, account)| account.is_classified()) {
            return false;
        }
        open.places(&self.accounts).keys().all(|(gpu, _)| {
            let newest = self.records.sampled.get(gpu).copied().unwrap_or_default();
            let divided = self.lines.get(gpu).is_none_or(|line| line.is_divided(open.until));
            divided && newest.iter().flatten().all(|at| *at >= open.until)
        })
    }

    /// Creates the record of an owner, or returns `None` if it had too little GPU time.
    fn record(&self, open: &OpenRecord, now: Mono) -> Option<OwnerRecord> {
        let places = open.places(&self.accounts);
        let sum = places.values().fold(AccountSums::default(), |sum, at| sum.with(at, |a, b| a + b));
        if sum.allocated < SHORTEST {
            return None;
        }
        let list = places.iter().map(|((gpu, place), at)| {
            let tracks = |place| self.tracks.get(&(gpu.clone(), place));
            let works = at.busy > 0.0 || tracks(*place).is_some_and(|tracks| tracks.has_work);
            let draws = tracks(None).is_some_and(|tracks| tracks.has_power);
            RecordedPlace {
                allocated_seconds: round(at.allocated),
                busy_seconds: works.then_some(round(at.busy)),
                energy_joules: draws.then_some(round(at.joules)),
                steps: (at.steps > 0.0).then_some(round(at.steps)),
                slow_seconds: round(at.slow),
                memory_peak_bytes: at.peak,
                ..RecordedPlace::new(gpu, *place)
            }
        });
        let mut list: Vec<RecordedPlace> = list.collect();
        let measured = |of: fn(&RecordedPlace) -> Option<f64>| list.iter().filter_map(of);
        let classes = GpuTimeClass::ALL.iter().zip(sum.classes).filter(|(_, seconds)| *seconds > 0.0);
        let unix = |at: Mono| round(at.0 as f64 * 1e-9 + self.offset);
        let (since, end) = (unix(open.since), unix(open.until));
        let texts = OwnerInfo::DEFS.iter().zip(open.owner.info.texts());
        let labels = texts.map(|(def, text)| (def.name.to_owned(), text.text(def).to_owned()));
        let cut_off = now.since(open.until) >= UNREAD
            && self.accounts.all.iter().any(|(key, account)| key.owner == open.owner.id && !account.ended);
        Some(OwnerRecord {
            owner: Arc::clone(&open.owner.id),
            labels: labels.filter(|(_, text)| !text.is_empty()).collect(),
            start_unix_seconds: open.start.map_or(since, |start| round(start.min(since))),
            since_unix_seconds: since,
            end_unix_seconds: end,
            partial: open.partial || cut_off,
            complete: false,
            allocated_seconds: round(sum.allocated),
            class_seconds: classes
                .map(|(class, seconds)| (class.known().to_owned(), round(seconds)))
                .collect(),
            busy_seconds: measured(|place| place.busy_seconds).reduce(|a, b| a + b).map(round),
            energy_joules: measured(|place| place.energy_joules).reduce(|a, b| a + b).map(round),
            steps: measured(|place| place.steps).reduce(f64::max),
            ended_at_full_memory: sum.ended_full,
            host_oom_kills: self.host_use.unrecorded_kills(&open.owner.id),
            faults: faults(&self.records.events, &open.owner.id, &list, since, end),
            places: {
                list.truncate(MAX_PLACES);
                list
            },
        })
    }
}

/// Rounds to milliseconds or millijoules.
fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Counts the faults in an owner's time: those that name the owner, and those of its GPUs that name none.
fn faults(
    events: &[Arc<Event>],
    owner: &Arc<str>,
    places: &[RecordedPlace],
    since: f64,
    end: f64,
) -> Vec<FaultCount> {
    use EventKind as K;
    let mut counts: BTreeMap<(&str, Option<u64>), u64> = BTreeMap::new();
    for event in events.iter().filter(|event| !event.old) {
        let counts_as_fault = match event.kind {
            K::Xid | K::GpuLost | K::FallenOffBus | K::InitFailed => true,
            K::DriverEvent => event.severity != Severity::Info,
            _ => false,
        };
        let is_at = |place: &RecordedPlace| {
            event.gpu.as_ref().is_some_and(|gpu| gpu.uuid == place.uuid)
                && event.gpu_instance.is_none_or(|on| place.gpu_instance.is_none_or(|place| on == place))
        };
        let (from, to) = match &event.owner {
            Some(named) if named == owner => (since - SLACK, end + SLACK),
            None if places.iter().any(is_at) => (since, end + AFTERMATH),
            _ => continue,
        };
        if !counts_as_fault || event.unix_seconds > to || event.last_unix_seconds < from {
            continue;
        }
        // Only one fault of a burst that began earlier is known to be in this time.
        let is_within = event.unix_seconds >= from && event.last_unix_seconds <= to;
        let times = if is_within { 1 + event.repeats } else { 1 };
        *counts.entry((event.kind.known(), event.code)).or_default() += times;
    }
    let mut faults: Vec<FaultCount> = counts
        .into_iter()
        .map(|((kind, code), count)| FaultCount { kind: kind.to_owned(), code, count })
        .collect();
    faults.sort_by_key(|fault| std::cmp::Reverse(fault.count));
    faults.truncate(MAX_FAULTS);
    faults
}

/// Limit on the number of logged records.
#[derive(Default)]
struct RecordLog {
    window: Option<Mono>,
    lines: u32,
    left_out: u64,
}

impl RecordLog {
    /// Returns true if another record may be logged.
    fn allows(&mut self, now: Mono) -> bool {
        self.settle(now);
        self.window.get_or_insert(now);
        let allows = self.lines < LOG_LINES;
        if allows {
            self.lines += 1;
        } else {
            self.left_out += 1;
        }
        allows
    }

    /// Logs how many records were skipped, once the window is over.
    fn settle(&mut self, now: Mono) {
        if self.window.take_if(|begun| now.since(*begun) >= LOG_WINDOW).is_some() {
            self.end();
        }
    }

    /// Logs and returns how many records were skipped.
    fn end(&mut self) -> u64 {
        let RecordLog { left_out, .. } = std::mem::take(self);
        if left_out > 0 {
            tracing::info!(owners = left_out, "too many owners have ended to log them individually");
        }
        left_out
    }
}

fn log(record: &OwnerRecord) {
    let label = |name: &str| record.labels.get(name).map(String::as_str);
    let list = |of: &dyn Fn(&RecordedPlace) -> Option<String>| {
        record.places.iter().filter_map(of).collect::<Vec<_>>().join(" ")
    };
    let place = |place: &RecordedPlace| match place.gpu_instance {
        Some(instance) => format!("{}/{instance}", place.gpu),
        None => place.gpu.to_string(),
    };
    let classes: Vec<String> =
        record.class_seconds.iter().map(|(class, seconds)| format!("{class}:{seconds}")).collect();
    let faults = record.faults.iter().map(|fault| match fault.code {
        Some(code) => format!("{}/{code}:{}", fault.kind, fault.count),
        None => format!("{}:{}", fault.kind, fault.count),
    });
    let slow = |one: &RecordedPlace| {
        (one.slow_seconds > 0.0).then(|| format!("{}:{}", place(one), one.slow_seconds))
    };
    tracing::info!(
        owner = &*record.owner,
        kind = label("kind"),
        namespace = label("namespace"),
        pod = label("pod"),
        container = label("container"),
        slurm_job = label("slurm_job"),
        slurm_step = label("slurm_step"),
        slurm_account = label("slurm_account"),
        unit = label("unit"),
        user = label("user"),
        start_unix_seconds = record.start_unix_seconds,
        since_unix_seconds = record.since_unix_seconds,
        end_unix_seconds = record.end_unix_seconds,
        partial = record.partial,
        gpus = list(&|one| Some(place(one))),
        allocated_seconds = record.allocated_seconds,
        class_seconds = classes.join(" "),
        busy_seconds = record.busy_seconds,
        energy_joules = record.energy_joules,
        steps = record.steps,
        slow_seconds = list(&slow),
        memory_peak_bytes = list(&|one| Some(format!("{}:{}", place(one), one.memory_peak_bytes?))),
        ended_at_full_memory = record.ended_at_full_memory,
        host_oom_kills = record.host_oom_kills,
        faults = faults.collect::<Vec<_>>().join(" "),
        "the owner has ended"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::FaultAction;

    fn event(kind: EventKind, code: u64, from: f64, to: f64) -> Event {
        let gpu = Some(Gpu { gpu: 0, uuid: "a".into() });
        let event = Event::new(kind, from, Severity::Ticket, FaultAction::RestartApp);
        Event { gpu, code: Some(code), last_unix_seconds: to, ..event }
    }

    fn counted(events: Vec<Event>) -> Vec<(String, Option<u64>, u64)> {
        let events: Vec<Arc<Event>> = events.into_iter().map(Arc::new).collect();
        let places = [RecordedPlace::new(&Gpu { gpu: 0, uuid: "a".into() }, Some(3))];
        let found = faults(&events, &"mine".into(), &places, 1000.0, 2000.0);
        found.into_iter().map(|fault| (fault.kind, fault.code, fault.count)).collect()
    }

    #[test]
    fn faults_are_those_of_its_gpus_in_its_time_and_none_of_another_owner() {
        let xid = |from, to| event(EventKind::Xid, 79, from, to);
        let one = |event| counted(vec![event]).first().map_or(0, |(.., count)| *count);
        assert_eq!(one(xid(1000.0, 1000.0)), 1);
        assert_eq!([one(xid(999.0, 999.0)), one(xid(2002.0, 2002.0))], [0, 0], "before and after");
        assert_eq!(one(Event { repeats: 4, ..xid(1500.0, 1600.0) }), 5);
        assert_eq!(one(Event { repeats: 4, ..xid(990.0, 1600.0) }), 1, "most may be another owner's");
        let named = |name: &str, from| Event { owner: Some(name.into()), ..xid(from, from) };
        assert_eq!([one(named("mine", 2030.0)), one(named("other", 1500.0))], [1, 0]);
        assert_eq!(one(Event { old: true, ..xid(1500.0, 1500.0) }), 0);
        let on = |instance| Event { gpu_instance: Some(instance), ..xid(1500.0, 1500.0) };
        assert_eq!([one(on(3)), one(on(4))], [1, 0]);
        let elsewhere = Some(Gpu { gpu: 1, uuid: "b".into() });
        assert_eq!(one(Event { gpu: elsewhere, ..xid(1500.0, 1500.0) }), 0);
        assert_eq!(one(event(EventKind::DriverLoad, 0, 1500.0, 1500.0)), 0, "no fault");
    }

    #[test]
    fn the_most_frequent_faults_are_listed() {
        let mut events: Vec<Event> =
            (0..40).map(|code| event(EventKind::Xid, code, 1500.0, 1500.0)).collect();
        events.push(Event { repeats: 8, ..event(EventKind::GpuLost, 1, 1500.0, 1500.0) });
        let counted = counted(events);
        assert_eq!((counted.len(), &counted[0]), (MAX_FAULTS, &("gpu_lost".to_owned(), Some(1), 9)));
    }

    #[test]
    fn a_flood_of_records_is_counted_in_one_line() {
        let at = |seconds: u64| Mono((100 + seconds) * 1_000_000_000);
        let mut limit = RecordLog::default();
        let allowed = |limit: &mut RecordLog, seconds| (0..100).filter(|_| limit.allows(at(seconds))).count();
        assert_eq!([allowed(&mut limit, 0), allowed(&mut limit, 59)], [60, 0]);
        assert_eq!(limit.left_out, 140);
        assert_eq!(allowed(&mut limit, 60), 60, "a minute later");
        assert_eq!((limit.end(), limit.end()), (40, 0));
    }
}

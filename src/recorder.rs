//! Flight recorder of the daemon. Batches go into the ring, and after a fault a short-lived thread writes the file. A
//! disk that hangs blocks only that thread; no other one starts until it ends.

pub(crate) mod folder;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use exposition::format::ResponseFormat;
use exposition::node_name;
use folder::RecordingFolder;
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::{BuildInfo, RecordingOutcome};
use model::clock::Mono;
use model::sample::Batch;
use model::snapshot::Snapshot;
use model::sync::lock;
use recorder::file::{self, Header, Written};
use recorder::ring::{Frozen, Ring};
use recorder::trigger::{FaultKey, RecordedFault, RecordingPace, SHORTEST, Trigger};
use settings::Config;

/// Documents of a recording, in the formats of `/api/v1`.
const DOCUMENTS: [(&str, ResponseFormat); 4] = [
    ("events", ResponseFormat::Events),
    ("owners", ResponseFormat::Owners),
    ("topology", ResponseFormat::Topology),
    ("snapshot", ResponseFormat::Json),
];

/// Ring of the last minutes, its trigger and its writer.
#[derive(Debug)]
pub(crate) struct FlightRecorder {
    ring: Ring,
    trigger: Trigger,
    folder: RecordingFolder,
    build: BuildInfo,
    inbox: Arc<Inbox>,
    /// Returns the memory of a recording to the system.
    trim_heap: fn(),
    writing: Arc<AtomicBool>,
    /// Faults whose recordings were not written.
    unwritten: Arc<Mutex<Vec<FaultKey>>>,
    /// Current or last writer thread.
    writer: Option<JoinHandle<()>>,
    ended: bool,
}

impl FlightRecorder {
    /// Creates the recorder if the settings enable it.
    pub(crate) fn new(
        config: &Config,
        build: BuildInfo,
        inbox: Arc<Inbox>,
        trim_heap: fn(),
    ) -> Option<FlightRecorder> {
        let settings = &config.recorder;
        settings.enabled.then(|| FlightRecorder {
            // A recording is written some time after the fault, to include its aftermath or to keep the interval to the
            // previous recording.
            ring: Ring::new(settings.duration + settings.after.max(SHORTEST)),
            trigger: Trigger::new(RecordingPace { after: settings.after, pause: settings.pause }),
            folder: RecordingFolder::new(config),
            build,
            inbox,
            trim_heap,
            writing: Arc::default(),
            unwritten: Arc::default(),
            writer: None,
            ended: false,
        })
    }

    /// Records a batch on its way to the ledger.
    pub(crate) fn record(&mut self, batch: &Batch) {
        self.ring.record(batch);
    }

    /// Checks a new snapshot for faults, and starts a recording if one is due.
    pub(crate) fn inspect(&mut self, snapshot: &Arc<Snapshot>) {
        if self.ended {
            return;
        }
        // The stack of a finished thread is released when its handle is dropped.
        self.writer.take_if(|writer| writer.is_finished());
        self.trigger.forget(&std::mem::take(&mut *lock(&self.unwritten)));
        let due = self.trigger.look(snapshot);
        if due.suppressed > 0 {
            self.count(RecordingOutcome::Suppressed, due.suppressed);
        }
        if let Some(faults) = due.faults {
            self.write(snapshot, faults, due.keys);
        }
    }

    /// Starts the pending recording when the daemon ends. Returns the thread to wait for.
    pub(crate) fn end(&mut self, snapshot: &Arc<Snapshot>) -> Option<JoinHandle<()>> {
        self.ended = true;
        let (faults, keys) = self.trigger.end();
        if !faults.is_empty() {
            self.write(snapshot, faults, keys);
        }
        self.writer.take()
    }

    fn write(&mut self, snapshot: &Arc<Snapshot>, faults: Vec<RecordedFault>, keys: Vec<FaultKey>) {
        if self.writing.swap(true, Relaxed) {
            tracing::warn!("a fault was not recorded; the previous recording is still being written");
            self.count(RecordingOutcome::Suppressed, faults.len() as u64);
            self.trigger.forget(&keys);
            return;
        }
        let end = WriteEnd {
            outcome: RecordingOutcome::Failed,
            keys,
            unwritten: Arc::clone(&self.unwritten),
            inbox: Arc::clone(&self.inbox),
            writing: Arc::clone(&self.writing),
        };
        let job = WriteJob {
            folder: self.folder.clone(),
            build: self.build.clone(),
            frozen: self.ring.freeze(Mono::now()),
            snapshot: Arc::clone(snapshot),
            faults,
        };
        let trim_heap = self.trim_heap;
        let started = host::thread::spawn("recording", 512, move || {
            // The closure must capture the whole value, because capturing only the outcome would copy it.
            let mut end = end;
            end.outcome = job.run();
            trim_heap();
        });
        match started {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => {
                tracing::warn!(%error, "failed to start the recording thread; a fault was not recorded")
            }
        }
    }

    fn count(&self, outcome: RecordingOutcome, count: u64) {
        self.inbox.event(LedgerEvent::Recording(outcome, count));
    }
}

/// Counts a recording and allows the next one, however the thread ends.
struct WriteEnd {
    outcome: RecordingOutcome,
    keys: Vec<FaultKey>,
    unwritten: Arc<Mutex<Vec<FaultKey>>>,
    inbox: Arc<Inbox>,
    writing: Arc<AtomicBool>,
}

impl Drop for WriteEnd {
    fn drop(&mut self) {
        if self.outcome == RecordingOutcome::Failed {
            lock(&self.unwritten).append(&mut self.keys);
        }
        self.inbox.event(LedgerEvent::Recording(self.outcome, 1));
        self.writing.store(false, Relaxed);
    }
}

/// Returns the time this many seconds after 1970; `None` beyond the year 9999, the limit of RFC 3339.
pub(crate) fn time_of(unix_seconds: f64) -> Option<SystemTime> {
    const END: Duration = Duration::from_secs(253_402_300_799);
    let since = Duration::try_from_secs_f64(unix_seconds.max(0.0)).ok().filter(|since| *since < END)?;
    UNIX_EPOCH.checked_add(since)
}

/// Data of one recording.
struct WriteJob {
    folder: RecordingFolder,
    build: BuildInfo,
    frozen: Frozen,
    snapshot: Arc<Snapshot>,
    faults: Vec<RecordedFault>,
}

impl WriteJob {
    fn run(self) -> RecordingOutcome {
        match self.folder.store(&self.what(), |file| self.encode(file)) {
            Ok(path) => {
                let faults = self.faults.len();
                tracing::info!(path = %path.display(), faults, "recorded the minutes before a fault");
                RecordingOutcome::Written
            }
            Err(error) => {
                // The log suppresses repeated warnings for an hour.
                let dir = self.folder.dir().display();
                tracing::warn!(%dir, %error, "failed to write a recording; a fault was not recorded");
                RecordingOutcome::Failed
            }
        }
    }

    fn encode(&self, out: impl Write) -> io::Result<()> {
        let written = Written {
            monotonic_seconds: self.snapshot.taken.0 as f64 * 1e-9,
            unix_seconds: self.snapshot.unix_seconds,
        };
        let about = (self.build.version.as_str(), self.build.revision.as_str(), &*node_name());
        let header = Header::new(about, written, self.faults.clone(), &self.frozen);
        let documents = DOCUMENTS.iter().map(|(name, format)| (*name, format.encode(&self.snapshot)));
        file::encode(&header, &self.frozen, documents, out)
    }

    /// Returns the time and the first fault for the file name, such as `20261123T101500Z-gpu3-no-driver` in
    /// `recording-20261123T101500Z-gpu3-no-driver.json.gz`.
    fn what(&self) -> String {
        let time = time_of(self.snapshot.unix_seconds).map(humantime::format_rfc3339_seconds);
        let time = time.map_or("-".to_owned(), |time| time.to_string().replace(['-', ':'], ""));
        let fault = self.faults.first();
        let gpu = fault.and_then(|fault| fault.gpu).map_or("node".to_owned(), |gpu| format!("gpu{gpu}"));
        format!("{time}-{gpu}-{}", fault.map_or_else(|| "fault".to_owned(), |fault| kebab_case(&fault.fault)))
    }
}

/// Converts the name of a condition to words: `NoDriver` to `no-driver`.
fn kebab_case(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push('-');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_counts_as_failed_and_lets_the_next_one_begin() {
        let (inbox, writing, unwritten) =
            (Arc::new(Inbox::default()), Arc::new(AtomicBool::new(true)), Arc::default());
        let end = WriteEnd {
            outcome: RecordingOutcome::Failed,
            keys: vec![("GPU-3".into(), "Lost".into(), None)],
            unwritten: Arc::clone(&unwritten),
            inbox: Arc::clone(&inbox),
            writing: Arc::clone(&writing),
        };
        let thread = host::thread::spawn("test", 256, move || {
            let _end = end;
            panic!("on purpose");
        })
        .unwrap();
        assert!(thread.join().is_err());
        assert!(!writing.load(Relaxed) && lock(&unwritten).len() == 1);
        let events = inbox.wait_until(Mono(0)).unwrap().events;
        assert_eq!(events, [LedgerEvent::Recording(RecordingOutcome::Failed, 1)]);
    }

    #[test]
    fn file_names_have_the_words_of_a_condition() {
        assert_eq!(["NoDriver", "Lost", "xid"].map(kebab_case), ["no-driver", "lost", "xid"]);
    }

    #[test]
    fn a_time_that_no_calendar_has_is_none() {
        for absurd in [f64::INFINITY, 1e300, 253_402_300_800.0] {
            assert_eq!(time_of(absurd), None, "{absurd}");
        }
        assert_eq!(time_of(f64::NAN), Some(UNIX_EPOCH));
        let last = time_of(253_402_300_798.5).map(humantime::format_rfc3339_seconds).unwrap();
        assert_eq!(last.to_string(), "9999-12-31T23:59:58Z");
    }
}

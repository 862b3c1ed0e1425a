//! The flight recorder in the daemon: what passes goes into the ring, and after a fault a short-lived thread writes the
//! file. A disk that hangs holds up that thread alone; until it ends no other one begins.

pub mod folder;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use exposition::format::ResponseFormat;
use exposition::node_name;
use folder::RecordingFolder;
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::{BuildInfo, RecordingOutcome};
use model::clock::Mono;
use model::sample::Batch;
use model::snapshot::Snapshot;
use recorder::file::{self, Header, Written};
use recorder::ring::{Frozen, Ring};
use recorder::trigger::{RecordedFault, RecordingPace, Trigger};
use settings::Config;

/// The documents of a recording, as `/api/v1` serves them.
const DOCUMENTS: [(&str, ResponseFormat); 4] = [
    ("events", ResponseFormat::Events),
    ("owners", ResponseFormat::Owners),
    ("topology", ResponseFormat::Topology),
    ("snapshot", ResponseFormat::Json),
];

/// The recorder.
#[derive(Debug)]
pub struct FlightRecorder {
    ring: Ring,
    trigger: Trigger,
    folder: RecordingFolder,
    build: BuildInfo,
    inbox: Arc<Inbox>,
    writing: Arc<AtomicBool>,
}

impl FlightRecorder {
    /// The recorder that the settings ask for.
    pub fn new(config: &Config, build: BuildInfo, inbox: Arc<Inbox>) -> Option<FlightRecorder> {
        let settings = &config.recorder;
        settings.enabled.then(|| FlightRecorder {
            ring: Ring::new(settings.duration),
            trigger: Trigger::new(RecordingPace { after: settings.after, pause: settings.pause }),
            folder: RecordingFolder::of(config),
            build,
            inbox,
            writing: Arc::default(),
        })
    }

    /// Takes a batch on its way to the ledger.
    pub fn pass(&mut self, batch: &Batch) {
        self.ring.take(batch);
    }

    /// Looks at a new snapshot, and starts to write when a recording is due.
    pub fn look(&mut self, snapshot: &Arc<Snapshot>) {
        let due = self.trigger.look(snapshot);
        if due.suppressed > 0 {
            self.count(RecordingOutcome::Suppressed, due.suppressed);
        }
        let Some(faults) = due.faults else { return };
        if self.writing.swap(true, Relaxed) {
            self.count(RecordingOutcome::Suppressed, faults.len() as u64);
            return;
        }
        let job = WriteJob {
            folder: self.folder.clone(),
            build: self.build.clone(),
            frozen: self.ring.freeze(Mono::now()),
            snapshot: Arc::clone(snapshot),
            faults,
        };
        let (inbox, writing) = (Arc::clone(&self.inbox), Arc::clone(&self.writing));
        let started = host::thread::spawn("recording", 512, move || {
            let outcome = job.run();
            inbox.event(LedgerEvent::Recording(outcome, 1));
            writing.store(false, Relaxed);
        });
        if let Err(error) = started {
            self.writing.store(false, Relaxed);
            tracing::warn!(%error, "no thread: a fault was not recorded");
            self.count(RecordingOutcome::Failed, 1);
        }
    }

    fn count(&self, outcome: RecordingOutcome, count: u64) {
        self.inbox.event(LedgerEvent::Recording(outcome, count));
    }
}

/// One recording to write.
struct WriteJob {
    folder: RecordingFolder,
    build: BuildInfo,
    frozen: Frozen,
    snapshot: Arc<Snapshot>,
    faults: Vec<RecordedFault>,
}

impl WriteJob {
    fn run(self) -> RecordingOutcome {
        let name = self.name();
        let stored = self.encode().and_then(|bytes| self.folder.store(&name, &bytes));
        match stored {
            Ok(path) => {
                let faults = self.faults.len();
                tracing::info!(path = %path.display(), faults, "the minutes before a fault are recorded");
                RecordingOutcome::Written
            }
            Err(error) => {
                // The log has the same warning once an hour.
                let dir = self.folder.dir().display();
                tracing::warn!(%dir, %error, "a fault was not recorded");
                RecordingOutcome::Failed
            }
        }
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let written = Written {
            monotonic_seconds: self.snapshot.taken.0 as f64 * 1e-9,
            unix_seconds: self.snapshot.unix_seconds,
        };
        let about = (self.build.version.as_str(), self.build.revision.as_str(), &*node_name());
        let header = Header::new(about, written, self.faults.clone(), &self.frozen);
        let documents = DOCUMENTS.map(|(name, format)| (name, format.encode(&self.snapshot)));
        file::encode(&header, &self.frozen, &documents)
    }

    /// Its time, and the first fault: as `recording-20261123T101500Z-gpu3-Lost.json.gz`.
    fn name(&self) -> String {
        let seconds = std::time::Duration::from_secs_f64(self.snapshot.unix_seconds.max(0.0));
        let time = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + seconds);
        let time = time.to_string().replace(['-', ':'], "");
        let fault = self.faults.first();
        let gpu = fault.and_then(|fault| fault.gpu).map_or("node".to_owned(), |gpu| format!("gpu{gpu}"));
        folder::name_of(&format!("{time}-{gpu}-{}", fault.map_or("fault", |fault| &fault.fault)))
    }
}

//! The published snapshot: the ledger stores, readers load without waiting.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use model::snapshot::Snapshot;
use tokio::sync::watch;

#[derive(Debug)]
pub struct SnapshotCell {
    current: ArcSwap<Snapshot>,
    sequence: Mutex<u64>,
    changed: Condvar,
    events: watch::Sender<u64>,
}

impl Default for SnapshotCell {
    fn default() -> SnapshotCell {
        SnapshotCell {
            current: ArcSwap::from_pointee(Snapshot::default()),
            sequence: Mutex::new(0),
            changed: Condvar::new(),
            events: watch::Sender::new(0),
        }
    }
}

impl SnapshotCell {
    /// Stores a new snapshot and wakes the threads in [`SnapshotCell::wait_for_newer`].
    pub fn publish(&self, snapshot: Snapshot) {
        let (sequence, revision) = (snapshot.sequence, snapshot.events_revision());
        self.current.store(Arc::new(snapshot));
        self.events.send_if_modified(|newest| std::mem::replace(newest, revision) != revision);
        *self.sequence.lock().unwrap_or_else(PoisonError::into_inner) = sequence;
        self.changed.notify_all();
    }

    /// Changes with each snapshot that has new or changed events, to their newest revision.
    pub fn events(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// The newest snapshot. Never blocks.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Blocks until a snapshot newer than `sequence` is there, or the time is over, and returns the newest one. Not
    /// for threads that serve requests.
    pub fn wait_for_newer(&self, sequence: u64, at_most: Duration) -> Arc<Snapshot> {
        let guard = self.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(guard, at_most, |now| *now <= sequence);
        drop(waited);
        self.current()
    }
}

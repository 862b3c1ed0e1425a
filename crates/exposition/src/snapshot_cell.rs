//! The published snapshot: the ledger stores, readers load without waiting.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use model::snapshot::Snapshot;
use tokio::sync::watch;

/// Where the newest snapshot hangs: the ledger puts it up, readers look at it and never wait for the
/// ledger.
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
            current: ArcSwap::from_pointee(Snapshot::empty()),
            sequence: Mutex::new(0),
            changed: Condvar::new(),
            events: watch::Sender::new(0),
        }
    }
}

impl SnapshotCell {
    /// Puts up a new snapshot and wakes those in [`SnapshotCell::wait_for_newer`].
    pub fn publish(&self, snapshot: Snapshot) {
        let (sequence, revision) = (snapshot.sequence, snapshot.events_revision());
        self.current.store(Arc::new(snapshot));
        self.events.send_if_modified(|told| std::mem::replace(told, revision) != revision);
        *self.sequence.lock().unwrap_or_else(PoisonError::into_inner) = sequence;
        self.changed.notify_all();
    }

    /// Tells of each snapshot with new or changed events: gives their newest revision.
    pub fn events(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// The newest snapshot. Never blocks.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Blocks until a snapshot newer than `sequence` is up, or the time is over; for threads that are
    /// not in a request's way. Returns the newest one.
    pub fn wait_for_newer(&self, sequence: u64, at_most: Duration) -> Arc<Snapshot> {
        let guard = self.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(guard, at_most, |now| *now <= sequence);
        drop(waited);
        self.current()
    }
}

//! Published snapshot, which the ledger stores and all other parts read.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::snapshot::Snapshot;
use crate::sync::lock;

/// Published snapshot. The ledger stores it, and readers load it without waiting.
#[derive(Debug, Default)]
pub struct SnapshotCell {
    current: ArcSwap<Snapshot>,
    sequence: Mutex<u64>,
    changed: Condvar,
    events: watch::Sender<u64>,
}

impl SnapshotCell {
    /// Stores a new snapshot and wakes the threads in [`SnapshotCell::wait_for_newer`].
    pub fn publish(&self, snapshot: Snapshot) {
        let (sequence, revision) = (snapshot.sequence, snapshot.events_revision());
        self.current.store(Arc::new(snapshot));
        self.events.send_if_modified(|newest| std::mem::replace(newest, revision) != revision);
        *lock(&self.sequence) = sequence;
        self.changed.notify_all();
    }

    /// Returns a channel with the newest event revision, which changes with every snapshot that has new or changed
    /// events.
    pub fn events(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// Returns the newest snapshot. Never blocks.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Blocks until a snapshot newer than `sequence` is published or the time has elapsed, and returns the newest
    /// snapshot. Threads that serve requests must not call this function.
    pub fn wait_for_newer(&self, sequence: u64, at_most: Duration) -> Arc<Snapshot> {
        drop(self.changed.wait_timeout_while(lock(&self.sequence), at_most, |now| *now <= sequence));
        self.current()
    }
}

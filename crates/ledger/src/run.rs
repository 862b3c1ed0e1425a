//! Thread of the ledger. It folds pending input, and publishes at regular intervals and at once after urgent changes.

use std::time::Duration;

use super::inbox::Inbox;
use super::{Ledger, LedgerSettings};
use model::clock::{Cadence, Mono, unix_seconds};
use model::documents::ChangedDocuments;
use model::sample::Batch;
use model::snapshot::Snapshot;

/// Minimum interval between two publications.
const SHORTEST: Duration = Duration::from_millis(100);

/// Callbacks of the ledger's thread. They must not block.
pub struct Hooks {
    /// Called with every batch before it is folded.
    pub pass: Box<dyn FnMut(&Batch) + Send>,
    /// Stores a new snapshot for its readers.
    pub publish: Box<dyn FnMut(Snapshot) + Send>,
    /// Called after every publication to feed the watchdog.
    pub beat: Box<dyn FnMut() + Send>,
    /// Saves the documents that have changed.
    pub save: Box<dyn FnMut(ChangedDocuments) + Send>,
}

/// Drift of the wall clock that is ignored, in seconds.
const STILL: f64 = 1e-3;

/// Returns both clocks. The wall clock is the monotonic clock plus an offset that changes only when the wall clock
/// was set or has drifted, so the time of one visit is the same number on every page. Both clocks must be read
/// without a pause, which would count as drift.
fn clocks(kept: &mut f64) -> (Mono, f64) {
    let now = Mono::now();
    let monotonic = now.0 as f64 * 1e-9;
    let offset = unix_seconds() - monotonic;
    if (*kept - offset).abs() >= STILL {
        *kept = offset;
    }
    (now, *kept + monotonic)
}

/// Runs until the inbox is closed.
pub fn run(settings: LedgerSettings, interval: Duration, inbox: &Inbox, mut hooks: Hooks) {
    let mut ledger = Ledger::new(settings);
    // Half an interval after the samplers' normal tier, when its values have arrived.
    let mut beat = Cadence::new(interval, interval / 2);
    let mut last = Mono(0);
    let mut offset = 0.0;
    let mut urgent = true;
    loop {
        let soon = last + SHORTEST.min(interval);
        let due = if urgent { beat.next().min(soon) } else { beat.next() };
        let Some(pending) = inbox.wait_until(due) else {
            (hooks.save)(ledger.last_documents(Mono::now(), unix_seconds()));
            return;
        };
        urgent |= !pending.events.is_empty() || !pending.facts.is_empty();
        for event in pending.events {
            ledger.event(event);
        }
        for batch in pending.batches {
            (hooks.pass)(&batch);
            urgent |= ledger.fold(batch);
        }
        for (life, fact) in pending.facts {
            ledger.fact(life, fact);
        }
        ledger.lost(pending.lost);
        let (now, unix_seconds) = clocks(&mut offset);
        if beat.tick(now) || (urgent && now >= soon) {
            (hooks.publish)(ledger.publish(now, unix_seconds));
            last = now;
            urgent = false;
            (hooks.beat)();
            (hooks.save)(ledger.changed_documents(now, unix_seconds));
        }
    }
}

//! Documents of the ledger that outlast the daemon.

use model::clock::Mono;
use model::documents::ChangedDocuments;
use model::event_history::EventHistory;

use super::Ledger;

impl Ledger {
    /// Returns the documents that changed since the last call. Events and owner records are returned at most once
    /// every ten seconds.
    pub fn changed_documents(&mut self, now: Mono, unix_seconds: f64) -> ChangedDocuments {
        let events = self.faults.events.take_changed(now);
        ChangedDocuments {
            seen: self.inventory.take_changed(),
            faults: self.faults.take_changed(),
            wrong_results: self.wrong_results.take_changed(),
            history: self.history.take_changed(),
            events: events.then(|| EventHistory::newest(&self.faults.list(), unix_seconds)),
            owner_records: self.owners.take_records(now),
        }
    }

    /// Returns the documents to save when the daemon ends: the times at which the GPUs last answered, and events and
    /// owner records that are not saved yet.
    pub fn last_documents(&mut self, now: Mono, unix_seconds: f64) -> ChangedDocuments {
        let events = self.faults.events.take_last();
        ChangedDocuments {
            seen: self.inventory.take_last(),
            events: events.then(|| EventHistory::newest(&self.faults.list(), unix_seconds)),
            owner_records: self.owners.take_last_records(now),
            ..ChangedDocuments::default()
        }
    }
}

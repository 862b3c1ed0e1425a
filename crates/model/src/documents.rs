//! Documents that the ledger keeps across restarts of the daemon.

use crate::event_history::EventHistory;
use crate::owner_records::OwnerRecords;
use crate::persisted::{KnownWrongResults, NodeHistory, PersistedFaults, SeenGpus};

macro_rules! documents {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// Documents of the ledger as loaded from disk.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Documents {
            $($(#[$doc])* pub $name: $type,)*
        }

        /// Documents of the ledger that have changed and must be saved.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct ChangedDocuments {
            $(pub $name: Option<$type>,)*
        }
    };
}

documents! {
    /// GPUs seen in this boot.
    seen: SeenGpus,
    /// Faults of this driver load, and the identity of the load.
    faults: PersistedFaults,
    /// Wrong results of the canary that are not cleared.
    wrong_results: KnownWrongResults,
    /// Incidents of the GPUs and the maximum number of GPUs, across reboots.
    history: NodeHistory,
    /// Events of the last days.
    events: EventHistory,
    /// Records of owners that ended in the last days.
    owner_records: OwnerRecords,
}

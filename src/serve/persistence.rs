//! State files of the ledger: reads the documents of an earlier daemon and saves the new ones in the background.

use std::sync::Arc;

use collectors::module;
use host::Host;
use host::state::{Document, Keeper, Store, StoredState};
use ledger::inbox::{Inbox, LedgerEvent};
use model::documents::{ChangedDocuments, Documents};
use model::event_history::EventHistory;
use model::owner_records::OwnerRecords;
use model::persisted::{
    FaultBooks, Inventory, KnownWrongResults, NodeHistory, PersistedFaults, SeenGpus, SwitchFault,
};

/// Keepers of the ledger's documents. Dropping them waits until the last documents are saved or the attempt failed.
pub(crate) struct StateKeepers {
    /// ID of this boot; empty if unknown, in which case the documents of one boot have no keeper.
    boot_id: String,
    inventory: Keeper<Inventory>,
    faults: Keeper<FaultBooks>,
    wrong_results: Keeper<KnownWrongResults>,
    history: Keeper<NodeHistory>,
    events: Keeper<EventHistory>,
    owner_records: Keeper<OwnerRecords>,
}

impl StateKeepers {
    /// Reads the documents in `store` and starts their keepers. Documents of another boot, driver load or machine are
    /// ignored. A failure is logged; the document is then kept in memory only.
    pub(crate) fn open(host: &Host, store: &Store, inbox: &Arc<Inbox>) -> (Documents, StateKeepers) {
        let boot_id = host.boot_id().unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "failed to read the boot ID; the list of GPUs and their faults will not survive a restart"
            );
            String::new()
        });
        let (known, inventory) = open_of_boot::<Inventory>(&boot_id, store);
        let seen = known.filter(|known| known.boot_id == boot_id).map(|known| known.seen);
        let (known, faults_keeper) = open_of_boot::<FaultBooks>(&boot_id, store);
        let faults = faults_of_load(host, known.filter(|known| known.boot_id == boot_id));
        let (wrong_results, wrong_results_keeper) = store.open::<KnownWrongResults>();
        let wrong_results = wrong_results.unwrap_or_default();
        for wrong in &wrong_results.gpus {
            let (uuid, check) = (&wrong.uuid, &wrong.check);
            tracing::warn!(uuid, check, "a wrong result of the canary is still in force; it was not cleared");
        }
        let (history, history_keeper) = open_history(host.machine_id(), store, inbox);
        let (events, events_keeper) = store.open::<EventHistory>();
        let (owner_records, owner_records_keeper) = store.open::<OwnerRecords>();
        let documents = Documents {
            seen: seen.unwrap_or_default(),
            faults,
            wrong_results,
            history,
            events: events.unwrap_or_default(),
            owner_records: owner_records.unwrap_or_default(),
        };
        let keepers = StateKeepers {
            boot_id,
            inventory,
            faults: faults_keeper,
            wrong_results: wrong_results_keeper,
            history: history_keeper,
            events: events_keeper,
            owner_records: owner_records_keeper,
        };
        (documents, keepers)
    }

    /// Saves the documents soon, without blocking.
    pub(crate) fn save(&self, changed: ChangedDocuments) {
        let ChangedDocuments { seen, faults, wrong_results, history, events, owner_records } = changed;
        let boot_id = || self.boot_id.clone();
        save(&self.inventory, seen.map(|seen: SeenGpus| Inventory { boot_id: boot_id(), seen }));
        save(&self.faults, faults.map(|faults| FaultBooks { boot_id: boot_id(), faults }));
        save(&self.wrong_results, wrong_results);
        save(&self.history, history);
        save(&self.events, events);
        save(&self.owner_records, owner_records);
    }
}

/// Opens a document of one boot. Without a boot ID the document is kept in memory only.
fn open_of_boot<T: Document + Send + 'static>(boot_id: &str, store: &Store) -> (Option<T>, Keeper<T>) {
    if boot_id.is_empty() { Default::default() } else { store.open() }
}

fn save<T: Document>(keeper: &Keeper<T>, document: Option<T>) {
    if let Some(document) = document {
        keeper.save(document);
    }
}

/// Returns the current driver load with its faults. Faults of another load are dropped: a driver load ends them.
fn faults_of_load(host: &Host, known: Option<FaultBooks>) -> PersistedFaults {
    let load = module::look(host, None).load().map(|load| load.id.clone());
    let known = known.map(|known| known.faults).filter(|faults| faults.load == load).unwrap_or_default();
    for gpu in &known.gpus {
        tracing::warn!(
            uuid = gpu.uuid,
            "a fault from before the restart is still in force; there was no reset and no driver load since"
        );
    }
    for SwitchFault { nvswitch, code, .. } in &known.switches {
        tracing::warn!(
            nvswitch,
            code,
            "a fault from before the restart is still in force; there was no driver load since and it was not cleared"
        );
    }
    PersistedFaults { load, ..known }
}

/// Opens the history of the node. A history that cannot be read yet reaches the ledger as an event once it can be: an
/// empty one would forget a lost GPU and the number of failures of every GPU.
fn open_history(machine_id: String, store: &Store, inbox: &Arc<Inbox>) -> (NodeHistory, Keeper<NodeHistory>) {
    let late = {
        let (inbox, machine_id) = (Arc::clone(inbox), machine_id.clone());
        move |known: Option<NodeHistory>| {
            let history = history_of_machine(&machine_id, known.unwrap_or_default());
            inbox.event(LedgerEvent::History(Some(history)));
        }
    };
    let (state, keeper) = store.open_late(late);
    let known = match state {
        StoredState::Document(known) => known,
        StoredState::None => NodeHistory::default(),
        StoredState::Unread => {
            inbox.event(LedgerEvent::History(None));
            NodeHistory::default()
        }
    };
    (history_of_machine(&machine_id, known), keeper)
}

/// Returns the history for this machine. If the disk moved here from another machine, the other machine's number of GPUs
/// does not count, but its GPUs stay because they may have moved with the disk.
fn history_of_machine(machine_id: &str, known: NodeHistory) -> NodeHistory {
    let devices_highest = if known.machine_id == machine_id { known.devices_highest } else { 0 };
    NodeHistory { machine_id: machine_id.to_owned(), devices_highest, ..known }
}

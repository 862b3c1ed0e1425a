//! Publication of a snapshot: the cell that holds it and the responses encoded from it.

use std::sync::{Arc, Mutex};

use crate::drop_in;
use crate::listeners::Listening;
use dcgm::list::FieldList;
use exposition::response_cache::ResponseCache;
use model::clock::Mono;
use model::snapshot::Snapshot;
use model::snapshot_cell::SnapshotCell;
use model::sync::lock;
use settings::{Config, HideOwners};

pub(super) struct Pages {
    snapshots: Arc<SnapshotCell>,
    pub(super) whole: Arc<ResponseCache>,
    /// Responses without the names of owners, for clients that are not authenticated; `None` if such clients get the
    /// whole responses.
    pub(super) nameless: Option<Arc<ResponseCache>>,
    additions: Mutex<Additions>,
    /// Whether there is a listener for dcgm-exporter's page.
    has_dcgm_listener: bool,
}

/// Parts of a publication that come from the configuration.
struct Additions {
    node_labels: Arc<[(&'static str, String)]>,
    profiling: drop_in::Profiling,
}

impl Pages {
    pub(super) fn new(
        config: &Config,
        fields: &FieldList,
        snapshots: &Arc<SnapshotCell>,
        listening: &Listening,
    ) -> Pages {
        let has_dcgm_listener = !listening.dcgm.is_empty();
        let page = || drop_in::page(&config.dcgm, fields.clone());
        let is_nameless = config.http.hide_owners == HideOwners::Unauthenticated;
        Pages {
            snapshots: Arc::clone(snapshots),
            whole: Arc::new(ResponseCache::new(Arc::clone(snapshots), page())),
            nameless: is_nameless.then(|| Arc::new(ResponseCache::nameless(Arc::clone(snapshots), page()))),
            additions: Mutex::new(additions(config, fields, has_dcgm_listener)),
            has_dcgm_listener,
        }
    }

    fn responses(&self) -> impl Iterator<Item = &Arc<ResponseCache>> {
        [&self.whole].into_iter().chain(&self.nameless)
    }

    /// Publishes a snapshot with the labels of the node, and returns the published one.
    pub(super) fn publish(&self, mut snapshot: Snapshot) -> Arc<Snapshot> {
        let mut additions = lock(&self.additions);
        snapshot.node_labels = Arc::clone(&additions.node_labels);
        additions.profiling.check(&snapshot);
        drop(additions);
        self.snapshots.publish(snapshot);
        self.responses().for_each(|responses| responses.refresh(Mono::now()));
        self.snapshots.current()
    }

    /// Applies a new configuration from the next publication on.
    pub(super) fn configure(&self, config: &Config, fields: &FieldList) {
        *lock(&self.additions) = additions(config, fields, self.has_dcgm_listener);
        self.responses()
            .for_each(|responses| responses.set_dcgm(drop_in::page(&config.dcgm, fields.clone())));
    }
}

fn additions(config: &Config, fields: &FieldList, has_dcgm_listener: bool) -> Additions {
    let labels = [("rack", &config.node.rack), ("zone", &config.node.zone)];
    let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
    let profiling = drop_in::Profiling::new(&config.dcgm, fields, has_dcgm_listener);
    Additions { node_labels: labels.map(|(name, value)| (name, value.clone())).collect(), profiling }
}

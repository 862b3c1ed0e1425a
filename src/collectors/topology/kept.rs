//! The first topology seen on this machine, kept over restarts. Whoever changes the machine on purpose removes the
//! file.

use serde::{Deserialize, Serialize};

use super::machine_id;
use host::Host;
use host::state::{Document, Store};
use model::topology::Topology;
use settings::Config;

/// What is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// `/etc/machine-id` of the machine; empty if it has none.
    machine_id: String,
    /// As it was when it was first seen.
    topology: Topology,
}

impl Document for Kept {
    const KIND: &'static str = "topology";
    const VERSION: u32 = 1;
    const MAX_BYTES: usize = 4 << 20;
}

/// The first one seen, or the place for it.
pub(super) struct FirstSeen {
    store: Store,
    machine_id: String,
    kept: Option<Topology>,
}

impl FirstSeen {
    /// What was kept of this machine.
    pub(super) fn load(config: &Config) -> FirstSeen {
        let store = Store::new(&config.state.dir);
        let machine_id = machine_id(&Host::new(&config.host.root));
        let kept = store.load::<Kept>().unwrap_or_else(|error| {
            tracing::warn!(%error, "the topology that was seen first cannot be read");
            None
        });
        let kept = kept.filter(|kept| kept.machine_id == machine_id).map(|kept| kept.topology);
        FirstSeen { store, machine_id, kept }
    }

    /// The first one seen: this one, if there was none before, which is then kept.
    pub(super) fn or_is(&mut self, topology: &Topology) -> &Topology {
        let FirstSeen { store, machine_id, kept } = self;
        kept.get_or_insert_with(|| {
            let fresh = Kept { machine_id: machine_id.clone(), topology: topology.clone() };
            if let Err(error) = store.save(&fresh) {
                tracing::warn!(%error, "the topology that was seen first cannot be kept");
            }
            fresh.topology
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::fixtures::machine;

    fn config(dir: &std::path::Path) -> Config {
        let mut config = Config::default();
        config.state.dir = dir.join("state");
        config.host.root = dir.join("root");
        config
    }

    #[test]
    fn the_first_is_kept_for_this_machine_alone() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let (one, other) = (machine(&[("0-3", &["0-3"])]), machine(&[("0-7", &["0-7"])]));
        assert_eq!(FirstSeen::load(&config).or_is(&one), &one);
        assert_eq!(FirstSeen::load(&config).or_is(&other), &one, "after a restart");
        std::fs::create_dir_all(config.host.root.join("etc")).unwrap();
        std::fs::write(config.host.root.join("etc/machine-id"), "0123456789abcdef\n").unwrap();
        assert_eq!(FirstSeen::load(&config).or_is(&other), &other, "the disk is in another machine");
        assert_eq!(FirstSeen::load(&config).or_is(&one), &other);
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_costs_the_memory_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        std::fs::write(dir.path().join("file"), "").unwrap();
        config.state.dir = dir.path().join("file/state");
        let one = machine(&[("0-3", &["0-3"])]);
        assert_eq!(FirstSeen::load(&config).or_is(&one), &one);
    }
}

//! What the ledger knows beyond a restart of the daemon.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::catalog::Tier;
use crate::clock::Mono;
use crate::driver_module::LoadId;
use crate::event_history::EventHistory;
use crate::owner_records::OwnerRecords;

macro_rules! documents {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// Documents of the ledger that an earlier daemon left.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Documents {
            $($(#[$doc])* pub $name: $type,)*
        }

        /// Documents of the ledger that have changed and are to be saved.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct ChangedDocuments {
            $(pub $name: Option<$type>,)*
        }
    };
}

documents! {
    /// GPUs seen in this boot.
    seen: SeenGpus,
    /// Faults of this driver load, and the load.
    faults: PersistedFaults,
    /// Wrong results of the canary that are not cleared.
    wrong_results: KnownWrongResults,
    /// Incidents of the GPUs and the greatest number of GPUs, across reboots.
    history: NodeHistory,
    /// Events of the last days.
    events: EventHistory,
    /// Records of owners that ended in the last days.
    owner_records: OwnerRecords,
}

/// A list without what cannot be read: a later version may have put it there, and the rest counts.
pub fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry<T> {
        Known(T),
        Unknown(serde::de::IgnoredAny),
    }
    let entries: Vec<Entry<T>> = Deserialize::deserialize(deserializer)?;
    let known = entries.into_iter().filter_map(|entry| match entry {
        Entry::Known(value) => Some(value),
        Entry::Unknown(_) => None,
    });
    Ok(known.collect())
}

/// Which GPUs this node has had since it booted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// The boot it belongs to.
    pub boot_id: String,
    #[serde(flatten)]
    pub seen: SeenGpus,
}

/// The GPUs seen in one boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenGpus {
    /// The most at the same time.
    pub devices: usize,
    /// Each one as it was last seen.
    pub gpus: Vec<Identity>,
}

/// A GPU as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// NVML's index.
    pub index: u32,
    /// UUID.
    pub uuid: String,
    /// PCI address as `0000:06:00`; empty if not known.
    pub pci: String,
    /// When it last answered, in seconds since 1970; 0 if not known.
    #[serde(default)]
    pub last_seen: u64,
}

/// What faults say about GPUs until they are reset or the driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultBooks {
    /// The boot it belongs to.
    pub boot_id: String,
    #[serde(flatten)]
    pub faults: PersistedFaults,
}

/// The faults that outlast the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PersistedFaults {
    /// The load of the kernel module they belong to; `None` where no module was seen.
    pub load: Option<LoadId>,
    /// The GPUs that have something against them.
    #[serde(deserialize_with = "known")]
    pub gpus: Vec<FaultyGpu>,
    /// The faults of NVSwitches.
    #[serde(default, deserialize_with = "known")]
    pub switches: Vec<SwitchFault>,
}

/// A fault of an NVSwitch that a load of the driver or an operator ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchFault {
    /// Number of the switch.
    pub nvswitch: String,
    /// Code of the SXid.
    pub code: u32,
    /// Whether its line calls it fatal.
    pub fatal: bool,
}

/// A GPU with a fault that only a reset or a load of the driver ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultyGpu {
    /// UUID.
    pub uuid: String,
    /// Whether a fault came after which it needs a reset.
    pub fatal: bool,
    /// Whether there was a memory error that is known not to be contained.
    pub uncontained: bool,
    /// When a memory error came that was not contained yet.
    pub memory_error: Option<Mono>,
    /// Since when the GPU is lost, and the tier whose visit found the loss: its return is a reset.
    pub lost: Option<(Mono, Option<Tier>)>,
    /// Whether the driver asked for a reset.
    pub asked: bool,
}

/// What outlasts restarts of the exporter, loads of the driver and reboots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHistory {
    /// `/etc/machine-id` of the machine that had so many GPUs; empty if it has none.
    pub machine_id: String,
    /// The greatest number of GPUs ever listed; lower after a smaller number was declared.
    pub devices_highest: usize,
    /// The GPUs that became unhealthy at least once.
    pub gpus: Vec<GpuHistory>,
}

/// How often a GPU became unhealthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHistory {
    /// UUID.
    pub uuid: String,
    /// Number of times.
    pub unhealthy_total: u64,
    /// Whether the newest of them lasts.
    pub unhealthy: bool,
}

/// Boards on which the canary found wrong results that are not cleared. Of no boot and no load of the driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownWrongResults {
    pub gpus: Vec<WrongResult>,
}

/// A wrong result of the canary that is not cleared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrongResult {
    /// UUID of the GPU.
    pub uuid: String,
    /// Serial number of its board; empty if not known.
    pub serial: String,
    /// Check that found it.
    pub check: String,
    /// What it found.
    pub text: String,
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
}

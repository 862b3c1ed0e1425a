//! State of the ledger that is kept across restarts of the daemon.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::catalog::Tier;
use crate::clock::Mono;
use crate::driver_module::LoadId;

/// Deserializes a list without the entries that cannot be read, which a later version may have written.
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

/// GPUs that this node has had since it booted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    pub boot_id: String,
    #[serde(flatten)]
    pub seen: SeenGpus,
}

/// GPUs seen in one boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenGpus {
    /// Maximum number of GPUs at the same time.
    pub devices: usize,
    /// Last known identity of every GPU.
    pub gpus: Vec<Identity>,
}

/// Last known identity of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// NVML index of the GPU.
    pub index: u32,
    pub uuid: String,
    /// PCI address in the form `0000:06:00`; empty if unknown.
    pub pci: String,
    /// Time at which the GPU last responded, in seconds since 1970; 0 if unknown.
    #[serde(default)]
    pub last_seen: u64,
}

/// Faults of GPUs that last until a reset or a driver load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultBooks {
    pub boot_id: String,
    #[serde(flatten)]
    pub faults: PersistedFaults,
}

/// Faults that are kept across restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PersistedFaults {
    /// Load of the kernel module to which the faults belong; `None` if no module was found.
    pub load: Option<LoadId>,
    #[serde(deserialize_with = "known")]
    pub gpus: Vec<FaultyGpu>,
    #[serde(default, deserialize_with = "known")]
    pub switches: Vec<SwitchFault>,
}

/// Fault of an NVSwitch that lasts until the driver is reloaded or an operator clears the fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchFault {
    /// Number of the NVSwitch.
    pub nvswitch: String,
    /// Code of the SXid.
    pub code: u32,
    /// True if the log line calls the fault fatal.
    pub fatal: bool,
}

/// GPU with a fault that lasts until a reset or a driver load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultyGpu {
    pub uuid: String,
    /// True if a fault requires a reset.
    pub fatal: bool,
    /// True if a memory error is known to be uncontained.
    pub uncontained: bool,
    /// Time of a memory error that is not yet known to be contained.
    pub memory_error: Option<Mono>,
    /// Time at which the GPU was lost, and the tier whose visit found the loss. The return of a lost GPU counts as a
    /// reset.
    pub lost: Option<(Mono, Option<Tier>)>,
    /// True if the driver requested a reset.
    pub asked: bool,
}

/// History that is kept across restarts of the exporter, loads of the driver and reboots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHistory {
    /// `/etc/machine-id` of the machine with this number of GPUs; empty without a machine id.
    pub machine_id: String,
    /// Maximum number of GPUs ever listed, or a smaller number that was declared later.
    pub devices_highest: usize,
    /// GPUs that became unhealthy at least once.
    pub gpus: Vec<GpuHistory>,
}

/// Number of times that a GPU became unhealthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHistory {
    pub uuid: String,
    pub unhealthy_total: u64,
    /// True if the GPU is still unhealthy.
    pub unhealthy: bool,
}

/// Boards with wrong canary results that are not cleared. They are independent of boots and driver loads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownWrongResults {
    pub gpus: Vec<WrongResult>,
}

/// Wrong result of the canary that is not cleared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrongResult {
    /// UUID of the GPU.
    pub uuid: String,
    /// Serial number of the board; empty if unknown.
    pub serial: String,
    /// Check that found the wrong result.
    pub check: String,
    /// Description of the wrong result.
    pub text: String,
    /// Time of the wrong result, in seconds since 1970.
    pub unix_seconds: f64,
}

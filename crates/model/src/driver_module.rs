//! Observed state of the NVIDIA kernel module.

use serde::{Deserialize, Serialize};

/// Identity of one load of the kernel module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadId {
    /// Id of the boot in which the module was loaded; empty if unknown.
    pub boot: String,
    /// Inode of the module's directory in sysfs.
    pub inode: u64,
    /// Creation time of that directory in nanoseconds since 1970, if the file system records it (sysfs does not).
    pub made: Option<u64>,
}

/// Kernel module that is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub id: LoadId,
    /// True if the module has finished its initialization and is not being unloaded.
    pub live: bool,
    /// Version of the module; empty if unknown.
    pub version: String,
    /// Load time in seconds since 1970, if the kernel threads of the module show it.
    pub unix_seconds: Option<f64>,
}

/// State of the kernel module.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ModuleState {
    /// The state is unknown because sysfs is missing.
    #[default]
    Unknown,
    /// The module is not loaded.
    Absent,
    /// The module is loaded.
    Loaded(Load),
}

impl ModuleState {
    /// Returns the load, if the module is loaded.
    pub fn load(&self) -> Option<&Load> {
        match self {
            ModuleState::Loaded(load) => Some(load),
            ModuleState::Unknown | ModuleState::Absent => None,
        }
    }
}

//! The driver's kernel module as it was seen.

use serde::{Deserialize, Serialize};

/// One load of the kernel module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadId {
    /// The boot it belongs to; empty if not known.
    pub boot: String,
    /// Inode of the module's folder in sysfs.
    pub inode: u64,
    /// When that folder was made, in nanoseconds since 1970, on file systems that know (sysfs does not).
    pub made: Option<u64>,
}

/// The module while it is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Which load it is.
    pub id: LoadId,
    /// Whether it has come to the end of its start and is not about to go.
    pub live: bool,
    /// Its version; empty if not known.
    pub version: String,
    /// When it was loaded, in seconds since 1970, where its kernel threads show it.
    pub unix_seconds: Option<f64>,
}

/// What was seen of the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ModuleState {
    /// There is no sysfs to look at.
    #[default]
    Unknown,
    /// It is not loaded.
    Absent,
    /// It is.
    Loaded(Load),
}

impl ModuleState {
    /// The load, if it is loaded.
    pub fn load(&self) -> Option<&Load> {
        match self {
            ModuleState::Loaded(load) => Some(load),
            ModuleState::Unknown | ModuleState::Absent => None,
        }
    }
}

//! Planned work on the node: windows in time in which alerts are muted and the canary stays away.

use serde::{Deserialize, Serialize};

use crate::catalog::WindowKind;

/// One window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Its name: that of its file without `.toml`.
    pub name: String,
    /// What it mutes.
    pub kind: WindowKind,
    /// Why, in the words of who planned it.
    pub reason: String,
    /// When it begins, in seconds since 1970.
    pub start: f64,
    /// When it ends, likewise; never later than `windows.longest` after its start.
    pub end: f64,
}

impl Window {
    /// Whether it lasts at this moment.
    pub fn is_open(&self, unix_seconds: f64) -> bool {
        (self.start..self.end).contains(&unix_seconds)
    }
}

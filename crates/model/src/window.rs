//! Windows of planned work, during which alerts are muted and the canary pauses.
//!
//! Windows use the wall clock, because people plan by the wall clock. If that clock is wrong, windows open and close
//! at the wrong time, but no window is discarded.

use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::catalog::WindowKind;
use crate::catalog::schema::KnownLabel;

/// Maximum number of windows. The exporter reports and ignores further files.
pub const MAX_WINDOWS: usize = 64;
/// Time in seconds for which a window is published after its end.
pub const PUBLISHED_AFTER_END: f64 = 3600.0;

/// Window of planned work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Name of the window, which is the name of its file without `.toml`.
    pub name: String,
    /// Kind of the window, which defines what it mutes.
    pub kind: WindowKind,
    /// Reason as given by the author.
    pub reason: String,
    /// Start in seconds since 1970.
    pub start: f64,
    /// End in seconds since 1970; at most `windows.max_duration` after the start.
    pub end: f64,
    /// True if the window was shortened to `windows.max_duration`.
    pub cut: bool,
    /// Number of GPUs that the node should have from now on, if the work changes it. Only for maintenance windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_gpus: Option<u32>,
}

impl Window {
    /// Returns true if the window is open at this time.
    pub fn is_open(&self, unix_seconds: f64) -> bool {
        (self.start..self.end).contains(&unix_seconds)
    }

    /// Returns true if the window is published at this time: it is open, in the future, or ended within the last hour.
    pub fn is_published(&self, unix_seconds: f64) -> bool {
        unix_seconds < self.end + PUBLISHED_AFTER_END
    }

    /// Returns a text with the kind, the end, the name and the reason.
    pub fn describe(&self) -> String {
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{} until {} (window {}){reason}", self.kind.known(), write(self.end), self.name)
    }
}

/// Returns the text of the maintenance window that is open at this time; of several windows, the one that ends last.
pub fn maintenance(windows: &[Window], unix_seconds: f64) -> Option<String> {
    let open = windows.iter().filter(|w| w.kind == WindowKind::Maintenance && w.is_open(unix_seconds));
    open.max_by(|a, b| a.end.total_cmp(&b.end)).map(Window::describe)
}

/// Formats seconds since 1970 as RFC 3339 in UTC, with a resolution of one second.
pub fn write(unix_seconds: f64) -> String {
    // RFC 3339 does not support years after 9999.
    let since = Duration::try_from_secs_f64(unix_seconds.clamp(0.0, 253_402_300_799.0)).unwrap_or_default();
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn window(name: &str, kind: WindowKind, start: f64, end: f64) -> Window {
        Window { name: name.into(), kind, reason: "disk".into(), start, end, cut: false, expected_gpus: None }
    }

    #[test]
    fn a_window_lasts_from_its_start_to_before_its_end() {
        let w = window("w", WindowKind::Maintenance, 100.0, 200.0);
        let open: Vec<f64> = [99.9, 100.0, 199.9, 200.0].into_iter().filter(|at| w.is_open(*at)).collect();
        assert_eq!(open, [100.0, 199.9]);
        assert!(w.is_published(0.0) && w.is_published(3799.0) && !w.is_published(3800.0));
    }

    #[test]
    fn only_maintenance_that_lasts_keeps_the_canary_away() {
        let windows = [
            window("a", WindowKind::Maintenance, 100.0, 200.0),
            window("b", WindowKind::Maintenance, 150.0, 300.0),
            window("c", WindowKind::Training, 0.0, 900.0),
        ];
        let at = |at| maintenance(&windows, at);
        assert_eq!(at(50.0), None);
        assert_eq!(at(120.0).unwrap(), "maintenance until 1970-01-01T00:03:20Z (window a): disk");
        assert!(at(160.0).unwrap().contains("window b"), "the one that ends last");
        assert_eq!(at(300.0), None);
    }
}

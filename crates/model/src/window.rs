//! Windows of planned work: spans of time in which alerts are muted and the canary pauses.
//!
//! Windows are kept by the wall clock, because people plan by the wall clock. While that clock is wrong, windows open and
//! close as wrongly; no window is thrown away for it.

use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::catalog::WindowKind;
use crate::catalog::schema::KnownLabel;

/// Maximum windows; further files are reported and left out.
pub const MAX_WINDOWS: usize = 64;
/// Seconds after its end in which a window is still published.
pub const PUBLISHED_AFTER_END: f64 = 3600.0;

/// One window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Its name: that of its file without `.toml`.
    pub name: String,
    /// What it mutes.
    pub kind: WindowKind,
    /// The reason, as its author wrote it.
    pub reason: String,
    /// When it begins, in seconds since 1970.
    pub start: f64,
    /// When it ends, likewise; never later than `windows.max_duration` after its start.
    pub end: f64,
    /// Whether it was planned to last longer than `windows.max_duration`.
    pub cut: bool,
    /// GPUs that the node should have from now on, where the work changes that. Only of maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_gpus: Option<u32>,
}

impl Window {
    /// Whether it lasts at this moment.
    pub fn is_open(&self, unix_seconds: f64) -> bool {
        (self.start..self.end).contains(&unix_seconds)
    }

    /// Whether it is published at this moment: it is open, to come, or ended within the last hour.
    pub fn is_published(&self, unix_seconds: f64) -> bool {
        unix_seconds < self.end + PUBLISHED_AFTER_END
    }

    /// The end, the name and the reason, as text.
    pub fn describe(&self) -> String {
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{} until {} (window {}){reason}", self.kind.known(), write(self.end), self.name)
    }
}

/// The maintenance that lasts at this moment, as text: the window that ends last.
pub fn maintenance(windows: &[Window], unix_seconds: f64) -> Option<String> {
    let open = windows.iter().filter(|w| w.kind == WindowKind::Maintenance && w.is_open(unix_seconds));
    open.max_by(|a, b| a.end.total_cmp(&b.end)).map(Window::describe)
}

/// Seconds since 1970 as RFC 3339 in UTC, to the second.
pub fn write(unix_seconds: f64) -> String {
    // Past the year 9999 there is no such text.
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

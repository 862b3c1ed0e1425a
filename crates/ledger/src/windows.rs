//! Windows of planned work, with an event when one begins or ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::builder::Builder;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, FaultAction, Node, Severity, WindowInfo, WindowKind};
use model::snapshot::{Event, EventKind};
use model::window::Window;

/// All windows that are open, planned, or ended recently.
#[derive(Default)]
pub(crate) struct WindowState {
    /// All windows; `None` while unknown.
    all: Option<Vec<Window>>,
    /// Windows that were open at the last publication.
    open: BTreeMap<String, Window>,
}

impl WindowState {
    pub fn replace(&mut self, windows: Vec<Window>) {
        self.all = Some(windows);
    }

    /// Returns events for the windows that began or ended since the last call.
    pub fn changes(&mut self, unix_seconds: f64) -> Vec<Event> {
        let all = self.all.iter().flatten().filter(|window| window.is_open(unix_seconds));
        let open: BTreeMap<String, Window> = all.map(|w| (w.name.clone(), w.clone())).collect();
        let mut events = Vec::new();
        for gone in self.open.values().filter(|window| !open.contains_key(&window.name)) {
            // A window that was ended early ends now.
            let at = gone.end.min(unix_seconds);
            events.push(event(gone, at, "A window of planned work has ended."));
        }
        for new in open.values().filter(|window| !self.open.contains_key(&window.name)) {
            events.push(event(new, new.start, "A window of planned work has begun."));
        }
        self.open = open;
        events
    }

    pub fn publish(&self, b: &mut Builder<'_>, unix_seconds: f64) -> Arc<[Window]> {
        let Some(all) = &self.all else { return Arc::from([]) };
        let listed: Arc<[Window]> =
            all.iter().filter(|window| window.is_published(unix_seconds)).cloned().collect();
        for kind in WindowKind::ALL {
            let open = listed.iter().any(|window| window.kind == *kind && window.is_open(unix_seconds));
            b.flag(&m::gpu_window_active, &Node {}, (*kind,), open);
        }
        for window in listed.iter() {
            let entity = m::Window { window: window.name.as_str().into() };
            let info = WindowInfo { kind: window.kind.known().into(), reason: window.reason.clone() };
            b.add(&m::gpu_window_info, &entity, info, 1.0);
            b.add(&m::gpu_window_start_timestamp_seconds, &entity, (), window.start);
            b.add(&m::gpu_window_end_timestamp_seconds, &entity, (), window.end);
        }
        listed
    }
}

fn event(window: &Window, at: f64, meaning: &'static str) -> Event {
    let text = window.describe();
    Event { meaning, text, ..Event::new(EventKind::Window, at, Severity::Info, FaultAction::Ignore) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(name: &str, start: f64, end: f64) -> Window {
        let kind = WindowKind::Maintenance;
        Window { name: name.into(), kind, reason: String::new(), start, end, cut: false, expected_gpus: None }
    }

    fn said(windows: &mut WindowState, at: f64) -> Vec<(bool, f64)> {
        let events = windows.changes(at);
        events.iter().map(|event| (event.meaning.ends_with("begun."), event.unix_seconds)).collect()
    }

    #[test]
    fn beginnings_and_ends_are_listed_once() {
        let mut windows = WindowState::default();
        assert!(said(&mut windows, 0.0).is_empty());
        windows.replace(vec![window("a", 100.0, 200.0), window("b", 150.0, 250.0)]);
        assert!(said(&mut windows, 99.0).is_empty());
        assert_eq!(said(&mut windows, 101.0), [(true, 100.0)]);
        assert!(said(&mut windows, 102.0).is_empty());
        assert_eq!(said(&mut windows, 210.0), [(false, 200.0), (true, 150.0)]);
        // Ended before its time.
        windows.replace(vec![window("b", 150.0, 220.0)]);
        assert_eq!(said(&mut windows, 221.0), [(false, 221.0)]);
    }

    #[test]
    fn a_clock_that_goes_back_opens_it_again() {
        let mut windows = WindowState::default();
        windows.replace(vec![window("a", 100.0, 200.0)]);
        said(&mut windows, 150.0);
        assert_eq!(said(&mut windows, 50.0), [(false, 50.0)]);
        assert_eq!(said(&mut windows, 150.0), [(true, 100.0)]);
    }
}

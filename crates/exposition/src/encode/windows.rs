//! Windows of planned work as a JSON document, served at `/api/v1/windows`.
//!
//! ```text
//! taken_unix_seconds  when the list was made
//! windows[]           name, kind (maintenance or training), reason, start and end (RFC 3339), start_unix_seconds,
//!                     end_unix_seconds, state (open, coming or ended), cut (whether the file says longer than
//!                     windows.max_duration)
//! ```

use serde::Serialize;

use model::catalog::WindowKind;
use model::snapshot::Snapshot;
use model::window;
use model::window::Window;

#[derive(Debug, Serialize)]
struct Document<'a> {
    taken_unix_seconds: f64,
    windows: Vec<One<'a>>,
}

#[derive(Debug, Serialize)]
struct One<'a> {
    name: &'a str,
    kind: WindowKind,
    reason: &'a str,
    start: String,
    end: String,
    start_unix_seconds: f64,
    end_unix_seconds: f64,
    state: &'static str,
    cut: bool,
}

/// The windows that are open, to come, or ended within the last hour.
pub fn document(snapshot: &Snapshot) -> Result<Vec<u8>, serde_json::Error> {
    let now = snapshot.unix_seconds;
    let state = |window: &Window| match () {
        () if window.is_open(now) => "open",
        () if now < window.start => "coming",
        () => "ended",
    };
    let windows = snapshot.windows.iter().map(|window| One {
        name: &window.name,
        kind: window.kind,
        reason: &window.reason,
        start: window::write(window.start),
        end: window::write(window.end),
        start_unix_seconds: window.start,
        end_unix_seconds: window.end,
        state: state(window),
        cut: window.cut,
    });
    let mut bytes = serde_json::to_vec(&Document { taken_unix_seconds: now, windows: windows.collect() })?;
    bytes.push(b'\n');
    Ok(bytes)
}

//! Requests on the control socket that change state, and the commands that send them: `driver release|resume|status`,
//! `gpm off|on`, `canary clear` and `nvswitch clear`.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::{Request, fetch};
use canary::interlock::gpu_holder;
use collectors::nvml::switch::{DriverStatus, Holder, Switch, Use};
use host::stop::Stop;
use host::terminal::progress;
use ledger::inbox::{Inbox, LedgerEvent};
use model::canary::{CanaryEvent, Outcome};
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CanaryCheck, Gpu};
use model::clock::{Mono, unix_seconds};
use model::snapshot::Snapshot;
use model::snapshot_cell::SnapshotCell;
use model::text;

/// Maximum wait for the end of the sampler. It ends within 2 s, or is killed if it is in no driver call.
const RELEASE_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum wait until the ledger has applied a request. It is shorter than [`super::BLOCKING_TIMEOUT`].
const CLEAR_DEADLINE: Duration = Duration::from_secs(3);
/// Maximum length in characters of a reason or finding, so that it fits into a request line.
const MAX_TEXT: usize = 500;
/// Time between two checks during a wait.
const LOOK: Duration = Duration::from_millis(100);

/// Returns whether a request changes state and is therefore logged.
pub(crate) fn is_order(request: &str) -> bool {
    let words: Vec<&str> = request.split_whitespace().collect();
    !matches!(words[..], ["snapshot" | "status" | "health", ..] | [_, "status"])
}

/// Handles a request about the use of the driver and answers with the [`DriverStatus`] as JSON. Also handles the
/// messages of a manual canary: `canary has|left UUID` when it starts or stops using a GPU, and `canary wrong UUID
/// CHECK TEXT` for a wrong result. Returns `None` for other requests.
pub(crate) fn handle_request(request: &str, switch: &Switch, inbox: &Inbox) -> Option<Result<Bytes, String>> {
    let words: Vec<&str> = request.split_whitespace().collect();
    match words[..] {
        ["driver", "release"] => switch.release(Mono::now(), unix_seconds()),
        ["driver", "resume"] => switch.resume(),
        ["driver", "status"] => {}
        ["gpm", "off"] => switch.gpm(false),
        ["gpm", "on"] => switch.gpm(true),
        ["canary", word @ ("has" | "left"), uuid] => {
            // The ledger identifies the GPU by its UUID. Its work then belongs to no job.
            let gpu = Gpu { gpu: 0, uuid: uuid.into() };
            inbox.event(LedgerEvent::Canary(CanaryEvent::Peer(gpu, word == "has")));
            return Some(Ok(Bytes::new()));
        }
        ["canary", "wrong", uuid, check, ..] => {
            let Some(check) = CanaryCheck::ALL.iter().find(|known| known.known() == check) else {
                return Some(Err(format!("unknown check {check}")));
            };
            let gpu = Gpu { gpu: 0, uuid: uuid.into() };
            let text = words[4..].join(" ");
            inbox.event(LedgerEvent::Canary(CanaryEvent::WrongByHand(gpu, *check, text)));
            return Some(Ok(Bytes::new()));
        }
        _ => return None,
    }
    Some(json(&switch.status(Mono::now())))
}

/// Notifies the running daemon that a manual canary starts or stops using a GPU.
pub(crate) fn announce_manual_canary(socket: &Path, uuid: &str, has: bool) -> io::Result<()> {
    let word = if has { "has" } else { "left" };
    fetch(socket, &format!("canary {word} {uuid}")).map(drop)
}

/// Reports a wrong result of a manual canary to the running daemon.
pub(crate) fn report_wrong_result(socket: &Path, outcome: &Outcome) -> io::Result<()> {
    let Some((check, text)) = outcome.wrong_result() else { return Ok(()) };
    let (uuid, text) = (&outcome.place.gpu.uuid, one_line(text));
    fetch(socket, &format!("canary wrong {uuid} {} {text}", check.known())).map(drop)
}

/// Requests the running daemon to clear the wrong result of a GPU, given by index or UUID. Returns the text to print.
pub(crate) fn clear_wrong_result(socket: &Path, gpu: &str, reason: &str) -> io::Result<String> {
    let answer = fetch(socket, &format!("canary clear {gpu} {}", one_line(reason)))?;
    String::from_utf8(answer).map_err(io::Error::other)
}

/// Requests the running daemon to clear the faults of the NVSwitches. Returns the text to print.
pub(crate) fn clear_switch_faults(socket: &Path, reason: &str) -> io::Result<String> {
    let answer = fetch(socket, &format!("nvswitch clear {}", one_line(reason)))?;
    String::from_utf8(answer).map_err(io::Error::other)
}

/// Validates a reason: it must not be empty and must fit into a request.
pub(crate) fn is_reason(text: &str) -> Result<String, String> {
    match text.trim().chars().count() {
        0 => Err("a reason is required".to_owned()),
        1..=MAX_TEXT => Ok(text.trim().to_owned()),
        _ => Err(format!("the reason is longer than {MAX_TEXT} characters")),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_TEXT).collect()
}

/// Handles `canary clear GPU REASON` and `nvswitch clear REASON`: clears the wrong result of a GPU or the faults of the
/// NVSwitches, and waits until the change is published.
pub(crate) fn handle_clear(
    request: &Request,
    inbox: &Inbox,
    snapshots: &SnapshotCell,
) -> Result<Bytes, String> {
    let words: Vec<&str> = request.line.split_whitespace().collect();
    match words[..] {
        ["canary", "clear", _] | ["nvswitch", "clear"] => Err("a reason is required".to_owned()),
        ["canary", "clear", gpu, ref reason @ ..] => {
            clear_result(gpu, format!("{request}: {}", reason.join(" ")), inbox, snapshots)
        }
        ["nvswitch", "clear", ref reason @ ..] => {
            clear_switches(format!("{request}: {}", reason.join(" ")), inbox, snapshots)
        }
        _ => Err("use canary clear GPU REASON or nvswitch clear REASON".to_owned()),
    }
}

/// Clears the wrong result of a GPU, given by its index, or by the UUID of a board that may no longer be in this node.
fn clear_result(named: &str, text: String, inbox: &Inbox, snapshots: &SnapshotCell) -> Result<Bytes, String> {
    let snapshot = snapshots.current();
    let index = named.parse().ok();
    let mut listed = snapshot.gpus.iter().map(|view| &view.gpu);
    let gpu = listed.find(|gpu| Some(gpu.gpu) == index || *gpu.uuid == *named).cloned();
    let name = gpu.as_ref().map_or_else(|| named.to_owned(), |gpu| gpu.gpu.to_string());
    let gpu = gpu.unwrap_or(Gpu { gpu: 0, uuid: named.into() });
    let uuid = Arc::clone(&gpu.uuid);
    let is_wrong = |snapshot: &Snapshot| snapshot.canary.wrong.iter().any(|wrong| *wrong.uuid == *uuid);
    if !is_wrong(&snapshot) {
        return Err(format!("GPU {name} has no known wrong result to clear"));
    }
    inbox.event(LedgerEvent::Canary(CanaryEvent::Cleared(gpu, text)));
    match becomes(snapshot, snapshots, |snapshot| !is_wrong(snapshot)) {
        true => Ok(format!(
            "Cleared the wrong result of GPU {name}. Only another wrong result makes it unhealthy again.\n"
        )
        .into()),
        false => Err("the daemon has not cleared it yet; check gpu_healthy".to_owned()),
    }
}

fn clear_switches(text: String, inbox: &Inbox, snapshots: &SnapshotCell) -> Result<Bytes, String> {
    let snapshot = snapshots.current();
    let is_over = |snapshot: &Snapshot| snapshot.series(&m::gpu_nvswitch_fault_active).is_empty();
    // The event is sent even if no fault is visible, because the metric may be switched off.
    inbox.event(LedgerEvent::SwitchesCleared(text));
    if is_over(&snapshot) {
        return Err("no NVSwitch has a known fault to clear".to_owned());
    }
    match becomes(snapshot, snapshots, is_over) {
        true => Ok("Cleared the faults of the NVSwitches. The next SXid is a new fault.\n".into()),
        false => Err("the daemon has not cleared them yet; check gpu_nvswitch_fault_active".to_owned()),
    }
}

/// Waits until a snapshot satisfies `has`. Returns whether one did in time.
fn becomes(mut snapshot: Arc<Snapshot>, snapshots: &SnapshotCell, has: impl Fn(&Snapshot) -> bool) -> bool {
    let deadline = Mono::now() + CLEAR_DEADLINE;
    while !has(&snapshot) {
        if Mono::now() > deadline {
            return false;
        }
        snapshot = snapshots.wait_for_newer(snapshot.sequence, LOOK);
    }
    true
}

/// Encodes a response as JSON.
pub(crate) fn json(answer: &impl Serialize) -> Result<Bytes, String> {
    let mut bytes = serde_json::to_vec(answer).map_err(|error| error.to_string())?;
    bytes.push(b'\n');
    Ok(bytes.into())
}

/// Sends a request about the driver and parses the response.
pub(crate) fn ask(socket: &Path, request: &str) -> io::Result<DriverStatus> {
    Ok(serde_json::from_slice(&fetch(socket, request)?)?)
}

/// Releases the driver and waits until no process of the daemon has it open. Returns the text to print; the error names
/// the processes that still hold the driver.
pub(crate) fn release(socket: &Path, interlock: &Path) -> io::Result<String> {
    let mut status = ask(socket, "driver release")?;
    // The daemon tracks only its own canaries, and a manual one has the driver open as well.
    let mut manual = gpu_holder(interlock);
    let pause = Stop::default();
    let started = Mono::now();
    while status.driver == Use::Releasing || manual.is_some() {
        let waited = Mono::now().since(started);
        if waited > RELEASE_DEADLINE {
            break;
        }
        progress(&format!("waiting for the sampler to end: {:.0} s ", waited.as_secs_f64()));
        pause.wait_until(Mono::now() + LOOK);
        status = ask(socket, "driver status")?;
        manual = gpu_holder(interlock);
    }
    progress("");
    match status.driver {
        Use::Released if manual.is_some() => Err(io::Error::other(format!(
            "the daemon has released the driver, but {} of a canary has it open; wait until it ends, or stop \
             the running `gpu-node-exporter canary`",
            manual.unwrap_or_default()
        ))),
        Use::Released => Ok(format!("the driver is released. {RESUMES}")),
        Use::Releasing => Err(io::Error::other(format!(
            "the driver is not released yet: {}. A process in a driver call is never killed, because that \
             can wedge a GPU; it ends when its call returns or the node reboots. `gpu-node-exporter driver \
             status` shows its state, and `gpu-node-exporter driver resume` cancels the release",
            holders(&status.holders)
        ))),
        Use::InUse => Err(io::Error::other(
            "the release was cancelled, because another client resumed the use of the driver",
        )),
    }
}

const RESUMES: &str = "Nothing is measured until the kernel module has been unloaded and loaded again, or \
    until `gpu-node-exporter driver resume`.";

/// Describes the use of the driver as text.
pub(crate) fn describe(status: &DriverStatus) -> String {
    let module = match status.module_loaded {
        Some(true) => "The kernel module is loaded.",
        Some(false) => "The kernel module is not loaded.",
        None => "The state of the kernel module is unknown.",
    };
    let since = status.released_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let since = since.map(text::duration).unwrap_or_default();
    match status.driver {
        Use::InUse if status.holders.is_empty() => {
            format!("The driver is in use, but no process has it open now. {module}")
        }
        Use::InUse => format!("The driver is in use: {}. {module}", holders(&status.holders)),
        Use::Releasing => format!(
            "The release of the driver was requested {since} ago and is not complete: {}. {module}",
            holders(&status.holders)
        ),
        Use::Released => format!("The driver is released, as requested {since} ago. {module} {RESUMES}"),
    }
}

fn holders(holders: &[Holder]) -> String {
    let each: Vec<String> = holders.iter().map(Holder::to_string).collect();
    match each.is_empty() {
        true => "the process that has it open is unknown".into(),
        false => each.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectors::nvml::switch::StuckIn;

    #[test]
    fn requests_reach_the_switch_and_others_are_left_to_others() {
        let (switch, inbox) = (Switch::new(true, Duration::ZERO), Inbox::default());
        let ask = |request| -> DriverStatus {
            serde_json::from_slice(&handle_request(request, &switch, &inbox).unwrap().unwrap()).unwrap()
        };
        assert_eq!(ask("driver status").driver, Use::InUse);
        assert_eq!(ask("driver  release").driver, Use::Releasing);
        switch.take_requests(Mono::now());
        assert_eq!(ask("driver status").driver, Use::Released);
        assert_eq!(ask("driver resume").driver, Use::InUse);
        assert!(!ask("gpm off").gpm && !switch.take_requests(Mono::now()).gpm);
        assert!(ask("gpm on").gpm && switch.take_requests(Mono::now()).gpm);
        for other in ["status", "driver", "driver fly", "gpm", "gpm off now"] {
            assert!(handle_request(other, &switch, &inbox).is_none(), "{other}");
        }
    }

    #[test]
    fn what_holds_the_driver_is_named() {
        let stuck = StuckIn { call: "nvmlInit".into(), gpu: None, seconds: 61.0 };
        let status = DriverStatus {
            driver: Use::Releasing,
            released_unix_seconds: Some(1.0),
            released_seconds: Some(130.0),
            module_loaded: Some(true),
            holders: vec![Holder { pid: 5, stuck: Some(stuck) }],
            gpm: true,
        };
        let text = describe(&status);
        assert!(
            text.contains("2 min ago and is not complete: process 5 is stuck in nvmlInit for 61 s."),
            "{text}"
        );
        let free = DriverStatus { driver: Use::Released, holders: Vec::new(), module_loaded: None, ..status };
        assert!(describe(&free).contains("is released") && describe(&free).contains("is unknown"));
    }
}

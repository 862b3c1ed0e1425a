//! Requests on the local socket that change something, and the commands that make them:
//! `driver release|resume|status` and `gpm off|on`.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::fetch;
use crate::collectors::canary::state::{CanaryCell, CanaryStatus};
use crate::collectors::nvml::switch::{DriverStatus, Holder, Switch, Use};
use crate::views::canary::CanaryFacts;
use canary::interlock::gpu_holder;
use exposition::response_cache::SnapshotCell;
use host::stop::Stop;
use ledger::inbox::{Inbox, LedgerEvent};
use model::canary::CanaryEvent;
use model::catalog::Gpu;
use model::clock::{Mono, unix_seconds};
use model::text;
use settings::Config;

/// Longest wait for the end of the sampler. It ends within 2 s, or is killed if it is in no driver call.
const RELEASE_DEADLINE: Duration = Duration::from_secs(10);
/// Time between two looks while waiting.
const LOOK: Duration = Duration::from_millis(100);

/// Handles a request that changes or reads the state of the driver; `None` if it is of another kind. The
/// answer is the [`DriverStatus`] as JSON.
pub fn handle_request(request: &str, switch: &Switch) -> Option<Result<Bytes, String>> {
    let words: Vec<&str> = request.split_whitespace().collect();
    match words[..] {
        ["driver", "release"] => switch.release(Mono::now(), unix_seconds()),
        ["driver", "resume"] => switch.resume(),
        ["driver", "status"] => {}
        ["gpm", "off"] => switch.gpm(false),
        ["gpm", "on"] => switch.gpm(true),
        _ => return None,
    }
    Some(json(&switch.status(Mono::now())))
}

/// The status of the canary: `canary status`. It reads files, and so may wait for them. The answer is
/// [`crate::collectors::canary::state::CanaryStatus`] as JSON.
pub fn canary(
    config: &Config,
    canary: &CanaryCell,
    switch: &Switch,
    board: &SnapshotCell,
) -> Result<Bytes, String> {
    json(&canary.status(config, switch.is_released(), &CanaryFacts::of(&board.current())))
}

/// Whether a request is the one that [`canary`] answers.
pub fn asks_for_canary(request: &str) -> bool {
    request.split_whitespace().eq(["canary", "status"])
}

/// A manual canary announces when it has a GPU: `canary has|left UUID`; `None` if the request is of another kind. The
/// GPU's work is no job's meanwhile.
pub fn manual_canary(request: &str, inbox: &Inbox) -> Option<Result<Bytes, String>> {
    let words: Vec<&str> = request.split_whitespace().collect();
    let (uuid, has) = match words[..] {
        ["canary", "has", uuid] => (uuid, true),
        ["canary", "left", uuid] => (uuid, false),
        _ => return None,
    };
    // The ledger knows GPUs by their UUID alone.
    let gpu = Gpu { gpu: 0, uuid: uuid.into() };
    inbox.event(LedgerEvent::Canary(CanaryEvent::Peer(gpu, has)));
    Some(Ok(Bytes::new()))
}

/// Tells the running daemon that a manual canary has a GPU, or has it no longer.
pub fn announce_manual_canary(socket: &Path, uuid: &str, has: bool) -> io::Result<()> {
    let word = if has { "has" } else { "left" };
    fetch(socket, &format!("canary {word} {uuid}")).map(drop)
}

fn json(answer: &impl Serialize) -> Result<Bytes, String> {
    let mut bytes = serde_json::to_vec(answer).map_err(|error| error.to_string())?;
    bytes.push(b'\n');
    Ok(bytes.into())
}

/// The status of the running daemon's canary.
pub fn ask_canary(socket: &Path) -> io::Result<CanaryStatus> {
    Ok(serde_json::from_slice(&fetch(socket, "canary status")?)?)
}

/// Makes a request and reads the answer.
pub fn ask(socket: &Path, request: &str) -> io::Result<DriverStatus> {
    Ok(serde_json::from_slice(&fetch(socket, request)?)?)
}

/// Releases the driver and waits until no process of the daemon has it open. Gives what to say; an error
/// says what still holds it.
pub fn release(socket: &Path, interlock: &Path) -> io::Result<String> {
    let mut status = ask(socket, "driver release")?;
    // The daemon knows its own canaries; a manual one has the driver open as well.
    let mut manual = gpu_holder(interlock);
    let pause = Stop::default();
    let (started, terminal) = (Mono::now(), io::stderr().is_terminal());
    while status.driver == Use::Releasing || manual.is_some() {
        let waited = Mono::now().since(started);
        if waited > RELEASE_DEADLINE {
            break;
        }
        if terminal {
            eprint!("\rwaiting for the sampler to end: {:.0} s ", waited.as_secs_f64());
            io::stderr().flush()?;
        }
        pause.wait_until(Mono::now() + LOOK);
        status = ask(socket, "driver status")?;
        manual = gpu_holder(interlock);
    }
    if terminal {
        eprint!("\r\x1b[K");
    }
    match status.driver {
        Use::Released if manual.is_some() => Err(io::Error::other(format!(
            "the daemon has released the driver, but {} of a canary has it open; wait for its end, and look \
             for `gpu-node-exporter canary` that still runs",
            manual.unwrap_or_default()
        ))),
        Use::Released => Ok(format!("the driver is released. {RESUMES}")),
        Use::Releasing => Err(io::Error::other(format!(
            "the driver is not released yet: {}. A process in a driver call is never killed, because that \
             can wedge a GPU; it ends when its call returns, or with the node. `gpu-node-exporter driver \
             status` shows its state, `gpu-node-exporter driver resume` takes the release back",
            holders(&status.holders)
        ))),
        Use::InUse => Err(io::Error::other("another client has resumed the use of the driver")),
    }
}

const RESUMES: &str = "Nothing is measured until the kernel module was unloaded and is loaded again, or \
    `gpu-node-exporter driver resume`.";

/// The state of the driver's use, as text.
pub fn describe(status: &DriverStatus) -> String {
    let module = match status.module_loaded {
        Some(true) => "The kernel module is loaded.",
        Some(false) => "The kernel module is not loaded.",
        None => "Whether the kernel module is loaded is unknown.",
    };
    let since = status.released_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let since = since.map(text::duration).unwrap_or_default();
    match status.driver {
        Use::InUse if status.holders.is_empty() => {
            format!("The driver is to be used, but no process has it open now. {module}")
        }
        Use::InUse => format!("The driver is in use: {}. {module}", holders(&status.holders)),
        Use::Releasing => format!(
            "The driver is not released yet, asked for {since} ago: {}. {module}",
            holders(&status.holders)
        ),
        Use::Released => format!("The driver is released, asked for {since} ago. {module} {RESUMES}"),
    }
}

/// Whether the profiling counters are read, as text.
pub fn describe_gpm(status: &DriverStatus) -> &'static str {
    match status.gpm {
        true => "The profiling counters are read again, where the GPU has them.",
        false => {
            "The profiling counters are given up within a second: a profiler can have them until \
             `gpu-node-exporter gpm on`, or a restart of the daemon."
        }
    }
}

fn holders(holders: &[Holder]) -> String {
    let each: Vec<String> = holders.iter().map(Holder::to_string).collect();
    match each.is_empty() {
        true => "the daemon has not said what holds it".into(),
        false => each.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::nvml::switch::StuckIn;

    #[test]
    fn requests_reach_the_switch_and_others_are_left_to_others() {
        let switch = Switch::new(true, Duration::ZERO);
        let ask = |request| -> DriverStatus {
            serde_json::from_slice(&handle_request(request, &switch).unwrap().unwrap()).unwrap()
        };
        assert_eq!(ask("driver status").driver, Use::InUse);
        assert_eq!(ask("driver  release").driver, Use::Releasing);
        switch.take_requests();
        assert_eq!(ask("driver status").driver, Use::Released);
        assert_eq!(ask("driver resume").driver, Use::InUse);
        assert!(!ask("gpm off").gpm && !switch.take_requests().gpm);
        assert!(ask("gpm on").gpm && switch.take_requests().gpm);
        for other in ["status", "driver", "driver fly", "gpm", "gpm off now"] {
            assert!(handle_request(other, &switch).is_none(), "{other}");
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
        assert!(text.contains("2 min ago: process 5 is stuck in nvmlInit for 61 s."), "{text}");
        let free = DriverStatus { driver: Use::Released, holders: Vec::new(), module_loaded: None, ..status };
        assert!(describe(&free).contains("is released") && describe(&free).contains("is unknown"));
    }
}

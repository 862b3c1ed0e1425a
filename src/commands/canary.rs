//! `gpu-node-exporter canary`: the canary on command, for a drained node or a prolog of Slurm or Kubernetes.
//! It uses the same gate, process and judge as the daemon, asks the driver in a process of its own, and only
//! looks at what the daemon remembers.

pub mod arguments;
mod confirm;
mod devices;
mod one;
mod report;
mod table;
#[cfg(test)]
mod tests;
mod values;

use std::time::Duration;

use crate::commands::doctor::daemon::Daemon;
use canary::baseline::Memory;
use canary::gate::{self, Allows, Condition, Facts};
use canary::interlock::{self, Held};
use canary::judge;
use canary::stray::Search;
use devices::{Device, Listed};
use host::Host;
use host::state::Store;
use host::stop::Stop;
use model::catalog::{CanaryCheck, CanarySkip};
use model::clock::{Mono, unix_seconds};
use model::window;
use one::Runner;
pub use report::{Exit, Made, Report};
use settings::Config;

/// How long the interlock is waited for: a canary of the daemon's has ended by then.
const INTERLOCK: Duration = Duration::from_secs(10);
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// What was asked of the driver so long ago does not say any more that a GPU is free.
const FRESH: Duration = Duration::from_secs(10);

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Which GPUs or MIG devices: index, UUID, or `all`; empty is all.
    pub gpus: Vec<String>,
    /// Which checks; empty is what the configuration has.
    pub checks: Vec<CanaryCheck>,
    /// How many runs on each.
    pub repeat: u32,
    /// Say only what would keep a canary away.
    pub explain: bool,
    /// Run beside others too.
    pub force: bool,
}

/// Nothing could be done at all: why, in words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failed(String);

/// Tells somebody at a terminal how far it is.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// Does what is wanted.
pub fn run(config: &Config, wish: &Wish, stop: &Stop, progress: Progress<'_>) -> Result<Report, Failed> {
    progress("asking the driver");
    let mut listed = Listed::ask(config)?;
    let chosen = listed.choose(&wish.gpus)?;
    if wish.explain {
        let made = chosen.into_iter().map(|device| {
            let conditions = listed.conditions(config, &device);
            Made { place: device.place, model: device.model, conditions, run: None, outcome: None }
        });
        return Ok(Report::new(made.collect()));
    }
    let memory = remembered(config);
    let mut runner = Runner::new(config, wish, stop);
    let mut held: Option<Held> = None;
    let mut made: Vec<Made> = Vec::new();
    for device in &chosen {
        let not_run = |conditions, (reason, text)| {
            let outcome = judge::not_run(&device.place, reason, text, unix_seconds());
            Made::new(device, conditions, None, Some(outcome))
        };
        if stop.stopped() {
            made.push(not_run(Vec::new(), asked_to_end()));
            continue;
        }
        if listed.age() > FRESH {
            progress("asking the driver");
            match Listed::ask(config) {
                Ok(again) => listed = again,
                // What was found so far is told all the same: a GPU on which a run hangs may be why.
                Err(Failed(text)) => {
                    made.push(not_run(Vec::new(), (CanarySkip::Unread, text)));
                    continue;
                }
            }
        }
        let conditions = listed.conditions(config, device);
        let refused = refused(&conditions, wish.force).or_else(|| {
            progress("waiting for the interlock");
            let locked = lock(config, &mut held, stop).map_err(|text| (CanarySkip::Interlock, text));
            locked.and_then(|()| alone(config, &listed.uuids(device), &runner, stop)).err()
        });
        if let Some(why) = refused {
            made.push(not_run(conditions, why));
            continue;
        }
        let peer = listed.peer(config, device, wish.force).filter(|peer| {
            let host = Host::new(&config.host.root);
            Search::default().on(&host, listed.uuids(peer), runner.left()).is_none()
        });
        for nth in 0..wish.repeat.max(1) {
            // A stop between two runs is told like one during a run: what was asked for was not done.
            if stop.stopped() {
                made.push(not_run(conditions, asked_to_end()));
                break;
            }
            let name = format!("{}{}", device.place, of(nth, wish.repeat));
            let run = runner.run(device, peer.as_ref(), &wish.checks, &name, progress);
            made.push(Made::new(device, conditions.clone(), Some(run), None));
            if runner.is_occupied(&device.place) {
                break;
            }
        }
    }
    confirm::judge(&mut made, &memory, &chosen, &mut runner, progress);
    runner.end(progress);
    Ok(Report::new(made))
}

/// Why a run is not made after a signal to stop.
fn asked_to_end() -> (CanarySkip, String) {
    (CanarySkip::Environment, "the command was asked to end".to_owned())
}

/// Which of several runs.
fn of(nth: u32, all: u32) -> String {
    if all > 1 { format!(", run {} of {all}", nth + 1) } else { String::new() }
}

/// What keeps the canary away, if something does that force does not overcome.
fn refused(conditions: &[Condition], force: bool) -> Option<(CanarySkip, String)> {
    conditions.iter().find_map(|condition| match condition.allows {
        Allows::No(reason) if !(force && yields_to_force(reason)) => {
            Some((reason, format!("{}: {}", condition.what, condition.found)))
        }
        _ => None,
    })
}

/// Whether an operator may overrule it. Not where a run would be stuck, wedge what somebody else does to the
/// driver, or has no device.
fn yields_to_force(reason: CanarySkip) -> bool {
    use CanarySkip::*;
    match reason {
        Processes | Busy | Memory | Claimed | ComputeMode | RecentXid | Maintenance | Duty | Mps
        | PersistenceOff => true,
        Unhealthy | Interlock | Unread | Released | ChildAlive | NoInstance | NoLibrary | ForeignLibrary
        | OldDriver | NoKernels | NoMemory | NoPermission | DeviceUnavailable | NoDevice | Environment => {
            false
        }
    }
}

/// Takes the interlock, once for all runs.
fn lock(config: &Config, held: &mut Option<Held>, stop: &Stop) -> Result<(), String> {
    let deadline = Mono::now() + INTERLOCK;
    while held.is_none() {
        match interlock::take(&config.canary.lock_file) {
            Ok(lock) => *held = Some(lock),
            Err(text) if Mono::now() >= deadline || stop.stopped() => return Err(text),
            Err(_) => stop.wait_until(Mono::now() + PAUSE),
        }
    }
    Ok(())
}

/// Waits until no process of another canary is left on these GPUs. The interlock is ours: one that is about to end has
/// ended soon, and one that does not hangs.
fn alone(
    config: &Config,
    uuids: &[String],
    runner: &Runner<'_>,
    stop: &Stop,
) -> Result<(), (CanarySkip, String)> {
    let (host, search) = (Host::new(&config.host.root), Search::default());
    let deadline = Mono::now() + INTERLOCK;
    loop {
        match search.on(&host, uuids.to_vec(), runner.left()) {
            None => return Ok(()),
            Some(pid) if Mono::now() >= deadline || stop.stopped() => {
                return Err((
                    CanarySkip::ChildAlive,
                    format!("process {pid} of an earlier canary hangs on it"),
                ));
            }
            Some(_) => stop.wait_until(Mono::now() + PAUSE),
        }
    }
}

/// What the daemon remembers, if it may be read.
fn remembered(config: &Config) -> Memory {
    match Store::new(&config.state.dir).look::<Memory>() {
        Ok(memory) => memory.map(Memory::mended).unwrap_or_default(),
        Err(error) => {
            tracing::info!(%error, "what the daemon remembers cannot be read: nothing is compared with it");
            Memory::default()
        }
    }
}

/// Conditions for a run there now, by what was asked.
fn conditions(config: &Config, daemon: &Daemon, device: &Device, mut facts: Facts) -> Vec<Condition> {
    facts.no_instance = device.no_instance;
    let now = unix_seconds();
    facts.maintenance =
        window::maintenance(&crate::collectors::windows::store::WindowStore::new(config).list(now).0, now);
    if facts.state.is_none() && daemon.canary_stuck_on(&device.place.gpu.uuid) {
        facts.state = Some((CanarySkip::ChildAlive, "a canary of the daemon's hangs on it".into()));
    }
    gate::conditions(&facts, Duration::ZERO)
}

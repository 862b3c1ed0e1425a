//! `gpu-node-exporter canary`: the canary on command, for a drained node or a prolog of Slurm or Kubernetes.
//! It uses the same gate, process and judge as the daemon, asks the driver in a process of its own, and only
//! looks at what the daemon remembers.

pub mod arguments;
mod confirm;
mod devices;
mod report;
mod runs;
pub mod table;
#[cfg(test)]
mod tests;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use crate::commands::doctor::daemon::Daemon;
use canary::baseline::BaselineStore;
use canary::gate::{self, Allows, Condition, GateFacts};
use canary::interlock::{self, HeldLock};
use canary::judge;
use devices::{DeviceList, ListedDevice};
use host::state::Store;
use host::stop::Stop;
use model::catalog::{CanaryCheck, CanarySkip};
use model::clock::{Mono, unix_seconds};
use model::window;
pub use report::{Exit, Report, RunRecord};
use runs::Runner;
use settings::Config;

/// How long the interlock is waited for: a canary of the daemon's has ended by then.
const INTERLOCK: Duration = Duration::from_secs(10);
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// What was asked of the driver so long ago does not say any more that a GPU is free.
const FRESH: Duration = Duration::from_secs(10);

/// The options of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOptions {
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

/// Why nothing could be done at all.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CanaryFailed(String);

/// Shows the progress at a terminal.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

pub fn run(
    config: &Config,
    options: &RunOptions,
    stop: &Stop,
    progress: Progress<'_>,
) -> Result<Report, CanaryFailed> {
    progress("asking the driver");
    let mut listed = DeviceList::ask(config)?;
    let chosen = listed.choose(&options.gpus)?;
    if options.explain {
        let made = chosen.into_iter().map(|device| {
            let conditions = listed.conditions(config, &device);
            RunRecord { place: device.place, model: device.model, conditions, run: None, outcome: None }
        });
        return Ok(Report::new(made.collect()));
    }
    let memory = remembered(config);
    let mut runner = Runner::new(config, options, stop);
    let mut held: Option<HeldLock> = None;
    let mut made: Vec<RunRecord> = Vec::new();
    for device in &chosen {
        let not_run = |conditions, (reason, text)| {
            let outcome = judge::not_run(&device.place, reason, text, unix_seconds());
            RunRecord::new(device, conditions, None, Some(outcome))
        };
        if stop.stopped() {
            made.push(not_run(Vec::new(), asked_to_end()));
            continue;
        }
        if listed.age() > FRESH {
            progress("asking the driver");
            match DeviceList::ask(config) {
                Ok(again) => listed = again,
                // Earlier runs are reported all the same: a GPU on which a run hangs may be why.
                Err(CanaryFailed(text)) => {
                    made.push(not_run(Vec::new(), (CanarySkip::Unread, text)));
                    continue;
                }
            }
        }
        let conditions = listed.conditions(config, device);
        let refused = refused(&conditions, options.force).or_else(|| {
            progress("waiting for the interlock");
            let locked = lock(config, &mut held, stop).map_err(|text| (CanarySkip::Interlock, text));
            locked.and_then(|()| alone(config, device, &runner, stop)).err()
        });
        if let Some(why) = refused {
            made.push(not_run(conditions, why));
            continue;
        }
        let peer = listed.peer(config, device, options.force);
        let peer = peer.filter(|peer| interlock::free(&gpu_lock(config, peer)).is_ok());
        for nth in 0..options.repeat.max(1) {
            // A stop between two runs is reported like one during a run: the request was not met.
            if stop.stopped() {
                made.push(not_run(conditions, asked_to_end()));
                break;
            }
            let name = format!("{}{}", device.place, of(nth, options.repeat));
            let run = runner.run(device, peer.as_ref(), &options.checks, &name, progress);
            made.push(RunRecord::new(device, conditions.clone(), Some(run), None));
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

/// Whether an operator may overrule it. Not where a run would be stuck, wedge another user's work on the driver, or
/// has no device.
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
fn lock(config: &Config, held: &mut Option<HeldLock>, stop: &Stop) -> Result<(), String> {
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

/// Waits until no process of another canary is left on the GPU. The interlock is ours: a process that is about to end
/// has ended soon, and one that does not hangs.
fn alone(
    config: &Config,
    device: &ListedDevice,
    runner: &Runner<'_>,
    stop: &Stop,
) -> Result<(), (CanarySkip, String)> {
    let deadline = Mono::now() + INTERLOCK;
    let lock = gpu_lock(config, device);
    while !runner.is_occupied(&device.place) {
        match interlock::free(&lock) {
            Ok(()) => break,
            Err(text) if Mono::now() >= deadline || stop.stopped() => {
                return Err((CanarySkip::ChildAlive, format!("an earlier canary hangs on it: {text}")));
            }
            Err(_) => stop.wait_until(Mono::now() + PAUSE),
        }
    }
    Ok(())
}

fn gpu_lock(config: &Config, device: &ListedDevice) -> PathBuf {
    interlock::gpu_lock(&config.canary.lock_file, &device.place.gpu.uuid)
}

/// What the daemon remembers, if it may be read.
fn remembered(config: &Config) -> BaselineStore {
    match Store::new(&config.state.dir).look::<BaselineStore>() {
        Ok(memory) => memory.map(BaselineStore::sanitized).unwrap_or_default(),
        Err(error) => {
            tracing::info!(%error, "what the daemon remembers cannot be read: nothing is compared with it");
            BaselineStore::default()
        }
    }
}

/// Conditions for a run there now, by what was asked.
fn conditions(
    config: &Config,
    daemon: &Daemon,
    device: &ListedDevice,
    mut facts: GateFacts,
) -> Vec<Condition> {
    facts.no_instance = device.no_instance;
    let now = unix_seconds();
    facts.maintenance =
        window::maintenance(&crate::collectors::windows::store::WindowStore::new(config).list(now).0, now);
    if facts.state.is_none() && daemon.canary_stuck_on(&device.place.gpu.uuid) {
        facts.state = Some((CanarySkip::ChildAlive, "a canary of the daemon's hangs on it".into()));
    }
    gate::conditions(&facts, Duration::ZERO)
}

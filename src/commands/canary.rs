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

use std::time::Duration;

use arguments::Arguments;
use canary::baseline::BaselineStore;
use canary::gate::{Allows, RunCondition};
use canary::interlock::{self, HeldLock};
use canary::judge;
use devices::{DeviceList, ListedDevice};
use host::state::Store;
use host::stop::Stop;
use host::terminal::progress;
use model::catalog::CanarySkip;
use model::clock::{Mono, unix_seconds};
use model::persisted::KnownWrongResults;
pub use report::{Exit, Report, RunRecord};
use runs::Runner;
use settings::Config;

/// How long a lock is waited for: a canary of the daemon's has ended by then.
const INTERLOCK: Duration = Duration::from_secs(10);
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// What was asked of the driver so long ago does not say any more that a GPU is free.
const FRESH: Duration = Duration::from_secs(10);

/// Makes all runs. An error says why nothing could be done at all.
pub fn run(config: &Config, arguments: &Arguments, stop: &Stop) -> Result<Report, String> {
    progress("asking the driver");
    let mut listed = DeviceList::ask(config)?;
    let chosen = listed.choose(&arguments.gpu)?;
    if arguments.explain {
        let explain = |device| RunRecord::new(device, listed.conditions(config, device), None, None);
        return Ok(Report::new(chosen.iter().map(explain).collect()));
    }
    let (memory, checks) = (remembered(config), arguments.checks());
    let mut runner = Runner::new(config, arguments.force, stop);
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
        if Mono::now().since(listed.at) > FRESH {
            progress("asking the driver");
            match DeviceList::ask(config) {
                Ok(again) => listed = again,
                // Earlier runs are reported all the same: a GPU on which a run hangs may be why.
                Err(text) => {
                    made.push(not_run(Vec::new(), (CanarySkip::Unread, text)));
                    continue;
                }
            }
        }
        let conditions = listed.conditions(config, device);
        let gpu_is_free = |device: &ListedDevice| {
            interlock::free(&host::flock::gpu_lock(&config.canary.lock_file, &device.place.gpu.uuid))
        };
        let refused = refused(&conditions, arguments.force).or_else(|| {
            progress("waiting for the interlock");
            if held.is_none() {
                match wait_for(stop, || interlock::acquire(&config.canary.lock_file)) {
                    Ok(lock) => held = Some(lock),
                    Err(text) => return Some((CanarySkip::Interlock, text)),
                }
            }
            // The interlock is ours: another canary's process that is about to end has ended soon, and one that does
            // not hangs.
            if runner.is_occupied(&device.place) {
                return None;
            }
            let hangs = wait_for(stop, || gpu_is_free(device)).err()?;
            Some((CanarySkip::ChildAlive, format!("an earlier canary hangs on it: {hangs}")))
        });
        if let Some(why) = refused {
            made.push(not_run(conditions, why));
            continue;
        }
        let peer = listed.peer(config, device, arguments.force).filter(|peer| gpu_is_free(peer).is_ok());
        for nth in 1..=arguments.repeat {
            // A stop between two runs is reported like one during a run: the request was not met.
            if stop.stopped() {
                made.push(not_run(conditions, asked_to_end()));
                break;
            }
            let name = match arguments.repeat {
                1 => device.place.to_string(),
                all => format!("{}, run {nth} of {all}", device.place),
            };
            let run = runner.run(device, peer.as_ref(), &checks, &name);
            made.push(RunRecord::new(device, conditions.clone(), Some(run), None));
            if runner.is_occupied(&device.place) {
                break;
            }
        }
    }
    confirm::judge(&mut made, &memory, &chosen, &mut runner);
    runner.report_wrong_results(made.iter().filter_map(|made| made.outcome.as_ref()));
    let wrong = kept_wrong_results(config);
    made.iter_mut().for_each(|made| made.hold(&wrong));
    runner.end();
    let report = Report::new(made);
    Ok(if arguments.strict { report.strict() } else { report })
}

/// Why a run is not made after a signal to stop.
fn asked_to_end() -> (CanarySkip, String) {
    (CanarySkip::Environment, "the command was asked to end".to_owned())
}

/// What keeps the canary away, if something does that force does not overcome.
fn refused(conditions: &[RunCondition], force: bool) -> Option<(CanarySkip, String)> {
    conditions.iter().find_map(|condition| match condition.allows {
        Allows::No(reason) if !(force && reason.yields_to_force()) => {
            Some((reason, format!("{}: {}", condition.what, condition.found)))
        }
        _ => None,
    })
}

/// Tries until it goes well, for so long as a canary of the daemon's may take to end.
fn wait_for<T>(stop: &Stop, attempt: impl Fn() -> Result<T, String>) -> Result<T, String> {
    let deadline = Mono::now() + INTERLOCK;
    loop {
        match attempt() {
            Err(_) if Mono::now() < deadline && !stop.stopped() => stop.wait_until(Mono::now() + PAUSE),
            done => return done,
        }
    }
}

/// The wrong results that are not cleared, if they may be read.
fn kept_wrong_results(config: &Config) -> KnownWrongResults {
    Store::new(&config.state.dir).look::<KnownWrongResults>().ok().flatten().unwrap_or_default()
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

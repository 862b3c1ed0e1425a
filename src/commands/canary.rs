//! `gpu-node-exporter canary`: runs the canary on demand, on a drained node or in a prolog of Slurm or
//! Kubernetes. Uses the same gate, process and judge as the daemon, queries the driver in a separate process,
//! and only reads the daemon's state.

pub(super) mod arguments;
mod confirm;
mod devices;
mod report;
mod runs;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use super::{CommandResult, Failure, Output, checked_config, json, with_socket};
use crate::control::orders;
use crate::{lifecycle, log};
use arguments::{CanaryArguments, CanaryCommand, Format};
use canary::baseline::BaselineStore;
use canary::gate::{Allows, RunCondition};
use canary::interlock::{self, HeldLock};
use canary::judge;
use devices::{DeviceList, ListedDevice, choose};
use host::state::Store;
use host::stop::Stop;
use host::terminal::{progress, stdout_has_colours};
use model::catalog::{CanaryCheck, CanarySkip};
use model::clock::{Mono, unix_seconds};
use model::persisted::KnownWrongResults;
use report::{Exit, Report, RunRecord};
use runs::Runner;
use settings::{Config, Overrides};

/// Timeout for a lock. A canary of the daemon has ended by then.
const INTERLOCK: Duration = Duration::from_secs(10);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum age of the driver's answers. Older ones do not prove that a GPU is free.
const FRESH: Duration = Duration::from_secs(10);

pub fn run(overrides: &Overrides, arguments: &CanaryArguments) -> CommandResult {
    if let Some(CanaryCommand::Clear { gpu, reason }) = &arguments.command {
        return with_socket(overrides, |socket, _| orders::clear_wrong_result(socket, gpu, reason));
    }
    let config = checked_config(overrides)?.config;
    log::to_stderr(tracing::Level::WARN);
    let could_not_run = |error| Failure::new(Exit::CouldNotRun.code(), error);
    let report = test_gpus(&config, arguments).map_err(could_not_run)?;
    let text = match arguments.format {
        Format::Json => json(&report).map_err(could_not_run)?,
        Format::Table => table::text(&report, stdout_has_colours()),
    };
    Ok(Output { text, code: report.result.code() })
}

/// Runs the canary on the chosen GPUs. Returns an error if the driver does not list them.
fn test_gpus(config: &Config, arguments: &CanaryArguments) -> Result<Report, String> {
    let stop = Arc::new(Stop::default());
    lifecycle::stop_at_signals(Arc::clone(&stop)).map_err(|error| error.to_string())?;
    progress("querying the driver");
    let listed = DeviceList::query(config)?;
    let chosen = choose(&listed.devices, &arguments.gpu)?;
    if arguments.explain {
        let explain = |device| RunRecord::new(device, listed.conditions(config, device), None, None);
        return Ok(Report::new(chosen.iter().map(explain).collect()));
    }
    let mut session = CanarySession {
        config,
        arguments,
        stop: &stop,
        listed,
        checks: arguments.checks(),
        runner: Runner::new(config, arguments.force, &stop),
        lock: None,
        records: Vec::new(),
    };
    let baselines = baselines(config);
    chosen.iter().for_each(|device| session.test(device));
    let CanarySession { mut runner, mut records, lock, .. } = session;
    confirm::judge(&mut records, &baselines, &chosen, &mut runner);
    drop(lock);
    runner.report_wrong_results(records.iter().filter_map(|record| record.outcome.as_ref()));
    let wrong = kept_wrong_results(config);
    records.iter_mut().for_each(|record| record.keep_wrong_result(&wrong));
    runner.end();
    let report = Report::new(records);
    Ok(if arguments.strict { report.strict() } else { report })
}

/// Runs of one command.
struct CanarySession<'a> {
    config: &'a Config,
    arguments: &'a CanaryArguments,
    stop: &'a Stop,
    listed: DeviceList,
    checks: Vec<CanaryCheck>,
    runner: Runner<'a>,
    /// Lock that keeps other canaries from running, from the first run on.
    lock: Option<HeldLock>,
    records: Vec<RunRecord>,
}

impl CanarySession<'_> {
    /// Makes all runs on a device, or records why it makes none.
    fn test(&mut self, device: &ListedDevice) {
        if self.stop.stopped() {
            return self.skip(device, Vec::new(), asked_to_end());
        }
        // Earlier runs are still reported. A GPU on which a run hangs may be the cause.
        if let Err(text) = self.refresh() {
            return self.skip(device, Vec::new(), (CanarySkip::Unread, text));
        }
        let conditions = self.listed.conditions(self.config, device);
        if let Some(reason) = self.refusal(device, &conditions) {
            return self.skip(device, conditions, reason);
        }
        let peer = self.listed.peer(self.config, device, self.arguments.force);
        let peer = peer.filter(|peer| self.check_free(peer).is_ok());
        for nth in 1..=self.arguments.repeat {
            // A stop between two runs is reported like a stop during a run, because runs are missing.
            if self.stop.stopped() {
                return self.skip(device, conditions, asked_to_end());
            }
            let name = match self.arguments.repeat {
                1 => device.place.to_string(),
                all => format!("{}, run {nth} of {all}", device.place),
            };
            let run = self.runner.run(device, peer.as_ref(), &self.checks, &name);
            self.records.push(RunRecord::new(device, conditions.clone(), Some(run), None));
            if self.runner.is_occupied(&device.place) {
                return;
            }
        }
    }

    fn skip(
        &mut self,
        device: &ListedDevice,
        conditions: Vec<RunCondition>,
        (skip, text): (CanarySkip, String),
    ) {
        let outcome = judge::not_run(&device.place, skip, text, unix_seconds());
        self.records.push(RunRecord::new(device, conditions, None, Some(outcome)));
    }

    /// Queries the driver again if the last answers are too old.
    fn refresh(&mut self) -> Result<(), String> {
        if Mono::now().since(self.listed.at) > FRESH {
            progress("querying the driver");
            self.listed = DeviceList::query(self.config)?;
        }
        Ok(())
    }

    /// Returns the reason not to run on a device, if there is one. Acquires the lock at the first run.
    fn refusal(
        &mut self,
        device: &ListedDevice,
        conditions: &[RunCondition],
    ) -> Option<(CanarySkip, String)> {
        if let Some(reason) = refused(conditions, self.arguments.force) {
            return Some(reason);
        }
        progress("waiting for the interlock");
        if self.lock.is_none() {
            match wait_for(self.stop, || interlock::acquire(&self.config.canary.lock_file)) {
                Ok(lock) => self.lock = Some(lock),
                Err(text) => return Some((CanarySkip::Interlock, text)),
            }
        }
        // With the lock acquired, the process of another canary exits soon or hangs.
        if self.runner.is_occupied(&device.place) {
            return None;
        }
        let hangs = wait_for(self.stop, || self.check_free(device)).err()?;
        Some((CanarySkip::ChildAlive, format!("an earlier canary hangs on this GPU: {hangs}")))
    }

    /// Returns an error if the process of a canary uses the GPU.
    fn check_free(&self, device: &ListedDevice) -> Result<(), String> {
        interlock::free(&host::flock::gpu_lock(&self.config.canary.lock_file, &device.place.gpu.uuid))
    }
}

/// Reason for not running after a signal to stop.
fn asked_to_end() -> (CanarySkip, String) {
    (CanarySkip::Environment, "a signal stopped the command".to_owned())
}

/// Returns the first condition that prevents a run and that `--force` does not override.
fn refused(conditions: &[RunCondition], force: bool) -> Option<(CanarySkip, String)> {
    conditions.iter().find_map(|condition| match condition.allows {
        Allows::No(reason) if !(force && reason.yields_to_force()) => {
            Some((reason, format!("{}: {}", condition.what, condition.found)))
        }
        _ => None,
    })
}

/// Retries until success, or until a canary of the daemon must have ended.
fn wait_for<T>(stop: &Stop, attempt: impl Fn() -> Result<T, String>) -> Result<T, String> {
    let deadline = Mono::now() + INTERLOCK;
    loop {
        match attempt() {
            Err(_) if Mono::now() < deadline && !stop.stopped() => stop.wait_until(Mono::now() + PAUSE),
            done => return done,
        }
    }
}

/// Reads the wrong results that were not cleared; none if they cannot be read.
fn kept_wrong_results(config: &Config) -> KnownWrongResults {
    Store::new(&config.state.dir).look::<KnownWrongResults>().ok().flatten().unwrap_or_default()
}

/// Reads the daemon's baselines; none if they cannot be read.
fn baselines(config: &Config) -> BaselineStore {
    match Store::new(&config.state.dir).look::<BaselineStore>() {
        Ok(memory) => memory.map(BaselineStore::sanitized).unwrap_or_default(),
        Err(error) => {
            tracing::info!(%error, "failed to read the daemon's baselines; rates are not compared with them");
            BaselineStore::default()
        }
    }
}

//! Makes one run after the other, and keeps track of processes that did not exit.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::asked_to_end;
use super::devices::ListedDevice;
use crate::control::orders;
use canary::parent::DetachedChild;
use canary::report::{CanaryRun, ChildReport};
use canary::runner::{self, RunObserver, RunSettings, RunTarget};
use collectors::canary::run_settings;
use host::child::Stderr;
use host::stop::Stop;
use host::terminal::progress;
use model::canary::{Outcome, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanarySkip};
use model::clock::{Mono, unix_seconds};
use settings::Config;

/// Time to wait for a process to exit before the next run.
const GOING: Duration = Duration::from_secs(5);

/// Makes the runs of one command.
pub(crate) struct Runner<'a> {
    config: &'a Config,
    stop: &'a Stop,
    settings: RunSettings,
    /// Processes that have not exited.
    left: Vec<(Place, DetachedChild)>,
    seed: u64,
    /// Control socket of the daemon, until a request fails.
    daemon: Option<&'a Path>,
}

impl<'a> Runner<'a> {
    pub fn new(config: &'a Config, force: bool, stop: &'a Stop) -> Runner<'a> {
        let seed = unix_seconds().to_bits() ^ (u64::from(std::process::id()) << 32);
        let settings = RunSettings {
            linger: GOING,
            yields: !force,
            stderr: Stderr::Null,
            ..run_settings(config, Arc::default())
        };
        Runner { config, stop, settings, left: Vec::new(), seed, daemon: config.control.socket.as_deref() }
    }

    /// Returns true if a process of an earlier run still exists. A GPU never gets a second one.
    pub fn is_occupied(&self, place: &Place) -> bool {
        self.left.iter().any(|(of, _)| of.gpu.uuid == place.gpu.uuid)
    }

    /// Makes a run, and shows its progress under this name.
    pub fn run(
        &mut self,
        device: &ListedDevice,
        peer: Option<&ListedDevice>,
        checks: &[CanaryCheck],
        name: &str,
    ) -> CanaryRun {
        if self.is_occupied(&device.place) {
            let text = "the process of an earlier run has not exited".to_owned();
            return CanaryRun::unable(unix_seconds(), CanarySkip::ChildAlive, text);
        }
        if self.stop.stopped() {
            let (reason, text) = asked_to_end();
            return CanaryRun::unable(unix_seconds(), reason, text);
        }
        let checks = if checks.is_empty() { &self.config.canary.checks } else { checks };
        // Multiples of the golden ratio give every run other inputs and repeat late.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let peer = peer.map(|peer| peer.place.clone());
        let pci_address = device.pci_address.clone();
        let target = RunTarget::new(device.place.clone(), pci_address, peer, checks, self.seed);
        progress(name);
        let gpus: Vec<&str> =
            [&target.place].into_iter().chain(&target.peer).map(|place| &*place.gpu.uuid).collect();
        self.announce(&gpus, true);
        let mut observer = Observer { stop: self.stop, name };
        let (run, detached) = runner::run(&self.settings, &target, &mut observer);
        self.left.extend(detached.map(|child| (device.place.clone(), child)));
        if !self.is_occupied(&device.place) {
            self.announce(&gpus, false);
        }
        run
    }

    /// Reports to the daemon that the canary uses GPUs, or no longer does.
    fn announce(&mut self, uuids: &[&str], has: bool) {
        for uuid in uuids {
            let Some(socket) = self.daemon else { return };
            if let Err(error) = orders::announce_manual_canary(socket, uuid, has) {
                // There is no daemon, or it refuses this user. It may count the run as a job.
                tracing::debug!(%error, "failed to report the run to the daemon; it may count the run as a job");
                self.daemon = None;
            }
        }
    }

    /// Reports wrong results to the daemon, which keeps the GPUs unhealthy.
    pub fn report_wrong_results<'o>(&self, outcomes: impl Iterator<Item = &'o Outcome>) {
        for outcome in outcomes.filter(|outcome| outcome.wrong_result().is_some()) {
            let reported = match &self.config.control.socket {
                Some(socket) => orders::report_wrong_result(socket, outcome),
                None => Err(io::Error::other("control.socket is empty")),
            };
            if let Err(error) = reported {
                let gpu = outcome.place.gpu.gpu;
                tracing::warn!(%error, gpu, "failed to report the wrong result to the daemon; it does not treat the GPU as unhealthy");
            }
        }
    }

    /// Logs processes that are still in driver calls. They exit when their calls return.
    pub fn end(&mut self) {
        for (place, child) in &mut self.left {
            if child.check(Mono::now()).alive {
                let (gpu, pid) = (place.gpu.gpu, child.pid());
                let call = child.call().map(|call| call.name);
                tracing::warn!(gpu, pid, call, "the process of a canary remains in a driver call");
            }
        }
        progress("");
    }
}

struct Observer<'a> {
    stop: &'a Stop,
    name: &'a str,
}

impl RunObserver for Observer<'_> {
    fn started(&mut self, _pid: i32) {}

    fn reported(&mut self, report: &ChildReport) {
        if let ChildReport::Begin(step) = report {
            progress(&format!("{}: {}", self.name, step.known()));
        }
    }

    fn why_end(&mut self) -> Option<String> {
        self.stop.stopped().then(|| "a signal stopped the command".to_owned())
    }

    fn may_retry(&mut self) -> bool {
        !self.stop.stopped()
    }
}

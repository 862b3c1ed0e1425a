//! One run after the other, and what is left of their processes.

use std::path::Path;
use std::time::Duration;

use super::devices::Device;
use super::{Progress, Wish};
use crate::control::orders;
use canary::judge::worth_another_try;
use canary::parent::{self, Remains, Start};
use canary::report::{End, Order, Report, Run};
use host::child::{self, Voice};
use host::stop::Stop;
use model::canary::Place;
use model::catalog::schema::KnownLabel;
use model::catalog::{self, CanaryCheck, CanarySkip};
use model::clock::{Mono, unix_seconds};
use settings::Config;

/// How long a process that is done, or was asked to end, is waited for before the next begins.
const GOING: Duration = Duration::from_secs(5);
const MIB: u64 = 1024 * 1024;

/// Makes runs.
pub struct Runner<'a> {
    config: &'a Config,
    stop: &'a Stop,
    force: bool,
    /// Processes that have not ended.
    left: Vec<(Place, Remains)>,
    seed: u64,
    /// The daemon's socket, while it answers there.
    daemon: Option<&'a Path>,
}

impl<'a> Runner<'a> {
    /// One that has made none.
    pub fn new(config: &'a Config, wish: &Wish, stop: &'a Stop) -> Runner<'a> {
        let seed = unix_seconds().to_bits() ^ (u64::from(std::process::id()) << 32);
        Runner { config, stop, force: wish.force, left: Vec::new(), seed, daemon: config.control.path() }
    }

    /// Whether a process of an earlier run is still there: never a second on one GPU.
    pub fn is_occupied(&self, place: &Place) -> bool {
        self.left.iter().any(|(of, _)| of.gpu.uuid == place.gpu.uuid)
    }

    /// Processes of earlier runs that are still there.
    pub fn left(&self) -> Vec<i32> {
        self.left.iter().map(|(_, remains)| remains.pid()).collect()
    }

    /// Makes a run, and tells its progress under this name. After a failure that may be somebody else's, one more
    /// in a fresh process.
    pub fn run(
        &mut self,
        device: &Device,
        peer: Option<&Device>,
        checks: &[CanaryCheck],
        name: &str,
        progress: Progress<'_>,
    ) -> Run {
        let run = self.once(device, peer, checks, name, progress);
        if !worth_another_try(&run) || self.stop.stopped() || self.is_occupied(&device.place) {
            return run;
        }
        tracing::info!(device = name, end = ?run.end, "the run failed and is tried once more");
        let spent = run.gpu_seconds;
        let mut again = self.once(device, peer, checks, name, progress);
        again.gpu_seconds += spent;
        again
    }

    fn once(
        &mut self,
        device: &Device,
        peer: Option<&Device>,
        checks: &[CanaryCheck],
        name: &str,
        progress: Progress<'_>,
    ) -> Run {
        if self.is_occupied(&device.place) {
            let text = "the process of an earlier run has not ended".to_owned();
            return unable(CanarySkip::ChildAlive, text);
        }
        if self.stop.stopped() {
            return unable(CanarySkip::Environment, "the command was asked to end".to_owned());
        }
        let order = self.order(device, peer, checks);
        let program = child::this_program();
        let canary = &self.config.canary;
        let start = Start {
            program: &program,
            order: &order,
            hung_after: canary.progress_timeout,
            kill_after: canary.kill_after,
            voice: Voice::Silent,
        };
        progress(name);
        let gpus = [Some(device), peer.filter(|_| order.peer.is_some())];
        let gpus: Vec<&str> = gpus.into_iter().flatten().map(|device| &*device.place.gpu.uuid).collect();
        self.tell_daemon(&gpus, true);
        let (run, remains) = parent::run(start, self.stop, &mut |report| {
            if let Report::Begin(step) = report {
                progress(&format!("{name}: {}", step.known()));
            }
        });
        if let Some(mut remains) = remains
            && (matches!(run.end, End::Hung { .. }) || remains.end_by(Mono::now() + GOING).alive)
        {
            self.left.push((device.place.clone(), remains));
        }
        if !self.is_occupied(&device.place) {
            self.tell_daemon(&gpus, false);
        }
        run
    }

    /// Says that the work of GPUs is the canary's, or no longer is.
    fn tell_daemon(&mut self, uuids: &[&str], has: bool) {
        for uuid in uuids {
            let Some(socket) = self.daemon else { return };
            if let Err(error) = orders::tell_guest(socket, uuid, has) {
                // There is none, or it does not listen to this user: it may take the run for a job.
                tracing::debug!(%error, "no daemon was told of the run");
                self.daemon = None;
            }
        }
    }

    fn order(&mut self, device: &Device, peer: Option<&Device>, checks: &[CanaryCheck]) -> Order {
        let (config, canary) = (self.config, &self.config.canary);
        let mut checks = if checks.is_empty() { canary.checks.clone() } else { checks.to_vec() };
        let peer = peer.filter(|_| checks.contains(&CanaryCheck::P2p));
        if peer.is_none() {
            checks.retain(|check| *check != CanaryCheck::P2p);
        }
        // Other inputs in each run: by the golden ratio, which comes back last.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Order {
            fingerprint: catalog::fingerprint(),
            device: device.place.device().to_owned(),
            pci_address: device.pci_address.clone(),
            instance: device.place.instance.as_ref().map(|i| (i.gpu_instance, i.compute_instance)),
            peer: peer.map(|peer| peer.place.device().to_owned()),
            nvml_library: config.sampler.nvml_library.clone(),
            cuda_library: canary.cuda_library.clone(),
            checks,
            memory_bytes: u64::from(canary.max_memory_mib) * MIB,
            seed: self.seed,
            yields: !self.force,
        }
    }

    /// Says which processes are left behind in driver calls. They end when their calls return.
    pub fn end(&mut self, progress: Progress<'_>) {
        for (place, remains) in &mut self.left {
            if remains.look(Mono::now()).alive {
                let (gpu, pid) = (place.gpu.gpu, remains.pid());
                tracing::warn!(gpu, pid, call = ?remains.call(), "a canary's process is left in a driver call");
            }
        }
        progress("");
    }
}

/// A run that was not begun.
fn unable(reason: CanarySkip, text: String) -> Run {
    let now = unix_seconds();
    Run {
        began: now,
        ended: now,
        steps: Vec::new(),
        device: None,
        measured: Vec::new(),
        gpu_seconds: 0.0,
        end: End::Unable { reason, text },
    }
}

//! One run of the canary: a process, and a second process after a failure that may have a cause other than the GPU.
//! Both the daemon and the command start their runs here. The caller decides when to end a run, and keeps a process
//! that does not exit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::judge::worth_another_try;
pub use crate::parent::RunSettings;
use crate::parent::{ActiveRun, DetachedChild};
use crate::report::{CanaryRun, ChildReport, RunEnd, RunRequest};
use host::child;
use model::canary::Place;
use model::catalog::CanaryCheck;
use model::clock::Mono;

/// Time between two checks of a run and of the reasons to end it.
const LOOK: Duration = Duration::from_millis(50);

/// Place and checks of a run.
#[derive(Clone, Debug)]
pub struct RunTarget {
    pub place: Place,
    /// PCI address of the GPU in NVML's form.
    pub pci_address: String,
    /// The other end of copies between two GPUs.
    pub peer: Option<Place>,
    pub checks: Vec<CanaryCheck>,
    /// Seed from which all inputs are derived.
    pub seed: u64,
}

impl RunTarget {
    /// Creates a consistent target. Without a peer, copies between GPUs are dropped from the checks; without such
    /// copies, the peer is dropped.
    pub fn new(
        place: Place,
        pci_address: String,
        peer: Option<Place>,
        checks: &[CanaryCheck],
        seed: u64,
    ) -> RunTarget {
        let peer = peer.filter(|_| checks.contains(&CanaryCheck::P2p));
        let fits = |check: &&CanaryCheck| peer.is_some() || **check != CanaryCheck::P2p;
        let checks = checks.iter().filter(fits).copied().collect();
        RunTarget { place, pci_address, peer, checks, seed }
    }

    /// Returns the lock files of the GPUs that the run uses.
    pub fn locks(&self, lock_file: &Path) -> Vec<PathBuf> {
        let places = [&self.place].into_iter().chain(&self.peer);
        places.map(|place| host::flock::gpu_lock(lock_file, &place.gpu.uuid)).collect()
    }

    fn request(&self, settings: &RunSettings) -> RunRequest {
        RunRequest {
            device: self.place.device().to_owned(),
            pci_address: self.pci_address.clone(),
            instance: self.place.instance.as_ref().map(|i| (i.gpu_instance, i.compute_instance)),
            peer: self.peer.as_ref().map(|peer| peer.device().to_owned()),
            nvml_library: settings.nvml_library.clone(),
            cuda_library: settings.cuda_library.clone(),
            checks: self.checks.clone(),
            memory_bytes: u64::from(settings.memory_mib) << 20,
            locks: self.locks(&settings.lock_file),
            seed: self.seed,
            yields: settings.yields,
        }
    }
}

/// Callbacks of a run in progress.
pub trait RunObserver {
    /// Called when a process has started.
    fn started(&mut self, pid: i32);
    fn reported(&mut self, _report: &ChildReport) {}
    /// Returns the reason to end the run now, if there is one. Called at every check.
    fn why_end(&mut self) -> Option<String>;
    /// Returns true if a second process may be started after a failure.
    fn may_retry(&mut self) -> bool;
}

/// Makes a run. Returns the reports, and the process if it has not ended.
pub fn run(
    settings: &RunSettings,
    target: &RunTarget,
    observer: &mut dyn RunObserver,
) -> (CanaryRun, Option<DetachedChild>) {
    let request = target.request(settings);
    let (run, detached) = run_once(settings, &request, observer);
    if !worth_another_try(&run) || detached.is_some() || !observer.may_retry() {
        return (run, detached);
    }
    let error = match &run.end {
        RunEnd::Fault { name, .. } => Some(name),
        _ => None,
    };
    tracing::info!(place = %target.place, error, "a canary run failed; running the canary once more");
    let (mut again, detached) = run_once(settings, &request, observer);
    again.gpu_seconds += run.gpu_seconds;
    (again, detached)
}

fn run_once(
    settings: &RunSettings,
    request: &RunRequest,
    observer: &mut dyn RunObserver,
) -> (CanaryRun, Option<DetachedChild>) {
    let mut active = match ActiveRun::start(&child::this_program(), request, settings) {
        Ok(active) => active,
        Err(run) => return (*run, None),
    };
    observer.started(active.pid());
    let (run, detached) = loop {
        if let Some(why) = observer.why_end() {
            active.ask_to_end(&why);
        }
        if let Some(end) = active.poll(LOOK, &mut |report| observer.reported(report)) {
            break active.over(end);
        }
    };
    let detached = detached.and_then(|mut child| {
        let waits = !settings.linger.is_zero() && !matches!(run.end, RunEnd::Hung { .. });
        (!waits || child.end_by(Mono::now() + settings.linger).alive).then_some(child)
    });
    (run, detached)
}

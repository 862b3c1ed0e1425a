//! The fast tier of all GPUs in one thread. Each wake-up costs more than the one cheap call of this tier,
//! so eight threads that wake ten times a second would spend most of the exporter's CPU time on waking.
//!
//! The thread is a convenience, never a dependency: when it is late, because a call does not return or for any other
//! reason, each GPU's own worker makes its fast visits itself. That worker also meets the call that hangs, and the parent
//! judges that worker; the parent does not judge this thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvml_wrapper::Device;

use super::Shared;
use super::driver::{CallFailure, Caller};
use super::visit::{HandleState, Visit};
use host::inflight::{FAST_SLOT, bit};
use model::catalog::{Gpu, Tier};
use model::clock::{Cadence, Mono};
use model::sync::lock;

/// A round may be this many intervals late before the workers make their fast visits themselves.
const LATE: u32 = 3;
/// Never less than this: a busy machine is late by itself.
const LEAST_LATE: Duration = Duration::from_millis(500);

/// A message of a worker to the thread.
#[derive(Debug)]
enum FastChange {
    /// A GPU has a handle, in this epoch.
    Join { slot: usize, gpu: Gpu, device: Arc<Device<'static>>, epoch: u64 },
    /// The epoch changed.
    Epoch { slot: usize, epoch: u64 },
    /// The handle is void.
    Leave { slot: usize },
}

/// The workers' end.
#[derive(Debug)]
pub struct FastTier {
    changes: Sender<FastChange>,
    /// The thread's end, until it starts.
    receiver: Mutex<Option<Receiver<FastChange>>>,
    /// When the newest round ended; 0 before the first.
    beat: AtomicU64,
    /// Slots of the GPUs that the thread visits: bit n is slot n + 1.
    visited: AtomicU64,
    /// Slots of GPUs whose clocks the hardware held down, by the same bits.
    slowed: AtomicU64,
}

impl Default for FastTier {
    fn default() -> FastTier {
        let (changes, receiver) = channel();
        FastTier {
            changes,
            receiver: Mutex::new(Some(receiver)),
            beat: AtomicU64::new(0),
            visited: AtomicU64::new(0),
            slowed: AtomicU64::new(0),
        }
    }
}

impl FastTier {
    /// Whether the thread makes the fast visits of this GPU now.
    pub fn leads(&self, slot: usize, now: Mono, interval: Duration) -> bool {
        let late = (interval * LATE).max(LEAST_LATE);
        self.visited.load(Ordering::Acquire) & bit(slot) != 0
            && now.since(Mono(self.beat.load(Ordering::Acquire))) <= late
    }

    /// Whether the hardware held the GPU's clocks down since the last `take_slowed`.
    pub fn take_slowed(&self, slot: usize) -> bool {
        self.slowed.fetch_and(!bit(slot), Ordering::AcqRel) & bit(slot) != 0
    }

    /// A GPU has a handle.
    pub fn join(&self, slot: usize, gpu: &Gpu, device: &Arc<Device<'static>>, epoch: u64) {
        self.change(FastChange::Join { slot, gpu: gpu.clone(), device: Arc::clone(device), epoch });
    }

    /// A GPU's epoch changed.
    pub fn epoch(&self, slot: usize, epoch: u64) {
        self.change(FastChange::Epoch { slot, epoch });
    }

    /// A GPU's handle is void.
    pub fn leave(&self, slot: usize) {
        self.change(FastChange::Leave { slot });
    }

    fn change(&self, change: FastChange) {
        if self.changes.send(change).is_err() {
            tracing::debug!("the thread of the fast tier has ended");
        }
    }
}

/// Starts the thread. Without it the workers make their fast visits themselves.
pub fn start(shared: &Arc<Shared>) {
    let Some(receiver) = lock(&shared.fast.receiver).take() else { return };
    if let Err(error) = shared.spawn("fast", FAST_SLOT, move |shared| run(shared, &receiver)) {
        tracing::warn!(%error, "no thread for the fast tier");
    }
}

/// A GPU that the thread visits.
struct FastGpu {
    slot: usize,
    gpu: Gpu,
    device: Arc<Device<'static>>,
    epoch: u64,
    state: HandleState,
}

fn run(shared: &Shared, changes: &Receiver<FastChange>) {
    let slot = shared.table.writer(FAST_SLOT);
    let mut caller = Caller::new(slot, shared.config.call_deadline);
    let mut cadence = Cadence::new(shared.config.intervals.fast, Duration::ZERO);
    let mut gpus: Vec<FastGpu> = Vec::new();
    while !shared.stop.stopped() {
        while let Ok(change) = changes.try_recv() {
            take(&mut gpus, change, shared);
        }
        if cadence.take(Mono::now()) {
            gpus.retain_mut(|gpu| visit(shared, &mut caller, gpu));
            let visited = gpus.iter().fold(0, |all, gpu| all | bit(gpu.slot));
            shared.fast.visited.store(visited, Ordering::Release);
            shared.fast.beat.store(Mono::now().0, Ordering::Release);
        }
        slot.expect(cadence.next());
        shared.stop.wait_until(cadence.next());
    }
}

fn take(gpus: &mut Vec<FastGpu>, change: FastChange, shared: &Shared) {
    match change {
        FastChange::Join { slot, gpu, device, epoch } => {
            gpus.retain(|gpu| gpu.slot != slot);
            let state = HandleState::new(&shared.config);
            gpus.push(FastGpu { slot, gpu, device, epoch, state });
        }
        FastChange::Epoch { slot, epoch } => {
            for gpu in gpus.iter_mut().filter(|gpu| gpu.slot == slot) {
                gpu.epoch = epoch;
                gpu.state.forget();
            }
        }
        FastChange::Leave { slot } => gpus.retain(|gpu| gpu.slot != slot),
    }
}

/// Visits one GPU; whether its handle is still valid. The GPU's worker finds a loss by itself.
fn visit(shared: &Shared, caller: &mut Caller, gpu: &mut FastGpu) -> bool {
    let taken = Mono::now();
    let mut visit = Visit::new(&gpu.gpu, &gpu.device, caller, &mut gpu.state);
    super::gpu::read(Tier::Fast, &mut visit);
    if std::mem::take(&mut visit.state.slowdown.seen) {
        shared.fast.slowed.fetch_or(bit(gpu.slot), Ordering::AcqRel);
    }
    let (batch, ended) = visit.into_batch(Tier::Fast, gpu.epoch, taken, shared.lifetime(Tier::Fast));
    shared.report(batch);
    match ended {
        None => true,
        Some(CallFailure::DriverGone(error, text)) => {
            shared.driver_gone(error, text);
            false
        }
        Some(_) => false,
    }
}

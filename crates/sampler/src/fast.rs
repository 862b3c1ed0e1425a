//! The fast tier of all GPUs in one thread. A wake-up costs more than the one cheap call of this tier, so eight
//! threads that wake ten times a second would spend most of the exporter's CPU time on waking.
//!
//! The workers do not depend on this thread. When it is late, because a call does not return or for any other
//! reason, the worker of each GPU makes its own fast visits. That worker then meets the call that hangs, and
//! the parent judges the worker and not this thread.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::driver::{CallFailure, Caller};
use super::visit::{HandleState, Visit};
use super::wire::SamplerSettings;
use super::{AttachedGpu, Shared, SlotSet};
use host::inflight::FAST_SLOT;
use model::catalog::Tier;
use model::clock::{Cadence, Mono};
use model::sync::lock;

/// Number of intervals by which a round may be late before the workers make their own fast visits.
const LATE: u32 = 3;
/// Minimum delay that counts as late, because threads of a busy machine are late anyway.
const LEAST_LATE: Duration = Duration::from_millis(500);

/// State that the workers read.
#[derive(Debug, Default)]
pub(crate) struct FastTier {
    /// Time when the newest round ended, and slots of the GPUs that it visited.
    round: Mutex<(Mono, BTreeSet<usize>)>,
    /// Slots of GPUs with a hardware slowdown.
    pub slowed: SlotSet,
}

impl FastTier {
    /// Returns whether the thread currently makes the fast visits of this GPU.
    pub fn leads(&self, slot: usize, now: Mono, interval: Duration) -> bool {
        let late = (interval * LATE).max(LEAST_LATE);
        let round = lock(&self.round);
        round.1.contains(&slot) && now.since(round.0) <= late
    }
}

/// Starts the thread. Without it, the workers make their own fast visits.
pub fn start(shared: &Arc<Shared>) {
    if let Err(error) = shared.spawn("fast", FAST_SLOT, run) {
        tracing::warn!(
            "failed to start the thread of the fast tier: {error}; every GPU's own thread reads it"
        );
    }
}

/// State of a GPU in one epoch.
#[derive(Default)]
struct FastGpu {
    epoch: u64,
    state: HandleState,
    lost: bool,
}

fn run(shared: &Shared) {
    let slot = shared.table.writer(FAST_SLOT);
    let mut settings = shared.settings();
    let mut caller = Caller::new(slot, settings.call_deadline);
    let mut cadence = Cadence::new(settings.intervals.fast, Duration::ZERO);
    let mut known: HashMap<usize, FastGpu> = HashMap::new();
    while !shared.stop.stopped() {
        let woken = shared.stop.woken();
        let now = shared.settings();
        if !Arc::ptr_eq(&now, &settings) {
            caller.set_allowed(now.call_deadline);
            cadence = Cadence::new(now.intervals.fast, Duration::ZERO);
            settings = now;
        }
        if cadence.tick(Mono::now()) {
            // No lock is held during a call.
            let attached = lock(&shared.attached).clone();
            let mut visited = BTreeSet::new();
            for (slot, gpu) in &attached {
                let known = known.entry(*slot).or_default();
                if known.epoch != gpu.epoch {
                    *known = FastGpu { epoch: gpu.epoch, ..FastGpu::default() };
                }
                if !known.lost {
                    known.lost = !visit(shared, &settings, &mut caller, *slot, gpu, &mut known.state);
                    if !known.lost {
                        visited.insert(*slot);
                    }
                }
            }
            *lock(&shared.fast.round) = (Mono::now(), visited);
        }
        shared.sleep_since(woken, slot, cadence.next());
    }
}

/// Visits one GPU. Returns whether its handle is still valid; the GPU's own worker detects a loss by itself.
fn visit(
    shared: &Shared,
    settings: &Arc<SamplerSettings>,
    caller: &mut Caller,
    slot: usize,
    gpu: &AttachedGpu,
    state: &mut HandleState,
) -> bool {
    let taken = Mono::now();
    let mut visit = Visit::new(shared, settings, &gpu.gpu, &gpu.device, caller, state);
    super::gpu::read(Tier::Fast, &mut visit);
    if std::mem::take(&mut visit.state.slowdown.seen) {
        lock(&shared.fast.slowed).insert(slot);
    }
    let (batch, ended) = visit.into_batch(Tier::Fast, gpu.epoch, taken);
    shared.report(batch);
    if let Some(CallFailure::DriverGone(error, text)) = &ended {
        shared.driver_gone(*error, text.clone());
    }
    ended.is_none()
}

//! The fast tier of all GPUs in one thread. Each wake-up costs more than the one cheap call of this tier,
//! so eight threads that wake ten times a second would spend most of the exporter's CPU time on waking.
//!
//! The thread is a convenience, never a dependency: when it is late, because a call does not return or for any other
//! reason, each GPU's own worker makes its fast visits itself. That worker also meets the call that hangs, and the parent
//! judges that worker; the parent does not judge this thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::driver::{CallFailure, Caller};
use super::visit::{HandleState, Visit};
use super::wire::SamplerSettings;
use super::{AttachedGpu, Shared, SlotBits};
use host::inflight::{FAST_SLOT, bit};
use model::catalog::Tier;
use model::clock::{Cadence, Mono};
use model::sync::lock;

/// A round may be this many intervals late before the workers make their fast visits themselves.
const LATE: u32 = 3;
/// Never less than this: a busy machine is late by itself.
const LEAST_LATE: Duration = Duration::from_millis(500);

/// The workers' end.
#[derive(Debug, Default)]
pub(crate) struct FastTier {
    /// When the newest round ended; 0 before the first.
    beat: AtomicU64,
    /// Slots of the GPUs that the thread visits: bit n is slot n + 1.
    visited: AtomicU64,
    /// Slots of GPUs whose clocks the hardware held down.
    pub slowed: SlotBits,
}

impl FastTier {
    /// Whether the thread makes the fast visits of this GPU now.
    pub fn leads(&self, slot: usize, now: Mono, interval: Duration) -> bool {
        let late = (interval * LATE).max(LEAST_LATE);
        self.visited.load(Ordering::Acquire) & bit(slot) != 0
            && now.since(Mono(self.beat.load(Ordering::Acquire))) <= late
    }
}

/// Starts the thread. Without it the workers make their fast visits themselves.
pub fn start(shared: &Arc<Shared>) {
    if let Err(error) = shared.spawn("fast", FAST_SLOT, run) {
        tracing::warn!(%error, "no thread for the fast tier");
    }
}

/// What the thread knows of a GPU in one epoch.
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
            let mut visited = 0;
            for (slot, gpu) in &attached {
                let known = known.entry(*slot).or_default();
                if known.epoch != gpu.epoch {
                    *known = FastGpu { epoch: gpu.epoch, ..FastGpu::default() };
                }
                if !known.lost {
                    known.lost = !visit(shared, &settings, &mut caller, *slot, gpu, &mut known.state);
                    visited |= if known.lost { 0 } else { bit(*slot) };
                }
            }
            shared.fast.visited.store(visited, Ordering::Release);
            shared.fast.beat.store(Mono::now().0, Ordering::Release);
        }
        shared.sleep_since(woken, slot, cadence.next());
    }
}

/// Visits one GPU; whether its handle is still valid. The GPU's worker finds a loss by itself.
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
        shared.fast.slowed.set(slot);
    }
    let (batch, ended) = visit.into_batch(Tier::Fast, gpu.epoch, taken);
    shared.report(batch);
    if let Some(CallFailure::DriverGone(error, text)) = &ended {
        shared.driver_gone(*error, text.clone());
    }
    ended.is_none()
}

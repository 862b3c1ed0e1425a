//! The fast tier of all GPUs in one thread. Each wake-up costs more than the one cheap call of this tier,
//! so eight threads that wake ten times a second would spend most of the exporter's CPU time on waking.
//!
//! The thread is a convenience, never a dependency: when it is late, because a call of it does not return
//! or for any other reason, each GPU's own worker makes its fast visits itself. That worker also meets the
//! call that hangs, and is seen doing so; this thread is not judged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::Device;

use super::driver::{Caller, Failure};
use super::visit::{Memory, Visit};
use super::worker::Learned;
use super::{Shared, gpu};
use host::inflight::{FAST_SLOT, bit};
use model::catalog::{Gpu, Tier};
use model::clock::{Cadence, Mono};

/// A round may be this many intervals late before the workers help themselves.
const LATE: u32 = 3;
/// Never less than this: a busy machine is late by itself.
const LEAST_LATE: Duration = Duration::from_millis(500);

/// What a worker tells the thread.
#[derive(Debug)]
enum Change {
    /// A GPU has a handle, in this epoch.
    Join { slot: usize, gpu: Gpu, device: Arc<Device<'static>>, epoch: u64 },
    /// Its epoch is another.
    Epoch { slot: usize, epoch: u64 },
    /// Its handle is of no more use.
    Leave { slot: usize },
}

/// The workers' end.
#[derive(Debug)]
pub struct Fast {
    changes: Sender<Change>,
    /// The thread's end, until it starts.
    receiver: Mutex<Option<Receiver<Change>>>,
    /// When the newest round ended; 0 before the first.
    beat: AtomicU64,
    /// Whom it visits: bit n is slot n + 1.
    visited: AtomicU64,
    /// Slots of GPUs whose clocks the hardware held down, by the same bits.
    slowed: AtomicU64,
}

impl Default for Fast {
    fn default() -> Fast {
        let (changes, receiver) = channel();
        Fast {
            changes,
            receiver: Mutex::new(Some(receiver)),
            beat: AtomicU64::new(0),
            visited: AtomicU64::new(0),
            slowed: AtomicU64::new(0),
        }
    }
}

impl Fast {
    /// Whether the thread makes the fast visits of this GPU now.
    pub fn leads(&self, slot: usize, now: Mono, interval: Duration) -> bool {
        let late = (interval * LATE).max(LEAST_LATE);
        self.visited.load(Ordering::Acquire) & bit(slot) != 0
            && now.since(Mono(self.beat.load(Ordering::Acquire))) <= late
    }

    /// Whether the hardware was seen holding the GPU's clocks down since this was last asked.
    pub fn slowed(&self, slot: usize) -> bool {
        self.slowed.fetch_and(!bit(slot), Ordering::AcqRel) & bit(slot) != 0
    }

    /// A GPU has a handle.
    pub fn join(&self, slot: usize, gpu: &Gpu, device: &Arc<Device<'static>>, epoch: u64) {
        self.tell(Change::Join { slot, gpu: gpu.clone(), device: Arc::clone(device), epoch });
    }

    /// A GPU's epoch is another.
    pub fn epoch(&self, slot: usize, epoch: u64) {
        self.tell(Change::Epoch { slot, epoch });
    }

    /// A GPU's handle is of no more use.
    pub fn leave(&self, slot: usize) {
        self.tell(Change::Leave { slot });
    }

    fn tell(&self, change: Change) {
        if self.changes.send(change).is_err() {
            tracing::debug!("the thread of the fast tier has ended");
        }
    }
}

/// Starts the thread. Without it the workers help themselves.
pub fn start(shared: &Arc<Shared>) {
    let Some(receiver) = shared.fast.receiver.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        return;
    };
    let own = Arc::clone(shared);
    let run = move || {
        run(&own, &receiver);
        own.table.writer(FAST_SLOT).leave();
    };
    match std::thread::Builder::new().name("fast".into()).stack_size(256 * 1024).spawn(run) {
        Ok(handle) => shared.joined(handle),
        Err(error) => tracing::warn!(%error, "no thread for the fast tier"),
    }
}

/// A GPU as the thread knows it.
struct Seat {
    slot: usize,
    gpu: Gpu,
    device: Arc<Device<'static>>,
    epoch: u64,
    memory: Memory,
}

fn run(shared: &Shared, changes: &Receiver<Change>) {
    let slot = shared.table.writer(FAST_SLOT);
    let mut caller = Caller::new(slot, shared.orders.call_deadline);
    let mut cadence = Cadence::new(shared.orders.intervals.fast, Duration::ZERO);
    let mut seats: Vec<Seat> = Vec::new();
    while !shared.stop.stopped() {
        while let Ok(change) = changes.try_recv() {
            take(&mut seats, change, shared);
        }
        if cadence.take(Mono::now()) {
            seats.retain_mut(|seat| visit(shared, &mut caller, seat));
            let visited = seats.iter().fold(0, |all, seat| all | bit(seat.slot));
            shared.fast.visited.store(visited, Ordering::Release);
            shared.fast.beat.store(Mono::now().0, Ordering::Release);
        }
        slot.expect(cadence.next());
        shared.stop.wait_until(cadence.next());
    }
}

fn take(seats: &mut Vec<Seat>, change: Change, shared: &Shared) {
    match change {
        Change::Join { slot, gpu, device, epoch } => {
            seats.retain(|seat| seat.slot != slot);
            let memory = Memory::new(&shared.orders);
            seats.push(Seat { slot, gpu, device, epoch, memory });
        }
        Change::Epoch { slot, epoch } => {
            for seat in seats.iter_mut().filter(|seat| seat.slot == slot) {
                seat.epoch = epoch;
                seat.memory.forget();
            }
        }
        Change::Leave { slot } => seats.retain(|seat| seat.slot != slot),
    }
}

/// Visits one GPU; gives whether its handle is still of use. What a lost GPU means is its worker's to
/// find out.
fn visit(shared: &Shared, caller: &mut Caller, seat: &mut Seat) -> bool {
    let taken = Mono::now();
    let mut visit = Visit::new(&seat.gpu, &seat.device, caller, &mut seat.memory);
    gpu::read(Tier::Fast, &mut visit);
    if std::mem::take(&mut visit.found().slowdown.seen) {
        shared.fast.slowed.fetch_or(bit(seat.slot), Ordering::AcqRel);
    }
    let (learned, ended) = Learned::of(visit);
    shared.report(&seat.gpu, Tier::Fast, seat.epoch, taken, learned, caller.take_costs());
    match ended {
        None => true,
        Some(Failure::DriverGone(error, text)) => {
            shared.driver_gone(error, text);
            false
        }
        Some(_) => false,
    }
}

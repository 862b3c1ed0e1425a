//! The worker that waits for the driver's events: faults and what else happens, at once instead of at the
//! next visit. GPUs are registered by their own workers, so that a sick one holds up nobody else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::Nvml;

use super::driver::Caller;
use super::raw::events::{self, EventSet, RawEvent};
use super::visit::Visit;
use super::wire::FromSampler;
use super::{Shared, driver};
use host::inflight::{EVENTS_SLOT, bit};
use model::catalog::{self as m, Gpu, MetricId};
use model::clock::{Mono, unix_seconds};
use model::fact::{DriverFact, EVENT_BITS, Fact, Teller, What};
use model::sample::Missing;

/// Longest wait in one go; it also bounds how late the end of the sampler is noticed.
const WAIT: Duration = Duration::from_millis(500);
/// Pause before waiting is tried again after it failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Most sets in a sampler's life. They are never freed, as a worker may be asking for events in one, and each
/// holds descriptors.
const MOST_SETS: u64 = 32;

/// Where GPUs ask for events, and whose they are.
#[derive(Debug, Default)]
pub struct Events {
    /// With its number: a GPU that is lost spoils the set it is in, and another is made.
    set: Mutex<Option<(u64, EventSet)>>,
    /// By the number of the device's handle.
    gpus: Mutex<HashMap<usize, (Gpu, usize)>>,
    /// Slots of GPUs whose MIG configuration has changed: bit n is slot n + 1.
    mig: AtomicU64,
    /// Slots of GPUs of which something else was told: all other events are faults, or what becomes of them.
    told: AtomicU64,
}

/// Bit of the event that says that the MIG configuration has changed: a hint to look, no fact of its own.
const MIG_CONFIG_CHANGE: u64 = 0x100;

impl Events {
    /// Whether the GPU's MIG configuration has changed since this was last asked.
    pub fn mig_changed(&self, slot: usize) -> bool {
        self.mig.fetch_and(!bit(slot), Ordering::AcqRel) & bit(slot) != 0
    }

    /// Whether an event told of the GPU since this was last asked.
    pub fn told(&self, slot: usize) -> bool {
        self.told.fetch_and(!bit(slot), Ordering::AcqRel) & bit(slot) != 0
    }
}

/// In which set the events of one GPU are asked for, for the life of its handle.
#[derive(Debug, Default)]
pub struct Registration(Option<u64>);

impl Registration {
    /// Asks for the GPU's events, once, and tells whether they are asked for.
    pub fn refresh(&mut self, v: &mut Visit<'_>, asked: &Events, slot: usize) {
        let feeds: [MetricId; 2] = [m::gpu_driver_events_registered.id(), m::gpu_driver_events_total.id()];
        let current = *asked.set.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((number, set)) = current else { return };
        if self.0 != Some(number) {
            let wanted = EVENT_BITS.iter().fold(MIG_CONFIG_CHANGE, |all, bit| all | bit);
            const SUPPORTED: &str = "nvmlDeviceGetSupportedEventTypes";
            let Some(supported) = v.read(SUPPORTED, &feeds, events::supported) else { return };
            if supported & wanted == 0 {
                return v.gap(SUPPORTED.into(), &feeds, Missing::Unsupported);
            }
            let gpu = v.gpu.clone();
            let registered = v.read("nvmlDeviceRegisterEvents", &feeds, |device| {
                // Known before the first event can come.
                let handle = events::handle_number(device);
                asked.gpus.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, (gpu, slot));
                events::register(device, supported & wanted, set)
            });
            self.0 = registered.map(|()| number);
        }
        if self.0.is_some() {
            v.rows.of(v.gpu).flag(&m::gpu_driver_events_registered, (), true);
        }
    }
}

/// Makes the set and waits in a thread of its own. A driver without events is a driver.
pub fn start(shared: &Arc<Shared>, nvml: &'static Nvml) {
    let own = Arc::clone(shared);
    let run = move || {
        run(&own, nvml);
        own.table.writer(EVENTS_SLOT).leave();
    };
    match std::thread::Builder::new().name("events".into()).stack_size(256 * 1024).spawn(run) {
        Ok(handle) => shared.joined(handle),
        Err(error) => tracing::error!(%error, "no thread for the driver's events"),
    }
}

fn run(shared: &Shared, nvml: &'static Nvml) {
    let slot = shared.table.writer(EVENTS_SLOT);
    slot.expect(Mono::now());
    let mut caller = Caller::new(slot, shared.orders.call_deadline);
    let mut sets = 0;
    let Some(mut set) = new_set(shared, nvml, &mut caller, &mut sets) else { return };
    let mut number = 0;
    while !shared.stop.stopped() {
        // Before a GPU is registered there is nothing to wait for.
        if shared.events.gpus.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            let next = Mono::now() + WAIT;
            slot.expect(next);
            shared.stop.wait_until(next);
            continue;
        }
        // No call in flight but a wait that was promised to end: it may last, costs the driver nothing, and
        // a sampler that is to end is not inside the driver because of it.
        slot.expect(Mono::now() + WAIT);
        match events::wait(nvml, set, WAIT.as_millis() as u32) {
            Ok(None) => {}
            Ok(Some(event)) => {
                number += u64::from(tell(shared, number + 1, &event));
            }
            Err(error) => match driver::classify(&error) {
                driver::Failure::DriverGone(error, text) => return shared.driver_gone(error, text),
                // The others' events come no more through a set with a lost GPU in it: their workers ask for
                // them anew with their next slow visits. The kernel log tells meanwhile.
                driver::Failure::Lost(_, text) if sets < MOST_SETS => {
                    tracing::warn!(reason = %text, "a GPU is lost: the driver's events are asked for anew");
                    match new_set(shared, nvml, &mut caller, &mut sets) {
                        Some(new) => set = new,
                        None => return,
                    }
                }
                failure => {
                    tracing::warn!(reason = %failure.told().1, "waiting for the driver's events failed");
                    let next = Mono::now() + PAUSE;
                    slot.expect(next);
                    shared.stop.wait_until(next);
                }
            },
        }
    }
}

/// Makes a set, in which no GPU is yet.
fn new_set(shared: &Shared, nvml: &'static Nvml, caller: &mut Caller, sets: &mut u64) -> Option<EventSet> {
    match caller.call("nvmlEventSetCreate".into(), || events::new_set(nvml)) {
        Ok(set) => {
            *sets += 1;
            shared.events.gpus.lock().unwrap_or_else(PoisonError::into_inner).clear();
            *shared.events.set.lock().unwrap_or_else(PoisonError::into_inner) = Some((*sets, set));
            Some(set)
        }
        Err(failure) => {
            tracing::info!(reason = %failure.told().1, "the driver offers no events");
            None
        }
    }
}

/// Tells of an event under this number; gives whether it was told.
fn tell(shared: &Shared, number: u64, event: &RawEvent) -> bool {
    let gpus = shared.events.gpus.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((gpu, slot)) = gpus.get(&event.device).cloned() else {
        tracing::warn!(?event, "an event of a GPU nobody asked for");
        return false;
    };
    drop(gpus);
    if event.bits == MIG_CONFIG_CHANGE {
        shared.events.mig.fetch_or(bit(slot), Ordering::AcqRel);
        return false;
    }
    shared.events.told.fetch_or(bit(slot), Ordering::AcqRel);
    shared.send(&FromSampler::Fact(Fact {
        teller: Teller::Nvml,
        number,
        taken: Mono::now(),
        unix_seconds: unix_seconds(),
        what: What::Driver(DriverFact {
            gpu,
            bits: event.bits,
            data: event.data,
            gpu_instance: event.gpu_instance,
            compute_instance: event.compute_instance,
        }),
    }));
    true
}

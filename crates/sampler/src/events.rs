//! The worker that waits for the driver's events: faults and others, at once instead of at the next visit. Each GPU's own
//! worker registers it, so that a sick GPU does not delay the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::nvmlEventData_t;

use super::driver::{CallFailure, Caller, classify};
use super::raw::events::{self, EventSet};
use super::visit::Visit;
use super::wire::FromSampler;
use super::{Shared, SlotSet};
use host::inflight::EVENTS_SLOT;
use model::catalog::{self as m, FaultSource, Gpu, MetricId};
use model::clock::{Mono, unix_seconds};
use model::fact::{DriverFact, EVENT_BITS, Fact, FactKind};
use model::sample::Missing;
use model::sync::lock;

/// Longest wait in one go; it also bounds how late the end of the sampler is noticed.
const WAIT: Duration = Duration::from_millis(500);
const WAIT_CALL: &str = "nvmlEventSetWait_v2";
/// Pause before waiting is tried again after it failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Most sets in a sampler's life. Sets are never freed, because a worker may register a GPU in one, and each set holds
/// descriptors.
const MOST_SETS: u64 = 32;

/// The set in which GPUs are registered, and what its events said.
#[derive(Debug, Default)]
pub(crate) struct EventSets {
    /// With its number: a lost GPU spoils the set, and another set replaces it.
    set: Mutex<Option<(u64, EventSet)>>,
    /// By the number of the device's handle.
    gpus: Mutex<HashMap<usize, (Gpu, usize)>>,
    /// GPUs whose MIG configuration has changed.
    pub mig: SlotSet,
    /// GPUs with any other event: a fault, or its consequences.
    pub faults: SlotSet,
    /// GPUs in MIG mode: an event of any other GPU is of no instance, whatever ids a driver gives.
    pub in_mig_mode: SlotSet,
    waiting: Mutex<Waiting>,
}

/// Whether the driver's events can be waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Waiting {
    /// Not tried yet.
    #[default]
    Untried,
    Works,
    Fails,
    /// The driver lacks this function.
    Lacking(&'static str),
}

impl EventSets {
    /// Notes whether events can be waited for. What the GPUs said about it changes with their next visits, which are due.
    fn set_waiting(&self, waiting: Waiting) {
        let before = std::mem::replace(&mut *lock(&self.waiting), waiting);
        if before != waiting {
            lock(&self.faults).extend(lock(&self.gpus).values().map(|(_, slot)| *slot));
        }
    }
}

/// Bit of the event that says that the MIG configuration has changed: a hint to read the layout, no fact of its own.
const MIG_CONFIG_CHANGE: u64 = 0x100;

/// Registers the GPU, once a set, and adds the row that says whether it is registered. `registered` is the number of the
/// set that has the GPU, for the life of its handle.
pub fn register(v: &mut Visit<'_>, registered: &mut Option<u64>, slot: usize) {
    let sets = &v.shared.events;
    let feeds: [MetricId; 2] = [m::gpu_driver_events_registered.id(), m::gpu_driver_events_total.id()];
    let (current, waiting) = (*lock(&sets.set), *lock(&sets.waiting));
    if let Waiting::Lacking(function) = waiting {
        return v.unsupported(function, &feeds);
    }
    let Some((number, set)) = current else { return };
    if *registered != Some(number) {
        let wanted = EVENT_BITS.iter().fold(MIG_CONFIG_CHANGE, |all, bit| all | bit);
        const SUPPORTED: &str = "nvmlDeviceGetSupportedEventTypes";
        let Some(supported) = v.read(SUPPORTED, &feeds, events::supported) else { return };
        if supported & wanted == 0 {
            return v.gap(SUPPORTED.into(), &feeds, Missing::Unsupported);
        }
        let gpu = v.gpu.clone();
        let done = v.read("nvmlDeviceRegisterEvents", &feeds, |device| {
            // Known before the first event can come.
            let handle = events::handle_number(device);
            lock(&sets.gpus).insert(handle, (gpu, slot));
            events::register(device, supported & wanted, set)
        });
        *registered = done.map(|()| number);
    }
    // A GPU whose events are not waited for is not registered.
    if registered.is_some() && waiting != Waiting::Untried {
        v.rows.entity(v.gpu).flag(&m::gpu_driver_events_registered, (), waiting == Waiting::Works);
    }
}

/// Makes the set and waits in a thread of its own. A driver without events is a driver.
pub fn start(shared: &Arc<Shared>, nvml: &'static Nvml) {
    if let Err(error) = shared.spawn("events", EVENTS_SLOT, move |shared| run(shared, nvml)) {
        tracing::error!(%error, "no thread for the driver's events");
    }
}

fn run(shared: &Shared, nvml: &'static Nvml) {
    let slot = shared.table.writer(EVENTS_SLOT);
    slot.expect(Mono::now());
    let mut caller = Caller::new(slot, shared.settings().call_deadline);
    let mut sets = 0;
    let Some(mut set) = new_set(shared, nvml, &mut caller, &mut sets) else { return };
    let mut number = 0;
    while !shared.stop.stopped() {
        // Before a GPU is registered there is nothing to wait for.
        if lock(&shared.events.gpus).is_empty() {
            shared.sleep(slot, Mono::now() + WAIT);
            continue;
        }
        // No call in flight but a wait that was promised to end: it may last, costs the driver nothing, and
        // a sampler that is to end is not inside the driver because of it.
        slot.expect(Mono::now() + WAIT);
        let answer = events::wait(nvml, set, WAIT.as_millis() as u32);
        if answer.is_ok() {
            shared.events.set_waiting(Waiting::Works);
        }
        match answer {
            Ok(None) => {}
            Ok(Some(event)) => {
                number += u64::from(report(shared, number + 1, &event));
            }
            Err(error) => match classify(&error) {
                CallFailure::Unsupported => return lacking(shared, WAIT_CALL),
                CallFailure::DriverGone(error, text) => return shared.driver_gone(error, text),
                // A set with a lost GPU in it gives no more events of the other GPUs: their workers register them in the
                // new set with their next slow visits. The kernel log has the faults meanwhile.
                CallFailure::Lost(_, text) if sets < MOST_SETS => {
                    tracing::warn!(reason = %text, "a GPU is lost: the others are registered in a new event set");
                    match new_set(shared, nvml, &mut caller, &mut sets) {
                        Some(new) => set = new,
                        None => return,
                    }
                }
                failure => {
                    shared.events.set_waiting(Waiting::Fails);
                    let reason = failure.error().1;
                    tracing::warn!(call = WAIT_CALL, %reason, "waiting for the driver's events failed");
                    shared.sleep(slot, Mono::now() + PAUSE);
                }
            },
        }
    }
}

/// Ends the wait for events, for good: the driver has no such function.
fn lacking(shared: &Shared, function: &'static str) {
    tracing::warn!("the driver lacks {function}: faults are known from the kernel log alone");
    *lock(&shared.events.set) = None;
    shared.events.set_waiting(Waiting::Lacking(function));
}

/// Makes a set without GPUs.
fn new_set(shared: &Shared, nvml: &'static Nvml, caller: &mut Caller, sets: &mut u64) -> Option<EventSet> {
    const CREATE: &str = "nvmlEventSetCreate";
    caller.set_allowed(shared.settings().call_deadline);
    match caller.call(CREATE, || events::new_set(nvml)) {
        Ok(set) => {
            // A wait without time, before any GPU is registered: it shows at once if the driver can wait. A refusal proves
            // nothing yet, because the set is empty.
            if *sets == 0 && caller.call(WAIT_CALL, || events::wait(nvml, set, 0)).is_ok() {
                shared.events.set_waiting(Waiting::Works);
            }
            *sets += 1;
            lock(&shared.events.gpus).clear();
            *lock(&shared.events.set) = Some((*sets, set));
            Some(set)
        }
        Err(CallFailure::Unsupported) => {
            lacking(shared, CREATE);
            None
        }
        Err(failure) => {
            tracing::info!(call = CREATE, reason = %failure.error().1, "the driver offers no events");
            None
        }
    }
}

/// Reports an event as a fact of this number; `false` for an event that is no fact.
fn report(shared: &Shared, number: u64, event: &nvmlEventData_t) -> bool {
    let gpus = lock(&shared.events.gpus);
    let Some((gpu, slot)) = gpus.get(&(event.device as usize)).cloned() else {
        tracing::warn!(bits = event.eventType, "an event of a GPU that is not registered");
        return false;
    };
    drop(gpus);
    if event.eventType == MIG_CONFIG_CHANGE {
        lock(&shared.events.mig).insert(slot);
        return false;
    }
    lock(&shared.events.faults).insert(slot);
    let in_mig_mode = lock(&shared.events.in_mig_mode).contains(&slot);
    let instance = |id: u32| (in_mig_mode && id != u32::MAX).then_some(id);
    shared.send(&FromSampler::Fact(Fact {
        source: FaultSource::Nvml,
        number,
        taken: Mono::now(),
        unix_seconds: unix_seconds(),
        kind: FactKind::Driver(DriverFact {
            gpu,
            bits: event.eventType,
            data: event.eventData,
            gpu_instance: instance(event.gpuInstanceId),
            compute_instance: instance(event.computeInstanceId),
        }),
    }));
    true
}

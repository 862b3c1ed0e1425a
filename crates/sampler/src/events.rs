//! The thread that waits for the driver's events, so that faults are reported at once and not at the next
//! visit. Each GPU is registered by its own worker, so that a sick GPU does not delay the others.

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

/// Longest single wait. It also limits how late this thread reacts to a stop.
const WAIT: Duration = Duration::from_millis(500);
const WAIT_CALL: &str = "nvmlEventSetWait_v2";
/// Pause after a failed wait.
const PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of event sets in a sampler's life. Sets are never freed, because a worker may be registering
/// a GPU in one, and every set uses file descriptors.
const MOST_SETS: u64 = 32;

/// The event set in which GPUs are registered, and what its events reported.
#[derive(Debug, Default)]
pub(crate) struct EventSets {
    /// The set with its number. A lost GPU makes the set useless, and a new set replaces it.
    set: Mutex<Option<(u64, EventSet)>>,
    /// GPU and slot by the number of the device handle.
    gpus: Mutex<HashMap<usize, (Gpu, usize)>>,
    /// GPUs whose MIG configuration has changed.
    pub mig: SlotSet,
    /// GPUs with any other event, which is a fault or the consequence of one.
    pub faults: SlotSet,
    /// GPUs in MIG mode. An event of any other GPU belongs to no instance, whatever ids the driver reports.
    pub in_mig_mode: SlotSet,
    waiting: Mutex<Waiting>,
}

/// Result of waiting for the driver's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Waiting {
    #[default]
    Untried,
    Works,
    Fails,
    /// The driver lacks this function.
    Lacking(&'static str),
}

impl EventSets {
    /// Records whether events can be waited for. A change makes the slow tier of every registered GPU due, so
    /// that its rows show the new state.
    fn set_waiting(&self, waiting: Waiting) {
        let before = std::mem::replace(&mut *lock(&self.waiting), waiting);
        if before != waiting {
            lock(&self.faults).extend(lock(&self.gpus).values().map(|(_, slot)| *slot));
        }
    }
}

/// Bit of the event for a changed MIG configuration. It is a hint to read the layout and not a fact of its own.
const MIG_CONFIG_CHANGE: u64 = 0x100;

/// Registers the GPU once per set, and adds the row that shows whether it is registered. `registered` is the
/// number of the set in which the current handle is registered.
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
            // Inserted before the first event can arrive.
            let handle = events::handle_number(device);
            lock(&sets.gpus).insert(handle, (gpu, slot));
            events::register(device, supported & wanted, set)
        });
        *registered = done.map(|()| number);
    }
    // A GPU counts as registered only while its events are waited for.
    if registered.is_some() && waiting != Waiting::Untried {
        v.rows.entity(v.gpu).flag(&m::gpu_driver_events_registered, (), waiting == Waiting::Works);
    }
}

/// Creates the set and waits for events in a thread of its own. A driver without events is not an error.
pub fn start(shared: &Arc<Shared>, nvml: &'static Nvml) {
    if let Err(error) = shared.spawn("events", EVENTS_SLOT, move |shared| run(shared, nvml)) {
        tracing::error!(
            "failed to start the event thread: {error}; faults are reported only by the kernel log"
        );
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
        // Nothing can arrive before a GPU is registered.
        if lock(&shared.events.gpus).is_empty() {
            shared.sleep(slot, Mono::now() + WAIT);
            continue;
        }
        // The wait is recorded as a promise to be back in time and not as a call: it may last, costs the driver
        // nothing, and must not delay the end of the sampler.
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
                // A set that contains a lost GPU delivers no more events of the other GPUs. Their workers
                // register them in the new set at their next slow visits. Until then the kernel log reports the
                // faults.
                CallFailure::Lost(_, text) if sets < MOST_SETS => {
                    tracing::warn!(
                        "the event set contains a lost GPU: {text}; the other GPUs register in a new set"
                    );
                    match new_set(shared, nvml, &mut caller, &mut sets) {
                        Some(new) => set = new,
                        None => return,
                    }
                }
                failure => {
                    shared.events.set_waiting(Waiting::Fails);
                    let reason = failure.error().1;
                    tracing::warn!(
                        "failed to wait for driver events ({WAIT_CALL}): {reason}; trying again in {} s",
                        PAUSE.as_secs()
                    );
                    shared.sleep(slot, Mono::now() + PAUSE);
                }
            },
        }
    }
}

/// Gives up waiting for events, because the driver lacks the function.
fn lacking(shared: &Shared, function: &'static str) {
    tracing::warn!("the driver lacks {function}; faults are reported only by the kernel log");
    *lock(&shared.events.set) = None;
    shared.events.set_waiting(Waiting::Lacking(function));
}

/// Creates a set without GPUs.
fn new_set(shared: &Shared, nvml: &'static Nvml, caller: &mut Caller, sets: &mut u64) -> Option<EventSet> {
    const CREATE: &str = "nvmlEventSetCreate";
    caller.set_allowed(shared.settings().call_deadline);
    match caller.call(CREATE, || events::new_set(nvml)) {
        Ok(set) => {
            // A wait of zero length, before any GPU is registered, shows at once whether the driver can wait. A
            // refusal proves nothing yet, because the set is empty.
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
            tracing::info!(
                "failed to create an event set ({CREATE}): {}; faults are reported only by the kernel log",
                failure.error().1
            );
            None
        }
    }
}

/// Reports an event as the fact with this number. Returns `false` if the event is not a fact.
fn report(shared: &Shared, number: u64, event: &nvmlEventData_t) -> bool {
    let gpus = lock(&shared.events.gpus);
    let Some((gpu, slot)) = gpus.get(&(event.device as usize)).cloned() else {
        tracing::warn!("ignored event {:#x} of a GPU that is not registered", event.eventType);
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

//! Event sets: Xids and other events, delivered once over all processes.

use std::collections::HashMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, nvml};
use crate::device::{self, Device, Kind};
use crate::functions::{Function, Key};
use crate::sim::{self, Sim};
use crate::step::Action;
use crate::value::{Answer, Code, code};

/// What an event says that is about no instance.
const NO_INSTANCE: u32 = u32::MAX;

/// The masks registered for each GPU.
type EventSet = Arc<Mutex<HashMap<usize, u64>>>;

static SETS: Mutex<Vec<Option<EventSet>>> = Mutex::new(Vec::new());

/// The `n`-th set has the handle `BASE + n * 16`.
const BASE: usize = 0x0045_5653 << 32;

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(set: sys::nvmlEventSet_t) -> Answer<usize> {
    set.addr().checked_sub(BASE).filter(|n| n % 16 == 0).map(|n| n / 16).ok_or(code::ERROR_INVALID_ARGUMENT)
}

fn find(set: sys::nvmlEventSet_t) -> Answer<EventSet> {
    guard(&SETS).get(number(set)?).cloned().flatten().ok_or(code::ERROR_INVALID_ARGUMENT)
}

/// The event for a waiter now, if any.
fn poll(sim: &Sim, set: &EventSet) -> Option<Result<sys::nvmlEventData_t, Code>> {
    sim.log();
    let registered = guard(set).clone();
    for (i, step) in sim.active_steps() {
        let event = match &step.action {
            Action::Event(event) => Some(event.clone()),
            Action::Xid(xid) => xid.event(),
            _ => None,
        };
        let Some(event) = event else { continue };
        let wanted = step.gpu.filter(|gpu| registered.get(gpu).is_some_and(|mask| mask & event.kind != 0));
        if let Some(gpu) = wanted
            && sim.state.consume(i, sim.times(i))
        {
            return Some(Ok(sys::nvmlEventData_t {
                device: device::handle(Kind::Gpu, gpu, 0, 0),
                eventType: event.kind,
                eventData: event.data,
                gpuInstanceId: event.gpu_instance.unwrap_or(NO_INSTANCE),
                computeInstanceId: event.compute_instance.unwrap_or(NO_INSTANCE),
            }));
        }
    }
    if sim.driver_gone() {
        return Some(Err(code::ERROR_DRIVER_NOT_LOADED));
    }
    registered.keys().any(|gpu| sim.lost(*gpu)).then_some(Err(code::ERROR_GPU_IS_LOST))
}

nvml! {
    fn nvmlEventSetCreate(out: *mut sys::nvmlEventSet_t) {
        sim::initialised()?.pass(None, Key::new(Function::nvmlEventSetCreate, &[]))?;
        let mut sets = guard(&SETS);
        call::put(out, std::ptr::without_provenance_mut(BASE + sets.len() * 16))?;
        sets.push(Some(EventSet::default()));
        Ok(())
    }

    fn nvmlDeviceRegisterEvents(
        device: sys::nvmlDevice_t, mask: c_ulonglong, set: sys::nvmlEventSet_t,
    ) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceRegisterEvents, &[]))?;
        let set = find(set)?;
        let supported = device.value(Function::nvmlDeviceGetSupportedEventTypes, &[])?.u64(0)?;
        if mask & !supported != 0 {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        *guard(&set).entry(device.index).or_default() |= mask;
        Ok(())
    }

    fn nvmlEventSetWait_v2(
        set: sys::nvmlEventSet_t, out: *mut sys::nvmlEventData_t, timeout_ms: c_uint,
    ) {
        let sim = sim::initialised()?;
        sim.pass(None, Key::new(Function::nvmlEventSetWait_v2, &[]))?;
        let set = find(set)?;
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        let mut event = None;
        sim.state.wait_until(|| {
            event = poll(sim, &set);
            event.is_some() || Instant::now() >= deadline
        });
        // A wait that ends while the lock is held waits for it.
        sim.wait_for_lock();
        call::put(out, event.unwrap_or(Err(code::ERROR_TIMEOUT))?)
    }

    fn nvmlEventSetFree(set: sys::nvmlEventSet_t) {
        sim::initialised()?.pass(None, Key::new(Function::nvmlEventSetFree, &[]))?;
        let n = number(set)?;
        let freed = guard(&SETS).get_mut(n).and_then(Option::take);
        freed.map(|_| ()).ok_or(code::ERROR_INVALID_ARGUMENT)
    }
}

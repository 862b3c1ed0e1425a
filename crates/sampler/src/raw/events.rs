//! The driver's events.

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use super::symbol;

/// A set of events to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventSet(nvmlEventSet_t);

// SAFETY: NVML's functions may be called from any thread. The set is a handle of the library, which is never
// unloaded, and the set is never freed.
unsafe impl Send for EventSet {}
// SAFETY: as above.
unsafe impl Sync for EventSet {}

/// Returns the handle of the device as a number, to compare it with the handle in an event.
pub fn handle_number(device: &Device<'static>) -> usize {
    // SAFETY: the handle is only compared.
    unsafe { device.handle() as usize }
}

/// Creates an empty set.
pub fn new_set(nvml: &Nvml) -> Result<EventSet, NvmlError> {
    let f = symbol(&nvml.lib().nvmlEventSetCreate)?;
    let mut set = std::ptr::null_mut();
    // SAFETY: the library writes one handle.
    nvml_try(unsafe { f(&mut set) })?;
    Ok(EventSet(set))
}

/// Returns the bits of the events that the device can send.
pub fn supported(device: &Device<'static>) -> Result<u64, NvmlError> {
    read!(device, nvmlDeviceGetSupportedEventTypes(), 0)
}

/// Registers these events of the device in the set.
pub fn register(device: &Device<'static>, bits: u64, set: EventSet) -> Result<(), NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceRegisterEvents)?;
    // SAFETY: handle and set belong to the library, and both stay valid.
    nvml_try(unsafe { f(device.handle(), bits, set.0) })
}

/// Waits at most `milliseconds` for an event, and returns `None` if none occurred. The safe interface lacks the
/// instances and drops unknown bits.
pub fn wait(nvml: &Nvml, set: EventSet, milliseconds: u32) -> Result<Option<nvmlEventData_t>, NvmlError> {
    let f = symbol(&nvml.lib().nvmlEventSetWait_v2)?;
    let mut data = nvmlEventData_t {
        device: std::ptr::null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: u32::MAX,
        computeInstanceId: u32::MAX,
    };
    // SAFETY: the set belongs to the library, and the struct is the one of this version of the function.
    match nvml_try(unsafe { f(set.0, &mut data, milliseconds) }) {
        Err(NvmlError::Timeout) => Ok(None),
        result => result.map(|()| Some(data)),
    }
}

//! The driver's events.

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use super::symbol;

/// A set of events that can be waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventSet(nvmlEventSet_t);

// SAFETY: NVML's functions may be called from any thread; the set is a handle of the library's, which is
// never unloaded, and it is never freed.
unsafe impl Send for EventSet {}
// SAFETY: as above.
unsafe impl Sync for EventSet {}

/// The device's handle as a number, to be compared with that of an event.
pub fn handle_number(device: &Device<'static>) -> usize {
    // SAFETY: the handle is only compared.
    unsafe { device.handle() as usize }
}

/// A new, empty set.
pub fn new_set(nvml: &Nvml) -> Result<EventSet, NvmlError> {
    let f = symbol(&nvml.lib().nvmlEventSetCreate)?;
    let mut set = std::ptr::null_mut();
    // SAFETY: the library writes one handle.
    nvml_try(unsafe { f(&mut set) })?;
    Ok(EventSet(set))
}

/// Bits of the events the device can send.
pub fn supported(device: &Device<'static>) -> Result<u64, NvmlError> {
    read!(device, nvmlDeviceGetSupportedEventTypes(), 0)
}

/// Asks for these events of the device.
pub fn register(device: &Device<'static>, bits: u64, set: EventSet) -> Result<(), NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceRegisterEvents)?;
    // SAFETY: handle and set are the library's, and both stay valid.
    nvml_try(unsafe { f(device.handle(), bits, set.0) })
}

/// Waits for an event, at most so many milliseconds; `None` if none came. The safe interface leaves out the instances and
/// cuts unknown bits.
pub fn wait(nvml: &Nvml, set: EventSet, milliseconds: u32) -> Result<Option<nvmlEventData_t>, NvmlError> {
    let f = symbol(&nvml.lib().nvmlEventSetWait_v2)?;
    let mut data = nvmlEventData_t {
        device: std::ptr::null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: u32::MAX,
        computeInstanceId: u32::MAX,
    };
    // SAFETY: the set is the library's, and the struct is the one of this version of the function.
    match nvml_try(unsafe { f(set.0, &mut data, milliseconds) }) {
        Err(NvmlError::Timeout) => Ok(None),
        result => result.map(|()| Some(data)),
    }
}

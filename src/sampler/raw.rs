//! NVML calls the wrapper's safe interface lacks, each as one small safe function.
//!
//! A function the library does not export is [`NvmlError::FailedToLoadSymbol`], never a panic.

pub mod mig;

use std::ffi::CStr;

use nvml_wrapper::enum_wrappers::device::SampleValueType;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlMarginTemperature_v1_t, nvmlReturn_t, nvmlSample_t,
    nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES, nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES,
    nvmlSystemDriverBranchInfo_v1_t, nvmlValue_t,
};

use super::visit::Number;

/// NVML's version word of a struct: size in the low bytes, version in the top one.
const fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}

fn symbol<F: Copy, E: std::fmt::Display>(function: &Result<F, E>) -> Result<F, NvmlError> {
    function.as_ref().copied().map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))
}

type GetNumber = unsafe extern "C" fn(nvmlDevice_t, *mut u32) -> nvmlReturn_t;
type GetTwoNumbers = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut u32) -> nvmlReturn_t;

fn number<E: std::fmt::Display>(
    device: &Device<'static>,
    function: &Result<GetNumber, E>,
) -> Result<u32, NvmlError> {
    let f = symbol(function)?;
    let mut value = 0;
    // SAFETY: the handle is valid while the library is loaded (it is never unloaded), and the library
    // writes one unsigned int.
    nvml_try(unsafe { f(device.handle(), &mut value) })?;
    Ok(value)
}

fn first_of_two<E: std::fmt::Display>(
    device: &Device<'static>,
    function: &Result<GetTwoNumbers, E>,
) -> Result<u32, NvmlError> {
    let f = symbol(function)?;
    let (mut first, mut second) = (0, 0);
    // SAFETY: as in `number`, with two unsigned ints.
    nvml_try(unsafe { f(device.handle(), &mut first, &mut second) })?;
    Ok(first)
}

/// Utilization of the JPEG engine, percent.
pub fn jpg_utilization(device: &Device<'static>) -> Result<u32, NvmlError> {
    first_of_two(device, &device.nvml().lib().nvmlDeviceGetJpgUtilization)
}

/// Utilization of the optical flow engine, percent.
pub fn ofa_utilization(device: &Device<'static>) -> Result<u32, NvmlError> {
    first_of_two(device, &device.nvml().lib().nvmlDeviceGetOfaUtilization)
}

/// Position of the GPU on its baseboard.
pub fn module_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    number(device, &device.nvml().lib().nvmlDeviceGetModuleId)
}

/// GPU instance id of a MIG device.
pub fn gpu_instance_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    number(device, &device.nvml().lib().nvmlDeviceGetGpuInstanceId)
}

/// Compute instance id of a MIG device.
pub fn compute_instance_id(device: &Device<'static>) -> Result<u32, NvmlError> {
    number(device, &device.nvml().lib().nvmlDeviceGetComputeInstanceId)
}

/// Bits of the clocks event reasons, as the header defines them.
pub fn clocks_event_reasons(device: &Device<'static>) -> Result<u64, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetCurrentClocksEventReasons)?;
    let mut bits = 0;
    // SAFETY: as in `number`, with one unsigned long long.
    nvml_try(unsafe { f(device.handle(), &mut bits) })?;
    Ok(bits)
}

/// Degrees left until the GPU slows down for heat.
pub fn margin_temperature(device: &Device<'static>) -> Result<i32, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetMarginTemperature)?;
    let mut info = nvmlMarginTemperature_v1_t {
        version: struct_version::<nvmlMarginTemperature_v1_t>(1),
        marginTemperature: 0,
    };
    // SAFETY: the struct is the one its version word names.
    nvml_try(unsafe { f(device.handle(), &mut info) })?;
    Ok(info.marginTemperature)
}

/// Branch of the driver, as `r580_00`.
pub fn driver_branch(nvml: &Nvml) -> Result<String, NvmlError> {
    let f = symbol(&nvml.lib().nvmlSystemGetDriverBranch)?;
    let mut info = nvmlSystemDriverBranchInfo_v1_t {
        version: struct_version::<nvmlSystemDriverBranchInfo_v1_t>(1),
        branch: [0; 80],
    };
    // SAFETY: the struct is the one its version word names, and the length is that of its text.
    nvml_try(unsafe { f(&mut info, info.branch.len() as u32) })?;
    // SAFETY: c_char and u8 have the same size, and the array is initialised.
    let bytes = unsafe { std::slice::from_raw_parts(info.branch.as_ptr().cast::<u8>(), info.branch.len()) };
    let text = CStr::from_bytes_until_nul(bytes).map_err(|_| NvmlError::Unknown)?;
    Ok(text.to_string_lossy().into_owned())
}

/// One of the driver's sample buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// Power of the board, milliwatts.
    Power,
    /// Utilization, percent.
    Utilization,
}

impl SampleKind {
    /// NVML's number of it.
    pub fn code(self) -> u32 {
        match self {
            SampleKind::Power => nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES,
            SampleKind::Utilization => nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES,
        }
    }
}

/// The most samples the buffer holds. The safe interface asks for this before each read, which doubles
/// the cost of a call that is not cheap.
pub fn samples_room(device: &Device<'static>, kind: SampleKind) -> Result<usize, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetSamples)?;
    let (mut value_type, mut count) = (0, 0);
    // SAFETY: as in `number`; without a buffer the library writes the type and the count.
    let code =
        unsafe { f(device.handle(), kind.code(), 0, &mut value_type, &mut count, std::ptr::null_mut()) };
    match nvml_try(code) {
        // More than any driver keeps: a count that is no count takes no memory.
        Ok(()) | Err(NvmlError::InsufficientSize(_)) => Ok((count as usize).min(10_000)),
        Err(error) => Err(error),
    }
}

/// The samples newer than `since` (microseconds since 1970; 0: all), oldest first, at most `room`.
pub fn samples(
    device: &Device<'static>,
    kind: SampleKind,
    since: u64,
    room: usize,
) -> Result<Vec<(u64, f64)>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetSamples)?;
    let mut buffer = vec![nvmlSample_t { timeStamp: 0, sampleValue: nvmlValue_t { ullVal: 0 } }; room];
    let mut value_type = 0;
    let mut count = u32::try_from(room).unwrap_or(u32::MAX);
    // SAFETY: as in `number`; the buffer has room for `count` samples.
    let code =
        unsafe { f(device.handle(), kind.code(), since, &mut value_type, &mut count, buffer.as_mut_ptr()) };
    match nvml_try(code) {
        Ok(()) => {}
        // None newer.
        Err(NvmlError::NotFound) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let value_type = SampleValueType::try_from(value_type)?;
    buffer.truncate(count as usize);
    buffer
        .into_iter()
        // A place that was not filled.
        .filter(|sample| sample.timeStamp > 0)
        .map(|sample| {
            let value = SampleValue::from_tag_and_union(&value_type, sample.sampleValue);
            // A value that is none is told as such, so that its time shows as a gap.
            Ok((sample.timeStamp, value.number().unwrap_or(f64::NAN)))
        })
        .collect()
}

/// A set of events that can be waited for.
#[derive(Clone, Copy, Debug)]
pub struct EventSet(nvmlEventSet_t);

// SAFETY: NVML's functions may be called from any thread; the set is a handle of the library's, which is
// never unloaded, and it is never freed.
unsafe impl Send for EventSet {}
// SAFETY: as above.
unsafe impl Sync for EventSet {}

/// An event as the driver sends it. The safe interface leaves out the instances and cuts unknown bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// The device's handle, as a number: see [`handle_number`].
    pub device: usize,
    /// Bits of nvmlEventType*.
    pub bits: u64,
    /// What comes with it.
    pub data: u64,
    /// GPU instance.
    pub gpu_instance: Option<u32>,
    /// Compute instance.
    pub compute_instance: Option<u32>,
}

/// The device's handle as a number, to be compared with that of an event.
pub fn handle_number(device: &Device<'static>) -> usize {
    // SAFETY: the handle is only compared.
    unsafe { device.handle() as usize }
}

/// A new, empty set.
pub fn event_set(nvml: &Nvml) -> Result<EventSet, NvmlError> {
    let f = symbol(&nvml.lib().nvmlEventSetCreate)?;
    let mut set = std::ptr::null_mut();
    // SAFETY: the library writes one handle.
    nvml_try(unsafe { f(&mut set) })?;
    Ok(EventSet(set))
}

/// Bits of the events the device can send.
pub fn supported_events(device: &Device<'static>) -> Result<u64, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetSupportedEventTypes)?;
    let mut bits = 0;
    // SAFETY: as in `number`, with one unsigned long long.
    nvml_try(unsafe { f(device.handle(), &mut bits) })?;
    Ok(bits)
}

/// Asks for these events of the device.
pub fn register_events(device: &Device<'static>, bits: u64, set: EventSet) -> Result<(), NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceRegisterEvents)?;
    // SAFETY: handle and set are the library's, and both stay valid.
    nvml_try(unsafe { f(device.handle(), bits, set.0) })
}

/// Waits for an event, at most so many milliseconds; `None` if none came.
pub fn wait_for_event(nvml: &Nvml, set: EventSet, milliseconds: u32) -> Result<Option<RawEvent>, NvmlError> {
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
        Ok(()) => {}
        Err(NvmlError::Timeout) => return Ok(None),
        Err(error) => return Err(error),
    }
    let instance = |id: u32| (id != u32::MAX).then_some(id);
    Ok(Some(RawEvent {
        device: data.device as usize,
        bits: data.eventType,
        data: data.eventData,
        gpu_instance: instance(data.gpuInstanceId),
        compute_instance: instance(data.computeInstanceId),
    }))
}

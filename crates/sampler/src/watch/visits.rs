//! The thread that reads NVML.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};

use super::{DeviceFacts, DeviceReading, WatchShared, WatchState, WatchTarget};
use crate::driver::{self, CallFailure, Caller};
use crate::raw;
use host::inflight::SlotWriter;
use model::clock::Mono;
use model::sync::lock;

/// Interval of clocks and reasons while a check runs; reading them costs a microsecond.
const OFTEN: Duration = Duration::from_millis(2);
/// Interval of processes and link; reading them costs tens of microseconds.
const SELDOM: Duration = Duration::from_millis(10);
/// Time after which a call counts as stuck.
const ALLOWED: Duration = Duration::from_secs(5);
/// Maximum number of MIG devices of a GPU.
const MIG_DEVICES: u32 = 64;

/// The driver's counters of reasons, in the order of [`super::Around::reason_ns`].
const REASONS: [u32; 5] = [
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST,
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
];

/// Runs the thread until the watch ends.
pub(super) fn run(shared: &WatchShared, target: &WatchTarget, slot: SlotWriter) {
    slot.expect(Mono::now());
    let mut caller = Caller::new(slot, ALLOWED);
    match WatchedGpu::open(&mut caller, target) {
        Ok(gpu) => {
            let facts = gpu.facts(&mut caller);
            lock(&shared.state).facts = Some(facts);
            shared.changed.notify_all();
            watch(shared, &gpu, &mut caller);
        }
        Err(text) => {
            lock(&shared.state).broken = Some(text);
            shared.changed.notify_all();
        }
    }
    slot.leave();
}

/// Answers requests for readings, and reads at the intervals of the watch until the end.
fn watch(shared: &WatchShared, gpu: &WatchedGpu, caller: &mut Caller) {
    let (mut often, mut seldom) = (Mono(0), Mono(0));
    loop {
        let (watching, link, asked) = {
            let mut state = lock(&shared.state);
            loop {
                let now = Mono::now();
                if state.end {
                    return;
                }
                if state.asked > state.made || (state.watching && now >= often) {
                    break;
                }
                // Every change wakes the thread. While a check runs, the thread also wakes by time.
                let left = if state.watching { often.since(now) } else { Duration::from_secs(3600) };
                state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            (state.watching, state.link, (state.asked > state.made).then_some(state.asked))
        };
        if let Some(asked) = asked {
            let reading = gpu.read(caller);
            let mut state = lock(&shared.state);
            note_foreign(&mut state, reading.processes.as_ref());
            (state.reading, state.made) = (reading, asked);
            drop(state);
            shared.changed.notify_all();
        }
        if watching {
            let now = Mono::now();
            often = now + OFTEN;
            let all = now >= seldom;
            if all {
                seldom = now + SELDOM;
            }
            visit(shared, gpu, caller, link, all);
        }
        // The costs are not used here, and must not accumulate.
        caller.take_costs();
    }
}

/// Makes one visit while a check runs. Clocks, reasons and link count only if the GPU worked for the canary
/// during the whole visit.
fn visit(shared: &WatchShared, gpu: &WatchedGpu, caller: &mut Caller, link: bool, all: bool) {
    let work = shared.work.load(Ordering::Acquire);
    if work % 2 == 1 {
        let sm_clock = gpu.clock(caller, Clock::SM);
        let memory_clock = gpu.clock(caller, Clock::Memory);
        let reasons = caller
            .call("nvmlDeviceGetCurrentClocksEventReasons", || raw::clocks_event_reasons(&gpu.device))
            .ok();
        let link = link.then(|| gpu.link(caller)).flatten();
        if shared.work.load(Ordering::Acquire) == work {
            let mut state = lock(&shared.state);
            let notes = &mut state.notes;
            notes.sm_clock = sm_clock.unwrap_or(notes.sm_clock);
            notes.memory_clock = memory_clock.unwrap_or(notes.memory_clock);
            if let Some(reasons) = reasons {
                notes.add_reasons(reasons);
            }
            notes.link = link.or(notes.link);
        }
    }
    if all {
        let processes = gpu.processes(caller);
        note_foreign(&mut lock(&shared.state), processes.as_ref());
    }
}

fn note_foreign(state: &mut WatchState, processes: Option<&BTreeSet<u32>>) {
    for pid in processes.into_iter().flatten() {
        if !state.own_pids.contains(pid) {
            state.foreign_pids.insert(*pid);
            state.ever_foreign.insert(*pid);
        }
    }
}

/// The watched GPU with its NVML handles.
struct WatchedGpu {
    nvml: &'static Nvml,
    device: Device<'static>,
    /// MIG devices of the same GPU instance, whose processes count. `None` if the whole GPU is watched.
    shared_with: Option<Vec<Device<'static>>>,
}

impl WatchedGpu {
    /// Loads the library and gets the handle by PCI address, so that no other GPU is accessed.
    fn open(caller: &mut Caller, target: &WatchTarget) -> Result<WatchedGpu, String> {
        let library = &target.nvml_library;
        let library: Option<&Path> = (!library.as_os_str().is_empty()).then_some(library);
        let because =
            |what: &'static str| move |failure: CallFailure| format!("{what}: {}", failure.error().1);
        let nvml = caller
            .call("nvmlInitWithFlags", || driver::load(library))
            .map_err(because("failed to load NVML"))?;
        // The library is never unloaded; it disappears with the process.
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        let device = caller
            .call("nvmlDeviceGetHandleByPciBusId_v2", || {
                nvml.device_by_pci_bus_id(target.pci_address.as_str())
            })
            .map_err(because("failed to get the GPU's handle from NVML"))?;
        let shared_with = target.instance.map(|(gpu_instance, _)| mig_devices(caller, &device, gpu_instance));
        Ok(WatchedGpu { nvml, device, shared_with })
    }

    fn facts(&self, caller: &mut Caller) -> DeviceFacts {
        let d = &self.device;
        let driver = caller.call("nvmlSystemGetDriverVersion", || self.nvml.sys_driver_version());
        let vbios = caller.call("nvmlDeviceGetVbiosVersion", || d.vbios_version());
        let ecc = caller.call("nvmlDeviceGetEccMode", || d.is_ecc_enabled());
        let minor = caller.call("nvmlDeviceGetMinorNumber", || d.minor_number());
        const CLOCK: &str = "nvmlDeviceGetMaxClockInfo";
        const DEFAULT_LIMIT: &str = "nvmlDeviceGetPowerManagementDefaultLimit";
        let mut number =
            |call, f: &dyn Fn() -> Result<u32, NvmlError>| caller.call::<u32>(call, f).unwrap_or(0);
        DeviceFacts {
            driver_version: driver.unwrap_or_default(),
            vbios_version: vbios.unwrap_or_default(),
            max_sm_clock_hertz: f64::from(number(CLOCK, &|| d.max_clock_info(Clock::SM))) * 1e6,
            max_memory_clock_hertz: f64::from(number(CLOCK, &|| d.max_clock_info(Clock::Memory))) * 1e6,
            bus_width_bits: number("nvmlDeviceGetMemoryBusWidth", &|| d.memory_bus_width()),
            max_link_generation: number("nvmlDeviceGetMaxPcieLinkGeneration", &|| d.max_pcie_link_gen()),
            max_link_width: number("nvmlDeviceGetMaxPcieLinkWidth", &|| d.max_pcie_link_width()),
            power_limit_milliwatts: number("nvmlDeviceGetEnforcedPowerLimit", &|| d.enforced_power_limit())
                .into(),
            default_power_limit_milliwatts: number(DEFAULT_LIMIT, &|| d.power_management_limit_default())
                .into(),
            ecc: ecc.ok().map(|ecc| ecc.currently_enabled),
            minor: minor.ok(),
        }
    }

    fn read(&self, caller: &mut Caller) -> DeviceReading {
        let d = &self.device;
        // The expensive calls come first, so that the last call includes processes that started during them.
        let fields = REASONS.map(|id| (id, 0));
        let values = caller
            .call("nvmlDeviceGetFieldValues", || raw::fields::values_at(d, &fields))
            .unwrap_or_default();
        let mut reason_ns = [None; 5];
        for (nanos, value) in reason_ns.iter_mut().zip(values) {
            *nanos = value.ok().and_then(unsigned);
        }
        let replays = caller.call("nvmlDeviceGetPcieReplayCounter", || d.pcie_replay_counter());
        let corrected = caller.call("nvmlDeviceGetTotalEccErrors", || {
            d.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile)
        });
        let temperature = caller.call("nvmlDeviceGetTemperature", || d.temperature(TemperatureSensor::Gpu));
        DeviceReading {
            processes: self.processes(caller),
            reason_ns,
            temperature: temperature.ok().map(f64::from),
            corrected: corrected.ok(),
            replays: replays.ok().map(u64::from),
        }
    }

    fn clock(&self, caller: &mut Caller, clock: Clock) -> Option<f64> {
        let megahertz = caller.call("nvmlDeviceGetClockInfo", || self.device.clock_info(clock));
        megahertz.ok().map(|megahertz| f64::from(megahertz) * 1e6)
    }

    fn link(&self, caller: &mut Caller) -> Option<(u32, u32)> {
        let d = &self.device;
        let generation = caller.call("nvmlDeviceGetCurrPcieLinkGeneration", || d.current_pcie_link_gen());
        let width = caller.call("nvmlDeviceGetCurrPcieLinkWidth", || d.current_pcie_link_width());
        generation.ok().zip(width.ok())
    }

    /// Returns the processes on the device, or `None` if the list of compute processes cannot be read. The
    /// other two lists do not exist on all GPUs, and a process that computes is always in the first.
    fn processes(&self, caller: &mut Caller) -> Option<BTreeSet<u32>> {
        let mut pids = BTreeSet::new();
        let devices = self.shared_with.as_deref().unwrap_or(std::slice::from_ref(&self.device));
        if devices.is_empty() {
            return None;
        }
        for d in devices {
            let compute =
                caller.call("nvmlDeviceGetComputeRunningProcesses_v3", || raw::processes::compute(d));
            let mps = caller.call("nvmlDeviceGetMPSComputeRunningProcesses_v3", || raw::processes::mps(d));
            let graphics =
                caller.call("nvmlDeviceGetGraphicsRunningProcesses_v3", || raw::processes::graphics(d));
            for list in [Some(compute.ok()?), mps.ok(), graphics.ok()].into_iter().flatten() {
                pids.extend(list.into_iter().map(|process| process.pid));
            }
        }
        Some(pids)
    }
}

/// Returns the MIG devices of a GPU instance, which share its memory and its time.
fn mig_devices(caller: &mut Caller, gpu: &Device<'static>, gpu_instance: u32) -> Vec<Device<'static>> {
    let mut found = Vec::new();
    let count = caller.call("nvmlDeviceGetMaxMigDeviceCount", || gpu.mig_device_count()).unwrap_or(0);
    for index in 0..count.min(MIG_DEVICES) {
        let handle =
            caller.call(("nvmlDeviceGetMigDeviceHandleByIndex", index), || gpu.mig_device_by_index(index));
        let Ok(device) = handle else { continue };
        let id = caller.call("nvmlDeviceGetGpuInstanceId", || raw::gpu_instance_id(&device));
        if id.is_ok_and(|id| id == gpu_instance) {
            found.push(device);
        }
    }
    found
}

fn unsigned(value: SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(value) => Some(value.into()),
        SampleValue::U64(value) => Some(value),
        SampleValue::I64(value) => u64::try_from(value).ok(),
        _ => None,
    }
}

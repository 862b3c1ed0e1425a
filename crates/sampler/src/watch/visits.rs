//! The thread that asks NVML.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};

use super::{Facts, Look, Shared, Target, Watching};
use crate::driver::{self, CallName, Caller};
use crate::raw;
use host::inflight::SlotWriter;
use model::clock::Mono;

/// How often clocks and reasons are read while a check runs: they cost a microsecond.
const OFTEN: Duration = Duration::from_millis(2);
/// How often processes and link are: they cost some tens.
const SELDOM: Duration = Duration::from_millis(10);
/// How long a call may take before it looks stuck.
const ALLOWED: Duration = Duration::from_secs(5);
/// Most MIG devices of a GPU.
const MIG_DEVICES: u32 = 64;

/// The driver's counters of reasons, in the order of [`super::Around::reason_ns`].
const REASONS: [u32; 5] = [
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST,
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
];

/// The thread's life.
pub(super) fn run(shared: &Shared, target: &Target, slot: SlotWriter) {
    slot.expect(Mono::now());
    let mut caller = Caller::new(slot, ALLOWED);
    match Gpu::open(&mut caller, target) {
        Ok(gpu) => {
            let facts = gpu.facts(&mut caller);
            shared.lock().facts = Some(facts);
            shared.changed.notify_all();
            watch(shared, &gpu, &mut caller);
        }
        Err(text) => {
            shared.lock().broken = Some(text);
            shared.changed.notify_all();
        }
    }
    slot.leave();
}

/// Answers what is asked for and visits as often as wanted, until the end.
fn watch(shared: &Shared, gpu: &Gpu, caller: &mut Caller) {
    let (mut often, mut seldom) = (Mono(0), Mono(0));
    loop {
        let (watching, asked) = {
            let mut state = shared.lock();
            loop {
                let now = Mono::now();
                if state.end {
                    return;
                }
                if state.asked > state.made || (state.watching.is_some() && now >= often) {
                    break;
                }
                // Woken by whoever changes something; while a check runs also by time.
                let left =
                    if state.watching.is_some() { often.since(now) } else { Duration::from_secs(3600) };
                state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            (state.watching, (state.asked > state.made).then_some(state.asked))
        };
        if let Some(asked) = asked {
            let look = gpu.look(caller);
            let mut state = shared.lock();
            note_others(&mut state, look.processes.as_ref());
            (state.look, state.made) = (look, asked);
            drop(state);
            shared.changed.notify_all();
        }
        if let Some(watching) = watching {
            let now = Mono::now();
            often = now + OFTEN;
            let all = now >= seldom;
            if all {
                seldom = now + SELDOM;
            }
            visit(shared, gpu, caller, watching, all);
        }
        // Nobody wants the costs here, and they must not pile up.
        caller.take_costs();
    }
}

/// A visit while a check runs. Clocks, reasons and link count only if the GPU worked for us all the while.
fn visit(shared: &Shared, gpu: &Gpu, caller: &mut Caller, watching: Watching, all: bool) {
    let work = shared.work.load(Ordering::Acquire);
    if work % 2 == 1 {
        let sm_clock = gpu.clock(caller, Clock::SM);
        let memory_clock = gpu.clock(caller, Clock::Memory);
        let reasons = caller
            .call("nvmlDeviceGetCurrentClocksEventReasons".into(), || raw::clocks_event_reasons(&gpu.device))
            .ok();
        let link = (watching == Watching::Link).then(|| gpu.link(caller)).flatten();
        if shared.work.load(Ordering::Acquire) == work {
            let mut state = shared.lock();
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
        note_others(&mut shared.lock(), processes.as_ref());
    }
}

fn note_others(state: &mut super::State, processes: Option<&BTreeSet<u32>>) {
    for pid in processes.into_iter().flatten() {
        if !state.friends.contains(pid) {
            state.others.insert(*pid);
            state.ever.insert(*pid);
        }
    }
}

/// The GPU, as NVML knows it.
struct Gpu {
    nvml: &'static Nvml,
    device: Device<'static>,
    /// Whose processes count: the whole GPU's, or those of the MIG devices of one GPU instance.
    shared_with: Option<Vec<Device<'static>>>,
}

impl Gpu {
    /// Loads the library and takes the handle, by PCI address so that no other GPU is touched.
    fn open(caller: &mut Caller, target: &Target) -> Result<Gpu, String> {
        let library = &target.nvml_library;
        let library: Option<&Path> = (!library.as_os_str().is_empty()).then_some(library);
        let told = |what: &str| {
            let what = what.to_owned();
            move |failure: driver::Failure| format!("{what}: {}", failure.told().1)
        };
        let nvml = caller
            .call("nvmlInitWithFlags".into(), || driver::load(library))
            .map_err(told("NVML cannot be used"))?;
        // Never unloaded: the process ends with it.
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        let device = caller
            .call("nvmlDeviceGetHandleByPciBusId_v2".into(), || {
                nvml.device_by_pci_bus_id(target.pci_address.as_str())
            })
            .map_err(told("NVML does not know the GPU"))?;
        let shared_with = target.instance.map(|(gpu_instance, _)| mig_devices(caller, &device, gpu_instance));
        Ok(Gpu { nvml, device, shared_with })
    }

    fn facts(&self, caller: &mut Caller) -> Facts {
        let d = &self.device;
        let number = |caller: &mut Caller, call: &'static str, f: &dyn Fn() -> Result<u32, NvmlError>| {
            caller.call(CallName::from(call), f).unwrap_or(0)
        };
        let clock = |caller: &mut Caller, clock: Clock| {
            let told = caller.call("nvmlDeviceGetMaxClockInfo".into(), || d.max_clock_info(clock));
            f64::from(told.unwrap_or(0)) * 1e6
        };
        Facts {
            driver_version: caller
                .call("nvmlSystemGetDriverVersion".into(), || self.nvml.sys_driver_version())
                .unwrap_or_default(),
            vbios_version: caller
                .call("nvmlDeviceGetVbiosVersion".into(), || d.vbios_version())
                .unwrap_or_default(),
            max_sm_clock_hertz: clock(caller, Clock::SM),
            max_memory_clock_hertz: clock(caller, Clock::Memory),
            bus_width_bits: number(caller, "nvmlDeviceGetMemoryBusWidth", &|| d.memory_bus_width()),
            max_link_generation: number(caller, "nvmlDeviceGetMaxPcieLinkGeneration", &|| {
                d.max_pcie_link_gen()
            }),
            max_link_width: number(caller, "nvmlDeviceGetMaxPcieLinkWidth", &|| d.max_pcie_link_width()),
            power_limit_milliwatts: number(caller, "nvmlDeviceGetEnforcedPowerLimit", &|| {
                d.enforced_power_limit()
            })
            .into(),
            default_power_limit_milliwatts: number(
                caller,
                "nvmlDeviceGetPowerManagementDefaultLimit",
                &|| d.power_management_limit_default(),
            )
            .into(),
            ecc: caller
                .call("nvmlDeviceGetEccMode".into(), || d.is_ecc_enabled())
                .ok()
                .map(|ecc| ecc.currently_enabled),
            minor: caller.call("nvmlDeviceGetMinorNumber".into(), || d.minor_number()).ok(),
        }
    }

    fn look(&self, caller: &mut Caller) -> Look {
        let d = &self.device;
        // First those that are dear: who came meanwhile is seen by the last.
        let fields = REASONS.map(FieldId);
        let values = caller
            .call("nvmlDeviceGetFieldValues".into(), || d.field_values_for(&fields))
            .unwrap_or_default();
        let mut reason_ns = [None; 5];
        for (told, value) in reason_ns.iter_mut().zip(values) {
            *told = value.and_then(|sample| sample.value).ok().and_then(unsigned);
        }
        let replays = caller.call("nvmlDeviceGetPcieReplayCounter".into(), || d.pcie_replay_counter());
        let corrected = caller.call("nvmlDeviceGetTotalEccErrors".into(), || {
            d.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile)
        });
        let temperature =
            caller.call("nvmlDeviceGetTemperature".into(), || d.temperature(TemperatureSensor::Gpu));
        Look {
            processes: self.processes(caller),
            reason_ns,
            temperature: temperature.ok().map(f64::from),
            corrected: corrected.ok(),
            replays: replays.ok().map(u64::from),
        }
    }

    fn clock(&self, caller: &mut Caller, clock: Clock) -> Option<f64> {
        let told = caller.call("nvmlDeviceGetClockInfo".into(), || self.device.clock_info(clock));
        told.ok().map(|megahertz| f64::from(megahertz) * 1e6)
    }

    fn link(&self, caller: &mut Caller) -> Option<(u32, u32)> {
        let d = &self.device;
        let generation =
            caller.call("nvmlDeviceGetCurrPcieLinkGeneration".into(), || d.current_pcie_link_gen());
        let width = caller.call("nvmlDeviceGetCurrPcieLinkWidth".into(), || d.current_pcie_link_width());
        generation.ok().zip(width.ok())
    }

    /// Processes on the device. `None` if the list of compute processes cannot be read: the other two are not
    /// kept on all GPUs, and nobody computes without being in the first.
    fn processes(&self, caller: &mut Caller) -> Option<BTreeSet<u32>> {
        let mut pids = BTreeSet::new();
        let devices = self.shared_with.as_deref().unwrap_or(std::slice::from_ref(&self.device));
        if devices.is_empty() {
            return None;
        }
        for d in devices {
            let compute = caller
                .call("nvmlDeviceGetComputeRunningProcesses_v3".into(), || d.running_compute_processes());
            let mps = caller.call("nvmlDeviceGetMPSComputeRunningProcesses_v3".into(), || {
                d.mps_running_compute_processes()
            });
            let graphics = caller
                .call("nvmlDeviceGetGraphicsRunningProcesses_v3".into(), || d.running_graphics_processes());
            for list in [Some(compute.ok()?), mps.ok(), graphics.ok()].into_iter().flatten() {
                pids.extend(list.into_iter().map(|process| process.pid));
            }
        }
        Some(pids)
    }
}

/// The MIG devices of a GPU instance: they share its memory and its time.
fn mig_devices(caller: &mut Caller, gpu: &Device<'static>, gpu_instance: u32) -> Vec<Device<'static>> {
    let mut found = Vec::new();
    let count = caller.call("nvmlDeviceGetMaxMigDeviceCount".into(), || gpu.mig_device_count()).unwrap_or(0);
    for index in 0..count.min(MIG_DEVICES) {
        let handle = caller
            .call(("nvmlDeviceGetMigDeviceHandleByIndex", index).into(), || gpu.mig_device_by_index(index));
        let Ok(device) = handle else { continue };
        let id = caller.call("nvmlDeviceGetGpuInstanceId".into(), || raw::gpu_instance_id(&device));
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

//! The readings of a GPU by tier. To add a metric whose call is cheap, add one line to `normal`.
//!
//! The measured cost of a call decides its tier (`docs/design/costs.md`). A call of 1 ms or more belongs to the slow
//! tier or a rarer one, because the visits of those tiers are made one at a time on the node.

/// Defines a field that feeds one metric.
macro_rules! field {
    ($id:ident, $metric:ident, $labels:expr, $scale:expr) => {
        Field::new(field_id::$id, m::$metric.id(), $scale, |rows, gpu, _, value| {
            rows.entity(gpu).record(&m::$metric, $labels, value)
        })
    };
}

/// Defines the counter of the seconds for which one reason lowered the clocks.
macro_rules! clock_event {
    ($id:ident, $event:ident) => {
        field!($id, gpu_clock_event_seconds_total, (ClockEvent::$event,), NANO)
    };
}

/// Defines the counter of the seconds for which one policy limited the performance.
macro_rules! violation {
    ($id:ident, $policy:ident) => {
        field!($id, gpu_violation_seconds_total, (PerfPolicy::$policy,), NANO)
    };
}

mod errors;
mod fabric;
mod nvlink;
mod pcie;
pub(super) mod processes;
mod slowdown;
mod vgpu;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode as NvmlComputeMode, EccCounter as NvmlEccCounter,
    GpuVirtualizationMode as NvmlVirtualization, InfoRom, MemoryError, MemoryLocation, TemperatureSensor,
    TemperatureThreshold as NvmlThreshold,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::field_id;

use super::raw;
use super::visit::{BITS, Field, KIBI, MEGA, MICRO, MILLI, NANO, NvmlNumber, ONE, PERCENT, Visit};
use model::catalog::schema::{KnownLabel, Metric};
use model::catalog::{
    self as m, BoardInfo, ClockDomain, ClockEvent, ComputeMode, DropReason, EccCounter, EccError, EccMemory,
    Gpu, GpuInfo, PerfPolicy, PlatformInfo, PowerLimit, RemapCause, Sensor, TemperatureThreshold, Tier,
};
use model::pci::kernel_address;

/// Returns the ids of all fields that are read, in the numbering of the bindings.
pub fn fields_read() -> impl Iterator<Item = u32> {
    let tables = [
        &SLOW_FIELDS[..],
        &POLICY_FIELDS,
        &slowdown::FIELDS,
        &pcie::FIELDS,
        &nvlink::TOTALS,
        &nvlink::OF_LINKS,
        &nvlink::OF_LINKS_5,
    ];
    tables.into_iter().flatten().map(Field::id).chain(nvlink::ONE_BY_ONE)
}

pub fn read(tier: Tier, v: &mut Visit<'_>) {
    match tier {
        Tier::Identity => identity(v),
        Tier::Once => once(v),
        Tier::Fast => fast(v),
        Tier::Normal => normal(v),
        Tier::Slow => slow(v),
        Tier::Rare => rare(v),
        Tier::Nvlink => nvlink::links_tier(v),
        Tier::Samples | Tier::Computed => {}
    }
}

/// Fields that the driver reads together in one call of about 0.1 ms, which is too expensive for every second.
static SLOW_FIELDS: [Field; 10] = [
    Field::new(
        field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        m::gpu_recovery_action.id(),
        ONE,
        errors::recovery_action,
    ),
    field!(NVML_FI_DEV_MEMORY_TEMP, gpu_temperature_celsius, (Sensor::Memory,), ONE),
    field!(NVML_FI_DEV_POWER_INSTANT, gpu_power_instant_watts, (), MILLI),
    field!(NVML_FI_DEV_REMAPPED_COR, gpu_remapped_rows, (RemapCause::Correctable,), ONE),
    field!(NVML_FI_DEV_REMAPPED_UNC, gpu_remapped_rows, (RemapCause::Uncorrectable,), ONE),
    field!(NVML_FI_DEV_REMAPPED_PENDING, gpu_row_remap_pending, (), ONE),
    field!(NVML_FI_DEV_REMAPPED_FAILURE, gpu_row_remap_failure, (), ONE),
    clock_event!(NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, SwPowerCap),
    clock_event!(NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, SyncBoost),
    clock_event!(NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, SwThermalSlowdown),
];

static POLICY_FIELDS: [Field; 4] = [
    field!(NVML_FI_DEV_PERF_POLICY_THERMAL, gpu_thermal_violation_seconds_total, (), NANO),
    violation!(NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, BoardLimit),
    violation!(NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, LowUtilization),
    violation!(NVML_FI_DEV_PERF_POLICY_RELIABILITY, Reliability),
];

const DOMAINS: [(Clock, ClockDomain); 4] = [
    (Clock::Graphics, ClockDomain::Graphics),
    (Clock::SM, ClockDomain::Sm),
    (Clock::Memory, ClockDomain::Memory),
    (Clock::Video, ClockDomain::Video),
];

/// Bits of `nvmlClocksEventReason*` in the header, in the order of [`ClockEvent`].
const CLOCK_EVENT_BITS: [u64; 9] = [0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100];

/// Reads only the values that are summed between two publications. Anything else would be read nine times for
/// nothing.
fn fast(v: &mut Visit<'_>) {
    const REASONS: &str = "nvmlDeviceGetCurrentClocksEventReasons";
    // The ledger sums the states to seconds, so they are sent even if they are not published themselves.
    let feeds = [m::gpu_clock_event_active.id(), m::gpu_clock_event_seconds_total.id()];
    let bits = v.read(REASONS, &feeds, raw::clocks_event_reasons);
    v.state.slowdown.seen |= bits.is_none_or(|bits| bits & slowdown::BITS != 0);
    if let Some(bits) = bits {
        for (event, bit) in ClockEvent::ALL.iter().zip(CLOCK_EVENT_BITS) {
            v.rows.entity(v.gpu).flag(&m::gpu_clock_event_active, (*event,), bits & bit != 0);
        }
    }
}

fn normal(v: &mut Visit<'_>) {
    v.value("nvmlDeviceGetPowerUsage", &m::gpu_power_watts, (), MILLI, |d| d.power_usage());
    temperature(v);
    for (clock, domain) in DOMAINS {
        let call = ("nvmlDeviceGetClockInfo", clock.as_c());
        v.value(call, &m::gpu_clock_hertz, (domain,), MEGA, |d| d.clock_info(clock));
    }

    utilization(v);
    v.value("nvmlDeviceGetEncoderUtilization", &m::gpu_encoder_utilization_ratio, (), PERCENT, |d| {
        d.encoder_utilization().map(|u| u.utilization)
    });
    v.value("nvmlDeviceGetDecoderUtilization", &m::gpu_decoder_utilization_ratio, (), PERCENT, |d| {
        d.decoder_utilization().map(|u| u.utilization)
    });
    v.value("nvmlDeviceGetJpgUtilization", &m::gpu_jpeg_utilization_ratio, (), PERCENT, raw::jpg_utilization);
    v.value("nvmlDeviceGetOfaUtilization", &m::gpu_ofa_utilization_ratio, (), PERCENT, raw::ofa_utilization);

    processes::normal(v);

    let metrics = [
        &m::gpu_memory_total_bytes,
        &m::gpu_memory_used_bytes,
        &m::gpu_memory_free_bytes,
        &m::gpu_memory_reserved_bytes,
    ];
    v.values(v.gpu, "nvmlDeviceGetMemoryInfo_v2", metrics, ONE, |d| {
        d.memory_info()
            .map(|memory| [memory.total, memory.used, memory.free, memory.reserved].map(u64::number))
    });
    v.value("nvmlDeviceGetPerformanceState", &m::gpu_performance_state, (), ONE, |d| {
        d.performance_state().map(|state| state.as_c())
    });
    for (counter, c) in ECC_COUNTERS {
        for (error, e) in ECC_ERRORS {
            let call = ("nvmlDeviceGetTotalEccErrors", [error.as_c(), counter.as_c()]);
            v.value(call, &m::gpu_ecc_total_errors, (c, e), ONE, |d| d.total_ecc_errors(error, counter));
        }
    }
}

/// Reads the temperature of the core and derives the margin until slowdown, because NVML's own margin takes 0.9
/// ms.
fn temperature(v: &mut Visit<'_>) {
    const CALL: (&str, u32) = ("nvmlDeviceGetTemperature", 0);
    let margin = &m::gpu_temperature_margin_celsius;
    let feeds = [m::gpu_temperature_celsius.id(), margin.id()];
    let Some(celsius) = v.read(CALL, &feeds, |d| d.temperature(TemperatureSensor::Gpu)) else { return };
    v.add(CALL, &m::gpu_temperature_celsius, (Sensor::Gpu,), celsius, ONE);
    if let Some((limit, celsius)) = slowdown_celsius(v).zip(celsius.number()) {
        v.add(CALL, margin, (), Some(limit - celsius), ONE);
    }
}

const THRESHOLD: &str = "nvmlDeviceGetTemperatureThreshold";

/// Returns the lowest temperature at which the driver lowers the clocks. It is read once per handle.
fn slowdown_celsius(v: &mut Visit<'_>) -> Option<f64> {
    if let Some(known) = v.state.slowdown_celsius {
        return known;
    }
    let failures = v.failures();
    let feeds = [m::gpu_temperature_margin_celsius.id()];
    let read = |threshold: NvmlThreshold| {
        let celsius = v.read((THRESHOLD, threshold.as_c()), &feeds, |d| d.temperature_threshold(threshold));
        celsius.and_then(NvmlNumber::number).filter(|celsius| *celsius > 0.0)
    };
    let known = [NvmlThreshold::Slowdown, NvmlThreshold::GpuMax].map(read);
    let lowest = known.into_iter().flatten().reduce(f64::min);
    if v.failures() == failures && v.ended.is_none() {
        v.state.slowdown_celsius = Some(lowest);
    }
    lowest
}

fn utilization(v: &mut Visit<'_>) {
    const CALL: &str = "nvmlDeviceGetUtilizationRates";
    // The profiling counters are compared with the rate, so the rate is read even if it is not published.
    let feeds = [
        m::gpu_utilization_ratio.id(),
        m::gpu_memory_utilization_ratio.id(),
        m::gpu_gpm_active_ratio.id(),
        m::gpu_gpm_active_seconds_total.id(),
    ];
    let rates = v.read(CALL, &feeds, |d| d.utilization_rates());
    let busy = rates.as_ref().and_then(|rates| rates.gpu.number()).is_some_and(|percent| percent > 0.0);
    v.state.work.busy |= busy;
    v.state.work.idle |= !busy;
    if let Some(rates) = rates {
        v.add(CALL, &m::gpu_utilization_ratio, (), rates.gpu, PERCENT);
        v.add(CALL, &m::gpu_memory_utilization_ratio, (), rates.memory, PERCENT);
    }
}

/// Adds a power limit given in milliwatts. A limit of 0 means that the board did not answer.
fn power_limit(v: &mut Visit<'_>, call: &'static str, limit: PowerLimit, milliwatts: u32) {
    let metric = &m::gpu_power_limit_watts;
    match milliwatts {
        0 => v.dropped(call, metric.id(), DropReason::OutOfRange),
        _ => v.add(call, metric, (limit,), milliwatts, MILLI),
    }
}

fn read_power_limit(
    v: &mut Visit<'_>,
    call: &'static str,
    limit: PowerLimit,
    f: fn(&Device<'static>) -> Result<u32, NvmlError>,
) {
    if let Some(milliwatts) = v.read(call, &[m::gpu_power_limit_watts.id()], f) {
        power_limit(v, call, limit, milliwatts);
    }
}

const ECC_COUNTERS: [(NvmlEccCounter, EccCounter); 2] =
    [(NvmlEccCounter::Volatile, EccCounter::Volatile), (NvmlEccCounter::Aggregate, EccCounter::Aggregate)];

const ECC_ERRORS: [(MemoryError, EccError); 2] =
    [(MemoryError::Corrected, EccError::Corrected), (MemoryError::Uncorrected, EccError::Uncorrected)];

const ECC_MEMORIES: [(MemoryLocation, EccMemory); 8] = [
    (MemoryLocation::L1Cache, EccMemory::L1Cache),
    (MemoryLocation::L2Cache, EccMemory::L2Cache),
    (MemoryLocation::Device, EccMemory::Dram),
    (MemoryLocation::RegisterFile, EccMemory::RegisterFile),
    (MemoryLocation::Texture, EccMemory::TextureMemory),
    (MemoryLocation::Shared, EccMemory::TextureShm),
    (MemoryLocation::Cbu, EccMemory::Cbu),
    (MemoryLocation::SRAM, EccMemory::Sram),
];

fn slow(v: &mut Visit<'_>) {
    v.fields(&SLOW_FIELDS);
    slowdown::slow(v);
    read_power_limit(v, "nvmlDeviceGetEnforcedPowerLimit", PowerLimit::Enforced, |d| {
        d.enforced_power_limit()
    });
    v.value("nvmlDeviceGetCurrPcieLinkGeneration", &m::gpu_pcie_link_generation, (), ONE, |d| {
        d.current_pcie_link_gen()
    });
    v.value("nvmlDeviceGetCurrPcieLinkWidth", &m::gpu_pcie_link_width_lanes, (), ONE, |d| {
        d.current_pcie_link_width()
    });

    for (counter, c) in ECC_COUNTERS {
        for (error, e) in ECC_ERRORS {
            for (location, memory) in ECC_MEMORIES {
                let call =
                    ("nvmlDeviceGetMemoryErrorCounter", [error.as_c(), counter.as_c(), location.as_c()]);
                v.value(call, &m::gpu_ecc_errors, (c, e, memory), ONE, |d| {
                    d.memory_error_counter(error, counter, location)
                });
            }
        }
    }

    errors::slow(v);
    fabric::slow(v);
    nvlink::slow(v);
    sessions(v);
    vgpu::slow(v);
    processes::slow(v);

    v.value("nvmlDeviceGetPersistenceMode", &m::gpu_persistence_mode_enabled, (), ONE, |d| {
        d.is_in_persistent_mode()
    });
    if let Some(mode) = v.read("nvmlDeviceGetComputeMode", &[m::gpu_compute_mode.id()], |d| d.compute_mode())
    {
        let mode = match mode {
            NvmlComputeMode::Default => ComputeMode::Default,
            NvmlComputeMode::ExclusiveThread => ComputeMode::ExclusiveThread,
            NvmlComputeMode::Prohibited => ComputeMode::Prohibited,
            NvmlComputeMode::ExclusiveProcess => ComputeMode::ExclusiveProcess,
        };
        v.rows.entity(v.gpu).state(&m::gpu_compute_mode, mode);
    }
}

fn sessions(v: &mut Visit<'_>) {
    let encoder =
        [&m::gpu_encoder_sessions, &m::gpu_encoder_frames_per_second, &m::gpu_encoder_latency_seconds];
    session_averages(v, "nvmlDeviceGetEncoderStats", encoder, |d| {
        d.encoder_stats().map(|stats| [stats.session_count, stats.average_fps, stats.average_latency])
    });
    let capture = [&m::gpu_fbc_sessions, &m::gpu_fbc_frames_per_second, &m::gpu_fbc_latency_seconds];
    session_averages(v, "nvmlDeviceGetFBCStats", capture, |d| {
        d.fbc_stats().map(|stats| [stats.sessions_count, stats.average_fps, stats.average_latency])
    });
}

/// Reads the number of sessions, their frame rate and their latency. Without sessions, an average of 0 is not a
/// latency and is left out.
fn session_averages(
    v: &mut Visit<'_>,
    call: &'static str,
    metrics: [&Metric<Gpu, ()>; 3],
    read: fn(&Device<'static>) -> Result<[u32; 3], NvmlError>,
) {
    let Some([sessions, frames, latency]) = v.read(call, &metrics.map(Metric::id), read) else { return };
    v.add(call, metrics[0], (), sessions, ONE);
    v.add(call, metrics[1], (), frames, ONE);
    if sessions > 0 {
        v.add(call, metrics[2], (), latency, MICRO);
    }
}

fn rare(v: &mut Visit<'_>) {
    // The most expensive call. It also delays the cheap calls of every NVML client on the GPU.
    v.value("nvmlDeviceGetTotalEnergyConsumption", &m::gpu_energy_joules_total, (), MILLI, |d| {
        d.total_energy_consumption()
    });

    read_power_limit(v, "nvmlDeviceGetPowerManagementLimit", PowerLimit::Configured, |d| {
        d.power_management_limit()
    });
    read_power_limit(v, "nvmlDeviceGetPowerManagementDefaultLimit", PowerLimit::Default, |d| {
        d.power_management_limit_default()
    });
    const CONSTRAINTS: &str = "nvmlDeviceGetPowerManagementLimitConstraints";
    let feeds = [m::gpu_power_limit_watts.id()];
    if let Some(c) = v.read(CONSTRAINTS, &feeds, |d| d.power_management_limit_constraints()) {
        power_limit(v, CONSTRAINTS, PowerLimit::Min, c.min_limit);
        power_limit(v, CONSTRAINTS, PowerLimit::Max, c.max_limit);
    }

    let metrics =
        [&m::gpu_bar1_memory_total_bytes, &m::gpu_bar1_memory_used_bytes, &m::gpu_bar1_memory_free_bytes];
    v.values(v.gpu, "nvmlDeviceGetBAR1MemoryInfo", metrics, ONE, |d| {
        d.bar1_memory_info().map(|bar1| [bar1.total, bar1.used, bar1.free].map(u64::number))
    });
    let metrics = [&m::gpu_ecc_mode_enabled, &m::gpu_ecc_mode_pending_enabled];
    v.values(v.gpu, "nvmlDeviceGetEccMode", metrics, ONE, |d| {
        d.is_ecc_enabled().map(|ecc| [ecc.currently_enabled, ecc.pending_enabled].map(bool::number))
    });

    if v.state.slowdown_celsius == Some(None) {
        v.value("nvmlDeviceGetMarginTemperature", &m::gpu_temperature_margin_celsius, (), ONE, |d| {
            raw::margin_temperature(d)
        });
    }
    v.value("nvmlDeviceGetPcieReplayCounter", &m::gpu_pcie_replays_total, (), ONE, |d| {
        d.pcie_replay_counter()
    });
    v.fields(&pcie::FIELDS);
    v.fields(&POLICY_FIELDS);
    errors::rare(v);
    let licence = "nvmlDeviceGetGridLicensableFeatures_v4";
    v.value(licence, &m::gpu_vgpu_software_licensed, (), ONE, raw::vgpu::licensed);
    pcie::rare(v);
    pcie::throughput(v);
    fabric::rare(v);
    nvlink::rare(v);
}

fn once(v: &mut Visit<'_>) {
    nvlink::once(v);
    for (threshold, t) in [
        (NvmlThreshold::Shutdown, TemperatureThreshold::Shutdown),
        (NvmlThreshold::Slowdown, TemperatureThreshold::Slowdown),
        (NvmlThreshold::MemoryMax, TemperatureThreshold::MemoryMax),
        (NvmlThreshold::GpuMax, TemperatureThreshold::GpuMax),
    ] {
        let call = (THRESHOLD, threshold.as_c());
        let metric = &m::gpu_temperature_threshold_celsius;
        match v.read(call, &[metric.id()], |d| d.temperature_threshold(threshold)) {
            None => {}
            Some(0) => v.dropped(call, metric.id(), DropReason::OutOfRange),
            Some(celsius) => v.add(call, metric, (t,), celsius, ONE),
        }
    }
    for (clock, domain) in DOMAINS {
        let call = ("nvmlDeviceGetMaxClockInfo", clock.as_c());
        v.value(call, &m::gpu_clock_max_hertz, (domain,), MEGA, |d| d.max_clock_info(clock));
    }
    pcie::once(v);
    platform(v);
    board(v);
    v.value("nvmlDeviceGetNumGpuCores", &m::gpu_cuda_cores, (), ONE, |d| d.num_cores());
    v.value("nvmlDeviceGetMemoryBusWidth", &m::gpu_memory_bus_width_bytes, (), BITS, |d| {
        d.memory_bus_width()
    });
}

fn platform(v: &mut Visit<'_>) {
    let feeds = [m::gpu_platform_info.id()];
    if let Some(place) = v.read("nvmlDeviceGetPlatformInfo", &feeds, raw::platform_info) {
        let info = PlatformInfo {
            chassis_serial: raw::bytes_text(&place.chassisSerialNumber),
            slot: place.slotNumber.to_string(),
            tray: place.trayIndex.to_string(),
            host_id: place.hostId.to_string(),
            module_id: place.moduleId.to_string(),
        };
        v.rows.entity(v.gpu).info(&m::gpu_platform_info, info);
    }
}

/// Reads the labels that only dcgm-exporter's page shows.
fn board(v: &mut Visit<'_>) {
    let feeds = [m::gpu_board_info.id()];
    if !v.wants(&feeds) {
        return;
    }
    let brand = v.read("nvmlDeviceGetBrand", &feeds, raw::brand).unwrap_or_default();
    let mut version = |object: InfoRom| {
        let call = ("nvmlDeviceGetInforomVersion", object.as_c());
        v.read(call, &feeds, |d| d.info_rom_version(object)).unwrap_or_default()
    };
    let info = BoardInfo {
        brand,
        inforom_oem_version: version(InfoRom::OEM),
        inforom_ecc_version: version(InfoRom::ECC),
        inforom_power_version: version(InfoRom::Power),
    };
    v.rows.entity(v.gpu).info(&m::gpu_board_info, info);
}

fn identity(v: &mut Visit<'_>) {
    let feeds = [m::gpu_info.id()];
    let text =
        |v: &mut Visit<'_>, call: &'static str, f: fn(&Device<'static>) -> Result<String, NvmlError>| {
            v.read(call, &feeds, f).unwrap_or_default()
        };
    let pci = v.read("nvmlDeviceGetPciInfo_v3", &feeds, |d| d.pci_info());
    let hex = |id: u32| format!("{id:#010x}");
    let info = GpuInfo {
        model: text(v, "nvmlDeviceGetName", |d| d.name()),
        architecture: text(v, "nvmlDeviceGetArchitecture", |d| {
            d.architecture().map(|a| format!("{a:?}").to_lowercase())
        }),
        compute_capability: text(v, "nvmlDeviceGetCudaComputeCapability", |d| {
            d.cuda_compute_capability().map(|c| format!("{}.{}", c.major, c.minor))
        }),
        pci_address: pci.as_ref().map_or_else(String::new, |p| kernel_address(&p.bus_id)),
        pci_device_id: pci.as_ref().map_or_else(String::new, |p| hex(p.pci_device_id)),
        pci_subsystem_id: pci.as_ref().and_then(|p| p.pci_sub_system_id).map_or_else(String::new, hex),
        serial: text(v, "nvmlDeviceGetSerial", |d| d.serial()),
        board_part_number: text(v, "nvmlDeviceGetBoardPartNumber", |d| d.board_part_number()),
        minor_number: text(v, "nvmlDeviceGetMinorNumber", |d| d.minor_number().map(|n| n.to_string())),
        module_id: text(v, "nvmlDeviceGetModuleId", |d| raw::module_id(d).map(|n| n.to_string())),
        vbios_version: text(v, "nvmlDeviceGetVbiosVersion", |d| d.vbios_version()),
        inforom_version: text(v, "nvmlDeviceGetInforomImageVersion", |d| d.info_rom_image_version()),
        gsp_firmware_version: text(v, "nvmlDeviceGetGspFirmwareVersion", |d| d.gsp_firmware_version()),
        virtualization_mode: text(v, "nvmlDeviceGetVirtualizationMode", virtualization),
    };
    v.rows.entity(v.gpu).info(&m::gpu_info, info);
}

/// Returns how the GPU is virtualised: whether it is passed to a virtual machine or serves some.
fn virtualization(device: &Device<'static>) -> Result<String, NvmlError> {
    let mode = match device.virtualization_mode()? {
        NvmlVirtualization::Bare => "none",
        NvmlVirtualization::PassThrough => "passthrough",
        NvmlVirtualization::Vgpu => "vgpu",
        NvmlVirtualization::HostVgpu => "host_vgpu",
        NvmlVirtualization::HostVsga => "host_vsga",
    };
    Ok(mode.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clock_event_has_its_bit() {
        assert_eq!(ClockEvent::ALL.len(), CLOCK_EVENT_BITS.len());
    }
}

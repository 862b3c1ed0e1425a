//! Every entity, label and metric, declared once.
//!
//! `# HELP`, `# TYPE`, `# UNIT`, `docs/METRICS.md`, `gpu-node-exporter metrics` and the checks of names and
//! labels elsewhere all come from here; entities and labels are in `catalog/labels.rs`. To add a metric: one
//! entry below, one line where it is read (`CONTRIBUTING.md` shows it). The doc comment of an entry is its
//! help text.

use std::hash::{DefaultHasher, Hash, Hasher};

mod groups;
pub mod joins;
mod labels;
pub mod left_out;
pub mod schema;

pub use groups::MetricGroup;
pub use labels::*;
use schema::metrics;
pub use schema::{Kind, MetricDef, MetricId, Tier, Unit};

metrics! {
    // --- driver and inventory -------------------------------------------------------------------
    /// 1 while the driver answers; 0 while it is absent, unloaded or answers nothing. Absent until the first attempt has ended, and while the driver is released on request (`gpu_driver_paused`), so that an upgrade raises no alarm.
    gpu_driver_up: Gauge<Node>, None, Computed, "0.1.0";
    /// 1 while two sampler processes in a row hang in driver calls: the driver as a whole is stuck, no NVML value is published, and nothing more is started until one of them has ended.
    gpu_driver_stuck: Gauge<Node>, None, Computed, "0.1.0";
    /// Versions of the driver and its library.
    gpu_driver_info: Info<Node, DriverInfo>, None, Identity, "0.1.0";
    /// 1 while the driver is released on request (`gpu-node-exporter driver release`), so that it can be unloaded. Nothing is measured then, and `gpu_driver_up` and `gpu_up` are absent; a release that lasts too long is seen here.
    gpu_driver_paused: Gauge<Node>, None, Computed, "0.1.0";
    /// Loads of the kernel module seen. A restart of the exporter or its sampler never counts.
    gpu_driver_loads_total: Counter<Node>, None, Computed, "0.1.0";
    /// When the kernel module was loaded, by the kernel log, the driver's kernel threads, or as it was seen to come. Absent if neither tells.
    gpu_driver_load_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// 1 if the loaded kernel module has the version it is compared with: the one declared (`driver.expected_version`), or that of the libnvidia-ml on disk.
    gpu_driver_version_matches: Gauge<Node, (VersionAgainst,)>, None, Computed, "0.1.0", at most 1.0;
    /// 1 while NVML refuses to work because library and kernel module differ in version. Absent while the driver is not asked or stuck.
    gpu_driver_library_mismatch: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// Resets of the GPU seen: it was lost and answers again, or the driver asked for a reset and asks no more.
    gpu_resets_total: Counter<Gpu>, None, Computed, "0.1.0";
    /// When the node booted.
    gpu_host_boot_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// GPUs the driver lists now.
    gpu_devices: Gauge<Node>, None, Slow, "0.1.0";
    /// The most GPUs seen since the node booted (kept over restarts of the exporter), whatever `health.expected_gpus` says; `gpu_devices_missing` goes by both.
    gpu_devices_expected: Gauge<Node>, None, Computed, "0.1.0";
    /// Identity of the GPU. Stays while the GPU or the driver is stuck, so that alerts can name the board.
    gpu_info: Info<Gpu, GpuInfo>, None, Identity, "0.1.0";
    /// 1 while the GPU answers in time; 0 while a driver call on it is stuck, it is lost, or the driver is away. A GPU whose handle could never be had has an empty `uuid`.
    gpu_up: Gauge<Gpu>, None, Computed, "0.1.0";
    /// CUDA cores (FP32 lanes) of the GPU.
    gpu_cuda_cores: Gauge<Gpu>, None, Once, "0.1.0", group Limits;
    /// Width of the memory bus: bytes moved in one transfer, two of which fit in a cycle of the memory clock.
    gpu_memory_bus_width_bytes: Gauge<Gpu>, Bytes, Once, "0.1.0", group Limits;

    // --- utilization ----------------------------------------------------------------------------
    /// Share of the driver's last sample period in which at least one kernel ran, the canary's included. Not how full the GPU was. Absent in MIG mode.
    gpu_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0";
    /// Share of the driver's last sample period in which device memory was read or written. Absent in MIG mode.
    gpu_memory_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0";
    /// Utilization of the video encoder (NVENC).
    gpu_encoder_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0", group Video;
    /// Utilization of the video decoder (NVDEC).
    gpu_decoder_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0", group Video;
    /// Utilization of the JPEG engine.
    gpu_jpeg_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0", group Video;
    /// Utilization of the optical flow engine (OFA).
    gpu_ofa_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0", group Video;

    // --- memory ---------------------------------------------------------------------------------
    /// Device memory of the GPU.
    gpu_memory_total_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0";
    /// Device memory allocated by processes (without what the driver reserves).
    gpu_memory_used_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0";
    /// Device memory free.
    gpu_memory_free_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0";
    /// Device memory reserved by driver and firmware.
    gpu_memory_reserved_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0", group MemoryDetail;
    /// BAR1 aperture: device memory that can be mapped for the CPU or other PCIe devices.
    gpu_bar1_memory_total_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;
    /// BAR1 aperture in use.
    gpu_bar1_memory_used_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;
    /// BAR1 aperture free.
    gpu_bar1_memory_free_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;

    // --- the driver's own samples ---------------------------------------------------------------
    /// Power draw of the board in each of the driver's own samples (50 a second), as a distribution: shows bursts that no poll sees.
    gpu_power_sample_watts: Histogram<Gpu>, Watts, Samples, "0.1.0", group Samples;
    /// Utilization in each of the driver's own samples (5 a second), as a distribution. Samples taken while the canary ran are left out.
    gpu_utilization_sample_ratio: Histogram<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Highest power sample of the last 60 s.
    gpu_power_peak_watts: Gauge<Gpu>, Watts, Samples, "0.1.0";
    /// Lowest power sample of the last 60 s.
    gpu_power_minimum_watts: Gauge<Gpu>, Watts, Samples, "0.1.0", group Samples;
    /// Highest utilization sample of the last 60 s, the canary's left out.
    gpu_utilization_peak_ratio: Gauge<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Lowest utilization sample of the last 60 s, the canary's left out.
    gpu_utilization_minimum_ratio: Gauge<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Time in which at least one kernel ran: the driver's utilization samples added up. A rate of it is the average utilization of any range, whoever scrapes. Time in which the canary ran is missing here, neither busy nor idle: it is in `gpu_canary_gpu_seconds_total`.
    gpu_busy_seconds_total: Counter<Gpu>, Seconds, Slow, "0.1.0";
    /// Energy by the driver's power samples added up, each from the sample before it. Fresher than `gpu_energy_joules_total`; gaps in the samples are not filled.
    gpu_energy_sampled_joules_total: Counter<Gpu>, Joules, Samples, "0.1.0";

    // --- GPM: what the units of the GPU did (Hopper and later) ----------------------------------
    /// 1 while the profiling counters are read; 0 while they are switched off or given to a profiler.
    gpu_gpm_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Modes;
    /// Share of the last window in which the unit was active, over all units of its kind (NVML GPM). A window is one slow interval; that of `graphics`, which is dear to compute, one rare interval.
    gpu_gpm_active_ratio: Gauge<Gpu, (GpmUnit,)>, Ratio, Slow, "0.1.0", group GpmDetail except ["sm", "sm_occupancy", "tensor", "dram", "fp64", "fp32", "fp16"];
    /// Time the unit was active: the ratio times the length of each window, added up.
    gpu_gpm_active_seconds_total: Counter<Gpu, (GpmUnit,)>, Seconds, Slow, "0.1.0", group GpmDetail;
    /// Bytes over PCIe by GPM's rate, added up. NVML's own byte counters have 32 bits and wrap within 78 ms at full rate.
    gpu_gpm_pcie_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0";
    /// Bytes over all NVLinks by GPM's rate, added up.
    gpu_gpm_nvlink_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;
    /// Estimate of floating-point operations a second: activity of the pipe x multiprocessors x operations a cycle x SM clock. An estimate, because a pipe can be active without doing useful work.
    gpu_flops_estimate: Gauge<Gpu, (FlopPipe,)>, None, Computed, "0.1.0", group GpmDetail;
    /// As `gpu_gpm_active_ratio`, of one GPU instance.
    gpu_mig_gpm_active_ratio: Gauge<GpuInstance, (GpmUnit,)>, Ratio, Slow, "0.1.0", group GpmDetail except ["graphics", "sm"];
    /// As `gpu_gpm_active_seconds_total`, of one GPU instance.
    gpu_mig_gpm_active_seconds_total: Counter<GpuInstance, (GpmUnit,)>, Seconds, Slow, "0.1.0", group GpmDetail except ["graphics"];
    /// As `gpu_gpm_pcie_bytes_total`, of one GPU instance.
    gpu_mig_gpm_pcie_bytes_total: Counter<GpuInstance, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;
    /// As `gpu_gpm_nvlink_bytes_total`, of one GPU instance.
    gpu_mig_gpm_nvlink_bytes_total: Counter<GpuInstance, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;

    // --- power and energy -----------------------------------------------------------------------
    /// Power draw of the board as the driver averages it (over 1 s on Ampere and later).
    gpu_power_watts: Gauge<Gpu>, Watts, Normal, "0.1.0";
    /// Power draw of the board now, not averaged (NVML field 186). What it was between two readings is in the driver's samples.
    gpu_power_instant_watts: Gauge<Gpu>, Watts, Slow, "0.1.0", group Samples;
    /// Power limits of the board. The enforced one is read every 10 s, the others once a minute.
    gpu_power_limit_watts: Gauge<Gpu, (PowerLimit,)>, Watts, Rare, "0.1.0", group Limits except ["enforced", "default"];
    /// Energy the board has used since the driver was loaded, as the driver counts it. Read once a minute, because the call costs the driver 5 ms: take rates over five minutes and more.
    gpu_energy_joules_total: Counter<Gpu>, Joules, Rare, "0.1.0";

    // --- temperature ----------------------------------------------------------------------------
    /// Temperature of the GPU core, read every second, or of its memory, read every 10 s.
    gpu_temperature_celsius: Gauge<Gpu, (Sensor,)>, Celsius, Normal, "0.1.0";
    /// Temperature limits of this device: never compare with a fixed number.
    gpu_temperature_threshold_celsius: Gauge<Gpu, (TemperatureThreshold,)>, Celsius, Once, "0.1.0", group Limits except ["slowdown", "memory_max", "gpu_max"];
    /// Degrees left until the GPU slows down for heat (NVML margin temperature).
    gpu_temperature_margin_celsius: Gauge<Gpu>, Celsius, Rare, "0.1.0";

    // --- clocks ---------------------------------------------------------------------------------
    /// Clock now.
    gpu_clock_hertz: Gauge<Gpu, (ClockDomain,)>, Hertz, Normal, "0.1.0", group Clocks except ["sm", "memory"];
    /// Highest clock the device allows.
    gpu_clock_max_hertz: Gauge<Gpu, (ClockDomain,)>, Hertz, Once, "0.1.0", group Clocks except ["sm", "memory"];
    /// 1 while the driver names this reason for holding the clocks down. `gpu_idle` is no fault.
    gpu_clock_event_active: Gauge<Gpu, (ClockEvent,)>, None, Fast, "0.1.0", group InactiveStates;
    /// Time the clocks were held down for this reason: the driver's own nanosecond counter where it has one, else added up by the exporter ten times a second. Slowdown by heat or power brake of less than a tenth of a second may come a minute late.
    gpu_clock_event_seconds_total: Counter<Gpu, (ClockEvent,)>, Seconds, Slow, "0.1.0", group Clocks except ["sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"];
    /// Performance state, 0 (fastest) to 15.
    gpu_performance_state: Gauge<Gpu>, None, Normal, "0.1.0", at most 15.0, group Modes;

    // --- errors ---------------------------------------------------------------------------------
    /// 1 while ECC is on.
    gpu_ecc_mode_enabled: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0;
    /// 1 if ECC will be on after the next reboot or reset.
    gpu_ecc_mode_pending_enabled: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0, group Modes;
    /// ECC errors of all memories together, as the driver counts them.
    gpu_ecc_total_errors: Gauge<Gpu, (EccCounter, EccError)>, None, Normal, "0.1.0";
    /// ECC errors by memory, where the device tells them apart.
    gpu_ecc_errors: Gauge<Gpu, (EccCounter, EccError, EccMemory)>, None, Slow, "0.1.0", group EccLocations;
    /// Rows of device memory replaced by spare ones.
    gpu_remapped_rows: Gauge<Gpu, (RemapCause,)>, None, Slow, "0.1.0";
    /// 1 while a row waits to be replaced: the GPU needs a reset to use the spare row.
    gpu_row_remap_pending: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// 1 if replacing a row has failed: the board is a candidate for return.
    gpu_row_remap_failure: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;

    /// Errors of on-chip memory (SRAM), by kind (NVML SRAM ECC status).
    gpu_ecc_sram_errors: Gauge<Gpu, (EccCounter, SramError)>, None, Slow, "0.1.0", group EccLocations;
    /// Uncorrected SRAM errors over the GPU's life, by part of the GPU.
    gpu_ecc_sram_uncorrected_errors: Gauge<Gpu, (SramUnit,)>, None, Slow, "0.1.0", group EccLocations;
    /// 1 once uncorrected SRAM errors have passed the vendor's threshold: the board is a candidate for return.
    gpu_ecc_sram_threshold_exceeded: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// Banks of device memory by the spare rows they have left.
    gpu_row_remap_banks: Gauge<Gpu, (SpareRows,)>, None, Slow, "0.1.0", group EccLocations except ["low", "none"];
    /// Pages of device memory retired (before Ampere).
    gpu_retired_pages: Gauge<Gpu, (RetirementCause,)>, None, Rare, "0.1.0", group EccLocations;
    /// 1 while pages wait for a reboot to be retired (before Ampere).
    gpu_retired_pages_pending: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0;
    /// 1 while a repair of the GPU by spare parts of its own (a memory channel, a texture processing cluster) waits for a reset.
    gpu_repair_pending: Gauge<Gpu, (RepairPart,)>, None, Rare, "0.1.0", at most 1.0;
    /// 1 for what the driver asks for to bring the GPU back, 0 for the others (NVML field 230).
    gpu_recovery_action: Gauge<Gpu, (RecoveryAction,)>, None, Slow, "0.1.0", group InactiveStates;
    /// 1 while the driver's events of this GPU are waited for.
    gpu_driver_events_registered: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Events;
    /// Events the driver has sent for this GPU. Single-bit ECC and clock changes are not asked for: they are in counters.
    gpu_driver_events_total: Counter<Gpu, (DriverEvent,)>, None, Computed, "0.1.0", group Events;

    // --- faults and health ----------------------------------------------------------------------
    /// Xid faults by what the table of codes says to do. One fault counts once, whether driver events, the kernel log or both told of it.
    gpu_xid_faults_total: Counter<Gpu, (FaultAction,)>, None, Computed, "0.1.0", group Events;
    /// Xid faults by code. Codes that page are there from the start; others appear with their first fault.
    gpu_xid_errors_total: Counter<Gpu, (XidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// When the newest Xid fault of this GPU came. `/api/v1/events` tells which it was.
    gpu_xid_last_event_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Xid faults in the kernel log of a GPU that the driver does not list.
    gpu_xid_unknown_gpu_total: Counter<Node, (XidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// NVSwitch faults in the kernel log, by code.
    gpu_nvswitch_sxid_errors_total: Counter<Node, (SwitchName, SxidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// When the newest event of any kind came: what `/api/v1/events` lists.
    gpu_last_event_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0", group Events;
    /// 1 while nothing is known that keeps the GPU from being relied on, 0 while something is. Absent while the driver is away, released or stuck as a whole, so that a driver upgrade is no broken GPU.
    gpu_healthy: Gauge<Gpu>, None, Computed, "0.1.0";
    /// 1 for each reason why the GPU cannot be relied on, 0 for the others: `lost` it answers with errors only, `stuck` a driver call on it does not return, `recovery_action` the driver asks for one, `fatal_xid` an Xid that pages since the last reset or driver load, `uncontained_ecc` Xid 95, or a memory error (48, 171, 172) that Xid 94 did not follow within 5 s, `row_remap_failure` a row of memory could not be replaced, `missing` the driver does not list it any more, `canary` the newest run of a check of the canary ended with `wrong_result`, `driver_fault` or `hung` (the latter two until a reset or driver load), or its process hangs now. Absent with `gpu_healthy`.
    gpu_unhealthy_reason: Gauge<Gpu, (UnhealthyReason,)>, None, Computed, "0.1.0", group InactiveStates;
    /// GPUs that are missing: expected (configured, or the most seen since the node booted) and not listed by the driver. Absent while the driver is away.
    gpu_devices_missing: Gauge<Node>, None, Computed, "0.1.0";

    // --- NVLink and fabric ----------------------------------------------------------------------
    /// 1 while the link is up.
    gpu_nvlink_up: Gauge<Link>, None, Slow, "0.1.0", at most 1.0, group NvlinkLinks;
    /// A link that is up and its other end.
    gpu_nvlink_info: Info<Link, NvLinkInfo>, None, Rare, "0.1.0", json only true;
    /// Speed of one link in each direction: of the slowest that is up, should they differ.
    gpu_nvlink_speed_bytes_per_second: Gauge<Gpu>, BytesPerSecond, Rare, "0.1.0", group LinkDetail;
    /// Data over the link (without protocol).
    gpu_nvlink_link_bytes_total: Counter<Link, (Direction,)>, Bytes, Nvlink, "0.1.0", group NvlinkLinks;
    /// Errors of all links of the GPU together.
    gpu_nvlink_errors_total: Counter<Gpu, (NvLinkError,)>, None, Nvlink, "0.1.0";
    /// Errors of the link. Only links that have had some: 54 zeros a GPU would tell nothing. Alert on `gpu_nvlink_errors_total`; this one tells which link.
    gpu_nvlink_link_errors_total: Counter<Link, (NvLinkError,)>, None, Nvlink, "0.1.0";
    /// Errors on the lanes of all links of the GPU together, which the links corrected or made good. Healthy links have some; see how fast they grow.
    gpu_nvlink_lane_errors_total: Counter<Gpu, (NvLinkLaneError,)>, None, Nvlink, "0.1.0", group LinkDetail;
    /// Data over all links of the GPU together (without protocol).
    gpu_nvlink_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0";
    /// Bytes over all links of the GPU together, with protocol.
    gpu_nvlink_raw_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0", group LinkDetail;
    /// Links of the GPU.
    gpu_nvlink_links: Gauge<Gpu>, None, Once, "0.1.0", at most 64.0;
    /// Links of the GPU that are up.
    gpu_nvlink_links_up: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// How the GPU reaches each other GPU of the node: the peer-to-peer matrix. In the JSON alone.
    gpu_peer_info: Info<Gpu, PeerInfo>, None, Once, "0.1.0", json only true;
    /// 1 for how far the GPU is with joining the NVLink fabric, 0 for the other states.
    gpu_fabric_state: Gauge<Gpu, (FabricState,)>, None, Slow, "0.1.0", group InactiveStates;
    /// 1 for each fault the fabric reports of this GPU, 0 for the others it can tell.
    gpu_fabric_fault: Gauge<Gpu, (FabricFault,)>, None, Slow, "0.1.0";
    /// NVML return code of joining the fabric, 0 for success. Counts only once the state is `completed`.
    gpu_fabric_status: Gauge<Gpu>, None, Slow, "0.1.0";
    /// The fabric the GPU belongs to.
    gpu_fabric_info: Info<Gpu, FabricInfo>, None, Rare, "0.1.0", group LinkDetail;
    /// An NVSwitch of the node (where the node's kernel drives the switches).
    gpu_nvswitch_info: Info<Node, NvSwitchInfo>, None, Rare, "0.1.0";

    // --- PCIe -----------------------------------------------------------------------------------
    /// PCIe generation of the link now. Idle GPUs may lower it to save power.
    gpu_pcie_link_generation: Gauge<Gpu>, None, Slow, "0.1.0", at most 16.0;
    /// Highest PCIe generation that GPU and slot can use together.
    gpu_pcie_link_max_generation: Gauge<Gpu>, None, Once, "0.1.0", at most 16.0;
    /// PCIe lanes in use.
    gpu_pcie_link_width_lanes: Gauge<Gpu>, Lanes, Slow, "0.1.0";
    /// PCIe lanes that GPU and slot can use together.
    gpu_pcie_link_max_width_lanes: Gauge<Gpu>, Lanes, Once, "0.1.0";
    /// PCIe packets sent again because of errors on the link.
    gpu_pcie_replays_total: Counter<Gpu>, None, Rare, "0.1.0";
    /// PCIe errors as the GPU counts them.
    gpu_pcie_errors_total: Counter<Gpu, (PcieError,)>, None, Rare, "0.1.0";
    /// Times the PCIe link left normal operation (L0) to recover.
    gpu_pcie_recoveries_total: Counter<Gpu>, None, Rare, "0.1.0", group LinkDetail;
    /// PCIe errors of the GPU's function as the host's kernel counts them (AER). Absent in virtual machines.
    gpu_pcie_aer_errors_total: Counter<Gpu, (AerSeverity,)>, None, Rare, "0.1.0";

    // --- modes and processes --------------------------------------------------------------------
    /// 1 while persistence mode is on.
    gpu_persistence_mode_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Modes;
    /// 1 for the compute mode the GPU is in, 0 for the others.
    gpu_compute_mode: Gauge<Gpu, (ComputeMode,)>, None, Slow, "0.1.0", group Modes;
    /// Processes on the GPU: those that compute listed every second, the others every 10 s. The canary's own is not counted.
    gpu_processes: Gauge<Gpu, (ProcessType,)>, None, Normal, "0.1.0", group InactiveStates except ["compute"];
    /// 1 while the GPU is in MIG mode.
    gpu_mig_mode_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// 1 if the GPU will be in MIG mode after the next reset.
    gpu_mig_mode_pending_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;

    // --- processes, one by one (opt-in) ---------------------------------------------------------
    /// A process on the GPU, other than the canary's own.
    gpu_process_info: Info<Process, ProcessInfo>, None, Slow, "0.1.0", group Process;
    /// Device memory of the process.
    gpu_process_memory_used_bytes: Gauge<Process>, Bytes, Slow, "0.1.0", group Process;
    /// Share of the last slow interval in which the process used the engine.
    gpu_process_utilization_ratio: Gauge<Process, (Engine,)>, Ratio, Slow, "0.1.0", group Process;
    /// Processes on the GPU that have no series of their own because of `processes.max_per_gpu`.
    gpu_processes_dropped: Gauge<Gpu>, None, Slow, "0.1.0", group Process;

    // --- video and virtual GPUs -----------------------------------------------------------------
    /// Encoder (NVENC) sessions.
    gpu_encoder_sessions: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Frames a second, averaged over the encoder sessions.
    gpu_encoder_frames_per_second: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Latency of encoding a frame, averaged over the encoder sessions.
    gpu_encoder_latency_seconds: Gauge<Gpu>, Seconds, Slow, "0.1.0", group Video;
    /// Frame buffer capture (FBC) sessions.
    gpu_fbc_sessions: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Frames a second, averaged over the capture sessions.
    gpu_fbc_frames_per_second: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Latency of capturing a frame, averaged over the capture sessions.
    gpu_fbc_latency_seconds: Gauge<Gpu>, Seconds, Slow, "0.1.0", group Video;
    /// A virtual GPU.
    gpu_vgpu_info: Info<Vgpu, VgpuInfo>, None, Slow, "0.1.0";
    /// Device memory of the virtual GPU in use.
    gpu_vgpu_memory_used_bytes: Gauge<Vgpu>, Bytes, Slow, "0.1.0", group Vgpu;
    /// Share of the engine's last sample period that the virtual GPU used.
    gpu_vgpu_utilization_ratio: Gauge<Vgpu, (Engine,)>, Ratio, Slow, "0.1.0", group Vgpu;
    /// 1 while the virtual GPU holds a licence.
    gpu_vgpu_licensed: Gauge<Vgpu>, None, Slow, "0.1.0", at most 1.0, group Vgpu;

    // --- MIG ------------------------------------------------------------------------------------
    /// Identity of a MIG device.
    gpu_mig_info: Info<ComputeInstance, MigInfo>, None, Normal, "0.1.0";
    /// Device memory of the GPU instance.
    gpu_mig_memory_total_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";
    /// Device memory of the GPU instance in use.
    gpu_mig_memory_used_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";
    /// Device memory of the GPU instance free.
    gpu_mig_memory_free_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";

    /// First memory slice of the GPU instance.
    gpu_mig_placement_start: Gauge<GpuInstance>, None, Normal, "0.1.0", at most 64.0;
    /// Memory slices of the GPU instance.
    gpu_mig_placement_slices: Gauge<GpuInstance>, None, Normal, "0.1.0", at most 64.0;
    /// Multiprocessors of the GPU instance.
    gpu_mig_multiprocessors: Gauge<GpuInstance>, None, Normal, "0.1.0";
    /// Share of the GPU instance's multiprocessors that the compute instance has.
    gpu_mig_compute_sm_share_ratio: Gauge<ComputeInstance>, Ratio, Normal, "0.1.0", group MigDetail;
    /// Processes on the compute instance. The canary's own is not counted.
    gpu_mig_compute_processes: Gauge<ComputeInstance>, None, Slow, "0.1.0";
    /// GPU instances of this profile that could be made now.
    gpu_mig_profile_free: Gauge<Gpu, (ProfileName,)>, None, Slow, "0.1.0", at most 64.0;
    /// GPU instances of this profile that an empty GPU has room for.
    gpu_mig_profile_capacity: Gauge<Gpu, (ProfileName,)>, None, Slow, "0.1.0", at most 64.0;
    /// Compute slices of the GPU.
    gpu_mig_slices: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Compute slices that GPU instances hold.
    gpu_mig_slices_used: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Compute slices that are free but in no shape that any further GPU instances could use: stranded until the layout is changed.
    gpu_mig_slices_unplaceable: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// MIG devices of this profile that the declared layout wants.
    gpu_mig_layout_declared: Gauge<Gpu, (ProfileName,)>, None, Computed, "0.1.0", at most 64.0;
    /// 1 while the GPU is divided as declared. Absent without a declared layout.
    gpu_mig_layout_matches: Gauge<Gpu>, None, Computed, "0.1.0", at most 1.0;

    // --- canary ---------------------------------------------------------------------------------
    /// What the newest judged run of this check found: 1 for its verdict. The series of `ok` is always there once the check was judged, that of another verdict from its first time on. Absent while the GPU does not answer or is in MIG mode, where `gpu_mig_canary_verdict` tells.
    gpu_canary_verdict: Gauge<Gpu, (CanaryCheck, CanaryVerdict)>, None, Computed, "0.1.0", at most 1.0;
    /// Rate of the check in its newest valid run, compared.
    gpu_canary_rate_ratio: Gauge<Gpu, (CanaryCheck, RateAgainst)>, Ratio, Computed, "0.1.0", at most 100.0;
    /// Clock of the multiprocessors while `sm_rate` ran: cycles counted by the GPU over its own time.
    gpu_canary_sm_clock_hertz: Gauge<Gpu>, Hertz, Computed, "0.1.0";
    /// Multiply-adds (FMA) of one multiprocessor in one cycle, in the newest valid run.
    gpu_canary_work_per_cycle: Gauge<Gpu, (CanaryCheck,)>, None, Computed, "0.1.0", group CanaryDetail;
    /// Results that differed from what the CPU computed, or words that did not hold what was written.
    gpu_canary_mismatches_total: Counter<Gpu, (MismatchKind,)>, None, Computed, "0.1.0";
    /// Multiprocessors that were slow or computed wrongly in the newest judged run; at most eight are named.
    gpu_canary_bad_sm_info: Info<Gpu, BadSmInfo>, None, Computed, "0.1.0";
    /// CUDA driver errors that the canary met and that are no matter of its environment.
    gpu_canary_cuda_errors_total: Counter<Gpu, (CudaError,)>, None, Computed, "0.1.0";
    /// Samples thrown away because somebody else used the GPU meanwhile.
    gpu_canary_discarded_total: Counter<Gpu>, None, Computed, "0.1.0";
    /// When a run last ended, however it did; on a GPU in MIG mode, of any instance.
    gpu_canary_last_run_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// When a run last ended with every check `ok`; on a GPU in MIG mode, of any instance.
    gpu_canary_last_success_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// When the next run is due; on a GPU in MIG mode, the first of its instances. Absent if none is planned.
    gpu_canary_next_due_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Time the canary has kept the GPU busy (kernels and copies).
    gpu_canary_gpu_seconds_total: Counter<Gpu>, Seconds, Computed, "0.1.0";
    /// 1 while the canary's process hangs in this step; there from the first time on.
    gpu_canary_hung: Gauge<Gpu, (CanaryStep,)>, None, Computed, "0.1.0", at most 1.0;
    /// 1 for the mode the canary is in.
    gpu_canary_mode: Gauge<Node, (CanaryMode,)>, None, Computed, "0.1.0", at most 1.0, group InactiveStates;
    /// Share of a GPU's time that the canary may use at most (`canary.max_duty_ratio`).
    gpu_canary_duty_budget_ratio: Gauge<Node>, Ratio, Computed, "0.1.0";
    /// Runs of the canary, by how they ended.
    gpu_canary_runs_total: Counter<Node, (CanaryEnd,)>, None, Computed, "0.1.0";
    /// Times a run that was due was put off or could not be made.
    gpu_canary_skipped_total: Counter<Node, (CanarySkip,)>, None, Computed, "0.1.0";
    /// Canary processes alive, those stuck in the driver included. At most one a GPU.
    gpu_canary_processes: Gauge<Node>, None, Computed, "0.1.0";
    /// Canary processes that had to be killed.
    gpu_canary_kills_total: Counter<Node>, None, Computed, "0.1.0";
    /// How long the steps of runs took, of all GPUs.
    gpu_canary_step_duration_seconds: Histogram<Node, (CanaryStep,)>, Seconds, Computed, "0.1.0", group CanaryDetail;
    /// Rates of valid runs compared with the GPU's own baseline, of all GPUs.
    gpu_canary_sample_rate_ratio: Histogram<Node, (CanaryCheck,)>, Ratio, Computed, "0.1.0", at most 100.0, group CanaryDetail;
    /// As `gpu_canary_verdict`, of a GPU instance; if it has several compute instances, the worst of theirs.
    gpu_mig_canary_verdict: Gauge<GpuInstance, (CanaryCheck, CanaryVerdict)>, None, Computed, "0.1.0", at most 1.0;
    /// As `gpu_canary_rate_ratio`, of a GPU instance; if it has several compute instances, the lowest of theirs.
    gpu_mig_canary_rate_ratio: Gauge<GpuInstance, (CanaryCheck, RateAgainst)>, Ratio, Computed, "0.1.0", at most 100.0, group MigDetail;
    /// As `gpu_canary_last_run_timestamp_seconds`, of a GPU instance.
    gpu_mig_canary_last_run_timestamp_seconds: Gauge<GpuInstance>, Seconds, Computed, "0.1.0";
    /// When the GPU was last seen at work: with a process, or with a utilization above 0 while no canary ran (in MIG mode by processes alone). The canary's own process is not counted. Absent until it was.
    gpu_last_busy_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";

    // --- the host around the GPUs ---------------------------------------------------------------
    /// Parts of the machine, as hwloc counts them.
    gpu_host_objects: Gauge<Node, (HostObject,)>, None, Computed, "0.1.0";
    /// Where the GPU sits: the NUMA node and CPUs near it, the PCIe path, and its fair share of CPUs. `gpu-node-exporter topology` draws it.
    gpu_host_topology_info: Info<Gpu, TopologyInfo>, None, Computed, "0.1.0";
    /// The same for a MIG compute instance: its share of the CPUs of its GPU.
    gpu_mig_host_topology_info: Info<ComputeInstance, MigTopologyInfo>, None, Computed, "0.1.0";
    /// 1 if the machine is as it was when first seen, or as declared: packages, NUMA nodes, memory (to 2 %), and which GPUs and network devices sit where, with which links. `/api/v1/topology` says what differs.
    gpu_host_topology_matches: Gauge<Node, (TopologyAgainst,)>, None, Computed, "0.1.0", at most 1.0;
    /// Fastest PCIe generation of the port (slot, switch) above the GPU. That of the GPU itself is in `gpu_pcie_link_max_generation`.
    gpu_host_pcie_port_max_generation: Gauge<Gpu>, None, Computed, "0.1.0", group Limits;
    /// Most lanes of the port above the GPU.
    gpu_host_pcie_port_max_width_lanes: Gauge<Gpu>, Lanes, Computed, "0.1.0";
    /// 1 if the link runs as GPU and port could both run it. The width must match always. The generation is lower at rest on some models: it is 1 once it was reached, and 0 if it is not reached after 30 s of work; absent before.
    gpu_host_pcie_link_matches: Gauge<Gpu, (LinkAspect,)>, None, Computed, "0.1.0", at most 1.0;
    /// The network device nearest the GPU. With node_exporter: `gpu_host_nic_info * on (instance, device) group_left () node_network_transmit_bytes_total`.
    gpu_host_nic_info: Info<Gpu, NicInfo>, None, Computed, "0.1.0";
    /// 1 while the network device nearest some GPU can carry traffic.
    gpu_host_nic_up: Gauge<Node, (Nic,)>, None, Computed, "0.1.0", at most 1.0;
    /// Rate of its link, one way.
    gpu_host_nic_speed_bytes_per_second: Gauge<Node, (Nic,)>, BytesPerSecond, Computed, "0.1.0";
    /// Events counted on the CPUs, all processes and the kernel together, scaled where the counters were shared. Only events that can be counted here (`gpu_host_cpu_event_state`).
    gpu_host_cpu_events_total: Counter<CpuGroup, (PerfEvent,)>, None, Computed, "0.1.0", at most 1e24, group CpuEvents;
    /// Time of the CPUs by what they did with it, all processes together; the sum of the modes is one second a second and CPU. Counted from the start of the exporter.
    gpu_host_cpu_seconds_total: Counter<CpuGroup, (CpuMode,)>, Seconds, Computed, "0.1.0", at most 1e15;
    /// Whether each configured event can be counted here.
    gpu_host_cpu_event_state: Gauge<Node, (PerfEvent, PerfState)>, None, Computed, "0.1.0", at most 1.0, group CpuEvents;
    /// Share of the last interval in which the event was counted; what is published is scaled by it. 1: the counters were not shared.
    gpu_host_cpu_event_running_ratio: Gauge<Node, (PerfEvent,)>, Ratio, Computed, "0.1.0", group CpuEvents;

    // --- owners ---------------------------------------------------------------------------------
    /// Whose work is on the GPU: join on `gpu`, `uuid`, `gpu_instance` and `owner`. Stays with the owner's counters for `owners.retention` after its end.
    gpu_owner_info: Info<OwnedGpu, OwnerInfo>, None, Computed, "0.1.0";
    /// Processes the owner has on the GPU; 0 after its end.
    gpu_owner_processes: Gauge<OwnedGpu>, None, Computed, "0.1.0";
    /// Device memory that the owner's processes hold.
    gpu_owner_memory_used_bytes: Gauge<OwnedGpu>, Bytes, Computed, "0.1.0";
    /// GPU time the owner had: seconds with a process on the GPU, divided by the number of owners on it. On a MIG instance times its share of the GPU's compute slices.
    gpu_owner_allocated_seconds_total: Counter<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Seconds in which the GPU worked for the owner: of the driver's utilization samples (on a MIG instance, of GPM, times its share of the GPU's compute slices), divided equally among owners on it at the time. At most the allocated seconds. The canary's work is not in it.
    gpu_owner_busy_seconds_total: Counter<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Energy of the GPU while the owner had it, from the driver's power samples, divided as the busy time (while nobody works, as the allocated time). Of a MIG instance its share of the GPU's compute slices.
    gpu_owner_energy_joules_total: Counter<OwnedGpu>, Joules, Computed, "0.1.0";
    /// Share of the owner's GPU processes' CPUs that are not near the GPU: of those its processes were last seen on over the last minute, else of those they may run on. Absent where the machine does not tell what is near.
    gpu_owner_cpu_remote_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// Share of the owner's memory on the host that is not on the NUMA node near the GPU.
    gpu_owner_memory_remote_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// 1 for what holds the owner's work on the GPU back, 0 for the others. `docs/BOTTLENECKS.md` has each cause's formula and the series that prove it.
    gpu_bottleneck: Gauge<OwnedGpu, (Cause,)>, None, Computed, "0.1.0", at most 1.0, group InactiveStates except ["none"];
    /// Times the owner ended with its GPU's memory at least 98 % full at the last look. NVML does not tell of CUDA allocations that failed: this is a suspicion, not a count of them.
    gpu_owner_ended_at_full_memory_total: Counter<OwnedGpu>, None, Computed, "0.1.0";
    /// A hint: the smallest MIG profile that would have held the owner's 95th percentiles of memory and of active multiprocessors. Only after 24 hours of data; formula in `docs/OWNERS.md`.
    gpu_owner_mig_profile_hint_info: Info<OwnedGpu, (ProfileName,)>, None, Computed, "0.1.0";
    /// Processes of the owner that the kernel killed for want of host memory, by its control group's count or the kernel log, whichever tells of more.
    gpu_owner_host_oom_kills_total: Counter<Owner>, None, Computed, "0.1.0";
    /// Events counted on the CPUs for the owner's control group (`cpu.per_owner`).
    gpu_owner_cpu_events_total: Counter<Owner, (PerfEvent,)>, None, Computed, "0.1.0", at most 1e24;
    /// Seconds from a process's start to its first context on a GPU (seen once a second) and to its first work there (utilization samples of 200 ms, seen every 2 to 5 s).
    gpu_owner_start_seconds: Histogram<Node, (StartPhase,)>, Seconds, Computed, "0.1.0", group OwnerDetail;
    /// Devices that the kubelet can give out, by resource.
    gpu_kubelet_allocatable_devices: Gauge<Node, (Resource,)>, None, Computed, "0.1.0";
    /// Devices that the kubelet has given out, by resource. A device that is shared in time counts once a share, as in `gpu_kubelet_allocatable_devices`.
    gpu_kubelet_allocated_devices: Gauge<Node, (Resource,)>, None, Computed, "0.1.0";

    // --- planned work ---------------------------------------------------------------------------
    /// 1 while a window of this kind is open. Alerts are muted by it: `unless on (cluster, job, instance) gpu_window_active{kind="maintenance"} == 1`.
    gpu_window_active: Gauge<Node, (WindowKind,)>, None, Computed, "0.1.0", at most 1.0;
    /// A window of planned work: open, to come, or ended within the last hour.
    gpu_window_info: Info<Window, WindowInfo>, None, Computed, "0.1.0";
    /// When it begins.
    gpu_window_start_timestamp_seconds: Gauge<Window>, Seconds, Computed, "0.1.0";
    /// When it ends.
    gpu_window_end_timestamp_seconds: Gauge<Window>, Seconds, Computed, "0.1.0";

    // --- the exporter itself --------------------------------------------------------------------
    /// Build of the running exporter.
    gpu_exporter_build_info: Info<Node, BuildInfo>, None, Computed, "0.1.0";
    /// 1 while the collector's newest visits succeeded within their deadlines.
    gpu_exporter_collector_up: Gauge<Node, (CollectorName,)>, None, Computed, "0.1.0";
    /// When the collector last delivered values.
    gpu_exporter_collector_last_success_timestamp_seconds: Gauge<Node, (CollectorName,)>, Seconds, Computed, "0.1.0";
    /// When the values of this tier of this GPU were read.
    gpu_exporter_sample_timestamp_seconds: Gauge<Gpu, (TierLabel,)>, Seconds, Computed, "0.1.0", group ExporterDetail except ["normal", "slow", "rare"];
    /// How long the driver call that is stuck on this GPU has not returned. Absent while none is stuck.
    gpu_exporter_driver_call_stuck_seconds: Gauge<Gpu, (Call,)>, Seconds, Computed, "0.1.0";
    /// How long the driver call that is stuck and concerns no single GPU (loading the library, listing GPUs) has not returned. Absent while none is stuck.
    gpu_exporter_node_call_stuck_seconds: Gauge<Node, (Call,)>, Seconds, Computed, "0.1.0";
    /// Driver calls made, by the tier that made them.
    gpu_exporter_driver_calls_total: Counter<Node, (Call, TierLabel)>, None, Computed, "0.1.0", group DriverCalls;
    /// Wall time spent inside driver calls, by the tier that made them.
    gpu_exporter_driver_call_seconds_total: Counter<Node, (Call, TierLabel)>, Seconds, Computed, "0.1.0", group DriverCalls;
    /// Wall time of single driver calls.
    gpu_exporter_driver_call_duration_seconds: Histogram<Node>, Seconds, Computed, "0.1.0", group DriverCalls;
    /// Driver calls about this GPU that failed (not: that the device does not support). `gpu_exporter_driver_error_kinds_total` tells how they failed.
    gpu_exporter_driver_errors_total: Counter<Gpu>, None, Computed, "0.1.0", group DriverCalls;
    /// Driver calls that failed, by kind: those about a GPU, and those about none, as loading the library and listing GPUs.
    gpu_exporter_driver_error_kinds_total: Counter<Node, (DriverError,)>, None, Computed, "0.1.0";
    /// Values the driver gave that cannot be true: "blank" sentinels and values outside what is physically possible.
    gpu_exporter_readings_dropped_total: Counter<Gpu, (DropReason,)>, None, Computed, "0.1.0";
    /// Number of GPUs that do not support the metric, or whose driver does not. Such a metric has no series there; neither zero nor a failure. `/api/v1/snapshot` tells which GPUs.
    gpu_exporter_metric_unsupported: Gauge<Node, (MetricName,)>, None, Computed, "0.1.0";
    /// Readings of driver counters that went backwards without a reason: the older value was held.
    gpu_exporter_counter_regressions_total: Counter<Gpu>, None, Computed, "0.1.0";
    /// Sampler processes alive, those stuck in the driver included. Never more than two.
    gpu_exporter_samplers: Gauge<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// Sampler processes started.
    gpu_exporter_sampler_starts_total: Counter<Node>, None, Computed, "0.1.0";
    /// Sampler processes given up, by reason.
    gpu_exporter_sampler_ends_total: Counter<Node, (SamplerEnd,)>, None, Computed, "0.1.0";
    /// Batches thrown away because they belonged to an older state of their GPU or to a sampler already given up, or came behind a newer one.
    gpu_exporter_batches_discarded_total: Counter<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// Events of the exporter's own collectors that found no room while the ledger was behind.
    gpu_exporter_events_lost_total: Counter<Node>, None, Computed, "0.1.0";
    /// Processes of which it was asked whom they work for, by what became of it: `gone` before it could be read, `refused`, `late` (past `owners.read_deadline`), `malformed`.
    gpu_exporter_owner_lookups_total: Counter<Node, (OwnerLookup,)>, None, Computed, "0.1.0";
    /// Owners without series of their own, because `owners.most` have some.
    gpu_exporter_owners_dropped: Gauge<Node>, None, Computed, "0.1.0";
    /// Requests to the kubelet that brought nothing.
    gpu_exporter_kubelet_errors_total: Counter<Node, (KubeletError,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Samples taken from the driver's buffers; utilization samples of the canary's runs are left out.
    gpu_exporter_samples_total: Counter<Gpu, (SampleBuffer,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Gaps between samples of the driver's buffers: what was overwritten before it could be read, or never sampled.
    gpu_exporter_sample_gaps_total: Counter<Gpu, (SampleBuffer,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Time in those gaps, of which nothing is known.
    gpu_exporter_sample_gap_seconds_total: Counter<Gpu, (SampleBuffer,)>, Seconds, Computed, "0.1.0";
    /// Facts (faults, driver events) that found no room on their way.
    gpu_exporter_facts_lost_total: Counter<Node, (FaultSource,)>, None, Computed, "0.1.0";
    /// Records read from the kernel log, by what they were. `old` ones are from before the exporter started watching: in the list of events, in no counter.
    gpu_exporter_kmsg_records_total: Counter<Node, (KmsgOutcome,)>, None, Computed, "0.1.0", group Events;
    /// Times the kernel log overran its reader: records in between are lost.
    gpu_exporter_kmsg_overruns_total: Counter<Node>, None, Computed, "0.1.0";
    /// Snapshots published.
    gpu_exporter_publications_total: Counter<Node>, None, Computed, "0.1.0";
    /// How long making the newest snapshot took.
    gpu_exporter_publish_duration_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// Series in the newest snapshot.
    gpu_exporter_series: Gauge<Node>, None, Computed, "0.1.0";
    /// Series left out of snapshots because of `metrics.max_series`; one series left out of ten snapshots counts ten.
    gpu_exporter_series_dropped_total: Counter<Node>, None, Computed, "0.1.0";
    /// HTTP answers by status.
    gpu_exporter_http_requests_total: Counter<Node, (HttpStatus,)>, None, Computed, "0.1.0";
    /// HTTP connections open.
    gpu_exporter_http_connections: Gauge<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// HTTP connections turned away because `http.max_connections` were open.
    gpu_exporter_http_connections_refused_total: Counter<Node>, None, Computed, "0.1.0";
    /// CPU time of the exporter's processes, those that have ended included.
    gpu_exporter_cpu_seconds_total: Counter<Node, (Role,)>, Seconds, Computed, "0.1.0";
    /// Resident memory of the exporter's processes (pages shared between them counted in each).
    gpu_exporter_resident_memory_bytes: Gauge<Node, (Role,)>, Bytes, Computed, "0.1.0";
    /// CPU time of the serving process.
    process_cpu_seconds_total: Counter<Node>, Seconds, Computed, "0.1.0", group ExporterDetail;
    /// Resident memory of the serving process.
    process_resident_memory_bytes: Gauge<Node>, Bytes, Computed, "0.1.0", group ExporterDetail;
    /// Virtual memory of the serving process.
    process_virtual_memory_bytes: Gauge<Node>, Bytes, Computed, "0.1.0", group ExporterDetail;
    /// File descriptors the serving process has open.
    process_open_fds: Gauge<Node>, None, Computed, "0.1.0";
    /// Most file descriptors the serving process may open.
    process_max_fds: Gauge<Node>, None, Computed, "0.1.0";
    /// Threads of the serving process.
    process_threads: Gauge<Node>, None, Computed, "0.1.0";
    /// When the serving process started.
    process_start_time_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
}

/// The definition behind an id, if this build has it.
pub fn def(id: MetricId) -> Option<&'static MetricDef> {
    METRICS.get(usize::from(id.0))
}

/// All metric names, in catalogue order.
pub fn names() -> Vec<&'static str> {
    METRICS.iter().map(|m| m.name).collect()
}

/// A number that two processes share only if their catalogues are the same, entry for entry.
pub fn fingerprint() -> u64 {
    let mut hash = DefaultHasher::new();
    for metric in METRICS {
        format!("{metric:?}").hash(&mut hash);
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_follow_the_rules() {
        let mut seen = HashSet::new();
        for m in METRICS {
            assert!(seen.insert(m.name), "{} is declared twice", m.name);
            assert!(m.name.starts_with("gpu_") || m.name.starts_with("process_"), "{}: prefix", m.name);
            assert!(
                m.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{}: characters",
                m.name
            );
            assert_eq!(m.name.ends_with("_total"), m.kind == Kind::Counter, "{}: _total", m.name);
            assert_eq!(m.name.ends_with("_info"), m.kind == Kind::Info, "{}: _info", m.name);
            assert!(!m.name.ends_with("_count") && !m.name.ends_with("_sum"), "{}", m.name);
            const NOT_BASE: [&str; 10] =
                ["mhz", "milliwatts", "percent", "kelvin", "mib", "ms", "mj", "us", "ns", "bits"];
            assert!(!m.name.split('_').any(|w| NOT_BASE.contains(&w)), "{}: not a base unit", m.name);
        }
    }

    #[test]
    fn the_unit_is_the_suffix() {
        const UNITS: [Unit; 9] = [
            Unit::Bytes,
            Unit::Seconds,
            Unit::Joules,
            Unit::Watts,
            Unit::Celsius,
            Unit::Hertz,
            Unit::Ratio,
            Unit::Lanes,
            Unit::BytesPerSecond,
        ];
        for m in METRICS {
            if m.unit == Unit::None {
                for unit in UNITS {
                    assert!(
                        !m.family().ends_with(&format!("_{}", unit.suffix())),
                        "{}: says {} but declares no unit",
                        m.name,
                        unit.suffix()
                    );
                }
            } else {
                assert!(
                    m.family().ends_with(&format!("_{}", m.unit.suffix())),
                    "{}: must end in _{}",
                    m.name,
                    m.unit.suffix()
                );
            }
        }
    }

    #[test]
    fn help_is_a_sentence_that_needs_no_escaping() {
        for m in METRICS {
            let help = m.help_line();
            assert!(help.ends_with('.'), "{}: {help}", m.name);
            assert!(!help.contains(['\\', '\n']), "{}: {help}", m.name);
            for label in m.entity.labels().iter().chain(m.labels) {
                assert!(label.help.trim().ends_with('.'), "{}: {}", m.name, label.name);
            }
        }
    }

    #[test]
    fn labels_of_a_metric_are_distinct_and_their_values_known_to_a_byte() {
        for m in METRICS {
            let mut seen = HashSet::new();
            for label in m.entity.labels().iter().chain(m.labels) {
                assert!(seen.insert(label.name), "{}: label {} twice", m.name, label.name);
                let values = label.values.unwrap_or(&[]);
                assert!(values.len() <= 256);
                assert_eq!(values.iter().collect::<HashSet<_>>().len(), values.len());
            }
        }
    }

    #[test]
    fn groups_are_made_of_what_the_catalogue_has() {
        for group in MetricGroup::ALL {
            let used = METRICS.iter().any(|m| m.group == Some(*group));
            assert_eq!(used, *group != MetricGroup::All, "{}", group.name());
        }
        for m in METRICS {
            let values: Vec<_> = m.labels.iter().flat_map(|label| label.values.unwrap_or(&[])).collect();
            assert!(m.except.iter().all(|value| values.contains(&value)), "{}: {:?}", m.name, m.except);
            let states = m.group == Some(MetricGroup::InactiveStates);
            assert!(!states || m.kind == Kind::Gauge && m.unit == Unit::None, "{}: no states", m.name);
        }
    }

    #[test]
    fn a_state_is_in_the_default_set_while_it_is_true() {
        let labels = |cause: Cause| vec![schema::Label::text(&cause)];
        let group = |cause, value| gpu_bottleneck.def().group_of(&labels(cause), Some(value));
        assert_eq!(group(Cause::PcieBound, 0.0), Some(MetricGroup::InactiveStates));
        assert_eq!((group(Cause::PcieBound, 1.0), group(Cause::None, 0.0)), (None, None));
        let clock =
            |domain: ClockDomain| gpu_clock_hertz.def().group_of(&[schema::Label::text(&domain)], Some(0.0));
        assert_eq!((clock(ClockDomain::Sm), clock(ClockDomain::Video)), (None, Some(MetricGroup::Clocks)));
    }

    #[test]
    fn a_deprecated_name_points_to_one_that_exists() {
        for m in METRICS {
            if let Some(instead) = m.deprecated {
                assert!(METRICS.iter().any(|o| o.name == instead && o.deprecated.is_none()));
            }
        }
    }
}

//! Every entity, label and metric, declared once.
//!
//! `# HELP`, `# TYPE`, `# UNIT`, `docs/METRICS.md`, `gpu-node-exporter metrics` and the checks of names and
//! labels elsewhere all come from here; entities, labels and groups are in `catalog/`. To add a metric: one
//! entry below, one line where it is read (`CONTRIBUTING.md` shows it). The first line of an entry's doc comment
//! is its `# HELP`; a second paragraph is for `docs/METRICS.md` alone.

#![warn(missing_docs)]

use std::hash::{DefaultHasher, Hash, Hasher};

mod entities;
mod groups;
mod infos;
pub mod joins;
mod labels;
pub mod schema;

pub use entities::*;
pub use groups::*;
pub use infos::*;
pub use labels::*;
use schema::metrics;
pub use schema::{Kind, MetricDef, MetricId};

metrics! {
    // --- driver and inventory -------------------------------------------------------------------
    /// 1 while the driver answers, 0 while it is absent, unloaded or silent.
    ///
    /// Absent until the first attempt has ended, and while the driver is released on request (`gpu_driver_paused`).
    gpu_driver_up: Gauge<Node>, None, Computed, "0.1.0";
    /// 1 while the driver as a whole is stuck: its initialization does not return, or two sampler processes in a row hang.
    ///
    /// No NVML value is published then; of two that hang, none is replaced until one has ended.
    gpu_driver_stuck: Gauge<Node>, None, Computed, "0.1.0";
    /// Versions of the driver and its library.
    gpu_driver_info: Info<Node, DriverInfo>, None, Identity, "0.1.0";
    /// 1 while the driver is released on request, so that it can be unloaded.
    ///
    /// `gpu-node-exporter driver release` does it. Nothing is measured then, and `gpu_driver_up` and `gpu_up` are
    /// absent.
    gpu_driver_paused: Gauge<Node>, None, Computed, "0.1.0";
    /// Loads of the NVIDIA kernel module since the exporter started.
    gpu_driver_loads_total: Counter<Node>, None, Computed, "0.1.0";
    /// Time at which the NVIDIA kernel module was loaded.
    ///
    /// From the kernel log, the driver's kernel threads, or the load itself. Absent if unknown.
    gpu_driver_load_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// 1 if the loaded kernel module has the expected version.
    ///
    /// `against`: the declared version (`driver.expected_version`), or that of libnvidia-ml on disk.
    gpu_driver_version_matches: Gauge<Node, (VersionAgainst,)>, None, Computed, "0.1.0", at most 1.0;
    /// 1 while NVML refuses to work because library and kernel module differ in version.
    ///
    /// Absent while the driver is released or stuck.
    gpu_driver_library_mismatch: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// GPU resets detected.
    ///
    /// A lost GPU answers again, or a request of the driver for a reset ends.
    gpu_resets_total: Counter<Gpu>, None, Computed, "0.1.0";
    /// Time at which the node booted.
    gpu_host_boot_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// GPUs that the driver lists.
    gpu_devices: Gauge<Node>, None, Slow, "0.1.0";
    /// Most GPUs listed since the node booted.
    ///
    /// Kept over restarts of the exporter. `health.expected_gpus` does not change it; `gpu_devices_missing` goes by
    /// both.
    gpu_devices_expected: Gauge<Node>, None, Computed, "0.1.0";
    /// Most GPUs ever listed on this node.
    ///
    /// Kept on disk over restarts and reboots. Falls only to a declared number: `health.expected_gpus`, or
    /// `expected_gpus` of an open maintenance window. Absent before the driver listed any, and while the number on disk cannot
    /// be read.
    gpu_devices_highest: Gauge<Node>, None, Computed, "0.1.0";
    /// Identity of the GPU.
    ///
    /// Stays while the GPU or the driver is stuck.
    gpu_info: Info<Gpu, GpuInfo>, None, Identity, "0.1.0";
    /// 1 while the GPU answers in time, 0 while a driver call on it is stuck, it is lost, or the driver is away.
    ///
    /// A GPU whose handle was never available has an empty `uuid`.
    gpu_up: Gauge<Gpu>, None, Computed, "0.1.0";
    /// Position of the GPU in its platform: chassis, slot, tray, node.
    ///
    /// An H200 gives host and module. Chassis, slot and tray are of rack systems (GB200 and later), never seen on hardware.
    gpu_platform_info: Info<Gpu, PlatformInfo>, None, Once, "0.1.0", group Limits;
    /// Brand of the GPU, and versions of the InfoROM's objects; JSON only.
    gpu_board_info: Info<Gpu, BoardInfo>, None, Once, "0.1.0", json only true;
    /// 1 if the GPU has a licence for the vendor's virtual GPU software; JSON only.
    gpu_vgpu_software_licensed: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0, json only true;
    /// CUDA cores (FP32 lanes) of the GPU.
    gpu_cuda_cores: Gauge<Gpu>, None, Once, "0.1.0", group Limits;
    /// Width of the memory bus, in bytes per transfer.
    ///
    /// Two transfers fit in a cycle of the memory clock.
    gpu_memory_bus_width_bytes: Gauge<Gpu>, Bytes, Once, "0.1.0", group Limits;

    // --- utilization ----------------------------------------------------------------------------
    /// Share of the driver's last sample period in which at least one kernel ran.
    ///
    /// The canary's kernels count too. Not how full the GPU was. Absent in MIG mode.
    gpu_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0";
    /// Share of the driver's last sample period in which device memory was read or written.
    ///
    /// Absent in MIG mode.
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
    /// Device memory allocated by processes, without the driver's reserve.
    gpu_memory_used_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0";
    /// Free device memory.
    gpu_memory_free_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0";
    /// Device memory reserved by driver and firmware.
    gpu_memory_reserved_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0", group MemoryDetail;
    /// Size of the BAR1 aperture: device memory that the CPU or PCIe devices can map.
    gpu_bar1_memory_total_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;
    /// BAR1 aperture in use.
    gpu_bar1_memory_used_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;
    /// Free part of the BAR1 aperture.
    gpu_bar1_memory_free_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;

    // --- the driver's own samples ---------------------------------------------------------------
    /// Distribution of the driver's power samples (50 per second).
    ///
    /// Shows bursts that no poll sees.
    gpu_power_sample_watts: Histogram<Gpu>, Watts, Samples, "0.1.0", group Samples;
    /// Distribution of the driver's utilization samples (5 per second), without those during canary runs.
    gpu_utilization_sample_ratio: Histogram<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Highest power sample of the last 60 s.
    gpu_power_peak_watts: Gauge<Gpu>, Watts, Samples, "0.1.0";
    /// Lowest power sample of the last 60 s.
    gpu_power_minimum_watts: Gauge<Gpu>, Watts, Samples, "0.1.0", group Samples;
    /// Highest utilization sample of the last 60 s, without those during canary runs.
    gpu_utilization_peak_ratio: Gauge<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Lowest utilization sample of the last 60 s, without those during canary runs.
    gpu_utilization_minimum_ratio: Gauge<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Time in which at least one kernel ran, integrated from the driver's utilization samples.
    ///
    /// Its rate is the average utilization of any range, for every scraper. Time of canary runs is left out, neither
    /// busy nor idle; it is in `gpu_canary_gpu_seconds_total`.
    gpu_busy_seconds_total: Counter<Gpu>, Seconds, Slow, "0.1.0";
    /// Energy, integrated from the driver's power samples.
    ///
    /// Fresher than `gpu_energy_joules_total`; gaps between samples are not filled.
    gpu_energy_sampled_joules_total: Counter<Gpu>, Joules, Samples, "0.1.0";

    // --- GPM: what the units of the GPU did (Hopper and later) ----------------------------------
    /// 1 while GPM counters are read, 0 while they are switched off or given to a profiler.
    gpu_gpm_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Modes;
    /// Share of the last GPM window in which the unit was active, over all units of its kind.
    ///
    /// A window is one slow interval; that of `graphics`, which is expensive, one rare interval.
    gpu_gpm_active_ratio: Gauge<Gpu, (GpmUnit,)>, Ratio, Slow, "0.1.0", group GpmDetail except ["sm", "sm_occupancy", "tensor", "dram", "fp64", "fp32", "fp16"];
    /// Time the unit was active, integrated over GPM windows.
    gpu_gpm_active_seconds_total: Counter<Gpu, (GpmUnit,)>, Seconds, Slow, "0.1.0", group GpmDetail;
    /// Bytes over PCIe, integrated from GPM's rate.
    ///
    /// NVML's own byte counters have 32 bits and wrap within 78 ms at full rate.
    gpu_gpm_pcie_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0";
    /// Bytes over all NVLinks, integrated from GPM's rate.
    gpu_gpm_nvlink_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;
    /// Bytes a second over PCIe in the last GPM window; JSON only.
    gpu_gpm_pcie_bytes_per_second: Gauge<Gpu, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;
    /// Bytes a second over all NVLinks in the last GPM window; JSON only.
    gpu_gpm_nvlink_bytes_per_second: Gauge<Gpu, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;
    /// Estimated floating-point operations per second.
    ///
    /// Activity of the pipe times multiprocessors, operations per cycle and SM clock. An active pipe need not do
    /// useful work.
    gpu_flops_estimate: Gauge<Gpu, (FlopPipe,)>, None, Computed, "0.1.0", group GpmDetail;
    /// Share of the last GPM window in which the unit of the GPU instance was active.
    gpu_mig_gpm_active_ratio: Gauge<GpuInstance, (GpmUnit,)>, Ratio, Slow, "0.1.0", group GpmDetail except ["graphics", "sm"];
    /// Time the unit of the GPU instance was active, integrated over GPM windows.
    gpu_mig_gpm_active_seconds_total: Counter<GpuInstance, (GpmUnit,)>, Seconds, Slow, "0.1.0", group GpmDetail except ["graphics"];
    /// Bytes of the GPU instance over PCIe, integrated from GPM's rate.
    gpu_mig_gpm_pcie_bytes_total: Counter<GpuInstance, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;
    /// Bytes of the GPU instance over all NVLinks, integrated from GPM's rate.
    gpu_mig_gpm_nvlink_bytes_total: Counter<GpuInstance, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;
    /// Bytes a second of the GPU instance over PCIe in the last GPM window; JSON only.
    gpu_mig_gpm_pcie_bytes_per_second: Gauge<GpuInstance, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;
    /// Bytes a second of the GPU instance over all NVLinks in the last GPM window; JSON only.
    gpu_mig_gpm_nvlink_bytes_per_second: Gauge<GpuInstance, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;

    // --- power and energy -----------------------------------------------------------------------
    /// Power draw of the board, averaged by the driver (over 1 s on Ampere and later).
    gpu_power_watts: Gauge<Gpu>, Watts, Normal, "0.1.0";
    /// Instant power draw of the board (NVML field 186).
    gpu_power_instant_watts: Gauge<Gpu>, Watts, Slow, "0.1.0", group Samples;
    /// Power limits of the board.
    ///
    /// The enforced one is read every 10 s, the others once a minute.
    gpu_power_limit_watts: Gauge<Gpu, (PowerLimit,)>, Watts, Rare, "0.1.0", group Limits except ["enforced", "default"];
    /// Energy used by the board since the driver was loaded.
    ///
    /// Read once a minute, because the call takes 5 ms: use rates over five minutes and more.
    gpu_energy_joules_total: Counter<Gpu>, Joules, Rare, "0.1.0";

    // --- temperature ----------------------------------------------------------------------------
    /// Temperature of the GPU core or of its memory.
    ///
    /// The core is read every second, the memory every 10 s.
    gpu_temperature_celsius: Gauge<Gpu, (Sensor,)>, Celsius, Normal, "0.1.0";
    /// Temperature limits of this GPU.
    gpu_temperature_threshold_celsius: Gauge<Gpu, (TemperatureThreshold,)>, Celsius, Once, "0.1.0", group Limits except ["slowdown", "memory_max", "gpu_max"];
    /// Degrees left until thermal slowdown.
    ///
    /// The lower of the thresholds `slowdown` and `gpu_max` less the temperature, each second. Where the driver gives no
    /// threshold, its own margin, once a minute.
    gpu_temperature_margin_celsius: Gauge<Gpu>, Celsius, Normal, "0.1.0";

    // --- clocks ---------------------------------------------------------------------------------
    /// Current clock.
    gpu_clock_hertz: Gauge<Gpu, (ClockDomain,)>, Hertz, Normal, "0.1.0", group Clocks except ["sm", "memory"];
    /// Highest clock that the GPU allows.
    gpu_clock_max_hertz: Gauge<Gpu, (ClockDomain,)>, Hertz, Once, "0.1.0", group Clocks except ["sm", "memory"];
    /// 1 while the driver names this reason for a lower clock.
    ///
    /// `gpu_idle` is no fault.
    gpu_clock_event_active: Gauge<Gpu, (ClockEvent,)>, None, Fast, "0.1.0", group InactiveStates;
    /// Time the clocks were held down for this reason.
    ///
    /// The driver's nanosecond counter where there is one, else integrated ten times a second. Slowdown by heat or
    /// power brake of less than a tenth of a second may come a minute late.
    gpu_clock_event_seconds_total: Counter<Gpu, (ClockEvent,)>, Seconds, Slow, "0.1.0", group Clocks except ["sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"];
    /// Time the clocks were held down by this policy, as counted by the driver.
    gpu_violation_seconds_total: Counter<Gpu, (PerfPolicy,)>, Seconds, Rare, "0.1.0", group Clocks;
    /// Time the clocks were held down by heat, as counted by the driver; JSON only.
    ///
    /// Overlaps the seconds of both thermal reasons in `gpu_clock_event_seconds_total`.
    gpu_thermal_violation_seconds_total: Counter<Gpu>, Seconds, Rare, "0.1.0", json only true;
    /// Times that the driver began to name this reason for a lower clock; JSON only.
    ///
    /// Seen ten times a second. A reason that holds at the first look does not count.
    gpu_clock_event_starts_total: Counter<Gpu, (ClockEvent,)>, None, Computed, "0.1.0", json only true;
    /// Looks at the clock in the last minutes that found this reason; JSON only.
    ///
    /// One look every 30 s, in a window of `dcgm.clock_events_window`.
    gpu_clock_event_window_samples: Gauge<Gpu, (ClockEvent,)>, None, Computed, "0.1.0", json only true;
    /// Performance state, 0 (fastest) to 15.
    gpu_performance_state: Gauge<Gpu>, None, Normal, "0.1.0", at most 15.0, group Modes;

    // --- errors ---------------------------------------------------------------------------------
    /// 1 if ECC is on.
    gpu_ecc_mode_enabled: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0;
    /// 1 if ECC will be on after the next reboot or reset.
    gpu_ecc_mode_pending_enabled: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0, group Modes;
    /// ECC errors of all memories together, as counted by the driver.
    gpu_ecc_total_errors: Gauge<Gpu, (EccCounter, EccError)>, None, Normal, "0.1.0";
    /// ECC errors by memory location.
    gpu_ecc_errors: Gauge<Gpu, (EccCounter, EccError, EccMemory)>, None, Slow, "0.1.0", group EccLocations;
    /// Rows of device memory remapped to spare rows.
    gpu_remapped_rows: Gauge<Gpu, (RemapCause,)>, None, Slow, "0.1.0";
    /// 1 while a row remap waits for a GPU reset.
    gpu_row_remap_pending: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// 1 if a row remap has failed: the board is a candidate for return.
    gpu_row_remap_failure: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;

    /// SRAM errors by kind (NVML SRAM ECC status).
    gpu_ecc_sram_errors: Gauge<Gpu, (EccCounter, SramError)>, None, Slow, "0.1.0", group EccLocations;
    /// Uncorrected SRAM errors over the GPU's life, by unit.
    gpu_ecc_sram_uncorrected_errors: Gauge<Gpu, (SramUnit,)>, None, Slow, "0.1.0", group EccLocations;
    /// 1 if uncorrected SRAM errors exceed the vendor's threshold: the board is a candidate for return.
    gpu_ecc_sram_threshold_exceeded: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// Banks of device memory by spare rows left.
    gpu_row_remap_banks: Gauge<Gpu, (SpareRows,)>, None, Slow, "0.1.0", group EccLocations except ["low", "none"];
    /// Retired pages of device memory (before Ampere).
    gpu_retired_pages: Gauge<Gpu, (RetirementCause,)>, None, Rare, "0.1.0", group EccLocations;
    /// 1 while page retirement waits for a reboot (before Ampere).
    gpu_retired_pages_pending: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0;
    /// 1 while a repair by spare memory channels or TPCs waits for a GPU reset.
    gpu_repair_pending: Gauge<Gpu, (RepairPart,)>, None, Rare, "0.1.0", at most 1.0;
    /// 1 for the recovery action that the driver asks for (NVML field 230).
    gpu_recovery_action: Gauge<Gpu, (RecoveryAction,)>, None, Slow, "0.1.0", group InactiveStates;
    /// 1 if NVML event notification is registered for this GPU.
    gpu_driver_events_registered: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Events;
    /// NVML events of this GPU.
    ///
    /// Events of single-bit ECC errors and clock changes are not registered: counters have them.
    gpu_driver_events_total: Counter<Gpu, (DriverEvent,)>, None, Computed, "0.1.0", group Events;

    // --- faults and health ----------------------------------------------------------------------
    /// Xid faults by recommended action.
    ///
    /// A fault reported by NVML and by the kernel log counts once.
    gpu_xid_faults_total: Counter<Gpu, (FaultAction,)>, None, Computed, "0.1.0", group Events;
    /// Xid faults by code.
    ///
    /// Codes of severity `page` start at 0; others appear with their first fault.
    gpu_xid_errors_total: Counter<Gpu, (XidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// Time of the newest Xid fault of this GPU.
    gpu_xid_last_event_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Code of the newest Xid fault of this GPU.
    ///
    /// Absent before the first. `/api/v1/events` has the others.
    gpu_xid_last_code: Gauge<Gpu>, None, Computed, "0.1.0";
    /// Xid faults of the last minutes, by code; JSON only.
    ///
    /// In a window of `dcgm.xid_window`.
    gpu_xid_window_errors: Gauge<Gpu, (XidCode,)>, None, Computed, "0.1.0", json only true;
    /// Xid faults in the kernel log of GPUs that the driver does not list.
    gpu_xid_unknown_gpu_total: Counter<Node, (XidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// NVSwitch faults in the kernel log, by code.
    gpu_nvswitch_sxid_errors_total: Counter<Node, (SwitchName, SxidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// 1 from an SXid of severity `page` until the driver is loaded again, the node boots, or `nvswitch clear`.
    ///
    /// Kept over restarts of the exporter. A reset of the switches shows nowhere, so `gpu-node-exporter nvswitch clear` tells
    /// the exporter. No series without a fault.
    gpu_nvswitch_fault_active: Gauge<Node, (SwitchName, SxidCode, FaultAction)>, None, Computed, "0.1.0", at most 1.0;
    /// Time of the newest event in `/api/v1/events`.
    gpu_last_event_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0", group Events;
    /// 1 if nothing is known against the GPU, 0 otherwise.
    ///
    /// Absent while the driver is away, released or stuck as a whole, so that a driver upgrade is no broken GPU, and while
    /// nothing was read of the GPU for too long without an error: the exporter may have been held up.
    gpu_healthy: Gauge<Gpu>, None, Computed, "0.1.0";
    /// 1 for each reason why the GPU is not healthy.
    ///
    /// `lost`: it answers with errors only. `stuck`: a driver call on it does not return. `recovery_action`: the
    /// driver asks for one. `fatal_xid`: an Xid of severity `page` since the last reset or driver load, or the kernel log
    /// calls it fallen off the bus.
    /// `uncontained_ecc`: Xid 95, or a memory error (48, 171, 172) without Xid 94 within 5 s. `row_remap_failure`: a
    /// row remap failed. `missing`: the driver does not list it any more. `canary`: a run ended with
    /// `wrong_result`, until `gpu-node-exporter canary clear` or another board, or the newest run of a check with
    /// `driver_fault` or `hung`, until a reset or driver load; or its process hangs. Absent with `gpu_healthy`.
    gpu_unhealthy_reason: Gauge<Gpu, (UnhealthyReason,)>, None, Computed, "0.1.0", group InactiveStates;
    /// Faults that made the GPU unhealthy since the exporter saw it first.
    ///
    /// Counts changes of `gpu_healthy` to 0, kept on disk by UUID over restarts and reboots: a gauge, because a number that is
    /// restored may be less than the last one. Compare it with an earlier one; `rate` and `increase` are wrong. A GPU that fails again before
    /// it was healthy for a minute was not back. A GPU that only does not answer, or is not listed, counts after 60 s: a reset
    /// of a peer holds NVML for 45 s. In a maintenance window, while the driver is released, and for 60 s after them, a GPU
    /// that is lost or does not answer does not count: a planned reset looks so. Absent while the number on disk cannot be
    /// read.
    gpu_unhealthy_incidents: Gauge<Gpu>, None, Computed, "0.1.0";
    /// Expected GPUs that the driver does not list.
    ///
    /// Expected: as configured, or the most listed since the node booted. Absent while the driver is away.
    gpu_devices_missing: Gauge<Node>, None, Computed, "0.1.0";
    /// GPUs that `health.expected_gpus` declares.
    ///
    /// Others on PCI belong to someone else, as with vfio-pci. Absent where nothing is declared.
    gpu_devices_declared: Gauge<Node>, None, Computed, "0.1.0";

    // --- NVLink and fabric ----------------------------------------------------------------------
    /// 1 if the link is up.
    gpu_nvlink_up: Gauge<Link>, None, Slow, "0.1.0", at most 1.0, group NvlinkLinks;
    /// An active link and its remote end.
    gpu_nvlink_info: Info<Link, NvLinkInfo>, None, Rare, "0.1.0", json only true;
    /// Speed of the slowest active link, in each direction.
    gpu_nvlink_speed_bytes_per_second: Gauge<Gpu>, BytesPerSecond, Rare, "0.1.0", group LinkDetail;
    /// Data over the link, without protocol.
    gpu_nvlink_link_bytes_total: Counter<Link, (Direction,)>, Bytes, Nvlink, "0.1.0", group NvlinkLinks;
    /// NVLink errors of all links of the GPU.
    ///
    /// The kinds of NVLink 5 (Blackwell) were simulated alone, never seen on hardware.
    gpu_nvlink_errors_total: Counter<Gpu, (NvLinkError,)>, None, Nvlink, "0.1.0";
    /// NVLink errors of one link; only links with errors have series.
    ///
    /// A link without a series had none, as long as `gpu_nvlink_errors_total` has this kind.
    gpu_nvlink_link_errors_total: Counter<Link, (NvLinkError,)>, None, Nvlink, "0.1.0", group NvlinkLinks except ["dl_replay", "dl_recovery", "dl_crc_flit", "link_recovery", "link_recovery_failed"];
    /// Share of wrong bits on the link (NVLink 5).
    ///
    /// Simulated alone, never seen on hardware.
    gpu_nvlink_link_bit_error_ratio: Gauge<Link, (NvLinkBitErrors,)>, Ratio, Nvlink, "0.1.0", group NvlinkLinks;
    /// Codewords that the link received, by corrected symbols (NVLink 5, FEC history).
    ///
    /// Simulated alone, never seen on hardware.
    gpu_nvlink_link_fec_codewords_total: Counter<Link, (SymbolErrors,)>, None, Nvlink, "0.1.0", group NvlinkLinks;
    /// Errors on the lanes of all links of the GPU, corrected by the links.
    ///
    /// Healthy links have some: watch the rate.
    gpu_nvlink_lane_errors_total: Counter<Gpu, (NvLinkLaneError,)>, None, Nvlink, "0.1.0", group LinkDetail;
    /// Data over all links of the GPU, without protocol.
    gpu_nvlink_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0";
    /// Data a second over all links of the GPU between the newest two readings, without protocol; JSON only.
    gpu_nvlink_bytes_per_second: Gauge<Gpu, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;
    /// Bytes over all links of the GPU, with protocol.
    gpu_nvlink_raw_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0", group LinkDetail;
    /// NVLinks of the GPU.
    gpu_nvlink_links: Gauge<Gpu>, None, Once, "0.1.0", at most 64.0;
    /// Active NVLinks of the GPU.
    gpu_nvlink_links_up: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Path to each other GPU of the node (peer-to-peer matrix); JSON only.
    gpu_peer_info: Info<Gpu, PeerInfo>, None, Once, "0.1.0", json only true;
    /// 1 for the GPU's state of joining the NVLink fabric.
    gpu_fabric_state: Gauge<Gpu, (FabricState,)>, None, Slow, "0.1.0", group InactiveStates;
    /// 1 for each fault that the NVLink fabric reports of this GPU.
    gpu_fabric_fault: Gauge<Gpu, (FabricFault,)>, None, Slow, "0.1.0";
    /// NVML return code of joining the fabric; 0 is success.
    ///
    /// Valid once the state is `completed`.
    gpu_fabric_status: Gauge<Gpu>, None, Slow, "0.1.0";
    /// Health mask of the NVLink fabric as NVML gives it; JSON only.
    gpu_fabric_health_mask: Gauge<Gpu>, None, Slow, "0.1.0", json only true;
    /// Health of the NVLink fabric as NVML sums it up; JSON only.
    ///
    /// 1: healthy, 2: unhealthy, 3: limited capacity. Absent where the driver does not know it.
    gpu_fabric_health_summary: Gauge<Gpu>, None, Slow, "0.1.0", at most 3.0, json only true;
    /// NVLink fabric of the GPU.
    gpu_fabric_info: Info<Gpu, FabricInfo>, None, Rare, "0.1.0", group LinkDetail;
    /// An NVSwitch of the node, where the node's kernel drives the switches.
    gpu_nvswitch_info: Info<Node, NvSwitchInfo>, None, Rare, "0.1.0";

    // --- PCIe -----------------------------------------------------------------------------------
    /// Current PCIe generation of the link.
    ///
    /// Idle GPUs may lower it to save power.
    gpu_pcie_link_generation: Gauge<Gpu>, None, Slow, "0.1.0", at most 16.0;
    /// Highest PCIe generation that GPU and slot support.
    gpu_pcie_link_max_generation: Gauge<Gpu>, None, Once, "0.1.0", at most 16.0;
    /// Current number of PCIe lanes.
    gpu_pcie_link_width_lanes: Gauge<Gpu>, Lanes, Slow, "0.1.0";
    /// Most PCIe lanes that GPU and slot support.
    gpu_pcie_link_max_width_lanes: Gauge<Gpu>, Lanes, Once, "0.1.0";
    /// PCIe replays: packets sent again because of link errors.
    gpu_pcie_replays_total: Counter<Gpu>, None, Rare, "0.1.0";
    /// PCIe errors counted by the GPU.
    gpu_pcie_errors_total: Counter<Gpu, (PcieError,)>, None, Rare, "0.1.0";
    /// Transitions of the PCIe link from L0 to recovery.
    gpu_pcie_recoveries_total: Counter<Gpu>, None, Rare, "0.1.0", group LinkDetail;
    /// PCIe errors of the GPU's function counted by the kernel (AER).
    ///
    /// Absent in virtual machines.
    gpu_pcie_aer_errors_total: Counter<Gpu, (AerSeverity,)>, None, Rare, "0.1.0";

    /// Bytes a second over PCIe, with protocol, in the 20 ms that NVML measures for each reading.
    ///
    /// Only with `sampler.pcie_throughput`, for GPUs without GPM. 20 ms of each minute tell how large the traffic is, and
    /// never how many bytes were moved: `gpu_gpm_pcie_bytes_total` counts all of them. NVML's KB is taken as 1024 bytes.
    gpu_pcie_throughput_bytes_per_second: Gauge<Gpu, (Direction,)>, BytesPerSecond, Rare, "0.1.0";

    // --- modes and processes --------------------------------------------------------------------
    /// 1 if persistence mode is on.
    gpu_persistence_mode_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Modes;
    /// 1 for the current compute mode.
    gpu_compute_mode: Gauge<Gpu, (ComputeMode,)>, None, Slow, "0.1.0", group Modes;
    /// Processes on the GPU, without the canary's.
    ///
    /// Compute processes are listed every second, the others every 10 s.
    gpu_processes: Gauge<Gpu, (ProcessType,)>, None, Normal, "0.1.0", group InactiveStates except ["compute"];
    /// 1 if MIG mode is on.
    gpu_mig_mode_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// 1 if MIG mode will be on after the next reset.
    gpu_mig_mode_pending_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;

    // --- processes, one by one (opt-in) ---------------------------------------------------------
    /// A process on the GPU, other than the canary's.
    gpu_process_info: Info<Process, ProcessInfo>, None, Slow, "0.1.0", group Process;
    /// Device memory of the process.
    gpu_process_memory_used_bytes: Gauge<Process>, Bytes, Slow, "0.1.0", group Process;
    /// Share of the last slow interval in which the process used the engine.
    gpu_process_utilization_ratio: Gauge<Process, (Engine,)>, Ratio, Slow, "0.1.0", group Process;
    /// Processes without series of their own, because of `processes.max_per_gpu`.
    gpu_processes_dropped: Gauge<Gpu>, None, Slow, "0.1.0", group Process;

    // --- video and virtual GPUs -----------------------------------------------------------------
    /// Encoder (NVENC) sessions.
    gpu_encoder_sessions: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Frames per second, averaged over the encoder sessions.
    gpu_encoder_frames_per_second: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Latency of encoding a frame, averaged over the encoder sessions.
    gpu_encoder_latency_seconds: Gauge<Gpu>, Seconds, Slow, "0.1.0", group Video;
    /// Frame buffer capture (FBC) sessions.
    gpu_fbc_sessions: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Frames per second, averaged over the capture sessions.
    gpu_fbc_frames_per_second: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Latency of capturing a frame, averaged over the capture sessions.
    gpu_fbc_latency_seconds: Gauge<Gpu>, Seconds, Slow, "0.1.0", group Video;
    /// A virtual GPU.
    gpu_vgpu_info: Info<Vgpu, VgpuInfo>, None, Slow, "0.1.0";
    /// Device memory used by the virtual GPU.
    gpu_vgpu_memory_used_bytes: Gauge<Vgpu>, Bytes, Slow, "0.1.0", group Vgpu;
    /// Share of the engine's last sample period used by the virtual GPU.
    gpu_vgpu_utilization_ratio: Gauge<Vgpu, (Engine,)>, Ratio, Slow, "0.1.0", group Vgpu;
    /// 1 if the virtual GPU has a licence.
    gpu_vgpu_licensed: Gauge<Vgpu>, None, Slow, "0.1.0", at most 1.0, group Vgpu;

    // --- MIG ------------------------------------------------------------------------------------
    /// Identity of a MIG device.
    gpu_mig_info: Info<ComputeInstance, MigInfo>, None, Normal, "0.1.0";
    /// Device memory of the GPU instance.
    gpu_mig_memory_total_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";
    /// Used device memory of the GPU instance.
    gpu_mig_memory_used_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";
    /// Free device memory of the GPU instance.
    gpu_mig_memory_free_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";
    /// Memory of the GPU instance reserved by driver and firmware.
    gpu_mig_memory_reserved_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0", group MemoryDetail;

    /// First memory slice of the GPU instance.
    gpu_mig_placement_start: Gauge<GpuInstance>, None, Normal, "0.1.0", at most 64.0;
    /// Memory slices of the GPU instance.
    gpu_mig_placement_slices: Gauge<GpuInstance>, None, Normal, "0.1.0", at most 64.0;
    /// NVML's id of the GPU instance's profile, as `nvidia-smi mig -lgip` prints it.
    gpu_mig_profile_id: Gauge<GpuInstance>, None, Normal, "0.1.0", json only true;
    /// Multiprocessors of the GPU instance.
    gpu_mig_multiprocessors: Gauge<GpuInstance>, None, Normal, "0.1.0";
    /// Share of the GPU instance's multiprocessors in the compute instance.
    gpu_mig_compute_sm_share_ratio: Gauge<ComputeInstance>, Ratio, Normal, "0.1.0", group MigDetail;
    /// Processes on the compute instance, without the canary's.
    gpu_mig_compute_processes: Gauge<ComputeInstance>, None, Slow, "0.1.0";
    /// GPU instances of this profile that can be created now.
    gpu_mig_profile_free: Gauge<Gpu, (ProfileName,)>, None, Slow, "0.1.0", at most 64.0;
    /// GPU instances of this profile that fit on an empty GPU.
    gpu_mig_profile_capacity: Gauge<Gpu, (ProfileName,)>, None, Slow, "0.1.0", at most 64.0;
    /// Compute slices of the GPU.
    gpu_mig_slices: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Compute slices in GPU instances.
    gpu_mig_slices_used: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Free compute slices that no further GPU instance can use: stranded until the layout changes.
    gpu_mig_slices_unplaceable: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// MIG devices of this profile in the declared layout.
    gpu_mig_layout_declared: Gauge<Gpu, (ProfileName,)>, None, Computed, "0.1.0", at most 64.0;
    /// 1 if the MIG layout is the declared one.
    ///
    /// Absent without a declared layout.
    gpu_mig_layout_matches: Gauge<Gpu>, None, Computed, "0.1.0", at most 1.0;

    // --- canary ---------------------------------------------------------------------------------
    /// 1 for the verdict of the newest judged run of this check.
    ///
    /// The series of `ok` is there once the check was judged, that of another verdict from its first time on. Absent
    /// while the GPU does not answer or is in MIG mode (`gpu_mig_canary_verdict`).
    gpu_canary_verdict: Gauge<Gpu, (CanaryCheck, CanaryVerdict)>, None, Computed, "0.1.0", at most 1.0;
    /// Rate of the check in its newest valid run, relative to the reference.
    gpu_canary_rate_ratio: Gauge<Gpu, (CanaryCheck, RateAgainst)>, Ratio, Computed, "0.1.0", at most 100.0;
    /// Clock of the multiprocessors during `sm_rate`: cycles counted by the GPU over its own time.
    gpu_canary_sm_clock_hertz: Gauge<Gpu>, Hertz, Computed, "0.1.0";
    /// Multiply-adds (FMA) per multiprocessor and cycle in the newest valid run.
    gpu_canary_work_per_cycle: Gauge<Gpu, (CanaryCheck,)>, None, Computed, "0.1.0", group CanaryDetail;
    /// Results that differ from the CPU's, or words that differ from what was written.
    gpu_canary_mismatches_total: Counter<Gpu, (MismatchKind,)>, None, Computed, "0.1.0";
    /// A slow or wrong multiprocessor of the newest judged run; at most eight.
    gpu_canary_bad_sm_info: Info<Gpu, BadSmInfo>, None, Computed, "0.1.0";
    /// CUDA driver errors in canary runs, without those of the environment.
    gpu_canary_cuda_errors_total: Counter<Gpu, (CudaError,)>, None, Computed, "0.1.0";
    /// Canary samples discarded because another process used the GPU.
    gpu_canary_discarded_total: Counter<Gpu>, None, Computed, "0.1.0", group CanaryDetail;
    /// Time at which a canary run last ended; on a GPU in MIG mode, of any instance.
    gpu_canary_last_run_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Time of the first wrong result of the canary on this board that is not cleared.
    ///
    /// Absent without one. It outlasts later runs, resets and reboots; `gpu-node-exporter canary clear` ends it.
    gpu_canary_wrong_result_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Time at which a run last ended with every check `ok`; on a GPU in MIG mode, of any instance.
    gpu_canary_last_success_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Time at which the next canary run is due; on a GPU in MIG mode, the first of its instances.
    ///
    /// Absent if none is planned.
    gpu_canary_next_due_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// GPU time used by the canary's kernels and copies.
    gpu_canary_gpu_seconds_total: Counter<Gpu>, Seconds, Computed, "0.1.0";
    /// 1 while the canary's process hangs in this step.
    ///
    /// Each series appears with its first time.
    gpu_canary_hung: Gauge<Gpu, (CanaryStep,)>, None, Computed, "0.1.0", at most 1.0;
    /// 1 for the configured mode of the canary.
    gpu_canary_mode: Gauge<Node, (CanaryMode,)>, None, Computed, "0.1.0", at most 1.0, group InactiveStates;
    /// Largest share of a GPU's time for the canary (`canary.max_duty_ratio`).
    gpu_canary_duty_budget_ratio: Gauge<Node>, Ratio, Computed, "0.1.0";
    /// Canary runs, by end.
    gpu_canary_runs_total: Counter<Node, (CanaryEnd,)>, None, Computed, "0.1.0";
    /// Due canary runs that were postponed or impossible, by reason.
    gpu_canary_skipped_total: Counter<Node, (CanarySkip,)>, None, Computed, "0.1.0";
    /// Canary processes alive, those stuck in the driver included.
    ///
    /// At most one per GPU.
    gpu_canary_processes: Gauge<Node>, None, Computed, "0.1.0";
    /// Canary processes killed.
    gpu_canary_kills_total: Counter<Node>, None, Computed, "0.1.0";
    /// Duration of canary steps, all GPUs together.
    gpu_canary_step_duration_seconds: Histogram<Node, (CanaryStep,)>, Seconds, Computed, "0.1.0", group CanaryDetail;
    /// Rates of valid canary runs relative to the GPU's own baseline, all GPUs together.
    gpu_canary_sample_rate_ratio: Histogram<Node, (CanaryCheck,)>, Ratio, Computed, "0.1.0", at most 100.0, group CanaryDetail;
    /// 1 for the verdict of the newest judged run of this check on the GPU instance.
    ///
    /// If it has several compute instances, the worst of theirs.
    gpu_mig_canary_verdict: Gauge<GpuInstance, (CanaryCheck, CanaryVerdict)>, None, Computed, "0.1.0", at most 1.0;
    /// Rate of the check in its newest valid run on the GPU instance, relative to the reference.
    ///
    /// If it has several compute instances, the lowest of theirs.
    gpu_mig_canary_rate_ratio: Gauge<GpuInstance, (CanaryCheck, RateAgainst)>, Ratio, Computed, "0.1.0", at most 100.0, group MigDetail;
    /// Time at which a canary run on the GPU instance last ended.
    gpu_mig_canary_last_run_timestamp_seconds: Gauge<GpuInstance>, Seconds, Computed, "0.1.0";
    /// Time at which the GPU was last in use, by a process or by utilization above 0.
    ///
    /// In MIG mode by processes alone. The canary does not count. Absent before the first use.
    gpu_last_busy_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";

    // --- the host around the GPUs ---------------------------------------------------------------
    /// Parts of the machine, counted by hwloc.
    gpu_host_objects: Gauge<Node, (HostObject,)>, None, Computed, "0.1.0";
    /// Location of the GPU: NUMA node, near CPUs, PCIe path, and its fair share of CPUs.
    ///
    /// `gpu-node-exporter topology` draws it.
    gpu_host_topology_info: Info<Gpu, TopologyInfo>, None, Computed, "0.1.0";
    /// Location of the MIG compute instance: NUMA node, and its share of the GPU's CPUs.
    gpu_mig_host_topology_info: Info<ComputeInstance, MigTopologyInfo>, None, Computed, "0.1.0";
    /// 1 if the machine matches its first observed or its declared topology.
    ///
    /// Compared: packages, NUMA nodes, memory (to 2 %), and the places and links of GPUs and network devices.
    /// `/api/v1/topology` has the differences.
    gpu_host_topology_matches: Gauge<Node, (TopologyAgainst,)>, None, Computed, "0.1.0", at most 1.0;
    /// Highest PCIe generation of the port (slot, switch) above the GPU.
    ///
    /// That of the GPU itself is in `gpu_pcie_link_max_generation`.
    gpu_host_pcie_port_max_generation: Gauge<Gpu>, None, Computed, "0.1.0", group Limits;
    /// Most PCIe lanes of the port above the GPU.
    gpu_host_pcie_port_max_width_lanes: Gauge<Gpu>, Lanes, Computed, "0.1.0";
    /// 1 if the PCIe link runs at the best that GPU and port support.
    ///
    /// The width must match always. Some models lower the generation at rest: 1 once the best was reached, 0 if it is
    /// not reached after 30 s of work, absent before.
    gpu_host_pcie_link_matches: Gauge<Gpu, (LinkAspect,)>, None, Computed, "0.1.0", at most 1.0;
    /// Network device nearest to the GPU.
    ///
    /// With node_exporter: `gpu_host_nic_info * on (instance, device) group_left ()
    /// node_network_transmit_bytes_total`.
    gpu_host_nic_info: Info<Gpu, NicInfo>, None, Computed, "0.1.0";
    /// 1 if the network device nearest to a GPU can carry traffic.
    gpu_host_nic_up: Gauge<Node, (Nic,)>, None, Computed, "0.1.0", at most 1.0;
    /// Link rate of the network device nearest to a GPU, one way.
    gpu_host_nic_speed_bytes_per_second: Gauge<Node, (Nic,)>, BytesPerSecond, Computed, "0.1.0";
    /// Bytes over the network device nearest to a GPU.
    ///
    /// Port `1` and so on: RDMA, and all traffic of InfiniBand. A port with the name of the interface: traffic of the kernel
    /// over Ethernet. Absent where the kernel has no counter.
    gpu_host_network_bytes_total: Counter<Node, (Nic, NetworkPort, Direction)>, Bytes, Computed, "0.1.0";
    /// Errors of the network device nearest to a GPU.
    ///
    /// InfiniBand adapters without extended counters stop at 65,535 until they are reset.
    gpu_host_network_errors_total: Counter<Node, (Nic, NetworkPort, NetworkError)>, None, Computed, "0.1.0";
    /// Losses of the link (flaps) of the network device nearest to a GPU.
    ///
    /// InfiniBand adapters without extended counters stop at 255 until they are reset.
    gpu_host_network_flaps_total: Counter<Node, (Nic, NetworkPort)>, None, Computed, "0.1.0";
    /// 1 while this service of the vendor runs on the host.
    ///
    /// Known by its process. Only services that are expected or were seen since the exporter started. The fabric manager is
    /// expected where the kernel drives NVSwitches, or where a GPU has an NVLink fabric and the service's unit is enabled.
    /// Elsewhere it counts as seen after 20 s: without switches it starts and ends.
    /// Absent where the host's processes cannot be seen.
    gpu_host_service_up: Gauge<Node, (HostService,)>, None, Computed, "0.1.0", at most 1.0;
    /// Events counted on the CPUs, all processes and the kernel together.
    ///
    /// Scaled where the counters were shared. Only events that can be counted here (`gpu_host_cpu_event_state`).
    gpu_host_cpu_events_total: Counter<CpuGroup, (PerfEvent,)>, None, Computed, "0.1.0", at most 1e24, group CpuEvents;
    /// CPU time by mode, all processes together, since the exporter started.
    ///
    /// The sum of the modes is one second per second and CPU.
    gpu_host_cpu_seconds_total: Counter<CpuGroup, (CpuMode,)>, Seconds, Computed, "0.1.0", at most 1e15;
    /// 1 for the state of each configured CPU event: countable here, or why not.
    gpu_host_cpu_event_state: Gauge<Node, (PerfEvent, PerfState)>, None, Computed, "0.1.0", at most 1.0, group CpuEvents;
    /// Share of the last interval in which the CPU event was counted.
    ///
    /// Published counts are scaled by it. 1: the counters were not shared.
    gpu_host_cpu_event_running_ratio: Gauge<Node, (PerfEvent,)>, Ratio, Computed, "0.1.0", group CpuEvents;

    // --- owners ---------------------------------------------------------------------------------
    /// Identity of an owner of work on the GPU.
    ///
    /// The owner `other` is all owners of the GPU that have no series of their own.
    /// Join on `gpu`, `uuid`, `gpu_instance` and `owner`. Stays with the owner's counters for `owners.retention` after its
    /// end.
    gpu_owner_info: Info<OwnedGpu, OwnerInfo>, None, Computed, "0.1.0";
    /// Processes of the owner on the GPU; 0 after its end.
    gpu_owner_processes: Gauge<OwnedGpu>, None, Computed, "0.1.0";
    /// Device memory of the owner's processes.
    gpu_owner_memory_used_bytes: Gauge<OwnedGpu>, Bytes, Computed, "0.1.0";
    /// GPU time allocated to the owner: seconds with a process on the GPU, divided by its owners.
    ///
    /// On a MIG instance times its share of the GPU's compute slices.
    gpu_owner_allocated_seconds_total: Counter<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// GPU time in which the GPU worked for the owner.
    ///
    /// From the driver's utilization samples (on a MIG instance from GPM, times its share of the GPU's compute
    /// slices), divided equally among the owners present. At most the allocated seconds. The canary's work is not in
    /// it.
    gpu_owner_busy_seconds_total: Counter<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Energy of the GPU attributed to the owner.
    ///
    /// From the driver's power samples, divided as the busy time (while the GPU is idle, as the allocated time). Of a
    /// MIG instance its share of the GPU's compute slices.
    gpu_owner_energy_joules_total: Counter<OwnedGpu>, Joules, Computed, "0.1.0";
    /// Share of the CPUs of the owner's processes that are not on the NUMA node near the GPU.
    ///
    /// CPUs used in the last minute, else those allowed. Absent where the machine does not say what is near.
    gpu_owner_cpu_remote_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// Share of the CPUs of the owner's processes outside the last-level caches in the share of its GPUs or MIG instances.
    ///
    /// CPUs used in the last minute, else those allowed. Only for an owner whose CPUs are within the near NUMA node and leave
    /// out at least one of its last-level caches.
    gpu_owner_cpu_remote_cache_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// Share of the owner's host memory that is not on the NUMA node near the GPU.
    gpu_owner_memory_remote_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// 1 for the bottleneck of the owner's work on the GPU.
    ///
    /// `docs/BOTTLENECKS.md` has each cause's formula and its series. `unknown` where too little is measured to prove one.
    gpu_bottleneck: Gauge<OwnedGpu, (Cause,)>, None, Computed, "0.1.0", at most 1.0, group InactiveStates except ["none"];
    /// GPU time allocated to the owner, by class.
    ///
    /// The sum of all classes is `gpu_owner_allocated_seconds_total`. `docs/HEARTBEAT.md` has each class's formula.
    gpu_owner_gpu_seconds_total: Counter<OwnedGpu, (GpuTimeClass,)>, Seconds, Computed, "0.1.0", group InactiveStates except ["computing"];
    /// Step of the owner's work on the GPU: the period of its power.
    ///
    /// Absent where no period is found, as of inference and irregular work, and for an owner that shares the GPU.
    gpu_owner_step_seconds: Gauge<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Confidence of `gpu_owner_step_seconds`: the share of the power's variance that the period explains.
    gpu_owner_step_confidence_ratio: Gauge<OwnedGpu, (StepPeriod,)>, Ratio, Computed, "0.1.0", at most 1.0;
    /// Standard deviation of the step's length, as a share of the step.
    gpu_owner_step_jitter_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// Steps of the owner's work on the GPU.
    ///
    /// Time with a known step, divided by that step.
    gpu_owner_steps_total: Counter<OwnedGpu>, None, Computed, "0.1.0";
    /// Step now, as a multiple of the step in the owner's best hour on the GPU.
    gpu_owner_step_slowdown_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0", at most 1000.0;
    /// Share of the time by which the owner's slow rank waits less than its other GPUs on the node.
    ///
    /// Only on the GPU of the slow rank.
    gpu_owner_slow_rank_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// 1 on the GPU of the missing rank, which the owner's other GPUs on the node wait for.
    ///
    /// Only on the GPUs of an owner that is wedged.
    gpu_owner_missing_rank: Gauge<OwnedGpu>, None, Computed, "0.1.0", at most 1.0;
    /// Time of the last progress of an owner that is wedged or stalled, since 1970.
    gpu_owner_last_progress_timestamp_seconds: Gauge<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Rank of the owner's process on the GPU in its largest NCCL communicator, as NCCL numbers it (`owners.nccl_ras`).
    gpu_owner_nccl_rank: Gauge<OwnedGpu>, None, Computed, "0.1.0";
    /// Collectives that the owner's process on the GPU launched, as NCCL counts them (`owners.nccl_ras`).
    gpu_owner_nccl_collectives_total: Counter<OwnedGpu>, None, Computed, "0.1.0";
    /// Questions to the RAS sockets of NCCL jobs, by outcome (`owners.nccl_ras`).
    gpu_exporter_nccl_ras_requests_total: Counter<Node, (RasOutcome,)>, None, Computed, "0.1.0";
    /// Ends of the owner with the GPU's memory at least 98 % full.
    ///
    /// NVML does not report failed CUDA allocations: a suspicion, not a count of them.
    gpu_owner_ended_at_full_memory_total: Counter<OwnedGpu>, None, Computed, "0.1.0";
    /// Smallest MIG profile that fits the owner's 95th percentiles of memory and of active multiprocessors.
    ///
    /// Only after 24 hours of data; formula in `docs/OWNERS.md`.
    gpu_owner_mig_profile_hint_info: Info<OwnedGpu, (ProfileName,)>, None, Computed, "0.1.0";
    /// Processes of the owner killed by the OOM killer.
    ///
    /// The larger of the control group's count and the kernel log's.
    gpu_owner_host_oom_kills_total: Counter<Owner>, None, Computed, "0.1.0";
    /// CPU time of the owner on the host, since its first reading.
    ///
    /// Of its control group; of its GPU processes where it has no group of its own. Read every 10 s. With
    /// `gpu_owner_busy_seconds_total`: host time for each second of GPU work.
    gpu_owner_cpu_seconds_total: Counter<Owner, (CpuTimeMode,)>, Seconds, Computed, "0.1.0";
    /// Start of the owner's first GPU process, since 1970.
    ///
    /// Of the processes that the GPUs list without a pause. The duration of a job is `time()` minus this.
    gpu_owner_start_timestamp_seconds: Gauge<Owner>, Seconds, Computed, "0.1.0";
    /// Events counted on the CPUs for the owner's control group (`cpu.per_owner`).
    gpu_owner_cpu_events_total: Counter<Owner, (PerfEvent,)>, None, Computed, "0.1.0", at most 1e24;
    /// Time from a process's start to its first context on a GPU, and to its first work there.
    ///
    /// The context is seen once a second, the work by utilization samples of 200 ms every 2 to 5 s.
    gpu_owner_start_seconds: Histogram<Node, (StartPhase,)>, Seconds, Computed, "0.1.0", group OwnerDetail;
    /// Devices that the kubelet can allocate, by resource.
    gpu_kubelet_allocatable_devices: Gauge<Node, (Resource,)>, None, Computed, "0.1.0";
    /// Devices that the kubelet has allocated, by resource.
    ///
    /// A time-shared device counts once per share, as in `gpu_kubelet_allocatable_devices`.
    gpu_kubelet_allocated_devices: Gauge<Node, (Resource,)>, None, Computed, "0.1.0";
    /// 1 for each pod's container and each Slurm job that was given the GPU or MIG instance, used or not.
    ///
    /// Pods as the kubelet lists them, for 10 min after its last answer too. Slurm jobs as far as the environments of their processes name GPUs
    /// (`owners.slurm_environment`); `gpu_slurm_jobs` counts those that do not. At most `owners.max_series` series.
    gpu_allocation_info: Info<AllocatedGpu, AllocationInfo>, None, Computed, "0.1.0";
    /// 1 for each job that a file of `dcgm.hpc_job_dir` gives the GPU or MIG instance, of at most 32 each.
    gpu_hpc_job_info: Info<AllocatedGpu, HpcJobInfo>, None, Computed, "0.1.0", json only true;
    /// 1 for each pod's container that was given the GPU or MIG instance by a claim of dynamic resource allocation.
    ///
    /// Each series has a `gpu_allocation_info` beside it.
    gpu_claim_info: Info<AllocatedGpu, ClaimInfo>, None, Computed, "0.1.0", json only true;
    /// Slurm jobs with processes in control groups of their own, by what is known of their GPUs; absent without such.
    gpu_slurm_jobs: Gauge<Node, (SlurmGpus,)>, None, Computed, "0.1.0", group OwnerDetail;

    // --- planned work ---------------------------------------------------------------------------
    /// 1 while a window of this kind is open.
    ///
    /// It mutes alerts: `unless on (cluster, job, instance) gpu_window_active{kind="maintenance"} == 1`.
    gpu_window_active: Gauge<Node, (WindowKind,)>, None, Computed, "0.1.0", at most 1.0;
    /// A window of planned work: open, to come, or ended within the last hour.
    gpu_window_info: Info<Window, WindowInfo>, None, Computed, "0.1.0";
    /// Start of the window.
    gpu_window_start_timestamp_seconds: Gauge<Window>, Seconds, Computed, "0.1.0";
    /// End of the window.
    gpu_window_end_timestamp_seconds: Gauge<Window>, Seconds, Computed, "0.1.0";

    // --- the exporter itself --------------------------------------------------------------------
    /// Build of the running exporter.
    gpu_exporter_build_info: Info<Node, BuildInfo>, None, Computed, "0.1.0";
    /// 1 if the collector's newest visits succeeded within their deadlines.
    gpu_exporter_collector_up: Gauge<Node, (CollectorName,)>, None, Computed, "0.1.0";
    /// Time at which the collector last delivered values.
    gpu_exporter_collector_last_success_timestamp_seconds: Gauge<Node, (CollectorName,)>, Seconds, Computed, "0.1.0";
    /// Time at which the values of this tier of this GPU were read.
    gpu_exporter_sample_timestamp_seconds: Gauge<Gpu, (Tier,)>, Seconds, Computed, "0.1.0", group ExporterDetail except ["normal", "slow", "rare"];
    /// Age of the driver call on this GPU that has lasted for longer than `sampler.call_timeout`.
    ///
    /// Absent without one.
    gpu_exporter_driver_call_stuck_seconds: Gauge<Gpu, (Call,)>, Seconds, Computed, "0.1.0";
    /// Age of the driver call for no single GPU that has lasted for longer than `sampler.call_timeout`.
    ///
    /// `nvmlInitWithFlags` is the initialization. Absent without one.
    gpu_exporter_node_call_stuck_seconds: Gauge<Node, (Call,)>, Seconds, Computed, "0.1.0";
    /// Driver calls, by tier.
    gpu_exporter_driver_calls_total: Counter<Node, (Call, Tier)>, None, Computed, "0.1.0", group DriverCalls;
    /// Time inside driver calls, by tier.
    gpu_exporter_driver_call_seconds_total: Counter<Node, (Call, Tier)>, Seconds, Computed, "0.1.0", group DriverCalls;
    /// Duration of single driver calls.
    gpu_exporter_driver_call_duration_seconds: Histogram<Node>, Seconds, Computed, "0.1.0", group DriverCalls;
    /// Failed driver calls for this GPU, without unsupported ones.
    ///
    /// `gpu_exporter_driver_error_kinds_total` has the kinds of failure.
    gpu_exporter_driver_errors_total: Counter<Gpu>, None, Computed, "0.1.0", group DriverCalls;
    /// Failed driver calls, by kind of failure.
    ///
    /// Those for a GPU, and those for none, as loading the library and listing GPUs.
    gpu_exporter_driver_error_kinds_total: Counter<Node, (DriverError,)>, None, Computed, "0.1.0", group InactiveStates;
    /// Readings of the driver that were blank or out of range.
    gpu_exporter_readings_dropped_total: Counter<Gpu, (DropReason,)>, None, Computed, "0.1.0", group InactiveStates;
    /// GPUs without this metric, because hardware or driver does not support it.
    ///
    /// Such a metric has no series there; neither zero nor a failure. `/api/v1/snapshot` names the GPUs.
    gpu_exporter_metric_unsupported: Gauge<Node, (MetricName,)>, None, Computed, "0.1.0";
    /// Readings of driver counters that went backwards without a reason; the older value stays.
    gpu_exporter_reading_regressions_total: Counter<Gpu>, None, Computed, "0.1.0", group InactiveStates;
    /// Sampler processes alive, those stuck in the driver included.
    ///
    /// Never more than two.
    gpu_exporter_samplers: Gauge<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// Sampler processes started.
    gpu_exporter_sampler_starts_total: Counter<Node>, None, Computed, "0.1.0";
    /// Sampler processes ended or abandoned, by reason.
    gpu_exporter_sampler_ends_total: Counter<Node, (SamplerEnd,)>, None, Computed, "0.1.0";
    /// Batches discarded as outdated.
    ///
    /// They belonged to an older epoch of their GPU or to an abandoned sampler, or came behind a newer batch.
    gpu_exporter_batches_discarded_total: Counter<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// Events of the exporter's collectors lost to a full queue.
    gpu_exporter_events_lost_total: Counter<Node>, None, Computed, "0.1.0";
    /// 1 if all state is kept over restarts: faults, baselines and positions.
    ///
    /// `state.dir` can be written, all was read at the start, no file there is set aside (`*.corrupt`, `*.unread`), and nothing
    /// waits to be saved. Looked at every minute.
    gpu_exporter_state_writable: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// 1 if the last load of the configuration was successful.
    ///
    /// At the start, on SIGHUP and when a file changes. After a failure the configuration before stays in use as a whole; the log names the errors. A load with new values of keys that need a restart is successful: the log names the keys.
    gpu_exporter_config_last_reload_successful: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// Time of the last successful load of the configuration.
    gpu_exporter_config_last_reload_success_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// Owner lookups, by result.
    ///
    /// `gone`: the process ended before. `late`: past `owners.read_timeout`.
    gpu_exporter_owner_lookups_total: Counter<Node, (OwnerLookup,)>, None, Computed, "0.1.0";
    /// Owners without series of their own, because of `owners.max_series` or the quota of their namespace or user.
    ///
    /// They share the owner `other`.
    gpu_exporter_owners_dropped: Gauge<Node>, None, Computed, "0.1.0";
    /// Failed requests to the kubelet.
    gpu_exporter_kubelet_errors_total: Counter<Node, (KubeletError,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Devices of dynamic claims that identify no GPU or MIG instance here; absent while no pod has such a claim.
    ///
    /// Their pods have no `gpu_allocation_info`.
    gpu_exporter_claims_unresolved: Gauge<Node, (ClaimUnresolved,)>, None, Computed, "0.1.0";
    /// Samples taken from the driver's buffers, without utilization samples during canary runs.
    gpu_exporter_samples_total: Counter<Gpu, (SampleBuffer,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Gaps between samples of the driver's buffers: overwritten before they were read, or never taken.
    gpu_exporter_sample_gaps_total: Counter<Gpu, (SampleBuffer,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Time in gaps between samples of the driver's buffers.
    gpu_exporter_sample_gap_seconds_total: Counter<Gpu, (SampleBuffer,)>, Seconds, Computed, "0.1.0", group InactiveStates;
    /// Faults and driver events lost to a full queue.
    gpu_exporter_facts_lost_total: Counter<Node, (FaultSource,)>, None, Computed, "0.1.0";
    /// Recordings of faults, by outcome.
    ///
    /// `gpu-node-exporter snapshot --recording FILE` reads one; `suppressed` counts faults, the others count files.
    gpu_exporter_recordings_total: Counter<Node, (RecordingOutcome,)>, None, Computed, "0.1.0";
    /// Records read from the kernel log, by outcome.
    ///
    /// `old` records are from before the exporter started watching: in the list of events, in no counter.
    gpu_exporter_kmsg_records_total: Counter<Node, (KmsgOutcome,)>, None, Computed, "0.1.0", group Events;
    /// Overruns of the kernel log's reader: records in between are lost.
    gpu_exporter_kmsg_overruns_total: Counter<Node>, None, Computed, "0.1.0";
    /// Snapshots published.
    gpu_exporter_publications_total: Counter<Node>, None, Computed, "0.1.0";
    /// Duration of making the newest snapshot.
    gpu_exporter_publish_duration_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// Series on `/metrics`.
    gpu_exporter_series: Gauge<Node>, None, Computed, "0.1.0";
    /// Series dropped because of `metrics.max_series`, once per snapshot.
    gpu_exporter_series_dropped_total: Counter<Node>, None, Computed, "0.1.0";
    /// HTTP responses by status.
    gpu_exporter_http_requests_total: Counter<Node, (HttpStatus,)>, None, Computed, "0.1.0", group InactiveStates except ["200"];
    /// Open HTTP connections.
    gpu_exporter_http_connections: Gauge<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// HTTP connections refused because `http.max_connections` others worked.
    gpu_exporter_http_connections_refused_total: Counter<Node>, None, Computed, "0.1.0";
    /// Waiting HTTP connections closed to make room for others, because of `http.max_connections`.
    gpu_exporter_http_connections_evicted_total: Counter<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// TLS handshakes that failed.
    ///
    /// Only with TLS.
    gpu_exporter_http_handshakes_failed_total: Counter<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// 1 if the web configuration and its certificates on the disk are in use, 0 if they are bad and earlier ones are in use.
    ///
    /// Only with `http.web_config_file`. The log says what is wrong.
    gpu_exporter_web_config_last_reload_successful: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// End of the validity of the server's certificate, in seconds since 1970.
    ///
    /// Only with TLS.
    gpu_exporter_certificate_expiry_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// CPU time of the exporter's processes, ended ones included.
    gpu_exporter_cpu_seconds_total: Counter<Node, (Role,)>, Seconds, Computed, "0.1.0";
    /// Resident memory of the exporter's processes; shared pages count in each.
    gpu_exporter_resident_memory_bytes: Gauge<Node, (Role,)>, Bytes, Computed, "0.1.0";
    /// CPU time of the serving process.
    process_cpu_seconds_total: Counter<Node>, Seconds, Computed, "0.1.0", group ExporterDetail;
    /// Resident memory of the serving process.
    process_resident_memory_bytes: Gauge<Node>, Bytes, Computed, "0.1.0", group ExporterDetail;
    /// Virtual memory of the serving process.
    process_virtual_memory_bytes: Gauge<Node>, Bytes, Computed, "0.1.0", group ExporterDetail;
    /// Open file descriptors of the serving process.
    process_open_fds: Gauge<Node>, None, Computed, "0.1.0";
    /// Largest number of open file descriptors of the serving process.
    process_max_fds: Gauge<Node>, None, Computed, "0.1.0";
    /// Threads of the serving process.
    process_threads: Gauge<Node>, None, Computed, "0.1.0";
    /// Start time of the serving process.
    process_start_time_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
}

/// The definition behind an id, if this build has it.
pub fn def(id: MetricId) -> Option<&'static MetricDef> {
    METRICS.get(usize::from(id.0))
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
            let help = m.help();
            assert!(help.ends_with('.') && help.len() <= 120, "{}: {help}", m.name);
            assert!(!help.contains(['\\', '\n']), "{}: one line: {help}", m.name);
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
            // Of a counter a kind that was not counted yet.
            let of_states = m.kind == Kind::Counter || m.kind == Kind::Gauge && m.unit == Unit::None;
            assert!(of_states || m.group != Some(MetricGroup::InactiveStates), "{}: no states", m.name);
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

//! Declaration of every entity, label and metric.
//!
//! The catalogue is the source of `# HELP`, `# TYPE`, `# UNIT`, `docs/METRICS.md`, `gpu-node-exporter metrics` and the
//! checks of names and labels elsewhere. Entities, labels and groups are in `catalog/`. A new metric needs one entry in
//! this file and one line at the place that reads it (see `CONTRIBUTING.md`). The first line of an entry's doc comment
//! is its `# HELP` line; a second paragraph appears only in `docs/METRICS.md`.

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
    /// 1 if the driver responds, 0 if it is absent, unloaded or unresponsive.
    ///
    /// Absent until the first attempt has finished, and while the driver is released on request (`gpu_driver_paused`).
    gpu_driver_up: Gauge<Node>, None, Computed, "0.1.0";
    /// 1 if the whole driver is stuck: its initialization does not return, or two sampler processes in a row hang.
    ///
    /// The exporter then publishes no NVML values. It starts no further sampler until one of the two hung processes has
    /// ended.
    gpu_driver_stuck: Gauge<Node>, None, Computed, "0.1.0";
    /// Versions of the NVIDIA driver and its libraries.
    gpu_driver_info: Info<Node, DriverInfo>, None, Identity, "0.1.0";
    /// 1 if the driver is released on request, so that it can be unloaded.
    ///
    /// `gpu-node-exporter driver release` releases it. The exporter then measures nothing, and `gpu_driver_up` and
    /// `gpu_up` are absent.
    gpu_driver_paused: Gauge<Node>, None, Computed, "0.1.0";
    /// Number of times that the NVIDIA kernel module was loaded since the exporter started.
    gpu_driver_loads_total: Counter<Node>, None, Computed, "0.1.0";
    /// Unix time at which the NVIDIA kernel module was loaded.
    ///
    /// The source is the kernel log, the driver's kernel threads, or the load itself. Absent if the time is unknown.
    gpu_driver_load_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// 1 if the loaded kernel module has the expected version.
    ///
    /// `against` names the reference: the declared version (`driver.expected_version`), or the version of libnvidia-ml
    /// on disk.
    gpu_driver_version_matches: Gauge<Node, (VersionAgainst,)>, None, Computed, "0.1.0", at most 1.0;
    /// 1 if NVML refuses to work because the versions of the library and the kernel module differ.
    ///
    /// Absent while the driver is released or stuck.
    gpu_driver_library_mismatch: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// Number of detected GPU resets.
    ///
    /// A reset is detected when a lost GPU responds again, or when the driver no longer requests a reset.
    gpu_resets_total: Counter<Gpu>, None, Computed, "0.1.0";
    /// Unix time at which the node booted.
    gpu_host_boot_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// Number of GPUs that the driver lists.
    gpu_devices: Gauge<Node>, None, Slow, "0.1.0";
    /// Maximum number of GPUs listed at the same time since the node booted.
    ///
    /// Kept across restarts of the exporter. `health.expected_gpus` does not change the value; `gpu_devices_missing`
    /// uses both.
    gpu_devices_expected: Gauge<Node>, None, Computed, "0.1.0";
    /// Maximum number of GPUs ever listed on this node at the same time.
    ///
    /// Kept on disk across restarts and reboots. The value decreases only to a declared number: `health.expected_gpus`,
    /// or `expected_gpus` of an open maintenance window. Absent until the driver has listed a GPU, and if the number on
    /// disk cannot be read.
    gpu_devices_highest: Gauge<Node>, None, Computed, "0.1.0";
    /// Identity of the GPU.
    ///
    /// The series remains while the GPU or the driver is stuck.
    gpu_info: Info<Gpu, GpuInfo>, None, Identity, "0.1.0";
    /// 1 if the GPU responds in time, 0 if a driver call on it is stuck, the GPU is lost, or the driver is unavailable.
    ///
    /// A GPU whose handle was never available has an empty `uuid`.
    gpu_up: Gauge<Gpu>, None, Computed, "0.1.0";
    /// Position of the GPU in its platform: chassis, slot, tray and node.
    ///
    /// An H200 reports the host and the module. Only rack systems (GB200 and later) report the chassis, the slot and
    /// the tray; these were never seen on hardware.
    gpu_platform_info: Info<Gpu, PlatformInfo>, None, Once, "0.1.0", group Limits;
    /// Brand of the GPU and versions of the InfoROM objects; JSON only.
    gpu_board_info: Info<Gpu, BoardInfo>, None, Once, "0.1.0", json only true;
    /// 1 if the GPU has a license for NVIDIA vGPU software; JSON only.
    gpu_vgpu_software_licensed: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0, json only true;
    /// Number of CUDA cores (FP32 lanes) of the GPU.
    gpu_cuda_cores: Gauge<Gpu>, None, Once, "0.1.0", group Limits;
    /// Width of the memory bus, in bytes per transfer.
    ///
    /// The memory transfers data twice per cycle of the memory clock.
    gpu_memory_bus_width_bytes: Gauge<Gpu>, Bytes, Once, "0.1.0", group Limits;

    // --- utilization ----------------------------------------------------------------------------
    /// Fraction of the driver's last sample period in which at least one kernel ran.
    ///
    /// The canary's kernels are included. The ratio does not show how much of the GPU was in use. Absent in MIG mode.
    gpu_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0";
    /// Fraction of the driver's last sample period in which device memory was read or written.
    ///
    /// Absent in MIG mode.
    gpu_memory_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0";
    /// Utilization of the video encoder (NVENC), from 0 to 1.
    gpu_encoder_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0", group Video;
    /// Utilization of the video decoder (NVDEC), from 0 to 1.
    gpu_decoder_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0", group Video;
    /// Utilization of the JPEG engine, from 0 to 1.
    gpu_jpeg_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0", group Video;
    /// Utilization of the optical flow accelerator (OFA), from 0 to 1.
    gpu_ofa_utilization_ratio: Gauge<Gpu>, Ratio, Normal, "0.1.0", group Video;

    // --- memory ---------------------------------------------------------------------------------
    /// Total device memory of the GPU in bytes.
    gpu_memory_total_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0";
    /// Device memory allocated by processes in bytes, without memory reserved by the driver.
    gpu_memory_used_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0";
    /// Free device memory in bytes.
    gpu_memory_free_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0";
    /// Device memory reserved by the driver and the firmware in bytes.
    gpu_memory_reserved_bytes: Gauge<Gpu>, Bytes, Normal, "0.1.0", group MemoryDetail;
    /// Size of the BAR1 aperture in bytes: device memory that the CPU or PCIe devices can map.
    gpu_bar1_memory_total_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;
    /// Used part of the BAR1 aperture in bytes.
    gpu_bar1_memory_used_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;
    /// Free part of the BAR1 aperture in bytes.
    gpu_bar1_memory_free_bytes: Gauge<Gpu>, Bytes, Rare, "0.1.0", group MemoryDetail;

    // --- the driver's own samples ---------------------------------------------------------------
    /// Distribution of the driver's power samples in watts (50 samples per second).
    ///
    /// Shows bursts that are too short for polling.
    gpu_power_sample_watts: Histogram<Gpu>, Watts, Samples, "0.1.0", group Samples;
    /// Distribution of the driver's utilization samples (5 per second), without samples taken during canary runs.
    gpu_utilization_sample_ratio: Histogram<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Highest power sample of the last 60 s in watts.
    gpu_power_peak_watts: Gauge<Gpu>, Watts, Samples, "0.1.0";
    /// Lowest power sample of the last 60 s in watts.
    gpu_power_minimum_watts: Gauge<Gpu>, Watts, Samples, "0.1.0", group Samples;
    /// Highest utilization sample of the last 60 s, without samples taken during canary runs.
    gpu_utilization_peak_ratio: Gauge<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Lowest utilization sample of the last 60 s, without samples taken during canary runs.
    gpu_utilization_minimum_ratio: Gauge<Gpu>, Ratio, Slow, "0.1.0", group Samples;
    /// Time in which at least one kernel ran, in seconds, integrated from the driver's utilization samples.
    ///
    /// The rate of this counter is the average utilization over any range, for any number of scrapers. The time of
    /// canary runs counts as neither busy nor idle; `gpu_canary_gpu_seconds_total` has that time.
    gpu_busy_seconds_total: Counter<Gpu>, Seconds, Slow, "0.1.0";
    /// Energy consumption of the board in joules, integrated from the driver's power samples.
    ///
    /// More current than `gpu_energy_joules_total`. Gaps between samples are not filled.
    gpu_energy_sampled_joules_total: Counter<Gpu>, Joules, Samples, "0.1.0";

    // --- GPM: what the units of the GPU did (Hopper and later) ----------------------------------
    /// 1 if the exporter reads GPM counters, 0 if they are disabled or released to a profiler.
    gpu_gpm_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Modes;
    /// Fraction of the last GPM window in which the unit was active, averaged over all units of its kind.
    ///
    /// A window is one slow interval. For `graphics`, which is expensive to read, a window is one rare interval.
    gpu_gpm_active_ratio: Gauge<Gpu, (GpmUnit,)>, Ratio, Slow, "0.1.0", group GpmDetail except ["sm", "sm_occupancy", "tensor", "dram", "fp64", "fp32", "fp16"];
    /// Time in which the unit was active, in seconds, integrated over GPM windows.
    gpu_gpm_active_seconds_total: Counter<Gpu, (GpmUnit,)>, Seconds, Slow, "0.1.0", group GpmDetail;
    /// Number of bytes transferred over PCIe, integrated from the GPM rate.
    ///
    /// The byte counters of NVML have 32 bits and wrap within 78 ms at the full rate.
    gpu_gpm_pcie_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0";
    /// Number of bytes transferred over all NVLinks, integrated from the GPM rate.
    gpu_gpm_nvlink_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;
    /// PCIe throughput in the last GPM window, in bytes per second; JSON only.
    gpu_gpm_pcie_bytes_per_second: Gauge<Gpu, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;
    /// Throughput of all NVLinks in the last GPM window, in bytes per second; JSON only.
    gpu_gpm_nvlink_bytes_per_second: Gauge<Gpu, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;
    /// Estimated number of floating-point operations per second.
    ///
    /// The estimate is the activity of the pipe, multiplied by the number of multiprocessors, the operations per cycle
    /// and the SM clock. An active pipe does not necessarily do useful work.
    gpu_flops_estimate: Gauge<Gpu, (FlopPipe,)>, None, Computed, "0.1.0", group GpmDetail;
    /// Fraction of the last GPM window in which the unit of the GPU instance was active.
    gpu_mig_gpm_active_ratio: Gauge<GpuInstance, (GpmUnit,)>, Ratio, Slow, "0.1.0", group GpmDetail except ["graphics", "sm"];
    /// Time in which the unit of the GPU instance was active, in seconds, integrated over GPM windows.
    gpu_mig_gpm_active_seconds_total: Counter<GpuInstance, (GpmUnit,)>, Seconds, Slow, "0.1.0", group GpmDetail except ["graphics"];
    /// Number of bytes that the GPU instance transferred over PCIe, integrated from the GPM rate.
    gpu_mig_gpm_pcie_bytes_total: Counter<GpuInstance, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;
    /// Number of bytes that the GPU instance transferred over all NVLinks, integrated from the GPM rate.
    gpu_mig_gpm_nvlink_bytes_total: Counter<GpuInstance, (Direction,)>, Bytes, Slow, "0.1.0", group GpmDetail;
    /// PCIe throughput of the GPU instance in the last GPM window, in bytes per second; JSON only.
    gpu_mig_gpm_pcie_bytes_per_second: Gauge<GpuInstance, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;
    /// NVLink throughput of the GPU instance in the last GPM window, in bytes per second; JSON only.
    gpu_mig_gpm_nvlink_bytes_per_second: Gauge<GpuInstance, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;

    // --- power and energy -----------------------------------------------------------------------
    /// Power draw of the board in watts, averaged by the driver (over 1 s on Ampere and later).
    gpu_power_watts: Gauge<Gpu>, Watts, Normal, "0.1.0";
    /// Instantaneous power draw of the board in watts (NVML field 186).
    gpu_power_instant_watts: Gauge<Gpu>, Watts, Slow, "0.1.0", group Samples;
    /// Power limits of the board in watts.
    ///
    /// The exporter reads the enforced limit every 10 s and the others every minute.
    gpu_power_limit_watts: Gauge<Gpu, (PowerLimit,)>, Watts, Rare, "0.1.0", group Limits except ["enforced", "default"];
    /// Energy consumption of the board in joules since the driver was loaded.
    ///
    /// Read once a minute, because the call takes 5 ms. Calculate rates over five minutes or more.
    gpu_energy_joules_total: Counter<Gpu>, Joules, Rare, "0.1.0";

    // --- temperature ----------------------------------------------------------------------------
    /// Temperature of the GPU core or of its memory in degrees Celsius.
    ///
    /// The core is read every second, the memory every 10 s.
    gpu_temperature_celsius: Gauge<Gpu, (Sensor,)>, Celsius, Normal, "0.1.0";
    /// Temperature thresholds of the GPU in degrees Celsius.
    gpu_temperature_threshold_celsius: Gauge<Gpu, (TemperatureThreshold,)>, Celsius, Once, "0.1.0", group Limits except ["slowdown", "memory_max", "gpu_max"];
    /// Difference between the current temperature and the thermal slowdown threshold in degrees Celsius.
    ///
    /// The lower one of the thresholds `slowdown` and `gpu_max`, minus the temperature, every second. If the driver
    /// reports no threshold, this is the margin that the driver reports, once a minute.
    gpu_temperature_margin_celsius: Gauge<Gpu>, Celsius, Normal, "0.1.0";

    // --- clocks ---------------------------------------------------------------------------------
    /// Current clock frequency in hertz.
    gpu_clock_hertz: Gauge<Gpu, (ClockDomain,)>, Hertz, Normal, "0.1.0", group Clocks except ["sm", "memory"];
    /// Maximum clock frequency that the GPU supports, in hertz.
    gpu_clock_max_hertz: Gauge<Gpu, (ClockDomain,)>, Hertz, Once, "0.1.0", group Clocks except ["sm", "memory"];
    /// 1 if the driver currently reports this reason for a lower clock.
    ///
    /// The reason `gpu_idle` is not a fault.
    gpu_clock_event_active: Gauge<Gpu, (ClockEvent,)>, None, Fast, "0.1.0", group InactiveStates;
    /// Time in which the clocks were throttled for this reason, in seconds.
    ///
    /// Taken from the driver's nanosecond counter if there is one, otherwise integrated ten times a second. Thermal or
    /// power brake slowdowns shorter than a tenth of a second may appear a minute late.
    gpu_clock_event_seconds_total: Counter<Gpu, (ClockEvent,)>, Seconds, Slow, "0.1.0", group Clocks except ["sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"];
    /// Time in which this policy throttled the clocks, in seconds, as counted by the driver.
    gpu_violation_seconds_total: Counter<Gpu, (PerfPolicy,)>, Seconds, Rare, "0.1.0", group Clocks;
    /// Time in which heat throttled the clocks, in seconds, as counted by the driver; JSON only.
    ///
    /// Overlaps with the seconds of both thermal reasons in `gpu_clock_event_seconds_total`.
    gpu_thermal_violation_seconds_total: Counter<Gpu>, Seconds, Rare, "0.1.0", json only true;
    /// Number of times that the driver started to report this reason for a lower clock; JSON only.
    ///
    /// Checked ten times a second. A reason that is active at the first check is not counted.
    gpu_clock_event_starts_total: Counter<Gpu, (ClockEvent,)>, None, Computed, "0.1.0", json only true;
    /// Number of recent clock samples in which the driver reported this reason; JSON only.
    ///
    /// The exporter takes one sample every 30 s, in a window of `dcgm.clock_events_window`.
    gpu_clock_event_window_samples: Gauge<Gpu, (ClockEvent,)>, None, Computed, "0.1.0", json only true;
    /// Performance state of the GPU, from 0 (fastest) to 15.
    gpu_performance_state: Gauge<Gpu>, None, Normal, "0.1.0", at most 15.0, group Modes;

    // --- errors ---------------------------------------------------------------------------------
    /// 1 if ECC is enabled.
    gpu_ecc_mode_enabled: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0;
    /// 1 if ECC will be enabled after the next reboot or reset.
    gpu_ecc_mode_pending_enabled: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0, group Modes;
    /// Number of ECC errors in all memories, as counted by the driver.
    gpu_ecc_total_errors: Gauge<Gpu, (EccCounter, EccError)>, None, Normal, "0.1.0";
    /// Number of ECC errors by memory location.
    gpu_ecc_errors: Gauge<Gpu, (EccCounter, EccError, EccMemory)>, None, Slow, "0.1.0", group EccLocations;
    /// Number of rows of device memory that were remapped to spare rows.
    gpu_remapped_rows: Gauge<Gpu, (RemapCause,)>, None, Slow, "0.1.0";
    /// 1 if a row remap requires a GPU reset to take effect.
    gpu_row_remap_pending: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// 1 if a row remap has failed, which makes the board a candidate for return.
    gpu_row_remap_failure: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;

    /// Number of SRAM errors by kind (NVML SRAM ECC status).
    gpu_ecc_sram_errors: Gauge<Gpu, (EccCounter, SramError)>, None, Slow, "0.1.0", group EccLocations;
    /// Number of uncorrected SRAM errors over the lifetime of the GPU, by unit.
    gpu_ecc_sram_uncorrected_errors: Gauge<Gpu, (SramUnit,)>, None, Slow, "0.1.0", group EccLocations;
    /// 1 if uncorrected SRAM errors exceed NVIDIA's threshold, which makes the board a candidate for return.
    gpu_ecc_sram_threshold_exceeded: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// Number of device memory banks by remaining spare rows.
    gpu_row_remap_banks: Gauge<Gpu, (SpareRows,)>, None, Slow, "0.1.0", group EccLocations except ["low", "none"];
    /// Number of retired pages of device memory (before Ampere).
    gpu_retired_pages: Gauge<Gpu, (RetirementCause,)>, None, Rare, "0.1.0", group EccLocations;
    /// 1 if page retirement requires a reboot to take effect (before Ampere).
    gpu_retired_pages_pending: Gauge<Gpu>, None, Rare, "0.1.0", at most 1.0;
    /// 1 if a repair with spare memory channels or TPCs requires a GPU reset to take effect.
    gpu_repair_pending: Gauge<Gpu, (RepairPart,)>, None, Rare, "0.1.0", at most 1.0;
    /// 1 for the recovery action that the driver requests (NVML field 230).
    gpu_recovery_action: Gauge<Gpu, (RecoveryAction,)>, None, Slow, "0.1.0", group InactiveStates;
    /// 1 if the exporter receives NVML events of this GPU.
    gpu_driver_events_registered: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Events;
    /// Number of NVML events of this GPU.
    ///
    /// The exporter does not register for events of single-bit ECC errors and clock changes, because counters cover
    /// them.
    gpu_driver_events_total: Counter<Gpu, (DriverEvent,)>, None, Computed, "0.1.0", group Events;

    // --- faults and health ----------------------------------------------------------------------
    /// Number of Xid faults by recommended action.
    ///
    /// A fault that both NVML and the kernel log report is counted once.
    gpu_xid_faults_total: Counter<Gpu, (FaultAction,)>, None, Computed, "0.1.0", group Events;
    /// Number of Xid faults by code.
    ///
    /// The series of codes with severity `page` start at 0. The series of other codes appear with their first fault.
    gpu_xid_errors_total: Counter<Gpu, (XidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// Unix time of the most recent Xid fault of this GPU.
    gpu_xid_last_event_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Code of the most recent Xid fault of this GPU.
    ///
    /// Absent before the first fault. `/api/v1/events` lists all faults.
    gpu_xid_last_code: Gauge<Gpu>, None, Computed, "0.1.0";
    /// Number of recent Xid faults by code; JSON only.
    ///
    /// The window is `dcgm.xid_window`.
    gpu_xid_window_errors: Gauge<Gpu, (XidCode,)>, None, Computed, "0.1.0", json only true;
    /// Number of Xid faults in the kernel log of GPUs that the driver does not list.
    gpu_xid_unknown_gpu_total: Counter<Node, (XidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// Number of NVSwitch faults in the kernel log by code.
    gpu_nvswitch_sxid_errors_total: Counter<Node, (SwitchName, SxidCode, Severity, FaultAction)>, None, Computed, "0.1.0";
    /// 1 from an SXid of severity `page` until the driver is reloaded, the node reboots, or `nvswitch clear` runs.
    ///
    /// Kept across restarts of the exporter. The exporter cannot detect a reset of the switches: run `gpu-node-exporter
    /// nvswitch clear` after a reset. Without a fault there is no series.
    gpu_nvswitch_fault_active: Gauge<Node, (SwitchName, SxidCode, FaultAction)>, None, Computed, "0.1.0", at most 1.0;
    /// Unix time of the most recent event in `/api/v1/events`.
    gpu_last_event_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0", group Events;
    /// 1 if no fault of the GPU is known, 0 otherwise.
    ///
    /// Absent while the driver is unavailable, released or stuck as a whole, so that a driver upgrade does not look
    /// like a broken GPU. Also absent if no value of the GPU was read for too long without an error, because the
    /// exporter itself may have been delayed.
    gpu_healthy: Gauge<Gpu>, None, Computed, "0.1.0";
    /// 1 for each reason why the GPU is unhealthy.
    ///
    /// `lost`: the GPU returns only errors. `stuck`: a driver call on the GPU does not return. `recovery_action`: the
    /// driver requests one. `fatal_xid`: an Xid of severity `page` since the last reset or driver load, or the kernel
    /// log reports that the GPU has fallen off the bus. `uncontained_ecc`: Xid 95, or a memory error (48, 171, 172)
    /// without Xid 94 within 5 s. `row_remap_failure`: a row remap failed. `missing`: the driver no longer lists the
    /// GPU. `canary`: a run ended with `wrong_result`, until `gpu-node-exporter canary clear` or a board replacement;
    /// or the most recent run of a check ended with `driver_fault` or `hung`, until a reset or driver load; or the
    /// canary process hangs. Absent together with `gpu_healthy`.
    gpu_unhealthy_reason: Gauge<Gpu, (UnhealthyReason,)>, None, Computed, "0.1.0", group InactiveStates;
    /// Number of times that the GPU became unhealthy since the exporter first detected it.
    ///
    /// Counts transitions of `gpu_healthy` to 0 and is kept on disk by UUID across restarts and reboots. It is a gauge,
    /// because a restored number can be lower than the last one: compare two values, and do not use `rate` or
    /// `increase`. A GPU that fails again before it was healthy for a minute does not count again. A GPU that only does
    /// not respond, or is not listed, counts after 60 s, because a reset of a peer blocks NVML for 45 s. During a
    /// maintenance window, while the driver is released, and for 60 s afterwards, a GPU that is lost or does not
    /// respond does not count, because a planned reset has the same symptoms. Absent if the number on disk cannot be
    /// read.
    gpu_unhealthy_incidents: Gauge<Gpu>, None, Computed, "0.1.0";
    /// Number of expected GPUs that the driver does not list.
    ///
    /// The expected number is the configured one, or the maximum number listed since the node booted. Absent while the
    /// driver is unavailable.
    gpu_devices_missing: Gauge<Node>, None, Computed, "0.1.0";
    /// Number of GPUs that `health.expected_gpus` declares.
    ///
    /// Further GPUs on PCI belong to other software such as vfio-pci. Absent if no number is declared.
    gpu_devices_declared: Gauge<Node>, None, Computed, "0.1.0";

    // --- NVLink and fabric ----------------------------------------------------------------------
    /// 1 if the NVLink is up.
    gpu_nvlink_up: Gauge<Link>, None, Slow, "0.1.0", at most 1.0, group NvlinkLinks;
    /// Active NVLink and its remote end.
    gpu_nvlink_info: Info<Link, NvLinkInfo>, None, Rare, "0.1.0", json only true;
    /// Speed of the slowest active NVLink in bytes per second, per direction.
    gpu_nvlink_speed_bytes_per_second: Gauge<Gpu>, BytesPerSecond, Rare, "0.1.0", group LinkDetail;
    /// Number of data bytes transferred over the NVLink, without protocol overhead.
    gpu_nvlink_link_bytes_total: Counter<Link, (Direction,)>, Bytes, Nvlink, "0.1.0", group NvlinkLinks;
    /// Number of NVLink errors on all links of the GPU.
    ///
    /// The error kinds of NVLink 5 (Blackwell) were only simulated, never seen on hardware.
    gpu_nvlink_errors_total: Counter<Gpu, (NvLinkError,)>, None, Nvlink, "0.1.0";
    /// Number of NVLink errors of a single link; only links with errors have series.
    ///
    /// A link without a series has had no errors, provided that `gpu_nvlink_errors_total` has this kind.
    gpu_nvlink_link_errors_total: Counter<Link, (NvLinkError,)>, None, Nvlink, "0.1.0", group NvlinkLinks except ["dl_replay", "dl_recovery", "dl_crc_flit", "link_recovery", "link_recovery_failed"];
    /// Fraction of wrong bits on the link (NVLink 5).
    ///
    /// Only simulated, never seen on hardware.
    gpu_nvlink_link_bit_error_ratio: Gauge<Link, (NvLinkBitErrors,)>, Ratio, Nvlink, "0.1.0", group NvlinkLinks;
    /// Number of codewords that the link received, by number of corrected symbols (NVLink 5, FEC history).
    ///
    /// Only simulated, never seen on hardware.
    gpu_nvlink_link_fec_codewords_total: Counter<Link, (SymbolErrors,)>, None, Nvlink, "0.1.0", group NvlinkLinks;
    /// Number of errors on the lanes of all links of the GPU that the links corrected.
    ///
    /// Healthy links have some errors: watch the rate.
    gpu_nvlink_lane_errors_total: Counter<Gpu, (NvLinkLaneError,)>, None, Nvlink, "0.1.0", group LinkDetail;
    /// Number of data bytes transferred over all NVLinks of the GPU, without protocol overhead.
    gpu_nvlink_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0";
    /// Throughput of all NVLinks between the last two readings, without protocol overhead; JSON only.
    gpu_nvlink_bytes_per_second: Gauge<Gpu, (Direction,)>, BytesPerSecond, Slow, "0.1.0", json only true;
    /// Number of bytes transferred over all NVLinks of the GPU, including protocol overhead.
    gpu_nvlink_raw_bytes_total: Counter<Gpu, (Direction,)>, Bytes, Slow, "0.1.0", group LinkDetail;
    /// Number of NVLinks of the GPU.
    gpu_nvlink_links: Gauge<Gpu>, None, Once, "0.1.0", at most 64.0;
    /// Number of active NVLinks of the GPU.
    gpu_nvlink_links_up: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Path to every other GPU of the node (peer-to-peer matrix); JSON only.
    gpu_peer_info: Info<Gpu, PeerInfo>, None, Once, "0.1.0", json only true;
    /// 1 for the current registration state of the GPU in the NVLink fabric.
    gpu_fabric_state: Gauge<Gpu, (FabricState,)>, None, Slow, "0.1.0", group InactiveStates;
    /// 1 for each fault that the NVLink fabric reports for this GPU.
    gpu_fabric_fault: Gauge<Gpu, (FabricFault,)>, None, Slow, "0.1.0";
    /// NVML return code of the registration in the NVLink fabric; 0 means success.
    ///
    /// Valid once the state is `completed`.
    gpu_fabric_status: Gauge<Gpu>, None, Slow, "0.1.0";
    /// Health mask of the NVLink fabric as reported by NVML; JSON only.
    gpu_fabric_health_mask: Gauge<Gpu>, None, Slow, "0.1.0", json only true;
    /// Health summary of the NVLink fabric as reported by NVML; JSON only.
    ///
    /// 1 means healthy, 2 unhealthy, 3 limited capacity. Absent if the driver has no summary.
    gpu_fabric_health_summary: Gauge<Gpu>, None, Slow, "0.1.0", at most 3.0, json only true;
    /// NVLink cluster and clique of the GPU.
    gpu_fabric_info: Info<Gpu, FabricInfo>, None, Rare, "0.1.0", group LinkDetail;
    /// NVSwitch of the node, if the kernel of this node drives the switches.
    gpu_nvswitch_info: Info<Node, NvSwitchInfo>, None, Rare, "0.1.0";

    // --- PCIe -----------------------------------------------------------------------------------
    /// Current PCIe generation of the link.
    ///
    /// Idle GPUs may lower the generation to save power.
    gpu_pcie_link_generation: Gauge<Gpu>, None, Slow, "0.1.0", at most 16.0;
    /// Maximum PCIe generation that the GPU and the slot support.
    gpu_pcie_link_max_generation: Gauge<Gpu>, None, Once, "0.1.0", at most 16.0;
    /// Current number of PCIe lanes.
    gpu_pcie_link_width_lanes: Gauge<Gpu>, Lanes, Slow, "0.1.0";
    /// Maximum number of PCIe lanes that the GPU and the slot support.
    gpu_pcie_link_max_width_lanes: Gauge<Gpu>, Lanes, Once, "0.1.0";
    /// Number of PCIe replays, which resend packets after link errors.
    gpu_pcie_replays_total: Counter<Gpu>, None, Rare, "0.1.0";
    /// Number of PCIe errors counted by the GPU.
    gpu_pcie_errors_total: Counter<Gpu, (PcieError,)>, None, Rare, "0.1.0";
    /// Number of transitions of the PCIe link from L0 to recovery.
    gpu_pcie_recoveries_total: Counter<Gpu>, None, Rare, "0.1.0", group LinkDetail;
    /// Number of PCIe errors of the GPU counted by the kernel (AER).
    ///
    /// Absent in virtual machines.
    gpu_pcie_aer_errors_total: Counter<Gpu, (AerSeverity,)>, None, Rare, "0.1.0";

    /// PCIe throughput in bytes per second, including protocol overhead, over NVML's 20 ms measurement.
    ///
    /// Only with `sampler.pcie_throughput`, for GPUs without GPM. A sample of 20 ms per minute shows the order of
    /// magnitude of the traffic, not the number of bytes transferred: `gpu_gpm_pcie_bytes_total` counts all bytes. The
    /// exporter interprets the KB of NVML as 1024 bytes.
    gpu_pcie_throughput_bytes_per_second: Gauge<Gpu, (Direction,)>, BytesPerSecond, Rare, "0.1.0";

    // --- modes and processes --------------------------------------------------------------------
    /// 1 if persistence mode is enabled.
    gpu_persistence_mode_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0, group Modes;
    /// 1 for the current compute mode.
    gpu_compute_mode: Gauge<Gpu, (ComputeMode,)>, None, Slow, "0.1.0", group Modes;
    /// Number of processes on the GPU, without the canary.
    ///
    /// Compute processes are listed every second, the others every 10 s.
    gpu_processes: Gauge<Gpu, (ProcessType,)>, None, Normal, "0.1.0", group InactiveStates except ["compute"];
    /// 1 if MIG mode is enabled.
    gpu_mig_mode_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;
    /// 1 if MIG mode will be enabled after the next reset.
    gpu_mig_mode_pending_enabled: Gauge<Gpu>, None, Slow, "0.1.0", at most 1.0;

    // --- processes, one by one (opt-in) ---------------------------------------------------------
    /// Process on the GPU, other than the canary.
    gpu_process_info: Info<Process, ProcessInfo>, None, Slow, "0.1.0", group Process;
    /// Device memory of the process in bytes.
    gpu_process_memory_used_bytes: Gauge<Process>, Bytes, Slow, "0.1.0", group Process;
    /// Fraction of the last slow interval in which the process used the engine.
    gpu_process_utilization_ratio: Gauge<Process, (Engine,)>, Ratio, Slow, "0.1.0", group Process;
    /// Number of processes without series of their own, because of `processes.max_per_gpu`.
    gpu_processes_dropped: Gauge<Gpu>, None, Slow, "0.1.0", group Process;

    // --- video and virtual GPUs -----------------------------------------------------------------
    /// Number of encoder (NVENC) sessions.
    gpu_encoder_sessions: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Average number of frames per second over all encoder sessions.
    gpu_encoder_frames_per_second: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Average latency of encoding a frame over all encoder sessions, in seconds.
    gpu_encoder_latency_seconds: Gauge<Gpu>, Seconds, Slow, "0.1.0", group Video;
    /// Number of frame buffer capture (FBC) sessions.
    gpu_fbc_sessions: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Average number of frames per second over all capture sessions.
    gpu_fbc_frames_per_second: Gauge<Gpu>, None, Slow, "0.1.0", group Video;
    /// Average latency of capturing a frame over all capture sessions, in seconds.
    gpu_fbc_latency_seconds: Gauge<Gpu>, Seconds, Slow, "0.1.0", group Video;
    /// Identity of a virtual GPU.
    gpu_vgpu_info: Info<Vgpu, VgpuInfo>, None, Slow, "0.1.0";
    /// Device memory used by the virtual GPU in bytes.
    gpu_vgpu_memory_used_bytes: Gauge<Vgpu>, Bytes, Slow, "0.1.0", group Vgpu;
    /// Fraction of the engine's last sample period that the virtual GPU used.
    gpu_vgpu_utilization_ratio: Gauge<Vgpu, (Engine,)>, Ratio, Slow, "0.1.0", group Vgpu;
    /// 1 if the virtual GPU has a license.
    gpu_vgpu_licensed: Gauge<Vgpu>, None, Slow, "0.1.0", at most 1.0, group Vgpu;

    // --- MIG ------------------------------------------------------------------------------------
    /// Identity of a MIG device.
    gpu_mig_info: Info<ComputeInstance, MigInfo>, None, Normal, "0.1.0";
    /// Total device memory of the GPU instance in bytes.
    gpu_mig_memory_total_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";
    /// Used device memory of the GPU instance in bytes.
    gpu_mig_memory_used_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";
    /// Free device memory of the GPU instance in bytes.
    gpu_mig_memory_free_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0";
    /// Device memory of the GPU instance reserved by the driver and the firmware, in bytes.
    gpu_mig_memory_reserved_bytes: Gauge<GpuInstance>, Bytes, Normal, "0.1.0", group MemoryDetail;

    /// Index of the first memory slice of the GPU instance.
    gpu_mig_placement_start: Gauge<GpuInstance>, None, Normal, "0.1.0", at most 64.0;
    /// Number of memory slices of the GPU instance.
    gpu_mig_placement_slices: Gauge<GpuInstance>, None, Normal, "0.1.0", at most 64.0;
    /// NVML id of the profile of the GPU instance, as shown by `nvidia-smi mig -lgip`.
    gpu_mig_profile_id: Gauge<GpuInstance>, None, Normal, "0.1.0", json only true;
    /// Number of multiprocessors of the GPU instance.
    gpu_mig_multiprocessors: Gauge<GpuInstance>, None, Normal, "0.1.0";
    /// Fraction of the multiprocessors of the GPU instance that belong to the compute instance.
    gpu_mig_compute_sm_share_ratio: Gauge<ComputeInstance>, Ratio, Normal, "0.1.0", group MigDetail;
    /// Number of processes on the compute instance, without the canary.
    gpu_mig_compute_processes: Gauge<ComputeInstance>, None, Slow, "0.1.0";
    /// Number of GPU instances of this profile that can currently be created.
    gpu_mig_profile_free: Gauge<Gpu, (ProfileName,)>, None, Slow, "0.1.0", at most 64.0;
    /// Number of GPU instances of this profile that fit on an empty GPU.
    gpu_mig_profile_capacity: Gauge<Gpu, (ProfileName,)>, None, Slow, "0.1.0", at most 64.0;
    /// Number of compute slices of the GPU.
    gpu_mig_slices: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Number of compute slices that belong to GPU instances.
    gpu_mig_slices_used: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Number of free compute slices that no further GPU instance can use until the layout changes.
    gpu_mig_slices_unplaceable: Gauge<Gpu>, None, Slow, "0.1.0", at most 64.0;
    /// Number of MIG devices of this profile in the declared layout.
    gpu_mig_layout_declared: Gauge<Gpu, (ProfileName,)>, None, Computed, "0.1.0", at most 64.0;
    /// 1 if the MIG layout matches the declared one.
    ///
    /// Absent without a declared layout.
    gpu_mig_layout_matches: Gauge<Gpu>, None, Computed, "0.1.0", at most 1.0;

    // --- canary ---------------------------------------------------------------------------------
    /// 1 for the verdict of the most recent judged run of this check.
    ///
    /// The series of `ok` appears once the check was judged, the series of other verdicts with their first occurrence.
    /// Absent while the GPU does not respond or is in MIG mode (`gpu_mig_canary_verdict`).
    gpu_canary_verdict: Gauge<Gpu, (CanaryCheck, CanaryVerdict)>, None, Computed, "0.1.0", at most 1.0;
    /// Rate of the check in its most recent valid run, relative to the reference.
    gpu_canary_rate_ratio: Gauge<Gpu, (CanaryCheck, RateAgainst)>, Ratio, Computed, "0.1.0", at most 100.0;
    /// Clock of the multiprocessors during `sm_rate` in hertz: cycles counted by the GPU per unit of its own time.
    gpu_canary_sm_clock_hertz: Gauge<Gpu>, Hertz, Computed, "0.1.0";
    /// Number of multiply-adds (FMA) per multiprocessor and cycle in the most recent valid run.
    gpu_canary_work_per_cycle: Gauge<Gpu, (CanaryCheck,)>, None, Computed, "0.1.0", group CanaryDetail;
    /// Number of results that differ from the CPU's results, or of words that differ from the written words.
    gpu_canary_mismatches_total: Counter<Gpu, (MismatchKind,)>, None, Computed, "0.1.0";
    /// Slow or wrong multiprocessors of the most recent judged run; at most eight.
    gpu_canary_bad_sm_info: Info<Gpu, BadSmInfo>, None, Computed, "0.1.0";
    /// Number of CUDA driver errors in canary runs, without errors caused by the environment.
    gpu_canary_cuda_errors_total: Counter<Gpu, (CudaError,)>, None, Computed, "0.1.0";
    /// Number of canary samples discarded because another process used the GPU.
    gpu_canary_discarded_total: Counter<Gpu>, None, Computed, "0.1.0", group CanaryDetail;
    /// Unix time at which a canary run last ended; in MIG mode, on any instance.
    gpu_canary_last_run_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Unix time of the first canary result on this board that was wrong and is not cleared.
    ///
    /// Absent without such a result. The series outlasts later runs, resets and reboots; `gpu-node-exporter canary
    /// clear` removes it.
    gpu_canary_wrong_result_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Unix time at which a run last ended with every check `ok`; in MIG mode, on any instance.
    gpu_canary_last_success_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// Unix time at which the next canary run is due; in MIG mode, the first of all instances.
    ///
    /// Absent if no run is planned.
    gpu_canary_next_due_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";
    /// GPU time used by the kernels and copies of the canary, in seconds.
    gpu_canary_gpu_seconds_total: Counter<Gpu>, Seconds, Computed, "0.1.0";
    /// 1 if the canary process hangs in this step.
    ///
    /// A series appears when the canary first hangs in the step.
    gpu_canary_hung: Gauge<Gpu, (CanaryStep,)>, None, Computed, "0.1.0", at most 1.0;
    /// 1 for the configured mode of the canary.
    gpu_canary_mode: Gauge<Node, (CanaryMode,)>, None, Computed, "0.1.0", at most 1.0, group InactiveStates;
    /// Maximum fraction of a GPU's time that the canary may use (`canary.max_duty_ratio`).
    gpu_canary_duty_budget_ratio: Gauge<Node>, Ratio, Computed, "0.1.0";
    /// Number of canary runs by end.
    gpu_canary_runs_total: Counter<Node, (CanaryEnd,)>, None, Computed, "0.1.0";
    /// Number of due canary runs that were postponed or impossible, by reason.
    gpu_canary_skipped_total: Counter<Node, (CanarySkip,)>, None, Computed, "0.1.0";
    /// Number of running canary processes, including processes that are stuck in the driver.
    ///
    /// At most one per GPU.
    gpu_canary_processes: Gauge<Node>, None, Computed, "0.1.0";
    /// Number of canary processes that were killed.
    gpu_canary_kills_total: Counter<Node>, None, Computed, "0.1.0";
    /// Duration of canary steps on all GPUs, in seconds.
    gpu_canary_step_duration_seconds: Histogram<Node, (CanaryStep,)>, Seconds, Computed, "0.1.0", group CanaryDetail;
    /// Rates of valid canary runs on all GPUs, relative to the baseline of the GPU.
    gpu_canary_sample_rate_ratio: Histogram<Node, (CanaryCheck,)>, Ratio, Computed, "0.1.0", at most 100.0, group CanaryDetail;
    /// 1 for the verdict of the most recent judged run of this check on the GPU instance.
    ///
    /// The worst verdict, if the GPU instance has several compute instances.
    gpu_mig_canary_verdict: Gauge<GpuInstance, (CanaryCheck, CanaryVerdict)>, None, Computed, "0.1.0", at most 1.0;
    /// Rate of the check in its most recent valid run on the GPU instance, relative to the reference.
    ///
    /// The lowest rate, if the GPU instance has several compute instances.
    gpu_mig_canary_rate_ratio: Gauge<GpuInstance, (CanaryCheck, RateAgainst)>, Ratio, Computed, "0.1.0", at most 100.0, group MigDetail;
    /// Unix time at which a canary run on the GPU instance last ended.
    gpu_mig_canary_last_run_timestamp_seconds: Gauge<GpuInstance>, Seconds, Computed, "0.1.0";
    /// Unix time at which the GPU was last in use, by a process or by utilization above 0.
    ///
    /// Only by processes in MIG mode. The canary does not count. Absent before the first use.
    gpu_last_busy_timestamp_seconds: Gauge<Gpu>, Seconds, Computed, "0.1.0";

    // --- the host around the GPUs ---------------------------------------------------------------
    /// Number of parts of the machine by kind, counted by hwloc.
    gpu_host_objects: Gauge<Node, (HostObject,)>, None, Computed, "0.1.0";
    /// Location of the GPU: NUMA node, nearby CPUs, PCIe path, and its fair share of the CPUs.
    ///
    /// `gpu-node-exporter topology` draws the topology.
    gpu_host_topology_info: Info<Gpu, TopologyInfo>, None, Computed, "0.1.0";
    /// Location of the MIG compute instance: NUMA node, and its share of the CPUs of the GPU.
    gpu_mig_host_topology_info: Info<ComputeInstance, MigTopologyInfo>, None, Computed, "0.1.0";
    /// 1 if the machine matches its first observed topology or its declared topology.
    ///
    /// The comparison covers packages, NUMA nodes, memory (to 2 %), and the positions and links of GPUs and network
    /// devices. `/api/v1/topology` lists the differences.
    gpu_host_topology_matches: Gauge<Node, (TopologyAgainst,)>, None, Computed, "0.1.0", at most 1.0;
    /// Maximum PCIe generation of the port (slot or switch) above the GPU.
    ///
    /// `gpu_pcie_link_max_generation` has the generation that the GPU supports.
    gpu_host_pcie_port_max_generation: Gauge<Gpu>, None, Computed, "0.1.0", group Limits;
    /// Maximum number of PCIe lanes of the port above the GPU.
    gpu_host_pcie_port_max_width_lanes: Gauge<Gpu>, Lanes, Computed, "0.1.0";
    /// 1 if the PCIe link runs at the maximum that the GPU and the port support.
    ///
    /// The width must always match. Some models lower the generation when idle: the value is 1 once the maximum was
    /// reached, 0 if it is not reached after 30 s of work, and absent before.
    gpu_host_pcie_link_matches: Gauge<Gpu, (LinkAspect,)>, None, Computed, "0.1.0", at most 1.0;
    /// Network device nearest to the GPU.
    ///
    /// With node_exporter: `gpu_host_nic_info * on (instance, device) group_left () node_network_transmit_bytes_total`.
    gpu_host_nic_info: Info<Gpu, NicInfo>, None, Computed, "0.1.0";
    /// 1 if the network device nearest to a GPU can carry traffic.
    gpu_host_nic_up: Gauge<Node, (Nic,)>, None, Computed, "0.1.0", at most 1.0;
    /// Link rate of the network device nearest to a GPU, in bytes per second and direction.
    gpu_host_nic_speed_bytes_per_second: Gauge<Node, (Nic,)>, BytesPerSecond, Computed, "0.1.0";
    /// Number of bytes transferred by the network device nearest to a GPU.
    ///
    /// A port number such as `1` covers RDMA, and all traffic of InfiniBand. A port with the name of the interface
    /// covers kernel traffic over Ethernet. Absent if the kernel has no counter.
    gpu_host_network_bytes_total: Counter<Node, (Nic, NetworkPort, Direction)>, Bytes, Computed, "0.1.0";
    /// Number of errors of the network device nearest to a GPU.
    ///
    /// InfiniBand adapters without extended counters stop at 65,535 until they are reset.
    gpu_host_network_errors_total: Counter<Node, (Nic, NetworkPort, NetworkError)>, None, Computed, "0.1.0";
    /// Number of link losses (flaps) of the network device nearest to a GPU.
    ///
    /// InfiniBand adapters without extended counters stop at 255 until they are reset.
    gpu_host_network_flaps_total: Counter<Node, (Nic, NetworkPort)>, None, Computed, "0.1.0";
    /// 1 if this NVIDIA service runs on the host.
    ///
    /// Detected by its process. Only services that are expected, or that were seen since the exporter started, have
    /// series. The fabric manager is expected if the kernel drives NVSwitches, or if a GPU has an NVLink fabric and the
    /// unit of the service is enabled. Elsewhere it counts as seen after 20 s, because it starts and exits on a node
    /// without switches. Absent if the exporter cannot see the processes of the host.
    gpu_host_service_up: Gauge<Node, (HostService,)>, None, Computed, "0.1.0", at most 1.0;
    /// Number of events counted on the CPUs for all processes and the kernel.
    ///
    /// Scaled if the counters were shared. Only events that can be counted on this node have series
    /// (`gpu_host_cpu_event_state`).
    gpu_host_cpu_events_total: Counter<CpuGroup, (PerfEvent,)>, None, Computed, "0.1.0", at most 1e24, group CpuEvents;
    /// CPU time of all processes by mode, in seconds, since the exporter started.
    ///
    /// The sum over the modes grows by one second per second and CPU.
    gpu_host_cpu_seconds_total: Counter<CpuGroup, (CpuMode,)>, Seconds, Computed, "0.1.0", at most 1e15;
    /// 1 for the state of each configured CPU event: countable on this node, or the reason why not.
    gpu_host_cpu_event_state: Gauge<Node, (PerfEvent, PerfState)>, None, Computed, "0.1.0", at most 1.0, group CpuEvents;
    /// Fraction of the last interval in which the CPU event was counted.
    ///
    /// Published counts are scaled by this ratio. 1 means that the counters were not shared.
    gpu_host_cpu_event_running_ratio: Gauge<Node, (PerfEvent,)>, Ratio, Computed, "0.1.0", group CpuEvents;

    // --- owners ---------------------------------------------------------------------------------
    /// Identity of an owner of work on the GPU.
    ///
    /// The owner `other` combines all owners of the GPU that have no series of their own. Join on `gpu`, `uuid`,
    /// `gpu_instance` and `owner`. The series remains with the owner's counters for `owners.retention` after the owner
    /// has ended.
    gpu_owner_info: Info<OwnedGpu, OwnerInfo>, None, Computed, "0.1.0";
    /// Number of processes of the owner on the GPU; 0 after the owner has ended.
    gpu_owner_processes: Gauge<OwnedGpu>, None, Computed, "0.1.0";
    /// Device memory of the owner's processes in bytes.
    gpu_owner_memory_used_bytes: Gauge<OwnedGpu>, Bytes, Computed, "0.1.0";
    /// GPU time allocated to the owner: seconds with a process on the GPU, divided by its number of owners.
    ///
    /// On a MIG instance, the time is multiplied by the instance's share of the compute slices of the GPU.
    gpu_owner_allocated_seconds_total: Counter<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Time in which the GPU worked for the owner, in seconds.
    ///
    /// Taken from the driver's utilization samples (on a MIG instance from GPM, multiplied by its share of the compute
    /// slices of the GPU) and divided equally among the owners present. At most the allocated seconds. The work of the
    /// canary is not included.
    gpu_owner_busy_seconds_total: Counter<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Energy consumption of the GPU attributed to the owner, in joules.
    ///
    /// Taken from the driver's power samples and divided like the busy time, or like the allocated time while the GPU
    /// is idle. For a MIG instance, its share of the compute slices of the GPU.
    gpu_owner_energy_joules_total: Counter<OwnedGpu>, Joules, Computed, "0.1.0";
    /// Fraction of the CPUs of the owner's processes that are not on the NUMA node near the GPU.
    ///
    /// Based on the CPUs used in the last minute, or else on the allowed CPUs. Absent if the machine does not report
    /// which NUMA node is near.
    gpu_owner_cpu_remote_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// Fraction of the owner's CPUs outside the last-level caches of the CPU shares of its GPUs or MIG instances.
    ///
    /// Based on the CPUs used in the last minute, or else on the allowed CPUs. Only for an owner whose CPUs are within
    /// the near NUMA node and leave out at least one of its last-level caches.
    gpu_owner_cpu_remote_cache_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// Fraction of the owner's host memory that is not on the NUMA node near the GPU.
    gpu_owner_memory_remote_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// 1 for the bottleneck of the owner's work on the GPU.
    ///
    /// `docs/BOTTLENECKS.md` has the formula and the series of each cause. `unknown` means that the measurements are
    /// insufficient to prove a cause.
    gpu_bottleneck: Gauge<OwnedGpu, (Cause,)>, None, Computed, "0.1.0", at most 1.0, group InactiveStates except ["none"];
    /// GPU time allocated to the owner by class, in seconds.
    ///
    /// The sum of all classes is `gpu_owner_allocated_seconds_total`. `docs/HEARTBEAT.md` has the formula of each
    /// class.
    gpu_owner_gpu_seconds_total: Counter<OwnedGpu, (GpuTimeClass,)>, Seconds, Computed, "0.1.0", group InactiveStates except ["computing"];
    /// Duration of a step of the owner's work on the GPU in seconds, measured as the period of its power draw.
    ///
    /// Absent if no period is found, as with inference and irregular work, and for an owner that shares the GPU.
    gpu_owner_step_seconds: Gauge<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Confidence of `gpu_owner_step_seconds`: the fraction of the variance of the power that the period explains.
    gpu_owner_step_confidence_ratio: Gauge<OwnedGpu, (StepPeriod,)>, Ratio, Computed, "0.1.0", at most 1.0;
    /// Standard deviation of the step duration, as a fraction of the step.
    gpu_owner_step_jitter_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// Number of steps of the owner's work on the GPU.
    ///
    /// The time with a known step, divided by the duration of the step.
    gpu_owner_steps_total: Counter<OwnedGpu>, None, Computed, "0.1.0";
    /// Current step duration as a multiple of the step duration in the owner's best hour on the GPU.
    gpu_owner_step_slowdown_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0", at most 1000.0;
    /// Fraction of the time by which the owner's slow rank waits less than its other GPUs on the node.
    ///
    /// Only on the GPU of the slow rank.
    gpu_owner_slow_rank_ratio: Gauge<OwnedGpu>, Ratio, Computed, "0.1.0";
    /// 1 on the GPU of the missing rank, for which the owner's other GPUs on the node wait.
    ///
    /// Only on the GPUs of an owner that is wedged.
    gpu_owner_missing_rank: Gauge<OwnedGpu>, None, Computed, "0.1.0", at most 1.0;
    /// Unix time of the last progress of an owner that is wedged or stalled.
    gpu_owner_last_progress_timestamp_seconds: Gauge<OwnedGpu>, Seconds, Computed, "0.1.0";
    /// Rank of the owner's process on the GPU in its largest NCCL communicator (`owners.nccl_ras`).
    gpu_owner_nccl_rank: Gauge<OwnedGpu>, None, Computed, "0.1.0";
    /// Number of collectives that the owner's process on the GPU launched, as counted by NCCL (`owners.nccl_ras`).
    gpu_owner_nccl_collectives_total: Counter<OwnedGpu>, None, Computed, "0.1.0";
    /// Number of requests to the RAS sockets of NCCL jobs by outcome (`owners.nccl_ras`).
    gpu_exporter_nccl_ras_requests_total: Counter<Node, (RasOutcome,)>, None, Computed, "0.1.0";
    /// Number of times that the owner ended while the memory of the GPU was at least 98 % full.
    ///
    /// This is an indication, not a count of failed CUDA allocations, which NVML does not report.
    gpu_owner_ended_at_full_memory_total: Counter<OwnedGpu>, None, Computed, "0.1.0";
    /// Smallest MIG profile that fits the owner's 95th percentiles of memory and of active multiprocessors.
    ///
    /// Only after 24 hours of data. `docs/OWNERS.md` has the formula.
    gpu_owner_mig_profile_hint_info: Info<OwnedGpu, (ProfileName,)>, None, Computed, "0.1.0";
    /// Number of processes of the owner killed by the OOM killer.
    ///
    /// The larger one of the counts of the control group and of the kernel log.
    gpu_owner_host_oom_kills_total: Counter<Owner>, None, Computed, "0.1.0";
    /// CPU time of the owner on the host since its first reading, in seconds.
    ///
    /// The time of its control group, or of its GPU processes if it has no control group of its own. Read every 10 s.
    /// Divide by `gpu_owner_busy_seconds_total` for the host time per second of GPU work.
    gpu_owner_cpu_seconds_total: Counter<Owner, (CpuTimeMode,)>, Seconds, Computed, "0.1.0";
    /// Unix time at which the owner's first GPU process started.
    ///
    /// Covers the processes that the GPUs list without interruption. The duration of a job is `time()` minus this
    /// value.
    gpu_owner_start_timestamp_seconds: Gauge<Owner>, Seconds, Computed, "0.1.0";
    /// Number of events counted on the CPUs for the owner's control group (`cpu.per_owner`).
    gpu_owner_cpu_events_total: Counter<Owner, (PerfEvent,)>, None, Computed, "0.1.0", at most 1e24;
    /// Time from the start of a process to its first context on a GPU and to its first work there, in seconds.
    ///
    /// The exporter checks for contexts once a second, and for work by utilization samples of 200 ms every 2 to 5 s.
    gpu_owner_start_seconds: Histogram<Node, (StartPhase,)>, Seconds, Computed, "0.1.0", group OwnerDetail;
    /// Number of devices that the kubelet can allocate, by resource.
    gpu_kubelet_allocatable_devices: Gauge<Node, (Resource,)>, None, Computed, "0.1.0";
    /// Number of devices that the kubelet has allocated, by resource.
    ///
    /// A time-shared device counts once per share, as in `gpu_kubelet_allocatable_devices`.
    gpu_kubelet_allocated_devices: Gauge<Node, (Resource,)>, None, Computed, "0.1.0";
    /// 1 for each container of a pod and each Slurm job to which the GPU or MIG instance is allocated, used or not.
    ///
    /// Pods as listed by the kubelet, and for 10 min after its last answer. Slurm jobs if the environments of their
    /// processes name GPUs (`owners.slurm_environment`); `gpu_slurm_jobs` counts the others. At most
    /// `owners.max_series` series.
    gpu_allocation_info: Info<AllocatedGpu, AllocationInfo>, None, Computed, "0.1.0";
    /// 1 for each job to which a file in `dcgm.hpc_job_dir` maps the GPU or MIG instance, at most 32 per instance.
    gpu_hpc_job_info: Info<AllocatedGpu, HpcJobInfo>, None, Computed, "0.1.0", json only true;
    /// 1 for each container of a pod that got the GPU or MIG instance through a dynamic resource claim.
    ///
    /// Every series has a corresponding `gpu_allocation_info`.
    gpu_claim_info: Info<AllocatedGpu, ClaimInfo>, None, Computed, "0.1.0", json only true;
    /// Number of Slurm jobs with their own control groups, by knowledge of their GPUs; absent without such jobs.
    gpu_slurm_jobs: Gauge<Node, (SlurmGpus,)>, None, Computed, "0.1.0", group OwnerDetail;

    // --- planned work ---------------------------------------------------------------------------
    /// 1 if a window of this kind is open.
    ///
    /// Use it to mute alerts: `unless on (cluster, job, instance) gpu_window_active{kind="maintenance"} == 1`.
    gpu_window_active: Gauge<Node, (WindowKind,)>, None, Computed, "0.1.0", at most 1.0;
    /// Window of planned work that is open, in the future, or ended within the last hour.
    gpu_window_info: Info<Window, WindowInfo>, None, Computed, "0.1.0";
    /// Unix time at which the window starts.
    gpu_window_start_timestamp_seconds: Gauge<Window>, Seconds, Computed, "0.1.0";
    /// Unix time at which the window ends.
    gpu_window_end_timestamp_seconds: Gauge<Window>, Seconds, Computed, "0.1.0";

    // --- the exporter itself --------------------------------------------------------------------
    /// Build of the running exporter.
    gpu_exporter_build_info: Info<Node, BuildInfo>, None, Computed, "0.1.0";
    /// 1 if the most recent visits of the collector succeeded within their deadlines.
    gpu_exporter_collector_up: Gauge<Node, (CollectorName,)>, None, Computed, "0.1.0";
    /// Unix time at which the collector last delivered values.
    gpu_exporter_collector_last_success_timestamp_seconds: Gauge<Node, (CollectorName,)>, Seconds, Computed, "0.1.0";
    /// Unix time at which the values of this tier of this GPU were read.
    gpu_exporter_sample_timestamp_seconds: Gauge<Gpu, (Tier,)>, Seconds, Computed, "0.1.0", group ExporterDetail except ["normal", "slow", "rare"];
    /// Age of a driver call on this GPU that exceeds `sampler.call_timeout`, in seconds.
    ///
    /// Absent without such a call.
    gpu_exporter_driver_call_stuck_seconds: Gauge<Gpu, (Call,)>, Seconds, Computed, "0.1.0";
    /// Age of a driver call for no single GPU that exceeds `sampler.call_timeout`, in seconds.
    ///
    /// `nvmlInitWithFlags` is the initialization. Absent without such a call.
    gpu_exporter_node_call_stuck_seconds: Gauge<Node, (Call,)>, Seconds, Computed, "0.1.0";
    /// Number of driver calls by tier.
    gpu_exporter_driver_calls_total: Counter<Node, (Call, Tier)>, None, Computed, "0.1.0", group DriverCalls;
    /// Time spent in driver calls by tier, in seconds.
    gpu_exporter_driver_call_seconds_total: Counter<Node, (Call, Tier)>, Seconds, Computed, "0.1.0", group DriverCalls;
    /// Duration of single driver calls in seconds.
    gpu_exporter_driver_call_duration_seconds: Histogram<Node>, Seconds, Computed, "0.1.0", group DriverCalls;
    /// Number of failed driver calls for this GPU, without unsupported calls.
    ///
    /// `gpu_exporter_driver_error_kinds_total` has the kinds of failure.
    gpu_exporter_driver_errors_total: Counter<Gpu>, None, Computed, "0.1.0", group DriverCalls;
    /// Number of failed driver calls by kind of failure.
    ///
    /// Includes calls for no single GPU, such as loading the library and listing the GPUs.
    gpu_exporter_driver_error_kinds_total: Counter<Node, (DriverError,)>, None, Computed, "0.1.0", group InactiveStates;
    /// Number of driver readings dropped because they were blank or out of range.
    gpu_exporter_readings_dropped_total: Counter<Gpu, (DropReason,)>, None, Computed, "0.1.0", group InactiveStates;
    /// Number of GPUs without this metric, because the hardware or the driver does not support it.
    ///
    /// Such a metric has no series for the GPU, and it is neither zero nor a failure. `/api/v1/snapshot` names the
    /// GPUs.
    gpu_exporter_metric_unsupported: Gauge<Node, (MetricName,)>, None, Computed, "0.1.0";
    /// Number of driver counter readings that decreased without a reason and were ignored.
    gpu_exporter_reading_regressions_total: Counter<Gpu>, None, Computed, "0.1.0", group InactiveStates;
    /// Number of running sampler processes, including processes that are stuck in the driver.
    ///
    /// Never more than two.
    gpu_exporter_samplers: Gauge<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// Number of sampler processes that were started.
    gpu_exporter_sampler_starts_total: Counter<Node>, None, Computed, "0.1.0";
    /// Number of sampler processes that ended or were abandoned, by reason.
    gpu_exporter_sampler_ends_total: Counter<Node, (SamplerEnd,)>, None, Computed, "0.1.0";
    /// Number of batches discarded as outdated.
    ///
    /// A batch is outdated if it belongs to an older epoch of its GPU or to an abandoned sampler, or if it arrives
    /// after a newer batch.
    gpu_exporter_batches_discarded_total: Counter<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// Number of collector events lost because of a full queue.
    gpu_exporter_events_lost_total: Counter<Node>, None, Computed, "0.1.0";
    /// 1 if all state is kept across restarts: faults, baselines and positions.
    ///
    /// Requires that `state.dir` is writable, that all state was read at the start, that no file in it is set aside
    /// (`*.corrupt`, `*.unread`), and that no state is waiting to be saved. Checked every minute.
    gpu_exporter_state_writable: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// 1 if the last load of the configuration was successful.
    ///
    /// The exporter loads the configuration when it starts, on SIGHUP and when a file changes. After a failure, the
    /// whole previous configuration stays in use, and the log names the errors. A load that changes keys which need a
    /// restart is successful, and the log names the keys.
    gpu_exporter_config_last_reload_successful: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// Unix time of the last successful load of the configuration.
    gpu_exporter_config_last_reload_success_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// Number of owner lookups by result.
    ///
    /// `gone` means that the process ended before the lookup, `late` that the lookup exceeded `owners.read_timeout`.
    gpu_exporter_owner_lookups_total: Counter<Node, (OwnerLookup,)>, None, Computed, "0.1.0";
    /// Number of owners without series, due to `owners.max_series` or the quota of their namespace or user.
    ///
    /// These owners share the owner `other`.
    gpu_exporter_owners_dropped: Gauge<Node>, None, Computed, "0.1.0";
    /// Number of failed requests to the kubelet.
    gpu_exporter_kubelet_errors_total: Counter<Node, (KubeletError,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Number of devices in dynamic resource claims that identify no GPU or MIG instance of this node.
    ///
    /// Absent if no pod has such a claim. The pods of unresolved devices have no `gpu_allocation_info`.
    gpu_exporter_claims_unresolved: Gauge<Node, (ClaimUnresolved,)>, None, Computed, "0.1.0";
    /// Number of samples read from the driver's buffers, without utilization samples during canary runs.
    gpu_exporter_samples_total: Counter<Gpu, (SampleBuffer,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Number of gaps between samples of the driver's buffers: overwritten before they were read, or never taken.
    gpu_exporter_sample_gaps_total: Counter<Gpu, (SampleBuffer,)>, None, Computed, "0.1.0", group ExporterDetail;
    /// Time in gaps between samples of the driver's buffers, in seconds.
    gpu_exporter_sample_gap_seconds_total: Counter<Gpu, (SampleBuffer,)>, Seconds, Computed, "0.1.0", group InactiveStates;
    /// Number of faults and driver events lost because of a full queue.
    gpu_exporter_facts_lost_total: Counter<Node, (FaultSource,)>, None, Computed, "0.1.0";
    /// Number of fault recordings by outcome.
    ///
    /// `gpu-node-exporter snapshot --recording FILE` reads a recording. `suppressed` counts faults, the other outcomes
    /// count files.
    gpu_exporter_recordings_total: Counter<Node, (RecordingOutcome,)>, None, Computed, "0.1.0";
    /// Number of records read from the kernel log by outcome.
    ///
    /// Records of outcome `old` are from before the exporter started to read the log. They appear in the list of
    /// events, but in no other counter.
    gpu_exporter_kmsg_records_total: Counter<Node, (KmsgOutcome,)>, None, Computed, "0.1.0", group Events;
    /// Number of times that the kernel log overwrote records before the exporter read them.
    gpu_exporter_kmsg_overruns_total: Counter<Node>, None, Computed, "0.1.0";
    /// Number of published snapshots.
    gpu_exporter_publications_total: Counter<Node>, None, Computed, "0.1.0";
    /// Duration of creating the most recent snapshot in seconds.
    gpu_exporter_publish_duration_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// Number of series on `/metrics`.
    gpu_exporter_series: Gauge<Node>, None, Computed, "0.1.0";
    /// Number of series dropped because of `metrics.max_series`, counted once per snapshot.
    gpu_exporter_series_dropped_total: Counter<Node>, None, Computed, "0.1.0";
    /// Number of HTTP responses by status code.
    gpu_exporter_http_requests_total: Counter<Node, (HttpStatus,)>, None, Computed, "0.1.0", group InactiveStates except ["200"];
    /// Number of open HTTP connections.
    gpu_exporter_http_connections: Gauge<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// Number of HTTP connections refused because `http.max_connections` other connections were active.
    gpu_exporter_http_connections_refused_total: Counter<Node>, None, Computed, "0.1.0";
    /// Number of idle HTTP connections closed to make room for others, because of `http.max_connections`.
    gpu_exporter_http_connections_evicted_total: Counter<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// Number of failed TLS handshakes.
    ///
    /// Only with TLS.
    gpu_exporter_http_handshakes_failed_total: Counter<Node>, None, Computed, "0.1.0", group ExporterDetail;
    /// 1 if the web configuration and certificates on disk are in use, 0 if they are invalid and older ones are in use.
    ///
    /// Only with `http.web_config_file`. The log names the error.
    gpu_exporter_web_config_last_reload_successful: Gauge<Node>, None, Computed, "0.1.0", at most 1.0;
    /// Unix time at which the certificate of the server expires.
    ///
    /// Only with TLS.
    gpu_exporter_certificate_expiry_timestamp_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
    /// CPU time of the exporter's processes in seconds, including ended processes.
    gpu_exporter_cpu_seconds_total: Counter<Node, (Role,)>, Seconds, Computed, "0.1.0";
    /// Resident memory of the exporter's processes in bytes; shared pages count in each process.
    gpu_exporter_resident_memory_bytes: Gauge<Node, (Role,)>, Bytes, Computed, "0.1.0";
    /// Total user and system CPU time of the serving process in seconds.
    process_cpu_seconds_total: Counter<Node>, Seconds, Computed, "0.1.0", group ExporterDetail;
    /// Resident memory size of the serving process in bytes.
    process_resident_memory_bytes: Gauge<Node>, Bytes, Computed, "0.1.0", group ExporterDetail;
    /// Virtual memory size of the serving process in bytes.
    process_virtual_memory_bytes: Gauge<Node>, Bytes, Computed, "0.1.0", group ExporterDetail;
    /// Number of open file descriptors of the serving process.
    process_open_fds: Gauge<Node>, None, Computed, "0.1.0";
    /// Maximum number of open file descriptors of the serving process.
    process_max_fds: Gauge<Node>, None, Computed, "0.1.0";
    /// Number of threads of the serving process.
    process_threads: Gauge<Node>, None, Computed, "0.1.0";
    /// Unix time at which the serving process started.
    process_start_time_seconds: Gauge<Node>, Seconds, Computed, "0.1.0";
}

/// Returns the definition of a metric, if this build has one with this id.
pub fn def(id: MetricId) -> Option<&'static MetricDef> {
    METRICS.get(usize::from(id.0))
}

/// Returns a number that is equal in two processes only if all entries of their catalogues are equal.
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

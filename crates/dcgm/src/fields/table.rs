//! Rows of the table of DCGM's fields.
//!
//! Numbers, names, units and levels come from DCGM 4.6 and 4.7 and from dcgm-exporter 4.8.4. The names up to 4.5 come
//! first. The help texts are our own.

use model::catalog as m;

use super::FamilyType::{Counter, Gauge, Label};
use super::FieldFormat::{Double, Integer, Text};
use super::Level::{Board, ComputeInstance, GpuInstance, Whole};
use super::{DcgmField, FieldSource, Own};

/// Builds the table from rows of number, type, format, level, names, help and source.
macro_rules! fields {
    ($($id:literal $kind:ident $format:ident $level:ident [$($name:literal),+] $help:literal = $source:expr;)+) => {
        /// All fields by number.
        pub static TABLE: &[DcgmField] = &[$(DcgmField {
            id: $id,
            names: &[$($name),+],
            kind: $kind,
            help: $help,
            format: $format,
            level: $level,
            source: $source,
        }),+];
    };
}

/// Source that reads the first existing metric with these label values, times a factor.
macro_rules! series {
    ($factor:expr; $($metric:ident $([$($label:literal),*])?),+) => {
        FieldSource::Series { of: &[$((m::$metric.id(), &[$($($label),*)?])),+], factor: $factor }
    };
}

/// Source that adds up these readings.
macro_rules! sum {
    ($factor:expr; $($metric:ident $([$($label:literal),*])?),+) => {
        FieldSource::Sum { of: &[$((m::$metric.id(), &[$($($label),*)?])),+], factor: $factor }
    };
}

/// Source that reads a label of an info metric.
macro_rules! info {
    ($metric:ident $label:literal) => {
        info!($metric $label, |text| text.parse().ok())
    };
    ($metric:ident $label:literal, $number:expr) => {
        FieldSource::Info { metric: m::$metric.id(), label: $label, number: $number }
    };
}

const MHZ: f64 = 1e-6;
const MIB: f64 = 1.0 / 1_048_576.0;
const PERCENT: f64 = 100.0;
const NANOSECONDS: f64 = 1e9;
/// Factor to DCGM's MB, which DCGM computes by dividing KiB by 1,000.
const KIB_BY_1000: f64 = 1.0 / 1_024_000.0;
const KIB: f64 = 1.0 / 1024.0;

const NO_APPLICATION_CLOCKS: &str = "application clocks: gone from driver 610";
const NO_FANS: &str = "boards for data centres have no fans of their own";
const NO_SUMS: &str = "overlaps the times of single reasons";
const ONE_LINK: &str = "one link; all links: `gpu_nvlink_bytes_total`";
const NO_NVLINK_ERROR: &str = "errors by kind: `gpu_nvlink_errors_total`";
const NO_CYCLES: &str = "NVML has no such counter; shares of time: `gpu_gpm_active_ratio`";

/// Converts a version such as `12.4` to CUDA's number, here 12040.
fn cuda_version(text: &str) -> Option<f64> {
    let (major, minor) = text.split_once('.')?;
    Some(major.parse::<f64>().ok()? * 1000.0 + minor.parse::<f64>().ok()? * 10.0)
}

/// Converts a version such as `9.0` to a number with the first part in the upper 16 bits.
fn capability(text: &str) -> Option<f64> {
    let (major, minor) = text.split_once('.')?;
    Some(f64::from((major.parse::<u32>().ok()? << 16) + minor.parse::<u32>().ok()?))
}

/// Converts a hexadecimal text such as `0x233510de` to a number.
fn hexadecimal(text: &str) -> Option<f64> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(f64::from)
}

fn virtual_mode(text: &str) -> Option<f64> {
    let modes = ["none", "passthrough", "vgpu", "host_vgpu", "host_vsga"];
    modes.iter().position(|mode| *mode == text).map(|at| at as f64)
}

/// Bits of NVML's clock event reasons.
const CLOCK_EVENTS: &[(&str, u32)] = &[
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clock_setting", 0x100),
];

/// Numbers of the compute modes in NVML.
const COMPUTE_MODES: &[(&str, u32)] =
    &[("default", 0), ("exclusive_thread", 1), ("prohibited", 2), ("exclusive_process", 3)];

/// States of the fabric manager in DCGM.
const FABRIC: &[(&str, u32)] =
    &[("not_supported", 0), ("not_started", 1), ("in_progress", 2), ("completed", 3)];

fields! {
    1 Label Text Board ["DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"] "Version of the driver."
        = info!(gpu_driver_info "driver_version");
    2 Label Text Board ["DCGM_FI_NVML_VERSION", "DCGM_FI_SYSTEM_NVML_VERSION"] "Version of libnvidia-ml."
        = info!(gpu_driver_info "nvml_version");
    4 Gauge Integer Board ["DCGM_FI_DEV_COUNT", "DCGM_FI_SYSTEM_GPU_QUANTITY"] "GPUs of the node."
        = series!(1.0; gpu_devices);
    5 Gauge Integer Board ["DCGM_FI_CUDA_DRIVER_VERSION"] "CUDA version of the driver, as 12040 for 12.4."
        = info!(gpu_driver_info "cuda_version", cuda_version);
    50 Label Text Board ["DCGM_FI_DEV_NAME", "DCGM_FI_DEV_GPU_NAME"] "Product name."
        = info!(gpu_info "model");
    51 Label Text Board ["DCGM_FI_DEV_BRAND", "DCGM_FI_DEV_GPU_BRAND"] "Brand."
        = info!(gpu_board_info "brand");
    52 Gauge Integer Board ["DCGM_FI_DEV_NVML_INDEX"] "NVML's index of the GPU."
        = info!(gpu_info "gpu");
    53 Label Text Board ["DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_BOARD_SERIAL"] "Serial number of the board."
        = info!(gpu_info "serial");
    54 Label Text Board ["DCGM_FI_DEV_UUID", "DCGM_FI_DEV_GPU_UUID"] "UUID of the GPU."
        = info!(gpu_info "uuid");
    55 Gauge Integer Board ["DCGM_FI_DEV_MINOR_NUMBER", "DCGM_FI_DEV_GPU_MINOR_NUMBER"] "N of /dev/nvidiaN."
        = info!(gpu_info "minor_number");
    56 Label Text Board ["DCGM_FI_DEV_OEM_INFOROM_VER", "DCGM_FI_DEV_INFOROM_OEM_VERSION"] "Version of the InfoROM's OEM object."
        = info!(gpu_board_info "inforom_oem_version");
    57 Label Text Board ["DCGM_FI_DEV_PCI_BUSID", "DCGM_FI_DEV_PCI_BUS_ID"] "PCI address."
        = info!(gpu_info "pci_address");
    58 Gauge Integer Board ["DCGM_FI_DEV_PCI_COMBINED_ID"] "PCI device and vendor, as a number."
        = info!(gpu_info "pci_device_id", hexadecimal);
    59 Gauge Integer Board ["DCGM_FI_DEV_PCI_SUBSYS_ID"] "PCI subsystem, as a number."
        = info!(gpu_info "pci_subsystem_id", hexadecimal);
    63 Gauge Integer Board ["DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY"] "CUDA compute capability, as 589824 for 9.0."
        = info!(gpu_info "compute_capability", capability);
    65 Gauge Integer Board ["DCGM_FI_DEV_COMPUTE_MODE"] "Compute mode, as NVML numbers it."
        = FieldSource::Choice { metric: m::gpu_compute_mode.id(), numbers: COMPUTE_MODES, failed: None };
    66 Gauge Integer Board ["DCGM_FI_DEV_PERSISTENCE_MODE"] "1 if persistence mode is on."
        = series!(1.0; gpu_persistence_mode_enabled);
    67 Gauge Integer Board ["DCGM_FI_DEV_MIG_MODE"] "1 if MIG mode is on."
        = series!(1.0; gpu_mig_mode_enabled);
    69 Gauge Integer Board ["DCGM_FI_DEV_MIG_MAX_SLICES"] "Compute slices of the GPU."
        = series!(1.0; gpu_mig_slices);
    80 Label Text Board ["DCGM_FI_DEV_ECC_INFOROM_VER", "DCGM_FI_DEV_INFOROM_ECC_VERSION"] "Version of the InfoROM's ECC object."
        = info!(gpu_board_info "inforom_ecc_version");
    81 Label Text Board ["DCGM_FI_DEV_POWER_INFOROM_VER", "DCGM_FI_DEV_INFOROM_POWER_VERSION"] "Version of the InfoROM's power object."
        = info!(gpu_board_info "inforom_power_version");
    82 Label Text Board ["DCGM_FI_DEV_INFOROM_IMAGE_VER", "DCGM_FI_DEV_INFOROM_IMAGE_VERSION"] "Version of the InfoROM image."
        = info!(gpu_info "inforom_version");
    85 Label Text Board ["DCGM_FI_DEV_VBIOS_VERSION"] "Version of the VBIOS."
        = info!(gpu_info "vbios_version");
    90 Gauge Integer Board ["DCGM_FI_DEV_BAR1_TOTAL"] "BAR1 aperture (in MiB)."
        = series!(MIB; gpu_bar1_memory_total_bytes);
    92 Gauge Integer Board ["DCGM_FI_DEV_BAR1_USED"] "BAR1 aperture in use (in MiB)."
        = series!(MIB; gpu_bar1_memory_used_bytes);
    93 Gauge Integer Board ["DCGM_FI_DEV_BAR1_FREE"] "Free BAR1 aperture (in MiB)."
        = series!(MIB; gpu_bar1_memory_free_bytes);
    100 Gauge Integer Board ["DCGM_FI_DEV_SM_CLOCK", "dcgm_sm_clock"] "SM clock (in MHz)."
        = series!(MHZ; gpu_clock_hertz["sm"]);
    101 Gauge Integer Board ["DCGM_FI_DEV_MEM_CLOCK", "dcgm_memory_clock"] "Memory clock (in MHz)."
        = series!(MHZ; gpu_clock_hertz["memory"]);
    102 Gauge Integer Board ["DCGM_FI_DEV_VIDEO_CLOCK"] "Video clock (in MHz)."
        = series!(MHZ; gpu_clock_hertz["video"]);
    110 Gauge Integer Board ["DCGM_FI_DEV_APP_SM_CLOCK"] "Application clock of the SMs (in MHz)." = FieldSource::None(NO_APPLICATION_CLOCKS);
    111 Gauge Integer Board ["DCGM_FI_DEV_APP_MEM_CLOCK"] "Application clock of the memory (in MHz)." = FieldSource::None(NO_APPLICATION_CLOCKS);
    112 Gauge Integer Board ["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] "Reasons for a lower clock, a bit each."
        = FieldSource::Bits { metric: m::gpu_clock_event_active.id(), bits: CLOCK_EVENTS };
    113 Gauge Integer Board ["DCGM_FI_DEV_MAX_SM_CLOCK"] "Highest SM clock (in MHz)."
        = series!(MHZ; gpu_clock_max_hertz["sm"]);
    114 Gauge Integer Board ["DCGM_FI_DEV_MAX_MEM_CLOCK"] "Highest memory clock (in MHz)."
        = series!(MHZ; gpu_clock_max_hertz["memory"]);
    115 Gauge Integer Board ["DCGM_FI_DEV_MAX_VIDEO_CLOCK"] "Highest video clock (in MHz)."
        = series!(MHZ; gpu_clock_max_hertz["video"]);
    140 Gauge Integer Board ["DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "dcgm_memory_temp"] "Temperature of the memory (in C)."
        = series!(1.0; gpu_temperature_celsius["memory"]);
    150 Gauge Integer Board ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "dcgm_gpu_temp"] "Temperature of the GPU (in C)."
        = series!(1.0; gpu_temperature_celsius["gpu"]);
    151 Gauge Integer Board ["DCGM_FI_DEV_MEM_MAX_OP_TEMP"] "Highest operating temperature of the memory (in C)."
        = series!(1.0; gpu_temperature_threshold_celsius["memory_max"]);
    152 Gauge Integer Board ["DCGM_FI_DEV_GPU_MAX_OP_TEMP"] "Highest operating temperature of the GPU (in C)."
        = series!(1.0; gpu_temperature_threshold_celsius["gpu_max"]);
    153 Gauge Integer Board ["DCGM_FI_DEV_GPU_TEMP_LIMIT", "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS"] "Degrees left until slowdown (in C)."
        = series!(1.0; gpu_temperature_margin_celsius);
    155 Gauge Double Board ["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", "dcgm_power_usage"] "Power draw of the board (in W)."
        = series!(1.0; gpu_power_watts);
    156 Counter Integer Board ["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "dcgm_total_energy_consumption"] "Energy since the driver was loaded (in mJ)."
        = series!(1e3; gpu_energy_joules_total);
    157 Gauge Double Board ["DCGM_FI_DEV_POWER_USAGE_INSTANT", "DCGM_FI_DEV_BOARD_POWER_RAW_WATTS"] "Instant power draw of the board (in W)."
        = series!(1.0; gpu_power_instant_watts);
    158 Gauge Integer Board ["DCGM_FI_DEV_SLOWDOWN_TEMP", "DCGM_FI_DEV_GPU_TEMP_SLOWDOWN_CELSIUS"] "Temperature of slowdown (in C)."
        = series!(1.0; gpu_temperature_threshold_celsius["slowdown"]);
    159 Gauge Integer Board ["DCGM_FI_DEV_SHUTDOWN_TEMP", "DCGM_FI_DEV_GPU_TEMP_SHUTDOWN_CELSIUS"] "Temperature of shutdown (in C)."
        = series!(1.0; gpu_temperature_threshold_celsius["shutdown"]);
    160 Gauge Double Board ["DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"] "Power limit that was set (in W)."
        = series!(1.0; gpu_power_limit_watts["configured"]);
    161 Gauge Double Board ["DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", "DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS"] "Lowest power limit (in W)."
        = series!(1.0; gpu_power_limit_watts["min"]);
    162 Gauge Double Board ["DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", "DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS"] "Highest power limit (in W)."
        = series!(1.0; gpu_power_limit_watts["max"]);
    163 Gauge Double Board ["DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS"] "Default power limit (in W)."
        = series!(1.0; gpu_power_limit_watts["default"]);
    164 Gauge Double Board ["DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"] "Power limit in force (in W)."
        = series!(1.0; gpu_power_limit_watts["enforced"]);
    170 Gauge Integer Board ["DCGM_FI_DEV_FABRIC_MANAGER_STATUS"] "State of joining the NVLink fabric."
        = FieldSource::Choice {
            metric: m::gpu_fabric_state.id(),
            numbers: FABRIC,
            failed: Some((m::gpu_fabric_status.id(), 4)),
        };
    171 Gauge Integer Board ["DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE"] "NVML return code of joining the NVLink fabric."
        = series!(1.0; gpu_fabric_status);
    172 Label Text Board ["DCGM_FI_DEV_FABRIC_CLUSTER_UUID"] "UUID of the NVLink cluster."
        = info!(gpu_fabric_info "cluster_uuid");
    173 Gauge Integer Board ["DCGM_FI_DEV_FABRIC_CLIQUE_ID"] "Clique within the NVLink cluster."
        = info!(gpu_fabric_info "clique_id");
    174 Gauge Integer Board ["DCGM_FI_DEV_FABRIC_HEALTH_MASK"] "Health mask of the NVLink fabric, as NVML gives it."
        = series!(1.0; gpu_fabric_health_mask);
    175 Gauge Integer Board ["DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY"] "Health of the NVLink fabric: 1 healthy, 2 not, 3 of limited capacity."
        = series!(1.0; gpu_fabric_health_summary);
    190 Gauge Integer Board ["DCGM_FI_DEV_PSTATE", "DCGM_FI_DEV_GPU_PSTATE"] "Performance state, 0 to 15."
        = series!(1.0; gpu_performance_state);
    191 Gauge Integer Board ["DCGM_FI_DEV_FAN_SPEED"] "Fan speed (in %)." = FieldSource::None(NO_FANS);
    200 Gauge Integer Board ["DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "dcgm_pcie_tx_throughput"] "Sent over PCIe (in KB/s)."
        = series!(KIB; gpu_pcie_throughput_bytes_per_second["tx"], gpu_gpm_pcie_bytes_per_second["tx"]);
    201 Gauge Integer Board ["DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "dcgm_pcie_rx_throughput"] "Received over PCIe (in KB/s)."
        = series!(KIB; gpu_pcie_throughput_bytes_per_second["rx"], gpu_gpm_pcie_bytes_per_second["rx"]);
    202 Counter Integer Board ["DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "dcgm_pcie_replay_counter"] "PCIe replays."
        = series!(1.0; gpu_pcie_replays_total);
    203 Gauge Integer Board ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", "dcgm_gpu_utilization"] "Utilization of the GPU (in %)."
        = series!(PERCENT; gpu_utilization_ratio);
    204 Gauge Integer Board ["DCGM_FI_DEV_MEM_COPY_UTIL", "dcgm_mem_copy_utilization"] "Utilization of the memory interface (in %)."
        = series!(PERCENT; gpu_memory_utilization_ratio);
    206 Gauge Integer Board ["DCGM_FI_DEV_ENC_UTIL", "dcgm_enc_utilization"] "Utilization of the encoder (in %)."
        = series!(PERCENT; gpu_encoder_utilization_ratio);
    207 Gauge Integer Board ["DCGM_FI_DEV_DEC_UTIL", "dcgm_dec_utilization"] "Utilization of the decoder (in %)."
        = series!(PERCENT; gpu_decoder_utilization_ratio);
    230 Gauge Integer Whole ["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", "dcgm_xid_errors"] "Code of the newest Xid."
        = series!(1.0; gpu_xid_last_code);
    235 Gauge Integer Board ["DCGM_FI_DEV_PCIE_MAX_LINK_GEN"] "Highest PCIe generation."
        = series!(1.0; gpu_pcie_link_max_generation);
    236 Gauge Integer Board ["DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"] "Most PCIe lanes."
        = series!(1.0; gpu_pcie_link_max_width_lanes);
    237 Gauge Integer Board ["DCGM_FI_DEV_PCIE_LINK_GEN"] "PCIe generation."
        = series!(1.0; gpu_pcie_link_generation);
    238 Gauge Integer Board ["DCGM_FI_DEV_PCIE_LINK_WIDTH"] "PCIe lanes."
        = series!(1.0; gpu_pcie_link_width_lanes);
    240 Counter Integer Board ["DCGM_FI_DEV_POWER_VIOLATION", "dcgm_power_violation"] "Time held down by the power limit (in ns)."
        = series!(NANOSECONDS; gpu_clock_event_seconds_total["sw_power_cap"]);
    241 Counter Integer Board ["DCGM_FI_DEV_THERMAL_VIOLATION", "dcgm_thermal_violation"] "Time held down by heat (in ns)."
        = series!(NANOSECONDS; gpu_thermal_violation_seconds_total);
    242 Counter Integer Board ["DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "dcgm_sync_boost_violation"] "Time held down by sync boost (in ns)."
        = series!(NANOSECONDS; gpu_clock_event_seconds_total["sync_boost"]);
    243 Counter Integer Board ["DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "dcgm_board_limit_violation"] "Time held down by the board limit (in ns)."
        = series!(NANOSECONDS; gpu_violation_seconds_total["board_limit"]);
    244 Counter Integer Board ["DCGM_FI_DEV_LOW_UTIL_VIOLATION", "dcgm_low_util_violation"] "Time held down by low utilization (in ns)."
        = series!(NANOSECONDS; gpu_violation_seconds_total["low_utilization"]);
    245 Counter Integer Board ["DCGM_FI_DEV_RELIABILITY_VIOLATION", "dcgm_reliability_violation"] "Time held down for reliability (in ns)."
        = series!(NANOSECONDS; gpu_violation_seconds_total["reliability"]);
    246 Counter Integer Board ["DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION"] "Time below the application clocks (in ns)." = FieldSource::None(NO_SUMS);
    247 Counter Integer Board ["DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION"] "Time below the base clocks (in ns)." = FieldSource::None(NO_SUMS);
    250 Gauge Integer ComputeInstance ["DCGM_FI_DEV_FB_TOTAL"] "Device memory (in MiB)."
        = series!(MIB; gpu_memory_total_bytes, gpu_mig_memory_total_bytes);
    251 Gauge Integer ComputeInstance ["DCGM_FI_DEV_FB_FREE", "dcgm_fb_free"] "Free device memory (in MiB)."
        = series!(MIB; gpu_memory_free_bytes, gpu_mig_memory_free_bytes);
    252 Gauge Integer ComputeInstance ["DCGM_FI_DEV_FB_USED", "dcgm_fb_used"] "Used device memory (in MiB)."
        = series!(MIB; gpu_memory_used_bytes, gpu_mig_memory_used_bytes);
    253 Gauge Integer ComputeInstance ["DCGM_FI_DEV_FB_RESERVED"] "Reserved device memory (in MiB)."
        = series!(MIB; gpu_memory_reserved_bytes, gpu_mig_memory_reserved_bytes);
    254 Gauge Double ComputeInstance ["DCGM_FI_DEV_FB_USED_PERCENT", "DCGM_FI_DEV_FB_USED_RATIO"] "Used share of the device memory that is not reserved (0 to 1)."
        = FieldSource::Share {
            part: &[m::gpu_memory_used_bytes.id(), m::gpu_mig_memory_used_bytes.id()],
            whole: &[m::gpu_memory_total_bytes.id(), m::gpu_mig_memory_total_bytes.id()],
            less: &[m::gpu_memory_reserved_bytes.id(), m::gpu_mig_memory_reserved_bytes.id()],
        };
    300 Gauge Integer Board ["DCGM_FI_DEV_ECC_CURRENT", "DCGM_FI_DEV_ECC_MODE"] "1 if ECC is on."
        = series!(1.0; gpu_ecc_mode_enabled);
    301 Gauge Integer Board ["DCGM_FI_DEV_ECC_PENDING"] "1 if ECC will be on after a reset."
        = series!(1.0; gpu_ecc_mode_pending_enabled);
    310 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "dcgm_ecc_sbe_volatile_total"] "Corrected ECC errors since the driver was loaded."
        = series!(1.0; gpu_ecc_total_errors["volatile", "corrected"]);
    311 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "dcgm_ecc_dbe_volatile_total"] "Uncorrected ECC errors since the driver was loaded."
        = series!(1.0; gpu_ecc_total_errors["volatile", "uncorrected"]);
    312 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "dcgm_ecc_sbe_aggregate_total"] "Corrected ECC errors over the GPU's life."
        = series!(1.0; gpu_ecc_total_errors["aggregate", "corrected"]);
    313 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "dcgm_ecc_dbe_aggregate_total"] "Uncorrected ECC errors over the GPU's life."
        = series!(1.0; gpu_ecc_total_errors["aggregate", "uncorrected"]);
    314 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_L1"] "Corrected ECC errors of the L1 cache since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "corrected", "l1_cache"]);
    315 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_L1"] "Uncorrected ECC errors of the L1 cache since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "uncorrected", "l1_cache"]);
    316 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_L2"] "Corrected ECC errors of the L2 cache since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "corrected", "l2_cache"]);
    317 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_L2"] "Uncorrected ECC errors of the L2 cache since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "uncorrected", "l2_cache"]);
    318 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_DEV"] "Corrected ECC errors of the device memory since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "corrected", "dram"]);
    319 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_DEV"] "Uncorrected ECC errors of the device memory since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "uncorrected", "dram"]);
    320 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_REG"] "Corrected ECC errors of the register file since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "corrected", "register_file"]);
    321 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_REG"] "Uncorrected ECC errors of the register file since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "uncorrected", "register_file"]);
    322 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_TEX"] "Corrected ECC errors of the texture memory since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "corrected", "texture_memory"]);
    323 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_TEX"] "Uncorrected ECC errors of the texture memory since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "uncorrected", "texture_memory"]);
    324 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_L1"] "Corrected ECC errors of the L1 cache over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "corrected", "l1_cache"]);
    325 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_L1"] "Uncorrected ECC errors of the L1 cache over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "uncorrected", "l1_cache"]);
    326 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_L2"] "Corrected ECC errors of the L2 cache over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "corrected", "l2_cache"]);
    327 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_L2"] "Uncorrected ECC errors of the L2 cache over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "uncorrected", "l2_cache"]);
    328 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_DEV"] "Corrected ECC errors of the device memory over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "corrected", "dram"]);
    329 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_DEV"] "Uncorrected ECC errors of the device memory over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "uncorrected", "dram"]);
    330 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_REG"] "Corrected ECC errors of the register file over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "corrected", "register_file"]);
    331 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_REG"] "Uncorrected ECC errors of the register file over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "uncorrected", "register_file"]);
    332 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_TEX"] "Corrected ECC errors of the texture memory over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "corrected", "texture_memory"]);
    333 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_TEX"] "Uncorrected ECC errors of the texture memory over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "uncorrected", "texture_memory"]);
    334 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_SHM"] "Corrected ECC errors of the texture shared memory since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "corrected", "texture_shm"]);
    335 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_SHM"] "Uncorrected ECC errors of the texture shared memory since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "uncorrected", "texture_shm"]);
    336 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_CBU"] "Corrected ECC errors of the convergence barrier unit since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "corrected", "cbu"]);
    337 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_CBU"] "Uncorrected ECC errors of the convergence barrier unit since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "uncorrected", "cbu"]);
    338 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_SHM"] "Corrected ECC errors of the texture shared memory over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "corrected", "texture_shm"]);
    339 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_SHM"] "Uncorrected ECC errors of the texture shared memory over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "uncorrected", "texture_shm"]);
    340 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_CBU"] "Corrected ECC errors of the convergence barrier unit over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "corrected", "cbu"]);
    341 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_CBU"] "Uncorrected ECC errors of the convergence barrier unit over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "uncorrected", "cbu"]);
    342 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_VOL_SRM"] "Corrected ECC errors of the SRAM since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "corrected", "sram"]);
    343 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_VOL_SRM"] "Uncorrected ECC errors of the SRAM since the driver was loaded."
        = series!(1.0; gpu_ecc_errors["volatile", "uncorrected", "sram"]);
    344 Counter Integer Board ["DCGM_FI_DEV_ECC_SBE_AGG_SRM"] "Corrected ECC errors of the SRAM over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "corrected", "sram"]);
    345 Counter Integer Board ["DCGM_FI_DEV_ECC_DBE_AGG_SRM"] "Uncorrected ECC errors of the SRAM over the GPU's life."
        = series!(1.0; gpu_ecc_errors["aggregate", "uncorrected", "sram"]);
    346 Gauge Integer Board ["DCGM_FI_DEV_THRESHOLD_SRM", "DCGM_FI_DEV_SRAM_EXCEEDED"] "1 if SRAM errors exceed the vendor's threshold."
        = series!(1.0; gpu_ecc_sram_threshold_exceeded);
    385 Gauge Integer Board ["DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX", "DCGM_FI_DEV_BANK_REMAP_AVAIL_MAX"] "Banks with all spare rows left."
        = series!(1.0; gpu_row_remap_banks["max"]);
    386 Gauge Integer Board ["DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_HIGH", "DCGM_FI_DEV_BANK_REMAP_AVAIL_HIGH"] "Banks with many spare rows left."
        = series!(1.0; gpu_row_remap_banks["high"]);
    387 Gauge Integer Board ["DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL", "DCGM_FI_DEV_BANK_REMAP_AVAIL_PARTIAL"] "Banks with some spare rows left."
        = series!(1.0; gpu_row_remap_banks["partial"]);
    388 Gauge Integer Board ["DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_LOW", "DCGM_FI_DEV_BANK_REMAP_AVAIL_LOW"] "Banks with few spare rows left."
        = series!(1.0; gpu_row_remap_banks["low"]);
    389 Gauge Integer Board ["DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE", "DCGM_FI_DEV_BANK_REMAP_AVAIL_NONE"] "Banks without spare rows."
        = series!(1.0; gpu_row_remap_banks["none"]);
    390 Counter Integer Board ["DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL", "dcgm_retired_pages_sbe"] "Pages retired for single-bit errors."
        = series!(1.0; gpu_retired_pages["multiple_single_bit"]);
    391 Counter Integer Board ["DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", "dcgm_retired_pages_dbe"] "Pages retired for double-bit errors."
        = series!(1.0; gpu_retired_pages["double_bit"]);
    392 Gauge Integer Board ["DCGM_FI_DEV_RETIRED_PENDING", "DCGM_FI_DEV_PAGE_RETIRED_PENDING", "dcgm_retired_pages_pending"] "1 while a retirement waits for a reboot."
        = series!(1.0; gpu_retired_pages_pending);
    393 Counter Integer Board ["DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"] "Rows remapped for uncorrectable errors."
        = series!(1.0; gpu_remapped_rows["uncorrectable"]);
    394 Counter Integer Board ["DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL"] "Rows remapped for correctable errors."
        = series!(1.0; gpu_remapped_rows["correctable"]);
    395 Gauge Integer Board ["DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"] "1 if a row remap has failed."
        = series!(1.0; gpu_row_remap_failure);
    396 Gauge Integer Board ["DCGM_FI_DEV_ROW_REMAP_PENDING"] "1 while a row remap waits for a reset."
        = series!(1.0; gpu_row_remap_pending);
    409 Counter Integer Board ["DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL", "dcgm_nvlink_flit_crc_error_count_total"] "NVLink packets with a wrong checksum."
        = series!(1.0; gpu_nvlink_errors_total["dl_crc_flit"]);
    419 Counter Integer Board ["DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL", "dcgm_nvlink_data_crc_error_count_total"] "NVLink data with a wrong checksum."
        = series!(1.0; gpu_nvlink_lane_errors_total["dl_crc_data"]);
    429 Counter Integer Board ["DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL", "dcgm_nvlink_replay_error_count_total"] "NVLink replays."
        = series!(1.0; gpu_nvlink_errors_total["dl_replay"]);
    439 Counter Integer Board ["DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL", "dcgm_nvlink_recovery_error_count_total"] "NVLink recoveries."
        = series!(1.0; gpu_nvlink_errors_total["dl_recovery"]);
    440 Gauge Integer Board ["DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", "DCGM_FI_DEV_NVLINK_THROUGHPUT_L0"] "Rate of NVLink 0, both directions (in MB/s)." = FieldSource::None(ONE_LINK);
    449 Gauge Integer Board ["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", "dcgm_nvlink_bandwidth_total"] "Rate of all NVLinks, both directions (in MB/s)."
        = sum!(KIB_BY_1000; gpu_nvlink_bytes_per_second["tx"], gpu_nvlink_bytes_per_second["rx"]);
    450 Gauge Integer Board ["DCGM_FI_DEV_GPU_NVLINK_ERRORS", "DCGM_FI_DEV_NVLINK_ERROR"] "NVLink error of the GPU." = FieldSource::None(NO_NVLINK_ERROR);
    497 Counter Integer Board ["DCGM_FI_DEV_NVLINK_CRC_ERROR_TOTAL"] "NVLink packets with a wrong checksum (Hopper)."
        = series!(1.0; gpu_nvlink_errors_total["dl_crc_flit"]);
    498 Counter Integer Board ["DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL"] "NVLink recoveries (Hopper)."
        = series!(1.0; gpu_nvlink_errors_total["dl_recovery"]);
    499 Counter Integer Board ["DCGM_FI_DEV_NVLINK_REPLAY_TOTAL"] "NVLink replays (Hopper)."
        = series!(1.0; gpu_nvlink_errors_total["dl_replay"]);
    500 Gauge Integer Board ["DCGM_FI_DEV_VIRTUAL_MODE", "DCGM_FI_DEV_GPU_VIRTUAL_MODE"] "Virtualization mode."
        = info!(gpu_info "virtualization_mode", virtual_mode);
    526 Gauge Integer Board ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"] "1 if the GPU has a licence for virtual GPUs."
        = series!(1.0; gpu_vgpu_software_licensed);
    843 Gauge Integer Board ["DCGM_FI_DEV_NVLINK_TX_BANDWIDTH_TOTAL"] "Sent over all NVLinks (in MB/s)."
        = series!(KIB_BY_1000; gpu_nvlink_bytes_per_second["tx"]);
    897 Gauge Integer Board ["DCGM_FI_DEV_NVLINK_RX_BANDWIDTH_TOTAL"] "Received over all NVLinks (in MB/s)."
        = series!(KIB_BY_1000; gpu_nvlink_bytes_per_second["rx"]);
    1001 Gauge Double ComputeInstance ["DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", "dcgm_fi_prof_gr_engine_active"] "Share of time with any engine active."
        = series!(1.0; gpu_gpm_active_ratio["graphics"], gpu_mig_gpm_active_ratio["graphics"]);
    1002 Gauge Double ComputeInstance ["DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", "dcgm_fi_prof_sm_active"] "Share of cycles with a warp on a multiprocessor."
        = series!(1.0; gpu_gpm_active_ratio["sm"], gpu_mig_gpm_active_ratio["sm"]);
    1003 Gauge Double ComputeInstance ["DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO", "dcgm_fi_prof_sm_occupancy"] "Share of the possible warps that are resident."
        = series!(1.0; gpu_gpm_active_ratio["sm_occupancy"], gpu_mig_gpm_active_ratio["sm_occupancy"]);
    1004 Gauge Double ComputeInstance ["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", "dcgm_fi_prof_pipe_tensor_active"] "Share of cycles with a tensor pipe active."
        = series!(1.0; gpu_gpm_active_ratio["tensor"], gpu_mig_gpm_active_ratio["tensor"]);
    1005 Gauge Double GpuInstance ["DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", "dcgm_fi_prof_dram_active"] "Share of cycles with the memory interface active."
        = series!(1.0; gpu_gpm_active_ratio["dram"], gpu_mig_gpm_active_ratio["dram"]);
    1006 Gauge Double ComputeInstance ["DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_FP64_UTIL_RATIO"] "Share of cycles with the FP64 pipe active."
        = series!(1.0; gpu_gpm_active_ratio["fp64"], gpu_mig_gpm_active_ratio["fp64"]);
    1007 Gauge Double ComputeInstance ["DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_FP32_UTIL_RATIO"] "Share of cycles with the FP32 pipe active."
        = series!(1.0; gpu_gpm_active_ratio["fp32"], gpu_mig_gpm_active_ratio["fp32"]);
    1008 Gauge Double ComputeInstance ["DCGM_FI_PROF_PIPE_FP16_ACTIVE", "DCGM_FI_PROF_FP16_UTIL_RATIO"] "Share of cycles with the FP16 pipe active."
        = series!(1.0; gpu_gpm_active_ratio["fp16"], gpu_mig_gpm_active_ratio["fp16"]);
    1009 Gauge Integer Board ["DCGM_FI_PROF_PCIE_TX_BYTES", "dcgm_fi_prof_pcie_tx_bytes"] "Sent over PCIe (in bytes/s)."
        = series!(1.0; gpu_mig_gpm_pcie_bytes_per_second["tx"], gpu_gpm_pcie_bytes_per_second["tx"]);
    1010 Gauge Integer Board ["DCGM_FI_PROF_PCIE_RX_BYTES", "dcgm_fi_prof_pcie_rx_bytes"] "Received over PCIe (in bytes/s)."
        = series!(1.0; gpu_mig_gpm_pcie_bytes_per_second["rx"], gpu_gpm_pcie_bytes_per_second["rx"]);
    1011 Gauge Integer Board ["DCGM_FI_PROF_NVLINK_TX_BYTES"] "Sent over NVLink (in bytes/s)."
        = series!(1.0; gpu_mig_gpm_nvlink_bytes_per_second["tx"], gpu_gpm_nvlink_bytes_per_second["tx"]);
    1012 Gauge Integer Board ["DCGM_FI_PROF_NVLINK_RX_BYTES"] "Received over NVLink (in bytes/s)."
        = series!(1.0; gpu_mig_gpm_nvlink_bytes_per_second["rx"], gpu_gpm_nvlink_bytes_per_second["rx"]);
    1013 Gauge Double ComputeInstance ["DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE"] "Share of cycles with the integer tensor pipe active."
        = series!(1.0; gpu_gpm_active_ratio["tensor_imma"], gpu_mig_gpm_active_ratio["tensor_imma"]);
    1014 Gauge Double ComputeInstance ["DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE"] "Share of cycles with the half precision tensor pipe active."
        = series!(1.0; gpu_gpm_active_ratio["tensor_hmma"], gpu_mig_gpm_active_ratio["tensor_hmma"]);
    1015 Gauge Double ComputeInstance ["DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE"] "Share of cycles with the double precision tensor pipe active."
        = series!(1.0; gpu_gpm_active_ratio["tensor_dfma"], gpu_mig_gpm_active_ratio["tensor_dfma"]);
    1016 Gauge Double ComputeInstance ["DCGM_FI_PROF_PIPE_INT_ACTIVE"] "Share of cycles with the integer pipe active."
        = series!(1.0; gpu_gpm_active_ratio["integer"], gpu_mig_gpm_active_ratio["integer"]);
    1084 Counter Integer Board ["DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL"] "Cycles of the multiprocessors." = FieldSource::None(NO_CYCLES);
    1085 Counter Integer Board ["DCGM_FI_PROF_SM_CYCLES_ACTIVE_TOTAL"] "Active cycles of the multiprocessors." = FieldSource::None(NO_CYCLES);
    1086 Counter Integer Board ["DCGM_FI_PROF_MMA_CYCLES_ACTIVE_TOTAL"] "Active cycles of the tensor pipes." = FieldSource::None(NO_CYCLES);
    1087 Counter Integer Board ["DCGM_FI_PROF_DMMA_CYCLES_ACTIVE_TOTAL"] "Active cycles of the double precision tensor pipe." = FieldSource::None(NO_CYCLES);
    1088 Counter Integer Board ["DCGM_FI_PROF_HMMA_CYCLES_ACTIVE_TOTAL"] "Active cycles of the half precision tensor pipe." = FieldSource::None(NO_CYCLES);
    1089 Counter Integer Board ["DCGM_FI_PROF_IMMA_CYCLES_ACTIVE_TOTAL"] "Active cycles of the integer tensor pipe." = FieldSource::None(NO_CYCLES);
    1090 Counter Integer Board ["DCGM_FI_PROF_DFMA_CYCLES_ACTIVE_TOTAL"] "Active cycles of double precision multiply-adds." = FieldSource::None(NO_CYCLES);
    1091 Counter Integer Board ["DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL"] "Sent over PCIe (in bytes)."
        = series!(1.0; gpu_mig_gpm_pcie_bytes_total["tx"], gpu_gpm_pcie_bytes_total["tx"]);
    1092 Counter Integer Board ["DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL"] "Received over PCIe (in bytes)."
        = series!(1.0; gpu_mig_gpm_pcie_bytes_total["rx"], gpu_gpm_pcie_bytes_total["rx"]);
    1093 Counter Integer Board ["DCGM_FI_PROF_INT_CYCLES_ACTIVE_TOTAL"] "Active cycles of the integer pipe." = FieldSource::None(NO_CYCLES);
    1094 Counter Integer Board ["DCGM_FI_PROF_FP64_CYCLES_ACTIVE_TOTAL"] "Active cycles of the FP64 pipe." = FieldSource::None(NO_CYCLES);
    1095 Counter Integer Board ["DCGM_FI_PROF_FP32_CYCLES_ACTIVE_TOTAL"] "Active cycles of the FP32 pipe." = FieldSource::None(NO_CYCLES);
    1096 Counter Integer Board ["DCGM_FI_PROF_FP16_CYCLES_ACTIVE_TOTAL"] "Active cycles of the FP16 pipe." = FieldSource::None(NO_CYCLES);
    1204 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS"] "Malformed NVLink packets (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["malformed_packet"]);
    1205 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS"] "NVLink buffer overruns (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["buffer_overrun"]);
    1206 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS"] "NVLink packets received with errors (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["receive"]);
    1207 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_RX_REMOTE_ERRORS"] "NVLink packets received with errors of the other end (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["receive_remote"]);
    1208 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_RX_GENERAL_ERRORS"] "NVLink packets received with other errors (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["receive_general"]);
    1209 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS"] "Times the NVLink's local errors exceeded a threshold (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["local_link_integrity"]);
    1210 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_TX_DISCARDS"] "NVLink packets discarded before sending (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["transmit_discard"]);
    1211 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", "DCGM_FI_DEV_NVLINK_RECOVERY_SUCCESSFUL_TOTAL"] "NVLink recoveries that succeeded (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["link_recovery_successful"]);
    1212 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "DCGM_FI_DEV_NVLINK_RECOVERY_FAILED_TOTAL"] "NVLink recoveries that failed (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["link_recovery_failed"]);
    1213 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", "DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL"] "NVLink recoveries (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["link_recovery"]);
    1214 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS"] "Wrong NVLink symbols (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["symbol"]);
    1219 Counter Integer Board ["DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS"] "NVLink errors that error correction left (Blackwell)."
        = series!(1.0; gpu_nvlink_errors_total["effective"]);
    1420 Counter Integer Board ["DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS"] "Time held down by the power limit (in ns)."
        = series!(NANOSECONDS; gpu_clock_event_seconds_total["sw_power_cap"]);
    1421 Counter Integer Board ["DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS"] "Time held down by sync boost (in ns)."
        = series!(NANOSECONDS; gpu_clock_event_seconds_total["sync_boost"]);
    1422 Counter Integer Board ["DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS"] "Time held down by software for heat (in ns)."
        = series!(NANOSECONDS; gpu_clock_event_seconds_total["sw_thermal_slowdown"]);
    1423 Counter Integer Board ["DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"] "Time held down by hardware for heat (in ns)."
        = series!(NANOSECONDS; gpu_clock_event_seconds_total["hw_thermal_slowdown"]);
    1424 Counter Integer Board ["DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS"] "Time held down by the power brake (in ns)."
        = series!(NANOSECONDS; gpu_clock_event_seconds_total["hw_power_brake_slowdown"]);
    1600 Gauge Integer Board ["DCGM_FI_DEV_BAR1_CAPACITY_BYTES"] "BAR1 aperture (in bytes)."
        = series!(1.0; gpu_bar1_memory_total_bytes);
    1601 Gauge Integer Board ["DCGM_FI_DEV_BAR1_USED_BYTES"] "BAR1 aperture in use (in bytes)."
        = series!(1.0; gpu_bar1_memory_used_bytes);
    1602 Gauge Integer Board ["DCGM_FI_DEV_BAR1_FREE_BYTES"] "Free BAR1 aperture (in bytes)."
        = series!(1.0; gpu_bar1_memory_free_bytes);
    1603 Gauge Integer Board ["DCGM_FI_DEV_SM_CLOCK_HERTZ"] "SM clock (in Hz)."
        = series!(1.0; gpu_clock_hertz["sm"]);
    1604 Gauge Integer Board ["DCGM_FI_DEV_MEMORY_CLOCK_HERTZ"] "Memory clock (in Hz)."
        = series!(1.0; gpu_clock_hertz["memory"]);
    1605 Gauge Integer Board ["DCGM_FI_DEV_VIDEO_CLOCK_HERTZ"] "Video clock (in Hz)."
        = series!(1.0; gpu_clock_hertz["video"]);
    1608 Gauge Integer Board ["DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ"] "Highest SM clock (in Hz)."
        = series!(1.0; gpu_clock_max_hertz["sm"]);
    1609 Gauge Integer Board ["DCGM_FI_DEV_MEMORY_MAX_CLOCK_HERTZ"] "Highest memory clock (in Hz)."
        = series!(1.0; gpu_clock_max_hertz["memory"]);
    1610 Gauge Integer Board ["DCGM_FI_DEV_VIDEO_MAX_CLOCK_HERTZ"] "Highest video clock (in Hz)."
        = series!(1.0; gpu_clock_max_hertz["video"]);
    1611 Counter Integer Board ["DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"] "Energy since the driver was loaded (in J)."
        = series!(1.0; gpu_energy_joules_total);
    1612 Gauge Double Board ["DCGM_FI_DEV_FAN_SPEED_RATIO"] "Fan speed (0 to 1, or more)." = FieldSource::None(NO_FANS);
    1613 Gauge Double Board ["DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL_RATIO_V2"] "Utilization of the GPU (0 to 1)."
        = series!(1.0; gpu_utilization_ratio);
    1614 Gauge Double Board ["DCGM_FI_DEV_MEMORY_UTIL_RATIO"] "Utilization of the memory interface (0 to 1)."
        = series!(1.0; gpu_memory_utilization_ratio);
    1615 Gauge Double Board ["DCGM_FI_DEV_ENC_UTIL_RATIO"] "Utilization of the encoder (0 to 1)."
        = series!(1.0; gpu_encoder_utilization_ratio);
    1616 Gauge Double Board ["DCGM_FI_DEV_DEC_UTIL_RATIO"] "Utilization of the decoder (0 to 1)."
        = series!(1.0; gpu_decoder_utilization_ratio);
    1617 Counter Double Board ["DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL"] "Time held down by the power limit (in s)."
        = series!(1.0; gpu_clock_event_seconds_total["sw_power_cap"]);
    1618 Counter Double Board ["DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL"] "Time held down by heat (in s)."
        = series!(1.0; gpu_thermal_violation_seconds_total);
    1619 Counter Double Board ["DCGM_FI_DEV_GPU_SYNC_BOOST_THROTTLE_SECONDS_TOTAL"] "Time held down by sync boost (in s)."
        = series!(1.0; gpu_clock_event_seconds_total["sync_boost"]);
    1620 Counter Double Board ["DCGM_FI_DEV_GPU_LIMIT_THROTTLE_SECONDS_TOTAL"] "Time held down by the board limit (in s)."
        = series!(1.0; gpu_violation_seconds_total["board_limit"]);
    1621 Counter Double Board ["DCGM_FI_DEV_GPU_LOW_UTIL_THROTTLE_SECONDS_TOTAL"] "Time held down by low utilization (in s)."
        = series!(1.0; gpu_violation_seconds_total["low_utilization"]);
    1622 Counter Double Board ["DCGM_FI_DEV_GPU_RELIABILITY_THROTTLE_SECONDS_TOTAL"] "Time held down for reliability (in s)."
        = series!(1.0; gpu_violation_seconds_total["reliability"]);
    1623 Counter Double Board ["DCGM_FI_DEV_GPU_APP_THROTTLE_SECONDS_TOTAL"] "Time below the application clocks (in s)." = FieldSource::None(NO_SUMS);
    1624 Counter Double Board ["DCGM_FI_DEV_GPU_BASE_THROTTLE_SECONDS_TOTAL"] "Time below the base clocks (in s)." = FieldSource::None(NO_SUMS);
    1625 Gauge Integer ComputeInstance ["DCGM_FI_DEV_FB_CAPACITY_BYTES"] "Device memory (in bytes)."
        = series!(1.0; gpu_memory_total_bytes, gpu_mig_memory_total_bytes);
    1626 Gauge Integer ComputeInstance ["DCGM_FI_DEV_FB_FREE_BYTES"] "Free device memory (in bytes)."
        = series!(1.0; gpu_memory_free_bytes, gpu_mig_memory_free_bytes);
    1627 Gauge Integer ComputeInstance ["DCGM_FI_DEV_FB_USED_BYTES"] "Used device memory (in bytes)."
        = series!(1.0; gpu_memory_used_bytes, gpu_mig_memory_used_bytes);
    1628 Gauge Integer ComputeInstance ["DCGM_FI_DEV_FB_RESERVED_BYTES"] "Reserved device memory (in bytes)."
        = series!(1.0; gpu_memory_reserved_bytes, gpu_mig_memory_reserved_bytes);
    1648 Gauge Integer Board ["DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"] "Rate of all NVLinks, both directions (in bytes/s)."
        = sum!(1.0; gpu_nvlink_bytes_per_second["tx"], gpu_nvlink_bytes_per_second["rx"]);
    9001 Gauge Integer Board ["DCGM_EXP_XID_ERRORS_COUNT"] "Xids in the last window, by code."
        = FieldSource::Own(Own::XidErrorsCount);
    9002 Gauge Integer Board ["DCGM_EXP_CLOCK_EVENTS_COUNT"] "Readings of the clock events in the last window, by event."
        = FieldSource::Own(Own::ClockEventsCount);
    9003 Gauge Integer Whole ["DCGM_EXP_GPU_HEALTH_STATUS"] "Health by watch: 0 healthy, 10 a warning, 20 a failure."
        = FieldSource::Own(Own::GpuHealthStatus);
    9004 Gauge Integer Whole ["DCGM_EXP_P2P_STATUS"] "State of the NVLink path to each other GPU; 0 is OK."
        = FieldSource::Own(Own::P2pStatus);
    9005 Counter Integer Board ["DCGM_EXP_XID_ERRORS_TOTAL"] "Xids since the exporter started, by code."
        = FieldSource::Own(Own::XidErrorsTotal);
    9006 Counter Integer Board ["DCGM_EXP_CLOCK_EVENTS_TOTAL"] "Beginnings of clock events since the exporter started, by event."
        = FieldSource::Own(Own::ClockEventsTotal);
}

//! The request for a run, which is the only message on the control pipe, and the GPU or MIG device that the run uses.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use model::catalog::CanaryCheck;

/// Request for one run. When the control pipe closes, the process stops after the current kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRequest {
    /// UUID of the GPU or MIG device in CUDA's form, `GPU-...` or `MIG-...`.
    pub device: String,
    /// PCI address of the GPU in NVML's form. NVML's handle is opened by this address, so that no other GPU is
    /// accessed.
    pub pci_address: String,
    /// GPU and compute instance, if the device is a MIG device.
    pub instance: Option<(u32, u32)>,
    /// UUID of a second GPU, for [`CanaryCheck::P2p`].
    pub peer: Option<String>,
    /// Path of the NVML library; empty for the loader's own search.
    pub nvml_library: PathBuf,
    /// Path of the CUDA driver library; empty for the loader's own search. The process refuses any other file.
    pub cuda_library: PathBuf,
    /// Checks to run, in this order. Every run begins with [`CanaryCheck::Init`].
    pub checks: Vec<CanaryCheck>,
    /// Maximum device memory to use in addition to the context, in bytes.
    pub memory_bytes: u64,
    /// Lock files of the GPUs. The process keeps the locks until it exits.
    pub locks: Vec<PathBuf>,
    /// Seed from which all inputs are derived.
    pub seed: u64,
    /// Stop as soon as another process uses the device. It is false for a run that an operator forced. In that case,
    /// another process invalidates the samples.
    pub yields: bool,
}

/// The device and its configuration. A baseline applies to one configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// Name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability as major and minor number.
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors that CUDA reports; on a MIG device, its own.
    pub multiprocessors: u32,
    /// FP32 FMA operations that one multiprocessor can do in a cycle, by compute capability.
    pub fp32_lanes: u32,
    /// Dense half-precision FMA operations that the tensor cores of one multiprocessor can do in a cycle with the
    /// instruction that the kernel uses; 0 if unknown.
    pub tensor_fma: u32,
    /// Size of the L2 cache in bytes.
    pub l2_bytes: u64,
    /// Size of the device memory in bytes.
    pub memory_bytes: u64,
    /// Bytes of device memory that the checks use. Rates depend on it.
    pub used_bytes: u64,
    /// Width of the memory bus in bytes per transfer; 0 if the driver does not report it.
    pub bus_width_bytes: u32,
    /// Highest SM clock in Hz; 0 if the driver does not report it.
    pub max_sm_clock_hertz: f64,
    /// Highest memory clock in Hz; 0 if the driver does not report it.
    pub max_memory_clock_hertz: f64,
    /// Newest PCIe generation that both GPU and slot support; 0 if the driver does not report it.
    pub max_link_generation: u32,
    /// Maximum number of lanes that both GPU and slot support; 0 if the driver does not report it.
    pub max_link_width: u32,
    /// CUDA version of the driver, such as 13000.
    pub cuda_version: u32,
    pub driver_version: String,
    pub vbios_version: String,
    /// Enforced power limit in milliwatts; 0 if the driver does not report it.
    pub power_limit_milliwatts: u64,
    /// Default power limit in milliwatts; 0 if the driver does not report it.
    pub default_power_limit_milliwatts: u64,
    /// True if ECC is on.
    pub ecc: Option<bool>,
    /// Name of the loaded machine code, such as `sm_90a`.
    pub code: String,
    /// Checksum of the loaded code. Another kernel requires another baseline.
    pub code_checksum: u32,
}

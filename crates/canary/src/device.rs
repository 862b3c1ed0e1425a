//! The request for a run, which is the only message on the control pipe, and the GPU or MIG device that the run finds.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use model::catalog::CanaryCheck;

/// What to do. When the control pipe closes, the process stops after the kernel that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRequest {
    /// UUID of the GPU or MIG device, as CUDA takes it: `GPU-...` or `MIG-...`.
    pub device: String,
    /// PCI address of the GPU, as NVML gives it: the handle is taken by it, so that no other GPU is touched.
    pub pci_address: String,
    /// GPU and compute instance, if the device is a MIG device.
    pub instance: Option<(u32, u32)>,
    /// UUID of a second GPU, for [`CanaryCheck::P2p`].
    pub peer: Option<String>,
    /// The NVML library; empty for the loader's own search.
    pub nvml_library: PathBuf,
    /// The CUDA driver library; empty for the loader's own search. Another file than this is refused.
    pub cuda_library: PathBuf,
    /// What to check, in this order. [`CanaryCheck::Init`] is what every run begins with.
    pub checks: Vec<CanaryCheck>,
    /// Device memory to use at most beside the context, in bytes.
    pub memory_bytes: u64,
    /// Lock files of the GPUs: the process holds them to its end.
    pub locks: Vec<PathBuf>,
    /// From which all inputs follow.
    pub seed: u64,
    /// Stop as soon as another process is on the device. Not for a run that an operator asked for by force: there
    /// a process that is seen makes samples worthless.
    pub yields: bool,
}

/// The device and its configuration: a baseline holds for one of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// Name, as `NVIDIA H200`.
    pub name: String,
    /// Compute capability: major and minor.
    pub compute_capability: (u32, u32),
    /// Multiprocessors CUDA sees; of a MIG device, its own.
    pub multiprocessors: u32,
    /// FP32 FMA that one multiprocessor can do in a cycle; by compute capability.
    pub fp32_lanes: u32,
    /// Dense half-precision FMA of the tensor cores of one multiprocessor in a cycle, with the instruction
    /// that the kernel uses; 0 if it is not known.
    pub tensor_fma: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Bytes of it that the checks use: rates depend on it.
    pub used_bytes: u64,
    /// Memory bus, bytes moved in one transfer; 0 if the driver does not report.
    pub bus_width_bytes: u32,
    /// Highest SM clock, Hz; 0 if the driver does not report.
    pub max_sm_clock_hertz: f64,
    /// Highest memory clock, Hz; 0 if the driver does not report.
    pub max_memory_clock_hertz: f64,
    /// Newest PCIe generation that GPU and slot can do together; 0 if the driver does not report.
    pub max_link_generation: u32,
    /// Most lanes that GPU and slot can do together; 0 if the driver does not report.
    pub max_link_width: u32,
    /// CUDA version of the driver, as 13000.
    pub cuda_version: u32,
    pub driver_version: String,
    pub vbios_version: String,
    /// Enforced power limit in force, milliwatts; 0 if the driver does not report.
    pub power_limit_milliwatts: u64,
    /// Its default, milliwatts; 0 if the driver does not report.
    pub default_power_limit_milliwatts: u64,
    /// Whether ECC is on.
    pub ecc: Option<bool>,
    /// Which machine code was loaded, as `sm_90a`.
    pub code: String,
    /// Checksum of that code: another kernel makes another baseline.
    pub code_checksum: u32,
}

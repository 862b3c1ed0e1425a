//! The parent's request to the canary's process: the only message on the control pipe.

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

//! What the parent orders of the canary's process, and what that process reports, as lines of JSON: one
//! order down the control pipe, reports up the frames pipe. A report before each step says where the process
//! is, so that a hang has a name.

use std::path::PathBuf;

use sampler::watch::Around;
use serde::{Deserialize, Serialize};

use model::catalog::{CanaryCheck, CanarySkip, CanaryStep};

/// Longest line either side accepts; a longer one is garbage.
pub const MAX_LINE: usize = 256 * 1024;

/// What to do. The first line on the control pipe; when the pipe closes, the process stops after the kernel
/// it is in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// [`model::catalog::fingerprint`] of the parent: another build is refused.
    pub fingerprint: u64,
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
    /// From which all inputs follow.
    pub seed: u64,
    /// Stop as soon as another process is on the device. Not for a run that an operator asked for by force: there
    /// whoever is seen makes samples worthless.
    pub yields: bool,
}

/// What the process reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// A step begins.
    Begin(CanaryStep),
    /// A step has ended well.
    End {
        /// Which.
        step: CanaryStep,
        /// How long it took, wall time.
        seconds: f64,
    },
    /// Who the device is. After the context was made.
    Device(Box<Device>),
    /// What a check measured. Before its step's end.
    Measured(Box<Measured>),
    /// The driver's error in a step. Nothing more is asked of the driver; only `Done` follows.
    Fault {
        /// In which step.
        step: CanaryStep,
        /// CUresult.
        code: u32,
        /// Its name, as `CUDA_ERROR_LAUNCH_FAILED`.
        name: String,
        /// The driver function.
        call: String,
    },
    /// The run cannot be made here, for no fault of the GPU. Only `Destroy` and `Done` follow.
    Unable {
        /// Why.
        reason: CanarySkip,
        /// The same in words, with what was found and what would help.
        text: String,
    },
    /// Stopped between two kernels because somebody else came, or because it was asked to. What follows is as
    /// after `Unable`.
    Abandoned {
        /// In words.
        text: String,
        /// Process ids of those who came.
        pids: Vec<u32>,
    },
    /// Everything has been given back; the process ends.
    Done {
        /// Time in which kernels or copies ran, seconds.
        gpu_seconds: f64,
    },
}

/// The device and its configuration: a baseline holds for one of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
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
    /// Memory bus, bytes moved in one transfer; 0 if the driver does not tell.
    pub bus_width_bytes: u32,
    /// Highest SM clock, Hz; 0 if the driver does not tell.
    pub max_sm_clock_hertz: f64,
    /// Highest memory clock, Hz; 0 if the driver does not tell.
    pub max_memory_clock_hertz: f64,
    /// Newest PCIe generation that GPU and slot can do together; 0 if the driver does not tell.
    pub max_link_generation: u32,
    /// Most lanes that GPU and slot can do together; 0 if the driver does not tell.
    pub max_link_width: u32,
    /// CUDA version of the driver, as 13000.
    pub cuda_version: u32,
    /// Driver version.
    pub driver_version: String,
    /// VBIOS version.
    pub vbios_version: String,
    /// Enforced power limit in force, milliwatts; 0 if the driver does not tell.
    pub power_limit_milliwatts: u64,
    /// Its default, milliwatts; 0 if the driver does not tell.
    pub default_power_limit_milliwatts: u64,
    /// Whether ECC is on.
    pub ecc: Option<bool>,
    /// Which machine code was loaded, as `sm_90a`.
    pub code: String,
    /// Checksum of that code: another kernel makes another baseline.
    pub code_checksum: u32,
}

/// What a check measured, and what NVML told around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Which.
    pub check: CanaryCheck,
    /// Time in which its kernels or copies ran, seconds.
    pub gpu_seconds: f64,
    /// The same with what passed while the GPU was somebody else's, seconds.
    pub wall_seconds: f64,
    /// What it found.
    pub found: Found,
    /// Wrong results: how many, and the first of them.
    pub mismatches: Mismatches,
    /// What NVML told before, during and after.
    pub around: Around,
}

/// What a check found, by check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// `sm_rate`, `tensor`: every multiprocessor.
    Sms(Vec<Sm>),
    /// `sm_sdc`: the multiprocessors that ran it.
    Covered(Vec<u32>),
    /// `hbm_read`, `l2`: bytes read, and how long each pass over them took, seconds.
    Read {
        /// Bytes of one pass.
        bytes: u64,
        /// Time of each pass (or launch of several, divided).
        seconds: Vec<f64>,
        /// SM clock while it ran, Hz: L2 scales with it.
        sm_clock_hertz: f64,
    },
    /// `hbm_walk`: bytes walked.
    Walked {
        /// Bytes.
        bytes: u64,
        /// Patterns written and read back.
        patterns: u32,
    },
    /// `pcie`: bytes of one copy, and times.
    Copied {
        /// Bytes.
        bytes: u64,
        /// Time of each copy to the GPU, seconds.
        to_gpu: Vec<f64>,
        /// Time of each copy to the host, seconds.
        to_host: Vec<f64>,
        /// Time of a copy of four bytes, median, seconds.
        latency: f64,
        /// PCIe generation while copying; 0 if the driver does not tell.
        link_generation: u32,
        /// PCIe lanes while copying; 0 if the driver does not tell.
        link_width: u32,
        /// NUMA node the pinned buffer was asked from; `None` if the host does not tell the GPU's.
        numa_node: Option<u32>,
    },
    /// `launch`: time from an empty launch to its end seen, of each, seconds, sorted.
    Launched(Vec<f64>),
    /// `overlap`: wall time of each way, seconds.
    Overlapped(Overlap),
    /// `transform`.
    Transformed(Transform),
    /// `p2p`: bytes of one copy, time of each, and whether it went over NVLink.
    Peer {
        /// UUID of the other GPU.
        peer: String,
        /// Bytes.
        bytes: u64,
        /// Time of each copy, seconds.
        seconds: Vec<f64>,
        /// Whether the GPUs can reach each other's memory.
        access: bool,
    },
}

/// One multiprocessor in a rate check.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sm {
    /// `%smid`.
    pub smid: u32,
    /// FMA a cycle.
    pub work_per_cycle: f64,
    /// Cycles over time, Hz.
    pub clock_hertz: f64,
}

/// `overlap`: wall times of the same work done in several ways, seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Batches.
    pub batches: u32,
    /// Bytes of one batch, each way.
    pub bytes: u64,
    /// One copy in, one kernel, one copy out, each alone.
    pub stages: [f64; 3],
    /// All batches in one stream.
    pub serial: f64,
    /// Streams by turns, a batch each.
    pub rotating: f64,
    /// A stream for copies in, one for kernels, one for copies out.
    pub separate: f64,
    /// Two independent kernels one after the other, and at once.
    pub kernels: [f64; 2],
}

/// `transform`: `sqrt(x) * sin(x) / log(x + 1)` on the CPU and on the GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transform {
    /// Elements.
    pub count: u64,
    /// Copy to the GPU, seconds.
    pub copy_in: f64,
    /// The kernel, seconds.
    pub kernel: f64,
    /// Copy to the host, seconds.
    pub copy_out: f64,
    /// One thread of the CPU, seconds.
    pub cpu: f64,
    /// Largest difference from the CPU's result in double precision.
    pub max_absolute_error: f64,
    /// Largest difference relative to it.
    pub max_relative_error: f64,
}

/// Wrong results of a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mismatches {
    /// Results compared.
    pub compared: u64,
    /// Wrong in the first try.
    pub wrong: u64,
    /// Of these, with all bits 0.
    pub zeroed: u64,
    /// The first of them.
    pub first: Vec<Mismatch>,
    /// Tries made again because something was wrong, and how many of them were wrong too.
    pub reruns: u32,
    /// See `reruns`.
    pub wrong_reruns: u32,
}

/// One wrong result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The multiprocessor, where one computed it.
    pub smid: Option<u32>,
    /// Unit of it, as `fp32`; of copies the direction; of memory the pattern.
    pub unit: String,
    /// Warp and lane within the block.
    pub warp_lane: Option<(u32, u32)>,
    /// Offset within the buffer, bytes.
    pub offset: Option<u64>,
    /// What it should have been.
    pub expected: u64,
    /// What it was.
    pub got: u64,
}

/// All that was reported of one run, and how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// When it began, in seconds since 1970.
    pub began: f64,
    /// When it ended or was given up, likewise.
    pub ended: f64,
    /// Steps that ended well, with their wall time in seconds.
    pub steps: Vec<(CanaryStep, f64)>,
    /// The device, if it came so far.
    pub device: Option<Device>,
    /// What was measured.
    pub measured: Vec<Measured>,
    /// Time in which kernels or copies ran, seconds; if the process did not tell, the sum over the checks.
    pub gpu_seconds: f64,
    /// How it ended.
    pub end: End,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// All was done.
    Finished,
    /// Stopped between two kernels.
    Abandoned {
        /// Why, in words.
        text: String,
        /// Other processes that came.
        pids: Vec<u32>,
    },
    /// The driver failed.
    Fault {
        /// In which step.
        step: CanaryStep,
        /// CUresult.
        code: u32,
        /// Its name.
        name: String,
        /// The driver function.
        call: String,
    },
    /// It cannot be made here, for no fault of the GPU.
    Unable {
        /// Why.
        reason: CanarySkip,
        /// In words.
        text: String,
    },
    /// No progress in time. The process may still live.
    Hung {
        /// In which step.
        step: CanaryStep,
        /// The driver function it is in, if it is in one.
        call: Option<String>,
        /// For how long, seconds.
        seconds: f64,
    },
    /// The process broke its word: it ended too early, or what came on its pipe was no report.
    Broken {
        /// In words.
        text: String,
    },
}

//! Declaration of every entity that a metric can describe.

use std::sync::Arc;

use super::schema::{self, entities};

entities! {
    /// The node that runs the exporter.
    Node {}
    /// A whole GPU, also in MIG mode.
    Gpu {
        /// NVML index, for people; it can change after a reboot.
        gpu: u32,
        /// NVML UUID, which identifies the GPU.
        uuid: Arc<str>
    }
    /// A MIG GPU instance, with its own memory and bandwidth.
    GpuInstance {
        /// NVML index of the GPU.
        gpu: u32,
        /// UUID of the GPU (`gpu_mig_info` has the UUID of the MIG device as `mig_uuid`).
        uuid: Arc<str>,
        /// NVML id of the GPU instance.
        gpu_instance: u32,
        /// Profile of the GPU instance, such as `3g.71gb`.
        profile: Arc<str>
    }
    /// A MIG compute instance: the part of a GPU instance that a process uses as its device.
    ComputeInstance {
        /// NVML index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML id of the GPU instance.
        gpu_instance: u32,
        /// Profile of the GPU instance.
        profile: Arc<str>,
        /// NVML id of the compute instance.
        compute_instance: u32
    }
    /// An NVLink of a GPU.
    Link {
        /// NVML index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML number of the link.
        link: u32
    }
    /// A process on a GPU; only with `processes.per_process`.
    Process {
        /// NVML index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// Process id in the PID namespace of the host.
        pid: u32
    }
    /// The CPUs of one NUMA node that share a last-level cache. Sum over `l3` for a NUMA node, or over `numa_node` for
    /// a cache.
    CpuGroup {
        /// Number of the NUMA node in the kernel.
        numa_node: Arc<str>,
        /// Number of the last-level cache, in the order of the first CPU of each cache.
        l3: Arc<str>
    }
    /// An owner of GPU work on this node.
    Owner {
        /// Name of the owner; `gpu_owner_info` has its parts.
        owner: Arc<str>
    }
    /// An owner's share of a GPU or MIG GPU instance.
    OwnedGpu {
        /// NVML index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML id of the GPU instance; empty for a whole GPU.
        gpu_instance: Arc<str>,
        /// Name of the owner; `gpu_owner_info` has its parts.
        owner: Arc<str>
    }
    /// A GPU or MIG GPU instance that is allocated to a pod or a Slurm job.
    AllocatedGpu {
        /// NVML index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML id of the GPU instance; empty for a whole GPU.
        gpu_instance: Arc<str>
    }
    /// A window of planned work.
    Window {
        /// Name of the window.
        window: Arc<str>
    }
    /// A virtual GPU on a virtualization host.
    Vgpu {
        /// NVML index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// UUID of the virtual GPU.
        vgpu_uuid: Arc<str>
    }
}

impl GpuInstance {
    /// Returns the GPU that contains the instance.
    pub fn parent(&self) -> Gpu {
        Gpu { gpu: self.gpu, uuid: self.uuid.clone() }
    }
}

impl OwnedGpu {
    /// Creates the entity for an owner's share of a GPU, or of one of its GPU instances.
    pub fn new(gpu: &Gpu, gpu_instance: Option<u32>, owner: &Arc<str>) -> OwnedGpu {
        OwnedGpu {
            gpu: gpu.gpu,
            uuid: Arc::clone(&gpu.uuid),
            gpu_instance: gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
            owner: Arc::clone(owner),
        }
    }
}

impl AllocatedGpu {
    /// Creates the entity for a GPU, or for one of its GPU instances.
    pub fn new(gpu: &Gpu, gpu_instance: Option<u32>) -> AllocatedGpu {
        AllocatedGpu {
            gpu: gpu.gpu,
            uuid: Arc::clone(&gpu.uuid),
            gpu_instance: gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
        }
    }
}

impl Subject {
    /// Returns the index and UUID of the GPU that this entity is, or belongs to.
    pub fn gpu(&self) -> Option<(u32, &Arc<str>)> {
        match self {
            Subject::Node(_) | Subject::CpuGroup(_) | Subject::Owner(_) | Subject::Window(_) => None,
            Subject::Gpu(g) => Some((g.gpu, &g.uuid)),
            Subject::GpuInstance(g) => Some((g.gpu, &g.uuid)),
            Subject::ComputeInstance(g) => Some((g.gpu, &g.uuid)),
            Subject::OwnedGpu(o) => Some((o.gpu, &o.uuid)),
            Subject::AllocatedGpu(a) => Some((a.gpu, &a.uuid)),
            Subject::Link(l) => Some((l.gpu, &l.uuid)),
            Subject::Process(p) => Some((p.gpu, &p.uuid)),
            Subject::Vgpu(v) => Some((v.gpu, &v.uuid)),
        }
    }
}

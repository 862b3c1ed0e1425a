//! Every entity, declared once: what a metric can be about.

use std::sync::Arc;

use super::schema::{self, entities};

entities! {
    /// The node.
    Node {}
    /// A GPU: the whole board, also in MIG mode.
    Gpu {
        /// NVML's index, for people; it can change at a reboot.
        gpu: u32,
        /// NVML's UUID: the identity.
        uuid: Arc<str>
    }
    /// A MIG GPU instance, with memory and bandwidth of its own.
    GpuInstance {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU (the instance's own is `mig_uuid` on `gpu_mig_info`).
        uuid: Arc<str>,
        /// NVML's GPU instance id.
        gpu_instance: u32,
        /// Profile, as `3g.71gb`.
        profile: Arc<str>
    }
    /// A MIG compute instance: the share of a GPU instance that a process sees as its device.
    ComputeInstance {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's GPU instance id.
        gpu_instance: u32,
        /// Profile of the GPU instance.
        profile: Arc<str>,
        /// NVML's compute instance id.
        compute_instance: u32
    }
    /// An NVLink of a GPU.
    Link {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's number of the link.
        link: u32
    }
    /// A process on a GPU; only with `processes.per_process`.
    Process {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// Process id, as the host sees it.
        pid: u32
    }
    /// A group of CPUs: those of one NUMA node that share a last-level cache. The sum over either label is that of the NUMA node or of the cache.
    CpuGroup {
        /// The kernel's number of the NUMA node.
        numa_node: Arc<str>,
        /// Number of the last-level cache, counted in the order of the first CPU.
        l3: Arc<str>
    }
    /// An owner of GPU work on this node.
    Owner {
        /// Name of the owner; `gpu_owner_info` has its parts.
        owner: Arc<str>
    }
    /// An owner's share of a GPU or MIG GPU instance.
    OwnedGpu {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's GPU instance id; empty on a whole GPU.
        gpu_instance: Arc<str>,
        /// Name of the owner; `gpu_owner_info` has its parts.
        owner: Arc<str>
    }
    /// A GPU or MIG GPU instance that a pod or a Slurm job was given.
    AllocatedGpu {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's GPU instance id; empty on a whole GPU.
        gpu_instance: Arc<str>
    }
    /// A window of planned work.
    Window {
        /// Name of the window.
        window: Arc<str>
    }
    /// A virtual GPU on a virtualization host.
    Vgpu {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// UUID of the virtual GPU.
        vgpu_uuid: Arc<str>
    }
}

impl GpuInstance {
    /// The GPU of the instance.
    pub fn parent(&self) -> Gpu {
        Gpu { gpu: self.gpu, uuid: self.uuid.clone() }
    }
}

impl OwnedGpu {
    /// What an owner has of a GPU, or of one of its GPU instances.
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
    /// A GPU, or one of its GPU instances.
    pub fn new(gpu: &Gpu, gpu_instance: Option<u32>) -> AllocatedGpu {
        AllocatedGpu {
            gpu: gpu.gpu,
            uuid: Arc::clone(&gpu.uuid),
            gpu_instance: gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
        }
    }
}

impl Subject {
    /// The GPU this is, or is a part of.
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

//! Facts about a GPU for the figures of its owners.

use std::sync::Arc;

use super::remote::NearCpus;
use crate::intake::LedgerMoment;
use crate::topology::TopologyState;
use model::catalog::{self as m, Gpu};
use model::cpus::CpuSet;
use model::pci::link_rate;
use model::topology::Device;

/// Current facts about a GPU.
pub(crate) struct GpuFacts {
    pub gpu: Gpu,
    /// Whether the GPU answers. Its measurements are withdrawn while it does not.
    pub up: bool,
    /// Whether its processes are known.
    pub listed: bool,
    /// Total memory, in bytes.
    pub memory: Option<f64>,
    /// Number of compute slices in MIG mode.
    pub slices: Option<f64>,
    /// Compute slices by GPU instance.
    pub instances: Vec<(u32, f64)>,
    /// Highest recent rate of the PCIe link, in bytes per second and direction.
    pub link: Option<f64>,
    /// Device in the topology.
    pub device: Option<Device>,
    /// CPUs near the GPU, and their last-level caches.
    pub near: Option<(CpuSet, Vec<CpuSet>)>,
    /// MIG profiles that the GPU supports.
    pub profiles: Vec<Arc<str>>,
}

impl GpuFacts {
    /// Returns the CPUs near the GPU, for an owner whose shares include the caches of the CPUs in `own`.
    pub fn near_cpus(&self, own: Option<CpuSet>) -> NearCpus {
        let (node, caches) = self.near.clone().unzip();
        let own = own.zip(node.as_ref()).map(|(own, node)| own.and(node));
        NearCpus { node, caches: caches.unwrap_or_default(), own }
    }

    /// Returns the share of the GPU that an instance has.
    pub fn share(&self, instance: u32) -> Option<f64> {
        let slices = self.instances.iter().find(|(id, _)| *id == instance)?.1;
        self.slices.filter(|all| *all >= slices && *all > 0.0).map(|all| slices / all)
    }
}

/// Collects the facts about a GPU at `moment`.
pub fn facts(moment: &LedgerMoment<'_>, topology: &TopologyState, gpu: &Gpu, up: bool) -> GpuFacts {
    let (intake, now) = (moment.intake, moment.now);
    let value = |metric| intake.value_of(gpu, metric, None, now);
    let generation = value(m::gpu_pcie_link_generation.id());
    let lanes = value(m::gpu_pcie_link_width_lanes.id());
    let address = intake.info_of(gpu, "pci_address").filter(|text| !text.is_empty());
    let device = address.and_then(|address| topology.gpu(&address).cloned());
    let (mut instances, mut profiles) = (Vec::new(), Vec::new());
    let fresh = intake.of_gpu(gpu).filter(|(_, stored)| !stored.expired(now));
    for (subject, rows) in fresh.flat_map(|(_, stored)| stored.rows.groups()) {
        match subject {
            m::Subject::GpuInstance(instance) => {
                let slices = instance.profile.split_once('g').and_then(|(n, _)| n.parse().ok());
                instances.extend(slices.map(|slices: f64| (instance.gpu_instance, slices)));
            }
            m::Subject::Gpu(_) => {
                let listed = rows.iter().filter(|r| r.metric == m::gpu_mig_profile_capacity.id());
                profiles.extend(listed.filter_map(|row| match row.labels.first() {
                    Some(m::schema::LabelText::Text(name)) => Some(Arc::clone(name)),
                    _ => None,
                }));
            }
            _ => {}
        }
    }
    GpuFacts {
        gpu: gpu.clone(),
        up,
        listed: up && intake.processes_of(gpu, now).is_some(),
        memory: value(m::gpu_memory_total_bytes.id()),
        slices: value(m::gpu_mig_slices.id()),
        instances,
        link: generation.zip(lanes).and_then(|(generation, lanes)| link_rate(generation, lanes)),
        near: device.as_ref().and_then(|device| topology.near(device)),
        device,
        profiles,
    }
}

//! Subjects of the page: every GPU, or its MIG instances if it has any.

use std::collections::BTreeMap;

use model::catalog::{self as m, EntityKind, Gpu, Subject};
use model::snapshot::Snapshot;

use crate::fields::{Level, kinds};

/// GPU, GPU instance or compute instance, as positions in [`Entities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageEntity {
    pub gpu: usize,
    pub instance: Option<usize>,
    /// NVML's id of the compute instance.
    pub compute: Option<u32>,
}

/// GPU with its instances.
#[derive(Debug)]
pub(crate) struct GpuEntity {
    pub gpu: Gpu,
    pub subject: Subject,
    pub instances: Vec<MigInstance>,
}

/// GPU instance with the ids of its compute instances.
#[derive(Debug)]
pub(crate) struct MigInstance {
    pub id: u32,
    pub profile: String,
    pub subject: Subject,
    pub computes: Vec<u32>,
}

/// All GPUs of the page, by index.
#[derive(Debug)]
pub(crate) struct Entities(pub Vec<GpuEntity>);

impl Entities {
    /// Collects the GPUs with a known UUID, and their instances.
    pub fn from_snapshot(snapshot: &Snapshot) -> Entities {
        let mut gpus: BTreeMap<&Gpu, BTreeMap<u32, MigInstance>> = BTreeMap::new();
        let identities =
            snapshot.series(&m::gpu_info).iter().filter_map(|series| match &series.subject.subject {
                Subject::Gpu(gpu) => Some(gpu),
                _ => None,
            });
        for gpu in identities.chain(snapshot.gpus.iter().map(|view| &view.gpu)) {
            if !gpu.uuid.is_empty() {
                gpus.entry(gpu).or_default();
            }
        }
        let known: [&[model::snapshot::Series]; 4] = [
            snapshot.series(&m::gpu_mig_memory_total_bytes),
            snapshot.series(&m::gpu_mig_multiprocessors),
            snapshot.series(&m::gpu_mig_placement_start),
            snapshot.series(&m::gpu_mig_info),
        ];
        for series in known.into_iter().flatten() {
            let (instance, compute) = match &series.subject.subject {
                Subject::GpuInstance(instance) => (instance.clone(), None),
                Subject::ComputeInstance(c) => {
                    let (gpu, uuid, gpu_instance) = (c.gpu, c.uuid.clone(), c.gpu_instance);
                    let instance = m::GpuInstance { gpu, uuid, gpu_instance, profile: c.profile.clone() };
                    (instance, Some(c.compute_instance))
                }
                _ => continue,
            };
            let parent = instance.parent();
            let Some(instances) = gpus.get_mut(&parent) else { continue };
            let known = instances.entry(instance.gpu_instance).or_insert_with(|| MigInstance {
                id: instance.gpu_instance,
                profile: instance.profile.to_string(),
                subject: Subject::GpuInstance(instance.clone()),
                computes: Vec::new(),
            });
            if let Some(compute) = compute.filter(|compute| !known.computes.contains(compute)) {
                known.computes.push(compute);
                known.computes.sort_unstable();
            }
        }
        let entity = |(gpu, instances): (&Gpu, BTreeMap<u32, MigInstance>)| GpuEntity {
            gpu: gpu.clone(),
            subject: Subject::Gpu(gpu.clone()),
            instances: instances.into_values().collect(),
        };
        Entities(gpus.into_iter().map(entity).collect())
    }

    /// Returns the entities that can have a value of this level, for all GPUs.
    pub fn at(&self, level: Level, corrected: bool) -> Vec<PageEntity> {
        let gpus = 0..self.0.len();
        gpus.flat_map(|gpu| self.of_gpu(gpu, level, corrected)).collect()
    }

    fn of_gpu(&self, gpu: usize, level: Level, corrected: bool) -> Vec<PageEntity> {
        let whole = PageEntity { gpu, instance: None, compute: None };
        let instances = &self.0[gpu].instances;
        if instances.is_empty() || level == Level::Whole {
            return vec![whole];
        }
        let of = |instance: usize| PageEntity { gpu, instance: Some(instance), compute: None };
        let each = (0..instances.len()).map(of);
        match level {
            Level::ComputeInstance if !corrected => each
                .flat_map(|entity| {
                    let computes = entity.instance.map(|at| instances[at].computes.as_slice()).unwrap_or(&[]);
                    computes.iter().map(move |compute| PageEntity { compute: Some(*compute), ..entity })
                })
                .collect(),
            // The instances have values of their own, or only the GPU has one. The values decide.
            Level::Board if corrected => std::iter::once(whole).chain(each).collect(),
            _ => each.collect(),
        }
    }

    /// Returns the subjects whose series count for this entity at this level, the most specific first.
    pub fn subjects(&self, entity: PageEntity, level: Level, corrected: bool) -> Vec<Subject> {
        let gpu = &self.0[entity.gpu];
        let instance = entity.instance.map(|at| &gpu.instances[at]);
        let subject = |kind: &EntityKind| match kind {
            EntityKind::Gpu => Some(gpu.subject.clone()),
            EntityKind::GpuInstance => instance.map(|instance| instance.subject.clone()),
            EntityKind::ComputeInstance => {
                let (instance, compute) = (instance?, entity.compute?);
                Some(Subject::ComputeInstance(m::ComputeInstance {
                    gpu: gpu.gpu.gpu,
                    uuid: gpu.gpu.uuid.clone(),
                    gpu_instance: instance.id,
                    profile: instance.profile.as_str().into(),
                    compute_instance: compute,
                }))
            }
            EntityKind::Node => Some(Subject::Node(m::Node {})),
            _ => None,
        };
        kinds(level, instance.is_some(), corrected).iter().filter_map(subject).collect()
    }
}

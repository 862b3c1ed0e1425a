//! Where runs can be made, by what is published: each GPU as a whole, or its MIG instances.

use std::collections::BTreeMap;

use model::canary::{Instance, Place};
use model::catalog::schema::LabelSet;
use model::catalog::{self as m, ComputeInstance, Gpu, MigInfo, Subject};
use model::snapshot::{GpuState, Snapshot};

/// Every GPU with the places on it; one in MIG mode without an instance has none. Of a GPU that does not answer
/// nothing is told now: what was known of it stays.
pub fn of(snapshot: &Snapshot, known: &BTreeMap<Gpu, Vec<Place>>) -> BTreeMap<Gpu, Vec<Place>> {
    let mut all: BTreeMap<Gpu, Vec<Place>> = BTreeMap::new();
    for view in snapshot.gpus.iter().filter(|view| !view.gpu.uuid.is_empty()) {
        let gpu = view.gpu.clone();
        let mig = snapshot.number(&m::gpu_mig_mode_enabled, &gpu, ()).map(|on| on > 0.0);
        let unsupported = view.gaps.iter().any(|gap| {
            gap.metrics.contains(&m::gpu_mig_mode_enabled.id())
                && gap.missing == model::sample::Missing::Unsupported
        });
        let places = match (view.state == GpuState::Up, mig) {
            (true, Some(true)) => instances(snapshot, &gpu),
            (true, Some(false)) => vec![Place { gpu: gpu.clone(), instance: None }],
            (true, None) if unsupported => vec![Place { gpu: gpu.clone(), instance: None }],
            _ => known.get(&gpu).cloned().unwrap_or_default(),
        };
        all.insert(gpu, places);
    }
    all
}

fn instances(snapshot: &Snapshot, gpu: &Gpu) -> Vec<Place> {
    let uuid_at = MigInfo::DEFS.iter().position(|def| def.name == "mig_uuid");
    let place = |instance: &ComputeInstance, uuid: &str| Place {
        gpu: gpu.clone(),
        instance: Some(Instance {
            gpu_instance: instance.gpu_instance,
            compute_instance: instance.compute_instance,
            profile: instance.profile.to_string(),
            mig_uuid: uuid.to_owned(),
        }),
    };
    let mut places: Vec<Place> = Vec::new();
    for series in snapshot.series(&m::gpu_mig_info) {
        let Subject::ComputeInstance(instance) = &series.subject.subject else { continue };
        let uuid = uuid_at.and_then(|at| Some(series.labels.get(at)?.text(&MigInfo::DEFS[at])));
        if instance.uuid == gpu.uuid && uuid.is_some_and(|uuid| !uuid.is_empty()) {
            places.push(place(instance, uuid.unwrap_or_default()));
        }
    }
    places.sort();
    places
}

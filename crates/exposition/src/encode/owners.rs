//! Owners of GPU work as JSON, served at `/api/v1/owners`.
//!
//! Field names stay; fields may be added. `null` stands for what is not known.
//!
//! ```text
//! taken_unix_seconds  when the list was made
//! dropped             owners that are not in it, because `owners.max_series` have series
//! owners[]            by GPU; those that ended lately too
//!   owner, kind       identity on this node; pod, container, slurm, unit, user or unknown
//!   namespace, pod, pod_uid, container, container_id, runtime, slurm_job, slurm_step, slurm_account, unit, user   empty where none applies
//!   cgroup            its control group; empty if none is its own
//!   gpu, uuid, gpu_instance       where it is; null: the whole GPU
//!   processes[]       ids of its processes there; none after its end
//!   memory_bytes, allocated_seconds, busy_seconds, energy_joules, cpu_remote_ratio, memory_remote_ratio
//!   bottleneck        what holds it back; null while that is not known
//!   bottleneck_text   the same in words
//! ```

use serde::Serialize;

use crate::words;
use model::catalog::schema::{KnownLabel, LabelSet, LabelText, Metric};
use model::catalog::{self as m, Node, OwnedGpu, OwnerInfo};
use model::snapshot::{OwnerView, Snapshot};

/// The list as a document.
pub fn document(snapshot: &Snapshot) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Document {
        taken_unix_seconds: f64,
        dropped: Option<f64>,
        owners: Vec<serde_json::Value>,
    }
    let owners: Result<Vec<_>, _> = snapshot.owners.iter().map(|view| listed(snapshot, view)).collect();
    let mut bytes = serde_json::to_vec(&Document {
        taken_unix_seconds: snapshot.unix_seconds,
        dropped: snapshot.number(&m::gpu_exporter_owners_dropped, &Node {}, ()),
        owners: owners?,
    })?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn listed(snapshot: &Snapshot, view: &OwnerView) -> Result<serde_json::Value, serde_json::Error> {
    #[derive(Serialize)]
    struct Listed<'a> {
        owner: &'a str,
        cgroup: &'a str,
        gpu: u32,
        uuid: &'a str,
        gpu_instance: Option<u32>,
        processes: &'a [u32],
        memory_bytes: Option<f64>,
        allocated_seconds: Option<f64>,
        busy_seconds: Option<f64>,
        energy_joules: Option<f64>,
        cpu_remote_ratio: Option<f64>,
        memory_remote_ratio: Option<f64>,
        bottleneck: Option<&'static str>,
        bottleneck_text: Option<&'static str>,
    }
    let entity = view.entity();
    let number = |metric: &Metric<OwnedGpu, ()>| snapshot.number(metric, &entity, ());
    let mut value = serde_json::to_value(Listed {
        owner: &view.owner.id,
        cgroup: &view.owner.cgroup,
        gpu: view.gpu.gpu,
        uuid: &view.gpu.uuid,
        gpu_instance: view.gpu_instance,
        processes: &view.processes,
        memory_bytes: number(&m::gpu_owner_memory_used_bytes),
        allocated_seconds: number(&m::gpu_owner_allocated_seconds_total),
        busy_seconds: number(&m::gpu_owner_busy_seconds_total),
        energy_joules: number(&m::gpu_owner_energy_joules_total),
        cpu_remote_ratio: number(&m::gpu_owner_cpu_remote_ratio),
        memory_remote_ratio: number(&m::gpu_owner_memory_remote_ratio),
        bottleneck: view.cause.map(|cause| cause.known()),
        bottleneck_text: view.cause.map(words::cause_text),
    })?;
    if let Some(fields) = value.as_object_mut() {
        for (def, text) in OwnerInfo::DEFS.iter().zip(view.owner.info.texts()) {
            if let LabelText::Text(text) = text {
                fields.insert(def.name.to_owned(), (*text).into());
            }
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use model::catalog::{Cause, Gpu, OwnerKind};
    use model::owners::Owner;

    #[test]
    fn an_owner_is_told_with_its_parts() {
        let mut snapshot = Snapshot::empty();
        let info = OwnerInfo { kind: "pod".into(), pod: "a\"\n".into(), ..OwnerInfo::default() };
        let owner = Owner { id: "pod/x".into(), kind: OwnerKind::Pod, info, cgroup: "/k".into() };
        snapshot.owners = vec![OwnerView {
            owner: Arc::new(owner),
            gpu: Gpu { gpu: 1, uuid: "u".into() },
            gpu_instance: None,
            processes: vec![5],
            cause: Some(Cause::PcieBound),
        }];
        let json: serde_json::Value = serde_json::from_slice(&document(&snapshot).unwrap()).unwrap();
        let one = &json["owners"][0];
        assert_eq!(
            (&one["owner"], &one["pod"], &one["kind"]),
            (&"pod/x".into(), &"a\"\n".into(), &"pod".into())
        );
        assert_eq!((&one["processes"][0], &one["bottleneck"]), (&5.into(), &"pcie_bound".into()));
        assert!(one["memory_bytes"].is_null() && one["gpu_instance"].is_null());
    }
}

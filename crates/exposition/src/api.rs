//! What `/api/v1` serves, as JSON.

pub mod events;
pub mod health;
pub mod snapshot;

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use model::catalog::schema::{LabelSet, Metric};
use model::catalog::{self as m, CpuTimeMode, Node, OwnedGpu, OwnerInfo, WindowKind};
use model::owners::cause_text;
use model::snapshot::{OwnerView, Snapshot};
use model::topology::divide::{self, CpuShare};
use model::topology::place::GpuPlacement;
use model::topology::{Topology, TopologyUpdate};
use model::window;

/// Appends the document and a newline.
pub fn append(document: &impl Serialize, out: &mut String) {
    let mut bytes = std::mem::take(out).into_bytes();
    // Neither step can fail: a vector takes everything, no key is anything but text, JSON is UTF-8.
    let written = serde_json::to_writer(&mut bytes, document);
    bytes.push(b'\n');
    match (written, String::from_utf8(bytes)) {
        (Ok(()), Ok(text)) => *out = text,
        (written, text) => tracing::error!(?written, utf8 = text.is_ok(), "JSON document is lost"),
    }
}

/// Owners of GPU work as JSON, served at `/api/v1/owners`.
///
/// ```text
/// taken_unix_seconds  when the list was made
/// dropped             owners above `owners.max_series` or the quota of their namespace or user: together `other`
/// owners[]            by GPU; those that ended lately too
///   owner, kind       identity on this node; pod, container, slurm, unit, user, unknown or other
///   namespace, pod, pod_uid, container, container_id, runtime, slurm_job, slurm_step, slurm_account, unit, user   empty where none applies
///   cgroup            its control group; empty if none is its own
///   gpu, uuid, gpu_instance       where it is; null: the whole GPU
///   processes[]       ids of its processes there; none after its end
///   start_unix_seconds            start of the first of its GPU processes on this node
///   cpu_user_seconds, cpu_system_seconds   CPU time on this node
///   memory_bytes, allocated_seconds, busy_seconds, energy_joules, cpu_remote_ratio,
///   cpu_remote_cache_ratio, memory_remote_ratio
///   bottleneck        what holds it back; null while that is not known
///   bottleneck_text   the same for people
/// ```
pub fn owners(snapshot: &Snapshot, out: &mut String) {
    #[derive(Serialize)]
    struct OwnersDocument {
        taken_unix_seconds: f64,
        dropped: Option<f64>,
        owners: Vec<serde_json::Value>,
    }
    let document = OwnersDocument {
        taken_unix_seconds: snapshot.unix_seconds,
        dropped: snapshot.number(&m::gpu_exporter_owners_dropped, &Node {}, ()),
        owners: snapshot.owners.iter().map(|view| owner(snapshot, view)).collect(),
    };
    append(&document, out);
}

fn owner(snapshot: &Snapshot, view: &OwnerView) -> serde_json::Value {
    let entity = OwnedGpu::new(&view.gpu, view.gpu_instance, &view.owner.id);
    let number = |metric: &Metric<OwnedGpu, ()>| snapshot.number(metric, &entity, ());
    let whole = m::Owner { owner: Arc::clone(&view.owner.id) };
    let cpu = |mode| snapshot.number(&m::gpu_owner_cpu_seconds_total, &whole, (mode,));
    let mut value = json!({
        "owner": view.owner.id,
        "cgroup": view.owner.cgroup,
        "gpu": view.gpu.gpu,
        "uuid": view.gpu.uuid,
        "gpu_instance": view.gpu_instance,
        "processes": view.processes,
        "start_unix_seconds": snapshot.number(&m::gpu_owner_start_timestamp_seconds, &whole, ()),
        "cpu_user_seconds": cpu(CpuTimeMode::User),
        "cpu_system_seconds": cpu(CpuTimeMode::System),
        "memory_bytes": number(&m::gpu_owner_memory_used_bytes),
        "allocated_seconds": number(&m::gpu_owner_allocated_seconds_total),
        "busy_seconds": number(&m::gpu_owner_busy_seconds_total),
        "energy_joules": number(&m::gpu_owner_energy_joules_total),
        "cpu_remote_ratio": number(&m::gpu_owner_cpu_remote_ratio),
        "cpu_remote_cache_ratio": number(&m::gpu_owner_cpu_remote_cache_ratio),
        "memory_remote_ratio": number(&m::gpu_owner_memory_remote_ratio),
        "bottleneck": view.cause,
        "bottleneck_text": view.cause.map(cause_text),
    });
    for (def, text) in OwnerInfo::DEFS.iter().zip(view.owner.info.texts()) {
        value[def.name] = text.text(def).into();
    }
    value
}

/// Windows of planned work as a JSON document, served at `/api/v1/windows`.
///
/// ```text
/// taken_unix_seconds  when the list was made
/// windows[]           name, kind (maintenance or training), reason, start and end (RFC 3339), start_unix_seconds,
///                     end_unix_seconds, state (open, coming or ended), cut (whether the file says longer than
///                     windows.max_duration), expected_gpus (GPUs that the node should have from then on; null: as
///                     many as before)
/// ```
///
/// Those that are open, to come, or ended within the last hour.
pub fn windows(snapshot: &Snapshot, out: &mut String) {
    #[derive(Serialize)]
    struct WindowsDocument<'a> {
        taken_unix_seconds: f64,
        windows: Vec<WindowEntry<'a>>,
    }
    #[derive(Serialize)]
    struct WindowEntry<'a> {
        name: &'a str,
        kind: WindowKind,
        reason: &'a str,
        start: String,
        end: String,
        start_unix_seconds: f64,
        end_unix_seconds: f64,
        state: &'static str,
        cut: bool,
        expected_gpus: Option<u32>,
    }
    let now = snapshot.unix_seconds;
    let windows = snapshot.windows.iter().map(|window| WindowEntry {
        name: &window.name,
        kind: window.kind,
        reason: &window.reason,
        start: window::write(window.start),
        end: window::write(window.end),
        start_unix_seconds: window.start,
        end_unix_seconds: window.end,
        state: match () {
            () if window.is_open(now) => "open",
            () if now < window.start => "coming",
            () => "ended",
        },
        cut: window.cut,
        expected_gpus: window.expected_gpus,
    });
    append(&WindowsDocument { taken_unix_seconds: now, windows: windows.collect() }, out);
}

/// The machine around the GPUs as one JSON document, served at `/api/v1/topology`.
///
/// ```text
/// topology             what was found: see `topology::model::Topology`; fit for `topology.expected_file`
/// gpus[]               gpu, uuid, place (where it sits), share (its fair share of CPUs and memory nodes)
/// against_first_seen[] what differs from the first look at this machine, as text; null: not compared
/// against_declared[]   what differs from the declared topology; null: none is declared
/// ```
///
/// `null` while nothing was found.
pub fn topology(snapshot: &Snapshot, out: &mut String) {
    #[derive(Serialize)]
    struct TopologyDocument<'a> {
        topology: &'a Topology,
        gpus: Vec<PlacedGpu<'a>>,
        against_first_seen: &'a Option<Vec<String>>,
        against_declared: &'a Option<Vec<String>>,
    }
    #[derive(Serialize)]
    struct PlacedGpu<'a> {
        #[serde(flatten)]
        gpu: &'a m::Gpu,
        place: &'a GpuPlacement,
        share: &'a CpuShare,
    }
    let Some(update) = &snapshot.topology else { return append(&(), out) };
    let TopologyUpdate { topology, against_first_seen, against_declared } = &**update;
    let places = divide::placed(topology);
    let gpus = snapshot.gpus.iter().filter_map(|view| {
        let device = topology.gpu(snapshot.info(&m::gpu_info, &view.gpu, "pci_address")?)?;
        let (place, share) = places.iter().find(|(place, _)| place.address == device.address)?;
        Some(PlacedGpu { gpu: &view.gpu, place, share })
    });
    let gpus = gpus.collect();
    append(&TopologyDocument { topology, gpus, against_first_seen, against_declared }, out);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use model::catalog::{Cause, Gpu, OwnerKind};
    use model::owners::Owner;

    #[test]
    fn an_owner_has_its_parts() {
        let mut snapshot = Snapshot::default();
        let info = OwnerInfo { kind: "pod".into(), pod: "a\"\n".into(), ..OwnerInfo::default() };
        let owner = Owner { id: "pod/x".into(), kind: OwnerKind::Pod, info, cgroup: "/k".into() };
        snapshot.owners = vec![OwnerView {
            owner: Arc::new(owner),
            gpu: Gpu { gpu: 1, uuid: "u".into() },
            gpu_instance: None,
            processes: vec![5],
            cause: Some(Cause::PcieBound),
            waits_since: None,
        }];
        let mut text = String::new();
        owners(&snapshot, &mut text);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let one = &json["owners"][0];
        assert_eq!(
            (&one["owner"], &one["pod"], &one["kind"]),
            (&"pod/x".into(), &"a\"\n".into(), &"pod".into())
        );
        assert_eq!((&one["processes"][0], &one["bottleneck"]), (&5.into(), &"pcie_bound".into()));
        assert!(one["memory_bytes"].is_null() && one["gpu_instance"].is_null());
    }
}

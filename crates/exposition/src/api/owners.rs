//! Owners of GPU work as JSON, served at `/api/v1/owners`.
//!
//! ```text
//! taken_unix_seconds  time at which the list was created
//! dropped             number of owners beyond `owners.max_series` or the quota of their namespace or user, which are
//!                     reported together as `other`
//! owners[]            by GPU; includes owners that ended recently
//!   owner, kind       identity on this node; pod, container, slurm, unit, user, unknown or other
//!   namespace, pod, pod_uid, container, container_id, runtime, slurm_job, slurm_step, slurm_account, unit, user   empty if not applicable
//!   cgroup            its control group; empty if it has none of its own
//!   gpu, uuid, gpu_instance       its GPU and MIG GPU instance; null: the whole GPU
//!   processes[]       ids of its processes on the GPU; empty after its end
//!   start_unix_seconds            start of the first of its GPU processes on this node
//!   cpu_user_seconds, cpu_system_seconds   CPU time on this node
//!   memory_bytes, allocated_seconds, busy_seconds, energy_joules, cpu_remote_ratio,
//!   cpu_remote_cache_ratio, memory_remote_ratio
//!   class_seconds       allocated_seconds by class
//!   step_seconds, step_slowdown_ratio, steps   duration, slowdown and number of its steps; null if no step was detected
//!   slow_rank_ratio     difference between the wait ratios of the owner's other GPUs and this GPU; null: this GPU is
//!                       not the slow rank
//!   missing_rank        true if its peers wait for it; null: the owner's GPUs are not wedged
//!   last_progress_unix_seconds    time of its last progress, while it is wedged or stalled
//!   bottleneck        its bottleneck; null while unknown
//!   bottleneck_text   the bottleneck as text
//! pending             number of owners with work, or that have ended and have no record yet
//! ended[]             one record per owner that ended within the last days, newest first
//!   owner, kind, namespace, and the other parts of its identity, as above
//!   start_unix_seconds            start of the first of its GPU processes
//!   since_unix_seconds            time from which it was counted
//!   end_unix_seconds              time at which it was last on a GPU
//!   partial           true: it was, or may have been, on a GPU during a time that is not counted
//!   complete          true: the record no longer changes
//!   allocated_seconds allocated GPU time
//!   class_seconds     allocated_seconds by class; classes without time are omitted
//!   busy_seconds, energy_joules   null: not measured
//!   steps             maximum number of steps on any of its GPUs; null: no step was detected
//!   ended_at_full_memory          number of times that it ended on a GPU or MIG instance whose memory was full
//!   host_oom_kills    number of its processes that the host's OOM killer killed; null: unknown
//!   faults[]          kind, code and count of the faults of its GPUs while it used them
//!   gpus[]            gpu, uuid, gpu_instance, and only for that GPU or instance: allocated_seconds, busy_seconds,
//!                     energy_joules, steps, slow_seconds (time as the slow rank), memory_peak_bytes (null: unknown)
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use model::catalog::schema::{KnownLabel, LabelSet, Metric};
use model::catalog::{self as m, CpuTimeMode, GpuTimeClass, Node, OwnedGpu, OwnerInfo};
use model::owner_records::OwnerRecord;
use model::owners::cause_text;
use model::snapshot::{OwnerView, Snapshot};

use super::append;

/// Maximum number of records in a document if the request has no parameters.
const DEFAULT_LIMIT: usize = 100;

/// Selection of owners in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerQuery {
    /// Identity of the only owner to return.
    pub owner: Option<String>,
    /// Slurm job whose owners are returned.
    pub slurm_job: Option<String>,
    /// Maximum number of records.
    pub limit: Option<usize>,
}

impl OwnerQuery {
    fn asks_for(&self, owner: &str, slurm_job: &str) -> bool {
        self.owner.as_ref().is_none_or(|asked| asked == owner)
            && self.slurm_job.as_ref().is_none_or(|asked| asked == slurm_job)
    }

    fn limit(&self) -> usize {
        let all = self.owner.is_some() || self.slurm_job.is_some();
        self.limit.unwrap_or(if all { usize::MAX } else { DEFAULT_LIMIT })
    }
}

/// Appends the document with the selected owners.
pub(crate) fn encode(snapshot: &Snapshot, query: &OwnerQuery, out: &mut String) {
    #[derive(Serialize)]
    struct OwnersDocument {
        taken_unix_seconds: f64,
        dropped: Option<f64>,
        owners: Vec<Value>,
        pending: usize,
        ended: Vec<Value>,
    }
    let owners =
        snapshot.owners.iter().filter(|view| query.asks_for(&view.owner.id, &view.owner.info.slurm_job));
    let records = &snapshot.owner_records;
    let ended = records.ended.iter().filter(|record| {
        query.asks_for(&record.owner, record.labels.get("slurm_job").map_or("", String::as_str))
    });
    let pending = records.pending.iter().filter(|owner| query.asks_for(&owner.id, &owner.info.slurm_job));
    let document = OwnersDocument {
        taken_unix_seconds: snapshot.unix_seconds,
        dropped: snapshot.number(&m::gpu_exporter_owners_dropped, &Node {}, ()),
        owners: owners.map(|view| owner(snapshot, view)).collect(),
        pending: pending.count(),
        ended: ended.take(query.limit()).map(|record| ended_owner(record)).collect(),
    };
    append(&document, out);
}

fn ended_owner(record: &OwnerRecord) -> Value {
    let mut value = json!({
        "owner": record.owner,
        "start_unix_seconds": record.start_unix_seconds,
        "since_unix_seconds": record.since_unix_seconds,
        "end_unix_seconds": record.end_unix_seconds,
        "partial": record.partial,
        "complete": record.complete,
        "allocated_seconds": record.allocated_seconds,
        "class_seconds": record.class_seconds,
        "busy_seconds": record.busy_seconds,
        "energy_joules": record.energy_joules,
        "steps": record.steps,
        "ended_at_full_memory": record.ended_at_full_memory,
        "host_oom_kills": record.host_oom_kills,
        "faults": record.faults,
        "gpus": record.places,
    });
    for def in OwnerInfo::DEFS {
        value[def.name] = record.labels.get(def.name).map_or("", String::as_str).into();
    }
    value
}

fn owner(snapshot: &Snapshot, view: &OwnerView) -> Value {
    let entity = OwnedGpu::new(&view.gpu, view.gpu_instance, &view.owner.id);
    let number = |metric: &Metric<OwnedGpu, ()>| snapshot.number(metric, &entity, ());
    let whole = m::Owner { owner: Arc::clone(&view.owner.id) };
    let cpu = |mode| snapshot.number(&m::gpu_owner_cpu_seconds_total, &whole, (mode,));
    let class = |class: &GpuTimeClass| {
        let seconds = snapshot.number(&m::gpu_owner_gpu_seconds_total, &entity, (*class,))?;
        Some((class.known(), seconds))
    };
    let classes: BTreeMap<&str, f64> = GpuTimeClass::ALL.iter().filter_map(class).collect();
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
        "class_seconds": classes,
        "step_seconds": number(&m::gpu_owner_step_seconds),
        "step_slowdown_ratio": number(&m::gpu_owner_step_slowdown_ratio),
        "steps": number(&m::gpu_owner_steps_total),
        "slow_rank_ratio": number(&m::gpu_owner_slow_rank_ratio),
        "missing_rank": number(&m::gpu_owner_missing_rank).map(|missing| missing == 1.0),
        "last_progress_unix_seconds": number(&m::gpu_owner_last_progress_timestamp_seconds),
        "bottleneck": view.cause,
        "bottleneck_text": view.cause.map(cause_text),
    });
    for (def, text) in OwnerInfo::DEFS.iter().zip(view.owner.info.texts()) {
        value[def.name] = text.text(def).into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::{Cause, Gpu, OwnerKind};
    use model::owner_records::RecordedPlace;
    use model::owners::Owner;

    fn read(snapshot: &Snapshot, query: &OwnerQuery) -> Value {
        let mut text = String::new();
        encode(snapshot, query, &mut text);
        serde_json::from_str(&text).unwrap()
    }

    fn ended(owner: &str, slurm_job: &str) -> Arc<OwnerRecord> {
        let labels = [("kind", "slurm"), ("slurm_job", slurm_job)];
        Arc::new(OwnerRecord {
            owner: owner.into(),
            labels: labels.map(|(name, text)| (name.to_owned(), text.to_owned())).into(),
            allocated_seconds: 60.5,
            class_seconds: [("idle".to_owned(), 60.5)].into(),
            places: vec![RecordedPlace::new(&Gpu { gpu: 3, uuid: "u".into() }, None)],
            ..OwnerRecord::default()
        })
    }

    #[test]
    fn an_owner_that_has_ended_has_a_record_with_its_identity() {
        let mut snapshot = Snapshot::default();
        snapshot.owner_records.ended = Arc::new([ended("slurm/42.0", "42"), ended("slurm/41", "41")]);
        let json = read(&snapshot, &OwnerQuery::default());
        let one = &json["ended"][0];
        assert_eq!(
            (&one["owner"], &one["kind"], &one["pod"]),
            (&"slurm/42.0".into(), &"slurm".into(), &"".into())
        );
        assert_eq!((&one["allocated_seconds"], &one["class_seconds"]["idle"]), (&60.5.into(), &60.5.into()));
        assert_eq!((&one["gpus"][0]["gpu"], &one["gpus"][0]["uuid"]), (&3.into(), &"u".into()));
        assert!(one["steps"].is_null() && one["gpus"][0]["gpu_instance"].is_null());
        assert_eq!(json["pending"], 0);
    }

    #[test]
    fn a_query_leaves_out_other_owners_and_has_no_limit_of_its_own() {
        let info = OwnerInfo { slurm_job: "42".into(), ..OwnerInfo::default() };
        let owner = Arc::new(Owner { id: "slurm/42.1".into(), info, ..Owner::unknown() });
        let mut snapshot = Snapshot::default();
        snapshot.owner_records.ended = (0..300)
            .map(|n| ended(&format!("slurm/{}.{n}", n % 2 + 41), if n % 2 == 1 { "42" } else { "41" }))
            .collect();
        snapshot.owner_records.pending = vec![owner, Arc::new(Owner::unknown())];
        let count = |query: &OwnerQuery| {
            let json = read(&snapshot, query);
            (json["ended"].as_array().unwrap().len(), json["pending"].as_u64().unwrap())
        };
        assert_eq!(count(&OwnerQuery::default()), (100, 2));
        let job = OwnerQuery { slurm_job: Some("42".into()), ..OwnerQuery::default() };
        assert_eq!(count(&job), (150, 1));
        assert_eq!(count(&OwnerQuery { limit: Some(7), ..job.clone() }), (7, 1));
        assert_eq!(count(&OwnerQuery { owner: Some("slurm/42.1".into()), ..job }), (1, 1));
    }

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
            worked: None,
            waits_since: None,
        }];
        let json = read(&snapshot, &OwnerQuery::default());
        let one = &json["owners"][0];
        assert_eq!(
            (&one["owner"], &one["pod"], &one["kind"]),
            (&"pod/x".into(), &"a\"\n".into(), &"pod".into())
        );
        assert_eq!((&one["processes"][0], &one["bottleneck"]), (&5.into(), &"pcie_bound".into()));
        assert!(one["memory_bytes"].is_null() && one["gpu_instance"].is_null());
    }
}

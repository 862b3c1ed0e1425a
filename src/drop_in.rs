//! What dcgm-exporter's page has, by the settings and on this node.

use dcgm::list::FieldList;
use dcgm::page::PageConfig;
use exposition::node_name;
use model::catalog as m;
use model::sample::{Gap, Missing};
use model::snapshot::{GpuView, Snapshot};
use settings::Dcgm;

/// The page that the settings ask for.
pub(crate) fn page(settings: &Dcgm, fields: FieldList) -> PageConfig {
    let milliseconds = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    PageConfig {
        release: settings.release,
        fields,
        values: settings.values,
        hostname_label: settings.hostname_label.clone(),
        hostname: node_name(),
        pods: settings.pods,
        pod_uids: settings.pod_uids,
        jobs: settings.jobs,
        job_files: settings.hpc_job_dir.is_some(),
        xid_window_ms: milliseconds(settings.xid_window),
        clock_events_window_ms: milliseconds(settings.clock_events_window),
    }
}

/// Says once which profiling fields of the list some GPU of the node has not.
#[derive(Debug, Default)]
pub(crate) struct Profiling {
    /// Their names; empty once there is nothing left to say.
    names: Vec<String>,
}

impl Profiling {
    /// The profiling fields that someone asks for: of a list of one's own, or at the listener that speaks as dcgm-exporter.
    pub(crate) fn new(settings: &Dcgm, fields: &FieldList, has_listener: bool) -> Profiling {
        let asked = has_listener || settings.fields_file.is_some();
        let names = fields.profiling().filter(|_| asked).map(|column| column.name.clone());
        Profiling { names: names.collect() }
    }

    /// Looks whether the GPUs have the counters, until it is known of each.
    pub(crate) fn check(&mut self, snapshot: &Snapshot) {
        if self.names.is_empty() || !snapshot.ready || snapshot.gpus.is_empty() {
            return;
        }
        let Some(gpus) = without_profiling(snapshot) else { return };
        let names = std::mem::take(&mut self.names);
        if gpus.is_empty() {
            return;
        }
        let (which, whose) = match gpus.len() == snapshot.gpus.len() {
            true => ("no GPU of this node has".to_owned(), ""),
            false => (format!("GPUs {} have no", gpus.join(", ")), " of theirs"),
        };
        let (count, names) = (names.len(), names.join(", "));
        tracing::warn!(
            count,
            "{which} profiling counters (GPM), which begin with Hopper: the page of dcgm-exporter is without {names}{whose}"
        );
    }
}

/// The GPUs that lack the counters; `None` before it is known of each.
fn without_profiling(snapshot: &Snapshot) -> Option<Vec<String>> {
    let mut lacking = Vec::new();
    for GpuView { gpu, gaps, .. } in &snapshot.gpus {
        let of_gpm = |gap: &Gap| {
            gap.missing == Missing::Unsupported && gap.metrics.contains(&m::gpu_gpm_active_ratio.id())
        };
        if gaps.iter().any(of_gpm) {
            lacking.push(format!("{} ({})", gpu.gpu, gpu.uuid));
        } else if snapshot.number(&m::gpu_gpm_enabled, gpu, ()).is_none() {
            return None;
        }
    }
    Some(lacking)
}

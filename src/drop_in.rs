//! Configuration of dcgm-exporter's page for this node.

use dcgm::list::FieldList;
use dcgm::page::PageConfig;
use exposition::node_name;
use model::catalog as m;
use model::sample::{Gap, Missing};
use model::snapshot::{GpuView, Snapshot};
use settings::Dcgm;

/// Builds the configuration of the page from the settings.
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

/// Profiling fields that some GPUs of the node may lack. They are logged once.
#[derive(Debug, Default)]
pub(crate) struct Profiling {
    /// Names of the fields; empty once they are checked.
    names: Vec<String>,
}

impl Profiling {
    /// Collects the profiling fields if they are requested, either by a custom list of fields or by a listener for
    /// dcgm-exporter's page.
    pub(crate) fn new(settings: &Dcgm, fields: &FieldList, has_listener: bool) -> Profiling {
        let asked = has_listener || settings.fields_file.is_some();
        let names = fields.profiling().filter(|_| asked).map(|column| column.name.clone());
        Profiling { names: names.collect() }
    }

    /// Logs the fields that are missing as soon as the support of all GPUs is known.
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
            false => (format!("GPUs {} have no", gpus.join(", ")), " for them"),
        };
        let (count, names) = (names.len(), names.join(", "));
        tracing::warn!(
            count,
            "{which} profiling counters (GPM), which require Hopper or later; dcgm-exporter's page lacks {names}{whose}"
        );
    }
}

/// Returns the GPUs without profiling counters; `None` until the support of all GPUs is known.
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

//! What the driver says of the GPUs: asked in a sampler of the command's own, which is left behind if it hangs.

use std::collections::HashSet;

use crate::commands::doctor::ask::{self, Asked};
use crate::commands::doctor::daemon::Daemon;
use model::catalog::schema::{LabelDef, LabelSet};
use model::catalog::{self as m, GpuInfo, METRICS, MetricId, MigInfo, Subject};
use model::sample::Row;
use settings::Config;
use topology::map::{Known, KnownSlice};

/// What is asked of the driver; the rest costs time.
const WANTED: [MetricId; 4] =
    [m::gpu_devices.id(), m::gpu_info.id(), m::gpu_mig_mode_enabled.id(), m::gpu_mig_info.id()];

/// The GPUs with their MIG devices, and what could not be known, in words.
pub fn ask(config: &Config) -> (Vec<Known>, Vec<String>) {
    let all = (0..METRICS.len()).filter_map(|at| u16::try_from(at).ok().map(MetricId));
    let off: HashSet<MetricId> = all.filter(|id| !WANTED.contains(id)).collect();
    let asked = match Daemon::ask(config).ask_driver(config, &off, ask::BRIEF) {
        Ok(asked) => asked,
        Err(why) => return (Vec::new(), vec![format!("the driver: {}", why.text)]),
    };
    let mut notes = Vec::new();
    if let Some((_, text)) = asked.away.as_ref().filter(|_| !asked.up) {
        notes.push(format!("the driver does not answer, so this is drawn from PCI alone: {text}"));
    }
    for hung in &asked.hung {
        let on = hung.gpu.map(|gpu| format!(" on GPU {gpu}")).unwrap_or_default();
        notes.push(format!("{} does not return{on}", hung.call));
    }
    for (index, text) in &asked.no_handle {
        notes.push(format!("the driver gives no handle to GPU {index}: {text}"));
    }
    (known(&asked), notes)
}

fn known(asked: &Asked) -> Vec<Known> {
    let rows = || {
        let groups = asked.batches.values().flat_map(|batch| batch.rows.groups());
        groups.flat_map(|(subject, rows)| rows.iter().map(move |row| (subject, row)))
    };
    let mut gpus: Vec<Known> = Vec::new();
    for (subject, row) in rows().filter(|(_, row)| row.metric == m::gpu_info.id()) {
        let Subject::Gpu(gpu) = subject else { continue };
        let mut slices: Vec<KnownSlice> = Vec::new();
        for (subject, row) in rows().filter(|(_, row)| row.metric == m::gpu_mig_info.id()) {
            let Subject::ComputeInstance(instance) = subject else { continue };
            let uuid = text(row, MigInfo::DEFS, "mig_uuid");
            if instance.uuid != gpu.uuid || uuid.is_empty() || slices.iter().any(|slice| slice.uuid == uuid) {
                continue;
            }
            slices.push(KnownSlice {
                uuid,
                profile: text(row, MigInfo::DEFS, "mig_profile"),
                gpu_instance: instance.gpu_instance,
                compute_instance: instance.compute_instance,
            });
        }
        slices.sort_by_key(|slice| (slice.gpu_instance, slice.compute_instance));
        gpus.push(Known {
            index: gpu.gpu,
            uuid: gpu.uuid.to_string(),
            model: text(row, GpuInfo::DEFS, "model"),
            pci_address: text(row, GpuInfo::DEFS, "pci_address"),
            minor: text(row, GpuInfo::DEFS, "minor_number").parse().ok(),
            slices,
        });
    }
    gpus.sort_by_key(|gpu| gpu.index);
    gpus.dedup_by_key(|gpu| gpu.index);
    gpus
}

fn text(row: &Row, defs: &'static [LabelDef], name: &str) -> String {
    let at = defs.iter().position(|def| def.name == name);
    let found = at.and_then(|at| Some((row.labels.get(at)?, defs.get(at)?)));
    found.map(|(text, def)| text.text(def).to_owned()).unwrap_or_default()
}

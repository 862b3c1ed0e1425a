//! The node without the names of those whose work is on it.

use std::sync::Arc;

use model::catalog::MetricDef;
use model::snapshot::{Event, EventKind, OwnerRecordsView, Snapshot};

/// Labels that name an owner, its processes or what it asked for. A metric with one of them is left out.
pub const OWNER_LABELS: [&str; 15] = [
    "claim",
    "claim_namespace",
    "container",
    "container_id",
    "hpc_job",
    "namespace",
    "owner",
    "pid",
    "pod",
    "pod_uid",
    "process_name",
    "slurm_account",
    "slurm_job",
    "user",
    "vm_id",
];

/// The snapshot without owners, processes, and metrics and texts that name them.
pub fn of(snapshot: &Snapshot) -> Snapshot {
    let mut shown = snapshot.clone();
    shown.families.retain(|family| !names_owners(family.def));
    shown.owners.clear();
    shown.owner_records = OwnerRecordsView::default();
    shown.gpus.iter_mut().for_each(|gpu| gpu.processes.clear());
    shown.events = snapshot.events.iter().map(event).collect();
    shown
}

fn names_owners(def: &MetricDef) -> bool {
    let mut labels = def.entity.labels().iter().chain(def.labels);
    labels.any(|label| OWNER_LABELS.contains(&label.name))
}

fn event(event: &Arc<Event>) -> Arc<Event> {
    // The kernel's line of an Xid names the process.
    if event.kind != EventKind::Xid && event.owner.is_none() && event.process.is_none() {
        return Arc::clone(event);
    }
    let event = Event::clone(event);
    Arc::new(Event { pid: None, process: None, owner: None, text: String::new(), ..event })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::format::ResponseFormat;
    use model::catalog::schema::LabelDef;
    use model::catalog::{FaultAction, Gpu, METRICS, OwnerInfo, OwnerKind, Severity};
    use model::clock::Mono;
    use model::owner_records::OwnerRecord;
    use model::owners::Owner;
    use model::snapshot::OwnerView;

    /// Labels with any text that name no owner.
    const OTHERS: &str = "\
        architecture board_part_number brand call chassis_serial clique_id cluster_uuid \
        compute_capability compute_instance cpus cuda_error cuda_version device driver_branch \
        driver_version firmware_version gpu gpu_instance gsp_firmware_version host_id \
        inforom_ecc_version inforom_oem_version inforom_power_version inforom_version kind l3 link \
        metric mig_profile mig_uuid minor_number model module_id name nic numa_node nvlink nvml_version \
        nvswitch package path pci_address pci_device_id pci_subsystem_id pcie_switch peer_gpu peer_uuid \
        port profile read reason remote_link remote_pci_address remote_type resource revision root_port \
        serial share slot smid sxid topology tray uuid vbios_version version vgpu_uuid \
        virtualization_mode window write xid";

    #[test]
    fn each_label_with_any_text_is_an_owners_or_not() {
        let others: Vec<&str> = OTHERS.split_whitespace().collect();
        let defs = METRICS.iter().filter(|def| !names_owners(def));
        let labels = defs.flat_map(|def| def.entity.labels().iter().chain(def.labels));
        let is_unsorted = |label: &&LabelDef| label.values.is_none() && !others.contains(&label.name);
        let mut unsorted: Vec<&str> = labels.filter(is_unsorted).map(|label| label.name).collect();
        unsorted.sort_unstable();
        unsorted.dedup();
        assert!(unsorted.is_empty(), "OWNER_LABELS or OTHERS? {unsorted:?}");
    }

    #[test]
    fn no_format_has_a_name() {
        let mut node = fixtures::node_taken(1, Mono::now());
        let info = OwnerInfo { user: "SECRET".into(), ..OwnerInfo::default() };
        let owner = Owner { id: "user/SECRET".into(), kind: OwnerKind::User, info, cgroup: "/SECRET".into() };
        let gpu = Gpu { gpu: 0, uuid: "u".into() };
        node.owners = vec![OwnerView {
            owner: Arc::new(owner),
            gpu,
            gpu_instance: None,
            processes: vec![5],
            cause: None,
            worked: None,
            waits_since: None,
        }];
        let record = OwnerRecord { owner: "user/SECRET".into(), ..OwnerRecord::default() };
        node.owner_records.ended = Arc::new([Arc::new(record)]);
        node.owner_records.pending = vec![Arc::clone(&node.owners[0].owner)];
        let event = Event::new(EventKind::Xid, 1.0, Severity::Page, FaultAction::ResetGpu);
        let text = "NVRM: Xid: 31, name=SECRET".to_owned();
        let event = Event {
            code: Some(31),
            process: Some("SECRET".into()),
            owner: Some("SECRET".into()),
            text,
            ..event
        };
        node.events = Arc::new([Arc::new(event)]);
        let (whole, nameless) = (Arc::new(node.clone()), Arc::new(of(&node)));
        assert!(ResponseFormat::Owners.encode(&whole).contains("SECRET"));
        for format in ResponseFormat::ALL {
            assert!(!format.encode(&nameless).contains("SECRET"), "{format:?}");
        }
        let events = ResponseFormat::Events.encode(&nameless);
        assert!(events.contains("\"code\":31"), "the fault itself stays: {events}");
    }
}

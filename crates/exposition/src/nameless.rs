//! Removes the names of owners from a snapshot, for unauthenticated clients.

use std::sync::Arc;

use model::canary::loudness;
use model::catalog::{MetricDef, Severity};
use model::snapshot::{Event, EventKind, OwnerRecordsView, PlaceView, Snapshot};

/// Labels with names of owners, their processes or their resource requests. A metric with one of these labels is omitted.
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

/// Returns the snapshot without owners and processes, and without metrics and texts that contain their names.
pub fn without_owners(snapshot: &Snapshot) -> Snapshot {
    let mut shown = snapshot.clone();
    shown.families.retain(|family| !names_owners(family.def));
    shown.owners.clear();
    shown.owner_records = OwnerRecordsView::default();
    shown.gpus.iter_mut().for_each(|gpu| gpu.processes.clear());
    shown.canary.places.iter_mut().for_each(place);
    shown.events = snapshot.events.iter().map(event).collect();
    shown
}

/// Removes texts that may contain the name of a pod or process for which a run ended. Measurements that contribute to
/// the verdict remain.
fn place(place: &mut PlaceView) {
    place.text.clear();
    let quiet = place.checks.iter_mut().filter(|check| is_quiet(loudness(check.verdict)));
    quiet.for_each(|check| check.text.clear());
}

fn is_quiet(severity: Option<Severity>) -> bool {
    matches!(severity, None | Some(Severity::Info))
}

fn names_owners(def: &MetricDef) -> bool {
    let mut labels = def.entity.labels().iter().chain(def.labels);
    labels.any(|label| OWNER_LABELS.contains(&label.name))
}

fn event(event: &Arc<Event>) -> Arc<Event> {
    if !may_name(event) {
        return Arc::clone(event);
    }
    let event = Event::clone(event);
    Arc::new(Event { pid: None, process: None, owner: None, text: String::new(), ..event })
}

/// Returns true if the event may contain the name of an owner.
fn may_name(event: &Event) -> bool {
    let is_named = event.owner.is_some() || event.process.is_some() || event.pid.is_some();
    is_named
        || match event.kind {
            // The kernel log line contains the process name, and clearing faults is logged with the user name.
            EventKind::Xid | EventKind::SwitchesCleared => true,
            // The text contains the reason for which no run took place, or the user that cleared the results.
            EventKind::Canary => is_quiet(Some(event.severity)),
            // These events concern devices or windows. The reason of a window is public in `/api/v1/windows`.
            EventKind::Sxid
            | EventKind::DriverEvent
            | EventKind::RecoveryAction
            | EventKind::DriverLoad
            | EventKind::DriverUnload
            | EventKind::GpuReset
            | EventKind::GpuLost
            | EventKind::GpuReturned
            | EventKind::Window
            | EventKind::FallenOffBus
            | EventKind::InitFailed
            | EventKind::DevicesDeclared => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::format::ResponseFormat;
    use model::catalog::schema::LabelDef;
    use model::catalog::{
        CanaryCheck, CanaryEnd, CanaryVerdict, FaultAction, Gpu, METRICS, OwnerInfo, OwnerKind,
    };
    use model::clock::Mono;
    use model::owner_records::OwnerRecord;
    use model::owners::Owner;
    use model::snapshot::{CheckView, OwnerView};

    /// Labels with free text that contain no names of owners.
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
        let event = |kind, severity, text: &str| Event {
            text: text.into(),
            ..Event::new(kind, 1.0, severity, FaultAction::ResetGpu)
        };
        let xid = Event {
            code: Some(31),
            process: Some("SECRET".into()),
            owner: Some("SECRET".into()),
            ..event(EventKind::Xid, Severity::Page, "NVRM: Xid: 31, name=SECRET")
        };
        let cleared = "uid 1000: SECRET's job is over";
        let others = [
            event(EventKind::Canary, Severity::Info, cleared),
            event(EventKind::SwitchesCleared, Severity::Info, cleared),
            event(EventKind::Canary, Severity::Ticket, "80 % of its rate"),
            event(EventKind::Sxid, Severity::Page, "SXid: 12028"),
        ];
        node.events = [xid].into_iter().chain(others).map(Arc::new).collect();
        node.canary.places = [CanaryEnd::Abandoned, CanaryEnd::CouldNotRun, CanaryEnd::Broken]
            .map(|end| canary(&node.gpus[0].gpu, end))
            .to_vec();
        let (whole, nameless) = (Arc::new(node.clone()), Arc::new(without_owners(&node)));
        for format in
            [ResponseFormat::Owners, ResponseFormat::Json, ResponseFormat::Events, ResponseFormat::Page]
        {
            assert!(format.encode(&whole).contains("SECRET"), "{format:?} has names to hide");
        }
        for format in ResponseFormat::ALL {
            assert!(!format.encode(&nameless).contains("SECRET"), "{format:?}");
        }
        let events = ResponseFormat::Events.encode(&nameless);
        for fault in ["\"code\":31", "80 % of its rate", "SXid: 12028"] {
            assert!(events.contains(fault), "the fault itself stays: {fault}: {events}");
        }
        assert!(
            ResponseFormat::Json.encode(&nameless).contains("70 % of its rate"),
            "what was measured stays"
        );
        assert!(
            ResponseFormat::Page.encode(&nameless).contains("could not run<"),
            "no colon without a reason"
        );
    }

    /// Returns a place whose last run had this result, with texts that contain names.
    fn canary(gpu: &Gpu, end: CanaryEnd) -> PlaceView {
        let check = |check, verdict, text: &str| CheckView { check, verdict, text: text.into(), rate: None };
        let text = "the GPU is given to pod SECRET/SECRET, container SECRET".to_owned();
        let checks = vec![
            check(CanaryCheck::Init, CanaryVerdict::CouldNotRun, &text),
            check(CanaryCheck::SmRate, CanaryVerdict::Contended, "process SECRET had the GPU"),
            check(CanaryCheck::HbmRead, CanaryVerdict::DegradedMemory, "70 % of its rate"),
        ];
        // The page would show only a more serious check, and not the result of the run.
        let checks = if end == CanaryEnd::Abandoned { checks } else { Vec::new() };
        PlaceView {
            gpu: gpu.clone(),
            instance: None,
            running: false,
            hung: None,
            last_run: Some(1.0),
            due: None,
            skipped: None,
            end: Some(end),
            text,
            checks,
        }
    }
}

//! A node of two GPUs with every reading that a page can have.

use std::sync::Arc;

use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, *};
use model::sample::Rows;
use model::snapshot::{GpuState, GpuView, Snapshot};

/// GPU instances of the second GPU in MIG mode: id, profile, compute instances.
pub const MIG: [(u32, &str, &[u32]); 3] =
    [(2, "3g.71gb", &[0]), (5, "2g.35gb", &[0, 1]), (9, "1g.18gb", &[])];

const MIB: f64 = 1_048_576.0;

/// The GPU with this index. By UUID the order is another.
pub fn gpu(index: u32) -> Gpu {
    Gpu { gpu: index, uuid: ["GPU-b", "GPU-a", "GPU-c"][index as usize].into() }
}

/// Two whole GPUs; the first had an Xid.
pub fn plain() -> Snapshot {
    let mut rows = Rows::default();
    put_node(&mut rows);
    put_gpu(&mut rows, 0, false);
    put_gpu(&mut rows, 1, false);
    put_faults(&mut rows);
    snapshot(&rows)
}

/// The second GPU is in MIG mode, and a row remap of it has failed.
pub fn mig() -> Snapshot {
    let mut rows = Rows::default();
    put_mig(&mut rows);
    snapshot(&rows)
}

/// As [`mig`], with pods on the first GPU and on an instance, and a job on another.
pub fn pods() -> Snapshot {
    let mut rows = Rows::default();
    put_mig(&mut rows);
    let given = |namespace: &str, pod: &str, container: &str| AllocationInfo {
        namespace: namespace.into(),
        pod: pod.into(),
        container: container.into(),
        ..AllocationInfo::default()
    };
    for pod in ["train-0", "train-1"] {
        rows.entity(&AllocatedGpu::new(&gpu(0), None))
            .info(&m::gpu_allocation_info, given("ml", pod, "main"));
    }
    rows.entity(&AllocatedGpu::new(&gpu(1), Some(5)))
        .info(&m::gpu_allocation_info, given("web", "infer-0", "serve"));
    let owner = OwnerInfo {
        namespace: "web".into(),
        pod: "infer-0".into(),
        pod_uid: "2c48913c".into(),
        ..OwnerInfo::default()
    };
    rows.entity(&OwnedGpu::new(&gpu(1), Some(5), &"pod/web/infer-0/serve".into()))
        .info(&m::gpu_owner_info, owner);
    let job = AllocationInfo { slurm_job: "4711".into(), user: "ada".into(), ..AllocationInfo::default() };
    rows.entity(&AllocatedGpu::new(&gpu(1), Some(9))).info(&m::gpu_allocation_info, job);
    snapshot(&rows)
}

/// What is given by dynamic claims: GPU, instance, pods, name and device of the claim, MIG profile and UUID.
pub type GivenByClaim =
    (u32, Option<u32>, &'static [&'static str], &'static str, &'static str, &'static str, &'static str);

/// A GPU that two pods share by one claim, a static MIG instance, a dynamic one whose UUID is not known, and a whole
/// GPU. No minor number is the index.
pub const CLAIMS: [GivenByClaim; 4] = [
    (0, None, &["share-a", "share-b"], "both", "gpu-3", "", ""),
    (1, Some(2), &["static"], "cut", "gpu-2-mig-3g71gb-9-0", "3g.71gb", "MIG-2-0"),
    (1, Some(5), &["dynamic"], "made", "gpu-2-mig-2g35gb-14-4", "2g.35gb", ""),
    (2, None, &["whole"], "one", "gpu-1", "", ""),
];

/// As [`mig`], with a third GPU, and with pods by dynamic claims and two by the device plugin on an instance.
pub fn claims() -> Snapshot {
    let mut rows = Rows::default();
    put_mig(&mut rows);
    put_gpu(&mut rows, 2, false);
    let pod_info = |pod: &str| AllocationInfo {
        namespace: "ml".into(),
        pod: pod.into(),
        container: "main".into(),
        ..AllocationInfo::default()
    };
    for (index, id, pods, claim, device, profile, uuid) in CLAIMS {
        for pod in pods {
            let mut of = rows.entity(&AllocatedGpu::new(&gpu(index), id));
            of.info(&m::gpu_allocation_info, pod_info(pod));
            let info = ClaimInfo {
                claim: claim.into(),
                claim_namespace: "ml".into(),
                driver: "gpu.nvidia.com".into(),
                pool: "node1".into(),
                device: device.into(),
                mig_profile: profile.into(),
                mig_uuid: uuid.into(),
                namespace: "ml".into(),
                pod: (*pod).into(),
                container: "main".into(),
            };
            of.info(&m::gpu_claim_info, info);
        }
    }
    for pod in ["plugin-0", "plugin-1"] {
        rows.entity(&AllocatedGpu::new(&gpu(1), Some(9))).info(&m::gpu_allocation_info, pod_info(pod));
    }
    snapshot(&rows)
}

fn put_mig(rows: &mut Rows) {
    put_node(rows);
    put_gpu(rows, 0, false);
    put_gpu(rows, 1, true);
    put_faults(rows);
    put_instances(rows);
}

fn snapshot(rows: &Rows) -> Snapshot {
    let mut snapshot = Snapshot::with_rows(rows);
    let view = |index| GpuView {
        gpu: gpu(index),
        state: GpuState::Up,
        parts: Vec::new(),
        gaps: Vec::new(),
        processes: Vec::new(),
    };
    snapshot.driver = model::snapshot::DriverState::Up;
    snapshot.gpus = (0..2).map(view).collect();
    snapshot.evaluated()
}

fn put_node(rows: &mut Rows) {
    let mut of = rows.entity(&Node {});
    let driver = DriverInfo {
        driver_version: "580.95.05".into(),
        driver_branch: "r580_00".into(),
        nvml_version: "13.580.95.05".into(),
        cuda_version: "13.0".into(),
    };
    of.info(&m::gpu_driver_info, driver);
    of.record(&m::gpu_devices, (), 2.0).unwrap();
    of.record(&m::gpu_devices_expected, (), 2.0).unwrap();
}

/// What the first GPU saw: an Xid, three in all, two of them lately.
fn put_faults(rows: &mut Rows) {
    let mut of = rows.entity(&gpu(0));
    of.record(&m::gpu_xid_last_code, (), 79.0).unwrap();
    let code = |code: &str| (XidCode(code.into()), Severity::Page, FaultAction::ResetGpu);
    of.record(&m::gpu_xid_errors_total, code("79"), 3.0).unwrap();
    of.record(&m::gpu_xid_errors_total, code("48"), 0.0).unwrap();
    of.record(&m::gpu_xid_window_errors, (XidCode("79".into()),), 2.0).unwrap();
    of.record(&m::gpu_clock_event_starts_total, (ClockEvent::SwPowerCap,), 41.0).unwrap();
    for event in ClockEvent::ALL {
        let looks = match event {
            ClockEvent::SwPowerCap => 10.0,
            ClockEvent::HwThermalSlowdown => 1.0,
            _ => 0.0,
        };
        of.record(&m::gpu_clock_event_window_samples, (*event,), looks).unwrap();
    }
    for event in ClockEvent::ALL {
        rows.entity(&gpu(1)).record(&m::gpu_clock_event_window_samples, (*event,), 0.0).unwrap();
    }
}

fn put_gpu(rows: &mut Rows, index: u32, mig: bool) {
    let gpu = gpu(index);
    let other = self::gpu(u32::from(index == 0));
    let mut of = rows.entity(&gpu);
    let info = GpuInfo {
        model: "NVIDIA H200".into(),
        architecture: "hopper".into(),
        compute_capability: "9.0".into(),
        pci_address: ["0000:1a:00.0", "0000:3b:00.0", "0000:5e:00.0"][index as usize].into(),
        pci_device_id: "0x233510de".into(),
        pci_subsystem_id: "0x18be10de".into(),
        serial: format!("165402400{index}"),
        minor_number: (3 - index).to_string(),
        vbios_version: "96.00.BC.00.03".into(),
        inforom_version: "G520.0280.00.05".into(),
        virtualization_mode: "none".into(),
        ..GpuInfo::default()
    };
    of.info(&m::gpu_info, info);
    let board = BoardInfo {
        brand: if index == 0 { "NVIDIA".into() } else { String::new() },
        inforom_oem_version: "2.1".into(),
        inforom_ecc_version: "7.16".into(),
        inforom_power_version: String::new(),
    };
    of.info(&m::gpu_board_info, board);
    let peer = PeerInfo {
        peer_gpu: other.gpu.to_string(),
        peer_uuid: other.uuid.to_string(),
        topology: "node".into(),
        read: "ok".into(),
        write: "ok".into(),
        nvlink: if index == 0 { "ok".into() } else { "ioh_topology_not_supported".into() },
    };
    of.info(&m::gpu_peer_info, peer);
    let mut put = |metric: &schema::Metric<Gpu, ()>, value: f64| of.record(metric, (), value).unwrap();
    put(&m::gpu_up, 1.0);
    put(&m::gpu_power_watts, 612.345);
    put(&m::gpu_power_instant_watts, 640.5);
    put(&m::gpu_energy_joules_total, 3_456_789_012.345);
    put(&m::gpu_temperature_margin_celsius, 30.0);
    put(&m::gpu_performance_state, 0.0);
    put(&m::gpu_row_remap_pending, 0.0);
    put(&m::gpu_row_remap_failure, if mig { 1.0 } else { 0.0 });
    put(&m::gpu_pcie_link_generation, 5.0);
    put(&m::gpu_pcie_link_max_generation, 5.0);
    put(&m::gpu_pcie_link_width_lanes, 16.0);
    put(&m::gpu_pcie_link_max_width_lanes, 16.0);
    put(&m::gpu_pcie_replays_total, 7.0);
    put(&m::gpu_ecc_mode_enabled, 1.0);
    put(&m::gpu_ecc_mode_pending_enabled, 1.0);
    put(&m::gpu_ecc_sram_threshold_exceeded, 0.0);
    put(&m::gpu_retired_pages_pending, 0.0);
    put(&m::gpu_fabric_status, f64::from(index));
    put(&m::gpu_fabric_health_mask, 426.0);
    put(&m::gpu_fabric_health_summary, 1.0);
    put(&m::gpu_persistence_mode_enabled, 1.0);
    put(&m::gpu_mig_slices, 7.0);
    put(&m::gpu_vgpu_software_licensed, 0.0);
    put(&m::gpu_thermal_violation_seconds_total, 3.5);
    put(&m::gpu_bar1_memory_total_bytes, 262_144.0 * MIB);
    put(&m::gpu_bar1_memory_used_bytes, 1.5 * MIB);
    put(&m::gpu_bar1_memory_free_bytes, 262_142.5 * MIB);
    put(&m::gpu_memory_total_bytes, 143_771.0 * MIB);
    put(&m::gpu_memory_used_bytes, 78_071.5 * MIB);
    put(&m::gpu_memory_free_bytes, 65_000.0 * MIB);
    put(&m::gpu_memory_reserved_bytes, 700.0 * MIB - 1.0);
    put(&m::gpu_encoder_utilization_ratio, 0.0);
    put(&m::gpu_decoder_utilization_ratio, 0.03);
    put(&m::gpu_mig_mode_enabled, f64::from(u8::from(mig)));
    if !mig {
        put(&m::gpu_utilization_ratio, 0.57);
        put(&m::gpu_memory_utilization_ratio, 0.29);
    }
    for (domain, hertz) in ClockDomain::ALL.iter().zip([1.98e9, 1.98e9, 3.201e9, 1.545e9]) {
        of.record(&m::gpu_clock_hertz, (*domain,), hertz).unwrap();
        of.record(&m::gpu_clock_max_hertz, (*domain,), hertz).unwrap();
    }
    of.record(&m::gpu_temperature_celsius, (Sensor::Gpu,), 57.0).unwrap();
    of.record(&m::gpu_temperature_celsius, (Sensor::Memory,), 61.0).unwrap();
    for threshold in TemperatureThreshold::ALL {
        of.record(&m::gpu_temperature_threshold_celsius, (*threshold,), 90.0).unwrap();
    }
    for limit in PowerLimit::ALL {
        of.record(&m::gpu_power_limit_watts, (*limit,), 700.0).unwrap();
    }
    for event in ClockEvent::ALL {
        let active = matches!(event, ClockEvent::SwPowerCap | ClockEvent::HwThermalSlowdown);
        of.flag(&m::gpu_clock_event_active, (*event,), active);
        of.record(&m::gpu_clock_event_seconds_total, (*event,), 12.25).unwrap();
    }
    for policy in PerfPolicy::ALL {
        of.record(&m::gpu_violation_seconds_total, (*policy,), 0.5).unwrap();
    }
    for counter in EccCounter::ALL {
        for error in EccError::ALL {
            let errors = if *error == EccError::Corrected { 2.0 } else { 0.0 };
            of.record(&m::gpu_ecc_total_errors, (*counter, *error), errors).unwrap();
            for memory in EccMemory::ALL {
                of.record(&m::gpu_ecc_errors, (*counter, *error, *memory), errors).unwrap();
            }
        }
    }
    of.record(&m::gpu_remapped_rows, (RemapCause::Correctable,), 4.0).unwrap();
    of.record(&m::gpu_remapped_rows, (RemapCause::Uncorrectable,), 1.0).unwrap();
    for spare in SpareRows::ALL {
        of.record(&m::gpu_row_remap_banks, (*spare,), 5.0).unwrap();
    }
    for cause in RetirementCause::ALL {
        of.record(&m::gpu_retired_pages, (*cause,), 0.0).unwrap();
    }
    of.state(&m::gpu_fabric_state, FabricState::Completed);
    of.state(&m::gpu_compute_mode, ComputeMode::ExclusiveProcess);
    let fabric = FabricInfo { cluster_uuid: "c1a5".into(), clique_id: "32766".into() };
    of.info(&m::gpu_fabric_info, fabric);
    for error in NvLinkError::ALL {
        of.record(&m::gpu_nvlink_errors_total, (*error,), 9.0).unwrap();
    }
    for error in NvLinkLaneError::ALL {
        of.record(&m::gpu_nvlink_lane_errors_total, (*error,), 11.0).unwrap();
    }
    put_rates(rows, &gpu);
}

fn put_rates(rows: &mut Rows, gpu: &Gpu) {
    let mut of = rows.entity(gpu);
    for unit in GpmUnit::ALL {
        let active = match unit {
            GpmUnit::Graphics => 0.971_234_6,
            GpmUnit::Dram => 1.0 / 3.0,
            GpmUnit::Tensor => 0.000_000_4,
            _ => 0.25,
        };
        of.record(&m::gpu_gpm_active_ratio, (*unit,), active).unwrap();
    }
    for (direction, mib, kib) in [(Direction::Tx, 50.0, 2_500_000.0), (Direction::Rx, 100.0, 1_500_000.0)] {
        of.record(&m::gpu_gpm_pcie_bytes_per_second, (direction,), mib * MIB).unwrap();
        of.record(&m::gpu_gpm_nvlink_bytes_per_second, (direction,), mib * 10.0 * MIB).unwrap();
        of.record(&m::gpu_gpm_pcie_bytes_total, (direction,), 1e15 + mib).unwrap();
        of.record(&m::gpu_nvlink_bytes_per_second, (direction,), kib * 1024.0).unwrap();
    }
}

fn put_instances(rows: &mut Rows) {
    let Gpu { gpu, uuid } = gpu(1);
    for (id, profile, computes) in MIG {
        let profile: Arc<str> = profile.into();
        let instance = GpuInstance { gpu, uuid: uuid.clone(), gpu_instance: id, profile: profile.clone() };
        let mut of = rows.entity(&instance);
        let gib = f64::from(id) * 1024.0 * MIB;
        of.record(&m::gpu_mig_memory_total_bytes, (), 8.0 * gib).unwrap();
        of.record(&m::gpu_mig_memory_used_bytes, (), 0.5 * gib).unwrap();
        of.record(&m::gpu_mig_memory_free_bytes, (), 7.0 * gib).unwrap();
        of.record(&m::gpu_mig_memory_reserved_bytes, (), 0.5 * gib).unwrap();
        for unit in GpmUnit::ALL {
            of.record(&m::gpu_mig_gpm_active_ratio, (*unit,), f64::from(id) / 10.0).unwrap();
        }
        for direction in Direction::ALL {
            of.record(&m::gpu_mig_gpm_pcie_bytes_per_second, (*direction,), 2e6).unwrap();
            of.record(&m::gpu_mig_gpm_nvlink_bytes_per_second, (*direction,), 3e6).unwrap();
            of.record(&m::gpu_mig_gpm_pcie_bytes_total, (*direction,), 4e9).unwrap();
        }
        for compute in computes {
            let device = ComputeInstance {
                gpu,
                uuid: uuid.clone(),
                gpu_instance: id,
                profile: profile.clone(),
                compute_instance: *compute,
            };
            let info = MigInfo {
                mig_uuid: format!("MIG-{id}-{compute}"),
                mig_profile: profile.to_string(),
                name: format!("NVIDIA H200 MIG {profile}"),
            };
            rows.entity(&device).info(&m::gpu_mig_info, info);
        }
    }
}

//! Snapshots for tests: a node with eight GPUs, three of which have a condition.

use std::sync::Arc;
use std::time::Duration;

use model::catalog::schema::{KnownLabel, LabelText};
use model::catalog::{self as m, *};
use model::clock::Mono;
use model::health::AbsentGpu;
use model::sample::{Gap, Missing, Rows};
use model::snapshot::*;

/// Index of the GPU on which a driver call is stuck.
pub const STUCK: usize = 3;
/// Index of the GPU in MIG mode.
pub const MIG: usize = 5;
/// Index of the GPU with a pending row remap.
pub const REMAP: usize = 6;

const GIB: f64 = (1u64 << 30) as f64;

/// Returns GPU `index` of the node.
pub fn gpu(index: usize) -> Gpu {
    Gpu { gpu: index as u32, uuid: format!("GPU-{index}a4c5e7f-0b1d-4c3e-9f2a-7b6c5d4e3f21").into() }
}

/// Returns a GPU that the driver no longer lists, and whose index GPU 0 now has.
pub fn absent() -> AbsentGpu {
    let gpu = Gpu { gpu: 0, uuid: "GPU-fa11e4a0-0b1d-4c3e-9f2a-7b6c5d4e3f21".into() };
    AbsentGpu::new(gpu, "0000:0a:00".into(), Some(1_794_990_000))
}

/// Returns the node, published once, at the current time.
pub fn node() -> Arc<Snapshot> {
    Arc::new(node_taken(1, Mono::now()))
}

/// Returns the node, published as number `sequence` at `taken`.
pub fn node_taken(sequence: u64, taken: Mono) -> Snapshot {
    let mut rows = Rows::default();
    put_node(&mut rows);
    for index in 0..8 {
        put_gpu(&mut rows, index);
    }
    let mut snapshot = Snapshot::with_rows(&rows);
    (snapshot.sequence, snapshot.taken) = (sequence, taken);
    snapshot.unix_seconds = 1_795_000_000.25;
    snapshot.driver = DriverState::Up;
    snapshot.ready = true;
    snapshot.gpus = (0..8).map(view).collect();
    let collector = |name, age| CollectorView {
        name,
        up: true,
        age: Some(Duration::from_millis(age)),
        text: String::new(),
    };
    snapshot.collectors = vec![collector("nvml", 140), collector("process", 620)];
    add_histogram(&mut snapshot);
    snapshot.evaluated()
}

fn view(index: usize) -> GpuView {
    let part = |tier, age, duration, rows| PartView {
        tier,
        age: Duration::from_millis(age),
        duration: Duration::from_micros(duration),
        rows,
    };
    let stuck = GpuState::Stuck { call: "nvmlDeviceGetPowerUsage".into(), age: Duration::from_secs(12) };
    GpuView {
        gpu: gpu(index),
        state: if index == STUCK { stuck } else { GpuState::Up },
        parts: match index {
            STUCK => Vec::new(),
            _ => vec![
                part(Tier::Fast, 70, 12, 14),
                part(Tier::Normal, 430, 900, 30),
                part(Tier::Slow, 4_200, 7_000, 60),
            ],
        },
        gaps: vec![Gap {
            call: "nvmlDeviceGetEncoderUtilization".into(),
            metrics: vec![m::gpu_encoder_utilization_ratio.id()],
            missing: Missing::Unsupported,
        }],
        processes: Vec::new(),
    }
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
    of.info(&m::gpu_exporter_build_info, BuildInfo { version: "0.1.0".into(), revision: "0a1b2c3".into() });
    of.record(&m::gpu_driver_up, (), 1.0).unwrap();
    of.record(&m::gpu_driver_stuck, (), 0.0).unwrap();
    of.record(&m::gpu_devices, (), 8.0).unwrap();
    of.record(&m::gpu_devices_expected, (), 8.0).unwrap();
    of.record(&m::process_start_time_seconds, (), 1_794_820_000.5).unwrap();
    for call in ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"] {
        of.record(&m::gpu_exporter_driver_calls_total, (Call(call.into()), Tier::Normal), 1_234_567.0)
            .unwrap();
        of.record(&m::gpu_exporter_driver_call_seconds_total, (Call(call.into()), Tier::Normal), 12.345678)
            .unwrap();
    }
    for code in HttpStatus::ALL {
        of.record(&m::gpu_exporter_http_requests_total, (*code,), 3.0).unwrap();
    }
}

fn put_gpu(rows: &mut Rows, index: usize) {
    let gpu = gpu(index);
    let up = index != STUCK;
    let mut of = rows.entity(&gpu);
    let info = GpuInfo {
        model: "NVIDIA H200".into(),
        architecture: "hopper".into(),
        compute_capability: "9.0".into(),
        pci_address: format!("0000:{:02x}:00.0", 0x0a + index * 0x11),
        pci_device_id: "0x233510de".into(),
        pci_subsystem_id: "0x18be10de".into(),
        serial: format!("165402400{index}"),
        board_part_number: "692-2G520-0280-501".into(),
        minor_number: index.to_string(),
        module_id: (index + 1).to_string(),
        vbios_version: "96.00.BC.00.03".into(),
        inforom_version: "G520.0280.00.05".into(),
        gsp_firmware_version: "580.95.05".into(),
        virtualization_mode: "none".into(),
    };
    of.info(&m::gpu_info, info);
    of.record(&m::gpu_up, (), f64::from(u8::from(up))).unwrap();
    if !up {
        of.record(
            &m::gpu_exporter_driver_call_stuck_seconds,
            (Call("nvmlDeviceGetPowerUsage".into()),),
            12.0,
        )
        .unwrap();
        return;
    }
    put_gpu_values(rows, &gpu, index);
    put_every_label(rows, &gpu);
    if index == MIG {
        put_instances(rows, &gpu);
    }
}

fn put_gpu_values(rows: &mut Rows, gpu: &Gpu, index: usize) {
    let busy = [0.97, 0.99, 0.0, 0.0, 1.0, 0.0, 0.42, 0.88][index];
    let mut of = rows.entity(gpu);
    let mut put = |metric: &schema::Metric<Gpu, ()>, value: f64| of.record(metric, (), value).unwrap();
    put(&m::gpu_memory_total_bytes, 140.4 * GIB);
    put(&m::gpu_memory_used_bytes, if index == MIG { 57.4 * GIB } else { (busy * 131.7 + 0.6) * GIB });
    put(&m::gpu_memory_free_bytes, (131.7 - busy * 131.7) * GIB);
    put(&m::gpu_memory_reserved_bytes, 0.62 * GIB);
    put(&m::gpu_bar1_memory_total_bytes, 256.0 * GIB);
    put(&m::gpu_power_watts, 78.0 + busy * 611.4);
    put(&m::gpu_power_instant_watts, 79.1 + busy * 610.0);
    put(&m::gpu_energy_joules_total, 3_456_789_012.345 + index as f64);
    put(
        &m::gpu_temperature_margin_celsius,
        (52.0 - busy * 31.0 - if index == 4 { 19.0 } else { 0.0 }).floor(),
    );
    put(&m::gpu_performance_state, 0.0);
    put(&m::gpu_row_remap_pending, f64::from(u8::from(index == REMAP)));
    put(&m::gpu_row_remap_failure, 0.0);
    put(&m::gpu_pcie_link_generation, 5.0);
    put(&m::gpu_pcie_link_max_generation, 5.0);
    put(&m::gpu_pcie_link_width_lanes, if index == 7 { 8.0 } else { 16.0 });
    put(&m::gpu_pcie_link_max_width_lanes, 16.0);
    put(&m::gpu_pcie_replays_total, 0.0);
    put(&m::gpu_persistence_mode_enabled, 1.0);
    put(&m::gpu_ecc_mode_enabled, 1.0);
    put(&m::gpu_mig_mode_enabled, f64::from(u8::from(index == MIG)));
    if index != MIG {
        put(&m::gpu_utilization_ratio, busy);
        put(&m::gpu_memory_utilization_ratio, busy * 0.6);
    }
    let capped = index == 1;
    for event in ClockEvent::ALL {
        let active = match event {
            ClockEvent::GpuIdle => busy == 0.0,
            ClockEvent::SwPowerCap => capped,
            ClockEvent::HwThermalSlowdown | ClockEvent::HwSlowdown => index == 4,
            _ => false,
        };
        of.record(&m::gpu_clock_event_active, (*event,), f64::from(u8::from(active))).unwrap();
        of.record(&m::gpu_clock_event_seconds_total, (*event,), 12.25).unwrap();
    }
    for (domain, mhz) in ClockDomain::ALL.iter().zip([1980.0, 1980.0, 3201.0, 1545.0]) {
        let now = if busy == 0.0 { 345.0 } else { mhz - if capped { 240.0 } else { 0.0 } };
        of.record(&m::gpu_clock_hertz, (*domain,), now * 1e6).unwrap();
        of.record(&m::gpu_clock_max_hertz, (*domain,), mhz * 1e6).unwrap();
    }
    of.record(&m::gpu_temperature_celsius, (Sensor::Gpu,), (29.0 + busy * 36.0).floor()).unwrap();
    of.record(&m::gpu_temperature_celsius, (Sensor::Memory,), (38.0 + busy * 40.0).floor()).unwrap();
    of.record(&m::gpu_processes, (ProcessType::Compute,), (busy * 1.9).ceil()).unwrap();
    of.record(&m::gpu_processes, (ProcessType::Graphics,), 0.0).unwrap();
    for limit in PowerLimit::ALL {
        of.record(
            &m::gpu_power_limit_watts,
            (*limit,),
            if *limit == PowerLimit::Min { 200.0 } else { 700.0 },
        )
        .unwrap();
    }
    of.state(&m::gpu_compute_mode, ComputeMode::Default);
}

/// Adds one row per known label value, so that a GPU has as many series as a real one.
fn put_every_label(rows: &mut Rows, gpu: &Gpu) {
    let mut of = rows.entity(gpu);
    for threshold in TemperatureThreshold::ALL {
        of.record(&m::gpu_temperature_threshold_celsius, (*threshold,), 87.0 + *threshold as u8 as f64)
            .unwrap();
    }
    for counter in EccCounter::ALL {
        for error in EccError::ALL {
            of.record(&m::gpu_ecc_total_errors, (*counter, *error), 0.0).unwrap();
            for memory in EccMemory::ALL {
                of.record(&m::gpu_ecc_errors, (*counter, *error, *memory), 0.0).unwrap();
            }
        }
    }
    for cause in RemapCause::ALL {
        of.record(&m::gpu_remapped_rows, (*cause,), 0.0).unwrap();
    }
    for tier in Tier::ALL {
        of.record(&m::gpu_exporter_sample_timestamp_seconds, (*tier,), 1_795_000_000.123).unwrap();
    }
    of.record(&m::gpu_exporter_driver_errors_total, (), 0.0).unwrap();
}

fn put_instances(rows: &mut Rows, gpu: &Gpu) {
    for (id, profile, gib, used) in
        [(1, "3g.71gb", 69.8, 41.0), (5, "2g.35gb", 33.6, 0.05), (13, "1g.18gb", 16.3, 15.9)]
    {
        let (index, uuid, profile) = (gpu.gpu, gpu.uuid.clone(), Arc::<str>::from(profile));
        let instance =
            GpuInstance { gpu: index, uuid: uuid.clone(), gpu_instance: id, profile: profile.clone() };
        let mut of = rows.entity(&instance);
        of.record(&m::gpu_mig_memory_total_bytes, (), gib * GIB).unwrap();
        of.record(&m::gpu_mig_memory_used_bytes, (), used * GIB).unwrap();
        let device = ComputeInstance {
            gpu: index,
            uuid,
            gpu_instance: id,
            profile: profile.clone(),
            compute_instance: 0,
        };
        let info = MigInfo {
            mig_uuid: format!("MIG-{id}-5e7f"),
            mig_profile: profile.to_string(),
            name: format!("NVIDIA H200 MIG {profile}"),
        };
        rows.entity(&device).info(&m::gpu_mig_info, info);
    }
}

fn add_histogram(snapshot: &mut Snapshot) {
    static BOUNDS: [f64; 4] = [0.000_001, 0.001, 1.0, 2.5];
    let def = m::gpu_exporter_driver_call_duration_seconds.def();
    let mut histogram = Histogram::new(&BOUNDS);
    for seconds in [0.000_000_3, 0.000_4, 0.000_4, 0.07, 1.0, 3.0] {
        histogram.observe(seconds);
    }
    let subject = Arc::new(SubjectText { subject: Subject::Node(Node {}), values: Vec::new() });
    let series = vec![Series { subject, labels: Vec::new(), value: Value::Histogram(Arc::new(histogram)) }];
    snapshot.families.push(Family { def, series, whole: true });
}

/// Returns the label values of a `Series`: `text` for free labels, and a known value for the others.
pub fn labels_of(def: &MetricDef, pick: usize, text: &str) -> Vec<LabelText> {
    let one = |label: &schema::LabelDef| match label.values {
        Some(values) => LabelText::Known((pick % values.len()) as u8),
        None => LabelText::Text(text.into()),
    };
    def.labels.iter().map(one).collect()
}

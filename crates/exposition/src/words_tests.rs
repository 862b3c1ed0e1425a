//! Verdicts, one rule at a time.

use crate::page::*;
use model::catalog::DriverError;
use crate::encode::fixtures;
use model::sample::{ErrorKind, Gap, Rows};

/// The verdict on a GPU that is up and has the rows that `put` adds.
fn on(put: impl FnOnce(&mut Rows, &Gpu)) -> Verdict {
    let gpu = fixtures::gpu(0);
    let mut rows = Rows::default();
    put(&mut rows, &gpu);
    let mut snapshot = fixtures::with_rows(&rows);
    snapshot.gpus = vec![GpuView {
        gpu,
        state: GpuState::Up,
        parts: Vec::new(),
        gaps: Vec::new(),
        processes: Vec::new(),
    }];
    verdicts(&snapshot).remove(0)
}

fn said(verdict: &Verdict) -> Vec<(Weight, &str)> {
    verdict.reasons.iter().map(|reason| (reason.weight, reason.text.as_str())).collect()
}

fn event(event: ClockEvent) -> Verdict {
    on(|rows, gpu| rows.of(gpu).put(&m::gpu_clock_event_active, (event,), 1.0).unwrap())
}

#[test]
fn a_gpu_of_which_nothing_is_wrong_is_well() {
    let verdict = on(|_, _| ());
    assert_eq!((verdict.weight, verdict.word), (Weight::Well, "well"));
    assert_eq!(said(&verdict), []);
}

#[test]
fn memory_faults_are_told() {
    let verdict = on(|rows, gpu| rows.of(gpu).put(&m::gpu_row_remap_pending, (), 1.0).unwrap());
    assert_eq!(verdict.word, "degraded");
    assert_eq!(said(&verdict), [(Weight::Warn, "a memory row waits for a GPU reset")]);

    let verdict = on(|rows, gpu| {
        rows.of(gpu).put(&m::gpu_row_remap_pending, (), 1.0).unwrap();
        rows.of(gpu).put(&m::gpu_row_remap_failure, (), 1.0).unwrap();
    });
    assert_eq!((verdict.word, verdict.reasons.len()), ("faulty", 2));
    assert!(verdict.reasons[0].text.contains("candidate for return"), "the heavier reason first");

    let errors = |counter, error| {
        on(|rows, gpu| rows.of(gpu).put(&m::gpu_ecc_total_errors, (counter, error), 2.0).unwrap())
    };
    let verdict = errors(EccCounter::Volatile, EccError::Uncorrected);
    assert_eq!(said(&verdict), [(Weight::Warn, "2 uncorrected ECC errors since the driver was loaded")]);
    assert_eq!(errors(EccCounter::Volatile, EccError::Corrected).word, "well");
    assert_eq!(errors(EccCounter::Aggregate, EccError::Uncorrected).word, "well");
}

#[test]
fn slow_clocks_are_told_by_cause() {
    assert_eq!(
        said(&event(ClockEvent::HwThermalSlowdown)),
        [(Weight::Warn, "the hardware slows it down for heat")]
    );
    assert_eq!(
        said(&event(ClockEvent::SwThermalSlowdown)),
        [(Weight::Warn, "the driver slows it down for heat")]
    );
    assert_eq!(event(ClockEvent::HwPowerBrakeSlowdown).word, "degraded");
    assert_eq!(event(ClockEvent::HwSlowdown).word, "degraded");
    let capped = event(ClockEvent::SwPowerCap);
    assert_eq!((capped.weight, capped.word), (Weight::Well, "well"));
    assert_eq!(said(&capped), [(Weight::Note, "at its power limit")]);
    assert_eq!(said(&event(ClockEvent::GpuIdle)), []);
}

#[test]
fn the_general_slowdown_is_not_told_beside_its_cause() {
    let verdict = on(|rows, gpu| {
        for event in [ClockEvent::HwSlowdown, ClockEvent::HwThermalSlowdown] {
            rows.of(gpu).put(&m::gpu_clock_event_active, (event,), 1.0).unwrap();
        }
    });
    assert_eq!(verdict.reasons.len(), 1);
}

#[test]
fn heat_is_measured_against_the_device() {
    let margin =
        |celsius| on(|rows, gpu| rows.of(gpu).put(&m::gpu_temperature_margin_celsius, (), celsius).unwrap());
    assert_eq!(said(&margin(2.0)), [(Weight::Warn, "2 °C left until it slows down for heat")]);
    assert_eq!(margin(6.0).word, "well");
}

#[test]
fn a_narrow_link_is_a_fault_and_a_slow_one_only_worth_knowing() {
    let link = |busy: f64, generation: f64, width: f64| {
        on(|rows, gpu| {
            let mut of = rows.of(gpu);
            of.put(&m::gpu_utilization_ratio, (), busy).unwrap();
            of.put(&m::gpu_pcie_link_generation, (), generation).unwrap();
            of.put(&m::gpu_pcie_link_max_generation, (), 5.0).unwrap();
            of.put(&m::gpu_pcie_link_width_lanes, (), width).unwrap();
            of.put(&m::gpu_pcie_link_max_width_lanes, (), 16.0).unwrap();
        })
    };
    assert_eq!(said(&link(0.5, 5.0, 8.0)), [(Weight::Warn, "PCIe uses 8 of 16 lanes")]);
    assert_eq!(said(&link(0.5, 3.0, 16.0)), [(Weight::Note, "PCIe runs at generation 3 of 5")]);
    assert_eq!(said(&link(0.0, 1.0, 16.0)), [], "idle");
}

#[test]
fn a_failed_call_is_told_and_an_unsupported_one_is_not() {
    let gap = |missing| Gap { call: "nvmlDeviceGetX".into(), metrics: Vec::new(), missing };
    let failed =
        Missing::Failed { error: ErrorKind::new(DriverError::Unknown), text: "an unknown error".into() };
    let mut snapshot = fixtures::with_rows(&Rows::default());
    let gaps = vec![gap(Missing::Unsupported), gap(failed.clone()), gap(failed)];
    snapshot.gpus = vec![GpuView {
        gpu: fixtures::gpu(0),
        state: GpuState::Up,
        parts: Vec::new(),
        gaps,
        processes: Vec::new(),
    }];
    let verdict = verdicts(&snapshot).remove(0);
    assert_eq!(said(&verdict), [(Weight::Warn, "nvmlDeviceGetX failed: an unknown error, and 1 more")]);
}

/// The sentence about a node with GPUs in these states.
fn sentence(driver: DriverState, states: &[GpuState]) -> Remark {
    let mut snapshot = Snapshot { driver, ..Snapshot::empty() };
    let view = |(at, state): (usize, &GpuState)| GpuView {
        gpu: fixtures::gpu(at),
        state: state.clone(),
        parts: Vec::new(),
        gaps: Vec::new(),
        processes: Vec::new(),
    };
    snapshot.gpus = states.iter().enumerate().map(view).collect();
    let verdicts = verdicts(&snapshot);
    overall(&snapshot, &verdicts)
}

#[test]
fn the_node_is_told_in_a_sentence() {
    use GpuState::{NoDriver, Up};
    let stuck = GpuState::Stuck { call: "nvmlDeviceGetPowerUsage".into(), age: Duration::from_secs(12) };
    let lost = GpuState::Failing { text: "GPU is lost".into() };
    let away = DriverState::Away { text: "libnvidia-ml.so.1 is not there".into() };
    for (driver, states, weight, text) in [
        (DriverState::Up, vec![], Weight::Well, "The driver lists no GPU."),
        (DriverState::Up, vec![Up], Weight::Well, "1 GPU, well."),
        (DriverState::Up, vec![Up, Up], Weight::Well, "2 GPUs, all well."),
        (
            DriverState::Up,
            vec![Up, Up, stuck.clone()],
            Weight::Bad,
            "3 GPUs, 2 well, GPU 2 stuck: nvmlDeviceGetPowerUsage has not returned for 12 s.",
        ),
        (
            DriverState::Up,
            vec![lost.clone(), lost.clone(), lost.clone(), GpuState::Waiting],
            Weight::Bad,
            "4 GPUs, none well, GPU 0 failing: it answers with errors only: GPU is lost; \
             failing: GPU 1, 2; waiting: GPU 3.",
        ),
        (DriverState::Waiting, vec![], Weight::Waiting, "Waiting for the driver's first answer."),
        (
            DriverState::Stuck,
            vec![NoDriver],
            Weight::Bad,
            "The driver is stuck: calls into it do not return. 1 GPU is known from before.",
        ),
        (
            away,
            vec![NoDriver, NoDriver],
            Weight::Bad,
            "The driver is away: libnvidia-ml.so.1 is not there. 2 GPUs are known from before.",
        ),
    ] {
        assert_eq!(sentence(driver, &states), Remark { weight, text: text.into() });
    }
}

#[test]
fn gpus_that_are_gone_and_collectors_that_are_down_are_told() {
    let mut rows = Rows::default();
    rows.of(&Node {}).put(&m::gpu_devices, (), 7.0).unwrap();
    rows.of(&Node {}).put(&m::gpu_devices_expected, (), 8.0).unwrap();
    let mut snapshot = fixtures::with_rows(&rows);
    snapshot.driver = DriverState::Up;
    let down = CollectorView { name: "process", up: false, age: None, text: "/proc is not there".into() };
    snapshot.collectors = vec![down];
    let remark = overall(&snapshot, &[]);
    assert_eq!(remark.weight, Weight::Bad);
    assert_eq!(remark.text, "The driver lists no GPU, 1 missing; collector process is down.");
    assert_eq!(collector_text(&snapshot.collectors[0]), "down: /proc is not there, no values yet");
}

#[test]
fn durations_are_short() {
    let cases =
        [(0.14, "0.1 s"), (12.9, "12 s"), (119.0, "119 s"), (125.0, "2 min"), (7_300.0, "2 h"), (4e5, "4 d")];
    for (seconds, text) in cases {
        assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
    }
}

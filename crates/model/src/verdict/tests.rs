//! Verdicts, one condition at a time.

use std::time::Duration;

use super::*;
use crate::catalog::{DriverError, Node};
use crate::health::HealthStatus;
use crate::sample::{Gap, Rows};
use crate::snapshot::{CollectorView, Event};

fn gpu(index: u32) -> Gpu {
    Gpu { gpu: index, uuid: format!("GPU-{index}").into() }
}

fn view(gpu: Gpu, state: GpuState) -> GpuView {
    GpuView { gpu, state, parts: Vec::new(), gaps: Vec::new(), processes: Vec::new() }
}

/// The verdict on a GPU that is up and has the rows that `put` adds.
fn on(put: impl FnOnce(&mut Rows, &Gpu)) -> GpuHealth {
    let gpu = gpu(0);
    let mut rows = Rows::default();
    put(&mut rows, &gpu);
    let mut snapshot = Snapshot::with_rows(&rows);
    snapshot.gpus = vec![view(gpu, GpuState::Up)];
    snapshot.evaluated().health.gpus.remove(0)
}

fn texts(verdict: &GpuHealth) -> Vec<(HealthLevel, &str)> {
    verdict.reasons.iter().map(|reason| (reason.condition.level(), reason.text.as_str())).collect()
}

fn event(event: ClockEvent) -> GpuHealth {
    on(|rows, gpu| rows.entity(gpu).record(&m::gpu_clock_event_active, (event,), 1.0).unwrap())
}

#[test]
fn a_gpu_without_conditions_is_ok() {
    let verdict = on(|_, _| ());
    assert_eq!((verdict.level, verdict.word), (HealthLevel::Ok, "ok"));
    assert_eq!(texts(&verdict), []);
}

#[test]
fn memory_faults_are_reasons() {
    let verdict = on(|rows, gpu| rows.entity(gpu).record(&m::gpu_row_remap_pending, (), 1.0).unwrap());
    assert_eq!(verdict.word, "degraded");
    assert_eq!(texts(&verdict), [(HealthLevel::Degraded, "a memory row waits for a GPU reset")]);

    let verdict = on(|rows, gpu| {
        rows.entity(gpu).record(&m::gpu_row_remap_pending, (), 1.0).unwrap();
        rows.entity(gpu).record(&m::gpu_row_remap_failure, (), 1.0).unwrap();
    });
    assert_eq!((verdict.word, verdict.reasons.len()), ("faulty", 2));
    assert!(verdict.reasons[0].text.contains("candidate for return"), "the heavier reason first");

    let errors = |counter, error| {
        on(|rows, gpu| rows.entity(gpu).record(&m::gpu_ecc_total_errors, (counter, error), 2.0).unwrap())
    };
    let verdict = errors(EccCounter::Volatile, EccError::Uncorrected);
    assert_eq!(
        texts(&verdict),
        [(HealthLevel::Degraded, "2 uncorrected ECC errors since the driver was loaded")]
    );
    assert_eq!(errors(EccCounter::Volatile, EccError::Corrected).word, "ok");
    assert_eq!(errors(EccCounter::Aggregate, EccError::Uncorrected).word, "ok");
}

#[test]
fn slow_clocks_are_reasons_by_cause() {
    assert_eq!(
        texts(&event(ClockEvent::HwThermalSlowdown)),
        [(HealthLevel::Degraded, "the hardware slows it down for heat")]
    );
    assert_eq!(
        texts(&event(ClockEvent::SwThermalSlowdown)),
        [(HealthLevel::Degraded, "the driver slows it down for heat")]
    );
    assert_eq!(event(ClockEvent::HwPowerBrakeSlowdown).word, "degraded");
    assert_eq!(event(ClockEvent::HwSlowdown).word, "degraded");
    let capped = event(ClockEvent::SwPowerCap);
    assert_eq!((capped.level, capped.word), (HealthLevel::Ok, "ok"));
    assert_eq!(texts(&capped), [(HealthLevel::Note, "at its power limit")]);
    assert_eq!(texts(&event(ClockEvent::GpuIdle)), []);
}

#[test]
fn the_general_slowdown_is_no_reason_beside_its_cause() {
    let verdict = on(|rows, gpu| {
        for event in [ClockEvent::HwSlowdown, ClockEvent::HwThermalSlowdown] {
            rows.entity(gpu).record(&m::gpu_clock_event_active, (event,), 1.0).unwrap();
        }
    });
    assert_eq!(verdict.reasons.len(), 1);
}

#[test]
fn heat_is_measured_against_the_device() {
    let margin = |celsius| {
        on(|rows, gpu| rows.entity(gpu).record(&m::gpu_temperature_margin_celsius, (), celsius).unwrap())
    };
    assert_eq!(texts(&margin(2.0)), [(HealthLevel::Degraded, "2 °C left until it slows down for heat")]);
    assert_eq!(margin(6.0).word, "ok");
}

#[test]
fn a_narrow_link_is_a_fault_and_a_slow_one_only_worth_knowing() {
    let link = |busy: f64, generation: f64, width: f64| {
        on(|rows, gpu| {
            let mut of = rows.entity(gpu);
            of.record(&m::gpu_utilization_ratio, (), busy).unwrap();
            of.record(&m::gpu_pcie_link_generation, (), generation).unwrap();
            of.record(&m::gpu_pcie_link_max_generation, (), 5.0).unwrap();
            of.record(&m::gpu_pcie_link_width_lanes, (), width).unwrap();
            of.record(&m::gpu_pcie_link_max_width_lanes, (), 16.0).unwrap();
        })
    };
    assert_eq!(texts(&link(0.5, 5.0, 8.0)), [(HealthLevel::Degraded, "PCIe uses 8 of 16 lanes")]);
    assert_eq!(texts(&link(0.5, 3.0, 16.0)), [(HealthLevel::Note, "PCIe runs at generation 3 of 5")]);
    assert_eq!(texts(&link(0.0, 1.0, 16.0)), [], "idle");
}

#[test]
fn a_failed_call_is_a_reason_and_an_unsupported_one_is_not() {
    let gap = |missing| Gap { call: "nvmlDeviceGetX".into(), metrics: Vec::new(), missing };
    let failed = Missing::Failed { error: DriverError::Unknown, text: "an unknown error".into() };
    let mut snapshot = Snapshot::with_rows(&Rows::default());
    let gaps = vec![gap(Missing::Unsupported), gap(failed.clone()), gap(failed)];
    snapshot.gpus = vec![GpuView { gaps, ..view(gpu(0), GpuState::Up) }];
    let verdict = snapshot.evaluated().health.gpus.remove(0);
    assert_eq!(
        texts(&verdict),
        [(HealthLevel::Degraded, "nvmlDeviceGetX failed: an unknown error, and 1 more")]
    );
}

fn failing(error: DriverError, text: &str) -> GpuState {
    GpuState::Failing { error, text: text.into() }
}

/// The sentence about a node with GPUs in these states.
fn sentence(driver: DriverState, states: &[GpuState]) -> (HealthLevel, String) {
    let mut snapshot = Snapshot { driver, ..Snapshot::default() };
    snapshot.gpus = (0..).zip(states).map(|(at, state)| view(gpu(at), state.clone())).collect();
    node(snapshot)
}

fn node(snapshot: Snapshot) -> (HealthLevel, String) {
    let NodeHealth { level, text, .. } = snapshot.evaluated().health;
    (level, text)
}

#[test]
fn the_node_is_one_sentence() {
    use GpuState::{NoDriver, Up};
    let stuck = GpuState::Stuck { call: "nvmlDeviceGetPowerUsage".into(), age: Duration::from_secs(12) };
    let lost = failing(DriverError::GpuIsLost, "GPU is lost");
    let away = DriverState::Away { text: "libnvidia-ml.so.1 is not there".into() };
    for (driver, states, level, text) in [
        (DriverState::Up, vec![], HealthLevel::Ok, "The driver lists no GPU."),
        (DriverState::Up, vec![Up], HealthLevel::Ok, "1 GPU, ok."),
        (DriverState::Up, vec![Up, Up], HealthLevel::Ok, "2 GPUs, all ok."),
        (
            DriverState::Up,
            vec![Up, Up, stuck.clone()],
            HealthLevel::Faulty,
            "3 GPUs, 2 ok, GPU 2 stuck: nvmlDeviceGetPowerUsage has not returned for 12 s.",
        ),
        (
            DriverState::Up,
            vec![lost.clone(), lost.clone(), lost.clone(), GpuState::Waiting],
            HealthLevel::Faulty,
            "4 GPUs, none ok, GPU 0 failing: it answers with errors only: GPU is lost; \
             failing: GPU 1, 2; waiting: GPU 3.",
        ),
        (DriverState::Waiting, vec![], HealthLevel::Waiting, "Waiting for the driver's first answer."),
        (
            DriverState::Stuck,
            vec![NoDriver],
            HealthLevel::Faulty,
            "The driver is stuck: calls into it do not return. 1 GPU is known from before.",
        ),
        (
            away,
            vec![NoDriver, NoDriver],
            HealthLevel::Faulty,
            "The driver is away: libnvidia-ml.so.1 is not there. 2 GPUs are known from before.",
        ),
    ] {
        assert_eq!(sentence(driver, &states), (level, text.to_owned()));
    }
}

#[test]
fn missing_gpus_and_collectors_that_are_down_are_named() {
    let mut rows = Rows::default();
    rows.entity(&Node {}).record(&m::gpu_devices, (), 7.0).unwrap();
    rows.entity(&Node {}).record(&m::gpu_devices_expected, (), 8.0).unwrap();
    let mut snapshot = Snapshot::with_rows(&rows);
    snapshot.driver = DriverState::Up;
    let down = CollectorView { name: "process", up: false, age: None, text: "/proc is not there".into() };
    snapshot.collectors = vec![down];
    assert_eq!(snapshot.collectors[0].text(), "down: /proc is not there, no values yet");
    let (level, text) = node(snapshot);
    assert_eq!(level, HealthLevel::Faulty);
    assert_eq!(text, "The driver lists no GPU, 1 missing; collector process is down.");
}

#[test]
fn what_the_driver_asks_for_is_a_reason_in_its_own_words() {
    let snapshot =
        Snapshot { driver: DriverState::Up, gpus: vec![view(gpu(0), GpuState::Up)], ..Snapshot::default() };
    for (action, text, first) in [
        (RecoveryAction::GpuReset, "the driver asks for a reset of the GPU", FaultAction::ResetGpu),
        (RecoveryAction::NodeReboot, "the driver asks for a reboot of the node", FaultAction::RebootNode),
        (RecoveryAction::DrainP2p, "the driver asks to drain peer-to-peer traffic", FaultAction::ResetGpu),
        (
            RecoveryAction::DrainAndReset,
            "the driver asks to drain the GPU, then to reset it",
            FaultAction::ResetGpu,
        ),
    ] {
        let found = Findings { recovery_action: Some(action), ..Findings::default() };
        let evidence =
            HealthEvidence { snapshot: &snapshot, missing: 0, absent: Vec::new(), value: &|_, _, _| None };
        let reason = evidence.evaluate(|_| found.clone()).gpus.remove(0).reasons.remove(0);
        assert_eq!((reason.text.as_str(), reason.action), (text, first));
    }
}

#[test]
fn missing_gpus_that_are_known_are_named() {
    let sentence = |names: &[(&str, &str)]| {
        let mut rows = Rows::default();
        rows.entity(&Node {}).record(&m::gpu_devices, (), 0.0).unwrap();
        rows.entity(&Node {}).record(&m::gpu_devices_expected, (), 8.0).unwrap();
        let mut snapshot = Snapshot::with_rows(&rows);
        snapshot.driver = DriverState::Up;
        let absent = |(uuid, pci): &(&str, &str)| {
            AbsentGpu::new(Gpu { gpu: 3, uuid: (*uuid).into() }, (*pci).to_owned(), None)
        };
        snapshot.health.absent = names.iter().map(absent).collect();
        node(snapshot).1
    };
    let all = [("GPU-a", "0000:06:00"), ("GPU-b", ""), ("GPU-c", "")];
    let begin = "The driver lists no GPU, 8 missing";
    assert_eq!(sentence(&all[..1]), format!("{begin} (GPU-a at 0000:06:00)."));
    assert_eq!(sentence(&all[..2]), format!("{begin} (GPU-a at 0000:06:00, GPU-b)."));
    assert_eq!(sentence(&all), format!("{begin} (GPU-a at 0000:06:00, GPU-b, ...)."));
}

/// The reasons of `gpu_unhealthy_reason` on a GPU in this state; `None`: no verdict.
fn unhealthy(state: GpuState, found: Findings) -> Option<Vec<UnhealthyReason>> {
    let snapshot =
        Snapshot { driver: DriverState::Up, gpus: vec![view(gpu(0), state)], ..Snapshot::default() };
    let evidence =
        HealthEvidence { snapshot: &snapshot, missing: 0, absent: Vec::new(), value: &|_, _, _| None };
    let health = evidence.evaluate(|_| found.clone()).gpus.remove(0);
    let reasons: Vec<_> = UnhealthyReason::ALL.iter().copied().filter(|reason| health.has(*reason)).collect();
    assert_eq!(health.healthy.unwrap_or(reasons.is_empty()), reasons.is_empty());
    let faulty = health.level == HealthLevel::Faulty;
    assert!(health.healthy.is_none_or(|healthy| healthy != faulty), "page and metric agree");
    health.healthy.map(|_| reasons)
}

#[test]
fn each_finding_is_a_reason_of_its_own() {
    use UnhealthyReason as R;
    let none = Findings::default();
    let stuck = GpuState::Stuck { call: "nvmlX".into(), age: Duration::ZERO };
    let failing = failing(DriverError::GpuIsLost, "lost");
    let reset = Some(RecoveryAction::GpuReset);
    for (state, found, reasons) in [
        (&GpuState::Up, none.clone(), vec![]),
        (&GpuState::Up, Findings { missing: true, ..none.clone() }, vec![]),
        (&stuck, none.clone(), vec![R::Stuck]),
        (&failing, none.clone(), vec![R::Lost]),
        (&failing, Findings { missing: true, ..none.clone() }, vec![R::Missing]),
        (&GpuState::Up, Findings { recovery_action: reset, ..none.clone() }, vec![R::RecoveryAction]),
        (&GpuState::Up, Findings { fatal_xid: true, ..none.clone() }, vec![R::FatalXid]),
        (&GpuState::Up, Findings { uncontained_ecc: true, ..none.clone() }, vec![R::UncontainedEcc]),
        (&GpuState::Up, Findings { row_remap_failure: true, ..none.clone() }, vec![R::RowRemapFailure]),
        (&GpuState::Up, Findings { canary: true, ..none.clone() }, vec![R::Canary]),
        (
            &GpuState::Up,
            Findings { conditions: vec![(Condition::WrongResult, "wrong".into())], ..none.clone() },
            vec![R::Canary],
        ),
        (&stuck, Findings { fatal_xid: true, ..none.clone() }, vec![R::Stuck, R::FatalXid]),
    ] {
        assert_eq!(unhealthy(state.clone(), found.clone()), Some(reasons), "{state:?} {found:?}");
    }
}

#[test]
fn a_gpu_that_cannot_be_asked_has_no_verdict() {
    let all = Findings { fatal_xid: true, missing: true, ..Findings::default() };
    assert_eq!(unhealthy(GpuState::NoDriver, all.clone()), None);
    assert_eq!(unhealthy(GpuState::Waiting, all), None);
}

#[test]
fn a_gpu_that_was_not_read_for_a_while_is_no_broken_gpu() {
    assert_eq!(unhealthy(GpuState::Unread, Findings::default()), None);
    let snapshot = Snapshot { gpus: vec![view(gpu(0), GpuState::Unread)], ..Snapshot::default() };
    let verdict = snapshot.evaluated().health.gpus.remove(0);
    assert_eq!(HealthStatus::from(verdict.level), HealthStatus::Unknown);
    for (found, reason) in [
        (Findings { fatal_xid: true, ..Findings::default() }, UnhealthyReason::FatalXid),
        (Findings { missing: true, ..Findings::default() }, UnhealthyReason::Missing),
    ] {
        assert_eq!(unhealthy(GpuState::Unread, found), Some(vec![reason]), "known from before");
    }
}

/// A GPU that is up, with a paging event of this kind at second 100.
fn after(kind: EventKind) -> Snapshot {
    let event = Event {
        gpu: Some(gpu(0)),
        code: Some(79),
        meaning: "the GPU has fallen off the bus",
        ..Event::new(kind, 100.0, Severity::Page, FaultAction::RebootNode)
    };
    let gpus = vec![view(gpu(0), GpuState::Up)];
    Snapshot {
        driver: DriverState::Up,
        gpus,
        events: [event.into()].into(),
        unix_seconds: 200.0,
        ..Snapshot::default()
    }
}

fn judged(snapshot: &Snapshot, found: &Findings) -> GpuHealth {
    let evidence = HealthEvidence { snapshot, missing: 0, absent: Vec::new(), value: &|_, _, _| None };
    evidence.evaluate(|_| found.clone()).gpus.remove(0)
}

#[test]
fn a_recent_event_is_the_text_of_the_fatal_xid() {
    let mut snapshot = after(EventKind::Xid);
    for (unix_seconds, text) in [
        (200.0, "Xid 79: the GPU has fallen off the bus First: reboot the node."),
        (100.0 + 2.0 * RECENT_FAULT, "a fault came after which the GPU needs a reset"),
    ] {
        snapshot.unix_seconds = unix_seconds;
        let health = judged(&snapshot, &Findings { fatal_xid: true, ..Findings::default() });
        assert_eq!(texts(&health), [(HealthLevel::Faulty, text)]);
        assert_eq!((health.reasons[0].level, health.healthy), (HealthLevel::Faulty, Some(false)));
        assert_eq!(health.word, "faulty");
    }
}

#[test]
fn an_event_is_over_with_the_reset_and_faulty_only_while_the_ledger_says_so() {
    let snapshot = after(EventKind::Xid);
    let health = judged(&snapshot, &Findings::default());
    assert_eq!((health.word, health.healthy), ("degraded", Some(true)), "contained, or reported twice");
    let reset = |at| judged(&snapshot, &Findings { reset: Some(at), ..Findings::default() }).word;
    assert_eq!((reset(99.0), reset(101.0)), ("degraded", "ok"));
    assert_eq!(judged(&after(EventKind::GpuLost), &Findings::default()).word, "ok", "the state says it");
}

#[test]
fn new_errors_of_nvlinks_are_a_reason_and_repaired_checksums_are_not() {
    let new = |kind, all, worst, links| NewLinkErrors { kind, all, worst, links };
    let snapshot = after(EventKind::GpuLost);
    let health = |nvlink: &[NewLinkErrors]| {
        let value: &PublishedValue<'_> = &|metric, _, _| (metric == m::gpu_nvlink_links.id()).then_some(18.0);
        let evidence = HealthEvidence { snapshot: &snapshot, missing: 0, absent: Vec::new(), value };
        evidence.evaluate(|_| Findings { nvlink: nvlink.to_vec(), ..Findings::default() }).gpus.remove(0)
    };
    let errors = health(&[new(NvLinkError::Recovery, 3.0, 3.0, 1), new(NvLinkError::CrcFlit, 7.0, 7.0, 1)]);
    assert_eq!(
        texts(&errors),
        [
            (HealthLevel::Degraded, "NVLink errors: 3 dl_recovery within 30 min"),
            (HealthLevel::Note, "NVLink errors: 7 dl_crc_flit within 60 min")
        ]
    );
    let word = |kind, all, worst, links| health(&[new(kind, all, worst, links)]).word;
    assert_eq!(word(NvLinkError::CrcFlit, 7.0, 7.0, 1), "ok");
    assert_eq!(word(NvLinkError::CrcFlit, 4e5, 3e5, 2), "degraded");
    assert_eq!(word(NvLinkError::Recovery, 4.0, 2.0, 2), "ok", "fewer than three of one link");
    assert_eq!(word(NvLinkError::Recovery, 54.0, 3.0, 18), "ok", "the reset of a peer");
    assert_eq!(word(NvLinkError::LinkRecovery, 3.0, 3.0, 1), "degraded");
    assert_eq!(word(NvLinkError::RecoveryFailed, 1.0, 1.0, 1), "degraded");
    assert_eq!(word(NvLinkError::RecoveryFailed, 10.0, 1.0, 10), "degraded", "links that were not trained");
    assert_eq!(word(NvLinkError::Replay, 1.0, 1.0, 1), "degraded");
}

#[test]
fn links_fabric_sram_and_repairs_are_reasons() {
    let text = |put: &dyn Fn(&mut Rows, &Gpu)| {
        let health = on(put);
        assert_eq!((health.word, health.healthy), ("degraded", Some(true)));
        health.reasons[0].text.clone()
    };
    let text_of = |metric: &Metric<Gpu, ()>, value: f64| {
        text(&|rows: &mut Rows, gpu: &Gpu| rows.entity(gpu).record(metric, (), value).unwrap())
    };
    assert!(text_of(&m::gpu_ecc_sram_threshold_exceeded, 1.0).contains("SRAM"));
    assert!(text_of(&m::gpu_fabric_status, 9.0).contains("status 9"));
    assert!(text_of(&m::gpu_retired_pages_pending, 1.0).contains("retired"));
    let fault = text(&|rows: &mut Rows, gpu: &Gpu| {
        rows.entity(gpu).record(&m::gpu_fabric_fault, (FabricFault::RouteUnhealthy,), 1.0).unwrap();
    });
    assert_eq!(fault, "the NVLink fabric reports: route unhealthy");
    let state = text(&|rows: &mut Rows, gpu: &Gpu| {
        rows.entity(gpu).record(&m::gpu_fabric_state, (FabricState::InProgress,), 1.0).unwrap();
    });
    assert!(state.contains("not joined"));
    let repair = text(&|rows: &mut Rows, gpu: &Gpu| {
        rows.entity(gpu).record(&m::gpu_repair_pending, (RepairPart::ALL[0],), 1.0).unwrap();
    });
    assert!(repair.contains("waits for a GPU reset"));
}

#[test]
fn a_condition_is_faulty_if_and_only_if_it_has_a_reason() {
    for condition in Condition::ALL.iter().filter(|condition| **condition != Condition::NoDriver) {
        let faulty = condition.level() == HealthLevel::Faulty;
        assert_eq!(faulty, condition.unhealthy().is_some(), "{condition:?}");
    }
}

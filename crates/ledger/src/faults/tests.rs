//! Two sources, one fault: the ledger driven by hand.

use proptest::prelude::*;

use super::SeenReset;
use crate::inbox::LedgerEvent;
use crate::{Ledger, LedgerSettings, LiveSettings};
use model::catalog::schema::KnownLabel;
use model::catalog::{
    self as m, CollectorName, DriverEvent, FaultAction, FaultSource, Gpu, Node, RecoveryAction as A,
    Severity, SwitchName, SxidCode, Tier, UnhealthyReason, XidCode,
};
use model::clock::Mono;
use model::documents::Documents;
use model::fact::{
    DriverFact, Fact, FactKind, GpuFailure, KernelFact, KernelLine, NvlinkFault, RecoveryChange, XidDetail,
};
use model::health::AbsentGpu;
use model::persisted::{Identity, PersistedFaults, SeenGpus};
use model::sample::{Batch, BatchKey, Gap, Missing, Rows};
use model::snapshot::{EventKind, Snapshot};

const SECOND: u64 = 1_000_000_000;

struct Bench {
    ledger: Ledger,
    numbers: [u64; 2],
    now: u64,
}

fn gpu(index: u32) -> Gpu {
    Gpu { gpu: index, uuid: format!("GPU-{index}").as_str().into() }
}

fn batch(gpu: Option<Gpu>, tier: Tier, taken: u64, fill: impl FnOnce(&mut Rows)) -> Batch {
    let mut rows = Rows::default();
    fill(&mut rows);
    Batch {
        part: BatchKey { collector: CollectorName::Nvml, gpu, tier },
        epoch: 1,
        taken: Mono(taken),
        nanos: 0,
        lifetime_nanos: None,
        answered: true,
        rows,
        gaps: Vec::new(),
        drained: Vec::new(),
        processes: None,
        calls: Vec::new(),
    }
}

impl Bench {
    fn with(seen: SeenGpus) -> Bench {
        Bench::knowing(seen, PersistedFaults::default())
    }

    fn knowing(seen: SeenGpus, faulty: PersistedFaults) -> Bench {
        Bench::expecting(0, seen, faulty)
    }

    fn expecting(expected_gpus: usize, seen: SeenGpus, faulty: PersistedFaults) -> Bench {
        let mut ledger = Ledger::new(LedgerSettings {
            live: LiveSettings {
                off: Default::default(),
                groups: m::MetricGroup::ALL.to_vec(),
                expected_gpus,
                keep_events: 100,
                ..LiveSettings::default()
            },
            documents: Documents { seen, faults: faulty, ..Documents::default() },
            ..LedgerSettings::default()
        });
        ledger.event(LedgerEvent::DriverUp);
        Bench { ledger, numbers: [0, 0], now: 1000 * SECOND }
    }

    /// Two GPUs, both sources listening.
    fn new() -> Bench {
        Bench::after_one_that_knew(PersistedFaults::default())
    }

    /// The same, after a restart.
    fn after_one_that_knew(faulty: PersistedFaults) -> Bench {
        let mut bench = Bench::knowing(SeenGpus::default(), faulty);
        for index in 0..2 {
            bench.identify(index);
        }
        bench.ledger.event(LedgerEvent::ReadsKernelLog(Some(Mono(1))));
        bench
    }

    fn identify(&mut self, index: u32) {
        let g = gpu(index);
        let identity = batch(Some(g.clone()), Tier::Identity, self.now, |rows| {
            let pci_address = format!("0000:0{index}:00.0");
            rows.entity(&g).info(&m::gpu_info, m::GpuInfo { pci_address, ..Default::default() });
        });
        self.ledger.fold(identity);
        self.fast(index);
    }

    /// A visit that shows that the GPU answers.
    fn fast(&mut self, index: u32) {
        self.ledger.fold(batch(Some(gpu(index)), Tier::Fast, self.now, |_| {}));
    }

    fn list(&mut self, devices: u32) {
        let listed = batch(None, Tier::Slow, self.now, |rows| {
            rows.entity(&Node {}).record(&m::gpu_devices, (), f64::from(devices)).unwrap();
        });
        self.ledger.fold(listed);
    }

    fn report(&mut self, source: FaultSource, what: FactKind) {
        let number = &mut self.numbers[source as usize];
        *number += 1;
        let unix_seconds = self.now as f64 / 1e9;
        let fact = Fact { source, number: *number, taken: Mono(self.now), unix_seconds, kind: what };
        self.ledger.fact(1, fact);
    }

    fn nvml(&mut self, index: u32, code: u64) {
        self.driver_event(index, 0x8, code);
    }

    fn driver_event(&mut self, index: u32, bits: u64, data: u64) {
        let (gpu_instance, compute_instance) = (Some(7), None);
        let event = DriverFact { gpu: gpu(index), bits, data, gpu_instance, compute_instance };
        self.report(FaultSource::Nvml, FactKind::Driver(event));
    }

    fn kmsg(&mut self, index: u32, code: u32) {
        self.kmsg_of(index, code, 5, false);
    }

    fn kmsg_of(&mut self, index: u32, code: u32, pid: u32, old: bool) {
        self.kmsg_line(index, code, Some(pid), old, None);
    }

    /// A line of a code that depends on its text.
    fn kmsg_saying(&mut self, index: u32, code: u32, detail: XidDetail) {
        self.kmsg_line(index, code, None, false, Some(detail));
    }

    fn kmsg_line(&mut self, index: u32, code: u32, pid: Option<u32>, old: bool, detail: Option<XidDetail>) {
        let line = KernelLine::Xid {
            pci: format!("0000:0{index}:00"),
            code,
            pid,
            process: Some("app".into()),
            gpu_instance: None,
            compute_instance: None,
            detail,
        };
        let text = format!("NVRM: Xid (PCI:0000:0{index}:00): {code}, pid={pid:?}, name=app");
        self.kernel(KernelFact { old, line, text });
    }

    fn kernel(&mut self, fact: KernelFact) {
        self.report(FaultSource::Kmsg, FactKind::Kernel(fact));
    }

    fn after(&mut self, seconds: f64) -> &mut Bench {
        self.now += (seconds * 1e9) as u64;
        self
    }

    fn publish(&mut self) -> Snapshot {
        self.ledger.publish(Mono(self.now), self.now as f64 / 1e9)
    }

    fn counted(&mut self, index: u32, code: u32) -> Option<f64> {
        let row = model::xid::xid(code);
        let labels = (XidCode(code.to_string().as_str().into()), row.severity, row.action);
        self.publish().number(&m::gpu_xid_errors_total, &gpu(index), labels)
    }

    fn reasons(&mut self, gpu: &Gpu) -> Option<Vec<UnhealthyReason>> {
        use model::catalog::schema::KnownLabel;
        let s = self.publish();
        let healthy = s.number(&m::gpu_healthy, gpu, ())?;
        let holds = |r: &UnhealthyReason| s.number(&m::gpu_unhealthy_reason, gpu, (*r,)) == Some(1.0);
        let reasons: Vec<_> = UnhealthyReason::ALL.iter().copied().filter(holds).collect();
        assert_eq!(healthy == 1.0, reasons.is_empty());
        Some(reasons)
    }
}

#[test]
fn the_last_words_of_a_sampler_that_was_replaced_are_no_loss() {
    let mut bench = Bench::new();
    let fact = |number| Fact {
        source: FaultSource::Nvml,
        number,
        taken: Mono(SECOND),
        unix_seconds: 1.0,
        kind: FactKind::Driver(DriverFact {
            gpu: gpu(0),
            bits: 8,
            data: 31,
            gpu_instance: None,
            compute_instance: None,
        }),
    };
    for (life, number) in [(7, 1), (7, 2), (8, 1), (7, 3), (8, 2), (8, 4)] {
        bench.ledger.fact(life, fact(number));
    }
    let lost = bench.publish().number(&m::gpu_exporter_facts_lost_total, &Node {}, (FaultSource::Nvml,));
    assert_eq!(lost, Some(1.0));
}

#[test]
fn counters_that_alerts_need_are_there_before_the_first_fault() {
    let mut b = Bench::new();
    let s = b.publish();
    assert_eq!(s.number(&m::gpu_xid_faults_total, &gpu(1), (FaultAction::RebootNode,)), Some(0.0));
    assert_eq!(s.number(&m::gpu_driver_events_total, &gpu(1), (DriverEvent::Unknown,)), Some(0.0));
    assert_eq!((b.counted(1, 79), b.counted(1, 31)), (Some(0.0), None));
}

#[test]
fn a_fault_of_both_sources_counts_once_and_has_what_both_know() {
    for nvml_first in [true, false] {
        let mut b = Bench::new();
        if nvml_first {
            b.nvml(0, 31);
            assert_eq!(b.counted(0, 31), Some(1.0), "at once");
            b.after(4.0).kmsg(0, 31);
        } else {
            b.kmsg(0, 31);
            b.after(4.0).nvml(0, 31);
        }
        assert_eq!(b.counted(0, 31), Some(1.0));
        b.after(20.0);
        let s = b.publish();
        let [event] = &*s.events else { panic!("{:?}", s.events) };
        assert_eq!((event.pid, event.gpu_instance, event.repeats), (Some(5), Some(7), 0));
        assert!(event.nvml && event.kmsg && event.text.contains("name=app"));
        assert_eq!((event.id, event.revision, event.severity), (1, 2, Severity::Info));
        assert_eq!(s.number(&m::gpu_driver_events_total, &gpu(0), (DriverEvent::Xid,)), Some(1.0));
        assert_eq!(s.number(&m::gpu_xid_last_event_timestamp_seconds, &gpu(0), ()), Some(1000.0));
        assert_eq!(s.number(&m::gpu_last_event_timestamp_seconds, &Node {}, ()), Some(1000.0 + 4.0));
    }
}

#[test]
fn what_comes_too_late_or_of_another_gpu_or_code_is_another_fault() {
    let mut b = Bench::new();
    b.nvml(0, 31);
    b.kmsg(1, 31);
    b.kmsg(0, 13);
    b.after(5.1).kmsg(0, 31);
    assert_eq!([b.counted(0, 31), b.counted(1, 31), b.counted(0, 13)], [Some(2.0), Some(1.0), Some(1.0)]);
}

#[test]
fn an_unknown_code_is_counted_as_a_ticket() {
    let mut b = Bench::new();
    b.kmsg(0, 4711);
    let s = b.publish();
    let labels = (XidCode("4711".into()), Severity::Ticket, FaultAction::ContactSupport);
    assert_eq!(s.number(&m::gpu_xid_errors_total, &gpu(0), labels), Some(1.0));
    assert_eq!(s.number(&m::gpu_xid_faults_total, &gpu(0), (FaultAction::ContactSupport,)), Some(1.0));
}

#[test]
fn what_is_old_is_listed_and_counted_nowhere() {
    let mut b = Bench::new();
    b.kmsg_of(0, 79, 5, true);
    assert_eq!((b.counted(0, 79), b.reasons(&gpu(0))), (Some(0.0), Some(vec![])));
    let s = b.publish();
    assert!(s.events[0].old && s.events[0].gpu == Some(gpu(0)));
}

#[test]
fn a_line_of_a_gpu_that_is_not_known_yet_waits_for_it() {
    let mut b = Bench::with(SeenGpus::default());
    b.kmsg(0, 31);
    assert!(b.publish().events.is_empty());
    b.identify(0);
    b.after(1.0);
    assert_eq!(b.counted(0, 31), Some(1.0));
    assert_eq!(b.publish().events.len(), 1);
}

#[test]
fn the_list_has_the_time_of_its_last_change() {
    let mut b = Bench::new();
    let began = b.publish();
    assert_eq!(began.events_unix_seconds, began.unix_seconds);
    assert_eq!(b.after(60.0).publish().events_unix_seconds, began.unix_seconds);
    b.kmsg(0, 31);
    let changed = b.publish();
    assert_eq!(changed.events_unix_seconds, changed.unix_seconds);
    assert_eq!(b.after(60.0).publish().events_unix_seconds, changed.unix_seconds);
}

#[test]
fn old_lines_keep_their_order_while_gpus_become_known() {
    let mut b = Bench::with(SeenGpus::default());
    b.kmsg_of(1, 13, 5, true);
    b.kmsg_of(0, 43, 5, true);
    b.identify(0);
    b.kmsg(0, 31);
    assert_eq!(b.counted(0, 31), Some(1.0), "what is new does not wait for what is old");
    b.identify(1);
    let s = b.publish();
    let codes: Vec<u64> = s.events.iter().filter(|e| e.old).filter_map(|e| e.code).collect();
    assert_eq!(codes, [13, 43]);
}

#[test]
fn a_line_of_a_gpu_that_no_source_lists_is_reported_as_such() {
    let mut b = Bench::new();
    b.list(2);
    for tier in [Tier::Once, Tier::Slow, Tier::Rare] {
        for index in 0..2 {
            b.ledger.fold(batch(Some(gpu(index)), tier, b.now, |_| {}));
        }
    }
    for source in CollectorName::ALL.iter().copied().filter(|source| *source != CollectorName::Nvml) {
        b.ledger.event(LedgerEvent::CollectorUnavailable(source, Some("x".into())));
    }
    b.ledger.event(LedgerEvent::Samplers(1));
    assert!(b.publish().ready);
    b.kmsg(7, 79);
    let s = b.publish();
    let labels = (XidCode("79".into()), Severity::Page, FaultAction::RebootNode);
    assert_eq!(s.number(&m::gpu_xid_unknown_gpu_total, &Node {}, labels), Some(1.0));
    assert_eq!((s.events[0].gpu.as_ref(), s.events[0].pci.as_deref()), (None, Some("0000:07:00")));
}

#[test]
fn an_event_of_the_driver_may_come_before_its_gpu() {
    let mut b = Bench::with(SeenGpus::default());
    b.nvml(0, 79);
    assert_eq!(b.counted(0, 79), Some(1.0));
    b.identify(0);
    assert_eq!(b.counted(0, 79), Some(1.0));
}

#[test]
fn switch_faults_and_loads_are_reported() {
    let mut b = Bench::new();
    let line = KernelLine::Sxid { nvswitch: "3".into(), pci: "0000:c5:00".into(), code: 20034, fatal: true };
    b.kernel(KernelFact { old: false, line, text: "SXid".into() });
    let line = KernelLine::DriverLoaded { version: "580.159.04".into() };
    b.kernel(KernelFact { old: false, line, text: "NVRM: loading".into() });
    let s = b.publish();
    let labels = (SwitchName("3".into()), SxidCode("20034".into()), Severity::Page, FaultAction::ResetGpu);
    assert_eq!(s.number(&m::gpu_nvswitch_sxid_errors_total, &Node {}, labels), Some(1.0));
    let kinds: Vec<EventKind> = s.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Sxid, EventKind::DriverLoad]);
}

#[test]
fn other_events_of_the_driver_are_counted_and_listed() {
    let mut b = Bench::new();
    b.driver_event(0, 0x8000, 1);
    b.driver_event(0, 0x4000, 0);
    b.driver_event(0, 1 << 40, 0);
    let s = b.publish();
    for event in [DriverEvent::RecoveryAction, DriverEvent::GpuUnavailable, DriverEvent::Unknown] {
        assert_eq!(s.number(&m::gpu_driver_events_total, &gpu(0), (event,)), Some(1.0));
    }
    let names: Vec<&str> = s.events.iter().map(|event| event.mnemonic).collect();
    assert_eq!(names, ["gpu_reset", "gpu_unavailable", "unknown"]);
}

#[test]
fn a_fault_that_pages_makes_a_gpu_unhealthy_until_a_reset() {
    let mut b = Bench::new();
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]));
    b.kmsg(0, 31);
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]));
    b.nvml(0, 119);
    assert_eq!(b.reasons(&gpu(0)), Some(vec![UnhealthyReason::FatalXid]));
    assert_eq!(b.reasons(&gpu(1)), Some(vec![]));
    let now = b.now;
    b.ledger.faults.gpu_reset(SeenReset { gpu: gpu(0), at: Mono(now), unix_seconds: 0.0 });
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]));
    b.kmsg_saying(0, 149, link(4, Some(true)));
    assert_eq!(b.reasons(&gpu(0)), Some(vec![UnhealthyReason::FatalXid]), "its text says Fatal");
    b.kmsg_saying(0, 154, recovery(A::GpuReset, A::None));
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]), "it was reset");
    b.kmsg_saying(0, 154, recovery(A::None, A::DrainAndReset));
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]), "running work goes on");
    b.kmsg_saying(0, 154, recovery(A::DrainAndReset, A::NodeReboot));
    assert_eq!(b.reasons(&gpu(0)), Some(vec![UnhealthyReason::FatalXid]));
    let mut failed = |failure| {
        let line = KernelLine::GpuFailed { pci: Some("0000:01:00".into()), failure };
        b.kernel(KernelFact { old: false, line, text: "NVRM".into() });
        b.reasons(&gpu(1))
    };
    assert_eq!(failed(GpuFailure::InitFailed), Some(vec![]), "the next try may succeed");
    assert_eq!(failed(GpuFailure::FallenOffBus), Some(vec![UnhealthyReason::FatalXid]), "without a code");
}

/// A fault of NVLink 5 that asks for nothing.
fn harmless() -> XidDetail {
    let (unit, intr_info, error_status) = ("NETIR_BER_EVENT".into(), Some(0x13), Some(1));
    XidDetail::Nvlink(NvlinkFault { unit, link: Some(4), fatal: Some(false), intr_info, error_status })
}

/// A fault of NVLink 5 whose sub-code is not in the table.
fn link(link: u32, fatal: Option<bool>) -> XidDetail {
    XidDetail::Nvlink(NvlinkFault { unit: "TREX".into(), link: Some(link), fatal, ..NvlinkFault::default() })
}

fn recovery(from: A, to: A) -> XidDetail {
    XidDetail::Recovery(RecoveryChange { from: Some(from), to: Some(to) })
}

/// How often a code was counted on GPU 0, by severity.
fn counts(b: &mut Bench, code: u32) -> Vec<(Severity, f64)> {
    let s = b.publish();
    let mut counts = Vec::new();
    for severity in Severity::ALL {
        for action in FaultAction::ALL {
            let labels = (XidCode(code.to_string().as_str().into()), *severity, *action);
            counts
                .extend(s.number(&m::gpu_xid_errors_total, &gpu(0), labels).map(|count| (*severity, count)));
        }
    }
    counts
}

#[test]
fn what_a_text_decides_is_counted_as_the_text_says() {
    for driver_first in [true, false] {
        let mut b = Bench::new();
        for (number, detail) in [harmless(), link(7, Some(true))].into_iter().enumerate() {
            if driver_first {
                b.nvml(0, 149);
                assert_eq!(counts(&mut b, 149).len(), number, "not before its line");
            }
            b.kmsg_saying(0, 149, detail);
            if !driver_first {
                b.nvml(0, 149);
            }
            b.after(0.1);
        }
        let both = [(Severity::Page, 1.0), (Severity::Info, 1.0)];
        assert_eq!(counts(&mut b, 149), both, "driver first: {driver_first}");
        let s = b.after(10.0).publish();
        assert_eq!(counts(&mut b, 149), both);
        let listed: Vec<_> = s.events.iter().map(|event| (event.severity, event.link)).collect();
        assert_eq!(listed, [(Severity::Info, Some(4)), (Severity::Page, Some(7))]);
        assert_eq!(b.reasons(&gpu(0)), Some(vec![UnhealthyReason::FatalXid]));
        b.after(300.0).kmsg_saying(0, 149, link(7, Some(true)));
        let known = b.publish().events.last().map(|event| (event.link, event.same_unit));
        assert_eq!(known, Some((Some(7), None)), "of programs' faults alone");
    }
}

#[test]
fn a_fault_whose_line_does_not_come_is_counted_by_its_code() {
    let mut b = Bench::new();
    b.kmsg_saying(0, 149, harmless());
    b.after(10.0).nvml(0, 149);
    b.publish();
    let events = b.after(6.0).publish().events;
    let judged =
        events.iter().find(|event| event.code == Some(149)).map(|event| (event.severity, event.repeats));
    assert_eq!(judged, Some((Severity::Ticket, 1)), "the second report has no line");
    assert_eq!(counts(&mut b, 149), [(Severity::Ticket, 1.0), (Severity::Info, 1.0)]);

    let mut b = Bench::new();
    b.nvml(0, 149);
    assert_eq!(counts(&mut b, 149), []);
    assert_eq!(counts(b.after(6.0), 149), [(Severity::Ticket, 1.0)]);
    b.kmsg_saying(0, 149, link(4, Some(true)));
    assert_eq!(
        counts(&mut b, 149),
        [(Severity::Page, 1.0), (Severity::Ticket, 1.0)],
        "too late: another one"
    );
    b.ledger.event(LedgerEvent::ReadsKernelLog(None));
    b.after(60.0).nvml(0, 149);
    let counted = [(Severity::Page, 1.0), (Severity::Ticket, 2.0)];
    assert_eq!(counts(&mut b, 149), counted, "at once while no kernel log is read");
}

#[test]
fn a_gpu_that_was_reset_as_the_driver_asked_is_healthy_again() {
    let (mut b, g) = (Bench::new(), gpu(0));
    let asks = |b: &mut Bench, action: A| {
        let now = b.now;
        b.ledger.fold(batch(Some(gpu(0)), Tier::Slow, now, |rows| {
            rows.entity(&gpu(0)).state(&m::gpu_recovery_action, action);
        }));
    };
    asks(&mut b, A::None);
    b.nvml(0, 119);
    asks(&mut b, A::DrainP2p);
    asks(&mut b, A::None);
    assert_eq!(b.reasons(&g), Some(vec![UnhealthyReason::FatalXid]), "no reset");
    asks(&mut b, A::DrainAndReset);
    asks(&mut b, A::GpuReset);
    assert_eq!(b.publish().number(&m::gpu_resets_total, &g, ()), Some(0.0));
    asks(&mut b, A::None);
    assert_eq!(b.reasons(&g), Some(vec![]));
    assert_eq!(b.publish().number(&m::gpu_resets_total, &g, ()), Some(1.0));
}

#[test]
fn a_reset_counts_once_by_the_line_or_by_the_visit() {
    let asks = |b: &mut Bench, action: A| {
        let now = b.now;
        b.ledger.fold(batch(Some(gpu(0)), Tier::Slow, now, |rows| {
            rows.entity(&gpu(0)).state(&m::gpu_recovery_action, action);
        }));
    };
    let resets = |b: &mut Bench| {
        let s = b.publish();
        let listed = s.events.iter().filter(|event| event.kind == EventKind::GpuReset).count();
        (s.number(&m::gpu_resets_total, &gpu(0), ()), listed)
    };
    let mut b = Bench::new();
    asks(&mut b, A::GpuReset);
    b.kmsg_saying(0, 154, recovery(A::None, A::GpuReset));
    asks(&mut b, A::GpuReset);
    b.after(5.0).kmsg_saying(0, 154, recovery(A::GpuReset, A::DrainP2p));
    assert_eq!(resets(&mut b), (Some(0.0), 0));
    b.after(1.0).kmsg_saying(0, 154, recovery(A::GpuReset, A::None));
    assert_eq!(resets(&mut b), (Some(1.0), 1), "the line alone");
    asks(b.after(1.0), A::None);
    assert_eq!(resets(&mut b), (Some(1.0), 1), "the same reset");
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]));

    asks(b.after(100.0), A::NodeReboot);
    asks(b.after(1.0), A::None);
    b.after(1.0).kmsg_saying(0, 154, recovery(A::NodeReboot, A::None));
    assert_eq!(resets(&mut b), (Some(2.0), 2), "the visit came first");

    b.after(100.0).kmsg_saying(0, 154, recovery(A::None, A::GpuReset));
    asks(&mut b, A::None);
    assert_eq!(resets(&mut b), (Some(2.0), 2), "the visit is from before the line");
    assert_eq!(b.reasons(&gpu(0)), Some(vec![UnhealthyReason::FatalXid]));

    let mut b = Bench::with(SeenGpus::default());
    b.kmsg_saying(0, 154, recovery(A::GpuReset, A::None));
    b.identify(0);
    assert_eq!(resets(&mut b), (Some(1.0), 1), "the line waited for its GPU");
}

#[test]
fn a_fault_outlasts_a_restart_and_an_unwatched_reset_ends_it() {
    let asks = |b: &mut Bench, action: A| {
        let now = b.now;
        b.ledger.fold(batch(Some(gpu(0)), Tier::Slow, now, |rows| {
            rows.entity(&gpu(0)).state(&m::gpu_recovery_action, action);
        }));
    };
    let mut b = Bench::new();
    b.kmsg(0, 31);
    b.kmsg(1, 94);
    assert_eq!(b.ledger.faults.take_changed(), None, "nothing is wrong");
    b.kmsg(0, 79);
    assert_eq!(b.ledger.faults.take_changed().map(|f| f.gpus.len()), Some(1));
    b.kmsg(0, 79);
    assert_eq!(b.ledger.faults.take_changed(), None, "nothing new");
    asks(&mut b, A::GpuReset);
    b.after(10.0).kmsg(1, 48);
    let faulty = b.ledger.faults.take_changed().unwrap();
    let text = serde_json::to_string(&faulty.gpus).unwrap();
    let mut b =
        Bench::after_one_that_knew(PersistedFaults { gpus: serde_json::from_str(&text).unwrap(), ..faulty });
    assert_eq!(b.reasons(&gpu(0)), Some(vec![UnhealthyReason::FatalXid]));
    assert_eq!(b.reasons(&gpu(1)), Some(vec![]), "it may yet prove contained");
    b.after(20.0).fast(1);
    assert_eq!(b.reasons(&gpu(1)), Some(vec![UnhealthyReason::UncontainedEcc]));
    assert_eq!((b.counted(0, 79), b.counted(1, 48)), (Some(0.0), Some(0.0)), "counted before");
    assert_eq!(b.ledger.faults.take_changed(), None, "as it was");
    asks(&mut b, A::None);
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]));
    assert_eq!(b.ledger.faults.take_changed().map(|f| f.gpus.len()), Some(1));
    b.kernel(KernelFact {
        old: false,
        line: KernelLine::DriverLoaded { version: "1".into() },
        text: "NVRM: loading".into(),
    });
    assert_eq!(b.reasons(&gpu(1)), Some(vec![]));
    assert_eq!(b.ledger.faults.take_changed().map(|f| f.gpus.len()), Some(0));
}

#[test]
fn a_gpu_that_was_lost_before_a_restart_and_answers_after_it_was_reset() {
    let mut b = Bench::new();
    b.kmsg(0, 79);
    b.ledger.faults.resets.lost(&gpu(0).uuid, Some(Tier::Normal), Mono(b.now));
    let mut b = Bench::after_one_that_knew(b.ledger.faults.take_changed().unwrap());
    let normal = |b: &mut Bench| {
        let now = b.now;
        b.ledger.fold(batch(Some(gpu(0)), Tier::Normal, now, |rows| {
            rows.entity(&gpu(0)).record(&m::gpu_power_watts, (), 1.0).unwrap();
        }));
    };
    assert_eq!(b.reasons(&gpu(0)), Some(vec![UnhealthyReason::FatalXid]), "other visits show nothing");
    normal(b.after(1.0));
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]));
    assert_eq!(b.publish().number(&m::gpu_resets_total, &gpu(0), ()), Some(1.0));
}

#[test]
fn a_library_that_is_missing_for_a_while_resets_no_gpu() {
    use model::driver_module::{Load, LoadId, ModuleState};
    for (there, healthy) in [(true, false), (false, true)] {
        let mut b = Bench::new();
        let id = LoadId { boot: "b".into(), inode: 1, made: None };
        let load = Load { id, live: true, version: "1".into(), unix_seconds: None };
        let state = if there { ModuleState::Loaded(load) } else { ModuleState::Absent };
        b.ledger.event(LedgerEvent::Module { state, at: Mono(b.now), unix_seconds: 1.0 });
        b.nvml(0, 119);
        let error = m::DriverError::DriverNotLoaded;
        b.ledger.event(LedgerEvent::DriverAway { error, text: "no library".into(), epoch: 1 });
        b.ledger.event(LedgerEvent::DriverUp);
        b.fast(0);
        assert_eq!(b.reasons(&gpu(0)).unwrap().is_empty(), healthy);
    }
}

#[test]
fn a_memory_error_counts_against_a_gpu_unless_it_was_contained() {
    use UnhealthyReason::UncontainedEcc;
    let after = |codes: &[u32]| {
        let mut b = Bench::new();
        for code in codes {
            b.kmsg(0, *code);
        }
        let soon = b.reasons(&gpu(0)).unwrap();
        b.after(5.1).fast(0);
        (soon, b.reasons(&gpu(0)).unwrap())
    };
    assert_eq!(after(&[48]), (vec![], vec![UncontainedEcc]));
    assert_eq!(after(&[48, 94]), (vec![], vec![]));
    assert_eq!(after(&[94, 171, 48]), (vec![], vec![]), "in whatever order");
    let both = vec![UnhealthyReason::FatalXid, UncontainedEcc];
    assert_eq!(after(&[48, 95]), (both.clone(), both));
}

#[test]
fn what_the_driver_reports_of_itself_counts_against_a_gpu() {
    let mut b = Bench::new();
    let g = gpu(0);
    let now = b.now;
    b.ledger.fold(batch(Some(g.clone()), Tier::Slow, now, |rows| {
        rows.entity(&g).state(&m::gpu_recovery_action, m::RecoveryAction::None);
    }));
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]));
    b.ledger.fold(batch(Some(g.clone()), Tier::Slow, now, |rows| {
        rows.entity(&g).state(&m::gpu_recovery_action, m::RecoveryAction::GpuReset);
        rows.entity(&g).flag(&m::gpu_row_remap_failure, (), true);
    }));
    let both = vec![UnhealthyReason::RecoveryAction, UnhealthyReason::RowRemapFailure];
    assert_eq!(b.reasons(&gpu(0)), Some(both));
}

#[test]
fn a_gpu_of_an_earlier_daemon_that_is_not_listed_is_named() {
    let gone = Identity { index: 1, uuid: "GPU-1".into(), pci: "0000:01:00".into(), last_seen: 900 };
    let mut b = Bench::with(SeenGpus { devices: 2, gpus: vec![gone] });
    b.identify(0);
    assert_eq!(b.publish().number(&m::gpu_devices_missing, &Node {}, ()), None, "nothing is listed yet");
    b.list(1);
    assert_eq!(b.publish().number(&m::gpu_devices_missing, &Node {}, ()), Some(1.0));
    let health = b.publish().health;
    assert_eq!(health.absent, [AbsentGpu::new(gpu(1), "0000:01:00".into(), Some(900))]);
    assert!(health.text.starts_with("1 GPU, ok, 1 missing (GPU-1 at 0000:01:00)"), "{}", health.text);
    assert_eq!(health.gpus.len(), 1, "it is listed apart");
    assert_eq!(b.reasons(&gpu(1)), Some(vec![UnhealthyReason::Missing]));
    assert_eq!(b.publish().number(&m::gpu_up, &gpu(1), ()), Some(0.0));
    assert_eq!(b.reasons(&gpu(0)), Some(vec![]));
    b.identify(1);
    b.list(2);
    assert_eq!(b.publish().number(&m::gpu_devices_missing, &Node {}, ()), Some(0.0));
    assert_eq!(b.reasons(&gpu(1)), Some(vec![]));
    assert_eq!(b.publish().health.absent, []);
}

#[test]
fn a_gpu_that_is_not_asked_yet_is_not_missing() {
    let seen = |index: u32| Identity {
        index,
        uuid: gpu(index).uuid.as_ref().into(),
        pci: format!("0000:0{index}:00"),
        last_seen: 900,
    };
    let mut b = Bench::with(SeenGpus { devices: 3, gpus: (0..3).map(seen).collect() });
    b.list(2);
    let absent = |b: &mut Bench| -> Vec<Gpu> {
        let publication = b.publish();
        assert_eq!(publication.number(&m::gpu_devices_missing, &Node {}, ()), Some(1.0));
        publication.health.absent.into_iter().map(|absent| absent.gpu).collect()
    };
    assert_eq!(absent(&mut b), []);
    b.identify(0);
    assert_eq!(absent(&mut b), []);
    b.identify(1);
    assert_eq!(absent(&mut b), [gpu(2)]);
}

#[test]
fn a_gpu_that_the_driver_lists_no_more_is_missing_and_no_other_is() {
    let mut b = Bench::new();
    b.list(2);
    b.publish();
    let error = m::DriverError::DriverNotLoaded;
    b.ledger.event(LedgerEvent::DriverAway { error, text: "gone".into(), epoch: 1 });
    b.ledger.event(LedgerEvent::DriverUp);
    b.fast(0);
    b.list(1);
    let lost = |b: &mut Bench| -> Vec<(Option<Gpu>, &'static str, String)> {
        let events = b.publish().events;
        let lost = events.iter().filter(|event| event.kind == EventKind::GpuLost);
        lost.map(|event| (event.gpu.clone(), event.meaning, event.text.clone())).collect()
    };
    let missing = (Some(gpu(1)), "The GPU is missing.", "the driver does not list it any more".to_owned());
    assert_eq!(lost(&mut b), [missing]);
    assert_eq!(b.reasons(&gpu(1)), Some(vec![UnhealthyReason::Missing]));
    assert_eq!(b.publish().series(&m::gpu_up).len(), 2, "each GPU once");
    assert!(b.publish().health.text.contains("the driver does not list it any more"));

    let mut failing = batch(Some(gpu(0)), Tier::Fast, b.after(1.0).now, |_| {});
    failing.answered = false;
    failing.gaps = vec![failed(m::DriverError::GpuIsLost, "GPU is lost")];
    b.ledger.fold(failing);
    assert_eq!(b.reasons(&gpu(0)), Some(vec![UnhealthyReason::Lost]), "it is listed");

    b.after(1.0).fast(0);
    b.list(0);
    assert_eq!(b.publish().number(&m::gpu_devices_missing, &Node {}, ()), Some(2.0));
    assert_eq!(lost(&mut b).len(), 2, "nothing new of GPU 1, and GPU 0 still answers");
    b.list(2);
    b.identify(1);
    assert_eq!(b.reasons(&gpu(1)), Some(vec![]));
}

#[test]
fn a_declared_number_is_published_also_while_the_driver_is_away() {
    let mut b = Bench::expecting(4, SeenGpus::default(), PersistedFaults::default());
    b.list(3);
    let page = b.publish();
    assert_eq!(page.number(&m::gpu_devices_declared, &Node {}, ()), Some(4.0));
    assert_eq!(page.number(&m::gpu_devices_missing, &Node {}, ()), Some(1.0));
    let error = m::DriverError::DriverNotLoaded;
    b.ledger.event(LedgerEvent::DriverAway { error, text: "gone".into(), epoch: 1 });
    assert_eq!(b.publish().number(&m::gpu_devices_declared, &Node {}, ()), Some(4.0));
    assert_eq!(Bench::new().publish().number(&m::gpu_devices_declared, &Node {}, ()), None);
}

/// A call that failed.
fn failed(error: m::DriverError, text: &str) -> Gap {
    Gap { call: "nvmlX".into(), metrics: Vec::new(), missing: Missing::Failed { error, text: text.into() } }
}

#[test]
fn nothing_is_said_of_gpus_while_the_driver_is_away() {
    let mut b = Bench::new();
    b.list(2);
    b.nvml(0, 79);
    let error = m::DriverError::DriverNotLoaded;
    b.ledger.event(LedgerEvent::DriverAway { error, text: "gone".into(), epoch: 2 });
    assert_eq!(b.reasons(&gpu(0)), None);
    assert_eq!(b.publish().number(&m::gpu_devices_missing, &Node {}, ()), None);
}

proptest! {
    /// However the words of two sources fall in one window, the larger number counts.
    #[test]
    fn of_n_and_m_reported_in_a_window_the_larger_number_counts(order in prop::collection::vec(any::<bool>(), 0..40)) {
        let mut b = Bench::new();
        for nvml in &order {
            if *nvml { b.nvml(0, 31) } else { b.kmsg(0, 31) }
        }
        let nvml = order.iter().filter(|nvml| **nvml).count();
        let high = nvml.max(order.len() - nvml);
        prop_assert_eq!(b.counted(0, 31).unwrap_or(0.0) as usize, high);
        b.after(6.0);
        let listed: u64 = b.publish().events.iter().map(|event| event.repeats + 1).sum();
        prop_assert_eq!(listed as usize, high);
    }
}

#[test]
fn a_gpu_that_fell_off_the_bus_is_listed_once_in_either_order_and_from_before() {
    let mut bench = Bench::new();
    let off = |bench: &mut Bench, index: u32, old: bool| {
        let pci = Some(format!("0000:0{index}:00"));
        let line = KernelLine::GpuFailed { pci, failure: GpuFailure::FallenOffBus };
        bench.kernel(KernelFact { old, line, text: "GPU has fallen off the bus.".into() });
    };
    let orders = ["Xid, line", "line, Xid", "nvml, line, Xid", "line, nvml, Xid, line", "line, line, Xid"];
    let all =
        orders.map(|order| (order, false)).into_iter().chain([("Xid, line", true), ("line, Xid", true)]);
    for (times, (order, old)) in all.enumerate() {
        bench.after(300.0);
        for report in order.split(", ") {
            match report {
                "Xid" => bench.kmsg_of(0, 79, 5, old),
                "line" => off(&mut bench, 0, old),
                _ => bench.nvml(0, 79),
            }
            bench.after(0.1);
        }
        let events = bench.after(300.0).publish().events;
        let found: Vec<_> = events.iter().map(|event| (event.kind, event.code)).collect();
        assert_eq!(found, vec![(EventKind::Xid, Some(79)); times + 1], "{order}, old: {old}");
    }
    let before = bench.publish().events.len();
    off(bench.after(300.0), 0, false);
    off(&mut bench, 1, false);
    bench.after(6.0).kmsg_of(0, 79, 5, false);
    let events = bench.publish().events;
    let kinds: Vec<_> = events[before..].iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::FallenOffBus, EventKind::FallenOffBus, EventKind::Xid], "long before it");
}

//! The ledger, driven by hand: batches and moments in, snapshots out.

use super::inbox::{LedgerEvent, Pause, Stall};
use super::inventory::GpuInventory;
use super::{Ledger, LedgerSettings, LiveSettings};
use model::canary::CanaryEvent;
use model::catalog::FaultSource;
use model::catalog::{self as m, CollectorName, Gpu, Node, SampleBuffer, Tier};
use model::clock::Mono;
use model::driver_module::{Load, LoadId, ModuleState};
use model::fact::{Fact, FactKind, KernelFact, KernelLine};
use model::persisted::{Identity, SeenGpus};
use model::sample::{Batch, BatchKey, Drained, Gap, Missing, Rows};
use model::snapshot::{GpuState, Snapshot};
use model::window::Window;

const SECOND: u64 = 1_000_000_000;

fn gpu(index: u32) -> Gpu {
    Gpu { gpu: index, uuid: format!("GPU-{index}").as_str().into() }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(LedgerSettings {
        live: LiveSettings {
            max_series: 1000,
            off: Default::default(),
            groups: m::MetricGroup::ALL.to_vec(),
            keep_events: 100,
            ..LiveSettings::default()
        },
        ..LedgerSettings::default()
    });
    ledger.event(LedgerEvent::DriverUp);
    ledger
}

/// A batch of one GPU's tier with these values.
fn batch(gpu: &Gpu, tier: Tier, epoch: u64, taken: u64, fill: impl Fn(&mut Rows)) -> Batch {
    let mut rows = Rows::default();
    fill(&mut rows);
    Batch {
        part: BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu.clone()), tier },
        epoch,
        taken: Mono(taken),
        nanos: 1000,
        answered: true,
        lifetime_nanos: (tier != Tier::Once && tier != Tier::Identity).then_some(3 * SECOND),
        rows,
        drained: Vec::new(),
        processes: None,
        gaps: Vec::new(),
        calls: Vec::new(),
    }
}

fn power(gpu: &Gpu, epoch: u64, taken: u64, watts: f64) -> Batch {
    batch(gpu, Tier::Normal, epoch, taken, |rows| {
        rows.entity(gpu).record(&m::gpu_power_watts, (), watts).unwrap();
    })
}

fn energy(gpu: &Gpu, epoch: u64, taken: u64, joules: f64) -> Batch {
    batch(gpu, Tier::Slow, epoch, taken, |rows| {
        rows.entity(gpu).record(&m::gpu_energy_joules_total, (), joules).unwrap();
    })
}

fn away() -> LedgerEvent {
    let error = m::DriverError::DriverNotLoaded;
    LedgerEvent::DriverAway { error, text: "gone".into(), epoch: 3 }
}

fn identity(gpu: &Gpu, epoch: u64) -> Batch {
    batch(gpu, Tier::Identity, epoch, 1, |rows| {
        rows.entity(gpu).info(&m::gpu_info, m::GpuInfo { model: "H200".into(), ..Default::default() });
    })
}

fn publish(ledger: &mut Ledger, now: u64) -> Snapshot {
    ledger.publish(Mono(now), 1000.0)
}

fn watts(snapshot: &Snapshot, gpu: &Gpu) -> Option<f64> {
    snapshot.number(&m::gpu_power_watts, gpu, ())
}

#[test]
fn a_batch_replaces_its_part_as_a_whole() {
    let (mut l, g) = (ledger(), gpu(0));
    l.fold(batch(&g, Tier::Normal, 1, SECOND, |rows| {
        rows.entity(&g).record(&m::gpu_power_watts, (), 100.0).unwrap();
        rows.entity(&g).record(&m::gpu_utilization_ratio, (), 0.5).unwrap();
    }));
    l.fold(power(&g, 1, 2 * SECOND, 200.0));
    let s = publish(&mut l, 2 * SECOND);
    assert_eq!(watts(&s, &g), Some(200.0));
    assert_eq!(s.number(&m::gpu_utilization_ratio, &g, ()), None, "no row of the older batch stays");
}

#[test]
fn rows_expire_at_their_deadline() {
    let (mut l, g) = (ledger(), gpu(0));
    l.fold(power(&g, 1, 10 * SECOND, 100.0));
    assert_eq!(watts(&publish(&mut l, 13 * SECOND), &g), Some(100.0));
    let late = publish(&mut l, 13 * SECOND + 1);
    assert_eq!(watts(&late, &g), None);
    assert_eq!(late.number(&m::gpu_up, &g, ()), Some(0.0));
}

#[test]
fn a_failed_call_of_an_answered_visit_is_no_reason_of_a_loss() {
    for tier in [Tier::Normal, Tier::Rare] {
        let (mut l, g) = (ledger(), gpu(0));
        l.fold(power(&g, 1, SECOND, 100.0));
        let mut denied = batch(&g, tier, 1, SECOND, |rows| {
            rows.entity(&g).record(&m::gpu_power_watts, (), 100.0).unwrap();
        });
        denied.lifetime_nanos = Some(if tier == Tier::Rare { 180 } else { 3 } * SECOND);
        denied.gaps = vec![Gap {
            call: "nvmlA".into(),
            metrics: vec![m::gpu_utilization_ratio.id()],
            missing: Missing::Failed { error: m::DriverError::NoPermission, text: "no permission".into() },
        }];
        l.fold(denied);
        let late = publish(&mut l, 5 * SECOND);
        assert_eq!(late.number(&m::gpu_up, &g, ()), Some(0.0));
        assert!(late.events.is_empty(), "{tier:?}: {:?}", late.events);
    }
}

#[test]
fn a_new_epoch_drops_what_was_read_before_but_not_the_identity_of_the_gpu() {
    let (mut l, g, other) = (ledger(), gpu(0), gpu(1));
    l.fold(identity(&g, 1));
    l.fold(energy(&g, 1, SECOND, 5.0));
    l.fold(power(&other, 1, SECOND, 50.0));
    assert!(l.fold(power(&g, 2, SECOND, 100.0)), "it is published at once");
    let s = publish(&mut l, SECOND);
    assert_eq!(s.number(&m::gpu_energy_joules_total, &g, ()), None);
    assert_eq!(s.info(&m::gpu_info, &g, "model"), Some("H200"));
    assert_eq!(watts(&s, &other), Some(50.0), "another GPU's epoch is its own");
    l.fold(energy(&g, 1, SECOND, 6.0));
    let s = publish(&mut l, SECOND);
    assert_eq!(s.number(&m::gpu_energy_joules_total, &g, ()), None, "a late batch is thrown away");
    assert_eq!(s.number(&m::gpu_exporter_batches_discarded_total, &Node {}, ()), Some(1.0));
}

#[test]
fn a_fast_visit_that_was_hung_up_comes_too_late() {
    let (mut l, g) = (ledger(), gpu(0));
    let fast = |tenth: u64| {
        batch(&g, Tier::Fast, 1, 10 * SECOND + tenth * SECOND / 10, |rows| {
            rows.entity(&g).flag(&m::gpu_clock_event_active, (m::ClockEvent::GpuIdle,), true);
        })
    };
    l.fold(energy(&g, 1, 10 * SECOND, 1.0));
    for tenth in [0, 10, 11, 1, 12] {
        l.fold(fast(tenth));
    }
    let s = publish(&mut l, 12 * SECOND);
    let idle = (m::ClockEvent::GpuIdle,);
    let seconds = s.number(&m::gpu_clock_event_seconds_total, &g, idle).unwrap();
    assert!((seconds - 1.2).abs() < 1e-9, "no time counts twice: {seconds}");
    assert_eq!(s.number(&m::gpu_exporter_batches_discarded_total, &Node {}, ()), Some(1.0));
}

#[test]
fn a_late_batch_of_a_gpu_that_was_replaced_does_not_bring_it_back() {
    let mut l = ledger();
    let (old, new) = (Gpu { gpu: 0, uuid: "old".into() }, Gpu { gpu: 0, uuid: "new".into() });
    l.fold(power(&old, 1, SECOND, 100.0));
    l.event(away());
    l.event(LedgerEvent::DriverUp);
    l.fold(power(&new, 4, 2 * SECOND, 50.0));
    let samples = vec![(1, 100.0)];
    let drained = Drained::Samples { buffer: SampleBuffer::Power, offset_micros: 0, samples };
    l.fold(Batch { drained: vec![drained], ..power(&old, 1, 2 * SECOND, 100.0) });
    let s = publish(&mut l, 2 * SECOND);
    assert_eq!((watts(&s, &new), s.gpus.len()), (Some(50.0), 1));
}

#[test]
fn a_stall_withdraws_one_gpu_and_its_end_brings_it_back() {
    let (mut l, g, other) = (ledger(), gpu(0), gpu(1));
    l.fold(identity(&g, 1));
    l.fold(power(&g, 1, 10 * SECOND, 100.0));
    l.fold(power(&other, 1, 10 * SECOND, 50.0));
    let stall = Stall { gpu: Some(g.clone()), call: "nvmlX".into(), since: Mono(7 * SECOND), overdue: true };
    l.event(LedgerEvent::Stalls(vec![stall]));
    let s = publish(&mut l, 11 * SECOND);
    assert_eq!((watts(&s, &g), watts(&s, &other)), (None, Some(50.0)));
    assert_eq!(s.info(&m::gpu_info, &g, "model"), Some("H200"));
    let call = (m::Call("nvmlX".into()),);
    assert_eq!(s.number(&m::gpu_exporter_driver_call_stuck_seconds, &g, call), Some(4.0));
    assert!(matches!(s.gpus[0].state, GpuState::Stuck { .. }));
    l.event(LedgerEvent::Stalls(Vec::new()));
    l.fold(power(&g, 1, 11 * SECOND, 101.0));
    assert_eq!(watts(&publish(&mut l, 11 * SECOND), &g), Some(101.0));
}

#[test]
fn a_stuck_driver_withdraws_all_and_an_absent_one_voids_all() {
    let (mut l, g) = (ledger(), gpu(0));
    l.fold(identity(&g, 1));
    l.fold(power(&g, 1, SECOND, 100.0));
    l.event(LedgerEvent::DriverStuck(true));
    let s = publish(&mut l, SECOND);
    assert_eq!(watts(&s, &g), None);
    assert_eq!(s.number(&m::gpu_driver_stuck, &Node {}, ()), Some(1.0));
    l.event(LedgerEvent::DriverStuck(false));
    assert_eq!(watts(&publish(&mut l, SECOND), &g), Some(100.0));
    l.event(away());
    l.event(LedgerEvent::DriverUp);
    let s = publish(&mut l, SECOND);
    assert_eq!(watts(&s, &g), None, "what was read before the driver went is void");
    assert_eq!(s.info(&m::gpu_info, &g, "model"), Some("H200"));
}

#[test]
fn a_counter_that_steps_back_is_held_unless_the_driver_was_loaded_again() {
    let (mut l, g) = (ledger(), gpu(0));
    let joules = |s: &Snapshot| s.number(&m::gpu_energy_joules_total, &gpu(0), ());
    l.fold(energy(&g, 1, SECOND, 100.0));
    l.fold(energy(&g, 2, SECOND, 40.0));
    l.fold(power(&g, 2, SECOND, 1.0));
    let s = publish(&mut l, SECOND);
    assert_eq!(joules(&s), Some(100.0), "a replaced sampler explains nothing");
    assert_eq!(s.number(&m::gpu_exporter_reading_regressions_total, &g, ()), Some(1.0));
    l.event(away());
    l.event(LedgerEvent::DriverUp);
    l.fold(energy(&g, 3, SECOND, 1.0));
    l.fold(power(&g, 3, SECOND, 1.0));
    assert_eq!(joules(&publish(&mut l, SECOND)), Some(1.0));
}

#[test]
fn what_an_older_driver_said_is_not_taken_after_it_went() {
    let (mut l, g) = (ledger(), gpu(0));
    l.fold(power(&g, 1, SECOND, 100.0));
    l.event(away());
    l.fold(power(&g, 2, SECOND, 101.0));
    l.event(LedgerEvent::DriverUp);
    let s = publish(&mut l, SECOND);
    assert_eq!(watts(&s, &g), None, "a batch that came late");
    assert_eq!(s.number(&m::gpu_up, &g, ()), Some(0.0));
    l.fold(power(&g, 3, SECOND, 102.0));
    assert_eq!(watts(&publish(&mut l, SECOND), &g), Some(102.0));
}

#[test]
fn nothing_measured_is_served_while_nothing_is_read() {
    let (mut l, g) = (ledger(), gpu(0));
    let mut rare = energy(&g, 1, 10 * SECOND, 5.0);
    rare.lifetime_nanos = Some(180 * SECOND);
    l.fold(rare);
    l.fold(power(&g, 1, 10 * SECOND, 100.0));
    l.event(LedgerEvent::SamplerEnded(m::SamplerEnd::Exited, Mono(10 * SECOND)));
    let soon = publish(&mut l, 11 * SECOND);
    assert_eq!(soon.number(&m::gpu_driver_up, &Node {}, ()), Some(1.0), "the next one may be on its way");
    let late = publish(&mut l, 14 * SECOND);
    assert_eq!(late.number(&m::gpu_driver_up, &Node {}, ()), Some(0.0));
    assert_eq!(late.number(&m::gpu_up, &g, ()), Some(0.0));
    assert_eq!(late.number(&m::gpu_energy_joules_total, &g, ()), None, "though it has not expired");
}

#[test]
fn a_gpu_without_a_handle_is_known_by_its_index_until_it_has_one() {
    let (mut l, g) = (ledger(), gpu(4));
    let error = m::DriverError::GpuIsLost;
    l.event(LedgerEvent::AttachFailed { index: 4, error, text: "lost".into() });
    let s = publish(&mut l, SECOND);
    let unknown = Gpu { gpu: 4, uuid: "".into() };
    assert_eq!(s.number(&m::gpu_up, &unknown, ()), Some(0.0));
    assert_eq!(s.number(&m::gpu_exporter_driver_errors_total, &unknown, ()), Some(1.0));
    l.fold(power(&g, 1, SECOND, 100.0));
    let s = publish(&mut l, SECOND);
    assert_eq!((s.gpus.len(), s.number(&m::gpu_up, &g, ())), (1, Some(1.0)));
}

#[test]
fn a_wrong_result_found_by_hand_is_kept_also_of_a_gpu_that_is_not_known_yet() {
    let (mut l, g) = (ledger(), gpu(3));
    let by_hand = Gpu { gpu: 0, ..g.clone() };
    l.event(LedgerEvent::Canary(CanaryEvent::WrongByHand(by_hand, m::CanaryCheck::SmSdc, "a bit".into())));
    let s = publish(&mut l, SECOND);
    let kept: Vec<&str> = s.canary.wrong.iter().map(|wrong| wrong.uuid.as_str()).collect();
    assert_eq!(kept, ["GPU-3"]);
    let listed: Vec<_> = s.events.iter().map(|e| (e.gpu.clone(), e.severity, e.text.as_str())).collect();
    assert_eq!(listed, [(None, m::Severity::Page, "board GPU-3: a bit")], "its index is not known");
    assert_eq!(l.wrong_results.take_changed().map(|wrong| wrong.gpus.len()), Some(1));
    l.fold(power(&g, 1, SECOND, 100.0));
    let s = publish(&mut l, SECOND);
    assert_eq!(s.number(&m::gpu_unhealthy_reason, &g, (m::UnhealthyReason::Canary,)), Some(1.0));
}

#[test]
fn a_gpu_that_may_not_be_asked_is_not_called_lost() {
    let (mut l, g) = (ledger(), gpu(0));
    l.fold(power(&g, 1, SECOND, 100.0));
    for (error, text, meaning, action) in [
        (
            m::DriverError::NoPermission,
            "no permission",
            "The GPU answers with errors only.",
            m::FaultAction::ContactSupport,
        ),
        (m::DriverError::GpuIsLost, "GPU is lost", "The GPU is lost.", m::FaultAction::RebootNode),
    ] {
        l.event(LedgerEvent::AttachFailed { index: 0, error, text: text.into() });
        let s = publish(&mut l, 5 * SECOND);
        let event = s.events.last().unwrap();
        assert_eq!((event.meaning, event.action), (meaning, action));
        assert!(event.text.contains(text), "{}", event.text);
        let health = &s.health.gpus[0];
        assert_eq!((health.healthy, health.reasons[0].action), (Some(false), action));
    }
}

#[test]
fn a_failed_call_is_counted_by_kind_and_an_unsupported_one_is_listed() {
    let (mut l, g) = (ledger(), gpu(0));
    let mut b = power(&g, 1, SECOND, 100.0);
    let error = m::DriverError::Timeout;
    b.gaps = vec![
        Gap {
            call: "nvmlA".into(),
            metrics: vec![m::gpu_utilization_ratio.id()],
            missing: Missing::Failed { error, text: "timeout".into() },
        },
        Gap {
            call: "nvmlB".into(),
            metrics: vec![m::gpu_ofa_utilization_ratio.id(), m::gpu_power_watts.id()],
            missing: Missing::Unsupported,
        },
    ];
    l.fold(b);
    let s = publish(&mut l, SECOND);
    assert_eq!(s.number(&m::gpu_exporter_driver_errors_total, &g, ()), Some(1.0));
    let kinds = &m::gpu_exporter_driver_error_kinds_total;
    assert_eq!(s.number(kinds, &Node {}, (m::DriverError::Timeout,)), Some(1.0));
    assert_eq!(s.number(kinds, &Node {}, (m::DriverError::Unknown,)), Some(0.0), "born at 0");
    let listed =
        |name: &str| s.number(&m::gpu_exporter_metric_unsupported, &Node {}, (m::MetricName(name.into()),));
    assert_eq!(listed("gpu_ofa_utilization_ratio"), Some(1.0));
    assert_eq!(listed("gpu_power_watts"), None, "it has a value from elsewhere");
    let up = s.number(&m::gpu_exporter_collector_up, &Node {}, (m::CollectorName::Nvml,));
    assert_eq!(up, Some(0.0));
    assert_eq!(s.number(&m::gpu_up, &g, ()), Some(1.0), "one failed call does not take a GPU down");
}

#[test]
fn a_collector_that_never_answers_is_down_once_it_has_a_reason_and_is_not_switched_off() {
    let mut l = ledger();
    let mut up_with = |reason: Option<&str>| {
        l.event(LedgerEvent::CollectorUnavailable(CollectorName::Kmsg, reason.map(str::to_owned)));
        publish(&mut l, SECOND).number(&m::gpu_exporter_collector_up, &Node {}, (CollectorName::Kmsg,))
    };
    assert_eq!(up_with(None), None);
    assert_eq!(up_with(Some("no permission")), Some(0.0));
    assert_eq!(up_with(Some("switched off (events.kernel_log)")), None);
}

#[test]
fn a_gpu_under_another_index_is_the_same_gpu() {
    let mut l = ledger();
    let (before, after) = (gpu(0), Gpu { gpu: 5, uuid: "GPU-0".into() });
    l.fold(power(&before, 1, SECOND, 100.0));
    l.fold(power(&after, 2, SECOND, 120.0));
    let s = publish(&mut l, SECOND);
    assert_eq!(s.series(&m::gpu_power_watts).len(), 1);
    assert_eq!(watts(&s, &after), Some(120.0));
    assert_eq!(s.gpus.len(), 1);
}

#[test]
fn the_series_count_is_that_of_the_snapshot() {
    let (mut l, g) = (ledger(), gpu(0));
    l.fold(power(&g, 1, SECOND, 100.0));
    let s = publish(&mut l, SECOND);
    let said = s.number(&m::gpu_exporter_series, &Node {}, ()).unwrap();
    assert_eq!(said as usize, s.series_count());
}

#[test]
fn a_visit_that_asks_nothing_does_not_hide_that_every_call_fails() {
    let (mut l, g) = (ledger(), gpu(0));
    l.fold(batch(&g, Tier::Fast, 1, SECOND, |_| {}));
    let mut normal = batch(&g, Tier::Normal, 1, SECOND, |_| {});
    assert_eq!(publish(&mut l, SECOND).number(&m::gpu_up, &g, ()), Some(1.0), "nothing is to be asked");
    normal.answered = false;
    l.fold(normal);
    assert_eq!(publish(&mut l, SECOND).number(&m::gpu_up, &g, ()), Some(0.0));
}

#[test]
fn a_gpu_whose_mig_mode_alone_was_read_is_not_published_yet() {
    let (mut l, g) = (ledger(), gpu(0));
    let mode = |epoch| {
        batch(&g, Tier::Slow, epoch, SECOND, |rows| rows.entity(&g).flag(&m::gpu_mig_mode_enabled, (), true))
    };
    let up = |l: &mut Ledger| publish(l, SECOND).number(&m::gpu_up, &g, ());
    l.fold(mode(1));
    assert_eq!(up(&mut l), None);
    l.fold(power(&g, 1, SECOND, 100.0));
    assert_eq!(up(&mut l), Some(1.0));
    l.fold(mode(2));
    assert_eq!(up(&mut l), None, "switched: what was read before is void");
    l.fold(power(&g, 2, SECOND, 100.0));
    assert_eq!(up(&mut l), Some(1.0));
    let mut lost = mode(3);
    lost.answered = false;
    l.fold(lost);
    assert_eq!(up(&mut l), Some(0.0), "a GPU that was lost on the way");
}

#[test]
fn a_load_seen_in_folder_and_kernel_log_counts_once_and_clears_the_drivers_counters() {
    let mut ledger = ledger();
    let a = gpu(0);
    let loads = |ledger: &mut Ledger, now| {
        let snapshot = publish(ledger, now);
        let number = |metric| snapshot.number(metric, &Node {}, ());
        (number(&m::gpu_driver_loads_total), number(&m::gpu_driver_load_timestamp_seconds))
    };
    let seen = |inode, at, unix_seconds| {
        let id = LoadId { boot: "b".into(), inode, made: None };
        let load = Load { id, live: true, version: "580.1".into(), unix_seconds: None };
        LedgerEvent::Module { state: ModuleState::Loaded(load), at: Mono(at), unix_seconds }
    };
    ledger.event(seen(1, SECOND, 1.0));
    assert_eq!(loads(&mut ledger, SECOND), (Some(0.0), None), "it was there before us");
    ledger.fold(energy(&a, 1, SECOND, 500.0));
    let line = KernelLine::DriverLoaded { version: "580.1".into() };
    let what = FactKind::Kernel(KernelFact { old: false, line, text: "NVRM: loading".into() });
    let fact = Fact {
        source: FaultSource::Kmsg,
        number: 1,
        taken: Mono(20 * SECOND),
        unix_seconds: 19.5,
        kind: what,
    };
    ledger.fact(1, fact);
    ledger.event(seen(2, 25 * SECOND, 25.0));
    assert_eq!(loads(&mut ledger, 25 * SECOND), (Some(1.0), Some(19.5)));
    ledger.fold(energy(&a, 1, 26 * SECOND, 3.0));
    ledger.fold(power(&a, 1, 26 * SECOND, 70.0));
    let snapshot = publish(&mut ledger, 26 * SECOND);
    assert_eq!(snapshot.number(&m::gpu_energy_joules_total, &a, ()), Some(3.0), "a step back is explained");
}

#[test]
fn a_release_withdraws_what_was_measured_and_is_neither_up_nor_down() {
    let mut ledger = ledger();
    let a = gpu(0);
    ledger.fold(identity(&a, 1));
    ledger.fold(power(&a, 1, SECOND, 70.0));
    let pause = |holders| Pause { since: Mono(SECOND), unix_seconds: 900.0, epoch: 5, holders };
    ledger.event(LedgerEvent::Released(pause(vec![77])));
    // Was on its way when the sampler was ended.
    ledger.fold(power(&a, 1, SECOND, 71.0));
    let snapshot = publish(&mut ledger, SECOND);
    assert!(snapshot.series(&m::gpu_driver_up).is_empty() && snapshot.series(&m::gpu_up).is_empty());
    assert!(snapshot.series(&m::gpu_power_watts).is_empty());
    assert_eq!(snapshot.series(&m::gpu_info).len(), 1);
    assert_eq!(snapshot.number(&m::gpu_driver_paused, &Node {}, ()), Some(1.0));
    assert!(snapshot.driver.text().contains("still held by process 77"));
    ledger.event(LedgerEvent::Released(pause(Vec::new())));
    ledger.event(LedgerEvent::Resumed);
    let snapshot = publish(&mut ledger, 2 * SECOND);
    assert!(snapshot.series(&m::gpu_driver_up).is_empty(), "not asked yet");
    ledger.event(LedgerEvent::DriverUp);
    ledger.fold(power(&a, 1, 2 * SECOND, 71.0));
    let snapshot = publish(&mut ledger, 2 * SECOND);
    assert!(snapshot.series(&m::gpu_power_watts).is_empty(), "of a sampler that was ended");
    ledger.fold(power(&a, 6, 2 * SECOND, 72.0));
    let snapshot = publish(&mut ledger, 2 * SECOND);
    assert_eq!(snapshot.number(&m::gpu_power_watts, &a, ()), Some(72.0));
    assert_eq!(snapshot.number(&m::gpu_driver_paused, &Node {}, ()), Some(0.0));
}

/// How often the GPU became unhealthy, at this second.
fn incidents(ledger: &mut Ledger, gpu: &Gpu, second: u64) -> Option<f64> {
    let snapshot = ledger.publish(Mono(second * SECOND), second as f64);
    snapshot.number(&m::gpu_unhealthy_incidents, gpu, ())
}

fn answers(ledger: &mut Ledger, gpu: &Gpu, epoch: u64, second: u64) {
    ledger.fold(power(gpu, epoch, second * SECOND, 70.0));
}

/// The GPU is being reset, or lost: no call is answered.
fn is_lost(ledger: &mut Ledger, gpu: &Gpu, epoch: u64, second: u64) {
    let gap = Gap {
        call: "nvmlA".into(),
        metrics: vec![m::gpu_power_watts.id()],
        missing: Missing::Failed { error: m::DriverError::GpuIsLost, text: "GPU is lost".into() },
    };
    let lost = batch(gpu, Tier::Normal, epoch, second * SECOND, |_| {});
    ledger.fold(Batch { answered: false, gaps: vec![gap], ..lost });
}

#[test]
fn a_planned_reset_is_no_incident_and_what_outlasts_the_window_is_one() {
    let (mut l, g) = (ledger(), gpu(0));
    let window = Window {
        name: "mig".into(),
        kind: m::WindowKind::Maintenance,
        reason: String::new(),
        start: 100.0,
        end: 200.0,
        cut: false,
        expected_gpus: None,
    };
    l.event(LedgerEvent::Windows(vec![window]));
    for second in [110, 120, 130] {
        is_lost(&mut l, &g, 1, second);
        assert_eq!(incidents(&mut l, &g, second), Some(0.0), "a reset, {second}");
        answers(&mut l, &g, 1, second + 5);
        assert_eq!(incidents(&mut l, &g, second + 5), Some(0.0));
    }
    for (second, expected) in [(190, 0.0), (200, 0.0), (249, 0.0), (260, 1.0), (270, 1.0)] {
        is_lost(&mut l, &g, 1, second);
        assert_eq!(incidents(&mut l, &g, second), Some(expected), "lost for good, {second}");
    }
}

#[test]
fn a_reset_while_the_driver_is_released_is_no_incident() {
    let (mut l, g) = (ledger(), gpu(0));
    answers(&mut l, &g, 1, 100);
    assert_eq!(incidents(&mut l, &g, 100), Some(0.0));
    let pause = Pause { since: Mono(110 * SECOND), unix_seconds: 110.0, epoch: 5, holders: Vec::new() };
    l.event(LedgerEvent::Released(pause));
    assert_eq!(incidents(&mut l, &g, 110), Some(0.0));
    l.event(LedgerEvent::Resumed);
    l.event(LedgerEvent::DriverUp);
    is_lost(&mut l, &g, 6, 120);
    assert_eq!(incidents(&mut l, &g, 120), Some(0.0), "not ready yet");
    answers(&mut l, &g, 6, 130);
    assert_eq!(incidents(&mut l, &g, 130), Some(0.0));
    is_lost(&mut l, &g, 6, 171);
    assert_eq!(incidents(&mut l, &g, 171), Some(1.0), "long after");
}

#[test]
fn a_gpu_that_is_not_listed_is_an_incident_after_a_minute() {
    let (mut l, known, gone) = (ledger(), gpu(0), gpu(1));
    let identity = |gpu: &Gpu| {
        let (index, uuid, pci) = (gpu.gpu, gpu.uuid.to_string(), String::new());
        Identity { index, uuid, pci, last_seen: 0 }
    };
    let seen = SeenGpus { devices: 2, gpus: vec![identity(&known), identity(&gone)] };
    l.inventory = GpuInventory::new(seen);
    let listed = |taken: u64, devices: f64| {
        let mut listed = batch(&known, Tier::Slow, 1, taken * SECOND, |rows| {
            rows.entity(&Node {}).record(&m::gpu_devices, (), devices).unwrap();
        });
        listed.part.gpu = None;
        listed
    };
    for (second, devices, expected) in [
        (100, 1.0, Some(0.0)),
        (110, 2.0, None),
        (120, 1.0, Some(0.0)),
        (179, 1.0, Some(0.0)),
        (180, 1.0, Some(1.0)),
    ] {
        answers(&mut l, &known, 1, second);
        l.fold(listed(second, devices));
        assert_eq!(incidents(&mut l, &gone, second), expected, "{second}");
    }
}

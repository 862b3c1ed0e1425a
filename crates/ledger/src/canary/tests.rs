//! Events in, snapshots out.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::inbox::{LedgerEvent as Inboxed, Stall};
use crate::{Ledger, LedgerSettings, LiveSettings};
use exposition::format::ResponseFormat;
use model::catalog::{
    CollectorName, ComputeInstance, GpuInstance, MigInfo, SampleBuffer, Tier, UnhealthyReason,
};
use model::clock::Mono;
use model::sample::{Batch, BatchKey, Drained, Rows};
use model::snapshot::{EventKind, Snapshot, Value};

const SECOND: u64 = 1_000_000_000;

fn gpu() -> Gpu {
    Gpu { gpu: 3, uuid: "GPU-3".into() }
}

fn whole() -> Place {
    Place { gpu: gpu(), instance: None }
}

fn instance(id: u32, uuid: &str) -> Place {
    let instance =
        Instance { gpu_instance: id, compute_instance: 0, profile: "3g.71gb".into(), mig_uuid: uuid.into() };
    Place { gpu: gpu(), instance: Some(instance) }
}

/// A ledger with one GPU that answers, driven by hand.
struct Bench(Ledger);

impl Bench {
    fn new() -> Bench {
        let mut ledger = Ledger::new(LedgerSettings {
            live: LiveSettings {
                max_series: 2000,
                off: Default::default(),
                groups: m::MetricGroup::ALL.to_vec(),
                ..LiveSettings::default()
            },
            ..LedgerSettings::default()
        });
        ledger.event(Inboxed::DriverUp);
        let mut bench = Bench(ledger);
        bench.visit(Tier::Normal, 1, 1, |_| ());
        bench
    }

    /// A visit to a tier of the GPU, at this second.
    fn visit(&mut self, tier: Tier, epoch: u64, at: u64, fill: impl FnOnce(&mut Rows)) {
        self.drain(tier, epoch, at, Vec::new(), fill);
    }

    fn drain(
        &mut self,
        tier: Tier,
        epoch: u64,
        at: u64,
        drained: Vec<Drained>,
        fill: impl FnOnce(&mut Rows),
    ) {
        let mut rows = Rows::default();
        if tier == Tier::Normal {
            rows.entity(&gpu()).record(&m::gpu_power_watts, (), 100.0).unwrap();
        }
        fill(&mut rows);
        self.0.fold(Batch {
            part: BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu()), tier },
            epoch,
            taken: Mono(at * SECOND),
            nanos: 1000,
            answered: true,
            lifetime_nanos: None,
            rows,
            drained,
            processes: None,
            gaps: Vec::new(),
            calls: Vec::new(),
        });
    }

    /// MIG devices in the GPU instances with these ids.
    fn divided(&mut self, epoch: u64, devices: &[(u32, &str)]) {
        self.visit(Tier::Slow, epoch, 1, |rows| rows.entity(&gpu()).flag(&m::gpu_mig_mode_enabled, (), true));
        self.visit(Tier::Normal, epoch, 1, |rows| {
            for (id, uuid) in devices {
                let device = ComputeInstance {
                    gpu: 3,
                    uuid: gpu().uuid,
                    gpu_instance: *id,
                    profile: "3g.71gb".into(),
                    compute_instance: 0,
                };
                let info = MigInfo { mig_uuid: (*uuid).into(), ..MigInfo::default() };
                rows.entity(&device).info(&m::gpu_mig_info, info);
            }
        });
    }

    fn event(&mut self, event: CanaryEvent) {
        self.event_at(event, 1);
    }

    fn event_at(&mut self, event: CanaryEvent, at: u64) {
        self.0.canary_event(event, Mono(at * SECOND), 1000.0);
    }

    fn ended(&mut self, outcome: Outcome) {
        self.event(CanaryEvent::Ended(Box::new(outcome)));
    }

    fn publish(&mut self) -> Snapshot {
        self.publish_at(1)
    }

    fn publish_at(&mut self, at: u64) -> Snapshot {
        self.0.publish(Mono(at * SECOND), 1_795_000_000.0)
    }

    fn verdict(&mut self, check: CanaryCheck, verdict: CanaryVerdict) -> Option<f64> {
        self.publish().number(&m::gpu_canary_verdict, &gpu(), (check, verdict))
    }

    /// The canary's events: verdict and text.
    fn listed(&mut self) -> Vec<(&'static str, String)> {
        let list = self.publish().events;
        let own = list.iter().filter(|event| event.kind == EventKind::Canary);
        own.map(|event| (event.mnemonic, event.text.clone())).collect()
    }

    fn unhealthy(&mut self) -> Option<f64> {
        self.publish().number(&m::gpu_unhealthy_reason, &gpu(), (UnhealthyReason::Canary,))
    }
}

fn judged(check: CanaryCheck, verdict: CanaryVerdict) -> Judged {
    Judged {
        check,
        verdict,
        sample: verdict,
        text: format!("{verdict:?}"),
        rate: None,
        ratios: Vec::new(),
        sm_clock_hertz: None,
        zeroed: 0,
        flipped: 0,
        bad_sms: Vec::new(),
    }
}

fn outcome(place: Place, checks: Vec<Judged>) -> Outcome {
    Outcome {
        place,
        began: 99.0,
        ended: 100.0,
        end: CanaryEnd::Finished,
        skip: None,
        text: String::new(),
        step: None,
        cuda_error: None,
        steps: Vec::new(),
        gpu_seconds: 0.05,
        checks,
    }
}

use CanaryCheck as C;
use CanaryVerdict as V;

#[test]
fn counters_are_there_before_anything_ran() {
    let mut bench = Bench::new();
    let s = bench.publish();
    let node = Node {};
    for end in CanaryEnd::ALL {
        assert_eq!(s.number(&m::gpu_canary_runs_total, &node, (*end,)), Some(0.0));
    }
    for reason in CanarySkip::ALL {
        assert_eq!(s.number(&m::gpu_canary_skipped_total, &node, (*reason,)), Some(0.0));
    }
    assert_eq!(s.number(&m::gpu_canary_kills_total, &node, ()), Some(0.0));
    assert_eq!(s.number(&m::gpu_canary_gpu_seconds_total, &gpu(), ()), Some(0.0));
    assert_eq!(s.number(&m::gpu_canary_discarded_total, &gpu(), ()), Some(0.0));
    for kind in MismatchKind::ALL {
        assert_eq!(s.number(&m::gpu_canary_mismatches_total, &gpu(), (*kind,)), Some(0.0));
    }
    assert!(s.series(&m::gpu_canary_verdict).is_empty() && s.series(&m::gpu_canary_mode).is_empty());
    assert!(s.series(&m::gpu_canary_last_run_timestamp_seconds).is_empty());
    assert_eq!(bench.unhealthy(), Some(0.0));
}

#[test]
fn a_run_that_is_well_is_published_with_its_rates() {
    let mut bench = Bench::new();
    bench.event(CanaryEvent::Mode { mode: CanaryMode::Idle, duty: 0.001 });
    bench.event(CanaryEvent::Alive(1));
    bench.event(CanaryEvent::Due(whole(), Some(2000.0)));
    bench.event(CanaryEvent::Began(whole()));
    assert!(bench.publish().canary.places[0].running);
    let rate = Judged {
        rate: Some(Rate::WorkPerCycle(126.6)),
        ratios: vec![(RateAgainst::Baseline, 1.0005), (RateAgainst::Roofline, 0.989)],
        sm_clock_hertz: Some(1.98e9),
        ..judged(C::SmRate, V::Ok)
    };
    let steps = vec![(CanaryStep::Init, 0.1), (CanaryStep::SmRate, 0.004)];
    bench.ended(Outcome { steps, ..outcome(whole(), vec![judged(C::Init, V::Ok), rate]) });
    let s = bench.publish();
    let (g, node) = (gpu(), Node {});
    assert_eq!(s.series(&m::gpu_canary_verdict).len(), 2, "nothing but ok");
    assert_eq!(s.number(&m::gpu_canary_verdict, &g, (C::SmRate, V::Ok)), Some(1.0));
    let ratio = |against| s.number(&m::gpu_canary_rate_ratio, &g, (C::SmRate, against));
    assert_eq!((ratio(RateAgainst::Baseline), ratio(RateAgainst::Siblings)), (Some(1.0005), None));
    assert_eq!(s.number(&m::gpu_canary_work_per_cycle, &g, (C::SmRate,)), Some(126.6));
    assert_eq!(s.number(&m::gpu_canary_sm_clock_hertz, &g, ()), Some(1.98e9));
    assert_eq!(s.number(&m::gpu_canary_last_run_timestamp_seconds, &g, ()), Some(100.0));
    assert_eq!(s.number(&m::gpu_canary_last_success_timestamp_seconds, &g, ()), Some(100.0));
    assert_eq!(s.number(&m::gpu_canary_next_due_timestamp_seconds, &g, ()), Some(2000.0));
    assert_eq!(s.number(&m::gpu_canary_gpu_seconds_total, &g, ()), Some(0.05));
    assert_eq!(s.number(&m::gpu_canary_runs_total, &node, (CanaryEnd::Finished,)), Some(1.0));
    let modes: Vec<_> =
        CanaryMode::ALL.iter().map(|mode| s.number(&m::gpu_canary_mode, &node, (*mode,))).collect();
    assert_eq!(modes, [Some(0.0), Some(1.0), Some(0.0), Some(0.0)]);
    assert_eq!(s.number(&m::gpu_canary_duty_budget_ratio, &node, ()), Some(0.001));
    assert_eq!(s.number(&m::gpu_canary_processes, &node, ()), Some(1.0));
    assert_eq!(s.series(&m::gpu_canary_step_duration_seconds).len(), 2);
    let Value::Histogram(rates) = &s.series(&m::gpu_canary_sample_rate_ratio)[0].value else { panic!() };
    assert_eq!((rates.count(), rates.counts[9]), (1, 1), "the baseline's alone");
    assert!(!s.canary.places[0].running);
    assert_eq!(bench.listed(), [], "that all is well is no event");
}

#[test]
fn a_verdict_keeps_its_series_and_each_change_of_it_is_one_event() {
    let mut bench = Bench::new();
    bench.ended(outcome(whole(), vec![judged(C::HbmRead, V::Ok)]));
    assert_eq!(bench.verdict(C::HbmRead, V::DegradedMemory), None);
    for _ in 0..3 {
        bench.ended(outcome(whole(), vec![judged(C::HbmRead, V::DegradedMemory)]));
        assert_eq!(bench.verdict(C::HbmRead, V::DegradedMemory), Some(1.0));
        assert_eq!(bench.verdict(C::HbmRead, V::Ok), Some(0.0));
        // A run that was disturbed says nothing.
        bench.ended(outcome(whole(), vec![judged(C::HbmRead, V::Contended)]));
    }
    bench.ended(outcome(whole(), vec![judged(C::HbmRead, V::Ok)]));
    assert_eq!(bench.verdict(C::HbmRead, V::DegradedMemory), Some(0.0));
    assert_eq!(bench.verdict(C::HbmRead, V::Ok), Some(1.0));
    let said: Vec<_> = bench.listed().into_iter().map(|(verdict, _)| verdict).collect();
    assert_eq!(said, ["degraded_memory", "ok"]);
    assert_eq!(bench.unhealthy(), Some(0.0), "slow is not unreliable");
    let s = bench.publish();
    assert_eq!(s.number(&m::gpu_canary_discarded_total, &gpu(), ()), Some(3.0));
}

#[test]
fn wrong_results_are_counted_named_and_against_the_gpu() {
    let mut bench = Bench::new();
    let wrong = |verdict| Judged {
        zeroed: 2,
        flipped: 5,
        bad_sms: (0..10).map(|sm| (sm, BadSmKind::Wrong)).collect(),
        ..judged(C::SmSdc, verdict)
    };
    bench.ended(outcome(whole(), vec![wrong(V::WrongResultSuspected)]));
    assert_eq!(bench.unhealthy(), Some(0.0), "seen once");
    bench.ended(outcome(whole(), vec![wrong(V::WrongResult)]));
    bench.ended(outcome(whole(), vec![wrong(V::WrongResult)]));
    assert_eq!(bench.unhealthy(), Some(1.0));
    let s = bench.publish();
    assert_eq!(s.number(&m::gpu_healthy, &gpu(), ()), Some(0.0));
    let count = |kind| s.number(&m::gpu_canary_mismatches_total, &gpu(), (kind,));
    assert_eq!((count(MismatchKind::Zeroed), count(MismatchKind::Flipped)), (Some(6.0), Some(15.0)));
    assert_eq!(s.series(&m::gpu_canary_bad_sm_info).len(), 8);
    assert!(s.series(&m::gpu_canary_last_success_timestamp_seconds).is_empty());
    assert_eq!(bench.listed().len(), 2, "suspected, and found");
    bench.ended(outcome(whole(), vec![judged(C::SmSdc, V::Contended)]));
    bench.ended(Outcome {
        end: CanaryEnd::CouldNotRun,
        ..outcome(whole(), vec![judged(C::SmSdc, V::CouldNotRun)])
    });
    bench.0.canary.reset(None);
    assert_eq!(bench.unhealthy(), Some(1.0), "neither says that it computes rightly");
    bench.ended(outcome(whole(), vec![judged(C::SmSdc, V::Ok)]));
    assert_eq!(bench.unhealthy(), Some(1.0), "nor does a right run take it back");
    let s = bench.publish();
    assert!(s.series(&m::gpu_canary_bad_sm_info).is_empty());
    assert!(s.number(&m::gpu_canary_wrong_result_timestamp_seconds, &gpu(), ()).is_some());
    assert_eq!(s.canary.wrong.len(), 1);
    bench.0.event(Inboxed::Canary(CanaryEvent::Cleared(gpu(), "uid 0: tested".into())));
    assert_eq!(bench.unhealthy(), Some(0.0));
    let s = bench.publish();
    assert!(s.series(&m::gpu_canary_wrong_result_timestamp_seconds).is_empty() && s.canary.wrong.is_empty());
    let last = |s: &Snapshot| s.events.last().map(|event| (event.gpu.clone(), event.text.clone()));
    assert_eq!(last(&s), Some((Some(gpu()), "uid 0: tested".into())));
    let elsewhere = Gpu { gpu: 0, uuid: "GPU-elsewhere".into() };
    bench.0.event(Inboxed::Canary(CanaryEvent::Cleared(elsewhere, "uid 0: sold".into())));
    assert_eq!(last(&bench.publish()), Some((None, "board GPU-elsewhere: uid 0: sold".into())));
}

#[test]
fn a_fault_of_the_driver_has_its_code_and_ends_with_a_reset() {
    let mut bench = Bench::new();
    let fault = || Outcome {
        end: CanaryEnd::DriverFault,
        step: Some(CanaryStep::Tensor),
        cuda_error: Some(719),
        text: "cuCtxSynchronize failed".into(),
        ..outcome(whole(), vec![judged(C::Init, V::Ok)])
    };
    bench.ended(fault());
    // No check was judged so: the step is the check.
    assert_eq!(bench.verdict(C::Tensor, V::DriverFault), Some(1.0));
    assert_eq!(bench.unhealthy(), Some(1.0));
    let s = bench.publish();
    let errors = |s: &Snapshot, code: &str| {
        s.number(&m::gpu_canary_cuda_errors_total, &gpu(), (CudaError(code.into()),))
    };
    assert_eq!(errors(&s, "719"), Some(1.0));
    let event = &s.events[0];
    assert_eq!((event.code, event.check), (Some(719), Some("tensor")));
    assert_eq!(event.severity, m::Severity::Page);
    bench.0.canary.reset(Some(&gpu()));
    assert_eq!((bench.unhealthy(), bench.verdict(C::Tensor, V::DriverFault)), (Some(0.0), None));
    bench.ended(fault());
    assert_eq!(bench.listed().len(), 2, "it is back");
    // A failure caused by the environment is not a driver error.
    let forbidden = Outcome {
        end: CanaryEnd::CouldNotRun,
        skip: Some(CanarySkip::NoPermission),
        cuda_error: Some(800),
        ..outcome(whole(), Vec::new())
    };
    bench.ended(forbidden);
    let s = bench.publish();
    assert_eq!(errors(&s, "800"), None);
    assert_eq!(s.number(&m::gpu_canary_skipped_total, &Node {}, (CanarySkip::NoPermission,)), Some(1.0));
}

#[test]
fn a_hang_lasts_until_its_process_has_ended() {
    let mut bench = Bench::new();
    bench.event(CanaryEvent::Began(whole()));
    bench.event(CanaryEvent::Hung(whole(), Some(CanaryStep::Context)));
    bench.ended(Outcome {
        end: CanaryEnd::Hung,
        step: Some(CanaryStep::Context),
        text: "no progress for 60 s".into(),
        ..outcome(whole(), Vec::new())
    });
    let hung = |s: &Snapshot| s.number(&m::gpu_canary_hung, &gpu(), (CanaryStep::Context,));
    let s = bench.publish();
    assert_eq!(hung(&s), Some(1.0));
    assert_eq!(s.canary.places[0].hung, Some(CanaryStep::Context));
    assert_eq!(bench.verdict(C::Init, V::Hung), Some(1.0));
    assert_eq!(bench.listed(), [("hung", "no progress for 60 s".into())]);
    bench.event(CanaryEvent::Killed);
    bench.event(CanaryEvent::Hung(whole(), None));
    let s = bench.publish();
    assert_eq!((hung(&s), s.number(&m::gpu_canary_kills_total, &Node {}, ())), (Some(0.0), Some(1.0)));
    assert_eq!(bench.listed().len(), 2);
    assert_eq!(bench.unhealthy(), Some(1.0), "until a run or a reset says otherwise");
    bench.ended(outcome(whole(), vec![judged(C::Init, V::Ok)]));
    assert_eq!(bench.unhealthy(), Some(0.0));
}

#[test]
fn verdicts_are_withdrawn_while_the_gpu_does_not_answer_and_history_stays() {
    let mut bench = Bench::new();
    bench.ended(outcome(whole(), vec![judged(C::SmSdc, V::WrongResult)]));
    let stall = Stall { gpu: Some(gpu()), call: "nvmlX".into(), since: Mono(SECOND), overdue: true };
    bench.0.event(Inboxed::Stalls(vec![stall]));
    let s = bench.publish();
    assert!(s.series(&m::gpu_canary_verdict).is_empty());
    assert_eq!(s.number(&m::gpu_canary_last_run_timestamp_seconds, &gpu(), ()), Some(100.0));
    assert_eq!(bench.unhealthy(), Some(1.0), "and so does what speaks against it");
    bench.0.event(Inboxed::Stalls(Vec::new()));
    assert_eq!(bench.verdict(C::SmSdc, V::WrongResult), Some(1.0));
}

#[test]
fn an_instance_that_is_gone_has_no_series() {
    let mut bench = Bench::new();
    bench.ended(outcome(whole(), vec![judged(C::Init, V::Ok)]));
    bench.divided(2, &[(1, "MIG-a"), (2, "MIG-b")]);
    bench.event(CanaryEvent::Due(whole(), Some(3000.0)));
    let low = Judged { ratios: vec![(RateAgainst::Baseline, 0.9)], ..judged(C::SmRate, V::Slow) };
    bench.ended(outcome(instance(1, "MIG-a"), vec![judged(C::SmRate, V::Ok)]));
    bench.ended(outcome(instance(2, "MIG-b"), vec![low]));
    let part = |id| GpuInstance { gpu: 3, uuid: gpu().uuid, gpu_instance: id, profile: "3g.71gb".into() };
    let slow = |s: &Snapshot, id| s.number(&m::gpu_mig_canary_verdict, &part(id), (C::SmRate, V::Slow));
    let s = bench.publish();
    assert!(s.series(&m::gpu_canary_verdict).is_empty(), "the whole GPU is not what is there");
    assert_eq!((slow(&s, 1), slow(&s, 2)), (None, Some(1.0)));
    let of = (C::SmRate, RateAgainst::Baseline);
    assert_eq!(s.number(&m::gpu_mig_canary_rate_ratio, &part(2), of), Some(0.9));
    assert_eq!(s.number(&m::gpu_mig_canary_last_run_timestamp_seconds, &part(1), ()), Some(100.0));
    assert_eq!(s.canary.places.len(), 3);
    assert_eq!(s.canary.places[0].due, Some(3000.0), "what is planned is published of the whole");
    assert!(s.canary.places[0].checks.is_empty());
    // A new handle: the current instances were not read yet.
    bench.visit(Tier::Slow, 3, 1, |rows| rows.entity(&gpu()).flag(&m::gpu_mig_mode_enabled, (), true));
    assert!(bench.publish().series(&m::gpu_mig_canary_verdict).is_empty());
    bench.divided(3, &[(1, "MIG-a"), (2, "MIG-c")]);
    let s = bench.publish();
    assert_eq!(s.number(&m::gpu_mig_canary_verdict, &part(1), (C::SmRate, V::Ok)), Some(1.0), "the same one");
    assert_eq!(slow(&s, 2), None, "another one under the same number");
    bench.divided(4, &[(1, "MIG-a"), (2, "MIG-b")]);
    assert_eq!(slow(&bench.publish(), 2), None, "what was forgotten does not come back");
}

#[test]
fn of_several_compute_instances_the_worst_holds() {
    let mut bench = Bench::new();
    let device = |ci| ComputeInstance {
        gpu: 3,
        uuid: gpu().uuid,
        gpu_instance: 1,
        profile: "3g.71gb".into(),
        compute_instance: ci,
    };
    bench.visit(Tier::Normal, 1, 1, |rows| {
        for ci in [0, 1] {
            let info = MigInfo { mig_uuid: format!("MIG-{ci}"), ..MigInfo::default() };
            rows.entity(&device(ci)).info(&m::gpu_mig_info, info);
        }
    });
    let place = |ci| {
        let Place { gpu, instance } = instance(1, &format!("MIG-{ci}"));
        Place { gpu, instance: instance.map(|i| Instance { compute_instance: ci, ..i }) }
    };
    bench.ended(outcome(place(0), vec![judged(C::SmSdc, V::WrongResult)]));
    bench.ended(outcome(place(1), vec![judged(C::SmSdc, V::Ok)]));
    let part = GpuInstance { gpu: 3, uuid: gpu().uuid, gpu_instance: 1, profile: "3g.71gb".into() };
    let s = bench.publish();
    let verdict = |verdict| s.number(&m::gpu_mig_canary_verdict, &part, (C::SmSdc, verdict));
    assert_eq!((verdict(V::WrongResult), verdict(V::Ok)), (Some(1.0), Some(0.0)));
}

#[test]
fn a_gpu_that_another_one_replaced_leaves_nothing() {
    let mut bench = Bench::new();
    bench.ended(outcome(whole(), vec![judged(C::SmSdc, V::WrongResult)]));
    bench.0.event(Inboxed::GpuAttached(Gpu { gpu: 5, uuid: "GPU-3".into() }));
    let place = &bench.publish().canary.places[0];
    assert_eq!(place.gpu.gpu, 5, "the same GPU under another index keeps what was found");
    bench.0.event(Inboxed::GpuAttached(Gpu { gpu: 5, uuid: "GPU-9".into() }));
    assert!(bench.publish().canary.places.is_empty());
    bench.ended(outcome(whole(), vec![judged(C::SmSdc, V::Ok)]));
    assert!(bench.publish().canary.places.is_empty(), "a late event of it");
}

/// Utilization samples of the ten seconds before this one: 5 a second, of this value.
fn samples(until: u64, value: f64) -> Vec<Drained> {
    let samples = (1..=50).map(|n| ((until - 10) * 1_000_000 + n * 200_000, value)).collect();
    vec![Drained::Samples { buffer: SampleBuffer::Utilization, offset_micros: 0, samples }]
}

#[test]
fn the_canarys_own_time_is_neither_busy_nor_idle() {
    let mut bench = Bench::new();
    let busy = |s: &Snapshot| {
        let number = |metric| s.number(metric, &gpu(), ());
        (number(&m::gpu_busy_seconds_total), number(&m::gpu_utilization_peak_ratio))
    };
    bench.drain(Tier::Slow, 1, 110, samples(110, 0.0), |_| ());
    bench.event_at(CanaryEvent::Began(whole()), 113);
    bench.event_at(CanaryEvent::Ended(Box::new(outcome(whole(), Vec::new()))), 115);
    let mut canary = samples(120, 0.0);
    let Drained::Samples { samples: list, .. } = &mut canary[0] else { panic!() };
    // 113.2 to 115.0, as the canary worked.
    list.iter_mut().filter(|(at, _)| (113_200_000..=115_000_000).contains(at)).for_each(|s| s.1 = 1.0);
    bench.drain(Tier::Slow, 1, 120, canary, |_| ());
    bench.visit(Tier::Normal, 1, 116, |rows| {
        rows.entity(&gpu()).record(&m::gpu_utilization_ratio, (), 0.9).unwrap();
    });
    let s = bench.publish_at(120);
    assert_eq!(busy(&s), (Some(0.0), Some(0.0)));
    let count = (m::SampleBuffer::Utilization,);
    assert_eq!(s.number(&m::gpu_exporter_sample_gaps_total, &gpu(), count), Some(0.0));
    assert_eq!(s.number(&m::gpu_exporter_samples_total, &gpu(), count), Some(79.0), "4 s are missing");
    assert!(s.series(&m::gpu_last_busy_timestamp_seconds).is_empty(), "no work but its own");
    bench.drain(Tier::Slow, 1, 130, samples(130, 0.5), |_| ());
    let s = bench.publish_at(131);
    let (seconds, peak) = busy(&s);
    assert!(seconds.is_some_and(|seconds| (seconds - 5.0).abs() < 1e-9) && peak == Some(0.5), "{seconds:?}");
    let last = s.number(&m::gpu_last_busy_timestamp_seconds, &gpu(), ());
    assert_eq!(last, Some(1_795_000_000.0 - 1.0));
}

#[test]
fn work_is_seen_by_processes_and_by_utilization_and_remembered() {
    let mut bench = Bench::new();
    let last = |s: &Snapshot| s.number(&m::gpu_last_busy_timestamp_seconds, &gpu(), ());
    let ago = |seconds: f64| Some(1_795_000_000.0 - seconds);
    let processes = |count: f64| {
        move |rows: &mut Rows| {
            rows.entity(&gpu()).record(&m::gpu_processes, (m::ProcessType::Compute,), count).unwrap();
        }
    };
    bench.visit(Tier::Slow, 1, 10, processes(0.0));
    assert_eq!(last(&bench.publish_at(11)), None);
    bench.visit(Tier::Slow, 1, 20, processes(1.0));
    bench.visit(Tier::Slow, 1, 30, processes(0.0));
    assert_eq!(last(&bench.publish_at(31)), ago(11.0));
    bench.visit(Tier::Normal, 1, 40, |rows| {
        rows.entity(&gpu()).record(&m::gpu_utilization_ratio, (), 0.1).unwrap();
    });
    // Another sampler, and a driver that is away meanwhile.
    bench.visit(Tier::Normal, 9, 50, |_| ());
    bench.0.event(Inboxed::DriverStuck(true));
    assert_eq!(last(&bench.publish_at(50)), ago(10.0));
    let device = ComputeInstance {
        gpu: 3,
        uuid: gpu().uuid,
        gpu_instance: 1,
        profile: "3g.71gb".into(),
        compute_instance: 0,
    };
    bench.visit(Tier::Slow, 9, 60, |rows| {
        rows.entity(&device).record(&m::gpu_mig_compute_processes, (), 2.0).unwrap();
    });
    assert_eq!(last(&bench.publish_at(60)), ago(0.0));
}

#[test]
fn a_gpu_at_the_other_end_of_copies_is_not_at_work() {
    let mut bench = Bench::new();
    bench.event_at(CanaryEvent::Peer(gpu(), true), 100);
    bench.event_at(CanaryEvent::Peer(gpu(), false), 110);
    bench.drain(Tier::Slow, 1, 110, samples(110, 0.7), |_| ());
    let s = bench.publish_at(110);
    assert!(s.series(&m::gpu_busy_seconds_total).is_empty());
    assert!(s.series(&m::gpu_last_busy_timestamp_seconds).is_empty());
    assert!(s.canary.places.is_empty(), "no run of its own");
}

fn any_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    prop::sample::select(all)
}

fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), -1e300f64..1e300, 0f64..2.0]
}

prop_compose! {
    fn any_judged()(
        check in any_of(C::ALL), verdict in any_of(V::ALL), sample in any_of(V::ALL), ratio in any_float(),
        against in any_of(RateAgainst::ALL), rate in any_float(), wrong in any::<(u32, u32)>(),
        sms in prop::collection::vec((any::<u32>(), any_of(BadSmKind::ALL)), 0..20),
    ) -> Judged {
        Judged {
            sample, ratios: vec![(against, ratio)], rate: Some(Rate::WorkPerCycle(rate)),
            sm_clock_hertz: Some(rate), zeroed: wrong.0.into(), flipped: wrong.1.into(), bad_sms: sms,
            ..judged(check, verdict)
        }
    }
}

fn any_event() -> impl Strategy<Value = CanaryEvent> {
    let place = || prop_oneof![Just(whole()), (0u32..3).prop_map(|id| instance(id, "MIG-x"))];
    let ended = (
        place(),
        any_float(),
        any_of(CanaryEnd::ALL),
        prop::option::of(any_of(CanarySkip::ALL)),
        prop::option::of(any_of(CanaryStep::ALL)),
        prop::option::of(any::<u32>()),
        prop::collection::vec((any_of(CanaryStep::ALL), any_float()), 0..4),
        prop::collection::vec(any_judged(), 0..4),
    );
    let ended = ended.prop_map(|(place, at, end, skip, step, cuda_error, steps, checks)| {
        let rest = outcome(place, checks);
        Box::new(Outcome { ended: at, end, skip, step, cuda_error, steps, gpu_seconds: at, ..rest })
    });
    prop_oneof![
        (any_of(CanaryMode::ALL), any_float()).prop_map(|(mode, duty)| CanaryEvent::Mode { mode, duty }),
        (place(), prop::option::of(any_float())).prop_map(|(place, at)| CanaryEvent::Due(place, at)),
        (place(), any_of(CanarySkip::ALL)).prop_map(|(place, skip)| CanaryEvent::Skipped(place, skip)),
        place().prop_map(CanaryEvent::Began),
        any::<bool>().prop_map(|takes_part| CanaryEvent::Peer(gpu(), takes_part)),
        (place(), prop::option::of(any_of(CanaryStep::ALL)))
            .prop_map(|(place, step)| CanaryEvent::Hung(place, step)),
        ended.prop_map(CanaryEvent::Ended),
        Just(CanaryEvent::Killed),
        (0usize..9).prop_map(CanaryEvent::Alive),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_the_canary_says_no_series_is_impossible_or_comes_twice(
        events in prop::collection::vec(any_event(), 1..40),
    ) {
        let mut bench = Bench::new();
        bench.divided(2, &[(1, "MIG-x"), (2, "MIG-x")]);
        let mut runs = 0;
        for one in events {
            runs += usize::from(matches!(one, CanaryEvent::Ended(_)));
            bench.event(one);
        }
        let s = bench.publish();
        let mut total = 0.0;
        for family in &s.families {
            let mut seen = HashSet::new();
            for series in &family.series {
                prop_assert!(seen.insert((series.subject.subject.clone(), series.labels.clone())));
                let Value::Number(value) = series.value else { continue };
                prop_assert!(family.def.limits().contains(&value), "{} {value}", family.def.name);
                total += if std::ptr::eq(family.def, m::gpu_canary_runs_total.def()) { value } else { 0.0 };
            }
        }
        prop_assert_eq!(total, runs as f64);
        // One verdict of a check holds, never two.
        let holds = |series: &model::snapshot::Series| matches!(series.value, Value::Number(1.0));
        let mut held = HashSet::new();
        for series in s.series(&m::gpu_mig_canary_verdict).iter().filter(|series| holds(series)) {
            prop_assert!(held.insert((series.subject.subject.clone(), series.labels[0].clone())));
        }
        let s = std::sync::Arc::new(s);
        for format in ResponseFormat::ALL {
            prop_assert!(!format.encode(&s).is_empty());
        }
    }
}

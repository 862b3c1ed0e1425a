//! Every fault produces its own verdict and no other.

use super::fixtures::{
    baseline, device, healthy, judged, measured, measurement_mut, part, place, sms, verdict,
};
use super::*;
use crate::report::{CheckFigures, CudaDevice, Mismatch, Mismatches, RunEnd, Sm};
use CanaryVerdict::*;
use model::catalog::{BadSmKind, CanaryEnd, CanaryStep, RateAgainst};
use sampler::watch::Around;

const NOW: f64 = 1.8e9;

/// Verdicts of samples other than ok, by check.
fn samples(judgement: &RunJudgement) -> Vec<(CanaryCheck, CanaryVerdict)> {
    let checks = judgement.outcome.checks.iter().filter(|judged| judged.sample != Ok);
    checks.map(|judged| (judged.check, judged.sample)).collect()
}

/// A fault that is injected into a run, and the expected samples.
type Case = (&'static str, fn(&mut CanaryRun), &'static [(CanaryCheck, CanaryVerdict)]);

fn scale(found: &mut CheckFigures, work: f64, clock: f64) {
    let CheckFigures::Sms(sms) = found else { panic!("no multiprocessors") };
    for sm in sms {
        sm.work_per_cycle *= work;
        sm.clock_hertz *= clock;
    }
}

fn sm(run: &mut CanaryRun, check: CanaryCheck, smid: usize) -> &mut Sm {
    let CheckFigures::Sms(sms) = &mut measurement_mut(run, check).found else { panic!("no multiprocessors") };
    &mut sms[smid]
}

fn clock(run: &mut CanaryRun, share: f64, reasons: u64) {
    for check in [CanaryCheck::SmRate, CanaryCheck::Tensor] {
        scale(&mut measurement_mut(run, check).found, 1.0, share);
    }
    for measured in &mut run.measured {
        measured.around.sm_clock_hertz *= share;
        measured.around.reasons = reasons;
        if let CheckFigures::Read { sm_clock_hertz, .. } = &mut measured.found {
            *sm_clock_hertz *= share;
        }
    }
}

fn slow_read(run: &mut CanaryRun, check: CanaryCheck, share: f64) {
    let CheckFigures::Read { seconds, .. } = &mut measurement_mut(run, check).found else {
        panic!("no reads")
    };
    seconds.iter_mut().for_each(|second| *second /= share);
}

fn copies(run: &mut CanaryRun, share: f64, link: (u32, u32)) {
    let CheckFigures::Copied { to_gpu, to_host, link_generation, link_width, .. } =
        &mut measurement_mut(run, CanaryCheck::Pcie).found
    else {
        panic!("no copies")
    };
    to_gpu.iter_mut().chain(to_host).for_each(|second| *second /= share);
    (*link_generation, *link_width) = link;
}

fn wrong(run: &mut CanaryRun, check: CanaryCheck, wrong_reruns: u32) {
    let first = Mismatch {
        smid: Some(17),
        unit: "fp32".into(),
        warp_lane: Some((3, 5)),
        expected: 0x3f80_0000,
        got: 0x3f80_0040,
        ..Mismatch::default()
    };
    measurement_mut(run, check).mismatches =
        Mismatches { compared: 236_544, wrong: 3, zeroed: 1, first: vec![first], reruns: 4, wrong_reruns };
}

use CanaryCheck::*;

const FAULTS: &[Case] = &[
    ("nothing", |_| (), &[]),
    ("an SM 1 % slow", |r| sm(r, SmRate, 17).work_per_cycle *= 0.99, &[(SmRate, SlowSm)]),
    ("an SM 3 % slow in its tensor cores", |r| sm(r, Tensor, 17).work_per_cycle *= 0.97, &[(Tensor, SlowSm)]),
    ("an SM's clock 2 % low", |r| sm(r, SmRate, 3).clock_hertz *= 0.98, &[(SmRate, SlowSm)]),
    ("all SMs 1 % slow", |r| scale(&mut measurement_mut(r, SmRate).found, 0.99, 1.0), &[(SmRate, Slow)]),
    (
        "all tensor cores 5 % slow",
        |r| scale(&mut measurement_mut(r, Tensor).found, 0.95, 1.0),
        &[(Tensor, Slow)],
    ),
    ("a clock 0.5 % low without a reason", |r| clock(r, 0.995, 0), &[(SmRate, UnexplainedClockCap)]),
    (
        "a clock capped at 40 % without a reason",
        |r| clock(r, 0.4, 0),
        &[(SmRate, UnexplainedClockCap), (Tensor, UnexplainedClockCap)],
    ),
    ("hardware slowdown", |r| clock(r, 0.5, 0x8), &[(SmRate, Throttled), (Tensor, Throttled)]),
    ("hardware thermal", |r| clock(r, 0.9, 0x40), &[(SmRate, Throttled), (Tensor, Throttled)]),
    ("a power cap at the default limit", |r| clock(r, 0.9, 0x4), &[(SmRate, Throttled), (Tensor, Throttled)]),
    ("application clocks", |r| clock(r, 0.7, 0x2), &[]),
    ("clocks that had not risen", |r| clock(r, 0.2, 0x1), &[(SmRate, Skipped), (Tensor, Skipped)]),
    ("memory at 80 %", |r| slow_read(r, HbmRead, 0.8), &[(HbmRead, DegradedMemory)]),
    ("cache at 80 %", |r| slow_read(r, L2, 0.8), &[(L2, DegradedMemory)]),
    ("a link at half its width", |r| copies(r, 0.5, (5, 8)), &[(Pcie, NarrowedLink)]),
    ("a link at generation 1", |r| copies(r, 0.06, (1, 16)), &[(Pcie, NarrowedLink)]),
    ("a generation read while the link slept", |r| copies(r, 1.0, (1, 16)), &[]),
    ("slow copies over a full link", |r| copies(r, 0.8, (5, 16)), &[(Pcie, Slow)]),
    ("a link that is not known", |r| copies(r, 1.0, (0, 0)), &[]),
    (
        "slow launches",
        |r| measurement_mut(r, Launch).found = CheckFigures::Launched(vec![40e-6; 200]),
        &[(Launch, Slow)],
    ),
    ("a slow context", |r| r.steps[3].1 = 3.0, &[(Init, Slow)]),
    ("a wrong bit on SM 17", |r| wrong(r, SmSdc, 3), &[(SmSdc, WrongResult)]),
    ("a wrong bit that does not come again", |r| wrong(r, SmSdc, 0), &[(SmSdc, WrongResultSuspected)]),
    ("a wrong word in memory", |r| wrong(r, HbmWalk, 1), &[(HbmWalk, WrongResult)]),
    ("a wrong word in a copy", |r| wrong(r, Pcie, 1), &[(Pcie, WrongResult)]),
    (
        "another process on the GPU",
        |r| measurement_mut(r, HbmRead).around.others = vec![4711],
        &[(HbmRead, Contended)],
    ),
    ("time slices", |r| measurement_mut(r, SmRate).wall_seconds = 0.02, &[(SmRate, Contended)]),
    (
        "a worse error than single precision has",
        |r| {
            let CheckFigures::Transformed(t) = &mut measurement_mut(r, Transform).found else { panic!() };
            t.max_relative_error = 1e-4;
        },
        &[(Transform, WrongResultSuspected)],
    ),
    (
        "copies and kernels one after another",
        |r| {
            let CheckFigures::Overlapped(o) = &mut measurement_mut(r, Overlap).found else { panic!() };
            (o.rotating, o.separate) = (9.6e-3, 9.6e-3);
        },
        &[(Overlap, Slow)],
    ),
];

#[test]
fn each_fault_gets_its_verdict_and_only_that() {
    let baseline = baseline(40, NOW);
    for (name, fault, expected) in FAULTS {
        let mut run = healthy();
        fault(&mut run);
        let judgement = judged(&run, &baseline, NOW);
        assert_eq!(samples(&judgement), *expected, "{name}: {:#?}", judgement.outcome.checks);
        assert!(judgement.outcome.checks.iter().all(|judged| !judged.text.is_empty()), "{name}");
        for (check, sample) in *expected {
            let found = verdict(&judgement, *check).verdict;
            let expected = if is_rate(*sample) { Ok } else { *sample };
            assert_eq!(found, expected, "{name}: rates must last");
        }
    }
}

#[test]
fn low_rates_stand_after_three_of_four_and_are_not_learned() {
    let mut baseline = baseline(40, NOW);
    let before = baseline.clone();
    let configuration = crate::baseline::configuration(&device());
    let key = crate::baseline::key(&place());
    let mut run = healthy();
    sm(&mut run, SmRate, 17).work_per_cycle *= 0.99;
    for (nth, expected) in [Ok, Ok, SlowSm, SlowSm].into_iter().enumerate() {
        let now = NOW + 400.0 * nth as f64;
        let judgement = judged(&run, &baseline, now);
        let found = verdict(&judgement, SmRate);
        assert_eq!(found.verdict, expected, "run {nth}: {}", found.text);
        assert_eq!(found.bad_sms, vec![(17, BadSmKind::Slow)]);
        assert!(found.text.contains("SM 17"), "{}", found.text);
        baseline.apply(judgement.update);
    }
    let quantity = Quantity::SM_RATE_WORK;
    let count = |baseline: &BaselineStore, quantity| baseline.count(&key, &configuration, quantity);
    assert_eq!(count(&baseline, quantity), count(&before, quantity), "frozen");
    assert_eq!(
        count(&baseline, Quantity::HBM_READ),
        count(&before, Quantity::HBM_READ) + 4,
        "the others learn"
    );
    // The verdict ends with the fault.
    for (nth, expected) in [SlowSm, Ok].into_iter().enumerate() {
        let judgement = judged(&healthy(), &baseline, NOW + 4000.0 + nth as f64);
        assert_eq!(verdict(&judgement, SmRate).verdict, expected);
        baseline.apply(judgement.update);
    }
}

#[test]
fn without_a_baseline_only_what_is_sure_counts() {
    let none = BaselineStore::default();
    let unsure = [
        "all SMs 1 % slow",
        "all tensor cores 5 % slow",
        "a clock 0.5 % low without a reason",
        "memory at 80 %",
        "cache at 80 %",
        "slow copies over a full link",
        "slow launches",
        "a slow context",
        "a power cap at the default limit",
    ];
    for (name, fault, with_baseline) in FAULTS {
        let mut run = healthy();
        fault(&mut run);
        let found = samples(&judged(&run, &none, NOW));
        let sure: Vec<_> = with_baseline
            .iter()
            .copied()
            // Tensor work may meet the power limit, so its clock is only compared with its history.
            .filter(|(check, sample)| !unsure.contains(name) && (*check != Tensor || *sample == SlowSm))
            .collect();
        assert_eq!(found, sure, "{name}");
    }
    let mut run = healthy();
    scale(&mut measurement_mut(&mut run, SmRate).found, 0.85, 1.0);
    assert_eq!(samples(&judged(&run, &none, NOW)), vec![(SmRate, Slow)]);
    let mut run = healthy();
    slow_read(&mut run, HbmRead, 0.6);
    assert_eq!(samples(&judged(&run, &none, NOW)), vec![(HbmRead, DegradedMemory)]);
    let mut run = healthy();
    copies(&mut run, 0.25, (5, 16));
    assert_eq!(samples(&judged(&run, &none, NOW)), vec![(Pcie, Slow)]);
}

#[test]
fn siblings_tell_of_a_gpu_that_was_born_slow() {
    let usual = judged(&healthy(), &BaselineStore::default(), NOW).update.newest;
    let siblings = |count: usize| Siblings::from_figures(vec![usual.as_slice(); count]);
    let mut run = healthy();
    slow_read(&mut run, HbmRead, 0.8);
    let judge = |siblings: &Siblings| judge(&place(), &run, &BaselineStore::default(), siblings, NOW);
    assert_eq!(samples(&judge(&siblings(2))), vec![], "two are too few");
    let judgement = judge(&siblings(3));
    assert_eq!(samples(&judgement), vec![(HbmRead, DegradedMemory)]);
    let found = verdict(&judgement, HbmRead);
    let of_siblings = found.ratios.iter().find(|(against, _)| *against == RateAgainst::Siblings).unwrap();
    assert!((of_siblings.1 - 0.8).abs() < 1e-6);
    assert!(found.text.contains("80.0 % of the median of the other GPUs"), "{}", found.text);
}

#[test]
fn siblings_are_found_by_model_and_profile() {
    let mut baseline = BaselineStore::default();
    let other = |n: u32| Place {
        gpu: model::catalog::Gpu { gpu: n, uuid: format!("GPU-{n}").into() },
        instance: None,
    };
    for n in 1..=3 {
        baseline.apply(judge(&other(n), &healthy(), &baseline, &Siblings::default(), NOW).update);
    }
    let siblings = baseline.siblings(&place(), &device());
    assert!(siblings.median(Quantity::SM_RATE_WORK).is_some());
    assert_eq!(baseline.siblings(&other(1), &device()).median(Quantity::SM_RATE_WORK), None, "not itself");
    assert_eq!(baseline.siblings(&part(), &device()).median(Quantity::SM_RATE_WORK), None, "not a part");
    let mut another = device();
    another.name = "NVIDIA H100".into();
    assert_eq!(baseline.siblings(&place(), &another).median(Quantity::SM_RATE_WORK), None);
}

#[test]
fn a_second_suspicion_within_thirty_days_confirms() {
    let day = 86_400.0;
    let mut baseline = baseline(0, NOW);
    let mut suspect = healthy();
    wrong(&mut suspect, SmSdc, 0);
    let first = judged(&suspect, &baseline, NOW);
    let found = verdict(&first, SmSdc);
    assert_eq!((found.verdict, found.zeroed, found.flipped), (WrongResultSuspected, 1, 2));
    assert_eq!(found.bad_sms, vec![(17, BadSmKind::Wrong)]);
    assert!(found.text.contains("warp 3, lane 5") && found.text.contains("bits 0x40"), "{}", found.text);
    baseline.apply(first.update);
    let late = judged(&suspect, &baseline, NOW + 31.0 * day);
    assert_eq!(verdict(&late, SmSdc).verdict, WrongResultSuspected);
    // A wrong result in another check of the same GPU counts as well.
    let mut other = healthy();
    wrong(&mut other, HbmWalk, 0);
    assert_eq!(verdict(&judged(&other, &baseline, NOW + day), HbmWalk).verdict, WrongResult);
    let second = judged(&suspect, &baseline, NOW + 29.0 * day);
    assert_eq!(verdict(&second, SmSdc).verdict, WrongResult);
    baseline.apply(second.update);
    let right = judged(&healthy(), &baseline, NOW + 30.0 * day);
    let found = verdict(&right, SmSdc);
    assert_eq!(
        (found.verdict, found.sample),
        (Ok, Ok),
        "the ledger keeps what was confirmed: {}",
        found.text
    );
}

#[test]
fn a_fault_belongs_to_the_check_of_its_step() {
    let fault =
        |step| RunEnd::Fault { step, code: 719, name: "CUDA_ERROR_LAUNCH_FAILED".into(), call: "cuX".into() };
    for (step, check) in [
        (CanaryStep::Context, Init),
        (CanaryStep::SmRate, SmRate),
        (CanaryStep::HbmWalk, HbmWalk),
        (CanaryStep::Destroy, Init),
    ] {
        let mut run = healthy();
        run.measured.retain(|measured| measured.check != check);
        run.end = fault(step);
        assert!(worth_another_try(&run));
        let judgement = judged(&run, &BaselineStore::default(), NOW);
        assert_eq!(samples(&judgement), vec![(check, DriverFault)]);
        let outcome = &judgement.outcome;
        assert_eq!(
            (outcome.end, outcome.cuda_error, outcome.step),
            (CanaryEnd::DriverFault, Some(719), Some(step))
        );
        assert!(outcome.text.contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{}", outcome.text);
    }
    let mut run = healthy();
    run.measured.clear();
    run.device = None;
    run.steps.truncate(3);
    run.end = RunEnd::Hung {
        step: CanaryStep::Context,
        call: Some("cuDevicePrimaryCtxRetain".into()),
        seconds: 61.0,
    };
    let judgement = judged(&run, &baseline(40, NOW), NOW);
    assert_eq!(samples(&judgement), vec![(Init, Hung)]);
    assert!(
        judgement.outcome.text.contains("in cuDevicePrimaryCtxRetain for 61 s"),
        "{}",
        judgement.outcome.text
    );
}

#[test]
fn what_could_not_be_run_is_no_fault() {
    for (reason, expected) in [
        (CanarySkip::NoLibrary, CouldNotRun),
        (CanarySkip::OldDriver, CouldNotRun),
        (CanarySkip::DeviceUnavailable, Skipped),
        (CanarySkip::Mps, Skipped),
    ] {
        let run = CanaryRun {
            device: None,
            measured: Vec::new(),
            steps: Vec::new(),
            end: RunEnd::Unable { reason, text: "why".into() },
            ..healthy()
        };
        let judgement = judged(&run, &BaselineStore::default(), NOW);
        assert_eq!(samples(&judgement), vec![(Init, expected)]);
        assert_eq!(judgement.outcome.skip, Some(reason));
        assert!(judgement.update.samples.is_empty() && judgement.update.clean.is_empty());
        assert_eq!(not_run(&place(), reason, "why".into(), NOW).checks, judgement.outcome.checks);
    }
    let broken =
        CanaryRun { measured: Vec::new(), end: RunEnd::Broken { text: "garbage".into() }, ..healthy() };
    assert_eq!(samples(&judged(&broken, &BaselineStore::default(), NOW)), vec![(Init, CouldNotRun)]);
    let abandoned = RunEnd::Abandoned { text: "another process came".into(), pids: vec![4711] };
    let judgement = judged(&CanaryRun { end: abandoned, ..healthy() }, &BaselineStore::default(), NOW);
    assert_eq!(samples(&judgement), vec![], "what was measured before counts");
    assert!(judgement.outcome.text.contains("4711"));
}

#[test]
fn low_rates_are_confirmed_at_once_by_more_runs_on_command() {
    let mut slow = healthy();
    sm(&mut slow, SmRate, 17).work_per_cycle *= 0.97;
    let baseline = BaselineStore::default();
    let outcome = |run: &CanaryRun| judged(run, &baseline, NOW).outcome;
    let first = outcome(&slow);
    assert_eq!(unconfirmed(&first), vec![SmRate]);
    let mut confirmed = first.clone();
    confirm(&mut confirmed, &[outcome(&slow), outcome(&slow)]);
    assert_eq!(confirmed.checks[1].verdict, SlowSm);
    assert!(unconfirmed(&confirmed).is_empty());
    let mut chance = first.clone();
    confirm(&mut chance, &[outcome(&slow), outcome(&healthy())]);
    assert_eq!(chance.checks[1].verdict, Ok);
    assert!(chance.checks[1].text.contains("seen in 2 of 3 runs"), "{}", chance.checks[1].text);
    let mut alone = first.clone();
    confirm(&mut alone, &[]);
    assert_eq!(alone.checks[1].verdict, Ok);
    // A run that was cut short by a job is no evidence for or against a low rate.
    let mut cut_short = first;
    let abandoned = CanaryRun {
        measured: Vec::new(),
        end: RunEnd::Abandoned { text: "a job".into(), pids: vec![7] },
        ..healthy()
    };
    confirm(&mut cut_short, &[outcome(&slow), outcome(&abandoned)]);
    assert_eq!(cut_short.checks[1].verdict, Ok);
    let text = &cut_short.checks[1].text;
    assert!(text.contains("measured again in 1 of 2 further runs only"), "{text}");
}

#[test]
fn rates_with_another_amount_of_memory_are_not_compared() {
    let mut run = healthy();
    slow_read(&mut run, HbmRead, 0.8);
    let baseline = baseline(30, NOW);
    assert_eq!(samples(&judged(&run, &baseline, NOW)), vec![(HbmRead, DegradedMemory)]);
    run.device = Some(CudaDevice { used_bytes: 32 << 20, ..device() });
    assert_eq!(samples(&judged(&run, &baseline, NOW)), vec![]);
}

#[test]
fn a_power_cap_that_was_set_is_reported_and_no_fault() {
    let mut run = healthy();
    clock(&mut run, 0.9, 0x4);
    let mut chosen = device();
    chosen.power_limit_milliwatts = 450_000;
    run.device = Some(chosen.clone());
    // The baseline for this limit has a higher clock.
    let mut baseline = BaselineStore::default();
    for nth in 0..30 {
        let run = CanaryRun { device: Some(chosen.clone()), ..healthy() };
        baseline.apply(judged(&run, &baseline, NOW - 60.0 * f64::from(30 - nth)).update);
    }
    let judgement = judged(&run, &baseline, NOW);
    assert_eq!(samples(&judgement), vec![]);
    let found = verdict(&judgement, SmRate);
    assert!(found.text.contains("lowered on purpose: power cap (0x4)"), "{}", found.text);
    assert!(!judgement.update.clean.iter().any(|(quantity, _)| *quantity == Quantity::SM_RATE_CLOCK));
}

#[test]
fn parts_that_never_reach_the_clock_they_tell_are_not_capped() {
    let mut run = healthy();
    clock(&mut run, 0.82, 0);
    let mut other = device();
    other.compute_capability = (8, 9);
    run.device = Some(other);
    assert_eq!(samples(&judged(&run, &BaselineStore::default(), NOW)), vec![]);
    let mut crawling = run.clone();
    clock(&mut crawling, 0.4, 0);
    let found = samples(&judged(&crawling, &BaselineStore::default(), NOW));
    assert!(found.contains(&(SmRate, UnexplainedClockCap)), "{found:?}");
}

#[test]
fn a_clock_is_not_judged_without_the_reasons() {
    let mut run = healthy();
    clock(&mut run, 0.5, 0);
    run.measured.iter_mut().for_each(|measured| measured.around = Around::default());
    let baseline = baseline(40, NOW);
    assert_eq!(samples(&judged(&run, &baseline, NOW)), vec![]);
}

#[test]
fn slow_memory_under_a_low_clock_is_a_matter_of_clocks() {
    let baseline = baseline(40, NOW);
    let mut run = healthy();
    clock(&mut run, 0.5, 0x40);
    slow_read(&mut run, HbmRead, 0.7);
    assert_eq!(verdict(&judged(&run, &baseline, NOW), HbmRead).sample, Skipped);
    let mut run = healthy();
    slow_read(&mut run, HbmRead, 0.5);
    measurement_mut(&mut run, HbmRead).around.memory_clock_hertz *= 0.5;
    assert_eq!(samples(&judged(&run, &baseline, NOW)), vec![(HbmRead, UnexplainedClockCap)]);
    measurement_mut(&mut run, HbmRead).around.reasons = 0x20;
    assert_eq!(samples(&judged(&run, &baseline, NOW)), vec![(HbmRead, Throttled)]);
    measurement_mut(&mut run, HbmRead).around.reasons = 0x1;
    assert_eq!(samples(&judged(&run, &baseline, NOW)), vec![(HbmRead, Skipped)]);
}

#[test]
fn a_part_of_a_gpu_is_judged_by_its_own_multiprocessors_and_no_foreign_bound() {
    let mut run = healthy();
    let mut own = device();
    own.multiprocessors = 60;
    run.device = Some(own);
    measurement_mut(&mut run, SmRate).found = CheckFigures::Sms(sms(125.9, 1979.8e6)[..60].to_vec());
    slow_read(&mut run, HbmRead, 0.45);
    let judgement = judge(&part(), &run, &BaselineStore::default(), &Siblings::default(), NOW);
    assert_eq!(samples(&judgement), vec![]);
    assert_eq!(verdict(&judgement, HbmRead).ratios, vec![]);
}

#[test]
fn texts_tell_figures_and_what_is_not_known_yet() {
    let text = verdict(&judged(&healthy(), &BaselineStore::default(), NOW), SmRate).text.clone();
    assert_eq!(text, "125.90 FMA/clk/SM (FP32 FMA); at 1979.8 MHz; 98.4 % of 128; baseline: 0 of 20 runs");
    let empty = measured(SmRate, CheckFigures::Sms(Vec::new()));
    let run = CanaryRun { measured: vec![empty], ..healthy() };
    assert_eq!(samples(&judged(&run, &BaselineStore::default(), NOW)), vec![(SmRate, Skipped)]);
}

//! Properties of all runs.

use proptest::prelude::*;

use super::fixtures::{baseline, healthy, judged, measurement_mut, place};
use super::*;
use crate::report::{CheckFigures, CudaDevice, Mismatches, RunEnd, Sm};
use sampler::watch::Around;

const NOW: f64 = 1.8e9;

/// Numbers that a broken timer or driver may return.
fn odd() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-1.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
        any::<f64>(),
    ]
}

/// Replaces every measured figure by an odd number.
fn spoil(run: &mut CanaryRun, value: f64) {
    for measured in &mut run.measured {
        measured.gpu_seconds = value;
        measured.wall_seconds = value;
        match &mut measured.found {
            CheckFigures::Sms(sms) => {
                for sm in sms {
                    (sm.work_per_cycle, sm.clock_hertz) = (value, value);
                }
            }
            CheckFigures::Read { seconds, sm_clock_hertz, .. } => {
                seconds.iter_mut().for_each(|second| *second = value);
                *sm_clock_hertz = value;
            }
            CheckFigures::Copied { to_gpu, to_host, latency, .. } => {
                to_gpu.iter_mut().chain(to_host).for_each(|second| *second = value);
                *latency = value;
            }
            CheckFigures::Launched(times) => times.iter_mut().for_each(|time| *time = value),
            CheckFigures::Overlapped(o) => {
                (o.stages, o.kernels) = ([value; 3], [value; 2]);
                (o.serial, o.rotating, o.separate) = (value, value, value);
            }
            CheckFigures::Transformed(t) => {
                (t.copy_in, t.kernel, t.copy_out, t.cpu) = (value, value, value, value);
                if !value.is_finite() || value <= 0.0 {
                    t.max_relative_error = value;
                }
            }
            CheckFigures::Peer { seconds, .. } => seconds.iter_mut().for_each(|second| *second = value),
            CheckFigures::Covered(_) | CheckFigures::Walked { .. } => {}
        }
    }
}

/// Returns true if the verdict claims that the hardware is broken or wrong.
fn is_fault(verdict: CanaryVerdict) -> bool {
    use CanaryVerdict::*;
    matches!(verdict, WrongResult | WrongResultSuspected | DriverFault | Hung)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn odd_figures_never_panic_and_are_never_a_fault(
        value in odd(), around in odd(), bound in odd(), reasons in any::<u64>(), learned in 0usize..25
    ) {
        let baseline = baseline(learned, NOW);
        let mut run = healthy();
        spoil(&mut run, value);
        for measured in &mut run.measured {
            measured.around = Around {
                reasons,
                sm_clock_hertz: around,
                memory_clock_hertz: around,
                ..Around::default()
            };
        }
        if let Some(device) = &mut run.device {
            (device.max_sm_clock_hertz, device.max_memory_clock_hertz) = (bound, bound);
        }
        let judgement = judged(&run, &baseline, NOW);
        for judged in &judgement.outcome.checks {
            prop_assert!(!is_fault(judged.verdict), "{judged:?}");
            prop_assert!(judged.ratios.iter().all(|(_, ratio)| ratio.is_finite() && *ratio > 0.0));
        }
        let mut after = baseline.clone();
        after.apply(judgement.update);
        let text = serde_json::to_string(&after).unwrap();
        prop_assert_eq!(serde_json::from_str::<BaselineStore>(&text).unwrap().sanitized(), after, "nothing odd is kept");
    }

    #[test]
    fn numbers_that_are_none_say_nothing(value in prop_oneof![Just(0.0), Just(f64::NAN), Just(f64::INFINITY)]) {
        let mut run = healthy();
        spoil(&mut run, value);
        for judged in judged(&run, &baseline(25, NOW), NOW).outcome.checks {
            prop_assert!(
                matches!(judged.verdict, CanaryVerdict::Ok | CanaryVerdict::Skipped | CanaryVerdict::Contended),
                "{judged:?}"
            );
        }
    }

    #[test]
    fn an_empty_device_is_no_fault(learned in 0usize..2) {
        let run = CanaryRun { device: Some(CudaDevice::default()), ..healthy() };
        for judged in judged(&run, &baseline(learned, NOW), NOW).outcome.checks {
            prop_assert_eq!(judged.verdict, CanaryVerdict::Ok, "{}", judged.text);
        }
        let run = CanaryRun { device: None, measured: healthy().measured, ..healthy() };
        for judged in judged(&run, &baseline(learned, NOW), NOW).outcome.checks {
            prop_assert_eq!(judged.verdict, CanaryVerdict::Skipped, "{}", judged.text);
        }
    }

    #[test]
    fn the_order_in_which_multiprocessors_and_times_are_listed_does_not_matter(seed in any::<u64>()) {
        let baseline = baseline(25, NOW);
        let mut run = healthy();
        let CheckFigures::Sms(sms) = &mut measurement_mut(&mut run, CanaryCheck::SmRate).found else { panic!() };
        sms[(seed % 132) as usize].work_per_cycle *= 0.98;
        let before = judged(&run, &baseline, NOW);
        let turn = |count: usize| (seed as usize) % count;
        for measured in &mut run.measured {
            match &mut measured.found {
                CheckFigures::Sms(sms) => sms.rotate_left(turn(132)),
                CheckFigures::Read { seconds, .. } => { let n = turn(seconds.len()); seconds.rotate_left(n) }
                CheckFigures::Launched(times) => { let n = turn(times.len()); times.rotate_left(n) }
                CheckFigures::Covered(sms) => sms.rotate_left(turn(132)),
                _ => {}
            }
        }
        prop_assert_eq!(judged(&run, &baseline, NOW), before);
    }

    #[test]
    fn a_gpu_that_is_faster_in_all_as_its_baseline_is_judged_alike(scale in 0.01f64..50.0) {
        // Bounds that do not scale would be exceeded, so they are removed.
        let unbound = |mut run: CanaryRun| {
            run.device = Some(CudaDevice { multiprocessors: 132, compute_capability: (9, 0), ..CudaDevice::default() });
            run.measured.retain(|measured| measured.check != CanaryCheck::Launch);
            run
        };
        let scaled = |run: CanaryRun| {
            let mut run = unbound(run);
            for measured in &mut run.measured {
                match &mut measured.found {
                    CheckFigures::Sms(sms) => sms.iter_mut().for_each(|sm: &mut Sm| sm.work_per_cycle *= scale),
                    CheckFigures::Read { seconds, .. } => seconds.iter_mut().for_each(|second| *second /= scale),
                    CheckFigures::Copied { to_gpu, to_host, .. } => {
                        to_gpu.iter_mut().chain(to_host).for_each(|second| *second /= scale);
                    }
                    _ => {}
                }
            }
            run
        };
        let ratios = |change: &dyn Fn(CanaryRun) -> CanaryRun| {
            let mut baseline = BaselineStore::default();
            for nth in 0..25 {
                baseline.apply(judged(&change(healthy()), &baseline, NOW - 60.0 * f64::from(25 - nth)).update);
            }
            let mut slow = change(healthy());
            let CheckFigures::Read { seconds, .. } = &mut measurement_mut(&mut slow, CanaryCheck::HbmRead).found else { panic!() };
            seconds.iter_mut().for_each(|second| *second /= 0.9);
            let checks = judged(&slow, &baseline, NOW).outcome.checks;
            let checks = checks.into_iter().map(|judged| (judged.check, judged.sample, judged.ratios));
            checks.collect::<Vec<_>>()
        };
        for (plain, scaled) in ratios(&unbound).iter().zip(&ratios(&scaled)) {
            prop_assert_eq!((plain.0, plain.1), (scaled.0, scaled.1));
            prop_assert_eq!(plain.2.len(), scaled.2.len());
            for ((_, a), (_, b)) in plain.2.iter().zip(&scaled.2) {
                prop_assert!((a / b - 1.0).abs() < 1e-5, "{plain:?} {scaled:?}");
            }
        }
    }

    #[test]
    fn any_count_of_wrong_results_is_reported_and_adds_up(
        compared in any::<u64>(), wrong in 1u64.., zeroed in any::<u64>(), reruns in 0u32..9, again in 0u32..9
    ) {
        let mut run = healthy();
        measurement_mut(&mut run, CanaryCheck::SmSdc).mismatches =
            Mismatches { compared, wrong, zeroed, first: Vec::new(), reruns, wrong_reruns: again };
        let judgement = judge(&place(), &run, &BaselineStore::default(), &Siblings::default(), NOW);
        let found = judgement.outcome.checks.iter().find(|judged| judged.check == CanaryCheck::SmSdc).unwrap();
        prop_assert_eq!(found.zeroed.checked_add(found.flipped), Some(wrong));
        let expected = if again > 0 { CanaryVerdict::WrongResult } else { CanaryVerdict::WrongResultSuspected };
        prop_assert_eq!(found.verdict, expected);
    }

    #[test]
    fn a_healthy_run_is_well_at_any_age_of_the_baseline(learned in 0usize..60) {
        let run = CanaryRun { end: RunEnd::Finished, ..healthy() };
        for judged in judged(&run, &baseline(learned, NOW), NOW).outcome.checks {
            prop_assert_eq!(judged.verdict, CanaryVerdict::Ok, "{}", judged.text);
            prop_assert_eq!(judged.sample, CanaryVerdict::Ok);
        }
    }
}

//! How often a healthy GPU is judged sick by chance, if samples are normally distributed and independent. That they
//! are not, as when something really holds a clock for hours, is what verdicts are for.
//!
//! Measurement on H200s (2026-11-22, docs/evidence/2026-11-22-h200): work per cycle 0.0026 % standard deviation over
//! 100 processes and 0.02 % from the lowest to the highest multiprocessor of a run, which is taken for four
//! deviations; the clock 0.001 % over 100 processes, and taken to spread twenty times as much, for hosts whose
//! clocks move. Memory 0.15 %, the fastest copies 0.6 %: both are taken to spread by 1 %.

use super::fixtures::{baseline, healthy, judged, measurement_mut, verdict};
use crate::baseline::Quantity;
use crate::report::CheckFigures;
use model::catalog::{CanaryCheck, CanaryVerdict};

/// Multiprocessors of an H200.
const SMS: f64 = 132.0;
/// Runs of a GPU in a year, one each half hour.
const RUNS: f64 = 2.0 * 24.0 * 365.0;

/// Decimal logarithm of the chance that a normal sample is more than `z` deviations below the mean: Mills'
/// upper bound.
fn log10_tail(z: f64) -> f64 {
    (-z * z / 2.0 - (z * (2.0 * std::f64::consts::PI).sqrt()).ln()) / std::f64::consts::LN_10
}

/// Decimal logarithm of the chance that at least three of four samples are low: at most 4 p^3.
fn log10_three_of_four(log10_p: f64) -> f64 {
    4f64.log10() + 3.0 * log10_p
}

#[test]
fn chance_alarms_at_these_thresholds() {
    let deviations = |quantity: Quantity, spread: f64| quantity.tolerance(true) / spread;
    // One multiprocessor 0.5 % below the median of its run; their range is taken for four deviations.
    let one = log10_tail(0.005 / (0.0002 / 4.0));
    assert!((one + 2_173.9).abs() < 1.0, "{one}");
    assert!(SMS.log10() + one < -2_000.0, "of all of them, in one run");
    // Even if they differed ten times as much: 1e-21 in a run for one of them.
    let wider = SMS.log10() + log10_tail(0.005 / (0.002 / 4.0));
    assert!((-21.5..-20.5).contains(&wider), "{wider}");
    // All multiprocessors 0.5 % below their past.
    assert!(log10_tail(deviations(Quantity::SM_RATE_WORK, 2.6e-5)) < -7_000.0);
    // The clock 0.3 % below its past: fifteen deviations, 4e-51 a run, and 3e-151 for three of four.
    let clock = log10_tail(deviations(Quantity::SM_RATE_CLOCK, 2e-4));
    assert!((clock + 50.4).abs() < 0.1, "{clock}");
    assert!(log10_three_of_four(clock) < -150.0);
    // Memory, cache and copies 5 % below: at a spread of 1 % the six sigmas rule, 1e-9 a run, and 4e-27 for
    // three of four: less than 1e-22 in a year of a GPU.
    let rates = log10_tail(6.0);
    assert!((rates + 9.0).abs() < 0.1, "{rates}");
    assert!(log10_three_of_four(rates) + RUNS.log10() < -22.0);
    // What a young baseline costs: if 20 samples make sigma seem half of what it is, six become three, 1.5e-3 a
    // run, and three of four 1.3e-8: a chance alarm in 4,000 years of a GPU.
    let young = log10_three_of_four(log10_tail(3.0)) + RUNS.log10();
    assert!((-3.7..-3.5).contains(&young), "{young}");
}

#[test]
fn a_percent_of_one_multiprocessor_and_half_a_percent_of_the_clock_are_seen_every_time() {
    // What is lost beyond the threshold, in deviations: half a percent over 0.005 %, 0.2 % over 0.02 %. The
    // chance to miss one sample is the tail beyond that.
    assert!(log10_tail((0.010 - 0.005) / (0.0002 / 4.0)) < -2_000.0);
    assert!(log10_tail((0.005 - 0.003) / 2e-4) < -23.0);
    let baseline = baseline(200, 1.8e9);
    for smid in 0..132 {
        let mut run = healthy();
        let CheckFigures::Sms(sms) = &mut measurement_mut(&mut run, CanaryCheck::SmRate).found else {
            panic!()
        };
        sms[smid].work_per_cycle *= 0.99;
        let judgement = judged(&run, &baseline, 1.8e9);
        let found = verdict(&judgement, CanaryCheck::SmRate);
        assert_eq!(found.sample, CanaryVerdict::SlowSm);
        assert_eq!(found.bad_sms.len(), 1);
        assert_eq!(found.bad_sms[0].0 as usize, smid);
    }
    let mut run = healthy();
    let CheckFigures::Sms(sms) = &mut measurement_mut(&mut run, CanaryCheck::SmRate).found else { panic!() };
    sms.iter_mut().for_each(|sm| sm.clock_hertz *= 0.995);
    let judgement = judged(&run, &baseline, 1.8e9);
    assert_eq!(verdict(&judgement, CanaryCheck::SmRate).sample, CanaryVerdict::UnexplainedClockCap);
}

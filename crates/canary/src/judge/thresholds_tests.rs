//! Probability of a false alarm on a healthy GPU, if samples are normally distributed and independent. If they are not,
//! for example because something lowers a clock for hours, a verdict is justified.
//!
//! The figures are from H200s (2026-11-22, docs/evidence/2026-11-22-h200). Work per cycle has a standard deviation of
//! 0.0026 % over 100 processes, and a range of 0.02 % over the multiprocessors of a run, which counts as four
//! deviations. The clock has 0.001 % over 100 processes. The tests assume a spread twenty times as large, for hosts
//! whose clocks vary. Memory has 0.15 % and the fastest copies have 0.6 %; the tests assume 1 % for both.

use super::fixtures::{baseline, healthy, judged, measurement_mut, verdict};
use crate::baseline::Quantity;
use crate::report::CheckFigures;
use model::catalog::{CanaryCheck, CanaryVerdict};

/// Number of multiprocessors of an H200.
const SMS: f64 = 132.0;
/// Number of runs of a GPU in a year, at one run every half hour.
const RUNS: f64 = 2.0 * 24.0 * 365.0;

/// Returns the decimal logarithm of the probability that a normal sample is more than `z` deviations below the mean
/// (Mills' upper bound).
fn log10_tail(z: f64) -> f64 {
    (-z * z / 2.0 - (z * (2.0 * std::f64::consts::PI).sqrt()).ln()) / std::f64::consts::LN_10
}

/// Returns the decimal logarithm of the probability that at least three of four samples are low, which is at most 4
/// p^3.
fn log10_three_of_four(log10_p: f64) -> f64 {
    4f64.log10() + 3.0 * log10_p
}

#[test]
fn chance_alarms_at_these_thresholds() {
    let deviations = |quantity: Quantity, spread: f64| quantity.tolerance(true) / spread;
    // One multiprocessor is 0.5 % below the median of its run. The range counts as four deviations.
    let one = log10_tail(0.005 / (0.0002 / 4.0));
    assert!((one + 2_173.9).abs() < 1.0, "{one}");
    assert!(SMS.log10() + one < -2_000.0, "of all of them, in one run");
    // With ten times the spread, the probability for any multiprocessor is 1e-21 per run.
    let wider = SMS.log10() + log10_tail(0.005 / (0.002 / 4.0));
    assert!((-21.5..-20.5).contains(&wider), "{wider}");
    // All multiprocessors are 0.5 % below their history.
    assert!(log10_tail(deviations(Quantity::SM_RATE_WORK, 2.6e-5)) < -7_000.0);
    // The clock is 0.3 % below its history. That is fifteen deviations, 4e-51 per run, and 3e-151 for three of four.
    let clock = log10_tail(deviations(Quantity::SM_RATE_CLOCK, 2e-4));
    assert!((clock + 50.4).abs() < 0.1, "{clock}");
    assert!(log10_three_of_four(clock) < -150.0);
    // Memory, cache and copies are 5 % below. At a spread of 1 % the six sigmas decide, with 1e-9 per run and 4e-27 for
    // three of four, which is less than 1e-22 per GPU year.
    let rates = log10_tail(6.0);
    assert!((rates + 9.0).abs() < 0.1, "{rates}");
    assert!(log10_three_of_four(rates) + RUNS.log10() < -22.0);
    // Cost of a young baseline. If 20 samples underestimate sigma by half, six sigmas become three, with 1.5e-3 per run
    // and 1.3e-8 for three of four, which is one false alarm in 4,000 GPU years.
    let young = log10_three_of_four(log10_tail(3.0)) + RUNS.log10();
    assert!((-3.7..-3.5).contains(&young), "{young}");
}

#[test]
fn a_percent_of_one_multiprocessor_and_half_a_percent_of_the_clock_are_seen_every_time() {
    // Losses beyond the threshold in deviations: half a percent over 0.005 %, and 0.2 % over 0.02 %. The probability to
    // miss one sample is the tail beyond that.
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

//! Verdict over several runs. A low rate must persist; a wrong result or a narrowed link counts at once.

use crate::baseline::{self, RecentSample};
use model::catalog::CanaryVerdict;

/// Minimum number of low samples among the last four. If one sample is low by chance with probability p, this happens
/// by chance with a probability below 4 p^3. That is 4e-27 per run at six sigmas, and 3e-151 at the clock's fifteen.
/// With a baseline of only twenty samples whose sigma was estimated at half its true value, it is 1.3e-8, which is one
/// false alarm in 4,000 GPU years at one run every half hour.
const LOW: usize = 3;
/// Minimum number of seconds from the first low sample to the last. Three runs within one bad minute prove nothing.
const LASTING: f64 = 600.0;

/// Returns true if the verdict is about a rate, which can be low for a while without any defect.
pub fn is_rate(verdict: CanaryVerdict) -> bool {
    use CanaryVerdict::*;
    matches!(verdict, Throttled | UnexplainedClockCap | SlowSm | DegradedMemory | Slow)
}

/// Returns true if the sample is valid evidence about the GPU.
pub fn is_valid(sample: CanaryVerdict) -> bool {
    use CanaryVerdict::*;
    matches!(sample, Ok | NarrowedLink | WrongResultSuspected | WrongResult) || is_rate(sample)
}

/// Returns the verdict on a check from this run's `sample` at `now` and the earlier valid samples, oldest first.
pub fn verdict(recent: &[RecentSample], sample: CanaryVerdict, now: f64) -> CanaryVerdict {
    let mut window: Vec<RecentSample> = recent.to_vec();
    if is_valid(sample) {
        baseline::add(&mut window, RecentSample { at: now, sample });
    }
    let low: Vec<&RecentSample> = window.iter().filter(|recent| is_rate(recent.sample)).collect();
    let lasting = match (low.first(), low.last()) {
        (Some(first), Some(last)) if low.len() >= LOW && last.at - first.at >= LASTING => Some(last.sample),
        _ => None,
    };
    match (is_rate(sample) || sample == CanaryVerdict::Ok, lasting) {
        (true, lasting) => lasting.unwrap_or(CanaryVerdict::Ok),
        // A discarded sample clears nothing.
        (false, Some(lasting)) if !is_valid(sample) => lasting,
        (false, _) => sample,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;
    use crate::baseline::{BaselineStore, BaselineUpdate};
    use CanaryVerdict::*;
    use model::catalog::CanaryCheck;

    fn recent(samples: &[(f64, CanaryVerdict)]) -> Vec<RecentSample> {
        samples.iter().map(|(at, sample)| RecentSample { at: *at, sample: *sample }).collect()
    }

    #[test]
    fn three_of_four_low_and_ten_minutes() {
        let two = recent(&[(0.0, Slow), (300.0, Slow)]);
        assert_eq!(verdict(&two, Slow, 599.0), Ok);
        assert_eq!(verdict(&two, Slow, 600.0), Slow);
        assert_eq!(verdict(&two, Ok, 600.0), Ok);
        let mixed = recent(&[(0.0, SlowSm), (300.0, Ok), (600.0, Slow)]);
        assert_eq!(verdict(&mixed, SlowSm, 900.0), SlowSm, "the newest gives the name");
        assert_eq!(verdict(&mixed, Ok, 900.0), Ok);
        let lasting = recent(&[(0.0, Slow), (300.0, Slow), (600.0, Slow)]);
        assert_eq!(verdict(&lasting, Ok, 900.0), Slow, "one good sample is not yet the end of it");
        let ending = recent(&[(0.0, Slow), (300.0, Slow), (600.0, Slow), (900.0, Ok)]);
        assert_eq!(verdict(&ending, Ok, 1200.0), Ok);
        assert_eq!(verdict(&ending, Contended, 1200.0), Slow, "what was thrown away clears nothing");
        assert_eq!(verdict(&[], Contended, 1200.0), Contended);
    }

    #[test]
    fn a_lasting_low_rate_stays_whatever_the_interval() {
        for interval in [10, 60, 100, 250, 400, 1800] {
            let (place, device) = (fixtures::place(), fixtures::device());
            let (key, configuration) = (baseline::key(&place), baseline::configuration(&device));
            let mut store = BaselineStore::default();
            let mut run = |at: f64, sample| {
                let recent = store.recent(&key, &configuration, CanaryCheck::SmRate, at);
                store.apply(BaselineUpdate {
                    key: key.clone(),
                    at,
                    device: Some((configuration.clone(), baseline::model(&place, &device))),
                    clean: Vec::new(),
                    newest: Vec::new(),
                    samples: vec![(CanaryCheck::SmRate, sample)],
                });
                verdict(&recent, sample, at)
            };
            for nth in 0..200 {
                let at = f64::from(nth * interval);
                let known = if nth >= 2 && at >= 600.0 { Slow } else { Ok };
                assert_eq!(run(at, Slow), known, "run {nth}, each {interval} s");
            }
            // Within ten minutes, one good sample may clear the verdict.
            let after = run(f64::from(200 * interval), Ok);
            assert!(after == Slow || interval < 300, "each {interval} s");
            assert_eq!(run(f64::from(201 * interval), Ok), Ok, "each {interval} s");
        }
    }

    #[test]
    fn what_is_certain_is_confirmed_at_once() {
        for sample in [NarrowedLink, WrongResult, WrongResultSuspected] {
            assert_eq!(verdict(&[], sample, 0.0), sample);
            let lasting = recent(&[(0.0, Slow), (300.0, Slow), (600.0, Slow)]);
            assert_eq!(verdict(&lasting, sample, 900.0), sample);
        }
    }
}

//! The verdict after several runs: a low rate must last, a wrong result or a narrowed link need not.

use crate::baseline::{self, RecentSample};
use model::catalog::CanaryVerdict;

/// How many of the last four must be low. By chance that is rarer than 4 p^3, if one is low with chance p: at six sigmas
/// 4e-27 a run, at the clock's fifteen 3e-151; with a baseline of only twenty samples whose sigma came out at half
/// of what it is 1.3e-8, one chance alarm in 4,000 years of a GPU at a run each half hour.
const LOW: usize = 3;
/// Seconds from the first low one to the last: three runs of one bad minute say nothing.
const LASTING: f64 = 600.0;

/// Whether the verdict is about a rate, which other things than a defect can lower for a while.
pub fn is_rate(verdict: CanaryVerdict) -> bool {
    use CanaryVerdict::*;
    matches!(verdict, Throttled | UnexplainedClockCap | SlowSm | DegradedMemory | Slow)
}

/// Whether the sample was valid: it says something of the GPU.
pub fn is_valid(sample: CanaryVerdict) -> bool {
    use CanaryVerdict::*;
    matches!(sample, Ok | NarrowedLink | WrongResultSuspected | WrongResult) || is_rate(sample)
}

/// The verdict on a check: of this run's `sample` at `now`, and the valid samples before it, oldest first.
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
        // A sample that was thrown away clears nothing.
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
            // Within ten minutes one good sample may end it.
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

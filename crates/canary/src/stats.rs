//! Medians and spreads that tolerate outliers, rates of multiprocessors, and lengths of launches.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::abi::SmStamp;
use crate::reference;

/// Ratio of the standard deviation to the median absolute deviation of a normal distribution.
const SIGMA_OF_MAD: f64 = 1.4826;

/// Minimum sigma as a share of the median, from the measured repeatability of work per cycle (0.001 %). Identical
/// samples would otherwise have a sigma of zero.
const SIGMA_FLOOR: f64 = 1e-5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub median: f64,
    /// The median of absolute deviations from the median, times 1.4826, and at least a hundred-thousandth of the
    /// median.
    pub sigma: f64,
}

/// Returns the median of the values that are finite and above 0, or `None` if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    middle(values.into_iter().filter(|value| value.is_finite() && *value > 0.0).collect())
}

/// Returns the median and spread of the values that are finite and above 0, or `None` if there are none.
pub(crate) fn spread(values: &[f64]) -> Option<Spread> {
    let valid: Vec<f64> = values.iter().copied().filter(|value| value.is_finite() && *value > 0.0).collect();
    let median = middle(valid.clone())?;
    let away = middle(valid.iter().map(|value| (value - median).abs()).collect())?;
    Some(Spread { median, sigma: (SIGMA_OF_MAD * away).max(SIGMA_FLOOR * median) })
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let at = values.len() / 2;
    let upper = *values.get(at)?;
    match values.len() % 2 {
        1 => Some(upper),
        // The values are halved first, because the sum of two large values could overflow.
        _ => Some(values.get(at.checked_sub(1)?)? / 2.0 + upper / 2.0),
    }
}

/// Returns the median of finite numbers of either sign, or 0 if there are none.
pub fn median_or_zero(values: &[f64]) -> f64 {
    middle(values.iter().copied().filter(|value| value.is_finite()).collect()).unwrap_or(0.0)
}

/// One multiprocessor in a rate check.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sm {
    pub smid: u32,
    /// FMA operations per cycle.
    pub work_per_cycle: f64,
    /// Cycles divided by time, in Hz.
    pub clock_hertz: f64,
}

/// Returns the cycles of a block, or `None` if its cycle counter did not advance.
fn cycles(stamp: &SmStamp) -> Option<f64> {
    stamp.end_cycles.checked_sub(stamp.begin_cycles).filter(|cycles| *cycles > 0).map(|cycles| cycles as f64)
}

/// Returns the seconds of a block, or `None` if its timer did not advance.
fn seconds(stamp: &SmStamp) -> Option<f64> {
    stamp.end_ns.checked_sub(stamp.begin_ns).filter(|ns| *ns > 0).map(|ns| ns as f64 / 1e9)
}

/// Returns the seconds from the start of the first block to the end of the last.
pub fn span(stamps: &[SmStamp]) -> f64 {
    let begin = stamps.iter().map(|stamp| stamp.begin_ns).min().unwrap_or(0);
    let end = stamps.iter().map(|stamp| stamp.end_ns).max().unwrap_or(0);
    end.saturating_sub(begin) as f64 / 1e9
}

/// Returns the time at which the last block ended, in nanoseconds of the GPU's clock.
pub fn last_end(stamps: &[SmStamp]) -> Option<u64> {
    stamps.iter().map(|stamp| stamp.end_ns).max()
}

/// Returns the seconds from the end of an earlier launch to the end of the last block.
pub fn since(earlier: Option<u64>, stamps: &[SmStamp]) -> Option<f64> {
    Some(last_end(stamps)?.saturating_sub(earlier?) as f64 / 1e9)
}

/// Returns the median SM clock while these blocks ran, in Hz.
pub fn clock(stamps: &[SmStamp]) -> f64 {
    let clocks: Vec<f64> = stamps.iter().filter_map(|stamp| Some(cycles(stamp)? / seconds(stamp)?)).collect();
    median_or_zero(&clocks)
}

/// Returns true if a clock is within 2 % of the highest clock, or if the highest clock is unknown. Both are in Hz.
pub fn has_risen(hertz: f64, highest: f64) -> bool {
    const ABOUT: f64 = 0.98;
    highest <= 0.0 || hertz >= ABOUT * highest
}

/// Rates (work per cycle) and clocks (Hz) of all launches of a rate kernel, by multiprocessor.
#[derive(Debug, Default)]
pub(crate) struct SmRates(BTreeMap<u32, (Vec<f64>, Vec<f64>)>);

impl SmRates {
    /// Adds a launch in which every block did `work`.
    pub fn add(&mut self, work: f64, stamps: &[SmStamp]) {
        for stamp in stamps {
            let (rates, clocks) = self.0.entry(stamp.smid).or_default();
            if let (Some(cycles), Some(seconds)) = (cycles(stamp), seconds(stamp)) {
                rates.push(work / cycles);
                clocks.push(cycles / seconds);
            }
        }
    }

    pub fn covered(&self) -> usize {
        self.0.len()
    }

    /// Returns the median rate and clock of every multiprocessor.
    pub fn sms(&self) -> Vec<Sm> {
        let sm = |(smid, (rates, clocks)): (&u32, &(Vec<f64>, Vec<f64>))| Sm {
            smid: *smid,
            work_per_cycle: median_or_zero(rates),
            clock_hertz: median_or_zero(clocks),
        };
        self.0.iter().map(sm).collect()
    }
}

/// Returns the number of turns of a loop that take `seconds`, if one turn does `work`, at `rate` per cycle and a clock
/// of `hertz`. The result is between one and `most`.
pub fn turns(seconds: f64, hertz: f64, rate: f64, work: f64, most: u32) -> u32 {
    let turns = seconds * hertz * rate / work;
    match turns.is_finite() {
        // A cast saturates.
        true => (turns as u32).clamp(1, most.max(1)),
        false => 1,
    }
}

/// Returns the number of turns that take `seconds`, if `made` turns took `took`. The result is at most `most` and at
/// least an eighth of it, so that a rising clock does not make the next launch too short to measure.
pub fn scaled(most: u32, made: u32, took: f64, seconds: f64) -> u32 {
    let turns = f64::from(made) * seconds / took;
    match turns.is_finite() && took > 0.0 {
        true => (turns as u32).clamp((most / 8).max(1), most.max(1)),
        false => most.max(1),
    }
}

/// Returns the number of passes over `bytes` for a launch of about `seconds` at `bytes_per_second` (0 if unknown).
pub fn passes(bytes: u64, bytes_per_second: f64, seconds: f64, most: u32) -> u32 {
    turns(seconds, bytes_per_second, 1.0, bytes.max(1) as f64, most)
}

/// Returns the dynamic shared memory that a block needs in addition to its static part, so that no second block fits on
/// the multiprocessor. The arguments are in bytes: the memory of a multiprocessor, the maximum of a block, and the
/// static part.
pub fn whole_multiprocessor(of_multiprocessor: u32, of_block: u32, fixed: u32) -> u32 {
    (of_multiprocessor / 2 + 1024).saturating_sub(fixed).min(of_block.saturating_sub(fixed))
}

/// Derives a number for one use from the run's seed.
pub fn seed(seed: u64, of: u64) -> u64 {
    reference::splitmix64(seed.wrapping_add(of.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamp(smid: u32, cycles: u64, ns: u64) -> SmStamp {
        SmStamp {
            smid,
            threads: 1024,
            begin_cycles: 50,
            end_cycles: 50 + cycles,
            begin_ns: 9,
            end_ns: 9 + ns,
        }
    }

    #[test]
    fn each_multiprocessor_has_the_median_of_its_launches() {
        let mut rates = SmRates::default();
        for cycles in [1000, 2000, 1000] {
            rates.add(128_000.0, &[stamp(0, 1000, 500), stamp(7, cycles, 1000)]);
        }
        let sms = rates.sms();
        assert_eq!(rates.covered(), 2);
        assert_eq!((sms[0].smid, sms[0].work_per_cycle, sms[0].clock_hertz), (0, 128.0, 2e9));
        assert_eq!((sms[1].smid, sms[1].work_per_cycle, sms[1].clock_hertz), (7, 128.0, 1e9));
    }

    #[test]
    fn a_stopped_clock_gives_no_rate() {
        let mut rates = SmRates::default();
        rates.add(1.0, &[stamp(3, 0, 5), stamp(4, 5, 0), SmStamp { begin_cycles: 9, ..SmStamp::default() }]);
        assert!(rates.sms().iter().all(|sm| sm.work_per_cycle == 0.0 && sm.clock_hertz == 0.0));
        assert_eq!(clock(&[stamp(3, 0, 5)]), 0.0);
    }

    #[test]
    fn a_clock_has_risen_once_it_is_about_the_highest() {
        assert!(has_risen(1.9798e9, 1.98e9) && has_risen(0.4e9, 0.0));
        assert!(!has_risen(0.405e9, 1.98e9) && !has_risen(0.0, 1.98e9));
    }

    #[test]
    fn no_two_blocks_fit_on_a_multiprocessor() {
        // Shared memory of a multiprocessor and maximum of a block for H200, T4 and compute capability 8.6.
        for (all, block) in [(233_472, 232_448), (65_536, 65_536), (102_400, 101_376)] {
            for fixed in [0, 1024, 30_000] {
                let dynamic = whole_multiprocessor(all, block, fixed);
                assert!(2 * (dynamic + fixed) > all, "{all} {fixed}");
                assert!(dynamic + fixed <= block);
            }
        }
        assert_eq!(whole_multiprocessor(100, 50, 60), 0);
    }

    #[test]
    fn the_time_of_a_launch_follows_the_clock() {
        // 8 chains of 64 FMA in 1024 threads at 128 per cycle take 4096 cycles per turn.
        let most = turns(2.5e-3, 1.98e9, 128.0, 8.0 * 64.0 * 1024.0, u32::MAX);
        assert_eq!(most, 1208);
        assert_eq!(scaled(most, 300, 300.0 * 4096.0 / 1.98e9, 2.5e-3), most);
        assert_eq!(scaled(most, 300, 2.0 * 300.0 * 4096.0 / 1.98e9, 2.5e-3), most / 2);
        assert_eq!(scaled(most, 300, 10.0, 2.5e-3), most / 8);
        assert_eq!(scaled(most, 300, 0.0, 2.5e-3), most);
        assert_eq!(turns(2.5e-3, 0.0, 128.0, 1.0, 100), 1, "a clock that is not known");
        assert_eq!(passes(256 << 20, 4.8e12, 4e-3, 8), 8);
        assert_eq!(passes(256 << 20, 0.3e12, 4e-3, 8), 4);
        assert_eq!(passes(256 << 20, 0.0, 4e-3, 8), 1);
    }

    #[test]
    fn middles() {
        assert_eq!(median([]), None);
        assert_eq!(median([f64::NAN, f64::INFINITY, 0.0, -1.0]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, f64::NAN, 2.0]), Some(3.0));
        let spread = spread(&[9.0, 10.0, 11.0, 10.0, 1000.0]).unwrap();
        assert_eq!(spread.median, 10.0);
        assert!((spread.sigma - SIGMA_OF_MAD).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn order_does_not_matter_and_scale_only_scales(
            mut values in prop::collection::vec(0.001f64..1e15, 1..50), scale in 0.001f64..1000.0
        ) {
            let before = spread(&values).unwrap();
            let scaled: Vec<f64> = values.iter().rev().map(|value| value * scale).collect();
            let after = spread(&scaled).unwrap();
            prop_assert!((after.median / before.median / scale - 1.0).abs() < 1e-9);
            prop_assert!((after.sigma / before.sigma / scale - 1.0).abs() < 1e-6);
            values.sort_by(f64::total_cmp);
            prop_assert!(values[0] <= before.median && before.median <= values[values.len() - 1]);
        }

        #[test]
        fn nothing_is_too_odd(values in prop::collection::vec(any::<f64>(), 0..50)) {
            if let Some(spread) = spread(&values) {
                prop_assert!(spread.median > 0.0 && spread.median.is_finite() && spread.sigma >= 0.0);
            }
        }

        #[test]
        fn the_median_has_as_many_below_as_above(values in prop::collection::vec(-1e6f64..1e6, 1..50)) {
            let middle = median_or_zero(&values);
            let below = values.iter().filter(|value| **value < middle).count();
            let above = values.iter().filter(|value| **value > middle).count();
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
        }

        #[test]
        fn no_figures_make_a_length_that_never_ends(
            a in any::<f64>(), b in any::<f64>(), c in any::<f64>(), d in any::<f64>(), most in any::<u32>(),
        ) {
            prop_assert!((1..=most.max(1)).contains(&turns(a, b, c, d, most)));
            prop_assert!((1..=most.max(1)).contains(&scaled(most, most / 2, a, b)));
            prop_assert!((1..=most.max(1)).contains(&passes(7, a, b, most)));
        }

        #[test]
        fn stamps_of_any_kind_give_finite_rates(words in prop::collection::vec(any::<[u64; 4]>(), 0..8)) {
            let stamps: Vec<SmStamp> = words
                .iter()
                .map(|[a, b, c, d]| SmStamp {
                    smid: *a as u32, threads: 1, begin_cycles: *a, end_cycles: *b, begin_ns: *c, end_ns: *d,
                })
                .collect();
            let mut rates = SmRates::default();
            rates.add(1e9, &stamps);
            prop_assert!(rates.sms().iter().all(|sm| sm.work_per_cycle.is_finite() && sm.clock_hertz.is_finite()));
            prop_assert!(span(&stamps).is_finite() && clock(&stamps).is_finite());
        }
    }
}

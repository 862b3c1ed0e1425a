//! `launch`, `overlap` and the driver's steps: times that the host has a part in.

use super::clocks::Clock;
use super::view::{Sample, View, figure};
use super::words::{percent, seconds};
use crate::baseline::{Quantity, statistics};
use crate::report::Overlap;
use model::canary::Rate;
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryStep, CanaryVerdict, RateAgainst};

/// Share of the possible gain by overlapping below which something keeps copies and kernels apart.
const OVERLAP_FLOOR: f64 = 0.60;

/// Judges empty launches.
pub fn launch(view: &View<'_>, times: &[f64], clock: &Clock) -> Sample {
    let Some(median) = statistics::median(times.iter().copied()) else {
        return Sample::discarded(CanaryVerdict::Skipped, "no launch was timed".into());
    };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::Seconds(median));
    sample.say(format!("{} from launch to end seen", seconds(median)));
    if let Some(low) = view.compare(&mut sample, Quantity::Launch, median) {
        if !clock.is_fine() {
            let why = "not judged: the clock of the multiprocessors was low".to_owned();
            return Sample::discarded(CanaryVerdict::Skipped, why);
        }
        let todo = "look for load on the host's processors first, then for Xid 119 and 120 in `dmesg`";
        sample.find(CanaryVerdict::Slow, format!("launches take long (speed {low}); {todo}"));
    }
    sample
}

/// Judges the driver's steps before the checks. `None` if not all of them ended.
pub fn steps(view: &View<'_>, steps: &[(CanaryStep, f64)]) -> Option<Sample> {
    let mut sample = Sample::new();
    let mut all = 0.0;
    for (step, quantity) in Quantity::STEPS {
        let (_, took) = steps.iter().find(|(ended, _)| *ended == step)?;
        all += took;
        if !(took.is_finite() && *took > 0.0) {
            continue;
        }
        let standing = view.stand(quantity, *took);
        sample.figures.push((quantity, *took));
        if standing.low.is_some() {
            let usual = figure(quantity, took * standing.baseline.unwrap_or(1.0));
            let name = step.known();
            let text = format!(
                "the step {name} took {}, usually {usual}: the driver or the GPU's system processor is slow; \
                 look for Xid 119 and 120 in `dmesg`",
                seconds(*took)
            );
            sample.find(CanaryVerdict::Slow, text);
        }
    }
    let all = all.is_finite().then_some(all)?;
    sample.rate = Some(Rate::Seconds(all));
    sample.text.insert(0, format!("{} until the first kernel had run", seconds(all)));
    Some(sample)
}

/// What overlapping can gain at most: batches that take `stages` one after another (copy in, kernel, copy out),
/// against the same with every stage of a batch beside other stages of its neighbours. 4, 8 and 4 ms over many
/// batches give 16 / 8 = 2.0.
pub fn overlap_bound(batches: u32, stages: [f64; 3]) -> Option<f64> {
    if batches == 0 || !stages.iter().all(|stage| stage.is_finite() && *stage > 0.0) {
        return None;
    }
    let (sum, longest) = (stages.iter().sum::<f64>(), stages.iter().copied().fold(0.0, f64::max));
    let batches = f64::from(batches);
    Some(batches * sum / (sum + (batches - 1.0) * longest))
}

/// Judges copies and kernels at once.
pub fn overlap(found: &Overlap) -> Sample {
    let valid = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
    let gain = |way: f64| valid(found.serial / valid(way)?);
    let bound = overlap_bound(found.batches, found.stages);
    let (rotating, separate) = (gain(found.rotating), gain(found.separate));
    // The bound is that of kernels one after another: streams by turns may run two small ones at once.
    let (Some(bound), Some(separate_gain)) = (bound, separate) else {
        return Sample::discarded(CanaryVerdict::Skipped, "not all times were measured".into());
    };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::Seconds(found.separate));
    let ways = [("streams by turns", rotating), ("a stream a stage", separate)];
    for (way, gain) in ways {
        if let Some(gain) = gain {
            sample.say(format!("{way} {gain:.2}x as fast as one stream"));
        }
    }
    let [copy_in, kernel, copy_out] = found.stages.map(seconds);
    sample.say(format!(
        "at most {bound:.2}x is possible with kernels one after another in {} of {copy_in}, {kernel} and {copy_out}",
        batches(found.batches)
    ));
    let [alone, together] = found.kernels;
    if let Some(gain) = valid(alone).and(valid(together)).map(|together| alone / together) {
        sample.say(format!("two small kernels at once {gain:.2}x"));
    }
    let share = separate_gain / bound;
    sample.compare(RateAgainst::Roofline, share);
    if share < OVERLAP_FLOOR {
        sample.find(
            CanaryVerdict::Slow,
            format!(
                "copies and kernels hardly overlap ({} of what is possible); look for a profiler or debugger, \
                 CUDA_LAUNCH_BLOCKING, and buffers that are not pinned",
                percent(share)
            ),
        );
    }
    sample
}

fn batches(count: u32) -> String {
    if count == 1 { "1 batch".to_owned() } else { format!("{count} batches") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-9)
    }

    #[test]
    fn the_bound_is_what_the_stages_allow() {
        assert!(near(overlap_bound(1, [4.0, 8.0, 4.0]), 1.0));
        assert!(near(overlap_bound(8, [4.0, 8.0, 4.0]), 128.0 / 72.0));
        let many = overlap_bound(1_000_000, [4.0, 8.0, 4.0]).unwrap();
        assert!((many - 2.0).abs() < 1e-5, "{many}");
        assert_eq!(overlap_bound(0, [1.0; 3]), None);
        assert_eq!(overlap_bound(3, [1.0, f64::NAN, 1.0]), None);
    }

    #[test]
    fn only_far_below_the_bound_is_slow() {
        let stages = [0.004, 0.008, 0.004];
        let found = Overlap { batches: 8, stages, serial: 0.128, rotating: 0.075, ..Overlap::default() };
        let good = overlap(&Overlap { separate: 0.074, ..found.clone() });
        assert_eq!(good.verdict, CanaryVerdict::Ok);
        assert!(
            good.words().contains("at most 1.78x") && good.words().contains("8 batches"),
            "{}",
            good.words()
        );
        let none = overlap(&Overlap { rotating: 0.128, separate: 0.127, ..found.clone() });
        assert_eq!(none.verdict, CanaryVerdict::Slow);
        assert_eq!(overlap(&Overlap::default()).verdict, CanaryVerdict::Skipped);
    }

    proptest! {
        #[test]
        fn the_bound_is_between_one_and_three(
            batches in 1u32..1000, a in 1e-6f64..1.0, b in 1e-6f64..1.0, c in 1e-6f64..1.0
        ) {
            let bound = overlap_bound(batches, [a, b, c]).unwrap();
            prop_assert!((0.999_999..=3.000_001).contains(&bound), "{bound}");
        }
    }
}

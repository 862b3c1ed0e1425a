//! What holds for any samples.

mod random;

use heartbeat::{Beat, Heartbeat, UnitActivity};
use proptest::prelude::*;
use random::Random;

/// Work with steps of `period` seconds: products, something that draws less, and a pause. The power takes 20 ms to change.
fn step(at: f64, period: f64) -> f64 {
    let parts = [(0.0, 650.0), (0.55, 520.0), (0.8, 300.0), (0.92, 430.0)];
    let passed = at.rem_euclid(period);
    let mut power = 430.0;
    for (from, watts) in parts {
        power += (watts - power) * ((passed - from * period) / 0.02).clamp(0.0, 1.0);
    }
    power
}

/// The beats of what `watts` gives every `apart` seconds, once a second.
fn beats(seconds: u32, apart: f64, mut watts: impl FnMut(f64) -> f64) -> (Heartbeat, Vec<Option<Beat>>) {
    let mut heart = Heartbeat::default();
    let mut found = Vec::new();
    let mut sample = 1_u32;
    for second in 1..=seconds {
        while f64::from(sample) * apart <= f64::from(second) {
            let at = f64::from(sample) * apart;
            heart.sample(at, watts(at));
            sample += 1;
        }
        let now = f64::from(second);
        heart.witness(now - 10.0, now, UnitActivity { tensor: 0.6, ..UnitActivity::default() });
        found.push(heart.beat(now));
    }
    (heart, found)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_step_is_found(log in 0.2_f64.ln()..12_f64.ln(), noise in 5.0_f64..40.0, seed in 1_u64.., apart in 0.01_f64..0.025) {
        let period = log.exp();
        let mut random = Random(seed);
        let seconds = 30 + (7.0 * period) as u32;
        let (_, beats) = beats(seconds, apart, |at: f64| (step(at, period) + noise * random.normal()).max(0.0));
        let last = beats.last().copied().flatten();
        prop_assert!(last.is_some(), "nothing for {period}");
        for beat in beats.into_iter().flatten() {
            prop_assert!((beat.seconds / period - 1.0).abs() < 0.01, "{} for {period}", beat.seconds);
        }
    }

    #[test]
    fn short_steps_are_found(period in 0.1_f64..0.2, noise in 15.0_f64..40.0, seed in 1_u64..) {
        let mut random = Random(seed);
        let (_, beats) = beats(30, 0.02, |at: f64| (step(at, period) + noise * random.normal()).max(0.0));
        let last = beats.last().copied().flatten().map(|beat| beat.seconds);
        prop_assert!(last.is_some_and(|seconds| (seconds / period - 1.0).abs() < 0.03), "{last:?} for {period}");
    }

    #[test]
    fn noise_has_no_step(seed in 1_u64.., octaves in 1_i32..10, watts in 5.0_f64..60.0) {
        let mut random = Random(seed);
        let mut state = [0.0_f64; 10];
        let (_, beats) = beats(60, 0.02, |_: f64| -> f64 {
            for (octave, state) in (0..octaves).zip(&mut state) {
                let keep = (-(2.0_f64.powi(-octave))).exp();
                *state = *state * keep + (1.0 - keep * keep).sqrt() * random.normal();
            }
            (600.0 + watts * state.iter().sum::<f64>()).max(0.0)
        });
        prop_assert!(beats.iter().all(Option::is_none), "{beats:?}");
    }

    /// More or fewer watts, or twice as many, are the same work.
    #[test]
    fn the_level_does_not_matter(more in -150.0_f64..1000.0, times in 0.7_f64..2.0, seed in 1_u64..) {
        let power = |more: f64, times: f64| {
            let mut random = Random(seed);
            beats(40, 0.02, |at| 200.0 + more + times * (step(at, 0.7) + 20.0 * random.normal())).1
        };
        let (one, two) = (power(0.0, 1.0), power(more, times));
        for (one, two) in one.into_iter().zip(two) {
            prop_assert_eq!(one.is_some(), two.is_some());
            let off = one.zip(two).map_or(0.0, |(one, two)| one.seconds / two.seconds - 1.0);
            prop_assert!(off.abs() < 0.002);
        }
    }

    /// Samples that come twice, late or not at all, and some that no GPU can draw.
    #[test]
    fn bad_samples_change_nothing(seed in 1_u64..) {
        let mut random = Random(seed);
        let mut heart = Heartbeat::default();
        let mut last = None;
        for sample in 1..2500 {
            let at = f64::from(sample) * 0.02;
            let watts = step(at, 0.8);
            match (random.uniform() * 20.0) as u32 {
                0 => {}
                1 => heart.sample(at - 0.07, 9.0),
                2 => [f64::NAN, -5.0, f64::INFINITY].map(|bad| heart.sample(at, bad)).iter().for_each(|()| ()),
                3 => [f64::NAN, f64::NEG_INFINITY].map(|bad| heart.sample(bad, watts)).iter().for_each(|()| ()),
                _ => [(); 2].map(|()| heart.sample(at, watts)).iter().for_each(|()| ()),
            }
            if sample % 50 == 0 {
                last = heart.beat(at);
            }
        }
        prop_assert!(last.is_some_and(|beat| (beat.seconds / 0.8 - 1.0).abs() < 0.01), "{last:?}");
    }

    #[test]
    fn arbitrary_input_is_borne(
        samples in prop::collection::vec((any::<f64>(), any::<f64>(), any::<u8>()), 0..200),
    ) {
        let mut heart = Heartbeat::default();
        let (mut at, mut steps) = (0.0, 0.0);
        for (one, two, what) in samples {
            match what % 8 {
                0 => heart.sample(one, two),
                1 => drop(heart.beat(one)),
                2 => heart.interrupt(),
                3 => heart.witness(one, two, UnitActivity { tensor: two, pipes: one, dram: two }),
                _ => (0..500).for_each(|_| {
                    at += 0.02;
                    heart.sample(at, step(at, 0.5));
                }),
            }
            heart.beat(at);
            prop_assert!(heart.steps() >= steps && heart.steps().is_finite());
            steps = heart.steps();
        }
    }
}

/// Thirteen steps fill 66 samples: they meet their samples at the same places each time, one step does not.
#[test]
fn a_whole_number_of_samples_is_no_step() {
    for (period, seed) in [(0.1015, 43), (0.10155, 100_046), (0.10155054174794634, 493_562)] {
        let mut random = Random(seed);
        let (_, beats) = beats(30, 0.02, |at: f64| (step(at, period) + 15.0 * random.normal()).max(0.0));
        let last = beats.last().copied().flatten().map(|beat| beat.seconds);
        assert!(last.is_some_and(|seconds| (seconds / period - 1.0).abs() < 0.03), "{last:?} for {period}");
    }
}

#[test]
fn a_gap_and_a_clock_that_goes_back_cost_time_only() {
    let mut heart = Heartbeat::default();
    let work = |heart: &mut Heartbeat, from: f64, seconds: u32| {
        let mut last = None;
        for sample in 1..=seconds * 50 {
            let at = from + f64::from(sample) * 0.02;
            heart.sample(at, step(at, 0.5));
            if sample % 50 == 0 {
                last = heart.beat(at);
            }
        }
        last.map(|beat| (beat.seconds * 1e3).round())
    };
    assert_eq!(work(&mut heart, 1000.0, 30), Some(500.0));
    assert_eq!(heart.beat(1036.0), None, "no samples for 6 s");
    assert_eq!(work(&mut heart, 1037.0, 30), Some(500.0));
    let steps = heart.steps();
    assert_eq!(work(&mut heart, 10.0, 30), Some(500.0));
    assert!(heart.steps() > steps + 10.0);
    heart.sample(1e9, 400.0);
    assert_eq!(work(&mut heart, 50.0, 30), Some(500.0));
    heart.interrupt();
    assert_eq!(heart.beat(81.0), None);
}

#[test]
fn an_idle_gpu_has_no_step() {
    // The regulator's own pattern: half a watt, again and again.
    let (_, beats) = beats(60, 0.02, |at| 76.0 + 0.5 * (at * std::f64::consts::TAU / 0.24).sin());
    assert!(beats.iter().all(Option::is_none));
}

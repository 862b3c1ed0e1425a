//! Noise without a period, and how often one is stated: `cargo run --release -p heartbeat --example noise -- SEEDS SECONDS
//! [KIND]`.

#[path = "../tests/random/mod.rs"]
mod random;

use heartbeat::{Heartbeat, UnitActivity};
use random::Random;

/// Watts of one sample after the other.
fn noise(kind: &str, random: &mut Random, state: &mut [f64; 12], at: f64) -> f64 {
    let memory = |state: &mut f64, seconds: f64, random: &mut Random| {
        let keep = (-0.02 / seconds).exp();
        *state = *state * keep + (1.0 - keep * keep).sqrt() * random.normal();
        *state
    };
    match kind {
        "white" => 700.0 + 30.0 * random.normal(),
        "pink" => {
            let octaves =
                (0..10).map(|octave| memory(&mut state[octave], 0.02 * 2_f64.powi(octave as i32), random));
            700.0 + 15.0 * octaves.sum::<f64>()
        }
        "slow" => 600.0 + 60.0 * memory(&mut state[0], 2.0, random) + 3.0 * random.normal(),
        "fast" => 650.0 + 40.0 * memory(&mut state[0], 0.1, random),
        // Work and pauses of random length.
        "bursts" => {
            if at >= state[0] {
                state[1] = 1.0 - state[1];
                state[0] = at - 0.6 * random.uniform().max(1e-9).ln();
            }
            130.0 + 500.0 * state[1] + 10.0 * random.normal()
        }
        // Requests whose time of work is about the same, after pauses of random length.
        "requests" => {
            if at >= state[0] {
                state[1] = 1.0 - state[1];
                state[0] = at + if state[1] > 0.5 { 0.3 } else { -0.5 * random.uniform().max(1e-9).ln() };
            }
            130.0 + 500.0 * state[1] + 10.0 * random.normal()
        }
        // Work of random length, one after the other, with a short dip between.
        _ => {
            if at >= state[0] {
                state[2] = at + 0.04;
                state[0] = at + 0.2 + 0.6 * random.uniform();
            }
            if at < state[2] { 300.0 } else { 700.0 + 15.0 * random.normal() }
        }
    }
}

fn main() {
    let number =
        |place: usize, or: u64| std::env::args().nth(place).and_then(|text| text.parse().ok()).unwrap_or(or);
    let (seeds, seconds) = (number(1, 100), number(2, 300));
    for kind in ["white", "pink", "slow", "fast", "bursts", "requests", "irregular"] {
        if std::env::args().nth(3).is_some_and(|only| only != kind) {
            continue;
        }
        let (mut stated, mut beats, mut strong) = (0, 0, 0.0_f64);
        for seed in 1..=seeds {
            let mut random = Random(seed * 0x9E37_79B9_7F4A_7C15);
            let (mut heart, mut state) = (Heartbeat::default(), [0.0; 12]);
            let mut any = false;
            for second in 0..seconds {
                for tick in 1..=50 {
                    let at = second as f64 + f64::from(tick) * 0.02;
                    heart.sample(at, noise(kind, &mut random, &mut state, at).max(0.0));
                }
                let now = second as f64 + 1.0;
                heart.witness(now - 10.0, now, UnitActivity { tensor: 0.6, ..UnitActivity::default() });
                if let Some(beat) = heart.beat(now) {
                    any = true;
                    beats += 1;
                    strong = strong.max(beat.confidence);
                }
            }
            stated += u64::from(any);
        }
        println!(
            "{kind:10} stated in {stated} of {seeds} runs of {seconds} s, {beats} beats, highest confidence {strong:.2}"
        );
    }
}

//! Processor time of one GPU and second, on recordings played again and again: `cargo run --release -p heartbeat --example
//! cost -- FILE...`

use std::time::{Duration, Instant};

use heartbeat::{Heartbeat, UnitActivity};

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).expect("a readable recording");
        let mut at = 0.0;
        let mut samples = Vec::new();
        for line in text.lines() {
            let mut numbers = line.split_whitespace().map_while(|field| field.parse::<f64>().ok());
            if let (Some(passed), Some(deciwatts)) = (numbers.next(), numbers.next()) {
                at += passed / 1e3;
                samples.push((at, deciwatts / 10.0));
            }
        }
        let (mut heart, mut next, mut seconds, mut stated) = (Heartbeat::default(), 1.0, 0_u32, 0_u32);
        let (mut total, mut longest) = (Duration::ZERO, Duration::ZERO);
        for round in 0..10 {
            for (since, watts) in &samples {
                let now = f64::from(round) * at + since;
                let begun = Instant::now();
                heart.sample(now, *watts);
                if now >= next {
                    heart.witness(now - 10.0, now, UnitActivity { tensor: 0.5, ..UnitActivity::default() });
                    stated += u32::from(heart.beat(now).is_some());
                    next = now + 1.0;
                    seconds += 1;
                    longest = longest.max(begun.elapsed());
                }
                total += begun.elapsed();
            }
        }
        println!(
            "{path}: {:.0} us a second, {longest:.0?} at most, a period in {stated} of {seconds} s",
            total.as_secs_f64() * 1e6 / f64::from(seconds)
        );
    }
}

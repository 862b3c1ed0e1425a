//! Replays recordings (the format is in `tests/data/README.md`) and prints the beat each second beside the steps that the
//! job wrote down: `cargo run --release -p heartbeat --example replay -- FILE...`

use heartbeat::{Heartbeat, UnitActivity};

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).expect("a readable recording");
        let (mut samples, mut steps, mut seen, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
        for line in text.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let number = |place: usize| fields[place].parse::<f64>().expect("a number");
            match fields.first() {
                Some(&"step") => steps.push(number(1) / 1e3),
                Some(&"gpm") => seen.push((number(1) / 1e3, number(2) / 1e3, number(4) / 100.0)),
                Some(&"#") | None => {}
                _ => {
                    at += number(0) / 1e3;
                    samples.push((at, number(1) / 10.0));
                }
            }
        }
        let mut heart = Heartbeat::default();
        let mut next = 1.0;
        println!("{path}: {} steps from {:?} to {:?}", steps.len(), steps.first(), steps.last());
        for (at, watts) in samples {
            heart.sample(at, watts);
            if at < next {
                continue;
            }
            next += 1.0;
            let windows: Vec<_> = seen.iter().filter(|(_, to, _)| *to > at - 10.0 && *to <= at).collect();
            let tensor = windows.iter().map(|window| window.2).sum::<f64>() / windows.len().max(1) as f64;
            heart.witness(at - 10.0, at, UnitActivity { tensor, ..UnitActivity::default() });
            let beat = heart.beat(at);
            let mut lengths: Vec<f64> = steps
                .windows(2)
                .filter(|pair| pair[0] > at - 12.0_f64.max(6.0 * (pair[1] - pair[0])) && pair[1] < at)
                .map(|pair| pair[1] - pair[0])
                .collect();
            lengths.sort_by(f64::total_cmp);
            let median = lengths.get(lengths.len() / 2).copied().unwrap_or(f64::NAN);
            let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
            match beat {
                Some(beat) => println!(
                    "{at:6.1} {:.4} {:.2} {:.3} {:?} true {median:.4} {:+.2} % mean {mean:.4} steps {:.1}",
                    beat.seconds,
                    beat.confidence,
                    beat.jitter,
                    beat.kind,
                    (beat.seconds / median - 1.0) * 100.0,
                    heart.steps()
                ),
                None => println!("{at:6.1} none true {median:.4} steps {:.1}", heart.steps()),
            }
        }
    }
}

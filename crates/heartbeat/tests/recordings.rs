//! Steps found in recordings of known work, which `data/README.md` describes.

use std::path::Path;

use heartbeat::{Beat, Heartbeat, PeriodKind, UnitActivity};

/// One recorded GPU: times in seconds after the first sample.
struct Recording {
    samples: Vec<(f64, f64)>,
    steps: Vec<f64>,
    /// End of a GPM window, share of the time of the tensor cores.
    tensor: Vec<(f64, f64)>,
}

fn read(name: &str) -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut recording = Recording { samples: Vec::new(), steps: Vec::new(), tensor: Vec::new() };
    let mut at = 0.0;
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{name}: {line}"));
        let numbers: Vec<f64> = rest.split(' ').map(|number| number.parse().unwrap()).collect();
        match word {
            "step" => recording.steps.push(numbers[0] / 1e3),
            "gpm" => recording.tensor.push((numbers[1] / 1e3, numbers[3] / 100.0)),
            passed => {
                at += passed.parse::<f64>().unwrap() / 1e3;
                recording.samples.push((at, numbers[0] / 10.0));
            }
        }
    }
    recording
}

impl Recording {
    /// Beats by second, called as the exporter does, with GPM windows of 10 s.
    fn beats(&self, heart: &mut Heartbeat) -> Vec<(f64, Option<Beat>)> {
        let mut beats = Vec::new();
        let mut next = 1.0;
        for (at, watts) in &self.samples {
            heart.sample(*at, *watts);
            if *at < next {
                continue;
            }
            if (next as u64).is_multiple_of(10) {
                let window: Vec<f64> =
                    self.tensor.iter().filter(|(to, _)| (at - 10.0..*at).contains(to)).map(|w| w.1).collect();
                let tensor = window.iter().sum::<f64>() / window.len().max(1) as f64;
                heart.witness(at - 10.0, *at, UnitActivity { tensor, ..UnitActivity::default() });
            }
            beats.push((*at, heart.beat(*at)));
            next += 1.0;
        }
        beats
    }

    /// The median step of those that lie within a span.
    fn step(&self, from: f64, to: f64) -> f64 {
        let within = self.steps.windows(2).filter(|pair| pair[0] >= from && pair[1] <= to);
        let mut lengths: Vec<f64> = within.map(|pair| pair[1] - pair[0]).collect();
        lengths.sort_by(f64::total_cmp);
        lengths[lengths.len() / 2]
    }
}

/// Every beat of a recording is the step within `tolerance`, against the median of the last 10 s or five steps, and the
/// first comes `soon` seconds after the first step or before.
fn exact(name: &str, tolerance: f64, soon: f64) {
    let recording = read(name);
    let begun = recording.steps[0];
    let beats = recording.beats(&mut Heartbeat::default());
    let first =
        beats.iter().find(|(_, beat)| beat.is_some()).unwrap_or_else(|| panic!("{name}: no period")).0;
    assert!(first - begun <= soon, "{name}: found after {:.0} s", first - begun);
    for (at, beat) in &beats {
        let Some(beat) = beat else { continue };
        let whole = recording.step(begun, f64::INFINITY);
        let step = recording.step(at - f64::max(10.0, 6.0 * whole), *at);
        let off = beat.seconds / step - 1.0;
        assert!(off.abs() <= tolerance, "{name} at {at:.0} s: {:.4} for {step:.4}", beat.seconds);
    }
}

#[test]
fn steps_are_exact() {
    for (name, tolerance, soon) in [
        ("dp05-0", 0.01, 22.0),
        ("dp2-0", 0.01, 32.0),
        ("wedge-1", 0.01, 24.0),
        ("data_parallel_short", 0.01, 24.0),
        ("fp8_products", 0.01, 26.0),
        ("gradient_accumulation", 0.01, 26.0),
        ("memory_bound", 0.01, 20.0),
        ("pipeline", 0.01, 20.0),
        ("stuttering_loader", 0.01, 26.0),
        ("bf16_gpt", 0.01, 28.0),
        ("long_step", 0.01, 52.0),
        ("data_parallel_long", 0.015, 22.0),
        ("gpt-0", 0.03, 26.0),
    ] {
        exact(name, tolerance, soon);
    }
}

#[test]
fn a_step_that_gets_longer_is_followed() {
    for name in ["slow5-0", "slow5-1"] {
        let recording = read(name);
        let begun = recording.steps[0];
        let beats = recording.beats(&mut Heartbeat::default());
        let (before, after) =
            (recording.step(begun, begun + 19.0), recording.step(begun + 25.0, begun + 45.0));
        assert!((after / before - 1.0 - 0.045).abs() < 0.005);
        // The job slows down 23 s after its first step; the longer step is there 13 s later.
        for (at, beat) in beats.iter().filter(|(at, _)| (begun + 36.0..begun + 44.0).contains(at)) {
            let beat = beat.unwrap_or_else(|| panic!("{name}: lost at {at}"));
            assert!((beat.seconds / after - 1.0).abs() < 0.01, "{name} at {at}: {}", beat.seconds);
        }
    }
}

#[test]
fn a_halt_ends_the_beat_and_the_count() {
    for name in ["wedge-0", "wedge-1"] {
        let recording = read(name);
        let stopped = read("wedge-1").steps.last().copied().unwrap();
        let mut heart = Heartbeat::default();
        let beats = recording.beats(&mut heart);
        let step = 0.466;
        assert!(beats.iter().any(|(_, beat)| beat.is_some()));
        for (at, beat) in beats {
            assert!(at < stopped + 3.0 * step + 5.0 || beat.is_none(), "{name}: {beat:?} at {at}, {stopped}");
        }
        assert!(heart.steps() <= 43.0);
    }
}

#[test]
fn steps_are_counted_while_they_are_known() {
    let recording = read("slow5-1");
    let mut heart = Heartbeat::default();
    let beats = recording.beats(&mut heart);
    let first = beats.iter().find(|(_, beat)| beat.is_some()).unwrap().0;
    let known = recording.steps.iter().filter(|step| **step > first).count() as f64;
    assert!((heart.steps() - known).abs() <= 4.0, "{} of {known}", heart.steps());
}

#[test]
fn jitter_is_that_of_the_steps() {
    // Standard deviations that the jobs wrote down: 0.5, 0.2 and 0.2 % of the step.
    for name in ["data_parallel_short", "memory_bound", "pipeline"] {
        let beats = read(name).beats(&mut Heartbeat::default());
        let jitters: Vec<f64> = beats.iter().filter_map(|(_, beat)| Some(beat.as_ref()?.jitter)).collect();
        let mean = jitters.iter().sum::<f64>() / jitters.len() as f64;
        assert!(mean < 0.01, "{name}: {mean}");
    }
}

#[test]
fn what_has_no_step_has_none() {
    for name in [
        "inference_random",
        "inference_steady",
        "interactive",
        "waiting-kernels-poll_host",
        "waiting-kernels-poll_dev24",
        "waiting-kernels-poll_all",
        "waiting-kernels-poll_sleep",
        "waiting-kernels-one_sm",
        "waiting-kernels-h2d",
        "waiting-kernels-d2h",
    ] {
        let mut heart = Heartbeat::default();
        for (at, beat) in read(name).beats(&mut heart) {
            assert_eq!(beat, None, "{name} at {at}");
        }
        assert_eq!(heart.steps(), 0.0);
    }
}

/// Layers that are much alike, steps between evaluations: no part and no multiple is called the step.
#[test]
fn parts_and_multiples_are_no_steps() {
    for name in ["fully_sharded", "evaluation", "gradient_accumulation", "dp2-0", "long_step", "fp8_products"]
    {
        let recording = read(name);
        let step = recording.step(0.0, f64::INFINITY);
        for (at, beat) in recording.beats(&mut Heartbeat::default()) {
            if let Some(beat) = beat.filter(|beat| beat.kind == PeriodKind::Step) {
                assert!((beat.seconds / step - 1.0).abs() < 0.03, "{name} at {at}: {beat:?} for {step}");
            }
        }
    }
}

/// Jobs of other sizes and lengths, with which no threshold was made: the median beat is the median step.
#[test]
fn unseen_jobs_have_their_steps() {
    for name in [
        "data_parallel_long",
        "data_parallel_short",
        "evaluation",
        "fp8_products",
        "fully_sharded",
        "gradient_accumulation",
        "long_step",
        "memory_bound",
        "pipeline",
        "sleeping_loader",
        "stuttering_loader",
    ] {
        let recording = read(&format!("unseen/{name}"));
        let mut beats: Vec<f64> = recording
            .beats(&mut Heartbeat::default())
            .iter()
            .filter_map(|(_, beat)| Some(beat.as_ref()?.seconds))
            .collect();
        beats.sort_by(f64::total_cmp);
        let median = *beats.get(beats.len() / 2).unwrap_or_else(|| panic!("{name}: no period"));
        let step = recording.step(0.0, f64::INFINITY);
        assert!((median / step - 1.0).abs() < 0.01, "{name}: {median:.4} for {step:.4}");
    }
    // The last has a step of 0.19 s, which is not found.
    for name in ["inference_random", "interactive", "bf16_gpt"] {
        let beats = read(&format!("unseen/{name}")).beats(&mut Heartbeat::default());
        assert!(beats.iter().all(|(_, beat)| beat.is_none()), "{name}");
    }
}

/// Requests at an even rate repeat, too, and read their weights for hardly any computing.
#[test]
fn generating_tokens_is_no_step() {
    let recording = read("memory_bound");
    let found = |pipes: f64, dram: f64| {
        let mut heart = Heartbeat::default();
        recording
            .samples
            .iter()
            .filter_map(|(at, watts)| {
                heart.sample(*at, *watts);
                heart.witness(at - 10.0, *at, UnitActivity { tensor: 0.02, pipes, dram });
                heart.beat(*at)
            })
            .count()
    };
    // The shares of this training, and of a server with a request each 0.4 s.
    assert!(found(0.347, 0.471) > 0);
    assert_eq!(found(0.116, 0.735), 0);
}

/// Requests at an even rate repeat, too: without the word of the tensor cores they are no step.
#[test]
fn a_weak_period_wants_a_witness() {
    let mut recording = read("stuttering_loader");
    recording.tensor.clear();
    let beats = recording.beats(&mut Heartbeat::default());
    assert!(beats.iter().all(|(_, beat)| beat.is_none()));
}

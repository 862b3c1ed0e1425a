use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::ring::Ring;
use model::catalog::{self as m, CollectorName, Gpu, Tier};
use model::clock::Mono;
use model::owners::GpuProcess;
use model::sample::{Batch, BatchKey, CallCost, Drained, Gap, GpmWindow, Missing, Row, Rows};

const SECOND: u64 = 1_000_000_000;

fn gpu(index: u32) -> Gpu {
    Gpu { gpu: index, uuid: format!("GPU-{index}").as_str().into() }
}

/// A visit at this second, with a second of samples of these watts.
fn batch(gpu: &Gpu, second: u64, watts: impl Fn(u64) -> f64) -> Batch {
    let part = BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu.clone()), tier: Tier::Normal };
    let mut rows = Rows::default();
    rows.entity(gpu).record(&m::gpu_power_watts, (), watts(0)).unwrap();
    let stamp = |n: u64| second * 1_000_000 + n * 20_000 + 3_600_000_000;
    let samples = (0..50).map(|n| (stamp(n), watts(n))).collect();
    let drained =
        vec![Drained::Samples { buffer: SampleBuffer::Power, offset_micros: 3_600_000_000, samples }];
    let calls = vec![CallCost { call: "nvmlDeviceGetPowerUsage".into(), nanos: 12_345 }];
    Batch { rows, drained, calls, nanos: 20_000, ..Batch::new(part, 1, Mono(second * SECOND), None) }
}

fn header(frozen: &Frozen) -> Header {
    let written = Written { monotonic_seconds: 100.0, unix_seconds: 1_700_000_100.0 };
    let fault = RecordedFault {
        t: 90.0,
        gpu: Some(3),
        uuid: Some("GPU-3".into()),
        fault: "Lost".into(),
        code: None,
        text: "it is lost".into(),
    };
    Header::new(("0.1.0", "abc", "node1"), written, vec![fault], frozen)
}

fn recorded(ring: &mut Ring, now: u64) -> Vec<u8> {
    let frozen = ring.freeze(Mono(now * SECOND));
    let (mut bytes, events) = (Vec::new(), "{\"events\":[]}\n".to_owned());
    encode(&header(&frozen), &frozen, [("events", events)].into_iter(), &mut bytes).unwrap();
    bytes
}

fn lines_with<'a>(recording: &'a Recording, key: &'a str) -> impl Iterator<Item = &'a Value> {
    recording.lines.iter().filter(move |line| line.get(key).is_some())
}

#[test]
fn what_passed_is_in_the_file_at_its_rate_and_time() {
    let mut ring = Ring::new(Duration::from_secs(120));
    for second in 10..40 {
        ring.record(&batch(&gpu(3), second, |n| 100.0 + n as f64 * 0.3));
    }
    let mut other = batch(&gpu(3), 40, |_| 100.0);
    other.processes = Some(vec![GpuProcess { pid: 7, instance: None, memory: Some(1) }]);
    other.gaps = vec![Gap { call: "nvmlX".into(), metrics: Vec::new(), missing: failed("GPU is lost") }];
    let sums = vec![Row { metric: m::gpu_power_watts.id(), labels: Vec::new(), value: 0.5 }];
    other.drained = vec![Drained::Gpm(GpmWindow { subject: Subject::Gpu(gpu(3)), seconds: 1.0, sums })];
    ring.record(&other);
    let recording = decode(recorded(&mut ring, 41).as_slice()).unwrap();
    assert_eq!((recording.truncated.as_deref(), recording.header.node.as_str()), (None, "node1"));
    assert_eq!(recording.header.unix(90.0), 1_700_000_090.0);
    assert_eq!((recording.header.from, recording.header.to), (10.0, 41.0));
    let samples: Vec<&Value> = lines_with(&recording, "samples").collect();
    assert_eq!(samples.len(), 30);
    assert_eq!((&samples[0]["t"], &samples[0]["unit"]), (&json!(10.0), &json!("watts")));
    assert_eq!(samples[0]["step_ms"][1], 20.0);
    assert_eq!((&samples[0]["values"][0], &samples[0]["values"][49]), (&json!(100.0), &json!(114.7)));
    let rows: Vec<&Value> = lines_with(&recording, "subject").collect();
    assert_eq!(rows[0]["values"]["gpu_power_watts"], 100.0);
    assert_eq!(rows[0]["subject"]["uuid"], "GPU-3");
    assert_eq!(rows.len(), 2, "a value that stays is there once, and what GPM counted: {rows:?}");
    let call = lines_with(&recording, "calls").next().unwrap();
    let time = call["calls"]["nvmlDeviceGetPowerUsage"].as_f64().unwrap();
    assert!((time / 12_345e-9 - 1.0).abs() < 0.1, "{time}");
    assert_eq!(lines_with(&recording, "failed").next().unwrap()["text"], "GPU is lost");
    assert_eq!(lines_with(&recording, "processes").next().unwrap()["processes"][0]["pid"], 7);
    assert_eq!(lines_with(&recording, "gpm_seconds").count(), 1);
    assert_eq!(lines_with(&recording, "events").count(), 1);
}

fn failed(text: &str) -> Missing {
    Missing::Failed { error: m::DriverError::GpuIsLost, text: text.into() }
}

#[test]
fn eight_gpus_at_full_rate_are_kept_for_the_whole_time_within_the_bound() {
    // Two minutes and the longest that may be set, and the minute that a fault may wait.
    for (keep, kib) in [(180, 340), (360, 650)] {
        let mut ring = Ring::new(Duration::from_secs(keep));
        let mut noise = 1u64;
        let mut next = move || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            noise >> 40
        };
        let end = keep + 97;
        for second in 0..end {
            for index in 0..8 {
                // The worst case: consecutive samples differ by up to 300 W.
                let watts: Vec<f64> = (0..50).map(|_| 400.0 + next() as f64 % 3000.0 / 10.0).collect();
                let mut batch = batch(&gpu(index), second, |n| watts[n as usize % 50]);
                let stamp = |n: u64| second * 1_000_000 + n * 166_000;
                let samples = (0..6).map(|n| (stamp(n), next() as f64 % 100.0 / 100.0)).collect();
                let buffer = SampleBuffer::Utilization;
                batch.drained.push(Drained::Samples { buffer, offset_micros: 0, samples });
                let call = || CallCost { call: "nvmlDeviceGetPowerUsage".into(), nanos: 12_345 };
                batch.calls = std::iter::repeat_with(call).take(20).collect();
                ring.record(&batch);
            }
            assert!(ring.bytes() <= kib << 10, "{} at {second} s", ring.bytes());
        }
        let recording = decode(recorded(&mut ring, end).as_slice()).unwrap();
        assert_eq!(recording.truncated, None);
        let begin = (end - keep) as f64;
        assert!(recording.header.from <= begin, "{} of {end} s", recording.header.from);
        let late = lines_with(&recording, "samples").filter(|line| line["samples"] == "power");
        let late = late.filter(|line| line["t"].as_f64().unwrap() >= begin);
        let count: usize = late.map(|line| line["values"].as_array().unwrap().len()).sum();
        assert_eq!(count as u64, 8 * 50 * keep);
    }
}

#[test]
fn a_truncated_file_gives_what_it_has_and_says_so() {
    let mut ring = Ring::new(Duration::from_secs(120));
    let mut noise = 1.0;
    for second in 0..100 {
        ring.record(&batch(&gpu(0), second, |n| noise + n as f64 * (second as f64).sin().abs()));
        noise += 1.7;
    }
    let whole = recorded(&mut ring, 100);
    let cut = decode(&whole[..whole.len() / 2]).unwrap();
    assert!(cut.truncated.is_some() && !cut.lines.is_empty(), "{cut:?}");
    let tail = decode(&whole[..whole.len() - 1]).unwrap();
    assert!(tail.lines.len() >= cut.lines.len());
}

#[test]
fn what_is_no_recording_or_of_another_version_is_refused() {
    let gzip = |text: &str| {
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let said = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
    assert!(said(b"").contains("is not a recording"));
    assert!(said(b"{}").contains("is not a recording"));
    assert!(said(&gzip("{}\n")).contains("another format"));
    let other = format!("{{\"format\":\"{FORMAT}\",\"version\":7,\"release\":\"9.1.0\"}}\n");
    assert_eq!(
        said(&gzip(&other)),
        "has recording format version 7, but this release reads version 1; use release 9.1.0"
    );
}

/// Final values of all series after the lines, in order of time.
fn replayed(recording: &Recording) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    for line in lines_with(recording, "subject") {
        for (name, value) in line["values"].as_object().unwrap() {
            values.insert(format!("{} {name}", line["subject"]["gpu"]), value.as_f64().unwrap());
        }
    }
    values
}

proptest! {
    // Every case of the second has minutes.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(bytes.as_slice());
    }

    #[test]
    fn whatever_left_the_ring_the_values_at_its_end_are_those_read_last(
        watts in prop::collection::vec((0u32..4, 0.0..1000.0f64, 0u64..60_000_000), 1..300)
    ) {
        let mut ring = Ring::new(Duration::from_secs(20));
        let mut last = BTreeMap::new();
        let mut all = BTreeMap::new();
        for (second, (index, value, jitter)) in watts.iter().enumerate() {
            let mut batch = batch(&gpu(*index), second as u64, |n| value + n as f64);
            let Drained::Samples { samples, .. } = &mut batch.drained[0] else { panic!("samples") };
            // A gap in the middle, anywhere.
            samples[25..].iter_mut().for_each(|(stamp, _)| *stamp += jitter);
            all.insert(second, (*index, *value, samples.clone()));
            ring.record(&batch);
            last.insert(format!("\"{index}\" gpu_power_watts"), *value);
        }
        let recording = decode(recorded(&mut ring, watts.len() as u64).as_slice()).unwrap();
        prop_assert_eq!(&recording.truncated, &None);
        let replayed = replayed(&recording);
        for (name, value) in &replayed {
            prop_assert!((value - last[name]).abs() <= 0.051, "{} {} {}", name, value, last[name]);
        }
        for line in lines_with(&recording, "samples") {
            let (index, value, samples) = &all[&(line["t"].as_f64().unwrap() as usize)];
            prop_assert_eq!(line["gpu"].as_u64().unwrap(), u64::from(*index));
            let mut at = 0.0;
            for (n, step) in line["step_ms"].as_array().unwrap().iter().enumerate() {
                at += step.as_f64().unwrap();
                let is = (samples[n].0 - samples[0].0) as f64 / 1e3;
                prop_assert!((at - is).abs() <= 2.0, "{} for {}", at, is);
                prop_assert!((line["values"][n].as_f64().unwrap() - value - n as f64).abs() <= 0.051);
            }
        }
    }
}

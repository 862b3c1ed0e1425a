//! Halted work, replayed from the driver's samples of real work (`tests/data/jobs/README.md`).

use super::*;
use model::catalog::GpuInstance;
use model::catalog::schema::{LabelSet, LabelText, Metric};
use model::sample::Row;

/// Seconds of a GPM window at default settings.
const GPM: usize = 10;
/// A process of another owner.
const STRANGER: u32 = 99;

/// One second of a recording.
#[derive(Clone)]
pub(super) struct Second {
    /// Graphics, SM, then the pipes and the memory, in per cent; MB/s over PCIe and NVLink.
    pub gpm: [f64; 12],
    pub utilization: Vec<f64>,
    pub watts: Vec<f64>,
}

pub(super) fn recording(text: &str) -> Vec<Second> {
    let numbers = |text: &str| text.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<f64>>();
    let line = |line: &str| {
        let columns: Vec<&str> = line.split('|').collect();
        Second {
            gpm: numbers(columns[0]).try_into().unwrap(),
            utilization: numbers(columns[1]).iter().map(|n| n / 100.0).collect(),
            watts: numbers(columns[2]).iter().map(|n| n / 10.0).collect(),
        }
    };
    text.lines().map(line).collect()
}

macro_rules! recorded {
    ($name:literal) => {
        super::halts::recording(include_str!(concat!("../../../../../tests/data/jobs/", $name, ".psv")))
    };
}
pub(super) use recorded;

/// Lines `from` to `to` of a recording, over and over for so many seconds.
pub(super) fn stretch(all: &[Second], from: usize, to: usize, seconds: usize) -> Vec<Second> {
    all[from - 1..to].iter().cycle().take(seconds).cloned().collect()
}

/// GPU whose processes repeat recorded work.
struct Replay {
    bench: Bench,
    seconds: Vec<Second>,
    /// The MIG GPU instance that the recording is of.
    slice: Option<GpuInstance>,
    gpm: bool,
    elapsed: f64,
}

impl Replay {
    fn new() -> Replay {
        Replay::with(settings::Owners::default())
    }

    fn with(settings: settings::Owners) -> Replay {
        let bench = Bench::new(settings);
        Replay { bench, seconds: Vec::new(), slice: None, gpm: true, elapsed: 0.0 }
    }

    fn row<E: m::schema::Entity, L: LabelSet>(metric: &Metric<E, L>, label: LabelText, value: f64) -> Row {
        Row { metric: metric.id(), labels: vec![label], value }
    }

    fn window(&self, seconds: &[Second], units: &[(usize, GpmUnit)], links: bool) -> GpmWindow {
        let sum = |column: usize| seconds.iter().map(|second| second.gpm[column]).sum::<f64>();
        let active = |(column, unit): &(usize, GpmUnit)| match &self.slice {
            None => Self::row(&m::gpu_gpm_active_seconds_total, unit.text(), sum(*column) / 100.0),
            Some(_) => Self::row(&m::gpu_mig_gpm_active_seconds_total, unit.text(), sum(*column) / 100.0),
        };
        let mut sums: Vec<Row> = units.iter().map(active).collect();
        if links && self.slice.is_none() {
            let ways = [Direction::Tx, Direction::Rx];
            for (at, way) in ways.iter().enumerate() {
                sums.push(Self::row(&m::gpu_gpm_pcie_bytes_total, way.text(), sum(8 + at) * 1e6));
                sums.push(Self::row(&m::gpu_gpm_nvlink_bytes_total, way.text(), sum(10 + at) * 1e6));
            }
        }
        let subject = self.slice.clone().map_or(Subject::Gpu(gpu()), Subject::GpuInstance);
        GpmWindow { subject, seconds: seconds.len() as f64, sums }
    }

    /// One second; gives the cause that is published for the first owner, and the text of its state.
    fn second(&mut self, pids: &[u32], second: &Second) -> Option<&'static str> {
        self.bench.now += 1.0;
        self.elapsed += 1.0;
        let instance = self.slice.as_ref().map(|slice| (slice.gpu_instance, 0));
        let mut batch = self.bench.batch(Tier::Normal, |rows| {
            rows.entity(&gpu()).record(&m::gpu_power_watts, (), 100.0).unwrap();
            if let Some(slice) = &self.slice {
                rows.entity(&gpu()).record(&m::gpu_mig_slices, (), 7.0).unwrap();
                rows.entity(slice).record(&m::gpu_mig_memory_total_bytes, (), 1e9).unwrap();
            }
        });
        batch.processes = Some(pids.iter().map(|pid| GpuProcess { instance, ..on(*pid) }).collect());
        let stamped = |values: &[f64]| {
            let stamp = |n: usize| self.bench.now - 1.0 + (n + 1) as f64 / values.len() as f64;
            let one = |(n, value): (usize, &f64)| (((BOOT + stamp(n)) * 1e6) as u64, *value);
            values.iter().enumerate().map(one).collect::<Vec<_>>()
        };
        let offset_micros = (BOOT * 1e6) as i64;
        for (buffer, values) in
            [(SampleBuffer::Utilization, &second.utilization), (SampleBuffer::Power, &second.watts)]
        {
            if buffer == SampleBuffer::Power || self.slice.is_none() {
                batch.drained.push(Drained::Samples { buffer, offset_micros, samples: stamped(values) });
            }
        }
        self.bench.ledger.fold(batch);
        self.seconds.push(second.clone());
        if self.gpm && self.seconds.len().is_multiple_of(GPM) {
            let pipes = [GpmUnit::Integer, GpmUnit::Tensor, GpmUnit::Fp64, GpmUnit::Fp32, GpmUnit::Fp16];
            let mut units: Vec<(usize, GpmUnit)> = (2..).zip(pipes).collect();
            units.extend([(1, GpmUnit::Sm), (7, GpmUnit::Dram)]);
            let mut batch = self.bench.batch(Tier::Slow, |_| ());
            let newest = &self.seconds[self.seconds.len() - GPM..];
            batch.drained.push(Drained::Gpm(self.window(newest, &units, true)));
            if self.slice.is_some() && self.seconds.len().is_multiple_of(60) {
                let minute = &self.seconds[self.seconds.len() - 60..];
                batch.drained.push(Drained::Gpm(self.window(minute, &[(0, GpmUnit::Graphics)], false)));
            }
            self.bench.ledger.fold(batch);
        }
        for pid in pids {
            self.bench.attribute(*pid, 50.0, if *pid == STRANGER { "b" } else { "a" });
        }
        let s = self.bench.publish();
        s.owners.first().and_then(|view| view.cause).map(|cause| cause.known())
    }

    /// All of them; gives the cause in the end.
    fn play(&mut self, pids: &[u32], seconds: &[Second]) -> Option<&'static str> {
        let mut last = None;
        for second in seconds {
            last = self.second(pids, second);
        }
        last
    }

    /// Plays them until the cause is published; gives the seconds until then.
    fn until(&mut self, cause: &str, pids: &[u32], seconds: &[Second]) -> Option<usize> {
        seconds.iter().position(|second| self.second(pids, second) == Some(cause))
    }

    /// Whether none of them has the cause.
    fn never(&mut self, causes: &[&str], pids: &[u32], seconds: &[Second]) {
        for second in seconds {
            let found = self.second(pids, second);
            assert!(found.is_none_or(|found| !causes.contains(&found)), "{found:?} after {} s", self.elapsed);
        }
    }
}

const HALTS: [&str; 2] = ["wedged", "stalled"];

#[test]
fn a_wedged_collective_is_wedged_within_two_minutes_and_not_underfilled() {
    let job = recorded!("wedge-waiting");
    let mut replay = Replay::new();
    replay.never(&["wedged", "stalled", "underfilled"], &[7], &job[..25]);
    // Whole steps: 30.
    replay.never(&["wedged", "stalled", "underfilled"], &[7], &stretch(&job, 12, 25, 36));
    let took = replay.until("wedged", &[7], &stretch(&job, 30, 53, 200)).expect("never wedged");
    assert!((60..=100).contains(&took), "after {took} s");
    // Its steps go on: no longer wedged.
    assert_eq!(replay.play(&[7], &stretch(&job, 12, 25, 60)), Some("none"));
}

#[test]
fn work_that_rests_is_stalled_after_minutes_or_after_steps_that_did_not_come() {
    let job = recorded!("wedge-missing");
    let rests = stretch(&job, 30, 53, 500);
    // Products without end draw the same all the time.
    let mut steady = Replay::new();
    let even = |second: &Second| Second { watts: vec![650.0; second.watts.len()], ..second.clone() };
    let products: Vec<Second> = stretch(&job, 12, 25, 30).iter().map(even).collect();
    steady.never(&HALTS, &[7], &products);
    let took = steady.until("stalled", &[7], &rests).expect("never stalled");
    assert!((300..=345).contains(&took), "after {took} s");
    let mut steps = Replay::new();
    steps.never(&HALTS, &[7], &stretch(&job, 12, 25, 60));
    let took = steps.until("stalled", &[7], &rests).expect("never stalled");
    assert!((12..=20).contains(&took), "after {took} s");
}

#[test]
fn kernels_that_only_wait_are_wedged_if_the_same_processes_had_steps() {
    let steps = stretch(&recorded!("wedge-waiting"), 12, 25, 60);
    for (name, kernels) in [
        ("host memory", recorded!("poll-host")),
        ("24 blocks", recorded!("poll-dev24")),
        ("all multiprocessors", recorded!("poll-all")),
        ("nanosleep", recorded!("poll-sleep")),
    ] {
        let waits = stretch(&kernels, 10, 21, 130);
        let mut replay = Replay::new();
        replay.never(&HALTS, &[7], &steps);
        let took = replay.until("wedged", &[7], &waits).unwrap_or_else(|| panic!("{name} never wedged"));
        assert!((60..=100).contains(&took), "{name}: after {took} s");
        // A server that polls since its start never did otherwise, and one that worked before had no steps.
        let mut server = Replay::new();
        server.never(&HALTS, &[7], &[waits.clone(), waits.clone(), waits.clone()].concat());
        let even = |second: &Second| Second { watts: vec![650.0; second.watts.len()], ..second.clone() };
        server.never(&HALTS, &[7], &steps.iter().map(even).collect::<Vec<_>>());
        server.never(&HALTS, &[7], &stretch(&kernels, 10, 21, 900));
        // Another process of the same owner worked, and has ended.
        let mut other = Replay::new();
        other.play(&[7], &steps);
        other.never(&HALTS, &[8], &waits);
    }
}

#[test]
fn a_small_program_copies_and_training_are_no_halt() {
    for (work, kernels) in [
        ("one multiprocessor", recorded!("one-sm")),
        ("copies in", recorded!("h2d")),
        ("out", recorded!("d2h")),
    ] {
        println!("{work}");
        let mut replay = Replay::new();
        replay.play(&[7], &stretch(&kernels, 3, 7, 60));
        replay.never(&HALTS, &[7], &stretch(&kernels, 10, 21, 500));
    }
    let job = recorded!("gpt");
    let mut replay = Replay::new();
    replay.never(&HALTS, &[7], &job);
    // Each evaluation: its second with little work, then steps again.
    replay.never(&HALTS, &[7], &stretch(&job, 19, 49, 600));
    // A checkpoint that rank 0 writes for less than the time to a claim.
    replay.never(&HALTS, &[7], &stretch(&recorded!("d2h"), 10, 21, 40));
    replay.never(&HALTS, &[7], &stretch(&job, 19, 49, 60));
}

#[test]
fn a_pause_that_ended_once_must_last_twice_as_long() {
    let job = recorded!("wedge-waiting");
    let (work, waits) = (stretch(&job, 12, 25, 60), stretch(&job, 30, 53, 400));
    let mut replay = Replay::new();
    replay.play(&[7], &work);
    // Rank 0 writes a checkpoint; the others wait for it in a barrier.
    replay.until("wedged", &[7], &waits).expect("the first pause of all");
    replay.play(&[7], &waits[..20]);
    replay.never(&["stalled"], &[7], &work);
    let took = replay.until("wedged", &[7], &waits).expect("never wedged");
    assert!((180..=260).contains(&took), "after {took} s");
}

#[test]
fn without_evidence_nothing_is_claimed() {
    let job = recorded!("wedge-waiting");
    let (work, waits) = (stretch(&job, 12, 25, 60), stretch(&job, 30, 53, 150));
    let rests = stretch(&recorded!("wedge-missing"), 30, 53, 500);
    let mut blind = Replay::new();
    blind.gpm = false;
    blind.never(&HALTS, &[7], &[work.clone(), waits.clone(), work.clone()].concat());
    // Utilization alone shows that steps stopped.
    blind.never(&["wedged"], &[7], &rests);
    // GPM given to a profiler while it waits.
    let mut released = Replay::new();
    released.play(&[7], &work);
    released.gpm = false;
    released.never(&HALTS, &[7], &waits);
    // Two owners: whose kernels wait is not known.
    let mut shared = Replay::new();
    shared.play(&[7], &work);
    shared.never(&HALTS, &[7, STRANGER], &waits);
    // Power that moves: something works.
    let mut warm = Replay::new();
    warm.play(&[7], &work);
    let swings = |second: &Second| {
        let watts = second.watts.iter().enumerate().map(|(n, watts)| watts + (n % 2) as f64 * 3.0);
        Second { watts: watts.collect(), ..second.clone() }
    };
    warm.never(&HALTS, &[7], &waits.iter().map(swings).collect::<Vec<_>>());
}

#[test]
fn an_hour_of_kernels_that_wait_after_work_without_steps_is_no_wedge() {
    for (name, kernels) in [
        ("host memory", recorded!("poll-host")),
        ("24 blocks", recorded!("poll-dev24")),
        ("all multiprocessors", recorded!("poll-all")),
        ("nanosleep", recorded!("poll-sleep")),
        ("one multiprocessor", recorded!("one-sm")),
        ("copies in", recorded!("h2d")),
        ("copies out", recorded!("d2h")),
    ] {
        println!("{name}");
        let mut replay = Replay::new();
        // In no order, so that lines that are repeated make no step.
        let work = (0..60).map(|n: usize| kernels[2 + n * n * 7 % 5].clone());
        replay.play(&[7], &work.collect::<Vec<_>>());
        replay.never(&HALTS, &[7], &stretch(&kernels, 10, 21, 3600));
    }
}

#[test]
fn a_halt_stays_one_for_as_long_as_it_lasts() {
    let job = recorded!("wedge-waiting");
    let (steps, waits) = (stretch(&job, 12, 25, 60), stretch(&job, 30, 53, 33 * 60));
    let mut replay = Replay::new();
    replay.play(&[7], &steps);
    let took = replay.until("wedged", &[7], &waits).expect("never wedged");
    for second in &waits[took..] {
        assert_eq!(replay.second(&[7], second), Some("wedged"), "after {} s", replay.elapsed);
    }
    // Another process looks at the GPU for a while.
    replay.play(&[7, STRANGER], &waits[..10]);
    replay.until("wedged", &[7], &waits[..120]).expect("wedged no more");
    // Without GPM, work that has stopped.
    let mut blind = Replay::new();
    blind.gpm = false;
    blind.play(&[7], &steps);
    let rests = stretch(&recorded!("wedge-missing"), 30, 53, 33 * 60);
    assert_eq!(blind.play(&[7], &rests), Some("stalled"));
}

#[test]
fn a_rest_that_ended_once_must_last_twice_as_long() {
    let (job, rests) = (recorded!("wedge-waiting"), recorded!("wedge-missing"));
    let (steps, pause) = (stretch(&job, 12, 25, 70), stretch(&rests, 30, 53, 30));
    let mut replay = Replay::new();
    replay.play(&[7], &steps);
    assert_eq!(replay.play(&[7], &pause), Some("stalled"));
    // Its steps go on, and the next checkpoint takes as long.
    replay.play(&[7], &steps[..2]);
    replay.never(&HALTS, &[7], &steps);
    replay.never(&HALTS, &[7], &pause);
}

#[test]
fn a_slice_has_no_step_and_is_never_wedged() {
    let job = recorded!("wedge-waiting");
    let mut replay = Replay::new();
    let profile = "3g.71gb".into();
    replay.slice = Some(GpuInstance { gpu: 0, uuid: "a".into(), gpu_instance: 2, profile });
    replay.never(&HALTS, &[7], &stretch(&job, 12, 25, 120));
    replay.never(&HALTS, &[7], &stretch(&job, 30, 53, 600));
    let rests = stretch(&recorded!("wedge-missing"), 30, 53, 600);
    let took = replay.until("stalled", &[7], &rests).expect("never stalled");
    assert!((300..=420).contains(&took), "after {took} s");
    let of = OwnedGpu { gpu_instance: "2".into(), ..owned("a") };
    let s = replay.bench.publish();
    let class = |class| s.number(&m::gpu_owner_gpu_seconds_total, &of, (class,)).unwrap();
    let all: f64 = m::GpuTimeClass::ALL.iter().map(|one| class(*one)).sum();
    assert!(all > 900.0 * 3.0 / 7.0, "{all} s");
    assert!(class(m::GpuTimeClass::Unknown) < 0.1 * all, "windows come once a minute");
}

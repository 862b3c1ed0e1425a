//! Jobs of two ranks on two GPUs, replayed from the driver's samples of real work (`tests/data/jobs/README.md`).

use super::halts::{Second, recorded, stretch};
use super::*;
use model::catalog::schema::LabelText;
use model::sample::Row;

/// Seconds of a GPM window at default settings.
const GPM: usize = 10;

/// Two GPUs whose owner repeats recorded work.
struct Job {
    bench: Bench,
    /// Recorded work by GPU.
    seconds: [Vec<Second>; 2],
    noise: Noise,
    owner: Arc<Owner>,
}

/// A generator of normal deviates, the same for the same seed (xorshift, sum of twelve).
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

fn gpus() -> [Gpu; 2] {
    [gpu(), Gpu { gpu: 1, uuid: "b".into() }]
}

/// The same units of a GPM window: column and unit.
const UNITS: [(usize, GpmUnit); 7] = [
    (1, GpmUnit::Sm),
    (2, GpmUnit::Integer),
    (3, GpmUnit::Tensor),
    (4, GpmUnit::Fp64),
    (5, GpmUnit::Fp32),
    (6, GpmUnit::Fp16),
    (7, GpmUnit::Dram),
];

impl Job {
    fn new(seed: u64) -> Job {
        let mut bench = Bench::new(settings::Owners::default());
        let other = &gpus()[1];
        let mut identity = bench.batch(Tier::Identity, |rows| {
            let info = m::GpuInfo { pci_address: "0000:07:00.0".into(), ..m::GpuInfo::default() };
            rows.entity(other).info(&m::gpu_info, info);
        });
        identity.part.gpu = Some(other.clone());
        bench.ledger.fold(identity);
        let owner = Arc::new(Owner { id: "slurm/7".into(), kind: m::OwnerKind::Slurm, ..Owner::unknown() });
        Job { bench, seconds: Default::default(), noise: Noise(seed * 2 + 1), owner }
    }

    /// One second of both GPUs.
    fn second(&mut self, seconds: [&Second; 2]) -> Snapshot {
        self.bench.now += 1.0;
        let now = self.bench.now;
        for (at, (gpu, second)) in gpus().iter().zip(seconds).enumerate() {
            let mut second = second.clone();
            // One standard deviation of 1 % of the power, and of half a point in a second of GPM, at work.
            if second.gpm[1] > 20.0 {
                second.watts.iter_mut().for_each(|watts| *watts *= 1.0 + 0.01 * self.noise.normal());
                second.gpm[1] = (second.gpm[1] + 0.5 * self.noise.normal()).clamp(0.0, 100.0);
            }
            let mut batch = self.bench.batch(Tier::Normal, |rows| {
                rows.entity(gpu).record(&m::gpu_power_watts, (), 100.0).unwrap();
            });
            batch.part.gpu = Some(gpu.clone());
            batch.processes = Some(vec![on(7 + gpu.gpu)]);
            let stamped = |values: &[f64]| {
                let stamp = |n: usize| now - 1.0 + (n + 1) as f64 / values.len() as f64;
                let one = |(n, value): (usize, &f64)| (((BOOT + stamp(n)) * 1e6) as u64, *value);
                values.iter().enumerate().map(one).collect::<Vec<_>>()
            };
            let offset_micros = (BOOT * 1e6) as i64;
            for (buffer, values) in
                [(SampleBuffer::Utilization, &second.utilization), (SampleBuffer::Power, &second.watts)]
            {
                batch.drained.push(Drained::Samples { buffer, offset_micros, samples: stamped(values) });
            }
            self.bench.ledger.fold(batch);
            self.seconds[at].push(second);
            if self.seconds[at].len().is_multiple_of(GPM) {
                let mut batch = self.bench.batch(Tier::Slow, |_| ());
                batch.part.gpu = Some(gpu.clone());
                let newest = &self.seconds[at][self.seconds[at].len() - GPM..];
                batch.drained.push(Drained::Gpm(window(gpu, newest)));
                self.bench.ledger.fold(batch);
            }
            let owner = Arc::clone(&self.owner);
            let one = Attribution { pid: 7 + gpu.gpu, started: Some(BOOT + 50.0), owner };
            self.bench.ledger.event(LedgerEvent::Owners(OwnerUpdate::Attributed(vec![one])));
        }
        self.bench.publish()
    }

    fn play(&mut self, ranks: [&[Second]; 2], mut see: impl FnMut(usize, &Snapshot)) {
        let [first, second] = ranks;
        for (n, pair) in first.iter().zip(second).enumerate() {
            let snapshot = self.second([pair.0, pair.1]);
            see(n, &snapshot);
        }
    }

    fn entity(&self, gpu: usize) -> OwnedGpu {
        let Gpu { gpu, uuid } = gpus()[gpu].clone();
        OwnedGpu { gpu, uuid, gpu_instance: "".into(), owner: Arc::clone(&self.owner.id) }
    }
}

fn window(gpu: &Gpu, seconds: &[Second]) -> GpmWindow {
    let sum = |column: usize| seconds.iter().map(|second| second.gpm[column]).sum::<f64>();
    let row = |metric, label: LabelText, value: f64| Row { metric, labels: vec![label], value };
    let mut sums: Vec<Row> = UNITS
        .iter()
        .map(|(column, unit)| row(m::gpu_gpm_active_seconds_total.id(), unit.text(), sum(*column) / 100.0))
        .collect();
    for (at, way) in [Direction::Tx, Direction::Rx].iter().enumerate() {
        sums.push(row(m::gpu_gpm_pcie_bytes_total.id(), way.text(), sum(8 + at) * 1e6));
        sums.push(row(m::gpu_gpm_nvlink_bytes_total.id(), way.text(), sum(10 + at) * 1e6));
    }
    GpmWindow { subject: Subject::Gpu(gpu.clone()), seconds: seconds.len() as f64, sums }
}

fn cause(s: &Snapshot, gpu: usize) -> Option<&'static str> {
    s.owners
        .iter()
        .find(|view| view.gpu == gpus()[gpu])
        .and_then(|view| view.cause)
        .map(|cause| cause.known())
}

/// Seconds from the halt on until all GPUs are wedged with rank 1 missing.
fn wedged_after(seed: u64) -> Option<usize> {
    let (waits, rests) = (recorded!("wedge-waiting"), recorded!("wedge-missing"));
    let mut job = Job::new(seed);
    let head = 20 + (seed as usize % GPM);
    job.play([&stretch(&waits, 12, 25, head + 40), &stretch(&rests, 12, 25, head + 40)], |_, s| {
        assert!(!matches!(cause(s, 0), Some("wedged" | "stalled")), "it works");
    });
    let entities = [job.entity(0), job.entity(1)];
    let mut found = None;
    job.play([&stretch(&waits, 30, 53, 90), &stretch(&rests, 30, 53, 90)], |second, s| {
        let missing = entities.each_ref().map(|of| s.number(&m::gpu_owner_missing_rank, of, ()));
        if found.is_none() && missing == [Some(0.0), Some(1.0)] {
            assert_eq!([0, 1].map(|gpu| cause(s, gpu)), [Some("wedged"); 2]);
            let progress = s.number(&m::gpu_owner_last_progress_timestamp_seconds, &entities[0], ()).unwrap();
            let ago = s.unix_seconds - progress;
            assert!((ago - second as f64).abs() <= 11.0, "{ago} s ago, {second} s of halt");
            found = Some(second + 1);
        }
    });
    found
}

#[test]
fn the_missing_rank_is_named_within_a_minute() {
    let took: Vec<usize> = (0..10).map(|seed| wedged_after(seed).expect("never wedged")).collect();
    println!("wedged after {took:?} s");
    assert!(took.iter().all(|seconds| (30..=60).contains(seconds)), "{took:?}");
}

#[test]
fn a_loader_that_sleeps_is_stalled_and_not_wedged() {
    let (work, rests) = (recorded!("wedge-waiting"), recorded!("wedge-missing"));
    for seed in 0..10 {
        let mut job = Job::new(seed);
        let steps = stretch(&work, 12, 25, 60 + seed as usize);
        job.play([&steps, &steps], |_, s| assert_ne!(cause(s, 0), Some("stalled")));
        let mut found = None;
        let sleeps = stretch(&rests, 30, 53, 30);
        job.play([&sleeps, &sleeps], |second, s| {
            assert_ne!(cause(s, 0), Some("wedged"));
            if cause(s, 0) == Some("stalled") && cause(s, 1) == Some("stalled") {
                found = found.or(Some(second + 1));
            }
        });
        let took = found.unwrap_or_else(|| panic!("seed {seed}: never stalled"));
        assert!((15..=30).contains(&took), "after {took} s");
        // It goes on.
        let mut last = None;
        job.play([&steps[..40], &steps[..40]], |_, s| last = cause(s, 0));
        assert_eq!(last, Some("none"));
    }
}

#[test]
fn a_rank_that_does_more_work_is_named_within_a_minute() {
    let ranks = [recorded!("slow5-0"), recorded!("slow5-1")];
    let mut took = Vec::new();
    for seed in 0..20 {
        let mut job = Job::new(seed);
        // Step 0 is in line 8, and rank 1 does more from second 20 on. Both stretches have whole steps: 30 and 41.
        let before = ranks.each_ref().map(|rank| stretch(rank, 12, 25, 61 + seed as usize % GPM));
        let entities = [job.entity(0), job.entity(1)];
        let slow =
            |s: &Snapshot| entities.each_ref().map(|of| s.number(&m::gpu_owner_slow_rank_ratio, of, ()));
        job.play(before.each_ref().map(Vec::as_slice), |_, s| assert_eq!(slow(s), [None; 2]));
        let after = ranks.each_ref().map(|rank| stretch(rank, 30, 49, 60));
        let mut found = None;
        job.play(after.each_ref().map(Vec::as_slice), |second, s| match slow(s) {
            [None, Some(share)] => {
                assert!((0.03..0.08).contains(&share), "{share}");
                found = found.or(Some(second + 1));
            }
            other => assert_eq!(other, [None; 2]),
        });
        took.extend(found);
    }
    println!("slow rank after {took:?} s");
    assert!(took.len() >= 19 && took.iter().all(|seconds| *seconds <= 60), "{took:?}");
}

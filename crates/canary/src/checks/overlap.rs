//! `overlap` runs the same batches (copy in, kernel, copy out) sequentially, in alternating queues, and with one queue
//! per stage. It also runs two independent kernels sequentially and concurrently.
//!
//! The kernel takes about as long as both copies. If one copy takes 1, the stages take 1, 2 and 1, so that n batches
//! take 4n sequentially and at least 2n + 2 concurrently. The check judges the share of that bound. Any wrong word is a
//! wrong result.

use super::*;
use crate::abi::{OVERLAP_THREADS, OverlapArgs};
use crate::session::cuda::CudaEvent;

pub static CHECK: Check = Check::new(CanaryCheck::Overlap, CanaryStep::Overlap, &["overlap"], measure, judge);

/// Wall times of the same work done in several ways, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    pub batches: u32,
    /// Bytes of one batch in one direction.
    pub bytes: u64,
    /// Times of one copy in, one kernel and one copy out, run without overlap.
    pub stages: [f64; 3],
    /// Time of all batches in one stream.
    pub serial: f64,
    /// Time with one stream per batch, in rotation.
    pub rotating: f64,
    /// Time with one stream for copies in, one for kernels, and one for copies out.
    pub separate: f64,
    /// Times of two independent kernels, run sequentially and concurrently.
    pub kernels: [f64; 2],
}

/// Share of the possible gain below which copies and kernels are prevented from overlapping.
const OVERLAP_FLOOR: f64 = 0.60;

/// Number of batches. A batch has its own buffers.
const BATCHES: usize = 8;
/// Number of queues that batches rotate through.
const QUEUES: usize = 4;
/// Maximum bytes of a batch in one direction.
const BYTES: u64 = 4 << 20;
/// Number of different inputs, small enough for the CPU to compute all results as well.
const INPUTS: usize = 256;
/// Number of turns to measure the kernel's time with, and maximum number of turns.
const TRIAL: u32 = 64;
const MOST_TURNS: u32 = 1 << 16;
/// Threads of a block. The number is small so that a long-running kernel does little work.
const THREADS: u32 = OVERLAP_THREADS / 8;
/// Number of times that a stage is measured without overlap.
const TIMES: usize = 3;

/// Buffers of one batch.
struct OverlapBatch {
    /// Start of the input and of the output in host memory, in 8-byte words.
    host: (usize, usize),
    x: DeviceSlice<f32>,
    y: DeviceSlice<f32>,
}

/// Resources that all ways of running the batches share.
struct OverlapBuffers<'a> {
    cuda: &'a CudaDriver,
    host: Pinned,
    batches: Vec<OverlapBatch>,
    /// Queues in addition to the session's own.
    queues: Vec<CudaStream>,
    /// Two events per batch, one for the start, and one per queue for the end.
    events: Vec<CudaEvent>,
    /// Grid of one block per multiprocessor that leaves no room for another, so that kernels of two batches run in
    /// turn.
    whole: Grid,
    turns: u32,
    kernel: CudaFunction,
}

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let mut space = OverlapBuffers::new(s)?;
    // A quarter of the multiprocessors, so that two such kernels can run concurrently.
    let quarter = Grid { blocks: (space.whole.blocks / 4).max(1), shared: 0, ..space.whole };
    let bytes = space.batches.first().map_or(0, |batch| batch.x.bytes());
    // The first run warms up caches and clocks.
    space.stages(s)?;
    let [copy_in, kernel, copy_out] = space.stages(s)?;
    let ratio = (copy_in + copy_out) / kernel.max(1e-9);
    space.turns = stats::turns(1.0, ratio, f64::from(TRIAL), 1.0, MOST_TURNS);

    let mut tally = Mismatches::default();
    let stages = space.stages(s)?;
    let mut verified = |queues: usize, way: Way<'_>| {
        space.forget();
        let seconds = space.time(s, queues, way)?;
        tally.add(BATCHES as u64 * bytes / 4, space.verify());
        Ok::<_, Ended>(seconds)
    };
    let serial = verified(1, &|queues| space.by_turns(queues))?;
    let rotating = verified(QUEUES, &|queues| space.by_turns(queues))?;
    let separate = verified(3, &|queues| space.separate(queues))?;
    let two_kernels = |queues: &[&CudaStream]| {
        let mut both = space.batches.iter().take(2).zip(queues.iter().cycle());
        both.try_for_each(|(batch, queue)| space.work(batch, queue, quarter))
    };
    let kernels = [space.time(s, 1, &two_kernels)?, space.time(s, 2, &two_kernels)?];
    space.give_back()?;
    let batches = BATCHES as u32;
    let figures = Overlap { batches, bytes, stages, serial, rotating, separate, kernels };
    Ok(Some((CheckFigures::Overlapped(figures), tally)))
}

/// Puts work into queues.
type Way<'a> = &'a dyn Fn(&[&CudaStream]) -> CudaResult<()>;

impl<'a> OverlapBuffers<'a> {
    fn new(s: &mut Session<'a>) -> Try<OverlapBuffers<'a>> {
        let cuda = s.cuda;
        let bytes = (BYTES.min(s.arena.left() / (2 * BATCHES as u64 + 1)) & !0xfff).max(0x1000);
        let (floats, words) = ((bytes / 4) as usize, (bytes / 8) as usize);
        let host = cuda.pin(2 * BATCHES as u64 * bytes)?;
        let mut batches = Vec::new();
        for batch in 0..BATCHES {
            let begin = 2 * batch * words;
            let (x, y) = (s.arena.data(floats)?, s.arena.data(floats)?);
            batches.push(OverlapBatch { host: (begin, begin + words), x, y });
            for word in 0..words {
                host.set(begin + word, pair(input(2 * word), input(2 * word + 1)));
            }
        }
        let queues = (1..QUEUES).map(|_| cuda.stream()).collect::<CudaResult<_>>()?;
        let events = (0..2 * BATCHES + QUEUES).map(|_| cuda.event()).collect::<CudaResult<_>>()?;
        let kernel = s.kernel("overlap")?;
        let whole = s.one_each(kernel, THREADS, 0)?;
        Ok(OverlapBuffers { cuda, host, batches, queues, events, whole, turns: TRIAL, kernel })
    }

    fn give_back(self) -> CudaResult<()> {
        self.queues.into_iter().try_for_each(|queue| self.cuda.destroy_stream(queue))?;
        self.events.into_iter().try_for_each(|event| self.cuda.destroy_event(event))?;
        self.cuda.unpin(self.host)
    }

    fn copy_in(&self, batch: &OverlapBatch, queue: &CudaStream) -> CudaResult<()> {
        self.cuda.queue_in(batch.x, PinnedPart(&self.host, batch.host.0), queue)
    }

    fn work(&self, batch: &OverlapBatch, queue: &CudaStream, grid: Grid) -> CudaResult<()> {
        let (x, y, count) = (batch.x.address, batch.y.address, batch.x.count as u64);
        let args = OverlapArgs { x, y, count, turns: self.turns, reserved: 0 };
        self.cuda.launch(self.kernel, grid, queue, &args)
    }

    fn copy_out(&self, batch: &OverlapBatch, queue: &CudaStream) -> CudaResult<()> {
        self.cuda.queue_out(PinnedPart(&self.host, batch.host.1), batch.y, queue)
    }

    /// Returns the median times in seconds of copy in, kernel and copy out, run without overlap.
    fn stages(&self, s: &mut Session<'_>) -> Try<[f64; 3]> {
        let Some(batch) = self.batches.first() else { return Ok([0.0; 3]) };
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..TIMES {
            times[0].push(s.timed(|_, queue| self.copy_in(batch, queue))?);
            times[1].push(s.timed(|_, queue| self.work(batch, queue, self.whole))?);
            times[2].push(s.timed(|_, queue| self.copy_out(batch, queue))?);
        }
        Ok(times.map(|times| stats::median_or_zero(&times)))
    }

    /// Runs the batches one way with this many queues. Returns the seconds from the start of the first to the end of
    /// the last.
    fn time(&self, s: &mut Session<'_>, queues: usize, way: Way<'_>) -> Try<f64> {
        let (begin, ends) = (&self.events[2 * BATCHES], &self.events[2 * BATCHES + 1..]);
        s.timed(|cuda, first| {
            let others = &self.queues[..queues - 1];
            cuda.record(begin, first)?;
            others.iter().try_for_each(|other| cuda.wait_for(other, begin))?;
            way(&[first].into_iter().chain(others).collect::<Vec<_>>())?;
            for (other, end) in others.iter().zip(ends) {
                cuda.record(end, other)?;
                cuda.wait_for(first, end)?;
            }
            Ok(())
        })
    }

    /// Uses one queue per batch, in rotation.
    fn by_turns(&self, queues: &[&CudaStream]) -> CudaResult<()> {
        for (batch, queue) in self.batches.iter().zip(queues.iter().cycle()) {
            self.copy_in(batch, queue)?;
            self.work(batch, queue, self.whole)?;
            self.copy_out(batch, queue)?;
        }
        Ok(())
    }

    /// Uses one queue for copies in, one for kernels, and one for copies out.
    fn separate(&self, queues: &[&CudaStream]) -> CudaResult<()> {
        let [inwards, compute, outwards] = queues else { return Ok(()) };
        for (batch, events) in self.batches.iter().zip(self.events.chunks_exact(2)) {
            self.copy_in(batch, inwards)?;
            self.cuda.record(&events[0], inwards)?;
            self.cuda.wait_for(compute, &events[0])?;
            self.work(batch, compute, self.whole)?;
            self.cuda.record(&events[1], compute)?;
            self.cuda.wait_for(outwards, &events[1])?;
            self.copy_out(batch, outwards)?;
        }
        Ok(())
    }

    /// Overwrites all outputs on the host.
    fn forget(&self) {
        for batch in &self.batches {
            (0..batch.x.count / 2).for_each(|word| self.host.set(batch.host.1 + word, u64::MAX));
        }
    }

    /// Compares all outputs on the host with the CPU's results.
    fn verify(&self) -> WrongResults {
        let expected: Vec<f32> = (0..INPUTS).map(|at| reference::overlap(input(at), self.turns)).collect();
        let mut wrong = WrongResults::default();
        for (batch, buffers) in self.batches.iter().enumerate() {
            for word in 0..buffers.x.count / 2 {
                let (low, high) = (expected[2 * word % INPUTS], expected[(2 * word + 1) % INPUTS]);
                let (expected, got) = (pair(low, high), self.host.get(buffers.host.1 + word));
                if got != expected {
                    let (unit, offset) = (format!("batch {batch}"), Some(8 * word as u64));
                    wrong.add(Mismatch { unit, offset, expected, got, ..Mismatch::default() });
                }
            }
        }
        wrong
    }
}

/// Returns the input at an index.
fn input(at: usize) -> f32 {
    (at % INPUTS) as f32 / INPUTS as f32
}

/// Combines two floats into one word, in memory order.
fn pair(low: f32, high: f32) -> u64 {
    u64::from(high.to_bits()) << 32 | u64::from(low.to_bits())
}

/// Returns the maximum gain from overlapping: the time of batches whose `stages` (copy in, kernel, copy out) run
/// sequentially, divided by the time in which all stages run concurrently with the stages of neighbouring batches.
/// Stages of 4, 8 and 4 ms give 16 / 8 = 2.0 over many batches.
pub fn overlap_bound(batches: u32, stages: [f64; 3]) -> Option<f64> {
    if batches == 0 || !stages.iter().all(|stage| stage.is_finite() && *stage > 0.0) {
        return None;
    }
    let (sum, longest) = (stages.iter().sum::<f64>(), stages.iter().copied().fold(0.0, f64::max));
    let batches = f64::from(batches);
    Some(batches * sum / (sum + (batches - 1.0) * longest))
}

fn judge(_: &RunContext<'_>, measured: &Measurement, _: &Clock) -> Sample {
    let CheckFigures::Overlapped(found) = &measured.found else { return CheckFigures::of_another_check() };
    judge_overlap(found)
}

fn judge_overlap(found: &Overlap) -> Sample {
    let valid = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
    let gain = |way: f64| valid(found.serial / valid(way)?);
    let bound = overlap_bound(found.batches, found.stages);
    let (rotating, separate) = (gain(found.rotating), gain(found.separate));
    // The bound assumes that kernels run sequentially, but rotating streams may run two small kernels at once.
    let (Some(bound), Some(separate_gain)) = (bound, separate) else {
        return Sample::discarded(CanaryVerdict::Skipped, "some times were not measured".into());
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
        if found.batches == 1 { "1 batch".to_owned() } else { format!("{} batches", found.batches) }
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
        let good = judge_overlap(&Overlap { separate: 0.074, ..found.clone() });
        assert_eq!(good.verdict, CanaryVerdict::Ok);
        assert!(
            good.text().contains("at most 1.78x") && good.text().contains("8 batches"),
            "{}",
            good.text()
        );
        let none = judge_overlap(&Overlap { rotating: 0.128, separate: 0.127, ..found.clone() });
        assert_eq!(none.verdict, CanaryVerdict::Slow);
        assert_eq!(judge_overlap(&Overlap::default()).verdict, CanaryVerdict::Skipped);
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

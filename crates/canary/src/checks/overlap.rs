//! `overlap`: the same batches (copy in, kernel, copy out) one after another, in queues by turns, and with a queue
//! for each stage; and two independent kernels one after the other and at once.
//!
//! The kernel takes about as long as both copies. If one copy takes 1, the stages take 1, 2 and 1, so that n
//! batches take 4n one after another and no less than 2n + 2 at once.
//! Judged by the share of that bound; any wrong word.

use super::*;
use crate::abi::{OVERLAP_THREADS, OverlapArgs};
use crate::session::cuda::CudaEvent;

pub static CHECK: Check = Check::new(CanaryCheck::Overlap, CanaryStep::Overlap, &["overlap"], measure, judge);

/// Wall times of the same work done in several ways, seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    pub batches: u32,
    /// Bytes of one batch, each way.
    pub bytes: u64,
    /// One copy in, one kernel and one copy out, measured separately.
    pub stages: [f64; 3],
    /// All batches in one stream.
    pub serial: f64,
    /// Streams by turns, a batch each.
    pub rotating: f64,
    /// A stream for copies in, one for kernels, one for copies out.
    pub separate: f64,
    /// Two independent kernels one after the other, and at once.
    pub kernels: [f64; 2],
}

/// Share of the possible gain by overlapping below which something keeps copies and kernels apart.
const OVERLAP_FLOOR: f64 = 0.60;

/// Batches, each with buffers of its own.
const BATCHES: usize = 8;
/// Queues that take batches by turns.
const QUEUES: usize = 4;
/// Bytes of a batch each way at most.
const BYTES: u64 = 4 << 20;
/// Different inputs, so few that all results are computed on the CPU too.
const INPUTS: usize = 256;
/// Turns with which the kernel's time is learned, and the most that are made.
const TRIAL: u32 = 64;
const MOST_TURNS: u32 = 1 << 16;
/// Threads of a block: few, so that a kernel that lasts long does little.
const THREADS: u32 = OVERLAP_THREADS / 8;
/// Number of separate measurements of a stage.
const TIMES: usize = 3;

/// Buffers of one batch.
struct OverlapBatch {
    /// Where its input begins in the host's memory, and where its output, counted in 8-byte words.
    host: (usize, usize),
    x: DeviceSlice<f32>,
    y: DeviceSlice<f32>,
}

/// All that the ways need.
struct OverlapBuffers<'a> {
    cuda: &'a CudaDriver,
    host: Pinned,
    batches: Vec<OverlapBatch>,
    /// Beside that of the session.
    queues: Vec<CudaStream>,
    /// Two a batch, one for the begin, and one a queue for its end.
    events: Vec<CudaEvent>,
    /// A block on every multiprocessor that leaves no room for another: kernels of two batches take turns.
    whole: Grid,
    turns: u32,
    kernel: CudaFunction,
}

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let mut space = OverlapBuffers::new(s)?;
    // A quarter of the multiprocessors: two such kernels fit at the same time.
    let quarter = Grid { blocks: (space.whole.blocks / 4).max(1), shared: 0, ..space.whole };
    let bytes = space.batches.first().map_or(0, |batch| batch.x.bytes());
    // The first finds everything cold.
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

    /// Measures copy in, kernel and copy out separately. Returns medians in seconds.
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

    /// Takes a way with so many queues: seconds from the begin of the first to the end of the last.
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

    /// A queue a batch, by turns.
    fn by_turns(&self, queues: &[&CudaStream]) -> CudaResult<()> {
        for (batch, queue) in self.batches.iter().zip(queues.iter().cycle()) {
            self.copy_in(batch, queue)?;
            self.work(batch, queue, self.whole)?;
            self.copy_out(batch, queue)?;
        }
        Ok(())
    }

    /// A queue for copies in, one for kernels and one for copies out.
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

    /// Writes over all outputs on the host.
    fn forget(&self) {
        for batch in &self.batches {
            (0..batch.x.count / 2).for_each(|word| self.host.set(batch.host.1 + word, u64::MAX));
        }
    }

    /// Compares all outputs on the host.
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

/// An input by its place.
fn input(at: usize) -> f32 {
    (at % INPUTS) as f32 / INPUTS as f32
}

/// Two floats as they lie in memory.
fn pair(low: f32, high: f32) -> u64 {
    u64::from(high.to_bits()) << 32 | u64::from(low.to_bits())
}

/// What overlapping can gain at most: batches that take `stages` one after another (copy in, kernel, copy out),
/// against the same with every stage of a batch in parallel with other stages of its neighbours. 4, 8 and 4 ms over many
/// batches give 16 / 8 = 2.0.
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

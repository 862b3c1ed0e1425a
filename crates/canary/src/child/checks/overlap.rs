//! `overlap`: the same batches (copy in, kernel, copy out) one after another, in queues by turns, and with a queue
//! for each stage; and two independent kernels one after the other and at once.
//!
//! The kernel takes about as long as both copies. If one copy takes 1, the stages take 1, 2 and 1, so that n
//! batches take 4n one after another and no less than 2n + 2 at once.

mod ways;

use super::Finding;
use crate::abi::{OVERLAP_THREADS, OverlapArgs};
use crate::child::cuda::{Event, Grid, Part, Pinned, Slice, Stream};
use crate::child::errors::{CudaError, Try};
use crate::child::figures;
use crate::child::session::Session;
use crate::child::tally::{Tally, Wrong};
use crate::reference;
use crate::report::{Found, Mismatch, Overlap};

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
/// Times that each stage is measured alone.
const TIMES: usize = 3;

/// Buffers of one batch.
struct Batch {
    /// Where its input begins in the host's memory, and where its output, in words.
    host: (usize, usize),
    x: Slice<f32>,
    y: Slice<f32>,
}

/// All that the ways need.
struct Space {
    host: Pinned,
    batches: Vec<Batch>,
    queues: Vec<Stream>,
    events: Vec<Event>,
    /// A block on every multiprocessor that leaves no room for another: kernels of two batches take turns.
    whole: Grid,
    /// A quarter of the multiprocessors: two such kernels have room beside each other.
    quarter: Grid,
    turns: u32,
}

/// Makes them all.
pub fn overlap(s: &mut Session<'_>) -> Try<Finding> {
    let mut space = Space::new(s)?;
    let bytes = space.batches.first().map_or(0, |batch| batch.x.bytes());
    // The first finds everything cold.
    stages(s, &space)?;
    let [copy_in, kernel, copy_out] = stages(s, &space)?;
    let ratio = (copy_in + copy_out) / kernel.max(1e-9);
    space.turns = figures::turns(1.0, ratio, f64::from(TRIAL), 1.0, MOST_TURNS);

    let mut tally = Tally::default();
    let mut told = Overlap { batches: BATCHES as u32, bytes, ..Overlap::default() };
    told.stages = stages(s, &space)?;
    for (way, seconds) in [
        (ways::SERIAL, &mut told.serial),
        (ways::ROTATING, &mut told.rotating),
        (ways::SEPARATE, &mut told.separate),
    ] {
        space.forget();
        *seconds = ways::take(s, &space, way)?;
        tally.add(BATCHES as u64 * bytes / 4, space.verify());
    }
    told.kernels = [ways::take(s, &space, ways::ONE_BY_ONE)?, ways::take(s, &space, ways::AT_ONCE)?];
    space.give_back(s)?;
    Ok(Finding { found: Found::Overlapped(told), mismatches: tally.told() })
}

/// Copy in, kernel and copy out, each alone; medians, seconds.
fn stages(s: &mut Session<'_>, space: &Space) -> Try<[f64; 3]> {
    let Some(batch) = space.batches.first() else { return Ok([0.0; 3]) };
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..TIMES {
        times[0].push(s.timed(|cuda, queue| cuda.queue_in(batch.x, Part(&space.host, batch.host.0), queue))?);
        times[1].push(s.run(s.kernels.overlap, space.whole, &space.args(batch))?);
        times[2]
            .push(s.timed(|cuda, queue| cuda.queue_out(Part(&space.host, batch.host.1), batch.y, queue))?);
    }
    Ok(times.map(|times| figures::median(&times)))
}

impl Space {
    fn new(s: &mut Session<'_>) -> Try<Space> {
        let bytes = (BYTES.min(s.arena.left() / (2 * BATCHES as u64 + 1)) & !0xfff).max(0x1000);
        let (floats, words) = ((bytes / 4) as usize, (bytes / 8) as usize);
        let host = s.cuda.pin(2 * BATCHES as u64 * bytes)?;
        let mut batches = Vec::new();
        for batch in 0..BATCHES {
            let begin = 2 * batch * words;
            let (x, y) = (s.arena.data(floats)?, s.arena.data(floats)?);
            batches.push(Batch { host: (begin, begin + words), x, y });
            for word in 0..words {
                host.set(begin + word, pair(input(2 * word), input(2 * word + 1)));
            }
        }
        let queues = (0..QUEUES).map(|_| s.cuda.stream()).collect::<Result<_, CudaError>>()?;
        let events = (0..ways::EVENTS).map(|_| s.cuda.event()).collect::<Result<_, CudaError>>()?;
        let whole = s.one_each(s.kernels.overlap, THREADS, 0)?;
        let quarter = Grid { blocks: (whole.blocks / 4).max(1), shared: 0, ..whole };
        Ok(Space { host, batches, queues, events, whole, quarter, turns: TRIAL })
    }

    fn give_back(self, s: &Session<'_>) -> Try<()> {
        for queue in self.queues {
            s.cuda.destroy_stream(queue)?;
        }
        for event in self.events {
            s.cuda.destroy_event(event)?;
        }
        Ok(s.cuda.unpin(self.host)?)
    }

    fn args(&self, batch: &Batch) -> OverlapArgs {
        let count = batch.x.count as u64;
        OverlapArgs { x: batch.x.address, y: batch.y.address, count, turns: self.turns, reserved: 0 }
    }

    /// Writes over all outputs on the host.
    fn forget(&self) {
        for batch in &self.batches {
            (0..batch.x.count / 2).for_each(|word| self.host.set(batch.host.1 + word, u64::MAX));
        }
    }

    /// Compares all outputs on the host.
    fn verify(&self) -> Wrong {
        let expected: Vec<f32> = (0..INPUTS).map(|at| reference::overlap(input(at), self.turns)).collect();
        let mut wrong = Wrong::default();
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

//! Measurement shared by `hbm_read` and `l2`: the speed at which memory is read, and the sum of the words.

use super::*;
use crate::abi::{READ_SHARED_BYTES, READ_THREADS, ReadArgs};

/// Minimum number of passes to measure, and maximum number of launches to reach it.
const PASSES: u32 = 16;
const LEAST_LAUNCHES: u32 = 5;
const MOST_LAUNCHES: u32 = 8;
/// Maximum number of launches, including those repeated after a wrong sum.
const ALL_LAUNCHES: u32 = 12;

/// Reads this many bytes, or as many as the arena has left.
pub fn measure(s: &mut Session<'_>, kernel: &str, bytes: u64, passes: u32) -> Try<Option<CheckResult>> {
    let grid = Grid { blocks: s.multiprocessors(), threads: READ_THREADS, shared: READ_SHARED_BYTES };
    let stamps = s.arena.results::<SmStamp>(grid.blocks as usize)?;
    let sums = s.arena.results::<u64>(grid.blocks as usize)?;
    // The arena is read in whole words of 16 bytes.
    let words = (bytes.min(s.arena.left()) & !0x1ff) / 8;
    let data = s.arena.data::<u64>(words as usize)?;
    let kernel = s.kernel(kernel)?;
    let seed = stats::seed(s.request.seed, 3);
    // With an odd step, no two words of the buffer are equal.
    let (a, b) = (seed, stats::seed(seed, 4) | 1);
    s.fill(data, Pattern::Arithmetic, (a, b))?;
    let expected = reference::arithmetic_sum(a, b, data.count as u64, passes);
    let args = ReadArgs {
        data: data.address,
        words: data.count as u64 / 2,
        stamps: stamps.address,
        sums: sums.address,
        passes,
        reserved: 0,
    };
    let (mut tally, mut seconds, mut clocks) = (Mismatches::default(), Vec::new(), Vec::new());
    for launch in 1..=ALL_LAUNCHES {
        let read = s.stamped(kernel, grid, &args, stamps)?;
        let got = s.cuda.copy_out(sums)?.into_iter().fold(0u64, u64::wrapping_add);
        seconds.push(stats::span(&read) / f64::from(passes));
        clocks.push(stats::clock(&read));
        let mut wrong = WrongResults::default();
        if got != expected {
            wrong.add(Mismatch { unit: "sum".to_owned(), expected, got, ..Mismatch::default() });
        }
        tally.add(data.count as u64, wrong);
        let enough = launch >= LEAST_LAUNCHES && (launch * passes >= PASSES || launch >= MOST_LAUNCHES);
        if enough && !tally.wants_more() {
            break;
        }
    }
    let found =
        CheckFigures::Read { bytes: data.bytes(), seconds, sm_clock_hertz: stats::median_or_zero(&clocks) };
    Ok(Some((found, tally)))
}

/// Returns the median time of a pass and the resulting bytes per second.
pub fn speed(bytes: u64, times: &[f64]) -> Option<(f64, f64)> {
    let time = stats::median(times.iter().copied())?;
    let speed = bytes as f64 / time;
    (speed.is_finite() && speed > 0.0).then_some((time, speed))
}

pub fn no_time() -> Sample {
    Sample::discarded(CanaryVerdict::Skipped, "no time was measured".into())
}

/// Returns the remaining sample if a low clock prevents any conclusion about the memory.
pub fn unless_by_clock(clock: &Clock, sample: &Sample) -> Option<Sample> {
    let what = match clock {
        Clock::Fine => return None,
        Clock::Unramped => "had not risen from idle",
        Clock::Chosen(_) => "was low by choice",
        Clock::Low(..) => "was low",
    };
    let text = vec![format!("not judged: the clock of the multiprocessors {what}")];
    Some(Sample { verdict: CanaryVerdict::Skipped, figures: Vec::new(), text, ..sample.clone() })
}

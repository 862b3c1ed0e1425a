//! `hbm_read` and `l2`: how fast device memory and the L2 cache are read, and whether the sum is right.

use super::Finding;
use crate::abi::{Pattern, READ_SHARED_BYTES, READ_THREADS, ReadArgs, SmStamp};
use crate::child::cuda::{Function, Grid, Slice};
use crate::child::device;
use crate::child::errors::Try;
use crate::child::figures;
use crate::child::session::Session;
use crate::child::tally::{Tally, Wrong};
use crate::reference;
use crate::report::{Found, Mismatch};

/// How long a launch may take.
const LAUNCH: f64 = 4e-3;
/// Passes over device memory in a launch, and over L2.
const HBM_PASSES: u32 = 8;
const L2_PASSES: u32 = 64;
/// Passes that are measured at least, and launches that are made at most for it.
const PASSES: u32 = 16;
const LEAST_LAUNCHES: u32 = 5;
const MOST_LAUNCHES: u32 = 8;
/// Most launches, with those made again after a wrong sum.
const ALL_LAUNCHES: u32 = 12;

/// Device memory: all that may be used.
pub fn hbm_read(s: &mut Session<'_>) -> Try<Finding> {
    let passes = figures::passes(s.arena.left(), device::memory_rate(&s.device), LAUNCH, HBM_PASSES);
    let space = Space::new(s, u64::MAX)?;
    measure(s, s.kernels.hbm_read, &space, passes)
}

/// A quarter of the L2 cache. `None` if its size is not known.
pub fn l2(s: &mut Session<'_>) -> Try<Option<Finding>> {
    let quarter = s.device.l2_bytes / 4;
    if quarter < 1 << 16 {
        return Ok(None);
    }
    let space = Space::new(s, quarter)?;
    measure(s, s.kernels.l2, &space, L2_PASSES).map(Some)
}

/// Where it is read, and where the results go.
struct Space {
    grid: Grid,
    stamps: Slice<SmStamp>,
    sums: Slice<u64>,
    data: Slice<u64>,
}

impl Space {
    /// With this much to read, or all that is left.
    fn new(s: &mut Session<'_>, bytes: u64) -> Try<Space> {
        let grid = Grid { blocks: s.multiprocessors(), threads: READ_THREADS, shared: READ_SHARED_BYTES };
        let stamps = s.arena.results(grid.blocks as usize)?;
        let sums = s.arena.results(grid.blocks as usize)?;
        // Whole words of 16 bytes.
        let words = (bytes.min(s.arena.left()) & !0x1ff) / 8;
        let data = s.arena.data(words as usize)?;
        Ok(Space { grid, stamps, sums, data })
    }
}

fn measure(s: &mut Session<'_>, kernel: Function, space: &Space, passes: u32) -> Try<Finding> {
    let Space { grid, stamps, sums, data } = *space;
    let seed = figures::seed(s.order.seed, 3);
    // An odd step: no two words of the buffer are the same.
    let (a, b) = (seed, figures::seed(seed, 4) | 1);
    s.fill(data, Pattern::Arithmetic, a, b)?;
    let expected = reference::arithmetic_sum(a, b, data.count as u64, passes);
    let args = ReadArgs {
        data: data.address,
        words: data.count as u64 / 2,
        stamps: stamps.address,
        sums: sums.address,
        passes,
        reserved: 0,
    };
    let (mut tally, mut seconds, mut clocks) = (Tally::default(), Vec::new(), Vec::new());
    for launch in 1..=ALL_LAUNCHES {
        let told = s.stamped(kernel, grid, &args, stamps)?;
        let got = s.cuda.copy_out(sums)?.into_iter().fold(0u64, u64::wrapping_add);
        seconds.push(figures::span(&told) / f64::from(passes));
        clocks.push(figures::clock(&told));
        tally.add(data.count as u64, compare(expected, got));
        let enough = launch >= LEAST_LAUNCHES && (launch * passes >= PASSES || launch >= MOST_LAUNCHES);
        if enough && !tally.wants_more() {
            break;
        }
    }
    let found = Found::Read { bytes: data.bytes(), seconds, sm_clock_hertz: figures::median(&clocks) };
    Ok(Finding { found, mismatches: tally.told() })
}

fn compare(expected: u64, got: u64) -> Wrong {
    let mut wrong = Wrong::default();
    if got != expected {
        wrong.add(Mismatch { unit: "sum".to_owned(), expected, got, ..Mismatch::default() });
    }
    wrong
}

//! `sm_rate` and `tensor`: work of every multiprocessor in a cycle, and its true clock.

use std::time::Duration;

use super::Finding;
use crate::abi::{
    BadLanes, SM_RATE_CHAIN_FMA, SM_RATE_CHAINS, SM_RATE_THREADS, SmRateArgs, SmStamp, TENSOR_SHARED_BYTES,
    TensorArgs,
};
use crate::child::cuda::{Function, Grid, Slice};
use crate::child::errors::{Ended, Try};
use crate::child::figures::{self, Rates};
use crate::child::session::Session;
use crate::child::tally::Tally;
use crate::reference;
use crate::report::Found;
use model::clock::Mono;

/// How long a launch takes at the highest clock: long against the step of the GPU's nanosecond clock (1 us on
/// some), short for whoever waits for the GPU.
const LAUNCH: f64 = 2.5e-3;
/// Launches that are measured.
const LAUNCHES: u32 = 3;
/// Most launches, if some multiprocessor is not met.
const MOST_LAUNCHES: u32 = 8;
/// Half-precision FMA a cycle where the architecture's figure is not known, for the length of a launch only: the
/// most of any. The warm-up tells what it is really.
const SOME_TENSOR_FMA: f64 = 4096.0;
/// How long clocks are given to rise from idle, and the pause between two looks at them.
const RISING: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(5);

/// One of the two.
struct Kind<'a, A> {
    kernel: Function,
    grid: Grid,
    unit: &'a str,
    /// FMA of a block in a turn.
    work: f64,
    /// FMA that a multiprocessor should do in a cycle.
    rate: f64,
    /// Most turns of which the result is known.
    most: u32,
    args: &'a dyn Fn(u32, Slice<SmStamp>, Slice<BadLanes>) -> A,
}

/// FP32 units.
pub fn sm_rate(s: &mut Session<'_>) -> Try<Finding> {
    let seed = figures::seed(s.order.seed, 1) as u32;
    let work = f64::from(SM_RATE_CHAINS) * f64::from(SM_RATE_CHAIN_FMA) * f64::from(SM_RATE_THREADS);
    let kernel = s.kernels.sm_rate;
    let kind = Kind {
        kernel,
        grid: s.one_each(kernel, SM_RATE_THREADS, 0)?,
        unit: "fp32",
        work,
        rate: s.device.fp32_lanes.into(),
        most: u32::MAX,
        args: &|turns, stamps, bad| SmRateArgs {
            stamps: stamps.address,
            bad: bad.address,
            turns,
            seed,
            expected: reference::sm_rate(seed, turns),
        },
    };
    measure(s, &kind)
}

/// Tensor cores.
pub fn tensor(s: &mut Session<'_>) -> Try<Finding> {
    let shape = s.kernels.tensor_shape;
    let seed = figures::seed(s.order.seed, 2);
    let (a, b) = ((seed % 3) as u32 + 1, (seed / 3 % 3) as u32 + 1);
    let kernel = s.kernels.tensor;
    let rate = match s.device.tensor_fma {
        0 => SOME_TENSOR_FMA,
        known => known.into(),
    };
    let kind = Kind {
        kernel,
        grid: s.one_each(kernel, shape.threads, TENSOR_SHARED_BYTES)?,
        unit: "tensor",
        work: reference::tensor_fma(&shape) as f64,
        rate,
        most: reference::tensor_turns_at_most(&shape, a, b),
        args: &|turns, stamps, bad| TensorArgs {
            stamps: stamps.address,
            bad: bad.address,
            turns,
            a,
            b,
            reserved: 0,
        },
    };
    measure(s, &kind)
}

/// Launches until every multiprocessor was met and every launch is counted. The first warm up, and tell how
/// long the others are to be: a GPU that is held back takes as long as one that is not.
fn measure<A: Copy>(s: &mut Session<'_>, kind: &Kind<'_, A>) -> Try<Finding> {
    let stamps = s.arena.results::<SmStamp>(kind.grid.blocks as usize)?;
    let bad = s.arena.results::<BadLanes>(1)?;
    let compared = u64::from(kind.grid.blocks) * u64::from(kind.grid.threads);
    let mut tally = Tally::default();
    let mut launch = |s: &mut Session<'_>, turns: u32| {
        s.cuda.zero(bad)?;
        let told = s.stamped(kind.kernel, kind.grid, &(kind.args)(turns, stamps, bad), stamps)?;
        tally.add(compared, s.bad_lanes(bad, kind.unit)?);
        Ok::<_, Ended>((told, tally.wants_more()))
    };

    let most = figures::turns(LAUNCH, s.shape.clock_hertz, kind.rate, kind.work, kind.most);
    let warm_up = (most / 4).max(1);
    let (mut warm, mut wrong) = launch(s, warm_up)?;
    let began = Mono::now();
    while !wrong && s.rising && !figures::has_risen(figures::clock(&warm), s.shape.clock_hertz) {
        // Held down, or never reached by this part: it is measured as it is, and not waited for again.
        s.rising = Mono::now().since(began) < RISING;
        s.poll.wait(PAUSE)?;
        (warm, wrong) = launch(s, warm_up)?;
    }
    let turns = figures::scaled(most, warm_up, figures::span(&warm), LAUNCH);
    let mut rates = Rates::default();
    for made in 1..=MOST_LAUNCHES {
        let (told, again) = launch(s, turns)?;
        rates.add(kind.work * f64::from(turns), &told);
        let covered = rates.covered() >= s.multiprocessors() as usize;
        if made >= LAUNCHES && covered && !again {
            break;
        }
    }
    Ok(Finding { found: Found::Sms(rates.sms()), mismatches: tally.told() })
}

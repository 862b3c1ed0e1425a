//! `launch`: how long it takes from asking for an empty kernel until its end is seen.

use std::time::Duration;

use super::Finding;
use crate::abi::LaunchArgs;
use crate::child::cuda::{Grid, Stream};
use crate::child::errors::{CudaError, Try};
use crate::child::session::Session;
use crate::report::{Found, Mismatches};
use model::clock::Mono;

/// Launches that are measured.
const LAUNCHES: usize = 200;
/// How long the end is looked for without sleep: a sleeper's waking would be most of the time. Some
/// milliseconds in all.
const AWAKE: Duration = Duration::from_millis(2);

/// Launches them.
pub fn launch(s: &mut Session<'_>) -> Try<Finding> {
    let mut seconds = Vec::with_capacity(LAUNCHES);
    for _ in 0..LAUNCHES {
        let took = one(s)?;
        s.spend(took, took);
        seconds.push(took);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(Finding { found: Found::Launched(seconds), mismatches: Mismatches::default() })
}

/// One launch, seconds.
pub fn one(s: &Session<'_>) -> Try<f64> {
    s.poll.go_on()?;
    let grid = Grid { blocks: 1, threads: 32, shared: 0 };
    s.poll.watch.working(true);
    let began = Mono::now();
    let done = s
        .cuda
        .launch(s.kernels.launch, grid, &s.stream, &LaunchArgs::default())
        .and_then(|()| end(s, &s.stream, began));
    let took = Mono::now().since(began).as_secs_f64();
    s.poll.watch.working(false);
    done?;
    Ok(took)
}

/// Waits for the end of what is queued: awake at first, then asleep.
pub fn end(s: &Session<'_>, stream: &Stream, began: Mono) -> Result<(), CudaError> {
    while !s.cuda.idle(stream)? {
        if Mono::now().since(began) > AWAKE {
            return s.cuda.wait(stream);
        }
    }
    Ok(())
}

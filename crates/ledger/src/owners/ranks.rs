//! Comparison of the GPUs of one owner: which rank the others wait for, and whether all have stalled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::bottleneck::{Pace, WINDOW};
use model::clock::Mono;

/// Share of `owners.wedged_after` after which a rank is missing. One resting GPU among waiting ones is stronger
/// evidence than waiting without it.
const SOONER: f64 = 0.6;
/// Share of the multiprocessors that a GPU leaves idle while it waits in a collective (see `classes`).
const WAITS: f64 = 0.82;
/// Minimum difference in multiprocessor activity. Ranks with equal work differ by at most 0.027 (H200, matrix
/// products and all-reduce). 6 % more work made 0.046.
const SLOW: f64 = 0.03;
/// Time after which a slow rank is named.
const STEADY: Duration = Duration::from_secs(10);
/// Relative difference within which ranks of one job have the same step,
const LOCKSTEP: f64 = 0.03;
/// and the largest multiple as which one step may be found.
const MOST_STEPS: f64 = 3.0;

/// Current state of one GPU of an owner.
#[derive(Clone, Copy)]
pub(crate) struct OwnerGpu {
    pub gpu: u32,
    pub pace: Option<Pace>,
    /// Whether its processes are known to work.
    pub of_work: bool,
    /// Twice the longest wait that ended with work.
    pub longer_than_waits: Duration,
    /// Activity of its multiprocessors.
    pub sm: Option<f64>,
    /// Seconds of its step, or of the last one before the work halted.
    pub step: Option<f64>,
    /// Whether steps are found now.
    pub beats: bool,
    /// Whether it has been idle for so long that work with its step has stalled; `false` if unknown.
    pub still: bool,
}

/// Findings about an owner's GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RanksFound {
    /// GPUs that rest while the others wait, if the owner is wedged.
    pub missing: Option<Vec<u32>>,
    /// Whether all GPUs had a step and are idle now.
    pub stalled: bool,
    /// GPU that waits least, and the difference to the others as a share of the time.
    pub slow: Option<(u32, f64)>,
}

/// Findings of the previous calls.
#[derive(Default)]
struct Before {
    /// Time since which ranks wait for one that rests.
    wait: Option<Mono>,
    /// Rank that waits least, and since when.
    slow: Option<(u32, Mono)>,
}

/// Owners of whole GPUs.
#[derive(Default)]
pub(crate) struct Ranks(BTreeMap<Arc<str>, Before>);

impl Ranks {
    /// Compares the current GPUs of each owner.
    pub fn follow(
        &mut self,
        owners: &BTreeMap<Arc<str>, Vec<OwnerGpu>>,
        wedged_after: Duration,
        now: Mono,
    ) -> BTreeMap<Arc<str>, RanksFound> {
        self.0.retain(|owner, _| owners.contains_key(owner));
        let found = owners.iter().map(|(owner, ranks)| {
            let before = self.0.entry(Arc::clone(owner)).or_default();
            let found = RanksFound {
                missing: before.missing(ranks, wedged_after, now),
                stalled: ranks.iter().all(|rank| rank.still),
                slow: before.slow(ranks, now),
            };
            (Arc::clone(owner), found)
        });
        found.collect()
    }
}

impl Before {
    fn missing(&mut self, ranks: &[OwnerGpu], wedged_after: Duration, now: Mono) -> Option<Vec<u32>> {
        let does = |pace: Pace| ranks.iter().filter(move |rank| rank.pace == Some(pace));
        let (waits, rests) = (does(Pace::Waits).count(), does(Pace::Rests).count());
        // GPUs without a common step may do the work of several jobs.
        let one_job = in_step(ranks) && ranks.iter().all(|rank| rank.of_work);
        let halted = waits + rests == ranks.len() && one_job;
        if !halted || waits == 0 || rests == 0 {
            self.wait = None;
            return None;
        }
        let since = *self.wait.get_or_insert(now);
        let longest = ranks.iter().map(|rank| rank.longer_than_waits).max().unwrap_or_default();
        // The evidence describes the time before.
        let lasts = now.since(since) + WINDOW;
        let wedged = lasts >= wedged_after.mul_f64(SOONER).max(longest);
        wedged.then(|| does(Pace::Rests).map(|rank| rank.gpu).collect())
    }

    fn slow(&mut self, ranks: &[OwnerGpu], now: Mono) -> Option<(u32, f64)> {
        let found = waits_least(ranks);
        let since = match (self.slow, found) {
            (Some((gpu, since)), Some((other, _))) if gpu == other => since,
            _ => now,
        };
        self.slow = found.map(|(gpu, _)| (gpu, since));
        found.filter(|_| now.since(since) >= STEADY)
    }
}

/// Returns true if all ranks have the same step.
fn in_step(ranks: &[OwnerGpu]) -> bool {
    let shortest = ranks.iter().filter_map(|rank| rank.step).fold(f64::INFINITY, f64::min);
    let fits = |step: f64| {
        let multiple = (step / shortest).round();
        multiple <= MOST_STEPS && (step / shortest / multiple - 1.0).abs() <= LOCKSTEP
    };
    ranks.iter().all(|rank| rank.step.is_some_and(fits))
}

/// Returns the rank that waits least if all run in step, and the difference to the next rank as a share of the time.
fn waits_least(ranks: &[OwnerGpu]) -> Option<(u32, f64)> {
    let moves = |rank: &OwnerGpu| rank.beats && rank.pace == Some(Pace::Moves);
    if !in_step(ranks) || !ranks.iter().all(moves) {
        return None;
    }
    let active: Option<Vec<(u32, f64)>> = ranks.iter().map(|rank| Some((rank.gpu, rank.sm?))).collect();
    let mut active = active?;
    active.sort_by(|a, b| b.1.total_cmp(&a.1));
    let [(gpu, most), (_, next), ..] = active.as_slice() else { return None };
    (most - next > SLOW).then(|| (*gpu, ((most - next) / WAITS).min(1.0)))
}

#[cfg(test)]
mod tests;

//! The GPUs of one owner beside each other: which of them the others wait for, and whether all have stalled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::bottleneck::{Pace, WINDOW};
use model::clock::Mono;

/// A rank is missing after this part of `owners.wedged_after`: that one GPU rests while others wait is more evidence than
/// a wait alone.
const SOONER: f64 = 0.6;
/// Share of the multiprocessors that a GPU leaves idle while it waits in a collective (see `classes`).
const WAITS: f64 = 0.82;
/// Ranks that do the same differ by 0.027 at most in the activity of their multiprocessors (H200, matrix products and
/// all-reduce); 6 % more work made 0.046.
const SLOW: f64 = 0.03;
/// A slow rank is named after this time.
const STEADY: Duration = Duration::from_secs(10);
/// Ranks of one job have the same step; measured, they differ by less than this share,
const LOCKSTEP: f64 = 0.03;
/// or one is found as a multiple of the other, up to this.
const MOST_STEPS: f64 = 3.0;

/// One GPU of an owner now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnerGpu {
    /// NVML index.
    pub gpu: u32,
    pub pace: Option<Pace>,
    /// Whether its processes are known to work.
    pub of_work: bool,
    /// A wait that ends with work has been half so long.
    pub longer_than_waits: Duration,
    /// Activity of its multiprocessors.
    pub sm: Option<f64>,
    /// Seconds of its step, or of the last one before the work came to a halt.
    pub step: Option<f64>,
    /// Whether steps come now.
    pub beats: bool,
    /// Whether it has done nothing for so long that work with its step has stalled; `false`: not known to.
    pub still: bool,
}

/// What is found of an owner's GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RanksFound {
    /// GPUs that rest while the others wait, if the owner is wedged over its GPUs.
    pub missing: Option<Vec<u32>>,
    /// Whether all of them had a step and do nothing now.
    pub stalled: bool,
    /// The GPU that waits least, and by what share of the time less than the others.
    pub slow: Option<(u32, f64)>,
}

/// What was found before.
#[derive(Debug, Default)]
struct Before {
    /// Since when ranks wait for one that rests.
    wait: Option<Mono>,
    /// The rank that waits least, and since when.
    slow: Option<(u32, Mono)>,
}

/// All owners of whole GPUs.
#[derive(Debug, Default)]
pub(crate) struct Ranks(BTreeMap<Arc<str>, Before>);

impl Ranks {
    /// Takes in the GPUs that each owner has now.
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
        // What has no common step may be the work of several jobs.
        let one_job = in_step(ranks) && ranks.iter().all(|rank| rank.of_work);
        let halted = waits + rests == ranks.len() && one_job;
        if !halted || waits == 0 || rests == 0 {
            self.wait = None;
            return None;
        }
        let since = *self.wait.get_or_insert(now);
        let longest = ranks.iter().map(|rank| rank.longer_than_waits).max().unwrap_or_default();
        // The evidence was of the time before.
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

/// Whether all have the same step.
fn in_step(ranks: &[OwnerGpu]) -> bool {
    let shortest = ranks.iter().filter_map(|rank| rank.step).fold(f64::INFINITY, f64::min);
    let fits = |step: f64| {
        let multiple = (step / shortest).round();
        multiple <= MOST_STEPS && (step / shortest / multiple - 1.0).abs() <= LOCKSTEP
    };
    ranks.iter().all(|rank| rank.step.is_some_and(fits))
}

/// The rank that waits least, if all go in step, and by what share of the time less than the one that waits least of the
/// others.
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

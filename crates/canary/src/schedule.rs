//! Determines when and where the canary is due. The module is pure and uses the times that its caller passes. The
//! caller ensures that only one GPU per node is tested at a time. This module handles everything else: the interval and
//! its jitter, the distribution over GPUs, runs soon after a job, repetitions after a low sample, growing pauses while
//! runs are inconclusive, rotation over instances, and the budget of GPU time.

mod budget;
pub mod rng;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use budget::Budget;
use model::canary::{Outcome, Place};
use model::catalog::{CanaryEnd, CanaryMode, CanarySkip, CanaryVerdict, Gpu};
use model::clock::Mono;
use rng::Rng;

/// Time after which a refused run is considered again.
pub const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Time after the end of a job before the run in mode `after_job`.
pub const AFTER_JOB: Duration = Duration::from_secs(5);
/// Minimum time to a repetition, unless the interval itself is shorter.
const SOONEST: Duration = Duration::from_secs(180);
/// Maximum random shift of a run, as a share of the interval.
const JITTER: f64 = 0.2;
/// Maximum pause, in intervals.
const MOST_PAUSE: u32 = 4;
/// Number of consecutive low runs that bring the next run forward. After these repetitions the judge has four samples,
/// enough to confirm that three of the last four are low.
const REPEATS: u32 = 3;

/// Frequency and limits of the runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleSettings {
    pub mode: CanaryMode,
    /// Time between two runs on one GPU.
    pub interval: Duration,
    /// Time for which the GPU must have been idle.
    pub idle_for: Duration,
    /// Maximum share of a GPU's time.
    pub duty: f64,
}

impl ScheduleSettings {
    /// Returns the time until a repetition.
    fn soon(&self) -> Duration {
        (self.interval / 6).max(SOONEST).min(self.interval)
    }
}

/// A run that may be made now if the gate permits.
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    /// Candidate places in the order of rotation. The list is empty in MIG mode without an instance.
    pub places: Vec<Place>,
    pub gpu: Gpu,
    /// Time for which the GPU must have been idle.
    pub idle_for: Duration,
}

/// Plan of all GPUs.
#[derive(Debug)]
pub struct CanarySchedule {
    settings: ScheduleSettings,
    rng: Rng,
    plans: BTreeMap<Gpu, GpuPlan>,
}

/// Plan of one GPU.
#[derive(Debug, Default)]
struct GpuPlan {
    due: Mono,
    /// Time before which a refused run is not attempted again.
    retry_at: Mono,
    places: Vec<Place>,
    /// Times of the last runs by place.
    turns: BTreeMap<Place, Mono>,
    last_run: Option<Mono>,
    /// Number of consecutive inconclusive runs.
    inconclusive_runs: u32,
    /// Number of consecutive runs with a low sample.
    low_runs: u32,
    refused: Option<Refused>,
    /// Places that were busy at the last update.
    working: BTreeSet<Place>,
    /// A place whose job has ended, and the time at which a run is due for that reason.
    job_left: Option<(Place, Mono)>,
    budget: Budget,
}

/// Refusals of a run that is due.
#[derive(Debug)]
struct Refused {
    counted: BTreeSet<CanarySkip>,
    /// Time at which the reasons are counted again.
    until: Mono,
    rounds: u32,
}

impl CanarySchedule {
    /// Creates an empty plan. `seed` determines all random numbers.
    pub fn new(settings: ScheduleSettings, seed: u64) -> CanarySchedule {
        CanarySchedule { settings, rng: Rng::new(seed), plans: BTreeMap::new() }
    }

    /// Applies other settings. If a GPU's first run would be earlier with them, its next run moves to that time.
    pub fn configure(&mut self, settings: ScheduleSettings, now: Mono) {
        self.settings = settings;
        let gpus: Vec<Gpu> = self.plans.keys().cloned().collect();
        let first: Vec<Mono> =
            gpus.iter().map(|gpu| now + settings.interval / 4 + self.spread(gpu)).collect();
        for (plan, first) in self.plans.values_mut().zip(first) {
            plan.due = plan.due.min(first);
            plan.budget.allow(settings.duty, settings.interval, now);
        }
    }

    /// Sets the GPUs and their places. The first run of a new GPU is due after a quarter of the interval plus the GPU's
    /// share of the spread. Missing GPUs are dropped.
    pub fn devices(&mut self, now: Mono, devices: &BTreeMap<Gpu, Vec<Place>>) {
        self.plans.retain(|gpu, _| devices.contains_key(gpu));
        for (gpu, places) in devices {
            let first = now + self.settings.interval / 4 + self.spread(gpu);
            let budget = Budget::new(self.settings.duty, self.settings.interval, now);
            let plan = self.plans.entry(gpu.clone());
            let plan = plan.or_insert_with(|| GpuPlan { due: first, budget, ..GpuPlan::default() });
            plan.turns.retain(|place, _| places.contains(place));
            plan.working.retain(|place| places.contains(place));
            plan.job_left.take_if(|(place, _)| !places.contains(place));
            plan.places.clone_from(places);
        }
    }

    /// Returns the offset of a GPU's first run within the interval. The offset depends on the GPU's index, so that any
    /// number of GPUs is spread evenly (fractional parts of multiples of the golden ratio), with a small random part.
    fn spread(&mut self, gpu: &Gpu) -> Duration {
        const GOLDEN: f64 = 0.618_033_988_749_895;
        let share = (f64::from(gpu.gpu) * GOLDEN).fract();
        self.settings.interval.mul_f64(0.9 * share + 0.1 * self.rng.unit())
    }

    /// Records if a place is busy. In mode `after_job`, a run is due soon after the place becomes idle.
    pub fn working(&mut self, now: Mono, place: &Place, works: bool) {
        let after_job = self.settings.mode == CanaryMode::AfterJob;
        let gap = self.settings.interval / 6;
        let Some(plan) = self.plans.get_mut(&place.gpu) else { return };
        if works {
            plan.job_left.take_if(|(left, _)| left == place);
            plan.working.insert(place.clone());
        } else if plan.working.remove(place) && after_job {
            let soonest = plan.last_run.map_or(now, |last| last + gap);
            plan.job_left = Some((place.clone(), soonest.max(now + AFTER_JOB)));
        }
    }

    /// Returns the time at which the next run on this GPU is due.
    pub fn next_due(&self, gpu: &Gpu) -> Option<Mono> {
        let plan = self.plans.get(gpu)?;
        self.scheduled().then(|| plan.job_left.as_ref().map_or(plan.due, |(_, at)| plan.due.min(*at)))
    }

    fn scheduled(&self) -> bool {
        matches!(self.settings.mode, CanaryMode::Idle | CanaryMode::AfterJob)
    }

    /// Returns the runs that are due and may be attempted now, the longest overdue first.
    pub fn due(&self, now: Mono) -> Vec<Due> {
        if !self.scheduled() {
            return Vec::new();
        }
        let mut due: Vec<(Mono, Due)> = Vec::new();
        for (gpu, plan) in self.plans.iter().filter(|(_, plan)| plan.retry_at <= now) {
            // The place of a job that just ended comes first, because the GPU is still warm.
            let after_job = plan.job_left.as_ref().filter(|(_, at)| *at <= now);
            let (since, places, idle_for) = match after_job {
                Some((place, at)) => (*at, vec![place.clone()], AFTER_JOB.min(self.settings.idle_for)),
                None if plan.due <= now => (plan.due, plan.by_turns(), self.settings.idle_for),
                None => continue,
            };
            due.push((since, Due { gpu: gpu.clone(), places, idle_for }));
        }
        due.sort_by_key(|(since, _)| *since);
        due.into_iter().map(|(_, due)| due).collect()
    }

    /// Returns the time until the GPU's budget allows a run, or `None` if it does now.
    pub fn budget_wait(&self, gpu: &Gpu, now: Mono) -> Option<Duration> {
        self.plans.get(gpu)?.budget.wait(now)
    }

    /// Records that a due run was refused. Returns true if the refusal counts. A reason counts once per due time, and
    /// again after a pause if it persists.
    pub fn refused(&mut self, now: Mono, gpu: &Gpu, reason: CanarySkip) -> bool {
        let interval = self.settings.interval;
        let Some(plan) = self.plans.get_mut(gpu) else { return false };
        let again = if plan.job_left.is_some() { LOOK_AGAIN / 10 } else { LOOK_AGAIN };
        plan.retry_at = now + again.min(interval / 4);
        let round = |rounds| now + interval * pause(rounds);
        let refused = plan.refused.get_or_insert_with(|| Refused {
            counted: BTreeSet::new(),
            until: round(0),
            rounds: 0,
        });
        if now >= refused.until {
            refused.rounds += 1;
            refused.until = round(refused.rounds);
            refused.counted.clear();
        }
        refused.counted.insert(reason)
    }

    pub fn began(&mut self, now: Mono, place: &Place) {
        let Some(plan) = self.plans.get_mut(&place.gpu) else { return };
        plan.turns.insert(place.clone(), now);
        plan.last_run = Some(now);
        plan.refused = None;
        plan.job_left = None;
    }

    /// Records the end of a run and schedules the next one.
    pub fn ended(&mut self, now: Mono, outcome: &Outcome) {
        let settings = self.settings;
        let jitter = 1.0 - JITTER + 2.0 * JITTER * self.rng.unit();
        let Some(plan) = self.plans.get_mut(&outcome.place.gpu) else { return };
        plan.budget.spend(outcome.gpu_seconds, now);
        let samples = || outcome.checks.iter().map(|judged| judged.sample);
        let wait = match outcome.end {
            CanaryEnd::Finished if samples().any(is_low) => {
                plan.inconclusive_runs = 0;
                plan.low_runs = plan.low_runs.saturating_add(1);
                if plan.low_runs <= REPEATS { settings.soon() } else { settings.interval }
            }
            // The process that interrupted the run keeps the gate closed while it exists.
            CanaryEnd::Abandoned => settings.soon(),
            CanaryEnd::Finished if samples().any(|sample| sample == CanaryVerdict::Contended) => {
                settings.soon()
            }
            CanaryEnd::Finished => {
                (plan.inconclusive_runs, plan.low_runs) = (0, 0);
                settings.interval
            }
            end => {
                plan.inconclusive_runs = plan.inconclusive_runs.saturating_add(1);
                match (plan.inconclusive_runs, end) {
                    // After a fault, the run is repeated once soon, in a new process, and then at growing intervals.
                    (1, CanaryEnd::DriverFault) => settings.soon(),
                    (more, CanaryEnd::DriverFault) => settings.interval * pause(more - 2),
                    (runs, _) => settings.interval * pause(runs),
                }
            }
        };
        plan.due = now + wait.mul_f64(jitter);
        plan.retry_at = now;
    }
}

impl GpuPlan {
    /// Returns the places, starting with the one that has waited longest.
    fn by_turns(&self) -> Vec<Place> {
        let mut places = self.places.clone();
        places.sort_by_key(|place| self.turns.get(place).copied().unwrap_or_default());
        places
    }
}

/// Returns the length of a pause in intervals, after `times` earlier pauses.
fn pause(times: u32) -> u32 {
    1u32.checked_shl(times).unwrap_or(MOST_PAUSE).min(MOST_PAUSE)
}

/// Returns true if a sample should be repeated soon.
fn is_low(sample: CanaryVerdict) -> bool {
    use CanaryVerdict::*;
    match sample {
        Throttled | UnexplainedClockCap | SlowSm | DegradedMemory | NarrowedLink | Slow | DriverFault => true,
        WrongResultSuspected | WrongResult => true,
        Ok | Contended | Hung | Skipped | CouldNotRun => false,
    }
}

#[cfg(test)]
mod tests;

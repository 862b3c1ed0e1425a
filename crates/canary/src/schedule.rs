//! When the canary is due, and where: pure, driven by the times it is given. One GPU at a time on the node is the
//! caller's part; everything else is here: the interval and its jitter, the spread over the GPUs, runs soon after
//! a job, soon again after a low sample, pauses that grow while nothing can be found out, instances by turns, and
//! the budget of GPU time.

mod budget;
pub mod rng;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use budget::Budget;
use model::canary::{Outcome, Place};
use model::catalog::{CanaryEnd, CanaryMode, CanarySkip, CanaryVerdict, Gpu};
use model::clock::Mono;
use rng::Rng;

/// A refused run is looked at again after this time.
pub const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long after a job the GPU is left alone in mode `after_job`.
pub const AFTER_JOB: Duration = Duration::from_secs(5);
/// Shortest time to a repetition, unless the interval itself is shorter.
const SOONEST: Duration = Duration::from_secs(180);
/// A run is moved by up to this share of the interval.
const JITTER: f64 = 0.2;
/// Pauses grow to at most so many intervals.
const MOST_PAUSE: u32 = 4;
/// So many samples in a row that were low bring the next run forward: then three of the last four are known.
const REPEATS: u32 = 3;

/// How often, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleSettings {
    pub mode: CanaryMode,
    /// Time between two runs on one GPU.
    pub interval: Duration,
    /// How long the GPU must have been without work.
    pub idle_for: Duration,
    /// Largest share of a GPU's time.
    pub duty: f64,
}

impl ScheduleSettings {
    /// Time to a repetition.
    fn soon(&self) -> Duration {
        (self.interval / 6).max(SOONEST).min(self.interval)
    }
}

/// A run that may be made now, if the gate lets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    /// Where: one of these, in the order of their turns. Empty: MIG mode without an instance.
    pub places: Vec<Place>,
    pub gpu: Gpu,
    /// How long it must have been without work.
    pub idle_for: Duration,
}

/// The plan of all GPUs.
#[derive(Debug)]
pub struct CanarySchedule {
    settings: ScheduleSettings,
    rng: Rng,
    plans: BTreeMap<Gpu, GpuPlan>,
}

/// The plan of one GPU.
#[derive(Debug, Default)]
struct GpuPlan {
    due: Mono,
    /// Not tried before: the run was refused just now.
    retry_at: Mono,
    places: Vec<Place>,
    /// When each place had its last run.
    turns: BTreeMap<Place, Mono>,
    last_run: Option<Mono>,
    /// Runs in a row that found out nothing.
    inconclusive_runs: u32,
    /// Runs in a row with a low sample.
    low_runs: u32,
    refused: Option<Refused>,
    /// Places at work when last seen.
    working: BTreeSet<Place>,
    /// A place that a job has left, and when it is due for that.
    job_left: Option<(Place, Mono)>,
    budget: Budget,
}

/// A run that was due and refused.
#[derive(Debug)]
struct Refused {
    counted: BTreeSet<CanarySkip>,
    /// When the reasons are counted again.
    until: Mono,
    rounds: u32,
}

impl CanarySchedule {
    /// A plan for nothing yet. What is random follows from `seed`.
    pub fn new(settings: ScheduleSettings, seed: u64) -> CanarySchedule {
        CanarySchedule { settings, rng: Rng::new(seed), plans: BTreeMap::new() }
    }

    /// Goes by other settings from now on. A GPU that would have its first run sooner by them has its next one then.
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

    /// Which GPUs there are, and where on each a run can be made. New ones are due some time after a quarter of
    /// the interval; those that are gone are forgotten.
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

    /// Where in the first interval a GPU has its turn: by its index, so that any number of them is spread evenly
    /// (multiples of the golden ratio, less their whole part), and a little by chance.
    fn spread(&mut self, gpu: &Gpu) -> Duration {
        const GOLDEN: f64 = 0.618_033_988_749_895;
        let share = (f64::from(gpu.gpu) * GOLDEN).fract();
        self.settings.interval.mul_f64(0.9 * share + 0.1 * self.rng.unit())
    }

    /// Whether a place is at work now. In mode `after_job` a run is due soon after the work has ended.
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

    /// When the next run on this GPU is due.
    pub fn next_due(&self, gpu: &Gpu) -> Option<Mono> {
        let plan = self.plans.get(gpu)?;
        self.scheduled().then(|| plan.job_left.as_ref().map_or(plan.due, |(_, at)| plan.due.min(*at)))
    }

    fn scheduled(&self) -> bool {
        matches!(self.settings.mode, CanaryMode::Idle | CanaryMode::AfterJob)
    }

    /// What is due and may be looked at now, the longest overdue first.
    pub fn due(&self, now: Mono) -> Vec<Due> {
        if !self.scheduled() {
            return Vec::new();
        }
        let mut due: Vec<(Mono, Due)> = Vec::new();
        for (gpu, plan) in self.plans.iter().filter(|(_, plan)| plan.retry_at <= now) {
            // What a job has just left comes first: it is still warm.
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

    /// Until the GPU's budget has something again; `None`: it has.
    pub fn budget_wait(&self, gpu: &Gpu, now: Mono) -> Option<Duration> {
        self.plans.get(gpu)?.budget.wait(now)
    }

    /// A run that was due was refused. Gives whether that counts: each reason once for each due time, and again
    /// as the pause is over, while it lasts.
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

    /// A run has ended: when is the next?
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
            // The process that came keeps the gate shut while it is there.
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
                    // After a fault once more soon, in a process of its own, and then ever less often.
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
    /// The places, the one that has waited longest first.
    fn by_turns(&self) -> Vec<Place> {
        let mut places = self.places.clone();
        places.sort_by_key(|place| self.turns.get(place).copied().unwrap_or_default());
        places
    }
}

/// Intervals to wait after so many pauses.
fn pause(times: u32) -> u32 {
    1u32.checked_shl(times).unwrap_or(MOST_PAUSE).min(MOST_PAUSE)
}

/// Whether a sample is worth a second look soon.
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

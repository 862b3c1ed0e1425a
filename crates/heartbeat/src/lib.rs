//! Finds the step of a job in the power samples of its GPU. Pure: no clock, no driver, no thread.
//!
//! - [`grid`]: samples on a regular time grid
//! - [`correlation`]: autocorrelation of the power
//! - [`search`]: finds a period in the last seconds
//! - [`follow`]: measures a known period again
//! - [`best`]: the owner's best hour
//! - [`thresholds`]: every threshold with its reason
//!
//! [`Heartbeat`] finds a period once, then follows it and counts steps.

#![forbid(unsafe_code)]

mod best;
mod correlation;
mod fold;
mod follow;
mod grid;
mod search;
mod thresholds;

pub use best::Best;

use correlation::flat;
use grid::PowerGrid;
use search::PeriodFound;
use thresholds::*;

/// Follower of the step of one owner on one GPU.
#[derive(Default)]
pub struct Heartbeat {
    grid: PowerGrid,
    /// Period that is followed or was lost recently.
    known: Option<KnownPeriod>,
    /// Results of the last two searches. A period counts once a second search confirms it.
    found: [Option<PeriodFound>; 2],
    searched: Option<f64>,
    /// Consecutive samples that are older than everything in the grid.
    behind: u32,
    /// Start of the current search without a result, in seconds.
    sought: f64,
    /// End of the last GPM window with busy tensor cores, in seconds.
    trained: Option<f64>,
    /// End of the last GPM window with many memory reads per computation, in seconds.
    generated: Option<f64>,
    /// Time up to which steps are counted, in seconds.
    counted: f64,
    steps: f64,
}

#[derive(Clone, Copy)]
struct KnownPeriod {
    found: PeriodFound,
    /// Times at which the period was first and last present, in seconds.
    since: f64,
    seen: f64,
    jitter: Option<f64>,
    beats: u64,
    /// Consecutive searches that did not find the period.
    doubts: u32,
}

/// Activity of a GPU in one GPM window of about 10 s, as shares of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnitActivity {
    pub tensor: f64,
    /// Sum over all pipes of the multiprocessors.
    pub pipes: f64,
    pub dram: f64,
}

/// Period of the owner's work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beat {
    pub seconds: f64,
    /// Share of the power's variance that the period explains, 0 to 1.
    pub confidence: f64,
    /// Standard deviation of the period's length, as a share of the period.
    pub jitter: f64,
    pub kind: PeriodKind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PeriodKind {
    Step,
    /// Smallest unit that repeats: a part of the step, or several steps.
    SmallestUnit,
}

impl Heartbeat {
    /// Adds a power sample: the end of its interval in monotonic seconds, and watts. Samples that repeat or go back
    /// in time and values that no GPU can draw are ignored.
    pub fn sample(&mut self, at: f64, watts: f64) {
        // One such sample is an error, but many mean that the clock went back, which invalidates all recorded times.
        let behind =
            self.grid.newest().is_some_and(|newest| at.is_finite() && newest - at > KEPT as f64 * TICK);
        self.behind = if behind { self.behind + 1 } else { 0 };
        if self.behind >= BEHIND {
            self.interrupt();
        }
        self.grid.push(at, watts);
    }

    /// Adds the activity from `from` to `to`. It confirms or rejects periods, but never is the source of one.
    pub fn witness(&mut self, _from: f64, to: f64, activity: UnitActivity) {
        self.trained = (activity.tensor >= TRAINS).then_some(to);
        let generates = activity.dram >= READS && activity.pipes < INTENSITY * activity.dram;
        self.generated = generates.then_some(to);
    }

    /// Forgets the period and the samples, because other work follows. The number of steps is kept.
    pub fn interrupt(&mut self) {
        *self = Heartbeat { steps: self.steps, ..Heartbeat::default() };
    }

    /// Returns the current period of the work. Called once a second.
    pub fn beat(&mut self, now: f64) -> Option<Beat> {
        let newest = self.grid.newest()?;
        if self.searched.is_none() {
            self.sought = newest;
        }
        if !(now.is_finite() && now - newest < STALE) {
            return None;
        }
        if self.generated.is_some_and(|at| newest - at < WITNESSED) {
            return None;
        }
        let beat = self.follow(newest);
        if beat.is_some() || flat(&self.grid.last(RESTED)) {
            self.sought = newest;
        }
        let settled = match (beat, self.known) {
            (Some(_), Some(known)) => newest - known.since > SETTLED,
            _ => newest - self.sought > SETTLED,
        };
        let every = if settled { AUDIT_EVERY } else { SEARCH_EVERY };
        if self.searched.is_some_and(|searched| (0.0..every).contains(&(newest - searched))) {
            return beat;
        }
        self.search(newest, beat)
    }

    /// Searches for a period, confirms or drops the known one, and follows a period that two searches agree on.
    /// `beat` is the beat of the known period.
    fn search(&mut self, newest: f64, beat: Option<Beat>) -> Option<Beat> {
        self.searched = Some(newest);
        let trains = self.trained.is_some_and(|at| newest - at < WITNESSED);
        let same = |a: f64, b: f64| (a / b - 1.0).abs() < AGREE;
        let watts = self.grid.last(usize::MAX);
        let found = search::search(&watts, trains);
        // A followed period must be found again from time to time, or it was a coincidence.
        if let Some(known) = &mut self.known {
            let again = found.is_some_and(|found| same(found.seconds, known.found.seconds))
                || search::explains(&watts, &known.found);
            known.doubts = if again { 0 } else { known.doubts + 1 };
            if known.doubts > DOUBTS {
                self.known = None;
            }
        }
        let beat = beat.filter(|_| self.known.is_some());
        let [last, older] = self.found;
        self.found = [found, last];
        let Some(found) = found else { return beat };
        let agrees = |before: &PeriodFound| same(found.seconds, before.seconds);
        let Some(before) = last.filter(agrees).or(older.filter(agrees)) else { return beat };
        let kind = if found.kind == before.kind { found.kind } else { PeriodKind::SmallestUnit };
        if let Some(known) = self.known.as_mut().filter(|_| beat.is_some())
            && same(found.seconds, known.found.seconds)
        {
            known.found.kind = kind;
            return beat;
        }
        let (found, since, seen) = (PeriodFound { kind, ..found }, newest, newest);
        self.known = Some(KnownPeriod { found, since, seen, jitter: None, beats: 0, doubts: 0 });
        self.follow(newest)
    }

    /// Measures the known period again, and counts its steps up to the time at which it was certainly present.
    fn follow(&mut self, newest: f64) -> Option<Beat> {
        let known = self.known.as_mut()?;
        let found = &mut known.found;
        let watts = self.grid.last((follow::window(found.seconds) / TICK) as usize);
        let Some(measure) = follow::measure(&watts, found, known.beats % JITTER_EVERY == 0) else {
            if newest - known.seen > REMEMBERED {
                self.known = None;
            }
            return None;
        };
        found.seconds = measure.seconds;
        found.explained += 0.1 * (measure.explained - found.explained);
        let kind = found.kind;
        known.seen = newest;
        known.beats += 1;
        known.jitter = measure.jitter.or(known.jitter);
        let jitter = known.jitter.unwrap_or_default();
        let sure = newest - follow::halt(measure.seconds);
        if (0.0..follow::window(measure.seconds)).contains(&(sure - self.counted)) {
            self.steps += (sure - self.counted) / measure.seconds;
        }
        self.counted = sure.max(self.counted);
        Some(Beat { seconds: measure.seconds, confidence: measure.explained.clamp(0.0, 1.0), jitter, kind })
    }

    /// Returns the steps counted since the start: the time with a known period divided by that period. Never
    /// decreases.
    pub fn steps(&self) -> f64 {
        self.steps
    }
}

//! The step of a job, from the power samples of the GPU that it runs on. Pure: no clock, no driver, no thread.
//!
//! - [`grid`]: samples on an even grid · [`correlation`]: how alike the power is some time later
//! - [`search`]: a period in the last seconds, or none · [`follow`]: a known period, measured again
//! - [`best`]: the owner's best hour
//! - [`thresholds`]: every threshold with its reason
//!
//! [`Heartbeat`] finds a period once, follows it, and counts steps while it follows one.

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

/// Follows the step of one owner on one GPU.
#[derive(Debug, Default)]
pub struct Heartbeat {
    grid: PowerGrid,
    /// The period that is followed, or was until lately.
    known: Option<KnownPeriod>,
    /// What the last two searches found, to be confirmed by the next.
    found: [Option<PeriodFound>; 2],
    searched: Option<f64>,
    /// Samples in a row that are older than all that is kept.
    behind: u32,
    /// Since when a period is looked for and not found, in seconds.
    sought: f64,
    /// When GPM last saw tensor cores at work, in seconds.
    trained: Option<f64>,
    /// When GPM last saw memory that is read for hardly any computing, in seconds.
    generated: Option<f64>,
    /// Steps are counted up to here, in seconds.
    counted: f64,
    steps: f64,
}

#[derive(Clone, Copy, Debug)]
struct KnownPeriod {
    found: PeriodFound,
    /// When it was first and last there, in seconds.
    since: f64,
    seen: f64,
    jitter: Option<f64>,
    beats: u64,
    /// Searches in a row that did not find it.
    doubts: u32,
}

/// What GPM saw of a GPU over about 10 s, as shares of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnitActivity {
    /// Tensor cores.
    pub tensor: f64,
    /// All pipes of the multiprocessors, added up.
    pub pipes: f64,
    /// Memory interface.
    pub dram: f64,
}

/// A period of the owner's work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beat {
    /// Length of the period in seconds.
    pub seconds: f64,
    /// Share of the power's variance that the period explains, 0 to 1.
    pub confidence: f64,
    /// Standard deviation of a period's length, as a share of the period.
    pub jitter: f64,
    pub kind: PeriodKind,
}

/// What repeats.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PeriodKind {
    /// The step.
    Step,
    /// The smallest unit that repeats: a part of the step, or several steps.
    SmallestUnit,
}

impl Heartbeat {
    /// One power sample: the end of its interval in monotonic seconds, watts. Samples that repeat or go back in time
    /// and values that no GPU can draw are ignored.
    pub fn sample(&mut self, at: f64, watts: f64) {
        // One such sample is a mistake, many are a clock that went back: nothing that was noted by it holds.
        let behind =
            self.grid.newest().is_some_and(|newest| at.is_finite() && newest - at > KEPT as f64 * TICK);
        self.behind = if behind { self.behind + 1 } else { 0 };
        if self.behind >= BEHIND {
            self.interrupt();
        }
        self.grid.push(at, watts);
    }

    /// What GPM saw from `from` to `to`: a witness, never the source of a period.
    pub fn witness(&mut self, _from: f64, to: f64, activity: UnitActivity) {
        self.trained = (activity.tensor >= TRAINS).then_some(to);
        let generates = activity.dram >= READS && activity.pipes < INTENSITY * activity.dram;
        self.generated = generates.then_some(to);
    }

    /// What came before says nothing of what comes: the period and the samples are forgotten, the count stays.
    pub fn interrupt(&mut self) {
        *self = Heartbeat { steps: self.steps, ..Heartbeat::default() };
    }

    /// The period of the work now; called once a second.
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

    /// Searches for a period, confirms or drops the known one, and follows what two searches agree on. `beat` is the
    /// beat of the known period.
    fn search(&mut self, newest: f64, beat: Option<Beat>) -> Option<Beat> {
        self.searched = Some(newest);
        let trains = self.trained.is_some_and(|at| newest - at < WITNESSED);
        let same = |a: f64, b: f64| (a / b - 1.0).abs() < AGREE;
        let watts = self.grid.last(usize::MAX);
        let found = search::search(&watts, trains);
        // What is followed is found again now and then, or it was chance.
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

    /// Measures the known period again, and counts its steps up to where it was seen for sure.
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

    /// Steps counted since the start: the time with a known period over that period. Never goes back.
    pub fn steps(&self) -> f64 {
        self.steps
    }
}

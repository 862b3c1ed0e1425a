//! The step of a job, from the power samples of the GPU that it runs on. Pure: no clock, no driver, no thread.
//!
//! - [`grid`]: samples on an even grid · [`correlation`]: how alike the power is some time later
//! - [`search`]: a period in the last seconds, or none · [`best`]: the owner's best hour
//! - [`thresholds`]: every threshold with its reason
//!
//! [`Heartbeat`] finds a period once, follows it, and counts steps while it follows one.

#![forbid(unsafe_code)]

mod best;
mod correlation;
mod grid;
mod search;
mod thresholds;

pub use best::Best;

use grid::Grid;

/// Follows the step of one owner on one GPU.
#[derive(Debug, Default)]
pub struct Heartbeat {
    grid: Grid,
    beat: Option<Beat>,
    /// The last moment up to which steps are counted, in seconds.
    counted: f64,
    steps: f64,
    searched: f64,
}

/// What GPM saw of a GPU over about 10 s: shares from 0 to 1, and NVLink bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    pub sm: f64,
    pub tensor: f64,
    pub dram: f64,
    pub nvlink_bytes: f64,
}

/// A period of the owner's work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beat {
    /// Length of the period in seconds.
    pub seconds: f64,
    /// How alike the power is one period later, 0 to 1.
    pub confidence: f64,
    /// Standard deviation of a period's length, as a share of the period.
    pub jitter: f64,
    pub kind: Kind,
}

/// What repeats.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The step.
    Step,
    /// The smallest unit that repeats: a part of the step, or several steps.
    SmallestUnit,
}

impl Heartbeat {
    /// One power sample: the end of its interval in monotonic seconds, watts. Samples that repeat or go back in time
    /// and values that no GPU can draw are ignored.
    pub fn sample(&mut self, at: f64, watts: f64) {
        self.grid.push(at, watts);
    }

    /// What GPM saw from `from` to `to`: a witness, never the source of a period.
    pub fn witness(&mut self, _from: f64, _to: f64, _activity: Activity) {}

    /// What came before says nothing of what comes: the period and the samples are forgotten, the count stays.
    pub fn interrupt(&mut self) {
        *self = Heartbeat { steps: self.steps, ..Heartbeat::default() };
    }

    /// The period of the work now; called once a second.
    pub fn beat(&mut self, now: f64) -> Option<Beat> {
        if !now.is_finite() || now - self.grid.newest()? > thresholds::STALE {
            self.beat = None;
            return None;
        }
        if now - self.searched >= thresholds::SEARCH_EVERY {
            self.searched = now;
            self.beat = search::search(&self.grid);
        }
        if let Some(beat) = self.beat
            && now > self.counted
            && now - self.counted < thresholds::STALE
        {
            self.steps += (now - self.counted) / beat.seconds;
        }
        self.counted = now;
        self.beat
    }

    /// Steps counted since the start: the time with a known period over that period. Never goes back.
    pub fn steps(&self) -> f64 {
        self.steps
    }
}

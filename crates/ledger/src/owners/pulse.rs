//! The step of one owner on one GPU: its heartbeat, for as long as the same processes have the GPU alone.

use std::time::Duration;

use heartbeat::{Beat, Best, Heartbeat};
use model::clock::Mono;

/// An owner whose step is known has stalled after so many steps without any work,
const STALLED_STEPS: f64 = 3.0;
/// and no sooner than this, in seconds: an evaluation or a checkpoint pauses for some.
const STALLED_LEAST: f64 = 15.0;
/// Work that has gone on for so long without a step has another rhythm now.
const STEP_KEPT: Duration = Duration::from_secs(600);
/// A rest must be so many times as long as the longest that ended with work.
const LONGER: u32 = 2;

/// The step of an owner on a GPU.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    processes: Vec<u64>,
    heartbeat: Heartbeat,
    best: Best,
    /// The newest step, and how long the processes have worked without one since.
    newest: Option<(Beat, Duration)>,
    beats: bool,
    /// When it was followed last.
    followed: Option<Mono>,
    /// How long they have rested by now, and the longest rest that ended with work.
    rest: Duration,
    longest_rest: Duration,
}

impl Pulse {
    /// Takes in what was measured while these processes had the GPU alone, and finds the step. `works`: whether they do
    /// anything; `rests`: how long they have done nothing.
    pub fn follow(
        &mut self,
        processes: &[u64],
        measured: Measured,
        works: bool,
        rests: Option<Duration>,
        now: Mono,
    ) {
        if self.processes != processes {
            self.heartbeat.interrupt();
            let heartbeat = std::mem::take(&mut self.heartbeat);
            *self = Pulse { processes: processes.to_vec(), heartbeat, ..Pulse::default() };
        }
        for (at, watts) in measured.power {
            self.heartbeat.sample(at, watts);
        }
        for (from, to, activity) in measured.activity {
            self.heartbeat.witness(from, to, activity);
        }
        let seconds = seconds(now);
        let found = self.heartbeat.beat(seconds);
        self.beats = found.is_some();
        let elapsed = self.followed.replace(now).map_or(Duration::ZERO, |before| now.since(before));
        if let Some(beat) = found {
            self.best.note(seconds, beat.seconds);
            self.newest = Some((beat, Duration::ZERO));
        } else if let Some((_, without)) = self.newest.as_mut().filter(|_| works) {
            *without += elapsed;
        }
        self.newest = self.newest.filter(|(_, without)| *without <= STEP_KEPT);
        let rest = rests.unwrap_or(self.rest);
        if rest < self.rest {
            self.longest_rest = self.longest_rest.max(self.rest);
        }
        self.rest = rest;
    }

    /// What comes is of other work too: the same processes may be alone again later.
    pub fn interrupt(&mut self) {
        if std::mem::take(&mut self.beats) || self.followed.take().is_some() {
            self.heartbeat.interrupt();
        }
    }

    /// The step now.
    pub fn step(&self) -> Option<Beat> {
        self.newest.filter(|_| self.beats).map(|(beat, _)| beat)
    }

    /// The step now, as a multiple of that in the best hour.
    pub fn slowdown(&self) -> Option<f64> {
        self.best.slowdown(self.step()?.seconds)
    }

    /// Steps so far.
    pub fn steps(&self) -> f64 {
        self.heartbeat.steps()
    }

    /// Seconds of the step, or of the last one before the work came to a halt.
    pub fn newest(&self) -> Option<f64> {
        self.newest.map(|(beat, _)| beat.seconds)
    }

    /// Whether the owner has done nothing for so long that its steps have stopped.
    pub fn is_still(&self) -> bool {
        let Some(step) = self.newest() else { return false };
        let least = Duration::from_secs_f64((step * STALLED_STEPS).max(STALLED_LEAST));
        self.rest >= least.max(self.longest_rest * LONGER)
    }
}

/// What was measured of a GPU since the last time, for the step.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// End of a power sample in monotonic seconds, and watts.
    pub power: Vec<(f64, f64)>,
    /// GPM windows: beginning and end in monotonic seconds, and the activity of the units.
    pub activity: Vec<(f64, f64, heartbeat::UnitActivity)>,
}

/// Monotonic seconds.
pub fn seconds(at: Mono) -> f64 {
    at.0 as f64 * 1e-9
}

//! Step of one owner on one GPU, while the same processes have the GPU to themselves.

use std::time::Duration;

use heartbeat::{Beat, Best, Heartbeat};
use model::clock::Mono;

/// Steps without any work after which an owner with a known step has stalled,
const STALLED_STEPS: f64 = 3.0;
/// but at least this many seconds, because evaluations and checkpoints pause the work.
const STALLED_LEAST: f64 = 15.0;
/// Time of work without a step after which the old step is dropped.
const STEP_KEPT: Duration = Duration::from_secs(600);
/// Minimum length of a rest, as a multiple of the longest that ended with work.
const LONGER: u32 = 2;

/// Step of an owner on a GPU.
#[derive(Default)]
pub(crate) struct Pulse {
    processes: Vec<u64>,
    heartbeat: Heartbeat,
    best: Best,
    /// Newest step, and the time that the processes have worked without one since.
    newest: Option<(Beat, Duration)>,
    beats: bool,
    /// Time of the last call of [`Pulse::follow`].
    followed: Option<Mono>,
    /// Length of the current rest, and of the longest that ended with work.
    rest: Duration,
    longest_rest: Duration,
}

impl Pulse {
    /// Adds the measurements made while these processes had the GPU to themselves, and finds the step. `works`:
    /// whether they do anything; `rests`: how long they have done nothing.
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

    /// Interrupts the step, because other work shares the GPU. The same processes may have the GPU to themselves
    /// again later.
    pub fn interrupt(&mut self) {
        if std::mem::take(&mut self.beats) || self.followed.take().is_some() {
            self.heartbeat.interrupt();
        }
    }

    /// Returns the current step.
    pub fn step(&self) -> Option<Beat> {
        self.newest.filter(|_| self.beats).map(|(beat, _)| beat)
    }

    /// Returns the current step as a multiple of that in the best hour.
    pub fn slowdown(&self) -> Option<f64> {
        self.best.slowdown(self.step()?.seconds)
    }

    pub fn steps(&self) -> f64 {
        self.heartbeat.steps()
    }

    /// Returns the seconds of the step, or of the last one before the work halted.
    pub fn newest(&self) -> Option<f64> {
        self.newest.map(|(beat, _)| beat.seconds)
    }

    /// Returns true if the owner has done nothing for so long that its steps have stopped.
    pub fn is_still(&self) -> bool {
        let Some(step) = self.newest() else { return false };
        let least = Duration::from_secs_f64((step * STALLED_STEPS).max(STALLED_LEAST));
        self.rest >= least.max(self.longest_rest * LONGER)
    }
}

/// Measurements of a GPU since the last call, for finding the step.
#[derive(Default)]
pub(crate) struct Measured {
    /// Power samples: end in monotonic seconds, and watts.
    pub power: Vec<(f64, f64)>,
    /// GPM windows: start and end in monotonic seconds, and the activity of the units.
    pub activity: Vec<(f64, f64, heartbeat::UnitActivity)>,
}

/// Converts a time to monotonic seconds.
pub fn seconds(at: Mono) -> f64 {
    at.0 as f64 * 1e-9
}

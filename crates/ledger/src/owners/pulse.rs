//! The step of one owner on one GPU: its heartbeat, for as long as the same processes have the GPU alone.

use heartbeat::{Beat, Best, Heartbeat};
use model::clock::Mono;

/// An owner whose step is known has stalled after so many steps without any work,
const STALLED_STEPS: f64 = 3.0;
/// and no sooner than this, in seconds: an evaluation or a checkpoint pauses for some.
const STALLED_LEAST: f64 = 15.0;
/// A step of this long ago is none of the work now.
const STEP_KEPT: std::time::Duration = std::time::Duration::from_secs(600);

/// The step of an owner on a GPU.
#[derive(Debug, Default)]
pub struct Pulse {
    processes: Vec<u64>,
    heartbeat: Heartbeat,
    best: Best,
    /// The newest step, and when it was found.
    newest: Option<(Beat, Mono)>,
    beats: bool,
}

impl Pulse {
    /// Takes in what was measured while these processes had the GPU alone, and finds the step.
    pub fn follow(&mut self, processes: &[u64], measured: Measured, now: Mono) {
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
        if let Some(beat) = found {
            self.best.note(seconds, beat.seconds);
            self.newest = Some((beat, now));
        }
    }

    /// What comes is of other work.
    pub fn interrupt(&mut self) {
        if self.beats || self.newest.is_some() {
            self.heartbeat.interrupt();
            (self.beats, self.newest) = (false, None);
        }
    }

    /// The step now.
    pub fn step(&self) -> Option<Beat> {
        self.newest.filter(|_| self.beats).map(|(beat, _)| beat)
    }

    /// The step now, as a multiple of that in the best hour.
    pub fn slowdown(&self, now: Mono) -> Option<f64> {
        self.best.slowdown(seconds(now), self.step()?.seconds)
    }

    /// Steps so far.
    pub fn steps(&self) -> f64 {
        self.heartbeat.steps()
    }

    /// Seconds of the step, or of the last one of late.
    pub fn newest(&self, now: Mono) -> Option<f64> {
        let (beat, _) = self.newest.filter(|(_, at)| now.since(*at) <= STEP_KEPT)?;
        Some(beat.seconds)
    }

    /// Seconds without any work after which the owner has stalled; `None` where it had no step of late.
    pub fn stalls_after(&self, now: Mono) -> Option<f64> {
        Some((self.newest(now)? * STALLED_STEPS).max(STALLED_LEAST))
    }
}

/// What was measured of a GPU since the last time, for the step.
#[derive(Debug, Default)]
pub struct Measured {
    /// End of a power sample in monotonic seconds, and watts.
    pub power: Vec<(f64, f64)>,
    /// GPM windows: beginning and end in monotonic seconds, and the activity of the units.
    pub activity: Vec<(f64, f64, heartbeat::Activity)>,
}

/// Monotonic seconds.
pub fn seconds(at: Mono) -> f64 {
    at.0 as f64 * 1e-9
}

//! What the processes of an owner did at a place: kernels that wait are no fault of a server that never did otherwise,
//! and a pause is none that ended by itself before.

use std::time::Duration;

use crate::bottleneck::{Pace, WINDOW};
use model::catalog::Cause;
use model::clock::Mono;

/// Processes that worked for less are not known to do otherwise: longer than a server warms up. The recorded collective
/// wedged after 20 s of steps (`tests/data/jobs`).
const WORKED: Duration = Duration::from_secs(20);
/// A pause must be so many times as long as the longest that ended with work.
const LONGER: u32 = 2;

/// The past of the processes that an owner has at a place. Other processes have another past.
#[derive(Debug, Default)]
pub(crate) struct Past {
    processes: Vec<u64>,
    /// Time of the GPM windows with work, and the end of the newest.
    worked: Duration,
    pub progress: Option<Mono>,
    /// What they do now instead.
    pause: Option<WorkPause>,
    /// The longest pauses since the last work. Only work shows that they are over.
    open: Pauses,
    /// The longest pauses that ended with work.
    ended: Pauses,
}

/// What processes do instead of their work.
#[derive(Clone, Copy, Debug)]
struct WorkPause {
    pace: Pace,
    since: Mono,
    /// Whether a step of them was known at any time of it.
    stepped: bool,
}

/// The longest pause of each kind.
#[derive(Debug, Default)]
struct Pauses {
    wait: Duration,
    rest: Duration,
}

impl Pauses {
    fn note(&mut self, pace: Pace, length: Duration) {
        let longest = match pace {
            Pace::Waits => &mut self.wait,
            Pace::Rests => &mut self.rest,
            Pace::Moves => return,
        };
        *longest = (*longest).max(length);
    }
}

impl Past {
    /// These processes, the only ones at the place, worked in a GPM window of so many seconds.
    pub fn worked(&mut self, processes: &[u64], seconds: f64, now: Mono) {
        if self.processes != processes {
            *self = Past { processes: processes.to_vec(), ..Past::default() };
        }
        self.worked += Duration::from_secs_f64(seconds);
        self.progress = Some(now);
        self.interrupt(now);
        let Pauses { wait, rest } = std::mem::take(&mut self.open);
        self.ended.note(Pace::Waits, wait);
        self.ended.note(Pace::Rests, rest);
    }

    /// Whether these processes are known to work.
    pub fn is_of_work(&self, processes: &[u64]) -> bool {
        self.processes == processes && self.worked >= WORKED
    }

    /// The longest wait of kernels that ended with work must be exceeded so far.
    pub fn longer_than_waits(&self) -> Duration {
        self.ended.wait * LONGER
    }

    /// What is seen of them is known no longer.
    pub fn interrupt(&mut self, now: Mono) {
        if let Some(WorkPause { pace, since, .. }) = self.pause.take() {
            self.open.note(pace, now.since(since) + WINDOW);
        }
    }

    /// Since when kernels of the processes have run and computed nothing.
    pub fn waits_since(&self) -> Option<Mono> {
        self.pause.filter(|pause| pause.pace == Pace::Waits).map(|pause| pause.since)
    }

    /// Takes in what these processes do now, and gives what their pause has come to; `stepped`: whether a step of them
    /// was known of late. Kernels of a server wait for requests, those of a job for a rank, and only a job has steps.
    pub fn halted(
        &mut self,
        processes: &[u64],
        pace: Option<Pace>,
        stepped: bool,
        settings: &settings::Owners,
        now: Mono,
    ) -> Option<Cause> {
        let does = pace.filter(|_| self.is_of_work(processes));
        if self.pause.map(|pause| pause.pace) != does {
            self.interrupt(now);
            let paused = does.filter(|pace| *pace != Pace::Moves);
            self.pause = paused.map(|pace| WorkPause { pace, since: now, stepped });
        }
        let WorkPause { pace, since, stepped } = self.pause?;
        let (cause, least, longest) = match pace {
            Pace::Waits => (Cause::Wedged, settings.wedged_after, self.ended.wait),
            Pace::Rests => (Cause::Stalled, settings.stalled_after, self.ended.rest),
            Pace::Moves => return None,
        };
        // The evidence was of the time before.
        let lasts = now.since(since) + WINDOW;
        let halted = lasts >= least.max(longest * LONGER) && (stepped || pace == Pace::Rests);
        halted.then_some(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_counts_as_long_as_its_longest_piece() {
        let settings = settings::Owners::default();
        let after = |pieces: &[(Pace, u64)]| {
            let mut past = Past::default();
            let mut second = 0;
            let mut at = |more| {
                second += more;
                Mono(second * 1_000_000_000)
            };
            past.worked(&[1], 60.0, at(60));
            for (pace, seconds) in pieces {
                past.halted(&[1], Some(*pace), true, &settings, at(0));
                // What it does is not known for a moment.
                past.halted(&[1], None, true, &settings, at(*seconds));
            }
            past.worked(&[1], 10.0, at(10));
            [past.ended.wait, past.ended.rest].map(|longest| longest.saturating_sub(WINDOW).as_secs())
        };
        assert_eq!(after(&[(Pace::Waits, 300)]), [300, 0]);
        assert_eq!(after(&[(Pace::Waits, 300), (Pace::Waits, 40)]), [300, 0]);
        assert_eq!(after(&[(Pace::Waits, 300), (Pace::Rests, 40)]), [300, 40]);
    }
}

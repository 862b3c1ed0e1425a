//! History of an owner's processes at a place. Waiting kernels are normal for a server that never did otherwise, and
//! a pause is normal if such pauses ended by themselves before.

use std::time::Duration;

use crate::bottleneck::{Pace, WINDOW};
use model::catalog::Cause;
use model::clock::Mono;

/// Minimum work before a wait counts, which is longer than the warm-up of a server. The recorded collective wedged
/// after 20 s of steps (`tests/data/jobs`).
const WORKED: Duration = Duration::from_secs(20);
/// Minimum length of a pause, as a multiple of the longest that ended with work.
const LONGER: u32 = 2;

/// History of the processes that an owner has at a place. It restarts with other processes.
#[derive(Default)]
pub(crate) struct Past {
    processes: Vec<u64>,
    /// Total time of GPM windows with work, and the end of the newest.
    worked: Duration,
    pub progress: Option<Mono>,
    pause: Option<WorkPause>,
    /// Longest pauses since the last work. Only work shows that they are over.
    open: Pauses,
    /// Longest pauses that ended with work.
    ended: Pauses,
}

/// Pause in the work of processes.
#[derive(Clone, Copy)]
struct WorkPause {
    pace: Pace,
    since: Mono,
    /// Whether a step was known at any time of the pause.
    stepped: bool,
}

/// Longest pause of each kind.
#[derive(Default)]
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
    /// Records work of the only processes at the place, in a GPM window of this length.
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

    /// Returns true if these processes are known to work.
    pub fn is_of_work(&self, processes: &[u64]) -> bool {
        self.processes == processes && self.worked >= WORKED
    }

    /// Returns the time that a wait must exceed, from the longest wait that ended with work.
    pub fn longer_than_waits(&self) -> Duration {
        self.ended.wait * LONGER
    }

    /// Ends the observation of the current pause.
    pub fn interrupt(&mut self, now: Mono) {
        if let Some(WorkPause { pace, since, .. }) = self.pause.take() {
            self.open.note(pace, now.since(since) + WINDOW);
        }
    }

    /// Returns the time since which the kernels run without computing.
    pub fn waits_since(&self) -> Option<Mono> {
        self.pause.filter(|pause| pause.pace == Pace::Waits).map(|pause| pause.since)
    }

    /// Records the current progress, and returns the cause that its pause has become. `stepped`: a step was known
    /// recently. Only jobs have steps: the kernels of a server wait for requests, those of a job for a rank.
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
        // The evidence describes the time before.
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

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
pub struct Past {
    processes: Vec<u64>,
    /// Time of the GPM windows with work.
    worked: Duration,
    /// What they do now instead, and since when.
    pause: Option<(Pace, Mono)>,
    /// The pause before, and how long it was. Only work shows that it is over.
    before: Option<(Pace, Duration)>,
    /// The longest pauses that ended with work.
    longest_wait: Duration,
    longest_rest: Duration,
}

impl Past {
    /// These processes, the only ones at the place, worked in a GPM window of so many seconds.
    pub fn worked(&mut self, processes: &[u64], seconds: f64, now: Mono) {
        if self.processes != processes {
            *self = Past { processes: processes.to_vec(), ..Past::default() };
        }
        self.worked += Duration::from_secs_f64(seconds);
        self.interrupt(now);
        if let Some((pace, length)) = self.before.take() {
            let longest = if pace == Pace::Waits { &mut self.longest_wait } else { &mut self.longest_rest };
            *longest = (*longest).max(length);
        }
    }

    /// What is seen of them is known no longer.
    pub fn interrupt(&mut self, now: Mono) {
        if let Some((pace, since)) = self.pause.take() {
            self.before = Some((pace, now.since(since) + WINDOW));
        }
    }

    /// Takes in what these processes do now, and gives what their pause has come to.
    pub fn halted(
        &mut self,
        processes: &[u64],
        pace: Option<Pace>,
        settings: &settings::Owners,
        now: Mono,
    ) -> Option<Cause> {
        let does = pace.filter(|_| self.processes == processes && self.worked >= WORKED);
        if self.pause.map(|(pace, _)| pace) != does {
            self.interrupt(now);
            self.pause = does.filter(|pace| *pace != Pace::Moves).map(|pace| (pace, now));
        }
        let (pace, since) = self.pause?;
        let (cause, least, longest) = match pace {
            Pace::Waits => (Cause::Wedged, settings.wedged_after, self.longest_wait),
            Pace::Rests => (Cause::Stalled, settings.stalled_after, self.longest_rest),
            Pace::Moves => return None,
        };
        // The evidence was of the time before.
        let lasts = now.since(since) + WINDOW;
        (lasts >= least.max(longest * LONGER)).then_some(cause)
    }
}

//! A canary's process that outlives its run: asked to end, watched, killed only by the rule of [`may_kill`],
//! and reaped without ever waiting for it.

use std::time::Duration;

use host::child::{self, Running};
use host::inflight::{EVENTS_SLOT, NODE_SLOT, SlotView, Table};
use host::stop::Stop;
use model::catalog::CanaryStep;
use model::clock::Mono;

use super::surroundings::EmptyFolder;

/// How long a process that is in no driver call gets to end by itself.
const END_DEADLINE: Duration = Duration::from_secs(30);
/// The same while we end ourselves.
const HURRIED_END_DEADLINE: Duration = Duration::from_secs(2);
/// How long one that was killed may take to end.
const DYING: Duration = Duration::from_secs(5);
/// Time between two looks at the end of our own process.
const LOOK: Duration = Duration::from_millis(10);

/// The driver call that a process is in, by its in-flight table: CUDA's first, else NVML's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The driver function.
    pub name: String,
    /// When it was entered.
    pub since: Mono,
}

/// What the tables say.
pub(super) fn call(views: &[SlotView]) -> Option<Call> {
    let of = |slot| views.iter().find(|view| view.slot == slot).and_then(|view| view.call.as_ref());
    let call = of(NODE_SLOT).or_else(|| of(EVENTS_SLOT))?;
    Some(Call { name: call.name.clone(), since: call.since })
}

/// The number of the newest CUDA call, which rises with each.
pub(super) fn moves(views: &[SlotView]) -> Option<(u64, Mono)> {
    let view = views.iter().find(|view| view.slot == NODE_SLOT)?;
    Some((view.call.as_ref().map_or(0, |call| call.sequence), view.expected))
}

/// Whether a process that was asked to end `asked` ago may be killed. Ending a GPU client inside a driver call
/// can wedge the GPU: that is done last, after `kill_after`.
pub fn may_kill(asked: Duration, in_call: bool, patience: Duration, kill_after: Duration) -> bool {
    asked >= kill_after || (!in_call && asked >= patience.min(kill_after))
}

/// The process of a run that is over.
#[derive(Debug)]
pub struct Remains {
    pub(super) running: Running,
    pub(super) table: Table,
    pub(super) _folder: EmptyFolder,
    pub(super) step: CanaryStep,
    /// Whether the run was given up as hung.
    pub(super) hung: bool,
    pub(super) asked: Mono,
    pub(super) hung_after: Duration,
    pub(super) kill_after: Duration,
    pub(super) killed: Option<Mono>,
}

/// What a look at it showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether the process is still there.
    pub alive: bool,
    /// Whether it had to be killed at this look.
    pub killed: bool,
}

impl Remains {
    /// Process id.
    pub fn pid(&self) -> i32 {
        self.running.pid
    }

    /// Looks at it, reaps it if it has ended, kills it if that is due. Never waits.
    pub fn look(&mut self, now: Mono) -> Look {
        self.look_with(now, END_DEADLINE)
    }

    fn look_with(&mut self, now: Mono, patience: Duration) -> Look {
        if self.ended() {
            return Look { alive: false, killed: false };
        }
        let asked = now.since(self.asked);
        let kill = self.killed.is_none() && may_kill(asked, self.in_call(), patience, self.kill_after);
        if kill {
            tracing::warn!(pid = self.pid(), step = ?self.step, ?asked, call = ?self.call(), "a canary's process is killed");
            self.running.kill();
            self.killed = Some(now);
        }
        Look { alive: true, killed: kill }
    }

    /// The driver call it is in.
    pub fn call(&self) -> Option<Call> {
        call(&self.table.views())
    }

    /// The step it hangs in, if it does: the run was given up for that, or it was asked to end and has not for
    /// as long as a run may go without progress, being in a driver call or not even ended by a kill.
    pub fn hangs(&self, now: Mono) -> Option<CanaryStep> {
        let undying = self.killed.is_some_and(|at| now.since(at) > DYING);
        let overdue = now.since(self.asked) > self.hung_after && (undying || self.in_call());
        (self.hung || overdue).then_some(self.step)
    }

    /// Waits until it has ended, until `deadline` at most, while our own process ends. One that is in a driver
    /// call is left behind: it ends when the call returns.
    pub fn end_by(&mut self, deadline: Mono) -> Look {
        let pause = Stop::default();
        let mut killed = false;
        loop {
            let now = Mono::now();
            let look = self.look_with(now, HURRIED_END_DEADLINE);
            killed |= look.killed;
            if !look.alive || now >= deadline {
                return Look { alive: look.alive, killed };
            }
            pause.wait_until(deadline.min(now + LOOK));
        }
    }

    /// A process stopped by a signal is in no call, whatever its table says.
    fn in_call(&self) -> bool {
        self.call().is_some() && !child::all_stopped(self.pid())
    }

    fn ended(&mut self) -> bool {
        match self.running.ended() {
            Ok(status) => status.is_some(),
            Err(error) => {
                tracing::warn!(%error, pid = self.pid(), "cannot tell whether a canary's process has ended");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: Duration = Duration::from_secs(300);

    proptest! {
        #[test]
        fn nobody_is_killed_inside_a_call_before_the_last_deadline(asked in 0u64..1000, kill_after in 1u64..600) {
            let (asked, kill_after) = (Duration::from_secs(asked), Duration::from_secs(kill_after));
            let kill = may_kill(asked, true, END_DEADLINE, kill_after);
            prop_assert_eq!(kill, asked >= kill_after);
            let outside = may_kill(asked, false, END_DEADLINE, kill_after);
            prop_assert_eq!(outside, asked >= kill_after.min(END_DEADLINE));
        }
    }

    #[test]
    fn outside_of_calls_it_gets_half_a_minute() {
        assert!(!may_kill(Duration::from_secs(29), false, END_DEADLINE, LONG));
        assert!(may_kill(Duration::from_secs(30), false, END_DEADLINE, LONG));
        assert!(!may_kill(Duration::from_secs(30), true, END_DEADLINE, LONG));
    }
}

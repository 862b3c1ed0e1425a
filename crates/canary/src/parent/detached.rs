//! A canary's process that outlives its run: asked to end, watched, and reaped without ever waiting for it.

use std::time::Duration;

use host::inflight::{EVENTS_SLOT, InCall, NODE_SLOT, SlotView};
use host::supervise::{Patience, Supervised};
use model::catalog::CanaryStep;
use model::catalog::schema::KnownLabel;
use model::clock::Mono;

use super::environment::EmptyFolder;

/// How long a process that is in no driver call gets to end by itself.
const END_DEADLINE: Duration = Duration::from_secs(30);
/// The same while we end ourselves.
const HURRIED_END_DEADLINE: Duration = Duration::from_secs(2);

/// The driver call that a process is in, by its in-flight table: CUDA's first, else NVML's.
pub(super) fn call(views: &[SlotView]) -> Option<InCall> {
    let of = |slot| views.iter().find(|view| view.slot == slot)?.call.clone();
    of(NODE_SLOT).or_else(|| of(EVENTS_SLOT))
}

/// The number of the newest CUDA call, which rises with each.
pub(super) fn moves(views: &[SlotView]) -> Option<(u64, Mono)> {
    let view = views.iter().find(|view| view.slot == NODE_SLOT)?;
    Some((view.call.as_ref().map_or(0, |call| call.sequence), view.expected))
}

/// The process of a run that is over.
#[derive(Debug)]
pub struct DetachedChild {
    pub(super) child: Supervised,
    pub(super) _folder: EmptyFolder,
    pub(super) step: CanaryStep,
    /// Whether the run was given up as hung.
    pub(super) hung: bool,
    pub(super) hung_after: Duration,
    pub(super) kill_after: Duration,
}

/// The result of one look at the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildCheck {
    /// Whether the process is still there.
    pub alive: bool,
    /// Whether it had to be killed at this look.
    pub killed: bool,
}

impl DetachedChild {
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Reaps the process if it has ended, kills it if that is due. Never waits.
    pub fn check(&mut self, now: Mono) -> ChildCheck {
        if self.child.ended().is_some() {
            return ChildCheck { alive: false, killed: false };
        }
        let call = self.call();
        let killed = self.child.kill_if_overdue(now, self.patience(END_DEADLINE));
        if killed {
            tracing::warn!(
                pid = self.pid(),
                step = self.step.known(),
                call = call.map(|call| call.name),
                "killed a canary process that did not end"
            );
        }
        ChildCheck { alive: true, killed }
    }

    fn patience(&self, outside: Duration) -> Patience {
        Patience { outside, inside: Some(self.kill_after) }
    }

    /// The driver call the process is in.
    pub fn call(&self) -> Option<InCall> {
        call(&self.child.views())
    }

    /// The step the process hangs in, if it does: the run was given up for that, or the process was asked to end and
    /// has not for as long as a run may go without progress, being in a driver call or not even ended by a kill.
    pub fn hangs(&self, now: Mono) -> Option<CanaryStep> {
        let overdue = self.child.asked().is_some_and(|asked| now.since(asked) > self.hung_after);
        let stuck = overdue && (self.child.is_unkillable(now) || self.child.in_call());
        (self.hung || stuck).then_some(self.step)
    }

    /// Waits until the process has ended, until `deadline` at most, while our own process ends. A process in a driver
    /// call is left behind: it ends when the call returns.
    pub fn end_by(&mut self, deadline: Mono) -> ChildCheck {
        let patience = self.patience(HURRIED_END_DEADLINE);
        let killed = self.child.end_by(deadline, patience);
        ChildCheck { alive: self.child.ended().is_none(), killed }
    }
}

//! A canary process that outlives its run. It is requested to end, monitored, and reaped without blocking.

use std::time::Duration;

use host::inflight::{EVENTS_SLOT, InCall, NODE_SLOT, SlotView};
use host::supervise::{Patience, Supervised};
use model::catalog::CanaryStep;
use model::catalog::schema::KnownLabel;
use model::clock::Mono;

use super::environment::EmptyFolder;

/// Time for a process that is in no driver call to end by itself.
const END_DEADLINE: Duration = Duration::from_secs(30);
/// The same time while the parent itself is ending.
const HURRIED_END_DEADLINE: Duration = Duration::from_secs(2);

/// Returns the current driver call of a process from its in-flight table, with CUDA calls before NVML calls.
pub(super) fn call(views: &[SlotView]) -> Option<InCall> {
    let of = |slot| views.iter().find(|view| view.slot == slot)?.call.clone();
    of(NODE_SLOT).or_else(|| of(EVENTS_SLOT))
}

/// Returns the sequence number of the newest CUDA call, and the time by which the process promised to be active again.
/// A change of either is progress.
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
    /// True if the run was abandoned as hung.
    pub(super) hung: bool,
    pub(super) hung_after: Duration,
    pub(super) kill_after: Duration,
}

/// Result of one check of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildCheck {
    /// True if the process still exists.
    pub alive: bool,
    /// True if this check killed the process.
    pub killed: bool,
}

impl DetachedChild {
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Reaps the process if it has ended, or kills it if it is overdue. Never blocks.
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

    /// Returns the current driver call of the process.
    pub fn call(&self) -> Option<InCall> {
        call(&self.child.views())
    }

    /// Returns the step in which the process hangs, if it does. The process hangs if its run was abandoned as hung. It
    /// also hangs if it did not end within the maximum time without progress after a request, and is in a driver call
    /// or did not end when it was killed.
    pub fn hangs(&self, now: Mono) -> Option<CanaryStep> {
        let overdue = self.child.asked().is_some_and(|asked| now.since(asked) > self.hung_after);
        let stuck = overdue && (self.child.is_unkillable(now) || self.child.in_call());
        (self.hung || stuck).then_some(self.step)
    }

    /// Waits until the process has ended, at most until `deadline`, while the parent itself is ending. A process in a
    /// driver call is left behind and ends when the call returns.
    pub fn end_by(&mut self, deadline: Mono) -> ChildCheck {
        let patience = self.patience(HURRIED_END_DEADLINE);
        let killed = self.child.end_by(deadline, patience);
        ChildCheck { alive: self.child.ended().is_none(), killed }
    }
}

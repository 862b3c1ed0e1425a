//! Classes of the time that an owner has a GPU. Every second has one class, and a window with several activities is
//! divided. `docs/HEARTBEAT.md` documents the classes.

use std::time::Duration;

use crate::bottleneck::{IDLE_PIPES, ONE_MULTIPROCESSOR, QUIET_LINK, QUIET_MEMORY, RESTS};
use model::catalog::schema::KnownLabel;
use model::catalog::{Cause, GpuTimeClass};
use model::clock::Mono;

/// Shares of all classes, in the order of `GpuTimeClass::ALL`.
pub(crate) type ClassShares = [f64; GpuTimeClass::ALL.len()];

/// Multiprocessors that a collective keeps active: NCCL used 24 of 132 on an H200 for its largest collectives.
const COLLECTIVE: f64 = 0.18;
/// Multiple of a window's length until which the next window is awaited.
const LATE: f64 = 1.5;
/// Number of reasons for reduced clocks.
const REASONS: usize = 3;

/// Measurements of a GPU or GPU instance over a stretch of time, as shares of the time; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClassWindow {
    pub faulted: bool,
    pub cause: Option<Cause>,
    /// Time with a kernel or a copy.
    pub busy: Option<f64>,
    /// Activity of multiprocessors, pipes and memory interface.
    pub units: Option<UnitShares>,
    /// Time with clocks reduced by heat, the board or the power supply.
    pub held: f64,
    /// Whether the owner has more GPUs on this node.
    pub several: bool,
}

/// Activity of the units of a GPU, as shares of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct UnitShares {
    pub sm: f64,
    pub pipes: f64,
    pub dram: f64,
    /// Bytes per second over NVLink in the busier direction.
    pub nvlink: f64,
}

impl ClassWindow {
    /// Returns the shares of all classes, which add up to 1.
    pub fn divide(&self) -> ClassShares {
        use GpuTimeClass::*;
        let whole = |class| shares(&[(class, 1.0)]);
        match (self.faulted, self.cause) {
            (true, _) => return whole(Faulted),
            (_, Some(Cause::Wedged)) => return whole(Wedged),
            (_, Some(Cause::Stalled)) => return whole(Stalled),
            _ => {}
        }
        let Some(busy) = self.busy.map(|busy| busy.clamp(0.0, 1.0)) else { return whole(Unknown) };
        if busy <= RESTS {
            return whole(Idle);
        }
        let Some(UnitShares { sm, pipes, dram, nvlink }) = self.units else {
            return shares(&[(WaitingForHost, 1.0 - busy), (Unknown, busy)]);
        };
        let throttled = self.held.clamp(0.0, busy);
        let active = busy - throttled;
        let linked = nvlink > QUIET_LINK;
        let polls = sm > ONE_MULTIPROCESSOR && pipes <= IDLE_PIPES * sm && dram <= QUIET_MEMORY;
        let (communicating, host) = match (polls, linked) {
            (true, _) if linked || self.several => (active, 0.0),
            // Kernels that poll the host for work.
            (true, _) => (0.0, active),
            // Only copies.
            _ if sm <= ONE_MULTIPROCESSOR * busy => (0.0, active),
            // Multiprocessors that are inactive while something runs are the ones that a collective leaves idle.
            (_, true) => (((busy - sm) / (1.0 - COLLECTIVE)).clamp(0.0, active), 0.0),
            _ => (0.0, 0.0),
        };
        let computing = active - communicating - host;
        shares(&[
            (WaitingForHost, 1.0 - busy + host),
            (Throttled, throttled),
            (Communicating, communicating),
            (Computing, computing),
        ])
    }
}

fn shares(parts: &[(GpuTimeClass, f64)]) -> ClassShares {
    let mut all = ClassShares::default();
    for (class, share) in parts {
        if let Some(sum) = all.get_mut(*class as usize) {
            *sum += share;
        }
    }
    all
}

/// Measurements of a place since its time was last divided.
#[derive(Default)]
pub(crate) struct Gathered {
    since: Option<Mono>,
    /// Whether a GPM window has ended.
    complete: bool,
    pub busy: TimedAmount,
    pub sm: TimedAmount,
    pub pipes: TimedAmount,
    pub dram: TimedAmount,
    /// One amount per direction.
    pub nvlink: [TimedAmount; 2],
    /// Total seconds with reduced clocks by reason: at the last division, and now.
    held: Option<([f64; REASONS], [f64; REASONS])>,
    /// Length of the newest window, in seconds.
    window: f64,
}

/// Amount over a time.
#[derive(Clone, Copy, Default)]
pub(crate) struct TimedAmount {
    seconds: f64,
    amount: f64,
}

impl TimedAmount {
    pub fn add(&mut self, seconds: f64, amount: f64) {
        self.seconds += seconds;
        self.amount += amount;
    }

    fn rate(self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.amount / self.seconds)
    }
}

impl Gathered {
    /// Records the end of a GPM window of this length, which shows the activity of a busy GPU.
    pub fn complete(&mut self, seconds: f64) {
        (self.complete, self.window) = (true, seconds);
    }

    /// Records the total seconds with reduced clocks, by reason.
    pub fn held(&mut self, totals: [f64; REASONS]) {
        let before = self.held.map_or(totals, |(before, _)| before);
        self.held = Some((before, totals));
    }

    /// Returns the measurements since the last call, once a window has ended and the busy time is known, or `latest`
    /// has passed without them. Returns `None` until then.
    pub fn close_window(&mut self, latest: Duration, now: Mono) -> Option<ClassWindow> {
        let since = *self.since.get_or_insert(now);
        let known = self.complete && self.busy.rate().is_some();
        let latest = latest.max(Duration::from_secs_f64((self.window * LATE).clamp(0.0, 1e6)));
        if !known && now.since(since) < latest {
            return None;
        }
        let units = || {
            let nvlink = self.nvlink.iter().filter_map(|way| way.rate()).fold(0.0, f64::max);
            let (sm, pipes, dram) = (self.sm.rate()?, self.pipes.rate()?, self.dram.rate()?);
            Some(UnitShares { sm: sm.min(1.0), pipes, dram: dram.min(1.0), nvlink })
        };
        let seconds = now.since(since).as_secs_f64();
        let held = self.held.map_or(0.0, |(before, totals)| {
            totals.iter().zip(before).map(|(total, before)| total - before).fold(0.0, f64::max)
        });
        let stretch = ClassWindow {
            busy: self.busy.rate(),
            units: units(),
            held: if seconds > 0.0 { held / seconds } else { 0.0 },
            ..ClassWindow::default()
        };
        let held = self.held.map(|(_, totals)| (totals, totals));
        *self = Gathered { since: Some(now), held, window: self.window, ..Gathered::default() };
        Some(stretch)
    }
}

#[cfg(test)]
mod tests;

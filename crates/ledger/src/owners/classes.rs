//! What a GPU did in the time that its owner had it: each second is in one class, and a window of several classes is
//! divided. `docs/HEARTBEAT.md` says the same for people.

use std::time::Duration;

use crate::bottleneck::{IDLE_PIPES, ONE_MULTIPROCESSOR, QUIET_LINK, QUIET_MEMORY, RESTS};
use model::catalog::schema::KnownLabel;
use model::catalog::{Cause, GpuTimeClass};
use model::clock::Mono;

/// A share for each class, in the order of `GpuTimeClass::ALL`.
pub(crate) type ClassShares = [f64; GpuTimeClass::ALL.len()];

/// Multiprocessors that a collective keeps active: 24 of 132, which is what NCCL took on an H200 for its largest ones.
const COLLECTIVE: f64 = 0.18;
/// A window counts until one and a half times its length have passed.
const LATE: f64 = 1.5;
/// Reasons for which clocks are held down.
const REASONS: usize = 3;

/// What was measured of a GPU or GPU instance in a stretch of time; `None`: not known. Shares of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClassWindow {
    /// The GPU is unhealthy.
    pub faulted: bool,
    pub cause: Option<Cause>,
    /// Time with a kernel or a copy.
    pub busy: Option<f64>,
    /// Active multiprocessors, their pipes, the memory interface.
    pub units: Option<UnitShares>,
    /// Time with clocks held down by heat, the board or the power supply.
    pub held: f64,
    /// Whether its owner has more GPUs here.
    pub several: bool,
}

/// Activity of the units of a GPU, as shares of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct UnitShares {
    pub sm: f64,
    pub pipes: f64,
    pub dram: f64,
    /// Bytes a second over NVLink in the busier direction.
    pub nvlink: f64,
}

impl ClassWindow {
    /// The share of each class. They add up to 1.
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
            // Kernels that ask the host for work.
            (true, _) => (0.0, active),
            // Copies alone.
            _ if sm <= ONE_MULTIPROCESSOR * busy => (0.0, active),
            // What is not active of the multiprocessors while something runs is what a collective leaves idle.
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

/// What was measured of a place since its time was last divided.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    since: Option<Mono>,
    /// Whether a GPM window has ended.
    complete: bool,
    pub busy: TimedAmount,
    pub sm: TimedAmount,
    pub pipes: TimedAmount,
    pub dram: TimedAmount,
    /// Each direction.
    pub nvlink: [TimedAmount; 2],
    /// Seconds with clocks held down for each reason, from the start: when the time was last divided, and now.
    held: Option<([f64; REASONS], [f64; REASONS])>,
    /// The length of the newest window, in seconds.
    window: f64,
}

/// An amount over a time.
#[derive(Clone, Copy, Debug, Default)]
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
    /// A window of GPM of so many seconds ended that shows what a busy GPU does.
    pub fn complete(&mut self, seconds: f64) {
        (self.complete, self.window) = (true, seconds);
    }

    /// Clocks were held down for so many seconds from the start, by reason.
    pub fn held(&mut self, totals: [f64; REASONS]) {
        let before = self.held.map_or(totals, |(before, _)| before);
        self.held = Some((before, totals));
    }

    /// What was measured since the last time, once a window ended and the busy time is known, or neither came for so long.
    /// `None`: later.
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

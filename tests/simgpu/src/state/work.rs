//! What CUDA does on the node, in the shared state: contexts, and how long GPUs worked.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::State;

/// At most so many CUDA contexts on the node at once.
pub(super) const MAX_CONTEXTS: usize = 128;
/// At most so many GPUs.
pub const MAX_GPUS: usize = 64;
/// So many spans of a GPU's work are remembered, each of so many seconds.
pub(super) const SPANS: usize = 80;
const SPAN: f64 = 0.2;

/// A CUDA context.
#[repr(C)]
pub(super) struct ContextState {
    /// Its process; 0: the slot is free.
    pid: AtomicU64,
    started: AtomicU64,
    /// 0 until the slot is filled in; then 1, and from bit 8 on the GPU, from bit 32 on the MIG device and 1.
    place: AtomicU64,
    bytes: AtomicU64,
}

/// How long a GPU worked in one span of time: the span's number, and nanoseconds.
#[repr(C)]
pub(super) struct Span {
    number: AtomicU64,
    ns: AtomicU64,
}

/// A CUDA context as other processes see it.
pub(crate) struct ContextSeen {
    pub(crate) slot: usize,
    pub(crate) pid: u32,
    /// When the process started, in the kernel's ticks.
    pub(crate) started: u64,
    pub(crate) gpu: usize,
    pub(crate) mig: Option<usize>,
    /// Device memory.
    pub(crate) bytes: u64,
}

impl State {
    /// Notes a context; nothing when there are too many.
    pub(crate) fn add_context(
        &self,
        pid: u32,
        started: u64,
        gpu: usize,
        mig: Option<usize>,
    ) -> Option<usize> {
        let free = |c: &ContextState| c.pid.compare_exchange(0, pid.into(), SeqCst, SeqCst).is_ok();
        let slot = self.shared().contexts.iter().position(free)?;
        let context = &self.shared().contexts[slot];
        context.started.store(started, SeqCst);
        context.bytes.store(0, SeqCst);
        let mig = mig.map_or(0, |mig| mig as u64 + 1);
        context.place.store(1 | (gpu as u64) << 8 | mig << 32, SeqCst);
        Some(slot)
    }

    /// Notes the memory that a context holds.
    pub(crate) fn set_context_bytes(&self, slot: usize, bytes: u64) {
        self.shared().contexts[slot].bytes.store(bytes, SeqCst);
    }

    /// Strikes a context out.
    pub(crate) fn release_context(&self, slot: usize) {
        let context = &self.shared().contexts[slot];
        // Only the process that takes the place away frees the slot.
        if context.place.swap(0, SeqCst) != 0 {
            context.pid.store(0, SeqCst);
        }
    }

    /// The contexts of the node, those of dead processes too.
    pub(crate) fn contexts(&self) -> Vec<ContextSeen> {
        let seen = |(slot, c): (usize, &ContextState)| {
            let place = c.place.load(SeqCst);
            (place != 0).then(|| ContextSeen {
                slot,
                pid: c.pid.load(SeqCst) as u32,
                started: c.started.load(SeqCst),
                gpu: (place >> 8 & 0xff) as usize,
                mig: (place >> 32).checked_sub(1).map(|mig| mig as usize),
                bytes: c.bytes.load(SeqCst),
            })
        };
        self.shared().contexts.iter().enumerate().filter_map(seen).collect()
    }

    /// Notes work of a GPU, at a moment of the scenario's clock.
    pub(crate) fn add_work(&self, gpu: usize, seconds: f64, ns: u64) {
        let number = (seconds.max(0.0) / SPAN) as u64 + 1;
        let span = &self.shared().work[gpu][number as usize % SPANS];
        if span.number.swap(number, SeqCst) != number {
            span.ns.store(0, SeqCst);
        }
        span.ns.fetch_add(ns, SeqCst);
    }

    /// The part of the time between two moments of the scenario's clock that a GPU worked, as far as it is
    /// remembered. Whole spans are looked at.
    pub(crate) fn busy(&self, gpu: usize, from: f64, to: f64) -> f64 {
        let number = |seconds: f64| (seconds.max(0.0) / SPAN) as u64 + 1;
        let (first, last) = (number(from), number(to));
        let ns = |n: u64| {
            let span = &self.shared().work[gpu][n as usize % SPANS];
            if span.number.load(SeqCst) == n { span.ns.load(SeqCst) } else { 0 }
        };
        let spent = (to - (first - 1) as f64 * SPAN).max(1e-3);
        (first..=last).map(ns).sum::<u64>() as f64 / 1e9 / spent
    }
}

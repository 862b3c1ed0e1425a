//! Pairs of reports: the driver and the kernel log report the same Xid, which counts once.

use std::collections::VecDeque;
use std::time::Duration;

use super::judge::xid_event;
use super::{Faults, WINDOW};
use crate::counters::OwnCounters;
use crate::events::EventList;
use model::catalog::{self as m, FaultAction, Gpu, Severity, XidCode};
use model::clock::Mono;
use model::snapshot::Event;
use model::xid::{self, Xid};

/// How long the log waits for what the other source adds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Faults of one GPU and code that wait for their other source; more than a flood brings in that time.
const MAX_WAITING: usize = 65_536;

/// A fault that one source has reported.
#[derive(Debug)]
pub struct PendingFault {
    /// Whether the driver reported it; else the kernel log did.
    nvml: bool,
    heard: Mono,
    entry: u64,
    /// The GPU of a report that is not counted yet: the kernel log's line says as what.
    uncounted: Option<Gpu>,
}

impl Faults {
    /// A fault of a GPU that is known: the second report of a known one, or a new one.
    pub(super) fn xid(&mut self, counters: &mut OwnCounters, gpu: Gpu, row: &Xid, entry: Event, heard: Mono) {
        let entry = Event { gpu: Some(gpu.clone()), ..entry };
        let nvml = entry.nvml;
        let queue = self.waiting.entry((gpu.uuid.clone(), row.code)).or_default();
        expire(counters, &mut self.events, row.code, queue, heard);
        // All that wait are of one source: each pair that could be matched is gone.
        if queue.front().is_some_and(|first| first.nvml != nvml)
            && let Some(first) = queue.pop_front()
        {
            if first.uncounted.is_some() {
                self.count(counters, &gpu, row, heard);
            } else if xid::depends_on_text(row.code) && !nvml {
                // Counted by its code alone, as while the kernel log was not read yet.
                self.states.entry(gpu.uuid.clone()).or_default().note(row, heard);
            }
            self.events.enrich(first.entry, entry, heard);
            return;
        }
        self.note_newest(&gpu, entry.unix_seconds, row.code);
        // The driver's word lacks process and text; the kernel log's lacks nothing that people read.
        let more = nvml && self.reads_kernel_log.is_some_and(|since| since <= heard);
        let uncounted = (more && xid::depends_on_text(row.code)).then(|| gpu.clone());
        if uncounted.is_none() {
            self.count(counters, &gpu, row, heard);
        }
        let wait = if more { PATIENCE } else { Duration::ZERO };
        let entry = self.falls.list(&mut self.events, entry, heard, wait);
        if let Some(queue) = self.waiting.get_mut(&(gpu.uuid.clone(), row.code)) {
            if queue.len() >= MAX_WAITING {
                count_waiting(counters, &mut self.events, row.code, queue.pop_front(), heard);
            }
            queue.push_back(PendingFault { nvml, heard, entry, uncounted });
        }
    }

    /// Counts a fault, and takes in what it says of the GPU.
    fn count(&mut self, counters: &mut OwnCounters, gpu: &Gpu, row: &Xid, heard: Mono) {
        self.states.entry(gpu.uuid.clone()).or_default().note(row, heard);
        count(counters, gpu, row);
    }

    pub(super) fn note_newest(&mut self, gpu: &Gpu, unix_seconds: f64, code: u32) {
        let last = &mut self.states.entry(gpu.uuid.clone()).or_default().last_xid;
        if last.is_none_or(|(newest, _)| newest <= unix_seconds) {
            *last = Some((unix_seconds, code));
        }
    }

    /// Ends the waits that took too long.
    pub(super) fn expire_pairs(&mut self, counters: &mut OwnCounters, now: Mono) {
        for ((_, code), queue) in &mut self.waiting {
            expire(counters, &mut self.events, *code, queue, now);
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
    }
}

/// Ends the wait of faults that the other source did not report in time.
fn expire(
    counters: &mut OwnCounters,
    events: &mut EventList,
    code: u32,
    queue: &mut VecDeque<PendingFault>,
    now: Mono,
) {
    while queue.front().is_some_and(|first| now.since(first.heard) > WINDOW) {
        count_waiting(counters, events, code, queue.pop_front(), now);
    }
}

/// Counts a fault whose line did not come, as its code alone says. No code that depends on its line pages without.
fn count_waiting(
    counters: &mut OwnCounters,
    events: &mut EventList,
    code: u32,
    fault: Option<PendingFault>,
    now: Mono,
) {
    if let Some(PendingFault { entry, uncounted: Some(gpu), .. }) = fault {
        let row = xid::xid(code);
        count(counters, &gpu, &row);
        events.without_line(entry, &xid_event(&row, 0.0), now);
    }
}

fn count(counters: &mut OwnCounters, gpu: &Gpu, row: &Xid) {
    counters.add(&m::gpu_xid_faults_total, gpu, (row.action,), 1.0);
    counters.add(&m::gpu_xid_errors_total, gpu, labels(row), 1.0);
}

/// The labels of `gpu_xid_errors_total` that an Xid has.
pub fn labels(row: &Xid) -> (XidCode, Severity, FaultAction) {
    (XidCode(row.code.to_string().as_str().into()), row.severity, row.action)
}

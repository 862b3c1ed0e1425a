//! Pairs of reports. The driver and the kernel log report the same Xid, which counts once.

use std::sync::Arc;
use std::time::Duration;

use super::judge::xid_event;
use super::{Faults, WINDOW};
use model::catalog::{self as m, FaultAction, Gpu, Severity, XidCode};
use model::clock::Mono;
use model::snapshot::Event;
use model::xid::{self, Xid};

/// Time that the log waits for the report of the other source.
const PATIENCE: Duration = Duration::from_secs(1);
/// Faults of one GPU and code that wait for the other source; more than a flood produces in that time.
const MAX_WAITING: usize = 65_536;

/// Fault that one source has reported.
pub(crate) struct PendingFault {
    /// Whether the driver reported the fault; otherwise the kernel log did.
    nvml: bool,
    heard: Mono,
    entry: u64,
    /// GPU of a report that is not counted yet, because the line of the kernel log decides how.
    uncounted: Option<Gpu>,
}

impl Faults {
    /// Records a fault of a known GPU: a new one, or the second report of a known one.
    pub(super) fn xid(&mut self, gpu: Gpu, row: &Xid, entry: Event, heard: Mono) {
        let entry = Event { gpu: Some(gpu.clone()), ..entry };
        let nvml = entry.nvml;
        let key = (gpu.uuid.clone(), row.code);
        self.expire(&key, heard);
        // All waiting reports have the same source, because matching pairs have been removed.
        if let Some(first) = self.pop_waiting(&key, |first| first.nvml != nvml) {
            if first.uncounted.is_some() {
                self.count(&gpu, row);
            }
            if first.uncounted.is_some() || xid::depends_on_text(row.code) && !nvml {
                // So far counted by its code only, or not at all.
                self.states.entry(gpu.uuid.clone()).or_default().note(row, heard);
            }
            self.events.enrich(first.entry, entry, heard);
            return;
        }
        self.note_newest(&gpu, entry.unix_seconds, row.code);
        // The driver's report lacks process and text. The line of the kernel log is complete.
        let more = nvml && self.reads_kernel_log.is_some_and(|since| since <= heard);
        let uncounted = (more && xid::depends_on_text(row.code)).then(|| gpu.clone());
        if uncounted.is_none() {
            self.states.entry(gpu.uuid.clone()).or_default().note(row, heard);
            self.count(&gpu, row);
        }
        let wait = if more { PATIENCE } else { Duration::ZERO };
        let entry = self.falls.list(&mut self.events, entry, heard, wait);
        let queue = self.waiting.entry(key).or_default();
        queue.push_back(PendingFault { nvml, heard, entry, uncounted });
        if queue.len() > MAX_WAITING
            && let Some(oldest) = queue.pop_front()
        {
            self.count_without_line(row.code, oldest, heard);
        }
    }

    fn count(&mut self, gpu: &Gpu, row: &Xid) {
        self.counters.add(&m::gpu_xid_faults_total, gpu, (row.action,), 1.0);
        self.counters.add(&m::gpu_xid_errors_total, gpu, labels(row), 1.0);
    }

    pub(super) fn note_newest(&mut self, gpu: &Gpu, unix_seconds: f64, code: u32) {
        let last = &mut self.states.entry(gpu.uuid.clone()).or_default().last_xid;
        if last.is_none_or(|(newest, _)| newest <= unix_seconds) {
            *last = Some((unix_seconds, code));
        }
    }

    /// Ends the waits that took too long.
    pub(super) fn expire_pairs(&mut self, now: Mono) {
        let keys: Vec<_> = self.waiting.keys().cloned().collect();
        keys.iter().for_each(|key| self.expire(key, now));
        self.waiting.retain(|_, queue| !queue.is_empty());
    }

    /// Ends the wait of faults that the other source did not report in time.
    fn expire(&mut self, key: &(Arc<str>, u32), now: Mono) {
        while let Some(fault) = self.pop_waiting(key, |first| now.since(first.heard) > WINDOW) {
            self.count_without_line(key.1, fault, now);
        }
    }

    /// Removes the fault that has waited longest, if it fits.
    fn pop_waiting(
        &mut self,
        key: &(Arc<str>, u32),
        fits: impl Fn(&PendingFault) -> bool,
    ) -> Option<PendingFault> {
        let queue = self.waiting.get_mut(key)?;
        queue.front().is_some_and(fits).then(|| queue.pop_front())?
    }

    /// Counts a fault without a line, by its code only. Codes that depend on their line never page without one.
    fn count_without_line(&mut self, code: u32, fault: PendingFault, now: Mono) {
        if let PendingFault { entry, uncounted: Some(gpu), .. } = fault {
            let row = xid::xid(code);
            self.count(&gpu, &row);
            self.events.without_line(entry, &xid_event(&row, 0.0), now);
        }
    }
}

/// Returns the labels of an Xid in `gpu_xid_errors_total`.
pub fn labels(row: &Xid) -> (XidCode, Severity, FaultAction) {
    (XidCode(row.code.to_string().as_str().into()), row.severity, row.action)
}

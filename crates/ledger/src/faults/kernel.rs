//! Lines of the kernel log: one function for each kind of line, and the lines that wait for their GPU.

use std::sync::Arc;
use std::time::Duration;

use super::judge::{describe, gpu_failure, judged, judged_sxid, quiet, xid_event};
use super::pairs::labels;
use super::{Faults, SeenReset};
use model::catalog::{self as m, Node, RecoveryAction, SwitchName, SxidCode};
use model::clock::Mono;
use model::fact::{Fact, FactKind, GpuFailure, KernelFact, KernelLine, XidDetail};
use model::snapshot::{Event, EventKind};
use model::xid::Xid;

/// Maximum number of lines that wait for the GPU with their address.
pub const MAX_HOMELESS: usize = 4096;

/// Time of a fact, and the owner of the work.
pub(crate) struct Heard {
    pub at: Mono,
    pub unix_seconds: f64,
    pub owner: Option<Arc<str>>,
}

impl Faults {
    /// Applies a line, and returns the reset that it shows.
    pub(super) fn kernel(&mut self, fact: KernelFact, heard: Heard) -> Option<SeenReset> {
        let reset = self.reset_in(&fact, &heard);
        let Heard { at, unix_seconds, owner } = heard;
        let KernelFact { old, line, text } = fact;
        let said = |base| Event { text, old, owner, kmsg: true, ..base };
        match line {
            KernelLine::Xid { pci, code, pid, process, gpu_instance, compute_instance, detail } => {
                let (pci, row) = (Some(pci), judged(code, detail.as_ref()));
                let base = xid_event(&row, unix_seconds);
                let entry = said(Event { pci, pid, process, gpu_instance, compute_instance, ..base });
                self.kernel_xid(&row, detail, entry, at);
            }
            KernelLine::GpuFailed { pci, failure } => {
                let (kind, severity, action, meaning) = gpu_failure(failure);
                let base = Event::new(kind, unix_seconds, severity, action);
                self.gpu_failed(failure, said(Event { pci, meaning, ..base }), at);
            }
            KernelLine::Sxid { nvswitch, pci, code, fatal } => {
                let base = Event { pci: Some(pci), ..sxid_event(code, fatal, unix_seconds) };
                self.sxid(nvswitch, said(base), at);
            }
            // About host memory, not about a GPU.
            KernelLine::OomKill { .. } => {}
            KernelLine::DriverLoaded { .. } => {
                let base = quiet(EventKind::DriverLoad, unix_seconds);
                self.driver_changed(said(Event { meaning: "The kernel module was loaded.", ..base }), at);
            }
            KernelLine::DriverUnloaded => {
                let base = quiet(EventKind::DriverUnload, unix_seconds);
                self.driver_changed(said(Event { meaning: "The kernel module was removed.", ..base }), at);
            }
        }
        reset
    }

    /// Returns the reset that a line shows: the driver no longer requests the reset that it requested before.
    fn reset_in(&mut self, fact: &KernelFact, heard: &Heard) -> Option<SeenReset> {
        let KernelFact { old: false, line: KernelLine::Xid { pci, detail, .. }, .. } = fact else {
            return None;
        };
        let Some(XidDetail::Recovery(change)) = detail else { return None };
        let from = change.from.filter(|from| *from != RecoveryAction::None)?;
        // A line with a request proves nothing by itself, because a visit from before the request would seem to end
        // it.
        let to = change.to.filter(|to| *to == RecoveryAction::None)?;
        let gpu = self.places.get(pci)?;
        self.resets.asks(&gpu.uuid, from, heard.at);
        let is_over = self.resets.asks(&gpu.uuid, to, heard.at);
        is_over.then(|| SeenReset { gpu: gpu.clone(), at: heard.at, unix_seconds: heard.unix_seconds })
    }

    fn kernel_xid(&mut self, row: &Xid, detail: Option<XidDetail>, mut entry: Event, at: Mono) {
        describe(&mut entry, row.code, detail.as_ref());
        match entry.pci.as_ref().and_then(|pci| self.places.get(pci)).cloned() {
            Some(gpu) if !entry.old => {
                let state = self.states.entry(gpu.uuid.clone()).or_default();
                if let Some(XidDetail::Unit(unit)) = detail {
                    entry.same_unit = state.units.record(row.code, &unit, entry.pid, entry.unix_seconds);
                }
                return self.xid(gpu, row, entry, at);
            }
            Some(gpu) => {
                self.note_newest(&gpu, entry.unix_seconds, row.code);
                entry.gpu = Some(gpu);
            }
            None if !entry.old => {
                self.counters.add(&m::gpu_xid_unknown_gpu_total, &Node {}, labels(row), 1.0);
            }
            None => {}
        }
        self.falls.list(&mut self.events, entry, at, Duration::ZERO);
    }

    fn gpu_failed(&mut self, failure: GpuFailure, mut entry: Event, at: Mono) {
        entry.gpu = entry.pci.as_ref().and_then(|pci| self.places.get(pci)).cloned();
        let is_fall = !entry.old && failure == GpuFailure::FallenOffBus;
        if let Some(gpu) = entry.gpu.as_ref().filter(|_| is_fall) {
            self.states.entry(gpu.uuid.clone()).or_default().note_fall();
        }
        if !self.falls.repeats_xid(&entry) {
            self.falls.list(&mut self.events, entry, at, Duration::ZERO);
        }
    }

    fn sxid(&mut self, nvswitch: String, entry: Event, at: Mono) {
        if let Some(code) = entry.code.filter(|_| !entry.old) {
            let number = u32::try_from(code).unwrap_or(u32::MAX);
            self.switches.note(&nvswitch, number, entry.fatal.unwrap_or_default());
            let name = SwitchName(nvswitch.as_str().into());
            let code = SxidCode(code.to_string().as_str().into());
            let labels = (name, code, entry.severity, entry.action);
            self.counters.add(&m::gpu_nvswitch_sxid_errors_total, &Node {}, labels, 1.0);
        }
        self.events.record(Event { nvswitch: Some(nvswitch), ..entry }, at, Duration::ZERO);
    }

    /// Records that the driver was loaded or removed.
    fn driver_changed(&mut self, entry: Event, at: Mono) {
        if !entry.old {
            self.driver_reset(entry.unix_seconds);
        }
        self.events.record(entry, at, Duration::ZERO);
    }

    /// Returns true if a fact must wait until more GPUs are known. A fact that counts waits only if its GPU is
    /// unknown. Old facts keep their order, but do not wait for GPUs that no earlier daemon saw.
    pub(super) fn waits(&self, fact: &Fact, behind: bool) -> bool {
        let FactKind::Kernel(KernelFact { line, .. }) = &fact.kind else { return false };
        let homeless = match line {
            KernelLine::Xid { pci, .. } | KernelLine::GpuFailed { pci: Some(pci), .. } => {
                !self.places.contains_key(pci)
            }
            _ => false,
        };
        if is_old(fact) { behind || homeless && !self.remembers } else { homeless }
    }
}

/// Returns the event of an NVSwitch fault.
fn sxid_event(code: u32, fatal: bool, unix_seconds: f64) -> Event {
    let row = judged_sxid(code, fatal);
    let base = Event::new(EventKind::Sxid, unix_seconds, row.severity, row.action);
    Event { code: Some(code.into()), meaning: row.meaning, fatal: Some(fatal), ..base }
}

/// Returns true if a line is older than the exporter's reading of the log.
pub fn is_old(fact: &Fact) -> bool {
    matches!(&fact.kind, FactKind::Kernel(KernelFact { old: true, .. }))
}

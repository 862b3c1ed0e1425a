//! Evaluation of health as a pure function of one publication.

use std::collections::VecDeque;
use std::time::Duration;

use crate::canary::loudness;
use crate::catalog::schema::{Entity, KnownLabel, LabelSet, Metric};
use crate::catalog::{
    self as m, ClockEvent, EccCounter, EccError, FabricFault, FabricState, FaultAction, Gpu, NvLinkError,
    RecoveryAction, RepairPart, Severity, Subject, UnhealthyReason,
};
use crate::health::{
    AbsentGpu, Condition, GpuHealth, HealthLevel, HealthReason, NOT_LISTED, NodeHealth, PublishedValue,
};
use crate::sample::Missing;
use crate::snapshot::{DriverState, EventKind, GpuState, GpuView, Snapshot};
use crate::text::{capitalized, duration, plain};

/// Maximum number of missing GPUs in the node's sentence, which is also the reason of a drained node.
const MOST_ABSENT: usize = 2;
/// Degrees below the slowdown temperature at which a GPU is near its limit.
const NEAR_SLOWDOWN: f64 = 5.0;
/// Seconds for which a fault is a reason.
const RECENT_FAULT: f64 = 3600.0;
const HALF_HOUR: Duration = Duration::from_secs(1800);
const HOUR: Duration = Duration::from_secs(3600);
/// NVLink errors by kind: the time for which they count, and how many are harmless in that time. The alert
/// `GpuNvlinkErrors` has the same limits for recoveries (by link) and for checksum errors, which the link repairs:
/// 100 per second.
const LINK_ERRORS: [(NvLinkError, Duration, f64); 5] = [
    (NvLinkError::Replay, HOUR, 0.0),
    (NvLinkError::Recovery, HALF_HOUR, 2.0),
    (NvLinkError::LinkRecovery, HALF_HOUR, 2.0),
    (NvLinkError::RecoveryFailed, HOUR, 0.0),
    (NvLinkError::CrcFlit, HOUR, 360_000.0),
];

/// Longest time for which NVLink errors of any kind count.
pub const LONGEST_LINK_ERRORS: Duration = HOUR;

/// Returns the time for which NVLink errors of a kind count.
pub fn link_errors_count_for(kind: NvLinkError) -> Duration {
    let row = LINK_ERRORS.iter().find(|(known, ..)| *known == kind);
    row.map_or(LONGEST_LINK_ERRORS, |(_, time, _)| *time)
}

/// Findings of the ledger about a GPU, in addition to the published values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The driver no longer lists the GPU, and no listed GPU has its index.
    pub missing: bool,
    /// Recovery action that the driver requests, even while values are withdrawn.
    pub recovery_action: Option<RecoveryAction>,
    /// An Xid occurred after which the GPU needs a reset, or the GPU fell off the bus.
    pub fatal_xid: bool,
    /// There was a memory error that is not known to be contained.
    pub uncontained_ecc: bool,
    /// A memory row could not be replaced, even while values are withdrawn.
    pub row_remap_failure: bool,
    /// The canary found a wrong result, a failure or a hang.
    pub canary: bool,
    /// Other conditions that the ledger found, with their sentences.
    pub conditions: Vec<(Condition, String)>,
    /// Time of the last reset or driver load, in seconds since 1970. Earlier faults are over.
    pub reset: Option<f64>,
    /// New NVLink errors, by kind.
    pub nvlink: Vec<NewLinkErrors>,
}

/// New NVLink errors of one kind on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct NewLinkErrors {
    pub kind: NvLinkError,
    /// Number of errors on all links.
    pub all: f64,
    /// Number of errors on the worst link.
    pub worst: f64,
    /// Number of links with errors.
    pub links: u32,
}

impl NewLinkErrors {
    /// Returns true if the errors exceed the limit. If more than half of the GPU's links recovered, they were
    /// retrained together, for example after the reset of a peer.
    fn exceed(&self, limit: f64, links_of_gpu: Option<f64>) -> bool {
        use NvLinkError::{LinkRecovery, Recovery};
        if !matches!(self.kind, Recovery | LinkRecovery) {
            return self.all > limit;
        }
        let together = links_of_gpu.is_some_and(|links| f64::from(self.links) > 0.5 * links);
        self.worst > limit && !together
    }
}

/// Input of an evaluation.
pub struct HealthEvidence<'a> {
    /// Snapshot without health and families.
    pub snapshot: &'a Snapshot,
    /// Number of expected GPUs that are not listed.
    pub missing: usize,
    /// Missing GPUs that are known but not in the snapshot.
    pub absent: Vec<AbsentGpu>,
    /// Returns a published value.
    pub value: &'a PublishedValue<'a>,
}

impl HealthEvidence<'_> {
    /// Returns the verdicts on GPUs and node.
    pub fn evaluate(self, findings: impl Fn(&Gpu) -> Findings) -> NodeHealth {
        let gpus: Vec<_> =
            self.snapshot.gpus.iter().map(|view| self.gpu(view, findings(&view.gpu))).collect();
        let (level, text) = self.node(&gpus);
        NodeHealth { level, text, gpus, absent: self.absent }
    }

    fn gpu(&self, view: &GpuView, found: Findings) -> GpuHealth {
        let subject = view.gpu.subject();
        let mut gpu = ReasonList { evidence: self, gpu: &view.gpu, subject, reasons: Vec::new() };
        let word = gpu.state(&view.state, &found);
        gpu.faults(&found);
        gpu.canary(&found);
        gpu.memory(&found);
        gpu.clocks();
        gpu.pcie();
        gpu.links(&found);
        gpu.failed_calls(view);
        let mut reasons = gpu.reasons;
        // The sort is stable, so the state comes first among reasons of the same level.
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.level));
        let level = match reasons.first().map_or(HealthLevel::Ok, |reason| reason.level) {
            HealthLevel::Note if view.state != GpuState::Paused => HealthLevel::Ok,
            level => level,
        };
        let word = word.unwrap_or(match level {
            HealthLevel::Ok | HealthLevel::Note => "ok",
            HealthLevel::Waiting => "waiting",
            HealthLevel::Degraded => "degraded",
            HealthLevel::Faulty => "faulty",
        });
        let faulty = reasons.iter().any(|reason| reason.condition.unhealthy().is_some());
        let healthy = match view.state {
            GpuState::Waiting | GpuState::NoDriver | GpuState::Paused => None,
            // Earlier findings stay, but a GPU without readings is not at fault.
            GpuState::Unread if !faulty => None,
            _ => Some(!faulty),
        };
        GpuHealth { gpu: view.gpu.clone(), level, word, reasons, healthy }
    }

    fn node(&self, gpus: &[GpuHealth]) -> (HealthLevel, String) {
        let known = match gpus.len() {
            0 => String::new(),
            1 => " 1 GPU is known from before.".to_owned(),
            n => format!(" {n} GPUs are known from before."),
        };
        let state = &self.snapshot.driver;
        let driver = capitalized(&state.text());
        match state {
            DriverState::Waiting => (HealthLevel::Waiting, "Waiting for the driver's first answer.".into()),
            DriverState::Up => self.listed(gpus),
            DriverState::Stuck | DriverState::Away { .. } => {
                let text = state.text();
                (HealthLevel::Faulty, format!("The driver is {}.{known}", text.trim_end_matches('.')))
            }
            DriverState::Mismatch { .. } => (HealthLevel::Faulty, format!("{driver}.{known}")),
            DriverState::Paused { holders, .. } => {
                // A release is deliberate. Only one that does not complete requires attention.
                let level = if holders.is_empty() { HealthLevel::Note } else { HealthLevel::Degraded };
                (level, format!("{driver}.{known}"))
            }
        }
    }

    /// Returns level and sentence of the node while the driver answers.
    fn listed(&self, gpus: &[GpuHealth]) -> (HealthLevel, String) {
        let mut ill: Vec<_> = gpus.iter().filter(|gpu| gpu.level > HealthLevel::Note).collect();
        ill.sort_by_key(|gpu| (std::cmp::Reverse(gpu.level), gpu.word, gpu.gpu.gpu));
        let mut level = ill.first().map_or(HealthLevel::Ok, |gpu| gpu.level);
        let mut text = match (gpus.len(), gpus.len() - ill.len()) {
            (0, _) => "The driver lists no GPU".to_owned(),
            (1, 1) => "1 GPU, ok".to_owned(),
            (1, _) => "1 GPU".to_owned(),
            (n, ok) if n == ok => format!("{n} GPUs, all ok"),
            (n, 0) => format!("{n} GPUs, none ok"),
            (n, ok) => format!("{n} GPUs, {ok} ok"),
        };
        if self.missing > 0 {
            level = HealthLevel::Faulty;
            text += &format!(", {} missing", self.missing);
            let names: Vec<String> = self.absent.iter().take(MOST_ABSENT).map(AbsentGpu::name).collect();
            if !names.is_empty() {
                let more = if self.absent.len() > MOST_ABSENT { ", ..." } else { "" };
                text += &format!(" ({}{more})", names.join(", "));
            }
        }
        if let [worst, rest @ ..] = ill.as_slice() {
            text += &format!(", GPU {} {}", worst.gpu.gpu, worst.word);
            if let Some(reason) = worst.reasons.first() {
                text += &format!(": {}", reason.text);
            }
            // The other GPUs are grouped by state. Their reasons are on their cards.
            for alike in rest.chunk_by(|a, b| a.word == b.word) {
                let gpus: Vec<String> = alike.iter().map(|gpu| gpu.gpu.gpu.to_string()).collect();
                text += &format!("; {}: GPU {}", alike[0].word, gpus.join(", "));
            }
        }
        for collector in self.snapshot.collectors.iter().filter(|c| !c.up && !c.text.is_empty()) {
            level = level.max(HealthLevel::Degraded);
            text += &format!("; collector {} is down", collector.name);
        }
        (level, text + ".")
    }
}

/// Reasons of one GPU, while they are collected.
struct ReasonList<'a> {
    evidence: &'a HealthEvidence<'a>,
    gpu: &'a Gpu,
    subject: Subject,
    reasons: Vec<HealthReason>,
}

impl ReasonList<'_> {
    fn add(&mut self, condition: Condition, text: impl Into<String>) {
        self.add_with(condition, text, condition.action());
    }

    fn add_with(&mut self, condition: Condition, text: impl Into<String>, action: FaultAction) {
        self.reasons.push(HealthReason { condition, level: condition.level(), text: text.into(), action });
    }

    fn number<L: LabelSet>(&self, metric: &Metric<Gpu, L>, labels: L) -> Option<f64> {
        (self.evidence.value)(metric.id(), &self.subject, &labels.texts())
    }

    /// Adds the state as a reason, and returns its word.
    fn state(&mut self, state: &GpuState, found: &Findings) -> Option<&'static str> {
        let (condition, word) = match state {
            GpuState::Up => return None,
            GpuState::Waiting => (Condition::Waiting, "waiting"),
            GpuState::Stuck { .. } => (Condition::Stuck, "stuck"),
            GpuState::Failing { .. } | GpuState::Unread if found.missing => {
                self.add(Condition::Missing, NOT_LISTED);
                return Some("missing");
            }
            GpuState::Unread => (Condition::Unread, "unread"),
            GpuState::Failing { error, .. } if error.is_lost() => (Condition::Lost, "failing"),
            GpuState::Failing { .. } => (Condition::Failing, "failing"),
            GpuState::NoDriver => (Condition::NoDriver, "no driver"),
            GpuState::Paused => (Condition::Paused, "paused"),
        };
        self.add(condition, state.text());
        Some(word)
    }

    /// Adds recent faults that are not just a program's, the newest of each code, and the actions that they and the
    /// driver require. Faults before the last reset are over.
    fn faults(&mut self, found: &Findings) {
        let snapshot = self.evidence.snapshot;
        let (mut seen, mut paging) = (Vec::new(), VecDeque::new());
        for event in snapshot.events.iter().rev().filter(|e| e.gpu.as_ref() == Some(self.gpu) && !e.old) {
            let age = snapshot.unix_seconds - event.last_unix_seconds;
            // `state` and `canary` add the reasons for these events.
            let elsewhere = matches!(event.kind, EventKind::Canary | EventKind::GpuLost);
            if elsewhere
                || event.severity == Severity::Info
                || age > RECENT_FAULT
                || found.reset.is_some_and(|reset| event.last_unix_seconds <= reset)
                || seen.contains(&(event.kind, event.code))
            {
                continue;
            }
            seen.push((event.kind, event.code));
            if event.severity == Severity::Page {
                paging.push_back(self.reasons.len());
            }
            self.add_with(Condition::RecentFault, event.line(), event.action);
        }
        // The ledger keeps both until a reset. The text of a recent event is better.
        for (holds, condition, text) in [
            (found.fatal_xid, Condition::FatalXid, "a fault came after which the GPU needs a reset"),
            (found.uncontained_ecc, Condition::UncontainedEcc, "a memory error is not known to be contained"),
        ] {
            if !holds {
                continue;
            }
            match paging.pop_front().and_then(|at| self.reasons.get_mut(at)) {
                Some(event) => (event.condition, event.level) = (condition, condition.level()),
                None => self.add(condition, text),
            }
        }
        if let Some(action) = found.recovery_action {
            let first = match action {
                RecoveryAction::NodeReboot => FaultAction::RebootNode,
                _ => Condition::RecoveryAction.action(),
            };
            let text = match action {
                RecoveryAction::None => return,
                RecoveryAction::GpuReset => "the driver asks for a reset of the GPU",
                RecoveryAction::NodeReboot => "the driver asks for a reboot of the node",
                RecoveryAction::DrainP2p => "the driver asks to drain peer-to-peer traffic",
                RecoveryAction::DrainAndReset => "the driver asks to drain the GPU, then to reset it",
            };
            self.add_with(Condition::RecoveryAction, text, first);
        }
    }

    fn canary(&mut self, found: &Findings) {
        let snapshot = self.evidence.snapshot;
        for place in snapshot.canary.places_on(self.gpu) {
            let on = match &place.instance {
                Some(instance) => format!(" on {} #{}", instance.profile, instance.gpu_instance),
                None => String::new(),
            };
            if let Some(step) = place.hung {
                self.add(Condition::CanaryHung, format!("the canary{on} hangs in {}", plain(step.known())));
            }
            for check in &place.checks {
                let condition = match loudness(check.verdict) {
                    Some(Severity::Page) => Condition::CanaryFailed,
                    Some(Severity::Ticket) => Condition::CanaryDegraded,
                    Some(Severity::Info) | None => continue,
                };
                self.add(condition, format!("canary{on}, {}: {}", check.check.known(), check.text));
            }
        }
        for (condition, text) in &found.conditions {
            self.add(*condition, text.as_str());
        }
        let shown = |reason: &HealthReason| reason.condition.unhealthy() == Some(UnhealthyReason::Canary);
        if found.canary && !self.reasons.iter().any(shown) {
            self.add(Condition::CanaryFailed, "the canary failed, and no valid run came since");
        }
    }

    fn memory(&mut self, found: &Findings) {
        if found.row_remap_failure {
            let text = "a memory row could not be replaced: the board is a candidate for return";
            self.add(Condition::RowRemapFailure, text);
        }
        if self.number(&m::gpu_row_remap_pending, ()) == Some(1.0) {
            self.add(Condition::RowRemapPending, "a memory row waits for a GPU reset");
        }
        let errors = self.number(&m::gpu_ecc_total_errors, (EccCounter::Volatile, EccError::Uncorrected));
        if let Some(errors) = errors.filter(|errors| *errors > 0.0) {
            let s = if errors == 1.0 { "" } else { "s" };
            let text = format!("{errors:.0} uncorrected ECC error{s} since the driver was loaded");
            self.add(Condition::EccUncorrected, text);
        }
        if self.number(&m::gpu_ecc_sram_threshold_exceeded, ()) == Some(1.0) {
            let text =
                "uncorrected SRAM errors exceed the vendor's threshold: the board is a candidate for return";
            self.add(Condition::SramThreshold, text);
        }
        if self.number(&m::gpu_retired_pages_pending, ()) == Some(1.0) {
            self.add(Condition::RepairPending, "a page of memory waits for a GPU reset to be retired");
        }
        for part in RepairPart::ALL {
            if self.number(&m::gpu_repair_pending, (*part,)) == Some(1.0) {
                let text = format!("a repair waits for a GPU reset: {}", plain(part.known()));
                self.add(Condition::RepairPending, text);
            }
        }
    }

    /// Adds the reasons of NVLinks and fabric.
    fn links(&mut self, found: &Findings) {
        let joins = |state| self.number(&m::gpu_fabric_state, (state,)) == Some(1.0);
        if joins(FabricState::NotStarted) || joins(FabricState::InProgress) {
            self.add(Condition::FabricDown, "the GPU has not joined the NVLink fabric");
        }
        if let Some(status) = self.number(&m::gpu_fabric_status, ()).filter(|status| *status != 0.0) {
            let text = format!("joining the NVLink fabric failed with status {status:.0}");
            self.add(Condition::FabricDown, text);
        }
        for fault in FabricFault::ALL {
            if self.number(&m::gpu_fabric_fault, (*fault,)) == Some(1.0) {
                let text = format!("the NVLink fabric reports: {}", plain(fault.known()));
                self.add(Condition::FabricFault, text);
            }
        }
        let links = self.number(&m::gpu_nvlink_links, ());
        let texts = |loud: bool| {
            let known = LINK_ERRORS.iter().flat_map(|(kind, time, limit)| {
                let new = found.nvlink.iter().find(|new| new.kind == *kind)?;
                let text = || format!("{:.0} {} within {}", new.all, kind.known(), duration(*time));
                (new.exceed(*limit, links) == loud).then(text)
            });
            known.collect::<Vec<String>>().join(", ")
        };
        let (loud, quiet) = (texts(true), texts(false));
        for (condition, text) in [(Condition::NvlinkErrors, loud), (Condition::NvlinkNoted, quiet)] {
            if !text.is_empty() {
                self.add(condition, format!("NVLink errors: {text}"));
            }
        }
    }

    fn clocks(&mut self) {
        let active = |event| self.number(&m::gpu_clock_event_active, (event,)) == Some(1.0);
        let (heat, brake) = (active(ClockEvent::HwThermalSlowdown), active(ClockEvent::HwPowerBrakeSlowdown));
        let soft_heat = active(ClockEvent::SwThermalSlowdown);
        // The driver sets the general reason together with the two above.
        let other = active(ClockEvent::HwSlowdown) && !heat && !brake;
        for (holds, condition, text) in [
            (heat, Condition::HwThermalSlowdown, "the hardware slows it down for heat"),
            (brake, Condition::HwPowerBrake, "an external power brake slows it down"),
            (other, Condition::HwSlowdown, "the hardware slows it down"),
            (soft_heat, Condition::SwThermalSlowdown, "the driver slows it down for heat"),
            (active(ClockEvent::SwPowerCap), Condition::PowerCap, "at its power limit"),
        ] {
            if holds {
                self.add(condition, text);
            }
        }
        let margin = self.number(&m::gpu_temperature_margin_celsius, ());
        if let Some(margin) = margin.filter(|margin| *margin <= NEAR_SLOWDOWN) {
            self.add(Condition::NearSlowdown, format!("{margin:.0} °C left until it slows down for heat"));
        }
    }

    fn pcie(&mut self) {
        let below = |now: &Metric<Gpu, ()>, max: &Metric<Gpu, ()>| {
            self.number(now, ()).zip(self.number(max, ())).filter(|(now, max)| now < max)
        };
        let width = below(&m::gpu_pcie_link_width_lanes, &m::gpu_pcie_link_max_width_lanes);
        let generation = below(&m::gpu_pcie_link_generation, &m::gpu_pcie_link_max_generation);
        // An idle GPU lowers the generation to save power.
        let idle = self.number(&m::gpu_clock_event_active, (ClockEvent::GpuIdle,)) == Some(1.0)
            || self.number(&m::gpu_utilization_ratio, ()).is_none_or(|busy| busy == 0.0);
        if let Some((now, max)) = width {
            self.add(Condition::PcieWidthNarrowed, format!("PCIe uses {now:.0} of {max:.0} lanes"));
        }
        if let Some((now, max)) = generation.filter(|_| !idle) {
            self.add(Condition::PcieGenerationLow, format!("PCIe runs at generation {now:.0} of {max:.0}"));
        }
    }

    fn failed_calls(&mut self, view: &GpuView) {
        let failed = view.gaps.iter().filter_map(|gap| match &gap.missing {
            Missing::Failed { text, .. } => Some((gap.call.as_str(), text)),
            Missing::Unsupported | Missing::Dropped(_) => None,
        });
        let failed: Vec<_> = failed.collect();
        if let [(call, text), rest @ ..] = failed.as_slice() {
            let more = if rest.is_empty() { String::new() } else { format!(", and {} more", rest.len()) };
            self.add(Condition::CallFailed, format!("{call} failed: {text}{more}"));
        }
    }
}

#[cfg(test)]
mod tests;

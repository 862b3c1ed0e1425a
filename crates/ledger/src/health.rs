//! The evidence for the verdicts of [`model::health`], and the metrics of them.

use super::Ledger;
use super::publish::Builder;
use model::catalog::schema::{Entity, KnownLabel, Label, LabelText};
use model::catalog::{self as m, Gpu, MetricId, Node, RecoveryAction, Subject, Tier, UnhealthyReason};
use model::clock::Mono;
use model::health::{Findings, HealthEvidence, NodeHealth};
use model::sample::{Part, Row, Source};
use model::snapshot::{CanaryView, CollectorView, DriverState, GpuView};

impl Ledger {
    /// The verdicts on GPUs and node, and their metrics. After everything that they read is put.
    pub(super) fn put_health(
        &mut self,
        b: &mut Builder<'_>,
        now: Mono,
        unix_seconds: f64,
        gpus: &[GpuView],
        canary: &CanaryView,
        collectors: &[CollectorView],
    ) -> NodeHealth {
        let driver = &self.driver(now);
        let listed = self.listed(now).filter(|_| *driver == DriverState::Up);
        let missing = listed.map(|listed| self.expected().saturating_sub(listed));
        if let Some(missing) = missing {
            b.put(&m::gpu_devices_missing, &Node {}, (), missing as f64);
        }
        let missing = missing.unwrap_or(0);
        let events = self.faults.list();
        let value =
            |metric: MetricId, subject: &Subject, labels: &[LabelText]| b.number(metric, subject, labels);
        let evidence = HealthEvidence {
            unix_seconds,
            driver,
            events: &events,
            canary,
            collectors,
            missing,
            value: &value,
        };
        let health = evidence.evaluate(gpus, |gpu| self.findings(gpu, now, missing > 0));
        for gpu in health.gpus.iter().filter(|gpu| gpu.healthy.is_some()) {
            put(b, &gpu.gpu, |reason| gpu.has(reason));
        }
        if missing > 0 {
            // GPUs that an earlier daemon, or an earlier load of the driver, had seen under these labels.
            for gone in self.seen.gpus.iter().filter(|gone| self.gpus.keys().all(|g| *g.uuid != *gone.uuid)) {
                let gpu = Gpu { gpu: gone.index, uuid: gone.uuid.as_str().into() };
                b.put(&m::gpu_up, &gpu, (), 0.0);
                put(b, &gpu, |reason| reason == UnhealthyReason::Missing);
            }
        }
        health
    }

    fn findings(&self, gpu: &Gpu, now: Mono, some_missing: bool) -> Findings {
        let faults = self.faults.book(gpu);
        let action = |action: &&RecoveryAction| {
            **action != RecoveryAction::None
                && self.any(gpu, now, m::gpu_recovery_action.id(), |row| row.labels == [action.text()])
        };
        Findings {
            missing: some_missing && self.gpus.get(gpu).is_some_and(|book| book.no_handle.is_none()),
            recovery_action: RecoveryAction::ALL.iter().find(action).copied(),
            fatal_xid: faults.is_some_and(|book| book.fatal),
            uncontained_ecc: faults.is_some_and(|book| book.uncontained(now)),
            row_remap_failure: self.any(gpu, now, m::gpu_row_remap_failure.id(), |_| true),
            canary: self.canary.faulty(gpu),
        }
    }

    /// GPUs there should be.
    pub(super) fn expected(&self) -> usize {
        match self.settings.expected_gpus {
            0 => self.seen.devices,
            configured => configured,
        }
    }

    /// GPUs the driver lists.
    fn listed(&self, now: Mono) -> Option<usize> {
        let part = Part { collector: Source::Nvml, gpu: None, tier: Tier::Slow };
        let held = self.parts.get(&part).filter(|held| !held.expired(now))?;
        let mut rows = held.rows.groups().iter().flat_map(|(_, rows)| rows);
        rows.find(|row| row.metric == m::gpu_devices.id()).map(|row| row.value as usize)
    }

    /// Whether a row of this metric in a GPU's slow tier, which may be withdrawn, is above 0.
    fn any(&self, gpu: &Gpu, now: Mono, metric: MetricId, fits: impl Fn(&Row) -> bool) -> bool {
        let part = Part { collector: Source::Nvml, gpu: Some(gpu.clone()), tier: Tier::Slow };
        let Some(held) = self.parts.get(&part).filter(|held| !held.expired(now)) else { return false };
        let own = held.rows.groups().iter().filter(|(subject, _)| *subject == gpu.subject());
        own.flat_map(|(_, rows)| rows).any(|row| row.metric == metric && row.value > 0.0 && fits(row))
    }
}

fn put(b: &mut Builder<'_>, gpu: &Gpu, holds: impl Fn(UnhealthyReason) -> bool) {
    let healthy = !UnhealthyReason::ALL.iter().any(|reason| holds(*reason));
    b.put(&m::gpu_healthy, gpu, (), f64::from(u8::from(healthy)));
    for reason in UnhealthyReason::ALL {
        b.put(&m::gpu_unhealthy_reason, gpu, (*reason,), f64::from(u8::from(holds(*reason))));
    }
}

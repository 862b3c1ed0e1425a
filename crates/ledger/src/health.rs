//! Evidence for the verdicts of [`model::health`], and their metrics.

use model::catalog::schema::{Entity, KnownLabel, Label, LabelText};
use model::catalog::{self as m, Gpu, MetricId, Node, RecoveryAction, Subject, Tier, UnhealthyReason};
use model::clock::Mono;
use model::health::{AbsentGpu, Condition, NodeHealth};
use model::sample::Row;
use model::snapshot::{DriverState, GpuState, Snapshot};
use model::verdict::{Findings, HealthEvidence};

use super::Ledger;
use super::builder::Builder;

impl Ledger {
    /// Publishes the verdicts on GPUs and node. Everything that they read must be published before.
    pub(super) fn publish_health(&self, b: &mut Builder<'_>, snapshot: &Snapshot) -> NodeHealth {
        let now = snapshot.taken;
        let listed = self.listed(now, &snapshot.driver);
        let missing = self.missing(now, &snapshot.driver);
        b.add_known(&m::gpu_devices_missing, &Node {}, (), missing.map(|missing| missing as f64));
        let missing = missing.unwrap_or(0);
        if self.settings.expected_gpus > 0 {
            b.add(&m::gpu_devices_declared, &Node {}, (), self.settings.expected_gpus as f64);
        }
        let value =
            |metric: MetricId, subject: &Subject, labels: &[LabelText]| b.number(metric, subject, labels);
        let absent = self.absent(now, &snapshot.driver);
        let evidence = HealthEvidence { snapshot, missing, absent, value: &value };
        let health = evidence.evaluate(|gpu| self.findings(gpu, snapshot, !is_listed(gpu, listed)));
        for gpu in health.gpus.iter().filter(|gpu| gpu.healthy.is_some()) {
            publish(b, &gpu.gpu, |reason| gpu.has(reason));
        }
        for AbsentGpu { gpu, health, .. } in &health.absent {
            b.add(&m::gpu_up, gpu, (), 0.0);
            publish(b, gpu, |reason| health.has(reason));
        }
        health
    }

    /// Returns how many GPUs the driver lists, if known.
    pub(super) fn listed(&self, now: Mono, driver: &DriverState) -> Option<usize> {
        self.intake.listed_gpus(now).filter(|_| *driver == DriverState::Up)
    }

    /// Returns how many expected GPUs the driver does not list, or `None` if its list is unknown.
    fn missing(&self, now: Mono, driver: &DriverState) -> Option<usize> {
        self.listed(now, driver)
            .map(|listed| self.inventory.expected(self.settings.expected_gpus).saturating_sub(listed))
    }

    /// Returns the GPUs that the driver no longer lists: those known to an earlier daemon, and those that fail and
    /// whose index is not taken by another GPU.
    pub(super) fn unlisted(&self, now: Mono, driver: &DriverState, states: &[(Gpu, GpuState)]) -> Vec<Gpu> {
        let listed = self.listed(now, driver);
        let fails = |state: &GpuState| matches!(state, GpuState::Failing { .. } | GpuState::Unread);
        let gone = states.iter().filter(|(gpu, state)| fails(state) && !is_listed(gpu, listed));
        let absent = self.absent(now, driver).into_iter().map(|absent| absent.gpu);
        absent.chain(gone.map(|(gpu, _)| gpu.clone())).collect()
    }

    /// Returns the GPUs that the driver no longer lists and of which nothing is stored. Returns none before all
    /// listed GPUs are identified, because the others would be among them.
    fn absent(&self, now: Mono, driver: &DriverState) -> Vec<AbsentGpu> {
        let identified = self.intake.gpus().filter(|gpu| !gpu.uuid.is_empty()).count();
        if self.listed(now, driver).is_none_or(|listed| identified < listed)
            || self.missing(now, driver) == Some(0)
        {
            return Vec::new();
        }
        let absent = self.inventory.absent(|uuid| self.intake.gpu_by_uuid(uuid).is_some());
        let absent = absent.map(|gone| {
            let gpu = Gpu { gpu: gone.index, uuid: gone.uuid.as_str().into() };
            AbsentGpu::new(gpu, gone.pci.clone(), Some(gone.last_seen).filter(|seen| *seen > 0))
        });
        absent.collect()
    }

    fn findings(&self, gpu: &Gpu, snapshot: &Snapshot, missing: bool) -> Findings {
        let now = snapshot.taken;
        let faults = self.faults.state_of(gpu);
        let action = |action: &&RecoveryAction| {
            **action != RecoveryAction::None
                && self.any(gpu, now, m::gpu_recovery_action.id(), |row| row.labels == [action.text()])
        };
        let wrong = self.wrong_results.reason(&gpu.uuid, snapshot.unix_seconds);
        Findings {
            missing,
            recovery_action: RecoveryAction::ALL.iter().find(action).copied(),
            fatal_xid: faults.is_some_and(|faults| faults.fatal),
            uncontained_ecc: faults.is_some_and(|faults| faults.uncontained(now)),
            row_remap_failure: self.any(gpu, now, m::gpu_row_remap_failure.id(), |_| true),
            canary: self.canary.faulty(gpu),
            conditions: wrong.map(|text| (Condition::WrongResult, text)).into_iter().collect(),
            reset: self.faults.over_since(gpu),
            nvlink: self.links.new_errors(&gpu.uuid, now),
        }
    }

    /// Returns true if a fitting row of this metric in the GPU's slow tier is above 0, even if it is withdrawn.
    fn any(&self, gpu: &Gpu, now: Mono, metric: MetricId, fits: impl Fn(&Row) -> bool) -> bool {
        let Some(stored) = self.intake.fresh(gpu, Tier::Slow, now) else { return false };
        let own = stored.rows.groups().iter().filter(|(subject, _)| *subject == gpu.subject());
        own.flat_map(|(_, rows)| rows).any(|row| row.metric == metric && row.value > 0.0 && fits(row))
    }
}

/// Returns true if a GPU has one of the listed indices, or if the number of listed GPUs is unknown.
fn is_listed(gpu: &Gpu, listed: Option<usize>) -> bool {
    listed.is_none_or(|listed| (gpu.gpu as usize) < listed)
}

fn publish(b: &mut Builder<'_>, gpu: &Gpu, holds: impl Fn(UnhealthyReason) -> bool) {
    let healthy = !UnhealthyReason::ALL.iter().any(|reason| holds(*reason));
    b.flag(&m::gpu_healthy, gpu, (), healthy);
    for reason in UnhealthyReason::ALL {
        b.flag(&m::gpu_unhealthy_reason, gpu, (*reason,), holds(*reason));
    }
}

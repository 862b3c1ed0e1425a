//! Whether a GPU can be relied on, in one place: every reason that speaks against it.
//!
//! While the driver is away, released or waited for, nothing is said: a driver upgrade is no broken GPU.

use super::Ledger;
use super::builder::Builder;
use model::catalog::schema::{Entity, KnownLabel, Label};
use model::catalog::{self as m, Gpu, MetricId, Node, RecoveryAction, Tier, UnhealthyReason};
use model::clock::Mono;
use model::sample::Row;
use model::snapshot::{DriverState, GpuState};

/// FactKind is known that can speak against a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The driver lists fewer GPUs than there should be, and this one does not answer.
    pub missing: bool,
    /// The driver asks for a reset, a reboot or a drain.
    pub recovery_action: bool,
    /// An Xid came after which it needs a reset.
    pub fatal_xid: bool,
    /// There was a memory error that is not known to be contained.
    pub uncontained_ecc: bool,
    /// A row of its memory could not be replaced.
    pub row_remap_failure: bool,
    /// The canary found it to compute wrongly, to fail, or to hang.
    pub canary: bool,
}

/// The reasons against a GPU in this state; `None`: nothing can be said of it now.
pub fn judge(state: &GpuState, found: Findings) -> Option<Vec<UnhealthyReason>> {
    let (stuck, silent) = match state {
        GpuState::Waiting | GpuState::NoDriver | GpuState::Paused => return None,
        GpuState::Up => (false, false),
        GpuState::Stuck { .. } => (true, false),
        GpuState::Failing { .. } => (false, true),
    };
    let holds = |reason: &UnhealthyReason| match reason {
        UnhealthyReason::Lost => silent && !found.missing,
        UnhealthyReason::Stuck => stuck,
        UnhealthyReason::RecoveryAction => found.recovery_action,
        UnhealthyReason::FatalXid => found.fatal_xid,
        UnhealthyReason::UncontainedEcc => found.uncontained_ecc,
        UnhealthyReason::RowRemapFailure => found.row_remap_failure,
        UnhealthyReason::Missing => silent && found.missing,
        UnhealthyReason::Canary => found.canary,
    };
    Some(UnhealthyReason::ALL.iter().copied().filter(holds).collect())
}

impl Ledger {
    /// Health of each GPU, and what is missing.
    pub(super) fn put_health(
        &self,
        b: &mut Builder<'_>,
        now: Mono,
        driver: &DriverState,
        states: &[(Gpu, GpuState)],
    ) {
        let listed = self.intake.listed_gpus(Some(now)).filter(|_| *driver == DriverState::Up);
        let missing = listed.map(|listed| self.inventory.expected().saturating_sub(listed));
        if let Some(missing) = missing {
            b.put(&m::gpu_devices_missing, &Node {}, (), missing as f64);
        }
        let some_missing = missing.is_some_and(|missing| missing > 0);
        for (gpu, state) in states {
            let faults = self.faults.of(gpu);
            let found = Findings {
                missing: some_missing && self.intake.has_handle(gpu),
                recovery_action: self.any(gpu, Tier::Slow, now, m::gpu_recovery_action.id(), |row| {
                    row.labels != [RecoveryAction::None.text()]
                }),
                fatal_xid: faults.is_some_and(|faults| faults.fatal()),
                uncontained_ecc: faults.is_some_and(|faults| faults.uncontained(now)),
                row_remap_failure: self.any(gpu, Tier::Slow, now, m::gpu_row_remap_failure.id(), |_| true),
                canary: self.canary.faulty(gpu),
            };
            if let Some(reasons) = judge(state, found) {
                put(b, gpu, &reasons);
            }
        }
        if some_missing {
            for gpu in self.inventory.absent(|uuid| self.intake.gpu_by_uuid(uuid).is_some()) {
                b.put(&m::gpu_up, &gpu, (), 0.0);
                put(b, &gpu, &[UnhealthyReason::Missing]);
            }
        }
    }

    /// Whether a row of this metric of a GPU that fits is above 0.
    fn any(&self, gpu: &Gpu, tier: Tier, now: Mono, metric: MetricId, fits: impl Fn(&Row) -> bool) -> bool {
        let Some(stored) = self.intake.fresh(gpu, tier, now) else { return false };
        let own = stored.rows.groups().iter().filter(|(subject, _)| *subject == gpu.subject());
        own.flat_map(|(_, rows)| rows).any(|row| row.metric == metric && row.value > 0.0 && fits(row))
    }
}

fn put(b: &mut Builder<'_>, gpu: &Gpu, reasons: &[UnhealthyReason]) {
    b.put(&m::gpu_healthy, gpu, (), f64::from(u8::from(reasons.is_empty())));
    for reason in UnhealthyReason::ALL {
        let holds = f64::from(u8::from(reasons.contains(reason)));
        b.put(&m::gpu_unhealthy_reason, gpu, (*reason,), holds);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_finding_is_a_reason_of_its_own() {
        use UnhealthyReason as R;
        let none = Findings::default();
        let stuck = GpuState::Stuck { call: "nvmlX".into(), age: Duration::ZERO };
        let failing = GpuState::Failing { text: "lost".into() };
        for (state, found, reasons) in [
            (&GpuState::Up, none, vec![]),
            (&GpuState::Up, Findings { missing: true, ..none }, vec![]),
            (&stuck, none, vec![R::Stuck]),
            (&failing, none, vec![R::Lost]),
            (&failing, Findings { missing: true, ..none }, vec![R::Missing]),
            (&GpuState::Up, Findings { recovery_action: true, ..none }, vec![R::RecoveryAction]),
            (&GpuState::Up, Findings { fatal_xid: true, ..none }, vec![R::FatalXid]),
            (&GpuState::Up, Findings { uncontained_ecc: true, ..none }, vec![R::UncontainedEcc]),
            (&GpuState::Up, Findings { row_remap_failure: true, ..none }, vec![R::RowRemapFailure]),
            (&GpuState::Up, Findings { canary: true, ..none }, vec![R::Canary]),
            (&stuck, Findings { fatal_xid: true, ..none }, vec![R::Stuck, R::FatalXid]),
        ] {
            assert_eq!(judge(state, found), Some(reasons), "{state:?} {found:?}");
        }
    }

    #[test]
    fn nothing_is_said_of_a_gpu_that_cannot_be_asked() {
        let all = Findings { fatal_xid: true, missing: true, ..Findings::default() };
        assert_eq!(judge(&GpuState::NoDriver, all), None);
        assert_eq!(judge(&GpuState::Waiting, all), None);
    }
}

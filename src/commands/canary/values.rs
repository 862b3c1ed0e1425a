//! What the gate goes by, read from what the command itself asked of NVML.

use std::time::Duration;

use canary::gate::facts::{GateValue, Values, state};
use model::catalog::schema::{Entity, KnownLabel, LabelSet, Metric};
use model::catalog::{self as m, CanarySkip, Gpu, MetricId, RecoveryAction, Subject};
use model::sample::{Batch, BatchKey, Missing};

use crate::commands::doctor::ask::Asked;

/// What a process of one's own has asked: all of it new, but without what only time tells.
impl Values for Asked {
    fn value<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>, entity: &E, labels: L) -> Option<f64> {
        let (subject, labels): (Subject, _) = (entity.subject(), labels.texts());
        let groups = self.batches.values().flat_map(|batch| batch.rows.groups());
        let rows = groups.filter(|(about, _)| *about == subject).flat_map(|(_, rows)| rows);
        rows.filter(|row| row.metric == metric.id() && row.labels == labels).map(|row| row.value).next_back()
    }

    fn unsupported(&self, gpu: &Gpu, metric: MetricId) -> bool {
        let of = |(part, _): &(&BatchKey, &Batch)| part.gpu.as_ref() == Some(gpu);
        let gaps = self.batches.iter().filter(of).flat_map(|(_, batch)| &batch.gaps);
        gaps.into_iter().any(|gap| gap.metrics.contains(&metric) && gap.missing == Missing::Unsupported)
    }

    fn state(&self, gpu: &Gpu) -> Option<(CanarySkip, String)> {
        if let Some((_, text)) = &self.away {
            return Some((CanarySkip::Unread, text.clone()));
        }
        if let Some(text) = self.attach_failed.get(&gpu.gpu) {
            return Some((CanarySkip::Unhealthy, text.clone()));
        }
        let hung = self.hung.iter().find(|hung| hung.gpu().is_none_or(|index| index == gpu.gpu))?;
        Some((CanarySkip::Unhealthy, format!("a driver call does not return: {}", hung.call)))
    }

    fn age(&self, gpu: &Gpu) -> Option<Duration> {
        self.batches.keys().any(|part| part.gpu.as_ref() == Some(gpu)).then_some(Duration::ZERO)
    }

    fn unhealthy(&self, gpu: &Gpu) -> Option<Vec<String>> {
        match state(self, gpu, &m::gpu_recovery_action) {
            GateValue::Value(RecoveryAction::None) | GateValue::Unsupported => Some(Vec::new()),
            GateValue::Value(action) => Some(vec![format!("the driver asks for {}", action.known())]),
            GateValue::Unread => None,
        }
    }
}

//! New errors of NVLinks: the totals of each GPU over the last hour.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::catalog::schema::{KnownLabel, Label, LabelText};
use model::catalog::{self as m, NvLinkError};
use model::clock::Mono;
use model::sample::Batch;
use model::verdict::LinkErrors;

const HOUR: Duration = Duration::from_secs(3600);
/// Least time between two totals that are kept.
const SPACING: Duration = Duration::from_secs(300);

type Totals = Vec<(NvLinkError, f64)>;

/// The totals of each GPU, by UUID.
#[derive(Debug, Default)]
pub struct LinkHistory(HashMap<Arc<str>, GpuLinks>);

#[derive(Debug, Default)]
struct GpuLinks {
    /// The oldest is an hour old once there is one so old.
    kept: VecDeque<(Mono, Totals)>,
    newest: Totals,
}

impl LinkHistory {
    /// Takes in the totals of a batch, if it has any.
    pub fn take(&mut self, batch: &Batch) {
        let Some(gpu) = &batch.part.gpu else { return };
        let id = m::gpu_nvlink_errors_total.id();
        let rows = batch.rows.all().filter(|row| row.metric == id);
        let kind = |text: &LabelText| NvLinkError::ALL.iter().find(|kind| kind.text() == *text).copied();
        let totals: Totals = rows.filter_map(|row| Some((kind(row.labels.first()?)?, row.value))).collect();
        if !totals.is_empty() {
            self.0.entry(Arc::clone(&gpu.uuid)).or_default().take(totals, batch.taken);
        }
    }

    /// New errors within the last hour; since the driver was loaded, if the history is shorter.
    pub fn of(&self, uuid: &str, now: Mono) -> Option<LinkErrors> {
        let links = self.0.get(uuid)?;
        let base = links.kept.front().filter(|(at, _)| now.since(*at) >= HOUR).map(|(_, totals)| totals);
        let before = |kind| base.and_then(|totals| of(totals, kind)).unwrap_or(0.0);
        let new = links.newest.iter().map(|(kind, n)| (*kind, n - before(*kind)));
        Some(LinkErrors { new: new.filter(|(_, n)| *n > 0.0).collect(), of_an_hour: base.is_some() })
    }

    /// Forgets a GPU.
    pub fn forget(&mut self, uuid: &str) {
        self.0.remove(uuid);
    }
}

impl GpuLinks {
    fn take(&mut self, totals: Totals, at: Mono) {
        // The driver's counters started again.
        if totals.iter().any(|(kind, n)| of(&self.newest, *kind).is_some_and(|before| *n < before)) {
            self.kept.clear();
        }
        if self.kept.back().is_none_or(|(last, _)| at.since(*last) >= SPACING) {
            self.kept.push_back((at, totals.clone()));
        }
        while self.kept.get(1).is_some_and(|(next, _)| at.since(*next) >= HOUR) {
            self.kept.pop_front();
        }
        self.newest = totals;
    }
}

fn of(totals: &Totals, kind: NvLinkError) -> Option<f64> {
    totals.iter().find(|(known, _)| *known == kind).map(|(_, n)| *n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::{CollectorName, Gpu, Tier};
    use model::sample::BatchKey;

    #[test]
    fn errors_count_for_an_hour_and_a_restart_of_the_counters_starts_from_zero() {
        let gpu = Gpu { gpu: 0, uuid: "GPU-0".into() };
        let minute = |at: u64| Mono((100 + at * 60) * 1_000_000_000);
        let mut links = LinkHistory::default();
        let mut new = |at: u64, replays: f64| {
            let part =
                BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu.clone()), tier: Tier::Nvlink };
            let mut batch = Batch::new(part, 1, minute(at), None);
            batch.rows.of(&gpu).put(&m::gpu_nvlink_errors_total, (NvLinkError::Replay,), replays).unwrap();
            links.take(&batch);
            let errors = links.of("GPU-0", minute(at)).unwrap();
            (errors.new.first().map_or(0.0, |(_, n)| *n), errors.of_an_hour)
        };
        assert_eq!(new(0, 7.0), (7.0, false), "since the driver was loaded");
        assert_eq!(new(10, 7.0), (7.0, false));
        assert_eq!(new(60, 8.0), (1.0, true));
        assert_eq!(new(70, 8.0), (1.0, true));
        assert_eq!(new(130, 8.0), (0.0, true));
        assert_eq!(new(140, 2.0), (2.0, false), "another load of the driver");
    }
}

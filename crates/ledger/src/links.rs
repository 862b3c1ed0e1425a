//! New NVLink errors: the totals of every GPU over the time for which errors count.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::catalog::schema::{KnownLabel, Label};
use model::catalog::{self as m, NvLinkError, Subject};
use model::clock::Mono;
use model::sample::{Batch, Row};
use model::verdict::{LONGEST_LINK_ERRORS, NewLinkErrors, link_errors_count_for};

/// Minimum interval between the totals that are kept.
const SPACING: Duration = Duration::from_secs(300);

type Totals = Vec<Total>;

/// Errors of one kind since the driver was loaded.
#[derive(Clone)]
struct Total {
    kind: NvLinkError,
    /// Total over all links.
    all: f64,
    /// Errors by link, for links with errors.
    links: Vec<(u32, f64)>,
}

/// Totals by UUID of the GPU.
#[derive(Default)]
pub(crate) struct LinkHistory(HashMap<Arc<str>, GpuLinks>);

#[derive(Default)]
struct GpuLinks {
    /// Earlier totals. The oldest ones are at least [`LONGEST_LINK_ERRORS`] old, if known for that long.
    kept: VecDeque<(Mono, Totals)>,
    /// Newest totals. Kinds that the last batch lacks keep their previous total.
    newest: Option<(Mono, Totals)>,
}

impl LinkHistory {
    /// Records the totals of a batch, if any.
    pub fn record(&mut self, batch: &Batch) {
        let Some(gpu) = &batch.part.gpu else { return };
        let (of_gpu, of_links) = (m::gpu_nvlink_errors_total.id(), m::gpu_nvlink_link_errors_total.id());
        let kind = |row: &Row| NvLinkError::ALL.iter().find(|kind| row.labels == [kind.text()]).copied();
        let sums = batch.rows.all().filter(|row| row.metric == of_gpu);
        let total = |row: &Row| Some(Total { kind: kind(row)?, all: row.value, links: Vec::new() });
        let mut totals: Totals = sums.filter_map(total).collect();
        for (subject, rows) in batch.rows.groups() {
            let Subject::Link(link) = subject else { continue };
            for row in rows.iter().filter(|row| row.metric == of_links) {
                if let Some(total) = totals.iter_mut().find(|total| Some(total.kind) == kind(row)) {
                    total.links.push((link.link, row.value));
                }
            }
        }
        if !totals.is_empty() {
            self.0.entry(Arc::clone(&gpu.uuid)).or_default().record(totals, batch.taken);
        }
    }

    /// Returns the new errors within the time for which they count, as far as it was observed.
    pub fn new_errors(&self, uuid: &str, now: Mono) -> Vec<NewLinkErrors> {
        let Some(GpuLinks { kept, newest: Some((at, newest)) }) = self.0.get(uuid) else { return Vec::new() };
        let new = |total: &Total| {
            let time = link_errors_count_for(total.kind);
            if now.since(*at) >= time {
                return None;
            }
            let before = kept.partition_point(|(at, _)| now.since(*at) >= time).saturating_sub(1);
            let base = kept.range(before..).find_map(|(_, totals)| total_of(totals, total.kind))?;
            let before = |link| base.links.iter().find(|(known, _)| *known == link).map_or(0.0, |(_, n)| *n);
            let each = total.links.iter().map(|(link, n)| n - before(*link)).filter(|n| *n > 0.0);
            let (links, worst) = each.fold((0, 0.0), |(links, worst), n| (links + 1, n.max(worst)));
            let errors = NewLinkErrors { kind: total.kind, all: total.all - base.all, worst, links };
            (errors.all > 0.0).then_some(errors)
        };
        newest.iter().filter_map(new).collect()
    }

    pub fn forget(&mut self, uuid: &str) {
        self.0.remove(uuid);
    }
}

impl GpuLinks {
    fn record(&mut self, mut totals: Totals, at: Mono) {
        for known in self.newest.take().map(|(_, totals)| totals).unwrap_or_default() {
            match total_of(&totals, known.kind) {
                None => totals.push(known),
                // The driver's counter restarted, and the number of errors since then is unknown.
                Some(total) if total.all < known.all => {
                    let base = |kept: &mut Total| *kept = total.clone();
                    let same = |kept: &&mut Total| kept.kind == total.kind;
                    self.kept
                        .iter_mut()
                        .filter_map(|(_, totals)| totals.iter_mut().find(same))
                        .for_each(base);
                }
                Some(_) => {}
            }
        }
        if self.kept.back().is_none_or(|(last, _)| at.since(*last) >= SPACING) {
            self.kept.push_back((at, totals.clone()));
        }
        while self.kept.get(1).is_some_and(|(next, _)| at.since(*next) >= LONGEST_LINK_ERRORS) {
            self.kept.pop_front();
        }
        self.newest = Some((at, totals));
    }
}

fn total_of(totals: &Totals, kind: NvLinkError) -> Option<&Total> {
    totals.iter().find(|total| total.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::{CollectorName, Gpu, Link, Tier};
    use model::sample::{BatchKey, Rows};

    fn at(minute: u64) -> Mono {
        Mono((100 + minute * 60) * 1_000_000_000)
    }

    fn batch(minute: u64, fill: impl Fn(&mut Rows, &Gpu)) -> Batch {
        let gpu = Gpu { gpu: 0, uuid: "GPU-0".into() };
        let part = BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu.clone()), tier: Tier::Nvlink };
        let mut batch = Batch::new(part, 1, at(minute), None);
        fill(&mut batch.rows, &gpu);
        batch
    }

    /// Takes in replays of each link, by number; gives the new ones of all, of the worst link, and of how many links.
    fn record(links: &mut LinkHistory, minute: u64, replays: &[f64]) -> Option<(f64, f64, u32)> {
        links.record(&batch(minute, |rows, gpu| {
            let kind = (NvLinkError::Replay,);
            rows.entity(gpu).record(&m::gpu_nvlink_errors_total, kind, replays.iter().sum()).unwrap();
            for (link, n) in (0..).zip(replays).filter(|(_, n)| **n > 0.0) {
                let link = Link { gpu: 0, uuid: "GPU-0".into(), link };
                rows.entity(&link).record(&m::gpu_nvlink_link_errors_total, kind, *n).unwrap();
            }
        }));
        links.new_errors("GPU-0", at(minute)).first().map(|new| (new.all, new.worst, new.links))
    }

    #[test]
    fn errors_count_for_an_hour_and_a_restart_of_the_counters_adds_none() {
        let mut links = LinkHistory::default();
        let mut new = |minute, n| record(&mut links, minute, &[n]).map_or(0.0, |(all, ..)| all);
        assert_eq!(new(0, 7.0), 0.0, "from before the exporter's start");
        assert_eq!(new(10, 9.0), 2.0);
        assert_eq!(new(60, 10.0), 3.0);
        assert_eq!(new(70, 10.0), 1.0);
        assert_eq!(new(130, 10.0), 0.0);
        assert_eq!(new(140, 2.0), 0.0, "another load of the driver");
        assert_eq!(new(150, 3.0), 1.0);
        assert_eq!(new(210, 3.0), 0.0);
    }

    #[test]
    fn errors_end_after_an_hour_also_where_nothing_more_is_read() {
        let mut links = LinkHistory::default();
        record(&mut links, 0, &[1.0]);
        record(&mut links, 10, &[4.0]);
        record(&mut links, 20, &[5.0]);
        let new = |minute| links.new_errors("GPU-0", at(minute)).first().map_or(0.0, |new| new.all);
        assert_eq!([new(20), new(59), new(75), new(80)], [4.0, 4.0, 1.0, 0.0]);
    }

    #[test]
    fn a_kind_that_falls_or_is_not_read_changes_no_other() {
        let mut links = LinkHistory::default();
        let mut new = |minute, sums: &[(NvLinkError, f64)]| {
            links.record(&batch(minute, |rows, gpu| {
                for (kind, n) in sums {
                    rows.entity(gpu).record(&m::gpu_nvlink_errors_total, (*kind,), *n).unwrap();
                }
            }));
            let new = links.new_errors("GPU-0", at(minute));
            new.iter().map(|new| (new.kind, new.all)).collect::<Vec<_>>()
        };
        use NvLinkError::{CrcFlit, Replay};
        assert_eq!(new(0, &[(Replay, 7.0), (CrcFlit, 900.0)]), []);
        assert_eq!(new(10, &[(Replay, 9.0), (CrcFlit, 901.0)]), [(Replay, 2.0), (CrcFlit, 1.0)]);
        assert_eq!(new(20, &[(Replay, 4.0), (CrcFlit, 902.0)]), [(CrcFlit, 2.0)], "one fell");
        assert_eq!(new(30, &[(CrcFlit, 902.0)]), [(CrcFlit, 2.0)]);
        assert_eq!(new(40, &[(Replay, 5.0)]), [(Replay, 1.0), (CrcFlit, 2.0)], "one is not read");
        assert_eq!(new(100, &[(Replay, 5.0)]), []);
    }

    #[test]
    fn recoveries_count_for_half_an_hour_as_in_their_alert() {
        let mut links = LinkHistory::default();
        let mut new = |minute, n: f64| {
            links.record(&batch(minute, |rows, gpu| {
                for kind in [NvLinkError::Recovery, NvLinkError::RecoveryFailed] {
                    rows.entity(gpu).record(&m::gpu_nvlink_errors_total, (kind,), n).unwrap();
                }
            }));
            let new = links.new_errors("GPU-0", at(minute));
            new.iter().map(|new| (new.kind, new.all)).collect::<Vec<_>>()
        };
        use NvLinkError::{Recovery, RecoveryFailed};
        assert_eq!(new(0, 0.0), []);
        assert_eq!(new(10, 3.0), [(Recovery, 3.0), (RecoveryFailed, 3.0)]);
        assert_eq!(new(30, 4.0), [(Recovery, 4.0), (RecoveryFailed, 4.0)]);
        assert_eq!(new(40, 4.0), [(Recovery, 1.0), (RecoveryFailed, 4.0)]);
        assert_eq!(new(60, 4.0), [(RecoveryFailed, 4.0)]);
    }

    #[test]
    fn the_worst_link_and_the_number_of_links_are_listed() {
        let mut links = LinkHistory::default();
        assert_eq!(record(&mut links, 0, &[4.0, 0.0, 0.0]), None);
        assert_eq!(record(&mut links, 1, &[5.0, 3.0, 0.0]), Some((4.0, 3.0, 2)));
    }
}

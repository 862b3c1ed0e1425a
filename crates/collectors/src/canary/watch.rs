//! Observations over time: the idle time of a place, the time since the last fault of a GPU, and the lowest memory use.
//! Changes are timed with the monotonic clock, so that setting the wall clock loses nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::views::canary::CanaryFacts;
use canary::gate::Since;
use canary::gate::facts::{GateFacts, GateValue};
use model::canary::Place;
use model::catalog::{self as m, Gpu};
use model::clock::{Mono, nanos};

/// Observations of all GPUs and places.
#[derive(Debug, Default)]
pub(crate) struct ActivityWatch {
    gpus: HashMap<Gpu, WatchedGpu>,
    places: HashMap<Place, WatchedPlace>,
}

/// Observations of a GPU.
#[derive(Debug, Default)]
struct WatchedGpu {
    /// Start of the period in which the GPU has answered without a break.
    up: Option<Mono>,
    busy: Option<PublishedMoment>,
    xid: Option<PublishedMoment>,
}

/// Observations of a place.
#[derive(Debug, Default)]
struct WatchedPlace {
    /// Start of the period without processes.
    since: Option<Mono>,
    least: Option<f64>,
}

/// Published wall-clock time and the monotonic time of the same moment.
#[derive(Clone, Copy, Debug)]
struct PublishedMoment {
    unix_seconds: f64,
    at: Mono,
}

impl PublishedMoment {
    /// Returns the moment after the newest published value.
    fn next(known: Option<Self>, published: Option<(f64, Duration)>, now: Mono) -> Option<Self> {
        match (known, published) {
            (None, Some((unix_seconds, age))) => {
                Some(PublishedMoment { unix_seconds, at: Mono(now.0.saturating_sub(nanos(age))) })
            }
            // The value has changed since the last update, whatever the wall clock shows.
            (Some(known), Some((unix_seconds, _))) if known.unix_seconds != unix_seconds => {
                Some(PublishedMoment { unix_seconds, at: now })
            }
            (known, _) => known,
        }
    }
}

impl ActivityWatch {
    /// Reads the published facts. Returns whether the places are busy; places with an unknown number of processes are
    /// left out.
    pub(crate) fn look(
        &mut self,
        published: &CanaryFacts,
        devices: &BTreeMap<Gpu, Vec<Place>>,
        now: Mono,
    ) -> Vec<(Place, bool)> {
        self.gpus.retain(|gpu, _| devices.contains_key(gpu));
        self.places.retain(|place, _| devices.get(&place.gpu).is_some_and(|of| of.contains(place)));
        let mut working = Vec::new();
        for (gpu, places) in devices {
            let up = published.is_up(gpu);
            let seen = self.gpus.entry(gpu.clone()).or_default();
            seen.up = if up { seen.up.or(Some(now)) } else { None };
            let busy = published.timestamp(&m::gpu_last_busy_timestamp_seconds, gpu);
            seen.busy = PublishedMoment::next(seen.busy, busy, now);
            let xid = published.timestamp(&m::gpu_xid_last_event_timestamp_seconds, gpu);
            seen.xid = PublishedMoment::next(seen.xid, xid, now);
            for place in places {
                let facts = published.gate(place, Duration::ZERO, now);
                let quiet = self.places.entry(place.clone()).or_default();
                let used = facts.memory.map(|memory| memory.used);
                quiet.least = [quiet.least, used].into_iter().flatten().reduce(f64::min);
                match facts.processes {
                    GateValue::Value(0) if up => quiet.since = quiet.since.or(Some(now)),
                    _ => quiet.since = None,
                }
                if let GateValue::Value(n) = facts.processes {
                    working.push((place.clone(), n > 0));
                }
            }
        }
        working
    }

    /// Returns the idle time of a place. For a part of a GPU only its own processes count.
    fn idle(&self, place: &Place, now: Mono) -> Duration {
        let Some(seen) = self.gpus.get(&place.gpu) else { return Duration::ZERO };
        let quiet = self.places.get(place).and_then(|quiet| quiet.since);
        let (Some(up), Some(quiet)) = (seen.up, quiet) else { return Duration::ZERO };
        let busy = seen.busy.filter(|_| place.instance.is_none()).map(|busy| busy.at);
        let since = [Some(up), Some(quiet), busy].into_iter().flatten().max().unwrap_or(now);
        now.since(since)
    }

    /// Adds the observations to the facts.
    pub(crate) fn complete(&self, facts: &mut GateFacts, place: &Place, now: Mono) {
        facts.idle = Some(self.idle(place, now));
        facts.xid = match self.gpus.get(&place.gpu).and_then(|seen| seen.xid) {
            Some(xid) => Since::Ago(now.since(xid.at)),
            None => Since::Never,
        };
        let least = self.places.get(place).and_then(|quiet| quiet.least);
        if let Some(memory) = &mut facts.memory {
            memory.least = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::schema::Entity;
    use model::snapshot::{DriverState, Family, GpuState, GpuView, Series, Snapshot, SubjectText, Value};
    use std::sync::Arc;

    fn gpu() -> Gpu {
        Gpu { gpu: 0, uuid: "GPU-0".into() }
    }

    fn place() -> Place {
        Place { gpu: gpu(), instance: None }
    }

    /// A GPU with so many processes that was last busy then.
    fn snapshot(unix_seconds: f64, up: bool, processes: f64, busy: Option<f64>) -> Snapshot {
        use m::schema::LabelSet;
        let subject = Arc::new(SubjectText { subject: gpu().subject(), values: Vec::new() });
        let series = |labels: Vec<m::schema::LabelText>, value| Series {
            subject: Arc::clone(&subject),
            labels,
            value: Value::Number(value),
        };
        let kinds = [m::ProcessType::Compute, m::ProcessType::Graphics, m::ProcessType::Mps];
        let mut families = vec![Family {
            def: m::gpu_processes.def(),
            series: kinds.map(|kind| series((kind,).texts(), processes)).into(),
            whole: true,
        }];
        if let Some(busy) = busy {
            let def = m::gpu_last_busy_timestamp_seconds.def();
            families.push(Family { def, series: vec![series(Vec::new(), busy)], whole: true });
        }
        let state = if up { GpuState::Up } else { GpuState::Unread };
        let view = GpuView { gpu: gpu(), state, parts: Vec::new(), gaps: Vec::new(), processes: Vec::new() };
        Snapshot { unix_seconds, families, driver: DriverState::Up, gpus: vec![view], ..Snapshot::default() }
    }

    fn idle_after<const N: usize>(looks: [(u64, Snapshot); N]) -> u64 {
        let mut watch = ActivityWatch::default();
        let devices = [(gpu(), vec![place()])].into();
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        let last = at(looks[N - 1].0);
        for (seconds, snapshot) in looks {
            watch.look(&CanaryFacts::new(&Arc::new(snapshot)), &devices, at(seconds));
        }
        watch.idle(&place(), last).as_secs()
    }

    #[test]
    fn a_gpu_is_idle_since_it_is_watched_or_since_it_was_busy() {
        let free = |unix| snapshot(unix, true, 0.0, None);
        assert_eq!(idle_after([(1000, free(1.0)), (1010, free(11.0))]), 10);
        let busy = |unix, busy| snapshot(unix, true, 0.0, Some(busy));
        assert_eq!(idle_after([(1000, busy(500.0, 100.0)), (1010, busy(510.0, 100.0))]), 10, "not watched");
        let moved = [(1000, busy(500.0, 100.0)), (1010, busy(510.0, 507.0)), (1015, busy(515.0, 507.0))];
        assert_eq!(idle_after(moved), 5);
        // The wall clock was set back by a day.
        let set = [(1000, busy(9e4, 8.9e4)), (1010, busy(3.6e3, 3.59e3)), (1020, busy(3.61e3, 3.59e3))];
        assert_eq!(idle_after(set), 10);
    }

    #[test]
    fn processes_and_silence_of_the_gpu_restart_the_count() {
        let look = |seconds, up, processes| (seconds, snapshot(0.0, up, processes, None));
        assert_eq!(idle_after([look(10, true, 0.0), look(20, true, 1.0), look(30, true, 0.0)]), 0);
        assert_eq!(idle_after([look(10, true, 0.0), look(20, false, 0.0), look(32, true, 0.0)]), 0);
        assert_eq!(idle_after([look(10, true, 1.0)]), 0);
    }
}

//! Curves of selected values over the last hour. Every point is the mean of the published values in one step.
//!
//! A curve lasts as long as its GPU or instance. Memory is bounded, because every curve has a maximum number of
//! points.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use model::catalog::{self as m, GpuInstance, Subject};
use model::clock::{Mono, nanos};
use model::snapshot::{GpuState, Snapshot, Value};
use model::trends::{CurveKey, FOLLOWED, POINTS, Trends};

/// Curves, and the current step.
pub(crate) struct TrendState {
    step: Duration,
    /// Number of the step since the start of the clock.
    current: Option<u64>,
    /// Sum and number of the values in the step.
    sums: BTreeMap<CurveKey, (f64, u32)>,
    published: Arc<Trends>,
}

impl TrendState {
    /// Creates curves with a point per step; zero: no curves.
    pub fn new(step: Duration) -> TrendState {
        TrendState { step, current: None, sums: BTreeMap::new(), published: Arc::default() }
    }

    /// Adds the values of a snapshot, and returns the curves to publish with it.
    pub fn follow(&mut self, snapshot: &Snapshot, now: Mono) -> Arc<Trends> {
        if self.step.is_zero() {
            return Arc::clone(&self.published);
        }
        let number = now.0 / nanos(self.step).max(1);
        if let Some(current) = self.current.replace(number).filter(|current| *current < number) {
            self.close(number - current, number, snapshot);
        }
        for (at, followed) in FOLLOWED.iter().enumerate() {
            let Some(family) = snapshot.families.iter().find(|family| followed.is_of(family.def)) else {
                continue;
            };
            for series in family.series.iter().filter(|series| series.labels == followed.labels) {
                let Value::Number(value) = series.value else { continue };
                let key = (at, series.subject.subject.clone());
                let (sum, count) = self.sums.entry(key).or_default();
                *sum += value;
                *count += 1;
            }
        }
        Arc::clone(&self.published)
    }

    /// Ends a step: adds one point to every curve, and empty points for steps without a publication.
    fn close(&mut self, steps: u64, number: u64, snapshot: &Snapshot) {
        let sums = std::mem::take(&mut self.sums);
        let silent = usize::try_from(steps - 1).unwrap_or(POINTS).min(POINTS);
        let before = &self.published.curves;
        let known: HashSet<&CurveKey> = before.keys().chain(sums.keys()).collect();
        let present = Present::new(snapshot);
        let curve = |key: &CurveKey| {
            let old = before.get(key).map_or(&[][..], |points| points);
            let mean = sums.get(key).map_or(f64::NAN, |(sum, count)| sum / f64::from(*count)) as f32;
            let new = std::iter::once(mean).chain(std::iter::repeat_n(f32::NAN, silent));
            let first = (old.len() + 1 + silent).saturating_sub(POINTS);
            let points: Box<[f32]> = old.iter().copied().chain(new).skip(first).collect();
            (key.clone(), points)
        };
        let curves = known.into_iter().filter(|(_, subject)| present.has(subject)).map(curve).collect();
        let end = Mono(number.saturating_mul(nanos(self.step)));
        self.published = Arc::new(Trends { step: self.step, end, curves });
    }
}

/// GPUs and instances that exist.
struct Present<'a> {
    snapshot: &'a Snapshot,
    instances: HashSet<&'a GpuInstance>,
}

impl<'a> Present<'a> {
    fn new(snapshot: &'a Snapshot) -> Present<'a> {
        let metrics = [&m::gpu_mig_placement_start, &m::gpu_mig_memory_total_bytes];
        let series = metrics.into_iter().flat_map(|metric| snapshot.series(metric));
        let instances = series.filter_map(|series| match &series.subject.subject {
            Subject::GpuInstance(instance) => Some(instance),
            _ => None,
        });
        Present { snapshot, instances: instances.collect() }
    }

    /// Returns true if the curves of a GPU or instance continue. A GPU that does not answer lists no instances.
    fn has(&self, subject: &Subject) -> bool {
        let state =
            |gpu: &m::Gpu| self.snapshot.gpus.iter().find(|view| view.gpu == *gpu).map(|view| &view.state);
        match subject {
            Subject::Gpu(gpu) => state(gpu).is_some(),
            Subject::GpuInstance(instance) => {
                state(&instance.parent()).is_some_and(|state| *state != GpuState::Up)
                    || self.instances.contains(instance)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use model::catalog::Gpu;
    use model::sample::Rows;
    use model::snapshot::GpuView;

    use super::*;

    const STEP: u64 = 10;

    fn gpu(index: u32) -> Gpu {
        Gpu { gpu: index, uuid: format!("GPU-{index}a4c5e7f-0b1d-4c3e-9f2a-7b6c5d4e3f21").into() }
    }

    fn instance(gpu: &Gpu, id: u32) -> GpuInstance {
        GpuInstance { gpu: gpu.gpu, uuid: gpu.uuid.clone(), gpu_instance: id, profile: "1g.18gb".into() }
    }

    /// GPUs in this state with as many instances, each value the same.
    fn node(gpus: u32, instances: u32, state: &GpuState, value: f64) -> Snapshot {
        let mut rows = Rows::default();
        let up = *state == GpuState::Up;
        for gpu in (0..gpus).map(gpu).filter(|_| up) {
            let mut of = rows.entity(&gpu);
            of.record(&m::gpu_utilization_ratio, (), value).unwrap();
            of.record(&m::gpu_memory_used_bytes, (), value).unwrap();
            of.record(&m::gpu_power_watts, (), value).unwrap();
            of.record(&m::gpu_temperature_celsius, (m::Sensor::Gpu,), value).unwrap();
            of.record(&m::gpu_temperature_celsius, (m::Sensor::Memory,), value + 0.5).unwrap();
            of.record(&m::gpu_clock_hertz, (m::ClockDomain::Sm,), value).unwrap();
            for id in 0..instances {
                let mut of = rows.entity(&instance(&gpu, id));
                of.record(&m::gpu_mig_placement_start, (), f64::from(id)).unwrap();
                of.record(&m::gpu_mig_memory_used_bytes, (), value).unwrap();
                of.record(&m::gpu_mig_gpm_active_ratio, (m::GpmUnit::Graphics,), value).unwrap();
            }
        }
        let view = |index| GpuView {
            gpu: gpu(index),
            state: state.clone(),
            parts: Vec::new(),
            gaps: Vec::new(),
            processes: Vec::new(),
        };
        Snapshot { gpus: (0..gpus).map(view).collect(), ..Snapshot::with_rows(&rows) }
    }

    fn state() -> TrendState {
        TrendState::new(Duration::from_secs(STEP))
    }

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn utilization(trends: &Trends) -> Vec<f32> {
        trends.points(&m::gpu_utilization_ratio, &gpu(0), ()).to_vec()
    }

    #[test]
    fn a_point_is_the_mean_of_its_step_and_what_is_missing_stays_missing() {
        let mut state = state();
        assert_eq!(utilization(&state.follow(&node(1, 0, &GpuState::Up, 0.2), at(0))), [0.0; 0]);
        state.follow(&node(1, 0, &GpuState::Up, 0.4), at(9));
        let trends = state.follow(&node(1, 0, &GpuState::Up, 0.9), at(10));
        assert_eq!((utilization(&trends), trends.end), (vec![0.3], at(10)));
        assert_eq!(trends.curves.len(), 5, "one temperature alone");
        let stuck = GpuState::Stuck { call: "call".into(), age: Duration::ZERO };
        state.follow(&node(1, 0, &stuck, 0.0), at(20));
        let trends = state.follow(&node(1, 0, &stuck, 0.0), at(50));
        let points = utilization(&trends);
        assert_eq!(points[..2], [0.3, 0.9]);
        assert!(points.len() == 5 && points[2..].iter().all(|point| point.is_nan()), "{points:?}");
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut state = state();
        for step in 0..1000u32 {
            state.follow(&node(1, 0, &GpuState::Up, f64::from(step) / 1024.0), at(u64::from(step) * STEP));
        }
        let points = utilization(&state.published);
        assert_eq!((points.len(), points[0], points[POINTS - 1]), (POINTS, 639.0 / 1024.0, 998.0 / 1024.0));
    }

    #[test]
    fn a_curve_ends_with_its_gpu_or_instance_and_not_with_a_stall() {
        let mut state = state();
        state.follow(&node(2, 2, &GpuState::Up, 1.0), at(0));
        let curves = |state: &TrendState| state.published.curves.len();
        state.follow(&node(2, 2, &GpuState::Up, 1.0), at(10));
        assert_eq!(curves(&state), 2 * (5 + 2 * 2));
        state.follow(&node(2, 2, &GpuState::NoDriver, 1.0), at(20));
        state.follow(&node(2, 2, &GpuState::NoDriver, 1.0), at(30));
        assert_eq!(curves(&state), 18);
        state.follow(&node(2, 1, &GpuState::Up, 1.0), at(40));
        assert_eq!(curves(&state), 14, "an instance was deleted");
        state.follow(&node(1, 1, &GpuState::Up, 1.0), at(50));
        assert_eq!(curves(&state), 7);
    }

    #[test]
    fn without_a_length_nothing_is_kept() {
        let mut state = TrendState::new(Duration::ZERO);
        for second in 0..30 {
            state.follow(&node(1, 1, &GpuState::Up, 1.0), at(second));
        }
        assert_eq!(*state.published, Trends::default());
    }

    /// Sixteen GPUs with seven instances each: old and new curves, which are there together for a moment, and the sums.
    #[test]
    fn the_hour_of_a_large_node_takes_less_than_4_mib() {
        let mut state = state();
        for step in 0..=POINTS as u64 {
            state.follow(&node(16, 7, &GpuState::Up, 0.5), at(step * STEP));
        }
        let trends = &state.published;
        assert!(trends.curves.values().all(|points| points.len() == POINTS));
        assert_eq!(trends.curves.len(), 16 * (5 + 7 * 2));
        let sums = state.sums.len() * size_of::<(CurveKey, (f64, u32))>();
        let bytes = 2 * trends.bytes() + sums;
        println!("the hour takes {} KiB, at most {} KiB", trends.bytes() >> 10, bytes >> 10);
        assert!(bytes < 4 << 20, "{bytes}");
    }
}

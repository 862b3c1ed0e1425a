//! The course of a few values of each GPU and MIG GPU instance over the last hour, for the status page and
//! `/page/history`.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use crate::catalog::schema::{Entity, LabelSet, LabelText, Metric};
use crate::catalog::{
    ClockDomain, GpmUnit, MetricDef, MetricId, Sensor, Subject, def, gpu_clock_hertz, gpu_memory_used_bytes,
    gpu_mig_gpm_active_ratio, gpu_mig_memory_used_bytes, gpu_power_watts, gpu_temperature_celsius,
    gpu_utilization_ratio,
};
use crate::clock::Mono;

/// Points of a whole curve: one in 10 s makes an hour.
pub const POINTS: usize = 360;

/// One value that is followed: its metric and the values of the metric's own labels.
#[derive(Debug)]
pub struct Followed {
    pub metric: MetricId,
    pub labels: Vec<LabelText>,
}

impl Followed {
    /// Whether the metric is this one.
    pub fn is_of(&self, other: &'static MetricDef) -> bool {
        def(self.metric).is_some_and(|own| std::ptr::eq(own, other))
    }
}

/// The values that are followed: first those of GPUs that have a chart.
pub static FOLLOWED: LazyLock<[Followed; 7]> = LazyLock::new(|| {
    fn follow<E: Entity, L: LabelSet>(metric: &Metric<E, L>, labels: L) -> Followed {
        Followed { metric: metric.id(), labels: labels.texts() }
    }
    [
        follow(&gpu_utilization_ratio, ()),
        follow(&gpu_memory_used_bytes, ()),
        follow(&gpu_power_watts, ()),
        follow(&gpu_temperature_celsius, (Sensor::Gpu,)),
        follow(&gpu_clock_hertz, (ClockDomain::Sm,)),
        follow(&gpu_mig_memory_used_bytes, ()),
        follow(&gpu_mig_gpm_active_ratio, (GpmUnit::Graphics,)),
    ]
});

/// What a curve is of: the place in [`FOLLOWED`], and the GPU or instance.
pub type CurveKey = (usize, Subject);

/// The curves. Never changed once published.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trends {
    /// Time that one point covers; zero: nothing is followed.
    pub step: Duration,
    /// When the newest point ended.
    pub end: Mono,
    /// The means of each step, oldest first, the newest ended at `end`. NaN: there was no value. At most [`POINTS`]; fewer
    /// while the curve is younger.
    pub curves: BTreeMap<CurveKey, Box<[f32]>>,
}

impl Trends {
    /// The points of one value; none if it is not followed.
    pub fn points<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>, entity: &E, labels: L) -> &[f32] {
        let (id, labels) = (metric.id(), labels.texts());
        let at = FOLLOWED.iter().position(|followed| followed.metric == id && followed.labels == labels);
        at.and_then(|at| self.curves.get(&(at, entity.subject()))).map_or(&[], |points| points)
    }

    /// The memory of the curves; their keys share their texts with the snapshot.
    pub fn bytes(&self) -> usize {
        let one = |points: &[f32]| size_of::<(CurveKey, Box<[f32]>)>() + size_of_val(points);
        size_of::<Trends>() + self.curves.values().map(|points| one(points)).sum::<usize>()
    }
}

//! History of a few values of every GPU and MIG GPU instance over the last hour, for the status page and
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

/// Maximum number of points of a curve. With one point every 10 s, a curve covers an hour.
pub const POINTS: usize = 360;

/// Value with a curve, identified by its metric and the values of the metric's own labels.
#[derive(Debug)]
pub struct Followed {
    pub metric: MetricId,
    pub labels: Vec<LabelText>,
}

impl Followed {
    /// Returns true if this is the followed metric.
    pub fn is_of(&self, other: &'static MetricDef) -> bool {
        def(self.metric).is_some_and(|own| std::ptr::eq(own, other))
    }
}

/// Values with curves. Values of GPUs that have a chart come first.
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

/// Key of a curve: the index in [`FOLLOWED`], and the GPU or instance.
pub type CurveKey = (usize, Subject);

/// Published curves, which never change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trends {
    /// Time that one point covers; zero if no values are followed.
    pub step: Duration,
    /// End of the newest point.
    pub end: Mono,
    /// Mean of every step, oldest first. The newest step ended at `end`. NaN means a step without a value. A
    /// curve has at most [`POINTS`] points, and fewer while it is younger.
    pub curves: BTreeMap<CurveKey, Box<[f32]>>,
}

impl Trends {
    /// Returns the points of one value; empty if the value has no curve.
    pub fn points<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>, entity: &E, labels: L) -> &[f32] {
        let (id, labels) = (metric.id(), labels.texts());
        let at = FOLLOWED.iter().position(|followed| followed.metric == id && followed.labels == labels);
        at.and_then(|at| self.curves.get(&(at, entity.subject()))).map_or(&[], |points| points)
    }

    /// Returns the memory use of the curves in bytes. The texts of the keys are shared with the snapshot.
    pub fn bytes(&self) -> usize {
        let one = |points: &[f32]| size_of::<(CurveKey, Box<[f32]>)>() + size_of_val(points);
        size_of::<Trends>() + self.curves.values().map(|points| one(points)).sum::<usize>()
    }
}

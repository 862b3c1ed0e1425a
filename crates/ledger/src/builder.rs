//! Collection of the series of a snapshot, with a cap on their number.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::counters::OwnCounters;
use model::catalog::schema::{Entity, LabelSet, LabelText, Metric};
use model::catalog::{self as m, EntityKind, METRICS, MetricGroup, MetricId, Node, Subject};
use model::sample::Row;
use model::snapshot::{Family, Histogram, Series, SubjectText, Value, number_of};

/// Subjects with their label texts, created once and shared by all snapshots.
#[derive(Default)]
pub(crate) struct Subjects(HashMap<Subject, Arc<SubjectText>>);

impl Subjects {
    fn text(&mut self, subject: &Subject) -> Arc<SubjectText> {
        if let Some(known) = self.0.get(subject) {
            return Arc::clone(known);
        }
        let text = Arc::new(SubjectText { subject: subject.clone(), values: subject.label_values() });
        self.0.insert(subject.clone(), Arc::clone(&text));
        text
    }

    /// Drops subjects that no series uses, so that short-lived MIG instances leave nothing behind.
    fn forget_unused(&mut self) {
        self.0.retain(|_, text| Arc::strong_count(text) > 1);
    }
}

/// Series of a snapshot, by metric.
pub(crate) struct Builder<'a> {
    subjects: Subjects,
    off: &'a HashSet<MetricId>,
    families: Vec<Vec<Series>>,
}

impl<'a> Builder<'a> {
    pub fn new(subjects: Subjects, off: &'a HashSet<MetricId>) -> Builder<'a> {
        Builder { subjects, off, families: METRICS.iter().map(|_| Vec::new()).collect() }
    }

    pub fn is_off(&self, metric: MetricId) -> bool {
        self.off.contains(&metric)
    }

    pub fn add<E: Entity, L: LabelSet>(&mut self, metric: &Metric<E, L>, entity: &E, labels: L, value: f64) {
        self.row(&entity.subject(), metric.id(), labels.texts(), Value::Number(value));
    }

    /// Adds a series if its value is known.
    pub fn add_known<E: Entity, L: LabelSet>(
        &mut self,
        metric: &Metric<E, L>,
        entity: &E,
        labels: L,
        value: Option<f64>,
    ) {
        if let Some(value) = value {
            self.add(metric, entity, labels, value);
        }
    }

    pub fn flag<E: Entity, L: LabelSet>(&mut self, metric: &Metric<E, L>, entity: &E, labels: L, set: bool) {
        self.add(metric, entity, labels, f64::from(u8::from(set)));
    }

    pub fn histogram<E: Entity, L: LabelSet>(
        &mut self,
        metric: &Metric<E, L>,
        entity: &E,
        labels: L,
        histogram: &Histogram,
    ) {
        let value = Value::Histogram(Arc::new(histogram.clone()));
        self.row(&entity.subject(), metric.id(), labels.texts(), value);
    }

    pub fn row(&mut self, subject: &Subject, metric: MetricId, labels: Vec<LabelText>, value: Value) {
        let subject = self.subjects.text(subject);
        self.push(subject, metric, labels, value);
    }

    pub fn rows(&mut self, subject: &Subject, rows: &[Row]) {
        let subject = self.subjects.text(subject);
        for row in rows {
            self.push(Arc::clone(&subject), row.metric, row.labels.clone(), Value::Number(row.value));
        }
    }

    fn push(&mut self, subject: Arc<SubjectText>, metric: MetricId, labels: Vec<LabelText>, value: Value) {
        if !self.off.contains(&metric)
            && let Some(family) = self.families.get_mut(usize::from(metric.0))
        {
            family.push(Series { subject, labels, value });
        }
    }

    /// Returns a value that was added before.
    pub fn number(&self, metric: MetricId, subject: &Subject, labels: &[LabelText]) -> Option<f64> {
        number_of(self.families.get(usize::from(metric.0))?, subject, labels)
    }

    /// Drops and counts the series above the cap, the last ones in the catalogue first. Series about the node are few
    /// and describe the others, so they always stay.
    pub fn cap(
        mut self,
        max_series: usize,
        groups: &[MetricGroup],
        counters: &mut OwnCounters,
    ) -> (Vec<Family>, Subjects) {
        // This metric counts itself too. Its value is set at the end.
        self.add(&m::gpu_exporter_series, &Node {}, (), 0.0);
        let mut room = max_series;
        let mut dropped = 0;
        let mut families: Vec<Family> = Vec::new();
        for (def, series) in METRICS.iter().zip(self.families) {
            let whole = def.group.is_none_or(|group| groups.contains(&group));
            let mut family = Family { def, series, whole };
            if def.entity != EntityKind::Node {
                let mut series = std::mem::take(&mut family.series);
                // A histogram is many series on the page, and is dropped as a whole.
                series.retain(|one| {
                    let size = if family.serves(one) { one.value.series() } else { 0 };
                    let fits = size <= room;
                    room -= if fits { size } else { room };
                    dropped += if fits { 0 } else { size };
                    fits
                });
                family.series = series;
            }
            if !family.series.is_empty() {
                families.push(family);
            }
        }
        counters.add(&m::gpu_exporter_series_dropped_total, &Node {}, (), dropped as f64);
        let total: usize = families.iter().flat_map(Family::scraped).map(|s| s.value.series()).sum();
        let own = families.iter_mut().find(|family| std::ptr::eq(family.def, m::gpu_exporter_series.def()));
        for series in own.into_iter().flat_map(|own| &mut own.series) {
            series.value = Value::Number(total as f64);
        }
        self.subjects.forget_unused();
        (families, self.subjects)
    }
}

//! Snapshots for tests.

use std::sync::Arc;

use super::{Family, Series, Snapshot, SubjectText, Value, number_of};
use crate::catalog::schema::LabelText;
use crate::catalog::{self as m, Gpu, METRICS, MetricId, Subject};
use crate::sample::Rows;
use crate::verdict::{Findings, HealthEvidence};

impl Snapshot {
    /// A snapshot that holds these rows alone.
    pub fn with_rows(rows: &Rows) -> Snapshot {
        let mut families: Vec<Family> =
            METRICS.iter().map(|def| Family { def, series: Vec::new(), whole: true }).collect();
        for (subject, rows) in rows.groups() {
            let subject = Arc::new(SubjectText { subject: subject.clone(), values: subject.label_values() });
            for row in rows {
                families[usize::from(row.metric.0)].series.push(Series {
                    subject: subject.clone(),
                    labels: row.labels.clone(),
                    value: Value::Number(row.value),
                });
            }
        }
        families.retain(|f| !f.series.is_empty());
        Snapshot { families, ..Snapshot::default() }
    }

    /// The snapshot with its verdicts, by the published values alone.
    pub fn evaluated(mut self) -> Self {
        let value = |metric: MetricId, subject: &Subject, labels: &[LabelText]| {
            let def = m::def(metric)?;
            let family = self.families.iter().find(|family| std::ptr::eq(family.def, def))?;
            number_of(&family.series, subject, labels)
        };
        let node = |metric| self.number(metric, &m::Node {}, ()).unwrap_or(0.0);
        let missing = node(&m::gpu_devices_expected) - node(&m::gpu_devices);
        let findings = |gpu: &Gpu| Findings {
            row_remap_failure: self.number(&m::gpu_row_remap_failure, gpu, ()) == Some(1.0),
            ..Findings::default()
        };
        let absent = self.health.absent.clone();
        let missing = missing.max(0.0) as usize;
        let evidence = HealthEvidence { snapshot: &self, missing, absent, value: &value };
        self.health = evidence.evaluate(findings);
        self
    }

    /// Number of series a scrape gets, buckets of a histogram counted as Prometheus counts them.
    pub fn series_count(&self) -> usize {
        self.families.iter().flat_map(Family::scraped).map(|s| s.value.series()).sum()
    }
}

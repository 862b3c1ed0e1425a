//! OpenMetrics 1.0, encoded by `prometheus-client`. The snapshot is a collector in its own registry.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::text::whole;
use model::catalog::{Kind, MetricDef};
use model::snapshot::{Family, Series, Snapshot, Value};

/// Appends the snapshot, including `# EOF`.
pub fn encode(snapshot: &Arc<Snapshot>, out: &mut String) {
    let node = snapshot.node_labels.iter();
    let node = node.map(|(name, value)| (Cow::Borrowed(*name), Cow::Owned(value.clone())));
    let mut registry = Registry::with_labels(node);
    registry.register_collector(Box::new(SnapshotCollector(snapshot.clone())));
    // Only the writer can fail, and writing to a string always succeeds.
    if let Err(error) = text::encode(out, &registry) {
        tracing::error!("failed to encode OpenMetrics: {error}; the response is incomplete");
    }
}

#[derive(Debug)]
struct SnapshotCollector(Arc<Snapshot>);

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for family in self.0.scraped() {
            encode_family(&mut encoder, family)?;
        }
        Ok(())
    }
}

fn encode_family(encoder: &mut DescriptorEncoder, family: &Family) -> fmt::Result {
    let def = family.def;
    let (name, unit) = name_and_unit(def);
    let kind = match def.kind {
        Kind::Gauge => MetricType::Gauge,
        Kind::Counter => MetricType::Counter,
        Kind::Info => MetricType::Info,
        Kind::Histogram => MetricType::Histogram,
    };
    let mut metric = encoder.encode_descriptor(name, def.help(), unit.as_ref(), kind)?;
    for series in family.scraped() {
        let labels = SeriesLabels { def, series };
        if def.kind == Kind::Info {
            metric.encode_info(&labels)?;
        } else if def.entity.labels().is_empty() && def.labels.is_empty() {
            // An empty label set of a family would be encoded as "{}".
            encode_value(&mut metric, def.kind, &series.value)?;
        } else {
            encode_value(&mut metric.encode_family(&labels)?, def.kind, &series.value)?;
        }
    }
    Ok(())
}

fn encode_value(metric: &mut MetricEncoder, kind: Kind, value: &Value) -> fmt::Result {
    match value {
        Value::Number(v) if kind == Kind::Counter => match whole(*v).map(u64::try_from) {
            Some(Ok(whole)) => metric.encode_counter::<NoLabelSet, u64, u64>(&whole, None),
            _ => metric.encode_counter::<NoLabelSet, f64, u64>(v, None),
        },
        Value::Number(v) => match whole(*v) {
            Some(whole) => metric.encode_gauge(&whole),
            None => metric.encode_gauge(v),
        },
        Value::Histogram(h) => {
            let bounds = h.bounds.iter().copied().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(h.counts.iter().copied()).collect();
            metric.encode_histogram::<NoLabelSet>(h.sum, h.count(), &buckets, None)
        }
    }
}

/// Returns the name without `_total` or `_info`, and without the unit, which `prometheus-client` appends itself.
fn name_and_unit(def: &'static MetricDef) -> (&'static str, Option<Unit>) {
    let suffix = def.unit.suffix();
    let family = def.family();
    let bare = family.strip_suffix(suffix).and_then(|bare| bare.strip_suffix('_'));
    match bare {
        Some(bare) if !suffix.is_empty() => (bare, Some(Unit::Other(suffix.to_owned()))),
        _ => (family, None),
    }
}

#[derive(Debug)]
struct SeriesLabels<'a> {
    def: &'static MetricDef,
    series: &'a Series,
}

impl EncodeLabelSet for SeriesLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> fmt::Result {
        self.series.label_pairs(self.def).try_for_each(|pair| {
            use prometheus_client::encoding::EncodeLabel;
            pair.encode(encoder.encode_label())
        })
    }
}

//! Values of DCGM's own fields.

use std::collections::HashMap;

use model::catalog::schema::LabelText;
use model::catalog::{self as m, EventKind, MetricId, Subject};
use model::snapshot::{Family, Series, Snapshot, Value};

use super::entities::{Entities, PageEntity};
use super::{PageLabel, PageSample};
use crate::fields::{DcgmField, FieldSource, Level, Reading};

/// Returns the series of a metric.
pub fn family(snapshot: &Snapshot, metric: MetricId) -> Option<&Family> {
    let def = m::def(metric)?;
    snapshot.families.iter().find(|family| std::ptr::eq(family.def, def))
}

/// Returns the value of a series if it is a number.
pub fn number(series: &Series) -> Option<f64> {
    match series.value {
        Value::Number(value) => Some(value),
        Value::Histogram(_) => None,
    }
}

/// Values by subject, for the series of a metric with given label values.
type BySubject<'a> = HashMap<&'a Subject, f64>;

fn read<'a>(snapshot: &'a Snapshot, (metric, values): Reading) -> BySubject<'a> {
    let Some(family) = family(snapshot, metric) else { return HashMap::new() };
    let has = |labels: &[LabelText]| {
        let texts = labels.iter().zip(family.def.labels).map(|(text, def)| text.text(def));
        values.iter().copied().zip(texts).all(|(wanted, text)| wanted == text)
    };
    let matching = family.series.iter().filter(|series| has(&series.labels));
    matching.filter_map(|series| Some((&series.subject.subject, number(series)?))).collect()
}

/// Adds up several series per subject, for fields that are sums.
fn added<'a>(
    snapshot: &'a Snapshot,
    metric: MetricId,
    numbers: &[(&str, u32)],
    counts: fn(f64) -> bool,
) -> BySubject<'a> {
    let mut sums = BySubject::new();
    for series in family(snapshot, metric).into_iter().flat_map(|family| &family.series) {
        let (Some(value), Some(def)) = (number(series), m::def(metric)) else { continue };
        let text = series.labels.first().zip(def.labels.first()).map_or("", |(text, def)| text.text(def));
        let known = numbers.iter().find(|(name, _)| *name == text);
        let sum = sums.entry(&series.subject.subject).or_default();
        *sum += known.filter(|_| counts(value)).map_or(0.0, |(_, number)| f64::from(*number));
    }
    sums
}

/// Returns a field's values in the order of the entities.
pub fn samples(
    field: &DcgmField,
    corrected: bool,
    snapshot: &Snapshot,
    entities: &Entities,
) -> Vec<PageSample> {
    let found = Found::read(field, snapshot);
    let value = |entity: PageEntity| {
        let subjects = entities.subjects(entity, field.level, corrected);
        found.value(&subjects)
    };
    let at = entities.at(field.level, corrected);
    let sample = |entity: PageEntity| {
        let value = value(entity)?;
        let attributes = if field.id == XID { error(value) } else { Vec::new() };
        Some(PageSample { entity, labels: Vec::new(), attributes, value })
    };
    let mut samples: Vec<PageSample> = at.into_iter().filter_map(sample).collect();
    if field.id == XID {
        samples.extend(of_instances(snapshot, entities, corrected));
    }
    if corrected && field.level == Level::Board {
        // The GPU's own value counts only if none of its instances has one.
        let divided: Vec<usize> =
            samples.iter().filter(|one| one.entity.instance.is_some()).map(|one| one.entity.gpu).collect();
        samples.retain(|one| one.entity.instance.is_some() || !divided.contains(&one.entity.gpu));
    }
    samples
}

/// Number of the field for the newest Xid.
const XID: u16 = 230;

/// Returns the newest Xid of every MIG instance in the event list. DCGM has these values in addition to the GPU's
/// value.
fn of_instances(snapshot: &Snapshot, entities: &Entities, corrected: bool) -> Vec<PageSample> {
    let xids: Vec<_> =
        snapshot.events.iter().filter(|event| event.kind == EventKind::Xid && !event.old).collect();
    let newest = |entity: PageEntity| {
        let gpu = &entities.0[entity.gpu];
        let instance = gpu.instances.get(entity.instance?)?.id;
        let of = xids.iter().filter(|event| {
            event.gpu.as_ref() == Some(&gpu.gpu)
                && event.gpu_instance == Some(instance)
                && (entity.compute.is_none() || entity.compute == event.compute_instance)
        });
        let value =
            of.max_by(|one, two| one.last_unix_seconds.total_cmp(&two.last_unix_seconds))?.code? as f64;
        Some(PageSample { entity, labels: Vec::new(), attributes: error(value), value })
    };
    entities.at(Level::ComputeInstance, corrected).into_iter().filter_map(newest).collect()
}

/// Returns the attributes of an Xid, its code and name.
fn error(code: f64) -> Vec<PageLabel<'static>> {
    let number = code as u32;
    let name = match number {
        0 => "No Error",
        _ => match model::xid::xid(number).mnemonic {
            "" => "Unknown Error",
            name => name,
        },
    };
    vec![PageLabel::new("err_code", number.to_string()), PageLabel::new("err_msg", name)]
}

/// Source of a field, resolved to the series of this snapshot.
enum Found<'a> {
    None,
    First(Vec<BySubject<'a>>, f64),
    Sum(Vec<BySubject<'a>>, f64),
    Share([Vec<BySubject<'a>>; 3]),
}

impl<'a> Found<'a> {
    fn read(field: &DcgmField, snapshot: &'a Snapshot) -> Found<'a> {
        let readings = |of: &[Reading]| of.iter().map(|reading| read(snapshot, *reading)).collect();
        let plain = |of: &[MetricId]| of.iter().map(|metric| read(snapshot, (*metric, &[]))).collect();
        match field.source {
            FieldSource::None(_) | FieldSource::Own(_) => Found::None,
            FieldSource::Series { of, factor } => Found::First(readings(of), factor),
            FieldSource::Sum { of, factor } => Found::Sum(readings(of), factor),
            FieldSource::Bits { metric, bits } => {
                Found::First(vec![added(snapshot, metric, bits, |value| value > 0.0)], 1.0)
            }
            FieldSource::Choice { metric, numbers, failed } => {
                let mut states = added(snapshot, metric, numbers, |value| value > 0.0);
                if let Some((status, number)) = failed {
                    for (subject, _) in
                        read(snapshot, (status, &[])).into_iter().filter(|(_, code)| *code > 0.0)
                    {
                        states.insert(subject, f64::from(number));
                    }
                }
                Found::First(vec![states], 1.0)
            }
            FieldSource::Share { part, whole, less } => {
                Found::Share([plain(part), plain(whole), plain(less)])
            }
            FieldSource::Info { metric, label, number } => {
                let texts = family(snapshot, metric).into_iter().flat_map(|family| {
                    let text = |series: &'a Series| info(family, series, label).and_then(number);
                    family
                        .series
                        .iter()
                        .filter_map(move |series| Some((&series.subject.subject, text(series)?)))
                });
                Found::First(vec![texts.collect()], 1.0)
            }
        }
    }

    /// Returns the value of the first subject that has one.
    fn value(&self, subjects: &[Subject]) -> Option<f64> {
        let first = |maps: &[BySubject<'a>]| {
            subjects.iter().find_map(|subject| maps.iter().find_map(|map| map.get(subject).copied()))
        };
        match self {
            Found::None => None,
            Found::First(maps, factor) => first(maps).map(|value| value * factor),
            Found::Sum(maps, factor) => {
                let parts: Option<Vec<f64>> =
                    maps.iter().map(|map| first(std::slice::from_ref(map))).collect();
                parts.map(|parts| parts.iter().sum::<f64>() * factor)
            }
            Found::Share([part, whole, less]) => {
                let room = first(whole)? - first(less)?;
                (room > 0.0).then(|| first(part).map(|part| part / room))?
            }
        }
    }
}

/// Returns a label of an info series or of its entity, or `None` if the label is empty.
pub fn info<'a>(family: &Family, series: &'a Series, label: &str) -> Option<&'a str> {
    let mut pairs = series.label_pairs(family.def);
    pairs.find(|(name, _)| *name == label).map(|(_, text)| text).filter(|text| !text.is_empty())
}

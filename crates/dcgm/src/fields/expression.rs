//! PromQL expressions over our `/metrics` that compute DCGM's fields, for the documentation.

use model::catalog::{self as m, METRICS, MetricDef, MetricId, Tier};

use super::{DcgmField, FamilyType, FieldSource, Own, Reading};

/// Returns the selector of a reading, such as `gpu_clock_hertz{domain="sm"}`. A rate that is only in the JSON is
/// computed from its counter. Returns `None` if `/metrics` does not provide the reading.
fn selector((metric, values): &Reading) -> Option<String> {
    let def = m::def(*metric)?;
    let labels: Vec<String> =
        def.labels.iter().zip(*values).map(|(label, value)| format!("{}=\"{value}\"", label.name)).collect();
    let of = |name: &str| {
        if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) }
    };
    if def.json_only { Some(format!("rate({}[1m])", of(counter(def)?.name))) } else { Some(of(def.name)) }
}

/// Returns the counter that accumulates a rate.
fn counter(rate: &MetricDef) -> Option<&'static MetricDef> {
    let name = rate.name.strip_suffix("_per_second")?;
    METRICS.iter().find(|def| !def.json_only && def.name.strip_suffix("_total") == Some(name))
}

/// Returns the name of a metric if `/metrics` serves it.
fn name(metric: MetricId) -> Option<&'static str> {
    m::def(metric).filter(|def| !def.json_only).map(|def| def.name)
}

/// Appends the factor to an expression, as a division if the inverse is a whole number.
fn scaled(text: String, factor: f64) -> String {
    let inverse = (1.0 / factor).round();
    match factor {
        1.0 => text,
        _ if factor < 1.0 && (inverse * factor - 1.0).abs() < 1e-9 => format!("{text} / {inverse}"),
        _ => format!("{text} * {factor}"),
    }
}

/// Returns the sum of the numbers of all active states.
fn states(metric: MetricId, numbers: &[(&str, u32)]) -> Option<String> {
    let (name, label) = (name(metric)?, m::def(metric)?.labels.first()?.name);
    let state = |(value, number): &(&str, u32)| format!("{name}{{{label}=\"{value}\"}} * {number}");
    let states: Vec<String> = numbers.iter().map(state).collect();
    Some(format!("sum without ({label}) ({})", states.join(" or ")))
}

fn of_source(source: &FieldSource) -> Option<String> {
    match *source {
        FieldSource::None(_) => None,
        FieldSource::Series { of, factor } => {
            let parts: Vec<String> =
                of.iter().filter_map(selector).map(|part| scaled(part, factor)).collect();
            (!parts.is_empty()).then(|| parts.join(" or "))
        }
        FieldSource::Sum { of, factor } => {
            let parts = of.iter().map(selector).collect::<Option<Vec<String>>>()?;
            let all = parts.join(" + ignoring (direction) ");
            Some(if factor == 1.0 { all } else { scaled(format!("({all})"), factor) })
        }
        FieldSource::Bits { metric, bits } => states(metric, bits),
        FieldSource::Choice { metric, numbers, failed } => {
            let states = states(metric, numbers)?;
            let Some((metric, number)) = failed else { return Some(states) };
            Some(format!("({} != 0) * 0 + {number} or {states}", name(metric)?))
        }
        FieldSource::Share { part, whole, less } => {
            let share = |((part, whole), less): ((&MetricId, &MetricId), &MetricId)| {
                Some(format!("{} / ({} - {})", name(*part)?, name(*whole)?, name(*less)?))
            };
            let shares = part.iter().zip(whole).zip(less).map(share).collect::<Option<Vec<String>>>()?;
            Some(shares.join(" or "))
        }
        FieldSource::Info { metric, label, .. } => {
            let entity = m::def(metric)?.entity.labels().iter().map(|label| label.name);
            let labels: Vec<&str> = entity.filter(|name| *name != label).chain([label]).collect();
            Some(format!("group by (instance, {}) ({})", labels.join(", "), name(metric)?))
        }
        FieldSource::Own(own) => own_family(own),
    }
}

fn own_family(own: Own) -> Option<String> {
    let by_code = |inner: &str| Some(format!("sum by (instance, gpu, uuid, xid) ({inner})"));
    let xids = name(m::gpu_xid_errors_total.id())?;
    match own {
        Own::XidErrorsCount => by_code(&format!("increase({xids}[5m])")),
        Own::XidErrorsTotal => by_code(xids),
        Own::GpuHealthStatus => name(m::gpu_unhealthy_reason.id()).map(str::to_owned),
        Own::ClockEventsCount | Own::ClockEventsTotal | Own::P2pStatus => None,
    }
}

/// Returns an expression for the field's value, or an empty text if `/metrics` does not provide the value.
pub(super) fn expression(field: &DcgmField) -> String {
    of_source(&field.source).unwrap_or_default()
}

/// Returns true for a counter that is read once a minute.
fn is_rare_counter(field: &DcgmField) -> bool {
    let (FieldSource::Series { of, .. } | FieldSource::Sum { of, .. }) = field.source else { return false };
    let is_rare = |(metric, _): &Reading| m::def(*metric).is_some_and(|def| def.tier == Tier::Rare);
    field.kind == FamilyType::Counter && of.iter().any(is_rare)
}

/// Returns a remark on the expression, or the reason why there is none. The text may be empty.
pub(super) fn remark(field: &DcgmField, expression: &str) -> &'static str {
    match field.source {
        FieldSource::None(why) => why,
        _ if is_rare_counter(field) && expression.is_empty() => "`/dcgm/metrics` alone; read once a minute",
        _ if is_rare_counter(field) => {
            "read once a minute: a rate over `[1m]` is 0 or double, over `[5m]` it is right"
        }
        _ if expression.is_empty() => "`/dcgm/metrics` alone",
        FieldSource::Info { .. } if field.kind == FamilyType::Label => "a label",
        FieldSource::Info { .. } => "a label, and no number",
        FieldSource::Own(Own::GpuHealthStatus) => "the reasons; DCGM's watches: `/dcgm/metrics` alone",
        FieldSource::Own(Own::XidErrorsCount) => "counts from the second sample on",
        _ if expression.contains("rate(") => "a mean over the range, in place of the newest window",
        _ => "",
    }
}

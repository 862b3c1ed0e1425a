//! What a field is made of, as PromQL, for people and documents.

use model::catalog::{self as m, MetricId};

use super::{DcgmField, FieldSource, Own, Reading};

/// The selector of a reading, as `gpu_clock_hertz{domain="sm"}`.
fn selector((metric, values): &Reading) -> String {
    let Some(def) = m::def(*metric) else { return String::new() };
    let labels: Vec<String> =
        def.labels.iter().zip(*values).map(|(label, value)| format!("{}=\"{value}\"", label.name)).collect();
    if labels.is_empty() { def.name.to_owned() } else { format!("{}{{{}}}", def.name, labels.join(",")) }
}

fn name(metric: MetricId) -> &'static str {
    m::def(metric).map_or("", |def| def.name)
}

/// The factor as people write it: a division where that is a whole number.
fn scaled(text: String, factor: f64) -> String {
    let inverse = (1.0 / factor).round();
    match factor {
        1.0 => text,
        _ if factor < 1.0 && (inverse * factor - 1.0).abs() < 1e-9 => format!("{text} / {inverse}"),
        _ => format!("{text} * {factor}"),
    }
}

/// An expression that gives the field's value; empty if nothing of ours has it.
pub(super) fn of(field: &DcgmField) -> String {
    match field.source {
        FieldSource::None => String::new(),
        FieldSource::Series { of, factor } => {
            let parts: Vec<String> = of.iter().map(|reading| scaled(selector(reading), factor)).collect();
            parts.join(" or ")
        }
        FieldSource::Sum { of, factor } => {
            let parts: Vec<String> = of.iter().map(selector).collect();
            let all = parts.join(" + ignoring(direction) ");
            if factor == 1.0 { all } else { scaled(format!("({all})"), factor) }
        }
        FieldSource::Bits { metric, .. } => format!("{}, a bit each", name(metric)),
        FieldSource::Choice { metric, .. } => format!("{}, as a number", name(metric)),
        FieldSource::Share { part, whole, less } => {
            let first = |metrics: &[MetricId]| metrics.first().map_or("", |metric| name(*metric));
            format!("{} / ({} - {})", first(part), first(whole), first(less))
        }
        FieldSource::Info { metric, label, .. } => format!("label {label} of {}", name(metric)),
        FieldSource::Own(own) => match own {
            Own::ClockEventsCount => name(m::gpu_clock_event_window_samples.id()).to_owned(),
            Own::ClockEventsTotal => name(m::gpu_clock_event_starts_total.id()).to_owned(),
            Own::XidErrorsCount => name(m::gpu_xid_window_errors.id()).to_owned(),
            Own::XidErrorsTotal => name(m::gpu_xid_errors_total.id()).to_owned(),
            Own::GpuHealthStatus => name(m::gpu_unhealthy_reason.id()).to_owned(),
            Own::P2pStatus => format!("label nvlink of {}", name(m::gpu_peer_info.id())),
        },
    }
}

//! Documents generated from the catalogue: `docs/METRICS.md` and the output of `gpu-node-exporter metrics`.

use std::fmt::Write;

use model::catalog::schema::{KnownLabel, LabelDef, MetricDef};
use model::catalog::{EntityKind, METRICS, MetricGroup};
use model::text::one_line;
use serde_json::json;

/// Returns the catalogue as JSON: `{"entities": [...], "metrics": [...]}`.
pub fn json() -> String {
    let entity = |e: &EntityKind| json!({ "entity": e, "help": one_line(e.help()), "labels": e.labels() });
    let entities: Vec<_> = EntityKind::ALL.iter().map(entity).collect();
    let metric = |m: &MetricDef| {
        let mut metric = json!(m);
        (metric["help"], metric["notes"]) = (m.help().into(), m.notes().into());
        metric
    };
    let metrics: Vec<_> = METRICS.iter().map(metric).collect();
    let document = json!({ "entities": entities, "metrics": metrics });
    format!("{document:#}\n")
}

/// Returns one line per metric with its name, kind, labels and help.
pub fn text() -> String {
    let mut out = String::new();
    for m in METRICS {
        let kind = format!("{:?}", m.kind).to_lowercase();
        let labels: Vec<_> = all_labels(m).map(|l| l.name).collect();
        let labels = if labels.is_empty() { String::new() } else { format!(" {{{}}}", labels.join(", ")) };
        let _ = writeln!(out, "{}{labels} ({kind})\n    {}", m.name, m.help());
    }
    out
}

/// Start of `docs/METRICS.md`, up to the header of the table of entities.
const INTRODUCTION: &str = include_str!("docs/introduction.md");
/// Section of `docs/METRICS.md` about the architectures.
const BY_ARCHITECTURE: &str = include_str!("docs/by-architecture.md");

/// Returns the text of `docs/METRICS.md`.
pub fn markdown() -> String {
    let mut out = String::from(INTRODUCTION);
    for e in EntityKind::ALL {
        let labels = quoted(e.labels().iter().map(|l| l.name));
        let _ = writeln!(out, "| {e:?} | {labels} | {} |", one_line(e.help()));
    }
    out.push_str(BY_ARCHITECTURE);
    out.push_str(
        "\n## Groups\n\n\
         `/metrics` serves the default set and the groups in `metrics.groups`; `all` enables every group. Groups do \
         not limit the status page, `/api/v1` or the data of the alerts. The column \"series\" is the approximate \
         number of series that the group adds on a node with eight H200s without MIG and with eight owners.\n\n\
         | group | series | description | metrics |\n|---|---|---|---|\n",
    );
    for group in MetricGroup::ALL.iter().filter(|group| **group != MetricGroup::All) {
        let metrics = METRICS.iter().filter(|m| m.group == Some(*group));
        let names: Vec<_> = metrics.map(|m| format!("[`{0}`](#{0})", m.name)).collect();
        let (name, series) = (group.name(), group.series());
        let _ = writeln!(out, "| `{name}` | {series} | {} | {} |", one_line(group.help()), names.join(", "));
    }
    append_index(&mut out);
    METRICS.iter().for_each(|metric| append_metric(&mut out, metric));
    out
}

/// Appends the table of all metrics.
fn append_index(out: &mut String) {
    out.push_str("\n## Metrics\n\n| metric | kind | unit | entity | further labels | tier | since |\n|---|---|---|---|---|---|---|\n");
    for m in METRICS {
        let _ = writeln!(
            out,
            "| [`{0}`](#{0}) | {1} | {2} | {3:?} | {4} | {5} | {6} |",
            m.name,
            format!("{:?}", m.kind).to_lowercase(),
            m.unit.suffix(),
            m.entity,
            quoted(m.labels.iter().map(|l| l.name)),
            m.tier.known(),
            m.since
        );
    }
}

/// Appends the section of one metric.
fn append_metric(out: &mut String, m: &MetricDef) {
    let _ = write!(out, "\n### {}\n\n{}\n", m.name, format!("{} {}", m.help(), m.notes()).trim_end());
    if let Some(group) = m.group {
        let except = quoted(m.except.iter().copied());
        let except = if except.is_empty() { except } else { format!(", except for {except}") };
        let _ = write!(out, "\nGroup `{}`{except}.\n", group.name());
    }
    if let Some(instead) = m.deprecated {
        let _ = write!(out, "\nDeprecated: use `{instead}`.\n");
    }
    if all_labels(m).next().is_some() {
        out.push('\n');
    }
    for label in all_labels(m) {
        let _ = write!(out, "- `{}`: {}", label.name, one_line(label.help));
        if let Some(values) = label.values {
            let _ = write!(out, " One of {}.", quoted(values.iter().copied()));
        }
        out.push('\n');
    }
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn all_labels(m: &MetricDef) -> impl Iterator<Item = &'static LabelDef> {
    m.entity.labels().iter().chain(m.labels)
}

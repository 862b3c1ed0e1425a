//! OpenTelemetry's names hw.*: those of the table in docs/migrating/opentelemetry.md, with the values of the page.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::collector::{Collector, Kind, Point, Texts};
use super::node::{Metrics, Node};

const FILES: [&str; 2] = ["deploy/otel/collector.yaml", "deploy/otel/hw-gpu.yaml"];

/// A row of the table.
struct Row {
    name: String,
    attributes: Texts,
    unit: String,
    expression: String,
}

/// `name{label="value",...}`.
fn selector(text: &str) -> (String, Texts) {
    let (name, labels) = text.split_once('{').unwrap_or((text, "}"));
    let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
    let label = |label: &str| {
        let (name, value) = label.split_once('=').unwrap();
        (name.to_owned(), value.trim_matches('"').to_owned())
    };
    (name.to_owned(), labels.map(label).collect())
}

fn table() -> Vec<Row> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/migrating/opentelemetry.tsv");
    let text = fs::read_to_string(file).unwrap();
    let row = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let (name, attributes) = selector(columns[0]);
        Row { name, attributes, unit: columns[1].to_owned(), expression: columns[2].to_owned() }
    };
    text.lines().filter(|line| !line.starts_with('#')).skip(1).map(row).collect()
}

/// The expression's value of a GPU: a series, or 1 without it. None where the Collector has none to push: no such value, or a
/// quotient of two series.
fn evaluate(expression: &str, m: &Metrics, uuid: &str) -> Option<f64> {
    if expression == "none" || expression.contains(" / ") {
        return None;
    }
    let (plain, without) = expression.strip_prefix("1 - ").map_or((expression, false), |rest| (rest, true));
    let (name, mut labels) = selector(plain);
    labels.insert("uuid".into(), uuid.into());
    let labels: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let value = m.value(&name, &labels).unwrap_or_else(|| panic!("the page has no {plain}"));
    Some(if without { 1.0 - value } else { value })
}

/// Instruments of the semantic conventions.
fn kind(name: &str) -> Kind {
    match name {
        "hw.gpu.io" | "hw.energy" | "hw.errors" => Kind::Counter,
        "hw.gpu.memory.limit" | "hw.gpu.memory.usage" | "hw.status" => Kind::UpDownCounter,
        _ => Kind::Gauge,
    }
}

#[test]
fn each_row_of_the_table_arrives_with_its_unit_and_the_pages_value() {
    let node = Node::start("tests/scenarios/still-8xh200.toml");
    let before = node.wait_metrics("every tier", |m| {
        m.all("gpu_gpm_pcie_bytes_total", &[]).len() == 16 && m.all("gpu_energy_joules_total", &[]).len() == 8
    });
    let collector = Collector::start(node.addr(), &FILES);
    let points = collector.second_scrape();
    let after = node.metrics();
    let hw: Vec<&Point> = points.iter().filter(|p| p.name.starts_with("hw.")).collect();
    let uuids: BTreeSet<&String> =
        after.0.iter().filter(|(n, ..)| n == "gpu_info").map(|(_, l, _)| &l["uuid"]).collect();
    assert_eq!(uuids.len(), 8);
    let (mut arrived, mut equal) = (0, BTreeSet::new());
    for row in table() {
        for uuid in &uuids {
            let mut attributes = row.attributes.clone();
            attributes.insert("hw.id".into(), (*uuid).clone());
            let of = hw.iter().filter(|p| p.name == row.name && p.attributes == attributes);
            let values: Vec<Option<f64>> = of
                .map(|p| {
                    assert_eq!((p.unit.as_str(), p.kind), (row.unit.as_str(), kind(&row.name)), "{p:?}");
                    assert_eq!(&&p.resource["gpu.uuid"], uuid);
                    p.value
                })
                .collect();
            let (low, high) =
                (evaluate(&row.expression, &before, uuid), evaluate(&row.expression, &after, uuid));
            let Some((low, high)) = low.zip(high) else {
                assert!(values.is_empty(), "{}: {values:?}", row.name);
                continue;
            };
            let [Some(value)] = values[..] else { panic!("{} {attributes:?}: {values:?}", row.name) };
            assert!(low <= value && value <= high, "{} {attributes:?}: {low} {value} {high}", row.name);
            arrived += 1;
            if low == high && value != 0.0 {
                equal.insert(row.name.clone());
            }
        }
    }
    assert_eq!(hw.len(), arrived, "no point is of another name");
    for name in [
        "hw.gpu.memory.limit",
        "hw.energy",
        "hw.power",
        "hw.temperature",
        "hw.temperature.limit",
        "hw.status",
    ] {
        assert!(equal.contains(name), "{name} was not compared: {equal:?}");
    }
    // A series that was renamed has one name.
    for gone in ["gpu_power_watts", "gpu_utilization_ratio", "gpu_healthy", "gpu_energy_joules_total"] {
        assert!(points.iter().all(|p| p.name != gone), "{gone}");
    }
    assert_eq!(collector.complaints(), Vec::<String>::new());
}

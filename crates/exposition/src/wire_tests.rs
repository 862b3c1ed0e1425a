//! Compares the two metric formats, and checks the OpenMetrics output against the rules of OpenMetrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use crate::fixtures;
use crate::format::ResponseFormat;
use model::catalog::schema::Entity;
use model::catalog::{Kind, METRICS, Node};
use model::snapshot::{Family, Histogram, Series, Snapshot, SubjectText, Value};

/// A sample line of a metrics page.
type Sample = (String, BTreeMap<String, String>, String);

/// Parses `name{label="value",...} number`.
fn sample(line: &str) -> Sample {
    let name_ends = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(name_ends);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        assert!(!rest.starts_with('}'), "empty braces: {line}");
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap();
            let (mut value, mut chars) = (String::new(), after.char_indices());
            let end = loop {
                match chars.next().unwrap() {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("escape \\{c} in {line}"),
                    }),
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.to_owned(), value).is_none(), "label {label} twice: {line}");
            rest = &after[end + 1..];
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
        rest = &rest[1..];
    }
    (name.to_owned(), labels, rest.strip_prefix(' ').unwrap().to_owned())
}

fn samples(page: &str) -> BTreeSet<Sample> {
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        assert!(seen.insert(sample(line)), "series twice: {line}");
    }
    seen
}

/// Panics if the page violates a rule of OpenMetrics 1.0 on which Prometheus or another parser relies.
fn check_openmetrics(page: &str) {
    assert!(page.ends_with("# EOF\n"), "the last line is # EOF");
    assert_eq!(page.matches("# EOF").count(), 1);
    let mut families = BTreeSet::new();
    let mut series = BTreeSet::new();
    let (mut family, mut kind, mut lines) = (String::new(), String::new(), Vec::new());
    for line in page.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# ") {
            let (what, rest) = rest.split_once(' ').unwrap();
            let (name, text) = rest.split_once(' ').unwrap();
            if what == "HELP" {
                assert!(families.insert(name.to_owned()), "family {name} is in two pieces");
                (family, kind, lines) = (name.to_owned(), String::new(), Vec::new());
            }
            assert_eq!(name, family, "{line}");
            assert!(series.is_empty() || !lines.contains(&what), "{what} of {name} twice");
            lines.push(what);
            match what {
                "HELP" => {}
                "TYPE" => kind = text.to_owned(),
                "UNIT" => {
                    assert!(name.ends_with(&format!("_{text}")), "{name} does not end in its unit {text}")
                }
                _ => panic!("unknown line {line}"),
            }
            continue;
        }
        let (name, mut labels, value) = sample(line);
        let suffix =
            name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{name} is not of {family}"));
        let number: f64 = value.parse().unwrap();
        match kind.as_str() {
            "gauge" => assert_eq!(suffix, ""),
            "counter" => assert!(suffix == "_total" && number >= 0.0, "{line}"),
            "info" => assert!(suffix == "_info" && value == "1", "{line}"),
            "histogram" => {
                assert!(["_sum", "_count", "_bucket"].contains(&suffix), "{line}");
                assert_eq!(suffix == "_bucket", labels.contains_key("le"), "{line}");
                if let Some(le) = labels.get("le").filter(|le| *le != "+Inf") {
                    assert!(le.contains(['.', 'e']), "{line}: a bound has a point");
                }
            }
            _ => panic!("{line} comes before its TYPE"),
        }
        labels.insert("__name__".into(), name);
        assert!(series.insert(labels), "series twice: {line}");
    }
}

fn check(snapshot: Snapshot) {
    let snapshot = Arc::new(snapshot);
    let openmetrics = ResponseFormat::OpenMetrics.encode(&snapshot);
    let text = ResponseFormat::Text.encode(&snapshot);
    check_openmetrics(&openmetrics);
    let samples = samples(&text);
    assert_eq!(self::samples(&openmetrics), samples);
    assert_eq!(samples.len(), snapshot.series_count());
    for family in snapshot.scraped() {
        assert!(text.contains(&format!("\n# TYPE {} ", family.def.name)), "{}", family.def.name);
    }
}

#[test]
fn both_pages_of_a_whole_node_say_the_same() {
    check(fixtures::node_taken(1, model::clock::Mono(1)));
}

#[test]
fn an_empty_snapshot_is_an_empty_page() {
    let snapshot = Arc::new(Snapshot::default());
    assert_eq!(ResponseFormat::OpenMetrics.encode(&snapshot), "# EOF\n");
    assert_eq!(ResponseFormat::Text.encode(&snapshot), "");
}

#[test]
fn the_pages_spell_what_the_formats_ask_for() {
    let snapshot = fixtures::node();
    let (openmetrics, text) =
        (ResponseFormat::OpenMetrics.encode(&snapshot), ResponseFormat::Text.encode(&snapshot));
    let both = [
        "gpu_driver_up 1\n",
        "gpu_exporter_driver_call_duration_seconds_bucket{le=\"1.0\"} 5\n",
        "gpu_exporter_driver_call_duration_seconds_bucket{le=\"+Inf\"} 6\n",
        "gpu_exporter_driver_calls_total{call=\"nvmlDeviceGetPowerUsage\",tier=\"normal\"} 1234567\n",
    ];
    for line in both {
        assert!(openmetrics.contains(line) && text.contains(line), "{line}");
    }
    assert!(openmetrics.contains("# TYPE gpu_energy_joules counter\n# UNIT gpu_energy_joules joules\n"));
    assert!(openmetrics.contains("# TYPE gpu info\n"));
    assert!(text.contains("# TYPE gpu_energy_joules_total counter\n"));
    assert!(text.contains("# TYPE gpu_info gauge\n"));
    assert!(!text.contains("# UNIT"));
}

#[test]
fn the_labels_of_the_node_come_first_on_each_series() {
    let labels = [("rack", "r\"1".to_owned()), ("zone", "z".to_owned())];
    let node =
        |node_labels| Arc::new(Snapshot { node_labels, ..fixtures::node_taken(1, model::clock::Mono(1)) });
    let (plain, labelled) = (node(Arc::default()), node(Arc::from(labels)));
    const BOTH: &str = "rack=\"r\\\"1\",zone=\"z\"";
    for format in [ResponseFormat::OpenMetrics, ResponseFormat::Text] {
        let page = format.encode(&labelled);
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        assert!(samples.clone().count() > 100);
        let first = format!("{{{BOTH}");
        assert!(
            samples.clone().all(|line| line.split_once(&*first).is_some_and(|(name, _)| !name.contains('{')))
        );
        let without = page.replace(&format!("{first}}}"), "").replace(&format!("{first},"), "{");
        assert_eq!(without, format.encode(&plain));
    }
    let json: serde_json::Value = serde_json::from_str(&ResponseFormat::Json.encode(&labelled)).unwrap();
    let metrics = json["metrics"].as_array().unwrap();
    assert!(
        metrics.iter().all(|metric| metric["labels"]["rack"] == "r\"1" && metric["labels"]["zone"] == "z")
    );
    let names = METRICS.iter().flat_map(|def| def.entity.labels().iter().chain(def.labels));
    assert!(names.map(|label| label.name).all(|name| name != "rack" && name != "zone"), "each name once");
}

#[test]
fn help_is_the_catalogues_one_line() {
    let text = ResponseFormat::Text.encode(&Arc::new(fixtures::node_taken(1, model::clock::Mono(1))));
    for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = line.split_once(' ').unwrap();
        let def = METRICS.iter().find(|def| def.name == name).unwrap();
        assert_eq!(help, def.help(), "{name}");
    }
}

/// Generates arbitrary metrics of two GPUs with arbitrary label texts and values.
fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let text = prop_oneof!["[a-zA-Z0-9 .:-]{0,12}", "[\\\\\"\n{},=é🦀 ]{0,8}", any::<String>()];
    let value = prop_oneof![(0u32..1_000_000).prop_map(f64::from), 0.0..1e18f64, prop::num::f64::POSITIVE];
    let series = (0..METRICS.len(), 0usize..64, text, value, prop::collection::vec(0u64..1_000_000_000, 4));
    let node_labels = prop_oneof![
        Just(Vec::new()),
        prop::collection::vec("[\\\\\"\n{},=é🦀 ]{1,8}", 1..3),
        prop::collection::vec(any::<String>(), 2),
    ];
    (prop::collection::vec(series, 0..60), node_labels).prop_map(|(all, node_labels)| {
        let mut families: BTreeMap<usize, BTreeMap<Vec<String>, Series>> = BTreeMap::new();
        for (at, pick, text, value, counts) in all {
            let def = &METRICS[at];
            let value = match def.kind {
                Kind::Histogram => Value::Histogram(Arc::new(Histogram {
                    bounds: &[0.000_001, 1.0, 25.0],
                    counts,
                    sum: value,
                })),
                Kind::Info => Value::Number(1.0),
                Kind::Gauge | Kind::Counter => Value::Number(value),
            };
            let values = def.entity.labels().iter().map(|_| Arc::from(text.as_str())).collect();
            // The encoded subject depends only on its label texts.
            let subject = Arc::new(SubjectText { subject: Node {}.subject(), values });
            let series = Series { subject, labels: fixtures::labels_of(def, pick, &text), value };
            let key = series.label_pairs(def).map(|(_, v)| v.to_owned()).collect();
            families.entry(at).or_default().insert(key, series);
        }
        let family = |(at, series): (usize, BTreeMap<_, Series>)| Family {
            def: &METRICS[at],
            series: series.into_values().collect(),
            whole: at % 2 == 0,
        };
        Snapshot {
            families: families.into_iter().map(family).collect(),
            node_labels: ["rack", "zone"].into_iter().zip(node_labels).collect(),
            ..Snapshot::default()
        }
    })
}

proptest! {
    #[test]
    fn both_pages_of_any_snapshot_say_the_same(snapshot in any_snapshot()) {
        check(snapshot);
    }
}

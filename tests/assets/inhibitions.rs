//! The inhibitions of Alertmanager, which the dashboards leave out of what is sent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::dashboards::expressions;
use crate::tools::{run, words};
use crate::{files, report};

/// What the dashboards' build reads.
const TABLE: &str = "dashboards/build/inhibitions.json";

/// A rule of `inhibit_rules`. One with other keys is an error: the dashboards would not follow it.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Inhibition {
    #[serde(rename(deserialize = "source_matchers"))]
    source: Vec<String>,
    #[serde(rename(deserialize = "target_matchers"))]
    target: Vec<String>,
    equal: Vec<String>,
}

#[derive(Deserialize)]
struct Configuration {
    inhibit_rules: Vec<Inhibition>,
}

fn inhibitions(file: &str) -> Vec<Inhibition> {
    let text = files::read(&files::root().join(file));
    let configuration: Configuration =
        yaml_serde::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    configuration.inhibit_rules
}

#[test]
fn the_inhibitions_are_one_table_for_both_configurations_and_the_dashboards() {
    let path = files::root().join(TABLE);
    let rules = inhibitions("alerts/alertmanager.yml");
    let lines: Vec<String> =
        rules.iter().map(|rule| serde_json::to_string(rule).expect("strings can be written")).collect();
    let made = format!("[\n  {}\n]\n", lines.join(",\n  "));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &made).expect("it can be written");
    }
    let mut problems = Vec::new();
    if std::fs::read_to_string(&path).unwrap_or_default() != made {
        problems.push(format!("{TABLE} is not what alerts/alertmanager.yml has: run `make dashboards`"));
    }
    if inhibitions("alerts/alertmanager.fleet.yml") != rules {
        problems.push(
            "alerts/alertmanager.fleet.yml has other inhibitions than alerts/alertmanager.yml".to_owned(),
        );
    }
    report(problems);
}

type Labels = BTreeMap<String, String>;

/// The labels of an alert in the table, with those of the first rule of its name that agrees with them.
fn labels(text: &str, line: usize, rules: &[(String, String, files::Rule)]) -> Labels {
    let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
    let mut labels: Labels = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let agrees = |rule: &files::Rule| {
        rule.labels.iter().all(|(name, value)| labels.get(name).is_none_or(|given| given == value))
    };
    let rule = rules.iter().find(|(_, name, rule)| *name == labels["alertname"] && agrees(rule));
    let (_, _, rule) = rule.unwrap_or_else(|| panic!("{text}: no rule gives these labels"));
    for (name, value) in &rule.labels {
        labels.entry(name.clone()).or_insert_with(|| value.clone());
    }
    labels.entry("instance".to_owned()).or_insert_with(|| "n1".to_owned());
    // Each line in a cluster of its own, so that none is in another's way.
    let cluster = labels.remove("cluster").unwrap_or_default();
    labels.insert("cluster".to_owned(), format!("{line}{cluster}"));
    labels.retain(|_, value| !value.is_empty());
    labels
}

fn series<'a>(name: &str, labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let pairs: Vec<String> =
        labels.into_iter().map(|(name, value)| format!("{name}={}", json!(value))).collect();
    format!("{name}{{{}}}", pairs.join(","))
}

/// The table is what a running Alertmanager does (the tests of tests/gameday).
#[test]
fn the_dashboards_inhibit_what_alertmanager_inhibits() {
    const LEFT: [&str; 5] = ["cluster", "alertname", "reason", "instance", "gpu"];
    let table = files::read(&files::root().join("tests/alerts/inhibitions.psv"));
    let rules = files::alerts();
    let (mut given, mut inhibited) = (Vec::new(), Vec::new());
    for (at, line) in table.lines().filter(|line| !line.starts_with('#')).enumerate() {
        let parts: Vec<&str> = line.split('|').collect();
        let &[outcome, source, target] = parts.as_slice() else { panic!("{line}") };
        let (source, mut target) = (labels(source, at, &rules), labels(target, at, &rules));
        if outcome == "yes" {
            let left = target.iter().filter(|(name, _)| LEFT.contains(&name.as_str()));
            inhibited.push(json!({ "labels": series("", left), "value": 1 }));
        }
        target.insert("asked".to_owned(), "yes".to_owned());
        for mut alert in [source, target] {
            alert.insert("alertstate".to_owned(), "firing".to_owned());
            given.push(json!({ "series": series("ALERTS", &alert), "values": "1" }));
        }
    }
    assert!(inhibited.len() > 30 && given.len() > 2 * inhibited.len() + 30, "the table has both outcomes");
    let panel = expressions().into_iter().find(|panel| panel.place == "gpu-node-oncall: panel \"Inhibited\"");
    let query = panel.expect("On call has a table of inhibited alerts").text;
    // The source of a line may be inhibited by its target: only the target is asked for.
    let asked = format!("({query}) and on ({}) ALERTS{{asked=\"yes\"}}", LEFT.join(", "));
    let test = json!({ "tests": [{
        "input_series": given,
        "promql_expr_test": [{ "expr": asked, "eval_time": "0m", "exp_samples": inhibited }],
    }] });
    let file = format!("{}/inhibitions-{}.test.yml", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::write(&file, test.to_string()).expect("it can be written");
    let problems = run("promtool", &words(&["test", "rules", &file]), ".");
    std::fs::remove_file(&file).expect("it can be removed");
    report(problems);
}

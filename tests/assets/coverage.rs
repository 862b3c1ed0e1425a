//! Whether every alert is tested, and every metric used.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::promql::{Reader, parse};
use super::vocabulary::{Vocabulary, group_of, metric_of, served};
use super::{dashboards, files, report, runbooks, templates};

#[derive(Deserialize)]
struct File {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    #[serde(default)]
    input_series: Vec<Input>,
    #[serde(default)]
    alert_rule_test: Vec<Case>,
    #[serde(default)]
    promql_expr_test: Vec<Asked>,
}

/// An expression that asks which alerts fire.
#[derive(Deserialize)]
struct Asked {
    expr: String,
    #[serde(default)]
    exp_samples: Option<Vec<Sample>>,
}

#[derive(Deserialize)]
struct Sample {
    #[serde(default)]
    labels: String,
}

#[derive(Deserialize)]
struct Input {
    series: String,
}

#[derive(Deserialize)]
struct Case {
    alertname: String,
    #[serde(default)]
    exp_alerts: Option<Vec<Expected>>,
}

#[derive(Deserialize)]
struct Expected {
    #[serde(default)]
    exp_labels: BTreeMap<String, String>,
}

/// The nodes of a test.
fn nodes(inputs: &[Input]) -> BTreeSet<&str> {
    inputs.iter().filter_map(|input| input.series.split("instance=\"").nth(1)?.split('"').next()).collect()
}

#[test]
fn every_alert_is_seen_to_fire_and_to_stay_silent() {
    let mut cases: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for path in files::list("tests/alerts", ".test.yml") {
        let file: File = yaml_serde::from_str(&files::read(&path))
            .unwrap_or_else(|error| panic!("{}: {error}", files::name(&path)));
        for test in file.tests {
            let nodes = nodes(&test.input_series);
            for asked in test.promql_expr_test {
                let firing = asked.expr.contains("alertstate=\"firing\"");
                let name =
                    asked.expr.split("ALERTS{alertname=\"").nth(1).and_then(|rest| rest.split('"').next());
                let Some(name) = name.filter(|_| firing) else { continue };
                let (fires, silent) = cases.entry(name.to_owned()).or_default();
                let expected = asked.exp_samples.unwrap_or_default();
                let named = |node: &&&str| {
                    expected.iter().any(|one| one.labels.contains(&format!("instance=\"{node}\"")))
                };
                *fires += usize::from(!expected.is_empty());
                *silent +=
                    if expected.is_empty() { 1 } else { nodes.len() - nodes.iter().filter(named).count() };
            }
            for case in test.alert_rule_test {
                let (fires, silent) = cases.entry(case.alertname).or_default();
                let expected = case.exp_alerts.unwrap_or_default();
                // Where each node is a case of its own, those that are not expected are silent.
                let of = |node: &&&str| {
                    expected.iter().any(|one| one.exp_labels.get("instance").is_some_and(|of| of == **node))
                };
                let firing = nodes.iter().filter(of).count();
                *fires += usize::from(!expected.is_empty());
                *silent += if expected.is_empty() { 1 } else { nodes.len() - firing };
            }
        }
    }
    let mut problems = Vec::new();
    // One that asks for no series always fires: that is what a dead man's switch is for.
    let always = |text: &str| !text.contains("gpu_") && text.starts_with("vector(");
    let alerts: BTreeMap<String, bool> =
        files::alerts().into_iter().map(|(_, name, rule)| (name, always(&rule.expr))).collect();
    for (name, always) in &alerts {
        let (fires, silent) = cases.get(name).copied().unwrap_or_default();
        if fires == 0 {
            problems.push(format!("{name}: no case in tests/alerts in which it fires"));
        }
        // Far from it, and just before it.
        if silent < 2 && !always {
            problems.push(format!(
                "{name}: {silent} cases in tests/alerts in which it does not fire, two are wanted"
            ));
        }
    }
    for name in cases.keys().filter(|name| !alerts.contains_key(*name)) {
        problems.push(format!("tests/alerts: there is no alert {name}"));
    }
    report(problems);
}

/// Metrics that these expressions ask for.
fn asked(vocabulary: &Vocabulary, texts: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let mut asked = BTreeSet::new();
    for expr in texts.into_iter().filter_map(|text| parse(&text).ok()) {
        let mut reader = Reader::new(vocabulary);
        reader.labels(&expr);
        asked.extend(reader.names.iter().map(|name| metric_of(name).to_owned()));
    }
    asked
}

/// Metrics that runbooks and playbooks look for on the exporter's own page, with the file.
fn looked_for() -> Vec<(String, String)> {
    let files = ["docs/runbooks", "docs/playbooks"].into_iter().flat_map(|folder| files::list(folder, ".md"));
    let mut found = Vec::new();
    for path in files {
        let text = files::read(&path);
        let lines = text.lines().filter(|line| line.contains("/metrics"));
        let words = lines.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        found.extend(words.map(|word| (files::name(&path), metric_of(word).to_owned())));
    }
    found
}

#[test]
fn what_is_served_by_default_is_asked_for() {
    let vocabulary = Vocabulary::new();
    let rules = files::rules().into_iter().map(|(_, rule)| rule.expr);
    let dashboards = dashboards::expressions().into_iter().map(|expression| expression.text);
    let runbooks = runbooks::queries().into_iter().map(|(_, text)| text);
    let templates = templates::queries().into_iter().map(|(_, text)| text);
    let mut asked = asked(&vocabulary, rules.chain(dashboards).chain(runbooks).chain(templates));
    asked.extend(looked_for().into_iter().map(|(_, name)| name));
    let unused = served().filter(|name| !asked.contains(*name));
    report(
        unused
            .map(|name| format!("{name} is served by default, and asked for nowhere: it wants a group"))
            .collect(),
    );
}

#[test]
fn rules_and_runbooks_need_the_default_set_alone() {
    let vocabulary = Vocabulary::new();
    let of = |(file, text): (String, String)| {
        asked(&vocabulary, [text]).into_iter().map(move |name| (file.clone(), name))
    };
    let rules = files::rules().into_iter().map(|(file, rule)| (file, rule.expr));
    let needed =
        rules.chain(runbooks::queries()).chain(templates::queries()).flat_map(of).chain(looked_for());
    let grouped = needed.filter_map(|(file, name)| Some((group_of(&name)?.name(), file, name)));
    report(grouped.map(|(group, file, name)| format!("{file}: {name} is in the group {group}")).collect());
}

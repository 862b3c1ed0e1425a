//! Whether every alert is tested, and every metric used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Deserialize;

use super::promql::{Reader, parse};
use super::vocabulary::{Vocabulary, exported, metric_of};
use super::{dashboards, files, report, runbooks, templates};

/// Metrics that no rule, board or runbook asks for, one a line.
const UNUSED: &str = "tests/assets/unused.txt";
const ABOUT_UNUSED: &str = "\
# Metrics that no rule, board or runbook asks for: they are there for people's own questions.
# `make rules` writes this list.
";

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

#[test]
fn every_metric_is_asked_for_or_known_not_to_be() {
    let vocabulary = Vocabulary::new();
    let mut texts: Vec<String> = files::rules().into_iter().map(|(_, rule)| rule.expr).collect();
    texts.extend(dashboards::expressions().into_iter().map(|expression| expression.text));
    texts.extend(runbooks::queries().into_iter().map(|(_, text)| text));
    texts.extend(templates::queries().into_iter().map(|(_, text)| text));
    let mut used = BTreeSet::new();
    for expr in texts.iter().filter_map(|text| parse(text).ok()) {
        let mut reader = Reader::new(&vocabulary);
        reader.labels(&expr);
        used.extend(reader.names.iter().map(|name| metric_of(name).to_owned()));
    }
    let unused: BTreeSet<&str> = exported().filter(|name| !used.contains(*name)).collect();
    let path = files::root().join(UNUSED);
    if std::env::var_os("UPDATE").is_some() {
        let list = unused.iter().fold(String::from(ABOUT_UNUSED), |mut list, name| {
            let _ = writeln!(list, "{name}");
            list
        });
        std::fs::write(&path, list).expect("it can be written");
        return;
    }
    let text = files::read(&path);
    let listed: BTreeSet<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let new =
        unused.difference(&listed).map(|name| format!("{name} is asked for nowhere, and not in {UNUSED}"));
    let old =
        listed.difference(&unused).map(|name| format!("{name} is in {UNUSED}, and asked for or no metric"));
    report(new.chain(old).collect());
}

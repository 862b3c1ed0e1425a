//! What Argo Rollouts is given: questions that can be answered, asked as often as they must be.

use std::time::Duration;

use serde::Deserialize;

use super::promql::{Reader, parse};
use super::vocabulary::Vocabulary;
use super::{files, report};

#[derive(Deserialize)]
struct Template {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    metrics: Vec<Metric>,
}

/// One question and what of its answer is good.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metric {
    name: String,
    interval: String,
    failure_limit: u32,
    inconclusive_limit: u32,
    success_condition: String,
    failure_condition: String,
    provider: Provider,
}

#[derive(Deserialize)]
struct Provider {
    prometheus: Asked,
}

#[derive(Deserialize)]
struct Asked {
    query: String,
}

fn metrics() -> Vec<Metric> {
    let mut all = Vec::new();
    for path in files::list("alerts/rollouts", ".yml") {
        let text = files::read(&path);
        let file = files::name(&path);
        for document in text.split("\n---\n") {
            let template: Template =
                yaml_serde::from_str(document).unwrap_or_else(|error| panic!("{file}: {error}"));
            all.extend(template.spec.metrics);
        }
    }
    all
}

/// Every query, with arguments in place, and the question that it is.
pub fn queries() -> Vec<(String, String)> {
    let concrete = |query: &str| {
        let mut parts = query.split("{{args.");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, rest| {
            let (name, after) = rest.split_once("}}").unwrap_or((rest, ""));
            // The default of the cluster is every one.
            text + if name == "cluster" { ".*" } else { "x" } + after
        })
    };
    let named = |metric: Metric| (metric.name, concrete(&metric.provider.prometheus.query));
    metrics().into_iter().map(named).collect()
}

#[test]
fn every_name_in_a_question_of_a_roll_out_exists() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    for (name, text) in queries() {
        match parse(&text) {
            Err(error) => problems.push(format!("{name}: cannot be parsed: {error}\n    {text}")),
            Ok(expr) => {
                let mut reader = Reader::new(&vocabulary);
                reader.labels(&expr);
                problems.extend(reader.problems.iter().map(|what| format!("{name}: {what}")));
            }
        }
    }
    report(problems);
}

#[test]
fn a_roll_out_asks_each_minute_and_ends_with_the_second_no() {
    let metrics = metrics();
    let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(names, ["gpu-failure-ratio", "rpc-error-ratio", "rpc-latency-p95"]);
    for metric in &metrics {
        let name = &metric.name;
        assert_eq!(metric.interval, "1m", "{name}");
        assert_eq!(metric.failure_limit, 1, "{name}");
        assert_eq!(metric.inconclusive_limit, 4, "{name}");
        let limit = if name.ends_with("-ratio") { "0.01" } else { "{{args.slowdown}}" };
        // No answer is neither: it must not let a roll-out go on, nor take it back.
        assert_eq!(metric.success_condition, format!("len(result) > 0 && result[0] < {limit}"), "{name}");
        assert_eq!(metric.failure_condition, format!("len(result) > 0 && result[0] >= {limit}"), "{name}");
    }
}

#[test]
fn the_percentile_of_a_roll_out_is_that_of_two_minutes() {
    let vocabulary = Vocabulary::new();
    for (name, text) in queries().iter().filter(|(name, _)| name.ends_with("-p95")) {
        let mut reader = Reader::new(&vocabulary);
        reader.labels(&parse(text).expect("another check parses it"));
        assert_eq!(reader.rates, [Duration::from_secs(120)], "{name}");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(text).starts_with("( histogram_quantile(0.95,"), "{name}: {text}");
        // promtool has the figures: 30 % over the service's own baseline.
        let cases = files::read(&files::root().join("tests/alerts/service.test.yml"));
        assert!(words(&cases).contains(&words(text)), "{name}: service.test.yml does not ask for {text}");
    }
}

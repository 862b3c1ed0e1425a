//! Queries of public dashboards, alerts and autoscalers on dcgm-exporter's names, on a real Prometheus that scrapes
//! simulated nodes: unchanged, each finds what it asks for.

use std::fs;
use std::time::Instant;

use super::dcgm::data;
use super::node::{Node, PATIENCE, Setup, pause_between_queries};
use super::podresources::{Kubelet, devices, pod};
use super::prometheus::Server;

struct Query {
    source: String,
    panel: String,
    expression: String,
}

fn queries() -> Vec<Query> {
    let text = fs::read_to_string(data("queries.tsv")).unwrap();
    let query = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [source, _licence, panel, expression] = columns[..] else { panic!("four columns: {line}") };
        Query { source: source.into(), panel: panel.into(), expression: expression.into() }
    };
    text.lines().skip(1).map(query).collect()
}

/// The expression with values for the variables that Grafana fills in.
fn filled(expression: &str) -> String {
    let label_values = expression.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    if let Some(arguments) = label_values {
        let (metric, label) = arguments.rsplit_once(", ").unwrap_or(("", arguments));
        return format!("count by ({label}) ({metric}{{{label}!=\"\"}})");
    }
    let variables = ["$cluster", "$hostname", "$oci_name", "${Hostname}", "${gpu}", "$instance", "$gpu"];
    let text = expression.replace("$__range", "1m");
    variables.iter().fold(text, |text, variable| text.replace(variable, ".*"))
}

/// The selectors of DCGM's families in an expression.
fn selectors(expression: &str) -> Vec<String> {
    let starts = expression.match_indices("DCGM_").map(|(at, _)| &expression[at..]);
    let selector = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let labels = match text[end..].strip_prefix('{') {
            Some(labels) => labels.find('}').map_or(0, |at| at + 2),
            None => 0,
        };
        text[..end + labels].to_owned()
    };
    starts.map(selector).collect()
}

/// What must find something: the expression itself, or the selectors of an alert, which is silent on a node that is well.
fn parts(query: &Query) -> Vec<String> {
    let expression = filled(&query.expression);
    if query.panel.starts_with("alert ") { selectors(&expression) } else { vec![expression] }
}

fn finds(server: &Server, expression: &str) -> bool {
    let result = server.query(expression);
    result.is_some_and(|result| result.as_array().is_some_and(|series| !series.is_empty()))
}

/// A node with pods on its GPUs and fields that these queries ask for, and one with the newer name of a field.
fn nodes() -> (Node, Node, Kubelet, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first.csv"), dir.path().join("second.csv"));
    let text = |name| fs::read_to_string(data(name)).unwrap();
    fs::write(&first, [text("default.csv"), text("queried.csv")].concat()).unwrap();
    fs::write(&second, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS, gauge, Reasons for a lower clock.\n").unwrap();
    let start = |scenario: &str, file: &std::path::Path| {
        let setup = Setup::new(scenario).with("DCGM__FIELDS_FILE", file.to_str().unwrap());
        let node = setup.with("DCGM__HOSTNAME_LABEL", "Hostname").start();
        node.wait_ready();
        node
    };
    let node = start("tests/scenarios/node-8xh200.toml", &first);
    let other = start("tests/scenarios/still-h100.toml", &second);
    let everything = node.everything();
    let uuid = |gpu: &str| {
        let mut infos =
            everything.0.iter().filter(|(name, labels, _)| name == "gpu_info" && labels["gpu"] == gpu);
        infos.next().expect("a GPU").1["uuid"].clone()
    };
    let pods = [("prefill-0", "0"), ("decode-0", "1"), ("qwen25-05b-predictor-0", "2")];
    let pods = pods.map(|(name, gpu)| {
        let mut pod = pod(name, vec![devices("nvidia.com/gpu", [uuid(gpu)])]);
        pod.namespace = "dynamo-system".into();
        pod
    });
    let all = vec![devices("nvidia.com/gpu", (0..7).map(|gpu| uuid(&gpu.to_string())))];
    let kubelet = Kubelet::start(&node.root(), pods.to_vec(), all);
    (node, other, kubelet, dir)
}

#[test]
fn queries_of_public_dashboards_alerts_and_autoscalers_find_what_they_ask_for() {
    let queries = queries();
    assert!(queries.len() > 120, "{}", queries.len());
    let (node, other, _kubelet, _dir) = nodes();
    // With the sample's pod, and with that of the exporter, which makes the sample's `exported_pod`.
    let server = Server::scraping(&format!(
        "  - job_name: dcgm\n    metrics_path: /dcgm/metrics\n    honor_labels: true\n    static_configs:\n      \
         - targets: ['{first}', '{second}']\n  - job_name: dcgm-in-a-pod\n    metrics_path: /dcgm/metrics\n    \
         static_configs:\n      - targets: ['{first}']\n        labels:\n          namespace: gpu-operator\n          \
         pod: dcgm-exporter-x\n          container: dcgm-exporter\n",
        first = node.addr(),
        second = other.addr()
    ));
    let mut open: Vec<(&Query, String)> =
        queries.iter().flat_map(|query| parts(query).into_iter().map(move |part| (query, part))).collect();
    let deadline = Instant::now() + PATIENCE;
    while !open.is_empty() {
        open.retain(|(_, part)| !finds(&server, part));
        let left: Vec<String> =
            open.iter().map(|(query, part)| format!("{}, {}: {part}", query.source, query.panel)).collect();
        assert!(left.is_empty() || Instant::now() < deadline, "nothing found: {left:#?}");
        pause_between_queries();
    }
    // Whole alerts are expressions that Prometheus reads.
    for query in &queries {
        assert!(server.query(&filled(&query.expression)).is_some(), "{}: {}", query.source, query.expression);
    }
    assert_eq!(server.query("no_such("), None, "an error is none");
}

//! What `deploy/autoscaling` asks for, on a real Prometheus that scrapes a simulated node with pods: each query finds what it asks
//! for, and nothing once the exporter is away. With `AUTOSCALING_TOOLS` also by prometheus-adapter's and KEDA's own code.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use exposition::assets::rules::Values;
use serde::Deserialize;
use serde_json::Value;

use super::node::{Node, PATIENCE, Setup, pause_between_queries};
use super::podresources::{Kubelet, devices, pod};
use super::prometheus::Server;

/// The Deployments of `deploy/autoscaling`, each with its pods.
const WORKLOADS: [(&str, [&str; 2]); 2] = [
    ("inference", ["inference-7d9f8b6c54-x2x4z", "inference-7d9f8b6c54-q8q9w"]),
    ("inference-slices", ["inference-slices-6c54b7d9f8-v5v6r", "inference-slices-6c54b7d9f8-b7b8n"]),
];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The documents of a file of `deploy/autoscaling`.
fn documents(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(repository("deploy/autoscaling").join(file)).unwrap();
    yaml_serde::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// All parts of a document at this key, however deep.
fn at_key<'a>(document: &'a Value, key: &str) -> Vec<&'a Value> {
    let inner: Vec<(Option<&String>, &Value)> = match document {
        Value::Object(map) => map.iter().map(|(name, value)| (Some(name), value)).collect(),
        Value::Array(values) => values.iter().map(|value| (None, value)).collect(),
        _ => Vec::new(),
    };
    let found = inner.into_iter().flat_map(|(name, value)| {
        if name.is_some_and(|name| name == key) { vec![value] } else { at_key(value, key) }
    });
    found.collect()
}

/// What an HPA asks prometheus-adapter for: `pods` or `deployments.apps`, the metric, and names of objects.
struct Asked {
    config: &'static str,
    resource: &'static str,
    metric: String,
    names: Vec<&'static str>,
}

fn pods_of(workload: &str) -> Vec<&'static str> {
    WORKLOADS.iter().find(|(name, _)| *name == workload).unwrap().1.to_vec()
}

/// The metrics of both HPAs, from both configurations where they have them, and dcgm-exporter's own names.
fn asked() -> Vec<Asked> {
    let mut asked = Vec::new();
    for file in ["hpa.yaml", "hpa-mig.yaml"] {
        for hpa in documents(file) {
            let target = hpa["spec"]["scaleTargetRef"]["name"].as_str().unwrap();
            let (workload, _) = WORKLOADS.iter().find(|(name, _)| *name == target).unwrap();
            for metric in hpa["spec"]["metrics"].as_array().unwrap() {
                let (part, resource, names) = match metric["type"].as_str().unwrap() {
                    "Pods" => ("pods", "pods", pods_of(workload)),
                    "Object" => ("object", "deployments.apps", vec![*workload]),
                    _ => continue,
                };
                let name = metric[part]["metric"]["name"].as_str().unwrap().to_owned();
                if part == "object" {
                    assert_eq!(metric[part]["describedObject"]["name"], *workload);
                } else {
                    let config = "prometheus-adapter-dcgm.yaml";
                    asked.push(Asked { config, resource, metric: name.clone(), names: names.clone() });
                }
                asked.push(Asked { config: "prometheus-adapter.yaml", resource, metric: name, names });
            }
        }
    }
    for (metric, workload) in [
        ("DCGM_FI_DEV_GPU_UTIL", "inference"),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", "inference"),
        ("DCGM_FI_DEV_FB_USED", "inference-slices"),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "inference-slices"),
    ] {
        let (config, resource) = ("prometheus-adapter-dcgm.yaml", "pods");
        asked.push(Asked { config, resource, metric: metric.into(), names: pods_of(workload) });
    }
    asked
}

impl Asked {
    /// The query that prometheus-adapter makes of its configuration.
    fn query(&self) -> String {
        let config = &documents(self.config)[0];
        let of_name = |rule: &&Value| match rule["name"]["as"].as_str() {
            Some(name) => name == self.metric,
            None => true,
        };
        let rule = config["rules"].as_array().unwrap().iter().find(of_name).unwrap();
        let selector = rule["seriesQuery"].as_str().unwrap();
        let series = selector.split('{').next().filter(|name| !name.is_empty()).unwrap_or(&self.metric);
        let kind = self.resource.split("s.").next().unwrap().trim_end_matches('s');
        let overrides = rule["resources"]["overrides"].as_object().unwrap();
        let (label, _) = overrides.iter().find(|(_, object)| object["resource"] == kind).unwrap();
        let matchers = format!("namespace=\"ml\",{label}=~\"{}\"", self.names.join("|"));
        let template = rule["metricsQuery"].as_str().unwrap();
        let parts =
            [("<<.GroupBy>>", label.as_str()), ("<<.Series>>", series), ("<<.LabelMatchers>>", &matchers)];
        parts.iter().fold(template.to_owned(), |text, (from, to)| text.replace(from, to))
    }
}

/// The queries of the `ScaledObject`s.
fn keda() -> Vec<String> {
    let files = ["keda.yaml", "keda-dcgm.yaml"];
    let triggers = files.iter().flat_map(|file| documents(file)).flat_map(|object| {
        let triggers = object["spec"]["triggers"].as_array().unwrap().clone();
        triggers.into_iter().filter(|trigger| trigger["type"] == "prometheus")
    });
    let query = |trigger: Value| trigger["metadata"]["query"].as_str().unwrap().to_owned();
    triggers.map(query).collect()
}

/// The numbers that a query gives.
fn numbers(server: &Server, query: &str) -> Option<Vec<f64>> {
    let result = server.query(query)?;
    result.as_array()?.iter().map(|one| one["value"][1].as_str()?.parse().ok()).collect()
}

/// Waits until each query gives as many finite numbers as are wanted.
fn wait_numbers(server: &Server, mut open: Vec<(String, usize)>) {
    let deadline = Instant::now() + PATIENCE;
    while !open.is_empty() {
        open.retain(|(query, wanted)| {
            let found = numbers(server, query).filter(|found| found.len() == *wanted);
            !found.is_some_and(|found| found.iter().all(|number| number.is_finite()))
        });
        assert!(open.is_empty() || Instant::now() < deadline, "nothing found: {open:#?}");
        pause_between_queries();
    }
}

/// Waits until there is no problem left.
fn until(mut look: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(problem) = look() {
        assert!(Instant::now() < deadline, "{problem}");
        pause_between_queries();
    }
}

/// The service's own page: requests that take 60 ms and wait for 10, ten a scrape. Serves until the test's process ends.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (scrape, mut client) in listener.incoming().flatten().enumerate() {
            let requests = 10 * (scrape + 1);
            let labels = format!("namespace=\"ml\",pod=\"{}\"", WORKLOADS[0].1[0]);
            let mut page = String::new();
            for (le, share) in [("0.05", 0), ("0.1", 1), ("+Inf", 1)] {
                page += &format!(
                    "request_duration_seconds_bucket{{{labels},le=\"{le}\"}} {}\n",
                    requests * share
                );
            }
            page += &format!("request_duration_seconds_count{{{labels}}} {requests}\n");
            page += &format!("queue_wait_seconds_count{{{labels}}} {requests}\n");
            page += &format!("queue_wait_seconds_sum{{{labels}}} {}\n", requests as f64 / 100.0);
            let _ = client.read(&mut [0; 4096]);
            let _ =
                write!(client, "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n{page}");
        }
    });
    address
}

/// The rules, evaluated each second; gives their paths.
fn rules(folder: &Path) -> String {
    let paths = ["recording", "optional/autoscaling"].map(|name| {
        let text = fs::read_to_string(repository(&format!("alerts/{name}.rules.yml"))).unwrap();
        let each_second =
            |line: &str| if line.starts_with("    interval:") { "    interval: 1s" } else { line }.to_owned();
        let path = folder.join(name.replace('/', "-")).with_extension("yml");
        fs::write(&path, text.lines().map(|line| each_second(line) + "\n").collect::<String>()).unwrap();
        format!("'{}'", path.display())
    });
    paths.join(", ")
}

/// A node with the workloads on two whole GPUs and two MIG instances, and with these settings.
fn node(settings: &[(&str, &str)]) -> (Node, Kubelet) {
    let setup = Setup::new("tests/scenarios/node-8xh200.toml");
    let node = settings.iter().fold(setup, |setup, (key, value)| setup.with(key, value)).start();
    node.wait_ready();
    let page = node.wait_metrics("MIG devices", |m| m.all("gpu_mig_info", &[]).len() == 3);
    let labels = |metric: &str| {
        let series = page.0.iter().filter(|(name, ..)| name == metric).map(|(_, labels, _)| labels);
        series.cloned().collect::<Vec<_>>()
    };
    let whole: Vec<String> = labels("gpu_info").iter().map(|gpu| gpu["uuid"].clone()).collect();
    let slices: Vec<String> = labels("gpu_mig_info").iter().map(|mig| mig["mig_uuid"].clone()).collect();
    let given = |resource: &str, uuids: &[String]| {
        uuids.iter().map(|uuid| devices(resource, [uuid.clone()])).collect::<Vec<_>>()
    };
    let all = [given("nvidia.com/gpu", &whole[..2]), given("nvidia.com/mig-1g.18gb", &slices[..2])].concat();
    let names = WORKLOADS.iter().flat_map(|(_, pods)| pods);
    let pods = names.zip(&all).map(|(name, device)| pod(name, vec![device.clone()])).collect();
    let kubelet = Kubelet::start(&node.root(), pods, all);
    (node, kubelet)
}

/// Answers of prometheus-adapter's own code: lines of a name and a quantity.
fn adapter(tools: &Path, server: &Server, asked: &Asked) -> Vec<String> {
    let config = repository("deploy/autoscaling").join(asked.config);
    let mut command = Command::new(tools.join("prometheus-adapter/prometheus-adapter"));
    command.arg(config).arg(server.url()).args(["ml", asked.resource, &asked.metric]).args(&asked.names);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Nothing to be found is an error too, as HPA sees it.
    assert!(output.status.success() || said.contains("Prometheus has no series"), "{}: {said}", asked.metric);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Answers of KEDA's own code, a line a trigger: its name, and a number or `error`.
fn keda_scaler(tools: &Path, server: &Server) -> Vec<String> {
    let files = ["keda.yaml", "keda-dcgm.yaml"].map(|file| repository("deploy/autoscaling").join(file));
    let output = Command::new(tools.join("keda/keda")).arg(server.url()).args(files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn each_query_finds_its_pods_and_nothing_once_the_exporter_is_away() {
    let (node, _kubelet) = node(&[]);
    let folder = tempfile::tempdir().unwrap();
    let server = Server::scraping(&format!(
        "  - job_name: gpu-node-exporter\n    honor_labels: true\n    static_configs:\n      - targets: ['{node}']\n  \
         - job_name: dcgm\n    honor_labels: true\n    metrics_path: /dcgm/metrics\n    static_configs:\n      \
         - targets: ['{node}']\n  - job_name: service\n    honor_labels: true\n    static_configs:\n      \
         - targets: ['{service}']\nrule_files: [{rules}]\n",
        node = node.addr(),
        service = service(),
        rules = rules(folder.path())
    ));
    let asked = asked();
    assert!(asked.len() >= 13, "{}", asked.len());
    let adapters: Vec<(String, usize)> = asked.iter().map(|one| (one.query(), one.names.len())).collect();
    let keda = keda();
    assert!(keda.len() >= 8, "{keda:#?}");
    wait_numbers(
        &server,
        adapters.iter().cloned().chain(keda.iter().map(|query| (query.clone(), 1))).collect(),
    );
    for (query, _) in adapters.iter().filter(|(query, _)| query.contains("percent")) {
        let values = numbers(&server, query).unwrap();
        assert!(values.iter().all(|value| (0.0..=100.0).contains(value)), "{query}: {values:?}");
    }
    assert!((0.05..=0.1).contains(&server.wait_number("workload:request_duration:p99")));
    assert!((server.wait_number("workload:queue_wait:mean2m") - 0.01).abs() < 1e-6);
    let tools = std::env::var_os("AUTOSCALING_TOOLS").map(PathBuf::from);
    if let Some(tools) = &tools {
        // A machine that is busy misses a scrape now and then.
        for one in &asked {
            until(|| {
                let lines = adapter(tools, &server, one);
                let names: BTreeSet<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
                (names == one.names.iter().copied().collect())
                    .then_some(())
                    .ok_or(format!("{}, {}: {lines:?}", one.config, one.metric))
            });
        }
        until(|| {
            let lines = keda_scaler(tools, &server);
            assert_eq!(lines.len(), keda.len(), "{lines:#?}");
            if lines.iter().any(|line| line.contains("error")) { Err(format!("{lines:#?}")) } else { Ok(()) }
        });
    }

    drop(node);
    let held = "workload:gpu_utilization:held_percent";
    let gone = |query: &str| {
        !query.contains("held_percent") && !query.contains(":mean2m") && !query.contains(":p99")
    };
    let queries = adapters.iter().map(|(query, _)| query).chain(&keda).filter(|query| gone(query));
    wait_numbers(&server, queries.map(|query| (query.clone(), 0)).collect());
    wait_numbers(&server, vec![(format!("{held} >= 75"), WORKLOADS.len())]);
    if let Some(tools) = &tools {
        let pods = asked.iter().filter(|one| one.resource == "pods");
        let found: Vec<String> = pods.flat_map(|one| adapter(tools, &server, one)).collect();
        assert_eq!(found, [""; 0], "no value, and none is 0");
        // KEDA asks for the last whole second, which may be before the rules saw that the exporter is gone.
        until(|| {
            let holds = |line: &str| ["held", "p99", "mean2m"].iter().any(|name| line.contains(name));
            let wrong = |line: &String| holds(line) == line.contains("error");
            let lines = keda_scaler(tools, &server);
            if lines.iter().any(wrong) { Err(format!("{lines:#?}")) } else { Ok(()) }
        });
    }
}

/// As on a GPU before Hopper, which has no profiling fields; with the names of 4.9.
#[test]
fn the_adapter_finds_names_of_both_releases_and_gpus_without_profiling() {
    let (node, _kubelet) = node(&[("DCGM__RELEASE", "4.9"), ("GPM__ENABLED", "false")]);
    let server = Server::scraping(&format!(
        "  - job_name: dcgm\n    honor_labels: true\n    metrics_path: /dcgm/metrics\n    static_configs:\n      \
         - targets: ['{}']\n",
        node.addr()
    ));
    let config = "prometheus-adapter-dcgm.yaml";
    let named = asked().into_iter().filter(|one| one.config == config && !one.metric.starts_with("DCGM_"));
    // Of an instance profiling fields alone have the utilization.
    let has = |one: &Asked| one.metric == "mig_mem_used" || one.names == WORKLOADS[0].1;
    let mut queries: Vec<(String, usize)> =
        named.filter(has).map(|one| (one.query(), one.names.len())).collect();
    assert_eq!(queries.len(), 2);
    for rule in documents(config)[0]["rules"].as_array().unwrap() {
        queries.push((format!("count by (pod) ({})", rule["seriesQuery"].as_str().unwrap()), 4));
    }
    wait_numbers(&server, queries.clone());
    for (query, _) in queries.iter().filter(|(query, _)| query.contains("100 *")) {
        let values = numbers(&server, query).unwrap();
        assert!(values.iter().all(|value| (0.0..=100.0).contains(value)), "{query}: {values:?}");
        assert!(values.iter().any(|value| *value > 1.0), "a share of one: {query}: {values:?}");
    }
}

/// KEDA reads a vector of one element; a missing one is an error only if it is said, and means are not divided by replicas.
#[test]
fn scaled_objects_ask_for_one_element_and_stand_still_without_it() {
    for file in ["keda.yaml", "keda-dcgm.yaml"] {
        for trigger in
            documents(file).iter().flat_map(|object| object["spec"]["triggers"].as_array().unwrap())
        {
            if trigger["type"] != "prometheus" {
                continue;
            }
            assert_eq!(trigger["metadata"]["ignoreNullValues"], "false", "{trigger}");
            assert_eq!(trigger["metricType"], "Value", "{trigger}");
            let query = trigger["metadata"]["query"].as_str().unwrap();
            assert!(query.starts_with("max(") || query.starts_with("avg("), "{query}");
        }
    }
}

#[test]
fn targets_are_those_of_the_values() {
    let values = Values::defaults().unwrap();
    let target = values.get("threshold.autoscaling").unwrap();
    for file in ["hpa.yaml", "hpa-mig.yaml"] {
        let documents = documents(file);
        let targets: Vec<&Value> =
            documents.iter().flat_map(|document| at_key(document, "averageValue")).collect();
        assert!(!targets.is_empty() && targets.iter().all(|of| *of == target), "{file}: {targets:?}");
    }
    for document in documents("keda.yaml") {
        let triggers = document["spec"]["triggers"].as_array().unwrap().clone();
        let percent =
            |trigger: &Value| trigger["metadata"]["query"].as_str().is_some_and(|q| q.contains("percent"));
        for trigger in triggers.iter().filter(|trigger| percent(trigger)) {
            assert_eq!(trigger["metadata"]["threshold"], target, "{trigger}");
        }
    }
}

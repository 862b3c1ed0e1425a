//! The expressions of docs/migrating and docs/conformance.md, on a real Prometheus that scrapes simulated nodes: each finds what the
//! hardware has, and those for dcgm-exporter's fields find the values of dcgm-exporter's page.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use attribution::kubelet::api::ContainerResources;
use dcgm::fields::{DcgmField, FamilyType, FieldFormat, FieldSource, TABLE};
use serde_json::Value;
use simgpu::host::{Host, HostProcess};

use super::conformance;
use super::node::{Node, PATIENCE, Setup, pause_between_queries};
use super::podresources::{Kubelet, devices, pod};
use super::prometheus::Server;

/// Exporters with a table in `tests/data/migrating`, and a label that theirs have and ours do not.
const TABLES: [(&str, &str); 6] = [
    ("nvidia_gpu_exporter", "uuid"),
    ("nvitop-exporter", "devicename"),
    ("all-smi", "gpu_uuid"),
    ("pynvml", "gpu_id"),
    ("opentelemetry", ""),
    ("guide", ""),
];

/// Selectors without series on the simulated nodes, and why.
const ABSENT: [(&str, &str); 6] = [
    ("memory=\"l1_cache\"", ONE_BY_ONE),
    ("memory=\"l2_cache\"", ONE_BY_ONE),
    ("memory=\"register_file\"", ONE_BY_ONE),
    ("memory=\"texture_memory\"", ONE_BY_ONE),
    ("memory=\"texture_shm\"", ONE_BY_ONE),
    ("memory=\"cbu\"", ONE_BY_ONE),
];
const ONE_BY_ONE: &str = "the driver counts `sram` and `dram`; older ones each memory by itself";

/// The rule for the labels of an exporter, with `EXPR` in the place of an expression, and its expressions.
fn expressions(table: &str) -> (String, Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/migrating/{table}.tsv"));
    let text = fs::read_to_string(path).unwrap();
    let (labels, rows): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("# "));
    let expression = |line: &&str| line.split('\t').nth(2).unwrap().to_owned();
    let expressions = rows.iter().skip(1).map(expression).filter(|text| text != "none");
    (labels.first().map_or_else(String::new, |line| line[2..].to_owned()), expressions.collect())
}

fn result(server: &Server, expression: &str) -> Vec<Value> {
    let answer = server.query(expression).unwrap_or_else(|| panic!("Prometheus refuses {expression}"));
    answer.as_array().cloned().unwrap_or_default()
}

/// An H200 node with a host and a service on it, and with pods on a whole GPU and on a MIG instance; nodes with what it has not.
fn nodes(host: &Host) -> (Vec<Node>, Kubelet) {
    let service = HostProcess {
        pid: 900,
        // As the kernel cuts it.
        name: "nvidia-persiste",
        cgroup: "/system.slice/nvidia-persistenced.service",
        cpus: "0-15",
        uid: 0,
        memory: [0, 0],
        started_ticks: 100,
    };
    host.process(&service).unwrap();
    let start = |scenario: &str, root: Option<&Host>| {
        let setup = Setup::new(&format!("tests/scenarios/{scenario}.toml"));
        let setup = setup.with("PROCESSES__PER_PROCESS", "true").with("SAMPLER__PCIE_THROUGHPUT", "true");
        // So many nodes at once are slower than others.
        // A second: as often as the driver samples virtual GPUs; else each scrape may meet a reading without a new sample.
        let slower = [("FAST", "100ms"), ("NORMAL", "200ms"), ("SLOW", "1s"), ("RARE", "1s")];
        let setup = slower
            .iter()
            .fold(setup, |setup, (tier, time)| setup.with(&format!("SAMPLER__{tier}_INTERVAL"), time));
        let setup = setup.with("CPU__ENABLED", "true").with("METRICS__PUBLISH_INTERVAL", "250ms");
        match root {
            Some(host) => setup.with("HOST__ROOT", host.root().to_str().unwrap()).start(),
            None => setup.start(),
        }
    };
    let others = ["b200", "still-t4", "video-vgpu"].map(|scenario| start(scenario, None));
    let nodes: Vec<Node> = [start("node-8xh200", Some(host))].into_iter().chain(others).collect();
    nodes[0].wait_metrics("instances", |metrics| !metrics.all("gpu_mig_info", &[]).is_empty());
    let everything = nodes[0].everything();
    let uuid = |name: &str, label: &str, gpu: &str| {
        let mut infos = everything.0.iter().filter(|(of, labels, _)| of == name && labels["gpu"] == gpu);
        infos.next().expect("an identity").1[label].clone()
    };
    let whole = vec![devices("nvidia.com/gpu", [uuid("gpu_info", "uuid", "0")])];
    let slice = vec![devices("nvidia.com/mig-3g.71gb", [uuid("gpu_mig_info", "mig_uuid", "7")])];
    // Two containers of one pod share the instance.
    let mut shared = pod("slice-0", slice.clone());
    let second = ContainerResources { name: "second".into(), ..shared.containers[0].clone() };
    shared.containers.push(second);
    let pods = vec![pod("whole-0", whole.clone()), shared];
    let kubelet = Kubelet::start(host.root(), pods, [whole, slice].concat());
    (nodes, kubelet)
}

/// A Prometheus that has scraped all of these a few times.
fn scraping(configs: &str) -> Server {
    let server = Server::scraping(configs);
    server.wait_number("min(count_over_time(up[1m])) >= 3");
    server
}

#[test]
fn expressions_for_the_names_of_others_find_what_the_hardware_has() {
    let dir = tempfile::tempdir().unwrap();
    let (nodes, _kubelet) = nodes(&Host::make(dir.path()).unwrap());
    let targets: Vec<String> = nodes.iter().map(|node| format!("'{}'", node.addr())).collect();
    let targets = targets.join(", ");
    let server =
        scraping(&format!("  - job_name: ours\n    static_configs:\n      - targets: [{targets}]\n"));
    let mut open: Vec<(String, String, &str)> = Vec::new();
    for (table, label) in TABLES {
        let (labels, expressions) = expressions(table);
        open.extend(expressions.into_iter().map(|text| (text, labels.clone(), label)));
    }
    for field in TABLE {
        open.push((field.expression(), String::new(), ""));
    }
    open.extend(conformance::queries().into_iter().map(|text| (text, String::new(), "")));
    open.retain(|(text, ..)| !text.is_empty());
    open.sort();
    open.dedup();
    assert!(open.len() > 250, "{}", open.len());
    let absent = |text: &str| ABSENT.iter().any(|(part, _)| text.contains(part));
    let (absent, mut open): (Vec<_>, Vec<_>) = open.into_iter().partition(|(text, ..)| absent(text));
    let found = |(text, labels, label): &(String, String, &str)| {
        let series = result(&server, text);
        // What is of the node has none of the labels of a GPU.
        if labels.is_empty() || series.first().is_some_and(|one| one["metric"]["uuid"].is_null()) {
            return !series.is_empty();
        }
        let theirs = result(&server, &labels.replace("EXPR", text));
        let lacks = theirs.iter().find(|one| {
            let value = one["metric"][*label].as_str();
            value.is_none_or(|value| value.is_empty() || *label == "uuid" && value.starts_with("GPU-"))
        });
        assert!(lacks.is_none(), "{text}: no label {label} in {lacks:?}");
        !theirs.is_empty()
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        open.retain(|one| !found(one));
        if open.is_empty() {
            break;
        }
        let left: Vec<&String> = open.iter().map(|(text, ..)| text).collect();
        assert!(Instant::now() < deadline, "nothing found: {left:#?}");
        pause_between_queries();
    }
    for (text, ..) in &absent {
        assert!(result(&server, text).is_empty(), "{text} has a value, and is listed as absent");
    }
    // The two containers of the pod on the instance count once, in percent.
    let (_, guide) = expressions("guide");
    let memory =
        guide.iter().find(|text| text.contains("gpu_mig_memory_used_bytes")).expect("of mig_mem_used");
    let share = "100 * max(gpu_mig_memory_used_bytes{profile=\"3g.71gb\"} / gpu_mig_memory_total_bytes)";
    let of_pod = |series: &Value| series["metric"]["pod"] == "slice-0";
    loop {
        let found = result(&server, &format!("({memory}) / scalar({share})"));
        let ratio = found
            .iter()
            .find(|one| of_pod(one))
            .and_then(|one| one["value"][1].as_str()?.parse::<f64>().ok());
        if ratio.is_some_and(|ratio| (0.7..=1.4).contains(&ratio)) {
            break;
        }
        assert!(Instant::now() < deadline, "{memory} is {ratio:?} times {share}");
        pause_between_queries();
    }
    for (part, why) in ABSENT {
        assert!(absent.iter().any(|(text, ..)| text.contains(part)), "no expression has {part} ({why})");
    }
}

/// The GPU and GPU instance of a series, as far as it has them, with its value.
fn values(series: &[Value], gpu: &str, instance: &str) -> BTreeMap<(String, String), f64> {
    let value = |one: &Value| {
        let label = |name: &str| one["metric"][name].as_str().unwrap_or_default().to_owned();
        let number = one["value"][1].as_str().unwrap().parse().unwrap();
        ((label(gpu), label(instance)), number)
    };
    series.iter().map(value).collect()
}

/// What the expression differs by from the field on the page, if it does.
fn difference(server: &Server, field: &DcgmField) -> Result<bool, String> {
    let (name, expression) = (field.name(), field.expression());
    let theirs = values(&result(server, name), "UUID", "GPU_I_ID");
    let ours = values(&result(server, &expression), "uuid", "gpu_instance");
    // Both pages are scraped in turn, and a rate is a mean here and the last window there.
    let moves = expression.contains("_bytes_total");
    for ((gpu, instance), value) in &theirs {
        let of = |gpu: &str, instance: &str| ours.get(&(gpu.to_owned(), instance.to_owned()));
        // What is the board's is on each instance there; what is the node's on each GPU.
        let Some(found) = of(gpu, instance).or_else(|| of(gpu, "")).or_else(|| of("", "")) else {
            return Err(format!("{name}: nothing of GPU {gpu}, instance {instance:?}: {expression}"));
        };
        let unit = if field.format == FieldFormat::Integer { 1.0 } else { 1e-6 };
        if !moves && (found - value).abs() > unit {
            return Err(format!("{name}: {value}, and {found} by {expression}"));
        }
    }
    Ok(!theirs.is_empty())
}

#[test]
fn expressions_for_dcgm_fields_give_the_values_of_the_page() {
    let numbers: Vec<&DcgmField> = TABLE
        .iter()
        .filter(|field| field.kind != FamilyType::Label && !field.expression().is_empty())
        .filter(|field| !matches!(field.source, FieldSource::Info { .. } | FieldSource::Own(_)))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("fields.csv");
    let rows = numbers.iter().map(|field| format!("{}, {}, x\n", field.name(), field.kind.name()));
    fs::write(&list, rows.collect::<String>()).unwrap();
    let setup = Setup::new("tests/scenarios/mig-mixed.toml");
    let node = setup.with("DCGM__FIELDS_FILE", list.to_str().unwrap()).start();
    node.wait_ready();
    let server = scraping(&format!(
        "  - job_name: ours\n    static_configs:\n      - targets: ['{0}']\n  - job_name: dcgm\n    \
         metrics_path: /dcgm/metrics\n    static_configs:\n      - targets: ['{0}']\n",
        node.addr()
    ));
    let deadline = Instant::now() + PATIENCE;
    let mut open = numbers.clone();
    loop {
        let mut wrong = Vec::new();
        // Fields without a value on these GPUs stay open.
        open.retain(|field| match difference(&server, field) {
            Ok(compared) => !compared,
            Err(text) => {
                wrong.push(text);
                true
            }
        });
        let compared = numbers.len() - open.len();
        if wrong.is_empty() && compared >= 100 {
            break;
        }
        assert!(Instant::now() < deadline, "{compared} compared, {wrong:#?}");
        pause_between_queries();
    }
}

//! dcgm-exporter's page through the shipped program: both listeners, lists of fields, what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::node::{Metrics, Node, PATIENCE, Setup, pause_between_queries};

/// A file of the tests' data on dcgm-exporter.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dcgm").join(name)
}

/// Head and body of a response.
fn ask(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// dcgm-exporter's page of the node, parsed.
pub fn page(node: &Node) -> Metrics {
    let (status, body) = node.get("/dcgm/metrics");
    assert_eq!(status, 200, "{body}");
    Metrics::parse(&body)
}

fn families(metrics: &Metrics) -> BTreeSet<&str> {
    metrics.0.iter().map(|(name, ..)| name.as_str()).collect()
}

/// Names and types of a list of the tests' data.
fn rows(file: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(data(file)).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut columns = line.split(',').map(|column| column.trim().to_owned());
        (columns.next().unwrap(), columns.next().unwrap())
    });
    rows.collect()
}

/// Waits until the page has these families.
fn wait_families(node: &Node, wanted: &BTreeSet<&str>) -> Metrics {
    wait_families_of(node, wanted, 1)
}

/// The same, of so many GPUs each.
fn wait_families_of(node: &Node, wanted: &BTreeSet<&str>, gpus: usize) -> Metrics {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = page(node);
        let gpus_of = |name: &str| {
            let of = metrics.0.iter().filter(|(of, ..)| of == name);
            of.map(|(_, labels, _)| &labels["gpu"]).collect::<BTreeSet<_>>().len()
        };
        let lacking: Vec<&str> = wanted.iter().copied().filter(|name| gpus_of(name) < gpus).collect();
        if lacking.is_empty() {
            return metrics;
        }
        assert!(Instant::now() < deadline, "no {lacking:?} of {gpus} GPUs");
        pause_between_queries();
    }
}

fn with_fields(scenario: &str, file: &Path) -> Setup {
    Setup::new(scenario).with("DCGM__FIELDS_FILE", file.to_str().unwrap())
}

/// The address of the second listener.
fn second(node: &Node) -> SocketAddr {
    let line = node.wait_said(&["serving dcgm-exporter's page at http://"]);
    let (_, rest) = line.split_once("http://").unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

#[test]
fn both_listeners_serve_the_page_and_the_second_nothing_else() {
    let setup = Setup::new("tests/scenarios/still-8xh200.toml").with("DCGM__LISTEN", "127.0.0.1:0");
    let mut node = setup.with("DCGM__HOSTNAME_LABEL", "Hostname").start();
    let address = second(&node);
    node.wait_ready();
    wait_families(&node, &BTreeSet::from(["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"]));
    let (head, body) = ask(address, "GET", "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    let metrics = Metrics::parse(&body);
    assert_eq!(metrics.all("DCGM_FI_DEV_GPU_TEMP", &[]).len(), 8);
    let (name, labels, _) = &metrics.0[0];
    assert!(name.starts_with("DCGM_") && labels.contains_key("Hostname") && labels.contains_key("UUID"));
    assert!(!metrics.0.iter().any(|(name, ..)| name.starts_with("gpu_")));
    let (head, body) = ask(address, "HEAD", "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head} {body}");
    assert_eq!(ask(address, "GET", "/health").1, "OK\n");
    assert!(ask(address, "GET", "/").1.contains("href=\"metrics\""));
    assert!(ask(address, "GET", "/api/v1/snapshot").0.starts_with("HTTP/1.1 404 "));
    let (status, took) = node.terminate();
    assert!(status.success() && took.as_secs() < 5, "{status} {took:?}");
    assert!(TcpStream::connect(address).is_err(), "the port is free again");
}

/// Families of the default list that a node without work, faults and licences has no value for.
const ABSENT: [(&str, &str); 1] =
    [("DCGM_FI_DEV_XID_ERRORS", "no Xid has come: dcgm-exporter leaves it out as well")];

#[test]
fn the_default_list_as_a_file_yields_each_family_on_h200_and_h100() {
    let rows = rows("default.csv");
    let expected: BTreeSet<&str> = rows
        .iter()
        .filter(|(name, kind)| *kind != "label" && !ABSENT.iter().any(|(absent, _)| absent == name))
        .map(|(name, _)| name.as_str())
        .collect();
    for (scenario, gpus) in [("tests/scenarios/still-8xh200.toml", 8), ("tests/scenarios/still-h100.toml", 2)]
    {
        let node = with_fields(scenario, &data("default.csv")).start();
        let metrics = wait_families_of(&node, &expected, gpus);
        assert_eq!(families(&metrics), expected, "{scenario}: no other family");
        assert!(metrics.0.iter().all(|(_, labels, _)| labels.contains_key("DCGM_FI_DRIVER_VERSION")));
        // The file declares the same list that is the default without a file.
        let text = node.get("/dcgm/metrics").1;
        for (name, kind) in rows.iter().filter(|(name, _)| expected.contains(name.as_str())) {
            assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name} {kind}");
        }
    }
}

/// Rows of `optional.csv` without a value on an H200 that is well, each with the reason.
const OPTIONAL_ABSENT: [(&str, &str); 3] = [
    ("DCGM_FI_DEV_RETIRED_SBE", RETIRED),
    ("DCGM_FI_DEV_RETIRED_DBE", RETIRED),
    ("DCGM_FI_DEV_RETIRED_PENDING", RETIRED),
];
const RETIRED: &str = "GPUs from Ampere on remap rows and retire no pages";

#[test]
fn the_rows_that_people_uncomment_are_served_or_named() {
    let rows = rows("optional.csv");
    let node = with_fields("tests/scenarios/still-8xh200.toml", &data("optional.csv")).start();
    node.wait_ready();
    let not_covered = ["DCGM_FI_DEV_NVLINK_BANDWIDTH_L0"];
    let expected: BTreeSet<&str> = rows
        .iter()
        .filter(|(name, kind)| {
            *kind != "label"
                && !not_covered.contains(&name.as_str())
                && !OPTIONAL_ABSENT.iter().any(|(absent, _)| absent == name)
        })
        .map(|(name, _)| name.as_str())
        .collect();
    let metrics = wait_families(&node, &expected);
    assert_eq!(families(&metrics), expected);
    // An H200 has no power object in its InfoROM.
    let has =
        |(name, kind): &(&String, &String)| *kind == "label" && *name != "DCGM_FI_DEV_POWER_INFOROM_VER";
    let labels = rows.iter().filter(has).map(|(name, _)| name);
    for label in labels {
        assert!(metrics.0.iter().all(|(_, labels, _)| labels.contains_key(label)), "{label}");
    }
}

const WRONG: &str = "\
# Unknown, misspelt, doubled, of no type, not covered, with a comma: each is left out alone.
DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.
DCGM_FI_DEV_GPU_TMEP, gauge, Misspelt.
NO_SUCH_FIELD, gauge, Unknown.
DCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, Doubled.
DCGM_FI_DEV_POWER_USAGE, histogram, No type.
DCGM_FI_DEV_FAN_SPEED, gauge, Not covered.
DCGM_FI_DEV_FB_USED, gauge, Used, with a comma.
DCGM_FI_DEV_FB_FREE,gauge,\"Free, in quotes.\"
DCGM_FI_DEV_SM_CLOCK, gauge, \"Clock, in quotes behind a blank.\"
";

/// What is said of each wrong row of [`WRONG`].
const SAID: [&[&str]; 8] = [
    &["line 3", "DCGM_FI_DEV_GPU_TMEP", "did you mean DCGM_FI_DEV_GPU_TEMP?"],
    &["line 4", "NO_SUCH_FIELD", "no such field"],
    &["line 5", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "duplicate", "DCGM_FI_DEV_GPU_TEMP;"],
    &["line 6", "DCGM_FI_DEV_POWER_USAGE", "no type \"histogram\""],
    &["line 7", "DCGM_FI_DEV_FAN_SPEED", "not covered"],
    &["line 8", "DCGM_FI_DEV_FB_USED", "4 found"],
    &["line 10", "a blank before a quote: remove it"],
    &["dcgm.fields_file", "7 problems", "2 fields are served"],
];

#[test]
fn wrong_rows_are_named_and_counted_and_the_rest_is_served() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("counters.csv");
    fs::write(&file, WRONG).unwrap();
    let output = check(&[("DCGM__FIELDS_FILE", file.to_str().unwrap())]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), SAID.len(), "{said}");
    for (line, parts) in lines.iter().zip(SAID) {
        let named = line.contains("warning") && line.contains(file.to_str().unwrap());
        assert!(named && parts.iter().all(|part| line.contains(part)), "{parts:?}: {line}");
    }
    // The daemon says the same once, before it serves.
    let node = with_fields("tests/scenarios/still-1xh200.toml", &file).start();
    let metrics = wait_families(&node, &BTreeSet::from(["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_FREE"]));
    assert_eq!(families(&metrics).len(), 2);
    assert!(node.metrics().value("gpu_up", &[]).is_some());
}

#[test]
fn the_daemon_logs_wrong_rows() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("counters.csv");
    fs::write(&file, WRONG).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    // It ends by itself, because the port is taken, and what it said is whole.
    let output = program(&["serve", "--listen", &port], &[("DCGM__FIELDS_FILE", file.to_str().unwrap())]);
    let said = String::from_utf8(output.stderr).unwrap();
    for parts in SAID {
        let lines: Vec<&str> =
            said.lines().filter(|line| parts.iter().all(|part| line.contains(part))).collect();
        assert_eq!(lines.len(), 1, "{parts:?}: {said}");
    }
}

#[test]
fn yaml_manifests_and_mounted_config_maps_are_read() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let row = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.";
    let fields =
        "metrics:\n  fields:\n  - {name: DCGM_FI_DEV_GPU_TEMP, prometheusType: gauge, help: Temperature.}\n";
    fs::write(path("two.yaml"), format!("version: 2\n{fields}collections: [{{name: all, every: 30s}}]\n"))
        .unwrap();
    fs::write(path("map.yaml"), format!("kind: ConfigMap\ndata:\n  metrics: |\n    {row}\n")).unwrap();
    let mounted = path("mounted");
    fs::create_dir_all(mounted.join("..1")).unwrap();
    fs::write(mounted.join("..1/default-counters.csv"), row).unwrap();
    symlink("..1", mounted.join("..data")).unwrap();
    symlink("..data/default-counters.csv", mounted.join("default-counters.csv")).unwrap();
    for file in [path("two.yaml"), path("map.yaml"), mounted.clone(), mounted.join("default-counters.csv")] {
        let output = check(&[("DCGM__FIELDS_FILE", file.to_str().unwrap())]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}: {output:?}", file.display());
    }
    let node = with_fields("tests/scenarios/still-1xh200.toml", &mounted).start();
    let metrics = wait_families(&node, &BTreeSet::from(["DCGM_FI_DEV_GPU_TEMP"]));
    assert_eq!(families(&metrics).len(), 1);
    assert!(node.get("/dcgm/metrics").1.starts_with("# HELP DCGM_FI_DEV_GPU_TEMP Temperature.\n"));

    // What is wrong has the file, the key and the next step.
    fs::write(path("three.yaml"), format!("version: 3\n{fields}extra: 1\n")).unwrap();
    let output = check(&[("DCGM__FIELDS_FILE", path("three.yaml").to_str().unwrap())]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    for part in ["three.yaml: version: version \"3\" is not understood; 1 and 2 are", "extra: not understood"]
    {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_list_without_a_usable_row_is_an_error() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("counters.csv");
    fs::write(&file, "NO_SUCH_FIELD, gauge, x\n").unwrap();
    let output = check(&[("DCGM__FIELDS_FILE", file.to_str().unwrap())]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(
        said.contains("dcgm.fields_file (environment variable") && said.contains("the page is empty"),
        "{said}"
    );
    // The daemon serves everything else.
    let node = with_fields("tests/scenarios/still-1xh200.toml", &file).start();
    node.wait_ready();
    assert_eq!(node.get("/dcgm/metrics"), (200, String::new()));

    let missing = dir.path().join("none.csv");
    for command in ["check-config", "serve"] {
        let output = program(&[command], &[("DCGM__FIELDS_FILE", missing.to_str().unwrap())]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains("dcgm.fields_file") && said.contains("none.csv: No such file"), "{said}");
    }
}

#[test]
fn profiling_fields_that_no_gpu_has_are_named_once_and_the_rest_is_served() {
    let node = with_fields("tests/scenarios/still-l4.toml", &data("default.csv")).start();
    let line = node.wait_said(&["no GPU of this node has profiling counters"]);
    assert!(line.contains("count=5") && line.contains("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), "{line}");
    let metrics = wait_families(&node, &BTreeSet::from(["DCGM_FI_DEV_GPU_TEMP"]));
    assert!(!families(&metrics).iter().any(|name| name.starts_with("DCGM_FI_PROF_PIPE")), "{metrics:?}");
    // Counters that are switched off are known without a GPU.
    let file = data("default.csv");
    let output = check(&[("DCGM__FIELDS_FILE", file.to_str().unwrap()), ("GPM__ENABLED", "false")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("gpm.enabled") && said.contains("DCGM_FI_PROF_DRAM_ACTIVE"), "{said}");
}

#[test]
fn two_listeners_on_one_port_are_one_error_with_both_keys() {
    for (main, dcgm) in [(":9400", ":9400"), ("127.0.0.1:9400", ":9400"), ("[::1]:9400", "[::1]:9400")] {
        for command in ["check-config", "serve"] {
            let output = program(&[command], &[("HTTP__LISTEN", main), ("DCGM__LISTEN", dcgm)]);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(64), "{said}");
            let parts =
                ["dcgm.listen", "GPU_NODE_EXPORTER__DCGM__LISTEN", "http.listen", "choose another port"];
            assert!(said.lines().count() == 1 && parts.iter().all(|part| said.contains(part)), "{said}");
        }
    }
    for dcgm in ["", ":9401", "127.0.0.2:9400"] {
        let output = check(&[("HTTP__LISTEN", "127.0.0.1:9400"), ("DCGM__LISTEN", dcgm)]);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_that_names_the_key() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = program(&["serve", "--listen", "127.0.0.1:0"], &[("DCGM__LISTEN", &address)]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("choose another with dcgm.listen"), "{said}");
}

#[test]
fn release_and_hostname_are_switches() {
    let setup = Setup::new("tests/scenarios/still-1xh200.toml").with("DCGM__RELEASE", "4.9");
    let node = setup.with("DCGM__HOSTNAME_LABEL", "").with("DCGM__VALUES", "corrected").start();
    let metrics =
        wait_families(&node, &BTreeSet::from(["DCGM_FI_DEV_SM_CLOCK_HERTZ", "DCGM_FI_DEV_GPU_UTIL_RATIO"]));
    assert!(metrics.value("DCGM_FI_DEV_SM_CLOCK_HERTZ", &[]).is_some_and(|clock| clock >= 1e8));
    let old = ["DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_FB_USED"];
    assert!(old.iter().all(|name| metrics.all(name, &[]).is_empty()));
    for (name, labels, _) in &metrics.0 {
        assert!(!labels.keys().any(|label| label.eq_ignore_ascii_case("hostname")), "{name}");
        assert!(labels.contains_key("DCGM_FI_SYSTEM_DRIVER_VERSION"), "{name}");
    }
    // Without the switches.
    let node = Setup::new("tests/scenarios/still-1xh200.toml").start();
    let metrics = wait_families(&node, &BTreeSet::from(["DCGM_FI_DEV_SM_CLOCK"]));
    assert!(
        metrics.0.iter().all(|(_, labels, _)| labels.get("hostname").is_some_and(|name| !name.is_empty()))
    );
}

#[test]
fn jobs_that_a_scheduler_writes_down_are_labels() {
    let node = Setup::new("tests/scenarios/mig-mixed.toml").with("DCGM__HPC_JOB_DIR", "/run/jobs").start();
    let jobs = node.root().join("run/jobs");
    fs::create_dir_all(&jobs).unwrap();
    node.wait_ready();
    let of = |labels: &[(&str, &str)]| page(&node).all("DCGM_FI_DEV_GPU_TEMP", labels).len();
    let instance = {
        let metrics = wait_families(&node, &BTreeSet::from(["DCGM_FI_DEV_FB_USED"]));
        let (_, labels, _) = metrics.0.iter().find(|(_, labels, _)| labels.contains_key("GPU_I_ID")).unwrap();
        (labels["gpu"].clone(), labels["GPU_I_ID"].clone())
    };
    fs::write(jobs.join("3"), "4711\n4712\n").unwrap();
    fs::write(jobs.join(format!("{}.{}", instance.0, instance.1)), "4713\n").unwrap();
    node.wait_for("the jobs", |_| of(&[("hpc_job", "4713")]) == 1);
    assert_eq!((of(&[("gpu", "3"), ("hpc_job", "4711")]), of(&[("gpu", "3"), ("hpc_job", "4712")])), (1, 1));
    assert_eq!(of(&[("hpc_job", "4713"), ("GPU_I_ID", &instance.1)]), 1);
    assert!(node.metrics().all("gpu_hpc_job_info", &[]).is_empty(), "no series of the other page");
    fs::remove_file(jobs.join("3")).unwrap();
    node.wait_for("their end", |_| of(&[("hpc_job", "4711")]) == 0);
}

/// Runs the program to its end, with these settings and none of the environment.
pub fn program(args: &[&str], settings: &[(&str, &str)]) -> Output {
    let dir = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPU_NODE_EXPORTER__") {
            command.env_remove(name);
        }
    }
    command.env("GPU_NODE_EXPORTER__STATE__DIR", dir.path().join("state"));
    command.env("GPU_NODE_EXPORTER__CONTROL__SOCKET", dir.path().join("control.sock"));
    for (key, value) in settings {
        command.env(format!("GPU_NODE_EXPORTER__{key}"), value);
    }
    let empty = dir.path().join("config.toml");
    fs::write(&empty, "").unwrap();
    command.args(args).arg("--config").arg(&empty).output().unwrap()
}

fn check(settings: &[(&str, &str)]) -> Output {
    program(&["check-config"], settings)
}

/// What `promtool check metrics` has against the page, by family: dcgm-exporter's names and types, which its users query.
const OBJECTIONS: [(&str, &str); 7] = [
    ("*", "label names should be written in 'snake_case' not 'camelCase'"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", TOTAL),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", TOTAL),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", TOTAL),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "metric name should not include type 'counter'"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", TOTAL),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", TOTAL),
];
const TOTAL: &str = "counter metrics should have \"_total\" suffix";

#[test]
fn promtool_objects_to_names_and_types_of_dcgm_exporter_alone() {
    let node = with_fields("tests/scenarios/node-8xh200.toml", &data("default.csv")).start();
    wait_families(&node, &BTreeSet::from(["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"]));
    let promtool = std::env::var("PROMTOOL").expect("PROMTOOL is not set: run the tests with `make test`");
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(node.get("/dcgm/metrics").1.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let found: BTreeSet<(&str, &str)> = said
        .lines()
        .map(|line| line.split_once(' ').expect("a family and an objection"))
        // Of `modelName`, which every series has.
        .map(|(family, objection)| (if objection == OBJECTIONS[0].1 { "*" } else { family }, objection))
        .collect();
    assert_eq!(found, BTreeSet::from(OBJECTIONS), "{said}");
}

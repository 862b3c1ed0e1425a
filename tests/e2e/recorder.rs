//! The flight recorder: a fault, its recording, a scenario made of it, and the same alert; and what can go wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::node::{Metrics, Node, Setup};
use super::prometheus::Server;

/// With a recording soon after a fault, when all sources have reported it.
fn setup(scenario: &str) -> Setup {
    Setup::new(scenario).with("RECORDER__ENABLED", "true").with("RECORDER__AFTER", "2s")
}

fn recordings(node: &Node) -> Vec<PathBuf> {
    let dir = node.state_dir().join("recordings");
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".json.gz"));
    paths
}

fn counted(m: &Metrics, outcome: &str) -> Option<f64> {
    m.value("gpu_exporter_recordings_total", &[("outcome", outcome)])
}

/// The recording of the fault that comes with this gate.
fn record(node: &Node, gate: &str) -> PathBuf {
    node.wait_ready();
    node.sim().open_gate(gate).unwrap();
    node.wait_metrics("a recording", |m| counted(m, "written") == Some(1.0));
    recordings(node).pop().expect("a file")
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned())
}

fn read(node: &Node, file: &Path, format: &str) -> (Option<i32>, String) {
    said(&node.command(&["snapshot", "--format", format, "--recording"]).arg(file).output().unwrap())
}

/// A Prometheus with the rules for faults, on this node.
fn prometheus(node: &Node) -> Server {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("alerts/faults.rules.yml");
    let quick = fs::read_to_string(rules).unwrap().replace("interval: 15s", "interval: 1s");
    let rules = node.root().join("faults.rules.yml");
    fs::write(&rules, quick).unwrap();
    Server::scraping(&format!(
        "  - job_name: gpu-node-exporter\n    static_configs:\n      - targets: ['{}']\nrule_files: ['{}']\n",
        node.addr(),
        rules.display()
    ))
}

#[test]
fn a_recording_of_a_fault_becomes_a_scenario_that_fires_the_same_alert() {
    let alert = r#"sum by (gpu, reason) (ALERTS{alertname="GpuUnhealthy",alertstate="firing",gpu="2",reason="fatal_xid"})"#;
    let node = setup("tests/scenarios/lost-gpu2.toml").start();
    let file = record(&node, "lost");
    assert_eq!(prometheus(&node).wait_number(alert), 1.0);

    let (code, text) = read(&node, &file, "text");
    assert_eq!(code, Some(0), "{text}");
    for part in ["GPU 2  Lost", "xid  gpu 2  code 79", "nvmlDeviceGet", "W mean", "it has fallen off the bus"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, document) = read(&node, &file, "json");
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let lines = document["lines"].as_array().unwrap();
    for kind in ["samples", "gpm_seconds", "calls", "failed", "processes", "events", "topology", "snapshot"] {
        assert!(lines.iter().any(|line| line.get(kind).is_some()), "{kind}");
    }
    let power = lines.iter().filter(|line| line["samples"] == "power" && line["gpu"] == 0);
    let samples: usize = power.map(|line| line["values"].as_array().unwrap().len()).sum();
    let span = document["header"]["to"].as_f64().unwrap() - document["header"]["from"].as_f64().unwrap();
    assert!(samples as f64 > 40.0 * (span - 3.0), "{samples} samples in {span} s");

    let scenario = node.root().join("scenario.toml");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/recording-to-scenario.py");
    let made = Command::new("python3").arg(script).arg(&file).args(["--gate", "fault"]).output().unwrap();
    assert!(made.status.success(), "{}", said(&made).1);
    fs::write(&scenario, &made.stdout).unwrap();
    let played = Node::start(scenario.to_str().unwrap());
    // A sampler that is being replaced would take the fault along.
    played.wait_metrics("all GPUs", |m| m.all("gpu_up", &[]) == [1.0; 4]);
    played.sim().open_gate("fault").unwrap();
    assert_eq!(prometheus(&played).wait_number(alert), 1.0, "{}", fs::read_to_string(&scenario).unwrap());
    played.wait_metrics("the others", |m| m.all("gpu_up", &[]) == [1.0, 1.0, 0.0, 1.0]);
}

#[test]
fn a_full_or_unwritable_directory_is_counted_and_the_daemon_goes_on() {
    let node = setup("tests/scenarios/fatal-and-reset.toml").with("RECORDER__MAX_FILES", "2").start();
    node.wait_ready();
    let dir = node.state_dir().join("recordings");
    fs::create_dir_all(&dir).unwrap();
    for n in 0..5 {
        fs::write(dir.join(format!("recording-2020010{n}T000000Z-gpu0-Lost.json.gz")), "old").unwrap();
    }
    fs::write(dir.join("notes.txt"), "kept").unwrap();
    let file = record(&node, "fault");
    assert!(file.exists() && recordings(&node).len() == 2 && dir.join("notes.txt").exists());

    let setup = setup("tests/scenarios/fatal-and-reset.toml");
    let node = setup.with("RECORDER__DIR", "/proc/none/recordings").start();
    node.wait_ready();
    node.sim().open_gate("fault").unwrap();
    node.wait_metrics("the failure", |m| counted(m, "failed") == Some(1.0));
    node.wait_said(&["a fault was not recorded"]);
    node.wait_metrics("the fault all the same", |m| m.value("gpu_healthy", &[("gpu", "1")]) == Some(0.0));
}

#[test]
fn a_truncated_recording_and_one_of_another_version_get_a_plain_answer() {
    let node = setup("tests/scenarios/fatal-and-reset.toml").start();
    let file = record(&node, "fault");
    let whole = fs::read(&file).unwrap();
    let cut = node.root().join("cut.json.gz");
    fs::write(&cut, &whole[..whole.len() * 2 / 3]).unwrap();
    let (code, text) = read(&node, &cut, "text");
    assert!(code == Some(1) && text.contains("TRUNCATED") && text.contains("GPU 1  "), "{text}");

    let other = node.root().join("other.json.gz");
    let write = "import gzip,sys; gzip.open(sys.argv[1],'wt').write('{\"format\":\"gpu-node-exporter recording\",\
        \"version\":2,\"release\":\"9.1.0\"}\\n')";
    assert!(Command::new("python3").args(["-c", write]).arg(&other).status().unwrap().success());
    let (code, text) = read(&node, &other, "text");
    assert!(code == Some(1) && text.contains("version 2") && text.contains("use release 9.1.0"), "{text}");
    let (code, text) = read(&node, Path::new("Cargo.toml"), "text");
    assert!(code == Some(1) && text.contains("is no recording"), "{text}");
    assert!(read(&node, &file, "openmetrics").1.contains("choose text or json"));
}

#[test]
fn a_bundle_has_what_a_case_needs_and_no_secret_or_name() {
    let node = setup("tests/scenarios/fatal-and-reset.toml").with("NODE__RACK", "row4").start();
    record(&node, "fault");
    for (flags, owners) in [(&[][..], true), (&["--without-owners"][..], false)] {
        let file = node.root().join(format!("case-{owners}.tar.gz"));
        let (code, text) = said(
            &node.command(&["doctor", "--bundle", file.to_str().unwrap()]).args(flags).output().unwrap(),
        );
        assert_eq!(code, Some(0), "{text}");
        let list = Command::new("tar").args(["-tzf"]).arg(&file).output().unwrap();
        let list = said(&list).1;
        for part in
            ["config.toml", "doctor.txt", "snapshot.json", "events.json", "topology.json", "CONTENT.txt"]
        {
            assert!(list.contains(part), "{part}: {list}");
        }
        assert!(list.contains("recordings/recording-") && list.contains("owners.json") == owners, "{list}");
        assert!(text.contains("log.txt"), "in it, or why not: {text}");
        let again = node.command(&["doctor", "--bundle", file.to_str().unwrap()]).output().unwrap();
        assert_eq!(said(&again).0, Some(1), "a file that is there stays");
        let unpacked = node.root().join(format!("case-{owners}"));
        fs::create_dir(&unpacked).unwrap();
        let tar = Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(&unpacked).status().unwrap();
        assert!(tar.success());
        let inside = unpacked.join("gpu-node-exporter-bundle");
        assert!(fs::read_to_string(inside.join("config.toml")).unwrap().contains("rack = \"row4\""));
        for recording in fs::read_dir(inside.join("recordings")).unwrap() {
            let (code, text) = read(&node, &recording.unwrap().path(), "text");
            assert!(code == Some(0) && text.contains("xid  gpu 1  code 79"), "{text}");
        }
    }
}

//! The flight recorder: a fault, its recording, a scenario made of it, and the same alert; and what can go wrong.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use flate2::read::GzDecoder;

use super::machine::Machine;
use super::node::{Metrics, Node, Setup};
use super::prometheus::Server;

/// With a recording soon after a fault, when all sources have reported it.
fn setup(scenario: &str) -> Setup {
    Setup::new(scenario).with("RECORDER__AFTER", "2s")
}

fn recordings(node: &Node) -> Vec<PathBuf> {
    let dir = node.state_dir().join("recordings");
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".json.gz"));
    paths.sort();
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
    let samples = |buffer: &str| -> usize {
        let of = lines.iter().filter(|line| line["samples"] == buffer && line["gpu"] == 0);
        of.map(|line| line["values"].as_array().unwrap().len()).sum()
    };
    let span = document["header"]["to"].as_f64().unwrap() - document["header"]["from"].as_f64().unwrap();
    let power = samples("power");
    assert!(
        power as f64 >= 48.0 * (span - 3.0) && power as f64 <= 52.0 * (span + 3.0),
        "{power} in {span} s"
    );
    assert!(samples("utilization") > 0);
    let clock = |line: &&serde_json::Value| line["values"]["gpu_clock_hertz{domain=\"sm\"}"].is_number();
    assert!(lines.iter().filter(|line| line["subject"]["gpu"] == "0").any(|line| clock(&line)), "clocks");

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

    let scenario = "tests/scenarios/fatal-and-reset.toml";
    let folder = setup(scenario).with("RECORDER__DIR", "/proc/none/recordings");
    // No folder for state either, as the recorder is on by default.
    for setup in [folder, setup(scenario).with_state_in("/proc/none".into())] {
        let node = setup.start();
        node.wait_ready();
        node.sim().open_gate("fault").unwrap();
        node.wait_metrics("the failure", |m| counted(m, "failed") == Some(1.0));
        node.wait_said(&["a fault was not recorded"]);
        node.wait_metrics("the fault all the same", |m| m.value("gpu_healthy", &[("gpu", "1")]) == Some(0.0));
    }
}

#[test]
fn what_waits_is_written_at_the_end_of_the_daemon() {
    // For what follows the fault, or for the minute after the recording before.
    for (after, gates) in [("60s", &["first"][..]), ("0s", &["first", "second"])] {
        let mut machine = Machine::new();
        for (gpu, gate) in gates.iter().enumerate() {
            machine.gpu([]);
            machine.step(&format!("gate = {gate:?}\ngpu = {gpu}\nlost = true\n"));
        }
        let mut node = machine.setup().with("RECORDER__AFTER", after).start();
        node.wait_ready();
        for (gpu, gate) in gates.iter().enumerate() {
            node.wait_metrics("those before", |m| counted(m, "written") == Some(gpu as f64));
            node.sim().open_gate(gate).unwrap();
        }
        let last = gates.len() - 1;
        let gpu = last.to_string();
        node.wait_metrics("the fault", |m| m.value("gpu_healthy", &[("gpu", &gpu)]) == Some(0.0));
        let published = node.snapshot()["sequence"].as_u64();
        node.wait_for("two more looks", |node| {
            node.snapshot()["sequence"].as_u64() > published.map(|published| published + 1)
        });
        let (status, took) = node.terminate();
        assert!(status.success() && took < Duration::from_secs(5), "{status} after {took:?}");
        let files = recordings(&node);
        assert_eq!(files.len(), gates.len(), "{files:?}");
        let (code, text) = read(&node, &files[last], "text");
        assert!(code == Some(0) && text.contains(&format!("GPU {gpu}  Lost")), "{text}");
    }
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
    assert!(code == Some(1) && text.contains("is not a recording"), "{text}");
    assert!(read(&node, &file, "openmetrics").1.contains("choose text or json"));
}

/// All that is in a folder, each text with its path; recordings unpacked.
fn texts(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.append(&mut texts(&path));
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let mut text = String::new();
        match path.extension().is_some_and(|ending| ending == "gz") {
            true => GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).map(drop).unwrap(),
            false => text = String::from_utf8(bytes).unwrap(),
        }
        found.push((path, text));
    }
    found
}

#[test]
fn a_bundle_has_what_a_case_needs_and_no_secret_or_name() {
    const SECRET: &str = "hunter2hunter2";
    const NAMES: [&str; 2] = ["trainer-0", "team-a"];
    let mut machine = Machine::new();
    let (id, uid) = ("9b".repeat(32), "2c48913c_b29f_11e7_9350_020968147796");
    let slice = format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
    machine.process(5_000_001, format!("0::/{slice}/cri-containerd-{id}.scope\n"));
    machine.write(&format!("var/log/containers/trainer-0_team-a_main-{id}.log"), "");
    machine.gpu([]);
    machine.gpu([5_000_001]);
    machine.step("gate = \"fault\"\ngpu = 1\nxid = 79\n");
    machine.step("gate = \"fault\"\ngpu = 1\nlost = true\n");
    // The daemon alone has these, as variables of its unit.
    let rack = format!("token={SECRET}");
    let settings = [("RECORDER__AFTER", "2s"), ("NODE__RACK", &rack), ("NODE__ZONE", "row4")];
    let node = settings.iter().fold(machine.setup(), |setup, (key, value)| setup.with(key, value)).start();
    node.wait_metrics("the owner", |m| m.all("gpu_owner_info", &[("pod", "trainer-0")]).len() == 1);
    record(&node, "fault");
    let programs = node.root().join("bin");
    fs::create_dir(&programs).unwrap();
    let line = format!("WARN --password {SECRET} pod trainer-0 of namespace=team-a: GPU 1 has fallen off");
    fs::write(programs.join("journalctl"), format!("#!/bin/sh\necho '{line}'\n")).unwrap();
    fs::set_permissions(programs.join("journalctl"), PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let bundle = |file: &Path, flags: &[&str]| {
        let mut command = node.command(&["doctor", "--bundle", file.to_str().unwrap()]);
        for key in ["NODE__RACK", "NODE__ZONE"] {
            command.env_remove(format!("GPU_NODE_EXPORTER__{key}"));
        }
        said(&command.args(flags).env("PATH", &path).output().unwrap())
    };
    for (flags, owners) in [(&[][..], true), (&["--without-owners"][..], false)] {
        let file = node.root().join(format!("case-{owners}.tar.gz"));
        let (code, text) = bundle(&file, flags);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(bundle(&file, &[]).0, Some(1), "a file that is there stays");
        let unpacked = node.root().join(format!("case-{owners}"));
        fs::create_dir(&unpacked).unwrap();
        let tar = Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(&unpacked).status().unwrap();
        assert!(tar.success());
        let inside = unpacked.join("gpu-node-exporter-bundle");
        let all = texts(&inside);
        let names: Vec<&Path> = all.iter().map(|(path, _)| path.strip_prefix(&inside).unwrap()).collect();
        for part in
            ["config.toml", "doctor.txt", "snapshot.json", "events.json", "topology.json", "CONTENT.txt"]
        {
            assert!(names.contains(&Path::new(part)), "{part}: {names:?}");
        }
        assert_eq!(names.contains(&Path::new("owners.json")), owners, "{names:?}");
        for (path, text) in &all {
            assert!(!text.contains(SECRET), "{}: {text}", path.display());
            for name in NAMES.iter().filter(|_| !owners) {
                assert!(!text.contains(name), "{name} in {}: {text}", path.display());
            }
        }
        let text = |part: &str| fs::read_to_string(inside.join(part)).unwrap();
        let settings = text("config.toml");
        assert!(settings.contains("zone = \"row4\"") && settings.contains("rack = "), "{settings}");
        assert!(text("log.txt").contains("GPU 1 has fallen off"), "{}", text("log.txt"));
        let recordings: Vec<_> =
            all.iter().filter(|(path, _)| path.starts_with(inside.join("recordings"))).collect();
        assert_eq!(recordings.len(), 1, "{names:?}");
        for (path, whole) in &recordings {
            let (code, text) = read(&node, path, "text");
            assert!(code == Some(0) && text.contains("xid  gpu 1  code 79"), "{text}");
            // What is removed was there.
            assert!(!owners || NAMES.iter().all(|name| whole.contains(name)), "{whole}");
        }
    }
}

#[test]
fn a_bundle_beside_no_daemon_has_the_settings_of_the_command_and_says_so() {
    let mut node = setup("tests/scenarios/no-gpu.toml").start();
    node.terminate();
    let file = node.root().join("case.tar.gz");
    let mut command = node.command(&["doctor", "--bundle", file.to_str().unwrap()]);
    let (code, text) = said(&command.env("GPU_NODE_EXPORTER__NODE__ZONE", "row4").output().unwrap());
    assert!(code == Some(0) && text.contains("config.toml: settings of this command"), "{text}");
    let mut tar = Command::new("tar");
    tar.arg("-xzOf").arg(&file).arg("gpu-node-exporter-bundle/config.toml");
    let settings = said(&tar.output().unwrap()).1;
    assert!(settings.starts_with("# settings of this command") && settings.contains("row4"), "{settings}");
}

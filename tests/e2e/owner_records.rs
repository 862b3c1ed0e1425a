//! Records of owners that have ended: in the API, over a restart, in the log, and filed by the epilog of Slurm.

use std::fmt::Display;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use super::machine::Machine;
use super::node::{Node, Setup};

/// A machine with two GPUs, on which a job's step works between two gates.
fn machine() -> Machine {
    let mut machine = Machine::new();
    let group =
        "7:memory:/slurm/uid_1000/job_42/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n";
    machine.process(5_000_001, group);
    machine.write("proc/5000001/environ", "SLURM_JOB_ID=42\0SLURM_JOB_ACCOUNT=vision\0");
    for gpu in 0..2 {
        machine.gpu([]);
        machine.step(&format!(
            "gate = \"begin\"\nuntil_gate = \"over\"\ngpu = {gpu}\njob = {{ pid = 5000001, memory = \"{}GiB\" }}\n",
            gpu + 1
        ));
    }
    machine
}

fn owners(node: &Node, query: &str) -> Value {
    let (status, body) = node.get(&format!("/api/v1/owners{query}"));
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The epilog of a job, which files in this folder: what it said, after a good end.
fn epilog(addr: impl Display, job: &str, dir: &Path, patience: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/slurm/gpu-record.sh");
    let mut command = Command::new(script);
    command.env_clear().env("SLURM_JOB_ID", job).env("GPU_RECORD_URL", format!("http://{addr}"));
    command.env("GPU_RECORD_DIR", dir).env("GPU_RECORD_PATIENCE", patience);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    said
}

#[test]
fn a_job_has_a_record_that_is_served_filed_logged_and_kept() {
    let (machine, files) = (machine(), TempDir::new().unwrap());
    let filed = |job: &str| files.path().join("records").join(format!("{job}.json"));
    let epilog = |node: &Node, job: &str, patience: &str| {
        epilog(node.addr(), job, filed(job).parent().unwrap(), patience)
    };
    let mut node = machine.start();
    node.sim().open_gate("begin").unwrap();
    let m = node.wait_metrics("GPU time", |m| {
        m.all("gpu_owner_allocated_seconds_total", &[("owner", "slurm/42.0")]).iter().sum::<f64>() > 11.0
    });
    let before: f64 = m.all("gpu_owner_energy_joules_total", &[("owner", "slurm/42.0")]).iter().sum();
    let said = epilog(&node, "42", "0");
    assert!(said.contains("job 42: has work on a GPU, or no record yet") && !filed("42").exists(), "{said}");

    node.sim().open_gate("over").unwrap();
    assert_eq!(epilog(&node, "42", "60"), "");
    let document: Value = serde_json::from_slice(&fs::read(filed("42")).unwrap()).unwrap();
    let record = document["ended"][0].clone();
    for (key, is) in
        [("owner", "slurm/42.0"), ("slurm_job", "42"), ("slurm_account", "vision"), ("user", "alice")]
    {
        assert_eq!(record[key], is, "{record}");
    }
    assert_eq!((&record["partial"], &record["complete"]), (&false.into(), &false.into()), "{record}");
    // The record has what the counters have.
    let m = node.metrics();
    let counted = |name: &str, gpu: &str| m.value(name, &[("owner", "slurm/42.0"), ("gpu", gpu)]).unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {record}"));
    let places = record["gpus"].as_array().unwrap();
    assert_eq!(places.len(), 2);
    for (place, gpu) in places.iter().zip(["0", "1"]) {
        assert_eq!(place["gpu"].to_string(), gpu);
        for (key, name) in [
            ("allocated_seconds", "gpu_owner_allocated_seconds_total"),
            ("busy_seconds", "gpu_owner_busy_seconds_total"),
            ("energy_joules", "gpu_owner_energy_joules_total"),
        ] {
            let (recorded, counted) = (number(&place[key]), counted(name, gpu));
            assert!((recorded - counted).abs() < 0.001, "{key} of GPU {gpu}: {recorded} and {counted}");
        }
    }
    let sum = |key: &str| places.iter().map(|place| number(&place[key])).sum::<f64>();
    for key in ["allocated_seconds", "busy_seconds", "energy_joules"] {
        assert!((number(&record[key]) - sum(key)).abs() < 0.01, "{key}: {record}");
    }
    let classes: f64 = record["class_seconds"].as_object().unwrap().values().map(number).sum();
    assert!((classes - number(&record["allocated_seconds"])).abs() < 0.01, "{record}");
    assert!(number(&record["energy_joules"]) > before && number(&record["allocated_seconds"]) > 11.0);
    let time = number(&record["end_unix_seconds"]) - number(&record["since_unix_seconds"]);
    assert!((2.0 * time - number(&record["allocated_seconds"])).abs() < 1.0, "{record}");
    assert_eq!(places[1]["memory_peak_bytes"], 2_u64 << 30);
    // A job that used no GPU has no file.
    assert_eq!(epilog(&node, "43", "60"), "");
    assert!(!filed("43").exists());

    let (_, took) = node.terminate();
    let line = node.wait_said(&["INFO", "the owner has ended", "slurm_job=\"42\""]);
    assert!(line.contains(&format!("energy_joules={}", record["energy_joules"])), "{line} {record}");
    let said = epilog(&node, "42", "60");
    assert!(said.contains("job 42: no answer"), "{said}");

    let again = machine.setup().with_state_of(&node).start();
    again.wait_ready();
    let kept = owners(&again, "?slurm_job=42")["ended"][0].clone();
    for (key, was) in record.as_object().unwrap() {
        match was.as_f64().filter(|_| key.ends_with("_unix_seconds")) {
            Some(was) => assert!((number(&kept[key]) - was).abs() < 0.01, "{key}: {kept} {record}"),
            None if key == "complete" => {}
            None => assert_eq!(kept[key], *was, "{key}, after an end of {took:?}: {kept}"),
        }
    }
    assert_eq!(kept["complete"], true);
    assert_eq!(owners(&again, "")["ended"][0], kept);
    assert_eq!(owners(&again, "?owner=slurm/42.1")["ended"], Value::Array(Vec::new()));
}

#[test]
fn the_epilog_asks_again_after_a_request_that_failed() {
    let (listener, files) = (TcpListener::bind("127.0.0.1:0").unwrap(), TempDir::new().unwrap());
    let addr = listener.local_addr().unwrap();
    let answers = thread::spawn(move || {
        let body = r#"{"pending":0,"ended":[{"owner":"slurm/42.0"}]}"#;
        let document = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        for answer in ["", &document] {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    epilog(addr, "42", files.path(), "60");
    assert!(fs::read_to_string(files.path().join("42.json")).unwrap().contains("slurm/42.0"));
    answers.join().unwrap();
}

#[test]
fn a_record_of_work_that_was_there_before_the_daemon_is_partial() {
    let mut machine = Machine::new();
    machine.process(5_000_001, "0::/system.slice/trainer.service\n");
    machine.gpu([]);
    machine.step("until_gate = \"over\"\ngpu = 0\njob = { pid = 5000001, memory = \"1GiB\" }\n");
    let node = machine.start();
    node.wait_metrics("GPU time", |m| {
        m.value("gpu_owner_allocated_seconds_total", &[("owner", "unit/trainer.service")]) > Some(10.5)
    });
    assert_eq!(owners(&node, "?owner=unit/trainer.service")["pending"], 1);
    node.sim().open_gate("over").unwrap();
    node.wait_for("the record", |node| {
        let document = owners(node, "?owner=unit/trainer.service");
        document["ended"][0]["partial"] == true && document["pending"] == 0
    });
    let record = owners(&node, "")["ended"][0].clone();
    let (start, since) = (&record["start_unix_seconds"], &record["since_unix_seconds"]);
    assert!(start.as_f64() < since.as_f64(), "{record}");
}

#[test]
fn a_file_of_records_that_cannot_be_read_is_set_aside() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("owner-records.json"), "{\"kind\": \"owner-records\", \"ver").unwrap();
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with_state_in(dir.path().to_owned()).start();
    node.wait_ready();
    assert_eq!(owners(&node, "")["ended"], Value::Array(Vec::new()));
    assert!(dir.path().join("owner-records.corrupt").exists());
}

//! Owners of processes on simulated GPUs, on hosts made of files.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::machine::Machine;
use super::node::{Metrics, Node};

const ID: &str = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";
const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

fn lookups(metrics: &Metrics, outcome: &str) -> f64 {
    metrics.value("gpu_exporter_owner_lookups_total", &[("outcome", outcome)]).unwrap_or(-1.0)
}

#[test]
fn lookups_are_counted_by_what_became_of_them_and_born_at_zero() {
    let mut machine = Machine::new();
    machine.process(5_000_001, "0::/system.slice/vllm.service\n");
    machine.process(5_000_002, "0::/system.slice/slurmd.service\n");
    machine.hangs("proc/5000002/environ");
    machine.process(5_000_003, "");
    machine.write("proc/5000003/stat", "no stat file");
    machine.gpu([5_000_001, 5_000_002]);
    machine.gpu([5_000_003, 5_000_004]);
    let node = machine.start();
    let m = node.wait_metrics("all four", |m| {
        ["found", "late", "malformed", "gone"].iter().all(|outcome| lookups(m, outcome) == 1.0)
    });
    assert_eq!(lookups(&m, "refused"), 0.0);
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "owners")]), Some(1.0));
    node.hold("no process is asked twice", Duration::from_secs(1), |node| {
        lookups(&node.metrics(), "found") == 1.0
    });
}

#[test]
fn attribution_delays_neither_scrapes_nor_samples() {
    let mut machine = Machine::new();
    // Processes of which nothing can be read hang every helper there may be; thousands of others wait behind them.
    for pid in 5_000_001..5_000_009 {
        machine.process(pid, "");
        machine.hangs(&format!("proc/{pid}/cgroup"));
    }
    for pid in 5_010_000..5_014_000 {
        machine.process(pid, format!("0::/system.slice/unit-{}.service\n", pid % 50));
    }
    machine.gpu(5_000_001..5_000_009);
    machine.gpu(5_010_000..5_012_000);
    machine.gpu(5_012_000..5_014_000);
    let node = machine.start();
    node.wait_metrics("what hangs is late", |m| lookups(m, "late") >= 4.0);
    node.wait_metrics("it says so", |m| {
        m.value("gpu_exporter_collector_up", &[("collector", "owners")]) == Some(0.0)
    });
    let newest = |m: &Metrics| {
        m.value("gpu_exporter_collector_last_success_timestamp_seconds", &[("collector", "nvml")])
    };
    let mut before = newest(&node.metrics()).unwrap();
    for _ in 0..5 {
        let (status, _, took) = node.get_timed("/metrics");
        assert!(status == 200 && took < Duration::from_secs(2), "{status} after {took:?}");
        let m = node.wait_metrics("newer samples", |m| newest(m) > Some(before));
        before = newest(&m).unwrap();
        assert_eq!(m.all("gpu_up", &[]), [1.0, 1.0, 1.0]);
    }
    let mut node = node;
    let (_, took) = node.terminate();
    assert!(took < Duration::from_secs(5), "it ends in {took:?}");
}

/// Labels of the one `gpu_owner_info` of this owner.
fn info(node: &Node, owner: &str) -> std::collections::BTreeMap<String, String> {
    let metrics = node.metrics();
    let mut of =
        metrics.0.iter().filter(|(name, labels, _)| name == "gpu_owner_info" && labels["owner"] == owner);
    let (_, labels, _) = of.next().unwrap_or_else(|| panic!("no {owner}: {}", node.get("/metrics").1));
    labels.clone()
}

#[test]
fn owners_of_every_kind_are_on_the_page() {
    let mut machine = Machine::new();
    let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
    let scope = format!("/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{ID}.scope");
    machine.process(5_000_001, format!("0::{scope}\n"));
    machine.write(&format!("var/log/containers/trainer-0_ml_main-{ID}.log"), "");
    let job = "7:memory:/slurm/uid_1000/job_42/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n";
    machine.process(5_000_002, job);
    let environ = "HOME=/\0SLURM_JOB_ID=42\0SLURM_JOB_ACCOUNT=vision\0";
    machine.write("proc/5000002/environ", environ);
    let docker = "d".repeat(64);
    machine.process(5_000_003, format!("0::/system.slice/docker-{docker}.scope\n"));
    machine.process(5_000_004, "0::/system.slice/vllm.service\n");
    machine.process(5_000_005, "0::/user.slice/user-1000.slice/session-1.scope\n");
    machine.gpu(5_000_001..5_000_003);
    machine.gpu(5_000_003..5_000_006);
    let node = machine.start();
    node.wait_metrics("five owners", |m| m.all("gpu_owner_info", &[]).len() == 5);
    let pod = info(&node, "pod/ml/trainer-0/main");
    assert_eq!(
        (pod["namespace"].as_str(), pod["pod_uid"].as_str(), pod["runtime"].as_str()),
        ("ml", UID, "containerd")
    );
    let job = info(&node, "slurm/42.0");
    assert_eq!(
        (job["slurm_job"].as_str(), job["slurm_step"].as_str(), job["user"].as_str()),
        ("42", "0", "alice")
    );
    assert_eq!((job["slurm_account"].as_str(), pod["slurm_account"].as_str()), ("vision", ""));
    assert_eq!(info(&node, &format!("docker/{docker}"))["runtime"], "docker");
    assert_eq!(info(&node, "unit/vllm.service")["unit"], "vllm.service");
    assert_eq!(info(&node, "user/alice")["kind"], "user");
}

#[test]
fn no_pod_borrows_the_name_of_another_one() {
    let mut machine = Machine::new();
    let victim_uid = "7d5fa4b1-1111-4222-8333-944444444444";
    let victim = "e".repeat(64);
    let group = |uid: &str, id: &str| {
        let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
        format!("/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{id}.scope")
    };
    machine.write(&format!("var/log/containers/model-0_secret_main-{victim}.log"), "");
    machine.write(&format!("var/log/pods/secret_model-0_{victim_uid}/main/0.log"), "");
    machine.write(&format!("var/log/containers/tool-0_ml_main-{ID}.log"), "");
    machine.write(&format!("var/log/pods/ml_tool-0_{UID}/main/0.log"), "");
    machine.process(5_000_001, format!("0::{}\n", group(victim_uid, &victim)));
    let own = group(UID, ID);
    // What a pod with the right to make control groups may call them: a container, a pod, a container beside its own.
    machine.process(5_000_002, format!("0::{own}/cri-containerd-{victim}.scope\n"));
    machine.process(5_000_003, format!("0::{own}{}\n", group(victim_uid, &victim)));
    machine.process(5_000_004, format!("0::{own}/kubepods/pod{victim_uid}/{victim}\n"));
    machine.process(5_000_005, format!("0::{}\n", group(UID, &victim)));
    // The same of a container that only Docker knows.
    let docker = "d".repeat(64);
    machine.process(5_000_006, format!("0::/system.slice/docker-{docker}.scope/docker/{victim}\n"));
    machine.gpu(5_000_001..5_000_007);
    let node = machine.start();
    node.wait_metrics("all looked up", |m| lookups(m, "found") == 6.0);
    let m = node.wait_metrics("processes", |m| m.all("gpu_owner_processes", &[]).iter().sum::<f64>() == 6.0);
    assert_eq!(m.all("gpu_owner_processes", &[("owner", "pod/secret/model-0/main")]), [1.0]);
    let of = |labels: &[(&str, &str)]| m.all("gpu_owner_info", labels).len();
    assert_eq!((of(&[("namespace", "secret")]), of(&[("pod_uid", victim_uid)])), (1, 1));
    assert_eq!(of(&[("namespace", "ml"), ("pod", "tool-0"), ("pod_uid", UID)]), 3);
}

#[test]
fn hostile_names_are_whole_on_the_wire() {
    let mut machine = Machine::new();
    let long = "x".repeat(4000);
    let names: [&[u8]; 5] = [
        b"a\"b\\c{}=,.service",
        b"caf\xe9\xff.service",
        "\u{202e}gnp.\u{7f}\r\t.service".as_bytes(),
        b" 1 # EOF.service",
        b"\"} 1e9.service",
    ];
    for (pid, name) in (5_000_001..).zip(names) {
        machine.process(pid, [b"0::/system.slice/", name, b"\n"].concat());
    }
    machine.process(5_000_006, format!("0::/system.slice/{long}.service\n"));
    machine.gpu(5_000_001..5_000_007);
    let node = machine.start();
    node.wait_for("six owners", |node| {
        node.get("/metrics").1.lines().filter(|line| line.starts_with("gpu_owner_info{")).count() == 6
    });
    let page = node.get("/metrics").1;
    for line in page.lines().filter(|line| line.starts_with("gpu_owner_info{")) {
        assert!(line.ends_with("} 1") && line.len() < 1000, "{line}");
        assert!(!line.contains('\u{202e}') && !line.chars().any(char::is_control), "{line:?}");
    }
    assert!(page.contains(r#"unit="a\"b\\c{}=,.service""#), "escaped, not changed");
    let promtool = std::env::var("PROMTOOL").expect("PROMTOOL is not set");
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = check.wait_with_output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

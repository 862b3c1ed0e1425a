//! The examples for schedulers in `deploy/`, run as their scheduler runs them, beside a daemon on a simulated node.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::health_command::without_topology;
use super::node::{Node, signal};

fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

/// A node whose GPU 3 hangs.
fn sick() -> Node {
    let node = Node::start("tests/scenarios/hang-gpu3.toml");
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the stall", |m| m.value("gpu_up", &[("gpu", "3")]) == Some(0.0));
    node
}

/// A Slurm of one node: `scontrol` keeps the state in a file, and each change in another.
struct Slurm {
    dir: TempDir,
    /// Settings of the command beside those of the daemon.
    settings: Option<(&'static str, &'static str)>,
}

impl Slurm {
    fn new() -> Slurm {
        let dir = TempDir::new().unwrap();
        let at = dir.path().display();
        let scontrol = format!(
            "#!/bin/sh\n\
             case $1 in\n\
             show) [ \"$*\" = 'show node -o gpu-7' ] && echo \"NodeName=gpu-7 State=$(cat {at}/state) Reason=none\" ;;\n\
             update) shift; for word; do echo \"$word\"; done >>{at}/updates; echo IDLE+DRAIN >{at}/state ;;\n\
             esac\n"
        );
        let file = dir.path().join("scontrol");
        fs::write(&file, scontrol).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        symlink(env!("CARGO_BIN_EXE_gpu-node-exporter"), dir.path().join("gpu-node-exporter")).unwrap();
        fs::write(dir.path().join("state"), "IDLE\n").unwrap();
        Slurm { dir, settings: None }
    }

    /// Runs the script as a health check, or as the prolog of a job; gives its exit code and what it says.
    fn run(&self, node: &Node, job: Option<&str>) -> (i32, String) {
        let mut command = Command::new(deployed("slurm/gpu-health.sh"));
        let settings = node.command(&[]);
        let settings = settings.get_envs().filter_map(|(key, value)| Some((key, value?)));
        command.env_clear().envs(settings).env("PATH", self.dir.path()).env("SLURMD_NODENAME", "gpu-7");
        command.envs(job.map(|job| ("SLURM_JOB_ID", job))).envs(self.settings);
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn updates(&self) -> String {
        fs::read_to_string(self.dir.path().join("updates")).unwrap_or_default()
    }
}

#[test]
fn slurm_drains_a_node_with_a_faulty_gpu_once_and_requeues_the_job() {
    let (slurm, node) = (Slurm::new(), sick());
    assert_eq!(slurm.run(&node, Some("4711")), (1, String::new()), "the job starts elsewhere");
    let updates = slurm.updates();
    let reason = updates.strip_prefix("NodeName=gpu-7\nState=DRAIN\nReason=").unwrap();
    assert!(reason.starts_with("gpu-node-exporter: critical: 8 GPUs, 7 ok, GPU 3 stuck: "), "{reason}");
    assert!(reason.len() <= 251 && reason.lines().count() == 1, "{reason}");
    assert_eq!(slurm.run(&node, Some("4712")).0, 1);
    assert_eq!(slurm.run(&node, None), (0, String::new()), "a health check ends well");
    assert_eq!(slurm.updates(), updates, "a drained node keeps its reason");

    fs::write(slurm.dir.path().join("state"), "MIXED\n").unwrap();
    assert_eq!(slurm.run(&node, None), (0, String::new()));
    let drains = slurm.updates().matches("State=DRAIN").count();
    assert_eq!(drains, 2, "the health check drains as well");
}

#[test]
fn slurm_drains_a_faulty_node_beside_a_configuration_that_cannot_be_used() {
    let (mut slurm, node) = (Slurm::new(), sick());
    slurm.settings = Some(("GPU_NODE_EXPORTER__LOG__LEVEL", "loud"));
    let (code, said) = slurm.run(&node, Some("4711"));
    assert!(code == 1 && said.contains("log.level"), "{code} {said}");
    let updates = slurm.updates();
    assert!(updates.contains("Reason=gpu-node-exporter: critical: "), "the verdict, no warning: {updates}");
}

#[test]
fn slurm_starts_jobs_on_a_node_that_is_well_or_whose_exporter_is_gone() {
    let (slurm, mut node) = (Slurm::new(), without_topology("tests/scenarios/still-1xh200.toml").start());
    node.wait_ready();
    assert_eq!(slurm.run(&node, Some("4711")), (0, String::new()));
    assert_eq!(slurm.run(&node, None), (0, String::new()));
    node.terminate();
    let (code, said) = slurm.run(&node, Some("4711"));
    assert!(
        code == 0 && said.contains("unknown: ") && said.contains("is the daemon running?"),
        "{code} {said}"
    );
    assert_eq!(slurm.updates(), "");
}

#[test]
fn slurm_starts_jobs_on_a_node_with_a_warning_and_says_which() {
    let slurm = Slurm::new();
    // The simulated host has no devices, so that the collector of the topology is down.
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    node.wait_for("the warning", |node| node.get("/readyz").1.contains("topology is down"));
    let (code, said) = slurm.run(&node, Some("4711"));
    assert!(code == 0 && said.contains("warning: ") && slurm.updates().is_empty(), "{code} {said}");
}

/// Status and message of the condition, as node-problem-detector finds them: exit code 0 is False, 1 is True, any other Unknown;
/// the message is what is printed, cut.
fn condition(node: &Node) -> (&'static str, String) {
    let config: Value =
        serde_json::from_slice(&fs::read(deployed("node-problem-detector/gpu-health.json")).unwrap())
            .unwrap();
    let (global, rules) = (&config["pluginConfig"], config["rules"].as_array().unwrap());
    let time = |value: &Value| humantime_of(value.as_str().unwrap());
    for rule in rules {
        assert!(time(&rule["timeout"]) <= time(&global["timeout"]), "refused by node-problem-detector");
        assert!(rule["type"] == "permanent" && rule["path"] == "/usr/bin/gpu-node-exporter");
        let known = config["conditions"].as_array().unwrap().iter();
        assert!(
            known.into_iter().any(|known| known["type"] == rule["condition"]),
            "a condition without default"
        );
    }
    let args: Vec<&str> =
        rules[0]["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    let asked = args.iter().position(|arg| *arg == "--timeout").map(|at| humantime_of(args[at + 1])).unwrap();
    assert!(asked < time(&rules[0]["timeout"]), "the command answers before it is killed");
    let output = node.command(&args).stderr(Stdio::null()).output().unwrap();
    let most = global["max_output_length"].as_u64().unwrap() as usize;
    let message = String::from_utf8(output.stdout).unwrap().trim().chars().take(most).collect();
    let status = match output.status.code() {
        Some(0) => "False",
        Some(1) => "True",
        _ => "Unknown",
    };
    (status, message)
}

fn humantime_of(text: &str) -> Duration {
    Duration::from_secs(text.strip_suffix('s').unwrap().parse().unwrap())
}

#[test]
fn node_problem_detector_has_a_condition_that_follows_the_verdict() {
    let node = without_topology("tests/scenarios/hang-gpu3.toml").start();
    node.wait_ready();
    assert_eq!(condition(&node), ("False", "ok: 8 GPUs, all ok.".into()));
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the stall", |m| m.value("gpu_up", &[("gpu", "3")]) == Some(0.0));
    let (status, message) = condition(&node);
    assert!(status == "True" && message.contains("GPU 3 stuck"), "{status} {message}");
    signal(node.pid(), Signal::SIGSTOP);
    let (status, message) = condition(&node);
    assert!(status == "Unknown" && message.contains("did not answer within 2s"), "{status} {message}");
    signal(node.pid(), Signal::SIGCONT);
}

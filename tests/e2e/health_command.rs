//! `gpu-node-exporter health`: exit code and reasons, and what it says of a daemon that starts, hangs or is gone.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Uid;
use serde_json::Value;

use super::node::{Node, Setup, signal};

/// Exit code and line of an answer.
pub fn answer(output: &Output) -> (i32, String) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "one line: {text:?}, {:?}", String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), text.trim_end().to_owned())
}

/// A daemon without the topology, which the simulated host does not have: a warning of its own.
pub fn without_topology(scenario: &str) -> Setup {
    Setup::new(scenario).with("TOPOLOGY__ENABLED", "false")
}

fn health(node: &Node, args: &[&str]) -> (i32, String) {
    answer(&node.command(&[&["health"], args].concat()).output().unwrap())
}

fn json(node: &Node, args: &[&str]) -> Value {
    let output = node.command(&[&["health", "--format", "json"], args].concat()).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["exit_code"], output.status.code().unwrap());
    document
}

#[test]
fn exit_code_and_reasons_are_those_of_the_verdict() {
    let node =
        without_topology("tests/scenarios/worn.toml").with("SAMPLER__NVLINK_INTERVAL", "200ms").start();
    node.wait_ready();
    node.wait_metrics("the links", |m| {
        m.value("gpu_nvlink_errors_total", &[("gpu", "2"), ("error", "dl_recovery")]) == Some(0.0)
    });
    assert_eq!(health(&node, &[]), (0, "ok: 4 GPUs, all ok.".into()));
    node.sim().open_gate("sick").unwrap();
    node.wait_for("three are degraded", |node| node.get("/readyz").1.contains("4 GPUs, 1 ok"));
    let (code, text) = health(&node, &[]);
    assert!(code == 1 && text.starts_with("warning: 4 GPUs, 1 ok, GPU 0 degraded: "), "{code} {text}");
    let ready = node.get("/readyz").1;
    assert!(ready.contains(text.trim_start_matches("warning: ")), "one verdict: {ready} {text}");
    assert_eq!(health(&node, &["--exit-codes", "npd"]), (0, text));
    assert_eq!(health(&node, &["--gpu", "3"]), (0, "ok: GPU 3 ok".into()));
}

#[test]
fn beside_a_gpu_that_hangs_the_node_is_critical_and_the_others_are_ok() {
    let node = Node::start("tests/scenarios/hang-gpu3.toml");
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the stall", |m| m.value("gpu_up", &[("gpu", "3")]) == Some(0.0));
    let (code, text) = health(&node, &[]);
    assert!(code == 2 && text.starts_with("critical: 8 GPUs, 7 ok, GPU 3 stuck: "), "{code} {text}");
    assert_eq!(health(&node, &["--exit-codes", "npd"]).0, 1);
    assert_eq!(health(&node, &["--gpu", "0,7"]), (0, "ok: GPU 0 ok; GPU 7 ok".into()));
    let (code, text) = health(&node, &["--gpu", "0", "--gpu", "GPU-00000000-0000-4000-8000-000000000004"]);
    assert!(code == 2 && text.starts_with("critical: GPU 0 ok; GPU 3 stuck: "), "{code} {text}");
    let (code, text) = health(&node, &["--gpu", "8"]);
    assert!(code == 3 && text.starts_with("unknown: GPU 8 is not known here. 8 GPUs"), "{code} {text}");

    let document = json(&node, &["--gpu", "3"]);
    assert_eq!((&document["status"], &document["gpus"][0]["word"]), (&"critical".into(), &"stuck".into()));
    assert_eq!(document["gpus"][0]["reasons"][0]["condition"], "stuck");
    assert_eq!(json(&node, &[])["gpus"].as_array().unwrap().len(), 8);
}

#[test]
fn a_released_driver_is_no_verdict() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    assert!(node.command(&["driver", "release"]).output().unwrap().status.success());
    node.wait_metrics("it is published", |m| m.value("gpu_driver_paused", &[]) == Some(1.0));
    assert_eq!(health(&node, &[]).0, 3);
    assert_eq!(health(&node, &["--gpu", "0"]).0, 3);
}

#[test]
fn a_daemon_that_starts_hangs_or_is_gone_is_unknown_with_the_reason() {
    // The driver's first answer does not come, and is not late yet.
    let mut node = Setup::new("tests/scenarios/hang-init.toml").with("SAMPLER__CALL_TIMEOUT", "1m").start();
    node.wait_for("it is asked", |node| node.control_socket().exists());
    let (code, text) = health(&node, &[]);
    assert_eq!((code, text.as_str()), (3, "unknown: Waiting for the driver's first answer."));

    signal(node.pid(), Signal::SIGSTOP);
    let started = Instant::now();
    let (code, text) = health(&node, &["--timeout", "200ms"]);
    assert!(code == 3 && text.ends_with("the daemon did not answer within 200ms"), "{code} {text}");
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert_eq!(health(&node, &["--timeout", "20ms", "--exit-codes", "npd"]).0, 2);
    assert_eq!(json(&node, &["--timeout", "20ms"])["age_seconds"], Value::Null);
    signal(node.pid(), Signal::SIGCONT);
    assert_eq!(health(&node, &["--timeout", "1m"]).1, "unknown: Waiting for the driver's first answer.");

    node.terminate();
    let (code, text) = health(&node, &[]);
    assert!(code == 3 && text.contains("is the daemon running?"), "{code} {text}");
    assert!(!node.health_socket().exists(), "the socket goes with the daemon");
}

#[test]
fn a_daemon_that_was_killed_leaves_sockets_and_is_unknown_with_the_reason() {
    let node = without_topology("tests/scenarios/still-1xh200.toml").start();
    node.wait_ready();
    signal(node.pid(), Signal::SIGKILL);
    node.wait_until_gone(node.pid());
    assert!(node.control_socket().exists() && node.health_socket().exists());
    let (code, text) = health(&node, &[]);
    assert_eq!(code, 3, "{text}");
    for part in ["unknown: ", "control.sock: Connection refused", "is the daemon running?"] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    assert_eq!(health(&node, &["--exit-codes", "npd"]).0, 2);
}

#[test]
fn wrong_arguments_have_an_exit_code_of_their_own() {
    for args in [["--timeout", "0s"], ["--timeout", "1h"], ["--gpu", "0 snapshot"], ["--gpu", ""]] {
        let output = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter")).arg("health").args(args).output();
        assert_eq!(output.unwrap().status.code(), Some(64), "{args:?}");
    }
}

#[test]
fn every_user_may_ask_for_health_and_for_nothing_else() {
    let node = without_topology("tests/scenarios/still-1xh200.toml").start();
    node.wait_ready();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(node.control_socket()), mode(node.health_socket())), (0o660, 0o666));
    let mut command = node.command(&["health"]);
    // Without root there is no other user to be.
    if Uid::effective().is_root() {
        let folder = node.control_socket().parent().unwrap().to_owned();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        command.uid(65_534).gid(65_534);
        let refused = node.command(&["driver", "status"]).uid(65_534).gid(65_534).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "the control socket is closed to it");
    } else {
        command.env("GPU_NODE_EXPORTER__CONTROL__SOCKET", "");
    }
    assert_eq!(answer(&command.output().unwrap()), (0, "ok: 1 GPU, ok.".into()));
    // The same commands, asked on the socket for everyone.
    let on_health = |args: &[&str]| -> Command {
        let mut command = node.command(args);
        command.env("GPU_NODE_EXPORTER__CONTROL__SOCKET", node.health_socket());
        command
    };
    for args in [&["driver", "release"][..], &["snapshot"], &["gpm", "off"]] {
        let output = on_health(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("answers only `health`"), "{args:?}: {said}");
    }
    assert_eq!(node.metrics().value("gpu_driver_paused", &[]), Some(0.0));
}

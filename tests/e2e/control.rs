//! The local socket, through `gpu-node-exporter snapshot`.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use super::node::{Metrics, Node};

fn snapshot(node: &Node, format: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"))
        .args(["snapshot", "--format", format])
        .env("GPU_NODE_EXPORTER__CONTROL__SOCKET", node.control_socket())
        .output()
        .unwrap()
}

#[test]
fn snapshot_asks_the_running_daemon() {
    let mut node = Node::start("tests/scenarios/still-1xh200.toml");
    let mode = std::fs::metadata(node.control_socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let text = String::from_utf8(snapshot(&node, "text").stdout).unwrap();
    assert_eq!(Metrics::parse(&text).value("gpu_up", &[("gpu", "0")]), Some(1.0));
    let openmetrics = String::from_utf8(snapshot(&node, "openmetrics").stdout).unwrap();
    assert!(openmetrics.ends_with("# EOF\n"));
    let json: serde_json::Value = serde_json::from_slice(&snapshot(&node, "json").stdout).unwrap();
    assert_eq!(json["gpus"][0]["state"], "up");

    let (status, _) = node.terminate();
    assert!(status.success());
    assert!(!node.control_socket().exists(), "the socket goes with the daemon");
    let answer = snapshot(&node, "json");
    assert_eq!(answer.status.code(), Some(1));
    let said = String::from_utf8(answer.stderr).unwrap();
    assert!(said.contains("control.sock") && said.contains("is the daemon running"), "{said}");
}

#[test]
fn an_order_is_logged_with_who_gave_it_and_a_question_is_not() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    let ask = |args: &[&str]| assert!(node.command(args).output().unwrap().status.success(), "{args:?}");
    ask(&["driver", "status"]);
    let mut order = node.command(&["gpm", "off"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let pid = format!("pid={}", order.id());
    assert!(order.wait().unwrap().success());
    let uid = format!("uid={}", nix::unistd::geteuid());
    // The question came first.
    let line = node.wait_said(&["order on the control socket"]);
    assert!([&uid, &pid, "gpm off"].into_iter().all(|part| line.contains(part)), "{line}");
}

#[test]
fn idle_clients_do_not_block_the_socket() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    let _idle: Vec<_> =
        (0..20).map(|_| std::os::unix::net::UnixStream::connect(node.control_socket()).unwrap()).collect();
    for _ in 0..10 {
        assert!(node.command(&["driver", "status"]).output().unwrap().status.success());
    }
}

//! One verdict for all readers, the loss of a GPU and its return, and what a wrong result of the canary means later.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::node::{Metrics, Node, Setup};
use super::{canary_daemon, faults};

/// What each reader says of a GPU: its word on the page and in the API, `gpu_healthy`, the text of `/readyz`.
fn words(node: &Node, gpu: usize) -> (String, Value, Option<f64>, String) {
    let snapshot = node.snapshot();
    let health = &snapshot["gpus"][gpu]["health"];
    let ready = node.get("/readyz").1;
    let text = ready.lines().find_map(|line| line.strip_prefix("health: ")).unwrap_or_default().to_owned();
    let healthy = node.metrics().value("gpu_healthy", &[("gpu", &gpu.to_string())]);
    (health["word"].as_str().unwrap_or_default().to_owned(), health["healthy"].clone(), healthy, text)
}

fn events(node: &Node, kind: &str) -> Vec<Value> {
    faults::events(node).into_iter().filter(|event| event["kind"] == kind).collect()
}

fn doctor(node: &Node) -> String {
    let output = node.command(&["doctor"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn after_a_fatal_fault_and_a_reset_all_readers_say_that_the_gpu_is_well() {
    let node = Node::start("tests/scenarios/fatal-and-reset.toml");
    node.sim().open_gate("fault").unwrap();
    node.wait_metrics("the loss", |m| m.value("gpu_healthy", &[("gpu", "1")]) == Some(0.0));
    // The Xid comes by another thread than the loss; a real reset takes longer than either.
    node.wait_for("the Xid", |node| !events(node, "xid").is_empty());
    node.sim().open_gate("reset").unwrap();
    node.wait_metrics("the reset", |m| m.value("gpu_resets_total", &[("gpu", "1")]) == Some(1.0));
    node.wait_metrics("it is well", |m| m.value("gpu_healthy", &[("gpu", "1")]) == Some(1.0));
    let (word, healthy, metric, text) = words(&node, 1);
    assert_eq!((word.as_str(), healthy, metric), ("ok", Value::Bool(true), Some(1.0)), "{text}");
    assert!(text.starts_with("2 GPUs, all ok"), "{text}");
    assert!(node.get("/").1.contains("2 GPUs, all ok"));
    let doctors = doctor(&node);
    assert!(doctors.contains("2 GPUs, all ok"), "{doctors}");
    assert_eq!(events(&node, "xid").len(), 1, "the list of events keeps the fault");
}

#[test]
fn what_a_gpu_still_works_with_is_said_by_all_readers() {
    let node = Setup::new("tests/scenarios/worn.toml").with("SAMPLER__NVLINK_INTERVAL", "200ms").start();
    node.wait_ready();
    node.wait_metrics("the links", |m| {
        m.value("gpu_nvlink_errors_total", &[("gpu", "2"), ("error", "dl_recovery")]) == Some(0.0)
    });
    node.sim().open_gate("sick").unwrap();
    node.wait_for("three are degraded", |node| {
        words(node, 0).3.contains("degraded") && words(node, 0).3.starts_with("4 GPUs, 1 ok")
    });
    for (gpu, reason) in [
        (0, "uncorrected SRAM errors exceed the vendor's threshold"),
        (1, "the NVLink fabric reports: route unhealthy"),
        (2, "NVLink errors: 5 dl_recovery within 30 min"),
    ] {
        let (word, healthy, metric, _) = words(&node, gpu);
        assert_eq!((word.as_str(), healthy, metric), ("degraded", Value::Bool(true), Some(1.0)), "GPU {gpu}");
        let reasons = node.snapshot()["gpus"][gpu]["health"]["reasons"].to_string();
        assert!(reasons.contains(reason), "{reasons}");
        assert!(node.get("/").1.contains(reason), "{reason}");
    }
    let doctors = doctor(&node);
    assert!(doctors.contains("4 GPUs, 1 ok"), "{doctors}");
}

/// The one event of this kind, with its text.
fn event(node: &Node, kind: &str, gpu: u64) -> String {
    node.wait_for("the event", |node| !events(node, kind).is_empty());
    let all = events(node, kind);
    let [event] = all.as_slice() else { panic!("{all:#?}") };
    assert_eq!(event["gpu"], gpu, "{event}");
    event["text"].as_str().unwrap_or_default().to_owned()
}

/// A node that is ready, and whose GPUs have returned once they answer for 4 s: the rare interval, and a call's time-out.
fn returning(scenario: &str) -> Node {
    let node = Setup::new(scenario).with("SAMPLER__RARE_INTERVAL", "3s").start();
    node.wait_ready();
    node
}

#[test]
fn a_gpu_that_is_lost_and_returns_is_an_event_and_a_line_each() {
    let node = returning("tests/scenarios/lost-and-reset.toml");
    node.sim().open_gate("lost").unwrap();
    let text = event(&node, "gpu_lost", 1);
    assert!(text.contains("nvml") && text.contains("GPU is lost"), "{text}");
    node.wait_said(&["ERROR", "kind=\"gpu_lost\"", "gpu=1", "GPU is lost"]);
    node.sim().open_gate("reset").unwrap();
    let text = event(&node, "gpu_returned", 1);
    assert!(text.contains("lost for"), "{text}");
    node.wait_said(&["INFO", "kind=\"gpu_returned\"", "gpu=1"]);
    assert_eq!(events(&node, "gpu_lost").len(), 1);
}

#[test]
fn a_slow_call_that_meets_the_loss_first_gives_the_reason() {
    // No second try to get a handle in the life of the test.
    let node =
        Setup::new("tests/scenarios/lost-by-slow-call.toml").with("SAMPLER__RARE_INTERVAL", "10m").start();
    node.wait_ready();
    node.sim().open_gate("lost").unwrap();
    let text = event(&node, "gpu_lost", 1);
    assert!(text.contains("nvmlDeviceGetSramEccErrorStatus") && text.contains("GPU is lost"), "{text}");
    node.wait_said(&["ERROR", "kind=\"gpu_lost\"", "nvmlDeviceGetSramEccErrorStatus"]);
    node.hold("the reason stays", Duration::from_secs(4), |node| {
        node.snapshot()["gpus"][1]["health"]["reasons"].to_string().contains("GPU is lost")
    });
}

#[test]
fn a_gpu_that_is_lost_at_the_start_is_an_event_too() {
    let node = Node::start("tests/scenarios/lost-handle.toml");
    let text = event(&node, "gpu_lost", 3);
    assert!(text.contains("no handle") && text.contains("GPU is lost"), "{text}");
    node.wait_said(&["ERROR", "kind=\"gpu_lost\"", "gpu=3"]);
}

#[test]
fn a_gpu_in_a_call_that_hangs_and_its_return_are_events_too() {
    let node = returning("tests/scenarios/hang-gpu3.toml");
    node.sim().open_gate("hang").unwrap();
    let text = event(&node, "gpu_lost", 3);
    assert!(text.contains("nvml") && text.contains("has not returned"), "{text}");
    node.wait_said(&["ERROR", "kind=\"gpu_lost\"", "gpu=3", "has not returned"]);
    node.sim().open_gate("release").unwrap();
    event(&node, "gpu_returned", 3);
}

#[test]
fn a_gpu_that_the_driver_lists_no_more_is_an_event() {
    let mut node = Node::start("tests/scenarios/still-8xh200.toml");
    let file = node.state_dir().join("inventory.json");
    node.wait_for("the inventory", |_| {
        fs::read_to_string(&file).is_ok_and(|text| text.matches("\"uuid\"").count() == 8)
    });
    assert!(node.terminate().0.success());
    let other = Setup::new("tests/scenarios/still-1xh200.toml").with_state_of(&node).start();
    other.wait_for("seven events", |node| events(node, "gpu_lost").len() == 7);
    assert!(events(&other, "gpu_lost")[0]["text"].as_str().unwrap().contains("does not list"));
}

fn canary(scenario: &str) -> Setup {
    canary_daemon::setup(scenario).with("CANARY__CHECKS", "init,pcie").with("CANARY__MAX_MEMORY_MIB", "32")
}

fn healthy(m: &Metrics) -> Option<f64> {
    m.value("gpu_healthy", &[("gpu", "0")])
}

fn verdict(m: &Metrics, verdict: &str) -> Option<f64> {
    m.value("gpu_canary_verdict", &[("gpu", "0"), ("check", "pcie"), ("verdict", verdict)])
}

/// A daemon whose canary has found wrong results on GPU 0, and now finds none.
fn after_a_wrong_result() -> Node {
    let node = canary("tests/scenarios/canary-wrong.toml").start();
    node.wait_ready();
    node.sim().open_gate("wrong").unwrap();
    node.wait_metrics("it is wrong", |m| verdict(m, "wrong_result") == Some(1.0) && healthy(m) == Some(0.0));
    node.sim().close_gate("wrong").unwrap();
    node.wait_metrics("a run without a finding", |m| verdict(m, "ok") == Some(1.0));
    node
}

fn kept(m: &Metrics) -> Option<f64> {
    m.value("gpu_canary_wrong_result_timestamp_seconds", &[("gpu", "0")])
}

#[test]
fn a_wrong_result_stays_until_it_is_cleared() {
    let mut node = after_a_wrong_result();
    let m = node.metrics();
    assert_eq!(healthy(&m), Some(0.0), "a later run without a finding does not clear it");
    assert_eq!(m.value("gpu_unhealthy_reason", &[("gpu", "0"), ("reason", "canary")]), Some(1.0));
    let since = kept(&m).expect("for the alert");
    assert!(words(&node, 0).3.contains("GPU 0 faulty: wrong result"), "{}", words(&node, 0).3);
    let file = node.state_dir().join("wrong-results.json");
    node.wait_for("it is kept", |_| file.exists());
    assert!(node.terminate().0.success());

    // Another boot, and a canary that is off.
    let root = TempDir::new().unwrap();
    for folder in ["proc/sys/kernel/random", "sys/module", "dev"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    fs::write(root.path().join("proc/sys/kernel/random/boot_id"), "another-boot\n").unwrap();
    let again = canary("tests/scenarios/canary-wrong.toml")
        .with("CANARY__MODE", "off")
        .with("HOST__ROOT", root.path().to_str().unwrap())
        .with_state_of(&node)
        .start();
    again.wait_ready();
    let m = again.wait_metrics("it is kept", |m| healthy(m) == Some(0.0));
    // The file's text is as precise as a microsecond.
    assert!(kept(&m).is_some_and(|kept| (kept - since).abs() < 1e-5), "{:?}, {since}", kept(&m));
    again.hold("it stays", Duration::from_millis(500), |node| healthy(&node.metrics()) == Some(0.0));

    let clear = |args: &[&str]| {
        let output = again.command(&[&["canary", "clear"], args].concat()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    assert_eq!(clear(&["--gpu", "0"]).0, Some(64), "a reason is needed");
    assert_eq!(clear(&["--gpu", "0", "--reason", "  "]).0, Some(64), "and is a text");
    let (code, said) = clear(&["--gpu", "1", "--reason", "x"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("GPU 1 has no known wrong result"), "{said}");
    let (code, said) = clear(&["--gpu", "0", "--reason", "vendor: board is well"]);
    assert_eq!(code, Some(0), "{said}");
    let uid = format!("uid={}", nix::unistd::getuid());
    again.wait_said(&[&uid, "pid=", "canary clear", "vendor: board is well"]);
    let m = again.metrics();
    assert_eq!((healthy(&m), kept(&m)), (Some(1.0), None), "at once");
    let text = events(&again, "canary").iter().map(|event| event["text"].to_string()).collect::<String>();
    assert!(text.contains("vendor: board is well") && text.contains("uid"), "{text}");
    again.wait_for("nothing is kept", |_| {
        fs::read_to_string(&file).is_ok_and(|text| text.contains("\"gpus\":[]"))
    });
    drop(again);

    let third = canary("tests/scenarios/canary-wrong.toml").with_state_of(&node).start();
    third.wait_metrics("it is well", |m| healthy(m) == Some(1.0));
    third.wait_metrics("after a run too", |m| verdict(m, "ok") == Some(1.0) && healthy(m) == Some(1.0));
}

#[test]
fn the_doctor_names_a_gpu_with_a_wrong_result_also_while_the_driver_is_released() {
    let node = after_a_wrong_result();
    let names = |said: &str| {
        let mut lines = said.lines().skip_while(|line| !line.starts_with("✕ GPUs"));
        let (gpu, fix) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        assert!(gpu.contains("GPU 0 ") && gpu.contains("wrong result"), "{said}");
        assert!(fix.contains("-> sudo nvidia-bug-report.sh"), "no fault of the driver's: {said}");
    };
    names(&doctor(&node));
    assert!(node.command(&["driver", "release"]).output().unwrap().status.success());
    node.wait_metrics("the pause", |m| m.value("gpu_driver_paused", &[]) == Some(1.0));
    let said = doctor(&node);
    assert!(said.contains("not queried, because "), "{said}");
    names(&said);
}

#[test]
fn another_board_is_not_blamed_for_a_wrong_result_and_the_first_still_is() {
    let mut node = after_a_wrong_result();
    node.wait_for("it is kept", |node| node.state_dir().join("wrong-results.json").exists());
    assert!(node.terminate().0.success());
    let mut other = canary("tests/scenarios/canary-new-board.toml").with_state_of(&node).start();
    other.wait_metrics("the new board is well", |m| healthy(m) == Some(1.0) && kept(m).is_none());
    assert!(other.terminate().0.success());
    let back = canary("tests/scenarios/canary-wrong.toml").with_state_of(&node).start();
    back.wait_metrics("the first board is back", |m| healthy(m) == Some(0.0));
    // By its UUID, also in another slot.
    let uuid = back.snapshot()["gpus"][0]["uuid"].as_str().unwrap().to_owned();
    let output = back.command(&["canary", "clear", "--gpu", &uuid, "--reason", "x"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_wrong_result_of_a_run_by_hand_reaches_the_daemon() {
    let node = canary("tests/scenarios/canary-wrong.toml").with("CANARY__MODE", "off").start();
    node.wait_ready();
    node.sim().open_gate("wrong").unwrap();
    let output = node.command(&["canary", "--gpu", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let m = node.wait_metrics("the daemon knows", |m| healthy(m) == Some(0.0));
    assert!(kept(&m).is_some());
    assert_eq!(m.value("gpu_healthy", &[("gpu", "1")]), Some(1.0));
    node.sim().close_gate("wrong").unwrap();
    node.wait_for("it is kept", |node| node.state_dir().join("wrong-results.json").exists());
    let output = node.command(&["canary"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "a right run does not take it back: {said}");
    assert!(said.contains("an earlier wrong result is not cleared"), "{said}");
}

/// Seconds until the condition holds.
fn until(node: &Node, what: &str, condition: impl Fn(&Metrics) -> bool) -> f64 {
    let started = Instant::now();
    node.wait_metrics(what, condition);
    started.elapsed().as_secs_f64()
}

const CALL: &str = "gpu_exporter_driver_call_stuck_seconds";
const NODE_CALL: &str = "gpu_exporter_node_call_stuck_seconds";

#[test]
fn with_the_products_own_deadlines_a_stuck_lock_shows_within_ten_seconds() {
    let node = Setup::new("tests/scenarios/hang-lock.toml").with_default_times().start();
    node.wait_ready();
    node.sim().open_gate("hang").unwrap();
    node.wait_for("a call hangs", |node| node.sim().calls_held() > 0);
    let shown = until(&node, "the call by name", |m| !m.all(CALL, &[]).is_empty());
    assert!(shown < 5.0, "the stuck call showed after {shown} s");
    let stuck = until(&node, "the driver is stuck", |m| m.value("gpu_driver_stuck", &[]) == Some(1.0));
    assert!(shown + stuck < 10.0, "gpu_driver_stuck came after {} s", shown + stuck);
    assert!(node.metrics().value(NODE_CALL, &[("call", "nvmlInitWithFlags")]).is_some());
    node.sim().open_gate("release").unwrap();
    node.wait_metrics("all eight are up", |m| m.all("gpu_up", &[]) == [1.0; 8]);
    assert_eq!(node.metrics().value("gpu_driver_stuck", &[]), Some(0.0));
}

#[test]
fn with_the_products_own_deadlines_a_stuck_initialization_shows_within_ten_seconds() {
    let node = Setup::new("tests/scenarios/hang-init.toml").with_default_times().start();
    let shown =
        until(&node, "the call by name", |m| m.value(NODE_CALL, &[("call", "nvmlInitWithFlags")]).is_some());
    assert!(shown < 5.0, "the stuck call showed after {shown} s");
    let stuck = until(&node, "the driver is stuck", |m| m.value("gpu_driver_stuck", &[]) == Some(1.0));
    assert!(shown + stuck < 10.0, "gpu_driver_stuck came after {} s", shown + stuck);
    assert_eq!(node.samplers().len(), 1, "the sampler is replaced later");
    node.sim().open_gate("release").unwrap();
    node.wait_metrics("the GPU", |m| m.value("gpu_up", &[("gpu", "0")]) == Some(1.0));
    assert_eq!(node.metrics().value("gpu_driver_stuck", &[]), Some(0.0));
    assert_eq!(node.metrics().value("gpu_exporter_sampler_starts_total", &[]), Some(1.0));
}

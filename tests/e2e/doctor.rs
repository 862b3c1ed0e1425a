//! `gpu-node-exporter doctor` on simulated nodes, well and ill.

use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::node::{Node, Setup};

/// A simulated host has no kernel log.
fn setup(scenario: &str) -> Setup {
    Setup::new(scenario).with("EVENTS__KERNEL_LOG", "false")
}

fn doctor(node: &Node, args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        node.command(&[&["doctor"], args].concat()).output().expect("it starts");
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

#[test]
fn a_node_that_is_well_is_reported_so_and_the_daemon_is_not_disturbed() {
    let node = setup("tests/scenarios/still-8xh200.toml").start();
    node.wait_ready();
    let samplers = node.samplers();
    let (code, said) = doctor(&node, &["--format", "json"]);
    assert_eq!(code, Some(0), "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["well"], true);
    let standing = |name: &str| {
        let metrics = report["metrics"].as_array().unwrap();
        metrics.iter().find(|m| m["metric"] == name).unwrap_or_else(|| panic!("{name}"))["standing"].clone()
    };
    assert_eq!(standing("gpu_power_watts"), "works");
    assert_eq!(standing("gpu_energy_joules_total"), "works");
    assert_eq!(standing("gpu_mig_info"), "nothing");
    let calls = report["calls"].as_array().unwrap();
    let energy = calls.iter().find(|c| c["call"] == "nvmlDeviceGetTotalEnergyConsumption").unwrap();
    assert!(
        energy["calls"].as_u64() >= Some(8) && energy["median_nanoseconds"].as_u64() > Some(0),
        "{energy}"
    );
    assert_eq!(node.samplers(), samplers);
    let (code, text) = doctor(&node, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("✓ daemon") && text.contains("Nothing is wrong.") && !text.contains('\x1b'),
        "{text}"
    );
}

#[test]
fn a_call_that_does_not_return_is_named_and_not_waited_for() {
    let mut node = setup("tests/scenarios/hang-gpu3.toml").start();
    node.wait_ready();
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the stall", |m| m.value("gpu_up", &[("gpu", "3")]) == Some(0.0));
    let (code, said) = doctor(&node, &[]);
    assert_eq!(code, Some(1), "the daemon's own word: {said}");
    assert!(said.contains("GPU 3 is stuck") && !said.contains("remains in that call"), "{said}");

    node.terminate();
    let started = Instant::now();
    let (code, said) = doctor(&node, &[]);
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("does not return on GPU 3") && said.contains("remains in that call"), "{said}");
    assert!(said.contains("gpu_power_watts"), "the other seven are reported all the same: {said}");
}

#[test]
fn each_lost_gpu_is_named_with_its_reason() {
    let mut node = setup("tests/scenarios/lost-early.toml").start();
    node.wait_metrics("two lost", |m| m.all("gpu_up", &[]).iter().filter(|up| **up == 0.0).count() == 2);
    let both_named = |node: &Node| {
        let (code, said) = doctor(node, &[]);
        assert_eq!(code, Some(1), "{said}");
        for gpu in ["GPU 1 ", "GPU 2 "] {
            let named: Vec<&str> =
                said.lines().filter(|line| line.starts_with("✕ GPUs") && line.contains(gpu)).collect();
            assert!(matches!(named.as_slice(), [line] if line.contains("off the bus")), "{gpu}: {said}");
        }
    };
    both_named(&node);
    node.terminate();
    both_named(&node);
}

#[test]
fn a_driver_that_answers_needs_no_module_and_is_not_to_be_too_old() {
    let folder = TempDir::new().unwrap();
    let scenario = folder.path().join("old.toml");
    fs::write(&scenario, "driver = \"525.147.05\"\nstill = true\n[[gpu]]\nmodel = \"A100\"\n").unwrap();
    let node = setup(scenario.to_str().unwrap()).start();
    node.wait_ready();
    let (code, said) = doctor(&node, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("i driver            525.147.05 is older than 535"), "{said}");
    assert!(said.contains("i kernel module     not visible here, but the driver responds\n"), "{said}");
    for advice in ["modprobe", "ldconfig"] {
        assert!(!said.contains(advice), "{advice}: {said}");
    }
    let (_, said) = doctor(&setup("tests/scenarios/still-8xh200.toml").start(), &[]);
    assert!(!said.contains("is older than"), "{said}");
}

#[test]
fn a_driver_that_hangs_at_once_is_reported_and_one_that_is_stuck_is_left_alone() {
    let mut node = setup("tests/scenarios/hang-init.toml").start();
    node.wait_metrics("stuck", |m| m.value("gpu_driver_stuck", &[]) == Some(1.0));
    let (code, said) = doctor(&node, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("not queried, because the daemon reports it as stuck"), "{said}");
    node.terminate();
    let (code, said) = doctor(&node, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nvmlInitWithFlags does not return"), "{said}");
}

#[test]
fn a_library_that_is_missing_is_reported_with_a_fix() {
    let node = setup("tests/scenarios/still-1xh200.toml").without_library().start();
    node.wait_ready();
    let (code, said) = doctor(&node, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("✕ libnvidia-ml") && said.contains("does not respond"), "{said}");
    assert!(said.contains("-> ") && said.contains("wrong."), "{said}");
    let (code, said) = doctor(&node, &["--cuda", "12.0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("unknown: "), "{said}");
}

#[test]
fn a_released_driver_is_not_touched() {
    let node = setup("tests/scenarios/still-1xh200.toml").start();
    node.wait_ready();
    assert!(node.command(&["driver", "release"]).output().unwrap().status.success());
    node.wait_metrics("the pause", |m| m.value("gpu_driver_paused", &[]) == Some(1.0));
    let before = node.sim().calls_of("nvmlInitWithFlags");
    let (_, said) = doctor(&node, &[]);
    assert!(said.contains("not queried, because the daemon has released it"), "{said}");
    assert_eq!(node.sim().calls_of("nvmlInitWithFlags"), before);
}

#[test]
fn cuda_versions_are_judged_with_the_rule() {
    let mut node = setup("tests/scenarios/still-1xh200.toml").start();
    node.wait_ready();
    let (code, said) = doctor(&node, &["--cuda", "12.0"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("yes: driver "), "{said}");
    let (code, said) = doctor(&node, &["--cuda", "99.0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("no: "), "{said}");
    assert_eq!(doctor(&node, &["--cuda", "new"]).0, Some(64));
    node.terminate();
    let (code, said) = doctor(&node, &["--cuda", "12.0", "--format", "json"]);
    assert_eq!(code, Some(0), "without the daemon the driver is asked: {said}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap()["answer"], "yes");
}

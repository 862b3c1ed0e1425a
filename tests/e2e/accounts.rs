//! What owners cost and what holds them back, from the simulated driver and a host of files to the page.

use std::process::Command;

use super::owners::Machine;

const POD: &str = "0::/kubepods.slice/kubepods-besteffort.slice/\
    kubepods-besteffort-pod2c48913c_b29f_11e7_9350_020968147796.slice/\
    cri-containerd-9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961.scope\n";

#[test]
fn owners_have_accounts_that_never_exceed_their_gpu() {
    let mut machine = Machine::new();
    machine.process(5_000_001, POD);
    machine.process(5_000_002, "0::/system.slice/trainer.service\n");
    machine.gpu([5_000_001, 5_000_002]);
    let node = machine.start();
    let m = node.wait_metrics("accounts of both", |m| {
        let time = m.all("gpu_owner_allocated_seconds_total", &[]);
        m.all("gpu_owner_energy_joules_total", &[]).len() == 2 && time.iter().sum::<f64>() > 3.0
    });
    let sum = |name: &str| m.all(name, &[]).iter().sum::<f64>();
    let joules = sum("gpu_owner_energy_joules_total");
    assert!(joules <= sum("gpu_energy_sampled_joules_total") + 1e-6, "{joules}");
    let time = m.all("gpu_owner_allocated_seconds_total", &[]);
    assert!((time[0] - time[1]).abs() < 1.5, "{time:?}: half of the time each");
    assert_eq!(m.value("gpu_owner_processes", &[("owner", "unit/trainer.service")]), Some(1.0));
    assert_eq!(m.all("gpu_owner_info", &[("kind", "pod")]), [1.0]);
    assert_eq!(m.all("gpu_exporter_owners_dropped", &[]), [0.0]);
    assert!(
        m.all("gpu_owner_processes", &[("owner", "unknown")]).is_empty(),
        "nobody was unknown for a moment"
    );
    // Who was there before the daemon has no start to measure.
    assert_eq!(m.all("gpu_owner_start_seconds_count", &[]), [0.0, 0.0]);
    let (_, json) = node.get("/api/v1/owners");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let owners = json["owners"].as_array().unwrap();
    assert_eq!(owners.len(), 2);
    assert!(owners.iter().all(|owner| owner["allocated_seconds"].as_f64() > Some(1.0)), "{json}");
    assert!(node.get("/").1.contains("unit/trainer.service"));
}

#[test]
fn owners_above_the_bound_are_counted() {
    let mut machine = Machine::new();
    let pids = 5_000_001..5_000_005;
    for pid in pids.clone() {
        machine.process(pid, format!("0::/system.slice/unit{pid}.service\n"));
    }
    machine.gpu(pids);
    let node = machine.start_with(&[("OWNERS__MAX_SERIES", "1")]);
    let m = node.wait_metrics("those left out", |m| m.value("gpu_exporter_owners_dropped", &[]) == Some(3.0));
    assert_eq!(m.all("gpu_owner_info", &[]), [1.0]);
}

#[test]
fn promtool_accepts_the_recording_rules() {
    let promtool = std::env::var("PROMTOOL").expect("PROMTOOL is not set: run the tests with `make test`");
    let output = Command::new(promtool).args(["check", "rules", "alerts/owners.rules.yml"]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("SUCCESS"), "{said}");
}

#[test]
fn the_recording_rules_say_what_a_pod_had() {
    let promtool = std::env::var("PROMTOOL").expect("PROMTOOL is not set: run the tests with `make test`");
    let output =
        Command::new(promtool).args(["test", "rules", "tests/data/owners.rules.test.yml"]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
}

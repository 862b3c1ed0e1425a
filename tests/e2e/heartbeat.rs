//! The step of a job and the classes of its GPU time, by the power and the profiling counters.

use std::fs;

use super::machine::Machine;
use super::node::{Metrics, Setup};

/// Three GPUs: two ranks of a training whose step is 1.2 s, and a server.
const SCENARIO: &str = r#"
[[gpu]]
model = "H200"
load = "steps"
processes = [{ pid = 5000001, memory = "20GiB", type = "compute" }]
[[gpu]]
model = "H200"
load = "steps"
processes = [{ pid = 5000002, memory = "20GiB", type = "compute" }]
[[gpu]]
model = "H200"
load = "inference"
processes = [{ pid = 5000003, memory = "20GiB", type = "compute" }]
"#;

/// Seconds of all classes of the owner on a GPU.
fn classes(m: &Metrics, gpu: &str) -> f64 {
    m.all("gpu_owner_gpu_seconds_total", &[("gpu", gpu)]).iter().sum()
}

#[test]
fn steps_are_found_and_each_allocated_second_has_a_class() {
    let machine = Machine::new();
    for (pid, unit) in [(5_000_001, "train"), (5_000_002, "train"), (5_000_003, "server")] {
        machine.process(pid, format!("0::/system.slice/{unit}.service\n"));
    }
    let file = machine.root().join("scenario.toml");
    fs::write(&file, SCENARIO).unwrap();
    let node = Setup::new(file.to_str().unwrap())
        .with("HOST__ROOT", machine.root().to_str().unwrap())
        .with("METRICS__GROUPS", "")
        .start();
    node.wait_ready();
    let m = node.wait_metrics("steps of both ranks", |m| {
        ["0", "1"].iter().all(|gpu| m.value("gpu_owner_steps_total", &[("gpu", gpu)]) > Some(3.0))
    });
    for gpu in ["0", "1"] {
        let of = |name: &str| m.value(name, &[("gpu", gpu), ("owner", "unit/train.service")]);
        let step = of("gpu_owner_step_seconds").unwrap();
        assert!((step / 1.2 - 1.0).abs() < 0.01, "{step} s");
        assert!(of("gpu_owner_step_confidence_ratio") > Some(0.5));
        assert!(of("gpu_owner_step_jitter_ratio") < Some(0.05));
        assert_eq!(of("gpu_owner_missing_rank"), None, "nothing is wedged");
    }
    assert_eq!(m.value("gpu_owner_step_seconds", &[("gpu", "2")]), None, "a server has no step");
    let m = node.wait_metrics("a window of GPM", |m| classes(m, "2") > 15.0);
    for gpu in ["0", "1", "2"] {
        let allocated = m.value("gpu_owner_allocated_seconds_total", &[("gpu", gpu)]).unwrap();
        // A window of 10 s, and a few seconds until it is read.
        assert!((-1e-6..16.0).contains(&(allocated - classes(&m, gpu))), "{allocated} s allocated");
        let computing = m.value("gpu_owner_gpu_seconds_total", &[("gpu", gpu), ("class", "computing")]);
        let all: Vec<_> = m.0.iter().filter(|(name, ..)| name == "gpu_owner_gpu_seconds_total").collect();
        assert!(computing > Some(0.3 * classes(&m, gpu)), "{all:?}");
    }
    assert!(m.all("gpu_owner_gpu_seconds_total", &[("class", "wedged")]).is_empty(), "0 is not served");
    let (_, json) = node.get("/api/v1/owners");
    let owners: serde_json::Value = serde_json::from_str(&json).unwrap();
    let first = &owners["owners"][0];
    assert!(first["step_seconds"].as_f64().is_some_and(|step| (step - 1.2).abs() < 0.02), "{first}");
    assert!(first["class_seconds"]["computing"].as_f64() > Some(1.0), "{first}");
}

//! Work that comes to a halt, and work that only looks so.

use super::machine::Machine;
use super::node::{Metrics, Setup};

/// The cause that is published for the owner on a GPU.
fn cause(m: &Metrics, gpu: &str) -> Option<String> {
    let mut now = m
        .0
        .iter()
        .filter(|(name, labels, value)| name == "gpu_bottleneck" && labels["gpu"] == gpu && *value == 1.0);
    now.next().map(|(_, labels, _)| labels["cause"].clone())
}

#[test]
fn a_collective_that_waits_is_wedged_and_its_missing_rank_named() {
    let machine = Machine::new();
    for pid in 5_000_001..5_000_006 {
        // The first two are ranks of one job.
        let job = pid.max(5_000_002);
        machine.process(pid, format!("0::/system.slice/job{job}.service\n"));
    }
    let node = Setup::new("tests/scenarios/halts.toml")
        .with("HOST__ROOT", machine.root().to_str().unwrap())
        // The evidence need not be served.
        .with("METRICS__GROUPS", "")
        .with("OWNERS__WEDGED_AFTER", "30s")
        .with("OWNERS__STALLED_AFTER", "30s")
        .start();
    node.wait_ready();
    // 20 s of GPM windows with work are needed.
    let m = node.wait_metrics("work", |m| {
        m.all("gpu_owner_busy_seconds_total", &[]).iter().all(|busy| *busy > 21.0)
            && m.all("gpu_owner_busy_seconds_total", &[]).len() == 5
    });
    assert_eq!(cause(&m, "0").as_deref(), Some("none"));
    node.wait_metrics("the step of both ranks", |m| m.all("gpu_owner_step_seconds", &[]).len() == 2);
    node.sim().open_gate("halt").unwrap();
    let claimed = |m: &Metrics| {
        let missing = ["0", "1"].map(|gpu| m.value("gpu_owner_missing_rank", &[("gpu", gpu)]));
        missing == [Some(0.0), Some(1.0)]
            && ["0", "1"].iter().all(|gpu| cause(m, gpu).as_deref() == Some("wedged"))
    };
    node.wait_metrics("the missing rank", claimed);
    let others = ["underfilled", "pcie_bound", "underfilled"];
    node.wait_metrics("the other causes", |m| {
        ["2", "3", "4"].iter().zip(others).all(|(gpu, wanted)| cause(m, gpu).as_deref() == Some(wanted))
    });
    assert!(node.get("/").1.contains("its kernels run without end and compute nothing"));
    let (_, json) = node.get("/api/v1/owners");
    assert!(json.contains("\"missing_rank\":true"), "{json}");
    let progress = node.metrics().all("gpu_owner_last_progress_timestamp_seconds", &[]);
    assert_eq!(progress.len(), 2, "{progress:?}");
    node.wait_metrics("the time of the halt in its class", |m| {
        m.all("gpu_owner_gpu_seconds_total", &[("class", "wedged")]).len() == 2
    });
}

//! GPUs before Hopper: no GPM. What is not measured is said to be so, and PCIe throughput comes from NVML where that is
//! switched on.

use super::dcgm;
use super::machine::Machine;
use super::node::{Metrics, Node, Setup};

/// NVML's call that blocks for the 20 ms that it measures.
const THROUGHPUT: &str = "nvmlDeviceGetPcieThroughput";

fn cause(metrics: &Metrics, gpu: &str, cause: &str) -> Option<f64> {
    metrics.value("gpu_bottleneck", &[("gpu", gpu), ("cause", cause)])
}

#[test]
fn without_gpm_the_bottleneck_is_unknown_and_not_none() {
    let mut machine = Machine::new();
    machine.process(4242, "0::/system.slice/old.service\n");
    machine.process(4343, "0::/system.slice/new.service\n");
    machine.gpu_of("A100", [4242]);
    machine.gpu_of("H200", [4343]);
    let node = machine.start();
    let metrics = node.wait_metrics("a cause of each owner", |m| {
        cause(m, "0", "unknown") == Some(1.0) && cause(m, "1", "none") == Some(1.0)
    });
    assert_eq!((cause(&metrics, "0", "none"), cause(&metrics, "1", "unknown")), (Some(0.0), Some(0.0)));
    assert!(metrics.all("gpu_gpm_pcie_bytes_total", &[("gpu", "0")]).is_empty());
    let unsupported = [("metric", "gpu_gpm_pcie_bytes_total")];
    assert_eq!(metrics.value("gpu_exporter_metric_unsupported", &unsupported), Some(1.0), "of one GPU");
    let (_, page) = node.get("/");
    assert_eq!(page.matches("the measurements are insufficient").count(), 1, "{page}");
}

#[test]
fn of_a_mixed_node_the_gpus_without_profiling_fields_are_named() {
    let mut machine = Machine::new();
    machine.gpu_of("H200", []);
    machine.gpu_of("A100", []);
    let list = dcgm::data("default.csv");
    let node = machine.start_with(&[("DCGM__FIELDS_FILE", list.to_str().unwrap())]);
    let line = node.wait_said(&["profiling counters (GPM), which require Hopper or later"]);
    let metrics = node.metrics();
    let (_, labels, _) = metrics.0.iter().find(|(name, l, _)| name == "gpu_info" && l["gpu"] == "1").unwrap();
    assert!(line.contains(&format!("GPUs 1 ({}) have no", labels["uuid"])), "{line}");
    assert!(line.contains("DCGM_FI_PROF_GR_ENGINE_ACTIVE") && line.contains("for them"), "{line}");
}

fn l4(pcie_throughput: &str) -> Node {
    Setup::new("tests/scenarios/still-l4.toml").with("SAMPLER__PCIE_THROUGHPUT", pcie_throughput).start()
}

#[test]
fn pcie_throughput_is_read_only_where_it_is_switched_on() {
    let node = l4("true");
    let throughput = |m: &Metrics, direction| {
        m.value("gpu_pcie_throughput_bytes_per_second", &[("gpu", "0"), ("direction", direction)])
    };
    // NVML's 650 and 600 KB/s.
    node.wait_metrics("the throughput", |m| {
        (throughput(m, "tx"), throughput(m, "rx")) == (Some(650.0 * 1024.0), Some(600.0 * 1024.0))
    });
    let node = l4("false");
    let replays = |m: &Metrics| m.value("gpu_pcie_replays_total", &[("gpu", "0")]);
    let metrics = node.wait_metrics("the rare tier", |m| replays(m).is_some());
    assert_eq!(throughput(&metrics, "tx"), None);
    assert_eq!(node.sim().calls_of(THROUGHPUT), 0);
}

#[test]
fn a_t4_has_what_nvml_tells_of_it_and_retired_pages() {
    let node = Node::start("tests/scenarios/still-t4.toml");
    let retired = [("gpu", "0"), ("cause", "double_bit")];
    let metrics = node.wait_metrics("retired pages", |m| m.value("gpu_retired_pages", &retired) == Some(0.0));
    assert_eq!(metrics.value("gpu_pcie_link_max_generation", &[("gpu", "0")]), Some(3.0));
    assert_eq!(metrics.value("gpu_power_limit_watts", &[("limit", "default")]), Some(70.0));
    for absent in
        ["gpu_remapped_rows", "gpu_gpm_active_ratio", "gpu_nvlink_bytes_total", "gpu_mig_mode_enabled"]
    {
        assert!(metrics.all(absent, &[]).is_empty(), "{absent}");
        let unsupported = metrics.value("gpu_exporter_metric_unsupported", &[("metric", absent)]);
        assert_eq!(unsupported, Some(1.0), "{absent}");
    }
    assert_eq!(metrics.value("gpu_healthy", &[("gpu", "0")]), Some(1.0));
}

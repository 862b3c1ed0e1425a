//! Answers that a real driver does not give, and foreign implementations of its library did.

use std::time::Duration;

use super::node::{Metrics, Node, Setup};

const FIRST: (&str, &str) = ("gpu", "0");
const SECOND: (&str, &str) = ("gpu", "1");

fn foreign() -> Node {
    let node = Setup::new("tests/scenarios/foreign.toml").with("PROCESSES__PER_PROCESS", "true").start();
    node.wait_ready();
    node
}

#[test]
fn a_size_that_is_answered_with_success_hides_no_process() {
    let node = foreign();
    let page = node.wait_metrics("processes", |m| !m.all("gpu_process_info", &[FIRST]).is_empty());
    assert_eq!(page.value("gpu_processes", &[FIRST, ("type", "compute")]), Some(2.0));
    assert_eq!(page.value("gpu_processes", &[FIRST, ("type", "graphics")]), Some(1.0));
    assert_eq!(page.all("gpu_process_info", &[FIRST]).len(), 3);
}

#[test]
fn outside_mig_mode_nothing_is_of_an_instance() {
    let node = foreign();
    let page = node.wait_metrics("owners", |m| !m.all("gpu_owner_memory_used_bytes", &[FIRST]).is_empty());
    let mut seen = 0;
    for (name, labels, _) in page.0.iter().filter(|(_, labels, _)| labels.contains_key("gpu_instance")) {
        assert_eq!(labels["gpu_instance"], "", "{name}");
        seen += 1;
    }
    assert!(seen > 0, "no series that could have one");
}

#[test]
fn the_margin_follows_the_temperature_whatever_the_driver_gives() {
    // Longer than the test: a margin that is read with this tier would not move.
    let setup = Setup::new("tests/scenarios/foreign.toml").with("SAMPLER__RARE_INTERVAL", "10m");
    let node = setup.start();
    node.wait_ready();
    let margins = |m: &Metrics| m.all("gpu_temperature_margin_celsius", &[]);
    // 87 degrees, at which clocks are held down, less 33 and 32.
    node.wait_metrics("margins", |m| margins(m) == [54.0, 55.0]);
    node.sim().open_gate("hot").unwrap();
    node.wait_metrics("no margin left", |m| margins(m) == [-5.0, -5.0]);
}

#[test]
fn a_power_limit_of_nothing_is_none() {
    let node = foreign();
    let page = node.metrics();
    assert_eq!(page.all("gpu_power_limit_watts", &[FIRST]).len(), 5);
    assert_eq!(page.all("gpu_power_limit_watts", &[SECOND]), [0.0; 0]);
    let dropped = [SECOND, ("reason", "out_of_range")];
    assert!(page.value("gpu_exporter_readings_dropped_total", &dropped) >= Some(5.0));
}

#[test]
fn a_link_does_not_carry_more_than_it_can() {
    let node = foreign();
    let bytes =
        |m: &Metrics, name, direction| m.value(name, &[SECOND, ("direction", direction)]).unwrap_or(0.0);
    let (pcie, nvlink) = ("gpu_gpm_pcie_bytes_total", "gpu_gpm_nvlink_bytes_total");
    let page = node.wait_metrics("bytes", |m| bytes(m, pcie, "rx") > 0.0 && bytes(m, nvlink, "rx") > 0.0);
    assert_eq!(bytes(&page, pcie, "tx"), 0.0);
    assert_eq!(bytes(&page, nvlink, "tx"), 0.0);
}

#[test]
fn links_that_came_up_are_not_held_to_the_rate_of_those_before() {
    // Longer than the test: only this tier reads the rate.
    let setup = Setup::new("tests/scenarios/nvlink-more-links.toml").with("SAMPLER__RARE_INTERVAL", "10m");
    let node = setup.with("SAMPLER__SLOW_INTERVAL", "200ms").start();
    let bytes = |m: &Metrics| m.value("gpu_nvlink_bytes_total", &[FIRST, ("direction", "tx")]);
    node.wait_metrics("the rate of one link", |m| {
        m.value("gpu_nvlink_speed_bytes_per_second", &[FIRST]) == Some(1e6) && bytes(m) == Some(1024e3)
    });
    node.sim().open_gate("more").unwrap();
    node.wait_metrics("more than one link carries", |m| bytes(m).is_none());
    node.sim().open_gate("up").unwrap();
    let page = node.wait_metrics("what all carry", |m| bytes(m) == Some(10_001.0 * 1024e3));
    assert_eq!(page.value("gpu_nvlink_links_up", &[FIRST]), Some(18.0));
}

#[test]
fn a_driver_that_waits_for_no_event_has_no_gpu_registered() {
    let node = foreign();
    node.wait_said(&["nvmlEventSetWait_v2"]);
    let metric = [("metric", "gpu_driver_events_registered")];
    node.wait_metrics("it is unsupported", |m| {
        assert_eq!(m.all("gpu_driver_events_registered", &[]).len(), 0);
        m.value("gpu_exporter_metric_unsupported", &metric) == Some(2.0)
    });
}

#[test]
fn profiling_counters_that_read_nothing_of_a_busy_gpu_are_withdrawn() {
    let node = Node::start("tests/scenarios/gpm-zero.toml");
    let ratios = |m: &Metrics, gpu| m.all("gpu_gpm_active_ratio", &[gpu, ("unit", "sm")]);
    let zero =
        |m: &Metrics| m.value("gpu_exporter_readings_dropped_total", &[FIRST, ("reason", "contradicted")]);
    node.wait_metrics("activity of both", |m| [FIRST, SECOND].iter().all(|gpu| ratios(m, *gpu).len() == 1));
    assert_eq!(zero(&node.metrics()), Some(0.0));
    node.sim().open_gate("zero").unwrap();
    let page = node.wait_metrics("withdrawn", |m| m.all("gpu_gpm_active_ratio", &[FIRST]).is_empty());
    assert!(zero(&page) > Some(0.0));
    assert_eq!(ratios(&page, SECOND).len(), 1, "the other GPU keeps its values");
    node.wait_said(&["GPU 0", "profiling counters"]);
    let bytes = |m: &Metrics| m.value("gpu_gpm_pcie_bytes_total", &[FIRST, ("direction", "tx")]);
    let before = bytes(&node.metrics());
    node.hold("nothing is added up", Duration::from_millis(500), |node| bytes(&node.metrics()) == before);
    node.sim().close_gate("zero").unwrap();
    node.wait_metrics("values again", |m| ratios(m, FIRST).iter().any(|ratio| *ratio > 0.0));
}

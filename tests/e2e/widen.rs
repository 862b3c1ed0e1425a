//! What NVML tells beyond the basics: links, fabric, errors, repairs, processes, video, virtual GPUs.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::node::{Metrics, Node, Setup};

/// A host with the kernel's files about GPU 0, its processes, and a switch.
fn host() -> TempDir {
    let root = TempDir::new().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let device = "sys/bus/pci/devices/0000:00:06.0";
    write(&format!("{device}/aer_dev_correctable"), "RxErr 3\nBadTLP 1\nTOTAL_ERR_COR 4\n");
    write(&format!("{device}/aer_dev_nonfatal"), "Undefined 0\nTOTAL_ERR_NONFATAL 0\n");
    write(&format!("{device}/aer_dev_fatal"), "Undefined 0\nDLP 2\nTOTAL_ERR_FATAL 2\n");
    write("proc/4200002/comm", "trainer\n");
    write("proc/driver/nvidia-nvswitch/devices/0000:83:00.0/information", "BIOS Version: 92.10.14.00.01\n");
    write("proc/sys/kernel/random/boot_id", "11111111-2222-4333-8444-555555555555\n");
    root
}

fn widened(root: &Path) -> Node {
    let node = Setup::new("tests/scenarios/widen.toml")
        .with("HOST__ROOT", root.to_str().unwrap())
        .with("PROCESSES__PER_PROCESS", "true")
        .with("PROCESSES__MAX_PER_GPU", "2")
        .start();
    node.wait_ready();
    // The rare, the slow and the nvlink tier of both GPUs have been read, and the switch.
    node.wait_metrics("all tiers", |m| {
        let has = |name: &str| ["0", "1"].iter().all(|gpu| !m.all(name, &[("gpu", gpu)]).is_empty());
        m.all("gpu_repair_pending", &[]).len() == 4
            && m.all("gpu_nvlink_links_up", &[]).len() == 2
            && has("gpu_nvlink_link_bytes_total")
            && has("gpu_nvlink_errors_total")
            && !m.all("gpu_nvswitch_info", &[]).is_empty()
    });
    node
}

const GPU: (&str, &str) = ("gpu", "0");

#[test]
fn links_and_fabric_are_reported_with_what_is_wrong() {
    let root = host();
    let node = widened(root.path());
    let m = node.metrics();
    assert_eq!(m.all("gpu_nvlink_links", &[]), [18.0, 18.0]);
    assert_eq!(m.all("gpu_nvlink_links_up", &[]), [17.0, 18.0]);
    assert_eq!(m.value("gpu_nvlink_up", &[GPU, ("link", "5")]), Some(0.0));
    assert_eq!(m.all("gpu_nvlink_up", &[GPU]).iter().sum::<f64>(), 17.0);
    let info = [GPU, ("link", "3"), ("version", "6"), ("remote_type", "switch"), ("remote_link", "9")];
    let ends = json_alone(&node, "gpu_nvlink_info");
    let of_first = |end: &&serde_json::Value| end["gpu"] == "0";
    assert!(ends.iter().any(|end| info.iter().all(|(name, value)| end[*name] == *value)), "{ends:?}");
    assert_eq!(ends.iter().filter(of_first).count(), 17, "a link that is down has no other end");
    assert_eq!(m.value("gpu_nvlink_speed_bytes_per_second", &[GPU]), Some(12.5e9), "the slowest");
    assert_eq!(m.value("gpu_nvlink_speed_bytes_per_second", &[("gpu", "1")]), Some(26.562e9));
    for (error, count) in [("dl_replay", 7.0), ("dl_recovery", 2.0), ("dl_crc_flit", 11.0)] {
        let of_link = [GPU, ("link", "3"), ("error", error)];
        assert_eq!(m.value("gpu_nvlink_link_errors_total", &of_link), Some(count));
        assert_eq!(m.value("gpu_nvlink_errors_total", &[GPU, ("error", error)]), Some(count));
    }
    assert_eq!(m.all("gpu_nvlink_link_errors_total", &[GPU]).len(), 3, "links without errors are left out");
    assert_eq!(
        m.value("gpu_nvlink_lane_errors_total", &[GPU, ("error", "dl_crc_data")]),
        Some(144.0),
        "as recorded"
    );

    // Totals of all links, not of link 0; both count KiB.
    let tx = ("direction", "tx");
    assert_eq!(m.value("gpu_nvlink_bytes_total", &[GPU, tx]), Some(1000.0 * 1024.0));
    assert_eq!(m.value("gpu_nvlink_link_bytes_total", &[GPU, tx, ("link", "3")]), Some(500.0 * 1024.0));
    assert_eq!(m.all("gpu_nvlink_raw_bytes_total", &[GPU]).len(), 2);

    assert_eq!(m.value("gpu_fabric_state", &[GPU, ("state", "completed")]), Some(1.0));
    assert_eq!(m.all("gpu_fabric_state", &[GPU]).iter().sum::<f64>(), 1.0);
    assert_eq!(m.value("gpu_fabric_info", &[GPU, ("clique_id", "4"), ("cluster_uuid", "")]), Some(1.0));
    for (fault, there) in
        [("degraded_bandwidth", 1.0), ("route_unhealthy", 0.0), ("incorrect_configuration", 1.0)]
    {
        assert_eq!(m.value("gpu_fabric_fault", &[GPU, ("fault", fault)]), Some(there), "{fault}");
    }
    assert!(m.all("gpu_fabric_fault", &[("gpu", "1")]).is_empty(), "what it cannot tell is not 0");
    let switch = [("pci_address", "0000:83:00.0"), ("firmware_version", "92.10.14.00.01")];
    assert_eq!(m.value("gpu_nvswitch_info", &switch), Some(1.0));
}

#[test]
fn errors_and_repairs_are_reported() {
    let root = host();
    let m = widened(root.path()).metrics();
    let sram =
        |counter, error| m.value("gpu_ecc_sram_errors", &[GPU, ("counter", counter), ("error", error)]);
    assert_eq!(sram("aggregate", "uncorrected_parity"), Some(1.0));
    assert_eq!(sram("aggregate", "uncorrected_secded"), Some(2.0));
    assert_eq!(sram("aggregate", "corrected"), Some(3.0));
    assert_eq!(sram("volatile", "uncorrected_parity"), Some(4.0));
    assert_eq!(sram("volatile", "uncorrected_secded"), Some(5.0));
    assert_eq!(sram("volatile", "corrected"), Some(6.0));
    for (unit, count) in [("l2", 7.0), ("sm", 8.0), ("pcie", 9.0), ("mcu", 10.0), ("other", 11.0)] {
        assert_eq!(m.value("gpu_ecc_sram_uncorrected_errors", &[GPU, ("unit", unit)]), Some(count), "{unit}");
    }
    assert_eq!(m.all("gpu_ecc_sram_threshold_exceeded", &[]), [1.0, 0.0]);
    assert_eq!(m.value("gpu_row_remap_banks", &[GPU, ("spare_rows", "max")]), Some(3070.0));
    assert_eq!(m.all("gpu_repair_pending", &[("part", "tpc")]), [1.0, 0.0]);
    assert_eq!(m.value("gpu_recovery_action", &[GPU, ("recovery_action", "node_reboot")]), Some(1.0));
    assert_eq!(m.all("gpu_recovery_action", &[GPU]).iter().sum::<f64>(), 1.0);
    assert_eq!(m.value("gpu_pcie_errors_total", &[GPU, ("error", "correctable")]), Some(21.0));
    assert_eq!(m.value("gpu_pcie_errors_total", &[GPU, ("error", "lane")]), Some(22.0));
    assert_eq!(m.value("gpu_pcie_recoveries_total", &[GPU]), Some(23.0));
    for (severity, count) in [("correctable", 4.0), ("non_fatal", 0.0), ("fatal", 2.0)] {
        assert_eq!(m.value("gpu_pcie_aer_errors_total", &[GPU, ("severity", severity)]), Some(count));
    }
    assert!(m.all("gpu_pcie_aer_errors_total", &[("gpu", "1")]).is_empty(), "no files, no counts");
    assert_eq!(m.value("gpu_info", &[GPU, ("virtualization_mode", "passthrough")]), Some(1.0));
}

#[test]
fn processes_are_bounded_by_memory_and_named_by_the_kernel() {
    let root = host();
    let m = widened(root.path()).metrics();
    let memory = |pid| m.value("gpu_process_memory_used_bytes", &[GPU, ("pid", pid)]);
    assert_eq!(memory("4200002"), Some(4.0 * 1073741824.0));
    assert_eq!(memory("4200004"), Some(3.0 * 1073741824.0));
    assert_eq!(m.all("gpu_process_memory_used_bytes", &[]).len(), 2);
    assert_eq!(m.all("gpu_processes_dropped", &[]), [2.0, 0.0]);
    let named = [("pid", "4200002"), ("process_name", "trainer"), ("process_type", "compute")];
    assert_eq!(m.value("gpu_process_info", &named), Some(1.0));
    let ended = [("pid", "4200004"), ("process_name", ""), ("process_type", "graphics")];
    assert_eq!(m.value("gpu_process_info", &ended), Some(1.0));
    // The still GPU does nothing: no sample of a process that is there is 0.
    assert_eq!(m.value("gpu_process_utilization_ratio", &[("pid", "4200002"), ("engine", "sm")]), Some(0.0));
}

#[test]
fn processes_have_no_series_unless_asked_for() {
    let node = Node::start("tests/scenarios/widen.toml");
    let m = node.wait_metrics("the counts", |m| m.all("gpu_processes", &[]).len() == 6);
    assert!(!m.0.iter().any(|(name, ..)| name.starts_with("gpu_process_")));
    assert_eq!(node.sim().calls_of("nvmlDeviceGetProcessUtilization"), 0);
}

#[test]
fn a_gpu_without_links_is_asked_for_them_once() {
    let node = Node::start("tests/scenarios/still-l4.toml");
    node.wait_metrics("the rare tier", |m| m.value("gpu_energy_joules_total", &[]).is_some());
    let states = node.sim().calls_of("nvmlDeviceGetNvLinkState");
    let visits = |m: &Metrics| {
        m.value("gpu_exporter_driver_calls_total", &[("call", "nvmlDeviceGetEncoderStats")]).unwrap_or(0.0)
    };
    let before = visits(&node.metrics());
    let m = node.wait_metrics("more visits", |m| visits(m) > before + 3.0);
    assert_eq!(node.sim().calls_of("nvmlDeviceGetNvLinkState"), states);
    assert!(states <= 1, "{states} calls for the state of links that are not there");
    assert!(!m.0.iter().any(|(name, ..)| name.starts_with("gpu_nvlink_")));
    for metric in ["gpu_nvlink_links", "gpu_nvlink_bytes_total", "gpu_nvlink_up", "gpu_nvlink_errors_total"] {
        assert_eq!(m.value("gpu_exporter_metric_unsupported", &[("metric", metric)]), Some(1.0), "{metric}");
    }
}

#[test]
fn answers_that_newer_drivers_or_no_driver_should_give_are_missing_with_their_reason() {
    let node = Node::start("tests/scenarios/codes.toml");
    let m = node.wait_metrics("the rare tier of both", |m| {
        m.all("gpu_nvlink_up", &[]).len() == 17 + 18 + 18 && m.all("gpu_fabric_info", &[]).len() == 3
    });
    for name in [
        "gpu_ecc_sram_errors",
        "gpu_row_remap_banks",
        "gpu_repair_pending",
        "gpu_encoder_sessions",
        "gpu_fbc_sessions",
        "gpu_persistence_mode_enabled",
        "gpu_pcie_replays_total",
        "gpu_recovery_action",
        "gpu_nvlink_speed_bytes_per_second",
    ] {
        assert!(m.all(name, &[GPU]).is_empty(), "{name}");
        assert!(!m.all(name, &[("gpu", "1")]).is_empty(), "{name} of the GPU that is well");
    }
    for error in ["resources", "unknown", "argument", "busy", "not_found", "timeout"] {
        let count = m.value("gpu_exporter_driver_error_kinds_total", &[("error", error)]);
        assert!(count >= Some(1.0), "{error}: {count:?}");
    }
    let unsupported = |metric| m.value("gpu_exporter_metric_unsupported", &[("metric", metric)]);
    assert_eq!(unsupported("gpu_encoder_sessions"), Some(1.0), "deprecated is unsupported");
    assert_eq!(unsupported("gpu_fbc_sessions"), None, "not ready is a failure");

    // The fabric answered in its oldest layout, which knows of no faults.
    assert_eq!(m.value("gpu_fabric_info", &[GPU, ("clique_id", "7")]), Some(1.0));
    assert_eq!(unsupported("gpu_fabric_fault"), Some(3.0), "nor do those of the others, in the newest");

    // One bad value or failed field leaves out itself alone.
    let total = |direction| m.value("gpu_nvlink_bytes_total", &[GPU, ("direction", direction)]);
    assert!(total("tx").is_none() && total("rx").is_some());
    assert_eq!(m.all("gpu_nvlink_link_bytes_total", &[GPU]).len(), 35);
    assert_eq!(m.all("gpu_pcie_errors_total", &[GPU]).len(), 10);
    assert_eq!(m.all("gpu_nvlink_errors_total", &[GPU]).len(), 2, "no sum without a link");
    let lanes = |error| m.value("gpu_nvlink_lane_errors_total", &[GPU, ("error", error)]);
    assert!(lanes("dl_crc_data").is_none() && lanes("dl_ecc_data").is_some(), "no sum without a link");
    let ends = json_alone(&node, "gpu_nvlink_info");
    let links: Vec<_> = ends.iter().filter(|end| end["gpu"] == "0").map(|end| &end["link"]).collect();
    assert!(links.len() == 17 && !links.contains(&&"4".into()), "no identity with a hole: {links:?}");

    // A state that cannot be read leaves its link out, and the number of links that are up.
    let second = ("gpu", "2");
    assert_eq!(m.all("gpu_nvlink_up", &[second]).len(), 17);
    assert!(m.value("gpu_nvlink_links_up", &[second]).is_none());
    assert_eq!(m.all("gpu_nvlink_links_up", &[]), [18.0, 18.0]);
}

#[test]
fn video_sessions_and_virtual_gpus_are_reported() {
    let node = Node::start("tests/scenarios/video-vgpu.toml");
    let vgpu = ("vgpu_uuid", "00000000-0000-4000-9000-000000000001");
    let m = node.wait_metrics("a sample", |m| {
        m.value("gpu_vgpu_utilization_ratio", &[vgpu, ("engine", "sm")]).is_some()
            && m.value("gpu_encoder_sessions", &[GPU]).is_some()
    });
    assert_eq!(m.value("gpu_encoder_sessions", &[GPU]), Some(3.0));
    assert_eq!(m.value("gpu_encoder_frames_per_second", &[GPU]), Some(30.0));
    assert_eq!(m.value("gpu_encoder_latency_seconds", &[GPU]), Some(0.005));
    assert_eq!(m.value("gpu_fbc_sessions", &[GPU]), Some(1.0));
    assert_eq!(m.value("gpu_fbc_latency_seconds", &[GPU]), Some(0.005));
    assert!(m.value("gpu_encoder_latency_seconds", &[("gpu", "1")]).is_none(), "no sessions, no latency");
    let info = [vgpu, ("vgpu_type", "NVIDIA L4-6Q"), ("vm_id", "vm-1")];
    assert_eq!(m.value("gpu_vgpu_info", &info), Some(1.0));
    assert_eq!(m.value("gpu_vgpu_memory_used_bytes", &[vgpu]), Some(2.0 * 1073741824.0));
    let page = node.wait_metrics("a sample of every engine", |m| {
        m.all("gpu_vgpu_utilization_ratio", &[vgpu]).len() == 4
    });
    assert_eq!(page.value("gpu_vgpu_utilization_ratio", &[vgpu, ("engine", "sm")]).unwrap_or(0.4), 0.4);
    assert_eq!(m.all("gpu_vgpu_licensed", &[]), [1.0, 0.0]);
    assert!(m.all("gpu_vgpu_info", &[GPU]).is_empty());
}

#[test]
fn a_recovery_action_comes_and_goes() {
    let node = Node::start("tests/scenarios/recovery.toml");
    let action = |m: &Metrics, gpu: &str, action: &str| {
        m.value("gpu_recovery_action", &[("gpu", gpu), ("recovery_action", action)])
    };
    assert_eq!(action(&node.metrics(), "0", "none"), Some(1.0));
    node.sim().open_gate("sick").unwrap();
    let m = node.wait_metrics("both want something", |m| {
        action(m, "0", "gpu_reset") == Some(1.0) && action(m, "1", "drain_and_reset") == Some(1.0)
    });
    assert_eq!(action(&m, "0", "none"), Some(0.0));
    assert_eq!(action(&m, "2", "none"), Some(1.0));
    node.sim().open_gate("reset").unwrap();
    node.wait_metrics("well again", |m| action(m, "0", "none") == Some(1.0));
}

#[test]
fn the_peer_to_peer_matrix_is_in_the_json_alone() {
    let node = super::node::Node::start("tests/scenarios/still-8xh200.toml");
    node.wait_for("the matrix", |node| json_alone(node, "gpu_peer_info").len() == 8 * 7);
    for labels in json_alone(&node, "gpu_peer_info") {
        assert_ne!(labels["gpu"], labels["peer_gpu"]);
        assert_eq!((&labels["read"], &labels["nvlink"]), (&"ok".into(), &"ok".into()), "{labels}");
    }
}

/// Labels of all series of a metric that is in the JSON and on no page.
pub fn json_alone(node: &Node, metric: &str) -> Vec<serde_json::Value> {
    assert!(node.metrics().all(metric, &[]).is_empty(), "{metric} is on the page");
    let json: serde_json::Value = serde_json::from_str(&node.get("/api/v1/snapshot").1).unwrap();
    let series = json["metrics"].as_array().unwrap().iter().filter(|m| m["name"] == metric);
    series.map(|m| m["labels"].clone()).collect()
}

#[test]
fn what_is_left_off_the_page_is_read_where_another_metric_is_made_of_it() {
    let off = "gpu_recovery_action,gpu_nvlink_link_*,gpu_info,gpu_clock_hertz,gpu_cuda_cores";
    let node = Setup::new("tests/scenarios/recovery.toml").with("METRICS__EXCLUDE", off).start();
    node.wait_ready();
    node.wait_metrics("the links were summed up", |m| {
        m.value("gpu_nvlink_errors_total", &[GPU, ("error", "dl_replay")]).is_some()
    });
    node.sim().open_gate("sick").unwrap();
    let m = node.wait_metrics("the driver asks for a reset", |m| {
        m.value("gpu_unhealthy_reason", &[GPU, ("reason", "recovery_action")]) == Some(1.0)
    });
    assert!(!m.all("gpu_flops_estimate", &[GPU]).is_empty());
    for name in ["gpu_recovery_action", "gpu_nvlink_link_errors_total", "gpu_info", "gpu_clock_hertz"] {
        assert!(m.all(name, &[]).is_empty(), "{name}");
        assert!(m.all("gpu_exporter_metric_unsupported", &[("metric", name)]).is_empty(), "{name}");
    }
}

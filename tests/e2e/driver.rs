//! The driver comes, goes and comes back; GPUs are lost; values cannot be true.

use super::node::{Node, Setup};

#[test]
fn a_driver_that_comes_late_is_found_without_a_restart() {
    let node = Setup::new("tests/scenarios/still-1xh200.toml").without_library().start();
    node.wait_ready();
    let m = node.metrics();
    assert_eq!(m.value("gpu_driver_up", &[]), Some(0.0));
    assert!(m.all("gpu_info", &[]).is_empty());
    assert_eq!(node.get("/livez").0, 200);
    assert!(node.get("/readyz").1.contains("libnvidia-ml"), "{}", node.get("/readyz").1);
    node.install_library();
    node.wait_metrics("the GPU", |m| m.value("gpu_up", &[("gpu", "0")]) == Some(1.0));
    assert_eq!(node.metrics().value("gpu_driver_up", &[]), Some(1.0));
}

#[test]
fn a_driver_that_goes_and_comes_back_needs_no_restart() {
    let node = Node::start("tests/scenarios/driver-gone.toml");
    assert_eq!(node.metrics().value("gpu_devices", &[]), Some(2.0));
    node.sim().open_gate("gone").unwrap();
    node.remove_library();
    let m = node.wait_metrics("the driver is away", |m| m.value("gpu_driver_up", &[]) == Some(0.0));
    assert!(m.value("gpu_power_watts", &[]).is_none());
    assert_eq!(m.all("gpu_info", &[]).len(), 2, "identity stays");
    assert_eq!(m.all("gpu_up", &[]), [0.0, 0.0]);
    assert_eq!(m.value("gpu_devices_expected", &[]), Some(2.0));
    assert_eq!(node.get("/livez").0, 200);
    assert_eq!(node.get("/readyz").0, 200, "readiness does not depend on the driver");
    assert_eq!(node.snapshot()["driver"]["state"], "away");
    node.install_library();
    node.sim().close_gate("gone").unwrap();
    node.wait_metrics("it is back", |m| {
        m.value("gpu_driver_up", &[]) == Some(1.0) && m.all("gpu_power_watts", &[]).len() == 2
    });
}

#[test]
fn a_lost_gpu_has_no_values_but_a_reason_and_the_others_are_well() {
    let node = Node::start("tests/scenarios/lost-gpu2.toml");
    node.sim().open_gate("lost").unwrap();
    let m = node.wait_metrics("GPU 2 is down", |m| m.value("gpu_up", &[("gpu", "2")]) == Some(0.0));
    assert!(m.value("gpu_power_watts", &[("gpu", "2")]).is_none());
    assert!(m.value("gpu_info", &[("gpu", "2")]).is_some());
    assert!(
        m.value("gpu_exporter_driver_errors_total", &[("gpu", "2"), ("error", "gpu_is_lost")]) >= Some(1.0)
    );
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nvml")]), Some(0.0));
    for gpu in ["0", "1", "3"] {
        assert_eq!(m.value("gpu_up", &[("gpu", gpu)]), Some(1.0));
    }
    let snapshot = node.snapshot();
    assert_eq!(snapshot["gpus"][2]["state"], "failing", "{}", snapshot["gpus"][2]);
    assert_eq!(node.metrics().value("gpu_exporter_sampler_starts_total", &[]), Some(1.0));
}

#[test]
fn values_that_cannot_be_true_are_dropped_and_counted() {
    let node = Node::start("tests/scenarios/blank.toml");
    let m = node.metrics();
    for name in
        ["gpu_power_watts", "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_energy_joules_total"]
    {
        assert!(m.value(name, &[("gpu", "0")]).is_none(), "{name}");
        assert!(m.value(name, &[("gpu", "1")]).is_some(), "{name} of the GPU that is well");
    }
    for reason in ["blank", "out_of_range"] {
        let dropped = m.value("gpu_exporter_readings_dropped_total", &[("gpu", "0"), ("reason", reason)]);
        assert!(dropped >= Some(1.0), "{reason}");
    }
    assert_eq!(m.value("gpu_up", &[("gpu", "0")]), Some(1.0), "the rest of that GPU is served");
}

#[test]
fn a_mig_layout_change_leaves_no_stale_series() {
    let node = Node::start("tests/scenarios/mig-reshaped.toml");
    let before = node.metrics();
    assert_eq!(before.all("gpu_mig_info", &[]).len(), 2);
    assert_eq!(before.all("gpu_mig_memory_total_bytes", &[("profile", "3g.71gb")]).len(), 2);
    node.sim().open_gate("reshape").unwrap();
    let m = node.wait_metrics("the new layout", |m| {
        m.all("gpu_mig_memory_total_bytes", &[("profile", "1g.18gb")]).len() == 3
    });
    assert!(m.all("gpu_mig_info", &[("profile", "3g.71gb")]).is_empty());
    assert!(m.all("gpu_mig_memory_total_bytes", &[("profile", "3g.71gb")]).is_empty());
    node.wait_metrics("the board's facts, once", |m| {
        m.all("gpu_power_watts", &[]).len() == 1 && m.all("gpu_clock_max_hertz", &[]).len() == 4
    });
}

#[test]
fn a_gpu_lost_before_the_start_is_told_and_does_not_keep_the_daemon_from_being_ready() {
    let node = Node::start("tests/scenarios/lost-handle.toml");
    let m = node.metrics();
    assert_eq!(m.all("gpu_up", &[]), [1.0, 1.0, 1.0, 0.0]);
    assert_eq!(m.value("gpu_up", &[("gpu", "3"), ("uuid", "")]), Some(0.0));
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nvml")]), Some(0.0));
    assert_eq!(m.value("gpu_devices_expected", &[]), Some(4.0));
    assert!(node.get("/").1.contains("no handle"), "the page says why");
}

#[test]
fn what_a_driver_could_not_tell_at_first_is_asked_again() {
    let node = Node::start("tests/scenarios/stumbles.toml");
    let m = node.metrics();
    assert!(m.all("gpu_info", &[]).is_empty(), "an identity with a hole would be another identity");
    assert_eq!(m.all("gpu_clock_max_hertz", &[]).len(), 3);
    assert!(m.value("gpu_performance_state", &[]).is_none(), "32 is no P-state");
    node.sim().open_gate("well").unwrap();
    node.wait_metrics("all is known", |m| {
        m.value("gpu_info", &[("serial", "1650000000000")]).is_some()
            && m.all("gpu_clock_max_hertz", &[]).len() == 4
            && m.value("gpu_exporter_collector_up", &[("collector", "nvml")]) == Some(1.0)
    });
}

#[test]
fn an_instance_made_anew_with_the_same_ids_is_another_one() {
    let node = Node::start("tests/scenarios/mig-recreated.toml");
    let mig_uuid = |m: &super::node::Metrics| {
        m.0.iter()
            .find(|(name, _, _)| name == "gpu_mig_info")
            .map(|(_, labels, _)| labels["mig_uuid"].clone())
    };
    let before = mig_uuid(&node.metrics()).expect("an instance");
    node.sim().open_gate("recreate").unwrap();
    node.wait_metrics("the new one alone", |m| {
        m.all("gpu_mig_info", &[]).len() == 1 && mig_uuid(m).is_some_and(|now| now != before)
    });
}

#[test]
fn a_layout_that_cannot_be_read_is_kept_and_nothing_stands_twice() {
    let node = Node::start("tests/scenarios/mig-unreadable.toml");
    node.sim().open_gate("fails").unwrap();
    let errors = |m: &super::node::Metrics| {
        m.value("gpu_exporter_driver_errors_total", &[("error", "timeout")]).unwrap_or(0.0)
    };
    let m = node.wait_metrics("some failures", |m| errors(m) >= 3.0);
    assert_eq!(m.all("gpu_mig_info", &[]).len(), 2);
    assert_eq!(m.all("gpu_mig_mode_enabled", &[]), [1.0]);

    let node =
        Setup::new("tests/scenarios/mig-unreadable.toml").with("METRICS__EXCLUDE", "gpu_mig_info").start();
    node.wait_ready();
    let m = node.metrics();
    assert!(m.all("gpu_mig_info", &[]).is_empty());
    assert_eq!(m.all("gpu_mig_memory_total_bytes", &[]).len(), 2);
    assert_eq!(m.all("gpu_mig_mode_enabled", &[]), [1.0]);
}

#[test]
fn a_page_with_few_metrics_tells_the_truth_all_the_same() {
    let node = Setup::new("tests/scenarios/still-1xh200.toml")
        .with("METRICS__INCLUDE", "gpu_up,gpu_driver_up,gpu_exporter_collector_up")
        .start();
    node.wait_ready();
    let m = node.metrics();
    assert_eq!(m.value("gpu_up", &[("gpu", "0")]), Some(1.0));
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nvml")]), Some(1.0));
    assert_eq!(m.0.len(), 4, "{m:?}");
}

#[test]
fn families_can_be_left_out_and_their_calls_are_not_made() {
    let node = Setup::new("tests/scenarios/still-1xh200.toml")
        .with("METRICS__EXCLUDE", "gpu_energy_*,gpu_bar1_*,gpu_exporter_driver_call_duration_*")
        .start();
    node.wait_ready();
    let m = node.metrics();
    assert!(m.value("gpu_energy_joules_total", &[]).is_none());
    assert!(m.value("gpu_power_watts", &[]).is_some());
    assert_eq!(node.sim().calls_of("nvmlDeviceGetTotalEnergyConsumption"), 0);
    assert_eq!(node.sim().calls_of("nvmlDeviceGetBAR1MemoryInfo"), 0);
    assert!(!m.0.iter().any(|(name, _, _)| name.starts_with("gpu_exporter_driver_call_duration")));
}

#[test]
fn the_cap_on_series_drops_the_last_of_the_catalogue_and_counts() {
    let node = Setup::new("tests/scenarios/still-8xh200.toml").with("METRICS__MAX_SERIES", "200").start();
    node.wait_ready();
    let m = node.metrics();
    let about_gpus = m.0.iter().filter(|(_, labels, _)| labels.contains_key("gpu")).count();
    assert!((170..=200).contains(&about_gpus), "{about_gpus}: a histogram is left out as a whole");
    assert_eq!(m.all("gpu_info", &[]).len(), 8);
    for more in [0.0, 100.0, 1000.0] {
        node.wait_metrics("the rest is counted", |m| {
            m.value("gpu_exporter_series_dropped_total", &[]) > Some(more)
        });
    }
    assert!(m.value("gpu_exporter_series", &[]).is_some(), "series about the node stay");
}

#[test]
fn the_number_of_gpus_seen_is_kept_over_a_restart() {
    let node = Node::start("tests/scenarios/still-8xh200.toml");
    let file = node.state_dir().join("inventory.json");
    node.wait_for("the inventory", |_| {
        std::fs::read_to_string(&file).is_ok_and(|t| t.contains("\"devices\":8"))
    });
    let other = Setup::new("tests/scenarios/still-1xh200.toml").with_state_of(&node).start();
    other.wait_ready();
    assert_eq!(other.metrics().value("gpu_devices", &[]), Some(1.0));
    assert_eq!(other.metrics().value("gpu_devices_expected", &[]), Some(8.0));
}

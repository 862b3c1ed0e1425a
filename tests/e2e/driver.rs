//! The driver comes, goes and comes back; GPUs are lost; values cannot be true.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::node::{Node, Setup, signal};

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
    assert!(m.value("gpu_exporter_driver_errors_total", &[("gpu", "2")]) >= Some(1.0));
    assert!(m.value("gpu_exporter_driver_error_kinds_total", &[("error", "gpu_is_lost")]) >= Some(1.0));
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
fn a_gpu_lost_before_the_start_is_reported_and_does_not_keep_the_daemon_from_being_ready() {
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
fn an_instance_created_again_with_the_same_ids_is_another_one() {
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
fn a_layout_that_cannot_be_read_is_kept_and_nothing_is_listed_twice() {
    let node = Node::start("tests/scenarios/mig-unreadable.toml");
    node.sim().open_gate("fails").unwrap();
    let errors = |m: &super::node::Metrics| {
        m.value("gpu_exporter_driver_error_kinds_total", &[("error", "timeout")]).unwrap_or(0.0)
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
    let wanted = ["gpu_up", "gpu_driver_up", "gpu_exporter_collector_up"];
    assert!(m.0.iter().all(|(name, _, _)| wanted.contains(&name.as_str())), "{m:?}");
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

fn order(node: &Node, words: &[&str]) -> (bool, String) {
    let answer = node.command(words).output().unwrap();
    let said = [answer.stdout, answer.stderr].concat();
    (answer.status.success(), String::from_utf8(said).unwrap())
}

/// Nothing is measured, the identity of GPUs is reported, and nothing raises an alarm.
fn paused(m: &super::node::Metrics) -> bool {
    m.value("gpu_driver_paused", &[]) == Some(1.0)
        && m.value("gpu_exporter_samplers", &[]) == Some(0.0)
        && ["gpu_driver_up", "gpu_up", "gpu_power_watts", "gpu_clock_max_hertz"]
            .iter()
            .all(|name| m.all(name, &[]).is_empty())
}

fn serving(m: &super::node::Metrics) -> bool {
    m.value("gpu_driver_paused", &[]) == Some(0.0)
        && m.all("gpu_up", &[]) == [1.0]
        && m.all("gpu_power_watts", &[]).len() == 1
}

/// Whether a process of the daemon's, itself included, has the library mapped.
fn library_is_mapped(node: &Node) -> bool {
    let library = simgpu::library_path().unwrap();
    let name = library.file_name().unwrap().to_str().unwrap().to_owned();
    let mut pids = node.samplers();
    pids.push(node.pid());
    pids.iter().any(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(&name))
    })
}

fn load_module(node: &Node, version: &str) {
    let folder = node.root().join("sys/module/nvidia");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("version"), format!("{version}\n")).unwrap();
    std::fs::write(folder.join("initstate"), "live\n").unwrap();
}

fn unload_module(node: &Node) {
    std::fs::remove_dir_all(node.root().join("sys/module/nvidia")).unwrap();
}

#[test]
fn a_released_driver_is_held_by_no_process_and_taken_up_on_request() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    assert!(library_is_mapped(&node), "the look for it works");
    let (ok, said) = order(&node, &["driver", "release"]);
    assert!(ok && said.contains("is released"), "{said}");
    assert!(node.samplers().is_empty(), "the answer comes when the sampler has ended");
    assert!(!library_is_mapped(&node));
    let m = node.wait_metrics("the pause", paused);
    assert_eq!(m.all("gpu_info", &[]).len(), 1, "who the GPU is stays");
    assert!(m.value("gpu_exporter_collector_up", &[("collector", "nvml")]).is_none());
    let driver = &node.snapshot()["driver"];
    assert_eq!(driver["state"], "paused");
    let text = driver["text"].as_str().unwrap();
    assert!(text.contains("driver released at") && text.contains("driver resume"), "{text}");
    assert!(node.get("/").1.contains("Paused: driver released at"));
    assert_eq!(node.get("/readyz").0, 200);
    let (_, said) = order(&node, &["driver", "status"]);
    assert!(said.contains("is released") && said.contains("module is not loaded"), "{said}");
    node.hold("it stays so", Duration::from_millis(500), |node| {
        node.samplers().is_empty() && paused(&node.metrics())
    });

    let (ok, said) = order(&node, &["driver", "resume"]);
    assert!(ok, "{said}");
    let m = node.wait_metrics("values again", serving);
    assert_eq!(m.value("gpu_driver_up", &[]), Some(1.0));
    assert_eq!(m.value("gpu_driver_loads_total", &[]), Some(0.0), "our own restart is no load");
    let ends = m.all("gpu_exporter_sampler_ends_total", &[]);
    assert_eq!(ends.iter().sum::<f64>(), 0.0, "and no failure");
}

#[test]
fn a_released_driver_is_taken_up_when_the_module_was_gone_and_is_back() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    load_module(&node, "580.95.05");
    let loads = "gpu_driver_loads_total";
    node.wait_metrics("it came while we looked", |m| m.value(loads, &[]) == Some(1.0));
    signal(node.pid(), Signal::SIGUSR1);
    node.wait_metrics("the pause", paused);
    signal(node.pid(), Signal::SIGUSR1);
    node.hold("the module is the same", Duration::from_millis(500), |node| paused(&node.metrics()));
    unload_module(&node);
    let m = node.wait_metrics("it is gone", |m| m.value("gpu_driver_load_timestamp_seconds", &[]).is_none());
    assert!(paused(&m));
    load_module(&node, "580.159.04");
    let m = node.wait_metrics("it is back", serving);
    assert_eq!(m.value(loads, &[]), Some(2.0));
    assert!(m.value("gpu_driver_load_timestamp_seconds", &[]) > Some(1.7e9));
    // A sampler that dies and one that is replaced load no module.
    signal(node.samplers()[0], Signal::SIGKILL);
    node.wait_metrics("another sampler", |m| {
        m.value("gpu_exporter_sampler_starts_total", &[]) >= Some(3.0) && serving(m)
    });
    assert_eq!(node.metrics().value(loads, &[]), Some(2.0));
}

#[test]
fn a_driver_in_a_hung_call_cannot_be_released_and_the_call_is_named() {
    let node = Node::start("tests/scenarios/hang-gpu3.toml");
    // Else the look at pairs of GPUs, which is the node's, may be what hangs.
    node.wait_for("the look at pairs", |node| node.get("/api/v1/snapshot").1.contains("gpu_peer_info"));
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the stall", |m| m.value("gpu_up", &[("gpu", "3")]) == Some(0.0));
    let started = std::time::Instant::now();
    let (ok, said) = order(&node, &["driver", "release"]);
    assert!(!ok && said.contains("is stuck in nvml") && said.contains("on GPU 3"), "{said}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(node.samplers().len(), 1, "never killed in a call");
    let text = node.snapshot()["driver"]["text"].to_string();
    assert!(text.contains("still held by process"), "{text}");
    node.sim().open_gate("release").unwrap();
    let m = node.wait_metrics("the release", |m| m.value("gpu_exporter_samplers", &[]) == Some(0.0));
    assert_eq!(m.value("gpu_driver_paused", &[]), Some(1.0));
}

#[test]
fn versions_of_module_and_library_are_compared() {
    let node = Setup::new("tests/scenarios/still-1xh200.toml")
        .with("DRIVER__EXPECTED_VERSION", "580.159.04")
        .start();
    load_module(&node, "580.159.04");
    let matches = |m: &super::node::Metrics, against: &str| {
        m.value("gpu_driver_version_matches", &[("against", against)])
    };
    node.wait_metrics("the declared one", |m| matches(m, "declared") == Some(1.0));
    assert_eq!(matches(&node.metrics(), "library"), None, "there is none on disk that tells its version");
    node.remove_library();
    node.install_library_of_version("580.159.04");
    node.wait_metrics("the one on disk", |m| matches(m, "library") == Some(1.0));
    unload_module(&node);
    load_module(&node, "570.86.15");
    node.wait_metrics("another", |m| {
        matches(m, "declared") == Some(0.0) && matches(m, "library") == Some(0.0)
    });
    assert_eq!(node.metrics().value("gpu_host_boot_timestamp_seconds", &[]), Some(1_700_000_000.0));
}

#[test]
fn a_library_of_another_version_than_the_module_is_a_state_of_its_own() {
    let node = Setup::new("tests/scenarios/library-mismatch.toml").start();
    let mismatch = "gpu_driver_library_mismatch";
    let m = node.wait_metrics("the mismatch", |m| m.value(mismatch, &[]) == Some(1.0));
    assert_eq!(m.value("gpu_driver_up", &[]), Some(0.0));
    assert_eq!(node.snapshot()["driver"]["state"], "library_mismatch");
    assert!(node.get("/").1.contains("differ in version"));
    node.sim().open_gate("rebooted").unwrap();
    let m = node.wait_metrics("a driver", |m| m.value("gpu_driver_up", &[]) == Some(1.0));
    assert_eq!(m.value(mismatch, &[]), Some(0.0));
}

#[test]
fn a_gpu_that_was_lost_and_answers_again_was_reset_once() {
    let node = Node::start("tests/scenarios/lost-and-reset.toml");
    let resets = |m: &super::node::Metrics, gpu| m.value("gpu_resets_total", &[("gpu", gpu)]);
    assert_eq!(resets(&node.metrics(), "0"), Some(0.0), "born at 0");
    node.sim().open_gate("lost").unwrap();
    node.wait_metrics("GPU 1 is down", |m| m.value("gpu_up", &[("gpu", "1")]) == Some(0.0));
    node.sim().open_gate("reset").unwrap();
    let m = node.wait_metrics("it is back", |m| resets(m, "1") == Some(1.0));
    assert_eq!(resets(&m, "0"), Some(0.0));
    node.hold("once", Duration::from_millis(500), |node| resets(&node.metrics(), "1") == Some(1.0));
    assert_eq!(node.metrics().value("gpu_driver_loads_total", &[]), Some(0.0));
}

#[test]
fn the_profiling_counters_can_be_left_to_a_profiler() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    let (ok, said) = order(&node, &["gpm", "off"]);
    assert!(ok && said.contains("A profiler can read them"), "{said}");
    let (ok, said) = order(&node, &["gpm", "on"]);
    assert!(ok && said.contains("reads the profiling counters again"), "{said}");
    assert_eq!(node.metrics().value("gpu_exporter_sampler_starts_total", &[]), Some(1.0));
}

//! A driver call that does not return, on one GPU or with the library's lock held.

use std::time::Duration;

use nix::sys::signal::Signal;

use model::catalog::{METRICS, Tier};

use super::node::{Node, Setup, alive, signal};
use super::widen::json_alone;

const STARTS: &str = "gpu_exporter_sampler_starts_total";
const ENDS: &str = "gpu_exporter_sampler_ends_total";
const UUID_3: &str = "GPU-00000000-0000-4000-8000-000000000004";

/// Measured values of one GPU: everything but identity and what the exporter itself counts and says.
fn measured(m: &super::node::Metrics, gpu: &str) -> usize {
    m.0.iter()
        .filter(|(name, labels, _)| {
            let def = METRICS.iter().find(|def| def.name == name);
            // Parts of a histogram have no entry of their own.
            let measured = def.is_some_and(|def| !matches!(def.tier, Tier::Identity | Tier::Computed));
            labels.get("gpu").is_some_and(|g| g == gpu) && measured
        })
        .count()
}

fn hang_gpu_3(node: &Node) {
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the stall", |m| m.value("gpu_up", &[("gpu", "3")]) == Some(0.0));
}

#[test]
fn a_hung_gpu_is_withdrawn_and_the_other_seven_go_on() {
    let node = Node::start("tests/scenarios/hang-gpu3.toml");
    let samplers = node.samplers();
    assert_eq!(samplers.len(), 1);
    assert!(measured(&node.metrics(), "3") > 50);
    hang_gpu_3(&node);
    let m = node.metrics();
    assert_eq!(measured(&m, "3"), 0, "measured values of GPU 3 are gone");
    assert!(m.value("gpu_info", &[("uuid", UUID_3)]).is_some(), "its identity stays");
    let stuck = "gpu_exporter_driver_call_stuck_seconds";
    let first = m.value(stuck, &[("uuid", UUID_3)]).expect("the stall is published");
    node.wait_metrics("the stall rises", |m| m.value(stuck, &[("gpu", "3")]) > Some(first + 0.3));
    node.hold("the others are fresh and the page is quick", Duration::from_secs(2), |node| {
        let (status, _, _) = node.get_timed("/metrics");
        let m = node.metrics();
        status == 200
            && m.value("gpu_driver_stuck", &[]) == Some(0.0)
            && (0..8).filter(|g| *g != 3).all(|g| {
                let g = g.to_string();
                measured(&m, &g) > 50 && m.value("gpu_up", &[("gpu", &g)]) == Some(1.0)
            })
    });
    assert_eq!(node.samplers(), samplers, "nothing was replaced");

    node.sim().open_gate("release").unwrap();
    let m = node.wait_metrics("GPU 3 is back", |m| m.value("gpu_up", &[("gpu", "3")]) == Some(1.0));
    assert!(m.value(stuck, &[]).is_none());
    node.wait_metrics("all its values", |m| measured(m, "3") == measured(m, "2"));
    assert_eq!(node.samplers(), samplers, "without a new process");
}

#[test]
fn a_pair_of_gpus_that_hangs_with_one_of_them_is_no_second_sick_one() {
    let node = Node::start("tests/scenarios/hang-peers.toml");
    let samplers = node.samplers();
    let of_pair = [("call", "nvmlDeviceGetTopologyCommonAncestor")];
    let stuck = "gpu_exporter_node_call_stuck_seconds";
    node.wait_metrics("the pair hangs, and it is reported", |m| m.value(stuck, &of_pair) > Some(0.5));
    hang_gpu_3(&node);
    node.hold("the others go on", Duration::from_secs(2), |node| {
        let up = node.metrics().all("gpu_up", &[]);
        up.iter().sum::<f64>() == 7.0 && node.samplers() == samplers
    });
    node.sim().open_gate("release").unwrap();
    node.wait_for("all pairs", |node| json_alone(node, "gpu_peer_info").len() == 8 * 7);
    assert_eq!(node.samplers(), samplers);
    assert_eq!(node.metrics().value(stuck, &of_pair), None);
}

#[test]
fn sigterm_ends_a_daemon_with_a_hung_gpu_and_leaves_only_what_is_stuck() {
    let mut node = Node::start("tests/scenarios/hang-gpu3.toml");
    hang_gpu_3(&node);
    let samplers = node.samplers();
    let (status, took) = node.terminate();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(samplers.iter().all(|pid| alive(*pid)), "a process in a driver call is never killed");
    node.sim().open_gate("release").unwrap();
    for pid in samplers {
        node.wait_until_gone(pid);
    }
}

fn hang_lock(node: &Node) {
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the driver is stuck", |m| m.value("gpu_driver_stuck", &[]) == Some(1.0));
}

#[test]
fn a_hang_under_the_drivers_lock_withdraws_all_and_starts_no_third_process() {
    let node = Node::start("tests/scenarios/hang-lock.toml");
    hang_lock(&node);
    let m = node.metrics();
    for gpu in 0..8 {
        assert_eq!(measured(&m, &gpu.to_string()), 0, "GPU {gpu}");
        assert!(m.value("gpu_info", &[("gpu", &gpu.to_string())]).is_some());
    }
    assert_eq!(m.value("gpu_driver_up", &[]), Some(0.0));
    assert_eq!(m.value("gpu_devices", &[]), None);
    let samplers = node.samplers();
    assert_eq!(samplers.len(), 2);
    node.hold("exactly two samplers", Duration::from_secs(2), |node| node.samplers() == samplers);
    assert_eq!(node.metrics().value("gpu_exporter_samplers", &[]), Some(2.0));

    node.sim().open_gate("release").unwrap();
    let m = node.wait_metrics("all recovers", |m| {
        m.value("gpu_driver_stuck", &[]) == Some(0.0)
            && (0..8).all(|g| m.value("gpu_up", &[("gpu", &g.to_string())]) == Some(1.0))
    });
    assert_eq!(m.value("gpu_driver_up", &[]), Some(1.0));
    node.wait_for("one sampler is left", |node| node.samplers().len() == 1);
}

/// A node whose sampler has failed once: after another failure no new one starts for longer than a test takes.
fn failed_once(scenario: &str) -> Node {
    let most = [("SAMPLER__RESTART_BACKOFF", "1m"), ("SAMPLER__RESTART_BACKOFF_MAX", "1m")];
    let node =
        most.into_iter().fold(Setup::new(scenario), |setup, (key, value)| setup.with(key, value)).start();
    node.wait_ready();
    signal(node.samplers()[0], Signal::SIGKILL);
    node.wait_metrics("a new sampler", |m| {
        m.value(STARTS, &[]) == Some(2.0) && m.all("gpu_up", &[]).iter().sum::<f64>() == 8.0
    });
    node
}

#[test]
fn a_driver_that_hangs_while_no_sampler_may_start_is_stuck_at_once() {
    let node = failed_once("tests/scenarios/hang-lock.toml");
    hang_lock(&node);
    assert_eq!(node.metrics().value(STARTS, &[]), Some(2.0), "before the next sampler");
    node.sim().open_gate("release").unwrap();
    let m = node.wait_metrics("it answers", |m| m.value("gpu_driver_stuck", &[]) == Some(0.0));
    assert_eq!(m.value(STARTS, &[]), Some(2.0));
}

#[test]
fn two_hung_gpus_while_no_sampler_may_start_are_no_stuck_driver() {
    let node = failed_once("tests/scenarios/hang-two.toml");
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("the sampler is abandoned", |m| m.value(ENDS, &[("reason", "stuck")]) == Some(1.0));
    // Longer than the deadline after which the workers of the others are no longer well.
    node.hold("not stuck as a whole", Duration::from_secs(4), |node| {
        let m = node.metrics();
        m.value("gpu_driver_stuck", &[]) == Some(0.0) && m.value(STARTS, &[]) == Some(2.0)
    });
}

#[test]
fn sigterm_ends_a_daemon_with_a_stuck_driver() {
    let mut node = Node::start("tests/scenarios/hang-lock.toml");
    hang_lock(&node);
    let (status, took) = node.terminate();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn two_hung_gpus_are_left_to_the_old_process_and_the_rest_goes_to_a_new_one() {
    let node = Setup::new("tests/scenarios/hang-two.toml").start();
    node.wait_ready();
    let old = node.samplers();
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("a replacement", |m| m.value(STARTS, &[]) == Some(2.0));
    let m = node.wait_metrics("six GPUs are up", |m| {
        m.all("gpu_up", &[]).iter().sum::<f64>() == 6.0 && measured(m, "0") > 50
    });
    assert_eq!(m.value("gpu_driver_stuck", &[]), Some(0.0));
    assert_eq!(m.value(ENDS, &[("reason", "stuck")]), Some(1.0));
    assert_eq!((measured(&m, "3"), measured(&m, "5")), (0, 0));
    assert!(node.samplers().contains(&old[0]), "the stuck one is not waited for, and not killed");
    node.sim().open_gate("release").unwrap();
    node.wait_metrics("all eight are back", |m| m.all("gpu_up", &[]).iter().sum::<f64>() == 8.0);
    node.wait_for("the old process has ended", |node| node.samplers().len() == 1);
}

/// Age in seconds of the oldest value of the fast and normal tiers of every GPU but one.
fn oldest_but(node: &Node, except: u64) -> f64 {
    let snapshot = node.snapshot();
    let gpus = snapshot["gpus"].as_array().unwrap();
    let parts = gpus.iter().filter(|g| g["gpu"] != except).flat_map(|g| {
        assert_eq!(g["state"], "up", "{g}");
        g["parts"].as_array().unwrap()
    });
    let often = parts.filter(|p| p["tier"] == "fast" || p["tier"] == "normal");
    often.map(|p| p["age_seconds"].as_f64().unwrap()).fold(0.0, f64::max)
}

#[test]
fn with_the_products_own_deadlines_no_value_of_the_others_is_older_than_two_seconds() {
    let node = Setup::new("tests/scenarios/hang-energy.toml")
        .with_default_times()
        .with("SAMPLER__RARE_INTERVAL", "10s")
        .start();
    node.wait_ready();
    node.sim().open_gate("hang").unwrap();
    // One GPU holds the right to make expensive calls, and never gives it back.
    node.wait_for("GPU 3 hangs", |node| node.sim().calls_held() > 0);
    let started = std::time::Instant::now();
    node.hold("fresh and quick", Duration::from_secs(6), |node| {
        // The JSON's ages are those of the snapshot, which is up to a second old.
        let (status, _, took) = node.get_timed("/metrics");
        oldest_but(node, 3) < 1.0 + 0.2 && status == 200 && took < Duration::from_millis(250)
    });
    let m = node.metrics();
    assert_eq!(m.value("gpu_up", &[("gpu", "3")]), Some(0.0));
    assert_eq!(measured(&m, "3"), 0, "after {:?}", started.elapsed());
    assert_eq!(m.value(STARTS, &[]), Some(1.0));
}

#[test]
fn gpus_whose_handles_hang_at_the_start_come_when_the_calls_return() {
    let node = Setup::new("tests/scenarios/hang-handles.toml").start();
    node.wait_ready();
    let m = node.wait_metrics("six of eight", |m| m.all("gpu_up", &[]).iter().sum::<f64>() == 6.0);
    assert_eq!(m.all("gpu_up", &[("uuid", "")]), [0.0, 0.0], "reported by index alone");
    assert_eq!(m.value("gpu_devices_expected", &[]), Some(8.0));
    node.sim().open_gate("release").unwrap();
    node.wait_metrics("all eight", |m| m.all("gpu_up", &[]) == [1.0; 8]);
    node.wait_for("one sampler is left", |node| node.samplers().len() == 1);
}

#[test]
fn a_driver_that_hangs_while_it_is_loaded_is_stuck_and_comes_when_it_returns() {
    let node = Setup::new("tests/scenarios/hang-init.toml").start();
    let m = node.wait_metrics("the driver is stuck", |m| m.value("gpu_driver_stuck", &[]) == Some(1.0));
    assert_eq!(m.value("gpu_driver_up", &[]), Some(0.0));
    assert!(!m.all("gpu_exporter_node_call_stuck_seconds", &[]).is_empty());
    node.wait_ready();
    node.hold("two samplers", Duration::from_millis(500), |node| node.samplers().len() == 2);
    node.sim().open_gate("release").unwrap();
    node.wait_metrics("the GPU", |m| m.value("gpu_up", &[("gpu", "0")]) == Some(1.0));
    assert_eq!(node.metrics().value("gpu_driver_stuck", &[]), Some(0.0));
}

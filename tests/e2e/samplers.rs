//! Samplers that fail in every way: what they say is never published wrongly, and they are replaced.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::node::{Node, Setup, signal};

fn ends(node: &Node, reason: &str) -> Option<f64> {
    node.metrics().value("gpu_exporter_sampler_ends_total", &[("reason", reason)])
}

fn both_up(node: &Node) -> bool {
    node.metrics().all("gpu_up", &[]) == [1.0, 1.0]
}

#[test]
fn a_sampler_that_sends_garbage_is_counted_and_replaced() {
    let node = Node::start("tests/scenarios/garbage.toml");
    // A sampler that is being replaced would take the garbage along.
    node.wait_for("both GPUs are read", both_up);
    for gate in ["garbage", "oversized", "truncated"] {
        let before = node.samplers();
        node.sim().open_gate(gate).unwrap();
        node.wait_for(gate, |node| ends(node, gate) == Some(1.0));
        node.wait_for("a new sampler", |node| node.samplers().len() == 1 && node.samplers() != before);
        // Still values: a wrong one would differ. The last values of the old sampler may be there first, and go.
        node.wait_for("both GPUs are read", |node| {
            let memory = node.metrics().all("gpu_memory_total_bytes", &[]);
            assert!(memory.iter().all(|bytes| *bytes == 150_754_820_096.0), "{gate}: {memory:?}");
            memory.len() == 2 && both_up(node)
        });
    }
}

#[test]
fn a_sampler_that_dies_is_replaced_and_no_count_is_lost() {
    let node = Node::start("tests/scenarios/garbage.toml");
    let calls = |node: &Node| node.metrics().all("gpu_exporter_driver_calls_total", &[]).iter().sum::<f64>();
    let before = calls(&node);
    signal(node.samplers()[0], Signal::SIGKILL);
    node.wait_for("it is counted", |node| ends(node, "exited") == Some(1.0));
    node.wait_for("a new one serves", both_up);
    assert!(calls(&node) >= before, "counters live through the replacement");
    assert_eq!(node.metrics().value("gpu_exporter_sampler_starts_total", &[]), Some(2.0));
}

#[test]
fn a_stopped_sampler_is_replaced_and_killed() {
    let node = Node::start("tests/scenarios/garbage.toml");
    let old = node.samplers()[0];
    signal(old, Signal::SIGSTOP);
    node.wait_for("it is counted", |node| {
        ends(node, "stopped").unwrap_or(0.0) + ends(node, "stuck").unwrap_or(0.0) == 1.0
    });
    node.wait_for("a new one serves", both_up);
    node.wait_for("the old one is gone", |node| !node.samplers().contains(&old));
}

#[test]
fn a_sampler_is_deaf_to_signals_meant_for_others_and_ends_with_its_pipe() {
    let mut node = Node::start("tests/scenarios/garbage.toml");
    let sampler = node.samplers()[0];
    for s in [Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        signal(sampler, s);
    }
    node.hold("the same sampler", Duration::from_millis(500), |node| node.samplers() == [sampler]);
    let (status, took) = node.terminate();
    assert!(status.success() && took < Duration::from_secs(5), "{status} {took:?}");
    node.wait_until_gone(sampler);
}

#[test]
fn a_daemon_that_is_killed_leaves_no_sampler() {
    let node = Node::start("tests/scenarios/garbage.toml");
    let sampler = node.samplers()[0];
    signal(node.pid(), Signal::SIGKILL);
    node.wait_until_gone(sampler);
}

#[test]
fn a_sampler_that_dies_at_once_is_not_restarted_in_a_loop() {
    let node = Setup::new("tests/scenarios/dies.toml")
        .with("SAMPLER__RESTART_BACKOFF", "200ms")
        .with("SAMPLER__RESTART_BACKOFF_MAX", "10s")
        .start();
    node.wait_metrics("three starts", |m| m.value("gpu_exporter_sampler_starts_total", &[]) >= Some(3.0));
    let started = std::time::Instant::now();
    node.wait_metrics("six", |m| m.value("gpu_exporter_sampler_starts_total", &[]) >= Some(6.0));
    // Delays of 0.4, 0.8 and 1.6 s, the first of which may have passed before the third start was seen.
    assert!(started.elapsed() > Duration::from_millis(1500), "{:?}: the delay grows", started.elapsed());
    assert_eq!(node.get("/livez").0, 200);
}

#[test]
fn nothing_is_said_to_be_well_while_no_sampler_lives() {
    let node = Node::start("tests/scenarios/dies-later.toml");
    assert!(both_up(&node));
    node.sim().open_gate("die").unwrap();
    let m = node.wait_metrics("both are down", |m| m.all("gpu_up", &[]) == [0.0, 0.0]);
    for name in ["gpu_power_watts", "gpu_energy_joules_total", "gpu_clock_max_hertz"] {
        assert!(m.all(name, &[]).is_empty(), "{name}");
    }
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nvml")]), Some(0.0));
    assert_eq!(m.all("gpu_info", &[]).len(), 2);
}

#[test]
fn a_replacement_that_is_stopped_does_not_make_the_driver_stuck() {
    let node = Node::start("tests/scenarios/hang-two.toml");
    let old = node.samplers();
    node.sim().open_gate("hang").unwrap();
    node.wait_for("a replacement", |node| node.samplers().len() == 2);
    let new = *node.samplers().iter().find(|pid| !old.contains(pid)).unwrap();
    node.wait_metrics("six are up", |m| m.all("gpu_up", &[]).iter().sum::<f64>() == 6.0);
    signal(new, Signal::SIGSTOP);
    node.wait_for("it is gone", |node| !node.samplers().contains(&new));
    node.hold("never called stuck", Duration::from_millis(500), |node| {
        node.metrics().value("gpu_driver_stuck", &[]) == Some(0.0)
    });
    node.wait_metrics("six are up again", |m| m.all("gpu_up", &[]).iter().sum::<f64>() == 6.0);
}

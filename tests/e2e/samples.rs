//! What the driver samples and profiles by itself: no burst is missed, no sample is lost or counted twice,
//! and the sums are the products they should be.

use std::process::Output;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::node::{Metrics, Node, Setup, signal};

const GPU: (&str, &str) = ("gpu", "0");
const POWER: (&str, &str) = ("buffer", "power");
/// Seconds between two power samples.
const STEP: f64 = 0.02;
/// What GPU 0 of the steady scenario draws.
const WATTS: f64 = 300.0;

/// A node that drains its samples often.
fn setup(scenario: &str) -> Setup {
    Setup::new(scenario).with("SAMPLER__SAMPLES_INTERVAL", "200ms")
}

fn started(setup: Setup) -> Node {
    let node = setup.start();
    node.wait_ready();
    node.wait_metrics("samples", |m| samples(m).is_some());
    node
}

fn number(m: &Metrics, name: &str) -> f64 {
    m.value(name, &[GPU]).unwrap_or_else(|| panic!("no {name}"))
}

/// Power samples of GPU 0.
fn samples(m: &Metrics) -> Option<f64> {
    m.value("gpu_exporter_samples_total", &[GPU, POWER])
}

fn gaps(m: &Metrics) -> (f64, f64) {
    let value = |name| m.value(name, &[GPU, POWER]).unwrap();
    (value("gpu_exporter_sample_gaps_total"), value("gpu_exporter_sample_gap_seconds_total"))
}

/// When a tier of a GPU was read, in seconds; 0 while it was not.
fn read_at(m: &Metrics, gpu: &str, tier: &str) -> f64 {
    m.value("gpu_exporter_sample_timestamp_seconds", &[("gpu", gpu), ("tier", tier)]).unwrap_or(0.0)
}

fn close(is: f64, should: f64, by: f64) -> bool {
    (is - should).abs() <= by
}

#[test]
fn a_burst_between_scrapes_is_one_sample_and_the_peak_but_not_the_average() {
    let node = started(setup("tests/scenarios/flicker.toml"));
    let high = |m: &Metrics| {
        let up_to = |le| m.value("gpu_power_sample_watts_bucket", &[GPU, ("le", le)]).unwrap();
        up_to("+Inf") - up_to("400.0")
    };
    let begin = node.metrics();
    let end = node.wait_metrics("four bursts", |m| {
        assert!(number(m, "gpu_power_watts") < 100.0, "the average of a second");
        high(m) >= high(&begin) + 4.0
    });
    // A burst comes with every hundredth sample.
    let bursts = high(&end) - high(&begin);
    let rounds = (samples(&end).unwrap() - samples(&begin).unwrap()) / 100.0;
    assert!((bursts - 1.0..=bursts + 1.0).contains(&rounds), "{bursts} bursts in {rounds} rounds");
    assert!(number(&end, "gpu_power_peak_watts") > 600.0);
    assert!(number(&end, "gpu_power_minimum_watts") < 100.0);
    let idle = end.value("gpu_power_peak_watts", &[("gpu", "1")]);
    assert!(idle < Some(100.0), "{idle:?} of a GPU without bursts");
    assert_eq!(gaps(&end), (0.0, 0.0));
}

#[test]
fn a_sampler_that_is_killed_loses_no_sample_and_none_is_counted_twice() {
    let node = started(setup("tests/scenarios/steady.toml"));
    let begin = node.metrics();
    for round in 1..=3 {
        let old = node.samplers();
        signal(old[0], Signal::SIGKILL);
        node.wait_for("another sampler", |node| {
            let now = node.samplers();
            now.len() == 1 && now != old
        });
        let before = samples(&begin).unwrap() + f64::from(round) * 60.0;
        node.wait_metrics("more samples", |m| samples(m) >= Some(before));
    }
    let end = node.metrics();
    let took = read_at(&end, "0", "samples") - read_at(&begin, "0", "samples");
    let more = samples(&end).unwrap() - samples(&begin).unwrap();
    assert!(close(more, took / STEP, 5.0), "{more} samples in {took} s");
    assert_eq!(gaps(&end), (0.0, 0.0));
    let joules = |m: &Metrics| number(m, "gpu_energy_sampled_joules_total");
    let grown = joules(&end) - joules(&begin);
    assert!(close(grown, more * STEP * WATTS, 0.01), "{grown} J in {more} samples");
    assert_eq!(end.value("gpu_exporter_sampler_starts_total", &[]), Some(4.0));
}

#[test]
fn what_a_stopped_sampler_missed_is_one_gap_and_is_not_filled() {
    // Deadlines that a stop of 5 s does not pass.
    let patient = setup("tests/scenarios/steady.toml")
        .with("SAMPLER__CALL_TIMEOUT", "30s")
        .with("SAMPLER__INIT_TIMEOUT", "30s");
    let node = started(patient);
    let begin = node.metrics();
    assert_eq!(gaps(&begin), (0.0, 0.0));
    let sampler = node.samplers();
    signal(sampler[0], Signal::SIGSTOP);
    let until = node.sim().scenario_seconds() + 5.0;
    node.wait_for("5 s", |node| node.sim().scenario_seconds() >= until);
    signal(sampler[0], Signal::SIGCONT);
    let read = read_at(&begin, "0", "samples") + 5.0;
    let end =
        node.wait_metrics("new samples", |m| read_at(m, "0", "samples") >= read && samples(m).is_some());
    let (count, missing) = gaps(&end);
    assert_eq!(count, 1.0);
    // The driver's buffer held the last 2.4 s.
    assert!((2.4..3.4).contains(&missing), "{missing} s");
    let took = read_at(&end, "0", "samples") - read_at(&begin, "0", "samples");
    let more = samples(&end).unwrap() - samples(&begin).unwrap();
    assert!(close(more * STEP + missing, took, 0.1), "{more} samples and {missing} s in {took} s");
    let joules = |m: &Metrics| number(m, "gpu_energy_sampled_joules_total");
    let grown = joules(&end) - joules(&begin);
    assert!(close(grown, more * STEP * WATTS, 0.01), "{grown} J in {more} samples");
    let busy = end.value("gpu_exporter_sample_gaps_total", &[GPU, ("buffer", "utilization")]);
    assert_eq!(busy, Some(0.0), "that buffer holds 14 s");
    assert_eq!(node.samplers(), sampler, "the same process");
}

#[test]
fn sums_of_samples_grow_as_the_gauges_times_the_time() {
    let node = started(setup("tests/scenarios/steady.toml"));
    let complete = |m: &Metrics| m.value("gpu_busy_seconds_total", &[GPU]).is_some();
    let begin = node.wait_metrics("both buffers", complete);
    let until = |tier: &str| read_at(&begin, "0", tier) + 6.0;
    let end = node.wait_metrics("6 s", |m| {
        read_at(m, "0", "samples") >= until("samples") && read_at(m, "0", "slow") >= until("slow")
    });
    assert_eq!(number(&end, "gpu_power_watts"), WATTS);
    assert_eq!(number(&end, "gpu_utilization_ratio"), 0.6);
    for (sum, rate, tier, step) in [
        ("gpu_energy_sampled_joules_total", WATTS, "samples", STEP),
        ("gpu_busy_seconds_total", 0.6, "slow", 0.2),
    ] {
        let grown = number(&end, sum) - number(&begin, sum);
        let took = read_at(&end, "0", tier) - read_at(&begin, "0", tier);
        // 2 %, and a sample that one of the two reads just missed.
        let by = rate * (took * 0.02 + step);
        assert!(close(grown, rate * took, by), "{sum}: {grown} in {took} s");
    }
}

/// Seconds in which a unit of a GPU, or of one of its instances, was active.
fn active(m: &Metrics, name: &str, labels: &[(&str, &str)]) -> f64 {
    m.value(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?}"))
}

const SECONDS: &str = "gpu_gpm_active_seconds_total";
const OF_INSTANCES: &str = "gpu_mig_gpm_active_seconds_total";
/// Counter, labels, ratio, tier.
type Profiled = (&'static str, [(&'static str, &'static str); 2], f64, &'static str);

/// Counters of the steady scenario with the ratio that each follows, and the tier it is read in.
const PROFILED: [Profiled; 4] = [
    (SECONDS, [GPU, ("unit", "sm")], 0.5, "slow"),
    (SECONDS, [GPU, ("unit", "graphics")], 0.4, "rare"),
    (SECONDS, [GPU, ("unit", "tensor")], 0.0, "slow"),
    (OF_INSTANCES, [("profile", "2g.35gb"), ("unit", "sm")], 0.25, "slow"),
];

fn gpu_of(name: &str) -> &'static str {
    if name == OF_INSTANCES { "1" } else { "0" }
}

fn profiled(m: &Metrics) -> bool {
    PROFILED.iter().all(|(name, labels, ..)| {
        m.value(name, labels).is_some() && m.value(&name.replace("seconds_total", "ratio"), labels).is_some()
    })
}

#[test]
fn profiled_time_grows_as_the_ratio_times_the_time() {
    let node = started(setup("tests/scenarios/steady.toml"));
    let begin = node.wait_metrics("profiles", profiled);
    let end = node.wait_metrics("4 s", |m| {
        PROFILED.iter().all(|(name, _, _, tier)| {
            let gpu = gpu_of(name);
            read_at(m, gpu, tier) >= read_at(&begin, gpu, tier) + 4.0
        })
    });
    for (name, labels, ratio, tier) in PROFILED {
        assert_eq!(end.value(&name.replace("seconds_total", "ratio"), &labels), Some(ratio), "{labels:?}");
        let grown = active(&end, name, &labels) - active(&begin, name, &labels);
        let gpu = gpu_of(name);
        let took = read_at(&end, gpu, tier) - read_at(&begin, gpu, tier);
        assert!(close(grown, ratio * took, ratio * took * 0.05), "{labels:?}: {grown} in {took} s");
    }
    let sent = |m: &Metrics| m.value("gpu_gpm_pcie_bytes_total", &[GPU, ("direction", "tx")]).unwrap();
    let took = read_at(&end, "0", "slow") - read_at(&begin, "0", "slow");
    let should = took * 100.0 * 1_048_576.0;
    assert!(close(sent(&end) - sent(&begin), should, should * 0.05), "{} of {should}", sent(&end));
}

fn switch(node: &Node, to: &str) {
    let Output { status, stdout, stderr } = node.command(&["gpm", to]).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&[stdout, stderr].concat()));
}

#[test]
fn counters_left_to_a_profiler_are_not_touched_and_go_on_when_they_are_back() {
    let node = started(setup("tests/scenarios/steady.toml"));
    let enabled = |m: &Metrics| m.all("gpu_gpm_enabled", &[]);
    node.wait_metrics("profiles", |m| profiled(m) && enabled(m) == [1.0, 1.0]);
    switch(&node, "off");
    let ratios = ["gpu_gpm_active_ratio", "gpu_mig_gpm_active_ratio", "gpu_flops_estimate"];
    let off = node.wait_metrics("no ratios", |m| {
        enabled(m) == [0.0, 0.0] && ratios.iter().all(|name| m.all(name, &[]).is_empty())
    });
    let calls =
        || ["nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"].map(|c| node.sim().calls_of(c));
    let before = calls();
    assert_eq!(node.sim().calls_of("nvmlGpmSampleAlloc"), node.sim().calls_of("nvmlGpmSampleFree"));
    node.hold("nothing is read", Duration::from_secs(1), |_| calls() == before);

    switch(&node, "on");
    let on = node.wait_metrics("profiles again", |m| profiled(m) && enabled(m) == [1.0, 1.0]);
    for (name, labels, ratio, _) in PROFILED {
        let (then, now) = (active(&off, name, &labels), active(&on, name, &labels));
        assert!(now >= then, "{labels:?} stepped back from {then} to {now}");
        let away = read_at(&on, "0", "slow") - read_at(&off, "0", "slow");
        assert!(ratio == 0.0 || now - then < ratio * away, "{labels:?}: the time away is not counted");
        node.wait_metrics("it grows", |m| ratio == 0.0 || active(m, name, &labels) > now);
    }
}

#[test]
fn the_hardwares_slowdowns_are_read_only_when_there_were_some() {
    // So that no visit of the rare tier comes while the test waits.
    let node = Setup::new("tests/scenarios/slowdown.toml").with("SAMPLER__RARE_INTERVAL", "10m").start();
    node.wait_ready();
    let held = |m: &Metrics, gpu| {
        m.value("gpu_clock_event_seconds_total", &[("gpu", gpu), ("reason", "hw_thermal_slowdown")])
    };
    node.wait_metrics("the driver's counters", |m| held(m, "0") == Some(0.0) && held(m, "1") == Some(0.0));
    node.sim().open_gate("hot").unwrap();
    let m = node.wait_metrics("all of the second", |m| held(m, "0") >= Some(0.999));
    assert!(close(held(&m, "0").unwrap(), 1.0, 0.001), "{:?}", held(&m, "0"));
    assert_eq!(held(&m, "1"), Some(0.0));

    let calls = |m: &Metrics, call| {
        m.value("gpu_exporter_driver_calls_total", &[("call", call), ("tier", "slow")]).unwrap_or_default()
    };
    let seen = |m: &Metrics| calls(m, "nvmlDeviceGetMigMode");
    // The visit that reads them for the last time may still be under way.
    let begin = node.wait_metrics("visits after it", |now| seen(now) >= seen(&m) + 6.0);
    let end = node.wait_metrics("more visits", |now| seen(now) >= seen(&begin) + 20.0);
    let fields = calls(&end, "nvmlDeviceGetFieldValues") - calls(&begin, "nvmlDeviceGetFieldValues");
    let visits = seen(&end) - seen(&begin);
    assert!(
        fields <= 2.0 * visits + 4.0,
        "{fields} calls for fields in {visits} visits: NVLinks and the cheap ones"
    );
    // The page that showed nearly a second may have come before the last reading.
    assert_eq!(held(&end, "0"), held(&begin, "0"), "given again as it was read");
}

//! The whole exposition of each kind of node, compared with the reviewed one.

use std::fs;
use std::path::{Path, PathBuf};

use super::node::Setup;

/// Lines that come as they come: which tier of which GPU is first to find out something depends on who gets
/// the right to make expensive calls first, and the canary plans its first run when it has looked at the GPUs.
const LEFT_OUT: &[&str] = &[
    "gpu_exporter_driver_calls_total{",
    "gpu_exporter_driver_call_seconds_total{",
    "# HELP gpu_canary_next_due_timestamp_seconds",
    "# TYPE gpu_canary_next_due_timestamp_seconds",
    "gpu_canary_next_due_timestamp_seconds",
];

/// Families whose values depend on time or on the machine; their names and labels are compared all the same.
const MOVING: &[&str] = &[
    "process_",
    "gpu_exporter_cpu_seconds_total",
    "gpu_exporter_resident_memory_bytes",
    "gpu_exporter_collector_last_success_timestamp_seconds",
    "gpu_exporter_sample_timestamp_seconds",
    "gpu_exporter_driver_call_duration_seconds",
    "gpu_exporter_publication",
    "gpu_exporter_publish_duration_seconds",
    "gpu_exporter_http_",
    "gpu_exporter_build_info",
    "gpu_exporter_config_last_reload_success_timestamp_seconds",
    "gpu_exporter_series ",
    // Adds up while the still GPU is idle.
    "gpu_clock_event_seconds_total",
    // Windows and samples add up however still the GPU is.
    "gpu_gpm_active_seconds_total",
    "gpu_gpm_pcie_bytes_total",
    "gpu_gpm_nvlink_bytes_total",
    "gpu_mig_gpm_active_seconds_total",
    "gpu_mig_gpm_pcie_bytes_total",
    "gpu_mig_gpm_nvlink_bytes_total",
    "gpu_power_sample_watts_",
    "gpu_utilization_sample_ratio_",
    "gpu_busy_seconds_total",
    "gpu_last_busy_timestamp_seconds",
    "gpu_energy_sampled_joules_total",
    "gpu_exporter_samples_total",
    // On a busy machine two threads may make the same fast visit; the older of the two is thrown away.
    "gpu_exporter_batches_discarded_total",
    // What the scenario drops, it drops at every visit.
    "gpu_exporter_readings_dropped_total",
];

fn golden(scenario: &str) {
    // The owner of a simulated process is looked up on a host that has no such process: when it is reported, and as
    // what, is for tests of its own.
    compare(&golden_path(scenario), &seen(scenario, &[], str::to_owned));
}

/// The page of a scenario, with what moves left out of the lines that `edit` made.
fn seen(scenario: &str, settings: &[(&str, &str)], edit: impl Fn(&str) -> String) -> String {
    let setup = Setup::new(&format!("tests/scenarios/{scenario}.toml")).with("OWNERS__ENABLED", "false");
    let node = settings.iter().fold(setup, |setup, (key, value)| setup.with(key, value)).start();
    // Each GPU that the driver lists is there, and each collector has its answer or reason.
    node.wait_ready();
    // A window needs two visits, and the node is looked at last.
    node.wait_metrics("windows of every length", |m| {
        let switches = [("call", "nvswitch/devices")];
        if m.all("gpu_exporter_driver_calls_total", &switches).is_empty() {
            return false;
        }
        // A thread of its own makes the fast visits: they prove nothing about the other tiers.
        let read = |tier| m.all("gpu_exporter_sample_timestamp_seconds", &[("tier", tier)]).len();
        let gpus = m.all("gpu_up", &[]).len();
        if ["fast", "once", "rare", "nvlink"].into_iter().any(|tier| read(tier) < gpus) {
            return false;
        }
        let there = m.all("gpu_gpm_enabled", &[]).len();
        let of = |unit| m.all("gpu_gpm_active_ratio", &[("unit", unit)]).len();
        of("dram") == there && of("graphics") == there
    });
    let (status, page) = node.get("/metrics");
    assert_eq!(status, 200);
    let kept = |line: &String| !LEFT_OUT.iter().any(|name| line.starts_with(name));
    let lines = page.lines().map(edit).filter(kept);
    let mut seen: String = lines.map(|line| still(&line) + "\n").collect();
    seen.insert_str(0, &format!("# {scenario}: `~` is a value that moves.\n"));
    seen
}

fn golden_path(scenario: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/e2e/golden/{scenario}.prom"))
}

fn still(line: &str) -> String {
    let moving = MOVING.iter().any(|name| line.starts_with(name));
    match line.rsplit_once(' ') {
        Some((series, _)) if moving => format!("{series} ~"),
        _ => line.to_owned(),
    }
}

pub fn compare(path: &Path, seen: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, seen).unwrap();
        return;
    }
    let wanted = fs::read_to_string(path)
        .unwrap_or_else(|e| panic!("{}: {e}; make it with UPDATE=1 cargo test --test e2e", path.display()));
    let gone: Vec<_> = wanted.lines().filter(|l| !seen.lines().any(|s| s == *l)).collect();
    let new: Vec<_> = seen.lines().filter(|l| !wanted.lines().any(|w| w == *l)).collect();
    assert!(
        wanted == seen,
        "{} differs (UPDATE=1 rewrites it)\n- {}\n+ {}",
        path.display(),
        gone.join("\n- "),
        new.join("\n+ ")
    );
}

macro_rules! golden {
    ($($test:ident $scenario:literal)+) => { $(#[test] fn $test() { golden($scenario); })+ };
}

golden! {
    one_h200 "still-1xh200"
    an_h100 "still-h100"
    an_a100_in_mig_mode "still-a100-mig"
    an_l4 "still-l4"
    a_driver_without_a_gpu "no-gpu"
    values_that_cannot_be_true "blank"
}

#[test]
fn rack_and_zone_are_on_each_series_and_nothing_else_changes() {
    const LABELS: &str = "{rack=\"row 4, rack \\\"7\\\"\",zone=\"eu-west-1\"";
    let without = |line: &str| {
        if line.starts_with('#') {
            return line.to_owned();
        }
        let (name, rest) = line.split_once(LABELS).unwrap_or_else(|| panic!("no labels: {line}"));
        match rest.strip_prefix('}') {
            Some(value) => format!("{name}{value}"),
            None => format!("{name}{{{}", rest.strip_prefix(',').unwrap()),
        }
    };
    let settings = [("NODE__RACK", "row 4, rack \"7\""), ("NODE__ZONE", "eu-west-1")];
    compare(&golden_path("still-l4"), &seen("still-l4", &settings, without));
}

#[test]
fn metrics_md_is_what_the_catalogue_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
    compare(&path, &exposition::docs::markdown());
}

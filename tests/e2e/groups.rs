//! Which series `/metrics` serves by default and with groups, and how many.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use model::catalog::schema::{KnownLabel, LabelText};
use model::catalog::{GpuTimeClass, METRICS, MetricGroup, RateAgainst};
use serde_json::Value;
use settings::Config;
use simgpu::host::{Host, HostProcess};

use super::node::{Metrics, Node, Setup};

/// Most series of a node of eight H200s without MIG, with eight owners, each GPU tested by the canary before. What a later
/// change adds to the default set replaces something there, or goes into a group.
const MOST: usize = 1600;

fn pid(gpu: usize) -> u32 {
    4_200_000 + gpu as u32
}

/// Eight GPUs, each with a process of an owner of its own.
fn eight_owners(folder: &tempfile::TempDir) -> Node {
    let host = Host::make(folder.path().join("root")).unwrap();
    let mut scenario = String::new();
    for gpu in 0..8 {
        let cgroup = format!("/system.slice/job-{gpu}.service");
        let process = HostProcess {
            pid: pid(gpu),
            name: "python3",
            cgroup: &cgroup,
            cpus: "0-15",
            uid: 1000,
            memory: [1 << 30, 0],
            started_ticks: 100,
        };
        host.process(&process).unwrap();
        let job = format!("{{ pid = {}, memory = \"20GiB\", type = \"compute\" }}", pid(gpu));
        write!(scenario, "[[gpu]]\nmodel = \"H200\"\nload = \"steps\"\nprocesses = [{job}]\n").unwrap();
    }
    let file = folder.path().join("scenario.toml");
    fs::write(&file, scenario).unwrap();
    let settings =
        [("HOST__ROOT", host.root().to_str().unwrap()), ("CPU__ENABLED", "true"), ("METRICS__GROUPS", "")];
    let setup = Setup::new(file.to_str().unwrap());
    settings.into_iter().fold(setup, |setup, (key, value)| setup.with(key, value)).start()
}

/// Series that the canary adds once it has tested a GPU, at most: a verdict and the rates of each check; the clock; when it
/// ran, and when all was well.
fn tested() -> usize {
    Config::default().canary.checks.len() * (1 + RateAgainst::ALL.len()) + 3
}

/// Series of the JSON snapshot by the group they need; those of the default set are under an empty name.
fn by_group(snapshot: &Value) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for metric in snapshot["metrics"].as_array().unwrap() {
        let def = METRICS.iter().find(|def| def.name == metric["name"]).unwrap();
        let text = |name: &str| LabelText::Text(metric["labels"][name].as_str().unwrap_or_default().into());
        let labels: Vec<_> = def.labels.iter().map(|label| text(label.name)).collect();
        let group = def.group_of(&labels, metric["value"].as_f64()).map_or("", MetricGroup::name);
        let size = metric["histogram"]["buckets"].as_array().map_or(1, |buckets| buckets.len() + 2);
        *counts.entry(group).or_default() += if def.json_only { 0 } else { size };
    }
    counts
}

#[test]
fn eight_h200s_with_eight_owners_serve_few_series_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let node = eight_owners(&folder);
    node.wait_ready();
    node.wait_metrics("eight owners at work", |m| {
        let owned = m.all("gpu_owner_busy_seconds_total", &[]).len();
        // What comes late, so that all is counted.
        let late =
            ["gpu_owner_memory_remote_ratio", "gpu_bottleneck", "gpu_canary_next_due_timestamp_seconds"];
        owned == 8 && late.iter().all(|name| m.all(name, &[]).len() == 8)
    });
    // Calls and their tiers come as they come, and the canary has not run.
    let of_runs = |group: &&MetricGroup| matches!(group, MetricGroup::All | MetricGroup::CanaryDetail);
    node.wait_for("the series of each group that METRICS.md says", |node| {
        let counts = by_group(&node.snapshot());
        MetricGroup::ALL.iter().filter(|group| !of_runs(group)).all(|group| {
            let (said, seen) = (group.series() as usize, counts.get(group.name()).copied().unwrap_or(0));
            said.abs_diff(seen) <= 8 + seen / 5
        })
    });
    let page = node.metrics();
    assert_eq!(page.all("gpu_up", &[]), [1.0; 8]);
    assert_eq!(page.all("gpu_canary_verdict", &[]).len(), 0);
    // Most owners have a few classes of GPU time, and some have no step.
    let of_work = |name: &str| name.starts_with("gpu_owner_step") || name == "gpu_owner_gpu_seconds_total";
    let steady = page.0.iter().filter(|(name, ..)| !of_work(name)).count();
    let steps = METRICS.iter().filter(|def| def.name.starts_with("gpu_owner_step")).count();
    let all_tested = steady + 8 * (GpuTimeClass::ALL.len() + steps + tested());
    let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
    page.0.iter().for_each(|(name, ..)| *by_name.entry(name).or_default() += 1);
    assert!(all_tested <= MOST, "{all_tested} series: {by_name:?}");
    let served: BTreeSet<&str> = page.0.iter().map(|(name, ..)| name.as_str()).collect();
    let hidden = METRICS.iter().filter(|def| def.needs_group() && served.contains(def.name));
    assert_eq!(hidden.map(|def| def.name).collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn a_group_brings_its_series_and_all_brings_every_one() {
    let setup = |groups| Setup::new("tests/scenarios/still-1xh200.toml").with("METRICS__GROUPS", groups);
    let node = setup("nvlink-links, clocks").start();
    node.wait_ready();
    let page = node.wait_metrics("links", |m| m.all("gpu_nvlink_link_bytes_total", &[]).len() == 36);
    assert_eq!(page.all("gpu_clock_hertz", &[]).len(), 4);
    assert!(page.all("gpu_ecc_errors", &[]).is_empty());
    assert_eq!(page.value("gpu_exporter_series", &[]), Some(page.0.len() as f64));
    let node = setup("all").start();
    node.wait_ready();
    node.wait_for("every series", |node| {
        let names = |m: &Metrics| -> BTreeSet<String> { m.0.iter().map(|(name, ..)| name.clone()).collect() };
        let (page, everything) = (names(&node.metrics()), names(&node.everything()));
        let left_out: Vec<_> = everything.difference(&page).collect();
        left_out.iter().all(|name| METRICS.iter().any(|def| def.json_only && def.name == name.as_str()))
    });
}

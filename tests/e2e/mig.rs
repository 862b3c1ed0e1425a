//! MIG: instances, what still fits, the declared layout, and a GPU that is repartitioned again and again.

use std::collections::BTreeSet;
use std::fs;

use tempfile::TempDir;

use super::node::{Metrics, Node, Setup, pause};

/// The values of a metric by the value of one of its labels.
fn by(m: &Metrics, name: &str, gpu: &str, label: &str) -> Vec<(String, f64)> {
    let own = m.0.iter().filter(|(n, labels, _)| n == name && labels["gpu"] == gpu);
    let mut found: Vec<_> = own.map(|(_, labels, value)| (labels[label].clone(), *value)).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn pairs(list: &[(&str, f64)]) -> Vec<(String, f64)> {
    list.iter().map(|(label, value)| ((*label).to_owned(), *value)).collect()
}

/// Waits until what still fits is known: it comes with the visit after that which saw the instances.
fn settled(node: &Node) -> Metrics {
    node.wait_metrics("the slices in use", |m| m.value("gpu_mig_slices_used", &[]).is_some())
}

#[test]
fn seven_sevenths_fill_an_a100() {
    let node = Node::start("tests/scenarios/mig-sevenths.toml");
    let m = settled(&node);
    assert_eq!(m.all("gpu_mig_info", &[("mig_profile", "1g.10gb")]).len(), 7);
    assert_eq!(m.all("gpu_mig_placement_slices", &[("profile", "1g.10gb")]), [1.0; 7]);
    let mut starts = m.all("gpu_mig_placement_start", &[]);
    starts.sort_by(f64::total_cmp);
    assert_eq!(starts, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(m.all("gpu_mig_multiprocessors", &[]), [14.0; 7]);
    assert_eq!(m.all("gpu_mig_compute_sm_share_ratio", &[]), [1.0; 7]);
    let processes: f64 = m.all("gpu_mig_compute_processes", &[]).iter().sum();
    assert_eq!(processes, 3.0);
    assert_eq!(m.value("gpu_mig_compute_processes", &[("gpu_instance", "7")]), Some(2.0));
    assert_eq!(m.all("gpu_mig_slices", &[]), [7.0]);
    assert_eq!(m.all("gpu_mig_slices_used", &[]), [7.0]);
    assert_eq!(m.all("gpu_mig_slices_unplaceable", &[]), [0.0]);
    assert_eq!(m.all("gpu_mig_profile_free", &[]), [0.0; 7]);
    assert_eq!(m.value("gpu_mig_profile_capacity", &[("mig_profile", "1g.10gb")]), Some(7.0));
    assert_eq!(m.value("gpu_mig_profile_capacity", &[("mig_profile", "3g.40gb")]), Some(2.0));
    assert_eq!(m.all("gpu_power_watts", &[]).len(), 1, "the board's facts, once");
}

#[test]
fn a_mixed_layout_shows_what_is_used_free_and_stranded() {
    let node = Node::start("tests/scenarios/mig-mixed.toml");
    let m = node.wait_metrics("all three", |m| m.all("gpu_mig_slices_used", &[]).len() == 3);

    let profiles = pairs(&[("1g.18gb", 6.0), ("2g.35gb", 4.0), ("3g.71gb", 0.0)]);
    assert_eq!(
        by(&m, "gpu_mig_placement_start", "0", "profile"),
        profiles,
        "also that without compute instance"
    );
    let profiles = pairs(&[("1g.18gb", 16.0), ("2g.35gb", 32.0), ("3g.71gb", 60.0)]);
    assert_eq!(by(&m, "gpu_mig_multiprocessors", "0", "profile"), profiles);
    let devices = pairs(&[("1c.3g.71gb", 1.0), ("1g.18gb", 1.0), ("2c.3g.71gb", 1.0)]);
    assert_eq!(by(&m, "gpu_mig_info", "0", "mig_profile"), devices);
    let share =
        |ci| m.value("gpu_mig_compute_sm_share_ratio", &[("profile", "3g.71gb"), ("compute_instance", ci)]);
    assert_eq!((share("0"), share("1")), (Some(20.0 / 60.0), Some(40.0 / 60.0)));
    let on = |ci| m.value("gpu_mig_compute_processes", &[("profile", "3g.71gb"), ("compute_instance", ci)]);
    assert_eq!((on("0"), on("1")), (Some(0.0), Some(1.0)));
    assert_eq!(
        by(&m, "gpu_mig_memory_total_bytes", "0", "profile").len(),
        2,
        "without a source, none is reported"
    );

    let slices = |name| by(&m, name, "0", "gpu")[0].1;
    assert_eq!(slices("gpu_mig_slices"), 7.0);
    assert_eq!(slices("gpu_mig_slices_used"), 6.0);
    assert_eq!(slices("gpu_mig_slices_unplaceable"), 1.0, "no profile begins at the last memory slice");
    assert!(by(&m, "gpu_mig_profile_free", "0", "mig_profile").iter().all(|(_, free)| *free == 0.0));

    let of = |gpu| {
        ["gpu_mig_slices_used", "gpu_mig_slices_unplaceable"].map(|name| m.value(name, &[("gpu", gpu)]))
    };
    assert_eq!(of("1"), [Some(4.0), Some(3.0)]);
    assert_eq!(of("2"), [Some(0.0), Some(0.0)]);
    let free = by(&m, "gpu_mig_profile_free", "2", "mig_profile");
    assert_eq!(free, by(&m, "gpu_mig_profile_capacity", "2", "mig_profile"), "an empty GPU has room for all");

    let mut with_mig =
        m.0.iter().filter(|(name, labels, _)| name.starts_with("gpu_mig_") && labels["gpu"] == "3");
    assert!(with_mig.all(|(name, ..)| name.starts_with("gpu_mig_mode_")), "a GPU without MIG mode has none");
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nvml")]), Some(1.0));

    // An instance that no MIG device shows is seen all the same.
    node.sim().open_gate("one-more").unwrap();
    node.wait_metrics("the new instance", |m| {
        m.value("gpu_mig_placement_slices", &[("gpu", "2"), ("profile", "4g.71gb")]) == Some(4.0)
            && m.value("gpu_mig_slices_used", &[("gpu", "2")]) == Some(4.0)
            && m.value("gpu_mig_profile_free", &[("gpu", "2"), ("mig_profile", "3g.71gb")]) == Some(1.0)
    });
}

#[test]
fn what_is_not_permitted_is_left_out_and_no_failure() {
    let node = Node::start("tests/scenarios/mig-forbidden.toml");
    let m = node.wait_metrics("the slices", |m| m.value("gpu_mig_slices", &[]) == Some(7.0));
    assert_eq!(m.all("gpu_mig_info", &[]).len(), 3);
    assert_eq!(m.all("gpu_mig_memory_total_bytes", &[]).len(), 2);
    assert_eq!(m.value("gpu_mig_multiprocessors", &[("profile", "3g.71gb")]), Some(60.0));
    assert_eq!(m.value("gpu_mig_profile_capacity", &[("mig_profile", "1g.18gb")]), Some(7.0));
    for name in [
        "gpu_mig_placement_start",
        "gpu_mig_placement_slices",
        "gpu_mig_profile_free",
        "gpu_mig_slices_used",
        "gpu_mig_slices_unplaceable",
    ] {
        assert!(m.all(name, &[]).is_empty(), "{name}");
        assert_eq!(m.value("gpu_exporter_metric_unsupported", &[("metric", name)]), Some(1.0), "{name}");
    }
    assert_eq!(m.value("gpu_exporter_driver_error_kinds_total", &[("error", "no_permission")]), Some(0.0));
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nvml")]), Some(1.0));
    assert!(node.sim().calls_of("nvmlDeviceGetGpuInstances") < 10, "asked again after changes alone");
}

const LAYOUTS: &str = r#"
version: v1
mig-configs:
  halves:
    - device-filter: ["0x233510DE"]
      devices: all
      mig-enabled: true
      mig-devices: {"3g.71gb": 2}
  others:
    - device-filter: "0x20B210DE"
      devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
  mixed:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1c.3g.71gb": 1, "2c.3g.71gb": 1, "1g.18gb": 1}
    - devices: [1]
      mig-enabled: true
      mig-devices: {"1g.35gb": 4}
    - devices: [2]
      mig-enabled: true
      mig-devices: {}
    - devices: [3]
      mig-enabled: false
"#;

fn declared(scenario: &str, layout: &str) -> Node {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("layouts.yaml");
    fs::write(&file, LAYOUTS).unwrap();
    let setup = Setup::new(scenario).with("MIG__LAYOUT_FILE", file.to_str().unwrap());
    let node = setup.with("MIG__LAYOUT", layout).start();
    node.wait_ready();
    node
}

#[test]
fn a_declared_layout_matches_until_the_gpu_is_cut_otherwise() {
    let node = declared("tests/scenarios/mig-reshaped.toml", "halves");
    let matches = |m: &Metrics| m.value("gpu_mig_layout_matches", &[]);
    let m = node.wait_metrics("it matches", |m| matches(m) == Some(1.0));
    assert_eq!(by(&m, "gpu_mig_layout_declared", "0", "mig_profile"), pairs(&[("3g.71gb", 2.0)]));
    node.sim().open_gate("reshape").unwrap();
    let m = node.wait_metrics("it does not", |m| matches(m) == Some(0.0));
    assert_eq!(m.all("gpu_mig_layout_declared", &[]), [2.0]);
    node.sim().close_gate("reshape").unwrap();
    node.wait_metrics("it does again", |m| matches(m) == Some(1.0));
}

#[test]
fn each_gpu_is_compared_with_its_own_entry() {
    let node = declared("tests/scenarios/mig-mixed.toml", "mixed");
    let expected = pairs(&[("0", 0.0), ("1", 1.0), ("2", 1.0), ("3", 1.0)]);
    node.wait_for("every GPU is compared", |node| {
        let m = node.metrics();
        let all: Vec<_> =
            (0..4).flat_map(|gpu| by(&m, "gpu_mig_layout_matches", &gpu.to_string(), "gpu")).collect();
        // The first has a GPU instance more than declared, though no MIG device more.
        all == expected
    });
    node.sim().open_gate("one-more").unwrap();
    node.wait_metrics("the third is cut", |m| {
        m.value("gpu_mig_layout_matches", &[("gpu", "2")]) == Some(0.0)
    });
}

#[test]
fn a_gpu_of_which_nothing_is_declared_is_not_compared() {
    for layout in [None, Some("others")] {
        let scenario = "tests/scenarios/mig-reshaped.toml";
        let node = layout.map_or_else(|| Node::start(scenario), |layout| declared(scenario, layout));
        let m = settled(&node);
        assert!(!m.0.iter().any(|(name, ..)| name.starts_with("gpu_mig_layout_")), "{layout:?}");
        assert_eq!(m.value("gpu_exporter_metric_unsupported", &[("metric", "gpu_mig_layout_matches")]), None);
    }
}

#[test]
fn a_gpu_without_mig_matches_a_layout_without() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("layouts.yaml");
    fs::write(&file, "version: v1\nmig-configs: {off: [{devices: all, mig-enabled: false}]}").unwrap();
    let node =
        Setup::new("tests/scenarios/still-l4.toml").with("MIG__LAYOUT_FILE", file.to_str().unwrap()).start();
    node.wait_ready();
    node.wait_metrics("it matches", |m| m.value("gpu_mig_layout_matches", &[]) == Some(1.0));
}

/// What a layout looks like on the page: GPU instances with their profiles, and MIG devices within them.
type Shape = (BTreeSet<(String, String)>, BTreeSet<(String, String)>);

/// Every shape that the scenario's GPU can have.
fn shapes(scenario: &str) -> Vec<Shape> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(scenario);
    let scenario = simgpu::Scenario::load(path).unwrap();
    let layouts = scenario.gpus[0].layouts.iter().map(|(_, layout)| layout);
    layouts
        .map(|layout| {
            let instances = layout.instances.iter().map(|i| (i.id.to_string(), i.profile.name.clone()));
            let devices = layout.devices().map(|(i, c)| (i.id.to_string(), c.id.to_string()));
            (instances.collect(), devices.collect())
        })
        .collect()
}

/// The shape that a page shows; no series may be of another.
fn shape(m: &Metrics) -> Shape {
    let of = |name: &str, a: &str, b: &str| -> BTreeSet<(String, String)> {
        let rows = m.0.iter().filter(|(n, ..)| n == name);
        rows.map(|(_, labels, _)| (labels[a].clone(), labels[b].clone())).collect()
    };
    let instances = of("gpu_mig_placement_start", "gpu_instance", "profile");
    let devices = of("gpu_mig_info", "gpu_instance", "compute_instance");
    // What an owner had of an instance is reported for a while after it.
    let of_instances = m
        .0
        .iter()
        .filter(|(name, labels, _)| labels.contains_key("gpu_instance") && !name.starts_with("gpu_owner_"));
    for (name, labels, _) in of_instances {
        let instance = (labels["gpu_instance"].clone(), labels["profile"].clone());
        assert!(instances.contains(&instance), "{name}{labels:?} is of no instance on the page");
        if let Some(compute) = labels.get("compute_instance") {
            let device = (labels["gpu_instance"].clone(), compute.clone());
            assert!(devices.contains(&device), "{name}{labels:?} is of no MIG device on the page");
        }
    }
    (instances, devices)
}

fn resident_kib(pid: i32) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_thousand_layouts_leave_nothing_behind() {
    const SCENARIO: &str = "tests/scenarios/mig-churn.toml";
    const LAYOUTS: usize = 1000;
    let shapes = shapes(SCENARIO);
    let node = Setup::new(SCENARIO)
        .with("SAMPLER__FAST_INTERVAL", "10ms")
        .with("SAMPLER__NORMAL_INTERVAL", "10ms")
        .with("SAMPLER__SAMPLES_INTERVAL", "20ms")
        .with("SAMPLER__SLOW_INTERVAL", "20ms")
        .with("SAMPLER__RARE_INTERVAL", "50ms")
        .start();
    node.wait_ready();
    let sampler = node.samplers()[0];
    let resident = || [node.pid(), sampler].map(resident_kib);
    let (mut before, mut most) = ([0; 2], 0);
    let mut met = BTreeSet::new();
    let mut opened = 0;
    // On a busy machine many layouts pass between two visits: more of them, up to twice as many.
    let few = |opened| opened < 2 * LAYOUTS && node.sim().calls_of("nvmlDeviceGetName") <= LAYOUTS as u64 / 5;
    while opened < LAYOUTS || few(opened) {
        let n = opened;
        opened += 1;
        node.sim().open_gate(&format!("shape{}", n % (shapes.len() - 1))).unwrap();
        pause();
        // Not in step with the shapes, so that each is met.
        if n % 17 == 0 {
            let m = node.metrics();
            let shape = shape(&m);
            assert!(shapes.contains(&shape) || shape.0.is_empty(), "no layout was ever so: {shape:?}");
            assert_eq!(
                m.all("gpu_up", &[]),
                [1.0],
                "{:?}",
                node.snapshot()["gpus"][0]
                    .as_object()
                    .map(|o| o.iter().filter(|(k, _)| *k != "gaps").collect::<Vec<_>>())
            );
            assert_eq!(m.all("gpu_power_watts", &[]).len(), 1, "the board's facts, once");
            let used = m.value("gpu_mig_slices_used", &[]).filter(|_| !shape.0.is_empty());
            let sum: u32 = shape.0.iter().map(|(_, profile)| slices(profile)).sum();
            assert!(used.is_none_or(|used| used == f64::from(sum)), "{used:?} slices used by {shape:?}");
            most = most.max(m.0.len());
            met.insert(shape);
        }
        // Until then caches and arenas grow to their size.
        if n == LAYOUTS / 5 {
            before = resident();
        }
    }
    let seen = node.sim().calls_of("nvmlDeviceGetName");
    let after = resident();
    for (role, (before, after)) in ["serve", "sampler"].iter().zip(before.iter().zip(after)) {
        assert!(after - before < 3 * 1024, "{role} grew from {before} to {after} KiB");
    }
    assert!(met.len() > shapes.len() / 2, "{met:?}");
    assert!(seen > LAYOUTS as u64 / 5, "only {seen} devices were named");
    // The last layout is the one that is there, whole and alone.
    let last = &shapes[1 + (opened - 1) % (shapes.len() - 1)];
    let m = node.wait_metrics("the last layout", |m| {
        shape(m) == *last && m.value("gpu_mig_slices_used", &[]).is_some()
    });
    assert!(m.0.len() <= most + 100, "{} series, never more than {most} before", m.0.len());
    assert_eq!(m.value("gpu_exporter_sampler_starts_total", &[]), Some(1.0));
    assert_eq!(node.samplers(), [sampler]);
}

/// The `3` of `3g.71gb`.
fn slices(profile: &str) -> u32 {
    profile.split_once('g').and_then(|(slices, _)| slices.parse().ok()).unwrap()
}

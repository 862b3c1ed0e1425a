//! dcgm-exporter's page of simulated GPUs: which families there are, and that their values are ours in DCGM's units.

use std::collections::BTreeSet;

use dcgm::fields::{FieldFormat, FieldSource, Release};
use dcgm::list::FieldList;
use model::catalog as m;

use super::node::{Metrics, Node};

const PAGE: &str = "/dcgm/metrics";

/// The page once it has values of every tier.
fn page(node: &Node, last: &str) -> (String, Metrics) {
    node.wait_for(&format!("{last} on {PAGE}"), |node| node.get(PAGE).1.contains(&format!("\n{last}{{")));
    let (status, text) = node.get(PAGE);
    assert_eq!(status, 200, "{text}");
    let metrics = Metrics::parse(&text);
    (text, metrics)
}

fn families(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn an_h200_has_every_default_family_with_our_values() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    let (text, page) = page(&node, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL");
    node.wait_for("the graphics engine's window", |node| {
        node.get(PAGE).1.contains("DCGM_FI_PROF_GR_ENGINE_ACTIVE{")
    });
    let found = families(&node.get(PAGE).1);
    let defaults = FieldList::default_of(Release::V4_8);
    let wanted: BTreeSet<String> = defaults.columns.iter().map(|column| column.name.clone()).collect();
    let missing: Vec<_> = wanted.difference(&found).collect();
    assert_eq!(missing, ["DCGM_FI_DEV_XID_ERRORS"], "there was no Xid");
    assert!(text.contains("DCGM_FI_DRIVER_VERSION=\"580.159.04\""), "{text}");

    let ours = node.everything();
    let mut compared = 0;
    for column in &defaults.columns {
        let FieldSource::Series { of, factor } = column.field.source else { continue };
        let (metric, values) = of[0];
        let def = m::def(metric).unwrap();
        let labels: Vec<(&str, &str)> =
            def.labels.iter().map(|label| label.name).zip(values.iter().copied()).collect();
        let (Some(value), Some(theirs)) = (ours.value(def.name, &labels), page.value(&column.name, &[]))
        else {
            continue;
        };
        // A unit of a whole number is cut off; of a number with a point six decimals are left.
        let unit = if column.field.format == FieldFormat::Integer { 1.0 } else { 1e-6 };
        assert!((value * factor - theirs).abs() <= unit, "{}: {theirs} of {value}", column.name);
        compared += 1;
    }
    assert!(compared >= 16, "{compared}");
    let memory = |name: &str| page.value(&format!("DCGM_FI_DEV_FB_{name}"), &[]).unwrap();
    let total = ours.value("gpu_memory_total_bytes", &[]).unwrap() / 1_048_576.0;
    assert!((memory("USED") + memory("FREE") + memory("RESERVED") - total).abs() <= 3.0);
}

#[test]
fn what_only_this_page_needs_is_in_the_json_and_on_no_scrape() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    page(&node, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL");
    let everything = node.everything();
    let board = [
        ("brand", "NVIDIA"),
        ("inforom_oem_version", "2.1"),
        ("inforom_ecc_version", "7.16"),
        ("inforom_power_version", ""),
    ];
    assert_eq!(everything.value("gpu_board_info", &board), Some(1.0));
    assert_eq!(everything.value("gpu_vgpu_software_licensed", &[]), Some(0.0));
    for direction in ["tx", "rx"] {
        for name in [
            "gpu_nvlink_bytes_per_second",
            "gpu_gpm_pcie_bytes_per_second",
            "gpu_gpm_nvlink_bytes_per_second",
        ] {
            assert!(everything.value(name, &[("direction", direction)]).is_some(), "{name} {direction}");
        }
    }
    let idle = [("reason", "gpu_idle")];
    assert!(everything.value("gpu_clock_event_window_samples", &idle).is_some_and(|looks| looks >= 1.0));
    let scraped = node.get("/metrics").1;
    for def in m::METRICS.iter().filter(|def| def.json_only) {
        assert!(!scraped.contains(def.name), "{}", def.name);
    }
}

#[test]
fn instances_have_their_memory_and_the_boards_values() {
    let node = Node::start("tests/scenarios/still-a100-mig.toml");
    let (_, page) = page(&node, "DCGM_FI_DEV_FB_USED");
    let ours = node.metrics();
    let instances = ours.all("gpu_mig_memory_used_bytes", &[]).len();
    assert_eq!(instances, 3);
    assert_eq!(page.all("DCGM_FI_DEV_GPU_TEMP", &[]).len(), instances, "once an instance");
    // One of them has two compute instances.
    assert_eq!(page.all("DCGM_FI_DEV_FB_USED", &[]).len(), 4);
    let of_profile = [("GPU_I_PROFILE", "2g.20gb")];
    let devices = page.all("DCGM_FI_DEV_FB_USED", &of_profile);
    let used = ours.value("gpu_mig_memory_used_bytes", &[("profile", "2g.20gb")]).unwrap();
    assert_eq!(devices, [(used / 1_048_576.0).trunc(); 2]);
    for id in ["0", "1"] {
        let labels = [("GPU_I_PROFILE", "2g.20gb"), ("GPU_CI_ID", id)];
        assert!(page.value("DCGM_FI_DEV_FB_USED", &labels).is_some(), "{id}");
    }
    assert!(page.all("DCGM_FI_DEV_GPU_UTIL", &[]).is_empty(), "none in MIG mode");
    assert!(page.all("DCGM_FI_PROF_DRAM_ACTIVE", &[]).is_empty(), "no counters before Hopper");
}

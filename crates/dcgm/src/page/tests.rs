//! Golden pages, each value against the table, and any snapshot through a strict reader of the format.

mod node;
mod owners;
mod reader;

use std::collections::BTreeSet;

use model::catalog::{self as m, *};
use model::sample::Rows;
use model::snapshot::Snapshot;
use proptest::prelude::*;

use super::*;
use crate::fields::{DcgmField, Level, TABLE, find};
use crate::parse::{ParsedPage, ParsedSample};
use node::{MIG, gpu};
use reader::{OfFamily, OfPage, read};

/// A page of every field that is served, in the names of the release.
fn everything(release: Release) -> FieldList {
    let mut list = FieldList::default();
    for field in TABLE.iter().filter(|field| field.is_served()) {
        let names = field.names.iter().filter(|name| name.starts_with("DCGM_"));
        let name = names.copied().find(|name| find(name, release).is_some_and(|found| found.id == field.id));
        if let Some(name) = name {
            list.add("test", name, field.kind, field.help, release);
        }
    }
    assert_eq!(list.problems, []);
    list
}

fn config(release: Release, values: Values) -> PageConfig {
    PageConfig { values, ..PageConfig::for_release(release, "node1") }
}

fn page(config: &PageConfig, snapshot: &Snapshot) -> String {
    let mut out = String::new();
    encode(config, snapshot, &mut out);
    out
}

fn parsed(config: &PageConfig, snapshot: &Snapshot) -> ParsedPage {
    let text = page(config, snapshot);
    read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Compares with a file of `golden/`; with `UPDATE=1` writes it.
fn golden(name: &str, text: &str) {
    let path = format!("{}/src/page/golden/{name}.prom", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(known == text, "{path} differs; UPDATE=1 writes it:\n{text}");
}

#[test]
fn the_default_pages_are_the_golden_ones() {
    for release in Release::ALL {
        let version = release.name();
        for values in Values::ALL {
            let config = config(release, values);
            let how = values.name();
            golden(&format!("plain-{version}-{how}"), &page(&config, &node::plain()));
            golden(&format!("mig-{version}-{how}"), &page(&config, &node::mig()));
            let config = PageConfig { pod_uids: values == Values::Corrected, ..config };
            golden(&format!("pods-{version}-{how}"), &page(&config, &node::pods()));
            golden(&format!("claims-{version}-{how}"), &page(&config, &node::claims()));
        }
    }
}

#[test]
fn the_page_of_every_field_is_the_golden_one() {
    let mut fields = everything(Release::V4_8);
    // One label is enough in each of so many lines.
    fields.labels.truncate(1);
    let config = PageConfig { fields, ..config(Release::V4_8, Values::Faithful) };
    golden("everything", &page(&config, &node::plain()));
}

/// The value that a field has by the table, computed here by hand from what the node was given.
fn expected(field: &DcgmField) -> Option<f64> {
    let mib = 1_048_576.0;
    Some(match field.name() {
        "DCGM_FI_DEV_SM_CLOCK" => 1980.0,
        "DCGM_FI_DEV_SM_CLOCK_HERTZ" => 1.98e9,
        "DCGM_FI_DEV_MEM_CLOCK" => 3201.0,
        "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ" => 3.201e9,
        "DCGM_FI_DEV_MEMORY_TEMP" => 61.0,
        "DCGM_FI_DEV_GPU_TEMP" => 57.0,
        "DCGM_FI_DEV_POWER_USAGE" => 612.345,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" => 3_456_789_012_345.0,
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL" => 3_456_789_012.0,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" => 7.0,
        "DCGM_FI_DEV_GPU_UTIL" => 57.0,
        "DCGM_FI_DEV_GPU_UTIL_RATIO" => 0.57,
        "DCGM_FI_DEV_MEM_COPY_UTIL" => 29.0,
        "DCGM_FI_DEV_MEMORY_UTIL_RATIO" => 0.29,
        "DCGM_FI_DEV_ENC_UTIL" | "DCGM_FI_DEV_ENC_UTIL_RATIO" => 0.0,
        "DCGM_FI_DEV_DEC_UTIL" => 3.0,
        "DCGM_FI_DEV_DEC_UTIL_RATIO" => 0.03,
        "DCGM_FI_DEV_XID_ERRORS" => 79.0,
        "DCGM_FI_DEV_FB_TOTAL" => 143_771.0,
        "DCGM_FI_DEV_FB_FREE" => 65_000.0,
        "DCGM_FI_DEV_FB_USED" => 78_071.0,
        "DCGM_FI_DEV_FB_RESERVED" => 700.0,
        "DCGM_FI_DEV_FB_CAPACITY_BYTES" => 143_771.0 * mib,
        "DCGM_FI_DEV_FB_FREE_BYTES" => 65_000.0 * mib,
        "DCGM_FI_DEV_FB_USED_BYTES" => 78_071.5 * mib,
        "DCGM_FI_DEV_FB_RESERVED_BYTES" => 700.0 * mib - 1.0,
        // 2,500,000 KiB/s sent, 1,500,000 received.
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" => 4_000.0,
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND" => 4_096_000_000.0,
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS" => 0.0,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS" => 1.0,
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS" => 4.0,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE" => 0.0,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE" => 0.971_235,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" => 0.0,
        "DCGM_FI_PROF_DRAM_ACTIVE" => 0.333_333,
        "DCGM_FI_PROF_PCIE_TX_BYTES" => 52_428_800.0,
        "DCGM_FI_PROF_PCIE_RX_BYTES" => 104_857_600.0,
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" => 68.0,
        "DCGM_FI_DEV_POWER_VIOLATION" => 12_250_000_000.0,
        "DCGM_FI_DEV_FB_USED_PERCENT" => 0.545_684,
        "DCGM_FI_DEV_PSTATE" => 0.0,
        "DCGM_FI_CUDA_DRIVER_VERSION" => 13_000.0,
        "DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY" => 589_824.0,
        "DCGM_FI_DEV_PCI_COMBINED_ID" => f64::from(0x2335_10de_u32),
        "DCGM_FI_DEV_COMPUTE_MODE" => 3.0,
        "DCGM_FI_DEV_FABRIC_MANAGER_STATUS" => 3.0,
        "DCGM_FI_DEV_FABRIC_CLIQUE_ID" => 32_766.0,
        "DCGM_FI_DEV_ECC_SBE_AGG_SRM" => 2.0,
        "DCGM_FI_DEV_NVLINK_TX_BANDWIDTH_TOTAL" => 2_500.0,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS" => 12.25e9,
        _ => return None,
    })
}

#[test]
fn every_default_value_is_that_of_the_table() {
    let node = node::plain();
    for release in Release::ALL {
        let page = parsed(&config(release, Values::Faithful), &node);
        let list = FieldList::default_of(release);
        for column in &list.columns {
            let value = expected(column.field).unwrap_or_else(|| panic!("{}: no expectation", column.name));
            let family = page.family(&column.name);
            assert_eq!(family.kind, column.kind.name(), "{}", column.name);
            // Only the first GPU had an Xid.
            let gpus = if column.field.id == 230 { 1 } else { 2 };
            assert_eq!(family.samples.len(), gpus, "{}", column.name);
            let first = family.with(&[("gpu", "0")]);
            assert_eq!(first.len(), 1, "{}", column.name);
            assert!(
                (first[0].value - value).abs() <= value.abs() * 1e-12,
                "{}: {}",
                column.name,
                first[0].value
            );
        }
        assert_eq!(page.families.len(), list.columns.len());
    }
}

#[test]
fn every_field_has_the_value_of_its_expression_where_one_is_known() {
    let node = node::plain();
    let config = PageConfig { fields: everything(Release::V4_8), ..config(Release::V4_8, Values::Faithful) };
    let page = parsed(&config, &node);
    for column in &config.fields.columns {
        assert!(
            page.families.contains_key(&column.name),
            "{}: nothing of a node that has it all",
            column.name
        );
        let Some(value) = expected(column.field) else { continue };
        let found = page.family(&column.name).with(&[("gpu", "0")])[0].value;
        assert!((found - value).abs() <= value.abs() * 1e-9, "{}: {found} is not {value}", column.name);
    }
}

#[test]
fn labels_have_the_order_of_the_release() {
    let text = page(&config(Release::V4_8, Values::Faithful), &node::plain());
    let line = text.lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"")).unwrap();
    assert_eq!(
        line,
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-b\",pci_bus_id=\"00000000:1A:00.0\",device=\"nvidia0\",\
         modelName=\"NVIDIA H200\",hostname=\"node1\",DCGM_FI_DRIVER_VERSION=\"580.95.05\"} 57"
    );
    let text = page(&config(Release::V4_9, Values::Faithful), &node::mig());
    let line = text.lines().find(|line| line.starts_with("DCGM_FI_DEV_FB_USED_BYTES{gpu=\"1\"")).unwrap();
    assert_eq!(
        line,
        "DCGM_FI_DEV_FB_USED_BYTES{gpu=\"1\",UUID=\"GPU-a\",pci_bus_id=\"00000000:3B:00.0\",device=\"nvidia1\",\
         modelName=\"NVIDIA H200\",GPU_I_PROFILE=\"3g.71gb\",GPU_I_ID=\"2\",GPU_CI_ID=\"0\",hostname=\"node1\",\
         DCGM_FI_SYSTEM_DRIVER_VERSION=\"580.95.05\"} 1.073741824e+09"
    );
}

#[test]
fn families_come_by_name_and_gpus_by_uuid() {
    let text = page(&config(Release::V4_8, Values::Faithful), &node::plain());
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|l| l.split(' ').next())
        .collect();
    assert!(names.is_sorted() && names.len() == 25, "{names:?}");
    let memory = names.iter().position(|name| *name == "DCGM_FI_DEV_MEMORY_TEMP");
    assert!(memory < names.iter().position(|name| *name == "DCGM_FI_DEV_MEM_CLOCK"));
    let gpus: Vec<&str> = text.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{")).collect();
    assert!(gpus[0].contains("GPU-a") && gpus[1].contains("GPU-b"), "{gpus:?}");
}

#[test]
fn the_label_of_the_host_is_the_one_that_was_set() {
    let node = node::plain();
    for (name, host, text) in [
        ("Hostname", "n\"1", ",Hostname=\"n\\\"1\","),
        ("hostname", "n1", ",hostname=\"n1\","),
        ("", "n1", "\",DCGM_FI_DRIVER"),
    ] {
        let (hostname_label, hostname) = (name.to_owned(), host.to_owned());
        let config = PageConfig { hostname_label, hostname, ..config(Release::V4_8, Values::Faithful) };
        let page = page(&config, &node);
        assert!(page.contains(text), "{text}");
        assert_eq!(page.to_lowercase().contains("hostname"), !name.is_empty());
    }
}

#[test]
fn the_name_that_two_releases_give_to_two_units_has_the_unit_of_the_release() {
    let name = "DCGM_FI_DEV_GPU_UTIL_RATIO";
    for (release, id, value) in [(Release::V4_8, 203, 57.0), (Release::V4_9, 1613, 0.57)] {
        assert_eq!(find(name, release).unwrap().id, id);
        let mut fields = FieldList::default();
        fields.add("test", name, FamilyType::Gauge, "", release);
        let page = parsed(&PageConfig { fields, ..config(release, Values::Faithful) }, &node::plain());
        assert_eq!(page.family(name).with(&[("gpu", "0")])[0].value, value);
    }
}

#[test]
fn without_an_xid_there_is_none() {
    let page = parsed(&config(Release::V4_8, Values::Faithful), &node::plain());
    let xids = page.family("DCGM_FI_DEV_XID_ERRORS");
    assert_eq!(xids.with(&[("gpu", "1")]).len(), 0, "absent, not 0");
    let first = &xids.samples[0];
    assert_eq!(first.label("err_code"), Some("79"));
    assert_eq!(first.label("err_msg"), Some(model::xid::xid(79).mnemonic));
}

#[test]
fn an_xid_of_an_instance_is_on_the_gpu_and_on_the_instance() {
    use model::snapshot::Event;
    let mut node = node::mig();
    let event = |code: u64, seconds: f64, compute: Option<u32>| {
        let quiet = Event::new(EventKind::Xid, seconds, Severity::Info, FaultAction::Ignore);
        let (gpu, code, gpu_instance) = (Some(gpu(1)), Some(code), Some(5));
        std::sync::Arc::new(Event { gpu, code, gpu_instance, compute_instance: compute, ..quiet })
    };
    node.events = [event(31, 10.0, Some(1)), event(43, 30.0, Some(1)), event(13, 20.0, Some(0))].into();
    let found = |values: Values| {
        let page = parsed(&config(Release::V4_8, values), &node);
        let of = page.family("DCGM_FI_DEV_XID_ERRORS").with(&[("gpu", "1")]);
        let one = |one: &ParsedSample| {
            let label = |name: &str| one.label(name).map(str::to_owned);
            (label("GPU_I_ID"), label("GPU_CI_ID"), one.value)
        };
        of.iter().map(one).collect::<Vec<_>>()
    };
    let text = |id: &str| Some(id.to_owned());
    assert_eq!(found(Values::Faithful), [(text("5"), text("0"), 13.0), (text("5"), text("1"), 43.0)]);
    assert_eq!(found(Values::Corrected), [(text("5"), None, 43.0)]);
}

#[test]
fn a_gpu_in_mig_mode_is_its_instances() {
    let node = node::mig();
    let faithful = parsed(&config(Release::V4_8, Values::Faithful), &node);
    let of = |name: &str| faithful.family(name).with(&[("gpu", "1")]);
    // The board's own values are on each of its instances.
    let power = of("DCGM_FI_DEV_POWER_USAGE");
    assert_eq!(power.len(), MIG.len());
    assert!(power.iter().all(|one| one.value == 612.345 && one.label("GPU_CI_ID").is_none()));
    // Memory is read of each compute instance.
    let memory = of("DCGM_FI_DEV_FB_USED");
    let ids: BTreeSet<_> =
        memory.iter().map(|one| (one.label("GPU_I_ID").unwrap(), one.label("GPU_CI_ID").unwrap())).collect();
    assert_eq!(ids, BTreeSet::from([("2", "0"), ("5", "0"), ("5", "1")]), "none of an instance without one");
    assert_eq!(of("DCGM_FI_PROF_DRAM_ACTIVE").len(), MIG.len());
    assert!(of("DCGM_FI_PROF_DRAM_ACTIVE").iter().all(|one| one.label("GPU_CI_ID").is_none()));
    // The utilization is none in MIG mode, and the other GPU is as ever.
    assert_eq!(of("DCGM_FI_DEV_GPU_UTIL").len(), 0);
    assert_eq!(faithful.family("DCGM_FI_DEV_GPU_UTIL").samples.len(), 1);
    assert!(faithful.family("DCGM_FI_DEV_POWER_USAGE").with(&[("gpu", "0")])[0].label("GPU_I_ID").is_none());

    let corrected = parsed(&config(Release::V4_8, Values::Corrected), &node);
    let of = |name: &str| corrected.family(name).with(&[("gpu", "1")]);
    let power = of("DCGM_FI_DEV_POWER_USAGE");
    assert_eq!((power.len(), power[0].label("GPU_I_ID")), (1, None), "once");
    let memory = of("DCGM_FI_DEV_FB_USED");
    let ids: BTreeSet<_> = memory.iter().map(|one| one.label("GPU_I_ID").unwrap()).collect();
    assert_eq!((memory.len(), ids), (3, BTreeSet::from(["2", "5", "9"])));
    assert!(memory.iter().all(|one| one.label("GPU_CI_ID").is_none()));
    // An instance's own rate, not that of the board again.
    let pcie = of("DCGM_FI_PROF_PCIE_TX_BYTES");
    assert_eq!(pcie.iter().map(|one| one.value).sum::<f64>(), 6.0e6);
}

fn own(names: &[&str]) -> PageConfig {
    let mut fields = FieldList::default();
    for name in names {
        fields.add("test", name, find(name, Release::V4_8).unwrap().kind, "", Release::V4_8);
    }
    assert_eq!(fields.problems, []);
    PageConfig { fields, ..config(Release::V4_8, Values::Faithful) }
}

#[test]
fn windows_count_and_say_how_long_they_are() {
    let config = own(&["DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT"]);
    let page = parsed(&config, &node::plain());
    let xids = page.family("DCGM_EXP_XID_ERRORS_COUNT");
    let found = &xids.with(&[("gpu", "0")]);
    assert_eq!(
        found.iter().map(|one| (one.label("xid"), one.value)).collect::<Vec<_>>(),
        [(Some("79"), 2.0)]
    );
    assert!(xids.samples.iter().all(|one| one.label("window_size_in_ms") == Some("300000")));
    let none = &xids.with(&[("gpu", "1")]);
    assert_eq!((none.len(), none[0].label("xid"), none[0].value), (1, None, 0.0));
    let clocks = page.family("DCGM_EXP_CLOCK_EVENTS_COUNT");
    let first = clocks.with(&[("gpu", "0")]);
    let words: Vec<_> = first.iter().map(|one| one.label("clock_event").unwrap()).collect();
    assert_eq!(words, ["hw_thermal", "power_cap"]);
    assert_eq!(clocks.with(&[("gpu", "1")]).len(), 0, "looked at, and nothing found");
    let nothing = Snapshot { families: identities(&node::plain()), ..Snapshot::default() };
    let clocks = parsed(&config, &nothing).family("DCGM_EXP_CLOCK_EVENTS_COUNT").with(&[("gpu", "1")]);
    assert_eq!(
        (clocks.len(), clocks[0].label("clock_event"), clocks[0].value),
        (1, None, 0.0),
        "never looked at"
    );
    let corrected = parsed(&PageConfig { values: Values::Corrected, ..config }, &nothing);
    assert!(!corrected.families.contains_key("DCGM_EXP_CLOCK_EVENTS_COUNT"), "absent, not 0");
    assert_eq!(corrected.family("DCGM_EXP_XID_ERRORS_COUNT").with(&[("gpu", "1")])[0].value, 0.0);
}

#[test]
fn with_mig_counts_of_xids_are_0_and_the_last_one_is_there() {
    let names = ["DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_FI_DEV_XID_ERRORS"];
    let mut rows = Rows::default();
    let code = (XidCode("79".into()), Severity::Page, FaultAction::ResetGpu);
    let mut of = rows.entity(&gpu(1));
    of.record(&m::gpu_xid_errors_total, code, 3.0).unwrap();
    of.record(&m::gpu_xid_window_errors, (XidCode("79".into()),), 2.0).unwrap();
    of.record(&m::gpu_xid_last_code, (), 79.0).unwrap();
    let mut node = node::mig();
    for family in Snapshot::with_rows(&rows).families {
        node.families.retain(|known| !std::ptr::eq(known.def, family.def));
        node.families.push(family);
    }
    let found = |values: Values| {
        let page = parsed(&PageConfig { values, ..own(&names) }, &node);
        names.map(|name| {
            let of = page.families.get(name).map_or(Vec::new(), |family| family.with(&[("gpu", "1")]));
            of.iter().map(|one| (one.label("GPU_I_ID").is_some(), one.value)).collect::<Vec<_>>()
        })
    };
    let of_instances = vec![(true, 0.0); MIG.len()];
    assert_eq!(found(Values::Faithful), [of_instances, vec![], vec![(false, 79.0)]]);
    assert_eq!(found(Values::Corrected), [vec![(false, 2.0)], vec![(false, 3.0)], vec![(false, 79.0)]]);
}

/// The families that say which GPUs there are.
fn identities(snapshot: &Snapshot) -> Vec<model::snapshot::Family> {
    let info = |family: &&model::snapshot::Family| std::ptr::eq(family.def, m::gpu_info.def());
    let copy = |family: &model::snapshot::Family| model::snapshot::Family {
        def: family.def,
        series: family.series.clone(),
        whole: family.whole,
    };
    snapshot.families.iter().filter(info).map(copy).collect()
}

#[test]
fn totals_have_no_series_before_the_first_event() {
    let page = parsed(&own(&["DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_CLOCK_EVENTS_TOTAL"]), &node::plain());
    let xids = &page.family("DCGM_EXP_XID_ERRORS_TOTAL").samples;
    assert_eq!(xids.iter().map(|one| (one.label("xid"), one.value)).collect::<Vec<_>>(), [(Some("79"), 3.0)]);
    let clocks = &page.family("DCGM_EXP_CLOCK_EVENTS_TOTAL").samples;
    assert_eq!(clocks.len(), 1);
    assert_eq!((clocks[0].label("clock_event"), clocks[0].value), (Some("power_cap"), 41.0));
}

#[test]
fn every_watch_of_every_gpu_has_a_state() {
    let page = parsed(&own(&["DCGM_EXP_GPU_HEALTH_STATUS"]), &node::mig());
    let health = page.family("DCGM_EXP_GPU_HEALTH_STATUS");
    assert_eq!(health.samples.len(), 22);
    assert!(health.samples.iter().all(|one| one.label("GPU_I_ID").is_none()), "whole GPUs alone");
    let remap = &health.with(&[("gpu", "1"), ("health_watch", "MEM")])[0];
    assert_eq!(remap.value, 20.0);
    assert_eq!(remap.label("health_error_code"), Some("DCGM_FR_ROW_REMAP_FAILURE"));
    assert_eq!(remap.label("health_error_severity"), Some("ISOLATE"));
    assert_eq!(remap.label("health_error_category"), Some("HARDWARE_MEMORY"));
    let well = &health.with(&[("gpu", "0"), ("health_watch", "MEM")])[0];
    assert_eq!((well.value, well.label("health_error_code")), (0.0, Some("DCGM_FR_OK")));
}

#[test]
fn each_pair_of_gpus_has_a_state() {
    let page = parsed(&own(&["DCGM_EXP_P2P_STATUS"]), &node::plain());
    let peers = &page.family("DCGM_EXP_P2P_STATUS").samples;
    let pairs: BTreeSet<_> = peers
        .iter()
        .map(|one| {
            (one.label("gpu").unwrap(), one.label("peer_gpu").unwrap(), one.label("link_status").unwrap())
        })
        .collect();
    assert_eq!(pairs, BTreeSet::from([("0", "1", "OK"), ("1", "0", "TopologyNotSupported")]));
    assert_eq!(peers.iter().map(|one| one.value).sum::<f64>(), 3.0);
}

#[test]
fn a_gpu_that_could_not_join_the_fabric_has_failed() {
    let page = parsed(&own(&["DCGM_FI_DEV_FABRIC_MANAGER_STATUS"]), &node::plain());
    let status = page.family("DCGM_FI_DEV_FABRIC_MANAGER_STATUS");
    assert_eq!((status.with(&[("gpu", "0")])[0].value, status.with(&[("gpu", "1")])[0].value), (3.0, 4.0));
}

#[test]
fn the_type_of_the_list_stays_unless_corrected() {
    let mut fields = FieldList::default();
    fields.add("test", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", FamilyType::Counter, "", Release::V4_8);
    for (values, kind, value) in [(Values::Faithful, "counter", 4000.0), (Values::Corrected, "gauge", 4096.0)]
    {
        let config = PageConfig { fields: fields.clone(), ..config(Release::V4_8, values) };
        let page = parsed(&config, &node::plain());
        let family = page.family("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL");
        assert_eq!((family.kind.as_str(), family.with(&[("gpu", "0")])[0].value), (kind, value));
    }
}

#[test]
fn texts_and_numbers_can_be_labels() {
    let mut fields = FieldList::default();
    for name in
        ["DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_BRAND", "DCGM_FI_DEV_MINOR_NUMBER", "DCGM_FI_DEV_PCI_BUSID"]
    {
        fields.add("test", name, FamilyType::Label, "", Release::V4_8);
    }
    fields.add("test", "DCGM_FI_DEV_GPU_TEMP", FamilyType::Gauge, "", Release::V4_8);
    let page = parsed(&PageConfig { fields, ..config(Release::V4_8, Values::Faithful) }, &node::plain());
    let temperature = page.family("DCGM_FI_DEV_GPU_TEMP");
    let one = &temperature.with(&[("gpu", "0")])[0];
    assert_eq!(one.label("DCGM_FI_DEV_SERIAL"), Some("1654024000"));
    assert_eq!(one.label("DCGM_FI_DEV_BRAND"), Some("NVIDIA"));
    assert_eq!(one.label("DCGM_FI_DEV_MINOR_NUMBER"), Some("3"));
    assert_eq!(one.label("DCGM_FI_DEV_PCI_BUSID"), Some("00000000:1A:00.0"));
    let other = &temperature.with(&[("gpu", "1")])[0];
    assert_eq!(other.label("DCGM_FI_DEV_BRAND"), None, "not known: no label");
}

#[test]
fn an_empty_snapshot_is_an_empty_page() {
    assert_eq!(page(&PageConfig::default(), &Snapshot::default()), "");
}

#[test]
fn labels_and_help_are_escaped() {
    let mut rows = Rows::default();
    let info = GpuInfo { model: "a\"b\\c\nd".into(), ..GpuInfo::default() };
    rows.entity(&gpu(0)).info(&m::gpu_info, info);
    rows.entity(&gpu(0)).record(&m::gpu_power_watts, (), 1.0).unwrap();
    let mut fields = FieldList::default();
    fields.add("test", "DCGM_FI_DEV_POWER_USAGE", FamilyType::Gauge, "a\\b\nc\"d", Release::V4_8);
    let config = PageConfig { fields, ..config(Release::V4_8, Values::Faithful) };
    let text = page(&config, &Snapshot::with_rows(&rows));
    assert!(text.starts_with("# HELP DCGM_FI_DEV_POWER_USAGE a\\\\b\\nc\"d\n"), "{text}");
    assert!(text.contains("modelName=\"a\\\"b\\\\c\\nd\""), "{text}");
    let model = read(&text).unwrap().family("DCGM_FI_DEV_POWER_USAGE").samples[0]
        .label("modelName")
        .map(str::to_owned);
    assert_eq!(model.as_deref(), Some("a\"b\\c\nd"));
}

/// Rows of any metric about any GPU or instance, with any labels.
fn any_rows() -> impl Strategy<Value = Vec<(usize, u32, u32, usize, String, f64)>> {
    let value = prop_oneof![Just(0.0), Just(1.0), -1e3..1e19f64, prop::num::f64::ANY];
    prop::collection::vec(
        (0..METRICS.len(), 0..3u32, 0..3u32, 0..300usize, "[a-z\"\\\\\n{},=]{0,6}", value),
        0..120,
    )
}

fn any_snapshot(parts: &[(usize, u32, u32, usize, String, f64)]) -> Snapshot {
    use model::catalog::schema::{Entity, LabelText};
    use model::snapshot::{Family, Series, SubjectText, Value};
    let mut snapshot = node::pods();
    for (metric, index, id, pick, text, value) in parts {
        let def = &METRICS[*metric];
        let of = gpu(*index);
        let profile: std::sync::Arc<str> = text.as_str().into();
        let (number, uuid) = (of.gpu, of.uuid.clone());
        let subject = match def.entity {
            EntityKind::Gpu => of.subject(),
            EntityKind::GpuInstance => {
                GpuInstance { gpu: number, uuid, gpu_instance: *id, profile }.subject()
            }
            EntityKind::ComputeInstance => {
                ComputeInstance { gpu: number, uuid, gpu_instance: *id, profile, compute_instance: *id }
                    .subject()
            }
            EntityKind::AllocatedGpu => AllocatedGpu::new(&of, (*id > 0).then_some(*id)).subject(),
            _ => Node {}.subject(),
        };
        let label = |label: &schema::LabelDef| match label.values {
            Some(values) => LabelText::Known((pick % values.len()) as u8),
            None => LabelText::Text(text.as_str().into()),
        };
        let subject = std::sync::Arc::new(SubjectText { values: subject.label_values(), subject });
        let series =
            Series { subject, labels: def.labels.iter().map(label).collect(), value: Value::Number(*value) };
        match snapshot.families.iter_mut().find(|family| std::ptr::eq(family.def, def)) {
            Some(family) => family.series.push(series),
            None => snapshot.families.push(Family { def, series: vec![series], whole: true }),
        }
    }
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_snapshot_is_a_page_that_a_strict_reader_takes(parts in any_rows(), corrected: bool) {
        let snapshot = any_snapshot(&parts);
        let values = if corrected { Values::Corrected } else { Values::Faithful };
        for release in Release::ALL {
            let config = PageConfig { fields: everything(release), jobs: true, ..config(release, values) };
            let text = page(&config, &snapshot);
            let page = read(&text);
            prop_assert!(page.is_ok(), "{}\n{text}", page.unwrap_err());
        }
    }
}

#[test]
fn instances_of_no_level_but_their_own_are_asked() {
    for level in [Level::Board, Level::GpuInstance, Level::ComputeInstance, Level::Whole] {
        let entities = Entities::from_snapshot(&node::mig());
        for (corrected, entity) in
            [false, true].into_iter().flat_map(|c| entities.at(level, c).into_iter().map(move |e| (c, e)))
        {
            let subjects = entities.subjects(entity, level, corrected);
            let whole = subjects.iter().any(|subject| matches!(subject, Subject::Gpu(_)));
            let own = matches!(level, Level::GpuInstance | Level::ComputeInstance) || corrected;
            assert_eq!(whole, entity.instance.is_none() || !own, "{level:?} {entity:?}");
        }
    }
}

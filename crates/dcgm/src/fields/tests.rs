use std::collections::BTreeSet;

use super::*;
use crate::list::FieldList;

#[test]
fn numbers_rise_and_names_are_unique_but_for_the_one_of_two_units() {
    assert!(TABLE.is_sorted_by(|one, two| one.id < two.id));
    let mut seen = BTreeSet::new();
    let twice: Vec<&str> =
        TABLE.iter().flat_map(|field| field.names).filter(|name| !seen.insert(**name)).copied().collect();
    assert_eq!(twice, ["DCGM_FI_DEV_GPU_UTIL_RATIO"]);
}

#[test]
fn every_row_is_one_that_dcgm_can_have() {
    for field in TABLE {
        let name = field.name();
        assert!(field.names[0].starts_with("DCGM_"), "{name}");
        for name in field.names {
            assert!(
                name.starts_with("DCGM_FI_") || name.starts_with("DCGM_EXP_") || name.starts_with("dcgm_"),
                "{name}"
            );
        }
        assert!(field.help.ends_with('.') && field.help.len() <= 120, "{name}: {}", field.help);
        assert_eq!(field.format == FieldFormat::Text, field.kind == FamilyType::Label, "{name}");
        assert!(field.is_served() || field.expression().is_empty(), "{name}");
        assert!(!field.expression().is_empty() || !field.remark().is_empty(), "{name}: no reason");
        // Its name says whether it only grows, where the older ones are not wrong.
        if field.id >= 1600 && field.id < 9000 {
            assert_eq!(field.names[0].ends_with("_TOTAL"), field.kind == FamilyType::Counter, "{name}");
        }
    }
}

#[test]
fn counters_that_are_read_once_a_minute_say_so() {
    let names = TABLE.iter().filter(|field| field.remark().contains("read once a minute"));
    let names: Vec<&str> = names.map(|field| field.name()).collect();
    for name in [
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        "DCGM_FI_DEV_THERMAL_VIOLATION",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert!(!names.contains(&"DCGM_FI_DEV_GPU_TEMP"));
}

#[test]
fn readings_name_label_values_that_there_are() {
    let check = |name: &str, (metric, values): &Reading| {
        let def = model::catalog::def(*metric).unwrap();
        assert!(values.len() <= def.labels.len(), "{name}: {}", def.name);
        for (value, label) in values.iter().zip(def.labels) {
            assert!(label.values.is_none_or(|known| known.contains(value)), "{name}: {value}");
        }
    };
    let states = |name: &str, metric: MetricId, words: &[(&str, u32)]| {
        let label = &model::catalog::def(metric).unwrap().labels[0];
        let words: BTreeSet<&str> = words.iter().map(|(word, _)| *word).collect();
        assert_eq!(words, label.values.unwrap().iter().copied().collect(), "{name}");
    };
    for field in TABLE {
        match field.source {
            FieldSource::Series { of, .. } | FieldSource::Sum { of, .. } => {
                of.iter().for_each(|one| check(field.name(), one))
            }
            FieldSource::Bits { metric, bits } => states(field.name(), metric, bits),
            FieldSource::Choice { metric, numbers, .. } => states(field.name(), metric, numbers),
            FieldSource::Info { metric, label, .. } => {
                let def = model::catalog::def(metric).unwrap();
                let mut labels = def.entity.labels().iter().chain(def.labels);
                assert!(labels.any(|known| known.name == label), "{}: {label}", field.name());
            }
            FieldSource::None(_) | FieldSource::Share { .. } | FieldSource::Own(_) => {}
        }
    }
}

#[test]
fn an_expression_says_what_a_value_is_made_of() {
    let of = |name| find(name, Release::V4_8).unwrap().expression();
    assert_eq!(of("DCGM_FI_DEV_SM_CLOCK"), "gpu_clock_hertz{domain=\"sm\"} / 1000000");
    assert_eq!(of("DCGM_FI_DEV_GPU_UTIL"), "gpu_utilization_ratio * 100");
    assert_eq!(
        of("DCGM_FI_DEV_FB_USED"),
        "gpu_memory_used_bytes / 1048576 or gpu_mig_memory_used_bytes / 1048576"
    );
    assert_eq!(
        of("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),
        "(rate(gpu_nvlink_bytes_total{direction=\"tx\"}[1m]) + ignoring (direction) \
         rate(gpu_nvlink_bytes_total{direction=\"rx\"}[1m])) / 1024000"
    );
    assert_eq!(
        of("DCGM_FI_DEV_COMPUTE_MODE"),
        "sum without (mode) (gpu_compute_mode{mode=\"default\"} * 0 or gpu_compute_mode{mode=\"exclusive_thread\"} * 1 \
         or gpu_compute_mode{mode=\"prohibited\"} * 2 or gpu_compute_mode{mode=\"exclusive_process\"} * 3)"
    );
    assert_eq!(of("DCGM_FI_DEV_SERIAL"), "group by (instance, gpu, uuid, serial) (gpu_info)");
    assert_eq!(of("DCGM_FI_DEV_BRAND"), "", "in the JSON alone");
}

#[test]
fn the_default_lists_are_those_of_the_releases() {
    for (release, families) in [(Release::V4_8, 25), (Release::V4_9, 26)] {
        let list = FieldList::default_of(release);
        assert_eq!((list.problems.len(), list.columns.len(), list.labels.len()), (0, families, 1));
    }
    // 23 are renamed, of which 11 have another unit, and one is new.
    let (old, new) = (FieldList::default_of(Release::V4_8), FieldList::default_of(Release::V4_9));
    let names = |list: &FieldList| -> BTreeSet<String> {
        list.columns.iter().chain(&list.labels).map(|column| column.name.clone()).collect()
    };
    let ids = |list: &FieldList| -> BTreeSet<u16> {
        list.columns.iter().chain(&list.labels).map(|column| column.field.id).collect()
    };
    assert_eq!(names(&old).difference(&names(&new)).count(), 23);
    assert_eq!(ids(&old).difference(&ids(&new)).count(), 11);
    assert_eq!(ids(&new).difference(&ids(&old)).count(), 12);
}

#[test]
fn what_cannot_be_served_is_a_problem_and_the_rest_is_served() {
    use crate::list::ProblemKind;
    let mut list = FieldList::default();
    let mut add = |name, kind| list.add("line 1", name, kind, "", Release::V4_8);
    add("DCGM_FI_DEV_GPU_TEMP", FamilyType::Gauge);
    add("DCGM_FI_DEV_GPU_TEMP_CELSIUS", FamilyType::Gauge);
    add("DCGM_FI_DEV_GPU_TEMPERATURE", FamilyType::Gauge);
    add("DCGM_FI_DEV_FAN_SPEED", FamilyType::Gauge);
    add("DCGM_FI_DEV_SERIAL", FamilyType::Gauge);
    add("dcgm_sm_clock", FamilyType::Gauge);
    assert_eq!(
        list.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
        ["DCGM_FI_DEV_GPU_TEMP", "dcgm_sm_clock"]
    );
    let kinds: Vec<&ProblemKind> = list.problems.iter().map(|problem| &problem.kind).collect();
    assert!(matches!(
        kinds[..],
        [ProblemKind::Doubled(_), ProblemKind::Unknown, ProblemKind::NoSource, ProblemKind::TextOnly]
    ));
}

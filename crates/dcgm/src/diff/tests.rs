//! Pages compared: our own in both releases, one as dcgm-exporter 4.8.2 writes it, and any page with itself.

use proptest::prelude::*;

use super::*;
use crate::fields::Release;
use crate::page::Values;
use crate::parse::read;

const PLAIN: &str = include_str!("../page/golden/plain-4.8-faithful.prom");
const PLAIN_4_9: &str = include_str!("../page/golden/plain-4.9-faithful.prom");
const MIG: &str = include_str!("../page/golden/mig-4.8-faithful.prom");
const MIG_CORRECTED: &str = include_str!("../page/golden/mig-4.8-corrected.prom");
const PODS: &str = include_str!("../page/golden/pods-4.8-faithful.prom");
const EVERYTHING: &str = include_str!("../page/golden/everything.prom");

/// Of one GPU and one switch, some seconds later, as 4.8.2 writes it: by number, all decimals, no exponent, `Hostname`.
const OLD: &str = include_str!("pages/4.8.2.prom");

fn page(release: Release) -> PageConfig {
    PageConfig::for_release(release, "node1")
}

fn with(page: &PageConfig) -> DiffConfig<'_> {
    DiffConfig { page, own_list: false, same_time: true, factor: 1.0 }
}

/// One scrape of each.
fn diff_of(theirs: &str, ours: &str, config: DiffConfig<'_>) -> Result<PageDiff, NotComparable> {
    compare(&[read(theirs).unwrap()], &[read(ours).unwrap()], config)
}

fn diff(theirs: &str, ours: &str) -> PageDiff {
    diff_of(theirs, ours, with(&page(Release::V4_8))).unwrap()
}

fn family<'a>(diff: &'a PageDiff, name: &str) -> &'a FamilyDiff {
    diff.families.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("no {name}: {diff:#?}"))
}

/// The settings as `key = value`.
fn settings(diff: &PageDiff) -> Vec<String> {
    diff.advice.settings.iter().map(|one| format!("{} = {}", one.key, one.value)).collect()
}

/// A page of one family.
fn one(kind: &str, name: &str, series: &[(&str, f64)]) -> String {
    let lines = series.iter().map(|(labels, value)| format!("{name}{{{labels}}} {value}\n"));
    format!("# HELP {name} Some help, with a comma.\n# TYPE {name} {kind}\n{}", lines.collect::<String>())
}

const GPU: &str = "gpu=\"0\",UUID=\"GPU-a\"";

fn gauge(name: &str, value: f64) -> String {
    one("gauge", name, &[(GPU, value)])
}

#[test]
fn a_page_is_the_same_as_itself() {
    for text in [PLAIN, PLAIN_4_9, MIG, MIG_CORRECTED, PODS, EVERYTHING] {
        let found = diff(text, text);
        assert!(found.alike && found.families.len() > 20, "{found:#?}");
        assert_eq!(found.advice.verdict, SwitchVerdict::Safe);
        assert!(settings(&found).is_empty() && found.advice.lost.is_empty(), "{:#?}", found.advice);
        assert!(found.labels.iter().all(|label| label.state == LabelState::Same));
    }
}

#[test]
fn the_page_of_the_last_release_without_escapes_is_named_setting_by_setting() {
    let found = diff(&format!("{OLD}go_goroutines 9\n"), PLAIN);
    assert_eq!(
        found.gpus,
        GpuSets { common: vec!["GPU-b".into()], missing: vec![], extra: vec!["GPU-a".into()] }
    );
    let hostname = found.labels.iter().find(|label| label.name == "Hostname").unwrap();
    assert_eq!(hostname.state, LabelState::Renamed { ours: "hostname".into() });
    let driver = found.labels.iter().find(|label| label.name == "DCGM_FI_DRIVER_VERSION").unwrap();
    assert_eq!(driver.state, LabelState::Same);
    // A rate was a counter until 4.8.2.
    let nvlink = family(&found, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL");
    assert_eq!(nvlink.types, Some(("counter".into(), "gauge".into())));
    assert_eq!(nvlink.states, [FamilyState::OtherType, FamilyState::OtherLabels]);
    // 143771 as 143771, 0.97 as 0.970000: the same.
    assert_eq!(family(&found, "DCGM_FI_DEV_FB_FREE").states, [FamilyState::OtherLabels]);
    assert_eq!(family(&found, "DCGM_FI_PROF_GR_ENGINE_ACTIVE").states, [FamilyState::OtherLabels]);
    // What is not about a GPU is not covered, what is unknown is not either, what could be listed is a row.
    let missing = |name| family(&found, name).missing.clone().unwrap();
    assert_eq!(missing("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT"), MissingReason::NotGpu);
    assert_eq!(missing("DCGM_FI_DEV_FAN_SPEED"), MissingReason::NotCovered);
    assert_eq!(missing("DCGM_FI_DEV_OF_TOMORROW"), MissingReason::Unknown);
    let row = "DCGM_FI_DEV_FB_TOTAL,gauge,\"Total Frame Buffer of the GPU, in MB.\"";
    assert_eq!(missing("DCGM_FI_DEV_FB_TOTAL"), MissingReason::NotListed { row: row.into() });
    assert_eq!(settings(&found), ["fields_file = \"...\"", "hostname_label = \"Hostname\""]);
    assert!(found.advice.rows.iter().any(|have| have == row));
    assert!(
        found.advice.rows.iter().any(|have| have.starts_with("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL,counter,"))
    );
    assert_eq!(found.advice.lost.len(), 3, "{:#?}", found.advice.lost);
    assert_eq!((found.advice.verdict, found.alike), (SwitchVerdict::Lossy, false));
    assert_eq!(found.about_itself, ["go_goroutines"]);
    assert_eq!(family(&found, "DCGM_FI_DEV_XID_ERRORS").states, [FamilyState::Extra]);
}

#[test]
fn names_of_the_other_release_ask_for_that_release() {
    let found = diff(PLAIN_4_9, PLAIN);
    assert_eq!(settings(&found), ["release = \"4.9\""]);
    assert_eq!((found.advice.verdict, found.advice.rows.len()), (SwitchVerdict::AfterSettings, 0));
    assert_eq!(found.advice.lost, [""; 0]);
    let renamed = LabelState::Renamed { ours: "DCGM_FI_DRIVER_VERSION".into() };
    assert!(found.labels.iter().any(|label| label.state == renamed));
    let new = page(Release::V4_9);
    let back = diff_of(PLAIN, PLAIN_4_9, with(&new)).unwrap();
    assert_eq!(settings(&back), ["release = \"4.8\""]);
    // With a list of one's own it is the list.
    let own = DiffConfig { own_list: true, ..with(&new) };
    let back = diff_of(PLAIN, PLAIN_4_9, own).unwrap();
    assert_eq!(settings(&back), ["fields_file = \"...\""]);
    assert!(
        back.advice.rows.iter().any(|row| row == "DCGM_FI_DRIVER_VERSION,label,"),
        "{:?}",
        back.advice.rows
    );
}

#[test]
fn one_name_with_two_units_asks_for_the_release() {
    let (percent, ratio) =
        (gauge("DCGM_FI_DEV_GPU_UTIL_RATIO", 57.0), gauge("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.57));
    let own = page(Release::V4_8);
    let found = diff_of(&ratio, &percent, DiffConfig { own_list: true, ..with(&own) }).unwrap();
    assert_eq!(settings(&found), ["release = \"4.9\""]);
    assert_eq!(found.advice.lost, [""; 0]);
}

#[test]
fn instances_are_paired_by_their_ids_and_corrections_are_named() {
    let corrected = PageConfig { values: Values::Corrected, ..page(Release::V4_8) };
    let found = diff_of(MIG, MIG_CORRECTED, with(&corrected)).unwrap();
    let temperature = family(&found, "DCGM_FI_DEV_GPU_TEMP");
    assert!(temperature.states.contains(&FamilyState::OtherSeries), "{temperature:#?}");
    assert!(temperature.missing_series.example.contains("GPU_I_ID"));
    assert_eq!(temperature.extra_series.count, 1);
    assert_eq!(settings(&found), ["values = \"faithful\""]);
    // Up to 4.8.3 a GPU instance has its memory once, without the compute instance.
    let theirs = one("gauge", "DCGM_FI_DEV_FB_USED", &[("UUID=\"GPU-a\",GPU_I_ID=\"2\"", 5.0)]);
    let ours = one(
        "gauge",
        "DCGM_FI_DEV_FB_USED",
        &[
            ("UUID=\"GPU-a\",GPU_I_ID=\"2\",GPU_CI_ID=\"0\"", 5.0),
            ("UUID=\"GPU-a\",GPU_I_ID=\"2\",GPU_CI_ID=\"1\"", 5.0),
        ],
    );
    let found = diff(&theirs, &ours);
    assert_eq!(found.families[0].states, [FamilyState::OtherLabels, FamilyState::OtherSeries]);
    assert_eq!((found.families[0].values.compared, found.families[0].extra_series.count), (1, 1));
    assert_eq!((found.advice.verdict, found.alike), (SwitchVerdict::Safe, false));
}

#[test]
fn labels_of_pods_on_one_page_alone_name_the_setting() {
    let bare: String = PODS.replace("container=\"", "x=\"");
    let without = PageConfig { pods: false, ..page(Release::V4_8) };
    let found = diff_of(PODS, &bare.replace("pod=\"", "y=\""), with(&without)).unwrap();
    assert!(settings(&found).contains(&"pods = true".to_owned()), "{:#?}", found.advice);
    let found = diff(&bare, PODS);
    assert!(settings(&found).contains(&"pods = false".to_owned()), "{:#?}", found.advice);
    // With the setting as it should be, something else is wrong.
    let found = diff(PODS, &bare);
    assert!(found.advice.lost.iter().any(|text| text.starts_with("label container,")), "{:#?}", found.advice);
    // Names of dcgm-exporter's own old flags are named, and no setting has them.
    let found = diff(&PODS.replace("pod=\"", "pod_name=\"").replace("UUID=\"", "uuid=\""), PODS);
    let lost = found.advice.lost.join("\n");
    assert!(
        lost.contains("label pod_name is pod here") && lost.contains("label uuid is UUID here"),
        "{lost}"
    );
    assert!(found.families.iter().all(|family| family.missing_series.count == 0));
}

/// As dcgm-exporter's chart has it, whose list is without labels.
#[test]
fn a_page_without_the_label_of_the_driver_needs_no_setting() {
    let theirs = PLAIN.replace(",DCGM_FI_DRIVER_VERSION=\"580.95.05\"", "");
    assert!(theirs.len() < PLAIN.len());
    let found = diff(&theirs, PLAIN);
    assert_eq!((settings(&found), &found.advice.rows[..]), (vec![], &[][..]));
    assert_eq!(found.advice.verdict, SwitchVerdict::Safe);
    assert!(found.advice.stays.iter().any(|text| text.starts_with("label DCGM_FI_DRIVER_VERSION,")));
}

#[test]
fn other_words_for_an_xid_are_no_loss_and_another_xid_is() {
    let theirs = PLAIN.replace("ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", "GPU has fallen off the bus");
    let found = diff(&theirs, PLAIN);
    assert_eq!((found.advice.verdict, found.advice.lost.len()), (SwitchVerdict::Safe, 0));
    assert!(found.advice.stays[0].starts_with("label err_msg has this exporter's own texts"), "{found:?}");
    let found = diff(&theirs.replace("err_code=\"79\"", "err_code=\"48\""), PLAIN);
    assert_eq!(found.advice.verdict, SwitchVerdict::Lossy);
    assert!(found.advice.lost.iter().any(|text| text.starts_with("label err_code ")), "{found:?}");
}

#[test]
fn the_uid_of_pods_has_a_setting() {
    let theirs = PODS.replace(",pod=\"infer-0\"", ",pod=\"infer-0\",pod_uid=\"2c48913c\"");
    let found = diff(&theirs, PODS);
    assert_eq!(
        (settings(&found), found.advice.verdict),
        (vec!["pod_uids = true".into()], SwitchVerdict::AfterSettings)
    );
    let own = PageConfig { pod_uids: true, ..page(Release::V4_8) };
    let found = diff_of(&theirs, PODS, with(&own)).unwrap();
    assert!(found.advice.lost.iter().any(|text| text.starts_with("label pod_uid,")), "{found:?}");
}

#[test]
fn two_pods_that_share_a_gpu_are_two_series() {
    let pod = |name: &str| format!("{GPU},pod=\"{name}\"");
    let (a, b) = (pod("a"), pod("b"));
    let theirs = one("gauge", "DCGM_FI_DEV_GPU_TEMP", &[(&a, 30.0), (&b, 30.0)]);
    let found = diff(&theirs, &one("gauge", "DCGM_FI_DEV_GPU_TEMP", &[(&b, 30.0)]));
    let only = &found.families[0];
    assert_eq!((only.values.compared, only.missing_series.count, only.labels.len()), (1, 1, 0));
    assert!(found.advice.lost[0].contains("dcgm.values = \"corrected\""), "{:?}", found.advice.lost);
}

#[test]
fn constants_are_equal_and_what_moves_may_differ() {
    let state = |name, theirs: &[f64], ours: &[f64]| {
        let pages = |values: &[f64]| -> Vec<ParsedPage> {
            values.iter().map(|value| read(&gauge(name, *value)).unwrap()).collect()
        };
        let own = page(Release::V4_8);
        compare(&pages(theirs), &pages(ours), with(&own)).unwrap().families[0].states[0]
    };
    use FamilyState::{OtherValue, Same};
    for (name, theirs, ours, expected) in [
        // Counts of faults and constants.
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", &[4.0][..], &[5.0][..], OtherValue),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", &[4.0, 5.0], &[5.0, 5.0], Same),
        ("DCGM_FI_DEV_FB_TOTAL", &[143_771.0], &[143_771.4], Same),
        ("DCGM_FI_DEV_FB_TOTAL", &[143_771.0], &[150_754.0], OtherValue),
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", &[700.0], &[690.0], OtherValue),
        // What moves.
        ("DCGM_FI_DEV_GPU_TEMP", &[40.0], &[44.0], Same),
        ("DCGM_FI_DEV_GPU_TEMP", &[40.0], &[45.0], OtherValue),
        ("DCGM_FI_DEV_GPU_TEMP", &[40.0, 60.0], &[70.0, 72.0], Same),
        ("DCGM_FI_DEV_GPU_UTIL", &[0.0, 96.0], &[95.0, 97.0], Same),
        ("DCGM_FI_DEV_GPU_UTIL", &[57.0, 57.0], &[0.57, 0.57], OtherValue),
        ("DCGM_FI_DEV_SM_CLOCK", &[1980.0], &[1.98e9], OtherValue),
        ("DCGM_FI_DEV_POWER_USAGE", &[100.0], &[128.0], Same),
        ("DCGM_FI_DEV_POWER_USAGE", &[100.0], &[135.0], OtherValue),
        // A counter that moves, read at other times, and in another unit.
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", &[9e9, 9.02e9], &[9.1e9, 9.1e9], Same),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", &[9e9, 9.02e9], &[9e6, 9.02e6], OtherValue),
        ("DCGM_FI_DEV_PCIE_LINK_GEN", &[1.0], &[5.0], Same),
        ("DCGM_FI_DEV_PCIE_LINK_WIDTH", &[8.0], &[16.0], OtherValue),
        ("DCGM_EXP_XID_ERRORS_COUNT", &[2.0], &[1.0], Same),
        ("DCGM_EXP_XID_ERRORS_COUNT", &[3.0], &[1.0], OtherValue),
        ("DCGM_EXP_GPU_HEALTH_STATUS", &[20.0], &[0.0], OtherValue),
        ("DCGM_FI_DEV_GPU_TEMP", &[f64::NAN], &[f64::NAN], Same),
        ("DCGM_FI_DEV_GPU_TEMP", &[f64::NAN], &[40.0], OtherValue),
    ] {
        assert_eq!(state(name, theirs, ours), expected, "{name} {theirs:?} {ours:?}");
    }
    // Ten times the tolerance.
    let own = page(Release::V4_8);
    let (theirs, ours) = (gauge("DCGM_FI_DEV_GPU_TEMP", 40.0), gauge("DCGM_FI_DEV_GPU_TEMP", 60.0));
    assert!(diff_of(&theirs, &ours, DiffConfig { factor: 10.0, ..with(&own) }).unwrap().alike);
    // A saved page is of another time: only what stays is compared.
    let saved = DiffConfig { same_time: false, ..with(&own) };
    let found = diff_of(&theirs, &ours, saved).unwrap();
    assert_eq!((found.alike, found.families[0].values.compared), (true, 0));
    let limit = |value| gauge("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", value);
    assert!(!diff_of(&limit(700.0), &limit(690.0), saved).unwrap().alike);
    for (name, theirs, ours) in [
        ("DCGM_FI_DEV_PCIE_LINK_GEN", 1.0, 5.0),
        ("DCGM_FI_DEV_PCIE_LINK_WIDTH", 4.0, 16.0),
        ("DCGM_EXP_XID_ERRORS_COUNT", 3.0, 0.0),
        ("DCGM_EXP_GPU_HEALTH_STATUS", 20.0, 0.0),
    ] {
        let found = diff_of(&gauge(name, theirs), &gauge(name, ours), saved).unwrap();
        assert_eq!((found.alike, found.families[0].values.compared), (true, 0), "{name}");
    }
    // Counts since the start of each exporter.
    let own_start = |value| gauge("DCGM_EXP_XID_ERRORS_TOTAL", value);
    let found = diff(&own_start(7.0), &own_start(1.0));
    assert!(found.alike && found.families[0].values.reason.contains("own start"));
}

#[test]
fn each_moving_metric_is_one_that_a_field_is_made_of() {
    for field in crate::fields::TABLE {
        let tolerance = tolerance::tolerance(field);
        let text_or_number = tolerance.map_or_else(str::len, |tolerance| tolerance.reason.len());
        assert!(text_or_number > 0, "{}", field.name());
        if let Ok(Tolerance { absolute, relative, .. }) = tolerance {
            assert!(
                absolute.is_finite() && absolute >= 0.0 && (0.0..=0.5).contains(&relative),
                "{}",
                field.name()
            );
        }
    }
}

#[test]
fn windows_of_another_length_name_their_setting() {
    let text = |ms: &str, value| {
        one("gauge", "DCGM_EXP_XID_ERRORS_COUNT", &[(&format!("{GPU},window_size_in_ms=\"{ms}\""), value)])
    };
    let found = diff(&text("60000", 0.0), &text("300000", 0.0));
    assert_eq!(settings(&found), ["xid_window = \"60000ms\""]);
}

#[test]
fn a_gpu_of_one_page_alone_is_named_once() {
    let theirs = one("gauge", "DCGM_FI_DEV_GPU_TEMP", &[(GPU, 30.0), ("UUID=\"GPU-z\"", 30.0)]);
    let found = diff(&theirs, &gauge("DCGM_FI_DEV_GPU_TEMP", 30.0));
    assert_eq!((found.gpus.missing.len(), found.families[0].states[0]), (1, FamilyState::Same));
    assert!(!found.alike && found.advice.lost[0].contains("GPU-z"));
}

#[test]
fn pages_that_cannot_be_compared_say_why() {
    let own = page(Release::V4_8);
    let refused = |theirs: &str, ours: &str| diff_of(theirs, ours, with(&own)).unwrap_err();
    assert_eq!(refused("", PLAIN), NotComparable::Empty(PageSide::Theirs));
    assert_eq!(refused(PLAIN, ""), NotComparable::Empty(PageSide::Ours));
    let other = "# TYPE go_goroutines gauge\ngo_goroutines 7\nnode_load1 0.5\n";
    assert_eq!(
        refused(other, PLAIN),
        NotComparable::NotDcgm(PageSide::Theirs, vec!["node_load1".into(), "go_goroutines".into()])
    );
    let own_page = "gpu_power_watts{gpu=\"0\",uuid=\"GPU-b\"} 7\n";
    assert!(refused(own_page, PLAIN).to_string().contains("/dcgm/metrics"));
    assert_eq!(
        refused("DCGM_FI_DEV_GPU_TEMP{nvswitch=\"nvswitch0\"} 7\n", PLAIN),
        NotComparable::NoGpu(PageSide::Theirs)
    );
    let elsewhere = PLAIN.replace("UUID=\"GPU-", "UUID=\"GPU-other-");
    let error = refused(&elsewhere, PLAIN);
    assert!(matches!(error, NotComparable::OtherNode { .. }), "{error:?}");
    assert!(error.to_string().contains("two nodes") && error.to_string().contains("GPU-other-a"), "{error}");
}

#[test]
fn series_that_are_there_twice_are_named() {
    let theirs = format!("{PLAIN}DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\",UUID=\"GPU-b\"}} 1\n").repeat(2);
    let found = diff(&theirs, PLAIN);
    assert!(found.doubled.len() > 20, "{:?}", found.doubled);
}

/// The lines of a page in another order, each with its labels turned round.
fn shuffled(text: &str, seed: u64) -> String {
    let key = |line: &str| line.bytes().fold(seed, |sum, byte| sum.rotate_left(7) ^ u64::from(byte));
    let (types, mut series): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
    series.sort_by_key(|line| key(line));
    let turned = series.iter().map(|line| {
        let (name, sample) = crate::parse::sample(line).unwrap();
        let labels = sample.labels.iter().rev().map(|(name, value)| format!("{name}={value:?}"));
        format!("{name}{{{}}} {}\n", labels.collect::<Vec<_>>().join(","), sample.value)
    });
    types.join("\n") + "\n" + &turned.collect::<String>()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_order_of_lines_and_labels_is_no_difference(seed: u64, which in 0..4_usize) {
        let text = [PLAIN, MIG, PODS, EVERYTHING][which];
        prop_assert_eq!(diff(&shuffled(text, seed), text), diff(text, text));
    }

    #[test]
    fn one_changed_value_is_one_difference(at: prop::sample::Index, which in 0..3_usize) {
        let text = [PLAIN, MIG, PODS][which];
        let lines: Vec<&str> = text.lines().collect();
        let series: Vec<usize> = (0..lines.len()).filter(|at| !lines[*at].starts_with('#')).collect();
        let changed = *at.get(&series);
        let (labels, value) = lines[changed].rsplit_once(' ').unwrap();
        let value = value.parse::<f64>().unwrap() * 3.0 + 1e15;
        let line = format!("{labels} {value}");
        let mut other = lines.clone();
        other[changed] = &line;
        let found = diff(&(other.join("\n") + "\n"), text);
        let differing: Vec<&FamilyDiff> =
            found.families.iter().filter(|family| family.states != [FamilyState::Same]).collect();
        prop_assert_eq!(differing.len(), 1);
        prop_assert_eq!(&differing[0].states, &[FamilyState::OtherValue]);
        prop_assert_eq!(differing[0].values.outside, 1);
        prop_assert_eq!(labels.split('{').next(), Some(&*differing[0].name));
    }

    #[test]
    fn one_missing_line_is_one_difference(at: prop::sample::Index, which in 0..3_usize) {
        let text = [PLAIN, MIG, PODS][which];
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let line = *at.get(&series);
        let found = diff(text, &text.replace(&format!("{line}\n"), ""));
        let differing = found.families.iter().filter(|family| family.states != [FamilyState::Same]);
        prop_assert_eq!(differing.count(), 1);
        prop_assert!(!found.alike);
    }

    #[test]
    fn any_two_pages_of_the_format_are_compared_or_refused(theirs in any_page(), ours in any_page()) {
        let own = page(Release::V4_8);
        if let Ok(found) = diff_of(&theirs, &ours, with(&own)) {
            let back = diff_of(&ours, &theirs, with(&own)).unwrap();
            let count = |diff: &PageDiff, state| {
                diff.families.iter().filter(|family| family.states.contains(&state)).count()
            };
            prop_assert_eq!(count(&found, FamilyState::Missing), count(&back, FamilyState::Extra));
            prop_assert_eq!(count(&found, FamilyState::OtherValue), count(&back, FamilyState::OtherValue));
            prop_assert_eq!(count(&found, FamilyState::Same), count(&back, FamilyState::Same));
        }
    }
}

/// Pages of few names, labels and values, so that they have some in common.
fn any_page() -> impl Strategy<Value = String> {
    let names = ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FAN_SPEED", "up"];
    let labels =
        ["UUID=\"GPU-a\"", "UUID=\"GPU-b\"", "GPU_I_ID=\"1\"", "pod=\"a\"", "pod=\"b\"", "Hostname=\"n\""];
    let series =
        (prop::sample::select(names.to_vec()), prop::sample::subsequence(labels.to_vec(), 0..4), 0..3_u8);
    prop::collection::vec(series, 0..12).prop_map(|all| {
        let line = |(name, labels, value): (&str, Vec<&str>, u8)| {
            crate::parse::sample(&format!("{name}{{{}}} {value}", labels.join(",")))
                .map(|_| format!("{name}{{{}}} {}\n", labels.join(","), u32::from(value) * 100))
                .unwrap_or_default()
        };
        all.into_iter().map(line).collect()
    })
}

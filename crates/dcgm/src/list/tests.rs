use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn parse(text: &str) -> FieldList {
    FieldList::parse(text, Release::V4_8)
}

/// Names, types and helps of families and labels.
fn rows(list: &FieldList) -> Vec<(&str, &str, &str)> {
    let rows = list.columns.iter().chain(&list.labels);
    rows.map(|row| (row.name.as_str(), row.kind.name(), row.help.as_str())).collect()
}

fn names(list: &FieldList) -> Vec<&str> {
    rows(list).into_iter().map(|(name, ..)| name).collect()
}

fn problems(list: &FieldList) -> Vec<String> {
    list.problems.iter().map(ToString::to_string).collect()
}

/// As many problems as expectations, each with its text in it.
fn assert_problems(list: &FieldList, expected: &[&str]) {
    let found = problems(list);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "no {expected:?} in {found:?}");
    }
}

#[test]
fn the_defaults_are_whole() {
    for release in Release::ALL {
        let list = FieldList::default_of(release);
        let expected = if release == Release::V4_8 { 26 } else { 27 };
        assert_eq!((list.columns.len() + list.labels.len(), list.problem_count()), (expected, 0));
    }
}

#[test]
fn csv_has_comments_blanks_and_quotes() {
    let list = parse(
        "# Format\r\n\
         \r\n\
         DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock (in MHz).\r\n\
         dcgm_gpu_temp ,gauge,\"Temperature, \"\"of\n the GPU\"\"\"\n\
         DCGM_FI_DRIVER_VERSION, label, Driver\n\
         DCGM_FI_DEV_FB_USED, untyped, last row without an end",
    );
    assert_problems(&list, &[]);
    assert_eq!(
        rows(&list),
        [
            ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock (in MHz)."),
            ("dcgm_gpu_temp", "gauge", "Temperature, \"of\n the GPU\""),
            ("DCGM_FI_DEV_FB_USED", "untyped", "last row without an end"),
            ("DCGM_FI_DRIVER_VERSION", "label", "Driver"),
        ]
    );
}

#[test]
fn a_wrong_row_is_left_out_alone() {
    let list = parse(
        "DCGM_FI_DEV_GPU_TMEP, gauge, misspelt\n\
         DCGM_FI_DEV_POWER_USAGE, gauge, power\n\
         DCGM_FI_DEV_POWER_USAGE, counter, again\n\
         DCGM_FI_DEV_BOARD_POWER_WATTS, gauge, again by its other name\n\
         WHATEVER, gauge, no field\n\
         DCGM_FI_DEV_FB_USED, histogram, type\n\
         DCGM_FI_DEV_FAN_SPEED, gauge, no source\n\
         DCGM_FI_DRIVER_VERSION, gauge, a text\n\
         DCGM_FI_DEV_FB_FREE, gauge, a comma, and no quotes\n\
         DCGM_FI_DEV_FB_FREE, gauge\n\
         DCGM_FI_DEV_FB_FREE, gauge, a \"quote\"\n\
         DCGM_FI_DEV_FB_FREE,gauge,\"text\" behind\n\
         \tDCGM_FI_DEV_FB_FREE,gauge,tab\n\
         DCGM_FI_DEV_SM_CLOCK, gauge, clock\n\
         DCGM_FI_DEV_MEM_CLOCK,gauge,\"no end\n",
    );
    assert_eq!(names(&list), ["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"]);
    assert_problems(
        &list,
        &[
            "line 1: DCGM_FI_DEV_GPU_TMEP: no such field; did you mean DCGM_FI_DEV_GPU_TEMP?",
            "line 3: DCGM_FI_DEV_POWER_USAGE: duplicate: the list already has the field as DCGM_FI_DEV_POWER_USAGE",
            "line 4: DCGM_FI_DEV_BOARD_POWER_WATTS: duplicate: the list already has the field as DCGM_FI_DEV_POWER_USAGE",
            "line 5: WHATEVER: no such field; remove it",
            "line 6: DCGM_FI_DEV_FB_USED: no type \"histogram\"; choose gauge, counter, untyped or label",
            "line 7: DCGM_FI_DEV_FAN_SPEED: not covered",
            "line 8: DCGM_FI_DRIVER_VERSION: its value is a text; make it a label",
            "line 9: DCGM_FI_DEV_FB_FREE: 3 columns are field, type and help, 4 found",
            "line 10: DCGM_FI_DEV_FB_FREE: 3 columns are field, type and help, 2 found",
            "line 11: a quote within a value",
            "line 12: text after the closing quote",
            "line 13: DCGM_FI_DEV_FB_FREE: no such field; did you mean DCGM_FI_DEV_FB_FREE?",
            "line 15: an unclosed quote",
        ],
    );
}

#[test]
fn a_list_of_problems_is_bounded_and_all_are_counted() {
    let list = parse(&"NO_SUCH_FIELD, gauge, x\n".repeat(MAX_ROWS + 10));
    assert_eq!((list.problems.len(), list.problem_count()), (MAX_PROBLEMS + 1, MAX_ROWS + 1));
    assert!(problems(&list).last().is_some_and(|last| last.starts_with("further rows: ")));
}

const FIELDS: &str = "  fields:
  - name: DCGM_FI_DEV_SM_CLOCK
    prometheusType: gauge
    help: Clock
  - {name: DCGM_FI_DEV_GPU_TEMP, prometheusType: gauge, help: Temperature}
";

#[test]
fn yaml_of_both_versions_is_read() {
    let first = format!(
        "# comment\nversion: 1\nmetrics:\n{FIELDS}collection:\n  interval: 30s\n  retention: {{maxAge: 10m, maxSamples: 0}}\n  \
         watchGroups:\n  - name: slow\n    interval: 1m\n    fields: [DCGM_FI_DEV_*]\n    retention: {{maxAge: 1m}}\n\
         sources:\n  dcgm:\n    detectBindUnbind: {{enabled: true, pollInterval: 1s}}\nserver:\n  maxConcurrentScrapes: 16\n"
    );
    let second = format!(
        "---\nversion: 2\nmetrics:\n  enableExporterMetrics: false\n{FIELDS}collections:\n- name: all\n  every: 30s\n  metrics:\n    \
         include: ['*']\n  sources:\n    dcgm:\n      watch: {{maxKeepAge: 10m, maxKeepSamples: 0}}\nsources:\n  dcgm:\n    \
         watch: {{maxKeepAge: 10m}}\n"
    );
    for text in [&first, &second] {
        let list = parse(text);
        assert_problems(&list, &[]);
        assert_eq!(names(&list), ["DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP"]);
    }
    let default = parse("version: 2\nmetrics:\n  enableExporterMetrics: true\n");
    assert_problems(&default, &[]);
    assert_eq!(names(&default), names(&FieldList::default_of(Release::V4_8)));
}

#[test]
fn keys_of_yaml_that_are_wrong_are_named_and_the_rest_counts() {
    let text = "version: 2\nversion: 3\nmetrics:\n  fields:\n  - name: DCGM_FI_DEV_SM_CLOCK\n    prometheusType: gauge\n    help: Clock\n    \
                label: x\n  - name: DCGM_FI_DEV_FB_USED\n    help: no type\n  - {prometheusType: gauge, help: no name}\n  - 7\n  \
                - {name: DCGM_FI_DEV_SM_CLCK, prometheusType: gauge, help: misspelt}\n  file: /a.csv\n  interval: 1s\n\
                collection:\n  interval: 30s\ncollections:\n- nmae: x\n";
    let list = parse(text);
    assert_eq!(names(&list), ["DCGM_FI_DEV_SM_CLOCK"]);
    assert_problems(
        &list,
        &[
            "version: duplicate",
            "metrics.fields[0].label: not understood",
            "metrics.fields[1]: DCGM_FI_DEV_FB_USED: prometheusType is missing",
            "metrics.fields[2]: name is missing",
            "metrics.fields[3]: a row has the keys",
            "metrics.fields[4]: DCGM_FI_DEV_SM_CLCK: no such field; did you mean DCGM_FI_DEV_SM_CLOCK?",
            "metrics.file: fields is set too",
            "metrics.interval: not understood",
            "collection: not understood: version 2 has no such key",
            "collections[0].nmae: not understood: version 2 has no such key",
        ],
    );
    let third = parse(&format!("version: 3\nmetrics:\n{FIELDS}"));
    assert_eq!(names(&third).len(), 2);
    assert_problems(&third, &["version: version \"3\" is not understood; 1 and 2 are"]);
    assert_problems(&parse(&format!("metrics:\n{FIELDS}")), &["version: missing"]);
    let broken = parse("version: 2\nmetrics: [\n");
    assert!(broken.is_empty() && problems(&broken)[0].contains("invalid YAML"), "{broken:?}");
    for text in ["version: 2\n---\nversion: 2\n", "---\n- a\n", "kind: Pod\n", "version: !x 1\n"] {
        assert_eq!(parse(text).problem_count(), 1, "{text}: {:?}", problems(&parse(text)));
    }
}

#[test]
fn families_of_dcgm_exporters_own_are_no_labels() {
    for name in ["DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_EXP_P2P_STATUS"] {
        let list = parse(&format!("{name}, label, x\nDCGM_FI_DEV_GPU_TEMP, label, x\n"));
        assert_problems(&list, &[&format!("line 1: {name}: it has series of its own")]);
        assert_eq!(list.labels.len(), 1);
    }
}

/// A few bytes that stand for hundreds of megabytes are refused at once.
#[test]
fn aliases_that_make_a_text_large_are_a_problem() {
    let many = |text: &str, count: usize| vec![text; count].join(", ");
    let bombs = [
        format!("version: 1\nx: &a [{}]\ny: [{}]\n", many("0", 50_000), many("*a", 2_000)),
        format!("version: 1\nx: &a {}\ny: [{}]\n", "b".repeat(100_000), many("*a", 5_000)),
        format!("version: 1\nx: &a {{k: [{}]}}\ny: [{}]\n", many("0", 50_000), many("{? *a : *a}", 2_000)),
    ];
    for text in bombs {
        let list = parse(&text);
        assert!(list.is_empty());
        assert_eq!(list.problem_count(), 1);
        assert!(matches!(&list.problems[0].kind, ProblemKind::Malformed(why) if why.len() < 300), "{list:?}");
    }
    // Few aliases are fine, and so is any text without.
    let list = parse(
        "version: 1\nmetrics:\n  fields:\n  - {name: DCGM_FI_DEV_SM_CLOCK, prometheusType: &g gauge, help: &h \"\\L\\L\"}\n  - {name: DCGM_FI_DEV_GPU_TEMP, prometheusType: *g, help: *h}\n",
    );
    assert_eq!(names(&list).len(), 2, "{list:?}");
    assert_problems(
        &parse(&format!("version: 1\nserver: {{maxConcurrentScrapes: \"{}\"}}", "\\L".repeat(9_000))),
        &[],
    );
}

#[test]
fn nodes_of_a_wrong_kind_are_named_and_keys_without_a_version_are_those_of_both() {
    let text = "version: 2\nmetrics: hello\ncollections: 3\nserver: hello\nsources: {dcgm: {watch: [1]}}\n";
    assert_problems(
        &parse(text),
        &[
            "metrics: expected keys",
            "collections: expected a list",
            "server: expected keys",
            "sources.dcgm.watch: expected keys",
        ],
    );
    let text =
        "version: 1\nserver: {maxConcurrentScrapes: [16]}\ncollection:\n  watchGroups: [{name: {a: b}}, 7]\n";
    assert_problems(
        &parse(text),
        &[
            "server.maxConcurrentScrapes: expected a text or a number",
            "collection.watchGroups[0].name: expected a text or a number",
            "collection.watchGroups[1]: expected keys",
        ],
    );
    assert_problems(&parse("version: 2\ncollections:\nserver:\nmetrics:\n"), &[]);
    for version in ["", "version: 3\n"] {
        let text = format!("{version}collection: {{interval: 30s}}\ncollections: [{{name: x, evry: 1s}}]\n");
        let found = parse(&text);
        assert_eq!(found.problem_count(), 2, "{:?}", problems(&found));
        let last = &problems(&found)[1];
        assert!(
            last.contains("collections[0].evry: not understood: neither version 1 nor 2 has such a key"),
            "{last}"
        );
    }
}

const ROW: &str = "DCGM_FI_DEV_SM_CLOCK, gauge, Clock";

#[test]
fn the_manifest_of_a_config_map_is_read_by_its_key() {
    let manifest =
        |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\ndata:\n{data}");
    for key in ["metrics", "default-counters.csv", "anything"] {
        let list = parse(&manifest(&format!("  {key}: |\n    # comment\n    {ROW}\n    FALSE, gauge, x\n")));
        assert_eq!(names(&list), ["DCGM_FI_DEV_SM_CLOCK"], "{key}");
        assert_problems(&list, &[&format!("data.{key}: line 3: FALSE: no such field")]);
    }
    let list = parse(&manifest(&format!("  readme: x\n  dcgm-metrics.csv: '{ROW}'\n  config.yaml: ''\n")));
    assert_eq!(names(&list), ["DCGM_FI_DEV_SM_CLOCK"]);
    assert_problems(&list, &[]);
    let list = parse(&manifest("  config.yaml: |\n    version: 1\n    metrics: {fields: [{name: x}]}\n"));
    assert_problems(&list, &["data.config.yaml: metrics.fields[0]: x: prometheusType is missing"]);
    assert_problems(
        &parse(&manifest("  a: x\n  b: y\n")),
        &["data: none of the keys a, b is known to have a list"],
    );
    assert_problems(&parse("kind: ConfigMap\n"), &["data: a ConfigMap without data"]);
    let nested = manifest("  a: |\n    kind: ConfigMap\n    data: {b: x}\n");
    assert_problems(&parse(&nested), &["data.a: a ConfigMap within a ConfigMap is not read"]);
}

/// A ConfigMap as the kubelet mounts it.
fn mounted(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("..2026_11_23");
    fs::create_dir(&data).unwrap();
    symlink("..2026_11_23", dir.path().join("..data")).unwrap();
    for (key, text) in files {
        fs::write(data.join(key), text).unwrap();
        symlink(format!("..data/{key}"), dir.path().join(key)).unwrap();
    }
    dir
}

#[test]
fn a_mounted_config_map_is_read_as_a_folder_or_by_its_key() {
    let row = "DCGM_FI_DEV_GPU_TEMP, gauge, x\n";
    let dir = mounted(&[("default-counters.csv", row), ("notes", "x")]);
    for path in [dir.path().to_owned(), dir.path().join("default-counters.csv")] {
        let list = FieldList::read(&path, Release::V4_8).unwrap();
        assert_eq!(names(&list), ["DCGM_FI_DEV_GPU_TEMP"], "{}", path.display());
    }
    let dir = mounted(&[("config.yaml", "version: 1\nmetrics: {file: list.csv}\n"), ("list.csv", row)]);
    assert_eq!(names(&FieldList::read(dir.path(), Release::V4_8).unwrap()), ["DCGM_FI_DEV_GPU_TEMP"]);
    let dir = mounted(&[("config.yaml", "version: 1\nmetrics: {file: none.csv}\n")]);
    let list = FieldList::read(dir.path(), Release::V4_8).unwrap();
    assert_problems(&list, &["metrics.file: "]);
}

#[test]
fn what_is_no_file_of_fields_is_an_error_at_once() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("large"), "x".repeat(file::MAX_BYTES + 1)).unwrap();
    symlink(path("large"), path("link")).unwrap();
    fs::create_dir(path("empty")).unwrap();
    for (name, said) in [
        ("none", "No such file"),
        ("large", "longer than 1048576 bytes"),
        ("link", "is a symbolic link"),
        ("empty", "a ConfigMap without data"),
    ] {
        let error = FieldList::read(&path(name), Release::V4_8).unwrap_err().to_string();
        assert!(error.contains(said), "{name}: {error}");
    }
    assert!(FieldList::read("/dev/zero".as_ref(), Release::V4_8).is_err());
    // Bytes of another encoding cost no row.
    fs::write(path("latin"), b"DCGM_FI_DEV_GPU_TEMP, gauge, in \xb0C\n\xff\xfe\n").unwrap();
    let list = FieldList::read(&path("latin"), Release::V4_8).unwrap();
    assert_eq!(rows(&list), [("DCGM_FI_DEV_GPU_TEMP", "gauge", "in \u{fffd}C")]);
    assert_problems(&list, &["line 1: DCGM_FI_DEV_GPU_TEMP: the help is not UTF-8", "line 2: "]);
}

proptest! {
    #[test]
    fn any_bytes_give_a_list_and_problems(bytes in prop::collection::vec(any::<u8>(), 0..400), yaml in any::<bool>()) {
        let text = String::from_utf8_lossy(&bytes);
        let text = if yaml { format!("version: 2\n{text}") } else { text.into_owned() };
        let list = parse(&text);
        prop_assert!(list.problems.len() <= MAX_PROBLEMS + 1);
        for problem in problems(&list) {
            prop_assert!(!problem.contains('\n') || problem.contains("YAML"), "{problem:?}");
        }
    }

    #[test]
    fn any_rows_are_served_or_named(rows in prop::collection::vec("[A-Z_\",# \t]{0,40}", 0..8)) {
        let list = parse(&rows.join("\n"));
        prop_assert!(list.is_empty());
        prop_assert!(list.problem_count() <= rows.len());
    }

    #[test]
    fn any_value_of_yaml_is_read_or_named(text in "[a-z:{}\\[\\], \n!&*-]{0,120}") {
        let _ = parse(&format!("version: 1\nmetrics:\n  fields:\n  {text}"));
        let _ = parse(&format!("kind: ConfigMap\ndata:\n  {text}"));
    }
}

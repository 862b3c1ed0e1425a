//! What `promtool check metrics` objects to on dcgm-exporter's page: the faults of that format, and nothing of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::Command;

use super::{files, report, tools};

/// Every name of a metric is in capitals: no counter ends in `_total`.
const COUNTER: &str = "counter metrics should have \"_total\" suffix";
/// The label `modelName` of each series.
const CAMEL: &str = "label names should be written in 'snake_case' not 'camelCase'";
/// In the older name of the PCIe replays, and of the fabric's health.
const TYPES: [(&str, &str); 2] = [
    ("_COUNTER", "metric name should not include type 'counter'"),
    ("_SUMMARY", "metric name should not include type 'summary'"),
];

/// In the names of the times of clock events.
const UNIT: &str = "metric names should not contain abbreviated units";

/// What the page of this text must be reproached with.
fn expected(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for line in page.lines() {
        match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            Some((name, "counter")) => faults.push(format!("{name} {COUNTER}")),
            Some(_) => {}
            None if line.starts_with('#') => {}
            None => {
                let name = line.split('{').next().unwrap_or(line);
                faults.push(format!("{name} {CAMEL}"));
            }
        }
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) {
            let of_type = TYPES.iter().filter(|(ending, _)| name.ends_with(ending));
            faults.extend(of_type.map(|(_, fault)| format!("{name} {fault}")));
            if name.ends_with("_NS") {
                faults.push(format!("{name} {UNIT}"));
            }
        }
    }
    faults.sort();
    faults
}

/// The page of every field, where each objection is found.
const EVERYTHING: &str = "crates/dcgm/src/page/golden/everything.prom";

/// Each objection with the families that it is about: the table of docs/migrating.md.
pub fn objections() -> String {
    let page = files::read(&files::root().join(EVERYTHING));
    let types: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let counters = types.iter().filter(|line| line.ends_with(" counter")).count();
    let faults = expected(&page);
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, fault) in faults.iter().filter_map(|fault| fault.split_once(' ')) {
        found.entry(fault).or_default().insert(name);
    }
    let row = |(fault, names): (&&str, &BTreeSet<&str>)| {
        let names = match (names.len(), *fault) {
            (count, CAMEL) if count == types.len() => "each, for its label `modelName`".to_owned(),
            (count, COUNTER) if count == counters => "each counter, also in `_TOTAL`".to_owned(),
            _ => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        };
        format!("| {fault} | {names} |\n")
    };
    let rows: String = found.iter().map(row).collect();
    format!("| promtool's objection | families |\n|---|---|\n{rows}")
}

#[test]
fn promtool_objects_to_the_faults_of_the_format_alone() {
    let pages = files::list("crates/dcgm/src/page/golden", ".prom");
    assert!(pages.len() >= 13, "golden pages");
    let mut problems = Vec::new();
    for path in pages {
        let text = files::read(&path);
        let input = File::open(&path).expect("it was read");
        let output = Command::new(tools::program("promtool"))
            .args(["check", "metrics"])
            .stdin(input)
            .output()
            .expect("tests/tools/ensure-tools.sh test fetches promtool");
        // 3: it objects; anything above is a page that it cannot read.
        let said = String::from_utf8_lossy(&output.stderr);
        // Promtool 3 objects to names of types too, as in FABRIC_HEALTH_SUMMARY; 2 does not.
        let of_both = |line: &str| !line.contains("should not include type");
        let mut said: Vec<String> = said.lines().filter(|line| of_both(line)).map(str::to_owned).collect();
        said.sort();
        let mut expected = expected(&text);
        expected.retain(|line| of_both(line));
        if output.status.code() != Some(3) || said != expected {
            let more = said.iter().filter(|line| !expected.contains(line));
            let less = expected.iter().filter(|line| !said.contains(line));
            let lines: Vec<&str> = more.chain(less).take(10).map(String::as_str).collect();
            let (name, status) = (files::name(&path), output.status);
            problems.push(format!("{name}: {status}, differs by {}", lines.join("; ")));
        }
    }
    report(problems);
}

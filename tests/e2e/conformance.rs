//! docs/conformance.md: its queries, which `migrating` runs, and the rules of the automated test of KAR-0059.

use std::fs;
use std::path::Path;

use super::node::Node;

/// Code of the last column that is typed into a shell.
const PROGRAMS: [&str; 3] = ["curl ", "gpu-node-exporter ", "make "];

/// Every query of the tables: code in the last column, but group names in parentheses and commands.
pub fn queries() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md");
    let text = fs::read_to_string(path).unwrap();
    let cells = text.lines().filter_map(|row| row.strip_prefix("| ")?.strip_suffix('|')?.rsplit_once(" | "));
    let code = |(_, cell): (&str, &str)| -> Vec<String> {
        let queries = cell.split(" (group").next().unwrap_or_default();
        queries.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let queries = cells.flat_map(code).filter(|text| !PROGRAMS.iter().any(|name| text.starts_with(name)));
    queries.collect()
}

#[test]
fn the_tables_have_queries() {
    let queries = queries();
    assert!(queries.len() > 50 && queries.iter().all(|query| query.contains("gpu_")), "{queries:#?}");
}

/// What `TestAcceleratorPerformanceMetrics` of kubernetes-sigs/ai-conformance looks for on a page of text 0.0.4: a name with one of the
/// patterns, on a series with a label of the device.
#[test]
fn the_page_has_what_ai_conformance_looks_for() {
    let node = Node::start("tests/scenarios/node-8xh200.toml");
    let has = |patterns: &[&str]| {
        let wanted = patterns.to_owned();
        node.wait_metrics(&patterns.join(" or "), |metrics| {
            let device = |labels: &std::collections::BTreeMap<String, String>| labels.contains_key("uuid");
            let named = |name: &str| wanted.iter().any(|pattern| name.contains(pattern));
            metrics.0.iter().any(|(name, labels, _)| named(name) && device(labels))
        });
    };
    has(&["util", "utilization"]);
    has(&["mem", "memory", "fb", "vram", "hbm"]);
    has(&["temp", "temperature"]);
    has(&["power", "watt", "energy"]);
    has(&["nvlink", "pcie_tx", "pcie_rx", "bandwidth", "xgmi"]);
}

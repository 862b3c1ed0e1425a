//! Which crate may depend on which; where a vendor's library may be named; where unsafe code may be.

use std::collections::BTreeSet;

use super::report;
use super::sources::{crates, product, read};

/// Each crate and the crates of this workspace that it may depend on: the roles of the design.
const GRAPH: [(&str, &[&str]); 15] = [
    ("access", &["model"]),
    ("assess", &["host"]),
    ("attribution", &["host", "model"]),
    ("canary", &["attribution", "host", "model", "sampler"]),
    (
        "collectors",
        &["access", "attribution", "canary", "host", "ledger", "model", "sampler", "settings", "topology"],
    ),
    ("dcgm", &["model"]),
    ("exposition", &["access", "dcgm", "model"]),
    ("heartbeat", &[]),
    ("host", &["model"]),
    ("ledger", &["heartbeat", "model", "settings"]),
    ("model", &[]),
    ("recorder", &["model"]),
    ("sampler", &["host", "model"]),
    ("settings", &["dcgm", "model"]),
    ("topology", &["host", "model"]),
];

/// A vendor's library, or one that the network's clients reach, and the one crate that may name it.
const VENDORS: [(&str, &str); 7] = [
    ("nvml-wrapper", "sampler"),
    ("nvml-wrapper-sys", "sampler"),
    ("cudarc", "canary"),
    ("hwlocality", "topology"),
    ("ring", "access"),
    ("rustls", "access"),
    ("tokio-rustls", "access"),
];

/// Names in the `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let table: toml::Table = read(manifest).parse().unwrap_or_else(|error| panic!("{manifest}: {error}"));
    let Some(toml::Value::Table(found)) = table.get("dependencies") else { return BTreeSet::new() };
    found.keys().cloned().collect()
}

#[test]
fn crates_depend_only_on_what_the_design_allows() {
    let crates = crates();
    let known: BTreeSet<&str> = GRAPH.iter().map(|(name, _)| *name).collect();
    assert_eq!(crates.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);
    let mut problems = Vec::new();
    for (name, allowed) in GRAPH {
        for found in dependencies(&format!("crates/{name}/Cargo.toml")) {
            if known.contains(found.as_str()) && !allowed.contains(&found.as_str()) {
                problems.push(format!("{name} depends on {found}"));
            }
        }
    }
    report(problems);
}

#[test]
fn one_crate_names_each_vendors_library() {
    let mut problems = Vec::new();
    for (library, owner) in VENDORS {
        let manifests = crates().into_iter().map(|name| (format!("crates/{name}/Cargo.toml"), name));
        for (manifest, name) in manifests.chain([("Cargo.toml".to_owned(), "the binary".to_owned())]) {
            if name != owner && dependencies(&manifest).contains(library) {
                problems.push(format!("{name} depends on {library}; only {owner} may"));
            }
        }
    }
    report(problems);
}

/// The collectors send batches to the ledger and read its facts through views; the published snapshot is for readers.
#[test]
fn no_collector_reads_the_published_snapshot() {
    let wiring = ["src/lib.rs", "src/views.rs", "src/views/"];
    let collectors = product().into_iter().filter(|source| {
        let file = source.path.strip_prefix("crates/collectors/");
        file.is_some_and(|file| !wiring.iter().any(|path| file.starts_with(path)))
    });
    let readers = collectors
        .filter(|source| source.code.contains("SnapshotCell") || source.code.contains("model::snapshot"));
    report(readers.map(|source| source.path).collect());
}

/// A crate without unsafe code forbids it; in the others each file with unsafe code allows it for itself.
#[test]
fn unsafe_code_is_where_the_crate_root_says() {
    let mut problems = Vec::new();
    for source in product() {
        let root = source.module.is_empty();
        let forbids = source.code.contains("#![forbid(unsafe_code)]");
        if root && !forbids && !source.code.contains("#![deny(unsafe_code)]") {
            problems.push(format!("{}: neither forbids nor denies unsafe code", source.path));
        }
    }
    report(problems);
}

//! The documents name files that exist.

use std::sync::LazyLock;

use regex::Regex;

use super::report;
use super::sources::{files, read, root};

#[test]
fn documents_name_files_that_exist() {
    static NAMED: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"`((?:crates|src|tests|docs|dashboards|alerts|kernels|systemd)/[A-Za-z0-9_./-]+)`")
            .unwrap()
    });
    let documents =
        files("docs").into_iter().chain(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned));
    let mut problems = Vec::new();
    // Evidence is of the revision that it names.
    for path in documents.filter(|path| path.ends_with(".md") && !path.starts_with("docs/evidence/")) {
        for found in NAMED.captures_iter(&read(&path)) {
            // NAME is for the reader to fill in.
            if !found[1].contains("NAME") && !root().join(&found[1]).exists() {
                problems.push(format!("{path}: there is no {}", &found[1]));
            }
        }
    }
    report(problems);
}

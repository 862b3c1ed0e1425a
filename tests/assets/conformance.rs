//! The queries of docs/conformance.md use names and labels that are served, and a query that needs a group of metrics says which.

use super::migrating::groups;
use super::promql::{Reader, parse};
use super::vocabulary::Vocabulary;
use super::{files, report};

/// Code of the last column that is typed into a shell.
const PROGRAMS: [&str; 3] = ["curl ", "gpu-node-exporter ", "make "];

#[test]
fn the_queries_of_conformance_use_what_is_served() {
    let vocabulary = Vocabulary::new();
    let text = files::read(&files::root().join("docs/conformance.md"));
    let mut problems = Vec::new();
    let cells = text.lines().filter_map(|row| row.strip_prefix("| ")?.strip_suffix('|')?.rsplit_once(" | "));
    for (_, cell) in cells {
        let (queries, needs) = cell.split_once(" (group").unwrap_or((cell, ""));
        for query in queries.split('`').skip(1).step_by(2) {
            if PROGRAMS.iter().any(|name| query.starts_with(name)) {
                continue;
            }
            match parse(query) {
                Err(error) => problems.push(format!("{query}: {error}")),
                Ok(read) => {
                    let mut reader = Reader::new(&vocabulary);
                    reader.labels(&read);
                    problems.extend(reader.problems.into_iter().map(|problem| format!("{query}: {problem}")));
                }
            }
            for group in groups(&vocabulary, query) {
                if !group.strip_prefix("group").is_none_or(|name| needs.contains(name)) {
                    problems.push(format!("{query}: needs the {group}"));
                }
            }
        }
    }
    report(problems);
}

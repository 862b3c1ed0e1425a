//! The banned words: what the field has a better word for.

use std::sync::LazyLock;

use regex::Regex;

use super::report;
use super::sources::{files, read};

/// What is read: sources, tests, documents and configuration.
const COVERED: [&str; 11] = [
    "src",
    "crates",
    "tests",
    "docs",
    "kernels",
    "systemd",
    ".ci",
    "dashboards/build",
    "dashboards/preview",
    "alerts",
    "deploy",
];
const COVERED_FILES: [&str; 6] =
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "Cargo.toml"];

/// The list itself, recorded logs, machine code, packages of others. The prose of the table of codes is rewritten where that is
/// redesigned; then this line goes.
const EXCEPT: [&str; 9] = [
    "tests/tree/banned.txt",
    "tests/data/",
    "docs/evidence/",
    "kernels/bin/",
    "crates/exposition/vendor/",
    "dashboards/preview/node_modules/",
    "dashboards/preview/package-lock.json",
    "docs/boards/",
    // To be redesigned.
    "crates/model/src/xid/",
];

/// Text files by their ending; others are machine code and pictures.
const ENDINGS: [&str; 27] = [
    ".rs",
    ".md",
    ".toml",
    ".py",
    ".sh",
    ".cu",
    ".h",
    ".c",
    ".cpp",
    ".go",
    ".js",
    ".mjs",
    ".jsx",
    ".css",
    ".html",
    ".txt",
    ".json",
    ".yml",
    ".yaml",
    ".tpl",
    ".service",
    ".socket",
    ".conf",
    "/run",
    "/postrm",
    "/Containerfile",
    "/.helmignore",
];

#[test]
fn no_banned_word_is_used() {
    static BANNED: LazyLock<Regex> = LazyLock::new(|| {
        let list = read("tests/tree/banned.txt");
        let words: Vec<&str> =
            list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        // Part of a name counts too, as between underscores.
        Regex::new(&format!(r"(?i)(?:^|[^A-Za-z]|_)({})(?:$|[^A-Za-z]|_)", words.join("|"))).unwrap()
    });
    let paths = COVERED.iter().flat_map(|folder| files(folder)).chain(COVERED_FILES.map(str::to_owned));
    let mut problems = Vec::new();
    for path in paths {
        let excepted = EXCEPT.iter().any(|start| path.starts_with(start));
        if excepted || !(ENDINGS.iter().any(|ending| path.ends_with(ending)) || path == "Makefile") {
            continue;
        }
        for (at, line) in read(&path).lines().enumerate() {
            if let Some(found) = BANNED.captures(line) {
                problems.push(format!("{path}:{}: {}", at + 1, &found[1]));
            }
        }
    }
    report(problems);
}

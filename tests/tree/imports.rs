//! No import cycle among sibling modules of a crate, at any depth. Between crates cargo forbids cycles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::report;
use super::sources::{Source, product};

type Path = Vec<String>;
/// From a module to those it imports from, each with one import as an example.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

static USE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?s)\buse\s+([^;]*);").unwrap());
static INLINE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?:^|[^\w:])((?:crate|super)(?:::\w+)+)").unwrap());

/// The paths of a use tree, as `a::{b, c::d}`.
fn leaves(tree: &str, prefix: &[String], out: &mut Vec<Path>) {
    let (mut depth, mut start) = (0, 0);
    let mut parts = Vec::new();
    for (at, char) in tree.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[start..]);
    for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
        let (path, below) = match part.split_once('{') {
            Some((path, below)) => (path, Some(below.strip_suffix('}').unwrap_or(below))),
            None => (part.split(" as ").next().unwrap_or(part), None),
        };
        let segments = path.split("::").map(str::trim).filter(|segment| !segment.is_empty());
        let path: Path = prefix.iter().cloned().chain(segments.map(str::to_owned)).collect();
        match below {
            Some(below) => leaves(below, &path, out),
            None => out.push(path),
        }
    }
}

/// Every path that a file names through `use`, `crate::` or `super::`.
fn named(code: &str) -> Vec<Path> {
    let mut paths = Vec::new();
    for found in USE.captures_iter(code) {
        leaves(&found[1], &[], &mut paths);
    }
    let rest = USE.replace_all(code, "");
    paths.extend(INLINE.captures_iter(&rest).map(|found| found[1].split("::").map(str::to_owned).collect()));
    paths
}

/// A path as seen from the crate root; `None` for one of another crate.
fn absolute(source: &Source, path: &[String], modules: &BTreeSet<Path>) -> Option<Path> {
    let supers = path.iter().take_while(|segment| *segment == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => {
            let above = source.module.len().checked_sub(supers)?;
            Some(source.module[..above].iter().chain(&path[supers..]).cloned().collect())
        }
        first => {
            let child: Path = source.module.iter().cloned().chain([first.to_owned()]).collect();
            let inside = modules.contains(&child);
            inside.then(|| source.module.iter().chain(path).cloned().collect())
        }
    }
}

/// The edges between siblings, by their parent.
fn edges(sources: &[&Source]) -> BTreeMap<Path, Edges> {
    let modules: BTreeSet<Path> = sources.iter().map(|source| source.module.clone()).collect();
    let mut edges: BTreeMap<Path, Edges> = BTreeMap::new();
    for source in sources {
        for path in named(&source.code) {
            let Some(mut to) = absolute(source, &path, &modules) else { continue };
            while !to.is_empty() && !modules.contains(&to) {
                to.pop();
            }
            let shared = source.module.iter().zip(&to).take_while(|(from, to)| from == to).count();
            if let (Some(from), Some(into)) = (source.module.get(shared), to.get(shared)) {
                let example = format!("{} uses {}", source.path, to.join("::"));
                let parent = edges.entry(source.module[..shared].to_vec()).or_default();
                parent.entry(from.clone()).or_default().insert(into.clone(), example);
            }
        }
    }
    edges
}

/// What can be reached from a module.
fn reachable<'a>(edges: &'a Edges, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for to in edges.get(module).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    seen
}

#[test]
fn no_import_cycle_inside_a_crate() {
    let sources = product();
    let crates: BTreeSet<&str> = sources.iter().map(|source| source.krate.as_str()).collect();
    let mut problems = Vec::new();
    for krate in crates {
        let of_crate: Vec<&Source> = sources.iter().filter(|source| source.krate == krate).collect();
        for (parent, edges) in edges(&of_crate) {
            for (from, into) in &edges {
                for (to, example) in into {
                    if reachable(&edges, to).contains(from.as_str()) {
                        problems.push(format!(
                            "{krate}::{}: {from} -> {to} is part of a cycle: {example}",
                            parent.join("::")
                        ));
                    }
                }
            }
        }
    }
    report(problems);
}

#[test]
fn use_trees_are_read_whole() {
    let paths: Vec<String> = named("use crate::a::{self, b::{C, d}, e as f};\nfn x() { super::g::h() }")
        .iter()
        .map(|p| p.join("::"))
        .collect();
    assert_eq!(paths, ["crate::a::self", "crate::a::b::C", "crate::a::b::d", "crate::a::e", "super::g::h"]);
}

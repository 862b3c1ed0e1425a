//! Links of documents to files and headings of this repository lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::report;
use super::sources::{files, read, root};

/// Folders with documents.
const FOLDERS: [&str; 6] = ["dashboards", "deploy", "docs", "kernels", "systemd", "tests"];

/// Every document.
fn documents() -> Vec<String> {
    let top = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned);
    let below = FOLDERS.into_iter().flat_map(files).filter(|path| path.ends_with(".md"));
    let installed = |path: &String| path.split('/').any(|part| part == "node_modules" || part == "target");
    top.into_iter().chain(below.filter(|path| !installed(path))).collect()
}

/// The text without code, in which brackets mean something else.
fn prose(text: &str) -> String {
    static SPAN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"`[^`\n]*`").unwrap());
    let mut fenced = false;
    let outside = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    };
    text.lines().filter(outside).map(|line| SPAN.replace_all(line, "`") + "\n").collect()
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    static LINK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\[([^\]]*)\]\([^)]*\)").unwrap());
    let mut fenced = false;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let heading = LINK.replace_all(heading.trim(), "$1").to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let slug = kept.collect::<String>().replace(' ', "-");
        let before = seen.entry(slug.clone()).or_default();
        found.insert(if *before == 0 { slug } else { format!("{slug}-{before}") });
        *before += 1;
    }
    found
}

/// Targets of the links and pictures of a document.
fn targets(text: &str) -> Vec<String> {
    static TARGET: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)""#).unwrap());
    let prose = prose(text);
    let found = TARGET.captures_iter(&prose).filter_map(|found| found.get(1).or_else(|| found.get(2)));
    found.map(|target| target.as_str().to_owned()).collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut problems = Vec::new();
    for path in documents() {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for target in targets(&read(&path)) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { path.clone() } else { format!("{folder}/{file}") };
            let there = root().join(file.trim_start_matches('/'));
            if !there.exists() {
                problems.push(format!("{path}: there is no {target}"));
            } else if !anchor.is_empty() && file.ends_with(".md") {
                let text = std::fs::read_to_string(&there).unwrap();
                if !anchors(&text).contains(anchor) {
                    problems.push(format!("{path}: no heading is {target}"));
                }
            }
        }
    }
    report(problems);
}

/// Each page can be found from the index.
#[test]
fn the_index_leads_to_every_page() {
    let index = read("docs/README.md");
    let linked = targets(&index);
    let pages = files("docs").into_iter().filter_map(|path| Some(path.strip_prefix("docs/")?.to_owned()));
    let top = pages.filter(|path| path.ends_with(".md") && path != "README.md" && !path.contains('/'));
    let of = |page: &String| linked.iter().any(|target| target.split('#').next() == Some(page));
    report(
        top.filter(|page| !of(page)).map(|page| format!("docs/README.md does not lead to {page}")).collect(),
    );
}

#[test]
fn headings_and_links_are_read_as_github_does() {
    let text = "# A `b` c: d_e\n## [X](y.md) & Z\n```\n# no heading\n```\n## A\n## A\n";
    let expected = ["a-b-c-d_e", "x--z", "a", "a-1"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(expected));
    assert_eq!(
        targets("[a](b.md#c) `[x](y)` ![p](q.png)\n```\n[no](no)\n```\n<img src=\"r.png\">"),
        ["b.md#c", "q.png", "r.png"]
    );
}

//! Whether every alert has a page that helps, and whether what the pages name exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::catalog::METRICS;

use super::promql::{Reader, parse};
use super::reasons::reasons_of_alerts;
use super::vocabulary::Vocabulary;
use super::{files, report};

/// Headings of a runbook, in order; above them is its name.
const HEADINGS: [&str; 6] = ["Meaning", "Impact", "Is it real", "What to do", "If it comes back", "Silence"];
/// Blocks whose lines are typed.
const SHELLS: [&str; 4] = ["sh", "bash", "shell", "console"];
/// Folders and files of pages, beside the runbooks.
const FOLDERS: [&str; 2] = ["docs/runbooks", "docs/playbooks"];
/// Fields of nvidia-smi that are named like metrics.
const FIELDS: [&str; 5] = ["gpu_bus_id", "gpu_name", "gpu_serial", "gpu_temp", "gpu_uuid"];
const PAGES: [&str; 4] = ["docs/owner-report.md", "docs/postmortem.md", "docs/REVIEW.md", "docs/SLO.md"];
/// How long a page's work takes, and where help comes from.
const DURATION: &str = "**Takes:**";
const CONTACT: &str = "**Escalate:**";

/// Where a page says whether the alert is right.
pub const PROOF: &str = "Is it real";
/// How a query is typed: the server, and the query in quotes.
const QUERY: &str = "promtool query instant http://localhost:9090 '";

/// One block of code of a page, and the part that it is in.
pub struct Block {
    /// The heading above it.
    pub part: String,
    /// What it is marked as.
    pub language: String,
    /// Its lines.
    pub lines: Vec<String>,
}

/// A page in parts: blocks of code, and the text beside them.
pub struct Page {
    /// Its path in the repository.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// Its blocks of code.
    pub blocks: Vec<Block>,
    /// The text beside them.
    pub prose: String,
}

impl Page {
    fn read(path: &Path) -> Page {
        let (mut blocks, mut prose): (Vec<Block>, String) = (Vec::new(), String::new());
        // How far the block is indented that is open.
        let mut within: Option<usize> = None;
        let mut part = String::new();
        for line in files::read(path).lines() {
            let text = line.trim_start();
            let indent = line.len() - text.len();
            match text.strip_prefix("```") {
                Some(_) if within.is_some() => within = None,
                Some(language) => {
                    let language = language.trim().to_owned();
                    blocks.push(Block { part: part.clone(), language, lines: Vec::new() });
                    within = Some(indent);
                }
                None if within.is_some() => {
                    let kept = &line[within.unwrap_or_default().min(indent)..];
                    blocks.last_mut().expect("one is open").lines.push(kept.to_owned());
                }
                None => {
                    if let Some(heading) = line.strip_prefix("## ") {
                        heading.trim().clone_into(&mut part);
                    }
                    prose.push_str(line);
                    prose.push('\n');
                }
            }
        }
        Page { name: files::name(path), path: path.to_owned(), blocks, prose }
    }

    /// Texts in backquotes.
    fn inline(&self) -> impl Iterator<Item = &str> {
        self.prose.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
    }

    /// Blocks that are typed.
    pub fn shells(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|block| SHELLS.contains(&block.language.as_str()))
    }

    /// Sections: the heading of each, of whatever depth, with the text up to the next.
    fn sections(&self) -> Vec<(&str, String)> {
        let mut sections: Vec<(&str, String)> = Vec::new();
        for line in self.prose.lines() {
            let text = line.trim_start_matches('#');
            match (text.strip_prefix(' ').filter(|_| line.starts_with('#')), sections.last_mut()) {
                (Some(heading), _) => sections.push((heading.trim(), String::new())),
                (None, Some((_, section))) => section.extend([line, "\n"]),
                (None, None) => {}
            }
        }
        sections
    }

    /// Headings, each with its depth.
    fn headings(&self) -> impl Iterator<Item = (usize, &str)> {
        self.prose.lines().filter_map(|line| {
            let depth = line.len() - line.trim_start_matches('#').len();
            Some((depth, line[depth..].strip_prefix(' ')?.trim())).filter(|(depth, _)| *depth > 0)
        })
    }
}

/// The pages: of alerts, playbooks, and what else has people do something.
pub fn pages() -> Vec<Page> {
    let mut paths: Vec<PathBuf> = FOLDERS.into_iter().flat_map(|folder| files::list(folder, ".md")).collect();
    paths.extend(PAGES.into_iter().map(|page| files::root().join(page)).filter(|path| path.exists()));
    paths.iter().map(|path| Page::read(path)).collect()
}

/// Every query, with its page: those of blocks marked as PromQL, which have one query, or one a line, and those that are
/// typed.
pub fn queries() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for page in pages() {
        for line in
            page.shells().flat_map(|block| &block.lines).filter(|line| line.contains("promtool query"))
        {
            let typed = line.split_once(QUERY).and_then(|(_, rest)| rest.strip_suffix('\''));
            all.push((page.name.clone(), typed.unwrap_or(line).to_owned()));
        }
        for block in page.blocks.iter().filter(|block| block.language == "promql") {
            let lines: Vec<&str> = block
                .lines
                .iter()
                .map(|line| line.trim())
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .collect();
            let whole = lines.join("\n");
            if parse(&whole).is_ok() || lines.iter().any(|line| parse(line).is_err()) {
                all.push((page.name.clone(), whole));
            } else {
                all.extend(lines.into_iter().map(|line| (page.name.clone(), line.to_owned())));
            }
        }
    }
    all
}

/// Every group of rules that a page shows in a block of YAML, with its page.
pub fn rules() -> Vec<(String, String)> {
    let of = |page: Page| {
        let yaml = page.blocks.into_iter().filter(|block| block.language == "yaml");
        let texts = yaml.map(|block| block.lines.join("\n")).filter(|text| text.starts_with("groups:"));
        texts.map(|text| (page.name.clone(), text)).collect::<Vec<_>>()
    };
    pages().into_iter().flat_map(of).collect()
}

#[test]
fn rules_of_pages_name_what_exists() {
    let all: Vec<_> = rules().iter().flat_map(|(page, text)| files::rules_in(page, text)).collect();
    let vocabulary = Vocabulary::with(all.clone());
    let mut problems = Vec::new();
    for (page, rule) in all {
        let name = rule.alert.or(rule.record).unwrap_or_default();
        let wrong = match parse(&rule.expr) {
            Err(error) => vec![format!("cannot be parsed: {error}")],
            Ok(expr) => {
                let mut reader = Reader::new(&vocabulary);
                reader.labels(&expr);
                reader.problems
            }
        };
        problems.extend(wrong.into_iter().map(|what| format!("{page}: {name}: {what}")));
    }
    report(problems);
}

#[test]
fn every_alert_has_a_page_and_every_page_an_alert() {
    let alerts: BTreeSet<String> = files::alerts().into_iter().map(|(_, name, _)| name).collect();
    let pages = files::list("docs/runbooks", ".md");
    let stem = |path: &PathBuf| path.file_stem().expect("it was listed").to_string_lossy().into_owned();
    let pages: BTreeSet<String> = pages.iter().map(stem).filter(|name| name != "README").collect();
    let none = alerts.difference(&pages).map(|name| format!("{name}: there is no docs/runbooks/{name}.md"));
    let old =
        pages.difference(&alerts).map(|name| format!("docs/runbooks/{name}.md: there is no such alert"));
    report(none.chain(old).collect());
}

#[test]
fn runbooks_have_the_same_parts() {
    let mut problems = Vec::new();
    for page in pages()
        .iter()
        .filter(|page| page.name.starts_with("docs/runbooks/") && !page.name.ends_with("README.md"))
    {
        let stem = page.path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        let title: Vec<&str> =
            page.headings().filter(|(depth, _)| *depth == 1).map(|(_, text)| text).collect();
        if title != [stem.as_str()] {
            problems.push(format!("{}: its title is {title:?}", page.name));
        }
        let parts: Vec<&str> =
            page.headings().filter(|(depth, _)| *depth == 2).map(|(_, text)| text).collect();
        if parts != HEADINGS {
            problems.push(format!("{}: its parts are {parts:?}, not {HEADINGS:?}", page.name));
        }
        let mut proofs = page.shells().filter(|block| block.part == PROOF).peekable();
        if proofs.peek().is_none() || !proofs.all(Block::tells_answers) {
            problems.push(format!(
                "{}: in {PROOF:?} each command has its answer in a remark below it, one that begins with \"# real: \", \
                 and one with \"not real: \"",
                page.name
            ));
        }
    }
    report(problems);
}

/// Pages whose commands are marked: those of alerts.
pub fn marked_pages() -> Vec<Page> {
    let mut all = pages();
    all.retain(|page| page.name.starts_with("docs/runbooks/"));
    all
}

#[test]
fn every_reason_has_a_section_and_a_duration() {
    let (reasons, mut problems) = reasons_of_alerts();
    for page in marked_pages().iter().filter(|page| !page.name.ends_with("README.md")) {
        let stem = page.path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        let sections: BTreeSet<String> =
            page.headings().filter(|(depth, _)| *depth == 3).map(|(_, text)| text.to_owned()).collect();
        let wanted = reasons.get(&stem).cloned().unwrap_or_default();
        for reason in wanted.difference(&sections) {
            problems.push(format!("{}: no section \"### {reason}\"", page.name));
        }
        let known =
            |section: &&String| wanted.is_empty() || wanted.contains(*section) || section.contains(' ');
        for section in sections.iter().filter(|section| !known(section)) {
            problems.push(format!("{}: the alert has no reason {section}", page.name));
        }
        for (heading, text) in page.sections() {
            let lasts = heading == "What to do" && wanted.is_empty() || wanted.contains(heading);
            if lasts && !text.contains(DURATION) {
                problems.push(format!("{}: {heading}: {DURATION} says how long it takes", page.name));
            }
            if heading == "If it comes back" && !text.contains(CONTACT) {
                problems.push(format!("{}: {heading}: {CONTACT} says where help comes from", page.name));
            }
        }
    }
    report(problems);
}

#[test]
fn the_list_of_runbooks_says_of_each_alert_what_its_page_says() {
    let list = files::read(&files::root().join("docs/runbooks/README.md"));
    let mut problems = Vec::new();
    for (_, alert, _) in files::alerts() {
        let page = files::read(&files::root().join(format!("docs/runbooks/{alert}.md")));
        let says = page.lines().nth(2).unwrap_or_default();
        let row = format!("| [{alert}]({alert}.md) | {says} | ");
        if !list.lines().any(|line| line.starts_with(&row)) {
            problems.push(format!("docs/runbooks/README.md: no row begins with {row:?}"));
        }
    }
    report(problems);
}

#[test]
fn pages_are_finished_and_lead_nowhere_dead() {
    let mut problems = Vec::new();
    for page in pages() {
        for word in ["TODO", "FIXME", "XXX", "TBD"] {
            if page.prose.contains(word) {
                problems.push(format!("{}: {word}", page.name));
            }
        }
        for link in page.prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = page.path.parent().expect("it is in a folder");
            let path = if file.is_empty() { page.path.clone() } else { folder.join(file) };
            if !path.exists() {
                problems.push(format!("{}: dead link {link}", page.name));
            } else if !anchor.is_empty() && path.extension().is_some_and(|ending| ending == "md") {
                let there = Page::read(&path);
                if !there.headings().any(|(_, heading)| slug(heading) == anchor) {
                    problems.push(format!("{}: {link} has no such heading", page.name));
                }
            }
        }
    }
    report(problems);
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let kept = heading.to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).collect::<String>().replace(' ', "-")
}

#[test]
fn queries_of_pages_name_what_exists() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    for (page, text) in queries() {
        match parse(&text) {
            Err(error) => problems.push(format!("{page}: cannot be parsed: {error}\n    {text}")),
            Ok(expr) => {
                let mut reader = Reader::new(&vocabulary);
                reader.labels(&expr);
                problems.extend(reader.problems.iter().map(|what| format!("{page}: {what}\n    {text}")));
            }
        }
    }
    report(problems);
}

#[test]
fn metrics_named_in_pages_exist() {
    let vocabulary = Vocabulary::new();
    let mut words: BTreeSet<&str> = FIELDS.into();
    for def in METRICS {
        words.extend([def.name, def.family()]);
        for label in def.entity.labels().iter().chain(def.labels) {
            words.insert(label.name);
            words.extend(label.values.into_iter().flatten());
        }
    }
    let known = |word: &str| {
        let prefix = word.strip_suffix('*').or_else(|| Some(word).filter(|word| word.ends_with('_')));
        let prefix = prefix.map_or_else(|| format!("{word}_"), str::to_owned);
        words.contains(word)
            || vocabulary.get(word).is_some()
            // As `grep` is given the beginning of several.
            || words.iter().any(|word| word.starts_with(&prefix))
    };
    let mut problems = Vec::new();
    for page in pages() {
        let code = page.blocks.iter().flat_map(|block| block.lines.iter().map(String::as_str));
        for text in code.chain(page.inline()) {
            let part = |c: char| !(c.is_ascii_alphanumeric() || "_:*".contains(c));
            for word in text.split(part).map(|word| word.trim_matches(':')) {
                if word.starts_with("gpu_") && !known(word) {
                    problems.push(format!("{}: there is no {word}", page.name));
                }
            }
        }
    }
    problems.sort();
    problems.dedup();
    report(problems);
}

//! The habits of prose that slow readers down, counted per file in comments and documents.

use std::collections::BTreeMap;
use std::fs;
use std::iter::repeat_n;
use std::sync::LazyLock;

use regex::Regex;

use super::report;
use super::sources::{files, is_test, production, read, root};

/// A habit: its name, its pattern, and how often it may occur per 1,000 words.
struct Habit {
    name: &'static str,
    pattern: LazyLock<Regex>,
    limit: f64,
}

/// The habits and their limits. Well-kept projects of the field have 0 to 3 of each per 1,000 words.
static HABITS: [Habit; 5] = [
    // "what about" and "what if" ask a question.
    Habit {
        name: "a \"what\" clause as a noun",
        pattern: LazyLock::new(|| Regex::new(r"\b[Ww]hat (\w+)").unwrap()),
        limit: 1.0,
    },
    Habit {
        name: "a program that knows, says, asks, wants, sees or tells",
        pattern: LazyLock::new(|| Regex::new(r"\b(knows?|says?|asks?|wants?|sees|tells?)\b").unwrap()),
        limit: 1.5,
    },
    Habit {
        name: "\"alone\" after the noun",
        pattern: LazyLock::new(|| Regex::new(r"\w alone\b").unwrap()),
        limit: 0.1,
    },
    Habit { name: "\"beside\"", pattern: LazyLock::new(|| Regex::new(r"\bbeside\b").unwrap()), limit: 0.05 },
    Habit { name: "\"each\"", pattern: LazyLock::new(|| Regex::new(r"\b[Ee]ach\b").unwrap()), limit: 3.0 },
];

/// Documentation comments of three words or fewer in the whole tree: most of them repeat the name below.
const MAX_SHORT_DOCS: usize = 100;

/// Documents that are generated or record another program's words.
const NO_PROSE: [&str; 3] = ["docs/evidence/", "docs/METRICS.md", "CHANGELOG.md"];

/// Files above a limit, and how often a habit may occur in them. A number may fall but not rise.
const RATCHET: &str = "tests/tree/prose.psv";
const RATCHET_HEAD: &str =
    "# Files above a limit of prose.rs: file, habit, occurrences. A number may fall but not rise.\n";

/// Most words of some documents: the start of their paths, without the starts after it, and the number. A page that grows
/// replaces something.
const MAX_WORDS: [(&str, &[&str], usize); 3] = [
    ("README.md", &[], 600),
    ("docs/runbooks/", &[], 37_300),
    ("docs/", &["docs/METRICS.md", "docs/evidence/", "docs/runbooks/"], 67_300),
];

impl Habit {
    fn count(&self, line: &str) -> usize {
        let found = self.pattern.captures_iter(line);
        found.filter(|c| !matches!(c.get(1).map(|word| word.as_str()), Some("if" | "about"))).count()
    }
}

/// One line of prose: its number in the file, and its text.
type Line = (usize, String);

/// The comments of a Rust file, without its tests.
fn comments(path: &str) -> Vec<Line> {
    let lines = production(path).into_iter();
    let text =
        lines.map(|(at, line)| (at, line.trim().to_owned())).filter(|(_, line)| line.starts_with("//"));
    text.map(|(at, line)| (at, line.trim_start_matches(['/', '!']).trim().to_owned())).collect()
}

/// A document without its fenced blocks.
fn paragraphs(path: &str) -> Vec<Line> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (at, line) in read(path).lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.push((at + 1, line.to_owned()));
        }
    }
    found
}

/// Every file with prose, and its lines.
fn prose() -> BTreeMap<String, Vec<Line>> {
    let sources = files("src").into_iter().chain(files("crates"));
    let sources = sources.filter(|path| path.ends_with(".rs") && !is_test(path));
    let documents =
        files("docs").into_iter().chain(files("deploy")).chain(files("kernels")).chain(files("dashboards"));
    let documents = documents.filter(|path| path.ends_with(".md") && !path.contains("node_modules"));
    let documents = documents.chain(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned));
    let documents = documents.filter(|path| !NO_PROSE.iter().any(|start| path.starts_with(start)));
    let sources: Vec<_> = sources.map(|path| (path.clone(), comments(&path))).collect();
    documents.map(|path| (path.clone(), paragraphs(&path))).chain(sources).collect()
}

fn words(lines: &[Line]) -> usize {
    lines.iter().map(|(_, line)| line.split_whitespace().count()).sum()
}

/// How often a habit may occur in so many words: one is no habit.
fn allowed(limit: f64, words: usize) -> usize {
    (limit * words as f64 / 1000.0).ceil() as usize
}

/// A file and a habit of it.
type Key = (String, String);

/// The numbers in [`RATCHET`].
fn ratchet() -> BTreeMap<Key, usize> {
    let parse = |line: &str| {
        let [path, habit, count] = line.split('|').collect::<Vec<_>>()[..] else {
            panic!("{RATCHET}: {line}")
        };
        ((path.to_owned(), habit.to_owned()), count.parse().unwrap())
    };
    read(RATCHET).lines().filter(|line| !line.starts_with('#')).map(parse).collect()
}

#[test]
fn no_file_has_a_habit_that_slows_readers_down() {
    let ratchet = ratchet();
    let mut problems = Vec::new();
    let mut kept = BTreeMap::new();
    for (path, lines) in prose() {
        for habit in &HABITS {
            let key = (path.clone(), habit.name.to_owned());
            let hits: Vec<&Line> =
                lines.iter().flat_map(|line| repeat_n(line, habit.count(&line.1))).collect();
            let limit = allowed(habit.limit, words(&lines));
            let most = ratchet.get(&key).map_or(limit, |most| limit.max(*most));
            if hits.len() > most {
                problems.push(format!("{path}: {} times {}, at most {most}:", hits.len(), habit.name));
                problems.extend(hits.iter().map(|(at, line)| format!("    {path}:{at}: {line}")));
            }
            if hits.len() > limit {
                kept.insert(key, hits.len().min(most));
            }
        }
    }
    if kept != ratchet {
        let lines = kept.iter().map(|((path, habit), count)| format!("{path}|{habit}|{count}\n"));
        let text: String = std::iter::once(RATCHET_HEAD.to_owned()).chain(lines).collect();
        match std::env::var_os("UPDATE") {
            Some(_) => fs::write(root().join(RATCHET), text).unwrap(),
            None => problems.push(format!(
                "{RATCHET} differs from the counts: UPDATE=1 cargo test -p tree writes those that fell"
            )),
        }
    }
    report(problems);
}

#[test]
fn the_comments_as_a_whole_keep_the_limits() {
    let sources: Vec<(String, Vec<Line>)> =
        prose().into_iter().filter(|(path, _)| path.ends_with(".rs")).collect();
    let lines: Vec<Line> = sources.iter().flat_map(|(_, lines)| lines.clone()).collect();
    let thousands = words(&lines) as f64 / 1000.0;
    let mut problems = Vec::new();
    for habit in &HABITS {
        let per_thousand = lines.iter().map(|(_, line)| habit.count(line)).sum::<usize>() as f64 / thousands;
        println!("{}: {per_thousand:.2} per 1,000 words, limit {}", habit.name, habit.limit);
        if per_thousand > habit.limit {
            problems
                .push(format!("{}: {per_thousand:.2} per 1,000 words, limit {}", habit.name, habit.limit));
        }
    }
    report(problems);
}

#[test]
fn documents_keep_their_number_of_words() {
    let mut problems = Vec::new();
    for (start, without, most) in MAX_WORDS {
        let paths = files("docs").into_iter().chain(["README.md".to_owned()]);
        let paths = paths.filter(|path| path.ends_with(".md") && path.starts_with(start));
        let paths = paths.filter(|path| !without.iter().any(|start| path.starts_with(start)));
        let words: usize = paths.map(|path| read(&path).split_whitespace().count()).sum();
        println!("{start}: {words} words, at most {most}");
        if words > most {
            problems
                .push(format!("{start}: {words} words, at most {most}: shorten or delete before you add"));
        }
    }
    report(problems);
}

#[test]
fn documentation_comments_do_not_repeat_the_name_below() {
    let sources = files("src").into_iter().chain(files("crates"));
    let mut short = Vec::new();
    for path in sources.filter(|path| path.ends_with(".rs") && !is_test(path)) {
        let lines = production(&path);
        let is_doc = |at: usize| lines.get(at).is_some_and(|(_, line)| line.trim().starts_with("///"));
        for (at, (number, line)) in lines.iter().enumerate() {
            let words = line.trim().trim_start_matches('/').split_whitespace().count();
            let single = is_doc(at) && !(at > 0 && is_doc(at - 1)) && !is_doc(at + 1);
            if single && (1..=3).contains(&words) {
                short.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    println!("{} documentation comments of three words or fewer", short.len());
    if short.len() > MAX_SHORT_DOCS {
        report(short);
    }
}

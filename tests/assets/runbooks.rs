//! Whether every alert has a page that helps, and whether what the pages name exists.
//!
//! A page marks where its commands run: `admin$ ` on an administrator's machine, `node# ` as root on the node. In such a block
//! every other line is a remark, which begins with `#`, or goes on with the command of a line that ends with a backslash.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::catalog::METRICS;

use super::promql::{Reader, parse};
use super::reasons::reasons_of_alerts;
use super::vocabulary::Vocabulary;
use super::{files, report};

/// Headings of a runbook, in order; above them is its name.
const HEADINGS: [&str; 6] = ["Meaning", "Impact", "Is it real", "What to do", "If it comes back", "Silence"];
/// Programs that a page may have people type.
const PROGRAMS: &str = include_str!("programs.txt");
/// Blocks whose lines are typed.
const SHELLS: [&str; 4] = ["sh", "bash", "shell", "console"];
/// Folders and files of pages, beside the runbooks.
const FOLDERS: [&str; 2] = ["docs/runbooks", "docs/playbooks"];
/// Fields of nvidia-smi that are named like metrics.
const FIELDS: [&str; 5] = ["gpu_bus_id", "gpu_name", "gpu_serial", "gpu_temp", "gpu_uuid"];
const PAGES: [&str; 4] = ["docs/owner-report.md", "docs/postmortem.md", "docs/REVIEW.md", "docs/SLO.md"];
/// Where a command runs, by the mark before it.
const MARKS: [(&str, Place); 2] = [("admin$ ", Place::Admin), ("node# ", Place::Node)];
/// Programs that an administrator's machine has and a node need not have.
const OF_ADMINS: [&str; 8] =
    ["amtool", "kubectl", "promtool", "sacct", "scancel", "scontrol", "sinfo", "squeue"];
/// Programs that look at the machine that they run on.
const OF_NODES: [&str; 14] = [
    "dcgmi",
    "dmesg",
    "gpu-node-exporter",
    "ibstat",
    "journalctl",
    "kill",
    "lsmod",
    "lspci",
    "modprobe",
    "nvidia-bug-report.sh",
    "nvidia-smi",
    "ps",
    "rmmod",
    "systemctl",
];
/// What ends all work of a node.
const HALTS: [&str; 4] = ["reboot", "poweroff", "shutdown", "halt"];
/// How long a page's work takes, and where help comes from.
const DURATION: &str = "**Takes:**";
const CONTACT: &str = "**Escalate:**";

/// Where a page says whether the alert is right.
const PROOF: &str = "Is it real";
/// How a query is typed: the server, and the query in quotes.
const QUERY: &str = "promtool query instant http://localhost:9090 '";

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On an administrator's machine.
    Admin,
    /// On the node, as root.
    Node,
}

/// One command: its lines joined, without the mark.
#[derive(Debug, PartialEq, Eq)]
struct Command {
    place: Option<Place>,
    text: String,
}

/// The mark of a line, and what is typed behind it.
fn marked(line: &str) -> Option<(Place, &str)> {
    MARKS.into_iter().find_map(|(mark, place)| Some((place, line.strip_prefix(mark)?)))
}

/// One block of code of a page, and the part that it is in.
struct Block {
    part: String,
    language: String,
    lines: Vec<String>,
}

/// A page in parts: blocks of code, and the text beside them.
struct Page {
    name: String,
    path: PathBuf,
    blocks: Vec<Block>,
    prose: String,
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
    fn shells(&self) -> impl Iterator<Item = &Block> {
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

fn pages() -> Vec<Page> {
    let mut paths: Vec<PathBuf> = FOLDERS.into_iter().flat_map(|folder| files::list(folder, ".md")).collect();
    paths.extend(PAGES.into_iter().map(|page| files::root().join(page)).filter(|path| path.exists()));
    paths.iter().map(|path| Page::read(path)).collect()
}

impl Block {
    /// Whether each command is followed by what it answers, and some by what they answer if the alert is right and if
    /// it is not. Settings answer nothing.
    fn tells_answers(&self) -> bool {
        let remark = |line: &str| line.starts_with('#');
        let sets = |line: &str| {
            let name = line.split_once('=').map_or("", |(name, _)| name);
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        };
        let typed = |line: &str| !remark(line) && !sets(marked(line).map_or(line, |(_, text)| text));
        let after = self.lines.iter().skip(1).map(String::as_str).chain([""]);
        let below: Vec<&str> =
            self.lines.iter().map(String::as_str).skip_while(|line| !typed(line)).collect();
        self.lines.iter().zip(after).all(|(line, next)| !typed(line) || remark(next))
            && below.iter().any(|line| line.starts_with("# real: "))
            && below.iter().any(|line| remark(line) && line.contains("not real: "))
    }
}

impl Block {
    /// The commands, each with the place that its mark names. Where lines are marked, or begin with a prompt, the others are
    /// no commands.
    fn commands(&self) -> Vec<Command> {
        let prompt =
            |line: &str| line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).map(str::to_owned);
        let marks = self.lines.iter().any(|line| marked(line).is_some());
        let prompted =
            !marks && (self.language == "console" || self.lines.iter().any(|line| line.starts_with("$ ")));
        let mut commands: Vec<Command> = Vec::new();
        let mut goes_on = false;
        for line in &self.lines {
            let found = match marked(line) {
                Some((place, text)) => Some((Some(place), text.to_owned())),
                None if marks => None,
                None if prompted => prompt(line).map(|text| (None, text)),
                None => Some((None, line.trim().to_owned())).filter(|(_, text)| !text.starts_with('#')),
            };
            let open = commands.last_mut().filter(|_| goes_on);
            match (open, found) {
                (Some(command), _) => command.text = format!("{} {}", command.text, line.trim()),
                (None, Some((place, text))) => commands.push(Command { place, text: text.trim().to_owned() }),
                (None, None) => continue,
            }
            let Some(command) = commands.last_mut() else { continue };
            let text = command.text.strip_suffix('\\').map(|text| text.trim_end().to_owned());
            goes_on = text.is_some();
            command.text = text.unwrap_or_else(|| std::mem::take(&mut command.text));
        }
        commands
    }

    /// Lines of a block with marks that are neither typed nor a remark nor go on with a command.
    fn unmarked(&self) -> Vec<&str> {
        let before = [""].into_iter().chain(self.lines.iter().map(String::as_str));
        let lines = self.lines.iter().map(String::as_str).zip(before);
        let fits = |line: &str| line.is_empty() || line.starts_with('#') || marked(line).is_some();
        lines.filter(|(line, before)| !fits(line) && !before.ends_with('\\')).map(|(line, _)| line).collect()
    }
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
fn marked_pages() -> Vec<Page> {
    let mut all = pages();
    all.retain(|page| page.name.starts_with("docs/runbooks/"));
    all
}

/// What is wrong with the commands of a page, by the place that they run in.
fn wrong_commands(page: &Page) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut set: BTreeSet<(bool, String)> = BTreeSet::new();
    for block in page.shells() {
        wrong.extend(block.unmarked().into_iter().map(|line| format!("neither marked nor a remark: {line}")));
        for Command { place, text } in block.commands() {
            let Some(place) = place else {
                wrong.push(format!("no admin$ or node# before it: {text}"));
                continue;
            };
            let elsewhere = if place == Place::Admin { &OF_NODES[..] } else { &OF_ADMINS[..] };
            // What a pod runs, it runs on its node.
            let first = programs_of_line(&text).into_iter().take(1);
            for program in first.filter(|program| elsewhere.contains(&program.as_str())) {
                wrong.push(format!("{program} does not run there: {text}"));
            }
            let halts = |part: &str| {
                let part = part.split('#').next().unwrap_or_default();
                HALTS.iter().any(|halt| part.split_whitespace().any(|word| word == *halt))
            };
            if text.split("&&").skip(1).any(halts) {
                wrong.push(format!("a halt behind &&: {text}"));
            }
            if text.starts_with("kubectl drain") && !text.contains("--timeout=") {
                wrong.push(format!("a drain without --timeout: {text}"));
            }
            for name in variables(&text) {
                if !set.contains(&(place == Place::Admin, name.clone())) {
                    wrong.push(format!("{name} is not set where this runs: {text}"));
                }
            }
            let settings = text.split_whitespace().filter_map(|word| word.split_once('='));
            let settings =
                settings.take_while(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
            set.extend(settings.map(|(name, _)| (place == Place::Admin, name.to_owned())));
        }
    }
    wrong
}

/// Variables of a shell in capitals that a command asks for, but those that every shell has.
fn variables(text: &str) -> Vec<String> {
    let after = text.split('$').skip(1).map(|rest| rest.strip_prefix('{').unwrap_or(rest));
    let names = after.map(|rest| rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect());
    names.filter(|name: &String| !name.is_empty() && name != "HOSTNAME" && name != "HOME").collect()
}

#[test]
fn commands_of_runbooks_run_where_they_are_marked() {
    let of = |page: Page| {
        let wrong = wrong_commands(&page);
        wrong.into_iter().map(|what| format!("{}: {what}", page.name)).collect::<Vec<_>>()
    };
    report(marked_pages().into_iter().flat_map(of).collect());
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
fn what_is_wrong_with_commands_is_found() {
    let wrong = |lines: &[&str]| {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        let block = Block { part: String::new(), language: "console".into(), lines };
        let page =
            Page { name: String::new(), path: PathBuf::new(), blocks: vec![block], prose: String::new() };
        wrong_commands(&page)
    };
    let good = [
        "admin$ NODE=NAME GPU=0   # from the alert",
        "admin$ kubectl drain \"$NODE\" --ignore-daemonsets \\",
        "    --timeout=15m",
        "# a remark",
        "node# gpu-node-exporter driver release && nvidia-smi --gpu-reset -i 0",
        "node# systemctl reboot",
    ];
    assert_eq!(wrong(&good), Vec::<String>::new());
    for (line, problem) in [
        ("nvidia-smi", "neither marked nor a remark: nvidia-smi"),
        ("node# kubectl get pods", "kubectl does not run there: kubectl get pods"),
        ("admin$ nvidia-smi -L", "nvidia-smi does not run there: nvidia-smi -L"),
        ("node# true && systemctl reboot", "a halt behind &&: true && systemctl reboot"),
        ("admin$ kubectl drain x", "a drain without --timeout: kubectl drain x"),
        ("node# nvidia-smi -i \"$GPU\"", "GPU is not set where this runs: nvidia-smi -i \"$GPU\""),
    ] {
        assert_eq!(wrong(&[good[0], line]), [problem]);
    }
    let bare = Block { part: String::new(), language: "sh".into(), lines: vec!["ps".into()] };
    assert_eq!(bare.commands(), [Command { place: None, text: "ps".into() }]);
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

#[test]
fn programs_that_pages_have_people_type_are_known() {
    let known: BTreeSet<&str> =
        PROGRAMS.lines().filter(|line| !line.starts_with('#')).map(str::trim).collect();
    let mut problems = Vec::new();
    for page in pages() {
        for block in page.shells() {
            for program in programs(block) {
                if !known.contains(program.as_str()) {
                    problems.push(format!("{}: {program:?} is not in tests/assets/programs.txt", page.name));
                }
            }
        }
    }
    problems.sort();
    problems.dedup();
    report(problems);
}

/// The programs that a block starts.
fn programs(block: &Block) -> Vec<String> {
    block.commands().iter().flat_map(|command| programs_of_line(&command.text)).collect()
}

fn programs_of_line(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut quote, mut before) = (None, ' ');
    for c in line.chars() {
        match (quote, c) {
            (None, '#') if before == ' ' => break,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            // A command within another.
            (_, '(') if before == '$' => {
                quote = None;
                parts.push(String::new());
            }
            (None, '|' | ';' | '&') if before != '>' => parts.push(String::new()),
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
        before = c;
    }
    let first = |part: String| {
        let part = part.trim_start_matches(['|', ';', '&', '(', ' ']).to_owned();
        let mut words = part.split_whitespace().peekable();
        // Settings, and programs that start another.
        while words.peek().is_some_and(|word| {
            let setting = word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty()
                    && name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
            });
            setting || matches!(*word, "sudo" | "env" | "time" | "do" | "then" | "else" | "!")
        }) {
            words.next();
        }
        words.next().map(|word| word.trim_end_matches(')').to_owned())
    };
    let shell = ["for", "while", "if", "done", "fi", "do"];
    parts.into_iter().filter_map(first).filter(|word| !shell.contains(&word.as_str())).collect()
}

#[test]
fn programs_are_found_in_what_is_typed() {
    let block = |language: &str, lines: &[&str]| Block {
        part: String::new(),
        language: language.into(),
        lines: lines.iter().map(|line| (*line).to_owned()).collect(),
    };
    let all = programs(&block(
        "sh",
        &["# why", "sudo dmesg | grep -i 'a | b' # c | d", "A=1 curl -s x \\", " -o y"],
    ));
    assert_eq!(all, ["dmesg", "grep", "curl"]);
    assert_eq!(
        programs(&block("sh", &["GPU=0; NODE=$(uname -n) # x", "kill \"$(pidof x)\""])),
        ["uname", "kill", "pidof"]
    );
    assert_eq!(programs(&block("console", &["$ nvidia-smi -L", "GPU 0: x | y"])), ["nvidia-smi"]);
}

#[test]
fn answers_stand_below_what_is_typed() {
    let tells = |lines: &[&str]| {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        Block { part: PROOF.into(), language: "sh".into(), lines }.tells_answers()
    };
    assert!(tells(&["nvidia-smi", "# real: no table", "# not real: a table"]));
    assert!(tells(&["# why", "nvidia-smi", "# real: no table; not real: a table"]));
    assert!(!tells(&["nvidia-smi", "# real: no table"]), "nothing to hold it against");
    assert!(!tells(&["nvidia-smi", "# not real: a table"]));
    assert!(!tells(&["uptime", "nvidia-smi", "# real: no table; not real: a table"]), "what of the first?");
    assert!(tells(&[
        "GPU=N; NODE=$HOSTNAME   # on the node",
        "nvidia-smi",
        "# real: none",
        "# not real: some"
    ]));
    assert!(!tells(&["# real: no table", "# not real: a table", "nvidia-smi"]), "what answers so?");
    assert!(!tells(&["# real: no table; not real: a table"]), "there is nothing to type");
}

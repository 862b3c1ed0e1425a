//! What pages have people type: whether it is marked where it runs, can run there, and is a program that is known.
//!
//! A page marks where its commands run: `admin$ ` on an administrator's machine, `node# ` as root on the node. In such a block
//! every other line is a remark, which begins with `#`, or goes on with the command of a line that ends with a backslash.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::report;
use super::runbooks::{Block, PROOF, Page, marked_pages, pages};

/// Programs that a page may have people type.
const PROGRAMS: &str = include_str!("programs.txt");
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

impl Block {
    /// Whether each command is followed by what it answers, and some by what they answer if the alert is right and if
    /// it is not. Settings answer nothing.
    pub fn tells_answers(&self) -> bool {
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

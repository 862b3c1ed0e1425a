//! What Prometheus's and Alertmanager's own tools say.

use std::io::Read;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use super::{cases, files, report};

/// Most lines that are shown of what a tool says.
const MOST_LINES: usize = 60;

/// A tool: the path in the variable of its name in capitals, else the one in `.tools/bin`.
pub fn program(tool: &str) -> std::path::PathBuf {
    let given = std::env::var(tool.to_uppercase()).ok().filter(|given| !given.is_empty());
    files::root().join(given.unwrap_or_else(|| format!(".tools/bin/{tool}")))
}

/// Runs a tool; all that it said if it was not content.
fn said(tool: &str, arguments: &[String], folder: &str) -> Result<(), String> {
    let (root, program) = (files::root(), program(tool));
    // One pipe for both: promtool names the file on one and what fails on the other.
    let (mut reader, writer) = std::io::pipe().expect("there are files left");
    let mut command = Command::new(&program);
    command.args(arguments).current_dir(root.join(folder));
    command.stdout(writer.try_clone().expect("there are files left")).stderr(writer);
    // promtool keeps little and throws away much: with Go's own ratio, and threads that collect garbage ahead on every core,
    // a third of its time is collecting.
    for (variable, value) in [("GOGC", "400"), ("GOMAXPROCS", "1")] {
        if std::env::var_os(variable).is_none() {
            command.env(variable, value);
        }
    }
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("{}: {error}; tests/tools/ensure-tools.sh test fetches it", program.display())
    });
    // Its ends of the pipe are this process's too.
    drop(command);
    let mut said = Vec::new();
    reader.read_to_end(&mut said).expect("a pipe can be read");
    let status = child.wait().expect("it is waited for once");
    if status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&said).into_owned()) }
}

/// The start of a text: the first case that fails tells most.
fn shortened(said: &str) -> String {
    said.lines().take(MOST_LINES).collect::<Vec<_>>().join("\n")
}

/// What a tool says, if it is not content.
pub fn run(tool: &str, arguments: &[String], folder: &str) -> Vec<String> {
    let said = said(tool, arguments, folder).err();
    said.map(|said| format!("{tool} {}:\n{}", arguments.join(" "), shortened(&said))).into_iter().collect()
}

pub fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn promtool_takes_the_rules() {
    let mut arguments = words(&["check", "rules"]);
    arguments.extend(files::rule_files().iter().map(|path| files::name(path)));
    report(run("promtool", &arguments, "."));
}

#[test]
fn the_tests_of_the_rules_pass() {
    let mut tests = files::list("tests/alerts", ".test.yml");
    let folder = PathBuf::from(format!("{}/cases-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id()));
    std::fs::create_dir_all(&folder).expect("it can be made");
    let rules = cases::rules(&files::rule_files());
    // As the files are, with every rule in every case: `make prove` takes the time.
    let whole = std::env::var_os("WHOLE_RULE_FILES").is_some();
    // Each on its own, so that what fails is named by its file; one on each core, the longest first.
    tests.sort_by_key(|path| std::fs::metadata(path).expect("it was listed").len());
    let left = Mutex::new(tests);
    let test = |path: &Path| {
        if whole {
            return run("promtool", &words(&["test", "rules", &path.to_string_lossy()]), ".");
        }
        let split = match cases::split(path, &rules, &folder) {
            Ok(split) => split,
            Err(problem) => return vec![problem],
        };
        let mut arguments = words(&["test", "rules"]);
        arguments.extend(split.iter().map(|case| case.path.display().to_string()));
        let Err(said) = said("promtool", &arguments, ".") else { return Vec::new() };
        let failed: Vec<&str> = said.split("Unit Testing:").filter(|part| part.contains("FAILED")).collect();
        let failed = if failed.is_empty() { vec![said.as_str()] } else { failed };
        failed.into_iter().map(|part| cases::named(&split, &shortened(part))).collect()
    };
    let work = || {
        let mut problems = Vec::new();
        loop {
            let Some(path) = left.lock().expect("no holder panics").pop() else { return problems };
            problems.extend(test(&path));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let problems: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it ends")).collect()
    });
    std::fs::remove_dir_all(&folder).expect("it can be removed");
    report(problems);
}

#[test]
fn amtool_takes_both_configurations_of_alertmanager() {
    let files = ["alerts/alertmanager.yml", "alerts/alertmanager.fleet.yml"];
    report(run("amtool", &words(&["check-config", files[0], files[1]]), "."));
}

/// What promtool says of a text as a rule file.
fn checked(name: &str, rules: &str) -> Vec<String> {
    let file = format!("{}/{name}-{}.yml", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::write(&file, rules).expect("it can be written");
    let problems = run("promtool", &words(&["check", "rules", &file]), ".");
    if problems.is_empty() {
        std::fs::remove_file(&file).expect("it can be removed");
    }
    problems
}

#[test]
fn expressions_of_boards_and_pages_are_those_of_the_oldest_prometheus() {
    // The parser of the other checks knows newer functions too.
    let mut rules = String::from("groups:\n- name: all\n  rules:\n");
    let boards =
        super::dashboards::expressions().into_iter().map(|expression| (expression.place, expression.text));
    let pages = super::runbooks::queries().into_iter().chain(super::templates::queries());
    for (place, text) in boards.chain(pages).chain(super::rollouts::queries()) {
        let record: String = place.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let text = serde_json::to_string(&text).expect("a text is JSON");
        rules.push_str(&format!("  - {{record: 'at:{record}', expr: {text}}}\n"));
    }
    let mut problems = checked("expressions", &rules);
    for (at, (page, text)) in super::runbooks::rules().into_iter().enumerate() {
        let wrong = checked(&format!("page-{at}"), &text);
        problems.extend(wrong.into_iter().map(|what| format!("{page}: {what}")));
    }
    report(problems);
}

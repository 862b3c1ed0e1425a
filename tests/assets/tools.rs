//! What Prometheus's and Alertmanager's own tools say.

use std::num::NonZero;
use std::process::Command;
use std::sync::Mutex;

use super::{files, report};

/// Most lines that are shown of what a tool says.
const MOST_LINES: usize = 60;

/// A tool: the path in the variable of its name in capitals, else the one in `.tools/bin`.
pub fn program(tool: &str) -> std::path::PathBuf {
    let given = std::env::var(tool.to_uppercase()).ok().filter(|given| !given.is_empty());
    files::root().join(given.unwrap_or_else(|| format!(".tools/bin/{tool}")))
}

/// Runs a tool; what it said if it was not content.
pub fn run(tool: &str, arguments: &[String], folder: &str) -> Vec<String> {
    let (root, program) = (files::root(), program(tool));
    let mut command = Command::new(&program);
    command.args(arguments).current_dir(root.join(folder));
    // promtool keeps little and throws away much: with Go's own ratio a quarter of its time is collecting garbage.
    if std::env::var_os("GOGC").is_none() {
        command.env("GOGC", "400");
    }
    let output = command.output();
    let output = output.unwrap_or_else(|error| {
        panic!("{}: {error}; tests/tools/ensure-tools.sh test fetches it", program.display())
    });
    if output.status.success() {
        return Vec::new();
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // The first case that fails tells most.
    let first: Vec<&str> = said.lines().take(MOST_LINES).collect();
    vec![format!("{tool} {}:\n{}", arguments.join(" "), first.join("\n"))]
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
    let name =
        |path: &std::path::PathBuf| path.file_name().expect("it was listed").to_string_lossy().into_owned();
    // Each on its own, so that what fails is named by its file; one on each core, the longest first.
    tests.sort_by_key(|path| std::fs::metadata(path).expect("it was listed").len());
    let left = Mutex::new(tests);
    let work = || {
        let mut problems = Vec::new();
        loop {
            let Some(path) = left.lock().expect("no holder panics").pop() else { return problems };
            problems.extend(run("promtool", &words(&["test", "rules", &name(&path)]), "tests/alerts"));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let problems = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it ends")).collect()
    });
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

//! The release workflow: what it runs is what a person runs, and what it uses cannot change behind its back.

use regex::Regex;

use super::files::{read, root};
use super::report;

#[test]
fn the_release_workflow_runs_make_and_pins_its_actions() {
    let text = read(&root().join(".github/workflows/release.yml"));
    let workflow: yaml_serde::Value = yaml_serde::from_str(&text).expect("it is YAML");
    let makefile = read(&root().join("Makefile"));
    let is_target = |target: &str| makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
    let pinned = Regex::new(r"^[a-z-]+/[a-z-]+@[0-9a-f]{40}$").unwrap();
    let (mut problems, mut made) = (Vec::new(), Vec::new());
    for (_, job) in workflow["jobs"].as_mapping().expect("it has jobs") {
        for step in job["steps"].as_sequence().expect("a job has steps") {
            if let Some(action) = step["uses"].as_str()
                && !pinned.is_match(action)
            {
                problems.push(format!("{action} is not pinned by commit"));
            }
            let lines = step["run"].as_str().unwrap_or("").lines();
            made.extend(lines.filter_map(|line| line.strip_prefix("make ")).map(str::to_owned));
        }
    }
    for command in &made {
        let (target, parts) = command.split_once(" PARTS=").unwrap_or((command, ""));
        let parts =
            parts.split(['"', ' ']).filter(|part| !part.is_empty()).map(|part| format!("prove-{part}"));
        for target in parts.chain([target.to_owned()]) {
            if !is_target(&target) {
                problems.push(format!("`make {command}`: the Makefile has no {target}"));
            }
        }
    }
    assert!(!made.is_empty(), "it runs make");
    report(problems);
}

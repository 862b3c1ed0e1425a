//! The release workflow: what it runs is what a person runs, no step of it is missing, and no action in it changes unseen.

use regex::Regex;
use yaml_serde::Value;

use super::files::{read, root};
use super::report;

/// What `make candidate` does before anything is published.
const PROVEN: [&str; 6] =
    ["test", "prove-deny", "prove-chart", "prove-rules", "prove-packages", "prove-image"];
/// A step as the texts that its action, command and parameters have.
type Step = &'static [&'static str];
/// The steps of each job, in this order among others.
const STEPS: [(&str, &[Step]); 2] = [
    (
        "build",
        &[
            &["actions/checkout@", "persist-credentials: false"],
            &["test \"$GITHUB_REF_NAME\" = \"v$(", "Cargo.toml"],
            &["run: make candidate"],
            &[
                "actions/upload-artifact@",
                ".run/packages/SHA256SUMS",
                "include-hidden-files: true",
                "if-no-files-found: error",
            ],
        ],
    ),
    (
        "publish",
        &[
            &["actions/download-artifact@"],
            &["run: sha256sum --check SHA256SUMS"],
            &["actions/attest-build-provenance@", "subject-checksums: SHA256SUMS"],
            &["actions/attest-sbom@", "subject-path: *.deb, *.rpm, *.tar.gz, *.oci.tar", "sbom-path: "],
            &["skopeo copy ", "--preserve-digests", "docker://$name:${GITHUB_REF_NAME#v}"],
            &["actions/attest-build-provenance@", "steps.image.outputs.digest", "push-to-registry: true"],
            &["gh release create \"$GITHUB_REF_NAME\"", "--verify-tag", "SHA256SUMS"],
        ],
    ),
];

fn workflow() -> Value {
    yaml_serde::from_str(&read(&root().join(".github/workflows/release.yml"))).expect("it is YAML")
}

/// The texts of a job's steps: action, command and parameters, a line each.
fn steps(workflow: &Value, job: &str) -> Vec<String> {
    let line = |key: &str, value: &Value| match value.as_str() {
        Some(text) => format!("{key}: {text}\n"),
        None => format!("{key}: {}\n", value.as_bool().is_some_and(|value| value)),
    };
    let text = |step: &Value| {
        let own = ["uses", "run"].into_iter().filter(|key| !step[*key].is_null());
        let with = step["with"].as_mapping().into_iter().flatten();
        let with = with.map(|(key, value)| line(key.as_str().unwrap_or_default(), value));
        own.map(|key| line(key, &step[key])).chain(with).collect::<String>()
    };
    workflow["jobs"][job]["steps"].as_sequence().expect("a job has steps").iter().map(text).collect()
}

/// The first step that a job lacks, or has before one that must come first.
fn missing(steps: &[String], wanted: &[Step]) -> Option<Step> {
    let mut left = steps.iter();
    let has = |text: &String, parts: Step| parts.iter().all(|part| text.contains(part));
    wanted.iter().copied().find(|parts| !left.any(|text| has(text, parts)))
}

#[test]
fn no_step_of_the_release_is_missing() {
    let workflow = workflow();
    let mut problems = Vec::new();
    for (job, wanted) in STEPS {
        let steps = steps(&workflow, job);
        problems.extend(missing(&steps, wanted).map(|step| format!("{job}: no step {step:?} in its place")));
        // Without any one of them it is noticed.
        for (place, parts) in wanted.iter().enumerate() {
            let others: Vec<String> =
                steps.iter().filter(|text| !parts.iter().all(|part| text.contains(part))).cloned().collect();
            assert!(missing(&others, wanted).is_some(), "{job}: step {place}");
        }
    }
    assert_eq!(workflow["jobs"]["publish"]["needs"].as_str(), Some("build"));
    let write = |job: &str, permission: &str| {
        workflow["jobs"][job]["permissions"][permission].as_str() == Some("write")
    };
    for permission in ["contents", "id-token", "attestations", "artifact-metadata", "packages"] {
        assert!(write("publish", permission), "{permission}");
        assert!(!write("build", permission), "{permission}");
    }
    report(problems);
}

#[test]
fn what_is_summed_is_what_is_published() {
    let script = read(&root().join("tests/tools/release.sh"));
    let sums = script.lines().find(|line| line.contains("sha256sum -- ")).expect("there are checksums");
    let (_, files) = sums.split_once("sha256sum -- ").unwrap();
    let files: Vec<&str> = files.split_whitespace().take_while(|word| word.starts_with('*')).collect();
    assert!(files.len() >= 5, "{files:?}");
    let workflow = workflow();
    for (job, step) in [("build", "upload-artifact"), ("publish", "gh release create")] {
        let text = steps(&workflow, job).into_iter().find(|text| text.contains(step)).unwrap();
        for file in &files {
            assert!(text.contains(file), "{job}: no {file} in {text}");
        }
    }
}

#[test]
fn the_release_workflow_runs_make_and_pins_its_actions() {
    let workflow = workflow();
    let makefile = read(&root().join("Makefile"));
    let pinned = Regex::new(r"^[a-z-]+/[a-z-]+@[0-9a-f]{40}$").unwrap();
    let mut problems = Vec::new();
    for (_, job) in workflow["jobs"].as_mapping().expect("it has jobs") {
        for step in job["steps"].as_sequence().expect("a job has steps") {
            if let Some(action) = step["uses"].as_str()
                && !pinned.is_match(action)
            {
                problems.push(format!("{action} is not pinned by commit"));
            }
        }
    }
    let candidate = makefile.lines().find_map(|line| line.strip_prefix("candidate: "));
    let (targets, _) = candidate.expect("the Makefile has it").split_once(" ##").unwrap();
    assert_eq!(targets.split(' ').collect::<Vec<_>>(), PROVEN);
    for target in PROVEN {
        if !makefile.lines().any(|line| line.starts_with(&format!("{target}:")) && !line.contains(":=")) {
            problems.push(format!("the Makefile has no {target}"));
        }
    }
    report(problems);
}

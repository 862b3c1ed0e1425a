//! The rules and boards that come with the program: served by the daemon, written out by the command.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::node::Setup;

fn assets(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"))
        .arg("assets")
        .args(arguments)
        .output()
        .expect("it starts")
}

#[test]
fn what_the_daemon_serves_and_the_command_writes_is_what_the_repository_has() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/folder");
    let written = assets(&["--out", out.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let list = String::from_utf8(assets(&[]).stdout).unwrap();
    let node = Setup::new("tests/scenarios/still-8xh200.toml").start();
    node.wait_ready();
    let mut files = 0;
    for file in list.lines().map(|line| line.split_whitespace().last().unwrap()) {
        let ours = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        assert!(fs::read_to_string(out.join(file)).unwrap() == ours, "{file} as written");
        assert!(node.get(&format!("/{file}")) == (200, ours), "{file} as served");
        files += 1;
    }
    assert!(files > 0 && list.contains("alerts/owners.rules.yml"), "{list}");
    assert!(node.get("/").1.contains("<a href=\"alerts/owners.rules.yml\">"));
    assert_eq!(node.get("/alerts/none.yml").0, 404);
}

#[test]
fn the_command_teaches_and_says_what_is_wrong() {
    let help = String::from_utf8(assets(&["--help"]).stdout).unwrap();
    for taught in ["--out DIR", "--set severity.", "--values", "rule_files:", "kubectl apply"] {
        assert!(help.contains(taught), "{taught}: {help}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let failed = assets(&["--out", file.to_str().unwrap()]);
    let said = String::from_utf8(failed.stderr).unwrap();
    assert!(failed.status.code() == Some(1) && said.contains(file.to_str().unwrap()), "{said}");
    let odd = assets(&["--out", dir.path().to_str().unwrap(), "--set", "links.grafana=grafana"]);
    let said = String::from_utf8(odd.stderr).unwrap();
    assert!(odd.status.code() == Some(1) && said.contains("links.grafana cannot be"), "{said}");
    let objects = String::from_utf8(assets(&["--format", "prometheusrule"]).stdout).unwrap();
    assert!(objects.contains("\nkind: PrometheusRule\n"), "{objects}");
}

//! Man pages and completions as packages have them: made by the shipped program from its command line.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const NAME: &str = "gpu-node-exporter";

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter")).args(arguments).output().unwrap()
}

/// The commands that `--help` lists.
fn commands() -> BTreeSet<String> {
    let help = String::from_utf8(program(&["--help"]).stdout).unwrap();
    let (_, rest) = help.split_once("Commands:\n").unwrap();
    let lines = rest.lines().take_while(|line| !line.is_empty());
    let commands = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    commands.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

#[test]
fn each_command_has_a_page_and_completions() {
    let dir = TempDir::new().unwrap();
    let output = program(&["manual", "--out", dir.path().to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
    let commands = commands();
    assert!(commands.contains("serve") && commands.contains("doctor"), "{commands:?}");
    let page = read("man/man1/gpu-node-exporter.1");
    assert!(page.contains(".SH OPTIONS") && page.contains("GPU_NODE_EXPORTER__SECTION__KEY"), "{page}");
    let bash = "bash-completion/completions/gpu-node-exporter";
    let completions = [
        bash,
        "zsh/vendor-completions/_gpu-node-exporter",
        "fish/vendor_completions.d/gpu-node-exporter.fish",
    ];
    for command in &commands {
        let of_command = read(&format!("man/man1/{NAME}-{command}.1"));
        assert!(of_command.contains(".SH SYNOPSIS"), "{of_command}");
        for file in completions {
            assert!(read(file).contains(command), "{file} has no {command}");
        }
    }
    for hidden in ["sampler", "canary-child", "topology-child", "manual"] {
        let page = format!("man/man1/{NAME}-{hidden}.1");
        assert!(!Path::new(&dir.path().join(&page)).exists(), "{page}");
    }
    let parsed = Command::new("bash").arg("-n").arg(dir.path().join(bash)).output().unwrap();
    assert!(parsed.status.success() && parsed.stderr.is_empty(), "{parsed:?}");
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let output = program(&["manual", "--out", "/dev/null/folder"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("Not a directory"));
}

//! Wrong configuration, through the shipped program: exit 64, the key or file named, nothing started.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Runs the program to its end, with no variable of ours but those given.
fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPU_NODE_EXPORTER__") {
            command.env_remove(name);
        }
    }
    command.args(args).envs(env.iter().copied()).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Serves with this file; gives the lines on standard error, once it is sure that nothing was started.
fn refused(file: &str, env: &[(&str, &str)]) -> Vec<String> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("config.toml");
    fs::write(&path, file).unwrap();
    refused_path(&path, dir.path(), env)
}

fn refused_path(config: &Path, dir: &Path, env: &[(&str, &str)]) -> Vec<String> {
    let (state, socket) = (dir.join("state"), dir.join("control.sock"));
    let mut all_env = vec![("GPU_NODE_EXPORTER__CONTROL__SOCKET", socket.to_str().unwrap())];
    all_env.extend(env);
    let listen = ["--listen", "127.0.0.1:0", "--state-dir", state.to_str().unwrap()];
    let mut args = vec!["serve", "--config", config.to_str().unwrap()];
    args.extend(listen);
    let output = run(&args, &all_env);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert_eq!(text(&output.stdout), "");
    assert!(!state.exists() && !socket.exists(), "something was started");
    text(&output.stderr).lines().map(str::to_owned).collect()
}

/// As many lines as expectations, each holding all the texts of its expectation.
fn assert_lines(lines: &[String], expected: &[&[&str]]) {
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, parts) in lines.iter().zip(expected) {
        for part in *parts {
            assert!(line.contains(part), "no {part:?} in {line:?}");
        }
    }
}

#[test]
fn unknown_keys_of_file_and_environment_are_refused_together() {
    let lines = refused(
        "[http]\nlisten = ':1'\nread_timout = '1s'\n[smapler]\nfast_interval = '1s'\n",
        &[("GPU_NODE_EXPORTER__LOG__LEVEL_", "info"), ("GPU_NODE_EXPORTER_PORT", "tcp://10.0.0.1:9408")],
    );
    assert_lines(
        &lines,
        &[
            &["http.read_timout", "config.toml", "did you mean http.read_timeout?"],
            &["smapler.fast_interval", "config.toml", "did you mean sampler.fast_interval?"],
            &["log.level_", "GPU_NODE_EXPORTER__LOG__LEVEL_", "did you mean log.level?"],
        ],
    );
}

#[test]
fn former_keys_of_file_and_environment_are_refused_with_the_new_key() {
    let lines = refused(
        "[canary]\nhung_after = '2m'\nduty_ppm = 500\nmaintenance_file = '/run/maintenance'\n[ledger]\npublish_interval = '2s'\n",
        &[("GPU_NODE_EXPORTER__OWNERS__MOST", "10")],
    );
    assert_lines(
        &lines,
        &[
            &["canary.duty_ppm", "config.toml", "renamed to canary.max_duty_ratio", "1000 is now 0.001"],
            &["canary.hung_after", "config.toml", "renamed to canary.progress_timeout"],
            &["canary.maintenance_file", "config.toml", "removed", "windows.dir"],
            &["ledger.publish_interval", "config.toml", "renamed to metrics.publish_interval"],
            &["owners.most", "GPU_NODE_EXPORTER__OWNERS__MOST", "renamed to owners.max_series"],
        ],
    );
}

#[test]
fn wrong_types_and_values_are_refused_together() {
    let lines = refused(
        "[http]\nmax_connections = 'many'\nwrite_timeout = '1h'\n",
        &[("GPU_NODE_EXPORTER__METRICS__MAX_SERIES", "1")],
    );
    assert_lines(
        &lines,
        &[
            &["http.max_connections", "config.toml", "\"many\"", "a whole number from 1 to 10000"],
            &["http.write_timeout", "config.toml", "\"1h\"", "\"100ms\" to \"10m\""],
            &["metrics.max_series", "GPU_NODE_EXPORTER__METRICS__MAX_SERIES", "100 to 1000000"],
        ],
    );
}

#[test]
fn an_impossible_order_of_intervals_is_refused() {
    let lines = refused("[sampler]\nfast_interval = '5s'\n", &[]);
    assert_lines(&lines, &[&["sampler.normal_interval (default)", "sampler.fast_interval", "\"5s\""]]);
}

#[test]
fn a_pattern_without_a_metric_is_refused() {
    let lines = refused("[metrics]\nexclude = ['gpu_no_such_thing_*']\n", &[]);
    assert_lines(&lines, &[&["metrics.exclude", "config.toml", "gpu_no_such_thing_*", "matches no metric"]]);
}

#[test]
fn broken_toml_is_refused_with_its_line() {
    let lines = refused("[http]\nlisten = \n", &[]);
    assert_lines(&lines, &[&["config.toml:2:", "not valid TOML"]]);
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let dir = TempDir::new().unwrap();
    let missing = dir.path().join("missing.toml");
    let lines = refused_path(&missing, dir.path(), &[]);
    assert_lines(&lines, &[&[missing.to_str().unwrap(), "No such file or directory"]]);
    // A folder represents every other reason: file modes do not stop root.
    let lines = refused_path(dir.path(), dir.path(), &[]);
    assert_lines(&lines, &[&[dir.path().to_str().unwrap(), "Is a directory"]]);
}

#[test]
fn a_declared_layout_that_cannot_be_used_is_refused() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("layouts.yaml");
    let path = file.to_str().unwrap();
    let config = format!("[mig]\nlayout_file = '{path}'\nlayout = 'halfs'\n");
    let lines = refused(&config, &[]);
    assert_lines(&lines, &[&["mig.layout_file", "config.toml", path, "No such file", "correct the path"]]);
    fs::write(&file, "version: v1\nmig-configs:\n  halves:\n  - devices: all\n    mig-enabeld: false\n")
        .unwrap();
    let lines = refused(&config, &[]);
    assert_lines(
        &lines,
        &[&["mig.layout_file", path, "unknown field `mig-enabeld`", "line 5", "nvidia-mig-parted"]],
    );
    fs::write(&file, "version: v1\nmig-configs: {halves: [{devices: all, mig-enabled: false}]}").unwrap();
    let lines = refused(&config, &[]);
    assert_lines(&lines, &[&["mig.layout (", "config.toml", path, "did you mean \"halves\"?"]]);
    let lines = refused("[mig]\nlayout = 'halves'\n", &[]);
    assert_lines(&lines, &[&["mig.layout (", "\"halves\"", "set mig.layout_file too"]]);

    // check-config says the same.
    let config_file = dir.path().join("config.toml");
    fs::write(&config_file, &config).unwrap();
    let args = ["check-config", "--config", config_file.to_str().unwrap()];
    let output = run(&args, &[]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert_eq!(text(&output.stdout), "");
    let output = run(&args, &[("GPU_NODE_EXPORTER__MIG__LAYOUT", "halves")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_wrong_command_line_is_refused() {
    for (args, named) in
        [(&["--lisen", ":1"][..], "--lisen"), (&["metrics", "--format", "xml"], "xml"), (&["serv"], "serv")]
    {
        let output = run(args, &[]);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains(named), "{args:?}: {output:?}");
    }
}

#[test]
fn check_config_prints_what_would_be_used() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/gpu-node-exporter.toml");
    let output = run(&["check-config", "--config", shipped, "--log-level", "debug"], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed = text(&output.stdout);
    assert!(printed.contains("level = \"debug\"  # flag --log-level\n"), "{printed}");
    assert_eq!(text(&output.stderr), "");

    // What it prints is itself a configuration.
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("printed.toml");
    fs::write(&path, &printed).unwrap();
    let again = run(&["check-config", "--config", path.to_str().unwrap()], &[]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
}

#[test]
fn metrics_prints_the_catalogue() {
    let json = run(&["metrics", "--format", "json"], &[]);
    assert_eq!(json.status.code(), Some(0), "{json:?}");
    let catalogue: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(catalogue["metrics"].as_array().is_some_and(|metrics| !metrics.is_empty()));

    let markdown = run(&["metrics", "--format", "markdown"], &[]);
    assert_eq!(markdown.status.code(), Some(0), "{markdown:?}");
    assert!(text(&markdown.stdout).starts_with("# Metrics\n"));
}

#[test]
fn snapshot_without_a_daemon_says_so() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("control.sock");
    let output = run(&["snapshot"], &[("GPU_NODE_EXPORTER__CONTROL__SOCKET", socket.to_str().unwrap())]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains(socket.to_str().unwrap()), "{output:?}");
}

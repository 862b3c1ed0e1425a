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
    assert_lines(&lines, &[&[dir.path().to_str().unwrap(), "is a folder"]]);
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
fn a_variable_names_the_file_where_no_flag_does() {
    let dir = TempDir::new().unwrap();
    let put = |name: &str, rack: &str| {
        let path = dir.path().join(name);
        fs::write(&path, format!("node.rack = '{rack}'\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (named, flag) = (put("named.toml", "r1"), put("flag.toml", "r2"));
    let printed = |args: &[&str], file: &str| {
        let output = run(args, &[("GPU_NODE_EXPORTER__CONFIG", file)]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        text(&output.stdout)
    };
    let lines = |file: &str, rack: &str| format!("rack = \"{rack}\"  # in {file}\n");
    assert!(printed(&["check-config"], &named).contains(&lines(&named, "r1")));
    assert!(printed(&["check-config", "--config", &flag], &named).contains(&lines(&flag, "r2")));
    assert!(printed(&["check-config"], "").contains("rack = \"\"\n"), "an empty variable names none");
    let missing = run(&["check-config"], &[("GPU_NODE_EXPORTER__CONFIG", "/nonexistent.toml")]);
    assert_eq!(missing.status.code(), Some(64), "{missing:?}");
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

/// The lines of `check-config` on this file, its exit code, and that it did not wait.
fn checked(config: &Path, env: &[(&str, &str)]) -> (Option<i32>, String) {
    let started = std::time::Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
    let mut child = command
        .args(["check-config", "--config", config.to_str().unwrap()])
        .envs(env.iter().copied())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if started.elapsed() > std::time::Duration::from_secs(20) => {
                child.kill().unwrap();
                panic!("it waits for {}", config.display());
            }
            None => super::node::pause(),
        }
    };
    (ended, text(&child.wait_with_output().unwrap().stderr))
}

#[test]
fn special_files_are_refused_at_once() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("good.toml"), "[http]\nlisten = ':1'\n").unwrap();
    fs::write(path("empty"), "").unwrap();
    nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink(path("good.toml"), path("link")).unwrap();
    let special = [
        (path("fifo"), "is a FIFO"),
        (path("link"), "is a symbolic link"),
        (dir.path().to_owned(), "is a folder"),
        ("/dev/zero".into(), "is a device"),
    ];
    for (file, why) in &special {
        let (code, said) = checked(file, &[]);
        assert!(code == Some(64) && said.contains(why), "{code:?} {said}");
        // As a declaration. Fields of dcgm-exporter may be in a folder.
        let mut keys = vec!["TOPOLOGY__EXPECTED_FILE", "MIG__LAYOUT_FILE"];
        keys.extend((!file.is_dir()).then_some("DCGM__FIELDS_FILE"));
        for key in keys {
            let key = format!("GPU_NODE_EXPORTER__{key}");
            let (code, said) = checked(&path("empty"), &[(&key, file.to_str().unwrap())]);
            assert!(code == Some(64) && said.contains(why), "{key} {code:?} {said}");
        }
    }
    assert_eq!(checked(&path("good.toml"), &[]).0, Some(0));
}

#[test]
fn a_configuration_of_ten_megabytes_is_refused_in_a_second() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("large.toml");
    fs::write(&file, "x = 'yyyyyyyyyyyyyyyyyyyyyyyyyyyy'\n".repeat(300_000)).unwrap();
    let took = || {
        let started = std::time::Instant::now();
        let (code, said) = checked(&file, &[]);
        assert!(code == Some(64) && said.contains("longer than 1048576 bytes"), "{code:?} {said}");
        assert!(said.len() < 1000, "{said}");
        started.elapsed()
    };
    // The tests beside this one take processor time.
    let fastest = std::iter::repeat_with(took).take(3).min().unwrap();
    assert!(fastest < std::time::Duration::from_secs(1), "{fastest:?}");
}

#[test]
fn check_config_reads_the_declared_topology() {
    let dir = TempDir::new().unwrap();
    let (config, topology) = (dir.path().join("c.toml"), dir.path().join("t.json"));
    fs::write(&config, format!("[topology]\nexpected_file = {topology:?}\n")).unwrap();
    let (code, said) = checked(&config, &[]);
    assert!(code == Some(64) && said.contains("topology.expected_file") && said.contains("t.json"), "{said}");
    fs::write(&topology, "{}").unwrap();
    let (code, said) = checked(&config, &[]);
    assert!(code == Some(64) && said.contains("not a topology"), "{said}");
}

#[test]
fn a_variable_with_one_underscore_is_named_in_a_warning() {
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("c.toml");
    fs::write(&config, "").unwrap();
    let env = [
        ("GPU_NODE_EXPORTER_LISTEN", "127.0.0.1:9500"),
        ("GPU_NODE_EXPORTER_PORT", "tcp://10.0.0.1:9408"),
        ("GPU_NODE_EXPORTER_PORT_9408_TCP_ADDR", "10.0.0.1"),
        ("GPU_NODE_EXPORTER_SERVICE_HOST", "10.0.0.1"),
    ];
    let (code, said) = checked(&config, &env);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = said.lines().collect();
    assert_lines(
        &lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>(),
        &[&["warning", "GPU_NODE_EXPORTER_LISTEN is ignored", "GPU_NODE_EXPORTER__HTTP__LISTEN"]],
    );
}

//! The layers, and every way to get them wrong.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use ::config::Environment;
use tempfile::TempDir;

use super::load::load_from;
use super::rules::{KEYS, Rule};
use super::{Config, ConfigErrors, Loaded, Overrides};
use crate::catalog::MetricGroup;

/// Loads from a file's text, environment variables and flags.
fn load(file: &str, env: &[(&str, &str)], mut flags: Overrides) -> Result<Loaded, ConfigErrors> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("c.toml");
    fs::write(&path, file).unwrap();
    flags.config = Some(path);
    load_from(&flags, "/nonexistent".as_ref(), environment(env))
}

fn environment(env: &[(&str, &str)]) -> Environment {
    let env: HashMap<_, _> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Environment::default().source(Some(env))
}

/// The problems with a configuration, one line each, the test's folder cut out.
fn problems(file: &str, env: &[(&str, &str)]) -> Vec<String> {
    let errors = load(file, env, Overrides::default()).expect_err("the configuration is wrong").to_string();
    errors.lines().map(without_folder).collect()
}

/// `in /tmp/.tmpXYZ/c.toml` becomes `in c.toml`.
fn without_folder(line: &str) -> String {
    let words = line.split(' ').map(|word| match word.rfind("/c.toml") {
        Some(at) => &word[at + 1..],
        None => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn without_file_and_environment_all_is_default() {
    let loaded = load_from(&Overrides::default(), "/nonexistent".as_ref(), environment(&[])).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.origins.is_empty());
}

#[test]
fn later_layers_win() {
    let file =
        "[log]\nlevel = 'warn'\n[http]\nlisten = '127.0.0.1:1'\nmax_connections = 7\n[state]\ndir = '/a'\n";
    let env = [("GPU_NODE_EXPORTER__HTTP__LISTEN", "127.0.0.1:2"), ("GPU_NODE_EXPORTER__STATE__DIR", "/b")];
    let flags = Overrides { listen: Some("[::1]:3".into()), ..Overrides::default() };
    let loaded = load(file, &env, flags).unwrap();
    assert_eq!(loaded.config.http.listen.to_string(), "[::1]:3");
    assert_eq!(loaded.config.state.dir.to_str(), Some("/b"));
    assert_eq!(loaded.config.http.max_connections, 7);
    assert_eq!(loaded.config.host, Config::default().host);
    assert_eq!(loaded.origins["http.listen"], "flag --listen");
    assert_eq!(loaded.origins["state.dir"], "environment variable GPU_NODE_EXPORTER__STATE__DIR");
    assert!(loaded.origins["log.level"].ends_with("c.toml"));

    let shown = loaded.to_toml().unwrap();
    assert!(shown.contains("listen = \"[::1]:3\"  # flag --listen\n"), "{shown}");
    assert!(shown.contains("\nread_timeout = \"30s\"\n"), "{shown}");
}

#[test]
fn the_environment_holds_every_type() {
    let env = [
        ("GPU_NODE_EXPORTER__HTTP__MAX_CONNECTIONS", "9"),
        ("GPU_NODE_EXPORTER__HTTP__READ_TIMEOUT", "1m 30s"),
        ("GPU_NODE_EXPORTER__METRICS__INCLUDE", "gpu_power_*, gpu_ecc_*"),
        ("GPU_NODE_EXPORTER__CONTROL__SOCKET", ""),
        // A path of digits stays a text.
        ("GPU_NODE_EXPORTER__STATE__DIR", "007"),
    ];
    let config = load("", &env, Overrides::default()).unwrap().config;
    assert_eq!(config.http.max_connections, 9);
    assert_eq!(config.http.read_timeout, Duration::from_secs(90));
    assert_eq!(config.metrics.include, ["gpu_power_*", "gpu_ecc_*"]);
    assert_eq!(config.control.path(), None);
    assert_eq!(config.state.dir.to_str(), Some("007"));
}

#[test]
fn what_kubernetes_injects_is_left_alone() {
    let env = [
        ("GPU_NODE_EXPORTER_PORT", "tcp://10.0.0.1:9408"),
        ("GPU_NODE_EXPORTER_SERVICE_HOST", "10.0.0.1"),
        ("GPU_NODE_EXPORTER_PORT_9408_TCP", "tcp://10.0.0.1:9408"),
    ];
    assert_eq!(load("", &env, Overrides::default()).unwrap().config, Config::default());
}

#[test]
fn every_unknown_key_is_told_at_once() {
    let file = "listen = ':1'\n[http]\nmax_conections = 1\n[htp]\n[zebra.stripes]\ncount = 9\n";
    let env = [("GPU_NODE_EXPORTER__LOG__LEVL", "info")];
    assert_eq!(
        problems(file, &env),
        [
            "htp (in c.toml): there is no such key; remove it",
            "http.max_conections (in c.toml): there is no such key; did you mean http.max_connections?",
            "listen (in c.toml): there is no such key; did you mean http.listen?",
            "zebra.stripes.count (in c.toml): there is no such key; remove it",
            "log.levl (environment variable GPU_NODE_EXPORTER__LOG__LEVL): there is no such key; \
             did you mean log.level?",
        ]
    );
}

#[test]
fn every_bad_value_is_told_at_once() {
    let file = "ledger = 'now'\n[http]\nread_timeout = 30\nmax_connections = 0\nlisten = 'localhost:9408'\n\
                [metrics]\nmax_series = 'many'\ninclude = ['gpu_[']\n[sampler]\ncall_deadline = '5ms'\n\
                [state]\ndir = { a = 1 }\n[log]\nlevel = 'loud'\n";
    let env = [("GPU_NODE_EXPORTER__HTTP__MAX_CONNECTIONS", "x"), ("GPU_NODE_EXPORTER__HOST__ROOT", "")];
    let address = r#"an address such as ":9408" (all addresses), "127.0.0.1:9408" or "[::1]:9408""#;
    assert_eq!(
        problems(file, &env),
        [
            &format!(r#"http.listen (in c.toml): found "localhost:9408", expected {address}"#),
            "http.max_connections (in c.toml): found 0, expected a whole number from 1 to 10000",
            r#"http.read_timeout (in c.toml): found 30, expected a duration from "100ms" to "10m""#,
            r#"ledger (in c.toml): found "now", expected a section [ledger] with keys in it"#,
            r#"log.level (in c.toml): found "loud", expected one of error, warn, info, debug, trace"#,
            "metrics.include (in c.toml): found [\"gpu_[\"], expected a list of patterns of metric names, \
             such as [\"gpu_power_*\"]",
            r#"metrics.max_series (in c.toml): found "many", expected a whole number from 100 to 1000000"#,
            r#"sampler.call_deadline (in c.toml): found "5ms", expected a duration from "100ms" to "1m""#,
            "state.dir (in c.toml): found a table, expected a path",
            "host.root (environment variable GPU_NODE_EXPORTER__HOST__ROOT): found \"\", expected a path",
            "http.max_connections (environment variable GPU_NODE_EXPORTER__HTTP__MAX_CONNECTIONS): \
             found \"x\", expected a whole number from 1 to 10000",
        ]
    );
}

#[test]
fn intervals_must_not_fall() {
    assert_eq!(
        problems("[sampler]\nnormal_interval = '20s'\nrestart_backoff = '50s'\n", &[]),
        [
            "sampler.slow_interval (default): \"10s\" is shorter than sampler.normal_interval (in c.toml), \
             which is \"20s\"; raise the first or lower the second",
            "sampler.restart_backoff_max (default): \"30s\" is shorter than sampler.restart_backoff (in c.toml), \
             which is \"50s\"; raise the first or lower the second",
        ]
    );
}

#[test]
fn a_pattern_must_match_a_metric() {
    let file = "[metrics]\ninclude = ['gpu_power_*', 'gpu_pwer_wats']\nexclude = ['*', 'zzz*']\n";
    let loaded = load(file, &[], Overrides::default()).unwrap();
    let names = ["gpu_power_watts", "gpu_memory_total_bytes"];
    let errors = loaded.check_patterns(&names).unwrap_err().to_string();
    assert_eq!(
        errors.lines().map(without_folder).collect::<Vec<_>>(),
        [
            "metrics.include (in c.toml): \"gpu_pwer_wats\" matches no metric; the nearest name is \
             gpu_power_watts; `gpu-node-exporter metrics` lists them all",
            "metrics.exclude (in c.toml): \"zzz*\" matches no metric; `gpu-node-exporter metrics` lists them all",
        ]
    );
    assert!(load("", &[], Overrides::default()).unwrap().check_patterns(&names).is_ok());
}

#[test]
fn groups_are_those_named_and_that_of_processes_where_they_are_read() {
    let groups = |file: &str| load(file, &[], Overrides::default()).unwrap().config.served_groups();
    assert_eq!(groups(""), []);
    assert_eq!(groups("[metrics]\ngroups = ['clocks']\n"), [MetricGroup::Clocks]);
    assert_eq!(groups("[processes]\nper_process = true\n"), [MetricGroup::Process]);
    assert_eq!(groups("[metrics]\ngroups = ['all']\n"), MetricGroup::ALL);
    let wrong = problems("[metrics]\ngroups = ['clock']\n", &[]);
    assert!(
        wrong[0].contains("metrics.groups") && wrong[0].contains("nvlink-links, link-detail"),
        "{wrong:?}"
    );
}

#[test]
fn exclude_is_stronger_than_include() {
    let file = "[metrics]\ninclude = ['gpu_power_*']\nexclude = ['*_limit_watts']\n";
    let metrics = load(file, &[], Overrides::default()).unwrap().config.metrics;
    assert!(metrics.publishes("gpu_power_watts"));
    assert!(!metrics.publishes("gpu_power_limit_watts"));
    assert!(!metrics.publishes("gpu_temperature_celsius"));
}

#[test]
fn syntax_errors_give_line_and_column() {
    let lines = problems("[http]\n# one\nlisten = ':1\n", &[]);
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("c.toml:3:"), "{lines:?}");
    assert!(lines[0].contains("not valid TOML: "), "{lines:?}");
}

#[test]
fn a_file_that_was_asked_for_must_be_readable() {
    let flags = Overrides { config: Some("/nonexistent/c.toml".into()), ..Overrides::default() };
    let errors = load_from(&flags, "/nonexistent".as_ref(), environment(&[])).unwrap_err().to_string();
    assert_eq!(
        errors,
        "cannot read the configuration file /nonexistent/c.toml: No such file or directory (os error 2)"
    );
    // The default file may be absent, but if it is there it counts.
    let dir = TempDir::new().unwrap();
    assert!(load_from(&Overrides::default(), dir.path(), environment(&[])).is_err());
}

#[test]
fn every_field_has_one_rule_and_each_default_keeps_it() {
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    let mut fields = Vec::new();
    for (section, keys) in &defaults {
        fields.extend(keys.as_table().unwrap().keys().map(|key| format!("{section}.{key}")));
    }
    let mut rules: Vec<_> = KEYS.iter().map(|(key, _)| (*key).to_owned()).collect();
    fields.sort();
    rules.sort();
    assert_eq!(fields, rules);
    // Read back as a file, the defaults pass their own rules.
    let text = toml::to_string(&defaults).unwrap();
    assert_eq!(load(&text, &[], Overrides::default()).unwrap().config, Config::default());
}

const SHIPPED: &str = include_str!("../../systemd/gpu-node-exporter.toml");

#[test]
fn the_shipped_file_is_the_defaults_and_names_every_key() {
    let loaded = load(SHIPPED, &[], Overrides::default()).unwrap();
    assert_eq!(loaded.config, Config::default());
    let missing: Vec<_> = KEYS.iter().filter(|(key, _)| !loaded.origins.contains_key(key)).collect();
    assert!(missing.is_empty(), "not in the shipped file: {missing:?}");
}

#[test]
fn the_shipped_file_tells_every_range() {
    // A key's comment stands right above it.
    let mut comment = String::new();
    let mut section = "";
    for line in SHIPPED.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            comment.push_str(text);
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        }
        if let Some((name, _)) = line.split_once(" = ") {
            let key = format!("{section}.{name}");
            let range = match KEYS.iter().find(|(known, _)| *known == key).map(|(_, rule)| rule) {
                Some(Rule::Time(min, max)) => {
                    format!("{} to {}", humantime::format_duration(*min), humantime::format_duration(*max))
                }
                Some(Rule::Count(min, max)) => format!("{min} to {max}"),
                _ => String::new(),
            };
            assert!(comment.contains(&range), "{key}: the comment does not say \"{range}\": {comment}");
            assert!(!comment.is_empty(), "{key} has no comment");
        }
        comment.clear();
    }
}

//! The layers and their errors, the former keys, the generated file.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ::config::Environment;
use glob::Pattern;
use tempfile::TempDir;

use super::file::{WIDTH, key, keys};

use super::settings::RENAMED;
use super::{Config, ConfigErrors, ENV_PREFIX, Loaded, Overrides};
use model::catalog::MetricGroup;

/// Loads from a file's text, environment variables and flags.
fn load(file: &str, env: &[(&str, &str)], mut flags: Overrides) -> Result<Loaded, ConfigErrors> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("c.toml");
    fs::write(&path, file).unwrap();
    flags.config = Some(path);
    checked(&flags, "/nonexistent".as_ref(), env)
}

fn checked(flags: &Overrides, default_file: &Path, env: &[(&str, &str)]) -> Result<Loaded, ConfigErrors> {
    let (loaded, errors) = super::load::load_from(flags, default_file, environment(env));
    if errors.is_empty() { Ok(loaded) } else { Err(ConfigErrors(errors)) }
}

fn environment(env: &[(&str, &str)]) -> Environment {
    let env: HashMap<_, _> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Environment::default().source(Some(env))
}

/// The errors of a configuration, one line each, without the test's directory.
fn errors(file: &str, env: &[(&str, &str)]) -> Vec<String> {
    let errors = load(file, env, Overrides::default()).expect_err("the configuration is wrong").to_string();
    errors.lines().map(without_directory).collect()
}

/// `in /tmp/.tmpXYZ/c.toml` becomes `in c.toml`.
fn without_directory(line: &str) -> String {
    let words = line.split(' ').map(|word| match word.rfind("/c.toml") {
        Some(at) => &word[at + 1..],
        None => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn without_file_and_environment_all_is_default() {
    let loaded = checked(&Overrides::default(), "/nonexistent".as_ref(), &[]).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.origins.is_empty() && !loaded.has_file);
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

    let shown = loaded.to_toml();
    assert!(shown.contains("listen = \"[::1]:3\"  # flag --listen\n"), "{shown}");
    assert!(shown.contains("\nread_timeout = \"30s\"\n"), "{shown}");
}

#[test]
fn the_place_of_the_node_is_a_label_value_of_bounded_length() {
    let config =
        load("", &[("GPU_NODE_EXPORTER__NODE__RACK", "r \"7\", Süd")], Overrides::default()).unwrap().config;
    assert_eq!((config.node.rack.as_str(), config.node.zone.as_str()), ("r \"7\", Süd", ""));
    let long = |length| format!("[node]\nzone = '{}'\n", "é".repeat(length));
    assert!(load(&long(64), &[], Overrides::default()).is_ok());
    let expected = "at most 64 characters without control characters";
    for file in [long(65), "[node]\nzone = \"a\\nb\"\n".into(), "[node]\nzone = 7\n".into()] {
        let errors = errors(&file, &[]);
        assert!(errors[0].contains("node.zone") && errors[0].contains(expected), "{errors:?}");
    }
}

#[test]
fn the_environment_holds_every_type() {
    let env = [
        ("GPU_NODE_EXPORTER__HTTP__MAX_CONNECTIONS", "9"),
        ("GPU_NODE_EXPORTER__HTTP__READ_TIMEOUT", "1m 30s"),
        ("GPU_NODE_EXPORTER__METRICS__INCLUDE", "gpu_power_*, gpu_ecc_*"),
        ("GPU_NODE_EXPORTER__CONTROL__SOCKET", ""),
        ("GPU_NODE_EXPORTER__CANARY__MAX_DUTY_RATIO", "0.05"),
        // A path of digits stays a text.
        ("GPU_NODE_EXPORTER__STATE__DIR", "007"),
    ];
    let config = load("", &env, Overrides::default()).unwrap().config;
    assert_eq!(config.http.max_connections, 9);
    assert_eq!(config.http.read_timeout, Duration::from_secs(90));
    assert_eq!(
        config.metrics.include.iter().map(Pattern::as_str).collect::<Vec<_>>(),
        ["gpu_power_*", "gpu_ecc_*"]
    );
    assert_eq!(config.canary.max_duty_ratio, 0.05);
    assert_eq!(config.control.socket, None);
    assert_eq!(config.state.dir.to_str(), Some("007"));
}

#[test]
fn variables_of_kubernetes_are_ignored() {
    let env = [
        ("GPU_NODE_EXPORTER_PORT", "tcp://10.0.0.1:9408"),
        ("GPU_NODE_EXPORTER_SERVICE_HOST", "10.0.0.1"),
        ("GPU_NODE_EXPORTER_PORT_9408_TCP", "tcp://10.0.0.1:9408"),
    ];
    assert_eq!(load("", &env, Overrides::default()).unwrap().config, Config::default());
}

#[test]
fn all_unknown_keys_are_reported_at_once() {
    let file = "listen = ':1'\n[http]\nmax_conections = 1\n[htp]\n[zebra.stripes]\ncount = 9\n";
    let env = [("GPU_NODE_EXPORTER__LOG__LEVL", "info")];
    assert_eq!(
        errors(file, &env),
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
fn all_bad_values_are_reported_at_once() {
    let file = "gpm = 'now'\n[http]\nread_timeout = 30\nmax_connections = 0\nlisten = 'localhost:9408'\n\
                [metrics]\nmax_series = 'many'\ninclude = ['gpu_[']\n[sampler]\ncall_timeout = '5ms'\n\
                [state]\ndir = { a = 1 }\n[log]\nlevel = 'loud'\n";
    let env = [("GPU_NODE_EXPORTER__HTTP__MAX_CONNECTIONS", "x"), ("GPU_NODE_EXPORTER__HOST__ROOT", "")];
    let address = r#"an address such as ":9408" (all addresses), "127.0.0.1:9408" or "[::1]:9408""#;
    assert_eq!(
        errors(file, &env),
        [
            r#"gpm (in c.toml): found "now", expected a section [gpm] with keys in it"#,
            &format!(r#"http.listen (in c.toml): found "localhost:9408", expected {address}"#),
            "http.max_connections (in c.toml): found 0, expected a whole number from 1 to 10000",
            r#"http.read_timeout (in c.toml): found 30, expected a duration from "100ms" to "10m""#,
            r#"log.level (in c.toml): found "loud", expected one of error, warn, info, debug, trace"#,
            "metrics.include (in c.toml): found [\"gpu_[\"], expected a list of patterns of metric names, \
             such as [\"gpu_power_*\"]",
            r#"metrics.max_series (in c.toml): found "many", expected a whole number from 100 to 1000000"#,
            r#"sampler.call_timeout (in c.toml): found "5ms", expected a duration from "100ms" to "1m""#,
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
        errors("[sampler]\nnormal_interval = '20s'\nrestart_backoff = '50s'\n", &[]),
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
        errors.lines().map(without_directory).collect::<Vec<_>>(),
        [
            "metrics.include (in c.toml): \"gpu_pwer_wats\" matches no metric; the nearest name is \
             gpu_power_watts; `gpu-node-exporter metrics` lists them all",
            "metrics.exclude (in c.toml): \"zzz*\" matches no metric; `gpu-node-exporter metrics` lists them all",
        ]
    );
    assert!(load("", &[], Overrides::default()).unwrap().check_patterns(&names).is_ok());
}

#[test]
fn hosts_are_names_without_port() {
    let hosts = |text: &str| {
        let loaded = load(&format!("[http]\nhosts = [{text}]"), &[], Overrides::default()).ok()?;
        Some(loaded.config.http.hosts.join(" "))
    };
    let some = hosts("'Node1', '*.Example.net', 'node2.', '10.0.0.3', '[0:0::1]', '::1'");
    assert_eq!(some.as_deref(), Some("node1 *.example.net node2 10.0.0.3 ::1 ::1"));
    for bad in
        ["node1:9408", "http://node1", "node1/", "a b", "*", "a.*.b", "user@node1", "", "a..b", "[::1]:1"]
    {
        assert_eq!(hosts(&format!("'{bad}'")), None, "{bad}");
    }
}

#[test]
fn groups_are_those_named_and_that_of_processes_where_they_are_read() {
    let groups = |file: &str| load(file, &[], Overrides::default()).unwrap().config.served_groups();
    assert_eq!(groups(""), []);
    assert_eq!(groups("[metrics]\ngroups = ['clocks']\n"), [MetricGroup::Clocks]);
    assert_eq!(groups("[processes]\nper_process = true\n"), [MetricGroup::Process]);
    assert_eq!(groups("[metrics]\ngroups = ['all']\n"), MetricGroup::ALL);
    let wrong = errors("[metrics]\ngroups = ['clock']\n", &[]);
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
    let lines = errors("[http]\n# one\nlisten = ':1\n", &[]);
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("c.toml:3:"), "{lines:?}");
    assert!(lines[0].contains("not valid TOML: "), "{lines:?}");
}

#[test]
fn an_explicit_file_must_be_readable() {
    let flags = Overrides { config: Some("/nonexistent/c.toml".into()), ..Overrides::default() };
    let errors = checked(&flags, "/nonexistent".as_ref(), &[]).unwrap_err().to_string();
    assert_eq!(
        errors,
        "failed to read the configuration file /nonexistent/c.toml: No such file or directory (os error 2); \
         correct the path or the file"
    );
    // The default file may be absent, but if it is there it counts.
    let dir = TempDir::new().unwrap();
    assert!(checked(&Overrides::default(), dir.path(), &[]).is_err());
}

#[test]
fn numbers_keep_their_types_and_ranges() {
    let file =
        "[http]\nmax_connections = 9.0\n[canary]\nmax_duty_ratio = 0.2\nchecks = []\n[cpu]\nenabled = 1\n";
    let lines = errors(file, &[("GPU_NODE_EXPORTER__CANARY__MAX_DUTY_RATIO", "nan")]);
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert!(
        lines[0]
            .starts_with("canary.checks (in c.toml): found [], expected a list of at least one of init, ")
    );
    assert_eq!(
        lines[1..],
        [
            "canary.max_duty_ratio (in c.toml): found 0.2, expected a number from 0.000001 to 0.1",
            "cpu.enabled (in c.toml): found 1, expected true or false",
            "http.max_connections (in c.toml): found 9, expected a whole number from 1 to 10000",
            "canary.max_duty_ratio (environment variable GPU_NODE_EXPORTER__CANARY__MAX_DUTY_RATIO): found \"nan\", \
             expected a number from 0.000001 to 0.1",
        ]
    );
}

#[test]
fn former_keys_are_refused_with_their_replacement() {
    for (former, now) in RENAMED {
        assert!(key(former).is_none(), "{former} is a key");
        assert!(now.split([' ', ',']).any(|word| key(word).is_some()), "{now:?} names no key");

        let (section, name) = former.split_once('.').unwrap();
        assert_eq!(
            errors(&format!("[{section}]\n{name} = '1s'\n"), &[]),
            [format!("{former} (in c.toml): {now}")]
        );

        let variable = format!("{ENV_PREFIX}{}__{}", section.to_uppercase(), name.to_uppercase());
        let error = format!("{former} (environment variable {variable}): {now}");
        assert_eq!(errors("", &[(&variable, "1s")]), [error]);
    }
}

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd/gpu-node-exporter.toml");

/// Run with `UPDATE=1` to rewrite the file.
#[test]
fn the_shipped_file_is_generated() {
    let generated = Config::commented();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(SHIPPED, &generated).unwrap();
    }
    assert_eq!(fs::read_to_string(SHIPPED).unwrap(), generated, "UPDATE=1 rewrites it");
    assert!(generated.lines().all(|line| line.len() <= 110 || !line.starts_with('#')));
}

#[test]
fn comments_of_the_shipped_file_fill_their_lines() {
    let generated = Config::commented();
    let lines: Vec<&str> = generated.lines().skip_while(|line| line.starts_with('#')).collect();
    let comment = |line: &str| line.starts_with('#');
    for pair in lines.windows(2).filter(|pair| comment(pair[0]) && comment(pair[1])) {
        let word = pair[1].split(' ').nth(1).unwrap();
        assert!(word == "Value:" || pair[0].len() + word.len() >= WIDTH, "{pair:#?}");
    }
}

#[test]
fn the_shipped_file_has_every_key_at_its_default() {
    let loaded = load(&Config::commented(), &[], Overrides::default()).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(keys().all(|key| loaded.origins.contains_key(key.name)));
}

#[test]
fn the_second_listener_is_off_or_elsewhere() {
    let second = |dcgm: &str, http: &str| {
        let file = format!("[dcgm]\nlisten = '{dcgm}'\n[http]\nlisten = '{http}'\n");
        load(&file, &[], Overrides::default()).map(|loaded| loaded.config.dcgm.listen)
    };
    assert_eq!(Config::default().dcgm.listen, None);
    assert_eq!(second("", ":9408").unwrap(), None);
    for (dcgm, http) in
        [(":9400", ":9408"), ("127.0.0.1:9400", "127.0.0.2:9400"), ("127.0.0.1:0", "127.0.0.1:0")]
    {
        assert_eq!(second(dcgm, http).unwrap().map(|listen| listen.to_string()).as_deref(), Some(dcgm));
    }
    for (dcgm, http) in [(":9400", ":9400"), (":9400", "10.0.0.1:9400"), ("[::1]:9400", "[::1]:9400")] {
        let said = second(dcgm, http).unwrap_err().to_string();
        let expected = [
            format!("\"{dcgm}\" overlaps with http.listen (in "),
            format!("which is \"{http}\"; choose another port"),
        ];
        assert!(expected.iter().all(|part| said.contains(part)), "{said}");
        assert!(said.starts_with("dcgm.listen (in ") && said.lines().count() == 1, "{said}");
    }
    let error =
        &errors("[dcgm]\nlisten = 'nowhere'\nrelease = '5'\nhostname_label = 'host'\nvalues = ''\n", &[]);
    for part in [
        "\"[::1]:9408\"; \"\" for none",
        "one of 4.8, 4.9",
        "one of hostname, Hostname, \"\"",
        "one of faithful, corrected",
    ] {
        assert!(error.iter().any(|line| line.contains(part)), "{part}: {error:?}");
    }
}

/// Each key is of one kind, named here, so that a new one is decided on.
#[test]
fn the_keys_that_apply_at_once_are_those_that_are_read_at_each_turn() {
    let live: Vec<&str> = keys().filter(|key| key.is_live).map(|key| key.name).collect();
    let expected = include_str!("live_keys.txt");
    assert_eq!(live, expected.lines().collect::<Vec<_>>());
    for key in keys() {
        for (floor, _) in key.floor {
            let floor = super::file::key(floor).unwrap();
            assert_eq!(key.is_live, floor.is_live, "{}: checked against {}", key.name, floor.name);
        }
    }
}

#[test]
fn a_new_configuration_is_taken_over_but_for_what_needs_a_restart() {
    let file = "[health]\nexpected_gpus = 7\n[http]\nlisten = ':1'\n[log]\nlevel = 'warn'\n[cpu]\nper_owner = true\n";
    let new = load(file, &[], Overrides::default()).unwrap().config;
    let mut config = Config::default();
    let changed = config.apply(&new);
    assert_eq!(changed.applied, ["health.expected_gpus", "log.level"]);
    assert_eq!(changed.waiting, ["http.listen", "cpu.per_owner"]);
    let mut expected = Config::default();
    (expected.health.expected_gpus, expected.log.level) = (7, tracing::Level::WARN);
    assert_eq!(config, expected);
    assert_eq!(config.apply(&new).applied, [""; 0], "and only once");
}

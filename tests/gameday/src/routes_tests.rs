//! The example of an Alertmanager configuration: where each alert goes, what keeps what back, and that it fits the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{get, post};
use crate::servers::{Alertmanager, tool};
use crate::{pause, repository, rules};

/// Alertmanager looks at inhibition when an alert is sent; on a busy machine that takes a while.
const PATIENCE: Duration = Duration::from_secs(60);

fn lines(file: &str) -> Vec<Vec<String>> {
    let path = repository().join("tests/alerts").join(file);
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split('|').map(str::to_owned).collect()).collect()
}

fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn amtool(args: &[&str]) -> String {
    let config = repository().join("alerts/alertmanager.yml");
    let mut command = Command::new(tool("AMTOOL", "amtool"));
    command.args(args);
    if args[0] == "config" {
        command.arg("--config.file");
    }
    let output = command.arg(&config).output().expect("amtool: `make test` brings it");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

#[test]
fn the_configuration_is_valid() {
    assert!(amtool(&["check-config"]).contains("SUCCESS"));
}

#[test]
fn every_alert_goes_where_the_table_says_and_every_receiver_is_tested() {
    let mut reached = BTreeSet::new();
    for line in lines("routes.psv") {
        let [of, to] = line.as_slice() else { panic!("{line:?}: labels|receivers") };
        let mut args = vec!["config", "routes", "test"];
        let verify = format!("--verify.receivers={to}");
        args.push(&verify);
        args.extend(of.split(' '));
        amtool(&args);
        reached.extend(to.split(',').map(str::to_owned));
    }
    let config = fs::read_to_string(repository().join("alerts/alertmanager.yml")).unwrap();
    let receivers = config.split_once("\nreceivers:\n").unwrap().1;
    let names = receivers.lines().filter_map(|line| line.strip_prefix("  - name: "));
    assert_eq!(reached, names.map(str::to_owned).collect());
}

/// Names in the tables are those of alerts, so that a renamed alert does not leave a dead rule behind.
#[test]
fn every_alert_that_is_named_exists() {
    let files = rules::files(&repository().join("alerts")).unwrap();
    let optional = rules::files(&repository().join("alerts/optional")).unwrap_or_default();
    let exist: BTreeSet<String> = rules::comments(&[files, optional].concat()).unwrap().into_keys().collect();
    let config = fs::read_to_string(repository().join("alerts/alertmanager.yml")).unwrap();
    let settings: String = config.lines().filter(|l| !l.trim_start().starts_with('#')).collect();
    let mut named = BTreeSet::new();
    for (at, _) in settings.match_indices("Gpu") {
        let rest = &settings[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        // `GpuCanary.+` and `GpuDriver(Down|...` are patterns of names.
        let pattern = rest[end..].starts_with(".+") || rest[end..].starts_with('(');
        let known = exist
            .iter()
            .any(|name| if pattern { name.starts_with(&rest[..end]) } else { *name == rest[..end] });
        assert!(known, "alertmanager.yml names {}", &rest[..end]);
        named.insert(rest[..end].to_owned());
    }
    assert!(named.len() > 20, "{named:?}");
    for line in lines("routes.psv").iter().chain(&lines("inhibitions.psv")) {
        for text in line {
            if let Some(name) = labels(text).get("alertname").filter(|name| *name != "Imagined") {
                assert!(exist.contains(name), "{line:?}");
            }
        }
    }
}

#[test]
fn an_alert_is_kept_back_by_what_the_table_says_and_by_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let config = repository().join("alerts/alertmanager.yml");
    // Nobody listens at that port: who would be told does not matter here.
    let alertmanager = Alertmanager::start(dir.path(), &config, 9).unwrap();
    // All at once, each line in a cluster of its own kind, so that none is in another's way.
    let table = lines("inhibitions.psv");
    let mut sent = Vec::new();
    let mut targets = Vec::new();
    for (n, line) in table.iter().enumerate() {
        let [kept_back, source, target] = line.as_slice() else { panic!("{line:?}") };
        let whole = |text: &str| {
            let mut labels = labels(text);
            labels.entry("instance".into()).or_insert_with(|| "n1".into());
            let cluster = labels.remove("cluster").unwrap_or_default();
            labels.insert("cluster".into(), format!("{n}{cluster}"));
            labels.retain(|_, value| !value.is_empty());
            labels
        };
        let target = whole(target);
        sent.extend([json!({ "labels": whole(source) }), json!({ "labels": &target })]);
        targets.push((kept_back == "yes", target, line));
    }
    post(alertmanager.port, "/api/v2/alerts", &Value::Array(sent.clone())).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer: Value = serde_json::from_str(&get(alertmanager.port, "/api/v2/alerts").unwrap()).unwrap();
        let alerts = answer.as_array().unwrap();
        let state = |labels: &BTreeMap<String, String>| {
            let found = alerts.iter().find(|alert| alert["labels"] == json!(labels));
            found.map(|alert| !alert["status"]["inhibitedBy"].as_array().unwrap().is_empty())
        };
        let differ: Vec<_> =
            targets.iter().filter(|(kept, labels, _)| state(labels) != Some(*kept)).collect();
        if alerts.len() == sent.len() && differ.is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{} of {} alerts; other than said: {differ:#?}",
            alerts.len(),
            sent.len()
        );
        pause();
    }
}

/// Silence by the clock is for what can wait.
#[test]
fn no_page_is_muted_by_a_time() {
    let config = fs::read_to_string(repository().join("alerts/alertmanager.yml")).unwrap();
    let page = config.split_once("severity=\"page\"]\n      receiver").unwrap().1;
    let page = page.split_once("\n    - matchers").unwrap().0;
    assert!(!page.contains("mute_time_intervals"), "{page}");
    assert!(config.contains("mute_time_intervals: [planned-works, out-of-office]"));
}

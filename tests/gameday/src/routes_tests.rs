//! The two configurations of Alertmanager: where each alert goes, what inhibits what, and that they fit the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{get, post};
use crate::servers::{Alertmanager, tool};
use crate::{incident, pause, repository, rules, scenario};

/// Alertmanager looks at inhibition when an alert is sent; on a busy machine that takes a while.
const PATIENCE: Duration = Duration::from_secs(60);

/// The configurations: of a small fleet, and of a large one.
const FILES: [&str; 2] = ["alertmanager.yml", "alertmanager.fleet.yml"];
/// Labels that routes and inhibitions go by.
const KIND: [&str; 4] = ["severity", "team", "component", "scope"];

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

/// The labels that the rules of each alert give.
fn given() -> BTreeMap<String, Vec<BTreeMap<String, String>>> {
    let alerts = repository().join("alerts");
    let files = [rules::files(&alerts).unwrap(), rules::files(&alerts.join("optional")).unwrap()].concat();
    let mut given: BTreeMap<String, Vec<BTreeMap<String, String>>> = BTreeMap::new();
    for file in files {
        let mut alert = None;
        for line in fs::read_to_string(file).unwrap().lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("- alert: ") {
                alert = Some(name.to_owned());
            } else if let Some(pairs) = line.strip_prefix("labels: {").and_then(|rest| rest.strip_suffix('}'))
                && let Some(name) = alert.take()
            {
                given
                    .entry(name)
                    .or_default()
                    .push(labels(&pairs.replace(": ", "=").replace([',', '\''], "")));
            }
        }
    }
    for (name, labels) in
        given.iter().flat_map(|(name, rules)| rules.iter().map(move |labels| (name, labels)))
    {
        for label in KIND {
            assert!(labels.contains_key(label), "{name} has no label {label}");
        }
    }
    given
}

/// The labels of a line with those of the first rule of its alert that agrees with them.
fn whole(text: &str, given: &BTreeMap<String, Vec<BTreeMap<String, String>>>) -> BTreeMap<String, String> {
    let mut labels = labels(text);
    let Some(rules) = given.get(&labels["alertname"]) else { return labels };
    let agrees = |rule: &&BTreeMap<String, String>| {
        rule.iter().all(|(label, value)| labels.get(label).is_none_or(|of| of == value))
    };
    let rule =
        rules.iter().find(agrees).unwrap_or_else(|| panic!("{text}: no rule gives these labels: {rules:?}"));
    for (label, value) in rule {
        labels.entry(label.clone()).or_insert_with(|| value.clone());
    }
    labels
}

/// The path of a configuration.
fn config(file: &str) -> PathBuf {
    repository().join("alerts").join(file)
}

fn amtool(args: &[&str], file: &str) -> String {
    let mut command = Command::new(tool("AMTOOL", "amtool"));
    command.args(args);
    if args[0] == "config" {
        command.arg("--config.file");
    }
    let output = command.arg(config(file)).output().expect("amtool: `make test` installs it");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{file}: {args:?}: {said}");
    said
}

#[test]
fn the_configurations_are_valid() {
    for file in FILES {
        assert!(amtool(&["check-config"], file).contains("SUCCESS"));
    }
}

#[test]
fn every_alert_goes_where_the_table_says_and_every_receiver_is_tested() {
    let given = given();
    let mut reached = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for line in lines("routes.psv") {
        let [of, small, fleet] = line.as_slice() else { panic!("{line:?}: labels|receivers|receivers") };
        let labels = whole(of, &given);
        for (file, to) in FILES.into_iter().zip([small, fleet]) {
            let mut args = vec!["config".to_owned(), "routes".to_owned(), "test".to_owned()];
            args.push(format!("--verify.receivers={to}"));
            args.extend(labels.iter().map(|(name, value)| format!("{name}={value}")));
            amtool(&args.iter().map(String::as_str).collect::<Vec<_>>(), file);
            reached.extend(to.split(',').map(|receiver| (file, receiver.to_owned())));
        }
        kinds.insert(KIND.map(|label| labels.get(label).cloned().unwrap_or_default()));
    }
    for file in FILES {
        let text = fs::read_to_string(config(file)).unwrap();
        let receivers = text.split_once("\nreceivers:\n").unwrap().1;
        for receiver in receivers.lines().filter_map(|line| line.strip_prefix("  - name: ")) {
            assert!(reached.contains(&(file, receiver.to_owned())), "{file}: no line for {receiver}");
        }
    }
    let missing: BTreeSet<(&String, [String; 4])> = given
        .iter()
        .flat_map(|(name, rules)| {
            rules.iter().map(move |labels| (name, KIND.map(|label| labels[label].clone())))
        })
        .filter(|(_, kind)| !kinds.contains(kind))
        .collect();
    assert!(missing.is_empty(), "no line has the labels of {missing:#?}");
}

/// Starts Alertmanager with this file, sends it these alerts, and asks for the list at this path until nothing is wrong
/// with it.
#[track_caller]
fn settles(file: &str, alerts: &[Value], path: &str, wrong: impl Fn(&[Value]) -> Option<String>) {
    let dir = tempfile::tempdir().unwrap();
    // Nothing listens at that port: the receivers do not matter here.
    let alertmanager = Alertmanager::start(dir.path(), &config(file), 9).unwrap();
    post(alertmanager.port, "/api/v2/alerts", &Value::Array(alerts.to_vec())).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer: Vec<Value> = serde_json::from_str(&get(alertmanager.port, path).unwrap()).unwrap();
        let Some(wrong) = wrong(&answer) else { break };
        assert!(Instant::now() < deadline, "{file}: {wrong}");
        pause();
    }
}

/// A notification is about a job of an owner: alerts of a team's other jobs are notifications of their own.
#[test]
fn alerts_of_owners_are_grouped_by_job() {
    let given = given();
    // The work, and its alerts with the pod or job of each.
    let wanted = BTreeMap::from([
        (
            "training llm",
            vec![
                "GpuAllocatedIdle llm-worker-0",
                "GpuAllocatedIdle llm-worker-1",
                "GpuContended llm-worker-1",
            ],
        ),
        ("training nlp", vec!["GpuAllocatedIdle nlp-x7k2p"]),
        ("physics 77", vec!["GpuAllocatedIdle 77"]),
        ("physics 78", vec!["GpuAllocatedIdle 78"]),
    ]);
    let mut sent = Vec::new();
    for (about, alerts) in &wanted {
        let about: Vec<&str> = about.split(' ').collect();
        for (alert, from) in alerts.iter().filter_map(|alert| alert.split_once(' ')) {
            let of = if about[0] == "physics" {
                format!("slurm_account=physics slurm_job={from}")
            } else {
                format!("namespace={} workload={} pod={from}", about[0], about[1])
            };
            sent.push(json!({ "labels": whole(&format!("alertname={alert} instance=n1 {of}"), &given) }));
        }
    }
    let wanted: BTreeSet<BTreeSet<String>> =
        wanted.into_values().map(|alerts| alerts.into_iter().map(str::to_owned).collect()).collect();
    for file in FILES {
        settles(file, &sent, "/api/v2/alerts/groups", |groups| {
            let name = |labels: &Value| {
                let from = ["pod", "slurm_job"].iter().find_map(|label| labels[label].as_str());
                format!("{} {}", labels["alertname"].as_str().unwrap(), from.unwrap())
            };
            let alerts = |group: &Value| {
                group["alerts"].as_array().unwrap().iter().map(|alert| name(&alert["labels"])).collect()
            };
            let grouped: BTreeSet<BTreeSet<String>> = groups.iter().map(alerts).collect();
            (grouped != wanted).then(|| format!("grouped as {grouped:#?}"))
        });
    }
}

/// Names in the files and the tables are those of alerts: a renamed alert leaves no dead line behind.
#[test]
fn every_alert_that_is_named_exists() {
    let exist: BTreeSet<String> = given().into_keys().collect();
    for file in FILES {
        let text = fs::read_to_string(config(file)).unwrap();
        let settings: String = text.lines().filter(|l| !l.trim_start().starts_with('#')).collect();
        let mut named = BTreeSet::new();
        let begins =
            |(at, _): &(usize, &str)| !settings[..*at].ends_with(|c: char| c.is_ascii_alphanumeric());
        for (at, _) in settings.match_indices("Gpu").filter(begins) {
            let rest = &settings[at..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            // `Gpu.+` is every alert.
            assert!(end == 3 || exist.contains(&rest[..end]), "{file} names {}", &rest[..end]);
            named.insert(rest[..end].to_owned());
        }
        assert!(named.len() > 20, "{file}: {named:?}");
    }
    for line in lines("routes.psv").iter().chain(&lines("inhibitions.psv")) {
        for text in line {
            if let Some(name) = labels(text).get("alertname").filter(|name| *name != "Imagined") {
                assert!(exist.contains(name), "{line:?}");
            }
        }
    }
    let gameday = repository().join("tests/gameday");
    for one in incident::read(&gameday.join("incidents.toml")).unwrap() {
        for name in one.alerts.iter().chain(&one.also) {
            assert!(exist.contains(name), "incident {}: {name}", one.name);
        }
    }
    for one in scenario::read(&gameday.join("notifications.toml")).unwrap() {
        for name in one.small.iter().chain(&one.fleet).flat_map(|expected| &expected.alerts) {
            assert!(exist.contains(name), "scenario {}: {name}", one.name);
        }
    }
}

#[test]
fn an_alert_is_inhibited_by_what_the_table_says_and_by_nothing_else() {
    // All at once, each line in a cluster of its own, so that none is in another's way.
    let table = lines("inhibitions.psv");
    let given = given();
    let mut sent = Vec::new();
    let mut targets = Vec::new();
    for (n, line) in table.iter().enumerate() {
        let [inhibited, source, target] = line.as_slice() else { panic!("{line:?}") };
        let whole = |text: &str| {
            let mut labels = whole(text, &given);
            labels.entry("instance".into()).or_insert_with(|| "n1".into());
            let cluster = labels.remove("cluster").unwrap_or_default();
            labels.insert("cluster".into(), format!("{n}{cluster}"));
            labels.retain(|_, value| !value.is_empty());
            labels
        };
        let target = whole(target);
        sent.extend([json!({ "labels": whole(source) }), json!({ "labels": &target })]);
        targets.push((inhibited == "yes", target, line));
    }
    for file in FILES {
        settles(file, &sent, "/api/v2/alerts", |alerts| {
            let state = |labels: &BTreeMap<String, String>| {
                let found = alerts.iter().find(|alert| alert["labels"] == json!(labels));
                found.map(|alert| !alert["status"]["inhibitedBy"].as_array().unwrap().is_empty())
            };
            let differ: Vec<_> =
                targets.iter().filter(|(inhibited, labels, _)| state(labels) != Some(*inhibited)).collect();
            let settled = alerts.len() == sent.len() && differ.is_empty();
            (!settled).then(|| format!("{} of {} alerts; differ: {differ:#?}", alerts.len(), sent.len()))
        });
    }
}

/// Time intervals are for what can wait.
#[test]
fn no_page_is_muted_by_a_time() {
    for file in FILES {
        let text = fs::read_to_string(config(file)).unwrap();
        let routes = text.split_once("\n  routes:\n").unwrap().1.split_once("\ninhibit_rules:").unwrap().0;
        let (mut pages, mut muted) = (0, 0);
        for route in routes.split("\n    - matchers:").map(str::trim_start) {
            let mutes = route.contains("mute_time_intervals");
            muted += usize::from(mutes);
            if route.contains("receiver: platform-pager") || route.contains("receiver: remediation") {
                pages += 1;
                assert!(!mutes, "{file}: {route}");
            }
        }
        assert!(pages > 0 && muted > 3, "{file}: {pages} routes of pages, {muted} that are muted");
    }
}

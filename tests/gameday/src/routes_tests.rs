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

/// The labels that the rules themselves give to each alert.
fn given() -> BTreeMap<String, BTreeMap<String, String>> {
    let alerts = repository().join("alerts");
    let files = [rules::files(&alerts).unwrap(), rules::files(&alerts.join("optional")).unwrap()].concat();
    let mut given = BTreeMap::new();
    for file in files {
        let mut alert = None;
        for line in fs::read_to_string(file).unwrap().lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("- alert: ") {
                alert = Some(name.to_owned());
            } else if let Some(pairs) = line.strip_prefix("labels: {").and_then(|rest| rest.strip_suffix('}'))
            {
                given.insert(alert.take().expect(line), labels(&pairs.replace(": ", "=").replace(',', "")));
            }
        }
    }
    assert!(
        given
            .values()
            .all(|labels| ["severity", "team", "component"].iter().all(|l| labels.contains_key(*l)))
    );
    given
}

/// The labels of a line with those that its alert's rule gives; a line may say those too, and must not say others.
fn whole(text: &str, given: &BTreeMap<String, BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let mut labels = labels(text);
    let name = &labels["alertname"];
    for (label, value) in given.get(name).into_iter().flatten() {
        let said = labels.entry(label.clone()).or_insert_with(|| value.clone());
        assert_eq!(said, value, "{text}: {label} as the rule gives it");
    }
    labels
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
    let given = given();
    let mut reached = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for line in lines("routes.psv") {
        let [of, to] = line.as_slice() else { panic!("{line:?}: labels|receivers") };
        let labels = whole(of, &given);
        let mut args = vec!["config".to_owned(), "routes".to_owned(), "test".to_owned()];
        args.push(format!("--verify.receivers={to}"));
        args.extend(labels.iter().map(|(name, value)| format!("{name}={value}")));
        amtool(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let kind = |label: &str| labels.get(label).cloned().unwrap_or_default();
        reached.extend(to.split(',').map(|receiver| (receiver.to_owned(), kind("severity"))));
        kinds.insert(["severity", "team", "component"].map(kind));
    }
    let config = fs::read_to_string(repository().join("alerts/alertmanager.yml")).unwrap();
    let receivers = config.split_once("\nreceivers:\n").unwrap().1;
    for receiver in receivers.lines().filter_map(|line| line.strip_prefix("  - name: ")) {
        let severities = if receiver.starts_with("team-") { &["ticket", "info"][..] } else { &[""][..] };
        for severity in severities {
            let is = |(name, of): &(String, String)| name == receiver && of.contains(severity);
            assert!(reached.iter().any(is), "no line for {receiver} {severity}");
        }
    }
    for (alert, labels) in &given {
        let kind = ["severity", "team", "component"].map(|label| labels[label].clone());
        assert!(kinds.contains(&kind), "no line has the labels of {alert}: {kind:?}");
    }
}

/// Owners' alerts are told by job: those of a team's other jobs are notifications of their own.
#[test]
fn owners_are_told_by_job() {
    let dir = tempfile::tempdir().unwrap();
    let config = repository().join("alerts/alertmanager.yml");
    let alertmanager = Alertmanager::start(dir.path(), &config, 9).unwrap();
    let given = given();
    // Of each notification whose it is and of which work, and its alerts, each with the pod or job that it is about.
    let wanted = BTreeMap::from([
        (
            "training llm",
            vec![
                "GpuAllocatedIdle llm-worker-0",
                "GpuAllocatedIdle llm-worker-1",
                "GpuMemoryHigh llm-worker-1",
            ],
        ),
        ("training nlp", vec!["GpuAllocatedIdle nlp-x7k2p"]),
        ("training llm info", vec!["GpuPcieBound llm-worker-0", "GpuHostStarved llm-worker-1"]),
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
    post(alertmanager.port, "/api/v2/alerts", &Value::Array(sent)).unwrap();
    let wanted: BTreeSet<BTreeSet<String>> =
        wanted.into_values().map(|alerts| alerts.into_iter().map(str::to_owned).collect()).collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = get(alertmanager.port, "/api/v2/alerts/groups").unwrap();
        let groups: Vec<Value> = serde_json::from_str(&answer).unwrap();
        let name = |labels: &Value| {
            let from = ["pod", "slurm_job"].iter().find_map(|label| labels[label].as_str());
            format!("{} {}", labels["alertname"].as_str().unwrap(), from.unwrap())
        };
        let alerts = |group: &Value| {
            group["alerts"].as_array().unwrap().iter().map(|alert| name(&alert["labels"])).collect()
        };
        let told: BTreeSet<BTreeSet<String>> = groups.iter().map(alerts).collect();
        if told == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "told as {told:#?}");
        pause();
    }
}

/// Names in the tables are those of alerts, so that a renamed alert does not leave a dead rule behind.
#[test]
fn every_alert_that_is_named_exists() {
    let exist: BTreeSet<String> = given().into_keys().collect();
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
    let given = given();
    let mut sent = Vec::new();
    let mut targets = Vec::new();
    for (n, line) in table.iter().enumerate() {
        let [kept_back, source, target] = line.as_slice() else { panic!("{line:?}") };
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

//! What every rule must have: names and labels that exist, and the texts that people who are notified need.

use std::collections::{BTreeMap, BTreeSet};

use exposition::assets::rules::{Source, Values};

use model::catalog::{FaultAction, Severity};

use super::dashboards::{self, variables_of_link};
use super::promql::{LabelNames, Reader, parse};
use super::templates;
use super::vocabulary::Vocabulary;
use super::{files, report};

const SEVERITIES: [&str; 3] = ["page", "ticket", "info"];
const TEAMS: [&str; 2] = ["platform", "owner"];
const COMPONENTS: [&str; 10] =
    ["gpu", "canary", "exporter", "driver", "mig", "fabric", "host", "owner", "capacity", "slo"];
/// What an alert is about: Alertmanager routes by it.
const SCOPES: [&str; 5] = ["gpu", "node", "rack", "fleet", "owner"];
/// Most alerts, most of them that page, and most rules of a group: an operator has to know them all, and Prometheus evaluates the
/// rules of a group one after the other. One of those that page does so only where the work asks for it (GpuWedged).
const MOST_ALERTS: usize = 65;
const MOST_PAGES: usize = 11;
const MOST_RULES: usize = 15;
const ANNOTATIONS: [&str; 4] = ["summary", "description", "runbook_url", "dashboard_url"];

/// Reads an expression; its labels and what is wrong with it.
fn read(text: &str, vocabulary: &Vocabulary) -> (LabelNames, Vec<String>) {
    match parse(text) {
        Err(error) => (None, vec![format!("cannot be parsed: {error}")]),
        Ok(expr) => {
            let mut reader = Reader::new(vocabulary);
            let labels = reader.labels(&expr);
            (labels, reader.problems)
        }
    }
}

/// The default of a link.
fn link(name: &str) -> String {
    default(&format!("links.{name}"))
}

/// The default of a value.
fn default(name: &str) -> String {
    let values = Values::defaults().expect("the defaults can be read");
    values.get(name).expect("the value has a default").to_owned()
}

/// Labels that a template asks for.
fn labels_of_template(text: &str) -> BTreeSet<String> {
    let parts = text.split("$labels.").skip(1);
    parts.map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn every_name_in_a_rule_exists() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    for (file, rule) in files::rules() {
        let name = rule.alert.as_ref().or(rule.record.as_ref()).cloned().unwrap_or_default();
        let (_, wrong) = read(&rule.expr, &vocabulary);
        problems.extend(wrong.into_iter().map(|what| format!("{file}: {name}: {what}")));
    }
    report(problems);
}

#[test]
fn every_alert_says_what_people_need() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    let mut seen = BTreeMap::new();
    for (file, name, rule) in files::alerts() {
        let mut wrong = |what: String| problems.push(format!("{file}: {name}: {what}"));
        // One alert may have several rules, of one file.
        if let Some(other) = seen.insert(name.clone(), file.clone()).filter(|other| *other != file) {
            wrong(format!("is in {other} too"));
        }
        if !name.starts_with("Gpu") || !name.chars().all(|c| c.is_ascii_alphanumeric()) {
            wrong("is no name of ours: Gpu and CamelCase".into());
        }
        for (label, values) in
            [("severity", &SEVERITIES[..]), ("team", &TEAMS[..]), ("component", &COMPONENTS[..])]
        {
            match rule.labels.get(label) {
                Some(value) if values.contains(&value.as_str()) => {}
                other => wrong(format!("label {label} is {other:?}, not one of {values:?}")),
            }
        }
        for (label, value) in &rule.labels {
            if value.contains("{{") && !value.contains("$labels.") {
                wrong(format!("label {label} has a value that changes: every change is another alert"));
            }
        }
        for annotation in ANNOTATIONS {
            if rule.annotations.get(annotation).is_none_or(|text| text.trim().is_empty()) {
                wrong(format!("has no annotation {annotation}"));
            }
        }
        let text = |annotation: &str| rule.annotations.get(annotation).map_or("", |text| text.as_str());
        if text("summary").trim().contains('\n') {
            wrong("the summary has more than one line".into());
        }
        let runbook = format!("{}/{name}.md", link("runbooks"));
        if text("runbook_url") != runbook {
            wrong(format!("runbook_url is not {runbook}"));
        }
        let (labels, _) = read(&rule.expr, &vocabulary);
        let used: BTreeSet<String> =
            rule.annotations.values().flat_map(|text| labels_of_template(text)).collect();
        let Some(labels) = labels else { continue };
        for label in used.iter().filter(|label| !labels.contains(*label) && !rule.labels.contains_key(*label))
        {
            wrong(format!("speaks of $labels.{label}, which its expression has not"));
        }
        // Alerts without a node are of a fleet.
        let of_fleet = !labels.contains("instance");
        if !of_fleet && labels.contains("gpu") && !used.contains("gpu") && labels.contains("uuid") {
            wrong("is of one GPU and does not name it".into());
        }
    }
    report(problems);
}

#[test]
fn alerts_and_groups_are_few() {
    let alerts = files::alerts();
    let names = |pages: bool| -> BTreeSet<&str> {
        let pages = |rule: &files::Rule| !pages || rule.labels.get("severity").is_some_and(|of| of == "page");
        alerts.iter().filter(|(_, _, rule)| pages(rule)).map(|(_, name, _)| name.as_str()).collect()
    };
    let mut problems = Vec::new();
    for (what, names, most) in
        [("alerts", names(false), MOST_ALERTS), ("alerts that page", names(true), MOST_PAGES)]
    {
        if names.len() > most {
            problems.push(format!("{} {what}, more than {most}: {names:?}", names.len()));
        }
    }
    let large = files::sizes().into_iter().filter(|(_, rules)| *rules > MOST_RULES);
    problems.extend(large.map(|(group, rules)| format!("{group} has {rules} rules, more than {MOST_RULES}")));
    report(problems);
}

/// Such an alert ends when a window opens, which is no end of its fault: a recorded series names those alerts.
#[test]
fn alerts_that_leave_out_windows_are_known_where_ends_are_reported() {
    // Alerts that planned work does not mute.
    const HEARD: [&str; 2] = ["GpuNodeForgotten", "GpuWindowTooLong"];
    let rules = files::rules();
    let reported = rules
        .iter()
        .find(|(_, rule)| rule.record.as_deref() == Some("alert:gpu_planned_reported:timestamp_seconds"));
    let named = reported.and_then(|(_, rule)| rule.expr.split_once("alertname=~\"")?.1.split_once('"'));
    let named: Vec<&str> = named.expect("it names them").0.split('|').collect();
    let is_named = |name: &str| {
        named.iter().any(|one| one.strip_suffix(".+").map_or(*one == name, |start| name.starts_with(start)))
    };
    let windows =
        |expr: &str| expr.contains("gpu_window_") || expr.contains("instance:gpu_driver_down:reason");
    let mut problems = Vec::new();
    for (file, name, rule) in files::alerts() {
        let of_a_node =
            rule.labels.get("scope").is_some_and(|scope| ["gpu", "node", "owner"].contains(&scope.as_str()));
        let heard =
            HEARD.contains(&name.as_str()) || rule.labels.get("severity").is_some_and(|of| of == "info");
        if of_a_node && !heard && windows(&rule.expr) && !is_named(&name) {
            problems.push(format!("{file}: {name} leaves out windows: name it in windows.yml"));
        }
    }
    assert!(is_named("GpuDevicesMissing") && !is_named("GpuUnhealthy"), "{named:?}");
    report(problems);
}

#[test]
fn every_alert_has_a_scope_that_its_labels_fit() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    for (file, name, rule) in files::alerts() {
        let scope = rule.labels.get("scope").map_or("", |scope| scope.as_str());
        if !SCOPES.contains(&scope) {
            problems.push(format!("{file}: {name}: label scope is {scope:?}, not one of {SCOPES:?}"));
        }
        let (labels, _) = read(&rule.expr, &vocabulary);
        let Some(labels) = labels else { continue };
        let wanted = match scope {
            "gpu" => "gpu",
            "node" => "instance",
            "rack" => "rack",
            _ => continue,
        };
        if !labels.contains(wanted) {
            problems.push(format!("{file}: {name}: is of scope {scope}, without the label {wanted}"));
        }
    }
    report(problems);
}

#[test]
fn alerts_of_a_gpu_name_its_owners() {
    let vocabulary = Vocabulary::new();
    let hit = default("texts.hit");
    let mut problems = Vec::new();
    for (file, name, rule) in files::alerts() {
        let (labels, _) = read(&rule.expr, &vocabulary);
        // Where the owner is a label, or the pod or job that was given the GPU, the texts have it.
        let has = |label: &str| labels.as_ref().is_none_or(|labels| labels.contains(label));
        if !has("gpu") || has("owner") || has("slurm_job") {
            continue;
        }
        if !rule.annotations.get("description").is_some_and(|text| text.contains(&hit)) {
            problems.push(format!("{file}: {name}: the description has no $(texts.hit)"));
        }
    }
    report(problems);
}

#[test]
fn queries_and_links_of_alerts_stay_within_the_cluster() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    let mut clustered = BTreeSet::new();
    for (file, name, rule) in files::alerts() {
        let (labels, _) = read(&rule.expr, &vocabulary);
        if labels.is_none_or(|labels| !labels.contains("cluster")) {
            continue;
        }
        let url = rule.annotations.get("dashboard_url").map_or("", |url| url.as_str());
        if url.contains("?var-") && !url.contains("var-cluster=") {
            problems.push(format!("{file}: {name}: dashboard_url has no cluster"));
        }
        clustered.insert(name);
    }
    for (name, text) in templates::queries().into_iter().filter(|(name, _)| clustered.contains(name)) {
        let Ok(expr) = parse(&text) else { continue };
        let mut reader = Reader::new(&vocabulary);
        reader.labels(&expr);
        for (metric, _) in reader.selectors.iter().filter(|(_, labels)| !labels.contains("cluster")) {
            problems.push(format!("{name}: {metric} is asked for without the cluster: {text}"));
        }
    }
    report(problems);
}

#[test]
fn every_alert_leads_to_a_board_that_exists() {
    let boards: BTreeMap<String, BTreeSet<String>> = files::dashboards()
        .iter()
        .map(|(_, board)| (dashboards::uid(board), dashboards::variable_names(board)))
        .collect();
    let mut problems = Vec::new();
    for (file, name, rule) in files::alerts() {
        let Some(url) = rule.annotations.get("dashboard_url") else { continue };
        let base = format!("{}/d/", link("grafana"));
        let Some(rest) = url.strip_prefix(&base) else {
            problems.push(format!("{file}: {name}: dashboard_url does not begin with {base}"));
            continue;
        };
        let uid = rest.split(['?', '/']).next().unwrap_or_default();
        match boards.get(uid) {
            None => problems.push(format!("{file}: {name}: there is no board {uid}")),
            Some(variables) => {
                for variable in variables_of_link(url).difference(variables) {
                    problems.push(format!("{file}: {name}: {uid} has no variable {variable}"));
                }
            }
        }
    }
    report(problems);
}

#[test]
fn every_group_says_how_often_it_is_evaluated() {
    // Else it follows the global setting of Prometheus, a minute by default.
    let silent = files::intervals().into_iter().filter(|(_, interval)| interval.is_none());
    report(silent.map(|(group, _)| format!("{group} has no interval")).collect());
}

#[test]
fn groups_fit_the_limits_of_a_ruler() {
    // Mimir's defaults for a tenant; a name is one group.
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    for (group, _) in files::intervals() {
        *groups.entry(group).or_default() += 1;
    }
    let mut problems: Vec<String> = groups
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(group, _)| format!("{group} is there twice"))
        .collect();
    if groups.len() > 70 {
        problems.push(format!("{} groups, a tenant of Mimir may have 70", groups.len()));
    }
    report(problems);
}

#[test]
fn every_alert_has_its_reason_above_it() {
    let mut problems = Vec::new();
    for path in files::rule_files() {
        let text = files::read(&path);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = line.strip_prefix("- alert: ") else { continue };
            if !lines[..at].last().is_some_and(|above| above.starts_with('#')) {
                problems.push(format!("{}: {name}: no comment above it says why", files::name(&path)));
            }
        }
    }
    report(problems);
}

#[test]
fn the_rule_files_are_what_their_sources_give() {
    let values = Values::defaults().expect("the defaults can be read");
    let mut problems = Vec::new();
    for source in Source::all() {
        let path = files::root().join(source.path().trim_start_matches('/'));
        let made = source.render(&values).expect("every name has a value");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, made).expect("it can be written");
        } else if std::fs::read_to_string(&path).unwrap_or_default() != made {
            problems.push(format!("{} is not what its source gives: run `make rules`", files::name(&path)));
        }
    }
    let sources = Source::all().count();
    if files::rule_files().len() != sources {
        problems.push(format!("{} rule files, {sources} sources", files::rule_files().len()));
    }
    report(problems);
}

#[test]
fn what_is_served_is_what_the_repository_has() {
    let mut wanted = files::list("alerts", ".yml");
    wanted.extend(
        ["alerts/optional", "alerts/rollouts", "alerts/rules", "alerts/rules/optional"]
            .iter()
            .flat_map(|folder| files::list(folder, ".yml")),
    );
    wanted.extend(files::list("dashboards", ".json"));
    let mut problems = Vec::new();
    for path in &wanted {
        let served = exposition::assets::Asset::at(&format!("/{}", files::name(path)));
        if served.is_none_or(|asset| asset.text != files::read(path)) {
            problems
                .push(format!("{} is served otherwise: `touch build.rs` and build again", files::name(path)));
        }
    }
    let served = exposition::assets::ASSETS.len();
    if served != wanted.len() {
        problems.push(format!("{served} files are served, {} are there", wanted.len()));
    }
    report(problems);
}

/// The codes in the tests `match "^(8|109)$" $labels.xid` of a template, in order.
fn codes_of_template(text: &str) -> Vec<BTreeSet<u32>> {
    let tests = text.split("match \"^(").skip(1).filter_map(|rest| rest.split_once(')'));
    tests.map(|(codes, _)| codes.split('|').map(|code| code.parse().unwrap()).collect()).collect()
}

#[test]
fn who_is_to_blame_for_an_xid_follows_the_table_of_codes() {
    let alerts = files::alerts();
    let (_, _, ticket) = alerts.iter().find(|(_, name, _)| name == "GpuXid").unwrap();
    let (_, elsewhere) = ticket.expr.split_once("xid!~\"").unwrap();
    let elsewhere: Vec<&str> = elsewhere.split('"').next().unwrap().split('|').collect();
    let known = (1..=999).map(model::xid::xid).filter(|row| !row.mnemonic.is_empty());
    let by_column = |column: &str| {
        let tickets =
            known.clone().filter(|row| row.severity == Severity::Ticket && row.app_can_cause == column);
        let here = tickets.filter(|row| row.action != FaultAction::ContactSupport).map(|row| row.code);
        here.filter(|code| !elsewhere.contains(&code.to_string().as_str())).collect::<BTreeSet<u32>>()
    };
    let said = codes_of_template(&ticket.annotations["description"]);
    assert_eq!(said, ["yes", "possible", "rare"].map(by_column));
    assert!(!by_column("no").is_empty());

    let (_, _, application) = alerts.iter().find(|(_, name, _)| name == "GpuXidApplication").unwrap();
    let (_, codes) = application.expr.split_once("xid=~\"").unwrap();
    for code in codes.split('"').next().unwrap().split('|') {
        assert_eq!(model::xid::xid(code.parse().unwrap()).app_can_cause, "yes", "Xid {code}");
    }
}

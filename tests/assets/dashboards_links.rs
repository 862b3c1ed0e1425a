//! Where the dashboards' links lead, what stays chosen on the way, and how the dashboard of jobs makes workloads of owners.
//! `dashboards/preview` follows the links on a real Prometheus.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::Value;

use super::dashboards::{panels, uid, variable_names, variables, variables_of_link};
use super::dashboards_lint::{each, strings, text};
use super::{files, report};

/// The dashboard that leads from workloads down to owners.
const JOB: &str = "gpu-node-job";

/// Its ways: the table, the column that is clicked on, the dashboard that is next, and what the row chooses there.
const WAYS: [(&str, &str, &str, &[&str]); 10] = [
    ("Workloads", "workload", JOB, &["workload"]),
    ("Nodes", "instance", JOB, &["instance"]),
    ("Nodes", "instance", "gpu-node-host", &["instance"]),
    ("Nodes", "instance", "gpu-node-oncall", &["instance"]),
    ("GPUs", "gpu", JOB, &["instance", "gpu"]),
    ("GPUs", "gpu", "gpu-node-gpu", &["instance", "gpu"]),
    ("GPUs", "gpu", "gpu-node-mig", &["instance", "gpu"]),
    ("GPUs", "gpu", "gpu-node-canary", &["instance", "gpu"]),
    ("Owners", "gpu", "gpu-node-gpu", &["instance", "gpu"]),
    ("Owners", "namespace", "gpu-node-service", &["namespace"]),
];

/// Owners, and the workload that each is part of: what a pod's controller appended to its name, and steps of Slurm jobs,
/// are no workloads of their own.
const WORKLOADS: [(&str, &str); 17] = [
    ("pod/inference/chat-7d9c6b5f4-x2kqp/server", "pod/inference/chat"),
    ("pod/inference/chat-7d9c6b5f4-x2kqp/0a1b2c3d4e5f", "pod/inference/chat"),
    ("pod/training/llm-0/trainer", "pod/training/llm"),
    ("pod/training/llm-worker-12/pytorch", "pod/training/llm-worker"),
    ("pod/batch/sweep-3-bw5tz/main", "pod/batch/sweep"),
    ("pod/infra/agent-9kq2z/agent", "pod/infra/agent"),
    ("pod/web/web-front/main", "pod/web/web-front"),
    ("pod/infra/proxy-ip-10-0-0-1.internal/proxy", "pod/infra/proxy-ip-10-0-0-1.internal"),
    (
        "pod/2c48913c-b29f-11e7-9350-020968147796/9bca8d63d5fa",
        "pod/2c48913c-b29f-11e7-9350-020968147796/9bca8d63d5fa",
    ),
    ("slurm/4711.0", "slurm/4711"),
    ("slurm/4711.batch", "slurm/4711"),
    ("slurm/4711", "slurm/4711"),
    ("unit/jupyter.service", "unit/jupyter.service"),
    ("unit/alice/train.service", "unit/alice/train.service"),
    ("user/alice", "user/alice"),
    ("docker/4be1f3f5c0a9d8e7", "docker/4be1f3f5c0a9d8e7"),
    ("unknown", "unknown"),
];
/// Workloads, and owners of others whose names begin alike.
const OTHERS: [(&str, &str); 3] = [
    ("pod/inference/chat", "pod/inference/chatbot-7d9c6b5f4-x2kqp/server"),
    ("pod/web/web", "pod/web/web-front/main"),
    ("slurm/47", "slurm/4711.0"),
];

/// A link to a dashboard.
struct Link<'a> {
    to: &'a str,
    /// Variables that get a value of the row, of the line or of the link itself.
    set: BTreeSet<String>,
    /// Variables that stay as they are.
    kept: BTreeSet<String>,
    keeps_time: bool,
}

impl<'a> Link<'a> {
    /// None if the text has no link to a dashboard.
    fn read(url: &'a str) -> Option<Link<'a>> {
        let (_, rest) = url.split_once("/d/")?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
        let (to, query) = rest.split_at(end.unwrap_or(rest.len()));
        let parts: Vec<&str> = query.trim_start_matches('?').split('&').collect();
        let kept = |part: &&str| Some(part.strip_prefix("${")?.strip_suffix(":queryparam}")?.to_owned());
        let time = |part: &&str| *part == "${__url_time_range}" || part.starts_with("from=");
        Some(Link {
            to,
            set: variables_of_link(query),
            kept: parts.iter().filter_map(kept).collect(),
            keeps_time: parts.iter().any(time),
        })
    }
}

/// Whether nothing but one value of it makes sense on the dashboard: it is asked for, and there is no "All".
fn is_single(variable: &Value) -> bool {
    text(variable, "type") == "query" && variable["includeAll"] != Value::Bool(true)
}

/// What is wrong with a link of a dashboard.
fn problems(from: &Value, link: &Link, dashboards: &BTreeMap<String, Value>) -> Vec<String> {
    let Some(target) = dashboards.get(link.to) else {
        return vec![format!("there is no dashboard {:?}", link.to)];
    };
    let mut problems = Vec::new();
    let (own, there) = (variable_names(from), variable_names(target));
    let passed: BTreeSet<String> = link.set.union(&link.kept).cloned().collect();
    for name in passed.difference(&there) {
        problems.push(format!("{} has no variable {name}", link.to));
    }
    for name in link.kept.difference(&own) {
        problems.push(format!("keeps {name}, which its own dashboard has not"));
    }
    for name in own.intersection(&there).filter(|name| !passed.contains(*name)) {
        problems.push(format!("loses {name}, which {} has too", link.to));
    }
    let here: BTreeSet<&str> =
        variables(from).iter().filter(|v| is_single(v)).map(|v| text(v, "name")).collect();
    for name in variables(target).iter().filter(|v| is_single(v)).map(|v| text(v, "name")) {
        if !(link.set.contains(name) || link.kept.contains(name) && here.contains(name)) {
            problems.push(format!("does not choose the {name} that {} needs", link.to));
        }
    }
    if !link.keeps_time {
        problems.push("loses the time".into());
    }
    problems
}

fn all_dashboards() -> BTreeMap<String, Value> {
    files::dashboards().into_iter().map(|(_, dashboard)| (uid(&dashboard), dashboard)).collect()
}

#[test]
fn links_keep_what_was_chosen() {
    let dashboards = all_dashboards();
    each(|dashboard, wrong| {
        let mut all = Vec::new();
        strings(dashboard, &mut all);
        for url in all {
            let Some(link) = Link::read(url) else { continue };
            problems(dashboard, &link, &dashboards).iter().for_each(|what| wrong(format!("{what}: {url}")));
        }
        let links = dashboard["links"].as_array().map_or(&[][..], |links| links.as_slice());
        for link in links.iter().filter(|link| text(link, "type") == "dashboards") {
            if link["keepTime"] != Value::Bool(true) || link["includeVars"] != Value::Bool(true) {
                wrong(format!("the link {:?} loses the time or the variables", text(link, "title")));
            }
        }
    });
}

#[test]
fn a_link_that_loses_something_is_found() {
    let dashboards = all_dashboards();
    let dashboard = &dashboards[JOB];
    let rest = "${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}";
    let of = |url: &str| {
        let link = Link::read(url).expect("it leads to a dashboard");
        problems(dashboard, &link, &dashboards).join("; ")
    };
    let row = "var-instance=${__data.fields.instance:percentencode}";
    for (url, wanted) in [
        (format!("/d/gpu-node-oncall?${{__url_time_range}}&{row}&{rest}"), ""),
        (format!("/d/gpu-node-oncall?{row}&{rest}"), "loses the time"),
        (
            format!("/d/gpu-node-oncall?${{__url_time_range}}&{rest}"),
            "loses instance, which gpu-node-oncall has too",
        ),
        (
            format!("/d/gpu-node-host?${{__url_time_range}}&${{instance:queryparam}}&{rest}"),
            "does not choose the instance that gpu-node-host needs",
        ),
        (
            format!("/d/gpu-node-oncall?${{__url_time_range}}&{row}&{rest}&var-model=x"),
            "gpu-node-oncall has no variable model",
        ),
        ("/d/gpu-node-none?x".into(), "there is no dashboard \"gpu-node-none\""),
    ] {
        assert_eq!(of(&url), wanted, "{url}");
    }
}

#[test]
fn the_dashboard_of_jobs_leads_down_and_beside() {
    let dashboards = all_dashboards();
    let mut wrong = Vec::new();
    for (table, column, to, chosen) in WAYS {
        let panel = panels(&dashboards[JOB]).into_iter().find(|panel| text(panel, "title") == table);
        let overrides = panel.and_then(|panel| panel["fieldConfig"]["overrides"].as_array());
        let of_column =
            overrides.into_iter().flatten().filter(|one| text(&one["matcher"], "options") == column);
        let properties = of_column.flat_map(|one| one["properties"].as_array().into_iter().flatten());
        let links = properties.filter(|property| text(property, "id") == "links");
        let urls: Vec<&str> = links
            .flat_map(|links| links["value"].as_array().into_iter().flatten())
            .map(|link| text(link, "url"))
            .collect();
        let leads = |url: &&str| {
            let is_row =
                |name: &&str| url.contains(&format!("var-{name}=${{__data.fields.{name}:percentencode}}"));
            Link::read(url).is_some_and(|link| link.to == to) && chosen.iter().all(is_row)
        };
        if !urls.iter().any(leads) {
            wrong.push(format!("{table}: no link of {column} leads to {to} with the row's {chosen:?}"));
        }
    }
    report(wrong);
}

/// The three places that make workloads of owners: the variable, the label of rows, and the choice of owners.
#[test]
fn owners_are_of_one_workload_everywhere() {
    let dashboards = all_dashboards();
    let dashboard = &dashboards[JOB];
    let variable = variables(dashboard).iter().find(|variable| text(variable, "name") == "workload");
    let of_variable =
        text(variable.expect("workloads can be chosen"), "regex").trim_matches('/').replace("\\/", "/");
    let mut exprs = Vec::new();
    for panel in panels(dashboard) {
        exprs.extend(panel["targets"].as_array().into_iter().flatten().map(|target| text(target, "expr")));
    }
    let exprs = exprs.join("\n");
    let found = |pattern: &str| -> BTreeSet<String> {
        let pattern = Regex::new(pattern).expect("a pattern");
        pattern.captures_iter(&exprs).map(|hit| hit[1].to_owned()).collect()
    };
    let labels = found(r#""workload", "\$1", "owner", "([^"]*)""#);
    let choices = found(r#"owner=~"\(\$workload\)([^"]*)""#);
    let (labels, choices): (Vec<String>, Vec<String>) =
        (labels.into_iter().collect(), choices.into_iter().collect());
    let ([of_label], [appended]) = (&labels[..], &choices[..]) else {
        panic!("{} ways to name workloads, {} to choose their owners", labels.len(), choices.len());
    };
    // As Prometheus matches: all of the value.
    let whole = |pattern: &str| Regex::new(&format!("^(?:{pattern})$")).expect("a pattern");
    let chooses = |workload: &str, owner: &str| {
        whole(&format!("({}){appended}", regex::escape(workload))).is_match(owner)
    };
    let mut wrong = Vec::new();
    for (owner, workload) in WORKLOADS {
        for (what, pattern) in [("variable", &of_variable), ("label", of_label)] {
            let pattern = whole(pattern);
            let made = pattern.captures(owner).and_then(|hit| hit.get(1)).map(|hit| hit.as_str());
            if made != Some(workload) {
                wrong.push(format!("the {what} makes {made:?} of {owner}"));
            }
        }
        if !chooses(workload, owner) {
            wrong.push(format!("{workload} does not choose {owner}"));
        }
    }
    for (workload, owner) in OTHERS {
        if chooses(workload, owner) {
            wrong.push(format!("{workload} also chooses {owner}"));
        }
    }
    report(wrong);
}

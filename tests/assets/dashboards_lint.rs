//! What every dashboard and panel must have, so that it reads the same everywhere and lies nowhere.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use model::catalog::METRICS;

use super::dashboards::{panels, query, uid, variable_names, variables, variables_in};
use super::vocabulary::{group_of, metric_of};
use super::{files, report};

/// Panels of Grafana's core that can be drawn without Grafana (`dashboards/preview`).
const TYPES: [&str; 11] = [
    "stat",
    "timeseries",
    "table",
    "bargauge",
    "state-timeline",
    "status-history",
    "heatmap",
    "text",
    "row",
    "barchart",
    "histogram",
];
const SCHEMAS: std::ops::RangeInclusive<i64> = 39..=41;

/// Runs `check` over all dashboards; it is given the dashboard and where to put what is wrong.
pub fn each(check: impl Fn(&Value, &mut dyn FnMut(String))) {
    let mut problems = Vec::new();
    for (file, dashboard) in files::dashboards() {
        check(&dashboard, &mut |what| problems.push(format!("{file}: {what}")));
    }
    report(problems);
}

/// A text of a document, without the spaces around it.
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default().trim()
}

#[test]
fn dashboards_are_named_and_cannot_be_edited() {
    let mut titles = BTreeMap::new();
    let mut problems = Vec::new();
    for (file, dashboard) in files::dashboards() {
        let mut wrong = |what: String| problems.push(format!("{file}: {what}"));
        let uid = uid(&dashboard);
        if file != format!("dashboards/{uid}.json") {
            wrong(format!("its uid is {uid:?}, not the file's name"));
        }
        if let Some(other) = titles.insert(text(&dashboard, "title").to_owned(), file.clone()) {
            wrong(format!("has the title of {other}"));
        }
        if dashboard["editable"] != Value::Bool(false) {
            wrong("can be edited".into());
        }
        if !dashboard["schemaVersion"].as_i64().is_some_and(|version| SCHEMAS.contains(&version)) {
            wrong(format!("schemaVersion is {}, not of {SCHEMAS:?}", dashboard["schemaVersion"]));
        }
        if !dashboard["tags"].as_array().is_some_and(|tags| tags.contains(&"gpu-node".into())) {
            wrong("lacks the tag gpu-node".into());
        }
        if text(&dashboard, "title").is_empty() || text(&dashboard, "description").is_empty() {
            wrong("lacks a title or a description".into());
        }
    }
    report(problems);
}

#[test]
fn panels_have_all_that_people_need_to_read_them() {
    each(|dashboard, wrong| {
        for panel in panels(dashboard) {
            let (kind, title) = (text(panel, "type"), text(panel, "title"));
            let mut wrong = |what: &str| wrong(format!("panel {title:?} ({kind}): {what}"));
            if !TYPES.contains(&kind) {
                wrong("is no type that is allowed");
            }
            if title.is_empty() {
                wrong("has no title");
            }
            if kind == "row" {
                continue;
            }
            if text(panel, "description").is_empty() {
                wrong("has no description");
            }
            if kind == "text" {
                continue;
            }
            let defaults = &panel["fieldConfig"]["defaults"];
            if text(defaults, "unit").is_empty() {
                wrong("has no unit");
            }
            if defaults["thresholds"]["steps"].as_array().is_none_or(|steps| steps.is_empty()) {
                wrong("has no thresholds of its own: Grafana's are red at 80");
            }
            let none = text(defaults, "noValue");
            if none.is_empty() || none.parse::<f64>().is_ok() {
                wrong("does not say what it means that there is no value");
            }
            if text(&panel["datasource"], "uid") != "${datasource}" {
                wrong("has a data source of its own");
            }
            let targets = panel["targets"].as_array().map_or(&[][..], |targets| targets.as_slice());
            if targets.is_empty() {
                wrong("asks for nothing");
            }
            let names: BTreeSet<&str> = targets.iter().map(|target| text(target, "refId")).collect();
            if names.len() != targets.len() {
                wrong("has two targets of one name");
            }
            let drawn = !matches!(kind, "table" | "heatmap");
            for target in targets {
                if text(target, "expr").is_empty() {
                    wrong("has a target without an expression");
                }
                if drawn && matches!(text(target, "legendFormat"), "" | "__auto") {
                    wrong("has a target without a legend");
                }
            }
        }
    });
}

/// Without a group of metrics that is off by default, a panel shows nothing: then it says which group to switch on.
#[test]
fn panels_of_groups_that_are_off_say_so() {
    let text_of_groups = files::read(&files::root().join("dashboards/build/groups.json"));
    let groups: BTreeMap<String, String> = serde_json::from_str(&text_of_groups).expect("metric to group");
    let known: BTreeMap<String, String> = METRICS
        .iter()
        .filter_map(|def| Some((def.name.to_owned(), group_of(def.name)?.name().to_owned())))
        .collect();
    assert_eq!(groups, known, "gpu-node-exporter metrics --format json | dashboards/build/build.py --groups");
    each(|dashboard, wrong| {
        for panel in panels(dashboard) {
            let targets = panel["targets"].as_array().map_or(&[][..], |targets| targets.as_slice());
            let names = |expr: &str| -> BTreeSet<String> {
                let parts = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
                parts.map(|part| metric_of(part).to_owned()).collect()
            };
            let needs = |target: &Value| -> BTreeSet<&String> {
                names(text(target, "expr")).iter().filter_map(|name| groups.get(name)).collect()
            };
            let needed: Vec<BTreeSet<&String>> = targets.iter().map(needs).collect();
            let (none, title) = (text(&panel["fieldConfig"]["defaults"], "noValue"), text(panel, "title"));
            if !needed.is_empty()
                && needed.iter().all(|groups| !groups.is_empty())
                && !none.starts_with("group off")
            {
                wrong(format!("panel {title:?} does not say that its group is off: {none:?}"));
            }
            for group in needed.into_iter().flatten() {
                let named =
                    |text: &str| text.contains("metrics.groups") && text.contains(&format!("{group:?}"));
                if !named(none) && !named(text(panel, "description")) {
                    wrong(format!("panel {title:?} does not name its group {group}"));
                }
            }
        }
    });
}

#[test]
fn panels_stand_beside_each_other() {
    each(|dashboard, wrong| {
        let all = panels(dashboard);
        let mut ids = BTreeSet::new();
        let mut taken: Vec<([i64; 4], &str)> = Vec::new();
        for panel in all {
            let title = text(panel, "title");
            if !panel["id"].as_i64().is_some_and(|id| ids.insert(id)) {
                wrong(format!("panel {title:?}: its id is missing or another's"));
            }
            let at = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_i64().unwrap_or(-1));
            let [x, y, w, h] = at;
            if x < 0 || y < 0 || w < 1 || h < 1 || x + w > 24 {
                wrong(format!("panel {title:?}: gridPos {at:?} is outside the grid"));
            }
            for ([x2, y2, w2, h2], other) in &taken {
                if x < x2 + w2 && *x2 < x + w && y < y2 + h2 && *y2 < y + h {
                    wrong(format!("panel {title:?} covers {other:?}"));
                }
            }
            taken.push((at, title));
        }
    });
}

#[test]
fn variables_come_from_the_inventory_and_in_order() {
    const ORDER: [&str; 6] = ["datasource", "cluster", "job", "instance", "gpu", "uuid"];
    each(|dashboard, wrong| {
        let names: Vec<&str> = variables(dashboard).iter().map(|variable| text(variable, "name")).collect();
        if names.first() != Some(&"datasource") {
            wrong("the first variable is not datasource".into());
        }
        let places: Vec<usize> =
            names.iter().filter_map(|name| ORDER.iter().position(|known| known == name)).collect();
        if !places.is_sorted() {
            wrong(format!("variables are not in the order {ORDER:?}: {names:?}"));
        }
        for variable in variables(dashboard) {
            let (name, kind) = (text(variable, "name"), text(variable, "type"));
            let mut wrong = |what: String| wrong(format!("variable {name}: {what}"));
            // A dashboard of one node has one chosen.
            let takes_all = variable["includeAll"] == Value::Bool(true);
            let all = match name {
                "cluster" => Some(".*"),
                "job" | "instance" => Some(".+"),
                _ => None,
            };
            if takes_all && all.is_some_and(|all| text(variable, "allValue") != all) {
                wrong(format!("allValue is {}", variable["allValue"]));
            }
            if takes_all && matches!(name, "job" | "instance") && variable["multi"] != Value::Bool(true) {
                wrong("takes one value only".into());
            }
            if kind != "query" {
                continue;
            }
            // A sensor's series come and go; who is there does not depend on them.
            let asked = query(variable);
            let metric = asked.trim_start_matches(|c: char| c != '(').trim_start_matches('(');
            let metric: String =
                metric.chars().take_while(|c| c.is_ascii_alphanumeric() || "_:".contains(*c)).collect();
            if metric.starts_with("gpu_") && !metric.ends_with("_info") {
                wrong(format!("comes from {metric}, which is no inventory"));
            }
            if variable["refresh"].as_i64() != Some(2) {
                wrong("is not asked for again when the time changes".into());
            }
        }
    });
}

#[test]
fn variables_that_are_spoken_of_exist() {
    each(|dashboard, wrong| {
        let names = variable_names(dashboard);
        let mut all = Vec::new();
        strings(dashboard, &mut all);
        let used: BTreeSet<String> = all.iter().flat_map(|text| variables_in(text)).collect();
        for name in used.difference(&names) {
            wrong(format!("there is no variable {name}"));
        }
    });
}

/// All texts in a document.
pub fn strings<'a>(value: &'a Value, all: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => all.push(text),
        Value::Array(list) => list.iter().for_each(|value| strings(value, all)),
        Value::Object(map) => map.values().for_each(|value| strings(value, all)),
        _ => {}
    }
}

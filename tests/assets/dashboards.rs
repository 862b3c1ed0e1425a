//! The dashboards' expressions, and what in a dashboard is looked at from elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::promql::{Reader, parse};
use super::vocabulary::Vocabulary;
use super::{files, report};

/// The range in the place of `$__rate_interval` where expressions are parsed: no other range is like it.
pub const RATE_INTERVAL: Duration = Duration::from_secs(607);
/// Grafana's own variables, with the texts in their places. The longer ones come first.
const BUILT_IN: [(&str, &str); 9] = [
    ("__rate_interval", "607s"),
    ("__interval_ms", "15000"),
    ("__interval", "15s"),
    ("__range_ms", "3600000"),
    ("__range_s", "3600"),
    ("__range", "3600s"),
    ("__from", "0"),
    ("__to", "0"),
    ("__dashboard", "x"),
];

/// Counters that are shown as they are: how many faults of a code there were, and since when there is one; how far ranks are apart.
const COUNTED: [&str; 3] =
    ["gpu_owner_nccl_collectives_total", "gpu_xid_errors_total", "gpu_xid_faults_total"];

/// One expression of a dashboard.
#[derive(Clone, Debug)]
pub struct Expression {
    /// Dashboard and panel.
    pub place: String,
    /// As Prometheus would get it.
    pub text: String,
    /// Whether it is asked for over a range of time.
    pub range: bool,
}

/// A dashboard's identity.
pub fn uid(dashboard: &Value) -> String {
    dashboard["uid"].as_str().unwrap_or_default().to_owned()
}

/// Its variables.
pub fn variables(dashboard: &Value) -> &[Value] {
    dashboard["templating"]["list"].as_array().map_or(&[], |list| list)
}

/// Their names.
pub fn variable_names(dashboard: &Value) -> BTreeSet<String> {
    variables(dashboard).iter().filter_map(|variable| variable["name"].as_str()).map(str::to_owned).collect()
}

/// Its panels, those in closed rows too.
pub fn panels(dashboard: &Value) -> Vec<&Value> {
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        all.push(panel);
        all.extend(panel["panels"].as_array().into_iter().flatten());
    }
    all
}

/// Variables that a link sets: `var-NAME=`.
pub fn variables_of_link(url: &str) -> BTreeSet<String> {
    let parts = url.split("var-").skip(1);
    parts.filter_map(|part| part.split_once('=').map(|(name, _)| name.to_owned())).collect()
}

/// Names of the variables that a text speaks of, Grafana's own left out.
pub fn variables_in(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let name = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    for rest in text.split('$').skip(1) {
        let name = name(rest.strip_prefix('{').unwrap_or(rest));
        if name.starts_with(|c: char| c.is_ascii_lowercase()) {
            found.insert(name);
        }
    }
    found
}

/// What a variable is at first; of those that are asked for, anything.
fn values(dashboard: &Value) -> BTreeMap<String, String> {
    let first = |variable: &Value| -> String {
        let own = matches!(variable["type"].as_str(), Some("custom" | "textbox" | "constant" | "interval"));
        let value = [&variable["current"]["value"], &variable["current"]["value"][0], &variable["query"]];
        let text = value.into_iter().find_map(|value| value.as_str()).filter(|_| own).unwrap_or(".*");
        text.split(',').next().unwrap_or_default().split(" : ").last().unwrap_or_default().trim().to_owned()
    };
    let named = |variable: &Value| Some((variable["name"].as_str()?.to_owned(), first(variable)));
    variables(dashboard).iter().filter_map(named).collect()
}

/// An expression with values in place of variables.
pub fn concrete(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let braced = rest.strip_prefix('{');
        let inner = braced.unwrap_or(rest);
        let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
        let name = &inner[..end];
        let value = BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        match value.or_else(|| values.get(name).map(String::as_str)) {
            Some(value) => {
                out.push_str(value);
                rest = match braced {
                    Some(braced) => braced.split_once('}').map_or("", |(_, after)| after),
                    None => &inner[end..],
                };
            }
            None => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

/// What a variable's query asks of Prometheus.
fn of_variable(query: &str) -> Option<String> {
    let inner = query.trim().strip_suffix(')')?;
    if let Some(inner) = inner.strip_prefix("label_values(") {
        return Some(inner.rsplit_once(',').map_or("", |(series, _)| series).trim().to_owned())
            .filter(|series| !series.is_empty());
    }
    inner.strip_prefix("query_result(").map(str::to_owned)
}

/// The query of a variable.
pub fn query(variable: &Value) -> &str {
    let query = &variable["query"];
    query["query"].as_str().or_else(|| query.as_str()).unwrap_or_default()
}

/// All expressions of all dashboards.
pub fn expressions() -> Vec<Expression> {
    let mut all = Vec::new();
    for (_, dashboard) in files::dashboards() {
        let (uid, values) = (uid(&dashboard), values(&dashboard));
        let mut add = |place: &str, text: &str, range: bool| {
            all.push(Expression { place: format!("{uid}: {place}"), text: concrete(text, &values), range });
        };
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap_or_default();
            for target in panel["targets"].as_array().into_iter().flatten() {
                let range = target["instant"].as_bool() != Some(true);
                add(&format!("panel {title:?}"), target["expr"].as_str().unwrap_or_default(), range);
            }
        }
        for annotation in dashboard["annotations"]["list"].as_array().into_iter().flatten() {
            if let Some(text) = annotation["expr"].as_str() {
                add(&format!("annotation {}", annotation["name"]), text, true);
            }
        }
        for variable in variables(&dashboard) {
            if let Some(text) = of_variable(query(variable)) {
                add(&format!("variable {}", variable["name"]), &text, false);
            }
        }
    }
    all
}

#[test]
fn every_name_in_a_dashboard_exists() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    for Expression { place, text, range } in expressions() {
        let mut wrong = |what: &str| problems.push(format!("{place}: {what}\n    {text}"));
        let expr = match parse(&text) {
            Ok(expr) => expr,
            Err(error) => {
                wrong(&format!("cannot be parsed: {error}"));
                continue;
            }
        };
        let mut reader = Reader::new(&vocabulary);
        reader.labels(&expr);
        reader.problems.iter().for_each(|what| wrong(what));
        for counter in reader.raw_counters.iter().filter(|name| !COUNTED.contains(&name.as_str())) {
            wrong(&format!("{counter} only grows: its value alone tells nothing"));
        }
        if range && reader.rates.iter().any(|rate| *rate != RATE_INTERVAL) {
            wrong("a rate is not over $__rate_interval");
        }
    }
    report(problems);
}

#[test]
fn every_query_of_a_dashboard_keeps_to_the_nodes_that_are_chosen() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    for (_, dashboard) in files::dashboards() {
        let names = variable_names(&dashboard);
        let values = values(&dashboard);
        for panel in panels(&dashboard) {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let text = concrete(target["expr"].as_str().unwrap_or_default(), &values);
                let Ok(expr) = parse(&text) else { continue };
                let mut reader = Reader::new(&vocabulary);
                reader.labels(&expr);
                for (name, matched) in reader.selectors {
                    let has = |label: &str| {
                        let ours = vocabulary.get(&name).filter(|known| !known.foreign);
                        let labels = ours.and_then(|known| known.labels.as_ref());
                        labels.is_some_and(|labels| labels.contains(label))
                    };
                    for label in ["cluster", "job", "instance"] {
                        if names.contains(label) && has(label) && !matched.contains(label) {
                            let title = &panel["title"];
                            problems
                                .push(format!("{}: panel {title}: {name} without {label}", uid(&dashboard)));
                        }
                    }
                }
            }
        }
    }
    problems.dedup();
    report(problems);
}

#[test]
fn every_alert_in_a_dashboard_exists() {
    let alerts: BTreeSet<String> = files::alerts().into_iter().map(|(_, name, _)| name).collect();
    let mut missing = BTreeMap::new();
    for Expression { place, text, .. } in expressions() {
        let lists = text.split("alertname").skip(1).filter_map(|rest| {
            let value = rest.trim_start_matches(['!', '=', '~']).strip_prefix('"')?;
            value.split('"').next()
        });
        // `Gpu.+` is every alert of these.
        for name in lists.flat_map(|list| list.split('|')).filter(|name| *name != "Gpu.+") {
            if name.starts_with("Gpu") && !alerts.contains(name) {
                missing.entry(name.to_owned()).or_insert_with(|| place.clone());
            }
        }
    }
    report(missing.into_iter().map(|(name, place)| format!("{place}: there is no alert {name}")).collect());
}

#[test]
fn variables_are_put_in_place_as_grafana_does() {
    let values = [("job", "a"), ("n", "5")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let text = "topk($n, rate(x{job=~\"${job:regex}\",y=\"$\"}[$__rate_interval])) > $__range_s + $unknown";
    assert_eq!(concrete(text, &values), "topk(5, rate(x{job=~\"a\",y=\"$\"}[607s])) > 3600 + $unknown");
    assert_eq!(variables_in("$job ${gpu:raw} $__range {{x}} $$"), ["gpu", "job"].map(str::to_owned).into());
    assert_eq!(
        variables_of_link("/d/x?var-gpu=1&${__url_time_range}&var-job=$job"),
        ["gpu", "job"].map(str::to_owned).into()
    );
}

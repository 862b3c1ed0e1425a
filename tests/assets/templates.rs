//! The templates in annotations: what they ask Prometheus for, what they say of the value, and the links that they make.

use std::collections::{BTreeMap, BTreeSet};

use super::promql::{Reader, parse};
use super::vocabulary::Vocabulary;
use super::{files, report};

/// Alerts on a state: it is there or not, so that its value is 1 or 0 whenever the alert fires and means nothing.
const STATES: &[&str] = &[
    "GpuAllocatedUntouched",
    "GpuCanaryWrongResult",
    "GpuDriverLoaded",
    "GpuDriverMismatch",
    "GpuDriverPausedLong",
    "GpuFabricDegraded",
    "GpuMaintenanceWindow",
    "GpuNodeDrained",
    "GpuOwnerGpuFailed",
    "GpuTopologyChanged",
    "GpuTrainingWindow",
    "GpuWatchdog",
    "GpuWindowTooLong",
];
/// The text in the place of a label's value where a query is parsed: no list of known values can have it.
const ANY: &str = "\"*\"";

/// One query in a template: its text, and what is put in.
struct Query {
    text: String,
    arguments: Vec<String>,
}

/// The actions of a template: the texts between `{{` and `}}`.
fn actions(text: &str) -> impl Iterator<Item = &str> {
    text.split("{{").skip(1).filter_map(|rest| rest.split_once("}}").map(|(action, _)| action.trim()))
}

/// A string of Go at the start of a text, and what comes after it.
fn string_of_go(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut escaped = false;
    for (at, c) in text.strip_prefix('"')?.char_indices() {
        match c {
            _ if escaped => {
                out.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return Some((out, &text[at + 2..])),
            _ => out.push(c),
        }
    }
    None
}

/// The query of an action, if it asks for one.
fn query(action: &str) -> Option<Result<Query, String>> {
    let words = action.trim_start_matches('-').trim_start();
    let rest = ["range", "with", "if", "$"].iter().find_map(|word| words.strip_prefix(word)).unwrap_or(words);
    let rest = rest.split_once("query ").filter(|(before, _)| !before.contains('"'))?.1.trim_start();
    let unclear = || Err(format!("cannot be read: {action}"));
    let Some(rest) = rest.strip_prefix("(printf ") else {
        return Some(
            string_of_go(rest).map_or_else(unclear, |(text, _)| Ok(Query { text, arguments: Vec::new() })),
        );
    };
    let Some((format, rest)) = string_of_go(rest.trim_start()) else { return Some(unclear()) };
    let Some((arguments, _)) = rest.split_once(')') else { return Some(unclear()) };
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    let verbs = format.matches('%').count();
    if format.matches("%q").count() != verbs || verbs != arguments.len() {
        return Some(Err(format!(
            "{verbs} values, {} are given, or one is not %q: {format}",
            arguments.len()
        )));
    }
    Some(Ok(Query { text: format.replace("%q", ANY), arguments }))
}

/// Every query that an annotation asks, with its alert.
pub fn queries() -> Vec<(String, String)> {
    let of = |(_, name, rule): (String, String, files::Rule)| {
        let asked = rule.annotations.values().flat_map(|text| actions(text).filter_map(query)).flatten();
        asked.map(|query| (name.clone(), query.text)).collect::<Vec<_>>()
    };
    files::alerts().into_iter().flat_map(of).collect()
}

/// Labels that a template asks for as `.Labels.x`, which are the alert's outside a query, and the query's within.
fn dotted_labels(text: &str) -> BTreeSet<String> {
    let parts = text.split(".Labels.").skip(1);
    parts.map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn every_name_in_a_query_of_an_annotation_exists() {
    let vocabulary = Vocabulary::new();
    let mut problems = Vec::new();
    for (file, name, rule) in files::alerts() {
        let own = parse(&rule.expr).ok().and_then(|expr| Reader::new(&vocabulary).labels(&expr));
        for (annotation, text) in &rule.annotations {
            let mut wrong = |what: String| problems.push(format!("{file}: {name}: {annotation}: {what}"));
            let mut known = own.clone();
            for asked in actions(text).filter_map(query) {
                let asked = match asked {
                    Ok(asked) => asked,
                    Err(what) => {
                        wrong(what);
                        continue;
                    }
                };
                for argument in &asked.arguments {
                    let label = argument.rsplit('.').next().unwrap_or_default();
                    if own.as_ref().is_some_and(|own| !own.contains(label)) {
                        wrong(format!("{argument} is no label of the alert"));
                    }
                }
                match parse(&asked.text) {
                    Err(error) => wrong(format!("cannot be parsed: {error}\n    {}", asked.text)),
                    Ok(expr) => {
                        let mut reader = Reader::new(&vocabulary);
                        let labels = reader.labels(&expr);
                        reader.problems.iter().for_each(|what| wrong(what.clone()));
                        known = known.zip(labels).map(|(a, b)| a.union(&b).cloned().collect());
                    }
                }
            }
            let Some(known) = known else { continue };
            for label in dotted_labels(text).difference(&known) {
                wrong(format!("speaks of the label {label}, which neither the alert nor its queries have"));
            }
        }
    }
    report(problems);
}

#[test]
fn descriptions_tell_the_value() {
    let mut problems = Vec::new();
    let mut states: BTreeSet<&str> = STATES.iter().copied().collect();
    let mut shown: BTreeMap<String, (String, bool)> = BTreeMap::new();
    for (file, name, rule) in files::alerts() {
        let description = rule.annotations.get("description").map_or("", |text| text.as_str());
        let tells = actions(description).any(|action| action.contains("$value") || action.contains(".Value"));
        // Of an alert with several rules, some are states.
        shown.entry(name).or_insert((file, false)).1 |= tells;
    }
    for (name, (file, shown)) in shown {
        match (states.remove(name.as_str()), shown) {
            (false, false) => {
                problems.push(format!("{file}: {name}: the description does not tell the value"))
            }
            (true, true) => {
                problems.push(format!("{file}: {name}: tells its value, and is listed as a state"))
            }
            _ => {}
        }
    }
    problems.extend(states.iter().map(|name| format!("there is no alert {name}")));
    report(problems);
}

/// Actions within addresses that put something in without making it fit for one.
fn unfit_in_addresses(text: &str) -> Vec<&str> {
    let mut unfit = Vec::new();
    for mut rest in text.split("://").skip(1) {
        // The address ends with the first space outside of actions.
        while let Some(at) = rest.find("{{").filter(|at| !rest[..*at].contains(char::is_whitespace)) {
            let Some((action, after)) = rest[at + 2..].split_once("}}") else { break };
            if !action.trim().ends_with("| urlquery") {
                unfit.push(action.trim());
            }
            rest = after;
        }
    }
    unfit
}

#[test]
fn links_hold_with_any_label() {
    let mut problems = Vec::new();
    for (file, name, rule) in files::alerts() {
        for (annotation, text) in &rule.annotations {
            for action in unfit_in_addresses(text) {
                problems.push(format!(
                    "{file}: {name}: {annotation}: {action} goes into a link without urlquery"
                ));
            }
            if text.contains("=\"{{") || text.contains("=~\"{{") {
                problems.push(format!(
                    "{file}: {name}: {annotation}: a label goes into a query without printf %q"
                ));
            }
        }
    }
    report(problems);
}

#[test]
fn templates_are_read_as_prometheus_does() {
    let read =
        |action: &str| query(action).map(|asked| asked.map(|asked| (asked.text, asked.arguments.join(" "))));
    let ok = |text: &str, arguments: &str| Some(Ok((text.to_owned(), arguments.to_owned())));
    assert_eq!(
        read(r#"- range query (printf "a{b=%q,c=\"d\"} > 0" .Labels.b)"#),
        ok(r#"a{b="*",c="d"} > 0"#, ".Labels.b")
    );
    assert_eq!(read(r#"with query "up == 0""#), ok("up == 0", ""));
    assert_eq!(read("$value | humanize"), None);
    assert!(read(r#"range query (printf "a{b=\"%s\"}" .Labels.b)"#).is_some_and(|asked| asked.is_err()));
    assert!(read(r#"range query (printf "a{b=%q}")"#).is_some_and(|asked| asked.is_err()));
    assert_eq!(
        unfit_in_addresses("https://x/{{ $labels.a | urlquery }}&b={{ $labels.b }} {{ $value }}"),
        ["$labels.b"]
    );
    assert_eq!(unfit_in_addresses("see http://x and {{ $labels.b }}"), Vec::<&str>::new());
    assert_eq!(
        dotted_labels("{{ .Labels.a_b }} $labels.c .Labels.d}}"),
        ["a_b", "d"].map(str::to_owned).into()
    );
}

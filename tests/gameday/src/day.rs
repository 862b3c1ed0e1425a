//! A healthy day: minutes of a simulated node at work, made into 24 hours and given to Prometheus, before which no alert
//! may fire: by range queries of every expression, and by promtool's own evaluation of the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::get;
use crate::incident::{self, Incident};
use crate::node::Node;
use crate::play::unix_seconds;
use crate::record::{blocks, promtool};
use crate::servers::{Prometheus, tool};
use crate::tape::{Day, STEP, Tape};
use crate::{DayArguments, Fallible, Folder, repository, rules, wait_until};

const HOURS: u64 = 24;
/// Labels of the scrape.
const SCRAPE: &str = "cluster=\"hall-1\",job=\"gpu-node-exporter\",instance=\"healthy\"";
/// Those that must fire: they show that alerts are evaluated.
const FIRE: [&str; 1] = ["GpuWatchdog"];

/// A rule as Prometheus tells it.
struct Rule {
    name: String,
    expr: String,
    labels: Value,
    lasts: u64,
}

/// Plays it; gives whether no alert fired.
pub fn run(program: &Path, alerts: &Path, arguments: &DayArguments) -> Fallible<bool> {
    let folder = Folder::new(arguments.keep)?;
    let dir = &folder.0;
    let mut files = rules::files(alerts)?;
    files.extend(rules::files(&alerts.join("optional"))?);
    let tape = record(program, dir, arguments.minutes)?;
    let server = dir.join("prometheus");
    fs::create_dir_all(server.join("data"))?;
    let prometheus = Prometheus::start(&server, &[], &files, ("1m", "1h"), None)?;
    let (recorded, alerting) = (rules_of(&prometheus, "record")?, rules_of(&prometheus, "alert")?);
    drop(prometheus);
    let used: BTreeSet<String> =
        recorded.iter().chain(&alerting).flat_map(|rule| words(&rule.expr)).collect();
    let to = unix_seconds() / STEP * STEP;
    let from = to - HOURS * 3600;
    let mut day = tape.day(from, HOURS * 3600, &used);
    day.constant("up", 1.0);
    let (series, samples) = day.size();
    println!("{HOURS} h of {series} series that rules ask for, {samples} samples, one each {STEP} s");

    let text = dir.join("day.om");
    fs::write(&text, day.openmetrics(SCRAPE))?;
    let started = Instant::now();
    blocks(&text, &server.join("data"))?;
    println!("given to Prometheus in {:.0} s", started.elapsed().as_secs_f64());
    let queried = queried(&server, &recorded, &alerting, from, to)?;
    let tested = tested(dir, &files, &day)?;
    for (name, where_from) in
        queried.iter().map(|n| (n, "range query")).chain(tested.iter().map(|n| (n, "test of rules")))
    {
        println!("FIRES on a healthy day: {name} ({where_from})");
    }
    println!("{} alerts, {} of them fire", alerting.len() - FIRE.len(), queried.union(&tested).count());
    Ok(queried.is_empty() && tested.is_empty())
}

/// Reads the pages of the healthy node of the game for some minutes.
fn record(program: &Path, dir: &Path, minutes: u64) -> Fallible<Tape> {
    let all = incident::read(&repository().join("tests/gameday/incidents.toml"))?;
    let healthy: &Incident =
        all.iter().find(|incident| incident.name == "healthy").ok_or("no incident healthy")?;
    let node = Node::start(program, dir, "healthy", healthy, 1)?;
    node.wait_ready()?;
    // What is read once a minute is there then.
    let mut next = Instant::now() + Duration::from_secs(STEP);
    let mut tape = Tape::default();
    for _ in 0..minutes {
        wait_until(next);
        next += Duration::from_secs(STEP);
        tape.add(unix_seconds() as f64, &get(node.port, "/metrics")?);
    }
    Ok(tape)
}

fn rules_of(prometheus: &Prometheus, kind: &str) -> Fallible<Vec<Rule>> {
    let read = |rule: &Value| {
        Some(Rule {
            name: rule["name"].as_str()?.to_owned(),
            expr: rule["query"].as_str()?.to_owned(),
            labels: rule["labels"].clone(),
            lasts: rule["duration"].as_f64().unwrap_or(0.0) as u64,
        })
    };
    Ok(prometheus.rules(kind)?.iter().filter_map(read).collect())
}

/// All that could be the name of a metric.
fn words(expr: &str) -> BTreeSet<String> {
    let separate = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    expr.split(separate).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Alerts whose expression holds for as long as they wait, by range queries over the day.
fn queried(
    server: &Path,
    recorded: &[Rule],
    alerting: &[Rule],
    from: u64,
    to: u64,
) -> Fallible<BTreeSet<String>> {
    let started = Instant::now();
    let levels = levels(recorded);
    for (n, level) in levels.iter().enumerate() {
        // Restarted for each level, so that it knows the blocks of the last.
        let prometheus = Prometheus::start(server, &[], &[], ("1m", "1h"), None)?;
        let file = server.join(format!("level-{n}.yml"));
        let rules: Vec<Value> = level
            .iter()
            .map(|rule| json!({ "record": rule.name, "expr": rule.expr, "labels": rule.labels }))
            .collect();
        let groups =
            json!({ "groups": [{ "name": "level", "interval": format!("{STEP}s"), "rules": rules }] });
        // JSON is YAML.
        fs::write(&file, groups.to_string())?;
        promtool(
            Command::new(tool("PROMTOOL", "promtool"))
                .args(["tsdb", "create-blocks-from", "rules", "--quiet"])
                .arg(format!("--url=http://127.0.0.1:{}", prometheus.port))
                .args([format!("--start={from}"), format!("--end={to}"), format!("--eval-interval={STEP}s")])
                .arg(format!("--output-dir={}", server.join("data").display()))
                .arg(&file),
        )?;
    }
    let prometheus = Prometheus::start(server, &[], &[], ("1m", "1h"), None)?;
    println!("{} recording rules over the day in {:.0} s", recorded.len(), started.elapsed().as_secs_f64());
    let there = format!("count_over_time(gpu_up[{HOURS}h]) > {}", HOURS * 3600 / STEP * 9 / 10);
    if prometheus.query_range(&there, to, to, STEP)?.is_empty() {
        return Err("the day is not in Prometheus".into());
    }
    if prometheus.query_range("count({__name__=~\".+:.+\"}) > 0", to - 3600, to, STEP)?.is_empty() {
        return Err("no recording rule has recorded the day".into());
    }
    let mut fire = BTreeSet::new();
    let started = Instant::now();
    for rule in alerting {
        for series in prometheus.query_range(&rule.expr, from, to, STEP)? {
            let points = series["values"].as_array().map(Vec::as_slice).unwrap_or_default();
            let times: Vec<u64> =
                points.iter().filter_map(|point| point[0].as_f64()).map(|t| t as u64).collect();
            if lasts(&times) >= rule.lasts {
                fire.insert(rule.name.clone());
            }
        }
    }
    println!(
        "{} alert expressions over the day in {:.0} s",
        alerting.len() - FIRE.len(),
        started.elapsed().as_secs_f64()
    );
    match FIRE.into_iter().find(|name| !fire.remove(*name)) {
        Some(name) => Err(format!("{name} must hold all day, and does not: is anything evaluated?").into()),
        None => Ok(fire),
    }
}

/// The longest time without a break, in seconds.
fn lasts(times: &[u64]) -> u64 {
    let mut longest = 0;
    let mut since = None;
    let mut last = 0;
    for time in times {
        let from = since.filter(|_| *time == last + STEP).unwrap_or(*time);
        since = Some(from);
        last = *time;
        longest = longest.max(time - from);
    }
    longest
}

/// Recording rules in the order in which they need each other. One that reads itself reads its past.
fn levels(rules: &[Rule]) -> Vec<Vec<&Rule>> {
    let names: BTreeSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let needs: BTreeMap<&str, BTreeSet<String>> = rules.iter().fold(BTreeMap::new(), |mut all, rule| {
        let mut needed = words(&rule.expr);
        needed.retain(|word| names.contains(word.as_str()) && *word != rule.name);
        all.entry(rule.name.as_str()).or_insert_with(BTreeSet::new).extend(needed);
        all
    });
    let mut levels: Vec<Vec<&Rule>> = Vec::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    while done.len() < names.len() {
        let ready =
            |name: &&str| !done.contains(name) && needs[*name].iter().all(|n| done.contains(n.as_str()));
        let mut next: BTreeSet<&str> = names.iter().copied().filter(|name| ready(name)).collect();
        if next.is_empty() {
            // Two that read each other's past: together, then.
            next = names.difference(&done).copied().collect();
        }
        levels.push(rules.iter().filter(|rule| next.contains(rule.name.as_str())).collect());
        done.extend(next);
    }
    levels
}

/// Alerts that fire when promtool evaluates all rules over the day.
fn tested(dir: &Path, files: &[PathBuf], day: &Day) -> Fallible<BTreeSet<String>> {
    let started = Instant::now();
    let mut text = String::from("rule_files:\n");
    for file in files {
        writeln!(text, "  - '{}'", file.display())?;
    }
    write!(
        text,
        "evaluation_interval: {STEP}s\ntests:\n  - interval: {STEP}s\n    input_series:\n{}    promql_expr_test:\n",
        day.test_series(SCRAPE)
    )?;
    let minutes = HOURS * 3600 / STEP;
    let fire = FIRE.join("|");
    write!(
        text,
        "      - expr: count by (alertname) (count_over_time(ALERTS{{alertname=~\"{fire}\",alertstate=\"firing\"}}[{HOURS}h]) > {})\n        \
         eval_time: {HOURS}h\n        exp_samples:\n",
        minutes * 9 / 10
    )?;
    for name in FIRE {
        writeln!(text, "          - {{labels: '{{alertname=\"{name}\"}}', value: 1}}")?;
    }
    write!(
        text,
        "      - expr: count by (alertname) (count_over_time(ALERTS{{alertname!~\"{fire}\",alertstate=\"firing\"}}[{HOURS}h]))\n        \
         eval_time: {HOURS}h\n        exp_samples: []\n"
    )?;
    let file = dir.join("day.test.yml");
    fs::write(&file, text)?;
    let said = promtool(Command::new(tool("PROMTOOL", "promtool")).args(["test", "rules"]).arg(&file));
    println!("promtool test rules over the day in {:.0} s", started.elapsed().as_secs_f64());
    let Err(why) = said else { return Ok(BTreeSet::new()) };
    let why = why.to_string();
    let names: BTreeSet<String> = why
        .match_indices("alertname=\"")
        .filter_map(|(at, found)| why[at + found.len()..].split('"').next())
        .filter(|name| !name.is_empty() && !FIRE.contains(name) && !name.contains('\\'))
        .map(str::to_owned)
        .collect();
    if names.is_empty() { Err(why.into()) } else { Ok(names) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stand_after_those_that_they_read() {
        let rule = |name: &str, expr: &str| Rule {
            name: name.into(),
            expr: expr.into(),
            labels: Value::Null,
            lasts: 0,
        };
        let rules =
            [rule("c:x", "b:x + a:x"), rule("a:x", "up or last_over_time(a:x[1h])"), rule("b:x", "sum(a:x)")];
        let names: Vec<Vec<&str>> = levels(&rules)
            .iter()
            .map(|level| level.iter().map(|rule| rule.name.as_str()).collect())
            .collect();
        assert_eq!(names, [["a:x"], ["b:x"], ["c:x"]]);
    }

    #[test]
    fn a_break_begins_a_new_time() {
        assert_eq!(lasts(&[0, 60, 120, 300, 360]), 120);
        assert_eq!(lasts(&[60]), 0);
        assert_eq!(lasts(&[]), 0);
    }
}

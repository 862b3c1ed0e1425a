//! When each alert of a scenario starts and ends: promtool evaluates the rules over all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Fallible;
use crate::scenario::{Scenario, seconds};
use crate::servers::tool;

/// An alert that starts to fire, or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Seconds from the scenario's start.
    pub at: u64,
    /// All labels of the alert.
    pub labels: BTreeMap<String, String>,
    /// Whether it starts.
    pub starts: bool,
}

/// What the rules read: every word in them, which is more than the names of metrics.
pub fn used(files: &[PathBuf]) -> Fallible<BTreeSet<String>> {
    let mut used = BTreeSet::from(["up".to_owned()]);
    for file in files {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
        used.extend(words.filter(|word| word.len() > 2).map(str::to_owned));
    }
    Ok(used)
}

/// Seconds between two evaluations of each alert.
pub fn intervals(files: &[PathBuf]) -> Fallible<BTreeMap<String, u64>> {
    let mut intervals = BTreeMap::new();
    for file in files {
        let mut interval = 0;
        for line in fs::read_to_string(file)?.lines().map(str::trim) {
            if line.starts_with("- name:") {
                interval = 0;
            } else if let Some(every) = line.strip_prefix("interval:") {
                interval = seconds(every.trim())?;
            } else if let Some(name) = line.strip_prefix("- alert:") {
                intervals.insert(name.trim().to_owned(), interval);
            }
        }
    }
    Ok(intervals)
}

/// Evaluates the rules over the scenario; gives what starts and what ends, in order of time.
pub fn edges(dir: &Path, files: &[PathBuf], page: &str, scenario: &Scenario) -> Fallible<Vec<Edge>> {
    let step = scenario.step()?;
    let lasts = seconds(&scenario.lasts)?;
    let mut text = String::from("rule_files:\n");
    for file in files {
        writeln!(text, "  - '{}'", file.display())?;
    }
    write!(
        text,
        "evaluation_interval: {step}s\ntests:\n  - interval: {step}s\n    input_series:\n{}    promql_expr_test:\n",
        scenario.input(page, &used(files)?)?
    )?;
    // A difference between two evaluations fails its test, and promtool prints the series.
    let now = "ALERTS{alertstate=\"firing\",alertname!=\"GpuWatchdog\"}";
    let before = format!("{now} offset {step}s");
    for at in (0..=lasts).step_by(step as usize) {
        writeln!(
            text,
            "      - {{expr: 'label_replace({now} unless {before}, \"edge\", \"starts\", \"\", \"\") or \
             label_replace({before} unless {now}, \"edge\", \"ends\", \"\", \"\")', eval_time: {at}s}}"
        )?;
    }
    let file = dir.join(format!("{}.test.yml", scenario.name));
    fs::write(&file, text)?;
    let output = Command::new(tool("PROMTOOL", "promtool"))
        .args(["test", "rules"])
        .arg(&file)
        // Much garbage, little memory: fewer collections take half of the time.
        .env("GOGC", "400")
        .output()
        .map_err(|e| format!("promtool does not start: {e}"))?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // A rule that fails would leave its alerts out.
    if said.contains("err: ") || (!output.status.success() && !said.contains("got:")) {
        let line = said.lines().find(|line| line.contains("err: ")).unwrap_or(&said);
        return Err(format!("{}: promtool: {}", scenario.name, line.trim()).into());
    }
    later(read(&said)?, &intervals(files)?)
}

/// Reads what promtool printed of the failed tests.
fn read(said: &str) -> Fallible<Vec<Edge>> {
    let mut edges = Vec::new();
    let mut at = None;
    for line in said.lines() {
        if let Some((_, time)) = line.split_once(", time: ") {
            at = Some(seconds(time.trim_end_matches([',', ' ']))?);
        }
        let Some(series) = line.trim_start().strip_prefix("got:") else { continue };
        let at = at.take().ok_or_else(|| format!("{line}: at no time"))?;
        let mut rest = series.trim().trim_matches('"');
        // As JSON text where promtool quotes the line.
        let plain = rest.replace("\\\"", "\"");
        rest = &plain;
        while let Some((_, after)) = rest.split_once('{') {
            let mut labels = BTreeMap::new();
            let mut left = after;
            while let Some((name, value)) = left.split_once("=\"") {
                let (value, next) = value.split_once('"').ok_or("a label without an end")?;
                labels.insert(name.trim_matches([',', ' ']).to_owned(), value.to_owned());
                left = next;
                if left.starts_with('}') {
                    break;
                }
            }
            rest = left;
            let starts = labels.remove("edge").ok_or("neither a start nor an end")? == "starts";
            labels.remove("alertstate");
            labels.remove("__name__");
            edges.push(Edge { at, labels, starts });
        }
    }
    Ok(edges)
}

/// promtool evaluates every rule at each step. Prometheus evaluates an alert with its group, and notices a start and
/// an end then.
fn later(edges: Vec<Edge>, intervals: &BTreeMap<String, u64>) -> Fallible<Vec<Edge>> {
    let mut later = Vec::new();
    for edge in edges {
        let name = edge.labels.get("alertname").ok_or("an alert without a name")?;
        let interval = intervals.get(name).copied().unwrap_or(0).max(1);
        later.push(Edge { at: edge.at.next_multiple_of(interval), ..edge });
    }
    later.sort_by_key(|edge| edge.at);
    Ok(later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_read_from_what_promtool_prints() {
        let said = "Unit Testing:  a\n  FAILED:\n    expr: \"label_replace\", time: 1h30m0s,\n        exp:\"nil\"\n        \
                    got:\"{alertname=\\\"A\\\", alertstate=\\\"firing\\\", edge=\\\"starts\\\", gpu=\\\"0\\\"} 1E+00, {alertname=\\\"B\\\", edge=\\\"ends\\\"} 1E+00\"\n";
        let edges = read(said).unwrap();
        let of = |at: usize| (edges[at].at, edges[at].labels["alertname"].as_str(), edges[at].starts);
        assert_eq!((of(0), of(1)), ((5400, "A", true), (5400, "B", false)));
        assert_eq!(edges[0].labels.len(), 2);
        assert_eq!(edges.len(), 2);
        let plain = said.replace("\\\"", "\"").replace("got:\"", "got: ");
        assert_eq!(read(&plain).unwrap(), edges);
    }

    #[test]
    fn an_alert_waits_for_the_evaluation_of_its_group() {
        let edge = |at: u64, name: &str| Edge {
            at,
            labels: [("alertname".into(), name.into())].into(),
            starts: true,
        };
        let edges = later(vec![edge(15, "A"), edge(30, "B")], &[("A".to_owned(), 300)].into()).unwrap();
        assert_eq!(edges, [edge(30, "B"), edge(300, "A")]);
    }
}

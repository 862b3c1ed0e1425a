//! Notifications of scenarios of hours and days. promtool gives when alerts start and end, and a real Alertmanager gets them
//! with all times, its own and theirs, divided by a factor. The times of its notifications are multiplied by the factor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::edges::{self, Edge};
use crate::http::{Notification, Receiver, post};
use crate::scenario::{self, Expected, Scenario, seconds};
use crate::servers::Alertmanager;
use crate::{Fallible, Folder, NotificationsArguments, repository, rules, wait_until};

/// The set-ups: their names and their configurations.
const SETUPS: [(&str, &str); 2] =
    [("small fleet", "alertmanager.yml"), ("large fleet", "alertmanager.fleet.yml")];
/// Processes of promtool at a time.
const EVALUATIONS: usize = 2;
/// Factors: a scenario gets the smallest by which it lasts no longer than asked for.
const FACTORS: [u64; 7] = [30, 60, 120, 300, 600, 1200, 3000];

/// A notification about a scenario, in its own time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Seconds from the scenario's start.
    pub at: u64,
    /// The receiver.
    pub receiver: String,
    /// Names of the alerts that fire; none: all are over.
    pub firing: BTreeSet<String>,
}

/// What came of a scenario in one set-up.
struct Row<'a> {
    scenario: &'a Scenario,
    setup: &'static str,
    received: Vec<Received>,
    expected: &'a [Expected],
    wrong: Vec<String>,
}

/// A scenario, its alerts and the factor of its time.
struct Evaluated<'a> {
    scenario: &'a Scenario,
    edges: Vec<Edge>,
    factor: u64,
    /// Why the rules were not evaluated.
    failed: Option<String>,
}

/// Plays the scenarios; gives whether all notifications are as they must be.
pub fn run(alerts: &Path, arguments: &NotificationsArguments) -> Fallible<bool> {
    let all = scenario::read(&repository().join("tests/gameday/notifications.toml"))?;
    if let Some(name) = arguments.only.iter().find(|name| !all.iter().any(|one| one.name == **name)) {
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        return Err(format!("no scenario {name}; there are: {}", names.join(", ")).into());
    }
    let wanted = |one: &&Scenario| arguments.only.is_empty() || arguments.only.contains(&one.name);
    let scenarios: Vec<&Scenario> = all.iter().filter(wanted).collect();
    let page = fs::read_to_string(repository().join("tests/e2e/golden/still-h100.prom"))?;
    let folder = Folder::new(arguments.keep)?;
    // The optional files are about series of other exporters.
    let files = rules::files(alerts)?;
    let rows = play(&folder.0, alerts, &files, &page, &scenarios, arguments.seconds)?;
    print!("\n{}", text(&rows));
    if let Some(path) = &arguments.markdown {
        fs::write(path, markdown(&rows)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let wrong: BTreeSet<&str> =
        rows.iter().filter(|row| !row.wrong.is_empty()).map(|row| row.scenario.name.as_str()).collect();
    println!("{} scenarios, {} of them not as they must be", scenarios.len(), wrong.len());
    Ok(wrong.is_empty())
}

/// Evaluates and plays, both set-ups at a time.
fn play<'a>(
    dir: &Path,
    alerts: &Path,
    files: &[PathBuf],
    page: &str,
    scenarios: &[&'a Scenario],
    at_most: u64,
) -> Fallible<Vec<Row<'a>>> {
    let evaluated = evaluate(dir, files, page, scenarios, at_most)?;
    let factors: BTreeSet<u64> = evaluated.iter().map(|one| one.factor).collect();
    let played = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for &factor in &factors {
            for (setup, config) in SETUPS {
                let (evaluated, played) = (&evaluated, &played);
                running.push(scope.spawn(move || -> Result<(), String> {
                    let here: Vec<&Evaluated<'_>> =
                        evaluated.iter().filter(|one| one.factor == factor).collect();
                    let dir = dir.join(format!("{config}-{factor}"));
                    let received =
                        through(&dir, &alerts.join(config), factor, &here).map_err(|why| why.to_string())?;
                    let mut played = played.lock().unwrap_or_else(PoisonError::into_inner);
                    for (one, received) in here.iter().zip(received) {
                        played.insert((one.scenario.name.as_str(), setup), received);
                    }
                    Ok(())
                }));
            }
        }
        running.into_iter().try_for_each(|one| one.join().map_err(|_| "a play panicked".to_owned())?)
    })?;
    let mut played = played.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut rows = Vec::new();
    for one in &evaluated {
        for (setup, _) in SETUPS {
            let received = played.remove(&(one.scenario.name.as_str(), setup)).unwrap_or_default();
            let expected = if setup == SETUPS[0].0 { &one.scenario.small } else { &one.scenario.fleet };
            let cause = seconds(&one.scenario.cause)?;
            let mut received = received;
            if one.scenario.faults_before {
                received.retain(|one| one.at >= cause);
            }
            let mut wrong = judge(expected, &received, cause, one.factor)?;
            wrong.extend(one.failed.clone());
            rows.push(Row { scenario: one.scenario, setup, received, expected, wrong });
        }
    }
    Ok(rows)
}

/// Evaluates the rules over all scenarios, the longest files last.
fn evaluate<'a>(
    dir: &Path,
    files: &[PathBuf],
    page: &str,
    scenarios: &[&'a Scenario],
    at_most: u64,
) -> Fallible<Vec<Evaluated<'a>>> {
    let left = Mutex::new(scenarios.iter().rev().copied().collect::<Vec<_>>());
    let work = || {
        let mut done = Vec::new();
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(scenario) = next else { return done };
            let started = Instant::now();
            let edges = edges::edges(dir, files, page, scenario).map_err(|why| why.to_string());
            println!(
                "{:>4.0} s  rules over {} of {}",
                started.elapsed().as_secs_f64(),
                scenario.lasts,
                scenario.name
            );
            for edge in edges.iter().flatten() {
                println!("        {}", line(edge));
            }
            done.push((scenario, edges));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..EVALUATIONS).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().map(|worker| worker.join().map_err(|_| "an evaluation panicked"));
        done.collect::<Result<Vec<_>, _>>()
    })?
    .concat();
    all.sort_by_key(|(scenario, _)| scenarios.iter().position(|one| one.name == scenario.name));
    let mut evaluated = Vec::new();
    for (scenario, edges) in all {
        let failed = edges.as_ref().err().cloned();
        let edges = edges.unwrap_or_default();
        let span = span(scenario, &edges)?;
        let factor = FACTORS.into_iter().find(|factor| span / factor <= at_most);
        let factor = factor.ok_or_else(|| format!("{}: {span} s are too long to play", scenario.name))?;
        evaluated.push(Evaluated { scenario, edges, factor, failed });
    }
    Ok(evaluated)
}

/// From the first edge to the end of the scenario.
fn span(scenario: &Scenario, edges: &[Edge]) -> Fallible<u64> {
    let lasts = seconds(&scenario.lasts)?;
    Ok(edges.first().map_or(0, |first| lasts.saturating_sub(first.at)))
}

/// An edge for people: its time, and the labels that are not those of the target alone.
fn line(edge: &Edge) -> String {
    let known = ["alertname", "cluster", "job", "zone", "team", "component", "uuid"];
    let rest = edge.labels.iter().filter(|(name, _)| !known.contains(&name.as_str()));
    let rest: Vec<String> = rest.map(|(name, value)| format!("{name}={value}")).collect();
    let what = if edge.starts { "starts" } else { "ends" };
    format!("{:>6} s  {} {what} ({})", edge.at, edge.labels["alertname"], rest.join(" "))
}

/// Sends the edges of scenarios of one factor through one Alertmanager; gives the notifications of each.
fn through(
    dir: &Path,
    config: &Path,
    factor: u64,
    scenarios: &[&Evaluated<'_>],
) -> Fallible<Vec<Vec<Received>>> {
    fs::create_dir_all(dir)?;
    let text = fs::read_to_string(config).map_err(|e| format!("{}: {e}", config.display()))?;
    let divided = dir.join("divided.yml");
    fs::write(&divided, shorter(&text, factor))?;
    let receiver = Receiver::start()?;
    let alertmanager = Alertmanager::start(dir, &divided, receiver.port())?;
    // All scenarios begin with their first edge, and at the same time.
    let mut due: Vec<(u64, &Edge)> = Vec::new();
    let mut end = 0;
    for Evaluated { scenario, edges, .. } in scenarios {
        let first = edges.first().map_or(0, |edge| edge.at);
        due.extend(edges.iter().map(|edge| (edge.at - first, edge)));
        end = end.max(span(scenario, edges)?);
    }
    due.sort_by_key(|(at, _)| *at);
    let started = Instant::now();
    let real = |at: u64| started + Duration::from_millis(at * 1000 / factor);
    let mut since: BTreeMap<&BTreeMap<String, String>, String> = BTreeMap::new();
    for together in due.chunk_by(|(one, _), (next, _)| one == next) {
        wait_until(real(together[0].0));
        let now = rfc3339(SystemTime::now());
        let mut alerts = Vec::new();
        for (_, edge) in together {
            if edge.starts {
                since.insert(&edge.labels, now.clone());
                alerts.push(json!({ "labels": edge.labels, "startsAt": now }));
            } else if let Some(started) = since.remove(&edge.labels) {
                alerts.push(json!({ "labels": edge.labels, "startsAt": started, "endsAt": now }));
            }
        }
        post(alertmanager.port, "/api/v2/alerts", &Value::Array(alerts))?;
    }
    wait_until(real(end));
    let all = receiver.all();
    Ok(scenarios.iter().map(|one| received(one, &all, started, factor)).collect())
}

/// The notifications about one scenario, whose label `cluster` is its name.
fn received(one: &Evaluated<'_>, all: &[Notification], started: Instant, factor: u64) -> Vec<Received> {
    let first = one.edges.first().map_or(0, |edge| edge.at);
    let about = |notification: &&Notification| {
        notification.alerts.iter().any(|alert| alert.label("cluster") == one.scenario.name)
    };
    let own = |notification: &Notification| {
        let real = notification.at.saturating_duration_since(started).as_secs_f64();
        let firing = notification.alerts.iter().filter(|alert| alert.firing);
        Received {
            at: first + (real * factor as f64) as u64,
            receiver: notification.receiver.clone(),
            firing: firing.map(|alert| alert.label("alertname").to_owned()).collect(),
        }
    };
    let mut received: Vec<Received> = all.iter().filter(about).map(own).collect();
    received.sort_by_key(|one| one.at);
    received
}

/// A configuration of Alertmanager with its times divided. No alert is repeated here, so `resolve_timeout` is a day. Times of
/// the day have no place in divided time: it is always noon of a working day.
fn shorter(text: &str, factor: u64) -> String {
    let line = |line: &str| {
        let key = line.trim_start().split(':').next().unwrap_or("");
        match key {
            "group_wait" | "group_interval" | "repeat_interval" => rules::shorter(line, factor),
            "resolve_timeout" => {
                format!("{}resolve_timeout: 24h", &line[..line.len() - line.trim_start().len()])
            }
            "mute_time_intervals" => String::new(),
            _ => line.to_owned(),
        }
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

/// What is wrong with the notifications.
fn judge(expected: &[Expected], received: &[Received], cause: u64, factor: u64) -> Fallible<Vec<String>> {
    let mut wrong = Vec::new();
    for one in received {
        let alerts = || one.firing.iter().cloned().collect::<Vec<_>>().join(", ");
        if one.at < cause {
            wrong.push(format!("{} {} s before the cause: {}", one.receiver, cause - one.at, alerts()));
        } else if !expected.iter().any(|of| of.receiver == one.receiver) {
            wrong.push(format!("{} after {} s: {}", one.receiver, one.at - cause, alerts()));
        }
    }
    for Expected { receiver, notifications, alerts, within, over } in expected {
        let (firing, ends): (Vec<&Received>, Vec<&Received>) =
            received.iter().filter(|one| one.receiver == *receiver).partition(|one| !one.firing.is_empty());
        if let Some(over) = over.filter(|over| *over != ends.len()) {
            wrong.push(format!("{receiver}: {} times over instead of {over}", ends.len()));
        }
        if firing.len() != *notifications {
            wrong.push(format!("{receiver}: {} notifications instead of {notifications}", firing.len()));
        }
        let named: BTreeSet<String> = firing.iter().flat_map(|one| one.firing.clone()).collect();
        if named != *alerts {
            wrong.push(format!("{receiver}: about {}", named.into_iter().collect::<Vec<_>>().join(", ")));
        }
        // A tenth of a second of this machine.
        let limit = seconds(within)? + factor / 10;
        let late = firing.first().map(|one| one.at.saturating_sub(cause)).filter(|after| *after > limit);
        wrong.extend(late.map(|after| format!("{receiver}: after {after} s, not {within}")));
    }
    Ok(wrong)
}

/// A line for each receiver: receiver, notifications, of which the last is the end, seconds, alerts.
fn receivers(row: &Row<'_>) -> Vec<[String; 5]> {
    let mut names: Vec<&str> = Vec::new();
    for name in row
        .received
        .iter()
        .map(|one| one.receiver.as_str())
        .chain(row.expected.iter().map(|one| one.receiver.as_str()))
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let cause = seconds(&row.scenario.cause).unwrap_or_default();
    let of = |name: &&str| {
        let all: Vec<&Received> = row.received.iter().filter(|one| one.receiver == **name).collect();
        let firing: Vec<&&Received> = all.iter().filter(|one| !one.firing.is_empty()).collect();
        let alerts: BTreeSet<&str> =
            firing.iter().flat_map(|one| one.firing.iter().map(String::as_str)).collect();
        let after: Vec<String> =
            firing.iter().map(|one| (one.at as i64 - cause as i64).to_string()).collect();
        [
            (*name).to_owned(),
            firing.len().to_string(),
            (all.len() - firing.len()).to_string(),
            after.join(", "),
            alerts.into_iter().collect::<Vec<_>>().join(", "),
        ]
    };
    let lines: Vec<[String; 5]> = names.iter().map(of).collect();
    if lines.is_empty() { vec![["none", "0", "0", "–", "–"].map(str::to_owned)] } else { lines }
}

fn text(rows: &[Row<'_>]) -> String {
    let mut out = String::new();
    for row in rows {
        let _ = writeln!(out, "{} ({})", row.scenario.what, row.setup);
        for [receiver, count, over, after, alerts] in receivers(row) {
            let _ =
                writeln!(out, "    {receiver}: {count}, then {over} when over; after {after} s: {alerts}");
        }
        for wrong in &row.wrong {
            let _ = writeln!(out, "    WRONG: {wrong}");
        }
    }
    out
}

fn markdown(rows: &[Row<'_>]) -> String {
    let mut out = String::from(
        "| scenario | set-up | receiver | notifications | when over | seconds after the cause | alerts |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        for [receiver, count, over, after, alerts] in receivers(row) {
            let mark = if row.wrong.is_empty() { "" } else { " **wrong**" };
            let _ = writeln!(
                out,
                "| {}{mark} | {} | {receiver} | {count} | {over} | {after} | {alerts} |",
                row.scenario.what, row.setup
            );
        }
    }
    let mut noted = BTreeSet::new();
    for row in rows.iter().filter(|row| !row.scenario.note.is_empty()) {
        if noted.insert(&row.scenario.name) {
            let _ = writeln!(
                out,
                "{}- {}: {}.",
                if noted.len() == 1 { "\n" } else { "" },
                row.scenario.what,
                row.scenario.note
            );
        }
    }
    for row in rows {
        for wrong in &row.wrong {
            let _ = writeln!(out, "\nWrong: {} ({}): {wrong}", row.scenario.what, row.setup);
        }
    }
    out
}

/// A moment as Alertmanager reads it, in UTC.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86400, since.as_secs() % 86400);
    // Days since 1 March of the year 0, whose cycle is 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", since.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
groups:
  - name: stand-ins
    interval: 15s
    rules:
      - alert: GpuUnhealthy
        expr: gpu_up == 0
        labels: {severity: page, team: platform, component: gpu, scope: gpu, reason: lost}
      - alert: GpuTopologyChanged
        expr: count by (cluster, job, instance) (gpu_up == 1) < 2
        labels: {severity: ticket, team: platform, component: host, scope: node}
      - alert: GpuOwnerGpuFailed
        expr: gpu_up == 0
        labels: {severity: ticket, team: owner, component: owner, scope: owner, namespace: training}
      - alert: GpuExporterDown
        expr: up == 0
        for: 10m
        labels: {severity: ticket, team: platform, component: exporter, scope: node}
      - alert: GpuNodesDownMany
        expr: count by (cluster, zone, rack, job) (up == 0) >= 3
        for: 2m
        labels: {severity: page, team: platform, component: exporter, scope: rack, reason: not_scraped}
"#;

    // A busy machine is late by more than a time would allow: order and number are held here, times by the scenarios
    // that are played slowly.
    const SCENARIOS: &str = r#"
healthy = []
[[scenario]]
name = "off"
what = "a GPU off the bus"
lasts = "40m"
cause = "5m"
gpus = 2
series = ['gpu_up{gpu="1"}: 5m 0, 20m 1']
small = [
  { receiver = "platform-pager", notifications = 1, alerts = ["GpuUnhealthy"], within = "20m" },
  { receiver = "team-training", notifications = 1, alerts = ["GpuOwnerGpuFailed"], within = "20m" },
]
fleet = [
  { receiver = "remediation", notifications = 1, alerts = ["GpuUnhealthy"], within = "20m" },
  { receiver = "platform-tickets", notifications = 1, alerts = ["GpuUnhealthy"], within = "20m" },
  { receiver = "team-training", notifications = 1, alerts = ["GpuOwnerGpuFailed"], within = "20m" },
]
[[scenario]]
name = "rack"
what = "a rack without power"
lasts = "40m"
cause = "5m"
nodes = 4
gpus = 2
rack = 4
series = ['up: 5m 0, 30m 1']
small = [{ receiver = "platform-pager", notifications = 1, alerts = ["GpuNodesDownMany"], within = "20m" }]
fleet = [{ receiver = "platform-pager", notifications = 1, alerts = ["GpuNodesDownMany"], within = "20m" }]
"#;

    /// The mechanism with rules of its own: an owner beside a page, a rack in place of its nodes, and one end each.
    #[test]
    fn scenarios_come_out_of_a_real_alertmanager_as_in_real_time() {
        let dir = tempfile::tempdir().unwrap();
        let rules = dir.path().join("stand-ins.rules.yml");
        fs::write(&rules, RULES).unwrap();
        let scenarios = scenario::parse(SCENARIOS).unwrap();
        let page = "gpu_up{gpu=\"0\",uuid=\"u\"} 1\n";
        let alerts = repository().join("alerts");
        let all: Vec<&Scenario> = scenarios.iter().collect();
        let rows = play(dir.path(), &alerts, &[rules], page, &all, 10).unwrap();
        for row in &rows {
            assert!(row.wrong.is_empty(), "{}", text(&rows));
            let over: Vec<&str> = row
                .received
                .iter()
                .filter(|one| one.firing.is_empty())
                .map(|one| one.receiver.as_str())
                .collect();
            let expected: Vec<&str> = row.expected.iter().map(|one| one.receiver.as_str()).collect();
            assert_eq!(over.iter().collect::<BTreeSet<_>>(), expected.iter().collect(), "{}", text(&rows));
            assert_eq!(over.len(), expected.len(), "{}", text(&rows));
        }
        assert_eq!(rows.len(), 4);
    }

    #[test]
    fn anything_unexpected_is_wrong() {
        let one = |at: u64, receiver: &str, alert: &str| Received {
            at,
            receiver: receiver.into(),
            firing: alert.split_terminator(',').map(str::to_owned).collect(),
        };
        let expected = [Expected {
            receiver: "pager".into(),
            notifications: 1,
            alerts: ["A".to_owned()].into(),
            within: "1m".into(),
            over: Some(1),
        }];
        let wrong = |received: &[Received]| judge(&expected, received, 600, 30).unwrap();
        assert_eq!(wrong(&[one(660, "pager", "A"), one(900, "pager", "")]), [""; 0]);
        for (received, why) in [
            (vec![], "pager: 0 notifications"),
            (vec![one(660, "pager", "A")], "pager: 0 times over"),
            (vec![one(599, "pager", "A")], "pager 1 s before the cause"),
            (vec![one(664, "pager", "A")], "pager: after 64 s"),
            (vec![one(610, "pager", "A"), one(620, "pager", "A")], "pager: 2 notifications"),
            (vec![one(610, "pager", "A,B")], "pager: about A, B"),
            (vec![one(610, "pager", "A"), one(620, "tickets", "B")], "tickets after 20 s: B"),
        ] {
            assert!(
                wrong(&received).iter().any(|line| line.starts_with(why)),
                "{why}: {:?}",
                wrong(&received)
            );
        }
    }

    #[test]
    fn only_times_of_alertmanager_are_divided() {
        let text = "global:\n  resolve_timeout: 5m\nroute:\n  group_wait: 30s\n  mute_time_intervals: [a]\n  x: 5m\n";
        assert_eq!(
            shorter(text, 300),
            "global:\n  resolve_timeout: 24h\nroute:\n  group_wait: 100ms\n\n  x: 5m\n"
        );
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        let at = |seconds: u64| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56.000000000Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.000000000Z");
    }
}

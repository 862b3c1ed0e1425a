//! A game day: every incident on nodes of its own, all at the same time, before one Alertmanager.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::http::Receiver;
use crate::incident::{self, Cause, Incident};
use crate::judge::{self, Evidence, FIRST, Rule, Rules};
use crate::node::Node;
use crate::servers::{Alertmanager, Prometheus, Target};
use crate::{Fallible, Folder, PlayArguments, pause, record, repository, rules, table, wait_until};

/// Scrapes that Prometheus must have of every node before anything happens: rules that count changes need a
/// reading before the change.
const SCRAPES: u32 = 5;
/// Time for that.
const WARM_UP: Duration = Duration::from_secs(240);
/// Between two causes, so that they do not all meet the rules at the same moment of their round.
const APART: Duration = Duration::from_millis(1300);
/// How often each Prometheus scrapes and evaluates.
const REAL: (&str, &str) = ("5s", "15s");
const SCALED: (&str, &str) = ("1s", "1s");
/// The cluster of all nodes whose incident names none.
const CLUSTER: &str = "hall-1";

/// An incident that is being played.
struct Played<'a> {
    incident: &'a Incident,
    nodes: Vec<Node>,
    cause: Instant,
    /// The next step of what grows, and when it is due.
    step: (i64, Instant),
}

/// A Prometheus and the rules that it evaluates.
struct Watch {
    prometheus: Prometheus,
    rules: Rules,
}

/// Plays the incidents; gives whether all came out as they must.
pub fn play(program: &Path, alerts: &Path, arguments: &PlayArguments) -> Fallible<bool> {
    let all = incident::read(&repository().join("tests/gameday/incidents.toml"))?;
    let unknown = arguments.only.iter().find(|name| !all.iter().any(|incident| incident.name == **name));
    if let Some(name) = unknown {
        let names: Vec<&str> = all.iter().map(|incident| incident.name.as_str()).collect();
        return Err(format!("no incident {name}; there are: {}", names.join(", ")).into());
    }
    let wanted = |i: &&Incident| arguments.only.is_empty() || i.silent() || arguments.only.contains(&i.name);
    let incidents: Vec<&Incident> = all.iter().filter(wanted).collect();
    let folder = Folder::new(arguments.keep)?;
    let mut played = start(program, &folder.0, &incidents, arguments.scale)?;
    let receiver = Receiver::start()?;
    let alertmanager = Alertmanager::start(&folder.0, &alerts.join("alertmanager.yml"), receiver.port())?;
    let files = rules::files(alerts)?;
    let slow: BTreeSet<&String> = incidents.iter().filter(|i| i.scaled).flat_map(|i| &i.alerts).collect();
    let scaled_files =
        rules::scaled(&needed(&files, &slow)?, &folder.0.join("scaled-rules"), arguments.scale)?;
    let dirs = [folder.0.join("real"), folder.0.join("scaled")];
    record::hour_of_health(&dirs[0], &clusters(&incidents))?;
    let mut watches = BTreeMap::new();
    for (scaled, dir, files, every) in
        [(false, &dirs[0], &files, REAL), (true, &dirs[1], &scaled_files, SCALED)]
    {
        let targets = targets(&played, scaled);
        if !targets.is_empty() {
            let prometheus = Prometheus::start(dir, &targets, files, every, Some(alertmanager.port))?;
            let rules = alert_rules(&prometheus, if scaled { arguments.scale } else { 1 })?;
            warm_up(&prometheus, targets.len())?;
            watches.insert(scaled, Watch { prometheus, rules });
        }
    }
    println!("{} nodes are well; the incidents begin", played.iter().map(|p| p.nodes.len()).sum::<usize>());
    causes(&mut played)?;
    watch(&mut played, &receiver, &watches)?;
    let rows = rows(&played, &receiver, &watches, &rules::comments(&files)?)?;
    let fleet = fleet(&receiver);
    print!("\n{}", table::text(&rows));
    println!("\nof the fleet as a whole: {}", fleet.join(", "));
    let heartbeats = receiver.all().iter().filter(|n| n.receiver == "dead-mans-switch").count();
    println!("the dead man's switch received {heartbeats} notifications");
    if let Some(path) = &arguments.markdown {
        fs::write(path, table::markdown(&rows, arguments.scale, &fleet))
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let wrong = rows.iter().filter(|row| !row.outcome.wrong.is_empty()).count();
    println!("{} incidents, {wrong} of them not as they must be", rows.len());
    if arguments.keep {
        fs::write(folder.0.join("notifications.txt"), format!("{:#?}", receiver.all()))?;
    }
    Ok(wrong == 0 && heartbeats > 0)
}

/// The files that record series, and those with one of the alerts. With a thirtieth of its time, a rule about scrapes
/// would report each that is late.
fn needed(files: &[PathBuf], alerts: &BTreeSet<&String>) -> Fallible<Vec<PathBuf>> {
    let mut needed = Vec::new();
    for file in files {
        let here = rules::comments(std::slice::from_ref(file))?;
        if here.is_empty() || here.keys().any(|name| alerts.contains(name)) {
            needed.push(file.clone());
        }
    }
    Ok(needed)
}

/// Starts all nodes, two at a time: each takes a while of the whole machine.
fn start<'a>(
    program: &Path,
    dir: &Path,
    incidents: &[&'a Incident],
    scale: u64,
) -> Fallible<Vec<Played<'a>>> {
    let mut played = Vec::new();
    let mut waited_for = 0;
    let mut started: Vec<(usize, usize)> = Vec::new();
    for (i, incident) in incidents.iter().enumerate() {
        let scale = if incident.scaled { scale } else { 1 };
        let now = Instant::now();
        played.push(Played { incident, nodes: Vec::new(), cause: now, step: (1, now) });
        for instance in incident.instances() {
            let node = Node::start(program, dir, &instance, incident, scale)?;
            let nodes = &mut played[i].nodes;
            nodes.push(node);
            started.push((i, nodes.len() - 1));
            if started.len() - waited_for > 1 {
                let (incident, node) = started[waited_for];
                played[incident].nodes[node].wait_ready()?;
                waited_for += 1;
            }
        }
    }
    for (incident, node) in &started[waited_for..] {
        played[*incident].nodes[*node].wait_ready()?;
    }
    for one in played.iter_mut().filter(|one| one.incident.cause == Cause::Aged) {
        one.nodes.iter_mut().try_for_each(Node::age)?;
    }
    Ok(played)
}

fn clusters(incidents: &[&Incident]) -> Vec<String> {
    incidents.iter().filter(|i| !i.cluster.is_empty()).map(|i| i.cluster.clone()).collect()
}

/// What a Prometheus scrapes. Nodes that must stay silent are watched by both.
fn targets(played: &[Played<'_>], scaled: bool) -> Vec<Target> {
    let here = |p: &&Played<'_>| p.incident.scaled == scaled || p.incident.cause == Cause::Nothing;
    let of = |p: &Played<'_>| -> Vec<Target> {
        let cluster = if p.incident.cluster.is_empty() { CLUSTER } else { &p.incident.cluster };
        let target = |node: &Node| Target {
            instance: node.instance.clone(),
            cluster: cluster.to_owned(),
            port: node.port,
        };
        p.nodes.iter().map(target).collect()
    };
    played.iter().filter(here).flat_map(of).collect()
}

fn alert_rules(prometheus: &Prometheus, scale: u64) -> Fallible<Rules> {
    let mut rules = Rules::new();
    for rule in prometheus.rules("alert")? {
        let lasts = Duration::from_secs_f64(rule["duration"].as_f64().ok_or("a rule without a duration")?);
        let undivided = lasts.mul_f64(scale as f64);
        let severity = rule["labels"]["severity"].as_str().unwrap_or_default().to_owned();
        let name = rule["name"].as_str().ok_or("a rule without a name")?;
        rules.entry(name.to_owned()).or_default().push(Rule { lasts, undivided, severity });
    }
    Ok(rules)
}

fn warm_up(prometheus: &Prometheus, targets: usize) -> Fallible<()> {
    let deadline = Instant::now() + WARM_UP;
    let query = format!("count(sum_over_time(up[10m]) >= {SCRAPES})");
    while prometheus.number(&query)?.unwrap_or(0.0) < targets as f64 {
        if Instant::now() > deadline {
            return Err(format!("not all nodes were scraped {SCRAPES} times within {WARM_UP:?}").into());
        }
        pause();
    }
    Ok(())
}

/// Sets all incidents off, one after the other.
fn causes(played: &mut [Played<'_>]) -> Fallible<()> {
    std::thread::scope(|scope| {
        for one in played.iter_mut() {
            let Played { incident, nodes, cause, step } = one;
            wait_until(Instant::now() + APART);
            *cause = Instant::now();
            for node in nodes.iter_mut().take(incident.nodes) {
                match incident.cause {
                    Cause::Gate if incident.grows.steps > 0 => {}
                    Cause::Gate => node.open("cause")?,
                    Cause::Kill => node.kill()?,
                    Cause::ServicesEnd => node.end_services()?,
                    // Takes a while, and the others do not wait.
                    Cause::Upgrade | Cause::PlannedUpgrade => {
                        let planned = incident.cause == Cause::PlannedUpgrade;
                        let node = &*node;
                        scope.spawn(move || {
                            if let Err(why) = upgrade(node, planned) {
                                eprintln!("error: {why}");
                            }
                        });
                    }
                    Cause::Aged => node.open_aged()?,
                    Cause::Nothing => {}
                }
            }
            *step = (1, *cause);
        }
        Ok(())
    })
}

fn upgrade(node: &Node, planned: bool) -> Fallible<()> {
    if !planned {
        return node.upgrade();
    }
    let window = ["window", "start", "--name", "driver", "--for", "1h", "--reason", "new driver"];
    node.command(&window)?;
    // The window is announced before work begins: here half a minute.
    wait_until(Instant::now() + Duration::from_secs(30));
    node.command(&["driver", "release"])?;
    node.upgrade()?;
    node.command(&["driver", "resume"])
}

/// Waits until five minutes after the first notification of every incident, or until it is too late.
fn watch(played: &mut [Played<'_>], receiver: &Receiver, watches: &BTreeMap<bool, Watch>) -> Fallible<()> {
    let mut said = BTreeSet::new();
    loop {
        let all = receiver.all();
        let mut until: Option<Instant> = None;
        for one in played.iter_mut() {
            let Played { incident, nodes, cause, step } = one;
            if step.0 <= incident.grows.steps && Instant::now() >= step.1 {
                nodes[0].open(&format!("grows-{}", step.0))?;
                *step = (step.0 + 1, step.1 + Duration::from_secs(incident.grows.seconds));
            }
            if incident.cause == Cause::Nothing {
                continue;
            }
            let rules = watches.get(&incident.scaled).map(|watch| &watch.rules);
            let limit = rules.map_or(Duration::ZERO, |rules| judge::limit(incident, rules));
            let first = judge::first(incident, &judge::about(incident, &all));
            // A late one is reported with its time, up to a minute.
            let end = match first {
                Some(first) => first.at + FIRST,
                None if incident.silent() => *cause + FIRST,
                None => *cause + limit + judge::SLACK,
            };
            if let Some(first) = first.filter(|_| said.insert(&incident.name)) {
                let after = first.at.saturating_duration_since(*cause).as_secs_f64();
                println!("{:>4.0} s  {}", after, incident.what);
            }
            until = until.max(Some(end));
        }
        let left = until.and_then(|until| until.checked_duration_since(Instant::now()));
        let Some(left) = left.filter(|left| !left.is_zero()) else { return Ok(()) };
        receiver.wait(all.len(), left.min(Duration::from_secs(1)));
    }
}

fn rows<'a>(
    played: &[Played<'a>],
    receiver: &Receiver,
    watches: &BTreeMap<bool, Watch>,
    comments: &BTreeMap<String, String>,
) -> Fallible<Vec<table::Row<'a>>> {
    let notifications = receiver.all();
    let mut rows = Vec::new();
    for Played { incident, cause, .. } in played {
        let mut fired = BTreeSet::new();
        for watch in watches.values() {
            fired.extend(fired_of(&watch.prometheus, incident)?);
        }
        let none = BTreeMap::new();
        let rules = watches.get(&incident.scaled).map_or(&none, |watch| &watch.rules);
        let evidence = Evidence { rules, notifications: &notifications, fired: &fired, cause: *cause };
        let outcome = judge::judge(incident, &evidence);
        // As it is in the files, whatever was played.
        let real = watches.get(&false).map_or(rules, |watch| &watch.rules);
        let lasts = judge::lasts(incident, real);
        let mut of = incident.alerts.iter().filter_map(|name| comments.get(name));
        let reason = of.find_map(|comment| rules::reason(comment, lasts)).unwrap_or_default().to_owned();
        rows.push(table::Row { incident, outcome, lasts, reason });
    }
    Ok(rows)
}

/// Names of the alerts that fired of an incident's nodes, and of its cluster if it has one of its own.
fn fired_of(prometheus: &Prometheus, incident: &Incident) -> Fallible<BTreeSet<String>> {
    let nodes = format!("instance=~\"{}\"", incident.instances().join("|"));
    let of = if incident.cluster.is_empty() { nodes } else { format!("cluster=\"{}\"", incident.cluster) };
    let query = format!("count by (alertname) (last_over_time(ALERTS{{alertstate=\"firing\",{of}}}[2h]))");
    let result = prometheus.query(&query)?;
    Ok(result.iter().filter_map(|one| Some(one["metric"]["alertname"].as_str()?.to_owned())).collect())
}

/// Alerts about all nodes together: with so many that are sick at once they are right, and no incident's.
fn fleet(receiver: &Receiver) -> Vec<String> {
    let mut names = BTreeSet::new();
    for notification in receiver.all().iter().filter(|n| n.receiver != "dead-mans-switch") {
        for alert in notification.alerts.iter().filter(|a| a.firing && a.label("instance").is_empty()) {
            if alert.label("cluster") == CLUSTER {
                names.insert(alert.label("alertname").to_owned());
            }
        }
    }
    names.into_iter().collect()
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

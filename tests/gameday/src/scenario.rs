//! Scenarios of hours and days as series: the page of a healthy node for every node, and what differs from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

use crate::Fallible;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Series of every healthy node of all scenarios.
    healthy: Vec<String>,
    scenario: Vec<Scenario>,
}

/// A scenario, and the notifications that must come of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name, and label `cluster` of all its nodes.
    pub name: String,
    /// One line for people.
    pub what: String,
    /// A note for the document, where the series need one.
    #[serde(default)]
    pub note: String,
    /// Length, as in a rule: `90m`.
    pub lasts: String,
    /// Pause between two scrapes and two evaluations.
    #[serde(default = "scrape")]
    pub step: String,
    /// Time of the cause. Nothing may be notified before.
    pub cause: String,
    /// Nodes: `n1` and on.
    #[serde(default = "one")]
    pub nodes: usize,
    /// GPUs of each.
    #[serde(default = "four")]
    pub gpus: usize,
    /// Nodes of a rack: the first rack is `r1`. 0: no label `rack`.
    #[serde(default)]
    pub rack: usize,
    /// Metrics of a healthy node that its nodes have. None: all that rules read. For many nodes.
    #[serde(default)]
    pub only: Vec<String>,
    /// Whether nodes have faults before the cause, whose notifications are not judged.
    #[serde(default)]
    pub faults_before: bool,
    /// Series that moving values of the page are replaced by.
    #[serde(skip)]
    healthy: Vec<String>,
    /// What differs from a healthy node: `SELECTOR: VALUE, TIME VALUE, ...`.
    pub series: Vec<String>,
    /// Notifications in the set-up of a small fleet.
    pub small: Vec<Expected>,
    /// Notifications in the set-up of a large fleet.
    pub fleet: Vec<Expected>,
}

/// Notifications of one receiver.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The receiver.
    pub receiver: String,
    /// Notifications with a firing alert.
    pub notifications: usize,
    /// Names of their alerts.
    pub alerts: BTreeSet<String>,
    /// Time from the cause to the first one, at most.
    pub within: String,
    /// Notifications that all is over, where they are what the scenario is about.
    pub over: Option<usize>,
}

fn scrape() -> String {
    "15s".into()
}

fn one() -> usize {
    1
}

fn four() -> usize {
    4
}

/// Seconds of a duration as rules have it: `1h30m`.
pub fn seconds(text: &str) -> Fallible<u64> {
    let mut total = 0;
    let mut number = String::new();
    for c in text.chars() {
        if c.is_ascii_digit() {
            number.push(c);
            continue;
        }
        let unit = match c {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86400,
            _ => return Err(format!("{text}: not a duration").into()),
        };
        let n: u64 = number.parse().map_err(|_| format!("{text}: not a duration"))?;
        total += n * unit;
        number.clear();
    }
    if number.is_empty() { Ok(total) } else { Err(format!("{text}: no unit").into()) }
}

/// Reads the scenarios; gives them with the series of healthy nodes in front of their own.
pub fn read(path: &Path) -> Fallible<Vec<Scenario>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text).map_err(|e| format!("{}: {e}", path.display()).into())
}

/// As [`read`], of the text.
pub fn parse(text: &str) -> Fallible<Vec<Scenario>> {
    let File { healthy, mut scenario } = toml::from_str(text)?;
    let mut names = BTreeSet::new();
    for one in &mut scenario {
        if !names.insert(one.name.clone()) {
            return Err(format!("two scenarios {}", one.name).into());
        }
        one.healthy = healthy.iter().map(|line| line.replace("GPUS", &one.gpus.to_string())).collect();
    }
    Ok(scenario)
}

/// Labels of a series, or what is asked of them.
type Labels = BTreeMap<String, String>;

/// A value from some time on.
#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Absent,
    /// A counter: so much more after each so many seconds.
    Grows(f64, u64),
    /// One after the other at each step.
    Pattern(Vec<Option<f64>>),
    /// The scenario's clock.
    Now,
    /// As it was without this change.
    Before(Box<Plan>),
}

/// Values by the second from which they hold.
type Plan = Vec<(u64, Value)>;

/// A series: its name among its labels, and its values.
type Series = BTreeMap<Labels, Plan>;

const NAME: &str = "__name__";

impl Scenario {
    /// Seconds of a step.
    pub fn step(&self) -> Fallible<u64> {
        seconds(&self.step)
    }

    /// The steps of its length.
    fn steps(&self) -> Fallible<usize> {
        Ok((seconds(&self.lasts)? / self.step()?) as usize)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    fn node(&self, n: usize) -> Labels {
        let mut labels = Labels::from([
            ("cluster".into(), self.name.clone()),
            ("job".into(), "gpu-node-exporter".into()),
            ("instance".into(), format!("n{n}")),
        ]);
        if let Some(rack) = (n - 1).checked_div(self.rack) {
            labels.insert("zone".into(), "z1".into());
            labels.insert("rack".into(), format!("r{}", rack + 1));
        }
        labels
    }

    /// The input series of a test of rules: those of these names. A failed scrape (`up` is 0) ends all series of its node.
    pub fn input(&self, page: &str, used: &BTreeSet<String>) -> Fallible<String> {
        let steps = self.steps()?;
        let step = self.step()?;
        let mut all = self.page(page, used);
        let given = |line: &&String| line.find(['{', ':']).is_some_and(|end| self.wants(&line[..end]));
        for line in self.healthy.iter().filter(given).chain(&self.series) {
            self.change(&mut all, line).map_err(|why| format!("{}: {line}: {why}", self.name))?;
        }
        let up: BTreeMap<String, Vec<Option<f64>>> = all
            .iter()
            .filter(|(labels, _)| labels[NAME] == "up")
            .filter_map(|(labels, plan)| Some((labels.get("instance")?.clone(), samples(plan, steps, step))))
            .collect();
        let mut out = String::new();
        for (labels, plan) in &all {
            if !used.contains(&labels[NAME]) {
                continue;
            }
            let mut samples = samples(plan, steps, step);
            if let Some(up) = labels.get("instance").and_then(|i| up.get(i)).filter(|_| labels[NAME] != "up")
            {
                for (sample, up) in samples.iter_mut().zip(up) {
                    *sample = sample.filter(|_| *up == Some(1.0));
                }
            }
            if samples.iter().any(Option::is_some) {
                let pairs = labels.iter().filter(|(name, _)| *name != NAME);
                let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
                let series = format!("{}{{{}}}", labels[NAME], pairs.join(",")).replace('\'', "''");
                writeln!(out, "      - series: '{series}'\n        values: '{}'", notation(&samples))?;
            }
        }
        Ok(out)
    }

    /// All nodes as the page has them: GPU 0 of the page is every GPU.
    fn page(&self, page: &str, used: &BTreeSet<String>) -> Series {
        let mut all = Series::new();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = pairs(labels.strip_suffix('}').unwrap_or(labels));
            if !used.contains(name) || !self.wants(name) || labels.get("gpu").is_some_and(|gpu| gpu != "0") {
                continue;
            }
            // A moving value of the page: the scenarios say how.
            let value = value.parse().map_or(Value::Absent, Value::Number);
            for n in 1..=self.nodes {
                let gpus = if labels.contains_key("gpu") { self.gpus } else { 1 };
                for gpu in 0..gpus {
                    let mut labels = labels.clone();
                    labels.extend(self.node(n));
                    labels.insert(NAME.into(), name.into());
                    if labels.contains_key("gpu") {
                        labels.extend(own(n, gpu, labels.contains_key("serial")));
                    }
                    all.insert(labels, vec![(0, value.clone())]);
                }
            }
        }
        for n in 1..=self.nodes {
            let mut labels = self.node(n);
            labels.insert(NAME.into(), "up".into());
            all.insert(labels, vec![(0, Value::Number(1.0))]);
        }
        all
    }

    /// One line of the scenario: changes the series that it selects, or adds those that it names in full.
    fn change(&self, all: &mut Series, line: &str) -> Fallible<()> {
        let end = line.rfind("}: ").map(|at| at + 1).or_else(|| line.find(": ")).ok_or("no values")?;
        let (selector, values) = (&line[..end], &line[end + 2..]);
        let (name, labels) = selector.split_once('{').unwrap_or((selector, ""));
        let wanted: Vec<(String, Vec<String>)> = pairs(labels.strip_suffix('}').unwrap_or(labels))
            .into_iter()
            .map(|(label, of)| (label, choices(&of)))
            .collect();
        let step = self.step()?;
        let number =
            |labels: &Labels| -> Option<u64> { labels.get("instance")?.strip_prefix('n')?.parse().ok() };
        let plan = |labels: &Labels| plan(values, step, number(labels).unwrap_or(1));
        let meets = |labels: &Labels| {
            (name.is_empty() || labels[NAME] == name)
                && wanted.iter().all(|(label, of)| labels.get(label).is_some_and(|value| of.contains(value)))
        };
        let mut met = false;
        for (labels, before) in all.iter_mut() {
            if meets(labels) {
                met = true;
                *before = after(before, &plan(labels)?);
            }
        }
        if met {
            return Ok(());
        }
        if name.is_empty() {
            return Err("no such series".into());
        }
        // Another exporter's series has the cluster alone.
        let ours = name.starts_with("gpu_") || name == "up" || name.starts_with("process_");
        let mut added = vec![Labels::from([(NAME.to_owned(), name.to_owned())])];
        for (label, values) in &wanted {
            added = added
                .iter()
                .flat_map(|labels| values.iter().map(|value| with(labels, label, value)))
                .collect();
        }
        let before = vec![(0, Value::Absent)];
        for labels in added {
            let nodes: Vec<usize> = match labels.get("instance").and_then(|i| i.strip_prefix('n')) {
                Some(n) => vec![n.parse()?],
                None if ours => (1..=self.nodes).collect(),
                None => Vec::new(),
            };
            for n in &nodes {
                let mut labels = labels.clone();
                labels.extend(self.node(*n));
                if let Some(gpu) = labels.get("gpu").and_then(|gpu| gpu.parse().ok()) {
                    let given = labels.clone();
                    labels.extend(own(*n, gpu, false));
                    labels.extend(given);
                }
                let plan = after(&before, &plan(&labels)?);
                all.insert(labels, plan);
            }
            if nodes.is_empty() {
                let labels = with(&labels, "cluster", labels.get("cluster").unwrap_or(&self.name));
                let plan = after(&before, &plan(&labels)?);
                all.insert(labels, plan);
            }
        }
        Ok(())
    }
}

/// Labels that make a GPU one of its own.
fn own(node: usize, gpu: usize, serial: bool) -> Labels {
    let mut labels = Labels::from([
        ("gpu".into(), gpu.to_string()),
        ("uuid".into(), format!("GPU-{node:08x}-0000-4000-8000-{gpu:012x}")),
    ]);
    if serial {
        labels.insert("serial".into(), format!("16500{node:04}{gpu:04}"));
        labels.insert("pci_address".into(), format!("0000:{gpu:02x}:00.0"));
    }
    labels
}

fn with(labels: &Labels, label: &str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.insert(label.to_owned(), value.to_owned());
    labels
}

/// `a="x",b="y"`.
fn pairs(text: &str) -> Labels {
    let mut rest = text;
    let mut labels = Labels::new();
    while let Some((name, after)) = rest.split_once("=\"") {
        let Some((value, left)) = after.split_once('"') else { break };
        labels.insert(name.trim_matches([',', ' ']).to_owned(), value.to_owned());
        rest = left;
    }
    labels
}

/// Values that a label may have: `n1|n3`, or `n2..9`.
fn choices(text: &str) -> Vec<String> {
    let one = |text: &str| -> Vec<String> {
        let range = text.split_once("..").and_then(|(from, to)| {
            let at = from.find(|c: char| c.is_ascii_digit())?;
            Some((&from[..at], from[at..].parse::<usize>().ok()?, to.parse::<usize>().ok()?))
        });
        range.map_or(vec![text.to_owned()], |(before, from, to)| {
            (from..=to).map(|n| format!("{before}{n}")).collect()
        })
    };
    text.split('|').flat_map(one).collect()
}

/// `VALUE, TIME VALUE, ...`: a number, `_`, `+N/DURATION` (grows), `a~b~c` (one a step), `now`, or `before` (unchanged).
/// A time as `1h+2m` is 1 h for the first node, and 2 min later for each next one.
fn plan(text: &str, step: u64, node: u64) -> Fallible<Plan> {
    let mut plan = Plan::new();
    for item in text.split(',').map(str::trim) {
        let (at, value) = match item.split_once(' ') {
            Some((at, value)) => {
                let (at, later) = at.split_once('+').unwrap_or((at, "0s"));
                (seconds(at)? + seconds(later)? * (node - 1), value.trim())
            }
            None => (0, item),
        };
        let number = |text: &str| text.parse::<f64>().map_err(|_| format!("{text}: not a value"));
        let sample = |text: &str| if text == "_" { Ok(None) } else { number(text).map(Some) };
        let value = match value {
            "_" => Value::Absent,
            "now" => Value::Now,
            "before" => Value::Before(Box::default()),
            _ if value.contains('~') => {
                Value::Pattern(value.split('~').map(sample).collect::<Result<_, _>>()?)
            }
            _ => match value.strip_prefix('+').and_then(|rest| rest.split_once('/')) {
                Some((by, every)) => Value::Grows(number(by)?, seconds(every)?.max(1)),
                None => Value::Number(number(value)?),
            },
        };
        if !at.is_multiple_of(step) {
            return Err(format!("{item}: not at a step").into());
        }
        plan.push((at, value));
    }
    Ok(plan)
}

/// A plan that a change was made to.
fn after(before: &Plan, change: &Plan) -> Plan {
    let from = change.first().map_or(u64::MAX, |(at, _)| *at);
    let kept = before.iter().filter(|(at, _)| *at < from).cloned();
    let changed = change.iter().map(|(at, value)| match value {
        Value::Before(_) => (*at, Value::Before(Box::new(before.clone()))),
        value => (*at, value.clone()),
    });
    kept.chain(changed).collect()
}

/// A sample each step.
fn samples(plan: &Plan, steps: usize, step: u64) -> Vec<Option<f64>> {
    let mut samples: Vec<Option<f64>> = Vec::with_capacity(steps + 1);
    // What a counter begins from.
    let mut reached = 0.0;
    for (n, (from, value)) in plan.iter().enumerate() {
        let until = plan.get(n + 1).map_or(u64::MAX, |(next, _)| *next);
        let before = match value {
            Value::Before(plan) => self::samples(plan, steps, step),
            _ => Vec::new(),
        };
        while samples.len() <= steps && (samples.len() as u64) * step < until {
            let at = samples.len() as u64 * step;
            let passed = at.saturating_sub(*from);
            samples.push(match value {
                Value::Number(number) => Some(*number),
                Value::Absent => None,
                Value::Grows(by, every) => Some(reached + by * (passed / every) as f64),
                Value::Pattern(values) => values[(passed / step) as usize % values.len()],
                Value::Now => Some(at as f64),
                Value::Before(_) => before[samples.len()],
            });
        }
        reached = samples.iter().rev().flatten().next().copied().unwrap_or(reached);
    }
    samples.resize(steps + 1, None);
    samples
}

/// Samples as promtool reads them. The first of those that are absent ends the series at once.
fn notation(samples: &[Option<f64>]) -> String {
    let mut out = String::new();
    let mut at = 0;
    while at < samples.len() {
        let rest = &samples[at..];
        let length = match rest[0] {
            None => {
                let length = rest.iter().take_while(|sample| sample.is_none()).count();
                let ends = at > 0;
                if ends {
                    out.push_str("stale ");
                }
                if length > usize::from(ends) {
                    let _ = write!(out, "_x{} ", length - usize::from(ends));
                }
                length
            }
            Some(first) => {
                let by = rest.get(1).copied().flatten().map_or(0.0, |second| second - first);
                let value = |n: usize| first + by * n as f64;
                let like =
                    |(n, sample): &(usize, &Option<f64>)| sample.is_some_and(|sample| sample == value(*n));
                let length = rest.iter().enumerate().take_while(like).count();
                let _ = match length {
                    1 => write!(out, "{first} "),
                    _ => {
                        write!(out, "{first}{}{}x{} ", if by < 0.0 { '-' } else { '+' }, by.abs(), length - 1)
                    }
                };
                length
            }
        };
        at += length;
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_rules() {
        assert_eq!(seconds("1h30m").unwrap(), 5400);
        assert_eq!(seconds("3d").unwrap(), 259_200);
        assert!(seconds("12").is_err());
        assert!(seconds("m").is_err());
    }

    #[test]
    fn values_change_at_their_times() {
        let of = |text: &str| {
            notation(&samples(&after(&vec![(0, Value::Number(7.0))], &plan(text, 15, 3).unwrap()), 8, 15))
        };
        assert_eq!(of("1, 1m 0"), "1+0x3 0+0x4");
        assert_eq!(of("1m 0, 90s before"), "7+0x3 0+0x1 7+0x2");
        assert_eq!(of("30s _, 1m 3"), "7+0x1 stale _x1 3+0x4");
        assert_eq!(of("1m +2/30s"), "7+0x5 9+0x1 11");
        assert_eq!(of("1~0, 1m 5"), "1-1x1 1-1x1 5+0x4");
        assert_eq!(of("now"), "0+15x8");
        assert_eq!(of("30s+15s 1"), "7+0x3 1+0x4");
        assert!(plan("7s 1", 15, 1).is_err());
    }

    #[test]
    fn a_failed_scrape_ends_the_series_of_its_node_alone() {
        let scenario = parse(
            "healthy = ['gpu_moves: +1/15s']\n[[scenario]]\nname = 'a'\nwhat = ''\nlasts = '1m'\ncause = '30s'\nnodes = 2\n\
             gpus = 2\nrack = 1\nsmall = []\nfleet = []\n\
             series = ['up{instance=\"n1\"}: 30s 0', 'kube_x{node=\"n1..2\"}: 1', 'gpu_x{instance=\"n2\",gpu=\"1\"}: 4']",
        )
        .unwrap();
        let used = ["up", "gpu_up", "gpu_moves", "gpu_x", "kube_x"].map(str::to_owned).into();
        let page = "# HELP\ngpu_up{gpu=\"0\",uuid=\"u\"} 1\ngpu_up{gpu=\"1\",uuid=\"v\"} 1\ngpu_moves ~\ngpu_idle 3\n";
        let input = scenario[0].input(page, &used).unwrap();
        let of = |start: &str| -> Vec<&str> {
            let lines: Vec<&str> = input.lines().map(str::trim).collect();
            let pairs = lines.chunks(2).filter(|pair| pair[0].contains(&format!("'{start}")));
            pairs.map(|pair| pair[1]).collect()
        };
        let (away, there) = ("values: '1+0x1 stale _x2'", "values: '1+0x4'");
        // By GPU, then by node.
        assert_eq!(of("gpu_up{"), [away, there, away, there]);
        assert_eq!(of("gpu_moves{"), ["values: '0+1x1 stale _x2'", "values: '0+1x4'"]);
        assert_eq!(of("kube_x{cluster=\"a\",node="), [there, there]);
        assert_eq!(of("up{cluster=\"a\",instance=\"n2\",job=\"gpu-node-exporter\",rack=\"r2\""), [there]);
        assert_eq!(of("gpu_x{"), ["values: '4+0x4'"]);
        assert_eq!(of("gpu_idle"), [""; 0]);
    }
}

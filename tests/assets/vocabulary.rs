//! The names that an expression may use: metrics of the catalogue, series that rules record, and a short list of
//! others' metrics.

use std::collections::{BTreeMap, BTreeSet};

use model::catalog::{Kind, METRICS, MetricGroup};

use super::files;
use super::promql;

/// Labels that every scraped series has or may have.
const TARGET: [&str; 5] = ["cluster", "zone", "rack", "job", "instance"];
/// Metrics of others: name, their labels if they are known, and whose they are.
const FOREIGN: &str = include_str!("foreign.psv");

/// What is known of one series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// Its labels; `None` where they are not known.
    pub labels: Option<BTreeSet<String>>,
    /// Values of labels that have no others.
    pub values: BTreeMap<String, &'static [&'static str]>,
    /// Whether it only grows.
    pub counter: bool,
    /// Whether others export it.
    pub foreign: bool,
}

/// All names.
#[derive(Debug)]
pub struct Vocabulary {
    known: BTreeMap<String, Known>,
}

impl Vocabulary {
    /// The catalogue's and others' names, and those that rules record.
    pub fn new() -> Vocabulary {
        Vocabulary::with(Vec::new())
    }

    /// The same, and what these further rules record.
    pub fn with(further: Vec<(String, files::Rule)>) -> Vocabulary {
        let mut vocabulary = Vocabulary { known: BTreeMap::new() };
        vocabulary.add_catalogue();
        vocabulary.add_foreign();
        let rules = [files::rules(), files::example_rules(), further].concat();
        let recorded: Vec<_> =
            rules.iter().filter_map(|(_, rule)| rule.record.as_ref().map(|name| (name, rule))).collect();
        for (name, _) in &recorded {
            vocabulary.known.entry((*name).clone()).or_default();
        }
        // What one rule records another may use, in any order.
        for _ in 0..recorded.len().min(6) {
            let mut found: BTreeMap<String, Option<BTreeSet<String>>> = BTreeMap::new();
            for (name, rule) in &recorded {
                let labels = promql::parse(&rule.expr).ok().and_then(|expr| {
                    let mut labels = promql::Reader::new(&vocabulary).labels(&expr)?;
                    labels.extend(rule.labels.keys().cloned());
                    Some(labels)
                });
                let entry = found.entry((*name).clone()).or_insert_with(|| Some(BTreeSet::new()));
                *entry = entry.take().zip(labels).map(|(a, b)| a.union(&b).cloned().collect());
            }
            for (name, labels) in found {
                vocabulary.known.entry(name).or_default().labels = labels;
            }
        }
        vocabulary
    }

    /// What is known of a name.
    pub fn get(&self, name: &str) -> Option<&Known> {
        self.known.get(name)
    }

    fn add_catalogue(&mut self) {
        for def in METRICS.iter().filter(|def| !def.json_only) {
            let labels = def.entity.labels().iter().chain(def.labels);
            let mut known = Known { counter: def.kind == Kind::Counter, ..Known::default() };
            let names = labels.clone().map(|label| label.name);
            known.labels = Some(names.chain(TARGET).map(str::to_owned).collect());
            known.values = labels.filter_map(|label| Some((label.name.to_owned(), label.values?))).collect();
            if def.kind != Kind::Histogram {
                self.known.insert(def.name.to_owned(), known);
                continue;
            }
            known.counter = true;
            for ending in ["_sum", "_count"] {
                self.known.insert(format!("{}{ending}", def.name), known.clone());
            }
            known.labels.get_or_insert_default().insert("le".to_owned());
            self.known.insert(format!("{}_bucket", def.name), known);
        }
    }

    fn add_foreign(&mut self) {
        for line in FOREIGN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('|').collect();
            let [name, labels, _whose] = fields[..] else { panic!("foreign.psv: three fields: {line}") };
            let known = (labels != "*").then(|| {
                let labels = labels.split(',').map(str::trim).filter(|label| !label.is_empty());
                labels.chain(TARGET).map(str::to_owned).collect()
            });
            assert!(self.get(name).is_none(), "foreign.psv: {name} is our own");
            self.known.insert(name.to_owned(), Known { labels: known, foreign: true, ..Known::default() });
        }
    }
}

/// The group without which a scrape has no series of this metric.
pub fn group_of(metric: &str) -> Option<MetricGroup> {
    METRICS.iter().find(|def| def.name == metric).filter(|def| def.needs_group()).and_then(|def| def.group)
}

/// Names of the catalogue that a scrape has by default, without the endings of histograms.
pub fn served() -> impl Iterator<Item = &'static str> {
    METRICS.iter().filter(|def| !def.json_only && !def.needs_group()).map(|def| def.name)
}

/// The metric of the catalogue that a series belongs to.
pub fn metric_of(series: &str) -> &str {
    let of_histogram = ["_bucket", "_sum", "_count"].into_iter().find_map(|ending| {
        let name = series.strip_suffix(ending)?;
        METRICS.iter().any(|def| def.name == name && def.kind == Kind::Histogram).then_some(name)
    });
    of_histogram.unwrap_or(series)
}

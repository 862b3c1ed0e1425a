//! Which series of one page is which of the other: by what it is about, not by the order or names of its labels.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;

use super::tolerance::ValueRange;
use super::{GpuSets, SeriesCount};
use crate::parse::{ParsedPage, ParsedSample};

/// The labels that name the GPU of a series, of which it has one.
const UUID: [&str; 3] = ["UUID", "uuid", "gpu_uuid"];

/// Other labels that say what a series is about. `gpu` and `device` are numbers that each exporter gives.
const ABOUT: [&str; 9] =
    ["GPU_I_ID", "nvlink", "nvswitch", "cpu", "cpucore", "clock_event", "xid", "health_watch", "peer_gpu"];

/// The GPU of a series.
pub fn gpu(sample: &ParsedSample) -> Option<&str> {
    UUID.iter().find_map(|name| sample.label(name)).filter(|uuid| !uuid.is_empty())
}

/// One series with what its value was on all scrapes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrapedSeries<'a> {
    pub labels: &'a BTreeMap<String, String>,
    /// On the last scrape.
    pub value: f64,
    pub range: ValueRange,
}

impl<'a> ScrapedSeries<'a> {
    /// The value of a label; a label that is not there is an empty one, as in Prometheus.
    pub fn label(&self, name: &str) -> &'a str {
        self.labels.get(name).map_or("", String::as_str)
    }

    fn about(&self) -> Vec<&'a str> {
        let uuid = UUID.iter().map(|name| self.label(name)).find(|uuid| !uuid.is_empty());
        std::iter::once(uuid.unwrap_or("")).chain(ABOUT.iter().map(|name| self.label(name))).collect()
    }
}

/// A family of one page.
#[derive(Clone, Debug)]
pub(crate) struct ScrapedFamily<'a> {
    pub kind: &'a str,
    pub help: &'a str,
    pub series: Vec<ScrapedSeries<'a>>,
}

/// A family as the newest scrape that has it, with the values of all scrapes; without the GPUs of one page alone.
pub fn family<'a>(pages: &'a [ParsedPage], name: &str, gpus: &GpuSets) -> Option<ScrapedFamily<'a>> {
    let mut scrapes = pages.iter().rev().filter_map(|page| page.families.get(name));
    let newest = scrapes.next()?;
    let is_common = |sample: &&ParsedSample| {
        gpu(sample).is_none_or(|uuid| gpus.common.binary_search_by(|known| known.as_str().cmp(uuid)).is_ok())
    };
    let samples = newest.samples.iter().filter(is_common);
    let mut series: Vec<ScrapedSeries<'a>> = samples
        .map(|one| ScrapedSeries {
            labels: &one.labels,
            value: one.value,
            range: ValueRange::from_value(one.value),
        })
        .collect();
    if series.is_empty() {
        return None;
    }
    series.sort_by_key(|one| one.labels);
    for sample in scrapes.flat_map(|family| &family.samples) {
        if let Ok(at) = series.binary_search_by_key(&&sample.labels, |one| one.labels) {
            series[at].range.add(sample.value);
        }
    }
    Some(ScrapedFamily { kind: kind(&newest.kind), help: &newest.help, series })
}

/// No type is the type `untyped`.
fn kind(declared: &str) -> &str {
    if declared.is_empty() { "untyped" } else { declared }
}

/// One series on both pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    pub theirs: ScrapedSeries<'a>,
    pub ours: ScrapedSeries<'a>,
}

/// The series of a family.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairedSeries<'a> {
    pub both: Vec<Pair<'a>>,
    /// Series of one page alone.
    pub theirs: Vec<ScrapedSeries<'a>>,
    pub ours: Vec<ScrapedSeries<'a>>,
}

/// Pairs the series that are about the same: those first whose labels are equal as far as both pages have them, as of
/// two pods that share a GPU, the others in the order of their labels.
pub fn pair<'a>(theirs: &ScrapedFamily<'a>, ours: &ScrapedFamily<'a>) -> PairedSeries<'a> {
    let has = |family: &ScrapedFamily<'a>, name: &str| {
        family.series.iter().any(|series| !series.label(name).is_empty())
    };
    let names = theirs.series.iter().flat_map(|series| series.labels.keys());
    let names: std::collections::BTreeSet<&str> = names.map(String::as_str).collect();
    let shared: Vec<&str> = names.into_iter().filter(|name| has(theirs, name) && has(ours, name)).collect();
    let exact = |one: &ScrapedSeries<'a>| shared.iter().map(|name| one.label(name)).collect::<Vec<_>>();
    let mut pairs = PairedSeries::default();
    let left = matched(&theirs.series, &ours.series, &mut pairs.both, |one| (one.about(), exact(one)));
    let (theirs, ours) = matched(&left.0, &left.1, &mut pairs.both, ScrapedSeries::about);
    PairedSeries { theirs, ours, ..pairs }
}

type Unmatched<'a> = (Vec<ScrapedSeries<'a>>, Vec<ScrapedSeries<'a>>);

/// Pairs series with the same key, in order; gives those that are left.
fn matched<'a, K: Eq + std::hash::Hash>(
    theirs: &[ScrapedSeries<'a>],
    ours: &[ScrapedSeries<'a>],
    pairs: &mut Vec<Pair<'a>>,
    key: impl Fn(&ScrapedSeries<'a>) -> K,
) -> Unmatched<'a> {
    let mut known: HashMap<K, VecDeque<usize>> = HashMap::new();
    for (at, one) in ours.iter().enumerate() {
        known.entry(key(one)).or_default().push_back(at);
    }
    let mut taken = vec![false; ours.len()];
    let mut left = Vec::new();
    for one in theirs {
        match known.get_mut(&key(one)).and_then(VecDeque::pop_front) {
            Some(at) => {
                taken[at] = true;
                pairs.push(Pair { theirs: *one, ours: ours[at] });
            }
            None => left.push(*one),
        }
    }
    let free = ours.iter().zip(taken).filter(|(_, taken)| !taken).map(|(one, _)| *one);
    (left, free.collect())
}

/// How many, with one of them.
pub fn count(series: &[ScrapedSeries<'_>]) -> SeriesCount {
    let example = series.first().map(|one| text(one.labels)).unwrap_or_default();
    SeriesCount { count: series.len(), example }
}

/// What a series is about, for people: the GPU with its instance, and what else tells it from others.
pub fn text(labels: &BTreeMap<String, String>) -> String {
    let mut out = String::from("{");
    let owners = ["GPU_CI_ID", "namespace", "pod", "container"];
    for name in UUID.iter().chain(&ABOUT).chain(&owners) {
        if let Some(value) = labels.get(*name).filter(|value| !value.is_empty()) {
            let comma = if out.len() > 1 { "," } else { "" };
            let _ = write!(out, "{comma}{name}={value:?}");
        }
    }
    out + "}"
}

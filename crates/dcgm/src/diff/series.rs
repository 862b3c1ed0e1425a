//! Pairing of the series of both pages by their subject, independent of the order and names of their labels.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;

use super::tolerance::ValueRange;
use super::{GpuSets, SeriesCount};
use crate::parse::{ParsedPage, ParsedSample};

/// Labels that may name the GPU of a series. A series has one of them.
const UUID: [&str; 3] = ["UUID", "uuid", "gpu_uuid"];

/// Other labels that identify the subject of a series. Every exporter numbers `gpu` and `device` on its own.
const ABOUT: [&str; 9] =
    ["GPU_I_ID", "nvlink", "nvswitch", "cpu", "cpucore", "clock_event", "xid", "health_watch", "peer_gpu"];

/// Returns the UUID of a series' GPU.
pub fn gpu(sample: &ParsedSample) -> Option<&str> {
    UUID.iter().find_map(|name| sample.label(name)).filter(|uuid| !uuid.is_empty())
}

/// Series with its values on all scrapes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrapedSeries<'a> {
    pub labels: &'a BTreeMap<String, String>,
    /// Value on the last scrape.
    pub value: f64,
    pub range: ValueRange,
}

impl<'a> ScrapedSeries<'a> {
    /// Returns the value of a label. As in Prometheus, a missing label is an empty label.
    pub fn label(&self, name: &str) -> &'a str {
        self.labels.get(name).map_or("", String::as_str)
    }

    fn about(&self) -> Vec<&'a str> {
        let uuid = UUID.iter().map(|name| self.label(name)).find(|uuid| !uuid.is_empty());
        std::iter::once(uuid.unwrap_or("")).chain(ABOUT.iter().map(|name| self.label(name))).collect()
    }
}

/// Family of one page.
#[derive(Clone, Debug)]
pub(crate) struct ScrapedFamily<'a> {
    pub kind: &'a str,
    pub help: &'a str,
    pub series: Vec<ScrapedSeries<'a>>,
}

/// Returns a family as the newest scrape that has it, with the values of all scrapes. GPUs that are on only one page
/// are left out.
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

/// Returns the declared type, which defaults to `untyped`.
fn kind(declared: &str) -> &str {
    if declared.is_empty() { "untyped" } else { declared }
}

/// Series that is on both pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    pub theirs: ScrapedSeries<'a>,
    pub ours: ScrapedSeries<'a>,
}

/// Series of a family, paired if possible.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairedSeries<'a> {
    pub both: Vec<Pair<'a>>,
    /// Series that are only on dcgm-exporter's page.
    pub theirs: Vec<ScrapedSeries<'a>>,
    pub ours: Vec<ScrapedSeries<'a>>,
}

/// Pairs the series that have the same subject. Series whose common labels are equal are paired first, for example
/// those of two pods that share a GPU. The remaining series are paired in the order of their labels.
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

/// Pairs series with the same key in order, and returns the series that are left.
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

/// Counts the series and keeps one as an example.
pub fn count(series: &[ScrapedSeries<'_>]) -> SeriesCount {
    let example = series.first().map(|one| text(one.labels)).unwrap_or_default();
    SeriesCount { count: series.len(), example }
}

/// Formats the subject of a series: the GPU with its instance, and the other labels that identify the series.
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

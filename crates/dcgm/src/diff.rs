//! Comparison of dcgm-exporter's page with ours on the same node: the changes that a switch would bring.
//!
//! [`series`] pairs the series of a family, and [`labels`] and [`tolerance`] compare them. [`missing`] explains why a
//! family is absent from our page. [`advice`] lists the settings that remove differences, and the differences that no
//! setting removes. A page is passed with all its scrapes, because a value that moves between them is not a difference.

mod advice;
mod labels;
mod missing;
mod series;
#[cfg(test)]
mod tests;
mod tolerance;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::fields::find;
use crate::page::PageConfig;
use crate::parse::ParsedPage;
pub use advice::{Advice, SettingAdvice, SwitchVerdict};
pub use labels::{LabelDiff, LabelState};
pub use missing::MissingReason;
use series::{Pair, PairedSeries};
use tolerance::{Tolerance, ValueRange};

/// Settings of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct DiffConfig<'a> {
    /// Configuration of our page.
    pub page: &'a PageConfig,
    /// True if the fields of our page come from a file.
    pub own_list: bool,
    /// True if both pages were scraped in direct succession. Otherwise, values that move are not compared.
    pub same_time: bool,
    /// Factor that multiplies all tolerances.
    pub factor: f64,
}

/// Page that an error or a difference refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSide {
    Theirs,
    Ours,
}

/// Reason why two pages cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotComparable {
    /// The page has no series.
    #[error("the page is empty: {}", match .0 {
        PageSide::Theirs => "dcgm-exporter serves none while it reloads its fields (until 4.8.2); ask again, and look at its log",
        PageSide::Ours => "`gpu-node-exporter check-config` says whether dcgm.fields_file has a usable row",
    })]
    Empty(PageSide),
    /// The page is this exporter's own. The list names some of its families.
    #[error("this is gpu-node-exporter's own page ({}): /dcgm/metrics is the one to compare", .1.join(", "))]
    OwnPage(PageSide, Vec<String>),
    /// No family belongs to DCGM. The list names some of the families.
    #[error("no family is one of DCGM's, but {}: look at host, port and path", .1.join(", "))]
    NotDcgm(PageSide, Vec<String>),
    /// No series is about a GPU.
    #[error("no series has a GPU's UUID: {}", match .0 {
        PageSide::Theirs => "look whether dcgm-exporter sees GPUs (its log, `nvidia-smi -L`)",
        PageSide::Ours => "run `gpu-node-exporter doctor` for the reason",
    })]
    NoGpu(PageSide),
    /// The pages have no GPU in common. The lists name some GPUs of both pages.
    #[error(
        "the pages are of two nodes: they have no GPU in common (dcgm-exporter's page has {}, this exporter's has {}); \
         scrape both on one node",
        theirs.join(", "),
        ours.join(", ")
    )]
    OtherNode { theirs: Vec<String>, ours: Vec<String> },
}

/// Result of the comparison of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FamilyState {
    /// The family is missing from our page.
    Missing,
    OtherType,
    /// Labels are missing, extra or have other values.
    OtherLabels,
    /// Some series are on only one page.
    OtherSeries,
    /// A value is outside its tolerance.
    OtherValue,
    /// The family is only on our page.
    Extra,
    Same,
}

/// Number of series that are on only one page, with an example.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeriesCount {
    pub count: usize,
    pub example: String,
}

/// Result of comparing the values of a family.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ValueDiff {
    /// Number of series that were compared.
    pub compared: usize,
    /// Number of compared series whose values are outside the tolerance.
    pub outside: usize,
    /// Series with the largest excess, with dcgm-exporter's value and ours.
    pub worst: Option<(String, f64, f64)>,
    /// Absolute and relative tolerance, without the movement between two scrapes.
    pub tolerance: Option<(f64, f64)>,
    /// Reason for the tolerance, or for not comparing the values.
    pub reason: &'static str,
}

/// Comparison of one family.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FamilyDiff {
    pub name: String,
    /// All states of the family, the most serious first.
    pub states: Vec<FamilyState>,
    /// Reason why our page lacks the family.
    pub missing: Option<MissingReason>,
    /// dcgm-exporter's type and ours, if they differ.
    pub types: Option<(String, String)>,
    /// Labels that differ between the pages.
    pub labels: Vec<LabelDiff>,
    pub missing_series: SeriesCount,
    pub extra_series: SeriesCount,
    pub values: ValueDiff,
}

/// GPUs of both pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuSets {
    pub common: Vec<String>,
    /// GPUs that are only on dcgm-exporter's page.
    pub missing: Vec<String>,
    /// GPUs that are only on our page.
    pub extra: Vec<String>,
}

/// Result of comparing two pages.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PageDiff {
    /// True if our page has everything that dcgm-exporter's page has, with the same values. Extra families on our page
    /// do not count as a difference.
    pub alike: bool,
    pub gpus: GpuSets,
    /// All DCGM families, by name.
    pub families: Vec<FamilyDiff>,
    /// All labels of the families that are on both pages.
    pub labels: Vec<LabelDiff>,
    /// Families about dcgm-exporter itself, which are not compared.
    pub about_itself: Vec<String>,
    /// Series that occur twice on dcgm-exporter's page.
    pub doubled: Vec<String>,
    pub advice: Advice,
}

/// Compares the scrapes of dcgm-exporter's page with the scrapes of ours.
pub fn compare(
    theirs: &[ParsedPage],
    ours: &[ParsedPage],
    config: DiffConfig<'_>,
) -> Result<PageDiff, NotComparable> {
    let (their_gpus, our_gpus) = (gpus(theirs, PageSide::Theirs)?, gpus(ours, PageSide::Ours)?);
    let only = |of: &BTreeSet<String>, other: &BTreeSet<String>| of.difference(other).cloned().collect();
    let gpus = GpuSets {
        common: their_gpus.intersection(&our_gpus).cloned().collect(),
        missing: only(&their_gpus, &our_gpus),
        extra: only(&our_gpus, &their_gpus),
    };
    if gpus.common.is_empty() {
        let some = |all: Vec<String>| all.into_iter().take(3).collect();
        return Err(NotComparable::OtherNode { theirs: some(gpus.missing), ours: some(gpus.extra) });
    }
    let names: BTreeSet<&String> = theirs.iter().chain(ours).flat_map(|page| page.families.keys()).collect();
    let (of_dcgm, others): (Vec<&String>, Vec<&String>) = names.into_iter().partition(|name| is_dcgm(name));
    let mut families = Vec::new();
    let mut all_labels = Vec::new();
    for name in of_dcgm {
        let (their, our) = (series::family(theirs, name, &gpus), series::family(ours, name, &gpus));
        match (their, our) {
            (Some(their), Some(our)) => {
                let pairs = series::pair(&their, &our);
                let labels = labels::compare(&their, &our, &pairs);
                families.push(family(name, (their.kind, our.kind), &labels, &pairs, config));
                all_labels.push(labels);
            }
            (Some(their), None) => families.push(FamilyDiff {
                missing: Some(missing::reason(name, &their, config)),
                ..only_one(name, FamilyState::Missing)
            }),
            (None, Some(_)) => families.push(only_one(name, FamilyState::Extra)),
            // All its series are about GPUs that are on only one page.
            (None, None) => {}
        }
    }
    let labels = labels::of_page(&all_labels);
    let release = advice::other_release(&families, &labels, config);
    for family in &mut families {
        missing::by_release(family, release);
    }
    let advice = advice::advise(&gpus, &families, &labels, release, config);
    let doubled: BTreeSet<&String> = theirs.iter().flat_map(|page| &page.doubled).collect();
    let same = |family: &FamilyDiff| {
        family.states.iter().all(|state| matches!(state, FamilyState::Same | FamilyState::Extra))
    };
    Ok(PageDiff {
        alike: families.iter().all(same) && gpus.missing.is_empty(),
        gpus,
        families,
        labels,
        about_itself: others.into_iter().cloned().collect(),
        doubled: doubled.into_iter().cloned().collect(),
        advice,
    })
}

/// Returns true for a family of DCGM or of dcgm-exporter's lists. The names of its first release are in lower case.
fn is_dcgm(name: &str) -> bool {
    name.starts_with("DCGM_") || name.starts_with("dcgm_")
}

/// Returns the UUIDs of the GPUs on a page.
fn gpus(pages: &[ParsedPage], side: PageSide) -> Result<BTreeSet<String>, NotComparable> {
    let families = || pages.iter().flat_map(|page| &page.families);
    if families().next().is_none() {
        return Err(NotComparable::Empty(side));
    }
    if !families().any(|(name, _)| is_dcgm(name)) {
        let names: BTreeSet<String> = families().map(|(name, _)| name.clone()).collect();
        // Every exporter serves `go_` and `process_` families.
        let own = |name: &String| !["go_", "process_", "promhttp_"].iter().any(|it| name.starts_with(it));
        let (own, runtime): (Vec<String>, Vec<String>) = names.into_iter().partition(own);
        let some: Vec<String> = own.into_iter().chain(runtime).take(3).collect();
        return Err(match some.iter().any(|name| name.starts_with("gpu_")) {
            true => NotComparable::OwnPage(side, some),
            false => NotComparable::NotDcgm(side, some),
        });
    }
    let samples = families().flat_map(|(_, family)| &family.samples);
    let found: BTreeSet<String> = samples.filter_map(series::gpu).map(str::to_owned).collect();
    if found.is_empty() { Err(NotComparable::NoGpu(side)) } else { Ok(found) }
}

fn only_one(name: &str, state: FamilyState) -> FamilyDiff {
    FamilyDiff {
        name: name.to_owned(),
        states: vec![state],
        missing: None,
        types: None,
        labels: Vec::new(),
        missing_series: SeriesCount::default(),
        extra_series: SeriesCount::default(),
        values: ValueDiff::default(),
    }
}

/// Compares a family that both pages have.
fn family(
    name: &str,
    (theirs, ours): (&str, &str),
    labels: &[LabelDiff],
    pairs: &PairedSeries<'_>,
    config: DiffConfig<'_>,
) -> FamilyDiff {
    let types = (theirs != ours).then(|| (theirs.to_owned(), ours.to_owned()));
    let labels: Vec<LabelDiff> =
        labels.iter().filter(|label| label.state != LabelState::Same).cloned().collect();
    let values = values(name, &pairs.both, config);
    let (missing_series, extra_series) = (series::count(&pairs.theirs), series::count(&pairs.ours));
    let all = [
        (types.is_some(), FamilyState::OtherType),
        (!labels.is_empty(), FamilyState::OtherLabels),
        (missing_series.count + extra_series.count > 0, FamilyState::OtherSeries),
        (values.outside > 0, FamilyState::OtherValue),
    ];
    let mut states: Vec<FamilyState> =
        all.into_iter().filter_map(|(is_so, state)| is_so.then_some(state)).collect();
    if states.is_empty() {
        states.push(FamilyState::Same);
    }
    let name = name.to_owned();
    FamilyDiff { name, states, missing: None, types, labels, missing_series, extra_series, values }
}

fn values(name: &str, pairs: &[Pair<'_>], config: DiffConfig<'_>) -> ValueDiff {
    let mut diff = ValueDiff::default();
    let tolerance = match find(name, config.page.release).map(tolerance::tolerance) {
        None => Err("the field is not known here"),
        Some(Ok(Tolerance { moves: true, .. })) if !config.same_time => {
            Err("moves, and a page is a saved one")
        }
        Some(tolerance) => tolerance,
    };
    let tolerance = match tolerance {
        Ok(tolerance) => tolerance,
        Err(reason) => return ValueDiff { reason, ..diff },
    };
    diff.tolerance = Some((tolerance.absolute * config.factor, tolerance.relative * config.factor));
    diff.reason = tolerance.reason;
    let mut most = 1.0;
    for pair in pairs {
        let (theirs, ours): (ValueRange, ValueRange) = (pair.theirs.range, pair.ours.range);
        let excess = tolerance.excess(theirs, ours, config.factor);
        diff.compared += 1;
        if excess > 1.0 {
            diff.outside += 1;
            if excess > most {
                most = excess;
                diff.worst = Some((series::text(pair.theirs.labels), pair.theirs.value, pair.ours.value));
            }
        }
    }
    diff
}

//! The labels of a family on both pages: which are on one alone, which have another name, which another value.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::series::{PairedSeries, ScrapedFamily};
use crate::fields::{Release, find};

/// What is the case with a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LabelState {
    /// Not on our page.
    Missing,
    /// On our page under another name.
    Renamed {
        ours: String,
    },
    /// With another value: one of each page.
    OtherValue {
        theirs: String,
        ours: String,
    },
    /// On our page alone.
    Extra,
    Same,
}

/// A label of a family, or of all families.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelDiff {
    pub name: String,
    #[serde(flatten)]
    pub state: LabelState,
    /// Families with this label in this state.
    pub families: usize,
    /// Pairs of series with other values, or that have it.
    pub series: usize,
}

/// Names that dcgm-exporter gives to one thing, by release or flag.
const ALIASES: [&[&str]; 5] = [
    &["hostname", "Hostname"],
    &["UUID", "uuid"],
    &["pod", "pod_name"],
    &["namespace", "pod_namespace"],
    &["container", "container_name"],
];

/// One name for all names of a label.
fn canonical(name: &str) -> &str {
    let field = || find(name, Release::default()).map(|field| field.name());
    ALIASES.iter().find(|names| names.contains(&name)).map(|names| names[0]).or_else(field).unwrap_or(name)
}

/// The labels that have a value on a page.
fn names<'a>(family: &ScrapedFamily<'a>) -> BTreeSet<&'a str> {
    let labels = family.series.iter().flat_map(|series| series.labels);
    labels.filter(|(_, value)| !value.is_empty()).map(|(name, _)| name.as_str()).collect()
}

/// Every label of a family: one entry each, two for a label with another name and another value.
pub fn compare(
    theirs: &ScrapedFamily<'_>,
    ours: &ScrapedFamily<'_>,
    pairs: &PairedSeries<'_>,
) -> Vec<LabelDiff> {
    let (their_names, our_names) = (names(theirs), names(ours));
    let has = |family: &ScrapedFamily<'_>, name: &str| {
        family.series.iter().filter(|series| !series.label(name).is_empty()).count()
    };
    let entry = |name: &str, state, series| LabelDiff { name: name.to_owned(), state, families: 1, series };
    let alias = |name: &str| {
        let same = |other: &&&str| canonical(other) == canonical(name) && !their_names.contains(*other);
        our_names.iter().find(same)
    };
    let mut labels = Vec::new();
    let mut known = BTreeSet::new();
    for name in &their_names {
        let Some(other) = our_names.get(name).or_else(|| alias(name)) else {
            labels.push(entry(name, LabelState::Missing, has(theirs, name)));
            continue;
        };
        known.insert(other);
        let differs = |pair: &&super::Pair<'_>| pair.theirs.label(name) != pair.ours.label(other);
        let differing: Vec<_> = pairs.both.iter().filter(differs).collect();
        if name != other {
            labels.push(entry(name, LabelState::Renamed { ours: (*other).to_owned() }, has(theirs, name)));
        }
        if let Some(pair) = differing.first() {
            let (theirs, ours) = (pair.theirs.label(name).to_owned(), pair.ours.label(other).to_owned());
            labels.push(entry(name, LabelState::OtherValue { theirs, ours }, differing.len()));
        } else if name == other {
            labels.push(entry(name, LabelState::Same, has(theirs, name)));
        }
    }
    for name in our_names.iter().filter(|name| !known.contains(name)) {
        labels.push(entry(name, LabelState::Extra, has(ours, name)));
    }
    labels
}

/// The labels of all families: a label that is the same in some and not in others has an entry for each state.
pub fn of_page(families: &[Vec<LabelDiff>]) -> Vec<LabelDiff> {
    // Other values are one state, whichever they are.
    let rank = |state: &LabelState| match state {
        LabelState::OtherValue { .. } => {
            LabelState::OtherValue { theirs: String::new(), ours: String::new() }
        }
        state => state.clone(),
    };
    let mut all: BTreeMap<(LabelState, &str), LabelDiff> = BTreeMap::new();
    for label in families.iter().flatten() {
        let known = all.entry((rank(&label.state), &label.name));
        known
            .and_modify(|known| {
                known.families += 1;
                known.series += label.series;
            })
            .or_insert_with(|| label.clone());
    }
    all.into_values().collect()
}

//! Comparison of a family's labels: labels that are on only one page, have another name or have another value.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::series::{PairedSeries, ScrapedFamily};
use crate::fields::{Release, find};

/// Result of the comparison of a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LabelState {
    /// The label is missing from our page.
    Missing,
    /// The label has another name on our page.
    Renamed {
        ours: String,
    },
    /// The label has different values on the two pages.
    OtherValue {
        theirs: String,
        ours: String,
    },
    /// The label is only on our page.
    Extra,
    Same,
}

/// Comparison of a label in one family or in all families.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelDiff {
    pub name: String,
    #[serde(flatten)]
    pub state: LabelState,
    /// Number of families with this label in this state.
    pub families: usize,
    /// Number of series pairs whose values differ, or that have the label.
    pub series: usize,
}

/// Groups of names that dcgm-exporter uses for the same label, depending on release and flags.
const ALIASES: [&[&str]; 5] = [
    &["hostname", "Hostname"],
    &["UUID", "uuid"],
    &["pod", "pod_name"],
    &["namespace", "pod_namespace"],
    &["container", "container_name"],
];

/// Returns the common name for all aliases of a label.
fn canonical(name: &str) -> &str {
    let field = || find(name, Release::default()).map(|field| field.name());
    ALIASES.iter().find(|names| names.contains(&name)).map(|names| names[0]).or_else(field).unwrap_or(name)
}

/// Returns the labels that have a value on a page.
fn names<'a>(family: &ScrapedFamily<'a>) -> BTreeSet<&'a str> {
    let labels = family.series.iter().flat_map(|series| series.labels);
    labels.filter(|(_, value)| !value.is_empty()).map(|(name, _)| name.as_str()).collect()
}

/// Compares all labels of a family. A label whose name and value both differ has two entries.
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

/// Merges the labels of all families. A label that differs in only some of them has one entry per state.
pub fn of_page(families: &[Vec<LabelDiff>]) -> Vec<LabelDiff> {
    // All differing values count as one state.
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

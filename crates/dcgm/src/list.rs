//! Which fields the page has, under which name and type: the default of a release, or a file that dcgm-exporter reads.
//!
//! [`csv`] and [`yaml`] read texts, [`file`] finds the text: in a file, a ConfigMap's manifest or a mounted ConfigMap.
//! dcgm-exporter does not start with a wrong row. Here such a row is a [`Problem`], and the others are served.

mod csv;
pub mod file;
#[cfg(test)]
mod tests;
mod yaml;

use std::fmt;

use model::text::clean;

use crate::fields::{DcgmField, FamilyType, FieldFormat, FieldSource, Release, TABLE, find};

/// One family of the page, or one label of all families.
#[derive(Clone, Debug)]
pub struct Column {
    /// The field.
    pub field: &'static DcgmField,
    /// The name as the list writes it: that of the family, or of the label.
    pub name: String,
    /// The type that the list declares.
    pub kind: FamilyType,
    /// The text of `# HELP`.
    pub help: String,
}

/// The fields of a page, and what is wrong with the list that they came from.
#[derive(Clone, Debug, Default)]
pub struct FieldList {
    /// Families, in the order of the list.
    pub columns: Vec<Column>,
    /// Labels that every series carries.
    pub labels: Vec<Column>,
    /// Rows that are not served as written. None is fatal.
    pub problems: Vec<Problem>,
}

/// Most problems that are kept of one file: the others are counted.
const MAX_PROBLEMS: usize = 100;
/// Most rows of a list that are looked at: more than fifty times as many as there are fields.
const MAX_ROWS: usize = 20_000;
/// Longest name that is compared and repeated, in bytes.
const MAX_NAME: usize = 80;

/// Problem with one row of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Place of the row: `line 12`, or the path of keys in YAML.
    pub(crate) place: String,
    /// Name of the row as written; empty if it has none.
    pub(crate) name: String,
    pub(crate) kind: ProblemKind,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProblemKind {
    #[error("no such field; remove it")]
    Unknown,
    #[error("no such field; did you mean {0}?")]
    Misspelled(&'static str),
    /// With the name of the earlier row.
    #[error("doubled: the field is there as {0}; remove one")]
    Doubled(String),
    #[error("no type {0:?}; choose gauge, counter, untyped or label")]
    Type(String),
    #[error("not covered: nothing here gives its value; remove it")]
    NoSource,
    #[error("its value is a text; make it a label")]
    TextOnly,
    #[error("{0}")]
    Malformed(String),
    /// Number of further problems.
    #[error("{0} more")]
    More(usize),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.place, &self.name].into_iter().filter(|part| !part.is_empty()) {
            write!(f, "{part}: ")?;
        }
        self.kind.fmt(f)
    }
}

/// Fields that dcgm-exporter 4.8 serves by default.
const DEFAULT_4_8: &str = include_str!("list/default-4.8.txt");

/// Fields that dcgm-exporter 4.9 serves by default.
const DEFAULT_4_9: &str = include_str!("list/default-4.9.txt");

impl FieldList {
    /// What the release serves without a list of its own.
    pub fn default_of(release: Release) -> FieldList {
        let names = match release {
            Release::V4_8 => DEFAULT_4_8,
            Release::V4_9 => DEFAULT_4_9,
        };
        let mut list = FieldList::default();
        for name in names.lines() {
            let Some(field) = find(name, release) else { continue };
            list.add("default", name, field.kind, field.help, release);
        }
        list
    }

    /// Adds one row, or the problem with it.
    pub fn add(&mut self, place: &str, name: &str, kind: FamilyType, help: &str, release: Release) {
        let Some(field) = find(name, release) else {
            let near = (self.problems.len() < MAX_PROBLEMS).then(|| nearest(name)).flatten();
            return self.note(place, name, near.map_or(ProblemKind::Unknown, ProblemKind::Misspelled));
        };
        let same = |column: &&Column| std::ptr::eq(column.field, field);
        if let Some(before) = self.columns.iter().chain(&self.labels).find(same) {
            let before = before.name.clone();
            return self.note(place, name, ProblemKind::Doubled(before));
        }
        if field.format == FieldFormat::Text && kind != FamilyType::Label {
            return self.note(place, name, ProblemKind::TextOnly);
        }
        if !field.is_served() {
            return self.note(place, name, ProblemKind::NoSource);
        }
        if kind == FamilyType::Label && matches!(field.source, FieldSource::Own(_)) {
            let why = "it has series of its own, and no one value for a label; make it a gauge or a counter";
            return self.note(place, name, ProblemKind::Malformed(why.to_owned()));
        }
        let column = Column { field, name: name.to_owned(), kind, help: help.to_owned() };
        if kind == FamilyType::Label { self.labels.push(column) } else { self.columns.push(column) }
    }

    /// As [`FieldList::add`], with the type as written.
    fn add_row(&mut self, place: &str, name: &str, kind: &str, help: &str, release: Release) {
        match FamilyType::ALL.into_iter().find(|known| known.name() == kind) {
            Some(kind) => {
                if help.contains(char::REPLACEMENT_CHARACTER) {
                    let why = "the help is not UTF-8: the other bytes are replaced".to_owned();
                    self.note(place, name, ProblemKind::Malformed(why));
                }
                self.add(place, name, kind, help, release);
            }
            // A name that there is not matters more than its type.
            None if find(name, release).is_none() => {
                self.add(place, name, FamilyType::Untyped, help, release);
            }
            None => self.note(place, name, ProblemKind::Type(clean(kind, MAX_NAME))),
        }
    }

    /// Keeps a problem, or counts it.
    fn note(&mut self, place: &str, name: &str, kind: ProblemKind) {
        let count = self.problems.len();
        if count < MAX_PROBLEMS {
            let (place, name) = (place.to_owned(), clean(name, MAX_NAME));
            return self.problems.push(Problem { place, name, kind });
        }
        match self.problems.get_mut(MAX_PROBLEMS) {
            Some(Problem { kind: ProblemKind::More(more), .. }) => *more += 1,
            _ => {
                let place = "further rows".to_owned();
                self.problems.push(Problem { place, name: String::new(), kind: ProblemKind::More(1) });
            }
        }
    }

    /// Problems, also those that are only counted.
    pub fn problem_count(&self) -> usize {
        let one = |problem: &Problem| if let ProblemKind::More(more) = problem.kind { more } else { 1 };
        self.problems.iter().map(one).sum()
    }

    /// The profiling fields: GPUs before Hopper have none of them.
    pub fn profiling(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|column| PROFILING.contains(&column.field.id))
    }
}

/// Numbers of the profiling fields.
const PROFILING: std::ops::Range<u16> = 1000..1100;

/// The known name most similar to this one, if any is similar enough.
fn nearest(name: &str) -> Option<&'static str> {
    let name = clean(name, MAX_NAME);
    let names = TABLE.iter().flat_map(|field| field.names.iter().copied());
    names
        .map(|known| (strsim::normalized_damerau_levenshtein(&name, known), known))
        .max_by(|one, two| one.0.total_cmp(&two.0))
        .filter(|(similarity, _)| *similarity > 0.8)
        .map(|(_, known)| known)
}

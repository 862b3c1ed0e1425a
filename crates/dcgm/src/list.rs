//! List of the page's fields with names and types: the default of a release, or a file in dcgm-exporter's format.
//!
//! [`csv`] and [`yaml`] parse texts. [`file`] finds the text in a file, a ConfigMap's manifest or a mounted ConfigMap.
//! dcgm-exporter does not start if a row is faulty. Here the row becomes a [`Problem`], and all other rows are served.

mod csv;
pub mod file;
#[cfg(test)]
mod tests;
mod yaml;

use std::fmt;

use model::text::clean;

use crate::fields::{DcgmField, FamilyType, FieldFormat, FieldSource, Release, TABLE, find};

/// Family of the page, or label of all families.
#[derive(Clone, Debug)]
pub struct Column {
    pub field: &'static DcgmField,
    /// Name of the family or label, as the list spells it.
    pub name: String,
    /// Type that the list declares.
    pub kind: FamilyType,
    /// Text of `# HELP`.
    pub help: String,
}

/// Fields of a page, with the problems of the list that defined them.
#[derive(Clone, Debug, Default)]
pub struct FieldList {
    /// Families in the order of the list.
    pub columns: Vec<Column>,
    /// Labels that every series carries.
    pub labels: Vec<Column>,
    /// Rows that are not served as written. None of the problems is fatal.
    pub problems: Vec<Problem>,
}

/// Maximum number of problems kept per file. Further problems are only counted.
const MAX_PROBLEMS: usize = 100;
/// Maximum number of rows read from a list, more than fifty times the number of fields.
const MAX_ROWS: usize = 20_000;
/// Maximum length of a name that is compared and repeated, in bytes.
const MAX_NAME: usize = 80;

/// Problem with one row of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Place of the row: `line 12`, or the path of keys in YAML.
    pub(crate) place: String,
    /// Name of the row as written; empty if the row has none.
    pub(crate) name: String,
    pub(crate) kind: ProblemKind,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProblemKind {
    #[error("no such field; remove it")]
    Unknown,
    #[error("no such field; did you mean {0}?")]
    Misspelled(&'static str),
    /// Repeated field, with the name of the earlier row.
    #[error("duplicate: the list already has the field as {0}; remove one")]
    Doubled(String),
    #[error("no type {0:?}; choose gauge, counter, untyped or label")]
    Type(String),
    #[error("not covered: no metric here provides its value; remove it")]
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
    /// Returns the default list of the release.
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

    /// Adds one row, or records the problem with the row.
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

    /// Adds a row like [`FieldList::add`], but parses the type.
    fn add_row(&mut self, place: &str, name: &str, kind: &str, help: &str, release: Release) {
        match FamilyType::ALL.into_iter().find(|known| known.name() == kind) {
            Some(kind) => {
                if help.contains(char::REPLACEMENT_CHARACTER) {
                    let why = "the help is not UTF-8: the other bytes are replaced".to_owned();
                    self.note(place, name, ProblemKind::Malformed(why));
                }
                self.add(place, name, kind, help, release);
            }
            // An unknown name is reported before an unknown type.
            None if find(name, release).is_none() => {
                self.add(place, name, FamilyType::Untyped, help, release);
            }
            None => self.note(place, name, ProblemKind::Type(clean(kind, MAX_NAME))),
        }
    }

    /// Keeps a problem, or only counts it if there are too many.
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

    /// Returns the number of problems, including those that are only counted.
    pub fn problem_count(&self) -> usize {
        let one = |problem: &Problem| if let ProblemKind::More(more) = problem.kind { more } else { 1 };
        self.problems.iter().map(one).sum()
    }

    /// Returns the profiling fields, which GPUs before Hopper do not have.
    pub fn profiling(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|column| PROFILING.contains(&column.field.id))
    }
}

/// Range of the profiling fields' numbers.
const PROFILING: std::ops::Range<u16> = 1000..1100;

/// Returns the most similar known name, if any name is similar enough.
fn nearest(name: &str) -> Option<&'static str> {
    let name = clean(name, MAX_NAME);
    let names = TABLE.iter().flat_map(|field| field.names.iter().copied());
    names
        .map(|known| (strsim::normalized_damerau_levenshtein(&name, known), known))
        .max_by(|one, two| one.0.total_cmp(&two.0))
        .filter(|(similarity, _)| *similarity > 0.8)
        .map(|(_, known)| known)
}

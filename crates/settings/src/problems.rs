//! What can be wrong with a configuration, and how it is told: one line a problem.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::rules::{KEYS, Rule, human};

/// Everything that is wrong with a configuration: never empty, one line a problem when displayed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<Problem>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// One thing that is wrong. `origin` says where it stands: a file, an environment variable or a flag.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// The configuration file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        error: String,
    },
    /// The configuration file is not TOML.
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line and column, from 1, where the parser knows them.
        position: Option<(usize, usize)>,
        /// What the parser says.
        message: String,
    },
    /// There is no such key.
    UnknownKey {
        /// The key as written.
        key: String,
        /// Where it stands.
        origin: String,
    },
    /// The value is of the wrong type or out of its range.
    BadValue {
        /// The key.
        key: String,
        /// Where it stands.
        origin: String,
        /// The value as read.
        found: String,
        /// What the key may hold.
        expected: String,
    },
    /// Two durations are in the wrong order.
    WrongOrder {
        /// The key that must not be the longer one, its value and where that stands.
        shorter: (&'static str, Duration, String),
        /// The key that must not be the shorter one, its value and where that stands.
        longer: (&'static str, Duration, String),
    },
    /// A pattern matches no metric that this build knows.
    NoSuchMetric {
        /// The key.
        key: &'static str,
        /// Where it stands.
        origin: String,
        /// The pattern.
        pattern: String,
        /// The metric whose name is nearest.
        nearest: Option<String>,
    },
    /// The declared MIG layout cannot be used.
    Layout {
        /// The key.
        key: &'static str,
        /// Where it stands.
        origin: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// The environment cannot be read.
    Environment(String),
}

impl Problem {
    pub(super) fn bad_value(key: &str, origin: String, found: String, rule: Rule) -> Self {
        Self::BadValue { key: key.into(), origin, found, expected: rule.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => {
                write!(f, "cannot read the configuration file {}: {error}", path.display())
            }
            Self::Syntax { path, position, message } => {
                write!(f, "{}", path.display())?;
                if let Some((line, column)) = position {
                    write!(f, ":{line}:{column}")?;
                }
                write!(f, ": not valid TOML: {message}")
            }
            Self::UnknownKey { key, origin } => {
                write!(f, "{key} ({origin}): there is no such key; ")?;
                match nearest(key, KEYS.iter().map(|(known, _)| *known)) {
                    Some(known) => write!(f, "did you mean {known}?"),
                    None => f.write_str("remove it"),
                }
            }
            Self::BadValue { key, origin, found, expected } => {
                write!(f, "{key} ({origin}): found {found}, expected {expected}")
            }
            Self::WrongOrder { shorter: (a, a_time, a_origin), longer: (b, b_time, b_origin) } => write!(
                f,
                "{b} ({b_origin}): \"{}\" is shorter than {a} ({a_origin}), which is \"{}\"; raise the first or \
                 lower the second",
                human(*b_time),
                human(*a_time),
            ),
            Self::NoSuchMetric { key, origin, pattern, nearest } => {
                write!(f, "{key} ({origin}): \"{pattern}\" matches no metric; ")?;
                if let Some(name) = nearest {
                    write!(f, "the nearest name is {name}; ")?;
                }
                f.write_str("`gpu-node-exporter metrics` lists them all")
            }
            Self::Layout { key, origin, message } => write!(f, "{key} ({origin}): {message}"),
            Self::Environment(message) => f.write_str(message),
        }
    }
}

/// The name most like `wanted`, if any is like enough to be what was meant.
pub(super) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (likeness(wanted, name), name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.6)
        .map(|(_, name)| name)
}

/// 0 to 1. A right key in the wrong section, or in none, is nearly right.
fn likeness(wanted: &str, name: &str) -> f64 {
    let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
    if last(wanted) == last(name) { 0.99 } else { strsim::normalized_damerau_levenshtein(wanted, name) }
}

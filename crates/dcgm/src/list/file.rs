//! The file that a list is in: CSV, YAML, a ConfigMap's manifest, or the folder as which a ConfigMap is mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::plain_file;
use model::text::clean;

use super::{FieldList, ProblemKind, csv, yaml};
use crate::fields::Release;

/// Longest file, in bytes: a ConfigMap has no more.
pub const MAX_BYTES: usize = 1 << 20;
/// Most keys of a mounted ConfigMap that are looked at.
const MAX_KEYS: usize = 1000;
/// The keys in which dcgm-exporter, its chart and GPU Operator have lists and configurations; the first one counts.
const KEYS: [&str; 6] = [
    "metrics",
    "dcgm-metrics.csv",
    "default-counters.csv",
    "dcp-metrics-included.csv",
    "config.yaml",
    "config.yml",
];

impl FieldList {
    /// The list in a text: CSV, YAML, or a ConfigMap's manifest. A file that the text names is not read: an error says so.
    pub fn parse(text: &str, release: Release) -> FieldList {
        let mut list = FieldList::default();
        list.take_text("", text, release, true, &mut |list, place, file| {
            let why = format!("{file} is not read from here; name it as the file of fields itself");
            list.note(place, "", ProblemKind::Malformed(why));
        });
        list
    }

    /// The list at a path: a file, or a folder that is a mounted ConfigMap. An error if nothing there can be read.
    pub fn read(path: &Path, release: Release) -> io::Result<FieldList> {
        let mut list = FieldList::default();
        let (file, text) = find(path)?;
        list.take_text("", &text, release, true, &mut |list, place, named| {
            let named = file.parent().unwrap_or(Path::new("")).join(named);
            match read_text(&named) {
                Ok(text) => {
                    let place = format!("{}: ", named.display());
                    csv::read(list, &place, &text, release);
                }
                Err(error) => {
                    let why = format!("{} is not read: {error}", named.display());
                    list.note(place, "", ProblemKind::Malformed(why));
                }
            }
        });
        Ok(list)
    }

    /// Whether a page of this list is empty: the list has no usable row.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    fn take_text(
        &mut self,
        place: &str,
        text: &str,
        release: Release,
        may_be_manifest: bool,
        take_file: &mut dyn FnMut(&mut FieldList, &str, &str),
    ) {
        if !yaml::is_yaml(text) {
            return csv::read(self, place, text, release);
        }
        match yaml::read(self, place, text, release) {
            yaml::YamlDocument::Fields => {}
            yaml::YamlDocument::File(file) => {
                let place = format!("{place}metrics.file");
                take_file(self, &place, &clean(&file, 4096));
            }
            yaml::YamlDocument::Default => {
                let problems = std::mem::take(&mut self.problems);
                *self = FieldList::default_of(release);
                self.problems = problems;
            }
            yaml::YamlDocument::Texts(texts) => {
                let keys: Vec<&str> = texts.iter().map(|(key, _)| key.as_str()).collect();
                match choose(&keys) {
                    Ok(_) if !may_be_manifest => {
                        let why = "a ConfigMap within a ConfigMap is not read".to_owned();
                        self.note(place.trim_end_matches(": "), "", ProblemKind::Malformed(why));
                    }
                    Ok(at) => {
                        let (key, text) = &texts[at];
                        let place = format!("data.{}: ", clean(key, 80));
                        self.take_text(&place, text, release, false, take_file);
                    }
                    Err(why) => self.note("data", "", ProblemKind::Malformed(why)),
                }
            }
        }
    }
}

/// Which of these keys of a ConfigMap has the list.
fn choose(keys: &[&str]) -> Result<usize, String> {
    if let [_] = keys {
        return Ok(0);
    }
    let known = KEYS.iter().find_map(|known| keys.iter().position(|key| key == known));
    known.ok_or_else(|| match keys {
        [] => "a ConfigMap without data".to_owned(),
        _ => {
            let found: Vec<String> = keys.iter().take(10).map(|key| clean(key, 80)).collect();
            let (found, known) = (found.join(", "), KEYS.join(", "));
            format!("none of the keys {found} is known to have a list; rename one to one of {known}")
        }
    })
}

/// The file at a path and its text; in a folder that of the key with the list.
fn find(path: &Path) -> io::Result<(PathBuf, String)> {
    if !fs::metadata(path)?.is_dir() {
        return Ok((path.to_owned(), read_text(path)?));
    }
    let mut keys = Vec::new();
    for entry in fs::read_dir(path)?.take(MAX_KEYS) {
        if let Ok(name) = entry?.file_name().into_string()
            && !name.starts_with('.')
        {
            keys.push(name);
        }
    }
    keys.sort();
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let at = choose(&names).map_err(|why| io::Error::new(io::ErrorKind::NotFound, why))?;
    let file = path.join(&keys[at]);
    let text = read_text(&file)?;
    Ok((file, text))
}

/// The text of a plain file, with U+FFFD for what is not UTF-8: the rows with it are problems. The keys of a mounted ConfigMap are links to `..data/KEY`: such a link is followed, no other.
fn read_text(path: &Path) -> io::Result<String> {
    let target = fs::read_link(path).ok();
    let of_config_map = path.file_name().map(|name| Path::new("..data").join(name));
    let bytes = match (path.parent(), target) {
        (Some(folder), Some(target)) if Some(&target) == of_config_map.as_ref() => {
            plain_file::read(&folder.join(target), MAX_BYTES)
        }
        _ => plain_file::read(path, MAX_BYTES),
    };
    Ok(String::from_utf8_lossy(&bytes?).into_owned())
}

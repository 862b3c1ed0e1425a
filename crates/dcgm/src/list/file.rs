//! Reader of the file that contains a list: CSV, YAML, a ConfigMap's manifest, or the directory of a mounted ConfigMap.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::plain_file;
use model::text::clean;

use super::{FieldList, ProblemKind, csv, yaml};
use crate::fields::Release;

/// Maximum length of a file in bytes, which is also the limit of a ConfigMap.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of keys of a mounted ConfigMap that are examined.
const MAX_KEYS: usize = 1000;
/// Keys that dcgm-exporter, its chart and GPU Operator use for lists and configurations. The first one found counts.
const KEYS: [&str; 6] = [
    "metrics",
    "dcgm-metrics.csv",
    "default-counters.csv",
    "dcp-metrics-included.csv",
    "config.yaml",
    "config.yml",
];

impl FieldList {
    /// Parses a list from CSV, YAML or a ConfigMap's manifest. If the text names another file, that file is not read
    /// and the list has a problem.
    pub fn parse(text: &str, release: Release) -> FieldList {
        let mut list = FieldList::default();
        list.take_text("", text, release, true, &mut |list, place, file| {
            let why = format!("{file} is not read from here; name it as the file of fields itself");
            list.note(place, "", ProblemKind::Malformed(why));
        });
        list
    }

    /// Reads the list from a file or from the directory of a mounted ConfigMap. Returns an error if nothing is
    /// readable there.
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

    /// Returns true if the list has no usable row, so that its page is empty.
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

/// Returns the position of the ConfigMap key that contains the list.
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

/// Returns the path and the text of the file. In a directory, this is the file of the key that contains the list.
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

/// Returns the text of a plain file. Bytes that are not UTF-8 become U+FFFD, and rows with such bytes are problems.
/// The keys of a mounted ConfigMap are links to `..data/KEY`. No other link is followed.
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

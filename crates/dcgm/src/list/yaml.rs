//! Parser for lists in YAML: dcgm-exporter's configuration of version 1 (from 4.8.3) or 2 (from 4.8.4), or the manifest
//! of a ConfigMap.
//!
//! dcgm-exporter does not start if a key is unknown or repeated. Here such a key is a problem, and the rest counts.
//! Keys for DCGM's collection, such as intervals and retention, are accepted without effect, because the page
//! triggers no collection.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Visitor};

use super::{FieldList, MAX_ROWS, ProblemKind};
use crate::fields::Release;

/// Content of a document.
pub(super) enum YamlDocument {
    /// Configuration of dcgm-exporter whose fields have been added to the list.
    Fields,
    /// Configuration that names the file with its fields.
    File(String),
    /// Configuration that leaves the fields at their default.
    Default,
    /// Texts of a ConfigMap by key.
    Texts(Vec<(String, String)>),
}

/// YAML value that keeps repeated keys.
enum YamlValue {
    /// Null, a text or a number, stored as text.
    Scalar(Option<String>),
    List(Vec<YamlValue>),
    Map(Vec<(String, YamlValue)>),
}

/// Keys of both versions, in addition to `metrics`. A star matches any item of a list.
const BOTH: &[&str] = &[
    "version",
    "metrics.enableExporterMetrics",
    "sources.dcgm.detectBindUnbind.enabled",
    "sources.dcgm.detectBindUnbind.pollInterval",
    "server.maxConcurrentScrapes",
];
/// Keys that only version 1 has.
const FIRST: &[&str] = &[
    "collection.interval",
    "collection.retention.maxAge",
    "collection.retention.maxSamples",
    "collection.watchGroups.*.name",
    "collection.watchGroups.*.interval",
    "collection.watchGroups.*.fields.*",
    "collection.watchGroups.*.retention.maxAge",
    "collection.watchGroups.*.retention.maxSamples",
];
/// Keys that only version 2 has.
const SECOND: &[&str] = &[
    "collections.*.name",
    "collections.*.every",
    "collections.*.metrics.include.*",
    "collections.*.sources.dcgm.watch.maxKeepAge",
    "collections.*.sources.dcgm.watch.maxKeepSamples",
    "sources.dcgm.watch.maxKeepAge",
    "sources.dcgm.watch.maxKeepSamples",
];

/// Returns true if a text is YAML rather than CSV: its first line with content is a key or starts a document.
pub(super) fn is_yaml(text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let Some(first) = lines.next() else { return false };
    if first.starts_with("---") || first.starts_with('{') || first.starts_with('%') {
        return true;
    }
    let Some((key, value)) = first.split_once(':') else { return false };
    let key = key.trim().trim_matches(['"', '\'']);
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_key && (value.is_empty() || value.starts_with([' ', '\t']))
}

/// Parses the first document of a text and adds its fields to the list.
pub(super) fn read(list: &mut FieldList, place: &str, text: &str, release: Release) -> YamlDocument {
    let mut documents = yaml_serde::Deserializer::from_str(text);
    let malformed = |why: String| ProblemKind::Malformed(why);
    // Without aliases, a text never uses more than two units per byte, whatever its nodes and escapes.
    let left = Cell::new(text.len() * 2 + 64);
    let reader = NodeReader { left: &left };
    let node = match documents.next().map(|document| reader.deserialize(document)) {
        Some(Ok(node)) => node,
        Some(Err(error)) => {
            let why = format!("invalid YAML: {error}");
            list.note(place.trim_end_matches(": "), "", malformed(why));
            return YamlDocument::Fields;
        }
        None => YamlValue::Map(Vec::new()),
    };
    if documents.next().is_some() {
        list.note(
            place.trim_end_matches(": "),
            "",
            malformed("only the first document counts; remove the others".into()),
        );
    }
    let YamlValue::Map(keys) = node else {
        let why = "neither a configuration of dcgm-exporter nor a ConfigMap".to_owned();
        list.note(place.trim_end_matches(": "), "", malformed(why));
        return YamlDocument::Fields;
    };
    let mut reader = YamlReader { list, place, release };
    let keys = reader.once("", keys);
    match scalar(&keys, "kind") {
        Some("ConfigMap") => YamlDocument::Texts(reader.texts(keys)),
        Some(kind) => {
            let why = format!("{kind:?} is not a ConfigMap");
            reader.problem("kind", why);
            YamlDocument::Fields
        }
        None => reader.configuration(keys),
    }
}

/// Returns the text of a key.
fn scalar<'a>(keys: &'a [(String, YamlValue)], name: &str) -> Option<&'a str> {
    keys.iter().find_map(|(key, node)| match node {
        YamlValue::Scalar(Some(text)) if key == name => Some(text.as_str()),
        _ => None,
    })
}

struct YamlReader<'a> {
    list: &'a mut FieldList,
    place: &'a str,
    release: Release,
}

impl YamlReader<'_> {
    fn problem(&mut self, path: &str, why: String) {
        self.list.note(&format!("{}{path}", self.place), "", ProblemKind::Malformed(why));
    }

    /// Returns the keys without repetitions, which become problems.
    fn once(&mut self, path: &str, keys: Vec<(String, YamlValue)>) -> Vec<(String, YamlValue)> {
        let mut once: Vec<(String, YamlValue)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for (key, node) in keys {
            if seen.insert(key.clone()) {
                once.push((key, node));
            } else {
                self.problem(&joined(path, &key), "duplicate: the first one counts; remove the other".into());
            }
        }
        once
    }

    /// Returns the texts of a ConfigMap.
    fn texts(&mut self, keys: Vec<(String, YamlValue)>) -> Vec<(String, String)> {
        let data = keys.into_iter().find_map(|(key, node)| match node {
            YamlValue::Map(data) if key == "data" => Some(data),
            _ => None,
        });
        let mut texts = Vec::new();
        for (key, node) in self.once("data", data.unwrap_or_default()) {
            match node {
                YamlValue::Scalar(Some(text)) => texts.push((key, text)),
                _ => self.problem(&joined("data", &key), "no text".into()),
            }
        }
        texts
    }

    fn configuration(&mut self, keys: Vec<(String, YamlValue)>) -> YamlDocument {
        let version = scalar(&keys, "version").map(str::to_owned);
        let mut known: Vec<&str> = BOTH.to_vec();
        match version.as_deref() {
            Some("1") => known.extend(FIRST),
            Some("2") => known.extend(SECOND),
            other => {
                known.extend(FIRST.iter().chain(SECOND));
                let why = match other {
                    Some(other) => {
                        format!(
                            "version {other:?} is not understood; 1 and 2 are, and its keys are read as theirs"
                        )
                    }
                    None => "missing; set it to 1 or 2".to_owned(),
                };
                self.problem("version", why);
            }
        }
        let version = version.filter(|version| ["1", "2"].contains(&version.as_str()));
        let mut document = YamlDocument::Default;
        for (key, node) in keys {
            match node {
                YamlValue::Map(metrics) if key == "metrics" => document = self.metrics(metrics, &known),
                node => self.check(&key, node, &known, version.as_deref()),
            }
        }
        document
    }

    /// Reports keys that the version does not have, and keys whose value has the wrong kind.
    fn check(&mut self, path: &str, node: YamlValue, known: &[&str], version: Option<&str>) {
        let Some(next) = known.iter().find_map(|name| below(path, name)) else {
            let whose = match version {
                Some(version) => format!("version {version} has no such key"),
                None => "neither version 1 nor 2 has such a key".to_owned(),
            };
            return self.problem(path, format!("not understood: {whose}; remove it"));
        };
        match (node, next) {
            (YamlValue::Scalar(None), _) | (YamlValue::Scalar(_), None) => {}
            (YamlValue::Map(keys), Some(next)) if next != "*" => {
                for (key, node) in self.once(path, keys) {
                    self.check(&joined(path, &key), node, known, version);
                }
            }
            (YamlValue::List(items), Some("*")) => {
                for (at, node) in items.into_iter().enumerate() {
                    self.check(&format!("{path}[{at}]"), node, known, version);
                }
            }
            (_, None) => self.problem(path, "expected a text or a number".into()),
            (_, Some("*")) => self.problem(path, "expected a list".into()),
            (_, Some(_)) => self.problem(path, "expected keys".into()),
        }
    }

    fn metrics(&mut self, keys: Vec<(String, YamlValue)>, known: &[&str]) -> YamlDocument {
        let mut document = YamlDocument::Default;
        for (key, node) in self.once("metrics", keys) {
            let path = joined("metrics", &key);
            match (key.as_str(), node) {
                ("file", YamlValue::Scalar(Some(file))) => match document {
                    YamlDocument::Default => document = YamlDocument::File(file),
                    _ => self
                        .problem(&path, "fields is set too and has precedence; remove one of the two".into()),
                },
                ("fields", YamlValue::List(rows)) => {
                    if matches!(document, YamlDocument::File(_)) {
                        self.problem(
                            "metrics.file",
                            "fields is set too and has precedence; remove one of the two".into(),
                        );
                    }
                    document = YamlDocument::Fields;
                    self.fields(rows);
                }
                ("file" | "fields", _) => {
                    self.problem(&path, "not understood: file is a path, fields is a list".into());
                }
                (_, node) => self.check(&path, node, known, None),
            }
        }
        document
    }

    fn fields(&mut self, rows: Vec<YamlValue>) {
        for (at, row) in rows.into_iter().enumerate() {
            let path = format!("metrics.fields[{at}]");
            if at >= MAX_ROWS {
                return self
                    .problem(&path, format!("the rows from here on are not read: {MAX_ROWS} are too many"));
            }
            let YamlValue::Map(keys) = row else {
                self.problem(&path, "a row has the keys name, prometheusType and help".into());
                continue;
            };
            let keys = self.once(&path, keys);
            for (key, _) in &keys {
                if !["name", "prometheusType", "help"].contains(&key.as_str()) {
                    let why = "not understood: a row has the keys name, prometheusType and help; remove it";
                    self.problem(&joined(&path, key), why.into());
                }
            }
            let place = format!("{}{path}", self.place);
            match (scalar(&keys, "name"), scalar(&keys, "prometheusType"), scalar(&keys, "help")) {
                (Some(name), Some(kind), Some(help)) => {
                    self.list.add_row(&place, name, kind, help, self.release)
                }
                (name, kind, _) => {
                    let missing = if name.is_none() {
                        "name"
                    } else if kind.is_none() {
                        "prometheusType"
                    } else {
                        "help"
                    };
                    let why = format!("{missing} is missing; add it");
                    self.list.note(&place, name.unwrap_or_default(), ProblemKind::Malformed(why));
                }
            }
        }
    }
}

fn joined(path: &str, key: &str) -> String {
    let key = model::text::clean(key, super::MAX_NAME);
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// Returns the rest of a known key after a path such as `a.b[3].c`. The rest is `Some(None)` at the end of the key, and
/// `None` if the path does not lead to the key.
fn below<'a>(path: &str, known: &'a str) -> Option<Option<&'a str>> {
    let parts = path.split(['.', '[']).map(|part| if part.ends_with(']') { "*" } else { part });
    let mut known = known.split('.');
    parts.into_iter().all(|part| known.next() == Some(part)).then(|| known.next())
}

/// Deserializer with a memory limit, because a few nested aliases can expand to any number of nodes.
#[derive(Clone, Copy)]
struct NodeReader<'a> {
    left: &'a Cell<usize>,
}

impl NodeReader<'_> {
    /// Charges one unit for a node and one for every byte of its text.
    fn charge<E: de::Error>(self, length: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(length + 1);
        self.left.set(left.ok_or_else(|| E::custom("aliases make it too large; write their texts out"))?);
        Ok(())
    }

    fn text<E: de::Error>(self, text: String) -> Result<YamlValue, E> {
        self.charge(text.len())?;
        Ok(YamlValue::Scalar(Some(text)))
    }
}

impl<'de> DeserializeSeed<'de> for NodeReader<'_> {
    type Value = YamlValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlValue, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeReader<'_> {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, a list or keys")
    }

    fn visit_unit<E: de::Error>(self) -> Result<YamlValue, E> {
        self.charge(0)?;
        Ok(YamlValue::Scalar(None))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<YamlValue, E> {
        self.text(value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<YamlValue, E> {
        self.text(value.to_string())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<YamlValue, E> {
        self.text(value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<YamlValue, E> {
        self.charge(3)?;
        // Writes 1e300, not 300 zeros.
        Ok(YamlValue::Scalar(Some(format!("{value:?}"))))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<YamlValue, E> {
        self.charge(value.len())?;
        Ok(YamlValue::Scalar(Some(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<YamlValue, A::Error> {
        self.charge(0)?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self)? {
            items.push(item);
        }
        Ok(YamlValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<YamlValue, A::Error> {
        self.charge(0)?;
        let mut keys = Vec::new();
        while let Some((key, value)) = access.next_entry_seed(self, self)? {
            let YamlValue::Scalar(Some(key)) = key else {
                return Err(de::Error::custom("a key that is no text"));
            };
            keys.push((key, value));
        }
        Ok(YamlValue::Map(keys))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<YamlValue, A::Error> {
        Err(de::Error::custom("a tag, which nothing here has"))
    }
}

//! Lookup of keys by name, and the TOML file that documents all keys.

use super::Config;
use super::key::{Key, Section};
use super::settings::SECTIONS;

/// Returns all settings, in the order of the file.
pub(super) fn keys() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// Returns the setting with this name.
pub(super) fn key(name: &str) -> Option<&'static Key> {
    keys().find(|key| key.name == name)
}

/// Maximum line width of comments.
pub(super) const WIDTH: usize = 105;

const HEADER: &str = "\
# gpu-node-exporter: all keys with their defaults. Generated from crates/settings/src/settings.rs.
#
# A configuration file needs only the keys that it changes. Environment variables override the file, and
# flags override both. The variable for log.level is GPU_NODE_EXPORTER__LOG__LEVEL, with two underscores
# before the section and before the key. Commas separate the items of a list. Write durations as \"100ms\",
# \"10s\" or \"5m\".
#
# Check a file:  gpu-node-exporter check-config --config FILE
# Apply it:      save the file, or run `systemctl reload gpu-node-exporter`. Keys marked \"Needs a restart.\"
#                require `systemctl restart gpu-node-exporter`.

";

/// Keys whose values differ in a new configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedKeys {
    /// Keys that apply immediately.
    pub applied: Vec<&'static str>,
    /// Keys that keep their values until a restart.
    pub waiting: Vec<&'static str>,
}

impl Config {
    /// Adopts the values of a new configuration that can change while the daemon runs. All other values remain, so that
    /// no part of the daemon uses their new values.
    pub fn apply(&mut self, new: &Config) -> ChangedKeys {
        let mut changed = ChangedKeys::default();
        let mut before = self.clone();
        for key in keys().filter(|key| (key.adopt)(&mut before, new)) {
            let names = if key.is_live { &mut changed.applied } else { &mut changed.waiting };
            names.push(key.name);
            if key.is_live {
                (key.adopt)(self, new);
            }
        }
        changed
    }

    /// Returns the shipped file, which documents every key and sets it to its default.
    pub fn commented() -> String {
        let key_comment = |key: &Key| {
            let floor = key.floor.iter().map(|(floor, _)| format!(", at least {floor}"));
            let value = format!("Value: {}{}.", (key.expected)(), floor.collect::<String>());
            let restart = if key.is_live { "" } else { " Needs a restart." };
            format!("{}{}", comment(key.doc), comment(&format!("{value}{restart}")))
        };
        let text = Self::default().to_toml(|section| comment(section.doc), key_comment, |_| String::new());
        format!("{HEADER}{text}")
    }

    /// Returns the configuration as TOML, with the given texts above sections, above keys and after keys.
    pub(super) fn to_toml(
        &self,
        section_comment: impl Fn(&Section) -> String,
        above: impl Fn(&Key) -> String,
        after: impl Fn(&Key) -> String,
    ) -> String {
        let sections = SECTIONS.iter().map(|section| {
            let keys = section.keys.iter().map(|key| {
                let name = key.name.rsplit('.').next().unwrap_or_default();
                format!("{}{name} = {}{}\n", above(key), (key.toml)(self), after(key))
            });
            format!("{}[{}]\n{}", section_comment(section), section.name, keys.collect::<String>())
        });
        sections.collect::<Vec<_>>().join("\n")
    }
}

/// Wraps a text into comment lines. An empty line separates paragraphs.
fn comment(text: &str) -> String {
    let mut out = String::new();
    for paragraph in text.trim_end().split("\n\n") {
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.len() + word.len() >= WIDTH {
                out.push_str(&line);
                out.push('\n');
                line.truncate(1);
            }
            line.push(' ');
            line.push_str(word);
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

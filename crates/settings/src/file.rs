//! The keys by name, and the TOML file that documents them.

use super::Config;
use super::key::{Key, Section};
use super::settings::SECTIONS;

/// All settings, in the order of the file.
pub(super) fn keys() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// The setting of this name.
pub(super) fn key(name: &str) -> Option<&'static Key> {
    keys().find(|key| key.name == name)
}

/// Line width of comments.
pub(super) const WIDTH: usize = 105;

const HEADER: &str = "\
# gpu-node-exporter: every key at its default. Generated from crates/settings/src/settings.rs.
#
# A file needs only the keys it changes. Environment variables take precedence over the file, flags over
# both. The variable of log.level is GPU_NODE_EXPORTER__LOG__LEVEL, with two underscores before the section
# and before the key; commas separate the items of a list. Durations are such as \"100ms\", \"10s\" or \"5m\".
#
# Check a file:  gpu-node-exporter check-config --config FILE
# Apply it:      saving the file or `systemctl reload gpu-node-exporter` applies it, but for keys that need
#                `systemctl restart gpu-node-exporter`

";

/// The keys that a new configuration changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedKeys {
    /// Those that apply at once.
    pub applied: Vec<&'static str>,
    /// Those that keep their values until a restart.
    pub waiting: Vec<&'static str>,
}

impl Config {
    /// Takes over each value of a new configuration that can change while the daemon runs. The others stay as they
    /// are, so that no part of the daemon sees them changed.
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

    /// The file with every key at its default, and the meaning of each key.
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

    /// The configuration as TOML, with a text above each section, above each key and after each key.
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

/// The text in comment lines, each paragraph wrapped for itself; an empty line ends a paragraph.
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

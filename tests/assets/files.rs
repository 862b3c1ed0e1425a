//! The files that are checked, as the repository has them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// A file's text.
pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files of a folder with this ending, in order; none where there is no such folder.
pub fn list(folder: &str, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.is_file() && path.to_string_lossy().ends_with(ending)).collect();
    paths.sort();
    paths
}

/// A path as people write it.
pub fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Rule files, the optional ones too.
pub fn rule_files() -> Vec<PathBuf> {
    ["alerts", "alerts/optional"].into_iter().flat_map(|folder| list(folder, ".rules.yml")).collect()
}

/// One rule as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the series that it records.
    pub record: Option<String>,
    /// Name of the alert.
    pub alert: Option<String>,
    /// The expression.
    pub expr: String,
    /// How long it must hold.
    #[serde(rename = "for")]
    pub _lasts: Option<String>,
    /// How long it goes on after its end.
    #[serde(rename = "keep_firing_for")]
    pub _keep: Option<String>,
    /// Labels that it adds.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What people read.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    interval: Option<String>,
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Groups {
    groups: Vec<Group>,
}

/// All rules, each with the file that it is in.
pub fn rules() -> Vec<(String, Rule)> {
    rules_of(rule_files())
}

/// Rules that operators write, as the examples have them.
pub fn example_rules() -> Vec<(String, Rule)> {
    rules_of(list("alerts/optional", ".example.yml"))
}

/// Each group's file and name, and how often it is evaluated, if it says so.
pub fn intervals() -> Vec<(String, Option<String>)> {
    let of = |path: &PathBuf| {
        let file = name(path);
        let named = |group: Group| (format!("{file}: {}", group.name), group.interval);
        groups(&file, &read(path)).into_iter().map(named).collect::<Vec<_>>()
    };
    rule_files().iter().flat_map(of).collect()
}

/// Each group's file and name, and how many rules it has.
pub fn sizes() -> Vec<(String, usize)> {
    let of = |path: &PathBuf| {
        let file = name(path);
        let sized = |group: Group| (format!("{file}: {}", group.name), group.rules.len());
        groups(&file, &read(path)).into_iter().map(sized).collect::<Vec<_>>()
    };
    rule_files().iter().flat_map(of).collect()
}

/// The rules in a text that is named so.
pub fn rules_in(name: &str, text: &str) -> Vec<(String, Rule)> {
    let rules = groups(name, text).into_iter().flat_map(|group| group.rules);
    rules.map(|rule| (name.to_owned(), rule)).collect()
}

fn groups(name: &str, text: &str) -> Vec<Group> {
    let groups: Groups = yaml_serde::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    groups.groups
}

fn rules_of(paths: Vec<PathBuf>) -> Vec<(String, Rule)> {
    paths.iter().flat_map(|path| rules_in(&name(path), &read(path))).collect()
}

/// The alerts, each with the file that it is in.
pub fn alerts() -> Vec<(String, String, Rule)> {
    let named = |(file, rule): (String, Rule)| rule.alert.clone().map(|alert| (file, alert, rule));
    rules().into_iter().filter_map(named).collect()
}

/// The dashboards: file and document.
pub fn dashboards() -> Vec<(String, serde_json::Value)> {
    let parse = |path: &PathBuf| {
        serde_json::from_str(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", name(path)))
    };
    list("dashboards", ".json").iter().map(|path| (name(path), parse(path))).collect()
}

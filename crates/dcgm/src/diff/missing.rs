//! Reasons why our page lacks a family of dcgm-exporter's page.

use model::text::clean;
use serde::Serialize;

use super::series::ScrapedFamily;
use super::{DiffConfig, FamilyDiff};
use crate::fields::{Release, find};
use crate::list::FieldList;

/// Maximum length of the help text that a row repeats, in bytes.
const MAX_HELP: usize = 400;

/// Reason why a family is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum MissingReason {
    /// The family is not in our list of fields. This CSV row would add it.
    NotListed { row: String },
    /// The default list of this other release has the family.
    OtherRelease { release: &'static str },
    /// The family is listed, but no GPU has a value.
    NoValue,
    /// The field is known, but no metric of ours provides its value.
    NotCovered,
    /// The series are not about GPUs. Our page has no families for NVLinks, NVSwitches and CPUs.
    NotGpu,
    /// The name is not in our table of DCGM's fields.
    Unknown,
}

impl MissingReason {
    pub fn text(&self) -> String {
        let text = match self {
            MissingReason::OtherRelease { release } => {
                return format!("a name of release {release}: see dcgm.release");
            }
            MissingReason::NotListed { .. } => "not listed; add a row to the file of dcgm.fields_file",
            MissingReason::NoValue => {
                "listed, but no GPU has a value; `gpu-node-exporter doctor` lists what is unsupported or not permitted"
            }
            MissingReason::NotCovered => "not covered: no metric here provides its value",
            MissingReason::NotGpu => "not covered: series of NVLinks, NVSwitches and CPUs",
            MissingReason::Unknown => "not covered: not a known DCGM field",
        };
        text.to_owned()
    }
}

pub fn reason(name: &str, theirs: &ScrapedFamily<'_>, config: DiffConfig<'_>) -> MissingReason {
    let about_gpu =
        theirs.series.iter().any(|one| !one.label("UUID").is_empty() || !one.label("uuid").is_empty());
    if !about_gpu {
        return MissingReason::NotGpu;
    }
    let Some(field) = find(name, config.page.release) else { return MissingReason::Unknown };
    if !field.is_served() {
        return MissingReason::NotCovered;
    }
    match config.page.fields.columns.iter().any(|column| column.name == name) {
        true => MissingReason::NoValue,
        false => MissingReason::NotListed { row: row(name, theirs.kind, theirs.help) },
    }
}

/// Returns the CSV row that declares the family as dcgm-exporter does.
pub fn row(name: &str, kind: &str, help: &str) -> String {
    let help = clean(help, MAX_HELP);
    match help.contains([',', '"']) {
        true => format!("{name},{kind},\"{}\"", help.replace('"', "\"\"")),
        false => format!("{name},{kind},{help}"),
    }
}

/// Returns true if the default list of a release has a family or label of this name.
pub fn is_default(name: &str, release: Release) -> bool {
    let list = FieldList::default_of(release);
    list.columns.iter().chain(&list.labels).any(|column| column.name == name)
}

/// Changes the reason to `OtherRelease` if the default list of that release has the family.
pub fn by_release(family: &mut FamilyDiff, release: Option<Release>) {
    if let (Some(MissingReason::NotListed { .. }), Some(release)) = (&family.missing, release)
        && is_default(&family.name, release)
    {
        family.missing = Some(MissingReason::OtherRelease { release: release.name() });
    }
}

//! Advice for a switch: the settings that make the pages alike, the losses that remain, and the verdict.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::labels::{LabelDiff, LabelState};
use super::missing::{MissingReason, is_default, row};
use super::{DiffConfig, FamilyDiff, FamilyState, GpuSets};
use crate::fields::{Release, TABLE, find};
use crate::page::{PageConfig, Values};

/// Verdict on switching dashboards, alerts and autoscalers to our page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchVerdict {
    /// Our page has everything that dcgm-exporter's page has, with the same values.
    Safe,
    /// The switch is safe after the settings are changed.
    AfterSettings,
    /// Something is lost or differs, and no setting changes that.
    Lossy,
}

/// Setting in the section `dcgm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingAdvice {
    /// Key of the setting, without the section.
    pub key: &'static str,
    /// Value of the setting in TOML.
    pub value: String,
    /// Difference that the setting removes.
    pub reason: String,
}

/// Settings, losses and additions that follow from the differences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    pub settings: Vec<SettingAdvice>,
    /// Rows that the file of `dcgm.fields_file` needs.
    pub rows: Vec<String>,
    /// Differences that no setting removes.
    pub lost: Vec<String>,
    /// Harmless additions of our page that remain after the switch.
    pub stays: Vec<String>,
    pub verdict: SwitchVerdict,
}

#[derive(Default)]
struct AdviceDraft {
    settings: BTreeMap<&'static str, (String, BTreeSet<String>)>,
    rows: BTreeSet<String>,
    lost: Vec<String>,
    stays: Vec<String>,
}

impl AdviceDraft {
    fn set(&mut self, key: &'static str, value: impl Into<String>, reason: impl Into<String>) {
        let known = self.settings.entry(key).or_insert_with(|| (value.into(), BTreeSet::new()));
        known.1.insert(reason.into());
    }

    /// Adds a row that the list of fields needs. dcgm-exporter's image contains such a list, and its chart a ConfigMap.
    fn list(&mut self, row: String, reason: &str) {
        self.set("fields_file", "\"...\"", reason);
        self.rows.insert(row);
    }
}

pub fn advise(
    gpus: &GpuSets,
    families: &[FamilyDiff],
    labels: &[LabelDiff],
    release: Option<Release>,
    config: DiffConfig<'_>,
) -> Advice {
    let mut found = AdviceDraft::default();
    if let Some(release) = release {
        let reason = format!("families and labels have the names of {}", release.name());
        found.set("release", format!("{:?}", release.name()), reason);
    }
    let by_release = |name: &str| release.is_some_and(|release| is_default(name, release));
    for gpu in &gpus.missing {
        found.lost.push(format!(
            "GPU {gpu} is only on dcgm-exporter's page; run `gpu-node-exporter doctor` for the reason"
        ));
    }
    for gpu in &gpus.extra {
        found.stays.push(format!("GPU {gpu}, which is not on dcgm-exporter's page"));
    }
    for family in families {
        of_family(family, config, &mut found);
    }
    for label in labels {
        of_label(label, config, &by_release, &mut found);
    }
    let AdviceDraft { settings, rows, lost, stays } = found;
    let setting = |(key, (value, reasons)): (&'static str, (String, BTreeSet<String>))| SettingAdvice {
        key,
        value,
        reason: reasons.into_iter().collect::<Vec<_>>().join("; "),
    };
    let settings: Vec<SettingAdvice> = settings.into_iter().map(setting).collect();
    let verdict = match (lost.is_empty(), settings.is_empty()) {
        (false, _) => SwitchVerdict::Lossy,
        (true, false) => SwitchVerdict::AfterSettings,
        (true, true) => SwitchVerdict::Safe,
    };
    Advice { settings, rows: rows.into_iter().collect(), lost, stays, verdict }
}

/// Returns the release that has more of dcgm-exporter's names than the configured release. Returns `None` if no name is
/// missing or the list of fields is not the default list.
pub fn other_release(
    families: &[FamilyDiff],
    labels: &[LabelDiff],
    config: DiffConfig<'_>,
) -> Option<Release> {
    let theirs = families.iter().filter(|family| !family.states.contains(&FamilyState::Extra));
    let missing = families.iter().filter(|family| family.missing.is_some()).map(|family| &family.name);
    let renamed = labels.iter().filter(|label| matches!(label.state, LabelState::Renamed { .. }));
    let lacking: Vec<&String> = missing.chain(renamed.map(|label| &label.name)).collect();
    let count = |release| theirs.clone().filter(|family| is_default(&family.name, release)).count();
    let set = config.page.release;
    let has_more =
        |other: &Release| count(*other) > count(set) && lacking.iter().any(|name| is_default(name, *other));
    let mut others = Release::ALL.into_iter().filter(|other| *other != set && !config.own_list);
    others.find(has_more)
}

fn of_family(family: &FamilyDiff, config: DiffConfig<'_>, found: &mut AdviceDraft) {
    let name = &family.name;
    match &family.missing {
        Some(MissingReason::OtherRelease { .. }) | None => {}
        Some(MissingReason::NotListed { row }) => {
            found.list(row.clone(), "families missing from the list of fields");
        }
        Some(reason) => found.lost.push(format!("{name}: {}", reason.text())),
    }
    if let Some((theirs, ours)) = &family.types {
        let column = config.page.fields.columns.iter().find(|column| column.name == *name);
        let declared = column.is_some_and(|column| column.kind.name() == theirs);
        match declared && config.page.values == Values::Corrected {
            true => found.set("values", "\"faithful\"", "types as the list of fields declares them"),
            false => {
                let row = row(name, theirs, column.map_or("", |column| &column.help));
                found.list(row, &format!("types as dcgm-exporter's list declares them (here {ours})"));
            }
        }
    }
    for label in family.labels.iter().filter(|label| label.name == "window_size_in_ms") {
        if let LabelState::OtherValue { theirs, .. } = &label.state {
            let key = if name.contains("XID") { "xid_window" } else { "clock_events_window" };
            found.set(key, format!("\"{theirs}ms\""), format!("the window of {name}"));
        }
    }
    let divided = family.missing_series.example.contains("GPU_I_ID");
    for (series, only) in
        [(&family.missing_series, "dcgm-exporter's"), (&family.extra_series, "this exporter's")]
    {
        if series.count == 0 {
            continue;
        }
        if config.page.values == Values::Corrected && divided {
            found.set("values", "\"faithful\"", "values of the board on each MIG instance");
            continue;
        }
        let shared = only.starts_with("dcgm") && series.example.contains("pod=");
        let hint =
            if shared { "; dcgm.values = \"corrected\" has one for each pod that shares a GPU" } else { "" };
        let text =
            format!("{name}: {} series only on {only} page, such as {}{hint}", series.count, series.example);
        if only.starts_with("dcgm") { found.lost.push(text) } else { found.stays.push(text) }
    }
    if let Some((series, theirs, ours)) = &family.values.worst {
        let units = TABLE.iter().filter(|field| field.names.contains(&&**name)).count();
        match units > 1 {
            // Both releases have the name, one in percent and the other as a ratio.
            true => {
                let other = Release::ALL.into_iter().find(|release| *release != config.page.release);
                let value = format!("{:?}", other.unwrap_or_default().name());
                found.set("release", value, format!("the unit of {name}"));
            }
            false => found.lost.push(format!(
                "{name}: {} of {} values outside the tolerance, such as {series} with {theirs} there and {ours} here",
                family.values.outside, family.values.compared
            )),
        }
    }
}

fn of_label(
    label: &LabelDiff,
    config: DiffConfig<'_>,
    by_release: &impl Fn(&str) -> bool,
    found: &mut AdviceDraft,
) {
    if let Some((key, value, reason)) = setting_for(label, config.page) {
        return found.set(key, value, reason);
    }
    let LabelDiff { name, state, families, .. } = label;
    let is_field = find(name, config.page.release).is_some_and(|field| field.is_served());
    match (name.as_str(), state) {
        // The window is part of the family's name.
        (_, LabelState::Same) | ("window_size_in_ms", LabelState::OtherValue { .. }) => {}
        (name, LabelState::Missing | LabelState::Renamed { .. }) if is_field => {
            if !by_release(name) {
                found.list(row(name, "label", ""), "labels missing from the list of fields");
            }
        }
        ("hostname" | "Hostname", LabelState::OtherValue { theirs, ours }) => found.lost.push(format!(
            "label {name} is {theirs:?} there and {ours:?} here: give both exporters the same variable NODE_NAME"
        )),
        // The number of the Xid is in err_code.
        ("err_msg", LabelState::OtherValue { theirs, ours }) => found.stays.push(format!(
            "label err_msg has this exporter's own texts, in {families} families, such as {theirs:?} there and {ours:?} here"
        )),
        ("pod" | "namespace" | "container", LabelState::Missing) => found.lost.push(format!(
            "label {name}, in {families} families: the kubelet reports no pod here; run `gpu-node-exporter doctor` for the reason"
        )),
        (name, LabelState::Missing) => {
            found.lost.push(format!("label {name}, in {families} families: no setting adds it"));
        }
        (name, LabelState::Renamed { ours }) => found.lost.push(format!(
            "label {name} is {ours} here, in {families} families: rename it with a relabelling rule of the scrape"
        )),
        (name, LabelState::OtherValue { theirs, ours }) => found.lost.push(format!(
            "label {name} has other values in {families} families, such as {theirs:?} there and {ours:?} here"
        )),
        (name, LabelState::Extra) => found.stays.push(format!("label {name}, in {families} families")),
    }
}

/// Returns the setting that makes a label alike, if there is one: its key, its value and the reason.
fn setting_for(label: &LabelDiff, page: &PageConfig) -> Option<(&'static str, String, String)> {
    let name = label.name.as_str();
    let (missing, extra) = (label.state == LabelState::Missing, label.state == LabelState::Extra);
    let renamed = matches!(label.state, LabelState::Renamed { .. });
    let (key, value, reason): (_, &str, &str) = match name {
        "hostname" | "Hostname" if missing || renamed => {
            return Some(("hostname_label", format!("{name:?}"), format!("the label {name}")));
        }
        "hostname" | "Hostname" if extra => {
            return Some(("hostname_label", "\"\"".to_owned(), format!("no label {name}")));
        }
        "pod" | "namespace" | "container" if missing && !page.pods => ("pods", "true", "labels of pods"),
        "pod" | "namespace" | "container" if extra => ("pods", "false", "no labels of pods"),
        name if name.starts_with("dra_") && missing && !page.pods => ("pods", "true", "labels of claims"),
        name if name.starts_with("dra_") && extra => ("pods", "false", "no labels of claims"),
        "pod_uid" if missing && !page.pod_uids => {
            ("pod_uids", "true", "the label pod_uid, of pods whose processes are on the GPU")
        }
        "hpc_job" if missing && !page.jobs && !page.job_files => {
            ("hpc_job_dir", "\"...\"", "the directory of dcgm-exporter's --hpc-job-mapping-dir")
        }
        "hpc_job" if extra => ("jobs", "false", "no label hpc_job; hpc_job_dir = \"\" as well"),
        "GPU_CI_ID" | "GPU_I_ID" | "GPU_I_PROFILE" if missing && page.values == Values::Corrected => {
            ("values", "\"faithful\"", "labels of MIG instances")
        }
        _ => return None,
    };
    Some((key, value.to_owned(), reason.to_owned()))
}

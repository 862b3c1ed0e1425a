//! The page: a pure function of the snapshot.
//!
//! [`entities`] lists what the page is about, [`labels`] writes what identifies each, [`values`] finds the values of a
//! field, [`own`] those of the families that dcgm-exporter makes itself, [`number`] writes them.

mod entities;
mod health;
mod labels;
mod number;
mod own;
mod values;

use std::borrow::Cow;

use model::snapshot::Snapshot;

use crate::fields::{FamilyType, FieldSource, Release};
use crate::list::{Column, FieldList};
use entities::{Entities, PageEntity};
use labels::Labels;

/// Whether the page has dcgm-exporter's known faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// As dcgm-exporter has them.
    #[default]
    Faithful,
    /// Without them: see [`CORRECTIONS`].
    Corrected,
}

impl Values {
    /// Both.
    pub const ALL: [Values; 2] = [Values::Faithful, Values::Corrected];

    /// As the setting names it.
    pub const fn name(self) -> &'static str {
        match self {
            Values::Faithful => "faithful",
            Values::Corrected => "corrected",
        }
    }
}

/// What [`Values::Corrected`] changes: what dcgm-exporter has, and what the page has instead.
pub const CORRECTIONS: &[(&str, &str)] = &[
    (
        "A family has the type that the list of fields declares: rates and states as counters.",
        "A family has the type that its values have.",
    ),
    (
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL divides KiB by 1,000 and calls the result MB.",
        "It is in MB: 1,000,000 bytes a second.",
    ),
    (
        "With MIG a value of the board is on each GPU instance: a sum counts it several times.",
        "It is on the GPU once, without labels of an instance; where the instance has a value of its own (PCIe, NVLink), \
         that one is on the instance.",
    ),
    (
        "With MIG memory and activity of a GPU instance are on each of its compute instances.",
        "They are on the GPU instance once.",
    ),
    (
        "A GPU that the device plugin gave to several pods names one of them; of a claim it names each.",
        "There is a series for each of them.",
    ),
    (
        "With MIG DCGM_EXP_XID_ERRORS_COUNT is 0 on each instance, and DCGM_EXP_XID_ERRORS_TOTAL has no series.",
        "Both are on the GPU.",
    ),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT is 0 where the clock events were never read.", "It is absent."),
];

/// What the page has.
#[derive(Clone, Debug)]
pub struct PageConfig {
    /// The release whose page is made.
    pub release: Release,
    /// Its families and labels.
    pub fields: FieldList,
    /// Whether its known faults are kept.
    pub values: Values,
    /// Name of the label with the host's name; empty for none.
    pub hostname_label: String,
    /// The host's name; empty: no label.
    pub hostname: String,
    /// Whether series have the labels of the pod and claim that was given the GPU.
    pub pods: bool,
    /// Whether they have the pod's UID as well.
    pub pod_uids: bool,
    /// Whether series have the label of the job whose processes have the GPU, by their environments.
    pub jobs: bool,
    /// Whether they have the label of the jobs that a scheduler's hooks wrote down for dcgm-exporter.
    pub job_files: bool,
    /// Length of the window of `DCGM_EXP_XID_ERRORS_COUNT`, in milliseconds.
    pub xid_window_ms: u64,
    /// Length of the window of `DCGM_EXP_CLOCK_EVENTS_COUNT`, in milliseconds.
    pub clock_events_window_ms: u64,
}

/// dcgm-exporter's default for both windows.
pub const WINDOW_MS: u64 = 300_000;

impl PageConfig {
    /// What the release serves without any setting, on the host of this name.
    pub fn for_release(release: Release, hostname: &str) -> PageConfig {
        PageConfig {
            release,
            fields: FieldList::default_of(release),
            values: Values::Faithful,
            // Until 4.8.2 it was `Hostname`.
            hostname_label: "hostname".to_owned(),
            hostname: hostname.to_owned(),
            pods: true,
            pod_uids: false,
            jobs: false,
            job_files: false,
            xid_window_ms: WINDOW_MS,
            clock_events_window_ms: WINDOW_MS,
        }
    }

    fn corrected(&self) -> bool {
        self.values == Values::Corrected
    }

    /// The type of a family.
    fn kind(&self, column: &Column) -> FamilyType {
        if self.corrected() { column.field.kind } else { column.kind }
    }
}

impl Default for PageConfig {
    fn default() -> PageConfig {
        PageConfig::for_release(Release::default(), "")
    }
}

/// A label with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PageLabel<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, str>,
}

impl<'a> PageLabel<'a> {
    fn new(name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> PageLabel<'a> {
        PageLabel { name: name.into(), value: value.into() }
    }
}

/// One value of a family.
struct PageSample {
    entity: PageEntity,
    /// Labels that the family adds.
    labels: Vec<PageLabel<'static>>,
    /// Attributes that the family adds: behind all labels.
    attributes: Vec<PageLabel<'static>>,
    value: f64,
}

/// Appends the page of this snapshot. A family without a value is left out.
pub fn encode(config: &PageConfig, snapshot: &Snapshot, out: &mut String) {
    let entities = Entities::from_snapshot(snapshot);
    let labels = Labels::new(config, snapshot, &entities);
    let mut columns: Vec<&Column> = config.fields.columns.iter().collect();
    columns.sort_by(|one, two| one.name.cmp(&two.name));
    for column in columns {
        let samples = match column.field.source {
            FieldSource::Own(own) => own::samples(own, config, snapshot, &entities),
            _ => values::samples(column.field, config.corrected(), snapshot, &entities),
        };
        family(config, column, &samples, &labels, out);
    }
}

fn family(
    config: &PageConfig,
    column: &Column,
    samples: &[PageSample],
    labels: &Labels<'_>,
    out: &mut String,
) {
    let kind = config.kind(column);
    let mut found = Vec::with_capacity(samples.len());
    for sample in samples {
        let factor = if config.corrected() { correction(column) } else { 1.0 };
        let value = sample.value * factor;
        // A counter below 0 fails the whole page of dcgm-exporter.
        if kind == FamilyType::Counter && value < 0.0 {
            continue;
        }
        let Some(value) = number::text(value, column.field.format) else { continue };
        found.push((labels.for_sample(sample.entity, &sample.labels, &sample.attributes), value));
    }
    let each = found.iter().flat_map(|(labels, value)| labels.iter().map(move |one| (one, value)));
    let mut lines: Vec<_> = each.collect();
    if lines.is_empty() {
        return;
    }
    lines.sort();
    // Two pods of one name, as containers of one pod that share a GPU.
    lines.dedup_by(|one, two| one.0 == two.0);
    out.push_str("# HELP ");
    out.push_str(&column.name);
    out.push(' ');
    number::escape(out, &column.help, false);
    out.push_str("\n# TYPE ");
    out.push_str(&column.name);
    out.push(' ');
    out.push_str(kind.name());
    out.push('\n');
    for (labels, value) in lines {
        for part in [&column.name, &labels.text, " ", value, "\n"] {
            out.push_str(part);
        }
    }
}

/// From DCGM's MB, 1,024,000 bytes, to a million bytes.
fn correction(column: &Column) -> f64 {
    const NVLINK_MB: [u16; 4] = [440, 449, 843, 897];
    if NVLINK_MB.contains(&column.field.id) { 1.024 } else { 1.0 }
}

#[cfg(test)]
mod tests;

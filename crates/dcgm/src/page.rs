//! Encoder of the page, a pure function of the snapshot.
//!
//! [`entities`] lists the subjects of the page, and [`labels`] writes their labels. [`values`] finds the values of a
//! field, [`own`] computes the families that dcgm-exporter computes itself, and [`number`] formats the values.

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

/// Choice between dcgm-exporter's known faults and corrected values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// The page repeats dcgm-exporter's known faults.
    #[default]
    Faithful,
    /// The page applies the [`CORRECTIONS`].
    Corrected,
}

impl Values {
    pub const ALL: [Values; 2] = [Values::Faithful, Values::Corrected];

    /// Returns the name of the choice in the settings.
    pub const fn name(self) -> &'static str {
        match self {
            Values::Faithful => "faithful",
            Values::Corrected => "corrected",
        }
    }
}

/// Changes made by [`Values::Corrected`], as pairs of dcgm-exporter's behaviour and the corrected behaviour.
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

/// Configuration of the page.
#[derive(Clone, Debug)]
pub struct PageConfig {
    /// Release of dcgm-exporter whose page is imitated.
    pub release: Release,
    /// Families and labels of the page.
    pub fields: FieldList,
    /// Choice between faithful and corrected values.
    pub values: Values,
    /// Name of the label with the host name; empty for no label.
    pub hostname_label: String,
    /// Host name; empty for no label.
    pub hostname: String,
    /// Enables the labels of the pod and claim that the GPU is allocated to.
    pub pods: bool,
    /// Enables the label with the pod's UID.
    pub pod_uids: bool,
    /// Enables the label of the job, from the environment of the processes on the GPU.
    pub jobs: bool,
    /// Enables the label of jobs from the files that a scheduler's hooks write for dcgm-exporter.
    pub job_files: bool,
    /// Length of the window of `DCGM_EXP_XID_ERRORS_COUNT` in milliseconds.
    pub xid_window_ms: u64,
    /// Length of the window of `DCGM_EXP_CLOCK_EVENTS_COUNT` in milliseconds.
    pub clock_events_window_ms: u64,
}

/// Default length of both windows in dcgm-exporter, in milliseconds.
pub const WINDOW_MS: u64 = 300_000;

impl PageConfig {
    /// Returns the default configuration of the release for a host with this name.
    pub fn for_release(release: Release, hostname: &str) -> PageConfig {
        PageConfig {
            release,
            fields: FieldList::default_of(release),
            values: Values::Faithful,
            // Until 4.8.2, the label was `Hostname`.
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

    /// Returns the type of a family.
    fn kind(&self, column: &Column) -> FamilyType {
        if self.corrected() { column.field.kind } else { column.kind }
    }
}

impl Default for PageConfig {
    fn default() -> PageConfig {
        PageConfig::for_release(Release::default(), "")
    }
}

/// Label with its value.
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

/// Value of a family, with the labels of its own.
struct PageSample {
    entity: PageEntity,
    /// Labels that the family adds.
    labels: Vec<PageLabel<'static>>,
    /// Attributes that the family adds after all labels.
    attributes: Vec<PageLabel<'static>>,
    value: f64,
}

/// Appends the page of this snapshot. A family without values is left out.
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
        // dcgm-exporter fails to serve its whole page if a counter is negative.
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
    // Several containers of a pod that share a GPU have the same labels.
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

/// Returns the factor from DCGM's MB (1,024,000 bytes) to a million bytes.
fn correction(column: &Column) -> f64 {
    const NVLINK_MB: [u16; 4] = [440, 449, 843, 897];
    if NVLINK_MB.contains(&column.field.id) { 1.024 } else { 1.0 }
}

#[cfg(test)]
mod tests;

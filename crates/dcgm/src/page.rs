//! The page: a pure function of the snapshot.

use model::snapshot::Snapshot;

use crate::fields::Release;
use crate::list::FieldList;

/// Whether the page has dcgm-exporter's known faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// As dcgm-exporter has them.
    #[default]
    Faithful,
    /// Without them.
    Corrected,
}

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
    /// Whether series have the labels of the pod, claim and job that was given the GPU.
    pub pods: bool,
}

impl PageConfig {
    /// What the release serves without any setting, on the host of this name.
    pub fn of(release: Release, hostname: &str) -> PageConfig {
        PageConfig {
            release,
            fields: FieldList::default_of(release),
            values: Values::Faithful,
            hostname_label: default_hostname_label(release).to_owned(),
            hostname: hostname.to_owned(),
            pods: true,
        }
    }
}

impl Default for PageConfig {
    fn default() -> PageConfig {
        PageConfig::of(Release::default(), "")
    }
}

/// The label of the host's name in this release: until 4.8.2 it was `Hostname`.
pub const fn default_hostname_label(release: Release) -> &'static str {
    match release {
        Release::V4_8 | Release::V4_9 => "hostname",
    }
}

/// Appends the page of this snapshot.
pub fn encode(config: &PageConfig, snapshot: &Snapshot, out: &mut String) {
    let _ = (config, snapshot, out);
}

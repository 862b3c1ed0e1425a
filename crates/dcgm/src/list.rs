//! Which fields the page has, under which name and type.

use std::fmt;

use crate::fields::{FamilyType, Field, Format, Release, find};

/// One family of the page, or one label of all families.
#[derive(Clone, Debug)]
pub struct Column {
    /// The field.
    pub field: &'static Field,
    /// The name as the list writes it: that of the family, or of the label.
    pub name: String,
    /// The type that the list declares.
    pub kind: FamilyType,
    /// The text of `# HELP`.
    pub help: String,
}

/// The fields of a page, and what is wrong with the list that they came from.
#[derive(Clone, Debug, Default)]
pub struct FieldList {
    /// Families, in the order of the list.
    pub columns: Vec<Column>,
    /// Labels that every series carries.
    pub labels: Vec<Column>,
    /// Rows that are not served as written. None is fatal.
    pub problems: Vec<Problem>,
}

/// What is wrong with one row of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: `line 12`, or the path of keys in YAML.
    pub place: String,
    /// The row's name as written.
    pub name: String,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// What can be wrong with a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// No field has this name; the nearest one, if one is near.
    Unknown(Option<&'static str>),
    /// The field is there already, under this name.
    Doubled(String),
    /// No type of this name.
    Type(String),
    /// The field is known, and nothing gives its value here.
    NoSource,
    /// The field is a text, which only a label can carry.
    TextOnly,
    /// The row cannot be read.
    Malformed(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { place, name, kind } = self;
        write!(f, "{place}: {name}: ")?;
        match kind {
            ProblemKind::Unknown(None) => write!(f, "no such field"),
            ProblemKind::Unknown(Some(near)) => write!(f, "no such field; {near} is near"),
            ProblemKind::Doubled(before) => write!(f, "the field is there already, as {before}"),
            ProblemKind::Type(kind) => write!(f, "no type {kind:?}: gauge, counter, untyped or label"),
            ProblemKind::NoSource => write!(f, "known, but nothing gives its value"),
            ProblemKind::TextOnly => write!(f, "a text: only a label can carry it"),
            ProblemKind::Malformed(why) => write!(f, "{why}"),
        }
    }
}

/// What dcgm-exporter 4.8 serves without a list of its own.
const DEFAULT_4_8: &[&str] = &[
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_MEM_CLOCK",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_ENC_UTIL",
    "DCGM_FI_DEV_DEC_UTIL",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_RESERVED",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DRIVER_VERSION",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
];

/// What dcgm-exporter 4.9 serves without a list of its own.
const DEFAULT_4_9: &[&str] = &[
    "DCGM_FI_DEV_SM_CLOCK_HERTZ",
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ",
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS",
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
    "DCGM_FI_DEV_BOARD_POWER_WATTS",
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL",
    "DCGM_FI_DEV_GPU_UTIL_RATIO",
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO",
    "DCGM_FI_DEV_ENC_UTIL_RATIO",
    "DCGM_FI_DEV_DEC_UTIL_RATIO",
    "DCGM_FI_DEV_XID_ERROR",
    "DCGM_FI_DEV_FB_CAPACITY_BYTES",
    "DCGM_FI_DEV_FB_FREE_BYTES",
    "DCGM_FI_DEV_FB_USED_BYTES",
    "DCGM_FI_DEV_FB_RESERVED_BYTES",
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_FAILED",
    "DCGM_FI_SYSTEM_DRIVER_VERSION",
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
    "DCGM_FI_PROF_DRAM_UTIL_RATIO",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
];

impl FieldList {
    /// What the release serves without a list of its own.
    pub fn default_of(release: Release) -> FieldList {
        let names = match release {
            Release::V4_8 => DEFAULT_4_8,
            Release::V4_9 => DEFAULT_4_9,
        };
        let mut list = FieldList::default();
        for name in names {
            let Some(field) = find(name, release) else { continue };
            list.add("default", name, field.kind, field.help, release);
        }
        list
    }

    /// Adds one row, or the problem with it.
    pub fn add(&mut self, place: &str, name: &str, kind: FamilyType, help: &str, release: Release) {
        let problem = |kind| Problem { place: place.to_owned(), name: name.to_owned(), kind };
        let Some(field) = find(name, release) else {
            self.problems.push(problem(ProblemKind::Unknown(None)));
            return;
        };
        let same = |column: &&Column| std::ptr::eq(column.field, field);
        if let Some(before) = self.columns.iter().chain(&self.labels).find(same) {
            self.problems.push(problem(ProblemKind::Doubled(before.name.clone())));
            return;
        }
        if field.format == Format::Text && kind != FamilyType::Label {
            self.problems.push(problem(ProblemKind::TextOnly));
            return;
        }
        if !field.is_served() {
            self.problems.push(problem(ProblemKind::NoSource));
            return;
        }
        let column = Column { field, name: name.to_owned(), kind, help: help.to_owned() };
        if kind == FamilyType::Label { self.labels.push(column) } else { self.columns.push(column) }
    }
}

//! Table of DCGM's fields with names, units, types, and the series of ours that provide the values.
//!
//! A field whose newer name has another unit has one row per unit, because DCGM also has two ids for it.

mod expression;
mod table;

use model::catalog::{EntityKind, MetricId};

pub use table::TABLE;

/// Release of dcgm-exporter whose page is imitated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// Release 4.8.4, on DCGM 4.6.
    #[default]
    V4_8,
    /// Release 4.9.0, on DCGM 4.7, whose names have base units.
    V4_9,
}

impl Release {
    /// All releases in order.
    pub const ALL: [Release; 2] = [Release::V4_8, Release::V4_9];

    /// Returns the name of the release in the settings.
    pub const fn name(self) -> &'static str {
        match self {
            Release::V4_8 => "4.8",
            Release::V4_9 => "4.9",
        }
    }
}

/// Type of a family in lists of fields and in `# TYPE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyType {
    Gauge,
    Counter,
    Untyped,
    /// Not a family, but a label of all other families.
    Label,
}

impl FamilyType {
    pub const ALL: [FamilyType; 4] =
        [FamilyType::Gauge, FamilyType::Counter, FamilyType::Untyped, FamilyType::Label];

    /// Returns the name of the type in lists of fields.
    pub const fn name(self) -> &'static str {
        match self {
            FamilyType::Gauge => "gauge",
            FamilyType::Counter => "counter",
            FamilyType::Untyped => "untyped",
            FamilyType::Label => "label",
        }
    }
}

/// Data type of a value in DCGM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldFormat {
    /// Whole number. Decimals are truncated.
    Integer,
    /// Number with six decimals.
    Double,
    /// Text, which is only used for labels.
    Text,
}

/// Subject of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The board. dcgm-exporter repeats the value for every MIG instance.
    Board,
    /// The GPU, or every GPU instance if MIG is enabled.
    GpuInstance,
    /// The GPU, or every compute instance if MIG is enabled.
    ComputeInstance,
    /// The GPU, never an instance, even if MIG is enabled.
    Whole,
}

/// Series of a metric whose labels have these values.
pub type Reading = (MetricId, &'static [&'static str]);

/// Source of a field's values.
#[derive(Clone, Copy, Debug)]
pub enum FieldSource {
    /// No metric of ours provides the value, for this reason. The field is known but absent.
    None(&'static str),
    /// The first of these readings that the entity has, times a factor.
    Series {
        of: &'static [Reading],
        /// Factor from our unit to DCGM's.
        factor: f64,
    },
    /// Sum of these readings times a factor, if the entity has all of them.
    Sum { of: &'static [Reading], factor: f64 },
    /// Bit mask with the bits of all label values whose series is 1.
    Bits { metric: MetricId, bits: &'static [(&'static str, u32)] },
    /// Number of the label value whose series is 1, or another number if the metric of `failed` is not 0.
    Choice { metric: MetricId, numbers: &'static [(&'static str, u32)], failed: Option<(MetricId, u32)> },
    /// Ratio `part / (whole - less)`.
    Share { part: &'static [MetricId], whole: &'static [MetricId], less: &'static [MetricId] },
    /// Label of an info metric, with the function that converts it to a number.
    Info { metric: MetricId, label: &'static str, number: fn(&str) -> Option<f64> },
    /// Family that dcgm-exporter computes itself, with additional labels.
    Own(Own),
}

/// Families that dcgm-exporter computes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Readings of the clock events in the last window, by event.
    ClockEventsCount,
    /// Number of times that a clock event started.
    ClockEventsTotal,
    /// Number of Xids in the last window, by code.
    XidErrorsCount,
    /// Total number of Xids, by code.
    XidErrorsTotal,
    /// State of every health watch.
    GpuHealthStatus,
    /// State of the NVLink path to every other GPU.
    P2pStatus,
}

/// DCGM field in one unit.
#[derive(Clone, Copy, Debug)]
pub struct DcgmField {
    /// Number of the field in DCGM.
    pub id: u16,
    /// Names of the field, the oldest first. Names in lower case come from dcgm-exporter 1.
    pub names: &'static [&'static str],
    /// Type of the values, or `Label` for a text.
    pub kind: FamilyType,
    /// Help text with the unit.
    pub help: &'static str,
    /// Data type of the values.
    pub format: FieldFormat,
    /// Subject of the values.
    pub level: Level,
    /// Source of the values.
    pub source: FieldSource,
}

impl DcgmField {
    /// Returns true if a metric of ours provides the value on hardware that supports it.
    pub const fn is_served(&self) -> bool {
        !matches!(self.source, FieldSource::None(_))
    }

    /// Returns the first name, which has no release's abbreviations.
    pub const fn name(&self) -> &'static str {
        self.names[0]
    }

    /// Returns a PromQL expression over our `/metrics` that computes the field, or an empty text if there is none.
    pub fn expression(&self) -> String {
        expression::expression(self)
    }

    /// Returns the difference between expression and field, or the reason why there is no expression. The text may be
    /// empty.
    pub fn remark(&self) -> &'static str {
        expression::remark(self, &self.expression())
    }
}

/// Returns the field with this name. If two releases use a name for different units, `release` decides.
pub fn find(name: &str, release: Release) -> Option<&'static DcgmField> {
    let mut found = TABLE.iter().filter(|field| field.names.contains(&name));
    match release {
        Release::V4_8 => found.next(),
        Release::V4_9 => found.next_back(),
    }
}

/// Returns the kinds of entities whose series count for one entity of the page, the most specific kind first.
pub(crate) const fn kinds(level: Level, on_instance: bool, corrected: bool) -> &'static [EntityKind] {
    match (level, on_instance) {
        (Level::ComputeInstance, true) => &[EntityKind::ComputeInstance, EntityKind::GpuInstance],
        (Level::GpuInstance, true) => &[EntityKind::GpuInstance],
        (Level::Board, true) if corrected => &[EntityKind::GpuInstance],
        _ => &[EntityKind::Gpu, EntityKind::Node],
    }
}

#[cfg(test)]
mod tests;

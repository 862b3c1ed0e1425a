//! The table of DCGM's fields: names, units, types, and the series of ours that give the values.
//!
//! A field whose newer name has another unit has two rows, one a unit: DCGM has two ids for them as well.

mod expression;
mod table;

use model::catalog::{EntityKind, MetricId};

pub use table::TABLE;

/// A release of dcgm-exporter whose page is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 4.8.4, on DCGM 4.6.
    #[default]
    V4_8,
    /// 4.9.0, on DCGM 4.7: names with base units.
    V4_9,
}

impl Release {
    /// All releases, in order.
    pub const ALL: [Release; 2] = [Release::V4_8, Release::V4_9];

    /// As the setting names it.
    pub const fn name(self) -> &'static str {
        match self {
            Release::V4_8 => "4.8",
            Release::V4_9 => "4.9",
        }
    }
}

/// The type of a family, as lists of fields and `# TYPE` name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyType {
    /// `gauge`
    Gauge,
    /// `counter`
    Counter,
    /// `untyped`
    Untyped,
    /// `label`: no family, a label of all others.
    Label,
}

impl FamilyType {
    /// All of them.
    pub const ALL: [FamilyType; 4] =
        [FamilyType::Gauge, FamilyType::Counter, FamilyType::Untyped, FamilyType::Label];

    /// As lists name it.
    pub const fn name(self) -> &'static str {
        match self {
            FamilyType::Gauge => "gauge",
            FamilyType::Counter => "counter",
            FamilyType::Untyped => "untyped",
            FamilyType::Label => "label",
        }
    }
}

/// How DCGM holds the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldFormat {
    /// A whole number; what is behind the point is cut off.
    Integer,
    /// A number with six decimals.
    Double,
    /// A text, for labels alone.
    Text,
}

/// What a value is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The board. dcgm-exporter repeats it for each MIG instance.
    Board,
    /// The GPU, with MIG each GPU instance by itself.
    GpuInstance,
    /// The GPU, with MIG each compute instance.
    ComputeInstance,
    /// The GPU, with MIG as well: never an instance.
    Whole,
}

/// Series of a metric whose labels have these values.
pub type Reading = (MetricId, &'static [&'static str]);

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub enum FieldSource {
    /// Nothing of ours has it, and why: the field is known, and absent.
    None(&'static str),
    /// The first of these readings that the entity has, times a factor.
    Series {
        of: &'static [Reading],
        /// The value times this is DCGM's.
        factor: f64,
    },
    /// The sum of these readings, if the entity has all of them, times a factor.
    Sum { of: &'static [Reading], factor: f64 },
    /// A number that has these bits for the values of the metric's label that hold.
    Bits { metric: MetricId, bits: &'static [(&'static str, u32)] },
    /// The number of the value of the metric's label that holds; another one where the metric of `failed` is not 0.
    Choice { metric: MetricId, numbers: &'static [(&'static str, u32)], failed: Option<(MetricId, u32)> },
    /// `part / (whole - less)`.
    Share { part: &'static [MetricId], whole: &'static [MetricId], less: &'static [MetricId] },
    /// A label of an info metric, and how a number is made of it.
    Info { metric: MetricId, label: &'static str, number: fn(&str) -> Option<f64> },
    /// A family of dcgm-exporter's own, with labels of its own.
    Own(Own),
}

/// The families that dcgm-exporter makes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Readings of the clock events in the last window, by event.
    ClockEventsCount,
    /// Beginnings of clock events.
    ClockEventsTotal,
    /// Xids in the last window, by code.
    XidErrorsCount,
    /// Xids, by code.
    XidErrorsTotal,
    /// State of each health watch.
    GpuHealthStatus,
    /// State of the NVLink path to each other GPU.
    P2pStatus,
}

/// One field of DCGM, in one unit.
#[derive(Clone, Copy, Debug)]
pub struct DcgmField {
    /// DCGM's number.
    pub id: u16,
    /// Its names, the oldest first; those in lower case are of dcgm-exporter 1.
    pub names: &'static [&'static str],
    /// The type that its values have; `Label` for a text.
    pub kind: FamilyType,
    /// What it is, with its unit.
    pub help: &'static str,
    /// How its values are written.
    pub format: FieldFormat,
    /// What it is about.
    pub level: Level,
    /// Where it comes from.
    pub source: FieldSource,
}

impl DcgmField {
    /// Whether something of ours gives its value, where the hardware has it.
    pub const fn is_served(&self) -> bool {
        !matches!(self.source, FieldSource::None(_))
    }

    /// Its name without any release's abbreviations: the first one.
    pub const fn name(&self) -> &'static str {
        self.names[0]
    }

    /// What it is made of, as an expression of PromQL over our `/metrics`; empty if nothing there has it.
    pub fn expression(&self) -> String {
        expression::expression(self)
    }

    /// How the expression differs from the field, or why there is none; empty if there is nothing to say.
    pub fn remark(&self) -> &'static str {
        expression::remark(self, &self.expression())
    }
}

/// The field of this name. A name that two releases give to different units is that of `release`.
pub fn find(name: &str, release: Release) -> Option<&'static DcgmField> {
    let mut found = TABLE.iter().filter(|field| field.names.contains(&name));
    match release {
        Release::V4_8 => found.next(),
        Release::V4_9 => found.next_back(),
    }
}

/// The entities whose series count for one entity of the page, the most specific first.
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

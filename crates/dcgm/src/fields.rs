//! The table of DCGM's fields: names, units, types, and the series of ours that give the values.
//!
//! A field whose newer name has another unit has two rows, one a unit: DCGM has two ids for them as well.

use model::catalog as m;
use model::catalog::MetricId;

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
pub enum Format {
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
    /// The driver: a label of every series.
    Node,
    /// The board. DCGM repeats it for each MIG instance.
    Board,
    /// The GPU, and with MIG each GPU instance by itself.
    GpuInstance,
    /// The GPU, and with MIG each compute instance.
    ComputeInstance,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Nothing of ours has it: the field is known, and absent.
    None,
    /// The first of these metrics with a series for the entity, times a factor.
    Series {
        /// The metrics, and the values that their labels must have, in order.
        of: &'static [(MetricId, &'static [&'static str])],
        /// The value times this is DCGM's.
        factor: f64,
    },
    /// A label of the entity's info metric.
    Info {
        /// The info metric.
        metric: MetricId,
        /// Its label.
        label: &'static str,
    },
}

/// One field of DCGM, in one unit.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// DCGM's number.
    pub id: u16,
    /// Its names, the oldest first.
    pub names: &'static [&'static str],
    /// The type in the lists of dcgm-exporter.
    pub kind: FamilyType,
    /// What it is.
    pub help: &'static str,
    /// How its values are written.
    pub format: Format,
    /// What it is about.
    pub level: Level,
    /// Where it comes from.
    pub source: Source,
}

/// Every field, by number.
pub static TABLE: &[Field] = &[
    Field {
        id: 1,
        names: &["DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"],
        kind: FamilyType::Label,
        help: "Version of the driver.",
        format: Format::Text,
        level: Level::Node,
        source: Source::Info { metric: m::gpu_driver_info.id(), label: "driver_version" },
    },
    Field {
        id: 150,
        names: &["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "dcgm_gpu_temp"],
        kind: FamilyType::Gauge,
        help: "Temperature of the GPU (in C).",
        format: Format::Integer,
        level: Level::Board,
        source: Source::Series { of: &[(m::gpu_temperature_celsius.id(), &["gpu"])], factor: 1.0 },
    },
    Field {
        id: 155,
        names: &["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", "dcgm_power_usage"],
        kind: FamilyType::Gauge,
        help: "Power draw (in W).",
        format: Format::Double,
        level: Level::Board,
        source: Source::Series { of: &[(m::gpu_power_watts.id(), &[])], factor: 1.0 },
    },
];

/// The field of this name. A name that two releases give to different units is that of `release`.
pub fn find(name: &str, release: Release) -> Option<&'static Field> {
    let mut found = TABLE.iter().filter(|field| field.names.contains(&name));
    match release {
        Release::V4_8 => found.next(),
        Release::V4_9 => found.next_back(),
    }
}

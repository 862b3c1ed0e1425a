//! Types of the catalogue: entities, labels, units and metrics, and the macros that declare them.
//!
//! The type of a [`Metric`] includes its [`Entity`] and its additional labels (a [`LabelSet`]), so a wrong number of
//! labels or a label of the wrong entity does not compile:
//!
//! ```
//! use model::catalog::{self as m, Gpu, Sensor};
//! use model::sample::Rows;
//! let gpu = Gpu { gpu: 0, uuid: "GPU-1".into() };
//! let mut rows = Rows::default();
//! rows.entity(&gpu).record(&m::gpu_temperature_celsius, (Sensor::Gpu,), 37.0);
//! ```
//! A missing label:
//! ```compile_fail,E0308
//! use model::catalog::{self as m, Gpu, Sensor};
//! use model::sample::Rows;
//! let gpu = Gpu { gpu: 0, uuid: "GPU-1".into() };
//! let mut rows = Rows::default();
//! rows.entity(&gpu).record(&m::gpu_temperature_celsius, (), 37.0);
//! ```
//! A label of the wrong kind:
//! ```compile_fail,E0308
//! use model::catalog::{self as m, ClockDomain, Gpu};
//! use model::sample::Rows;
//! let gpu = Gpu { gpu: 0, uuid: "GPU-1".into() };
//! let mut rows = Rows::default();
//! rows.entity(&gpu).record(&m::gpu_temperature_celsius, (ClockDomain::Sm,), 37.0);
//! ```
//! A metric of the wrong entity:
//! ```compile_fail,E0308
//! use model::catalog::{self as m, Node};
//! use model::sample::Rows;
//! let mut rows = Rows::default();
//! rows.entity(&Node {}).record(&m::gpu_power_watts, (), 37.0);
//! ```

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize, Serializer};

pub use super::Unit;
use super::{EntityKind, MetricGroup, Subject, Tier};
use crate::text::one_line;

/// Index of a metric in [`super::METRICS`]. The index is the same in every process of one build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MetricId(pub u16);

/// Metric type, in the terms of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A value that can go up and down.
    Gauge,
    /// A value that only increases, or restarts from 0.
    Counter,
    /// An identity with the constant value 1; the labels have the information.
    Info,
    /// A distribution of values in buckets.
    Histogram,
}

impl Unit {
    /// Returns the suffix of a metric name with this unit, without the underscore; empty for [`Unit::None`].
    pub fn suffix(self) -> &'static str {
        if self == Unit::None { "" } else { self.known() }
    }

    /// Returns the physically possible values in this unit for one GPU or node. A driver value outside this range is a
    /// fault or a "blank" sentinel instead of a measurement: the sampler drops and counts such a value.
    pub const fn limits(self) -> RangeInclusive<f64> {
        match self {
            // 2^53: a float cannot represent every integer above it, and no counter of a real node reaches it.
            Unit::None | Unit::Joules | Unit::Seconds => 0.0..=9_007_199_254_740_992.0,
            // 4 PiB: BAR1 of a data-centre GPU is 256 GiB, host memory a few TiB.
            Unit::Bytes => 0.0..=4_503_599_627_370_496.0,
            Unit::Watts => 0.0..=10_000.0,
            // NVML reports whole degrees. DCGM also rejects memory temperatures above 200.
            Unit::Celsius => -60.0..=200.0,
            Unit::Hertz => 0.0..=20e9,
            Unit::Ratio => 0.0..=1.0,
            Unit::Lanes => 0.0..=64.0,
            // 1 PB/s: all NVLinks of one GPU together transfer a few TB/s.
            Unit::BytesPerSecond => 0.0..=1e15,
        }
    }
}

/// Label that a metric adds to the labels of its entity.
#[derive(Debug, Serialize)]
pub struct LabelDef {
    /// Name of the label in the exposition formats.
    pub name: &'static str,
    /// Meaning of the label.
    #[serde(serialize_with = "in_one_line")]
    pub help: &'static str,
    /// All values of the label, in order, if they are known in advance.
    pub values: Option<&'static [&'static str]>,
}

/// Catalogue entry of a metric.
#[derive(Debug, Serialize)]
pub struct MetricDef {
    /// Full name in the exposition formats, including `_total` or `_info`.
    pub name: &'static str,
    /// Prometheus type of the metric.
    pub kind: Kind,
    /// Unit, which is also the suffix of the name.
    pub unit: Unit,
    /// Entity that the metric describes.
    pub entity: EntityKind,
    /// Labels in addition to the labels of the entity, in the order of the exposition formats.
    pub labels: &'static [LabelDef],
    /// Tier, which defines how often the metric is read.
    pub tier: Tier,
    /// First release with this metric.
    pub since: &'static str,
    /// Maximum value, if it differs from the maximum of the unit.
    #[serde(skip)]
    pub max: Option<f64>,
    /// True if only the JSON documents have the metric, because it has too many series for a scrape.
    #[serde(skip)]
    pub json_only: bool,
    /// Group that serves the metric on `/metrics`; `None` for the default set.
    pub group: Option<MetricGroup>,
    /// Label values whose series are in the default set regardless of the group.
    pub except: &'static [&'static str],
    /// Name that replaces a deprecated name. Deprecated names remain for two minor releases.
    pub deprecated: Option<&'static str>,
    /// Documentation: the line of help, followed by an optional paragraph of notes.
    #[serde(skip)]
    pub doc: &'static str,
}

fn in_one_line<S: Serializer>(text: &&str, serializer: S) -> Result<S::Ok, S::Error> {
    one_line(text).serialize(serializer)
}

impl MetricDef {
    /// Returns the OpenMetrics family name, which is the name without `_total` or `_info`.
    pub fn family(&self) -> &'static str {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.name.strip_suffix(suffix).unwrap_or(self.name)
    }

    /// Returns the range of possible values: the limits of the unit, or the metric's own maximum.
    pub fn limits(&self) -> RangeInclusive<f64> {
        let unit = match (self.kind, self.unit) {
            // The NVLink counters have 64 bits and count KiB: the traffic of a GPU exceeds the limit of a size in hours.
            (Kind::Counter, Unit::Bytes) => 0.0..=2e22,
            (_, unit) => unit.limits(),
        };
        *unit.start()..=self.max.unwrap_or(*unit.end())
    }

    /// Returns true if every series of the metric needs the group.
    pub fn needs_group(&self) -> bool {
        self.group.is_some_and(|group| group != MetricGroup::InactiveStates) && self.except.is_empty()
    }

    /// Returns the group that `/metrics` needs to serve a series; `None` if the series is in the default set.
    pub fn group_of(&self, labels: &[LabelText], value: Option<f64>) -> Option<MetricGroup> {
        let active = self.group == Some(MetricGroup::InactiveStates) && value != Some(0.0);
        let excepted = |(text, def): (&LabelText, &LabelDef)| self.except.contains(&text.text(def));
        self.group.filter(|_| !active && !labels.iter().zip(self.labels).any(excepted))
    }

    /// Returns the text of the `# HELP` line.
    pub fn help(&self) -> &'static str {
        self.doc.split("\n\n").next().unwrap_or("").trim()
    }

    /// Returns the notes for `docs/METRICS.md`, which follow the line of help; empty without notes.
    pub fn notes(&self) -> String {
        let notes = self.doc.split_once("\n\n").map_or("", |(_, notes)| notes);
        one_line(notes)
    }
}

/// Typed handle of a catalogue entry. Its type restricts the entity and the labels of a row.
#[derive(Debug)]
pub struct Metric<E, L> {
    id: MetricId,
    types: PhantomData<fn(E, L)>,
}

impl<E: Entity, L: LabelSet> Metric<E, L> {
    /// Only for the `metrics!` macro.
    #[doc(hidden)]
    pub const fn new(id: u16) -> Self {
        Metric { id: MetricId(id), types: PhantomData }
    }

    /// Returns the index of the metric in the catalogue.
    pub const fn id(&self) -> MetricId {
        self.id
    }

    /// Returns the catalogue entry of the metric.
    pub fn def(&self) -> &'static MetricDef {
        &super::METRICS[usize::from(self.id.0)]
    }
}

/// Entity that a metric can describe. The fields are the labels that identify the entity.
pub trait Entity {
    /// Kind of this entity.
    const KIND: EntityKind;
    /// Returns the entity with its type erased.
    fn subject(&self) -> Subject;
}

/// Value of one label in a message: an index into [`LabelDef::values`], or a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LabelText {
    /// Index of one of the known values of the label.
    Known(u8),
    /// Text of a label without known values.
    Text(std::sync::Arc<str>),
}

impl LabelText {
    /// Returns the text of the value. An index without a value in the definition has an empty text, but the frame decoder
    /// rejects such rows.
    pub fn text<'a>(&'a self, def: &LabelDef) -> &'a str {
        match self {
            LabelText::Known(i) => def.values.and_then(|v| v.get(usize::from(*i)).copied()).unwrap_or(""),
            LabelText::Text(text) => text,
        }
    }

    /// Returns true if the definition allows this value.
    pub fn fits(&self, def: &LabelDef) -> bool {
        match (self, def.values) {
            (LabelText::Known(i), Some(values)) => usize::from(*i) < values.len(),
            (LabelText::Text(_), None) => true,
            _ => false,
        }
    }
}

/// Type for an additional label of a metric.
pub trait Label {
    /// Definition of the label.
    const DEF: LabelDef;
    /// Returns the value of the label.
    fn text(&self) -> LabelText;
}

/// Label whose values are all known in advance.
pub trait KnownLabel: Label + Copy + PartialEq + 'static {
    /// All values, in order.
    const ALL: &'static [Self];

    /// Returns the text of this value.
    fn known(&self) -> &'static str {
        let LabelText::Known(at) = self.text() else { return "" };
        Self::DEF.values.and_then(|values| values.get(usize::from(at)).copied()).unwrap_or("")
    }
}

/// Additional labels of a metric: a tuple of [`Label`]s, or a struct declared with `info_labels!`.
pub trait LabelSet {
    /// Definitions of the labels, in order.
    const DEFS: &'static [LabelDef];
    /// Returns the values of the labels, in the same order.
    fn texts(&self) -> Vec<LabelText>;
}

impl LabelSet for () {
    const DEFS: &'static [LabelDef] = &[];
    fn texts(&self) -> Vec<LabelText> {
        Vec::new()
    }
}

macro_rules! label_tuples {
    ($(($($label:ident $at:tt),+))+) => {
        $(impl<$($label: Label),+> LabelSet for ($($label,)+) {
            const DEFS: &'static [LabelDef] = &[$($label::DEF),+];
            fn texts(&self) -> Vec<LabelText> {
                vec![$(self.$at.text()),+]
            }
        })+
    };
}
label_tuples!((A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3));

/// Declares a struct for every entity, whose fields are its labels, and the enums [`EntityKind`] and [`Subject`].
macro_rules! entities {
    ($($(#[doc = $help:literal])+ $name:ident { $($(#[doc = $fhelp:literal])+ $label:ident: $ty:ty),* })+) => {
        $(
            $(#[doc = $help])+
            #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
            pub struct $name { $($(#[doc = $fhelp])+ pub $label: $ty),* }
            impl schema::Entity for $name {
                const KIND: EntityKind = EntityKind::$name;
                fn subject(&self) -> Subject {
                    Subject::$name(self.clone())
                }
            }
        )+
        /// Kind of entity that a metric describes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub enum EntityKind { $($(#[doc = $help])+ $name),+ }
        impl EntityKind {
            /// All entities, in order.
            pub const ALL: &'static [EntityKind] = &[$(EntityKind::$name),+];
            /// Returns the names and meanings of the labels that identify the entity.
            pub const fn labels(self) -> &'static [schema::LabelDef] {
                match self { $(EntityKind::$name => &[$(schema::LabelDef {
                    name: stringify!($label), help: concat!($($fhelp),+), values: None }),*]),+ }
            }
            /// Returns the description of the entity.
            pub const fn help(self) -> &'static str {
                match self { $(EntityKind::$name => concat!($($help),+)),+ }
            }
        }
        /// Entity of any kind that a row describes.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum Subject { $($(#[doc = $help])+ $name($name)),+ }
        impl Subject {
            /// Returns the kind of the entity.
            pub const fn kind(&self) -> EntityKind { match self { $(Subject::$name(_) => EntityKind::$name),+ } }
            /// Returns the values of its labels, in the order of [`EntityKind::labels`].
            pub fn label_values(&self) -> Vec<std::sync::Arc<str>> {
                match self { $(Subject::$name(_e) => vec![$(_e.$label.to_string().into()),*]),+ }
            }
        }
    };
}

/// Declares labels: `Name "label" { Variant "value", ... }` for known values, `Name "label"` for any text.
macro_rules! labels {
    ($($(#[doc = $help:literal])+ $name:ident $label:literal { $($variant:ident $value:literal),+ $(,)? })+) => {
        $(
            $(#[doc = $help])+
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
            pub enum $name { $(#[doc = concat!("`", $value, "`")] #[serde(rename = $value)] $variant),+ }
            impl schema::Label for $name {
                const DEF: schema::LabelDef = schema::LabelDef {
                    name: $label, help: concat!($($help),+), values: Some(&[$($value),+]) };
                fn text(&self) -> schema::LabelText { schema::LabelText::Known(*self as u8) }
            }
            impl schema::KnownLabel for $name { const ALL: &'static [$name] = &[$($name::$variant),+]; }
            impl Default for $name { fn default() -> $name { <$name as schema::KnownLabel>::ALL[0] } }
        )+
    };
}

/// Declares labels whose values are any text.
macro_rules! text_labels {
    ($($(#[doc = $help:literal])+ $name:ident $label:literal)+) => {
        $(
            $(#[doc = $help])+
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $name(pub std::sync::Arc<str>);
            impl schema::Label for $name {
                const DEF: schema::LabelDef = schema::LabelDef {
                    name: $label, help: concat!($($help),+), values: None };
                fn text(&self) -> schema::LabelText { schema::LabelText::Text(self.0.clone()) }
            }
        )+
    };
}

/// Declares the label sets of `_info` metrics as structs with named fields.
macro_rules! info_labels {
    ($($(#[doc = $help:literal])+ $name:ident { $($(#[doc = $fhelp:literal])+ $label:ident),+ $(,)? })+) => {
        $(
            $(#[doc = $help])+
            #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
            pub struct $name { $($(#[doc = $fhelp])+ pub $label: String),+ }
            impl schema::LabelSet for $name {
                const DEFS: &'static [schema::LabelDef] = &[$(schema::LabelDef {
                    name: stringify!($label), help: concat!($($fhelp),+), values: None }),+];
                fn texts(&self) -> Vec<schema::LabelText> {
                    vec![$(schema::LabelText::Text(self.$label.as_str().into())),+]
                }
            }
        )+
    };
}

/// Declares a typed handle for every metric, with the name of the metric, and the table [`super::METRICS`].
macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident<$entity:ident $(, $labels:ty)?>, $unit:ident, $tier:ident, $since:literal $(, at most $max:literal)? $(, json only $json:literal)? $(, group $group:ident $(except [$($except:literal),+])?)? $(, deprecated $instead:literal)?;)+) => {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Position { $($name),+ }
        $(
            $(#[doc = $help])+
            #[allow(non_upper_case_globals)]
            pub static $name: schema::Metric<$entity, metrics!(@labels $($labels)?)> = schema::Metric::new(Position::$name as u16);
        )+
        /// Every metric that the exporter can serve, in the order of `/metrics`.
        pub static METRICS: &[schema::MetricDef] = &[$(schema::MetricDef {
            name: stringify!($name),
            kind: schema::Kind::$kind,
            unit: schema::Unit::$unit,
            entity: EntityKind::$entity,
            labels: <metrics!(@labels $($labels)?) as schema::LabelSet>::DEFS,
            tier: Tier::$tier,
            since: $since,
            max: metrics!(@max $($max)?),
            json_only: metrics!(@json $($json)?),
            group: metrics!(@group $($group)?),
            except: &[$($($($except),+)?)?],
            deprecated: metrics!(@instead $($instead)?),
            doc: concat!($($help, "\n"),+),
        }),+];
    };
    (@labels) => { () };
    (@labels $labels:ty) => { $labels };
    (@max) => { None };
    (@max $max:literal) => { Some($max) };
    (@json) => { false };
    (@json $json:literal) => { $json };
    (@group) => { None };
    (@group $group:ident) => { Some(MetricGroup::$group) };
    (@instead) => { None };
    (@instead $instead:literal) => { Some($instead) };
}

/// Declares the groups of metrics: their names, and the number of series that they add on a node with eight H200s.
macro_rules! groups {
    ($($(#[doc = $help:literal])+ $name:ident $text:literal $series:literal),+ $(,)?) => {
        /// Group of series that `/metrics` omits unless `metrics.groups` names the group.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum MetricGroup { $($(#[doc = $help])+ #[serde(rename = $text)] $name),+ }
        impl MetricGroup {
            /// All groups, in order.
            pub const ALL: &'static [MetricGroup] = &[$(MetricGroup::$name),+];
            /// Names of all groups, in order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];
            /// Returns the name in the configuration.
            pub const fn name(self) -> &'static str { Self::NAMES[self as usize] }
            /// Returns the approximate number of series that the group adds on a node with eight H200s.
            pub const fn series(self) -> u32 { match self { $(MetricGroup::$name => $series),+ } }
            /// Returns the description of the group.
            pub const fn help(self) -> &'static str { match self { $(MetricGroup::$name => concat!($($help),+)),+ } }
        }
    };
}

pub(super) use {entities, groups, info_labels, labels, metrics, text_labels};

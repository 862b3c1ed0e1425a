//! The types of the catalogue: entities, labels, units and metrics, and the macros that declare them.
//!
//! A [`Metric`] carries in its type what it is about (an [`Entity`]) and which labels it adds (a
//! [`LabelSet`]), so a wrong number of labels or a label of the wrong entity does not compile:
//!
//! ```
//! use model::catalog::{self as m, Gpu, Sensor};
//! use model::sample::Rows;
//! let gpu = Gpu { gpu: 0, uuid: "GPU-1".into() };
//! let mut rows = Rows::default();
//! rows.entity(&gpu).record(&m::gpu_temperature_celsius, (Sensor::Gpu,), 37.0);
//! ```
//! A label too few:
//! ```compile_fail,E0308
//! use model::catalog::{self as m, Gpu, Sensor};
//! use model::sample::Rows;
//! let gpu = Gpu { gpu: 0, uuid: "GPU-1".into() };
//! let mut rows = Rows::default();
//! rows.entity(&gpu).record(&m::gpu_temperature_celsius, (), 37.0);
//! ```
//! A label of another kind:
//! ```compile_fail,E0308
//! use model::catalog::{self as m, ClockDomain, Gpu};
//! use model::sample::Rows;
//! let gpu = Gpu { gpu: 0, uuid: "GPU-1".into() };
//! let mut rows = Rows::default();
//! rows.entity(&gpu).record(&m::gpu_temperature_celsius, (ClockDomain::Sm,), 37.0);
//! ```
//! A metric of another entity:
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

/// Position of a metric in [`super::METRICS`]. The same in every process of one build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MetricId(pub u16);

/// What kind of series a metric is, in Prometheus's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A value that can go up and down.
    Gauge,
    /// A value that only grows, until it starts again from 0.
    Counter,
    /// Identity: always 1, the facts are in the labels.
    Info,
    /// A distribution in buckets.
    Histogram,
}

impl Unit {
    /// The suffix of a metric name with this unit, without the underscore; empty for [`Unit::None`].
    pub fn suffix(self) -> &'static str {
        if self == Unit::None { "" } else { self.known() }
    }

    /// What is physically possible in this unit on one GPU or node. A driver value outside is no
    /// measurement but a fault or a "blank" sentinel: it is dropped and counted, never published.
    pub const fn limits(self) -> RangeInclusive<f64> {
        match self {
            // 2^53: above it a float no longer counts, and no counter of a living node gets there.
            Unit::None | Unit::Joules | Unit::Seconds => 0.0..=9_007_199_254_740_992.0,
            // 4 PiB: BAR1 of a data-centre GPU is 256 GiB, host memory a few TiB.
            Unit::Bytes => 0.0..=4_503_599_627_370_496.0,
            Unit::Watts => 0.0..=10_000.0,
            // NVML gives whole degrees; DCGM rejects memory temperatures over 200 as well.
            Unit::Celsius => -60.0..=200.0,
            Unit::Hertz => 0.0..=20e9,
            Unit::Ratio => 0.0..=1.0,
            Unit::Lanes => 0.0..=64.0,
            // 1 PB/s: the NVLinks of one GPU together move a few TB/s.
            Unit::BytesPerSecond => 0.0..=1e15,
        }
    }
}

/// One label a metric adds to those of its entity.
#[derive(Debug, Serialize)]
pub struct LabelDef {
    /// The label's name.
    pub name: &'static str,
    /// What the label tells.
    #[serde(serialize_with = "in_one_line")]
    pub help: &'static str,
    /// All values it can have, in order, where they are known in advance.
    pub values: Option<&'static [&'static str]>,
}

/// Everything the catalogue says of one metric.
#[derive(Debug, Serialize)]
pub struct MetricDef {
    /// The full name, as it is on the wire (with `_total` or `_info`).
    pub name: &'static str,
    /// Gauge, counter, info or histogram.
    pub kind: Kind,
    /// The unit, which is also the name's suffix.
    pub unit: Unit,
    /// What the metric is about.
    pub entity: EntityKind,
    /// Labels it adds to those of the entity, in the order of the wire.
    pub labels: &'static [LabelDef],
    /// How often it is read.
    pub tier: Tier,
    /// The release that brought it.
    pub since: &'static str,
    /// The largest value there can be, where it is another than that of the unit.
    #[serde(skip)]
    pub max: Option<f64>,
    /// Whether it is in the JSON alone: a table for people and programs that ask, too wide for a scrape.
    #[serde(skip)]
    pub json_only: bool,
    /// The group that serves it on `/metrics`; `None`: the default set.
    pub group: Option<MetricGroup>,
    /// Label values whose series are in the default set all the same.
    pub except: &'static [&'static str],
    /// For a name on its way out: the name that replaces it, kept for two minor releases.
    pub deprecated: Option<&'static str>,
    /// Its documentation: the line of help, then a paragraph of notes where there are some.
    #[serde(skip)]
    pub doc: &'static str,
}

fn in_one_line<S: Serializer>(text: &&str, serializer: S) -> Result<S::Ok, S::Error> {
    one_line(text).serialize(serializer)
}

impl MetricDef {
    /// The name without `_total`, `_info`: OpenMetrics's name of the family.
    pub fn family(&self) -> &'static str {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.name.strip_suffix(suffix).unwrap_or(self.name)
    }

    /// What is possible: the unit's limits, or an upper one of its own.
    pub fn limits(&self) -> RangeInclusive<f64> {
        let unit = match (self.kind, self.unit) {
            // 64-bit counters of KiB: a GPU's NVLinks fill the limit of a size in hours.
            (Kind::Counter, Unit::Bytes) => 0.0..=2e22,
            (_, unit) => unit.limits(),
        };
        *unit.start()..=self.max.unwrap_or(*unit.end())
    }

    /// Whether all its series need the group.
    pub fn needs_group(&self) -> bool {
        self.group.is_some_and(|group| group != MetricGroup::InactiveStates) && self.except.is_empty()
    }

    /// The group that a series needs to be served on `/metrics`; `None`: it is in the default set.
    pub fn group_of(&self, labels: &[LabelText], value: Option<f64>) -> Option<MetricGroup> {
        let active = self.group == Some(MetricGroup::InactiveStates) && value != Some(0.0);
        let excepted = |(text, def): (&LabelText, &LabelDef)| self.except.contains(&text.text(def));
        self.group.filter(|_| !active && !labels.iter().zip(self.labels).any(excepted))
    }

    /// The line of `# HELP`.
    pub fn help(&self) -> &'static str {
        self.doc.split("\n\n").next().unwrap_or("").trim()
    }

    /// What `docs/METRICS.md` says beside the line of help; empty if nothing.
    pub fn notes(&self) -> String {
        let notes = self.doc.split_once("\n\n").map_or("", |(_, notes)| notes);
        one_line(notes)
    }
}

/// A typed handle on a catalogue entry: what may be said with it.
#[derive(Debug)]
pub struct Metric<E, L> {
    id: MetricId,
    types: PhantomData<fn(E, L)>,
}

impl<E: Entity, L: LabelSet> Metric<E, L> {
    /// For the catalogue's macro alone.
    #[doc(hidden)]
    pub const fn new(id: u16) -> Self {
        Metric { id: MetricId(id), types: PhantomData }
    }

    /// Its position in the catalogue.
    pub const fn id(&self) -> MetricId {
        self.id
    }

    /// Its catalogue entry.
    pub fn def(&self) -> &'static MetricDef {
        &super::METRICS[usize::from(self.id.0)]
    }
}

/// Something a metric can be about; its fields are the labels that identify it.
pub trait Entity {
    /// Which entity this is.
    const KIND: EntityKind;
    /// The same, with its type erased.
    fn subject(&self) -> Subject;
}

/// The value of one label as it travels: a number into [`LabelDef::values`], or text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LabelText {
    /// Position in the label's known values.
    Known(u8),
    /// Any text.
    Text(std::sync::Arc<str>),
}

impl LabelText {
    /// The text, given the definition of the label it belongs to. A number the definition does not
    /// know is an empty text (the frame decoder refuses such rows before they get here).
    pub fn text<'a>(&'a self, def: &LabelDef) -> &'a str {
        match self {
            LabelText::Known(i) => def.values.and_then(|v| v.get(usize::from(*i)).copied()).unwrap_or(""),
            LabelText::Text(text) => text,
        }
    }

    /// Whether the definition allows this value.
    pub fn fits(&self, def: &LabelDef) -> bool {
        match (self, def.values) {
            (LabelText::Known(i), Some(values)) => usize::from(*i) < values.len(),
            (LabelText::Text(_), None) => true,
            _ => false,
        }
    }
}

/// One extra label of a metric, as a type.
pub trait Label {
    /// Its definition.
    const DEF: LabelDef;
    /// This value of it.
    fn text(&self) -> LabelText;
}

/// A label whose values are all known in advance.
pub trait KnownLabel: Label + Copy + PartialEq + 'static {
    /// All values, in order.
    const ALL: &'static [Self];

    /// The text of this value.
    fn known(&self) -> &'static str {
        let LabelText::Known(at) = self.text() else { return "" };
        Self::DEF.values.and_then(|values| values.get(usize::from(at)).copied()).unwrap_or("")
    }
}

/// The extra labels of a metric: a tuple of [`Label`]s, or a struct made by `info_labels!`.
pub trait LabelSet {
    /// Their definitions, in order.
    const DEFS: &'static [LabelDef];
    /// Their values, in the same order.
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

/// Declares the entities: one struct each (its fields are its labels), [`EntityKind`] and [`Subject`].
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
        /// Which entity a metric is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub enum EntityKind { $($(#[doc = $help])+ $name),+ }
        impl EntityKind {
            /// All entities, in order.
            pub const ALL: &'static [EntityKind] = &[$(EntityKind::$name),+];
            /// Names and meanings of the labels that identify it.
            pub const fn labels(self) -> &'static [schema::LabelDef] {
                match self { $(EntityKind::$name => &[$(schema::LabelDef {
                    name: stringify!($label), help: concat!($($fhelp),+), values: None }),*]),+ }
            }
            /// What it is.
            pub const fn help(self) -> &'static str {
                match self { $(EntityKind::$name => concat!($($help),+)),+ }
            }
        }
        /// One entity of any kind: what a row is about.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum Subject { $($(#[doc = $help])+ $name($name)),+ }
        impl Subject {
            /// Which entity it is.
            pub const fn kind(&self) -> EntityKind { match self { $(Subject::$name(_) => EntityKind::$name),+ } }
            /// The values of its labels, in the order of [`EntityKind::labels`].
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

/// Declares the metrics: typed handles named like the metric, and the table [`super::METRICS`].
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
        /// Every metric the exporter can serve, in the order of `/metrics`.
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

/// Declares the groups of metrics: their name, and the number of series that they add on a node of eight H200s.
macro_rules! groups {
    ($($(#[doc = $help:literal])+ $name:ident $text:literal $series:literal),+ $(,)?) => {
        /// A set of series that `/metrics` leaves out unless `metrics.groups` names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum MetricGroup { $($(#[doc = $help])+ #[serde(rename = $text)] $name),+ }
        impl MetricGroup {
            /// All groups, in order.
            pub const ALL: &'static [MetricGroup] = &[$(MetricGroup::$name),+];
            /// Their names.
            pub const NAMES: &'static [&'static str] = &[$($text),+];
            /// The name in the configuration.
            pub const fn name(self) -> &'static str { Self::NAMES[self as usize] }
            /// Series that it adds on a node of eight H200s, about.
            pub const fn series(self) -> u32 { match self { $(MetricGroup::$name => $series),+ } }
            /// What is in it.
            pub const fn help(self) -> &'static str { match self { $(MetricGroup::$name => concat!($($help),+)),+ } }
        }
    };
}

pub(super) use {entities, groups, info_labels, labels, metrics, text_labels};

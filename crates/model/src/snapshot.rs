//! One consistent view of the node, made by the ledger and read by every encoder. Never changed once made.

#[cfg(any(test, feature = "fixtures"))]
mod fixtures;
mod texts;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::canary::{Instance, Rate};
pub use crate::catalog::EventKind;
use crate::catalog::schema::{Entity, LabelSet, LabelText, Metric};
use crate::catalog::{
    CanaryCheck, CanaryEnd, CanaryMode, CanarySkip, CanaryStep, CanaryVerdict, Cause, DriverError,
    FaultAction, Gpu, MetricDef, Severity, Subject, Tier,
};
use crate::clock::Mono;
use crate::health::NodeHealth;
use crate::owner_records::OwnerRecord;
use crate::owners::{GpuProcess, Owner};
use crate::persisted::WrongResult;
use crate::sample::Gap;
use crate::sync::lock;
use crate::topology::TopologyUpdate;
use crate::trends::Trends;
use crate::window::Window;

/// One consistent view of the node; the default is served before the first publication.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Counts publications from 1; 0 before the first one.
    pub sequence: u64,
    /// When it was made.
    pub taken: Mono,
    /// When it was made, in seconds since 1970.
    pub unix_seconds: f64,
    /// Metric families with at least one series, in catalogue order.
    pub families: Vec<Family>,
    /// State of the driver.
    pub driver: DriverState,
    /// Every known GPU, by index.
    pub gpus: Vec<GpuView>,
    /// Every collector.
    pub collectors: Vec<CollectorView>,
    /// Whether every collector has answered or been found absent.
    pub ready: bool,
    /// The newest events, oldest first.
    pub events: Arc<[Arc<Event>]>,
    /// When the list of events last changed, in seconds since 1970: the first snapshot that has it.
    pub events_unix_seconds: f64,
    /// The canary.
    pub canary: CanaryView,
    /// The machine around the GPUs; `None` while nothing was reported.
    pub topology: Option<Arc<TopologyUpdate>>,
    /// Owners with processes on GPUs, or whose counters are still kept.
    pub owners: Vec<OwnerView>,
    /// Records of owners that have ended.
    pub owner_records: OwnerRecordsView,
    /// Windows of planned work: open, to come, or ended within the last hour.
    pub windows: Arc<[Window]>,
    /// The course of a few values over the last hour.
    pub trends: Arc<Trends>,
    /// The verdicts on node and GPUs.
    pub health: NodeHealth,
    /// Labels of the node on each of its series, before their own; no metric has a label of such a name.
    pub node_labels: Arc<[(&'static str, String)]>,
}

/// All series of one metric.
#[derive(Clone, Debug)]
pub struct Family {
    /// The metric.
    pub def: &'static MetricDef,
    /// Its series, at least one.
    pub series: Vec<Series>,
    /// Whether `/metrics` serves the series that need the metric's group, too.
    pub whole: bool,
}

impl Family {
    /// The series that a scrape gets.
    pub fn scraped(&self) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(|series| self.serves(series))
    }

    /// Whether a scrape gets this series.
    pub fn serves(&self, series: &Series) -> bool {
        let number = || match series.value {
            Value::Number(value) => Some(value),
            Value::Histogram(_) => None,
        };
        !self.def.json_only && (self.whole || self.def.group_of(&series.labels, number()).is_none())
    }
}

/// One series: subject, labels, value.
#[derive(Debug, Clone)]
pub struct Series {
    /// What it is about.
    pub subject: Arc<SubjectText>,
    /// The values of [`MetricDef::labels`], in their order.
    pub labels: Vec<LabelText>,
    /// The value.
    pub value: Value,
}

impl Series {
    /// All labels with their texts, in the order of the wire.
    pub fn label_pairs<'a>(
        &'a self,
        def: &'static MetricDef,
    ) -> impl Iterator<Item = (&'static str, &'a str)> {
        let entity = def.entity.labels().iter().map(|l| l.name);
        let own = def.labels.iter().zip(&self.labels).map(|(l, text)| (l.name, text.text(l)));
        entity.zip(self.subject.values.iter().map(|v| &**v)).chain(own)
    }
}

/// The number of the series with this subject and these labels.
pub fn number_of(series: &[Series], subject: &Subject, labels: &[LabelText]) -> Option<f64> {
    series.iter().find_map(|s| match s.value {
        Value::Number(v) if s.labels == labels && s.subject.subject == *subject => Some(v),
        _ => None,
    })
}

/// A subject with the texts of its labels, made once and shared by all its series.
#[derive(Debug)]
pub struct SubjectText {
    /// The subject.
    pub subject: Subject,
    /// The values of its labels, in the order of [`crate::catalog::EntityKind::labels`].
    pub values: Vec<Arc<str>>,
}

/// The value of a series.
#[derive(Debug, Clone)]
pub enum Value {
    /// A number, in the metric's unit.
    Number(f64),
    /// A distribution.
    Histogram(Arc<Histogram>),
}

/// A classic histogram.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// Upper bounds of the buckets, rising, without +Inf.
    pub bounds: &'static [f64],
    /// Observations in each bucket (not cumulative); one more than `bounds`, the last is above all.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
}

impl Histogram {
    /// An empty one with these bucket bounds.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts one observation.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// State of the driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum DriverState {
    /// No attempt to reach it has ended yet.
    #[default]
    Waiting,
    /// It answers.
    Up,
    /// Calls into it do not return, in two processes in a row.
    Stuck,
    /// It is absent, not loaded, or answers nothing.
    Away {
        /// The reason.
        text: String,
    },
    /// NVML refuses to work: library and kernel module differ in version.
    Mismatch {
        /// What NVML said.
        text: String,
    },
    /// It is released, so that it can be unloaded: nothing is asked.
    Paused {
        /// Since when, in seconds since 1970.
        since_unix_seconds: f64,
        /// For how long.
        age: Duration,
        /// Processes of ours that still have it open.
        holders: Vec<i32>,
    },
}

/// One GPU as the status page and the JSON show it.
#[derive(Clone, Debug)]
pub struct GpuView {
    /// The GPU.
    pub gpu: Gpu,
    /// Whether it answers.
    pub state: GpuState,
    /// Its tiers that hold values now.
    pub parts: Vec<PartView>,
    /// What could not be read, and why.
    pub gaps: Vec<Gap>,
    /// Processes on it, the canary's own left out.
    pub processes: Vec<GpuProcess>,
}

/// Whether a GPU answers.
#[derive(Debug, Clone, PartialEq)]
pub enum GpuState {
    /// In time.
    Up,
    /// Nothing was read yet.
    Waiting,
    /// A driver call on it does not return.
    Stuck {
        /// NVML function.
        call: String,
        /// For how long.
        age: Duration,
    },
    /// Nothing was read for longer than a value is kept, without an error: the exporter may have been held up, or a call
    /// is not late enough yet to be stuck.
    Unread,
    /// It answers with errors only.
    Failing {
        /// The driver's error.
        error: DriverError,
        /// The error for people.
        text: String,
    },
    /// The driver is away or stuck as a whole.
    NoDriver,
    /// The driver is released: nothing is asked.
    Paused,
}

/// One tier of one GPU.
#[derive(Clone, Debug, Serialize)]
pub struct PartView {
    /// The tier.
    pub tier: Tier,
    /// Time since its values were read.
    #[serde(rename = "age_seconds", serialize_with = "seconds")]
    pub age: Duration,
    /// How long reading them took.
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    pub duration: Duration,
    /// How many values it holds.
    #[serde(rename = "values")]
    pub rows: usize,
}

fn seconds<T: Copy + Into<Option<Duration>>, S: Serializer>(
    time: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    (*time).into().map(|time| time.as_secs_f64()).serialize(serializer)
}

/// One collector.
#[derive(Clone, Debug, Serialize)]
pub struct CollectorView {
    /// Its name.
    #[serde(rename = "collector")]
    pub name: &'static str,
    /// Whether its newest visits succeeded in time.
    pub up: bool,
    /// Time since it last delivered values; `None` if it never did.
    #[serde(rename = "age_seconds", serialize_with = "seconds")]
    pub age: Option<Duration>,
    /// The trouble; empty if there is none.
    pub text: String,
}

/// The canary of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CanaryView {
    /// When it runs; `None` while not known.
    pub mode: Option<CanaryMode>,
    /// Every place with a report, by GPU and instance.
    pub places: Vec<PlaceView>,
    /// Wrong results that are not cleared, of boards that are not there now too.
    pub wrong: Vec<WrongResult>,
}

impl CanaryView {
    /// The places on one GPU.
    pub fn places_on<'a>(&'a self, gpu: &'a Gpu) -> impl Iterator<Item = &'a PlaceView> {
        self.places.iter().filter(move |place| place.gpu == *gpu)
    }
}

/// One GPU, or one MIG instance of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceView {
    /// The GPU.
    #[serde(skip)]
    pub gpu: Gpu,
    /// The MIG instance; `None`: the whole GPU.
    pub instance: Option<Instance>,
    /// Whether a run is under way.
    pub running: bool,
    /// The step in which a process hangs, if one does.
    pub hung: Option<CanaryStep>,
    /// When a run last ended, in seconds since 1970.
    #[serde(rename = "last_run_unix_seconds")]
    pub last_run: Option<f64>,
    /// When the next run is due, likewise.
    #[serde(rename = "next_due_unix_seconds")]
    pub due: Option<f64>,
    /// Why a run that was due was put off, if none was made since.
    pub skipped: Option<CanarySkip>,
    /// How the last run ended.
    pub end: Option<CanaryEnd>,
    /// Why it did not finish; empty if it did.
    pub text: String,
    /// The newest verdict of each check.
    pub checks: Vec<CheckView>,
}

/// The newest verdict of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckView {
    pub check: CanaryCheck,
    pub verdict: CanaryVerdict,
    /// The reason.
    pub text: String,
    /// Its rate in the newest valid run.
    pub rate: Option<Rate>,
}

/// What one owner has of one GPU or MIG GPU instance.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerView {
    /// Who it is.
    pub owner: Arc<Owner>,
    /// The GPU.
    pub gpu: Gpu,
    /// MIG GPU instance, if it is on one.
    pub gpu_instance: Option<u32>,
    /// Its processes there now; none after its end.
    pub processes: Vec<u32>,
    /// What holds its work back; `None` while that is not known.
    pub cause: Option<Cause>,
    /// The end of the newest GPM window in which its processes, alone there, computed.
    pub worked: Option<Mono>,
    /// Since when its kernels have run and computed nothing, after work.
    pub waits_since: Option<Mono>,
}

/// The records of owners that have ended.
#[derive(Clone, Debug, Default)]
pub struct OwnerRecordsView {
    /// The one that ended last first.
    pub ended: Arc<[Arc<OwnerRecord>]>,
    /// Owners that have work on GPUs, or have ended and have no record yet.
    pub pending: Vec<Arc<Owner>>,
}

/// A text of the program's own tables.
type StaticText = &'static str;

/// An event, or several of the same kind in a burst.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Rises with each entry, from 1. 0 until it is in the list.
    pub id: u64,
    /// Rises over all entries with each one that is new or changed.
    pub revision: u64,
    /// When it happened first, in seconds since 1970.
    pub unix_seconds: f64,
    /// When it happened last.
    pub last_unix_seconds: f64,
    /// How many more times it happened after the first.
    pub repeats: u64,
    /// Whether it is from before the exporter watched: it is in no counter.
    pub old: bool,
    /// What kind it is.
    pub kind: EventKind,
    /// The GPU, where it is about one that is known.
    #[serde(skip)]
    pub gpu: Option<Gpu>,
    /// PCI address as its source has it, without function.
    pub pci: Option<String>,
    /// Number of the NVSwitch.
    pub nvswitch: Option<String>,
    /// Xid or SXid code, the driver's number of the event, or the CUDA error that the canary met.
    pub code: Option<u64>,
    /// The vendor's name of the code, the name of the driver's event, or the canary's verdict; empty if there is
    /// none.
    #[serde(serialize_with = "null_if_empty", deserialize_with = "interned")]
    pub mnemonic: StaticText,
    /// Check of the canary.
    #[serde(deserialize_with = "interned_option")]
    pub check: Option<StaticText>,
    /// What it means.
    #[serde(deserialize_with = "interned")]
    pub meaning: StaticText,
    /// How loud it is.
    pub severity: Severity,
    /// What to do first.
    pub action: FaultAction,
    /// Whether a program can cause the Xid, by the table: yes, possible, rare or no.
    #[serde(serialize_with = "null_if_empty", deserialize_with = "interned")]
    pub app_can_cause: StaticText,
    /// Unit of the GPU, as the kernel log names it.
    pub unit: Option<String>,
    /// Whether the same unit alone had the same fault before, in another process or burst; `None` if this is the first,
    /// or not of a single unit.
    pub same_unit: Option<bool>,
    /// NVLink.
    pub link: Option<u32>,
    /// Whether the kernel log calls the NVLink fault fatal.
    pub fatal: Option<bool>,
    /// The first word of an NVLink fault.
    #[serde(serialize_with = "as_hex", deserialize_with = "from_hex")]
    pub intr_info: Option<u32>,
    /// The second word of an NVLink fault.
    #[serde(serialize_with = "as_hex", deserialize_with = "from_hex")]
    pub error_status: Option<u32>,
    /// What to look at after an NVLink fault, in NVIDIA's words.
    #[serde(deserialize_with = "interned_option")]
    pub investigate: Option<StaticText>,
    /// MIG GPU instance.
    pub gpu_instance: Option<u32>,
    /// MIG compute instance.
    pub compute_instance: Option<u32>,
    /// Process.
    pub pid: Option<u32>,
    /// Its name.
    pub process: Option<String>,
    /// Whose work ran there: that of the process, or of the only owner on the GPU or GPU instance.
    pub owner: Option<Arc<str>>,
    /// The line of the kernel log, the canary's text, or the window; empty if only the driver reported it.
    pub text: String,
    /// Whether it came as a driver event.
    #[serde(skip)]
    pub nvml: bool,
    /// Whether it came from the kernel log.
    #[serde(skip)]
    pub kmsg: bool,
}

impl Event {
    /// An event of this kind and time about which nothing more is known.
    pub fn new(kind: EventKind, unix_seconds: f64, severity: Severity, action: FaultAction) -> Event {
        Event {
            id: 0,
            revision: 0,
            unix_seconds,
            last_unix_seconds: unix_seconds,
            repeats: 0,
            old: false,
            kind,
            gpu: None,
            pci: None,
            nvswitch: None,
            code: None,
            mnemonic: "",
            check: None,
            meaning: "",
            severity,
            action,
            app_can_cause: "",
            unit: None,
            same_unit: None,
            link: None,
            fatal: None,
            intr_info: None,
            error_status: None,
            investigate: None,
            gpu_instance: None,
            compute_instance: None,
            pid: None,
            process: None,
            owner: None,
            text: String::new(),
            nvml: false,
            kmsg: false,
        }
    }
}

fn as_hex<S: Serializer>(word: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    word.map(|word| format!("{word:#010x}")).serialize(serializer)
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let text: Option<String> = Deserialize::deserialize(deserializer)?;
    let word =
        |text: String| u32::from_str_radix(text.trim_start_matches("0x"), 16).map_err(D::Error::custom);
    text.map(word).transpose()
}

/// A text of the program's own tables. Read from a file it is kept for the life of the process, each text once.
fn interned_option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'static str>, D::Error> {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let text: Option<String> = Deserialize::deserialize(deserializer)?;
    Ok(text.map(|text| {
        let mut texts = lock(&TEXTS);
        let known = texts.get(text.as_str()).copied();
        known.unwrap_or_else(|| {
            let text: &'static str = text.leak();
            texts.insert(text);
            text
        })
    }))
}

/// The same; empty if there is none.
fn interned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    Ok(interned_option(deserializer)?.unwrap_or_default())
}

fn null_if_empty<S: Serializer>(text: &&str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(serializer)
}

impl Snapshot {
    /// The newest revision of any event; 0 before the first.
    pub fn events_revision(&self) -> u64 {
        self.events.iter().map(|event| event.revision).max().unwrap_or(0)
    }

    /// All series of a metric; empty if it has none.
    pub fn series<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>) -> &[Series] {
        let def = metric.def();
        self.families.iter().find(|f| std::ptr::eq(f.def, def)).map_or(&[], |f| f.series.as_slice())
    }

    /// The value of one series, if it is there.
    pub fn number<E: Entity, L: LabelSet>(
        &self,
        metric: &Metric<E, L>,
        entity: &E,
        labels: L,
    ) -> Option<f64> {
        number_of(self.series(metric), &entity.subject(), &labels.texts())
    }

    /// One label of the `_info` series about an entity.
    pub fn info<'a, E: Entity, L: LabelSet>(
        &'a self,
        metric: &Metric<E, L>,
        entity: &E,
        label: &str,
    ) -> Option<&'a str> {
        let subject = entity.subject();
        let series = self.series(metric).iter().find(|s| s.subject.subject == subject)?;
        let at = L::DEFS.iter().position(|d| d.name == label)?;
        series.labels.get(at).map(|text| text.text(&L::DEFS[at]))
    }

    /// The families that a scrape gets: those of the default set and of the groups that are switched on.
    pub fn scraped(&self) -> impl Iterator<Item = &Family> {
        self.families.iter().filter(|family| family.scraped().next().is_some())
    }
}

impl Value {
    /// How many series it is on the wire.
    pub fn series(&self) -> usize {
        match self {
            Value::Number(_) => 1,
            Value::Histogram(h) => h.counts.len() + 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_histogram_counts_every_observation_in_its_bucket(values in prop::collection::vec(0.0f64..20.0, 0..50)) {
            static BOUNDS: [f64; 3] = [1.0, 5.0, 10.0];
            let mut histogram = Histogram::new(&BOUNDS);
            for v in &values {
                histogram.observe(*v);
            }
            prop_assert_eq!(histogram.count(), values.len() as u64);
            for (i, bound) in BOUNDS.iter().enumerate() {
                let cumulative: u64 = histogram.counts[..=i].iter().sum();
                prop_assert_eq!(cumulative, values.iter().filter(|v| *v <= bound).count() as u64);
            }
        }
    }
}

//! Consistent view of the node, which the ledger creates and every encoder reads. A snapshot never changes.

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

/// Consistent view of the node. The default is served before the first publication.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Sequence number of the publication, starting at 1; 0 before the first publication.
    pub sequence: u64,
    /// Time at which the snapshot was created.
    pub taken: Mono,
    /// Time at which the snapshot was created, in seconds since 1970.
    pub unix_seconds: f64,
    /// Metric families with at least one series, in the order of the catalogue.
    pub families: Vec<Family>,
    pub driver: DriverState,
    /// All known GPUs, by index.
    pub gpus: Vec<GpuView>,
    pub collectors: Vec<CollectorView>,
    /// True if every collector has responded or was found absent.
    pub ready: bool,
    /// Newest events, oldest first.
    pub events: Arc<[Arc<Event>]>,
    /// Time at which the list of events last changed, in seconds since 1970.
    pub events_unix_seconds: f64,
    pub canary: CanaryView,
    /// Topology of the host; `None` until it is reported.
    pub topology: Option<Arc<TopologyUpdate>>,
    /// Owners with processes on GPUs, and owners whose counters are still kept.
    pub owners: Vec<OwnerView>,
    /// Records of owners that have ended.
    pub owner_records: OwnerRecordsView,
    /// Windows of planned work that are open, in the future, or ended within the last hour.
    pub windows: Arc<[Window]>,
    /// History of a few values over the last hour.
    pub trends: Arc<Trends>,
    /// Health verdicts on the node and its GPUs.
    pub health: NodeHealth,
    /// Labels of the node, which precede the labels of every series. No metric has a label with one of these names.
    pub node_labels: Arc<[(&'static str, String)]>,
}

/// All series of one metric.
#[derive(Clone, Debug)]
pub struct Family {
    pub def: &'static MetricDef,
    /// Series of the metric, at least one.
    pub series: Vec<Series>,
    /// True if `/metrics` also serves the series that need the metric's group.
    pub whole: bool,
}

impl Family {
    /// Returns the series that a scrape returns.
    pub fn scraped(&self) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(|series| self.serves(series))
    }

    /// Returns true if a scrape returns this series.
    pub fn serves(&self, series: &Series) -> bool {
        let number = || match series.value {
            Value::Number(value) => Some(value),
            Value::Histogram(_) => None,
        };
        !self.def.json_only && (self.whole || self.def.group_of(&series.labels, number()).is_none())
    }
}

/// Series with subject, labels and value.
#[derive(Debug, Clone)]
pub struct Series {
    pub subject: Arc<SubjectText>,
    /// Values of [`MetricDef::labels`], in the same order.
    pub labels: Vec<LabelText>,
    pub value: Value,
}

impl Series {
    /// Returns all labels with their texts, in the order of the exposition formats.
    pub fn label_pairs<'a>(
        &'a self,
        def: &'static MetricDef,
    ) -> impl Iterator<Item = (&'static str, &'a str)> {
        let entity = def.entity.labels().iter().map(|l| l.name);
        let own = def.labels.iter().zip(&self.labels).map(|(l, text)| (l.name, text.text(l)));
        entity.zip(self.subject.values.iter().map(|v| &**v)).chain(own)
    }
}

/// Returns the value of the series with this subject and these labels.
pub fn number_of(series: &[Series], subject: &Subject, labels: &[LabelText]) -> Option<f64> {
    series.iter().find_map(|s| match s.value {
        Value::Number(v) if s.labels == labels && s.subject.subject == *subject => Some(v),
        _ => None,
    })
}

/// Subject with the texts of its labels, created once and shared by all series of the subject.
#[derive(Debug)]
pub struct SubjectText {
    pub subject: Subject,
    /// Values of the labels, in the order of [`crate::catalog::EntityKind::labels`].
    pub values: Vec<Arc<str>>,
}

/// Value of a series.
#[derive(Debug, Clone)]
pub enum Value {
    /// Number in the unit of the metric.
    Number(f64),
    /// Distribution of values in buckets.
    Histogram(Arc<Histogram>),
}

/// Classic histogram of Prometheus.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// Upper bounds of the buckets in ascending order, without +Inf.
    pub bounds: &'static [f64],
    /// Number of observations in every bucket (not cumulative). The last bucket, which has no bound, counts all larger
    /// values.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
}

impl Histogram {
    /// Returns an empty histogram with these bucket bounds.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Adds one observation to its bucket and to the sum.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// State of the driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum DriverState {
    /// No attempt to reach the driver has finished yet.
    #[default]
    Waiting,
    /// The driver responds to calls.
    Up,
    /// Calls into the driver do not return, in two consecutive processes.
    Stuck,
    /// The driver is absent, not loaded, or unresponsive.
    Away { text: String },
    /// NVML refuses to work, because the versions of the library and the kernel module differ.
    Mismatch {
        /// Error text of NVML.
        text: String,
    },
    /// The driver is released so that it can be unloaded, and the exporter makes no calls.
    Paused {
        /// Time of the release, in seconds since 1970.
        since_unix_seconds: f64,
        /// Time since the release.
        age: Duration,
        /// Processes of the exporter that still use the driver.
        holders: Vec<i32>,
    },
}

/// GPU as shown on the status page and in the JSON.
#[derive(Clone, Debug)]
pub struct GpuView {
    pub gpu: Gpu,
    pub state: GpuState,
    /// Tiers of the GPU with current values.
    pub parts: Vec<PartView>,
    /// Values that could not be read, with the reasons.
    pub gaps: Vec<Gap>,
    /// Processes on the GPU, without the canary.
    pub processes: Vec<GpuProcess>,
}

/// Responsiveness of a GPU.
#[derive(Debug, Clone, PartialEq)]
pub enum GpuState {
    /// The GPU responds in time.
    Up,
    /// No value was read yet.
    Waiting,
    /// A driver call on the GPU does not return.
    Stuck {
        /// NVML function that does not return.
        call: String,
        /// Time since the start of the call.
        age: Duration,
    },
    /// No value was read for longer than values are kept, and there was no error. The exporter may have been delayed,
    /// or a call may not have lasted long enough to count as stuck.
    Unread,
    /// The GPU returns only errors.
    Failing {
        error: DriverError,
        /// Error text for people.
        text: String,
    },
    /// The driver is unavailable or stuck as a whole.
    NoDriver,
    /// The driver is released, and the exporter makes no calls.
    Paused,
}

/// Tier of a GPU.
#[derive(Clone, Debug, Serialize)]
pub struct PartView {
    pub tier: Tier,
    /// Time since the values were read.
    #[serde(rename = "age_seconds", serialize_with = "seconds")]
    pub age: Duration,
    /// Duration of reading the values.
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    pub duration: Duration,
    /// Number of current values.
    #[serde(rename = "values")]
    pub rows: usize,
}

fn seconds<T: Copy + Into<Option<Duration>>, S: Serializer>(
    time: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    (*time).into().map(|time| time.as_secs_f64()).serialize(serializer)
}

/// State of a collector.
#[derive(Clone, Debug, Serialize)]
pub struct CollectorView {
    #[serde(rename = "collector")]
    pub name: &'static str,
    /// True if the newest visits succeeded in time.
    pub up: bool,
    /// Time since the last values; `None` if the collector never delivered any.
    #[serde(rename = "age_seconds", serialize_with = "seconds")]
    pub age: Option<Duration>,
    /// Description of the failure; empty without a failure.
    pub text: String,
}

/// State of the canary on the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CanaryView {
    /// Mode of the canary; `None` while it is unknown.
    pub mode: Option<CanaryMode>,
    /// All places with a report, by GPU and instance.
    pub places: Vec<PlaceView>,
    /// Wrong results that are not cleared, including results of boards that are no longer present.
    pub wrong: Vec<WrongResult>,
}

impl CanaryView {
    /// Returns the places on one GPU.
    pub fn places_on<'a>(&'a self, gpu: &'a Gpu) -> impl Iterator<Item = &'a PlaceView> {
        self.places.iter().filter(move |place| place.gpu == *gpu)
    }
}

/// Canary state of a GPU or MIG instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceView {
    #[serde(skip)]
    pub gpu: Gpu,
    /// MIG instance; `None` for the whole GPU.
    pub instance: Option<Instance>,
    /// True while a run is in progress.
    pub running: bool,
    /// Step in which a canary process hangs, if any.
    pub hung: Option<CanaryStep>,
    /// End of the last run, in seconds since 1970.
    #[serde(rename = "last_run_unix_seconds")]
    pub last_run: Option<f64>,
    /// Time of the next run, in seconds since 1970.
    #[serde(rename = "next_due_unix_seconds")]
    pub due: Option<f64>,
    /// Reason why the last due run was postponed, if no run has taken place since.
    pub skipped: Option<CanarySkip>,
    pub end: Option<CanaryEnd>,
    /// Reason why the last run did not finish; empty if it finished.
    pub text: String,
    /// Newest verdict of every check.
    pub checks: Vec<CheckView>,
}

/// Newest verdict of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckView {
    pub check: CanaryCheck,
    pub verdict: CanaryVerdict,
    pub text: String,
    /// Rate of the check in the newest valid run.
    pub rate: Option<Rate>,
}

/// Work of one owner on one GPU or MIG GPU instance.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerView {
    pub owner: Arc<Owner>,
    pub gpu: Gpu,
    /// MIG GPU instance, if the owner uses one.
    pub gpu_instance: Option<u32>,
    /// Current processes of the owner there; empty after the owner has ended.
    pub processes: Vec<u32>,
    /// Bottleneck of the work; `None` while it is unknown.
    pub cause: Option<Cause>,
    /// End of the newest GPM window in which the owner's processes computed without other owners on the GPU.
    pub worked: Option<Mono>,
    /// Time since which the owner's kernels have run without computing, after earlier work.
    pub waits_since: Option<Mono>,
}

/// Records of owners that have ended.
#[derive(Clone, Debug, Default)]
pub struct OwnerRecordsView {
    /// Records, with the most recently ended owner first.
    pub ended: Arc<[Arc<OwnerRecord>]>,
    /// Owners that still work on GPUs, or that have ended and have no record yet.
    pub pending: Vec<Arc<Owner>>,
}

/// Text from the program's own tables.
type StaticText = &'static str;

/// Event, or several events of the same kind in a burst.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the entry in the list, starting at 1; 0 before the event is added to the list.
    pub id: u64,
    /// Number that increases with every new or changed entry of the list.
    pub revision: u64,
    /// Time of the first occurrence, in seconds since 1970.
    pub unix_seconds: f64,
    /// Time of the last occurrence, in seconds since 1970.
    pub last_unix_seconds: f64,
    /// Number of repetitions after the first occurrence.
    pub repeats: u64,
    /// True if the event is from before the exporter started to read its source. No counter counts such events.
    pub old: bool,
    pub kind: EventKind,
    /// GPU of the event, if it is known.
    #[serde(skip)]
    pub gpu: Option<Gpu>,
    /// PCI address as reported by the source, without the function.
    pub pci: Option<String>,
    pub nvswitch: Option<String>,
    /// Xid or SXid code, number of the driver event, or CUDA error of the canary.
    pub code: Option<u64>,
    /// NVIDIA's name of the code, name of the driver event, or verdict of the canary; empty if there is none.
    #[serde(serialize_with = "null_if_empty", deserialize_with = "interned")]
    pub mnemonic: StaticText,
    #[serde(deserialize_with = "interned_option")]
    pub check: Option<StaticText>,
    #[serde(deserialize_with = "interned")]
    pub meaning: StaticText,
    pub severity: Severity,
    pub action: FaultAction,
    /// Possibility that a program causes the Xid, from the table: yes, possible, rare or no.
    #[serde(serialize_with = "null_if_empty", deserialize_with = "interned")]
    pub app_can_cause: StaticText,
    /// Unit of the GPU, as named in the kernel log.
    pub unit: Option<String>,
    /// True if only the same unit had this fault before, in another process or burst. `None` for the first fault, and
    /// if the fault does not concern a single unit.
    pub same_unit: Option<bool>,
    /// Number of the NVLink.
    pub link: Option<u32>,
    /// True if the kernel log calls the NVLink fault fatal.
    pub fatal: Option<bool>,
    /// First word of an NVLink fault.
    #[serde(serialize_with = "as_hex", deserialize_with = "from_hex")]
    pub intr_info: Option<u32>,
    /// Second word of an NVLink fault.
    #[serde(serialize_with = "as_hex", deserialize_with = "from_hex")]
    pub error_status: Option<u32>,
    /// NVIDIA's keyword for the investigation of an NVLink fault.
    #[serde(deserialize_with = "interned_option")]
    pub investigate: Option<StaticText>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    pub pid: Option<u32>,
    /// Name of the process.
    pub process: Option<String>,
    /// Owner of the work: the owner of the process, or the only owner on the GPU or GPU instance.
    pub owner: Option<Arc<str>>,
    /// Line of the kernel log, text of the canary, or the window; empty if only the driver reported the event.
    pub text: String,
    /// True if NVML reported the event.
    #[serde(skip)]
    pub nvml: bool,
    /// True if the kernel log reported the event.
    #[serde(skip)]
    pub kmsg: bool,
}

impl Event {
    /// Returns an event of this kind and time, without further information.
    pub fn new(kind: EventKind, unix_seconds: f64, severity: Severity, action: FaultAction) -> Event {
        let last_unix_seconds = unix_seconds;
        Event { kind, unix_seconds, last_unix_seconds, severity, action, ..Event::default() }
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

/// Deserializes a text of the program's own tables. Every distinct text is kept for the lifetime of the process.
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

/// Deserializes a text of the program's own tables, which is empty if the value is null.
fn interned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    Ok(interned_option(deserializer)?.unwrap_or_default())
}

fn null_if_empty<S: Serializer>(text: &&str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(serializer)
}

impl Snapshot {
    /// Returns the newest revision of all events; 0 before the first event.
    pub fn events_revision(&self) -> u64 {
        self.events.iter().map(|event| event.revision).max().unwrap_or(0)
    }

    /// Returns all series of a metric; empty if the metric has none.
    pub fn series<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>) -> &[Series] {
        let def = metric.def();
        self.families.iter().find(|f| std::ptr::eq(f.def, def)).map_or(&[], |f| f.series.as_slice())
    }

    /// Returns the value of one series, if it exists.
    pub fn number<E: Entity, L: LabelSet>(
        &self,
        metric: &Metric<E, L>,
        entity: &E,
        labels: L,
    ) -> Option<f64> {
        number_of(self.series(metric), &entity.subject(), &labels.texts())
    }

    /// Returns a label of the `_info` series of an entity.
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

    /// Returns the families that a scrape returns: the default set and the enabled groups.
    pub fn scraped(&self) -> impl Iterator<Item = &Family> {
        self.families.iter().filter(|family| family.scraped().next().is_some())
    }
}

impl Value {
    /// Returns the number of series in the exposition formats.
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

//! One consistent view of the node, made by the ledger and read by every encoder. Never changed once made.

mod canary;
mod event;
mod host;

use std::sync::Arc;
use std::time::Duration;

use crate::catalog::schema::{Entity, LabelSet, LabelText, Metric};
use crate::catalog::{Gpu, MetricDef, Subject, Tier};
use crate::clock::Mono;
use crate::owners::GpuProcess;
use crate::sample::Gap;
use crate::window::Window;
pub use canary::{CanaryView, CheckView, PlaceView};
pub use event::{Event, EventKind};
pub use host::{OwnerView, TopologyView};

/// One consistent view of the node.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts publications from 1; 0 is the empty snapshot before the first one.
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
    /// The canary.
    pub canary: CanaryView,
    /// The machine around the GPUs.
    pub topology: TopologyView,
    /// Owners with processes on GPUs, or whose counters are still kept.
    pub owners: Vec<OwnerView>,
    /// Windows of planned work: open, to come, or ended within the last hour.
    pub windows: Arc<[Window]>,
}

/// All series of one metric.
#[derive(Debug)]
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
#[derive(Debug, Clone, PartialEq)]
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
#[derive(Debug, Clone, PartialEq)]
pub enum DriverState {
    /// No attempt to reach it has ended yet.
    Waiting,
    /// It answers.
    Up,
    /// Calls into it do not return, in two processes in a row.
    Stuck,
    /// It is absent, not loaded, or answers nothing.
    Away {
        /// Why, in words.
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
#[derive(Debug)]
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
    /// It answers with errors only.
    Failing {
        /// What the driver said.
        text: String,
    },
    /// The driver is away or stuck as a whole.
    NoDriver,
    /// The driver is released: nothing is asked.
    Paused,
}

/// One tier of one GPU.
#[derive(Debug)]
pub struct PartView {
    /// The tier.
    pub tier: Tier,
    /// Time since its values were read.
    pub age: Duration,
    /// How long reading them took.
    pub duration: Duration,
    /// How many values it holds.
    pub rows: usize,
}

/// One collector.
#[derive(Debug)]
pub struct CollectorView {
    /// Its name.
    pub name: &'static str,
    /// Whether its newest visits succeeded in time.
    pub up: bool,
    /// Time since it last delivered values; `None` if it never did.
    pub age: Option<Duration>,
    /// What is wrong, in words; empty if nothing is.
    pub text: String,
}

impl Snapshot {
    /// The empty snapshot served before the first publication.
    pub fn empty() -> Snapshot {
        Snapshot {
            sequence: 0,
            taken: Mono(0),
            unix_seconds: 0.0,
            families: Vec::new(),
            driver: DriverState::Waiting,
            gpus: Vec::new(),
            collectors: Vec::new(),
            ready: false,
            events: Arc::from([]),
            canary: CanaryView::default(),
            topology: TopologyView::default(),
            owners: Vec::new(),
            windows: Arc::from([]),
        }
    }

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
        let (subject, labels) = (entity.subject(), labels.texts());
        self.series(metric).iter().find_map(|s| match s.value {
            Value::Number(v) if s.subject.subject == subject && s.labels == labels => Some(v),
            _ => None,
        })
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

    /// Number of series a scrape gets, buckets of a histogram counted as Prometheus counts them.
    pub fn series_count(&self) -> usize {
        self.families.iter().flat_map(Family::scraped).map(|s| s.value.series()).sum()
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

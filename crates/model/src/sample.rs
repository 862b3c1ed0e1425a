//! What one visit to a source learned: rows, gaps and costs, as they travel from a collector to the ledger.
//!
//! Unsupported, failed and zero are three different things here: a [`Gap`] says which, a zero is a row.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::schema::{Entity, KnownLabel, LabelSet, LabelText, Metric};
use crate::catalog::{
    self, CollectorName, ComputeInstance, DriverError, DropReason, Gpu, Kind, MetricId, SampleBuffer,
    Subject, Tier,
};
use crate::clock::{Mono, nanos};
use crate::owners::GpuProcess;

/// The part of the node a batch is about. Its rows replace all earlier rows of the same part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchKey {
    /// Who looked.
    pub collector: CollectorName,
    /// At which GPU; `None` for the node as a whole.
    pub gpu: Option<Gpu>,
    /// At which of its tiers.
    pub tier: Tier,
}

/// How the word of a collector begins that is switched off.
pub const SWITCHED_OFF: &str = "switched off";

/// One value of one metric about one subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which metric.
    pub metric: MetricId,
    /// The values of the labels it adds to those of the subject.
    pub labels: Vec<LabelText>,
    /// The value, in the metric's unit.
    pub value: f64,
}

/// Why a value is missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Missing {
    /// The device or driver does not know it. No alarm; not asked again with this handle.
    Unsupported,
    /// The call failed.
    Failed {
        /// Kind of failure.
        error: DriverError,
        /// What the driver or wrapper said.
        text: String,
    },
    /// The driver gave a value that cannot be true.
    Dropped(DropReason),
}

/// What could not be read, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// NVML function, with its argument where one function answers several questions.
    pub call: String,
    /// Metrics that have no value because of it.
    pub metrics: Vec<MetricId>,
    /// Why.
    pub missing: Missing,
}

/// What one driver call cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// NVML function.
    pub call: String,
    /// Wall time inside it, in nanoseconds.
    pub nanos: u64,
}

/// Readings of which each counts, other than rows, of which the newest does: the ledger adds them up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Drained {
    /// Samples of one of the driver's own buffers, oldest first. One sampler sends none twice.
    Samples {
        /// Which buffer.
        buffer: SampleBuffer,
        /// Wall clock minus monotonic clock when they were read, in microseconds.
        offset_micros: i64,
        /// Time by the driver's clock, in microseconds since 1970, and value: watts or a ratio.
        samples: Vec<(u64, f64)>,
    },
    /// What GPM measured between two of its samples.
    Gpm(GpmWindow),
}

/// What GPM measured between two of its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpmWindow {
    /// The GPU or GPU instance.
    pub subject: Subject,
    /// Length of the window, in seconds.
    pub seconds: f64,
    /// What to add to each counter: the measured ratio or rate times the length of the window.
    pub sums: Vec<Row>,
}

/// How far wall clock and monotonic clock may move against each other between two reads before the
/// driver's timestamps, which are the wall clock's, count as of another time.
pub const STEP_MICROS: i64 = 100_000;
/// No sample is of a time this far ahead: its stamp is of a wall clock that has been set back since.
pub const AHEAD_MICROS: u64 = 60_000_000;

/// Most processes of one GPU that travel: a frame holds them, and no node runs more work than that.
pub const MAX_PROCESSES: usize = 8192;

/// What one visit learned about one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The part.
    pub part: BatchKey,
    /// State of the GPU the batch belongs to; see [`ledger`].
    pub epoch: u64,
    /// When the visit began.
    pub taken: Mono,
    /// How long it took, in nanoseconds.
    pub nanos: u64,
    /// How long the rows may be served; `None`: as long as the epoch lasts.
    pub lifetime_nanos: Option<u64>,
    /// Whether what was visited answers: a call succeeded, or none was to be made.
    pub answered: bool,
    /// What was learned.
    pub rows: Rows,
    /// What was not.
    pub gaps: Vec<Gap>,
    /// Readings of which each counts.
    pub drained: Vec<Drained>,
    /// Processes on the GPU, the canary's own left out; `None` if this visit does not list them. The ledger
    /// unites what the parts of a GPU list.
    pub processes: Option<Vec<GpuProcess>>,
    /// The driver calls made.
    pub calls: Vec<CallCost>,
}

impl Batch {
    /// What a collector of the serving process learned about the node in a visit that ends now and that was answered;
    /// its rows are served for `lifetime`, or always.
    pub fn of_node(collector: CollectorName, taken: Mono, lifetime: Option<Duration>, rows: Rows) -> Batch {
        let part = BatchKey { collector, gpu: None, tier: Tier::Computed };
        Batch { rows, ..Batch::new(part, 0, taken, lifetime) }
    }

    /// An answered batch without content, of a visit that ends now.
    pub fn new(part: BatchKey, epoch: u64, taken: Mono, lifetime: Option<Duration>) -> Batch {
        Batch {
            part,
            epoch,
            taken,
            nanos: nanos(Mono::now().since(taken)),
            lifetime_nanos: lifetime.map(nanos),
            answered: true,
            rows: Rows::default(),
            gaps: Vec::new(),
            drained: Vec::new(),
            processes: None,
            calls: Vec::new(),
        }
    }

    pub fn expired(&self, now: Mono) -> bool {
        self.lifetime_nanos.is_some_and(|lifetime| now.since(self.taken).as_nanos() > u128::from(lifetime))
    }

    /// The error of the first failed call, and the call with its error for people. A loss explains the other errors.
    pub fn failure(&self) -> Option<(DriverError, String)> {
        let failed = self.gaps.iter().filter_map(|gap| match &gap.missing {
            Missing::Failed { error, text } => Some((*error, &gap.call, text)),
            Missing::Unsupported | Missing::Dropped(_) => None,
        });
        let (error, call, text) =
            failed.clone().find(|(error, ..)| error.is_lost()).or_else(|| failed.clone().next())?;
        Some((error, format!("{call}: {text}")))
    }

    /// Its MIG devices, each with its `gpu_mig_info` where that was read.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&ComputeInstance, Option<&Row>)> {
        self.rows.groups().iter().filter_map(|(subject, rows)| match subject {
            Subject::ComputeInstance(device) => {
                Some((device, rows.iter().find(|row| row.metric == catalog::gpu_mig_info.id())))
            }
            _ => None,
        })
    }

    /// The first row of this metric.
    pub fn find(&self, metric: MetricId) -> Option<&Row> {
        self.rows.all().find(|row| row.metric == metric)
    }

    /// Metrics that the driver does not have for this part.
    pub fn unsupported(&self) -> impl Iterator<Item = MetricId> {
        let missing = self.gaps.iter().filter(|gap| gap.missing == Missing::Unsupported);
        missing.flat_map(|gap| gap.metrics.iter().copied()).filter(|metric| self.find(*metric).is_none())
    }

    /// Whether every row and every counter is one the catalogue allows. What arrives over a pipe is checked
    /// with this.
    pub fn conform(&self) -> bool {
        self.rows.conform()
            && self.processes.as_ref().is_none_or(|list| list.len() <= MAX_PROCESSES)
            && self.drained.iter().all(|drained| match drained {
                Drained::Samples { .. } => true,
                Drained::Gpm(window) => {
                    let rows = Rows { groups: vec![(window.subject.clone(), window.sums.clone())] };
                    rows.conform() && (0.0..1e6).contains(&window.seconds)
                }
            })
    }
}

/// Rows, grouped by subject.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    groups: Vec<(Subject, Vec<Row>)>,
}

impl Rows {
    /// The rows about one entity, to add to.
    pub fn entity<E: Entity>(&mut self, entity: &E) -> RowsOf<'_, E> {
        let subject = entity.subject();
        let at = match self.groups.iter().position(|(s, _)| *s == subject) {
            Some(at) => at,
            None => {
                self.groups.push((subject, Vec::new()));
                self.groups.len() - 1
            }
        };
        RowsOf { rows: &mut self.groups[at].1, entity: std::marker::PhantomData }
    }

    /// Every subject with its rows.
    pub fn groups(&self) -> &[(Subject, Vec<Row>)] {
        &self.groups
    }

    /// Every row, whatever its subject.
    pub fn all(&self) -> impl Iterator<Item = &Row> {
        self.groups.iter().flat_map(|(_, rows)| rows)
    }

    /// Every row with its subject, to change the value.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Subject, &mut Row)> {
        self.groups.iter_mut().flat_map(|(subject, rows)| rows.iter_mut().map(|row| (&*subject, row)))
    }

    /// Keeps the rows for which this holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&Row) -> bool) {
        for (_, rows) in &mut self.groups {
            rows.retain(&mut keep);
        }
        self.groups.retain(|(_, rows)| !rows.is_empty());
    }

    /// Adds what was read before, of subjects that may have rows already.
    pub fn extend(&mut self, more: Rows) {
        for (subject, rows) in more.groups {
            match self.groups.iter_mut().find(|(known, _)| *known == subject) {
                Some((_, known)) => known.extend(rows),
                None => self.groups.push((subject, rows)),
            }
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|(_, rows)| rows.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every row is one the catalogue allows: known metric, right subject, right labels, a
    /// finite value within the unit's limits. What arrives over a pipe is checked with this.
    pub fn conform(&self) -> bool {
        self.groups.iter().all(|(subject, rows)| {
            rows.iter().all(|row| {
                catalog::def(row.metric).is_some_and(|def| {
                    def.entity == subject.kind()
                        && def.kind != Kind::Histogram
                        && row.labels.len() == def.labels.len()
                        && row.labels.iter().zip(def.labels).all(|(text, label)| text.fits(label))
                        && def.limits().contains(&row.value)
                })
            })
        })
    }
}

impl FromIterator<(Subject, Vec<Row>)> for Rows {
    fn from_iter<I: IntoIterator<Item = (Subject, Vec<Row>)>>(groups: I) -> Rows {
        Rows { groups: groups.into_iter().collect() }
    }
}

/// Adds rows about one entity of type `E`.
#[derive(Debug)]
pub struct RowsOf<'a, E> {
    rows: &'a mut Vec<Row>,
    entity: std::marker::PhantomData<fn(E)>,
}

impl<E: Entity> RowsOf<'_, E> {
    /// Adds a value, in the metric's unit. A value outside the unit's limits is not added; the caller
    /// that can name its source reports it as a gap.
    pub fn record<L: LabelSet>(
        &mut self,
        metric: &Metric<E, L>,
        labels: L,
        value: f64,
    ) -> Result<(), DropReason> {
        // NaN is in no range, so it is refused here as well.
        if !metric.def().limits().contains(&value) {
            return Err(DropReason::OutOfRange);
        }
        self.rows.push(Row { metric: metric.id(), labels: labels.texts(), value });
        Ok(())
    }

    /// Adds a 0/1 row.
    pub fn flag<L: LabelSet>(&mut self, metric: &Metric<E, L>, labels: L, set: bool) {
        self.rows.push(Row { metric: metric.id(), labels: labels.texts(), value: f64::from(u8::from(set)) });
    }

    /// Adds an `_info` row.
    pub fn info<L: LabelSet>(&mut self, metric: &Metric<E, L>, labels: L) {
        self.rows.push(Row { metric: metric.id(), labels: labels.texts(), value: 1.0 });
    }

    /// Adds one 0/1 row for each state of a state set.
    pub fn state<S: KnownLabel>(&mut self, metric: &Metric<E, (S,)>, now: S) {
        for state in S::ALL {
            self.flag(metric, (*state,), *state == now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{self as m, ComputeMode, Node, Sensor};

    fn gpu() -> Gpu {
        Gpu { gpu: 3, uuid: "GPU-3".into() }
    }

    #[test]
    fn impossible_values_are_refused() {
        let mut rows = Rows::default();
        assert_eq!(
            rows.entity(&gpu()).record(&m::gpu_utilization_ratio, (), 2.5),
            Err(DropReason::OutOfRange)
        );
        assert_eq!(
            rows.entity(&gpu()).record(&m::gpu_utilization_ratio, (), f64::NAN),
            Err(DropReason::OutOfRange)
        );
        assert_eq!(
            rows.entity(&gpu()).record(&m::gpu_memory_used_bytes, (), i64::MAX as f64),
            Err(DropReason::OutOfRange)
        );
        assert!(rows.is_empty());
        assert_eq!(rows.entity(&gpu()).record(&m::gpu_utilization_ratio, (), 1.0), Ok(()));
        assert_eq!(rows.len(), 1);
    }

    #[test]
    fn a_state_set_has_one_active_state() {
        let mut rows = Rows::default();
        rows.entity(&gpu()).state(&m::gpu_compute_mode, ComputeMode::Prohibited);
        let values: Vec<_> = rows.groups()[0].1.iter().map(|r| r.value).collect();
        assert_eq!(values, [0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn rows_that_the_catalogue_does_not_allow_do_not_conform() {
        let mut good = Rows::default();
        good.entity(&gpu()).record(&m::gpu_temperature_celsius, (Sensor::Gpu,), 40.0).unwrap();
        assert!(good.conform());
        let row = good.groups[0].1[0].clone();
        let with = |f: &dyn Fn(&mut Row)| {
            let mut bad = good.clone();
            f(&mut bad.groups[0].1[0]);
            bad.conform()
        };
        assert!(!with(&|r| r.metric = MetricId(u16::MAX)));
        assert!(!with(&|r| r.labels.clear()));
        assert!(!with(&|r| r.labels = vec![LabelText::Known(9)]));
        assert!(!with(&|r| r.labels = vec![LabelText::Text("gpu".into())]));
        assert!(!with(&|r| r.value = f64::INFINITY));
        let wrong_subject = Rows { groups: vec![(Node {}.subject(), vec![row])] };
        assert!(!wrong_subject.conform());
    }
}

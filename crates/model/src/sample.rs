//! Result of one visit to a source: rows, gaps and costs, which a collector sends to the ledger.
//!
//! Unsupported, failed and zero are different results. A [`Gap`] contains the reason for a missing value, and zero is
//! a row.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::schema::{Entity, KnownLabel, LabelSet, LabelText, Metric};
use crate::catalog::{
    self, CollectorName, ComputeInstance, DriverError, DropReason, Gpu, Kind, MetricId, SampleBuffer,
    Subject, Tier,
};
use crate::clock::{Mono, nanos};
use crate::owners::GpuProcess;

/// Part of the node that a batch describes. The rows of a batch replace all earlier rows of the same part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchKey {
    pub collector: CollectorName,
    /// GPU of the part; `None` for the node as a whole.
    pub gpu: Option<Gpu>,
    pub tier: Tier,
}

/// Prefix of the status text of a disabled collector.
pub const SWITCHED_OFF: &str = "switched off";

/// Value of one metric for one subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub metric: MetricId,
    /// Values of the labels that the metric adds to the labels of the subject.
    pub labels: Vec<LabelText>,
    /// Value in the unit of the metric.
    pub value: f64,
}

/// Reason for a missing value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Missing {
    /// The device or the driver does not support the value. This is not an error, and the call is not repeated with
    /// this handle.
    Unsupported,
    /// The driver call failed.
    Failed {
        error: DriverError,
        /// Error text of the driver or of the wrapper.
        text: String,
    },
    /// The driver returned an impossible value.
    Dropped(DropReason),
}

/// Values that could not be read, with the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// NVML function, with its argument if one function returns several values.
    pub call: String,
    /// Metrics without a value because of this gap.
    pub metrics: Vec<MetricId>,
    pub missing: Missing,
}

/// Cost of one driver call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    pub call: String,
    /// Wall time of the call in nanoseconds.
    pub nanos: u64,
}

/// Readings that the ledger adds up. All of them count, whereas only the newest row of a part counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Drained {
    /// Samples of one of the driver's buffers, oldest first. A sampler never sends a sample twice.
    Samples {
        buffer: SampleBuffer,
        /// Wall clock minus monotonic clock at the time of reading, in microseconds.
        offset_micros: i64,
        /// Time by the driver's clock in microseconds since 1970, and value in watts or as a ratio.
        samples: Vec<(u64, f64)>,
    },
    /// Measurement of GPM between two GPM samples.
    Gpm(GpmWindow),
}

/// Measurement of GPM between two GPM samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpmWindow {
    /// GPU or GPU instance that was measured.
    pub subject: Subject,
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Increments of the counters: the measured ratio or rate, multiplied by the length of the window.
    pub sums: Vec<Row>,
}

/// Maximum shift between the wall clock and the monotonic clock between two reads. After a larger shift, the driver's
/// timestamps, which use the wall clock, count as timestamps of another time.
pub const STEP_MICROS: i64 = 100_000;
/// Maximum time that a sample can be in the future, in microseconds. A later timestamp is from before the wall clock
/// was set back.
pub const AHEAD_MICROS: u64 = 60_000_000;

/// Maximum number of processes of one GPU in a batch. A frame has room for them, and no node runs more.
pub const MAX_PROCESSES: usize = 8192;

/// Result of one visit to one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    pub part: BatchKey,
    /// Epoch of the GPU; see [`ledger`].
    pub epoch: u64,
    /// Start of the visit.
    pub taken: Mono,
    /// Duration of the visit in nanoseconds.
    pub nanos: u64,
    /// Time for which the rows may be served; `None` for as long as the epoch lasts.
    pub lifetime_nanos: Option<u64>,
    /// True if the visited source responded: a call succeeded, or no call was due.
    pub answered: bool,
    pub rows: Rows,
    /// Values that could not be read.
    pub gaps: Vec<Gap>,
    /// Readings that the ledger adds up.
    pub drained: Vec<Drained>,
    /// Processes on the GPU without the canary; `None` if this visit does not list processes. The ledger combines the
    /// lists of all parts of a GPU.
    pub processes: Option<Vec<GpuProcess>>,
    /// Driver calls of the visit.
    pub calls: Vec<CallCost>,
}

impl Batch {
    /// Returns the batch of a collector in the serving process about the node, for a successful visit that ends now.
    /// The rows are served for `lifetime`, or forever.
    pub fn of_node(collector: CollectorName, taken: Mono, lifetime: Option<Duration>, rows: Rows) -> Batch {
        let part = BatchKey { collector, gpu: None, tier: Tier::Computed };
        Batch { rows, ..Batch::new(part, 0, taken, lifetime) }
    }

    /// Returns an empty batch for a successful visit that ends now.
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

    /// Returns the error of the first failed call, with a text for people that names the call. A lost GPU takes
    /// precedence, because it explains the other errors.
    pub fn failure(&self) -> Option<(DriverError, String)> {
        let failed = self.gaps.iter().filter_map(|gap| match &gap.missing {
            Missing::Failed { error, text } => Some((*error, &gap.call, text)),
            Missing::Unsupported | Missing::Dropped(_) => None,
        });
        let (error, call, text) =
            failed.clone().find(|(error, ..)| error.is_lost()).or_else(|| failed.clone().next())?;
        Some((error, format!("{call}: {text}")))
    }

    /// Returns the MIG devices of the batch, with their `gpu_mig_info` rows if these were read.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&ComputeInstance, Option<&Row>)> {
        self.rows.groups().iter().filter_map(|(subject, rows)| match subject {
            Subject::ComputeInstance(device) => {
                Some((device, rows.iter().find(|row| row.metric == catalog::gpu_mig_info.id())))
            }
            _ => None,
        })
    }

    /// Returns the first row of this metric.
    pub fn find(&self, metric: MetricId) -> Option<&Row> {
        self.rows.all().find(|row| row.metric == metric)
    }

    /// Returns the metrics that the driver does not support for this part.
    pub fn unsupported(&self) -> impl Iterator<Item = MetricId> {
        let missing = self.gaps.iter().filter(|gap| gap.missing == Missing::Unsupported);
        missing.flat_map(|gap| gap.metrics.iter().copied()).filter(|metric| self.find(*metric).is_none())
    }

    /// Returns true if the catalogue allows all rows and counters. The parent process checks batches from the pipe
    /// with this function.
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

/// Rows grouped by subject.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    groups: Vec<(Subject, Vec<Row>)>,
}

impl Rows {
    /// Returns the rows of one entity, to add further rows.
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

    /// Returns all subjects with their rows.
    pub fn groups(&self) -> &[(Subject, Vec<Row>)] {
        &self.groups
    }

    /// Returns all rows of all subjects.
    pub fn all(&self) -> impl Iterator<Item = &Row> {
        self.groups.iter().flat_map(|(_, rows)| rows)
    }

    /// Returns all rows with their subjects, to change the values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Subject, &mut Row)> {
        self.groups.iter_mut().flat_map(|(subject, rows)| rows.iter_mut().map(|row| (&*subject, row)))
    }

    /// Keeps only the rows for which the function returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&Row) -> bool) {
        for (_, rows) in &mut self.groups {
            rows.retain(&mut keep);
        }
        self.groups.retain(|(_, rows)| !rows.is_empty());
    }

    /// Adds rows whose subjects may already have rows.
    pub fn extend(&mut self, more: Rows) {
        for (subject, rows) in more.groups {
            match self.groups.iter_mut().find(|(known, _)| *known == subject) {
                Some((_, known)) => known.extend(rows),
                None => self.groups.push((subject, rows)),
            }
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|(_, rows)| rows.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the catalogue allows all rows: a known metric, the right subject and labels, and a finite value
    /// within the limits of the unit. The parent process checks rows from the pipe with this function.
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

/// Handle to add rows of one entity of type `E`.
#[derive(Debug)]
pub struct RowsOf<'a, E> {
    rows: &'a mut Vec<Row>,
    entity: std::marker::PhantomData<fn(E)>,
}

impl<E: Entity> RowsOf<'_, E> {
    /// Adds a value in the unit of the metric. Returns an error for a value outside the limits of the unit; a caller
    /// that can name the source reports such a value as a gap.
    pub fn record<L: LabelSet>(
        &mut self,
        metric: &Metric<E, L>,
        labels: L,
        value: f64,
    ) -> Result<(), DropReason> {
        // NaN is in no range, so it is also refused.
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

    /// Adds an `_info` row with the value 1.
    pub fn info<L: LabelSet>(&mut self, metric: &Metric<E, L>, labels: L) {
        self.rows.push(Row { metric: metric.id(), labels: labels.texts(), value: 1.0 });
    }

    /// Adds a 0/1 row for every state of a state set.
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

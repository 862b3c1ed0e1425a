//! The ledger: the one owner of all mutable state. Folds batches as they come, joins, ages, counts, and
//! publishes a [`Snapshot`] once an interval and at once after a stall or a change of the driver.
//!
//! The rules that keep wrong values off the wire:
//! - the rows of a batch replace those of its part as a whole, and expire at the part's deadline;
//! - each GPU has an epoch, raised when its handle or MIG layout changes: the first batch of a new epoch
//!   drops all rows of the older one (identity excepted), and late batches of an older one are thrown away;
//! - a stall withdraws every part of its GPU but the identity; a driver that is away or stuck withdraws all.

mod clock_events;
mod counters;
pub mod inbox;
mod publish;
mod run;
mod tally;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::catalog::{
    self as m, Call, CollectorName, DriverError, Gpu, Kind, MetricId, Node, SamplerEnd, Subject, Tier,
};
use crate::clock::Mono;
use crate::sample::{Batch, Gap, Missing, Part, Rows, Source};
use crate::snapshot::{DriverState, Histogram};
use clock_events::ClockEvents;
use counters::DriverCounters;
use inbox::{Event, Stall};
pub use run::{Beat, Hooks, run};
use tally::Tally;

/// Bounds of the histogram of driver calls, in seconds: a decade in three steps from 1 us, where most calls
/// are, to the deadline's order.
const CALL_SECONDS: [f64; 20] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5,
    1.0, 5.0,
];

/// What the ledger is told once.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most series in a snapshot, those about the node itself not counted.
    pub max_series: usize,
    /// Metrics that are switched off.
    pub off: HashSet<MetricId>,
    /// Longest pause between two fast visits that is bridged when seconds are added up.
    pub bridge: Duration,
    /// Most GPUs seen before the daemon started, in this boot.
    pub expected: usize,
    /// Release and source revision.
    pub build: m::BuildInfo,
}

/// What is held of one part.
#[derive(Debug)]
struct Held {
    rows: Rows,
    gaps: Vec<Gap>,
    unsupported: Vec<MetricId>,
    taken: Mono,
    nanos: u64,
    lifetime: Option<u64>,
}

impl Held {
    fn expired(&self, now: Mono) -> bool {
        self.lifetime.is_some_and(|lifetime| now.since(self.taken).as_nanos() > u128::from(lifetime))
    }

    /// Words for the first failed call, if any.
    fn failure(&self) -> Option<String> {
        self.gaps.iter().find_map(|gap| match &gap.missing {
            Missing::Failed { text, .. } => Some(format!("{}: {text}", gap.call)),
            _ => None,
        })
    }
}

/// What is known of one GPU beside its parts.
#[derive(Debug)]
struct GpuBook {
    gpu: Gpu,
    epoch: u64,
    clock_events: ClockEvents,
}

/// The ledger.
#[derive(Debug)]
pub struct Ledger {
    settings: Settings,
    parts: BTreeMap<Part, Held>,
    gpus: BTreeMap<Arc<str>, GpuBook>,
    node_epoch: u64,
    driver: DriverState,
    stalls: Vec<Stall>,
    samplers: usize,
    tally: Tally,
    calls: HashMap<String, (u64, u64)>,
    call_seconds: Histogram,
    counters: DriverCounters,
    last_success: BTreeMap<Source, Mono>,
    expected: usize,
    ready: bool,
    sequence: u64,
    publish_seconds: f64,
    subjects: publish::Subjects,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(settings: Settings) -> Ledger {
        let mut tally = Tally::default();
        tally.born(&m::gpu_exporter_sampler_ends_total, &Node {});
        tally.add(&m::gpu_exporter_sampler_starts_total, &Node {}, (), 0.0);
        tally.add(&m::gpu_exporter_batches_discarded_total, &Node {}, (), 0.0);
        tally.add(&m::gpu_exporter_events_lost_total, &Node {}, (), 0.0);
        tally.add(&m::gpu_exporter_series_dropped_total, &Node {}, (), 0.0);
        Ledger {
            expected: settings.expected,
            settings,
            parts: BTreeMap::new(),
            gpus: BTreeMap::new(),
            node_epoch: 0,
            driver: DriverState::Waiting,
            stalls: Vec::new(),
            samplers: 0,
            tally,
            calls: HashMap::new(),
            call_seconds: Histogram::new(&CALL_SECONDS),
            counters: DriverCounters::default(),
            last_success: BTreeMap::new(),
            ready: false,
            sequence: 0,
            publish_seconds: 0.0,
            subjects: publish::Subjects::default(),
        }
    }

    /// The most GPUs seen in this boot.
    pub fn expected(&self) -> usize {
        self.expected
    }

    /// Folds one batch. Gives whether it began a new epoch, which is published at once.
    pub fn fold(&mut self, batch: Batch) -> bool {
        self.count_calls(&batch);
        let mut new_epoch = false;
        match &batch.part.gpu {
            Some(gpu) => {
                self.seat(gpu);
                let Some(book) = self.gpus.get_mut(&gpu.uuid) else { return false };
                if batch.epoch < book.epoch {
                    self.tally.add(&m::gpu_exporter_batches_discarded_total, &Node {}, (), 1.0);
                    return false;
                }
                if batch.epoch > book.epoch {
                    new_epoch = book.epoch != 0;
                    book.epoch = batch.epoch;
                    let uuid = Arc::clone(&gpu.uuid);
                    self.parts.retain(|part, _| {
                        part.tier == Tier::Identity || part.gpu.as_ref().is_none_or(|g| g.uuid != uuid)
                    });
                }
            }
            None if batch.part.collector == Source::Nvml => {
                if batch.epoch < self.node_epoch {
                    self.tally.add(&m::gpu_exporter_batches_discarded_total, &Node {}, (), 1.0);
                    return false;
                }
                self.node_epoch = batch.epoch;
            }
            None => {}
        }
        self.count_gaps(&batch);
        self.keep(batch);
        new_epoch
    }

    /// Notes that a GPU exists. A GPU that comes back under another index, or another GPU under its index,
    /// replaces what was there.
    fn seat(&mut self, gpu: &Gpu) {
        if self.gpus.get(&gpu.uuid).is_some_and(|book| book.gpu == *gpu) {
            return;
        }
        let gone: Vec<Gpu> = self
            .gpus
            .values()
            .filter(|book| book.gpu.gpu == gpu.gpu || book.gpu.uuid == gpu.uuid)
            .map(|book| book.gpu.clone())
            .collect();
        for old in gone {
            self.gpus.remove(&old.uuid);
            self.parts.retain(|part, _| part.gpu.as_ref() != Some(&old));
            self.counters.forget(&old.uuid);
            self.tally.forget(&Subject::Gpu(old));
        }
        self.tally.born(&m::gpu_exporter_driver_errors_total, gpu);
        self.tally.born(&m::gpu_exporter_readings_dropped_total, gpu);
        self.tally.add(&m::gpu_exporter_readings_held_total, gpu, (), 0.0);
        let book = GpuBook { gpu: gpu.clone(), epoch: 0, clock_events: ClockEvents::default() };
        self.gpus.insert(Arc::clone(&gpu.uuid), book);
        self.expected = self.expected.max(self.gpus.len());
    }

    fn count_calls(&mut self, batch: &Batch) {
        for call in &batch.calls {
            let (count, nanos) = match self.calls.get_mut(&call.call) {
                Some(known) => known,
                None => self.calls.entry(call.call.clone()).or_default(),
            };
            *count += 1;
            *nanos += call.nanos;
            self.call_seconds.observe(call.nanos as f64 * 1e-9);
        }
    }

    fn count_gaps(&mut self, batch: &Batch) {
        let Some(gpu) = &batch.part.gpu else { return };
        for gap in &batch.gaps {
            match &gap.missing {
                Missing::Unsupported => {}
                Missing::Failed { error, .. } => {
                    let error: DriverError = error.label();
                    self.tally.add(&m::gpu_exporter_driver_errors_total, gpu, (error,), 1.0);
                    if error == DriverError::GpuIsLost || error == DriverError::ResetRequired {
                        // A lost GPU comes back only after a reset, and a reset clears its counters.
                        self.counters.forget(&gpu.uuid);
                    }
                }
                Missing::Dropped(drop) => {
                    self.tally.add(&m::gpu_exporter_readings_dropped_total, gpu, (drop.label(),), 1.0);
                }
            }
        }
    }

    fn keep(&mut self, batch: Batch) {
        let Batch { part, taken, nanos, lifetime_nanos, mut rows, gaps, .. } = batch;
        let mut steps_back = 0;
        if part.collector == Source::Nvml {
            for (subject, row) in rows.iter_mut() {
                if m::def(row.metric).is_some_and(|def| def.kind == Kind::Counter) {
                    let key = (row.metric, subject.clone(), row.labels.clone());
                    let (value, stepped) = self.counters.read(key, row.value);
                    row.value = value;
                    steps_back += u32::from(stepped);
                }
            }
        }
        if let Some(gpu) = &part.gpu {
            if steps_back > 0 {
                let metric = &m::gpu_exporter_readings_held_total;
                self.tally.add(metric, gpu, (), f64::from(steps_back));
            }
            if let Some(book) = self.gpus.get_mut(&gpu.uuid) {
                let own = rows.groups().iter().find(|(s, _)| matches!(s, Subject::Gpu(_)));
                let own = own.map_or(&[][..], |(_, rows)| rows);
                match part.tier {
                    Tier::Fast => book.clock_events.fast(taken, own, self.settings.bridge),
                    Tier::Slow => book.clock_events.slow(own),
                    _ => {}
                }
            }
        }
        let present: HashSet<MetricId> =
            rows.groups().iter().flat_map(|(_, rows)| rows).map(|row| row.metric).collect();
        let mut unsupported: Vec<MetricId> = gaps
            .iter()
            .filter(|gap| gap.missing == Missing::Unsupported)
            .flat_map(|gap| gap.metrics.iter().copied())
            .filter(|metric| !present.contains(metric))
            .collect();
        unsupported.sort_unstable();
        unsupported.dedup();
        if !rows.is_empty() {
            self.last_success.insert(part.collector, taken);
        }
        let held = Held { rows, gaps, unsupported, taken, nanos, lifetime: lifetime_nanos };
        self.parts.insert(part, held);
    }

    /// Takes in an event.
    pub fn event(&mut self, event: Event) {
        match event {
            Event::DriverUp => {
                if self.driver != DriverState::Stuck {
                    self.driver = DriverState::Up;
                }
            }
            Event::DriverAway { text } => {
                self.driver = DriverState::Away { text };
                self.void_driver();
                // The driver's counters start anew when it is loaded again.
                self.counters.forget_all();
            }
            Event::DriverStuck(true) => self.driver = DriverState::Stuck,
            Event::DriverStuck(false) => {
                if self.driver == DriverState::Stuck {
                    self.driver = DriverState::Up;
                }
            }
            Event::Seated(gpu) => self.seat(&gpu),
            Event::Stalls(stalls) => self.stalls = stalls,
            Event::Samplers(alive) => self.samplers = alive,
            Event::SamplerStarted => {
                self.tally.add(&m::gpu_exporter_sampler_starts_total, &Node {}, (), 1.0);
            }
            Event::SamplerEnded(reason) => {
                let reason: SamplerEnd = reason;
                self.tally.add(&m::gpu_exporter_sampler_ends_total, &Node {}, (reason,), 1.0);
            }
            Event::LateBatch => {
                self.tally.add(&m::gpu_exporter_batches_discarded_total, &Node {}, (), 1.0);
            }
        }
    }

    /// Counts events that found no room in the inbox.
    pub fn lost(&mut self, events: u64) {
        self.tally.add(&m::gpu_exporter_events_lost_total, &Node {}, (), events as f64);
    }

    /// Drops every value of the driver but the identity of its GPUs.
    fn void_driver(&mut self) {
        self.parts.retain(|part, _| {
            part.collector != Source::Nvml || (part.tier == Tier::Identity && part.gpu.is_some())
        });
    }

    /// The driver call that is stuck on a GPU, if one is.
    fn stall_of(&self, gpu: &Gpu) -> Option<&Stall> {
        self.stalls.iter().find(|stall| {
            stall.gpu.as_ref().is_some_and(|g| g.uuid == gpu.uuid || (g.uuid.is_empty() && g.gpu == gpu.gpu))
        })
    }

    /// The calls made, for the publication.
    fn call_rows(&self) -> impl Iterator<Item = (Call, u64, f64)> {
        self.calls
            .iter()
            .map(|(name, (count, nanos))| (Call(name.as_str().into()), *count, *nanos as f64 * 1e-9))
    }

    fn collectors(&self) -> impl Iterator<Item = (Source, CollectorName)> {
        crate::collectors::ALL.iter().map(|c| (c.source, c.source.label()))
    }
}

#[cfg(test)]
mod tests;

//! Ring of blocks with the readings of the last minutes.
//!
//! An entry is added to the newest block as integers of variable length. It refers to a series by number, and
//! contains the difference to the previous value in the driver's resolution. A full block is followed by a new one.
//! The oldest block is dropped when it is too old or the ring is full, and the size of the ring follows from the time
//! that it keeps. Numbers are valid in the whole ring. `begin` contains the values before the oldest block.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use model::catalog::schema::{LabelText, Unit};
use model::catalog::{CollectorName, Gpu, MetricId, SampleBuffer, Subject, Tier, def};
use model::clock::Mono;
use model::owners::GpuProcess;
use model::sample::{Batch, Drained, Missing, Row};

/// Maximum bytes of a block, unless a single entry is larger.
const BLOCK_BYTES: usize = 10 << 10;
/// Bytes per second for every GPU and for the node: power at 50 Hz that changes with every sample needs 100, the other
/// readings of a busy GPU about 60.
const GPU_BYTES_PER_SECOND: usize = 192;
/// Bytes of names for every GPU and the node. When MIG devices come and go and exceed this, the ring is cleared.
const GPU_NAMES: usize = 24 << 10;
/// Tolerance within which the samples of a buffer count as evenly spaced.
const JITTER_MICROS: u64 = 2_000;
/// Marks a series without a value.
const NONE: i64 = i64::MIN;

/// Names by number. Each kind is numbered in order of appearance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum RingName {
    Subject(Subject),
    /// Series of the subject with this number.
    Series(u32, MetricId, Vec<LabelText>),
    Call(String),
    /// Visit to a GPU or the node that made the calls with these numbers.
    Visit(Option<u32>, Tier, Vec<u32>),
}

/// Entry of the ring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum RingEntry {
    /// Samples of the driver's buffer: stretches as number of samples and microseconds between them, and differences
    /// of values.
    Samples {
        gpu: u32,
        buffer: SampleBuffer,
        stretches: Vec<(u32, u32)>,
        differences: Vec<i32>,
    },
    /// Changed series of one subject: difference to the previous number, and to the previous value.
    Rows(Vec<(i32, i64)>),
    /// Increases of GPM counters within this many milliseconds.
    Window(u32, Vec<(i32, i64)>),
    /// Visit by its number, with its time and the times of its calls as [`code_of`].
    Visit(u32, u8, Vec<u8>),
    Failed {
        gpu: Option<u32>,
        call: String,
        text: String,
    },
    /// Processes on a GPU as listed by a tier, when they changed.
    Processes {
        gpu: u32,
        tier: Tier,
        processes: Vec<GpuProcess>,
    },
}

/// Encodes a time in one byte, within 10 %: quarters of a power of two nanoseconds.
fn code_of(nanos: u64) -> u8 {
    (4.0 * (nanos.max(1) as f64).log2()).round() as u8
}

pub(crate) fn seconds_of(code: u8) -> f64 {
    (f64::from(code) / 4.0).exp2() * 1e-9
}

/// Returns how many steps per unit are stored: the resolution of the driver or the measurement.
pub(crate) fn parts(metric: MetricId) -> f64 {
    match def(metric).map_or(Unit::None, |def| def.unit) {
        Unit::Watts | Unit::Joules => 10.0,
        Unit::Seconds => 1e3,
        Unit::Ratio => 1e4,
        Unit::Hertz => 1e-6,
        Unit::Bytes | Unit::BytesPerSecond => 1.0 / 1024.0,
        Unit::Celsius | Unit::Lanes | Unit::None => 1.0,
    }
}

/// Returns how many steps per unit are stored for samples.
pub(crate) fn parts_of_sample(buffer: SampleBuffer) -> f64 {
    match buffer {
        SampleBuffer::Power => 10.0,
        SampleBuffer::Utilization => 100.0,
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RingBlock {
    pub(crate) from: Mono,
    to: Mono,
    bytes: Vec<u8>,
}

impl RingBlock {
    /// Returns the entries in order, with the milliseconds since the previous entry or the start of the block.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (i64, RingEntry)> {
        read(&self.bytes)
    }
}

fn read<'a, T: Deserialize<'a>>(mut bytes: &'a [u8]) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || {
        let (item, rest) = postcard::take_from_bytes(bytes).ok()?;
        bytes = rest;
        Some(item)
    })
}

/// Newest values of all series, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeriesValues(Vec<i64>);

impl SeriesValues {
    /// Adds the differences, and returns number and value of the changed series.
    pub(crate) fn add(&mut self, rows: &[(i32, i64)]) -> Vec<(u32, i64)> {
        let mut number = 0i64;
        let mut add = |(distance, difference): &(i32, i64)| {
            number += i64::from(*distance);
            let at = usize::try_from(number).unwrap_or_default();
            if self.0.len() <= at {
                self.0.resize(at + 1, NONE);
            }
            let before = if self.0[at] == NONE { 0 } else { self.0[at] };
            self.0[at] = before.saturating_add(*difference);
            (at as u32, self.0[at])
        };
        rows.iter().map(&mut add).collect()
    }

    /// Returns number and value of all series that have a value.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, i64)> {
        (0..).zip(self.0.iter().copied()).filter(|(_, value)| *value != NONE)
    }
}

/// Content of the ring at one moment.
#[derive(Debug)]
pub struct Frozen {
    pub(crate) blocks: Vec<Arc<RingBlock>>,
    /// Values before the first block, of series that were read since.
    pub(crate) begin: SeriesValues,
    names: Vec<u8>,
}

impl Frozen {
    /// Returns the time span of the content.
    pub fn span(&self) -> Option<(Mono, Mono)> {
        Some((self.blocks.first()?.from, self.blocks.last()?.to))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = RingName> {
        read(&self.names)
    }
}

/// State of a series.
#[derive(Clone, Copy, Debug)]
struct SeriesState {
    value: i64,
    /// Time of the last reading.
    seen: Mono,
}

#[derive(Debug, Default)]
pub struct Ring {
    /// Time that the ring keeps.
    keep: Duration,
    /// Full blocks, shared with frozen contents.
    blocks: VecDeque<Arc<RingBlock>>,
    newest: Option<RingBlock>,
    begin: SeriesValues,
    /// Numbers of subjects, series, calls and visits, by hash.
    numbers: HashMap<u64, u32>,
    names: Vec<u8>,
    subjects: u32,
    calls: u32,
    visits: u32,
    series: Vec<SeriesState>,
    /// Hash of the processes that a tier lists on a GPU, as in the newest block.
    processes: HashMap<(u32, Tier), u64>,
    /// Milliseconds at the newest entry.
    at: u64,
    /// Indices of the GPUs seen, as bits.
    gpus: u64,
    scratch: Vec<u8>,
}

impl Ring {
    /// Creates an empty ring.
    pub fn new(keep: Duration) -> Ring {
        Ring { keep, ..Ring::default() }
    }

    /// Returns the bytes of entries and names.
    pub fn bytes(&self) -> usize {
        let full = self.blocks.iter().map(|block| &**block);
        full.chain(&self.newest).map(|block| block.bytes.capacity()).sum::<usize>() + self.names.capacity()
    }

    /// Returns the current content.
    pub fn freeze(&mut self, now: Mono) -> Frozen {
        if let Some(newest) = &mut self.newest {
            newest.to = now;
        }
        let newest = self.newest.iter().map(|block| Arc::new(block.clone()));
        let blocks: Vec<Arc<RingBlock>> = self.blocks.iter().map(Arc::clone).chain(newest).collect();
        let from = blocks.first().map_or(now, |oldest| oldest.from);
        let mut begin = self.begin.clone();
        for (value, series) in begin.0.iter_mut().zip(&self.series) {
            if series.seen < from {
                *value = NONE;
            }
        }
        Frozen { blocks, begin, names: self.names.clone() }
    }

    /// Adds a batch of the driver.
    pub fn record(&mut self, batch: &Batch) {
        if batch.part.collector != CollectorName::Nvml {
            return;
        }
        let (now, about) = (batch.taken, batch.part.gpu.as_ref());
        let gpu = about.map(|gpu| gpu.gpu);
        self.gpus |= gpu.map_or(0, |gpu| 1u64.checked_shl(gpu).unwrap_or(0));
        if self.names.len() > GPU_NAMES * (1 + self.gpus.count_ones() as usize) {
            *self = Ring { gpus: self.gpus, ..Ring::new(self.keep) };
        }
        for (subject, rows) in batch.rows.groups() {
            let rows = self.differences(subject, rows, now, true);
            if !rows.is_empty() {
                self.append(now, now, &RingEntry::Rows(rows));
            }
        }
        for gap in &batch.gaps {
            if let Missing::Failed { text, .. } = &gap.missing {
                self.append(now, now, &RingEntry::Failed { gpu, call: gap.call.clone(), text: text.clone() });
            }
        }
        for drained in &batch.drained {
            match (drained, about) {
                (Drained::Samples { buffer, offset_micros, samples }, Some(gpu)) => {
                    self.samples(now, gpu, *buffer, *offset_micros, samples);
                }
                (Drained::Gpm(window), _) => {
                    let rows = self.differences(&window.subject, &window.sums, now, false);
                    self.append(now, now, &RingEntry::Window((window.seconds * 1e3).round() as u32, rows));
                }
                (Drained::Samples { .. }, None) => {}
            }
        }
        if let (Some(gpu), Some(processes)) = (gpu, &batch.processes) {
            let new = hash(processes);
            // A new block has no processes yet.
            let tier = batch.part.tier;
            if self.processes.get(&(gpu, tier)) != Some(&new) {
                self.append(now, now, &RingEntry::Processes { gpu, tier, processes: processes.clone() });
                self.processes.insert((gpu, tier), new);
            }
        }
        if !batch.calls.is_empty() {
            let visit = self.visit(batch, gpu);
            let codes = batch.calls.iter().map(|call| code_of(call.nanos)).collect();
            self.append(now, now, &RingEntry::Visit(visit, code_of(batch.nanos), codes));
        }
    }

    /// Adds an entry about the time `at`.
    fn append(&mut self, now: Mono, at: Mono, entry: &RingEntry) {
        let millis = at.0 / 1_000_000;
        let mut step = millis as i64 - self.at as i64;
        let mut bytes = self.coded(&(step, entry));
        if self.newest.as_ref().is_none_or(|block| block.bytes.len() + bytes.len() > BLOCK_BYTES) {
            self.begin_block(now);
            step = millis as i64 - self.at as i64;
            bytes = self.coded(&(step, entry));
        }
        if let Some(block) = &mut self.newest {
            block.bytes.extend(&bytes);
            block.to = now;
        }
        self.at = millis;
        self.scratch = bytes;
    }

    /// Encodes an entry into the scratch buffer, which the caller puts back.
    fn coded(&mut self, entry: &(i64, &RingEntry)) -> Vec<u8> {
        self.scratch.clear();
        // Writing to a vector cannot fail.
        postcard::to_extend(entry, std::mem::take(&mut self.scratch)).unwrap_or_default()
    }

    fn begin_block(&mut self, now: Mono) {
        self.blocks.extend(self.newest.take().map(Arc::new));
        let parts = 1 + self.gpus.count_ones() as usize;
        let most =
            (parts * GPU_BYTES_PER_SECOND * self.keep.as_secs() as usize).next_multiple_of(BLOCK_BYTES);
        let mut held: usize = self.blocks.iter().map(|block| block.bytes.len().max(BLOCK_BYTES)).sum();
        let mut bytes = Vec::new();
        while let Some(oldest) = self.blocks.front() {
            // The new block comes in addition.
            if held <= most && now.since(oldest.to) <= self.keep {
                break;
            }
            held -= oldest.bytes.len().max(BLOCK_BYTES);
            for (_, entry) in oldest.entries() {
                if let RingEntry::Rows(rows) | RingEntry::Window(_, rows) = entry {
                    self.begin.add(&rows);
                }
            }
            // The buffer is reused to avoid fragmentation, unless a file is being written from it.
            let oldest = self.blocks.pop_front().and_then(Arc::into_inner);
            bytes = oldest.map(|block| block.bytes).unwrap_or_default();
        }
        bytes.clear();
        bytes.shrink_to(BLOCK_BYTES);
        bytes.reserve_exact(BLOCK_BYTES);
        self.newest = Some(RingBlock { from: now, to: now, bytes });
        self.at = now.0 / 1_000_000;
        self.processes.clear();
    }

    /// Returns the number for a hash, and whether it is new.
    fn number(&mut self, hash: u64, next: u32) -> (u32, bool) {
        let number = *self.numbers.entry(hash).or_insert(next);
        (number, number == next)
    }

    fn name(&mut self, name: &RingName) {
        self.names = postcard::to_extend(name, std::mem::take(&mut self.names)).unwrap_or_default();
    }

    fn differences(&mut self, about: &Subject, rows: &[Row], now: Mono, changed: bool) -> Vec<(i32, i64)> {
        let of_subject = hash(("subject", about));
        let (subject, new) = self.number(of_subject, self.subjects);
        if new {
            self.subjects += 1;
            self.name(&RingName::Subject(about.clone()));
        }
        let (mut found, mut before) = (Vec::new(), 0);
        for row in rows {
            let next = self.series.len() as u32;
            let (number, new) = self.number(hash((of_subject, row.metric, &row.labels)), next);
            if new {
                self.series.push(SeriesState { value: NONE, seen: now });
                self.name(&RingName::Series(subject, row.metric, row.labels.clone()));
            }
            let series = &mut self.series[number as usize];
            series.seen = now;
            let value = (row.value * parts(row.metric)).round() as i64;
            if changed && series.value == value {
                continue;
            }
            let last = if series.value == NONE { 0 } else { series.value };
            series.value = value;
            found.push((number as i32 - before, value.saturating_sub(last)));
            before = number as i32;
        }
        found
    }

    fn visit(&mut self, batch: &Batch, gpu: Option<u32>) -> u32 {
        let names = batch.calls.iter().map(|call| call.call.as_str());
        let about = hash(("visit", gpu, batch.part.tier, names.clone().collect::<Vec<_>>()));
        let (visit, new) = self.number(about, self.visits);
        if new {
            self.visits += 1;
            let mut calls = Vec::new();
            for name in names {
                let (call, new) = self.number(hash(("call", name)), self.calls);
                if new {
                    self.calls += 1;
                    self.name(&RingName::Call(name.to_owned()));
                }
                calls.push(call);
            }
            self.name(&RingName::Visit(gpu, batch.part.tier, calls));
        }
        visit
    }

    fn samples(&mut self, now: Mono, gpu: &Gpu, buffer: SampleBuffer, offset: i64, samples: &[(u64, f64)]) {
        let Some((first, _)) = samples.first() else { return };
        let at = Mono(u64::try_from((i128::from(*first) - i128::from(offset)) * 1000).unwrap_or(0));
        let scale = parts_of_sample(buffer);
        let mut last = 0;
        let difference = |(_, value): &(u64, f64)| {
            let value = (value * scale).round() as i32;
            value.saturating_sub(std::mem::replace(&mut last, value))
        };
        let differences = samples.iter().map(difference).collect();
        let stamps: Vec<u64> = samples.iter().map(|(stamp, _)| *stamp).collect();
        let entry = RingEntry::Samples { gpu: gpu.gpu, buffer, stretches: stretches(&stamps), differences };
        self.append(now, at, &entry);
    }
}

/// Returns stretches of evenly spaced timestamps: the number that follow, and the microseconds between two. The first
/// timestamp is in none.
fn stretches(stamps: &[u64]) -> Vec<(u32, u32)> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    // Positions reached by the stretches instead of the real ones, so that errors do not add up.
    let mut begin = stamps.first().copied().unwrap_or(0);
    for stamp in stamps.iter().skip(1) {
        if let Some((count, step)) = found.last_mut() {
            let reached = begin + u64::from(*count) * u64::from(*step);
            if (reached + u64::from(*step)).abs_diff(*stamp) <= JITTER_MICROS {
                *count += 1;
                continue;
            }
            begin = reached;
        }
        found.push((1, u32::try_from(stamp.saturating_sub(begin)).unwrap_or(u32::MAX)));
    }
    found
}

fn hash(about: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    about.hash(&mut hasher);
    hasher.finish()
}

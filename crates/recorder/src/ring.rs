//! What passed in the last minutes, in a bounded ring of compressed blocks.
//!
//! An entry goes into the open block. A block ends after [`BLOCK_SPAN`] or [`BLOCK_BYTES`], is deflated, and leaves the
//! ring by its age or when the ring is full. Each block can be read alone: the subjects and lists of calls that its
//! entries number are in it, and its first row of each series has the value whether that changed or not.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use serde::{Deserialize, Serialize};

use model::catalog::schema::LabelText;
use model::catalog::{CollectorName, Gpu, MetricId, SampleBuffer, Subject, Tier};
use model::clock::Mono;
use model::owners::GpuProcess;
use model::sample::{Batch, Drained, Missing, Row};

const BLOCK_SPAN: Duration = Duration::from_secs(20);
const BLOCK_BYTES: usize = 24 << 10;
/// 4 KiB of history: the compressor's tables stay small, and what repeats does so sooner.
const WINDOW_BITS: u8 = 12;
/// Compressed bytes for each GPU, and for the node beside them.
const GPU_BYTES: usize = 28 << 10;
const NODE_BYTES: usize = 28 << 10;

/// What passed, as a block holds it. Times are milliseconds of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum RingEntry {
    /// The next number of a subject in this block.
    Subject(Subject),
    /// The next number of a list of calls in this block.
    Calls(Vec<String>),
    /// Samples of the driver's buffer: distances in milliseconds, differences in tenths of a watt or of a percent.
    Samples { gpu: u32, buffer: SampleBuffer, at: u64, steps: Vec<u32>, differences: Vec<i32> },
    /// Series that changed.
    Rows { at: u64, subject: u32, rows: Vec<(MetricId, Vec<LabelText>, f32)> },
    /// What GPM counted between two of its samples.
    Window { at: u64, subject: u32, seconds: f32, rows: Vec<(MetricId, Vec<LabelText>, f32)> },
    /// A visit: how long it took, and its calls with [`code_of`] their times.
    Visit { at: u64, gpu: Option<u32>, tier: Tier, nanos: u64, calls: u32, codes: Vec<u8> },
    /// A call that failed.
    Failed { at: u64, gpu: Option<u32>, call: String, text: String },
    /// The processes on a GPU, when they changed.
    Processes { at: u64, gpu: u32, processes: Vec<GpuProcess> },
}

/// The time of a call in one byte, within 10 %: a quarter of a power of two of nanoseconds.
fn code_of(nanos: u64) -> u8 {
    (4.0 * (nanos.max(1) as f64).log2()).round() as u8
}

pub(crate) fn seconds_of(code: u8) -> f64 {
    (f64::from(code) / 4.0).exp2() * 1e-9
}

/// A block that has ended, in the ring.
#[derive(Clone, Copy, Debug)]
struct Mark {
    from: Mono,
    to: Mono,
    /// Length before and after compression.
    length: usize,
    deflated: usize,
}

/// A block that has ended.
#[derive(Debug)]
pub(crate) struct RingBlock {
    mark: Mark,
    deflated: Vec<u8>,
}

impl RingBlock {
    /// Its entries, in order; none if it cannot be read, which only a fault of ours can cause.
    pub(crate) fn entries(&self) -> Vec<RingEntry> {
        let (mut bytes, mut entries) = (Vec::with_capacity(self.mark.length), Vec::new());
        let mut inflate = Decompress::new_with_window_bits(false, WINDOW_BITS);
        if !matches!(
            inflate.decompress_vec(&self.deflated, &mut bytes, FlushDecompress::Finish),
            Ok(Status::StreamEnd)
        ) {
            return entries;
        }
        let mut rest = bytes.as_slice();
        while let Ok((entry, after)) = postcard::take_from_bytes(rest) {
            entries.push(entry);
            rest = after;
        }
        entries
    }
}

/// The blocks of a moment.
#[derive(Debug)]
pub struct Frozen(pub(crate) Vec<RingBlock>);

impl Frozen {
    /// The time that they are about.
    pub fn span(&self) -> Option<(Mono, Mono)> {
        Some((self.0.first()?.mark.from, self.0.last()?.mark.to))
    }
}

/// The ring.
#[derive(Debug)]
pub struct Ring {
    /// How far back it goes.
    keep: Duration,
    blocks: VecDeque<Mark>,
    /// Their compressed bytes, one after the other: in one place, so that the heap has no holes.
    bytes: VecDeque<u8>,
    open: OpenBlock,
    /// Kept: made for each block, its tables would leave holes in the heap.
    deflate: Compress,
    /// Indexes of the GPUs seen, as bits.
    gpus: u64,
}

/// The block that entries go into.
#[derive(Debug, Default)]
struct OpenBlock {
    from: Option<Mono>,
    bytes: Vec<u8>,
    subjects: HashMap<Subject, u32>,
    calls: HashMap<u64, u32>,
    /// Values and lists of processes, by a hash of what they are about.
    last: HashMap<u64, u64>,
}

impl Ring {
    /// An empty ring that goes so far back.
    pub fn new(keep: Duration) -> Ring {
        Ring {
            keep,
            blocks: VecDeque::new(),
            bytes: VecDeque::new(),
            open: OpenBlock::default(),
            deflate: Compress::new_with_window_bits(Compression::fast(), false, WINDOW_BITS),
            gpus: 0,
        }
    }

    /// Takes what passes from the driver.
    pub fn take(&mut self, batch: &Batch) {
        if batch.part.collector != CollectorName::Nvml {
            return;
        }
        if let Some(gpu) = &batch.part.gpu {
            self.gpus |= 1u64.checked_shl(gpu.gpu).unwrap_or(0);
        }
        self.open.take(batch);
        let span = self.open.from.map_or(Duration::ZERO, |from| batch.taken.since(from));
        if span >= BLOCK_SPAN || self.open.bytes.len() >= BLOCK_BYTES {
            self.end_block(batch.taken);
        }
    }

    /// Compressed bytes in the ring.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// What is in the ring now.
    pub fn freeze(&mut self, now: Mono) -> Frozen {
        self.end_block(now);
        let mut bytes = self.bytes.iter().copied();
        let block =
            |mark: &Mark| RingBlock { mark: *mark, deflated: bytes.by_ref().take(mark.deflated).collect() };
        Frozen(self.blocks.iter().map(block).collect())
    }

    fn end_block(&mut self, now: Mono) {
        let Some(from) = self.open.from.take() else { return };
        let length = self.open.bytes.len();
        let mut deflated = Vec::with_capacity(length + 64);
        self.deflate.reset();
        let done = self.deflate.compress_vec(&self.open.bytes, &mut deflated, FlushCompress::Finish);
        self.open.clear();
        // Without its end, which needs more room than there was, a block cannot be read.
        let new = if matches!(done, Ok(Status::StreamEnd)) { deflated.len() } else { 0 };
        let most = NODE_BYTES + GPU_BYTES * self.gpus.count_ones() as usize;
        while let Some(oldest) = self.blocks.front() {
            if self.bytes.len() + new <= most && now.since(oldest.to) <= self.keep {
                break;
            }
            self.bytes.drain(..oldest.deflated);
            self.blocks.pop_front();
        }
        if new > 0 {
            self.bytes.reserve_exact(most.saturating_sub(self.bytes.len()).max(new));
            self.bytes.extend(&deflated);
            self.blocks.push_back(Mark { from, to: now, length, deflated: new });
        }
    }
}

impl OpenBlock {
    fn clear(&mut self) {
        self.bytes.clear();
        self.subjects.clear();
        self.calls.clear();
        self.last.clear();
    }

    fn put(&mut self, entry: &RingEntry) {
        let bytes = std::mem::take(&mut self.bytes);
        // A vector takes everything.
        self.bytes = postcard::to_extend(entry, bytes).unwrap_or_default();
    }

    /// Whether this is another value than the last one about the same.
    fn changed(&mut self, about: impl Hash, value: u64) -> bool {
        self.last.insert(hash(about), value) != Some(value)
    }

    fn subject(&mut self, subject: &Subject) -> u32 {
        if let Some(number) = self.subjects.get(subject) {
            return *number;
        }
        let number = self.subjects.len() as u32;
        self.subjects.insert(subject.clone(), number);
        self.put(&RingEntry::Subject(subject.clone()));
        number
    }

    fn take(&mut self, batch: &Batch) {
        self.from.get_or_insert(batch.taken);
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(BLOCK_BYTES + (BLOCK_BYTES >> 1));
        }
        let (at, about) = (millis(batch.taken), batch.part.gpu.as_ref());
        let gpu = about.map(|gpu| gpu.gpu);
        for (subject, rows) in batch.rows.groups() {
            let number = self.subject(subject);
            let changed = |row: &&Row| {
                self.changed((number, row.metric, &row.labels), u64::from((row.value as f32).to_bits()))
            };
            let rows: Vec<_> = rows.iter().filter(changed).map(short).collect();
            if !rows.is_empty() {
                self.put(&RingEntry::Rows { at, subject: number, rows });
            }
        }
        for gap in &batch.gaps {
            if let Missing::Failed { text, .. } = &gap.missing {
                self.put(&RingEntry::Failed { at, gpu, call: gap.call.clone(), text: text.clone() });
            }
        }
        for drained in &batch.drained {
            match (drained, about) {
                (Drained::Samples { buffer, offset_micros, samples }, Some(gpu)) => {
                    self.samples(gpu, *buffer, *offset_micros, samples);
                }
                (Drained::Gpm(window), _) => {
                    let subject = self.subject(&window.subject);
                    let rows = window.sums.iter().map(short).collect();
                    self.put(&RingEntry::Window { at, subject, seconds: window.seconds as f32, rows });
                }
                (Drained::Samples { .. }, None) => {}
            }
        }
        if let (Some(gpu), Some(processes)) = (gpu, &batch.processes)
            && self.changed(("processes", gpu), hash(processes))
        {
            self.put(&RingEntry::Processes { at, gpu, processes: processes.clone() });
        }
        self.visit(batch, at, gpu);
    }

    fn visit(&mut self, batch: &Batch, at: u64, gpu: Option<u32>) {
        if batch.calls.is_empty() {
            return;
        }
        let names = hash(batch.calls.iter().map(|call| call.call.as_str()).collect::<Vec<_>>());
        let next = self.calls.len() as u32;
        let calls = *self.calls.entry(names).or_insert(next);
        if calls == next {
            self.put(&RingEntry::Calls(batch.calls.iter().map(|call| call.call.clone()).collect()));
        }
        let codes = batch.calls.iter().map(|call| code_of(call.nanos)).collect();
        self.put(&RingEntry::Visit { at, gpu, tier: batch.part.tier, nanos: batch.nanos, calls, codes });
    }

    fn samples(&mut self, gpu: &Gpu, buffer: SampleBuffer, offset: i64, samples: &[(u64, f64)]) {
        let Some((first, _)) = samples.first() else { return };
        let scale = match buffer {
            SampleBuffer::Power => 10.0,
            SampleBuffer::Utilization => 1000.0,
        };
        let wall = |stamp: u64| i128::from(stamp) - i128::from(offset);
        let at = u64::try_from(wall(*first) / 1000).unwrap_or(0);
        let (mut before, mut last) = (*first / 1000, 0);
        let mut steps = Vec::with_capacity(samples.len());
        let mut differences = Vec::with_capacity(samples.len());
        for (stamp, value) in samples {
            let (stamp, value) = (stamp / 1000, (value * scale).round() as i32);
            steps.push(u32::try_from(stamp.saturating_sub(before)).unwrap_or(u32::MAX));
            differences.push(value.saturating_sub(last));
            (before, last) = (stamp, value);
        }
        self.put(&RingEntry::Samples { gpu: gpu.gpu, buffer, at, steps, differences });
    }
}

fn short(row: &Row) -> (MetricId, Vec<LabelText>, f32) {
    (row.metric, row.labels.clone(), row.value as f32)
}

fn millis(at: Mono) -> u64 {
    at.0 / 1_000_000
}

fn hash(about: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    about.hash(&mut hasher);
    hasher.finish()
}

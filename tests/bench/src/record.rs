//! What a sampler sends in a minute, to be replayed at any later time of the same simulated node.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use model::catalog::schema::LabelText;
use model::catalog::{self as m, Kind, MetricId, Subject};
use model::clock::Mono;
use model::sample::{Batch, Drained, Row, Rows};
use sampler::wire::{FromSampler, GpuSlot, SamplerConfig};

use super::samplers;

/// The frames of a time.
pub struct Recording {
    /// GPUs by index.
    pub slots: Vec<GpuSlot>,
    /// How long it is.
    pub lasts: Duration,
    frames: Vec<Frame>,
    begins: Mono,
}

/// One batch.
struct Frame {
    batch: Batch,
    /// How much each row grows in the recording; empty if none does.
    growth: Vec<f64>,
}

/// What is different when a recording is replayed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replay {
    /// How often the recording was replayed before.
    pub round: u64,
    /// Samplers started before.
    pub generation: u64,
    /// MIG layouts before.
    pub layouts: u32,
}

impl Recording {
    /// Records a sampler on this scenario, with the profiling counters and with a series a process.
    pub fn take(program: &Path, scenario: &str, lasts: Duration) -> Result<Recording, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let library = samplers::simulated(dir.path(), scenario)?;
        let mut orders = SamplerConfig { gpm: true, ..samplers::orders(&library) };
        orders.settings.processes = Some(32);
        let (sender, messages) = std::sync::mpsc::channel();
        let sampler = samplers::launch(program, orders, move |message| sender.send(message).is_ok())?;
        let (mut batches, mut slots) = (Vec::new(), Vec::new());
        let until = Instant::now() + lasts + Duration::from_secs(1);
        while Instant::now() < until {
            match messages.recv()?? {
                Some(FromSampler::Batch(batch)) => batches.push(batch),
                Some(FromSampler::Attached(slot)) => slots.push(slot),
                Some(_) => {}
                None => return Err("the sampler ended".into()),
            }
        }
        samplers::end(vec![sampler])?;
        slots.sort_by_key(|slot| slot.gpu.gpu);
        batches.sort_by_key(|batch| batch.taken);
        let begins = batches.first().ok_or("nothing was sent")?.taken;
        batches.retain(|batch| batch.taken < begins + lasts);
        one_epoch(&mut batches);
        let grown = growth(&batches);
        let frame = |batch: Batch| {
            let growth = rows(&batch).map(|key| grown.get(&key).copied().unwrap_or(0.0)).collect::<Vec<_>>();
            let growth = if growth.iter().any(|by| *by != 0.0) { growth } else { Vec::new() };
            Frame { batch, growth }
        };
        Ok(Recording { slots, lasts, frames: batches.into_iter().map(frame).collect(), begins })
    }

    /// Batches recorded.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// The batches of this second of the recording, as of a later time: `start` is when round 0 begins.
    pub fn second(&self, second: u64, start: Mono, replay: Replay) -> impl Iterator<Item = Batch> {
        let at = move |n| self.begins + Duration::from_secs(n);
        let first = self.frames.partition_point(|frame| frame.batch.taken < at(second));
        let last = self.frames.partition_point(|frame| frame.batch.taken < at(second + 1));
        self.frames[first..last].iter().map(move |frame| self.shifted(frame, start, replay))
    }

    fn shifted(&self, frame: &Frame, start: Mono, replay: Replay) -> Batch {
        let mut batch = frame.batch.clone();
        let later = self.lasts * u32::try_from(replay.round).unwrap_or(u32::MAX);
        batch.taken = start + batch.taken.since(self.begins) + later;
        let in_mig = batch.part.gpu.as_ref().is_some_and(|gpu| self.last_gpu() == Some(gpu.gpu));
        let layouts = if in_mig { replay.layouts } else { 0 };
        // As the daemon numbers the epochs of its samplers.
        batch.epoch += (replay.generation << 32) + u64::from(layouts);
        for ((_, row), by) in batch.rows.iter_mut().zip(&frame.growth) {
            row.value += by * replay.round as f64;
        }
        let changes =
            |subject: &Subject| !matches!(subject, Subject::Gpu(_) | Subject::Node(_) | Subject::Link(_));
        if batch.rows.groups().iter().any(|(subject, rows)| changes(subject) || rows.iter().any(names_mig)) {
            batch.rows = renamed(&batch.rows, layouts, replay.round);
        }
        for drained in &mut batch.drained {
            match drained {
                Drained::Samples { offset_micros, samples, .. } => {
                    // The same wall clock all the while: what `taken` moved by, the stamps move by.
                    let moved = batch.taken.0 as i64 - frame.batch.taken.0 as i64;
                    let moved = moved / 1000 + (*offset_micros).saturating_neg();
                    *offset_micros = 0;
                    samples.iter_mut().for_each(|(at, _)| *at = at.saturating_add_signed(moved));
                }
                Drained::Gpm(window) => window.subject = subject(&window.subject, layouts, replay.round),
            }
        }
        batch
    }

    /// The GPU in MIG mode.
    fn last_gpu(&self) -> Option<u32> {
        self.slots.last().map(|slot| slot.gpu.gpu)
    }
}

/// What identifies a row.
type Key = (MetricId, Subject, Vec<LabelText>);

fn rows(batch: &Batch) -> impl Iterator<Item = Key> + '_ {
    let groups = batch.rows.groups().iter();
    groups.flat_map(|(subject, rows)| {
        rows.iter().map(move |row| (row.metric, subject.clone(), row.labels.clone()))
    })
}

/// Makes all batches of a GPU those of its last epoch: the first one of a GPU in MIG mode lasts until that is
/// found, and cannot come again after it.
fn one_epoch(batches: &mut [Batch]) {
    let mut last = HashMap::new();
    for batch in batches.iter() {
        let epoch = last.entry(batch.part.gpu.clone()).or_insert(batch.epoch);
        *epoch = batch.epoch.max(*epoch);
    }
    for batch in batches {
        batch.epoch = last.get(&batch.part.gpu).copied().unwrap_or(batch.epoch);
    }
}

/// How much each of the driver's counters grew.
fn growth(batches: &[Batch]) -> HashMap<Key, f64> {
    let mut ends: HashMap<Key, (f64, f64)> = HashMap::new();
    for batch in batches {
        let values = batch.rows.groups().iter().flat_map(|(_, rows)| rows).map(|row| row.value);
        for (key, value) in rows(batch).zip(values) {
            if m::def(key.0).is_some_and(|def| def.kind == Kind::Counter) {
                ends.entry(key).or_insert((value, value)).1 = value;
            }
        }
    }
    ends.into_iter().map(|(key, (first, last))| (key, last - first)).collect()
}

fn names_mig(row: &Row) -> bool {
    row.labels.iter().any(|label| matches!(label, LabelText::Text(text) if text.starts_with("MIG-")))
}

/// The rows of another MIG layout, with other processes: no name comes twice.
fn renamed(rows: &Rows, layouts: u32, round: u64) -> Rows {
    let label = |label: &LabelText| match label {
        LabelText::Text(text) if text.starts_with("MIG-") => {
            LabelText::Text(format!("{text}-{layouts}").as_str().into())
        }
        other => other.clone(),
    };
    let row = |row: &Row| Row { labels: row.labels.iter().map(label).collect(), ..row.clone() };
    let group = |(of, rows): &(Subject, Vec<Row>)| {
        (subject(of, layouts, round), rows.iter().map(row).collect::<Vec<_>>())
    };
    rows.groups().iter().map(group).collect()
}

fn subject(of: &Subject, layouts: u32, round: u64) -> Subject {
    let mut of = of.clone();
    match &mut of {
        Subject::GpuInstance(instance) => instance.gpu_instance += layouts * 16,
        Subject::ComputeInstance(instance) => instance.gpu_instance += layouts * 16,
        Subject::Process(process) => process.pid += round as u32 * 64,
        _ => {}
    }
    of
}

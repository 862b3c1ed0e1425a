//! The file of a recording: JSON lines, compressed by gzip. Times `t` are seconds of the monotonic clock; the header has
//! the same moment on both clocks.
//!
//! ```text
//! first line     format ("gpu-node-exporter recording"), version, release, revision, node,
//!                written (monotonic_seconds, unix_seconds), from, to (t of the first and last readings),
//!                faults[] (t, gpu, uuid, fault, code, text)
//! then, in order of reading, one of
//!   t, gpu, samples ("power" or "utilization"), unit ("watts" or "ratio"), step_ms[], values[]
//!                 the driver's own samples, the first one at t, each step_ms after the one before
//!   t, subject (labels), values       series that changed: `name{label="value"}` and value, of 7 digits. In each
//!                 stretch of 20 s or less every series has its value once more
//!   t, subject, gpm_seconds, values   what the profiling counters added in so many seconds
//!   t, gpu, tier, seconds, calls      a visit to the driver: its time, and the time of each call within 10 %
//!   t, gpu, failed, text              a call that failed
//!   t, gpu, processes[]               processes on the GPU, when they changed
//! then           events, owners, topology, snapshot: the documents of /api/v1 at the time of writing
//! last line      end: how many lines came before. Without it the file is truncated
//! ```

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ring::{Frozen, RingEntry, seconds_of};
use crate::trigger::RecordedFault;
use model::catalog::schema::{KnownLabel, LabelText};
use model::catalog::{METRICS, MetricId, SampleBuffer, Subject};
use model::clock::Mono;

/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;
const FORMAT: &str = "gpu-node-exporter recording";
/// Longest content that is read: what is written is far below.
const MAX_CONTENT: u64 = 512 << 20;

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Written {
    pub monotonic_seconds: f64,
    pub unix_seconds: f64,
}

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub format: String,
    pub version: u32,
    /// Of the program that wrote it.
    pub release: String,
    pub revision: String,
    pub node: String,
    pub written: Written,
    pub from: f64,
    pub to: f64,
    pub faults: Vec<RecordedFault>,
}

impl Header {
    /// Of a recording of these faults that is written at this moment by this build on this node.
    pub fn new(
        (release, revision, node): (&str, &str, &str),
        written: Written,
        faults: Vec<RecordedFault>,
        frozen: &Frozen,
    ) -> Header {
        let (from, to) = frozen.span().unwrap_or_default();
        Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            release: release.to_owned(),
            revision: revision.to_owned(),
            node: node.to_owned(),
            written,
            from: seconds(from.0),
            to: seconds(to.0),
            faults,
        }
    }

    /// `t` in seconds since 1970.
    pub fn unix(&self, t: f64) -> f64 {
        t - self.written.monotonic_seconds + self.written.unix_seconds
    }
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("is no recording: {0}")]
    Other(String),
    #[error("is a recording of version {0}; this release reads version {VERSION}: use release {1}")]
    Version(u32, String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A recording that was read.
#[derive(Debug, Serialize)]
pub struct Recording {
    pub header: Header,
    /// The lines between the first and the last.
    pub lines: Vec<Value>,
    /// Why the file ends too early; `None`: it is whole.
    pub truncated: Option<String>,
}

/// Makes the bytes of a file. `documents` are JSON texts by name.
pub fn encode(header: &Header, frozen: &Frozen, documents: &[(&str, String)]) -> io::Result<Vec<u8>> {
    let mut lines = LineWriter { out: GzEncoder::new(Vec::new(), Compression::default()), count: 0 };
    lines.put(&serde_json::to_string(header)?)?;
    for block in &frozen.0 {
        let (mut subjects, mut calls) = (Vec::new(), Vec::new());
        for entry in block.entries() {
            match entry {
                RingEntry::Subject(subject) => subjects.push(subject),
                RingEntry::Calls(names) => calls.push(names),
                other => {
                    if let Some(line) = line(other, &subjects, &calls) {
                        lines.put(&line.to_string())?;
                    }
                }
            }
        }
    }
    for (name, document) in documents {
        lines.put(&format!("{{\"{name}\":{}}}", document.trim_end()))?;
    }
    let count = lines.count;
    lines.put(&json!({ "end": count }).to_string())?;
    lines.out.finish()
}

struct LineWriter {
    out: GzEncoder<Vec<u8>>,
    count: u64,
}

impl LineWriter {
    fn put(&mut self, line: &str) -> io::Result<()> {
        self.count += 1;
        self.out.write_all(line.as_bytes())?;
        self.out.write_all(b"\n")
    }
}

fn line(entry: RingEntry, subjects: &[Subject], calls: &[Vec<String>]) -> Option<Value> {
    let t = |at: u64| at as f64 / 1000.0;
    Some(match entry {
        RingEntry::Subject(_) | RingEntry::Calls(_) => return None,
        RingEntry::Samples { gpu, buffer, at, steps, differences } => {
            let (unit, scale) = match buffer {
                SampleBuffer::Power => ("watts", 10.0),
                SampleBuffer::Utilization => ("ratio", 1000.0),
            };
            let sums = differences.iter().scan(0i64, |sum, difference| {
                *sum += i64::from(*difference);
                Some(*sum as f64 / scale)
            });
            json!({ "t": t(at), "gpu": gpu, "samples": buffer.known(), "unit": unit, "step_ms": steps,
                "values": sums.collect::<Vec<_>>() })
        }
        RingEntry::Rows { at, subject, rows } => {
            json!({ "t": t(at), "subject": labels(subjects.get(subject as usize)?), "values": values(&rows) })
        }
        RingEntry::Window { at, subject, seconds, rows } => json!({ "t": t(at),
            "subject": labels(subjects.get(subject as usize)?), "gpm_seconds": digits(seconds), "values": values(&rows) }),
        RingEntry::Visit { at, gpu, tier, nanos, calls: list, codes } => {
            let names = calls.get(list as usize)?;
            let mut times: BTreeMap<&str, f64> = BTreeMap::new();
            for (name, code) in names.iter().zip(codes) {
                *times.entry(name).or_default() += seconds_of(code);
            }
            let rounded = |(name, time): (&str, f64)| (name.to_owned(), json!((time * 1e8).round() / 1e8));
            let times: serde_json::Map<String, Value> = times.into_iter().map(rounded).collect();
            json!({ "t": t(at), "gpu": gpu, "tier": tier.known(), "seconds": seconds_from(nanos), "calls": times })
        }
        RingEntry::Failed { at, gpu, call, text } => {
            json!({ "t": t(at), "gpu": gpu, "failed": call, "text": text })
        }
        RingEntry::Processes { at, gpu, processes } => {
            json!({ "t": t(at), "gpu": gpu, "processes": processes })
        }
    })
}

fn seconds_from(nanos: u64) -> f64 {
    nanos as f64 * 1e-9
}

fn seconds(nanos: u64) -> f64 {
    // As the lines have it.
    (nanos / 1_000_000) as f64 / 1000.0
}

/// The number with the digits that it has.
fn digits(value: f32) -> Value {
    serde_json::from_str(&value.to_string()).unwrap_or(Value::Null)
}

fn labels(subject: &Subject) -> Value {
    let names = subject.kind().labels().iter().map(|label| label.name.to_owned());
    let texts = subject.label_values().into_iter().map(|text| Value::from(text.to_string()));
    Value::Object(names.zip(texts).collect())
}

fn values(rows: &[(MetricId, Vec<LabelText>, f32)]) -> Value {
    let named = rows.iter().filter_map(|(metric, labels, value)| {
        let def = METRICS.get(usize::from(metric.0))?;
        let pairs = def.labels.iter().zip(labels).map(|(def, text)| {
            let text = text.text(def).replace('\\', "\\\\").replace('"', "\\\"");
            format!("{}=\"{text}\"", def.name)
        });
        let pairs: Vec<String> = pairs.collect();
        let name = match pairs.as_slice() {
            [] => def.name.to_owned(),
            pairs => format!("{}{{{}}}", def.name, pairs.join(",")),
        };
        Some((name, digits(*value)))
    });
    Value::Object(named.collect())
}

/// Reads a file. What a truncated one has is read, and why it ends.
pub fn decode(file: impl Read) -> Result<Recording, RecordingError> {
    let decoder = GzDecoder::new(BufReader::new(file));
    let mut lines = BufReader::new(decoder.take(MAX_CONTENT)).lines();
    let first = lines.next().ok_or_else(|| RecordingError::Other("it is empty".into()))?;
    let first = first.map_err(|error| RecordingError::Other(error.to_string()))?;
    let first: Value =
        serde_json::from_str(&first).map_err(|error| RecordingError::Other(error.to_string()))?;
    if first["format"] != FORMAT {
        return Err(RecordingError::Other("its first line names another format".into()));
    }
    let version = first["version"].as_u64().and_then(|version| u32::try_from(version).ok()).unwrap_or(0);
    if version != VERSION {
        let release = first["release"].as_str().unwrap_or("of its header").to_owned();
        return Err(RecordingError::Version(version, release));
    }
    let header = serde_json::from_value(first).map_err(|error| RecordingError::Other(error.to_string()))?;
    let (mut read, mut truncated) = (Vec::new(), Some("its last line is missing".to_owned()));
    for line in lines {
        let line = line.and_then(|line| Ok(serde_json::from_str::<Value>(&line)?));
        match line {
            Ok(line) if line.get("end").is_some() => {
                let whole = line["end"].as_u64() == Some(read.len() as u64 + 1);
                truncated = (!whole).then(|| "lines are missing".to_owned());
                break;
            }
            Ok(line) => read.push(line),
            Err(error) => {
                truncated = Some(error.to_string());
                break;
            }
        }
    }
    Ok(Recording { header, lines: read, truncated })
}

/// The moment of the monotonic clock, as the lines have it.
pub fn t_of(at: Mono) -> f64 {
    seconds(at.0)
}

#[cfg(test)]
mod tests;

//! File format of recordings: JSON lines, compressed by gzip. Times `t` are seconds of the monotonic clock. The header has
//! one moment on both clocks.
//!
//! ```text
//! first line     format ("gpu-node-exporter recording"), version, release, revision, node,
//!                written (monotonic_seconds, unix_seconds), from, to (t of the first and last readings),
//!                faults[] (t, gpu, uuid, fault, code, text)
//! then, in order of reading, one of
//!   t, gpu, samples ("power" or "utilization"), unit ("watts" or "ratio"), step_ms[], values[]
//!                 the driver's own samples: the first one at t, the others step_ms after the previous one
//!   t, subject (labels), values       series that changed: `name{label="value"}` and value in the driver's resolution.
//!                 The first of these lines contain the initial values of series that were read since
//!   t, subject, gpm_seconds, values   increases of the profiling counters within these seconds
//!   t, gpu, tier, seconds, calls      a visit to the driver: its time and the times of its calls, within 10 %
//!   t, gpu, failed, text              a call that failed
//!   t, gpu, tier, processes[]         processes on the GPU as listed by this tier, when they changed
//! then           events, owners, topology, snapshot: the documents of /api/v1 at the time of writing
//! last line      end: the number of lines before. Without this line, the file is truncated
//! ```

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::ring::{Frozen, RingEntry, RingName, SeriesValues, parts, parts_of_sample, seconds_of};
use crate::trigger::RecordedFault;
use model::catalog::schema::{KnownLabel, LabelText};
use model::catalog::{MetricId, SampleBuffer, Subject, Tier, def};

/// Version of the format that is written, and the only one that can be read.
pub const VERSION: u32 = 1;
const FORMAT: &str = "gpu-node-exporter recording";
/// Maximum bytes of a file, and of its uncompressed content. Eight GPUs produce about 0.3 MB.
const MAX_PACKED: u64 = 16 << 20;
const MAX_CONTENT: u64 = 64 << 20;

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Written {
    pub monotonic_seconds: f64,
    pub unix_seconds: f64,
}

/// First line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub format: String,
    pub version: u32,
    /// Release that wrote the recording.
    pub release: String,
    pub revision: String,
    pub node: String,
    pub written: Written,
    pub from: f64,
    pub to: f64,
    pub faults: Vec<RecordedFault>,
}

impl Header {
    /// Creates the header of a recording that is written at this moment.
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

    /// Converts `t` to seconds since 1970.
    pub fn unix(&self, t: f64) -> f64 {
        t - self.written.monotonic_seconds + self.written.unix_seconds
    }
}

/// Error when reading a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("is not a recording: {0}")]
    Other(String),
    #[error("has recording format version {0}, but this release reads version {VERSION}; use release {1}")]
    Version(u32, String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Recording that was read.
#[derive(Debug, Serialize)]
pub struct Recording {
    pub header: Header,
    /// Lines between the first and the last.
    pub lines: Vec<Value>,
    /// Reason why the file ends early; `None`: it is complete.
    pub truncated: Option<String>,
}

/// Writes a recording. `documents` are JSON texts by name. A text is created only when it is written, because together
/// they are larger than the ring.
pub fn encode<'a>(
    header: &Header,
    frozen: &Frozen,
    documents: impl Iterator<Item = (&'a str, String)>,
    out: impl Write,
) -> io::Result<()> {
    let mut lines = LineWriter { out: GzEncoder::new(out, Compression::default()), count: 0 };
    lines.write(&serde_json::to_string(header)?)?;
    let names = Names::read(frozen);
    let mut series = frozen.begin.clone();
    for line in names.rows(millis(header.from), series.all()) {
        lines.write(&line.to_string())?;
    }
    for block in &frozen.blocks {
        let mut at = (block.from.0 / 1_000_000) as i64;
        for (step, entry) in block.entries() {
            at += step;
            for line in names.lines(at, entry, &mut series) {
                lines.write(&line.to_string())?;
            }
        }
    }
    for (name, document) in documents {
        lines.write(&format!("{{\"{name}\":{}}}", document.trim_end()))?;
    }
    let count = lines.count;
    lines.write(&json!({ "end": count }).to_string())?;
    lines.out.finish().map(drop)
}

struct LineWriter<W: Write> {
    out: GzEncoder<W>,
    count: u64,
}

impl<W: Write> LineWriter<W> {
    fn write(&mut self, line: &str) -> io::Result<()> {
        self.count += 1;
        self.out.write_all(line.as_bytes())?;
        self.out.write_all(b"\n")
    }
}

/// Names behind the numbers in a ring.
#[derive(Default)]
struct Names {
    subjects: Vec<Subject>,
    series: Vec<(u32, MetricId, Vec<LabelText>)>,
    calls: Vec<String>,
    visits: Vec<(Option<u32>, Tier, Vec<u32>)>,
}

impl Names {
    fn read(frozen: &Frozen) -> Names {
        let mut names = Names::default();
        for name in frozen.names() {
            match name {
                RingName::Subject(subject) => names.subjects.push(subject),
                RingName::Series(subject, metric, labels) => names.series.push((subject, metric, labels)),
                RingName::Call(call) => names.calls.push(call),
                RingName::Visit(gpu, tier, calls) => names.visits.push((gpu, tier, calls)),
            }
        }
        names
    }

    fn lines(&self, at: i64, entry: RingEntry, series: &mut SeriesValues) -> Vec<Value> {
        let t = at as f64 / 1e3;
        let line = match entry {
            RingEntry::Rows(rows) => return self.rows(at, series.add(&rows).into_iter()),
            RingEntry::Window(millis, rows) => {
                let mut lines = self.rows(at, series.add(&rows).into_iter());
                lines.iter_mut().for_each(|line| line["gpm_seconds"] = json!(f64::from(millis) / 1e3));
                return lines;
            }
            RingEntry::Samples { gpu, buffer, stretches, differences } => {
                let unit = match buffer {
                    SampleBuffer::Power => "watts",
                    SampleBuffer::Utilization => "ratio",
                };
                let sums = differences.iter().scan(0i64, |sum, difference| {
                    *sum += i64::from(*difference);
                    Some(*sum as f64 / parts_of_sample(buffer))
                });
                let steps = stretches.iter().flat_map(|(count, micros)| {
                    std::iter::repeat_n(f64::from(*micros) / 1e3, *count as usize)
                });
                let steps: Vec<f64> = std::iter::once(0.0).chain(steps).collect();
                json!({ "t": t, "gpu": gpu, "samples": buffer.known(), "unit": unit, "step_ms": steps,
                    "values": sums.collect::<Vec<_>>() })
            }
            RingEntry::Visit(visit, code, codes) => {
                let Some((gpu, tier, calls)) = self.visits.get(visit as usize) else { return Vec::new() };
                let mut times: BTreeMap<&str, f64> = BTreeMap::new();
                for (call, code) in calls.iter().zip(codes) {
                    let Some(name) = self.calls.get(*call as usize) else { continue };
                    *times.entry(name).or_default() += seconds_of(code);
                }
                let rounded = |seconds: f64| (seconds * 1e8).round() / 1e8;
                times.values_mut().for_each(|time| *time = rounded(*time));
                json!({ "t": t, "gpu": gpu, "tier": tier.known(), "seconds": rounded(seconds_of(code)), "calls": times })
            }
            RingEntry::Failed { gpu, call, text } => {
                json!({ "t": t, "gpu": gpu, "failed": call, "text": text })
            }
            RingEntry::Processes { gpu, tier, processes } => {
                json!({ "t": t, "gpu": gpu, "tier": tier.known(), "processes": processes })
            }
        };
        vec![line]
    }

    /// Returns one line per subject.
    fn rows(&self, at: i64, values: impl Iterator<Item = (u32, i64)>) -> Vec<Value> {
        let mut subjects: BTreeMap<u32, Map<String, Value>> = BTreeMap::new();
        for (number, value) in values {
            let Some((subject, metric, labels)) = self.series.get(number as usize) else { continue };
            let Some(def) = def(*metric) else { continue };
            let pairs = def.labels.iter().zip(labels).map(|(def, text)| {
                let text = text.text(def).replace('\\', "\\\\").replace('"', "\\\"");
                format!("{}=\"{text}\"", def.name)
            });
            let pairs: Vec<String> = pairs.collect();
            let name = match pairs.as_slice() {
                [] => def.name.to_owned(),
                pairs => format!("{}{{{}}}", def.name, pairs.join(",")),
            };
            subjects.entry(*subject).or_default().insert(name, number_of(value, parts(*metric)));
        }
        let line = |(subject, values): (u32, Map<String, Value>)| {
            let subject = labels(self.subjects.get(subject as usize)?);
            Some(json!({ "t": at as f64 / 1e3, "subject": subject, "values": values }))
        };
        subjects.into_iter().filter_map(line).collect()
    }
}

fn millis(seconds: f64) -> i64 {
    (seconds * 1e3).round() as i64
}

fn seconds(nanos: u64) -> f64 {
    // Milliseconds, as in the other lines.
    (nanos / 1_000_000) as f64 / 1000.0
}

/// Returns the value as a number with the digits that it has.
fn number_of(value: i64, parts: f64) -> Value {
    let number = value as f64 / parts;
    // Integers have no decimals.
    if parts <= 1.0 { json!(number.round() as i64) } else { json!(number) }
}

fn labels(subject: &Subject) -> Value {
    let names = subject.kind().labels().iter().map(|label| label.name.to_owned());
    let texts = subject.label_values().into_iter().map(|text| Value::from(text.to_string()));
    Value::Object(names.zip(texts).collect())
}

fn other(error: impl Display) -> RecordingError {
    RecordingError::Other(error.to_string())
}

/// Reads a recording. A truncated one is read up to its end, with the reason.
pub fn decode(file: impl Read) -> Result<Recording, RecordingError> {
    let decoder = GzDecoder::new(BufReader::new(file.take(MAX_PACKED)));
    let mut lines = BufReader::new(decoder.take(MAX_CONTENT)).lines();
    let first = lines.next().ok_or_else(|| RecordingError::Other("it is empty".into()))?;
    let first: Value = serde_json::from_str(&first.map_err(other)?).map_err(other)?;
    if first["format"] != FORMAT {
        return Err(RecordingError::Other("its first line names another format".into()));
    }
    let version = first["version"].as_u64().and_then(|version| u32::try_from(version).ok()).unwrap_or(0);
    if version != VERSION {
        let release = first["release"].as_str().unwrap_or("of its header").to_owned();
        return Err(RecordingError::Version(version, release));
    }
    let header = serde_json::from_value(first).map_err(other)?;
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

#[cfg(test)]
mod tests;

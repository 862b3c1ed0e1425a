//! `gpu-node-exporter snapshot --recording FILE`: prints a recording as JSON, or as text with one line per
//! second and GPU.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::{Output, json};
use crate::recorder::time_of;
use model::plain_file;
use recorder::file::{Header, Recording, decode};

/// Maximum file size in bytes, which is the largest value of `recorder.max_bytes`.
const MAX_BYTES: usize = u32::MAX as usize;
/// Seconds from which a visit or a call is listed as slow.
const SLOW: f64 = 0.1;
/// Additional columns of the table: series name in the file, heading and factor of the unit.
const COLUMNS: [(&str, &str, f64); 4] = [
    ("gpu_clock_hertz{domain=\"sm\"}", "SM MHz", 1e-6),
    ("gpu_clock_hertz{domain=\"memory\"}", "mem MHz", 1e-6),
    ("gpu_temperature_celsius{sensor=\"gpu\"}", "°C", 1.0),
    ("gpu_memory_used_bytes", "mem GiB", 1.0 / (1u64 << 30) as f64),
];

/// Reads the file. The exit code is 1 if it is truncated.
pub fn run(file: &Path, format: &str) -> Result<Output, String> {
    let named = |error: String| format!("{}: {error}", file.display());
    let bytes = plain_file::read(file, MAX_BYTES).map_err(|error| named(error.to_string()))?;
    let recording = decode(bytes.as_slice()).map_err(|error| named(error.to_string()))?;
    let text = match format {
        "json" => json(&recording)?,
        "text" => text(&recording),
        other => return Err(format!("a recording has no format {other}: choose text or json")),
    };
    Ok(Output { text, code: u8::from(recording.truncated.is_some()) })
}

/// Values of one GPU in one second.
#[derive(Default)]
struct SecondOfGpu {
    /// Power in watts, and utilization as a ratio.
    power: Vec<f64>,
    utilization: Vec<f64>,
    columns: [Option<f64>; COLUMNS.len()],
}

fn text(recording: &Recording) -> String {
    let Recording { header, lines, truncated } = recording;
    let mut out = format!(
        "recording of {}, gpu-node-exporter {} ({})\nwritten {}\nreadings from {} to {}, {:.1} s\n",
        header.node,
        header.release,
        header.revision,
        time(header.written.unix_seconds),
        time(header.unix(header.from)),
        time(header.unix(header.to)),
        header.to - header.from
    );
    if let Some(why) = truncated {
        let _ = writeln!(out, "TRUNCATED after {} lines: {why}", lines.len());
    }
    out.push_str("\nfaults\n");
    for fault in &header.faults {
        let about = fault.gpu.map_or("node".to_owned(), |gpu| format!("GPU {gpu}"));
        let code = fault.code.map(|code| format!(" {code}")).unwrap_or_default();
        let at = time(header.unix(fault.t));
        let _ = writeln!(out, "  {at}  {about}  {}{code}  {}", fault.fault, fault.text);
    }
    events(&mut out, lines);
    happened(&mut out, header, lines);
    seconds(&mut out, header, lines);
    out
}

fn events(out: &mut String, lines: &[Value]) {
    let listed = lines.iter().find_map(|line| line["events"]["events"].as_array());
    let Some(events) = listed.filter(|events| !events.is_empty()) else { return };
    out.push_str("\nevents\n");
    for event in events {
        let text = |key: &str| match &event[key] {
            Value::Null => String::new(),
            Value::String(text) => format!("  {text}"),
            other => format!("  {key} {other}"),
        };
        let fields = ["last_time", "kind", "gpu", "code", "severity", "owner", "text"];
        let _ = writeln!(out, "{}", fields.map(text).concat());
    }
}

/// Lists calls that failed or were slow, and changes of the processes.
fn happened(out: &mut String, header: &Header, lines: &[Value]) {
    out.push_str("\nfailed and slow calls, processes\n");
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    let mut listed: BTreeMap<(String, String), String> = BTreeMap::new();
    for line in lines {
        let about = line["gpu"].as_u64().map_or("node".to_owned(), |gpu| format!("GPU {gpu}"));
        let at = time(header.unix(line["t"].as_f64().unwrap_or(0.0)));
        if let Some(call) = line["failed"].as_str() {
            let entry = format!("{about}  {call}  {}", line["text"].as_str().unwrap_or(""));
            let count = failures.entry(entry.clone()).or_default();
            *count += 1;
            if *count == 1 {
                let _ = writeln!(out, "  {at}  {entry}");
            }
        } else if let Some(calls) = line["calls"].as_object() {
            for (call, seconds) in calls.iter().filter_map(|(call, time)| Some((call, time.as_f64()?))) {
                if seconds >= SLOW {
                    let _ = writeln!(out, "  {at}  {about}  {call}  took {seconds:.3} s");
                }
            }
        } else if let Some(processes) = line["processes"].as_array() {
            let pids: Vec<String> = processes.iter().map(|process| process["pid"].to_string()).collect();
            let pids = pids.join(" ");
            // A list of processes is also repeated once per block.
            let list = (about, line["tier"].to_string());
            if listed.get(&list).map_or("", String::as_str) != pids {
                let _ = writeln!(out, "  {at}  {}  processes: {pids}", list.0);
                listed.insert(list, pids);
            }
        }
    }
    for (entry, count) in failures.iter().filter(|(_, count)| **count > 1) {
        let _ = writeln!(out, "  {count} times  {entry}");
    }
}

/// Prints a table with one line per second and GPU.
fn seconds(out: &mut String, header: &Header, lines: &[Value]) {
    let mut table: BTreeMap<(u64, u64), SecondOfGpu> = BTreeMap::new();
    for line in lines {
        let Some(t) = line["t"].as_f64() else { continue };
        if let (Some(gpu), Some(buffer)) = (line["gpu"].as_u64(), line["samples"].as_str()) {
            let steps = line["step_ms"].as_array().into_iter().flatten();
            let values = line["values"].as_array().into_iter().flatten();
            let mut at = t;
            for (step, value) in steps.zip(values) {
                at += step.as_f64().unwrap_or(0.0) / 1000.0;
                let second = table.entry((at as u64, gpu)).or_default();
                let list = if buffer == "power" { &mut second.power } else { &mut second.utilization };
                list.extend(value.as_f64());
            }
        } else if let Some(gpu) = line["subject"]["gpu"].as_str().and_then(|gpu| gpu.parse().ok()) {
            for (at, (name, _, factor)) in COLUMNS.iter().enumerate() {
                if let Some(value) = line["values"][*name].as_f64() {
                    table.entry((t as u64, gpu)).or_default().columns[at] = Some(value * factor);
                }
            }
        }
    }
    let heads = COLUMNS.map(|(_, head, _)| format!("{head:>8}")).concat();
    let _ = writeln!(
        out,
        "\n{:<24}{:>4}{:>9}{:>9}{:>9}{:>7}{heads}",
        "second", "GPU", "W min", "W mean", "W max", "busy"
    );
    let mut last: BTreeMap<u64, [Option<f64>; COLUMNS.len()]> = BTreeMap::new();
    for ((second, gpu), row) in &table {
        // A series has an entry only when it changes.
        let known = last.entry(*gpu).or_default();
        for (known, new) in known.iter_mut().zip(row.columns) {
            *known = new.or(*known);
        }
        let mean = |list: &[f64]| (!list.is_empty()).then(|| list.iter().sum::<f64>() / list.len() as f64);
        let number =
            |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
        let power = [
            row.power.iter().copied().reduce(f64::min),
            mean(&row.power),
            row.power.iter().copied().reduce(f64::max),
        ]
        .map(|watts| format!("{:>9}", number(watts, 1)))
        .concat();
        let busy = number(mean(&row.utilization), 2);
        let columns = known.map(|value| format!("{:>8}", number(value, 0))).concat();
        let _ = writeln!(out, "{:<24}{gpu:>4}{power}{busy:>7}{columns}", time(header.unix(*second as f64)));
    }
}

/// Formats a time as RFC 3339 with milliseconds.
fn time(unix_seconds: f64) -> String {
    // Rounding keeps a whole second whole.
    let at = time_of((unix_seconds * 1e3).round() / 1e3 + 1e-6);
    at.map_or("-".to_owned(), |at| humantime::format_rfc3339_millis(at).to_string())
}

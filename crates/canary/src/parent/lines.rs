//! Reads what the process writes, in a thread of its own: lines of bounded length, each a report.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::report::{MAX_LINE, Report};

/// Reports kept while nobody takes them; then the process waits.
const KEPT: usize = 64;
/// So much of a line that is no report is told.
const SHOWN: usize = 80;

/// What came.
#[derive(Debug)]
pub enum Line {
    /// A report.
    Report(Box<Report>),
    /// What is no report, and why. Nothing more is read.
    Garbage(String),
    /// The stream has ended.
    Over,
}

/// Reads in a new thread, to the end of the stream, also when nobody listens any more: a process that still
/// writes can then end by itself.
pub fn read(frames: File) -> io::Result<Receiver<Line>> {
    let (sender, lines) = sync_channel(KEPT);
    std::thread::Builder::new().name("canary-reports".into()).stack_size(512 * 1024).spawn(move || {
        let mut frames = BufReader::with_capacity(16 * 1024, frames);
        read_all(&mut frames, &sender);
        drop(sender);
        if let Err(error) = io::copy(&mut frames, &mut io::sink()) {
            tracing::debug!(%error, "the rest of a canary's reports");
        }
    })?;
    Ok(lines)
}

fn read_all(frames: &mut impl BufRead, sender: &SyncSender<Line>) {
    loop {
        let line = next(frames);
        let last = !matches!(line, Line::Report(_));
        if sender.send(line).is_err() || last {
            return;
        }
    }
}

fn next(frames: &mut impl BufRead) -> Line {
    let mut line = Vec::new();
    match frames.take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line) {
        Ok(0) => return Line::Over,
        Ok(_) => {}
        Err(error) => return Line::Garbage(format!("its reports cannot be read: {error}")),
    }
    if line.pop_if(|last| *last == b'\n').is_none() {
        return Line::Garbage(match line.len() > MAX_LINE {
            true => format!("a line of more than {MAX_LINE} bytes"),
            false => format!("half a line: {}", shown(&line)),
        });
    }
    match serde_json::from_slice(&line) {
        Ok(report) => Line::Report(Box::new(report)),
        Err(error) => Line::Garbage(format!("no report: {} ({error})", shown(&line))),
    }
}

/// The begin of a line, fit for a log.
fn shown(line: &[u8]) -> String {
    let begin = &line[..line.len().min(SHOWN)];
    format!("{:?}", String::from_utf8_lossy(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<String> {
        let mut reader = bytes;
        let mut told = Vec::new();
        loop {
            match next(&mut reader) {
                Line::Report(report) => told.push(format!("{report:?}")),
                Line::Garbage(text) => {
                    told.push(text);
                    return told;
                }
                Line::Over => return told,
            }
        }
    }

    #[test]
    fn reports_are_read_line_by_line() {
        let told = lines(b"{\"begin\":\"init\"}\n{\"done\":{\"gpu_seconds\":0.5}}\n");
        assert_eq!(told, ["Begin(Init)", "Done { gpu_seconds: 0.5 }"]);
    }

    #[test]
    fn what_is_no_report_is_told_and_bounded() {
        let half = lines(b"{\"begin\":\"init\"}\n{\"begin\"");
        assert_eq!(half, ["Begin(Init)", "half a line: \"{\\\"begin\\\"\""]);
        let garbage = lines(b"\xff\x00{}\n");
        assert!(garbage[0].starts_with("no report: "), "{garbage:?}");
        let long = lines(&vec![b' '; 3 * MAX_LINE]);
        assert_eq!(long, [format!("a line of more than {MAX_LINE} bytes")]);
        let other = lines(b"{\"begin\":\"dance\"}\n");
        assert!(other[0].starts_with("no report: ") && other[0].len() < 300, "{other:?}");
    }
}

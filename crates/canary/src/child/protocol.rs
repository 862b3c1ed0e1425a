//! The request down the control pipe and the reports up the frames pipe.

use std::fs::File;
use std::io::{self, Read, Write};

use crate::report::{ChildReport, MAX_LINE, RunRequest};
use model::catalog;

/// The first line, byte by byte: nothing after it is taken.
pub fn read_request(pipe: &mut impl Read) -> io::Result<Option<RunRequest>> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match pipe.read(&mut byte) {
            Ok(0) if line.is_empty() => return Ok(None),
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the request breaks off")),
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) if line.len() == MAX_LINE => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the request is too long"));
            }
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let request: RunRequest = serde_json::from_slice(&line)?;
    if request.fingerprint != catalog::fingerprint() {
        return Err(io::Error::other("the request comes from another build"));
    }
    Ok(Some(request))
}

#[derive(Debug)]
pub struct ReportWriter<W = File> {
    pipe: W,
    /// The parent no longer reads.
    broken: bool,
}

impl<W: Write> ReportWriter<W> {
    pub fn new(pipe: W) -> ReportWriter<W> {
        ReportWriter { pipe, broken: false }
    }

    /// Sends a report. A failure is logged; the parent learns it by the silence.
    pub fn send(&mut self, report: &ChildReport) {
        if self.broken {
            return;
        }
        let sent = line(report).and_then(|line| self.pipe.write_all(&line));
        if let Err(error) = sent {
            tracing::warn!(%error, "a report cannot be sent");
            self.broken = true;
        }
    }
}

/// A report as it is sent.
fn line(report: &ChildReport) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(report)?;
    if line.len() > MAX_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a report that is too long"));
    }
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CheckFigures, Measurement, Mismatches, Sm};
    use model::catalog::CanaryCheck;
    use sampler::watch::Around;

    fn request() -> RunRequest {
        RunRequest {
            fingerprint: catalog::fingerprint(),
            device: "GPU-1".into(),
            pci_address: "00000000:01:00.0".into(),
            instance: None,
            peer: None,
            nvml_library: Default::default(),
            cuda_library: Default::default(),
            checks: vec![CanaryCheck::Init, CanaryCheck::SmRate],
            memory_bytes: 1 << 28,
            seed: 7,
            yields: true,
        }
    }

    fn read(bytes: &[u8]) -> io::Result<Option<RunRequest>> {
        read_request(&mut &bytes[..])
    }

    #[test]
    fn a_request_is_one_line_and_nothing_behind_it_is_taken() {
        let mut bytes = serde_json::to_vec(&request()).unwrap();
        bytes.extend_from_slice(b"\nmore");
        let mut pipe = &bytes[..];
        assert_eq!(read_request(&mut pipe).unwrap(), Some(request()));
        assert_eq!(pipe, b"more");
    }

    #[test]
    fn what_is_no_request_of_this_build_is_refused() {
        assert_eq!(read(b"").unwrap(), None, "the parent has gone");
        assert!(read(b"{\"finger").is_err(), "broken off");
        assert!(read(b"[1, 2]\n").is_err());
        assert!(read(b"\xff\xfe\n").is_err());
        assert!(read(&vec![b' '; MAX_LINE + 2]).is_err(), "too long");
        let other = RunRequest { fingerprint: catalog::fingerprint() ^ 1, ..request() };
        let mut bytes = serde_json::to_vec(&other).unwrap();
        bytes.push(b'\n');
        assert!(read(&bytes).unwrap_err().to_string().contains("another build"));
    }

    #[test]
    fn the_largest_gpu_fits_in_a_report() {
        let sm =
            Sm { smid: 4_000_000_000, work_per_cycle: 127.999_999_999_9, clock_hertz: 1_979_999_999.123_4 };
        let report = ChildReport::Measured(Box::new(Measurement {
            check: CanaryCheck::SmRate,
            gpu_seconds: 0.0,
            wall_seconds: 0.0,
            found: CheckFigures::Sms(vec![sm; 1024]),
            mismatches: Mismatches::default(),
            around: Around::default(),
        }));
        assert!(line(&report).unwrap().len() < MAX_LINE);
    }

    #[test]
    fn a_report_that_is_too_long_is_not_sent_and_breaks_the_line() {
        let mut reports = ReportWriter::new(Vec::new());
        reports.send(&ChildReport::Done { gpu_seconds: 0.5 });
        reports.send(&ChildReport::Abandoned { text: "x".repeat(MAX_LINE), pids: Vec::new() });
        assert!(reports.broken);
        assert_eq!(reports.pipe, b"{\"done\":{\"gpu_seconds\":0.5}}\n");
    }
}

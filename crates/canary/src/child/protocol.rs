//! The request down the control pipe and the reports up the frames pipe.

use std::fs::File;
use std::io::Write;

use host::frame;

use crate::report::ChildReport;

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
        if let Err(error) = frame::write(&mut self.pipe, report) {
            tracing::warn!(%error, "a report cannot be sent");
            self.broken = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CheckFigures, Measurement, Mismatches, RunEnd, Sm};
    use model::catalog::CanaryCheck;
    use sampler::watch::Around;

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
        assert!(frame::encode(&report).unwrap().len() < 256 << 10);
    }

    #[test]
    fn a_report_that_is_too_long_is_not_sent_and_breaks_the_stream() {
        let mut reports = ReportWriter::new(Vec::new());
        reports.send(&ChildReport::Done { gpu_seconds: 0.5 });
        let text = "x".repeat(frame::MAX_PAYLOAD);
        reports.send(&ChildReport::Ended(RunEnd::Abandoned { text, pids: Vec::new() }));
        assert!(reports.broken);
        assert_eq!(reports.pipe, frame::encode(&ChildReport::Done { gpu_seconds: 0.5 }).unwrap());
    }
}

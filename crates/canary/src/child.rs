//! The process of one run, and the only process that loads libcuda. It reads one request from its control pipe, reports
//! the start and end of every step so that a hang can be attributed, and releases everything that it allocated.
//!
//! It stops between two kernels when its control pipe closes, or, in a run that yields, when another process starts to
//! use the GPU. It never stops inside a driver call. Kernels last a few milliseconds at most, so no other process waits
//! longer than that for the GPU.

mod init;
mod pid;
mod run;

use std::fs::File;
use std::io::{self, Write};

use crate::interlock;
use crate::report::{ChildReport, RunEnd, RunRequest};
use crate::session::poll::{ControlPipe, Poll};
use host::child;
use host::frame;
use host::inflight::{NODE_SLOT, Table};
use model::catalog::CanarySkip;
use model::clock::Mono;
use run::RunSteps;
use sampler::watch::{NvmlWatch, WatchTarget};

/// Nice value of the process.
const NICE: i32 = 10;

/// Runs the process from its start to its end.
pub fn run() -> io::Result<()> {
    child::ignore_signals()?;
    let (frames, control, shared) = child::inherited()?;
    let table: &'static Table = Box::leak(Box::new(Table::open(shared)?));
    let mut control = ControlPipe::new(control);
    let Some(request) = frame::read::<RunRequest>(control.reader()).map_err(io::Error::other)? else {
        return Ok(());
    };
    if let Err(error) = child::be_nice(NICE) {
        tracing::debug!(%error, "failed to lower the priority of the canary process");
    }
    let mut reports = ReportWriter::new(frames);
    let locks: Result<Vec<_>, String> = request.locks.iter().map(|lock| interlock::acquire(lock)).collect();
    let _locks = match locks {
        Ok(locks) => locks,
        Err(text) => return unable(&mut reports, CanarySkip::ChildAlive, text),
    };
    let target = WatchTarget {
        nvml_library: request.nvml_library.clone(),
        pci_address: request.pci_address.clone(),
        instance: request.instance,
    };
    let watch = match NvmlWatch::start(target, pid::pids(), table) {
        Ok(watch) => watch,
        Err(error) => {
            let text = format!("failed to start the thread that watches the GPU: {error}");
            return unable(&mut reports, CanarySkip::Environment, text);
        }
    };
    let slot = table.writer(NODE_SLOT);
    // From here on, the parent watches the calls.
    slot.expect(Mono::now());
    let poll = Poll { control: &control, watch: &watch, yields: request.yields };
    RunSteps::run(&request, poll, &mut reports, slot);
    slot.leave();
    // The parent receives the end of the stream now, even if NVML blocks the other thread forever.
    drop(reports);
    watch.finish();
    Ok(())
}

/// Ends a run that cannot begin.
fn unable(reports: &mut ReportWriter, reason: CanarySkip, text: String) -> io::Result<()> {
    reports.send(&ChildReport::Ended(RunEnd::Unable { reason, text }));
    reports.send(&ChildReport::Done { gpu_seconds: 0.0 });
    Ok(())
}

/// Writer of the reports on the frames pipe.
#[derive(Debug)]
pub(crate) struct ReportWriter<W = File> {
    pipe: W,
    /// True if the parent no longer reads.
    broken: bool,
}

impl<W: Write> ReportWriter<W> {
    pub fn new(pipe: W) -> ReportWriter<W> {
        ReportWriter { pipe, broken: false }
    }

    /// Sends a report. A failure is logged; the parent notices the missing reports.
    pub fn send(&mut self, report: &ChildReport) {
        if self.broken {
            return;
        }
        if let Err(error) = frame::write(&mut self.pipe, report) {
            tracing::warn!(%error, "failed to send a report to the parent; further reports are dropped");
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

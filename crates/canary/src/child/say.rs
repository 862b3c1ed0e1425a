//! The process's end of the pipes: its one request, whether it is to end, and its reports.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::report::{Report, RunRequest};
use host::frame;

/// The control pipe: one request, and then silence until it closes.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// Over this pipe.
    pub fn new(pipe: File) -> Control {
        Control(pipe)
    }

    /// The request. `None` if the parent hung up without one.
    pub fn request(&mut self) -> io::Result<Option<RunRequest>> {
        frame::read(&mut self.0).map_err(io::Error::other)
    }

    /// Whether the parent has hung up; waits up to `wait` for it.
    pub fn closed(&self, wait: Duration) -> bool {
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        // Interrupted or failed: the next look tells.
        let _ = poll(&mut fds, timeout);
        fds[0].revents().is_some_and(|events| {
            events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL)
        })
    }
}

/// The reports' way to the parent.
#[derive(Debug)]
pub struct Reports<W = File> {
    pipe: W,
    /// The parent does not read any more.
    broken: bool,
}

impl<W: Write> Reports<W> {
    /// Over this pipe.
    pub fn new(pipe: W) -> Reports<W> {
        Reports { pipe, broken: false }
    }

    /// Sends a report. One that cannot be sent is logged; the parent notices the silence.
    pub fn send(&mut self, report: &Report) {
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
    use crate::report::{Found, Measured, Mismatches, Sm};
    use model::catalog::CanaryCheck;
    use sampler::watch::Around;

    #[test]
    fn the_largest_gpu_fits_in_a_report() {
        let sm =
            Sm { smid: 4_000_000_000, work_per_cycle: 127.999_999_999_9, clock_hertz: 1_979_999_999.123_4 };
        let report = Report::Measured(Box::new(Measured {
            check: CanaryCheck::SmRate,
            gpu_seconds: 0.0,
            wall_seconds: 0.0,
            found: Found::Sms(vec![sm; 1024]),
            mismatches: Mismatches::default(),
            around: Around::default(),
        }));
        assert!(frame::encode(&report).unwrap().len() < 256 << 10);
    }

    #[test]
    fn a_report_that_is_too_long_is_not_sent_and_breaks_the_stream() {
        let mut reports = Reports::new(Vec::new());
        reports.send(&Report::Done { gpu_seconds: 0.5 });
        let text = "x".repeat(frame::MAX_PAYLOAD);
        reports.send(&Report::Abandoned { text, pids: Vec::new() });
        assert!(reports.broken);
        assert_eq!(reports.pipe, frame::encode(&Report::Done { gpu_seconds: 0.5 }).unwrap());
    }

    #[test]
    fn the_control_pipe_is_closed_once_the_parent_hangs_up_also_with_bytes_left_in_it() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let control = Control::new(File::from(std::os::fd::OwnedFd::from(reader)));
        assert!(!control.closed(Duration::ZERO));
        writer.write_all(b"bytes").unwrap();
        assert!(!control.closed(Duration::ZERO));
        drop(writer);
        assert!(control.closed(Duration::ZERO));
    }
}

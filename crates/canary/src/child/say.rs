//! What the process hears and says: its one order, whether it is to end, and its reports.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::report::{MAX_LINE, Order, Report};
use model::catalog;

/// The parent's end of the control pipe: an order, and then the silence until it closes.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// Over this pipe.
    pub fn new(pipe: File) -> Control {
        Control(pipe)
    }

    /// The order. `None` if the parent hung up without one.
    pub fn order(&mut self) -> io::Result<Option<Order>> {
        read_order(&mut self.0)
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

/// The first line, byte by byte: nothing after it is taken.
fn read_order(pipe: &mut impl Read) -> io::Result<Option<Order>> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match pipe.read(&mut byte) {
            Ok(0) if line.is_empty() => return Ok(None),
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the order breaks off")),
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) if line.len() == MAX_LINE => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the order is too long"));
            }
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let order: Order = serde_json::from_slice(&line)?;
    if order.fingerprint != catalog::fingerprint() {
        return Err(io::Error::other("the order comes from another build"));
    }
    Ok(Some(order))
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

    /// Sends a report. One that cannot be sent is logged, and the parent told by the silence.
    pub fn send(&mut self, report: &Report) {
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
fn line(report: &Report) -> io::Result<Vec<u8>> {
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
    use crate::report::{Found, Measured, Mismatches, Sm};
    use model::catalog::CanaryCheck;
    use sampler::watch::Around;

    fn order() -> Order {
        Order {
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

    fn read(bytes: &[u8]) -> io::Result<Option<Order>> {
        read_order(&mut &bytes[..])
    }

    #[test]
    fn an_order_is_one_line_and_nothing_behind_it_is_taken() {
        let mut bytes = serde_json::to_vec(&order()).unwrap();
        bytes.extend_from_slice(b"\nmore");
        let mut pipe = &bytes[..];
        assert_eq!(read_order(&mut pipe).unwrap(), Some(order()));
        assert_eq!(pipe, b"more");
    }

    #[test]
    fn what_is_no_order_of_this_build_is_refused() {
        assert_eq!(read(b"").unwrap(), None, "the parent has gone");
        assert!(read(b"{\"finger").is_err(), "broken off");
        assert!(read(b"[1, 2]\n").is_err());
        assert!(read(b"\xff\xfe\n").is_err());
        assert!(read(&vec![b' '; MAX_LINE + 2]).is_err(), "too long");
        let other = Order { fingerprint: catalog::fingerprint() ^ 1, ..order() };
        let mut bytes = serde_json::to_vec(&other).unwrap();
        bytes.push(b'\n');
        assert!(read(&bytes).unwrap_err().to_string().contains("another build"));
    }

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
        assert!(line(&report).unwrap().len() < MAX_LINE);
    }

    #[test]
    fn a_report_that_is_too_long_is_not_sent_and_breaks_the_line() {
        let mut reports = Reports::new(Vec::new());
        reports.send(&Report::Done { gpu_seconds: 0.5 });
        reports.send(&Report::Abandoned { text: "x".repeat(MAX_LINE), pids: Vec::new() });
        assert!(reports.broken);
        assert_eq!(reports.pipe, b"{\"done\":{\"gpu_seconds\":0.5}}\n");
    }

    #[test]
    fn the_control_pipe_is_closed_once_the_parent_hangs_up_also_with_words_left_in_it() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let control = Control::new(File::from(std::os::fd::OwnedFd::from(reader)));
        assert!(!control.closed(Duration::ZERO));
        writer.write_all(b"words").unwrap();
        assert!(!control.closed(Duration::ZERO));
        drop(writer);
        assert!(control.closed(Duration::ZERO));
    }
}

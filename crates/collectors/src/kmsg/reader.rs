//! Reads lines of the kernel log. /dev/kmsg returns one record per read and supports poll(2). A regular file or a pipe,
//! as in tests, is followed while it grows.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Size of the read buffer. The kernel's records have at most 8 KiB, and the kernel does not return a record that does
/// not fit.
const BUFFER: usize = 16 * 1024;
/// Maximum length of a line in a file; longer lines are cut.
const MAX_LINE: usize = 16 * 1024;
/// Time between two reads of a file.
const FILE_LOOK: Duration = Duration::from_millis(100);

/// Outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// The read returned records.
    Records,
    /// The log overran. Records are lost, and the next read continues after them.
    Overrun,
    /// The end of the log is reached.
    Nothing,
}

/// Kernel log that is open for reading.
#[derive(Debug)]
pub(crate) struct LogReader {
    file: File,
    device: bool,
    buffer: Vec<u8>,
    lines: LineSplitter,
}

impl LogReader {
    /// Opens the log at its start without blocking.
    pub(crate) fn open(path: &Path) -> io::Result<LogReader> {
        let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
        let device = file.metadata()?.file_type().is_char_device();
        Ok(LogReader { file, device, buffer: vec![0; BUFFER], lines: LineSplitter::default() })
    }

    /// Reads once and passes every finished line to `line`, with whether it is complete.
    pub(crate) fn next(&mut self, line: impl FnMut(&[u8], bool)) -> io::Result<ReadOutcome> {
        match self.file.read(&mut self.buffer) {
            Ok(0) => Ok(ReadOutcome::Nothing),
            Ok(length) => {
                self.lines.push(&self.buffer[..length], line);
                Ok(ReadOutcome::Records)
            }
            Err(error) => meaning(error),
        }
    }

    /// Waits until there is more to read, `hang_up` is closed, or the time is over.
    pub(crate) fn wait(&self, hang_up: &PipeReader, at_most: Duration) -> io::Result<()> {
        let mut watched = vec![PollFd::new(hang_up.as_fd(), PollFlags::POLLIN)];
        let mut time = at_most;
        if self.device {
            watched.push(PollFd::new(self.file.as_fd(), PollFlags::POLLIN));
        } else {
            // A file is always ready, and so is a pipe without a writer.
            time = time.min(FILE_LOOK);
        }
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(&mut watched, time) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Converts a read error to an outcome.
fn meaning(error: io::Error) -> io::Result<ReadOutcome> {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN) => Ok(ReadOutcome::Nothing),
        Some(Errno::EINTR) => Ok(ReadOutcome::Records),
        Some(Errno::EPIPE) => Ok(ReadOutcome::Overrun),
        _ => Err(error),
    }
}

/// Assembles lines from pieces in bounded memory.
#[derive(Debug, Default)]
struct LineSplitter {
    begun: Vec<u8>,
    cut: bool,
}

impl LineSplitter {
    /// Adds a piece and passes every line that ends in it to `line`, with whether it is complete.
    fn push(&mut self, piece: &[u8], mut line: impl FnMut(&[u8], bool)) {
        let mut pieces = piece.split(|b| *b == b'\n').peekable();
        while let Some(part) = pieces.next() {
            let ends = pieces.peek().is_some();
            if ends && self.begun.is_empty() && !self.cut && part.len() <= MAX_LINE {
                line(part, true);
                continue;
            }
            let room = MAX_LINE - self.begun.len();
            self.begun.extend_from_slice(&part[..part.len().min(room)]);
            self.cut |= part.len() > room;
            if ends {
                line(&self.begun, !self.cut);
                self.begun.clear();
                self.cut = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_come(
            text in "[a-c\n]{0,200}", sizes in prop::collection::vec(1usize..20, 1..100)
        ) {
            let bytes = text.as_bytes();
            let (mut lines, mut got, mut at) = (LineSplitter::default(), Vec::new(), 0);
            for size in sizes.iter().cycle() {
                if at >= bytes.len() {
                    break;
                }
                let end = (at + size).min(bytes.len());
                lines.push(&bytes[at..end], |line, whole| {
                    assert!(whole);
                    got.push(String::from_utf8(line.to_vec()).unwrap());
                });
                at = end;
            }
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let expected: Vec<&str> = if text.contains('\n') { whole.split('\n').collect() } else { Vec::new() };
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn an_overrun_is_no_failure() {
        let meant = |errno: Errno| meaning(errno.into()).ok();
        assert_eq!(meant(Errno::EPIPE), Some(ReadOutcome::Overrun));
        assert_eq!(meant(Errno::EAGAIN), Some(ReadOutcome::Nothing));
        assert_eq!((meant(Errno::EIO), meant(Errno::EINVAL)), (None, None));
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let mut lines = LineSplitter::default();
        let mut got = Vec::new();
        for _ in 0..100 {
            lines.push(&[b'x'; 10_000], |_, _| panic!("it has not ended"));
            assert!(lines.begun.len() <= MAX_LINE);
        }
        lines.push(b"\nnext\n", |line, whole| got.push((line.len(), whole)));
        assert_eq!(got, [(MAX_LINE, false), (4, true)]);
    }
}

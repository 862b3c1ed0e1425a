//! The check between any two kernels or copies for a reason to end the run.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::errors::{Ended, Try};
use sampler::watch::NvmlWatch;

/// The process's end of the control pipe. After the request, the pipe is silent until the parent closes it.
#[derive(Debug)]
pub(crate) struct ControlPipe(File);

impl ControlPipe {
    pub fn new(pipe: File) -> ControlPipe {
        ControlPipe(pipe)
    }

    pub fn reader(&mut self) -> &mut impl Read {
        &mut self.0
    }

    /// Returns true if the parent has closed the pipe. Waits up to `wait` for it.
    pub fn closed(&self, wait: Duration) -> bool {
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        // The next call polls again if this one was interrupted or failed.
        let _ = poll(&mut fds, timeout);
        fds[0].revents().is_some_and(|events| {
            events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL)
        })
    }
}

/// Conditions that end a run: the parent, and other processes on the GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poll<'a> {
    pub control: &'a ControlPipe,
    pub watch: &'a NvmlWatch,
    /// If true, the run ends as soon as another process uses the GPU.
    pub yields: bool,
}

impl Poll<'_> {
    pub fn go_on(&self) -> Try<()> {
        self.wait(Duration::ZERO)
    }

    /// Waits up to `a_while`. Returns an error if the run must end.
    pub fn wait(&self, a_while: Duration) -> Try<()> {
        if self.control.closed(a_while) {
            return Err(Ended::Abandoned("it was asked to end".to_owned(), Vec::new()));
        }
        let others = if self.yields { self.watch.foreign_pids() } else { Vec::new() };
        if others.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = others.iter().map(u32::to_string).collect();
        Err(Ended::Abandoned(format!("another process is on the GPU: {}", list.join(", ")), others))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_control_pipe_is_closed_once_the_parent_hangs_up_also_with_bytes_left_in_it() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let control = ControlPipe::new(File::from(std::os::fd::OwnedFd::from(reader)));
        assert!(!control.closed(Duration::ZERO));
        writer.write_all(b"words").unwrap();
        assert!(!control.closed(Duration::ZERO));
        drop(writer);
        assert!(control.closed(Duration::ZERO));
    }
}

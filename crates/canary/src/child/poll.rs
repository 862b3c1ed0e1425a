//! Whether to go on: looked at between any two kernels or copies.

use std::time::Duration;

use super::errors::{Ended, Try};
use super::say::Control;
use sampler::watch::NvmlWatch;

/// Who may end the run: the parent, and whoever needs the GPU.
#[derive(Clone, Copy, Debug)]
pub struct Poll<'a> {
    /// The parent's pipe.
    pub control: &'a Control,
    /// Who sees other processes.
    pub watch: &'a NvmlWatch,
    /// Whether others come first.
    pub yields: bool,
}

impl Poll<'_> {
    /// Goes on, or ends the run.
    pub fn go_on(&self) -> Try<()> {
        self.wait(Duration::ZERO)
    }

    /// As [`Poll::go_on`], after a while.
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

//! A stop that threads can sleep on.

use std::io::{self, PipeReader, PipeWriter, pipe};
use std::sync::{Condvar, Mutex, PoisonError};

use model::clock::Mono;

/// Says when it is time to end; ends all sleeps then.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
    /// The other ends of [`Stop::hang_up`]'s pipes, until it is time to end.
    lines: Mutex<Vec<PipeWriter>>,
}

impl Stop {
    /// Ends all sleeps.
    pub fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A pipe that hangs up when it is time to end, for threads that sleep in poll(2).
    pub fn hang_up(&self) -> io::Result<PipeReader> {
        let (reader, writer) = pipe()?;
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at under the lock: a stop from now on clears what is pushed here.
        if !self.stopped() {
            lines.push(writer);
        }
        Ok(reader)
    }

    /// Whether it is time to end.
    pub fn stopped(&self) -> bool {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until then, or until it is time to end.
    pub fn wait_until(&self, when: Mono) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = when.since(Mono::now());
            if *stopped || left.is_zero() {
                return;
            }
            stopped = self.changed.wait_timeout(stopped, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_pipe_hangs_up_at_the_stop_and_after_it() {
        let stop = Stop::default();
        let mut early = stop.hang_up().unwrap();
        stop.stop();
        let mut late = stop.hang_up().unwrap();
        assert_eq!((early.read(&mut [0]).unwrap(), late.read(&mut [0]).unwrap()), (0, 0));
    }
}

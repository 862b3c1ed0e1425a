//! A stop signal that threads can sleep on.

use std::io::{self, PipeReader, PipeWriter, pipe};
use std::sync::{Condvar, Mutex, PoisonError};

use model::clock::Mono;
use model::sync::lock;

/// Stop signal of a process, which ends all sleeps.
#[derive(Debug, Default)]
pub struct Stop {
    state: Mutex<State>,
    changed: Condvar,
    /// Other ends of the pipes of [`Stop::hang_up`], until the stop.
    lines: Mutex<Vec<PipeWriter>>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// Incremented by every [`Stop::wake`].
    woken: u64,
}

impl Stop {
    /// Ends all sleeps, and prevents later ones.
    pub fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_all();
        lock(&self.lines).clear();
    }

    /// Ends the current sleeps, because the threads have new work.
    pub fn wake(&self) {
        lock(&self.state).woken += 1;
        self.changed.notify_all();
    }

    /// Returns a pipe that hangs up at the stop, for threads that sleep in poll(2).
    pub fn hang_up(&self) -> io::Result<PipeReader> {
        let (reader, writer) = pipe()?;
        let mut lines = lock(&self.lines);
        // Checked under the lock, because a later stop clears the pipes that are added here.
        if !self.stopped() {
            lines.push(writer);
        }
        Ok(reader)
    }

    /// Returns whether the process is stopping.
    pub fn stopped(&self) -> bool {
        lock(&self.state).stopped
    }

    /// Returns the number of wakes so far, for [`Stop::wait_since`].
    pub fn woken(&self) -> u64 {
        lock(&self.state).woken
    }

    /// Sleeps until `when`, until the stop or until the next wake.
    pub fn wait_until(&self, when: Mono) {
        self.wait_since(self.woken(), when);
    }

    /// Sleeps like [`Stop::wait_until`], but a wake after `woken` was read ends the sleep at once. Read `woken`
    /// before checking for news.
    pub fn wait_since(&self, woken: u64, when: Mono) {
        let mut state = lock(&self.state);
        loop {
            let left = when.since(Mono::now());
            if state.stopped || state.woken != woken || left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
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

    #[test]
    fn what_is_new_before_the_sleep_ends_it() {
        let (stop, later) = (Stop::default(), Mono::now() + std::time::Duration::from_secs(600));
        let seen = stop.woken();
        stop.wake();
        stop.wait_since(seen, later);
        assert!(Mono::now() < later);
    }
}

//! Reads that may wait, by a helper thread with a deadline: the kernel reads a process's command line, for example, under
//! a lock that the process may hold. A late helper is abandoned and replaced, and ends when its read does. Only a few may
//! be abandoned at a time: then no read is tried until one of them is back.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::stop::Stop;
use model::clock::Mono;

/// Most helpers abandoned at a time.
pub const MAX_ABANDONED: usize = 4;
/// How often a late read checks for the stop.
const CHECK: Duration = Duration::from_millis(50);

type ReadJob = Box<dyn FnOnce() + Send>;

/// Why a read has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// The read took longer than the deadline.
    Late,
    /// Not tried: too many others are late, or no thread could be started, or it is time to end.
    NotTried,
}

/// Hands reads to a helper thread.
#[derive(Debug)]
pub struct DeadlineReader {
    name: &'static str,
    deadline: Duration,
    stop: Arc<Stop>,
    helper: Option<(Sender<ReadJob>, JoinHandle<()>)>,
    abandoned: Vec<JoinHandle<()>>,
}

impl DeadlineReader {
    /// A reader whose helper threads have this name, and each read this deadline.
    pub fn new(name: &'static str, deadline: Duration, stop: Arc<Stop>) -> DeadlineReader {
        DeadlineReader { name, deadline, stop, helper: None, abandoned: Vec::new() }
    }

    /// Helpers that are abandoned and have not come back.
    pub fn abandoned(&mut self) -> usize {
        self.abandoned.retain(|helper| !helper.is_finished());
        self.abandoned.len()
    }

    /// The helper of the last late read, if the helper has not come back: no longer counted, but the caller's to watch.
    pub fn take_abandoned(&mut self) -> Option<JoinHandle<()>> {
        self.abandoned.pop()
    }

    /// Reads. A read that waits more often than the others has a lower `max_abandoned`, so that it leaves helpers for
    /// the others.
    pub fn read<T: Send + 'static>(
        &mut self,
        max_abandoned: usize,
        reading: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReadFailure> {
        if self.abandoned() >= max_abandoned.min(MAX_ABANDONED) || self.stop.stopped() {
            return Err(ReadFailure::NotTried);
        }
        let (answer, answered) = sync_channel(1);
        let job: ReadJob = Box::new(move || {
            // A late answer has no receiver.
            let _ = answer.send(reading());
        });
        let Some((jobs, _)) = self.helper() else { return Err(ReadFailure::NotTried) };
        if jobs.send(job).is_err() {
            self.abandon();
            return Err(ReadFailure::NotTried);
        }
        let deadline = Mono::now() + self.deadline;
        loop {
            let left = deadline.since(Mono::now());
            match answered.recv_timeout(left.min(CHECK)) {
                Ok(read) => return Ok(read),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() && !self.stop.stopped() => {}
                Err(_) => {
                    self.abandon();
                    return Err(ReadFailure::Late);
                }
            }
        }
    }

    fn helper(&mut self) -> Option<&(Sender<ReadJob>, JoinHandle<()>)> {
        if self.helper.is_none() {
            let (jobs, todo) = channel::<ReadJob>();
            match crate::thread::spawn(self.name, 256, move || todo.into_iter().for_each(|job| job())) {
                Ok(thread) => self.helper = Some((jobs, thread)),
                Err(error) => tracing::warn!(%error, "no thread for reads that may wait"),
            }
        }
        self.helper.as_ref()
    }

    fn abandon(&mut self) {
        if let Some((_, thread)) = self.helper.take() {
            self.abandoned.push(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    fn reader(deadline: Duration) -> DeadlineReader {
        DeadlineReader::new("reader", deadline, Arc::default())
    }

    #[test]
    fn a_late_read_is_abandoned_and_the_next_one_works() {
        let mut reader = reader(Duration::from_millis(30));
        let mut held = Vec::new();
        for _ in 0..MAX_ABANDONED {
            let (release, wait) = mpsc::channel::<()>();
            held.push(release);
            let started = Instant::now();
            assert_eq!(reader.read(MAX_ABANDONED, move || wait.recv().is_ok()), Err(ReadFailure::Late));
            assert!(started.elapsed() >= Duration::from_millis(30));
            if held.len() < MAX_ABANDONED {
                let next = reader.read(MAX_ABANDONED, || 7);
                assert!(next == Ok(7) || next == Err(ReadFailure::Late), "{next:?}");
            }
        }
        assert_eq!(reader.read(MAX_ABANDONED, || 7), Err(ReadFailure::NotTried), "too many are late");
        held.clear();
        let deadline = Instant::now() + Duration::from_secs(60);
        while reader.abandoned() > 0 {
            assert!(Instant::now() < deadline, "they come back");
            std::thread::yield_now();
        }
        assert_eq!(reader.read(1, || 7), Ok(7));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a thread of the test")]
    fn a_stop_ends_the_waiting() {
        let stop = Arc::<Stop>::default();
        let mut reader = DeadlineReader::new("reader", Duration::from_secs(600), Arc::clone(&stop));
        let (_release, wait) = mpsc::channel::<()>();
        let stopper = std::thread::spawn(move || stop.stop());
        let read = reader.read(MAX_ABANDONED, move || wait.recv().is_ok());
        assert!(read.is_err());
        stopper.join().unwrap();
        assert_eq!(reader.read(MAX_ABANDONED, || 7), Err(ReadFailure::NotTried));
    }
}

//! Runs reads that may block in a helper thread with a deadline. The kernel, for example, reads the command
//! line of a process under a lock that the process may hold. A late helper is abandoned and replaced, and ends
//! when its read does. Only a few helpers can be abandoned at a time; beyond that, reads are refused until one
//! of them ends.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::stop::Stop;
use model::clock::Mono;

/// Maximum number of abandoned helpers.
pub const MAX_ABANDONED: usize = 4;
/// Interval at which a waiting read checks for the stop.
const CHECK: Duration = Duration::from_millis(50);

type ReadJob = Box<dyn FnOnce() + Send>;

/// Reason why a read has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// The read took longer than the deadline.
    Late,
    /// The read was not tried, because too many others are late, no thread could be started, or the process is
    /// stopping.
    NotTried,
}

/// Passes reads to a helper thread.
#[derive(Debug)]
pub struct DeadlineReader {
    name: &'static str,
    deadline: Duration,
    stop: Arc<Stop>,
    helper: Option<(Sender<ReadJob>, JoinHandle<()>)>,
    abandoned: Vec<JoinHandle<()>>,
}

impl DeadlineReader {
    /// Returns a reader with this name for its threads and this deadline for every read.
    pub fn new(name: &'static str, deadline: Duration, stop: Arc<Stop>) -> DeadlineReader {
        DeadlineReader { name, deadline, stop, helper: None, abandoned: Vec::new() }
    }

    /// Returns the number of abandoned helpers that have not ended.
    pub fn abandoned(&mut self) -> usize {
        self.abandoned.retain(|helper| !helper.is_finished());
        self.abandoned.len()
    }

    /// Removes and returns the last abandoned helper. It no longer counts, and the caller must watch it.
    pub fn take_abandoned(&mut self) -> Option<JoinHandle<()>> {
        self.abandoned.pop()
    }

    /// Reads with the deadline. A kind of read that is often late should have a low `max_abandoned`, so that it
    /// leaves helpers for the others.
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
                Err(error) => tracing::warn!(
                    "failed to start a thread for reads that may block: {error}; these reads are skipped"
                ),
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

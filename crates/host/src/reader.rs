//! Reading that may wait, done by a helper thread with a deadline: what a process says of itself can be held up by
//! a lock that the process holds. A helper that is late is given up and another takes its place; it ends when its
//! reading does. Only a few may be given up at a time: after that nothing that may wait is tried until one is back.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::stop::Stop;
use model::clock::Mono;

/// Most helpers given up at a time.
pub const MOST_GIVEN_UP: usize = 4;
/// How often it is looked whether it is time to end, while a reading is late.
const LOOK: Duration = Duration::from_millis(50);
const STACK_BYTES: usize = 256 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// Why a reading brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It was tried and took longer than the deadline.
    Late,
    /// It was not tried: too many others are late, or no thread could be had, or it is time to end.
    NotTried,
}

/// Hands readings to a helper thread.
#[derive(Debug)]
pub struct Reader {
    name: &'static str,
    deadline: Duration,
    stop: Arc<Stop>,
    helper: Option<(Sender<Job>, JoinHandle<()>)>,
    given_up: Vec<JoinHandle<()>>,
}

impl Reader {
    /// A reader whose helpers have this name and each reading this deadline.
    pub fn new(name: &'static str, deadline: Duration, stop: Arc<Stop>) -> Reader {
        Reader { name, deadline, stop, helper: None, given_up: Vec::new() }
    }

    /// Helpers that are given up and have not come back.
    pub fn given_up(&mut self) -> usize {
        self.given_up.retain(|helper| !helper.is_finished());
        self.given_up.len()
    }

    /// Has something read. What is likelier to wait than the rest is given a lower `most_given_up`, so that it
    /// leaves helpers for the rest.
    pub fn read<T: Send + 'static>(
        &mut self,
        most_given_up: usize,
        reading: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unread> {
        if self.given_up() >= most_given_up.min(MOST_GIVEN_UP) || self.stop.stopped() {
            return Err(Unread::NotTried);
        }
        let (answer, answered) = sync_channel(1);
        let job: Job = Box::new(move || {
            // Nobody waits for it any more if it is late.
            let _ = answer.send(reading());
        });
        let Some((jobs, _)) = self.helper() else { return Err(Unread::NotTried) };
        if jobs.send(job).is_err() {
            self.give_up();
            return Err(Unread::NotTried);
        }
        let deadline = Mono::now() + self.deadline;
        loop {
            let left = deadline.since(Mono::now());
            match answered.recv_timeout(left.min(LOOK)) {
                Ok(read) => return Ok(read),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() && !self.stop.stopped() => {}
                Err(_) => {
                    self.give_up();
                    return Err(Unread::Late);
                }
            }
        }
    }

    fn helper(&mut self) -> Option<&(Sender<Job>, JoinHandle<()>)> {
        if self.helper.is_none() {
            let (jobs, todo) = channel::<Job>();
            let helper = std::thread::Builder::new().name(self.name.into()).stack_size(STACK_BYTES);
            match helper.spawn(move || todo.into_iter().for_each(|job| job())) {
                Ok(thread) => self.helper = Some((jobs, thread)),
                Err(error) => tracing::warn!(%error, "no thread to read what processes say"),
            }
        }
        self.helper.as_ref()
    }

    fn give_up(&mut self) {
        if let Some((_, thread)) = self.helper.take() {
            self.given_up.push(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    fn reader(deadline: Duration) -> Reader {
        Reader::new("reader", deadline, Arc::default())
    }

    #[test]
    fn what_is_late_is_given_up_and_the_next_reading_works() {
        let mut reader = reader(Duration::from_millis(30));
        let mut held = Vec::new();
        for _ in 0..MOST_GIVEN_UP {
            let (release, wait) = mpsc::channel::<()>();
            held.push(release);
            let started = Instant::now();
            assert_eq!(reader.read(MOST_GIVEN_UP, move || wait.recv().is_ok()), Err(Unread::Late));
            assert!(started.elapsed() >= Duration::from_millis(30));
            if held.len() < MOST_GIVEN_UP {
                let next = reader.read(MOST_GIVEN_UP, || 7);
                assert!(next == Ok(7) || next == Err(Unread::Late), "{next:?}");
            }
        }
        assert_eq!(reader.read(MOST_GIVEN_UP, || 7), Err(Unread::NotTried), "too many are late");
        held.clear();
        let deadline = Instant::now() + Duration::from_secs(60);
        while reader.given_up() > 0 {
            assert!(Instant::now() < deadline, "they come back");
            std::thread::yield_now();
        }
        assert_eq!(reader.read(1, || 7), Ok(7));
    }

    #[test]
    fn a_stop_ends_the_waiting() {
        let stop = Arc::<Stop>::default();
        let mut reader = Reader::new("reader", Duration::from_secs(600), Arc::clone(&stop));
        let (_release, wait) = mpsc::channel::<()>();
        let stopper = std::thread::spawn(move || stop.stop());
        let read = reader.read(MOST_GIVEN_UP, move || wait.recv().is_ok());
        assert!(read.is_err());
        stopper.join().unwrap();
        assert_eq!(reader.read(MOST_GIVEN_UP, || 7), Err(Unread::NotTried));
    }
}

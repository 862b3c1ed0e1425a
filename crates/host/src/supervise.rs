//! One supervised child: started from the same build, asked to end first and killed last, and reaped without
//! ever waiting for it.

use std::fs::File;
use std::io::{self, BufReader};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::child::Launch;
use crate::child::{self, ChildSet};
use crate::frame::{self, FrameError};
use crate::inflight::{SlotView, Table};
use crate::stop::Stop;
use model::clock::Mono;

/// Time within which a killed child must end. After that it counts as unkillable, because a driver call holds
/// it.
const KILL_DEADLINE: Duration = Duration::from_secs(5);
/// Interval between checks while waiting for an end.
const LOOK: Duration = Duration::from_millis(10);

/// Time that a child gets after it was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time for a child in no driver call.
    pub outside: Duration,
    /// Time for a child inside a driver call; `None` if it is never killed there.
    pub inside: Option<Duration>,
}

impl Patience {
    /// Returns whether a child may be killed that was asked to end `asked` ago. Killing a GPU client inside a
    /// driver call can wedge the GPU, so that happens last or never.
    pub fn is_over(&self, asked: Duration, in_call: bool) -> bool {
        let inside = self.inside.unwrap_or(Duration::MAX);
        asked >= inside || (!in_call && asked >= self.outside.min(inside))
    }
}

/// A child process under supervision. Dropping it closes the control pipe, so that the child ends.
#[derive(Debug)]
pub struct Supervised {
    pid: i32,
    /// Requests to the child, which ends when this pipe closes.
    control: Option<File>,
    /// Exit status, once the child was reaped.
    status: Option<ExitStatus>,
    set: Arc<ChildSet>,
    table: Table,
    asked: Option<Mono>,
    killed: Option<Mono>,
}

impl Supervised {
    /// Starts a child. A thread passes every message of the child to `deliver`, and finally the end of the
    /// stream (`None`) or an error. Nothing is passed after that, nor after `deliver` has returned `false`. The
    /// stream is still read to its end, so that a child that is still writing can end by itself. Fails if the
    /// child or the thread cannot be started.
    pub fn start<M: DeserializeOwned>(
        launch: Launch<'_>,
        mut deliver: impl FnMut(Result<Option<M>, FrameError>) -> bool + Send + 'static,
    ) -> io::Result<Supervised> {
        let table = Table::create()?;
        let (pid, control, frames) = child::start(&launch, table.descriptor())?;
        let set = launch.children.map(Arc::clone).unwrap_or_default();
        set.add(pid);
        let child =
            Supervised { pid, control: Some(control), status: None, set, table, asked: None, killed: None };
        let reader = crate::thread::spawn(launch.thread, 512, move || {
            let mut frames = BufReader::with_capacity(64 * 1024, frames);
            loop {
                let message = frame::read(&mut frames);
                let more = matches!(message, Ok(Some(_)));
                if !deliver(message) || !more {
                    break;
                }
            }
            drop(deliver);
            if let Err(error) = io::copy(&mut frames, &mut io::sink()) {
                tracing::debug!("failed to read the rest of a child's stream: {error}");
            }
        });
        if let Err(error) = reader {
            child.kill_and_wait();
            return Err(error);
        }
        Ok(child)
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the used slots of the in-flight table, which is empty until the child writes to it.
    pub fn views(&self) -> Vec<SlotView> {
        self.table.views()
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Sends a message, unless the child was asked to end.
    pub fn send(&mut self, message: &impl Serialize) {
        let Some(control) = &mut self.control else { return };
        // Fails if the child has already ended, which is detected elsewhere.
        if let Err(error) = frame::write(control, message) {
            tracing::warn!("failed to send a request to child process {}: {error}", self.pid);
        }
    }

    /// Asks the child to end by closing its control pipe.
    pub fn ask_to_end(&mut self) {
        self.control = None;
        self.asked.get_or_insert_with(Mono::now);
    }

    /// Returns when the child was asked to end.
    pub fn asked(&self) -> Option<Mono> {
        self.asked
    }

    /// Returns the exit status, once the child has ended. Never waits.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.set.ended(self.pid).unwrap_or_else(|error| {
                tracing::warn!("failed to read the state of child process {}: {error}", self.pid);
                None
            });
        }
        self.status
    }

    /// Returns whether every thread of the child is stopped by a signal.
    pub fn all_stopped(&self) -> bool {
        child::all_stopped(self.pid)
    }

    /// Returns whether a thread of the child is in a driver call. A process that is stopped by a signal is in
    /// no call, whatever its table shows.
    pub fn in_call(&self) -> bool {
        self.views().iter().any(|view| view.call.is_some()) && !self.all_stopped()
    }

    /// Kills the child if it was asked to end and its time is over. Returns whether it was killed now.
    pub fn kill_if_overdue(&mut self, now: Mono, patience: Patience) -> bool {
        let Some(asked) = self.asked.filter(|_| self.killed.is_none()) else { return false };
        let over = patience.is_over(now.since(asked), self.in_call());
        if over {
            child::kill(self.pid);
            self.killed = Some(now);
        }
        over
    }

    /// Returns whether the child was killed and has not ended in time.
    pub fn is_unkillable(&self, now: Mono) -> bool {
        self.killed.is_some_and(|killed| now.since(killed) > KILL_DEADLINE)
    }

    /// Waits until the child has ended, at most until `deadline`. Returns whether it was killed meanwhile.
    pub fn end_by(&mut self, deadline: Mono, patience: Patience) -> bool {
        self.ask_to_end();
        let pause = Stop::default();
        let mut killed = false;
        while self.ended().is_none() {
            let now = Mono::now();
            killed |= self.kill_if_overdue(now, patience);
            if now >= deadline {
                break;
            }
            pause.wait_until(deadline.min(now + LOOK));
        }
        killed
    }

    /// Kills the child at once and waits for its end. Only for a child that calls no driver.
    pub fn kill_and_wait(mut self) {
        child::kill(self.pid);
        let ended = waitid(Id::Pid(Pid::from_raw(self.pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        if let Err(error) = ended {
            tracing::warn!("failed to wait for child process {}: {error}", self.pid);
        }
        self.ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::{Environment, Stderr};
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::mpsc::channel;

    const OUTSIDE: Duration = Duration::from_secs(30);

    fn may_kill(asked: u64, in_call: bool, inside: Option<u64>) -> bool {
        let patience = Patience { outside: OUTSIDE, inside: inside.map(Duration::from_secs) };
        patience.is_over(Duration::from_secs(asked), in_call)
    }

    proptest! {
        #[test]
        fn no_child_is_killed_inside_a_call_before_the_last_deadline(asked in 0u64..1000, inside in 1u64..600) {
            prop_assert_eq!(may_kill(asked, true, Some(inside)), asked >= inside);
            prop_assert_eq!(may_kill(asked, false, Some(inside)), asked >= inside.min(OUTSIDE.as_secs()));
            prop_assert!(!may_kill(asked, true, None));
        }
    }

    #[test]
    fn outside_of_calls_it_gets_half_a_minute() {
        assert!(!may_kill(29, false, Some(300)));
        assert!(may_kill(30, false, Some(300)));
        assert!(!may_kill(30, true, Some(300)));
    }

    fn shell(script: &str, children: &Arc<ChildSet>) -> Supervised {
        let launch = Launch {
            program: Path::new("/bin/sh"),
            args: &["-c", script],
            environment: &Environment::default(),
            stderr: Stderr::Null,
            children: Some(children),
            thread: "test",
        };
        Supervised::start::<()>(launch, |_| false).unwrap()
    }

    #[test]
    fn a_set_knows_the_children_alive_and_the_cpu_time_of_the_ended() {
        let set = Arc::default();
        let mut child = shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 3", &set);
        assert_eq!(set.look(|alive, cpu| (alive.to_vec(), cpu)), (vec![child.pid()], Duration::ZERO));
        let (pause, deadline) = (Stop::default(), Mono::now() + Duration::from_secs(60));
        let status = loop {
            if let Some(status) = child.ended() {
                break status;
            }
            assert!(Mono::now() < deadline, "it ends");
            pause.wait_until(Mono::now() + Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(3));
        assert_eq!(child.ended(), Some(status), "asked again");
        let (alive, cpu) = set.look(|alive, cpu| (alive.to_vec(), cpu));
        assert!(alive.is_empty() && cpu > Duration::ZERO, "{cpu:?}");
    }

    #[test]
    fn a_child_that_is_ended_at_once_is_waited_for() {
        let set = Arc::default();
        shell("sleep 600", &set).kill_and_wait();
        assert!(set.look(|alive, _| alive.is_empty()));
    }

    #[test]
    fn messages_come_in_order_then_the_end_and_the_child_is_reaped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("frames");
        let frames = [frame::encode(&1u32).unwrap(), frame::encode(&2u32).unwrap()].concat();
        std::fs::write(&file, frames).unwrap();
        let script = format!("cat {} >&3; read request <&4", file.display());
        let children = Arc::default();
        let launch = Launch {
            program: Path::new("/bin/sh"),
            args: &["-c", &script],
            environment: &Environment::default(),
            stderr: Stderr::Null,
            children: Some(&children),
            thread: "test",
        };
        let (sender, messages) = channel();
        let mut child =
            Supervised::start::<u32>(launch, move |message| sender.send(message.unwrap()).is_ok()).unwrap();
        assert_eq!([messages.recv().unwrap(), messages.recv().unwrap()], [Some(1), Some(2)]);
        assert_eq!(children.look(|alive, _| alive.to_vec()), [child.pid()]);
        assert!(child.ended().is_none() && !child.in_call());
        let never = Patience { outside: Duration::MAX, inside: None };
        assert!(!child.end_by(Mono::now() + Duration::from_secs(60), never), "it ends when it is asked");
        assert_eq!(messages.recv().unwrap(), None);
        assert!(child.ended().is_some() && children.look(|alive, _| alive.is_empty()));
    }
}

//! One supervised child: started from the same build, its frames read, asked first, killed last, and reaped
//! without ever waiting for it.

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

/// How long a killed child may take to end before it counts as unkillable: a driver call holds it.
const KILL_DEADLINE: Duration = Duration::from_secs(5);
/// Time between two looks while an end is waited for.
const LOOK: Duration = Duration::from_millis(10);

/// How long a child that was asked to end is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// In no driver call.
    pub outside: Duration,
    /// Inside a driver call; none: never killed there.
    pub inside: Option<Duration>,
}

impl Patience {
    /// Whether a child that was asked to end `asked` ago may be killed. Ending a GPU client inside a driver call
    /// can wedge the GPU: that is done last, or never.
    pub fn is_over(&self, asked: Duration, in_call: bool) -> bool {
        let inside = self.inside.unwrap_or(Duration::MAX);
        asked >= inside || (!in_call && asked >= self.outside.min(inside))
    }
}

/// A child process under supervision. Dropping it closes the control pipe, which asks the child to end.
#[derive(Debug)]
pub struct Supervised {
    pid: i32,
    /// Requests to the child. Dropping it asks the child to end.
    control: Option<File>,
    /// How it has ended, once it was waited for.
    status: Option<ExitStatus>,
    set: Arc<ChildSet>,
    table: Table,
    asked: Option<Mono>,
    killed: Option<Mono>,
}

impl Supervised {
    /// Starts a child. A thread hands each message of the child to `deliver`, then the end of the stream (`None`) or
    /// what is wrong with it; nothing more follows those, nor a `false` from `deliver`. The stream is read to its end
    /// all the same, so that a child that still writes can end by itself.
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
                tracing::debug!(%error, "the rest of a child's stream");
            }
        });
        if let Err(error) = reader {
            child.kill_and_wait();
            return Err(error);
        }
        Ok(child)
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The in-flight table; empty until the child has come to write there.
    pub fn views(&self) -> Vec<SlotView> {
        self.table.views()
    }

    /// The child's in-flight table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Sends a message, unless the child was asked to end.
    pub fn send(&mut self, message: &impl Serialize) {
        let Some(control) = &mut self.control else { return };
        // A child that died at once makes this fail; its end is seen where ends are seen.
        if let Err(error) = frame::write(control, message) {
            tracing::warn!(%error, pid = self.pid, "the child does not take requests");
        }
    }

    /// Asks the child to end by closing its control pipe.
    pub fn ask_to_end(&mut self) {
        self.control = None;
        self.asked.get_or_insert_with(Mono::now);
    }

    /// When the child was asked to end.
    pub fn asked(&self) -> Option<Mono> {
        self.asked
    }

    /// The exit status, once the child has ended. Never waits.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.set.ended(self.pid).unwrap_or_else(|error| {
                tracing::warn!(%error, pid = self.pid, "the child's state cannot be read");
                None
            });
        }
        self.status
    }

    /// Whether every thread of the child is stopped by a signal.
    pub fn all_stopped(&self) -> bool {
        child::all_stopped(self.pid)
    }

    /// Whether a thread of the child is in a driver call. A process stopped by a signal is in no call, whatever its
    /// table says.
    pub fn in_call(&self) -> bool {
        self.views().iter().any(|view| view.call.is_some()) && !self.all_stopped()
    }

    /// Kills the child if it was asked to end and its time is over. Gives whether it was killed now.
    pub fn kill_if_overdue(&mut self, now: Mono, patience: Patience) -> bool {
        let Some(asked) = self.asked.filter(|_| self.killed.is_none()) else { return false };
        let over = patience.is_over(now.since(asked), self.in_call());
        if over {
            child::kill(self.pid);
            self.killed = Some(now);
        }
        over
    }

    /// Whether the child was killed and has not ended in time.
    pub fn is_unkillable(&self, now: Mono) -> bool {
        self.killed.is_some_and(|killed| now.since(killed) > KILL_DEADLINE)
    }

    /// Waits until the child has ended, until `deadline` at most. Gives whether it was killed meanwhile.
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

    /// Ends the child at once and waits for its end: only for a child that calls no driver.
    pub fn kill_and_wait(mut self) {
        child::kill(self.pid);
        let ended = waitid(Id::Pid(Pid::from_raw(self.pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        if let Err(error) = ended {
            tracing::warn!(pid = self.pid, %error, "could not wait for the process");
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

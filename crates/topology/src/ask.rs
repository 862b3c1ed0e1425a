//! Runs the topology process and reads its answer. The caller never waits past the deadline. A process that does not
//! exit is left behind, and no second one is started while it runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::discover::{self, Links, Origin};
use host::child::{self, ChildSet, Environment, Stderr};
use host::frame::{self, FrameError};
use host::stop::Stop;
use host::supervise::{Launch, Patience, Supervised};
use model::clock::Mono;
use model::topology::Topology;

/// The hidden command of the topology process.
const COMMAND: &str = "topology-child";

/// Request that the topology process reads from its control pipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Request for the whole machine. If the flag is set, the answer includes hwloc's XML export.
    Machine(Origin, bool),
    /// Request for the links and network devices of the machine whose files are below this root.
    Links(PathBuf),
}

impl Question {
    /// Returns the root directory of the machine's files, or `None` if the request does not read a live machine.
    fn root(&self) -> Option<&Path> {
        match self {
            Question::Machine(Origin::Live(root), _) | Question::Links(root) => Some(root),
            Question::Machine(Origin::Xml(_) | Origin::Synthetic(_), _) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineAnswer {
    pub topology: Topology,
    /// PCI addresses of the devices that a links request reports. Comparing them with a later links answer reveals
    /// devices that were added or removed.
    pub devices: Vec<String>,
    /// The topology as hwloc's XML export, if the request included it.
    pub xml: Option<String>,
}

/// Maximum time until the answer. hwloc needs 0.1 s on a large machine.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum time between the answer and the exit of the process. After it the process counts as stuck.
const GOING: Duration = Duration::from_secs(5);
/// Maximum sleep between two checks of the stop flag.
const LOOK: Duration = Duration::from_millis(100);

/// The process never calls a GPU driver library. It only reads files, so killing it is safe.
const PATIENCE: Patience = Patience { outside: Duration::ZERO, inside: None };

/// Reason why the topology process gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("failed to run the topology process: {0}")]
    Io(#[from] io::Error),
    /// An earlier process has not exited.
    #[error("an earlier topology process (PID {0}) is stuck and does not exit")]
    Stuck(i32),
    #[error("the topology process did not answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the topology process sent an invalid answer: {0}")]
    Invalid(String),
    /// The process itself reported why it found no machine.
    #[error("{0}")]
    NotFound(String),
    #[error("stopped")]
    Stopped,
}

/// Answer of the process, or its own error message.
type AnswerOrError<T> = Result<T, String>;

/// Runs one topology process per request and keeps track of a process that did not exit.
#[derive(Debug)]
pub struct Asker {
    program: PathBuf,
    stderr: Stderr,
    deadline: Duration,
    children: Arc<ChildSet>,
    left: Option<Supervised>,
}

impl Asker {
    /// Creates an asker that starts this program as the topology process and counts the cost of the processes in
    /// `children`.
    pub fn new(stderr: Stderr, children: Arc<ChildSet>) -> Asker {
        Asker { program: child::this_program(), stderr, deadline: DEADLINE, children, left: None }
    }

    /// Returns the whole machine, including hwloc's XML export if `xml` is set.
    pub fn all(&mut self, origin: &Origin, xml: bool, stop: &Stop) -> Result<MachineAnswer, AskError> {
        self.ask(&[COMMAND], &Question::Machine(origin.clone(), xml), stop)
    }

    /// Returns the links and network devices of the machine whose files are below this root.
    pub fn links(&mut self, root: &Path, stop: &Stop) -> Result<Links, AskError> {
        self.ask(&[COMMAND], &Question::Links(root.to_owned()), stop)
    }

    fn ask<T: DeserializeOwned + Send + 'static>(
        &mut self,
        arguments: &[&str],
        question: &Question,
        stop: &Stop,
    ) -> Result<T, AskError> {
        if let Some(root) = question.root() {
            // Fail early: no process is needed to report a missing root.
            discover::check(root).map_err(AskError::NotFound)?;
        }
        // A path that is not valid UTF-8 cannot be sent.
        frame::encode(question).map_err(io::Error::other)?;
        if let Some(left) = &mut self.left {
            if left.ended().is_none() {
                return Err(AskError::Stuck(left.pid()));
            }
            self.left = None;
        }
        let launch = Launch {
            program: &self.program,
            args: arguments,
            environment: &environment(question.root()),
            stderr: self.stderr,
            children: Some(&self.children),
            thread: "topology-answer",
        };
        let (sender, answers) = sync_channel(1);
        let mut child = Supervised::start::<AnswerOrError<T>>(launch, move |answer| {
            // The caller may have timed out. The process sends exactly one answer.
            let _ = sender.send(answer);
            false
        })?;
        child.send(question);
        let answer = wait(&answers, self.deadline, stop);
        child.ask_to_end();
        if !matches!(answer, Ok(Ok(Some(_)))) {
            child.kill_if_overdue(Mono::now(), PATIENCE);
        }
        let patience = Mono::now() + GOING;
        while child.ended().is_none() && Mono::now() < patience && !stop.stopped() {
            stop.wait_until(Mono::now() + Duration::from_millis(5));
        }
        let status = child.ended();
        if status.is_none() {
            self.left = Some(child);
        }
        match answer? {
            Ok(Some(answer)) => answer.map_err(AskError::NotFound),
            Ok(None) => {
                let end = status.map_or_else(|| "still running".to_owned(), |status| status.to_string());
                Err(AskError::Invalid(format!("no answer ({end})")))
            }
            Err(error) => Err(AskError::Invalid(error.to_string())),
        }
    }
}

/// Waits for the answer until the deadline or the stop.
fn wait<A>(
    answers: &Receiver<ReceivedAnswer<A>>,
    allowed: Duration,
    stop: &Stop,
) -> Result<ReceivedAnswer<A>, AskError> {
    let deadline = Mono::now() + allowed;
    loop {
        if stop.stopped() {
            return Err(AskError::Stopped);
        }
        let left = deadline.since(Mono::now());
        if left.is_zero() {
            return Err(AskError::Late(allowed));
        }
        match answers.recv_timeout(left.min(LOOK)) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) => {}
            // Unreachable: the reader sends an answer before it exits.
            Err(RecvTimeoutError::Disconnected) => return Ok(Ok(None)),
        }
    }
}

/// Result that the reader of the child's frames delivers. `None` if the child closed its pipe.
type ReceivedAnswer<A> = Result<Option<A>, FrameError>;

/// Returns the environment of the process. Some settings of hwloc exist only as environment variables; the inherited
/// ones are removed.
fn environment(root: Option<&Path>) -> Environment {
    let mut with = vec![
        // hwloc hides the NUMA nodes of GPU memory by default.
        ("HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES".into(), "1".into()),
        // Firmware tables often contradict each other. hwloc's messages about them only help hwloc's developers.
        ("HWLOC_HIDE_ERRORS".into(), "2".into()),
    ];
    if let Some(root) = root.filter(|root| *root != Path::new("/")) {
        with.push(("HWLOC_FSROOT".into(), root.into()));
    }
    Environment { without: vec!["HWLOC_"], with }
}

#[cfg(test)]
mod tests;

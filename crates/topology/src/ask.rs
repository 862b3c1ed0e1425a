//! Asking the topology process: started, listened to until its deadline, never waited for longer. One that is stuck
//! is left behind, and no second one is started beside it.

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

/// The question, as the process reads it from its control pipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// The whole machine, and whether hwloc's own format of it is wanted.
    Machine(Origin, bool),
    /// Links and network devices of the machine below this root.
    Links(PathBuf),
}

impl Question {
    /// Below which the machine is looked at; `None` where it is not this machine.
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
    /// Devices that a look at links sees, so that the next such look tells whether one came or went.
    pub devices: Vec<String>,
    /// The same in hwloc's own format, if it was asked for.
    pub xml: Option<String>,
}

/// Longest time an answer may take: hwloc takes 0.1 s on a large machine.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// How long a process may take from its answer to its end before it counts as left behind.
const GOING: Duration = Duration::from_secs(5);
/// Longest sleep between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The process is in no call of a GPU's driver library, it only reads files: killing it is safe.
const PATIENCE: Patience = Patience { outside: Duration::ZERO, inside: None };

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("the topology process cannot be asked: {0}")]
    Io(#[from] io::Error),
    /// An earlier process has not ended.
    #[error("the topology process {0} is stuck: it was asked to end and does not")]
    Stuck(i32),
    #[error("the topology process did not answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the topology process does not answer sensibly: {0}")]
    Invalid(String),
    /// The process itself says why it finds nothing.
    #[error("{0}")]
    NotFound(String),
    #[error("stopped")]
    Stopped,
}

/// An answer, or the process's own error as text.
type AnswerOrError<T> = Result<T, String>;

/// Asks, and remembers a process that did not end.
#[derive(Debug)]
pub struct Asker {
    program: PathBuf,
    stderr: Stderr,
    deadline: Duration,
    children: Arc<ChildSet>,
    left: Option<Supervised>,
}

impl Asker {
    /// Asks this very program; the cost of the processes is counted in this set.
    pub fn new(stderr: Stderr, children: Arc<ChildSet>) -> Asker {
        Asker { program: child::this_program(), stderr, deadline: DEADLINE, children, left: None }
    }

    /// The whole machine; with hwloc's own format of it if `xml`.
    pub fn all(&mut self, origin: &Origin, xml: bool, stop: &Stop) -> Result<MachineAnswer, AskError> {
        self.ask(&[COMMAND], &Question::Machine(origin.clone(), xml), stop)
    }

    /// Links and network devices of the machine below this root.
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
            // Not worth a process.
            discover::check(root).map_err(AskError::NotFound)?;
        }
        // A path that is no text cannot be sent.
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
            // The caller may have given up. One answer is all there is.
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
                let end = status.map_or_else(|| "it goes on".to_owned(), |status| status.to_string());
                Err(AskError::Invalid(format!("no answer ({end})")))
            }
            Err(error) => Err(AskError::Invalid(error.to_string())),
        }
    }
}

/// Waits for the answer, until the deadline or the stop.
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
            // Cannot be: the reader sends before it ends.
            Err(RecvTimeoutError::Disconnected) => return Ok(Ok(None)),
        }
    }
}

/// What the reader of the child's frames delivers.
type ReceivedAnswer<A> = Result<Option<A>, FrameError>;

/// hwloc takes some of its settings from the environment alone, and ours are the only ones that count.
fn environment(root: Option<&Path>) -> Environment {
    let mut with = vec![
        // The memory of a GPU is a NUMA node like others.
        ("HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES".into(), "1".into()),
        // Firmware that contradicts itself is common; hwloc's messages about it are for its makers.
        ("HWLOC_HIDE_ERRORS".into(), "2".into()),
    ];
    if let Some(root) = root.filter(|root| *root != Path::new("/")) {
        with.push(("HWLOC_FSROOT".into(), root.into()));
    }
    Environment { without: vec!["HWLOC_"], with }
}

#[cfg(test)]
mod tests;

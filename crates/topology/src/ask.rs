//! Asking the topology process: started, listened to until its deadline, never waited for longer. One that is stuck
//! is left behind, and no second one is started beside it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::de::DeserializeOwned;

use super::answer::{All, COMMAND, Links, What};
use super::discover::{self, Origin};
use host::child::{self, Environment, Family, Running, Voice};
use host::stop::Stop;
use model::clock::Mono;

/// Longest time an answer may take: hwloc takes 0.1 s on a large machine.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Longest answer.
const MOST: usize = 8 << 20;
/// How long a process may take from its answer to its end before it counts as left behind.
const GOING: Duration = Duration::from_secs(5);
/// Longest sleep between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// It cannot be started or listened to.
    #[error("the topology process cannot be asked: {0}")]
    Io(#[from] io::Error),
    /// One that was asked before has not ended.
    #[error("the topology process {0} is stuck: it was asked to end and does not")]
    Stuck(i32),
    /// It took too long.
    #[error("the topology process did not answer within {} s", .0.as_secs())]
    Late(Duration),
    /// It says too much.
    #[error("the topology process answers with more than {MOST} bytes")]
    Long,
    /// It says what nobody understands.
    #[error("the topology process does not answer sensibly: {0}")]
    Garbage(String),
    /// It says why it finds nothing.
    #[error("{0}")]
    Told(String),
    /// We are to end.
    #[error("stopped")]
    Stopped,
}

/// Asks, and remembers who did not end.
#[derive(Debug)]
pub struct Asker {
    program: PathBuf,
    voice: Voice,
    deadline: Duration,
    family: Arc<Family>,
    left: Option<Running>,
}

impl Asker {
    /// Asks this very program. `voice`: where what it says beside its answer goes.
    pub fn new(voice: Voice) -> Asker {
        Asker {
            program: child::this_program(),
            voice,
            deadline: DEADLINE,
            family: Arc::default(),
            left: None,
        }
    }

    /// Its processes are of this family, which then knows what they cost.
    pub fn of(self, family: &Arc<Family>) -> Asker {
        Asker { family: Arc::clone(family), ..self }
    }

    /// The whole machine; with hwloc's own format of it if `xml`.
    pub fn all(&mut self, origin: &Origin, xml: bool, stop: &Stop) -> Result<All, Unanswered> {
        self.ask(origin, if xml { What::Xml } else { What::All }, stop)
    }

    /// Links and network devices of the machine below this root.
    pub fn links(&mut self, root: &Path, stop: &Stop) -> Result<Links, Unanswered> {
        self.ask(&Origin::Live(root.to_owned()), What::Links, stop)
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        origin: &Origin,
        what: What,
        stop: &Stop,
    ) -> Result<T, Unanswered> {
        if let Origin::Live(root) = origin {
            // Not worth a process.
            discover::check(root).map_err(|error| Unanswered::Told(error.to_string()))?;
        }
        let arguments = arguments(origin, what)?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.ask_with(&arguments, &environment(origin), stop)
    }

    fn ask_with<T: DeserializeOwned>(
        &mut self,
        arguments: &[&str],
        environment: &Environment,
        stop: &Stop,
    ) -> Result<T, Unanswered> {
        if let Some(left) = &mut self.left {
            if left.ended()?.is_none() {
                return Err(Unanswered::Stuck(left.pid));
            }
            self.left = None;
        }
        // It shares no memory with us.
        let nothing = File::open("/dev/null")?;
        let (mut running, mut answers) =
            child::start(&self.program, arguments, environment, nothing, self.voice)?;
        running.join(&self.family);
        let heard = hear(&mut answers, Mono::now() + self.deadline, self.deadline, stop);
        running.ask_to_end();
        if heard.is_err() {
            // It is in no call of a GPU's driver library: it only reads files.
            running.kill();
        }
        let patience = Mono::now() + GOING;
        let mut status = running.ended()?;
        while status.is_none() && Mono::now() < patience && !stop.stopped() {
            stop.wait_until(Mono::now() + Duration::from_millis(5));
            status = running.ended()?;
        }
        if status.is_none() {
            self.left = Some(running);
        }
        let bytes = heard?;
        match serde_json::from_slice::<Result<T, String>>(&bytes) {
            Ok(answer) => answer.map_err(Unanswered::Told),
            Err(_) if bytes.is_empty() => {
                let end = status.map_or_else(|| "it goes on".to_owned(), |status| status.to_string());
                Err(Unanswered::Garbage(format!("it said nothing ({end})")))
            }
            Err(error) => Err(Unanswered::Garbage(error.to_string())),
        }
    }
}

/// Reads to the end, until the deadline.
fn hear(from: &mut File, deadline: Mono, allowed: Duration, stop: &Stop) -> Result<Vec<u8>, Unanswered> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        if stop.stopped() {
            return Err(Unanswered::Stopped);
        }
        let left = deadline.since(Mono::now());
        if left.is_zero() {
            return Err(Unanswered::Late(allowed));
        }
        let wait = PollTimeout::try_from(left.min(LOOK)).unwrap_or(PollTimeout::ZERO);
        let mut ready = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, wait) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(bytes);
        }
        if bytes.len() + read > MOST {
            return Err(Unanswered::Long);
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
}

fn arguments(origin: &Origin, what: What) -> io::Result<Vec<String>> {
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| io::Error::other(format!("{} is not UTF-8", path.display())))
    };
    let (key, value) = match origin {
        Origin::Live(root) => ("--files", text(root)?),
        Origin::Xml(file) => ("--input", text(file)?),
        Origin::Synthetic(description) => ("--synthetic", description.clone()),
    };
    let what = match what {
        What::All => "all",
        What::Xml => "xml",
        What::Links => "links",
    };
    Ok(vec![COMMAND.to_owned(), format!("--what={what}"), format!("{key}={value}")])
}

/// hwloc takes some of its settings from the environment alone, and ours are the only ones that count.
fn environment(origin: &Origin) -> Environment {
    let mut with = vec![
        // The memory of a GPU is a NUMA node like others.
        ("HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES".into(), "1".into()),
        // Firmware that contradicts itself is common; hwloc's words on it are for its makers.
        ("HWLOC_HIDE_ERRORS".into(), "2".into()),
    ];
    if let Origin::Live(root) = origin
        && root != Path::new("/")
    {
        with.push(("HWLOC_FSROOT".into(), root.clone().into_os_string()));
    }
    Environment { without: vec!["HWLOC_"], with }
}

#[cfg(test)]
mod tests;

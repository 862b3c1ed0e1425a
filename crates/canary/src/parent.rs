//! The process of one run as its parent sees it: started, read, abandoned when it makes no progress, and asked to
//! end. Nothing here waits for the process: one that does not end is handed back as [`DetachedChild`].

mod detached;
mod environment;
mod transcript;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::report::{CanaryRun, ChildReport, RunEnd, RunRequest};
use host::child::{ChildSet, Stderr};
use host::frame::{self, FrameError};
use host::inflight::InCall;
use host::stop::Stop;
use host::supervise::{Launch, Supervised};
use model::canary::COMMAND;
use model::catalog::schema::KnownLabel;
use model::catalog::{CanarySkip, CanaryStep};
use model::clock::{Mono, unix_seconds};

pub use detached::{ChildCheck, DetachedChild};
use environment::EmptyFolder;
use transcript::Transcript;

/// Time without progress after which the log says so.
const SLOW: Duration = Duration::from_secs(10);
/// How long a process may take from its last report to its end before the run is over without it.
const GOING: Duration = Duration::from_secs(2);
/// How long a process that was asked to end has for its last reports and its end.
const ASKED: Duration = Duration::from_secs(3);
/// How long the rest of the reports of an ended process are waited for.
const REST: Duration = Duration::from_secs(1);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// A look that comes so much later: this process itself was asleep.
const ASLEEP: Duration = Duration::from_secs(5);
/// Longest request: a pipe takes so much without a reader, however small the kernel made it.
const MAX_REQUEST: usize = 4096;
/// Reports kept while they are not taken; then the process waits.
const KEPT: usize = 64;

/// What all runs have in common.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The NVML library; empty for the loader's own search.
    pub nvml_library: PathBuf,
    /// The CUDA driver library; empty for the loader's own search.
    pub cuda_library: PathBuf,
    /// The lock file of all canaries; beside it are those of the GPUs.
    pub lock_file: PathBuf,
    pub memory_mib: u32,
    /// Longest time without progress.
    pub hung_after: Duration,
    /// How long a process that was asked to end may take before it is killed, even inside the driver.
    pub kill_after: Duration,
    /// How long a process that is done, or was asked to end, is waited for.
    pub linger: Duration,
    /// Whether a run ends when another process comes to the device.
    pub yields: bool,
    pub stderr: Stderr,
    /// The children whose cost is counted together.
    pub children: Arc<ChildSet>,
}

/// What the reader of the child's frames delivers.
type ReceivedReport = Result<Option<ChildReport>, FrameError>;

/// A run under way.
#[derive(Debug)]
pub struct ActiveRun {
    child: Supervised,
    folder: EmptyFolder,
    reports: Receiver<ReceivedReport>,
    /// Whether the stream has ended.
    stream_over: bool,
    transcript: Transcript,
    began: f64,
    hung_after: Duration,
    kill_after: Duration,
    /// When the process last came further, and its newest CUDA call then.
    moved: Mono,
    call: Option<(u64, Mono)>,
    said_slow: bool,
    /// When the last report came.
    done: Option<Mono>,
    /// When the process had ended.
    ended: Option<(Mono, ExitStatus)>,
    asked: Option<(Mono, String)>,
    looked: Mono,
}

impl ActiveRun {
    /// Starts the process and sends its request. A run that cannot even begin is given at once.
    pub fn start(
        program: &Path,
        request: &RunRequest,
        settings: &RunSettings,
    ) -> Result<ActiveRun, Box<CanaryRun>> {
        ActiveRun::try_start(program, request, settings).map_err(|error| {
            let text = format!("the canary's process cannot be started: {error}");
            Box::new(CanaryRun::unable(unix_seconds(), CanarySkip::Environment, text))
        })
    }

    fn try_start(program: &Path, request: &RunRequest, settings: &RunSettings) -> io::Result<ActiveRun> {
        let began = unix_seconds();
        if frame::encode(request).map_err(io::Error::other)?.len() > MAX_REQUEST {
            return Err(io::Error::other(format!("its request has more than {MAX_REQUEST} bytes")));
        }
        let folder = EmptyFolder::make()?;
        let launch = Launch {
            program,
            args: &[COMMAND],
            environment: &environment::environment(request, folder.path()),
            stderr: settings.stderr,
            children: Some(&settings.children),
            thread: "canary-reports",
        };
        let (sender, reports) = sync_channel(KEPT);
        let mut child = Supervised::start(launch, move |report| sender.send(report).is_ok())?;
        child.send(request);
        let now = Mono::now();
        Ok(ActiveRun {
            child,
            folder,
            reports,
            stream_over: false,
            transcript: Transcript::default(),
            began,
            hung_after: settings.hung_after,
            kill_after: settings.kill_after,
            moved: now,
            call: None,
            said_slow: false,
            done: None,
            ended: None,
            asked: None,
            looked: now,
        })
    }

    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// The step it is in.
    pub fn step(&self) -> CanaryStep {
        self.transcript.step()
    }

    /// The driver call it is in.
    pub fn call(&self) -> Option<InCall> {
        detached::call(&self.child.views())
    }

    /// Asks the process to end after the kernel it is in. The first reason counts.
    pub fn ask_to_end(&mut self, why: &str) {
        if self.asked.is_none() {
            self.asked = Some((Mono::now(), why.to_owned()));
            self.child.ask_to_end();
        }
    }

    /// Waits a while for reports. Gives how the run ended once that is known; then [`ActiveRun::over`] is next.
    pub fn poll(&mut self, wait: Duration, on: &mut dyn FnMut(&ChildReport)) -> Option<RunEnd> {
        let broken = self.receive(wait, on).err();
        let now = Mono::now();
        if now.since(self.looked) > wait + ASLEEP {
            // This process was stopped or asleep, and perhaps the whole machine.
            self.moved = now;
        }
        self.looked = now;
        if let Some(text) = broken {
            return Some(self.broken(text));
        }
        self.see_end(now);
        self.judge(now)
    }

    /// Takes in the reports that come within `wait`, and all that have come.
    fn receive(&mut self, wait: Duration, on: &mut dyn FnMut(&ChildReport)) -> Result<(), String> {
        if self.stream_over {
            Stop::default().wait_until(Mono::now() + wait.min(LOOK));
            return Ok(());
        }
        let mut wait = wait;
        loop {
            match self.reports.recv_timeout(wait) {
                Ok(Ok(Some(report))) => {
                    on(&report);
                    self.transcript.record(report)?;
                    self.comes_further(Mono::now());
                }
                Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => {
                    self.stream_over = true;
                    return Ok(());
                }
                Ok(Err(error)) => return Err(error.to_string()),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
            }
            wait = Duration::ZERO;
        }
    }

    fn comes_further(&mut self, now: Mono) {
        (self.moved, self.said_slow) = (now, false);
        if self.transcript.done() {
            self.done.get_or_insert(now);
        }
    }

    fn see_end(&mut self, now: Mono) {
        if self.ended.is_none() {
            self.ended = self.child.ended().map(|status| (now, status));
        }
    }

    fn judge(&mut self, now: Mono) -> Option<RunEnd> {
        if let Some((at, status)) = self.ended {
            // A process that the child started may hold its end of the pipe open.
            let all_heard = self.stream_over || now.since(at) > REST;
            return all_heard.then(|| self.ended_with(status));
        }
        if self.done.is_some_and(|done| now.since(done) > GOING) {
            return self.transcript.reported_end().map(|end| self.with_reason(end));
        }
        if self.asked.as_ref().is_some_and(|(asked, _)| now.since(*asked) > ASKED) {
            return Some(self.abandoned());
        }
        let call = detached::moves(&self.child.views());
        if call != self.call {
            self.call = call;
            self.comes_further(now);
        }
        let still = now.since(self.moved);
        if still > SLOW.min(self.hung_after) && !self.said_slow {
            self.said_slow = true;
            let step = self.step().known();
            tracing::warn!(
                pid = self.pid(),
                step,
                call = self.call().map(|call| call.name),
                "a canary makes no progress"
            );
        }
        (still > self.hung_after).then(|| self.no_progress(still.as_secs_f64()))
    }

    /// No progress is the driver's fault only inside one of its calls: else the process was stopped or starved.
    fn no_progress(&self, seconds: f64) -> RunEnd {
        if self.child.all_stopped() {
            return self.broken("the process was stopped by a signal".into());
        }
        // Another thread asks NVML now and then: such a call has only just begun.
        match self.call().filter(|call| Mono::now().since(call.since) > self.hung_after / 2) {
            Some(call) => RunEnd::Hung { step: self.step(), call: Some(call.name), seconds },
            None => self.broken(format!("no progress for {seconds:.0} s, in no driver call that lasts")),
        }
    }

    fn broken(&self, text: String) -> RunEnd {
        RunEnd::Broken { text: format!("{text}, in step {}", self.step().known()) }
    }

    fn ended_with(&self, status: ExitStatus) -> RunEnd {
        match self.transcript.reported_end() {
            Some(end) => self.with_reason(end),
            None if self.asked.is_some() => self.abandoned(),
            None => self.broken(format!("the process ended too early ({status})")),
        }
    }

    fn abandoned(&self) -> RunEnd {
        let end = self.transcript.reported_end();
        self.with_reason(end.unwrap_or(RunEnd::Abandoned { text: String::new(), pids: Vec::new() }))
    }

    /// One that was asked to end says no more than that; we know why.
    fn with_reason(&self, end: RunEnd) -> RunEnd {
        match (end, &self.asked) {
            (RunEnd::Abandoned { pids, .. }, Some((_, why))) if pids.is_empty() => {
                RunEnd::Abandoned { text: why.clone(), pids }
            }
            (end, _) => end,
        }
    }

    /// The run is over: gives what was reported, and the process if it has not ended. It is asked to.
    pub fn over(mut self, end: RunEnd) -> (CanaryRun, Option<DetachedChild>) {
        self.child.ask_to_end();
        let now = Mono::now();
        self.see_end(now);
        let hung = matches!(end, RunEnd::Hung { .. });
        let step = self.step();
        let run = self.transcript.run(self.began, end);
        if self.ended.is_some() {
            return (run, None);
        }
        let detached = DetachedChild {
            child: self.child,
            _folder: self.folder,
            step,
            hung,
            hung_after: self.hung_after,
            kill_after: self.kill_after,
        };
        (run, Some(detached))
    }
}

#[cfg(test)]
mod tests;

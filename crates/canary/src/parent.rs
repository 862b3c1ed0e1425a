//! The parent's view of one run's process. The parent starts the process, reads its reports, requests its end, and
//! abandons the run if the process makes no progress. Nothing here waits for the process. A process that does not end
//! is returned as a [`DetachedChild`].

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

/// Time without progress after which a warning is logged.
const SLOW: Duration = Duration::from_secs(10);
/// Maximum time from the last report to the end of the process. After that, the run ends without waiting for the
/// process.
const GOING: Duration = Duration::from_secs(2);
/// Time for the last reports and the end of a process after a request to end.
const ASKED: Duration = Duration::from_secs(3);
/// Maximum time to wait for the remaining reports of an ended process.
const REST: Duration = Duration::from_secs(1);
/// Time between two checks of the process.
const LOOK: Duration = Duration::from_millis(50);
/// Delay of a check after which this process itself must have been suspended.
const ASLEEP: Duration = Duration::from_secs(5);
/// Maximum length of a request. A pipe accepts this much without a reader, even if the kernel made it small.
const MAX_REQUEST: usize = 4096;
/// Maximum number of unread reports. The child blocks when the buffer is full.
const KEPT: usize = 64;

/// Settings shared by all runs.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Path of the NVML library; empty for the loader's own search.
    pub nvml_library: PathBuf,
    /// Path of the CUDA driver library; empty for the loader's own search.
    pub cuda_library: PathBuf,
    /// Lock file of all canaries. The lock files of the GPUs are in the same directory.
    pub lock_file: PathBuf,
    pub memory_mib: u32,
    /// Maximum time without progress.
    pub hung_after: Duration,
    /// Time after a request to end after which the process is killed, even inside a driver call.
    pub kill_after: Duration,
    /// Maximum time to wait for a process that is done or was requested to end.
    pub linger: Duration,
    /// True if a run ends when another process uses the device.
    pub yields: bool,
    pub stderr: Stderr,
    /// Children whose costs are counted together.
    pub children: Arc<ChildSet>,
}

/// Message from the reader of the child's frames.
type ReceivedReport = Result<Option<ChildReport>, FrameError>;

/// A run in progress.
#[derive(Debug)]
pub struct ActiveRun {
    child: Supervised,
    folder: EmptyFolder,
    reports: Receiver<ReceivedReport>,
    /// True if the stream has ended.
    stream_over: bool,
    transcript: Transcript,
    began: f64,
    hung_after: Duration,
    kill_after: Duration,
    /// Time of the last progress, and the newest CUDA call at that time.
    moved: Mono,
    call: Option<(u64, Mono)>,
    said_slow: bool,
    /// Time of the last report.
    done: Option<Mono>,
    /// Time at which the parent noticed the end of the process, and the exit status.
    ended: Option<(Mono, ExitStatus)>,
    asked: Option<(Mono, String)>,
    looked: Mono,
}

impl ActiveRun {
    /// Starts the process and sends its request. Returns the failed run as the error if the process cannot start.
    pub fn start(
        program: &Path,
        request: &RunRequest,
        settings: &RunSettings,
    ) -> Result<ActiveRun, Box<CanaryRun>> {
        ActiveRun::try_start(program, request, settings).map_err(|error| {
            let text = format!("failed to start the canary process: {error}");
            Box::new(CanaryRun::unable(unix_seconds(), CanarySkip::Environment, text))
        })
    }

    fn try_start(program: &Path, request: &RunRequest, settings: &RunSettings) -> io::Result<ActiveRun> {
        let began = unix_seconds();
        if frame::encode(request).map_err(io::Error::other)?.len() > MAX_REQUEST {
            return Err(io::Error::other(format!("the request has more than {MAX_REQUEST} bytes")));
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

    /// Returns the current step.
    pub fn step(&self) -> CanaryStep {
        self.transcript.step()
    }

    /// Returns the current driver call.
    pub fn call(&self) -> Option<InCall> {
        detached::call(&self.child.views())
    }

    /// Requests the process to end after the current kernel. The first reason counts.
    pub fn ask_to_end(&mut self, why: &str) {
        if self.asked.is_none() {
            self.asked = Some((Mono::now(), why.to_owned()));
            self.child.ask_to_end();
        }
    }

    /// Waits up to `wait` for reports. Returns how the run ended once that is certain. The caller then calls
    /// [`ActiveRun::over`].
    pub fn poll(&mut self, wait: Duration, on: &mut dyn FnMut(&ChildReport)) -> Option<RunEnd> {
        let broken = self.receive(wait, on).err();
        let now = Mono::now();
        if now.since(self.looked) > wait + ASLEEP {
            // This process was stopped or suspended, perhaps together with the whole machine.
            self.moved = now;
        }
        self.looked = now;
        if let Some(text) = broken {
            return Some(self.broken(text));
        }
        self.see_end(now);
        self.judge(now)
    }

    /// Reads the reports that arrive within `wait`, and all that have already arrived.
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
            // A process that the child started may keep the child's end of the pipe open.
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

    /// Returns the end of a run without progress. The driver is at fault only inside one of its calls. Otherwise, the
    /// process was stopped or starved.
    fn no_progress(&self, seconds: f64) -> RunEnd {
        if self.child.all_stopped() {
            return self.broken("the process was stopped by a signal".into());
        }
        // Another thread calls NVML periodically. Such a call is always recent.
        match self.call().filter(|call| Mono::now().since(call.since) > self.hung_after / 2) {
            Some(call) => RunEnd::Hung { step: self.step(), call: Some(call.name), seconds },
            None => self.broken(format!("no progress for {seconds:.0} s outside of driver calls")),
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

    /// Adds the reason of the request to an abandoned run, because the process cannot report it.
    fn with_reason(&self, end: RunEnd) -> RunEnd {
        match (end, &self.asked) {
            (RunEnd::Abandoned { pids, .. }, Some((_, why))) if pids.is_empty() => {
                RunEnd::Abandoned { text: why.clone(), pids }
            }
            (end, _) => end,
        }
    }

    /// Ends the run and requests the end of the process. Returns the reports, and the process if it is still running.
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

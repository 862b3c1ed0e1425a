//! The process of one run as its parent sees it: started, listened to, given up when it makes no progress, and
//! asked to end. Nothing here waits for the process: what does not end is handed back as [`Remains`].

mod lines;
mod remains;
mod surroundings;
mod transcript;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use crate::report::{End, Order, Report, Run};
use host::child::{self, Family, Running, Voice};
use host::inflight::Table;
use host::stop::Stop;
use model::canary::COMMAND;
use model::catalog::schema::KnownLabel;
use model::catalog::{CanarySkip, CanaryStep};
use model::clock::{Mono, unix_seconds};

use lines::Line;
pub use remains::{Call, Look, Remains, may_kill};
use surroundings::EmptyFolder;
use transcript::Transcript;

/// Time without progress after which the log says so.
const SLOW: Duration = Duration::from_secs(10);
/// How long a process may take from its last report to its end before the run is told without waiting.
const GOING: Duration = Duration::from_secs(2);
/// How long a process that was asked to end has to say how far it came, and to go.
const ASKED: Duration = Duration::from_secs(3);
/// How long the rest of the reports of an ended process are waited for.
const REST: Duration = Duration::from_secs(1);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// A look that comes so much later says that we were asleep ourselves.
const ASLEEP: Duration = Duration::from_secs(5);
/// Longest order: a pipe takes so much without a reader, however small the kernel made it.
const MAX_ORDER: usize = 4096;

/// How a run is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The program: [`child::this_program`], but for tests.
    pub program: &'a Path,
    /// What to do.
    pub order: &'a Order,
    /// Longest time without progress.
    pub hung_after: Duration,
    /// How long a process that was asked to end may take before it is killed, even inside the driver.
    pub kill_after: Duration,
    /// Where what it writes to its standard error goes.
    pub voice: Voice,
}

/// Makes a run and gives what was reported, as soon as its end is known; with the process, if that has not
/// ended. `stop` ends the run between two kernels. `on` is told each report as it comes.
pub fn run(start: Start<'_>, stop: &Stop, on: &mut dyn FnMut(&Report)) -> (Run, Option<Remains>) {
    let mut active = match Active::start(start) {
        Ok(active) => active,
        Err(run) => return (*run, None),
    };
    loop {
        if stop.stopped() {
            active.ask_to_end("it was asked to end");
        }
        if let Some(end) = active.look(LOOK, on) {
            return active.over(end);
        }
    }
}

/// A run under way.
#[derive(Debug)]
pub struct Active {
    running: Running,
    table: Table,
    folder: EmptyFolder,
    lines: Receiver<Line>,
    /// Whether the stream has ended.
    stream_over: bool,
    told: Transcript,
    began: f64,
    hung_after: Duration,
    kill_after: Duration,
    progress: Progress,
    /// When the last report came.
    done: Option<Mono>,
    /// When the process had ended.
    ended: Option<(Mono, ExitStatus)>,
    asked: Option<(Mono, String)>,
    looked: Mono,
}

/// When it last came further.
#[derive(Debug)]
struct Progress {
    at: Mono,
    moves: Option<(u64, Mono)>,
    said_slow: bool,
}

impl Active {
    /// Starts the process and gives it its order. A run that cannot even begin is given at once.
    pub fn start(start: Start<'_>) -> Result<Active, Box<Run>> {
        let began = unix_seconds();
        Active::try_start(start, began).map_err(|error| {
            let text = format!("the canary's process cannot be started: {error}");
            let end = End::Unable { reason: CanarySkip::Environment, text };
            Box::new(Transcript::default().run(began, end))
        })
    }

    fn try_start(start: Start<'_>, began: f64) -> io::Result<Active> {
        let mut order = serde_json::to_vec(start.order)?;
        order.push(b'\n');
        if order.len() > MAX_ORDER {
            return Err(io::Error::other(format!("its order has more than {MAX_ORDER} bytes")));
        }
        let table = Table::create()?;
        let folder = EmptyFolder::make()?;
        let environment = surroundings::environment(start.order, folder.path());
        let (mut running, frames): (Running, File) =
            child::start(start.program, &[COMMAND], &environment, table.descriptor(), start.voice)?;
        let lines = match lines::read(frames) {
            Ok(lines) => lines,
            Err(error) => {
                running.end_at_once();
                return Err(error);
            }
        };
        if let Some(control) = &mut running.control {
            // A process that died at once makes this fail; its end is seen where ends are seen.
            if let Err(error) = control.write_all(&order) {
                tracing::warn!(%error, "the canary's process did not take its order");
            }
        }
        let now = Mono::now();
        Ok(Active {
            running,
            table,
            folder,
            lines,
            stream_over: false,
            told: Transcript::default(),
            began,
            hung_after: start.hung_after,
            kill_after: start.kill_after,
            progress: Progress { at: now, moves: None, said_slow: false },
            done: None,
            ended: None,
            asked: None,
            looked: now,
        })
    }

    /// Makes its process one of a family, which then knows what it costs. Call once, at its start.
    pub fn join(&mut self, family: &Arc<Family>) {
        self.running.join(family);
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.running.pid
    }

    /// The step it is in.
    pub fn step(&self) -> CanaryStep {
        self.told.step()
    }

    /// The driver call it is in.
    pub fn call(&self) -> Option<Call> {
        remains::call(&self.table.views())
    }

    /// Asks it to end after the kernel it is in. Why, in words; the first time counts.
    pub fn ask_to_end(&mut self, why: &str) {
        if self.asked.is_none() {
            self.asked = Some((Mono::now(), why.to_owned()));
            self.running.ask_to_end();
        }
    }

    /// Waits a while for news. Gives how the run ended once that is known; then [`Active::over`] is next.
    pub fn look(&mut self, wait: Duration, on: &mut dyn FnMut(&Report)) -> Option<End> {
        let broken = self.listen(wait, on).err();
        let now = Mono::now();
        if now.since(self.looked) > wait + ASLEEP {
            // We were stopped or asleep, and with us perhaps the whole machine.
            self.progress.at = now;
        }
        self.looked = now;
        if let Some(text) = broken {
            return Some(End::Broken { text: format!("{text}, in step {}", self.step().known()) });
        }
        self.see_end(now);
        self.judge(now)
    }

    /// Takes in what comes within `wait`, and all that has come.
    fn listen(&mut self, wait: Duration, on: &mut dyn FnMut(&Report)) -> Result<(), String> {
        if self.stream_over {
            Stop::default().wait_until(Mono::now() + wait.min(LOOK));
            return Ok(());
        }
        let mut next = match self.lines.recv_timeout(wait) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Line::Over),
        };
        while let Some(line) = next {
            match line {
                Line::Report(report) => {
                    on(&report);
                    self.told.take(*report)?;
                    self.moved(Mono::now());
                }
                Line::Garbage(text) => return Err(text),
                Line::Over => {
                    self.stream_over = true;
                    return Ok(());
                }
            }
            next = match self.lines.try_recv() {
                Ok(line) => Some(line),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Line::Over),
            };
        }
        Ok(())
    }

    fn moved(&mut self, now: Mono) {
        self.progress.at = now;
        self.progress.said_slow = false;
        if self.told.done() {
            self.done.get_or_insert(now);
        }
    }

    fn see_end(&mut self, now: Mono) {
        if self.ended.is_some() {
            return;
        }
        match self.running.ended() {
            Ok(status) => self.ended = status.map(|status| (now, status)),
            Err(error) => {
                tracing::warn!(%error, pid = self.pid(), "cannot tell whether the canary's process has ended");
            }
        }
    }

    fn judge(&mut self, now: Mono) -> Option<End> {
        if let Some((at, status)) = self.ended {
            // Somebody it started may hold its end of the pipe open.
            let all_heard = self.stream_over || now.since(at) > REST;
            return all_heard.then(|| self.ended_with(status));
        }
        if self.done.is_some_and(|done| now.since(done) > GOING) {
            return self.told.told_end().map(|end| self.with_reason(end));
        }
        if self.asked.as_ref().is_some_and(|(asked, _)| now.since(*asked) > ASKED) {
            return Some(self.abandoned());
        }
        let moves = remains::moves(&self.table.views());
        if moves != self.progress.moves {
            self.progress.moves = moves;
            self.moved(now);
        }
        let still = now.since(self.progress.at);
        if still > SLOW.min(self.hung_after) && !self.progress.said_slow {
            self.progress.said_slow = true;
            let step = self.step().known();
            tracing::warn!(pid = self.pid(), step, call = ?self.call(), "a canary makes no progress");
        }
        (still > self.hung_after).then(|| self.no_progress(still))
    }

    /// No progress is the driver's fault only inside one of its calls: else the process was stopped or starved.
    fn no_progress(&self, still: Duration) -> End {
        let (step, seconds) = (self.step(), still.as_secs_f64());
        if child::all_stopped(self.pid()) {
            return End::Broken {
                text: format!("the process was stopped by a signal in step {}", step.known()),
            };
        }
        // Another thread asks NVML now and then: such a call has only just begun.
        match self.call().filter(|call| Mono::now().since(call.since) > self.hung_after / 2) {
            Some(call) => End::Hung { step, call: Some(call.name), seconds },
            None => End::Broken {
                text: format!(
                    "no progress for {seconds:.0} s in step {}, in no driver call that lasts",
                    step.known()
                ),
            },
        }
    }

    fn ended_with(&self, status: ExitStatus) -> End {
        match self.told.told_end() {
            Some(end) => self.with_reason(end),
            None if self.asked.is_some() => self.abandoned(),
            None => End::Broken {
                text: format!("the process ended too early ({status}), in step {}", self.step().known()),
            },
        }
    }

    fn abandoned(&self) -> End {
        let end = self.told.told_end();
        self.with_reason(end.unwrap_or(End::Abandoned { text: String::new(), pids: Vec::new() }))
    }

    /// One that was asked to end says no more than that; we know why.
    fn with_reason(&self, end: End) -> End {
        match (end, &self.asked) {
            (End::Abandoned { pids, .. }, Some((_, why))) if pids.is_empty() => {
                End::Abandoned { text: why.clone(), pids }
            }
            (end, _) => end,
        }
    }

    /// The run is over: gives what was reported, and the process if it has not ended. It is asked to.
    pub fn over(mut self, end: End) -> (Run, Option<Remains>) {
        self.running.ask_to_end();
        let now = Mono::now();
        self.see_end(now);
        let hung = matches!(end, End::Hung { .. });
        let step = self.step();
        let run = self.told.run(self.began, end);
        if self.ended.is_some() {
            return (run, None);
        }
        let remains = Remains {
            running: self.running,
            table: self.table,
            _folder: self.folder,
            step,
            hung,
            asked: self.asked.map_or(now, |(asked, _)| asked),
            hung_after: self.hung_after,
            kill_after: self.kill_after,
            killed: None,
        };
        (run, Some(remains))
    }
}

impl Transcript {
    /// All that was reported of a run that ended so, just now.
    fn run(self, began: f64, end: End) -> Run {
        let gpu_seconds = self.gpu_seconds();
        // The clock may have been set back meanwhile.
        let ended = unix_seconds().max(began);
        let Transcript { steps, device, measured, .. } = self;
        Run { began, ended, steps, device, measured, gpu_seconds, end }
    }
}

#[cfg(test)]
mod tests;

//! Runs a program that is watched from its first instruction on: its input, output, exit and signals are its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use assess::recording::RunCounts;
use host::Host;
use host::terminal::progress;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use super::counters::{CounterReading, RunCounters, Watched, reason};
use super::samples::CpuClock;
use super::symbols::Symbols;
use super::{allowed_cpus, processor, threads};
use crate::collectors::cpu::cpu_groups::online;

/// Time between two looks at the buffers.
const TICK: Duration = Duration::from_millis(100);
/// Runs shorter than this show no progress.
const QUIET: Duration = Duration::from_secs(2);

/// Runs the program to its end. Gives what was counted, with the exit code or signal.
pub fn run(command: &[OsString], host: &Host) -> io::Result<RunCounts> {
    let (name, arguments) = command.split_first().ok_or_else(|| io::Error::other("no program"))?;
    let (cpu, model) = processor(host);
    let signals = PassedSignals::take()?;
    // Children of the calling thread inherit both, stopped until they start the program.
    let mut counters = RunCounters::open(Watched::NextProgram, cpu);
    let cpus = online(host).unwrap_or_default();
    let clock = CpuClock::open(Watched::NextProgram, &cpus);
    let mut gaps = std::mem::take(&mut counters.gaps);
    if let Err(error) = &clock {
        gaps.insert("hot functions".into(), reason(error));
    }
    let mut clock = clock.ok();
    let before = cpu_seconds_of_children()?;

    #[expect(clippy::disallowed_methods, reason = "the user's program, which ends by itself")]
    let mut command_line = Command::new(name);
    let child = command_line.args(arguments).spawn()?;
    let started = Instant::now();
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let running = signals.pass_to(pid)?;
    let (ended, end) = mpsc::channel();
    host::thread::spawn("assess-wait", 64, move || {
        let _ = ended.send(wait(child, &running));
    })?;
    let (mut most_threads, mut shown) = (0, QUIET);
    let status = loop {
        let status = end.recv_timeout(TICK);
        if let Some(clock) = &mut clock {
            clock.drain();
        }
        match status {
            Ok(status) => break status,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break Err(io::Error::other("lost the program")),
        }
        most_threads = most_threads.max(threads(host, pid));
        if started.elapsed() >= shown {
            progress(&format!("assess: {} s", started.elapsed().as_secs()));
            shown += Duration::from_secs(1);
        }
    };
    let wall_seconds = started.elapsed().as_secs_f64();
    if shown > QUIET {
        progress("");
    }
    let status = status?;
    let of_children = cpu_seconds_of_children()? - before;
    let (counts, clocked) = match counters.read() {
        Ok(reading) => counters.between(&CounterReading::default(), &reading),
        Err(error) => {
            gaps.insert("processor counters".into(), error.to_string());
            Default::default()
        }
    };
    let hot = clock.map(|clock| Symbols::new(&clock.spaces, host).functions(&clock.profile));
    if hot.as_ref().is_some_and(|hot| !hot.with_kernel) {
        gaps.insert("time in the kernel".into(), super::samples::WITHOUT_KERNEL.into());
    }
    Ok(RunCounts {
        subject: command.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" "),
        processor: model,
        wall_seconds,
        // A child that nothing has waited for is not among the first.
        cpu_seconds: Some(of_children.max(clocked.unwrap_or(0.0))),
        cpus: allowed_cpus(),
        threads: (most_threads > 0).then_some(most_threads),
        counts,
        hot,
        not_measured: gaps,
        exit: Some(status.code().or(status.signal().map(|signal| -signal)).unwrap_or(0)),
        ..RunCounts::default()
    })
}

/// Exit code for a program that could not be started, as shells have it.
pub fn not_started(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

fn cpu_seconds_of_children() -> io::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

/// Waits for the end. No signal is passed on once the number of the process may be another's.
fn wait(mut child: Child, running: &AtomicI32) -> io::Result<ExitStatus> {
    let pid = Pid::from_raw(running.load(Ordering::Relaxed));
    while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(nix::errno::Errno::EINTR) {
    }
    running.store(0, Ordering::SeqCst);
    child.wait()
}

/// PassedSignals that would end this command before its program.
struct PassedSignals {
    runtime: tokio::runtime::Runtime,
    passed: [(tokio::signal::unix::Signal, Signal); 2],
    /// From a terminal: the program gets them from there.
    ignored: [tokio::signal::unix::Signal; 2],
}

impl PassedSignals {
    fn take() -> io::Result<PassedSignals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (passed, ignored) = runtime.block_on(async {
            let passed = [
                (signal(SignalKind::terminate())?, Signal::SIGTERM),
                (signal(SignalKind::hangup())?, Signal::SIGHUP),
            ];
            io::Result::Ok((passed, [signal(SignalKind::interrupt())?, signal(SignalKind::quit())?]))
        })?;
        Ok(PassedSignals { runtime, passed, ignored })
    }

    /// Passes them to the program from now on, also those that came before. Gives the process id, 0 once it has ended.
    fn pass_to(self, pid: i32) -> io::Result<Arc<AtomicI32>> {
        let running = Arc::new(AtomicI32::new(pid));
        let of_thread = Arc::clone(&running);
        host::thread::spawn("assess-signals", 256, move || {
            let PassedSignals {
                runtime,
                passed: [(mut term, to_end), (mut hup, hung_up)],
                ignored: [mut int, mut quit],
            } = self;
            runtime.block_on(async {
                loop {
                    let signal = tokio::select! {
                        _ = term.recv() => to_end,
                        _ = hup.recv() => hung_up,
                        _ = int.recv() => continue,
                        _ = quit.recv() => continue,
                    };
                    let pid = of_thread.load(Ordering::SeqCst);
                    if pid > 0 {
                        #[expect(
                            clippy::disallowed_methods,
                            reason = "passes a signal on to the user's program"
                        )]
                        let _ = kill(Pid::from_raw(pid), signal);
                    }
                }
            });
        })?;
        Ok(running)
    }
}

//! Runs a program and watches it from its first instruction. The program keeps its own input, output, exit
//! code and signals.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant};

use assess::recording::{RunCounts, SystemCounts};
use host::Host;
use host::terminal::progress;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::Signal::{self, *};
use nix::sys::signal::kill;
use nix::sys::time::TimeValLike;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use super::counters::{CounterReading, RunCounters, Watched, reason};
use super::samples::CpuClock;
use super::{allowed_cpus, functions, processor, threads};
use collectors::cpu::cpu_groups::online;

/// Time between two reads of the buffers.
const TICK: Duration = Duration::from_millis(100);
/// Minimum duration of a run for which progress is shown.
const QUIET: Duration = Duration::from_secs(2);
/// CPU seconds from which a run without samples needs an explanation.
const NEVER_SAMPLED: f64 = 0.1;
const NOT_SAMPLED: &str = "no sample: the kernel does not sample programs that are setuid or whose file this user may not read, \
                           and processes of some milliseconds have none";

/// Runs the program until it exits. Returns the counts of the run, with the exit code or signal.
pub fn run(command: &[OsString], show_progress: bool, host: &Host) -> io::Result<RunCounts> {
    let (name, arguments) = command.split_first().ok_or_else(|| io::Error::other("no program"))?;
    let (cpu, model) = processor(host);
    // Steps that may fail come before the start of the program.
    let signals = PassedSignals::start()?;
    let program = Arc::clone(&signals.program);
    let (starting, exited) = start_waiter(Arc::clone(&program))?;
    // Children of the calling thread inherit both. They are stopped until the child executes the program.
    let mut counters = RunCounters::open(Watched::NextProgram, cpu);
    let mut gaps = std::mem::take(&mut counters.gaps);
    let clock = CpuClock::open(Watched::NextProgram, &online(host).unwrap_or_default());
    let mut clock = clock.inspect_err(|error| drop(gaps.insert("hot functions".into(), reason(error)))).ok();
    let (cpu_before, system_before) = usage_of_children()?;

    #[expect(clippy::disallowed_methods, reason = "the user's program, which ends by itself")]
    let mut command_line = Command::new(name);
    let child = command_line.args(arguments).spawn()?;
    let started = Instant::now();
    let pid = i32::try_from(child.id()).unwrap_or(0);
    signals.pass_to(pid);
    let _ = starting.send(child);
    let (status, most_threads) = watch(&exited, &mut clock, pid, host, show_progress);
    let wall = program.ended.get().map_or_else(|| started.elapsed(), |end| end.duration_since(started));
    // The program ran, so an error from here on is not an error of its start.
    let mut missing = |what: &str, error: &dyn std::fmt::Display| gaps.insert(what.into(), error.to_string());
    let status = status.inspect_err(|error| drop(missing("exit code", error))).ok();
    let usage = usage_of_children().inspect_err(|error| drop(missing("CPU time", error))).ok();
    let reading = counters.read();
    let (counts, clocked) = counters.between(&Ok(CounterReading::default()), &reading, &mut gaps);
    // The kernel's accounting leaves out a child that no process waited for.
    let cpu_seconds = usage.map(|(cpu, _)| (cpu - cpu_before).max(clocked.unwrap_or(0.0)));
    let hot = clock.map(|clock| functions(clock, host));
    if let Some(hot) = &hot {
        if !hot.with_kernel {
            gaps.insert("time in the kernel".into(), super::samples::WITHOUT_KERNEL.into());
        }
        if hot.samples == 0 && cpu_seconds.is_some_and(|cpu| cpu > NEVER_SAMPLED) {
            gaps.insert("hot functions".into(), NOT_SAMPLED.into());
        }
    }
    Ok(RunCounts {
        subject: command.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" "),
        processor: model,
        wall_seconds: wall.as_secs_f64(),
        cpu_seconds,
        cpus: allowed_cpus(host),
        threads: (most_threads > 0).then_some(most_threads),
        counts,
        system: usage.map(|(_, after)| after.since(&system_before)),
        hot,
        not_measured: gaps,
        exit: status.and_then(|status| status.code().or(status.signal().map(|signal| -signal))),
        ..RunCounts::default()
    })
}

type ExitReceiver = mpsc::Receiver<io::Result<ExitStatus>>;

/// Starts the thread that waits until the program exits.
fn start_waiter(program: Arc<RunningProgram>) -> io::Result<(mpsc::Sender<Child>, ExitReceiver)> {
    let (starting, start) = mpsc::channel();
    let (ended, exited) = mpsc::channel();
    host::thread::spawn("assess-wait", 64, move || {
        if let Ok(child) = start.recv() {
            let _ = ended.send(wait(child, &program));
        }
    })?;
    Ok((starting, exited))
}

/// Reads samples until the program exits. Returns its exit status and the maximum number of its threads.
fn watch(
    exited: &ExitReceiver,
    clock: &mut Option<CpuClock>,
    pid: i32,
    host: &Host,
    show_progress: bool,
) -> (io::Result<ExitStatus>, u64) {
    let (started, mut most_threads, mut shown) = (Instant::now(), 0, QUIET);
    let status = loop {
        let status = exited.recv_timeout(TICK);
        if let Some(clock) = clock {
            clock.drain(host);
        }
        match status {
            Ok(status) => break status,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                break Err(io::Error::other("failed to wait for the program"));
            }
        }
        most_threads = most_threads.max(threads(host, pid));
        if show_progress && started.elapsed() >= shown {
            progress(&format!("assess: {} s", started.elapsed().as_secs()));
            shown += Duration::from_secs(1);
        }
    };
    if shown > QUIET {
        progress("");
    }
    (status, most_threads)
}

/// Exit code for a program that could not be started, as in shells.
pub fn not_started(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// Returns the CPU seconds and other counts of all children that were waited for.
fn usage_of_children() -> io::Result<(f64, SystemCounts)> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let cpu = (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6;
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let system = SystemCounts {
        minor_faults: count(usage.minor_page_faults()),
        major_faults: count(usage.major_page_faults()),
        voluntary_switches: count(usage.voluntary_context_switches()),
        involuntary_switches: count(usage.involuntary_context_switches()),
    };
    Ok((cpu, system))
}

/// Waits until the program exits. Signals are no longer passed on when its process ID may belong to another
/// process.
fn wait(mut child: Child, program: &RunningProgram) -> io::Result<ExitStatus> {
    let pid = Pid::from_raw(program.pid.load(Ordering::SeqCst));
    while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(nix::errno::Errno::EINTR) {
    }
    program.pid.store(0, Ordering::SeqCst);
    let _ = program.ended.set(Instant::now());
    child.wait()
}

/// Signals that would end this command before its program.
const PASSED: [Signal; 7] = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGINT, SIGQUIT];
/// Time during which a signal belongs to the program that has just exited, because a signal to the whole
/// process group may arrive here after the exit that it caused. A later signal is meant for this command.
const GRACE: Duration = Duration::from_millis(500);

/// State of the program, shared with the signal thread.
#[derive(Debug, Default)]
struct RunningProgram {
    /// 0 before the start and after the exit.
    pid: AtomicI32,
    ended: OnceLock<Instant>,
}

/// Passes signals on to the program.
struct PassedSignals {
    program: Arc<RunningProgram>,
    started: mpsc::Sender<()>,
}

impl PassedSignals {
    /// Installs the signal handlers. Ignored signals stay ignored, here and in the program, as `nohup`
    /// requires.
    fn start() -> io::Result<PassedSignals> {
        host::child::keep_ends_of_children()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut handlers = runtime.block_on(async {
            let taken = PASSED.into_iter().filter(|passed| !is_ignored(&status, *passed));
            let handler = |passed: Signal| Ok((signal(SignalKind::from_raw(passed as i32))?, passed));
            taken.map(handler).collect::<io::Result<Vec<_>>>()
        })?;
        let program = Arc::new(RunningProgram::default());
        let of_thread = Arc::clone(&program);
        let (started, start) = mpsc::channel();
        host::thread::spawn("assess-signals", 256, move || {
            // Signals before the start stay pending in the handlers.
            if start.recv().is_err() {
                return;
            }
            loop {
                pass(runtime.block_on(next(&mut handlers)), &of_thread);
            }
        })?;
        Ok(PassedSignals { program, started })
    }

    /// Passes signals to the program, including earlier ones.
    fn pass_to(self, pid: i32) {
        self.program.pid.store(pid, Ordering::SeqCst);
        let _ = self.started.send(());
    }
}

async fn next(handlers: &mut [(tokio::signal::unix::Signal, Signal)]) -> Signal {
    std::future::poll_fn(|context| {
        let mut ready = handlers.iter_mut().filter_map(|(handler, passed)| {
            matches!(handler.poll_recv(context), Poll::Ready(Some(()))).then_some(*passed)
        });
        ready.next().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

fn pass(signal: Signal, program: &RunningProgram) {
    let pid = program.pid.load(Ordering::SeqCst);
    if pid > 0 {
        let by_key = matches!(signal, SIGINT | SIGQUIT);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The terminal has already sent the signal to the program.
        if !(by_key && is_in_foreground(&stat)) {
            #[expect(clippy::disallowed_methods, reason = "passes a signal on to the user's program")]
            let _ = kill(Pid::from_raw(pid), signal);
        }
    } else if program.ended.get().is_some_and(|ended| ended.elapsed() > GRACE) {
        #[expect(clippy::disallowed_methods, reason = "the program has ended, and its report is not wanted")]
        std::process::exit(128 + signal as i32);
    }
}

/// Returns true if a process ignores a signal, from its `/proc/PID/status`.
fn is_ignored(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}

/// Returns true if the process group is in the foreground, so that keys of the terminal send signals to it.
/// Reads `/proc/PID/stat`.
fn is_in_foreground(stat: &str) -> bool {
    // The fields after the name, which may contain any character, are state, parent, group, session, terminal
    // and foreground group.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let (group, foreground) = (fields.nth(2), fields.nth(2));
    group.is_some() && group == foreground
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_left_so() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, Signal::SIGHUP) && !is_ignored(status, Signal::SIGTERM));
        assert!(!is_ignored("", Signal::SIGHUP));
    }

    #[test]
    fn keys_reach_the_group_in_the_foreground() {
        assert!(is_in_foreground("7 (a) b) S 1 7 7 34816 7 4194304 0"));
        assert!(!is_in_foreground("7 (a) S 1 7 7 34816 9 4194304 0"));
        assert!(!is_in_foreground("7 (a) S 1 7 7 0 -1 4194304 0") && !is_in_foreground(""));
    }
}

//! Starts and ends child processes safely.
//!
//! Children run from `/proc/self/exe` (the same build, even after an upgrade on disk), in a process group of
//! their own, and end when their control pipe closes. Killing a GPU client can wedge the GPU
//! (NVIDIA/dcgm-exporter issue 84). A child is therefore asked to end first, and killed only if it is in no
//! driver call. A child that is stuck in the driver ends by itself when the call returns.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::signal::{SigHandler, Signal, killpg, signal};
use nix::unistd::Pid;

use model::sync::lock;

/// Descriptor on which a child writes frames.
pub const FRAMES_FD: i32 = 3;
/// Descriptor from which a child reads requests; when it closes, the child ends.
pub const CONTROL_FD: i32 = 4;
/// Descriptor of the memory shared with the parent.
pub const SHARED_FD: i32 = 5;

/// Keeps the ambient capabilities that systemd has granted to this process from its children, which load the
/// vendor's libraries and neither read the kernel log nor count events on CPUs. This process keeps its own
/// capabilities. Call this before any thread starts, because every thread has its own set.
pub fn keep_privileges() {
    let clear = nix::libc::PR_CAP_AMBIENT_CLEAR_ALL as nix::libc::c_ulong;
    // SAFETY: takes only numbers and changes nothing but the calling thread's set of ambient capabilities.
    if unsafe { nix::libc::prctl(nix::libc::PR_CAP_AMBIENT, clear, 0, 0, 0) } != 0 {
        let error = io::Error::last_os_error();
        tracing::warn!("failed to clear ambient capabilities: {error}; child processes may inherit them");
    }
}

/// Returns the path of the running program, which is valid even if the file on disk was replaced.
pub fn this_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// Living children of one kind, and the total CPU time of the ended ones.
#[derive(Debug, Default)]
pub struct ChildSet(Mutex<(Vec<i32>, Duration)>);

impl ChildSet {
    /// Passes the process ids of the living children and the CPU time of the ended ones to `look`. No child is
    /// reaped meanwhile, so the totals of all children stay consistent with the list.
    pub fn look<T>(&self, look: impl FnOnce(&[i32], Duration) -> T) -> T {
        let times = lock(&self.0);
        look(&times.0, times.1)
    }

    pub(crate) fn add(&self, pid: i32) {
        lock(&self.0).0.push(pid);
    }

    /// Returns the exit status of a child if it has ended. Never waits.
    pub(crate) fn ended(&self, pid: i32) -> io::Result<Option<ExitStatus>> {
        // The CPU time moves to the set under the same lock under which the kernel adds it to the total of all
        // children.
        let mut times = lock(&self.0);
        let Some((status, cpu)) = wait4(pid)? else { return Ok(None) };
        times.0.retain(|alive| *alive != pid);
        times.1 += cpu;
        Ok(Some(status))
    }
}

/// Destination of a child's standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stderr {
    /// Standard error of this process.
    Inherit,
    /// Discarded, so that a child left behind in a driver call does not keep a pipe open that someone reads to
    /// its end.
    Null,
}

/// Difference between the environments of a child and of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Prefixes of the variables to remove.
    pub without: Vec<&'static str>,
    /// Variables that are set.
    pub with: Vec<(OsString, OsString)>,
}

/// Options for starting a child.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Program to start, which is [`this_program`] except in tests.
    pub program: &'a Path,
    pub args: &'a [&'a str],
    pub environment: &'a Environment,
    pub stderr: Stderr,
    /// Set of children whose CPU time is counted together.
    pub children: Option<&'a Arc<ChildSet>>,
    /// Name of the thread that reads the child's frames.
    pub thread: &'a str,
}

/// Starts a program with the three descriptors above. Returns its process id, its control pipe and the reading
/// end of its frames.
pub(crate) fn start(launch: &Launch<'_>, shared: impl AsFd) -> io::Result<(i32, File, File)> {
    let (frames_read, frames_write) = io::pipe()?;
    let (control_read, control_write) = io::pipe()?;
    let shared = shared.as_fd().try_clone_to_owned()?;
    let mappings = vec![
        FdMapping { parent_fd: OwnedFd::from(frames_write), child_fd: FRAMES_FD },
        FdMapping { parent_fd: OwnedFd::from(control_read), child_fd: CONTROL_FD },
        FdMapping { parent_fd: shared, child_fd: SHARED_FD },
    ];
    #[expect(clippy::disallowed_methods, reason = "the one place that starts children")]
    let mut command = Command::new(launch.program);
    command
        .arg0("gpu-node-exporter")
        .args(launch.args)
        .stdin(Stdio::null())
        .process_group(0)
        // The notify socket and the watchdog belong only to the serving process.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .fd_mappings(mappings)
        .map_err(io::Error::other)?;
    let Environment { without, with } = launch.environment;
    for (name, _) in std::env::vars_os() {
        if without.iter().any(|begin| name.as_encoded_bytes().starts_with(begin.as_bytes())) {
            command.env_remove(name);
        }
    }
    command.envs(with.iter().map(|(name, value)| (name, value)));
    match launch.stderr {
        // Output of a vendor library must go nowhere but to the log.
        Stderr::Inherit => command.stdout(io::stderr().as_fd().try_clone_to_owned()?),
        Stderr::Null => command.stdout(Stdio::null()).stderr(Stdio::null()),
    };
    let process = command.spawn()?;
    let pid = i32::try_from(process.id()).map_err(io::Error::other)?;
    // The command still owns the child's ends; they must close here, or the stream would never end.
    drop(command);
    Ok((pid, File::from(OwnedFd::from(control_write)), File::from(OwnedFd::from(frames_read))))
}

/// Kills the child and the processes that it may have started. Only for a child that is in no driver call.
#[expect(clippy::disallowed_methods, reason = "the one place that kills; the supervisor asks first")]
pub(crate) fn kill(pid: i32) {
    if let Err(error) = killpg(Pid::from_raw(pid), Signal::SIGKILL) {
        tracing::warn!("failed to kill child process {pid}: {error}");
    }
}

/// Returns the exit status and the CPU time of a child if it has ended. Never waits.
fn wait4(pid: i32) -> io::Result<Option<(ExitStatus, Duration)>> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<nix::libc::rusage>::zeroed();
    // SAFETY: both pointers refer to memory of the right size that outlives the call.
    let ended = unsafe { nix::libc::wait4(pid, &mut status, nix::libc::WNOHANG, usage.as_mut_ptr()) };
    if ended < 0 {
        return Err(io::Error::last_os_error());
    }
    if ended == 0 {
        return Ok(None);
    }
    // SAFETY: the call has initialised it, and the zeroed value was valid before.
    let usage = unsafe { usage.assume_init() };
    let time = |t: nix::libc::timeval| {
        let (seconds, micros) = (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec));
        Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
    };
    Ok(Some((ExitStatus::from_raw(status), time(usage.ru_utime) + time(usage.ru_stime))))
}

/// Makes a child ignore the signals that are meant for the daemon or its terminal, so that only its control
/// pipe ends it.
pub fn ignore_signals() -> nix::Result<()> {
    [Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].into_iter().try_for_each(ignore)
}

/// Ignores a signal until a handler is installed for it.
pub fn ignore(number: Signal) -> nix::Result<()> {
    // SAFETY: SIG_IGN installs no handler that could run our code in a signal context.
    unsafe { signal(number, SigHandler::SigIgn) }.map(drop)
}

/// Restores the default handling of ended children. If SIGCHLD is ignored, their exit statuses are lost.
pub fn keep_ends_of_children() -> nix::Result<()> {
    // SAFETY: SIG_DFL installs no handler that could run our code in a signal context.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map(drop)
}

/// Ends this process with the signal that has ended its program, without a core dump of its own. If the signal
/// does not end this process, returns the exit code that shells use for it.
pub fn end_by(number: i32) -> u8 {
    use nix::sys::resource::{Resource, setrlimit};
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // SAFETY: SIG_DFL installs no handler that could run our code in a signal context. The signal is passed by
    // number, because real-time signals have no name.
    unsafe {
        nix::libc::signal(number, nix::libc::SIG_DFL);
        nix::libc::raise(number);
    }
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

/// Lowers the CPU priority of this thread and of threads that it starts later.
pub fn be_nice(by: i32) -> io::Result<()> {
    // SAFETY: touches no memory; 0 is the calling thread, which is the whole process so far.
    match unsafe { nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, by) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the inherited descriptors of a child: frames, control and shared memory. Call this only once. Fails
/// if a descriptor is not open.
pub fn inherited() -> io::Result<(File, File, File)> {
    use std::os::fd::FromRawFd;
    for fd in [FRAMES_FD, CONTROL_FD, SHARED_FD] {
        // SAFETY: F_SETFD on a number touches no memory, and fails if the descriptor is not open.
        if unsafe { nix::libc::fcntl(fd, nix::libc::F_SETFD, nix::libc::FD_CLOEXEC) } != 0 {
            let text = "this command is internal: it is started by `gpu-node-exporter serve`";
            return Err(io::Error::other(text));
        }
    }
    // SAFETY: the parent passed these three descriptors, and nothing else in this process owns them.
    unsafe { Ok((File::from_raw_fd(FRAMES_FD), File::from_raw_fd(CONTROL_FD), File::from_raw_fd(SHARED_FD))) }
}

/// Returns whether every thread of a process is stopped by a signal. A thread stops on its way out of the
/// kernel, so such a process is in no driver call, whatever its table shows.
pub fn all_stopped(pid: i32) -> bool {
    let Ok(tasks) = procfs::process::Process::new(pid).and_then(|p| p.tasks()) else { return false };
    let mut any = false;
    for task in tasks {
        match task.and_then(|t| t.stat()) {
            Ok(stat) if stat.state == 'T' => any = true,
            _ => return false,
        }
    }
    any
}

//! Starting and ending child processes safely.
//!
//! Children run from `/proc/self/exe` (the same build, also after an upgrade on disk), in a process group
//! of their own, and end when their control pipe closes. Ending a GPU client the hard way can wedge the
//! GPU (NVIDIA/dcgm-exporter issue 84), so a child is asked first, and killed only if it is in no driver
//! call; a child stuck in the driver is left to end by itself when the call returns.

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

/// Keeps the privileges that systemd has given this process (ambient capabilities) from the processes it starts: those
/// load the vendor's libraries, and none of them reads the kernel log or counts events on CPUs. This process keeps its
/// own. To be called before there are threads, because each has a set.
pub fn keep_privileges() {
    let clear = nix::libc::PR_CAP_AMBIENT_CLEAR_ALL as nix::libc::c_ulong;
    // SAFETY: takes numbers alone and changes nothing but the calling thread's set of ambient capabilities.
    if unsafe { nix::libc::prctl(nix::libc::PR_CAP_AMBIENT, clear, 0, 0, 0) } != 0 {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, "children may inherit ambient capabilities");
    }
}

/// This very program, also if the file on disk was replaced meanwhile.
pub fn this_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// The children of one kind: those alive, and the CPU time of those that have ended.
#[derive(Debug, Default)]
pub struct ChildSet(Mutex<(Vec<i32>, Duration)>);

impl ChildSet {
    /// Looks at the process ids of those alive and at the CPU time of those that have ended. None ends in between:
    /// what is known of all children together is one with it.
    pub fn look<T>(&self, look: impl FnOnce(&[i32], Duration) -> T) -> T {
        let times = lock(&self.0);
        look(&times.0, times.1)
    }

    pub(crate) fn add(&self, pid: i32) {
        lock(&self.0).0.push(pid);
    }

    /// How a child has ended, if it has. Never waits.
    pub(crate) fn ended(&self, pid: i32) -> io::Result<Option<ExitStatus>> {
        // Its time passes to the set in the same moment in which the kernel adds it to that of all children.
        let mut times = lock(&self.0);
        let Some((status, cpu)) = wait4(pid)? else { return Ok(None) };
        times.0.retain(|alive| *alive != pid);
        times.1 += cpu;
        Ok(Some(status))
    }
}

/// Where a child's standard error goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stderr {
    /// To our own standard error.
    Inherit,
    /// Nowhere. A child that is left behind in a driver call then holds no pipe open that a reader of ours reads
    /// to its end.
    Null,
}

/// The difference between a child's environment and ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Prefixes of the variables that are removed.
    pub without: Vec<&'static str>,
    /// Variables that are set.
    pub with: Vec<(OsString, OsString)>,
}

/// How a child is started.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The program: [`this_program`], but for tests.
    pub program: &'a Path,
    pub args: &'a [&'a str],
    pub environment: &'a Environment,
    pub stderr: Stderr,
    /// The children whose cost is counted together with this one's.
    pub children: Option<&'a Arc<ChildSet>>,
    /// Name of the thread that reads the child's frames.
    pub thread: &'a str,
}

/// Starts a program with the three descriptors above. Gives its process id, its control pipe and the reading end of its
/// frames.
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
        // The notify socket and the watchdog belong to the serving process alone.
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
        // A vendor library that prints must not reach anything but the log.
        Stderr::Inherit => command.stdout(io::stderr().as_fd().try_clone_to_owned()?),
        Stderr::Null => command.stdout(Stdio::null()).stderr(Stdio::null()),
    };
    let process = command.spawn()?;
    let pid = i32::try_from(process.id()).map_err(io::Error::other)?;
    // The command still owns the child's ends; they must close here, or the stream would never end.
    drop(command);
    Ok((pid, File::from(OwnedFd::from(control_write)), File::from(OwnedFd::from(frames_read))))
}

/// Kills the child and what it may have started. Only for a child that is in no driver call.
#[expect(clippy::disallowed_methods, reason = "the one place that kills; the supervisor asks first")]
pub(crate) fn kill(pid: i32) {
    if let Err(error) = killpg(Pid::from_raw(pid), Signal::SIGKILL) {
        tracing::warn!(pid, %error, "could not kill the process");
    }
}

/// How a child has ended and what CPU time it has used, if it has ended. Never waits.
fn wait4(pid: i32) -> io::Result<Option<(ExitStatus, Duration)>> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<nix::libc::rusage>::zeroed();
    // SAFETY: both pointers are to memory of the right size that lives over the call.
    let ended = unsafe { nix::libc::wait4(pid, &mut status, nix::libc::WNOHANG, usage.as_mut_ptr()) };
    if ended < 0 {
        return Err(io::Error::last_os_error());
    }
    if ended == 0 {
        return Ok(None);
    }
    // SAFETY: the call has filled it in; zeroed, it was valid before.
    let usage = unsafe { usage.assume_init() };
    let time = |t: nix::libc::timeval| {
        let (seconds, micros) = (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec));
        Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
    };
    Ok(Some((ExitStatus::from_raw(status), time(usage.ru_utime) + time(usage.ru_stime))))
}

/// What a child does first: it outlives the signals that are meant for the daemon or its terminal, and is
/// ended by its control pipe alone.
pub fn ignore_signals() -> nix::Result<()> {
    [Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].into_iter().try_for_each(ignore)
}

/// Ignores a signal, until a handler is installed for it.
pub fn ignore(number: Signal) -> nix::Result<()> {
    // SAFETY: SIG_IGN installs no handler that could run our code in a signal context.
    unsafe { signal(number, SigHandler::SigIgn) }.map(drop)
}

/// Restores what the kernel does at the end of a child: where that is ignored, how it ended is lost.
pub fn keep_ends_of_children() -> nix::Result<()> {
    // SAFETY: SIG_DFL installs no handler that could run our code in a signal context.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map(drop)
}

/// Ends this process by the signal that has ended its program, without a core of its own. Gives the exit code that shells have
/// for it where the signal does not end it.
pub fn end_by(number: i32) -> u8 {
    use nix::sys::resource::{Resource, setrlimit};
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // SAFETY: SIG_DFL installs no handler that could run our code in a signal context. By number, as real-time signals have no
    // name.
    unsafe {
        nix::libc::signal(number, nix::libc::SIG_DFL);
        nix::libc::raise(number);
    }
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

/// Leaves the CPU to others where there is not enough of it. Also of threads that this one starts later.
pub fn be_nice(by: i32) -> io::Result<()> {
    // SAFETY: touches no memory; 0 is the calling thread, which is the whole process so far.
    match unsafe { nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, by) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The inherited descriptors of a child: frames, control, shared memory. Call once.
pub fn inherited() -> io::Result<(File, File, File)> {
    use std::os::fd::FromRawFd;
    for fd in [FRAMES_FD, CONTROL_FD, SHARED_FD] {
        // SAFETY: F_SETFD on a number touches no memory, and fails if the descriptor is not open.
        if unsafe { nix::libc::fcntl(fd, nix::libc::F_SETFD, nix::libc::FD_CLOEXEC) } != 0 {
            let text = "this command is internal: it is started by `gpu-node-exporter serve`";
            return Err(io::Error::other(text));
        }
    }
    // SAFETY: the parent handed us these three descriptors and nothing else in this process owns them.
    unsafe { Ok((File::from_raw_fd(FRAMES_FD), File::from_raw_fd(CONTROL_FD), File::from_raw_fd(SHARED_FD))) }
}

/// Whether every thread of a process is stopped by a signal. A thread stops on its way out of the kernel,
/// so such a process is in no driver call, whatever its table says.
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

//! What is read of a process to find its owner. Everything here may wait: it runs in a helper thread.

use std::io;
use std::path::PathBuf;

use attribution::cgroup::{Membership, membership};
use attribution::environ::SlurmEnvironment;
use attribution::{cgroup, environ, proc, usage};
use host::Host;
use model::catalog::OwnerLookup;

/// Most bytes read of `/proc/PID/cgroup`.
const MOST_CGROUP_BYTES: u64 = 64 * 1024;

/// What was seen of a process.
#[derive(Debug)]
pub(super) struct LookedUp {
    /// When it was started, in clock ticks since boot.
    pub(super) started: u64,
    /// What its control groups say.
    pub(super) membership: Membership,
    /// Whether the group is there to be read.
    pub(super) group_exists: bool,
    /// The user it runs as.
    pub(super) user: Option<u32>,
}

/// What became of a look-up that failed like this.
pub(super) fn failed(error: &io::Error) -> OwnerLookup {
    match error.kind() {
        io::ErrorKind::NotFound => OwnerLookup::Gone,
        io::ErrorKind::PermissionDenied => OwnerLookup::Refused,
        // A process that ends while it is read: ESRCH.
        _ if error.raw_os_error() == Some(nix::libc::ESRCH) => OwnerLookup::Gone,
        _ => OwnerLookup::Malformed,
    }
}

/// The folder of a process.
pub(super) fn folder(host: &Host, pid: u32) -> PathBuf {
    host.path(format!("/proc/{pid}"))
}

/// Looks at a process.
pub(super) fn process(host: &Host, pid: u32) -> io::Result<LookedUp> {
    let folder = folder(host, pid);
    let before = proc::read_stat(&folder)?;
    let mut membership = membership(&proc::read(&folder.join("cgroup"), MOST_CGROUP_BYTES)?);
    let (user, _) = proc::read_status(&folder)?;
    // Another process may have got the number meanwhile.
    if proc::read_stat(&folder)?.started != before.started {
        return Err(io::ErrorKind::NotFound.into());
    }
    if membership.relative && !membership.path.is_empty() {
        let mut maybe = cgroup::absolute(&membership.path).into_iter();
        membership.path = maybe.find(|path| usage::exists(host, path)).unwrap_or_default();
    }
    let group_exists = !membership.path.is_empty() && usage::exists(host, &membership.path);
    Ok(LookedUp { started: before.started, membership, group_exists, user })
}

/// What a process's environment says. Reading it takes the lock of the process's memory map.
pub(super) fn environment(host: &Host, pid: u32) -> SlurmEnvironment {
    let path = folder(host, pid).join("environ");
    proc::read(&path, environ::MOST_BYTES as u64).map(|bytes| environ::said(&bytes)).unwrap_or_default()
}

//! Recognises the canary's processes on a GPU, which must not count as work.
//!
//! The daemon passes on the processes that it has started. A canary that was started by hand locks the lock
//! file of its GPU before it uses CUDA. Any user can lock that file, so the lock counts only for processes of
//! root and of the daemon's own user; otherwise a job could hide behind it. Process names and command lines do
//! not count, because a process can choose both and loses both when it ends.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use host::flock;

use crate::wire::CanaryProcess;

/// Maximum number of foreign processes remembered for one GPU; further ones are checked every time.
const MOST_KNOWN: usize = 4096;

/// Processes seen on one GPU, sorted into canaries and others.
#[derive(Debug, Default)]
pub(crate) struct CanaryPids {
    foreign: HashSet<u32>,
    /// Start times of canaries that were recognised by their lock. They are remembered because a canary
    /// releases the lock before the driver stops listing it.
    by_lock: HashMap<u32, u64>,
    seen: HashSet<u32>,
}

impl CanaryPids {
    /// Returns whether a process belongs to the canary. `started` has the processes that the daemon has
    /// started, and `lock` is the lock file of the GPU.
    pub fn is_canary(&mut self, pid: u32, started: &[CanaryProcess], lock: &Path) -> bool {
        self.seen.insert(pid);
        let of_daemon = started.iter().find(|one| one.pid == pid).map(|one| one.started);
        if let Some(known) = of_daemon.or_else(|| self.by_lock.get(&pid).copied()) {
            // The driver lists an ended process for a moment longer. A process with another start time has
            // reused the id.
            if flock::started(pid as i32).is_none_or(|now| now == known) {
                return true;
            }
            self.by_lock.remove(&pid);
        }
        if self.foreign.contains(&pid) {
            return false;
        }
        if let Some(start) = holds(lock, pid) {
            self.by_lock.insert(pid, start);
            return true;
        }
        if self.foreign.len() < MOST_KNOWN {
            self.foreign.insert(pid);
        }
        false
    }

    /// Ends a visit and forgets the processes that were not listed in it.
    pub fn visited(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.foreign.retain(|pid| seen.contains(pid));
        self.by_lock.retain(|pid, _| seen.contains(pid));
    }
}

/// Returns the start time of the process if it holds the lock and may be a canary.
fn holds(lock: &Path, pid: u32) -> Option<u64> {
    let file = fs::symlink_metadata(lock).ok().filter(fs::Metadata::is_file)?;
    if flock::holder(&file) != i32::try_from(pid).ok() {
        return None;
    }
    let user = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let trusted = user == 0 || user == nix::unistd::geteuid().as_raw();
    flock::started(pid as i32).filter(|_| trusted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{Flock, FlockArg};
    use std::fs::File;

    #[test]
    fn a_process_that_the_daemon_started_is_a_canary_also_when_it_is_gone() {
        let mut pids = CanaryPids::default();
        let none = Path::new("/nonexistent");
        let pid = std::process::id();
        let own = CanaryProcess { pid, started: flock::started(pid as i32).unwrap() };
        assert!(!pids.is_canary(pid, &[], none));
        assert!(pids.is_canary(pid, &[own], none), "also once it was taken for foreign");
        let other = CanaryProcess { started: own.started + 1, ..own };
        assert!(!pids.is_canary(pid, &[other], none), "another process with its id");
        let gone = CanaryProcess { pid: i32::MAX as u32, started: 1 };
        assert!(pids.is_canary(gone.pid, &[gone], none), "still listed");
    }

    #[test]
    fn the_holder_of_the_gpus_lock_is_a_canary_until_it_is_no_longer_listed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("canary.a.lock"), dir.path().join("canary.b.lock"));
        File::create(&other).unwrap();
        let held = Flock::lock(File::create(&path).unwrap(), FlockArg::LockExclusive).unwrap();
        let me = std::process::id();
        assert!(!CanaryPids::default().is_canary(me, &[], &other), "of another GPU");
        let mut pids = CanaryPids::default();
        assert!(pids.is_canary(me, &[], &path));
        drop(held);
        pids.visited();
        assert!(pids.is_canary(me, &[], &path), "it ends");
        pids.visited();
        pids.visited();
        assert!(!pids.is_canary(me, &[], &path));
        pids.visited();
        pids.visited();
        assert!(pids.foreign.is_empty() && pids.by_lock.is_empty());
    }
}

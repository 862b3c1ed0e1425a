//! Lock files of the canary, locked with flock(2). A run holds the interlock, and an administrator may hold it instead.
//! The process of a run also holds the lock of its GPU. The kernel releases that lock when the process exits, even if
//! the parent no longer exists, so that no second canary starts while one is hung.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use host::flock;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_NONBLOCK;

/// Mode with which all users may open the file and therefore lock it.
const MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// A lock that is released on drop.
pub type HeldLock = Flock<File>;

/// Acquires a lock and creates its file if it does not exist. Never waits. The error names the holder, or the reason why
/// locking failed.
pub fn acquire(path: &Path) -> Result<HeldLock, String> {
    let named = |error: io::Error| format!("failed to open {}: {error}", path.display());
    let file = open(path).map_err(named)?;
    let identity = file.metadata().map_err(named)?;
    if !identity.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, Errno::EWOULDBLOCK)) => Err(match holder(&identity) {
            Some(holder) => format!("{} is locked by {holder}", path.display()),
            None => format!("{} is locked by another process", path.display()),
        }),
        Err((_, error)) => Err(format!("failed to lock {}: {error}", path.display())),
    }
}

/// Returns an error if the lock is held.
pub fn free(path: &Path) -> Result<(), String> {
    acquire(path).map(drop)
}

/// Returns the canary process that holds the lock of any GPU, regardless of its parent.
pub fn gpu_holder(interlock: &Path) -> Option<String> {
    for entry in fs::read_dir(interlock.parent()?).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !flock::is_gpu_lock(interlock, &name) {
            continue;
        }
        let Ok(file) = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(entry.path()) else {
            continue;
        };
        let identity = file.metadata().ok();
        if let Err((_, Errno::EWOULDBLOCK)) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            let holder = identity.and_then(|identity| holder(&identity));
            return Some(holder.unwrap_or_else(|| "a process in another container".to_owned()));
        }
    }
    None
}

/// Opens the file, or creates it readable by all users. Read access is enough to lock another user's file.
fn open(path: &Path) -> io::Result<File> {
    // Opening a FIFO must not block.
    let reading = || OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path);
    match reading() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    }
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(path);
    match made {
        Ok(file) => {
            // The umask may have removed read access for other users.
            file.set_permissions(Permissions::from_mode(MODE))?;
            Ok(file)
        }
        // Another process created the file in the meantime.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => reading(),
        Err(error) => Err(error),
    }
}

/// Returns the holder of a lock on this file. The kernel hides processes of other PID namespaces.
fn holder(file: &fs::Metadata) -> Option<String> {
    let pid = flock::holder(file)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => Some(format!("process {pid}")),
        name => Some(format!("process {pid} ({name})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_and_the_other_gets_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/canary.lock");
        let held = acquire(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, MODE);
        let refused = acquire(&path).unwrap_err();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        drop(held);
        assert_eq!(free(&path), Ok(()));
        assert_eq!(free(&path), Ok(()), "looking leaves it free");
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        assert!(acquire(dir.path()).is_err());
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(acquire(&fifo).unwrap_err().contains("is not a regular file"));
        assert!(acquire(Path::new("/proc/nowhere/lock")).unwrap_err().starts_with("failed to open "));
    }

    #[test]
    fn a_gpu_in_a_canarys_hands_has_a_holder() {
        let dir = tempfile::tempdir().unwrap();
        let lock_file = dir.path().join("canary.lock");
        let _canary = acquire(&lock_file).unwrap();
        assert_eq!(gpu_holder(&lock_file), None, "the lock of all GPUs is none of a GPU");
        let path = flock::gpu_lock(&lock_file, "GPU-0");
        assert_eq!(path, dir.path().join("canary.GPU-0.lock"));
        let held = acquire(&path).unwrap();
        drop(acquire(&flock::gpu_lock(&lock_file, "GPU-1")).unwrap());
        let holder = gpu_holder(&lock_file).unwrap();
        assert!(holder.contains(&format!("process {}", std::process::id())), "{holder}");
        drop(held);
        assert_eq!(gpu_holder(&lock_file), None);
    }
}

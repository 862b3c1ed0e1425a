//! Names of the canaries' lock files, holders of flock(2) locks, and start times of processes. Holders and
//! start times are read from this machine's own `/proc` and not from the host root, because the processes share
//! the kernel with this one.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

/// Suffix of the lock file of a GPU.
const SUFFIX: &str = ".lock";

/// Returns the lock file of a GPU's canary, which is in the same folder as the lock file of all canaries.
pub fn gpu_lock(lock_file: &Path, uuid: &str) -> PathBuf {
    let uuid = uuid.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    lock_file.with_file_name(format!("{}{uuid}{SUFFIX}", prefix(lock_file)))
}

/// Returns whether a file in that folder has the name of a GPU's lock file.
pub fn is_gpu_lock(lock_file: &Path, name: &str) -> bool {
    let prefix = prefix(lock_file);
    name.len() >= prefix.len() + SUFFIX.len() && name.starts_with(&prefix) && name.ends_with(SUFFIX)
}

fn prefix(lock_file: &Path) -> String {
    format!("{}.", lock_file.file_stem().unwrap_or_default().to_string_lossy())
}

/// Returns the process that holds the lock of this file, or `None` if no process holds it or the holder is in
/// another PID namespace.
pub fn holder(file: &Metadata) -> Option<i32> {
    let look = || {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        holder_in(&locks, major(file.dev()), minor(file.dev()), file.ino())
    };
    // The kernel writes the list in pieces, so an entry may be missed while other locks change.
    look().or_else(look)
}

/// Finds the holder in the text of /proc/locks: `1: FLOCK  ADVISORY  WRITE 708 00:19:1172 0 EOF`.
fn holder_in(locks: &str, major: u64, minor: u64, inode: u64) -> Option<i32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // The line of a waiting process has an arrow before its kind.
            [_, "FLOCK", _, _, pid, of, ..] if of == file => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    })
}

/// Returns the start time of a process in clock ticks since boot, or `None` if it has ended. Takes no lock of
/// the process.
pub fn started(pid: i32) -> Option<u64> {
    Some(procfs::process::Process::new(pid).ok()?.stat().ok()?.starttime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:19:7 0 EOF\n2: FLOCK  ADVISORY  WRITE 708 00:19:7 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 709 00:19:8 0 EOF\n3: FLOCK  ADVISORY  WRITE 0 fe:01:9 0 EOF\n";
        assert_eq!(holder_in(locks, 0, 0x19, 7), Some(708));
        assert_eq!(holder_in(locks, 0, 0x19, 8), None, "it only waits");
        assert_eq!(holder_in(locks, 0xfe, 1, 9), None, "of another namespace");
    }

    #[test]
    fn a_process_has_its_start() {
        assert!(started(std::process::id() as i32).is_some());
        assert_eq!(started(i32::MAX), None);
    }
}

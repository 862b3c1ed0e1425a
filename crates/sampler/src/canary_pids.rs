//! The canary's processes on a GPU, which must not count as work.
//!
//! To read a command line the kernel waits for a lock of the process, and a process that is stuck in the driver may hold
//! that lock. So the command line is read only if the process's name, which takes no lock, can be a canary's.

use std::collections::HashSet;

use host::Host;
use model::canary::COMMAND;

/// The kernel's names of a canary: it runs from `/proc/self/exe`, or names itself as its first argument does.
const NAMES: [&str; 2] = ["exe", "gpu-node-export"];
/// Longest part of a command line that is read.
const MOST: u64 = 256;
/// Foreign processes of one GPU that are remembered; further ones are checked each time.
const MOST_KNOWN: usize = 4096;

/// The processes on one GPU, as far as known.
#[derive(Debug, Default)]
pub struct CanaryPids {
    /// Processes that are not a canary's. A canary's id is checked each time: the id may pass on to a foreign process.
    foreign: HashSet<u32>,
    /// Those of `foreign` that this visit has seen.
    seen: HashSet<u32>,
}

impl CanaryPids {
    /// Whether a process is one of the canary's.
    pub fn is_canary(&mut self, host: &Host, pid: u32) -> bool {
        if self.foreign.contains(&pid) {
            self.seen.insert(pid);
            return false;
        }
        let ours = is_canary(host, pid);
        if !ours && self.foreign.len() < MOST_KNOWN {
            self.foreign.insert(pid);
            self.seen.insert(pid);
        }
        ours
    }

    /// Ends a visit: forgets the processes that it has not seen.
    pub fn visited(&mut self) {
        self.foreign = std::mem::take(&mut self.seen);
    }
}

/// Whether a process has the name of a canary: asking takes no lock.
pub fn may_be_canary(host: &Host, pid: u32) -> bool {
    let name = std::fs::read(host.path(format!("/proc/{pid}/comm"))).unwrap_or_default();
    NAMES.iter().any(|known| name.trim_ascii_end() == known.as_bytes())
}

/// Whether a process is a canary's, of this daemon or another.
pub fn is_canary(host: &Host, pid: u32) -> bool {
    if !may_be_canary(host, pid) {
        return false;
    }
    let mut line = Vec::new();
    let read = std::fs::File::open(host.path(format!("/proc/{pid}/cmdline")))
        .and_then(|file| std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST), &mut line));
    // A process whose command line cannot be read counts as foreign.
    read.is_ok() && is_canary_line(&line)
}

/// Whether a command line, its arguments ended by zeros, is that of the canary.
fn is_canary_line(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == 0);
    let program = words.next().and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    program == Some(b"gpu-node-exporter") && words.next() == Some(COMMAND.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn process(root: &Path, pid: u32, name: &str, line: &str) {
        let folder = root.join(format!("proc/{pid}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        std::fs::write(folder.join("cmdline"), line).unwrap();
    }

    #[test]
    fn the_canary_is_known_by_its_command_line_and_no_other_process_is() {
        let root = tempfile::TempDir::new().unwrap();
        let host = Host::new(root.path());
        process(root.path(), 1, "exe", "gpu-node-exporter\0canary-child\0--log-level\0info\0");
        process(root.path(), 2, "exe", "gpu-node-exporter\0sampler\0");
        process(root.path(), 3, "python3", "gpu-node-exporter\0canary-child\0");
        process(root.path(), 4, "gpu-node-export", "/usr/bin/gpu-node-exporter\0canary-child\0");
        process(root.path(), 5, "exe", "");
        let mut pids = CanaryPids::default();
        let found: Vec<u32> = (1..=6).filter(|pid| pids.is_canary(&host, *pid)).collect();
        assert_eq!(found, [1, 4], "a process that has ended is no canary");
    }

    #[test]
    fn an_id_that_passed_on_hides_no_job() {
        let root = tempfile::TempDir::new().unwrap();
        let host = Host::new(root.path());
        let mut pids = CanaryPids::default();
        process(root.path(), 7, "exe", "gpu-node-exporter\0canary-child\0");
        assert!(pids.is_canary(&host, 7));
        pids.visited();
        process(root.path(), 7, "trainer", "trainer\0");
        assert!(!pids.is_canary(&host, 7), "at once");
        pids.visited();
        // A canary that gets the id of a job is known only when that job was seen to be gone.
        process(root.path(), 7, "exe", "gpu-node-exporter\0canary-child\0");
        assert!(!pids.is_canary(&host, 7));
        pids.visited();
        pids.visited();
        assert!(pids.is_canary(&host, 7));
        assert!(pids.foreign.is_empty());
    }

    proptest! {
        #[test]
        fn no_command_line_is_taken_for_the_canarys_but_its_own(line in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(is_canary_line(&line), line.starts_with(b"gpu-node-exporter\0canary-child\0"));
        }
    }
}

//! Start time, user, allowed CPUs and threads of a process. Parsing is pure; reading is for threads that may
//! wait ([`host::reader`]).

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use model::cpus::CpuSet;

/// Maximum number of bytes read of one file of a process.
const MOST_BYTES: u64 = 64 * 1024;

/// Fields of `/proc/PID/stat`, or of the same file of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Start time in clock ticks since boot.
    pub started: u64,
    /// CPU time (user and system) in clock ticks.
    pub ticks: u64,
    /// Part of `ticks` that was spent in the kernel.
    pub system_ticks: u64,
    /// Last CPU of the thread.
    pub cpu: Option<u32>,
}

/// Parses a `stat` file. Its second field is a name in brackets that can contain any byte.
pub fn stat(text: &[u8]) -> Option<Stat> {
    let rest = &text[text.iter().rposition(|byte| *byte == b')')? + 1..];
    let rest = str::from_utf8(rest).ok()?;
    // The first of these fields is the third of proc_pid_stat(5).
    let mut fields = rest.split_ascii_whitespace();
    let user: u64 = fields.nth(14 - 3)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let started = fields.nth(22 - 16)?.parse().ok()?;
    let cpu = fields.nth(39 - 23).and_then(|text| text.parse().ok());
    Some(Stat { started, ticks: user.saturating_add(system), system_ticks: system, cpu })
}

/// Parses the real user and the allowed CPUs of `/proc/PID/status`.
pub fn status(text: &[u8]) -> (Option<u32>, Option<CpuSet>) {
    let user = field(text, b"Uid:").and_then(|ids| ids.split_ascii_whitespace().next()?.parse().ok());
    let cpus = field(text, b"Cpus_allowed_list:").and_then(|list| list.trim().parse::<CpuSet>().ok());
    (user, cpus.filter(|cpus| !cpus.is_empty()))
}

fn field<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    str::from_utf8(line).ok()
}

/// Reads at most `most` bytes of a file.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads `stat` of a process or thread, given its folder.
pub fn read_stat(folder: &Path) -> io::Result<Stat> {
    let bytes = read(&folder.join("stat"), MOST_BYTES)?;
    stat(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a stat file"))
}

/// Reads `status` of a process, given its folder.
pub fn read_status(folder: &Path) -> io::Result<(Option<u32>, Option<CpuSet>)> {
    Ok(status(&read(&folder.join("status"), MOST_BYTES)?))
}

/// Reads the id of a process in its own PID namespace, given its folder.
pub fn read_own_pid(folder: &Path) -> io::Result<Option<u32>> {
    let text = read(&folder.join("status"), MOST_BYTES)?;
    Ok(field(&text, b"NSpid:").and_then(|pids| pids.split_ascii_whitespace().last()?.parse().ok()))
}

/// Reads `stat` of at most `most` threads of a process, given its folder.
pub fn read_threads(folder: &Path, most: usize) -> Vec<(u32, Stat)> {
    let tasks = fs::read_dir(folder.join("task")).into_iter().flatten().flatten().take(most);
    let thread = |task: fs::DirEntry| {
        let tid = task.file_name().to_str()?.parse().ok()?;
        // A thread that has just ended is left out.
        Some((tid, read_stat(&task.path()).ok()?))
    };
    tasks.filter_map(thread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A line as Linux 6.8 writes it, of a process with a hostile name.
    const LINE: &str = "42 (a) R 1 (\n) S 1 42 42 0 -1 4194560 9 0 0 0 120 30 0 0 20 0 7 0 12345 1 2 \
                        18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn a_process_is_read_whatever_its_name() {
        assert_eq!(
            stat(LINE.as_bytes()),
            Some(Stat { started: 12345, ticks: 150, system_ticks: 30, cpu: Some(5) })
        );
        assert_eq!(stat(b"42 (x) S 1"), None);
        let (user, cpus) = status(b"Name:\tx\nUid:\t1000\t0\t0\t0\nCpus_allowed_list:\t0-3,8\n");
        assert_eq!((user, cpus.map(|cpus| cpus.to_string())), (Some(1000), Some("0-3,8".into())));
        assert_eq!(field(b"Pid:\t9\nNSpid:\t4711\t17\n", b"NSpid:"), Some("\t4711\t17"));
    }

    #[test]
    fn this_process_is_read() {
        let me = Path::new("/proc/self");
        let own = read_stat(me).unwrap();
        let procfs = procfs::process::Process::myself().unwrap().stat().unwrap();
        assert_eq!(own.started, procfs.starttime);
        assert!(read_status(me).unwrap().1.is_some());
        assert_eq!(read_own_pid(me).unwrap(), Some(std::process::id()));
        let threads = read_threads(me, 256);
        assert!(threads.iter().any(|(tid, _)| *tid == std::process::id()) && threads[0].1.cpu.is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (stat(&bytes), status(&bytes), field(&bytes, b"NSpid:"));
        }
    }
}

//! Processes of canaries that another daemon or command has left behind in the driver: none of ours is started
//! beside one of them. They are found by their command line, because one that hangs early is on no GPU's list.
//!
//! To tell command line and environment the kernel waits for a lock that a process stuck in the driver may hold. So
//! only those are asked whose name can be a canary's, and by a thread that nobody waits for.

use std::fs::{self, File};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use host::Host;
use model::canary::Place;
use sampler::{is_canary, may_be_canary};

/// The begin of an environment that is looked at, bytes.
const ENVIRONMENT: u64 = 256 * 1024;
const DEVICES: &[u8] = b"CUDA_VISIBLE_DEVICES=";
/// Longer than a process that is well takes to be asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks for them.
#[derive(Debug, Default)]
pub struct Search {
    /// The process that is being asked, 0 for none.
    asking: Arc<AtomicI32>,
}

impl Search {
    /// A canary's process on a GPU, by the host's list of processes; `uuids` are the GPU's and its instances'. One
    /// that does not tell where it is may be on any. Processes in `ours` are passed over: they are known.
    pub fn on(&self, host: &Host, uuids: Vec<String>, ours: Vec<i32>) -> Option<i32> {
        self.find(host, Some(uuids), ours)
    }

    /// A canary's process of anybody on any GPU.
    pub fn anywhere(&self, host: &Host) -> Option<i32> {
        self.find(host, None, Vec::new())
    }

    fn find(&self, host: &Host, uuids: Option<Vec<String>>, ours: Vec<i32>) -> Option<i32> {
        // One that did not answer earlier still does not: no thread is spent on it again.
        if let Some(silent) = self.asked() {
            return Some(silent);
        }
        let (sender, found) = sync_channel(1);
        let (asking, host) = (Arc::clone(&self.asking), host.clone());
        let look = move || {
            // Nobody may listen any more.
            let _ = sender.send(scan(&host, uuids.as_deref(), &ours, &asking));
        };
        if let Err(error) = std::thread::Builder::new().name("canary-strays".into()).spawn(look) {
            tracing::warn!(%error, "no thread to look for canaries of others");
            return Some(0);
        }
        loop {
            match found.recv_timeout(PATIENCE) {
                Ok(found) => return found,
                Err(RecvTimeoutError::Disconnected) => return Some(0),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(silent) = self.asked() {
                        return Some(silent);
                    }
                }
            }
        }
    }

    fn asked(&self) -> Option<i32> {
        Some(self.asking.load(Ordering::Acquire)).filter(|pid| *pid != 0)
    }
}

fn scan(host: &Host, uuids: Option<&[String]>, ours: &[i32], asking: &AtomicI32) -> Option<i32> {
    for entry in fs::read_dir(host.path("/proc")).ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if ours.contains(&pid) || !may_be_canary(host, pid.unsigned_abs()) {
            continue;
        }
        asking.store(pid, Ordering::Release);
        let there = is_canary(host, pid.unsigned_abs()) && uuids.is_none_or(|uuids| is_on(host, pid, uuids));
        asking.store(0, Ordering::Release);
        if there {
            return Some(pid);
        }
    }
    None
}

/// The UUIDs by which CUDA may know the GPUs of these places.
pub fn uuids<'a>(places: impl IntoIterator<Item = &'a Place>) -> Vec<String> {
    let of = |place: &Place| {
        let instance = place.instance.as_ref().map(|instance| instance.mig_uuid.clone());
        [Some(place.gpu.uuid.to_string()), instance].into_iter().flatten()
    };
    places.into_iter().flat_map(of).collect()
}

fn is_on(host: &Host, pid: i32, uuids: &[String]) -> bool {
    devices(host, pid)
        .is_none_or(|seen| seen.split(',').any(|device| uuids.iter().any(|uuid| uuid == device)))
}

/// What it was told to see, where we may look.
fn devices(host: &Host, pid: i32) -> Option<String> {
    let mut environment = Vec::new();
    let file = File::open(host.path(format!("/proc/{pid}/environ"))).ok()?;
    file.take(ENVIRONMENT).read_to_end(&mut environment).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|word| word.strip_prefix(DEVICES))?;
    String::from_utf8(value.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Proc {
        root: tempfile::TempDir,
    }

    impl Proc {
        fn new() -> Proc {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("proc")).unwrap();
            Proc { root }
        }

        fn process(&self, pid: i32, name: &str, cmdline: &[u8], environ: &[u8]) {
            let folder = self.root.path().join(format!("proc/{pid}"));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
            fs::write(folder.join("cmdline"), cmdline).unwrap();
            fs::write(folder.join("environ"), environ).unwrap();
        }

        fn host(&self) -> Host {
            Host::new(self.root.path())
        }
    }

    const CANARY: &[u8] = b"gpu-node-exporter\0canary-child\0";

    #[test]
    fn only_canaries_of_others_on_this_gpu_are_found() {
        let proc = Proc::new();
        proc.process(1, "exe", b"gpu-node-exporter\0serve\0", b"CUDA_VISIBLE_DEVICES=GPU-0\0");
        proc.process(2, "exe", b"", b"");
        proc.process(3, "exe", CANARY, b"A=b\0CUDA_VISIBLE_DEVICES=GPU-1,GPU-2\0");
        fs::create_dir(proc.root.path().join("proc/self")).unwrap();
        let search = Search::default();
        let on = |uuid: &str, ours: &[i32]| search.on(&proc.host(), vec![uuid.to_owned()], ours.to_vec());
        assert_eq!((on("GPU-0", &[]), on("GPU-2", &[]), on("GPU-1", &[])), (None, Some(3), Some(3)));
        assert_eq!(on("GPU-1", &[3]), None, "ours are known");
        assert_eq!(search.anywhere(&proc.host()), Some(3));
        proc.process(4, "exe", CANARY, b"A=b\0");
        assert_eq!(on("GPU-0", &[]), Some(4), "it may be there");
    }

    #[test]
    fn nobody_is_waited_for_and_only_who_may_be_a_canary_is_asked() {
        let proc = Proc::new();
        // A FIFO that nobody writes: as a process whose lock is held, it is opened and never read.
        let silent = |pid: i32, name: &str| {
            proc.process(pid, name, b"", b"");
            let line = proc.root.path().join(format!("proc/{pid}/cmdline"));
            fs::remove_file(&line).unwrap();
            nix::unistd::mkfifo(&line, nix::sys::stat::Mode::S_IRWXU).unwrap();
            line
        };
        silent(5, "trainer");
        let search = Search::default();
        let on = || search.on(&proc.host(), vec!["GPU-0".to_owned()], Vec::new());
        assert_eq!(on(), None, "a job that is stuck is not asked");
        let line = silent(6, "exe");
        assert_eq!((on(), on()), (Some(6), Some(6)), "it may be a canary");
        // Its end: the thread that asked is free again.
        drop(fs::OpenOptions::new().write(true).open(line).unwrap());
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while search.asked().is_some() {
            assert!(std::time::Instant::now() < deadline, "it is still being asked");
            std::thread::yield_now();
        }
    }
}

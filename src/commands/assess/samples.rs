//! Samples of the CPU time with the kernel's `cpu-clock`, which needs no PMU. The frame pointers give the
//! caller.

use std::collections::{BTreeSet, HashMap};
use std::io;

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};

use model::cpus::CpuSet;

use super::counters::Watched;
use super::maps::{AddressSpaces, CodePlace};
use host::Host;

/// Samples per second of CPU time. Not 100, which could be in step with the program's own timer.
pub(crate) const HERTZ: u64 = 99;
/// Buffer size per CPU in bytes, for half a second of samples with the deepest stacks.
const BUFFER: usize = 64 * 1024;
/// Maximum number of distinct places. The code of a program has fewer.
const MOST_PLACES: usize = 200_000;
/// Lowest value of the markers in a stack that announce kernel or user frames (`PERF_CONTEXT_MAX`).
const CONTEXT: u64 = u64::MAX - 4094;
/// CPU mode in the header of a record (`PERF_RECORD_MISC_CPUMODE_MASK`), and its value for the kernel.
const MODE_MASK: u16 = 7;
const MODE_KERNEL: u16 = 1;

/// Flag of an exec in the header of a name record (`PERF_RECORD_MISC_COMM_EXEC`).
const COMM_EXEC: u16 = 1 << 13;

/// Samplers of all CPUs.
pub(crate) struct CpuClock {
    samplers: Vec<Sampler>,
    replay: ClockReplay,
}

/// Replays the records of all CPUs in the order of their times.
#[derive(Debug, Default)]
struct ClockReplay {
    spaces: AddressSpaces,
    /// Watched processes; `None` for all.
    pids: Option<BTreeSet<u32>>,
    /// Number of threads per process; a process without an entry has one. The first thread may exit before
    /// the others.
    threads: HashMap<u32, u32>,
    profile: ClockProfile,
    /// Records that are not replayed yet, with their times.
    pending: Vec<(u64, ClockEvent)>,
    /// Newest time of the previous round. All records up to this time have arrived, because every buffer was
    /// read since.
    complete: u64,
}

#[derive(Debug)]
enum ClockEvent {
    Fork { pid: u32, parent: u32 },
    Thread { pid: u32 },
    Exec { pid: u32 },
    Map { pid: u32, start: u64, length: u64, offset: u64, file: String, inode: u64 },
    Sample(ClockSample),
    Exit { pid: u32 },
}

/// Samples of all rounds so far.
#[derive(Debug, Default)]
pub(crate) struct ClockProfile {
    /// Samples by place and place of the caller.
    pub places: HashMap<(CodePlace, Option<CodePlace>), u64>,
    pub samples: u64,
    pub lost: u64,
    pub with_kernel: bool,
}

#[derive(Debug)]
struct ClockSample {
    pid: u32,
    in_kernel: bool,
    ip: u64,
    caller: Option<u64>,
}

impl CpuClock {
    /// Opens a sampler on every CPU, including time in the kernel if that is permitted.
    pub fn open(watched: Watched<'_>, cpus: &CpuSet) -> io::Result<CpuClock> {
        if cpus.is_empty() {
            return Err(io::Error::other("the online CPUs are unknown"));
        }
        let open = |with_kernel: bool| -> io::Result<Vec<Sampler>> {
            cpus.iter().map(|cpu| open_on(watched, cpu, with_kernel)).collect()
        };
        let (samplers, with_kernel) = match open(true) {
            Ok(samplers) => (samplers, true),
            Err(_) => (open(false)?, false),
        };
        let profile = ClockProfile { with_kernel, ..ClockProfile::default() };
        Ok(CpuClock { samplers, replay: ClockReplay { profile, ..ClockReplay::default() } })
    }

    /// Starts the samplers of running processes and their children.
    pub fn start(&mut self, pids: &[u32], root: &Host) -> io::Result<()> {
        for pid in pids {
            self.replay.spaces.read_maps(*pid, root)?;
            let threads = super::threads(root, i32::try_from(*pid).unwrap_or(0));
            self.replay.threads.insert(*pid, u32::try_from(threads).unwrap_or(u32::MAX).max(1));
        }
        self.replay.pids = Some(pids.iter().copied().collect());
        self.samplers.iter_mut().try_for_each(|sampler| sampler.as_counter_mut().enable())
    }

    /// Reads the buffers, and opens the files of running processes.
    pub fn drain(&mut self, root: &Host) {
        self.read_buffers();
        self.replay.spaces.open_new(root);
    }

    fn read_buffers(&mut self) {
        for sampler in &mut self.samplers {
            while let Some(record) = sampler.next_record() {
                let (misc, bytes) = (record.misc(), record.to_contiguous());
                // The time is the last field of every record except samples (`sample_id_all`).
                let time = bytes.last_chunk().map_or(0, |last| u64::from_ne_bytes(*last));
                let event = match record.parse_record() {
                    Ok(Record::Fork(fork)) if fork.pid == fork.ppid => ClockEvent::Thread { pid: fork.pid },
                    Ok(Record::Fork(fork)) => ClockEvent::Fork { pid: fork.pid, parent: fork.ppid },
                    Ok(Record::Exit(exit)) => ClockEvent::Exit { pid: exit.pid },
                    Ok(Record::Comm(comm)) if misc & COMM_EXEC != 0 => ClockEvent::Exec { pid: comm.pid },
                    Ok(Record::Mmap2(map)) => ClockEvent::Map {
                        pid: map.pid,
                        start: map.addr,
                        length: map.len,
                        offset: map.pgoff,
                        file: String::from_utf8_lossy(&map.filename).trim_end_matches('\0').to_owned(),
                        inode: map.ino().unwrap_or(0),
                    },
                    Ok(Record::Sample(sample)) => {
                        let (Some(ip), Some(pid)) = (sample.ip(), sample.pid()) else { continue };
                        let in_kernel = misc & MODE_MASK == MODE_KERNEL;
                        let frames = sample.callchain().unwrap_or_default();
                        let mut frames = frames.iter().copied().filter(|frame| *frame < CONTEXT);
                        // The first frame is the sampled place. A return address is the instruction after the
                        // call.
                        let caller = match in_kernel {
                            true => frames.next(),
                            false => frames.nth(1).map(|at| at.saturating_sub(1)),
                        };
                        let caller = caller.filter(|at| *at > 0);
                        let event = ClockEvent::Sample(ClockSample { pid, in_kernel, ip, caller });
                        self.replay.pending.push((sample.time().unwrap_or(0), event));
                        continue;
                    }
                    record => {
                        self.replay.profile.lost += match record {
                            Ok(Record::Lost(lost)) => lost.lost,
                            Ok(Record::LostSamples(lost)) => lost.lost,
                            _ => 0,
                        };
                        continue;
                    }
                };
                self.replay.pending.push((time, event));
            }
        }
        self.replay.round();
    }

    /// Returns all samples, with the mappings that name their places.
    pub fn finish(mut self) -> (AddressSpaces, ClockProfile) {
        self.read_buffers();
        self.replay.until(u64::MAX);
        (self.replay.spaces, self.replay.profile)
    }
}

impl ClockReplay {
    /// Ends a round in which every buffer was read.
    fn round(&mut self) {
        let newest = self.pending.iter().map(|(time, _)| *time).max();
        self.until(self.complete);
        self.complete = newest.unwrap_or(self.complete).max(self.complete);
    }

    /// Replays the records up to a time.
    fn until(&mut self, limit: u64) {
        self.pending.sort_by_key(|(time, _)| *time);
        let count = self.pending.partition_point(|(time, _)| *time <= limit);
        let later = self.pending.split_off(count);
        for (_, event) in std::mem::replace(&mut self.pending, later) {
            self.apply(event);
        }
    }

    fn apply(&mut self, event: ClockEvent) {
        match event {
            ClockEvent::Fork { pid, parent } => {
                self.spaces.fork(parent, pid);
                if let Some(pids) = self.pids.as_mut().filter(|pids| pids.contains(&parent)) {
                    pids.insert(pid);
                }
            }
            ClockEvent::Thread { pid } if self.is_watched(pid) => {
                *self.threads.entry(pid).or_insert(1) += 1;
            }
            ClockEvent::Exec { pid } => {
                self.spaces.forget(pid);
                self.threads.remove(&pid);
            }
            ClockEvent::Map { pid, start, length, offset, file, inode } if self.is_watched(pid) => {
                self.spaces.map(pid, start, length, offset, &file, inode);
            }
            ClockEvent::Sample(sample) if self.is_watched(sample.pid) => self.count(&sample),
            // The next process may reuse the process ID.
            ClockEvent::Exit { pid } if self.is_watched(pid) => {
                let left = self.threads.get(&pid).map_or(0, |threads| threads.saturating_sub(1));
                if left > 0 {
                    self.threads.insert(pid, left);
                    return;
                }
                self.threads.remove(&pid);
                self.spaces.forget(pid);
                if let Some(pids) = &mut self.pids {
                    pids.remove(&pid);
                }
            }
            _ => {}
        }
    }

    fn is_watched(&self, pid: u32) -> bool {
        self.pids.as_ref().is_none_or(|pids| pids.contains(&pid))
    }

    fn count(&mut self, sample: &ClockSample) {
        let place = match sample.in_kernel {
            true => CodePlace::KERNEL,
            false => self.spaces.place(sample.pid, sample.ip),
        };
        let caller = sample.caller.map(|at| self.spaces.place(sample.pid, at));
        let profile = &mut self.profile;
        profile.samples += 1;
        let known = profile.places.len() < MOST_PLACES || profile.places.contains_key(&(place, caller));
        let key = if known { (place, caller) } else { (CodePlace::UNKNOWN, None) };
        *profile.places.entry(key).or_default() += 1;
    }
}

fn open_on(watched: Watched<'_>, cpu: u32, with_kernel: bool) -> io::Result<Sampler> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    builder
        .one_cpu(usize::try_from(cpu).unwrap_or(usize::MAX))
        .sample_frequency(HERTZ)
        .sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CALLCHAIN)
        .sample_id_all(true)
        .exclude_kernel(!with_kernel)
        .exclude_callchain_kernel(true)
        .mmap(true)
        .mmap2(true)
        .comm(true)
        .comm_exec(true)
        .task(true);
    match watched {
        Watched::NextProgram => builder.observe_self().inherit(true).enable_on_exec(true),
        Watched::Threads(_) => builder.any_pid(),
    };
    let ring = builder.build()?.sampled(BUFFER);
    // The kernel permitted the event, but not its buffer.
    ring.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => io::Error::other(NO_MEMORY_TO_LOCK),
        _ => error,
    })
}

/// Reason for missing samples.
const NO_MEMORY_TO_LOCK: &str =
    "the buffers exceed the memory that this user may lock: raise kernel.perf_event_mlock_kb or `ulimit -l`";

/// Reason for missing time in the kernel.
pub(crate) const WITHOUT_KERNEL: &str = "not permitted, so the shares of functions refer to time in the program's own code; run as root or with CAP_PERFMON";

#[cfg(test)]
mod tests {
    use super::super::maps::FIRST_FILE;
    use super::*;

    fn map(pid: u32, file: &str) -> ClockEvent {
        ClockEvent::Map { pid, start: 0x1000, length: 0x1000, offset: 0, file: file.into(), inode: 1 }
    }

    fn sample(pid: u32) -> ClockEvent {
        ClockEvent::Sample(ClockSample { pid, in_kernel: false, ip: 0x1100, caller: None })
    }

    /// Samples by file, after rounds of events with their times.
    fn replayed(pids: Option<&[u32]>, rounds: Vec<Vec<(u64, ClockEvent)>>) -> Vec<(u32, u64)> {
        let pids = pids.map(|pids| pids.iter().copied().collect());
        let mut replay = ClockReplay { pids, ..ClockReplay::default() };
        for events in rounds {
            replay.pending.extend(events);
            replay.round();
        }
        replay.until(u64::MAX);
        assert!(replay.threads.is_empty(), "{replay:?}");
        let mut files: Vec<(u32, u64)> =
            replay.profile.places.iter().map(|((place, _), count)| (place.file, *count)).collect();
        files.sort_unstable();
        files
    }

    #[test]
    fn a_fork_without_exec_has_the_names_of_its_parent() {
        // The buffer of the child's CPU is read first, and all of it in one round.
        let fork = ClockEvent::Fork { pid: 2, parent: 1 };
        let round =
            vec![(30, sample(2)), (40, ClockEvent::Exit { pid: 2 }), (20, fork), (10, map(1, "/bin/a"))];
        assert_eq!(replayed(None, vec![round]), [(FIRST_FILE, 1)]);
        // The fork is seen a round after what followed it.
        let fork = ClockEvent::Fork { pid: 2, parent: 1 };
        let rounds = vec![vec![(10, map(1, "/bin/a")), (30, sample(2))], vec![(20, fork)]];
        assert_eq!(replayed(None, rounds), [(FIRST_FILE, 1)]);
    }

    #[test]
    fn an_exec_has_none_of_the_mappings_before() {
        let exec = ClockEvent::Exec { pid: 1 };
        let events = vec![(1, map(1, "/bin/a")), (2, sample(1)), (3, exec), (4, sample(1))];
        assert_eq!(replayed(None, vec![events]), [(CodePlace::UNKNOWN.file, 1), (FIRST_FILE, 1)]);
    }

    #[test]
    fn a_process_lives_as_long_as_a_thread_and_its_number_not_longer() {
        let exit = || ClockEvent::Exit { pid: 1 };
        let events = vec![
            (1, map(1, "/bin/a")),
            (2, ClockEvent::Thread { pid: 1 }),
            (3, exit()),
            (4, sample(1)),
            (5, exit()),
            (6, sample(1)),
        ];
        // Of an owner, the process with the number of one that ended is another's.
        assert_eq!(replayed(Some(&[1]), vec![events]), [(FIRST_FILE, 1)]);
    }
}

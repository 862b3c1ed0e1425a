//! Where a program spends its CPU time: samples of the kernel's `cpu-clock`, which needs no PMU, with the caller by frame
//! pointers.

use std::collections::{BTreeSet, HashMap};
use std::io;

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};

use model::cpus::CpuSet;

use super::counters::Watched;
use super::maps::{AddressSpaces, CodePlace};

/// Samples a second of CPU time: not 100, which could beat with the program's own clock.
pub const HERTZ: u64 = 99;
/// Bytes of the buffer of a CPU: half a second of samples with the deepest stacks.
const BUFFER: usize = 64 * 1024;
/// Most different places that are kept; the code of a program has fewer.
const MOST_PLACES: usize = 200_000;
/// What the kernel mixes into a stack to say whose frames follow (`PERF_CONTEXT_MAX`).
const CONTEXT: u64 = u64::MAX - 4094;
/// Mode of the CPU in a record's header (`PERF_RECORD_MISC_CPUMODE_MASK`), and that of the kernel.
const MODE_MASK: u16 = 7;
const MODE_KERNEL: u16 = 1;

/// Samples of what is watched.
pub struct CpuClock {
    samplers: Vec<Sampler>,
    pub spaces: AddressSpaces,
    /// Processes that are watched; `None`: all that are seen.
    pids: Option<BTreeSet<u32>>,
    pub profile: ClockProfile,
}

/// What was sampled so far.
#[derive(Debug, Default)]
pub struct ClockProfile {
    /// By place and the place of its caller.
    pub places: HashMap<(CodePlace, Option<CodePlace>), u64>,
    pub samples: u64,
    pub lost: u64,
    pub with_kernel: bool,
}

struct ClockSample {
    pid: u32,
    in_kernel: bool,
    ip: u64,
    caller: Option<u64>,
}

impl CpuClock {
    /// Opens a sampler on each CPU: with time in the kernel where that is permitted, else without.
    pub fn open(watched: Watched<'_>, cpus: &CpuSet) -> io::Result<CpuClock> {
        if cpus.is_empty() {
            return Err(io::Error::other("the online CPUs are not known"));
        }
        let open = |with_kernel: bool| -> io::Result<Vec<Sampler>> {
            cpus.iter().map(|cpu| open_on(watched, cpu, with_kernel)).collect()
        };
        let (samplers, with_kernel) = match open(true) {
            Ok(samplers) => (samplers, true),
            Err(_) => (open(false)?, false),
        };
        let profile = ClockProfile { with_kernel, ..ClockProfile::default() };
        Ok(CpuClock { samplers, spaces: AddressSpaces::default(), pids: None, profile })
    }

    /// Starts samplers of what runs already: of these processes and their children alone.
    pub fn start(&mut self, pids: &[u32], root: &host::Host) -> io::Result<()> {
        for pid in pids {
            self.spaces.read_maps(*pid, root);
        }
        self.pids = Some(pids.iter().copied().collect());
        self.samplers.iter_mut().try_for_each(|sampler| sampler.as_counter_mut().enable())
    }

    /// Takes what the buffers hold. Forks come first, then maps, then samples: the buffers of the CPUs have no common order.
    pub fn drain(&mut self) {
        let (mut forks, mut exits, mut samples) = (Vec::new(), Vec::new(), Vec::new());
        let mut maps: Vec<(u32, u64, u64, u64, String)> = Vec::new();
        for sampler in &mut self.samplers {
            while let Some(record) = sampler.next_record() {
                let in_kernel = record.misc() & MODE_MASK == MODE_KERNEL;
                match record.parse_record() {
                    Ok(Record::Fork(fork)) if fork.pid != fork.ppid => {
                        forks.push((fork.time, fork.pid, fork.ppid))
                    }
                    Ok(Record::Exit(exit)) if exit.pid == exit.tid => exits.push(exit.pid),
                    Ok(Record::Mmap2(map)) => {
                        let file = String::from_utf8_lossy(&map.filename).trim_end_matches('\0').to_owned();
                        maps.push((map.pid, map.addr, map.len, map.pgoff, file));
                    }
                    Ok(Record::Sample(sample)) => {
                        let (Some(ip), Some(pid)) = (sample.ip(), sample.pid()) else { continue };
                        let frames = sample.callchain().unwrap_or_default();
                        let mut frames = frames.iter().copied().filter(|frame| *frame < CONTEXT);
                        // The first frame is the place itself; a return address is behind the call.
                        let caller = if in_kernel {
                            frames.next()
                        } else {
                            frames.nth(1).map(|at| at.saturating_sub(1))
                        };
                        samples.push(ClockSample { pid, in_kernel, ip, caller: caller.filter(|at| *at > 0) });
                    }
                    Ok(Record::Lost(lost)) => self.profile.lost += lost.lost,
                    Ok(Record::LostSamples(lost)) => self.profile.lost += lost.lost,
                    _ => {}
                }
            }
        }
        forks.sort_unstable();
        for (_, pid, parent) in forks {
            self.spaces.fork(parent, pid);
            if let Some(pids) = self.pids.as_mut().filter(|pids| pids.contains(&parent)) {
                pids.insert(pid);
            }
        }
        for (pid, start, length, offset, file) in maps {
            if self.pids.as_ref().is_none_or(|pids| pids.contains(&pid)) {
                self.spaces.map(pid, start, length, offset, &file);
            }
        }
        for sample in samples {
            self.count(&sample);
        }
        for pid in exits {
            self.spaces.forget(pid);
        }
    }

    fn count(&mut self, sample: &ClockSample) {
        if self.pids.as_ref().is_some_and(|pids| !pids.contains(&sample.pid)) {
            return;
        }
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
        .sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::CALLCHAIN)
        .exclude_kernel(!with_kernel)
        .exclude_callchain_kernel(true)
        .mmap(true)
        .mmap2(true)
        .task(true);
    match watched {
        Watched::NextProgram => builder.observe_self().inherit(true).enable_on_exec(true),
        Watched::Threads(_) => builder.any_pid(),
    };
    builder.build()?.sampled(BUFFER)
}

/// Why time in the kernel is not among the samples.
pub const WITHOUT_KERNEL: &str = "not permitted: shares of functions are of the time in the program's own code; run as root or with CAP_PERFMON";

//! Perf events of the kernel; the only user of `perf_event_open(2)` in the daemon. Events are counted and never
//! sampled, so the only thing read about a process is how often an event happened.
//!
//! The counters of a CPU form groups, and one `read(2)` returns a whole group. A read of running counters interrupts
//! their CPU, so grouping also reduces the interrupts from one per event to one per group.

use nix::errno::Errno;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Raw, Software};
use perf_event::{Builder, Counter, ReadFormat};

use super::backend::{CounterBackend, CounterGroup, CounterScope, GroupReading, Refusal};
use host::Host;
use model::catalog::PerfEvent;
use model::clock::nanos;

/// Event code of FP_ARITH_INST_RETIRED. Its unit masks select the width (Intel SDM volume 3B, chapter 20; perfmon event
/// lists of Broadwell and of all Xeon Scalable models).
const FP_ARITH: u64 = 0xc7;

/// Processor, as far as its events differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    Intel {
        /// Whether 0xc7 is known to be FP_ARITH_INST_RETIRED on this model.
        fp: bool,
        /// Whether it has 512-bit registers.
        wide: bool,
    },
    Other,
}

impl Processor {
    /// Parses the text of `/proc/cpuinfo`.
    pub(crate) fn parse(cpuinfo: &str) -> Processor {
        let field = |name: &str| {
            let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.into_iter().find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
        };
        if field("vendor_id") != "GenuineIntel" {
            return Processor::Other;
        }
        let has = |flag: &str| field("flags").split_whitespace().any(|known| known == flag);
        // Broadwell is recognised by model number, and all later Xeons by AVX-512, which otherwise only Xeon Phi has
        // (together with avx512er). The same code may mean something else on other models, such as the small cores.
        let broadwell = matches!(field("model"), "61" | "71" | "79" | "86");
        let wide = has("avx512f") && !has("avx512er");
        Processor::Intel { fp: field("cpu family") == "6" && (broadwell || wide), wide }
    }

    /// Reads the processor of this machine.
    pub fn of_host(host: &Host) -> Processor {
        Processor::parse(&std::fs::read_to_string(host.path("/proc/cpuinfo")).unwrap_or_default())
    }

    /// Returns the kernel's code for an event on this processor.
    fn config(self, event: PerfEvent) -> Result<PerfConfig, Refusal> {
        use PerfEvent::*;
        // The kernel's generic cache events count the last level only on Intel. They count L2 on AMD and L1 on Arm, so
        // other processors use the named last-level event, which not all of them have.
        let last_level = |hardware, result| match self {
            Processor::Intel { .. } => PerfConfig::Hardware(hardware),
            Processor::Other => PerfConfig::Cache(CacheId::LL, result),
        };
        Ok(match event {
            ContextSwitches => PerfConfig::Software(Software::CONTEXT_SWITCHES),
            CpuMigrations => PerfConfig::Software(Software::CPU_MIGRATIONS),
            PageFaults => PerfConfig::Software(Software::PAGE_FAULTS),
            MajorFaults => PerfConfig::Software(Software::PAGE_FAULTS_MAJ),
            Cycles => PerfConfig::Hardware(Hardware::CPU_CYCLES),
            Instructions => PerfConfig::Hardware(Hardware::INSTRUCTIONS),
            LlcMisses => last_level(Hardware::CACHE_MISSES, CacheResult::MISS),
            LlcReferences => last_level(Hardware::CACHE_REFERENCES, CacheResult::ACCESS),
            BranchMisses => PerfConfig::Hardware(Hardware::BRANCH_MISSES),
            Branches => PerfConfig::Hardware(Hardware::BRANCH_INSTRUCTIONS),
            RefCycles => PerfConfig::Hardware(Hardware::REF_CPU_CYCLES),
            StalledFrontend => PerfConfig::Hardware(Hardware::STALLED_CYCLES_FRONTEND),
            StalledBackend => PerfConfig::Hardware(Hardware::STALLED_CYCLES_BACKEND),
            NodeLoads => PerfConfig::Cache(CacheId::NODE, CacheResult::ACCESS),
            NodeLoadMisses => PerfConfig::Cache(CacheId::NODE, CacheResult::MISS),
            FpScalar => self.fp(0x03)?,
            Fp128 => self.fp(0x0c)?,
            Fp256 => self.fp(0x30)?,
            Fp512 => self.fp(0xc0)?,
        })
    }

    /// Returns the event for both precisions of one width.
    fn fp(self, unit_mask: u64) -> Result<PerfConfig, Refusal> {
        match self {
            Processor::Intel { fp: true, wide } if wide || unit_mask != 0xc0 => {
                Ok(PerfConfig::Raw(unit_mask << 8 | FP_ARITH))
            }
            // Another core may silently count something else with the same code.
            Processor::Intel { fp: false, .. } => {
                Err(Refusal::NotAsked("the code of this event is unknown for this processor model"))
            }
            Processor::Intel { .. } | Processor::Other => Err(Refusal::Kernel(Errno::ENOENT)),
        }
    }
}

/// Kernel code of an event.
enum PerfConfig {
    Software(Software),
    Hardware(Hardware),
    Cache(CacheId, CacheResult),
    Raw(u64),
}

/// Counters of the running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Perf {
    processor: Processor,
}

impl Perf {
    pub fn new(processor: Processor) -> Perf {
        Perf { processor }
    }

    /// Configures a counter of user and kernel code in one scope.
    fn builder<'a>(self, event: PerfEvent, place: CounterScope<'a>) -> Result<Builder<'a>, Refusal> {
        let mut builder = match self.processor.config(event)? {
            PerfConfig::Software(event) => Builder::new(event),
            PerfConfig::Hardware(event) => Builder::new(event),
            PerfConfig::Cache(which, result) => {
                Builder::new(Cache { which, operation: CacheOp::READ, result })
            }
            PerfConfig::Raw(config) => Builder::new(Raw::new(config)),
        };
        builder.include_kernel().one_cpu(usize::try_from(place.cpu).unwrap_or(usize::MAX));
        match place.cgroup {
            Some(folder) => builder.observe_cgroup(folder),
            None => builder.any_pid(),
        };
        Ok(builder)
    }
}

impl CounterBackend for Perf {
    type Group = PerfGroup;

    fn open(&self, event: PerfEvent, place: CounterScope<'_>) -> Result<PerfGroup, Refusal> {
        let times = ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING;
        let mut builder = self.builder(event, place)?;
        builder.read_format(ReadFormat::GROUP | ReadFormat::ID | times);
        let first = builder.build().map_err(|error| {
            match (Refusal::from(error), self.processor.config(event)) {
                // The kernel's table of cache events contains both "not available" (ENOENT) and "makes no sense"
                // (EINVAL).
                (Refusal::Kernel(Errno::EINVAL), Ok(PerfConfig::Cache(..))) => Refusal::Kernel(Errno::ENOENT),
                (refusal, _) => refusal,
            }
        })?;
        Ok(PerfGroup { kernel: *self, first, others: Vec::new() })
    }
}

/// Group of counters of the running kernel.
#[derive(Debug)]
pub struct PerfGroup {
    kernel: Perf,
    first: Counter,
    others: Vec<Counter>,
}

impl CounterGroup for PerfGroup {
    fn join(&mut self, event: PerfEvent, place: CounterScope<'_>) -> Result<(), Refusal> {
        let builder = self.kernel.builder(event, place)?;
        self.others.push(builder.build_with_group(&mut self.first)?);
        Ok(())
    }

    fn start(&mut self) -> Result<(), Refusal> {
        Ok(self.first.enable_group()?)
    }

    fn read(&mut self) -> Result<GroupReading, Refusal> {
        let data = self.first.read_group()?;
        let time = |time: Option<std::time::Duration>| time.map_or(0, nanos);
        let members = std::iter::once(&self.first).chain(&self.others);
        // The kernel splits a group when its CPU goes offline; some members are missing then.
        let values: Option<Vec<u64>> = members.map(|counter| Some(data.get(counter)?.value())).collect();
        let values = values.ok_or(Refusal::Kernel(Errno::ENODEV))?;
        Ok(GroupReading { enabled: time(data.time_enabled()), running: time(data.time_running()), values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpuinfo(vendor: &str, model: u32, flags: &str) -> Processor {
        Processor::parse(&format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: {model}\nmodel name\t: X\n\
             flags\t\t: fpu {flags}\n\nprocessor\t: 1\nvendor_id\t: other\n"
        ))
    }

    fn raw(processor: Processor, event: PerfEvent) -> Result<u64, PerfState> {
        match processor.config(event) {
            Ok(PerfConfig::Raw(config)) => Ok(config),
            Ok(_) => panic!("no raw event"),
            Err(refusal) => Err(refusal.state()),
        }
    }

    use model::catalog::PerfState;

    #[test]
    fn floating_point_is_counted_only_where_its_code_is_known() {
        let sapphire_rapids = cpuinfo("GenuineIntel", 143, "avx2 avx512f avx512dq");
        assert_eq!(raw(sapphire_rapids, PerfEvent::FpScalar), Ok(0x03c7));
        assert_eq!(raw(sapphire_rapids, PerfEvent::Fp512), Ok(0xc0c7));
        let broadwell = cpuinfo("GenuineIntel", 79, "avx2");
        assert_eq!(raw(broadwell, PerfEvent::Fp256), Ok(0x30c7));
        assert_eq!(raw(broadwell, PerfEvent::Fp512), Err(PerfState::NoPmu));
        let small = cpuinfo("GenuineIntel", 175, "avx2");
        assert_eq!(raw(small, PerfEvent::Fp128), Err(PerfState::Unknown));
        let phi = cpuinfo("GenuineIntel", 87, "avx512f avx512er");
        assert_eq!(raw(phi, PerfEvent::Fp512), Err(PerfState::Unknown));
        assert_eq!(raw(cpuinfo("AuthenticAMD", 17, "avx512f"), PerfEvent::FpScalar), Err(PerfState::NoPmu));
        assert_eq!(Processor::parse(""), Processor::Other);
    }

    #[test]
    fn the_last_level_is_not_taken_from_another_one() {
        let config = |processor: Processor| processor.config(PerfEvent::LlcMisses).ok().unwrap();
        assert!(matches!(config(Processor::Other), PerfConfig::Cache(CacheId::LL, CacheResult::MISS)));
        let intel = config(cpuinfo("GenuineIntel", 143, "avx512f"));
        assert!(matches!(intel, PerfConfig::Hardware(Hardware::CACHE_MISSES)));
    }
}

//! The kernel's perf events: the daemon's only user of `perf_event_open(2)`. Events are counted, never sampled: nothing of a
//! process but how often something happened is read.
//!
//! The counters of a CPU are opened as a group, so that one `read(2)` brings all of them. Each read of a counter that is
//! at work interrupts its CPU for a moment, so this is also an interrupt a group instead of one an event.

use nix::errno::Errno;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Raw, Software};
use perf_event::{Builder, Counter, ReadFormat};

use super::backend::{CounterBackend, CounterGroup, CounterScope, GroupReading, Refusal};
use host::Host;
use model::catalog::PerfEvent;
use model::clock::nanos;

/// Event code of FP_ARITH_INST_RETIRED; its unit masks name the width (Intel SDM volume 3B, chapter 20; perfmon event
/// lists of Broadwell and of every Xeon Scalable).
const FP_ARITH: u64 = 0xc7;

/// Which processor it is, as far as events differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// Intel's.
    Intel {
        /// Whether FP_ARITH_INST_RETIRED is known to be what 0xc7 counts on this model.
        fp: bool,
        /// Whether it has registers of 512 bits.
        wide: bool,
    },
    /// Any other.
    Other,
}

impl Processor {
    /// As `/proc/cpuinfo` tells it.
    pub(crate) fn parse(cpuinfo: &str) -> Processor {
        let field = |name: &str| {
            let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.into_iter().find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
        };
        if field("vendor_id") != "GenuineIntel" {
            return Processor::Other;
        }
        let has = |flag: &str| field("flags").split_whitespace().any(|known| known == flag);
        // Broadwell by its models, all later Xeons by AVX-512, which of other cores only Xeon Phi has (with
        // avx512er). What no rule knows, as the small cores, may mean something else by the same code.
        let broadwell = matches!(field("model"), "61" | "71" | "79" | "86");
        let wide = has("avx512f") && !has("avx512er");
        Processor::Intel { fp: field("cpu family") == "6" && (broadwell || wide), wide }
    }

    /// Of this machine.
    pub fn of_host(host: &Host) -> Processor {
        Processor::parse(&std::fs::read_to_string(host.path("/proc/cpuinfo")).unwrap_or_default())
    }

    /// How the kernel calls an event here.
    fn config(self, event: PerfEvent) -> Result<PerfConfig, Refusal> {
        use PerfEvent::*;
        // What the kernel calls "cache references and misses" is the last level on Intel alone: on AMD it is L2, on
        // Arm L1. There the last level is asked for by name, which not every one has.
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

    /// Both precisions of one width.
    fn fp(self, unit_mask: u64) -> Result<PerfConfig, Refusal> {
        match self {
            Processor::Intel { fp: true, wide } if wide || unit_mask != 0xc0 => {
                Ok(PerfConfig::Raw(unit_mask << 8 | FP_ARITH))
            }
            // Another core may count something else by the same code, and would not say so.
            Processor::Intel { fp: false, .. } => {
                Err(Refusal::NotAsked("it is not known how this model counts them"))
            }
            Processor::Intel { .. } | Processor::Other => Err(Refusal::Kernel(Errno::ENOENT)),
        }
    }
}

/// How the kernel calls an event.
enum PerfConfig {
    Software(Software),
    Hardware(Hardware),
    Cache(CacheId, CacheResult),
    Raw(u64),
}

/// The running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Perf {
    processor: Processor,
}

impl Perf {
    /// Counters of this processor.
    pub fn new(processor: Processor) -> Perf {
        Perf { processor }
    }

    /// A counter of everything at one place, users' programs and the kernel together.
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
                // The kernel's table of cache events has "no such thing" (ENOENT) and "makes no sense" (EINVAL).
                (Refusal::Kernel(Errno::EINVAL), Ok(PerfConfig::Cache(..))) => Refusal::Kernel(Errno::ENOENT),
                (refusal, _) => refusal,
            }
        })?;
        Ok(PerfGroup { kernel: *self, first, others: Vec::new() })
    }
}

/// A group of the running kernel.
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
        // The kernel takes a group apart when its CPU goes off: then members are missing.
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

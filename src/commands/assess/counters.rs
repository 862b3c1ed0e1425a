//! Counters of the processor that follow a program, its threads and its children. They count the program's own code, not
//! the kernel's, which every user may.

use std::collections::BTreeMap;
use std::io;

use assess::flops::{CpuModel, Precision};
use assess::recording::PmuCounts;
use nix::errno::Errno;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Raw, Software};
use perf_event::{Builder, Counter};

/// What is watched.
#[derive(Clone, Copy, Debug)]
pub enum Watched<'a> {
    /// The program that the calling thread starts next.
    NextProgram,
    /// These threads, and what they start from now on.
    Threads(&'a [i32]),
}

/// What an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CountOf {
    TaskClock,
    Cycles,
    Instructions,
    Branches,
    BranchMisses,
    LlcReferences,
    LlcMisses,
    MemoryFills,
    /// Operations, with the weight of each count.
    Flops(Precision, u32),
}

impl CountOf {
    fn name(self) -> &'static str {
        match self {
            CountOf::TaskClock => "task clock",
            CountOf::Cycles => "cycles",
            CountOf::Instructions => "instructions",
            CountOf::Branches => "branches",
            CountOf::BranchMisses => "branch misses",
            CountOf::LlcReferences => "last-level references",
            CountOf::LlcMisses => "last-level misses",
            CountOf::MemoryFills => "fills from memory",
            CountOf::Flops(..) => "floating-point operations",
        }
    }
}

/// The open counters: one a thread for each event.
pub struct RunCounters {
    open: Vec<(CountOf, Vec<Counter>)>,
    /// Events that are not counted, and why.
    pub gaps: BTreeMap<String, String>,
}

/// Counts so far: value, nanoseconds enabled, nanoseconds counted; in the order of the events.
#[derive(Clone, Debug, Default)]
pub struct CounterReading(Vec<(f64, f64, f64)>);

impl RunCounters {
    pub fn open(watched: Watched<'_>, cpu: CpuModel) -> RunCounters {
        let (mut open, mut refused): (Vec<_>, BTreeMap<String, Vec<&str>>) = Default::default();
        for (of, builder) in events(cpu) {
            match open_event(builder, watched) {
                Ok(counters) => open.push((of, counters)),
                Err(error) => {
                    let names = refused.entry(reason(&error)).or_default();
                    if !names.contains(&of.name()) {
                        names.push(of.name());
                    }
                }
            }
        }
        // A processor that counts cycles has a PMU.
        if open.iter().any(|(of, _)| *of == CountOf::Cycles)
            && let Some(names) = refused.remove(NO_PMU)
        {
            refused.entry("this processor has no such event".into()).or_default().extend(names);
        }
        // A sum that lacks a part is no sum.
        let flops = |of: &CountOf| matches!(of, CountOf::Flops(..));
        if refused.values().flatten().any(|name| *name == CountOf::Flops(Precision::Any, 1).name()) {
            open.retain(|(of, _)| !flops(of));
        }
        let mut gaps: BTreeMap<String, String> =
            refused.into_iter().map(|(why, names)| (names.join(", "), why)).collect();
        let counted = open.iter().any(|(of, _)| flops(of));
        if let Some(gap) = cpu.flop_gap().filter(|_| counted || cpu.flop_events().is_empty()) {
            let what = if counted { "precisions" } else { CountOf::Flops(Precision::Any, 1).name() };
            gaps.insert(what.into(), gap.into());
        }
        RunCounters { open, gaps }
    }

    /// Lets counters of running threads count; those of a program start with it.
    pub fn start(&mut self) -> io::Result<()> {
        self.open.iter_mut().flat_map(|(_, counters)| counters).try_for_each(Counter::enable)
    }

    pub fn read(&mut self) -> io::Result<CounterReading> {
        let sum = |(_, counters): &mut (CountOf, Vec<Counter>)| {
            counters.iter_mut().try_fold((0.0, 0.0, 0.0), |sum, counter| {
                let now = counter.read_count_and_time()?;
                let [value, enabled, running] =
                    [now.count, now.time_enabled, now.time_running].map(|number| number as f64);
                Ok((sum.0 + value, sum.1 + enabled, sum.2 + running))
            })
        };
        self.open.iter_mut().map(sum).collect::<io::Result<Vec<_>>>().map(CounterReading)
    }

    /// What was counted between two readings, scaled where events took turns; and the CPU time in seconds. What was not counted
    /// is added to the gaps.
    pub fn between(
        &self,
        before: &CounterReading,
        after: &CounterReading,
        gaps: &mut BTreeMap<String, String>,
    ) -> (PmuCounts, Option<f64>) {
        let (mut counts, mut cpu_seconds) = (PmuCounts::default(), None);
        let (mut every_operation, mut idle, mut no_turn) = (true, Vec::new(), Vec::new());
        for (at, (of, _)) in self.open.iter().enumerate() {
            let zero = (0.0, 0.0, 0.0);
            let (old, new) = (before.0.get(at).unwrap_or(&zero), after.0.get(at).unwrap_or(&zero));
            let (value, enabled, running) = (new.0 - old.0, new.1 - old.1, new.2 - old.2);
            if *of == CountOf::TaskClock {
                cpu_seconds = Some(value / 1e9);
                continue;
            }
            if running <= 0.0 {
                let names = if enabled > 0.0 { &mut no_turn } else { &mut idle };
                if !names.contains(&of.name()) {
                    names.push(of.name());
                }
                every_operation &= !matches!(of, CountOf::Flops(..));
                continue;
            }
            let ratio = (running / enabled).min(1.0);
            counts.counted_ratio = Some(counts.counted_ratio.map_or(ratio, |least| least.min(ratio)));
            let value = value / ratio;
            match of {
                CountOf::Cycles => counts.cycles = Some(value),
                CountOf::Instructions => counts.instructions = Some(value),
                CountOf::Branches => counts.branches = Some(value),
                CountOf::BranchMisses => counts.branch_misses = Some(value),
                CountOf::LlcReferences => counts.llc_references = Some(value),
                CountOf::LlcMisses => counts.llc_misses = Some(value),
                CountOf::MemoryFills => counts.memory_fills = Some(value),
                CountOf::Flops(precision, weight) => {
                    *counts.flops.entry(*precision).or_default() += value * f64::from(*weight);
                }
                CountOf::TaskClock => {}
            }
        }
        // A sum that lacks a part is no sum.
        if !every_operation {
            counts.flops.clear();
        }
        for (names, why) in [(no_turn, NO_TURN), (idle, NOTHING_COUNTED)] {
            if !names.is_empty() {
                gaps.insert(names.join(", "), why.into());
            }
        }
        (counts, cpu_seconds)
    }
}

/// Every event that this processor may count.
fn events(cpu: CpuModel) -> Vec<(CountOf, Builder<'static>)> {
    let hardware = |of, event: Hardware| (of, Builder::new(event));
    let cache = |of, result| {
        let event = Cache { which: CacheId::LL, operation: CacheOp::READ, result };
        (of, Builder::new(event))
    };
    let mut events = vec![
        (CountOf::TaskClock, Builder::new(Software::TASK_CLOCK)),
        hardware(CountOf::Cycles, Hardware::CPU_CYCLES),
        hardware(CountOf::Instructions, Hardware::INSTRUCTIONS),
        hardware(CountOf::Branches, Hardware::BRANCH_INSTRUCTIONS),
        hardware(CountOf::BranchMisses, Hardware::BRANCH_MISSES),
    ];
    events.extend(match cpu.last_level_events() {
        Some(raw) => vec![
            (CountOf::LlcReferences, Builder::new(Raw::new(raw.references))),
            (CountOf::LlcMisses, Builder::new(Raw::new(raw.misses))),
            (CountOf::MemoryFills, Builder::new(Raw::new(raw.memory_fills))),
        ],
        None if cpu.kernel_counts_last_level() => vec![
            hardware(CountOf::LlcReferences, Hardware::CACHE_REFERENCES),
            hardware(CountOf::LlcMisses, Hardware::CACHE_MISSES),
        ],
        None => vec![
            cache(CountOf::LlcReferences, CacheResult::ACCESS),
            cache(CountOf::LlcMisses, CacheResult::MISS),
        ],
    });
    let flops = cpu.flop_events().into_iter();
    events
        .extend(flops.map(|of| (CountOf::Flops(of.precision, of.weight), Builder::new(Raw::new(of.config)))));
    events
}

fn open_event(mut builder: Builder<'static>, watched: Watched<'_>) -> io::Result<Vec<Counter>> {
    builder.inherit(true);
    match watched {
        Watched::NextProgram => Ok(vec![builder.observe_self().enable_on_exec(true).build()?]),
        Watched::Threads(threads) => {
            let mut counters = Vec::new();
            for thread in threads {
                match builder.observe_pid(*thread).build() {
                    Ok(counter) => counters.push(counter),
                    // It has ended meanwhile.
                    Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(counters)
        }
    }
}

const NO_PMU: &str = "this processor gives no counter for it (no PMU, as in most virtual machines)";

const NO_TURN: &str =
    "too many events for the counters: the turn of this one, or of a part of it, did not come";
const NOTHING_COUNTED: &str = "nothing was counted: it did not run, or is setuid or of a file that this user may not read, which the kernel does not count";

/// Why the kernel refuses an event, and what helps.
pub fn reason(error: &io::Error) -> String {
    let paranoid = || std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP | Errno::EINVAL) => NO_PMU.into(),
        Some(Errno::EACCES) => format!(
            "not permitted (kernel.perf_event_paranoid is {}): run as root or with CAP_PERFMON",
            paranoid().trim()
        ),
        Some(Errno::EPERM) => format!(
            "not permitted (kernel.perf_event_paranoid is {}, or a container's seccomp profile forbids perf_event_open): \
             run with CAP_PERFMON or on the host",
            paranoid().trim()
        ),
        Some(Errno::ENOSYS) => {
            "perf_event_open is not there: a seccomp profile forbids it, or the kernel was built without"
                .into()
        }
        Some(Errno::EMFILE | Errno::ENFILE) => {
            "more files than this process may open: raise `ulimit -n`".into()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_reason_and_what_helps() {
        let of = |errno: Errno| reason(&io::Error::from(errno));
        assert!(of(Errno::ENOENT).contains("no PMU"));
        assert!(of(Errno::EACCES).contains("perf_event_paranoid") && of(Errno::EPERM).contains("seccomp"));
        assert!(of(Errno::ENOSYS).contains("seccomp") && of(Errno::EMFILE).contains("ulimit"));
    }

    #[test]
    fn counts_are_scaled_by_the_time_in_which_they_counted() {
        let of = [CountOf::TaskClock, CountOf::Cycles, CountOf::LlcMisses];
        let flops = [(Precision::Double, 1), (Precision::Double, 4), (Precision::Single, 8)];
        let flops = flops.map(|(precision, weight)| CountOf::Flops(precision, weight));
        let open = of.into_iter().chain(flops).map(|of| (of, Vec::new())).collect();
        let counters = RunCounters { open, gaps: BTreeMap::new() };
        let before = CounterReading(vec![(1e9, 0.0, 0.0), (10.0, 5.0, 5.0), (7.0, 9.0, 0.0)]);
        let full = (10.0, 1.0, 1.0);
        let after =
            CounterReading(vec![(3e9, 0.0, 0.0), (60.0, 9.0, 7.0), (7.0, 20.0, 0.0), full, full, full]);
        let mut gaps = BTreeMap::new();
        let (counts, cpu_seconds) = counters.between(&before, &after, &mut gaps);
        assert_eq!(gaps, BTreeMap::from([("last-level misses".to_owned(), NO_TURN.to_owned())]));
        assert_eq!((cpu_seconds, counts.cycles, counts.llc_misses), (Some(2.0), Some(100.0), None));
        assert_eq!(counts.flops, BTreeMap::from([(Precision::Double, 50.0), (Precision::Single, 80.0)]));
        assert_eq!(counts.counted_ratio, Some(0.5));
        // The turn of one of three did not come: what the others counted is no sum.
        let after = CounterReading([&after.0[..5], &[(0.0, 1.0, 0.0)]].concat());
        assert!(counters.between(&before, &after, &mut gaps).0.flops.is_empty());
        assert_eq!(gaps["last-level misses, floating-point operations"], NO_TURN);
        // Of a setuid program, the kernel ends all events.
        let none = CounterReading::default();
        let (counts, _) = counters.between(&none, &none, &mut gaps);
        assert!(
            counts.cycles.is_none()
                && gaps["cycles, last-level misses, floating-point operations"] == NOTHING_COUNTED
        );
    }
}

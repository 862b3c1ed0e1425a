//! Hardware counters that follow a program, its threads and its children. They leave out the kernel's code,
//! so every user may open them.

use std::collections::BTreeMap;
use std::io;

use assess::flops::{CpuModel, Precision};
use assess::recording::PmuCounts;
use nix::errno::Errno;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Raw, Software};
use perf_event::{Builder, Counter};

/// Target of the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Watched<'a> {
    /// The program that the calling thread starts next.
    NextProgram,
    /// These threads, and threads and processes that they start later.
    Threads(&'a [i32]),
}

/// Target of the count of an event.
#[derive(Clone, Copy)]
enum CountTarget {
    CpuTime,
    Count(fn(&mut PmuCounts) -> &mut Option<f64>),
    /// Floating-point operations, with the number of operations per count.
    Flops(Precision, u32),
}

const CYCLES: &str = "cycles";
const FLOPS: &str = "floating-point operations";

/// Open counters: one per event and thread.
pub(crate) struct RunCounters {
    open: Vec<(&'static str, CountTarget, Vec<Counter>)>,
    /// Events that are not counted, with the reason.
    pub gaps: BTreeMap<String, String>,
}

/// Counts at one time, in the order of the events: value, nanoseconds enabled and nanoseconds counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterReading(Vec<(f64, f64, f64)>);

impl RunCounters {
    pub fn open(watched: Watched<'_>, cpu: CpuModel) -> RunCounters {
        let (mut open, mut refused): (Vec<_>, BTreeMap<String, Vec<&str>>) = Default::default();
        for (name, target, builder) in events(cpu) {
            match open_event(builder, watched) {
                Ok(counters) => open.push((name, target, counters)),
                Err(error) => add_name(refused.entry(reason(&error)).or_default(), name),
            }
        }
        // A processor that counts cycles has a PMU.
        if open.iter().any(|(name, ..)| *name == CYCLES)
            && let Some(names) = refused.remove(NO_PMU)
        {
            refused.entry("this processor has no such event".into()).or_default().extend(names);
        }
        // A sum without one of its parts would be wrong.
        if refused.values().flatten().any(|name| *name == FLOPS) {
            open.retain(|(name, ..)| *name != FLOPS);
        }
        let mut gaps: BTreeMap<String, String> =
            refused.into_iter().map(|(why, names)| (names.join(", "), why)).collect();
        let counted = open.iter().any(|(name, ..)| *name == FLOPS);
        if let Some(gap) = cpu.flop_gap().filter(|_| counted || cpu.flop_events().is_empty()) {
            gaps.insert(if counted { "precisions" } else { FLOPS }.into(), gap.into());
        }
        RunCounters { open, gaps }
    }

    /// Starts counters of running threads. Counters of a program start with the program.
    pub fn start(&mut self) -> io::Result<()> {
        self.open.iter_mut().flat_map(|(_, _, counters)| counters).try_for_each(Counter::enable)
    }

    pub fn read(&mut self) -> Result<CounterReading, String> {
        let sum = |(_, _, counters): &mut (&str, CountTarget, Vec<Counter>)| {
            counters.iter_mut().try_fold((0.0, 0.0, 0.0), |sum, counter| {
                let now = counter.read_count_and_time()?;
                let [value, enabled, running] =
                    [now.count, now.time_enabled, now.time_running].map(|number| number as f64);
                Ok((sum.0 + value, sum.1 + enabled, sum.2 + running))
            })
        };
        let sums: io::Result<Vec<_>> = self.open.iter_mut().map(sum).collect();
        sums.map(CounterReading).map_err(|error| error.to_string())
    }

    /// Returns the counts between two readings and the CPU time in seconds. Counts of events that shared a
    /// counter are scaled. Events that were not counted are added to the gaps.
    pub fn between(
        &self,
        before: &Result<CounterReading, String>,
        after: &Result<CounterReading, String>,
        gaps: &mut BTreeMap<String, String>,
    ) -> (PmuCounts, Option<f64>) {
        let (before, after) = match (before, after) {
            (Ok(before), Ok(after)) => (before, after),
            (Err(error), _) | (_, Err(error)) => {
                gaps.insert("processor counters".into(), error.clone());
                return Default::default();
            }
        };
        let (mut counts, mut cpu_seconds) = (PmuCounts::default(), None);
        let (mut every_operation, mut idle, mut no_turn) = (true, Vec::new(), Vec::new());
        for (at, (name, target, _)) in self.open.iter().enumerate() {
            let zero = (0.0, 0.0, 0.0);
            let (old, new) = (before.0.get(at).unwrap_or(&zero), after.0.get(at).unwrap_or(&zero));
            let (value, enabled, running) = (new.0 - old.0, new.1 - old.1, new.2 - old.2);
            if matches!(target, CountTarget::CpuTime) {
                cpu_seconds = Some(value / 1e9);
                continue;
            }
            if running <= 0.0 {
                add_name(if enabled > 0.0 { &mut no_turn } else { &mut idle }, name);
                every_operation &= *name != FLOPS;
                continue;
            }
            let ratio = (running / enabled).min(1.0);
            counts.counted_ratio = Some(counts.counted_ratio.map_or(ratio, |least| least.min(ratio)));
            let value = value / ratio;
            match target {
                CountTarget::Count(field) => *field(&mut counts) = Some(value),
                CountTarget::Flops(precision, weight) => {
                    *counts.flops.entry(*precision).or_default() += value * f64::from(*weight);
                }
                CountTarget::CpuTime => {}
            }
        }
        // A sum without one of its parts would be wrong.
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

fn add_name(names: &mut Vec<&'static str>, name: &'static str) {
    if !names.contains(&name) {
        names.push(name);
    }
}

/// All events that this processor may count.
fn events(cpu: CpuModel) -> Vec<(&'static str, CountTarget, Builder<'static>)> {
    use CountTarget::{Count, CpuTime, Flops};
    let cache = |result| Builder::new(Cache { which: CacheId::LL, operation: CacheOp::READ, result });
    let (references, misses) = match cpu.last_level_events() {
        Some(raw) => (Builder::new(Raw::new(raw.references)), Builder::new(Raw::new(raw.misses))),
        None if cpu.kernel_counts_last_level() => {
            (Builder::new(Hardware::CACHE_REFERENCES), Builder::new(Hardware::CACHE_MISSES))
        }
        None => (cache(CacheResult::ACCESS), cache(CacheResult::MISS)),
    };
    let mut events = vec![
        ("task clock", CpuTime, Builder::new(Software::TASK_CLOCK)),
        (CYCLES, Count(|counts| &mut counts.cycles), Builder::new(Hardware::CPU_CYCLES)),
        ("instructions", Count(|counts| &mut counts.instructions), Builder::new(Hardware::INSTRUCTIONS)),
        ("branches", Count(|counts| &mut counts.branches), Builder::new(Hardware::BRANCH_INSTRUCTIONS)),
        ("branch misses", Count(|counts| &mut counts.branch_misses), Builder::new(Hardware::BRANCH_MISSES)),
        ("last-level references", Count(|counts| &mut counts.llc_references), references),
        ("last-level misses", Count(|counts| &mut counts.llc_misses), misses),
    ];
    if let Some(raw) = cpu.last_level_events() {
        let fills = Builder::new(Raw::new(raw.memory_fills));
        events.push(("fills from memory", Count(|counts| &mut counts.memory_fills), fills));
    }
    let flops = cpu.flop_events().into_iter();
    events.extend(flops.map(|of| (FLOPS, Flops(of.precision, of.weight), Builder::new(Raw::new(of.config)))));
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
                    // The thread has exited.
                    Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(counters)
        }
    }
}

const NO_PMU: &str = "this processor has no such counter (no PMU, as in most virtual machines)";

const NO_TURN: &str = "the processor has too few counters, so this event, or a part of it, was never counted";
const NOTHING_COUNTED: &str = "nothing was counted, because the program did not run, is setuid, or is a file that this user may not read";

/// Returns the reason why the kernel refuses an event, with a remedy.
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
            "perf_event_open does not exist: a seccomp profile forbids it, or the kernel was built without it"
                .into()
        }
        Some(Errno::EMFILE | Errno::ENFILE) => {
            "this process may not open more files: raise `ulimit -n`".into()
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
        let open: [(&str, CountTarget); 3] = [
            ("task clock", CountTarget::CpuTime),
            (CYCLES, CountTarget::Count(|counts| &mut counts.cycles)),
            ("last-level misses", CountTarget::Count(|counts| &mut counts.llc_misses)),
        ];
        let flops = [(Precision::Double, 1), (Precision::Double, 4), (Precision::Single, 8)];
        let flops = flops.map(|(precision, weight)| (FLOPS, CountTarget::Flops(precision, weight)));
        let open = open.into_iter().chain(flops).map(|(name, target)| (name, target, Vec::new())).collect();
        let counters = RunCounters { open, gaps: BTreeMap::new() };
        let before = CounterReading(vec![(1e9, 0.0, 0.0), (10.0, 5.0, 5.0), (7.0, 9.0, 0.0)]);
        let full = (10.0, 1.0, 1.0);
        let after =
            CounterReading(vec![(3e9, 0.0, 0.0), (60.0, 9.0, 7.0), (7.0, 20.0, 0.0), full, full, full]);
        let mut gaps = BTreeMap::new();
        let (counts, cpu_seconds) = counters.between(&Ok(before.clone()), &Ok(after.clone()), &mut gaps);
        assert_eq!(gaps, BTreeMap::from([("last-level misses".to_owned(), NO_TURN.to_owned())]));
        assert_eq!((cpu_seconds, counts.cycles, counts.llc_misses), (Some(2.0), Some(100.0), None));
        assert_eq!(counts.flops, BTreeMap::from([(Precision::Double, 50.0), (Precision::Single, 80.0)]));
        assert_eq!(counts.counted_ratio, Some(0.5));
        // The turn of one of three did not come: what the others counted is no sum.
        let after = CounterReading([&after.0[..5], &[(0.0, 1.0, 0.0)]].concat());
        assert!(counters.between(&Ok(before.clone()), &Ok(after.clone()), &mut gaps).0.flops.is_empty());
        assert_eq!(gaps["last-level misses, floating-point operations"], NO_TURN);
        // Of a setuid program, the kernel ends all events.
        let none = Ok(CounterReading::default());
        let (counts, _) = counters.between(&none, &none, &mut gaps);
        assert!(
            counts.cycles.is_none()
                && gaps["cycles, last-level misses, floating-point operations"] == NOTHING_COUNTED
        );
    }
}

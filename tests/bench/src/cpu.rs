//! What counting events on the CPUs costs: system calls, file descriptors and time a CPU and reading, one group a CPU
//! against one counter an event; and the sum for a large machine, which is computed.

use std::cell::Cell;
use std::error::Error;
use std::time::Instant;

use collectors::cpu::backend::{CounterBackend, CounterGroup, CounterScope, GroupReading, Refusal};
use collectors::cpu::cpu_groups::{self, CpuGroups};
use collectors::cpu::machine_events::MachineEvents;
use collectors::cpu::perf::{self, Perf, Processor};
use host::Host;
use model::catalog::PerfEvent;
use settings::Config;

use super::cost;

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// Readings of all CPUs to take the mean of
    #[arg(long, default_value_t = 20_000)]
    rounds: u32,
    /// CPUs of the machine for which the sum is computed
    #[arg(long, default_value_t = 256)]
    cpus: usize,
}

/// The running kernel, with its system calls counted: `perf_event_open` and the `ioctl` that asks for the counter's
/// number, the `ioctl` that starts a group, `read`.
struct Counted<'a> {
    perf: Perf,
    calls: &'a Cell<u64>,
}

struct CountedGroup<'a> {
    group: perf::PerfGroup,
    calls: &'a Cell<u64>,
}

impl<'a> CounterBackend for Counted<'a> {
    type Group = CountedGroup<'a>;

    fn open(&self, event: PerfEvent, place: CounterScope<'_>) -> Result<CountedGroup<'a>, Refusal> {
        self.calls.set(self.calls.get() + 1);
        let group = self.perf.open(event, place)?;
        self.calls.set(self.calls.get() + 1);
        Ok(CountedGroup { group, calls: self.calls })
    }
}

impl CounterGroup for CountedGroup<'_> {
    fn join(&mut self, event: PerfEvent, place: CounterScope<'_>) -> Result<(), Refusal> {
        self.calls.set(self.calls.get() + 1);
        self.group.join(event, place)?;
        self.calls.set(self.calls.get() + 1);
        Ok(())
    }

    fn start(&mut self) -> Result<(), Refusal> {
        self.calls.set(self.calls.get() + 1);
        self.group.start()
    }

    fn read(&mut self) -> Result<GroupReading, Refusal> {
        self.calls.set(self.calls.get() + 1);
        self.group.read()
    }
}

/// What one way of counting costs, a CPU.
struct Cost {
    descriptors: f64,
    open_calls: f64,
    open_micros: f64,
    read_calls: f64,
    read_micros: f64,
    read_cpu_micros: f64,
}

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let host = Host::new("/");
    let cpus = cpu_groups::online(&host).ok_or("the online CPUs cannot be read")?;
    let groups = CpuGroups::of_host(&host, &cpus);
    let calls = Cell::new(0);
    let kernel = Counted { perf: Perf::new(Processor::of_host(&host)), calls: &calls };
    let events = Config::default().cpu.events;
    let each = cpus.len() as f64;

    let started = Instant::now();
    let mut machine = MachineEvents::new(&events);
    machine.step(&kernel, &cpus, &groups, usize::MAX);
    let open_micros = started.elapsed().as_secs_f64() * 1e6;
    let working = machine.working();
    if working.is_empty() {
        return Err("no event can be counted here".into());
    }
    println!("cpu: {} of {} events work, {} CPUs", working.len(), events.len(), cpus.len());
    let open_calls = calls.take();
    let (read_calls, read_micros, read_cpu_micros) =
        rounds(options.rounds, &calls, || machine.step(&kernel, &cpus, &groups, usize::MAX))?;
    let grouped = Cost {
        descriptors: machine.open_counters() as f64 / each,
        open_calls: open_calls as f64 / each,
        open_micros: open_micros / each,
        read_calls: read_calls / each,
        read_micros: read_micros / each,
        read_cpu_micros: read_cpu_micros / each,
    };
    drop(machine);

    calls.set(0);
    let started = Instant::now();
    let mut single = Vec::new();
    for cpu in cpus.iter() {
        for event in &working {
            let mut counter = kernel.open(*event, CounterScope { cpu, cgroup: None })?;
            counter.start()?;
            single.push(counter);
        }
    }
    let open_micros = started.elapsed().as_secs_f64() * 1e6;
    let open_calls = calls.take();
    let mut failed = 0;
    let (read_calls, read_micros, read_cpu_micros) = rounds(options.rounds, &calls, || {
        failed += single.iter_mut().filter_map(|counter| counter.read().err()).count();
    })?;
    let apart = Cost {
        descriptors: single.len() as f64 / each,
        open_calls: open_calls as f64 / each,
        open_micros: open_micros / each,
        read_calls: read_calls / each,
        read_micros: read_micros / each,
        read_cpu_micros: read_cpu_micros / each,
    };
    if failed > 0 {
        return Err(format!("{failed} readings failed").into());
    }

    println!("  a CPU                descriptors  open: calls      us  read: calls      us  us of CPU");
    for (name, cost) in [("groups, summed", &grouped), ("one counter an event", &apart)] {
        println!(
            "  {name:<20} {:11.1} {:12.1} {:7.1} {:12.1} {:7.2} {:10.2}",
            cost.descriptors,
            cost.open_calls,
            cost.open_micros,
            cost.read_calls,
            cost.read_micros,
            cost.read_cpu_micros
        );
    }
    let many = options.cpus as f64;
    println!(
        "  computed, not measured, for {} CPUs with these events: groups {:.0} descriptors, {:.0} calls and {:.2} ms a \
         reading ({:.4} % of a core every 10 s); one counter an event {:.0} calls and {:.2} ms",
        options.cpus,
        grouped.descriptors * many,
        grouped.read_calls * many,
        grouped.read_micros * many / 1e3,
        grouped.read_cpu_micros * many / 1e6 / 10.0 * 100.0,
        apart.read_calls * many,
        apart.read_micros * many / 1e3,
    );
    Ok(())
}

/// System calls, microseconds and microseconds of CPU of one round of all CPUs.
fn rounds(
    rounds: u32,
    calls: &Cell<u64>,
    mut round: impl FnMut(),
) -> Result<(f64, f64, f64), Box<dyn Error>> {
    let me = i32::try_from(std::process::id())?;
    calls.set(0);
    let (cpu, started) = (cost::cpu_seconds(me)?, Instant::now());
    (0..rounds).for_each(|_| round());
    let (cpu, wall) = (cost::cpu_seconds(me)? - cpu, started.elapsed().as_secs_f64());
    let rounds = f64::from(rounds.max(1));
    Ok((calls.take() as f64 / rounds, wall * 1e6 / rounds, cpu * 1e6 / rounds))
}

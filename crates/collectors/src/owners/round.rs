//! Resources that the owners use, read every ten seconds. The work is bounded: if there are too many processes or
//! threads, they take turns.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{KnownProcess, OwnersCollector, process_folder};
use attribution::proc::{self, Stat};
use attribution::usage::{self, Usage};
use host::reader::MAX_ABANDONED;
use model::catalog::OwnerKind;
use model::clock::Mono;
use model::cpus::CpuSet;
use model::owners::{CpuTime, Owner, OwnerReading};

/// Maximum number of processes read at a time.
const MOST_PROCESSES: usize = 512;
/// Maximum number of processes read at a time per owner.
const MOST_OF_OWNER: usize = 64;
/// Maximum number of threads read at a time. A thread costs about 10 us of CPU time.
const MOST_THREADS: usize = 2048;
/// Maximum number of threads read per process.
const MOST_OF_PROCESS: usize = 256;
/// Minimum of the number of threads read per process if there are many processes.
const FEWEST_OF_PROCESS: usize = 4;
/// Number of busiest threads of a process whose CPUs count as the CPUs that the process ran on.
const BUSIEST: usize = 16;

/// Reading of one process.
struct ProcessReading {
    stat: Stat,
    allowed: Option<CpuSet>,
    threads: Vec<(u32, Stat)>,
}

impl OwnersCollector {
    /// Reads the resource use of the owners whose turn it is.
    pub(super) fn round(&mut self) -> Vec<OwnerReading> {
        self.turn = self.turn.wrapping_add(1);
        let mut owners: BTreeMap<Arc<str>, (Arc<Owner>, Vec<u32>)> = BTreeMap::new();
        for (pid, known) in &self.known {
            if known.unlisted.is_none()
                && known.started.is_some()
                && known.identity.owner.kind != OwnerKind::Unknown
            {
                let of = || (Arc::clone(&known.identity.owner), Vec::new());
                owners.entry(Arc::clone(&known.identity.owner.id)).or_insert_with(of).1.push(*pid);
            }
        }
        let mut chosen = Vec::new();
        let mut processes = 0;
        let mut all: Vec<(Arc<Owner>, Vec<u32>)> = owners.into_values().collect();
        let next = self.after.take().map_or(0, |after| all.partition_point(|(owner, _)| owner.id <= after));
        all.rotate_left(next);
        for (owner, mut pids) in all {
            pids.sort_unstable();
            let complete = pids.len() <= MOST_OF_OWNER;
            let pids: Vec<u32> = in_turn(pids, self.turn, MOST_OF_OWNER).collect();
            if processes + pids.len() > MOST_PROCESSES {
                self.after = chosen.last().map(|(owner, _, _): &(Arc<Owner>, _, _)| Arc::clone(&owner.id));
                break;
            }
            processes += pids.len();
            chosen.push((owner, pids, complete));
        }
        let threads = (MOST_THREADS / processes.max(1)).clamp(FEWEST_OF_PROCESS, MOST_OF_PROCESS);
        let mut readings = Vec::new();
        for (owner, pids, complete) in chosen {
            if self.context.stop.stopped() {
                break;
            }
            readings.push(self.read_owner(&owner, &pids, complete, threads));
        }
        readings
    }

    fn read_owner(&mut self, owner: &Owner, pids: &[u32], complete: bool, threads: usize) -> OwnerReading {
        let mut sum = Sum { complete, ..Sum::default() };
        for pid in pids {
            match self.read_process(*pid, threads) {
                Some(process) => {
                    if let Some(known) = self.known.get_mut(pid) {
                        sum.add(known, &process);
                    }
                }
                None => sum.complete = false,
            }
        }
        let usage = if owner.cgroup.is_empty() {
            Usage::default()
        } else {
            let (host, group) = (Arc::clone(&self.host), Arc::clone(&owner.cgroup));
            self.reader.read(MAX_ABANDONED, move || usage::look(&host, &group)).unwrap_or_default()
        };
        let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
        let own = sum.complete && owner.cgroup.is_empty();
        let own_time = || CpuTime {
            user: seconds(sum.ticks.saturating_sub(sum.system_ticks)),
            system: seconds(sum.system_ticks),
        };
        OwnerReading {
            owner: Arc::clone(&owner.id),
            taken: Mono::now(),
            allowed_cpus: sum.allowed,
            ran_on: sum.ran_on,
            memory_by_node: usage.memory_by_node,
            cpu_seconds: usage.cpu_seconds.or(own.then(|| own_time().total())),
            cpu_time: usage.cpu_time.or(own.then(own_time)),
            cpu_limit: usage.cpu_limit,
            busiest_thread: sum.busiest.map(|busy| (busy.thread, seconds(busy.ticks))),
            oom_kills: usage.oom_kills,
        }
    }

    /// Reads one process. If another process has the same ID now, it is identified again.
    fn read_process(&mut self, pid: u32, most: usize) -> Option<ProcessReading> {
        let folder = process_folder(&self.host, pid);
        let read = self.reader.read(MAX_ABANDONED, move || {
            let stat = proc::read_stat(&folder).ok()?;
            let (_, allowed) = proc::read_status(&folder).ok()?;
            Some(ProcessReading { stat, allowed, threads: proc::read_threads(&folder, most) })
        });
        let process = read.ok().flatten()?;
        if self.known.get(&pid)?.started != Some(process.stat.started) {
            self.known.remove(&pid);
            return None;
        }
        Some(process)
    }
}

/// Returns at most `most` items, with a different start on every turn.
fn in_turn<T>(mut all: Vec<T>, turn: usize, most: usize) -> impl Iterator<Item = T> {
    if all.len() > most {
        let first = turn.wrapping_mul(most) % all.len();
        all.rotate_left(first);
    }
    all.into_iter().take(most)
}

/// Busiest thread so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BusyThread {
    worked: u64,
    thread: u32,
    ticks: u64,
}

/// Sums over the processes of an owner.
#[derive(Debug, Default)]
struct Sum {
    allowed: Option<CpuSet>,
    ran_on: BTreeMap<u32, u32>,
    ticks: u64,
    system_ticks: u64,
    complete: bool,
    busiest: Option<BusyThread>,
}

impl Sum {
    fn add(&mut self, known: &mut KnownProcess, process: &ProcessReading) {
        let stat = &process.stat;
        let (ticks, system_ticks) = *known.first.get_or_insert((stat.ticks, stat.system_ticks));
        self.ticks = self.ticks.saturating_add(stat.ticks.saturating_sub(ticks));
        self.system_ticks = self.system_ticks.saturating_add(stat.system_ticks.saturating_sub(system_ticks));
        if let Some(allowed) = &process.allowed {
            self.allowed = Some(self.allowed.take().map_or_else(|| allowed.clone(), |all| all.or(allowed)));
        }
        let mut now = HashMap::new();
        let mut worked = Vec::new();
        for (thread, stat) in &process.threads {
            now.insert(*thread, stat.ticks);
            // For a thread that is seen for the first time, all of its CPU time counts.
            let before = known.threads.get(thread).copied().unwrap_or(0);
            let busy =
                BusyThread { worked: stat.ticks.saturating_sub(before), thread: *thread, ticks: stat.ticks };
            worked.push((busy, stat.cpu));
        }
        known.threads = now;
        worked.sort_by_key(|(busy, _)| (std::cmp::Reverse(busy.worked), busy.thread));
        for (busy, cpu) in worked.iter().filter(|(busy, _)| busy.worked > 0).take(BUSIEST) {
            if let Some(cpu) = cpu {
                *self.ran_on.entry(*cpu).or_default() += 1;
            }
            if self.busiest.is_none_or(|busiest| busy.worked > busiest.worked) {
                self.busiest = Some(*busy);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> KnownProcess {
        let identity = super::super::ProcessOwner::unknown();
        let (first, threads) = (None, HashMap::new());
        KnownProcess { started: Some(1), identity, unlisted: None, again: None, first, threads }
    }

    fn process(allowed: &str, threads: &[(u32, u64, u32)]) -> ProcessReading {
        let stat = |ticks, cpu| Stat { started: 1, ticks, system_ticks: ticks / 10, cpu: Some(cpu) };
        let ticks = threads.iter().map(|(_, ticks, _)| ticks).sum();
        let threads = threads.iter().map(|(tid, ticks, cpu)| (*tid, stat(*ticks, *cpu))).collect();
        ProcessReading { stat: stat(ticks, 0), allowed: allowed.parse().ok(), threads }
    }

    #[test]
    fn threads_that_did_not_work_since_the_last_reading_ran_nowhere() {
        let mut one = known();
        let mut first = Sum::default();
        first.add(&mut one, &process("0-3", &[(10, 500, 0), (11, 900, 2), (12, 0, 7)]));
        assert_eq!(first.ran_on, [(0, 1), (2, 1)].into());
        assert_eq!(first.busiest.map(|busy| busy.thread), Some(11));
        let mut second = Sum::default();
        second.add(&mut one, &process("0-3", &[(10, 600, 1), (11, 900, 2), (12, 0, 7)]));
        second.add(&mut known(), &process("8", &[(20, 3, 8)]));
        assert_eq!((second.ran_on, second.ticks), ([(1, 1), (8, 1)].into(), 100));
        let busiest = BusyThread { worked: 100, thread: 10, ticks: 600 };
        assert_eq!(
            (second.busiest, second.allowed.map(|a| a.to_string())),
            (Some(busiest), Some("0-3,8".into()))
        );
    }

    #[test]
    fn a_process_that_joins_an_owner_adds_none_of_its_past() {
        let (mut one, mut two) = (known(), known());
        let ticks = |processes: [Option<(&mut KnownProcess, u64)>; 2]| {
            let mut sum = Sum::default();
            for (known, ticks) in processes.into_iter().flatten() {
                sum.add(known, &process("0", &[(10, ticks, 0)]));
            }
            (sum.ticks, sum.system_ticks)
        };
        assert_eq!(ticks([Some((&mut one, 500)), None]), (0, 0));
        assert_eq!(ticks([Some((&mut one, 700)), Some((&mut two, 90_000))]), (200, 20));
        assert_eq!(ticks([Some((&mut one, 700)), Some((&mut two, 90_010))]), (210, 21));
    }

    #[test]
    fn every_owner_gets_a_turn() {
        let mut seen = std::collections::BTreeSet::new();
        for turn in 0..4 {
            let some: Vec<u32> = in_turn((0..10).collect(), turn, 3).collect();
            assert_eq!(some.len(), 3);
            seen.extend(some);
        }
        assert_eq!(seen.len(), 10);
        assert_eq!(in_turn(vec![1, 2], 7, 3).count(), 2);
    }
}

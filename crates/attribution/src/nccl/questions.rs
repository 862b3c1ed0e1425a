//! Decides when NCCL may be queried. All jobs of a node share one port, and the kernel chooses the process that
//! answers, so a query must be safe for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{RankCounts, RankPlace, SAFE, Status};
use model::clock::Mono;

/// Interval between queries while no kernels are waiting.
const STEADY: Duration = Duration::from_secs(60);
/// Interval while kernels of an owner are waiting.
const WAITING: Duration = Duration::from_secs(30);
/// Interval when kernels of an owner have started to wait.
const URGENT: Duration = Duration::from_secs(10);
/// Maximum number of times that failures double these intervals.
const MOST_DOUBLED: u32 = 4;
/// Time for which a process that no GPU lists may still be alive.
const GONE: Duration = Duration::from_secs(60);
/// Time since the last computation within which a place cannot be hanging.
const LATELY: Duration = Duration::from_secs(10);

/// State of the processes and their NCCL.
#[derive(Debug)]
pub struct Questions {
    /// Minimum age of every process before a query.
    after: Duration,
    /// Processes that are or recently were on the GPUs, with the times of the first and the last listing.
    processes: BTreeMap<u32, (Mono, Mono)>,
    /// Processes because of which no query is made.
    old: BTreeSet<u32>,
    /// Jobs that may be queried again.
    jobs: Vec<Job>,
    last: Option<Mono>,
    /// Number of consecutive failed queries.
    failed: u32,
    /// Owners whose kernels waited during a query, with the time when they last waited. An owner that waits
    /// again soon is not urgent.
    asked_of: BTreeMap<Arc<str>, Mono>,
}

/// A job that has answered and may be queried again.
#[derive(Debug)]
struct Job {
    /// Process ids of the job on this host.
    pids: BTreeSet<u32>,
    /// Whether a query is safe while a rank may be missing.
    is_safe: bool,
}

impl Questions {
    /// Returns a state in which no query is made before every process has been listed for `after`.
    pub fn new(after: Duration) -> Questions {
        Questions {
            after,
            processes: BTreeMap::new(),
            old: BTreeSet::new(),
            jobs: Vec::new(),
            last: None,
            failed: 0,
            asked_of: BTreeMap::new(),
        }
    }

    /// Updates the processes on the GPUs, and returns whether to query NCCL now.
    pub fn look(&mut self, places: &[RankPlace], now: Mono) -> bool {
        let listed: BTreeSet<u32> = places.iter().flat_map(|place| place.pids.iter().copied()).collect();
        for pid in &listed {
            self.processes.entry(*pid).or_insert((now, now)).1 = now;
        }
        self.processes.retain(|_, (_, last)| now.since(*last) <= GONE);
        self.old.retain(|pid| self.processes.contains_key(pid));
        self.jobs.retain(|job| job.pids.iter().any(|pid| self.processes.contains_key(pid)));
        let waiting: BTreeSet<&Arc<str>> =
            places.iter().filter(|place| place.waits_since.is_some()).map(|place| &place.owner).collect();
        for (_, waited) in self.asked_of.iter_mut().filter(|(owner, _)| waiting.contains(owner)) {
            *waited = now;
        }
        self.asked_of.retain(|_, waited| now.since(*waited) <= STEADY);
        let young = self.processes.values().any(|(first, _)| now.since(*first) < self.after);
        if listed.is_empty() || young || !self.old.is_empty() || !self.is_safe(places, &listed, now) {
            return false;
        }
        let base = match waiting.is_empty() {
            true => STEADY,
            false if waiting.iter().any(|owner| !self.asked_of.contains_key(*owner)) => URGENT,
            false => WAITING,
        };
        let pause = base * 2u32.pow(self.failed.min(MOST_DOUBLED));
        if self.last.is_some_and(|last| now.since(last) < pause) {
            return false;
        }
        self.last = Some(now);
        self.asked_of.extend(waiting.into_iter().map(|owner| (Arc::clone(owner), now)));
        true
    }

    /// Returns whether no rank can be missing from a job for which that would be unsafe or of unknown safety:
    /// each of its places has recently computed, and no process has left. Waiting kernels do not compute.
    fn is_safe(&self, places: &[RankPlace], listed: &BTreeSet<u32>, now: Mono) -> bool {
        let is_safe = |pid: &u32| self.jobs.iter().any(|job| job.is_safe && job.pids.contains(pid));
        let works = |place: &RankPlace| place.worked.is_some_and(|worked| now.since(worked) <= LATELY);
        let mut known = self.processes.keys().chain(self.jobs.iter().flat_map(|job| &job.pids));
        known.all(|pid| listed.contains(pid) || is_safe(pid))
            && places.iter().all(|place| works(place) || place.pids.iter().all(is_safe))
    }

    /// Records that there was no socket.
    pub fn found_none(&mut self) {
        self.failed = 0;
    }

    /// Records that there was no answer.
    pub fn failed(&mut self) {
        self.failed = self.failed.saturating_add(1);
    }

    /// Records that one of the processes has or may have an NCCL that must not be queried. No query is made
    /// while one of the current processes is alive.
    pub fn refused(&mut self) {
        self.old.extend(self.processes.keys());
    }

    /// Records an answer that was joined with the processes on this node. `here` is the number of its ranks on
    /// this node. Returns whether this NCCL may be queried again. A release below [`SAFE`] may be queried only
    /// if it has one communicator and all its ranks here are identified, because otherwise it cannot be
    /// observed whether they compute.
    pub fn answered(
        &mut self,
        status: &Status,
        joined: &[(u32, &RankPlace, &RankCounts)],
        here: usize,
    ) -> bool {
        self.failed = 0;
        let is_safe = status.version >= SAFE;
        let is_whole = here > 0 && joined.len() == here;
        if status.is_old() || !(is_safe || (status.communicators == 1 && is_whole)) {
            self.refused();
            return false;
        }
        let pids: BTreeSet<u32> = joined.iter().map(|(pid, ..)| *pid).collect();
        self.jobs.retain(|known| known.pids.is_disjoint(&pids));
        self.jobs.push(Job { pids, is_safe });
        true
    }
}

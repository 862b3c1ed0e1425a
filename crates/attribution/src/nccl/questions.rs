//! When NCCL may be asked. All jobs of a node share one port, and the kernel picks the process that answers: so a question
//! must be safe for each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{RankCounts, RankPlace, SAFE, Status};
use model::clock::Mono;

/// Time between two questions.
const STEADY: Duration = Duration::from_secs(60);
/// The same while an owner's kernels wait.
const WAITING: Duration = Duration::from_secs(30);
/// The same when an owner's kernels have begun to wait.
const URGENT: Duration = Duration::from_secs(10);
/// Most times that failures double these.
const MOST_DOUBLED: u32 = 4;
/// How long a process that no GPU lists may still be alive.
const GONE: Duration = Duration::from_secs(60);
/// A place that has computed within this time does not halt.
const LATELY: Duration = Duration::from_secs(10);

/// What is known of the processes and their NCCL.
#[derive(Debug)]
pub struct Questions {
    /// Least age of every process.
    after: Duration,
    /// Processes on the GPUs, or lately there: when each was seen first and last.
    processes: BTreeMap<u32, (Mono, Mono)>,
    /// Processes because of which none is asked.
    old: BTreeSet<u32>,
    /// Jobs that may be asked again.
    jobs: Vec<Job>,
    last: Option<Mono>,
    /// Questions in a row that went wrong.
    failed: u32,
    /// Owners whose kernels waited at a question, and when they waited last: one that waits again so soon is not urgent.
    asked_of: BTreeMap<Arc<str>, Mono>,
}

/// A job that has answered, and may be asked again.
#[derive(Debug)]
struct Job {
    /// Its processes here, as the host sees them.
    pids: BTreeSet<u32>,
    /// Whether it may be asked while a rank may be missing.
    is_safe: bool,
}

impl Questions {
    /// None is asked before all processes were seen for so long.
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

    /// Takes in the processes on the GPUs, and gives whether NCCL is asked now.
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

    /// Whether no rank may be missing of a job for which that is not safe, or not known to be: each of its places has
    /// computed lately, and no process has left. Kernels that wait do not compute.
    fn is_safe(&self, places: &[RankPlace], listed: &BTreeSet<u32>, now: Mono) -> bool {
        let is_safe = |pid: &u32| self.jobs.iter().any(|job| job.is_safe && job.pids.contains(pid));
        let works = |place: &RankPlace| place.worked.is_some_and(|worked| now.since(worked) <= LATELY);
        let mut known = self.processes.keys().chain(self.jobs.iter().flat_map(|job| &job.pids));
        known.all(|pid| listed.contains(pid) || is_safe(pid))
            && places.iter().all(|place| works(place) || place.pids.iter().all(is_safe))
    }

    /// There was no socket.
    pub fn found_none(&mut self) {
        self.failed = 0;
    }

    /// There was no answer.
    pub fn failed(&mut self) {
        self.failed = self.failed.saturating_add(1);
    }

    /// One of the processes has a NCCL that must not be asked, or may have: none is, while a process of now lives.
    pub fn refused(&mut self) {
        self.old.extend(self.processes.keys());
    }

    /// Takes in an answer, joined with the processes here; `here`: its ranks on this node. Gives whether its NCCL may be
    /// asked again. Below [`SAFE`] it may only with one communicator, and if all its ranks here are known: whether they
    /// compute could not be seen else.
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

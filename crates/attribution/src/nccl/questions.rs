//! When NCCL may be asked. All jobs of a node share one port, and the kernel picks the process that answers: so a question
//! must be safe for each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{NcclVersion, RankPlace, SAFE, Status};
use model::catalog::Cause;
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

/// What is known of the processes and their NCCL.
#[derive(Debug)]
pub struct Questions {
    /// Least age of every process.
    after: Duration,
    /// Processes on the GPUs, or lately there: when each was seen first and last.
    processes: BTreeMap<u32, (Mono, Mono)>,
    /// Processes because of which none is asked.
    old: BTreeSet<u32>,
    /// Jobs that have answered.
    jobs: Vec<Job>,
    last: Option<Mono>,
    /// Questions in a row that went wrong.
    failed: u32,
    /// Owners whose kernels waited at a question, and when they waited last: one that waits again so soon is not urgent.
    asked_of: BTreeMap<Arc<str>, Mono>,
}

/// What is known of a job by its last answer.
#[derive(Debug)]
struct Job {
    /// Its processes here, as the host sees them.
    pids: BTreeSet<u32>,
    version: NcclVersion,
    communicators: usize,
}

impl Job {
    /// Whether it may be asked while a rank may be missing.
    fn is_safe(&self) -> bool {
        self.version >= SAFE || self.communicators <= 1
    }
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
        if listed.is_empty() || young || !self.old.is_empty() || !self.is_safe(places, &listed) {
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

    /// Whether no rank may be missing of a job for which that is not safe.
    fn is_safe(&self, places: &[RankPlace], listed: &BTreeSet<u32>) -> bool {
        let lacks = |job: &Job| job.pids.iter().any(|pid| !listed.contains(pid));
        if self.jobs.iter().any(|job| !job.is_safe() && lacks(job)) {
            return false;
        }
        let answered = |place: &RankPlace| {
            let of = |job: &&Job| place.pids.iter().any(|pid| job.pids.contains(pid));
            self.jobs.iter().find(of)
        };
        let several = |owner: &Arc<str>| places.iter().filter(|place| place.owner == *owner).count() > 1;
        let halted = |place: &&RankPlace| match place.cause {
            Some(Cause::Wedged) => true,
            // A program alone that rests lacks no rank here.
            Some(Cause::Stalled) => several(&place.owner),
            _ => place.waits_since.is_some(),
        };
        let mut halted = places.iter().filter(halted);
        halted.all(|place| answered(place).is_some_and(Job::is_safe))
    }

    /// There was no socket.
    pub fn found_none(&mut self) {
        self.failed = 0;
    }

    /// There was no answer, or none that can be read.
    pub fn failed(&mut self) {
        self.failed = self.failed.saturating_add(1);
    }

    /// One of the processes has a NCCL that must not be asked: none is, while a process of now lives.
    pub fn refused(&mut self) {
        self.old.extend(self.processes.keys());
    }

    /// Takes in an answer about these processes of this node; gives whether its NCCL may be asked again.
    pub fn answered(&mut self, status: &Status, pids: BTreeSet<u32>) -> bool {
        self.failed = 0;
        let Status { version, communicators, hosts, .. } = *status;
        let job = Job { pids, version, communicators };
        // Ranks on other nodes may go missing unseen.
        if status.is_old() || (hosts > 1 && !job.is_safe()) {
            self.refused();
            return false;
        }
        self.jobs.retain(|known| known.pids.is_disjoint(&job.pids));
        if !job.pids.is_empty() {
            self.jobs.push(job);
        }
        true
    }
}

//! Owners of the processes on the GPUs and the host resources that they use. Every process is identified once, when it
//! is first listed; the resource use is read every ten seconds. Allocations are published whether they are used or not.
//! Reads that may block run in helper threads with a deadline ([`host::reader`]), so this thread never waits for them.

mod allocations;
pub(super) mod claims;
mod hpc_jobs;
mod round;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use self::allocations::Allocations;
use self::hpc_jobs::HpcJobs;
use super::{Context, put_node_row};
use crate::views::{DeviceId, GpuWork, View};
use attribution::environ::SlurmEnvironment;
use attribution::identify::{OwnerEvidence, owner};
use attribution::names::PodNames;
use attribution::pods::{KubeletStatus, Pods};
use attribution::users::{self, Users};
use attribution::{cgroup, environ, proc, usage};
use host::Host;
use host::reader::{DeadlineReader, MAX_ABANDONED, ReadFailure};
use ledger::inbox::LedgerEvent;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, AllocatedGpu, CollectorName, OwnerLookup};
use model::clock::{Cadence, Mono, boot_unix_seconds};
use model::owners::{Attribution, Owner, OwnerUpdate};
use model::sample::Rows;

/// Time between two readings of the resource use.
const READ_EVERY: Duration = Duration::from_secs(10);
/// Time for which an unlisted process stays known, because a visit to a GPU may fail.
const KEEP: Duration = Duration::from_secs(60);
/// Maximum wait for the names of a pod. It is shorter than the time after which the ledger counts a process as unowned.
const NAMES_WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of helpers that read environments. Such reads may hang and must leave helpers for the others.
const MOST_ENVIRONMENTS: usize = 2;
/// Number of readings after which a process whose identification timed out is tried again.
const LATE_AGAIN: u32 = 6;
/// Maximum number of attributions in one event.
const MOST_IN_EVENT: usize = 1000;
/// Maximum wait for a snapshot, after which the stop signal is checked.
const LOOK: Duration = Duration::from_millis(500);
/// Maximum number of bytes read from `/proc/PID/cgroup`.
const MOST_CGROUP_BYTES: u64 = 64 * 1024;

pub(crate) fn run(context: Context, work: View<GpuWork>, pods: Arc<Pods>) {
    if !context.config().owners.enabled {
        return context.switched_off(CollectorName::Owners, "owners.enabled");
    }
    let config = &context.config();
    let host = Arc::new(Host::new(&config.host.root));
    let jobs = |dir: &PathBuf| HpcJobs::new(dir, &host, config.owners.read_timeout, &context.stop);
    let hpc_jobs = config.dcgm.hpc_job_dir.as_ref().map(jobs);
    let collector = OwnersCollector {
        hpc_jobs,
        allocations: Allocations::new(&config.owners, &host, &context.stop),
        host,
        reader: DeadlineReader::new("owners-reader", config.owners.read_timeout, context.stop.clone()),
        known: HashMap::new(),
        waiting: HashMap::new(),
        names: HashMap::new(),
        owners: HashMap::new(),
        users: Arc::default(),
        lookups: [0; OwnerLookup::ALL.len()],
        sent_lookups: None,
        stuck: None,
        turn: 0,
        after: None,
        every: READ_EVERY.min(config.metrics.publish_interval * 10),
        context,
        work,
        pods,
    };
    collector.run();
}

/// Process whose owner was looked up.
#[derive(Debug)]
struct KnownProcess {
    /// Start time in clock ticks; `None` if the process was gone or unreadable.
    started: Option<u64>,
    identity: ProcessOwner,
    /// Start of the period in which no GPU lists the process.
    unlisted: Option<Mono>,
    /// Time of the next attempt if the identification timed out, because a machine may be slow for only a moment.
    again: Option<Mono>,
    /// CPU time in clock ticks at the first reading, in total and in the kernel. Earlier CPU time is not charged to the
    /// owner.
    first: Option<(u64, u64)>,
    /// CPU time of the threads at the last reading, by thread ID.
    threads: HashMap<u32, u64>,
}

/// Owner of a process.
#[derive(Clone, Debug)]
struct ProcessOwner {
    owner: Arc<Owner>,
    /// Key of the container in [`OwnersCollector::names`].
    container: Option<String>,
}

impl ProcessOwner {
    fn unknown() -> ProcessOwner {
        ProcessOwner { owner: Arc::new(Owner::unknown()), container: None }
    }
}

struct OwnersCollector {
    context: Context,
    work: View<GpuWork>,
    pods: Arc<Pods>,
    host: Arc<Host>,
    reader: DeadlineReader,
    known: HashMap<u32, KnownProcess>,
    /// Processes of pods whose names may still arrive, with the time of the first attempt.
    waiting: HashMap<u32, Mono>,
    /// Names of the containers with processes here, by [`container_key`]. A container keeps the names that its first
    /// process got.
    names: HashMap<String, Option<PodNames>>,
    /// Owners of the known processes, by ID.
    owners: HashMap<Arc<str>, Arc<Owner>>,
    users: Arc<Users>,
    lookups: [u64; OwnerLookup::ALL.len()],
    sent_lookups: Option<[u64; OwnerLookup::ALL.len()]>,
    /// Reported reason why reads do not return.
    stuck: Option<&'static str>,
    /// Number of readings so far. It selects the processes of the next reading if there are too many for one.
    turn: usize,
    /// Last owner that was read if not all could be read; the next round continues after it.
    after: Option<Arc<str>>,
    every: Duration,
    allocations: Allocations,
    /// Jobs that a scheduler's hooks record; `None` if no directory is configured.
    hpc_jobs: Option<HpcJobs>,
}

impl OwnersCollector {
    fn run(mut self) {
        let mut cadence = Cadence::new(self.every, Duration::ZERO);
        let mut seen = 0;
        while !self.context.stop.stopped() {
            let (sequence, work) = self.work.wait_for_newer(seen, LOOK);
            let now = Mono::now();
            let due = cadence.tick(now);
            if due {
                self.refresh();
            }
            if sequence > seen {
                seen = sequence;
                self.attribute(&work, now);
            }
            if due {
                self.forget();
                let readings = self.round();
                if !readings.is_empty() {
                    self.context.inbox.event(LedgerEvent::Owners(OwnerUpdate::Read(readings)));
                }
                self.allocations.round(&work, now);
                self.hpc_jobs.iter_mut().for_each(HpcJobs::round);
            }
            let stuck = (self.reader.abandoned() >= MAX_ABANDONED)
                .then_some("reading processes does not return: no more are tried until it does");
            let stuck = stuck.or_else(|| self.allocations.trouble());
            if std::mem::replace(&mut self.stuck, stuck) != stuck {
                self.context.unavailable(CollectorName::Owners, stuck.map(str::to_owned));
            }
            if due || self.sent_lookups != Some(self.lookups) {
                self.send(&work, now);
            }
        }
    }

    /// Rereads the names of users if they have changed.
    fn refresh(&mut self) {
        let (host, known) = (Arc::clone(&self.host), Arc::clone(&self.users));
        if let Ok(Some(newer)) = self.reader.read(MAX_ABANDONED, move || users::newer(&host, &known)) {
            self.users = Arc::new(newer);
        }
    }

    /// Identifies the owners of newly listed processes.
    fn attribute(&mut self, work: &GpuWork, now: Mono) {
        let listed = &work.devices;
        for (pid, known) in &mut self.known {
            if !listed.contains_key(pid) {
                known.unlisted.get_or_insert(now);
            }
        }
        self.known.retain(|_, known| known.unlisted.is_none_or(|since| now.since(since) < KEEP));
        self.waiting.retain(|pid, _| listed.contains_key(pid));
        let mut found = Vec::new();
        // A read that still hangs may be of this process.
        let idle = self.reader.abandoned() == 0;
        for (pid, places) in listed {
            let again = |known: &KnownProcess| idle && known.again.is_some_and(|at| now >= at);
            if self.known.get(pid).is_some_and(|known| known.unlisted.is_none() && !again(known)) {
                continue;
            }
            if self.context.stop.stopped() {
                return;
            }
            let Some(attribution) = self.look_up(*pid, places, work, now) else { continue };
            found.push(attribution);
        }
        for found in found.chunks(MOST_IN_EVENT) {
            self.context.inbox.event(LedgerEvent::Owners(OwnerUpdate::Attributed(found.to_vec())));
        }
    }

    /// Identifies the owner of one process. Returns `None` if it must be tried again.
    fn look_up(&mut self, pid: u32, places: &[DeviceId], work: &GpuWork, now: Mono) -> Option<Attribution> {
        let host = Arc::clone(&self.host);
        let late = self.known.get(&pid).is_some_and(|known| known.again.is_some());
        let before = self.known.get(&pid).map(|known| (known.started, known.identity.clone()));
        let looked = self.reader.read(MAX_ABANDONED, move || look_at(&host, pid));
        let (outcome, started, identity) = match looked {
            Err(ReadFailure::NotTried) => return None,
            Err(ReadFailure::Late) => (OwnerLookup::Late, None, ProcessOwner::unknown()),
            Ok(Err(error)) => {
                // The process has ended since it was identified; its owner stays.
                let (started, identity) = before.unwrap_or_else(|| (None, ProcessOwner::unknown()));
                (failed_lookup(&error), started, identity)
            }
            Ok(Ok(seen)) => {
                let started = Some(seen.started);
                match before {
                    Some((known, identity)) if known == started && !late => {
                        (OwnerLookup::Found, started, identity)
                    }
                    _ => {
                        let (outcome, identity) = self.identify(pid, seen, places, work, now)?;
                        (outcome, started, identity)
                    }
                }
            }
        };
        self.lookups[outcome as usize] += 1;
        self.waiting.remove(&pid);
        let again = (outcome == OwnerLookup::Late).then(|| now + self.every * LATE_AGAIN);
        let owner = Arc::clone(&identity.owner);
        let same = self.known.get(&pid).filter(|known| known.started == started);
        let (first, threads) = (same.and_then(|known| known.first), HashMap::new());
        let known = KnownProcess { started, identity, unlisted: None, again, first, threads };
        self.known.insert(pid, known);
        let ticks = procfs::ticks_per_second() as f64;
        let started = started.map(|started| boot_unix_seconds() + started as f64 / ticks);
        Some(Attribution { pid, started, owner })
    }

    /// Determines the owner of a process. Returns `None` if the names of its pod may still arrive.
    fn identify(
        &mut self,
        pid: u32,
        seen: LookedUp,
        places: &[DeviceId],
        work: &GpuWork,
        now: Mono,
    ) -> Option<(OwnerLookup, ProcessOwner)> {
        let mut outcome = OwnerLookup::Found;
        let LookedUp { membership, group_exists, user, .. } = seen;
        let mut environment = SlurmEnvironment::default();
        if self.context.config().owners.slurm_environment && environ::is_asked(&membership) {
            let host = Arc::clone(&self.host);
            match self.reader.read(MOST_ENVIRONMENTS, move || read_environment(&host, pid)) {
                Ok(said) => environment = said,
                // The environment was not read because other reads hang, so its content is unknown.
                Err(ReadFailure::Late | ReadFailure::NotTried) => outcome = OwnerLookup::Late,
            }
        }
        let names = match self.names(&membership) {
            Some(names) => Some(names),
            None if membership.innermost == cgroup::Innermost::Pod => {
                let claimed = self.claimed(places, work, &membership);
                // The kubelet lists a new pod at its next visit.
                let may_come = matches!(self.pods.status(), KubeletStatus::Unasked | KubeletStatus::Answers);
                let since = *self.waiting.entry(pid).or_insert(now);
                if claimed.is_none() && may_come && now.since(since) < NAMES_WITHIN {
                    return None;
                }
                claimed
            }
            None => None,
        };
        let container = container_key(&membership);
        // A nested container may be named after the container around it.
        if let Some(key) = container.clone().filter(|_| names.is_some() || !membership.is_nested()) {
            self.names.entry(key).or_insert_with(|| names.clone());
        }
        let user = membership.user.or(user).map(|user| self.users.name(user));
        let owner = owner(&OwnerEvidence { membership, environment, names, user, group_exists });
        Some((outcome, ProcessOwner { owner: self.shared(owner), container }))
    }

    /// Returns the known owner with the same ID, so that an owner with many processes is stored once. Processes of
    /// several users can belong to one unit or job: the user of the first process stays, and so does the first account
    /// that a process names. All processes of the job share that account.
    fn shared(&mut self, mut owner: Owner) -> Arc<Owner> {
        if let Some(known) = self.owners.get(&owner.id) {
            let keep = |own: &mut String, known: &String| {
                if !known.is_empty() {
                    own.clone_from(known);
                }
            };
            keep(&mut owner.info.user, &known.info.user);
            keep(&mut owner.info.slurm_account, &known.info.slurm_account);
            if **known == owner {
                return Arc::clone(known);
            }
        }
        let owner = Arc::new(owner);
        let processes = self.known.values_mut().map(|known| &mut known.identity.owner);
        processes.filter(|of| of.id == owner.id).for_each(|of| of.clone_from(&owner));
        self.owners.insert(Arc::clone(&owner.id), Arc::clone(&owner));
        owner
    }

    /// Returns the names of the pod and container, from the cache or the paths of the kubelet's logs.
    fn names(&mut self, membership: &cgroup::Membership) -> Option<PodNames> {
        let key = container_key(membership)?;
        if let Some(known) = self.names.get(&key) {
            return known.clone();
        }
        let host = Arc::clone(&self.host);
        let (uid, id) = (membership.pod_uid.clone(), membership.outermost_container.clone());
        let looked = self
            .reader
            .read(MAX_ABANDONED, move || attribution::names::look(&host, uid.as_deref(), id.as_deref()));
        looked.ok().flatten()
    }

    /// Returns the names from the kubelet's list if exactly one container has the device of the process. No other pod
    /// may have a process there, because a pod can use a device that it was not assigned.
    fn claimed(
        &self,
        places: &[DeviceId],
        work: &GpuWork,
        membership: &cgroup::Membership,
    ) -> Option<PodNames> {
        let claims = self.pods.claims();
        if claims.all.is_empty() {
            return None;
        }
        let uid = membership.pod_uid.as_deref()?;
        let mut named: Option<PodNames> = None;
        for place in places {
            let others = work.devices.iter().filter(|(_, at)| at.contains(place));
            let mut pods =
                others.filter_map(|(pid, _)| self.known.get(pid)).map(|known| &known.identity.owner.info);
            if pods.any(|info| info.pod_uid != uid) {
                return None;
            }
            let devices = work.plugin_names(place);
            let at = AllocatedGpu::new(&place.0, place.1.map(|(instance, _)| instance));
            let claim = claims.only_one(|claim| match &claim.dynamic {
                Some(dynamic) => self.allocations.resolve(dynamic, work).is_ok_and(|given| given == at),
                None => claim.gpu_ids().any(|id| devices.iter().any(|name| **name == **id)),
            })?;
            let names = PodNames {
                namespace: claim.namespace.to_string(),
                pod: claim.pod.to_string(),
                container: Some(claim.container.to_string()),
                uid: Some(uid.to_owned()),
            };
            if named.as_ref().is_some_and(|before| *before != names) {
                return None;
            }
            named = Some(names);
        }
        named
    }

    /// Drops owners and names without processes.
    fn forget(&mut self) {
        self.owners.retain(|_, owner| Arc::strong_count(owner) > 1);
        let keys: HashSet<&String> =
            self.known.values().filter_map(|known| known.identity.container.as_ref()).collect();
        self.names.retain(|key, _| keys.contains(key));
    }

    /// Sends the number of look-ups and the allocations.
    fn send(&mut self, work: &GpuWork, taken: Mono) {
        self.sent_lookups = Some(self.lookups);
        let mut rows = Rows::default();
        for outcome in OwnerLookup::ALL {
            let count = self.lookups[*outcome as usize] as f64;
            put_node_row(&mut rows, &m::gpu_exporter_owner_lookups_total, (*outcome,), count);
        }
        let most = self.context.config().owners.max_series as usize;
        self.allocations.list(self.pods.claims(), taken);
        self.allocations.add_rows(&mut rows, work, &self.users, most);
        self.hpc_jobs.iter().for_each(|jobs| jobs.add_rows(&mut rows, work));
        self.context.send(CollectorName::Owners, taken, self.every, rows);
    }
}

/// Returns the key of a container; `None` if it is not the kubelet's. A container whose pod group is not visible may
/// still be the kubelet's, but a container of a user, or of a runtime that only people start, is not. A nested
/// container has the key of the container around it, because the kubelet does not track nested ones.
fn container_key(membership: &cgroup::Membership) -> Option<String> {
    use cgroup::Innermost;
    let runtime = membership.container.as_ref().and_then(|container| container.runtime);
    let peoples = matches!(runtime, Some("podman" | "lxc")) || membership.user.is_some();
    let may_be = membership.innermost == Innermost::Container && !peoples;
    let of_pod = membership.innermost >= Innermost::Job && membership.pod_uid.is_some();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (of_pod || may_be)
        .then(|| format!("{}/{}", text(&membership.pod_uid), text(&membership.outermost_container)))
}

/// Facts about a process.
#[derive(Debug)]
struct LookedUp {
    /// Start time in clock ticks since boot.
    started: u64,
    /// Membership from the control groups.
    membership: cgroup::Membership,
    /// Whether the directory of the control group is visible.
    group_exists: bool,
    /// User ID of the process.
    user: Option<u32>,
}

/// Converts the error of a look-up to its outcome.
fn failed_lookup(error: &io::Error) -> OwnerLookup {
    match error.kind() {
        io::ErrorKind::NotFound => OwnerLookup::Gone,
        io::ErrorKind::PermissionDenied => OwnerLookup::Refused,
        // ESRCH: the process ended during the read.
        _ if error.raw_os_error() == Some(nix::libc::ESRCH) => OwnerLookup::Gone,
        _ => OwnerLookup::Malformed,
    }
}

/// Returns the /proc directory of a process.
fn process_folder(host: &Host, pid: u32) -> PathBuf {
    host.path(format!("/proc/{pid}"))
}

/// Reads the facts about a process. Blocks, so it runs in a helper thread.
fn look_at(host: &Host, pid: u32) -> io::Result<LookedUp> {
    let folder = process_folder(host, pid);
    let before = proc::read_stat(&folder)?;
    let mut membership = cgroup::membership(&proc::read(&folder.join("cgroup"), MOST_CGROUP_BYTES)?);
    let (user, _) = proc::read_status(&folder)?;
    // Another process may have got the same ID meanwhile.
    if proc::read_stat(&folder)?.started != before.started {
        return Err(io::ErrorKind::NotFound.into());
    }
    if membership.relative && !membership.path.is_empty() {
        let mut maybe = cgroup::absolute(&membership.path).into_iter();
        membership.path = maybe.find(|path| usage::exists(host, path)).unwrap_or_default();
    }
    let group_exists = !membership.path.is_empty() && usage::exists(host, &membership.path);
    Ok(LookedUp { started: before.started, membership, group_exists, user })
}

/// Reads the environment of a process. Blocks, because the read takes the lock of the process's memory map.
fn read_environment(host: &Host, pid: u32) -> SlurmEnvironment {
    let path = process_folder(host, pid).join("environ");
    proc::read(&path, environ::MOST_BYTES as u64).map(|bytes| environ::said(&bytes)).unwrap_or_default()
}

#[cfg(test)]
mod tests;

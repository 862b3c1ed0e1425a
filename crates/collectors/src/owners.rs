//! Owners of the processes on the GPUs, and what their hosts say of them. Each process is looked up once, when
//! it is first listed; every ten seconds it is read what the owners use. Allocations are published whether used or not. Everything that could wait is read by
//! helper threads with a deadline ([`host::reader`]), so neither this thread nor anybody else waits.

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
use super::{Context, put_row};
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
use model::catalog::{self as m, AllocatedGpu, CollectorName, Node, OwnerLookup};
use model::clock::{Cadence, Mono, boot_unix_seconds};
use model::owners::{Attribution, Owner, OwnerUpdate};
use model::sample::Rows;

/// Time between two readings of what owners use.
const READ_EVERY: Duration = Duration::from_secs(10);
/// How long a process that is no longer listed stays known: a visit to a GPU may fail.
const KEEP: Duration = Duration::from_secs(60);
/// How long a pod may wait for its names: less than the ledger waits before it takes a process as unowned.
const NAMES_WITHIN: Duration = Duration::from_secs(3);
/// Helpers that environments may hold up: they are what can hang, and must leave others for the rest.
const MOST_ENVIRONMENTS: usize = 2;
/// A process whose reading was late is looked up again after so many readings of what owners use.
const LATE_AGAIN: u32 = 6;
/// Most attributions in one event.
const MOST_IN_EVENT: usize = 1000;
/// How long it is waited for a snapshot before it is looked whether it is time to end.
const LOOK: Duration = Duration::from_millis(500);
/// Most bytes read of `/proc/PID/cgroup`.
const MOST_CGROUP_BYTES: u64 = 64 * 1024;

/// Starts the collector.
pub(crate) fn run(context: Context, work: View<GpuWork>, pods: Arc<Pods>) {
    if !context.config().owners.enabled {
        return context.switched_off(CollectorName::Owners, "owners.enabled");
    }
    let config = &context.config();
    let host = Arc::new(Host::new(&config.host.root));
    let hpc_jobs = HpcJobs::new(&config.dcgm.hpc_job_dir, &host, config.owners.read_timeout, &context.stop);
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

/// A process that was looked up.
#[derive(Debug)]
struct KnownProcess {
    /// When it was started, in clock ticks; `None`: it was gone, or could not be read.
    started: Option<u64>,
    identity: ProcessOwner,
    /// Since when no GPU lists it.
    unlisted: Option<Mono>,
    /// When it is looked up again, if that was late: a machine may be slow for a moment only.
    again: Option<Mono>,
    /// Its CPU time at the first reading: ticks, and those of them in the kernel. What was before is not the owner's.
    first: Option<(u64, u64)>,
    /// CPU time of its threads at the last reading, by thread id.
    threads: HashMap<u32, u64>,
}

/// Whose a process is.
#[derive(Clone, Debug)]
struct ProcessOwner {
    owner: Arc<Owner>,
    /// Its container among [`OwnersCollector::names`].
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
    /// Pods whose names may still come, each since when.
    waiting: HashMap<u32, Mono>,
    /// Names of containers that have processes here, by [`container_key`]; a container keeps the ones its first
    /// process got.
    names: HashMap<String, Option<PodNames>>,
    /// Owners of the processes known, by identity.
    owners: HashMap<Arc<str>, Arc<Owner>>,
    users: Arc<Users>,
    lookups: [u64; OwnerLookup::ALL.len()],
    sent_lookups: Option<[u64; OwnerLookup::ALL.len()]>,
    /// Why readings do not return, as it was reported.
    stuck: Option<&'static str>,
    /// Counts readings, so that processes take turns where there are too many.
    turn: usize,
    /// The owner that was read last, if not all could be: those behind it are next.
    after: Option<Arc<str>>,
    every: Duration,
    allocations: Allocations,
    /// `None`: no scheduler writes them down.
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

    /// Reads the names of users again if they have changed.
    fn refresh(&mut self) {
        let (host, known) = (Arc::clone(&self.host), Arc::clone(&self.users));
        if let Ok(Some(newer)) = self.reader.read(MAX_ABANDONED, move || users::newer(&host, &known)) {
            self.users = Arc::new(newer);
        }
    }

    /// Finds the owners of newly listed processes.
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
        // Not while one still hangs: it may be this one.
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

    /// Looks one process up; `None` if that is to be tried again.
    fn look_up(&mut self, pid: u32, places: &[DeviceId], work: &GpuWork, now: Mono) -> Option<Attribution> {
        let host = Arc::clone(&self.host);
        let late = self.known.get(&pid).is_some_and(|known| known.again.is_some());
        let before = self.known.get(&pid).map(|known| (known.started, known.identity.clone()));
        let looked = self.reader.read(MAX_ABANDONED, move || look_at(&host, pid));
        let (outcome, started, identity) = match looked {
            Err(ReadFailure::NotTried) => return None,
            Err(ReadFailure::Late) => (OwnerLookup::Late, None, ProcessOwner::unknown()),
            Ok(Err(error)) => {
                // Gone since it was looked up: its owner stays.
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

    /// The owner of a process; `None` if its pod's names may still come.
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
                // Not tried because others are late: it is not known what it would have said.
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
        // What a nested container does not find, the one around it may.
        if let Some(key) = container.clone().filter(|_| names.is_some() || !membership.is_nested()) {
            self.names.entry(key).or_insert_with(|| names.clone());
        }
        let user = membership.user.or(user).map(|user| self.users.name(user));
        let owner = owner(&OwnerEvidence { membership, environment, names, user, group_exists });
        Some((outcome, ProcessOwner { owner: self.shared(owner), container }))
    }

    /// The owner as it is known already, so that one with many processes is kept once. Processes of different users
    /// can work for one unit or job: the first one's user stays, and the first account that one of them names.
    /// All its processes have the same one.
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

    /// Names of the pod and container, from what is known or from the kubelet's logs.
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

    /// Names by the kubelet's list: of the one container that has the process's device. Only if no other pod has a
    /// process there: a pod may use a device that it was not given.
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

    /// Forgets owners and names without processes.
    fn forget(&mut self) {
        self.owners.retain(|_, owner| Arc::strong_count(owner) > 1);
        let keys: HashSet<&String> =
            self.known.values().filter_map(|known| known.identity.container.as_ref()).collect();
        self.names.retain(|key, _| keys.contains(key));
    }

    /// Sends counts of look-ups, and what was given out.
    fn send(&mut self, work: &GpuWork, taken: Mono) {
        self.sent_lookups = Some(self.lookups);
        let mut rows = Rows::default();
        for outcome in OwnerLookup::ALL {
            let count = self.lookups[*outcome as usize] as f64;
            put_row(&mut rows, &Node {}, &m::gpu_exporter_owner_lookups_total, (*outcome,), count);
        }
        let most = self.context.config().owners.max_series as usize;
        self.allocations.list(self.pods.claims(), taken);
        self.allocations.add_rows(&mut rows, work, &self.users, most);
        self.hpc_jobs.iter().for_each(|jobs| jobs.add_rows(&mut rows, work));
        self.context.send(CollectorName::Owners, taken, self.every, rows);
    }
}

/// What tells one container of a pod from another; `None`: the kubelet does not know it. A container whose pod's
/// group is not seen may be the kubelet's all the same, but not one that a user has made, nor what only people start.
/// Containers within a container have its key: the kubelet knows only the outer one.
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

/// What was seen of a process.
#[derive(Debug)]
struct LookedUp {
    /// When it was started, in clock ticks since boot.
    started: u64,
    /// What its control groups say.
    membership: cgroup::Membership,
    /// Whether the group is there to be read.
    group_exists: bool,
    /// The user it runs as.
    user: Option<u32>,
}

/// What became of a look-up that failed like this.
fn failed_lookup(error: &io::Error) -> OwnerLookup {
    match error.kind() {
        io::ErrorKind::NotFound => OwnerLookup::Gone,
        io::ErrorKind::PermissionDenied => OwnerLookup::Refused,
        // A process that ends while it is read: ESRCH.
        _ if error.raw_os_error() == Some(nix::libc::ESRCH) => OwnerLookup::Gone,
        _ => OwnerLookup::Malformed,
    }
}

/// The folder of a process.
fn process_folder(host: &Host, pid: u32) -> PathBuf {
    host.path(format!("/proc/{pid}"))
}

/// Looks at a process. May wait: for a helper thread.
fn look_at(host: &Host, pid: u32) -> io::Result<LookedUp> {
    let folder = process_folder(host, pid);
    let before = proc::read_stat(&folder)?;
    let mut membership = cgroup::membership(&proc::read(&folder.join("cgroup"), MOST_CGROUP_BYTES)?);
    let (user, _) = proc::read_status(&folder)?;
    // Another process may have got the number meanwhile.
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

/// What a process's environment says. May wait: reading it takes the lock of the process's memory map.
fn read_environment(host: &Host, pid: u32) -> SlurmEnvironment {
    let path = process_folder(host, pid).join("environ");
    proc::read(&path, environ::MOST_BYTES as u64).map(|bytes| environ::said(&bytes)).unwrap_or_default()
}

#[cfg(test)]
mod tests;

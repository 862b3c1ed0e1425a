//! Allocated devices, used or not: from the kubelet's list, and from the environments of the processes of Slurm jobs.
//! An environment is read once per step if it names the job, otherwise every minute, a bounded number at a time.
//! Separate helper threads read them, so a read that hangs does not delay the identification of owners for long, the
//! list of jobs, or other environments.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::claims::DynamicClaims;
use super::{process_folder, put_node_row};
use crate::views::GpuWork;
use attribution::devices::{Named, named};
use attribution::environ::{self, SlurmAllocation};
use attribution::pods::{Claims, DynamicClaim};
use attribution::proc;
use attribution::slurm::{self, JobGroup};
use attribution::text::label;
use attribution::users::Users;
use host::Host;
use host::reader::{DeadlineReader, MAX_ABANDONED, ReadFailure};
use host::stop::Stop;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, AllocatedGpu, AllocationInfo, ClaimInfo, ClaimUnresolved, SlurmGpus};
use model::clock::Mono;
use model::sample::Rows;
use settings::Owners;

/// Number of rounds between two readings of Slurm's jobs.
const EVERY: u32 = 6;
/// Maximum number of environments read in one round.
const MOST_READ: usize = 64;
/// Maximum number of environments read per job in one round.
const MOST_OF_JOB: usize = 4;
/// Time for which allocations stay after the kubelet's last answer, because a restart of the kubelet ends no pod. It
/// also applies to Slurm's jobs after the last list of their control groups.
const KEPT: Duration = Duration::from_secs(600);
/// Maximum number of hanging environment reads, each of which occupies a thread.
const MOST_LATE: usize = 8;
/// Time until a refused read is repeated. Every refusal may add a record to the audit log.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// Allocations by the kubelet and by Slurm.
pub(super) struct Allocations {
    host: Arc<Host>,
    /// Readers for the list of jobs and for their environments; `None` if environments must not be read.
    readers: Option<(DeadlineReader, DeadlineReader)>,
    /// Hanging reads by process. Their processes are not read again before the reads return.
    late: HashMap<u32, JoinHandle<()>>,
    /// Last claims from the kubelet.
    claims: Arc<Claims>,
    dynamic: DynamicClaims,
    /// Rounds until the next reading.
    wait: u32,
    jobs: BTreeMap<String, JobGroup>,
    /// Time of the last list of jobs.
    listed: Option<Mono>,
    /// Whether the last list of jobs timed out.
    unlisted: bool,
    /// Allocations from the environments, by job and step.
    said: HashMap<(String, String), StepSaid>,
    /// Jobs whose environments could not be read for lack of permission, with the time of the attempt.
    refused: BTreeMap<String, Mono>,
    /// Time of the last refusal, if no environment was readable since. The exporter then lacks the permission for all
    /// jobs.
    denied: Option<Mono>,
    /// Whether a refusal was logged.
    warned: bool,
    /// Last job that was read, if not all could be read. The next round continues after it.
    after: Option<String>,
    /// Number of series without room.
    dropped: usize,
}

/// Holders of all allocated devices.
type Holders = BTreeMap<AllocatedGpu, BTreeSet<AllocationInfo>>;

/// Allocation from the environment of a step's process.
#[derive(Debug)]
struct StepSaid {
    said: SlurmAllocation,
    /// User ID of the process; `None` for root, because the process may be the step daemon.
    user: Option<u32>,
}

/// Outcome of reading an environment.
enum EnvironmentRead {
    Of(StepSaid),
    Silent,
    Refused,
}

impl Allocations {
    pub(super) fn new(config: &Owners, host: &Arc<Host>, stop: &Arc<Stop>) -> Allocations {
        let reader = |name| DeadlineReader::new(name, config.read_timeout, Arc::clone(stop));
        Allocations {
            host: Arc::clone(host),
            readers: config.slurm_environment.then(|| (reader("slurm-lister"), reader("slurm-reader"))),
            late: HashMap::new(),
            claims: Arc::default(),
            dynamic: DynamicClaims::new(host, reader("cdi-reader")),
            wait: 0,
            jobs: BTreeMap::new(),
            listed: None,
            unlisted: false,
            said: HashMap::new(),
            refused: BTreeMap::new(),
            denied: None,
            warned: false,
            after: None,
            dropped: 0,
        }
    }

    /// Returns the reason if the allocations are incomplete.
    pub(super) fn trouble(&mut self) -> Option<&'static str> {
        self.late.retain(|_, helper| !helper.is_finished());
        if self.unlisted {
            return Some("listing the control groups of Slurm jobs timed out");
        }
        (self.late.len() >= MOST_LATE)
            .then_some("reading the environments of Slurm jobs hangs; no more are read until it returns")
    }

    /// Reads Slurm's jobs if a reading is due. Nothing is read before a GPU is known.
    pub(super) fn round(&mut self, work: &GpuWork, now: Mono) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        if work.gpus.is_empty() {
            return;
        }
        self.wait = EVERY - 1;
        let Some((lister, _)) = &mut self.readers else { return };
        let host = Arc::clone(&self.host);
        match lister.read(MAX_ABANDONED, move || slurm::jobs(&host)) {
            Ok(jobs) => {
                (self.jobs, self.listed, self.unlisted) = (jobs, Some(now), false);
            }
            Err(_) => {
                self.unlisted = true;
                if self.listed.is_none_or(|at| now.since(at) > KEPT) {
                    self.jobs.clear();
                }
            }
        }
        let jobs = &self.jobs;
        self.said.retain(|(job, step), _| {
            jobs.get(job).is_some_and(|group| group.steps.iter().any(|(known, _)| known == step))
        });
        self.refused.retain(|job, at| jobs.contains_key(job) && now.since(*at) < REFUSED_FOR);
        if self.denied.is_some_and(|at| now.since(at) < REFUSED_FOR) {
            return;
        }
        let mut ids: Vec<String> = jobs.keys().cloned().collect();
        let next = self.after.take().map_or(0, |after| ids.partition_point(|id| *id <= after));
        ids.rotate_left(next);
        let mut left = MOST_READ;
        for id in ids {
            if left < MOST_OF_JOB || self.denied == Some(now) {
                break;
            }
            left -= self.read_job(&id, now);
            self.after = Some(id);
        }
    }

    /// Reads environments of a job until one names all GPUs of the job, otherwise one per step. Returns the number of
    /// reads.
    fn read_job(&mut self, id: &str, now: Mono) -> usize {
        let (Some(group), Some((_, reader))) = (self.jobs.get(id), &mut self.readers) else { return 0 };
        let mut reads = 0;
        for (step, pids) in &group.steps {
            let key = (id.to_owned(), step.clone());
            for pid in pids {
                let known = self.said.get(&key);
                let whole = known.is_some_and(|known| known.said.whole_job);
                if whole || reads >= MOST_OF_JOB || self.refused.contains_key(id) {
                    return reads;
                }
                if known.is_some() {
                    break;
                }
                self.late.retain(|_, helper| !helper.is_finished());
                if self.late.contains_key(pid) || self.late.len() >= MOST_LATE {
                    continue;
                }
                reads += 1;
                let (host, process, (job, step)) = (Arc::clone(&self.host), *pid, key.clone());
                match reader.read(MAX_ABANDONED, move || read(&host, process, &job, &step)) {
                    Ok(EnvironmentRead::Of(said)) => {
                        self.denied = None;
                        self.said.insert(key.clone(), said);
                    }
                    Ok(EnvironmentRead::Silent) => self.denied = None,
                    Ok(EnvironmentRead::Refused) => {
                        if !std::mem::replace(&mut self.warned, true) {
                            tracing::warn!(
                                "no permission to read the environments of Slurm jobs; their GPUs and accounts \
                                 are unknown (see Privileges in docs/install.md)"
                            );
                        }
                        // If other environments are readable, only this job is affected.
                        if self.said.is_empty() {
                            self.denied = Some(now);
                        }
                        self.refused.insert(id.to_owned(), now);
                    }
                    Err(ReadFailure::Late) => {
                        self.late.extend(reader.take_abandoned().map(|helper| (*pid, helper)));
                    }
                    Err(ReadFailure::NotTried) => {}
                }
            }
            if self.said.get(&key).is_some_and(|known| known.said.whole_job) {
                break;
            }
        }
        reads
    }

    /// Updates the claims from the kubelet.
    pub(super) fn list(&mut self, claims: Arc<Claims>, now: Mono) {
        let old = self.claims.listed_at.is_none_or(|at| now.since(at) > KEPT);
        if claims.listed_at.is_some() || old {
            self.claims = claims;
            self.dynamic.read(&self.claims, now);
        }
    }

    /// Resolves the device of a dynamic claim.
    pub(super) fn resolve(
        &self,
        claim: &DynamicClaim,
        work: &GpuWork,
    ) -> Result<AllocatedGpu, ClaimUnresolved> {
        self.dynamic.resolve(claim, work)
    }

    /// Adds the series, at most `most` per metric.
    pub(super) fn add_rows(&mut self, rows: &mut Rows, work: &GpuWork, users: &Users, most: usize) {
        let mut holders = Holders::new();
        self.add_claims(rows, work, most, &mut holders);
        self.add_jobs(rows, work, users, &mut holders);
        // The first holder of every device comes before the second holder of any.
        let mut ranked: Vec<(usize, AllocatedGpu, AllocationInfo)> = holders
            .into_iter()
            .flat_map(|(device, holders)| {
                holders.into_iter().enumerate().map(move |(rank, holder)| (rank, device.clone(), holder))
            })
            .collect();
        ranked.sort_unstable();
        let dropped = ranked.len().saturating_sub(most);
        if dropped > 0 && self.dropped == 0 {
            tracing::warn!(dropped, "some allocations have no series; raise owners.max_series");
        }
        self.dropped = dropped;
        for (_, device, holder) in ranked.into_iter().take(most) {
            rows.entity(&device).info(&m::gpu_allocation_info, holder);
        }
    }

    /// Adds the holders of devices that the kubelet lists, and the series of dynamic claims.
    fn add_claims(&mut self, rows: &mut Rows, work: &GpuWork, most: usize, holders: &mut Holders) {
        let mut claimed = BTreeSet::new();
        let mut unresolved = BTreeSet::new();
        for claim in &self.claims.all {
            let [namespace, pod, container] =
                [&claim.namespace, &claim.pod, &claim.container].map(|text| label(text));
            let holder = AllocationInfo { namespace, pod, container, ..AllocationInfo::default() };
            let devices: Vec<AllocatedGpu> = match &claim.dynamic {
                None => claim.gpu_ids().filter_map(|id| work.device(id)).collect(),
                Some(dynamic) => match self.dynamic.resolve(dynamic, work) {
                    Ok(device) => {
                        claimed.insert((device.clone(), claim_info(dynamic, &holder, &device, work)));
                        vec![device]
                    }
                    Err(why) => {
                        unresolved.insert((why, dynamic.clone()));
                        Vec::new()
                    }
                },
            };
            for device in devices {
                holders.entry(device).or_default().insert(holder.clone());
            }
        }
        let any = !claimed.is_empty() || !unresolved.is_empty();
        let counts = self.dynamic.unresolved(unresolved);
        if any {
            for (reason, count) in ClaimUnresolved::ALL.iter().zip(counts) {
                put_node_row(rows, &m::gpu_exporter_claims_unresolved, (*reason,), count);
            }
        }
        for (device, info) in claimed.into_iter().take(most) {
            rows.entity(&device).info(&m::gpu_claim_info, info);
        }
    }

    /// Adds Slurm's jobs as holders, and their number by state.
    fn add_jobs(&self, rows: &mut Rows, work: &GpuWork, users: &Users, holders: &mut Holders) {
        let mut counts = [0.0; SlurmGpus::ALL.len()];
        for (id, group) in &self.jobs {
            let (state, devices, account, user) = self.job(id, group, work, users);
            counts[state as usize] += 1.0;
            let (slurm_job, slurm_account, user) = (label(id), label(&account), label(&user));
            let holder = AllocationInfo { slurm_job, slurm_account, user, ..AllocationInfo::default() };
            for device in devices {
                holders.entry(device).or_default().insert(holder.clone());
            }
        }
        if !self.jobs.is_empty() {
            for (state, count) in SlurmGpus::ALL.iter().zip(counts) {
                put_node_row(rows, &m::gpu_slurm_jobs, (*state,), count);
            }
        }
    }

    /// Returns the state of a job's allocation, its devices, account and user.
    fn job(
        &self,
        id: &str,
        group: &JobGroup,
        work: &GpuWork,
        users: &Users,
    ) -> (SlurmGpus, BTreeSet<AllocatedGpu>, String, String) {
        let key = |step: &str| (id.to_owned(), step.to_owned());
        let steps = group.steps.iter().filter_map(|(step, _)| self.said.get(&key(step)));
        let whole = steps.clone().find(|step| step.said.whole_job);
        let found: Vec<_> = whole.map_or_else(|| steps.clone().collect(), |whole| vec![whole]);
        let places: BTreeSet<AllocatedGpu> = found.iter().flat_map(|step| places(&step.said, work)).collect();
        let silent = found.iter().all(|step| step.said.numbers.is_empty() && step.said.visible.is_empty());
        let denied = self.denied.is_some() || self.refused.contains_key(id);
        let state = match () {
            () if !places.is_empty() => SlurmGpus::Known,
            () if found.is_empty() && denied => SlurmGpus::NotPermitted,
            () if whole.is_some() && silent => SlurmGpus::None,
            () => SlurmGpus::Unknown,
        };
        let account = found.iter().find_map(|step| step.said.account.clone()).unwrap_or_default();
        // The kernel's user ID takes precedence over the variable, which the job can set.
        let number = group.user.or_else(|| found.iter().find_map(|step| step.user));
        let name = number.and_then(|user| users.known(user)).map(str::to_owned);
        let name = name.or_else(|| found.iter().find_map(|step| step.said.user.clone()));
        let user = name.or_else(|| number.map(|user| user.to_string())).unwrap_or_default();
        (state, places, account, user)
    }
}

fn claim_info(
    dynamic: &DynamicClaim,
    holder: &AllocationInfo,
    device: &AllocatedGpu,
    work: &GpuWork,
) -> ClaimInfo {
    let (mig_profile, mig_uuid) = work.mig_of(device);
    let AllocationInfo { namespace, pod, container, .. } = holder.clone();
    ClaimInfo {
        claim: label(&dynamic.claim),
        claim_namespace: label(&dynamic.namespace),
        driver: label(&dynamic.driver),
        pool: label(&dynamic.pool),
        device: label(&dynamic.device),
        mig_profile,
        mig_uuid,
        namespace,
        pod,
        container,
    }
}

/// Returns the devices that an environment identifies on this node. Slurm counts MIG devices among the GPUs, so its
/// numbers are GPU indexes only on a node without MIG devices. It also counts a GPU that NVML no longer lists, so its
/// numbers match NVML's indexes only if no GPU is missing. Visible numbers refer to the node or, if Slurm constrains
/// devices, count from 0; `0,1` on a node with four GPUs is therefore ambiguous.
fn places(said: &SlurmAllocation, work: &GpuWork) -> BTreeSet<AllocatedGpu> {
    let by_uuid = |id: &&String| matches!(named(id), Named::Uuid(_));
    let count = work.gpus.len();
    let numbered = work.mig_uuids.is_empty() && !work.gpus_missing;
    if said.visible.iter().any(|id| by_uuid(&id)) && (said.numbers.is_empty() || !numbered) {
        return said.visible.iter().filter(by_uuid).filter_map(|id| work.device(id)).collect();
    }
    if !numbered {
        return BTreeSet::new();
    }
    let numbers: BTreeSet<u32> = if said.numbers.is_empty() {
        let visible: BTreeSet<u32> = said.visible.iter().filter_map(|id| id.parse().ok()).collect();
        let from_zero = visible.iter().copied().eq(0..visible.len() as u32);
        if from_zero && visible.len() < count {
            return BTreeSet::new();
        }
        visible
    } else {
        said.numbers.iter().copied().collect()
    };
    if numbers.iter().any(|number| *number as usize >= count) {
        return BTreeSet::new();
    }
    numbers.iter().filter_map(|number| work.device(&number.to_string())).collect()
}

/// Reads one environment. May block, because the read takes the lock of the process's memory map.
fn read(host: &Host, pid: u32, job: &str, step: &str) -> EnvironmentRead {
    let folder = process_folder(host, pid);
    match proc::read(&folder.join("environ"), environ::MOST_BYTES as u64) {
        Ok(bytes) => match environ::allocation(&bytes, job, step) {
            Some(said) => {
                let user = proc::read_status(&folder).ok().and_then(|(user, _)| user);
                EnvironmentRead::Of(StepSaid { said, user: user.filter(|user| *user != 0) })
            }
            None => EnvironmentRead::Silent,
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => EnvironmentRead::Refused,
        Err(_) => EnvironmentRead::Silent,
    }
}

#[cfg(test)]
mod tests;

//! What was given out, whether used or not: devices by the kubelet's list, and by what the processes of Slurm's jobs have
//! in their environments. Environments are read once a step where they name the job, else each minute, a bounded number
//! at a time, by helpers of their own: one that hangs delays no look-up of an owner for long, and no read of others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{MOST_ENVIRONMENTS, process_folder, put_row};
use crate::views::GpuWork;
use attribution::devices::{Named, named};
use attribution::environ::{self, SlurmAllocation};
use attribution::pods::Claims;
use attribution::proc;
use attribution::slurm::{self, JobGroup};
use attribution::text::label;
use attribution::users::Users;
use host::Host;
use host::reader::DeadlineReader;
use host::stop::Stop;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, AllocatedGpu, AllocationInfo, Node, SlurmGpus};
use model::clock::Mono;
use model::sample::Rows;
use settings::Owners;

/// Rounds of what owners use from one look at Slurm's jobs to the next.
const EVERY: u32 = 6;
/// Most environments read at a time, of all jobs and of one.
const MOST_READ: usize = 64;
const MOST_OF_JOB: usize = 4;
/// So long after the kubelet's last answer, pods have what they had: a kubelet that is replaced ends none.
const KEPT: Duration = Duration::from_secs(600);

/// What is known of allocations.
pub(super) struct Allocations {
    host: Arc<Host>,
    /// `None`: environments are not to be read.
    reader: Option<DeadlineReader>,
    /// The last claims that the kubelet listed.
    claims: Arc<Claims>,
    /// Rounds until the next look.
    wait: u32,
    jobs: BTreeMap<String, JobGroup>,
    /// What a step's processes have in their environment, by job and step.
    said: HashMap<(String, String), SlurmAllocation>,
    /// Jobs of which an environment could not be read for want of permission.
    refused: BTreeSet<String>,
    /// The job that was read last, if not all could be: those behind it are next.
    after: Option<String>,
    /// Series that had no place.
    dropped: usize,
}

/// The labels of one series, in the order of [`AllocationInfo`].
type AllocationHolder = [String; 6];

/// What one read of an environment brought.
enum EnvironmentRead {
    Of(SlurmAllocation),
    Silent,
    Refused,
}

impl Allocations {
    pub(super) fn new(config: &Owners, host: &Arc<Host>, stop: &Arc<Stop>) -> Allocations {
        let reader = || DeadlineReader::new("slurm-reader", config.read_timeout, Arc::clone(stop));
        Allocations {
            host: Arc::clone(host),
            reader: config.slurm_environment.then(reader),
            claims: Arc::default(),
            wait: 0,
            jobs: BTreeMap::new(),
            said: HashMap::new(),
            refused: BTreeSet::new(),
            after: None,
            dropped: 0,
        }
    }

    /// Looks at Slurm's jobs if it is time.
    pub(super) fn round(&mut self) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        self.wait = EVERY - 1;
        let Some(reader) = &mut self.reader else { return };
        let host = Arc::clone(&self.host);
        // What cannot be listed now may have ended.
        self.jobs = reader.read(MOST_ENVIRONMENTS, move || slurm::jobs(&host)).unwrap_or_default();
        let jobs = &self.jobs;
        self.said.retain(|(job, step), _| {
            jobs.get(job).is_some_and(|group| group.steps.iter().any(|(known, _)| known == step))
        });
        self.refused.clear();
        let mut ids: Vec<String> = jobs.keys().cloned().collect();
        let next = self.after.take().map_or(0, |after| ids.partition_point(|id| *id <= after));
        ids.rotate_left(next);
        let mut left = MOST_READ;
        for id in ids {
            if left < MOST_OF_JOB {
                break;
            }
            left -= self.read_job(&id);
            self.after = Some(id);
        }
    }

    /// Reads environments of a job until one names all of the job's GPUs, and else one of each step; gives how many.
    fn read_job(&mut self, id: &str) -> usize {
        let (Some(group), Some(reader)) = (self.jobs.get(id), &mut self.reader) else { return 0 };
        let mut reads = 0;
        for (step, pids) in &group.steps {
            let key = (id.to_owned(), step.clone());
            for pid in pids {
                let known = self.said.get(&key);
                if known.is_some_and(|said| said.whole_job) || reads >= MOST_OF_JOB {
                    return reads;
                }
                if known.is_some() {
                    break;
                }
                reads += 1;
                let (host, pid, (job, step)) = (Arc::clone(&self.host), *pid, key.clone());
                match reader.read(MOST_ENVIRONMENTS, move || read(&host, pid, &job, &step)) {
                    Ok(EnvironmentRead::Of(said)) => {
                        self.said.insert(key.clone(), said);
                    }
                    Ok(EnvironmentRead::Refused) => {
                        self.refused.insert(id.to_owned());
                    }
                    Ok(EnvironmentRead::Silent) | Err(_) => {}
                }
            }
            if self.said.get(&key).is_some_and(|said| said.whole_job) {
                break;
            }
        }
        reads
    }

    /// Takes in what the kubelet lists now.
    pub(super) fn list(&mut self, claims: Arc<Claims>, now: Mono) {
        let old = self.claims.listed_at.is_none_or(|at| now.since(at) > KEPT);
        if claims.listed_at.is_some() || old {
            self.claims = claims;
        }
    }

    /// Adds the series, at most so many.
    pub(super) fn put(&mut self, rows: &mut Rows, work: &GpuWork, users: &Users, most: usize) {
        let mut given: BTreeMap<AllocatedGpu, BTreeSet<AllocationHolder>> = BTreeMap::new();
        for claim in &self.claims.all {
            let holder = [&claim.namespace, &claim.pod, &claim.container].map(|text| label(text));
            let [namespace, pod, container] = holder;
            for at in claim.devices.iter().filter_map(|id| work.device(id)) {
                let none = String::new;
                let holder = [namespace.clone(), pod.clone(), container.clone(), none(), none(), none()];
                given.entry(at).or_default().insert(holder);
            }
        }
        let mut counts = [0.0; SlurmGpus::ALL.len()];
        for (id, group) in &self.jobs {
            let (state, places, account, user) = self.job(id, group, work, users);
            counts[state as usize] += 1.0;
            for at in places {
                let none = String::new;
                let holder = [none(), none(), none(), label(id), label(&account), label(&user)];
                given.entry(at).or_default().insert(holder);
            }
        }
        if !self.jobs.is_empty() {
            for (state, count) in SlurmGpus::ALL.iter().zip(counts) {
                put_row(rows, &Node {}, &m::gpu_slurm_jobs, (*state,), count);
            }
        }
        // The first of each place before the second of any.
        let mut ranked: Vec<(usize, &AllocatedGpu, &AllocationHolder)> = given
            .iter()
            .flat_map(|(at, holders)| {
                holders.iter().enumerate().map(move |(rank, holder)| (rank, at, holder))
            })
            .collect();
        ranked.sort_unstable();
        let dropped = ranked.len().saturating_sub(most);
        if dropped > 0 && self.dropped == 0 {
            tracing::warn!(dropped, "allocations without series (owners.max_series)");
        }
        self.dropped = dropped;
        for (_, at, holder) in ranked.into_iter().take(most) {
            let [namespace, pod, container, slurm_job, slurm_account, user] = holder.clone();
            let info = AllocationInfo { namespace, pod, container, slurm_job, slurm_account, user };
            rows.of(at).info(&m::gpu_allocation_info, info);
        }
    }

    /// What is known of a job's GPUs, which they are, its account and its user.
    fn job(
        &self,
        id: &str,
        group: &JobGroup,
        work: &GpuWork,
        users: &Users,
    ) -> (SlurmGpus, BTreeSet<AllocatedGpu>, String, String) {
        let key = |step: &str| (id.to_owned(), step.to_owned());
        let steps = group.steps.iter().filter_map(|(step, _)| self.said.get(&key(step)));
        let whole = steps.clone().find(|said| said.whole_job);
        let found: Vec<_> = whole.map_or_else(|| steps.clone().collect(), |whole| vec![whole]);
        let places: BTreeSet<AllocatedGpu> = found.iter().flat_map(|said| places(said, work)).collect();
        let silent = found.iter().all(|said| said.numbers.is_empty() && said.visible.is_empty());
        let state = match () {
            () if !places.is_empty() => SlurmGpus::Known,
            () if found.is_empty() && self.refused.contains(id) => SlurmGpus::NotPermitted,
            () if whole.is_some() && silent => SlurmGpus::None,
            () => SlurmGpus::Unknown,
        };
        let account = found.iter().find_map(|said| said.account.clone()).unwrap_or_default();
        let user = found.iter().find_map(|said| said.user.clone());
        let user = user.or_else(|| group.user.map(|user| users.name(user))).unwrap_or_default();
        (state, places, account, user)
    }
}

/// The devices that an environment identifies on this node. Slurm counts MIG devices among the GPUs, so its numbers are
/// those of GPUs only on a node without MIG devices. What is visible by number is that of the node, or, where Slurm
/// constrains devices, counts from 0: `0,1` of four GPUs identifies none.
fn places(said: &SlurmAllocation, work: &GpuWork) -> BTreeSet<AllocatedGpu> {
    let by_uuid = |id: &&String| matches!(named(id), Named::Uuid(_));
    if said.visible.iter().any(|id| by_uuid(&id)) && (said.numbers.is_empty() || !work.mig_uuids.is_empty()) {
        return said.visible.iter().filter(by_uuid).filter_map(|id| work.device(id)).collect();
    }
    if !work.mig_uuids.is_empty() {
        return BTreeSet::new();
    }
    let numbers: BTreeSet<u32> = if said.numbers.is_empty() {
        let visible: BTreeSet<u32> = said.visible.iter().filter_map(|id| id.parse().ok()).collect();
        let from_zero = visible.iter().copied().eq(0..visible.len() as u32);
        if from_zero && visible.len() < work.gpus.len() {
            return BTreeSet::new();
        }
        visible
    } else {
        said.numbers.iter().copied().collect()
    };
    numbers.iter().filter_map(|number| work.device(&number.to_string())).collect()
}

/// Reads one environment. May wait: the read takes the lock of the process's memory map.
fn read(host: &Host, pid: u32, job: &str, step: &str) -> EnvironmentRead {
    let bytes = proc::read(&process_folder(host, pid).join("environ"), environ::MOST_BYTES as u64);
    match bytes {
        Ok(bytes) => {
            environ::allocation(&bytes, job, step).map_or(EnvironmentRead::Silent, EnvironmentRead::Of)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => EnvironmentRead::Refused,
        Err(_) => EnvironmentRead::Silent,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use attribution::pods::Claim;
    use model::catalog::Gpu;
    use model::catalog::schema::LabelSet;

    const SCOPE: &str = "sys/fs/cgroup/system.slice/slurmstepd.scope";

    struct Machine {
        root: tempfile::TempDir,
        config: Owners,
    }

    impl Machine {
        fn new() -> Machine {
            let config = Owners { read_timeout: Duration::from_secs(20), ..Owners::default() };
            Machine { root: tempfile::tempdir().unwrap(), config }
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// A process of a job's step with this environment.
        fn process(&self, job: u32, step: &str, pid: u32, environ: &[&str]) {
            self.write(
                &format!("{SCOPE}/job_{job}/step_{step}/user/task_0/cgroup.procs"),
                &format!("{pid}\n"),
            );
            let environ: String = environ.iter().map(|one| format!("{one}\0")).collect();
            self.write(&format!("proc/{pid}/environ"), &format!("SLURM_JOB_ID={job}\0{environ}"));
        }

        fn allocations(&self) -> Allocations {
            Allocations::new(&self.config, &Arc::new(Host::new(self.root.path())), &Arc::default())
        }
    }

    fn work(gpus: u32, mig: &[(&str, u32, &str)]) -> GpuWork {
        let gpu = |gpu: u32| Gpu { gpu, uuid: format!("GPU-{gpu}").into() };
        GpuWork {
            gpus: (0..gpus).map(|n| (gpu(n), Some(n))).collect(),
            mig_uuids: mig.iter().map(|(gpu, id, uuid)| (((*gpu).into(), *id, 0), (*uuid).into())).collect(),
            ..GpuWork::default()
        }
    }

    /// The series as `gpu/instance holder`, and the counts of jobs.
    fn published(of: &mut Allocations, work: &GpuWork, most: usize) -> (Vec<String>, Vec<f64>) {
        let mut rows = Rows::default();
        of.put(&mut rows, work, &Users::default(), most);
        assert!(rows.conform());
        let (mut series, mut counts) = (Vec::new(), Vec::new());
        for (subject, rows) in rows.groups() {
            for row in rows {
                if row.metric == m::gpu_slurm_jobs.id() {
                    counts.push(row.value);
                    continue;
                }
                let labels = row.labels.iter().zip(AllocationInfo::DEFS).map(|(text, def)| text.text(def));
                let labels: Vec<&str> = labels.filter(|text| !text.is_empty()).collect();
                let at = subject.label_values();
                series.push(format!("{}/{} {}", at[0], at[2], labels.join(" ")));
            }
        }
        series.sort();
        (series, counts)
    }

    fn claim(pod: &str, devices: &[&str]) -> Claim {
        Claim {
            namespace: "ml".into(),
            pod: pod.into(),
            container: "main".into(),
            resource: "nvidia.com/gpu".into(),
            devices: devices.iter().map(|id| attribution::pods::device_id(id).into()).collect(),
        }
    }

    fn claims(all: Vec<Claim>) -> Arc<Claims> {
        Arc::new(Claims { listed_at: Some(Mono(0)), all })
    }

    #[test]
    fn each_container_has_a_series_for_each_device() {
        let machine = Machine::new();
        let all = claims(vec![
            claim("a", &["GPU-0", "GPU-1"]),
            claim("b", &["GPU-2::0", "GPU-2::1"]),
            claim("c", &["GPU-2::3"]),
            claim("d", &["MIG-x"]),
            claim("e", &["GPU-elsewhere"]),
        ]);
        let work = work(4, &[("GPU-3", 7, "MIG-x")]);
        let mut allocations = machine.allocations();
        allocations.list(all, Mono(0));
        let (series, counts) = published(&mut allocations, &work, 256);
        let expected = ["0/ ml a main", "1/ ml a main", "2/ ml b main", "2/ ml c main", "3/7 ml d main"];
        assert_eq!((series, counts), (expected.map(str::to_owned).into(), vec![]), "no Slurm, no count");
        let few = published(&mut allocations, &work, 4).0;
        assert_eq!(
            few,
            ["0/ ml a main", "1/ ml a main", "2/ ml b main", "3/7 ml d main"],
            "each device has one"
        );
    }

    #[test]
    fn pods_keep_what_they_had_while_the_kubelet_is_replaced() {
        let mut allocations = Machine::new().allocations();
        let series = |allocations: &mut Allocations| published(allocations, &work(1, &[]), 256).0.len();
        allocations.list(claims(vec![claim("a", &["GPU-0"])]), Mono(0));
        let after = |seconds: u64| Mono(seconds * 1_000_000_000);
        allocations.list(Arc::default(), after(600));
        assert_eq!(series(&mut allocations), 1);
        allocations.list(Arc::default(), after(601));
        assert_eq!(series(&mut allocations), 0, "nothing is known");
        allocations.list(claims(vec![claim("a", &["GPU-0"])]), after(602));
        allocations.list(claims(vec![]), after(602));
        assert_eq!(series(&mut allocations), 0, "the pod has ended");
    }

    #[test]
    fn a_sleeping_shell_is_enough_for_the_jobs_gpus() {
        let machine = Machine::new();
        let (account, user) = ("SLURM_JOB_ACCOUNT=vision", "SLURM_JOB_USER=alice");
        let batch = [account, user, "SLURM_JOB_GPUS=2,3", "CUDA_VISIBLE_DEVICES=0,1", "TOKEN=secret"];
        machine.process(42, "batch", 10, &batch);
        machine.process(42, "0", 11, &["SLURM_STEP_GPUS=0"]);
        machine.process(43, "batch", 20, &["SLURM_JOB_CPUS_PER_NODE=1"]);
        machine.process(44, "extern", 30, &[]);
        machine.write("proc/30/environ", "PATH=/\0");
        machine.process(45, "0", 40, &["SLURM_STEP_GPUS=1"]);
        machine.process(45, "1", 41, &["SLURM_STEP_GPUS=0"]);
        let mut allocations = machine.allocations();
        allocations.round();
        let (series, counts) = published(&mut allocations, &work(4, &[]), 256);
        assert_eq!(series, ["0/ 45", "1/ 45", "2/ 42 vision alice", "3/ 42 vision alice"]);
        assert_eq!(counts, [2.0, 1.0, 1.0, 0.0], "known, none, unknown, not_permitted");
        assert!(!format!("{:?}", allocations.said).contains("secret"));
    }

    #[test]
    fn a_job_is_read_once_and_is_gone_with_its_group() {
        let machine = Machine::new();
        machine.process(42, "batch", 10, &["SLURM_JOB_GPUS=0"]);
        machine.process(43, "extern", 20, &[]);
        machine.write("proc/20/environ", "");
        let mut allocations = machine.allocations();
        let now = |allocations: &mut Allocations| {
            (0..EVERY).for_each(|_| allocations.round());
            published(allocations, &work(2, &[]), 256).0
        };
        assert_eq!(now(&mut allocations), ["0/ 42"]);
        machine.write("proc/10/environ", "SLURM_JOB_ID=42\0SLURM_JOB_GPUS=1\0");
        machine.write("proc/20/environ", "SLURM_JOB_ID=43\0SLURM_JOB_NUM_NODES=1\0SLURM_JOB_GPUS=1\0");
        assert_eq!(now(&mut allocations), ["0/ 42", "1/ 43"], "a step that was silent is read again");
        fs::remove_dir_all(machine.root.path().join(SCOPE).join("job_42")).unwrap();
        assert_eq!(now(&mut allocations), ["1/ 43"]);
        assert_eq!(allocations.said.len(), 1);
    }

    #[test]
    fn numbers_that_may_count_the_jobs_own_devices_identify_none() {
        let said = |numbers: &[u32], visible: &[&str]| SlurmAllocation {
            numbers: numbers.into(),
            visible: visible.iter().map(|id| (*id).to_owned()).collect(),
            ..SlurmAllocation::default()
        };
        let at = |said: SlurmAllocation, work: &GpuWork| -> Vec<(u32, String)> {
            places(&said, work).into_iter().map(|at| (at.gpu, at.gpu_instance.to_string())).collect()
        };
        let whole = |gpus: &[u32]| -> Vec<_> { gpus.iter().map(|gpu| (*gpu, String::new())).collect() };
        let four = work(4, &[]);
        assert_eq!(at(said(&[], &["0", "1"]), &four), []);
        assert_eq!(at(said(&[], &["2", "3"]), &four), whole(&[2, 3]), "not constrained");
        assert_eq!(at(said(&[], &["0", "1", "2", "3"]), &four), whole(&[0, 1, 2, 3]), "all there are");
        assert_eq!(at(said(&[], &["GPU-3"]), &four), whole(&[3]));
        assert_eq!(at(said(&[1, 9], &["GPU-3"]), &four), whole(&[1]), "what a user may have set counts less");
        let mig = work(2, &[("GPU-0", 7, "MIG-a"), ("GPU-0", 8, "MIG-b")]);
        assert_eq!(at(said(&[2], &["MIG-b"]), &mig), [(0, "8".to_owned())]);
        assert_eq!(at(said(&[], &["MIG-GPU-0/7/0"]), &mig), [(0, "7".to_owned())]);
        assert_eq!(at(said(&[1], &["0"]), &mig), [], "numbers count MIG devices");
    }

    #[test]
    fn an_environment_that_may_not_be_read_is_named_and_none_is_where_it_is_switched_off() {
        let mut machine = Machine::new();
        machine.process(42, "batch", 10, &["SLURM_JOB_GPUS=0"]);
        let environ = machine.root.path().join("proc/10/environ");
        fs::set_permissions(&environ, fs::Permissions::from_mode(0o0)).unwrap();
        let mut allocations = machine.allocations();
        allocations.round();
        let (series, counts) = published(&mut allocations, &work(2, &[]), 256);
        // Root reads all files.
        match fs::read(&environ) {
            Err(_) => assert_eq!((series, counts), (vec![], vec![0.0, 0.0, 0.0, 1.0])),
            Ok(_) => assert_eq!((series.len(), counts), (1, vec![1.0, 0.0, 0.0, 0.0])),
        }
        machine.config.slurm_environment = false;
        let mut off = machine.allocations();
        off.round();
        assert_eq!(published(&mut off, &work(2, &[]), 256), (vec![], vec![]));
    }

    #[test]
    fn of_many_jobs_some_are_read_each_time_until_all_were() {
        let machine = Machine::new();
        for job in 100..250 {
            machine.process(job, "batch", job, &["SLURM_JOB_GPUS=0"]);
        }
        let mut allocations = machine.allocations();
        let mut counts = Vec::new();
        for _ in 0..3 {
            (0..EVERY).for_each(|_| allocations.round());
            counts.push(allocations.said.len());
        }
        assert!(counts[0] <= MOST_READ && counts[2] == 150, "{counts:?}");
    }
}

//! Allocations on a folder as the root of a host.

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
        self.write(&format!("{SCOPE}/job_{job}/step_{step}/user/task_0/cgroup.procs"), &format!("{pid}\n"));
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
    of.add_rows(&mut rows, work, &Users::default(), most);
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
        dynamic: None,
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
    assert_eq!(few, ["0/ ml a main", "1/ ml a main", "2/ ml b main", "3/7 ml d main"], "each device has one");
}

#[test]
fn a_number_of_what_is_no_gpu_is_no_gpus() {
    let numbered = |resource: &str| Claim { resource: resource.into(), ..claim("a", &["1"]) };
    for (resource, count) in [("nvidia.com/gpu", 1), ("nvidia.com/GH100_H100_SXM5_80GB", 0)] {
        let mut allocations = Machine::new().allocations();
        allocations.list(claims(vec![numbered(resource)]), Mono(0));
        assert_eq!(published(&mut allocations, &work(2, &[]), 256).0.len(), count, "{resource}");
    }
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
    allocations.round(&work(1, &[]), Mono(0));
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
        (0..EVERY).for_each(|_| allocations.round(&work(1, &[]), Mono(0)));
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
    assert_eq!(at(said(&[1], &["GPU-3"]), &four), whole(&[1]), "what a user may have set counts less");
    assert_eq!(at(said(&[1, 9], &[]), &four), [], "a list of other GPUs than NVML's");
    let missing = GpuWork { gpus_missing: true, ..work(4, &[]) };
    assert_eq!(at(said(&[1], &["2"]), &missing), [], "GPU 1 may be the one that was GPU 2");
    assert_eq!(at(said(&[], &["2", "3"]), &missing), []);
    assert_eq!(at(said(&[1], &["GPU-3"]), &missing), whole(&[3]));
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
    allocations.round(&work(1, &[]), Mono(0));
    let (series, counts) = published(&mut allocations, &work(2, &[]), 256);
    // Root reads all files.
    match fs::read(&environ) {
        Err(_) => assert_eq!((series, counts), (vec![], vec![0.0, 0.0, 0.0, 1.0])),
        Ok(_) => assert_eq!((series.len(), counts), (1, vec![1.0, 0.0, 0.0, 0.0])),
    }
    machine.config.slurm_environment = false;
    let mut off = machine.allocations();
    off.round(&work(1, &[]), Mono(0));
    assert_eq!(published(&mut off, &work(2, &[]), 256), (vec![], vec![]));
}

/// A file without a writer: opening it waits.
fn hangs(machine: &Machine, path: &str) {
    let path = machine.root.path().join(path);
    let _ = fs::remove_file(&path);
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

#[test]
fn processes_that_hang_hide_no_other_job_at_any_look() {
    let mut machine = Machine::new();
    machine.config.read_timeout = Duration::from_millis(300);
    machine.process(42, "batch", 10, &["SLURM_JOB_GPUS=0"]);
    for pid in 20..24 {
        machine.process(41, &pid.to_string(), pid, &[]);
        hangs(&machine, &format!("proc/{pid}/environ"));
    }
    let mut allocations = machine.allocations();
    for look in 0..4u32 {
        // A job that starts after the hang is read as well.
        machine.process(50 + look, "batch", 50 + look, &["SLURM_JOB_GPUS=1"]);
        for _ in 0..EVERY {
            allocations.round(&work(2, &[]), Mono(0));
        }
        let (series, counts) = published(&mut allocations, &work(2, &[]), 256);
        assert_eq!(series.len(), 2 + look as usize, "look {look}: {series:?}");
        assert_eq!(counts[SlurmGpus::Unknown as usize], 1.0, "look {look}");
        assert_eq!((allocations.late.len(), allocations.trouble()), (4, None), "none is read twice");
    }
}

#[test]
fn a_list_of_jobs_that_comes_late_ends_none_for_a_while() {
    let mut machine = Machine::new();
    machine.process(42, "batch", 10, &["SLURM_JOB_GPUS=0"]);
    machine.config.read_timeout = Duration::from_secs(20);
    let mut allocations = machine.allocations();
    let work = work(2, &[]);
    let series = |now: Mono, allocations: &mut Allocations| {
        (0..EVERY).for_each(|_| allocations.round(&work, now));
        (published(allocations, &work, 256).0.len(), allocations.trouble().is_some())
    };
    assert_eq!(series(Mono(0), &mut allocations), (1, false));
    // As if the listing took longer than the deadline.
    let (lister, _) = allocations.readers.as_mut().unwrap();
    *lister = DeadlineReader::new("slurm-lister", Duration::from_millis(100), Arc::default());
    hangs(&machine, &format!("{SCOPE}/job_42/step_batch/user/task_0/cgroup.procs"));
    let after = |seconds: u64| Mono(seconds * 1_000_000_000);
    assert_eq!(series(after(60), &mut allocations), (1, true), "kept, and said");
    assert_eq!(series(after(601), &mut allocations), (0, true), "nothing is known");
    machine.process(43, "batch", 10, &["SLURM_JOB_GPUS=0"]);
    fs::remove_dir_all(machine.root.path().join(SCOPE).join("job_42")).unwrap();
    machine.write("proc/10/environ", "SLURM_JOB_ID=43\0SLURM_JOB_GPUS=0\0");
    assert_eq!(series(after(660), &mut allocations), (1, false));
}

#[test]
fn a_refusal_is_not_asked_for_again_at_once() {
    let machine = Machine::new();
    for job in 42..52 {
        machine.process(job, "batch", job, &["SLURM_JOB_GPUS=0"]);
    }
    let after = |seconds: u64| Mono(seconds * 1_000_000_000);
    let mut allocations = machine.allocations();
    let look = |allocations: &mut Allocations, now: Mono| {
        (0..EVERY).for_each(|_| allocations.round(&work(2, &[]), now));
        (published(allocations, &work(2, &[]), 256).1, allocations.said.len())
    };
    (allocations.denied, allocations.listed) = (Some(Mono(0)), Some(Mono(0)));
    allocations.refused.insert("42".to_owned(), Mono(0));
    for seconds in [60, 599] {
        assert_eq!(look(&mut allocations, after(seconds)), (vec![0.0, 0.0, 0.0, 10.0], 0), "not tried");
    }
    assert_eq!(look(&mut allocations, after(600)), (vec![10.0, 0.0, 0.0, 0.0], 10), "permitted now");
    assert_eq!((allocations.denied, allocations.refused.len()), (None, 0));
}

#[test]
fn nothing_is_read_before_a_gpu_is_known() {
    let machine = Machine::new();
    machine.process(42, "batch", 10, &["SLURM_JOB_GPUS=0"]);
    let mut allocations = machine.allocations();
    allocations.round(&GpuWork::default(), Mono(0));
    assert!(allocations.jobs.is_empty() && allocations.said.is_empty());
    allocations.round(&work(1, &[]), Mono(0));
    assert_eq!(allocations.said.len(), 1, "at once");
}

#[test]
fn the_kernels_user_goes_before_the_variable() {
    let machine = Machine::new();
    machine.write("etc/passwd", "root:x:0:0\nalice:x:1000:1000\n");
    let bob = ["SLURM_JOB_GPUS=0", "SLURM_JOB_USER=bob"];
    for (job, user) in [(42, Some(1000)), (43, Some(7)), (44, None), (45, Some(0))] {
        machine.process(job, "batch", job, &bob);
        if let Some(user) = user {
            machine.write(&format!("proc/{job}/status"), &format!("Name:\tx\nUid:\t{user}\t0\t0\t0\n"));
        }
    }
    let mut allocations = machine.allocations();
    allocations.round(&work(1, &[]), Mono(0));
    let users = attribution::users::newer(&Host::new(machine.root.path()), &Users::default()).unwrap();
    let user = |job: &str| {
        let group = &allocations.jobs[job];
        allocations.job(job, group, &work(1, &[]), &users).3
    };
    assert_eq!(user("42"), "alice");
    // Users of a directory have no name on the host, and what belongs to root may be the step daemon's.
    assert_eq!((user("43"), user("44"), user("45")), ("bob".into(), "bob".into(), "bob".into()));
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
        (0..EVERY).for_each(|_| allocations.round(&work(1, &[]), Mono(0)));
        counts.push(allocations.said.len());
    }
    assert!(counts[0] <= MOST_READ && counts[2] == 150, "{counts:?}");
}

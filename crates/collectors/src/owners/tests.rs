//! The collector on a folder as the root of a host, and on snapshots made by hand.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use nix::sys::stat::Mode;

use super::*;
use crate::LiveConfig;
use crate::views;
use attribution::pods::{Claim, Claims};
use host::state::Store;
use host::stop::Stop;
use ledger::inbox::Inbox;
use model::catalog::Gpu;
use model::catalog::OwnerKind;
use model::owners::{GpuProcess, OwnerReading};
use model::snapshot::{GpuState, GpuView, Snapshot};
use model::snapshot_cell::SnapshotCell;
use settings::Config;

const PATIENCE: Duration = Duration::from_secs(60);
const ID: &str = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";
const OTHER: &str = "45490e76e0878aaa4d9808f7d2eefba37f093c3efbba9838b6d8ab804d9bd814";
const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

/// A host made of files.
struct Machine {
    root: tempfile::TempDir,
    config: Config,
}

/// A collector at work on it.
struct Running {
    context: Context,
    snapshots: Arc<SnapshotCell>,
    pods: Arc<Pods>,
    thread: std::thread::JoinHandle<()>,
    attributed: Vec<Attribution>,
    readings: Vec<OwnerReading>,
    lookups: Vec<f64>,
    sequence: u64,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { root: tempfile::tempdir().unwrap(), config: Config::default() };
        machine.write("etc/passwd", "root:x:0:0\nalice:x:1000:1000\n");
        machine.write("sys/fs/cgroup/cgroup.controllers", "cpu memory");
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    /// A process with one thread, started so many ticks after boot.
    fn process(&self, pid: u32, started: u64, cgroup: &str) {
        let stat = stat(pid, started, 150, 5);
        self.write(&format!("proc/{pid}/stat"), &stat);
        self.write(&format!("proc/{pid}/task/{pid}/stat"), &stat);
        self.write(&format!("proc/{pid}/cgroup"), cgroup);
        let status = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCpus_allowed_list:\t0-3\n";
        self.write(&format!("proc/{pid}/status"), status);
        self.write(&format!("proc/{pid}/environ"), "");
    }

    /// A file without a writer: opening it waits.
    fn hangs(&self, path: &str) {
        let _ = fs::remove_file(self.path(path));
        nix::unistd::mkfifo(&self.path(path), Mode::S_IRWXU).unwrap();
    }

    fn start(&self) -> Running {
        let mut config = self.config.clone();
        config.host.root = self.root.path().into();
        let context = Context {
            live: Arc::new(LiveConfig::from_pointee(config.clone())),
            inbox: Arc::new(Inbox::default()),
            state: Store::new(self.path("state")),
            stop: Arc::new(Stop::default()),
        };
        let (snapshots, pods) = (Arc::default(), Arc::<Pods>::default());
        let (running, work) = (context.clone(), View::new(&snapshots, views::gpu_work));
        let assigned = Arc::clone(&pods);
        let thread = host::thread::spawn("owners", 2048, move || run(running, work, assigned)).unwrap();
        let (attributed, readings, lookups) = (Vec::new(), Vec::new(), Vec::new());
        Running { context, snapshots, pods, thread, attributed, readings, lookups, sequence: 0 }
    }
}

fn stat(pid: u32, started: u64, ticks: u64, cpu: u32) -> String {
    format!(
        "{pid} (a b) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {started} 1 1 1 1 1 1 1 1 0 0 0 0 0 0 0 17 {cpu} \
         0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    )
}

impl Running {
    /// Publishes what the GPUs list: GPU, process.
    fn list(&mut self, processes: &[(u32, u32)]) {
        self.sequence += 1;
        let view = |index: u32| GpuView {
            gpu: Gpu { gpu: index, uuid: format!("GPU-{index}").into() },
            state: GpuState::Up,
            parts: Vec::new(),
            gaps: Vec::new(),
            processes: processes
                .iter()
                .filter(|(gpu, _)| *gpu == index)
                .map(|(_, pid)| GpuProcess { pid: *pid, instance: None, memory: None })
                .collect(),
        };
        let gpus = (0..2).map(view).collect();
        self.snapshots.publish(Snapshot { sequence: self.sequence, gpus, ..Snapshot::default() });
    }

    /// Takes events until the condition holds; snapshots keep coming, as they do.
    fn until(&mut self, what: &str, processes: &[(u32, u32)], done: impl Fn(&Running) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: {:?} {:?}", self.lookups, self.attributed);
            self.list(processes);
            let pending = self.context.inbox.wait_until(Mono::now() + Duration::from_millis(20)).unwrap();
            for event in pending.events {
                match event {
                    LedgerEvent::Owners(OwnerUpdate::Attributed(more)) => self.attributed.extend(more),
                    LedgerEvent::Owners(OwnerUpdate::Read(all)) => self.readings = all,
                    _ => {}
                }
            }
            for batch in pending.batches {
                let values = batch.rows.groups().iter().flat_map(|(_, rows)| rows).map(|row| row.value);
                self.lookups = values.collect();
            }
        }
    }

    fn owner(&self, pid: u32) -> Option<Arc<Owner>> {
        self.attributed.iter().rev().find(|one| one.pid == pid).map(|one| Arc::clone(&one.owner))
    }

    fn id(&self, pid: u32) -> String {
        self.owner(pid).map_or_else(String::new, |owner| owner.id.to_string())
    }

    fn count(&self, outcome: OwnerLookup) -> f64 {
        self.lookups.get(outcome as usize).copied().unwrap_or(-1.0)
    }

    fn end(self) {
        let started = Instant::now();
        self.context.stop.stop();
        self.thread.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(4), "it ends in time");
    }
}

#[test]
fn every_kind_of_owner_is_reported_once_with_its_start() {
    let machine = Machine::new();
    let pod = UID.replace('-', "_");
    let scope = format!("/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{ID}.scope");
    machine.process(1, 100, &format!("0::{scope}\n"));
    machine.write(&format!("var/log/containers/trainer-0_ml_main-{ID}.log"), "");
    let other = UID.replace('2', "3");
    machine.process(2, 200, &format!("5:memory:/kubepods/burstable/pod{other}/crio-{OTHER}\n"));
    machine.write(&format!("var/log/pods/shop_web-1_{other}/nginx/0.log"), "");
    machine.process(
        3,
        300,
        "7:memory:/slurm/uid_1000/job_42/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n",
    );
    let docker = "d".repeat(64);
    machine.process(4, 400, &format!("0::/system.slice/docker-{docker}.scope\n"));
    machine.process(5, 500, "0::/system.slice/vllm.service\n");
    machine.process(6, 600, "0::/user.slice/user-1000.slice/session-1.scope\n");
    machine.process(7, 700, "0::/system.slice/slurmd.service\n");
    machine.write("proc/7/environ", "HOME=/\0SLURM_JOB_ID=77\0SLURM_STEP_ID=0\0");
    machine.process(8, 800, "0::/\n");
    let listed: Vec<(u32, u32)> = (1..=8).map(|pid| (pid % 2, pid)).collect();
    let mut running = machine.start();
    running.until("owners", &listed, |r| r.count(OwnerLookup::Found) == 8.0 && r.attributed.len() == 8);
    let ids: Vec<String> = (1..=8).map(|pid| running.id(pid)).collect();
    let docker = format!("docker/{docker}");
    let expected = [
        "pod/ml/trainer-0/main",
        "pod/shop/web-1/nginx",
        "slurm/42.0",
        &docker,
        "unit/vllm.service",
        "user/alice",
        "slurm/77.0",
        "user/alice",
    ];
    assert_eq!(ids, expected);
    let first = &running.attributed.iter().find(|one| one.pid == 1).unwrap();
    let ticks = procfs::ticks_per_second() as f64;
    let expected = boot_unix_seconds() + 100.0 / ticks;
    assert!((first.started.unwrap() - expected).abs() < 0.05, "{first:?}");
    let info = &first.owner.info;
    assert_eq!((&*info.namespace, &*info.container_id, &*info.pod_uid), ("ml", ID, UID));
    assert_eq!(&*running.owner(3).unwrap().info.user, "alice");
    running.until("no more", &listed, |r| r.sequence > 20);
    assert_eq!(running.attributed.len(), 8, "each is sent once");
    running.end();
}

#[test]
fn one_owner_keeps_the_labels_that_its_processes_have_named() {
    let machine = Machine::new();
    let group =
        "7:memory:/slurm/uid_1000/job_42/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n";
    (1..=3).for_each(|pid| machine.process(pid, 100, group));
    machine.write("proc/2/environ", "SLURM_JOB_ID=42\0SLURM_JOB_ACCOUNT=vision\0");
    let mut running = machine.start();
    let account = |r: &Running, pid| r.owner(pid).map(|owner| owner.info.slurm_account.clone());
    running.until("the first", &[(0, 1)], |r| r.owner(1).is_some());
    assert_eq!((running.id(1).as_str(), account(&running, 1).as_deref()), ("slurm/42.0", Some("")));
    running.until("one that names it", &[(0, 1), (1, 2)], |r| r.owner(2).is_some());
    assert_eq!(account(&running, 2).as_deref(), Some("vision"));
    running.until("one that names none", &[(0, 1), (1, 2), (1, 3)], |r| r.owner(3).is_some());
    assert!(Arc::ptr_eq(&running.owner(2).unwrap(), &running.owner(3).unwrap()));
    running.end();
}

#[test]
fn an_environment_that_hangs_is_late_and_delays_no_other_read() {
    let mut machine = Machine::new();
    machine.config.owners.read_timeout = Duration::from_millis(1500);
    for pid in 1..=6 {
        machine.process(pid, 100, "0::/system.slice/slurmd.service\n");
        machine.hangs(&format!("proc/{pid}/environ"));
    }
    for pid in 7..=9 {
        machine.process(pid, 100, &format!("0::/system.slice/unit-{pid}.service\n"));
        // Of them it is not asked.
        machine.hangs(&format!("proc/{pid}/environ"));
    }
    let listed: Vec<(u32, u32)> = (1..=9).map(|pid| (0, pid)).collect();
    let mut running = machine.start();
    running.until("all", &listed, |r| r.attributed.len() == 9 && !r.lookups.is_empty());
    running.until("counted", &listed, |r| r.count(OwnerLookup::Late) == 6.0);
    assert_eq!(running.count(OwnerLookup::Found), 3.0);
    assert_eq!((running.id(1), running.id(8)), ("unit/slurmd.service".into(), "unit/unit-8.service".into()));
    running.end();
}

#[test]
fn a_process_that_cannot_be_read_in_time_is_nobodys_and_the_others_are_found() {
    let mut machine = Machine::new();
    machine.config.owners.read_timeout = Duration::from_millis(1500);
    machine.process(1, 100, "");
    machine.hangs("proc/1/cgroup");
    machine.process(2, 100, "0::/system.slice/a.service\n");
    machine.process(3, 100, "");
    machine.write("proc/3/stat", "no stat file");
    // Its group has vanished while it was read.
    machine.process(4, 100, "");
    fs::remove_file(machine.path("proc/4/cgroup")).unwrap();
    let listed = [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)];
    let mut running = machine.start();
    running.until("all", &listed, |r| {
        let counts = OwnerLookup::ALL.iter().map(|outcome| r.count(*outcome)).collect::<Vec<_>>();
        counts == [1.0, 2.0, 0.0, 1.0, 1.0] && r.attributed.len() == 5
    });
    assert_eq!(running.id(2), "unit/a.service");
    assert!([1, 3, 4, 5].iter().all(|pid| running.owner(*pid).unwrap().kind == OwnerKind::Unknown));
    assert!(running.attributed.iter().filter(|one| one.pid != 2).all(|one| one.started.is_none()));
    running.end();
}

#[test]
fn one_that_was_late_is_looked_up_again_when_nothing_hangs_any_more() {
    let mut machine = Machine::new();
    machine.config.owners.read_timeout = Duration::from_millis(1500);
    machine.config.metrics.publish_interval = Duration::from_millis(20);
    machine.process(1, 100, "");
    machine.hangs("proc/1/cgroup");
    let mut running = machine.start();
    running.until("it is late", &[(0, 1)], |r| r.count(OwnerLookup::Late) == 1.0 && r.attributed.len() == 1);
    assert_eq!(running.id(1), "unknown");
    let hung = machine.path("proc/1/cgroup");
    let held = fs::File::options().write(true).open(&hung).unwrap();
    fs::remove_file(&hung).unwrap();
    machine.process(1, 100, "0::/system.slice/a.service\n");
    drop(held);
    running.until("its owner", &[(0, 1)], |r| r.id(1) == "unit/a.service");
    running.end();
}

#[test]
fn a_process_that_is_gone_keeps_its_owner_and_a_number_used_again_gets_another() {
    let mut machine = Machine::new();
    machine.config.metrics.publish_interval = Duration::from_millis(20);
    machine.process(1, 100, "0::/system.slice/a.service\n");
    let mut running = machine.start();
    running.until("its owner", &[(0, 1)], |r| r.id(1) == "unit/a.service");
    let seen = running.sequence;
    running.until("unlisted", &[], |r| r.sequence > seen + 20);
    fs::remove_dir_all(machine.path("proc/1")).unwrap();
    running.until("again", &[(0, 1)], |r| r.count(OwnerLookup::Gone) == 1.0 && r.attributed.len() == 2);
    assert_eq!(running.id(1), "unit/a.service");
    let starts: Vec<f64> = running.attributed.iter().filter_map(|one| one.started).collect();
    assert!(starts.len() == 2 && (starts[0] - starts[1]).abs() < 0.05, "{starts:?}");
    // Another process has the number, and the driver lists it without a break.
    machine.process(1, 900, "0::/system.slice/b.service\n");
    running.until("the other", &[(0, 1)], |r| r.id(1) == "unit/b.service");
    running.end();
}

#[test]
fn a_pod_without_logs_gets_the_names_of_the_one_claim_on_its_device() {
    let machine = Machine::new();
    machine.process(1, 100, &format!("0::/kubepods/pod{UID}/{ID}\n"));
    machine.process(2, 100, &format!("0::/kubepods/pod{UID}/{OTHER}\n"));
    let mut running = machine.start();
    let claim = |pod: &str, device: &str| Claim {
        namespace: "ml".into(),
        pod: pod.into(),
        container: "main".into(),
        resource: "nvidia.com/gpu".into(),
        devices: vec![device.into()],
        dynamic: None,
    };
    let all = vec![claim("a", "GPU-0"), claim("b", "GPU-1"), claim("c", "GPU-1")];
    running.pods.set_claims(Claims { listed_at: Some(Mono(1)), all });
    let started = Instant::now();
    let listed = [(0, 1), (1, 2)];
    running.until("the one", &listed, |r| r.id(1) == "pod/ml/a/main");
    running.until("the other", &listed, |r| !r.id(2).is_empty());
    assert_eq!(running.id(2), format!("pod/{UID}/{OTHER}"), "two claims give no name");
    assert!(started.elapsed() >= NAMES_WITHIN, "its names might have come");
    running.end();
}

#[test]
fn a_pod_seen_from_another_container_is_named_and_its_group_is_found() {
    let mut machine = Machine::new();
    machine.config.metrics.publish_interval = Duration::from_millis(20);
    let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
    let scope = format!("{slice}/cri-containerd-{ID}.scope");
    machine.process(1, 100, &format!("0::/../../{scope}\n"));
    machine.write(&format!("var/log/containers/trainer-0_ml_main-{ID}.log"), "");
    let group = format!("kubepods.slice/kubepods-burstable.slice/{scope}");
    machine.write(&format!("sys/fs/cgroup/{group}/memory.events"), "oom_kill 1\n");
    // Of the same pod as the exporter: its pod's group is not seen at all.
    machine.process(2, 100, &format!("0::/../cri-containerd-{OTHER}.scope\n"));
    machine.write(&format!("var/log/containers/trainer-0_ml_side-{OTHER}.log"), "");
    // A user has made a group with the name of that container.
    machine.process(3, 100, &format!("0::/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope\n"));
    let mut running = machine.start();
    let listed = [(0, 1), (0, 2), (1, 3)];
    running.until("all", &listed, |r| r.attributed.len() == 3 && r.readings.len() == 3);
    assert_eq!(
        (running.id(1), running.id(2)),
        ("pod/ml/trainer-0/main".into(), "pod/ml/trainer-0/side".into())
    );
    assert_eq!(&*running.owner(1).unwrap().cgroup, format!("/{group}"));
    assert!(running.readings.iter().any(|one| one.oom_kills == Some(1)));
    assert_eq!(running.owner(3).unwrap().kind, OwnerKind::Container);
    running.end();
}

#[test]
fn what_owners_use_is_read_from_their_groups_and_processes() {
    let mut machine = Machine::new();
    machine.config.metrics.publish_interval = Duration::from_millis(20);
    machine.process(1, 100, "0::/system.slice/a.service\n");
    machine.process(2, 100, "0::/system.slice/a.service/below\n");
    machine.write("proc/2/status", "Uid:\t0\nCpus_allowed_list:\t8-9\n");
    let group = "sys/fs/cgroup/system.slice/a.service";
    machine.write(&format!("{group}/memory.numa_stat"), "anon N0=1000 N1=24\nfile N0=0 N1=1\n");
    machine.write(&format!("{group}/cpu.stat"), "usage_usec 3000000\n");
    machine.write(&format!("{group}/cpu.max"), "200000 100000\n");
    machine.write(&format!("{group}/memory.events"), "oom_kill 4\n");
    machine.process(3, 100, "0::/\n");
    let listed = [(0, 1), (0, 2), (1, 3)];
    let mut running = machine.start();
    running.until("readings", &listed, |r| r.readings.len() == 2);
    let of = |r: &Running, id: &str| r.readings.iter().find(|one| *one.owner == *id).cloned().unwrap();
    let unit = of(&running, "unit/a.service");
    assert_eq!(unit.memory_by_node, [(0, 1000), (1, 25)].into());
    assert_eq!((unit.cpu_seconds, unit.cpu_limit, unit.oom_kills), (Some(3.0), Some(2.0), Some(4)));
    assert_eq!(unit.allowed_cpus.map(|cpus| cpus.to_string()), Some("0-3,8-9".into()));
    let ticks = procfs::ticks_per_second() as f64;
    let user = of(&running, "user/alice");
    assert_eq!((user.cpu_seconds, user.oom_kills), (Some(0.0), None), "what was before is not the owner's");
    machine.write("proc/3/stat", &stat(3, 100, 250, 7));
    machine.write("proc/3/task/3/stat", &stat(3, 100, 250, 7));
    running.until("its work", &listed, |r| of(r, "user/alice").cpu_seconds == Some(100.0 / ticks));
    running.until("it works on another CPU", &listed, |r| of(r, "user/alice").ran_on == [(7, 1)].into());
    assert_eq!(of(&running, "user/alice").busiest_thread, Some((3, 250.0 / ticks)));
    // Its group vanishes while it is at work.
    fs::remove_dir_all(machine.path(group)).unwrap();
    running.until("nothing of it", &listed, |r| of(r, "unit/a.service").memory_by_node.is_empty());
    running.end();
}

#[test]
fn five_thousand_processes_are_all_attributed_and_the_reading_stays_bounded() {
    let mut machine = Machine::new();
    machine.config.metrics.publish_interval = Duration::from_millis(50);
    let mut listed = Vec::new();
    for pid in 1..=5000 {
        machine.process(pid, 100, &format!("0::/system.slice/unit-{}.service\n", pid % 100));
        listed.push((pid % 2, pid));
    }
    let mut running = machine.start();
    running.until("all", &listed, |r| r.attributed.len() == 5000 && !r.readings.is_empty());
    assert_eq!(running.id(4242), "unit/unit-42.service");
    let owners: std::collections::BTreeSet<*const Owner> =
        running.attributed.iter().map(|one| Arc::as_ptr(&one.owner)).collect();
    assert_eq!(owners.len(), 100, "an owner is kept once");
    let visited = running.readings.len() * 50;
    assert!(visited <= 512 + 50, "{visited}");
    let read = std::cell::RefCell::new(std::collections::BTreeSet::new());
    running.until("every owner has a turn", &listed, |r| {
        read.borrow_mut().extend(r.readings.iter().map(|one| Arc::clone(&one.owner)));
        read.borrow().len() == 100
    });
    running.end();
}

#[test]
fn it_can_be_switched_off() {
    let mut machine = Machine::new();
    machine.config.owners.enabled = false;
    let running = machine.start();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let pending = running.context.inbox.wait_until(Mono::now() + Duration::from_millis(20)).unwrap();
        if pending
            .events
            .iter()
            .any(|event| matches!(event, LedgerEvent::CollectorUnavailable(CollectorName::Owners, Some(_))))
        {
            break;
        }
        assert!(Instant::now() < deadline);
    }
    running.end();
}

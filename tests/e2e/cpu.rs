//! Events counted on the CPUs: the kernel's own for real, permitted, refused by missing privileges, and refused by a
//! filter of system calls.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use nix::libc;
use tempfile::TempDir;

use super::machine::Machine;
use super::node::{Metrics, Node, PATIENCE, Setup, pause};

const SCENARIO: &str = "tests/scenarios/still-8xh200.toml";
const SOFTWARE: [&str; 4] = ["context_switches", "cpu_migrations", "page_faults", "major_faults"];
const HARDWARE: [&str; 4] = ["cycles", "instructions", "llc_misses", "branch_misses"];
const CAP_SYS_ADMIN: libc::c_ulong = 21;
const CAP_PERFMON: libc::c_ulong = 38;

fn setup() -> Setup {
    counting(Setup::new(SCENARIO))
}

/// Counting often, and not waiting for a topology.
fn counting(setup: Setup) -> Setup {
    setup.with("CPU__ENABLED", "true").with("CPU__INTERVAL", "1s").with("TOPOLOGY__ENABLED", "false")
}

/// The state of an event: the one that is 1.
fn state(metrics: &Metrics, event: &str) -> Option<String> {
    let mut states = metrics.0.iter().filter(|(name, labels, value)| {
        name == "gpu_host_cpu_event_state" && labels["event"] == event && *value == 1.0
    });
    let state = states.next().map(|(_, labels, _)| labels["state"].clone());
    assert!(states.next().is_none(), "one state an event");
    state
}

fn sum(metrics: &Metrics, event: &str) -> Option<f64> {
    let series = metrics.0.iter().filter(|(name, labels, _)| {
        name == "gpu_host_cpu_events_total" && labels.get("event").is_some_and(|known| known == event)
    });
    let values: Vec<f64> = series.map(|(.., value)| *value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Whether everything on a CPU may be counted without privileges.
fn open_to_all() -> bool {
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    paranoid.trim().parse::<i32>().unwrap() <= 0
}

fn permitted() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let held = u64::from_str_radix(held.trim(), 16).unwrap();
    held >> CAP_PERFMON & 1 == 1 || held >> CAP_SYS_ADMIN & 1 == 1 || open_to_all()
}

/// Takes the privileges away that perf_event_open(2) asks for, for good.
fn without_privileges(command: &mut Command) {
    let drop = || {
        for capability in [CAP_SYS_ADMIN, CAP_PERFMON] {
            // SAFETY: takes numbers alone. It fails where there is nothing to take away.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec nothing but system calls is made.
    unsafe { command.pre_exec(drop) };
}

/// Has a filter of system calls refuse perf_event_open(2), as the profiles of containers do.
fn under_a_filter(command: &mut Command) {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let program = [
        // The number of the call is the first field of seccomp_data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_perf_event_open as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = move || {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        let at = std::ptr::from_ref(&filter) as libc::c_ulong;
        let mode = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
        // SAFETY: the kernel copies the program, which lives until both calls have returned.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, mode, at, 0, 0) != 0
        };
        if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec nothing but system calls is made.
    unsafe { command.pre_exec(filter) };
}

fn doctor(node: &Node, restrain: fn(&mut Command)) -> String {
    let mut command = node.command(&["doctor"]);
    // It is to look for itself, not to ask the daemon.
    command.env("GPU_NODE_EXPORTER__CONTROL__SOCKET", "");
    restrain(&mut command);
    String::from_utf8(command.output().expect("it starts").stdout).unwrap()
}

#[test]
fn events_of_the_kernel_are_counted_and_those_of_the_hardware_where_there_is_a_pmu() {
    if !permitted() {
        eprintln!("not permitted here: see the tests of refusals");
        return;
    }
    let node = setup().start();
    let switches = |m: &Metrics| sum(m, "context_switches");
    let first = node.wait_metrics("counters", |m| switches(m).is_some());
    let before = switches(&first).unwrap();
    let metrics = node.wait_metrics("context switches", |m| switches(m) > Some(before));
    for event in SOFTWARE {
        assert_eq!(state(&metrics, event).as_deref(), Some("works"), "{event}");
        assert!(sum(&metrics, event).is_some(), "{event}");
        let ratio = metrics.value("gpu_host_cpu_event_running_ratio", &[("event", event)]);
        // The kernel may put it aside for a moment while others take turns.
        assert!(ratio.is_some_and(|ratio| ratio > 0.9), "{event} is never shared: {ratio:?}");
    }
    let pmu = ["cpu", "cpu_core"]
        .iter()
        .any(|name| fs::exists(format!("/sys/bus/event_source/devices/{name}")).unwrap());
    for event in HARDWARE {
        let known = state(&metrics, event);
        if !pmu {
            assert_eq!(known.as_deref(), Some("no_pmu"), "{event}");
        }
        assert_eq!(sum(&metrics, event).is_some(), known.as_deref() == Some("works"), "{event}");
    }
    // The simulated host tells no topology.
    let groups = metrics.0.iter().filter(|(name, ..)| name == "gpu_host_cpu_events_total");
    assert!(
        groups.into_iter().all(|(_, labels, _)| labels["numa_node"].is_empty() && labels["l3"].is_empty())
    );
    let said = doctor(&node, |_| {});
    assert!(said.contains("CPU events") && said.contains("counted by this user: context_switches"), "{said}");
}

#[test]
fn the_time_of_the_cpus_is_counted_whatever_the_privileges() {
    let node = setup().restrained(without_privileges).start();
    let of = |m: &Metrics, modes: &[&str]| -> Option<f64> {
        modes.iter().map(|mode| m.value("gpu_host_cpu_seconds_total", &[("mode", *mode)])).sum()
    };
    // Files of the machine that the daemon runs on: a second has so many seconds of CPUs as there are CPUs.
    let modes = ["busy", "iowait", "steal", "idle"];
    let first = node.wait_metrics("the first reading", |m| of(m, &modes).is_some());
    let before = of(&first, &modes).unwrap();
    let metrics = node.wait_metrics("time goes on", |m| of(m, &modes) > Some(before + 0.5));
    assert!(of(&metrics, &["busy"]) > Some(0.0), "the tests themselves are at work");
}

#[test]
fn without_privileges_the_state_says_so_and_all_else_goes_on() {
    let node = setup().restrained(without_privileges).start();
    node.wait_ready();
    let expected = if open_to_all() { "works" } else { "not_permitted" };
    let metrics = node.wait_metrics("states", |m| state(m, "page_faults").is_some());
    assert!(SOFTWARE.iter().all(|event| state(&metrics, event).as_deref() == Some(expected)), "{metrics:?}");
    assert_eq!(metrics.value("gpu_exporter_collector_up", &[("collector", "cpu")]), Some(1.0));
    if expected == "not_permitted" {
        assert!(
            SOFTWARE.iter().chain(&HARDWARE).all(|event| sum(&metrics, event).is_none()),
            "no series, not 0"
        );
        let said = doctor(&node, without_privileges);
        assert!(said.contains("not permitted, by this user: context_switches"), "{said}");
        let recovered = ["sysctl kernel.perf_event_paranoid=0", "--cap-add PERFMON"];
        assert!(said.contains("no CAP_PERFMON") && recovered.iter().any(|fix| said.contains(fix)), "{said}");
        let output = node.command(&["doctor"]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("not permitted, by the daemon") && said.contains("cpu-events.conf"), "{said}");
    }
}

#[test]
fn a_filter_of_system_calls_that_refuses_is_reported() {
    let node = setup().restrained(under_a_filter).start();
    node.wait_ready();
    let metrics = node.wait_metrics("states", |m| state(m, "page_faults").is_some());
    for event in SOFTWARE.iter().chain(&HARDWARE) {
        assert_eq!(state(&metrics, event).as_deref(), Some("not_permitted"), "{event}");
        assert_eq!(sum(&metrics, event), None);
    }
    assert!(metrics.value("gpu_power_watts", &[("gpu", "0")]).is_some(), "all else goes on");
    let said = doctor(&node, under_a_filter);
    assert!(said.contains("seccomp") && said.contains("--cap-add PERFMON"), "{said}");
}

#[test]
fn a_simulated_host_counts_every_event_whatever_the_machine_has() {
    let folder = TempDir::new().unwrap();
    let host = simgpu::host::Host::make(folder.path()).unwrap();
    let root = host.root().to_str().unwrap();
    let setup = Setup::new(SCENARIO)
        .with("HOST__ROOT", root)
        .with("CPU__ENABLED", "true")
        .with("CPU__INTERVAL", "1s");
    let mut node = setup.restrained(without_privileges).start();
    let events = || SOFTWARE.iter().chain(&HARDWARE);
    node.wait_metrics("counts of 32 CPUs that go on", |m| {
        sum(m, "cycles") > Some(32.0 * 1.9e9) && sum(m, "context_switches") > Some(32.0 * 1200.0)
    });
    let metrics = node.metrics();
    for event in events() {
        assert_eq!(state(&metrics, event).as_deref(), Some("works"), "{event}");
        assert!(sum(&metrics, event).is_some(), "{event}");
    }
    let of_node = |numa_node| {
        let groups = metrics.0.iter().filter(|(name, labels, _)| {
            name == "gpu_host_cpu_events_total"
                && labels["event"] == "cycles"
                && labels["numa_node"] == numa_node
        });
        groups.count()
    };
    assert_eq!((of_node("0"), of_node("1")), (2, 2), "two L3 caches a node");
    node.terminate();
    let said = doctor(&node, without_privileges);
    assert!(said.contains("counted as a simulated host: context_switches"), "{said}");
}

#[test]
fn switched_off_nothing_is_counted_and_nothing_is_wrong() {
    let node = Setup::new(SCENARIO).with("CPU__ENABLED", "false").start();
    node.wait_ready();
    let metrics = node.metrics();
    assert!(metrics.0.iter().all(|(name, ..)| !name.starts_with("gpu_host_cpu_")));
    let fds = fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().flatten();
    let mut targets = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    assert!(!targets.any(|target| target.to_string_lossy().contains("perf_event")));
    let output = node.command(&["doctor"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("not counted: cpu.enabled is false"), "{said}");
    assert!(!said.contains("collector cpu"), "{said}");
}

/// A control group of version 2 of the machine that runs the tests, with a process at work in it.
struct Group {
    root: PathBuf,
    folder: PathBuf,
    work: Child,
}

impl Group {
    /// `None` where none can be made, or events are not counted for those of version 2.
    fn new(name: &str) -> Option<Group> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
        let folder = root.join(name);
        if Path::new("/sys/fs/cgroup/perf_event/cgroup.procs").exists() || fs::create_dir(&folder).is_err() {
            return None;
        }
        // It joins the group itself, so that all it does counts there.
        let script = format!("echo $$ > '{}/cgroup.procs' && while :; do /bin/true; done", folder.display());
        let work = Command::new("/bin/sh").args(["-c", &script]).spawn().expect("it starts");
        Some(Group { root, folder, work })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.work.kill();
        let _ = self.work.wait();
        // The last program that it started may still be ending.
        let deadline = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < deadline {
            pause();
        }
    }
}

#[test]
fn events_are_counted_for_the_control_group_of_an_owner() {
    let id = format!("{:064x}", std::process::id());
    let name = format!("docker-{id}.scope");
    let Some(group) = Group::new(&name).filter(|_| permitted()) else {
        eprintln!("no control group can be made here");
        return;
    };
    let mut machine = Machine::new();
    machine.process(4242, format!("0::/{name}\n"));
    machine.gpu([4242]);
    let groups = machine.root().join("sys/fs/cgroup");
    fs::remove_dir_all(&groups).unwrap();
    symlink(&group.root, &groups).unwrap();
    let node = counting(machine.setup()).with("CPU__PER_OWNER", "true").start();
    let owner = format!("docker/{id}");
    let faults =
        |m: &Metrics| m.value("gpu_owner_cpu_events_total", &[("owner", &owner), ("event", "page_faults")]);
    node.wait_metrics("page faults of the owner", |m| faults(m) > Some(100.0));
}

//! The canary's own process on a GPU is not counted as work.

use std::cell::Cell;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use canary::interlock::{self, HeldLock};
use tempfile::TempDir;

use super::canary_daemon::{self, long_run, works_unlisted};
use super::node::{Metrics, Setup};

/// A node on which this process is the canary: it holds the lock of each GPU. A job has a canary's name.
struct Machine {
    folder: TempDir,
    _locks: Vec<HeldLock>,
}

impl Machine {
    fn new() -> Machine {
        let folder = TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (pid, name, line) in
            [(4300002, "exe", "gpu-node-exporter\0canary-child\0"), (4300003, "trainer", "trainer\0")]
        {
            write(&format!("root/proc/{pid}/comm"), &format!("{name}\n"));
            write(&format!("root/proc/{pid}/cmdline"), line);
        }
        write("root/proc/sys/kernel/random/boot_id", "11111111-2222-4333-8444-555555555555\n");
        let scenario = fs::read_to_string("tests/scenarios/canary-own.toml").unwrap();
        write("scenario.toml", &scenario.replace("4300001", &std::process::id().to_string()));
        let lock = |uuid: &str| host::flock::gpu_lock(&folder.path().join("canary.lock"), uuid);
        let uuids = (1..=3).map(|gpu| format!("GPU-00000000-0000-4000-8000-{gpu:012}"));
        let locks = uuids.map(|uuid| interlock::acquire(&lock(&uuid)).unwrap()).collect();
        Machine { folder, _locks: locks }
    }

    fn setup(&self) -> Setup {
        let path = |name: &str| self.folder.path().join(name).to_str().unwrap().to_owned();
        Setup::new(&path("scenario.toml"))
            .with("HOST__ROOT", &path("root"))
            .with("CANARY__LOCK_FILE", &path("canary.lock"))
            .with("CANARY__MODE", "off")
    }
}

#[test]
fn the_canarys_process_is_not_counted_and_keeps_no_gpu_busy() {
    let machine = Machine::new();
    let node = machine.setup().with("PROCESSES__PER_PROCESS", "true").start();
    let m = node.wait_metrics("the processes of all", |m| {
        m.all("gpu_processes", &[("type", "compute")]).len() == 3
            && m.all("gpu_mig_compute_processes", &[]).len() == 2
            && m.all("gpu_last_busy_timestamp_seconds", &[]).len() == 2
            && m.all("gpu_processes_dropped", &[]).len() == 3
    });
    assert_eq!(m.all("gpu_processes", &[("type", "compute")]), [1.0, 1.0, 0.0]);
    assert_eq!(m.all("gpu_mig_compute_processes", &[]), [0.0, 1.0]);
    let own = std::process::id().to_string();
    assert!(m.all("gpu_process_memory_used_bytes", &[("pid", &own)]).is_empty());
    assert_eq!(
        m.all("gpu_process_memory_used_bytes", &[("pid", "4300002")]).len(),
        1,
        "a name proves nothing"
    );
    assert_eq!(m.all("gpu_process_memory_used_bytes", &[]).len(), 2);
    assert!(m.all("gpu_last_busy_timestamp_seconds", &[("gpu", "2")]).is_empty(), "no work there");
    assert_eq!(m.all("gpu_processes_dropped", &[]), [0.0, 0.0, 0.0]);
}

#[test]
fn what_tells_when_a_gpu_was_busy_is_read_also_if_it_is_not_to_be_published() {
    let machine = Machine::new();
    let node = machine.setup().with("METRICS__EXCLUDE", "gpu_processes,gpu_mig_compute_processes").start();
    let m = node.wait_metrics("who was busy", |m| m.all("gpu_last_busy_timestamp_seconds", &[]).len() == 2);
    assert!(m.all("gpu_processes", &[]).is_empty());
}

#[test]
fn a_run_of_the_canary_is_not_counted_as_work() {
    let node = canary_daemon::setup("tests/scenarios/canary.toml")
        .with("CANARY__CHECKS", "init,launch,pcie")
        .start();
    let worked = |m: &Metrics| m.value("gpu_canary_gpu_seconds_total", &[("gpu", "0")]).unwrap_or(0.0);
    let samples = |m: &Metrics| {
        m.value("gpu_exporter_samples_total", &[("gpu", "0"), ("buffer", "utilization")]).unwrap_or(0.0)
    };
    let most = Cell::new(0.0);
    let m = node.wait_metrics("runs, and samples after them", |m| {
        let processes = m.value("gpu_processes", &[("gpu", "0"), ("type", "compute")]);
        most.set(f64::max(most.get(), processes.unwrap_or(0.0)));
        let runs = m.value("gpu_canary_runs_total", &[("end", "finished")]);
        runs >= Some(4.0) && worked(m) > 0.0 && samples(m) > 0.0
    });
    assert_eq!(most.get(), 0.0, "its process has no owner");
    assert_eq!(m.value("gpu_busy_seconds_total", &[("gpu", "0")]), Some(0.0));
    assert!(m.all("gpu_last_busy_timestamp_seconds", &[]).is_empty(), "no work");
    assert!(m.value("gpu_exporter_cpu_seconds_total", &[("role", "canary")]) > Some(0.0), "but it cost");
    let (_, page) = node.get("/");
    assert!(page.contains("<dt>Canary</dt>") && page.contains("ok, "), "{page}");
    long_run(&node);
    works_unlisted(&node);
}

#[test]
fn a_run_by_hand_is_not_counted_as_work_either() {
    let node = Setup::new("tests/scenarios/canary-by-hand.toml")
        .with("CANARY__MODE", "on_demand")
        .with("CANARY__CHECKS", "init,launch")
        .start();
    node.wait_ready();
    node.sim().open_gate("slow").unwrap();
    let mut command = node.command(&["canary"]).stdout(Stdio::null()).spawn().unwrap();
    node.wait_for("a kernel", |node| node.sim().calls_of("cuLaunchKernel") > 1);
    node.sim().open_gate("working").unwrap();
    node.wait_metrics("work", |m| m.value("gpu_utilization_ratio", &[("gpu", "0")]) == Some(0.9));
    let busy = |m: &Metrics| m.value("gpu_last_busy_timestamp_seconds", &[("gpu", "0")]).is_some();
    node.hold("no work yet", Duration::from_secs(2), |node| !busy(&node.metrics()));
    assert!(command.try_wait().unwrap().is_none(), "it is still at it");
    node.sim().close_gate("slow").unwrap();
    assert!(command.wait().unwrap().success());
    node.wait_metrics("other work is seen", busy);
}

#[test]
fn the_driver_is_not_free_while_a_canary_by_hand_has_it() {
    let folder = TempDir::new().unwrap();
    let lock_file = folder.path().join("canary.lock");
    let node = Setup::new("tests/scenarios/canary-own.toml")
        .with("CANARY__LOCK_FILE", lock_file.to_str().unwrap())
        .with("CANARY__MODE", "off")
        .start();
    node.wait_ready();
    let canary = interlock::acquire(&host::flock::gpu_lock(&lock_file, "GPU-0")).unwrap();
    let release = || node.command(&["driver", "release"]).output().unwrap();
    let output = release();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let holder = format!("process {} ", std::process::id());
    assert!(!output.status.success() && said.contains(&holder), "{said}");
    assert!(said.contains("of a canary has it open"), "{said}");
    drop(canary);
    assert!(release().status.success());
}

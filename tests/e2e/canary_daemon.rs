//! The daemon runs the canary by itself: when it may, when it must not, and what it does when a run goes wrong.

use std::fs::{self, File};
use std::time::Duration;

use collectors::canary::state::CanaryStatus;
use gpu_node_exporter::control;
use nix::fcntl::{Flock, FlockArg};

use super::node::{Metrics, Node, Setup, alive, open_window};

const SCENARIO: &str = "tests/scenarios/canary.toml";

/// A node whose canary comes every second. Its checks are the two that take no time on a simulated GPU.
pub(super) fn setup(scenario: &str) -> Setup {
    often(Setup::new(scenario))
}

/// The same on another node.
pub(super) fn often(setup: Setup) -> Setup {
    setup
        .with("CANARY__MODE", "idle")
        .with("CANARY__INTERVAL", "1s")
        .with("CANARY__IDLE_FOR", "1s")
        .with("CANARY__CHECKS", "init,launch")
        .with("CANARY__MAX_DUTY_RATIO", "0.1")
        .with("CANARY__PROGRESS_TIMEOUT", "30s")
}

/// As [`setup`], for a run that hangs.
fn hanging() -> Setup {
    setup(SCENARIO).with("CANARY__PROGRESS_TIMEOUT", "1s")
}

fn start() -> Node {
    let node = setup(SCENARIO).start();
    node.wait_ready();
    node
}

fn runs(m: &Metrics, end: &str) -> f64 {
    m.value("gpu_canary_runs_total", &[("end", end)]).unwrap_or(0.0)
}

fn skipped(m: &Metrics, reason: &str) -> f64 {
    m.value("gpu_canary_skipped_total", &[("reason", reason)]).unwrap_or(0.0)
}

fn verdict(m: &Metrics, gpu: &str, check: &str, verdict: &str) -> Option<f64> {
    m.value("gpu_canary_verdict", &[("gpu", gpu), ("check", check), ("verdict", verdict)])
}

fn all_runs(m: &Metrics) -> f64 {
    m.all("gpu_canary_runs_total", &[]).iter().sum()
}

fn last_run(m: &Metrics, gpu: &str) -> f64 {
    m.value("gpu_canary_last_run_timestamp_seconds", &[("gpu", gpu)]).unwrap_or(0.0)
}

fn processes(m: &Metrics) -> f64 {
    m.value("gpu_canary_processes", &[]).unwrap_or(0.0)
}

/// Waits until GPU 1 has been looked at once more: what happens to GPU 0 is its own affair.
fn other_gpu_goes_on(node: &Node) {
    let before = last_run(&node.metrics(), "1");
    node.wait_metrics("another run on GPU 1", |m| {
        last_run(m, "1") > before && verdict(m, "1", "init", "ok") == Some(1.0)
    });
}

/// Waits until a run is under way on GPU 0 that takes long.
pub(super) fn long_run(node: &Node) {
    node.sim().open_gate("slow").unwrap();
    node.wait_for("a long run", |node| {
        let on_0 = status(node).running.is_some_and(|place| place.gpu.gpu == 0);
        on_0 && processes(&node.metrics()) == 1.0
    });
}

fn status(node: &Node) -> CanaryStatus {
    let answer = control::fetch(&node.control_socket(), "canary status").unwrap();
    serde_json::from_slice(&answer).unwrap()
}

#[test]
fn it_runs_by_itself_on_idle_gpus_and_says_what_it_found() {
    let node = start();
    let m = node.wait_metrics("both GPUs are judged", |m| {
        ["0", "1"].iter().all(|gpu| verdict(m, gpu, "init", "ok") == Some(1.0)) && runs(m, "finished") >= 3.0
    });
    assert_eq!(m.value("gpu_canary_mode", &[("mode", "idle")]), Some(1.0));
    assert_eq!(m.value("gpu_canary_duty_budget_ratio", &[]), Some(0.1));
    assert_eq!(runs(&m, "broken") + runs(&m, "hung") + runs(&m, "driver_fault"), 0.0);
    assert_eq!(m.all("gpu_canary_next_due_timestamp_seconds", &[]).len(), 2);
    let status = status(&node);
    assert_eq!(status.gpus.len(), 2);
    let place = &status.gpus[0].places[0];
    assert!(place.last.is_some(), "{place:?}");
    let conditions: Vec<&str> = place.conditions.iter().map(|c| c.what.as_str()).collect();
    assert!(conditions.contains(&"no process"), "{conditions:?}");
    assert!(node.state_dir().join("canary.json").exists());
}

#[test]
fn it_does_not_run_on_a_gpu_in_use() {
    let node = setup(SCENARIO).start();
    node.sim().open_gate("job").unwrap();
    node.wait_metrics("the job", |m| {
        m.value("gpu_processes", &[("gpu", "0"), ("type", "compute")]) == Some(1.0)
    });
    let before = last_run(&node.metrics(), "0");
    let m = node.wait_metrics("GPU 0 is left alone", |m| skipped(m, "processes") >= 1.0);
    assert_eq!(last_run(&m, "0"), before);
    other_gpu_goes_on(&node);
    assert_eq!(last_run(&node.metrics(), "0"), before);
}

#[test]
fn it_stays_away_while_the_interlock_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("canary.lock");
    let held = Flock::lock(File::create(&path).unwrap(), FlockArg::LockExclusive).unwrap();
    let node = setup(SCENARIO).with("CANARY__LOCK_FILE", path.to_str().unwrap()).start();
    let m = node.wait_metrics("it is kept away", |m| skipped(m, "interlock") >= 2.0);
    assert_eq!(all_runs(&m), 0.0);
    let conditions = status(&node).gpus[0].places[0].conditions.clone();
    let interlock = conditions.iter().find(|c| c.what == "the interlock is free").unwrap();
    assert!(interlock.found.contains(&format!("process {}", std::process::id())), "{interlock:?}");
    drop(held);
    node.wait_metrics("it runs", |m| runs(m, "finished") >= 2.0);
}

#[test]
fn it_stays_away_during_maintenance() {
    let node = setup(SCENARIO).in_maintenance().start();
    let m = node.wait_metrics("it is kept away", |m| skipped(m, "maintenance") >= 2.0);
    assert_eq!(all_runs(&m), 0.0);
    fs::remove_file(node.root().join("etc/gpu-node-exporter/windows.d/now.toml")).unwrap();
    node.wait_metrics("it runs", |m| runs(m, "finished") >= 2.0);
    // A window that begins while a run is under way ends it.
    long_run(&node);
    open_window(&node.root());
    node.wait_metrics("it ends", |m| runs(m, "abandoned") >= 1.0 && processes(m) == 0.0);
}

#[test]
fn a_run_is_abandoned_when_a_job_comes() {
    let node = start();
    long_run(&node);
    node.sim().open_gate("job").unwrap();
    let m = node.wait_metrics("it is abandoned", |m| runs(m, "abandoned") >= 1.0 && processes(m) == 0.0);
    assert_eq!(runs(&m, "broken") + runs(&m, "hung") + runs(&m, "driver_fault"), 0.0);
    let before = last_run(&m, "0");
    other_gpu_goes_on(&node);
    assert_eq!(last_run(&node.metrics(), "0"), before, "GPU 0 is the job's");
}

#[test]
fn a_run_that_hangs_is_reported_and_followed_by_none_on_that_gpu_until_it_ends() {
    let node = hanging().start();
    node.wait_ready();
    node.sim().open_gate("hang").unwrap();
    let hung = |m: &Metrics| m.value("gpu_canary_hung", &[("gpu", "0"), ("step", "context")]);
    let m = node.wait_metrics("it hangs", |m| hung(m) == Some(1.0));
    assert_eq!((runs(&m, "hung"), processes(&m)), (1.0, 1.0));
    assert_eq!(verdict(&m, "0", "init", "hung"), Some(1.0));
    let left = status(&node).left;
    assert_eq!((left.len(), left[0].place.gpu.gpu), (1, 0));
    other_gpu_goes_on(&node);
    let m = node.wait_metrics("no second one", |m| skipped(m, "child_alive") >= 1.0);
    assert_eq!((runs(&m, "hung"), m.value("gpu_canary_kills_total", &[])), (1.0, Some(0.0)));
    assert!(alive(left[0].pid), "it is not killed in its call");
    // The call returns.
    node.sim().open_gate("release").unwrap();
    node.wait_metrics("it has ended", |m| hung(m) == Some(0.0));
    node.wait_until_gone(left[0].pid);
    node.wait_metrics("GPU 0 is looked at again", |m| verdict(m, "0", "init", "ok") == Some(1.0));
    assert_eq!(node.metrics().value("gpu_canary_kills_total", &[]), Some(0.0));
}

#[test]
fn a_process_in_a_call_is_killed_only_after_the_last_deadline() {
    let node = hanging().with("CANARY__KILL_AFTER", "2s").start();
    node.sim().open_gate("hang").unwrap();
    let hung = |m: &Metrics| m.value("gpu_canary_hung", &[("gpu", "0"), ("step", "context")]);
    node.wait_metrics("it hangs", |m| hung(m) == Some(1.0));
    assert_eq!(node.metrics().value("gpu_canary_kills_total", &[]), Some(0.0), "not yet");
    node.wait_metrics("it is killed", |m| m.value("gpu_canary_kills_total", &[]) == Some(1.0));
    node.wait_metrics("it has ended", |m| hung(m) == Some(0.0));
}

#[test]
fn garbage_is_no_finding_about_the_gpu() {
    let node = setup("tests/scenarios/canary-garbage.toml").start();
    let m = node.wait_metrics("broken runs", |m| runs(m, "broken") >= 1.0);
    assert_eq!(verdict(&m, "0", "init", "could_not_run"), Some(1.0));
    assert_eq!(m.value("gpu_healthy", &[("gpu", "0")]), Some(1.0));
    other_gpu_goes_on(&node);
    node.wait_metrics("its process has ended", |m| processes(m) == 0.0);
}

#[test]
fn a_process_that_is_stopped_is_no_hang_and_is_killed() {
    let node = setup("tests/scenarios/canary-stops.toml")
        .with("CANARY__PROGRESS_TIMEOUT", "1s")
        .with("CANARY__KILL_AFTER", "2s")
        .start();
    let m = node.wait_metrics("a broken run", |m| runs(m, "broken") >= 1.0);
    assert_eq!(runs(&m, "hung"), 0.0);
    node.wait_metrics("it is killed", |m| m.value("gpu_canary_kills_total", &[]) >= Some(1.0));
    other_gpu_goes_on(&node);
}

#[test]
fn a_restart_keeps_the_baseline() {
    let samples = |node: &Node| -> usize {
        let text = fs::read_to_string(node.state_dir().join("canary.json")).unwrap_or_default();
        let Ok(file) = serde_json::from_str::<serde_json::Value>(&text) else { return 0 };
        let sets = file["data"]["sets"].as_array().cloned().unwrap_or_default();
        let counts = sets.iter().filter_map(|set| set["samples"].as_object());
        counts.flat_map(|samples| samples.values()).filter_map(|of| of.as_array()).map(Vec::len).sum()
    };
    let mut first = start();
    first.wait_for("some samples", |node| samples(node) >= 4);
    let (status, took) = first.terminate();
    assert!(status.success() && took < Duration::from_secs(5), "{took:?}");
    let before = samples(&first);
    let second = setup(SCENARIO).with_state_of(&first).start();
    second.wait_metrics("a run", |m| runs(m, "finished") >= 1.0);
    second.wait_for("more samples", |_| samples(&first) > before);
}

#[test]
fn releasing_the_driver_ends_a_run_and_keeps_it_away() {
    let node = start();
    long_run(&node);
    let output = node.command(&["driver", "release"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Two collectors report it: which of them is on the page first is open.
    let m = node.wait_metrics("the run is abandoned", |m| {
        let paused = m.value("gpu_driver_paused", &[]) == Some(1.0);
        runs(m, "abandoned") >= 1.0 && processes(m) == 0.0 && paused
    });
    let before = all_runs(&m);
    node.hold("no run begins", Duration::from_secs(2), |node| all_runs(&node.metrics()) == before);
    node.sim().close_gate("slow").unwrap();
    assert!(node.command(&["driver", "resume"]).output().unwrap().status.success());
    node.wait_metrics("it runs again", |m| runs(m, "finished") > runs(m, "abandoned"));
}

#[test]
fn the_daemon_ends_in_time_whatever_a_run_does() {
    let mut node = start();
    long_run(&node);
    let (status, took) = node.terminate();
    assert!(status.success() && took < Duration::from_secs(5), "{took:?}");
    let mut node = hanging().start();
    node.wait_ready();
    node.sim().open_gate("hang").unwrap();
    node.wait_metrics("it hangs", |m| runs(m, "hung") == 1.0);
    let left = self::status(&node).left[0].pid;
    let (status, took) = node.terminate();
    assert!(status.success() && took < Duration::from_secs(5), "{took:?}");
    assert!(alive(left), "left behind in its call");
    node.sim().open_gate("release").unwrap();
    node.wait_until_gone(left);
}

#[test]
fn one_failure_is_tried_again_and_two_are_a_fault() {
    let node = start();
    node.wait_metrics("a run", |m| last_run(m, "0") > 0.0);
    node.sim().open_gate("once").unwrap();
    node.wait_said(&["running the canary once more"]);
    let m = node.wait_metrics("more runs", |m| runs(m, "finished") >= 4.0);
    assert_eq!((runs(&m, "driver_fault"), m.value("gpu_healthy", &[("gpu", "0")])), (0.0, Some(1.0)));
    node.sim().open_gate("sick").unwrap();
    let m = node.wait_metrics("the fault", |m| m.value("gpu_healthy", &[("gpu", "0")]) == Some(0.0));
    assert!(runs(&m, "driver_fault") >= 1.0);
    other_gpu_goes_on(&node);
    // What the canary found itself keeps it not from looking again.
    let before = last_run(&node.metrics(), "0");
    node.wait_metrics("another look", |m| last_run(m, "0") > before);
}

#[test]
fn a_failure_is_tried_again_also_where_the_driver_lists_the_canary_under_another_id() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("container.toml");
    // No process here has such an id.
    let text = format!("pid_offset = 5000000\n{}", fs::read_to_string(SCENARIO).unwrap());
    fs::write(&scenario, text).unwrap();
    // The values are still of the first try when the second is to begin.
    let node = ["NORMAL", "SLOW", "RARE"]
        .iter()
        .fold(setup(scenario.to_str().unwrap()), |setup, kind| {
            setup.with(&format!("SAMPLER__{kind}_INTERVAL"), "1s")
        })
        .start();
    node.wait_ready();
    long_run(&node);
    node.wait_metrics("it is listed", |m| {
        m.value("gpu_processes", &[("gpu", "0"), ("type", "compute")]) == Some(1.0)
    });
    node.sim().open_gate("once").unwrap();
    node.wait_said(&["running the canary once more"]);
    node.sim().close_gate("slow").unwrap();
    let m = node.wait_metrics("the second try is well", |m| verdict(m, "0", "launch", "ok") == Some(1.0));
    assert_eq!((runs(&m, "driver_fault"), m.value("gpu_healthy", &[("gpu", "0")])), (0.0, Some(1.0)));
}

#[test]
fn instances_take_turns() {
    let node = setup("tests/scenarios/canary-mig.toml").start();
    node.wait_metrics("both are judged", |m| {
        let ok = |instance| {
            let labels = [("gpu_instance", instance), ("check", "init"), ("verdict", "ok")];
            m.value("gpu_mig_canary_verdict", &labels) == Some(1.0)
        };
        ok("1") && ok("2")
    });
    assert_eq!(status(&node).gpus[0].places.len(), 2);
}

#[test]
fn a_job_that_leaves_is_followed_by_a_run() {
    let long = setup(SCENARIO).with("CANARY__MODE", "after_job").with("CANARY__INTERVAL", "1h");
    let node = long.with("CANARY__IDLE_FOR", "10m").start();
    node.sim().open_gate("job").unwrap();
    let job = |m: &Metrics| m.value("gpu_processes", &[("gpu", "0"), ("type", "compute")]);
    node.wait_metrics("the job", |m| job(m) == Some(1.0));
    // Time for the canary to see it: it looks every 2 s.
    node.hold("no run", Duration::from_secs(6), |node| all_runs(&node.metrics()) == 0.0);
    node.sim().close_gate("job").unwrap();
    let m = node.wait_metrics("a run", |m| verdict(m, "0", "init", "ok") == Some(1.0));
    assert_eq!(last_run(&m, "1"), 0.0);
}

#[test]
fn off_is_off() {
    let node = setup(SCENARIO).with("CANARY__MODE", "off").start();
    node.wait_ready();
    let m = node.wait_metrics("the mode", |m| m.value("gpu_canary_mode", &[("mode", "off")]) == Some(1.0));
    assert!(m.all("gpu_canary_next_due_timestamp_seconds", &[]).is_empty());
    node.hold("no run", Duration::from_secs(2), |node| all_runs(&node.metrics()) == 0.0);
}

/// No process on GPU 0 counts while kernels run there.
pub(super) fn works_unlisted(node: &Node) {
    let kernels = || node.sim().calls_of("cuLaunchKernel");
    let before = kernels();
    node.wait_for("kernels", |_| kernels() > before + 3);
    node.hold("the canary is no process and has no owner", Duration::from_millis(1500), |node| {
        let m = node.metrics();
        let processes = m.value("gpu_processes", &[("gpu", "0"), ("type", "compute")]);
        processes == Some(0.0) && m.all("gpu_owner_info", &[]).is_empty()
    });
}

#[test]
fn a_canary_by_hand_is_known_by_the_lock_that_it_holds() {
    let node = Setup::new(SCENARIO).with("CANARY__MODE", "off").start();
    node.wait_ready();
    node.sim().open_gate("slow").unwrap();
    let mut command = node.command(&["canary", "--gpu", "0", "--check", "launch", "--repeat", "1000"]);
    let mut command =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    works_unlisted(&node);
    assert!(command.try_wait().unwrap().is_none(), "it is still at work");
    super::node::signal(command.id() as i32, nix::sys::signal::Signal::SIGTERM);
    command.wait().unwrap();
}

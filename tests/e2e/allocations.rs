//! What pods and Slurm jobs were given is published, used or not.

use std::fs;

use super::machine::Machine;
use super::node::{Metrics, Node, Setup};
use super::podresources::{Kubelet, devices, pod};

const SCOPE: &str = "sys/fs/cgroup/system.slice/node7_slurmstepd.scope";

fn allocations(m: &Metrics, labels: &[(&str, &str)]) -> usize {
    m.all("gpu_allocation_info", labels).len()
}

fn jobs(m: &Metrics, gpus: &str) -> Option<f64> {
    m.value("gpu_slurm_jobs", &[("gpus", gpus)])
}

/// A label of the one series of this metric with these labels.
fn label(m: &Metrics, name: &str, of: &[(&str, &str)], wanted: &str) -> String {
    let is = |labels: &std::collections::BTreeMap<String, String>| of.iter().all(|(k, v)| labels[*k] == *v);
    let (_, labels, _) = m.0.iter().find(|(n, labels, _)| n == name && is(labels)).expect("a series");
    labels[wanted].clone()
}

#[test]
fn a_gpu_that_a_pod_was_given_has_the_pods_name_without_a_process() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    let uuid = label(&node.metrics(), "gpu_info", &[], "uuid");
    let gpu = |share: u32| vec![devices("nvidia.com/gpu", [format!("{uuid}::{share}")])];
    let pods = vec![pod("train-0", gpu(3)), pod("serve-0", gpu(4))];
    let kubelet = Kubelet::start(&node.root(), pods, gpu(0));
    let m = node.wait_metrics("both pods", |m| allocations(m, &[]) == 2);
    for name in ["train-0", "serve-0"] {
        let labels = [
            ("namespace", "ml"),
            ("pod", name),
            ("container", "main"),
            ("gpu", "0"),
            ("uuid", &uuid),
            ("gpu_instance", ""),
            ("slurm_job", ""),
        ];
        assert_eq!(m.all("gpu_allocation_info", &labels), [1.0]);
    }
    assert!(m.all("gpu_owner_info", &[]).is_empty() && m.all("gpu_slurm_jobs", &[]).is_empty());
    kubelet.now(|script| script.pods.pod_resources.truncate(1));
    node.wait_metrics("one has ended", |m| {
        (allocations(m, &[]), allocations(m, &[("pod", "train-0")])) == (1, 1)
    });
}

#[test]
fn a_mig_instance_that_a_pod_was_given_is_named() {
    let node = Node::start("tests/scenarios/mig-mixed.toml");
    let m = node.wait_metrics("MIG devices", |m| !m.all("gpu_mig_info", &[]).is_empty());
    let mig = label(&m, "gpu_mig_info", &[], "mig_uuid");
    let of = [("mig_uuid", mig.as_str())];
    let at = ["gpu", "uuid", "gpu_instance"].map(|name| label(&m, "gpu_mig_info", &of, name));
    let claimed = vec![devices("nvidia.com/mig-1g.18gb", [mig.clone()])];
    let _kubelet = Kubelet::start(&node.root(), vec![pod("slice-0", claimed.clone())], claimed);
    let m = node.wait_metrics("the pod", |m| allocations(m, &[("pod", "slice-0")]) == 1);
    let expected = [("gpu", at[0].as_str()), ("uuid", &at[1]), ("gpu_instance", &at[2])];
    assert_eq!(allocations(&m, &expected), 1);
    assert!(!at[2].is_empty());
}

/// A sleeping shell in a job's step.
fn shell(machine: &Machine, job: u32, step: &str, pid: u32) {
    let group = format!("job_{job}/step_{step}/user/task_0");
    machine.write(&format!("{SCOPE}/{group}/cgroup.procs"), format!("{pid}\n"));
    machine.process(pid, format!("0::/system.slice/node7_slurmstepd.scope/{group}\n"));
}

fn environ(machine: &Machine, pid: u32, variables: &[&str]) {
    let text: String = variables.iter().map(|variable| format!("{variable}\0")).collect();
    machine.write(&format!("proc/{pid}/environ"), text);
}

/// Two GPUs without processes; job 42 has the second one.
fn machine() -> Machine {
    let mut machine = Machine::new();
    shell(&machine, 42, "batch", 5_000_001);
    let variables = [
        "SLURM_JOB_ID=42",
        "SLURM_JOB_USER=alice",
        "SLURM_JOB_ACCOUNT=vision",
        "SLURM_JOB_GPUS=1",
        "CUDA_VISIBLE_DEVICES=0",
        "API_TOKEN=hunter2",
    ];
    environ(&machine, 5_000_001, &variables);
    machine.gpu([]);
    machine.gpu([]);
    machine
}

#[test]
fn a_sleeping_shell_shows_what_its_slurm_job_was_given() {
    let machine = machine();
    shell(&machine, 43, "0", 5_000_002);
    environ(&machine, 5_000_002, &["SLURM_JOB_ID=43", "SLURM_JOB_NUM_NODES=1"]);
    let node = machine.start();
    let m = node.wait_metrics("the job", |m| allocations(m, &[]) == 1);
    let labels = [
        ("slurm_job", "42"),
        ("slurm_account", "vision"),
        ("user", "alice"),
        ("gpu", "1"),
        ("gpu_instance", ""),
        ("pod", ""),
    ];
    assert_eq!(m.all("gpu_allocation_info", &labels), [1.0]);
    assert_eq!((jobs(&m, "known"), jobs(&m, "not_permitted")), (Some(1.0), Some(0.0)));
    assert!(m.all("gpu_owner_info", &[]).is_empty(), "no process is on the GPUs");
    for page in ["/metrics", "/api/v1/snapshot", "/api/v1/owners", "/"] {
        assert!(!node.get(page).1.contains("hunter2"), "{page}");
    }
    fs::remove_dir_all(machine.root().join(SCOPE).join("job_42")).unwrap();
    node.wait_metrics("its end", |m| allocations(m, &[]) == 0 && jobs(m, "known") == Some(0.0));
}

#[test]
fn one_environment_that_hangs_hides_no_other_job() {
    let machine = machine();
    shell(&machine, 41, "batch", 5_000_009);
    machine.hangs("proc/5000009/environ");
    let mut node = machine.start();
    let m = node.wait_metrics("the other job", |m| allocations(m, &[("slurm_job", "42")]) == 1);
    assert_eq!((jobs(&m, "known"), jobs(&m, "unknown")), (Some(1.0), Some(1.0)));
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "owners")]), Some(1.0));
    // Jobs that start later are found by later looks, which the one that hangs does not disturb either.
    for (job, pid) in [(51, 5_000_011), (52, 5_000_012)] {
        shell(&machine, job, "batch", pid);
        environ(&machine, pid, &[&format!("SLURM_JOB_ID={job}"), "SLURM_JOB_GPUS=0"]);
        let id = job.to_string();
        let m = node.wait_metrics("a later job", |m| allocations(m, &[("slurm_job", &id)]) == 1);
        assert_eq!((allocations(&m, &[("slurm_job", "42")]), jobs(&m, "unknown")), (1, Some(1.0)), "{id}");
    }
    let (status, took) = node.terminate();
    assert!(status.success() && took < std::time::Duration::from_secs(5), "{status} after {took:?}");
}

#[test]
fn no_environment_is_read_where_that_is_switched_off() {
    let mut machine = machine();
    machine.hangs("proc/5000001/environ");
    machine.gpu([5_000_001]);
    let node = machine.start_with(&[("OWNERS__SLURM_ENVIRONMENT", "false")]);
    let m = node.wait_metrics("the owner", |m| !m.all("gpu_owner_info", &[]).is_empty());
    assert_eq!(m.all("gpu_owner_info", &[("slurm_job", "42"), ("slurm_account", "")]), [1.0]);
    assert_eq!(m.all("gpu_exporter_owner_lookups_total", &[("outcome", "late")]), [0.0]);
    assert!(allocations(&m, &[]) == 0 && m.all("gpu_slurm_jobs", &[]).is_empty());
}

#[test]
fn allocations_have_at_most_the_series_of_owners() {
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with("OWNERS__MAX_SERIES", "3").start();
    node.wait_ready();
    let uuid = label(&node.metrics(), "gpu_info", &[], "uuid");
    let share = |n: u32| vec![devices("nvidia.com/gpu", [format!("{uuid}::{n}")])];
    let pods = (0..40).map(|n| pod(&format!("pod-{n}"), share(n))).collect();
    let _kubelet = Kubelet::start(&node.root(), pods, share(0));
    node.wait_metrics("some", |m| allocations(m, &[]) == 3);
    node.wait_said(&["some allocations have no series", "37"]);
}

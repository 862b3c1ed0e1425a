//! What the kubelet has given out is published, whatever the kubelet does; scrapes never wait for it.

use std::fs;
use std::time::{Duration, Instant};

use collectors::canary::state::CanaryStatus;
use gpu_node_exporter::control;
use prost::Message;

use super::node::{Metrics, Node, Setup};
use super::podresources::{Kubelet, Manner, devices, pod, socket};

/// A scrape takes milliseconds; this leaves room for a machine under load.
const SCRAPE: Duration = Duration::from_secs(1);

/// A node that gives its kubelet this long for an answer.
fn start(deadline: &str) -> Node {
    Setup::new("tests/scenarios/still-1xh200.toml").with("OWNERS__READ_TIMEOUT", deadline).start()
}

fn allocated(m: &Metrics, resource: &str) -> Option<f64> {
    m.value("gpu_kubelet_allocated_devices", &[("resource", resource)])
}

fn allocatable(m: &Metrics, resource: &str) -> Option<f64> {
    m.value("gpu_kubelet_allocatable_devices", &[("resource", resource)])
}

fn errors(m: &Metrics, error: &str) -> f64 {
    m.value("gpu_exporter_kubelet_errors_total", &[("error", error)]).unwrap_or(0.0)
}

fn up(m: &Metrics) -> Option<f64> {
    m.value("gpu_exporter_collector_up", &[("collector", "kubelet")])
}

fn one_gpu(node: &Node) -> Kubelet {
    let gpu = || vec![devices("nvidia.com/gpu", ["GPU-1".to_owned()])];
    Kubelet::start(&node.root(), vec![pod("train-0", gpu())], gpu())
}

#[test]
fn a_node_without_a_kubelet_lacks_nothing() {
    let node = start("20s");
    let m = node.wait_metrics("the collector has looked", |m| up(m) == Some(1.0));
    assert!(
        m.all("gpu_kubelet_allocatable_devices", &[]).is_empty()
            && m.all("gpu_kubelet_allocated_devices", &[]).is_empty()
    );
    let counted = m.all("gpu_exporter_kubelet_errors_total", &[]);
    assert_eq!(counted, [0.0; 5], "born at 0");
}

#[test]
fn devices_of_three_hundred_pods_are_counted_by_resource() {
    let node = start("20s");
    let mut pods: Vec<_> = (0..300)
        .map(|n| match n % 3 {
            0 => pod(&format!("mig-{n}"), vec![devices("nvidia.com/mig-1g.18gb", [format!("MIG-{n}")])]),
            1 => pod(&format!("shared-{n}"), vec![devices("nvidia.com/gpu.shared", [format!("GPU-7::{n}")])]),
            _ => pod(&format!("web-{n}"), vec![devices("intel.com/qat", [format!("q{n}")])]),
        })
        .collect();
    pods.push(pod("hostile\n\"name\\", vec![devices("nvidia.com/gpu", ["GPU-1".to_owned()])]));
    let all = vec![
        devices("nvidia.com/gpu", (0..8).map(|n| format!("GPU-{n}"))),
        devices("nvidia.com/gpu.shared", (0..500).map(|n| format!("GPU-7::{n}"))),
        devices("nvidia.com/mig-1g.18gb", (0..300).map(|n| format!("MIG-{n}"))),
        devices("intel.com/qat", ["q".to_owned()]),
    ];
    let kubelet = Kubelet::start(&node.root(), pods, all);
    let m = node.wait_metrics("what is given out", |m| allocated(m, "nvidia.com/gpu.shared") == Some(100.0));
    assert_eq!(allocated(&m, "nvidia.com/mig-1g.18gb"), Some(100.0));
    assert_eq!(allocated(&m, "nvidia.com/gpu"), Some(1.0));
    assert_eq!(allocatable(&m, "nvidia.com/gpu"), Some(8.0));
    assert_eq!(allocatable(&m, "nvidia.com/gpu.shared"), Some(500.0));
    assert_eq!(m.all("gpu_kubelet_allocatable_devices", &[]).len(), 3, "only NVIDIA's");
    assert_eq!(up(&m), Some(1.0));
    kubelet.now(|script| script.pods.pod_resources.clear());
    node.wait_metrics("pods are gone", |m| allocated(m, "nvidia.com/gpu") == Some(0.0));
    kubelet.now(|script| script.manner = Manner::Old);
    let m = node.wait_metrics("only the list is known", |m| allocatable(m, "nvidia.com/gpu").is_none());
    assert_eq!(
        (up(&m), m.all("gpu_exporter_kubelet_errors_total", &[]).iter().sum::<f64>()),
        (Some(1.0), 0.0)
    );
}

#[test]
fn it_comes_back_after_a_restart() {
    let node = start("20s");
    let kubelet = one_gpu(&node);
    node.wait_metrics("the device", |m| allocated(m, "nvidia.com/gpu") == Some(1.0));
    drop(kubelet);
    let m = node.wait_metrics("no listener", |m| errors(m, "refused") >= 1.0 && up(m) == Some(0.0));
    assert_eq!(errors(&m, "late"), 0.0);
    let (_, page) = node.get("/readyz");
    assert!(page.contains("kubelet.sock"), "it says which socket: {page}");
    let kubelet = one_gpu(&node);
    node.wait_metrics("it is back", |m| allocated(m, "nvidia.com/gpu") == Some(1.0) && up(m) == Some(1.0));
    drop(kubelet);
    fs::remove_file(socket(&node.root())).unwrap();
    node.wait_metrics("it was taken away", |m| {
        m.all("gpu_kubelet_allocated_devices", &[]).is_empty() && up(m) == Some(1.0)
    });
}

#[test]
fn whatever_it_does_is_counted_and_scrapes_do_not_wait() {
    let node = start("2s");
    node.wait_ready();
    let kubelet = one_gpu(&node);
    let bad = |what: &str, error: &str, before: f64| {
        let m = node.wait_metrics(what, |m| errors(m, error) > before);
        let started = Instant::now();
        node.metrics();
        assert!(started.elapsed() < SCRAPE, "{what}: a scrape took {:?}", started.elapsed());
        m
    };
    kubelet.now(|script| script.manner = Manner::Hung);
    bad("it hangs", "late", 0.0);
    kubelet.now(|script| script.manner = Manner::Garbage);
    bad("it speaks something else", "malformed", 0.0);
    kubelet.now(|script| script.manner = Manner::Refusing);
    bad("it refuses", "refused", 0.0);
    kubelet.now(|script| {
        script.manner = Manner::Well;
        let long = "x".repeat(1024 * 1024);
        script.pods.pod_resources = (0..15).map(|_| pod(&long, Vec::new())).collect();
        assert!(script.pods.encoded_len() < 16 * 1024 * 1024, "what tonic takes for a kubelet's");
    });
    bad("it has too much to say", "too_large", 0.0);
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB")).unwrap();
    let peak: u64 = peak.trim().parse().unwrap();
    assert!(peak < 80 << 10, "{peak} KiB at most");
    drop(kubelet);
    fs::remove_file(socket(&node.root())).unwrap();
    fs::write(socket(&node.root()), "").unwrap();
    let m = bad("a file is there", "no_socket", 0.0);
    assert_eq!(up(&m), Some(0.0));
    fs::remove_file(socket(&node.root())).unwrap();
    let _kubelet = one_gpu(&node);
    node.wait_metrics("all is well again", |m| {
        allocated(m, "nvidia.com/gpu") == Some(1.0) && up(m) == Some(1.0)
    });
}

#[test]
fn the_canary_stays_away_from_a_gpu_that_a_pod_was_given() {
    let node = Setup::new("tests/scenarios/canary.toml")
        .with("CANARY__MODE", "idle")
        .with("CANARY__INTERVAL", "1s")
        .with("CANARY__IDLE_FOR", "1s")
        .with("CANARY__CHECKS", "init,launch")
        .with("CANARY__MAX_DUTY_RATIO", "0.1")
        .start();
    node.wait_ready();
    let status = || -> CanaryStatus {
        serde_json::from_slice(&control::fetch(&node.control_socket(), "canary status").unwrap()).unwrap()
    };
    node.wait_for("both GPUs", |_| status().gpus.len() == 2);
    let uuid = status().gpus[0].gpu.uuid.to_string();
    let gpu = || vec![devices("nvidia.com/gpu", [format!("{uuid}::3")])];
    let kubelet = Kubelet::start(&node.root(), vec![pod("train-0", gpu())], gpu());
    node.wait_metrics("it is kept away", |m| {
        m.value("gpu_canary_skipped_total", &[("reason", "claimed")]) >= Some(1.0)
    });
    let last = |m: &Metrics, gpu: &str| m.value("gpu_canary_last_run_timestamp_seconds", &[("gpu", gpu)]);
    let found = status().gpus[0].places[0].conditions.clone();
    let found = found.iter().find(|c| c.what == "no pod claims the GPU").unwrap();
    assert_eq!(found.found, "pod ml/train-0, container main");
    let before = node.metrics();
    node.wait_metrics("the other GPU is looked at", |m| last(m, "1") > last(&before, "1"));
    assert_eq!(last(&node.metrics(), "0"), last(&before, "0"));
    kubelet.now(|script| script.pods.pod_resources.clear());
    node.wait_metrics("it runs again", |m| last(m, "0") > last(&before, "0"));
    // A job of Slurm whose devices its control group does not tell may have any of them.
    let job = node.root().join("sys/fs/cgroup/system.slice/node_slurmstepd.scope/job_42");
    fs::create_dir_all(&job).unwrap();
    fs::write(job.join("cgroup.events"), "populated 1\n").unwrap();
    let claimed = |m: &Metrics| m.value("gpu_canary_skipped_total", &[("reason", "claimed")]).unwrap_or(0.0);
    let before = claimed(&node.metrics());
    node.wait_metrics("the job keeps it away", |m| claimed(m) >= before + 2.0);
    let found = status().gpus[1].places[0].conditions.clone();
    let found = found.iter().find(|c| c.what == "no job claims the GPU").unwrap();
    assert!(found.found.contains("Slurm job 42"), "{found:?}");
}

#[test]
fn the_daemon_ends_in_time_while_it_hangs() {
    let mut node = Setup::new("tests/scenarios/still-1xh200.toml").with("OWNERS__READ_TIMEOUT", "1m").start();
    node.wait_ready();
    let kubelet = one_gpu(&node);
    kubelet.now(|script| script.manner = Manner::Hung);
    let asked = kubelet.asked();
    node.wait_for("it is asked", |_| kubelet.asked() > asked);
    let (status, took) = node.terminate();
    assert!(status.success() && took < Duration::from_secs(5), "{status} after {took:?}");
}

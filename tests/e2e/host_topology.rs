//! The machine around the GPUs: its sysfs made by hand, with the GPUs where the simulated driver has them.

use std::fs;
use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use simgpu::host::HostProcess;
use tempfile::TempDir;

use super::node::{Metrics, Node, Setup};

const SCENARIO: &str = "tests/scenarios/still-8xh200.toml";

/// The simulated node's host.
struct Host {
    files: simgpu::host::Host,
    _folder: TempDir,
}

impl Host {
    fn new() -> Host {
        let folder = TempDir::new().unwrap();
        Host { files: simgpu::host::Host::make(folder.path()).unwrap(), _folder: folder }
    }

    fn setup(&self) -> Setup {
        Setup::new(SCENARIO)
            .with("HOST__ROOT", self.files.root().to_str().unwrap())
            .with("TOPOLOGY__INTERVAL", "1s")
            .with("NETWORK__INTERVAL", "1s")
    }
}

impl std::ops::Deref for Host {
    type Target = simgpu::host::Host;

    fn deref(&self) -> &simgpu::host::Host {
        &self.files
    }
}

/// One label of the only series of this name with these labels.
fn label(page: &Metrics, name: &str, labels: &[(&str, &str)], wanted: &str) -> String {
    let fits = |have: &std::collections::BTreeMap<String, String>| {
        labels.iter().all(|(key, value)| have.get(*key).is_some_and(|have| have == value))
    };
    let found: Vec<_> = page.0.iter().filter(|(n, have, _)| n == name && fits(have)).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}");
    found[0].1.get(wanted).cloned().unwrap_or_default()
}

fn placed(node: &Node) -> Metrics {
    node.wait_metrics("the places of all GPUs", |m| m.all("gpu_host_topology_info", &[]).len() == 8)
}

fn matches_first(m: &Metrics) -> Option<f64> {
    m.value("gpu_host_topology_matches", &[("against", "first_seen")])
}

#[test]
fn each_gpu_is_reported_with_its_node_its_cpus_and_its_network() {
    let host = Host::new();
    let declared = host.path("declared.json");
    fs::write(&declared, "{}").unwrap();
    let node = host.setup().with("TOPOLOGY__EXPECTED_FILE", declared.to_str().unwrap()).start();
    node.wait_ready();
    let m = placed(&node);
    let place = |gpu: &str, wanted: &str| label(&m, "gpu_host_topology_info", &[("gpu", gpu)], wanted);
    let shares: Vec<_> = (0..8).map(|gpu| place(&gpu.to_string(), "share")).collect();
    assert_eq!(shares, ["0-3", "4-7", "8-11", "12-15", "16-19", "20-23", "24-27", "28-31"]);
    assert_eq!((place("5", "numa_node"), place("5", "cpus")), ("1".into(), "16-31".into()));
    assert_eq!((place("5", "l3"), place("5", "package")), ("2".into(), "1".into()));
    let nic = |gpu: &str, wanted: &str| label(&m, "gpu_host_nic_info", &[("gpu", gpu)], wanted);
    assert_eq!((nic("0", "nic"), nic("7", "nic")), ("mlx5_0".into(), "mlx5_1".into()));
    assert_eq!(nic("7", "path"), "numa_node");
    assert_eq!(m.value("gpu_host_nic_up", &[("nic", "mlx5_0")]), Some(1.0));
    assert_eq!(m.value("gpu_host_nic_speed_bytes_per_second", &[("nic", "mlx5_0")]), Some(50e9));
    for (object, count) in
        [("package", 2.0), ("numa_node", 2.0), ("l3", 4.0), ("core", 32.0), ("cpu", 32.0), ("gpu", 8.0)]
    {
        assert_eq!(m.value("gpu_host_objects", &[("object", object)]), Some(count), "{object}");
    }
    assert_eq!(m.all("gpu_host_pcie_port_max_width_lanes", &[]), [16.0; 8]);
    assert_eq!(m.all("gpu_host_pcie_link_matches", &[("aspect", "width")]), [1.0; 8]);
    assert_eq!(matches_first(&m), Some(1.0));
    assert_eq!(m.value("gpu_host_topology_matches", &[("against", "declared")]), None, "it is no topology");
    node.wait_metrics("what is wrong with it is said", |m| {
        m.value("gpu_exporter_collector_up", &[("collector", "topology")]) == Some(0.0)
    });

    let (status, body) = node.get("/api/v1/topology");
    assert_eq!(status, 200);
    let document: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(document["gpus"][5]["share"]["cpus"], "20-23");
    assert_eq!(document["against_first_seen"], serde_json::json!([]));
    // What is served can be declared.
    fs::write(&declared, body).unwrap();
    node.wait_metrics("the declared one is as it is", |m| {
        m.value("gpu_host_topology_matches", &[("against", "declared")]) == Some(1.0)
            && m.value("gpu_exporter_collector_up", &[("collector", "topology")]) == Some(1.0)
    });
}

#[test]
fn the_network_of_a_gpu_is_counted_and_a_failed_link_stays_its_own() {
    let host = Host::new();
    let node = host.setup().start();
    let m = node.wait_metrics("the counters of both adapters", |m| {
        m.all("gpu_host_network_flaps_total", &[]).len() == 2
    });
    let of = |direction| [("nic", "mlx5_1"), ("port", "1"), ("direction", direction)];
    assert_eq!(m.value("gpu_host_network_bytes_total", &of("tx")), Some(10e9), "words of four bytes");
    assert_eq!(m.value("gpu_host_network_bytes_total", &of("rx")), Some(11e9));
    assert_eq!(m.all("gpu_host_network_errors_total", &[("nic", "mlx5_1")]), [0.0; 4]);
    let port = "sys/class/infiniband/mlx5_1/ports/1";
    host.write(&format!("{port}/state"), "1: DOWN").unwrap();
    host.write(&format!("{port}/counters/link_downed"), "1").unwrap();
    let m = node.wait_metrics("the loss of the link", |m| {
        m.value("gpu_host_network_flaps_total", &[("nic", "mlx5_1")]) == Some(1.0)
            && m.value("gpu_host_nic_up", &[("nic", "mlx5_1")]) == Some(0.0)
    });
    assert_eq!(label(&m, "gpu_host_nic_info", &[("gpu", "7")], "nic"), "mlx5_1");
    let up = m.value("gpu_exporter_collector_up", &[("collector", "network")]);
    assert_eq!(up, Some(1.0));
}

#[test]
fn work_on_the_cache_of_another_gpu_of_the_node_is_far() {
    let host = Host::new();
    let mut scenario = String::new();
    for (gpu, cpus) in [(0, "0-7"), (1, "8-15"), (2, "0-15")] {
        let (pid, cgroup) = (4_200_000 + gpu, format!("/system.slice/job-{gpu}.service"));
        let process = HostProcess {
            pid,
            name: "python3",
            cgroup: &cgroup,
            cpus,
            uid: 1000,
            memory: [1 << 30, 0],
            started_ticks: 100,
        };
        host.process(&process).unwrap();
        let job = format!("{{ pid = {pid}, memory = \"20GiB\", type = \"compute\" }}");
        scenario += &format!("[[gpu]]\nmodel = \"H200\"\nprocesses = [{job}]\n");
    }
    scenario += "[[gpu]]\nmodel = \"H200\"\ncount = 5\n";
    let file = host.path("scenario.toml");
    fs::write(&file, scenario).unwrap();
    let node = Setup::new(file.to_str().unwrap()).with("HOST__ROOT", host.root().to_str().unwrap()).start();
    // Shares: CPUs 0-3 and 4-7 with the first cache, 8-11 with the second.
    let m = node.wait_metrics("all owners are read", |m| m.all("gpu_owner_cpu_remote_ratio", &[]).len() == 3);
    assert_eq!(m.all("gpu_owner_cpu_remote_ratio", &[]), [0.0; 3], "all are on the right node");
    let remote = |gpu: &str| m.value("gpu_owner_cpu_remote_cache_ratio", &[("gpu", gpu)]);
    assert_eq!((remote("0"), remote("1")), (Some(0.0), Some(1.0)));
    assert_eq!(remote("2"), None, "bound to the node, to no cache");
}

#[test]
fn a_manager_of_the_fabric_that_ends_is_reported() {
    let host = Host::new();
    fs::create_dir_all(host.path("sys/bus/pci/drivers/nvidia-nvswitch/0000:20:00.0")).unwrap();
    host.service(80, "nv-fabricmanager").unwrap();
    let node = host.setup().start();
    let manager = [("service", "nv-fabricmanager")];
    let m = node.wait_metrics("the manager runs", |m| m.value("gpu_host_service_up", &manager) == Some(1.0));
    assert_eq!(m.all("gpu_host_service_up", &[]).len(), 1, "the others were never there");
    host.end(80).unwrap();
    node.wait_metrics("it does not, and the driver says nothing of it", |m| {
        let completed = m.all("gpu_fabric_state", &[("state", "completed")]);
        m.value("gpu_host_service_up", &manager) == Some(0.0) && completed == [1.0; 8]
    });
    // An enabled unit on a node whose GPUs have a fabric is expected as well.
    fs::remove_dir_all(host.path("sys/bus/pci/drivers/nvidia-nvswitch")).unwrap();
    host.write("etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service", "").unwrap();
    let again = host.setup().start();
    again.wait_metrics("the unit is enabled", |m| m.value("gpu_host_service_up", &manager) == Some(0.0));
}

#[test]
fn a_change_is_reported_at_once_and_after_a_restart() {
    let host = Host::new();
    let mut node = host.setup().start();
    node.wait_metrics("it is as first seen", |m| matches_first(m) == Some(1.0));
    fs::remove_file(host.device("0000:00:02.0")).unwrap();
    let m = node.wait_metrics("it is not", |m| matches_first(m) == Some(0.0));
    assert_eq!(label(&m, "gpu_host_nic_info", &[("gpu", "7")], "path"), "system");
    let changed =
        |node: &Node| node.get("/api/v1/topology").1.contains("network device 0000:00:02.0 is gone");
    assert!(changed(&node));
    node.terminate();
    let again = host.setup().with_state_of(&node).start();
    again.wait_metrics("it still is not", |m| matches_first(m) == Some(0.0));
    assert!(changed(&again));
    // A NIC at its old place, and a link that has lost lanes.
    host.write("sys/devices/pci0000:00/port-of-0000:00:06.0/0000:00:06.0/current_link_width", "8").unwrap();
    let target = "../../../devices/pci0000:00/port-of-0000:00:02.0/0000:00:02.0";
    symlink(target, host.device("0000:00:02.0")).unwrap();
    again.wait_for("only the lanes are reported", |node| {
        let body = node.get("/api/v1/topology").1;
        body.contains(r#""against_first_seen":["GPU 0000:00:06.0 runs on 8 lanes, ran on 16"]"#)
    });
}

#[test]
fn a_file_that_hangs_holds_up_one_process_alone() {
    let host = Host::new();
    let node = host.setup().start();
    node.wait_ready();
    placed(&node);
    let speed = host.device("0000:00:06.0").join("max_link_speed");
    fs::remove_file(&speed).unwrap();
    nix::unistd::mkfifo(&speed, Mode::from_bits_truncate(0o644)).unwrap();
    let up = |m: &Metrics| m.value("gpu_exporter_collector_up", &[("collector", "topology")]);
    let m = node.wait_metrics("the collector says so", |m| up(m) == Some(0.0));
    assert_eq!(m.all("gpu_up", &[]), [1.0; 8], "GPUs are read all the while");
    assert_eq!(m.all("gpu_host_topology_info", &[]).len(), 8, "where they sit is known");
    assert!(node.get("/readyz").1.contains("the topology process did not answer within 10 s"));
    fs::remove_file(&speed).unwrap();
    fs::write(&speed, "32.0 GT/s PCIe\n").unwrap();
    node.wait_metrics("it is heard again", |m| up(m) == Some(1.0));
}

/// Files of NVIDIA's libraries that a process has mapped; the simulated library is both.
fn nvidia_libraries(pid: i32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    files
        .filter(|file| ["libnvidia", "libcuda", "libsimgpu"].iter().any(|name| file.contains(name)))
        .map(str::to_owned)
        .collect()
}

/// The child of the daemon that runs this internal command, if there is one now.
fn child(node: &Node, command: &str) -> Option<i32> {
    let children = fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap().flatten().flat_map(|task| {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    });
    let runs = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == command.as_bytes())
    };
    children.into_iter().find(runs)
}

#[test]
fn only_the_sampler_maps_a_library_of_nvidia() {
    let host = Host::new();
    let speed = host.device("0000:00:06.0").join("max_link_speed");
    fs::remove_file(&speed).unwrap();
    nix::unistd::mkfifo(&speed, Mode::from_bits_truncate(0o644)).unwrap();
    let node = host.setup().start();
    // It hangs in the pipe, with everything loaded that it will ever load.
    node.wait_for("the topology process runs", |node| child(node, "topology-child").is_some());
    let topology = child(&node, "topology-child").unwrap();
    node.wait_metrics("NVML answers", |m| m.value("gpu_driver_up", &[]) == Some(1.0));
    assert_eq!(nvidia_libraries(topology), [""; 0]);
    assert_eq!(nvidia_libraries(node.pid()), [""; 0]);
    let samplers = node.samplers();
    assert!(!samplers.is_empty());
    for sampler in samplers {
        assert!(!nvidia_libraries(sampler).is_empty(), "what is looked for is seen where it is");
    }
    // The process is released from the pipe and finds a file in its place, so that it ends with the node.
    let pipe = fs::File::options().read(true).write(true).open(&speed).unwrap();
    fs::remove_file(&speed).unwrap();
    fs::write(&speed, "32.0 GT/s PCIe\n").unwrap();
    drop(pipe);
}

#[test]
fn switched_off_it_starts_nothing_and_says_so() {
    let host = Host::new();
    let node = host.setup().with("TOPOLOGY__ENABLED", "false").start();
    node.wait_ready();
    assert!(node.get("/readyz").1.contains("topology.enabled"));
    assert!(node.metrics().all("gpu_host_objects", &[]).is_empty());
    assert_eq!(node.get("/api/v1/topology").0, 503);
}

#[test]
fn a_host_without_these_files_has_no_topology() {
    let node = Node::start("tests/scenarios/still-1xh200.toml");
    assert!(node.get("/readyz").1.contains("no folder"));
    assert!(node.metrics().all("gpu_host_objects", &[]).is_empty());
}

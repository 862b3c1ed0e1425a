//! The machine around the GPUs: its sysfs made by hand, with the GPUs where the simulated driver has them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use tempfile::TempDir;

use super::node::{Metrics, Node, Setup};

const SCENARIO: &str = "tests/scenarios/still-8xh200.toml";

/// A host of two packages with 16 CPUs each, in L3 groups of eight; four GPUs and a network device near each.
struct Host(TempDir);

impl Host {
    fn new() -> Host {
        let host = Host(TempDir::new().unwrap());
        host.write("proc/stat", "cpu 1 2 3 4\nbtime 1700000000");
        host.write("proc/sys/kernel/random/boot_id", "11111111-2222");
        host.write("etc/machine-id", "00112233445566778899aabbccddeeff");
        for file in ["online", "possible", "present"] {
            host.write(&format!("sys/devices/system/cpu/{file}"), "0-31");
        }
        for cpu in 0..32 {
            host.cpu(cpu);
        }
        for file in ["online", "possible", "has_cpu", "has_memory"] {
            host.write(&format!("sys/devices/system/node/{file}"), "0-1");
        }
        for node in 0..2u32 {
            let folder = format!("sys/devices/system/node/node{node}");
            host.write(&format!("{folder}/cpumap"), &mask(16 * node, 16));
            host.write(&format!("{folder}/distance"), if node == 0 { "10 21" } else { "21 10" });
            let memory = format!("Node {node} MemTotal:       67108864 kB\nNode {node} MemFree:  1 kB");
            host.write(&format!("{folder}/meminfo"), &memory);
        }
        for gpu in 0..8u32 {
            host.pci(&format!("0000:00:{:02x}.0", 6 + gpu), "0x030200", "0x10de", gpu / 4);
        }
        for node in 0..2 {
            let address = format!("0000:00:{:02x}.0", 1 + node);
            host.pci(&address, "0x020700", "0x15b3", node);
            let device = host.device(&address);
            fs::create_dir_all(device.join(format!("infiniband/mlx5_{node}"))).unwrap();
            let port = format!("sys/class/infiniband/mlx5_{node}/ports/1");
            host.write(&format!("{port}/link_layer"), "InfiniBand");
            host.write(&format!("{port}/rate"), "400 Gb/sec (4X NDR)");
            host.write(&format!("{port}/state"), if node == 0 { "4: ACTIVE" } else { "1: DOWN" });
        }
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn cpu(&self, cpu: u32) {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        for (file, text) in [
            ("topology/physical_package_id", (cpu / 16).to_string()),
            ("topology/core_id", (cpu % 16).to_string()),
            ("topology/core_cpus", mask(cpu, 1)),
            ("topology/thread_siblings", mask(cpu, 1)),
            ("topology/package_cpus", mask(cpu / 16 * 16, 16)),
            ("topology/core_siblings", mask(cpu / 16 * 16, 16)),
            ("cache/index0/level", "3".into()),
            ("cache/index0/type", "Unified".into()),
            ("cache/index0/size", "32768K".into()),
            ("cache/index0/shared_cpu_map", mask(cpu / 8 * 8, 8)),
        ] {
            self.write(&format!("{folder}/{file}"), &text);
        }
    }

    /// A device in a port of its own, both of generation 5 with 16 lanes.
    fn pci(&self, address: &str, class: &str, vendor: &str, node: u32) {
        let port = format!("sys/devices/pci0000:00/port-of-{address}");
        let folder = format!("{port}/{address}");
        for folder in [&port, &folder] {
            self.write(&format!("{folder}/vendor"), vendor);
            for (file, text) in [("speed", "32.0 GT/s PCIe"), ("width", "16")] {
                self.write(&format!("{folder}/max_link_{file}"), text);
                self.write(&format!("{folder}/current_link_{file}"), text);
            }
        }
        for (file, text) in [
            ("class", class.to_owned()),
            ("device", "0x2335".to_owned()),
            ("subsystem_vendor", vendor.to_owned()),
            ("subsystem_device", "0x0001".to_owned()),
            ("numa_node", node.to_string()),
            ("local_cpus", mask(16 * node, 16)),
        ] {
            self.write(&format!("{folder}/{file}"), &text);
        }
        fs::create_dir_all(self.path("sys/bus/pci/devices")).unwrap();
        let target = Path::new("../../../..").join(&folder);
        symlink(target, self.path("sys/bus/pci/devices").join(address)).unwrap();
    }

    fn device(&self, address: &str) -> PathBuf {
        self.path("sys/bus/pci/devices").join(address)
    }

    fn setup(&self) -> Setup {
        Setup::new(SCENARIO)
            .with("HOST__ROOT", self.0.path().to_str().unwrap())
            .with("TOPOLOGY__INTERVAL", "1s")
    }
}

/// So many CPUs from the first on, as the kernel writes a mask.
fn mask(first: u32, count: u32) -> String {
    format!("{:08x}", ((1u64 << count) - 1) << first)
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
fn each_gpu_is_told_with_its_node_its_cpus_and_its_network() {
    let host = Host::new();
    let declared = host.path("declared.json");
    fs::write(&declared, "{}").unwrap();
    let node = host.setup().with("TOPOLOGY__DECLARED", declared.to_str().unwrap()).start();
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
    assert_eq!(m.value("gpu_host_nic_up", &[("nic", "mlx5_1")]), Some(0.0));
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
    let told: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(told["gpus"][5]["share"]["cpus"], "20-23");
    assert_eq!(told["against_first_seen"], serde_json::json!([]));
    // What is served can be declared.
    fs::write(&declared, body).unwrap();
    node.wait_metrics("the declared one is as it is", |m| {
        m.value("gpu_host_topology_matches", &[("against", "declared")]) == Some(1.0)
            && m.value("gpu_exporter_collector_up", &[("collector", "topology")]) == Some(1.0)
    });
}

#[test]
fn a_change_is_told_at_once_and_after_a_restart() {
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
    host.write("sys/devices/pci0000:00/port-of-0000:00:06.0/0000:00:06.0/current_link_width", "8");
    let target = "../../../devices/pci0000:00/port-of-0000:00:02.0/0000:00:02.0";
    symlink(target, host.device("0000:00:02.0")).unwrap();
    again.wait_for("only the lanes are told", |node| {
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

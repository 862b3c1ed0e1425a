//! Machines whose answers were derived by hand from their descriptions.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use model::topology::{Device, Link, LinkCapability, Network};

fn found(origin: Origin) -> Topology {
    discover(&origin, false).unwrap().0
}

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/topologies").join(name)
}

fn recorded(name: &str) -> Topology {
    found(Origin::Xml(recording(name)))
}

fn synthetic(text: &str) -> Topology {
    found(Origin::Synthetic(text.into()))
}

fn devices_of(topology: &Topology, kind: DeviceKind) -> Vec<&Device> {
    topology.devices.iter().filter(|device| device.kind == kind).collect()
}

#[test]
fn a_dgx_2() {
    let dgx = recorded("nvidia-dgx2.xml");
    assert_eq!(dgx.machine, "NVIDIA DGX-2H");
    assert_eq!(dgx.cpus.to_string(), "0-1,24-25");
    let packages: Vec<_> = dgx.packages.iter().map(|p| (p.index, p.cpus.to_string())).collect();
    assert_eq!(packages, [(0, "0-1".into()), (1, "24-25".into())]);
    assert!(dgx.packages[0].model.contains("Platinum 8174"));
    let nodes: Vec<_> = dgx.numa_nodes.iter().map(|n| (n.index, n.cpus.to_string(), n.package)).collect();
    assert_eq!(nodes, [(0, "0-1".into(), Some(0)), (1, "24-25".into(), Some(1))]);
    assert_eq!(dgx.numa_nodes[1].memory_bytes, 811_737_923_584);
    let l3: Vec<_> = dgx.l3_groups.iter().map(|l3| (l3.index, l3.cpus.to_string(), l3.size_bytes)).collect();
    assert_eq!(l3, [(0, "0-1".into(), 34_603_008), (1, "24-25".into(), 34_603_008)]);
    assert_eq!(dgx.cores.len(), 4);
    let gpus = devices_of(&dgx, DeviceKind::Gpu);
    assert_eq!(gpus.len(), 16);
    assert!(gpus[..8].iter().all(|gpu| gpu.numa_node == Some(0) && gpu.cpus.to_string() == "0-1"));
    assert!(gpus[8..].iter().all(|gpu| gpu.numa_node == Some(1) && gpu.cpus.to_string() == "24-25"));
    assert_eq!((gpus[0].address.as_str(), gpus[0].id.as_str()), ("0000:34:00.0", "10de:1db8"));
    // Root port, the upstream and downstream port of one switch, then of another.
    let way = ["0000:2b:00.0", "0000:2c:00.0", "0000:2d:04.0", "0000:32:00.0", "0000:33:00.0"];
    assert_eq!(gpus[0].bridges, way);
    assert_eq!(gpus[1].bridges[..4], way[..4], "the GPU beside it hangs on the same switch");
    assert_eq!(devices_of(&dgx, DeviceKind::Nvswitch).len(), 12);
    assert!(gpus.iter().all(|gpu| gpu.link.is_none() && gpu.names.is_empty()), "the file names no port");
}

#[test]
fn a_machine_with_four_boards() {
    let machine = recorded("4-socket-pci.xml");
    assert_eq!((machine.packages.len(), machine.numa_nodes.len(), machine.l3_groups.len()), (16, 4, 16));
    assert_eq!((machine.cores.len(), machine.cpus.len()), (96, 96));
    let node = &machine.numa_nodes[2];
    assert_eq!((node.cpus.to_string().as_str(), node.package), ("48-71", None), "four packages share it");
    assert_eq!(machine.packages[0].cpus.to_string(), "1,5,9,13,17,21");
    // Counted by their first CPU: that of package 1 is CPU 0.
    assert_eq!(machine.l3_groups[0].cpus.to_string(), "0,4,8,12,16,20");
    assert!(devices_of(&machine, DeviceKind::Gpu).is_empty(), "its graphics are not NVIDIA's");
    let nics: Vec<_> = devices_of(&machine, DeviceKind::Network)
        .iter()
        .map(|nic| (nic.address.clone(), nic.names.join(" "), nic.numa_node))
        .collect();
    let nic = |address: &str, name: &str, node| (address.to_owned(), name.to_owned(), Some(node));
    let wanted = [
        nic("0000:02:00.0", "eth0", 0),
        nic("0000:02:00.1", "eth1", 0),
        nic("0000:32:00.0", "eth2", 1),
        nic("0000:32:00.1", "eth3", 1),
        nic("0000:62:00.0", "eth4", 2),
        nic("0000:62:00.1", "eth5", 2),
        nic("0000:92:00.0", "eth6", 3),
        nic("0000:92:00.1", "eth7", 3),
    ];
    assert_eq!(nics, wanted);
    let storage = devices_of(&machine, DeviceKind::Storage);
    assert!(storage.iter().any(|disk| disk.names == ["sda"] && disk.numa_node == Some(0)));
}

#[test]
fn three_groups_of_eight() {
    let machine = synthetic("package:1 numa:1 l3:3 core:8 pu:1");
    let groups: Vec<_> = machine.l3_groups.iter().map(|group| group.cpus.to_string()).collect();
    assert_eq!(groups, ["0-7", "8-15", "16-23"]);
    assert_eq!((machine.cores.len(), machine.numa_nodes.len(), machine.devices.len()), (24, 1, 0));
    assert!(machine.notes.is_empty());
}

#[test]
fn two_sockets_of_four_sub_numa_clusters() {
    let machine = synthetic("package:2 l3:1 numa:4 core:4 pu:2");
    let nodes: Vec<_> = machine.numa_nodes.iter().map(|node| (node.cpus.to_string(), node.package)).collect();
    assert_eq!(nodes.len(), 8);
    assert_eq!((nodes[0].clone(), nodes[5].clone()), (("0-7".into(), Some(0)), ("40-47".into(), Some(1))));
    assert_eq!(machine.cores[0].to_string(), "0-1", "two threads");
    assert_eq!(machine.l3_groups.iter().map(|l3| l3.cpus.to_string()).collect::<Vec<_>>(), ["0-31", "32-63"]);
}

#[test]
fn memory_alone_has_no_cpus() {
    let machine = synthetic("package:2 [numa(memory=64GB)] [numa(memory=16GB)] l3:1 core:2 pu:1");
    let nodes = machine.numa_nodes.iter().map(|node| (node.index, node.cpus.to_string(), node.package));
    let node = |index, cpus: &str, package| (index, cpus.to_owned(), Some(package));
    let wanted = [node(0, "0-1", 0), node(1, "", 0), node(2, "2-3", 1), node(3, "", 1)];
    assert_eq!(nodes.collect::<Vec<_>>(), wanted);
}

#[test]
fn a_machine_without_caches_and_cores_says_so() {
    let machine = synthetic("numa:1 pu:4");
    assert_eq!((machine.l3_groups.len(), machine.cores.len()), (0, 4));
    assert_eq!(machine.notes, ["the machine reports no level 3 cache"]);
}

#[test]
fn what_is_no_machine_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("no.xml");
    let said = |origin| discover(&origin, false).unwrap_err();
    assert!(said(Origin::Xml(file.clone())).contains("no.xml"));
    fs::write(&file, "<topology version=\"2.0\"><object").unwrap();
    assert!(!said(Origin::Xml(file)).is_empty());
    assert!(said(Origin::Synthetic("one machine, please".into())).contains("does not understand"));
    assert!(said(Origin::Live(dir.path().to_owned())).contains("sys/devices/system/cpu"));
}

#[test]
fn a_file_that_hwloc_cannot_read_whole_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machine.xml");
    let said = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        discover(&Origin::Xml(file.clone()), false).unwrap_err()
    };
    let whole = fs::read_to_string(recording("nvidia-dgx2.xml")).unwrap();
    let third = whole.replace("<topology version=\"2.0\">", "<topology version=\"3.0\">");
    for (bytes, why) in [
        (&b""[..], "empty"),
        (b" \n", "empty"),
        (b"[package]", "not hwloc's XML"),
        (b"\x1f\x8b\x08", "not text"),
        (third.as_bytes(), "written by hwloc 3"),
        (&whole.as_bytes()[..whole.len() / 2], "cut off"),
        (&whole.as_bytes()[..whole.len() - 5], "cut off"),
    ] {
        let text = said(bytes);
        assert!(text.contains("machine.xml") && text.contains(why), "{why}: {text}");
    }
    let large = fs::File::create(&file).unwrap();
    large.set_len(17 << 20).unwrap();
    for (file, why) in
        [(&*file, "longer than 16777216 bytes"), (Path::new("/dev/zero"), "is a device, not a file")]
    {
        let text = discover(&Origin::Xml(file.to_owned()), false).unwrap_err();
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn infiniband_of_another_class_is_a_network_device() {
    let machine = recorded("memory-kinds.xml");
    let nics = devices_of(&machine, DeviceKind::Network);
    assert_eq!(nics.iter().map(|nic| nic.names.join(" ")).collect::<Vec<_>>(), ["mlx5_0"]);
    let sysfs = Sysfs::new();
    sysfs.pci("pci0000:00/0000:00:05.0", "0x0c0600", "0x15b3", &[("infiniband/mlx5_0/x", "")]);
    sysfs.pci("pci0000:00/0000:00:06.0", "0x0c0330", "0x8086", &[]);
    assert_eq!(sysfs.links().addresses(), ["0000:00:05.0"]);
}

#[test]
fn hwlocs_own_format_comes_back() {
    let origin = Origin::Synthetic("package:2 numa:1 l3:1 core:4 pu:1".into());
    assert_eq!(discover(&origin, false).unwrap().1, None, "only who asks for it gets it");
    let all = discover(&origin, true).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machine.xml");
    fs::write(&file, all.1.unwrap()).unwrap();
    assert_eq!(found(Origin::Xml(file)), all.0);
}

#[test]
fn this_machine_is_found() {
    let machine = found(Origin::Live("/".into()));
    assert!(!machine.cpus.is_empty() && !machine.numa_nodes.is_empty() && !machine.cores.is_empty());
    let links = links(Path::new("/"));
    let addresses: Vec<_> = machine.devices.iter().map(|device| device.address.clone()).collect();
    assert_eq!(links.addresses(), addresses, "both looks see the same devices");
}

/// A host's sysfs, made by hand: `devices/pciROOT/PORT/DEVICE`, as the kernel nests them.
struct Sysfs(tempfile::TempDir);

impl Sysfs {
    fn new() -> Sysfs {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sys/bus/pci/devices")).unwrap();
        Sysfs(dir)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// A PCI device (or port) at this place of the tree, with these files.
    fn pci(&self, place: &str, class: &str, vendor: &str, files: &[(&str, &str)]) {
        let folder = format!("sys/devices/{place}");
        self.file(&format!("{folder}/class"), class);
        self.file(&format!("{folder}/vendor"), vendor);
        for (name, text) in files {
            self.file(&format!("{folder}/{name}"), text);
        }
        let address = place.rsplit('/').next().unwrap();
        let link = self.0.path().join("sys/bus/pci/devices").join(address);
        symlink(Path::new("../../../devices").join(place), link).unwrap();
    }

    fn links(&self) -> Links {
        links(self.0.path())
    }
}

fn link_files<'a>(speed: &'a str, width: &'a str, now: &'a str, lanes: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("max_link_speed", speed),
        ("max_link_width", width),
        ("current_link_speed", now),
        ("current_link_width", lanes),
    ]
}

#[test]
fn links_and_ports_are_those_of_sysfs() {
    let sysfs = Sysfs::new();
    let port = link_files("16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16");
    sysfs.pci("pci0000:00/0000:00:01.0", "0x060400", "0x8086", &port);
    let gpu = link_files("32.0 GT/s PCIe", "16", "2.5 GT/s PCIe", "8");
    sysfs.pci("pci0000:00/0000:00:01.0/0000:06:00.0", "0x030200", "0x10de", &gpu);
    // At the root complex, with a link of unknown state.
    let none = link_files("Unknown", "255", "Unknown", "0");
    sysfs.pci("pci0000:00/0000:00:05.0", "0x030200", "0x10de", &none);
    sysfs.pci("pci0000:00/0000:00:06.0", "0x030000", "0x1234", &[]);
    sysfs.pci("pci0000:00/0000:00:07.0", "0x068000", "0x10de", &[]);
    let states = sysfs.links().0;
    let addresses: Vec<_> = states.iter().map(|state| state.address.as_str()).collect();
    assert_eq!(addresses, ["0000:00:05.0", "0000:00:07.0", "0000:06:00.0"]);
    let capability = |generation, lanes| LinkCapability { generation, lanes };
    assert_eq!((states[0].link, states[0].port), (None, None));
    assert_eq!(states[2].link, Some(Link { most: capability(5, 16), now: capability(1, 8) }));
    assert_eq!(states[2].port, Some(capability(4, 16)));
    assert_eq!(states[2].network, None);
}

fn network(interface: &str, rdma: &str, up: Option<bool>, bytes_per_second: Option<f64>) -> Option<Network> {
    Some(Network { interface: interface.into(), rdma: rdma.into(), up, bytes_per_second, was_up: false })
}

#[test]
fn networks_tell_whether_they_carry_traffic_and_how_fast() {
    let sysfs = Sysfs::new();
    let nic = |slot: u8, files: &[(&str, &str)]| {
        sysfs.pci(&format!("pci0000:00/0000:00:{slot:02x}.0"), "0x020000", "0x15b3", files);
    };
    nic(1, &[("infiniband/mlx5_0/x", ""), ("net/ib0/x", "")]);
    sysfs.file("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
    sysfs.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
    sysfs.file("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
    nic(2, &[("infiniband/mlx5_1/x", "")]);
    sysfs.file("sys/class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand");
    sysfs.file("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
    sysfs.file("sys/class/infiniband/mlx5_1/ports/1/rate", "10 Gb/sec (4X SDR)");
    // RoCE: the interface knows.
    nic(3, &[("infiniband/mlx5_2/x", ""), ("net/eth2/x", "")]);
    sysfs.file("sys/class/infiniband/mlx5_2/ports/1/link_layer", "Ethernet");
    sysfs.file("sys/class/infiniband/mlx5_2/ports/1/state", "4: ACTIVE");
    for (file, text) in [("operstate", "up"), ("carrier", "1"), ("speed", "100000")] {
        sysfs.file(&format!("sys/class/net/eth2/{file}"), text);
    }
    // Without a carrier, with the speed of nothing.
    nic(4, &[("net/eth3/x", "")]);
    for (file, text) in [("operstate", "down"), ("carrier", "0"), ("speed", "-1")] {
        sysfs.file(&format!("sys/class/net/eth3/{file}"), text);
    }
    // virtio has one folder more, and no speed.
    nic(5, &[("virtio1/net/ens5/x", "")]);
    for (file, text) in [("operstate", "up"), ("carrier", "1"), ("speed", "-1")] {
        sysfs.file(&format!("sys/class/net/ens5/{file}"), text);
    }
    // Given to a user-space driver: no name at all.
    nic(6, &[]);
    // A virtual function.
    nic(7, &[("physfn/x", ""), ("net/eth9/x", "")]);
    let networks: Vec<_> = sysfs.links().0.into_iter().map(|state| state.network).collect();
    let wanted = [
        network("ib0", "mlx5_0", Some(true), Some(50e9)),
        network("", "mlx5_1", Some(false), None),
        network("eth2", "mlx5_2", Some(true), Some(12.5e9)),
        network("eth3", "", Some(false), None),
        network("ens5", "", Some(true), None),
        network("", "", None, None),
    ];
    assert_eq!(networks, wanted);
}

#[test]
fn the_kernel_says_which_cpus_are_in_a_node() {
    let sysfs = Sysfs::new();
    sysfs.file("sys/devices/system/node/node0/cpulist", "");
    sysfs.file("sys/devices/system/node/node1/cpulist", "4-9");
    let mut machine = synthetic("package:3 numa:1 core:4 pu:1");
    super::sysfs::complete(&Host::new(sysfs.0.path()), &mut machine);
    let cpus: Vec<_> = machine.numa_nodes.iter().map(|node| node.cpus.to_string()).collect();
    assert_eq!(cpus, ["", "4-9", "8-11"], "what it does not tell stays as hwloc has it");
}

#[test]
fn a_guests_minus_one_is_no_node() {
    let sysfs = Sysfs::new();
    sysfs.pci("pci0000:00/0000:00:05.0", "0x030200", "0x10de", &[("numa_node", "-1")]);
    sysfs.pci("pci0000:00/0000:00:06.0", "0x030200", "0x10de", &[("numa_node", "1")]);
    sysfs.pci("pci0000:00/0000:00:07.0", "0x030200", "0x10de", &[("physfn/x", ""), ("numa_node", "1")]);
    let mut guest = synthetic("package:2 numa:1 l3:1 core:4 pu:1");
    let device = |address: &str| {
        // As hwloc hangs what it knows nothing of: on the machine.
        model::topology::fixtures::device(DeviceKind::Gpu, address, None, "0-7", &[])
    };
    guest.devices = vec![device("0000:00:05.0"), device("0000:00:06.0"), device("0000:00:07.0")];
    super::sysfs::complete(&Host::new(sysfs.0.path()), &mut guest);
    let near: Vec<_> = guest.devices.iter().map(|gpu| (gpu.numa_node, gpu.cpus.to_string())).collect();
    assert_eq!(near, [(None, "0-7".into()), (Some(1), "4-7".into())]);
    let notes = [
        "1 virtual functions of PCI devices are not shown",
        "the machine does not report the NUMA node of its GPUs",
    ];
    assert_eq!(guest.notes, notes);
}

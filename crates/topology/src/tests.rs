//! Real machines and made-up ones, as hwloc tells them: answers derived by hand from their descriptions, and what must
//! hold of every picture of them.

use std::path::Path;

use super::bind::{self, Binder};
use super::discover::{Origin, discover};
use super::map::{DriverGpu, DriverMigDevice, Map, MapGpu};
use super::{svg, text};
use model::topology::fixtures::device;
use model::topology::place::DevicePath as Nearness;
use model::topology::{DeviceKind, Link, LinkCapability, Network, Topology};

fn file(name: &str) -> Topology {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/topologies").join(name);
    discover(&Origin::Xml(path), false).unwrap().0
}

fn made_up(words: &str) -> Topology {
    discover(&Origin::Synthetic(words.into()), false).unwrap().0
}

/// For each GPU: bus, NUMA node, root port, lowest switch, share.
fn rows(map: &Map) -> Vec<String> {
    let of = |gpu: &MapGpu| {
        let place = &gpu.place;
        let or = |text: &Option<String>| text.clone().unwrap_or_default().replace("0000:", "");
        let node = place.numa_node.map_or_else(String::new, |node| node.to_string());
        let (root, switch) = (or(&place.root_port), or(&place.switch));
        format!("{} node{node} {root} {switch} {}", &place.address[5..7], gpu.share.cpus)
    };
    map.gpus.iter().map(of).collect()
}

fn shares(map: &Map) -> Vec<String> {
    map.share_holders().iter().map(|holder| holder.share().cpus.to_string()).collect()
}

/// Draws it in every way, and checks what must hold of each.
fn drawn(map: &Map) {
    for line in text::text(map, false, Some(100)).lines() {
        // A list of CPUs is never cut.
        assert!(line.chars().count() <= 100 || line.starts_with("  P"), "{line}");
    }
    let picture = svg::svg(map);
    let mut open = Vec::new();
    for tag in picture.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag that ends");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split_whitespace().next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let number = |name: &str| -> f64 {
        let rest = picture.split_once(&format!(" {name}=\"")).unwrap().1;
        rest.split_once('"').unwrap().0.parse().unwrap()
    };
    assert!(number("width") <= 1400.0 && number("height") <= 2200.0, "{:?}", picture.get(..200));
    // Every core is drawn, and each holder twice: on its card and in the legend.
    let marks = picture.matches("class=\"core\"").count();
    assert_eq!(marks, map.topology.cores.len() + 2 * map.share_holders().len());
}

#[test]
fn dgx_2() {
    let map = Map::new(file("nvidia-dgx2.xml"), &[]);
    assert_eq!(
        rows(&map),
        [
            "34 node0 2b:00.0 32:00.0 0",
            "36 node0 2b:00.0 32:00.0 0",
            "39 node0 2b:00.0 37:00.0 0",
            "3b node0 2b:00.0 37:00.0 0",
            "57 node0 4e:00.0 55:00.0 1",
            "59 node0 4e:00.0 55:00.0 1",
            "5c node0 4e:00.0 5a:00.0 1",
            "5e node0 4e:00.0 5a:00.0 1",
            "b7 node1 ae:00.0 b5:00.0 24",
            "b9 node1 ae:00.0 b5:00.0 24",
            "bc node1 ae:00.0 ba:00.0 24",
            "be node1 ae:00.0 ba:00.0 24",
            "e0 node1 d7:00.0 de:00.0 25",
            "e2 node1 d7:00.0 de:00.0 25",
            "e5 node1 d7:00.0 e3:00.0 25",
            "e7 node1 d7:00.0 e3:00.0 25",
        ]
    );
    assert!(map.gpus.iter().all(|gpu| gpu.share.shared), "two cores a socket may be used");
    assert!(map.gpus.iter().all(|gpu| gpu.place.nic.is_none()), "the file has none");
    drawn(&map);
}

#[test]
fn four_times_four_sockets() {
    let mut topology = file("4-socket-pci.xml");
    let map = Map::new(topology.clone(), &[]);
    assert_eq!((map.gpus.len(), map.left_over.len()), (0, 96));
    drawn(&map);
    // Two GPUs put near node 2: its cores are those of packages 8 to 11, whose CPUs take turns, 48 first.
    let near = topology.numa_nodes[2].cpus.to_string();
    for (address, bridges) in [("0000:65:00.0", &["0000:60:1c.0"]), ("0000:66:00.0", &["0000:60:1f.0"])] {
        topology.devices.push(device(DeviceKind::Gpu, address, Some(2), &near, bridges));
    }
    let map = Map::new(topology, &[]);
    assert_eq!(
        shares(&map),
        ["48-49,52-53,56-57,60-61,64-65,68-69".to_owned(), "50-51,54-55,58-59,62-63,66-67,70-71".to_owned()],
        "two packages each"
    );
    let nic = |at: usize| map.gpus[at].place.nic.clone().map(|near| (near.address, near.path));
    assert_eq!(nic(0), Some(("0000:62:00.0".into(), Nearness::RootPort)), "beside eth4, below its root port");
    assert_eq!(nic(1), Some(("0000:62:00.1".into(), Nearness::NumaNode)), "eth5, as eth4 has a GPU");
    assert_eq!(map.gpus[0].place.storage.clone().unwrap().address, "0000:64:00.0", "sdb of the node");
    assert!(bind::lines(&map, Binder::Slurm).contains("its cores: 48-59\n"), "Slurm counts by package");
    drawn(&map);
}

#[test]
fn memory_of_other_kinds_is_no_host_memory() {
    let map = Map::new(file("memory-kinds.xml"), &[]);
    let said = text::text(&map, false, None);
    let (title, _) = said.split_once('\n').unwrap();
    assert!(
        title.contains("4 CPUs, 128 GiB, 96 GiB GPU memory, 32 GiB HBM, 512 GiB NVM, 256 GiB CXL memory"),
        "{title}"
    );
    for line in [
        "NUMA node 2  32 GiB HBM, no CPUs",
        "NUMA node 3  512 GiB NVM, no CPUs",
        "NUMA node 4  256 GiB CXL memory, no CPUs",
        "NUMA node 5  96 GiB GPU memory of GPU at 0000:31:00.0, no CPUs",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(shares(&map), ["0-3"]);
    assert_eq!(map.gpus[0].share.memory_nodes.to_string(), "0-1");
    drawn(&map);
}

#[test]
fn a_gpu_of_a_package_with_two_nodes_is_drawn_inside_it() {
    let map = Map::new(file("memory-kinds.xml"), &[]);
    assert_eq!((map.gpus[0].place.numa_node, map.gpus[0].place.package), (None, Some(0)));
    let said = text::text(&map, false, Some(100));
    assert!(
        said.contains("\n   ├─ root port 0000:30:01.0") || said.contains("\n   └─ root port 0000:30:01.0"),
        "{said}"
    );
    assert!(!svg::svg(&map).contains("does not tell which NUMA node these are near"));
    drawn(&map);
}

#[test]
fn only_a_terminal_has_a_last_column() {
    let mut topology = file("memory-kinds.xml");
    let nic = topology.devices.iter_mut().find(|device| device.kind == DeviceKind::Network).unwrap();
    let name = "mlx5_".to_owned() + &"x".repeat(120);
    nic.names = vec![name.clone()];
    let map = Map::new(topology, &[]);
    assert_eq!(text::text(&map, false, Some(100)).matches(&name).count(), 0);
    let whole = text::text(&map, false, None);
    assert_eq!(whole.matches(&format!("{name} ")).count(), 2, "in the tree and in the table: {whole}");
    assert!(!whole.contains('…'), "{whole}");
}

fn slices(profiles: &[&str]) -> Vec<DriverMigDevice> {
    let slice = |(at, profile): (u32, &&str)| DriverMigDevice {
        uuid: format!("MIG-{at}"),
        profile: (*profile).into(),
        gpu_instance: at,
        compute_instance: 0,
    };
    (1..).zip(profiles).map(slice).collect()
}

fn known(index: u32, address: &str, profiles: &[&str]) -> DriverGpu {
    DriverGpu {
        index,
        uuid: format!("GPU-{index}"),
        model: "NVIDIA H200".into(),
        pci_address: address.into(),
        minor: Some(index),
        slices: slices(profiles),
    }
}

#[test]
fn a_guest_with_three_caches_and_three_slices() {
    let mut topology = made_up("package:1 numa:1 l3:3 core:8 pu:1");
    // A guest reports node -1: all CPUs are near.
    topology.devices = vec![device(DeviceKind::Gpu, "0000:06:00.0", None, "0-23", &[])];
    let map = Map::new(topology, &[known(0, "00000000:06:00.0", &["2g.35gb"; 3])]);
    assert_eq!(shares(&map), ["0-7", "8-15", "16-23"]);
    assert_eq!(map.gpus[0].place.l3, [0, 1, 2]);
    assert!(
        bind::lines(&map, Binder::Docker)
            .contains("\ndocker run --gpus '\"device=MIG-3\"' --cpuset-cpus=16-23 --cpuset-mems=0 IMAGE\n")
    );
    drawn(&map);
}

#[test]
fn a_guest_of_two_nodes_that_does_not_tell_them() {
    let mut topology = made_up("package:2 numa:1 l3:1 core:8 pu:2");
    topology.devices =
        (1..=8).map(|bus| device(DeviceKind::Gpu, &format!("0000:0{bus}:00.0"), None, "0-31", &[])).collect();
    let map = Map::new(topology, &[]);
    assert_eq!(shares(&map), ["0-3", "4-7", "8-11", "12-15", "16-19", "20-23", "24-27", "28-31"]);
    assert_eq!(map.gpus[7].share.memory_nodes.to_string(), "1", "that of its CPUs");
    assert!(map.left_over.is_empty());
    drawn(&map);
}

#[test]
fn two_sockets_in_four_clusters_each() {
    let mut topology = made_up("package:2 numa:4 l3:1 core:14 pu:2");
    for (at, node) in [0u32, 0, 2, 3, 4, 4, 6, 7].into_iter().enumerate() {
        let near = topology.numa_nodes[node as usize].cpus.to_string();
        let (root, up) = (format!("0000:{at}0:01.0"), format!("0000:{at}1:00.0"));
        let of = |kind, number| {
            let address = format!("0000:{at}{number}:00.0");
            device(kind, &address, Some(node), &near, &[root.as_str(), up.as_str(), "down"])
        };
        topology.devices.extend([of(DeviceKind::Gpu, 8), of(DeviceKind::Network, 9)]);
    }
    let map = Map::new(topology, &[]);
    assert_eq!(
        shares(&map),
        ["0-13", "14-27", "56-83", "84-111", "112-125", "126-139", "168-195", "196-223"],
        "28 CPUs a node, two threads a core, and half of it where two GPUs are near"
    );
    assert_eq!(map.left_over.to_string(), "28-55,140-167", "nodes 1 and 5");
    for (at, gpu) in map.gpus.iter().enumerate() {
        let near = gpu.place.nic.clone().unwrap();
        assert_eq!((near.address, near.path), (format!("0000:{at}9:00.0"), Nearness::Switch));
    }
    drawn(&map);
}

#[test]
fn a_board_of_eight_with_slices_and_a_narrow_link() {
    let mut topology = made_up("package:2 numa:1 l3:12 core:8 pu:2");
    let of = |generation, lanes| LinkCapability { generation, lanes };
    for at in 0..8u32 {
        let node = at / 4;
        let near = topology.numa_nodes[node as usize].cpus.to_string();
        let (root, up) = (format!("0000:{at}0:01.1"), format!("0000:{at}1:00.0"));
        let mut device = |kind, number, name: String, lanes| {
            let address = format!("0000:{at}{number}:00.0");
            let mut device = device(kind, &address, Some(node), &near, &[root.as_str(), up.as_str(), "down"]);
            device.names.push(name);
            device.link = Some(Link { most: of(5, 16), now: of(5, lanes) });
            topology.devices.push(device);
        };
        device(DeviceKind::Gpu, 5, String::new(), if at == 2 { 8 } else { 16 });
        device(DeviceKind::Network, 6, format!("mlx5_{at}"), 16);
        device(DeviceKind::Storage, 7, format!("nvme{at}n1"), 16);
    }
    topology.devices[1].network = Some(Network {
        interface: String::new(),
        rdma: "mlx5_0".into(),
        up: Some(false),
        bytes_per_second: Some(50e9),
        was_up: false,
    });
    let mig = ["3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb"];
    let known: Vec<DriverGpu> = (0..8)
        .map(|at| known(at, &format!("00000000:{at}5:00.0"), if at == 7 { &mig } else { &[] }))
        .collect();
    let map = Map::new(topology, &known);
    // Three caches of eight cores a GPU; of the last 24 cores 10.3, 6.9, 3.4 and 3.4.
    assert_eq!(
        shares(&map),
        [
            "0-47", "48-95", "96-143", "144-191", "192-239", "240-287", "288-335", "336-355", "356-369",
            "370-377", "378-383"
        ]
    );
    let said = text::text(&map, false, Some(100));
    assert!(said.contains("GPU 2 NVIDIA H200  0000:25:00.0  PCIe 5 x8 of x16  → CPUs 96-143\n"), "{said}");
    assert!(said.contains("mlx5_0  0000:06:00.0  PCIe 5 x16  down, 400 Gb/s\n"), "{said}");
    assert!(text::text(&map, true, Some(100)).contains("\u{1b}[33m"), "colours say it too");
    drawn(&map);
}

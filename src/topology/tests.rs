//! Real machines and made-up ones, as hwloc tells them: answers derived by hand from their descriptions.

use std::path::Path;

use super::discover::{Origin, discover};
use super::map::Map;
use super::model::Topology;
use super::place;
use super::{svg, text};

fn file(name: &str) -> Topology {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/topologies").join(name);
    discover(&Origin::Xml(path)).unwrap().topology
}

fn made_up(words: &str) -> Topology {
    discover(&Origin::Synthetic(words.into())).unwrap().topology
}

/// For each GPU: bus, NUMA node, root port, lowest switch, share.
fn told(map: &Map) -> Vec<String> {
    let of = |gpu: &super::map::Gpu| {
        let place = &gpu.place;
        let or = |text: &Option<String>| text.clone().unwrap_or_default().replace("0000:", "");
        format!(
            "{} node{} {} {} {}",
            &place.address[5..7],
            place.numa_node.map_or_else(String::new, |node| node.to_string()),
            or(&place.root_port),
            or(&place.switch),
            gpu.share.cpus
        )
    };
    map.gpus.iter().map(of).collect()
}

#[test]
fn dgx_2() {
    let map = Map::new(file("nvidia-dgx2.xml"), &[]);
    std::fs::write("/tmp/map-dgx2.svg", svg::svg(&map)).unwrap();
    println!("{}", text::text(&map, false));
    assert_eq!(
        told(&map),
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
}

#[test]
fn four_sockets() {
    let topology = file("4-socket-pci.xml");
    let map = Map::new(topology, &[]);
    std::fs::write("/tmp/map-4s.svg", svg::svg(&map)).unwrap();
    println!("{}", text::text(&map, false));
    assert!(map.gpus.is_empty());
    assert_eq!(map.left_over.len(), 96);
}

#[test]
fn a_guest_with_three_caches() {
    let mut topology = made_up("package:1 numa:1 l3:3 core:8 pu:1");
    let mut gpu = super::specimen::device(super::model::DeviceKind::Gpu, "0000:06:00.0", None, "", &[]);
    gpu.cpus = topology.cpus.clone();
    topology.devices = vec![gpu];
    let slice = |n: u32| super::map::KnownSlice {
        uuid: format!("MIG-{n}"),
        profile: "2g.35gb".into(),
        gpu_instance: n,
        compute_instance: 0,
    };
    let known = super::map::Known {
        index: 0,
        uuid: "GPU-0".into(),
        model: "NVIDIA H200".into(),
        pci_address: "00000000:06:00.0".into(),
        minor: Some(0),
        slices: vec![slice(1), slice(2), slice(3)],
    };
    let map = Map::new(topology, &[known]);
    std::fs::write("/tmp/map-mig.svg", svg::svg(&map)).unwrap();
    println!("{}", text::text(&map, false));
    let shares: Vec<String> = map.takers().iter().map(|taker| taker.share().cpus.to_string()).collect();
    assert_eq!(shares, ["0-7", "8-15", "16-23"]);
    assert_eq!(place::gpus(&map.topology)[0].l3, [0, 1, 2]);
}

#[test]
fn two_sockets_in_four_clusters_each() {
    let mut topology = made_up("package:2 numa:4 l3:1 core:14 pu:2");
    for (at, node) in [0u32, 0, 2, 3, 4, 4, 6, 7].into_iter().enumerate() {
        let near = topology.numa_nodes[node as usize].cpus.to_string();
        let rp = format!("0000:{at}0:01.0");
        let up = format!("0000:{at}1:00.0");
        let bridges = [rp.as_str(), up.as_str(), "down"];
        topology.devices.push(super::specimen::device(
            super::model::DeviceKind::Gpu,
            &format!("0000:{at}8:00.0"),
            Some(node),
            &near,
            &bridges,
        ));
        let mut nic = super::specimen::device(
            super::model::DeviceKind::Network,
            &format!("0000:{at}9:00.0"),
            Some(node),
            &near,
            &bridges,
        );
        nic.names = vec![format!("mlx5_{at}"), format!("ib{at}")];
        nic.network = Some(super::model::Network {
            interface: format!("ib{at}"),
            rdma: format!("mlx5_{at}"),
            up: Some(at != 3),
            bytes_per_second: Some(50e9),
        });
        topology.devices.push(nic);
    }
    let of = |generation, lanes| super::model::LinkCapability { generation, lanes };
    for (at, device) in topology.devices.iter_mut().enumerate() {
        let now = if at == 4 { of(5, 8) } else { of(5, 16) };
        device.link = Some(super::model::Link { most: of(5, 16), now });
    }
    topology.machine = "Example SNC-4".into();
    let map = Map::new(topology, &[]);
    std::fs::write("/tmp/map-snc.svg", svg::svg(&map)).unwrap();
    println!("{}", text::text(&map, false));
    let shares: Vec<String> = map.gpus.iter().map(|gpu| gpu.share.cpus.to_string()).collect();
    assert_eq!(shares[..3], ["0-13", "14-27", "56-83"]);
    assert!(map.gpus.iter().enumerate().all(|(at, gpu)| {
        gpu.place.nic.as_ref().is_some_and(|near| {
            near.address == format!("0000:{at}9:00.0") && near.path == place::Path::Switch
        })
    }));
}

#[test]
fn a_board_of_eight() {
    use super::model::{DeviceKind::*, Link, LinkCapability, Network};
    use super::specimen::device;
    let mut topology = made_up("package:2 numa:1 l3:12 core:8 pu:2");
    topology.machine = "Example HGX H200".into();
    for package in &mut topology.packages {
        package.model = "AMD EPYC 9654 96-Core Processor".into();
    }
    let of = |generation, lanes| LinkCapability { generation, lanes };
    let mut known = Vec::new();
    for at in 0..8u32 {
        let node = at / 4;
        let near = topology.numa_nodes[node as usize].cpus.to_string();
        let (rp, up) = (format!("0000:{at}0:01.1"), format!("0000:{at}1:00.0"));
        let bridges = [rp.as_str(), up.as_str(), "down"];
        let mut gpu = device(Gpu, &format!("0000:{at}5:00.0"), Some(node), &near, &bridges);
        let now = if at == 2 { of(5, 8) } else { of(5, 16) };
        gpu.link = Some(Link { most: of(5, 16), now });
        gpu.port = Some(of(5, 16));
        let mut nic = device(
            super::model::DeviceKind::Network,
            &format!("0000:{at}6:00.0"),
            Some(node),
            &near,
            &bridges,
        );
        nic.names = vec![format!("mlx5_{at}"), format!("ibp{at}s0")];
        nic.link = Some(Link { most: of(5, 16), now: of(5, 16) });
        nic.network = Some(Network {
            interface: format!("ibp{at}s0"),
            rdma: format!("mlx5_{at}"),
            up: Some(at != 5),
            bytes_per_second: Some(50e9),
        });
        let mut disk = device(Storage, &format!("0000:{at}7:00.0"), Some(node), &near, &bridges);
        disk.names = vec![format!("nvme{at}n1")];
        disk.link = Some(Link { most: of(4, 4), now: of(4, 4) });
        topology.devices.extend([gpu, nic, disk]);
        let slice = |n: u32, profile: &str| super::map::KnownSlice {
            uuid: format!("MIG-{n}"),
            profile: profile.into(),
            gpu_instance: n,
            compute_instance: 0,
        };
        known.push(super::map::Known {
            index: at,
            uuid: format!("GPU-{at}"),
            model: "NVIDIA H200".into(),
            pci_address: format!("00000000:{at}5:00.0"),
            minor: Some(at),
            slices: if at == 7 {
                vec![slice(1, "3g.71gb"), slice(2, "2g.35gb"), slice(3, "1g.18gb"), slice(4, "1g.18gb")]
            } else {
                vec![]
            },
        });
    }
    let map = Map::new(topology, &known);
    std::fs::write("/tmp/map-hgx.svg", svg::svg(&map)).unwrap();
    println!("{}", text::text(&map, false));
    for binder in [super::bind::Binder::Docker, super::bind::Binder::Slurm, super::bind::Binder::Kubernetes] {
        println!("{}", super::bind::lines(&map, binder));
    }
}

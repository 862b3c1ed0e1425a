//! Machines for tests, made by hand.

use crate::cpus::CpuSet;
use crate::topology::{Device, DeviceKind, L3Group, NumaNode, Package, Topology};

/// A set from its text.
pub fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// A machine with one thread a core: NUMA nodes (each in a package of its own), each with its L3 groups.
pub fn machine(nodes: &[(&str, &[&str])]) -> Topology {
    threaded(nodes, &|cpu| vec![cpu])
}

/// Likewise; `core` has the CPUs of the core of this one.
pub fn threaded(nodes: &[(&str, &[&str])], core: &dyn Fn(u32) -> Vec<u32>) -> Topology {
    let mut topology = Topology { machine: "Test Machine".into(), ..Topology::default() };
    for (at, (node, groups)) in nodes.iter().enumerate() {
        let index = u32::try_from(at).unwrap();
        let of_node = cpus(node);
        topology.cpus = topology.cpus.or(&of_node);
        topology.packages.push(Package { index, cpus: of_node.clone(), model: "Test CPU".into() });
        for group in *groups {
            let index = u32::try_from(topology.l3_groups.len()).unwrap();
            topology.l3_groups.push(L3Group { index, cpus: cpus(group), size_bytes: 32 << 20 });
        }
        for cpu in of_node.iter() {
            let threads: CpuSet = core(cpu).into_iter().collect();
            if !topology.cores.contains(&threads) {
                topology.cores.push(threads);
            }
        }
        topology.numa_nodes.push(NumaNode {
            index,
            cpus: of_node,
            memory_bytes: 64 << 30,
            package: Some(index),
            ..NumaNode::default()
        });
    }
    topology
}

/// A device.
pub fn device(kind: DeviceKind, address: &str, node: Option<u32>, near: &str, bridges: &[&str]) -> Device {
    Device {
        kind,
        address: address.into(),
        id: "10de:2335".into(),
        names: Vec::new(),
        numa_node: node,
        cpus: cpus(near),
        bridges: bridges.iter().map(|bridge| (*bridge).to_owned()).collect(),
        link: None,
        port: None,
        network: None,
    }
}

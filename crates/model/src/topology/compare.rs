//! Differences between two discoveries of a machine.

use std::collections::BTreeMap;

use crate::topology::{Device, DeviceKind, Link, LinkCapability, MemoryKind, NumaNode, Topology};

/// Fraction of a NUMA node's memory that may change without being reported, because the firmware and the kernel
/// reserve different amounts at every boot.
const MEMORY: f64 = 0.02;
/// Maximum number of differences in a list.
const MOST: usize = 100;

/// Returns the differences, most important first; empty if the machine is unchanged. The comparison covers processors,
/// memory, and the positions and links of GPUs and network devices, but not the state of networks.
pub fn differences(was: &Topology, is: &Topology) -> Vec<String> {
    let mut found = Vec::new();
    if was.packages.len() != is.packages.len() {
        found.push(format!("{} packages, were {}", is.packages.len(), was.packages.len()));
    }
    nodes(&was.numa_nodes, &is.numa_nodes, &mut found);
    devices(was, is, &mut found);
    let more = found.len().saturating_sub(MOST);
    if more > 0 {
        found.truncate(MOST);
        found.push(format!("and {more} more"));
    }
    found
}

fn nodes(was: &[NumaNode], is: &[NumaNode], found: &mut Vec<String>) {
    // The memory of a GPU appears, disappears and changes with the driver and its modes. Memory of unknown kind
    // without CPUs may be GPU memory.
    let lasts = |node: &NumaNode| {
        !node.cpus.is_empty() || !matches!(node.memory_kind, MemoryKind::Gpu | MemoryKind::Unknown)
    };
    let by_index = |nodes: &[NumaNode], others: &[NumaNode]| -> BTreeMap<u32, NumaNode> {
        let counts = |node: &&NumaNode| {
            lasts(node) || others.iter().any(|other| other.index == node.index && lasts(other))
        };
        nodes.iter().filter(counts).map(|node| (node.index, node.clone())).collect()
    };
    let (was, is) = (by_index(was, is), by_index(is, was));
    for index in was.keys().filter(|index| !is.contains_key(index)) {
        found.push(format!("NUMA node {index} is gone"));
    }
    for (index, node) in &is {
        let Some(before) = was.get(index) else {
            found.push(format!("NUMA node {index} is new"));
            continue;
        };
        if node.cpus != before.cpus {
            found.push(format!(
                "NUMA node {index} has CPUs {}, had {}",
                or_none(&node.cpus),
                or_none(&before.cpus)
            ));
        }
        let (now, then) = (node.memory_bytes as f64, before.memory_bytes as f64);
        if (now - then).abs() > then * MEMORY {
            let gib = |bytes: f64| bytes / f64::from(1 << 30);
            found.push(format!("NUMA node {index} has {:.1} GiB of memory, had {:.1}", gib(now), gib(then)));
        }
    }
}

fn or_none(cpus: &crate::cpus::CpuSet) -> String {
    if cpus.is_empty() { "none".into() } else { cpus.to_string() }
}

fn devices(was: &Topology, is: &Topology, found: &mut Vec<String>) {
    let by_address = |topology: &Topology| -> BTreeMap<String, Device> {
        let counts = |device: &&Device| matches!(device.kind, DeviceKind::Gpu | DeviceKind::Network);
        topology.devices.iter().filter(counts).map(|d| (d.address.clone(), d.clone())).collect()
    };
    let (was, is) = (by_address(was), by_address(is));
    for (address, device) in was.iter().filter(|(address, _)| !is.contains_key(*address)) {
        found.push(format!("{} {address} is gone", name(device)));
    }
    for (address, device) in &is {
        match was.get(address) {
            None => found.push(format!("{} {address} is new", name(device))),
            Some(before) => {
                let who = format!("{} {address}", name(device));
                found.extend(one(before, device).into_iter().map(|what| format!("{who} {what}")));
            }
        }
    }
}

fn name(device: &Device) -> &'static str {
    match device.kind {
        DeviceKind::Gpu => "GPU",
        DeviceKind::Nvswitch => "NVSwitch",
        DeviceKind::Network => "network device",
        DeviceKind::Storage => "storage device",
    }
}

/// Returns the differences of one device. A value that is missing on one side is not compared.
fn one(was: &Device, is: &Device) -> Vec<String> {
    let mut found = Vec::new();
    if (was.kind, &was.id) != (is.kind, &is.id) {
        found.push(format!("is another device: {}, was {}", is.id, was.id));
    }
    if was.numa_node != is.numa_node {
        let node = |node: Option<u32>| {
            node.map_or_else(|| "no known NUMA node".into(), |n| format!("NUMA node {n}"))
        };
        found.push(format!("is near {}, was near {}", node(is.numa_node), node(was.numa_node)));
    }
    if was.bridges != is.bridges {
        let way = |device: &Device| {
            if device.bridges.is_empty() { "nothing".into() } else { device.bridges.join(" ") }
        };
        found.push(format!("is below {}, was below {}", way(is), way(was)));
    }
    let mut compare = |what: &str, was: Option<LinkCapability>, is: Option<LinkCapability>| {
        if let (Some(was), Some(is)) = (was, is)
            && was != is
        {
            let text = |c: LinkCapability| format!("generation {} x{}", c.generation, c.lanes);
            found.push(format!("{what} {}, was {}", text(is), text(was)));
        }
    };
    let most = |link: Option<Link>| link.map(|link| link.most);
    compare("supports a link of", most(was.link), most(is.link));
    compare("is in a port of", was.port, is.port);
    if let (Some(was), Some(is)) = (was.link, is.link)
        && was.now.lanes != is.now.lanes
    {
        found.push(format!("runs on {} lanes, ran on {}", is.now.lanes, was.now.lanes));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fixtures::{cpus, device, machine};

    fn node() -> Topology {
        let mut topology = machine(&[("0-7", &["0-7"]), ("8-15", &["8-15"])]);
        let both = LinkCapability { generation: 5, lanes: 16 };
        let mut gpu = device(DeviceKind::Gpu, "0000:06:00.0", Some(0), "0-7", &["0000:00:01.0"]);
        gpu.link = Some(Link { most: both, now: both });
        gpu.port = Some(both);
        topology.devices.push(gpu);
        topology.devices.push(device(DeviceKind::Network, "0000:86:00.0", Some(1), "8-15", &[]));
        topology.devices.push(device(DeviceKind::Storage, "0000:87:00.0", Some(1), "8-15", &[]));
        topology
    }

    fn changed(change: impl FnOnce(&mut Topology)) -> Vec<String> {
        let mut now = node();
        change(&mut now);
        differences(&node(), &now)
    }

    #[test]
    fn allowed_changes_are_not_listed() {
        assert!(differences(&node(), &node()).is_empty());
        assert!(changed(|t| t.numa_nodes[0].memory_bytes -= t.numa_nodes[0].memory_bytes / 60).is_empty());
        let resting = LinkCapability { generation: 1, lanes: 16 };
        assert!(changed(|t| t.devices[0].link.as_mut().unwrap().now = resting).is_empty(), "a link at rest");
        assert!(changed(|t| t.devices[0].link = None).is_empty(), "unknown this time");
        assert!(changed(|t| drop(t.devices.remove(2))).is_empty(), "storage");
        let of_kind =
            |memory_kind| NumaNode { index: 8, memory_bytes: 96 << 30, memory_kind, ..NumaNode::default() };
        for kind in [MemoryKind::Gpu, MemoryKind::Unknown] {
            let found = changed(|t| t.numa_nodes.push(of_kind(kind)));
            assert!(found.is_empty(), "a GPU's memory, since its driver is there");
        }
        assert_eq!(changed(|t| t.numa_nodes.push(of_kind(MemoryKind::Cxl))), ["NUMA node 8 is new"]);
    }

    #[test]
    fn each_change_is_listed() {
        let gib = 1u64 << 30;
        assert_eq!(changed(|t| drop(t.packages.pop())), ["1 packages, were 2"]);
        assert_eq!(changed(|t| drop(t.numa_nodes.pop())), ["NUMA node 1 is gone"]);
        assert_eq!(changed(|t| t.numa_nodes[1].cpus = cpus("8-14")), ["NUMA node 1 has CPUs 8-14, had 8-15"]);
        assert_eq!(changed(|t| t.numa_nodes[1].cpus = cpus("")), ["NUMA node 1 has CPUs none, had 8-15"]);
        assert_eq!(
            changed(|t| t.numa_nodes[0].memory_bytes = 62 * gib),
            ["NUMA node 0 has 62.0 GiB of memory, had 64.0"]
        );
        assert_eq!(changed(|t| drop(t.devices.remove(0))), ["GPU 0000:06:00.0 is gone"]);
        assert_eq!(
            changed(|t| t.devices[0].numa_node = None),
            ["GPU 0000:06:00.0 is near no known NUMA node, was near NUMA node 0"]
        );
        assert_eq!(
            changed(|t| t.devices[1].bridges = vec!["0000:80:01.0".into()]),
            ["network device 0000:86:00.0 is below 0000:80:01.0, was below nothing"]
        );
        assert_eq!(
            changed(|t| t.devices[0].port = Some(LinkCapability { generation: 4, lanes: 16 })),
            ["GPU 0000:06:00.0 is in a port of generation 4 x16, was generation 5 x16"]
        );
        assert_eq!(
            changed(|t| t.devices[0].link.as_mut().unwrap().now.lanes = 8),
            ["GPU 0000:06:00.0 runs on 8 lanes, ran on 16"]
        );
        assert_eq!(
            changed(|t| t.devices[0].id = "10de:2330".into()),
            ["GPU 0000:06:00.0 is another device: 10de:2330, was 10de:2335"]
        );
    }

    #[test]
    fn another_machine_has_a_bounded_list() {
        let other = |bus: u8| device(DeviceKind::Gpu, &format!("0001:{bus:02x}:00.0"), None, "0-7", &[]);
        let found = changed(|t| t.devices.extend((0x10..0xf0).map(other)));
        assert_eq!((found.len(), found.last().map(String::as_str)), (MOST + 1, Some("and 124 more")));
    }
}

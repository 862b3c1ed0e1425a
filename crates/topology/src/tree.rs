//! The machine as a tree for the text and SVG drawings: packages, NUMA nodes and caches by their CPUs, and PCI devices
//! by their bridges.

use super::format::is_narrow;
use model::cpus::CpuSet;
use model::topology::{Device, DeviceKind, L3Group, NumaNode, Package, Topology, place};

/// Level of a branch in the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BranchKind<'a> {
    Machine,
    Package(&'a Package),
    Node(&'a NumaNode),
    L3(&'a L3Group),
}

/// A part of the machine with CPUs, its inner parts and the devices near it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Branch<'a> {
    pub kind: BranchKind<'a>,
    pub cpus: CpuSet,
    /// Inner parts, ordered by their first CPU. Parts without CPUs are last.
    pub branches: Vec<Branch<'a>>,
    /// Cores that are in none of the branches.
    pub cores: Vec<&'a CpuSet>,
    /// Devices near this part. A package has the devices near all of its nodes, and the machine has the devices of
    /// unknown locality.
    pub pci: Vec<Pci<'a>>,
}

/// A part of the PCI tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pci<'a> {
    /// A bridge with several devices or bridges below it.
    Bridge {
        /// True if the first address is that of a root port.
        root: bool,
        /// PCI addresses, ordered from the root down; for a switch, the address of its upstream port. A chain of
        /// bridges without other devices in between is one entry with several addresses.
        addresses: Vec<&'a str>,
        below: Vec<Pci<'a>>,
    },
    /// A device, or several devices that differ only in their addresses, such as the NVSwitches of a baseboard.
    Devices(Vec<&'a Device>),
}

/// Part of the machine that a device is drawn in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Machine,
    Package(u32),
    Node(u32),
}

pub fn build(topology: &Topology) -> Branch<'_> {
    let mut root = branch(BranchKind::Machine, topology.cpus.clone());
    let packages = topology.packages.iter().map(|package| (BranchKind::Package(package), &package.cpus));
    let nodes = topology.numa_nodes.iter().map(|node| (BranchKind::Node(node), &node.cpus));
    let groups = topology.l3_groups.iter().map(|group| (BranchKind::L3(group), &group.cpus));
    let mut parts: Vec<(BranchKind<'_>, &CpuSet)> = packages.chain(nodes).chain(groups).collect();
    // The widest part is inserted first. The sort is stable, so with equal CPUs a package contains a node and a node
    // contains a cache. Nodes without CPUs are last.
    parts.sort_by_key(|(_, cpus)| (cpus.is_empty(), std::cmp::Reverse(cpus.len()), cpus.iter().next()));
    for (part, cpus) in parts {
        root.insert(part, cpus);
    }
    for core in &topology.cores {
        root.insert_core(core);
    }
    for device in &topology.devices {
        let node = topology.numa_nodes.iter().find(|node| Some(node.index) == device.numa_node);
        let place = match (node, place::package_of(topology, &device.cpus)) {
            (Some(node), _) => Place::Node(node.index),
            (None, Some(package)) => Place::Package(package),
            (None, None) => Place::Machine,
        };
        root.insert_device(device, place);
    }
    root.arrange();
    root
}

fn branch(part: BranchKind<'_>, cpus: CpuSet) -> Branch<'_> {
    Branch { kind: part, cpus, branches: Vec::new(), cores: Vec::new(), pci: Vec::new() }
}

impl<'a> Branch<'a> {
    fn insert(&mut self, part: BranchKind<'a>, cpus: &CpuSet) {
        let holds = |branch: &Branch<'_>| match part {
            // A node without CPUs belongs to its package, if the package is known.
            BranchKind::Node(node) if cpus.is_empty() => branch.has_package(node.package),
            _ => !cpus.is_empty() && cpus.is_within(&branch.cpus),
        };
        match self.branches.iter_mut().find(|branch| holds(branch)) {
            Some(branch) => branch.insert(part, cpus),
            None => self.branches.push(branch(part, cpus.clone())),
        }
    }

    fn has_package(&self, wanted: Option<u32>) -> bool {
        matches!(self.kind, BranchKind::Package(package) if Some(package.index) == wanted)
            || self.branches.iter().any(|branch| branch.has_package(wanted))
    }

    fn insert_core(&mut self, core: &'a CpuSet) {
        match self.branches.iter_mut().find(|branch| core.is_within(&branch.cpus)) {
            Some(branch) => branch.insert_core(core),
            None => self.cores.push(core),
        }
    }

    /// Inserts a device at its place. Returns false if the place is not in this branch.
    fn insert_device(&mut self, device: &'a Device, place: Place) -> bool {
        let here = match self.kind {
            BranchKind::Machine => place == Place::Machine,
            BranchKind::Package(package) => place == Place::Package(package.index),
            BranchKind::Node(node) => place == Place::Node(node.index),
            BranchKind::L3(_) => false,
        };
        if here {
            insert_pci(&mut self.pci, &upstream(device), device, true);
        }
        here || self.branches.iter_mut().any(|branch| branch.insert_device(device, place))
    }

    fn arrange(&mut self) {
        self.branches.sort_by_key(|branch| (branch.cpus.is_empty(), branch.cpus.iter().next()));
        self.cores.sort_by_key(|core| core.iter().next());
        for pci in &mut self.pci {
            merge(pci);
        }
        for branch in &mut self.branches {
            branch.arrange();
        }
    }

    /// Returns all cores in hwloc's logical order, which is the order of the leaves of the tree.
    pub fn logical_cores(&self) -> Vec<&'a CpuSet> {
        let mut cores: Vec<&CpuSet> = self.branches.iter().flat_map(Branch::logical_cores).collect();
        cores.extend(&self.cores);
        cores
    }
}

/// Returns the root port and the upstream ports of the switches above a device. A downstream port is omitted because it
/// leads to a single device.
fn upstream(device: &Device) -> Vec<&str> {
    let all = device.bridges.iter().map(String::as_str).enumerate();
    all.filter(|(at, _)| *at == 0 || at % 2 == 1).map(|(_, address)| address).collect()
}

fn insert_pci<'a>(among: &mut Vec<Pci<'a>>, above: &[&'a str], device: &'a Device, root: bool) {
    let Some((first, rest)) = above.split_first() else {
        let plain = |device: &Device| device.kind == DeviceKind::Nvswitch && !is_narrow(device);
        match among.last_mut() {
            Some(Pci::Devices(same)) if plain(device) && plain(same[0]) && same[0].link == device.link => {
                same.push(device);
            }
            _ => among.push(Pci::Devices(vec![device])),
        }
        return;
    };
    for pci in among.iter_mut() {
        if let Pci::Bridge { addresses, below, .. } = pci
            && addresses.first() == Some(first)
        {
            insert_pci(below, rest, device, false);
            return;
        }
    }
    let mut below = Vec::new();
    insert_pci(&mut below, rest, device, false);
    among.push(Pci::Bridge { root, addresses: vec![first], below });
}

/// Merges a bridge with the bridge below it if nothing else is below it.
fn merge(pci: &mut Pci<'_>) {
    let Pci::Bridge { addresses, below, .. } = pci else { return };
    for pci in below.iter_mut() {
        merge(pci);
    }
    if let [Pci::Bridge { addresses: lower, below: rest, .. }] = below.as_mut_slice() {
        addresses.append(lower);
        *below = std::mem::take(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::DeviceKind::*;
    use model::topology::fixtures::{cpus, device, machine};

    fn names(branch: &Branch<'_>) -> String {
        let own = match branch.kind {
            BranchKind::Machine => "machine".to_owned(),
            BranchKind::Package(package) => format!("package{}", package.index),
            BranchKind::Node(node) => format!("node{}", node.index),
            BranchKind::L3(group) => format!("l3#{}", group.index),
        };
        let mut inner: Vec<String> = branch.branches.iter().map(names).collect();
        inner.extend(branch.cores.iter().map(|core| core.to_string()));
        if inner.is_empty() { own } else { format!("{own}({})", inner.join(" ")) }
    }

    #[test]
    fn what_holds_more_cpus_is_outside() {
        let mut topology = machine(&[("0-1", &["0", "1"]), ("2-3", &["2-3"])]);
        assert_eq!(
            names(&build(&topology)),
            "machine(package0(node0(l3#0(0) l3#1(1))) package1(node1(l3#2(2 3))))"
        );
        // One node of two packages that take turns in numbering, and memory alone.
        topology = machine(&[("0,2", &["0,2"]), ("1,3", &["1,3"])]);
        topology.numa_nodes.truncate(1);
        topology.numa_nodes[0].cpus = cpus("0-3");
        topology.numa_nodes.push(NumaNode {
            index: 8,
            memory_bytes: 1,
            package: Some(1),
            ..NumaNode::default()
        });
        let tree = build(&topology);
        assert_eq!(names(&tree), "machine(node0(package0(l3#0(0 2)) package1(l3#1(1 3) node8)))");
        let logical: Vec<String> = tree.logical_cores().iter().map(|core| core.to_string()).collect();
        assert_eq!(logical, ["0", "2", "1", "3"], "by package, as hwloc and Slurm count them");
    }

    #[test]
    fn bridges_are_shown_where_the_tree_forks() {
        let mut topology = machine(&[("0-3", &["0-3"])]);
        topology.devices = vec![
            device(Gpu, "a", Some(0), "0-3", &["rp", "up", "down0", "up1", "down1"]),
            device(Gpu, "b", Some(0), "0-3", &["rp", "up", "down0", "up1", "down2"]),
            device(Network, "c", Some(0), "0-3", &["rp", "up", "down3"]),
            device(Storage, "d", Some(7), "", &[]),
        ];
        let tree = build(&topology);
        assert_eq!(tree.pci, [Pci::Devices(vec![&topology.devices[3]])], "a node that is not there is none");
        let node = &tree.branches[0].branches[0];
        let lower = Pci::Bridge {
            root: false,
            addresses: vec!["up1"],
            below: vec![Pci::Devices(vec![&topology.devices[0]]), Pci::Devices(vec![&topology.devices[1]])],
        };
        let upper = Pci::Bridge {
            root: true,
            addresses: vec!["rp", "up"],
            below: vec![lower, Pci::Devices(vec![&topology.devices[2]])],
        };
        assert_eq!(node.pci, [upper]);
    }
}

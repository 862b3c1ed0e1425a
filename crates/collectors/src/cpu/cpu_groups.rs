//! Online CPUs and their groups. The CPUs of a group share a NUMA node and a last-level cache.

use std::collections::BTreeMap;
use std::path::Path;

use host::Host;
use model::catalog::CpuGroup;
use model::cpus::CpuSet;
use model::topology::Topology;

/// Group of every CPU. A CPU that is missing here belongs to the group without names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuGroups(BTreeMap<u32, CpuGroup>);

impl CpuGroups {
    /// Reads the groups from the topology.
    pub(crate) fn of_topology(topology: &Topology) -> CpuGroups {
        let nodes = topology.numa_nodes.iter().map(|node| (node.index, &node.cpus));
        let caches = topology.l3_groups.iter().map(|group| (group.index, &group.cpus));
        CpuGroups::joined(nodes, caches)
    }

    /// Reads the groups from the kernel, numbered as the topology numbers them.
    pub fn of_host(host: &Host, cpus: &CpuSet) -> CpuGroups {
        let nodes = numa_nodes(host);
        let mut caches: Vec<CpuSet> = cpus.iter().filter_map(|cpu| last_level(host, cpu)).collect();
        caches.sort_by_key(|shared| shared.iter().next());
        caches.dedup();
        CpuGroups::joined(nodes.iter().map(|(node, cpus)| (*node, cpus)), (0..).zip(&caches))
    }

    fn joined<'a>(
        nodes: impl Iterator<Item = (u32, &'a CpuSet)>,
        caches: impl Iterator<Item = (u32, &'a CpuSet)>,
    ) -> CpuGroups {
        let mut groups: BTreeMap<u32, CpuGroup> = BTreeMap::new();
        let unnamed = || CpuGroup { numa_node: "".into(), l3: "".into() };
        for (node, cpus) in nodes {
            for cpu in cpus.iter() {
                groups.entry(cpu).or_insert_with(unnamed).numa_node = node.to_string().into();
            }
        }
        for (cache, cpus) in caches {
            for cpu in cpus.iter() {
                groups.entry(cpu).or_insert_with(unnamed).l3 = cache.to_string().into();
            }
        }
        CpuGroups(groups)
    }

    pub(crate) fn group_of(&self, cpu: u32) -> CpuGroup {
        let unnamed = || CpuGroup { numa_node: "".into(), l3: "".into() };
        self.0.get(&cpu).cloned().unwrap_or_else(unnamed)
    }
}

/// Returns the online CPUs. If the files of the host are not visible, the files of this process are used, because the
/// kernel is the same.
pub fn online(host: &Host) -> Option<CpuSet> {
    let list = "/sys/devices/system/cpu/online";
    let own = Host::new("/");
    let cpus = read(&host.path(list)).or_else(|| read(&own.path(list)))?;
    (!cpus.is_empty()).then_some(cpus)
}

fn numa_nodes(host: &Host) -> Vec<(u32, CpuSet)> {
    let folder = Path::new("/sys/devices/system/node");
    let numbers = read(&host.path(folder.join("online"))).unwrap_or_default();
    let cpus = |node: u32| Some((node, read(&host.path(folder.join(format!("node{node}/cpulist"))))?));
    numbers.iter().filter_map(cpus).collect()
}

/// Returns the CPUs that share the last-level cache of this CPU.
fn last_level(host: &Host, cpu: u32) -> Option<CpuSet> {
    let caches = host.path(format!("/sys/devices/system/cpu/cpu{cpu}/cache"));
    // Nearly all machines number the cache directories in this order; the file `level` confirms it.
    let at = [3, 2, 4].into_iter().map(|index| caches.join(format!("index{index}")));
    let mut third = at
        .filter(|cache| std::fs::read_to_string(cache.join("level")).is_ok_and(|level| level.trim() == "3"));
    read(&third.next()?.join("shared_cpu_list"))
}

fn read(list: &Path) -> Option<CpuSet> {
    std::fs::read_to_string(list).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::{L3Group, NumaNode};
    use std::fs;

    fn group(node: &str, l3: &str) -> CpuGroup {
        CpuGroup { numa_node: node.into(), l3: l3.into() }
    }

    #[test]
    fn the_files_of_the_kernel_give_the_same_groups_as_the_topology() {
        // Two NUMA nodes, four caches, numbered by the kernel in another order than by their CPUs; CPU 7 is off.
        let nodes = [(0, "0-1,4-5"), (1, "2-3,6")];
        let caches = ["0,4", "1,5", "2,6", "3"];
        let dir = tempfile::tempdir().unwrap();
        let put = |path: String, text: &str| {
            let path = dir.path().join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        put("cpu/online".into(), "0-6");
        put("node/online".into(), "0-1");
        for (node, cpus) in nodes {
            put(format!("node/node{node}/cpulist"), cpus);
        }
        for shared in caches {
            for cpu in shared.parse::<CpuSet>().unwrap().iter() {
                put(format!("cpu/cpu{cpu}/cache/index3/level"), "3");
                put(format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), shared);
            }
        }
        let host = Host::new(dir.path());
        let cpus = online(&host).unwrap();
        assert_eq!(cpus.to_string(), "0-6");
        let groups = CpuGroups::of_host(&host, &cpus);
        assert_eq!(groups.group_of(5), group("0", "1"));
        assert_eq!(groups.group_of(3), group("1", "3"));
        assert_eq!(groups.group_of(7), group("", ""), "a CPU that is off has no group");
        let topology = Topology {
            numa_nodes: nodes
                .iter()
                .map(|(index, cpus)| NumaNode {
                    index: *index,
                    cpus: cpus.parse().unwrap(),
                    memory_bytes: 1,
                    ..NumaNode::default()
                })
                .collect(),
            l3_groups: (0..)
                .zip(caches)
                .map(|(index, cpus)| L3Group { index, cpus: cpus.parse().unwrap(), size_bytes: 1 })
                .collect(),
            ..Topology::default()
        };
        assert_eq!(CpuGroups::of_topology(&topology), groups);
    }

    #[test]
    fn where_nothing_is_known_there_is_one_group() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        let groups = CpuGroups::of_host(&host, &"0-3".parse().unwrap());
        assert_eq!(groups, CpuGroups::default());
        assert_eq!(groups.group_of(2), group("", ""));
        assert!(online(&host).is_some(), "the running kernel is asked");
    }
}

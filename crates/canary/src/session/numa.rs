//! Memory near the GPU: the GPU's NUMA node, and a thread that runs on the node while it allocates memory.

use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use model::cpus;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub number: u32,
    cpus: cpus::CpuSet,
}

impl Node {
    /// Returns the node of the PCI function in this directory, such as `/sys/bus/pci/devices/0000:1b:00.0`. Returns
    /// `None` if the host does not report the node, as in virtual machines.
    pub fn from_sysfs(folder: &Path) -> Option<Node> {
        let read = |name| std::fs::read_to_string(folder.join(name)).ok();
        let number: i32 = read("numa_node")?.trim().parse().ok()?;
        // The host reports -1 if the node is unknown.
        let number = u32::try_from(number).ok()?;
        Some(Node { number, cpus: read("local_cpulist")?.parse().unwrap_or_default() })
    }
}

/// Runs `work` on the node's CPUs, so that the kernel allocates newly touched memory on the node. The second value is
/// false if the thread's CPU affinity excludes the node's CPUs.
pub fn on<T>(node: Option<&Node>, work: impl FnOnce() -> T) -> (T, bool) {
    let me = Pid::from_raw(0);
    let before = sched_getaffinity(me).ok();
    let there = before.as_ref().zip(node).and_then(|(before, node)| {
        let mut set = CpuSet::new();
        let cpus = node.cpus.iter().map(|cpu| cpu as usize);
        let allowed = cpus.filter(|cpu| before.is_set(*cpu).unwrap_or(false));
        let count = allowed.map(|cpu| set.set(cpu)).filter(Result::is_ok).count();
        (count > 0 && sched_setaffinity(me, &set).is_ok()).then_some(())
    });
    let done = work();
    if let (Some(()), Some(before)) = (there, &before)
        && let Err(error) = sched_setaffinity(me, before)
    {
        tracing::debug!(%error, "failed to restore the CPU affinity; the thread stays on the CPUs of one NUMA node");
    }
    (done, there.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_one_is_no_node() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Node::from_sysfs(dir.path()), None);
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("local_cpulist", "0-1\n");
        write("numa_node", "-1\n");
        assert_eq!(Node::from_sysfs(dir.path()), None);
        write("numa_node", "1\n");
        assert_eq!(
            Node::from_sysfs(dir.path()),
            Some(Node { number: 1, cpus: [0, 1].into_iter().collect() })
        );
    }

    #[test]
    fn the_thread_comes_back() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| before.is_set(*cpu).unwrap()).unwrap();
        let node = Node { number: 0, cpus: [first as u32].into_iter().collect() };
        let (there, bound) = on(Some(&node), || sched_getaffinity(Pid::from_raw(0)).unwrap());
        assert!(bound && there.is_set(first).unwrap());
        assert_eq!((0..CpuSet::count()).filter(|cpu| there.is_set(*cpu).unwrap()).count(), 1);
        assert!(sched_getaffinity(Pid::from_raw(0)).unwrap() == before);
        let nowhere = Node { number: 0, cpus: cpus::CpuSet::default() };
        assert!(!on(Some(&nowhere), || ()).1 && !on(None, || ()).1);
    }
}

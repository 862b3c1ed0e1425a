//! Measurement of memory latency between the CPUs and the memory of all pairs of NUMA nodes. The loads form a pointer
//! chase: the address of a load is the result of the previous one. The buffer is larger than the caches.
//!
//! The measurement only runs on demand because it uses a few hundred MiB of a node's memory and one of its CPUs for a
//! few tenths of a second. It skips nodes with little free memory and the memory of GPUs. It also skips memory of
//! unknown kind without CPUs, which may belong to a GPU.

mod chase;
mod mempolicy;

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sched::{CpuSet as Affinity, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

use super::format;
use host::Host;
use model::clock::Mono;
use model::cpus::CpuSet;
use model::topology::{MemoryKind, NumaNode, Topology};

/// Maximum duration of the whole measurement.
const LONGEST: Duration = Duration::from_secs(30);
/// Minimum and maximum buffer size in bytes. Between them, the buffer is twice as large as the largest last-level
/// cache.
const BUFFER: (u64, u64) = (64 << 20, 512 << 20);
/// Divisor of a node's free memory: the buffer uses at most a quarter of it.
const SHARE: u64 = 4;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Size of the buffer in bytes.
    pub buffer_bytes: u64,
    /// Size of the largest last-level cache in bytes. A buffer smaller than twice this size is partly cached.
    pub cache_bytes: u64,
    /// Results for all pairs of a node's CPUs and a node's memory.
    pub pairs: Vec<NodePair>,
}

/// Latency from the CPUs of one node to the memory of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodePair {
    /// NUMA node of the CPUs.
    pub cpu_node: u32,
    /// NUMA node of the memory.
    pub memory_node: u32,
    /// Time of one load. It includes the cost of TLB misses, which depends on the page size that the kernel chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nanoseconds: Option<f64>,
    /// Reason why the pair was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Measures all pairs of nodes on this machine. `progress` is called with the name of the next step.
pub fn measure(topology: &Topology, host: &Host, mut progress: impl FnMut(&str)) -> Latency {
    let deadline = Mono::now() + LONGEST;
    let cache = topology.l3_groups.iter().map(|group| group.size_bytes).max().unwrap_or(0);
    let bytes = cache.saturating_mul(2).clamp(BUFFER.0, BUFFER.1);
    let nodes: Vec<&NumaNode> = topology.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).collect();
    let alone = topology.numa_nodes.len() == 1;
    let mut pairs = Vec::new();
    for memory in topology.numa_nodes.iter().filter(|node| node.memory_bytes > 0) {
        progress(&format!("memory of NUMA node {}", memory.index));
        let buffer = buffer(memory, host, bytes, alone, deadline);
        for cpus in &nodes {
            let measured = buffer.as_ref().map_err(String::clone);
            let measured = measured.and_then(|buffer| from(&cpus.cpus, buffer, deadline));
            let (cpu_node, memory_node) = (cpus.index, memory.index);
            let nanoseconds = measured.as_ref().ok().copied();
            pairs.push(NodePair { cpu_node, memory_node, nanoseconds, why: measured.err() });
        }
    }
    Latency { buffer_bytes: bytes, cache_bytes: cache, pairs }
}

/// Allocates a buffer in the memory of a node. The error is the reason for the user.
fn buffer(
    node: &NumaNode,
    host: &Host,
    bytes: u64,
    alone: bool,
    deadline: Mono,
) -> Result<chase::ChaseBuffer, String> {
    match node.memory_kind {
        MemoryKind::Gpu => return Err("skipped: memory of a GPU".into()),
        MemoryKind::Unknown if node.cpus.is_empty() => {
            return Err("skipped: memory without CPUs may belong to a GPU".into());
        }
        _ => {}
    }
    if Mono::now() >= deadline {
        return Err(out_of_time());
    }
    let free = free(host, node.index).ok_or("the amount of its free memory is unknown")?;
    if free / SHARE < bytes {
        return Err(format!("it has too little free memory: {}", format::size(free)));
    }
    let bytes = usize::try_from(bytes).map_err(|_| "the buffer is too large")?;
    // With a single node no binding is needed.
    let node = (!alone).then_some(node.index);
    chase::ChaseBuffer::new(bytes, node).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "not permitted: binding memory to a node in a container requires CAP_SYS_NICE".into()
        }
        _ => format!("failed to allocate its memory: {error}"),
    })
}

/// Returns the free memory of a node in bytes.
fn free(host: &Host, node: u32) -> Option<u64> {
    let path = host.path(format!("/sys/devices/system/node/node{node}/meminfo"));
    parse_free(&std::fs::read_to_string(path).ok()?)
}

/// Parses the free memory in bytes from a line such as `Node 0 MemFree:  1234 kB`.
fn parse_free(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("MemFree:"))?.1;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the time of one load in nanoseconds, measured on one of these CPUs.
fn from(cpus: &CpuSet, buffer: &chase::ChaseBuffer, deadline: Mono) -> Result<f64, String> {
    if Mono::now() >= deadline {
        return Err(out_of_time());
    }
    // The measurement runs on its own thread because a pinned thread stays pinned. The thread may run on any of the
    // CPUs, so the kernel can pick an idle one.
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            pin(cpus)?;
            Ok(buffer.nanoseconds())
        });
        measured.join().unwrap_or_else(|_| Err("the measuring thread failed".into()))
    })
}

/// Pins the calling thread to those of `cpus` that the process may use.
fn pin(cpus: &CpuSet) -> Result<(), String> {
    let this = Pid::from_raw(0);
    let refused = |error: nix::Error| format!("its CPUs may not be used: {error}");
    let allowed = sched_getaffinity(this).map_err(refused)?;
    let mut wanted = Affinity::new();
    let mut some = false;
    for cpu in cpus.iter().filter_map(|cpu| usize::try_from(cpu).ok()) {
        // A CPU number beyond the capacity of the set counts as not allowed.
        if allowed.is_set(cpu).unwrap_or(false) {
            wanted.set(cpu).map_err(refused)?;
            some = true;
        }
    }
    if !some {
        return Err("its CPUs may not be used by this process".into());
    }
    sched_setaffinity(this, &wanted).map_err(refused)
}

fn out_of_time() -> String {
    format!("not measured: the limit of {} s was reached", LONGEST.as_secs())
}

impl Latency {
    /// Formats the results as a table with one row per node's CPUs and one column per node's memory.
    pub fn text(&self) -> String {
        let memory: BTreeSet<u32> = self.pairs.iter().map(|pair| pair.memory_node).collect();
        let cpus: BTreeSet<u32> = self.pairs.iter().map(|pair| pair.cpu_node).collect();
        let head: String = memory.iter().map(|node| format!("{:>12}", format!("memory {node}"))).collect();
        let mut out = format!("  {:<14}{head}\n", "");
        for cpu in cpus {
            let cell = |memory: &u32| {
                let of = |pair: &&NodePair| pair.cpu_node == cpu && pair.memory_node == *memory;
                let nanoseconds = self.pairs.iter().find(of).and_then(|pair| pair.nanoseconds);
                format!("{:>12}", nanoseconds.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0} ns")))
            };
            out.push_str(&format!(
                "  {:<14}{}\n",
                format!("CPUs of {cpu}"),
                memory.iter().map(cell).collect::<String>()
            ));
        }
        let size = format::size(self.buffer_bytes);
        out.push_str(&format!("  Time per load, for dependent loads at random addresses in {size}.\n"));
        if self.buffer_bytes / 2 < self.cache_bytes {
            let cache = format::size(self.cache_bytes);
            out.push_str(&format!("  The L3 cache has {cache}, so it served part of the loads.\n"));
        }
        let mut reported = BTreeSet::new();
        for pair in &self.pairs {
            if let Some(why) = &pair.why
                && reported.insert((pair.memory_node, why))
            {
                out.push_str(&format!("  CPUs of {}, memory {}: {why}\n", pair.cpu_node, pair.memory_node));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::fixtures::machine;

    #[test]
    fn free_memory_is_read() {
        let text = "Node 0 MemTotal:       8219168 kB\nNode 0 MemFree:         123 kB\n";
        assert_eq!(parse_free(text), Some(123 * 1024));
        assert_eq!((parse_free("Node 0 MemFree: 12 MB"), parse_free("")), (None, None));
    }

    #[test]
    fn what_cannot_be_measured_says_why() {
        let root = tempfile::tempdir().unwrap();
        let node = root.path().join("sys/devices/system/node/node1");
        std::fs::create_dir_all(&node).unwrap();
        std::fs::write(node.join("meminfo"), "Node 1 MemFree: 100000 kB\n").unwrap();
        let mut topology = machine(&[("0", &["0"]), ("1", &["1"])]);
        topology.numa_nodes.push(NumaNode { index: 8, memory_bytes: 1, ..NumaNode::default() });
        topology.numa_nodes.push(NumaNode {
            index: 9,
            memory_bytes: 1,
            memory_kind: MemoryKind::Hbm,
            ..NumaNode::default()
        });
        let latency = measure(&topology, &Host::new(root.path()), |_| {});
        let why = |cpu, memory| {
            let pair = latency.pairs.iter().find(|p| p.cpu_node == cpu && p.memory_node == memory).unwrap();
            assert_eq!(pair.nanoseconds, None);
            pair.why.clone().unwrap()
        };
        assert!(why(0, 0).contains("unknown") && why(1, 1).contains("too little"), "{latency:?}");
        assert!(why(0, 8).contains("GPU") && why(0, 9).contains("unknown"), "{latency:?}");
        assert!(latency.text().contains("CPUs of 0, memory 8: skipped"), "{}", latency.text());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a thread of the test")]
    fn cpus_that_are_not_there_are_not_used() {
        let why = std::thread::spawn(|| pin(&"900-901".parse().unwrap())).join().unwrap().unwrap_err();
        assert!(why.contains("may not be used"), "{why}");
    }
}

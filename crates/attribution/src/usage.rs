//! Usage and limits of a control group of either version. Parsing is pure; reading is for threads that may wait
//! ([`host::reader`]). Memory by NUMA node is read only from `memory.numa_stat`, which the kernel maintains
//! anyway, and never from the maps of a process, because reading those holds the lock that its page faults
//! need.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::proc::read;
use host::Host;
use model::owners::CpuTime;

/// Maximum number of bytes read of one file of a control group.
const MOST_BYTES: u64 = 64 * 1024;
/// Maximum number of parent groups whose quotas are read.
const MOST_LEVELS: usize = 16;

/// Usage of a control group. Values that the kernel or the controllers do not report are missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Anonymous and file memory by NUMA node, in bytes.
    pub memory_by_node: BTreeMap<u32, u64>,
    /// CPU time in seconds.
    pub cpu_seconds: Option<f64>,
    /// CPU time by mode.
    pub cpu_time: Option<CpuTime>,
    /// Maximum number of CPUs, which is the lowest quota of the group and its parents; `None` without a quota.
    pub cpu_limit: Option<f64>,
    /// Number of processes killed for lack of memory since the group was created.
    pub oom_kills: Option<u64>,
}

/// Mount points of the control groups.
struct Mounts {
    root: PathBuf,
    /// Whether only version 2 is mounted. Otherwise, version 1 is used, with or without version 2.
    unified: bool,
}

impl Mounts {
    fn detect(host: &Host) -> Mounts {
        let root = host.path("/sys/fs/cgroup");
        Mounts { unified: root.join("cgroup.controllers").exists(), root }
    }

    /// Returns the folder of a group in the hierarchy of a controller.
    fn folder(&self, controller: &str, group: &str) -> PathBuf {
        let hierarchy = if self.unified { &self.root } else { &self.root.join(controller) };
        hierarchy.join(group.trim_start_matches('/'))
    }
}

/// Returns whether the group exists.
pub fn exists(host: &Host, group: &str) -> bool {
    let mounts = Mounts::detect(host);
    let controllers = ["memory", "cpuacct", "cpu", "devices", "systemd", "unified"];
    controllers.iter().any(|controller| mounts.folder(controller, group).is_dir())
}

/// Reads the usage and limits of a group.
pub fn look(host: &Host, group: &str) -> Usage {
    let mounts = Mounts::detect(host);
    let text = |controller: &str, group: &str, file: &str| file_of(&mounts.folder(controller, group), file);
    let above = || Path::new(group).ancestors().take(MOST_LEVELS).filter_map(Path::to_str);
    let least = |limits: &mut dyn Iterator<Item = f64>| limits.reduce(f64::min);
    let oom_kills = |file: &str| keyed(&text("memory", group, file)?, "oom_kill");
    let nodes = text("memory", group, "memory.numa_stat").unwrap_or_default();
    if mounts.unified {
        let stat = text("", group, "cpu.stat").unwrap_or_default();
        let seconds = |key: &str| Some(keyed(&stat, key)? as f64 * 1e-6);
        return Usage {
            memory_by_node: by_node_2(&nodes),
            cpu_seconds: seconds("usage_usec"),
            cpu_time: seconds("user_usec").zip(seconds("system_usec")).map(cpu_time),
            cpu_limit: least(&mut above().filter_map(|group| cpu_max(&text("", group, "cpu.max")?))),
            oom_kills: oom_kills("memory.events"),
        };
    }
    let quota = |group: &str| {
        let quota = text("cpu", group, "cpu.cfs_quota_us")?;
        cfs(&quota, &text("cpu", group, "cpu.cfs_period_us")?)
    };
    let used = text("cpuacct", group, "cpuacct.usage");
    let stat = text("cpuacct", group, "cpuacct.stat").unwrap_or_default();
    let seconds = |key: &str| Some(keyed(&stat, key)? as f64 / procfs::ticks_per_second() as f64);
    Usage {
        memory_by_node: by_node_1(&nodes, procfs::page_size()),
        cpu_seconds: used.and_then(|text| Some(text.trim().parse::<u64>().ok()? as f64 * 1e-9)),
        cpu_time: seconds("user").zip(seconds("system")).map(cpu_time),
        cpu_limit: least(&mut above().filter_map(quota)),
        oom_kills: oom_kills("memory.oom_control"),
    }
}

fn cpu_time((user, system): (f64, f64)) -> CpuTime {
    CpuTime { user, system }
}

fn file_of(folder: &Path, file: &str) -> Option<String> {
    String::from_utf8(read(&folder.join(file), MOST_BYTES).ok()?).ok()
}

/// Returns the number after a word at the start of a line.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Parses `cpu.max`, which has quota (or `max`) and period in microseconds. Returns a number of CPUs, or `None`
/// without a quota.
fn cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    cfs(quota, period)
}

fn cfs(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (i64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// Parses `memory.numa_stat` of version 2: `anon N0=1 N1=2` in bytes, including child groups.
fn by_node_2(text: &str) -> BTreeMap<u32, u64> {
    let mut nodes = BTreeMap::new();
    for line in text.lines() {
        if let Some(("anon" | "file", counts)) = line.split_once(' ') {
            add(&mut nodes, counts, 1);
        }
    }
    nodes
}

/// Parses `memory.numa_stat` of version 1: `anon=3 N0=1 N1=2` in pages; `hierarchical_anon` includes child
/// groups.
fn by_node_1(text: &str, page: u64) -> BTreeMap<u32, u64> {
    let of = |anon: &str, file: &str| {
        let mut nodes = BTreeMap::new();
        for line in text.lines() {
            let Some((total, counts)) = line.split_once(' ') else { continue };
            if total.split_once('=').is_some_and(|(name, _)| name == anon || name == file) {
                add(&mut nodes, counts, page);
            }
        }
        nodes
    };
    let all = of("hierarchical_anon", "hierarchical_file");
    if all.is_empty() { of("anon", "file") } else { all }
}

fn add(nodes: &mut BTreeMap<u32, u64>, counts: &str, unit: u64) {
    for count in counts.split_ascii_whitespace() {
        let Some((node, count)) = count.strip_prefix('N').and_then(|count| count.split_once('=')) else {
            continue;
        };
        let (Ok(node), Ok(count)) = (node.parse::<u32>(), count.parse::<u64>()) else { continue };
        let sum: &mut u64 = nodes.entry(node).or_default();
        *sum = sum.saturating_add(count.saturating_mul(unit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::fixture::host;
    use proptest::prelude::*;

    #[test]
    fn version_2_is_read() {
        let (_root, host) = host(&[
            ("cgroup.controllers", "cpu memory\n"),
            ("a/b/memory.numa_stat", "anon N0=100 N1=20\nfile N0=5 N1=1\nkernel_stack N0=9 N1=9\n"),
            ("a/b/cpu.stat", "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"),
            ("a/b/cpu.max", "400000 100000\n"),
            ("a/cpu.max", "250000 100000\n"),
            ("cpu.max", "max 100000\n"),
            ("a/b/memory.events", "low 0\noom 5\noom_kill 3\noom_group_kill 1\n"),
        ]);
        let usage = look(&host, "/a/b");
        assert_eq!(usage.memory_by_node, [(0, 105), (1, 21)].into());
        assert_eq!((usage.cpu_seconds, usage.cpu_limit, usage.oom_kills), (Some(2.5), Some(2.5), Some(3)));
        assert_eq!(usage.cpu_time, Some(CpuTime { user: 2.0, system: 0.5 }));
        assert_eq!(look(&host, "/a/gone"), Usage { cpu_limit: Some(2.5), ..Usage::default() });
        assert!(exists(&host, "/a/b") && !exists(&host, "/a/gone"));
    }

    #[test]
    fn version_1_is_read_where_only_some_controllers_know_the_group() {
        let (_root, host) = host(&[
            ("memory/j/memory.numa_stat", "total=9 N0=5 N1=4\nfile=3 N0=3 N1=0\nanon=6 N0=2 N1=4\n"),
            ("memory/j/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            ("cpu/j/cpu.cfs_quota_us", "-1\n"),
            ("cpu/j/cpu.cfs_period_us", "100000\n"),
        ]);
        let page = procfs::page_size();
        let usage = look(&host, "/j");
        assert_eq!(usage.memory_by_node, [(0, 5 * page), (1, 4 * page)].into());
        assert_eq!((usage.cpu_seconds, usage.cpu_limit, usage.oom_kills), (None, None, Some(2)));
        let below = "anon=1 N0=1\nhierarchical_file=2 N0=0 N1=2\nhierarchical_anon=3 N0=3 N1=0\n";
        assert_eq!(by_node_1(below, 10), [(0, 30), (1, 20)].into());
        assert!(exists(&host, "/j"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in "(anon|file|hierarchical_anon|N0|=|oom_kill|[0-9]{1,22}|\\PC| |\n){0,60}") {
            let _ = (by_node_1(&text, u64::MAX), by_node_2(&text), keyed(&text, "oom_kill"), cpu_max(&text));
        }
    }
}

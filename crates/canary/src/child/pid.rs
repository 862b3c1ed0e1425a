//! Identifies this process in NVML's process lists.

use std::collections::BTreeSet;

/// Returns the PIDs of this process in all PID namespaces that are visible to it.
pub fn pids() -> BTreeSet<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut pids = namespaces(&status);
    pids.insert(std::process::id());
    pids
}

fn namespaces(status: &str) -> BTreeSet<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns true if a process with this PID is visible.
pub fn seen(pid: u32) -> bool {
    std::path::Path::new("/proc").join(pid.to_string()).exists()
}

/// Returns the PID under which NVML lists this process if none of its own PIDs is listed. In a container without the
/// host's PID namespace, NVML may still report host PIDs. The PID must be the only one that appeared when the context
/// was created, none of our own PIDs may be listed, and no process with that PID may be visible here. `seen` checks the
/// last condition.
pub fn adopt(
    own: &BTreeSet<u32>,
    before: &BTreeSet<u32>,
    after: &BTreeSet<u32>,
    seen: impl Fn(u32) -> bool,
) -> Option<u32> {
    if after.iter().any(|pid| own.contains(pid)) {
        return None;
    }
    let mut new = after.difference(before);
    match (new.next(), new.next()) {
        (Some(pid), None) if !seen(*pid) => Some(*pid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_of_a_process_are_its_own() {
        let status = "Name:\tgpu-node-exporte\nNSpid:\t812 17\t1\nThreads:\t3\n";
        assert_eq!(namespaces(status), BTreeSet::from([812, 17, 1]));
        assert_eq!(namespaces("Name:\tx\n"), BTreeSet::new());
        assert!(pids().contains(&std::process::id()));
    }

    #[test]
    fn a_host_number_is_adopted_only_where_it_can_be_no_other_process() {
        let set = |pids: &[u32]| pids.iter().copied().collect::<BTreeSet<_>>();
        let own = set(&[17]);
        let unseen = |_| false;
        assert_eq!(adopt(&own, &set(&[]), &set(&[40_812]), unseen), Some(40_812));
        assert_eq!(adopt(&own, &set(&[5]), &set(&[5, 40_812]), unseen), Some(40_812));
        assert_eq!(adopt(&own, &set(&[]), &set(&[17, 40_812]), unseen), None, "we are listed by our own");
        assert_eq!(adopt(&own, &set(&[]), &set(&[40_812, 40_813]), unseen), None, "one of two");
        assert_eq!(adopt(&own, &set(&[]), &set(&[40_812]), |_| true), None, "a process we see");
        assert_eq!(adopt(&own, &set(&[5]), &set(&[5]), unseen), None, "no process came");
    }
}

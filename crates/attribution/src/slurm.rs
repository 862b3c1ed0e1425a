//! Slurm's jobs on the node and their processes, from control groups of both versions. Reading is for threads
//! that may wait ([`host::reader`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup::slurm_id;
use super::proc::read;
use host::Host;

/// Maximum number of entries read of a folder.
const MOST_ENTRIES: usize = 1024;
/// Maximum number of jobs.
const MOST_JOBS: usize = 256;
/// Maximum number of groups read per step.
const MOST_GROUPS: usize = 64;
/// Maximum number of processes listed per step.
const MOST_PROCESSES: usize = 4;
/// Maximum number of bytes read of a group's process list.
const MOST_BYTES: u64 = 64 * 1024;

/// A job that has processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobGroup {
    /// UID of the user, which only version 1 has.
    pub user: Option<u32>,
    /// Some processes of every step. Steps with the most information about the job come first.
    pub steps: Vec<(String, Vec<u32>)>,
}

/// Returns the groups of jobs, including leftover groups of ended jobs.
pub fn job_folders(host: &Host) -> impl Iterator<Item = PathBuf> + use<> {
    let root = host.path("/sys/fs/cgroup");
    let version_2 = [root.clone(), root.join("system.slice"), root.join("unified/system.slice")];
    let version_1 = ["devices", "freezer", "memory", "cpuset"].map(|hierarchy| root.join(hierarchy));
    let version_1 = version_1
        .into_iter()
        .flat_map(|hierarchy| folders(&hierarchy, |name| name == "slurm" || name.starts_with("slurm_")));
    let users = version_1.flat_map(|slurm| folders(&slurm, |name| name.starts_with("uid_")));
    let scopes =
        version_2.into_iter().flat_map(|slice| folders(&slice, |name| name.ends_with("slurmstepd.scope")));
    users.chain(scopes).flat_map(|parent| folders(&parent, |name| name.starts_with("job_")))
}

/// Returns the jobs by id.
pub fn jobs(host: &Host) -> BTreeMap<String, JobGroup> {
    let mut jobs: BTreeMap<String, JobGroup> = BTreeMap::new();
    for folder in job_folders(host) {
        let Some(id) = after(&folder, "job_").and_then(slurm_id) else { continue };
        if jobs.len() >= MOST_JOBS && !jobs.contains_key(&id) {
            continue;
        }
        let steps = folders(&folder, |name| name.starts_with("step_")).into_iter();
        let steps: Vec<_> = steps
            .filter_map(|step| Some((after(&step, "step_").and_then(slurm_id)?, processes(&step))))
            .collect();
        if steps.iter().all(|(_, pids)| pids.is_empty()) {
            continue;
        }
        let user = folder.parent().and_then(|user| after(user, "uid_")?.parse().ok());
        let job = jobs.entry(id).or_default();
        job.user = job.user.or(user);
        // The hierarchies of version 1 repeat the same job.
        for (step, pids) in steps.into_iter().filter(|(_, pids)| !pids.is_empty()) {
            if !job.steps.iter().any(|(known, _)| *known == step) {
                job.steps.push((step, pids));
            }
        }
        job.steps.sort_by_key(|(step, _)| rank(step));
    }
    jobs
}

/// Returns the sort key of a step. The batch script and an interactive shell have the variables of the whole
/// job; processes that `pam_slurm_adopt` adds to `extern` have the fewest.
fn rank(step: &str) -> (u8, u64, String) {
    let number = step.parse().unwrap_or(u64::MAX);
    let kind = match step {
        "batch" => 0,
        "interactive" => 1,
        "extern" => 3,
        _ => 2,
    };
    (kind, number, step.to_owned())
}

/// Returns some processes of a step, tasks first. `slurmstepd` is in a parent group, or in a sibling group
/// `slurm`.
fn processes(step: &Path) -> Vec<u32> {
    let mut groups = vec![step.to_owned()];
    let mut at = 0;
    while at < groups.len() && groups.len() < MOST_GROUPS {
        let below = folders(&groups[at], |name| name != "slurm");
        groups.extend(below);
        at += 1;
    }
    groups.truncate(MOST_GROUPS);
    let mut found = Vec::new();
    for group in groups.iter().rev() {
        let Ok(bytes) = read(&group.join("cgroup.procs"), MOST_BYTES) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        // The ID 0 is a process of another PID namespace.
        let mut pids: Vec<u32> =
            text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect();
        pids.sort_unstable();
        found.extend(
            pids.into_iter().filter(|pid| !found.contains(pid)).take(MOST_PROCESSES).collect::<Vec<_>>(),
        );
        if found.len() >= MOST_PROCESSES {
            break;
        }
    }
    found.truncate(MOST_PROCESSES);
    found
}

fn after<'a>(folder: &'a Path, prefix: &str) -> Option<&'a str> {
    folder.file_name()?.to_str()?.strip_prefix(prefix)
}

/// Returns the folders in a folder whose names are wanted.
fn folders(path: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let entries = entries.flatten().take(MOST_ENTRIES);
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted));
    named
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::fixture::host;

    fn steps(job: &JobGroup) -> Vec<(&str, &[u32])> {
        job.steps.iter().map(|(step, pids)| (step.as_str(), pids.as_slice())).collect()
    }

    #[test]
    fn jobs_of_version_2_have_their_tasks_processes() {
        let scope = "system.slice/node7_slurmstepd.scope";
        let files = [
            ("job_42/step_extern/user/task_special/cgroup.procs", "90\n"),
            ("job_42/step_10/user/task_0/cgroup.procs", "60\n"),
            ("job_42/step_2/slurm/cgroup.procs", "40\n"),
            ("job_42/step_2/user/task_1/cgroup.procs", "55\n0\n51\n"),
            ("job_42/step_batch/slurm/cgroup.procs", "10\n"),
            ("job_42/step_batch/user/task_0/cgroup.procs", "12\n11\n13\n14\n15\n"),
            ("job_43/step_0/user/task_0/cgroup.procs", ""),
            ("job_a b/step_0/user/task_0/cgroup.procs", "70\n"),
            ("system/cgroup.procs", "1\n"),
        ];
        let files = files.map(|(path, text)| (format!("{scope}/{path}"), text));
        let (_root, host) = host(&files.each_ref().map(|(path, text)| (path.as_str(), *text)));
        let jobs = jobs(&host);
        assert_eq!(jobs.keys().collect::<Vec<_>>(), ["42"]);
        let expected: [(&str, &[u32]); 4] =
            [("batch", &[11, 12, 13, 14]), ("2", &[51, 55]), ("10", &[60]), ("extern", &[90])];
        assert_eq!((steps(&jobs["42"]), jobs["42"].user), (expected.into(), None));
    }

    #[test]
    fn jobs_of_version_1_are_one_over_all_hierarchies_and_have_a_user() {
        let (_root, host) = host(&[
            ("devices/slurm/uid_1000/job_7/step_0/cgroup.procs", "20\n"),
            ("devices/slurm/uid_1000/job_7/step_0/task_0/cgroup.procs", "21\n"),
            ("memory/slurm/uid_1000/job_7/step_0/cgroup.procs", "20\n21\n"),
            ("memory/slurm_node7/uid_5/job_8/step_batch/cgroup.procs", "30\n"),
        ]);
        let jobs = jobs(&host);
        assert_eq!((steps(&jobs["7"]), jobs["7"].user), (vec![("0", &[21, 20][..])], Some(1000)));
        assert_eq!((steps(&jobs["8"]), jobs["8"].user), (vec![("batch", &[30][..])], Some(5)));
    }

    #[test]
    fn a_host_without_slurm_has_no_job() {
        let (_root, host) =
            host(&[("cgroup.controllers", "cpu"), ("system.slice/slurmd.service/job_1/x", "")]);
        assert!(jobs(&host).is_empty() && jobs(&Host::new("/nonexistent")).is_empty());
    }
}

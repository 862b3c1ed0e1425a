//! Detects Slurm jobs on the node.
//!
//! A program in the kernel that cannot be read assigns GPUs to a job, and the daemon may not read the environment of
//! another user's process. While Slurm has a job on the node, every GPU may therefore belong to the job.

use std::fs;
use std::path::Path;

use super::claims::Claimed;
use attribution::slurm::job_folders;
use host::Host;

/// Returns the claim of a Slurm job on the GPUs of the host.
pub fn claimed(host: &Host) -> Claimed {
    if !host.path("/sys/fs/cgroup").is_dir() {
        return Claimed::Unasked("there are no control groups to check".into());
    }
    match job(host) {
        Some(id) => Claimed::By(format!("possibly Slurm job {id}; the GPUs of a job cannot be read")),
        None => Claimed::No("Slurm has no job on this node".into()),
    }
}

/// Returns the id of a job with processes.
fn job(host: &Host) -> Option<String> {
    // The control groups of finished jobs are empty.
    let empty = |job: &Path| {
        let events = fs::read_to_string(job.join("cgroup.events"));
        events.is_ok_and(|text| text.lines().any(|line| line == "populated 0"))
    };
    let job = job_folders(host).find(|job| !empty(job))?;
    let name = job.file_name().unwrap_or_default().to_string_lossy();
    Some(model::text::clean(name.trim_start_matches("job_"), 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join("sys/fs/cgroup").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn by(host: &Host) -> Option<String> {
        if let Claimed::By(text) = claimed(host) { Some(text) } else { None }
    }

    #[test]
    fn a_job_of_version_1_may_have_any_gpu() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        assert!(matches!(claimed(&host), Claimed::Unasked(_)));
        write(dir.path(), "devices/devices.list", "a *:* rwm\n");
        assert!(matches!(claimed(&host), Claimed::No(_)));
        write(dir.path(), "cpuset/slurm_node7/uid_1000/job_42/tasks", "");
        assert!(by(&host).unwrap().contains("possibly Slurm job 42"));
    }

    #[test]
    fn a_job_of_version_2_may_have_any_gpu() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        write(dir.path(), "system.slice/node7_slurmstepd.scope/system/cgroup.procs", "1\n");
        write(
            dir.path(),
            "system.slice/node7_slurmstepd.scope/job_9/cgroup.events",
            "populated 0\nfrozen 0\n",
        );
        assert_eq!(by(&host), None);
        write(
            dir.path(),
            "system.slice/node7_slurmstepd.scope/job_10/cgroup.events",
            "populated 1\nfrozen 0\n",
        );
        assert!(by(&host).unwrap().contains("possibly Slurm job 10"));
    }
}

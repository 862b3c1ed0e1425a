//! Which jobs of Slurm are on the node, and which GPUs their control groups let them have.
//!
//! With control groups of version 1 a job's `devices.list` names the device files it may open. With version 2 that is
//! decided by a program in the kernel that cannot be read: then a job may have any GPU.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::claims::Claimed;
use host::Host;

/// Major number of NVIDIA's device files; the minor number is that of the GPU, and 255 is the control device.
const MAJOR: u32 = 195;
/// Jobs and folders that are looked at.
const MOST: usize = 1024;

/// A job's folder, and what its devices are.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    id: String,
    /// Minor numbers of its GPUs; `None`: not known.
    gpus: Option<Vec<u32>>,
}

/// What the jobs on the host mean for the GPU with this minor number.
pub fn claimed(host: &Host, minor: Option<u32>) -> Claimed {
    let root = host.path("/sys/fs/cgroup");
    if !root.is_dir() {
        return Claimed::Unasked("there are no control groups to look at".into());
    }
    let jobs = jobs(&root);
    let of = |job: &&Job| match (&job.gpus, minor) {
        (Some(gpus), Some(minor)) => gpus.contains(&minor),
        (Some(gpus), None) => !gpus.is_empty(),
        (None, _) => false,
    };
    if let Some(job) = jobs.iter().find(of) {
        return Claimed::By(format!("Slurm job {}", job.id));
    }
    match jobs.iter().find(|job| job.gpus.is_none()) {
        Some(job) => {
            Claimed::By(format!("maybe Slurm job {}: its control group does not tell its GPUs", job.id))
        }
        None => Claimed::Nobody("Slurm has no job with it here".into()),
    }
}

fn jobs(root: &Path) -> Vec<Job> {
    let mut found: Vec<Job> = Vec::new();
    let mut add = |job: Job| {
        if found.len() < MOST && !found.iter().any(|known| known.id == job.id) {
            found.push(job);
        }
    };
    // The hierarchy that knows devices first: what it tells of a job counts.
    for hierarchy in ["devices", "freezer", "memory", "cpuset"] {
        for slurm in folders(&root.join(hierarchy), |name| name == "slurm" || name.starts_with("slurm_")) {
            for user in folders(&slurm, |name| name.starts_with("uid_")) {
                for job in folders(&user, |name| name.starts_with("job_")) {
                    let gpus = read(&job.join("devices.list")).and_then(|text| gpus(&text));
                    add(Job { id: id(&job), gpus });
                }
            }
        }
    }
    let version_2 = [root.to_owned(), root.join("system.slice"), root.join("unified/system.slice")];
    let scopes = version_2.iter().flat_map(|slice| folders(slice, |name| name.ends_with("slurmstepd.scope")));
    for job in scopes.flat_map(|scope| folders(&scope, |name| name.starts_with("job_"))) {
        // What a job has left behind is empty.
        let empty =
            read(&job.join("cgroup.events")).is_some_and(|text| text.lines().any(|l| l == "populated 0"));
        if !empty {
            add(Job { id: id(&job), gpus: None });
        }
    }
    found
}

/// Minor numbers of the GPUs in a `devices.list`; `None` if it lets the job have every device.
fn gpus(text: &str) -> Option<Vec<u32>> {
    let mut gpus = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (kind, numbers, access) = (words.next()?, words.next()?, words.next()?);
        // To make a device file is not to open it.
        if !access.contains(['r', 'w']) {
            continue;
        }
        let (major, minor) = numbers.split_once(':')?;
        let ours = major == "*" || major.parse() == Ok(MAJOR);
        match (kind, ours, minor) {
            ("a", true, _) | ("c", true, "*") => return None,
            ("c", true, minor) if major != "*" => gpus.extend(minor.parse::<u32>().ok().filter(|m| *m < 254)),
            _ => {}
        }
    }
    Some(gpus)
}

fn id(job: &Path) -> String {
    let name = job.file_name().unwrap_or_default().to_string_lossy();
    model::text::clean(name.trim_start_matches("job_"), 32)
}

/// Folders in a folder, by name.
fn folders(path: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let entries = entries.flatten().take(MOST);
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted));
    named
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// A file's beginning; the files of control groups are short.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(64 * 1024).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join("sys/fs/cgroup").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn by(host: &Host, minor: Option<u32>) -> Option<String> {
        if let Claimed::By(text) = claimed(host, minor) { Some(text) } else { None }
    }

    #[test]
    fn version_1_tells_the_devices_of_a_job() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        assert!(matches!(claimed(&host, Some(0)), Claimed::Unasked(_)));
        put(dir.path(), "devices/devices.list", "a *:* rwm\n");
        assert!(matches!(claimed(&host, Some(0)), Claimed::Nobody(_)));
        put(
            dir.path(),
            "devices/slurm/uid_1000/job_42/devices.list",
            "c 1:3 rwm\nc 195:2 rw\nc 195:255 rw\nb *:* m\nc *:* m\n",
        );
        put(dir.path(), "cpuset/slurm/uid_1000/job_42/tasks", "");
        assert_eq!(by(&host, Some(2)).unwrap(), "Slurm job 42");
        assert_eq!(by(&host, Some(1)), None);
        assert!(by(&host, None).is_some(), "a GPU of unknown number may be the one");
        put(dir.path(), "devices/slurm_node7/uid_1000/job_43/devices.list", "a *:* rwm\n");
        assert!(by(&host, Some(1)).unwrap().contains("maybe Slurm job 43"));
    }

    #[test]
    fn with_version_2_any_gpu_may_be_the_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        put(dir.path(), "system.slice/node7_slurmstepd.scope/system/cgroup.procs", "1\n");
        put(dir.path(), "system.slice/node7_slurmstepd.scope/job_9/cgroup.events", "populated 0\nfrozen 0\n");
        assert_eq!(by(&host, Some(0)), None);
        put(
            dir.path(),
            "system.slice/node7_slurmstepd.scope/job_10/cgroup.events",
            "populated 1\nfrozen 0\n",
        );
        assert!(by(&host, Some(0)).unwrap().contains("maybe Slurm job 10"));
    }

    proptest! {
        #[test]
        fn no_list_is_too_odd(text in "\\PC{0,60}|((a|b|c) [0-9*]{0,4}:[0-9*]{0,12} rwm\n){0,4}") {
            gpus(&text);
        }
    }
}

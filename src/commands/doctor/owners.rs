//! Whether the owners of the processes on the GPUs can be found out here.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nix::unistd::{AccessFlags, eaccess};

use super::host::user_name;
use super::report::{Finding, Verdict};
use host::Host;
use settings::Config;

/// Everything that owners are found by.
pub fn findings(host: &Host, config: &Config) -> Vec<Finding> {
    if !config.owners.enabled {
        let text = "not looked for: owners.enabled is false".to_owned();
        return vec![Finding::new("owners", Verdict::Well, text)];
    }
    vec![processes(host), control_groups(host), kubelet(host, &config.owners.kubelet_socket)]
}

/// Whether other users' processes can be seen. Process 1 is the one that is tried.
fn processes(host: &Host) -> Finding {
    let topic = "owners";
    let path = host.path("/proc/1/cgroup");
    let read = File::open(&path).and_then(|mut file| file.read(&mut [0; 4096]));
    let Err(error) = read else {
        let text = "control groups of other users' processes can be read: pods, containers, jobs, units";
        return Finding::new(topic, Verdict::Well, text.to_owned());
    };
    let text = format!("{}: {error}. Processes on GPUs then work for `unknown`", path.display());
    let finding = Finding::new(topic, Verdict::Note, text);
    // Elsewhere than at / it is the host's /proc that is not mounted, which no command can fix from within.
    if path == Path::new("/proc/1/cgroup") {
        return finding.fix("sudo mount -o remount,hidepid=0 /proc".into());
    }
    finding
}

/// Which control groups the host has: where memory by NUMA node, CPU time, quotas and OOM kills of owners are read.
fn control_groups(host: &Host) -> Finding {
    let topic = "control groups";
    let root = host.path("/sys/fs/cgroup");
    if let Err(error) = fs::read_dir(&root) {
        let text = format!("{}: {error}. What owners use on the host stays unknown", root.display());
        return Finding::new(topic, Verdict::Note, text);
    }
    let has = |path: &str| root.join(path).exists();
    if has("cgroup.controllers") {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let missing: Vec<&str> = ["cpu", "memory"]
            .into_iter()
            .filter(|wanted| !controllers.split_ascii_whitespace().any(|has| has == *wanted))
            .collect();
        return match missing.as_slice() {
            [] => Finding::new(topic, Verdict::Well, "version 2".into()),
            _ => {
                let text = format!("version 2, without the controllers {}", missing.join(" and "));
                Finding::new(topic, Verdict::Note, text)
            }
        };
    }
    let missing: Vec<&str> =
        ["cpu", "cpuacct", "memory"].into_iter().filter(|controller| !has(controller)).collect();
    let version = if has("unified") { "version 1 beside version 2" } else { "version 1" };
    match missing.as_slice() {
        [] => Finding::new(topic, Verdict::Well, version.into()),
        _ => {
            let text = format!("{version}, without the controllers {}", missing.join(", "));
            Finding::new(topic, Verdict::Note, text)
        }
    }
}

/// The kubelet's socket that tells which pod has which device, and its logs, whose paths name pods.
fn kubelet(host: &Host, socket: &Path) -> Finding {
    let topic = "kubelet";
    if socket.as_os_str().is_empty() {
        return Finding::new(topic, Verdict::Well, "not asked: owners.kubelet_socket is empty".into());
    }
    let socket = host.path(socket);
    match fs::metadata(&socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::new(topic, Verdict::Well, format!("there is none here ({})", socket.display()))
        }
        Err(error) => Finding::new(topic, Verdict::Note, format!("{}: {error}", socket.display()))
            .fix("sudo gpu-node-exporter doctor".into()),
        Ok(file) if !file.file_type().is_socket() => {
            Finding::new(topic, Verdict::Note, format!("{} is no socket", socket.display()))
        }
        Ok(_) if eaccess(&socket, AccessFlags::R_OK | AccessFlags::W_OK).is_err() => {
            let text = format!("{} is not open to this user", socket.display());
            let fix = format!("sudo setfacl -m u:{}:rw {}", user_name(), socket.display());
            Finding::new(topic, Verdict::Note, text).fix(fix)
        }
        // Either folder names pods; the first is open to everybody as the kubelet makes it.
        Ok(_) => match fs::read_dir(host.path("/var/log/containers"))
            .or_else(|_| fs::read_dir(host.path("/var/log/pods")))
        {
            Ok(_) => {
                let text = format!("{} is open to this user, and its logs name the pods", socket.display());
                Finding::new(topic, Verdict::Well, text)
            }
            Err(error) => {
                let text = format!(
                    "{} is open to this user, but neither /var/log/containers nor /var/log/pods is ({error}): \
                     pods that share a GPU have no names",
                    socket.display()
                );
                Finding::new(topic, Verdict::Note, text)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_owners_are_found_by_is_looked_at_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        let make = |path: &str| fs::create_dir_all(dir.path().join(path)).unwrap();
        let mut config = Config::default();
        let verdicts = |host: &Host, config: &Config| -> Vec<Verdict> {
            findings(host, config).iter().map(|finding| finding.verdict).collect()
        };
        use Verdict::{Note, Well};
        assert_eq!(verdicts(&host, &config), [Note, Note, Well], "a node without a kubelet is well");
        make("proc/1");
        fs::write(dir.path().join("proc/1/cgroup"), "0::/init.scope\n").unwrap();
        for controller in ["cpu", "cpuacct", "memory"] {
            make(&format!("sys/fs/cgroup/{controller}"));
        }
        assert_eq!(control_groups(&host).text, "version 1");
        fs::write(dir.path().join("sys/fs/cgroup/cgroup.controllers"), "cpuset cpu io memory").unwrap();
        assert_eq!(control_groups(&host).text, "version 2");
        assert_eq!(verdicts(&host, &config), [Well, Well, Well]);
        make("kubelet");
        config.owners.kubelet_socket = "/kubelet/sock".into();
        let _listener = UnixListener::bind(dir.path().join("kubelet/sock")).unwrap();
        assert_eq!(verdicts(&host, &config), [Well, Well, Note], "no names");
        make("var/log/pods");
        assert_eq!(verdicts(&host, &config), [Well, Well, Well]);
        config.owners.enabled = false;
        assert_eq!(findings(&host, &config).len(), 1);
    }
}

//! Checks of the rights of this user on this machine. No device file is opened. Files that only the daemon
//! needs are checked if no daemon answers; otherwise its collectors report them with the daemon's rights.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attribution::kubelet::{self, KubeletFailure};
use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::unistd::{AccessFlags, Gid, Group, Uid, User, eaccess};
use procfs::process::{Process, Status};

use super::report::{Finding, Verdict};
use host::Host;
use host::child::Stderr;
use host::reader::{DeadlineReader, MAX_ABANDONED};
use host::state::Store;
use host::stop::Stop;
use model::catalog::KubeletError;
use model::topology::{DeviceKind, Topology};
use settings::Config;
use topology::ask::{AskError, Asker};
use topology::discover::Origin;

/// Capabilities that matter to the exporter, by number (`linux/capability.h`).
const CAPABILITIES: [(u32, &str); 6] = [
    (1, "CAP_DAC_OVERRIDE"),
    (2, "CAP_DAC_READ_SEARCH"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (34, "CAP_SYSLOG"),
    (38, "CAP_PERFMON"),
];
/// File that permits listing MIG instances. Its number is fixed; 1 permits changing them.
const MIG_MONITOR: &str = "nvidia-caps/nvidia-cap2";

/// Returns the name of the user, or the UID.
pub fn user_name() -> String {
    let uid = Uid::effective();
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Returns the status of this process.
pub fn own_status() -> Option<Status> {
    Process::myself().and_then(|process| process.status()).ok()
}

/// Returns the user and the capabilities of this process.
pub fn user() -> Finding {
    let set = own_status().map_or(0, |status| status.capeff);
    let held: Vec<&str> =
        CAPABILITIES.iter().filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, name)| *name).collect();
    let held = if held.is_empty() { "none that the exporter uses".to_owned() } else { held.join(", ") };
    let text = format!("{} (uid {}), capabilities: {held}", user_name(), Uid::effective());
    Finding::well("user", text)
}

/// Checks the driver's device files without opening them, because opening one wakes the GPU. `missing` is the
/// verdict if they do not exist.
pub fn device_files(dev: &Path, module_loaded: bool, missing: Verdict) -> Vec<Finding> {
    let topic = "device files";
    let name = |file: &Path| file.file_name().and_then(|name| name.to_str()).unwrap_or("").to_owned();
    let entries = fs::read_dir(dev).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|file| name(file).starts_with("nvidia") && !file.is_dir()).collect();
    files.sort();
    let is_gpu = |file: &PathBuf| name(file)["nvidia".len()..].parse::<u32>().is_ok();
    if !files.contains(&dev.join("nvidiactl")) || !files.iter().any(is_gpu) {
        let finding = Finding::new(topic, missing, "nvidiactl or the device file of a GPU is missing");
        // Without the module, device files cannot be created; a driver that responds needs none.
        let fixable = module_loaded && missing == Verdict::Wrong;
        return vec![if fixable { finding.fix("sudo nvidia-modprobe -c 0 -u") } else { finding }];
    }
    let closed = |file: &&PathBuf| eaccess(*file, AccessFlags::R_OK | AccessFlags::W_OK).is_err();
    let refused: Vec<String> = files.iter().filter(closed).map(|file| file.display().to_string()).collect();
    let mut findings = vec![match refused.as_slice() {
        [] => Finding::well(topic, format!("{} files, open to this user", files.len())),
        [first, ..] => {
            let names = refused.join(" ");
            let fix = may_use(Path::new(first)).unwrap_or_else(|| format!("sudo chmod a+rw {names}"));
            Finding::new(topic, missing, format!("this user may not open {names}")).fix(fix)
        }
    }];
    let monitor = dev.join(MIG_MONITOR);
    if monitor.exists() && eaccess(&monitor, AccessFlags::R_OK).is_err() {
        let text = format!("this user may not read {}, so MIG instances may be missing", monitor.display());
        let fix = "sudo nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/monitor";
        findings.push(Finding::note("MIG monitoring", text).fix(fix));
    }
    findings
}

/// Returns the command that adds the user to the group of a file, if the group may use the file.
fn may_use(file: &Path) -> Option<String> {
    let meta = fs::metadata(file).ok()?;
    let open = meta.mode() & 0o060 == 0o060 && meta.gid() != 0;
    let group = Group::from_gid(Gid::from_raw(meta.gid())).ok().flatten().filter(|_| open)?;
    Some(format!("sudo usermod -aG {} {}", group.name, user_name()))
}

/// Returns the command that installs the drop-in of a feature.
pub fn drop_in(feature: &str) -> String {
    format!(
        "sudo install -Dm644 -t /etc/systemd/system/gpu-node-exporter.service.d \
         /usr/share/gpu-node-exporter/systemd/{feature}.conf && sudo systemctl daemon-reload && \
         sudo systemctl restart gpu-node-exporter"
    )
}

/// Returns the command that gives the unit access to the kubelet's socket, with a drop-in and a relay.
pub fn kubelet_relay() -> String {
    let relay = "sudo install -Dm644 -t /etc/systemd/system \
                 /usr/share/gpu-node-exporter/systemd/gpu-node-exporter-kubelet.service";
    format!("{relay} && {}", drop_in("kubelet"))
}

/// Checks if the kernel log can be read.
pub fn kernel_log(host: &Host, config: &Config) -> Finding {
    let topic = "kernel log";
    if !config.events.kernel_log {
        return Finding::well(topic, "not read: events.kernel_log is false");
    }
    let path = host.path("/dev/kmsg");
    // The kernel checks the right to read when the file is opened.
    let Err(error) = fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&path) else {
        return Finding::well(topic, format!("{} can be read", path.display()));
    };
    let text = format!("{}: {error}. Only NVML reports faults then", path.display());
    Finding::wrong(topic, text).fix(match error.raw_os_error().map(Errno::from_raw) {
        // CAP_SYSLOG is missing.
        Some(Errno::EPERM) => "sudo sysctl -w kernel.dmesg_restrict=0".to_owned(),
        Some(Errno::EACCES) => format!("sudo chmod a+r {}", path.display()),
        _ => "export GPU_NODE_EXPORTER__EVENTS__KERNEL_LOG=false".to_owned(),
    })
}

/// Checks everything that is needed to find the owners of processes.
pub fn owners(host: &Host, config: &Config) -> Vec<Finding> {
    let topic = "owners";
    if !config.owners.enabled {
        return vec![Finding::well(topic, "turned off, because owners.enabled is false")];
    }
    // Process 1 belongs to another user.
    let path = host.path("/proc/1/cgroup");
    let processes = match File::open(&path).and_then(|mut file| file.read(&mut [0; 4096])) {
        Ok(_) => Finding::well(topic, "the control groups of other users' processes can be read"),
        Err(error) => {
            let text =
                format!("{}: {error}. The owner of processes on GPUs is then `unknown`", path.display());
            let finding = Finding::note(topic, text);
            // With another root, the host's /proc is not mounted, which no command can fix from inside the
            // container.
            let here = path == Path::new("/proc/1/cgroup");
            if here { finding.fix("sudo mount -o remount,hidepid=0 /proc") } else { finding }
        }
    };
    let root = host.path("/sys/fs/cgroup");
    let groups = match fs::read_dir(&root) {
        Ok(_) => Finding::well("control groups", format!("{} can be read", root.display())),
        Err(error) => {
            let text = format!("{}: {error}. The host resources that owners use are unknown", root.display());
            Finding::note("control groups", text)
        }
    };
    let pods = pods(host, config.owners.kubelet_socket.as_deref());
    [processes, groups, pods].into_iter().chain(slurm(host, config)).collect()
}

/// Checks if this user, who may differ from the daemon's, can read the environments of Slurm jobs. Tries one
/// job, if there is any.
fn slurm(host: &Host, config: &Config) -> Option<Finding> {
    let topic = "Slurm";
    let jobs = attribution::slurm::jobs(host);
    let pid = jobs.values().flat_map(|job| &job.steps).find_map(|(_, pids)| pids.first())?;
    if !config.owners.slurm_environment {
        let text = "the environments of jobs are not read, because owners.slurm_environment is false";
        return Some(Finding::well(topic, text));
    }
    let path = host.path(format!("/proc/{pid}/environ"));
    // Opening the file waits for a lock of the process.
    let mut reader = DeadlineReader::new("doctor-reader", config.owners.read_timeout, Arc::default());
    let file = path.clone();
    Some(match reader.read(MAX_ABANDONED, move || File::open(file).map(drop)) {
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            unread_environments(&format!("{}: permission denied to {}", path.display(), user_name()))
        }
        Ok(_) => {
            let user = user_name();
            Finding::well(topic, format!("{user} can read the environments of jobs: their GPUs and accounts"))
        }
        Err(_) => Finding::note(topic, format!("opening {} timed out", path.display())),
    })
}

/// Returns a finding on unreadable environments of Slurm jobs.
pub fn unread_environments(why: &str) -> Finding {
    let text = format!(
        "{why}. Without CAP_SYS_PTRACE the GPUs and accounts of jobs are unknown (docs/install.md, Privileges)"
    );
    Finding::note("Slurm", text).fix(drop_in("slurm-allocations"))
}

/// Checks the kubelet's socket, which maps devices to pods, and its log directories, whose paths contain the
/// names of pods.
fn pods(host: &Host, socket: Option<&Path>) -> Finding {
    let topic = "kubelet";
    let Some(socket) = socket else {
        return Finding::well(topic, "not queried, because owners.kubelet_socket is empty");
    };
    let socket = host.path(socket);
    let at = socket.display();
    let found = kubelet::look(&socket);
    let logs = ["/var/log/containers", "/var/log/pods"].map(|path| fs::read_dir(host.path(path)).is_ok());
    match found {
        // The directory of the socket belongs to root too.
        Err(KubeletFailure { error: Some(KubeletError::Refused), text }) => {
            Finding::note(topic, format!("{at}: {text}")).fix(kubelet_relay())
        }
        Err(failure) => Finding::note(topic, format!("{at}: {}", failure.text)),
        Ok(false) => Finding::well(topic, format!("no kubelet on this machine ({at} does not exist)")),
        Ok(true) if eaccess(&socket, AccessFlags::R_OK | AccessFlags::W_OK).is_err() => {
            Finding::note(topic, format!("this user may not open {at}")).fix(kubelet_relay())
        }
        // Either directory is sufficient. By default all users can read the first one.
        Ok(true) if logs.contains(&true) => Finding::well(
            topic,
            format!("this user may open {at} and the logs, which contain the names of pods"),
        ),
        Ok(true) => {
            let text = format!(
                "this user may open {at}, but neither /var/log/containers nor /var/log/pods, so pods that share a \
                 GPU have no names"
            );
            Finding::note(topic, text)
        }
    }
}

/// Checks the topology that a separate process discovers.
pub fn topology(config: &Config) -> Finding {
    let topic = "topology";
    if !config.topology.enabled {
        return Finding::note(topic, "turned off, because topology.enabled is false");
    }
    let origin = Origin::Live(config.host.root.clone());
    match Asker::new(Stderr::Null, Arc::default()).all(&origin, false, &Stop::default()) {
        Ok(all) => found(&all.topology),
        // Usually a container without the host's files.
        Err(error @ AskError::NotFound(_)) => Finding::note(topic, error.to_string()),
        Err(error) => Finding::wrong(topic, error.to_string()),
    }
}

fn found(topology: &Topology) -> Finding {
    let gpus = topology.devices.iter().filter(|device| device.kind == DeviceKind::Gpu);
    let unlinked = gpus.clone().filter(|gpu| gpu.link.is_none() || gpu.port.is_none()).count();
    let (nodes, cores) = (topology.numa_nodes.len(), topology.cores.len());
    let mut parts = vec![format!("NUMA nodes: {nodes}, cores: {cores}, GPUs: {}", gpus.count())];
    if unlinked > 0 {
        parts.push(format!("GPUs without a known PCIe port above them: {unlinked}"));
    }
    parts.extend(topology.notes.iter().cloned());
    let verdict = if parts.len() > 1 { Verdict::Note } else { Verdict::Well };
    Finding::new("topology", verdict, parts.join(", "))
}

/// Checks if the state directory can be written.
pub fn state_folder(config: &Config) -> Finding {
    let (topic, dir) = ("state folder", config.state.dir.display());
    if let Some(finding) = set_aside(config) {
        return finding;
    }
    let nearest = config.state.dir.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    if eaccess(nearest, AccessFlags::W_OK | AccessFlags::X_OK).is_ok() {
        return Finding::well(topic, format!("{dir} can be written"));
    }
    let text = format!("{dir} cannot be written, so the state is lost at a restart");
    let fix = format!("sudo install -d -o {} -m 0750 {dir}", user_name());
    Finding::wrong(topic, text).fix(fix)
}

/// Returns a finding on state files that were unreadable at a start and replaced by new ones.
pub fn set_aside(config: &Config) -> Option<Finding> {
    let dir = &config.state.dir;
    let files = Store::new(dir).set_aside().unwrap_or_default();
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    (!names.is_empty()).then(|| {
        let text = format!(
            "unreadable at a start and replaced by new files: {}. Inspect the old files, then delete them",
            names.join(", ")
        );
        Finding::wrong("state folder", text).fix(format!("ls -l {}", dir.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::LinkCapability;
    use model::topology::fixtures::{device, machine};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn device_files_are_judged_by_their_permissions_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dev = dir.path();
        let put = |name: &str, mode: u32| {
            fs::create_dir_all(dev.join(name).parent().unwrap()).unwrap();
            fs::write(dev.join(name), "").unwrap();
            fs::set_permissions(dev.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let none = device_files(dev, true, Verdict::Wrong);
        assert_eq!((none[0].verdict, none[0].fix.is_some()), (Verdict::Wrong, true));
        assert_eq!(
            device_files(dev, false, Verdict::Note)[0].verdict,
            Verdict::Note,
            "it answers all the same"
        );
        put("nvidiactl", 0o666);
        put("nvidia-uvm", 0o666);
        assert_eq!(device_files(dev, true, Verdict::Wrong)[0].verdict, Verdict::Wrong, "no GPU");
        put("nvidia0", 0o666);
        put("nvidia-caps/nvidia-cap1", 0o400);
        put("nvidia-caps/nvidia-cap2", 0o444);
        put("null", 0o000);
        let well = device_files(dev, true, Verdict::Wrong);
        assert_eq!((well.len(), well[0].verdict), (1, Verdict::Well), "{well:?}");
        assert!(well[0].text.starts_with("3 files"), "{}", well[0].text);
        if !Uid::effective().is_root() {
            put("nvidia0", 0o000);
            let closed = device_files(dev, true, Verdict::Wrong);
            assert_eq!(closed[0].verdict, Verdict::Wrong);
            assert!(closed[0].fix.as_ref().unwrap().contains("nvidia0"), "{closed:?}");
        }
    }

    #[test]
    fn the_host_is_looked_at_below_its_root() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        let mut config = Config::default();
        assert_eq!(kernel_log(&host, &config).verdict, Verdict::Wrong);
        fs::create_dir_all(dir.path().join("dev")).unwrap();
        fs::write(dir.path().join("dev/kmsg"), "").unwrap();
        assert_eq!(kernel_log(&host, &config).verdict, Verdict::Well);
        config.events.kernel_log = false;
        assert!(kernel_log(&host, &config).text.contains("not read"));
        config.state.dir = dir.path().join("not/yet/there");
        assert_eq!(state_folder(&config).verdict, Verdict::Well);
    }

    #[test]
    fn what_owners_are_found_by_is_looked_at_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        let make = |path: &str| fs::create_dir_all(dir.path().join(path)).unwrap();
        let mut config = Config::default();
        let verdicts = |host: &Host, config: &Config| -> Vec<Verdict> {
            owners(host, config).iter().map(|finding| finding.verdict).collect()
        };
        use Verdict::{Note, Well};
        assert_eq!(verdicts(&host, &config), [Note, Note, Well], "a node without a kubelet is well");
        make("proc/1");
        fs::write(dir.path().join("proc/1/cgroup"), "0::/init.scope\n").unwrap();
        make("sys/fs/cgroup");
        assert_eq!(verdicts(&host, &config), [Well, Well, Well]);
        make("kubelet");
        config.owners.kubelet_socket = Some("/kubelet/sock".into());
        let _listener = UnixListener::bind(dir.path().join("kubelet/sock")).unwrap();
        assert_eq!(verdicts(&host, &config), [Well, Well, Note], "no names");
        make("var/log/pods");
        assert_eq!(verdicts(&host, &config), [Well, Well, Well]);
        make("sys/fs/cgroup/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0");
        assert_eq!(verdicts(&host, &config).len(), 3, "a job without processes");
        let procs = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0/cgroup.procs";
        fs::write(dir.path().join(procs), "10\n").unwrap();
        make("proc/10");
        let environ = dir.path().join("proc/10/environ");
        fs::write(&environ, "").unwrap();
        assert_eq!(verdicts(&host, &config), [Well, Well, Well, Well]);
        fs::set_permissions(&environ, fs::Permissions::from_mode(0o0)).unwrap();
        // Root reads all files.
        let expected = if File::open(&environ).is_ok() { Well } else { Note };
        assert_eq!(verdicts(&host, &config), [Well, Well, Well, expected]);
        config.owners.enabled = false;
        assert_eq!(owners(&host, &config).len(), 1);
    }

    #[test]
    fn what_opens_the_kubelets_socket_to_the_unit_is_there() {
        let fix = kubelet_relay();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/optional");
        let files =
            fix.split(' ').filter_map(|word| word.strip_prefix("/usr/share/gpu-node-exporter/systemd/"));
        let files: Vec<&str> = files.collect();
        assert_eq!(files, ["gpu-node-exporter-kubelet.service", "kubelet.conf"]);
        let text = |name| fs::read_to_string(shipped.join(name)).unwrap();
        let (relay, drop_in) = (text(files[0]), text(files[1]));
        let socket = drop_in.split_once("KUBELET_SOCKET=").unwrap().1.trim_end();
        let kubelet = Config::default().owners.kubelet_socket.unwrap();
        assert!(relay.contains(&format!("pod relay {socket} {}\n", kubelet.display())), "{relay}");
        assert!(drop_in.contains("Wants=gpu-node-exporter-kubelet.service"));
    }

    #[test]
    fn what_is_unknown_is_a_note() {
        let mut topology = machine(&[("0-3", &["0-3"])]);
        assert_eq!(found(&topology).verdict, Verdict::Well);
        let mut gpu = device(DeviceKind::Gpu, "0000:06:00.0", None, "0-3", &[]);
        gpu.port = Some(LinkCapability { generation: 5, lanes: 16 });
        topology.devices.push(gpu);
        let finding = found(&topology);
        assert_eq!(finding.verdict, Verdict::Note);
        let text = "NUMA nodes: 1, cores: 4, GPUs: 1, GPUs without a known PCIe port above them: 1";
        assert_eq!(finding.text, text);
    }
}

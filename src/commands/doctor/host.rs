//! What this user may read and write on this machine, without asking a device: no device file is opened.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc::O_NONBLOCK;
use nix::unistd::{AccessFlags, Gid, Group, Uid, User, eaccess};

use super::report::{Finding, Verdict};
use host::Host;
use settings::Config;

/// Capabilities that matter to the exporter or show who asks, by number (`linux/capability.h`).
const CAPABILITIES: [(u32, &str); 6] = [
    (1, "CAP_DAC_OVERRIDE"),
    (2, "CAP_DAC_READ_SEARCH"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (34, "CAP_SYSLOG"),
    (38, "CAP_PERFMON"),
];
const CAP_SYSLOG: u32 = 34;
/// Number of CAP_SYS_ADMIN.
pub(super) const CAP_SYS_ADMIN: u32 = 21;
/// Number of CAP_PERFMON.
pub(super) const CAP_PERFMON: u32 = 38;
/// The file whose readers may see MIG instances (its number is fixed: 1 is for those who change them).
const MIG_MONITOR: &str = "nvidia-caps/nvidia-cap2";

/// The name of the user, or the number.
pub fn user_name() -> String {
    let uid = Uid::effective();
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Who asks, and with which capabilities.
pub fn user() -> Finding {
    let set = effective_capabilities();
    let held: Vec<&str> =
        CAPABILITIES.iter().filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, name)| *name).collect();
    let held = if held.is_empty() { "none that matter here".to_owned() } else { held.join(", ") };
    let text = format!("{} (uid {}), capabilities: {held}", user_name(), Uid::effective());
    Finding::new("user", Verdict::Well, text)
}

/// Whether this process has this capability.
pub(super) fn holds(capability: u32) -> bool {
    effective_capabilities() >> capability & 1 == 1
}

fn effective_capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
}

/// The driver's device files, and whether this user may use them. They are looked at, never opened: opening
/// one wakes the GPU. `answers`: whether the driver answers all the same.
pub fn device_files(dev: &Path, module_loaded: bool, answers: bool) -> Vec<Finding> {
    let trouble = if answers { Verdict::Note } else { Verdict::Wrong };
    let files = nvidia_files(dev);
    let has = |name: &str| files.iter().any(|file| file.ends_with(name));
    if !has("nvidiactl") || !files.iter().any(|file| is_gpu(file)) {
        let finding =
            Finding::new("device files", trouble, "there is no nvidiactl with a GPU beside it".into());
        // Without the module there is nothing to make them for.
        return vec![match module_loaded {
            true => finding.fix("sudo nvidia-modprobe -c 0 -u".into()),
            false => finding,
        }];
    }
    let both = AccessFlags::R_OK | AccessFlags::W_OK;
    let refused: Vec<String> = files
        .iter()
        .filter(|file| eaccess(*file, both).is_err())
        .map(|file| file.display().to_string())
        .collect();
    let mut findings = vec![match refused.as_slice() {
        [] => {
            Finding::new("device files", Verdict::Well, format!("{} files, open to this user", files.len()))
        }
        [first, ..] => {
            let names = refused.join(" ");
            let fix = may_use(Path::new(first)).unwrap_or_else(|| format!("sudo chmod a+rw {names}"));
            Finding::new("device files", trouble, format!("not open to this user: {names}")).fix(fix)
        }
    }];
    let monitor = dev.join(MIG_MONITOR);
    if monitor.exists() && eaccess(&monitor, AccessFlags::R_OK).is_err() {
        let text = format!("{} is not open to this user: MIG instances may stay hidden", monitor.display());
        let fix = "sudo nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/monitor".to_owned();
        findings.push(Finding::new("MIG monitoring", Verdict::Note, text).fix(fix));
    }
    findings
}

/// Makes the user a member of the group a file is open to, if there is one.
fn may_use(file: &Path) -> Option<String> {
    let meta = fs::metadata(file).ok()?;
    let open = meta.mode() & 0o060 == 0o060 && meta.gid() != 0;
    let group = Group::from_gid(Gid::from_raw(meta.gid())).ok().flatten().filter(|_| open)?;
    Some(format!("sudo usermod -aG {} {}", group.name, user_name()))
}

fn is_gpu(file: &Path) -> bool {
    let number = file.file_name().and_then(|name| name.to_str()?.strip_prefix("nvidia"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `/dev/nvidia*`, by name.
fn nvidia_files(dev: &Path) -> Vec<PathBuf> {
    let named = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("nvidia")) && !file.is_dir()
    };
    let entries = fs::read_dir(dev).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(named).collect();
    files.sort();
    files
}

/// Whether the kernel log can be read. `daemon`: whether the daemon answers, which has rights of its own.
pub fn kernel_log(host: &Host, config: &Config, daemon: bool) -> Finding {
    let topic = "kernel log";
    if !config.events.kernel_log {
        return Finding::new(topic, Verdict::Well, "not read: events.kernel_log is false".into());
    }
    let path = host.path("/dev/kmsg");
    let tried =
        fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&path).and_then(|mut file| {
            match file.read(&mut [0; 8192]) {
                // Nothing new, or overrun: it can be read.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                Err(error) => Err(error),
                Ok(_) => Ok(()),
            }
        });
    let restricted =
        fs::read_to_string(host.path("/proc/sys/kernel/dmesg_restrict")).is_ok_and(|text| text.trim() != "0");
    let syslog = holds(CAP_SYSLOG);
    match tried {
        Ok(()) => Finding::new(topic, Verdict::Well, format!("{} can be read", path.display())),
        Err(error) => {
            let text = format!(
                "{}: {error}; kernel.dmesg_restrict is {}, this user has {}CAP_SYSLOG. Faults are then reported \
                 by NVML alone",
                path.display(),
                u8::from(restricted),
                if syslog { "" } else { "no " }
            );
            let verdict = if daemon { Verdict::Note } else { Verdict::Wrong };
            let finding = Finding::new(topic, verdict, text);
            match error.kind() {
                io::ErrorKind::PermissionDenied if restricted && !syslog => {
                    finding.fix("sudo sysctl -w kernel.dmesg_restrict=0".into())
                }
                io::ErrorKind::PermissionDenied => finding.fix(format!("sudo chmod a+r {}", path.display())),
                _ => finding.fix("export GPU_NODE_EXPORTER__EVENTS__KERNEL_LOG=false".into()),
            }
        }
    }
}

/// Whether what is kept over restarts can be written. `daemon`: whether the daemon answers, which has rights
/// of its own.
pub fn state_folder(config: &Config, daemon: bool) -> Finding {
    let topic = "state folder";
    let dir = &config.state.dir;
    let nearest = dir.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let writable = eaccess(nearest, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    match (writable, daemon) {
        (true, _) => Finding::new(topic, Verdict::Well, format!("{} can be written", dir.display())),
        (false, true) => {
            let text =
                format!("{} cannot be written by this user; the daemon has its own rights", dir.display());
            Finding::new(topic, Verdict::Note, text)
        }
        (false, false) => {
            let text =
                format!("{} cannot be written: the number of GPUs is forgotten at a restart", dir.display());
            Finding::new(topic, Verdict::Wrong, text).fix(format!(
                "sudo install -d -o {} -m 0750 {}",
                user_name(),
                dir.display()
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn device_files_are_judged_by_their_permissions_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dev = dir.path();
        let put = |name: &str, mode: u32| {
            fs::create_dir_all(dev.join(name).parent().unwrap()).unwrap();
            fs::write(dev.join(name), "").unwrap();
            fs::set_permissions(dev.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let none = device_files(dev, true, false);
        assert_eq!((none[0].verdict, none[0].fix.is_some()), (Verdict::Wrong, true));
        assert_eq!(device_files(dev, false, true)[0].verdict, Verdict::Note, "it answers all the same");
        put("nvidiactl", 0o666);
        put("nvidia-uvm", 0o666);
        assert_eq!(device_files(dev, true, false)[0].verdict, Verdict::Wrong, "no GPU");
        put("nvidia0", 0o666);
        put("nvidia-caps/nvidia-cap1", 0o400);
        put("nvidia-caps/nvidia-cap2", 0o444);
        put("null", 0o000);
        let well = device_files(dev, true, false);
        assert_eq!((well.len(), well[0].verdict), (1, Verdict::Well), "{well:?}");
        assert!(well[0].text.starts_with("3 files"), "{}", well[0].text);
        if !Uid::effective().is_root() {
            put("nvidia0", 0o000);
            let closed = device_files(dev, true, false);
            assert_eq!(closed[0].verdict, Verdict::Wrong);
            assert!(closed[0].fix.as_ref().unwrap().contains("nvidia0"), "{closed:?}");
        }
    }

    #[test]
    fn the_host_is_looked_at_below_its_root() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        let mut config = Config::default();
        assert_eq!(kernel_log(&host, &config, false).verdict, Verdict::Wrong);
        fs::create_dir_all(dir.path().join("dev")).unwrap();
        fs::write(dir.path().join("dev/kmsg"), "").unwrap();
        assert_eq!(kernel_log(&host, &config, false).verdict, Verdict::Well);
        config.events.kernel_log = false;
        assert!(kernel_log(&host, &config, false).text.contains("not read"));
        config.state.dir = dir.path().join("not/yet/there");
        assert_eq!(state_folder(&config, false).verdict, Verdict::Well);
    }
}

//! Loaded kernel module, driver library on disk, NVIDIA's host services and boot time, read from files that do not
//! access a device.
//!
//! The inode of `/sys/module/nvidia` identifies the module load: the kernel numbers sysfs entries in sequence and does
//! not reuse a number within a boot (`kernfs_node.id`, Linux 5.5 and later; earlier kernels reuse one only after about
//! four billion others). The directory's timestamps cannot be used, because they are those of its first lookup.

pub mod library;
mod services;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::nvml::switch::Switch;
use super::{Context, Turns, put_node_row};
use crate::views::View;
use host::Host;
use ledger::inbox::LedgerEvent;
use model::catalog::{self as m, CollectorName, Node, VersionAgainst};
use model::clock::{Mono, nanos, unix_seconds};
use model::driver_module::{Load, LoadId, ModuleState};
use model::sample::Rows;
use services::Services;
use settings::Config;

/// Maximum time between two visits.
const EVERY: Duration = Duration::from_secs(10);
/// Maximum time between two visits while the driver is released, because it may return at any time.
const EVERY_PAUSED: Duration = Duration::from_secs(1);
/// Name of the kernel threads that the driver creates when its module is loaded, and ends when it is unloaded
/// (open-gpu-kernel-modules, `nv_module_state_init`).
const THREAD: &str = "nv_queue";
/// Process ID of the parent of all kernel threads.
const KTHREADD: &str = "2";

/// `fabric` is whether a GPU belongs to an NVLink fabric.
pub(crate) fn run(context: Context, switch: &Switch, fabric: View<bool>) {
    let every = |config: &Config| EVERY.min(config.sampler.slow_interval);
    let mut turns = Turns::new(&context);
    let host = Host::new(&context.config().host.root);
    let mut reader =
        ModuleReader { context: &context, switch, fabric, host, sent: None, services: Services::default() };
    while !context.stop.stopped() {
        let now = Mono::now();
        let paused = switch.is_released();
        if turns.is_due(every) || paused {
            reader.visit(every(&turns.config));
        }
        let quick = EVERY_PAUSED.min(turns.config.sampler.normal_interval);
        let next = if paused { turns.next().min(now + quick) } else { turns.next() };
        turns.wait_until(next.min(now + EVERY_PAUSED));
    }
}

struct ModuleReader<'a> {
    context: &'a Context,
    switch: &'a Switch,
    fabric: View<bool>,
    host: Host,
    sent: Option<ModuleState>,
    services: Services,
}

impl ModuleReader<'_> {
    fn visit(&mut self, every: Duration) {
        let taken = Mono::now();
        let known = self.sent.as_ref().and_then(ModuleState::load);
        let sight = look(&self.host, known);
        self.switch.module(&sight, taken);
        if self.sent.as_ref() != Some(&sight) {
            let seen = LedgerEvent::Module { state: sight.clone(), at: taken, unix_seconds: unix_seconds() };
            self.context.inbox.event(seen);
        }
        let mut rows = Rows::default();
        if let Some(boot) = boot_seconds(&self.host) {
            put_node_row(&mut rows, &m::gpu_host_boot_timestamp_seconds, (), boot);
        }
        let version = sight.load().map_or("", |load| &load.version);
        let config = self.context.config();
        let declared = config.driver.expected_version.trim();
        let on_disk = library::only_version(&library::find(&self.host, &config));
        let against =
            [(VersionAgainst::Declared, Some(declared)), (VersionAgainst::Library, on_disk.as_deref())];
        for (against, other) in against {
            if let Some(matches) = same(version, other.unwrap_or("")) {
                rows.entity(&Node {}).flag(&m::gpu_driver_version_matches, (against,), matches);
            }
        }
        for (service, runs) in self.services.look(&self.host, self.fabric.current(), taken) {
            rows.entity(&Node {}).flag(&m::gpu_host_service_up, (service,), runs);
        }
        // The absence of a module counts as an answer.
        self.context.send(CollectorName::Module, taken, every, rows);
        self.sent = Some(sight);
    }
}

/// Returns whether two versions are equal; `None` if one is unknown.
pub fn same(loaded: &str, other: &str) -> Option<bool> {
    (!loaded.is_empty() && !other.is_empty()).then_some(loaded == other)
}

/// Reads the state of the module. The load time in `known` is reused for the same load.
pub fn look(host: &Host, known: Option<&Load>) -> ModuleState {
    if !host.path("/sys/module").is_dir() {
        return ModuleState::Unknown;
    }
    let folder = host.path("/sys/module/nvidia");
    let Ok(seen) = fs::metadata(&folder) else { return ModuleState::Absent };
    let made = seen.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let id = LoadId { boot: host.boot_id().unwrap_or_default(), inode: seen.ino(), made: made.map(nanos) };
    let line = |name| fs::read_to_string(folder.join(name)).unwrap_or_default().trim().to_owned();
    // Built-in modules and old kernels lack this file.
    let state = line("initstate");
    let live = state.is_empty() || state == "live";
    let same = known.filter(|load| load.id == id && load.live == live);
    let unix_seconds = match same {
        Some(load) => load.unix_seconds,
        None => threads_started(host),
    };
    ModuleState::Loaded(Load { id, live, version: line("version"), unix_seconds })
}

/// Returns the boot time of the host in seconds since 1970.
fn boot_seconds(host: &Host) -> Option<f64> {
    let stat = fs::read_to_string(host.path("/proc/stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")).and_then(|text| text.trim().parse().ok())
}

/// Returns the start of the driver's oldest kernel thread in seconds since 1970.
fn threads_started(host: &Host) -> Option<f64> {
    let boot = boot_seconds(host)?;
    let processes = fs::read_dir(host.path("/proc")).ok()?.flatten();
    let oldest = processes.filter_map(|entry| thread_ticks(&entry.path())).min()?;
    Some(boot + oldest as f64 / procfs::ticks_per_second() as f64)
}

/// Returns the start of a process in clock ticks since boot if it is a kernel thread of the driver.
fn thread_ticks(process: &Path) -> Option<u64> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let parent = fields.nth(1)?;
    // This is field 22 of the line. The iterator starts behind field 4, the parent.
    let started = fields.nth(17)?;
    if name != THREAD || parent != KTHREADD {
        return None;
    }
    started.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_file(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn absent_unknown_and_loaded_are_three_things() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        assert_eq!(look(&host, None), ModuleState::Unknown);
        fs::create_dir_all(dir.path().join("sys/module")).unwrap();
        assert_eq!(look(&host, None), ModuleState::Absent);
        write_file(dir.path(), "sys/module/nvidia/version", "580.159.04\n");
        write_file(dir.path(), "sys/module/nvidia/initstate", "coming\n");
        write_file(dir.path(), "proc/sys/kernel/random/boot_id", "b\n");
        let sight = look(&host, None);
        let load = sight.load().unwrap();
        assert_eq!((load.version.as_str(), load.live, load.unix_seconds), ("580.159.04", false, None));
        assert_eq!(load.id.boot, "b");
        write_file(dir.path(), "sys/module/nvidia/initstate", "live\n");
        assert!(look(&host, None).load().unwrap().live);
        assert_eq!(look(&host, None), look(&host, look(&host, None).load()), "the same load");
        fs::remove_dir_all(dir.path().join("sys/module/nvidia")).unwrap();
        assert_eq!(look(&host, None), ModuleState::Absent);
        write_file(dir.path(), "sys/module/nvidia/version", "580.159.04\n");
        assert_ne!(look(&host, None).load().unwrap().id, load.id, "another load");
    }

    #[test]
    fn the_oldest_kernel_thread_shows_when_the_module_was_loaded() {
        let dir = tempfile::tempdir().unwrap();
        write_file(dir.path(), "proc/stat", "cpu 1 2\nbtime 1700000000\nprocesses 9\n");
        let thread = |pid: u32, name: &str, parent: u32, ticks: u64| {
            let text = format!(
                "{pid} ({name}) S {parent} 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 {ticks} 0 0 184467\n"
            );
            write_file(dir.path(), &format!("proc/{pid}/stat"), &text);
        };
        write_file(dir.path(), "sys/module/nvidia/version", "1.2\n");
        let host = Host::new(dir.path());
        assert_eq!(look(&host, None).load().unwrap().unix_seconds, None);
        let hz = procfs::ticks_per_second();
        thread(40, "nv_queue", 2, 90 * hz);
        thread(41, "nv_queue", 2, 60 * hz);
        // A program that took the name, and another thread.
        thread(42, "nv_queue", 1, 5 * hz);
        thread(43, "kworker (x) y", 2, 5 * hz);
        assert_eq!(look(&host, None).load().unwrap().unix_seconds, Some(1_700_000_060.0));
        assert_eq!(boot_seconds(&host), Some(1_700_000_000.0));
    }

    #[test]
    fn versions_are_compared_only_if_both_are_known() {
        assert_eq!(same("580.159.04", "580.159.04"), Some(true));
        assert_eq!(same("580.159.04", "580.95.05"), Some(false));
        assert_eq!(same("", "580.95.05"), None);
        assert_eq!(same("580.95.05", ""), None);
    }
}

//! NVIDIA's services on the host, detected by their processes. The fabric state cannot be used, because it stays
//! `completed` after the fabric manager has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use host::Host;
use model::catalog::HostService;
use model::catalog::schema::KnownLabel;
use model::clock::Mono;

/// Length to which the kernel cuts process names.
const NAME: usize = 15;
/// Time between two searches of all processes if an expected service is not running.
const SEARCH: Duration = Duration::from_secs(30);
/// Time between two searches for the other services, which most nodes never have.
const SEARCH_OTHERS: Duration = Duration::from_secs(600);
/// Time after which a running fabric manager counts as expected although nothing here needs it. Without switches the
/// manager starts, finds none and ends.
const STAYS: Duration = Duration::from_secs(20);
/// First user ID that is not a system user. Any process can choose its name, so processes of such users are ignored.
const FIRST_USER: u32 = 1000;
/// Switches that this kernel drives.
const SWITCHES: &str = "/sys/bus/pci/drivers/nvidia-nvswitch";
/// Directory of the enabled units.
const UNITS: &str = "/etc/systemd/system";
/// Unit of the fabric manager.
const FABRIC_UNIT: &str = "nvidia-fabricmanager.service";

/// Running services, tracked across visits.
#[derive(Debug, Default)]
pub(crate) struct Services {
    /// Process of every running service, and the time of its detection.
    running: BTreeMap<HostService, (u32, Mono)>,
    /// Services that belong to this node and have run since the exporter started.
    seen: BTreeSet<HostService>,
    searched: Option<Mono>,
}

impl Services {
    /// Returns whether the services that are expected, or were seen before, are running. Returns nothing if the
    /// processes of the host are not visible, as in a container with its own process namespace. `fabric` is whether a
    /// GPU belongs to an NVLink fabric.
    pub(crate) fn look(&mut self, host: &Host, fabric: bool, now: Mono) -> Vec<(HostService, bool)> {
        let proc = host.path("/proc");
        if line(&proc.join("2/comm")).as_deref() != Some("kthreadd") {
            return Vec::new();
        }
        let manager = HostService::FabricManager;
        let manager_expected = is_manager_expected(host, fabric);
        let before = self.running.len();
        self.running.retain(|service, (pid, _)| is(&proc, *pid, *service));
        let belongs = |service, seen: &BTreeSet<HostService>| {
            seen.contains(&service) || (service == manager && manager_expected)
        };
        let mut missing = HostService::ALL.iter().filter(|service| !self.running.contains_key(service));
        let every = match missing.clone().any(|service| belongs(*service, &self.seen)) {
            true => SEARCH,
            false => SEARCH_OTHERS,
        };
        let due = self.searched.is_none_or(|searched| now.since(searched) >= every);
        if self.running.len() < before || (due && missing.next().is_some()) {
            self.searched = Some(now);
            self.search(&proc, now);
        }
        let stays = |service, since| service != manager || fabric || now.since(since) >= STAYS;
        let here = self.running.iter().filter(|(service, (_, since))| stays(**service, *since));
        self.seen.extend(here.map(|(service, _)| *service));
        let shown = HostService::ALL.iter().copied().filter(|service| belongs(*service, &self.seen));
        shown.map(|service| (service, self.running.contains_key(&service))).collect()
    }

    fn search(&mut self, proc: &Path, now: Mono) {
        for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Some(name) = line(&entry.path().join("comm")) else { continue };
            let service = HostService::ALL.iter().find(|service| name_of(**service) == name);
            if let Some(service) = service.filter(|service| is(proc, pid, **service)) {
                self.running.entry(*service).or_insert((pid, now));
            }
        }
    }
}

/// Returns the process name of a service.
fn name_of(service: HostService) -> &'static str {
    let name = service.known();
    name.get(..NAME).unwrap_or(name)
}

/// Returns whether a process is the service: it has the name, is alive and belongs to a system user.
fn is(proc: &Path, pid: u32, service: HostService) -> bool {
    let Ok(status) = fs::read_to_string(proc.join(pid.to_string()).join("status")) else { return false };
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim).unwrap_or_default()
    };
    let alive = !field("State").starts_with(['Z', 'X']);
    let user = field("Uid").split_whitespace().nth(1).and_then(|uid| uid.parse::<u32>().ok());
    field("Name") == name_of(service) && alive && user.is_some_and(|user| user < FIRST_USER)
}

/// Returns whether the fabric manager should run on this node: the kernel drives switches, or there is a fabric and the
/// unit is enabled. In guests and racks the fabric manager runs elsewhere.
fn is_manager_expected(host: &Host, fabric: bool) -> bool {
    let entries = |folder: &str| fs::read_dir(host.path(folder)).into_iter().flatten().flatten();
    let is_address = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains(':');
    let enabled = || {
        let wanted = entries(UNITS).filter(|entry| entry.file_name().to_string_lossy().ends_with(".wants"));
        // The target of the link is outside this root.
        wanted.map(|folder| folder.path().join(FABRIC_UNIT)).any(|unit| unit.symlink_metadata().is_ok())
    };
    entries(SWITCHES).any(|entry| is_address(&entry)) || (fabric && enabled())
}

fn line(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use HostService::{FabricManager, Imex, Persistenced};

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            machine.process(2, "kthreadd", "S", 0);
            machine
        }

        fn process(&self, pid: u32, name: &str, state: &str, user: u32) {
            let status =
                format!("Name:\t{name}\nState:\t{state} (x)\nUid:\t{user}\t{user}\t{user}\t{user}\n");
            self.write_file(&format!("proc/{pid}/comm"), &format!("{name}\n"));
            self.write_file(&format!("proc/{pid}/status"), &status);
        }

        fn end(&self, pid: u32) {
            fs::remove_dir_all(self.0.path().join(format!("proc/{pid}"))).unwrap();
        }

        fn write_file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn host(&self) -> Host {
            Host::new(self.0.path())
        }
    }

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn a_service_that_was_never_there_has_no_series() {
        let machine = Machine::new();
        let mut services = Services::default();
        assert_eq!(services.look(&machine.host(), true, at(0)), []);
        machine.process(70, "nvidia-persiste", "S", 998);
        machine.process(71, "nvidia-imex", "S", 0);
        assert_eq!(services.look(&machine.host(), true, at(10)), [], "not searched for again so soon");
        assert_eq!(services.look(&machine.host(), true, at(590)), [], "nor while no service belongs here");
        assert_eq!(services.look(&machine.host(), true, at(600)), [(Imex, true), (Persistenced, true)]);
        machine.end(71);
        assert_eq!(services.look(&machine.host(), true, at(610)), [(Imex, false), (Persistenced, true)]);
        // Started again under another number.
        machine.end(70);
        machine.process(90, "nvidia-persiste", "S", 998);
        assert_eq!(services.look(&machine.host(), true, at(620)), [(Imex, false), (Persistenced, true)]);
        machine.process(91, "nvidia-imex", "S", 0);
        assert_eq!(services.look(&machine.host(), true, at(649)), [(Imex, false), (Persistenced, true)]);
        assert_eq!(services.look(&machine.host(), true, at(650)), [(Imex, true), (Persistenced, true)]);
    }

    #[test]
    fn the_fabric_manager_is_expected_with_switches_or_an_enabled_unit() {
        let machine = Machine::new();
        let look = |fabric| Services::default().look(&machine.host(), fabric, at(0));
        machine.write_file("etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service", "");
        assert_eq!(look(false), [], "a package that nothing here uses");
        assert_eq!(look(true), [(FabricManager, false)]);
        machine.write_file("sys/bus/pci/drivers/nvidia-nvswitch/0000:07:00.0", "");
        assert_eq!(look(false), [(FabricManager, false)]);
        machine.process(80, "nv-fabricmanage", "S", 0);
        assert_eq!(look(false), [(FabricManager, true)]);
    }

    #[test]
    fn a_manager_that_finds_nothing_and_ends_is_not_expected_again() {
        let machine = Machine::new();
        let mut services = Services::default();
        let mut look = |fabric, seconds| services.look(&machine.host(), fabric, at(seconds));
        // Started again and again.
        for (pid, seconds) in [(80, 0), (81, 10), (82, 20), (83, 30)] {
            machine.process(pid, "nv-fabricmanage", "S", 0);
            assert_eq!(look(false, seconds), []);
            machine.end(pid);
        }
        machine.process(84, "nv-fabricmanage", "S", 0);
        assert_eq!((look(false, 40), look(false, 50)), (vec![], vec![]));
        assert_eq!(look(false, 60), [(FabricManager, true)], "the manager stays");
        machine.end(84);
        assert_eq!(look(false, 70), [(FabricManager, false)]);
        let mut services = Services::default();
        machine.process(85, "nv-fabricmanage", "S", 0);
        assert_eq!(services.look(&machine.host(), true, at(0)), [(FabricManager, true)]);
        machine.end(85);
        assert_eq!(services.look(&machine.host(), true, at(10)), [(FabricManager, false)], "of a fabric");
    }

    #[test]
    fn neither_a_users_process_nor_one_that_has_ended_is_a_service() {
        let machine = Machine::new();
        machine.write_file("sys/bus/pci/drivers/nvidia-nvswitch/0000:07:00.0", "");
        machine.process(80, "nv-fabricmanage", "S", 1000);
        machine.process(81, "nv-fabricmanage", "Z", 0);
        machine.process(82, "nv-fabricmanager-helper", "S", 0);
        let look = || Services::default().look(&machine.host(), false, at(0));
        assert_eq!(look(), [(FabricManager, false)]);
        machine.process(83, "nv-fabricmanage", "S", 0);
        assert_eq!(look(), [(FabricManager, true)]);
    }

    #[test]
    fn processes_of_another_namespace_say_nothing() {
        let machine = Machine::new();
        machine.write_file("sys/bus/pci/drivers/nvidia-nvswitch/0000:07:00.0", "");
        machine.process(2, "sleep", "S", 0);
        assert_eq!(Services::default().look(&machine.host(), true, at(0)), []);
    }
}

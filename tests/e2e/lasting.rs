//! What is not forgotten: over restarts of the exporter, loads of the driver and reboots.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::faults::{EIGHT, Host, events, pci};
use super::node::{Metrics, Node, Setup};

fn incidents(m: &Metrics, gpu: &str) -> Option<f64> {
    m.value("gpu_unhealthy_incidents", &[("gpu", gpu)])
}

fn healthy(m: &Metrics, gpu: &str) -> Option<f64> {
    m.value("gpu_healthy", &[("gpu", gpu)])
}

/// Waits until a file of the state folder has this text.
fn wait_kept(node: &Node, file: &str, text: &str) {
    wait_kept_in(&node.state_dir(), node, file, text);
}

fn wait_kept_in(folder: &Path, node: &Node, file: &str, text: &str) {
    let file = folder.join(file);
    node.wait_for("it is kept", |_| fs::read_to_string(&file).is_ok_and(|kept| kept.contains(text)));
}

#[test]
fn an_incident_counts_once_over_a_restart_and_the_count_outlasts_a_reboot() {
    let mut host = Host::new();
    host.load_module();
    let mut node = host.start(EIGHT);
    let m = node.metrics();
    assert_eq!(m.all("gpu_unhealthy_incidents", &[]), [0.0; 8], "born at 0");
    let fault = format!("NVRM: Xid (PCI:{}): 79, GPU has fallen off the bus.", pci(&m, "3"));
    host.log(&fault);
    node.wait_metrics("the incident", |m| incidents(m, "3") == Some(1.0) && healthy(m, "3") == Some(0.0));
    wait_kept(&node, "history.json", "\"unhealthy\":true");
    wait_kept(&node, "faults.json", "\"fatal\":true");
    assert!(node.terminate().0.success());

    let mut again = host.watched(host.setup(EIGHT).with_state_of(&node));
    assert_eq!(healthy(&again.metrics(), "3"), Some(0.0));
    again.hold("it is the same incident", Duration::from_millis(300), |node| {
        node.metrics().all("gpu_unhealthy_incidents", &[]) == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    });
    host.load_module();
    again.wait_metrics("the load ends it", |m| healthy(m, "3") == Some(1.0));
    wait_kept(&node, "history.json", "\"unhealthy\":false");
    assert!(again.terminate().0.success());

    // A boot has its own faults, and the GPUs their history.
    host.reboot("another-boot");
    let rebooted = host.watched(host.setup(EIGHT).with_state_of(&node));
    assert_eq!(
        (healthy(&rebooted.metrics(), "3"), incidents(&rebooted.metrics(), "3")),
        (Some(1.0), Some(1.0))
    );
    host.log(&fault);
    let m = rebooted.wait_metrics("another incident", |m| incidents(m, "3") == Some(2.0));
    assert_eq!(m.all("gpu_unhealthy_incidents", &[]).iter().sum::<f64>(), 2.0);
}

#[test]
fn a_gpu_that_is_lost_counts_and_one_that_is_missing_not_yet() {
    let mut node = Node::start("tests/scenarios/lost-gpu2.toml");
    node.sim().open_gate("lost").unwrap();
    let m = node.wait_metrics("it is lost", |m| healthy(m, "2") == Some(0.0));
    assert_eq!(incidents(&m, "2"), Some(1.0));
    let gpus = m.all("gpu_healthy", &[]).len();
    wait_kept(&node, "inventory.json", &format!("\"devices\":{gpus}"));
    wait_kept(&node, "history.json", "\"unhealthy\":true");
    assert!(node.terminate().0.success());
    let one = Setup::new("tests/scenarios/still-1xh200.toml").with_state_of(&node).start();
    one.wait_metrics("the others are missing", |m| {
        let missing = (1..gpus).map(|gpu| incidents(m, &gpu.to_string()));
        missing.eq((1..gpus).map(|gpu| Some(f64::from(u8::from(gpu == 2)))))
    });
}

fn highest(m: &Metrics) -> Option<f64> {
    m.value("gpu_devices_highest", &[])
}

/// A simulated machine with eight GPUs on PCI, and boots of its own.
struct Machine {
    files: simgpu::host::Host,
    folder: TempDir,
}

impl Machine {
    fn new() -> Machine {
        let folder = TempDir::new().unwrap();
        Machine { files: simgpu::host::Host::make(folder.path().join("root")).unwrap(), folder }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A boot in which the driver lists so many GPUs.
    fn boot(&self, boot_id: &str, gpus: u32) -> Node {
        self.start(boot_id, gpus, &[])
    }

    fn start(&self, boot_id: &str, gpus: u32, settings: &[(&str, &str)]) -> Node {
        self.files.write("proc/sys/kernel/random/boot_id", boot_id).unwrap();
        let scenario = self.folder.path().join("scenario.toml");
        fs::write(&scenario, format!("[[gpu]]\nmodel = \"H200\"\ncount = {gpus}\n")).unwrap();
        let setup = Setup::new(scenario.to_str().unwrap())
            .with("HOST__ROOT", self.files.root().to_str().unwrap())
            .with("TOPOLOGY__INTERVAL", "1s")
            .with_state_in(self.state());
        let setup = settings.iter().fold(setup, |setup, (key, value)| setup.with(key, value));
        let node = setup.start();
        node.wait_ready();
        node
    }
}

#[test]
fn a_node_that_comes_back_with_seven_gpus_is_short_of_one_until_a_declared_removal() {
    let machine = Machine::new();
    let mut eight = machine.boot("first", 8);
    eight.wait_metrics("eight", |m| highest(m) == Some(8.0));
    wait_kept_in(&machine.state(), &eight, "history.json", "\"devices_highest\":8");
    assert!(eight.terminate().0.success());

    let mut seven = machine.boot("second", 7);
    let m = seven.wait_metrics("seven of eight", |m| {
        m.value("gpu_devices", &[]) == Some(7.0) && on_pci(m) == Some(8.0)
    });
    assert_eq!((highest(&m), m.value("gpu_devices_expected", &[])), (Some(8.0), Some(7.0)));
    fs::remove_file(machine.files.device("0000:00:0d.0")).unwrap();
    let window = |more: &[&str]| {
        let start = ["window", "start", "--for", "1h", "--reason", "board"];
        assert!(seven.command(&[&start, more].concat()).output().unwrap().status.success());
    };
    window(&["--name", "reboot"]);
    seven.wait_metrics("the window, and the board is off PCI", |m| {
        m.value("gpu_window_active", &[("kind", "maintenance")]) == Some(1.0) && on_pci(m) == Some(7.0)
    });
    seven.hold("no removal is declared", Duration::from_millis(300), |n| highest(&n.metrics()) == Some(8.0));
    window(&["--name", "removal", "--expected-gpus", "7"]);
    seven.wait_metrics("one is declared", |m| highest(m) == Some(7.0));
    seven.wait_said(&["INFO", "kind=\"devices_declared\"", "8 to 7 by window removal"]);
    wait_kept_in(&machine.state(), &seven, "history.json", "\"devices_highest\":7");
    assert!(seven.terminate().0.success());

    let mut again = machine.boot("third", 7);
    assert_eq!(highest(&again.metrics()), Some(7.0), "kept");
    assert!(again.terminate().0.success());
    let mut declared = machine.start("third", 7, &[("HEALTH__EXPECTED_GPUS", "6")]);
    assert_eq!(highest(&declared.metrics()), Some(6.0), "as declared");
    assert!(declared.terminate().0.success());
    machine.files.write("etc/machine-id", "ffffffffffffffffffffffffffffffff").unwrap();
    let other = machine.boot("fourth", 4);
    assert_eq!(highest(&other.metrics()), Some(4.0), "the disk is in another machine");
}

#[test]
fn a_history_that_cannot_be_read_at_the_start_is_not_begun_again() {
    let machine = Machine::new();
    let mut eight = machine.boot("first", 8);
    wait_kept_in(&machine.state(), &eight, "history.json", "\"devices_highest\":8");
    assert!(eight.terminate().0.success());
    let away = machine.folder.path().join("away");
    fs::rename(machine.state(), &away).unwrap();
    // Also root cannot read a folder that is a file.
    fs::write(machine.state(), "in the way").unwrap();
    let seven = machine.boot("second", 7);
    seven.wait_metrics("seven are listed", |m| m.value("gpu_devices", &[]) == Some(7.0));
    seven.hold("nothing is said of the past", Duration::from_millis(300), |node| {
        let m = node.metrics();
        highest(&m).is_none() && m.all("gpu_unhealthy_incidents", &[]).is_empty()
    });
    fs::remove_file(machine.state()).unwrap();
    fs::rename(&away, machine.state()).unwrap();
    let m = seven.wait_metrics("it is read", |m| highest(m) == Some(8.0));
    assert_eq!(m.all("gpu_unhealthy_incidents", &[]), [0.0; 7]);
    wait_kept_in(&machine.state(), &seven, "history.json", "\"devices_highest\":8");
}

fn on_pci(m: &Metrics) -> Option<f64> {
    m.value("gpu_host_objects", &[("object", "gpu")])
}

/// A page-level code with its action.
fn switch_fault(m: &Metrics, nvswitch: &str) -> Option<f64> {
    let labels = [("nvswitch", nvswitch), ("sxid", "29999"), ("action", "reset_gpu")];
    m.value("gpu_nvswitch_fault_active", &labels)
}

#[test]
fn a_fault_of_a_switch_lasts_over_restarts_until_the_driver_is_loaded_or_the_node_boots() {
    let mut host = Host::new();
    host.load_module();
    let mut node = host.start(EIGHT);
    let fault = "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 29999, Fatal, Link 25 Never Heard Of";
    assert!(node.metrics().all("gpu_nvswitch_fault_active", &[]).is_empty());
    host.log("nvidia-nvswitch1: SXid (PCI:0000:c6:00.0): 29999, Non-fatal, Link 25 Never Heard Of");
    host.log(fault);
    let m = node.wait_metrics("the fault", |m| switch_fault(m, "3") == Some(1.0));
    assert_eq!(m.all("gpu_nvswitch_fault_active", &[]), [1.0], "a ticket is no state");
    wait_kept(&node, "faults.json", "\"nvswitch\":\"3\"");
    assert!(node.terminate().0.success());

    let mut again = host.watched(host.setup(EIGHT).with_state_of(&node));
    assert!(again.metrics().all("gpu_nvswitch_sxid_errors_total", &[]).is_empty(), "counted before");
    again
        .hold("it lasts", Duration::from_millis(300), |node| switch_fault(&node.metrics(), "3") == Some(1.0));
    host.load_module();
    again.wait_metrics("the load ends it", |m| m.all("gpu_nvswitch_fault_active", &[]).is_empty());
    host.log(fault);
    again.wait_metrics("another", |m| switch_fault(m, "3") == Some(1.0));
    wait_kept(&node, "faults.json", "\"nvswitch\":\"3\"");
    assert!(again.terminate().0.success());

    // Loaded while no exporter ran.
    host.load_module();
    let mut loaded = host.watched(host.setup(EIGHT).with_state_of(&node));
    loaded.hold("it is over", Duration::from_millis(300), |node| {
        node.metrics().all("gpu_nvswitch_fault_active", &[]).is_empty()
    });
    host.log(fault);
    loaded.wait_metrics("the last", |m| switch_fault(m, "3") == Some(1.0));
    wait_kept(&node, "faults.json", "\"nvswitch\":\"3\"");
    assert!(loaded.terminate().0.success());
    host.reboot("another-boot");
    let rebooted = host.watched(host.setup(EIGHT).with_state_of(&node));
    rebooted.hold("a boot ends it", Duration::from_millis(300), |node| {
        node.metrics().all("gpu_nvswitch_fault_active", &[]).is_empty()
    });
}

/// Runs a command of the program on the node: whether it went well, and what it said.
fn said(node: &Node, args: &[&str]) -> (bool, String) {
    let out = node.command(args).output().unwrap();
    (out.status.success(), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
}

#[test]
fn a_fault_of_a_switch_that_was_reset_as_the_runbook_says_ends() {
    let mut host = Host::new();
    host.load_module();
    let mut node = host.start(EIGHT);
    let clear = ["nvswitch", "clear", "--reason", "reset with all GPUs, case 4711"];
    let (well, text) = said(&node, &clear);
    assert!(!well && text.contains("no NVSwitch has a known fault to clear"), "{text}");
    let fault = "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 29999, Fatal, Link 25 Never Heard Of";
    host.log(fault);
    host.log(&fault.replace("nvswitch3", "nvswitch1"));
    node.wait_metrics("the faults", |m| m.all("gpu_nvswitch_fault_active", &[]) == [1.0, 1.0]);
    for order in ["release", "resume"] {
        assert!(said(&node, &["driver", order]).0, "{order}");
    }
    node.wait_ready();
    node.hold("the switches may not have been reset", Duration::from_millis(300), |node| {
        node.metrics().all("gpu_nvswitch_fault_active", &[]) == [1.0, 1.0]
    });
    let (well, text) = said(&node, &clear);
    assert!(well, "{text}");
    assert!(node.metrics().all("gpu_nvswitch_fault_active", &[]).is_empty(), "when the command has ended");
    node.wait_said(&["uid=", "nvswitch clear reset with all GPUs"]);
    node.wait_said(&["INFO", "kind=\"switches_cleared\"", "case 4711"]);
    node.wait_for("it is kept", |node| {
        fs::read_to_string(node.state_dir().join("faults.json"))
            .is_ok_and(|kept| !kept.contains("nvswitch\":\"3"))
    });
    host.log(fault);
    node.wait_metrics("another one", |m| switch_fault(m, "3") == Some(1.0));
    assert!(node.terminate().0.success());
}

#[test]
fn a_ticket_logged_while_the_exporter_was_down_counts_once() {
    let mut host = Host::new();
    host.load_module();
    host.log("usb 1-1: new high-speed USB device number 2 using xhci_hcd");
    let mut node = host.start(EIGHT);
    let at = pci(&node.metrics(), "5");
    let counted =
        |m: &Metrics| m.value("gpu_xid_errors_total", &[("gpu", "5"), ("xid", "63"), ("severity", "ticket")]);
    assert_eq!(counted(&node.metrics()), None);
    assert!(node.terminate().0.success());
    host.log(&format!(
        "NVRM: Xid (PCI:{at}): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked"
    ));
    let mut again = host.watched(host.setup(EIGHT).with_state_of(&node));
    again.wait_metrics("it counts", |m| counted(m) == Some(1.0));
    again.hold("once", Duration::from_millis(300), |node| counted(&node.metrics()) == Some(1.0));
    assert!(again.terminate().0.success());
    let third = host.watched(host.setup(EIGHT).with_state_of(&node));
    third.hold("and not again", Duration::from_millis(300), |node| counted(&node.metrics()).is_none());
    let listed: Vec<_> = events(&third).iter().map(|e| (e["code"].as_u64(), e["old"].as_bool())).collect();
    assert_eq!(listed, [(Some(63), Some(false))], "as the daemon listed it that counted it");
}

#[test]
fn a_ticket_of_another_boot_is_old() {
    let mut host = Host::new();
    let mut node = host.start(EIGHT);
    let at = pci(&node.metrics(), "5");
    host.log(&format!("NVRM: Xid (PCI:{at}): 63, pid=1, name=a, b"));
    node.wait_metrics("it counts", |m| m.value("gpu_xid_errors_total", &[("xid", "63")]) == Some(1.0));
    assert!(node.terminate().0.success());
    host.reboot("another-boot");
    for _ in 0..3 {
        host.log(&format!("NVRM: Xid (PCI:{at}): 63, pid=1, name=a, b"));
    }
    let rebooted = host.watched(host.setup(EIGHT).with_state_of(&node));
    rebooted.hold("the exporter did not run then", Duration::from_millis(300), |node| {
        node.metrics().all("gpu_xid_errors_total", &[("xid", "63")]).is_empty()
    });
    // The first daemon's own is kept.
    let listed = events(&rebooted);
    let (kept, read) = listed.split_first().unwrap();
    assert!(kept["old"] == false && read.iter().all(|event| event["old"] == true), "{listed:?}");
}

//! Faults in the kernel log: counted once, listed, kept over a restart; and what makes a GPU unhealthy.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::node::{Metrics, Node, PATIENCE, Setup};

/// A folder that acts as the host, with a kernel log that tests write.
pub(super) struct Host {
    root: TempDir,
    sequence: u64,
}

impl Host {
    pub(super) fn new() -> Host {
        let root = TempDir::new().unwrap();
        fs::create_dir_all(root.path().join("proc/sys/kernel/random")).unwrap();
        fs::create_dir_all(root.path().join("dev")).unwrap();
        fs::write(root.path().join("proc/sys/kernel/random/boot_id"), "one-boot\n").unwrap();
        let host = Host { root, sequence: 0 };
        host.write(b"");
        host
    }

    /// The driver is loaded (again).
    pub(super) fn load_module(&self) {
        let folder = self.root.path().join("sys/module/nvidia");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("initstate"), "live\n").unwrap();
    }

    /// The machine boots: a kernel log that begins, and a module that is loaded.
    pub(super) fn reboot(&mut self, boot_id: &str) {
        fs::write(self.root.path().join("proc/sys/kernel/random/boot_id"), boot_id).unwrap();
        fs::write(self.kmsg(), "").unwrap();
        self.sequence = 0;
        self.load_module();
    }

    pub(super) fn kmsg(&self) -> PathBuf {
        self.root.path().join("dev/kmsg")
    }

    fn write(&self, bytes: &[u8]) {
        OpenOptions::new().create(true).append(true).open(self.kmsg()).unwrap().write_all(bytes).unwrap();
    }

    /// One record of the kernel, now.
    fn record(&mut self, text: &str) -> String {
        self.sequence += 1;
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        let micros = now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000;
        format!("4,{},{micros},-;{text}\n", self.sequence)
    }

    pub(super) fn log(&mut self, text: &str) {
        let record = self.record(text);
        self.write(record.as_bytes());
    }

    pub(super) fn setup(&self, scenario: &str) -> Setup {
        Setup::new(scenario)
            .with("HOST__ROOT", self.root.path().to_str().unwrap())
            .with("EVENTS__KERNEL_LOG", "true")
    }

    /// A daemon that has read what is in the log.
    pub(super) fn start(&self, scenario: &str) -> Node {
        self.watched(self.setup(scenario))
    }

    pub(super) fn watched(&self, setup: Setup) -> Node {
        let node = setup.start();
        node.wait_ready();
        node.wait_metrics("the kernel log is read", |m| {
            m.value("gpu_exporter_collector_up", &[("collector", "kmsg")]) == Some(1.0)
        });
        node
    }
}

pub(super) const EIGHT: &str = "tests/scenarios/still-8xh200.toml";

/// The PCI address of a GPU as the kernel log has it.
pub(super) fn pci(m: &Metrics, gpu: &str) -> String {
    let info = m.0.iter().find(|(name, labels, _)| name == "gpu_info" && labels["gpu"] == gpu);
    info.unwrap().1["pci_address"].rsplit_once('.').unwrap().0.to_owned()
}

pub(super) fn events(node: &Node) -> Vec<serde_json::Value> {
    let (status, body) = node.get("/api/v1/events");
    assert_eq!(status, 200, "{body}");
    let value: serde_json::Value = serde_json::from_str(&body).unwrap();
    value["events"].as_array().unwrap().clone()
}

fn errors(m: &Metrics, gpu: &str, xid: &str) -> Option<f64> {
    m.value("gpu_xid_errors_total", &[("gpu", gpu), ("xid", xid)])
}

#[test]
fn a_fault_in_the_kernel_log_is_counted_once_and_reported_in_full() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let m = node.metrics();
    assert_eq!((errors(&m, "3", "79"), errors(&m, "3", "31")), (Some(0.0), None), "born at 0 if it pages");
    assert_eq!(m.value("gpu_healthy", &[("gpu", "3")]), Some(1.0));
    let at = pci(&m, "3");
    host.log(&format!("NVRM: Xid (PCI:{at}): 79, pid=522, name=my app, GPU has fallen off the bus."));
    let m = node.wait_metrics("the fault", |m| errors(m, "3", "79") == Some(1.0));
    assert_eq!(m.value("gpu_xid_faults_total", &[("gpu", "3"), ("action", "reboot_node")]), Some(1.0));
    assert_eq!(m.value("gpu_healthy", &[("gpu", "3")]), Some(0.0));
    assert_eq!(m.value("gpu_unhealthy_reason", &[("gpu", "3"), ("reason", "fatal_xid")]), Some(1.0));
    assert_eq!(m.all("gpu_healthy", &[]).iter().sum::<f64>(), 7.0);
    assert!(m.value("gpu_xid_last_event_timestamp_seconds", &[("gpu", "3")]) > Some(1.7e9));
    let all = events(&node);
    let [event] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((&event["gpu"], &event["code"], &event["pid"]), (&3.into(), &79.into(), &522.into()));
    assert_eq!((&event["process"], &event["severity"]), (&"my app".into(), &"page".into()));
    assert!(event["text"].as_str().unwrap().ends_with("fallen off the bus."));
    node.wait_said(&["ERROR", "xid=79", "gpu=3", "pid=522", "action=\"reboot_node\"", "times=1"]);
    node.hold("it counts once", Duration::from_millis(500), |n| errors(&n.metrics(), "3", "79") == Some(1.0));
}

#[test]
fn unknown_codes_and_unknown_gpus_are_not_dropped() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let at = pci(&node.metrics(), "0");
    host.log(&format!("NVRM: Xid (PCI:{at}): 4711, what is this"));
    host.log("NVRM: Xid (PCI:00ff:1e:00): 79, GPU has fallen off the bus.");
    host.log("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 25 LTSSM Fault Up");
    let m = node.wait_metrics("all three", |m| {
        m.value("gpu_nvswitch_sxid_errors_total", &[("nvswitch", "3"), ("sxid", "20034")]) == Some(1.0)
    });
    let labels = [("xid", "4711"), ("severity", "ticket"), ("action", "contact_support")];
    assert_eq!(m.value("gpu_xid_errors_total", &labels), Some(1.0));
    assert_eq!(m.value("gpu_xid_unknown_gpu_total", &[("xid", "79")]), Some(1.0));
    assert_eq!(events(&node).len(), 3);
}

#[test]
fn a_burst_of_ten_thousand_lines_is_counted_to_the_last_one() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let at = pci(&node.metrics(), "1");
    let mut burst = String::new();
    for n in 0..10_000 {
        let pid = 1 + n % 3;
        burst +=
            &host.record(&format!("NVRM: Xid (PCI:{at}): 13, pid={pid}, name=x, Graphics SM Warp Exception"));
    }
    let begun = Instant::now();
    host.write(burst.as_bytes());
    let m = node.wait_metrics("all", |m| errors(m, "1", "13") == Some(10_000.0));
    println!("10,000 lines were counted after {:?}", begun.elapsed());
    assert_eq!(m.value("gpu_exporter_facts_lost_total", &[("source", "kmsg")]), Some(0.0));
    let all = events(&node);
    let times: Vec<u64> = all.iter().map(|event| event["repeats"].as_u64().unwrap() + 1).collect();
    assert_eq!((times.len(), times.iter().sum::<u64>()), (3, 10_000), "folded by process");
}

#[test]
fn what_was_counted_before_a_restart_is_listed_and_not_counted_again() {
    let mut host = Host::new();
    host.write(b"4,0,1,-;NVRM: Xid (PCI:0000:00:00): 43, from before the first daemon\n");
    let mut node = host.start(EIGHT);
    let at = pci(&node.metrics(), "2");
    host.log(&format!("NVRM: Xid (PCI:{at}): 119, pid=1, name=a, Timeout"));
    node.wait_metrics("the fault", |m| errors(m, "2", "119") == Some(1.0));
    assert!(node.terminate().0.success());
    host.log(&format!("NVRM: Xid (PCI:{at}): 48, pid=1, name=a, while the daemon was down"));
    let again = host.watched(host.setup(EIGHT).with_state_of(&node));
    let m = again.wait_metrics("what happened meanwhile", |m| errors(m, "2", "48") == Some(1.0));
    assert_eq!(errors(&m, "2", "119"), Some(0.0));
    let old: Vec<(u64, bool)> = events(&again)
        .iter()
        .map(|event| (event["code"].as_u64().unwrap(), event["old"].as_bool().unwrap()))
        .collect();
    // What the first daemon counted is listed as it was, and its line of the kernel log adds nothing.
    assert_eq!(old, [(43, true), (119, false), (48, false)]);
}

#[test]
fn a_fatal_fault_outlasts_a_restart_but_no_load_of_the_driver() {
    let mut host = Host::new();
    host.load_module();
    let mut node = host.start(EIGHT);
    let fault = format!("NVRM: Xid (PCI:{}): 79, GPU has fallen off the bus.", pci(&node.metrics(), "3"));
    host.log(&fault);
    let file = node.state_dir().join("faults.json");
    node.wait_for("it is kept", |_| {
        fs::read_to_string(&file).is_ok_and(|text| text.contains("\"fatal\":true"))
    });
    assert!(node.terminate().0.success());
    let kept = fs::read(&file).unwrap();
    let healthy = |m: &Metrics| m.value("gpu_healthy", &[("gpu", "3")]);

    let mut again = host.watched(host.setup(EIGHT).with_state_of(&node));
    let m = again.metrics();
    assert_eq!(m.value("gpu_unhealthy_reason", &[("gpu", "3"), ("reason", "fatal_xid")]), Some(1.0));
    assert_eq!(m.all("gpu_healthy", &[]).iter().sum::<f64>(), 7.0);
    again.hold("it stays so, and counts no more", Duration::from_millis(500), |node| {
        let m = node.metrics();
        healthy(&m) == Some(0.0) && errors(&m, "3", "79") == Some(0.0)
    });
    assert!(again.terminate().0.success());

    fs::write(&file, "{").unwrap();
    let mut garbage = host.watched(host.setup(EIGHT).with_state_of(&node));
    assert_eq!(healthy(&garbage.metrics()), Some(1.0));
    assert_eq!(fs::read_to_string(file.with_extension("corrupt")).unwrap(), "{");
    assert!(garbage.terminate().0.success());

    fs::write(&file, kept).unwrap();
    host.load_module();
    let loaded = host.watched(host.setup(EIGHT).with_state_of(&node));
    loaded.hold("the load ended it", Duration::from_millis(500), |n| healthy(&n.metrics()) == Some(1.0));
    host.log(&fault);
    loaded.wait_metrics("another fault", |m| healthy(m) == Some(0.0));
    host.load_module();
    loaded.wait_metrics("another load", |m| healthy(m) == Some(1.0));
    loaded.wait_for("nothing is kept", |_| {
        fs::read_to_string(&file).is_ok_and(|text| text.contains("\"gpus\":[]"))
    });
}

#[test]
fn garbage_in_the_log_is_no_fault_and_hides_none() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let at = pci(&node.metrics(), "0");
    let mut garbage = vec![0xff_u8; 10_240];
    garbage.extend_from_slice(b"\n\0\0\n;;;;\n4,9999999999999999999999,1,-;x\n");
    garbage.extend_from_slice(host.record(&format!("NVRM: Xid (PCI:{at}): 7")).as_bytes());
    garbage.extend_from_slice(host.record(&format!("NVRM: Xid (PCI:{at}): NVRM: Xid (PC")).as_bytes());
    garbage.extend_from_slice(host.record(&"NVRM: ".repeat(2000)).as_bytes());
    host.write(&garbage);
    host.log(&format!("NVRM: Xid (PCI:{at}): 31, Ch 00000003"));
    let m = node.wait_metrics("the one fault", |m| errors(m, "0", "31") == Some(1.0));
    assert_eq!(m.all("gpu_xid_faults_total", &[]).iter().sum::<f64>(), 1.0);
    assert_eq!(events(&node).len(), 1);
}

#[test]
fn a_node_without_a_kernel_log_is_ready_and_says_so() {
    let host = Host::new();
    fs::remove_file(host.kmsg()).unwrap();
    let node = host.setup("tests/scenarios/still-1xh200.toml").start();
    node.wait_ready();
    assert!(node.get("/readyz").1.contains("there is no /dev/kmsg"), "{}", node.get("/readyz").1);
    assert_eq!(node.metrics().value("gpu_exporter_collector_up", &[("collector", "kmsg")]), Some(0.0));
}

#[test]
fn a_gpu_that_is_missing_after_a_restart_is_named() {
    let host = Host::new();
    let mut node = host.start(EIGHT);
    let file = node.state_dir().join("inventory.json");
    node.wait_for("the inventory", |_| {
        fs::read_to_string(&file).is_ok_and(|text| text.matches("\"uuid\"").count() == 8)
    });
    assert_eq!(node.metrics().value("gpu_devices_missing", &[]), Some(0.0));
    assert!(node.terminate().0.success());
    let other = host.watched(host.setup("tests/scenarios/still-1xh200.toml").with_state_of(&node));
    let m = other.wait_metrics("they are missing", |m| m.value("gpu_devices_missing", &[]) == Some(7.0));
    let missing = m.all("gpu_unhealthy_reason", &[("reason", "missing")]);
    assert_eq!(missing.iter().sum::<f64>() as usize, missing.len() - 1, "all but the one that is there");
    assert!(missing.len() >= 8);
    assert_eq!(m.value("gpu_up", &[("gpu", "7")]), Some(0.0));
    let page = other.get("/").1;
    let json: serde_json::Value = serde_json::from_str(&other.get("/api/v1/snapshot").1).unwrap();
    let missing = json["missing_gpus"].as_array().unwrap();
    assert_eq!((missing.len(), page.matches("<article").count()), (7, 8));
    for gpu in missing {
        for identity in ["uuid", "pci_address"] {
            let text = gpu[identity].as_str().unwrap();
            assert!(!text.is_empty() && page.contains(text), "{gpu} in {page}");
        }
        let age =
            json["taken_unix_seconds"].as_f64().unwrap() - gpu["last_seen_unix_seconds"].as_f64().unwrap();
        assert!((0.0..60.0).contains(&age), "saved at the end of the daemon, {age} s");
    }
}

#[test]
fn a_lost_gpu_is_unhealthy_and_its_neighbours_are_not() {
    let node = Node::start("tests/scenarios/lost-gpu2.toml");
    node.sim().open_gate("lost").unwrap();
    let m = node.wait_metrics("it is lost", |m| m.value("gpu_healthy", &[("gpu", "2")]) == Some(0.0));
    assert_eq!(m.value("gpu_unhealthy_reason", &[("gpu", "2"), ("reason", "lost")]), Some(1.0));
    assert_eq!(m.all("gpu_healthy", &[]).iter().filter(|healthy| **healthy == 0.0).count(), 1);
}

#[test]
fn a_stream_of_events_does_not_hold_up_the_end() {
    let mut host = Host::new();
    let mut node = host.start("tests/scenarios/still-1xh200.toml");
    let mut stream = TcpStream::connect(node.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n").unwrap();
    let at = pci(&node.metrics(), "0");
    host.log(&format!("NVRM: Xid (PCI:{at}): 31, pid=5, name=x, y"));
    let (mut got, mut piece) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&got).contains("\"code\":31") {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&piece[..length]);
    }
    let (status, took) = node.terminate();
    assert!(status.success() && took < Duration::from_secs(5), "{status} {took:?}");
}

#[test]
fn a_fault_that_both_sources_tell_of_counts_once() {
    let host = Host::new();
    let setup = host.setup("tests/scenarios/xid-burst.toml").with_kernel_log(host.kmsg());
    let node = setup.start();
    node.wait_ready();
    let m = node.wait_metrics("the last fault", |m| errors(m, "2", "199") == Some(1.0));
    assert_eq!((errors(&m, "0", "31"), errors(&m, "1", "79")), (Some(10.0), Some(1.0)));
    assert_eq!(m.value("gpu_driver_events_total", &[("gpu", "0"), ("event", "xid")]), Some(10.0));
    let all = events(&node);
    let first = &all[0];
    assert_eq!((&first["repeats"], &first["pid"]), (&9.into(), &522.into()), "{all:#?}");
    assert_eq!(first["sources"], serde_json::json!(["nvml", "kmsg"]));
    // GPU 1 falls off the bus, which is an event of its own.
    let faults = all.iter().filter(|event| event["kind"] == "xid").count();
    assert_eq!(faults, 3, "{all:#?}");
}

#[test]
fn a_gpu_that_asks_for_a_reset_is_unhealthy_until_it_had_one() {
    let node = Node::start("tests/scenarios/recovery.toml");
    assert_eq!(node.metrics().all("gpu_healthy", &[]), [1.0, 1.0, 1.0]);
    node.sim().open_gate("sick").unwrap();
    // The event of the poison comes before the row of the action.
    let m = node.wait_metrics("two are sick", |m| {
        m.all("gpu_unhealthy_reason", &[("reason", "recovery_action")]) == [1.0, 1.0, 0.0]
    });
    assert_eq!(m.all("gpu_healthy", &[]), [0.0, 0.0, 1.0]);
    node.sim().open_gate("reset").unwrap();
    node.wait_metrics("one is well again", |m| m.all("gpu_healthy", &[]) == [1.0, 0.0, 1.0]);
    // The driver's five, and the reset itself.
    node.wait_for("the events", |node| events(node).len() == 6);
    let listed = events(&node);
    let mut kinds: Vec<&str> = listed.iter().filter_map(|e| e["mnemonic"].as_str()).collect();
    kinds.retain(|mnemonic| !mnemonic.is_empty());
    kinds.sort_unstable();
    assert_eq!(kinds, ["drain_and_reset", "dram_retirement", "fatal_poison", "gpu_reset", "none"]);
    assert_eq!(listed.iter().filter(|e| e["kind"] == "gpu_reset").count(), 1);
}

#[test]
fn a_lost_gpu_does_not_keep_the_events_of_the_others_away() {
    let node = Node::start("tests/scenarios/lost-then-fault.toml");
    let registered = |m: &Metrics| m.value("gpu_driver_events_registered", &[("gpu", "0")]) == Some(1.0);
    node.wait_metrics("events are asked for", registered);
    node.sim().open_gate("lose").unwrap();
    node.wait_metrics("GPU 1 is lost", |m| m.value("gpu_up", &[("gpu", "1")]) == Some(0.0));
    node.wait_said(&["register in a new set"]);
    node.sim().open_gate("fault").unwrap();
    node.wait_metrics("a fault of GPU 0", |m| {
        m.value("gpu_xid_errors_total", &[("gpu", "0"), ("xid", "43")]) >= Some(1.0)
    });
}

#[test]
fn what_a_fault_changes_is_read_as_soon_as_it_is_reported() {
    // So that no visit of its own time comes while the test waits.
    let slow = ["SAMPLER__SLOW_INTERVAL", "SAMPLER__RARE_INTERVAL", "SAMPLER__NVLINK_INTERVAL"];
    let setup = Setup::new("tests/scenarios/fault-reported.toml");
    let node = slow.into_iter().fold(setup, |setup, interval| setup.with(interval, "10m")).start();
    node.wait_ready();
    let gpu = [("gpu", "0")];
    let m = node.wait_metrics("events are asked for", |m| {
        m.value("gpu_driver_events_registered", &gpu) == Some(1.0)
            && m.value("gpu_row_remap_failure", &gpu) == Some(0.0)
    });
    assert_eq!(m.value("gpu_nvlink_links_up", &gpu), Some(18.0));
    node.sim().open_gate("sick").unwrap();
    let m =
        node.wait_metrics("what cannot be replaced", |m| m.value("gpu_row_remap_failure", &gpu) == Some(1.0));
    assert_eq!(m.value("gpu_nvlink_links_up", &gpu), Some(17.0));
    assert_eq!(m.value("gpu_row_remap_failure", &[("gpu", "1")]), Some(0.0));
}

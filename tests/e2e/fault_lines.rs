//! What the lines of the kernel log say beyond the code: sub-code, link, unit, recovery action.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::Value;

use super::faults::{EIGHT, Host, events, pci};
use super::machine::Machine;
use super::node::{Metrics, Node};

/// The events once there are so many.
fn listed(node: &Node, count: usize) -> Vec<Value> {
    node.wait_for("the events", |node| events(node).len() >= count);
    let all = events(node);
    assert_eq!(all.len(), count, "{all:#?}");
    all
}

fn verdict(event: &Value) -> (&str, &str) {
    (event["severity"].as_str().unwrap(), event["action"].as_str().unwrap())
}

fn counted(m: &Metrics, metric: &str, xid: &str, verdict: (&str, &str)) -> Option<f64> {
    m.value(metric, &[("xid", xid), ("severity", verdict.0), ("action", verdict.1)])
}

#[test]
fn an_nvlink_fault_is_judged_by_its_sub_code_in_event_and_metric() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let m = node.metrics();
    let zeros = "0x00000000 0x00000000 0x00000000 0x00000000";
    let lines = [
        ("145, RLW_REMAP Nonfatal XC0 i0 Link 04 (0x00000004 0x00000100", ("info", "ignore")),
        ("145, RLW_REMAP Nonfatal XC0 i0 Link 05 (0x00000082 0x00000001", ("ticket", "restart_app")),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000", ("page", "reset_gpu")),
        ("147, TREX Nonfatal XC0 i0 Link -1 (0x0000000e 0x00000400", ("ticket", "contact_support")),
    ];
    for (gpu, (line, _)) in lines.iter().enumerate() {
        host.log(&format!("NVRM: Xid (PCI:{}): {line} {zeros})", pci(&m, &gpu.to_string())));
    }
    host.log(&format!("NVRM: Xid (PCI:00ff:1e:00): {} {zeros})", lines[2].0));
    let all = listed(&node, 5);
    let verdicts: Vec<_> = all.iter().map(verdict).collect();
    let expected: Vec<_> = lines.iter().map(|(_, verdict)| *verdict).chain([("page", "reset_gpu")]).collect();
    assert_eq!(verdicts, expected);
    let m = node.wait_metrics("the last", |m| {
        counted(m, "gpu_xid_unknown_gpu_total", "149", ("page", "reset_gpu")) == Some(1.0)
    });
    for (event, (_, verdict)) in all.iter().zip(lines) {
        let xid = event["code"].to_string();
        assert_eq!(counted(&m, "gpu_xid_errors_total", &xid, verdict), Some(1.0), "{event:#}");
    }
    assert_eq!(m.value("gpu_healthy", &[("gpu", "2")]), Some(0.0));
    assert_eq!(m.all("gpu_healthy", &[]).iter().sum::<f64>(), 7.0);
    let fields = |event: &Value| {
        ["unit", "link", "fatal", "intr_info", "error_status"].map(|field| event[field].to_string())
    };
    assert_eq!(fields(&all[0]), ["\"RLW_REMAP\"", "4", "false", "\"0x00000004\"", "\"0x00000100\""]);
    assert_eq!(fields(&all[2]), ["\"NETIR_LINK_EVT\"", "9", "true", "\"0x025525c6\"", "\"0x00000000\""]);
    assert_eq!(fields(&all[3])[1], "null");
    let meaning = |at: usize| all[at]["meaning"].as_str().unwrap();
    assert!(meaning(2).contains("other end of the link"), "{}", meaning(2));
    assert!(meaning(3).contains("sub-code"), "{}", meaning(3));
}

#[test]
fn metric_and_event_agree_though_the_driver_reports_without_a_sub_code() {
    let host = Host::new();
    let node = host.setup("tests/scenarios/nvlink5.toml").with_kernel_log(host.kmsg()).start();
    node.wait_ready();
    node.wait_metrics("events are asked for", |m| {
        m.all("gpu_driver_events_registered", &[]) == [1.0, 1.0, 1.0]
            && m.value("gpu_exporter_collector_up", &[("collector", "kmsg")]) == Some(1.0)
    });
    node.sim().open_gate("faults").unwrap();
    let m = node.wait_metrics("all three", |m| {
        ["145", "149"]
            .iter()
            .map(|xid| m.all("gpu_xid_errors_total", &[("xid", xid)]).iter().sum::<f64>())
            .sum::<f64>()
            == 3.0
    });
    let mut all = listed(&node, 3);
    all.sort_by_key(|event| event["gpu"].as_u64());
    let verdicts: Vec<_> = all.iter().map(verdict).collect();
    assert_eq!(verdicts, [("info", "ignore"), ("page", "reset_gpu"), ("ticket", "contact_support")]);
    assert_eq!(all[1]["sources"], serde_json::json!(["nvml", "kmsg"]));
    for event in &all {
        let xid = event["code"].to_string();
        let labels = [("gpu", &*event["gpu"].to_string()), ("xid", &xid), ("severity", verdict(event).0)]
            .map(|(name, value)| (name, value.to_owned()));
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(m.value("gpu_xid_errors_total", &labels), Some(1.0), "{event:#}");
    }
    assert_eq!(m.all("gpu_healthy", &[]), [1.0, 0.0, 1.0]);
}

#[test]
fn a_folded_event_keeps_the_line_that_is_most_severe() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let at = pci(&node.metrics(), "1");
    let line = |severity: &str, intr_info: &str, status: &str| {
        format!(
            "NVRM: Xid (PCI:{at}): 144, SAW_MVB {severity} XC0 i0 Link 03 ({intr_info} {status} 0x0 0x0 0x0 0x0)"
        )
    };
    for (severity, status) in
        [("Nonfatal", "0x00000004"), ("Fatal", "0x00000010"), ("Nonfatal", "0x00000020")]
    {
        host.log(&line(severity, "0x00000001", status));
    }
    node.wait_for("all three", |node| events(node).iter().any(|event| event["repeats"] == 2));
    let all = listed(&node, 1);
    assert_eq!(verdict(&all[0]), ("page", "reset_gpu"));
    assert_eq!(all[0]["error_status"], "0x00000010");
    assert!(all[0]["text"].as_str().unwrap().contains("SAW_MVB Fatal"), "{:#}", all[0]);
}

#[test]
fn xid_154_carries_the_action_that_its_text_names() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let m = node.metrics();
    let changes = [
        ("0x0 (None) to 0x1 (GPU Reset Required)", ("page", "reset_gpu")),
        ("0x0 (None) to 0x2 (Node Reboot Required)", ("page", "reboot_node")),
        ("0x0 (None) to 0x3 (Drain P2P)", ("ticket", "restart_app")),
        ("0x0 (None) to 0x4 (Drain and Reset)", ("ticket", "reset_gpu")),
        ("0x1 (GPU Reset Required) to 0x0 (None)", ("info", "ignore")),
        ("0x0 (None) to 0x9 (Never Heard Of)", ("ticket", "contact_support")),
    ];
    for (gpu, (change, _)) in changes.iter().enumerate() {
        let at = pci(&m, &gpu.to_string());
        host.log(&format!("NVRM: Xid (PCI:{at}): 154, GPU recovery action changed from {change}"));
    }
    let mut all = listed(&node, changes.len() + 1);
    let reset = all.remove(5);
    assert_eq!((reset["kind"].as_str(), reset["gpu"].as_u64()), (Some("gpu_reset"), Some(4)));
    assert_eq!(all.iter().map(verdict).collect::<Vec<_>>(), changes.map(|(_, verdict)| verdict));
    let m = node.wait_metrics("all are counted", |m| {
        m.all("gpu_xid_errors_total", &[("xid", "154")]).iter().sum::<f64>() == 6.0
    });
    assert_eq!(counted(&m, "gpu_xid_errors_total", "154", ("page", "reboot_node")), Some(1.0));
    assert_eq!(m.all("gpu_healthy", &[])[..6], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn a_gpu_that_fails_without_an_xid_is_an_event() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let m = node.metrics();
    host.log(&format!("NVRM: GPU {}.0: GPU has fallen off the bus.", pci(&m, "0")));
    host.log(
        "NVRM: The NVIDIA GPU 00ff:1e:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\\x0aNVRM: \
         fallen off the bus and is not responding to commands.",
    );
    host.log(&format!("NVRM: GPU {}.0: RmInitAdapter failed! (0x62:0x40:2393)", pci(&m, "1")));
    // The driver repeats what the code has said.
    let third = pci(&m, "2");
    host.log(&format!("NVRM: Xid (PCI:{third}): 79, GPU has fallen off the bus."));
    host.log(&format!("NVRM: GPU {third}.0: GPU has fallen off the bus."));
    host.log(&format!("NVRM: Xid (PCI:{third}): 43, pid=5, name=x, the last"));
    let all = listed(&node, 5);
    let kinds: Vec<_> = all.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["fallen_off_bus", "fallen_off_bus", "init_failed", "xid", "xid"]);
    assert_eq!(
        all.iter().map(|event| event["gpu"].clone()).collect::<Vec<_>>()[..3],
        [0.into(), Value::Null, 1.into()]
    );
    assert_eq!(verdict(&all[0]), ("page", "reboot_node"));
    assert_eq!(verdict(&all[2]), ("ticket", "reset_gpu"));
    assert_eq!(all[1]["pci"], "00ff:1e:00");
    node.wait_metrics("those off the bus are of no use", |m| {
        m.all("gpu_healthy", &[])[..4] == [0.0, 1.0, 0.0, 1.0]
    });
}

#[test]
fn the_same_unit_again_is_distinguished_from_another_one() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let m = node.metrics();
    let mut fault = |gpu: &str, pid: u32, (gpc, tpc, sm): (u32, u32, u32)| {
        let at = pci(&m, gpu);
        host.log(&format!(
            "NVRM: Xid (PCI:{at}): 13, pid={pid}, name=app, Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM {sm}): \
             Illegal Instruction Encoding"
        ));
    };
    fault("0", 1, (2, 7, 0));
    fault("0", 2, (2, 7, 1));
    fault("1", 1, (2, 7, 0));
    fault("1", 2, (3, 1, 0));
    for (pid, tpc) in [(1, 4), (2, 4), (2, 5)] {
        fault("3", pid, (0, tpc, 0));
    }
    host.log(&format!(
        "NVRM: Xid (PCI:{}): 31, pid=9, name=app, Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC2 \
         GPCCLIENT_T1_7 faulted @ 0x2b57_b3000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
        pci(&m, "2")
    ));
    let all = listed(&node, 7);
    let known: Vec<_> = all.iter().map(|e| (e["unit"].as_str().unwrap(), e["same_unit"].as_bool())).collect();
    assert_eq!(
        known,
        [
            ("GPC 2 TPC 7 SM 0", None),
            ("GPC 2 TPC 7 SM 1", Some(true)),
            ("GPC 2 TPC 7 SM 0", None),
            ("GPC 3 TPC 1 SM 0", Some(false)),
            ("GPC 0 TPC 4 SM 0", None),
            ("GPC 0 TPC 4 SM 0", None),
            ("GRAPHICS GPC2 GPCCLIENT_T1_7", None),
        ]
    );
    assert!(all.iter().all(|event| event["app_can_cause"] == "yes"));
}

#[test]
fn a_fatal_line_of_an_unknown_sxid_counts_as_fatal() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    host.log("nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 29999, Fatal, Link 25 Never Heard Of");
    host.log("nvidia-nvswitch1: SXid (PCI:0000:c6:00.0): 29999, Non-fatal, Link 25 Never Heard Of");
    let all = listed(&node, 2);
    let verdicts: Vec<_> = all.iter().map(verdict).collect();
    assert_eq!(verdicts, [("page", "reset_gpu"), ("ticket", "contact_support")]);
    for (switch, (severity, action)) in ["0", "1"].iter().zip(verdicts) {
        let labels = [("nvswitch", *switch), ("severity", severity), ("action", action)];
        let counted = |m: &Metrics| m.value("gpu_nvswitch_sxid_errors_total", &labels) == Some(1.0);
        node.wait_metrics("it is counted so", counted);
    }
}

#[test]
fn codes_to_ignore_ask_for_nothing_and_old_ones_have_a_meaning() {
    let mut host = Host::new();
    let node = host.start(EIGHT);
    let at = pci(&node.metrics(), "0");
    for code in [14, 108, 61, 122] {
        host.log(&format!("NVRM: Xid (PCI:{at}): {code}, Ch 00000001"));
    }
    let all = listed(&node, 4);
    let verdicts: Vec<_> = all.iter().map(verdict).collect();
    let support = ("ticket", "contact_support");
    assert_eq!(verdicts, [("info", "ignore"), ("info", "ignore"), support, support]);
    assert!(all.iter().all(|event| event["mnemonic"].is_string()), "{all:#?}");
}

#[test]
fn a_crafted_group_charges_no_other_owner_with_an_oom_kill() {
    let mut machine = Machine::new();
    machine.process(5_000_001, "0::/system.slice/victim.service\n");
    machine.write("sys/fs/cgroup/system.slice/victim.service/memory.events", "oom 0\noom_kill 0\n");
    machine.write("dev/kmsg", "");
    machine.gpu([5_000_001]);
    let node = machine.start_with(&[("EVENTS__KERNEL_LOG", "true")]);
    let kills = |m: &Metrics| m.all("gpu_owner_host_oom_kills_total", &[]);
    node.wait_metrics("the owner is known", |m| {
        kills(m) == [0.0] && m.value("gpu_exporter_collector_up", &[("collector", "kmsg")]) == Some(1.0)
    });
    let crafted = "/evil,task_memcg=/system.slice/victim.service,task=x,pid=1,uid=0";
    let honest = "/system.slice/victim.service";
    let mut log = OpenOptions::new().append(true).open(machine.root().join("dev/kmsg")).unwrap();
    for (number, group) in [crafted, honest].into_iter().enumerate() {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        let micros = now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000;
        let line = format!("oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg={group},task_memcg=/evil");
        let line = if group == honest { line.replace("/evil", honest) } else { line };
        writeln!(log, "6,{},{micros},-;{line},task=app,pid=99,uid=0", number + 1).unwrap();
    }
    let m = node.wait_metrics("the honest line", |m| kills(m) != [0.0]);
    assert_eq!(kills(&m), [1.0], "the crafted line came first");
}

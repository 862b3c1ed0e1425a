//! What owners cost and what holds them back, from the simulated driver and a host of files to the page.

use std::process::Command;

use super::machine::Machine;

const POD_CONTAINER: &str = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";
const POD: &str = "0::/kubepods.slice/kubepods-besteffort.slice/\
    kubepods-besteffort-pod2c48913c_b29f_11e7_9350_020968147796.slice/\
    cri-containerd-9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961.scope\n";

#[test]
fn owners_have_accounts_that_never_exceed_their_gpu() {
    let mut machine = Machine::new();
    machine.process(5_000_001, POD);
    machine.process(5_000_002, "0::/system.slice/trainer.service\n");
    machine.gpu([5_000_001, 5_000_002]);
    let node = machine.start();
    let m = node.wait_metrics("accounts of both", |m| {
        let time = m.all("gpu_owner_allocated_seconds_total", &[]);
        m.all("gpu_owner_energy_joules_total", &[]).len() == 2 && time.iter().sum::<f64>() > 3.0
    });
    let sum = |name: &str| m.all(name, &[]).iter().sum::<f64>();
    let joules = sum("gpu_owner_energy_joules_total");
    assert!(joules <= sum("gpu_energy_sampled_joules_total") + 1e-6, "{joules}");
    let time = m.all("gpu_owner_allocated_seconds_total", &[]);
    assert!((time[0] - time[1]).abs() < 1.5, "{time:?}: half of the time each");
    assert_eq!(m.value("gpu_owner_processes", &[("owner", "unit/trainer.service")]), Some(1.0));
    assert_eq!(m.all("gpu_owner_info", &[("kind", "pod")]), [1.0]);
    assert_eq!(m.all("gpu_exporter_owners_dropped", &[]), [0.0]);
    assert!(
        m.all("gpu_owner_processes", &[("owner", "unknown")]).is_empty(),
        "no process was unknown for a moment"
    );
    // Who was there before the daemon has no start to measure.
    assert_eq!(m.all("gpu_owner_start_seconds_count", &[]), [0.0, 0.0]);
    let (_, json) = node.get("/api/v1/owners");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let owners = json["owners"].as_array().unwrap();
    assert_eq!(owners.len(), 2);
    assert!(owners.iter().all(|owner| owner["allocated_seconds"].as_f64() > Some(1.0)), "{json}");
    assert!(node.get("/").1.contains("unit/trainer.service"));
}

/// A user's service with a small context.
fn crowd(machine: &Machine, pid: u32) {
    let group = "/user.slice/user-1000.slice/user@1000.service/app.slice";
    machine.process(pid, format!("0::{group}/tiny-{pid}.service\n"));
}

#[test]
fn one_users_crowd_leaves_room_for_a_pod_that_comes_later_and_sums_stay_whole() {
    let mut machine = Machine::new();
    (5_000_001..5_000_301).for_each(|pid| crowd(&machine, pid));
    machine.process(5_000_301, POD);
    machine.write(&format!("var/log/containers/late_ml_main-{POD_CONTAINER}.log"), "");
    machine.gpu(5_000_001..5_000_301);
    machine.step("gate = \"pod\"\ngpu = 0\njob = { pid = 5000301, memory = \"1GiB\" }\n");
    let node = machine.start_with(&[("OWNERS__MAX_SERIES", "64")]);
    node.wait_metrics("the crowd", |m| m.value("gpu_exporter_owners_dropped", &[]) == Some(284.0));
    node.sim().open_gate("pod").unwrap();
    let has = |m: &super::node::Metrics, name: &str, owner: &str| m.value(name, &[("owner", owner)]);
    let m = node.wait_metrics("the pod's time", |m| {
        has(m, "gpu_owner_allocated_seconds_total", "pod/ml/late/main").is_some_and(|time| time > 0.0)
    });
    assert_eq!(m.all("gpu_owner_info", &[("user", "alice")]).len(), 16, "a quarter of the places");
    assert_eq!(m.all("gpu_owner_info", &[("kind", "other"), ("owner", "other")]), [1.0]);
    assert_eq!(m.value("gpu_exporter_owners_dropped", &[]), Some(284.0));
    assert_eq!(has(&m, "gpu_owner_processes", "other"), Some(284.0));
    assert_eq!(m.all("gpu_owner_processes", &[]).iter().sum::<f64>(), 301.0);
    assert_eq!(has(&m, "gpu_owner_memory_used_bytes", "other"), Some(284.0 * 1024.0 * 1024.0));
    // The GPU was never without owners, so all of its energy is theirs.
    let gpu = |m: &super::node::Metrics| m.value("gpu_energy_sampled_joules_total", &[]).unwrap();
    let owners = |m: &super::node::Metrics| m.all("gpu_owner_energy_joules_total", &[]).iter().sum::<f64>();
    let later = node.wait_metrics("energy", |now| owners(now) > owners(&m) + 500.0);
    let share = (owners(&later) - owners(&m)) / (gpu(&later) - gpu(&m));
    assert!((0.5..=1.6).contains(&share), "{share}: without `other` a twentieth");
}

#[test]
fn an_owner_keeps_its_series_after_its_end_while_another_waits() {
    let mut machine = Machine::new();
    for pid in 5_000_001..5_000_004 {
        machine.process(pid, format!("0::/user.slice/user-{pid}.slice/session-1.scope\n"));
    }
    machine.gpu([]);
    machine.step("until_gate = \"over\"\ngpu = 0\njob = { pid = 5000001, memory = \"1GiB\" }\n");
    machine.step("gpu = 0\njob = { pid = 5000002, memory = \"2GiB\" }\n");
    machine.step("gate = \"next\"\ngpu = 0\njob = { pid = 5000003, memory = \"3GiB\" }\n");
    let node = machine.start_with(&[("OWNERS__MAX_SERIES", "2")]);
    let owner = |pid: u32| format!("user/{pid}");
    node.wait_metrics("two owners", |m| m.all("gpu_owner_info", &[("kind", "user")]).len() == 2);
    node.sim().open_gate("next").unwrap();
    node.wait_metrics("no place for a third", |m| {
        m.value("gpu_exporter_owners_dropped", &[]) == Some(1.0)
            && m.value("gpu_owner_processes", &[("owner", "other")]) == Some(1.0)
    });
    node.sim().open_gate("over").unwrap();
    let ended = owner(5_000_001);
    let m = node.wait_metrics("the end of the first", |m| {
        m.value("gpu_owner_processes", &[("owner", &ended)]) == Some(0.0)
    });
    let time = |m: &super::node::Metrics, owner: &str| {
        m.value("gpu_owner_allocated_seconds_total", &[("owner", owner)]).unwrap_or(0.0)
    };
    let m = node.wait_metrics("the time of the third is of `other`", |now| {
        time(now, "other") > time(&m, "other") + 2.0
    });
    assert!(time(&m, &ended) > 0.0, "its amounts can still be read");
    assert!(m.all("gpu_owner_info", &[("owner", &owner(5_000_003))]).is_empty());
    assert_eq!(m.value("gpu_exporter_owners_dropped", &[]), Some(1.0));
}

#[test]
fn promtool_accepts_the_recording_rules() {
    let promtool = std::env::var("PROMTOOL").expect("PROMTOOL is not set: run the tests with `make test`");
    let output = Command::new(promtool).args(["check", "rules", "alerts/owners.rules.yml"]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("SUCCESS"), "{said}");
}

#[test]
fn the_recording_rules_say_what_a_pod_had() {
    let promtool = std::env::var("PROMTOOL").expect("PROMTOOL is not set: run the tests with `make test`");
    let output =
        Command::new(promtool).args(["test", "rules", "tests/data/owners.rules.test.yml"]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
}

#[test]
fn host_time_by_mode_and_start_are_published() {
    let mut machine = Machine::new();
    machine.process(5_000_001, "0::/system.slice/trainer.service\n");
    machine.gpu([5_000_001]);
    let stat = |user: u64, system: u64| {
        let text = format!("usage_usec {}\nuser_usec {user}\nsystem_usec {system}\n", user + system);
        machine.write("sys/fs/cgroup/system.slice/trainer.service/cpu.stat", text);
    };
    stat(900_000_000, 100_000_000);
    let node = machine.start();
    let of = |m: &super::node::Metrics, mode: &str| {
        m.value("gpu_owner_cpu_seconds_total", &[("owner", "unit/trainer.service"), ("mode", mode)])
    };
    node.wait_metrics("both at 0", |m| of(m, "user") == Some(0.0) && of(m, "system") == Some(0.0));
    stat(912_000_000, 103_000_000);
    let m = node.wait_metrics("host time", |m| of(m, "user") == Some(12.0) && of(m, "system") == Some(3.0));
    // Started a second after the machine.
    let boot = std::fs::read_to_string("/proc/stat").unwrap();
    let boot: f64 = boot.lines().find_map(|line| line.strip_prefix("btime ")).unwrap().parse().unwrap();
    let start = m.value("gpu_owner_start_timestamp_seconds", &[("owner", "unit/trainer.service")]).unwrap();
    assert!((start - boot - 1.0).abs() <= 2.0, "{start} {boot}");
    let (_, json) = node.get("/api/v1/owners");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let owner = &json["owners"][0];
    assert_eq!(
        (owner["cpu_user_seconds"].as_f64(), owner["cpu_system_seconds"].as_f64()),
        (Some(12.0), Some(3.0))
    );
    // The reader of JSON may round the last place otherwise.
    let same = owner["start_unix_seconds"].as_f64().is_some_and(|json| (json - start).abs() < 1e-3);
    assert!(same, "{owner} {start}");
}

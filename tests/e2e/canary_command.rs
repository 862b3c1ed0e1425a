//! `gpu-node-exporter canary` on simulated GPUs: well, and with each fault, which gets its verdict and no other.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use tempfile::TempDir;

use super::node::{open_window, pause};

/// A simulated node without a daemon.
struct Bench {
    dir: TempDir,
    settings: Vec<(&'static str, String)>,
}

/// What the command said.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {} {}", self.out, self.err))
    }

    /// Samples other than ok of the n-th run: check, sample, verdict.
    fn found(&self, nth: usize) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let json = self.json();
        let checks = json["runs"][nth]["outcome"]["checks"].as_array().unwrap().clone();
        let bad = checks.iter().filter(|judged| judged["sample"] != "ok" || judged["verdict"] != "ok");
        bad.map(|judged| (text(&judged["check"]), text(&judged["sample"]), text(&judged["verdict"])))
            .collect()
    }

    fn judged(&self, nth: usize, check: &str) -> Value {
        let json = self.json();
        let checks = json["runs"][nth]["outcome"]["checks"].as_array().unwrap();
        checks.iter().find(|judged| judged["check"] == check).unwrap_or_else(|| panic!("{json:#}")).clone()
    }
}

impl Bench {
    /// So many idle H200s, and what else the scenario has.
    fn new(count: u32, more: &str) -> Bench {
        let gpus = format!("still = true\n[[gpu]]\nmodel = \"H200\"\ncount = {count}\n{more}");
        Bench::of(&gpus)
    }

    fn of(scenario: &str) -> Bench {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("scenario.toml"), scenario).unwrap();
        fs::create_dir(dir.path().join("lib")).unwrap();
        for name in ["libnvidia-ml.so.1", "libcuda.so.1", "libcuda.so"] {
            symlink(simgpu::library_path().unwrap(), dir.path().join("lib").join(name)).unwrap();
        }
        fs::create_dir_all(dir.path().join("root/proc")).unwrap();
        Bench { dir, settings: Vec::new() }
    }

    fn with(mut self, key: &'static str, value: &str) -> Bench {
        self.settings.push((key, value.to_owned()));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GPU_NODE_EXPORTER__") {
                command.env_remove(name);
            }
        }
        let set = |key: &str| format!("GPU_NODE_EXPORTER__{key}");
        command
            .env(set("CONTROL__SOCKET"), self.path("none.sock"))
            .env(set("CANARY__LOCK_FILE"), self.path("canary.lock"))
            .env(set("CANARY__CUDA_LIBRARY"), self.path("lib/libcuda.so.1"))
            .env(set("SAMPLER__NVML_LIBRARY"), self.path("lib/libnvidia-ml.so.1"))
            .env(set("STATE__DIR"), self.path("state"))
            .env(set("HOST__ROOT"), self.path("root"))
            .env("GPU_SIM_SCENARIO", self.path("scenario.toml"))
            .env("GPU_SIM_STATE", self.path("sim-state"));
        for (key, value) in &self.settings {
            command.env(set(key), value);
        }
        command.arg("canary").args(args).stdin(Stdio::null());
        command
    }

    /// Waits until a command holds the interlock: it is at work then.
    fn wait_until_begun(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while canary::interlock::free(&self.path("canary.lock")).is_ok() {
            assert!(Instant::now() < deadline, "it does not begin");
            pause();
        }
    }

    fn say(&self, args: &[&str]) -> Said {
        let Output { status, stdout, stderr } = self.command(args).output().expect("it starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    fn json(&self, args: &[&str]) -> Said {
        self.say(&[args, &["--format", "json"]].concat())
    }
}

fn triple(check: &str, sample: &str, verdict: &str) -> (String, String, String) {
    (check.into(), sample.into(), verdict.into())
}

fn step(action: &str) -> String {
    format!("[[step]]\ngpu = 0\n{action}\n")
}

#[test]
fn a_healthy_gpu_is_reported_in_a_table_and_in_json() {
    let bench = Bench::new(1, "");
    let said = bench.say(&[]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    for check in ["init", "sm_rate", "tensor", "sm_sdc", "hbm_read", "hbm_walk", "l2", "pcie", "launch"] {
        let line = said.out.lines().find(|line| line.contains(&format!("✓ {check} "))).unwrap_or("");
        assert!(line.ends_with("  ok"), "{check}: {}", said.out);
    }
    assert!(said.out.starts_with("GPU 0  NVIDIA H200  GPU-"), "{}", said.out);
    assert!(said.out.contains("FMA/clk/SM") && said.out.contains("TB/s"), "{}", said.out);
    assert!(said.out.ends_with("Nothing is wrong with what was run.\n"), "{}", said.out);
    // A kernel of the simulated driver may take seconds where all tests run at once.
    let slow = |line: &&str| line.contains("a canary makes no progress");
    let err: Vec<_> = said.err.lines().filter(|line| !slow(line)).collect();
    assert!(!said.out.contains('\x1b') && err.is_empty(), "no colours, no progress: {err:?}");
    assert!(!bench.path("state").exists(), "the command remembers nothing");

    let said = bench.json(&["--check", "sm_rate,overlap,transform", "--gpu", "0"]);
    assert_eq!((said.code, said.found(0)), (Some(0), vec![]), "{}", said.err);
    let json = said.json();
    assert_eq!(json["result"], "healthy");
    let run = &json["runs"][0];
    assert_eq!(run["run"]["device"]["multiprocessors"], 132);
    assert_eq!(run["outcome"]["end"], "finished");
    let rate = said.judged(0, "sm_rate");
    assert!((1.97e9..1.99e9).contains(&rate["sm_clock_hertz"].as_f64().unwrap()), "{rate}");
    let roofline = rate["ratios"][0].clone();
    assert_eq!(roofline[0], "roofline");
    assert!((0.95..1.0).contains(&roofline[1].as_f64().unwrap()), "{rate}");
    assert!(said.judged(0, "transform")["text"].as_str().unwrap().contains("largest error"));
}

/// What is broken, the checks to run, the exit code, and what is found in the first run.
type Case = (&'static str, &'static str, i32, &'static [(&'static str, &'static str, &'static str)]);

const FAULTS: &[Case] = &[
    ("sm = { id = 17, rate = 0.97 }", "sm_rate,sm_sdc,pcie,launch", 1, &[("sm_rate", "slow_sm", "slow_sm")]),
    ("sm = { id = 17, rate = 0.99 }", "sm_rate", 1, &[("sm_rate", "slow_sm", "slow_sm")]),
    (
        "wrong = { sm = 17, unit = \"int32\", lane = 37, bit = 12 }",
        "sm_rate,sm_sdc,pcie",
        2,
        &[("sm_sdc", "wrong_result", "wrong_result")],
    ),
    (
        "sm_clock = 0.4",
        "sm_rate,sm_sdc,pcie",
        1,
        &[("sm_rate", "unexplained_clock_cap", "unexplained_clock_cap")],
    ),
    (
        "sm_clock = 0.4\nreported = true",
        "sm_rate,pcie",
        1,
        &[("sm_rate", "unexplained_clock_cap", "unexplained_clock_cap")],
    ),
    ("throttle = [\"hw_thermal_slowdown\"]", "sm_rate,pcie", 1, &[("sm_rate", "throttled", "throttled")]),
    (
        "pcie = { generation = 5, width = 8 }",
        "sm_rate,pcie",
        1,
        &[("pcie", "narrowed_link", "narrowed_link")],
    ),
    (
        "memory_wrong = { offset = 1048576, bit = 3 }",
        "hbm_walk",
        2,
        &[("hbm_walk", "wrong_result", "wrong_result")],
    ),
    (
        "copy_wrong = { direction = \"to_host\", offset = 1048576, bit = 1 }",
        "pcie",
        2,
        &[("pcie", "wrong_result", "wrong_result")],
    ),
];

#[test]
fn each_fault_gets_its_verdict_and_only_that() {
    for (fault, checks, code, expected) in FAULTS {
        let bench = Bench::new(1, &step(fault)).with("CANARY__MAX_MEMORY_MIB", "32");
        let said = bench.json(&["--check", checks]);
        let expected: Vec<_> = expected.iter().map(|(c, s, v)| triple(c, s, v)).collect();
        assert_eq!((said.code, said.found(0)), (Some(*code), expected), "{fault}: {} {}", said.out, said.err);
    }
}

#[test]
fn a_wrong_multiprocessor_is_named_with_its_lane_and_bits() {
    let wrong = step("wrong = { sm = 17, unit = \"int32\", lane = 37, bit = 12 }");
    let said = Bench::new(1, &wrong).with("CONTROL__SOCKET", "").say(&["--check", "sm_sdc"]);
    assert_eq!(said.code, Some(2), "{}", said.out);
    assert!(said.out.contains("✕ sm_sdc") && said.out.contains("wrong_result"), "{}", said.out);
    assert!(said.out.contains("int32 on SM 17, warp 1, lane 5"), "{}", said.out);
    assert!(said.out.contains("bits 0x1000"), "{}", said.out);
    assert!(said.out.contains("take the GPU out of use"), "{}", said.out);
    assert!(
        said.err.contains("failed to report the wrong result to the daemon")
            && said.err.contains("control.socket"),
        "{}",
        said.err
    );
    // Once in three launches: not again in the reruns, or only in one of them.
    let now_and_then =
        step("wrong = { sm = 3, unit = \"fp64\", lane = 0, bit = 1, every = 100, zero = true }");
    let said = Bench::new(1, &now_and_then).json(&["--check", "sm_sdc"]);
    let suspected = triple("sm_sdc", "wrong_result_suspected", "wrong_result_suspected");
    assert_eq!((said.code, said.found(0)), (Some(1), vec![suspected]), "{}", said.out);
    let judged = said.judged(0, "sm_sdc");
    assert!(judged["zeroed"].as_u64() > Some(0) && judged["flipped"] == 0, "{judged}");
    assert_eq!(judged["bad_sms"][0][0], 3);
}

#[test]
fn slow_memory_is_found_beside_the_other_gpus() {
    let bench = Bench::new(4, &step("memory_rate = 0.8")).with("CANARY__MAX_MEMORY_MIB", "8");
    let said = bench.json(&["--check", "hbm_read"]);
    let slow = triple("hbm_read", "degraded_memory", "degraded_memory");
    assert_eq!((said.code, said.found(0)), (Some(1), vec![slow]), "{} {}", said.out, said.err);
    assert_eq!((said.found(1), said.found(2), said.found(3)), (vec![], vec![], vec![]));
    let text = said.judged(0, "hbm_read")["text"].as_str().unwrap().to_owned();
    assert!(text.contains("of the median of the other GPUs") && text.contains("so in 3 of 3 runs"), "{text}");
}

#[test]
fn what_the_daemon_has_learned_is_compared_with_and_left_as_it_is() {
    use canary::baseline::{BaselineStore, Siblings};
    use canary::judge;
    use canary::report::CanaryRun;
    use host::state::Store;
    use model::canary::Place;

    let slow = "[[step]]\ngate = \"slow\"\ngpu = 0\nmemory_rate = 0.8\n";
    let bench = Bench::new(1, slow).with("CANARY__MAX_MEMORY_MIB", "8");
    let json = bench.json(&["--check", "hbm_read"]).json();
    let run: CanaryRun = serde_json::from_value(json["runs"][0]["run"].clone()).unwrap();
    let place: Place = serde_json::from_value(json["runs"][0]["place"].clone()).unwrap();
    let mut memory = BaselineStore::default();
    for nth in 0..25 {
        let at = run.ended - 1800.0 * f64::from(25 - nth);
        memory.apply(judge::judge(&place, &run, &memory, &Siblings::default(), at).update);
    }
    Store::new(bench.path("state")).save(&memory).unwrap();
    let before = fs::read(bench.path("state/canary.json")).unwrap();

    let said = bench.json(&["--check", "hbm_read"]);
    assert_eq!((said.code, said.found(0)), (Some(0), vec![]), "{} {}", said.out, said.err);
    assert!(said.judged(0, "hbm_read")["ratios"].to_string().contains("baseline"), "{}", said.out);
    simgpu::State::open(bench.path("sim-state")).unwrap().open_gate("slow").unwrap();
    let said = bench.json(&["--check", "hbm_read"]);
    let slow = triple("hbm_read", "degraded_memory", "degraded_memory");
    assert_eq!((said.code, said.found(0)), (Some(1), vec![slow]), "{} {}", said.out, said.err);
    assert_eq!(fs::read(bench.path("state/canary.json")).unwrap(), before);

    // A file that is garbage is not the GPU's fault, and stays for its owner to set aside.
    fs::write(bench.path("state/canary.json"), "garbage").unwrap();
    assert_eq!(bench.json(&["--check", "init"]).code, Some(0));
    assert!(bench.path("state/canary.json").exists() && !bench.path("state/canary.corrupt").exists());
}

#[test]
fn each_failure_of_the_driver_is_reported_with_its_step_and_code() {
    for (function, error, code, check, verdict) in [
        ("cuDevicePrimaryCtxRetain", "CUDA_ERROR_SYSTEM_NOT_READY", 2, "init", "driver_fault"),
        ("cuDevicePrimaryCtxRetain", "CUDA_ERROR_DEVICE_UNAVAILABLE", 0, "init", "skipped"),
        ("cuLaunchKernel", "CUDA_ERROR_LAUNCH_FAILED", 2, "init", "driver_fault"),
        ("cuLaunchKernel", "CUDA_ERROR_ECC_UNCORRECTABLE", 2, "init", "driver_fault"),
        ("cuMemcpyDtoHAsync_v2", "CUDA_ERROR_UNKNOWN", 2, "pcie", "driver_fault"),
    ] {
        let fault = step(&format!("function = \"{function}\"\nerror = \"{error}\""));
        let bench = Bench::new(1, &fault).with("CANARY__MAX_MEMORY_MIB", "8");
        let said = bench.json(&["--check", "pcie"]);
        let found = vec![triple(check, verdict, verdict)];
        assert_eq!((said.code, said.found(0)), (Some(code), found), "{error}: {} {}", said.out, said.err);
        let outcome = said.json()["runs"][0]["outcome"].clone();
        let text = outcome["text"].as_str().unwrap();
        assert!(text.contains(error), "{text}");
        assert_eq!(outcome["cuda_error"].is_null(), code == 0, "{outcome}");
    }
}

#[test]
fn every_code_is_a_fault_or_a_matter_of_the_environment() {
    const FAULTS: [u32; 21] = [
        214, 220, 226, 304, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 802, 803, 911, 916, 999, 3,
    ];
    const ENVIRONMENT: [u32; 10] = [2, 34, 36, 46, 209, 221, 800, 801, 804, 805];
    let said = |code: u32| {
        let error = step(&format!("function = \"cuLaunchKernel\"\nerror = {code}"));
        Bench::new(1, &error).json(&["--check", "init"])
    };
    for code in FAULTS {
        let said = said(code);
        let fault = vec![triple("init", "driver_fault", "driver_fault")];
        assert_eq!((said.code, said.found(0)), (Some(2), fault), "{code}: {} {}", said.out, said.err);
        assert_eq!(said.json()["runs"][0]["outcome"]["cuda_error"], code);
    }
    for code in ENVIRONMENT {
        let said = said(code);
        assert!(matches!(said.code, Some(0 | 3)), "{code}: {} {}", said.out, said.err);
        assert!(said.json()["runs"][0]["outcome"]["skip"].is_string(), "{code}: {}", said.out);
    }
}

#[test]
fn a_gpu_that_the_driver_wants_reset_is_not_run_and_not_well() {
    let said = Bench::new(1, &step("recovery_action = \"gpu_reset\"")).json(&["--check", "init", "--force"]);
    let outcome = said.json()["runs"][0]["outcome"].clone();
    assert_eq!((said.code, &outcome["skip"]), (Some(2), &"unhealthy".into()), "{outcome}");
    assert!(outcome["text"].as_str().unwrap().contains("gpu_reset"), "{outcome}");
}

#[test]
fn clocks_that_had_not_risen_are_no_verdict() {
    let idle = step("sm_clock = 0.3\nreported = true") + &step("throttle = [\"gpu_idle\"]");
    let said = Bench::new(1, &idle).json(&["--check", "sm_rate"]);
    assert_eq!(
        (said.code, said.found(0)),
        (Some(0), vec![triple("sm_rate", "skipped", "skipped")]),
        "{}",
        said.out
    );
}

#[test]
fn a_call_that_does_not_return_is_named_and_not_waited_for() {
    let hang = step("function = \"cuDevicePrimaryCtxRetain\"\nhang = true\nuntil_gate = \"end\"");
    let bench = Bench::new(2, &hang).with("CANARY__PROGRESS_TIMEOUT", "1s");
    let started = Instant::now();
    let said = bench.json(&["--check", "init"]);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!((said.code, said.found(0)), (Some(2), vec![triple("init", "hung", "hung")]), "{}", said.out);
    let text = said.json()["runs"][0]["outcome"]["text"].as_str().unwrap().to_owned();
    assert!(text.contains("step context") && text.contains("cuDevicePrimaryCtxRetain"), "{text}");
    assert_eq!(said.found(1), vec![], "the other GPU is looked at all the same");
    assert!(said.err.contains("remains in a driver call"), "{}", said.err);
    simgpu::State::open(bench.path("sim-state")).unwrap().open_gate("end").unwrap();
}

#[test]
fn what_was_found_is_reported_though_the_driver_then_fails() {
    let hang =
        "[[step]]\ngpu = 0\nfunction = \"cuDevicePrimaryCtxRetain\"\nhang = true\nuntil_gate = \"end\"\n";
    let gone = "[[step]]\ngate = \"gone\"\nfunction = \"nvmlInitWithFlags\"\nerror = \"NVML_ERROR_LIB_RM_VERSION_MISMATCH\"\n";
    // Longer than what was asked of the driver at first counts.
    let bench = Bench::new(2, &format!("{hang}{gone}")).with("CANARY__PROGRESS_TIMEOUT", "11s");
    let command = bench
        .command(&["--check", "init", "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    bench.wait_until_begun();
    let state = simgpu::State::open(bench.path("sim-state")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while state.calls_of("cuDevicePrimaryCtxRetain") == 0 {
        assert!(Instant::now() < deadline, "it does not come to the context");
        pause();
    }
    state.open_gate("gone").unwrap();
    let Output { status, stdout, .. } = command.wait_with_output().unwrap();
    state.open_gate("end").unwrap();
    let json: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!((status.code(), &json["result"]), (Some(2), &"fault".into()), "{json:#}");
    assert_eq!(json["runs"][0]["outcome"]["end"], "hung");
    assert_eq!(json["runs"][1]["outcome"]["skip"], "unread", "{json:#}");
}

#[test]
fn a_gpu_in_use_is_left_alone_and_by_force_nothing_is_judged() {
    let bench = Bench::new(2, &step("job = { pid = 4711, memory = \"20GiB\" }"));
    let said = bench.json(&["--check", "sm_rate"]);
    assert_eq!((said.code, said.found(1)), (Some(0), vec![]), "{} {}", said.out, said.err);
    let outcome = said.json()["runs"][0]["outcome"].clone();
    assert_eq!(
        (&outcome["skip"], &outcome["end"]),
        (&"processes".into(), &"could_not_run".into()),
        "{outcome}"
    );
    let said = bench.say(&["--gpu", "0", "--check", "sm_rate"]);
    assert!(said.out.contains("✓ not run (processes)"), "{}", said.out);
    let said = bench.json(&["--gpu", "0", "--check", "sm_rate", "--force"]);
    let contended = triple("sm_rate", "contended", "contended");
    assert_eq!((said.code, said.found(0)), (Some(0), vec![contended]), "{} {}", said.out, said.err);
    assert!(said.judged(0, "sm_rate")["rate"].is_null());
}

#[test]
fn a_gpu_in_use_is_left_alone_whatever_the_driver_answers_to_the_size_of_the_list() {
    let job = "foreign = true\nprocesses = [{ pid = 4200001, memory = \"20GiB\", type = \"compute\" }]\n";
    let bench = Bench::new(1, job);
    let said = bench.json(&["--check", "sm_rate"]);
    let outcome = said.json()["runs"][0]["outcome"].clone();
    assert_eq!(outcome["skip"], "processes", "{outcome}");
}

#[test]
fn explain_lists_what_was_found_and_what_was_not_looked_at() {
    let bench = Bench::new(1, &step("job = { pid = 4711, memory = \"20GiB\" }"));
    open_window(&bench.path("root"));
    let said = bench.say(&["--explain"]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    assert!(said.out.contains("prevents a run (processes)"), "{}", said.out);
    assert!(said.out.contains("prevents a run (maintenance)"), "{}", said.out);
    assert!(said.out.contains("not checked: only the daemon checks claims"), "{}", said.out);
    assert!(said.out.contains("✓ persistence mode on"), "{}", said.out);
    let json = bench.json(&["--explain"]).json();
    assert!(json["runs"][0]["outcome"].is_null() && json["runs"][0]["conditions"].is_array());
}

#[test]
fn who_holds_the_interlock_keeps_it_away() {
    let bench = Bench::new(1, "");
    let file = File::create(bench.path("canary.lock")).unwrap();
    let held = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let said = bench.json(&["--check", "init", "--force"]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    let outcome = said.json()["runs"][0]["outcome"].clone();
    assert_eq!(outcome["skip"], "interlock", "{outcome}");
    assert!(outcome["text"].as_str().unwrap().contains("is locked by process"), "{outcome}");
    drop(held);
    assert_eq!(bench.json(&["--check", "init"]).found(0), vec![]);
}

#[test]
fn never_a_second_canary_beside_one_that_another_has_left() {
    let bench = Bench::new(1, "");
    let gpu = bench.json(&["--explain"]).json()["runs"][0]["place"]["gpu"]["uuid"].clone();
    let lock = host::flock::gpu_lock(&bench.path("canary.lock"), gpu.as_str().unwrap());
    let _left = canary::interlock::acquire(&lock).unwrap();
    let said = bench.json(&["--check", "init", "--force"]);
    let outcome = said.json()["runs"][0]["outcome"].clone();
    assert_eq!((said.code, &outcome["skip"]), (Some(2), &"child_alive".into()), "{outcome}");
    assert!(
        outcome["text"].as_str().unwrap().contains(&format!("process {}", std::process::id())),
        "{outcome}"
    );
}

#[test]
fn what_is_missing_is_reported_and_no_fault() {
    let bench = Bench::new(1, "");
    let said = bench.say(&["--gpu", "5"]);
    assert_eq!(said.code, Some(3), "{}", said.out);
    assert!(said.err.contains("there is no GPU 5; this node has GPU 0 GPU-"), "{}", said.err);
    assert_eq!(bench.say(&["--check", "nothing"]).code, Some(64));

    for name in ["lib/libcuda.so.1", "lib/libcuda.so"] {
        fs::remove_file(bench.path(name)).unwrap();
    }
    let said = bench.json(&["--check", "init"]);
    assert_eq!(said.found(0), vec![triple("init", "could_not_run", "could_not_run")], "{}", said.out);
    assert_eq!((said.code, &said.json()["runs"][0]["outcome"]["skip"]), (Some(3), &"no_cuda_library".into()));

    fs::remove_file(bench.path("lib/libnvidia-ml.so.1")).unwrap();
    let said = bench.say(&[]);
    assert_eq!(said.code, Some(3), "{} {}", said.out, said.err);
    assert!(said.err.contains("the driver does not respond"), "{}", said.err);
}

#[test]
fn garbage_from_the_process_is_no_fault_of_the_gpu() {
    let fault = step("function = \"cuCtxSynchronize\"\nwrite_fd = { fd = 3, bytes = \"garbage\" }");
    let fault = fault.replace("cuCtxSynchronize", "cuDevicePrimaryCtxRetain");
    let said = Bench::new(1, &fault).json(&["--check", "init"]);
    assert_eq!(said.found(0), vec![triple("init", "could_not_run", "could_not_run")], "{}", said.out);
    assert_eq!((said.code, &said.json()["runs"][0]["outcome"]["end"]), (Some(3), &"broken".into()));
}

#[test]
fn each_mig_device_has_a_run_of_its_own() {
    let scenario = "still = true\n[[gpu]]\nmodel = \"H200\"\nmig = [\"3g.71gb\", \"1g.18gb\"]\n";
    let said = Bench::of(scenario).with("CANARY__MAX_MEMORY_MIB", "8").json(&["--check", "sm_rate"]);
    assert_eq!(
        (said.code, said.found(0), said.found(1)),
        (Some(0), vec![], vec![]),
        "{} {}",
        said.out,
        said.err
    );
    let json = said.json();
    let runs = json["runs"].as_array().unwrap();
    let sms: Vec<u64> =
        runs.iter().map(|run| run["run"]["device"]["multiprocessors"].as_u64().unwrap()).collect();
    let profiles: Vec<&Value> = runs.iter().map(|run| &run["place"]["instance"]["profile"]).collect();
    assert_eq!(runs.len(), 2);
    assert!(sms.iter().all(|sms| *sms < 132), "{sms:?} {profiles:?}");
    let none = "still = true\n[[gpu]]\nmodel = \"H200\"\nmig = []\n";
    let said = Bench::of(none).json(&["--check", "init"]);
    assert_eq!(said.json()["runs"][0]["outcome"]["skip"], "no_mig_instance", "{}", said.out);
    assert_eq!(said.code, Some(3));
}

#[test]
fn repeated_runs_are_summed_up_and_a_stop_ends_them() {
    let bench = Bench::new(1, "");
    let said = bench.say(&["--check", "launch", "--repeat", "3"]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    assert!(said.out.contains("spread"), "{}", said.out);
    assert_eq!(bench.json(&["--check", "init", "--repeat", "2"]).json()["runs"].as_array().unwrap().len(), 2);
    // A second GPU's run would never come.
    let child =
        bench.command(&["--check", "launch", "--repeat", "10000"]).stdout(Stdio::piped()).spawn().unwrap();
    bench.wait_until_begun();
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    // What was asked for was not done.
    assert_eq!(output.status.code(), Some(3), "it ends by itself: {:?}", output.status);
}

#[test]
fn strict_has_a_code_of_its_own_when_nothing_was_run() {
    let busy = step("job = { pid = 4711, memory = \"20GiB\" }");
    let said = Bench::new(1, &busy).say(&["--check", "init", "--strict"]);
    assert_eq!(said.code, Some(4), "{} {}", said.out, said.err);
    assert!(said.out.contains("Nothing was run."), "{}", said.out);
    let said = Bench::new(1, &busy).json(&["--check", "init", "--strict"]);
    assert_eq!((said.code, &said.json()["result"]), (Some(4), &"nothing_run".into()));
    let said = Bench::new(1, &busy).say(&["--check", "init"]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    let said = Bench::new(1, "").say(&["--check", "init", "--strict"]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
}

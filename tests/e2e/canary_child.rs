//! The canary's process alone, on simulated CUDA: started with its pipes and one request, and read to its end.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use canary::report::{CheckFigures, ChildReport, CudaDevice, Measurement, RunEnd, RunRequest};
use host::child::{Environment, Stderr};
use host::inflight::NODE_SLOT;
use host::supervise::{Launch, Patience, Supervised};
use model::catalog::{CanaryCheck, CanarySkip, CanaryStep};
use model::clock::Mono;
use tempfile::TempDir;

use crate::node::PATIENCE;

/// The simulated GPUs' names.
const GPU: &str = "GPU-00000000-0000-4000-8000-000000000001";
const SECOND: &str = "GPU-00000000-0000-4000-8000-000000000002";
const PCI: &str = "00000000:00:06.0";
const LIBRARIES: [&str; 3] = ["libnvidia-ml.so.1", "libcuda.so.1", "libcuda.so"];

const PERIODIC: [CanaryCheck; 9] = [
    CanaryCheck::Init,
    CanaryCheck::SmRate,
    CanaryCheck::Tensor,
    CanaryCheck::SmSdc,
    CanaryCheck::HbmRead,
    CanaryCheck::HbmWalk,
    CanaryCheck::L2,
    CanaryCheck::Pcie,
    CanaryCheck::Launch,
];

/// The request, and where it is made.
struct Plan {
    dir: TempDir,
    scenario: String,
    request: RunRequest,
    visible: String,
    libraries: Vec<&'static str>,
}

impl Plan {
    /// On one GPU of this model, with these steps of a scenario.
    fn new(model: &str, steps: &str) -> Plan {
        let dir = TempDir::new().unwrap();
        let library = |name| dir.path().join("lib").join(name);
        let request = RunRequest {
            device: GPU.into(),
            pci_address: PCI.into(),
            instance: None,
            peer: None,
            nvml_library: library("libnvidia-ml.so.1"),
            cuda_library: library("libcuda.so.1"),
            checks: vec![CanaryCheck::Init],
            memory_bytes: 16 << 20,
            locks: vec![dir.path().join("canary.GPU.lock")],
            seed: 7,
            yields: true,
        };
        let scenario = format!("still = true\n[[gpu]]\nmodel = \"{model}\"\n{steps}");
        Plan { dir, scenario, request, visible: GPU.into(), libraries: LIBRARIES.to_vec() }
    }

    fn checks(mut self, checks: &[CanaryCheck]) -> Plan {
        self.request.checks = checks.to_vec();
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(self) -> Canary {
        let lib = self.path("lib");
        fs::create_dir_all(&lib).unwrap();
        for name in &self.libraries {
            symlink(simgpu::library_path().unwrap(), lib.join(name)).unwrap();
        }
        fs::write(self.path("scenario.toml"), &self.scenario).unwrap();
        let state = simgpu::State::open(self.path("state")).unwrap();
        let environment = Environment {
            without: vec!["CUDA_"],
            with: vec![
                ("CUDA_VISIBLE_DEVICES".into(), self.visible.clone().into()),
                ("LD_LIBRARY_PATH".into(), lib.into()),
                ("GPU_SIM_SCENARIO".into(), self.path("scenario.toml").into()),
                ("GPU_SIM_STATE".into(), self.path("state").into()),
            ],
        };
        let program = Path::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
        let launch = Launch {
            program,
            args: &["canary-child"],
            environment: &environment,
            stderr: Stderr::Inherit,
            children: None,
            thread: "reports",
        };
        let (sender, reports) = channel();
        let deliver = move |report: Result<Option<ChildReport>, host::frame::FrameError>| {
            report.unwrap().is_some_and(|report| sender.send(report).is_ok())
        };
        let mut child = Supervised::start(launch, deliver).unwrap();
        child.send(&self.request);
        Canary { child, reports, state, heard: Vec::new(), _dir: self.dir }
    }

    fn run(self) -> Canary {
        let mut canary = self.start();
        canary.hear_out();
        canary
    }
}

/// A process that was started.
struct Canary {
    child: Supervised,
    reports: Receiver<ChildReport>,
    state: simgpu::State,
    heard: Vec<ChildReport>,
    _dir: TempDir,
}

impl Drop for Canary {
    fn drop(&mut self) {
        let at_once = Patience { outside: Duration::ZERO, inside: Some(Duration::ZERO) };
        self.child.ask_to_end();
        self.child.kill_if_overdue(Mono::now(), at_once);
        let _ = self.child.ended();
    }
}

impl Canary {
    /// Hears reports until one is as wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&ChildReport) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(report) => {
                    self.heard.push(report);
                    if self.heard.last().is_some_and(&wanted) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no {what}; it said {:#?}", self.heard),
                Err(RecvTimeoutError::Disconnected) => panic!("ended without {what}: {:#?}", self.heard),
            }
        }
    }

    fn until_step(&mut self, step: CanaryStep) {
        self.until("this step", |report| *report == ChildReport::Begin(step));
    }

    /// Hears the rest, up to the process's end.
    fn hear_out(&mut self) {
        self.until("last word", |report| matches!(report, ChildReport::Done { .. }));
        self.wait("an end", |canary| canary.child.ended().is_some());
        assert!(self.child.ended().unwrap().success());
    }

    fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Canary) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "no {what}; it said {:#?}", self.heard);
            std::thread::yield_now();
        }
    }

    /// Whether the table says that it is in this call.
    fn in_call(&self, name: &str) -> bool {
        let view = self.child.views().into_iter().find(|view| view.slot == NODE_SLOT);
        view.and_then(|view| view.call).is_some_and(|call| call.name == name)
    }

    fn measured(&self, check: CanaryCheck) -> &Measurement {
        let of = |report: &&ChildReport| matches!(report, ChildReport::Measured(m) if m.check == check);
        match self.heard.iter().find(of) {
            Some(ChildReport::Measured(measured)) => measured,
            _ => panic!("{check:?} was not measured: {:#?}", self.heard),
        }
    }

    fn device(&self) -> &CudaDevice {
        let device = self.heard.iter().find_map(|report| match report {
            ChildReport::Device(device) => Some(device),
            _ => None,
        });
        device.expect("a device")
    }

    fn unable(&self) -> (CanarySkip, &str) {
        let unable = self.heard.iter().find_map(|report| match report {
            ChildReport::Ended(RunEnd::Unable { reason, text }) => Some((*reason, text.as_str())),
            _ => None,
        });
        unable.unwrap_or_else(|| panic!("{:#?}", self.heard))
    }

    fn abandoned(&self) -> (&str, &[u32]) {
        let abandoned = self.heard.iter().find_map(|report| match report {
            ChildReport::Ended(RunEnd::Abandoned { text, pids }) => Some((text.as_str(), pids.as_slice())),
            _ => None,
        });
        abandoned.unwrap_or_else(|| panic!("{:#?}", self.heard))
    }

    /// The steps that began, and whether each ended.
    fn steps(&self) -> Vec<(CanaryStep, bool)> {
        let ended =
            |step| self.heard.iter().any(|r| matches!(r, ChildReport::End { step: s, .. } if *s == step));
        let begun = self.heard.iter().filter_map(|report| match report {
            ChildReport::Begin(step) => Some((*step, ended(*step))),
            _ => None,
        });
        begun.collect()
    }

    fn gave_back(&self) -> bool {
        self.steps().contains(&(CanaryStep::Destroy, true))
            && self.state.calls_of("cuDevicePrimaryCtxRelease_v2") == 1
    }
}

#[test]
fn a_healthy_gpu_passes_all_checks_of_the_suite() {
    let canary = Plan::new("H200", "").checks(&PERIODIC).run();
    assert!(canary.steps().iter().all(|(_, ended)| *ended), "{:?}", canary.steps());
    assert!(canary.gave_back());
    let device = canary.device();
    assert_eq!((device.name.as_str(), device.multiprocessors), ("NVIDIA H200", 132));
    assert_eq!((device.fp32_lanes, device.tensor_fma, device.code.as_str()), (128, 2048, "sm_90a"));
    for check in &PERIODIC[1..] {
        let measured = canary.measured(*check);
        let around = &measured.around;
        assert_eq!((measured.mismatches.wrong, &around.others), (0, &Vec::new()), "{check:?}");
        assert!(measured.gpu_seconds > 0.0 && measured.wall_seconds > 0.0, "{check:?}");
    }
    let CheckFigures::Sms(sms) = &canary.measured(CanaryCheck::SmRate).found else { panic!() };
    assert_eq!(sms.len(), 132);
    assert!(sms.iter().all(|sm| (125.0..128.0).contains(&sm.work_per_cycle)), "{sms:?}");
    assert!(sms.iter().all(|sm| (sm.clock_hertz / 1.98e9 - 1.0).abs() < 0.005), "{sms:?}");
    let CheckFigures::Sms(sms) = &canary.measured(CanaryCheck::Tensor).found else { panic!() };
    assert!(sms.len() == 132 && sms.iter().all(|sm| sm.work_per_cycle > 0.8 * 2048.0), "{sms:?}");
    let CheckFigures::Covered(sms) = &canary.measured(CanaryCheck::SmSdc).found else { panic!() };
    assert_eq!(sms.len(), 132);
    let CheckFigures::Copied { link_generation, link_width, to_gpu, to_host, bytes, .. } =
        &canary.measured(CanaryCheck::Pcie).found
    else {
        panic!()
    };
    assert_eq!((*link_generation, *link_width), (5, 16));
    let rate = *bytes as f64 / to_gpu.iter().chain(to_host).copied().fold(f64::MAX, f64::min);
    assert!((45e9..64e9).contains(&rate), "{rate}");
    let CheckFigures::Launched(seconds) = &canary.measured(CanaryCheck::Launch).found else { panic!() };
    assert!(seconds.len() == 200 && seconds.is_sorted());
    assert_eq!(canary.measured(CanaryCheck::SmRate).around.sm_clock_hertz, 1.98e9);
}

#[test]
fn a_clock_is_given_time_to_rise_before_it_is_measured() {
    let made = |steps: &str| {
        let canary = Plan::new("H200", steps).checks(&[CanaryCheck::SmRate]).run();
        let CheckFigures::Sms(sms) = &canary.measured(CanaryCheck::SmRate).found else { panic!() };
        (canary.state.calls_of("cuLaunchKernel"), sms[0].clock_hertz)
    };
    // The driver's first, one to warm up, and three that are measured.
    assert_eq!(made("").0, 5);
    let (launches, clock) = made("[[step]]\ngpu = 0\nsm_clock = 0.5\n");
    assert!(launches > 5, "{launches}");
    assert!((clock / 0.99e9 - 1.0).abs() < 0.01, "one that does not rise is measured as it is: {clock}");
}

#[test]
fn checks_on_demand_are_made_too() {
    let checks = [CanaryCheck::Overlap, CanaryCheck::Transform];
    let canary = Plan::new("L4", "").checks(&checks).run();
    let CheckFigures::Overlapped(overlap) = &canary.measured(CanaryCheck::Overlap).found else { panic!() };
    assert!(
        overlap.serial > 1.3 * overlap.separate && overlap.serial > 1.3 * overlap.rotating,
        "{overlap:?}"
    );
    assert!(overlap.kernels[0] > 1.5 * overlap.kernels[1], "{overlap:?}");
    let CheckFigures::Transformed(transform) = &canary.measured(CanaryCheck::Transform).found else {
        panic!()
    };
    assert!(transform.count > 0 && transform.kernel > 0.0 && transform.cpu > 0.0);
    assert!(transform.max_relative_error > 0.0 && transform.max_relative_error < 1e-5, "{transform:?}");
    assert!(canary.heard.iter().all(|r| !matches!(r, ChildReport::Measured(m) if m.mismatches.wrong > 0)));
}

#[test]
fn copies_to_a_second_gpu_are_verified_there() {
    let mut plan = Plan::new("H200", "").checks(&[CanaryCheck::P2p]);
    plan.scenario = "still = true\n[[gpu]]\nmodel = \"H200\"\ncount = 2\n".into();
    plan.request.peer = Some(SECOND.into());
    plan.visible = format!("{GPU},{SECOND}");
    let canary = plan.run();
    let measured = canary.measured(CanaryCheck::P2p);
    let CheckFigures::Peer { peer, seconds, .. } = &measured.found else { panic!() };
    assert_eq!((peer.as_str(), seconds.len(), measured.mismatches.wrong), (SECOND, 5, 0));
    assert!(measured.mismatches.compared > 0);
    assert_eq!(canary.state.calls_of("cuDevicePrimaryCtxRelease_v2"), 2, "both are given back");
}

#[test]
fn every_fault_is_reported_with_step_code_and_call_and_nothing_more_is_asked() {
    for code in
        [214, 220, 226, 304, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 802, 803, 911, 916, 999]
    {
        let step = format!("[[step]]\nfunction = \"cuLaunchKernel\"\nerror = {code}\n");
        let canary = Plan::new("L4", &step).run();
        let fault = canary.heard.iter().find_map(|report| match report {
            ChildReport::Ended(RunEnd::Fault { step, code, name, call }) => {
                Some((*step, *code, name.as_str(), call.as_str()))
            }
            _ => None,
        });
        let Some((CanaryStep::FirstLaunch, reported, name, "cuLaunchKernel")) = fault else {
            panic!("{code}: {:#?}", canary.heard)
        };
        assert_eq!(reported, code);
        assert!(name.starts_with("CUDA_ERROR_") && !name.ends_with(&code.to_string()), "{name}");
        assert_eq!(canary.state.calls_of("cuDevicePrimaryCtxRelease_v2"), 0);
    }
}

#[test]
fn what_is_no_fault_of_the_gpu_is_reported_as_such() {
    use CanarySkip as S;
    for (function, code, reason) in [
        ("cuDevicePrimaryCtxRetain", 46, S::DeviceUnavailable),
        ("cuDevicePrimaryCtxRetain", 2, S::NoMemory),
        ("cuModuleLoadData", 209, S::NoKernels),
        ("cuInit", 804, S::OldDriver),
        ("cuInit", 36, S::OldDriver),
        ("cuInit", 34, S::ForeignLibrary),
        ("cuDevicePrimaryCtxRetain", 800, S::NoPermission),
        ("cuDevicePrimaryCtxRetain", 807, S::Mps),
        ("cuMemAlloc_v2", 2, S::NoMemory),
    ] {
        let step = format!("[[step]]\nfunction = \"{function}\"\nerror = {code}\n");
        let canary = Plan::new("L4", &step).run();
        let (skip, text) = canary.unable();
        assert_eq!(skip, reason, "{function} {code}: {text}");
        assert!(
            !canary.heard.iter().any(|report| matches!(report, ChildReport::Ended(RunEnd::Fault { .. }))),
            "{function} {code}"
        );
    }
    let mut old = Plan::new("L4", "");
    old.scenario = format!("cuda = 11080\n{}", old.scenario);
    assert_eq!(old.run().unable().0, S::OldDriver);
}

#[test]
fn an_initialisation_that_fails_once_is_tried_again() {
    let step = "[[step]]\nfunction = \"cuInit\"\nerror = 999\nuntil_gate = \"well\"\n";
    let mut canary = Plan::new("L4", step).start();
    canary.wait("pause after the first try", |canary| canary.in_call("pause before cuInit"));
    canary.state.open_gate("well").unwrap();
    canary.hear_out();
    assert!(canary.gave_back(), "{:#?}", canary.heard);
    assert_eq!(canary.state.calls_of("cuInit"), 2);
}

#[test]
fn a_hang_has_step_and_call_and_ends_between_kernels_once_it_is_over() {
    let step = "[[step]]\nfunction = \"cuDevicePrimaryCtxRetain\"\nhang = true\nuntil_gate = \"over\"\n";
    let mut canary = Plan::new("L4", step).start();
    canary.until_step(CanaryStep::Context);
    canary.wait("call in the table", |canary| canary.in_call("cuDevicePrimaryCtxRetain"));
    canary.child.ask_to_end();
    assert!(canary.child.ended().is_none(), "it ends in no driver call");
    canary.state.open_gate("over").unwrap();
    canary.hear_out();
    assert_eq!(canary.abandoned().1, [0; 0]);
    assert!(canary.gave_back());
}

#[test]
fn a_parent_that_hangs_up_ends_it_between_two_kernels() {
    let mut canary = Plan::new("L4", "").checks(&PERIODIC).start();
    canary.until_step(CanaryStep::SmRate);
    canary.child.ask_to_end();
    canary.hear_out();
    assert_eq!(canary.abandoned(), ("it was asked to end", &[0; 0][..]));
    assert!(canary.gave_back());
    assert!(!canary.steps().contains(&(CanaryStep::Launch, true)), "it did not go on");
}

#[test]
fn a_process_that_is_there_keeps_cuda_untouched() {
    let job = "[[step]]\ngpu = 0\njob = { pid = 4242, memory = \"1GiB\" }\n";
    let canary = Plan::new("L4", job).run();
    assert_eq!(canary.abandoned().1, [4242]);
    assert_eq!(canary.state.calls_of("cuInit"), 0);

    let mut forced = Plan::new("L4", job).checks(&[CanaryCheck::Launch]);
    forced.request.yields = false;
    let canary = forced.run();
    assert_eq!(canary.measured(CanaryCheck::Launch).around.others, [4242]);
}

#[test]
fn a_process_that_comes_ends_it_between_two_kernels() {
    let job = "[[step]]\ngpu = 0\ngate = \"job\"\njob = { pid = 4242, memory = \"1GiB\" }\n";
    let mut canary = Plan::new("L4", job).checks(&PERIODIC).start();
    canary.until_step(CanaryStep::SmRate);
    canary.state.open_gate("job").unwrap();
    canary.hear_out();
    assert_eq!(canary.abandoned().1, [4242]);
    assert!(canary.gave_back());
}

#[test]
fn another_library_than_the_one_asked_for_is_refused() {
    let mut plan = Plan::new("L4", "");
    let other = plan.path("other");
    fs::create_dir_all(&other).unwrap();
    fs::copy(simgpu::library_path().unwrap(), other.join("libcuda.so.1")).unwrap();
    plan.request.cuda_library = other.join("libcuda.so.1");
    let canary = plan.run();
    let (reason, text) = canary.unable();
    assert_eq!(reason, CanarySkip::ForeignLibrary, "{text}");
    assert!(text.contains("other/libcuda.so.1"), "{text}");
    assert_eq!(canary.state.calls_of("cuInit"), 0);
}

#[test]
fn without_a_library_it_says_what_brings_one() {
    let mut plan = Plan::new("L4", "");
    plan.libraries = vec!["libnvidia-ml.so.1"];
    plan.request.cuda_library = PathBuf::new();
    // Where the machine has a driver of its own, that one knows nothing of the simulated GPU.
    let canary = plan.run();
    let (reason, text) = canary.unable();
    match reason {
        CanarySkip::NoLibrary => {
            assert!(text.contains("--cuda-library") && text.contains("NVIDIA_DRIVER_CAPABILITIES"), "{text}");
        }
        other => assert_eq!(other, CanarySkip::NoDevice, "{text}"),
    }
}

#[test]
fn another_device_than_the_one_ordered_is_refused() {
    let mut plan = Plan::new("L4", "");
    plan.scenario = "still = true\n[[gpu]]\nmodel = \"L4\"\ncount = 2\n".into();
    plan.visible = SECOND.into();
    let canary = plan.run();
    let (reason, text) = canary.unable();
    assert_eq!(reason, CanarySkip::NoDevice);
    assert!(text.contains(GPU) && text.contains(SECOND), "{text}");
    assert_eq!(canary.state.calls_of("cuDevicePrimaryCtxRetain"), 0);
}

#[test]
fn a_canary_that_must_yield_does_not_run_blind() {
    let gone = "[[step]]\nfunction = \"nvmlDeviceGetComputeRunningProcesses_v3\"\nerror = 3\n";
    let canary = Plan::new("L4", gone).run();
    assert_eq!(canary.unable().0, CanarySkip::Unread);
    assert_eq!(canary.state.calls_of("cuInit"), 0);

    let mut forced = Plan::new("L4", gone).checks(&[CanaryCheck::Launch]);
    forced.request.yields = false;
    forced.run().measured(CanaryCheck::Launch);
}

#[test]
fn nvml_that_hangs_ends_the_run_but_not_the_process() {
    let hang = "[[step]]\nfunction = \"nvmlDeviceGetTemperature\"\nhang = true\nuntil_gate = \"over\"\n";
    let mut canary = Plan::new("L4", hang).start();
    canary.until("last word", |report| matches!(report, ChildReport::Done { .. }));
    assert_eq!(canary.unable().0, CanarySkip::Unread);
    assert!(canary.child.ended().is_none(), "it waits for the call");
    canary.state.open_gate("over").unwrap();
    canary.wait("an end", |canary| canary.child.ended().is_some());
}

#[test]
fn a_wrong_result_is_named_and_tried_again() {
    // Rate kernels are simulated by the first thread of each block alone.
    for (check, lane, place) in [(CanaryCheck::SmRate, 0, (0, 0)), (CanaryCheck::SmSdc, 69, (2, 5))] {
        let wrong =
            format!("[[step]]\ngpu = 0\nwrong = {{ sm = 17, unit = \"fp32\", lane = {lane}, bit = 21 }}\n");
        let canary = Plan::new("L4", &wrong).checks(&[check]).run();
        let mismatches = &canary.measured(check).mismatches;
        assert_eq!((mismatches.wrong, mismatches.zeroed), (1, 0), "{mismatches:?}");
        let first = &mismatches.first[0];
        assert_eq!((first.smid, first.unit.as_str(), first.warp_lane), (Some(17), "fp32", Some(place)));
        assert_ne!(first.expected, first.got);
        assert!(mismatches.reruns >= 3 && mismatches.wrong_reruns == mismatches.reruns, "{mismatches:?}");
    }
    let stuck = "[[step]]\ngpu = 0\nmemory_wrong = { offset = 4096, bit = 3 }\n";
    let canary = Plan::new("L4", stuck).checks(&[CanaryCheck::HbmWalk]).run();
    let mismatches = &canary.measured(CanaryCheck::HbmWalk).mismatches;
    assert_eq!(
        (mismatches.first[0].offset, mismatches.first[0].expected ^ mismatches.first[0].got),
        (Some(4096), 8)
    );
    assert!(mismatches.wrong_reruns == 3, "{mismatches:?}");
    let copied = "[[step]]\ngpu = 0\ncopy_wrong = { direction = \"to_gpu\", offset = 64, bit = 1 }\n";
    let canary = Plan::new("L4", copied).checks(&[CanaryCheck::Pcie]).run();
    let mismatches = &canary.measured(CanaryCheck::Pcie).mismatches;
    assert_eq!((mismatches.first[0].unit.as_str(), mismatches.first[0].offset), ("to_gpu", Some(64)));
}

#[test]
fn a_mig_device_is_seen_apart_from_the_others() {
    let on = |number: u32, instance: u32| {
        let mut plan = Plan::new("H200", "").checks(&[CanaryCheck::SmRate]);
        plan.scenario = "still = true\n[[gpu]]\nmodel = \"H200\"\nmig = [\"1g.18gb\", \"1g.18gb\"]\n\
                         processes = [{ pid = 99, memory = \"1GiB\", type = \"compute\", instance = 0 }]\n"
            .into();
        let uuid = format!("MIG-00000000-0000-5000-8000-000001{number:06}");
        (plan.request.device, plan.visible) = (uuid.clone(), uuid);
        plan.request.instance = Some((instance, 0));
        plan.run()
    };
    let canary = on(2, 8);
    assert_eq!(canary.device().multiprocessors, 16);
    let CheckFigures::Sms(sms) = &canary.measured(CanaryCheck::SmRate).found else { panic!() };
    assert_eq!(sms.len(), 16);
    assert_eq!(on(1, 7).abandoned().1, [99], "its neighbour is at work");
}

#[test]
fn a_gpu_in_the_hands_of_another_canary_keeps_the_driver_untouched() {
    let plan = Plan::new("L4", "");
    let held = canary::interlock::acquire(&plan.request.locks[0]).unwrap();
    let canary = plan.run();
    let (reason, text) = canary.unable();
    assert_eq!(reason, CanarySkip::ChildAlive, "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert_eq!(canary.state.calls_of("cuInit"), 0);
    drop(held);
}

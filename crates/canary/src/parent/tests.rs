//! Runs with misbehaving processes. The processes are shell scripts. They write reports to descriptor 3 and read the
//! request from descriptor 4, which closes when the process is requested to end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use super::*;
use crate::report::ChildReport;
use host::inflight::Table;
use model::catalog::CanaryCheck;

const PATIENCE: Duration = Duration::from_secs(20);

struct Script {
    dir: tempfile::TempDir,
}

impl Script {
    /// Creates a script in which `{0}`, `{1}` and so on send these reports.
    fn new(text: &str, reports: &[ChildReport]) -> Script {
        let script = Script { dir: tempfile::tempdir().unwrap() };
        let mut text = text.to_owned();
        for (n, report) in reports.iter().enumerate() {
            fs::write(script.dir.path().join(format!("report{n}")), frame::encode(report).unwrap()).unwrap();
            text = text.replace(&format!("{{{n}}}"), &format!("cat report{n} >&3"));
        }
        fs::write(script.path(), format!("#!/bin/sh\ncd {}\n{text}\n", script.dir.path().display())).unwrap();
        fs::set_permissions(script.path(), fs::Permissions::from_mode(0o755)).unwrap();
        script
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("program")
    }

    fn run(&self, stop: &Stop) -> (CanaryRun, Option<DetachedChild>) {
        self.run_with(stop, Duration::from_secs(10), &mut |_| {})
    }

    fn run_with(
        &self,
        stop: &Stop,
        hung_after: Duration,
        on: &mut dyn FnMut(&ChildReport),
    ) -> (CanaryRun, Option<DetachedChild>) {
        let request = request();
        // A new script can be busy for a moment while another test forks.
        let settings = settings(hung_after, Duration::from_secs(60), Stderr::Inherit);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (run, detached) = run(&self.path(), &request, &settings, stop, on);
            let busy = matches!(&run.end, RunEnd::Unable { text, .. } if text.contains("busy"));
            if !busy || Instant::now() > deadline {
                return (run, detached);
            }
        }
    }
}

fn settings(hung_after: Duration, kill_after: Duration, stderr: Stderr) -> RunSettings {
    RunSettings {
        nvml_library: PathBuf::new(),
        cuda_library: PathBuf::new(),
        lock_file: PathBuf::new(),
        memory_mib: 1,
        hung_after,
        kill_after,
        linger: Duration::ZERO,
        yields: true,
        stderr,
        children: Arc::default(),
    }
}

fn run(
    program: &Path,
    request: &RunRequest,
    settings: &RunSettings,
    stop: &Stop,
    on: &mut dyn FnMut(&ChildReport),
) -> (CanaryRun, Option<DetachedChild>) {
    let mut active = match ActiveRun::start(program, request, settings) {
        Ok(active) => active,
        Err(run) => return (*run, None),
    };
    loop {
        if stop.stopped() {
            active.ask_to_end("it was asked to end");
        }
        if let Some(end) = active.poll(LOOK, on) {
            return active.over(end);
        }
    }
}

fn request() -> RunRequest {
    RunRequest {
        device: "GPU-0".into(),
        pci_address: "0000:06:00.0".into(),
        instance: None,
        peer: None,
        nvml_library: PathBuf::new(),
        cuda_library: "/nowhere/libcuda.so.1".into(),
        checks: vec![CanaryCheck::Init],
        memory_bytes: 1,
        locks: Vec::new(),
        seed: 2,
        yields: true,
    }
}

/// Kills a process that a test left running, and waits for its end.
fn gone(detached: Option<DetachedChild>) {
    if let Some(detached) = detached {
        detached.child.kill_and_wait();
    }
}

fn broken(run: &CanaryRun) -> &str {
    match &run.end {
        RunEnd::Broken { text } => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_is_reported_from_its_begin_to_its_end() {
    let script = Script::new(
        r#"head -c "$(cat size)" <&4 > request
env > environment
ls -A "$CUDA_MPS_PIPE_DIRECTORY" > pipes
{0}
{1}
{2}"#,
        &[
            ChildReport::Begin(CanaryStep::Init),
            ChildReport::End { step: CanaryStep::Init, seconds: 0.25 },
            ChildReport::Done { gpu_seconds: 0.5 },
        ],
    );
    let size = frame::encode(&request()).unwrap().len();
    fs::write(script.dir.path().join("size"), size.to_string()).unwrap();
    let mut heard = Vec::new();
    let (run, detached) =
        script.run_with(&Stop::default(), PATIENCE, &mut |report| heard.push(report.clone()));
    assert_eq!((&run.end, run.gpu_seconds), (&RunEnd::Finished, 0.5), "{run:?}");
    assert_eq!(run.steps, [(CanaryStep::Init, 0.25)]);
    assert_eq!((heard.len(), detached.is_none()), (3, true));
    assert!(run.ended >= run.began && run.began > 1e9);
    let bytes = fs::read(script.dir.path().join("request")).unwrap();
    assert_eq!(frame::read::<RunRequest>(&mut bytes.as_slice()).unwrap(), Some(request()));
    let read = |name: &str| fs::read_to_string(script.dir.path().join(name)).unwrap();
    let environment = read("environment");
    for line in ["CUDA_VISIBLE_DEVICES=GPU-0", "CUDA_CACHE_DISABLE=1", "LD_LIBRARY_PATH=/nowhere"] {
        assert!(environment.lines().any(|found| found.starts_with(line)), "{line} in {environment}");
    }
    assert_eq!(read("pipes"), "", "the folder is there and empty");
}

#[test]
fn a_broken_protocol_is_no_finding_about_the_gpu() {
    for (text, expected) in [
        ("echo nonsense >&3; exec sleep 60", "invalid frame"),
        ("head -c 1000000 /dev/zero >&3", "invalid frame"),
        ("{0}", "had not begun"),
        ("{1}; exit 3", "exit status: 3"),
        ("head -c 7 report1 >&3", "inside a frame"),
        ("kill -9 $$", "signal: 9"),
        ("", "too early"),
    ] {
        let reports =
            [ChildReport::End { step: CanaryStep::L2, seconds: 1.0 }, ChildReport::Begin(CanaryStep::L2)];
        let (run, detached) = Script::new(text, &reports).run(&Stop::default());
        assert!(broken(&run).contains(expected), "{text}: {run:?}");
        gone(detached);
    }
    let missing = Path::new("/nowhere/program");
    let settings = settings(PATIENCE, PATIENCE, Stderr::Null);
    let (run, _) = run(missing, &request(), &settings, &Stop::default(), &mut |_| {});
    assert!(matches!(run.end, RunEnd::Unable { reason: CanarySkip::Environment, .. }), "{run:?}");
}

#[test]
fn the_reported_end_counts_though_the_process_dies() {
    let fault = ChildReport::Ended(RunEnd::Fault {
        step: CanaryStep::Context,
        code: 999,
        name: "n".into(),
        call: "c".into(),
    });
    let (run, _) = Script::new("{0}; kill -9 $$", &[fault]).run(&Stop::default());
    assert!(matches!(run.end, RunEnd::Fault { step: CanaryStep::Context, code: 999, .. }), "{run:?}");
}

#[test]
fn one_that_is_asked_to_end_and_does_is_abandoned() {
    let script = Script::new(
        "{0}\ncat <&4 > request\n{1}\n{2}",
        &[
            ChildReport::Begin(CanaryStep::SmRate),
            ChildReport::Ended(RunEnd::Abandoned { text: "asked".into(), pids: Vec::new() }),
            ChildReport::Done { gpu_seconds: 0.1 },
        ],
    );
    let stop = Stop::default();
    let (run, detached) = script.run_with(&stop, PATIENCE, &mut |report| {
        if matches!(report, ChildReport::Begin(_)) {
            stop.stop();
        }
    });
    let asked = "it was asked to end".to_owned();
    assert_eq!(run.end, RunEnd::Abandoned { text: asked, pids: Vec::new() }, "{run:?}");
    assert!(detached.is_none());
}

#[test]
fn one_that_does_not_end_is_handed_back_and_killed_outside_of_calls_only() {
    let script =
        Script::new("{0}; trap '' TERM; while :; do sleep 1; done", &[ChildReport::Begin(CanaryStep::L2)]);
    let stop = Stop::default();
    stop.stop();
    let (run, detached) = script.run(&stop);
    assert!(matches!(run.end, RunEnd::Abandoned { .. }), "{run:?}");
    let mut detached = detached.expect("the process lives");
    let asked = detached.child.asked().unwrap();
    let check = |alive, killed| ChildCheck { alive, killed };
    assert_eq!(detached.check(asked + Duration::from_secs(29)), check(true, false));
    assert_eq!(detached.hangs(asked + Duration::from_secs(5)), None);
    assert_eq!(detached.hangs(asked + Duration::from_secs(11)), None, "it is in no call");
    // Inside a call, the process has the whole of `kill_after`.
    let shared = detached.child.table().descriptor().try_clone_to_owned().unwrap();
    let table: &'static Table = Box::leak(Box::new(Table::open(std::fs::File::from(shared)).unwrap()));
    let writer = table.writer(host::inflight::NODE_SLOT);
    writer.enter("cuCtxSynchronize", Duration::from_secs(1));
    writer.expect(Mono::now());
    assert_eq!(detached.call().map(|call| call.name).as_deref(), Some("cuCtxSynchronize"));
    assert_eq!(detached.hangs(asked + Duration::from_secs(9)), None);
    assert_eq!(detached.hangs(asked + Duration::from_secs(11)), Some(CanaryStep::L2));
    assert_eq!(detached.check(asked + Duration::from_secs(59)), check(true, false));
    writer.exit();
    assert_eq!(detached.check(asked + Duration::from_secs(59)), check(true, true));
    assert_eq!(detached.hangs(asked + Duration::from_secs(60)), None, "it is given time to die");
    assert_eq!(detached.hangs(asked + Duration::from_secs(65)), Some(CanaryStep::L2));
    assert!(!detached.end_by(Mono::now() + PATIENCE).killed, "once");
    gone(Some(detached));
}

#[test]
fn no_progress_outside_of_driver_calls_is_no_hang() {
    let script = Script::new("{0}; exec sleep 60", &[ChildReport::Begin(CanaryStep::Transform)]);
    let (run, detached) = script.run_with(&Stop::default(), Duration::from_millis(300), &mut |_| {});
    assert!(broken(&run).contains("no progress"), "{run:?}");
    gone(detached);
}

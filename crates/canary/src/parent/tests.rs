//! Runs against processes that say and do the worst. They are shell scripts: descriptor 3 takes reports, 4
//! gives the order and closes when the process is to end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use super::*;
use crate::report::Report;
use model::catalog::CanaryCheck;

const PATIENCE: Duration = Duration::from_secs(20);

struct Script {
    dir: tempfile::TempDir,
}

impl Script {
    fn new(text: &str) -> Script {
        let script = Script { dir: tempfile::tempdir().unwrap() };
        fs::write(script.path(), format!("#!/bin/sh\ncd {}\n{text}\n", script.dir.path().display())).unwrap();
        fs::set_permissions(script.path(), fs::Permissions::from_mode(0o755)).unwrap();
        script
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("program")
    }

    fn run(&self, stop: &Stop) -> (Run, Option<Remains>) {
        self.run_with(stop, Duration::from_secs(10), &mut |_| {})
    }

    fn run_with(
        &self,
        stop: &Stop,
        hung_after: Duration,
        on: &mut dyn FnMut(&Report),
    ) -> (Run, Option<Remains>) {
        let order = order();
        // A script just written can be busy for a moment when another test forks meanwhile.
        let start = Start {
            program: &self.path(),
            order: &order,
            hung_after,
            kill_after: Duration::from_secs(60),
            voice: Voice::Log,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (run, remains) = super::run(start, stop, on);
            let busy = matches!(&run.end, End::Unable { text, .. } if text.contains("busy"));
            if !busy || Instant::now() > deadline {
                return (run, remains);
            }
        }
    }
}

fn order() -> Order {
    Order {
        fingerprint: model::catalog::fingerprint(),
        device: "GPU-0".into(),
        pci_address: "0000:06:00.0".into(),
        instance: None,
        peer: None,
        nvml_library: PathBuf::new(),
        cuda_library: "/nowhere/libcuda.so.1".into(),
        checks: vec![CanaryCheck::Init],
        memory_bytes: 1,
        seed: 2,
        yields: true,
    }
}

/// Kills what a test has left and waits for its end.
fn gone(remains: Option<Remains>) {
    let Some(mut remains) = remains else { return };
    remains.running.kill();
    let deadline = Instant::now() + PATIENCE;
    while remains.look(Mono::now()).alive {
        assert!(Instant::now() < deadline, "it ends");
        std::thread::yield_now();
    }
}

fn broken(run: &Run) -> &str {
    match &run.end {
        End::Broken { text } => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_is_told_from_its_begin_to_its_end() {
    let script = Script::new(
        r#"read order <&4
echo "$order" > order
env > environment
ls -A "$CUDA_MPS_PIPE_DIRECTORY" > pipes
echo '{"begin":"init"}' >&3
echo '{"end":{"step":"init","seconds":0.25}}' >&3
echo '{"done":{"gpu_seconds":0.5}}' >&3"#,
    );
    let mut told = Vec::new();
    let (run, remains) = script.run_with(&Stop::default(), PATIENCE, &mut |report| told.push(report.clone()));
    assert_eq!((&run.end, run.gpu_seconds), (&End::Finished, 0.5), "{run:?}");
    assert_eq!(run.steps, [(CanaryStep::Init, 0.25)]);
    assert_eq!((told.len(), remains.is_none()), (3, true));
    assert!(run.ended >= run.began && run.began > 1e9);
    let read = |name: &str| fs::read_to_string(script.dir.path().join(name)).unwrap();
    assert_eq!(serde_json::from_str::<Order>(&read("order")).unwrap(), order());
    let environment = read("environment");
    for line in ["CUDA_VISIBLE_DEVICES=GPU-0", "CUDA_CACHE_DISABLE=1", "LD_LIBRARY_PATH=/nowhere"] {
        assert!(environment.lines().any(|told| told.starts_with(line)), "{line} in {environment}");
    }
    assert_eq!(read("pipes"), "", "the folder is there and empty");
}

#[test]
fn broken_words_are_no_finding_about_the_gpu() {
    for (text, expected) in [
        ("echo nonsense >&3; exec sleep 60", "no report"),
        ("head -c 1000000 /dev/zero >&3", "more than"),
        ("echo '{\"end\":{\"step\":\"l2\",\"seconds\":1}}' >&3", "had not begun"),
        ("echo '{\"begin\":\"l2\"}' >&3; exit 3", "exit status: 3"),
        ("printf '{\"begin\":' >&3", "half a line"),
        ("kill -9 $$", "signal: 9"),
        ("", "too early"),
    ] {
        let (run, remains) = Script::new(text).run(&Stop::default());
        assert!(broken(&run).contains(expected), "{text}: {run:?}");
        gone(remains);
    }
    let missing = Start {
        program: Path::new("/nowhere/program"),
        order: &order(),
        hung_after: PATIENCE,
        kill_after: PATIENCE,
        voice: Voice::Silent,
    };
    let (run, _) = super::run(missing, &Stop::default(), &mut |_| {});
    assert!(matches!(run.end, End::Unable { reason: CanarySkip::Environment, .. }), "{run:?}");
}

#[test]
fn what_was_told_of_the_end_counts_though_the_process_dies() {
    let fault = r#"{"fault":{"step":"context","code":999,"name":"n","call":"c"}}"#;
    let (run, _) = Script::new(&format!("echo '{fault}' >&3; kill -9 $$")).run(&Stop::default());
    assert!(matches!(run.end, End::Fault { step: CanaryStep::Context, code: 999, .. }), "{run:?}");
}

#[test]
fn one_that_is_asked_to_end_and_does_is_abandoned() {
    let script = Script::new(
        r#"read order <&4
echo '{"begin":"sm_rate"}' >&3
read more <&4
echo '{"abandoned":{"text":"asked","pids":[]}}' >&3
echo '{"done":{"gpu_seconds":0.1}}' >&3"#,
    );
    let stop = Stop::default();
    let (run, remains) = script.run_with(&stop, PATIENCE, &mut |report| {
        if matches!(report, Report::Begin(_)) {
            stop.stop();
        }
    });
    let asked = "it was asked to end".to_owned();
    assert_eq!(run.end, End::Abandoned { text: asked, pids: Vec::new() }, "{run:?}");
    assert!(remains.is_none());
}

#[test]
fn one_that_does_not_end_is_handed_back_and_killed_outside_of_calls_only() {
    let script = Script::new("echo '{\"begin\":\"l2\"}' >&3; trap '' TERM; while :; do sleep 1; done");
    let stop = Stop::default();
    stop.stop();
    let (run, remains) = script.run(&stop);
    assert!(matches!(run.end, End::Abandoned { .. }), "{run:?}");
    let mut remains = remains.expect("the process lives");
    let asked = remains.asked;
    assert_eq!(remains.look(asked + Duration::from_secs(29)), Look { alive: true, killed: false });
    assert_eq!(remains.hangs(asked + Duration::from_secs(5)), None);
    assert_eq!(remains.hangs(asked + Duration::from_secs(11)), None, "it is in no call");
    // In a call it gets all of kill_after.
    let table: &'static Table = Box::leak(Box::new(
        Table::open(File::from(remains.table.descriptor().try_clone_to_owned().unwrap())).unwrap(),
    ));
    let writer = table.writer(host::inflight::NODE_SLOT);
    writer.enter("cuCtxSynchronize", Duration::from_secs(1));
    writer.expect(Mono::now());
    assert_eq!(remains.call().map(|call| call.name).as_deref(), Some("cuCtxSynchronize"));
    assert_eq!(remains.hangs(asked + Duration::from_secs(9)), None);
    assert_eq!(remains.hangs(asked + Duration::from_secs(11)), Some(CanaryStep::L2));
    assert_eq!(remains.look(asked + Duration::from_secs(59)), Look { alive: true, killed: false });
    writer.exit();
    assert_eq!(remains.look(asked + Duration::from_secs(59)), Look { alive: true, killed: true });
    assert_eq!(remains.hangs(asked + Duration::from_secs(60)), None, "it is given time to die");
    assert_eq!(remains.hangs(asked + Duration::from_secs(65)), Some(CanaryStep::L2));
    assert!(!remains.end_by(Mono::now() + PATIENCE).killed, "once");
    gone(Some(remains));
}

#[test]
fn no_progress_outside_of_driver_calls_is_no_hang() {
    let script = Script::new("echo '{\"begin\":\"transform\"}' >&3; exec sleep 60");
    let (run, remains) = script.run_with(&Stop::default(), Duration::from_millis(300), &mut |_| {});
    assert!(broken(&run).contains("no progress"), "{run:?}");
    gone(remains);
}

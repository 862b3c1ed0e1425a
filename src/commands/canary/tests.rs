//! Conditions that prevent a run, results of runs, and the table.

use super::report::RunRecord;
use super::table;
use super::*;
use canary::baseline::Siblings;
use canary::judge::fixtures::{baseline, healthy, measurement_mut, part, place};
use canary::report::{CanaryRun, CheckFigures, RunEnd};
use model::canary::Place;
use model::catalog::{CanaryCheck, CanaryStep};

const NOW: f64 = 1.8e9;

fn made(place: Place, run: CanaryRun) -> RunRecord {
    let outcome = judge::judge(&place, &run, &baseline(30, NOW), &Siblings::default(), NOW).outcome;
    let model = "NVIDIA H200".to_owned();
    RunRecord { place, model, conditions: Vec::new(), run: Some(run), outcome: Some(outcome) }
}

fn narrow(mut run: CanaryRun) -> CanaryRun {
    let CheckFigures::Copied { link_width, to_gpu, to_host, .. } =
        &mut measurement_mut(&mut run, CanaryCheck::Pcie).found
    else {
        panic!("no copies")
    };
    *link_width = 8;
    to_gpu.iter_mut().chain(to_host).for_each(|seconds| *seconds *= 2.0);
    run
}

fn fault() -> CanaryRun {
    let (name, call) = ("CUDA_ERROR_LAUNCH_FAILED".to_owned(), "cuLaunchKernel".to_owned());
    CanaryRun { end: RunEnd::Fault { step: CanaryStep::SmRate, code: 719, name, call }, ..healthy() }
}

#[test]
fn the_worst_decides_the_exit_code() {
    let unable = CanaryRun {
        measured: Vec::new(),
        end: RunEnd::Unable { reason: CanarySkip::NoLibrary, text: "no".into() },
        ..healthy()
    };
    let skipped = CanaryRun {
        measured: Vec::new(),
        end: RunEnd::Unable { reason: CanarySkip::DeviceUnavailable, text: "taken".into() },
        ..healthy()
    };
    let code = |runs: &[&CanaryRun]| {
        let made = runs.iter().map(|run| made(place(), (*run).clone())).collect();
        Report::new(made).result.code()
    };
    let (well, narrow, fault) = (healthy(), narrow(healthy()), fault());
    assert_eq!(code(&[]), 0);
    assert_eq!(code(&[&well, &skipped]), 0);
    assert_eq!(code(&[&well, &unable]), 3);
    assert_eq!(code(&[&unable, &narrow, &well]), 1);
    assert_eq!(code(&[&narrow, &fault, &unable]), 2);
    let strict = |runs: &[&CanaryRun]| {
        let made = runs.iter().map(|run| made(place(), (*run).clone())).collect();
        Report::new(made).strict().result.code()
    };
    assert_eq!((strict(&[]), strict(&[&skipped]), strict(&[&skipped, &skipped])), (4, 4, 4));
    assert_eq!((strict(&[&skipped, &well]), strict(&[&skipped, &fault]), strict(&[&unable])), (0, 2, 3));
}

#[test]
fn force_overcomes_who_is_there_but_not_what_would_wedge() {
    let condition = |reason| RunCondition { what: "x".into(), found: "y".into(), allows: Allows::No(reason) };
    let list = [condition(CanarySkip::Processes), condition(CanarySkip::Maintenance)];
    assert_eq!(refused(&list, false), Some((CanarySkip::Processes, "x: y".into())));
    assert_eq!(refused(&list, true), None);
    for never in [CanarySkip::ChildAlive, CanarySkip::Released, CanarySkip::Unhealthy, CanarySkip::Interlock]
    {
        assert_eq!(refused(&[condition(never)], true).map(|(reason, _)| reason), Some(never));
    }
}

#[test]
fn the_table_has_a_line_a_check_and_says_what_is_wrong_below_it() {
    let report = Report::new(vec![made(place(), narrow(healthy())), made(part(), healthy())]);
    let text = table::text(&report, false);
    assert!(text.starts_with("GPU 0  NVIDIA H200  GPU-0\n"), "{text}");
    assert!(text.contains("GPU 0 instance 1/0 (3g.71gb)  NVIDIA H200  MIG-1\n"), "{text}");
    let line = text.lines().find(|line| line.contains("pcie")).unwrap();
    assert!(line.starts_with("  ! pcie") && line.ends_with("narrowed_link"), "{line}");
    assert!(text.contains("      -> 27."), "{text}");
    assert!(text.contains("generation 5 x8 under load"), "{text}");
    let rate = text.lines().find(|line| line.contains("sm_rate")).unwrap();
    for part in ["✓", "125.90 FMA/clk/SM", "98.4 %", "100.00 %", "ok"] {
        assert!(rate.contains(part), "{rate}");
    }
    assert!(text.ends_with("Some GPU is degraded. See the lines marked !.\n"), "{text}");
    assert!(!text.contains('\x1b') && table::text(&report, true).contains("\x1b[33m!\x1b[0m"));
    let broken = table::text(&Report::new(vec![made(place(), fault())]), false);
    assert!(broken.contains("  driver_fault: cuLaunchKernel failed in step sm_rate"), "{broken}");
}

#[test]
fn several_runs_of_a_device_are_one_table_with_their_spread() {
    let report =
        Report::new(vec![made(place(), healthy()), made(place(), fault()), made(place(), healthy())]);
    let text = table::text(&report, false);
    assert_eq!(text.matches("GPU-0").count(), 1, "{text}");
    let line = text.lines().find(|line| line.contains("sm_rate  ")).unwrap();
    assert!(line.starts_with("  ✕ sm_rate") && line.ends_with("driver_fault (1 of 3)"), "{line}");
    let line = text.lines().find(|line| line.contains("hbm_read")).unwrap();
    assert!(line.contains("0.000 %"), "{line}");
}

#[test]
fn the_document_has_what_was_reported_and_what_it_means() {
    let json: serde_json::Value = serde_json::to_value(Report::new(vec![made(place(), healthy())])).unwrap();
    assert_eq!(json["result"], "healthy");
    let run = &json["runs"][0];
    assert_eq!(run["outcome"]["checks"][1]["verdict"], "ok");
    assert_eq!(run["run"]["device"]["name"], "NVIDIA H200");
    assert!(run["run"]["measured"][0]["found"]["sms"].is_array());
}

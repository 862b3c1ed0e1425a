//! Windows of planned work: started by the command or by a file, published, kept, ended, and their effect on the canary.

use std::fs;
use std::path::PathBuf;

use super::node::{Metrics, Node, Setup};

/// A node whose canary comes every second.
fn setup() -> Setup {
    Setup::new("tests/scenarios/canary.toml")
        .with("CANARY__MODE", "idle")
        .with("CANARY__INTERVAL", "1s")
        .with("CANARY__IDLE_FOR", "1s")
        .with("CANARY__CHECKS", "init,launch")
        .with("CANARY__MAX_DUTY_RATIO", "0.1")
}

/// Runs `window` with these arguments: whether it went well, and what it said.
fn window(node: &Node, args: &[&str]) -> (bool, String) {
    let out = node.command(&[&["window"], args].concat()).output().unwrap();
    let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
    (out.status.success(), text)
}

fn well(node: &Node, args: &[&str]) -> String {
    let (well, text) = window(node, args);
    assert!(well, "{args:?}: {text}");
    text
}

fn active(m: &Metrics, kind: &str) -> Option<f64> {
    m.value("gpu_window_active", &[("kind", kind)])
}

fn skipped(m: &Metrics) -> f64 {
    m.all("gpu_canary_skipped_total", &[("reason", "maintenance")]).iter().sum()
}

fn finished(m: &Metrics) -> f64 {
    m.value("gpu_canary_runs_total", &[("end", "finished")]).unwrap_or(0.0)
}

fn up(m: &Metrics) -> Option<f64> {
    m.value("gpu_exporter_collector_up", &[("collector", "windows")])
}

/// The folder of drop-in files.
fn drop_ins(node: &Node) -> PathBuf {
    let folder = node.root().join("etc/gpu-node-exporter/windows.d");
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_maintenance_window_is_published_keeps_the_canary_away_and_lives_through_a_restart() {
    let mut node = setup().start();
    let m = node.wait_metrics("no window", |m| active(m, "maintenance") == Some(0.0));
    assert_eq!(active(&m, "training"), Some(0.0));
    node.wait_metrics("the canary runs", |m| finished(m) >= 1.0);
    let text = well(&node, &["start", "--name", "disk", "--for", "1h", "--reason", "new \"disk\"\nin bay 3"]);
    assert!(text.contains("Window disk (maintenance) until ") && text.contains("window end disk"), "{text}");

    let m = node.wait_metrics("it is open", |m| active(m, "maintenance") == Some(1.0));
    assert_eq!(active(&m, "training"), Some(0.0));
    let at = |m: &Metrics, name: &str| m.value(name, &[("window", "disk")]).unwrap();
    let lasts = at(&m, "gpu_window_end_timestamp_seconds") - at(&m, "gpu_window_start_timestamp_seconds");
    assert_eq!(lasts, 3600.0);
    node.wait_metrics("the canary is kept away", |m| skipped(m) >= 2.0);
    let (_, page) = node.get("/");
    assert!(page.contains("Maintenance until ") && page.contains("in bay 3"), "{page}");
    let (status, json) = node.get("/api/v1/windows");
    assert_eq!(status, 200);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["windows"][0]["state"], "open");
    assert_eq!(json["windows"][0]["reason"], "new \"disk\" in bay 3");
    let (_, events) = node.get("/api/v1/events");
    assert!(events.contains("A window of planned work has begun."), "{events}");
    let (refused, text) = window(&node, &["start", "--name", "disk", "--for", "1h", "--reason", "x"]);
    assert!(!refused && text.contains("window end disk"), "{text}");

    node.terminate();
    let again = setup().with("HOST__ROOT", node.root().to_str().unwrap()).start();
    let m = again.wait_metrics("it is still open", |m| active(m, "maintenance") == Some(1.0));
    assert_eq!(finished(&m), 0.0, "no canary before it is known");
    again.wait_metrics("the canary is kept away", |m| skipped(m) >= 1.0);
    assert!(well(&node, &["list"]).contains("open"), "without the daemon too");
    assert_eq!(well(&node, &["end", "disk"]), "Ended: disk.\n");
    let m = again.wait_metrics("it has ended", |m| active(m, "maintenance") == Some(0.0));
    assert_eq!(m.all("gpu_window_info", &[("window", "disk")]), [1.0], "published for an hour");
    again.wait_metrics("the canary runs", |m| finished(m) >= 1.0);
}

#[test]
fn a_training_window_keeps_nothing_away_and_what_is_too_long_is_cut() {
    let node = setup().with("WINDOWS__MAX_DURATION", "2h").start();
    let text = well(&node, &["start", "--kind", "training", "--for", "30days", "--reason", "run 17"]);
    assert!(text.contains("cut to windows.max_duration"), "{text}");
    well(
        &node,
        &["start", "--name", "later", "--at", "2099-01-01T00:00:00+01:00", "--for", "90m", "--reason", "x"],
    );
    let m = node.wait_metrics("two windows", |m| m.all("gpu_window_info", &[]).len() == 2);
    assert_eq!((active(&m, "training"), active(&m, "maintenance")), (Some(1.0), Some(0.0)));
    assert_eq!(m.value("gpu_window_start_timestamp_seconds", &[("window", "later")]), Some(4_070_905_200.0));
    let lasts = |m: &Metrics| {
        let of = |name: &str| m.all(name, &[]).into_iter().fold(f64::INFINITY, f64::min);
        of("gpu_window_end_timestamp_seconds") - of("gpu_window_start_timestamp_seconds")
    };
    assert_eq!(lasts(&m), 7200.0);
    let before = finished(&m);
    node.wait_metrics("the canary runs", |m| finished(m) > before);
    assert_eq!(skipped(&node.metrics()), 0.0);
    let list = well(&node, &["list", "--format", "json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["windows"].as_array().unwrap().len(), 2);
    let text = well(&node, &["end", "--all"]);
    assert!(text.contains("later"), "{text}");
    node.wait_metrics("both have ended", |m| active(m, "training") == Some(0.0));
    assert_eq!(well(&node, &["end", "--all"]), "There is no window to end.\n");
}

#[test]
fn files_are_windows_too_and_a_bad_one_is_named() {
    let node = setup().start();
    let folder = drop_ins(&node);
    fs::write(folder.join("power.toml"), "start = 2020-01-01T00:00:00Z\nend = 2099-01-01T00:00:00Z\n")
        .unwrap();
    fs::write(folder.join("grid.toml"), "start = 2098-12-31T23:00:00Z\nfor = '1h'\nreason = 'grid'\n")
        .unwrap();
    let m =
        node.wait_metrics("one is published", |m| m.all("gpu_window_info", &[("window", "grid")]) == [1.0]);
    assert_eq!(active(&m, "maintenance"), Some(0.0), "the other is cut, and long over");
    fs::write(folder.join("bad.toml"), "start = 'soon'\nwhy = 1\n").unwrap();
    let m = node.wait_metrics("something is wrong", |m| up(m) == Some(0.0));
    assert_eq!(m.all("gpu_window_info", &[("window", "grid")]), [1.0], "the others stay");
    let (_, page) = node.get("/readyz");
    assert!(page.contains("bad.toml") && page.contains("`why`") && page.contains("`start`"), "{page}");
    assert!(well(&node, &["list"]).contains("ignored: "));
    assert_eq!(well(&node, &["end", "grid"]), "Ended: grid.\n");
    assert!(!folder.join("grid.toml").exists(), "it was to come");
    fs::remove_file(folder.join("bad.toml")).unwrap();
    node.wait_metrics("all is well", |m| up(m) == Some(1.0));
}

#[test]
fn requests_that_cannot_be_met_say_what_to_do() {
    let node = setup().start();
    for (args, said) in [
        (&["start", "--for", "2h"][..], "--reason"),
        (&["start", "--reason", "x"], "--for"),
        (&["start", "--reason", "x", "--for", "soon"], "such as 2h"),
        (&["start", "--reason", "x", "--for", "2h", "--at", "2026-11-22T08:00:00"], "offset"),
        (&["start", "--reason", "x", "--for", "2h", "--kind", "party"], "maintenance, training"),
        (&["start", "--reason", "x", "--for", "2h", "--name", "../x"], "a name is"),
        (&["start", "--reason", "x", "--for", "2h", "--at", "2020-01-01T00:00:00Z"], "--at"),
        (&["end"], "--all"),
        (&["end", "nothing"], "no window nothing"),
    ] {
        let (well, text) = window(&node, args);
        assert!(!well && text.contains(said), "{args:?}: {text}");
    }
    // Who may not write to the directory may make no window: here, it is a file.
    let dir = drop_ins(&node);
    fs::remove_dir(&dir).unwrap();
    fs::write(&dir, "").unwrap();
    let (well, text) = window(&node, &["start", "--for", "1h", "--reason", "x"]);
    assert!(!well && text.contains("windows.dir"), "{text}");
    node.wait_metrics("no window", |m| active(m, "maintenance") == Some(0.0));
}

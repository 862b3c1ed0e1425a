//! `assess` on programs that run here: what passes through, what is ranked, what is not known, two recordings, a running owner.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;

/// `tests/data/assess/hot.rs` with frame pointers, and the same without symbols.
static HOT: LazyLock<(PathBuf, PathBuf)> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("assess");
    fs::create_dir_all(&dir).unwrap();
    let compile = |name: &str, strip: &str| {
        let out = dir.join(name);
        let done = Command::new("rustc")
            .args(["--edition", "2024", "-O", "-C", "force-frame-pointers=yes", "-C", strip, "-o"])
            .arg(&out)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/assess/hot.rs"))
            .status();
        assert!(done.unwrap().success());
        out
    };
    (compile("hot", "strip=none"), compile("bare", "strip=symbols"))
});

fn assess(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
    command.arg("assess").args(options);
    if !program.is_empty() {
        command.arg("--").args(program);
    }
    command
}

/// The report of a program, and what the program left.
fn report(options: &[&str], program: &[&str]) -> (Value, Output) {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("report.json");
    let options = [&["--format", "json", "--out", file.to_str().unwrap()], options].concat();
    let output = assess(&options, program).output().unwrap();
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (serde_json::from_str(&text).unwrap(), output)
}

fn functions(report: &Value) -> Vec<(&str, f64)> {
    let functions = report["run"]["hot"]["functions"].as_array().unwrap();
    functions.iter().map(|one| (one["name"].as_str().unwrap(), one["share"].as_f64().unwrap())).collect()
}

#[test]
fn hot_functions_are_ranked_within_three_points_of_the_programs_own_timers() {
    let (report, output) = report(&["--items", "30000"], &[HOT.0.to_str().unwrap(), "12"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let cpu = report["run"]["cpu_seconds"].as_f64().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let timers: Vec<(&str, f64)> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, millis)| (name, millis.parse::<f64>().unwrap() / 1e3 / cpu))
        .collect();
    let found = functions(&report);
    let share = |name: &str| found.iter().find(|(of, _)| *of == format!("hot::{name}")).unwrap().1;
    for (name, timer) in &timers {
        assert!((share(name) - timer).abs() < 0.03, "{name}: {timer} by its timer, {found:?}");
    }
    assert!(timers.is_sorted_by(|a, b| a.1 > b.1), "{timers:?}");
    assert!(share("trigonometry") > share("sort") && share("sort") > share("accumulate"), "{found:?}");
    let callers = &report["run"]["hot"]["functions"][0]["callers"][0];
    // As the version of the compiler mangles it: with the closure, or without.
    assert!(callers["name"].as_str().unwrap().starts_with("hot::timed"), "{report}");
    assert!(found.iter().all(|(_, share)| *share >= 0.005));
    let bound = &report["amdahl"];
    let of_wall = bound["share_of_time"].as_f64().unwrap();
    assert!(bound["share"].as_f64().unwrap() > 0.8, "{bound}");
    // On a busy machine it waits for a CPU, and its wall time has no bound.
    let (one_thread, limit) = (&report["figures"]["threads_used"], &report["figures"]["utilization_ratio"]);
    let all_the_time = one_thread.as_f64().unwrap() >= 0.95 && limit.as_f64().unwrap() < 0.9;
    assert!(bound["of"] == "wall" || !all_the_time, "{report}");
    assert!((bound["at_most"].as_f64().unwrap() * (1.0 - of_wall) - 1.0).abs() < 1e-6, "{bound}");
    let threads = report["figures"]["threads_used"].as_f64().unwrap();
    assert!(threads > 0.0 && threads < 1.05, "{threads}");
    // Without a PMU nothing is made up: no figure, a reason, no verdict.
    if report["run"]["counts"]["cycles"].is_null() {
        assert!(report["figures"]["density_at_most"].is_null());
        let gaps = report["run"]["not_measured"].as_object().unwrap();
        assert!(
            gaps.keys().any(|what| what.contains("cycles") && what.contains("last-level misses")),
            "{gaps:?}"
        );
        assert_eq!(report["verdict"], "not_judged");
    }
}

#[test]
fn output_input_exit_code_and_signal_are_the_programs() {
    let dir = TempDir::new().unwrap();
    let input = dir.path().join("input");
    fs::write(&input, "a\0b\n").unwrap();
    let mut command = assess(&[], &["sh", "-c", "cat; exit 7"]);
    let output = command.stdin(fs::File::open(&input).unwrap()).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), &b"a\0b\n"[..]));
    let page = String::from_utf8(output.stderr).unwrap();
    assert!(page.contains("page faults") && page.contains("context switches"), "{page}");
    assert!(page.contains("(exit code 7)") && !page.contains('\x1b'), "{page}");

    let output = assess(&[], &["sh", "-c", "kill -SEGV $$"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(11), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("(ended by signal 11)"));

    for (program, code) in [("/nowhere/at/all", 127), ("/dev/null", 126)] {
        let output = assess(&[], &[program]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(code), 1), "{said}");
        assert!(said.contains(program) && output.stdout.is_empty(), "{said}");
    }
    // The report cannot be written: the program does not start for nothing, or its end stays its own.
    for option in ["--out", "--record"] {
        let output =
            assess(&[option, "/nowhere/report"], &["sh", "-c", "echo ran; exit 3"]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(64), 0), "{option}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("/nowhere/report"));
    }
    // What the program wrote is not overwritten by its report.
    let log = dir.path().join("log");
    let mut command = assess(&["--out", "/dev/stdout"], &["sh", "-c", "echo it ran"]);
    assert!(command.stdout(fs::File::create(&log).unwrap()).status().unwrap().success());
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("it ran\nassess: sh -c") && text.contains("Verdict"), "{text}");
    // Started by one that waits for no child.
    let script = "trap '' CHLD; exec \"$0\" assess --out /dev/null -- sh -c 'exit 3'";
    let output =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_gpu-node-exporter")]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    // A real-time signal.
    let output = assess(&["--out", "/dev/null"], &["sh", "-c", "kill -36 $$"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(36), "{output:?}");
    let output = assess(&["--out", "/dev/full"], &["sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let page = String::from_utf8(output.stderr).unwrap();
    assert!(page.contains("/dev/full") && page.contains("(exit code 3)"), "{page}");
    for wrong in [&[][..], &["--pid", "1", "--job", "2"], &["--target", "wall<=1"], &["--gpu", "x"]] {
        assert_eq!(assess(wrong, &[]).output().unwrap().status.code(), Some(64), "{wrong:?}");
    }
}

#[test]
fn sigterm_reaches_the_program() {
    let mut command = assess(
        &["--out", "/dev/null"],
        &["sh", "-c", "trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 0.1; done"],
    );
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "asked");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

/// As `nohup` starts programs, and as services and terminals signal them.
#[test]
fn ignored_signals_stay_ignored_and_others_reach_the_program() {
    let script = "trap '' HUP; exec \"$0\" assess --out /dev/null -- sh -c 'grep SigIgn /proc/self/status'";
    let output =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_gpu-node-exporter")]).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    let mask = u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 1, 1, "SIGHUP: {line}");
    for name in ["USR1", "INT"] {
        let script = format!("trap 'echo asked; exit 6' {name}; echo up; while :; do sleep 0.1; done");
        // A shell that runs the tests in the background ignores SIGINT for them.
        let mut command = Command::new("env");
        command.args(["--default-signal=USR1,INT", env!("CARGO_BIN_EXE_gpu-node-exporter"), "assess"]);
        command.args(["--out", "/dev/null", "--", "sh", "-c", &script]);
        let mut child = command.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let signal = format!("SIG{name}").parse::<nix::sys::signal::Signal>().unwrap();
        nix::sys::signal::kill(pid, signal).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "asked", "{name}");
        assert_eq!(child.wait().unwrap().code(), Some(6), "{name}");
    }
}

#[test]
fn children_and_the_next_program_are_followed() {
    let hot = HOT.0.to_str().unwrap();
    let script = format!("{hot} 2 & {hot} 1; wait; exec {hot} 1");
    let (report, output) = report(&[], &["sh", "-c", &script]);
    let text = String::from_utf8(output.stdout).unwrap();
    let millis = text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
    let (own, cpu) = (millis.sum::<f64>() / 1e3, report["run"]["cpu_seconds"].as_f64().unwrap());
    assert!(cpu >= own && cpu < own * 1.3, "{cpu} s, {own} s by the timers");
    assert_eq!(functions(&report)[0].0, "hot::trigonometry");
    let samples = report["run"]["hot"]["samples"].as_f64().unwrap();
    assert!((samples / 99.0 / cpu - 1.0).abs() < 0.15, "{samples} samples in {cpu} s");
}

#[test]
fn what_cannot_be_known_is_said() {
    let (stripped, _) = report(&[], &[HOT.1.to_str().unwrap(), "1"]);
    let hot = &stripped["run"]["hot"];
    assert_eq!(functions(&stripped)[0].0, "[no symbol in bare]", "{hot}");
    assert!(hot["unnamed"].as_f64().unwrap() > 0.8 * hot["samples"].as_f64().unwrap());
    let (short, _) = report(&["--items", "1e9"], &["sh", "-c", ":"]);
    assert_eq!(short["verdict"], "not_judged");
    assert!(short["amdahl"].is_null() && short["no_bound"].as_str().unwrap().contains("too few"), "{short}");
    // Another user, who may watch only the program's own code.
    if nix::unistd::geteuid().is_root() {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (program, hot) = (dir.path().join("program"), dir.path().join("hot"));
        fs::copy(env!("CARGO_BIN_EXE_gpu-node-exporter"), &program).unwrap();
        fs::copy(&HOT.0, &hot).unwrap();
        let mut command = Command::new(program);
        let output = command.uid(65534).gid(65534).args(["assess", "--"]).arg(hot).arg("1").output().unwrap();
        let page = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && page.contains("Not measured"), "{page}");
        assert!(page.contains("CAP_PERFMON") && page.contains("threads used"), "{page}");
    }
}

#[test]
fn two_recordings_are_compared() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (slow, quick) = (path("slow.json"), path("quick.json"));
    for (file, rounds) in [(&slow, "3"), (&slow, "3"), (&quick, "1"), (&quick, "1")] {
        let run = assess(
            &["--record", file, "--out", "/dev/null", "--items", "100"],
            &[HOT.0.to_str().unwrap(), rounds],
        );
        assert!({ run }.output().unwrap().status.success());
    }
    let compare = |targets: &[&str]| {
        let targets = targets.iter().flat_map(|target| ["--target", target]);
        let options: Vec<&str> = ["--compare", &slow, &quick].into_iter().chain(targets).collect();
        let output = assess(&options, &[]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    // A third of the work, on a machine that may be busy with others.
    let (code, text) = compare(&["wall<=600", "items>=0.01"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("✓ met wall <= 600") && text.contains("(2)"), "{text}");
    let (code, text) = compare(&["wall<=0.001"]);
    assert!(code == Some(1) && text.contains("✕ missed wall"), "{text}");
    assert_eq!(compare(&["llc_hit>=0"]).0, if text.contains("not measured") { Some(1) } else { Some(0) });
    let output = assess(&["--compare", &slow, &path("none.json")], &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("none.json"));
}

/// A triad of 2e8 doubles at 12 GB/s, by arithmetic: 2 FLOPs and 32 bytes an element.
#[test]
fn a_recorded_run_is_reported_again() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("triad.json");
    let seconds = 32.0 * 2e8 / 12e9;
    let triad = serde_json::json!({
        "subject": "triad", "computed": true, "wall_seconds": seconds, "cpu_seconds": seconds,
        "counts": {
            "instructions": 2.5e8, "branches": 5e7, "branch_misses": 10, "llc_references": 1e8, "llc_misses": 1e8,
            "flops": { "double": 4e8 }
        }
    });
    fs::write(&file, format!("{triad}\n")).unwrap();
    let read = |options: &[&str]| {
        let output = assess(&[&["--read", file.to_str().unwrap()], options].concat(), &[]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let page = read(&[]);
    for part in ["computed from known operation counts", "bound by memory", "FLOP/s", "= H200 FP64"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(
        page.contains("-> not decided") && page.lines().all(|line| line.chars().count() <= 120),
        "{page}"
    );
    let report: Value = serde_json::from_str(&read(&["--format", "json", "--items", "2e8"])).unwrap();
    assert_eq!(
        (&report["verdict"], &report["figures"]["density_at_most"]),
        (&"memory_bound".into(), &0.0625.into())
    );
    assert!(read(&["--format", "svg", "--gpu", "a100"]).contains("A100 FP64"));
    assert_eq!(assess(&["--read", "/dev/null"], &[]).output().unwrap().status.code(), Some(1));
}

#[test]
fn a_running_process_is_watched() {
    let dir = TempDir::new().unwrap();
    let record = dir.path().join("owner.json");
    let mut hot = Command::new(&HOT.0).arg("1000000").stdout(Stdio::null()).spawn().unwrap();
    let (pid, file) = (hot.id().to_string(), record.to_str().unwrap());
    let output = assess(&["--pid", &pid, "--for", "5s", "--format", "json", "--record", file], &[]).output();
    hot.kill().unwrap();
    hot.wait().unwrap();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["run"]["cpu_seconds"].as_f64().unwrap() > 0.0, "{report}");
    match report["run"]["hot"].is_null() {
        true => assert!(!report["run"]["not_measured"]["hot functions"].is_null(), "{report}"),
        false => assert_eq!(functions(&report)[0].0, "hot::trigonometry"),
    }
    let lines = fs::read_to_string(&record).unwrap().lines().count();
    assert!((1..=10).contains(&lines), "{lines}");
    // It ends at once, and is a zombie until the end of the test.
    let short = dir.path().join("short.json");
    let mut zombie = Command::new("sleep").arg("1").spawn().unwrap();
    let (pid, file) = (zombie.id().to_string(), short.to_str().unwrap());
    let output =
        assess(&["--pid", &pid, "--for", "600s", "--items", "9", "--record", file], &[]).output().unwrap();
    zombie.wait().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.contains("the rest of --for: it ended after") && page.contains("not of a running owner"),
        "{page}"
    );
    assert_eq!(fs::read_to_string(&short).unwrap().lines().count(), 1);
    let output = assess(&["--job", "no-such-job", "--for", "1s"], &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no process on this node"));
}

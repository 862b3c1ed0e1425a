//! `compat-diff` against a little HTTP server that serves a page as dcgm-exporter might: that of the daemon, changed.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use super::dcgm::program;
use super::node::{Node, PATIENCE, Setup};

/// A response without its status line's beginning: `200 OK`, more headers, body.
type Answer = (&'static str, String, String);

/// Serves what `answer` gives for a path, until the tests end.
fn serve(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.extend(byte);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let (status, headers, body) = answer(head.split(' ').nth(1).unwrap_or("/"));
            let _ = write!(stream, "HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n{body}");
        }
    });
    address
}

fn page(body: String) -> Answer {
    ("200 OK", format!("Content-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n", body.len()), body)
}

/// The page of a daemon.
fn fetch(daemon: SocketAddr) -> String {
    let mut stream = TcpStream::connect(daemon).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /dcgm/metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Runs the command with the daemon's configuration.
fn compared(node: &Node, url: &str, more: &[&str]) -> (Option<i32>, String) {
    let listen = node.addr().to_string();
    let args = [&["compat-diff", url, "--pause", "100ms", "--listen", &listen], more].concat();
    let output = node.command(&args).output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr),
    )
}

/// As 4.8.2 spells the host, with a field that is not covered, one that could be listed, a counter that is none, and a hot GPU.
fn foreign(text: &str) -> String {
    let mut other = text.replace("hostname=\"", "Hostname=\"").replace(
        "# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL gauge",
        "# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL counter",
    );
    let uuid = text.split("UUID=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let line =
        other.lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{") && line.contains(uuid)).unwrap();
    let hot = format!("{} 99", line.rsplit_once(' ').unwrap().0);
    other = other.replace(line, &hot);
    for name in ["DCGM_FI_DEV_FAN_SPEED", "DCGM_FI_DEV_FB_TOTAL"] {
        other += &format!("# HELP {name} Help.\n# TYPE {name} gauge\n{name}{{UUID=\"{uuid}\"}} 30\n");
    }
    other
}

#[test]
fn a_page_like_ours_is_alike_and_each_difference_is_named_with_its_setting() {
    let node = Node::start("tests/scenarios/still-8xh200.toml");
    for name in
        ["DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_GPU_TEMP"]
    {
        node.wait_for(name, |node| node.get("/dcgm/metrics").1.matches(&format!("\n{name}{{")).count() == 8);
    }
    let daemon = node.addr();
    let address = serve(move |path| match path {
        "/metrics" => page(fetch(daemon)),
        _ => page(foreign(&fetch(daemon))),
    });
    // Without a path it is /metrics.
    let (code, text) = compared(&node, &format!("http://{address}"), &[]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        &format!("dcgm-exporter   http://{address}/metrics\n"),
        &format!("this exporter   http://{daemon}/dcgm/metrics\n"),
        "GPUs on both pages: 8\n",
        " 0 different, 0 missing, 0 only here",
        "\nThe switch is safe: everything on dcgm-exporter's page is here too, with the same values.\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b'), "no colours but on a terminal");

    let url = format!("http://{address}/other");
    let (code, text) = compared(&node, &url, &["--format", "json"]);
    assert_eq!(code, Some(1), "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    let family = |name: &str| {
        let families = report["families"].as_array().unwrap();
        families.iter().find(|family| family["name"] == name).unwrap_or_else(|| panic!("no {name}: {text}"))
    };
    assert_eq!(family("DCGM_FI_DEV_FAN_SPEED")["missing"]["reason"], "not_covered");
    assert_eq!(family("DCGM_FI_DEV_FB_TOTAL")["missing"]["row"], "DCGM_FI_DEV_FB_TOTAL,gauge,Help.");
    assert_eq!(family("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")["types"][0], "counter");
    let temperature = family("DCGM_FI_DEV_GPU_TEMP");
    assert_eq!(temperature["states"], serde_json::json!(["other_labels", "other_value"]));
    assert_eq!(
        (&temperature["values"]["outside"], &temperature["values"]["compared"]),
        (&1.into(), &8.into())
    );
    assert_eq!(family("DCGM_FI_DEV_FB_USED")["states"], serde_json::json!(["other_labels"]));
    let keys: Vec<&str> = report["advice"]["settings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["fields_file", "hostname_label"]);
    assert_eq!((&report["alike"], &report["advice"]["verdict"]), (&false.into(), &"lossy".into()));

    let (code, text) = compared(&node, &url, &[]);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        "- DCGM_FI_DEV_FAN_SPEED ",
        "missing, not covered",
        "≠ Hostname ",
        "  hostname_label = \"Hostname\" ",
        "    DCGM_FI_DEV_FB_TOTAL,gauge,Help.\n",
        "value outside the tolerance: 1 of 8",
        "The switch is not safe yet",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A hundred times the tolerance.
    let (_, text) = compared(&node, &url, &["--tolerance", "100"]);
    assert!(!text.contains("value outside"), "{text}");
}

#[test]
fn the_settings_of_the_report_make_the_pages_alike() {
    const STILL: &str = "tests/scenarios/still-1xh200.toml";
    let ready = |node: &Node, name: &str| {
        node.wait_for(name, |node| node.get("/dcgm/metrics").1.contains(&format!("\n{name}{{")));
    };
    let first = Node::start(STILL);
    ready(&first, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL");
    ready(&first, "DCGM_FI_PROF_GR_ENGINE_ACTIVE");
    let memory = first.metrics().value("gpu_memory_total_bytes", &[]).unwrap() / 1_048_576.0;
    let text = fetch(first.addr());
    let series = text.lines().find_map(|line| line.strip_prefix("DCGM_FI_DEV_FB_FREE")).unwrap();
    let (labels, _) = series.rsplit_once(' ').unwrap();
    let theirs = format!(
        "{text}# HELP DCGM_FI_DEV_FB_TOTAL Memory, all of it.\n# TYPE DCGM_FI_DEV_FB_TOTAL gauge\n\
         DCGM_FI_DEV_FB_TOTAL{labels} {memory}\n"
    );
    let rate = "# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL ";
    let theirs = theirs
        .replace("hostname=\"", "Hostname=\"")
        .replace(&format!("{rate}gauge"), &format!("{rate}counter"));
    let dir = TempDir::new().unwrap();
    let saved = dir.path().join("theirs.prom");
    fs::write(&saved, &theirs).unwrap();
    let (code, text) = compared(&first, saved.to_str().unwrap(), &["--format", "json"]);
    assert_eq!(code, Some(1), "{text}");
    let advice = serde_json::from_str::<Value>(&text).unwrap()["advice"].take();
    assert_eq!(advice["verdict"], "after_settings", "{text}");
    let rows: Vec<&str> =
        advice["rows"].as_array().unwrap().iter().map(|row| row.as_str().unwrap()).collect();
    let total = "DCGM_FI_DEV_FB_TOTAL,gauge,\"Memory, all of it.\"";
    assert_eq!((rows.len(), rows[0]), (2, total));
    assert!(rows[1].starts_with("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL,counter,"), "{rows:?}");

    // The list of 4.8.2, where the rate is a counter, with the row that it lacks, and the other setting.
    let list = fs::read_to_string(super::dcgm::data("default.csv")).unwrap();
    let file = dir.path().join("counters.csv");
    fs::write(&file, format!("{list}{total}\n")).unwrap();
    let settings = advice["settings"].as_array().unwrap();
    let keys: Vec<&Value> = settings.iter().map(|setting| &setting["key"]).collect();
    assert_eq!(keys, ["fields_file", "hostname_label"]);
    let setup = Setup::new(STILL).with("DCGM__FIELDS_FILE", file.to_str().unwrap());
    let second =
        setup.with("DCGM__HOSTNAME_LABEL", settings[1]["value"].as_str().unwrap().trim_matches('"')).start();
    ready(&second, "DCGM_FI_DEV_FB_TOTAL");
    ready(&second, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL");
    ready(&second, "DCGM_FI_PROF_GR_ENGINE_ACTIVE");
    let (code, text) = compared(&second, saved.to_str().unwrap(), &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("= Hostname ") && text.contains("The switch is safe"), "{text}");
}

/// A golden page of our own, for tests without a daemon.
fn saved() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("crates/dcgm/src/page/golden/plain-4.8-faithful.prom")
}

fn against_saved(theirs: &str) -> (Option<i32>, String, String) {
    let saved = saved();
    let Output { status, stdout, stderr } =
        program(&["compat-diff", theirs, "--ours", saved.to_str().unwrap()], &[]);
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn what_cannot_be_compared_has_its_url_and_the_next_step() {
    let golden = fs::read_to_string(saved()).unwrap();
    let address = serve(move |path| match path {
        "/html" => page("<!doctype html><a href=metrics>Metrics</a>".into()),
        "/typed" => ("200 OK", "Content-Type: text/html\r\nContent-Length: 2\r\n".into(), "hi".into()),
        "/short" => ("200 OK", format!("Content-Length: {}\r\n", golden.len() + 9), golden.clone()),
        "/cut" => page(golden[..golden.len() - 9].into()),
        "/quote" => page(format!("{golden}DCGM_X{{a=\"b\"c\"}} 1\n")),
        "/node" => page("# TYPE node_load1 gauge\nnode_load1 0.5\n".into()),
        "/own" => page("gpu_power_watts{gpu=\"0\"} 1\n".into()),
        "/empty" => page(String::new()),
        "/elsewhere" => page(golden.replace("UUID=\"GPU-", "UUID=\"GPU-other-")),
        "/busy" => ("503 Service Unavailable", "Content-Length: 0\r\n".into(), String::new()),
        "/password" => ("401 Unauthorized", "Content-Length: 0\r\n".into(), String::new()),
        "/moved" => ("302 Found", "Location: /metrics\r\nContent-Length: 0\r\n".into(), String::new()),
        _ => ("404 Not Found", "Content-Length: 0\r\n".into(), String::new()),
    });
    for (path, part) in [
        ("/none", "404 Not Found"),
        ("/none", "or /metrics at the address of dcgm.listen"),
        ("/html", "HTML"),
        ("/typed", "HTML"),
        ("/short", "incomplete HTTP response"),
        ("/cut", "cut off"),
        ("/quote", "a quote within a label value"),
        ("/node", "no family is one of DCGM's, but node_load1"),
        ("/own", "/dcgm/metrics is the one to compare"),
        ("/empty", "the page is empty"),
        ("/elsewhere", "the pages are of two nodes"),
        ("/busy", "try again"),
        ("/password", "save the page with curl"),
        ("/moved", "the page has moved to /metrics"),
    ] {
        let url = format!("http://{address}{path}");
        let (code, out, said) = against_saved(&url);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{path}: {said}");
        assert!(said.contains(&url) && said.contains(part) && said.lines().count() == 1, "{path}: {said}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let away = taken.local_addr().unwrap();
    drop(taken);
    let (code, _, said) = against_saved(&format!("http://{away}/metrics"));
    assert!(code == Some(2) && said.contains("is the exporter running"), "{said}");
    // The daemon of the configuration is away.
    let output = program(&["compat-diff", saved().to_str().unwrap(), "--listen", &away.to_string()], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains(&format!("{away}/dcgm/metrics")), "{said}");
    for wrong in ["localhost:9400", "https://localhost:9400/metrics", "no-such-file"] {
        let (code, _, said) = against_saved(wrong);
        assert!(code == Some(64) && said.contains("http"), "{wrong}: {said}");
    }
}

#[test]
fn what_is_only_here_is_no_loss() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("page.prom");
    let golden = fs::read_to_string(saved()).unwrap();
    // The list of dcgm-exporter's chart has no label of the driver.
    fs::write(&file, golden.replace(",DCGM_FI_DRIVER_VERSION=\"580.95.05\"", "")).unwrap();
    let (code, text, _) = against_saved(file.to_str().unwrap());
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("+ DCGM_FI_DRIVER_VERSION ") && text.contains("The switch is safe: nothing is lost"),
        "{text}"
    );
    // No page is as long, whatever the file is.
    fs::File::create(&file).unwrap().set_len((64 << 20) + 1).unwrap();
    let (code, _, said) = against_saved(file.to_str().unwrap());
    assert!(code == Some(2) && said.contains("the page is longer than 64 MiB"), "{said}");
}

#[test]
fn a_saved_page_is_compared_without_what_moves_and_doubled_series_are_named() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("page.prom");
    let golden = fs::read_to_string(saved()).unwrap();
    let temperature = golden.lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{")).unwrap();
    let (series, _) = temperature.rsplit_once(' ').unwrap();
    fs::write(&file, golden.replace(temperature, &format!("{series} 12\n{series} 13"))).unwrap();
    let (code, text, said) = against_saved(file.to_str().unwrap());
    assert_eq!((code, said.as_str()), (Some(0), ""), "{text}");
    assert!(
        text.contains("Twice on dcgm-exporter's page")
            && text.contains("1 series, for example DCGM_FI_DEV_GPU_TEMP{")
    );
    assert!(
        text.contains("Values not compared (moves, and a page is a saved one): DCGM_FI_DEV_DEC_UTIL,"),
        "{text}"
    );
}

//! The status page `/`: what a person sees first. One HTML document without script, drawn here from a
//! snapshot; it asks for itself again every few seconds.
//!
//! The verdicts are those of the snapshot. `card` draws a GPU with its `owners` and its `canary`, `figures` formats
//! numbers for people, `html` escapes every text.

mod canary;
mod card;
mod html;

use std::sync::LazyLock;

use html::{esc, put};

use crate::assets::ASSETS;
use crate::paths::PATHS;
use model::catalog::{self as m, Node, Subject};
use model::health::HealthLevel;
use model::snapshot::{Snapshot, Value};
use model::{text, window};

const STYLE: &str = include_str!("page/style.css");

/// Fetched once: the name of a node does not change while it runs.
static HOST: LazyLock<String> = LazyLock::new(|| match nix::unistd::gethostname() {
    Ok(name) => name.to_string_lossy().into_owned(),
    Err(error) => {
        tracing::warn!(%error, "the status page has no host name");
        "this node".to_owned()
    }
});

/// What a browser may load for the page: its one style sheet, known by its SHA-256, and nothing else.
pub const fn content_security_policy() -> &'static str {
    "default-src 'none'; style-src 'sha256-KQbl8l8TgMACAKW933hUftHYQZDCKr0CP6xGZtWEOMI='; img-src data:; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'"
}

/// Appends the page.
pub fn encode(snapshot: &Snapshot, out: &mut String) {
    put!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"refresh\" content=\"5\">\n<title>{} {} · GPUs</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n</head>\n<body>\n",
        look(snapshot.health.level).1,
        esc(&HOST),
    );
    put_header(out, snapshot);
    put!(out, "<main>\n");
    if !snapshot.gpus.is_empty() {
        put!(out, "<section class=\"gpus\" aria-label=\"GPUs\">\n");
        for (view, health) in snapshot.gpus.iter().zip(&snapshot.health.gpus) {
            card::put(out, snapshot, view, health);
        }
        put!(out, "</section>\n");
    }
    put!(out, "<div class=\"tables\">\n");
    put_stuck_calls(out, snapshot);
    put_collectors(out, snapshot);
    put_events(out, snapshot);
    put_assets(out);
    put!(out, "</div>\n</main>\n");
    put!(out, "<footer><nav aria-label=\"Other views\">\n");
    for (path, what) in PATHS.iter().filter(|(path, _)| *path != "/") {
        put!(out, "<a href=\"{0}\" title=\"{1}\">{0}</a>\n", esc(path), esc(what));
    }
    put!(out, "</nav></footer>\n</body>\n</html>\n");
}

fn put_header(out: &mut String, snapshot: &Snapshot) {
    let node = Node {};
    put!(out, "<header>\n<h1>{}</h1>\n<p class=\"facts\">", esc(&HOST));
    let driver = |label| snapshot.info(&m::gpu_driver_info, &node, label).filter(|text| !text.is_empty());
    match (driver("driver_version"), driver("cuda_version")) {
        (Some(version), Some(cuda)) => put!(out, "Driver {} · CUDA {}", esc(version), esc(cuda)),
        (Some(version), None) => put!(out, "Driver {}", esc(version)),
        _ => put!(out, "Driver: {}", esc(&snapshot.driver.text())),
    }
    let version = snapshot.info(&m::gpu_exporter_build_info, &node, "version");
    put!(out, " · gpu-node-exporter {}", esc(version.unwrap_or(env!("CARGO_PKG_VERSION"))));
    if let Some(start) = snapshot.number(&m::process_start_time_seconds, &node, ()) {
        put!(out, " · up {}", text::duration(html::seconds(snapshot.unix_seconds - start)));
    }
    put!(out, " · values of {}</p>\n", text::time_of_day(snapshot.unix_seconds));
    put!(
        out,
        "<p class=\"overall {}\" role=\"status\">{} {}</p>\n",
        look(snapshot.health.level).0,
        mark(snapshot.health.level),
        esc(&snapshot.health.text)
    );
    put_windows(out, snapshot);
    put!(out, "</header>\n");
}

/// Planned work: what lasts, and what comes next.
fn put_windows(out: &mut String, snapshot: &Snapshot) {
    let now = snapshot.unix_seconds;
    let open = snapshot.windows.iter().filter(|window| window.is_open(now));
    let mut texts: Vec<String> = open.map(|window| text::capitalized(&window.describe())).collect();
    let coming = snapshot.windows.iter().filter(|window| now < window.start);
    if let Some(next) = coming.min_by(|a, b| a.start.total_cmp(&b.start)) {
        texts.push(format!("Next, from {}: {}", window::write(next.start), next.describe()));
    }
    for text in texts {
        put!(out, "<p class=\"facts\">{} {}</p>\n", mark(HealthLevel::Note), esc(&text));
    }
}

/// Begins a table: its tag and caption, and the heads of its columns.
fn put_table(out: &mut String, begin: &str, heads: &[&str]) {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    put!(out, "{begin}</caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n");
}

/// Driver calls that have not returned, those first that are out longest.
fn put_stuck_calls(out: &mut String, snapshot: &Snapshot) {
    let mut calls: Vec<(f64, &Subject, &str)> = Vec::new();
    for series in snapshot.series(&m::gpu_exporter_driver_call_stuck_seconds) {
        let call = series.label_pairs(m::gpu_exporter_driver_call_stuck_seconds.def()).last();
        if let (Value::Number(age), Some((_, call))) = (&series.value, call) {
            calls.push((*age, &series.subject.subject, call));
        }
    }
    if calls.is_empty() {
        return;
    }
    calls.sort_by(|a, b| b.0.total_cmp(&a.0));
    put_table(out, "<table>\n<caption>Driver calls without an answer", &["GPU", "Call", "For"]);
    for (age, subject, call) in calls {
        let gpu = subject.gpu().map(|(index, _)| index.to_string()).unwrap_or_default();
        let age = text::duration(html::seconds(age));
        put!(out, "<tr><td>{gpu}</td><td><code>{}</code></td><td>{age}</td></tr>\n", esc(call));
    }
    put!(out, "</tbody>\n</table>\n");
}

fn put_collectors(out: &mut String, snapshot: &Snapshot) {
    put_table(out, "<table>\n<caption>Collectors", &["Collector", "State"]);
    for view in &snapshot.collectors {
        let level = if view.up { HealthLevel::Ok } else { HealthLevel::Faulty };
        put!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{} {}</td></tr>\n",
            esc(view.name),
            mark(level),
            esc(&view.text())
        );
    }
    put!(out, "</tbody>\n</table>\n");
}

/// The newest events, the newest first.
fn put_events(out: &mut String, snapshot: &Snapshot) {
    const MOST: usize = 8;
    if snapshot.events.is_empty() {
        return;
    }
    put_table(out, "<table class=\"events\">\n<caption>Events", &["UTC", "GPU", "What"]);
    for event in snapshot.events.iter().rev().take(MOST) {
        let level = if event.old { HealthLevel::Note } else { event.severity.into() };
        let gpu = event.gpu.as_ref().map(|gpu| gpu.gpu.to_string()).unwrap_or_default();
        let times = if event.repeats > 0 { format!(" ({} times)", event.repeats + 1) } else { String::new() };
        put!(
            out,
            "<tr><td>{}</td><td>{gpu}</td><td>{} {}{times}</td></tr>\n",
            text::time_of_day(event.last_unix_seconds).trim_end_matches(" UTC"),
            mark(level),
            esc(&event.line())
        );
    }
    put!(out, "</tbody>\n</table>\n");
}

/// The alert rules and dashboards that are served.
fn put_assets(out: &mut String) {
    put!(out, "<details>\n<summary>Alert rules and Grafana dashboards</summary>\n<ul>\n");
    for asset in ASSETS {
        put!(out, "<li><a href=\"{0}\">{0}</a></li>\n", esc(asset.path));
    }
    put!(out, "</ul>\n</details>\n");
}

/// The symbol that goes with a word, which screen readers read instead.
fn mark(level: HealthLevel) -> String {
    let (class, symbol) = look(level);
    format!("<span class=\"mark {class}\" aria-hidden=\"true\">{symbol}</span>")
}

/// The class in the style sheet, and a symbol that needs no colour.
fn look(level: HealthLevel) -> (&'static str, &'static str) {
    match level {
        HealthLevel::Ok => ("well", "✓"),
        HealthLevel::Note => ("note", "i"),
        HealthLevel::Waiting => ("waiting", "…"),
        HealthLevel::Degraded => ("warn", "▲"),
        HealthLevel::Faulty => ("bad", "✕"),
    }
}

#[cfg(test)]
mod tests;

//! `gpu-node-exporter window`: writes, ends and lists windows of planned work.

use clap::{Args, Subcommand};
use model::catalog::WindowKind;
use model::catalog::schema::KnownLabel;
use model::clock::unix_seconds;
use model::text;
use model::window::Window;
use settings::Overrides;

use super::{CommandResult, OutputFormat, checked_config};
use collectors::windows::file;
use collectors::windows::store::WindowStore;

/// Mark planned work, which mutes alerts and pauses the canary
///
/// The daemon publishes start and end of each window (gpu_window_*), and the alerts use them.
#[derive(Args)]
#[command(after_help = include_str!("help/window.txt").trim_end())]
pub(crate) struct WindowArguments {
    #[command(subcommand)]
    command: WindowCommand,
}

#[derive(Subcommand)]
enum WindowCommand {
    /// Start a window now or at a later time
    Start(Start),
    /// End an open window, or remove a future one
    End(End),
    /// List open and future windows, and those that ended within the last hour
    List {
        /// Output format of the list
        #[arg(long, value_enum, default_value = "text")]
        format: OutputFormat,
    },
}

#[derive(Args)]
struct Start {
    /// Name of the window [default: the kind and the start time]
    #[arg(long, value_parser = name)]
    name: Option<String>,
    /// `maintenance` mutes alerts of planned work and pauses the canary; `training` mutes only tickets about
    /// high utilization and memory
    #[arg(long, default_value = "maintenance", value_parser = file::kind_of)]
    kind: WindowKind,
    /// Short reason, shown on the status page
    #[arg(long)]
    reason: String,
    /// Duration, for example `2h`, `90m` or `1day 6h`
    #[arg(long = "for", value_name = "TIME", value_parser = file::length_of)]
    lasts: f64,
    /// Start time with its UTC offset, for example `2026-11-22T08:00:00Z` or `...+01:00` [default: now]
    #[arg(long, value_name = "WHEN", value_parser = file::timestamp)]
    at: Option<f64>,
    /// Number of GPUs of the node after the work, if boards are removed permanently; the exporter then no
    /// longer reports the removed GPUs as missing. Without this option it keeps expecting every GPU
    #[arg(long, value_name = "GPUS", value_parser = clap::value_parser!(u32).range(file::EXPECTED_GPUS))]
    expected_gpus: Option<u32>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct End {
    /// Name of the window
    #[arg(value_parser = name)]
    name: Option<String>,
    /// End every open and future window
    #[arg(long)]
    all: bool,
}

fn name(text: &str) -> Result<String, String> {
    if file::is_name(text) { Ok(text.to_owned()) } else { Err(file::NAME_RULE.into()) }
}

pub fn run(overrides: &Overrides, arguments: &WindowArguments) -> CommandResult {
    let config = checked_config(overrides)?.config;
    let (now, mut store) = (unix_seconds(), WindowStore::new(&config));
    let text = match &arguments.command {
        WindowCommand::Start(start) => started(&store.start(start.request(now)?, now)?, now),
        WindowCommand::End(end) => {
            let ended = store.end(end.name.as_deref(), now)?;
            let names: Vec<&str> = ended.iter().map(|window| window.name.as_str()).collect();
            if names.is_empty() {
                "There is no window to end.".into()
            } else {
                format!("Ended: {}.", names.join(", "))
            }
        }
        WindowCommand::List { format } => {
            let (windows, problems) = store.list(now);
            let document = serde_json::json!({ "windows": windows, "problems": problems });
            format.render(&document, |_| listed(&windows, &problems, now))?
        }
    };
    Ok(text.into())
}

impl Start {
    fn request(&self, now: f64) -> Result<Window, String> {
        // Whole seconds, as in the file.
        let start = self.at.unwrap_or(now).floor();
        let end = start + self.lasts.ceil();
        if !(end.is_finite() && end > start && start >= 0.0) {
            return Err(
                "a window must start after 1970 and have a duration above 0; check --at and --for".into()
            );
        }
        let (name, reason) = (self.name.clone(), text::clean(&self.reason, file::MAX_REASON));
        let Start { kind, expected_gpus, .. } = *self;
        if kind != WindowKind::Maintenance && expected_gpus.is_some() {
            return Err(format!("--expected-gpus: {}", file::ONLY_MAINTENANCE));
        }
        Ok(Window { name: name.unwrap_or_default(), kind, reason, start, end, cut: false, expected_gpus })
    }
}

fn started(window: &Window, now: f64) -> String {
    let Window { name, start, end, .. } = window;
    let from = if *start > now { format!("from {} ", model::window::write(*start)) } else { String::new() };
    let cut = if window.cut { " It is cut to windows.max_duration." } else { "" };
    let gpus = window.expected_gpus.map(|gpus| {
        format!(
            " From then on the node should have {gpus} GPU(s): others that are not listed are not missed."
        )
    });
    let gpus = gpus.unwrap_or_default();
    format!(
        "Window {name} ({}) {from}until {}.{cut}{gpus} `gpu-node-exporter window end {name}` ends it early.",
        window.kind.known(),
        model::window::write(*end)
    )
}

fn listed(windows: &[Window], problems: &[String], now: f64) -> String {
    let width = windows.iter().map(|window| window.name.len()).max().unwrap_or(0);
    let line = |window: &Window| {
        let state = match window.is_open(now) {
            true => "open",
            false if now < window.start => "planned",
            false => "ended",
        };
        let cut = if window.cut { " (cut to windows.max_duration)" } else { "" };
        let (from, to) = (model::window::write(window.start), model::window::write(window.end));
        let (kind, Window { name, reason, .. }) = (window.kind.known(), window);
        let gpus = window.expected_gpus.map(|gpus| format!(" (expected GPUs: {gpus})")).unwrap_or_default();
        format!("{name:width$}  {state:7}  {kind:11}  {from} to {to}  {reason}{gpus}{cut}")
    };
    let mut lines: Vec<String> = windows.iter().map(line).collect();
    if windows.is_empty() {
        lines.push("No window is open, planned, or ended within the last hour.".into());
    }
    lines.extend(problems.iter().map(|problem| format!("ignored: {problem}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_as_text() {
        let window = |name: &str, start, end| Window {
            name: name.into(),
            kind: WindowKind::Maintenance,
            reason: "disk".into(),
            start,
            end,
            cut: true,
            expected_gpus: Some(7),
        };
        let text = started(&window("w", 100.0, 200.0), 50.0);
        assert!(
            text.contains("from 1970-01-01T00:01:40Z until 1970-01-01T00:03:20Z")
                && text.contains("cut")
                && text.contains("should have 7 GPU(s)"),
            "{text}"
        );
        let windows = vec![window("a", 0.0, 10.0), window("longer", 40.0, 60.0), window("c", 70.0, 80.0)];
        let text = listed(&windows, &["x.toml: key `for`".into()], 50.0);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("a       ended")
                && lines[1].contains("open")
                && lines[1].contains("(expected GPUs: 7)")
                && lines[2].contains("planned"),
            "{text}"
        );
        assert_eq!(lines[3], "ignored: x.toml: key `for`");
    }

    fn planned() -> Start {
        let (kind, reason) = (WindowKind::Training, "a\nb".into());
        Start { name: None, kind, reason, lasts: 60.0, at: None, expected_gpus: None }
    }

    #[test]
    fn a_window_needs_a_start_and_a_duration() {
        for (at, lasts) in [(None, 0.0), (None, -5.0), (Some(-1e9), 2e9), (Some(f64::MAX), 5.0)] {
            let start = Start { lasts, at, ..planned() };
            assert!(start.request(1e9).is_err(), "{at:?} {lasts}");
        }
        assert_eq!(planned().request(1e9).unwrap().reason, "a b");
    }

    #[test]
    fn only_maintenance_takes_gpus_out() {
        let start = Start { expected_gpus: Some(7), ..planned() };
        assert!(start.request(1e9).unwrap_err().contains("--expected-gpus"));
        let start = Start { kind: WindowKind::Maintenance, ..start };
        assert_eq!(start.request(1e9).unwrap().expected_gpus, Some(7));
    }
}

//! Requests about windows on the local socket, and the command that makes them: `window start|end|list`.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::collectors::windows::desk::{Desk, Order};
use crate::collectors::windows::file::{self, Plan};
use crate::collectors::windows::moment;
use crate::control::fetch;
use ledger::inbox::Inbox;
use model::catalog::WindowKind;
use model::catalog::schema::KnownLabel;
use model::clock::unix_seconds;
use model::text;
use model::window::Window;

/// Requests that wait for files at one time: fewer than the control socket has connections, and than there are
/// threads for what blocks.
const AT_ONCE: usize = 4;
/// Longest wait for one: shorter than that of who asks.
const LONGEST: Duration = Duration::from_secs(4);

/// Shown at the end of `gpu-node-exporter window --help`.
pub const AFTER_HELP: &str = "\
Examples:
  gpu-node-exporter window start --for 2h --reason 'new power supply'    from now on
  gpu-node-exporter window start --for 1h --at 2026-11-22T08:00:00+01:00 --name fw --reason 'firmware'
  gpu-node-exporter window start --for 3days --kind training --reason 'run 17'
  gpu-node-exporter window list
  gpu-node-exporter window end fw

A window of kind `maintenance` (what it is if nothing is said) mutes the alerts of planned work (idle \
GPUs, restarts, driver loads, skipped canaries), never those of lost work or wrong results, and keeps the canary \
away; `training` mutes tickets about high utilization and memory only. The daemon must run; windows are kept over \
its restarts, and are cut to `windows.max_duration`. Who may use the control socket may make windows.

Without the daemon, or by configuration management: drop a file NAME.toml into `windows.dir`
(/etc/gpu-node-exporter/windows.d), which is looked at every 2 s:

  kind = \"maintenance\"
  reason = \"new power supply\"
  start = 2026-11-22T08:00:00+01:00
  for = \"2h\"                          # or: end = 2026-11-22T10:00:00+01:00";

/// What is asked for.
#[derive(Debug, Subcommand)]
pub enum Ask {
    /// Begin a window now, or at a time to come
    Start(Start),
    /// End a window that was made with `start`, or take one back that is to come
    End(End),
    /// List windows that are open, to come, or ended within the last hour
    List {
        /// How to print them
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
}

/// How a list is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For programs
    Json,
    /// For people
    Text,
}

/// `window start`.
#[derive(Debug, Args)]
pub struct Start {
    /// Its name, to end it by; without one it gets one
    #[arg(long, value_parser = name)]
    name: Option<String>,
    /// What it mutes: `maintenance` every alert of the node, and the canary stays away; `training` tickets about
    /// high utilization and memory only
    #[arg(long, default_value = "maintenance", value_parser = kind)]
    kind: WindowKind,
    /// Why, in a few words, for whoever reads the status page
    #[arg(long)]
    reason: String,
    /// How long it lasts, as `2h`, `90m` or `1day 6h`
    #[arg(long = "for", value_name = "TIME", value_parser = file::length_of)]
    lasts: f64,
    /// When it begins, with the offset from UTC, as `2026-11-22T08:00:00Z` or `...+01:00`; without it, now
    #[arg(long, value_name = "WHEN", value_parser = moment::read)]
    at: Option<f64>,
}

/// `window end`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct End {
    /// Its name
    #[arg(value_parser = name)]
    name: Option<String>,
    /// Every window that was made with `start`
    #[arg(long)]
    all: bool,
}

fn kind(text: &str) -> Result<WindowKind, String> {
    let known: Vec<&str> = WindowKind::ALL.iter().map(|kind| kind.known()).collect();
    file::kind_of(text).ok_or_else(|| format!("must be one of: {}", known.join(", ")))
}

fn name(text: &str) -> Result<String, String> {
    if file::is_name(text) { Ok(text.to_owned()) } else { Err(file::NAME_RULE.into()) }
}

/// A request, as it goes over the socket in one line: `window {JSON}`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Start { name: Option<String>, kind: WindowKind, reason: String, at: Option<f64>, seconds: f64 },
    End { name: Option<String> },
    List,
}

/// The answer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Answer {
    windows: Vec<Window>,
    /// What is wrong with files.
    problems: Vec<String>,
}

/// Whether a request is about windows. Such a one may wait for a disk.
pub fn is_ours(request: &str) -> bool {
    request.split_whitespace().next() == Some("window")
}

/// Where requests wait that look at files. A disk that hangs holds up so many of them and nobody else: not those who
/// scrape, nor those who ask for something else.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    longest: Duration,
}

impl Default for Places {
    fn default() -> Places {
        Places { free: Arc::new(Semaphore::new(AT_ONCE)), longest: LONGEST }
    }
}

impl Places {
    /// Does this on a thread that may wait for a disk.
    pub async fn obey(
        &self,
        obey: impl FnOnce() -> Result<Bytes, String> + Send + 'static,
    ) -> Result<Bytes, String> {
        let obeyed = async {
            let place = Arc::clone(&self.free).acquire_owned().await.map_err(|error| error.to_string())?;
            let work = move || {
                let _place = place;
                obey()
            };
            tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
        };
        tokio::time::timeout(self.longest, obeyed).await.unwrap_or_else(|_| {
            let seconds = self.longest.as_secs();
            Err(format!(
                "the files that are needed (in state.dir, windows.dir, /sys/fs/cgroup) have not answered within {seconds} s; \
                 what was asked for may still be done"
            ))
        })
    }
}

/// Obeys such a request. The answer is JSON.
pub fn obey(request: &str, desk: &Desk, inbox: &Inbox) -> Result<Bytes, String> {
    let text = request.trim_start().strip_prefix("window").unwrap_or_default();
    let request: Request = serde_json::from_str(text).map_err(|error| {
        format!(
            "a request about windows that is not known here ({error}): are command and daemon of one version?"
        )
    })?;
    let now = unix_seconds();
    let mut answer = Answer { windows: Vec::new(), problems: Vec::new() };
    match request {
        Request::Start { name, kind, reason, at, seconds } => {
            // To whole seconds, as it is written.
            let start = at.unwrap_or(now).floor();
            let reason = text::clean(&reason, file::MAX_REASON);
            let end = start + seconds.ceil();
            if !(end.is_finite() && end > start && start >= 0.0) {
                return Err("it must begin after 1970 and last some time; look at --at and --for".into());
            }
            let plan = Plan { kind, reason, start, end };
            answer.windows.push(desk.start(Order { name, plan }, inbox, now)?);
        }
        Request::End { name } => answer.windows = desk.end(name.as_deref(), inbox, now)?,
        Request::List => (answer.windows, answer.problems) = desk.list(now),
    }
    serde_json::to_vec(&answer).map(Bytes::from).map_err(|error| error.to_string())
}

/// Makes a request to the daemon behind `socket`. Gives what to say.
pub fn ask(socket: &Path, ask: &Ask) -> io::Result<String> {
    let now = unix_seconds();
    let request = match ask {
        Ask::Start(start) => {
            let reason = text::clean(&start.reason, file::MAX_REASON);
            Request::Start {
                name: start.name.clone(),
                kind: start.kind,
                reason,
                at: start.at,
                seconds: start.lasts,
            }
        }
        Ask::End(end) => Request::End { name: end.name.clone() },
        Ask::List { .. } => Request::List,
    };
    let line = format!("window {}", serde_json::to_string(&request)?);
    let bytes = fetch(socket, &line).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "; without the daemon, drop a file into `windows.dir` (`gpu-node-exporter window --help`)"
            }
            _ => "",
        };
        io::Error::new(error.kind(), format!("{error}{hint}"))
    })?;
    let answer: Answer = serde_json::from_slice(&bytes)?;
    Ok(match ask {
        Ask::Start(_) => answer.windows.iter().map(|window| started(window, now)).collect(),
        Ask::End(_) if answer.windows.is_empty() => "There is no window to end.".into(),
        Ask::End(_) => {
            let names: Vec<&str> = answer.windows.iter().map(|window| window.name.as_str()).collect();
            format!("Ended: {}.", names.join(", "))
        }
        Ask::List { format: Format::Json } => serde_json::to_string_pretty(&answer)?,
        Ask::List { format: Format::Text } => listed(&answer, now),
    })
}

fn started(window: &Window, now: f64) -> String {
    let Window { name, start, end, .. } = window;
    let from = if *start > now { format!("from {} ", model::window::write(*start)) } else { String::new() };
    let cut = if window.cut { " It is cut to windows.max_duration." } else { "" };
    format!(
        "Window {name} ({}) {from}until {}.{cut} `gpu-node-exporter window end {name}` ends it before.",
        window.kind.known(),
        model::window::write(*end)
    )
}

fn listed(answer: &Answer, now: f64) -> String {
    let mut out = String::new();
    let state = |window: &Window| match () {
        () if window.is_open(now) => "open",
        () if now < window.start => "to come",
        () => "ended",
    };
    let width = answer.windows.iter().map(|window| window.name.len()).max().unwrap_or(0);
    for window in &answer.windows {
        let file = if window.ordered { "" } else { " (by file)" };
        let cut = if window.cut { " (cut to windows.max_duration)" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:width$}  {:7}  {:11}  {} to {}  {}{file}{cut}",
            window.name,
            state(window),
            window.kind.known(),
            model::window::write(window.start),
            model::window::write(window.end),
            window.reason
        );
    }
    if answer.windows.is_empty() {
        out.push_str("No window is open, to come, or ended within the last hour.\n");
    }
    for problem in &answer.problems {
        let _ = writeln!(out, "not counted: {problem}");
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::Config;

    fn desk(dir: &Path) -> Desk {
        let mut config = Config::default();
        config.host.root = dir.to_owned();
        config.state.dir = dir.join("state");
        Desk::new(&config)
    }

    #[test]
    fn requests_are_obeyed_or_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (desk, inbox) = (desk(dir.path()), Inbox::default());
        let ask = |request: &Request| {
            obey(&format!("window {}", serde_json::to_string(request).unwrap()), &desk, &inbox)
        };
        let start = |at, seconds, reason: &str| Request::Start {
            name: Some("w".into()),
            kind: WindowKind::Training,
            reason: reason.into(),
            at,
            seconds,
        };
        for (at, seconds) in [(None, 0.0), (None, -5.0), (Some(-1e9), 2e9), (Some(f64::MAX), 5.0)] {
            assert!(ask(&start(at, seconds, "")).is_err(), "{at:?} {seconds}");
        }
        let answer: Answer = serde_json::from_slice(&ask(&start(None, 60.0, "a\nb")).unwrap()).unwrap();
        assert_eq!((answer.windows.len(), answer.windows[0].reason.as_str()), (1, "a b"));
        let answer: Answer = serde_json::from_slice(&ask(&Request::List).unwrap()).unwrap();
        assert_eq!(answer.windows.len(), 1);
        for other in ["window", "window fly", "window {\"list\":1}"] {
            assert!(is_ours(other) && obey(other, &desk, &inbox).is_err(), "{other}");
        }
        assert!(!is_ours("windows") && !is_ours("status"));
    }

    #[tokio::test]
    async fn a_disk_that_hangs_holds_up_a_few_requests_alone() {
        let places = Places { longest: Duration::from_millis(50), ..Places::default() };
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        for _ in 0..AT_ONCE + 4 {
            let released = Arc::clone(&released);
            let hang = move || {
                let _ = released.lock().unwrap().recv();
                Ok(Bytes::new())
            };
            let error = places.obey(hang).await.unwrap_err();
            assert!(error.contains("have not answered"), "{error}");
        }
        assert_eq!(places.free.available_permits(), 0, "who found no place waits on no thread");
        drop(release);
        let patient = Places { longest: Duration::from_secs(60), ..places };
        assert_eq!(patient.obey(|| Ok(Bytes::from("done"))).await, Ok(Bytes::from("done")));
    }

    #[test]
    fn windows_in_words() {
        let window = |name: &str, start, end| Window {
            name: name.into(),
            kind: WindowKind::Maintenance,
            reason: "disk".into(),
            start,
            end,
            cut: true,
            ordered: false,
        };
        let text = started(&window("w", 100.0, 200.0), 50.0);
        assert!(
            text.contains("from 1970-01-01T00:01:40Z until 1970-01-01T00:03:20Z") && text.contains("cut"),
            "{text}"
        );
        let windows = vec![window("a", 0.0, 10.0), window("longer", 40.0, 60.0), window("c", 70.0, 80.0)];
        let text = listed(&Answer { windows, problems: vec!["x.toml: key `for`".into()] }, 50.0);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("a       ended")
                && lines[1].contains("open")
                && lines[2].contains("to come"),
            "{text}"
        );
        assert_eq!(lines[3], "not counted: x.toml: key `for`");
    }
}

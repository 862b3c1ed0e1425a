//! Game days: scripted incidents on simulated nodes, through the shipped exporter, a real Prometheus and a real
//! Alertmanager, down to the notification. A healthy day without any. Scenarios of days, in divided time.
//!
//! The programs are found by the variables PROMETHEUS, PROMTOOL and ALERTMANAGER, else on the PATH.

mod day;
mod edges;
mod http;
mod incident;
mod judge;
mod node;
mod notify;
mod play;
mod record;
#[cfg(test)]
mod routes_tests;
mod rules;
mod scenario;
mod servers;
mod table;
mod tape;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

/// Whatever goes wrong ends the game with a line.
type Fallible<T> = Result<T, Box<dyn Error>>;

#[derive(Parser)]
#[command(about = "Plays incidents on simulated nodes against a real Prometheus and Alertmanager")]
struct Arguments {
    /// The exporter; by default the one beside this program.
    #[arg(long, global = true)]
    binary: Option<PathBuf>,
    /// The folder of the rules and of alertmanager.yml; by default that of the repository.
    #[arg(long, global = true)]
    alerts: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// All incidents side by side; exits with 1 if one does not come out as it must.
    Play(PlayArguments),
    /// A recorded day of a healthy node: no alert may fire.
    HealthyDay(DayArguments),
    /// Scenarios of hours and days as series: who is notified, how often and when, in both set-ups.
    Notifications(NotificationsArguments),
}

#[derive(clap::Args)]
struct PlayArguments {
    /// Only these incidents, by name; those that must stay silent are always played.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The table as Markdown goes to this file.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// By how much the times of those rules are shorter whose incidents take hours.
    #[arg(long, default_value_t = 30)]
    scale: u64,
    /// Keep the folder with all configurations and logs.
    #[arg(long)]
    keep: bool,
}

#[derive(clap::Args)]
struct DayArguments {
    /// Minutes of the node that are recorded. Its load repeats every two.
    #[arg(long, default_value_t = 4)]
    minutes: u64,
    /// Keep the folder with the day.
    #[arg(long)]
    keep: bool,
}

#[derive(clap::Args)]
struct NotificationsArguments {
    /// Only these scenarios, by name.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The table as Markdown goes to this file.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Seconds that a scenario takes in Alertmanager, at most. Fewer make the times less exact.
    #[arg(long, default_value_t = 240)]
    seconds: u64,
    /// Keep the folder with all configurations and logs.
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Fallible<bool> {
    let program = || program(arguments.binary.as_deref());
    let alerts = match &arguments.alerts {
        Some(path) => path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?,
        None => repository().join("alerts").canonicalize()?,
    };
    match &arguments.what {
        What::Play(play) => play::play(&program()?, &alerts, play),
        What::HealthyDay(day) => day::run(&program()?, &alerts, day),
        What::Notifications(notifications) => notify::run(&alerts, notifications),
    }
}

/// The exporter that is tested.
fn program(given: Option<&Path>) -> Fallible<PathBuf> {
    if let Some(path) = given {
        return Ok(path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?);
    }
    let path = std::env::current_exe()?.with_file_name("gpu-node-exporter");
    if !path.is_file() {
        return Err(format!("{} is not there: build it, or name it with --binary", path.display()).into());
    }
    Ok(path)
}

/// The root of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder for all that a run leaves; it goes unless it is to be kept.
struct Folder(
    PathBuf,
    #[expect(dead_code, reason = "its end takes the folder away")] Option<tempfile::TempDir>,
);

impl Folder {
    fn new(keep: bool) -> Fallible<Folder> {
        // Short, because a socket's path may be 107 bytes long and no more.
        let dir = tempfile::Builder::new().prefix("gameday-").tempdir()?;
        let path = dir.path().to_owned();
        if keep {
            println!("kept in {}", dir.keep().display());
            return Ok(Folder(path, None));
        }
        Ok(Folder(path, Some(dir)))
    }
}

/// A short wait between two looks at a condition.
fn pause() {
    wait_until(Instant::now() + Duration::from_millis(500));
}

/// Waits until then. Parking may end early.
fn wait_until(then: Instant) {
    while let Some(left) = then.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

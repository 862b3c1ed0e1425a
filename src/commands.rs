//! The command line. Every command has a file with its arguments and its `run` function.

mod assess;
mod assets;
mod canary;
mod compat_diff;
mod configuration;
mod doctor;
mod driver;
mod gpm;
mod health;
mod manual;
mod metrics;
mod nvswitch;
mod pod;
mod recording;
mod snapshot;
#[cfg(test)]
mod tests;
mod topology;
mod window;

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, CommandFactory, Parser, Subcommand, ValueEnum};
use host::terminal::stdout_has_colours;
use serde::Serialize;
use settings::{Config, ConfigErrors, Loaded, Overrides};

use crate::{log, reload};

/// Exit code for a wrong configuration or command line (`EX_USAGE`). systemd does not restart the daemon after it.
pub const EXIT_BAD_CONFIG: u8 = 64;
/// Exit code for all other failures.
const EXIT_FAILED: u8 = 1;

/// Prometheus exporter for NVIDIA GPU hosts that keeps serving metrics when the driver hangs
#[derive(Parser)]
#[command(name = "gpu-node-exporter", version, after_help = include_str!("commands/help/program.txt").trim_end())]
pub struct Cli {
    #[command(flatten)]
    overrides: Overrides,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve metrics until SIGTERM or Ctrl-C (the default without a command)
    Serve,
    /// Check the configuration and print the resulting settings, without starting the daemon
    CheckConfig,
    Metrics(metrics::MetricsArguments),
    Snapshot(snapshot::SnapshotArguments),
    Health(health::HealthArguments),
    Doctor(doctor::DoctorArguments),
    Canary(canary::arguments::CanaryArguments),
    CompatDiff(compat_diff::CompatDiffArguments),
    Topology(topology::TopologyArguments),
    Assess(Box<assess::arguments::AssessArguments>),
    Assets(assets::AssetsArguments),
    Driver(driver::DriverArguments),
    Nvswitch(nvswitch::NvswitchArguments),
    Gpm(gpm::GpmArguments),
    Window(window::WindowArguments),
    #[command(hide = true)]
    Manual(manual::ManualArguments),
    #[command(hide = true)]
    Pod(pod::PodArguments),
    /// Run the process that calls NVML; `serve` starts it
    #[command(hide = true)]
    Sampler,
    /// Run the process that calls CUDA; every run of the canary starts one
    #[command(hide = true)]
    CanaryChild,
    /// Run the process that discovers the topology; `serve` and `topology` start it
    #[command(hide = true)]
    TopologyChild,
}

/// Global options that a command uses, by its name. A subcommand without an entry uses the options of
/// its parent, and `serve` and `check-config` use all options.
const USED_OPTIONS: [(&str, &[&str]); 19] = [
    ("assess", &["root"]),
    ("assets", &[]),
    ("canary", &["config", "nvml_library", "cuda_library", "state_dir", "root"]),
    ("canary-child", &["log_level"]),
    ("clear", &["config"]),
    ("compat-diff", &["config", "listen"]),
    ("doctor", &["config", "nvml_library", "state_dir", "root"]),
    ("driver", &["config"]),
    ("gpm", &["config"]),
    ("health", &["config"]),
    ("manual", &[]),
    ("metrics", &[]),
    ("nvswitch", &["config"]),
    ("pod", &["log_level"]),
    ("sampler", &["log_level"]),
    ("snapshot", &["config"]),
    ("topology", &["config", "nvml_library", "root"]),
    ("topology-child", &[]),
    ("window", &["config"]),
];

/// Returns the command line. The help of a command lists only the global options that it uses. With
/// `accept_all`, every command also accepts the other global options, hidden and without effect.
fn definition(accept_all: bool) -> clap::Command {
    let root = Cli::command();
    let global: Vec<Arg> = root.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    let every: Vec<&str> = global.iter().map(|arg| arg.get_id().as_str()).collect();
    let root = root.mut_args(|arg| if accept_all { arg } else { arg.global(false) });
    root.mut_subcommands(|command| with_global_options(command, &global, &every, accept_all))
}

fn with_global_options(
    command: clap::Command,
    global: &[Arg],
    inherited: &[&str],
    accept_all: bool,
) -> clap::Command {
    let entry = USED_OPTIONS.iter().find(|(name, _)| *name == command.get_name());
    let used = entry.map_or(inherited, |(_, used)| used);
    // clap adds the global options of the root to every command without an option of the same name.
    let added = global.iter().filter(|arg| used.contains(&arg.get_id().as_str()) != accept_all);
    let added = added.map(|arg| if accept_all { arg.clone().hide(true) } else { arg.clone().global(false) });
    let command = command.args(added);
    command.mut_subcommands(|inner| with_global_options(inner, global, used, accept_all))
}

impl Cli {
    /// Returns the command line to parse.
    pub fn definition() -> clap::Command {
        definition(true)
    }

    /// Runs the command. `trim_heap` returns free memory to the kernel.
    pub fn run(self, trim_heap: fn()) -> CommandResult {
        let overrides = &self.overrides.or_variable();
        match self.command.unwrap_or(Command::Serve) {
            Command::Serve => configuration::serve(overrides, trim_heap),
            Command::CheckConfig => configuration::check(overrides),
            Command::Metrics(arguments) => Ok(metrics::run(&arguments).into()),
            Command::Snapshot(arguments) => snapshot::run(overrides, &arguments),
            Command::Health(arguments) => Ok(health::run(overrides, &arguments)),
            Command::Doctor(arguments) => doctor::run(overrides, &arguments),
            Command::Canary(arguments) => canary::run(overrides, &arguments),
            Command::CompatDiff(arguments) => compat_diff::run(overrides, &arguments),
            Command::Topology(arguments) => topology::run(overrides, &arguments),
            Command::Assess(arguments) => Ok(assess::run(overrides, &arguments)),
            Command::Assets(arguments) => Ok(assets::run(&arguments)?.into()),
            Command::Driver(arguments) => driver::run(overrides, &arguments),
            Command::Nvswitch(arguments) => nvswitch::run(overrides, &arguments),
            Command::Gpm(arguments) => gpm::run(overrides, &arguments),
            Command::Window(arguments) => window::run(overrides, &arguments),
            Command::Manual(arguments) => Ok(manual::run(definition(false), &arguments)?.into()),
            Command::Pod(arguments) => {
                log_as_child(overrides);
                Ok(pod::run(arguments)?.into())
            }
            Command::Sampler => {
                log_as_child(overrides);
                child_outcome("sampler", sampler::run())
            }
            Command::CanaryChild => {
                log_as_child(overrides);
                child_outcome("canary-child", ::canary::child::run())
            }
            Command::TopologyChild => child_outcome("topology-child", ::topology::child::run()),
        }
    }
}

/// Output of a command.
#[derive(Debug, Default)]
pub struct Output {
    /// Text for standard output.
    pub text: String,
    pub code: u8,
}

impl From<String> for Output {
    fn from(text: String) -> Output {
        Output { text, code: 0 }
    }
}

/// Failure of a command.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    /// Messages for standard error.
    pub messages: Vec<String>,
}

/// Result of a command.
pub type CommandResult = Result<Output, Failure>;

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, messages: vec![message.into()] }
    }

    fn bad_configuration(ConfigErrors(messages): ConfigErrors) -> Failure {
        Failure { code: EXIT_BAD_CONFIG, messages }
    }
}

/// Writes an error and its causes on one line.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Failure {
        let error: Box<dyn Error> = error.into();
        let mut message = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            // Some messages include their cause.
            if !message.contains(&cause.to_string()) {
                message.push_str(&format!(": {cause}"));
            }
            next = cause.source();
        }
        Failure::new(EXIT_FAILED, message)
    }
}

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// One JSON document, for programs
    Json,
    /// Text for a terminal
    Text,
}

impl OutputFormat {
    /// Formats a report; `text` is called with `true` if standard output shows colours.
    fn render(self, report: &impl Serialize, text: impl FnOnce(bool) -> String) -> Result<String, String> {
        match self {
            OutputFormat::Json => json(report),
            OutputFormat::Text => Ok(text(stdout_has_colours())),
        }
    }
}

/// Formats a report as one JSON document, with a newline at its end.
fn json(document: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(document).map(|text| text + "\n").map_err(|error| error.to_string())
}

fn checked_config(overrides: &Overrides) -> Result<Loaded, Failure> {
    reload::load_checked(overrides).map_err(Failure::bad_configuration)
}

/// Writes a warning to standard error. A closed standard error does not end the command.
fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "gpu-node-exporter: warning: {text}");
}

/// Loads the configuration of a command that talks to the running daemon, and returns its errors too. With an invalid
/// configuration the daemon keeps its previous one, so the command prints warnings and uses the valid settings.
fn client_config(overrides: &Overrides) -> (Loaded, Vec<String>) {
    let (loaded, errors) = reload::load_known(overrides);
    for problem in &errors {
        warn(problem);
    }
    if !errors.is_empty() {
        let file = reload::main_file(overrides);
        warn(&format!(
            "the configuration is invalid ({}, environment and options); a running daemon keeps its previous \
             configuration, and its answer follows",
            file.display()
        ));
    }
    (loaded, errors)
}

/// Returns the path of the control socket.
fn control_socket(config: &Config) -> io::Result<&Path> {
    config
        .control
        .socket
        .as_deref()
        .ok_or_else(|| io::Error::other("control.socket is empty, so the daemon has no socket"))
}

/// Runs a request to the daemon with the path of its control socket, and returns the text that the request returns.
fn with_socket(
    overrides: &Overrides,
    request: impl FnOnce(&Path, &Config) -> io::Result<String>,
) -> CommandResult {
    let (Loaded { config, .. }, _) = client_config(overrides);
    Ok(request(control_socket(&config)?, &config)?.into())
}

fn child_outcome(name: &str, result: io::Result<()>) -> CommandResult {
    result.map(|()| Output::default()).map_err(|error| Failure::new(EXIT_FAILED, format!("{name}: {error}")))
}

/// Starts logging in a child process, at the level that its parent passes.
fn log_as_child(overrides: &Overrides) {
    let level = overrides.log_level.as_deref().and_then(|level| level.parse().ok());
    log::to_stderr(level.unwrap_or(tracing::Level::INFO));
}

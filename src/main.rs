//! The command line: what was asked for, which part of the library does it, and the exit code.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use collectors::topology::declared;
use exposition::docs;
use gpu_node_exporter::commands::assess::AssessEnd;
use gpu_node_exporter::commands::canary::Exit;
use gpu_node_exporter::commands::canary::arguments::{Arguments, CanaryOrder, Format};
use gpu_node_exporter::commands::doctor::{self, cuda::Cuda};
use gpu_node_exporter::commands::{self, OutputFormat, compat_diff, window};
use gpu_node_exporter::control::orders::{self, describe};
use gpu_node_exporter::reload::{self, Configuration};
use gpu_node_exporter::{control, lifecycle, log, serve};
use host::stop::Stop;
use settings::{Config, ConfigErrors, Loaded, Overrides};

/// The configuration or the command line is wrong (`EX_USAGE`): starting again will not help.
const EXIT_BAD_CONFIG: u8 = 64;
/// Anything else that kept the command from doing its work.
const EXIT_FAILED: u8 = 1;

const AFTER_HELP: &str = "\
Examples:
  gpu-node-exporter                                  serve on :9408
  gpu-node-exporter serve --listen 127.0.0.1:9500    serve there only
  gpu-node-exporter check-config --config new.toml   try a configuration before it counts
  gpu-node-exporter snapshot --format json           what the running daemon publishes
  gpu-node-exporter snapshot --recording FILE        the minutes before a fault
  gpu-node-exporter doctor --bundle case.tar.gz      all that a support case needs
  gpu-node-exporter metrics | less                   every metric, its labels and meaning
  gpu-node-exporter health                           whether work can start here, as an exit code
  gpu-node-exporter doctor                           what works on this machine, and how to fix the rest
  gpu-node-exporter doctor --cuda 12.8               whether programs of CUDA 12.8 run here
  gpu-node-exporter canary                           whether the free GPUs compute rightly and at their rate
  gpu-node-exporter compat-diff http://localhost:9400/metrics
                                                     before a switch from dcgm-exporter
  gpu-node-exporter assess -- ./simulate             whether a program should move to a GPU
  gpu-node-exporter topology                         where each GPU sits, and its fair share of CPUs
  gpu-node-exporter topology --bind docker           lines that bind work on each GPU to it
  gpu-node-exporter assets --out DIR                 alert rules and Grafana boards, for Prometheus and Grafana
  gpu-node-exporter driver release                   before the driver is unloaded or upgraded
  gpu-node-exporter window start --for 2h --reason X mute alerts for planned work
  gpu-node-exporter gpm off                          before a profiler such as Nsight runs

Configuration, the later stronger than the earlier:
  1. built-in defaults
  2. /etc/gpu-node-exporter/config.toml if it exists, or the file of --config or GPU_NODE_EXPORTER__CONFIG
  3. environment variables GPU_NODE_EXPORTER__SECTION__KEY, each separator two underscores:
     the key log.level is GPU_NODE_EXPORTER__LOG__LEVEL
  4. flags

Served over HTTP: / (status page), /metrics, /dcgm/metrics, /livez, /readyz, /api/v1/..., /alerts/,
/dashboards/

Exit codes: 0 stopped as asked or done, 64 wrong configuration or command line, 1 any other failure, and
what `doctor` finds wrong; `assess`, `canary`, `compat-diff` and `health` have their own in their --help";

/// Prometheus exporter for NVIDIA GPU hosts that never hangs when the driver hangs
#[derive(Parser)]
#[command(name = "gpu-node-exporter", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    overrides: Overrides,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve metrics until SIGTERM or Ctrl-C (also without a command)
    Serve,
    /// Check the configuration and print it as it would be used; starts nothing
    CheckConfig,
    /// Print every metric that can be published
    Metrics {
        /// How to print them
        #[arg(long, value_enum, default_value = "text")]
        format: DocsFormat,
    },
    /// Ask the running daemon for what it publishes, through its local socket; or read a recording
    Snapshot {
        /// How to print it: text is Prometheus text format 0.0.4, openmetrics is OpenMetrics 1.0
        #[arg(long, value_parser = ["json", "text", "openmetrics"], default_value = "text")]
        format: String,
        /// Read this file of the flight recorder instead, as text or JSON: the minutes before a fault. Needs no daemon;
        /// exit code 1 if the file is truncated, after what could be read
        #[arg(long, value_name = "FILE")]
        recording: Option<PathBuf>,
    },
    /// Ask the running daemon whether work can start on this node: an exit code and one line of reasons
    ///
    /// For launchers, schedulers and monitoring plugins.
    #[command(after_help = commands::health::after_help())]
    Health(commands::health::HealthArguments),
    /// Look at this machine: what works, what does not, and the command that fixes it
    ///
    /// Asks the driver in a process of its own and never hangs; changes nothing; a daemon may run. Prints who
    /// asks and with which capabilities, libraries, kernel module and device files, whether each metric works,
    /// is unsupported, not permitted or fails, what each NVML call costs here, and the verdict and the collectors of
    /// the daemon, or without one access to the kernel log, control groups and the kubelet. Exit code 0 if nothing
    /// is wrong, else 1.
    Doctor {
        /// How to print it
        #[arg(long, value_enum, default_value = "text")]
        format: OutputFormat,
        /// Tell only whether programs built with this CUDA version run here, as `12.4`, and by which rule;
        /// exit code 0 if they do, else 1
        #[arg(long, value_name = "X.Y")]
        cuda: Option<Cuda>,
        /// Write an archive (.tar.gz) for a support case: configuration, what the daemon publishes, events,
        /// recordings, the newest log lines, and what doctor finds; without secrets
        #[arg(long, value_name = "FILE", conflicts_with_all = ["cuda", "format"])]
        bundle: Option<PathBuf>,
        /// Leave the names of pods, jobs, users and processes out of the bundle
        #[arg(long, requires = "bundle")]
        without_owners: bool,
    },
    /// Run small CUDA programs that prove that GPUs compute rightly, at their rate, now
    ///
    /// For a drained node or the prolog of a job. Tells a throttled, slow, narrowed, lying or dying GPU from a
    /// healthy one, and says which it is and what to do first.
    #[command(after_help = commands::canary::arguments::AFTER_HELP)]
    Canary(commands::canary::arguments::Arguments),
    /// Compare this exporter's page with that of a running dcgm-exporter: the report before a switch
    ///
    /// Lists each family and each label as same, missing, more, of another type or with values outside the tolerance; says
    /// what to set, what is lost, and whether the switch is safe. Changes nothing.
    #[command(after_help = commands::compat_diff::AFTER_HELP)]
    CompatDiff(commands::compat_diff::CompatDiffArguments),
    /// Draw the machine around the GPUs, and say how to bind work to the CPUs near each
    ///
    /// Packages, NUMA nodes, caches, the PCI tree with its links, the network device nearest each GPU, and each
    /// GPU's or MIG device's fair share of CPUs. Needs no daemon and changes nothing.
    #[command(after_help = commands::topology::AFTER_HELP)]
    Topology(commands::topology::TopologyArguments),
    /// Say whether a program should move to a GPU, and whether a move paid
    ///
    /// Runs the program under the processor's counters and samples of where its time goes, or watches one that runs.
    /// Needs no GPU, no daemon and no configuration; passes the program's output and exit code through.
    #[command(after_help = commands::assess::arguments::AFTER_HELP)]
    Assess(Box<commands::assess::arguments::AssessArguments>),
    /// List the alert rules and Grafana boards that come with this program, or write them to a folder
    ///
    /// Needs no daemon, no configuration and no GPU.
    #[command(after_help = commands::assets::AFTER_HELP)]
    Assets(commands::assets::Arguments),
    /// Let go of the driver so that it can be unloaded or upgraded, and take it up again
    ///
    /// SIGUSR1 to the main process releases as well:
    /// `systemctl kill --kill-who=main -s USR1 gpu-node-exporter`
    Driver {
        #[command(subcommand)]
        what: DriverOrder,
    },
    /// Tell the running daemon that the NVSwitches were reset
    Nvswitch {
        #[command(subcommand)]
        what: NvswitchOrder,
    },
    /// Leave the profiling counters (GPM) to a profiler such as Nsight for a while, and read them again
    ///
    /// The counters of Hopper and later have one reader at a time. After `gpm off` the values derived from
    /// them are absent until `gpm on` or a restart of the daemon; `gpm.enabled = false` in the configuration
    /// keeps them off.
    Gpm {
        #[command(subcommand)]
        what: GpmOrder,
    },
    /// Mark planned work, so that alerts are muted and the canary stays away
    ///
    /// Windows are published with start and end (gpu_window_*), for alerts to be muted by.
    #[command(after_help = window::AFTER_HELP)]
    Window {
        #[command(subcommand)]
        what: window::Ask,
    },
    /// Write man pages and shell completions to a folder, laid out as /usr/share
    #[command(hide = true)]
    Manual {
        /// The folder
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// What needs root's user id around the daemon in a pod; the Helm chart calls it
    #[command(hide = true)]
    Pod {
        #[command(subcommand)]
        task: commands::pod::Task,
    },
    /// The process that talks to NVML; started by `serve`
    #[command(hide = true)]
    Sampler,
    /// The process that talks to CUDA; started for each run of the canary
    #[command(hide = true)]
    CanaryChild,
    /// The process that looks at the machine around the GPUs; started by `serve` and `topology`
    #[command(hide = true)]
    TopologyChild,
}

#[derive(Clone, Copy, Subcommand)]
enum DriverOrder {
    /// End the process that has the driver open, and wait for its end
    ///
    /// No handle or device file stays open then. GPUs are still listed, nothing is measured, and
    /// gpu_driver_paused is 1. It resumes by itself when the kernel module was unloaded and is loaded again.
    /// Exit code 1 if the driver is still held after 10 s, as by a call that does not return.
    Release,
    /// Take the driver up again
    Resume,
    /// Tell whether the driver is in use, and by which process
    Status,
}

#[derive(Clone, Subcommand)]
enum NvswitchOrder {
    /// End the faults of all NVSwitches (gpu_nvswitch_fault_active)
    ///
    /// After `nvidia-smi --gpu-reset` without `-i`, which resets the NVSwitches with all GPUs and shows nowhere. Not needed
    /// after a load of the driver or a boot: they end the faults by themselves. The daemon logs who asked and why.
    Clear {
        /// How the switches were repaired
        #[arg(long, value_name = "TEXT", value_parser = orders::is_reason)]
        reason: String,
    },
}

#[derive(Clone, Copy, Subcommand)]
enum GpmOrder {
    /// Give the profiling counters up, so that a profiler can have them
    Off,
    /// Read the profiling counters again
    On,
}

#[derive(Clone, Copy, ValueEnum)]
enum DocsFormat {
    Json,
    Markdown,
    Text,
}

fn main() -> ExitCode {
    share_one_heap();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // --help and --version are "errors" too, that go to standard output.
            let wrong = error.use_stderr();
            let _ = error.print();
            return if wrong { ExitCode::from(EXIT_BAD_CONFIG) } else { ExitCode::SUCCESS };
        }
    };
    let overrides = &cli.overrides.or_variable();
    match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => run(overrides),
        Command::CheckConfig => with_config(overrides, check),
        Command::Metrics { format } => print(&match format {
            DocsFormat::Json => docs::json(),
            DocsFormat::Markdown => docs::markdown(),
            DocsFormat::Text => docs::text(),
        }),
        Command::Snapshot { format, recording: Some(file) } => {
            match commands::recording::run(&file, &format) {
                Ok((whole, text)) => exit_with(if whole { 0 } else { EXIT_FAILED }, &text),
                Err(error) => fail(EXIT_FAILED, error),
            }
        }
        Command::Snapshot { format, recording: None } => with_socket(overrides, |socket, _| {
            let answer = control::fetch(socket, &format!("snapshot {format}"))?;
            String::from_utf8(answer).map_err(io::Error::other)
        }),
        Command::Health(arguments) => {
            let (loaded, _) = client_config(overrides);
            let (code, text) = commands::health::run(&loaded.config, &arguments);
            exit_with(code, &text)
        }
        Command::Doctor { bundle: Some(file), without_owners, .. } => {
            let (loaded, errors) = client_config(overrides);
            log::to_stderr(tracing::Level::ERROR);
            finish(commands::bundle::run(&loaded, &errors, &file, without_owners))
        }
        Command::Doctor { format, cuda, .. } => {
            let (loaded, errors) = client_config(overrides);
            log::to_stderr(tracing::Level::ERROR);
            match doctor::run(&loaded.config, &errors, cuda, format) {
                Ok((well, text)) => exit_with(if well { 0 } else { EXIT_FAILED }, &text),
                Err(error) => fail(EXIT_FAILED, error),
            }
        }
        Command::Canary(Arguments { order: Some(CanaryOrder::Clear { gpu, reason }), .. }) => {
            with_socket(overrides, |socket, _| orders::clear_wrong_result(socket, &gpu, &reason))
        }
        Command::Canary(arguments) => with_config(overrides, |loaded| {
            log::to_stderr(tracing::Level::WARN);
            match prove(&loaded.config, &arguments) {
                Ok((exit, text)) => exit_with(exit.code(), &text),
                Err(error) => fail(Exit::CouldNotRun.code(), error),
            }
        }),
        Command::CompatDiff(arguments) => with_config(overrides, |loaded| {
            let fields = match loaded.dcgm_fields() {
                Ok(fields) => fields,
                Err(errors) => return refuse(errors),
            };
            match compat_diff::run(&loaded.config, fields, &arguments) {
                Ok((is_safe, text)) => exit_with(u8::from(!is_safe), &text),
                Err(error) => fail(compat_diff::EXIT_CANNOT_SAY, error),
            }
        }),
        Command::Topology(arguments) => with_config(overrides, |loaded| {
            log::to_stderr(tracing::Level::ERROR);
            finish(commands::topology::run(&loaded.config, &arguments))
        }),
        Command::Assess(arguments) => {
            let root = overrides.root.as_deref().unwrap_or("/");
            match commands::assess::run(Path::new(root), &arguments) {
                AssessEnd::Code(code) => ExitCode::from(code),
                AssessEnd::Signal(signal) => ExitCode::from(host::child::end_by(signal)),
            }
        }
        Command::Assets(arguments) => finish(commands::assets::run(&arguments)),
        Command::Driver { what } => with_socket(overrides, |socket, config| match what {
            DriverOrder::Release => orders::release(socket, &config.canary.lock_file),
            DriverOrder::Resume => orders::ask(socket, "driver resume").map(|status| describe(&status)),
            DriverOrder::Status => orders::ask(socket, "driver status").map(|status| describe(&status)),
        }),
        Command::Nvswitch { what: NvswitchOrder::Clear { reason } } => {
            with_socket(overrides, |socket, _| orders::clear_switch_faults(socket, &reason))
        }
        Command::Gpm { what } => with_socket(overrides, |socket, _| {
            let (request, text) = match what {
                GpmOrder::Off => (
                    "gpm off",
                    "The profiling counters are given up within a second: a profiler can have them until \
                     `gpu-node-exporter gpm on`, or a restart of the daemon.",
                ),
                GpmOrder::On => ("gpm on", "The profiling counters are read again, where the GPU has them."),
            };
            orders::ask(socket, request).map(|_| text.to_owned())
        }),
        Command::Window { what } => {
            with_config(overrides, |loaded| finish(window::run(&loaded.config, &what)))
        }
        Command::Manual { out } => finish(commands::manual::write(Cli::command(), &out)),
        Command::Pod { task } => {
            log_of_child(overrides);
            finish(commands::pod::run(task))
        }
        Command::Sampler => {
            log_of_child(overrides);
            child_exit("sampler", sampler::run())
        }
        Command::CanaryChild => {
            log_of_child(overrides);
            child_exit("canary-child", canary::child::run())
        }
        Command::TopologyChild => child_exit("topology-child", topology::child::run()),
    }
}

/// Has all threads share one heap of the C library, and give back what they free. By default each thread has a heap
/// of its own: 1 MiB in all for threads that seldom allocate and never at once.
fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets numbers of the allocator; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
    }
}

/// Gives the free pages of that heap back, also those below what is in use.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own lock, and touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn with_config(overrides: &Overrides, then: impl FnOnce(Loaded) -> ExitCode) -> ExitCode {
    match reload::load_checked(overrides) {
        Ok(loaded) => then(loaded),
        Err(errors) => refuse(errors),
    }
}

/// A line on stderr. A reader that has gone ends no command: the exit code is the answer.
fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "gpu-node-exporter: warning: {text}");
}

/// The configuration of a command that asks the running daemon. That keeps the one before a configuration that cannot
/// be used; the command warns, and has the keys of the new one that are right. It gives what is wrong as well.
fn client_config(overrides: &Overrides) -> (Loaded, Vec<String>) {
    let (loaded, errors) = reload::load_known(overrides);
    for problem in &errors {
        warn(problem);
    }
    if !errors.is_empty() {
        let file = reload::main_file(overrides);
        warn(&format!(
            "the configuration cannot be used ({}, environment and flags); a running daemon keeps the one before, and \
             its answer follows",
            file.display()
        ));
    }
    (loaded, errors)
}

/// Says what is wrong with the configuration, a line a problem.
fn refuse(ConfigErrors(problems): ConfigErrors) -> ExitCode {
    for problem in problems {
        eprintln!("gpu-node-exporter: {problem}");
    }
    ExitCode::from(EXIT_BAD_CONFIG)
}

fn check(loaded: Loaded) -> ExitCode {
    for warning in settings::environment_warnings() {
        eprintln!("gpu-node-exporter: warning: {warning}");
    }
    let topology = declared(&loaded.config.topology.expected_file);
    let fields = loaded.dcgm_fields();
    let (unread, empty) = match &fields {
        Ok(fields) => {
            for warning in loaded.dcgm_warnings(fields) {
                eprintln!("gpu-node-exporter: warning: {warning}");
            }
            (None, loaded.dcgm_error(fields))
        }
        Err(ConfigErrors(problems)) => (Some(problems.clone()), None),
    };
    let access = reload::web_config(&loaded.config);
    for warning in access.iter().flatten().flat_map(|access| access.warnings()) {
        eprintln!("gpu-node-exporter: warning: {warning}");
    }
    let problems: Vec<String> = [
        access.err().map(|ConfigErrors(problems)| problems),
        loaded.declared_layout().err().map(|ConfigErrors(problems)| problems),
        topology.err().map(|it| vec![it]),
        unread,
        empty.map(|it| vec![it]),
    ]
    .into_iter()
    .flatten()
    .flatten()
    .collect();
    if !problems.is_empty() {
        return refuse(ConfigErrors(problems));
    }
    print(&loaded.to_toml())
}

fn run(overrides: &Overrides) -> ExitCode {
    let configuration = match Configuration::load(overrides) {
        Ok(configuration) => configuration,
        Err(errors) => return refuse(errors),
    };
    let access = match reload::web_config(&configuration.loaded.config) {
        Ok(access) => access,
        Err(errors) => return refuse(errors),
    };
    log::to_stderr(configuration.loaded.config.log.level);
    configuration.warn();
    for warning in access.iter().flat_map(|access| access.warnings()) {
        tracing::warn!("{warning}");
    }
    match serve::run(configuration, overrides.clone(), access, trim_heap) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(EXIT_FAILED, error),
    }
}

/// Runs the canary. Gives what came of it, and the text to print.
fn prove(config: &Config, arguments: &Arguments) -> Result<(Exit, String), String> {
    let stop = Arc::new(Stop::default());
    lifecycle::stop_at_signals(Arc::clone(&stop)).map_err(|error| error.to_string())?;
    let report = commands::canary::run(config, arguments, &stop)?;
    let text = match arguments.format {
        Format::Json => commands::json(&report)?,
        Format::Table => commands::canary::table::text(&report, host::terminal::stdout_has_colours()),
    };
    Ok((report.result, text))
}

/// Asks the daemon through its socket and prints what to say.
fn with_socket(overrides: &Overrides, ask: impl FnOnce(&Path, &Config) -> io::Result<String>) -> ExitCode {
    let (Loaded { config, .. }, _) = client_config(overrides);
    match config.control.path() {
        Some(socket) => finish(ask(socket, &config)),
        None => fail(EXIT_FAILED, "control.socket is empty, so there is no socket to ask the daemon through"),
    }
}

fn finish(result: Result<String, impl Into<Box<dyn Error>>>) -> ExitCode {
    match result {
        Ok(text) => print(&text),
        Err(error) => fail(EXIT_FAILED, error),
    }
}

/// Prints, and says by the exit code whether all is well.
fn exit_with(code: u8, text: &str) -> ExitCode {
    let printed = print(text);
    if code == 0 { printed } else { ExitCode::from(code) }
}

/// Writes lines to standard output. A reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> ExitCode {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let mut out = io::stdout().lock();
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(EXIT_FAILED, error),
        _ => ExitCode::SUCCESS,
    }
}

/// The end of a child process.
fn child_exit(name: &str, result: io::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("gpu-node-exporter {name}: {error}");
    ExitCode::FAILURE
}

/// Prints an error with its causes on one line.
fn fail(code: u8, error: impl Into<Box<dyn Error>>) -> ExitCode {
    let error = error.into();
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        // Some messages name their cause themselves.
        if !line.contains(&cause.to_string()) {
            line.push_str(&format!(": {cause}"));
        }
        next = cause.source();
    }
    eprintln!("gpu-node-exporter: {line}");
    ExitCode::from(code)
}

/// A child has the level of its parent.
fn log_of_child(overrides: &Overrides) {
    let level = overrides.log_level.as_deref().and_then(|level| level.parse().ok());
    log::to_stderr(level.unwrap_or(tracing::Level::INFO));
}

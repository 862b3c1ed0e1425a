//! `gpu-node-exporter health`: the verdict of the running daemon as an exit code and one line.

use std::io;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::{Output, OutputFormat, client_config};
use crate::control;
use exposition::api::health::HealthAnswer;
use model::health::{Condition, HealthLevel, HealthStatus};
use settings::{Config, Loaded, Overrides};

/// What the exit codes mean, with the conditions of the one table.
fn after_help() -> String {
    let of = |level| {
        let conditions = Condition::ALL.iter().filter(|condition| condition.level() == level);
        conditions.map(|condition| spaced(&format!("{condition:?}"))).collect::<Vec<_>>().join(", ")
    };
    format!(
        "\
Exit codes, which are those of monitoring plugins (Nagios, Icinga, Sensu):
  0  ok: the driver answers and every GPU works
  1  warning: work can run, but something needs a look
  2  critical: work cannot rely on a GPU, a GPU is missing, or the driver is stuck or away
  3  unknown: there is no verdict; the line has the reason. The daemon is gone, starts, hangs or may
     not be asked, its values are too old, the driver is released or has not answered yet, or there
     is no such GPU
  64 the command line is wrong. A configuration with errors is a warning on standard error: the daemon
     keeps the one before, and its verdict follows
With `--exit-codes npd`, as node-problem-detector wants: 0 ok or warning, 1 critical, 2 unknown.

Conditions of a GPU that are a warning: {}. A collector that is down is one too.

Conditions of a GPU that are critical: {}.

The verdict is that of the status page, `/api/v1/snapshot` and `gpu_healthy`, from the newest
snapshot: no driver is waited for. Root and the group of `control.socket` ask there, everyone else
on `health.socket`.

Examples:
  gpu-node-exporter health                  the node
  gpu-node-exporter health --gpu 0,3        the worse of two GPUs
  gpu-node-exporter health --format json    with every GPU and reason",
        of(HealthLevel::Degraded),
        of(HealthLevel::Faulty)
    )
}

/// A name of Rust as words: `RowRemapPending` as `row remap pending`.
fn spaced(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push(' ');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Print whether work can start on this node, as an exit code and one line of reasons
///
/// For launchers, schedulers and monitoring plugins. Reads the verdict of the running daemon.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct HealthArguments {
    /// Only these GPUs, by index or UUID; the worst counts
    #[arg(long, value_name = "INDEX|UUID", value_delimiter = ',', value_parser = gpu)]
    gpu: Vec<String>,
    /// How to print it: text is one line
    #[arg(long, value_enum, default_value = "text")]
    format: OutputFormat,
    /// Longest wait for the daemon; then the answer is unknown
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = timeout)]
    timeout: Duration,
    /// What the exit code means
    #[arg(long, value_enum, default_value = "plugin")]
    exit_codes: ExitCodes,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExitCodes {
    /// 0 ok, 1 warning, 2 critical, 3 unknown
    Plugin,
    /// 0 ok or warning, 1 critical, 2 unknown
    Npd,
}

impl ExitCodes {
    fn code(self, status: HealthStatus) -> u8 {
        match (self, status) {
            (ExitCodes::Plugin, status) => status as u8,
            (ExitCodes::Npd, HealthStatus::Ok | HealthStatus::Warning) => 0,
            (ExitCodes::Npd, HealthStatus::Critical) => 1,
            (ExitCodes::Npd, HealthStatus::Unknown) => 2,
        }
    }
}

fn gpu(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    plain.then(|| text.to_owned()).ok_or_else(|| "an index or a UUID".to_owned())
}

fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(1)..=Duration::from_secs(60);
    allowed.contains(&timeout).then_some(timeout).ok_or_else(|| "between 1ms and 1m".to_owned())
}

/// Part of the answer that the command reads.
#[derive(Deserialize)]
struct Answer {
    status: HealthStatus,
    text: String,
}

pub fn run(overrides: &Overrides, arguments: &HealthArguments) -> Output {
    let (Loaded { config, .. }, _) = client_config(overrides);
    let answer = fetch(&config, arguments).and_then(|json| {
        let json = String::from_utf8(json).map_err(io::Error::other)?;
        Ok((serde_json::from_str::<Answer>(&json)?, json))
    });
    let (Answer { status, text }, json) = answer.unwrap_or_else(|error| {
        let unknown = HealthAnswer::unknown(&error.to_string());
        let json = unknown.json();
        (Answer { status: unknown.status, text: unknown.text }, json)
    });
    let text = match arguments.format {
        OutputFormat::Json => json,
        OutputFormat::Text => format!("{}: {text}", status.word()),
    };
    Output { text, code: arguments.exit_codes.code(status) }
}

fn fetch(config: &Config, arguments: &HealthArguments) -> io::Result<Vec<u8>> {
    let request = format!("health {}", arguments.gpu.join(" "));
    let mut answer =
        Err(io::Error::other("control.socket and health.socket are empty: there is none to ask on"));
    // The socket that is not for everyone first: there no other user can crowd root out.
    for socket in [config.control.path(), config.health.path()].into_iter().flatten() {
        answer = control::fetch_within(arguments.timeout, socket, &request);
        let not_for_us = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound)
        };
        if !answer.as_ref().is_err_and(not_for_us) {
            break;
        }
    }
    answer
}

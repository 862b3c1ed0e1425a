//! `gpu-node-exporter health`: prints the verdict of the running daemon as one line and an exit code.

use std::io;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::{Output, OutputFormat, client_config};
use crate::control;
use exposition::api::health::HealthAnswer;
use model::health::{Condition, HealthLevel, HealthStatus};
use settings::{Config, Loaded, Overrides};

/// Returns the meaning of the exit codes, with the conditions of each level.
fn after_help() -> String {
    let of_level = |level| {
        let conditions = Condition::ALL.iter().filter(|condition| condition.level() == level);
        let words =
            |condition: &Condition| Some(serde_json::to_value(condition).ok()?.as_str()?.replace('_', " "));
        conditions.filter_map(words).collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        include_str!("help/health.txt"),
        of_level(HealthLevel::Degraded),
        of_level(HealthLevel::Faulty)
    );
    text.trim_end().to_owned()
}

/// Print whether work can start on this node, as an exit code and one line of reasons
///
/// For launchers, schedulers and monitoring plugins. Reads the verdict of the running daemon.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct HealthArguments {
    /// Check only these GPUs, by index or UUID; the worst verdict counts
    #[arg(long, value_name = "INDEX|UUID", value_delimiter = ',', value_parser = gpu)]
    gpu: Vec<String>,
    /// Output format: text is one line
    #[arg(long, value_enum, default_value = "text")]
    format: OutputFormat,
    /// Maximum time to wait for the daemon; afterwards the verdict is unknown
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = timeout)]
    timeout: Duration,
    /// Meaning of the exit code
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
    plain.then(|| text.to_owned()).ok_or_else(|| "expected an index or a UUID".to_owned())
}

fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(1)..=Duration::from_secs(60);
    allowed
        .contains(&timeout)
        .then_some(timeout)
        .ok_or_else(|| "expected a duration between 1ms and 1m".to_owned())
}

/// Part of the answer that the command reads.
#[derive(Deserialize)]
struct HealthReply {
    status: HealthStatus,
    text: String,
}

pub fn run(overrides: &Overrides, arguments: &HealthArguments) -> Output {
    let (Loaded { config, .. }, _) = client_config(overrides);
    let answer = fetch(&config, arguments).and_then(|json| {
        let json = String::from_utf8(json).map_err(io::Error::other)?;
        Ok((serde_json::from_str::<HealthReply>(&json)?, json))
    });
    let (HealthReply { status, text }, json) = answer.unwrap_or_else(|error| {
        let unknown = HealthAnswer::unknown(&error.to_string());
        let json = unknown.json();
        (HealthReply { status: unknown.status, text: unknown.text }, json)
    });
    let text = match arguments.format {
        OutputFormat::Json => json,
        OutputFormat::Text => format!("{}: {text}", status.word()),
    };
    Output { text, code: arguments.exit_codes.code(status) }
}

fn fetch(config: &Config, arguments: &HealthArguments) -> io::Result<Vec<u8>> {
    let request = format!("health {}", arguments.gpu.join(" "));
    let mut answer = Err(io::Error::other(
        "control.socket and health.socket are empty, so there is no socket to connect to",
    ));
    // The restricted socket comes first, because other users cannot exhaust its connections.
    for socket in [&config.control.socket, &config.health.socket].into_iter().flatten() {
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

//! `gpu-node-exporter snapshot`: the daemon's current snapshot, or a recording of the flight recorder.

use std::io;
use std::path::PathBuf;

use clap::Args;
use settings::Overrides;

use super::{CommandResult, recording, with_socket};
use crate::control;

/// Print the metrics of the running daemon, or read a recording
///
/// Connects to the daemon through its local socket.
#[derive(Args)]
pub(crate) struct SnapshotArguments {
    /// Output format: text is the Prometheus text format 0.0.4, openmetrics is OpenMetrics 1.0
    #[arg(long, value_parser = ["json", "text", "openmetrics"], default_value = "text")]
    format: String,
    /// Print this recording of the flight recorder instead, as text or JSON
    ///
    /// Needs no running daemon. If the file is truncated, the command prints the readable part and exits with code 1.
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
}

pub fn run(overrides: &Overrides, arguments: &SnapshotArguments) -> CommandResult {
    let format = &arguments.format;
    match &arguments.recording {
        Some(file) => Ok(recording::run(file, format)?),
        None => with_socket(overrides, |socket, _| {
            let answer = control::fetch(socket, &format!("snapshot {format}"))?;
            String::from_utf8(answer).map_err(io::Error::other)
        }),
    }
}

//! `gpu-node-exporter gpm`: leaves the profiling counters to a profiler.

use clap::{Args, Subcommand};
use settings::Overrides;

use super::{CommandResult, with_socket};
use crate::control::orders;

/// Free the profiling counters (GPM) for a profiler such as Nsight, and read them again
///
/// On Hopper and later GPUs only one program at a time can read these counters. After `gpm off` the metrics derived from
/// them are absent until `gpm on` or a restart of the daemon. To turn them off permanently, set `gpm.enabled = false`.
#[derive(Args)]
pub(crate) struct GpmArguments {
    #[command(subcommand)]
    command: GpmCommand,
}

#[derive(Clone, Copy, Subcommand)]
enum GpmCommand {
    /// Stop reading the profiling counters, so that a profiler can read them
    Off,
    /// Read the profiling counters again
    On,
}

pub fn run(overrides: &Overrides, arguments: &GpmArguments) -> CommandResult {
    let (request, text) = match arguments.command {
        GpmCommand::Off => (
            "gpm off",
            "The daemon stops reading the profiling counters within a second. A profiler can read them until \
             `gpu-node-exporter gpm on` or a restart of the daemon.",
        ),
        GpmCommand::On => {
            ("gpm on", "The daemon reads the profiling counters again, on GPUs that have them.")
        }
    };
    with_socket(overrides, |socket, _| orders::ask(socket, request).map(|_| text.to_owned()))
}

//! `gpu-node-exporter nvswitch`: clears faults of NVSwitches after their reset.

use clap::{Args, Subcommand};
use settings::Overrides;

use super::{CommandResult, with_socket};
use crate::control::orders;

/// Report to the running daemon that the NVSwitches were reset
#[derive(Args)]
pub(crate) struct NvswitchArguments {
    #[command(subcommand)]
    command: NvswitchCommand,
}

#[derive(Subcommand)]
enum NvswitchCommand {
    /// Clear the faults of all NVSwitches (gpu_nvswitch_fault_active)
    ///
    /// Run it after `nvidia-smi --gpu-reset` without `-i`, which resets the NVSwitches together with all GPUs and leaves no
    /// trace that the daemon could read. Loading the driver and booting the node clear the faults automatically. The
    /// daemon logs the user and the reason.
    Clear {
        /// How the switches were repaired
        #[arg(long, value_name = "TEXT", value_parser = orders::is_reason)]
        reason: String,
    },
}

pub fn run(overrides: &Overrides, arguments: &NvswitchArguments) -> CommandResult {
    let NvswitchCommand::Clear { reason } = &arguments.command;
    with_socket(overrides, |socket, _| orders::clear_switch_faults(socket, reason))
}

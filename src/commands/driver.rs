//! `gpu-node-exporter driver`: releases the driver and resumes its use.

use clap::{Args, Subcommand};
use settings::Overrides;

use super::{CommandResult, with_socket};
use crate::control::orders::{self, describe};

/// Release the driver so that it can be unloaded or upgraded, and resume its use
///
/// SIGUSR1 to the main process releases the driver too:
/// `systemctl kill --kill-who=main -s USR1 gpu-node-exporter`
#[derive(Args)]
pub(crate) struct DriverArguments {
    #[command(subcommand)]
    command: DriverCommand,
}

#[derive(Clone, Copy, Subcommand)]
enum DriverCommand {
    /// Stop the process that has the driver open, and wait until it has exited
    ///
    /// Afterwards no handle or device file is open. The GPUs stay listed, nothing is measured, and `gpu_driver_paused` is 1.
    /// The daemon resumes automatically when the kernel module has been unloaded and loaded again. Exit code 1 if the
    /// driver is not released within 10 s, for example because a driver call hangs.
    Release,
    /// Resume the use of the driver
    Resume,
    /// Print whether the driver is in use, and by which process
    Status,
}

pub fn run(overrides: &Overrides, arguments: &DriverArguments) -> CommandResult {
    with_socket(overrides, |socket, config| match arguments.command {
        DriverCommand::Release => orders::release(socket, &config.canary.lock_file),
        DriverCommand::Resume => orders::ask(socket, "driver resume").map(|status| describe(&status)),
        DriverCommand::Status => orders::ask(socket, "driver status").map(|status| describe(&status)),
    })
}

//! Command line of `canary`.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};

use crate::control::orders::is_reason;
use model::catalog::CanaryCheck;
use model::catalog::schema::KnownLabel;

/// Keyword for all checks.
const ALL: &str = "all";

/// Run small CUDA kernels to verify that GPUs compute correctly and at full speed
///
/// For a drained node or a job prolog. Detects GPUs that are throttled, slow, run with a narrowed link, compute wrong
/// results or fail, and prints the first thing to do.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("../help/canary.txt").trim_end(), args_conflicts_with_subcommands = true)]
pub(crate) struct CanaryArguments {
    #[command(subcommand)]
    pub command: Option<CanaryCommand>,
    /// GPU or MIG device by index or UUID, or `all`; can be repeated or separated by commas
    #[arg(long, value_name = "GPU", value_delimiter = ',', default_value = ALL)]
    pub gpu: Vec<String>,
    /// Check to run; can be repeated or separated by commas [default: canary.checks of the configuration]
    #[arg(long, value_name = "CHECK", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    check: Vec<String>,
    /// Output format; the JSON document contains all measurements
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    /// Number of runs per device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Only list the conditions for a run and their state
    #[arg(long)]
    pub explain: bool,
    /// Test GPUs that are in use too
    #[arg(long)]
    pub force: bool,
    /// Exit with code 4 instead of 0 if nothing was run, for example because all GPUs are in use
    #[arg(long, conflicts_with = "explain")]
    pub strict: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum CanaryCommand {
    /// Clear the wrong result of a GPU, so that it counts as healthy again
    ///
    /// Connects to the daemon through its local socket, and the daemon logs the user and the reason. Use it for a board
    /// that was tested and is healthy; a replaced board needs no command. Without a socket (control.socket) the daemon
    /// receives no results of manual runs, and no result can be cleared.
    Clear {
        /// GPU by index or UUID
        #[arg(long, value_name = "GPU")]
        gpu: String,
        /// Reason why the GPU is healthy
        #[arg(long, value_name = "TEXT", value_parser = is_reason)]
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Table for a terminal
    Table,
    /// One JSON document with all measurements
    Json,
}

impl CanaryArguments {
    /// Returns the selected checks without duplicates, in the order of the command line.
    pub fn checks(&self) -> Vec<CanaryCheck> {
        let mut checks: Vec<CanaryCheck> = Vec::new();
        for name in &self.check {
            let meant = CanaryCheck::ALL.iter().filter(|check| name == ALL || check.known() == name);
            let new: Vec<CanaryCheck> = meant.filter(|check| !checks.contains(check)).copied().collect();
            checks.extend(new);
        }
        checks
    }
}

fn names() -> Vec<&'static str> {
    CanaryCheck::ALL.iter().map(|check| check.known()).chain([ALL]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: CanaryArguments,
    }

    fn arguments(words: &[&str]) -> Option<CanaryArguments> {
        Some(Line::try_parse_from([&["canary"], words].concat()).ok()?.arguments)
    }

    #[test]
    fn a_line_says_what_is_wanted() {
        let nothing = arguments(&[]).unwrap();
        assert_eq!((nothing.checks(), nothing.repeat), (vec![], 1));
        assert_eq!(nothing.gpu, ["all"]);
        let some =
            arguments(&["--gpu", "0,3", "--gpu=GPU-1", "--check", "l2,sm_rate", "--check", "l2"]).unwrap();
        assert_eq!(some.gpu, ["0", "3", "GPU-1"]);
        assert_eq!(some.checks(), [CanaryCheck::L2, CanaryCheck::SmRate]);
        assert_eq!(arguments(&["--check", "all"]).unwrap().checks().len(), CanaryCheck::ALL.len());
        for wrong in [&["--check", "smrate"][..], &["--repeat", "0"], &["--format", "xml"]] {
            assert!(arguments(wrong).is_none(), "{wrong:?}");
        }
    }
}

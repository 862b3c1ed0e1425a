//! The command line of the canary.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};

use crate::control::orders::is_reason;
use model::catalog::CanaryCheck;
use model::catalog::schema::KnownLabel;

/// Word for all checks.
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
    /// GPU or MIG device by index or UUID, or `all`; may be given again, or with commas
    #[arg(long, value_name = "GPU", value_delimiter = ',', default_value = ALL)]
    pub gpu: Vec<String>,
    /// What to check; may be given again, or with commas [default: canary.checks of the configuration]
    #[arg(long, value_name = "CHECK", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    check: Vec<String>,
    /// How to print what was found; the JSON has all that was measured
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    /// Runs on each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Only list what has to be so for a run, and how it is
    #[arg(long)]
    pub explain: bool,
    /// Also on a GPU that is in use
    #[arg(long)]
    pub force: bool,
    /// Exit code 4 if nothing was run, as when all GPUs are in use; without it that is 0
    #[arg(long, conflicts_with = "explain")]
    pub strict: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum CanaryCommand {
    /// Clear the wrong result of a GPU, so that it counts as healthy again
    ///
    /// Asks the daemon through its local socket; the daemon logs who asked and why. For a board that was tested and is
    /// well; a new board needs no order. Without a socket (control.socket) the daemon hears of no run by hand, and no
    /// result can be cleared.
    Clear {
        /// GPU by index or UUID
        #[arg(long, value_name = "GPU")]
        gpu: String,
        /// Why it may count as healthy
        #[arg(long, value_name = "TEXT", value_parser = is_reason)]
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// One document
    Json,
}

impl CanaryArguments {
    /// The checks that are named, once each, in the order given.
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

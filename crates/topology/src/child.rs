//! The process that looks at the machine: one answer, then its end. It loads no vendor's library, and is the only
//! one that reads files which ask a device.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::answer::{All, What};
use super::discover::{self, Found, Origin};
use host::child;

/// How much of the CPU is left to others.
const NICE: i32 = 10;

/// What it is told on its command line.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Arguments {
    /// What is asked for
    #[arg(long, value_enum)]
    pub what: What,
    /// Where the machine's files are
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub files: PathBuf,
    /// A file of hwloc's instead of the machine
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// A description in hwloc's words instead of the machine
    #[arg(long, value_name = "TEXT", conflicts_with = "input")]
    pub synthetic: Option<String>,
}

/// The process's whole life.
pub fn main(arguments: &Arguments) -> ExitCode {
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-node-exporter topology-child: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    child::ignore_signals()?;
    let (answers, _control, _shared) = child::inherited()?;
    if let Err(error) = child::be_nice(NICE) {
        tracing::debug!(%error, "the topology process is as important as others");
    }
    let origin = match (&arguments.input, &arguments.synthetic) {
        (Some(file), _) => Origin::Xml(file.clone()),
        (None, Some(text)) => Origin::Synthetic(text.clone()),
        (None, None) => Origin::Live(arguments.files.clone()),
    };
    if arguments.what == What::Links {
        return answer(answers, &Ok(discover::links(&arguments.files)));
    }
    let xml = arguments.what == What::Xml;
    let devices = match &origin {
        Origin::Live(root) => discover::links(root).addresses(),
        Origin::Xml(_) | Origin::Synthetic(_) => Vec::new(),
    };
    let found = discover::discover(&origin)
        .map(|Found { topology, xml: text }| All { topology, devices, xml: xml.then_some(text) })
        .map_err(|error| error.to_string());
    answer(answers, &found)
}

/// Writes the answer in one go: whoever asked reads to the end, or has stopped listening.
fn answer<T: Serialize>(mut to: File, answer: &Result<T, String>) -> io::Result<()> {
    to.write_all(&serde_json::to_vec(answer)?)
}

//! `gpu-node-exporter assess`: whether a program should move to a GPU, and whether a move paid. Needs no daemon, no GPU and no
//! configuration.
//!
//! [`program`] runs a program, [`owner`] watches what runs already; [`counters`] are the processor's, [`samples`] say where
//! the time goes, [`maps`] and [`symbols`] name the functions. The judgement is the crate `assess`.

pub mod arguments;
mod counters;
mod maps;
mod owner;
mod program;
mod samples;
mod symbols;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use assess::compare::{self, compare};
use assess::flops::CpuModel;
use assess::recording::{self, RunCounts};
use assess::report::AssessReport;
use assess::{roofline, text};
use host::Host;
use host::stop::Stop;
use host::terminal::stdout_has_colours;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::json;
use crate::lifecycle;
use arguments::{AssessArguments, AssessFormat};

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssessEnd {
    Code(u8),
    /// The program's signal.
    Signal(i32),
}

/// Exit code of `--compare` where there is nothing to compare.
const EXIT_NO_COMPARISON: u8 = 2;

/// Does what was asked. What keeps the command from it goes to standard error.
pub fn run(root: &Path, arguments: &AssessArguments) -> AssessEnd {
    let host = Host::new(root);
    match &arguments.compare {
        Some(files) => match compared(files, arguments) {
            Ok(met) => AssessEnd::Code(u8::from(!met)),
            Err(error) => refused(EXIT_NO_COMPARISON, error),
        },
        None if arguments.command.is_empty() => match reported(&host, arguments) {
            Ok(()) => AssessEnd::Code(0),
            Err(error) => refused(1, error),
        },
        None => ran(&host, arguments),
    }
}

fn refused(code: u8, error: impl std::fmt::Display) -> AssessEnd {
    eprintln!("gpu-node-exporter: assess: {error}");
    AssessEnd::Code(code)
}

/// Runs the program. A report that cannot be written changes nothing of the program's end.
fn ran(host: &Host, arguments: &AssessArguments) -> AssessEnd {
    let mut run = match program::run(&arguments.command, host) {
        Ok(run) => run,
        Err(error) => {
            let name = arguments.command[0].to_string_lossy();
            return refused(program::not_started(&error), format!("{name}: {error}"));
        }
    };
    run.items = arguments.items;
    let exit = run.exit.unwrap_or(0);
    let colours = io::stderr().is_terminal() && stdout_colours_are_welcome();
    let written = record(&[&run], arguments).and_then(|()| {
        let report = render(run, arguments, colours && arguments.out.is_none())?;
        write(&report, arguments, &mut io::stderr().lock())
    });
    if let Err(error) = written {
        let _ = refused(0, error);
    }
    match u8::try_from(exit) {
        Ok(code) => AssessEnd::Code(code),
        Err(_) => AssessEnd::Signal(-exit),
    }
}

/// Reports what was recorded, or a running owner.
fn reported(host: &Host, arguments: &AssessArguments) -> Result<(), String> {
    let mut run = match &arguments.read {
        Some(file) => recorded(file)?.pop().ok_or("no run")?,
        None => watched(host, arguments)?,
    };
    run.items = arguments.items.or(run.items);
    let report = render(run, arguments, stdout_has_colours() && arguments.out.is_none())?;
    write(&report, arguments, &mut io::stdout().lock())
}

/// Watches a running owner. Gives the whole time.
fn watched(host: &Host, arguments: &AssessArguments) -> Result<RunCounts, String> {
    let stop = Arc::new(Stop::default());
    lifecycle::stop_at_signals(Arc::clone(&stop)).map_err(|error| error.to_string())?;
    let (whole, mut spans) = owner::watch(arguments, host, &stop)?;
    let share = arguments.items.map(|items| items / spans.len().max(1) as f64);
    spans.iter_mut().for_each(|span| span.items = share);
    record(&spans.iter().collect::<Vec<_>>(), arguments)?;
    Ok(whole)
}

/// All runs of a recording.
fn recorded(file: &Path) -> Result<Vec<RunCounts>, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    recording::parse(&text).map_err(|error| format!("{name}: {error}"))
}

/// Compares two recordings. Gives whether every target is met.
fn compared(files: &[std::path::PathBuf], arguments: &AssessArguments) -> Result<bool, String> {
    let diff = compare(&recorded(&files[0])?, &recorded(&files[1])?, &arguments.target);
    let text = match arguments.format {
        AssessFormat::Json => json(&diff)?,
        AssessFormat::Text => compare::text(&diff, stdout_has_colours() && arguments.out.is_none()),
        AssessFormat::Svg => return Err("--compare has no picture: choose --format text or json".into()),
    };
    write(&text, arguments, &mut io::stdout().lock())?;
    Ok(diff.met)
}

fn render(run: RunCounts, arguments: &AssessArguments, colours: bool) -> Result<String, String> {
    let report = AssessReport::of(run, &arguments.given(), arguments.roof());
    match arguments.format {
        AssessFormat::Text => Ok(text::page(&report, colours)),
        AssessFormat::Json => json(&report),
        AssessFormat::Svg => Ok(roofline::svg(&report.figures, &report.gpu, &report.run.subject)),
    }
}

fn write(text: &str, arguments: &AssessArguments, standard: &mut dyn Write) -> Result<(), String> {
    match &arguments.out {
        Some(file) => std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display())),
        None => match standard.write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
            _ => Ok(()),
        },
    }
}

fn record(runs: &[&RunCounts], arguments: &AssessArguments) -> Result<(), String> {
    let Some(path) = &arguments.record else { return Ok(()) };
    let lines = runs.iter().map(|run| recording::line(run)).collect::<Result<String, _>>()?;
    let file: io::Result<File> = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(lines.as_bytes()))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn stdout_colours_are_welcome() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The processor as far as its events differ, and its name.
fn processor(host: &Host) -> (CpuModel, String) {
    let text = std::fs::read_to_string(host.path("/proc/cpuinfo")).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let name = lines.find(|(key, _)| key.trim() == "model name").map_or("", |(_, name)| name.trim());
    (CpuModel::of(&text), name.to_owned())
}

/// Threads of a process now; 0 if that is not known.
fn threads(host: &Host, pid: i32) -> u64 {
    let status = std::fs::read_to_string(host.path(format!("/proc/{pid}/status"))).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// CPUs that this process, and so its program, may run on.
fn allowed_cpus() -> Option<f64> {
    let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let count = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).count();
    Some(count as f64)
}

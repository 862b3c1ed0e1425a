//! `gpu-node-exporter assess`: estimates whether a program would benefit from a GPU, and whether a port paid
//! off. Needs no daemon, no GPU and no configuration.
//!
//! [`program`] runs a program, and [`owner`] watches a running one. [`counters`] reads hardware counters,
//! [`samples`] samples the CPU time, and [`maps`] and [`symbols`] name the functions. The crate `assess`
//! judges the counts.

pub mod arguments;
mod counters;
mod maps;
mod owner;
mod program;
mod samples;
mod symbols;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use assess::compare::{self, compare};
use assess::flops::CpuModel;
use assess::recording::{self, HotFunctions, RunCounts};
use assess::report::AssessReport;
use assess::{roofline, text};
use attribution::usage;
use host::Host;
use host::stop::Stop;
use host::terminal::stdout_has_colours;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::stat::fstat;
use nix::unistd::Pid;
use settings::Overrides;

use super::{Output, json};
use crate::lifecycle;
use arguments::{AssessArguments, AssessFormat};
use samples::CpuClock;
use symbols::Symbols;

/// Exit code if an output file cannot be opened, as for a wrong command line.
const EXIT_WRONG_FILE: u8 = 64;
/// Exit code of `--compare` if the recordings cannot be compared.
const EXIT_NO_COMPARISON: u8 = 2;

/// Runs the command. It prints its report and its errors itself, so the output contains only the exit code.
pub fn run(overrides: &Overrides, arguments: &AssessArguments) -> Output {
    let host = Host::new(overrides.root.as_deref().unwrap_or("/"));
    let code = match &arguments.compare {
        Some(files) => match compared(files, arguments) {
            Ok(met) => u8::from(!met),
            Err(error) => refused(EXIT_NO_COMPARISON, error),
        },
        None if arguments.command.is_empty() => match reported(&host, arguments) {
            Ok(()) => 0,
            Err(error) => refused(1, error),
        },
        None => ran(&host, arguments),
    };
    Output { text: String::new(), code }
}

fn refused(code: u8, error: impl std::fmt::Display) -> u8 {
    eprintln!("gpu-node-exporter: assess: {error}");
    code
}

/// Runs the program. An error while writing the report does not change the exit code.
fn ran(host: &Host, arguments: &AssessArguments) -> u8 {
    let mut files = match OpenedFiles::open(arguments) {
        Ok(files) => files,
        Err(error) => return refused(EXIT_WRONG_FILE, error),
    };
    let mut run = match program::run(&arguments.command, arguments.progress, host) {
        Ok(run) => run,
        Err(error) => {
            let name = arguments.command[0].to_string_lossy();
            return refused(program::not_started(&error), format!("{name}: {error}"));
        }
    };
    run.items = arguments.items;
    let exit = run.exit.unwrap_or(1);
    let colours = io::stderr().is_terminal() && colours_are_welcome();
    let _ = files.record(&[&run]).map_err(|error| refused(0, error));
    let written = render(run, arguments, colours && arguments.out.is_none()).and_then(|report| {
        let written = files.write(&report, &mut io::stderr().lock());
        // Prints the report, so that a full disk does not lose it.
        if written.is_err() && arguments.out.is_some() {
            let _ = io::stderr().lock().write_all(report.as_bytes());
        }
        written
    });
    let _ = written.map_err(|error| refused(0, error));
    // A negative number is the signal that ended the program.
    u8::try_from(exit).unwrap_or_else(|_| host::child::end_by(-exit))
}

/// Reports on a recording or a running program.
fn reported(host: &Host, arguments: &AssessArguments) -> Result<(), String> {
    let mut files = OpenedFiles::open(arguments)?;
    let mut run = match &arguments.read {
        Some(file) => recording::newest(recorded(file)?).ok_or("the recording has no run")?,
        None => watched(host, arguments, &mut files)?,
    };
    run.items = arguments.items.or(run.items);
    let report = render(run, arguments, stdout_has_colours() && arguments.out.is_none())?;
    files.write(&report, &mut io::stdout().lock())
}

/// Watches a running program. Returns the counts of the whole time.
fn watched(host: &Host, arguments: &AssessArguments, files: &mut OpenedFiles) -> Result<RunCounts, String> {
    let stop = Arc::new(Stop::default());
    lifecycle::stop_at_signals(Arc::clone(&stop)).map_err(|error| error.to_string())?;
    let (whole, mut spans) = owner::watch(arguments, host, &stop)?;
    let share = arguments.items.map(|items| items / spans.len().max(1) as f64);
    spans.iter_mut().for_each(|span| span.items = share);
    files.record(&spans.iter().collect::<Vec<_>>())?;
    Ok(whole)
}

/// Reads all runs of a recording.
fn recorded(file: &Path) -> Result<Vec<RunCounts>, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    recording::parse(&text).map_err(|error| format!("{name}: {error}"))
}

/// Compares two recordings. Returns true if every target is met.
fn compared(files: &[std::path::PathBuf], arguments: &AssessArguments) -> Result<bool, String> {
    let diff = compare(&recorded(&files[0])?, &recorded(&files[1])?, &arguments.target);
    let text = match arguments.format {
        AssessFormat::Json => json(&diff)?,
        AssessFormat::Text => compare::text(&diff, stdout_has_colours() && arguments.out.is_none()),
        AssessFormat::Svg => return Err("--compare needs --format text or json".into()),
    };
    OpenedFiles::open(arguments)?.write(&text, &mut io::stdout().lock())?;
    Ok(diff.met)
}

fn render(run: RunCounts, arguments: &AssessArguments, colours: bool) -> Result<String, String> {
    let report = AssessReport::new(run, &arguments.inputs(), arguments.roof());
    match arguments.format {
        AssessFormat::Text => Ok(text::page(&report, colours)),
        AssessFormat::Json => json(&report),
        AssessFormat::Svg => Ok(roofline::svg(&report.figures, &report.gpu, &report.run.subject)),
    }
}

/// Files that are written at the end. They are opened before the start, because a wrong path must not cost a
/// run of hours.
#[derive(Debug)]
struct OpenedFiles {
    out: Option<(PathBuf, File)>,
    record: Option<(PathBuf, File)>,
}

impl OpenedFiles {
    fn open(arguments: &AssessArguments) -> Result<OpenedFiles, String> {
        let open = |path: &Option<PathBuf>, options: &mut OpenOptions| {
            let Some(path) = path else { return Ok(None) };
            let file = options.create(true).open(path).map_err(|error| at(path, &error))?;
            Ok::<_, String>(Some((path.clone(), file)))
        };
        Ok(OpenedFiles {
            // The old content stays until there is a report.
            out: open(&arguments.out, OpenOptions::new().write(true).truncate(false))?,
            record: open(&arguments.record, OpenOptions::new().append(true))?,
        })
    }

    fn write(&mut self, text: &str, standard: &mut dyn Write) -> Result<(), String> {
        let Some((path, file)) = &mut self.out else {
            return match standard.write_all(text.as_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
                _ => Ok(()),
            };
        };
        // A pipe or a device has no length. If the program writes to the same file, its output stays.
        let _ = match is_standard(file) {
            true => file.seek(SeekFrom::End(0)).map(drop),
            false => file.set_len(0),
        };
        file.write_all(text.as_bytes()).map_err(|error| at(path, &error))
    }

    fn record(&mut self, runs: &[&RunCounts]) -> Result<(), String> {
        let Some((path, file)) = &mut self.record else { return Ok(()) };
        let lines = runs.iter().map(|run| recording::line(run)).collect::<Result<String, _>>()?;
        file.write_all(lines.as_bytes()).map_err(|error| at(path, &error))
    }
}

/// Returns true if a file is also standard output or standard error.
fn is_standard(file: &File) -> bool {
    let identity = |of: &dyn AsFd| fstat(of.as_fd()).ok().map(|found| (found.st_dev, found.st_ino));
    let of_file = identity(file);
    of_file.is_some() && (of_file == identity(&io::stdout()) || of_file == identity(&io::stderr()))
}

fn at(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn colours_are_welcome() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns the processor model, which decides on the events, and its name.
fn processor(host: &Host) -> (CpuModel, String) {
    let text = std::fs::read_to_string(host.path("/proc/cpuinfo")).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let name = lines.find(|(key, _)| key.trim() == "model name").map_or("", |(_, name)| name.trim());
    (CpuModel::from_cpuinfo(&text), name.to_owned())
}

/// Returns the functions that were sampled.
fn functions(clock: CpuClock, host: &Host) -> HotFunctions {
    let (spaces, profile) = clock.finish();
    Symbols::new(&spaces, host).functions(&profile)
}

/// Returns the current number of threads of a process; 0 if it is unknown.
fn threads(host: &Host, pid: i32) -> u64 {
    let status = std::fs::read_to_string(host.path(format!("/proc/{pid}/status"))).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// Returns the number of CPUs that this process, and therefore its program, may use.
fn allowed_cpus(host: &Host) -> Option<f64> {
    let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let count = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).count();
    Some(limited(count as f64, host, "self"))
}

/// Limits a number of CPUs by the quotas of the process's control groups.
fn limited(cpus: f64, host: &Host, process: &str) -> f64 {
    let text = std::fs::read_to_string(host.path(format!("/proc/{process}/cgroup"))).unwrap_or_default();
    let groups = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let of_cpu =
        groups.filter(|(controllers, _)| controllers.split(',').any(|of| of.is_empty() || of == "cpu"));
    let limits = of_cpu.filter_map(|(_, group)| usage::look(host, group.trim_start_matches('/')).cpu_limit);
    limits.fold(cpus, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_fewer_cpus() {
        let dir = tempfile::TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
        write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        let host = Host::new(dir.path());
        assert_eq!((limited(64.0, &host, "self"), limited(2.0, &host, "self")), (2.5, 2.0));
        assert_eq!(limited(64.0, &host, "7"), 64.0);
    }
}

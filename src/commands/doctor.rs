//! `gpu-node-exporter doctor`: checks this machine and the rights of this user, and prints one command that
//! fixes each problem. Changes nothing and never hangs. A child process queries the driver (`driver_query`),
//! unless the daemon has released the driver or reports it as stuck.

mod bundle;
mod cpu;
mod cuda;
pub(super) mod daemon;
pub(super) mod driver_query;
mod families;
mod host;
mod report;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{CommandResult, Output, OutputFormat, client_config};
use crate::log;
use ::host::Host;
use clap::Args;
use collectors::module::{self, library};
use cuda::{Cuda, Judgement};
use daemon::Daemon;
use driver_query::{DriverAnswers, QueryScope, does_not_return};
use families::{Family, Standing};
use model::catalog::DriverError;
use model::driver_module::ModuleState;
use report::{Finding, Report, Verdict, costs};
use settings::{Config, Overrides};

/// Check this machine, and print how to fix problems
///
/// Queries the driver in a separate process and never hangs. Changes nothing, and works next to a running daemon. Prints
/// the user and the capabilities, libraries, kernel module and device files, whether the metrics work, are unsupported, are
/// not permitted or fail, the cost of every NVML call, and the verdict and the collectors of the daemon. Without a daemon
/// it checks access to the kernel log, the control groups and the kubelet instead. Exit code 0 if nothing is wrong,
/// otherwise 1.
#[derive(Args)]
pub(crate) struct DoctorArguments {
    /// Output format of the report
    #[arg(long, value_enum, default_value = "text")]
    format: OutputFormat,
    /// Only check whether programs built with this CUDA version run here, for example `12.4`, and print the
    /// rule; exit code 0 if they do, otherwise 1
    #[arg(long, value_name = "X.Y")]
    cuda: Option<Cuda>,
    /// Write an archive (.tar.gz) for a support case: configuration, published metrics, events, recordings,
    /// the newest log lines and the output of doctor, without secrets
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cuda", "format"])]
    bundle: Option<PathBuf>,
    /// Leave names of pods, jobs, users and processes out of the bundle
    #[arg(long, requires = "bundle")]
    without_owners: bool,
}

pub fn run(overrides: &Overrides, arguments: &DoctorArguments) -> CommandResult {
    let (loaded, errors) = client_config(overrides);
    log::to_stderr(tracing::Level::ERROR);
    if let Some(file) = &arguments.bundle {
        return Ok(bundle::run(&loaded, &errors, file, arguments.without_owners)?.into());
    }
    let (text, is_well) = match arguments.cuda {
        Some(wanted) => {
            let judgement = runs_cuda(&loaded.config, wanted);
            (arguments.format.render(&judgement, |_| judgement.to_string())?, judgement.runs())
        }
        None => {
            let report = examine(&loaded.config, &errors);
            (arguments.format.render(&report, |colours| report.text(colours))?, report.well)
        }
    };
    Ok(Output { text, code: u8::from(!is_well) })
}

/// Runs all checks of this machine.
pub fn examine(config: &Config, config_errors: &[String]) -> Report {
    let (daemon, host, off) = (Daemon::connect(config), Host::new(&config.host.root), config.switched_off());
    let module = module::look(&host, None);
    let answers = daemon.query_driver(config, QueryScope::AllBut(&off));
    let responds = matches!(&answers, Ok(answers) if answers.up && answers.away.is_none());
    // If the driver responds, missing files are no problem.
    let missing = if responds { Verdict::Note } else { Verdict::Wrong };
    let mut findings = vec![host::user()];
    let fix = "gpu-node-exporter check-config";
    findings.extend(config_errors.iter().map(|error| Finding::wrong("configuration", error).fix(fix)));
    findings.extend(daemon.findings());
    findings.push(kernel_module(&module, missing));
    findings.extend(libraries(&host, config, &module, missing));
    findings.extend(host::device_files(Path::new("/dev"), module.load().is_some(), missing));
    match &answers {
        Ok(answers) => findings.extend(driver(answers, config)),
        Err(why) => findings.push(why.clone()),
    }
    findings.extend(unhealthy_gpus(answers.as_ref().ok(), &daemon));
    findings.extend(cpu::events(&host, config, &daemon));
    findings.extend(daemon.slurm());
    findings.extend(daemon.state_folder(config));
    if !daemon.answers() {
        findings.push(host::kernel_log(&host, config));
        findings.extend(host::owners(&host, config));
        findings.push(host::topology(config));
        findings.push(host::state_folder(config));
    }
    let answers = answers.unwrap_or_default();
    let metrics = if answers.up { families::judge(answers.batches.values(), &off) } else { Vec::new() };
    findings.extend(metric_findings(&metrics));
    Report::new(findings, metrics, costs(answers.calls))
}

/// Checks if programs built with this CUDA version run here.
fn runs_cuda(config: &Config, wanted: Cuda) -> Judgement {
    let daemon = Daemon::connect(config);
    let loaded = module::look(&Host::new(&config.host.root), None);
    let version = loaded.load().map(|load| load.version.clone()).filter(|version| !version.is_empty());
    let (mut driver, mut supports) =
        (daemon.driver_info("driver_version"), daemon.driver_info("cuda_version"));
    if supports.is_none()
        && let Ok(answers) = daemon.query_driver(config, QueryScope::AllBut(&HashSet::new()))
    {
        driver = answers.driver_info("driver_version").or(driver);
        supports = answers.driver_info("cuda_version");
    }
    let supports = supports.and_then(|text| text.parse().ok());
    cuda::judge(wanted, driver.or(version).as_deref(), supports)
}

fn kernel_module(module: &ModuleState, missing: Verdict) -> Finding {
    let topic = "kernel module";
    match module {
        ModuleState::Unknown => Finding::note(topic, "unknown, because /sys/module does not exist"),
        // A container without the host's /sys, or a simulated library.
        ModuleState::Absent if missing == Verdict::Note => {
            Finding::new(topic, missing, "not visible here, but the driver responds")
        }
        ModuleState::Absent => {
            Finding::new(topic, missing, "nvidia is not loaded").fix("sudo modprobe nvidia")
        }
        ModuleState::Loaded(load) => {
            Finding::well(topic, format!("loaded: nvidia {}", load.version).trim_end())
        }
    }
}

/// Checks the libraries on disk, and compares the version of the module with theirs and the declared one.
fn libraries(host: &Host, config: &Config, module: &ModuleState, missing: Verdict) -> Vec<Finding> {
    let nvml = library::find(host, config);
    let listed = |topic, found: &[library::DriverLibrary], missing| {
        let each = found.iter().map(|library| {
            let version = library.version.as_deref().unwrap_or("unknown version");
            format!("{} ({version})", library.path.display())
        });
        match found {
            [] => Finding::new(topic, missing, "not found in the usual directories"),
            _ => Finding::well(topic, each.collect::<Vec<_>>().join(", ")),
        }
    };
    let mut library = listed("libnvidia-ml", &nvml, missing);
    if nvml.is_empty() && missing == Verdict::Wrong {
        library = library.fix("ldconfig -p | grep libnvidia-ml   # then pass its path with --nvml-library");
    }
    let mut findings = vec![library];
    findings.push(listed("libcuda", &library::search(host, library::CUDA), Verdict::Note));
    let loaded = module.load().map_or("", |load| &load.version);
    let declared = config.driver.expected_version.trim();
    for (other, of, fix) in [
        (library::only_version(&nvml).as_deref(), "libnvidia-ml on disk has version", Some("sudo reboot")),
        (Some(declared), "driver.expected_version is", None),
    ] {
        if let Some(false) = module::same(loaded, other.unwrap_or("")) {
            let text = format!("the module has version {loaded}, but {of} {}", other.unwrap_or(""));
            let finding = Finding::wrong("versions", text);
            findings.push(Finding { fix: fix.map(str::to_owned), ..finding });
        }
    }
    findings
}

/// Checks the answers of the driver.
fn driver(answers: &DriverAnswers, config: &Config) -> Vec<Finding> {
    let topic = "driver";
    let hangs = |hung| {
        let text = format!("{}, so the driver hangs", does_not_return(hung));
        Finding::wrong(topic, text).fix(KERNEL_MESSAGES)
    };
    let mut findings: Vec<Finding> = answers.hung.iter().map(hangs).collect();
    if let Some(pid) = answers.left {
        let text = format!("process {pid} of doctor remains in that call and exits when the call returns");
        findings.push(Finding::note(topic, text));
    }
    if let Some((error, text)) = &answers.away {
        let fix = match error {
            Some(DriverError::LibRmVersionMismatch) => Some("sudo reboot"),
            Some(DriverError::DriverNotLoaded) => {
                Some("nvidia-smi   # shows if the library or the module is missing")
            }
            Some(DriverError::NoPermission) => Some("sudo nvidia-modprobe -c 0 -u"),
            _ => None,
        };
        let finding = Finding::wrong(topic, format!("does not respond: {text}"));
        findings.push(Finding { fix: fix.map(str::to_owned), ..finding });
        return findings;
    }
    if !answers.up {
        let late = answers.hung.is_empty().then(|| Finding::wrong(topic, "does not respond in time"));
        findings.extend(late);
        return findings;
    }
    let info = |label| answers.driver_info(label).unwrap_or_else(|| "unknown".into());
    let (version, cuda) = (info("driver_version"), info("cuda_version"));
    let text = format!("version {version} responds, supports CUDA up to {cuda}");
    findings.push(Finding::well(topic, text));
    if let Some(major) = version.split('.').next().and_then(|major| major.parse::<u32>().ok())
        && major < OLDEST_DRIVER
    {
        let text = format!("{version} is older than {OLDEST_DRIVER}, the oldest supported driver");
        findings.push(Finding::note(topic, text));
    }
    let expected = config.health.expected_gpus as usize;
    findings.push(match answers.devices() {
        None => Finding::wrong("GPUs", "the driver does not report their number"),
        Some(listed) if listed < expected => {
            let text = format!("the driver lists {listed}, but health.expected_gpus is {expected}");
            Finding::wrong("GPUs", text).fix("lspci -d 10de: -nn")
        }
        Some(0) => Finding::note("GPUs", "the driver lists no GPU"),
        Some(listed) => Finding::well("GPUs", format!("the driver lists {listed}")),
    });
    findings
}

/// Returns GPUs that the daemon or the driver reports as unhealthy.
fn unhealthy_gpus(answers: Option<&DriverAnswers>, daemon: &Daemon) -> Vec<Finding> {
    let mut ill = daemon.unhealthy_gpus();
    if let Some(answers) = answers.filter(|answers| answers.up && answers.away.is_none()) {
        let handles =
            answers.attach_failed.iter().map(|(gpu, text)| (*gpu, format!("has no handle: {text}")));
        let silent = answers.lost_gpus().into_iter().map(|(gpu, text)| (gpu, format!("is lost: {text}")));
        for (gpu, text) in handles.chain(silent) {
            ill.entry(gpu).or_insert_with(|| (text, Some(KERNEL_MESSAGES.to_owned())));
        }
    }
    let finding = |(gpu, (text, fix))| {
        let text = format!("GPU {gpu} {text}");
        Finding { fix, ..Finding::wrong("GPUs", text) }
    };
    ill.into_iter().map(finding).collect()
}

/// Major version of the oldest supported driver (`docs/install.md`).
const OLDEST_DRIVER: u32 = 535;
const KERNEL_MESSAGES: &str = "sudo dmesg | grep -i -e nvrm -e xid";

/// Returns findings for metrics that exist but cannot be read.
fn metric_findings(metrics: &[Family]) -> Vec<Finding> {
    let refused = metrics.iter().filter(|family| family.standing == Standing::NotPermitted);
    let fix = match refused.into_iter().any(|family| family.why.contains("nvmlGpm")) {
        true => {
            "echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 | sudo tee \
             /etc/modprobe.d/nvidia-profiling.conf   # effective when the module is loaded again"
        }
        false => "sudo gpu-node-exporter doctor   # shows the metrics that root may read",
    };
    let mut findings = Vec::new();
    for (standing, verdict, problem, fix) in [
        (Standing::Failed, Verdict::Wrong, "failed, for the reasons below", KERNEL_MESSAGES),
        (Standing::NotPermitted, Verdict::Note, "not permitted to this user", fix),
    ] {
        let of = metrics.iter().filter(|family| family.standing == standing);
        let names: Vec<&str> = of.map(|family| family.metric).collect();
        if !names.is_empty() {
            let text = format!("{} {problem}: {}", names.len(), names.join(", "));
            findings.push(Finding::new("metrics", verdict, text).fix(fix));
        }
    }
    findings
}

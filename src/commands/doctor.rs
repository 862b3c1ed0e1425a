//! `gpu-node-exporter doctor`: what this machine and this user let the exporter do, and the one command that
//! fixes each thing that is wrong. Changes nothing, and never hangs: the driver is asked in a child process
//! (`ask`), and not at all while the daemon has released it or finds it stuck.

pub mod ask;
pub mod cpu;
pub mod cuda;
pub mod daemon;
pub mod families;
pub mod host;
mod owners;
pub mod report;
pub mod topology;

use std::collections::HashSet;
use std::path::Path;

use crate::collectors::module::{self, library};
use ::host::Host;
use ask::Asked;
use cuda::{Cuda, Judgement};
use daemon::Daemon;
use model::catalog::{DriverError, MetricId};
use model::driver_module::ModuleState;
use report::{Finding, Report, Verdict, costs};
use settings::Config;

/// Looks at everything.
pub fn examine(config: &Config, off: &HashSet<MetricId>) -> Report {
    let mut findings = vec![host::user()];
    let daemon = Daemon::ask(config);
    findings.extend(daemon.findings(config));
    let host = Host::new(&config.host.root);
    let sight = module::look(&host, None);
    let asked = daemon.ask_driver(config, off, ask::ALL);
    let answers = matches!(&asked, Ok(asked) if asked.up && asked.away.is_none());
    findings.push(kernel_module(&sight, answers));
    findings.extend(libraries(&host, config, &sight, answers));
    findings.extend(host::device_files(Path::new("/dev"), sight.load().is_some(), answers));
    match &asked {
        Ok(asked) => findings.extend(driver(asked, config)),
        Err(why) => findings.push(Finding::new("driver", why.verdict, why.text.clone())),
    }
    let reached = daemon.snapshot.is_some();
    findings.push(host::kernel_log(&host, config, reached));
    findings.extend(owners::findings(&host, config));
    findings.extend(cpu::events(&host, config, &daemon));
    findings.push(topology::look(config));
    findings.push(host::state_folder(config, reached));
    match asked {
        Ok(asked) if asked.up => {
            let metrics = families::judge(asked.batches.values(), off);
            findings.extend(metric_findings(&metrics));
            Report::new(findings, metrics, costs(&asked.calls))
        }
        Ok(asked) => Report::new(findings, Vec::new(), costs(&asked.calls)),
        Err(_) => Report::new(findings, Vec::new(), Vec::new()),
    }
}

/// Whether programs built with this CUDA version run here.
pub fn runs_cuda(config: &Config, wanted: Cuda) -> Judgement {
    let daemon = Daemon::ask(config);
    let loaded = module::look(&Host::new(&config.host.root), None);
    let version = loaded.load().map(|load| load.version.clone()).filter(|version| !version.is_empty());
    let (mut driver, mut supports) =
        (daemon.driver_info("driver_version"), daemon.driver_info("cuda_version"));
    if supports.is_none()
        && let Ok(asked) = daemon.ask_driver(config, &HashSet::new(), ask::ALL)
    {
        driver = asked.driver_info("driver_version").or(driver);
        supports = asked.driver_info("cuda_version");
    }
    let supports = supports.and_then(|text| text.parse().ok());
    cuda::judge(wanted, driver.or(version).as_deref(), supports)
}

fn kernel_module(sight: &ModuleState, answers: bool) -> Finding {
    let topic = "kernel module";
    let trouble = if answers { Verdict::Note } else { Verdict::Wrong };
    match sight {
        ModuleState::Unknown => {
            Finding::new(topic, Verdict::Note, "whether it is loaded is unknown: no /sys/module".into())
        }
        ModuleState::Absent => {
            Finding::new(topic, trouble, "nvidia is not loaded".into()).fix("sudo modprobe nvidia".into())
        }
        ModuleState::Loaded(load) if load.version.is_empty() => {
            Finding::new(topic, Verdict::Well, "nvidia is loaded; it does not tell its version".into())
        }
        ModuleState::Loaded(load) => {
            Finding::new(topic, Verdict::Well, format!("nvidia {} is loaded", load.version))
        }
    }
}

/// The libraries on disk, and whether they are of the module's version.
fn libraries(host: &Host, config: &Config, sight: &ModuleState, answers: bool) -> Vec<Finding> {
    let trouble = if answers { Verdict::Note } else { Verdict::Wrong };
    let nvml = library::find(host, config);
    let named = |found: &[library::DriverLibrary]| {
        let each = found.iter().map(|library| {
            let version = library.version.as_deref().unwrap_or("its file does not tell the version");
            format!("{} ({version})", library.path.display())
        });
        each.collect::<Vec<_>>().join(", ")
    };
    let mut findings = vec![match nvml.as_slice() {
        [] => Finding::new("libnvidia-ml", trouble, "not found where libraries usually are".into())
            .fix("ldconfig -p | grep libnvidia-ml   # then name it with --nvml-library".into()),
        found => Finding::new("libnvidia-ml", Verdict::Well, named(found)),
    }];
    findings.push(match library::search(host, library::CUDA).as_slice() {
        [] => Finding::new("libcuda", Verdict::Note, "not found where libraries usually are".into()),
        found => Finding::new("libcuda", Verdict::Well, named(found)),
    });
    let loaded = sight.load().map(|load| load.version.as_str()).filter(|version| !version.is_empty());
    if let Some((loaded, on_disk)) = loaded.zip(library::only_version(&nvml))
        && loaded != on_disk
    {
        let text =
            format!("the module is {loaded}, libnvidia-ml on disk {on_disk}: upgraded without a reload");
        findings.push(Finding::new("versions", Verdict::Wrong, text).fix("sudo reboot".into()));
    }
    let declared = config.driver.expected_version.trim();
    if let Some(loaded) = loaded.filter(|loaded| !declared.is_empty() && *loaded != declared) {
        let text = format!("the module is {loaded}, driver.expected_version declares {declared}");
        findings.push(Finding::new("versions", Verdict::Wrong, text));
    }
    findings
}

/// What the driver said.
fn driver(asked: &Asked, config: &Config) -> Vec<Finding> {
    let topic = "driver";
    let mut findings = Vec::new();
    for hung in &asked.hung {
        let about = hung.gpu.map(|gpu| format!(" on GPU {gpu}")).unwrap_or_default();
        let text = format!("{} does not return{about}: the driver hangs there", hung.call);
        findings.push(
            Finding::new(topic, Verdict::Wrong, text).fix("sudo dmesg | grep -i -e nvrm -e xid".into()),
        );
    }
    if let Some(pid) = asked.left {
        let text = format!("process {pid} of the doctor is left in that call; it ends when the call returns");
        findings.push(Finding::new(topic, Verdict::Note, text));
    }
    if let Some((error, text)) = &asked.away {
        let fix = match error {
            Some(DriverError::LibRmVersionMismatch) => Some("sudo reboot"),
            Some(DriverError::DriverNotLoaded) => {
                Some("nvidia-smi   # says whether library or module is missing")
            }
            Some(DriverError::NoPermission) => Some("sudo nvidia-modprobe -c 0 -u"),
            _ => None,
        };
        let finding = Finding::new(topic, Verdict::Wrong, format!("does not answer: {text}"));
        findings.push(match fix {
            Some(command) => finding.fix(command.into()),
            None => finding,
        });
        return findings;
    }
    if !asked.up {
        if asked.hung.is_empty() {
            findings.push(Finding::new(topic, Verdict::Wrong, "does not answer in time".into()));
        }
        return findings;
    }
    let info = |label| asked.driver_info(label).unwrap_or_else(|| "unknown".into());
    let (version, cuda) = (info("driver_version"), info("cuda_version"));
    findings.push(Finding::new(
        topic,
        Verdict::Well,
        format!("{version} answers; supports CUDA up to {cuda}"),
    ));
    for (gpu, text) in &asked.attach_failed {
        let text = format!("GPU {gpu} gives no handle: {text}");
        findings.push(
            Finding::new("GPUs", Verdict::Wrong, text).fix("nvidia-smi -q -d PAGE_RETIREMENT,ECC".into()),
        );
    }
    let expected = config.health.expected_gpus as usize;
    findings.push(match asked.devices() {
        None => Finding::new("GPUs", Verdict::Wrong, "the driver does not tell how many".into()),
        Some(listed) if listed < expected => {
            let text = format!("{listed} listed, health.expected_gpus is {expected}");
            Finding::new("GPUs", Verdict::Wrong, text).fix("lspci -d 10de: -nn".into())
        }
        Some(0) => Finding::new("GPUs", Verdict::Note, "the driver lists none".into()),
        Some(listed) => Finding::new("GPUs", Verdict::Well, format!("{listed} listed")),
    });
    findings
}

/// Metrics that are there and cannot be read.
fn metric_findings(metrics: &[families::Family]) -> Vec<Finding> {
    let of = |standing| metrics.iter().filter(move |family| family.standing == standing);
    let named = |families: &[&families::Family]| {
        families.iter().map(|family| family.metric).collect::<Vec<_>>().join(", ")
    };
    let mut findings = Vec::new();
    let failed: Vec<_> = of(families::Standing::Failed).collect();
    if !failed.is_empty() {
        let text = format!("{} failed, with their reasons below: {}", failed.len(), named(&failed));
        findings.push(
            Finding::new("metrics", Verdict::Wrong, text).fix("sudo dmesg | grep -i -e nvrm -e xid".into()),
        );
    }
    let refused: Vec<_> = of(families::Standing::NotPermitted).collect();
    if !refused.is_empty() {
        let text = format!("{} not permitted to this user: {}", refused.len(), named(&refused));
        let profiling = refused.iter().any(|family| family.why.contains("nvmlGpm"));
        let fix = match profiling {
            true => {
                "echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 | sudo tee \
                 /etc/modprobe.d/nvidia-profiling.conf   # from the next load of the module on"
            }
            false => "sudo gpu-node-exporter doctor   # shows what root may read",
        };
        findings.push(Finding::new("metrics", Verdict::Note, text).fix(fix.into()));
    }
    findings
}

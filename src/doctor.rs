//! `gpu-node-exporter doctor`: what this machine and this user let the exporter do, and the one command that
//! mends each thing that is wrong. Changes nothing, and never hangs: the driver is asked in a child process
//! (`ask`), and not at all while the daemon has released it or finds it stuck.

pub mod ask;
pub mod cuda;
pub mod families;
pub mod host;
pub mod report;

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::catalog::{DriverError, Gpu, MetricId};
use crate::collectors::module::{self, Sight, library};
use crate::config::Config;
use crate::control;
use crate::control::orders;
use crate::host::Host;
use crate::sample::Source;
use ask::{Asked, Known};
use cuda::{Cuda, Judgement};
use report::{Finding, Report, Verdict, costs};

/// From when on it is said what is waited for.
const LONG: Duration = Duration::from_secs(1);

/// Looks at everything.
pub fn examine(config: &Config, off: &HashSet<MetricId>) -> Report {
    let mut findings = vec![host::user()];
    let daemon = Daemon::ask(config);
    findings.extend(daemon.findings(config));
    let host = Host::new(&config.host.root);
    let sight = module::look(&host, None);
    let asked = ask_driver(config, off, &daemon);
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
    findings.push(host::control_groups(&host));
    findings.push(host::kubelet(&host));
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
        && let Ok(asked) = ask_driver(config, &HashSet::new(), &daemon)
    {
        driver = asked.driver_info("driver_version").or(driver);
        supports = asked.driver_info("cuda_version");
    }
    let supports = supports.and_then(|text| text.parse().ok());
    cuda::judge(wanted, driver.or(version).as_deref(), supports)
}

/// Why the driver was not asked.
struct NotAsked {
    verdict: Verdict,
    text: String,
}

/// Asks the driver, unless that could do harm; says on a terminal that it takes long.
fn ask_driver(config: &Config, off: &HashSet<MetricId>, daemon: &Daemon) -> Result<Asked, NotAsked> {
    match daemon.driver_state().as_deref() {
        Some("paused") => {
            let text = "not asked: the daemon has released it, so that it can be unloaded".to_owned();
            return Err(NotAsked { verdict: Verdict::Note, text });
        }
        Some("stuck") => {
            let text = "not asked: the daemon finds it stuck, and one more process would be stuck as well; \
                 nothing but a reboot is known to help"
                .to_owned();
            return Err(NotAsked { verdict: Verdict::Wrong, text });
        }
        _ => {}
    }
    let terminal = io::stderr().is_terminal();
    let mut shown = false;
    let asked = ask::ask(config, off, &daemon.gpus(), |waited, heard, listed| {
        if terminal && waited > LONG {
            shown = true;
            eprint!("\rasking the driver: {:.0} s, {heard} of {listed} GPUs \x1b[K", waited.as_secs_f64());
            // A line of progress that does not come is no loss.
            let _ = io::stderr().flush();
        }
    });
    if shown {
        eprint!("\r\x1b[K");
    }
    let failed = |error: io::Error| NotAsked {
        verdict: Verdict::Wrong,
        text: format!("not asked: no process could be started: {error}"),
    };
    asked.map_err(failed)
}

/// The running daemon, as far as it answers this user.
struct Daemon {
    /// What it publishes, as JSON.
    snapshot: Option<Value>,
    /// Why there is none.
    trouble: Option<io::Error>,
}

impl Daemon {
    fn ask(config: &Config) -> Daemon {
        let Some(socket) = config.control.path() else { return Daemon { snapshot: None, trouble: None } };
        let asked = control::fetch(socket, "snapshot json");
        match asked.and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other)) {
            Ok(snapshot) => Daemon { snapshot: Some(snapshot), trouble: None },
            Err(error) => Daemon { snapshot: None, trouble: Some(error) },
        }
    }

    fn findings(&self, config: &Config) -> Vec<Finding> {
        let topic = "daemon";
        let Some(snapshot) = &self.snapshot else {
            let finding = match &self.trouble {
                None => Finding::new(topic, Verdict::Note, "not asked: control.socket is empty".into()),
                Some(error) => {
                    let mend = match error.kind() {
                        io::ErrorKind::PermissionDenied => {
                            format!("sudo usermod -aG gpu-node-exporter {}", host::user_name())
                        }
                        _ => "sudo systemctl start gpu-node-exporter".to_owned(),
                    };
                    Finding::new(topic, Verdict::Note, format!("does not answer: {error}")).mend(mend)
                }
            };
            return vec![finding];
        };
        let word = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let state = config.control.path().and_then(|socket| orders::ask(socket, "driver status").ok());
        let state = state.map(|status| orders::in_words(&status)).unwrap_or_default();
        let mut findings = vec![Finding::new(topic, Verdict::Well, format!("runs. {state}"))];
        for collector in snapshot["collectors"].as_array().into_iter().flatten() {
            let (name, trouble) = (word(&collector["collector"]), word(&collector["text"]));
            let off = name == Source::Kmsg.name() && !config.events.kernel_log;
            if collector["up"] == true || trouble.is_empty() || off {
                continue;
            }
            let mend = match name == Source::Kmsg.name() {
                true => "sudo sysctl -w kernel.dmesg_restrict=0",
                false => "journalctl -u gpu-node-exporter -n 50",
            };
            let text = format!("its collector {name}: {trouble}");
            findings.push(Finding::new(topic, Verdict::Wrong, text).mend(mend.into()));
        }
        findings
    }

    /// Its word for the driver's state.
    fn driver_state(&self) -> Option<String> {
        Some(self.snapshot.as_ref()?["driver"]["state"].as_str()?.to_owned())
    }

    fn metrics(&self) -> impl Iterator<Item = &Value> {
        self.snapshot.iter().filter_map(|snapshot| snapshot["metrics"].as_array()).flatten()
    }

    fn driver_info(&self, label: &str) -> Option<String> {
        let info = self.metrics().find(|metric| metric["name"] == "gpu_driver_info")?;
        info["labels"][label].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// The GPUs it knows by their PCI address.
    fn gpus(&self) -> Vec<Known> {
        let gpus = self.snapshot.iter().filter_map(|snapshot| snapshot["gpus"].as_array()).flatten();
        let known = gpus.filter_map(|gpu| {
            let (index, uuid) = (u32::try_from(gpu["gpu"].as_u64()?).ok()?, gpu["uuid"].as_str()?);
            let info = self.metrics().find(|m| m["name"] == "gpu_info" && m["labels"]["uuid"] == uuid);
            let pci_address = info.and_then(|m| m["labels"]["pci_address"].as_str()).unwrap_or("").to_owned();
            let stuck = gpu["state"] == "stuck";
            // One without an address can only be left alone.
            let usable = stuck || !pci_address.is_empty();
            usable.then(|| Known { gpu: Gpu { gpu: index, uuid: uuid.into() }, pci_address, stuck })
        });
        known.collect()
    }
}

fn kernel_module(sight: &Sight, answers: bool) -> Finding {
    let topic = "kernel module";
    let trouble = if answers { Verdict::Note } else { Verdict::Wrong };
    match sight {
        Sight::Unknown => {
            Finding::new(topic, Verdict::Note, "whether it is loaded cannot be told: no /sys/module".into())
        }
        Sight::Absent => {
            Finding::new(topic, trouble, "nvidia is not loaded".into()).mend("sudo modprobe nvidia".into())
        }
        Sight::Loaded(load) if load.version.is_empty() => {
            Finding::new(topic, Verdict::Well, "nvidia is loaded; it does not tell its version".into())
        }
        Sight::Loaded(load) => {
            Finding::new(topic, Verdict::Well, format!("nvidia {} is loaded", load.version))
        }
    }
}

/// The libraries on disk, and whether they are of the module's version.
fn libraries(host: &Host, config: &Config, sight: &Sight, answers: bool) -> Vec<Finding> {
    let trouble = if answers { Verdict::Note } else { Verdict::Wrong };
    let nvml = library::find(host, config);
    let named = |found: &[library::Found]| {
        let each = found.iter().map(|library| {
            let version = library.version.as_deref().unwrap_or("its file does not tell the version");
            format!("{} ({version})", library.path.display())
        });
        each.collect::<Vec<_>>().join(", ")
    };
    let mut findings = vec![match nvml.as_slice() {
        [] => Finding::new("libnvidia-ml", trouble, "not found where libraries usually are".into())
            .mend("ldconfig -p | grep libnvidia-ml   # then name it with --nvml-library".into()),
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
        findings.push(Finding::new("versions", Verdict::Wrong, text).mend("sudo reboot".into()));
    }
    let declared = config.driver.version.trim();
    if let Some(loaded) = loaded.filter(|loaded| !declared.is_empty() && *loaded != declared) {
        let text = format!("the module is {loaded}, driver.version declares {declared}");
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
            Finding::new(topic, Verdict::Wrong, text).mend("sudo dmesg | grep -i -e nvrm -e xid".into()),
        );
    }
    if let Some(pid) = asked.left {
        let text = format!("process {pid} of the doctor is left in that call; it ends when the call returns");
        findings.push(Finding::new(topic, Verdict::Note, text));
    }
    if let Some((error, text)) = &asked.away {
        let mend = match error {
            Some(DriverError::LibRmVersionMismatch) => Some("sudo reboot"),
            Some(DriverError::DriverNotLoaded) => {
                Some("nvidia-smi   # says whether library or module is missing")
            }
            Some(DriverError::NoPermission) => Some("sudo nvidia-modprobe -c 0 -u"),
            _ => None,
        };
        let finding = Finding::new(topic, Verdict::Wrong, format!("does not answer: {text}"));
        findings.push(match mend {
            Some(command) => finding.mend(command.into()),
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
    for (gpu, text) in &asked.no_handle {
        let text = format!("GPU {gpu} gives no handle: {text}");
        findings.push(
            Finding::new("GPUs", Verdict::Wrong, text).mend("nvidia-smi -q -d PAGE_RETIREMENT,ECC".into()),
        );
    }
    let expected = config.health.expected_gpus as usize;
    findings.push(match asked.devices() {
        None => Finding::new("GPUs", Verdict::Wrong, "the driver does not tell how many".into()),
        Some(listed) if listed < expected => {
            let text = format!("{listed} listed, health.expected_gpus is {expected}");
            Finding::new("GPUs", Verdict::Wrong, text).mend("lspci -d 10de: -nn".into())
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
            Finding::new("metrics", Verdict::Wrong, text).mend("sudo dmesg | grep -i -e nvrm -e xid".into()),
        );
    }
    let refused: Vec<_> = of(families::Standing::NotPermitted).collect();
    if !refused.is_empty() {
        let text = format!("{} not permitted to this user: {}", refused.len(), named(&refused));
        let profiling = refused.iter().any(|family| family.why.contains("nvmlGpm"));
        let mend = match profiling {
            true => {
                "echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 | sudo tee \
                 /etc/modprobe.d/nvidia-profiling.conf   # from the next load of the module on"
            }
            false => "sudo gpu-node-exporter doctor   # shows what root may read",
        };
        findings.push(Finding::new("metrics", Verdict::Note, text).mend(mend.into()));
    }
    findings
}

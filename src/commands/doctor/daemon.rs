//! State of a running daemon, and queries of the driver that cannot disturb the daemon.

use std::collections::BTreeMap;
use std::io;

use serde_json::Value;

use super::KERNEL_MESSAGES;
use super::driver_query::{self, DriverAnswers, QueryScope};
use super::host;
use super::report::{Finding, Verdict};
use crate::control;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, FaultAction, Gpu, PerfEvent, PerfState, SlurmGpus};
use sampler::wire::GpuSlot;
use settings::Config;
use topology::discover::NO_MACHINE;

/// Running daemon, as far as it answers this user.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// Snapshot as JSON; null without an answer.
    snapshot: Value,
    /// Error that prevented an answer.
    trouble: Option<io::Error>,
}

impl Daemon {
    /// Requests the snapshot of the daemon.
    pub fn connect(config: &Config) -> Daemon {
        let Some(socket) = &config.control.socket else {
            return Daemon { snapshot: Value::Null, trouble: None };
        };
        match control::fetch(socket, "snapshot json").and_then(|json| Ok(serde_json::from_slice(&json)?)) {
            Ok(snapshot) => Daemon { snapshot, trouble: None },
            Err(error) => Daemon { snapshot: Value::Null, trouble: Some(error) },
        }
    }

    pub fn answers(&self) -> bool {
        !self.snapshot.is_null()
    }

    /// Returns the state of the daemon, its verdict and its collectors that do not work.
    pub fn findings(&self) -> Vec<Finding> {
        let topic = "daemon";
        if !self.answers() {
            let Some(error) = &self.trouble else {
                let text = "not queried, because control.socket is empty";
                return vec![Finding::note(topic, text)];
            };
            let fix = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    format!("sudo usermod -aG gpu-node-exporter {}", host::user_name())
                }
                _ => "sudo systemctl start gpu-node-exporter".to_owned(),
            };
            return vec![Finding::note(topic, format!("does not respond: {error}")).fix(fix)];
        }
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let health = &self.snapshot["health"];
        let verdict = match health["level"].as_str() {
            Some("ok") => Verdict::Well,
            Some("faulty") => Verdict::Wrong,
            _ => Verdict::Note,
        };
        let mut findings =
            vec![Finding::well(topic, "runs"), Finding::new("health", verdict, text(&health["text"]))];
        for collector in list(&self.snapshot["collectors"]).filter(|collector| collector["up"] == false) {
            let (name, trouble) = (text(&collector["collector"]), text(&collector["text"]));
            // Usually a container without the host's files.
            let no_machine = name == CollectorName::Topology.known() && trouble.starts_with(NO_MACHINE);
            let verdict = if no_machine { Verdict::Note } else { Verdict::Wrong };
            let fix = match () {
                () if name == CollectorName::Kmsg.known() => host::drop_in("kernel-log"),
                () if name == CollectorName::Kubelet.known() && trouble.contains("Permission denied") => {
                    host::kubelet_relay()
                }
                () => "journalctl -u gpu-node-exporter -n 50".to_owned(),
            };
            if !trouble.is_empty() {
                findings.push(Finding::new(topic, verdict, format!("collector {name}: {trouble}")).fix(fix));
            }
        }
        findings
    }

    /// Returns the GPUs that the daemon reports as unhealthy, even while it does not use the driver, with
    /// their state, the reason and the command for the first action.
    pub fn unhealthy_gpus(&self) -> BTreeMap<u32, (String, Option<String>)> {
        let named = |gpu: &Value| {
            let index = u32::try_from(gpu["gpu"].as_u64()?).ok()?;
            let health = &gpu["health"];
            // A GPU without a driver has no verdict.
            let bad = |reason: &&Value| reason["level"] == "faulty" && reason["condition"] != "no_driver";
            let reason = list(&health["reasons"]).find(bad)?;
            let text = reason["text"].as_str().unwrap_or("unknown reason");
            Some((index, (format!("{}: {text}", health["word"].as_str()?), fix(index, reason))))
        };
        list(&self.snapshot["gpus"]).filter_map(named).collect()
    }

    /// Queries the driver. Returns a finding instead if that could do harm.
    pub fn query_driver(&self, config: &Config, scope: QueryScope<'_>) -> Result<DriverAnswers, Finding> {
        let not_asked =
            |verdict, why| Err(Finding::new("driver", verdict, format!("not queried, because {why}")));
        match self.snapshot["driver"]["state"].as_str() {
            Some("paused") => {
                let why = "the daemon has released it for unloading";
                return not_asked(Verdict::Note, why.to_owned());
            }
            Some("stuck") => {
                let why = "the daemon reports it as stuck, and another process would hang too. Only a \
                           reboot is known to help";
                return not_asked(Verdict::Wrong, why.to_owned());
            }
            _ => {}
        }
        let (known, avoid) = self.gpus();
        driver_query::query(config, scope, known, avoid)
            .or_else(|error| not_asked(Verdict::Wrong, format!("no process could be started ({error})")))
    }

    /// Returns the states of the CPU events that the daemon counts; none without such a daemon.
    pub fn cpu_events(&self) -> BTreeMap<PerfEvent, PerfState> {
        let states = self.metrics(m::gpu_host_cpu_event_state.def().name).filter(|m| m["value"] == 1.0);
        let known = |metric: &Value| {
            let (event, state) = (&metric["labels"]["event"], &metric["labels"]["state"]);
            let event = PerfEvent::ALL.iter().find(|known| event == known.known())?;
            let state = PerfState::ALL.iter().find(|known| state == known.known())?;
            Some((*event, *state))
        };
        states.filter_map(known).collect()
    }

    /// Returns a finding if the daemon cannot store all of its state.
    pub fn state_folder(&self, config: &Config) -> Option<Finding> {
        self.metrics(m::gpu_exporter_state_writable.def().name).find(|metric| metric["value"] == 0.0)?;
        Some(host::set_aside(config).unwrap_or_else(|| {
            let text = format!("the daemon cannot store all of its state in {}", config.state.dir.display());
            Finding::wrong("state folder", text)
                .fix("journalctl -u gpu-node-exporter | grep state.dir | tail -n 3")
        }))
    }

    /// Returns a finding on the environments of Slurm jobs; `None` if the daemon has no Slurm job.
    pub fn slurm(&self) -> Option<Finding> {
        let topic = "Slurm";
        let jobs = |gpus: SlurmGpus| {
            let mut all = self.metrics(m::gpu_slurm_jobs.def().name);
            all.find(|metric| metric["labels"]["gpus"] == gpus.known())?["value"].as_f64()
        };
        Some(match jobs(SlurmGpus::NotPermitted)? {
            0.0 => Finding::well(
                topic,
                "the daemon can read the environments of jobs, which contain their GPUs and accounts",
            ),
            jobs => {
                host::unread_environments(&format!("the daemon may not read the environments of {jobs} jobs"))
            }
        })
    }

    /// Returns true if a process of the daemon's canary hangs on this GPU.
    pub fn canary_stuck_on(&self, uuid: &str) -> bool {
        let mut hung = self.metrics(m::gpu_canary_hung.def().name);
        hung.any(|metric| metric["labels"]["uuid"] == uuid && metric["value"] == 1.0)
    }

    /// Returns the series of a metric.
    fn metrics(&self, name: &'static str) -> impl Iterator<Item = &Value> {
        list(&self.snapshot["metrics"]).filter(move |metric| metric["name"] == name)
    }

    /// Returns a label of `gpu_driver_info`.
    pub fn driver_info(&self, label: &str) -> Option<String> {
        let info = self.metrics(m::gpu_driver_info.def().name).next()?;
        info["labels"][label].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// Returns all GPUs and the slots to avoid if the daemon hangs on a GPU. Attaching by index could touch
    /// that GPU.
    fn gpus(&self) -> (Vec<GpuSlot>, Vec<usize>) {
        let (mut known, mut avoid) = (Vec::new(), Vec::new());
        for gpu in list(&self.snapshot["gpus"]) {
            let index = gpu["gpu"].as_u64().and_then(|index| u32::try_from(index).ok());
            let (Some(index), Some(uuid)) = (index, gpu["uuid"].as_str()) else { continue };
            let info = self.metrics(m::gpu_info.def().name).find(|info| info["labels"]["uuid"] == uuid);
            let pci_bus_id = info.and_then(|info| info["labels"]["pci_address"].as_str()).unwrap_or("");
            let slot = index as usize + 1;
            let stuck = gpu["state"] == "stuck";
            if stuck {
                avoid.push(slot);
            }
            // A GPU without an address can only be avoided.
            if stuck || !pci_bus_id.is_empty() {
                let gpu = Gpu { gpu: index, uuid: uuid.into() };
                known.push(GpuSlot { slot, gpu, pci_bus_id: pci_bus_id.to_owned() });
            }
        }
        if avoid.is_empty() { Default::default() } else { (known, avoid) }
    }
}

/// Returns the command for the first action of a reason.
fn fix(gpu: u32, reason: &Value) -> Option<String> {
    let action = FaultAction::ALL.iter().find(|action| reason["action"] == action.known())?;
    let hangs = reason["condition"] == "stuck" || reason["condition"] == "canary_hung";
    match action {
        // Another program would hang too.
        FaultAction::ResetGpu if hangs => Some(KERNEL_MESSAGES.to_owned()),
        FaultAction::ResetGpu => {
            Some(format!("sudo nvidia-smi --gpu-reset -i {gpu}   # when no program uses the GPU"))
        }
        FaultAction::RebootNode => Some("sudo reboot   # when the node is drained".to_owned()),
        FaultAction::CheckHardware | FaultAction::ContactSupport => {
            Some("sudo nvidia-bug-report.sh   # for the vendor's support".to_owned())
        }
        FaultAction::Ignore | FaultAction::RestartApp | FaultAction::UpdateSoftware => None,
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_daemons_right_to_read_counts_not_this_users() {
        let found = |metrics: Value| {
            let daemon = Daemon { snapshot: json!({ "metrics": metrics }), trouble: None };
            daemon.slurm().map(|finding| (finding.verdict, finding.fix.is_some()))
        };
        let jobs = |gpus: &str, count: f64| json!({ "name": "gpu_slurm_jobs", "labels": { "gpus": gpus }, "value": count });
        assert_eq!(found(json!([])), None, "no jobs");
        let refused = json!([jobs("known", 0.0), jobs("not_permitted", 2.0)]);
        assert_eq!(found(refused), Some((Verdict::Note, true)));
        let read = json!([jobs("known", 2.0), jobs("not_permitted", 0.0)]);
        assert_eq!(found(read), Some((Verdict::Well, false)));
    }
}

//! What a running daemon knows, and asking the driver beside it without doing harm.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;

use super::ask::{self, Aim, Asked, KnownGpu};
use super::host;
use super::report::{Finding, Verdict};
use crate::control;
use crate::control::orders;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, Gpu, MetricId, PerfEvent, PerfState};

use settings::Config;
use topology::discover::NO_MACHINE;

/// From when on it is said what is waited for.
const LONG: Duration = Duration::from_secs(1);

/// Why the driver was not asked.
#[derive(Debug)]
pub struct NotAsked {
    /// How serious that is.
    pub verdict: Verdict,
    /// As text.
    pub text: String,
}

/// The running daemon, as far as it answers this user.
#[derive(Debug)]
pub struct Daemon {
    /// What it publishes, as JSON.
    pub snapshot: Option<Value>,
    /// Why there is none.
    trouble: Option<io::Error>,
}

impl Daemon {
    /// Asks it.
    pub fn ask(config: &Config) -> Daemon {
        let Some(socket) = config.control.path() else { return Daemon { snapshot: None, trouble: None } };
        let asked = control::fetch(socket, "snapshot json");
        match asked.and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other)) {
            Ok(snapshot) => Daemon { snapshot: Some(snapshot), trouble: None },
            Err(error) => Daemon { snapshot: None, trouble: Some(error) },
        }
    }

    /// What is known of it.
    pub fn findings(&self, config: &Config) -> Vec<Finding> {
        let topic = "daemon";
        let Some(snapshot) = &self.snapshot else {
            let finding = match &self.trouble {
                None => Finding::new(topic, Verdict::Note, "not asked: control.socket is empty".into()),
                Some(error) => {
                    let fix = match error.kind() {
                        io::ErrorKind::PermissionDenied => {
                            format!("sudo usermod -aG gpu-node-exporter {}", host::user_name())
                        }
                        _ => "sudo systemctl start gpu-node-exporter".to_owned(),
                    };
                    Finding::new(topic, Verdict::Note, format!("does not answer: {error}")).fix(fix)
                }
            };
            return vec![finding];
        };
        let word = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let state = config.control.path().and_then(|socket| orders::ask(socket, "driver status").ok());
        let state = state.map(|status| orders::describe(&status)).unwrap_or_default();
        let mut findings = vec![Finding::new(topic, Verdict::Well, format!("runs. {state}"))];
        for collector in snapshot["collectors"].as_array().into_iter().flatten() {
            let (name, trouble) = (word(&collector["collector"]), word(&collector["text"]));
            if collector["up"] == true || trouble.is_empty() {
                continue;
            }
            if name == CollectorName::Topology.known() && trouble.starts_with(NO_MACHINE) {
                // A container without the host's files, as a rule; the line on the topology says it.
                continue;
            }
            let fix = match name == CollectorName::Kmsg.known() {
                true => "sudo sysctl -w kernel.dmesg_restrict=0",
                false => "journalctl -u gpu-node-exporter -n 50",
            };
            let text = format!("its collector {name}: {trouble}");
            findings.push(Finding::new(topic, Verdict::Wrong, text).fix(fix.into()));
        }
        findings
    }

    /// Asks the driver, unless that could do harm; says on a terminal that it takes long.
    pub fn ask_driver(&self, config: &Config, off: &HashSet<MetricId>, aim: Aim) -> Result<Asked, NotAsked> {
        match self.driver_state().as_deref() {
            Some("paused") => {
                let text = "not asked: the daemon has released it, so that it can be unloaded".to_owned();
                return Err(NotAsked { verdict: Verdict::Note, text });
            }
            Some("stuck") => {
                let text =
                    "not asked: the daemon finds it stuck, and one more process would be stuck as well; \
                     nothing but a reboot is known to help"
                        .to_owned();
                return Err(NotAsked { verdict: Verdict::Wrong, text });
            }
            _ => {}
        }
        let terminal = io::stderr().is_terminal();
        let mut shown = false;
        let asked = ask::ask(config, off, aim, &self.gpus(), |waited, heard, listed| {
            if terminal && waited > LONG {
                shown = true;
                eprint!(
                    "\rasking the driver: {:.0} s, {heard} of {listed} GPUs \x1b[K",
                    waited.as_secs_f64()
                );
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

    /// Its word for the driver's state.
    fn driver_state(&self) -> Option<String> {
        Some(self.snapshot.as_ref()?["driver"]["state"].as_str()?.to_owned())
    }

    /// The state of each event that it counts on the CPUs; none without a daemon that does.
    pub fn cpu_events(&self) -> BTreeMap<PerfEvent, PerfState> {
        let name = m::gpu_host_cpu_event_state.def().name;
        let states = self.metrics().filter(|metric| metric["name"] == name && metric["value"] == 1.0);
        let known = |metric: &Value| {
            let (event, state) = (&metric["labels"]["event"], &metric["labels"]["state"]);
            let event = PerfEvent::ALL.iter().find(|known| event == known.known())?;
            let state = PerfState::ALL.iter().find(|known| state == known.known())?;
            Some((*event, *state))
        };
        states.filter_map(known).collect()
    }

    /// A process of its canary that hangs on this GPU.
    pub fn canary_stuck_on(&self, uuid: &str) -> bool {
        let mut hung = self.metrics().filter(|metric| metric["name"] == m::gpu_canary_hung.def().name);
        hung.any(|metric| metric["labels"]["uuid"] == uuid && metric["value"] == 1.0)
    }

    /// Its metrics.
    fn metrics(&self) -> impl Iterator<Item = &Value> {
        self.snapshot.iter().filter_map(|snapshot| snapshot["metrics"].as_array()).flatten()
    }

    /// A label of `gpu_driver_info`.
    pub fn driver_info(&self, label: &str) -> Option<String> {
        let info = self.metrics().find(|metric| metric["name"] == "gpu_driver_info")?;
        info["labels"][label].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// The GPUs it knows by their PCI address.
    fn gpus(&self) -> Vec<KnownGpu> {
        let gpus = self.snapshot.iter().filter_map(|snapshot| snapshot["gpus"].as_array()).flatten();
        let known = gpus.filter_map(|gpu| {
            let (index, uuid) = (u32::try_from(gpu["gpu"].as_u64()?).ok()?, gpu["uuid"].as_str()?);
            let info = self.metrics().find(|m| m["name"] == "gpu_info" && m["labels"]["uuid"] == uuid);
            let pci_address = info.and_then(|m| m["labels"]["pci_address"].as_str()).unwrap_or("").to_owned();
            let stuck = gpu["state"] == "stuck";
            // One without an address can only be left alone.
            let usable = stuck || !pci_address.is_empty();
            usable.then(|| KnownGpu { gpu: Gpu { gpu: index, uuid: uuid.into() }, pci_address, stuck })
        });
        known.collect()
    }
}

//! The incidents of `incidents.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::Fallible;
use crate::scenario::seconds;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    incident: Vec<Incident>,
}

/// What happens to a node, or to several alike, and what must come of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incident {
    /// Names it, and its node in the label `instance`; its nodes are `NAME-1` and on if there are several.
    pub name: String,
    /// One line for people.
    pub what: String,
    /// How it is played, where that is not plain from the scenario.
    #[serde(default)]
    pub note: String,
    /// The simulated node: a scenario of `tests/simgpu/README.md`. What the incident causes waits for the gate
    /// `cause`.
    pub scenario: String,
    /// How it begins.
    #[serde(default)]
    pub cause: Cause,
    /// What grows step by step, in place of the gate `cause`.
    #[serde(default)]
    pub grows: Grows,
    /// Nodes that it happens to.
    #[serde(default = "one")]
    pub nodes: usize,
    /// Nodes of the same cluster beside them, which stay well.
    #[serde(default)]
    pub well: usize,
    /// Label `cluster` of its nodes; none if empty.
    #[serde(default)]
    pub cluster: String,
    /// The alerts of which the first notification must name one, and all of which must fire. None: nothing may come.
    pub alerts: Vec<String>,
    /// Whether the first notification must name all of them.
    #[serde(default)]
    pub together: bool,
    /// Other alerts that may fire: they follow from the cause.
    #[serde(default)]
    pub also: Vec<String>,
    /// `for` of the alert's rule, where its rules have several: `60s`.
    #[serde(default)]
    pub lasts: String,
    /// Severity of the alerts.
    #[serde(default)]
    pub severity: String,
    /// The receiver.
    #[serde(default)]
    pub receiver: String,
    /// Notifications that must come in the first five minutes.
    #[serde(default = "one")]
    pub notifications: usize,
    /// Times of the rules are divided by the factor of the run.
    #[serde(default)]
    pub scaled: bool,
    /// Seconds that may pass before the node itself can know, and why.
    #[serde(default)]
    pub known_after: KnownAfter,
    /// Settings of the exporter, as `SECTION__KEY`.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Files of the node, by name: a setting says `{dir}` for their folder.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Services of the host: the names of their processes, as the kernel cuts them.
    #[serde(default)]
    pub services: Vec<String>,
    /// Processes of the node's host.
    #[serde(default)]
    pub process: Vec<Process>,
}

/// How an incident begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The gate `cause` of the scenario opens.
    #[default]
    Gate,
    /// The same, and the canary has found it twice, long ago.
    Aged,
    /// The exporter is killed.
    Kill,
    /// The processes of the host's services end.
    ServicesEnd,
    /// The driver's kernel module goes and another comes, while the gate is open for some seconds.
    Upgrade,
    /// The same within a maintenance window that was announced, the driver released before.
    PlannedUpgrade,
    /// Nothing happens.
    Nothing,
}

/// Steps of the scenario, each at a gate of its own, which open after each other.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grows {
    /// How many.
    pub steps: i64,
    /// Seconds from one to the next.
    pub seconds: u64,
    /// What each does to GPU 0; `{}` is a number.
    pub action: String,
    /// That number before the first step.
    pub from: i64,
    /// What each adds to it.
    pub each: i64,
}

/// What comes before the rule's own time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownAfter {
    /// So long.
    pub seconds: u64,
    /// Why.
    pub why: String,
}

/// A process of the host, in a pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its id, as in the scenario.
    pub pid: u32,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// CPUs that it may run on.
    pub cpus: String,
    /// GiB of memory on each NUMA node.
    #[serde(default)]
    pub memory: [u64; 2],
}

fn one() -> usize {
    1
}

impl Incident {
    /// The instances of its nodes: those it happens to, then those beside them.
    pub fn instances(&self) -> Vec<String> {
        match self.nodes + self.well {
            1 => vec![self.name.clone()],
            n => (1..=n).map(|i| format!("{}-{i}", self.name)).collect(),
        }
    }

    /// The scenario with the steps of what grows.
    pub fn scenario(&self) -> String {
        let Grows { steps, action, from, each, .. } = &self.grows;
        let step = |n: i64| {
            let action = action.replace("{}", &(from + n * each).to_string());
            format!("[[step]]\ngate = \"grows-{n}\"\ngpu = 0\n{action}\n")
        };
        (1..=*steps).fold(self.scenario.clone(), |text, n| text + &step(n))
    }

    /// Whether it must stay silent.
    pub fn silent(&self) -> bool {
        self.alerts.is_empty()
    }

    /// `for` of the alert's rule, where the incident names it.
    pub fn lasts(&self) -> Option<Duration> {
        seconds(&self.lasts).ok().filter(|_| !self.lasts.is_empty()).map(Duration::from_secs)
    }

    /// Time that the node itself may need before it can know.
    pub fn known_after(&self) -> Duration {
        Duration::from_secs(self.known_after.seconds)
    }
}

/// Reads the incidents and checks that they make sense.
pub fn read(path: &Path) -> Fallible<Vec<Incident>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let incidents = toml::from_str::<File>(&text).map_err(|e| format!("{}: {e}", path.display()))?.incident;
    let mut names = BTreeSet::new();
    for incident in &incidents {
        let wrong =
            |what: &str| Err(format!("{}: incident {}: {what}", path.display(), incident.name).into());
        if !incident.instances().into_iter().all(|name| names.insert(name)) {
            return wrong("its name is taken");
        }
        if incident.silent() != incident.severity.is_empty()
            || incident.silent() != incident.receiver.is_empty()
        {
            return wrong("alerts, severity and receiver go together");
        }
        if !incident.lasts.is_empty() && incident.lasts().is_none() {
            return wrong("lasts is no duration");
        }
        if incident.known_after.seconds > 0 && incident.known_after.why.is_empty() {
            return wrong("why is it known late?");
        }
    }
    Ok(incidents)
}

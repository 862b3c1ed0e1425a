//! Which events can be counted on the CPUs here, and what prevents the others. Each is opened once on one CPU and
//! closed again; what the daemon says of itself counts more.

use std::collections::BTreeMap;
use std::fs;

use super::daemon::Daemon;
use super::host::{CAP_PERFMON, CAP_SYS_ADMIN, holds};
use super::report::{Finding, Verdict};
use crate::collectors::cpu::backend::{CounterBackend, CounterScope};
use crate::collectors::cpu::cpu_groups;
use crate::collectors::cpu::machine_events::{descriptors, state, that_fit};
use crate::collectors::cpu::perf::{Perf, Processor};
use host::Host;
use model::catalog::schema::KnownLabel;
use model::catalog::{PerfEvent, PerfState};
use settings::Config;

const TOPIC: &str = "CPU events";

/// What this user is allowed, as far as it decides on events.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights {
    /// `kernel.perf_event_paranoid`, where it can be read.
    paranoid: Option<i64>,
    /// Whether it has CAP_PERFMON, or CAP_SYS_ADMIN, which includes it.
    capable: bool,
    /// Whether a filter of system calls is on it.
    filtered: bool,
}

impl Rights {
    fn here(host: &Host) -> Rights {
        let paranoid = fs::read_to_string(host.path("/proc/sys/kernel/perf_event_paranoid"));
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut seccomp = status.lines().filter_map(|line| line.strip_prefix("Seccomp:"));
        Rights {
            paranoid: paranoid.ok().and_then(|text| text.trim().parse().ok()),
            capable: holds(CAP_PERFMON) || holds(CAP_SYS_ADMIN),
            filtered: seccomp.next().is_some_and(|mode| mode.trim() == "2"),
        }
    }

    fn describe(&self) -> String {
        let paranoid = self.paranoid.map_or_else(|| "unknown".to_owned(), |level| level.to_string());
        let capable = if self.capable { "" } else { "no " };
        let filtered = if self.filtered { ", and a filter of system calls (seccomp) on it" } else { "" };
        format!("kernel.perf_event_paranoid is {paranoid}, this user has {capable}CAP_PERFMON{filtered}")
    }

    /// The one command that permits it.
    fn fix(&self, daemon: bool) -> String {
        let allowed = self.capable || self.paranoid.is_some_and(|level| level <= 0);
        match (allowed, self.filtered, daemon) {
            // It is the daemon that may not: its unit says what it may.
            (_, _, true) => {
                "sudo systemctl edit gpu-node-exporter   # [Service] CapabilityBoundingSet=CAP_PERFMON \
                 AmbientCapabilities=CAP_PERFMON SystemCallFilter=perf_event_open, a line each"
            }
            // The capability also opens the usual filters of containers.
            (_, true, false) => {
                "docker run --cap-add PERFMON ...   # Kubernetes: securityContext.capabilities.add: [PERFMON]"
            }
            (false, false, false) => {
                "sudo sysctl kernel.perf_event_paranoid=0   # or CAP_PERFMON for the daemon alone, as its unit has it"
            }
            (true, false, false) => "sudo dmesg | grep -i -e perf -e lockdown",
        }
        .to_owned()
    }
}

/// Every configured event.
pub fn events(host: &Host, config: &Config, daemon: &Daemon) -> Vec<Finding> {
    if !config.cpu.enabled {
        return vec![Finding::new(TOPIC, Verdict::Well, "not counted: cpu.enabled is false".into())];
    }
    let Some(cpus) = cpu_groups::online(host) else {
        let text = "the CPUs that are online are unknown: no /sys/devices/system/cpu/online";
        return vec![Finding::new(TOPIC, Verdict::Note, text.into())];
    };
    let reported = daemon.cpu_events();
    let asks_daemon = !reported.is_empty();
    let who = if asks_daemon { "by the daemon" } else { "by this user" };
    let states: BTreeMap<PerfEvent, (PerfState, String)> = match asks_daemon {
        true => reported.into_iter().map(|(event, state)| (event, (state, String::new()))).collect(),
        false => {
            let kernel = Perf::new(Processor::of_host(host));
            let place = CounterScope { cpu: cpus.iter().next().unwrap_or(0), cgroup: None };
            let tried = config.cpu.events.iter().map(|event| {
                let outcome = kernel.open(*event, place).map(drop);
                let why = outcome.as_ref().err().map(|refusal| format!(": {refusal}")).unwrap_or_default();
                (*event, (state(&outcome), why))
            });
            tried.collect()
        }
    };
    let mut findings = findings(&states, who, &Rights::here(host), asks_daemon);
    findings.extend(crowded(config, cpus.len(), descriptors()).filter(|_| !asks_daemon));
    findings
}

fn findings(
    states: &BTreeMap<PerfEvent, (PerfState, String)>,
    who: &str,
    rights: &Rights,
    daemon: bool,
) -> Vec<Finding> {
    let mut by_state: BTreeMap<(PerfState, &str), Vec<&str>> = BTreeMap::new();
    for (event, (state, why)) in states {
        by_state.entry((*state, why)).or_default().push(event.known());
    }
    let finding = |((state, why), events): ((PerfState, &str), Vec<&str>)| {
        let events = events.join(", ");
        let note = |text| Finding::new(TOPIC, Verdict::Note, text);
        match state {
            PerfState::Works => Finding::new(TOPIC, Verdict::Well, format!("counted {who}: {events}")),
            PerfState::NoPmu => {
                note(format!("this CPU or virtual machine has no counter (PMU) for {events}"))
            }
            PerfState::NotPermitted => {
                let text = format!("not permitted, {who}: {events}. {}", rights.describe());
                note(text).fix(rights.fix(daemon))
            }
            PerfState::Unknown => note(format!("not counted {who}{why}: {events}")),
        }
    };
    by_state.into_iter().map(finding).collect()
}

/// Whether all events can be open on all CPUs.
fn crowded(config: &Config, cpus: usize, room: usize) -> impl Iterator<Item = Finding> {
    let events = &config.cpu.events;
    let fit = that_fit(events, cpus, room).len();
    let finding = (fit < events.len()).then(|| {
        let text = format!(
            "{} counters on {cpus} CPUs are more than half of the files that may be open, {}: {fit} events are counted",
            events.len() * cpus,
            room * 2
        );
        let fix = "sudo systemctl edit gpu-node-exporter   # [Service] LimitNOFILE=65536";
        Finding::new(TOPIC, Verdict::Note, text).fix(fix.into())
    });
    finding.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(paranoid: i64, capable: bool, filtered: bool) -> Rights {
        Rights { paranoid: Some(paranoid), capable, filtered }
    }

    #[test]
    fn each_cause_has_its_command() {
        assert!(rights(4, false, false).fix(false).contains("sysctl kernel.perf_event_paranoid=0"));
        assert!(rights(2, true, true).fix(false).contains("--cap-add PERFMON"));
        assert!(rights(2, false, false).fix(true).contains("systemctl edit"));
        assert!(!rights(-1, false, false).fix(false).contains("sysctl"), "that is not what hinders");
        let words = rights(4, false, true).describe();
        assert!(words.contains("is 4") && words.contains("no CAP_PERFMON") && words.contains("seccomp"));
    }

    #[test]
    fn what_each_event_does_here_is_said() {
        let states = [
            (PerfEvent::PageFaults, (PerfState::Works, String::new())),
            (PerfEvent::Cycles, (PerfState::NoPmu, ": No such file".to_owned())),
            (PerfEvent::Instructions, (PerfState::NotPermitted, String::new())),
            (PerfEvent::FpScalar, (PerfState::Unknown, ": it is not known how".to_owned())),
        ];
        let found = findings(&states.into(), "by this user", &rights(2, false, false), false);
        let said: Vec<(Verdict, &str, bool)> =
            found.iter().map(|f| (f.verdict, f.text.as_str(), f.fix.is_some())).collect();
        assert_eq!(said[0], (Verdict::Well, "counted by this user: page_faults", false));
        assert_eq!((said[1].0, said[1].2), (Verdict::Note, false));
        assert!(said[1].1.contains("PMU") && said[1].1.contains("cycles"));
        assert!(said[2].1.contains("instructions. kernel.perf_event_paranoid is 2") && said[2].2);
        assert_eq!(said[3].1, "not counted by this user: it is not known how: fp_scalar");
    }

    #[test]
    fn a_machine_too_large_for_the_limit_is_a_note() {
        let config = Config::default();
        assert_eq!(crowded(&config, 2, 512).count(), 0);
        let finding = crowded(&config, 256, 512).next().unwrap();
        assert!(finding.text.contains("2048 counters") && finding.text.contains("2 events are counted"));
    }
}

//! CPU events that can be counted here, and the reasons why others cannot. A running daemon reports its own
//! state. Without a daemon, every event is opened once on one CPU and closed again.

use std::collections::BTreeMap;
use std::fs;

use super::daemon::Daemon;
use super::host::{drop_in, own_status};
use super::report::Finding;
use collectors::cpu::backend::{CounterBackend, CounterScope};
use collectors::cpu::cpu_groups;
use collectors::cpu::machine_events::state;
use collectors::cpu::perf::{Perf, Processor};
use collectors::cpu::simulated::Simulated;
use host::Host;
use model::catalog::schema::KnownLabel;
use model::catalog::{PerfEvent, PerfState};
use settings::Config;

const TOPIC: &str = "CPU events";
/// Bits of CAP_PERFMON, and of CAP_SYS_ADMIN, which includes it.
const MAY_COUNT: u64 = 1 << 38 | 1 << 21;

/// Rights of this user that decide which events can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights {
    /// Value of `kernel.perf_event_paranoid`, if it can be read.
    paranoid: Option<i64>,
    /// True if the user has a capability of [`MAY_COUNT`].
    capable: bool,
    /// True if a system call filter applies (seccomp).
    filtered: bool,
}

impl Rights {
    fn here(host: &Host) -> Rights {
        let paranoid = fs::read_to_string(host.path("/proc/sys/kernel/perf_event_paranoid"));
        let status = own_status();
        Rights {
            paranoid: paranoid.ok().and_then(|text| text.trim().parse().ok()),
            capable: status.as_ref().is_some_and(|status| status.capeff & MAY_COUNT != 0),
            filtered: status.is_some_and(|status| status.seccomp == Some(2)),
        }
    }

    fn describe(&self) -> String {
        let paranoid = self.paranoid.map_or_else(|| "unknown".to_owned(), |level| level.to_string());
        let capable = if self.capable { "" } else { "no " };
        let filtered = if self.filtered { ", and a system call filter (seccomp) applies" } else { "" };
        format!("kernel.perf_event_paranoid is {paranoid}, this user has {capable}CAP_PERFMON{filtered}")
    }

    /// Returns the command that permits the events.
    fn fix(&self, daemon: bool) -> String {
        let allowed = self.capable || self.paranoid.is_some_and(|level| level <= 0);
        let command = match (allowed, self.filtered, daemon) {
            // The daemon lacks the right, and its unit defines its rights.
            (_, _, true) => return drop_in("cpu-events"),
            // The usual seccomp filters of containers allow the system call with this capability.
            (_, true, false) => {
                "docker run --cap-add PERFMON ...   # Kubernetes: securityContext.capabilities.add: [PERFMON]"
            }
            (false, false, false) => {
                "sudo sysctl kernel.perf_event_paranoid=0   # or only CAP_PERFMON for the daemon: cpu-events.conf"
            }
            (true, false, false) => "sudo dmesg | grep -i -e perf -e lockdown",
        };
        command.to_owned()
    }
}

/// Returns findings for all configured events.
pub fn events(host: &Host, config: &Config, daemon: &Daemon) -> Vec<Finding> {
    if !config.cpu.enabled {
        return vec![Finding::well(TOPIC, "not counted: cpu.enabled is false")];
    }
    let reported = daemon.cpu_events();
    let rights = Rights::here(host);
    if !reported.is_empty() {
        let states = reported.into_iter().map(|(event, state)| (event, (state, String::new())));
        return findings(&states.collect(), "by the daemon", &rights, true);
    }
    if let Some(kernel) = Simulated::of_host(host) {
        return findings(&tried(&kernel, host, config), "as a simulated host", &rights, false);
    }
    findings(&tried(&Perf::new(Processor::of_host(host)), host, config), "by this user", &rights, false)
}

/// Tries every event on one CPU. Returns its state and the reason for a failure.
fn tried<K: CounterBackend>(
    kernel: &K,
    host: &Host,
    config: &Config,
) -> BTreeMap<PerfEvent, (PerfState, String)> {
    let cpu = cpu_groups::online(host).and_then(|cpus| cpus.iter().next()).unwrap_or(0);
    let tried = config.cpu.events.iter().map(|event| {
        let outcome = kernel.open(*event, CounterScope { cpu, cgroup: None }).map(drop);
        let why = outcome.as_ref().err().map(|refusal| format!(": {refusal}")).unwrap_or_default();
        (*event, (state(&outcome), why))
    });
    tried.collect()
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
        let note = |text| Finding::note(TOPIC, text);
        match state {
            PerfState::Works => Finding::well(TOPIC, format!("counted {who}: {events}")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::report::Verdict;

    fn rights(paranoid: i64, capable: bool, filtered: bool) -> Rights {
        Rights { paranoid: Some(paranoid), capable, filtered }
    }

    #[test]
    fn each_cause_has_its_command() {
        assert!(rights(4, false, false).fix(false).contains("sysctl kernel.perf_event_paranoid=0"));
        assert!(rights(2, true, true).fix(false).contains("--cap-add PERFMON"));
        assert!(rights(2, false, false).fix(true).contains("cpu-events.conf"));
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
}

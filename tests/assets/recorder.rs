//! What the flight recorder records is what pages.

use std::collections::BTreeSet;

use model::health::Condition::{self, *};

use super::files::{Rule, rules};
use super::report;

/// Each alert about a GPU or a driver that pages, and conditions that lead to it.
const RECORDED: [(&str, &[Condition]); 6] = [
    ("GpuCanaryWrongResult", &[WrongResult]),
    ("GpuDriverDown", &[NoDriver]),
    ("GpuFabricDown", &[FabricDown]),
    ("GpuHot", &[HwThermalSlowdown]),
    ("GpuPowerBrake", &[HwPowerBrake]),
    ("GpuUnhealthy", &[FatalXid, UncontainedEcc, Stuck, Lost, Missing, RecoveryAction, RowRemapFailure]),
];
/// Alerts that page for what is no condition of a GPU: many nodes, which no node alone sees, and work that asks for a page.
const NO_CONDITION: [&str; 5] =
    ["GpuCoolingRow", "GpuNodesDownMany", "GpuPowerBrakeRack", "GpuSloFastBurn", "GpuWedged"];
/// Conditions of tickets.
const TICKETS: [Condition; 6] =
    [RowRemapPending, CanaryDegraded, PcieWidthNarrowed, EccUncorrected, PowerCap, NearSlowdown];

#[test]
fn each_alert_of_a_node_that_pages_has_a_recording() {
    let mut problems = Vec::new();
    let pages = |rule: &Rule| rule.labels.get("severity").is_some_and(|severity| severity == "page");
    let paging: BTreeSet<String> =
        rules().into_iter().filter(|(_, rule)| pages(rule)).filter_map(|(_, rule)| rule.alert).collect();
    for name in paging.iter().filter(|name| !NO_CONDITION.contains(&name.as_str())) {
        match RECORDED.iter().find(|(alert, _)| alert == name) {
            None => problems.push(format!("{name} pages: which condition is recorded?")),
            Some((_, conditions)) => {
                let silent = conditions.iter().filter(|condition| condition.pages_after().is_none());
                problems.extend(silent.map(|condition| format!("{name}: {condition:?} is not recorded")));
            }
        }
    }
    let unknown = RECORDED.iter().map(|(name, _)| *name).chain(NO_CONDITION);
    problems
        .extend(unknown.filter(|name| !paging.contains(*name)).map(|name| format!("{name} does not page")));
    let recorded = TICKETS.iter().filter(|condition| condition.pages_after().is_some());
    problems.extend(recorded.map(|condition| format!("{condition:?} is recorded and is a ticket")));
    report(problems);
}

//! Decides if the canary may run on a GPU now, as a list of conditions and findings. The module is pure: [`facts`] gathers
//! its input. If a value is unknown, the gate refuses the run and names the value.

pub mod claims;
pub mod facts;
pub mod slurm;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use claims::Claimed;
pub use facts::{GateFacts, GateValue, Since};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanarySkip, ComputeMode};

/// Utilization above which a GPU is busy.
const BUSY: f64 = 0.0;
/// Maximum share of its memory that an empty GPU uses.
const REST_SHARE: f64 = 0.02;
/// Maximum memory that an empty GPU uses, in bytes.
const REST_BYTES: f64 = 1024.0 * 1024.0 * 1024.0;
/// Variation of the memory that an empty GPU uses, in bytes.
const REST_SLACK: f64 = 32.0 * 1024.0 * 1024.0;
/// Time after a fault during which the canary does not run.
pub const AFTER_XID: Duration = Duration::from_secs(120);

/// Effect of a condition on the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allows {
    /// The condition allows a run.
    Yes,
    /// The condition forbids a run for this reason.
    No(CanarySkip),
    /// The condition was not checked, for this reason.
    NotChecked(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCondition {
    /// The requirement, as text.
    pub what: String,
    pub found: String,
    pub allows: Allows,
}

/// Returns the first reason that forbids a run.
pub fn refusal(conditions: &[RunCondition]) -> Option<CanarySkip> {
    conditions.iter().find_map(|one| if let Allows::No(reason) = one.allows { Some(reason) } else { None })
}

/// Finding of a condition and its effect.
type Finding = (String, Allows);

fn yes(found: impl Into<String>) -> Finding {
    (found.into(), Allows::Yes)
}

fn no(reason: CanarySkip, found: impl Into<String>) -> Finding {
    (found.into(), Allows::No(reason))
}

fn unchecked(why: impl Into<String>) -> Finding {
    (String::new(), Allows::NotChecked(why.into()))
}

/// Returns all conditions, the most severe first. The GPU must have been idle for `idle_for`.
pub fn conditions(facts: &GateFacts, idle_for: Duration) -> Vec<RunCondition> {
    let mut list = Vec::new();
    let mut add = |what: &str, (found, allows): Finding| {
        list.push(RunCondition { what: what.to_owned(), found, allows });
    };
    let released = facts.released.then_some("it is released");
    add("the driver is not released", unless(released, CanarySkip::Released, "in use"));
    add("the GPU answers", facts.state.as_ref().map_or(yes("it does"), |(reason, text)| no(*reason, text)));
    add("its values are fresh", fresh(facts));
    add("the GPU is healthy", healthy(facts));
    add("no fault (Xid) within two minutes", xid(facts));
    let child = facts.child.map(|pid| format!("process {pid}"));
    add("no earlier canary's process is left on it", unless(child, CanarySkip::ChildAlive, "none"));
    let no_instance = facts.no_instance.then_some("MIG mode without an instance");
    add("there is a device to run on", unless(no_instance, CanarySkip::NoInstance, "there is"));
    add("no MPS", mps(facts));
    add("no process", processes(facts));
    add("no pod claims the GPU", claimed(&facts.pod));
    add("no job claims the GPU", claimed(&facts.job));
    let compute_mode = reported(&facts.compute_mode, |mode| match mode {
        ComputeMode::Default => yes("default"),
        mode => no(CanarySkip::ComputeMode, mode.known()),
    });
    add("compute mode default", compute_mode);
    let persistence = reported(&facts.persistence, |on| match on {
        true => yes("on"),
        false => no(CanarySkip::PersistenceOff, "off; every run would initialise the GPU and shut it down"),
    });
    add("persistence mode on", persistence);
    let utilization = reported(&facts.utilization, |ratio| match *ratio > BUSY {
        true => no(CanarySkip::Busy, format!("{:.0} %", ratio * 100.0)),
        false => yes("0 %"),
    });
    add("utilization 0", utilization);
    add(&format!("without work for {}", format_seconds(idle_for)), without_work(facts, idle_for));
    add("memory as of an empty GPU", memory(facts));
    add("no maintenance", unless(facts.maintenance.as_ref(), CanarySkip::Maintenance, "none"));
    let spent = facts.duty_wait.map(|wait| format!("spent, for {} more", format_seconds(wait)));
    add("within the budget of GPU time", unless(spent, CanarySkip::Duty, "some is left"));
    add("the interlock is free", unless(facts.interlock.as_ref(), CanarySkip::Interlock, "free"));
    list
}

fn unless(bad: Option<impl Into<String>>, reason: CanarySkip, good: &str) -> Finding {
    bad.map_or_else(|| yes(good), |bad| no(reason, bad))
}

fn claimed(by: &Claimed) -> Finding {
    match by {
        Claimed::No(how) => yes(how),
        Claimed::By(claimant) => no(CanarySkip::Claimed, claimant),
        Claimed::Unknown(why) => no(CanarySkip::Unread, why),
        Claimed::Unasked(why) => unchecked(why),
    }
}

/// Judges a value. A value that the driver does not support does not forbid a run.
fn reported<T>(value: &GateValue<T>, allows: impl FnOnce(&T) -> Finding) -> Finding {
    match value {
        GateValue::Value(value) => allows(value),
        GateValue::Unsupported => unchecked("the driver does not report it"),
        GateValue::Unread => no(CanarySkip::Unread, "not known now"),
    }
}

fn fresh(facts: &GateFacts) -> Finding {
    let Some(age) = facts.age else { return no(CanarySkip::Unread, "no values") };
    let old = format!("{} old", format_seconds(age));
    if age > facts.fresh_for { no(CanarySkip::Unread, old) } else { yes(old) }
}

fn healthy(facts: &GateFacts) -> Finding {
    match &facts.unhealthy {
        None => no(CanarySkip::Unread, "not known now"),
        Some(reasons) if reasons.is_empty() => yes("no health problem is known"),
        Some(reasons) => no(CanarySkip::Unhealthy, reasons.join(", ")),
    }
}

fn xid(facts: &GateFacts) -> Finding {
    match &facts.xid {
        Since::Never => yes("none seen"),
        Since::Ago(ago) if *ago < AFTER_XID => {
            no(CanarySkip::RecentXid, format!("one {} ago", format_seconds(*ago)))
        }
        Since::Ago(ago) => yes(format!("the last {} ago", format_seconds(*ago))),
        Since::Unknown(why) => unchecked(why),
    }
}

fn mps(facts: &GateFacts) -> Finding {
    match &facts.mps {
        GateValue::Value(0) => yes("none"),
        GateValue::Value(n) => no(CanarySkip::Mps, format!("{n} of its processes")),
        // They are counted among the other processes, and the gate requires that count.
        GateValue::Unsupported | GateValue::Unread => unchecked("not distinguished from other processes"),
    }
}

fn processes(facts: &GateFacts) -> Finding {
    match &facts.processes {
        GateValue::Value(0) => yes("none"),
        GateValue::Value(n) => no(CanarySkip::Processes, n.to_string()),
        GateValue::Unsupported => no(CanarySkip::Unread, "the driver does not report processes"),
        GateValue::Unread => no(CanarySkip::Unread, "not known now"),
    }
}

fn without_work(facts: &GateFacts, idle_for: Duration) -> Finding {
    let Some(idle) = facts.idle else { return unchecked("only the daemon measures idle time") };
    let found = format!("for {}", format_seconds(idle));
    if idle < idle_for { no(CanarySkip::Busy, found) } else { yes(found) }
}

fn memory(facts: &GateFacts) -> Finding {
    let Some(memory) = &facts.memory else { return no(CanarySkip::Unread, "not known now") };
    let limit = memory_at_rest(memory.total, memory.least);
    let mib = |bytes: f64| bytes / (1024.0 * 1024.0);
    let found = format!("{:.0} MiB used, up to {:.0} is rest", mib(memory.used), mib(limit));
    if memory.used <= limit { yes(found) } else { no(CanarySkip::Memory, found) }
}

/// Returns the maximum memory in use, in bytes, of a GPU that counts as empty: a small share of its memory, or the least
/// use ever measured. The latter is larger on small boards and if the driver counts its own memory.
pub fn memory_at_rest(total: f64, least: Option<f64>) -> f64 {
    let share = (total * REST_SHARE).min(REST_BYTES);
    least.map_or(share, |least| share.max(least.min(REST_BYTES) + REST_SLACK))
}

/// Formats a time in whole seconds.
fn format_seconds(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

#[cfg(test)]
mod tests;

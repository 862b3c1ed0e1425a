//! Whether the canary may run on a GPU now: a list of conditions, each with what was found. Pure; what it goes
//! by is gathered in [`facts`]. When something is in doubt the answer is no, and says so.

pub mod claims;
pub mod facts;
pub mod slurm;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use claims::Claimed;
pub use facts::{GateFacts, GateValue, Since};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanarySkip, ComputeMode};

/// A GPU with more utilization than this is at work.
const BUSY: f64 = 0.0;
/// Memory in use of an empty GPU: at most this share of all.
const REST_SHARE: f64 = 0.02;
/// And at most this, in bytes.
const REST_BYTES: f64 = 1024.0 * 1024.0 * 1024.0;
/// By so many bytes the memory in use of an empty GPU varies.
const REST_SLACK: f64 = 32.0 * 1024.0 * 1024.0;
/// How long a fault keeps the canary away.
pub const AFTER_XID: Duration = Duration::from_secs(120);

/// What a condition allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allows {
    /// A run, as far as this is concerned.
    Yes,
    /// None, for this reason.
    No(CanarySkip),
    /// It was not looked at, and why.
    NotChecked(String),
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// What has to be so.
    pub what: String,
    /// How it is.
    pub found: String,
    /// What that allows.
    pub allows: Allows,
}

/// The reason that keeps the canary away, if one does: the first in the list.
pub fn refusal(conditions: &[Condition]) -> Option<CanarySkip> {
    conditions.iter().find_map(|condition| match condition.allows {
        Allows::No(reason) => Some(reason),
        Allows::Yes | Allows::NotChecked(_) => None,
    })
}

/// All conditions, the gravest first. The GPU must have been without work for `idle_for`.
pub fn conditions(facts: &GateFacts, idle_for: Duration) -> Vec<Condition> {
    let mut list = vec![
        when("the driver is not released", facts.released, CanarySkip::Released, "it is released", "in use"),
        refused_by("the GPU answers", &facts.state, "it does"),
        fresh(facts),
        healthy(facts),
        xid(facts),
        child(facts),
        instance(facts),
        mps(facts),
        processes(facts),
    ];
    list.extend([
        claimed("no pod claims the GPU", &facts.pod),
        claimed("no job claims the GPU", &facts.job),
        compute_mode(facts),
        persistence(facts),
        utilization(facts),
        idle(facts, idle_for),
        memory(facts),
        kept_away("no maintenance", CanarySkip::Maintenance, &facts.maintenance, "none"),
        duty(facts),
        kept_away("the interlock is free", CanarySkip::Interlock, &facts.interlock, "free"),
    ]);
    list
}

fn claimed(what: &str, by: &Claimed) -> Condition {
    match by {
        Claimed::No(how) => condition(what, how.as_str(), Allows::Yes),
        Claimed::By(claimant) => condition(what, claimant.as_str(), Allows::No(CanarySkip::Claimed)),
        Claimed::Unknown(why) => condition(what, why.as_str(), Allows::No(CanarySkip::Unread)),
        Claimed::Unasked(why) => condition(what, "", Allows::NotChecked(why.clone())),
    }
}

fn condition(what: &str, found: impl Into<String>, allows: Allows) -> Condition {
    Condition { what: what.into(), found: found.into(), allows }
}

fn when(what: &str, refuse: bool, reason: CanarySkip, bad: &str, good: &str) -> Condition {
    match refuse {
        true => condition(what, bad, Allows::No(reason)),
        false => condition(what, good, Allows::Yes),
    }
}

fn refused_by(what: &str, refused: &Option<(CanarySkip, String)>, good: &str) -> Condition {
    match refused {
        Some((reason, text)) => condition(what, text.as_str(), Allows::No(*reason)),
        None => condition(what, good, Allows::Yes),
    }
}

fn kept_away(what: &str, reason: CanarySkip, by: &Option<String>, good: &str) -> Condition {
    match by {
        Some(text) => condition(what, text.as_str(), Allows::No(reason)),
        None => condition(what, good, Allows::Yes),
    }
}

/// What a missing value allows: the driver's "not supported" is no reason to stay away.
fn without_value<T>(what: &str, value: &GateValue<T>) -> Option<Condition> {
    match value {
        GateValue::Value(_) => None,
        GateValue::Unsupported => {
            Some(condition(what, "", Allows::NotChecked("the driver does not report it".into())))
        }
        GateValue::Unread => Some(condition(what, "not known now", Allows::No(CanarySkip::Unread))),
    }
}

fn fresh(facts: &GateFacts) -> Condition {
    let what = "its values are fresh";
    match facts.age {
        None => condition(what, "no values", Allows::No(CanarySkip::Unread)),
        Some(age) if age > facts.fresh_for => {
            condition(what, format!("{} old", format_seconds(age)), Allows::No(CanarySkip::Unread))
        }
        Some(age) => condition(what, format!("{} old", format_seconds(age)), Allows::Yes),
    }
}

fn healthy(facts: &GateFacts) -> Condition {
    let what = "the GPU is healthy";
    match &facts.unhealthy {
        None => condition(what, "not known now", Allows::No(CanarySkip::Unread)),
        Some(reasons) if reasons.is_empty() => condition(what, "nothing is known against it", Allows::Yes),
        Some(reasons) => condition(what, reasons.join(", "), Allows::No(CanarySkip::Unhealthy)),
    }
}

fn xid(facts: &GateFacts) -> Condition {
    let what = "no fault (Xid) within two minutes";
    match &facts.xid {
        Since::Never => condition(what, "none seen", Allows::Yes),
        Since::Ago(ago) if *ago < AFTER_XID => {
            condition(what, format!("one {} ago", format_seconds(*ago)), Allows::No(CanarySkip::RecentXid))
        }
        Since::Ago(ago) => condition(what, format!("the last {} ago", format_seconds(*ago)), Allows::Yes),
        Since::Unknown(why) => condition(what, "", Allows::NotChecked(why.clone())),
    }
}

fn child(facts: &GateFacts) -> Condition {
    let what = "no earlier canary's process is left on it";
    match facts.child {
        Some(pid) => condition(what, format!("process {pid}"), Allows::No(CanarySkip::ChildAlive)),
        None => condition(what, "none", Allows::Yes),
    }
}

fn instance(facts: &GateFacts) -> Condition {
    let what = "there is a device to run on";
    when(what, facts.no_instance, CanarySkip::NoInstance, "MIG mode without an instance", "there is")
}

fn mps(facts: &GateFacts) -> Condition {
    let what = "no MPS";
    match &facts.mps {
        GateValue::Value(0) => condition(what, "none", Allows::Yes),
        GateValue::Value(n) => condition(what, format!("{n} of its processes"), Allows::No(CanarySkip::Mps)),
        // Counted with the others, without which nothing is started.
        GateValue::Unsupported | GateValue::Unread => {
            condition(what, "", Allows::NotChecked("not distinguished from other processes".into()))
        }
    }
}

fn processes(facts: &GateFacts) -> Condition {
    let what = "no process";
    match &facts.processes {
        GateValue::Value(0) => condition(what, "none", Allows::Yes),
        GateValue::Value(n) => condition(what, format!("{n}"), Allows::No(CanarySkip::Processes)),
        GateValue::Unsupported => {
            condition(what, "the driver does not report them", Allows::No(CanarySkip::Unread))
        }
        GateValue::Unread => condition(what, "not known now", Allows::No(CanarySkip::Unread)),
    }
}

fn compute_mode(facts: &GateFacts) -> Condition {
    let what = "compute mode default";
    match &facts.compute_mode {
        GateValue::Value(ComputeMode::Default) => condition(what, "default", Allows::Yes),
        GateValue::Value(mode) => condition(what, mode.known(), Allows::No(CanarySkip::ComputeMode)),
        other => without_value(what, other).unwrap_or_else(|| condition(what, "", Allows::Yes)),
    }
}

fn persistence(facts: &GateFacts) -> Condition {
    // Without it each run would initialise the GPU and tear it down again.
    let what = "persistence mode on";
    match &facts.persistence {
        GateValue::Value(true) => condition(what, "on", Allows::Yes),
        GateValue::Value(false) => {
            let found = "off: each run would initialise the GPU and tear it down";
            condition(what, found, Allows::No(CanarySkip::PersistenceOff))
        }
        other => without_value(what, other).unwrap_or_else(|| condition(what, "", Allows::Yes)),
    }
}

fn utilization(facts: &GateFacts) -> Condition {
    let what = "utilization 0";
    match &facts.utilization {
        GateValue::Value(ratio) if *ratio > BUSY => {
            condition(what, format!("{:.0} %", ratio * 100.0), Allows::No(CanarySkip::Busy))
        }
        GateValue::Value(_) => condition(what, "0 %", Allows::Yes),
        other => without_value(what, other).unwrap_or_else(|| condition(what, "", Allows::Yes)),
    }
}

fn idle(facts: &GateFacts, idle_for: Duration) -> Condition {
    let what = format!("without work for {}", format_seconds(idle_for));
    match facts.idle {
        None => condition(&what, "", Allows::NotChecked("only the daemon watches for how long".into())),
        Some(idle) if idle < idle_for => {
            condition(&what, format!("for {}", format_seconds(idle)), Allows::No(CanarySkip::Busy))
        }
        Some(idle) => condition(&what, format!("for {}", format_seconds(idle)), Allows::Yes),
    }
}

fn memory(facts: &GateFacts) -> Condition {
    let what = "memory as of an empty GPU";
    let Some(memory) = &facts.memory else {
        return condition(what, "not known now", Allows::No(CanarySkip::Unread));
    };
    let limit = memory_at_rest(memory.total, memory.least);
    let found = format!("{:.0} MiB used, up to {:.0} is rest", mib(memory.used), mib(limit));
    match memory.used <= limit {
        true => condition(what, found, Allows::Yes),
        false => condition(what, found, Allows::No(CanarySkip::Memory)),
    }
}

/// Most bytes in use of a GPU that counts as empty: a small share of all, or the least ever seen there, which is
/// more on small boards and where the driver's own memory is counted in.
pub fn memory_at_rest(total: f64, least: Option<f64>) -> f64 {
    let share = (total * REST_SHARE).min(REST_BYTES);
    least.map_or(share, |least| share.max(least.min(REST_BYTES) + REST_SLACK))
}

fn duty(facts: &GateFacts) -> Condition {
    let what = "within the budget of GPU time";
    match facts.duty_wait {
        Some(wait) => {
            condition(what, format!("spent, for {} more", format_seconds(wait)), Allows::No(CanarySkip::Duty))
        }
        None => condition(what, "some is left", Allows::Yes),
    }
}

fn mib(bytes: f64) -> f64 {
    bytes / (1024.0 * 1024.0)
}

/// A time, rounded to seconds.
fn format_seconds(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

#[cfg(test)]
mod tests;

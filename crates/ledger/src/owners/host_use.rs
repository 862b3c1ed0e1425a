//! What owners use of the host: counters by owner, of the owners without series together, and when owners began.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::accounts::Accounts;
use crate::builder::Builder;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CpuTimeMode};
use model::owners::{CpuTime, OwnerReading};

/// Amounts that go to the owner, or to `other` while the owner has no series.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts {
    /// Processes that the OOM killer ended.
    kills: f64,
    /// CPU time, in seconds.
    cpu: CpuTime,
}

impl Amounts {
    fn add(&mut self, more: Amounts) {
        self.kills += more.kills;
        self.cpu.user += more.cpu.user;
        self.cpu.system += more.cpu.system;
    }

    fn publish(&self, b: &mut Builder<'_>, owner: &Arc<str>, known: Known) {
        let entity = m::Owner { owner: Arc::clone(owner) };
        if known.kills {
            b.add(&m::gpu_owner_host_oom_kills_total, &entity, (), self.kills);
        }
        for mode in CpuTimeMode::ALL.iter().filter(|_| known.cpu) {
            let seconds = match mode {
                CpuTimeMode::User => self.cpu.user,
                CpuTimeMode::System => self.cpu.system,
            };
            b.add(&m::gpu_owner_cpu_seconds_total, &entity, (*mode,), seconds);
        }
    }
}

/// Which amounts have been read.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    kills: bool,
    cpu: bool,
}

#[derive(Debug, Default)]
struct OwnerHostUse {
    known: Known,
    /// The control group's count of kills at the last reading.
    last_kills: Option<u64>,
    /// By how much that count has risen.
    counted_kills: f64,
    /// Kills in the kernel log: a container's group is gone at once when its first process is killed.
    logged_kills: f64,
    /// Kills that are in `new` or have been.
    kills: f64,
    /// Kills that are in records.
    recorded_kills: f64,
    /// CPU time at the last reading.
    last_cpu: Option<CpuTime>,
    /// What belongs to the owner or to `other`, as soon as it is known which of them.
    new: Amounts,
    own: Amounts,
    /// Start of the first of its processes, in seconds since 1970.
    start: Option<f64>,
    /// Whether it had processes at the last publication.
    present: bool,
}

impl OwnerHostUse {
    /// Both sources count the same kills, and each may miss some.
    fn count_kills(&mut self) {
        self.known.kills = true;
        let kills = self.counted_kills.max(self.logged_kills);
        self.new.kills += kills - self.kills;
        self.kills = kills;
    }
}

/// What all owners use of the host.
#[derive(Debug, Default)]
pub(crate) struct HostUse {
    of: HashMap<Arc<str>, OwnerHostUse>,
    /// Of the owners without series.
    other: Amounts,
}

impl HostUse {
    /// Takes in a reading. What was before the first one, or in an older control group of the same name, is not this
    /// work's.
    pub fn read(&mut self, reading: &OwnerReading) {
        let of = self.of.entry(Arc::clone(&reading.owner)).or_default();
        if let Some(kills) = reading.oom_kills {
            of.counted_kills += kills.saturating_sub(of.last_kills.unwrap_or(kills)) as f64;
            of.last_kills = Some(kills);
            of.count_kills();
        }
        if let Some(cpu) = reading.cpu_time {
            let last = of.last_cpu.replace(cpu).unwrap_or(cpu);
            of.known.cpu = true;
            // Of a sum over processes: the others' share of the time in which one of them ended is lost.
            of.new.cpu.user += (cpu.user - last.user).max(0.0);
            of.new.cpu.system += (cpu.system - last.system).max(0.0);
        }
    }

    /// A line of the kernel log says that a process of the owner was killed.
    pub fn killed(&mut self, owner: Arc<str>) {
        let of = self.of.entry(owner).or_default();
        of.logged_kills += 1.0;
        of.count_kills();
    }

    /// Processes of the owner that the OOM killer ended since its last record; `None`: not known.
    pub fn unrecorded_kills(&self, owner: &Arc<str>) -> Option<f64> {
        self.of.get(owner).filter(|of| of.known.kills).map(|of| of.kills - of.recorded_kills)
    }

    /// What was counted until now is in a record of the owner.
    pub fn record_kills(&mut self, owner: &Arc<str>) {
        if let Some(of) = self.of.get_mut(owner) {
            of.recorded_kills = of.kills;
        }
    }

    /// The owners that have processes now, each with the start of the first of them, in seconds since 1970.
    pub fn present(&mut self, starts: HashMap<Arc<str>, f64>) {
        for (owner, of) in &mut self.of {
            of.present &= starts.contains_key(owner);
        }
        for (owner, start) in starts {
            let of = self.of.entry(owner).or_default();
            let before = of.start.filter(|_| of.present);
            (of.start, of.present) = (Some(before.map_or(start, |before| before.min(start))), true);
        }
    }

    /// Divides what is new between the owners and `other`, and forgets owners without series that `is_read` does not know.
    pub fn divide(
        &mut self,
        accounts: &Accounts,
        without_series: &BTreeSet<Arc<str>>,
        is_read: impl Fn(&Arc<str>) -> bool,
    ) {
        for (owner, of) in &mut self.of {
            if accounts.has_series(owner) {
                of.own.add(std::mem::take(&mut of.new));
            } else if without_series.contains(owner) {
                of.own = Amounts::default();
                self.other.add(std::mem::take(&mut of.new));
            }
            // Else its account may still come.
        }
        self.of.retain(|owner, of| of.present || accounts.has_series(owner) || is_read(owner));
    }

    /// The series of owners, and of `other` if there are owners without series.
    pub fn publish(&self, b: &mut Builder<'_>, accounts: &Accounts, without_series: &BTreeSet<Arc<str>>) {
        for (owner, of) in self.of.iter().filter(|(owner, _)| accounts.has_series(owner)) {
            of.own.publish(b, owner, of.known);
            if let Some(start) = of.start {
                let entity = m::Owner { owner: Arc::clone(owner) };
                b.add(&m::gpu_owner_start_timestamp_seconds, &entity, (), start);
            }
        }
        let any = !without_series.is_empty();
        let known = Known { kills: any || self.other.kills > 0.0, cpu: any || self.other.cpu.total() > 0.0 };
        self.other.publish(b, &accounts.other().id, known);
    }
}

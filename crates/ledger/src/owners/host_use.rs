//! Host resources of owners: counters by owner, their sum over the owners without series, and the start times of
//! owners.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::accounts::Accounts;
use crate::builder::Builder;
use model::catalog::{self as m, CpuTimeMode};
use model::owners::{CpuTime, OwnerReading};

/// Amounts of an owner, or of `other` while the owner has no series.
#[derive(Clone, Copy, Default)]
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
        b.add_known(&m::gpu_owner_host_oom_kills_total, &entity, (), known.kills.then_some(self.kills));
        for (mode, seconds) in [(CpuTimeMode::User, self.cpu.user), (CpuTimeMode::System, self.cpu.system)] {
            b.add_known(&m::gpu_owner_cpu_seconds_total, &entity, (mode,), known.cpu.then_some(seconds));
        }
    }
}

/// Amounts that have been read.
#[derive(Clone, Copy, Default)]
struct Known {
    kills: bool,
    cpu: bool,
}

#[derive(Default)]
struct OwnerHostUse {
    known: Known,
    /// Kill count of the control group at the last reading.
    last_kills: Option<u64>,
    /// Increase of that count so far.
    counted_kills: f64,
    /// Kills in the kernel log. A container's group is removed as soon as its first process is killed.
    logged_kills: f64,
    /// Kills that were added to `new` so far.
    kills: f64,
    /// Kills that are in records.
    recorded_kills: f64,
    /// CPU time at the last reading.
    last_cpu: Option<CpuTime>,
    /// Amounts that are not yet assigned to the owner or to `other`.
    new: Amounts,
    own: Amounts,
    /// Start time of its first process, in seconds since 1970.
    start: Option<f64>,
    /// Whether it had processes at the last publication.
    present: bool,
}

impl OwnerHostUse {
    /// Counts kills. Both sources report the same kills, and either may miss some.
    fn count_kills(&mut self) {
        self.known.kills = true;
        let kills = self.counted_kills.max(self.logged_kills);
        self.new.kills += kills - self.kills;
        self.kills = kills;
    }
}

/// Host resources of all owners.
#[derive(Default)]
pub(crate) struct HostUse {
    of: HashMap<Arc<str>, OwnerHostUse>,
    /// Amounts of the owners without series.
    other: Amounts,
}

impl HostUse {
    /// Records a reading. Amounts from before the first reading, or from an older control group of the same name,
    /// belong to other work.
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
            // The CPU time is a sum over processes. When one of them ends, the time of the others in that interval is
            // lost.
            of.new.cpu.user += (cpu.user - last.user).max(0.0);
            of.new.cpu.system += (cpu.system - last.system).max(0.0);
        }
    }

    /// Counts a kill that the kernel log reports.
    pub fn killed(&mut self, owner: Arc<str>) {
        let of = self.of.entry(owner).or_default();
        of.logged_kills += 1.0;
        of.count_kills();
    }

    /// Returns the processes that the OOM killer ended since the owner's last record, or `None` if unknown.
    pub fn unrecorded_kills(&self, owner: &Arc<str>) -> Option<f64> {
        self.of.get(owner).filter(|of| of.known.kills).map(|of| of.kills - of.recorded_kills)
    }

    /// Marks the kills counted so far as recorded.
    pub fn record_kills(&mut self, owner: &Arc<str>) {
        if let Some(of) = self.of.get_mut(owner) {
            of.recorded_kills = of.kills;
        }
    }

    /// Updates the owners that have processes, with the start time of the first one in seconds since 1970.
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

    /// Assigns new amounts to the owners or to `other`, and forgets owners without series for which `is_read` is
    /// false.
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
            // Otherwise, its account may still be opened.
        }
        self.of.retain(|owner, of| of.present || accounts.has_series(owner) || is_read(owner));
    }

    /// Publishes the series of the owners, and of `other` if there are owners without series.
    pub fn publish(&self, b: &mut Builder<'_>, accounts: &Accounts, without_series: &BTreeSet<Arc<str>>) {
        for (owner, of) in self.of.iter().filter(|(owner, _)| accounts.has_series(owner)) {
            of.own.publish(b, owner, of.known);
            let entity = m::Owner { owner: Arc::clone(owner) };
            b.add_known(&m::gpu_owner_start_timestamp_seconds, &entity, (), of.start);
        }
        let any = !without_series.is_empty();
        let known = Known { kills: any || self.other.kills > 0.0, cpu: any || self.other.cpu.total() > 0.0 };
        self.other.publish(b, &accounts.other.id, known);
    }
}

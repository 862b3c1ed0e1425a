//! Timeline of the owners on one GPU, which divides measured amounts among them.
//!
//! Processes are listed once a second, and their owners and the driver's samples are known later. A stretch of time
//! is settled when the owners of all its processes are known, and amounts wait until then. The shares never add up to
//! more than the measured amount.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::clock::Mono;
use model::owners::Owner;

/// MIG GPU instance; `None`: the whole GPU.
pub(crate) type InstanceId = Option<u32>;

/// Maximum time for which a listing is valid without a newer one.
pub const LONGEST: Duration = Duration::from_secs(5);
/// Settled time that is kept, because a GPM window of a minute arrives at its end.
const KEPT: Duration = Duration::from_secs(180);
/// Maximum number of waiting amounts: one minute of power and utilization samples.
const WAITING: usize = 4096;

/// Process in a listing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ListedProcess {
    /// Tenant number of the process.
    pub tenant: u64,
    pub place: InstanceId,
    /// Device memory, in bytes.
    pub memory: Option<u64>,
}

/// List of the processes on the GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Listing {
    pub processes: Vec<ListedProcess>,
    /// Places with full memory.
    pub full: Vec<InstanceId>,
}

impl Listing {
    /// Returns the tenant numbers at a place, in order.
    pub fn at(&self, place: InstanceId) -> Vec<u64> {
        let here = self.processes.iter().filter(|one| one.place == place).map(|one| one.tenant);
        here.collect::<BTreeSet<u64>>().into_iter().collect()
    }
}

/// Amount measured over a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Amount {
    pub quantity: AmountKind,
    pub from: Mono,
    pub to: Mono,
    /// Seconds or joules, by quantity.
    pub amount: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AmountKind {
    /// Seconds in which a place worked.
    Busy(InstanceId),
    /// Energy of the GPU.
    Joules,
}

/// Owner that was at a place for a stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PresentOwner {
    pub place: InstanceId,
    pub owner: Arc<Owner>,
    /// Memory of its processes at the place; `None` if the driver does not report it.
    pub memory: Option<u64>,
    /// Number of owners at the place, including this one.
    pub owners: usize,
}

/// Stretch of time for which all owners are known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SettledSpan {
    pub from: Mono,
    pub to: Mono,
    pub present: Vec<PresentOwner>,
    /// Places with full memory.
    pub full: Vec<InstanceId>,
}

/// Part of an amount that belongs to an owner.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AmountShare {
    pub quantity: AmountKind,
    pub from: Mono,
    pub place: InstanceId,
    pub owner: Arc<str>,
    /// Seconds or joules, by quantity.
    pub amount: f64,
}

struct OpenSpan {
    from: Mono,
    to: Mono,
    listing: Listing,
}

struct Stretch {
    from: Mono,
    to: Mono,
    owners: Vec<(InstanceId, Vec<Arc<str>>)>,
    /// Tenant number of the only process on a GPU without MIG.
    only: Option<u64>,
}

/// Timeline of one GPU.
#[derive(Default)]
pub(crate) struct Timeline {
    /// Newest listing and its time.
    pub newest: Option<(Mono, Listing)>,
    raw: VecDeque<OpenSpan>,
    settled: VecDeque<Stretch>,
    until: Mono,
    waiting: VecDeque<Amount>,
}

impl Timeline {
    /// Adds a listing. The processes of the previous listing were present until now.
    pub fn listed(&mut self, at: Mono, listing: Listing) {
        if let Some((from, before)) = self.newest.take() {
            if at <= from {
                self.newest = Some((from, before));
                return;
            }
            self.raw.push_back(OpenSpan { from, to: at.min(from + LONGEST), listing: before });
        }
        self.newest = Some((at, listing));
    }

    /// Adds an amount, to be divided once its time is settled.
    pub fn measured(&mut self, amount: Amount) {
        if self.newest.is_none() || amount.to <= amount.from || amount.amount < 0.0 {
            return;
        }
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(amount);
    }

    /// Settles the oldest stretches whose owners are all known. `owner` returns the owner of a process, or `None`
    /// while it is unknown.
    pub fn settle(&mut self, owner: impl Fn(u64) -> Option<Arc<Owner>>) -> Vec<SettledSpan> {
        let mut done = Vec::new();
        while let Some(raw) = self.raw.front() {
            let Some(present) = present(&raw.listing.processes, &owner) else { break };
            let Some(OpenSpan { from, to, listing }) = self.raw.pop_front() else { break };
            let mut owners: BTreeMap<InstanceId, Vec<Arc<str>>> = BTreeMap::new();
            for one in &present {
                owners.entry(one.place).or_default().push(Arc::clone(&one.owner.id));
            }
            let only = match listing.processes.as_slice() {
                [one] if one.place.is_none() => Some(one.tenant),
                _ => None,
            };
            self.until = to;
            self.push(Stretch { from, to, owners: owners.into_iter().collect(), only });
            done.push(SettledSpan { from, to, present, full: listing.full });
        }
        while self.settled.front().is_some_and(|s| self.until.since(s.to) > KEPT) {
            self.settled.pop_front();
        }
        done
    }

    fn push(&mut self, next: Stretch) {
        match self.settled.back_mut() {
            Some(last) if last.to == next.from && last.owners == next.owners && last.only == next.only => {
                last.to = next.to;
            }
            _ => self.settled.push_back(next),
        }
    }

    /// Divides the amounts in settled time. `share` returns the share of the GPU that a GPU instance has. The second
    /// list contains processes that had the GPU to themselves while it worked, and the times.
    pub fn divide(&mut self, share: impl Fn(u32) -> Option<f64>) -> (Vec<AmountShare>, Vec<(u64, Mono)>) {
        let (mut parts, mut works) = (Vec::new(), Vec::new());
        let waiting = std::mem::take(&mut self.waiting);
        for amount in waiting {
            if amount.to > self.until {
                self.waiting.push_back(amount);
                continue;
            }
            self.divide_one(&amount, &share, &mut parts);
            if amount.quantity == AmountKind::Busy(None) && amount.amount > 0.0 {
                let at = self.settled.iter().rev().find(|s| s.from < amount.to && amount.to <= s.to);
                works.extend(at.and_then(|s| s.only).map(|tenant| (tenant, amount.to)));
            }
        }
        (parts, works)
    }

    /// Returns true if all amounts before this time are divided.
    pub fn is_divided(&self, until: Mono) -> bool {
        self.waiting.iter().all(|amount| amount.from >= until)
    }

    fn divide_one(&self, amount: &Amount, share: &impl Fn(u32) -> Option<f64>, parts: &mut Vec<AmountShare>) {
        let whole = amount.to.since(amount.from).as_secs_f64();
        for stretch in self.settled.iter().rev().take_while(|s| s.to > amount.from) {
            let (from, to) = (stretch.from.max(amount.from), stretch.to.min(amount.to));
            if to <= from {
                continue;
            }
            let overlap = amount.amount * (to.since(from).as_secs_f64() / whole).min(1.0);
            let parted = stretch.owners.iter().any(|(place, _)| place.is_some());
            for (place, owners) in &stretch.owners {
                let of_place = match (amount.quantity, place) {
                    (AmountKind::Busy(wanted), _) if wanted != *place => None,
                    // Both are measured in whole GPUs, as the allocated time is.
                    (_, Some(instance)) => share(*instance),
                    (AmountKind::Busy(_), None) => Some(1.0),
                    (AmountKind::Joules, None) => (!parted).then_some(1.0),
                };
                let Some(of_place) = of_place else { continue };
                let each = overlap * of_place / owners.len() as f64;
                parts.extend(owners.iter().map(|owner| AmountShare {
                    quantity: amount.quantity,
                    from,
                    place: *place,
                    owner: Arc::clone(owner),
                    amount: each,
                }));
            }
        }
    }
}

/// Returns the owners at each place, without duplicates, or `None` while one of them is unknown.
pub fn present(
    processes: &[ListedProcess],
    owner: impl Fn(u64) -> Option<Arc<Owner>>,
) -> Option<Vec<PresentOwner>> {
    let mut all: BTreeMap<(InstanceId, Arc<str>), PresentOwner> = BTreeMap::new();
    for process in processes {
        let owner = owner(process.tenant)?;
        let one = all.entry((process.place, Arc::clone(&owner.id))).or_insert_with(|| PresentOwner {
            place: process.place,
            owner,
            memory: None,
            owners: 0,
        });
        one.memory = match (one.memory, process.memory) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
    }
    let mut count: BTreeMap<InstanceId, usize> = BTreeMap::new();
    for (place, _) in all.keys() {
        *count.entry(*place).or_default() += 1;
    }
    let counted = all.into_values().map(|one| {
        let owners = count.get(&one.place).copied().unwrap_or(1);
        PresentOwner { owners, ..one }
    });
    Some(counted.collect())
}

#[cfg(test)]
mod tests;

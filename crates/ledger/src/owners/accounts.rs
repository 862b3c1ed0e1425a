//! The share of each owner of each GPU or GPU instance: counters that never go back, kept for a while after its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::past::Past;
use super::sketch::Sketch;
use super::timeline::{AmountKind, AmountShare, InstanceId, SettledSpan};
use crate::bottleneck::Steady;
use model::catalog::Gpu;
use model::clock::Mono;
use model::owners::Owner;

/// Accounts are kept for so many times more owners than may have series: an owner that gets series has its counters.
const SPARE: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccountKey {
    pub gpu: Gpu,
    pub place: InstanceId,
    pub owner: Arc<str>,
}

/// One account.
#[derive(Debug)]
pub struct Account {
    pub owner: Arc<Owner>,
    /// GPU time it had, in seconds.
    pub allocated: f64,
    /// Seconds in which the GPU worked for it.
    pub busy: f64,
    /// Energy, in joules.
    pub joules: f64,
    /// Times it ended with the memory full.
    pub ended_full: f64,
    /// When it was there last, as far as that is settled.
    pub until: Mono,
    /// Shares of the GPU's memory that it held, by time.
    pub memory: Sketch,
    /// Shares of the GPU's multiprocessors that were active while it was alone, by time.
    pub multiprocessors: Sketch,
    pub cause: Steady,
    pub past: Past,
    full: bool,
    ended: bool,
}

impl Account {
    fn new(owner: Arc<Owner>, now: Mono) -> Account {
        Account {
            owner,
            allocated: 0.0,
            busy: 0.0,
            joules: 0.0,
            ended_full: 0.0,
            until: now,
            memory: Sketch::default(),
            multiprocessors: Sketch::default(),
            cause: Steady::default(),
            past: Past::default(),
            full: false,
            ended: false,
        }
    }
}

/// All accounts, and which owners have series.
#[derive(Debug, Default)]
pub struct Accounts {
    all: BTreeMap<AccountKey, Account>,
    /// Owners with series: an owner keeps them until it is forgotten.
    with_series: BTreeSet<Arc<str>>,
    /// Owners without an account, because there are too many: as of the newest stretch of each GPU.
    refused: BTreeMap<Gpu, BTreeSet<Arc<str>>>,
    most: usize,
}

impl Accounts {
    /// For so many owners with series.
    pub fn new(most: usize) -> Accounts {
        Accounts { most, ..Accounts::default() }
    }

    /// Adds settled time of a GPU. `share` gives the share of the GPU that a GPU instance is, `None` if that is
    /// not known; `total` the memory of a place, in bytes.
    pub fn settle(
        &mut self,
        gpu: &Gpu,
        settled: &SettledSpan,
        share: impl Fn(u32) -> Option<f64>,
        total: Option<f64>,
    ) {
        let seconds = settled.to.since(settled.from).as_secs_f64();
        let mut refused = BTreeSet::new();
        for one in &settled.present {
            let key = AccountKey { gpu: gpu.clone(), place: one.place, owner: Arc::clone(&one.owner.id) };
            if !self.open(&key, &one.owner, settled.from) {
                refused.insert(key.owner);
                continue;
            }
            let Some(account) = self.all.get_mut(&key) else { continue };
            let of_gpu = one.place.map_or(Some(1.0), &share);
            account.allocated += seconds / one.owners.max(1) as f64 * of_gpu.unwrap_or(0.0);
            account.owner = Arc::clone(&one.owner);
            account.until = settled.to;
            account.full = settled.full.contains(&one.place);
            account.ended = false;
            if let (Some(bytes), Some(total)) = (one.memory, total.filter(|total| *total > 0.0)) {
                account.memory.add((bytes as f64 / total).min(1.0), seconds);
            }
        }
        for (_, account) in self.all.iter_mut().filter(|(key, _)| key.gpu == *gpu) {
            if account.until <= settled.from && !account.ended {
                account.ended = true;
                account.ended_full += f64::from(u8::from(account.full));
            }
        }
        if refused.is_empty() {
            self.refused.remove(gpu);
        } else {
            self.refused.insert(gpu.clone(), refused);
        }
    }

    /// Makes an account if there is room for it.
    fn open(&mut self, key: &AccountKey, owner: &Arc<Owner>, now: Mono) -> bool {
        if self.all.contains_key(key) {
            return true;
        }
        let owners = self.owners();
        let room = owners.contains(&key.owner) || owners.len() < self.most.saturating_mul(SPARE);
        if room || self.with_series.contains(&key.owner) {
            self.all.insert(key.clone(), Account::new(Arc::clone(owner), now));
            return true;
        }
        false
    }

    fn owners(&self) -> BTreeSet<&Arc<str>> {
        self.all.keys().map(|key| &key.owner).collect()
    }

    /// Adds shares of what was measured of a GPU.
    pub fn add(&mut self, gpu: &Gpu, shares: Vec<AmountShare>) {
        for share in shares {
            let key = AccountKey { gpu: gpu.clone(), place: share.place, owner: share.owner };
            let Some(account) = self.all.get_mut(&key) else { continue };
            match share.quantity {
                AmountKind::Busy(_) => account.busy += share.amount,
                AmountKind::Joules => account.joules += share.amount,
            }
        }
    }

    pub fn get_mut(&mut self, key: &AccountKey) -> Option<&mut Account> {
        self.all.get_mut(key)
    }

    /// Forgets owners that ended long ago, and gives the series that became free to the busiest of those that wait.
    pub fn tidy(&mut self, now: Mono, keep: Duration) {
        self.all.retain(|_, account| now.since(account.until) <= keep);
        let mut waiting: BTreeMap<Arc<str>, f64> = BTreeMap::new();
        for (key, account) in &self.all {
            *waiting.entry(Arc::clone(&key.owner)).or_default() += account.busy + account.allocated * 1e-3;
        }
        self.with_series.retain(|owner| waiting.contains_key(owner));
        waiting.retain(|owner, _| !self.with_series.contains(owner));
        let mut waiting: Vec<(Arc<str>, f64)> = waiting.into_iter().collect();
        waiting.sort_by(|a, b| b.1.total_cmp(&a.1));
        let free = self.most.saturating_sub(self.with_series.len());
        self.with_series.extend(waiting.into_iter().take(free).map(|(owner, _)| owner));
    }

    /// Accounts of owners with series.
    pub fn with_series(&mut self) -> impl Iterator<Item = (&AccountKey, &mut Account)> {
        let with_series = &self.with_series;
        self.all.iter_mut().filter(|(key, _)| with_series.contains(&key.owner))
    }

    /// Whether an owner has series.
    pub fn has_series(&self, owner: &Arc<str>) -> bool {
        self.with_series.contains(owner)
    }

    /// How many owners have no series.
    pub fn dropped(&self) -> usize {
        let refused: BTreeSet<&Arc<str>> = self.refused.values().flatten().collect();
        let all: BTreeSet<&Arc<str>> = self.owners().into_iter().chain(refused).collect();
        all.into_iter().filter(|owner| !self.with_series.contains(*owner)).count()
    }

    /// Forgets a GPU that another one has replaced.
    pub fn forget(&mut self, gpu: &Gpu) {
        self.all.retain(|key, _| key.gpu != *gpu);
        self.refused.remove(gpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owners::timeline::PresentOwner;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn gpu() -> Gpu {
        Gpu { gpu: 0, uuid: "a".into() }
    }

    fn settled(from: u64, owners: &[&str], full: bool) -> SettledSpan {
        let present = owners.iter().map(|id| PresentOwner {
            place: None,
            owner: Arc::new(Owner { id: (*id).into(), ..Owner::unknown() }),
            memory: Some(1),
            owners: owners.len(),
        });
        let present = present.collect();
        SettledSpan {
            from: at(from),
            to: at(from + 1),
            present,
            full: if full { vec![None] } else { vec![] },
        }
    }

    fn feed(accounts: &mut Accounts, from: u64, owners: &[&str], full: bool) {
        accounts.settle(&gpu(), &settled(from, owners, full), |_| None, None);
        accounts.tidy(at(from + 1), Duration::from_secs(60));
    }

    fn allocated(accounts: &mut Accounts) -> Vec<(String, f64, f64)> {
        let rows = accounts.with_series().map(|(key, a)| (key.owner.to_string(), a.allocated, a.ended_full));
        rows.collect()
    }

    #[test]
    fn time_is_shared_and_an_owner_that_comes_back_goes_on() {
        let mut accounts = Accounts::new(8);
        feed(&mut accounts, 0, &["a", "b"], false);
        feed(&mut accounts, 1, &["a"], true);
        feed(&mut accounts, 2, &[], false);
        feed(&mut accounts, 30, &["a"], false);
        let all = allocated(&mut accounts);
        assert_eq!(all, [("a".into(), 2.5, 1.0), ("b".into(), 0.5, 0.0)]);
        feed(&mut accounts, 70, &[], false);
        assert_eq!(allocated(&mut accounts), [("a".into(), 2.5, 1.0)], "the other was over for long");
        feed(&mut accounts, 200, &[], false);
        assert!(allocated(&mut accounts).is_empty());
    }

    #[test]
    fn owners_above_the_bound_wait_and_are_counted() {
        let mut accounts = Accounts::new(2);
        feed(&mut accounts, 0, &["a", "b"], false);
        let names: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        feed(&mut accounts, 1, &names, false);
        assert_eq!(accounts.with_series().count(), 2);
        assert_eq!(accounts.dropped(), 20);
        assert!(accounts.all.len() <= 2 * SPARE, "memory is bounded too");
        feed(&mut accounts, 2, &names[..1], false);
        assert_eq!(allocated(&mut accounts)[0].0, "a", "an owner with series keeps them");
    }
}
